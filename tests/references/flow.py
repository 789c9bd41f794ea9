"""Region flow and rollout the obvious way: loops over dense maps, one query, one key at a time."""

import numpy as np


def even_map(
    there, *, causal=False, window=None, block=None, hidden=(), sink_token=False, plant=None
):
    """[query, key] of indifferent attention: who may look at whom, evenly; `plant` (key, share)."""
    rows = np.zeros((there, there))
    for q in range(there):
        keys = [k for k in range(there) if _may(q, k, causal, window, block) and k not in hidden]
        if not keys and not sink_token:
            rows[q, q] = 1  # nothing left to look at: it keeps what it has
            continue
        for k in keys:
            rows[q, k] = 1 / (len(keys) + sink_token)
        if plant is not None and plant[0] in keys:
            key, share = plant
            others = len(keys) - 1 + sink_token
            for k in keys:
                rows[q, k] = (1 - share) / others if others else 0.0
            rows[q, key] = share if others else 1.0
    return rows


def _may(q, k, causal, window, block):
    if causal and k > q:
        return False
    if block is not None and k // block > q // block:
        return False
    if window is None:
        return True
    return k > q - window if causal else abs(q - k) <= window


def flow(rows, of, regions):
    """[query_region, key_region] of one map [query, key]; NaN where the one has no queries."""
    found = np.full((regions, regions), np.nan)
    for i in range(regions):
        queries = [q for q in range(len(rows)) if of[q] == i]
        for j in range(regions):
            if queries:
                found[i, j] = sum(
                    rows[q][k] for q in queries for k in range(len(rows)) if of[k] == j
                ) / len(queries)
    return found


def length_normalised(pooled, lengths):
    """(P_ij / len_j) / sum_k (P_ik / len_k); regions without positions are absent."""
    found = np.full(pooled.shape, np.nan)
    for i in range(len(pooled)):
        density = [p / n if n else None for p, n in zip(pooled[i], lengths, strict=True)]
        whole = sum(d for d in density if d is not None)
        for j, one in enumerate(density):
            if one is not None and whole > 0:
                found[i, j] = one / whole
    return found


def without(rows, hidden):
    """A map without some columns, rows renormalised; a row with none left keeps what it has."""
    found = np.array(rows, dtype=float)
    for q in range(len(found)):
        for k in hidden:
            if k < len(found):  # else it is not written yet
                found[q, k] = 0
        whole = found[q].sum()
        found[q] = found[q] / whole if whole else np.eye(len(found))[q]
    return found


def rollouts(layers, *, hidden=(), residual=0.5):
    """[layer][query, key]: the product of every layer's mixing; layers are [head, query, key]."""
    product, found = np.eye(layers[0].shape[-1]), []
    for heads in layers:
        mean = sum(without(rows, hidden) for rows in heads) / len(heads)
        product = (residual * np.eye(len(product)) + (1 - residual) * mean) @ product
        found.append(product)
    return found


def published(layers, of, regions):
    """Pooled by sums, rows normalised, identity added, multiplied, as the released script does."""
    product, found = np.eye(regions), []
    for heads in layers:
        mean = sum(heads) / len(heads)
        pooled = np.zeros((regions, regions))
        for q in range(len(mean)):
            for k in range(len(mean)):
                if of[q] >= 0 and of[k] >= 0:
                    pooled[of[q], of[k]] += mean[q, k]
        pooled = pooled / pooled.sum(axis=1, keepdims=True)
        mixed = pooled + np.eye(regions)
        product = mixed / mixed.sum(axis=1, keepdims=True) @ product
        found.append(product)
    return found


def dobrushin(rows):
    """Half the greatest sum of differences between two rows, what they lack to one included."""
    rows = [[*row, 1 - sum(row)] for row in rows]
    return max(
        0.5 * sum(abs(a - b) for a, b in zip(one, two, strict=True)) for one in rows for two in rows
    )
