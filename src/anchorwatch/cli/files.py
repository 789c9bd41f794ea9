"""What the command line reads, and where it writes: prompts, stdin, files that may be made."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from anchorwatch.errors import SpecError
from anchorwatch.trace.input_files import (
    LONGEST_LINE,
    odd_kind,
    open_plain,
    parse_json,
    plain_lines,
    read_bounded,
)


def prompts(source: str | None, texts: list[str], limit: int | None) -> list[Any]:
    """The prompts of a file, or those that were typed; `limit` takes the first so many.

    A .jsonl has an object with `prompt` on each line: text, token ids or chat messages. Any other
    file, and - for stdin, is text with a prompt on each line. An empty line is no prompt.
    """
    if (source is None) == (not texts):
        raise SpecError("give a file of prompts, or --prompt TEXT once for each")
    found: list[Any] = list(texts)
    if source is not None:
        json_lines = source.lower().endswith((".jsonl", ".json"))
        lines = [(at, line) for at, line in enumerate(_lines_of(source), 1) if line.strip()]
        found = [_prompt(source, *line) if json_lines else line[1] for line in lines]
    if not found:
        raise SpecError(f"{source} has no prompts: it needs one on each line")
    return found[:limit]


def _lines_of(source: str) -> Iterator[str]:
    """Lines of a file, a pipe such as <(...), or - for stdin; a line is never above its limit."""
    if source == "-":
        yield from _decoded("stdin", plain_lines(_stdin(), "stdin"))
        return
    path = Path(source)
    try:
        kind = odd_kind(path)
        if kind not in (None, "a pipe"):
            raise SpecError(f"{path} is {kind}: name a .txt or .jsonl of prompts")
        with path.open("rb") if kind else open_plain(path) as handle:
            yield from _decoded(str(path), plain_lines(handle, path))
    except FileNotFoundError:
        raise SpecError(f"there is no file {path}: name a .txt or .jsonl of prompts") from None
    except OSError as error:
        raise SpecError(
            f"{path} cannot be read, {error.strerror or error}: name a .txt or .jsonl of prompts"
        ) from None
    except SpecError:
        raise
    except ValueError as error:  # a name that no file has
        raise SpecError(
            f"{path} cannot be read, {error}: name a .txt or .jsonl of prompts"
        ) from None


def _decoded(name: str, lines: Iterator[bytes]) -> Iterator[str]:
    """Lines as text, also where another mark than a line feed ends them."""
    before = 0
    for line in lines:
        try:
            yield from line.decode("utf-8").splitlines()
        except UnicodeDecodeError as error:
            at = before + error.start
            raise SpecError(
                f"{name} is not UTF-8 (byte at offset {at}): convert it first, "
                "for example with iconv -t utf-8"
            ) from None
        before += len(line)


def _prompt(source: str, number: int, line: str) -> Any:
    """The prompt of one line of JSON."""
    try:
        held = parse_json(line)
    except ValueError:
        raise SpecError(
            f'line {number} of {source} is not JSON: expected {{"prompt": "..."}} on each line'
        ) from None
    if not isinstance(held, dict) or not isinstance(held.get("prompt"), str | list):
        raise SpecError(f'line {number} of {source} has no "prompt", which is text or a list')
    return held["prompt"]


def stdin() -> str:
    """Everything on stdin, as text."""
    whole = read_bounded(_stdin(), LONGEST_LINE)
    if whole is None:
        raise SpecError(
            f"stdin has more than the {LONGEST_LINE >> 20} MiB that a prompt may have: shorten it"
        )
    try:
        return whole.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = error.object[error.start]
        raise SpecError(
            f"stdin is not UTF-8: byte {wrong:#04x} at offset {error.start}; "
            "convert it first, for example with iconv -t utf-8"
        ) from None


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise SpecError("stdin is closed: pipe the prompt in, or give it as an argument")
    return sys.stdin.buffer


def effect_places(which: str, out: Path | None, plot: Path | None, *, doses: bool) -> None:
    """Refuse a table that there will not be, and places that cannot be written, before a run."""
    from anchorwatch.metrics.table_files import KINDS, check_target

    known = ("table", "prompts", "layers", "doses", "trends")
    if which not in known:
        raise SpecError(f"--table {which} is unknown: expected one of {', '.join(known)}")
    if which in known[3:] and not doses:
        raise SpecError(f"--table {which} needs doses: add --doses 1,5,10")
    if out is not None:
        check_target(out, "table", KINDS)
    if plot is not None:
        from anchorwatch.figures.figure import KINDS as PICTURES

        check_target(plot, "figure", PICTURES)


def folder_for_all(out: Path | None, given: Mapping[str, str]) -> Path:
    """The folder that takes the tables of all metrics, made if it is not there."""
    if given:
        raise SpecError(f"all metrics have their own settings: leave {', '.join(given)} out")
    if out is None:
        raise SpecError("all metrics are many tables: say which folder, -o tables")
    if out.exists() and not out.is_dir():
        raise SpecError(f"{out} is a file: all metrics are many tables, name a folder")
    from anchorwatch.trace.atomic_io import refuse_inside_trace

    refuse_inside_trace(out)
    out.mkdir(parents=True, exist_ok=True)
    return out


def refuse_place(out: Path) -> None:
    """Refuse a place that nothing can be written to, before there is something to write."""
    from anchorwatch.trace.atomic_io import refuse_inside_trace
    from anchorwatch.trace.locks import temporary

    try:
        with contextlib.suppress(FileNotFoundError):
            out.lstat()
            raise SpecError(f"{out} exists already: choose another name or remove it first")
        if not out.parent.is_dir():
            raise SpecError(f"the folder {out.parent} does not exist: make it first")
        refuse_inside_trace(out)
        with temporary(out, folder=True):
            pass
    except SpecError:
        raise
    except (OSError, ValueError) as error:  # a name may be one that no file has
        why = getattr(error, "strerror", None) or error
        raise SpecError(f"{out} cannot be written, {why}: choose another place") from None


def refuse_trace_place(out: Path) -> Path:
    """Where the trace of a run will be; refused where none can be, or one is on its way."""
    from anchorwatch.trace.atomic_io import describe_unfinished, finished_of, partial_of, place
    from anchorwatch.trace.locks import Lock

    growing = partial_of(place(out))
    finished = finished_of(growing)
    refuse_place(finished)
    if growing.exists():
        if who := Lock.busy(growing):
            raise SpecError(f"{growing} is being written ({who}): choose another name")
        raise SpecError(f"{describe_unfinished(growing)}, or remove it first")
    return finished
