"""Commands typed in children of a process that has imported everything, and the faults they meet.

A child is a process group of its own. A fault kills the whole group:

- `operation`: before the n-th operation on files of the folder (open for writing, rename, mkdir,
  remove, fsync);
- `torn`: at the n-th fsync, and half of what was written since the last one is cut off first, as a
  power cut may do;
- `moment`: after so many seconds.
"""

import io
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

BUSY_SECONDS = 120.0
"""Processor time after which a command hangs: the slowest takes a few seconds."""
IDLE_SECONDS = 40.0
"""How long a command may wait and compute nothing. A busy machine stretches neither."""
MOST_BYTES = 24 << 30
"""Address space of a child: a request for more memory than there is fails there, in that child."""
_POLL_SECONDS = 0.005
_LITTLE = 0.05
"""Of a processor: who sleeps and uses less only waits, such as a server for its clients."""
_CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")


@dataclass(frozen=True)
class Fault:
    """When a child is killed."""

    kind: str
    at: float


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    hung: bool = False
    operations: int = 0
    """Operations on files of its folder, where it ended by itself."""
    syncs: int = 0

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL and not self.hung

    @property
    def traceback(self) -> bool:
        """A traceback, or a signal that nobody sent, such as SIGSEGV."""
        return "Traceback (most recent call last)" in self.stderr or (
            self.code < 0 and not self.killed and not self.hung
        )


Command = Sequence[str] | Callable[[], None]


def type_command(
    command: Command, folder: Path, fault: Fault | None = None, stdin: bytes = b""
) -> Ended:
    """Run a command in a folder; what it wrote, and how it ended."""
    streams = folder.parent / f"{folder.name}.streams"
    streams.mkdir(exist_ok=True)
    (streams / "stdin").write_bytes(stdin)
    (streams / "counts").unlink(missing_ok=True)
    begun = time.monotonic()
    number = os.fork()
    if number == 0:
        _be_child(command, folder, streams, fault)
    after = fault.at if fault is not None and fault.kind == "moment" else None
    code, hung = _wait(number, begun, after)
    counts = streams / "counts"
    counted = counts.read_text().split() if counts.exists() else ["0", "0"]
    operations, syncs = (int(count) for count in counted)
    return Ended(
        code,
        _text(streams / "stdout"),
        _text(streams / "stderr"),
        time.monotonic() - begun,
        hung,
        operations,
        syncs,
    )


def _wait(number: int, begun: float, after: float | None) -> tuple[int, bool]:
    """The exit code of a child and whether it had to be stopped; it is killed `after` seconds."""
    hung, worked, awake, looked = False, 0.0, begun, begun
    while True:
        ended, status = os.waitpid(number, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), hung
        now = time.monotonic()
        if after is not None and now - begun >= after:
            _kill_group(number)
            after = None
        if not hung and now - looked >= 1:
            used, sleeps = _used(number)
            if not sleeps or used - worked > _LITTLE * (now - looked):
                awake = now
            worked, looked = used, now
            if used > BUSY_SECONDS or now - awake > IDLE_SECONDS:
                hung = True
                _kill_group(number)
        time.sleep(_POLL_SECONDS)


def _used(number: int) -> tuple[float, bool]:
    """Processor seconds of a process and its threads, and whether it sleeps."""
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0] == "S"


def _kill_group(number: int) -> None:
    for kill in (os.killpg, os.kill):  # the group may not be there yet, the child is
        try:
            kill(number, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _be_child(command: Command, folder: Path, streams: Path, fault: Fault | None) -> None:
    code = 70
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for at, name in enumerate(("stdin", "stdout", "stderr")):
            flags = os.O_RDONLY if at == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(streams / name, flags, 0o600), at)
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")  # type: ignore
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(
                io.FileIO(at, "w", closefd=False), encoding="utf-8", write_through=True
            )
            for at in (1, 2)
        )
        counter = _Counter(folder, fault)
        code = _run(command)
        (streams / "counts").write_text(f"{counter.operations} {counter.syncs}")
    except BaseException:  # noqa: BLE001 - a traceback is what the parent looks for
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code & 255)


def _run(command: Command) -> int:
    """What the entry point does; a function is called instead, and refuses as a command does."""
    from anchorwatch.cli import app as cli
    from anchorwatch.errors import AnchorwatchError

    try:
        if callable(command):
            try:
                command()
            except AnchorwatchError as error:
                sys.exit(f"error: {error}")
        else:
            sys.argv = ["anchorwatch", *command]
            cli.main()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
            return 1
        return ended.code or 0
    return 0


class _Counter:
    """Counts operations on files of a folder, and dies at the one that a fault names."""

    def __init__(self, folder: Path, fault: Fault | None) -> None:
        self.operations = self.syncs = 0
        self._root, self._fault = f"{folder.resolve()}{os.sep}", fault
        self._safe: dict[str, int] = {}
        """Of files that this process opened to write, the bytes that are on the disk for certain."""
        real = os.fsync

        def fsync(handle: int) -> None:
            path = str(Path(f"/proc/self/fd/{handle}").readlink())
            self._tick(fault_kind="torn", path=path)
            real(handle)
            if path in self._safe:
                self._safe[path] = Path(path).stat().st_size

        os.fsync = fsync  # type: ignore[assignment]
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(path, int) or not flags & (os.O_WRONLY | os.O_RDWR):
                return
        elif event in _CHANGES:
            path = args[0]
        else:
            return
        if isinstance(path, int):
            return
        name = _absolute(path)
        if not name.startswith(self._root):
            return
        self._tick()
        if event == "open" and name not in self._safe:
            keeps = not flags & os.O_TRUNC and Path(name).is_file()
            self._safe[name] = Path(name).stat().st_size if keeps else 0
        if event == "os.rename" and name in self._safe:
            target = _absolute(args[1])
            self._safe[target] = self._safe.pop(name)

    def _tick(self, fault_kind: str = "operation", path: str = "") -> None:
        if path and not path.startswith(self._root):
            return
        self.operations += 1
        self.syncs += fault_kind == "torn"
        fault = self._fault
        if fault is None or fault.kind not in ("operation", "torn"):
            return
        if fault.kind == "operation" and self.operations == fault.at:
            _die()
        if fault.kind == fault_kind == "torn" and self.syncs == fault.at:
            if path in self._safe:
                safe, size = self._safe[path], Path(path).stat().st_size
                self._fault = None  # the cut is an operation too
                os.truncate(path, safe + max(0, size - safe) // 2)
            _die()


def _die() -> None:
    os.killpg(0, signal.SIGKILL)


def _absolute(path: str | bytes | os.PathLike) -> str:
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - links are not followed


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
