"""Edits: a no-op is nothing, hiding empties a column, and a trace knows what was done to it."""

import json
import math
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorwatch as aw
import checkpoints
import tolerances
from anchorwatch.edits import runtime as editing
from anchorwatch.errors import SpecError
from anchorwatch.generation.decoding import narrow_margin
from anchorwatch.models import tiny
from strategies import denoisers, denoisings, left_to_right, load, prompts, seeds

E, P = aw.edits, aw.probes
PROMPT = "the anchor drifts in the harbor"
SHARES = [P.received(("all",), dtype="float32")]


def identical(one, two):
    """Every field of both traces is equal, bit for bit."""
    assert set(one.fields) == set(two.fields)
    for name in one.fields:
        np.testing.assert_array_equal(one[name].values, two[name].values, err_msg=name)


def received(trace):
    return trace["received"].sel(group="all").values


def hiding(form):
    return {"form": form} | ({"penalty": 3.0} if form == "penalty" else {})


places = st.fixed_dictionaries(
    {
        "layers": st.sampled_from([None, [0], [1, 2]]),
        "heads": st.sampled_from([None, [0, 3]]),
        "progress": st.sampled_from([None, None, (0.3, 1.0)]),
    }
)


@st.composite
def edits(draw):
    """Any edit that fits a canvas of at least four positions."""
    options = draw(places) | hiding(draw(st.sampled_from(E.FORMS)))
    kind = draw(st.sampled_from([E.hide_keys, E.hide_sinks, E.hide_random, E.hide_lowest, None]))
    if kind is None:
        heads = draw(st.sampled_from([None, {(0, 1), (2, 3)}]))
        form = draw(st.sampled_from(E.knock_out.FORMS))
        return E.knock_out(heads, form=form, progress=options["progress"])
    if kind is E.hide_keys:
        return kind([0], **options)
    options["detect"] = draw(st.sampled_from(E.DETECT[:3]))
    options["scope"] = draw(st.sampled_from(E.SCOPES[:2]))
    options["last_row"] = draw(st.booleans())
    if kind is E.hide_random:
        options["matched_to"] = draw(st.sampled_from(E.MATCHES))
    return kind(draw(st.integers(1, 2)), **options)


long_prompts = st.lists(st.integers(10, 570), min_size=4, max_size=10)


@settings(max_examples=10)
@given(denoisers, prompts, denoisings, seeds)
def test_a_no_op_changes_nothing(model, prompt, decoding, seed):
    plain = aw.run(model, prompt, decoding, seed=seed)
    identical(plain, aw.run(model, prompt, decoding, seed=seed, edits=[E.no_op()]))


@settings(max_examples=10)
@given(prompts, left_to_right, seeds)
def test_a_no_op_changes_nothing_left_to_right(prompt, decoding, seed):
    model = load("tiny/arm")
    plain = aw.run(model, prompt, decoding, seed=seed)
    identical(plain, aw.run(model, prompt, decoding, seed=seed, edits=[E.no_op()]))


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream", "tiny/bert", "tiny/arm"])
@pytest.mark.parametrize("form", E.FORMS)
def test_a_hidden_key_receives_nothing(name, form):
    model = load(name)
    decoding = aw.decoding.LeftToRight(4) if name == "tiny/arm" else aw.decoding.LowConfidence(4)
    probes = [*SHARES, P.norms(keys=True)]
    plain = aw.run(model, PROMPT, decoding, probes=probes)
    trace = aw.run(
        model, PROMPT, decoding, probes=probes, edits=[E.hide_keys([2], layers=[1], **hiding(form))]
    )
    np.testing.assert_array_equal(received(trace)[0, 0], received(plain)[0, 0])
    share, before = received(trace)[0, 1], received(plain)[0, 1]
    if form in ("logit", "weight"):
        assert (share[:, 2] == 0).all()
        assert (before[:, 2] > 0).all()
    elif form == "penalty":
        assert (share[:, 2] < before[:, 2]).all()
    else:
        np.testing.assert_allclose(share, before, atol=tolerances.SHARE)
    norm = trace["each_value_norm"].values[0, 1, :, 2]
    assert (norm == 0).all() if form == "value" else (norm > 0).all()
    total = np.nansum(share, axis=-1)
    assert (total < 1).all() if form == "weight" else np.allclose(total, 1, atol=tolerances.SHARE)
    hidden = trace["hidden_keys"].values
    assert (hidden[:, 1] == 2).all()
    assert (hidden[:, [0, 2]] == -1).all()


@settings(max_examples=10)
@given(denoisers, long_prompts, denoisings, seeds, edits())
def test_a_replay_repeats_what_was_edited(model, prompt, decoding, seed, edit):
    live = aw.run(model, prompt, decoding, seed=seed, edits=[edit])
    blind = aw.run(model, prompt, decoding, seed=seed, edits=[edit], probes=())
    identical(live, aw.replay(model, blind))
    assert blind.edits == (edit,)


@settings(max_examples=10)
@given(long_prompts, left_to_right, seeds, edits())
def test_a_replay_repeats_edited_autoregression(prompt, decoding, seed, edit):
    model = load("tiny/arm")
    live = aw.run(model, prompt, decoding, seed=seed, edits=[edit])
    identical(
        live, aw.replay(model, aw.run(model, prompt, decoding, seed=seed, edits=[edit], probes=()))
    )


@settings(max_examples=10)
@given(denoisers, long_prompts, denoisings, seeds, edits(), st.data())
def test_a_fork_goes_on_as_the_edited_run_did(model, prompt, decoding, seed, edit, data):
    trace = aw.run(model, prompt, decoding, seed=seed, edits=[edit], probes=())
    step = data.draw(st.integers(0, trace.num_steps - 1))
    identical(trace, aw.fork(model, trace, step, probes=()))


@settings(max_examples=8)
@given(denoisers, long_prompts, seeds, edits(), st.integers(0, 3))
def test_a_fork_with_other_edits_can_be_replayed(model, prompt, seed, edit, step):
    decoding = aw.decoding.LowConfidence(4, temperature=0.7)
    trace = aw.run(model, prompt, decoding, seed=seed, edits=[edit], probes=())
    other = aw.fork(model, trace, step, edits=[E.hide_sinks(1, form="value")], probes=SHARES)
    frames = slice(0, step + 1)
    np.testing.assert_array_equal(other.canvas[frames], trace.canvas[frames])
    again = aw.replay(model, other, SHARES)
    np.testing.assert_array_equal(again.canvas, other.canvas)
    np.testing.assert_array_equal(received(again)[step:], received(other)[step:])
    np.testing.assert_array_equal(again["hidden_keys"], other["hidden_keys"])


@contextmanager
def overheard():
    """What every edit that finds its keys read and chose: by where its chance begins."""
    held, choose = {}, E.Detecting.choose_keys

    def chosen(edit, shares, looked, pool):
        found = choose(edit, shares, looked, pool)
        held[pool.draw] = (shares, found)
        return found

    with mock.patch.object(E.Detecting, "choose_keys", chosen):
        yield held


def first_apart(alone, together, seed):
    """The first choice of a run (by its seed) that fell otherwise in the batch; None if none did.

    Chance begins at (the edit's seed, the run's, which edit, step, layer).
    """
    mine = [draw for draw in alone if draw[1] == seed and draw in together]
    for draw in sorted(mine, key=lambda draw: (draw[3], draw[4:], draw[2])):
        if not np.array_equal(alone[draw][1], together[draw][1]):
            return draw
    return None


def assert_narrow(alone, together, draw):
    """Two keys changed places in the order, and every two that did receive the same to 1e-5."""
    one, two = alone[draw][0], together[draw][0]
    inverted = (one[:, :, None] > one[:, None, :]) & (two[:, :, None] <= two[:, None, :])
    margins = np.abs(one[:, :, None] - one[:, None, :])[inverted]
    assert len(margins), draw
    assert margins.max() < narrow_margin(torch.float32), draw


@settings(max_examples=8)
@given(denoisers, st.lists(long_prompts, min_size=2, max_size=3), seeds, edits())
def test_edits_commute_with_batching(model, many, seed, edit):
    decoding, seed = aw.decoding.LowConfidence(4, 2), seed % 100
    with overheard() as by_one:
        alone = [
            aw.run(model, one, decoding, seed=seed + i, edits=[edit]) for i, one in enumerate(many)
        ]
    for one, two in zip(
        alone, aw.run_many(model, many, decoding, seed=seed, edits=[edit]), strict=True
    ):
        identical(one, two)
    with overheard() as by_three:
        batched = aw.run_many(model, many, decoding, seed=seed, edits=[edit], batch=3)
    for i, (one, two) in enumerate(zip(alone, batched, strict=True)):
        compare(one, two, (by_one, by_three, seed + i))


def compare(one, two, heard):
    """A run and the same row of a batch: equal to rounding, but after a narrow decision.

    True where a choice of keys was the narrow one.
    """
    if apart := first_apart(*heard):
        assert_narrow(*heard[:2], apart)
        return True
    if one.digest() != two.digest():
        assert one["narrow"].sum() + two["narrow"].sum() > 0
        return False
    if "hidden_keys" in one:
        np.testing.assert_array_equal(one["hidden_keys"].values, two["hidden_keys"].values)
    assert np.nanmax(np.abs(received(one) - received(two))) <= tolerances.PADDED
    return False


@settings(max_examples=8)
@given(st.lists(long_prompts, min_size=2, max_size=3), left_to_right, edits())
def test_edits_commute_with_batching_left_to_right(many, decoding, edit):
    model, options = load("tiny/arm"), {"edits": [edit], "probes": SHARES}
    with overheard() as by_one:
        alone = [aw.run(model, one, decoding, seed=7 + i, **options) for i, one in enumerate(many)]
    for one, two in zip(alone, aw.run_many(model, many, decoding, seed=7, **options), strict=True):
        identical(one, two)
    with overheard() as by_three:
        together = aw.run_many(model, many, decoding, seed=7, **options, batch=3)
    for i, (one, two) in enumerate(zip(alone, together, strict=True)):
        compare(one, two, (by_one, by_three, 7 + i))


def test_batches_seldom_hide_other_keys():
    """Rows of which a narrow choice fell otherwise are few: at most one in twenty."""
    model, decoding = load("tiny/llada"), aw.decoding.LowConfidence(4, 2)
    chance = np.random.default_rng(5)
    many = [chance.integers(10, 570, size=n).tolist() for n in (4, 7, 10, 6, 9, 5)]
    parted, rows = 0, 0
    for edit in (
        *(E.hide_sinks(2, detect=detect) for detect in E.DETECT[:3]),
        *(E.hide_random(2, matched_to=matched_to) for matched_to in E.MATCHES),
        *(E.hide_lowest(2), E.hide_sinks(1, scope="layer", form="weight")),
    ):
        options = {"edits": [edit], "probes": SHARES}
        with overheard() as by_one:
            alone = aw.run_many(model, many, decoding, **options)
        with overheard() as by_six:
            together = aw.run_many(model, many, decoding, **options, batch=6)
        assert by_one
        for seed, (one, two) in enumerate(zip(alone, together, strict=True)):
            parted += compare(one, two, (by_one, by_six, seed))
            rows += 1
    assert rows == 54 and parted <= rows // 20


def test_the_narrow_check_can_fail():
    """A choice that fell otherwise by a wide margin is no rounding."""
    shares = np.array([[0.5, 0.3, 0.2]])
    other = np.array([[0.3, 0.5, 0.2]])
    alone = {(0, 7, 0, 1, 2): (shares, np.array([[0]]))}
    together = {(0, 7, 0, 1, 2): (other, np.array([[1]]))}
    draw = first_apart(alone, together, 7)
    assert draw == (0, 7, 0, 1, 2) and first_apart(alone, alone, 7) is None
    with pytest.raises(AssertionError):
        assert_narrow(alone, together, draw)
    with pytest.raises(AssertionError):  # nothing changed places at all
        assert_narrow(alone, {draw: (shares, np.array([[1]]))}, draw)


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/arm"])
def test_a_replay_does_not_look_for_sinks_again(name):
    """The trace says what was hidden; a fork reads the last known step, by which it goes on."""
    model = load(name)
    decoding = aw.decoding.LeftToRight(6) if name == "tiny/arm" else aw.decoding.LowConfidence(6)
    live = aw.run(model, PROMPT, decoding, edits=[E.hide_sinks(1)], probes=SHARES)
    read, reads = editing.Editor._read_received, []

    def counted(*given):
        reads.append(1)
        return read(*given)

    with mock.patch.object(editing.Editor, "_read_received", counted):
        again = aw.replay(model, live, SHARES)
        assert not reads
        forked = aw.fork(model, live, 3, probes=())
        assert reads
    identical(live, again)
    np.testing.assert_array_equal(forked["hidden_keys"], live["hidden_keys"])


def test_a_sink_token_is_never_hidden(tmp_path):
    """It stands before the canvas: position 0 is the first token of the prompt."""
    tensors = checkpoints.lit_gpt_tensors(extra_rows=2, gate=False)
    folder = checkpoints.write(tmp_path / "m", {"n_head": 4, "mask_token_id": 90}, tensors)
    edits = [E.hide_keys([0]), E.hide_sinks(1)]
    probes = [P.received(("all",), dtype="float32")]
    trace = aw.run(
        aw.load(folder), [5, 60, 7], aw.decoding.LowConfidence(5, 2), probes=probes, edits=edits
    )
    assert (received(trace)[..., 0] == 0).all()
    assert (trace["sink_received"].values > 0).all()
    hidden = trace["hidden_keys"].values[1, ..., 1:].astype(int)
    assert (np.take_along_axis(received(trace)[1], hidden, -1) == 0).all()


@pytest.mark.parametrize("form", [*E.FORMS, *E.knock_out.FORMS])
def test_cached_autoregression_is_edited_as_reading_again_is(form):
    model = load("tiny/arm")
    if form in E.FORMS:
        edit = E.hide_keys([0, 3], **hiding(form))
    else:
        edit = E.knock_out({(0, 1), (1, 2), (2, 0)}, form=form)
    runs = [
        aw.run(model, PROMPT, aw.decoding.LeftToRight(6, cache=cache, stop=False), edits=[edit])
        for cache in (True, False)
    ]
    np.testing.assert_array_equal(runs[0].canvas, runs[1].canvas)
    assert np.nanmax(np.abs(received(runs[0]) - received(runs[1]))) <= tolerances.PADDED
    assert np.nanmax(np.abs(runs[0].logprob - runs[1].logprob)) <= tolerances.LOGPROB


def test_a_row_keeps_its_last_key():
    """The first row of a causal map has nothing but itself."""
    model = load("tiny/arm")
    decoding = aw.decoding.LeftToRight(3)
    trace = aw.run(model, PROMPT, decoding, probes=[P.pattern()], edits=[E.hide_keys([0])])
    maps = trace["pattern"].values[trace["pick_step"].values == 0]
    assert (maps[:, 0, 0] == 1).all()
    assert (np.nan_to_num(maps[:, 1:, 0]) == 0).all()
    assert trace["spared_rows"].values.tolist() == [[4] * 3, [0] * 3, [0] * 3]


def test_both_branches_of_guidance_lose_the_same_keys():
    model, decoding = load("tiny/llada"), aw.decoding.LowConfidence(4, guidance=2.0)
    trace = aw.run(model, PROMPT, decoding, probes=SHARES, edits=[E.hide_sinks(2)])
    hidden = trace["hidden_keys"].values
    assert (hidden[0] == -1).all()
    assert (hidden[1:] >= 0).all()
    for name in ("received", "blind_received"):
        share = trace[name].sel(group="all").values[1:]
        assert (np.take_along_axis(share, hidden[1:].astype(int), -1) == 0).all()


def test_a_head_that_is_knocked_out_gives_nothing():
    """As if the columns of the output projection were zero, to the last bit of the logits' sums."""
    model, cut = load("tiny/llada"), tiny.build("tiny/llada", torch.float32)
    size = cut.network.config.hidden_size // cut.num_heads
    with torch.no_grad():
        cut.network.model.layers[1].self_attn.o_proj.weight[:, 2 * size : 3 * size] = 0
    decoding = aw.decoding.LowConfidence(4)
    trace = aw.run(model, PROMPT, decoding, edits=[E.knock_out({(1, 2)})])
    exact = aw.run(cut, PROMPT, decoding)
    np.testing.assert_array_equal(trace.canvas, exact.canvas)
    assert np.nanmax(np.abs(received(trace) - received(exact))) <= tolerances.PADDED


def test_uniform_heads_look_at_all_keys_alike():
    trace = aw.run(
        load("tiny/dream"),
        PROMPT,
        aw.decoding.LowConfidence(4),
        probes=SHARES,
        edits=[E.knock_out({(1, 2)}, form="uniform")],
    )
    share = received(trace)[:, 1, 2]
    np.testing.assert_allclose(share, 1 / share.shape[-1], atol=tolerances.SHARE)


def sunk():
    """A BERT whose first layer gives 98 % of every row to position 0."""
    model = tiny.build("tiny/bert", torch.float32)
    inside = model.network.bert
    parts = inside.embeddings
    keys = 12
    with torch.no_grad():
        for table in (
            parts.word_embeddings,
            parts.position_embeddings,
            parts.token_type_embeddings,
        ):
            table.weight[:, 0] = 0
        parts.position_embeddings.weight[0, 0] = 1e4
        parts.LayerNorm.weight[0], parts.LayerNorm.bias[0] = 1, 0
        attention = inside.encoder.layer[0].attention.self
        top = math.sqrt(63)  # one channel far above 63 others
        gap = math.log(0.98 / 0.02 * (keys - 1))
        for linear in (attention.query, attention.key):
            linear.weight.zero_()
            linear.bias.zero_()
        for head in range(4):
            attention.key.weight[head * 16, 0] = 1
            attention.query.bias[head * 16] = gap * 4 / top
    return model


@pytest.mark.parametrize(
    ("detect", "expected"),
    [("previous_shadow", [0.98, 0, 0, 0]), ("previous_edited", [0.98, 0, 0.98, 0])],
)
def test_a_planted_sink_comes_back_only_if_the_edited_map_decides(detect, expected):
    model, ids = sunk(), [300, 301, 302, 303, 304, 305, 306, 307]
    edit = E.hide_sinks(1, detect=detect, layers=[0])
    trace = aw.run(model, ids, aw.decoding.LowConfidence(4), probes=SHARES, edits=[edit])
    mass = received(trace)[:, 0, :, 0]
    np.testing.assert_allclose(
        mass, np.array(expected)[:, None] * np.ones(4), atol=tolerances.PLANTED_SINK
    )
    assert (mass[1] == 0).all()


def test_same_shadow_and_oracle_hide_at_the_first_step():
    model, ids = sunk(), [300, 301, 302, 303, 304, 305, 306, 307]
    decoding = aw.decoding.LowConfidence(4)
    plain = aw.run(model, ids, decoding, probes=SHARES)
    for options in ({"detect": "same_shadow"}, {"detect": "oracle", "unedited": plain}):
        edit = E.hide_sinks(1, layers=[0], rule=aw.rules.rulli(3), **options)
        trace = aw.run(model, ids, decoding, probes=SHARES, edits=[edit])
        assert (received(trace)[:, 0, :, 0] == 0).all()
        assert (trace["hidden_keys"].values[:, 0] == 0).all()
        again = aw.replay(model, trace, SHARES)
        np.testing.assert_array_equal(received(again), received(trace))
        assert trace.edits == (edit,)


def test_a_rule_hides_only_what_it_calls_a_sink():
    model, ids = sunk(), [300, 301, 302, 303, 304, 305, 306, 307]
    edit = E.hide_sinks(3, layers=[0], rule="rulli:3", detect="same_shadow")
    trace = aw.run(model, ids, aw.decoding.LowConfidence(2), probes=(), edits=[edit])
    assert (trace["hidden_keys"].values[:, 0] == [0, -1, -1]).all()


@pytest.mark.parametrize("matched_to", [match for match in E.MATCHES if match != "mass"])
@pytest.mark.parametrize("scope", E.SCOPES)
def test_controls_hide_as_many_and_no_sinks(matched_to, scope):
    model, decoding = load("tiny/llada"), aw.decoding.LowConfidence(6)
    sinks = E.hide_sinks(2, scope=scope, steps=[1])
    control = E.hide_random(2, scope=scope, matched_to=matched_to, steps=[1])
    one = aw.run(model, PROMPT, decoding, probes=SHARES, edits=[sinks])["hidden_keys"].values[1]
    two = aw.run(model, PROMPT, decoding, probes=SHARES, edits=[control])["hidden_keys"].values[1]
    assert (one >= 0).all()
    assert (two >= 0).all()
    assert not (one[..., :, None] == two[..., None, :]).any()
    if scope != "head":
        assert (one == one[:, :1]).all()
    if scope == "model":
        assert (one == one[0, 0]).all()


@pytest.mark.parametrize("scope", E.SCOPES[:2])
def test_a_control_by_mass_hides_as_much_attention_and_no_sinks(scope):
    model, decoding = load("tiny/llada"), aw.decoding.LowConfidence(6)
    shares = received(aw.run(model, PROMPT, decoding, probes=SHARES))[0]
    if scope == "layer":
        shares = np.broadcast_to(shares.mean(axis=1, keepdims=True), shares.shape)
    sides = (E.hide_sinks(2, scope=scope), E.hide_random(2, scope=scope, matched_to="mass"))
    one, two = (
        aw.run(model, PROMPT, decoding, probes=SHARES, edits=[edit])["hidden_keys"].values[1]
        for edit in sides
    )
    for row, sinks, others in zip(
        shares.reshape(-1, shares.shape[-1]), one.reshape(-1, 2), two.reshape(-1, 64), strict=True
    ):
        others, left = others[others >= 0], np.delete(row, sinks)
        assert len(others) and not set(sinks) & set(others)
        gap = row[sinks].sum() - row[others].sum()
        short = len(others) == len(left) and gap > 0  # all others together receive less
        assert short or abs(gap) <= left.max() / 2 + tolerances.SHARE


def test_hidden_from_the_last_row_alone_a_key_keeps_what_the_others_give():
    """Without a cache an autoregressive model reads all rows again: only its last one is edited."""
    model, writes = load("tiny/arm"), aw.decoding.LeftToRight(3, cache=False)
    probes = [P.pattern()]
    plain = aw.run(model, PROMPT, writes, probes=probes)
    edits = [E.hide_keys([0], hide_from="last", layers=[0], steps=[0])]
    trace = aw.run(model, PROMPT, writes, probes=probes, edits=edits)
    first = (plain["pick_step"].values == 0) & (plain["pick_layer"].values == 0)
    before, after = (run["pattern"].values[first].astype(float) for run in (plain, trace))
    rows = len(model.encode(PROMPT))
    np.testing.assert_array_equal(before[:, : rows - 1], after[:, : rows - 1])
    last = before[:, rows - 1].copy()
    last[:, 0] = 0
    last /= np.nansum(last, axis=-1, keepdims=True)  # NaN: not written yet
    np.testing.assert_allclose(after[:, rows - 1], last, atol=tolerances.SHARE)


def test_a_denoiser_refuses_to_hide_from_its_last_row():
    edits = [E.hide_sinks(1, hide_from="last")]
    with pytest.raises(SpecError, match="all its masked rows predict: say hide_from='all'"):
        aw.run(load("tiny/llada"), PROMPT, aw.decoding.LowConfidence(4), edits=edits)


def test_with_a_cache_the_last_row_is_all_there_is():
    """Its prompt is read whole at the first step, where nothing is hidden yet."""
    model, writes = load("tiny/arm"), aw.decoding.LeftToRight(5)
    one, two = (
        aw.run(model, PROMPT, writes, edits=[E.hide_sinks(1, last_row=True, hide_from=queries)])
        for queries in E.HIDE_FROM
    )
    for name in one.fields:
        np.testing.assert_array_equal(one[name].values, two[name].values, err_msg=name)


def test_the_lowest_receive_least():
    model, decoding = load("tiny/llada"), aw.decoding.LowConfidence(4)
    plain = received(aw.run(model, PROMPT, decoding, probes=SHARES))
    trace = aw.run(model, PROMPT, decoding, edits=[E.hide_lowest(2, steps=[1])])
    order = np.argsort(plain[0], axis=-1)[..., :2]
    np.testing.assert_array_equal(trace["hidden_keys"].values[1], order)


def test_only_eligible_keys_are_hidden():
    model, decoding = load("tiny/llada"), aw.decoding.LowConfidence(4)
    for group in ("prompt", "masked", "passage"):
        trace = aw.run(
            model,
            PROMPT,
            decoding,
            regions={"passage": "drifts in"},
            edits=[E.hide_sinks(1, eligible=group, steps=[1, 2])],
        )
        hidden = np.unique(trace["hidden_keys"].values[1])
        inside = {
            "prompt": np.setdiff1d(np.arange(trace.canvas.shape[1]), trace.answer),
            "masked": np.flatnonzero(trace.masked[1]),
            "passage": np.flatnonzero(trace["region"].values == 0),
        }[group]
        assert len(hidden)
        assert np.isin(hidden, inside).all()


def test_progress_says_when():
    model, decoding = load("tiny/llada"), aw.decoding.LowConfidence(8)
    early, late = E.hide_keys([0], progress=(0, 0.5)), E.hide_keys([1], progress=(0.5, 1))
    trace = aw.run(model, PROMPT, decoding, probes=SHARES, edits=[early, late])
    share = received(trace)
    assert (share[:4, ..., 0] == 0).all()
    assert (share[4:, ..., 0] > 0).all()
    assert (share[4:, ..., 1] == 0).all()
    assert (share[:4, ..., 1] > 0).all()


def test_an_edited_run_that_was_killed_goes_on(tmp_path):
    from anchorwatch.trace.store import BLOCK_STEPS

    model = load("tiny/llada")
    decoding = aw.decoding.LowConfidence(2 * BLOCK_STEPS + 3)
    options = {"edits": [E.hide_sinks(1)], "probes": SHARES}
    whole = aw.run(model, PROMPT, decoding, **options)
    written = aw.run(model, PROMPT, decoding, out=tmp_path / "a.trace", **options)
    np.testing.assert_array_equal(whole["hidden_keys"], written["hidden_keys"])
    assert written.edits == whole.edits

    from unittest import mock

    from anchorwatch.generation import loop

    take, calls = loop.RunState.commit, []

    def dies(self, *args):
        calls.append(1)
        if len(calls) > BLOCK_STEPS + 2:
            raise KeyboardInterrupt
        return take(self, *args)

    with mock.patch.object(loop.RunState, "commit", dies), pytest.raises(KeyboardInterrupt):
        aw.run(model, PROMPT, decoding, out=tmp_path / "b.trace", **options)
    gone_on = aw.run(model, resume=tmp_path / "b.trace")
    identical(written, gone_on)


@given(edits())
def test_a_manifest_gives_the_edit_back(edit):
    assert E.from_dict(json.loads(json.dumps(edit.as_dict()))) == edit


def test_a_trace_says_that_it_was_edited(tmp_path):
    model = load("tiny/llada")
    trace = aw.run(model, PROMPT, aw.decoding.LowConfidence(4), edits=[E.hide_keys([0])])
    assert "edited: hide_keys(positions=(0,))" in repr(trace)
    read = aw.read(trace.write(tmp_path / "a.trace"))
    assert read.edits == (E.hide_keys([0]),)
    np.testing.assert_array_equal(read["hidden_keys"], trace["hidden_keys"])
    plain = aw.run(model, PROMPT, aw.decoding.LowConfidence(4))
    assert "edited" not in repr(plain)
    assert "hidden_keys" not in plain
    plan = aw.plan(model, PROMPT, aw.decoding.LowConfidence(4), edits=[E.hide_keys([0])])
    assert "hidden_keys" in str(plan)


def test_steps_are_edited_too():
    model, decoding = load("tiny/llada"), aw.decoding.LowConfidence(6)
    edits = [E.hide_sinks(2)]
    trace = aw.run(model, PROMPT, decoding, edits=edits)
    for step in aw.steps(model, PROMPT, decoding, edits=edits):
        np.testing.assert_array_equal(step.canvas, trace.canvas[step.index])


def test_edited_and_clean_traces_are_rows_of_their_own():
    model, writes = load("tiny/llada"), aw.decoding.LowConfidence(4, 2)
    clean = aw.run(model, "the anchor", writes)
    faint = aw.run(model, "the anchor", writes, edits=[E.sink_logit(-20.0)])
    assert (clean.canvas == faint.canvas).all()
    assert clean.digest() != faint.digest()
    table = aw.metrics.sinks([clean, faint])
    assert set(table.model) == {"tiny/llada", "tiny/llada, sink_logit(logit=-20.0)"}
    assert aw.metrics.sinks([clean, faint], by=["trace"]).trace.nunique() == 2
