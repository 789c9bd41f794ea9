"""Attention received by every key, as two Triton kernels for CUDA: no tile leaves the chip.

The first finds each query's log-sum-exp over all keys, where attention did not leave it; the second
adds up, for some keys, what all queries give them. Both keep one tile of logits in registers.
TRITON_INTERPRET=1 runs the same code on a CPU, which is how it is tested against the plain sums.
Shapes: B rows of the batch, H heads, G key heads, Q queries, K keys, N query groups, D channels.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from anchorwatch.models.attention import Call

ROWS, COLUMNS = 64, 64
"""Queries and keys of a tile."""


def sum_received(call: Call, weights: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """[B, H, N, K] attention received, summed over the live queries of each group.

    `weights` are [B, N, Q] and `live` [B, Q]. Edits and added keys are not read here.
    """
    # 1. Tensors that lie in order, so that a pointer and the shape find every number.
    query, key = call.query.contiguous(), call.key.contiguous()
    batch, heads, queries, size = query.shape
    keys, groups = key.shape[2], weights.shape[1]
    mask = query if call.attendable is None else call.attendable.contiguous()
    shared = call.attendable is not None and call.attendable.shape[0] == 1
    # 2. What is known when the kernels are compiled; a product takes at least 16 of everything.
    layout: dict[str, Any] = {
        "repeats": heads // key.shape[1],
        "size": size,
        "padded": max(16, triton.next_power_of_2(size)),
        "causal": call.causal,
        "masked": call.attendable is not None,
        "rows": ROWS,
        "columns": COLUMNS,
    }
    shape = (heads, queries, keys, 0 if shared else queries * keys, float(call.scale))
    # 3. The log-sum-exp of each row.
    lse = call.lse
    if lse is None:
        lse = query.new_empty(batch, heads, queries, dtype=torch.float32)
        grid = (triton.cdiv(queries, ROWS), batch * heads)
        _find_lse[grid](query, key, mask, lse, *shape, **layout)
    # 4. What each key receives; a row that sees nothing gives nothing.
    sums = query.new_zeros(batch, heads, groups, keys, dtype=torch.float32)
    counted = (weights.float() * live[:, None]).contiguous()
    layout["padded_groups"] = max(16, triton.next_power_of_2(groups))
    grid = (triton.cdiv(keys, COLUMNS), batch * heads)
    _add_up[grid](
        query, key, mask, lse.float().contiguous(), counted, sums, groups, *shape, **layout
    )
    return sums


# fmt: off
@triton.jit
def _logits(
    query, key, mask, b, head, q, k, heads, queries, keys, mask_stride, scale,
    repeats: tl.constexpr, size: tl.constexpr, padded: tl.constexpr,
    causal: tl.constexpr, masked: tl.constexpr,
):
    """[rows, columns] logits of queries q and keys k, -inf where a query does not see a key."""
    d, key_heads = tl.arange(0, padded)[None, :], heads // repeats
    rows = tl.load(
        query + ((b * heads + head) * queries + q[:, None]) * size + d,
        mask=(q[:, None] < queries) & (d < size), other=0.0,
    )
    columns = tl.load(
        key + ((b * key_heads + head // repeats) * keys + k[:, None]) * size + d,
        mask=(k[:, None] < keys) & (d < size), other=0.0,
    )
    product = tl.dot(rows.to(tl.float32), tl.trans(columns.to(tl.float32)), input_precision="ieee")
    seen = (q[:, None] < queries) & (k[None, :] < keys)
    if causal:
        seen = seen & (k[None, :] <= q[:, None])
    if masked:
        allowed = mask + b * mask_stride + q[:, None] * keys + k[None, :]
        seen = seen & (tl.load(allowed, mask=seen, other=0) != 0)
    return tl.where(seen, product * scale, float("-inf"))


@triton.jit
def _find_lse(
    query, key, mask, lse, heads, queries, keys, mask_stride, scale,
    repeats: tl.constexpr, size: tl.constexpr, padded: tl.constexpr, causal: tl.constexpr,
    masked: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
):
    """Log-sum-exp of the logits of some queries; 0 for a query that sees nothing."""
    b, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    q = tl.program_id(0) * rows + tl.arange(0, rows)
    most = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    for start in range(0, keys, columns):
        logits = _logits(
            query, key, mask, b, head, q, start + tl.arange(0, columns),
            heads, queries, keys, mask_stride, scale, repeats, size, padded, causal, masked,
        )
        # What was added up is brought to the new maximum; -inf less -inf would be no number.
        new = tl.maximum(most, tl.max(logits, 1))
        level = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(most - level) + tl.sum(tl.exp(logits - level[:, None]), 1)
        most = new
    result = tl.where(total > 0, most + tl.log(tl.where(total > 0, total, 1.0)), 0.0)
    tl.store(lse + (b * heads + head) * queries + q, result, mask=q < queries)


@triton.jit
def _add_up(
    query, key, mask, lse, weights, sums, groups, heads, queries, keys, mask_stride, scale,
    repeats: tl.constexpr, size: tl.constexpr, padded: tl.constexpr, causal: tl.constexpr,
    masked: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, padded_groups: tl.constexpr,
):
    """What some keys receive from the queries of each group."""
    b, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    k = tl.program_id(0) * columns + tl.arange(0, columns)
    n = tl.arange(0, padded_groups)[:, None]
    total = tl.zeros([padded_groups, columns], tl.float32)
    for start in range(0, queries, rows):
        q = start + tl.arange(0, rows)
        logits = _logits(
            query, key, mask, b, head, q, k,
            heads, queries, keys, mask_stride, scale, repeats, size, padded, causal, masked,
        )
        row = tl.load(lse + (b * heads + head) * queries + q, mask=q < queries, other=0.0)
        counted = tl.load(
            weights + (b * groups + n) * queries + q[None, :],
            mask=(n < groups) & (q[None, :] < queries), other=0.0,
        )
        total += tl.dot(counted, tl.exp(logits - row[:, None]), input_precision="ieee")
    tl.store(
        sums + ((b * heads + head) * groups + n) * keys + k[None, :],
        total, mask=(n < groups) & (k[None, :] < keys),
    )
# fmt: on
