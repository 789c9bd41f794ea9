"""Quantities of traces as tidy tables: a row has value, null, lift, n and an interval.

A quantity is a ratio top / bottom of sums, and so is its null. Sums add up over steps, layers and
heads first, so a table may be split by any dims the sums still have; what it is not split by is
added up before the division. Prompts come last and count alike: each trace gives one value to a
cell, traces of one prompt (other seeds) are averaged, and the interval comes from resampling
prompts, never heads or steps.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from anchorwatch.errors import AnchorwatchWarning, SpecError
from anchorwatch.metrics import stats
from anchorwatch.metrics.layer_slices import Layers, LayerSlice, Traces, map_layers
from anchorwatch.metrics.stats.clusters import NEEDED, WORDS, draw_clusters, quantiles, tail_share
from anchorwatch.trace.provenance import origin
from anchorwatch.trace.trace import Trace

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
    known = ~np.isnan(value)
    # The null is averaged over the cells that have both.
    null_top = null_bottom = None
    if null is not None:
        null = np.broadcast_to(null, value.shape)
        both = known & ~np.isnan(null)
        null_top, null_bottom = np.where(both, null, 0.0), both.astype(float)
    return Quantity(
        name=name,
        dims=dims,
        top=np.where(known, value, 0.0),
        bottom=known.astype(float),
        null_top=null_top,
        null_bottom=null_bottom,
        missing=(~known).astype(float),
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
    stacked = []
    for same in zip(*layers, strict=True):
        quantity = same[0]
        arrays = {
            name: np.stack([getattr(q, name) for q in same])
            for name in ("top", "bottom", "null_top", "null_bottom", "missing")
            if getattr(quantity, name) is not None
        }
        stacked.append(replace(quantity, dims=("layer", *quantity.dims), **arrays))
    return stacked


Parts = list[tuple[Trace, list[Quantity]]]
"""The quantities of each trace."""


@dataclass(frozen=True, eq=False)
class Cell:
    """A quantity after adding up: arrays over the dims that a table is split by."""

    value: np.ndarray
    null: np.ndarray
    """NaN where there is none."""
    missing: np.ndarray


def collapse(quantity: Quantity, by: Sequence[str], progress: np.ndarray | None = None) -> Cell:
    """Add up over everything but `by`; `progress` [step] turns steps into bins of progress."""
    # 1. Steps into tenths of progress, where the table is split by that.
    dims, arrays = quantity.dims, _arrays(quantity)
    if "progress" in by and "step" in dims:
        assert progress is not None
        axis = dims.index("step")
        arrays = {name: _bin_by_progress(array, axis, progress) for name, array in arrays.items()}
        dims = tuple("progress" if dim == "step" else dim for dim in dims)
    # 2. What the table is split by must be a dim of the quantity.
    if lost := [dim for dim in by if dim not in dims]:
        able = ", ".join(["trace", *dims, *(["progress"] if "step" in dims else [])])
        raise SpecError(f"{quantity.name} has no {lost[0]}: it can be split by {able}")
    # 3. Add up over the rest, and put the axes into the order of `by`.
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
    # 1e-9: progress 0.3 must not fall into the bin below for its rounding.
    bins = np.minimum((progress * PROGRESS_BINS + 1e-9).astype(int), PROGRESS_BINS - 1)
    moved = np.moveaxis(array, axis, 0)
    sums = np.zeros((PROGRESS_BINS, *moved.shape[1:]))
    np.add.at(sums, bins, moved)
    return np.moveaxis(sums, 0, axis)


def _divide(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(bottom != 0, top / bottom, np.nan)


Finish = Callable[[dict[str, Cell]], dict[str, Cell]]
"""What turns the added-up quantities of one trace into others: a survival curve, an odds ratio."""

NUMBERS = ("value", "null", "lift", "n", "missing", "low", "high", "interval")
"""The columns every table ends with."""
ROUNDING = 1e-12
"""A null below this is zero: it is a sum or difference of shares, and has no lift."""
CHANCE = "chance of "
"""What the name of a quantity begins with that goes into the column `chance`."""
TRACE_DIMS = ("trace", "prompt", "seed", "decoding")
"""What a table may be split by besides the dims of a quantity."""


def layer_quantities(traces: Traces, kernel: Callable[[LayerSlice], Sequence[Quantity]]) -> Parts:
    """The quantities of every trace, from a function of one layer."""
    return stack_traces(map_layers(traces, kernel))


def stack_traces(layers: Layers) -> Parts:
    """The quantities of every trace, from those of its layers."""
    return [(trace, stack_layers(every)) for trace, every in layers]


def tabulate(
    parts: Iterable[tuple[Trace, Sequence[Quantity]]],
    by: Sequence[str] = (),
    finish: Finish | None = None,
    about: Mapping[str, Any] | None = None,
    unit: Callable[[Trace], str] | None = None,
) -> pd.DataFrame:
    """One row for each model, cell of `by`, and quantity; `about` says what was asked.

    `unit` names what is resampled where it is not the prompt: an item told in several prompts.
    """
    by = check_dimensions(by)
    if twice := [dim for index, dim in enumerate(by) if dim in by[:index]]:
        raise SpecError(f"by={list(by)} names {twice[0]} twice: name each once")
    parts = list(parts)
    inner = [dim for dim in by if dim not in TRACE_DIMS]
    names = model_names([trace for trace, _ in parts])
    rows = [
        frame.assign(model=names[arm_key(trace)])
        for trace, quantities in parts
        for frame in _rows_of(trace, quantities, inner, finish, unit or prompt_id)
    ]
    every = pd.concat(rows, ignore_index=True)
    if unit is None:
        _warn_of_decodings(every, by)
    keys = ["model", *by, "quantity"]
    table = _over_prompts(every, keys)
    table.attrs = {"about": dict(about or {}), "traces": [origin(trace) for trace, _ in parts]}
    return table


def check_dimensions(by: Sequence[str]) -> Sequence[str]:
    """`by`, unless it is one word, which would be taken letter by letter."""
    if isinstance(by, str):
        raise SpecError(f"by={by!r} is not a list: say by=[{by!r}]")
    return by


def append_quantities(table: pd.DataFrame, more: pd.DataFrame) -> pd.DataFrame:
    """More quantities under a table, which still knows what made it."""
    both = pd.concat([table, more], ignore_index=True)
    both.attrs = table.attrs
    return both


def add_columns(table: pd.DataFrame, others: Mapping[str, pd.DataFrame | None]) -> pd.DataFrame:
    """A column for each other table's values in the same cells; NaN, absent, if none is given."""
    keys = [name for name in table.columns if name not in (*NUMBERS, "model")]
    attrs = table.attrs
    for name, other in others.items():
        if other is None:
            table = table.assign(**{name: np.nan})
            continue
        values = other[[*keys, "value"]].groupby(keys, as_index=False, dropna=False).mean()
        table = table.merge(values.rename(columns={"value": name}), on=keys, how="left")
    table.attrs = attrs
    return table


def chance(name: str, dims: tuple[str, ...], value: np.ndarray) -> Quantity:
    """What goes into the column `chance` beside the quantity of this name."""
    return mean(CHANCE + name, dims, value)


def split_always(dim: str, by: Sequence[str]) -> list[str]:
    """What a table is split by that always has this dim, asked for or not."""
    return [dim, *(other for other in check_dimensions(by) if other != dim)]


def compare_with_chance(
    parts: Parts,
    others: Mapping[str, Parts | None],
    by: Sequence[str],
    *,
    finish: Finish | None = None,
    about: Mapping[str, Any],
) -> pd.DataFrame:
    """The table of the traces, with a column for chance and one for each of the others.

    A column is NaN, absent, where no such traces are given.
    """
    # 1. The table itself; `about` names the other traces by their digests.
    digests = {
        name: [origin(trace)["digest"] for trace, _ in other] if other else None
        for name, other in others.items()
    }
    table = tabulate(select_chances(parts, chances=False), by, finish, dict(about) | digests)
    # 2. A column of values for each of the other sets of traces.
    values = {
        name: tabulate(select_chances(other, chances=False), by, finish) if other else None
        for name, other in others.items()
    }
    attrs, table = table.attrs, add_columns(table, values)
    # 3. The column `chance`, of the quantities whose names say so.
    by_chance = select_chances(parts, chances=True)
    if any(quantities for _, quantities in by_chance):
        keys = [name for name in table.columns if name not in (*NUMBERS, *values)]
        column = tabulate(by_chance, by)[[*keys, "value"]].rename(columns={"value": "chance"})
        column["quantity"] = column["quantity"].str.removeprefix(CHANCE)
        table = table.merge(column, on=keys, how="left")
    table = table.infer_objects()
    table.attrs = attrs
    return table


def select_chances(parts: Parts, *, chances: bool) -> Parts:
    """Only the quantities that go into the column `chance`, or only the others."""
    return [
        (trace, [q for q in quantities if q.name.startswith(CHANCE) == chances])
        for trace, quantities in parts
    ]


def _rows_of(
    trace: Trace,
    quantities: Sequence[Quantity],
    by: list[str],
    finish: Finish | None,
    unit: Callable[[Trace], str],
) -> Iterable[pd.DataFrame]:
    """Long frames of one trace: one for each quantity."""
    # 1. Add up each quantity over what the table is not split by.
    progress = trace.progress[:-1]
    cells = {q.name: collapse(q, by, progress) for q in quantities}
    labels = {dim: q.labels[dim] for q in quantities for dim in q.labels}
    # 2. A long frame of each quantity, its cells in row-major order.
    for name, cell in (finish(cells) if finish else cells).items():
        index = np.indices(cell.value.shape).reshape(len(by), cell.value.size)
        columns: dict[str, Any] = {
            "trace": trace.digest()[:12],
            "prompt": unit(trace),
            "seed": trace.seed,
            "decoding": describe_decoding(trace.manifest["decoding"]),
            "quantity": name,
        }
        for axis, dim in enumerate(by):
            columns[dim] = _label(dim, index[axis], labels)
        columns |= {
            "value": cell.value.ravel(),
            "null": cell.null.ravel(),
            "missing": cell.missing.ravel(),
        }
        yield pd.DataFrame(columns)


def _label(dim: str, index: np.ndarray, labels: Mapping[str, Sequence[object]]) -> Any:
    if dim == "progress":
        return (index + 0.5) / PROGRESS_BINS
    if dim in labels:
        return np.asarray(list(labels[dim]), dtype=object)[index]
    return index


def _over_prompts(every: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Mean over prompts, with the interval that resampling them gives."""
    # 1. Traces of one prompt are averaged: other seeds are no other prompts.
    each_prompt = list(dict.fromkeys([*keys, "prompt"]))  # it may be among the keys already
    prompts = every.groupby(each_prompt, sort=False, dropna=False)
    each = prompts.agg({"value": "mean", "null": "mean", "missing": "sum"}).reset_index()
    cells = each.groupby(keys, sort=False, dropna=False)
    # 2. [prompt, cell] values, NaN where a prompt lacks the cell.
    number = cells.ngroup().to_numpy()
    rank = cells.cumcount().to_numpy()
    values = np.full((int(rank.max()) + 1, int(number.max()) + 1), np.nan)
    values[rank, number] = each["value"].to_numpy()
    # 3. Means and intervals of all cells at once.
    result = stats.cluster_bootstrap(values)
    table = cells.agg({"null": "mean", "missing": "sum"}).reset_index()
    with np.errstate(invalid="ignore", divide="ignore"):
        null = table["null"].to_numpy()
        table["lift"] = np.where(np.abs(null) > ROUNDING, result.value / null, np.nan)
    table["value"], table["low"], table["high"] = result.value, result.low, result.high
    table["n"], table["interval"] = result.n, result.why
    table["missing"] = table["missing"].astype(int)
    return table[[*keys, *NUMBERS]]


def describe_decoding(fields: Mapping[str, Any]) -> str:
    """A decoding of a manifest with its settings: `LowConfidence(length=16, steps=4)`."""
    settings = (
        f"{key}={value}"
        for key, value in fields.items()
        if key != "name" and value not in (None, 0.0, False)
    )
    return f"{fields['name']}({', '.join(settings)})"


def _warn_of_decodings(every: pd.DataFrame, by: Sequence[str]) -> None:
    """Runs of one prompt that were decoded differently are not seeds of one another."""
    if {"decoding", "trace"} & set(by):
        return
    several = every.groupby(["model", "prompt"])["decoding"].nunique()
    if (several > 1).any():
        model = several[several > 1].index[0][0]
        warnings.warn(
            f"a prompt of {model} was decoded in several ways, which are averaged: "
            "by=[..., 'decoding'] keeps them apart",
            AnchorwatchWarning,
            stacklevel=4,
        )


def arm_key(trace: Trace) -> str:
    """Traces of one model under the same edits share it: what one row of a table is about."""
    edits = json.dumps(trace.manifest.get("edits", []), sort_keys=True)
    return f"{trace.manifest['model']['weights']} {edits}"


def model_names(traces: Sequence[Trace]) -> dict[str, str]:
    """Arms to names; two checkpoints of one source are told apart by their weights."""
    arms = {arm_key(trace): trace for trace in traces}
    # Two checkpoints of one source get the beginning of their weights' digest.
    known = {(m["source"], m["weights"]) for m in (t.manifest["model"] for t in arms.values())}
    sources = [source for source, _ in known]
    names = {}
    for key, trace in arms.items():
        source, weights = (trace.manifest["model"][name] for name in ("source", "weights"))
        name = source + (f"@{weights[:8]}" if sources.count(source) > 1 else "")
        names[key] = ", ".join([name, *map(repr, trace.edits)])
    return names


def prompt_id(trace: Trace) -> str:
    """Traces of one prompt share it, whatever their seed or decoding.

    A text that was observed and not written has no prompt: it stands for itself.
    """
    # Tokens that were given and where they stand, not the answer.
    positions = np.arange(trace.canvas.shape[1])
    given = np.setdiff1d(positions, trace.answer)
    if not len(given) and (trace.committed_at == -1).all():
        given = positions
    spelled = trace.given[given].astype("<i4").tobytes() + given.astype("<i4").tobytes()
    return hashlib.sha256(spelled).hexdigest()[:12]


Cross = Callable[[dict[str, Cell]], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""From the added-up cells of one trace: counts [4, ...] (both, one, other, neither), the counts to
be expected [4, ...], and how many cells were missing."""

DRAWS, LEVEL = 2000, 0.95
TOO_FEW = "less than one expected, none seen"
COUNT_ROUNDING = 1e-9
"""Expected counts below this are zero: they are sums and differences of fractions."""


def odds_table(
    parts: Iterable[tuple[Trace, Sequence[Quantity]]], by: Sequence[str], cross: Cross
) -> pd.DataFrame:
    """`odds_ratio` and `log_odds_ratio` of each cell of `by`, from the counts of all its prompts.

    A half is added to a pooled table with an empty cell. A prompt in which one of the two things
    never or always happened says nothing about odds and is not in n. Where neither the counts nor
    chance would give a single joint event, there is nothing to say, and the ratio is absent.
    """

    def cross_counts(cells: dict[str, Cell]) -> dict[str, Cell]:
        counts, expected, missing = cross(cells)
        named = {f"count{i}": counts[i] for i in range(4)}
        named |= {f"null{i}": expected[i] for i in range(4)}
        none = np.zeros(np.shape(missing))
        return {name: Cell(np.asarray(value), none, missing) for name, value in named.items()}

    parts = list(parts)
    # 1. The four counts and their expectations, prompt by prompt.
    each = tabulate(parts, list(dict.fromkeys([*by, "prompt"])), cross_counts)
    keys = ["model", *by]
    index = list(dict.fromkeys([*keys, "prompt"]))
    # 2. A row for each prompt of a cell.
    wide = each.pivot_table(
        index=index, columns="quantity", values="value", sort=False, dropna=False
    ).reset_index()
    lost = each[each["quantity"] == "count0"][[*index, "missing"]]
    wide, rows = wide.merge(lost, on=index), []
    # 3. Prompts of a cell are pooled.
    for cell, part in wide.groupby(keys, sort=False, dropna=False):
        labels = dict(zip(keys, cell if isinstance(cell, tuple) else (cell,), strict=True))
        rows += [labels | row for row in _pool_counts(part)]
    return pd.DataFrame(rows)[[*keys, "quantity", *NUMBERS]]


def _pool_counts(part: pd.DataFrame) -> list[dict[str, Any]]:
    """The two rows of one cell, from the counts of its prompts."""
    counts = part[[f"count{i}" for i in range(4)]].to_numpy(dtype=float)
    nulls = part[[f"null{i}" for i in range(4)]].to_numpy(dtype=float)
    # Prompts in which one of the two never or always happened have no odds.
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
            weights = draw_clusters(n, DRAWS, np.random.default_rng(0))
            tail = float(tail_share(LEVEL, np.array(n)))
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
    counts = np.where(counts < COUNT_ROUNDING, 0.0, counts)
    counts = counts + 0.5 * (counts == 0).any(axis=-1, keepdims=True)
    return np.asarray(counts[..., 0] * counts[..., 3] / (counts[..., 1] * counts[..., 2]))


def _count_informative(counts: np.ndarray) -> np.ndarray:
    """Prompts in which both things happened, and did not: others say nothing about odds."""
    # Both margins of the 2 x 2 table must have both kinds.
    both, first, second, neither = counts.T
    return (both + first > 0) & (both + second > 0) & (second + neither > 0) & (first + neither > 0)
