"""Decodings in blocks of the canvas, and what stays true where tokens are rewritten."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anchorwatch as aw
from anchorwatch.errors import SpecError
from anchorwatch.trace.trace import FRESH, MASKED, WRITTEN
from strategies import load, prompts, seeds

editings = st.builds(
    aw.decoding.TokenEditing,
    length=st.integers(1, 14),
    block=st.integers(1, 6),
    threshold=st.sampled_from([0.0, 0.02, 0.9]),
    editing_threshold=st.sampled_from([0.0, 0.01, 0.02]),
    max_post_steps=st.integers(0, 4),
    least=st.integers(1, 3),
    stop=st.sampled_from(["block", "never"]),
    temperature=st.sampled_from([0.0, 1.0]),
)
diffusions = st.builds(
    aw.decoding.BlockDiffusion,
    length=st.integers(1, 14),
    steps=st.sampled_from([None, 1, 3, 9]),
    block=st.integers(1, 6),
    order=st.sampled_from(["dynamic", "static", "sequential"]),
    threshold=st.sampled_from([0.0, 0.02, 1.0]),
    stop=st.sampled_from(["block", "token", "never"]),
    temperature=st.sampled_from([0.0, 1.0]),
    top_k=st.sampled_from([None, 4]),
    top_p=st.sampled_from([None, 0.9]),
)


@given(st.one_of(editings, diffusions))
def test_a_manifest_gives_the_decoding_back(decoding):
    assert aw.decoding.from_dict(json.loads(json.dumps(decoding.as_dict()))) == decoding


@given(prompts, seeds, st.one_of(editings, diffusions))
def test_blocks_are_written_one_after_another_and_prompts_never(prompt, seed, decoding):
    model = load("tiny/llada")
    trace = aw.run(model, prompt, decoding, probes=(), seed=seed)
    block, positions = decoding.block, trace.canvas.shape[1]
    # The canvas ends with a block, and no sooner than asked.
    assert positions % block == 0 and len(prompt) + decoding.length <= positions
    assert positions - block < len(prompt) + decoding.length
    # A step writes inside one block; no step goes back to an earlier one.
    changed = trace.canvas[1:] != trace.canvas[:-1]
    assert not changed[:, : len(prompt)].any()
    blocks = [np.flatnonzero(row) // block for row in changed if row.any()]
    assert all(len(set(row)) == 1 for row in blocks)
    assert [row[0] for row in blocks] == sorted(row[0] for row in blocks)
    assert trace.num_steps <= trace.decoding.num_passes


@given(prompts, seeds, editings)
def test_what_is_true_of_rewritten_tokens(prompt, seed, decoding):
    model = load("tiny/llada")
    trace = aw.run(model, prompt, decoding, probes=(), seed=seed)
    before, after = trace.canvas[:-1], trace.canvas[1:]
    written = ~np.isnan(trace["written_logprob"].values)
    # 1. What is recorded as written is what changed: a rewrite is never of the same token.
    np.testing.assert_array_equal(written, before != after)
    # 2. committed_at is the last write, and -1 where a position ends as a mask.
    steps = np.arange(trace.num_steps)[:, None]
    last = np.where(written, steps, -1).max(axis=0, initial=-1)
    masked = trace.canvas[-1] == model.mask_id
    np.testing.assert_array_equal(trace.committed_at, np.where(masked, -1, last))
    # 3. logprob is that of the last write.
    for position in np.flatnonzero(trace.committed_at >= 0):
        step = trace.committed_at[position]
        assert trace.logprob[position] == trace["written_logprob"].values[step, position]
    assert np.isnan(trace.logprob[trace.committed_at < 0]).all()
    # 4. Roles follow the canvas: masked where the mask is, fresh right after a write.
    role, answer = trace.role[:, trace.answer], trace.canvas[:, trace.answer]
    np.testing.assert_array_equal(role == MASKED, answer == model.mask_id)
    fresh = written[:, trace.answer] & (answer[1:] != model.mask_id)
    np.testing.assert_array_equal(role[1:] == FRESH, fresh)
    assert np.isin(role, (MASKED, FRESH, WRITTEN)).all()
    # 5. Progress falls only where a token was rewritten as the mask.
    falls = np.diff(trace.progress) < 0
    again = (after == model.mask_id) & (before != model.mask_id)
    assert not (falls & ~again.any(axis=1)).any()


@given(prompts, seeds, editings)
def test_a_replay_of_a_rewriting_run_is_the_run(prompt, seed, decoding):
    model = load("tiny/llada")
    live = aw.run(model, prompt, decoding, probes=[aw.probes.entropy()], seed=seed)
    again = aw.replay(model, live, probes=[aw.probes.entropy()])
    for field in live:
        np.testing.assert_array_equal(again[field].values, live[field].values, err_msg=field)


def test_a_stored_trace_keeps_its_rewrites(tmp_path):
    model = load("tiny/llada")
    decoding = aw.decoding.TokenEditing(8, block=4, threshold=0.0, editing_threshold=0.0)
    trace = aw.run(model, [11, 12, 13], decoding, probes=())
    read = aw.read(trace.write(tmp_path / "t.trace"))
    np.testing.assert_array_equal(read["written_logprob"], trace["written_logprob"])
    assert read.decoding == trace.decoding


def test_what_cannot_be_combined_is_refused():
    model = load("tiny/llada")
    editing = aw.decoding.TokenEditing(8, block=4)
    with pytest.raises(SpecError, match=r"rewrites what it wrote.*use BlockDiffusion"):
        aw.run(model, [11, 12], editing, edits=[aw.edits.swap_token(0, 13)])
    cached = aw.decoding.BlockDiffusion(8, block=4, cache=True)
    with pytest.raises(SpecError, match=r"exact only where no block sees a later one.*cache=False"):
        aw.run(model, [11, 12], cached)
    blocks = aw.decoding.BlockDiffusion(8, block=4)
    with pytest.raises(SpecError, match=r"masked when its block is left.*LowConfidence"):
        aw.run(model, [11, 12], blocks, edits=[aw.edits.delay_commit([4], until=3)])
    with pytest.raises(SpecError, match=r"the model has no blocks: say BlockDiffusion\(block=32\)"):
        aw.run(model, [11, 12], aw.decoding.BlockDiffusion(8))
    canvas = [11, model.mask_id, 12, 13]
    with pytest.raises(SpecError, match=r"end of a canvas of whole blocks.*LowConfidence"):
        aw.run(model, canvas=canvas, decoding=aw.decoding.BlockDiffusion(block=4))
    with pytest.raises(SpecError, match=r"stop_ids=\(-3,\) are not token ids"):
        aw.decoding.BlockDiffusion(8, stop_ids=(-3,))
