"""Traces under attack: killed writers, damaged files, hostile metadata. Old or new, never garbage.

Run as a program, this file is the writer that gets killed: it forks a child for every point at
which a child can die, so that the imports are paid once.
"""

import functools
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import anchorwatch as aw
from anchorwatch.errors import TraceError
from anchorwatch.trace import atomic_io, store
from anchorwatch.trace.store import (
    BLOCK_STEPS,
    Partial,
    Spec,
    extent,
    find_damage,
    open_store,
    write,
)

STEPS = 13
KILLED, REFUSED, ABSORBED = 9, 1, 3
ATTRS = {"schema": "anchorwatch/trace", "schema_version": 1, "manifest": {"seed": 4}}


def small(steps=11):
    """One variable of each layout: sharded blocks of steps, whole, and text."""
    received = np.linspace(0, 1, steps * 2 * 3 * 700, dtype=np.float32).reshape(steps, 2, 3, 700)
    dataset = xr.Dataset(
        {
            "received": (("step", "layer", "group", "key"), received, {"units": "share"}),
            "queries": (("step", "group"), np.arange(steps * 3).reshape(steps, 3)),
        },
        coords={"group": ["all", "masked", "written"]},
        attrs=ATTRS,
    )
    dataset["received"].encoding["dtype"] = "float16"
    return dataset


def large():
    """Every layout and dtype that may come."""
    rng = np.random.default_rng(0)
    dataset = small()
    dataset["received"].values[3, 1] = np.nan
    flow = rng.standard_normal((11, 2, 4, 200)).astype(np.float32)
    flow[0, 0, 0, :2] = np.inf, -0.0
    keys = np.full((11, 5), -1, np.int32)
    keys[2:] = rng.integers(0, 9, (9, 5))
    return dataset.assign(
        flow=(("step", "layer", "head", "key_region"), flow, {"units": "nats", "long_name": "f"}),
        top_key=(("step", "rank"), keys, {"missing": np.int64(-1)}),
        chosen=(("position",), np.array([True, False, True])),
        absent=(("position",), np.full(3, -1), {"missing": -1}),
        scale=((), np.float64(0.1)),
        empty=(("step", "peak"), np.zeros((11, 0), np.float32)),
    ).assign_coords(label=("position", ["é", "</script>", ""]), rank=np.arange(5, dtype=np.int8))


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in files(folder)}


@pytest.fixture
def trace(tmp_path):
    return write(tmp_path / "a.trace", large())


# what is written is read


def test_what_was_written_is_read(trace):
    held, put = open_store(trace), large()
    assert set(held.variables) == set(put.variables)
    for name in put.variables:
        stored = put[name].astype("float16", keep_attrs=True) if name == "received" else put[name]
        xr.testing.assert_identical(held[name], stored)
        assert held[name].dtype == stored.dtype, name
    assert np.signbit(held["flow"].values[0, 0, 0, 1]), "minus zero is not the fill value"
    assert held.attrs == ATTRS
    assert held["received"].sel(group="masked").shape == (11, 2, 700)


def test_a_read_trace_is_written_again_byte_for_byte(trace, tmp_path):
    again = write(tmp_path / "b.trace", open_store(trace))
    assert contents(again) == contents(trace)


def test_a_file_is_a_block_of_steps_and_a_chunk_one_step_of_one_layer(trace):
    import zarr

    group = zarr.open_group(trace, mode="r")
    assert group["received"].shards == (BLOCK_STEPS, 2, 3, 700)
    assert group["received"].chunks == (1, 1, 3, 700)
    assert group["flow"].chunks == (BLOCK_STEPS, 2, 4, 200), "chunks under 4 KiB are not worth it"
    assert group["queries"].chunks == (11, 3), "a step variable under 64 KiB is one file"
    assert [p.name for p in files(trace / "received")] == ["c.0.0.0.0", "c.1.0.0.0", "zarr.json"]
    assert (trace / "absent" / "c.0").is_file(), "a file that is not there is always damage"
    for _, array in group.arrays():
        assert "_FillValue" not in array.attrs
        assert array.compressors[0].to_dict()["configuration"] == {"level": 3, "checksum": True}
    assert np.isnan(group["flow"].fill_value)
    assert group["top_key"].fill_value == -1
    assert group["queries"].fill_value == 0


PLAIN = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"anchorwatch", "torch", "transformers"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
import xarray
data = xarray.open_zarr(sys.argv[1])
assert data["received"].dims == ("step", "layer", "group", "key")
assert data["received"].attrs == {"units": "share"}
assert data["received"].dtype == "float16" and data["received"].isnull().sum() == 3 * 700
assert data["flow"].attrs == {"units": "nats", "long_name": "f"}
assert data["top_key"].dtype == "int32" and data["top_key"].values.min() == -1
assert data["top_key"].attrs == {"missing": -1}
assert data["chosen"].dtype == bool
assert list(data["group"].values) == ["all", "masked", "written"]
assert set(data.coords) == {"group", "label", "rank"}
assert data.attrs["manifest"] == {"seed": 4}
assert not {"anchorwatch", "torch"} & sys.modules.keys()
print("read")
"""


def test_plain_xarray_opens_it_without_us_and_without_a_warning(trace):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PLAIN, trace], capture_output=True, text=True
    )
    assert done.stdout == "read\n", done.stderr


def test_large_variables_wait_and_a_file_that_goes_meanwhile_is_not_read_as_nan(tmp_path):
    big = np.zeros((40, 7000), np.float32)
    trace = write(tmp_path / "a.trace", small(40).assign(big=(("step", "position"), big)))
    held = open_store(trace)
    assert not held["big"].variable._in_memory
    assert held["queries"].variable._in_memory
    assert held["big"][39, 3].values == 0
    (trace / "big" / "c.4.0").unlink()
    with pytest.raises(TraceError, match=r"big/c\.4\.0 has gone since the trace was opened"):
        _ = held["big"].values


def test_numbers_that_do_not_fit_are_refused_and_nothing_is_left(tmp_path):
    dataset = small()
    dataset["received"].values[0] = 70000
    with pytest.raises(
        TraceError, match="received holds numbers that float16 cannot: store it as float32"
    ):
        write(tmp_path / "a.trace", dataset)
    dataset = small(100)
    dataset["queries"].encoding["dtype"] = "int8"
    with pytest.raises(TraceError, match="queries holds numbers that int8 cannot"):
        write(tmp_path / "a.trace", dataset)
    for values in (np.array([{}, 1], object), np.array([1 + 1j]), np.array(["2020"], "M8[D]")):
        with pytest.raises(TraceError, match=r"a trace holds bool, string, int8"):
            write(tmp_path / "a.trace", xr.Dataset({"x": ("a", values)}))
    assert list(tmp_path.iterdir()) == []


def test_the_loser_of_a_race_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    rename = os.rename

    def late(source, target):
        Path(target).mkdir()
        (Path(target) / "theirs").touch()
        rename(source, target)

    monkeypatch.setattr("os.rename", late)
    with pytest.raises(TraceError, match="exists already"):
        write(tmp_path / "a.trace", small())
    assert [path.name for path in tmp_path.iterdir()] == ["a.trace"]
    assert [path.name for path in (tmp_path / "a.trace").iterdir()] == ["theirs"]


# damage


def hurt(path):
    """Each way to hurt a file, undone afterwards."""
    whole = path.read_bytes()
    rng = random.Random(path.name)
    for offset in {0, 1, len(whole) // 2, len(whole) - 1, rng.randrange(len(whole))}:
        flipped = bytearray(whole)
        flipped[offset] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        yield "flip", offset
    for length in (0, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        yield "cut", length
    path.write_bytes(whole + b"\n")
    yield "grow", len(whole)
    path.unlink()
    yield "delete", 0
    path.write_bytes(whole)


def refuses_every_hurt(trace, reader):
    assert find_damage(trace) == []
    for path in files(trace):
        name = str(path.relative_to(trace))
        for how in hurt(path):
            said = find_damage(trace)
            assert len(said) == 1, (name, how, said)
            assert said[0].startswith(f"{name} "), (how, said)
            with pytest.raises(TraceError):
                reader(trace)
    assert find_damage(trace) == []
    assert reader(trace)


def test_every_hurt_to_every_file_is_named_and_refused(trace):
    assert len(files(trace)) > 20
    refuses_every_hurt(trace, open_store)


def test_every_hurt_to_the_trace_of_a_run_is_named_and_refused(tmp_path):
    model, decoding = aw.load("tiny/llada"), aw.decoding.LowConfidence(length=4, steps=2)
    trace = aw.run(model, "the anchor", decoding, probes=[]).write(tmp_path / "a.trace")
    assert len(files(trace)) > 12
    refuses_every_hurt(trace, aw.read)


def test_every_byte_of_the_commit_record_counts(tmp_path):
    trace = write(tmp_path / "a.trace", xr.Dataset({"x": ("a", [1])}, attrs=ATTRS))
    record = trace / "COMMIT.json"
    whole = record.read_bytes()
    for offset in range(len(whole)):
        flipped = bytearray(whole)
        flipped[offset] ^= 1 << offset % 8
        record.write_bytes(flipped)
        assert find_damage(trace)[0].startswith("COMMIT.json is damaged"), offset


def test_all_damage_is_listed_and_the_first_is_in_the_error(trace, tmp_path):
    (trace / "extra.txt").write_text("mine")
    (trace / "flow" / "zarr.json").unlink()
    (trace / "top_key" / "c.0.0").write_bytes(b"")
    (trace / "chosen" / "c.0").rename(tmp_path / "elsewhere")
    (trace / "chosen" / "c.0").symlink_to(tmp_path / "elsewhere")
    (trace / "scale" / "a\x1b[31m").mkdir()
    os.mkfifo(trace / "pipe")
    assert find_damage(trace) == [
        "flow/zarr.json is missing",
        "chosen/c.0 is a link or a folder, not a file",
        f"top_key/c.0.0 was cut short: 0 bytes instead of {len(contents_of_top_key(tmp_path))}",
        "extra.txt is not in the commit record: it was added later, remove it",
        "pipe is not in the commit record: it was added later, remove it",
        r"'scale/a\x1b[31m' is not in the commit record: it was added later, remove it",
    ]
    with pytest.raises(
        TraceError, match=r"damaged, copy it again: flow/zarr\.json is missing \(and 5 more"
    ):
        open_store(trace)


def contents_of_top_key(tmp_path):
    return contents(write(tmp_path / "b.trace", large()))["top_key/c.0.0"]


def test_swapped_files_are_damage(trace):
    a, b = trace / "received" / "c.0.0.0.0", trace / "received" / "c.1.0.0.0"
    one, two = a.read_bytes(), b.read_bytes()
    a.write_bytes(two), b.write_bytes(one)
    assert [said.split()[0] for said in find_damage(trace)] == [
        "received/c.0.0.0.0",
        "received/c.1.0.0.0",
    ]


def test_a_store_without_a_record_or_a_folder(trace, tmp_path):
    (trace / "COMMIT.json").unlink()
    assert find_damage(trace) == [
        "COMMIT.json is missing: the trace was never finished, or not copied whole"
    ]
    with pytest.raises(TraceError, match=r"COMMIT\.json is missing"):
        open_store(trace)
    assert "there is no trace at" in find_damage(tmp_path / "none")[0]
    assert "a trace is a folder" in find_damage(files(trace)[0])[0]
    with pytest.raises(TraceError, match="cannot be read as a trace"):
        open_store(files(trace)[0])


# hostile metadata, with a commit record that agrees


def rewrite(trace, edit):
    path = trace / "zarr.json"
    root = json.loads(path.read_bytes())
    edit(root)
    path.write_text(json.dumps(root))
    atomic_io.commit(trace)


def arrays_of(root):
    return root["consolidated_metadata"]["metadata"]


@pytest.mark.parametrize(
    ("shape", "chunk", "says"),
    [
        ([10**9, 10**6], [1, 1], "declares 4000000000000000 bytes, more than the 68719476736"),
        ([2**62, 4], [1, 1], "flow declares"),
        ([3, 3], [2**40, 1], "flow declares"),
        ([-1, 3], [1, 1], r"the shape \[-1, 3\]"),
        ([True, 3], [1, 1], "the shape"),
        ([1e300, 3], [1, 1], "the shape"),
        (None, [1], "cannot be read as a trace"),
    ],
)
def test_declared_sizes_are_bounded_before_anything_is_read(trace, shape, chunk, says, monkeypatch):
    def edit(root):
        arrays_of(root)["flow"]["shape"] = shape
        arrays_of(root)["flow"]["chunk_grid"]["configuration"]["chunk_shape"] = chunk

    rewrite(trace, edit)
    monkeypatch.setattr("xarray.open_zarr", lambda *_, **__: pytest.fail("Zarr saw it"))
    for check in (True, False):
        with pytest.raises(TraceError, match=says):
            open_store(trace, check=check)


def places(node, path=()):
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(items):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def test_odd_metadata_is_refused_or_read_and_never_another_error(trace):
    """200 seeded edits of zarr.json; whatever zarr, numpy and xarray make of them is a TraceError."""
    whole = json.loads((trace / "zarr.json").read_bytes())
    rng = random.Random(0)
    spots = sorted(places(whole), key=str)
    refused = 0
    for spot in rng.sample(spots, 200):
        root = json.loads(json.dumps(whole))
        node = root
        for key in spot[:-1]:
            node = node[key]
        node[spot[-1]] = rng.choice([None, -1, 10**30, 0.5, "x", "é\0", [], {}, [[]], True])
        (trace / "zarr.json").write_text(json.dumps(root))
        try:
            open_store(trace, check=False)
        except TraceError:
            refused += 1
    assert refused > 100
    for text in ("[" * 100_000, "{}", "[]", "", "\xff", '{"attributes": []}', "9" * 5000):
        (trace / "zarr.json").write_text(text)
        with pytest.raises(TraceError):
            open_store(trace, check=False)


@pytest.mark.parametrize(
    "record", ["[" * 100_000, "{}", "[]", '{"files": [1]}', "9" * 5000, "null"]
)
def test_odd_commit_records_are_damage(trace, record):
    (trace / "COMMIT.json").write_text(record)
    assert len(find_damage(trace)) == 1
    assert find_damage(trace)[0].startswith("COMMIT.json is damaged")


@pytest.mark.parametrize(
    "files", [None, 3, {"a": 1}, {"a": {}}, {"../../x": {"bytes": "", "sha256": 0}}]
)
def test_sealed_nonsense_is_damage_and_nothing_outside_is_opened(trace, files):
    (trace / "COMMIT.json").write_bytes(atomic_io.seal({"files": files}))
    assert find_damage(trace)


# killed writers


def play(mode, folder):
    """Run this file as the writer that gets killed; returns how each of its children ended."""
    done = subprocess.run(
        [sys.executable, __file__, mode, folder],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_killed_at_every_point_a_write_is_absent_or_whole(tmp_path):
    codes = play("kill-write", tmp_path)
    assert len(codes) > 40
    assert set(codes[:-1]) == {KILLED}
    expected = contents(write(tmp_path / "reference.trace", small()))
    states = []
    for n in range(len(codes)):
        folder = tmp_path / str(n)
        states.append((folder / "a.trace").exists())
        if states[-1]:
            assert contents(folder / "a.trace") == expected
            assert open_store(folder / "a.trace").identical(
                open_store(tmp_path / "reference.trace")
            )
        for litter in folder.glob(".*"):
            with pytest.raises(TraceError, match="was left by a write that was killed: remove it"):
                open_store(litter)
    assert states == sorted(states), "once it is there it stays"
    assert states[0] is False
    assert states[-1] is True


@pytest.mark.slow
def test_a_full_disk_at_every_point_leaves_nothing_behind(tmp_path):
    codes = play("fail-write", tmp_path)
    assert codes.count(REFUSED) > 40
    for n, code in enumerate(codes):
        left = [path.name for path in (tmp_path / str(n)).iterdir()]
        if code == REFUSED and not left:
            continue
        assert left == ["a.trace"], (n, code)  # done, or only the last fsync failed
        assert find_damage(tmp_path / str(n) / "a.trace") == []


def test_what_zarr_still_writes_when_a_write_fails_is_removed_too(tmp_path, monkeypatch):
    import zarr.storage._local as local

    from waiting import GUARD

    put, late, ended, removed = local._put, [], store._await_writers, shutil.rmtree
    failed = threading.Event()  # the store waits for the others, or has removed the folder already

    def uneven(path, value, exclusive=False):
        if path.parent.name == "received":
            disk_full()
        if exclusive:
            assert failed.wait(GUARD)
            late.append(path)
        return put(path, value, exclusive)

    async def told():
        failed.set()
        await ended()

    def remove(*given, **named):
        removed(*given, **named)
        failed.set()

    monkeypatch.setattr(local, "_put", uneven)
    monkeypatch.setattr(store, "_await_writers", told)
    monkeypatch.setattr(shutil, "rmtree", remove)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "a.trace", small())
    assert late, "nothing was written beside the write that failed: this test tests nothing"
    assert list(tmp_path.iterdir()) == []


def test_killed_at_any_time_every_name_without_a_dot_is_whole(tmp_path):
    codes = play("storm", tmp_path)
    assert set(codes) == {-signal.SIGKILL}
    expected = contents(write(tmp_path / "reference.trace", small()))
    left = [path for n in range(len(codes)) for path in (tmp_path / str(n)).iterdir()]
    assert any(path.name.startswith(".") for path in left)
    assert any(path.name == "0.trace" for path in left)
    for path in left:
        assert path.name.startswith(".") or contents(path) == expected


@pytest.mark.slow
def test_a_run_killed_at_every_point_goes_on_and_becomes_the_same_trace(tmp_path):
    codes = play("kill-run", tmp_path)
    assert len(codes) > 80
    assert set(codes[:-1]) == {KILLED}
    whole = grow(tmp_path / "reference.trace")
    expected = contents(whole)
    assert open_store(whole)["received"].shape == (STEPS, 2, 3, 700)
    for n in range(len(codes)):
        assert contents(tmp_path / str(n) / "a.trace") == expected, n
        assert not (tmp_path / str(n) / "a.trace.partial").exists(), n


# an unfinished run


def grow(path, stop=None):
    """A run of 13 steps whose every step depends on the one before; goes on if there is one."""
    partial_path = path.with_name(f"{path.name}.partial")
    if path.exists():
        with pytest.raises(TraceError, match="is finished already"):
            Partial.open(path)
        return path
    if partial_path.exists():
        partial, done, arrays, head = Partial.open(path)
        assert head == {"seed": 4}
        total = arrays["total"] if done else np.float32(0)
    else:
        spec = Spec(
            ("step", "layer", "group", "key"), (20, 2, 3, 700), "float16", {"units": "share"}
        )
        count = Spec(("step",), (20,), "int32", {"missing": -1})
        partial = Partial.create(path, {"received": spec, "count": count}, {"seed": 4})
        done, total = 0, np.float32(0)
    while done < STEPS:
        steps = range(done, min(done + BLOCK_STEPS, STEPS))
        block = []
        for step in steps:
            total = np.float32(total / 2 + step)
            block.append(np.full((2, 3, 700), total, np.float32))
        partial.put(done, {"received": np.stack(block), "count": np.array(steps)})
        done = steps.stop
        if stop == "put":
            partial.close()  # as the end of its process does
            return partial
        partial.save(done, {"total": total})
        if stop == "save":
            partial.close()
            return partial
    return partial.finish(STEPS, small(STEPS)[["queries"]].drop_vars("group"))


@pytest.mark.parametrize("stop", ["put", "save"])
def test_an_unfinished_run_is_refused_and_goes_on(tmp_path, stop):
    whole = grow(tmp_path / "whole.trace")
    partial = grow(tmp_path / "a.trace", stop)
    assert partial.path == tmp_path / "a.trace.partial"
    says = r"a\.trace\.partial is an unfinished run: continue it with aw\.run\(\.\.\., resume="
    with pytest.raises(TraceError, match=says):
        aw.read(partial.path)
    with pytest.raises(TraceError, match=rf"there is no trace at .*a\.trace: .*{says}"):
        aw.read(tmp_path / "a.trace")
    assert "is an unfinished run" in find_damage(partial.path)[0]
    with pytest.raises(TraceError, match=r"is an unfinished run: .*, or remove it first"):
        Partial.create(tmp_path / "a.trace", {}, {})
    _, done, arrays, _ = Partial.open(partial.path)
    assert (done, sorted(arrays)) == ((8, ["total"]) if stop == "save" else (0, []))
    assert contents(grow(tmp_path / "a.trace")) == contents(whole)
    held = open_store(whole)
    assert held["count"].values.tolist() == list(range(STEPS))
    assert float(held["received"][1, 0, 0, 0]) == 1
    with pytest.raises(TraceError, match="is finished already"):
        Partial.open(tmp_path / "a.trace")
    with pytest.raises(TraceError, match="exists already"):
        Partial.create(tmp_path / "a.trace", {}, {})


def test_a_torn_state_is_not_used(tmp_path):
    partial = grow(tmp_path / "a.trace", "save")
    state = partial.path / "state-8.npz"
    raw = state.read_bytes()
    for offset in range(0, len(raw), 7):
        state.write_bytes(raw[:offset] + bytes([raw[offset] ^ 4]) + raw[offset + 1 :])
        assert Partial.open(tmp_path / "a.trace")[1:3] == (0, {})
        state.write_bytes(raw[:offset])
        assert Partial.open(tmp_path / "a.trace")[1:3] == (0, {})
    state.write_bytes(raw)
    (partial.path / "state-16.npz").write_bytes(raw[:-1])
    assert Partial.open(tmp_path / "a.trace")[1] == 8, "the newest that is whole"


def test_no_state_runs_code(tmp_path):
    partial = grow(tmp_path / "a.trace", "save")
    with pytest.raises(ValueError, match="allow_pickle=False"):
        partial.save(8, {"total": np.array([{}], object)})
    assert Partial.open(tmp_path / "a.trace")[1] == 8
    import hashlib
    import io
    import zipfile

    buffer = io.BytesIO()
    np.savez(buffer, total=np.array([print], object))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = bytes(64)
    body = buffer.getvalue()[:-64]
    digest = hashlib.sha256(body).hexdigest().encode()
    (partial.path / "state-8.npz").write_bytes(body + digest)
    with pytest.raises(TraceError, match=r"is damaged, start the run again: .*allow_pickle=False"):
        Partial.open(tmp_path / "a.trace")


def test_a_lost_block_or_a_changed_request_ends_a_run(tmp_path):
    partial = grow(tmp_path / "a.trace", "save")
    lost = partial.path / "store" / "received" / "c.0.0.0.0"
    raw = lost.read_bytes()
    lost.unlink()
    with pytest.raises(
        TraceError, match=r"lacks store/received/c\.0\.0\.0\.0: start the run again"
    ):
        Partial.open(tmp_path / "a.trace")
    lost.write_bytes(raw)
    request = partial.path / "run.json"
    request.write_text(request.read_text().replace('"seed": 4', '"seed": 5'))
    with pytest.raises(
        TraceError, match=r"damaged, .* run\.json does not agree with its own digest"
    ):
        Partial.open(tmp_path / "a.trace")
    with pytest.raises(TraceError, match=r"there is no unfinished run at .*none\.trace\.partial"):
        Partial.open(tmp_path / "none.trace")


def test_changed_metadata_ends_an_unfinished_run(tmp_path):
    """The store of an unfinished run has no commit record yet: `run.json` vouches for it."""
    partial = grow(tmp_path / "a.trace", "save")
    array = partial.path / "store" / "received" / "zarr.json"
    whole = array.read_text()
    for old, new in (('"units": "share"', '"units": "shark"'), ('"key"', '"kez"')):
        assert old in whole
        array.write_text(whole.replace(old, new))
        with pytest.raises(TraceError, match=r"damaged, .*: store/received/zarr\.json was changed"):
            Partial.open(tmp_path / "a.trace")
    array.write_text(whole)
    assert Partial.open(tmp_path / "a.trace")[1] == 8


def test_blocks_come_whole_and_in_order(tmp_path):
    spec = Spec(("step", "layer"), (20, 2), "float32", {})
    partial = Partial.create(tmp_path / "a.trace", {"x": spec}, {})
    block = np.zeros((8, 2))
    for first_step, blocks, says in [
        (8, {"x": block}, "the next block starts at step 0, not 8"),
        (0, {"y": block}, "a block holds x: got y"),
        (0, {"x": np.zeros((9, 2))}, "a block has 1 to 8 steps"),
        (0, {"x": np.zeros((0, 2))}, "a block has 1 to 8 steps"),
        (0, {"x": np.zeros((8, 3))}, r"x is \(20, 2\): a block of \(8, 3\) does not fit"),
        (0, {"x": np.full((8, 2), 1e300)}, "x holds numbers that float32 cannot"),
    ]:
        with pytest.raises(TraceError, match=says):
            partial.put(first_step, blocks)
    with pytest.raises(TraceError, match="0 steps are in blocks, not 8: put them first"):
        partial.save(8, {})
    partial.put(0, {"x": np.full((3, 2), np.nan)})
    with pytest.raises(TraceError, match="the next block starts at step 3, not 8"):
        partial.put(8, {"x": block})
    with pytest.raises(TraceError, match="x came block by block: leave it out of the dataset"):
        partial.finish(3, xr.Dataset({"x": ("a", [1])}))
    path = partial.finish(3, xr.Dataset(attrs=ATTRS))
    assert open_store(path)["x"].shape == (3, 2)
    assert extent(path) == (len(files(path)), sum(p.stat().st_size for p in files(path)))


@pytest.mark.parametrize(("before", "after"), [(5, 8), (8, 5)])
def test_nothing_of_a_failed_attempt_stays(tmp_path, monkeypatch, before, after):
    spec = Spec(("step", "layer", "key"), (20, 2, 2000), "float32", {})
    block = np.arange(8 * 2 * 2000.0).reshape(8, 2, 2000)
    others = xr.Dataset(attrs=ATTRS)

    def attempt(name, count):
        partial = Partial.create(tmp_path / name, {"x": spec}, {})
        partial.put(0, {"x": block})
        partial.save(8, {})
        partial.put(8, {"x": block[:count]})
        return partial

    expected = contents(attempt("b.trace", after).finish(8 + after, others))
    partial = attempt("a.trace", before)
    (tmp_path / "a.trace.partial" / "store" / "x" / "c.1.0.0ab.partial").touch()
    with monkeypatch.context() as patch:
        patch.setattr("os.rename", lambda *_: disk_full())
        with pytest.raises(OSError, match="No space"):
            partial.finish(8 + before, others.assign(stale=("a", [1])))
    partial, done, _, _ = Partial.open(tmp_path / "a.trace")
    assert done == 8
    partial.put(8, {"x": block[:after]})
    assert contents(partial.finish(8 + after, others)) == expected


def test_a_run_without_fields_is_states_only(tmp_path):
    partial = Partial.create(tmp_path / "a.trace", {}, {"prompt": "é"})
    partial.save(5, {"canvas": np.arange(3), "file": np.array(1.5)})
    partial.close()
    partial, done, arrays, head = Partial.open(tmp_path / "a.trace")
    assert (done, arrays["canvas"].tolist(), arrays["file"], head) == (
        5,
        [0, 1, 2],
        1.5,
        {"prompt": "é"},
    )
    assert open_store(partial.finish(5, small(5)))["received"].shape == (5, 2, 3, 700)


# the program: children that die


def dies(child, at=None, folder="", act=None):
    """Fork; the child runs `child` and acts before its `at`-th operation on files in `folder`."""
    pid = os.fork()
    if pid:
        return pid
    code, fired = 70, []
    ticks = itertools.count()

    def tick():
        if next(ticks) == at:
            fired.append(at)
            act()

    def hook(event, args):
        writes = event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir") or (
            event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if writes and str(args[0]).startswith(folder):
            tick()

    try:
        if at is not None:
            real = os.fsync
            os.fsync = lambda handle: (tick(), real(handle))[1]
            sys.addaudithook(hook)
        child()
        code = ABSORBED if fired else 0
    except OSError:
        code = REFUSED
    finally:
        os._exit(code)


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def disk_full():
    raise OSError(28, "No space left on device")


def every_point(root, child, act, after=None):
    codes = []
    while not codes or codes[-1] != 0:
        target = root / str(len(codes)) / "a.trace"
        target.parent.mkdir()
        pid = dies(functools.partial(child, target), len(codes), str(target.parent), act)
        codes.append(ended(pid))
        assert codes[-1] != 70
        if after:
            assert ended(dies(functools.partial(after, target))) == 0, len(codes)
    return codes


def write_on(folder):
    for n in itertools.count():
        write(folder / f"{n}.trace", small())


def storm(root):
    """Kill writers that go on while they are killed: some in their first trace, some later."""
    codes = []
    for n in range(12):
        folder = root / str(n)
        folder.mkdir()
        reading, writing = os.pipe()
        tell = functools.partial(os.write, writing, b".")
        pid = dies(functools.partial(write_on, folder), 5 + 13 * n, str(folder), tell)
        os.read(reading, 1)
        os.kill(pid, signal.SIGKILL)
        os.close(reading)
        os.close(writing)
        codes.append(ended(pid))
    return codes


def main(mode, root):
    dataset = small()
    killed = lambda: os._exit(KILLED)  # noqa: E731
    if mode == "kill-write":
        return every_point(root, lambda path: write(path, dataset), killed)
    if mode == "fail-write":
        return every_point(root, lambda path: write(path, dataset), disk_full)
    if mode == "kill-run":
        return every_point(root, grow, killed, after=grow)
    return storm(root)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
