"""One lock for every folder that one command at a time may write to.

A lock is the kernel's (flock): it ends with the process, however that ends, so a lock file that a
dead process left stops nobody. The file says who holds it, for the message to the second one.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import re
import shlex
import shutil
import socket
import stat
import sys
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from anchorwatch.errors import AnchorwatchError, AnchorwatchWarning, SpecError
from anchorwatch.trace.escape import one_line

LOCK = ".lock"
_UNLOCKABLE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_MOST_BYTES = 4096
_ORPHANS_SECONDS, _LOOK_SECONDS, _LOOKS = 20.0, 0.1, 3
_LONGEST_COMMAND = 200
_TEMPORARY = re.compile(r"\..*\.anchorwatch-[0-9a-f]{8}\.tmp", re.DOTALL)


class Lock:
    """The right to write to a folder, held until `release` or the end of the process."""

    def __init__(self, handle: int, path: Path) -> None:
        self._handle: int | None = handle
        self.path = path

    @classmethod
    def take(
        cls,
        folder: Path,
        busy: str,
        *,
        refusal: type[AnchorwatchError] = SpecError,
        wait: bool = False,
    ) -> Lock:
        """Lock a folder that exists, or refuse: `busy` is what to say before who holds it.

        With `wait` the second one waits for the first. What the children of a dead process still
        hold is waited for, for they end with it.
        """
        path, until = folder / LOCK, time.monotonic() + _ORPHANS_SECONDS
        for look in itertools.count(1):
            handle = _open_lock_file(path)
            lock = cls(handle, path)
            try:
                if not _try_lock(handle, folder, wait=wait):
                    dead = _holder_is_dead(handle) and time.monotonic() < until
                    if look < _LOOKS or dead:  # `busy` of another may hold it for a moment
                        lock.release()
                        time.sleep(_LOOK_SECONDS)
                        continue
                    who = _holder(handle)
                    raise refusal(f"{busy} ({who}): wait for it, or choose another folder")
                if not _is_still(handle, path):  # whoever held it removed the folder meanwhile
                    lock.release()
                    continue
                _sign(handle)
            except BaseException:
                lock.release()
                raise
            return lock
        raise AssertionError("the loop has no end")

    @classmethod
    def try_take(cls, folder: Path, name: str) -> Lock | None:
        """Lock the file `name` of a folder at once; None where another process holds it."""
        path = folder / name
        while True:
            handle = _open_lock_file(path)
            lock = cls(handle, path)
            try:
                if not _try_lock(handle, folder, wait=False):
                    lock.release()
                    return None
                if _is_still(handle, path):
                    _sign(handle)
                    return lock
            except BaseException:
                lock.release()
                raise
            lock.release()  # it was removed between opening and locking

    @classmethod
    @contextmanager
    def claim(cls, folder: Path, name: str) -> Iterator[None]:
        """Hold the file `name` of a folder, waited for while another process does; none stays."""
        while (lock := cls.try_take(folder, name)) is None:
            time.sleep(_LOOK_SECONDS)
        try:
            yield
        finally:
            lock.remove()

    def remove(self) -> None:
        """Remove the lock's file and let go: whoever waits for it makes a new one."""
        if self._handle is not None:
            self.path.unlink(missing_ok=True)
            self.release()

    @classmethod
    def busy(cls, folder: Path, name: str = LOCK) -> str | None:
        """Who holds the lock of a folder, in words; None where nobody does."""
        try:
            handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _holder(handle)
        except OSError:
            return None
        finally:
            os.close(handle)
        return None

    def release(self) -> None:
        """Let the next one in; the file stays, for it may be waited for."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


@contextmanager
def temporary(target: Path, *, folder: bool) -> Iterator[Path]:
    """A hidden sibling of `target` to write to first; nothing of it stays, also of killed writes.

    Its writer holds a lock on it. So whoever writes there next knows which ones have no writer any
    more, and removes those.
    """
    sweep(target.parent)
    path, handle = _create_temporary(target, folder=folder)
    try:
        yield path
    finally:
        _remove(path)
        os.close(handle)


def temporary_name(target: Path) -> Path:
    """A hidden name beside `target` that `sweep` knows."""
    return target.with_name(f".{target.name[:40]}.anchorwatch-{uuid.uuid4().hex[:8]}.tmp")


def is_temporary(path: Path) -> bool:
    """Whether a name is that of something half written."""
    return _TEMPORARY.fullmatch(path.name) is not None


def sweep(folder: Path) -> None:
    """Remove what killed writes left in a folder; what is still being written is left alone."""
    with suppress(OSError):
        for path in [Path(entry) for entry in os.scandir(folder)]:
            if is_temporary(path):
                _remove_if_dead(path)


def _remove_if_dead(path: Path) -> None:
    with suppress(OSError):
        if stat.S_IFMT(os.lstat(path).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            return
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(handle, path):
                _remove(path)
        finally:
            os.close(handle)


def _create_temporary(target: Path, *, folder: bool) -> tuple[Path, int]:
    """A new temporary name and its locked handle."""
    while True:
        path = temporary_name(target)
        if folder:
            path.mkdir()
        else:
            path.touch(exist_ok=False)
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with suppress(OSError):  # where nothing can be locked nothing is swept either
            fcntl.flock(handle, fcntl.LOCK_EX)
        if _is_still(handle, path):
            return path, handle
        os.close(handle)  # swept before it was locked


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _open_lock_file(path: Path) -> int:
    try:
        handle = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644
        )
    except OSError as error:
        raise SpecError(
            f"{path.parent} cannot be written, {error.strerror}: choose another place"
        ) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise SpecError(f"{path} is no plain file: remove it, or choose another place")
    return handle


def _try_lock(handle: int, folder: Path, *, wait: bool) -> bool:
    """Whether the lock is ours; a disk that has no locks is warned of and taken as ours."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNLOCKABLE:
            raise
        warnings.warn(
            f"{folder} cannot be locked ({error.strerror}): see to it that no other command "
            "writes there",
            AnchorwatchWarning,
            stacklevel=4,
        )
    return True


def _is_still(handle: int, path: Path) -> bool:
    try:
        ours, theirs = os.fstat(handle), os.lstat(path)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)


def _sign(handle: int) -> None:
    """Write down who holds the lock."""
    record = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])[:_LONGEST_COMMAND],
        "since": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
    }
    with suppress(OSError):  # a full disk: the lock holds without a name
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(record).encode(), 0)


def _holder(handle: int) -> str:
    """Who holds a lock, as the file says."""
    record = _record(handle)
    if record is None:
        return "it does not say who it is"
    text = "process {pid} on {host}, `{command}`, since {since}".format(**record)
    return one_line(text)[: 2 * _LONGEST_COMMAND]


def _holder_is_dead(handle: int) -> bool:
    """Whether the process that took the lock has ended; its children may hold it still."""
    record = _record(handle)
    if record is None or record["host"] != socket.gethostname():
        return False
    try:
        os.kill(int(record["pid"]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _record(handle: int) -> dict[str, str] | None:
    """What `_sign` wrote; None where it is not that."""
    try:
        record = json.loads(os.pread(handle, _MOST_BYTES, 0))
        fields = {name: str(record[name]) for name in ("pid", "host", "command", "since")}
        return fields if 0 < int(fields["pid"]) < 1 << 31 else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
