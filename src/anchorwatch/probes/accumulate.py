"""From attention calls to the numbers of one sequence: sums over query rows, arrays of a trace.

Sums over query rows add up. Cached autoregression sees one new row at a time, and rows never
change: the sums of all steps so far are what reading the whole text again would give.
Shapes: H heads, G key heads, N query groups, L canvas positions, D channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from anchorwatch.models.attention import Call
from anchorwatch.probes.reduce import AttentionStats
from anchorwatch.trace.schema import PEAKS, Field, RunShape

DECISIONS = ("hidden_keys", "spared_rows")
"""Fields that say what edits did."""


class TraceBuffer:
    """The arrays of one sequence, absent until measured; of all steps, or of a block of them."""

    def __init__(
        self, fields: Mapping[str, Field], shape: RunShape, block: int | None = None
    ) -> None:
        self.shape = shape
        self.fields = dict(fields)
        self.block = block
        self.first_step = 0
        """The step that the first row of step arrays is about."""
        self.arrays = {name: self._absent(field) for name, field in self.fields.items()}
        self._past: dict[str, list[np.ndarray]] = {}

    def put(self, name: str, index: tuple[Any, ...], value: Any) -> None:
        """Keep a value, if the run keeps the field."""
        if name not in self.arrays:
            return
        value = value.cpu().numpy() if torch.is_tensor(value) else value
        array, start = self.arrays[name], index[0]
        if self.by_step(name):
            start -= self.first_step
        # One axis at a time: numpy moves axes when it mixes kinds of index.
        rest = list(index[1:])
        while rest and isinstance(rest[0], int | np.integer):
            array, start = array[start], rest.pop(0)
        if rest:
            array[start][tuple(rest)] = value
        else:
            array[start] = value

    def by_step(self, name: str) -> bool:
        """Whether a field has an entry for every step."""
        return self.fields[name].dims[0] == "step"

    def first_steps(self, steps: int) -> dict[str, np.ndarray]:
        """The first `steps` rows of every step array."""
        return {name: array[:steps] for name, array in self.arrays.items() if self.by_step(name)}

    def next_block(self) -> None:
        """Begin the next block of steps, absent again."""
        assert self.block is not None
        self.first_step += self.block
        # What edits did is small, and a resumed run needs it from the first step on.
        for name in self.decisions():
            self._past.setdefault(name, []).append(self.arrays[name])
        for name in self.arrays:
            if self.by_step(name):
                self.arrays[name] = self._absent(self.fields[name])

    def decisions(self) -> dict[str, np.ndarray]:
        """[step, ...] what edits did in all blocks up to this one: a resumed run repeats it."""
        return {
            name: np.concatenate([*self._past.get(name, []), self.arrays[name]])
            for name in DECISIONS
            if name in self.arrays
        }

    def _absent(self, field: Field) -> np.ndarray:
        """Nothing measured yet; floats are float32 until they are stored."""
        sizes = field.sizes
        if self.block is not None and field.dims[0] == "step":
            sizes = (self.block, *sizes[1:])
        # Integers cannot be NaN: -1 is absent among them.
        if np.dtype(field.dtype).kind == "i":
            return np.full(sizes, -1, dtype=field.dtype)
        return np.full(sizes, np.nan, dtype=np.float32)


@dataclass(frozen=True)
class View:
    """One row of a batch as probes see it: where its canvas lies in the call's axes."""

    run: int
    """Which of the runs that share the pass."""
    branch: str
    """Prefix of the fields: empty, or `blind_` for the second branch of guidance."""
    step: int
    key_start: int
    """Column of canvas position 0; padding and added keys and registers stand before it."""
    query_start: int
    """Row of the first query that belongs to the canvas."""
    length: int
    """Canvas positions that exist."""
    queries: int
    """How many of them are queries of this call: the last ones."""
    before: int = 0
    """Columns before everything: added keys, then registers."""
    added: int = 0
    """How many of those are added keys, which are no queries."""
    row: int = 0
    """Which row of the batch."""
    positions: tuple[int, ...] | None = None
    """Canvas positions of the queries, where they are not the last ones."""

    @property
    def query_positions(self) -> slice | np.ndarray:
        """Canvas positions of the queries of this call, as an index."""
        if self.positions is None:
            return slice(self.length - self.queries, self.length)
        return np.array(self.positions)

    @property
    def key_slice(self) -> slice:
        return slice(self.key_start, self.key_start + self.length)

    @property
    def token_slice(self) -> slice:
        """The canvas among the tokens of the sequence, where added keys are not."""
        return slice(self.key_start - self.added, self.key_start - self.added + self.length)

    @property
    def query_slice(self) -> slice:
        return slice(self.query_start, self.query_start + self.queries)


@dataclass
class RowSums:
    """Sums over query rows of one sequence at one layer; counts say over how many."""

    counts: torch.Tensor
    """[N] live rows of each group."""
    sums: torch.Tensor
    """[H, N, L] attention received."""
    sink: torch.Tensor
    """[H, N] attention received by added keys; NaN for a head that sees none of them."""
    rows: torch.Tensor
    """[] live rows."""
    entropy: torch.Tensor
    """[H]."""
    diagonal: torch.Tensor
    """[H]."""
    distance: torch.Tensor
    """[H, L]."""
    query: torch.Tensor
    """[H, D] sum of queries."""
    unit_query: torch.Tensor
    """[H, D] sum of queries of length one."""
    query_norm: torch.Tensor
    """[H]."""

    def plus(self, later: RowSums) -> RowSums:
        """The sums of both; the later ones may know more positions."""
        return RowSums(
            **{f.name: _add(getattr(self, f.name), getattr(later, f.name)) for f in fields(self)}
        )

    def mean_received(self) -> torch.Tensor:
        """[H, N, L] mean over each group's rows; NaN for a group without rows."""
        # Groups differ in size: a mean over their rows makes them comparable.
        return self.sums / self.counts.where(self.counts > 0, torch.nan)[:, None]

    def find_peaks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(keys [H, 8], attention they receive): the top keys of all rows; -1 and NaN pad."""
        # Group 0 is every row; NaN (no rows at all) must not win the topk.
        received = self.sums[:, 0] / self.counts[0].where(self.counts[0] > 0, torch.nan)
        best = received.nan_to_num(nan=-1.0).topk(min(PEAKS, received.shape[-1]), dim=-1)
        missing = PEAKS - best.indices.shape[-1]
        measured = best.values >= 0
        keys = torch.nn.functional.pad(best.indices.where(measured, -1), (0, missing), value=-1)
        mass = best.values.where(measured, torch.nan)
        return keys, torch.nn.functional.pad(mass, (0, missing), value=torch.nan)


def sum_rows(
    call: Call, stats: AttentionStats, view: View, weights: torch.Tensor, *, queries: bool = True
) -> RowSums:
    """Add up the rows of one sequence in one call; weights are [N, Q] of its row of the batch.

    Without `queries` the sums of queries are left 0.
    """
    # 1. Rows that may look at anything; a dead row counts nowhere.
    b, rows, keys = view.row, view.query_slice, view.key_slice
    live = stats.live[b, rows]
    query = call.query[b, :, rows if queries else slice(0)].float()
    if queries and call.attendable is not None:
        query = query * live[:, None]
    length = query.norm(dim=-1)
    heads = query.shape[0]
    # 2. What added keys receive, apart from the canvas.
    sums = stats.sums[b]
    sink = sums[:, :, : view.before].sum(dim=-1)
    sink = sink.masked_fill(~_sees_added(call, view)[:, None], torch.nan)
    # 3. Statistics that were not requested count as zero, so that sums of steps still add up.
    zero = torch.zeros(heads, device=query.device)
    distance = torch.zeros(heads, view.length, device=query.device)
    if stats.distance is not None:
        distance = stats.distance[b, :, : view.length]
    return RowSums(
        counts=(weights[:, rows] * live).sum(dim=-1),
        sums=sums[:, :, keys].clone(),
        sink=sink,
        rows=live.sum(),
        entropy=zero if stats.entropy is None else stats.entropy[b, :, rows].nansum(dim=-1),
        diagonal=zero if stats.diagonal is None else stats.diagonal[b, :, rows].nansum(dim=-1),
        distance=distance,
        query=query.sum(dim=1),
        unit_query=(query / length.clamp(min=1e-30)[..., None]).sum(dim=1),
        query_norm=length.sum(dim=1),
    )


def _sees_added(call: Call, view: View) -> torch.Tensor:
    """[H] bool: heads that see a register, or an added key."""
    registers, visible = slice(view.added, view.before), view.before > view.added
    if visible and call.attendable is not None:
        shared = call.attendable.shape[0] == 1  # one mask for all rows of the batch
        rows = call.attendable[0 if shared else view.row, 0, view.query_slice]
        visible = bool(rows[:, registers].any())
    sees = torch.full(call.query.shape[1:2], visible, device=call.query.device)
    if call.extra_logits is not None:
        sees |= (call.extra_logits[view.row] > -torch.inf).any(dim=-1).any(dim=-1)
    return sees


def _add(earlier: torch.Tensor, later: torch.Tensor) -> torch.Tensor:
    # The later step has more canvas positions: those before had received nothing there.
    if earlier.ndim and earlier.shape[-1] < later.shape[-1]:
        earlier = torch.nn.functional.pad(earlier, (0, later.shape[-1] - earlier.shape[-1]))
    return earlier + later
