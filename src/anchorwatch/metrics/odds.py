"""Odds ratios over prompts: counts are pooled, then crossed; prompts are what is resampled.

A mean of the odds ratios of single prompts would be an artefact where counts are small: a half
added to an empty cell makes an effect of nothing, and the same one in every prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from anchorwatch.metrics.cells import Cell, Quantity
from anchorwatch.metrics.stats.resampling import NEEDED, WORDS, quantiles, resamplings, tail_of
from anchorwatch.metrics.tables import NUMBERS, tabulate
from anchorwatch.trace.trace import Trace

Cross = Callable[[dict[str, Cell]], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""From the added-up cells of one trace: counts [4, ...] (both, one, other, neither), the counts to
be expected [4, ...], and how many cells were missing."""

DRAWS, LEVEL = 2000, 0.95
TOO_FEW = "less than one expected, none seen"
ROUNDING = 1e-9
"""Expected counts below this are zero: they are sums and differences of fractions."""


def odds_table(
    parts: Iterable[tuple[Trace, Sequence[Quantity]]], by: Sequence[str], cross: Cross
) -> pd.DataFrame:
    """`odds_ratio` and `log_odds_ratio` of each cell of `by`, from the counts of all its prompts.

    A half is added to a pooled table with an empty cell. A prompt in which one of the two things
    never or always happened says nothing about odds and is not in n. Where neither the counts nor
    chance would give a single joint event, there is nothing to say, and the ratio is absent.
    """

    def counted(cells: dict[str, Cell]) -> dict[str, Cell]:
        counts, expected, missing = cross(cells)
        named = {f"count{i}": counts[i] for i in range(4)}
        named |= {f"null{i}": expected[i] for i in range(4)}
        none = np.zeros(np.shape(missing))
        return {name: Cell(np.asarray(value), none, missing) for name, value in named.items()}

    parts = list(parts)
    each = tabulate(parts, list(dict.fromkeys([*by, "prompt"])), counted)
    keys = ["model", *by]
    index = list(dict.fromkeys([*keys, "prompt"]))
    wide = each.pivot_table(
        index=index, columns="quantity", values="value", sort=False, dropna=False
    ).reset_index()
    lost = each[each["quantity"] == "count0"][[*index, "missing"]]
    wide, rows = wide.merge(lost, on=index), []
    for cell, part in wide.groupby(keys, sort=False, dropna=False):
        place = dict(zip(keys, cell if isinstance(cell, tuple) else (cell,), strict=True))
        rows += [place | row for row in _pool_counts(part)]
    return pd.DataFrame(rows)[[*keys, "quantity", *NUMBERS]]


def _pool_counts(part: pd.DataFrame) -> list[dict[str, Any]]:
    """The two rows of one cell, from the counts of its prompts."""
    counts = part[[f"count{i}" for i in range(4)]].to_numpy(dtype=float)
    nulls = part[[f"null{i}" for i in range(4)]].to_numpy(dtype=float)
    known = _count_informative(counts)
    counts, nulls = counts[known], nulls[known]
    n, pooled = len(counts), counts.sum(axis=0)
    value, null, why = np.nan, np.nan, str(WORDS[min(n, NEEDED)])
    low = high = np.nan
    chance = (pooled[0] + pooled[1]) * (pooled[0] + pooled[2]) / max(pooled.sum(), 1)
    if n and pooled[0] + chance < 1:
        why = TOO_FEW
    elif n:
        value, null = float(odds_of(pooled)), float(odds_of(nulls.sum(axis=0)))
        if n >= NEEDED:
            weights = resamplings(n, DRAWS, np.random.default_rng(0))
            tail = float(tail_of(LEVEL, np.array(n)))
            low, high = quantiles(odds_of(weights @ counts), (tail, 1 - tail))
    shared = {"n": n, "missing": int(part["missing"].sum()), "interval": why}
    ratio = {"value": value, "null": null, "lift": value / null, "low": low, "high": high}
    logs = {name: np.log(ratio[name]) for name in ("value", "null", "low", "high")}
    return [
        {"quantity": "odds_ratio"} | ratio | shared,
        {"quantity": "log_odds_ratio"} | logs | {"lift": np.nan} | shared,
    ]


def odds_of(counts: np.ndarray) -> np.ndarray:
    """Of [..., 4] counts (both, one, other, neither), a half added where one of them is 0."""
    counts = np.where(counts < ROUNDING, 0.0, counts)
    counts = counts + 0.5 * (counts == 0).any(axis=-1, keepdims=True)
    return np.asarray(counts[..., 0] * counts[..., 3] / (counts[..., 1] * counts[..., 2]))


def _count_informative(counts: np.ndarray) -> np.ndarray:
    """Prompts in which both things happened, and did not: others say nothing about odds."""
    both, one, other, neither = counts.T
    return (both + one > 0) & (both + other > 0) & (other + neither > 0) & (one + neither > 0)
