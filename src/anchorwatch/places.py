"""What the command line reads, and where it writes: prompts, stdin, files that may be made."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anchorwatch.errors import SpecError
from anchorwatch.foreign import read_text


def prompts(source: str | None, texts: list[str], limit: int | None) -> list[Any]:
    """The prompts of a file, or those that were typed; `limit` takes the first so many.

    A .jsonl has an object with `prompt` on each line: text, token ids or chat messages. Any other
    file, and - for stdin, is text with a prompt on each line. An empty line is no prompt.
    """
    if (source is None) == (not texts):
        raise SpecError("give a file of prompts, or --prompt TEXT once for each")
    found: list[Any] = list(texts)
    if source is not None:
        text = stdin() if source == "-" else _text_of(Path(source))
        lines = [(at, line) for at, line in enumerate(text.splitlines(), 1) if line.strip()]
        json_lines = source.lower().endswith((".jsonl", ".json"))
        found = [_prompt(source, *line) if json_lines else line[1] for line in lines]
    if not found:
        raise SpecError(f"{source} has no prompts: it needs one on each line")
    return found[:limit]


def _text_of(path: Path) -> str:
    try:
        return read_text(path)
    except FileNotFoundError:
        raise SpecError(f"there is no file {path}: name a .txt or .jsonl of prompts") from None
    except OSError as error:
        raise SpecError(
            f"{path} cannot be read, {error.strerror}: name a .txt or .jsonl of prompts"
        ) from None
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{path} is not UTF-8 (byte at offset {error.start}): convert it first, "
            "for example with iconv -t utf-8"
        ) from None
    except ValueError as error:  # without an end, or a name that no file has
        raise SpecError(
            f"{path} cannot be read, {error}: name a .txt or .jsonl of prompts"
        ) from None


def _prompt(source: str, number: int, line: str) -> Any:
    """The prompt of one line of JSON."""
    try:
        held = json.loads(line)
    except (ValueError, RecursionError):  # no JSON, or a number or brackets without end
        raise SpecError(
            f'line {number} of {source} is not JSON: expected {{"prompt": "..."}} on each line'
        ) from None
    if not isinstance(held, dict) or not isinstance(held.get("prompt"), str | list):
        raise SpecError(f'line {number} of {source} has no "prompt", which is text or a list')
    return held["prompt"]


def stdin() -> str:
    """Everything on stdin, as text."""
    if sys.stdin is None:
        raise SpecError("stdin is closed: pipe the prompt in, or give it as an argument")
    try:
        return read_text(sys.stdin.buffer)
    except UnicodeDecodeError as error:
        wrong = error.object[error.start]
        raise SpecError(
            f"stdin is not UTF-8: byte {wrong:#04x} at offset {error.start}; "
            "convert it first, for example with iconv -t utf-8"
        ) from None
    except ValueError as error:
        raise SpecError(f"stdin is too long, {error}: give less at a time") from None


def effect_places(which: str, out: Path | None, plot: Path | None, *, doses: bool) -> None:
    """Refuse a table that there will not be, and places that cannot be written, before a run."""
    from anchorwatch.metrics.files import KINDS, place

    known = ("table", "prompts", "layers", "doses", "trends")
    if which not in known:
        raise SpecError(f"--table {which} is unknown: expected one of {', '.join(known)}")
    if which in known[3:] and not doses:
        raise SpecError(f"--table {which} needs doses: add --doses 1,5,10")
    if out is not None:
        place(out, "table", KINDS)
    if plot is not None:
        from anchorwatch.figures.figure import KINDS as PICTURES

        place(plot, "figure", PICTURES)


def folder_for_all(out: Path | None, given: Mapping[str, str]) -> Path:
    """The folder that takes the tables of all metrics, made if it is not there."""
    if given:
        raise SpecError(f"all metrics have their own settings: leave {', '.join(given)} out")
    if out is None:
        raise SpecError("all metrics are many tables: say which folder, -o tables")
    if out.exists() and not out.is_dir():
        raise SpecError(f"{out} is a file: all metrics are many tables, name a folder")
    from anchorwatch.metrics.files import refuse_traces

    refuse_traces(out)
    out.mkdir(parents=True, exist_ok=True)
    return out


def refuse_place(out: Path) -> None:
    """Refuse a place that nothing can be written to, before there is something to write."""
    try:
        with contextlib.suppress(FileNotFoundError):
            out.lstat()
            raise SpecError(f"{out} exists already: choose another name or remove it first")
        if not out.parent.is_dir():
            raise SpecError(f"the folder {out.parent} does not exist: make it first")
        Path(tempfile.mkdtemp(prefix=".anchorwatch-", dir=out.parent)).rmdir()
    except SpecError:
        raise
    except (OSError, ValueError) as error:  # a name may be one that no file has
        why = getattr(error, "strerror", None) or error
        raise SpecError(f"{out} cannot be written, {why}: choose another place") from None
