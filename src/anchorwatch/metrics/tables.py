"""Tidy tables: a row is one quantity of one model in one cell, with null, lift, n and interval.

The unit is the prompt. Each trace gives one value to a cell, traces of one prompt (other seeds)
are averaged, and the interval comes from resampling prompts, never heads or steps.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from anchorwatch.errors import AnchorwatchWarning, SpecError
from anchorwatch.metrics import stats
from anchorwatch.metrics.cells import PROGRESS_BINS, Cell, Quantity, collapse, stack_layers
from anchorwatch.metrics.passes import each_slab
from anchorwatch.metrics.reading import LayerSlice
from anchorwatch.trace.provenance import origin
from anchorwatch.trace.trace import Trace

Finish = Callable[[dict[str, Cell]], dict[str, Cell]]
"""What turns the added-up quantities of one trace into others: a survival curve, an odds ratio."""

NUMBERS = ("value", "null", "lift", "n", "missing", "low", "high", "interval")
"""The columns every table ends with."""
ROUNDING = 1e-12
"""A null below this is zero: it is a sum or difference of shares, and has no lift."""
OF_TRACES = ("trace", "prompt", "seed", "decoding")
"""What a table may be split by besides the dims of a quantity."""


def over_slabs(
    traces: Trace | Sequence[Trace], kernel: Callable[[LayerSlice], Sequence[Quantity]]
) -> list[tuple[Trace, list[Quantity]]]:
    """Apply a function of one layer's slab to every layer of every trace."""
    return [(trace, stack_layers(layers)) for trace, layers in each_slab(traces, kernel)]


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
    if twice := [dim for at, dim in enumerate(by) if dim in by[:at]]:
        raise SpecError(f"by={list(by)} names {twice[0]} twice: name each once")
    parts = list(parts)
    inner = [dim for dim in by if dim not in OF_TRACES]
    names = model_names([trace for trace, _ in parts])
    rows = [
        frame.assign(model=names[arm(trace)])
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


def beside(table: pd.DataFrame, others: Mapping[str, pd.DataFrame | None]) -> pd.DataFrame:
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


def _rows_of(
    trace: Trace,
    quantities: Sequence[Quantity],
    by: list[str],
    finish: Finish | None,
    unit: Callable[[Trace], str],
) -> Iterable[pd.DataFrame]:
    """Long frames of one trace: one for each quantity."""
    progress = trace.progress[:-1]
    cells = {q.name: collapse(q, by, progress) for q in quantities}
    labels = {dim: q.labels[dim] for q in quantities for dim in q.labels}
    for name, cell in (finish(cells) if finish else cells).items():
        index = np.indices(cell.value.shape).reshape(len(by), cell.value.size)
        columns: dict[str, Any] = {
            "trace": trace.digest()[:12],
            "prompt": unit(trace),
            "seed": trace.seed,
            "decoding": _describe_decoding(trace),
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
    each_prompt = list(dict.fromkeys([*keys, "prompt"]))  # it may be among the keys already
    prompts = every.groupby(each_prompt, sort=False, dropna=False)
    each = prompts.agg({"value": "mean", "null": "mean", "missing": "sum"}).reset_index()
    cells = each.groupby(keys, sort=False, dropna=False)
    number = cells.ngroup().to_numpy()
    rank = cells.cumcount().to_numpy()
    values = np.full((int(rank.max()) + 1, int(number.max()) + 1), np.nan)
    values[rank, number] = each["value"].to_numpy()
    found = stats.cluster_bootstrap(values)
    table = cells.agg({"null": "mean", "missing": "sum"}).reset_index()
    with np.errstate(invalid="ignore", divide="ignore"):
        null = table["null"].to_numpy()
        table["lift"] = np.where(np.abs(null) > ROUNDING, found.value / null, np.nan)
    table["value"], table["low"], table["high"] = found.value, found.low, found.high
    table["n"], table["interval"] = found.n, found.why
    table["missing"] = table["missing"].astype(int)
    return table[[*keys, *NUMBERS]]


def _describe_decoding(trace: Trace) -> str:
    """A decoding with its settings: `LowConfidence(length=16, steps=4)`."""
    held = dict(trace.manifest["decoding"])
    name = held.pop("name")
    given = (f"{key}={value}" for key, value in held.items() if value not in (None, 0.0, False))
    return f"{name}({', '.join(given)})"


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


def arm(trace: Trace) -> str:
    """Traces of one model under the same edits share it: what one row of a table is about."""
    edits = json.dumps(trace.manifest.get("edits", []), sort_keys=True)
    return f"{trace.manifest['model']['weights']} {edits}"


def model_names(traces: Sequence[Trace]) -> dict[str, str]:
    """Arms to names; two checkpoints of one source are told apart by their weights."""
    arms = {arm(trace): trace for trace in traces}
    known = {(m["source"], m["weights"]) for m in (t.manifest["model"] for t in arms.values())}
    sources = [source for source, _ in known]
    names = {}
    for key, trace in arms.items():
        source, weights = (trace.manifest["model"][name] for name in ("source", "weights"))
        name = source + (f"@{weights[:8]}" if sources.count(source) > 1 else "")
        names[key] = ", ".join([name, *map(repr, trace.edits)])
    return names


def prompt_id(trace: Trace) -> str:
    """Traces of one prompt share it, whatever their seed or decoding."""
    given = np.setdiff1d(np.arange(trace.canvas.shape[1]), trace.answer)
    spelled = trace.given[given].astype("<i4").tobytes() + given.astype("<i4").tobytes()
    return hashlib.sha256(spelled).hexdigest()[:12]
