"""Savings that change nothing: rows that nobody reads, sequences that ended, prompts read before.

Each is held against the loop without it. What changes the shape of a product may change the last
bits: canvases are then compared where no decision was a near-tie.
"""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import assume, given

import anchorwatch as aw
import tolerances
from anchorwatch.generation.decoding import DreamOrder, LeftToRight, LowConfidence
from anchorwatch.generation.sequence import RowLogits
from strategies import denoisers, denoisings, load, prompts, seeds

PROMPT = "the anchor holds the ship"


def run_plain(model, prompt, decoding, seed):
    """The same run with all rows of logits at every step."""
    with mock.patch.object(type(decoding), "positions_read", lambda self, plan: None):
        return aw.run(model, prompt, decoding, seed=seed, probes=())


@given(denoisers, prompts, denoisings, seeds)
def test_unembedding_what_is_read_writes_the_same(model, prompt, decoding, seed):
    plain = run_plain(model, prompt, decoding, seed)
    assume(not plain["narrow"].values.any())
    trace = aw.run(model, prompt, decoding, seed=seed, probes=())
    np.testing.assert_array_equal(trace.canvas, plain.canvas)
    np.testing.assert_allclose(trace.logprob, plain.logprob, atol=tolerances.LOGPROB, rtol=0)
    assert trace.manifest["rows_unembedded"] < plain.manifest["rows_unembedded"]
    assert trace.manifest["rows_computed"] <= plain.manifest["rows_computed"]


def test_rows_are_counted():
    """Of 4 prompt positions and an answer of 8 in two blocks, the open masks are unembedded."""
    model = load("tiny/llada")
    trace = aw.run(model, [5, 6, 7, 8], LowConfidence(8, 4, block=4), probes=())
    cost = {name: trace.manifest[name] for name in ("passes_computed", "rows_computed")}
    assert cost == {"passes_computed": 4, "rows_computed": 4 * 12}
    assert trace.manifest["rows_unembedded"] == 2 * (4 + 2)


def test_a_row_that_was_not_computed_is_refused():
    rows = RowLogits(torch.zeros(2, 5), torch.tensor([3, 4]), 6)
    assert rows[torch.tensor([4])].shape == (1, 5)
    with pytest.raises(IndexError, match="names them in positions_read"):
        rows[torch.tensor([2])]


@pytest.mark.parametrize("seed", range(3))
def test_a_step_on_the_same_canvas_needs_no_pass(seed):
    """By chance Dream's origin commits nothing at many of 24 steps over four positions."""
    model, decoding = load("tiny/dream"), DreamOrder(4, 24)
    with mock.patch("anchorwatch.generation.loop.Memory.repeat_logits", lambda *_: None):
        plain = aw.run(model, PROMPT, decoding, seed=seed, probes=())
    trace = aw.run(model, PROMPT, decoding, seed=seed, probes=())
    watched = aw.run(model, PROMPT, decoding, seed=seed)
    commits = (trace.canvas[:-1] != trace.canvas[1:]).any(axis=1)
    for other in (plain, watched):
        np.testing.assert_array_equal(trace.canvas, other.canvas)
        np.testing.assert_array_equal(trace.logprob, other.logprob)
        assert other.manifest["passes_computed"] == 24
    assert trace.manifest["passes_computed"] == 1 + int(commits[:-1].sum()) < 24
    assert not np.isnan(watched["entropy"].values).any(), "a probe sees every step it looks at"


def test_a_finished_sequence_leaves_the_batch():
    """One row ends at its first token, which is its end token; the other writes all eight."""
    model = load("tiny/arm")
    alone = [aw.run(model, ids, LeftToRight(8), probes=()) for ids in ([5, 6, 7], [9, 10, 11, 12])]
    first = int(alone[0].canvas[-1, 3])
    assert first not in alone[1].canvas[-1, 4:]
    ending = replace(model, specials=replace(model.specials, eos_ids=(first,)))
    both = [[5, 6, 7], [9, 10, 11, 12]]
    traces = aw.run_many(ending, both, LeftToRight(8), probes=(), batch=2)
    assert traces[0].num_steps == 1 and traces[1].num_steps == 8
    np.testing.assert_array_equal(traces[1].canvas[-1], alone[1].canvas[-1])
    assert traces[0].manifest["rows_computed"] == 4, "with the padding of its one pass"
    assert traces[1].manifest["rows_computed"] == 4 + 7


def test_a_prompt_that_begins_alike_is_read_once():
    model = load("tiny/arm")
    texts = [[*range(5, 25), last] for last in (30, 31, 32)]
    alone = [aw.run(model, ids, LeftToRight(6), probes=()) for ids in texts]
    traces = aw.run_many(model, texts, LeftToRight(6), probes=())
    for trace, single in zip(traces, alone, strict=True):
        assert not single["narrow"].values.any()
        np.testing.assert_array_equal(trace.canvas, single.canvas)
        np.testing.assert_allclose(trace.logprob, single.logprob, atol=tolerances.LOGPROB, rtol=0)
    assert [trace.manifest["rows_computed"] for trace in traces] == [21 + 5, 1 + 5, 1 + 5]
    watched = aw.run_many(model, texts, LeftToRight(6))
    assert [trace.manifest["rows_computed"] for trace in watched] == [21 + 5] * 3, (
        "probes see every row"
    )
