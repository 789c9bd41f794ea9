"""Numbers of single keys, a sink beside the others of its head: exact with every key, or by peaks.

A run keeps geometry and norms at the eight keys that receive most, and their mean over all keys.
Both give the mean of the others without having them: (all keys - the sinks) / how many are left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorwatch.metrics.cells import Quantity
from anchorwatch.metrics.reading import Slab, need

CELL = ("step", "head")


@dataclass(frozen=True, eq=False)
class Columns:
    """One field of one layer at the keys where it was kept."""

    values: np.ndarray
    """[step, head, place], NaN where there is none."""
    keys: np.ndarray | None
    """[step, head, place] the key at each place, -1 where there is none; None: place is key."""
    total: np.ndarray
    """[step, head] the sum over all keys that exist, kept or not."""
    count: np.ndarray
    """[step, head] how many exist."""

    @property
    def every(self) -> bool:
        """Whether every key was kept."""
        return self.keys is None

    def chosen(self, labels: np.ndarray) -> np.ndarray:
        """[step, head, place] bool: the kept keys among `labels` [step, head, key]."""
        if self.keys is None:
            return labels & ~np.isnan(self.values)
        picked = np.take_along_axis(labels, np.maximum(self.keys, 0).astype(np.intp), axis=-1)
        return picked & (self.keys >= 0) & ~np.isnan(self.values)

    def others(self, chosen: np.ndarray) -> np.ndarray:
        """[step, head] mean over all keys but the chosen ones; NaN where none is left."""
        left = self.count - chosen.sum(axis=-1)
        rest = self.total - np.sum(self.values, axis=-1, where=chosen, dtype=np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(left > 0, rest / left, np.nan)


def columns(slab: Slab, name: str) -> Columns:
    """A field such as `value_norm` at every key where that was captured, else at the peaks."""
    trace, layer = slab.trace, slab.layer
    if f"each_{name}" in trace.fields:
        return every_key(trace[f"each_{name}"][:, layer].values)
    average = need(trace, name)[:, layer].values.astype(np.float64)
    count = np.broadcast_to(np.sum(trace.canvas[:-1] >= 0, axis=-1)[:, None], average.shape)
    return Columns(
        values=need(trace, f"peak_{name}")[:, layer].values,
        keys=need(trace, "peak_key")[:, layer].values,
        total=average * count,
        count=count,
    )


def every_key(values: np.ndarray) -> Columns:
    """Columns of [step, head, key] values, NaN where a key does not exist."""
    count = np.sum(~np.isnan(values), axis=-1)
    total = np.nansum(values, axis=-1, dtype=np.float64)
    return Columns(values, None, np.where(count > 0, total, np.nan), count)


def over_sinks(
    name: str,
    labels: np.ndarray,
    chosen: np.ndarray,
    value: np.ndarray,
    null: float | np.ndarray = np.nan,
) -> Quantity:
    """The mean over sink columns of [step, head, place] values; `null` broadcasts against them.

    Sinks whose number was not kept are missing. Labels that were not measured are one missing cell.
    """
    there = chosen & ~np.isnan(value)
    bottom = there.sum(axis=-1).astype(float)
    top = np.sum(value, axis=-1, where=there, dtype=np.float64)
    missing = labels.sum(axis=-1) - bottom
    if np.all(np.isnan(null)):
        return Quantity(name, CELL, top, bottom, missing=missing)
    both = there & ~np.isnan(np.broadcast_to(null, value.shape))
    expected = np.sum(np.broadcast_to(null, value.shape), axis=-1, where=both, dtype=np.float64)
    return Quantity(name, CELL, top, bottom, expected, both.sum(axis=-1).astype(float), missing)
