"""`anchorwatch train`: the words of it, and one call."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorwatch import training
from anchorwatch.cli import output


def train(
    spec: Annotated[Path, typer.Argument(help="SPEC.toml: network, objective, corpus, budget.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The run's folder; else the spec's name.")
    ] = None,
    more: Annotated[
        list[str] | None, typer.Option("--set", help="Over the file: optimizer.lr=1e-3.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train a network; a run that was killed goes on when the command is given again."""
    output.print_training(training.fit(training.read(spec, more or []), out), as_json)
