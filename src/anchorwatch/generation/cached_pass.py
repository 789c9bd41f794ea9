"""Keys and values that an approximate cache keeps between passes, and what it reads of attention.

The attention function hands every call of a pass to `KeptKeys.complete`, which puts the new keys
and values at their positions and gives back those of the whole canvas. Keys are kept after rotary
positions: a position's rotation never changes.
Shapes: H heads, G key heads, Q rows of the pass, T canvas positions, D channels.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from anchorwatch.generation.caches import Cache, CacheContext
from anchorwatch.generation.decoding import Decoding, StepPlan
from anchorwatch.generation.sequence import SequenceState

ROWS_AT_ONCE = 64
"""Rows of a map that are in memory while attention is summed up."""


class KeptKeys:
    """Keys and values of one canvas, layer by layer, as the passes so far left them."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.received: torch.Tensor | None = None
        """[T] mean attention received in the last pass over all rows."""
        self.drift = 0.0
        """1 - the smallest cosine over layers of the followed columns in the last two passes."""
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._visible: list[torch.Tensor] = []
        """By layer [T] bool, once keys were evicted."""
        self._followed: dict[int, tuple[int, torch.Tensor]] = {}
        """By layer: the most attended key of the last pass, and [T] attention to it (NaN: none)."""
        self._positions = torch.zeros(0, dtype=torch.int64)
        self._block = torch.zeros(0, dtype=torch.bool)
        self._layer, self._whole, self._selects, self._hides = 0, True, False, False
        self._sums: torch.Tensor | None = None

    def begin_pass(self, rows: torch.Tensor, now: CacheContext) -> None:
        """Before a pass over the positions where `rows` [T] is true."""
        self._positions, self._layer, self._sums = rows.nonzero()[:, 0], 0, None
        self._block = torch.from_numpy(now.block).to(rows.device)
        self._whole = bool(rows.all())
        self._selects = self.cache.evicts and now.block_step == 1
        self._hides = self.cache.evicts and now.block_step > 1 and bool(self._visible)
        if self._selects or now.block_step == 0:
            self._visible = []
        self.drift = 0.0

    def end_pass(self) -> None:
        """After a pass: what it says of attention."""
        if self._sums is not None:
            self.received = self._sums / self._layer

    def complete(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Keys and values [1, G, T, D] of a layer, and which keys are visible [1, 1, Q, T].

        `query` [1, H, Q, D], `key` and `value` [1, G, Q, D] are of the rows of this pass.
        """
        # 1. New rows to their positions; the others stay as they are.
        layer, self._layer = self._layer, self._layer + 1
        if self._whole:
            kept = (key.clone(), value.clone())
            self._layers[layer : layer + 1] = [kept]
        else:
            kept = self._layers[layer]
            kept[0][:, :, self._positions], kept[1][:, :, self._positions] = key, value
        # 2. What the cache reads of attention.
        if self._selects:
            self._visible.append(self._select_keys(query, kept[0]))
        if (self._whole and self.cache.reads_received) or self.cache.reads_drift:
            self._read_attention(layer, query, kept[0], scale)
        # 3. Evicted keys are hidden.
        if not self._hides:
            return *kept, None
        return *kept, self._visible[layer].expand(1, 1, query.shape[2], -1)

    def _select_keys(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """[T] bool: keys that stay visible, those of the block among them."""
        assert self.cache.evicts
        # 1. Mean product of the block's queries with each key, over rows and heads.
        inside = self._block[self._positions]
        mean = query[0][:, inside].mean(dim=1)  # [H, D]
        repeats = mean.shape[0] // key.shape[1]
        scores = torch.einsum("hd,htd->ht", mean, key[0].repeat_interleave(repeats, dim=0))
        # 2. The largest of three neighbours, then the best outside of the block.
        outside = (~self._block).nonzero()[:, 0]
        pooled = torch.nn.functional.max_pool1d(
            scores.mean(dim=0)[outside][None, None], 3, stride=1, padding=1
        )[0, 0]
        count = max(1, round(self.cache.share * len(outside)))  # type: ignore[attr-defined]
        visible = self._block.clone()
        visible[outside[pooled.topk(min(count, len(outside))).indices]] = True
        return visible

    def _read_attention(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, scale: float
    ) -> None:
        """Sum up the attention that keys receive, and follow the most attended one."""
        # 1. [Q, T] mean over heads, some rows at a time.
        repeats = query.shape[1] // key.shape[1]
        keys = key[0].float().repeat_interleave(repeats, dim=0).transpose(1, 2)
        parts = [
            (rows.float() @ keys * scale).softmax(dim=-1).mean(dim=0)
            for rows in torch.split(query[0], ROWS_AT_ONCE, dim=1)
        ]
        attention = torch.cat(parts)
        received = attention.mean(dim=0)
        if self._whole and self.cache.reads_received:
            self._sums = received if self._sums is None else self._sums + received
        if not self.cache.reads_drift:
            return
        # 2. The column of the key that was most attended in the pass before, then and now.
        if layer in self._followed and not self._whole:  # a refresh is no drift
            followed, before = self._followed[layer]
            then, now = before[self._positions], attention[:, followed]
            both = ~then.isnan()
            if bool(both.any()):
                cosine = torch.nn.functional.cosine_similarity(then[both], now[both], dim=0)
                self.drift = max(self.drift, 1 - float(cosine))
        # 3. The most attended key of this pass.
        top = int(received.argmax())
        column = torch.full((key.shape[2],), torch.nan, device=key.device)
        column[self._positions] = attention[:, top]
        self._followed[layer] = (top, column)


@dataclass
class RunCache:
    """The cache of one run on its way: what is kept, and where the run stands."""

    kept: KeptKeys
    block_step: int = 0
    block_number: int = -1
    last_masked: np.ndarray | None = None
    rows: list[np.ndarray] = field(default_factory=list)
    """Of each step [T] bool: the rows that it computed."""

    def context(self, sequence: SequenceState, decoding: Decoding, plan: StepPlan) -> CacheContext:
        """What the cache knows before the next pass."""
        # 1. The open block is that of the last open position; blocks count positions to write.
        answer = sequence.answer.cpu().numpy()
        masked = sequence.masked.cpu().numpy()
        length = len(masked)
        size = int(getattr(decoding, "block", None) or len(answer))
        order = np.full(length, -1)
        order[answer] = np.arange(len(answer)) // size
        opened = order[plan.open.cpu().numpy()[:length]]
        number = int(opened.max()) if len(opened) else max(self.block_number, 0)
        # 2. Passes of this block so far, and what the last step wrote.
        self.block_step = 0 if number != self.block_number else self.block_step + 1
        self.block_number = number
        fresh = np.zeros(length, dtype=bool)
        if self.last_masked is not None:
            fresh = self.last_masked & ~masked
        self.last_masked = masked
        received = self.kept.received
        return CacheContext(
            step=len(self.rows),
            block_step=self.block_step,
            block=order == number,
            masked=masked,
            fresh=fresh,
            answer=order >= 0,
            received=None if received is None else received.cpu().numpy(),
            drift=self.kept.drift,
        )
