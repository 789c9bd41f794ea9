"""Pipes, sockets, devices and links where files should be: refused before anything is opened.

Every read happens in a process of its own: one that hangs is killed and fails, the suite goes on.
"""

import os
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch.inputs import odd_kind, open_plain, read_plain
from anchorwatch.store import Partial, Spec
from strategies import load

HANGS = 60
"""Seconds after which a reader that waits for a pipe is taken for hung; none takes one second."""


def put_pipe(path):
    os.mkfifo(path)


def put_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        folder = os.open(path.parent, os.O_RDONLY)  # a socket's path is short
        try:
            made.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)


def put_link_to_device(path):
    path.symlink_to("/dev/zero")


def put_link_to_pipe(path):
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


ODD = [put_pipe, put_socket, put_link_to_device, put_link_to_pipe]


def reads(code, *words):
    """What a program says of its words; it must end."""
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + code, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PROLOGUE = """
import sys
from pathlib import Path
from anchorwatch.errors import AnchorwatchError
path = Path(sys.argv[1])
def refused(call):
    try:
        call()
    except AnchorwatchError as error:
        print("refused:", error)
    else:
        print("read")
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    how = aw.decoding.LowConfidence(length=4, steps=2)
    trace = aw.run(load("tiny/llada"), "the anchor", how)
    return trace.write(tmp_path_factory.mktemp("whole") / "a.trace")


@pytest.fixture
def trace(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "a.trace")


@pytest.mark.parametrize("name", ["zarr.json", "COMMIT.json", "canvas/zarr.json", "canvas/c.0.0"])
@pytest.mark.parametrize("put", ODD)
def test_no_reader_of_traces_waits(trace, name, put):
    (trace / name).unlink()
    put(trace / name)
    said = reads(
        """
from anchorwatch.trace import read
from anchorwatch.commits import damage
from anchorwatch.store import opened
from anchorwatch.explorer.opening import opened as looked_at
refused(lambda: read(path))
refused(lambda: opened(path, check=False))
print("damage:", damage(path))
print("page:", looked_at(path).damage)
""",
        trace,
    )
    lines = said.splitlines()
    assert lines[0].startswith("refused:") and name in lines[0]
    assert lines[1].startswith("refused:") or name == "COMMIT.json"
    assert name in lines[2] and name in lines[3]
    assert "plain file" in said or "not a file" in said


def test_a_trace_that_is_itself_behind_a_link_is_read(trace, tmp_path):
    (tmp_path / "link").symlink_to(trace)
    assert aw.read(tmp_path / "link").digest() == aw.read(trace).digest()


@pytest.mark.parametrize("name", ["run.json", "store/zarr.json", "store/x/c.0.0", "state-8.npz"])
@pytest.mark.parametrize("put", ODD)
def test_no_resume_waits(tmp_path, name, put):
    partial = Partial.create(
        tmp_path / "a.trace", {"x": Spec(("step", "k"), (9, 2), "int32", {})}, {}
    )
    partial.put(0, {"x": np.zeros((8, 2), np.int32)})
    partial.save(8, {})
    partial.close()
    (partial.path / name).unlink()
    put(partial.path / name)
    said = reads("from anchorwatch.store import Partial\nrefused(lambda: Partial.open(path))", tmp_path / "a.trace")  # fmt: skip
    assert said.startswith("refused:"), said


@pytest.mark.parametrize("name", ["manifest.json", "items.jsonl", "count.json"])
@pytest.mark.parametrize("put", ODD)
def test_no_reader_of_results_waits(tmp_path, name, put):
    from anchorwatch.evaluation.grid import evaluate

    how = aw.decoding.LowConfidence(length=2, steps=1)
    options = {"contexts": "closed", "limit": 1, "decoding": how, "out": tmp_path}
    evaluate(load("tiny/llada"), "synthetic/one-hop", **options)
    (cell,) = (path.parent for path in tmp_path.glob("*/manifest.json"))
    (cell / name).unlink()
    put(cell / name)
    said = reads(
        """
from anchorwatch.evaluation.results import read_results
refused(lambda: read_results(path))
""",
        tmp_path,
    )
    assert said.startswith("refused:") and name in said


@pytest.mark.parametrize("put", ODD)
def test_no_reader_of_records_waits(tmp_path, put):
    put(tmp_path / "a.json")
    said = reads(
        """
from anchorwatch.commits import read_record
from anchorwatch.figures.origins import whence
from anchorwatch.metrics.files import origin
from anchorwatch.evaluation.readers import records
from anchorwatch.training.log import read_log
from anchorwatch.training.texts import read_texts
for reader in (read_record, whence, origin, lambda p: list(records(p)), read_log, lambda p: read_texts(p.with_suffix(".txt"))):
    refused(lambda: reader(path))
""",
        tmp_path / "a.json",
    )
    assert said.count("refused:") == 6 and "read\n" not in said.split("refused:")[0]


def test_what_is_opened_is_looked_at_again(tmp_path, monkeypatch):
    """A file may be exchanged for a pipe after it was looked at."""
    os.mkfifo(tmp_path / "a")
    monkeypatch.setattr("anchorwatch.inputs.odd_kind", lambda path, links=True: None)
    with pytest.raises(OSError, match="a is a pipe, not a plain file"):
        open_plain(tmp_path / "a")


def test_a_plain_file_is_read_and_a_large_one_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"1234")
    (tmp_path / "link").symlink_to("a")
    assert read_plain(tmp_path / "link", most=4) == b"1234"
    assert odd_kind(tmp_path / "link") is None
    assert odd_kind(tmp_path / "link", links=False) == "a link"
    with pytest.raises(ValueError, match="a has 4 bytes, more than the 3 that are read"):
        read_plain(tmp_path / "a", most=3)
    with pytest.raises(OSError, match="link is a link, not a plain file"):
        read_plain(tmp_path / "link", most=4, links=False)
