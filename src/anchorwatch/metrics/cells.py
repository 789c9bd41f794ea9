"""Quantities as sums that add up: over steps, layers and heads first, means over prompts last.

A quantity is top / bottom. Both add up, so a table may be split by any of the dims that the sums
still have, and what is not split by is added up before the division. The null likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from anchorwatch.errors import SpecError

PROGRESS_BINS = 10


@dataclass(frozen=True, eq=False)
class Quantity:
    """One named number of one trace, cell by cell. All arrays have the shape of `dims`."""

    name: str
    dims: tuple[str, ...]
    top: np.ndarray
    bottom: np.ndarray
    null_top: np.ndarray | None = None
    """Absent where the quantity has no null."""
    null_bottom: np.ndarray | None = None
    missing: np.ndarray | None = None
    """How many values were absent and are not among the sums."""
    labels: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """Names along dims that are not plain numbers: token classes, lags, regions."""


def mean(
    name: str,
    dims: tuple[str, ...],
    value: np.ndarray,
    null: np.ndarray | None = None,
    labels: Mapping[str, Sequence[object]] | None = None,
) -> Quantity:
    """The mean of values, NaN where there is none; the null is over the same cells."""
    value = np.asarray(value, dtype=np.float64)
    there = ~np.isnan(value)
    null_top = null_bottom = None
    if null is not None:
        null = np.broadcast_to(null, value.shape)
        both = there & ~np.isnan(null)
        null_top, null_bottom = np.where(both, null, 0.0), both.astype(float)
    return Quantity(
        name=name,
        dims=dims,
        top=np.where(there, value, 0.0),
        bottom=there.astype(float),
        null_top=null_top,
        null_bottom=null_bottom,
        missing=(~there).astype(float),
        labels=labels or {},
    )


def ratio(
    name: str,
    dims: tuple[str, ...],
    top: np.ndarray,
    bottom: np.ndarray,
    null: tuple[np.ndarray, np.ndarray] | None = None,
    labels: Mapping[str, Sequence[object]] | None = None,
) -> Quantity:
    """A ratio of sums: of counts, of masses; `null` is (top, bottom) too. Absent if bottom is 0."""
    shape = np.broadcast_shapes(np.shape(top), np.shape(bottom))

    def full(array: np.ndarray) -> np.ndarray:
        return np.broadcast_to(np.asarray(array, dtype=np.float64), shape)

    return Quantity(
        name=name,
        dims=dims,
        top=full(top),
        bottom=full(bottom),
        null_top=None if null is None else full(null[0]),
        null_bottom=None if null is None else full(null[1]),
        missing=(full(bottom) == 0).astype(float),
        labels=labels or {},
    )


def total(
    name: str,
    dims: tuple[str, ...],
    value: np.ndarray,
    labels: Mapping[str, Sequence[object]] | None = None,
) -> Quantity:
    """A plain sum, for a `finish` that needs counts; its bottom, NaN, says: not to be divided."""
    value = np.asarray(value, dtype=np.float64)
    return Quantity(name, dims, value, np.full(value.shape, np.nan), labels=labels or {})


def stack_layers(layers: Sequence[Sequence[Quantity]]) -> list[Quantity]:
    """Quantities of single layers as quantities with a `layer`."""
    found = []
    for same in zip(*layers, strict=True):
        one = same[0]
        arrays = {
            name: np.stack([getattr(q, name) for q in same])
            for name in ("top", "bottom", "null_top", "null_bottom", "missing")
            if getattr(one, name) is not None
        }
        found.append(replace(one, dims=("layer", *one.dims), **arrays))
    return found


@dataclass(frozen=True, eq=False)
class Cell:
    """A quantity after adding up: arrays over the dims that a table is split by."""

    value: np.ndarray
    null: np.ndarray
    """NaN where there is none."""
    missing: np.ndarray


def collapse(quantity: Quantity, by: Sequence[str], progress: np.ndarray | None = None) -> Cell:
    """Add up over everything but `by`; `progress` [step] turns steps into bins of progress."""
    dims, arrays = quantity.dims, _arrays(quantity)
    if "progress" in by and "step" in dims:
        assert progress is not None
        axis = dims.index("step")
        arrays = {name: _bin_by_progress(array, axis, progress) for name, array in arrays.items()}
        dims = tuple("progress" if dim == "step" else dim for dim in dims)
    if lost := [dim for dim in by if dim not in dims]:
        able = ", ".join(["trace", *dims, *(["progress"] if "step" in dims else [])])
        raise SpecError(f"{quantity.name} has no {lost[0]}: it can be split by {able}")
    over = tuple(axis for axis, dim in enumerate(dims) if dim not in by)
    kept = [dim for dim in dims if dim in by]
    order = [kept.index(dim) for dim in by]
    sums = {name: array.sum(axis=over).transpose(order) for name, array in arrays.items()}
    counted = np.isnan(sums["bottom"])  # a total is not divided
    absent = np.full(sums["top"].shape, np.nan)
    return Cell(
        value=np.where(counted, sums["top"], _divide(sums["top"], sums["bottom"])),
        null=_divide(sums["null_top"], sums["null_bottom"]) if "null_top" in sums else absent,
        missing=sums.get("missing", np.zeros(sums["top"].shape)),
    )


def _arrays(quantity: Quantity) -> dict[str, np.ndarray]:
    names = ("top", "bottom", "null_top", "null_bottom", "missing")
    return {name: getattr(quantity, name) for name in names if getattr(quantity, name) is not None}


def _bin_by_progress(array: np.ndarray, axis: int, progress: np.ndarray) -> np.ndarray:
    """Steps added up by the tenth of the answer that was written before them."""
    at = np.minimum((progress * PROGRESS_BINS + 1e-9).astype(int), PROGRESS_BINS - 1)
    moved = np.moveaxis(array, axis, 0)
    found = np.zeros((PROGRESS_BINS, *moved.shape[1:]))
    np.add.at(found, at, moved)
    return np.moveaxis(found, 0, axis)


def _divide(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(bottom != 0, top / bottom, np.nan)
