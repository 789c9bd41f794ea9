"""One number for each unit (prompt, item, training seed) from evidence: what claims are made of.

Arrays are in the order of the prompts of a set, so that row i of two models is the same prompt;
NaN is a prompt that a model could not be given, or that has no value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from anchorwatch import metrics
from anchorwatch.edits.spec import freeze_canvas
from anchorwatch.errors import EvidenceError, SpecError
from anchorwatch.evaluation.prompt_templates import PLAIN, extract_answer, until_end
from anchorwatch.evaluation.scores import containment
from anchorwatch.evaluation.synthetic import Item
from anchorwatch.evaluation.tables import slope
from anchorwatch.metrics.committed_rows import read_committed_rows
from anchorwatch.metrics.layer_slices import iter_layers, require_field
from anchorwatch.metrics.sink_rules import gu, rulli
from anchorwatch.metrics.table import Quantity, prompt_id
from anchorwatch.probes.spec import norms, received
from anchorwatch.studies.evidence import (
    Answers,
    Effect,
    EffectTables,
    Evidence,
    Runs,
    Seeds,
    TraceSet,
)
from anchorwatch.trace.trace import Trace

SHARE, DIFFERENCE, DIFFERENCE_OF_DIFFERENCES = (0.0, 1.0), (-1.0, 1.0), (-2.0, 2.0)
"""Between which a share lies, the difference of two, and of two such differences."""
MDM_RUNS, ARM_RUNS = Runs("mdm"), Runs("arm")
FROZEN_RUNS = Runs("mdm", edits=(freeze_canvas(),))
NORM_RUNS = Runs("mdm", probes=(received(), norms(keys=True, contribution=True)))
MDM_TEXT, ARM_TEXT, SINK_TEXT = Runs("mdm", "text"), Runs("arm", "text"), Runs("sink", "text")
FROZEN_TEXT = Runs("mdm", "text", edits=(freeze_canvas(),))
"""Runs that claims of several papers read; `..._TEXT` write running text, the others answers."""


@dataclass(frozen=True, eq=False)
class PerPrompt:
    """Values and their nulls, [prompt, ...] in the order of the set."""

    value: np.ndarray
    null: np.ndarray
    labels: tuple[Any, ...] = ()
    """Of the second axis: layers, for instance."""


def by_prompt(
    evidence: Evidence,
    spec: Runs,
    metric: str,
    quantity: str,
    *,
    over: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> PerPrompt:
    """A metric's quantity for each prompt: [prompt], or [prompt, cell] `over` a dim such as layer.

    `options` are the metric's own: rule, group. Its table is made once for all claims.
    """
    # 1. the metric's table of all runs, made once for all claims
    runs: TraceSet = evidence[spec]
    given, dims = dict(options or {}), ["prompt", *([over] if over else [])]
    key = (spec, metric, over, repr(sorted(given.items())))
    table = evidence.once(
        key, lambda: getattr(metrics, metric)(list(runs.traces), by=dims, **given)
    )
    rows = table[table["quantity"] == quantity]
    if rows.empty:
        known = ", ".join(dict.fromkeys(table["quantity"]))
        raise SpecError(f"{metric} has no quantity {quantity!r}: it has {known}")
    # 2. its cells in the order of the set; equal prompts share a row of the table
    labels = tuple(dict.fromkeys(rows[over])) if over else ()
    shape = (runs.count, len(labels)) if over else (runs.count,)
    value, null = np.full(shape, np.nan), np.full(shape, np.nan)
    column_of = {label: column for column, label in enumerate(labels)}
    indices = _indices_of_prompts(runs)
    for row in rows.to_dict(orient="records"):
        for index in indices[row["prompt"]]:
            cell = (index, column_of[row[over]]) if over else index
            value[cell], null[cell] = row["value"], row["null"]
    return PerPrompt(value, null, labels)


def by_cell(runs: TraceSet, table: pd.DataFrame, over: str, column: str) -> dict[Any, np.ndarray]:
    """[prompt] of each cell of a table that is split by prompt, in the order of the set."""
    wide = table.pivot_table(index="prompt", columns=over, values=column, dropna=False)
    cells = {name: np.full(runs.count, np.nan) for name in wide.columns}
    for index, trace in zip(runs.indices, runs.traces, strict=True):
        for name, values in cells.items():
            values[index] = wide[name].get(prompt_id(trace), np.nan)
    return cells


def by_trace(runs: TraceSet, of: Any) -> np.ndarray:
    """A function of one trace for each prompt: [prompt]."""
    values = np.full(runs.count, np.nan)
    for index, trace in zip(runs.indices, runs.traces, strict=True):
        values[index] = of(trace)
    return values


def end_share(evidence: Evidence, spec: Runs) -> np.ndarray:
    """[prompt] share of end tokens in what was written: to be reported beside any trajectory."""
    return by_trace(evidence[spec], _end_share_of)


def _end_share_of(trace: Trace) -> float:
    written = np.flatnonzero(trace.committed_at >= 0)
    ends = trace.manifest["model"].get("end_ids", ())
    return float(np.isin(trace.own[written], ends).mean()) if len(written) else math.nan


def by_effect(
    evidence: Evidence, spec: Effect, outcome: str, series: str = "did", *, k: int | None = None
) -> np.ndarray:
    """[prompt] of an effect: edited, control, difference, control_difference, did, null or clean.

    `k` is a dose; the edit's own where it is left out.
    """
    effect: EffectTables = evidence[spec]
    table = effect.table[effect.table["outcome"] == outcome]
    own = table["k"].iloc[0] if k is None and len(table) else k
    rows = table[table["k"] == own]
    if rows.empty:
        raise SpecError(f"the effect has no outcome {outcome!r} at k = {own}")
    values = np.full(effect.count, np.nan)
    values[rows["place"].to_numpy(dtype=int)] = rows[series].to_numpy(dtype=float)
    return values


def by_item(
    evidence: Evidence,
    spec: Answers,
    cells: Sequence[tuple[str, str, str]],
    *,
    score: str = "containment",
) -> np.ndarray:
    """[item, cell] scores of (role, context, edit) cells; NaN where an item could not be asked."""
    rows = evidence[spec].results.rows
    wide = rows.pivot(index="item", columns=["role", "context", "edit"], values=score).sort_index()
    if lost := [cell for cell in cells if cell not in wide.columns]:
        raise SpecError(f"nothing was asked in the cell {lost[0]}: the need names others")
    return wide[list(cells)].to_numpy(dtype=float)


def by_seed(evidence: Evidence, spec: Seeds, column: str) -> pd.DataFrame:
    """[seed, arm] of a column; a seed that an arm lacks is NaN."""
    table: pd.DataFrame = evidence[spec]
    wide = table.pivot(index="seed", columns="arm", values=column).astype(float).sort_index()
    return wide.reindex(columns=list(spec.arms))


def mean_of(values: ArrayLike) -> float:
    """Of the values that are there; NaN without any."""
    array = np.asarray(values, dtype=float)
    present = array[~np.isnan(array)]
    return float(present.mean()) if present.size else math.nan


def means_of(rows: np.ndarray) -> np.ndarray:
    """[cell] over the units of [unit, cell] that have a value; NaN where none has."""
    present = ~np.isnan(rows)
    count = present.sum(axis=0)
    total = np.where(present, rows, 0.0).sum(axis=0)
    return np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)


def require_accuracy(share: float, least: float, who: str) -> None:
    """Refuse a claim about accuracy of a model that has none: what it cannot lose says nothing."""
    if not share >= least:
        raise EvidenceError(
            f"{who} that is right in {least:.0%} of the questions, unedited: "
            f"this one is in {share:.0%}"
        )


def _indices_of_prompts(runs: TraceSet) -> dict[str, list[int]]:
    """Prompts of a table to their places in the set."""
    indices: dict[str, list[int]] = {}
    for index, trace in zip(runs.indices, runs.traces, strict=True):
        indices.setdefault(prompt_id(trace), []).append(index)
    return indices


FIRST_HALF, LAST_HALF, EVERY_LAYER = "first half", "last half", "every layer"


def depth_slope(values: np.ndarray) -> np.ndarray:
    """[prompt] least-squares change of [prompt, layer] values from the first layer to the last.

    >>> depth_slope(np.array([[0.0, 1.0, 2.0], [3.0, 2.0, np.nan]])).tolist()
    [2.0, nan]
    """
    layers = values.shape[1]
    if layers < 2:
        return np.full(len(values), np.nan)
    return slope(np.linspace(0, 1, layers).tolist())(values)


def first_half_mean(values: np.ndarray) -> np.ndarray:
    """[prompt] mean over the first half of the layers; the middle one of an odd number is in none.

    >>> first_half_mean(np.array([[1.0, 3.0, 5.0, 7.0, 9.0]])).tolist()
    [2.0]
    """
    return values[:, : values.shape[1] // 2].mean(axis=1)


def last_half_mean(values: np.ndarray) -> np.ndarray:
    """[prompt] mean over the last half of the layers."""
    return values[:, -(values.shape[1] // 2) :].mean(axis=1)


def pool_layers(
    quantity: Quantity, half: str = EVERY_LAYER, steps: np.ndarray | None = None
) -> float:
    """A quantity of one trace over some layers and steps, added up before it is divided.

    A layer that has nothing to say is no gap in its half; NaN where none has.
    """
    count = quantity.top.shape[quantity.dims.index("layer")]
    layers = {FIRST_HALF: slice(count // 2), LAST_HALF: slice(count - count // 2, None)}
    chosen: dict[str, slice | np.ndarray] = {"layer": layers.get(half, slice(None))}
    if steps is not None:
        chosen["step"] = steps
    picked = tuple(chosen.get(dim, slice(None)) for dim in quantity.dims)
    top, bottom = quantity.top[picked].sum(), quantity.bottom[picked].sum()
    return float(top / bottom) if bottom else np.nan


def by_sums(
    runs: TraceSet,
    parts: Sequence[tuple[Trace, Sequence[Quantity]]],
    of: Callable[[Trace, Mapping[str, Quantity]], float],
) -> np.ndarray:
    """[prompt] a function of each trace and its quantities by name, in the order of the set."""
    values = np.full(runs.count, np.nan)
    for index, (trace, quantities) in zip(runs.indices, parts, strict=True):
        values[index] = of(trace, {quantity.name: quantity for quantity in quantities})
    return values


def weighted_depth(means: np.ndarray) -> float:
    """Mean relative depth (0 the first layer, 1 the last) of [layer] weights; 0.5 if all alike."""
    total = float(means.sum())
    return float(means @ np.linspace(0, 1, len(means))) / total if total > 0 else np.nan


def by_layer(runs: TraceSet, rows: pd.DataFrame) -> np.ndarray:
    """[prompt, layer] of a table's rows, in the order of the set."""
    wide = rows.pivot(index="prompt", columns="layer", values="value").sort_index(axis=1)
    values = np.full((runs.count, wide.shape[1]), np.nan)
    for index, trace in zip(runs.indices, runs.traces, strict=True):
        if (name := prompt_id(trace)) in wide.index:
            values[index] = wide.loc[name].to_numpy(dtype=float)
    return values


GOLD_REGION, OTHER_REGION = "gold", "distractor"
"""The region of the evidence, and how those of other passages begin."""
FEWEST_RIGHT = 5
"""Right answers that it takes to say what heads do in them: as many as any interval takes."""


@dataclass(frozen=True, eq=False)
class PassageAttention:
    """Of the rows that predicted the answer's tokens: [layer, head] means, NaN without any."""

    gold: np.ndarray
    """Attention to the gold passage."""
    other: np.ndarray
    """To the others, each scaled to gold's length."""
    copy: np.ndarray
    """Share of rows whose greatest key is a gold token of the id that was written."""

    @property
    def beyond(self) -> np.ndarray:
        return self.gold - self.other


def read_passage_attention(trace: Trace) -> PassageAttention:
    """From `top_keys` and `commit_regions`."""
    others = [name for name in trace.manifest["regions"] if name.startswith(OTHER_REGION)]
    looks = read_committed_rows(trace, (GOLD_REGION, *others), None)
    in_answer = np.isin(np.flatnonzero(trace.committed_at >= 0), answer_positions(trace))
    if not in_answer.any():
        nothing = np.full(looks.hit.shape[1:3], np.nan)
        return PassageAttention(nothing, nothing, nothing)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.where(looks.expected[1:] > 0, looks.expected[0] / looks.expected[1:], np.nan)
    mass, other = looks.mass[0], (looks.mass[1:] * scale[:, :, None]).mean(axis=0)
    return PassageAttention(
        *(share[..., in_answer].mean(axis=-1) for share in (mass, other, looks.copy[0]))
    )


def answer_positions(trace: Trace) -> np.ndarray:
    """Positions of the answer, up to its end token or its first line break after some text."""
    model, positions, begun = trace.manifest["model"], [], False
    ends = model.get("end_ids", ())
    for position in trace.answer.tolist():
        token = int(trace.own[position])
        text = trace.token(token)
        if token in ends or (begun and "\n" in text):
            break
        begun = begun or bool(text.strip())
        positions.append(position)
    return np.array(positions, dtype=int)


def score_answer(trace: Trace, item: Item) -> float:
    """Whether what was written holds the answer, as an evaluation would say."""
    model = trace.manifest["model"]
    ids = until_end(trace.own[trace.answer].tolist(), model.get("end_ids", ()), model["mask_id"])
    return containment(extract_answer(trace.spell(ids), PLAIN), item.answers)


def sink_moves(trace: Trace) -> float:
    """Share of neighbouring pairs of rows with a sink whose sinks are not the same; NaN if none.

    A sink that never stays for two commits is not seen, in either kind of model.
    """
    sinks = pair_sinks(trace)
    before, other = sinks[..., :-1], sinks[..., 1:]
    both = (before >= 0) & (other >= 0)
    return float((both & (before != other)).sum() / both.sum()) if both.any() else np.nan


def pair_sinks(trace: Trace) -> np.ndarray:
    """[layer, head, pair] the key that two rows in a row give most; -1 where there is none.

    Each of the two must give it more than Gu's rule asks for. Rows are in the order of their
    commits, and pairs do not overlap.
    """
    order = np.flatnonzero(trace.committed_at >= 0)
    order = order[np.argsort(trace.committed_at[order], kind="stable")]
    order = order[: len(order) // 2 * 2]
    keys, mass = (
        require_field(trace, f"commit_top_{name}").values[:, :, order].astype(kind)
        for name, kind in (("key", np.int64), ("mass", np.float64))
    )
    sink = (mass > gu().eps) & (keys >= 0)
    first, other = slice(0, None, 2), slice(1, None, 2)
    same = keys[:, :, first, :, None] == keys[:, :, other, None, :]
    same &= sink[:, :, first, :, None] & sink[:, :, other, None, :]
    both = np.where(same, mass[:, :, first, :, None] + mass[:, :, other, None, :], 0.0)
    best = both.max(axis=-1)  # [layer, head, pair, rank of the first row]
    key = np.take_along_axis(keys[:, :, first], best.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    return np.where(best.max(axis=-1) > 0, key, -1)


def pooled_norm_ratio(trace: Trace) -> float:
    """Norm of sinks over that of other keys, both means over heads; median over layers (Eq. 16)."""
    ratios = []
    norms = require_field(trace, "each_value_norm").values  # [step, layer, head, key]
    for layer in iter_layers(trace):
        shares = layer.shares().astype(np.float64).mean(axis=1)
        sinks = rulli().labels(shares)
        size = norms[:, layer.index].astype(np.float64).mean(axis=1)
        own, other = size[sinks], size[~sinks & ~np.isnan(size)]
        ratios.append(own.mean() / other.mean() if own.size and other.size else np.nan)
    return float(medians_over_layers(np.array([ratios]))[0])


def medians_over_layers(rows: np.ndarray) -> np.ndarray:
    """[prompt] over the layers that have a value; NaN where none has."""
    values = np.full(len(rows), np.nan)
    present = ~np.isnan(rows).all(axis=1)
    values[present] = np.nanmedian(rows[present], axis=1)
    return values
