"""Exact statistics of an attention map that is never held: tiles of query rows against all keys.

With the row log-sum-exp of the fused kernel a tile is `exp(q k^T * scale - lse)`: one product,
one exponential, and the reductions while it is warm. Without it the tile finds its own. Logarithms
are of base 2, since torch's exp2 takes a third of the time of its exp on some CPUs, and the factor
is part of the scale. On CUDA received attention alone is left to Triton kernels
(received_kernel.py).
Shapes: B rows of the batch, H heads, Q queries, K keys, N query groups, R regions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from math import e, log, log2

import torch

from anchorwatch.models.attention import Call

HIDDEN = -1e30
"""Logit of a key that may not be looked at: finite, so that 0 * log 0 stays 0."""

LOG2_E = log2(e)
"""What turns natural logarithms into logarithms of base 2."""

TILE_BYTES = 2 * 1024 * 1024
"""Aim for one tile of scores: small enough for a core's caches, large enough that the keys, which a
product lays out anew for each tile, and calls from Python cost little."""


@dataclass
class StatRequest:
    """What to take from the map. Weights are [B, N, Q]: 1 where a query belongs to a group."""

    weights: torch.Tensor
    """Group 0 is every query that counts."""
    before: int = 0
    """Columns before the canvas (added keys and registers): they have no distance."""
    own_keys: torch.Tensor | None = None
    """[Q] the key of each query's own position; None where queries are the last keys, in order."""
    entropy: bool = False
    diagonal: bool = False
    distance: bool = False
    top: int = 0
    """Keys to keep of each row in `top_rows`."""
    top_rows: torch.Tensor | None = None
    """[B, Q] bool; None is every row."""
    spans: torch.Tensor | None = None
    """[B, K, R] 1 where a key belongs to a region: what `top_rows` give to each region."""
    maps: tuple[int, ...] = ()
    """Heads whose map is kept whole."""
    mixed: torch.Tensor | None = None
    """[B, K, R] to be averaged by attention (rollout)."""
    hidden: torch.Tensor | None = None
    """[B, K] bool: columns taken out of the rollout, rows renormalised; a row with no key left
    keeps what it has."""


@dataclass
class AttentionStats:
    """What was taken."""

    live: torch.Tensor
    """[B, Q] bool: rows that may look at anything at all."""
    sums: torch.Tensor
    """[B, H, N, K] attention received, summed over the live queries of each group."""
    entropy: torch.Tensor | None = None
    """[B, H, Q] nats, NaN for dead rows."""
    diagonal: torch.Tensor | None = None
    """[B, H, Q], NaN for dead rows."""
    distance: torch.Tensor | None = None
    """[B, H, K] summed over live queries."""
    top_key: torch.Tensor | None = None
    """[B, H, Q, k], -1 for rows that were not asked for."""
    top_mass: torch.Tensor | None = None
    spans: torch.Tensor | None = None
    """[B, H, Q, R], NaN for rows that were not asked for."""
    maps: torch.Tensor | None = None
    """[B, heads, Q, K], NaN rows where a row is dead."""
    mixed: torch.Tensor | None = None
    """[B, Q, R] mean over heads of attention times `mixed`."""


_DIVISOR: ContextVar[int] = ContextVar("how many times smaller tiles are", default=1)


@contextmanager
def smaller_tiles(divisor: int) -> Iterator[None]:
    """Tiles of fewer rows, for a device whose memory ran out; sums may differ in the last bits."""
    token = _DIVISOR.set(divisor)
    try:
        yield
    finally:
        _DIVISOR.reset(token)


@torch.no_grad()
def reduce_attention(
    call: Call, wanted: StatRequest, tile_bytes: int | None = None
) -> AttentionStats:
    """Go over the map once, tile by tile, and take what is wanted.

    A tile is some query rows of some key heads, against all keys: [g, r, n, K], where each of g key
    heads serves r heads. All tiles are written into the same one or two buffers.
    """
    stats = _allocate(call, wanted)
    if fits_kernel(call, wanted):
        from anchorwatch.probes.received_kernel import sum_received

        stats.sums = sum_received(call, wanted.weights, stats.live)
        return stats
    # 1. How large a tile may be.
    tile_bytes = TILE_BYTES // _DIVISOR.get() if tile_bytes is None else tile_bytes
    batch, heads, queries, _ = call.query.shape
    keys = call.key.shape[2]
    groups = call.key.shape[1]
    repeats = heads // groups
    step = _rows_of_a_tile(tile_bytes, repeats, keys, queries)
    width = max(1, min(groups, tile_bytes // (4 * repeats * step * keys)))
    # 2. Buffers; the entropy needs the logarithms beside the probabilities.
    size = width * repeats * step * keys
    logs_buffer = call.query.new_empty(size, dtype=torch.float32)
    buffer = torch.empty_like(logs_buffer) if wanted.entropy else logs_buffer
    # 3. Tile by tile: probabilities, then every reduction while they are in the cache.
    for b in range(batch):
        for g in range(0, groups, width):
            span = slice(g, min(g + width, groups))
            key = call.key[b, span].float().transpose(1, 2)
            for a in range(0, queries, step):
                rows = slice(a, min(a + step, queries))
                logs = _log_probabilities(call, stats.live, b, span, rows, key, logs_buffer)
                p = torch.exp2(logs, out=buffer[: logs.numel()].view_as(logs))
                _take(call, wanted, stats, logs, p, b, span, rows)
    if stats.mixed is not None:
        stats.mixed /= heads
    return stats


def fits_kernel(call: Call, wanted: StatRequest) -> bool:
    """Whether the Triton kernels give all that is wanted: received attention, on CUDA, unedited."""
    if call.query.device.type != "cuda" or find_spec("triton") is None:
        return False
    edits = (call.bias, call.dropped, call.extra_logits)
    more = (wanted.entropy, wanted.diagonal, wanted.distance, wanted.top, wanted.maps)
    arrays = (wanted.spans, wanted.mixed)
    return not any(more) and all(part is None for part in (*edits, *arrays))


def _rows_of_a_tile(tile_bytes: int, repeats: int, keys: int, queries: int) -> int:
    # At least 16 rows and at most 256, whatever the aim says; fewer where memory ran out.
    rows = tile_bytes // (4 * repeats * keys)
    least = max(1, 16 // _DIVISOR.get())
    return int(max(1, min(queries, max(least, min(256, rows)))))


def _allocate(call: Call, wanted: StatRequest) -> AttentionStats:
    """Empty statistics: zeros for what is summed over rows, NaN and -1 for what each row has."""
    # 1. Rows that may look at anything.
    batch, heads, queries, _ = call.query.shape
    keys, device = call.key.shape[2], call.query.device
    attendable = call.attendable
    live = torch.ones(batch, queries, dtype=torch.bool, device=device)
    if attendable is not None:
        # A row that may look at nothing has no softmax: it counts in no mean.
        live = attendable.any(dim=-1)[:, 0].expand(batch, queries)

    def blank(*shape: int, fill: float = 0.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full(shape, fill, dtype=dtype, device=device)

    # 2. An array for every statistic that was requested.
    nan = float("nan")
    stats = AttentionStats(live=live, sums=blank(batch, heads, wanted.weights.shape[1], keys))
    if wanted.entropy:
        stats.entropy = blank(batch, heads, queries, fill=nan)
    if wanted.diagonal:
        stats.diagonal = blank(batch, heads, queries, fill=nan)
    if wanted.distance:
        stats.distance = blank(batch, heads, keys)
    if wanted.top:
        kept = (batch, heads, queries, wanted.top)
        stats.top_key = blank(*kept, fill=-1, dtype=torch.int32)
        stats.top_mass = blank(*kept, fill=nan)
    if wanted.spans is not None:
        stats.spans = blank(batch, heads, queries, wanted.spans.shape[-1], fill=nan)
    if wanted.maps:
        stats.maps = blank(batch, len(wanted.maps), queries, keys, fill=nan)
    if wanted.mixed is not None:
        stats.mixed = blank(batch, queries, wanted.mixed.shape[-1])
    return stats


def _log_probabilities(
    call: Call,
    live: torch.Tensor,
    b: int,
    span: slice,
    rows: slice,
    key: torch.Tensor,
    buffer: torch.Tensor,
) -> torch.Tensor:
    """[g, r, n, K] log2 of probabilities, some rows of some key heads; HIDDEN if not attendable.

    `key` is [g, D, K]; the tile is written into `buffer`.
    """
    # 1. Scores of the rows, less their log-sum-exp where the kernel gave it.
    repeats = call.query.shape[1] // call.key.shape[1]
    heads = slice(span.start * repeats, span.stop * repeats)
    query = call.query[b, heads, rows].float()
    groups, count, keys = span.stop - span.start, query.shape[1], key.shape[2]
    query = query.reshape(groups, repeats * count, -1)
    logs = buffer[: groups * repeats * count * keys].view(groups, repeats * count, keys)
    scale = call.scale * LOG2_E
    if call.lse is not None:
        lse = call.lse[b, heads, rows]
        if call.attendable is not None:  # a row that sees nothing has no log-sum-exp
            lse = torch.where(live[b, rows], lse, 0.0)
        lse = lse.reshape(groups, repeats * count, 1)
        torch.baddbmm(lse, query, key, beta=-LOG2_E, alpha=scale, out=logs)
    else:
        torch.bmm(query, key, out=logs).mul_(scale)
    logs = logs.view(groups, repeats, count, keys)
    # 2. Added keys, whose logits are no products, and what edits add to logits.
    if call.extra_logits is not None:
        _write_added(logs, call, live, b, heads, rows)
    hidden = _hidden_keys(call, b, rows)
    if call.bias is not None:
        _add_bias(logs, _part(call.bias, b, heads, rows, logs))
    # 3. Keys that a row may not look at, the log-sum-exp where the kernel gave none, and weights
    #    that an edit dropped after the softmax (they do not renormalise, so they come last).
    if hidden is not None:
        logs.masked_fill_(hidden, HIDDEN)
    if call.lse is None:
        logs.sub_(logs.amax(dim=-1, keepdim=True))
        logs = logs.sub_(logs.exp2().sum(dim=-1, keepdim=True).log2_())
        logs.masked_fill_(~live[b, rows, None], HIDDEN)
    if call.dropped is not None:
        logs.masked_fill_(_part(call.dropped, b, heads, rows, logs), HIDDEN)
    return logs


def _write_added(
    logs: torch.Tensor, call: Call, live: torch.Tensor, b: int, heads: slice, rows: slice
) -> None:
    """Put the logits of added keys, which are no products, where the products stand."""
    assert call.extra_logits is not None
    added = call.extra_logits[b, heads, rows].float().view(*logs.shape[:3], -1)
    if call.lse is not None:
        lse = torch.where(live[b, rows], call.lse[b, heads, rows], 0.0)
        added = added - lse.view(*logs.shape[:3], 1)
    logs[..., : call.num_extra_keys] = (added * LOG2_E).clamp(min=HIDDEN)


def _part(
    whole: torch.Tensor, b: int, heads: slice, rows: slice, like: torch.Tensor
) -> torch.Tensor:
    """[g or 1, r or 1, n or 1, K] of what an edit made [B or 1, H or 1, Q or 1, K]."""
    # A size of 1 stands for all: such axes are kept as they are and broadcast.
    part = whole[b if whole.shape[0] > 1 else 0]
    part = part[:, rows] if part.shape[1] > 1 else part
    return part[heads].view(*like.shape[:2], *part.shape[1:]) if part.shape[0] > 1 else part[None]


def _add_bias(logs: torch.Tensor, bias: torch.Tensor) -> None:
    """Add a bias that may hide: -inf becomes HIDDEN, so that 0 * log 0 stays 0."""
    # -inf plus a finite number is -inf, and exp(-inf) * -inf would be NaN in the entropy.
    gone = bias == -torch.inf
    logs.add_(bias.masked_fill(gone, 0.0), alpha=LOG2_E).masked_fill_(gone, HIDDEN)


def _hidden_keys(call: Call, b: int, rows: slice) -> torch.Tensor | None:
    """[n, K] bool of keys these rows may not look at, or None."""
    if call.attendable is not None:
        return ~call.attendable[b if call.attendable.shape[0] > 1 else 0, 0, rows]
    if not call.causal:
        return None
    # Added keys stand before the sequence, at negative positions: every row sees them.
    keys = torch.arange(call.key.shape[2], device=call.key.device) - call.num_extra_keys
    return keys > torch.arange(rows.start, rows.stop, device=keys.device)[:, None]


def _take(
    call: Call,
    wanted: StatRequest,
    stats: AttentionStats,
    logs: torch.Tensor,
    p: torch.Tensor,
    b: int,
    span: slice,
    rows: slice,
) -> None:
    """Take everything that is wanted from one tile of probabilities; overwrites `logs`."""
    # 1. Attention received, summed over the rows of each group.
    repeats = p.shape[1]
    heads = slice(span.start * repeats, span.stop * repeats)
    flat = p.flatten(0, 1)  # [h, n, K]
    weights = wanted.weights[b, :, rows].expand(flat.shape[0], -1, -1)
    stats.sums[b, heads].baddbmm_(weights, flat)
    # 2. Of each row: entropy, attention to itself; and mass by distance.
    dead = None if call.attendable is None else ~stats.live[b, rows]
    if stats.entropy is not None:
        # -sum p log p in nats; HIDDEN is finite, so that 0 * log 0 is 0.
        rows_entropy = logs.mul_(p).sum(dim=-1).mul_(-log(2)).flatten(0, 1)
        stats.entropy[b, heads, rows] = _without(rows_entropy, dead)
    offset = call.key.shape[2] - call.query.shape[2]  # cached keys stand before the first query
    if wanted.own_keys is not None:
        own = wanted.own_keys[rows]
    elif stats.diagonal is not None or stats.distance is not None:
        own = torch.arange(rows.start, rows.stop, device=p.device) + offset
    if stats.diagonal is not None:
        mass = flat.gather(-1, own.expand(flat.shape[0], -1)[..., None])[..., 0]
        stats.diagonal[b, heads, rows] = _without(mass, dead)
    if stats.distance is not None:
        columns = torch.arange(p.shape[-1], device=p.device)
        apart = (own[:, None] - columns).abs()
        index = apart.flatten().expand(flat.shape[0], -1)
        counted = flat * wanted.weights[b, 0, rows, None]
        counted[..., : wanted.before] = 0.0
        stats.distance[b, heads].scatter_add_(-1, index, counted.flatten(1))
    # 3. Of rows that were asked for: top keys, regions, whole maps, rollout.
    if wanted.top:
        _take_top(wanted, stats, flat, b, heads, rows)
    if stats.spans is not None and wanted.spans is not None:
        chosen = _requested_rows(wanted, stats, b, rows)
        stats.spans[b, heads, chosen + rows.start] = flat[:, chosen] @ wanted.spans[b]
    _take_maps(wanted, stats, flat, b, heads, rows)
    if stats.mixed is not None and wanted.mixed is not None:
        own_keys = slice(rows.start + offset, rows.stop + offset)
        stats.mixed[b, rows] += _mix(wanted, flat, b, wanted.mixed[b], own_keys)


def _without(values: torch.Tensor, dead: torch.Tensor | None) -> torch.Tensor:
    """Values [h, n] of rows, NaN where a row is dead."""
    return values if dead is None else values.masked_fill(dead, float("nan"))


def _take_top(
    wanted: StatRequest,
    stats: AttentionStats,
    flat: torch.Tensor,
    b: int,
    heads: slice,
    rows: slice,
) -> None:
    assert stats.top_key is not None and stats.top_mass is not None
    chosen = _requested_rows(wanted, stats, b, rows)
    if not len(chosen):
        return
    asked = flat if len(chosen) == flat.shape[1] else flat[:, chosen]
    mass, keys = asked.topk(min(wanted.top, flat.shape[-1]), dim=-1)
    count = mass.shape[-1]
    visible = mass > 0  # a key that may not be looked at is no key
    queries = chosen + rows.start
    stats.top_key[b, heads, queries, :count] = torch.where(visible, keys, -1).int()
    stats.top_mass[b, heads, queries, :count] = torch.where(visible, mass, float("nan"))


def _requested_rows(
    wanted: StatRequest, stats: AttentionStats, b: int, rows: slice
) -> torch.Tensor:
    """Which rows of a tile are among `top_rows`, counted from the tile's first."""
    requested = stats.live[b, rows]
    if wanted.top_rows is not None:
        requested = requested & wanted.top_rows[b, rows]
    return requested.nonzero()[:, 0]


def _take_maps(
    wanted: StatRequest,
    stats: AttentionStats,
    flat: torch.Tensor,
    b: int,
    heads: slice,
    rows: slice,
) -> None:
    live = stats.live[b, rows]
    for index, head in _heads_inside(wanted.maps, heads):
        assert stats.maps is not None
        stats.maps[b, index, rows] = flat[head].masked_fill(~live[:, None], float("nan"))


def _mix(
    wanted: StatRequest, flat: torch.Tensor, b: int, mixed: torch.Tensor, own_keys: slice
) -> torch.Tensor:
    """[n, R] attention times `mixed`, summed over heads."""
    if wanted.hidden is None or not bool(wanted.hidden[b].any()):
        return flat.sum(dim=0) @ mixed
    # Columns taken out, rows renormalised over what is left.
    kept = flat.masked_fill(wanted.hidden[b], 0.0)
    left = kept.sum(dim=-1, keepdim=True)
    bare = (left == 0).sum(dim=0)  # heads for which a row has no key left: it keeps what it has
    return (kept / left.clamp(min=1e-30)).sum(dim=0) @ mixed + bare * mixed[own_keys]


def _heads_inside(maps: tuple[int, ...], heads: slice) -> Iterator[tuple[int, int]]:
    """(index among the kept maps, index in the tile) of kept heads that a tile holds."""
    for index, head in enumerate(maps):
        if heads.start <= head < heads.stop:
            yield index, head - heads.start
