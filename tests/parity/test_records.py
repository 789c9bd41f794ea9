"""What the authors' code of LLaDA2.x, LLaDA-MoE, SDAR and RND1 computes, recorded.

Every folder of tests/golden with a `golden.safetensors` and a generation.json is a record;
docs and shapes of the files stand in tests/golden/README.md.
"""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import anchorwatch as aw
import tolerances
from anchorwatch.models.attention import observe
from checkpoints import GOLDEN
from references import attention as dense

pytestmark = pytest.mark.filterwarnings("ignore:.*asks for remote code")

MASK = 250
"""The mask id of these records, which not every config.json names."""
NAMES = ("llada2_moe", "llada_moe", "sdar", "rnd1")


@pytest.fixture(scope="module", params=NAMES)
def record(request):
    folder = GOLDEN / request.param
    with pytest.warns(aw.errors.AnchorwatchWarning, match="remote code"):
        model = aw.load(folder, mask_id=MASK)
    return model, load_file(folder / "golden.safetensors")


def gap(model, aligned, theirs, kept=None):
    """Rows p of ours against the rows of the raw forward pass that predict p."""
    if model.family.shift:
        aligned, theirs = aligned[:, 1:], theirs[:, :-1]
    differs = (aligned - theirs).abs()
    return (differs if kept is None else differs[kept]).max()


def test_logits(record):
    model, golden = record
    assert gap(model, model.logits(golden["input_ids"]), golden["logits"]) <= tolerances.RECORDS


def test_logits_under_another_visibility(record):
    model, golden = record
    for name in golden:
        kind, _, rest = name.partition(".")
        if rest == "logits" and kind.startswith("block"):
            other = replace(model, block=int(kind.removeprefix("block")))
        elif name == "bidirectional.logits":
            other = replace(
                model, block=None, family=replace(model.family, visibility="bidirectional")
            )
        else:
            continue
        assert gap(model, other.logits(golden["input_ids"]), golden[name]) <= tolerances.RECORDS


def test_logits_of_padded_rows(record):
    model, golden = record
    if "padded.logits" not in golden:
        assert model.family.name != "llada-moe"  # the others' samplers take no padding
        return
    keys = golden["padded.attention_mask"].bool()
    ours = model.logits(golden["padded.input_ids"], padding=(~keys).sum(-1))
    assert gap(model, ours, golden["padded.logits"], keys) <= tolerances.RECORDS


class Calls(list):
    """A watcher that keeps every call."""

    def wants(self, layer):
        return True

    def on_attention(self, call):
        self.append(call)


def test_attention_in_every_layer(record):
    model, golden = record
    calls = Calls()
    with observe(calls):
        model.logits(golden["input_ids"])
    for call in calls:
        ours, theirs = dense.dense(call).float(), golden[f"attention.{call.layer}"]
        assert (ours - theirs).abs().max() <= tolerances.RECORDS_ATTENTION


def test_experts_as_sets(record):
    model, golden = record
    chosen = {}
    hooks = []
    for layer, module in enumerate(model.network.model.layers):
        if hasattr(module.mlp, "experts"):
            hooks.append(
                module.mlp.gate.register_forward_hook(
                    lambda _, __, out, layer=layer: chosen.update({layer: out[2]})
                )
            )
    model.logits(golden["input_ids"])
    for hook in hooks:
        hook.remove()
    recorded = {name for name in golden if name.startswith("experts.")}
    assert {f"experts.{layer}" for layer in chosen} == recorded
    for layer, experts in chosen.items():
        theirs = golden[f"experts.{layer}"]
        assert torch.equal(experts.view(theirs.shape).sort().values, theirs.sort().values)
