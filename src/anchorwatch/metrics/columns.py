"""Numbers of single keys, a sink beside the others of its head: exact with every key, or by peaks.

A run keeps geometry and norms at the eight keys that receive most, and their mean over all keys.
Both give the mean of the others without having them: (all keys - the sinks) / how many are left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorwatch.metrics.cells import Quantity
from anchorwatch.metrics.reading import LayerSlice, require_field
from anchorwatch.metrics.sink_rules import Rule

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


def columns(slab: LayerSlice, name: str) -> Columns:
    """A field such as `value_norm` at every key where that was captured, else at the peaks."""
    trace, layer = slab.trace, slab.layer
    if f"each_{name}" in trace.fields:
        return every_key(require_field(trace, f"each_{name}")[:, layer].values)
    average = require_field(trace, name)[:, layer].values.astype(np.float64)
    count = np.broadcast_to(np.sum(trace.canvas[:-1] >= 0, axis=-1)[:, None], average.shape)
    return Columns(
        values=require_field(trace, f"peak_{name}")[:, layer].values,
        keys=require_field(trace, "peak_key")[:, layer].values,
        total=average * count,
        count=count,
    )


def every_key(values: np.ndarray) -> Columns:
    """Columns of [step, head, key] values, NaN where a key does not exist."""
    count = np.sum(~np.isnan(values), axis=-1)
    total = np.nansum(values, axis=-1, dtype=np.float64)
    return Columns(values, None, np.where(count > 0, total, np.nan), count)


class SinkColumns:
    """The sinks of a slab whose numbers were kept, one after another: [sink] arrays."""

    def __init__(self, slab: LayerSlice, rule: Rule, group: str, kept: Columns) -> None:
        labels = slab.labels(rule, group)
        at_places = labels
        if kept.keys is not None:
            places = np.maximum(kept.keys, 0).astype(np.intp)
            at_places = np.take_along_axis(labels, places, axis=-1) & (kept.keys >= 0)
        self.places = np.nonzero(at_places & ~np.isnan(kept.values))
        """(step, head, place) of each."""
        self.shape = labels.shape[:2]
        self._cell = np.ravel_multi_index(self.places[:2], self.shape)
        self._sinks = labels.sum(axis=-1)
        self._measured = slab.measured(group)

    def of(self, kept: Columns) -> np.ndarray:
        """[sink] a field at the sinks."""
        return kept.values[self.places].astype(np.float64)

    def others(self, kept: Columns) -> np.ndarray:
        """[sink] its mean over the keys of the same head that are no kept sinks; NaN if none is."""
        left = kept.count - self._add(np.ones(len(self._cell)))
        rest = kept.total - self._add(self.of(kept))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(left > 0, rest / left, np.nan)[self.places[:2]]

    def mean(
        self, name: str, value: np.ndarray, null: float | np.ndarray | None = None
    ) -> Quantity:
        """The mean over sinks of [sink] values, and of their null."""
        unit = np.ones(len(value))
        return self.ratio(name, value, unit, None if null is None else (unit * null, unit))

    def ratio(
        self,
        name: str,
        top: np.ndarray,
        bottom: np.ndarray,
        null: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> Quantity:
        """Sums over sinks of `top` and `bottom`, to be divided; the null likewise.

        Missing are sinks without both numbers, and cells in which sinks could not be told.
        """
        there = ~np.isnan(top + bottom)
        missing = self._sinks - self._add(there.astype(float)) + ~self._measured
        sums = self._add(top, there), self._add(bottom, there)
        if null is None:
            return Quantity(name, CELL, *sums, missing=missing)
        there = there & ~np.isnan(null[0] + null[1])
        nulls = self._add(null[0], there), self._add(null[1], there)
        return Quantity(name, CELL, *sums, *nulls, missing)

    def _add(self, values: np.ndarray, there: np.ndarray | None = None) -> np.ndarray:
        """[step, head] sums of [sink] values."""
        weights = values if there is None else np.where(there, values, 0.0)
        size = self.shape[0] * self.shape[1]
        return np.bincount(self._cell, weights, minlength=size).reshape(self.shape)
