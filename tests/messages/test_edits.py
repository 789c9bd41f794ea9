"""Edits that cannot be are refused before the weights are touched, and say what would have worked."""

from dataclasses import replace
from unittest import mock

import pytest
import torch

import anchorwatch as aw
from anchorwatch.edits import ablation, verify
from anchorwatch.errors import ModelError, SpecError
from anchorwatch.models import attention
from anchorwatch.models.extra_keys import ExtraKeys
from anchorwatch.probes.accumulate import View
from strategies import load

E = aw.edits
PROMPT = [300, 301, 302, 303, 304, 305]


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ([E.hide_keys([10])], r"hide_keys\(positions=\[10\]\) is not there: .* positions 0 to 9"),
        ([E.hide_keys(range(10))], "would hide 10 keys of 10: hide fewer"),
        ([E.hide_sinks(10)], "would hide 10 keys of 10: hide fewer"),
        ([E.hide_sinks(1, layers=[3])], r"hide_sinks\(layers=\[3\]\) .* layers 0 to 2"),
        ([E.hide_sinks(1, heads=[4])], r"hide_sinks\(heads=\[4\]\) .* heads 0 to 3"),
        ([E.knock_out({(3, 0)})], r"knock_out\(layers=\[3\]\) .* layers 0 to 2"),
        ([E.knock_out({(0, 7)})], r"knock_out\(heads=\[7\]\) .* heads 0 to 3"),
        ([E.hide_keys([0], steps=[9])], "would change nothing: this run has 0 to 3"),
        ([E.hide_sinks(1, eligible="nobody")], "expected one of all, masked, written, prompt"),
        ([E.hide_sinks(1, steps=[0])], "use detect='same_shadow'"),
        (
            [E.hide_keys([3]), E.hide_keys([3, 4], form="penalty", penalty=2.0)],
            "contradict each other: a key is hidden in one form, 3 has two",
        ),
        ([E.hide_sinks(1), E.hide_keys([3], form="value")], "give both one form"),
        ([E.knock_out({(0, 1)}), E.knock_out({(0, 1)}, form="mean")], "taken out in one way"),
        (E.no_op(), r"edits is a list of values, .*: got no_op\(\)"),
        ([E.no_op], "got the class no_op"),
        ("hide", "edits is a list of values"),
    ],
)
def test_edits_that_do_not_fit_a_run(edits, says):
    model = load("tiny/llada")
    with (
        mock.patch.object(type(model), "logits", side_effect=AssertionError("touched")),
        pytest.raises(SpecError, match=says),
    ):
        aw.run(model, PROMPT, aw.decoding.LowConfidence(4), edits=edits)


def test_edits_that_never_meet_may_differ():
    edits = [
        E.hide_keys([3], steps=[0, 1]),
        E.hide_keys([3], steps=[2], form="value"),
        E.hide_keys([4], layers=[0], form="weight"),
        E.hide_sinks(1, layers=[1], steps=[3], form="value_mean"),
        E.knock_out({(0, 1)}),
        E.knock_out({(0, 2)}, form="mean"),
    ]
    trace = aw.run(load("tiny/llada"), PROMPT, aw.decoding.LowConfidence(4), edits=edits)
    assert trace.edits == tuple(edits)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: E.hide_keys(3), r"positions=3 is not a list: say \[3\]"),
        (lambda: E.hide_keys([-1]), "-1 is not a whole number of at least 0"),
        (lambda: E.hide_keys([]), "names none"),
        (lambda: E.hide_keys([0], form="gone"), "expected one of logit, penalty, weight"),
        (lambda: E.hide_keys([0], form="penalty"), "say penalty=5.0"),
        (lambda: E.hide_keys([0], penalty=5.0), "say form='penalty'"),
        (lambda: E.hide_keys([0], progress=(0.5, 0.5)), r"say progress=\(0.0, 0.5\)"),
        (lambda: E.hide_keys([0], progress=0.5), r"say progress=\(0.0, 0.5\)"),
        (lambda: E.hide_sinks(0), "k=0 is not a whole number"),
        (lambda: E.hide_sinks(1, rule="sunk"), "no rule is called 'sunk': expected one of rulli"),
        (lambda: E.hide_sinks(1, rule=3), r"say rule=aw.rules.rulli\(eps=3\)"),
        (lambda: E.hide_sinks(1, detect="later"), "expected one of previous_shadow"),
        (lambda: E.hide_sinks(1, scope="all"), "expected one of head, layer, model"),
        (lambda: E.hide_sinks(1, scope="model", detect="same_shadow"), "use scope='layer'"),
        (lambda: E.hide_sinks(1, detect="oracle"), "unedited=trace go together"),
        (lambda: E.hide_sinks(1, detect="oracle", unedited=3), "unedited is a trace"),
        (lambda: E.hide_random(1, matched_to="size"), "expected one of sinks, class, rank, mass"),
        (lambda: E.hide_random(1, most=9), "say matched_to='mass'"),
        (lambda: E.hide_random(1, matched_to="mass", most=0), "not a whole number"),
        (lambda: E.hide_keys([0], hide_from="first"), "expected one of all, last"),
        (lambda: E.hide_keys([0], hide_from="last", form="value"), "leave one of them out"),
        (lambda: E.hide_random(1, seed=-1), "seed=-1 is not a whole number"),
        (lambda: E.knock_out([1, 2]), r"say \{\(layer, head\), \(layer, head\)\}"),
        (lambda: E.knock_out({(0, 1)}, form="off"), "expected one of zero, mean, uniform"),
        (lambda: E.knock_out({(0, 1)}, layers=[1]), "leave layers out"),
        (lambda: E.from_dict({"name": "hide"}), "no edit is called 'hide': expected one of hide_k"),
        (lambda: E.from_dict({"name": "no_op", "k": 1}), "no_op has no k: it takes heads, layers"),
        (
            lambda: E.random_heads({(0, 0), (0, 1), (0, 2)}, layers=3, per_layer=4),
            "name at most half of a layer",
        ),
    ],
)
def test_values_that_cannot_be(make, says):
    with pytest.raises(SpecError, match=says):
        make()


def test_layer_matched_heads_are_others_of_the_same_layers():
    mine = {(0, 1), (2, 0), (2, 3)}
    for seed in range(5):
        other = E.random_heads(mine, layers=3, per_layer=4, seed=seed)
        assert sorted(layer for layer, _ in other) == [0, 2, 2]
        assert not mine & set(other)


def test_an_oracle_needs_its_trace_and_the_same_run():
    model, decoding = load("tiny/llada"), aw.decoding.LowConfidence(4)
    plain = aw.run(model, PROMPT, decoding)
    edit = E.hide_sinks(1, detect="oracle", unedited=plain)
    edited = aw.run(model, PROMPT, decoding, edits=[edit])
    with pytest.raises(SpecError, match="give the unedited run of the same prompt"):
        aw.run(model, PROMPT[:-1], decoding, edits=[edit])
    with pytest.raises(SpecError, match="was edited itself: run it without edits"):
        E.hide_sinks(1, detect="oracle", unedited=edited)
    with pytest.raises(SpecError, match="give the trace again"):
        aw.run(model, PROMPT, decoding, edits=edited.edits)
    with pytest.raises(SpecError, match="give the trace again"):
        aw.fork(model, edited, 2)
    forked = aw.fork(model, edited, 2, edits=[edit])
    assert (forked.canvas == edited.canvas).all()
    assert aw.fork(model, aw.fork(model, edited, 2, edits=[]), 3).num_steps == 4
    with pytest.raises(SpecError, match="the oracle's trace ends before this run: it has 2 steps"):
        short = aw.run(model, PROMPT, aw.decoding.LowConfidence(4, 2))
        late = E.hide_sinks(1, detect="oracle", unedited=short)
        aw.run(model, PROMPT, decoding, edits=[late])


@pytest.mark.parametrize("edit", [E.hide_keys([1]), E.hide_keys([1], form="value")])
def test_a_kernel_that_ignores_an_edit_stops_the_run(edit):
    """Published copies of LLaDA compute with attn_mask=None, whatever they are given."""
    real = attention.weigh_values

    def deaf(call, value):
        heads = call.query.shape[1] // call.value.shape[1]
        own = call.value.repeat_interleave(heads, dim=1)
        return real(replace(call, bias=None), own)

    with (
        mock.patch("anchorwatch.edits.ablation.weigh_values", deaf),
        pytest.raises(ModelError, match=r"the edit is not alive at layer 0, head \d, row \d"),
    ):
        aw.run(load("tiny/llada"), PROMPT, aw.decoding.LowConfidence(4), edits=[edit])


@pytest.mark.parametrize("form", ["zero", "mean"])
def test_a_head_that_still_speaks_stops_the_run(form):
    with (
        mock.patch("anchorwatch.edits.ablation._heads", lambda plain, change, out, before: out),
        pytest.raises(ModelError, match="the edit is not alive at layer 1, head 2"),
    ):
        edit = E.knock_out({(1, 2)}, form=form)
        aw.run(load("tiny/llada"), PROMPT, aw.decoding.LowConfidence(4), edits=[edit])


def draw_call(tokens=6, heads=2):
    """A causal call of one row of the batch, and its canvas as probes see it."""
    numbers = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, tokens, 8, generator=numbers) for _ in range(3))
    call = attention.Call(3, query, key, value, 8**-0.5, None, True, None, None)
    return call, View(0, "", 0, 0, 0, tokens, tokens)


def test_a_quiet_head_that_is_no_mean_is_seen_beside_a_loud_one():
    call, view = draw_call()
    call.value[:, 1] *= 1e-4
    patch, empty = (ablation.AttentionPatch.empty(call) for _ in range(2))
    patch.mark_heads("mean", 0, [0, 1])
    patched, bare = ablation.apply_patch(call, patch), ablation.apply_patch(call, empty)
    check = verify.EditCheck(call, patch, patched, [view])
    edit = E.knock_out({(3, 0), (3, 1)}, form="mean")
    assert verify.verify_edit(check, edit, [0, 1], call, empty)
    patched.out[:, :, 1] = bare.out[:, :, 1]
    with pytest.raises(ModelError, match="the edit is not alive at layer 3, head 1"):
        verify.verify_edit(check, edit, [0, 1], call, empty)


def test_a_row_that_would_see_nothing_does_not_hide_what_others_show():
    """The first row sees a sink token and itself, and itself is hidden."""
    call, view = draw_call()
    extra = ExtraKeys(torch.zeros(1, 2, 6, 1), torch.ones(1, 2, 1, 8), None)
    call = attention.with_extra_keys(call, extra)
    view = replace(view, key_start=1, before=1, added=1)
    patch = ablation.AttentionPatch.empty(call)
    patch.logit[..., 1] = True
    check = verify.EditCheck(call, patch, ablation.apply_patch(call, patch), [view])
    without = replace(call, extra_logits=torch.full_like(extra.logits, -torch.inf))
    assert verify.verify_edit(check, E.sink_token(), [0, 1], without, patch)


def test_rows_that_would_all_see_nothing_show_that_the_edit_acted():
    """They see a sink token and no key of the canvas."""
    call, view = draw_call()
    extra = ExtraKeys(torch.zeros(1, 2, 6, 1), torch.ones(1, 2, 1, 8), None)
    call = attention.with_extra_keys(call, extra)
    view = replace(view, key_start=1, before=1, added=1)
    patch = ablation.AttentionPatch.empty(call)
    patch.logit[..., 1:] = True
    patched = ablation.apply_patch(call, patch)
    without = replace(call, extra_logits=torch.full_like(extra.logits, -torch.inf))
    check = verify.EditCheck(call, patch, patched, [view])
    assert verify.verify_edit(check, E.sink_token(), [0, 1], without, patch)
    patched.out.zero_()
    with pytest.raises(ModelError, match="the edit is not alive at layer 3, head 0"):
        verify.verify_edit(check, E.sink_token(), [0, 1], without, patch)


@pytest.mark.parametrize("tensor", ["query", "key", "value"])
@pytest.mark.parametrize("edit", [E.hide_keys([1]), E.knock_out({(3, 0), (3, 1)})])
def test_rows_that_are_all_nan_are_called_that(tensor, edit):
    call, view = draw_call()
    patch, empty = (ablation.AttentionPatch.empty(call) for _ in range(2))
    if isinstance(edit, E.hide_keys):
        patch.logit[..., 1] = True
    else:
        patch.mark_heads("zero", 0, [0, 1])
    patched = ablation.apply_patch(call, patch)
    check = verify.EditCheck(call, patch, patched, [view])
    assert verify.verify_edit(check, edit, [0, 1], call, empty)
    getattr(call, tensor).fill_(torch.nan)
    patched = ablation.apply_patch(call, patch)
    if isinstance(edit, E.knock_out):
        patched.out.zero_()  # as a kernel gives it that multiplies by nothing
    check = verify.EditCheck(call, patch, patched, [view])
    says = "cannot be verified at layer 3, head 0, row 0: its queries, keys or values are NaN; load"
    with pytest.raises(ModelError, match=says):
        verify.verify_edit(check, edit, [0, 1], call, empty)


def test_a_network_that_does_not_come_to_our_attention_stops_the_run():
    from anchorwatch.models import tiny

    model = tiny.build("tiny/llada", torch.float32)
    model.network.set_attn_implementation("sdpa")
    with pytest.raises(ModelError, match="layer 0 of tiny/llada never came to anchorwatch's"):
        aw.run(model, PROMPT, aw.decoding.LowConfidence(4), edits=[E.hide_keys([1])], probes=())
