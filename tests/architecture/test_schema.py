"""The trace schema stands once: what is derived from it is current and true."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch.explorer.contract import (
    PACKETS,
    DamagedHeader,
    Header,
    HeaderModel,
    Measure,
    Token,
)
from anchorwatch.explorer.encode import unpack
from anchorwatch.explorer.open import OpenedTrace, from_memory
from anchorwatch.explorer.run_data import Run
from anchorwatch.trace.schema import MANIFEST, MANIFEST_MODEL, RUN_FIELDS
from anchorwatch.trace.trace import make_trace

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trace():
    probes = [*aw.probes.DEFAULT, aw.probes.region_flow(), aw.probes.pattern(steps=[1])]
    decoding = aw.decoding.LowConfidence(length=6, temperature=0.5)
    prompt, regions = "the anchor of the ship", {"ship": "the ship"}
    model = aw.load("tiny/llada")
    return aw.run(model, prompt, decoding, probes=probes, regions=regions, seed=1)


def test_the_types_of_the_page_are_current():
    script = ROOT / "web" / "make_schema.py"
    done = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert done.returncode == 0, "web/src/lib/schema.ts is stale: run python web/make_schema.py"


def test_a_run_writes_the_fields_of_the_schema(trace):
    editing = aw.decoding.TokenEditing(4, block=4)
    rewriting = aw.run(aw.load("tiny/llada"), "the anchor", editing, probes=())
    keeping = aw.decoding.LowConfidence(4, block=2, cache=aw.caches.dual())
    cached = aw.run(aw.load("tiny/llada"), "the anchor", keeping, probes=())
    for name, field in RUN_FIELDS.items():
        array = next(each for each in (trace, rewriting, cached) if name in each)[name]
        assert array.dims == field.dims
        assert array.dtype == np.dtype(field.dtype)
        assert array.attrs == field.attrs
    for fields, names in ((trace.manifest, MANIFEST), (trace.manifest["model"], MANIFEST_MODEL)):
        assert {name: type(fields[name]) for name in names} == names


def test_every_planned_field_is_written_as_planned(trace):
    decoding = aw.decoding.LowConfidence(length=6, temperature=0.5)
    planned = aw.plan(
        aw.load("tiny/llada"),
        "the anchor of the ship",
        decoding,
        probes=[*aw.probes.DEFAULT, aw.probes.region_flow(), aw.probes.pattern(steps=[1])],
        regions={"ship": "the ship"},
    ).fields
    assert {field.name for field in planned} == set(trace.fields) - RUN_FIELDS.keys()
    for field in planned:
        assert trace[field.name].shape == field.sizes
        assert trace[field.name].attrs == field.attrs


def test_an_array_that_is_not_in_the_schema_is_refused(trace):
    arrays = {name: trace[name].values for name in RUN_FIELDS if name in trace}
    given = {"measured": {}, "coordinates": {}, "manifest": trace.manifest}
    assert make_trace(**arrays, **given).digest() == trace.digest()
    with pytest.raises(TypeError, match="no run field is called 'colour'"):
        make_trace(**arrays, **given, colour=arrays["region"])
    with pytest.raises(TypeError, match="a trace needs region"):
        make_trace(**arrays | {"region": None}, **given)


def test_the_header_is_as_the_contract_says(trace):
    header = Run(from_memory(trace)).header()
    assert header.keys() == Header.__annotations__.keys()
    assert header["model"].keys() == HeaderModel.__annotations__.keys()
    for token in header["tokens"]:
        assert Token.__required_keys__ <= token.keys() <= Token.__annotations__.keys()
    for measure in header["measures"]:
        assert Measure.__required_keys__ <= measure.keys() <= Measure.__annotations__.keys()
    damaged = Run(OpenedTrace("lost", None, ("it is gone",))).header()
    assert damaged.keys() == DamagedHeader.__annotations__.keys()


def test_packets_hold_the_arrays_of_the_contract(trace):
    run = Run(from_memory(trace))
    more = ["tile-0-1-0", "part-0-mean-0-0", "row-1-0-0", "map-1-0-0"]
    kinds = set()
    for key in (*run.keys(), *more):
        arrays, _ = unpack(run.packet(key))
        kind = key.partition("-")[0]
        kinds.add(kind)
        expected = {name: np.dtype(dtype) for name, dtype in PACKETS[kind].items()}
        assert {name: array.dtype for name, array in arrays.items()} == expected, key
    assert kinds == PACKETS.keys() - {"candidates"}  # of a live run: tests/explorer/test_live.py
