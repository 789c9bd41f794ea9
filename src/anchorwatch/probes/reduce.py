"""Exact statistics of an attention map that is never held: tiles of query rows against all keys.

With the row log-sum-exp of the fused kernel a tile is `exp(q k^T * scale - lse)`: one product,
one exponential, and the reductions while it is warm. Without it the tile finds its own.
Shapes: B rows of the batch, H heads, Q queries, K keys, N query groups, R regions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from anchorwatch.models.attention import Call

HIDDEN = -1e30
"""Logit of a key that may not be looked at: finite, so that 0 * log 0 stays 0."""

TILE_BYTES = 4_000_000
"""Aim for one tile of scores; a few times this stays in a core's cache. See benchmarks/."""


@dataclass
class StatRequest:
    """What to take from the map. Weights are [B, N, Q]: 1 where a query belongs to a group."""

    weights: torch.Tensor
    """Group 0 is every query that counts."""
    before: int = 0
    """Columns before the canvas (added keys and registers): they have no distance."""
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


def reduce_attention(call: Call, want: StatRequest, tile_bytes: int = TILE_BYTES) -> AttentionStats:
    """Go over the map once, tile by tile, and take what is wanted."""
    batch, heads, queries, _ = call.query.shape
    keys = call.key.shape[2]
    found = _blank(call, want)
    groups = call.key.shape[1]
    repeats = heads // groups
    step = _rows_of_a_tile(tile_bytes, repeats, keys, queries)
    width = max(1, min(groups, tile_bytes // (4 * repeats * step * keys)))
    for b in range(batch):
        for g in range(0, groups, width):
            span = slice(g, min(g + width, groups))
            for a in range(0, queries, step):
                rows = slice(a, min(a + step, queries))
                logs = _log_probabilities(call, found.live, b, span, rows)
                _take(call, want, found, logs, b, span, rows)
    if found.mixed is not None:
        found.mixed /= heads
    return found


def _rows_of_a_tile(tile_bytes: int, repeats: int, keys: int, queries: int) -> int:
    rows = tile_bytes // (4 * repeats * keys)
    return int(max(1, min(queries, max(16, min(128, rows)))))


def _blank(call: Call, want: StatRequest) -> AttentionStats:
    batch, heads, queries, _ = call.query.shape
    keys, device = call.key.shape[2], call.query.device
    attendable = call.attendable
    live = torch.ones(batch, queries, dtype=torch.bool, device=device)
    if attendable is not None:
        live = attendable.any(dim=-1)[:, 0].expand(batch, queries)

    def blank(*shape: int, fill: float = 0.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full(shape, fill, dtype=dtype, device=device)

    nan = float("nan")
    found = AttentionStats(live=live, sums=blank(batch, heads, want.weights.shape[1], keys))
    if want.entropy:
        found.entropy = blank(batch, heads, queries, fill=nan)
    if want.diagonal:
        found.diagonal = blank(batch, heads, queries, fill=nan)
    if want.distance:
        found.distance = blank(batch, heads, keys)
    if want.top:
        kept = (batch, heads, queries, want.top)
        found.top_key = blank(*kept, fill=-1, dtype=torch.int32)
        found.top_mass = blank(*kept, fill=nan)
    if want.spans is not None:
        found.spans = blank(batch, heads, queries, want.spans.shape[-1], fill=nan)
    if want.maps:
        found.maps = blank(batch, len(want.maps), queries, keys, fill=nan)
    if want.mixed is not None:
        found.mixed = blank(batch, queries, want.mixed.shape[-1])
    return found


def _log_probabilities(
    call: Call, live: torch.Tensor, b: int, span: slice, rows: slice
) -> torch.Tensor:
    """[g, r, n, K] log-probabilities of some rows for some key heads; HIDDEN if not attendable."""
    repeats = call.query.shape[1] // call.key.shape[1]
    heads = slice(span.start * repeats, span.stop * repeats)
    query = call.query[b, heads, rows].float()
    groups, count = span.stop - span.start, query.shape[1]
    query = query.reshape(groups, repeats * count, -1)
    key = call.key[b, span].float().transpose(1, 2)
    if call.lse is not None:
        lse = call.lse[b, heads, rows]
        lse = torch.where(live[b, rows], lse, 0.0).reshape(groups, repeats * count, 1)
        logs = torch.baddbmm(lse, query, key, beta=-1, alpha=call.scale)
    else:
        logs = torch.bmm(query, key).mul_(call.scale)
    logs = logs.view(groups, repeats, count, -1)
    if call.added is not None:
        _write_added(logs, call, live, b, heads, rows)
    hidden = _hidden(call, b, rows)
    if call.bias is not None:
        _lower(logs, _part(call.bias, b, heads, rows, logs))
    if hidden is not None:
        logs.masked_fill_(hidden, HIDDEN)
    if call.lse is None:
        lse = torch.logsumexp(logs, dim=-1, keepdim=True)
        logs = torch.where(live[b, rows, None], logs.sub_(lse), HIDDEN)
    if call.dropped is not None:
        logs.masked_fill_(_part(call.dropped, b, heads, rows, logs), HIDDEN)
    return logs


def _write_added(
    logs: torch.Tensor, call: Call, live: torch.Tensor, b: int, heads: slice, rows: slice
) -> None:
    """Put the logits of added keys, which are no products, where the products stand."""
    assert call.added is not None
    added = call.added[b, heads, rows].float().view(*logs.shape[:3], -1)
    if call.lse is not None:
        lse = torch.where(live[b, rows], call.lse[b, heads, rows], 0.0)
        added = added - lse.view(*logs.shape[:3], 1)
    logs[..., : call.num_added] = added.clamp(min=HIDDEN)


def _part(
    whole: torch.Tensor, b: int, heads: slice, rows: slice, like: torch.Tensor
) -> torch.Tensor:
    """[g or 1, r or 1, n or 1, K] of what an edit made [B or 1, H or 1, Q or 1, K]."""
    part = whole[b if whole.shape[0] > 1 else 0]
    part = part[:, rows] if part.shape[1] > 1 else part
    return part[heads].view(*like.shape[:2], *part.shape[1:]) if part.shape[0] > 1 else part[None]


def _lower(logs: torch.Tensor, bias: torch.Tensor) -> None:
    """Add a bias that may hide: -inf becomes HIDDEN, so that 0 * log 0 stays 0."""
    gone = bias == -torch.inf
    logs.add_(bias.masked_fill(gone, 0.0)).masked_fill_(gone, HIDDEN)


def _hidden(call: Call, b: int, rows: slice) -> torch.Tensor | None:
    """[n, K] bool of keys these rows may not look at, or None."""
    if call.attendable is not None:
        return ~call.attendable[b if call.attendable.shape[0] > 1 else 0, 0, rows]
    if not call.causal:
        return None
    keys = torch.arange(call.key.shape[2], device=call.key.device) - call.num_added
    return keys > torch.arange(rows.start, rows.stop, device=keys.device)[:, None]


def _take(
    call: Call,
    want: StatRequest,
    found: AttentionStats,
    logs: torch.Tensor,
    b: int,
    span: slice,
    rows: slice,
) -> None:
    repeats = logs.shape[1]
    heads = slice(span.start * repeats, span.stop * repeats)
    p = logs.exp() if want.entropy else logs.exp_()
    flat = p.flatten(0, 1)  # [h, n, K]
    weights = want.weights[b, :, rows].expand(flat.shape[0], -1, -1)
    found.sums[b, heads].baddbmm_(weights, flat)
    live = found.live[b, rows]
    if found.entropy is not None:
        rows_entropy = -torch.linalg.vecdot(p, logs).flatten(0, 1)
        found.entropy[b, heads, rows] = rows_entropy.masked_fill(~live, float("nan"))
    offset = call.key.shape[2] - call.query.shape[2]  # cached keys stand before the first query
    if found.diagonal is not None:
        own = torch.arange(rows.start, rows.stop, device=p.device) + offset
        mass = flat.gather(-1, own.expand(flat.shape[0], -1)[..., None])[..., 0]
        found.diagonal[b, heads, rows] = mass.masked_fill(~live, float("nan"))
    if found.distance is not None:
        places = torch.arange(p.shape[-1], device=p.device)
        own = torch.arange(rows.start, rows.stop, device=p.device)[:, None] + offset
        apart = (own - places).abs()
        index = apart.flatten().expand(flat.shape[0], -1)
        counted = flat * want.weights[b, 0, rows, None]
        counted[..., : want.before] = 0.0
        found.distance[b, heads].scatter_add_(-1, index, counted.flatten(1))
    if want.top:
        _take_top(want, found, flat, b, heads, rows)
    if found.spans is not None and want.spans is not None:
        asked = _asked(want, found, b, rows)
        found.spans[b, heads, asked + rows.start] = flat[:, asked] @ want.spans[b]
    _take_maps(want, found, flat, b, heads, rows)
    if found.mixed is not None and want.mixed is not None:
        at = slice(rows.start + offset, rows.stop + offset)
        found.mixed[b, rows] += _mix(want, flat, b, want.mixed[b], at)


def _take_top(
    want: StatRequest, found: AttentionStats, flat: torch.Tensor, b: int, heads: slice, rows: slice
) -> None:
    assert found.top_key is not None and found.top_mass is not None
    at = _asked(want, found, b, rows)
    if not len(at):
        return
    best = flat[:, at].topk(min(want.top, flat.shape[-1]), dim=-1)
    count = best.values.shape[-1]
    there = best.values > 0  # a key that may not be looked at is no key
    places = at + rows.start
    found.top_key[b, heads, places, :count] = torch.where(there, best.indices, -1).int()
    found.top_mass[b, heads, places, :count] = torch.where(there, best.values, float("nan"))


def _asked(want: StatRequest, found: AttentionStats, b: int, rows: slice) -> torch.Tensor:
    """Which rows of a tile are among `top_rows`."""
    asked = found.live[b, rows]
    if want.top_rows is not None:
        asked = asked & want.top_rows[b, rows]
    return asked.nonzero()[:, 0]


def _take_maps(
    want: StatRequest, found: AttentionStats, flat: torch.Tensor, b: int, heads: slice, rows: slice
) -> None:
    live = found.live[b, rows]
    for place, head in _inside(want.maps, heads):
        assert found.maps is not None
        found.maps[b, place, rows] = flat[head].masked_fill(~live[:, None], float("nan"))


def _mix(
    want: StatRequest, flat: torch.Tensor, b: int, mixed: torch.Tensor, at: slice
) -> torch.Tensor:
    """[n, R] attention times `mixed`, summed over heads."""
    if want.hidden is None or not bool(want.hidden[b].any()):
        return flat.sum(dim=0) @ mixed
    kept = flat.masked_fill(want.hidden[b], 0.0)
    left = kept.sum(dim=-1, keepdim=True)
    bare = (left == 0).sum(dim=0)  # heads for which a row has no key left: it keeps what it has
    return (kept / left.clamp(min=1e-30)).sum(dim=0) @ mixed + bare * mixed[at]


def _inside(maps: tuple[int, ...], heads: slice) -> Iterator[tuple[int, int]]:
    for place, head in enumerate(maps):
        if heads.start <= head < heads.stop:
            yield place, head - heads.start
