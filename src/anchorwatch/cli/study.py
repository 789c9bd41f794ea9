"""`anchorwatch study`: the words of it, and one call."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchorwatch.cli import options, output
from anchorwatch.cli.run import read_prompts
from anchorwatch.errors import SpecError
from anchorwatch.generation import parse
from anchorwatch.models.load_options import DEFAULT_LOADING, LoadOptions
from anchorwatch.trace.escape import one_line

if TYPE_CHECKING:
    from anchorwatch.studies.plan_study import Plan
    from anchorwatch.studies.protocols import Protocol
    from anchorwatch.studies.study_record import Study

_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
_SHOWN = (
    *("id", "verdict", "criterion", "effect", "low", "high", "direction", "margin"),
    *("detectable", "n", "unit"),
    *("lacking", "not_about"),
)


@options.takes_load_options
def study(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="floating, sinks, sink_token, or claims such as sinks/H3; else all."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The masked diffusion model; else the tales.")
    ] = None,
    against: Annotated[str | None, typer.Option(help="The autoregressive one.")] = None,
    sink: Annotated[str | None, typer.Option(help="One with a sink token.")] = None,
    gate: Annotated[str | None, typer.Option(help="One with gates.")] = None,
    budget: Annotated[str, typer.Option(help="quick, standard or full.")] = "quick",
    protocol: Annotated[
        str | None,
        typer.Option(
            help="A paper's settings: rulli (chat, 128 positions in 128 steps, blocks of 32), "
            "floating (32 in 32), sink-token (256 in 256). What else is said wins."
        ),
    ] = None,
    chat: Annotated[
        bool | None, typer.Option("--chat/--no-chat", help="Prompts in the chat template.")
    ] = None,
    decoding: options.Decoded = None,
    length: Annotated[int | None, typer.Option(help="Positions that watched runs write.")] = None,
    steps: Annotated[int | None, typer.Option(help="Their forward passes; else as many.")] = None,
    block: options.Block = None,
    prompts: Annotated[
        str | None,
        typer.Option(help='Running text to go on with: a .txt of lines, a .jsonl with "prompt".'),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="A file of questions, in place of made-up ones.")
    ] = None,
    contexts: Annotated[
        str | None,
        typer.Option(help="What claims' contexts are in the task: gold=open5,closed=closed."),
    ] = None,
    answer: Annotated[int | None, typer.Option(help="Positions of an answer.")] = None,
    variants: Annotated[
        Path | None, typer.Option(help="A table of training seeds; else the package's.")
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder, to go on from.")] = Path(
        "study"
    ),
    engine: options.MaybeEngine = None,
    workers: options.Workers = None,
    address: options.Address = None,
    loading: LoadOptions = DEFAULT_LOADING,
    only_plan: Annotated[bool, typer.Option("--plan", help="Say the cost, run nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    opens: Annotated[
        bool | None,
        typer.Option(
            "--open/--no-open", help="Show the page in a browser; at a desktop's terminal it does."
        ),
    ] = None,
) -> None:
    """Run the papers' claims on models: one page, report.html; a table on stdout.

    Beside the page are report.md, claims.json, claims.csv and figures/. Exit code 3 if some claims
    are not testable, as they lack something.
    """
    from anchorwatch.studies.budget import budget as named
    from anchorwatch.studies.papers import claims
    from anchorwatch.studies.verdict import NOT_TESTABLE

    claims(names or [])  # a typing mistake costs no loading
    shared = options.parse_engine(engine, workers, address)
    sizes: dict[str, Any] = {"length": length, "steps": steps, "block": block}
    settings: dict[str, Any] = {"chat": chat, "task": task, "answer": answer}
    settings["contexts"] = None if contexts is None else _parse_contexts(contexts)
    settings["prompts"] = None if prompts is None else tuple(read_prompts(prompts, [], None))
    way = _protocol(protocol, decoding, sizes, settings)
    named(budget, way)
    if variants is not None and not variants.is_file():
        raise SpecError(f"there is no table {variants}: make one with `make variants`")
    from anchorwatch import studies

    given: dict[str, Any] = {"model": model, "against": against, "sink": sink, "gate": gate}
    given |= {"budget": budget, "variants": variants, "out": out}
    given |= {"protocol": way, "loading": loading}
    if only_plan:
        planned = studies.plan(names or [], **given)
        if as_json:
            return output.print_json(planned.as_dict())
        return typer.echo(str(planned))
    result = studies.study(names or [], **given, before=_say, engine=shared)
    if as_json:
        output.print_json(json.loads(json.dumps(result.as_dict())))
    else:
        typer.echo(_table(result), nl=False)
    page = out / "report.html"
    output.say(f"{result!r}\nwrote {one_line(str(page))}")
    shown = _at_a_desktop() if opens is None else opens
    if shown:
        _show(page)
    raise typer.Exit(3 if result.counts()[NOT_TESTABLE] else 0)


def _protocol(
    name: str | None, word: str | None, sizes: dict[str, Any], settings: dict[str, Any]
) -> Protocol:
    """The protocol that the options say; a decoding takes the sizes that are said beside it."""
    from anchorwatch.studies.protocols import protocol

    if word is None:
        return protocol(name, **sizes, **settings)
    fields = {size: value for size, value in sizes.items() if value is not None}
    return protocol(name, decoding=parse.parse_decoding(word, fields), **settings)


def _parse_contexts(word: str) -> dict[str, str]:
    """`claim=task` words joined by commas."""
    pairs = [part.partition("=") for part in word.split(",")]
    if wrong := [part for part in pairs if not all(part)]:
        raise SpecError(
            f"--contexts {''.join(wrong[0])} is not claim=task, such as --contexts gold=open5"
        )
    names = [claim.strip() for claim, _, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SpecError(f"--contexts says twice what {twice[0]} is: say one of them")
    return {claim.strip(): shown.strip() for claim, _, shown in pairs}


def _table(result: Study) -> str:
    """Lines for a person at a terminal; numbers in full, as CSV, for a file or the next program."""
    from anchorwatch.metrics.table_files import as_csv

    table = result.claims[list(_SHOWN)]
    if not sys.stdout.isatty():
        return as_csv(table)
    lines = []
    for row in table.itertuples():
        numbers, words = "", row.not_about
        if row.lacking:
            words = f"lacks {row.lacking}"
        elif not row.not_about:
            numbers = f"{row.effect:.3g} [{row.low:.3g}, {row.high:.3g}]"
            words = f"n = {row.n} {row.unit}s"
            if math.isfinite(row.detectable):
                words += f", 80 % power to detect {row.detectable:.3g}"
        lines.append(f"{row.id:<15}{row.verdict:<22}{numbers:<30}{one_line(words)}".rstrip())
    return "\n".join(lines) + "\n"


def _say(plan: Plan) -> None:
    """The plan, before anything runs."""
    output.say(one_line(str(plan).splitlines()[-1].strip()))


def _at_a_desktop() -> bool:
    """A person at a terminal who has a screen: elsewhere a browser would hang or take the shell."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        return False
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, _SCREENS))


def _show(page: Path) -> None:
    """In the browser that is there; a machine without one says where the page is all the same."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        output.say("note: there is no browser to open it in")
