"""What the command line writes: data to stdout, notes to stderr, files to checked paths."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from anchorwatch import explain_missing_module
from anchorwatch.errors import AnchorwatchWarning, SpecError
from anchorwatch.trace.escape import one_line, visible

if TYPE_CHECKING:
    from anchorwatch.cli.doctor import Finding
    from anchorwatch.models.zoo.describe import ModelRecord
    from anchorwatch.trace.trace import Trace
    from anchorwatch.training import Fitted


def print_names(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Names, each with the first line of what it does."""
    width = max(map(len, functions))
    for name, function in functions.items():
        says = (function.__doc__ or "").strip().partition("\n")[0]
        typer.echo(f"{name:<{width}}  {says}")


def print_families(embedded: Sequence[str], *, as_json: bool) -> None:
    """The families that can be loaded, those that cannot, and the models that need no file."""
    from anchorwatch.models.families import FAMILIES, UNSUPPORTED

    if as_json:
        names = ("name", "kind", "architectures", "model_types", "network", "visibility", "shift")
        rows = [
            {name: getattr(family, name) for name in (*names, "mask_id", "checkpoints")}
            for family in FAMILIES
        ]
        return print_json({"families": rows, "embedded": embedded, "not_read": UNSUPPORTED})
    row = "{:<17}{:<6}{:<15}{:<5}{:<16}{}"
    typer.echo(row.format("family", "kind", "visibility", "row", "mask id", "held by"))
    for family in FAMILIES:
        mask = "none" if family.kind == "arm" else str(family.mask_id or "from tokenizer")
        network, row_word = family.network or "its own class", "p-1" if family.shift else "p"
        cells = (family.name, family.kind, family.visibility, row_word, mask, network)
        typer.echo(row.format(*cells))
        typer.echo(wrap_text(family.checkpoints, 17))
    typer.echo("\nrow p-1: what the network says at the position before is about the token at p")
    named = textwrap.fill(f"embedded: {', '.join(embedded)}", 80, subsequent_indent=" " * 10)
    fetched = "lab/smol-* need `anchorwatch fetch smol`, once. `anchorwatch models NAME` says what "
    fetched += "is known of a model of lab/."
    typer.echo(f"{named}\n{wrap_text(fetched, 10)}\n\nknown and not read:")
    for name, reason in UNSUPPORTED.items():
        typer.echo(f"  {name}\n{wrap_text(reason, 4)}")


def print_model(record: ModelRecord, *, as_json: bool) -> None:
    """What is known of a model on board, a line for each thing."""
    from anchorwatch.models.zoo.cards import CONTEXTS

    if as_json:
        return print_json(asdict(record))
    shape, budget = record.shape, record.budget
    stored = "not here yet" if record.bytes is None else f"{record.bytes / 1e6:.1f} MB"
    delta = f"{record.delta_of}, whose changed tensors have the digest {record.delta_digest}"
    lines = {
        "kind": record.kind,
        "network": f"{shape['network']}, {shape['layers']} layers of {shape['heads']} heads, "
        f"width {shape['width']}, {shape['positions']} positions",
        "parameters": f"{record.parameters:,}",
        "parts": ", ".join(record.parts) or "none",
        "delta of": delta if record.delta_of else None,
        "stored": stored,
        "weights": record.weights and f"digest {record.weights}",
        "files": record.files and f"digest {record.files}",
        "needs": record.needs and f"{record.needs}, once",
        "trained last": budget and f"{budget['updates']:,} updates, {budget['tokens']:,} tokens",
    }
    lines["card"] = record.card or "none: docs/specimens.md says what was measured"
    typer.echo(record.name)
    for what, text in lines.items():
        if text is not None:
            typer.echo(f"  {what:<12}  {text}")
    for context, right in (record.answers or {}).items():
        share = f"{right['value']:.2f} [{right['low']:.2f}, {right['high']:.2f}]"
        typer.echo(
            f"  right in {share} of {right['n']} questions, guesser {right['null']:.2f}: "
            f"{CONTEXTS[context]}"
        )


def print_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    """What the doctor found."""
    if as_json:
        return print_json([finding.as_dict() for finding in findings])
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = "ok  " if finding.good else "FAIL"
        typer.echo(f"{mark} {finding.name:<{width}}  {finding.says}")


def print_run(trace: Trace, out: Path | None, as_json: bool) -> None:
    """A finished run: its answer on stdout, what it was on stderr."""
    if as_json:
        print_json(trace.manifest | {"digest": trace.digest(), "steps": trace.num_steps})
        return
    seen = "\n".join(visible(line) for line in trace.text.split("\n"))
    typer.echo(seen if sys.stdout is not None and sys.stdout.isatty() else trace.text)
    say(f"{trace!r}" + (f"\n  wrote     {one_line(str(out))}" if out else ""))


def print_training(done: Fitted, as_json: bool) -> None:
    """A finished training run: its model on stdout, what it was on stderr."""
    if as_json:
        return print_json(done.as_dict())
    typer.echo(str(done.model))
    begun = f", gone on with at {done.resumed_at}" if done.resumed_at else ""
    many = f"{done.processes} process{'es' if done.processes > 1 else ''}"
    say(
        f"{done.updates} updates{begun}, {done.tokens} tokens, {many}: "
        f"loss {done.loss:.4f} nats per scored token over the last tenth"
    )


def wrap_text(text: str, indent: int) -> str:
    """Text in lines of 80, indented."""
    lines = textwrap.wrap(text, 80 - indent, break_long_words=False, break_on_hyphens=False)
    return textwrap.indent("\n".join(lines), " " * indent)


def print_json(value: object, indent: int | None = 2) -> None:
    """Data for machines."""
    typer.echo(json.dumps(value, indent=indent))


def say(text: str) -> None:
    """A note on stderr; nothing is lost where that is closed."""
    with contextlib.suppress(OSError):
        typer.echo(text, err=True)


def fail(message: str, code: int) -> NoReturn:
    """Say what was wrong and stop."""
    say(f"error: {one_line(' '.join(message.split()))}")
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:  # a full disk: the interpreter would try again, and complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def install_hint(error: ImportError) -> str:
    """What to install when an import fails."""
    if isinstance(error, ModuleNotFoundError):
        error = explain_missing_module(error, "this command")
    return str(error)


def say_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as a note, in one line."""
    prefix = "note" if issubclass(category, AnchorwatchWarning) else "warning"
    say(f"{prefix}: {one_line(' '.join(str(message).split()))}")


def check_effect_paths(which: str, out: Path | None, plot: Path | None, *, doses: bool) -> None:
    """Refuse a table that there will not be, and paths that cannot be written, before a run."""
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


def refuse_path(out: Path) -> None:
    """Refuse a path that nothing can be written to, before there is something to write."""
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


def refuse_trace_path(out: Path) -> Path:
    """Where the trace of a run will be; refused where none can be, or one is on its way."""
    from anchorwatch.trace.atomic_io import (
        describe_unfinished,
        expand_path,
        finished_of,
        partial_of,
    )
    from anchorwatch.trace.locks import Lock

    growing = partial_of(expand_path(out))
    finished = finished_of(growing)
    refuse_path(finished)
    if growing.exists():
        if who := Lock.busy(growing):
            raise SpecError(f"{growing} is being written ({who}): choose another name")
        raise SpecError(f"{describe_unfinished(growing)}, or remove it first")
    return finished
