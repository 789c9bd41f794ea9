"""The log of a run: one line for each update, as JSON lines and as CSV, and to a tracker if named.

The checkpoint holds the log up to it, so that a resumed run's log has every update once. Here are
also the names of checkpoint folders, and the error that is raised when the disk takes no more.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from anchorwatch.errors import AnchorwatchError, SpecError, TrainingError
from anchorwatch.trace.atomic_io import replace_file
from anchorwatch.trace.input_files import open_plain, parse_json, plain_lines

CHECKPOINTS = "checkpoints"


def list_checkpoints(out: Path) -> list[tuple[int, Path]]:
    """Updates and folder of every checkpoint, the newest last."""
    checkpoints = (
        (int(match[1]), path)
        for path in (out / CHECKPOINTS).glob("update-*")
        if (match := re.fullmatch(r"update-(\d{8,12})", path.name))
    )
    return sorted(checkpoints)


@contextmanager
def explain_write_errors(what: str, path: Path, out: Path) -> Iterator[None]:
    """Say what could not be written inside, and from where the run in `out` will resume."""
    try:
        yield
    except Exception as error:
        if not _is_of_the_disk(error):
            raise
        raise TrainingError(
            f"{what} could not be written to {path} ({getattr(error, 'strerror', None) or error}): "
            f"{_describe_kept(out)}; make room on the disk, or make the folder writable, and start "
            "the same command again"
        ) from error


def _describe_kept(out: Path) -> str:
    checkpoints = list_checkpoints(out)
    return (
        f"the checkpoint of update {checkpoints[-1][0]} is kept"
        if checkpoints
        else "no checkpoint was made"
    )


def _is_of_the_disk(error: Exception) -> bool:
    """What the disk said; safetensors and torch wrap it."""
    wrapped = type(error).__name__ == "SafetensorError" or "No space left" in str(error)
    return isinstance(error, OSError) or (wrapped and not isinstance(error, AnchorwatchError))


@dataclass(frozen=True)
class Line:
    """What is known after an update."""

    update: int
    """Updates done, this one included."""
    loss: float
    """Nats per scored token, over the whole batch."""
    lr: float
    grad_norm: float
    """Before clipping."""
    tokens_per_second: float
    tokens: int
    """Tokens read so far."""


COLUMNS = tuple(field.name for field in fields(Line))


def as_json(lines: Iterable[Line]) -> str:
    """JSON lines; numbers are spelled so that they read back to the same bits."""
    return "".join(json.dumps(asdict(line)) + "\n" for line in lines)


def as_csv(lines: Iterable[Line], *, header: bool = True) -> str:
    """CSV, with its header unless more is appended."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(COLUMNS)
    writer.writerows(asdict(line).values() for line in lines)
    return text.getvalue()


def from_json(text: str) -> list[Line]:
    """The lines of a whole log."""
    return [Line(**json.loads(line)) for line in text.splitlines()]


def read_log(path: Path) -> list[Line]:
    """The lines of a log file; a damaged one is named."""
    try:
        lines = []
        with open_plain(path) as handle:
            for number, line in enumerate(plain_lines(handle, path), start=1):
                lines += [_parse_log_line(line, number)]
    except FileNotFoundError:
        raise TrainingError(f"there is no log at {path}: copy the run's folder whole") from None
    except (OSError, ValueError) as error:
        raise TrainingError(
            f"{path} is damaged ({error}): start the same training again, which writes it anew"
        ) from None
    return lines


def _parse_log_line(line: bytes, number: int) -> Line:
    """A line of a log; an update after the one before it, and numbers only."""
    try:
        parsed = Line(**parse_json(line))
    except (TypeError, ValueError):
        raise ValueError(f"line {number} is no line of a log") from None
    numbers = asdict(parsed).values()
    if parsed.update != number or not all(type(value) in (int, float) for value in numbers):
        raise ValueError(f"line {number} is not of update {number}")
    return parsed


def repair_log(folder: Path, lines: list[Line]) -> None:
    """Write the log of a finished run again where it is not what its last checkpoint holds."""
    for path, text in _texts(folder, lines):
        if not path.is_file() or path.read_bytes() != text.encode():
            with explain_write_errors("the log", path, folder):
                replace_file(path, text.encode())


def _texts(folder: Path, lines: list[Line]) -> tuple[tuple[Path, str], tuple[Path, str]]:
    return (folder / "log.jsonl", as_json(lines)), (folder / "log.csv", as_csv(lines))


class Log:
    """The lines so far, in memory and in `log.jsonl` and `log.csv` of a folder."""

    def __init__(self, folder: Path, lines: list[Line], tracker: Tracker | None = None) -> None:
        self.lines = lines
        self._folder, self._tracker = folder, tracker
        self._json, self._csv = folder / "log.jsonl", folder / "log.csv"
        # What was logged after the checkpoint will be logged again.
        for path, text in _texts(folder, lines):
            with explain_write_errors("the log", path, folder):
                replace_file(path, text.encode())

    def add(self, lines: list[Line]) -> None:
        self.lines += lines
        added = ((self._json, as_json(lines)), (self._csv, as_csv(lines, header=False)))
        for path, text in added:
            with (
                explain_write_errors("the log", path, self._folder),
                path.open("a", encoding="utf-8") as handle,
            ):
                handle.write(text)
        if self._tracker is not None:
            for line in lines:
                values = asdict(line)
                self._tracker.log(values, step=values.pop("update"))

    def close(self) -> None:
        if self._tracker is not None:
            self._tracker.finish()


class Tracker:
    """trackio or wandb, which take the same three calls."""

    def __init__(self, name: str, run: str, config: dict[str, Any]) -> None:
        self._module: Any = _tracker_module(name)
        self._module.init(project="anchorwatch", name=run, config=config)

    def log(self, values: dict[str, Any], step: int) -> None:
        self._module.log(values, step=step)

    def finish(self) -> None:
        self._module.finish()


def check_tracker(name: str | None) -> None:
    """Refuse a tracker that is not installed, before anything is built."""
    if name is not None:
        _tracker_module(name)


def _tracker_module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise SpecError(
            f"log.tracker = {name!r} is not installed: pip install {name}, or leave it out; "
            "log.csv and log.jsonl are always written"
        ) from None
