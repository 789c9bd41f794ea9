"""What is true of every run, whatever the model, prompt, decoding and seed.

Laws about the canvas run without probes: that watching changes nothing is a law of its own.
"""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

import anchorwatch as aw
import tolerances
from anchorwatch.generation.decoding import even_counts
from anchorwatch.trace.trace import ABSENT, FRESH, MASKED, PROMPT, SPECIAL, WRITTEN
from strategies import denoisers, denoisings, even, left_to_right, load, prompts, seeds


@given(denoisers, prompts, denoisings, seeds)
def test_the_prompt_is_never_touched_and_commits_are_monotone(model, prompt, decoding, seed):
    trace = aw.run(model, prompt, decoding, seed=seed, probes=())
    assert (trace.canvas[:, : len(prompt)] == prompt).all()
    masked = trace.canvas == model.mask_id
    assert not (~masked[:-1] & masked[1:]).any(), "a written position went back to mask"
    changed = trace.canvas[:-1] != trace.canvas[1:]
    assert (changed <= masked[:-1]).all(), "a written position was written again"


@given(denoisers, prompts, denoisings, seeds)
def test_committed_at_and_logprob_say_what_the_frames_say(model, prompt, decoding, seed):
    trace = aw.run(model, prompt, decoding, seed=seed, probes=())
    for position in range(trace.canvas.shape[1]):
        column = trace.canvas[:, position]
        moves = np.flatnonzero(column[:-1] != column[1:])
        expected = moves[0] if len(moves) else -1
        assert trace.committed_at[position] == expected
        assert np.isnan(trace.logprob[position]) == (expected == -1)
        if expected != -1 and not getattr(decoding, "guidance", 0.0):
            logprobs = model.logprobs(torch.tensor(trace.canvas[expected]).long())
            # Fewer rows are unembedded than here: another shape of the product.
            expected_logprob = float(logprobs[position, column[-1]])
            assert abs(trace.logprob[position] - expected_logprob) <= tolerances.LOGPROB


@given(denoisers, prompts, even, seeds)
def test_commits_sum_to_the_budget_less_chosen_masks(model, prompt, decoding, seed):
    trace = aw.run(model, prompt, decoding, seed=seed, probes=())
    commits = trace.masked[:-1].sum(1) - trace.masked[1:].sum(1)
    chosen = trace["mask_chosen"].values
    if not chosen.any():
        per_block = even_counts(decoding.block, decoding.steps_per_block)
        assert commits.tolist() == per_block * decoding.num_blocks
    assert commits.sum() + trace.num_left_masked == decoding.length
    assert trace.num_steps == decoding.steps


@given(denoisers, prompts, denoisings, seeds)
def test_roles_partition_the_canvas(model, prompt, decoding, seed):
    trace = aw.run(model, prompt, decoding, seed=seed, probes=())
    assert ((trace.canvas == model.mask_id) == (trace.role == MASKED)).all()
    assert np.isin(trace.role[:, : len(prompt)], (PROMPT, SPECIAL)).all()
    assert not (trace.role == ABSENT).any()
    for frame in range(1, len(trace.canvas)):
        fresh = np.flatnonzero(trace.role[frame] == FRESH)
        assert (trace.committed_at[fresh] == frame - 1).all()
        written = np.flatnonzero(trace.role[frame] == WRITTEN)
        assert (trace.committed_at[written] < frame - 1).all()


@given(denoisers, prompts, denoisings, seeds)
def test_the_same_seed_writes_the_same_canvas(model, prompt, decoding, seed):
    once = aw.run(model, prompt, decoding, seed=seed, probes=())
    torch.rand(3)  # the global generator has no say
    again = aw.run(model, prompt, decoding, seed=seed, probes=())
    np.testing.assert_array_equal(once.canvas, again.canvas)
    np.testing.assert_array_equal(once.logprob, again.logprob)


@given(denoisers, prompts, denoisings, seeds)
def test_steps_are_the_run_one_at_a_time(model, prompt, decoding, seed):
    trace = aw.run(model, prompt, decoding, seed=seed)
    taken = list(aw.steps(model, prompt, decoding, seed=seed))
    assert len(taken) == trace.num_steps
    for step in taken:
        np.testing.assert_array_equal(step.canvas, trace.canvas[step.index])
        after = step.canvas.copy()
        after[step.positions] = step.tokens
        np.testing.assert_array_equal(after, trace.canvas[step.index + 1])


@given(denoisers, st.lists(prompts, min_size=2, max_size=3), denoisings, st.integers(0, 99))
def test_run_many_equals_single_runs_bit_for_bit(model, many, decoding, seed):
    for i, trace in enumerate(aw.run_many(model, many, decoding, seed=seed, probes=())):
        alone = aw.run(model, many[i], decoding, seed=seed + i, probes=())
        np.testing.assert_array_equal(trace.canvas, alone.canvas)
        np.testing.assert_array_equal(trace.logprob, alone.logprob)


@given(denoisers, st.lists(prompts, min_size=2, max_size=4), denoisings, st.integers(0, 99))
def test_batched_rows_write_what_they_write_alone(model, many, decoding, seed):
    """Padded or not: the canvas is the same unless a margin under 1e-5 decided, which is counted."""
    for i, trace in enumerate(aw.run_many(model, many, decoding, seed=seed, batch=4, probes=())):
        alone = aw.run(model, many[i], decoding, seed=seed + i, probes=())
        if alone["narrow"].sum() == 0 and trace["narrow"].sum() == 0:
            np.testing.assert_array_equal(trace.canvas, alone.canvas)


@given(prompts, left_to_right, seeds)
def test_autoregression_writes_one_position_after_another(prompt, decoding, seed):
    trace = aw.run(load("tiny/arm"), prompt, decoding, seed=seed, probes=())
    assert trace.num_steps <= decoding.length
    for frame, canvas in enumerate(trace.canvas):
        there = len(prompt) + frame
        assert (canvas[:there] >= 0).all()
        assert (canvas[there:] == -1).all()
        assert (trace.role[frame, there:] == ABSENT).all()
    ends = np.isin(trace.canvas[-1], load("tiny/arm").specials.eos_ids)
    assert trace.num_steps == decoding.length or ends[len(prompt) + trace.num_steps - 1]


@given(prompts, left_to_right, seeds)
def test_autoregressive_logprobs_are_the_model_s(prompt, decoding, seed):
    model = load("tiny/arm")
    trace = aw.run(model, prompt, decoding, seed=seed)
    ids = trace.canvas[-1][: len(prompt) + trace.num_steps]
    logprobs = model.logprobs(torch.tensor(ids).long())
    assert logprobs[0].isnan().all()
    for position in range(len(prompt), len(ids)):
        expected = float(logprobs[position, ids[position]])
        assert abs(trace.logprob[position] - expected) < tolerances.LOGPROB


@given(st.lists(prompts, min_size=2, max_size=4), st.booleans(), st.integers(0, 99))
def test_padded_autoregression_equals_single_runs(many, cache, seed):
    model = load("tiny/arm")
    decoding = aw.decoding.LeftToRight(8, cache=cache)
    for i, trace in enumerate(aw.run_many(model, many, decoding, seed=seed, batch=4, probes=())):
        alone = aw.run(model, many[i], decoding, seed=seed + i, probes=())
        if alone["narrow"].sum() == 0:
            np.testing.assert_array_equal(trace.canvas, alone.canvas)


@given(denoisers, prompts, seeds, st.integers(1, 6))
def test_one_position_blocks_are_left_to_right(model, prompt, seed, length):
    trace = aw.run(model, prompt, aw.decoding.LowConfidence(length, block=1), seed=seed, probes=())
    if trace.num_left_masked == 0:
        assert trace.committed_at[trace.answer].tolist() == list(range(length))


@given(denoisers, st.lists(st.integers(10, 570), min_size=4, max_size=16), st.data())
def test_infilling_writes_the_masked_positions_and_no_other(model, ids, data):
    holes = data.draw(st.sets(st.integers(0, len(ids) - 1), min_size=1))
    canvas = np.array(ids)
    canvas[list(holes)] = model.mask_id
    trace = aw.run(model, canvas=canvas, decoding=aw.decoding.LowConfidence())
    assert trace.answer.tolist() == sorted(holes)
    given_positions = [p for p in range(len(ids)) if p not in holes]
    assert (trace.canvas[:, given_positions] == canvas[given_positions]).all()
    assert trace.num_steps == len(holes)


@given(denoisers, prompts, denoisings, seeds)
def test_appending_equals_infilling_the_same_masks(model, prompt, decoding, seed):
    appended = aw.run(model, prompt, decoding, seed=seed)
    canvas = [*prompt, *[model.mask_id] * decoding.length]
    infilled = aw.run(model, canvas=canvas, decoding=decoding, seed=seed)
    assert infilled.digest() == appended.digest()
