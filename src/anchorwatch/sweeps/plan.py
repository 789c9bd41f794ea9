"""What a sweep would cost: product, forward passes, bytes and minutes, before anything is kept."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anchorwatch.errors import AnchorwatchWarning, PromptError
from anchorwatch.generation.decoding import Decoding, LeftToRight, LowConfidence
from anchorwatch.generation.run import plan, run
from anchorwatch.models.engines.choose import EngineOptions
from anchorwatch.models.engines.model_files import largest_model
from anchorwatch.models.engines.worker import Worker
from anchorwatch.models.model import Model
from anchorwatch.sweeps.run_cell import prompt_for
from anchorwatch.sweeps.spec import Axes, PromptValue, Spec, take_shard
from anchorwatch.sweeps.sweep import prepare
from anchorwatch.trace.cells import open_cells
from anchorwatch.trace.machine_limits import size

_TIMED_PASSES = 4
_LENGTH = 64
"""Positions that a run writes where its decoding says none."""


@dataclass(frozen=True)
class SweepPlan:
    """The cost of a sweep."""

    product: Mapping[str, int]
    """Values of each axis."""
    cells: int
    """Of the whole product."""
    planned: int
    """Of the shard, or all; what follows is of these."""
    there: int
    """Cells that are in the folder already."""
    passes: int
    """Forward passes of all cells; at most, for a decoding may stop early."""
    disk_bytes: int
    """Of all cells, before compression."""
    seconds: float
    """Of what is left, on one worker of this machine."""
    workers: int

    @property
    def minutes(self) -> float:
        return self.seconds / max(1, self.workers) / 60

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"minutes": self.minutes}

    def __str__(self) -> str:
        axes = " x ".join(f"{count} {name}" for name, count in self.product.items())
        part = "" if self.planned == self.cells else f"{self.planned:,} in this shard, "
        return (
            f"{axes} = {self.cells:,} cells, {part}{self.there:,} of them there already\n"
            f"{self.passes:,} forward passes, {size(self.disk_bytes)} on disk before compression, "
            f"about {self.minutes:.3g} minutes for what is left with {self.workers} "
            f"worker{'s' * (self.workers != 1)} as fast as this machine"
        )


def plan_sweep(
    spec: str | Path | Mapping[str, Any] | Spec,
    out: str | Path | None = None,
    *,
    engine: EngineOptions = EngineOptions(),  # noqa: B008 - a frozen value
    shard: str | None = None,
) -> SweepPlan:
    """What `sweep` with these arguments would run; each model is loaded and timed for a moment."""
    prepared = prepare(spec)
    axes, worker = prepared.axes, Worker()
    cells = take_shard(list(prepared.keys.cells()), shard)
    done = set[str]() if out is None else open_cells(out).done()
    passes = disk_bytes = there = 0
    seconds = 0.0
    # Cells are neighbours by model, and those of a prompt and a decoding cost the same.
    for index, own in itertools.groupby(cells, key=lambda cell: cell.model):
        model = worker.model(prepared.models[index])
        costs: dict[tuple[int, int], tuple[int, int]] = {}
        each_pass: float | None = None
        for cell in own:
            key = cell.prompt, cell.decoding
            how = dict(axes.decodings[cell.decoding].by_kind)[model.family.kind]
            if key not in costs:
                costs[key] = _cost(model, axes.prompts[cell.prompt], how, axes)
            cost, size_of_cell = costs[key]
            if cost and each_pass is None:
                each_pass = _time_pass(model, axes.prompts[cell.prompt], how, axes)
            passes += cost
            disk_bytes += size_of_cell
            there += cell.name in done
            seconds += 0.0 if cell.name in done else cost * (each_pass or 0.0)
    product = {
        "models": len(axes.models),
        "prompts": len(axes.prompts),
        "decodings": len(axes.decodings),
        "edits": len(axes.edits),
        "seeds": len(axes.seeds),
    }
    workers = max(1, engine.count_workers(largest_model(prepared.models)))
    return SweepPlan(
        product, axes.num_cells, len(cells), there, passes, disk_bytes, seconds, workers
    )


def _cost(model: Model, value: PromptValue, how: Decoding | None, axes: Axes) -> tuple[int, int]:
    """Passes and bytes of one cell; a prompt that does not fit costs nothing, and will fail."""
    try:
        prompt, regions = prompt_for(model, value)
        planned = plan(model, prompt, how, regions=regions, probes=axes.probes)
    except PromptError:
        return 0, 0
    return planned.forward_passes, planned.disk_bytes


def _time_pass(model: Model, value: PromptValue, how: Decoding | None, axes: Axes) -> float:
    """Seconds of a measured pass over a prompt that fits, at the length that will be written."""
    prompt, regions = prompt_for(model, value)
    length = (how.length if how is not None else None) or _LENGTH
    short: Decoding = LowConfidence(length, min(_TIMED_PASSES, length), block=model.block)
    if model.family.kind == "arm":
        short = LeftToRight(min(_TIMED_PASSES, length), stop=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnchorwatchWarning)
        for _ in range(2):  # the first passes of a model are slower than the others
            begun = time.perf_counter()
            trace = run(model, prompt, short, regions=regions, probes=axes.probes)
            took = time.perf_counter() - begun
    return took / max(1, trace.num_steps)
