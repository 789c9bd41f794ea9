"""The command line: argument parsing only. Each command is one call of one public function.

stdout is data, stderr is talk. Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted.
Heavy imports live inside commands, so that --help answers at once.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO

import typer

from anchorwatch import probes as kinds
from anchorwatch import words
from anchorwatch._version import __version__
from anchorwatch.errors import AnchorwatchError, AnchorwatchWarning, SpecError
from anchorwatch.foreign import one_line, visible

if TYPE_CHECKING:
    from anchorwatch.models.prompts import Prompt
    from anchorwatch.trace import Trace

app = typer.Typer(
    help="The laboratory for attention in masked diffusion language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_RUNNING = ("torch", "transformers", "safetensors", "tokenizers", "accelerate", "huggingface_hub")
_LENGTH = 64
_EMBEDDED = ("tiny/llada", "tiny/dream", "tiny/arm", "tiny/bert")


@app.command()
def run(
    model: Annotated[str, typer.Argument(help="Folder, .gguf file, hub id, or tiny/llada.")],
    prompt: Annotated[
        str,
        typer.Argument(
            help="The prompt. - reads it from stdin; "
            'put -- before one that begins with a dash: -- "-5 degrees".'
        ),
    ],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the trace here.")] = None,
    decoding: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(words.DECODINGS)}.")
    ] = None,
    length: Annotated[
        int | None, typer.Option(help=f"Positions to write; {_LENGTH}, or all masks to infill.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Forward passes.")] = None,
    block: Annotated[int | None, typer.Option(help="Positions in a block.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    guidance: Annotated[float | None, typer.Option(help="Classifier-free guidance scale.")] = None,
    forbid_end: Annotated[bool, typer.Option("--forbid-end", help="No end tokens.")] = False,
    defer_end: Annotated[bool, typer.Option("--defer-end", help="End tokens last.")] = False,
    algorithm: Annotated[str | None, typer.Option(help="Dream's order.")] = None,
    algorithm_temperature: Annotated[float | None, typer.Option(help="Above 0, draws.")] = None,
    eps: Annotated[float | None, typer.Option(help="Dream's time at the last step.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Confidence enough to commit.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus mass.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Likeliest tokens kept.")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Reread all each step.")] = False,
    no_stop: Annotated[bool, typer.Option("--no-stop", help="Go on after an end token.")] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the run.")] = 0,
    probes: Annotated[
        str, typer.Option(help=f"default, none, or some of {', '.join(kinds.PROBES)}.")
    ] = "default",
    infill: Annotated[bool, typer.Option("--infill", help="Fill the prompt's masks.")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template.")] = False,
    revision: Annotated[str | None, typer.Option(help="Hub branch, tag or commit.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps.")] = None,
    mask_id: Annotated[int | None, typer.Option(help="The mask token's id.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write an answer and keep every frame of it."""
    given: dict[str, Any] = {
        "length": _LENGTH if length is None and not infill else length,
        "steps": steps,
        "block": block,
        "temperature": temperature,
        "guidance": guidance,
        "forbid_end": forbid_end or None,
        "defer_end": defer_end or None,
        "algorithm": algorithm,
        "algorithm_temperature": algorithm_temperature,
        "eps": eps,
        "threshold": threshold,
        "top_p": top_p,
        "top_k": top_k,
        "cache": False if no_cache else None,
        "stop": False if no_stop else None,
    }
    # A typing mistake costs no loading: all that can be is checked first.
    fields = {name: value for name, value in given.items() if value is not None}
    named = words.named(decoding, fields)
    measured = words.probes(probes)
    if out is not None:
        words.refuse_place(out)
    text = words.stdin() if prompt == "-" else prompt
    import anchorwatch as aw

    loaded = aw.load(model, revision=revision, dtype=dtype, device=device, mask_id=mask_id)
    how = named or words.decoding(words.DEFAULTS[loaded.family.kind], fields)
    asked: Prompt = [{"role": "user", "content": text}] if chat else text
    ask, canvas = (None, words.masked_canvas(loaded, asked)) if infill else (asked, None)
    plan = str(aw.plan(loaded, ask, how, canvas=canvas, probes=measured)).splitlines()
    _say(f"plan: {plan[0]}; {plan[-1]}")
    _tell(
        aw.run(loaded, ask, how, canvas=canvas, probes=measured, seed=seed, out=out), out, as_json
    )


@app.command()
def resume(
    model: Annotated[str, typer.Argument(help="The model the run was begun with.")],
    trace: Annotated[Path, typer.Argument(help="The -o of a run that did not end.")],
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was killed, after its last whole block of steps."""
    import anchorwatch as aw

    _tell(aw.run(aw.load(model), resume=trace), trace, as_json)


@app.command()
def show(
    trace: Annotated[Path, typer.Argument(help="A trace, as `run -o` writes it.")],
    step: Annotated[int | None, typer.Option(help="Only the frame before this step.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every frame of a long film.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a trace: the canvas coloured by role, one frame or the film of the run."""
    from anchorwatch import show as shows
    from anchorwatch.trace import read

    if every and step is not None:
        raise SpecError("--all shows every frame and --step one: choose one of them")
    held = read(trace)
    if as_json:
        frames = shows.frames_json(held, step)
        _print_json({"manifest": held.manifest, "frames": frames}, indent=None)
    else:
        shows.show(held, step, every=every)


@app.command()
def verify(
    trace: Annotated[Path, typer.Argument(help="A trace, as `run -o` writes it.")],
    as_json: AsJson = False,
) -> None:
    """Compare every byte of a trace with its commit record; exit code 1 if anything differs."""
    from anchorwatch.commits import damage, extent

    found = damage(trace)
    files, size = (0, 0) if found else extent(trace)
    if as_json:
        _print_json({"whole": not found, "damage": found, "files": files, "bytes": size})
    else:
        typer.echo("\n".join(found) or f"whole: {files} files, {size} bytes")
    raise typer.Exit(1 if found else 0)


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the families that can be loaded, and what each checkpoint must look like."""
    from anchorwatch.models.families import FAMILIES, UNSUPPORTED

    if as_json:
        names = ("name", "kind", "architectures", "model_types", "network", "visibility", "shift")
        rows = [
            {name: getattr(family, name) for name in (*names, "mask_id", "checkpoints")}
            for family in FAMILIES
        ]
        _print_json({"families": rows, "embedded": _EMBEDDED, "not_read": UNSUPPORTED})
        return
    row = "{:<13}{:<6}{:<15}{:<5}{:<16}{}"
    typer.echo(row.format("family", "kind", "visibility", "row", "mask id", "held by"))
    for family in FAMILIES:
        mask = "none" if family.kind == "arm" else str(family.mask_id or "from tokenizer")
        held, at = family.network or "its own class", "p-1" if family.shift else "p"
        cells = (family.name, family.kind, family.visibility, at, mask, held)
        typer.echo(row.format(*cells))
        typer.echo(_wrapped(family.checkpoints, 13))
    typer.echo("\nrow p-1: what the network says at the position before is about the token at p")
    typer.echo(f"embedded: {', '.join(_EMBEDDED)}\n\nknown and not read:")
    for name, reason in UNSUPPORTED.items():
        typer.echo(f"  {name}\n{_wrapped(reason, 4)}")


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="Folder with pickled weights (.bin).")],
    out: Annotated[Path, typer.Argument(help="Folder to write safetensors to.")],
) -> None:
    """Rewrite pickled weights as safetensors, reading tensors only and running nothing."""
    from anchorwatch.models.convert import convert as rewrite

    typer.echo(str(rewrite(source, out)))


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Check this machine: versions, devices, and that the embedded models obey their laws."""
    from anchorwatch.doctor import examine

    findings = examine()
    failed = [finding for finding in findings if not finding.good]
    if as_json:
        _print_json([finding.as_dict() for finding in findings])
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            mark = "ok  " if finding.good else "FAIL"
            typer.echo(f"{mark} {finding.name:<{width}}  {finding.says}")
    raise typer.Exit(1 if failed else 0)


def main() -> None:
    """Entry point: errors become one line on stderr and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings(record=False):
            warnings.showwarning = _say_warning
            app()
    except SpecError as error:
        _fail(str(error), 2)
    except ImportError as error:
        _fail(_lacking(error), 1)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        _fail(f"{error.strerror}{where}" if error.strerror else str(error), 1)
    except AnchorwatchError as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        sys.exit(130)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def _tell(trace: Trace, out: Path | None, as_json: bool) -> None:
    if as_json:
        _print_json(trace.manifest | {"digest": trace.digest(), "steps": trace.num_steps})
        return
    seen = "\n".join(visible(line) for line in trace.text.split("\n"))
    typer.echo(seen if sys.stdout is not None and sys.stdout.isatty() else trace.text)
    _say(f"{trace!r}" + (f"\n  wrote     {one_line(str(out))}" if out else ""))


def _wrapped(text: str, indent: int) -> str:
    lines = textwrap.wrap(text, 80 - indent, break_long_words=False, break_on_hyphens=False)
    return textwrap.indent("\n".join(lines), " " * indent)


def _print_json(value: object, indent: int | None = 2) -> None:
    typer.echo(json.dumps(value, indent=indent))


def _say(text: str) -> None:
    """Talk: on stderr, and nothing is lost when nobody can hear it."""
    with contextlib.suppress(OSError):
        typer.echo(text, err=True)


def _fail(said: str, code: int) -> NoReturn:
    _say(f"error: {one_line(' '.join(said.split()))}")
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:  # a full disk: the interpreter would try again, and complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def _lacking(error: ImportError) -> str:
    name = (error.name or "").partition(".")[0]
    if "pip install" in str(error) or name not in _RUNNING:
        return str(error)
    return f"this command needs {name}, which is not installed: pip install 'anchorwatch[run]'"


def _say_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    prefix = "note" if issubclass(category, AnchorwatchWarning) else "warning"
    _say(f"{prefix}: {one_line(' '.join(str(message).split()))}")


if __name__ == "__main__":
    main()
