"""Runs that begin with a trace: `replay` measures it afterwards, `fork` leaves it at a step.

A replay repeats the same calls on the same canvases and writes what the trace wrote; on the same
machine its fields are those a live measurement would have had, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.loop import walk
from anchorwatch.models.model import Model
from anchorwatch.probes import DEFAULT, Probe
from anchorwatch.progress import Progress
from anchorwatch.records import trace_of
from anchorwatch.runs import watch_over
from anchorwatch.scripts import other_model, scripted
from anchorwatch.trace import Trace


def replay(
    model: Model,
    trace: Trace,
    probes: Sequence[Probe] = DEFAULT,
    *,
    steps: Sequence[int] | None = None,
) -> Trace:
    """Measure a finished run: the same canvases, the same calls, other fields.

    `steps` limits every probe to those steps. Refuses a model other than the one that wrote it.
    """
    _same_model(model, trace)
    if steps is not None:
        chosen = tuple(int(step) for step in steps)
        for step in chosen:
            _check_step(trace, step)
        probes = [replace(probe, steps=chosen) for probe in probes]
    job = scripted(model, trace, probes, until=trace.num_steps)
    job.measured = tuple(probes)
    with Progress("replaying", total=trace.num_steps) as bar:
        for _, taken in walk(model, [job], watch_over(model, probes, [job])):
            bar.advance(str(taken.index))
            if len(job.taken) == trace.num_steps:
                break
    return trace_of(job, model, probes, batch=1)


def fork(
    model: Model,
    trace: Trace,
    step: int,
    *,
    probes: Sequence[Probe] = DEFAULT,
    seed: int | None = None,
) -> Trace:
    """Leave a trace at a step and run on from there; with a seed, chance falls anew."""
    _same_model(model, trace)
    _check_step(trace, step)
    job = scripted(model, trace, probes, until=step)
    if seed is not None:
        job.draft.generator.manual_seed(seed)
        job.seed = seed
    elif trace.decoding.draws:
        state = torch.from_numpy(trace["random_state"].values[step].copy())
        job.draft.generator.set_state(state)
    with Progress("writing", total=job.decoding.num_passes) as bar:
        for _, taken in walk(model, [job], watch_over(model, probes, [job])):
            bar.advance(str(taken.index))
    return trace_of(job, model, probes, batch=1)


def _check_step(trace: Trace, step: int) -> None:
    if not 0 <= step < trace.num_steps:
        raise SpecError(f"step {step} is not in the trace: it has 0 to {trace.num_steps - 1}")


def _same_model(model: Model, trace: Trace) -> None:
    held = trace.manifest["model"]
    if differs := other_model(model, held):
        raise TraceError(
            f"{model.source} is not the model that made this trace: it was {held['source']}; "
            f"{differs}"
        )
