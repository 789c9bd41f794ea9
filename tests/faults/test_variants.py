"""Trained parts in a checkpoint: read back as they were, and refused where file and config part."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import anchorwatch as aw
import tolerances
from anchorwatch.errors import ModelError, SpecError, WeightsError
from anchorwatch.models import trained_additions
from checkpoints import MASK, network, trained, without_parts

E = aw.edits
IDS = torch.tensor([5, 60, 7, MASK, MASK, 12, 33])
PARTS = [
    E.sink_token(2, embedding="random", position="end"),
    E.sink_token(embedding="random", rotary=False, value="zero"),
    E.register(embedding="random"),
    E.off_by_one(),
    E.sink_logit(0.7),
    E.kv_bias(2, layers=[1]),
    E.gate("headwise", "plain"),
    E.gate("elementwise", "identity", layers=[0]),
]


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_a_trained_part_is_read_back(tmp_path, part):
    folder, now = trained(tmp_path / "m", [part])
    model = aw.load(folder)
    assert model.parts == now
    vanilla = aw.load(without_parts(tmp_path / "v"))
    assert torch.equal(model.logits(IDS), vanilla.logits(IDS, parts=list(now)))
    assert not torch.equal(model.logits(IDS), vanilla.logits(IDS))
    with torch.no_grad():  # the bare network wears them too
        rows = model.network(IDS[None]).logits[0]
    assert (rows - model.logits(IDS)).abs().max() <= tolerances.SAME_MATHS
    assert (model.digest == vanilla.digest) is isinstance(part, E.off_by_one)
    model.check()
    trace = aw.run(model, [5, 60, 7], aw.decoding.LowConfidence(4))
    again = aw.replay(model, trace)
    np.testing.assert_array_equal(again["received"], trace["received"])
    with pytest.raises(aw.AnchorwatchError, match=r"is not the model|it has (weights|parts)"):
        aw.replay(vanilla, trace)


def test_several_parts_are_read_back(tmp_path):
    parts = [E.sink_token(embedding="random"), E.gate("headwise"), E.sink_logit(0.0)]
    folder, now = trained(tmp_path / "m", parts)
    assert aw.load(folder).parts == now


def edited(folder, config=None, tensors=None):
    if config is not None:
        path = folder / "config.json"
        held = json.loads(path.read_text())
        config(held)
        path.write_text(json.dumps(held))
    if tensors is not None:
        path = folder / "model.safetensors"
        held = load_file(path)
        tensors(held)
        save_file(held, path, metadata={"format": "pt"})
    return folder


def test_parts_and_tensors_that_disagree(tmp_path):
    folder, _ = trained(tmp_path / "a", [E.sink_token(embedding="random")])
    edited(folder, tensors=lambda held: held.pop("anchorwatch.sink"))
    with pytest.raises(
        WeightsError, match=r"names sink_token and the file has no anchorwatch\.sink"
    ):
        aw.load(folder)
    folder, _ = trained(tmp_path / "b", [E.sink_token(embedding="random")])
    edited(folder, config=lambda held: held.pop("anchorwatch"))
    with pytest.raises(
        WeightsError, match=r"holds anchorwatch\.sink and config.json names no part"
    ):
        aw.load(folder)
    folder, _ = trained(tmp_path / "c", [E.sink_token(embedding="random")])
    edited(folder, tensors=lambda held: held["anchorwatch.sink"].mul_(2))
    with pytest.raises(
        WeightsError, match="the embedding of sink_token in the file is not the one"
    ):
        aw.load(folder)
    folder, _ = trained(tmp_path / "d", [E.gate("headwise", "plain")])
    edited(folder, config=lambda held: held["anchorwatch"]["parts"][0].update(form="elementwise"))
    with pytest.raises(WeightsError, match=r"has shape \[4, 32\] in the file and \[32, 32\] in"):
        aw.load(folder)
    folder, _ = trained(tmp_path / "e", [E.gate("headwise", "plain")])
    edited(folder, config=lambda held: held.pop("anchorwatch"))
    with pytest.raises(WeightsError, match=r"gate\.weight"):
        aw.load(folder)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ([], r'expected "anchorwatch": \{"parts"'),
        ({"parts": {}}, r'expected "anchorwatch": \{"parts"'),
        ({"parts": [{"name": "sink"}]}, "names a part that cannot be: no edit is called 'sink'"),
        ({"parts": [{"name": "sink_token", "n": 0}]}, "names a part that cannot be: n=0"),
        ({"parts": [{"name": "no_op"}]}, r"expected what is always on, such as sink_token\(\)"),
        ({"parts": [{"name": "gate", "steps": [1]}]}, "expected what is always on"),
        (
            {"parts": [{"name": "gate"}, {"name": "gate"}]},
            "gate is there twice: a model has one of each kind",
        ),
        ({"parts": ["gate"]}, "names a part that cannot be"),
    ],
)
def test_parts_that_config_json_cannot_name(tmp_path, said, says):
    folder, _ = trained(tmp_path / "m", [E.off_by_one()])
    edited(folder, config=lambda held: held.update(anchorwatch=said or [0]))
    with pytest.raises(ModelError, match=says):
        aw.load(folder)


def test_parts_that_a_network_cannot_train():
    made = network("albert", masked=True, embedding_size=16)
    with pytest.raises(
        SpecError, match=r"one module for all layers .* give it to a run as an edit"
    ):
        trained_additions.attach(made, [E.gate()])


@pytest.mark.parametrize("part", [E.register(), E.sink_token(position="end")], ids=repr)
def test_a_causal_network_trains_no_part_that_looks_ahead(tmp_path, part):
    with pytest.raises(SpecError, match=r"look both ways: use sink_token\(\)"):
        trained_additions.attach(network("llama"), [part])
    with pytest.raises(SpecError, match=r"takes \[1, 32\]"):
        trained_additions.attach(network("llama"), [E.sink_token(embedding=[1.0, 2.0])])


def test_gradient_checkpointing_is_refused():
    made = network("llama", bidirectional=True)
    trained_additions.attach(made, [E.off_by_one()])
    made.gradient_checkpointing_enable()
    made.train()
    with pytest.raises(ModelError, match="train without it"):
        made(IDS[None] % 90)


def test_a_copy_of_a_network_wears_its_own_parts():
    from copy import deepcopy

    made = network("llama", bidirectional=True)
    trained_additions.attach(made, [E.sink_token(embedding="random")])
    other = deepcopy(made)
    with torch.no_grad():
        before = made(IDS[None] % 90).logits
        other.anchorwatch.sink.mul_(-3)
        assert torch.equal(made(IDS[None] % 90).logits, before)
        assert not torch.equal(other(IDS[None] % 90).logits, before)
