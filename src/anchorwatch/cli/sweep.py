"""`anchorwatch sweep` and `anchorwatch status`: the words of them, and one call each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorwatch.cli import options, output
from anchorwatch.trace.escape import one_line

_MOST_REASONS = 5


def sweep(
    spec: Annotated[Path, typer.Argument(help="A SPEC.toml: docs/sweeps.md says what is in it.")],
    out: Annotated[
        str, typer.Option("-o", "--out", help="Folder, or s3://, gs://; what is there is kept.")
    ],
    engine: options.EngineName = "local",
    workers: options.Workers = None,
    threads: options.Threads = 1,
    address: options.Address = None,
    shard: Annotated[
        str | None, typer.Option(help="Part i of n, such as 3/8, for array jobs on one folder.")
    ] = None,
    allow_skew: Annotated[
        bool, typer.Option("--allow-version-skew", help="Take workers with other versions.")
    ] = False,
    only_plan: Annotated[bool, typer.Option("--plan", help="Say the cost, run nothing.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Run models x prompts x decodings x edits x seeds; the same command again goes on.

    Exit code 0 if all cells are there, 3 if some failed, 1 if all did.
    """
    from anchorwatch.models.engines.choose import EngineOptions
    from anchorwatch.sweeps.spec import read_axes, read_spec, take_shard

    chosen = EngineOptions(engine, workers, threads, address, allow_skew)
    read = read_spec(spec)
    read_axes(read)  # a typing mistake costs no loading
    take_shard([], shard)
    if only_plan:
        from anchorwatch.sweeps.plan import plan_sweep

        planned = plan_sweep(read, out, engine=chosen, shard=shard)
        return output.print_json(planned.as_dict()) if as_json else typer.echo(str(planned))
    from anchorwatch.sweeps.sweep import sweep as run_sweep

    result = run_sweep(read, out, engine=chosen, shard=shard)
    reasons: dict[str, list[str]] = {}
    for cell, reason in result.failed.items():
        reasons.setdefault(one_line(reason), []).append(cell)
    for reason, cells in list(reasons.items())[:_MOST_REASONS]:
        output.say(f"  failed {len(cells)}, such as {cells[0][:12]}: {reason}")
    if as_json:
        output.print_json(
            {"path": result.path, "cells": result.cells, "computed": result.computed}
            | {"failed": dict(result.failed)}
        )
    else:
        typer.echo(
            f"{result.cells - len(result.failed)} of {result.cells} cells at "
            f"{one_line(result.path)}, {result.computed} computed now"
        )
    raise typer.Exit(result.exit_code)


def status(
    path: Annotated[str, typer.Argument(help="The -o of a sweep.")],
    as_json: options.AsJson = False,
) -> None:
    """Say how far a sweep is: done, running, failed with reasons, time left.

    Exit code 0 if all cells are there, 3 if some are, 1 if none is.
    """
    from anchorwatch.sweeps.status import read_status

    state = read_status(path)
    if as_json:
        output.print_json(state.as_dict())
    else:
        typer.echo(str(state))
    raise typer.Exit(state.exit_code)
