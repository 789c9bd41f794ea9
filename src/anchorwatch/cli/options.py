"""Options that several commands have, each with its words of help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorwatch.generation import parse as spelling

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Revision = Annotated[str | None, typer.Option(help="Hub branch, tag or commit.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps.")]
MaskId = Annotated[int | None, typer.Option(help="The mask token's id.")]
Decoded = Annotated[
    str | None, typer.Option(help=f"{', '.join(spelling.DECODINGS)}; with fields, dream:eps=0.01.")
]
Length = Annotated[int | None, typer.Option(help="Positions to write; 64, or all masks to infill.")]
Passes = Annotated[int | None, typer.Option(help="Forward passes.")]
Block = Annotated[int | None, typer.Option(help="Positions in a block.")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the run.")]
Edits = Annotated[
    list[str] | None,
    typer.Option(
        help="What to change: hide-sinks:1,form=weight, hide-keys:0+3, knock-out:2.3+2.5."
    ),
]
Traces = Annotated[list[Path] | None, typer.Argument(help="Traces, as `run -o` writes them.")]
Rule = Annotated[
    str | None, typer.Option(help="What a sink is: rulli:3, zscore:3, gu:0.3, topk:1.")
]
Group = Annotated[str | None, typer.Option(help="Queries that count: all, masked, written.")]
More = Annotated[list[str] | None, typer.Option("--set", help="Another option, name=value.")]
