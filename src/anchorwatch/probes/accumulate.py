"""From one attention call to the numbers of one sequence: tallies of rows, and means of tallies.

A tally adds up over query rows. Cached autoregression sees one new row at a time: its rows never
change, so tallies of all steps so far add up to what reading the whole text again would give.
Shapes: H heads, G key heads, N query groups, L canvas positions, D channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from anchorwatch.edits.spec import Edit
from anchorwatch.generation.plan import fields_of
from anchorwatch.models.attention import Call
from anchorwatch.probes.reduce import AttentionStats
from anchorwatch.probes.spec import Probe
from anchorwatch.trace.regions import Regions
from anchorwatch.trace.schema import PEAKS, Field, RunShape

DECISIONS = ("hidden_keys", "spared_rows")
"""Fields that say what edits did."""


class TraceBuffer:
    """The arrays of one sequence, absent until measured; of all steps, or of a block of them."""

    def __init__(
        self,
        probes: Sequence[Probe],
        shape: RunShape,
        block: int | None = None,
        edits: Sequence[Edit] = (),
    ) -> None:
        self.shape = shape
        self.fields: dict[str, Field] = fields_of(probes, shape, edits)
        self.block = block
        self.first = 0
        """The step that the first row of step arrays is about."""
        self.arrays = {name: self._absent(field) for name, field in self.fields.items()}
        self._past: dict[str, list[np.ndarray]] = {}

    def put(self, name: str, index: tuple[Any, ...], value: Any) -> None:
        """Keep a value, if the field was asked for."""
        if name not in self.arrays:
            return
        value = value.detach().cpu().numpy() if torch.is_tensor(value) else value
        place, start = self.arrays[name], index[0]
        if self.by_step(name):
            start -= self.first
        if len(index) > 1:  # one axis at a time: numpy moves axes when it mixes kinds of index
            place[start][index[1:]] = value
        else:
            place[start] = value

    def by_step(self, name: str) -> bool:
        return self.fields[name].dims[0] == "step"

    def taken(self, steps: int) -> dict[str, np.ndarray]:
        """The first `steps` rows of every step array."""
        return {name: array[:steps] for name, array in self.arrays.items() if self.by_step(name)}

    def next_block(self) -> None:
        """Begin the next block of steps, absent again."""
        assert self.block is not None
        self.first += self.block
        for name in self.decisions():
            self._past.setdefault(name, []).append(self.arrays[name])
        for name in self.arrays:
            if self.by_step(name):
                self.arrays[name] = self._absent(self.fields[name])

    def decisions(self) -> dict[str, np.ndarray]:
        """[step, ...] what edits did in all blocks up to this one: a resumed run repeats it."""
        held = [name for name in DECISIONS if name in self.arrays]
        return {
            name: np.concatenate([*self._past.get(name, []), self.arrays[name]]) for name in held
        }

    def _absent(self, field: Field) -> np.ndarray:
        """Nothing measured yet; floats are float32 until they are stored."""
        sizes = field.sizes
        if self.block is not None and field.dims[0] == "step":
            sizes = (self.block, *sizes[1:])
        if np.dtype(field.dtype).kind == "i":
            return np.full(sizes, -1, dtype=field.dtype)
        return np.full(sizes, np.nan, dtype=np.float32)


@dataclass(frozen=True)
class View:
    """One row of a batch as probes see it: where its canvas lies in the call's axes."""

    job: int
    branch: str
    """Prefix of the fields: empty, or `blind_` for the second branch of guidance."""
    step: int
    key_start: int
    """Column of canvas position 0; padding and what parts add stand before it."""
    query_start: int
    """Row of the first query that belongs to the canvas."""
    length: int
    """Canvas positions that exist."""
    queries: int
    """How many of them are queries of this call: the last ones."""
    before: int = 0
    """Columns that parts add before everything: added keys, then registers."""
    added: int = 0
    """How many of those are added keys, which are no queries."""
    row: int = 0
    """Which row of the batch."""

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
    """[H, N] attention received by what parts added; NaN for a head that sees none of it."""
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
        """Both tallies; the later one may know more positions."""
        return RowSums(
            **{f.name: _add(getattr(self, f.name), getattr(later, f.name)) for f in fields(self)}
        )


def tally(call: Call, found: AttentionStats, view: View, b: int, weights: torch.Tensor) -> RowSums:
    """Add up the rows of one sequence in one call; weights are [N, Q] of that row of the batch."""
    rows, keys = view.query_slice, view.key_slice
    live = found.live[b, rows]
    query = call.query[b, :, rows].float() * live[:, None]
    length = query.norm(dim=-1)
    heads = query.shape[0]
    zero = torch.zeros(heads, device=query.device)
    sums = found.sums[b]
    sink = sums[:, :, : view.before].sum(dim=-1)
    sink = sink.masked_fill(~_sees_added(call, view, b)[:, None], torch.nan)
    apart = torch.zeros(heads, view.length, device=query.device)
    if found.distance is not None:
        apart = found.distance[b, :, : view.length]
    return RowSums(
        counts=(weights[:, rows] * live).sum(dim=-1),
        sums=sums[:, :, keys].clone(),
        sink=sink,
        rows=live.sum(),
        entropy=zero if found.entropy is None else found.entropy[b, :, rows].nansum(dim=-1),
        diagonal=zero if found.diagonal is None else found.diagonal[b, :, rows].nansum(dim=-1),
        distance=apart,
        query=query.sum(dim=1),
        unit_query=(query / length.clamp(min=1e-30)[..., None]).sum(dim=1),
        query_norm=length.sum(dim=1),
    )


def _sees_added(call: Call, view: View, b: int) -> torch.Tensor:
    """[H] bool: heads that see a register, or an added key."""
    registers, sees = slice(view.added, view.before), view.before > view.added
    if sees and call.attendable is not None:
        row = call.attendable[b if call.attendable.shape[0] > 1 else 0, 0, view.query_slice]
        sees = bool(row[:, registers].any())
    found = torch.full(call.query.shape[1:2], sees, device=call.query.device)
    if call.added is not None:
        found |= (call.added[b] > -torch.inf).any(dim=-1).any(dim=-1)
    return found


def onto(call: Call, views: Sequence[View], regions: Sequence[Regions]) -> torch.Tensor:
    """[B, K, region] 1 where a key belongs to a region."""
    count = len(regions[0].names)
    found = torch.zeros(call.query.shape[0], call.key.shape[2], count, device=call.query.device)
    for view in views:
        for region in range(count):
            of = regions[view.job].of[: view.length]
            places = torch.from_numpy(np.flatnonzero(of == region)) + view.key_start
            found[view.row, places, region] = 1.0
    return found


def shares(total: RowSums) -> torch.Tensor:
    """[H, N, L] mean over each group's rows; NaN for a group without rows."""
    return total.sums / total.counts.where(total.counts > 0, torch.nan)[:, None]


def peaks(total: RowSums) -> tuple[torch.Tensor, torch.Tensor]:
    """(keys [H, 8], what they receive): those that receive most from all rows; -1 and NaN pad."""
    everyone = total.sums[:, 0] / total.counts[0].where(total.counts[0] > 0, torch.nan)
    best = everyone.nan_to_num(nan=-1.0).topk(min(PEAKS, everyone.shape[-1]), dim=-1)
    missing = PEAKS - best.indices.shape[-1]
    there = best.values >= 0
    keys = torch.nn.functional.pad(best.indices.where(there, -1), (0, missing), value=-1)
    mass = best.values.where(there, torch.nan)
    return keys, torch.nn.functional.pad(mass, (0, missing), value=torch.nan)


def geometry(total: RowSums, key: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
    """Per head and key the means over queries of cosine, norm product and logit, [H, L] each.

    No T x T work: a mean of products with one key is the product of the mean with that key.
    """
    repeats = total.query.shape[0] // key.shape[0]
    rows = total.rows.where(total.rows > 0, torch.nan)
    key = key.float()
    norm = key.norm(dim=-1).repeat_interleave(repeats, dim=0)

    def along(mean: torch.Tensor) -> torch.Tensor:
        grouped = mean.view(key.shape[0], repeats, -1)
        return (grouped @ key.transpose(1, 2)).reshape(mean.shape[0], -1)

    return {
        "cosine": along(total.unit_query / rows) / norm.clamp(min=1e-30),
        "norm_product": (total.query_norm / rows)[:, None] * norm,
        "logit": along(total.query / rows) * scale,
    }


def value_norms(
    value: torch.Tensor, key: torch.Tensor, heads: int, gram: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Norms of keys and values by query head, [H, L]; with `gram` [H, D, D] contributions too."""
    repeats = heads // value.shape[0]  # an edited value may differ from head to head
    value, key = value.float(), key.float()
    found = {
        "key_norm": key.norm(dim=-1).repeat_interleave(heads // key.shape[0], dim=0),
        "value_norm": value.norm(dim=-1).repeat_interleave(repeats, dim=0),
    }
    if gram is not None:  # |W v|^2 = v (W^T W) v, and W^T W is small
        each = value.repeat_interleave(repeats, dim=0)
        squared = torch.einsum("hld,hde,hle->hl", each, gram, each)
        found["contribution_norm"] = squared.clamp(min=0).sqrt()
    return found


def at_peaks(values: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """[H, L] read at [H, 8] keys; NaN where there is no key."""
    return values.gather(-1, keys.clamp(min=0)).where(keys >= 0, torch.nan)


def largest(states: torch.Tensor, count: int) -> dict[str, np.ndarray]:
    """The `count` largest entries of [L, width] states by size, and the median size."""
    flat = states.float().flatten()
    best = flat.abs().topk(min(count, len(flat))).indices
    missing = (0, count - len(best))

    def padded(values: torch.Tensor, absent: float) -> np.ndarray:
        return torch.nn.functional.pad(values, missing, value=absent).cpu().numpy()

    return {
        "massive_value": padded(flat[best], torch.nan),
        "massive_position": padded(best // states.shape[1], -1),
        "massive_channel": padded(best % states.shape[1], -1),
        "massive_median": flat.abs().median().cpu().numpy(),
    }


def likeness(states: torch.Tensor) -> dict[str, np.ndarray]:
    """Mean pairwise cosine and effective rank of [L, width] states."""
    states = states.float()
    unit = states / states.norm(dim=-1, keepdim=True).clamp(min=1e-30)
    count = len(unit)
    total = unit.sum(dim=0).pow(2).sum()  # |sum of unit vectors|^2 is all pairs, the same one twice
    cosine = (total - count) / (count * (count - 1)) if count > 1 else total * torch.nan
    spread = torch.linalg.svdvals(states)
    spread = spread / spread.sum().clamp(min=1e-30)
    rank = torch.exp(-(spread * spread.clamp(min=1e-30).log()).sum())
    return {"state_cosine": cosine.cpu().numpy(), "effective_rank": rank.cpu().numpy()}


def _add(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    if one.ndim and one.shape[-1] < two.shape[-1]:
        one = torch.nn.functional.pad(one, (0, two.shape[-1] - one.shape[-1]))
    return one + two
