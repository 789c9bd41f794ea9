"""Which keys an edit hides, from the attention that keys received: plain arrays, no torch.

A place is one set of keys: a head, a layer or the model, as the edit's scope says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorwatch.edits import Detecting, hide_lowest, hide_random, hide_sinks

MISSING = -1


@dataclass(frozen=True)
class Seen:
    """What keys received at one layer, over the rows that were read."""

    step: int
    sums: np.ndarray
    """[head, key] attention, summed over rows."""
    rows: float
    lookers: np.ndarray
    """[key] rows that may look at each key."""

    def plus(self, later: Seen) -> Seen:
        """Rows of this and of a later step; the later one may know more keys."""
        more = later.sums.shape[-1] - self.sums.shape[-1]
        sums = np.pad(self.sums, ((0, 0), (0, more))) + later.sums
        lookers = np.pad(self.lookers, (0, more)) + later.lookers
        return Seen(later.step, sums, self.rows + later.rows, lookers)


@dataclass(frozen=True)
class Pool:
    """What an edit may choose from, right now."""

    eligible: np.ndarray
    """[key] bool; as long as the canvas is now."""
    classes: np.ndarray
    """[key] the kind of token at each."""
    draw: tuple[int, ...]
    """Where chance begins."""


def shares_of(seen: list[Seen], heads: list[tuple[int, ...]], scope: str) -> np.ndarray:
    """[place, key] mean shares: of each head of one layer, of the layer, or of all layers."""
    each = [one.sums[list(mine)] / max(one.rows, 1) for one, mine in zip(seen, heads, strict=True)]
    if scope == "head":
        return each[0]
    return np.concatenate(each).mean(axis=0, keepdims=True)


def chosen(
    edit: Detecting, shares: np.ndarray, looked: np.ndarray | None, pool: Pool
) -> np.ndarray:
    """[place, k] keys to hide, -1 where there are fewer; one key is always left."""
    count = len(pool.eligible)
    known = np.full((len(shares), count), np.nan)
    known[:, : shares.shape[1]] = shares[:, :count]
    found = np.full((len(known), edit.k), MISSING, dtype=np.int32)
    most = min(edit.k, int((~np.isnan(known[0])).sum()) - 1)
    allowed = pool.eligible & ~np.isnan(known)
    sinks = _sinks(edit, known, looked)
    for place in range(len(known)):
        if isinstance(edit, hide_lowest):
            order = np.argsort(known[place], kind="stable")
            keys = order[allowed[place][order]][: max(most, 0)]
        else:
            order = np.argsort(-known[place], kind="stable")
            keys = order[(allowed & sinks)[place][order]][: max(most, 0)]
        if isinstance(edit, hide_random):
            others = allowed[place].copy()
            others[keys] = False
            draw = np.random.default_rng((*pool.draw, place))
            keys = _others(edit, keys, order[others[order]], pool.classes, draw)
        found[place, : len(keys)] = keys
    return found


def _sinks(edit: Detecting, shares: np.ndarray, looked: np.ndarray | None) -> np.ndarray:
    """[place, key] bool: keys that receive anything, and that the rule, if any, calls sinks."""
    there = np.nan_to_num(shares) > 0
    if not isinstance(edit, hide_sinks | hide_random) or edit.rule is None:
        return there
    if looked is not None:
        looked = np.pad(looked.astype(float), (0, max(0, shares.shape[1] - len(looked))))
        looked = looked[: shares.shape[1]]
    return there & edit.rule.labels(shares, looked)


def _others(
    edit: hide_random,
    sinks: np.ndarray,
    others: np.ndarray,
    classes: np.ndarray,
    draw: np.random.Generator,
) -> np.ndarray:
    """As many of the others (those that receive most first) as there are sinks."""
    if edit.matched_to == "rank":
        others = others[: 2 * edit.k]
    picked: list[int] = []
    for sink in sinks:
        left = [int(key) for key in others if key not in picked]
        alike = [key for key in left if classes[key] == classes[sink]]
        pool = (alike or left) if edit.matched_to == "class" else left
        if pool:
            picked.append(int(draw.choice(pool)))
    return np.asarray(picked, dtype=np.int32)
