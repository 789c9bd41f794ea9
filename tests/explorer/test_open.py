"""A damaged or foreign trace: what is damaged is named, the rest is shown, nothing is made up."""

import contextlib
import json
import shutil

import numpy as np
import pytest

from anchorwatch.errors import TraceError
from anchorwatch.explorer import encode
from anchorwatch.explorer.open import from_memory, open_for_viewing
from anchorwatch.explorer.run_data import MissingError, Run
from anchorwatch.trace import atomic_io
from anchorwatch.trace.trace import ROLES, read
from synthetic_traces import planted, random_maps, small_trace


@pytest.fixture
def path(tmp_path):
    entropy = np.random.default_rng(0).normal(size=(8, 3, 4)).astype(np.float32)
    more = {"entropy": (("step", "layer", "head"), entropy)}
    return small_trace(more=more).write(tmp_path / "secret-folder" / "a.trace")


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
    held = open_for_viewing(path)
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
    held = open_for_viewing(path)
    assert held.lost == ("received",)
    assert "received" in held.damage[0]
    with pytest.raises(TraceError):
        read(path)
    run = Run(held)
    told = run.header()
    assert told["layers"] == []
    assert "received is damaged and not shown" in told["left_out"]
    assert encode.unpack(run.packet("frames"))[0]["canvas"].shape == (9, 14)
    assert encode.unpack(run.packet("measure-0"))[0]["values"].shape == (8, 3, 4)
    with pytest.raises(MissingError, match="no received attention"):
        run.packet("layer-0")


def told_of(path):
    """(header, frames, layer 1) of a run: what the page begins with."""
    run = Run(open_for_viewing(path))
    read = [encode.unpack(run.packet(key))[0] for key in ("frames", "layer-1")]
    return run.header(), *read


UNNEEDED = ("narrow", "mask_chosen", "logprob", "queries", "commit_top_key")
NEEDED = ("canvas", "role", "committed_at", "region")


@pytest.mark.parametrize("field", [*UNNEEDED, *NEEDED])
def test_one_damaged_field_takes_nothing_else_away(path, field):
    told, frames, layer = told_of(path)
    spoil(chunk(path, field))
    hurt, hurt_frames, hurt_layer = told_of(path)
    assert field in hurt["damage"][0]
    assert any(said.startswith(f"{field} is damaged and ") for said in hurt["left_out"])
    changed = {"damage", "lost", "left_out"} | (
        {"digest", "tokens"} if field == "canvas" else set()
    )
    assert {name: told[name] for name in told if name not in changed} == {
        name: hurt[name] for name in hurt if name not in changed
    }
    for name in frames:
        if name != field or field in ("role", "committed_at"):  # those follow from the rest
            np.testing.assert_array_equal(hurt_frames[name], frames[name])
    for name in layer:
        np.testing.assert_array_equal(hurt_layer[name], layer[name])


def test_what_does_not_follow_from_the_rest_is_absent(path):
    for field in ("canvas", "logprob", "region"):
        spoil(chunk(path, field))
    told, frames, _ = told_of(path)
    assert (told["digest"], told["tokens"]) == ("", [])
    assert (frames["canvas"] == -1).all()
    assert (frames["region"] == -1).all()
    assert np.isnan(frames["logprob"]).all()


@pytest.mark.parametrize("kind", ["mdm", "arm"])
def test_roles_and_commits_follow_from_the_canvas(tmp_path, kind):
    maps = random_maps(np.random.default_rng(1), (5, 3, 2, 9), causal=kind == "arm")
    seen = "causal" if kind == "arm" else "bidirectional"
    path = planted(maps, prompt=4, visibility=seen).write(tmp_path / "c.trace")
    _, frames, layer = told_of(path)
    for field in ("role", "committed_at"):
        spoil(chunk(path, field))
    told, hurt_frames, hurt_layer = told_of(path)
    assert "special tokens as prompt" in " ".join(told["left_out"])
    for name in frames:
        np.testing.assert_array_equal(hurt_frames[name], frames[name])
    for name in layer:
        np.testing.assert_array_equal(hurt_layer[name], layer[name])


def test_without_regions_keys_are_told_apart_by_roles(tmp_path):
    regions = {"gold": range(2), "other": range(2, 4)}
    groups = ("all", "gold")
    path = small_trace(regions=regions, groups=groups).write(tmp_path / "c.trace")
    assert told_of(path)[0]["class_kind"] == "region"
    spoil(chunk(path, "region"))
    told, _, layer = told_of(path)
    assert (told["class_kind"], told["classes"]) == ("role", list(ROLES))
    assert layer["flow"].shape == (8, 2, len(ROLES))
    tile = encode.unpack(Run(open_for_viewing(path)).packet("tile-1-mean-1"))[0]
    assert (tile["codes"] > 0).all()  # who asks is not known any more, what they gave is


def test_without_canvas_and_roles_there_is_nothing_to_show(path):
    for field in ("canvas", "role"):
        spoil(chunk(path, field))
    run = Run(open_for_viewing(path))
    assert run.opened.trace is None
    told = run.header()
    assert told["name"] == "a.trace"
    assert "canvas/" in told["damage"][0]
    assert "nothing to show" in told["damage"][-1]
    with pytest.raises(MissingError, match="cannot be shown"):
        run.packet("frames")


@pytest.mark.parametrize("file", ["zarr.json", "COMMIT.json"])
def test_without_record_or_metadata_nothing_is_trusted(path, file):
    spoil(path / file)
    assert open_for_viewing(path).trace is None
    assert file in " ".join(open_for_viewing(path).damage)
    (path / file).unlink()
    assert open_for_viewing(path).trace is None


def test_a_file_that_was_added_is_said(path):
    (path / "entropy" / "c.9.9.9").write_bytes(b"x")
    held = open_for_viewing(path)
    assert held.lost == ("entropy",)
    (path / "entropy" / "c.9.9.9").unlink()
    (path / "more").mkdir()
    assert open_for_viewing(path).damage == ()  # an empty folder holds no byte


def test_what_is_said_never_names_the_folders_above(path):
    spoil(chunk(path, "received"))
    spoil(path / "zarr.json")
    assert "secret-folder" not in " ".join(open_for_viewing(path).damage)
    shutil.rmtree(path)
    assert "secret-folder" not in " ".join(open_for_viewing(path).damage)


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
    held = open_for_viewing(place)
    assert held.trace is None
    assert held.damage
    assert Run(held).header()["damage"]


def rewritten(path, edit):
    """A trace whose metadata were changed, with a record that agrees: sealed by somebody else."""
    root = json.loads((path / "zarr.json").read_bytes())
    edit(root["consolidated_metadata"]["metadata"], root["attributes"])
    (path / "zarr.json").write_text(json.dumps(root))
    atomic_io.commit(path)


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
    run = Run(open_for_viewing(path))
    told = run.header()
    json.dumps(told, allow_nan=False)
    if run.opened.trace is None:
        assert told["damage"]
        return
    for key in ("frames", "layer-0", "tile-0-mean-0", "row-0-0-mean", "null-0-0", "part-0-0-0-0"):
        with contextlib.suppress(MissingError):
            encode.unpack(run.packet(key))


ODD = {
    "of another kind": lambda a, name: a[name].update(data_type="float64"),
    "of no kind": lambda a, name: a[name].update(data_type="bits"),
    "too large": lambda a, name: a[name].update(shape=[10**18]),
    "over another axis": lambda a, name: a[name].update(dimension_names=["frame"]),
    "without names": lambda a, name: a[name].pop("dimension_names"),
    "not there": lambda a, name: a.pop(name),
    "a group": lambda a, name: a.update({name: {"zarr_format": 3, "node_type": "group"}}),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("field", ["narrow", "logprob"])
def test_one_foreign_field_takes_nothing_else_away(path, kind, field):
    wanted = told_of(path)[2]
    rewritten(path, lambda arrays, _: ODD[kind](arrays, field))
    told, _, layer = told_of(path)
    assert any(field in said for said in told["damage"])
    assert f"{field} is damaged and not shown" in told["left_out"]
    assert told["layers"] == [0, 1, 2]
    for name in layer:
        np.testing.assert_array_equal(layer[name], wanted[name])


PARTS = {
    "region_flow": ("not over steps, layers, heads and regions", "flow"),
    "sink_received": ("not over steps, layers, heads and groups", "added"),
    "pattern": ("not over picks, queries and keys", "maps"),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_is_not_as_we_write_it_goes_alone(name):
    says, key = PARTS[name]
    odd = np.zeros((8, 2), dtype=np.float32)
    run = Run(from_memory(small_trace(more={name: (("step", "odd"), odd)})))
    told = run.header()
    assert any(f"{name} cannot be shown: it is {says}" in said for said in told["damage"])
    assert not told[key]
    assert told["layers"] == [0, 1, 2]
    assert run.packet("layer-0")


def test_a_measure_of_other_layers_is_named():
    trace = small_trace(
        more={"entropy": (("step", "layer", "head"), np.ones((8, 3, 4), np.float32))}
    )
    manifest = trace.manifest
    manifest["model"]["layers"] = 2
    told = Run(from_memory(type(trace)(trace.dataset(), manifest))).header()
    assert told["measures"] == []
    said = " ".join(told["damage"])
    assert "entropy cannot be shown: it is of 3 layers and 4 heads, not of all" in said
    assert "received cannot be shown: it is of (8, 3, 4, 3, 14)" in said


def test_shares_of_other_positions_are_named():
    trace = small_trace()
    cut = trace.dataset().isel(key=slice(0, 9))
    run = Run(from_memory(type(trace)(cut, trace.manifest)))
    told = run.header()
    assert told["layers"] == []
    assert "(8, 3, 4, 3, 9) step, layer, head, group, key, the run of (8, 3, 4, 3, 14)" in " ".join(
        told["damage"]
    )


def test_many_damaged_files_are_counted(path, monkeypatch):
    for file in list((path / "received").iterdir()) + list((path / "entropy").iterdir()):
        spoil(file)
    monkeypatch.setattr("anchorwatch.explorer.open.MOST_SAID", 2)
    held = open_for_viewing(path)
    assert len(held.damage) == 3
    assert "more" in held.damage[-1]
    assert "anchorwatch verify" in held.damage[-1]


def test_a_run_that_goes_while_it_is_looked_at(tmp_path):
    from synthetic_traces import large_trace

    path = large_trace(steps=32, length=1024, layers=2, heads=4).write(tmp_path / "c.trace")
    run = Run(open_for_viewing(path))
    assert run.packet("layer-0")
    shutil.rmtree(path)
    with pytest.raises(MissingError, match="has gone"):
        run.packet("layer-1")
    assert run.packet("layer-0")


def test_a_field_of_another_shape_is_left_out():
    trace = small_trace()
    held = trace.dataset()
    turned = held["received"].transpose("layer", "step", "head", "group", "key")
    other = type(trace)(held.assign(received=turned), trace.manifest)
    run = Run(from_memory(other))
    told = run.header()
    assert told["layers"] == []
    assert "received cannot be shown" in " ".join(told["damage"])
