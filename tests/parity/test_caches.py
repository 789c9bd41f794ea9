"""Recorded runs of Fast-dLLM (prefix, dual) and dKV-Cache-Decode, frame by frame."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import anchorwatch as aw
import tolerances
from anchorwatch.generation.cached_pass import KeptKeys
from checkpoints import GOLDEN

FAST = json.loads((GOLDEN / "cache" / "fast_dllm.json").read_text())
DELAYED = json.loads((GOLDEN / "cache" / "dkv_cache.json").read_text())
CACHED = [run for run in FAST if run["cache"] != "none"] + DELAYED


@pytest.fixture(scope="module")
def model():
    return aw.load(GOLDEN / "llada")


def cache_of(run):
    if run["cache"] == "dkv_decode":
        return aw.caches.delayed(run["args"]["cache_reloading_step"])
    return {"prefix": aw.caches.prefix(), "dual": aw.caches.dual(), "none": None}[run["cache"]]


def decoding_of(run):
    args, common = run["args"], {"block": run["args"]["block_length"], "cache": cache_of(run)}
    if args.get("threshold") is not None:
        return aw.decoding.Threshold(args["gen_length"], threshold=args["threshold"], **common)
    return aw.decoding.LowConfidence(args["gen_length"], args["steps"], **common)


def without_wasted(run):
    """The frames, less those whose pass changed nothing: a block that its first pass finished.

    Upstream runs a cached pass over it all the same; it is not copied.
    """
    frames = np.array([*run["states"], run["output"]])
    wasted = (frames[:-1] == frames[1:]).all(axis=1)
    return frames[np.append(~wasted, True)], int(wasted.sum())


@pytest.mark.parametrize("index", range(len(CACHED)))
def test_every_frame_is_the_authors(model, index):
    run = CACHED[index]
    trace = aw.run(model, run["prompt"], decoding_of(run), probes=())
    frames, wasted = without_wasted(run)
    np.testing.assert_array_equal(trace.canvas, frames)
    assert trace["narrow"].sum() == 0  # another machine rounds otherwise and writes the same
    assert trace.num_steps == run["forward_passes"] - wasted
    assert wasted == (2 if run["args"].get("threshold") == 0.01 else 0)
    assert trace.manifest["approximate"] == cache_of(run).as_word()


@pytest.mark.parametrize("index", range(len(CACHED)))
def test_every_pass_computes_the_authors_rows(model, index):
    run = CACHED[index]
    trace = aw.run(model, run["prompt"], decoding_of(run), probes=())
    everything = range(trace.canvas.shape[1])
    if "rows" in run:
        rows = [list(everything) if one == "all" else one for one in run["rows"]]
    else:
        states = np.array([*run["states"], run["output"]])
        moved = (states[:-1] != states[1:]).any(axis=1)
        spans = [span for span, used in zip(run["passes"], moved, strict=True) if used]
        rows = [list(range(start, end)) for _, start, end in spans]
    computed = [np.flatnonzero(row).tolist() for row in trace["row_computed"].values]
    assert computed == rows
    assert trace.manifest["rows_computed"] == sum(map(len, rows))


@pytest.mark.parametrize("name", ["prefix", "dual", "delayed"])
def test_logits_of_a_cached_pass_are_the_authors(model, name, monkeypatch):
    """Of the fourth pass, whose other rows are three passes old."""
    recorded = load_file(GOLDEN / "cache" / "logits.safetensors")[f"{name}.3"]
    run = DELAYED[0] if name == "delayed" else next(run for run in FAST if run["cache"] == name)
    passes, plain = [], model.logits_of_rows

    def keep(self, canvas, rows, columns, kept: KeptKeys):
        whole = plain(canvas, rows, rows, kept)
        passes.append(whole)
        return whole[torch.searchsorted(rows, columns)]

    monkeypatch.setattr(type(model), "logits_of_rows", keep)
    aw.run(model, run["prompt"], decoding_of(run), probes=())
    np.testing.assert_allclose(passes[3].numpy(), recorded, atol=tolerances.RECORDS, rtol=0)


def test_runs_without_a_cache_are_the_records_too(model):
    for run in FAST:
        if run["cache"] == "none":
            trace = aw.run(model, run["prompt"], decoding_of(run), probes=())
            np.testing.assert_array_equal(trace.canvas, [*run["states"], run["output"]])
            assert "approximate" not in trace.manifest and "row_computed" not in trace
