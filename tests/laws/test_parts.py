"""Runs with parts: they repeat bit for bit, keep to their times, and traces know of them."""

import json
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorwatch as aw
import checkpoints
import tolerances
from strategies import denoisers, denoisings, left_to_right, load, seeds

E, P, D = aw.edits, aw.probes, aw.decoding
PROMPT = "the anchor drifts in the harbor"
SHARES = [P.received(("all",), dtype="float32")]
long_prompts = st.lists(st.integers(10, 570), min_size=4, max_size=10)
COLUMNS = [
    E.sink_token(),
    E.sink_token(2, embedding="random", seed=3),
    E.sink_token(rotary=False, value="zero"),
    E.off_by_one(),
    E.sink_logit(1.5, heads=[0, 3]),
    E.kv_bias(2, layers=[0, 2]),
    E.kv_bias(progress=(0.3, 1.0)),
    E.sink_token(progress=(0.0, 0.5)),
]
GATES = [E.gate("headwise", "plain", seed=2), E.gate("elementwise", "plain", progress=(0.3, 1.0))]
TOKENS = [E.register(2), E.register(embedding="random", progress=(0.3, 1.0))]
causal_parts = st.sampled_from([*COLUMNS, *GATES])
parts = st.sampled_from([*COLUMNS, *GATES, *TOKENS])


def identical(one, two):
    assert set(one.fields) == set(two.fields)
    for name in one.fields:
        np.testing.assert_array_equal(one[name].values, two[name].values, err_msg=name)


def received(trace):
    return trace["received"].sel(group="all").values


def total(trace):
    """What every head gives to the canvas and to what parts added."""
    added = np.nan_to_num(trace["sink_received"].sel(group="all").values)
    return np.nansum(received(trace), axis=-1) + added


@settings(max_examples=12)
@given(denoisers, long_prompts, denoisings, seeds, parts)
def test_a_replay_repeats_a_run_with_parts(model, prompt, decoding, seed, part):
    live = aw.run(model, prompt, decoding, seed=seed, edits=[part])
    blind = aw.run(model, prompt, decoding, seed=seed, edits=[part], probes=())
    identical(live, aw.replay(model, blind))
    assert blind.edits == (part,)


@settings(max_examples=10)
@given(long_prompts, left_to_right, seeds, causal_parts)
def test_a_replay_repeats_autoregression_with_parts(prompt, decoding, seed, part):
    model = load("tiny/arm")
    live = aw.run(model, prompt, decoding, seed=seed, edits=[part])
    blind = aw.run(model, prompt, decoding, seed=seed, edits=[part], probes=())
    identical(live, aw.replay(model, blind))


@settings(max_examples=8)
@given(denoisers, long_prompts, denoisings, seeds, parts, st.data())
def test_a_fork_goes_on_with_its_parts(model, prompt, decoding, seed, part, data):
    edits = [part, E.hide_sinks(1)]
    trace = aw.run(model, prompt, decoding, seed=seed, edits=edits, probes=())
    step = data.draw(st.integers(0, trace.num_steps - 1))
    identical(trace, aw.fork(model, trace, step, probes=()))


@settings(max_examples=10)
@given(denoisers, st.lists(long_prompts, min_size=2, max_size=3), seeds, parts)
def test_parts_commute_with_batching(model, many, seed, part):
    decoding, seed = D.Threshold(4, block=2, threshold=0.01), seed % 100
    alone = [
        aw.run(model, one, decoding, seed=seed + i, edits=[part], probes=SHARES)
        for i, one in enumerate(many)
    ]
    together = aw.run_many(model, many, decoding, seed=seed, edits=[part], probes=SHARES, batch=3)
    for one, two in zip(alone, together, strict=True):
        if one.digest() != two.digest():
            assert one["narrow"].sum() + two["narrow"].sum() > 0
            continue
        assert np.nanmax(np.abs(received(one) - received(two))) <= tolerances.PADDED
        if part.columns:
            sinks = [np.nan_to_num(t["sink_received"].values, nan=-1) for t in (one, two)]
            assert np.abs(sinks[0] - sinks[1]).max() <= tolerances.PADDED


@pytest.mark.parametrize("part", COLUMNS[:6], ids=repr)
def test_cached_autoregression_has_its_parts_as_reading_again_has(part):
    model = load("tiny/arm")
    runs = [
        aw.run(model, PROMPT, D.LeftToRight(6, cache=cache, stop=False), edits=[part])
        for cache in (True, False)
    ]
    np.testing.assert_array_equal(runs[0].canvas, runs[1].canvas)
    assert np.nanmax(np.abs(received(runs[0]) - received(runs[1]))) <= tolerances.PADDED
    assert np.nanmax(np.abs(runs[0].logprob - runs[1].logprob)) <= tolerances.LOGPROB
    assert np.allclose(total(runs[0]), 1, atol=tolerances.SHARE)


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream", "tiny/bert", "tiny/arm"])
@pytest.mark.parametrize("part", COLUMNS[:6], ids=repr)
def test_probes_see_what_is_added(name, part):
    """Shares of the canvas and of what was added sum to one; heads that see nothing are absent."""
    model = load(name)
    decoding = D.LeftToRight(4) if name == "tiny/arm" else D.LowConfidence(4)
    probes = [
        *SHARES,
        P.top_keys(4, every_row=True),
        P.entropy(),
        P.diagonal(),
        P.distance(),
        P.norms(keys=True),
        P.qk_geometry(keys=True),
    ]
    trace = aw.run(model, PROMPT, decoding, probes=probes, edits=[part])
    assert np.allclose(total(trace), 1, atol=tolerances.SHARE)
    sink = trace["sink_received"].sel(group="all").values
    for layer in range(3):
        for head in range(4):
            there = head in part.heads_at(layer, 4)
            assert (
                (sink[:, layer, head] > 0).all() if there else np.isnan(sink[:, layer, head]).all()
            )
    far = np.nansum(trace["distance_mass"].values, axis=-1)
    np.testing.assert_allclose(far, np.nansum(received(trace), -1), atol=tolerances.SUMMED)
    keys = trace["row_top_key"].values
    assert (keys == -2).any()
    plain = aw.run(model, PROMPT, decoding, probes=probes)
    first = (0, 0, slice(None), slice(0, 4))
    for field in ("each_value_norm", "each_logit"):  # the canvas's own are where they were
        np.testing.assert_allclose(
            trace[field].values[first],
            plain[field].values[first],
            rtol=tolerances.NORM,
            atol=tolerances.SHARE,  # a logit is off by what a share is, relative to itself
        )
    if part.heads_at(0, 4):
        # A head without the addition has the same share in both: each is off by its own rounding.
        rounding = 2 * tolerances.SHARE
        assert (trace["diagonal"].values[0, 0] <= plain["diagonal"].values[0, 0] + rounding).all()


def test_geometry_before_rotary_is_the_canvas_s():
    model, decoding = load("tiny/llada"), D.LowConfidence(4)
    probes = [P.qk_geometry(rotary="before", keys=True)]
    plain = aw.run(model, PROMPT, decoding, probes=probes)
    for edit in (E.sink_token(2), E.register(2)):
        trace = aw.run(model, PROMPT, decoding, probes=probes, edits=[edit])
        for name in ("each_logit_before_rotary", "query_norm_before_rotary"):
            one, two = trace[name].values[0, 0], plain[name].values[0, 0]
            np.testing.assert_allclose(
                one, two, rtol=tolerances.NORM, atol=tolerances.SHARE, err_msg=name
            )


@pytest.mark.parametrize("part", [E.sink_token(2), E.kv_bias(layers=[1])], ids=repr)
def test_rollouts_follow_the_canvas_alone(part):
    """What a row gives to added keys leads nowhere: from whole maps, one layer at a time."""
    model, decoding = load("tiny/llada"), D.LowConfidence(4)
    regions = {"start": "the anchor", "end": "drifts in the harbor"}
    probes = [P.region_rollout(), P.pattern()]
    trace = aw.run(model, PROMPT, decoding, probes=probes, regions=regions, edits=[part])
    names, of = trace.manifest["regions"], trace["region"].values
    onto = np.stack([of == region for region in range(len(names))], axis=1).astype(float)
    state = onto.copy()
    for layer in range(3):
        picks = (trace["pick_step"].values == 0) & (trace["pick_layer"].values == layer)
        state = (state + trace["pattern"].values[picks].mean(axis=0) @ state) / 2
        rows = onto.T @ state / onto.sum(axis=0)[:, None]
        found = trace["region_rollout"].values[0, layer]
        np.testing.assert_allclose(found, rows, atol=tolerances.ROLLED)
    assert (state.sum(axis=1) < 0.999).all()


def test_parts_keep_to_their_times():
    model, decoding = load("tiny/llada"), D.LowConfidence(8)
    early = E.sink_token(progress=(0, 0.5))
    trace = aw.run(model, PROMPT, decoding, probes=SHARES, edits=[early, E.register(steps=[6])])
    sink = trace["sink_received"].values
    assert (sink[:4] > 0).all()
    assert np.isnan(sink[[4, 5, 7]]).all()
    assert (sink[6] > 0).all()
    whole = aw.run(model, PROMPT, decoding, probes=SHARES, edits=[E.sink_token()])
    np.testing.assert_array_equal(received(whole)[0], received(trace)[0])
    plain = aw.run(model, PROMPT, decoding, probes=SHARES)
    late = aw.run(
        model, PROMPT, decoding, probes=SHARES, edits=[E.gate("headwise", "plain", steps=[5])]
    )
    np.testing.assert_array_equal(received(late)[:5], received(plain)[:5])
    assert not np.array_equal(received(late)[5, 1:], received(plain)[5, 1:])


def test_hiding_and_knock_outs_know_the_canvas_from_what_is_added():
    model, decoding = load("tiny/llada"), D.LowConfidence(4)
    sink = E.sink_token(embedding="random")
    trace = aw.run(
        model, PROMPT, decoding, probes=SHARES, edits=[sink, E.hide_keys([0]), E.hide_sinks(1)]
    )
    assert (received(trace)[..., 0] == 0).all()
    assert np.allclose(total(trace), 1, atol=tolerances.SHARE)
    hidden = trace["hidden_keys"].values[1, ..., 1:].astype(int)
    assert (np.take_along_axis(received(trace)[1], hidden, -1) == 0).all()
    even = aw.run(
        model, PROMPT, decoding, probes=SHARES, edits=[sink, E.knock_out({(1, 2)}, form="uniform")]
    )
    count = even.canvas.shape[1] + 1
    np.testing.assert_allclose(received(even)[:, 1, 2], 1 / count, atol=tolerances.SHARE)
    limited = E.sink_logit(2.0, heads=[0])
    even = aw.run(
        model,
        PROMPT,
        decoding,
        probes=SHARES,
        edits=[limited, E.knock_out({(1, 2)}, form="uniform")],
    )
    np.testing.assert_allclose(received(even)[:, 1, 2], 1 / (count - 1), atol=tolerances.SHARE)


@pytest.mark.parametrize("form", [*E.FORMS, "zero", "mean", "uniform"])
def test_every_form_combines_with_parts(form):
    """Each call is proved row by row against the obvious formula, so that running is the test."""
    if form in E.FORMS:
        options = {"form": form} | ({"penalty": 3.0} if form == "penalty" else {})
        edit = E.hide_keys([0, 3], **options)
    else:
        edit = E.knock_out({(0, 1), (1, 2)}, form=form)
    for name in ("tiny/llada", "tiny/bert", "tiny/arm"):
        decoding = D.LeftToRight(3) if name == "tiny/arm" else D.LowConfidence(3)
        for part in (E.sink_token(2), E.sink_logit(1.0, heads=[1]), E.kv_bias(layers=[1])):
            trace = aw.run(load(name), PROMPT, decoding, probes=SHARES, edits=[part, edit])
            assert np.isfinite(trace.logprob[trace.answer]).all()


def test_a_row_with_an_added_key_is_not_spared():
    model, decoding = load("tiny/arm"), D.LeftToRight(3)
    edits = [E.sink_logit(0.0, heads=[0]), E.hide_keys([0])]
    trace = aw.run(model, PROMPT, decoding, probes=[P.pattern()], edits=edits)
    maps = trace["pattern"].values[trace["pick_step"].values == 0]
    heads = trace["pick_head"].values[trace["pick_step"].values == 0]
    assert (maps[heads == 0, 0, 0] == 0).all()
    assert (maps[heads != 0, 0, 0] == 1).all()
    assert trace["spared_rows"].values[0].tolist() == [3] * 3


def test_a_run_with_parts_that_was_killed_goes_on(tmp_path):
    from anchorwatch.generation import loop
    from anchorwatch.trace.store import BLOCK_STEPS

    model, decoding = load("tiny/llada"), D.LowConfidence(2 * BLOCK_STEPS + 3)
    embedding = np.random.default_rng(0).normal(size=(1, 64))
    options = {"edits": [E.sink_token(embedding=embedding), E.register()], "probes": SHARES}
    written = aw.run(model, PROMPT, decoding, out=tmp_path / "a.trace", **options)
    take, calls = loop.RunState.commit, []

    def dies(self, *args):
        calls.append(1)
        if len(calls) > BLOCK_STEPS + 2:
            raise KeyboardInterrupt
        return take(self, *args)

    with mock.patch.object(loop.RunState, "commit", dies), pytest.raises(KeyboardInterrupt):
        aw.run(model, PROMPT, decoding, out=tmp_path / "b.trace", **options)
    with pytest.raises(aw.AnchorwatchError, match="give the numbers again"):
        aw.run(model, resume=tmp_path / "b.trace")
    identical(written, aw.run(model, resume=tmp_path / "b.trace", edits=options["edits"]))


def test_numbers_are_given_again():
    model, decoding = load("tiny/llada"), D.LowConfidence(4)
    edits = [E.kv_bias(key=np.ones((3, 4, 1, 16)), value="zero")]
    trace = aw.run(model, PROMPT, decoding, edits=edits)
    assert trace.edits == tuple(edits)
    with pytest.raises(
        aw.AnchorwatchError, match=r"the digest of kv_bias.* give the numbers again"
    ):
        aw.replay(model, trace)
    identical(trace, aw.replay(model, trace, edits=edits))
    with pytest.raises(aw.AnchorwatchError, match="give those again, or fork with others"):
        aw.replay(model, trace, edits=[E.kv_bias()])
    forked = aw.fork(model, trace, 2, edits=edits)
    np.testing.assert_array_equal(forked.canvas, trace.canvas)


@given(
    st.sampled_from(
        [
            *COLUMNS,
            *GATES,
            *TOKENS,
            E.sink_logit(float("-inf")),
            E.sink_logit([1.0, 2.0]),
            E.gate(weight=np.ones((1, 2, 3))),
        ]
    )
)
def test_a_manifest_gives_the_part_back(part):
    again = E.from_dict(json.loads(json.dumps(part.as_dict(), allow_nan=False)))
    assert again == part
    assert hash(again) == hash(part)


def test_a_trace_says_what_was_added(tmp_path):
    trace = aw.run(load("tiny/llada"), PROMPT, D.LowConfidence(4), edits=[E.sink_token(2)])
    assert "edited: sink_token(n=2)" in repr(trace)
    read = aw.read(trace.write(tmp_path / "a.trace"))
    assert read.edits == (E.sink_token(2),)
    np.testing.assert_array_equal(read["sink_received"], trace["sink_received"])


def test_the_null_counts_what_is_added():
    """A trace of uniform heads is its own null, whatever stands before the canvas."""
    model, decoding = load("tiny/llada"), D.LowConfidence(4)
    for part in (
        E.sink_token(3),
        E.kv_bias(2, layers=[1]),
        E.register(2, steps=[1, 2]),
        E.sink_token(progress=(0.5, 1)),
    ):
        edits = [part, E.knock_out(form="uniform")]
        trace = aw.run(model, PROMPT, decoding, probes=SHARES, edits=edits)
        table = aw.metrics.absorption(trace, ["first"], by=("layer", "step"))
        np.testing.assert_allclose(table.lift, 1, rtol=tolerances.METRIC)


def test_a_trained_sink_token_is_the_same_part(tmp_path):
    tensors = checkpoints.lit_gpt_tensors(extra_rows=2, gate=True)
    folder = checkpoints.write(tmp_path / "m", {"n_head": 4, "mask_token_id": 90}, tensors)
    model = aw.load(folder)
    assert [type(part).__name__ for part in model.parts] == ["sink_token", "gate"]
    row = tensors["transformer.wte.weight"][-1:]
    assert model.parts[0] == E.sink_token(embedding=row)
    trace = aw.run(model, [5, 60, 7], D.LowConfidence(4))
    assert (trace["sink_received"].values > 0).any()
    assert trace.manifest["model"]["parts"] == [part.as_dict() for part in model.parts]
    identical(trace, aw.replay(model, trace))
    bare = checkpoints.lit_gpt_tensors(extra_rows=2, gate=False)
    other = aw.load(checkpoints.write(tmp_path / "n", {"n_head": 4, "mask_token_id": 90}, bare))
    with pytest.raises(aw.AnchorwatchError, match="is not the model that made this trace"):
        aw.replay(other, trace)
    both = aw.run(model, [5, 60, 7], D.LowConfidence(4), probes=SHARES, edits=[E.off_by_one()])
    assert np.allclose(total(both), 1, atol=tolerances.SHARE)
    assert not torch.equal(
        model.logits([5, 60, 7]), model.logits([5, 60, 7], parts=[E.off_by_one()])
    )


@pytest.mark.parametrize("part", [*COLUMNS[:6], *GATES[:1], *TOKENS[:1]], ids=repr)
def test_half_precision_stays_near(part):
    """By concatenated keys, for the kernel's sums are not had there."""
    from anchorwatch.models import tiny
    from anchorwatch.models.verify import ROUNDING

    ids = list(range(300, 312))
    whole = load("tiny/llada").logits(ids, parts=[part])
    half = tiny.build("tiny/llada", torch.bfloat16)
    gap = (half.logits(ids, parts=[part]).float() - whole).abs().max() / whole.abs().max()
    assert gap < ROUNDING[torch.bfloat16]
    aw.run(half, ids, D.LowConfidence(2), edits=[part], probes=SHARES)
