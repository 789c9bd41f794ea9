"""The command line: argument parsing only. Each command is one call of one public function.

stdout is data, stderr is talk. Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted.
Heavy imports live inside commands, so that --help answers at once.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from anchorwatch import decoding as decodings
from anchorwatch._version import __version__
from anchorwatch.errors import AnchorwatchError, AnchorwatchWarning, SpecError

app = typer.Typer(
    help="The laboratory for attention in masked diffusion language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_DECODINGS = {
    "low-confidence": "LowConfidence",
    "random": "RandomOrder",
    "dream": "DreamOrder",
    "threshold": "Threshold",
    "left-to-right": "LeftToRight",
}


@app.command()
def run(
    model: Annotated[str, typer.Argument(help="Folder, .gguf file, hub id, or tiny/llada.")],
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from stdin.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the trace here.")] = None,
    decoding: Annotated[str | None, typer.Option(help=f"One of {', '.join(_DECODINGS)}.")] = None,
    length: Annotated[int, typer.Option(help="Positions to write.")] = 64,
    steps: Annotated[int | None, typer.Option(help="Forward passes.")] = None,
    block: Annotated[int | None, typer.Option(help="Positions in a block.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    guidance: Annotated[float | None, typer.Option(help="Classifier-free guidance scale.")] = None,
    algorithm: Annotated[str | None, typer.Option(help="Dream's order.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Confidence enough to commit.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus mass.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Likeliest tokens kept.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template.")] = False,
    revision: Annotated[str | None, typer.Option(help="Hub branch, tag or commit.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps.")] = None,
    mask_id: Annotated[int | None, typer.Option(help="The mask token's id.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write an answer and keep every frame of it."""
    fields = {
        "length": length,
        "steps": steps,
        "block": block,
        "temperature": temperature,
        "guidance": guidance,
        "algorithm": algorithm,
        "threshold": threshold,
        "top_p": top_p,
        "top_k": top_k,
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    named = _decoding(decoding, fields) if decoding else None  # a typing mistake costs no loading
    import anchorwatch as aw

    if out is not None and out.exists():
        raise SpecError(f"{out} exists already: choose another name or remove it first")
    loaded = aw.load(model, revision=revision, dtype=dtype, device=device, mask_id=mask_id)
    kind = "left-to-right" if loaded.family.kind == "arm" else "low-confidence"
    text = sys.stdin.read() if prompt == "-" else prompt
    asked = [{"role": "user", "content": text}] if chat else text
    trace = aw.run(loaded, asked, named or _decoding(kind, fields), seed=seed)
    if out is not None:
        trace.write(out)
    if as_json:
        _print_json(trace.manifest | {"digest": trace.digest(), "steps": trace.num_steps})
        return
    typer.echo(trace.text)
    typer.echo(f"{trace!r}" + (f"\n  wrote     {out}" if out else ""), err=True)


@app.command()
def show(
    trace: Annotated[Path, typer.Argument(help="A trace, as `run -o` writes it.")],
    step: Annotated[int | None, typer.Option(help="Only the frame before this step.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a trace: the canvas coloured by role, one frame or the film of the run."""
    from anchorwatch import show as shows
    from anchorwatch.trace import read

    held = read(trace)
    if not as_json:
        shows.show(held, step)
        return
    frames = range(len(held.canvas)) if step is None else [step]
    _print_json({"manifest": held.manifest, "frames": [shows.frame_json(held, i) for i in frames]})


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
        fields = ("name", "kind", "architectures", "network", "visibility", "shift", "mask_id")
        rows = [
            {name: getattr(family, name) for name in (*fields, "checkpoints")}
            for family in FAMILIES
        ]
        _print_json({"families": rows, "not_read": UNSUPPORTED})
        return
    from rich.console import Console
    from rich.table import Table

    columns = ("family", "kind", "held by", "visibility", "row", "mask id", "checkpoints")
    table = Table(*columns, box=None)
    for family in FAMILIES:
        mask = "" if family.kind == "arm" else str(family.mask_id or "from tokenizer")
        row = "p-1" if family.shift else "p"
        held = family.network or "its own class"
        cells = (family.name, family.kind, held, family.visibility, row, mask, family.checkpoints)
        table.add_row(*cells)
    console = Console()
    console.print(table)
    console.print("\nembedded: tiny/llada, tiny/dream, tiny/arm, tiny/bert", highlight=False)
    console.print("known and not read:", style="dim")
    for name, reason in UNSUPPORTED.items():
        console.print(f"  {name}: {reason}", style="dim", highlight=False)


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
    try:
        with warnings.catch_warnings(record=False):
            warnings.showwarning = _say_warning
            app()
    except SpecError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except (AnchorwatchError, ModuleNotFoundError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def _decoding(name: str, fields: dict[str, Any]) -> decodings.Decoding:
    if name not in _DECODINGS:
        raise SpecError(f"no decoding is called {name!r}: expected one of {', '.join(_DECODINGS)}")
    return decodings.from_dict({"name": _DECODINGS[name]} | fields)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _say_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    prefix = "note" if issubclass(category, AnchorwatchWarning) else "warning"
    typer.echo(f"{prefix}: {message}", err=True)


if __name__ == "__main__":
    main()
