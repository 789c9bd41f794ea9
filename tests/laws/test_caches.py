"""Approximate caches: what is exact about them, what traces say of them, what they refuse."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anchorwatch as aw
import tolerances
from anchorwatch.errors import SpecError
from anchorwatch.generation.caches import CACHES, CacheContext, from_dict, parse_cache
from anchorwatch.generation.decoding import LowConfidence, Threshold
from anchorwatch.generation.decoding import from_dict as decoding_from
from anchorwatch.generation.parse import parse_decoding
from strategies import load, prompts, seeds

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]
EVERY = [kind() for kind in CACHES.values()] + [aw.caches.keep_sinks(2, "keep")]
MAPS = [cache for cache in EVERY if not cache.evicts]


def run(cache, name="tiny/llada", probes=(), **how):
    decoding = LowConfidence(8, 8, block=4, cache=cache)
    return aw.run(load(name), PROMPT, decoding, probes=probes, **how)


@given(st.sampled_from(["tiny/llada", "tiny/dream"]), prompts, seeds)
def test_a_cache_that_keeps_nothing_is_exact(name, prompt, seed):
    """Every pass is over all rows, in the same call: equal bit for bit."""
    plain = aw.run(load(name), prompt, LowConfidence(8, 4, block=4), seed=seed, probes=())
    always = LowConfidence(8, 4, block=4, cache=aw.caches.interval(1, 1))
    cached = aw.run(load(name), prompt, always, seed=seed, probes=())
    np.testing.assert_array_equal(cached.canvas, plain.canvas)
    np.testing.assert_array_equal(cached.logprob, plain.logprob)
    assert (cached["row_computed"].values == 1).all()


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream"])
@pytest.mark.parametrize("cache", EVERY, ids=lambda cache: cache.as_word())
def test_a_trace_counts_what_its_cache_computed(cache, name):
    trace = run(cache, name)
    computed = trace["row_computed"].values
    assert trace.manifest["approximate"] == cache.as_word()
    assert trace.manifest["rows_computed"] == computed.sum() < computed.size
    assert trace.num_steps == 8
    planned = aw.plan(load(name), PROMPT, trace.decoding, probes=())
    shifted = trace.num_steps * load(name).family.shift  # the row before the block predicts it
    assert planned.rows + shifted >= computed.sum()
    assert f"approximate: {cache.as_word()}" in str(planned)
    assert (computed[0] == 1).all(), "nothing is known before the first pass"


@pytest.mark.parametrize("cache", EVERY, ids=lambda cache: cache.as_word())
def test_a_replay_repeats_the_cache(cache):
    trace = run(cache)
    again = aw.replay(load("tiny/llada"), trace, probes=())
    np.testing.assert_array_equal(again.logprob, trace.logprob)
    np.testing.assert_array_equal(again["row_computed"], trace["row_computed"])
    forked = aw.fork(load("tiny/llada"), trace, 5, probes=())
    np.testing.assert_array_equal(forked.canvas, trace.canvas)


@pytest.mark.parametrize("cache", MAPS, ids=lambda cache: cache.as_word())
def test_watching_changes_nothing_and_a_replay_measures_the_same(cache):
    plain, live = run(cache), run(cache, probes=aw.probes.DEFAULT)
    np.testing.assert_array_equal(live.canvas, plain.canvas)
    np.testing.assert_array_equal(live.logprob, plain.logprob)
    again = aw.replay(load("tiny/llada"), plain)
    for name in ("received", "entropy", "diagonal", "cosine", "commit_top_key"):
        np.testing.assert_array_equal(again[name].values, live[name].values)


def test_rows_that_are_not_computed_are_absent():
    probes = [
        aw.probes.pattern(),
        aw.probes.entropy(rows=True),
        aw.probes.diagonal(rows=True),
        aw.probes.distance(),
        aw.probes.received(dtype="float32"),
    ]
    trace = run(aw.caches.dual(), probes=probes)
    computed = trace["row_computed"].values == 1
    model = load("tiny/llada")
    maps = trace["pattern"].values.reshape(
        8, model.num_layers, model.num_heads, *trace["pattern"].shape[1:]
    )
    for step in range(8):
        rows = computed[step]
        assert np.isnan(maps[step][:, :, ~rows]).all()
        assert np.isnan(trace["row_entropy"].values[step][..., ~rows]).all()
        share = maps[step][:, :, rows]
        # Each statistic against the obvious computation on the whole map.
        obvious = -(share * np.log(np.maximum(share, 1e-30))).sum(-1)
        row_entropy = trace["row_entropy"].values[step][..., rows]
        np.testing.assert_allclose(row_entropy, obvious, atol=tolerances.ENTROPY)
        own = np.einsum("lhpp->lhp", maps[step])[..., rows]
        np.testing.assert_array_equal(trace["row_diagonal"].values[step][..., rows], own)
        received = trace["received"].values[step][:, :, 0]
        np.testing.assert_allclose(received, share.mean(axis=2), atol=tolerances.SUMMED)
        apart = np.abs(np.flatnonzero(rows)[:, None] - np.arange(len(rows)))
        for distance in (0, 1, 5):
            mass = (share * (apart == distance)).sum(-1).mean(-1)
            value = trace["distance_mass"].values[step][..., distance]
            np.testing.assert_allclose(value, mass, atol=tolerances.SUMMED)
    assert trace["queries"].values[:, 0].tolist() == computed.sum(axis=1).tolist()


def test_the_row_before_a_block_is_computed_where_it_predicts_it():
    trace = run(aw.caches.dual(), "tiny/dream")
    computed = trace["row_computed"].values == 1
    for step, first in ((1, 8), (2, 8), (3, 8), (5, 12), (6, 12), (7, 12)):
        block = range(first, first + 4)
        before = [first - 1] if trace.masked[step, first] else []
        assert np.flatnonzero(computed[step]).tolist() == [*before, *block]


def test_evicting_hides_the_share_it_says(monkeypatch):
    """From the third pass of a block on, its rows see the block and half of the other keys."""
    from anchorwatch.generation.cached_pass import KeptKeys

    seen, complete = [], KeptKeys.complete

    def keep(self, query, key, value, scale):
        result = complete(self, query, key, value, scale)
        seen.append(None if result[2] is None else int(result[2][0, 0, 0].sum()))
        return result

    monkeypatch.setattr(KeptKeys, "complete", keep)
    run(aw.caches.evicting(0.5))
    layers = load("tiny/llada").num_layers
    one_block = [None] * 2 * layers + [4 + 6] * 2 * layers
    assert seen == one_block * 2
    seen.clear()
    trace, plain = run(aw.caches.evicting(1.0)), run(aw.caches.dual())
    assert {4 + 12} == {count for count in seen if count is not None}
    assert (trace["row_computed"].values[[1, 5]] == 1).all()
    assert (plain["row_computed"].values[[1, 5]] == 1).sum() == 8


def context(**fields):
    none = np.zeros(6, dtype=bool)
    usual = {"step": 3, "block_step": 2, "block": none, "masked": none, "fresh": none}
    return CacheContext(**(usual | {"answer": none} | fields))


def test_each_rule_by_hand():
    block = np.array([0, 0, 1, 1, 0, 0], dtype=bool)
    answer = np.array([0, 0, 1, 1, 1, 1], dtype=bool)
    fresh = np.array([0, 1, 0, 0, 0, 0], dtype=bool)
    received = np.array([0.5, 0.1, 0.1, 0.1, 0.2, 0.0])
    now = {"block": block, "answer": answer, "fresh": fresh, "masked": answer}
    rules = {
        aw.caches.prefix(): [2, 3, 4, 5],
        aw.caches.dual(): [2, 3],
        aw.caches.delayed(4): [1, 2, 3, 4, 5],
        aw.caches.delayed(2): range(6),
        aw.caches.interval(8, 8): [2, 3],
        aw.caches.interval(8, 3): [2, 3, 4, 5],
        aw.caches.interval(3, 8): [0, 1, 2, 3],
        aw.caches.elastic(0.9): [1, 2, 3],
        aw.caches.evicting(): [2, 3],
        aw.caches.keep_sinks(2): [0, 2, 3, 4],
        aw.caches.keep_sinks(1, "keep"): [2, 3],
    }
    for cache, rows in rules.items():
        chosen = cache.rows(context(received=received, **now))
        assert np.flatnonzero(chosen).tolist() == list(rows), cache
    assert aw.caches.elastic(0.9).rows(context(drift=0.11, **now)).all()
    opened = context(received=received, **now | {"block": block}, block_step=0)
    assert np.flatnonzero(~aw.caches.keep_sinks(1, "keep").rows(opened)).tolist() == [0]


@pytest.mark.parametrize("cache", EVERY, ids=lambda cache: cache.as_word())
def test_caches_are_spelled_and_remembered(cache):
    assert parse_cache(cache.as_word()) == cache == from_dict(cache.as_dict())
    decoding = Threshold(8, block=4, cache=cache)
    assert decoding_from(decoding.as_dict()) == decoding
    assert parse_decoding(f"threshold:length=8,block=4,cache={cache.as_word()}") == decoding
    assert "cache" not in LowConfidence(8).as_dict(), "manifests without a cache are as before"


def test_what_cannot_be_combined_is_refused():
    plain = LowConfidence(8, cache=aw.caches.dual())
    cases = [
        ("keeps keys that hide_keys", {"edits": [aw.edits.hide_keys([0])]}, plain),
        ("leave one of them out", {}, LowConfidence(8, guidance=1.0, cache=aw.caches.dual())),
        ("needs all rows at every step", {"probes": [aw.probes.massive()]}, plain),
        ("or use cache=dual", {}, LowConfidence(8, cache=aw.caches.evicting())),
    ]
    for message, how, decoding in cases:
        with pytest.raises(SpecError, match=message):
            aw.run(load("tiny/llada"), PROMPT, decoding, **how)
    with pytest.raises(SpecError, match="no cache is called 'doal': expected one of prefix, dual"):
        LowConfidence(8, cache="doal")
    with pytest.raises(SpecError, match="dual takes no settings"):
        parse_cache("dual:3")
    with pytest.raises(SpecError, match="say interval:32"):
        parse_cache("interval:often")
    with pytest.raises(SpecError, match=r"say aw.caches.dual\(\) for example"):
        LowConfidence(8, cache=True)
    for wrong in (lambda: aw.caches.delayed(0), lambda: aw.caches.keep_sinks(1, "hold")):
        with pytest.raises(SpecError, match=r"whole number of at least 1|one of refresh, keep"):
            wrong()
    for wrong in (lambda: aw.caches.elastic(1.5), lambda: aw.caches.evicting(0)):
        with pytest.raises(SpecError, match="above 0 and at most 1"):
            wrong()


def test_a_streamed_run_with_a_cache_is_the_same(tmp_path):
    plain = run(aw.caches.dual(), probes=[aw.probes.received()])
    streamed = run(aw.caches.dual(), probes=[aw.probes.received()], out=tmp_path / "a.trace")
    np.testing.assert_array_equal(streamed.canvas, plain.canvas)
    np.testing.assert_array_equal(streamed["row_computed"].values, plain["row_computed"].values)
