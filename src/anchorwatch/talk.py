"""What the command line says: data on stdout, talk on stderr, an error in one line."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from anchorwatch.errors import AnchorwatchWarning
from anchorwatch.foreign import one_line, visible

if TYPE_CHECKING:
    from anchorwatch.trace import Trace

_EXPLORING = ("starlette", "uvicorn")
_RUNNING = ("torch", "transformers", "safetensors", "tokenizers", "accelerate", "huggingface_hub")


def print_names(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Names, each with the first line of what it does."""
    width = max(map(len, functions))
    for name, function in functions.items():
        says = (function.__doc__ or "").strip().partition("\n")[0]
        typer.echo(f"{name:<{width}}  {says}")


def tell(trace: Trace, out: Path | None, as_json: bool) -> None:
    """A finished run: its answer on stdout, what it was on stderr."""
    if as_json:
        print_json(trace.manifest | {"digest": trace.digest(), "steps": trace.num_steps})
        return
    seen = "\n".join(visible(line) for line in trace.text.split("\n"))
    typer.echo(seen if sys.stdout is not None and sys.stdout.isatty() else trace.text)
    say(f"{trace!r}" + (f"\n  wrote     {one_line(str(out))}" if out else ""))


def wrapped(text: str, indent: int) -> str:
    """Text in lines of 80, indented."""
    lines = textwrap.wrap(text, 80 - indent, break_long_words=False, break_on_hyphens=False)
    return textwrap.indent("\n".join(lines), " " * indent)


def print_json(value: object, indent: int | None = 2) -> None:
    """Data for machines."""
    typer.echo(json.dumps(value, indent=indent))


def say(text: str) -> None:
    """Talk: on stderr, and nothing is lost when nobody can hear it."""
    with contextlib.suppress(OSError):
        typer.echo(text, err=True)


def fail(said: str, code: int) -> NoReturn:
    """Say what was wrong and stop."""
    say(f"error: {one_line(' '.join(said.split()))}")
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:  # a full disk: the interpreter would try again, and complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def lacking(error: ImportError) -> str:
    """What to install when an import fails."""
    name = (error.name or "").partition(".")[0]
    if name in _EXPLORING:
        return f"this command needs {name}, not installed: pip install 'anchorwatch[explore]'"
    if "pip install" in str(error) or name not in _RUNNING:
        return str(error)
    return f"this command needs {name}, which is not installed: pip install 'anchorwatch[run]'"


def say_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as talk, in one line."""
    prefix = "note" if issubclass(category, AnchorwatchWarning) else "warning"
    say(f"{prefix}: {one_line(' '.join(str(message).split()))}")
