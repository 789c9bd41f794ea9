"""Two commands on one folder: one writes, the other is told who does; the dead hold nothing."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch.errors import AnchorwatchWarning, SpecError, TraceError
from anchorwatch.trace import atomic_io, locks
from anchorwatch.trace.locks import LOCK, Lock
from anchorwatch.trace.store import Partial, Spec
from command import one_line_of, type_in
from strategies import load

HOLD = """
import sys
from pathlib import Path
from anchorwatch.trace.locks import Lock
lock = Lock.take(Path(sys.argv[1]), "busy")
print("held", flush=True)
sys.stdin.read()
"""


def held_by_another(folder):
    """A process that holds the lock of a folder until its stdin is closed."""
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout.readline() == "held\n"
    return other


def test_the_second_is_told_who_holds_a_folder_and_a_kill_frees_it(tmp_path):
    other = held_by_another(tmp_path)
    said = rf"busy \(process {other.pid} on {socket.gethostname()}, `-c .*`, since 20.* UTC\): "
    with pytest.raises(SpecError, match=said + "wait for it, or choose another folder"):
        Lock.take(tmp_path, "busy")
    assert f"process {other.pid} on" in Lock.busy(tmp_path)
    other.send_signal(signal.SIGKILL)
    other.communicate()
    assert json.loads((tmp_path / LOCK).read_bytes())["pid"] == other.pid, "the file is still there"
    assert Lock.busy(tmp_path) is None
    with Lock.take(tmp_path, "busy"):
        assert json.loads((tmp_path / LOCK).read_bytes())["pid"] == os.getpid()


def test_a_child_of_a_dead_process_is_waited_for(tmp_path, monkeypatch):
    """A worker has the lock of the process that forked it, and ends soon after it."""
    with subprocess.Popen(["true"]) as dead:
        pass
    handle = os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    record = {"pid": dead.pid, "host": socket.gethostname(), "command": "x", "since": "then"}
    os.pwrite(handle, json.dumps(record).encode(), 0)
    looks = []

    def look(seconds):
        looks.append(seconds)
        if len(looks) == 3:
            os.close(handle)

    monkeypatch.setattr(locks.time, "sleep", look)
    with Lock.take(tmp_path, "busy"):
        assert len(looks) == 3


def test_a_second_one_that_waits_comes_after_the_first(tmp_path):
    order = []
    first = Lock.take(tmp_path, "busy")

    def second():
        with Lock.take(tmp_path, "busy", wait=True):
            order.append("second")

    waiting = threading.Thread(target=second)
    waiting.start()
    order.append("first")
    first.release()
    waiting.join()
    assert order == ["first", "second"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_disk_without_locks_is_warned_of(tmp_path, monkeypatch, number):
    def refuse(handle, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with (
        pytest.warns(AnchorwatchWarning, match="cannot be locked .* no other command writes there"),
        Lock.take(tmp_path, "busy"),
    ):
        pass


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_a_lock_that_is_no_file_is_refused(tmp_path, kind):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lock = tmp_path / LOCK
    {
        "folder": lock.mkdir,
        "pipe": lambda: os.mkfifo(lock),
        "link": lambda: lock.symlink_to(victim),
    }[kind]()
    with pytest.raises(SpecError, match="choose another place"):
        Lock.take(tmp_path, "busy")
    assert victim.read_text() == "precious"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    def refuse(path, flags, mode=0):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(locks.os, "open", refuse)
    with pytest.raises(SpecError, match="cannot be written, Read-only file system: choose another"):
        Lock.take(tmp_path, "busy")


@pytest.mark.parametrize("raw", [b"", b"\xff", b"[" * 4096, b'{"pid": -1}', b'{"pid": "x"}', b"1"])
def test_a_lock_of_others_says_nothing_but_holds(tmp_path, raw):
    with (tmp_path / LOCK).open("wb") as other:
        other.write(raw)
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(SpecError, match=r"busy \(it does not say who it is\)"):
            Lock.take(tmp_path, "busy")


# runs


def begun(path):
    spec = Spec(("step", "layer"), (20, 2), "float32", {})
    partial = Partial.create(path, {"x": spec}, {"seed": 4})
    partial.put(0, {"x": np.zeros((8, 2))})
    partial.save(8, {})
    return partial


def test_nobody_resumes_a_run_that_is_running(tmp_path):
    partial = begun(tmp_path / "a.trace")
    for again in (Partial.open, lambda path: Partial.create(path, {}, {})):
        with pytest.raises(TraceError, match=rf"is being written \(process {os.getpid()} on "):
            again(tmp_path / "a.trace")
    partial.close()
    assert Partial.open(tmp_path / "a.trace")[1] == 8


def test_of_several_resumes_one_goes_on(tmp_path):
    begun(tmp_path / "a.trace").close()
    first = Partial.open(tmp_path / "a.trace")[0]
    for _ in range(2):
        with pytest.raises(TraceError, match=r"is being written .*: wait for it"):
            Partial.open(tmp_path / "a.trace")
    first.put(8, {"x": np.zeros((3, 2))})
    attrs = {"schema": "anchorwatch/trace", "schema_version": 1, "manifest": {}}
    import xarray as xr

    first.finish(11, xr.Dataset(attrs=attrs))
    assert not list(tmp_path.glob("*.partial"))
    with pytest.raises(TraceError, match="is finished already"):
        Partial.open(tmp_path / "a.trace")


def test_a_resume_beside_a_live_run_is_told_so_in_one_line(tmp_path):
    begun(tmp_path / "a.trace").close()
    other = held_by_another(tmp_path / "a.trace.partial")
    try:
        for words in (["resume", "tiny/llada"], ["run", "tiny/llada", "the", "-o"]):
            done = type_in(*words, tmp_path / "a.trace")
            assert done.returncode in (1, 2)
            assert f"is being written (process {other.pid} on " in one_line_of(done)
    finally:
        other.communicate()


def test_a_run_that_was_stopped_is_free(tmp_path, monkeypatch):
    """In a notebook the process lives on, and so does the error with all it refers to."""
    model, out = load("tiny/llada"), tmp_path / "a.trace"
    how = aw.decoding.LowConfidence(length=16, steps=16)
    real = Partial.save

    def stop(self, *given):
        real(self, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Partial, "save", stop)
        with pytest.raises(KeyboardInterrupt) as kept:
            aw.run(model, "the anchor", how, probes=(), out=out)
    with pytest.raises(TraceError, match="was begun with"):
        aw.run(load("tiny/dream"), resume=out)
    assert aw.run(model, resume=out).num_steps == 16
    assert kept is not None


# studies, evaluations


def test_a_second_study_is_told_of_the_first(tmp_path):
    out = tmp_path / "study"
    out.mkdir()
    given = {"model": "tiny/llada", "out": out}
    with (
        Lock.take(out, "busy"),
        pytest.raises(SpecError, match=r"another study is writing to .*study \(process "),
    ):
        aw.studies.study(["sinks/H3"], **given)
    assert [path.name for path in out.iterdir()] == [LOCK], "nothing was touched"


def test_a_second_evaluation_is_told_of_the_first(tmp_path):
    from anchorwatch.evaluation.results import Cell

    manifest = {"model": {"source": "x"}, "edit": "none"}
    said = rf"another evaluation is writing to .* \(process {os.getpid()} on .*: wait for it"
    with Cell(manifest, tmp_path), pytest.raises(SpecError, match=said):
        Cell(manifest, tmp_path).__enter__()


# what killed writes leave

KILLED = """
import os, sys
from pathlib import Path
from anchorwatch.trace import atomic_io, locks
target = Path(sys.argv[1])
if sys.argv[2] == "file":
    atomic_io.put_file = lambda *given: os._exit(9)
    atomic_io.replace_file(target, b"new")
with atomic_io.stage_folder(target) as folder:
    (folder / "half").write_bytes(b"x")
    os._exit(9)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_write_left_is_swept_by_the_next(tmp_path, kind):
    target = tmp_path / "table.csv"
    ended = subprocess.run([sys.executable, "-c", KILLED, target, kind], check=False)
    assert ended.returncode == 9
    (left,) = tmp_path.iterdir()
    assert locks.is_temporary(left)
    for name in (".notes.tmp", ".table.csv.0123abcd.tmp", "x.anchorwatch-0123abcd.tmp"):
        (tmp_path / name).write_text("not ours")
    atomic_io.replace_file(tmp_path / "another.csv", b"new")
    assert not left.exists()
    assert len(list(tmp_path.iterdir())) == 4


def test_what_is_being_written_is_never_swept(tmp_path):
    with (
        locks.temporary(tmp_path / "a", folder=True) as one,
        atomic_io.stage_folder(tmp_path / "b") as two,
    ):
        (two / "half").write_bytes(b"x")
        atomic_io.replace_file(tmp_path / "c", b"new")
        locks.sweep(tmp_path)
        assert one.is_dir() and (two / "half").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"]


def test_a_sweep_follows_no_link_and_opens_no_pipe(tmp_path):
    folder, kept = tmp_path / "out", tmp_path / "kept"
    folder.mkdir(), kept.mkdir()
    (kept / "precious").write_text("x")
    (folder / ".a.anchorwatch-00000000.tmp").symlink_to(kept)
    os.mkfifo(folder / ".b.anchorwatch-00000001.tmp")
    locks.sweep(folder)
    assert (kept / "precious").exists() and len(list(folder.iterdir())) == 2


def test_one_that_was_swept_before_it_was_locked_is_begun_again(tmp_path, monkeypatch):
    real, made = Path.mkdir, []

    def counted(self, *given, **named):
        real(self, *given, **named)
        made.append(self)

    def refusing(path, *given, _open=os.open):
        if len(made) == 1 and Path(path) == made[0]:
            handle = _open(path, *given)
            Path(path).rmdir()
            return handle
        return _open(path, *given)

    monkeypatch.setattr(Path, "mkdir", counted)
    monkeypatch.setattr(locks.os, "open", refusing)
    with locks.temporary(tmp_path / "a", folder=True) as folder:
        assert folder.is_dir() and len(made) == 2
