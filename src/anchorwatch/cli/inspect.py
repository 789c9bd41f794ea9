"""Commands that read traces, tables and figures: argument parsing only, and no torch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorwatch.cli import options, output
from anchorwatch.errors import SpecError
from anchorwatch.trace.escape import one_line

if TYPE_CHECKING:
    from anchorwatch.trace.runs import Runs
    from anchorwatch.trace.trace import Trace

_MOST_LISTED = 20
"""Labels that a message names."""


def show(
    trace: Annotated[Path, typer.Argument(help="A trace, as `run -o` writes it.")],
    step: Annotated[int | None, typer.Option(help="Only the frame before this step.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every frame of a long film.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show a trace: the canvas coloured by role, one frame or the film of the run."""
    from anchorwatch.trace import render_terminal as shows
    from anchorwatch.trace.trace import read

    if every and step is not None:
        raise SpecError("--all shows every frame and --step one: choose one of them")
    loaded = read(trace)
    if as_json:
        frames = shows.frames_json(loaded, step)
        output.print_json({"manifest": loaded.manifest, "frames": frames}, indent=None)
    else:
        shows.show(loaded, step, every=every)


def verify(
    trace: Annotated[Path, typer.Argument(help="A trace, or a folder of runs.")],
    as_json: options.AsJson = False,
) -> None:
    """Compare every byte of a trace with its commit record; exit code 1 if anything differs."""
    from anchorwatch.trace.atomic_io import extent, find_damage
    from anchorwatch.trace.cells import as_address, is_runs
    from anchorwatch.trace.runs import open_runs

    if is_runs(trace):
        runs = open_runs(as_address(trace))
        problems = [f"{cell}: {problem}" for cell, problem in runs.damage().items()]
        files, size, what = len(runs), int(runs.table["bytes"].sum()), "runs"
        if problems:
            output.say("remove what is damaged, and start its sweep or study again")
    else:
        problems, what = find_damage(trace), "files"
        files, size = (0, 0) if problems else extent(trace)
    if as_json:
        output.print_json(
            {"whole": not problems, "damage": problems, "files": files, "bytes": size}
        )
    else:
        typer.echo("\n".join(problems) or f"whole: {files} {what}, {size} bytes")
    raise typer.Exit(1 if problems else 0)


def measure(
    metric: Annotated[
        str, typer.Argument(help="sinks, jumps, ...; list names them, all is the default ones.")
    ],
    traces: options.Traces = None,
    where: options.Where = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="A .csv, .json, .parquet.")
    ] = None,
    rule: options.Rule = None,
    group: options.Group = None,
    by: Annotated[str | None, typer.Option(help="Split by: layer,head,progress ...")] = None,
    more: options.More = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure traces: a tidy table with null, lift and interval, as CSV on stdout."""
    from anchorwatch import metrics
    from anchorwatch.metrics import table_files
    from anchorwatch.metrics.registry import measure_all

    if metric == "list":
        return output.print_names(metrics.METRICS)
    given = _merge_options({"rule": rule, "group": group, "by": by}, more)
    if metric == "all":
        folder = output.folder_for_all(out, given)
        for name, table in measure_all(_read_traces(traces, where)).items():
            table_files.save(table, folder / f"{name}.{'json' if as_json else 'csv'}")
        return output.say(f"wrote {one_line(str(folder))}")
    function = options.find_metric(metric)
    takes = list(inspect.signature(function).parameters)[1:]  # the first is the traces
    values = options.parse_options([function], takes, given)
    if out is not None:
        table_files.check_target(out, "table", table_files.KINDS)
    table = function(_read_traces(traces, where), **values)
    if out is not None:
        output.say(f"wrote {one_line(str(table_files.save(table, out)))}")
    if out is None or as_json:
        typer.echo(table_files.as_json(table) if as_json else table_files.as_csv(table), nl=as_json)


def plot(
    figure: Annotated[str, typer.Argument(help="sink-map, absorption, ...; list names all.")],
    traces: options.Traces = None,
    where: options.Where = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="A .pdf, .svg or .png.")] = None,
    rule: options.Rule = None,
    group: options.Group = None,
    layer: Annotated[int | None, typer.Option(help="Only this layer.")] = None,
    head: Annotated[int | None, typer.Option(help="Only this head.")] = None,
    step: Annotated[int | None, typer.Option(help="Only this step.")] = None,
    more: options.More = None,
) -> None:
    """Draw a figure of traces into a file that remembers what made it."""
    from anchorwatch.figures import FIGURES
    from anchorwatch.figures.figure import KINDS
    from anchorwatch.figures.registry import draw, find
    from anchorwatch.metrics.table_files import check_target

    if figure == "list":
        return output.print_names({name: plot.function for name, plot in FIGURES.items()})
    drawn = find(figure)
    named = {"rule": rule, "group": group, "layer": layer, "head": head, "step": step}
    functions = [drawn.function, *([drawn.measure] if drawn.measure else [])]
    values = options.parse_options(functions, drawn.takes, _merge_options(named, more))
    if out is None:
        raise SpecError("say where to: -o sinks.pdf")
    check_target(out, "figure", KINDS)
    typer.echo(str(draw(figure, _read_traces(traces, where), values).save(out)))


def whence(
    file: Annotated[Path, typer.Argument(help="A figure, or a .json or .parquet table.")],
) -> None:
    """Say what made a figure or a table: settings and traces, as JSON."""
    from anchorwatch.figures import whence as of_figure
    from anchorwatch.metrics.table_files import read_origin

    table = file.suffix.lower() in (".json", ".parquet", ".csv")
    output.print_json(read_origin(file) if table else of_figure(file))


def _read_traces(paths: list[Path] | None, where: list[str] | None) -> list[Trace]:
    from anchorwatch.trace.cells import is_runs
    from anchorwatch.trace.trace import read

    if not paths:
        raise SpecError("name at least one trace, as `anchorwatch run -o` writes it")
    traces: list[Trace] = []
    for path in paths:
        traces += _select_runs(path, where or []) if is_runs(path) else [read(path)]
    if where and not any(map(is_runs, paths)):
        raise SpecError("--where chooses among the runs of a folder, and these are traces: drop it")
    return traces


def _select_runs(path: Path, where: list[str]) -> Runs:
    """The runs of a folder that have the labels; runs under several edits are not mixed unsaid."""
    from anchorwatch.trace.cells import as_address
    from anchorwatch.trace.runs import open_runs, parse_labels

    runs, wanted = open_runs(as_address(path)), parse_labels(where)
    for name, values in wanted.items():
        known = runs.table[name].unique().tolist()
        if unknown := [value for value in values if value not in known]:
            listed = ", ".join(map(str, known[:_MOST_LISTED]))
            raise SpecError(f"no run has {name}={unknown[0]}: expected one of {listed}")
    edits = runs.table["edit"].unique().tolist()
    if "edit" not in wanted and len(edits) > 1:
        raise SpecError(
            f"{path} has runs under {len(edits)} edits, which a table or figure would mix: say "
            f"--where edit={edits[0]}, or --where once for each that is meant"
        )
    if not len(chosen := runs.select(**wanted)):
        raise SpecError("no run has all of these labels: say --where less often")
    return chosen


def _merge_options(named: Mapping[str, object], more: list[str] | None) -> dict[str, str]:
    return options.parse_settings(
        more or [], {k: str(v) for k, v in named.items() if v is not None}
    )
