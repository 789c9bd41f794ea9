"""Runs that begin with a trace: `replay` measures it afterwards, `fork` leaves it at a step.

A replay repeats the same calls on the same canvases and writes what the trace wrote; on the same
machine its fields are those a live measurement would have had, bit for bit. It repeats a row of
`run_many(batch=8)` alone, where sums are rounded differently: then they agree to a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from anchorwatch.edits.spec import Edit
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.generation.build_trace import build_trace
from anchorwatch.generation.forced import (
    build_forced_run,
    check_remaining_edits,
    model_difference,
    repeat_edits,
)
from anchorwatch.generation.loop import walk
from anchorwatch.generation.plan import edit_list, probe_list
from anchorwatch.generation.prepare import checked_seed
from anchorwatch.generation.run import build_recorder
from anchorwatch.models.model import Model
from anchorwatch.probes.spec import DEFAULT, Probe
from anchorwatch.trace.model_identity import warn_of_absent
from anchorwatch.trace.progress_bar import Progress
from anchorwatch.trace.regions import Spans, find_again
from anchorwatch.trace.schema import check_positions
from anchorwatch.trace.trace import Trace, checked_trace


def replay(
    model: Model,
    trace: Trace,
    probes: Sequence[Probe] = DEFAULT,
    *,
    steps: Sequence[int] | None = None,
    regions: Spans | None = None,
    edits: Sequence[Edit] = (),
) -> Trace:
    """Measure a finished run: the same canvases, the same calls, other fields.

    `steps` limits every probe to those of its steps. `regions` name parts of the prompt afterwards:
    words that are in it once, or token positions as range(begin, end); without them the trace's own
    stay. `edits` are the run's own, given again where they hold numbers: a manifest knows only
    their digests. Refuses a model other than the one that wrote it.
    """
    probes = probe_list(probes)
    check_model(model, checked_trace(trace))
    chosen = range(trace.num_steps) if steps is None else check_positions("steps", steps)
    for step in chosen:
        check_step(trace, step)
    limited_probes = _limit_probes(probes, chosen)
    # The manifest names the probes as they were limited; without `steps` as they were given.
    if steps is not None:
        probes = limited_probes
    found_regions = None if regions is None else find_again(regions, model, trace)
    # The trace repeats what its edits hid; only numbers that a digest stands for are given again.
    again = repeat_edits(edits, trace)
    state = build_forced_run(
        model, trace, probes, until=trace.num_steps, regions=found_regions, numbers=again
    )
    state.measured = probes
    with Progress("replaying", total=trace.num_steps) as bar:
        for _, finished in walk(model, [state], build_recorder(model, probes, [state])):
            bar.advance(str(finished.index))
            # A replay ends with the trace, whatever the schedule would still plan.
            if len(state.steps) == trace.num_steps:
                break
    return build_trace(state, model, probes, batch=1, fork=trace.manifest.get("fork"))


def fork(
    model: Model,
    trace: Trace,
    step: int,
    *,
    probes: Sequence[Probe] = DEFAULT,
    edits: Sequence[Edit] | None = None,
    seed: int | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Trace:
    """Leave a trace at a step and run on from there; with a seed, random numbers are drawn again.

    The trace's edits stay, unless others are given, which act from the step on. Steps before the
    fork are not measured: they are the trace's, and absent here. `on_step` is told every step that
    is finished.
    """
    # 1. What to measure, and with which edits to run on.
    probes = probe_list(probes)
    check_model(model, checked_trace(trace))
    step = check_step(trace, step)
    limited_probes = _limit_probes(probes, range(step, trace.decoding.num_passes))
    others = None if edits is None else edit_list(edits)
    state = build_forced_run(model, trace, limited_probes, until=step, edits=others)
    check_remaining_edits(state)
    # 2. Chance as it stood at the step, or from another seed.
    if seed is not None:
        state.seed = checked_seed(seed)
        state.sequence.generator.manual_seed(state.seed)
    elif trace.decoding.draws:
        random_state = torch.from_numpy(trace["random_state"].values[step].copy())
        state.sequence.generator.set_state(random_state)
    # 3. The known steps are repeated, the others run.
    with Progress("writing", total=state.decoding.num_passes) as bar:
        for _, finished in walk(model, [state], build_recorder(model, limited_probes, [state])):
            bar.advance(str(finished.index))
            if on_step is not None:
                on_step(finished.index)
    origin = {"of": trace.digest(), "step": step, "seed": trace.seed, "reseeded": seed is not None}
    return build_trace(state, model, probes, batch=1, fork=origin)


def _limit_probes(probes: Sequence[Probe], steps: Collection[int]) -> tuple[Probe, ...]:
    """The probes, each at those of its own steps that are among these."""
    limited = []
    for probe in probes:
        left = tuple(step for step in (probe.steps or steps) if step in steps)
        left = tuple(step for step in left if probe.at_step(step))
        # A probe that looks at no step would keep nothing but absent values.
        if not left:
            among = f"{min(steps)} to {max(steps)}" if isinstance(steps, range) else list(steps)
            raise SpecError(f"{probe!r} looks at none of the steps {among}: name one of them")
        limited.append(replace(probe, steps=left, every=1))
    return tuple(limited)


def check_step(trace: Trace, step: Any) -> int:
    """The step, if the trace has it."""
    last = trace.num_steps - 1
    if not isinstance(step, int | np.integer) or isinstance(step, bool):
        raise SpecError(f"step={step!r} is not a whole number: the trace has steps 0 to {last}")
    if not 0 <= step <= last:
        raise SpecError(f"step {step} is not in the trace: it has 0 to {last}")
    return int(step)


def check_model(model: Model, trace: Trace) -> None:
    """Refuse a model other than the one that wrote the trace."""
    described = trace.manifest["model"]
    if differs := model_difference(model, described, trace.manifest.get("versions")):
        same = model.source == described["source"]
        now, other = (" as it is now", "") if same else ("", f": it was {described['source']}")
        raise TraceError(
            f"{model.source}{now} is not the model that made this trace{other}; {differs}"
        )
    warn_of_absent(described, "the trace")
