"""Margins of commits: as kept by runs, replays and resumed runs, and counted as a plain loop does."""

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch.errors import SpecError, TraceError
from synthetic_traces import planted, random_maps
from tolerances import of_logits

PROMPT = "the anchor holds"


@pytest.fixture(scope="module")
def model():
    return aw.load("tiny/llada")


def plain_margin(model, trace, position):
    """From log-probabilities of the whole canvas before the commit."""
    row = model.logprobs(trace.canvas[trace.committed_at[position]])[position]
    token = int(trace.canvas[-1, position])
    others = [value for index, value in enumerate(row.tolist()) if index != token]
    return float(row[token]) - max(others)


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_a_margin_is_the_lead_over_the_best_other_token(model, temperature):
    how = aw.decoding.LowConfidence(length=6, steps=3, temperature=temperature)
    trace = aw.run(model, PROMPT, how, seed=3)
    written = np.flatnonzero(trace.committed_at >= 0)
    wanted = [plain_margin(model, trace, position) for position in written]
    width = model.network.config.hidden_size
    off = 2 * of_logits(layers=model.num_layers, width=width, largest=10)
    np.testing.assert_allclose(trace["margin"].values[written], wanted, rtol=0, atol=off)
    assert np.isnan(trace["margin"].values[trace.committed_at < 0]).all()
    assert min(wanted) < -off if temperature else min(wanted) > -off  # drawn, not always the best


def test_replays_forks_and_resumed_runs_keep_margins(model, tmp_path):
    how = aw.decoding.LowConfidence(length=6, steps=6)
    trace = aw.run(model, PROMPT, how)
    again = aw.replay(model, trace, [aw.probes.pattern(layers=[0])], steps=[2])
    np.testing.assert_array_equal(again["margin"], trace["margin"])
    forked = aw.fork(model, trace, 3)
    np.testing.assert_array_equal(forked["margin"], trace["margin"])
    streamed = aw.run(model, PROMPT, how, out=tmp_path / "streamed.trace")
    np.testing.assert_array_equal(streamed["margin"], trace["margin"])


def test_an_autoregressive_run_has_margins():
    model = aw.load("tiny/arm")
    trace = aw.run(model, PROMPT, aw.decoding.LeftToRight(length=4, stop=False))
    assert (trace["margin"].values[trace.committed_at >= 0] >= 0).all()


def test_the_histogram_counts_as_a_plain_loop(model):
    how = aw.decoding.LowConfidence(length=12, steps=6, temperature=2.0)
    trace = aw.run(model, PROMPT, how, seed=1)
    edges = [0.0, 0.5, 1.0, 2.0]
    table = aw.metrics.commit_margins(trace, edges)
    margins = trace["margin"].values[trace.committed_at >= 0].tolist()
    lower = [-np.inf, *edges]
    counts = dict.fromkeys(lower, 0)
    for margin in margins:
        counts[max(edge for edge in lower if edge <= margin)] += 1
    assert table["margin"].tolist() == lower
    np.testing.assert_allclose(table["value"], [counts[edge] / len(margins) for edge in lower])
    assert table["value"].sum() == pytest.approx(1)
    assert table["missing"].tolist() == [0] * len(lower)
    assert table["null"].isna().all() and table["lift"].isna().all()
    assert set(aw.metrics.commit_margins(trace, by=["progress"])["progress"]) > {0.05, 0.95}


def test_ties_stand_in_the_bin_of_zero():
    trace = with_margins([0.0, 0.0, 0.5, np.nan])
    table = aw.metrics.commit_margins(trace).set_index("margin")
    assert table["value"][0.0] == pytest.approx(2 / 3)
    assert table["value"][0.3] == pytest.approx(1 / 3)
    assert set(table["missing"]) == {1}


def with_margins(margins):
    """A trace of as many commits, one a step, with these margins."""
    length = 4 + len(margins)
    values = np.array([np.nan] * 4 + margins, dtype=np.float32)
    maps = random_maps(np.random.default_rng(0), (len(margins), 1, 1, length))
    return planted(maps, prompt=4, more={"margin": (("position",), values)})


def test_edges_that_are_no_bins_are_refused(model):
    trace = aw.run(model, PROMPT, aw.decoding.LowConfidence(length=2), probes=())
    for edges in ([1.0, 2.0], [0.0], [0.0, 0.0], [0.0, np.inf]):
        with pytest.raises(SpecError, match="at least 2, from 0 upwards"):
            aw.metrics.commit_margins(trace, edges)


def test_a_trace_without_margins_says_how_to_get_them():
    old = planted(random_maps(np.random.default_rng(0), (3, 1, 1, 6)), prompt=3)
    with pytest.raises(TraceError, match=r"written before they were kept: aw\.replay"):
        aw.metrics.commit_margins(old)
