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
from anchorwatch.generation.build_trace import build_trace
from anchorwatch.generation.decoding import DreamOrder, LeftToRight, LowConfidence
from anchorwatch.generation.loop import SharedPrompts, walk
from anchorwatch.generation.prepare import RunRequest, start_runs
from anchorwatch.generation.run import build_recorder
from anchorwatch.generation.sequence import RowLogits
from strategies import denoisers, denoisings, load, prompts, seeds

PROMPT = "the anchor holds the ship"


def run(model, prompt, decoding, seed=0, probes=()):
    """(trace, the run with its counts) of one prompt."""
    return run_together(model, [prompt], decoding, seed, probes)[0]


def run_together(model, prompts, decoding, seed=0, probes=(), batch=1):
    """As run_many, with the counts of each run."""
    requests = [RunRequest(prompt) for prompt in prompts]
    states = start_runs(model, requests, decoding, [seed] * len(requests), probes)
    shared = SharedPrompts()
    for start in range(0, len(states), batch):
        group = states[start : start + batch]
        list(walk(model, group, build_recorder(model, probes, group), shared))
    return [(build_trace(state, model, probes, batch=batch), state) for state in states]


def run_plain(model, prompt, decoding, seed):
    """The same run with all rows of logits at every step."""
    with mock.patch.object(type(decoding), "positions_read", lambda self, plan: None):
        return run(model, prompt, decoding, seed)


@given(denoisers, prompts, denoisings, seeds)
def test_unembedding_what_is_read_writes_the_same(model, prompt, decoding, seed):
    plain, all_rows = run_plain(model, prompt, decoding, seed)
    assume(not plain["narrow"].values.any())
    trace, saved = run(model, prompt, decoding, seed)
    np.testing.assert_array_equal(trace.canvas, plain.canvas)
    np.testing.assert_allclose(trace.logprob, plain.logprob, atol=tolerances.LOGPROB, rtol=0)
    assert saved.rows_unembedded < all_rows.rows_unembedded
    assert saved.rows_computed <= all_rows.rows_computed


def test_rows_are_counted():
    """Of 4 prompt positions and an answer of 8 in two blocks, the open masks are unembedded."""
    model = load("tiny/llada")
    _, counts = run(model, [5, 6, 7, 8], LowConfidence(8, 4, block=4))
    assert (counts.passes_computed, counts.rows_computed) == (4, 4 * 12)
    assert counts.rows_unembedded == 2 * (4 + 2)


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
        plain = run(model, PROMPT, decoding, seed)
    trace, counts = run(model, PROMPT, decoding, seed)
    watched = run(model, PROMPT, decoding, seed, aw.probes.DEFAULT)
    commits = (trace.canvas[:-1] != trace.canvas[1:]).any(axis=1)
    for other, other_counts in (plain, watched):
        np.testing.assert_array_equal(trace.canvas, other.canvas)
        np.testing.assert_array_equal(trace.logprob, other.logprob)
        assert other_counts.passes_computed == 24
    assert counts.passes_computed == 1 + int(commits[:-1].sum()) < 24
    assert not np.isnan(watched[0]["entropy"].values).any(), "a probe sees every step it looks at"


def test_a_finished_sequence_leaves_the_batch():
    """One row ends at its first token, which is its end token; the other writes all eight."""
    model = load("tiny/arm")
    alone = [aw.run(model, ids, LeftToRight(8), probes=()) for ids in ([5, 6, 7], [9, 10, 11, 12])]
    first = int(alone[0].canvas[-1, 3])
    assert first not in alone[1].canvas[-1, 4:]
    ending = replace(model, specials=replace(model.specials, eos_ids=(first,)))
    both = [[5, 6, 7], [9, 10, 11, 12]]
    (short, first_counts), (whole, counts) = run_together(ending, both, LeftToRight(8), batch=2)
    assert short.num_steps == 1 and whole.num_steps == 8
    np.testing.assert_array_equal(whole.canvas[-1], alone[1].canvas[-1])
    assert first_counts.rows_computed == 4, "with the padding of its one pass"
    assert counts.rows_computed == 4 + 7


def test_a_prompt_that_begins_alike_is_read_once():
    model = load("tiny/arm")
    texts = [[*range(5, 25), last] for last in (30, 31, 32)]
    alone = [aw.run(model, ids, LeftToRight(6), probes=()) for ids in texts]
    traces = aw.run_many(model, texts, LeftToRight(6), probes=())
    for trace, single in zip(traces, alone, strict=True):
        assert not single["narrow"].values.any()
        np.testing.assert_array_equal(trace.canvas, single.canvas)
        np.testing.assert_allclose(trace.logprob, single.logprob, atol=tolerances.LOGPROB, rtol=0)
    counted = run_together(model, texts, LeftToRight(6))
    assert [counts.rows_computed for _, counts in counted] == [21 + 5, 1 + 5, 1 + 5]
    watched = run_together(model, texts, LeftToRight(6), probes=aw.probes.DEFAULT)
    assert [counts.rows_computed for _, counts in watched] == [21 + 5] * 3, "probes see every row"
