"""Runs that begin with a trace: `replay` measures it afterwards, `fork` leaves it at a step.

A replay repeats the same calls on the same canvases and writes what the trace wrote; on the same
machine its fields are those a live measurement would have had, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.loop import Job, Step, walk
from anchorwatch.measures import Record
from anchorwatch.models.model import Model
from anchorwatch.policies import Draft, Turn
from anchorwatch.probes import DEFAULT, Probe
from anchorwatch.progress import Progress
from anchorwatch.records import trace_of
from anchorwatch.regions import Regions
from anchorwatch.runs import num_passes, shape_of, watch_over
from anchorwatch.trace import MISSING, Trace

DISAGREES = 1e-2
"""A committed token's log-probability that differs by more was not given by this model."""


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
    job = _scripted(model, trace, probes, until=trace.num_steps)
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
    job = _scripted(model, trace, probes, until=step)
    if seed is not None:
        job.draft.generator.manual_seed(seed)
        job.seed = seed
    elif trace.decoding.draws:
        state = torch.from_numpy(trace["random_state"].values[step].copy())
        job.draft.generator.set_state(state)
    with Progress("writing", total=num_passes(job.decoding)) as bar:
        for _, taken in walk(model, [job], watch_over(model, probes, [job])):
            bar.advance(str(taken.index))
    return trace_of(job, model, probes, batch=1)


@dataclass
class _Scripted(Job):
    """A job whose first steps are known: it writes what the trace wrote."""

    script: Trace
    until: int
    """Steps that are known."""
    measured: tuple[Probe, ...] | None = None
    """Probes of a replay; None leaves the known steps unmeasured."""

    def recorded(self) -> Step | None:
        index = len(self.taken)
        if index >= self.until or self._needs_logits(index):
            return None
        return self._repeat(index, None)

    def take(self, logits: torch.Tensor, turn: Turn) -> Step:
        index = len(self.taken)
        return super().take(logits, turn) if index >= self.until else self._repeat(index, logits)

    def _needs_logits(self, index: int) -> bool:
        if getattr(self.decoding, "cache", False):
            return True  # the cache is made by the same calls as then
        return self.measured is not None and any(probe.at_step(index) for probe in self.measured)

    def _repeat(self, index: int, logits: torch.Tensor | None) -> Step:
        trace = self.script
        places = np.flatnonzero(trace.committed_at == index)
        device = self.draft.canvas.device
        positions = torch.from_numpy(places).to(device)
        tokens = torch.from_numpy(trace.canvas[-1][places].astype(np.int64)).to(device)
        state = trace["random_state"].values[index] if trace.decoding.draws else None
        counts = (int(trace["mask_chosen"][index]), int(trace["narrow"][index]))
        known = trace.logprob[places]
        if logits is None:
            return self.note(positions, tokens, known, *counts, state)
        step = self.write(positions, tokens, logits, *counts, state)
        if len(known) and float(np.abs(step.logprobs - known).max()) > DISAGREES:
            raise TraceError(
                f"at step {index} this model gives the committed tokens other log-probabilities "
                "than the trace holds: load the model, dtype and device of its manifest"
            )
        return step


def _scripted(model: Model, trace: Trace, probes: Sequence[Probe], until: int) -> _Scripted:
    first, answer = trace.canvas[0].astype(np.int64), trace.answer
    decoding = trace.decoding
    names = tuple(trace.manifest["regions"])
    draft = Draft(
        canvas=torch.from_numpy(first[first != MISSING]).to(model.device),
        answer=torch.from_numpy(answer).to(model.device),
        mask_id=model.specials.mask_id,
        end_ids=model.specials.end_ids,
        eos_ids=model.specials.eos_ids,
        generator=torch.Generator(device=model.device).manual_seed(trace.seed),
    )
    shape = shape_of(model, decoding, len(first), names)
    return _Scripted(
        draft,
        decoding,
        trace.seed,
        first,
        taken=[],
        regions=Regions(names=names, of=trace["region"].values),
        record=Record(probes, shape),
        script=trace,
        until=until,
    )


def _check_step(trace: Trace, step: int) -> None:
    if not 0 <= step < trace.num_steps:
        raise SpecError(f"step {step} is not in the trace: it has 0 to {trace.num_steps - 1}")


def _same_model(model: Model, trace: Trace) -> None:
    held = trace.manifest["model"]
    if held["weights"] != model.digest:
        raise TraceError(
            f"{model.source} is not the model that made this trace: it was {held['source']} with "
            f"weights {held['weights'][:12]}, this one has {model.digest[:12]}"
        )
