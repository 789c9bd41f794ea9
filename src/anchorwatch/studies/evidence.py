"""Gathered evidence, and one number for each unit from it: what judges are made of. No torch here.

Arrays are in the order of the prompts of a set, so that row i of two models is the same prompt;
NaN is a prompt that a model could not be given, or that has no value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from anchorwatch import metrics
from anchorwatch.errors import EvidenceError, SpecError
from anchorwatch.evaluation.results import Results
from anchorwatch.metrics.table import prompt_id
from anchorwatch.studies.claim import Evidence
from anchorwatch.studies.needs import Asked, Effect, Runs, Seeds
from anchorwatch.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Traced:
    """Runs of a set of prompts."""

    traces: Sequence[Trace]
    places: Sequence[int]
    """Which prompt of the set each trace is of."""
    count: int
    """Prompts that were asked for."""
    unfit: Mapping[int, str] = field(default_factory=dict)
    """Why a prompt could not be run, by its place."""

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> Traced:
        return cls(traces, range(len(traces)), len(traces))


@dataclass(frozen=True, eq=False)
class Compared:
    """An effect, prompt by prompt."""

    table: pd.DataFrame
    """A row for each place, k and outcome, as in `aw.effect(...).doses`; k is -1 without doses."""
    layers: pd.DataFrame
    """A row for each place and layer, as in `aw.effect(...).layers`."""
    count: int
    unfit: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Answered:
    """An evaluation; its rows have a column `role`."""

    results: Results


@dataclass(frozen=True, eq=False)
class PerPrompt:
    """Values and their nulls, [prompt, ...] in the order of the set."""

    value: np.ndarray
    null: np.ndarray
    labels: tuple[Any, ...] = ()
    """Of the second axis: layers, for instance."""


def by_prompt(
    evidence: Evidence,
    need: Runs,
    metric: str,
    quantity: str,
    *,
    over: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> PerPrompt:
    """A metric's quantity for each prompt: [prompt], or [prompt, cell] `over` a dim such as layer.

    `options` are the metric's own: rule, group. Its table is made once for all claims.
    """
    held: Traced = evidence[need]
    given, dims = dict(options or {}), ["prompt", *([over] if over else [])]
    key = (need, metric, over, repr(sorted(given.items())))
    table = evidence.once(
        key, lambda: getattr(metrics, metric)(list(held.traces), by=dims, **given)
    )
    rows = table[table["quantity"] == quantity]
    if rows.empty:
        known = ", ".join(dict.fromkeys(table["quantity"]))
        raise SpecError(f"{metric} has no quantity {quantity!r}: it has {known}")
    labels = tuple(dict.fromkeys(rows[over])) if over else ()
    shape = (held.count, len(labels)) if over else (held.count,)
    value, null = np.full(shape, np.nan), np.full(shape, np.nan)
    at = {label: column for column, label in enumerate(labels)}
    places = _places(held)
    for row in rows.to_dict(orient="records"):
        for place in places[row["prompt"]]:
            cell = (place, at[row[over]]) if over else place
            value[cell], null[cell] = row["value"], row["null"]
    return PerPrompt(value, null, labels)


def by_cell(held: Traced, table: pd.DataFrame, over: str, column: str) -> dict[Any, np.ndarray]:
    """[prompt] of each cell of a table that is split by prompt, in the order of the set."""
    wide = table.pivot_table(index="prompt", columns=over, values=column, dropna=False)
    found = {name: np.full(held.count, np.nan) for name in wide.columns}
    for place, trace in zip(held.places, held.traces, strict=True):
        for name, values in found.items():
            values[place] = wide[name].get(prompt_id(trace), np.nan)
    return found


def by_trace(held: Traced, of: Any) -> np.ndarray:
    """A function of one trace for each prompt: [prompt]."""
    found = np.full(held.count, np.nan)
    for place, trace in zip(held.places, held.traces, strict=True):
        found[place] = of(trace)
    return found


def by_effect(
    evidence: Evidence, need: Effect, outcome: str, series: str = "did", *, k: int | None = None
) -> np.ndarray:
    """[prompt] of an effect: edited, control, difference, control_difference, did, null or clean.

    `k` is a dose; the edit's own where it is left out.
    """
    held: Compared = evidence[need]
    table = held.table[held.table["outcome"] == outcome]
    own = table["k"].iloc[0] if k is None and len(table) else k
    rows = table[table["k"] == own]
    if rows.empty:
        raise SpecError(f"the effect has no outcome {outcome!r} at k = {own}")
    found = np.full(held.count, np.nan)
    found[rows["place"].to_numpy(dtype=int)] = rows[series].to_numpy(dtype=float)
    return found


def by_item(
    evidence: Evidence,
    need: Asked,
    cells: Sequence[tuple[str, str, str]],
    *,
    score: str = "containment",
) -> np.ndarray:
    """[item, cell] scores of (role, context, edit) cells; NaN where an item could not be asked."""
    rows = evidence[need].results.rows
    wide = rows.pivot(index="item", columns=["role", "context", "edit"], values=score).sort_index()
    if lost := [cell for cell in cells if cell not in wide.columns]:
        raise SpecError(f"nothing was asked in the cell {lost[0]}: the need names others")
    return wide[list(cells)].to_numpy(dtype=float)


def by_seed(evidence: Evidence, need: Seeds, column: str) -> pd.DataFrame:
    """[seed, arm] of a column; a seed that an arm lacks is NaN."""
    table: pd.DataFrame = evidence[need]
    wide = table.pivot(index="seed", columns="arm", values=column).astype(float).sort_index()
    return wide.reindex(columns=list(need.arms))


def mean_of(values: ArrayLike) -> float:
    """Of the values that are there; NaN without any."""
    held = np.asarray(values, dtype=float)
    there = held[~np.isnan(held)]
    return float(there.mean()) if there.size else math.nan


def means_of(rows: np.ndarray) -> np.ndarray:
    """[cell] over the units of [unit, cell] that have a value; NaN where none has."""
    there = ~np.isnan(rows)
    count = there.sum(axis=0)
    total = np.where(there, rows, 0.0).sum(axis=0)
    return np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)


def unfit_of(held: Any) -> Mapping[Any, str]:
    """Why units of a need's evidence could not be run, by unit; empty where all could."""
    if isinstance(held, Traced | Compared):
        return held.unfit
    if isinstance(held, Answered):
        lost = held.results.rows[held.results.rows["unfit"] != ""]
        return dict(zip(lost["item"], lost["unfit"], strict=True))
    return dict(held.attrs.get("unfit", {})) if isinstance(held, pd.DataFrame) else {}


def answers(share: float, least: float, who: str) -> None:
    """Refuse a claim about accuracy of a model that has none: what it cannot lose says nothing."""
    if not share >= least:
        raise EvidenceError(
            f"{who} that is right in {least:.0%} of the questions, unedited: "
            f"this one is in {share:.0%}"
        )


def _places(held: Traced) -> dict[str, list[int]]:
    """Prompts of a table to their places in the set."""
    found: dict[str, list[int]] = {}
    for place, trace in zip(held.places, held.traces, strict=True):
        found.setdefault(prompt_id(trace), []).append(place)
    return found
