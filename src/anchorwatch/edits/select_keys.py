"""Which keys an edit hides, from the attention that keys received: plain arrays, no torch.

A place is one set of keys: a head, a layer or the model, as the edit's scope says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorwatch.edits.spec import Detecting, hide_lowest, hide_random, hide_sinks

MISSING = -1


@dataclass(frozen=True)
class ReceivedShares:
    """What keys received at one layer, over the rows that were read."""

    step: int
    sums: np.ndarray
    """[head, key] attention, summed over rows."""
    rows: float
    lookers: np.ndarray
    """[key] rows that may look at each key."""

    def plus(self, later: ReceivedShares) -> ReceivedShares:
        """Rows of this and of a later step; the later one may know more keys."""
        more = later.sums.shape[-1] - self.sums.shape[-1]
        sums = np.pad(self.sums, ((0, 0), (0, more))) + later.sums
        lookers = np.pad(self.lookers, (0, more)) + later.lookers
        return ReceivedShares(later.step, sums, self.rows + later.rows, lookers)


@dataclass(frozen=True)
class Candidates:
    """What an edit may choose from, right now."""

    eligible: np.ndarray
    """[key] bool; as long as the canvas is now."""
    classes: np.ndarray
    """[key] the kind of token at each."""
    draw: tuple[int, ...]
    """Where chance begins."""


def shares_of(seen: list[ReceivedShares], heads: list[tuple[int, ...]], scope: str) -> np.ndarray:
    """[place, key] mean shares: of each head of one layer, of the layer, or of all layers."""
    each = [one.sums[list(mine)] / max(one.rows, 1) for one, mine in zip(seen, heads, strict=True)]
    if scope == "head":
        return each[0]
    return np.concatenate(each).mean(axis=0, keepdims=True)


def select_keys(
    edit: Detecting, shares: np.ndarray, looked: np.ndarray | None, pool: Candidates
) -> np.ndarray:
    """[place, k] keys to hide, -1 where there are fewer; one key is always left."""
    count = len(pool.eligible)
    known = np.full((len(shares), count), np.nan)
    known[:, : shares.shape[1]] = shares[:, :count]
    most = max(min(edit.k, int((~np.isnan(known[0])).sum()) - 1), 0)
    allowed = pool.eligible & ~np.isnan(known)
    lowest = isinstance(edit, hide_lowest)
    order = np.argsort(known if lowest else -known, axis=1, kind="stable")
    wanted = allowed if lowest else allowed & _sinks(edit, known, looked)
    ranks = np.cumsum(np.take_along_axis(wanted, order, axis=1), axis=1)
    keys = _nth(order, ranks, np.arange(1, edit.k + 1))
    keys[:, most:] = MISSING
    if not isinstance(edit, hide_random):
        return keys
    draws = [np.random.default_rng((*pool.draw, place)) for place in range(len(known))]
    return _others(edit, keys, _SortedKeys(order, allowed, pool.classes), draws)


def _nth(order: np.ndarray, ranks: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """[place, n] keys at which each row of `ranks`, that never falls, first reaches `wanted`."""
    reached = ranks[:, None, :] >= wanted[..., None]
    keys = np.take_along_axis(order, reached.argmax(axis=-1), axis=1).astype(np.int32)
    return np.where(reached[..., -1], keys, MISSING).astype(np.int32)


def _sinks(edit: Detecting, shares: np.ndarray, looked: np.ndarray | None) -> np.ndarray:
    """[place, key] bool: keys that receive anything, and that the rule, if any, calls sinks."""
    there = np.nan_to_num(shares) > 0
    if not isinstance(edit, hide_sinks | hide_random) or edit.rule is None:
        return there
    if looked is not None:
        looked = np.pad(looked.astype(float), (0, max(0, shares.shape[1] - len(looked))))
        looked = looked[: shares.shape[1]]
    return there & edit.rule.labels(shares, looked)


@dataclass(frozen=True)
class _SortedKeys:
    """Keys of every place, those that receive most first."""

    keys: np.ndarray
    """[place, rank]."""
    allowed: np.ndarray
    """[place, key] bool."""
    classes: np.ndarray
    """[key]."""


def _others(
    edit: hide_random, sinks: np.ndarray, ordered: _SortedKeys, draws: list[np.random.Generator]
) -> np.ndarray:
    """[place, k] for each sink one of the keys that are none, of its kind where kinds matter.

    One draw after another, for all places at once: what is drawn is never drawn again.
    """
    k = sinks.shape[1]
    left = ordered.allowed.copy()
    rows, _ = np.nonzero(sinks != MISSING)
    left[rows, sinks[sinks != MISSING]] = False
    left = np.take_along_axis(left, ordered.keys, axis=1)  # [place, rank] from here on
    if edit.matched_to == "rank":
        left &= np.cumsum(left, axis=1) <= 2 * k
    kinds = ordered.classes[ordered.keys]
    found = np.full(sinks.shape, MISSING, dtype=np.int32)
    for rank in range(k):
        pool = left
        if edit.matched_to == "class":
            alike = left & (kinds == ordered.classes[sinks[:, rank]][:, None])
            pool = np.where(alike.any(axis=1, keepdims=True), alike, left)
        sizes = np.where(sinks[:, rank] == MISSING, 0, pool.sum(axis=1))
        drawn = [int(d.integers(n)) + 1 if n else 0 for d, n in zip(draws, sizes, strict=True)]
        ranks, wanted = np.cumsum(pool, axis=1), np.array(drawn)[:, None]
        there = np.flatnonzero(wanted[:, 0])
        found[there, rank] = _nth(ordered.keys, ranks, wanted)[there, 0]
        left[there, (ranks[there] >= wanted[there]).argmax(axis=1)] = False
    return _move_missing_to_end(found)


def _move_missing_to_end(found: np.ndarray) -> np.ndarray:
    """Rows with what is missing moved to their end."""
    order = np.argsort(found == MISSING, axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1)
