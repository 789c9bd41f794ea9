"""`anchorwatch paper`: the figures and tables of a paper, listed or made by one call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorwatch.cli import options, output
from anchorwatch.cli.run import read_prompts
from anchorwatch.errors import SpecError
from anchorwatch.generation.parse import parse_decoding
from anchorwatch.models.load_options import DEFAULT_LOADING, LoadOptions
from anchorwatch.trace.escape import one_line

if TYPE_CHECKING:
    from anchorwatch.studies.reproduction import PaperItem, Reproduced


@options.takes_load_options
def paper(
    name: Annotated[str, typer.Argument(help="floating, sinks or sink-token.")],
    figure: Annotated[
        list[str] | None, typer.Option(help="A figure by its number or name; several times.")
    ] = None,
    table: Annotated[list[str] | None, typer.Option(help="A table; several times.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that can be made.")] = False,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A masked diffusion model; several times. Else the tales."),
    ] = None,
    against: Annotated[str | None, typer.Option(help="An autoregressive one.")] = None,
    sink: Annotated[str | None, typer.Option(help="One with a sink token.")] = None,
    gate: Annotated[str | None, typer.Option(help="One with gates.")] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help="A file of questions, or a task of lm-eval such as gsm8k."),
    ] = None,
    task_folder: Annotated[
        Path | None, typer.Option(help="Tasks of your own, in lm-eval's YAML.")
    ] = None,
    run_code: Annotated[
        bool,
        typer.Option("--run-code", help="Run code that models write (HumanEval): in a container."),
    ] = False,
    prompts: Annotated[
        str | None, typer.Option(help="What runs go on with: a .txt of lines, a .jsonl.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template.")] = False,
    decoding: options.Decoded = None,
    full: Annotated[
        bool, typer.Option("--full", help="As much as the paper ran; else a small effort.")
    ] = False,
    length: Annotated[int | None, typer.Option(help="Positions that a run writes.")] = None,
    steps: options.Passes = None,
    block: options.Block = None,
    limit: Annotated[int | None, typer.Option(help="Runs of each model.")] = None,
    items: Annotated[int | None, typer.Option(help="Questions in each cell of a table.")] = None,
    variants: Annotated[
        Path | None, typer.Option(help="A table of training seeds; else the package's.")
    ] = None,
    seed: options.Seed = 0,
    kind: Annotated[str, typer.Option("--format", help="Of figures: svg, png or pdf.")] = "svg",
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder; runs in it are reused.")] = Path(
        "paper"
    ),
    loading: LoadOptions = DEFAULT_LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Make figures and tables of a paper from any models; without any named, list them.

    Exit code 3 if some of several could not be made; stderr says what each needs.
    """
    from anchorwatch.studies import reproduction as of_papers

    labels = [f"figure {one}" for one in figure or []] + [f"table {one}" for one in table or []]
    if every and labels:
        raise SpecError("--all makes everything: leave --figure and --table out")
    chosen = of_papers.find_items(name, labels)
    if not every and not labels:
        return _list(chosen, as_json)
    if decoding is not None:
        _check_decoding(decoding, {"length": length, "steps": steps, "block": block})
    effort = of_papers.published_effort(name) if full else of_papers.SMALL
    said = {"length": length, "steps": steps, "block": block, "prompts": limit, "items": items}
    result = of_papers.reproduce(
        name,
        labels,
        models=model or (),
        against=against,
        sink=sink,
        gate=gate,
        tasks=task or (),
        task_folder=None if task_folder is None else str(task_folder),
        run_code=run_code,
        prompts=[] if prompts is None else read_prompts(prompts, [], None),
        chat=chat,
        decoding=decoding,
        effort=of_papers.change_effort(effort, said),
        variants=variants,
        loading=loading,
        seed=seed,
        kind=kind,
        out=out,
    )
    _print(result, as_json)
    raise typer.Exit(3 if result.lacking else 0)


def _check_decoding(word: str, sizes: Mapping[str, int | None]) -> None:
    """Refuse a typing mistake, and sizes beside a decoding that would be ignored."""
    fields = {name: size for name, size in sizes.items() if size is not None}
    parse_decoding(word, fields)
    for name in fields.keys() - {"length"}:
        raise SpecError(
            f"--{name} is of the decoding where one is named: "
            f"say --decoding {word}:{name}={fields[name]}"
        )


def _list(items: tuple[PaperItem, ...], as_json: bool) -> None:
    if as_json:
        rows = [
            {"label": item.label, "says": item.says, "models": list(item.roles)}
            | {"published": item.published, "command": item.command}
            for item in items
        ]
        return output.print_json(rows)
    width = max(len(item.label) for item in items)
    for item in items:
        typer.echo(f"{item.label:<{width}}  {item.says}")
        if item.published:
            typer.echo(output.wrap_text(f"as published: {item.published}", width + 2))


def _print(result: Reproduced, as_json: bool) -> None:
    if as_json:
        made = {label: [str(path) for path in paths] for label, paths in result.made.items()}
        return output.print_json({"made": made, "lacking": dict(result.lacking)})
    for paths in result.made.values():
        for path in paths:
            typer.echo(str(path))
    for label, needs in result.lacking.items():
        output.say(f"not made, {label}: {one_line(needs)}")
