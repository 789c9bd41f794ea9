"""A clean run's frames read again by every arm at once, step by step, and compared as they come.

All arms see the same canvases, whatever their edits make the model say. A step's logits and states
live until every arm has been compared with the clean one: nothing is held over the steps.
Shapes: N rows that predict (masked positions, or the next token), V outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from anchorwatch.edits.spec import CanvasEdit, Edit
from anchorwatch.evaluation.outcomes import MOVED, UniformBaseline, sum_moved_attention
from anchorwatch.generation.decoding import StepPlan
from anchorwatch.generation.forced import ForcedRun
from anchorwatch.generation.loop import Step, shape_of, start_sequence, walk
from anchorwatch.generation.plan import fields_of
from anchorwatch.generation.run import build_recorder
from anchorwatch.metrics.null import layer_window, uniform_attention
from anchorwatch.metrics.sink_rules import Rule
from anchorwatch.models.model import Model
from anchorwatch.models.sites import SITES, layer_modules
from anchorwatch.probes.accumulate import TraceBuffer
from anchorwatch.probes.spec import Probe, received
from anchorwatch.trace.regions import Regions
from anchorwatch.trace.trace import Trace

ROWS = 64
"""Rows of logits compared at once: 64 x 126,464 in float64 are 65 MB."""
RECEIVED = received(("all",), dtype="float32")


@dataclass
class ComparisonRun(ForcedRun):
    """A job that writes what the clean run wrote, and hands over what the model would have said."""

    rows: torch.Tensor | None = None
    """[N, V] logits of the rows that predict at the last step."""

    def canvas_edits(self) -> tuple[Edit, ...]:
        """Those that change what is read: what is committed is known."""
        return tuple(
            edit for edit in self.edits if isinstance(edit, CanvasEdit) and edit.changes_frames
        )

    def next_known_step(self) -> Step | None:
        return None  # every step is computed

    @property
    def needs_every_pass(self) -> bool:
        return True  # states of the pass are compared, not only its logits

    def positions_read(self, plan: StepPlan) -> torch.Tensor | None:
        return self.sequence.masked.nonzero()[:, 0]

    def commit(self, logits: torch.Tensor, plan: StepPlan) -> Step:
        self.rows = logits[-1:] if self.is_autoregressive else logits[self.sequence.masked]
        return self._repeat(len(self.steps), None)


def build_forced_run(
    model: Model, clean: Trace, edits: Sequence[Edit], probes: Sequence[Probe]
) -> ComparisonRun:
    """A job over the frames of a clean trace, with its own edits; it holds one step at a time."""
    # 1. The sequence as the clean run began, with its own random numbers.
    first = clean.canvas[0].astype(np.int64)
    regions = Regions(tuple(clean.manifest["regions"]), clean["region"].values)
    # 2. A buffer of one step, and the clean trace as the script of commits.
    shape = shape_of(model, clean.decoding, len(first), regions.names, edits)
    return ComparisonRun(
        start_sequence(model, first, clean.answer, clean.seed),
        clean.decoding,
        clean.seed,
        first,
        steps=[],
        regions=regions,
        buffer=TraceBuffer(fields_of(probes, shape, edits), shape, 1),
        edits=tuple(edits),
        script=clean,
        until=clean.num_steps,
    )


@dataclass(frozen=True, eq=False)
class ArmReading:
    """What one arm gave on the clean frames; NaN where nothing could be compared."""

    values: dict[str, float]
    nulls: dict[str, float]
    """Of the outcomes whose null is not the clean run."""
    layers: np.ndarray
    """[layer] mean relative change of hidden states."""


@dataclass
class _Sums:
    """What is added up over the steps of one arm."""

    layers: int
    agree: float = 0.0
    kl: float = 0.0
    rows: int = 0
    moved: np.ndarray = field(default_factory=lambda: np.zeros((len(MOVED), 3)))

    def __post_init__(self) -> None:
        self.change, self.states = np.zeros((2, self.layers))

    def build_reading(self) -> ArmReading:
        rows = self.rows or np.nan
        with np.errstate(invalid="ignore"):
            layers = self.change / self.states
            value, null = (self.moved[:, side] / self.moved[:, 2] for side in (0, 1))
        values = {
            "argmax_agreement": self.agree / rows,
            "kl": self.kl / rows,
            "perturbation": float(layers.mean()),
        }
        values |= dict(zip(MOVED, map(float, value), strict=True))
        return ArmReading(values, dict(zip(MOVED, map(float, null), strict=True)), layers)


class _ArmState:
    """One arm on its way over the frames."""

    def __init__(self, model: Model, clean: Trace, edits: Sequence[Edit], looks: bool) -> None:
        probes = (RECEIVED,) if looks else ()
        self.job = build_forced_run(model, clean, edits, probes)
        self.sums = _Sums(model.num_layers)
        self.states: dict[int, torch.Tensor] = {}
        self.length = 0
        """Canvas positions of the last step."""
        self._untouched = _untouched_positions(edits, len(self.job.first_frame))
        self._steps = walk(model, [self.job], build_recorder(model, probes, [self.job]))
        self._model = model

    def step(self) -> None:
        """One forward pass; what it gave can be read until `forget`."""
        self.length = len(self.job.sequence.canvas)

        def keep(layer: int, states: torch.Tensor) -> None:
            self.states[layer] = states[0, -min(self.length, states.shape[1]) :].float()

        with _after_layers(self._model, keep):
            next(self._steps)

    def field(self, name: str) -> np.ndarray:
        """[...] a field of the last step."""
        return self.job.buffer.arrays[name][0]

    def forget(self) -> None:
        self.states.clear()
        self.job.rows = None
        self.job.buffer.next_block()

    def compare(self, clean: _ArmState, even: UniformBaseline | None, rule: Rule) -> None:
        """Add up how this step differs from the clean arm's."""
        assert self.job.rows is not None and clean.job.rows is not None
        agree, kl = divergence(clean.job.rows, self.job.rows)
        self.sums.agree, self.sums.kl = self.sums.agree + agree, self.sums.kl + kl
        self.sums.rows += len(self.job.rows)
        untouched = self._untouched[: self.length]
        for layer, states in self.states.items():
            change = relative_change(clean.states[layer], states, untouched)
            self.sums.change[layer] += change.sum()
            self.sums.states[layer] += len(change)
        if even is not None and "hidden_keys" in self.job.buffer.arrays:
            shares = [lane.field("received")[:, :, 0] for lane in (clean, self)]
            hidden = self.field("hidden_keys")
            self.sums.moved += sum_moved_attention(shares[0], shares[1], hidden, even, rule)


def read_clean_frames(
    model: Model, clean: Trace, arms: Sequence[Sequence[Edit]], rule: Rule
) -> list[ArmReading]:
    """What every list of edits gives on the frames of a clean trace.

    The last reading is the clean arm's beside itself: what a no-op gives.
    """
    looks = any(edit.ranks for edits in arms for edit in edits)
    lanes = [_ArmState(model, clean, edits, looks) for edits in ((), *arms)]
    nulls = _uniform_baselines(clean, model.num_layers) if looks else None
    for step in range(clean.num_steps):
        even = (
            None if nulls is None else UniformBaseline(nulls.shares[:, step], nulls.seen[:, step])
        )
        for lane in lanes:  # the clean one first
            lane.step()
            lane.compare(lanes[0], even, rule)
            if lane is not lanes[0]:
                lane.forget()
        lanes[0].forget()
    readings = [lane.sums.build_reading() for lane in (*lanes[1:], lanes[0])]
    return [
        reading if _changes_reading(e) else absent_reading(model)
        for reading, e in zip(readings, (*arms, ()), strict=True)
    ]


def absent_reading(model: Model) -> ArmReading:
    """Nothing to compare on the clean frames."""
    return _Sums(model.num_layers).build_reading()


def _changes_reading(edits: Sequence[Edit]) -> bool:
    """Whether any edit changes what is read, not only what is committed; none at all reads too."""
    kinds = [isinstance(edit, CanvasEdit) and not edit.changes_frames for edit in edits]
    return not kinds or not all(kinds)


def divergence(clean: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """Rows of [N, V] logits whose argmax agrees, and KL(clean || other) in nats: sums over rows."""
    agree, kl = 0.0, 0.0
    for first, second in zip(torch.split(clean, ROWS), torch.split(other, ROWS), strict=True):
        agree += float((first.argmax(dim=-1) == second.argmax(dim=-1)).sum())
        p, q = (torch.log_softmax(rows.double(), dim=-1) for rows in (first, second))
        kl += float(torch.where(p > -torch.inf, p.exp() * (p - q), 0.0).sum())
    return agree, kl


def relative_change(clean: torch.Tensor, other: torch.Tensor, untouched: np.ndarray) -> np.ndarray:
    """|other - clean| / |clean| of [row, width] states at untouched positions.

    Rows are the last positions of the canvas: all of them, or under a cache the new ones.
    """
    rows = min(len(clean), len(other))
    first, second = clean[-rows:], other[-rows:]
    change = (second - first).norm(dim=-1) / first.norm(dim=-1).clamp(min=1e-30)
    return change.double().cpu().numpy()[untouched[-rows:]]


def _untouched_positions(edits: Sequence[Edit], positions: int) -> np.ndarray:
    """[position] bool: those that no edit names; what an edit finds by itself has no name."""
    untouched = np.ones(positions, dtype=bool)
    for edit in edits:
        named = getattr(edit, "positions", None) or (getattr(edit, "position", None),)
        places = [
            position for position in named if isinstance(position, int) and position < positions
        ]
        untouched[places] = False
    return untouched


@contextmanager
def _after_layers(model: Model, keep: Callable[[int, torch.Tensor], None]) -> Iterator[None]:
    """Hand over the residual stream after each layer of a forward pass: nothing is changed.

    A pass made before the one that counts hands over its own first, and is written over.
    """
    if model.network.config.model_type not in SITES:
        yield
        return
    seen, modules = [0], layer_modules(model.network)

    def look(_: Any, __: Any, out: Any) -> None:
        keep(seen[0] % len(modules), out[0] if isinstance(out, tuple) else out)
        seen[0] += 1

    hooks = [module.register_forward_hook(look) for module in dict.fromkeys(modules)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _uniform_baselines(clean: Trace, layers: int) -> UniformBaseline:
    """The nulls of all steps: [layer, step, key]."""
    windows = [layer_window(clean, layer) for layer in range(layers)]
    baselines = {window: uniform_attention(clean, ("all",), window) for window in set(windows)}
    shares = np.stack([baselines[window].shares[:, 0] for window in windows])
    return UniformBaseline(
        shares, np.stack([baselines[window].visible[:, 0] for window in windows])
    )
