"""Jobs whose first steps are known: they write what a trace wrote, and may be measured doing so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from anchorwatch.errors import TraceError
from anchorwatch.loop import Job, Step, shape_of
from anchorwatch.measures import Record
from anchorwatch.models.model import Model
from anchorwatch.policies import Draft, Turn
from anchorwatch.probes import Probe
from anchorwatch.regions import Regions
from anchorwatch.trace import MISSING, Trace

DISAGREES = 1e-2
"""A committed token's log-probability that differs by more was not given by this model."""

_DECIDE = ("weights", "family", "visibility", "shift", "block", "mask_id", "sink_id", "dtype")
"""What a manifest says of a model that decides what it computes."""


def other_model(model: Model, held: Mapping[str, Any]) -> str | None:
    """How `model` is not the one that a manifest describes, in words; None where it is."""
    ours = model.describe()
    for name in _DECIDE:
        if (theirs := held.get(name, ours[name])) != ours[name]:
            return f"it has {name} {str(theirs)[:12]}, {model.source} has {str(ours[name])[:12]}"
    return None


@dataclass
class Scripted(Job):
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


def scripted(
    model: Model,
    trace: Trace,
    probes: Sequence[Probe],
    *,
    until: int,
    block: int | None = None,
    regions: Regions | None = None,
) -> Scripted:
    """A job that begins as the trace did and knows its first `until` steps."""
    first, answer = trace.canvas[0].astype(np.int64), trace.answer
    decoding = trace.decoding
    if regions is None:
        regions = Regions(tuple(trace.manifest["regions"]), trace["region"].values)
    draft = Draft(
        canvas=torch.from_numpy(first[first != MISSING]).to(model.device),
        answer=torch.from_numpy(answer).to(model.device),
        mask_id=model.specials.mask_id,
        end_ids=model.specials.end_ids,
        eos_ids=model.specials.eos_ids,
        generator=torch.Generator(device=model.device).manual_seed(trace.seed),
    )
    shape = shape_of(model, decoding, len(first), regions.names)
    return Scripted(
        draft,
        decoding,
        trace.seed,
        first,
        taken=[],
        regions=regions,
        record=Record(probes, shape, block),
        script=trace,
        until=until,
    )
