"""What a sweep would cost: product, forward passes, bytes and minutes, before anything is kept."""

from __future__ import annotations

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
from anchorwatch.sweeps.spec import Axes, PromptValue, Spec
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
        return (
            f"{axes} = {self.cells:,} cells, {self.there:,} of them there already\n"
            f"{self.passes:,} forward passes, {size(self.disk_bytes)} on disk before compression, "
            f"about {self.minutes:.3g} minutes for what is left with {self.workers} "
            f"worker{'s' * (self.workers != 1)} as fast as this machine"
        )


def plan_sweep(
    spec: str | Path | Mapping[str, Any] | Spec,
    out: str | Path | None = None,
    *,
    engine: EngineOptions = EngineOptions(),  # noqa: B008 - a frozen value
) -> SweepPlan:
    """What `sweep` with these arguments would run; each model is loaded and timed for a moment."""
    prepared = prepare(spec)
    axes, worker = prepared.axes, Worker()
    passes = disk_bytes = 0
    seconds: list[float] = []
    others = len(axes.edits) * len(axes.seeds)
    for ref in prepared.models:
        model = worker.model(ref)
        each_pass = _time_pass(model, axes)
        for decoding in axes.decodings:
            how = dict(decoding.by_kind)[model.family.kind]
            costs = [_cost(model, value, how, axes) for value in axes.prompts]
            passes += others * sum(cost for cost, _ in costs)
            disk_bytes += others * sum(size for _, size in costs)
            seconds.append(others * each_pass * sum(cost for cost, _ in costs))
    there = 0
    if out is not None:
        done = open_cells(out).done()
        there = sum(cell.name in done for cell in prepared.keys.cells())
    left = 1 - there / axes.num_cells
    product = {
        "models": len(axes.models),
        "prompts": len(axes.prompts),
        "decodings": len(axes.decodings),
        "edits": len(axes.edits),
        "seeds": len(axes.seeds),
    }
    workers = max(1, engine.count_workers(largest_model(prepared.models)))
    return SweepPlan(
        product, axes.num_cells, there, passes, disk_bytes, left * sum(seconds), workers
    )


def _cost(model: Model, value: PromptValue, how: Decoding | None, axes: Axes) -> tuple[int, int]:
    """Passes and bytes of one cell; a prompt that does not fit costs nothing, and will fail."""
    try:
        prompt, regions = prompt_for(model, value)
        planned = plan(model, prompt, how, regions=regions, probes=axes.probes)
    except PromptError:
        return 0, 0
    return planned.forward_passes, planned.disk_bytes


def _time_pass(model: Model, axes: Axes) -> float:
    """Seconds of a measured pass over the first prompt, at the length that will be written."""
    prompt, regions = prompt_for(model, axes.prompts[0])
    how = dict(axes.decodings[0].by_kind)[model.family.kind]
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
