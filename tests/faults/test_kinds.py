"""Pipes, sockets, devices and links where files should be: refused before anything is opened.

The reads happen in a process of their own: one that hangs is killed and fails, the suite goes on.
"""

import itertools
import os
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch.trace.input_files import odd_kind, open_plain, read_plain
from anchorwatch.trace.store import Partial, Spec
from strategies import load

HANGS = 600
"""Seconds after which readers are taken for hung: a pipe is waited for without end."""


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
paths = list(map(Path, sys.argv[1:]))
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


def spoiled(whole, names, into):
    """A copy of a folder for each name and kind, with that kind of thing under that name."""
    found = []
    for name, put in itertools.product(names, ODD):
        copy = shutil.copytree(whole, into / put.__name__ / name.replace("/", "-") / whole.name)
        (copy / name).unlink()
        put(copy / name)
        found.append((name, copy))
    return found


def test_no_reader_of_traces_waits(whole, tmp_path):
    names = ["zarr.json", "COMMIT.json", "canvas/zarr.json", "canvas/c.0.0"]
    cases = spoiled(whole, names, tmp_path)
    said = reads(
        """
from anchorwatch.trace.trace import read
from anchorwatch.trace.atomic_io import find_damage
from anchorwatch.trace.store import open_store
from anchorwatch.explorer.open import open_for_viewing
for path in paths:
    refused(lambda: read(path))
    refused(lambda: open_store(path, check=False))
    print(find_damage(path))
    print(open_for_viewing(path).damage)
""",
        *(path for _, path in cases),
    ).splitlines()
    for (name, _), *lines in zip(cases, *(said[at::4] for at in range(4)), strict=True):
        assert lines[0].startswith("refused:") and name in lines[0]
        assert lines[1].startswith("refused:") or name == "COMMIT.json"
        assert name in lines[2] and name in lines[3]
        assert all("plain file" in line or "not a file" in line for line in lines[2:])


def test_a_trace_that_is_itself_behind_a_link_is_read(whole, tmp_path):
    (tmp_path / "link").symlink_to(whole)
    assert aw.read(tmp_path / "link").digest() == aw.read(whole).digest()


def test_no_resume_waits(tmp_path):
    spec = Spec(("step", "k"), (9, 2), "int32", {})
    partial = Partial.create(tmp_path / "a.trace", {"x": spec}, {})
    partial.put(0, {"x": np.zeros((8, 2), np.int32)})
    partial.save(8, {})
    partial.close()
    names = ["run.json", "store/zarr.json", "store/x/c.0.0", "state-8.npz"]
    cases = spoiled(partial.path, names, tmp_path)
    code = "from anchorwatch.trace.store import Partial\nfor path in paths:\n"
    said = reads(code + "    refused(lambda: Partial.open(path))", *(path for _, path in cases))
    assert len(cases) == 16 and said.count("refused:") == 16, said


def test_no_reader_of_results_waits(tmp_path):
    from anchorwatch.evaluation.grid import evaluate

    how = aw.decoding.LowConfidence(length=2, steps=1)
    options = {"contexts": "closed", "limit": 1, "decoding": how, "out": tmp_path / "out"}
    evaluate(load("tiny/llada"), "synthetic/one-hop", **options)
    (cell,) = (path.parent.name for path in (tmp_path / "out").glob("*/manifest.json"))
    names = [f"{cell}/{name}" for name in ("manifest.json", "items.jsonl", "count.json")]
    cases = spoiled(tmp_path / "out", names, tmp_path)
    code = "from anchorwatch.evaluation.results import read_results\nfor path in paths:\n"
    said = reads(code + "    refused(lambda: read_results(path))", *(path for _, path in cases))
    for (name, _), line in zip(cases, said.splitlines(), strict=True):
        assert line.startswith("refused:") and name in line


def test_no_reader_of_records_waits(tmp_path):
    for put in ODD:
        (tmp_path / put.__name__).mkdir()
        put(tmp_path / put.__name__ / "a.json")
    said = reads(
        """
from anchorwatch.trace.atomic_io import read_record
from anchorwatch.figures.origins import whence
from anchorwatch.metrics.table_files import read_origin
from anchorwatch.evaluation.readers import read_records
from anchorwatch.training.log import read_log
from anchorwatch.training.data import read_texts
def listed(path): list(read_records(path))
def texts(path): read_texts(path.rename(path.with_suffix(".txt")))
for path in paths:
    for reader in (read_record, whence, read_origin, listed, read_log, texts):
        refused(lambda: reader(path))
""",
        *(tmp_path / put.__name__ / "a.json" for put in ODD),
    )
    assert said.count("refused:") == 24 == len(said.splitlines()), said


def test_what_is_opened_is_looked_at_again(tmp_path, monkeypatch):
    """A file may be exchanged for a pipe after it was looked at."""
    os.mkfifo(tmp_path / "a")
    monkeypatch.setattr("anchorwatch.trace.input_files.odd_kind", lambda path, links=True: None)
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
