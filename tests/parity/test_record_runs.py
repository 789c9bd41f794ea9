"""Every recorded generation of LLaDA2.x, LLaDA-MoE, SDAR and RND1, frame by frame, cached or not."""

import json

import numpy as np
import pytest

import anchorwatch as aw
import tolerances
from checkpoints import GOLDEN
from record_decodings import decoding_of, run_record

pytestmark = pytest.mark.filterwarnings("ignore:.*asks for remote code")

RECORDS = {
    name: json.loads((GOLDEN / name / "generation.json").read_text())
    for name in ("llada2_moe", "llada_moe", "sdar", "rnd1")
}
IN_BLOCKS = [(name, k) for name in ("llada2_moe", "sdar") for k in range(len(RECORDS[name]))]
MODELS = {}


def load(name):
    if name not in MODELS:
        MODELS[name] = aw.load(GOLDEN / name, mask_id=250)
    return MODELS[name]


def frames(run):
    return np.array([*run["states"], run["output"]])


@pytest.mark.parametrize("name", RECORDS)
def test_every_frame_is_the_authors(name):
    for run in RECORDS[name]:
        trace = run_record(load(name), run, name, probes=())
        np.testing.assert_array_equal(trace.canvas, frames(run), err_msg=str(run["args"]))
        assert trace["narrow"].sum() == 0  # another machine rounds otherwise and writes the same
        if "edits" in run:
            before, after = trace.canvas[:-1], trace.canvas[1:]
            assert ((before != after) & (before != 250)).sum() == run["edits"]


@pytest.mark.parametrize("name", ["llada2_moe", "sdar"])
def test_the_cache_of_finished_blocks_changes_nothing(name):
    for run in RECORDS[name]:
        plain = run_record(load(name), run, name, probes=())
        kept = run_record(load(name), run, name, probes=(), cache=True)
        np.testing.assert_array_equal(kept.canvas, plain.canvas)
        written = kept.committed_at >= 0
        gap = np.abs(kept.logprob - plain.logprob)[written].max()
        assert gap <= tolerances.RECORDS
        assert kept.manifest["rows_computed"] <= plain.manifest["rows_computed"]


@pytest.mark.parametrize("name", ["llada2_moe", "sdar"])
def test_the_cache_computes_less_than_half_the_rows_of_four_blocks_of_32(name):
    decoding = aw.decoding.BlockDiffusion(128, 8, block=32, threshold=1.0, stop="never")
    prompt = list(range(10, 42))
    plain = aw.run(load(name), prompt, decoding, probes=())
    kept = aw.run(
        load(name), prompt, aw.decoding.from_dict(decoding.as_dict() | {"cache": True}), probes=()
    )
    np.testing.assert_array_equal(kept.canvas, plain.canvas)
    # Without a cache a pass ends with the open block: 64, 96, 128 and 160 rows, 8 times each.
    assert plain.manifest["rows_computed"] == 8 * (64 + 96 + 128 + 160)
    # With it: the open block's 32 rows 32 times, and each of the four blocks before it once.
    assert kept.manifest["rows_computed"] == 32 * 32 + 4 * 32


def test_cached_passes_compute_the_rows_that_upstream_computes():
    """SDAR's record says which rows its cached passes computed."""
    for run in RECORDS["sdar"]:
        kept = run_record(load("sdar"), run, "sdar", probes=(), cache=True)
        theirs = sum(end - start for _, start, end in run["passes"])
        ends = run["passes"][-1]
        stored = ends[2] - ends[1] if ends[0] == "store" else 0  # the last block's is never read
        assert kept.manifest["rows_computed"] == theirs - stored


@pytest.mark.parametrize(("name", "k"), [("llada2_moe", 7), ("sdar", 0), ("rnd1", 2)])
def test_a_replay_repeats_what_was_measured(name, k):
    run = RECORDS[name][k]
    for cache in (False, True) if name != "rnd1" else (False,):
        live = run_record(load(name), run, name, cache=cache)
        again = aw.replay(load(name), live)
        assert again.digest() == live.digest()
        for field in live:
            np.testing.assert_array_equal(again[field].values, live[field].values, err_msg=field)


def test_a_fork_leaves_a_rewriting_run_where_it_stood():
    run = RECORDS["llada2_moe"][6]
    live = run_record(load("llada2_moe"), run, "llada2_moe", probes=())
    again = aw.fork(load("llada2_moe"), live, 20, probes=())
    np.testing.assert_array_equal(again.canvas, live.canvas)
    np.testing.assert_array_equal(again.logprob, live.logprob)


def test_runs_together_write_what_they_write_alone():
    runs = [run for run in RECORDS["llada2_moe"] if run["sampler"] == "llada2"][1:4:2]
    decoding = decoding_of(runs[0], "llada2_moe")
    prompts = [run["prompt"] for run in runs]
    together = aw.run_many(load("llada2_moe"), prompts, decoding, probes=(), batch=2)
    for prompt, trace in zip(prompts, together, strict=True):
        alone = aw.run(load("llada2_moe"), prompt, decoding, probes=())
        np.testing.assert_array_equal(trace.canvas, alone.canvas)
