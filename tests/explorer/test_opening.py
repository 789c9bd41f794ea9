"""A damaged or foreign trace: what is damaged is named, the rest is shown, nothing is made up."""

import contextlib
import json
import shutil

import numpy as np
import pytest

from anchorwatch import commits
from anchorwatch.errors import TraceError
from anchorwatch.explorer import packets
from anchorwatch.explorer.opening import given, opened
from anchorwatch.explorer.tiles import MissingError, Run
from anchorwatch.trace import read
from shown import small


@pytest.fixture
def path(tmp_path):
    entropy = np.random.default_rng(0).normal(size=(8, 3, 4)).astype(np.float32)
    more = {"entropy": (("step", "layer", "head"), entropy)}
    return small(more=more).write(tmp_path / "secret-folder" / "a.trace")


@pytest.fixture(autouse=True)
def folder(tmp_path):
    (tmp_path / "secret-folder").mkdir()


def spoil(file):
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 0x40
    file.write_bytes(bytes(raw))


def chunk(path, field):
    return next(file for file in sorted((path / field).iterdir()) if file.name.startswith("c"))


def test_a_whole_trace_is_whole(path):
    held = opened(path)
    assert (held.name, held.damage, held.lost) == ("a.trace", (), ())
    assert held.trace.fields == read(path).fields


@pytest.mark.parametrize("how", ["flip", "cut", "delete", "link"])
def test_a_damaged_field_is_named_and_the_rest_shown(path, how, tmp_path):
    file = chunk(path, "received")
    if how == "flip":
        spoil(file)
    elif how == "cut":
        file.write_bytes(file.read_bytes()[:-3])
    else:
        file.unlink()
    if how == "link":
        (tmp_path / "elsewhere").write_bytes(b"x")
        file.symlink_to(tmp_path / "elsewhere")
    held = opened(path)
    assert held.lost == ("received",)
    assert "received" in held.damage[0]
    with pytest.raises(TraceError):
        read(path)
    run = Run(held)
    told = run.header()
    assert told["layers"] == []
    assert "received is damaged and not shown" in told["left_out"]
    assert packets.unpack(run.packet("frames"))[0]["canvas"].shape == (9, 14)
    assert packets.unpack(run.packet("measure-0"))[0]["values"].shape == (8, 3, 4)
    with pytest.raises(MissingError, match="no received attention"):
        run.packet("layer-0")


@pytest.mark.parametrize("field", ["canvas", "role", "region", "committed_at"])
def test_without_the_canvas_there_is_nothing_to_show(path, field):
    spoil(chunk(path, field))
    run = Run(opened(path))
    assert run.opened.trace is None
    told = run.header()
    assert told["name"] == "a.trace"
    assert field in " ".join(told["damage"])
    with pytest.raises(MissingError, match="cannot be shown"):
        run.packet("frames")


@pytest.mark.parametrize("file", ["zarr.json", "COMMIT.json"])
def test_without_record_or_metadata_nothing_is_trusted(path, file):
    spoil(path / file)
    assert opened(path).trace is None
    assert file in " ".join(opened(path).damage)
    (path / file).unlink()
    assert opened(path).trace is None


def test_a_file_that_was_added_is_said(path):
    (path / "entropy" / "c.9.9.9").write_bytes(b"x")
    held = opened(path)
    assert held.lost == ("entropy",)
    (path / "entropy" / "c.9.9.9").unlink()
    (path / "more").mkdir()
    assert opened(path).damage == ()  # an empty folder holds no byte


def test_what_is_said_never_names_the_folders_above(path):
    spoil(chunk(path, "received"))
    spoil(path / "zarr.json")
    assert "secret-folder" not in " ".join(opened(path).damage)
    shutil.rmtree(path)
    assert "secret-folder" not in " ".join(opened(path).damage)


@pytest.mark.parametrize(
    "kind", ["empty", "text", "zarr2", "foreign", "deep", "huge", "twice", "wide", "blank"]
)
def test_a_foreign_folder_says_so(tmp_path, kind):
    place = tmp_path / "b.trace"
    place.mkdir()
    foreign = {
        "text": ("zarr.json", "hello"),
        "zarr2": (".zgroup", json.dumps({"zarr_format": 2})),
        "foreign": ("zarr.json", json.dumps({"zarr_format": 3, "node_type": "group"})),
        "deep": ("zarr.json", "[" * 100_000),
        "huge": ("zarr.json", '{"a": ' + "9" * 5000 + "}"),
        "twice": ("zarr.json", '{"zarr_format": 3, "zarr_format": 2, "node_type": "group"}'),
        "wide": ("zarr.json", '{"zarr_format": 3, "a": [' + "1," * 100_000 + "1]}"),
        "blank": ("zarr.json", ""),
    }
    if kind in foreign:
        name, text = foreign[kind]
        (place / name).write_text(text)
    held = opened(place)
    assert held.trace is None
    assert held.damage
    assert Run(held).header()["damage"]


def rewritten(path, edit):
    """A trace whose metadata were changed, with a record that agrees: sealed by somebody else."""
    root = json.loads((path / "zarr.json").read_bytes())
    edit(root["consolidated_metadata"]["metadata"], root["attributes"])
    (path / "zarr.json").write_text(json.dumps(root))
    commits.commit(path)


FOREIGN = {
    "other dimensions": lambda a, _: a["received"].update(
        dimension_names=["step", "head", "layer", "group", "key"]
    ),
    "no dimension names": lambda a, _: a["received"].pop("dimension_names"),
    "float64": lambda a, _: a["received"].update(data_type="float64"),
    "big-endian": lambda a, _: a["received"].update(
        codecs=[{"name": "bytes", "configuration": {"endian": "big"}}]
    ),
    "objects": lambda a, _: a["received"].update(data_type="object"),
    "an unknown kind": lambda a, _: a["received"].update(data_type="bits"),
    "10^18 cells": lambda a, _: a["received"].update(shape=[10**9, 10**9, 1, 1, 1]),
    "other lengths": lambda a, _: a["received"].update(shape=[8, 3, 4, 3, 99]),
    "groups within groups": lambda a, _: a.update(
        {"/".join("g" * n): {"zarr_format": 3, "node_type": "group"} for n in range(1, 1001)}
    ),
    "many attributes": lambda a, _: a["entropy"]["attributes"].update(
        {f"a{n}": "x" for n in range(100_000)}
    ),
    "parts that are none": lambda _, b: retold(b, lambda m: m["model"].update(parts=[{"name": 3}])),
    "layers without end": lambda _, b: retold(b, lambda m: m["model"].update(layers=10**9)),
    "no layers": lambda _, b: retold(b, lambda m: m["model"].update(layers=-1)),
    "regions that are no words": lambda _, b: retold(b, lambda m: m.update(regions=[1, None])),
    "windows that are none": lambda _, b: retold(b, lambda m: m["model"].update(windows=["x"])),
    "tokens that are no words": lambda _, b: retold(b, lambda m: m.update(tokens={"1": 5})),
}


def retold(attributes, edit):
    edit(attributes["manifest"])


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_somebody_else_sealed_is_shown_or_said_and_never_another_error(path, kind):
    """Whatever the metadata say: a header, and packets or sentences; nothing is raised else."""
    rewritten(path, FOREIGN[kind])
    run = Run(opened(path))
    told = run.header()
    json.dumps(told, allow_nan=False)
    if run.opened.trace is None:
        assert told["damage"]
        return
    for key in ("frames", "layer-0", "tile-0-mean-0", "row-0-0-mean", "null-0-0", "part-0-0-0-0"):
        with contextlib.suppress(MissingError):
            packets.unpack(run.packet(key))


def test_many_damaged_files_are_counted(path, monkeypatch):
    for file in list((path / "received").iterdir()) + list((path / "entropy").iterdir()):
        spoil(file)
    monkeypatch.setattr("anchorwatch.explorer.opening.MOST_SAID", 2)
    held = opened(path)
    assert len(held.damage) == 3
    assert "more" in held.damage[-1]
    assert "anchorwatch verify" in held.damage[-1]


def test_a_run_that_goes_while_it_is_looked_at(tmp_path):
    from shown import large

    path = large(steps=32, length=1024, layers=2, heads=4).write(tmp_path / "c.trace")
    run = Run(opened(path))
    assert run.packet("layer-0")
    shutil.rmtree(path)
    with pytest.raises(MissingError, match="has gone"):
        run.packet("layer-1")
    assert run.packet("layer-0")


def test_a_field_of_another_shape_is_left_out():
    trace = small()
    held = trace.dataset()
    turned = held["received"].transpose("layer", "step", "head", "group", "key")
    other = type(trace)(held.assign(received=turned), trace.manifest)
    run = Run(given(other))
    told = run.header()
    assert told["layers"] == []
    assert "received cannot be shown" in " ".join(told["damage"])
