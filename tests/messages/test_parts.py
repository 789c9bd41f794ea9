"""Parts that cannot be are refused before the weights are touched; dead ones stop the run."""

from unittest import mock

import numpy as np
import pytest
import torch

import anchorwatch as aw
from anchorwatch.errors import ModelError, SpecError
from anchorwatch.models import attention, tiny
from anchorwatch.models.additions import PassAdditions, SelfOnlyPass
from strategies import load

E = aw.edits
PROMPT = [300, 301, 302, 303, 304, 305]


def decoding_of(name):
    return aw.decoding.LeftToRight(4) if name == "tiny/arm" else aw.decoding.LowConfidence(4)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: E.sink_token(0), "n=0 is not a whole number of at least 1"),
        (lambda: E.sink_token(position="middle"), "expected one of front, end"),
        (lambda: E.sink_token(embedding="zero"), "expected mean, start, mask, random, or numbers"),
        (lambda: E.sink_token(embedding=[[1.0, float("nan")]]), "expected finite numbers"),
        (lambda: E.sink_token(2, embedding=np.ones((3, 8))), r"expected \[2, width\]"),
        (lambda: E.sink_token(value="none"), "expected one of own, zero"),
        (lambda: E.sink_token(rotary=1), "neither True nor False"),
        (lambda: E.sink_token(rotary=False, position="end"), "leave position out"),
        (lambda: E.sink_token(seed=-1), "seed=-1 is not a whole number"),
        (
            lambda: E.sink_token(layers=[0]),
            "every layer and head: leave layers out, or use kv_bias",
        ),
        (lambda: E.register(heads=[0]), "every layer and head: leave heads out, or use kv_bias"),
        (lambda: E.sink_logit(float("nan")), "say a number, or -inf for none at all"),
        (lambda: E.sink_logit("high"), "expected or numbers"),
        (lambda: E.sink_logit(np.zeros((1, 1, 1))), r"expected \[heads\] or \[layers, heads\]"),
        (lambda: E.kv_bias(key="big"), "expected random, zero, or numbers"),
        (lambda: E.kv_bias(key=np.ones((3, 4, 2, 16))), r"n = 1, channels\]"),
        (lambda: E.gate("all"), "expected one of elementwise, headwise"),
        (lambda: E.gate(init="half"), "expected one of identity, plain"),
        (lambda: E.gate(weight=np.ones((2, 2))), r"expected \[layers, outputs, width\]"),
    ],
)
def test_values_that_cannot_be(make, says):
    with pytest.raises(SpecError, match=says):
        make()


@pytest.mark.parametrize(
    ("name", "parts", "says"),
    [
        ("tiny/arm", [E.register()], "a register is a sink token there: use sink_token"),
        ("tiny/arm", [E.sink_token(position="end")], "sees no end: use position='front'"),
        ("tiny/bert", [E.sink_token(position="end")], "which ends: use position='front'"),
        ("tiny/arm", [E.sink_token(embedding="mask")], "use embedding='mean' or 'start'"),
        ("tiny/llada", [E.sink_token(embedding=np.ones((1, 8)))], r"network takes \[1, 64\]"),
        ("tiny/llada", [E.sink_logit([1.0, 2.0])], r"network takes \[4\] or \[3, 4\]"),
        ("tiny/llada", [E.kv_bias(value=np.ones((3, 2, 1, 16)))], r"takes \[3, 4, 1, 16\]"),
        ("tiny/llada", [E.gate("headwise", weight=np.ones((3, 64, 64)))], r"takes \[3, 4, 64\]"),
        ("tiny/llada", [E.register(), E.register(2)], "give one with n=2"),
        ("tiny/llada", [E.kv_bias(layers=[7])], r"kv_bias\(layers=\[7\]\) is not there"),
        ("tiny/llada", [E.gate(steps=[9])], "would change nothing: this run has 0 to 3"),
        ("tiny/llada", [E.gate(weight="0" * 64)], "give the numbers again"),
    ],
)
def test_parts_that_do_not_fit_a_model(name, parts, says):
    model = load(name)
    with (
        mock.patch.object(type(model.network), "forward", side_effect=AssertionError("touched")),
        pytest.raises(SpecError, match=says),
    ):
        aw.run(model, PROMPT, decoding_of(name), edits=parts)


def test_a_start_token_must_be_named():
    from dataclasses import replace

    model = load("tiny/llada")
    nameless = replace(model, specials=replace(model.specials, bos_id=None))
    with pytest.raises(SpecError, match="names no start token: use embedding='mean' or 'mask'"):
        nameless.logits(PROMPT, parts=[E.sink_token(embedding="start")])


def test_a_table_that_moves_with_the_text_moves_no_sink_token(tmp_path):
    from checkpoints import network

    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    network("llama", rope_parameters=rope).save_pretrained(tmp_path / "m")
    model = aw.load(tmp_path / "m")
    with pytest.raises(SpecError, match="use rotary=False"):
        model.logits([5, 6, 7], parts=[E.sink_token()])
    model.logits([5, 6, 7], parts=[E.sink_token(rotary=False)])


def test_windows_take_no_register(tmp_path):
    from anchorwatch.models import trained_additions
    from checkpoints import ENCODERS, MASK, network

    network("modernbert", masked=True, **ENCODERS["modernbert"]).save_pretrained(tmp_path / "m")
    model = aw.load(tmp_path / "m", mask_id=MASK)
    says = "has sliding-window layers, where a register .* only nearby: use sink_token"
    canvas = [5, 60, 7, MASK, MASK, 12]
    with (
        mock.patch.object(type(model.network), "forward", side_effect=AssertionError("touched")),
        pytest.raises(SpecError, match=says),
    ):
        aw.run(model, canvas=canvas, edits=[E.register()])
    aw.run(model, canvas=canvas, edits=[E.sink_token()])  # what the message says
    made = network("mistral", bidirectional=True, sliding_window=4)
    with pytest.raises(SpecError, match=says):
        trained_additions.attach(made, [E.register()])


def test_a_network_that_computes_its_own_attention_takes_no_parts():
    model = tiny.build("tiny/llada", torch.float32)
    model.network.set_attn_implementation("sdpa")
    with (
        mock.patch.object(type(model.network), "forward", side_effect=AssertionError("touched")),
        pytest.raises(ModelError, match=r"where nothing can be added: aw\.load the model afresh"),
    ):
        aw.run(model, PROMPT, aw.decoding.LowConfidence(4), edits=[E.off_by_one()])


@pytest.mark.parametrize("part", [E.sink_token(), E.off_by_one(), E.kv_bias(2)], ids=repr)
def test_an_added_key_that_changes_nothing_stops_the_run(part):
    def deaf(out, lse, logits, value):
        return out, lse

    says = r"not alive at layer 0, head 0, row \d: the output of heads .* not what \w+ makes it"
    with (
        mock.patch.object(attention, "merge_lse", deaf),
        pytest.raises(ModelError, match=says),
    ):
        aw.run(load("tiny/llada"), PROMPT, aw.decoding.LowConfidence(4), edits=[part])


@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize("part", [E.sink_token(), E.off_by_one(), E.kv_bias(2)], ids=repr)
def test_an_added_key_is_proved_at_every_layer(part, layer):
    real = attention._compute

    def forgets(bare, mask, added, options):
        return real(bare, mask, None if bare.layer == layer else added, options)

    with (
        mock.patch.object(attention, "_compute", forgets),
        pytest.raises(ModelError, match=f"not alive at layer {layer}, head"),
    ):
        aw.run(load("tiny/llada"), PROMPT, aw.decoding.LowConfidence(4), edits=[part])


@pytest.mark.parametrize("layer", [1, 2])
def test_a_hidden_key_is_proved_at_every_layer(layer):
    from dataclasses import replace

    from anchorwatch.edits import ablation as changes

    real = changes.weigh_values

    def forgets(call, value):
        return real(replace(call, bias=None) if call.layer == layer else call, value)

    with (
        mock.patch("anchorwatch.edits.ablation.weigh_values", forgets),
        pytest.raises(ModelError, match=f"not alive at layer {layer}, head"),
    ):
        edits = [E.hide_keys([1])]
        aw.run(load("tiny/llada"), PROMPT, aw.decoding.LowConfidence(4), edits=edits)


def test_a_value_that_is_not_zero_stops_the_run():
    real = SelfOnlyPass.attend_alone

    def keeps(self, layer, key, value):
        self.zero = False
        return real(self, layer, key, value)

    model = tiny.build("tiny/llada", torch.float32)  # one that has captured nothing yet
    with (
        mock.patch.object(SelfOnlyPass, "attend_alone", keeps),
        pytest.raises(ModelError, match="layer 0: the value of sink_token is to be zero and is up"),
    ):
        aw.run(model, PROMPT, aw.decoding.LowConfidence(4), edits=[E.sink_token(value="zero")])


def test_a_gate_that_is_not_closed_stops_the_run():
    with (
        mock.patch.object(
            PassAdditions,
            "apply_gates",
            lambda self, layer, out: setattr(self, "ungated", out) or out,
        ),
        pytest.raises(ModelError, match="the gate is not alive at layer 0: what the output proj"),
    ):
        edit = E.gate("headwise", "plain")
        aw.run(load("tiny/llada"), PROMPT, aw.decoding.LowConfidence(4), edits=[edit])


def test_a_register_that_is_not_there_stops_the_run():
    def forgets(network, registers, rows, keys, pairs, positions):
        return {"input_ids": rows}, keys, pairs, positions

    with (
        mock.patch("anchorwatch.models.model.prepend_registers", forgets),
        pytest.raises(ModelError, match=r"the register is not alive at layer 0: 10 keys .* are 12"),
    ):
        edits, decoding = [E.register(2)], aw.decoding.LowConfidence(4)
        aw.run(load("tiny/llada"), PROMPT, decoding, edits=edits, probes=())


def _unseen(keys, n):
    hidden = keys.clone()
    hidden[:, :n] = False
    return hidden, None


def _seeing_itself(keys, n):
    pairs = keys[:, None].repeat(1, keys.shape[1], 1)
    pairs[:, :n, n:] = False
    return keys, pairs


@pytest.mark.parametrize("form", [_unseen, _seeing_itself])
@pytest.mark.parametrize("name", ["tiny/llada", "tiny/bert"])
def test_a_register_that_is_not_seen_or_does_not_see_stops_the_run(name, form):
    from anchorwatch.models.additions import prepend_registers

    def differs(*given):
        tokens, keys, _, positions = prepend_registers(*given)
        return tokens, *form(keys, 2), positions

    with (
        mock.patch("anchorwatch.models.model.prepend_registers", differs),
        pytest.raises(ModelError, match=r"not alive at layer 0, head .* what register makes it"),
    ):
        edits, decoding = [E.register(2, embedding="random")], aw.decoding.LowConfidence(4)
        aw.run(load(name), PROMPT, decoding, edits=edits, probes=())


def test_a_live_edit_does_not_vouch_for_a_dead_one():
    """The second edit acts from another step on, and is asked for its own proof then."""
    from anchorwatch.edits import ablation as changes

    real, calls = changes.weigh_values, []

    def tires(call, value):
        calls.append(call.layer)
        if len(calls) > 3:  # from the second step on it ignores what it is given
            from dataclasses import replace

            return real(replace(call, bias=None), value)
        return real(call, value)

    edits = [E.hide_keys([1]), E.hide_keys([2], steps=[1])]
    with (
        mock.patch("anchorwatch.edits.ablation.weigh_values", tires),
        pytest.raises(ModelError, match=r"not alive at layer 0.* hidden keys' share of each row"),
    ):
        aw.run(load("tiny/llada"), PROMPT, aw.decoding.LowConfidence(4), edits=edits)


def test_a_trained_part_proves_itself_too(tmp_path):
    import checkpoints

    tensors = checkpoints.lit_gpt_tensors(extra_rows=2, gate=False)
    folder = checkpoints.write(tmp_path / "m", {"n_head": 4, "mask_token_id": 90}, tensors)
    model = aw.load(folder)
    with (
        mock.patch.object(attention, "merge_lse", lambda out, lse, logits, value: (out, lse)),
        pytest.raises(ModelError, match="not alive at layer 0"),
    ):
        aw.run(model, [5, 60, 7], aw.decoding.LowConfidence(4), probes=())
