"""Numbers of layers, and what they come to for each prompt: a rise with depth, a half. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from anchorwatch.evaluation.context_effects import slope
from anchorwatch.metrics.table import Quantity, prompt_id
from anchorwatch.studies.evidence import Traced
from anchorwatch.trace.trace import Trace

FIRST, LAST, EVERY = "first half", "last half", "every layer"


def rise(values: np.ndarray) -> np.ndarray:
    """[prompt] least-squares change of [prompt, layer] values from the first layer to the last.

    >>> rise(np.array([[0.0, 1.0, 2.0], [3.0, 2.0, np.nan]])).tolist()
    [2.0, nan]
    """
    layers = values.shape[1]
    if layers < 2:
        return np.full(len(values), np.nan)
    return slope(np.linspace(0, 1, layers).tolist())(values)


def shallow(values: np.ndarray) -> np.ndarray:
    """[prompt] mean over the first half of the layers; the middle one of an odd number is in none.

    >>> shallow(np.array([[1.0, 3.0, 5.0, 7.0, 9.0]])).tolist()
    [2.0]
    """
    return values[:, : values.shape[1] // 2].mean(axis=1)


def deep(values: np.ndarray) -> np.ndarray:
    """[prompt] mean over the last half of the layers."""
    return values[:, -(values.shape[1] // 2) :].mean(axis=1)


def pool_layers(quantity: Quantity, half: str = EVERY, steps: np.ndarray | None = None) -> float:
    """A quantity of one trace over some layers and steps, added up before it is divided.

    A layer that has nothing to say is no gap in its half; NaN where none has.
    """
    count = quantity.top.shape[quantity.dims.index("layer")]
    layers = {FIRST: slice(count // 2), LAST: slice(count - count // 2, None)}
    chosen: dict[str, slice | np.ndarray] = {"layer": layers.get(half, slice(None))}
    if steps is not None:
        chosen["step"] = steps
    picked = tuple(chosen.get(dim, slice(None)) for dim in quantity.dims)
    top, bottom = quantity.top[picked].sum(), quantity.bottom[picked].sum()
    return float(top / bottom) if bottom else np.nan


def by_sums(
    held: Traced,
    parts: Sequence[tuple[Trace, Sequence[Quantity]]],
    of: Callable[[Trace, Mapping[str, Quantity]], float],
) -> np.ndarray:
    """[prompt] a function of each trace and its quantities by name, in the order of the set."""
    found = np.full(held.count, np.nan)
    for place, (trace, quantities) in zip(held.places, parts, strict=True):
        found[place] = of(trace, {one.name: one for one in quantities})
    return found


def weighted_depth(means: np.ndarray) -> float:
    """Mean relative depth (0 the first layer, 1 the last) of [layer] weights; 0.5 if all alike."""
    total = float(means.sum())
    return float(means @ np.linspace(0, 1, len(means))) / total if total > 0 else np.nan


def by_layer(held: Traced, rows: pd.DataFrame) -> np.ndarray:
    """[prompt, layer] of a table's rows, in the order of the set."""
    wide = rows.pivot(index="prompt", columns="layer", values="value").sort_index(axis=1)
    found = np.full((held.count, wide.shape[1]), np.nan)
    for place, trace in zip(held.places, held.traces, strict=True):
        if (name := prompt_id(trace)) in wide.index:
            found[place] = wide.loc[name].to_numpy(dtype=float)
    return found
