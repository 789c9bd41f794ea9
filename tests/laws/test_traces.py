"""Traces on disk: what was written is what is read, by us and by plain xarray, and never half."""

import json
import shutil

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import anchorwatch as aw
from anchorwatch.errors import TraceError
from anchorwatch.trace.atomic_io import extent, find_damage
from anchorwatch.trace.trace import Trace
from strategies import denoisings, load, prompts, seeds

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")


@pytest.fixture(scope="module")
def trace():
    return aw.run(load("tiny/dream"), "the anchor drifts", aw.decoding.LowConfidence(6, 3), seed=4)


@given(prompts, denoisings, seeds, st.sampled_from(["tiny/llada", "tiny/bert"]))
def test_what_was_written_is_read(tmp_path_factory, prompt, decoding, seed, name):
    path = tmp_path_factory.mktemp("t") / "a.trace"
    written = aw.run(load(name), prompt, decoding, seed=seed)
    written.write(path)
    held = aw.read(path)
    assert held.manifest == written.manifest
    assert held.digest() == written.digest()
    assert held.decoding == decoding
    assert held.seed == seed
    for field in written.fields:
        stored = written[field].encoding.get("dtype", written[field].dtype)
        xr.testing.assert_identical(held[field], written[field].astype(stored, keep_attrs=True))


def test_an_autoregressive_trace_keeps_what_is_absent(tmp_path):
    trace = aw.run(load("tiny/arm"), "the", aw.decoding.LeftToRight(5))
    trace.write(tmp_path / "a.trace")
    held = aw.read(tmp_path / "a.trace")
    assert (held.canvas[0] == -1).sum() == 5
    assert held["canvas"].dtype == np.int32


def test_plain_xarray_opens_it_with_names_units_and_no_conversion(tmp_path, trace):
    trace.write(tmp_path / "a.trace")
    dataset = xr.open_zarr(tmp_path / "a.trace")
    assert dataset["canvas"].dims == ("frame", "position")
    assert dataset["canvas"].dtype == np.int32, "a _FillValue would have made it float"
    assert dataset["canvas"].attrs["missing"] == -1
    assert dataset["logprob"].attrs["units"] == "nats"
    assert dataset["role"].attrs["flag_meanings"].split()[2] == "masked"
    assert dataset.attrs["manifest"]["model"]["family"] == "dream"
    assert np.isnan(dataset["logprob"].values[0])


def test_an_existing_trace_is_never_touched(tmp_path, trace):
    trace.write(tmp_path / "a.trace")
    before = sorted(p.read_bytes() for p in (tmp_path / "a.trace").rglob("*") if p.is_file())
    with pytest.raises(TraceError, match="exists already: choose another name"):
        trace.write(tmp_path / "a.trace")
    after = sorted(p.read_bytes() for p in (tmp_path / "a.trace").rglob("*") if p.is_file())
    assert before == after
    with pytest.raises(TraceError, match="does not exist: make it first"):
        trace.write(tmp_path / "no" / "a.trace")


def test_a_write_that_fails_leaves_nothing(tmp_path, trace, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.rename", full)
    with pytest.raises(OSError, match="No space left"):
        trace.write(tmp_path / "a.trace")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_trace_is_refused(tmp_path, trace):
    with pytest.raises(TraceError, match="there is no trace at"):
        aw.read(tmp_path / "none.trace")
    (tmp_path / "empty.trace").mkdir()
    with pytest.raises(TraceError, match="cannot be read as a trace"):
        aw.read(tmp_path / "empty.trace")
    xr.Dataset({"x": ("a", [1])}).to_zarr(tmp_path / "other.zarr", zarr_format=3)
    with pytest.raises(TraceError, match="not a trace"):
        aw.read(tmp_path / "other.zarr")
    path = trace.write(tmp_path / "future.trace")
    meta = json.loads((path / "zarr.json").read_text())
    meta["attributes"]["schema_version"] = 99
    (path / "zarr.json").write_text(json.dumps(meta))
    with pytest.raises(TraceError, match="has trace schema 99; this anchorwatch reads 1"):
        aw.read(path)
    path = trace.write(tmp_path / "lost.trace")
    shutil.rmtree(path / "logprob")
    meta = json.loads((path / "zarr.json").read_text())
    del meta["consolidated_metadata"]["metadata"]["logprob"]
    (path / "zarr.json").write_text(json.dumps(meta))
    with pytest.raises(TraceError, match="lacks logprob: it is damaged"):
        aw.read(path)


def test_a_field_that_is_not_there_names_those_that_are(trace):
    with pytest.raises(TraceError, match="has no 'pattern': it holds canvas, role"):
        _ = trace["pattern"]


def test_a_trace_prints_in_five_lines_and_cannot_be_changed_through_its_manifest(trace):
    assert len(repr(trace).splitlines()) == 5
    assert isinstance(trace, Trace)
    trace.manifest["seed"] = 99
    assert trace.seed == 4


def test_tokens_of_a_trace_spell_its_text(trace):
    model = load("tiny/dream")
    assert trace.prompt == "the anchor drifts"
    pieces = "".join(trace.token(int(i)) for i in trace.canvas[-1][trace.answer])
    assert pieces.strip() == trace.text.strip()
    assert trace.token(model.mask_id) == "<|mask|>"


def test_progress_runs_from_nothing_to_all(trace):
    assert trace.progress.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_a_trace_is_asked_for_its_fields_like_a_mapping(trace):
    assert "canvas" in trace and "pattern" not in trace and 3 not in trace
    assert list(trace) == list(trace.fields) == trace._ipython_key_completions_()


def test_a_trace_says_what_was_measured():
    model, decoding = load("tiny/llada"), aw.decoding.LowConfidence(2)
    measured = repr(aw.run(model, "the anchor", decoding)).splitlines()[2]
    assert measured.startswith("  measured  received, queries, hidden_rows, entropy")
    assert measured.endswith("(20 fields)")
    one = aw.run(model, "the anchor", decoding, probes=[aw.probes.entropy()])
    assert "  measured  entropy (1 field)\n" in repr(one)
    assert "  measured  nothing\n" in repr(aw.run(model, "the anchor", decoding, probes=()))


def test_a_field_says_that_it_is_stored_as_float16(tmp_path, trace):
    says = trace["received"].attrs["long_name"]
    assert "stored as float16, off by at most 5e-4 of it or 3e-8" in says
    assert "received(dtype='float32') keeps all" in says
    assert trace["received"].dtype == np.float32
    trace.write(tmp_path / "a.trace")
    held = aw.read(tmp_path / "a.trace")["received"]
    assert held.dtype == np.float16
    gap = np.abs(held.values.astype(np.float64) - trace["received"].values)
    assert np.nanmax(gap - np.maximum(5e-4 * trace["received"].values, 3e-8)) <= 0
    whole = [aw.probes.received(dtype="float32")]
    kept = aw.run(load("tiny/dream"), "the anchor", aw.decoding.LowConfidence(2), probes=whole)
    kept.write(tmp_path / "b.trace")
    assert aw.read(tmp_path / "b.trace")["received"].dtype == np.float32
    assert "float16" not in kept["received"].attrs["long_name"]


def test_a_tilde_is_the_home_folder(tmp_path, trace, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    trace.write("~/a.trace")
    assert aw.read("~/a.trace").digest() == trace.digest()
    run = aw.run(load("tiny/dream"), "the", aw.decoding.LowConfidence(2), out="~/b.trace")
    assert aw.read(tmp_path / "b.trace").digest() == run.digest()
    assert find_damage("~/a.trace") == [] and extent("~/a.trace") == extent(tmp_path / "a.trace")


@pytest.mark.parametrize("fork", ["here", {}, {"step": "2"}])
def test_a_foreign_fork_is_refused(tmp_path, trace, fork):
    odd = Trace(trace.dataset(), trace.manifest | {"fork": fork})
    odd.write(tmp_path / "a.trace")
    with pytest.raises(TraceError, match=r"the manifest's fork is .*, without a step"):
        aw.read(tmp_path / "a.trace")
