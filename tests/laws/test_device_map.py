"""A network over several places computes what it computes in one: CPU and disk stand for GPUs here."""

import numpy as np
import pytest
import torch

import anchorwatch as aw
from anchorwatch.errors import SpecError
from anchorwatch.models.device_map import compute_device
from checkpoints import GOLDEN

LLADA = GOLDEN / "llada"


def split_map(model):
    """The first layer on disk, everything else on the CPU."""
    layers = range(model.num_layers)
    return {f"model.layers.{i}": "disk" if i == 0 else "cpu" for i in layers} | {
        "model.embed_tokens": "cpu",
        "model.norm": "cpu",
        "model.rotary_emb": "cpu",
        "lm_head": "disk",
    }


def test_offloaded_weights_compute_the_same():
    plain = aw.load(LLADA)
    model = aw.load(LLADA, device_map=split_map(plain))
    offloaded = [name for name, p in model.network.named_parameters() if p.is_meta]
    assert any(name.startswith("model.layers.0.") for name in offloaded)
    assert "lm_head.weight" in offloaded
    assert compute_device(model.network) == model.device == torch.device("cpu")
    ids = list(range(4, 12)) + [model.mask_id] * 4
    assert torch.equal(model.logits(ids), plain.logits(ids))
    assert model.digest == plain.digest, "the digest reads what is on disk"
    # A run with probes and an edit, and its replay by the other.
    writes = aw.decoding.LowConfidence(length=4, steps=2)
    more = {"edits": [aw.edits.hide_keys([0])]}
    traces = [aw.run(m, ids[:8], writes, **more) for m in (plain, model)]
    assert traces[0].digest() == traces[1].digest()
    for name in ("received", "entropy"):
        assert np.array_equal(traces[0][name].values, traces[1][name].values, equal_nan=True)
    assert aw.replay(model, traces[0], [aw.probes.received()]).digest() == traces[0].digest()
    model.check()


def test_auto_uses_what_there_is():
    model = aw.load(LLADA, device_map="auto")
    assert torch.equal(model.logits([5, 6, 7]), aw.load(LLADA).logits([5, 6, 7]))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("everywhere", "expected one of auto, balanced"),
        ({"model.embed_tokens": "cpu"}, "does not cover the network"),
        ({"": "disk"}, "everything on disk"),
        ({"": "cuda:7"}, "cannot be used on this machine: use 'cpu' or 'disk'"),
    ],
)
def test_maps_that_cannot_be(asked, says):
    with pytest.raises(SpecError, match=says):
        aw.load(LLADA, device_map=asked)


def test_one_device_or_several():
    with pytest.raises(SpecError, match="leave one of them out"):
        aw.load(LLADA, device="cpu", device_map="auto")
    with pytest.raises(SpecError, match="say device instead of device_map"):
        aw.load("lab/toy-sink", device_map="auto")
