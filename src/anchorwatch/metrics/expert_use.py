"""Which experts of a mixture sinks, masked and written positions go through.

The experts of a set of positions are a distribution: the share of its choices that fall on each
expert. It is compared with that of all other positions of the same step and layer.
Shapes: P positions, k experts of each, E experts.
"""

from __future__ import annotations

import numpy as np

from anchorwatch.metrics.layer_slices import LayerSlice, require_field
from anchorwatch.metrics.null import group_queries
from anchorwatch.metrics.registry import metric
from anchorwatch.metrics.sink_rules import Rule
from anchorwatch.metrics.table import Quantity, mean

DRAWS = 32
"""Random sets of positions that the null is the mean of."""


@metric(by=("layer",))
def expert_distance(layer: LayerSlice, *, rule: Rule, group: str) -> list[Quantity]:
    """How far the experts of sinks, masked or written positions are from those of all others.

    Total variation distance of the two distributions over experts: 0 is alike, 1 is no expert in
    common. `null` is the same for as many positions drawn at random from the step. Needs the probe
    `experts()`; dense layers are missing. Dims: step (or progress), layer, head (of sinks; masked
    and written positions are the same for all heads).
    """
    choices = require_field(layer.trace, "expert_choice")[:, layer.index].values  # [step, P, k]
    labels = layer.labels(rule, group)
    steps, heads, _ = labels.shape
    values = {name: np.full((steps, heads), np.nan) for name in ("sinks", "masked", "written")}
    nulls = {name: values[name].copy() for name in values}
    for step in range(steps):
        # 1. Each position as shares of its choices; rows that were not computed have none.
        used = _shares(choices[step])
        computed = used.sum(axis=-1) > 0
        if not computed.any():
            continue
        # 2. The sets: a head's sinks, and the positions of two roles.
        sets = [("sinks", [head], labels[step, head]) for head in range(heads)]
        for role in ("masked", "written"):
            sets.append((role, list(range(heads)), group_queries(layer.trace, step, role)))
        # 3. Their distance from the rest, and what random sets of that size have.
        known: dict[int, float] = {}
        for name, where, members in sets:
            inside = members[computed]
            size = int(inside.sum())
            if 0 < size < len(inside):
                values[name][step, where] = _distance(used[computed], inside)
                if size not in known:
                    known[size] = _random_distance(used[computed], size, step)
                nulls[name][step, where] = known[size]
    return [mean(name, ("step", "head"), values[name], nulls[name]) for name in values]


def _shares(choices: np.ndarray) -> np.ndarray:
    """[P, E] share of a position's choices on each expert; zeros where there are none."""
    used = np.zeros((len(choices), int(choices.max(initial=0)) + 1))
    rows, ranks = np.nonzero(choices >= 0)
    np.add.at(used, (rows, choices[rows, ranks]), 1.0 / choices.shape[1])
    return used


def _distance(used: np.ndarray, inside: np.ndarray) -> float:
    """Total variation distance between the experts of a set and of the rest."""
    return float(np.abs(used[inside].mean(axis=0) - used[~inside].mean(axis=0)).sum() / 2)


def _random_distance(used: np.ndarray, size: int, step: int) -> float:
    """The mean distance of sets of this size, drawn from a seed of their own."""
    random = np.random.default_rng((step, size))
    inside = np.zeros((DRAWS, len(used)), dtype=bool)
    for draw in inside:
        draw[random.choice(len(used), size, replace=False)] = True
    return float(np.mean([_distance(used, draw) for draw in inside]))
