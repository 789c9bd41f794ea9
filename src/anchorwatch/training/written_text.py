"""Sinks while a network writes: how many, which tokens, whether they move, what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.generation.decoding import LeftToRight, LowConfidence
from anchorwatch.generation.run import run_many
from anchorwatch.metrics import sink_rules as rules
from anchorwatch.models.model import Model
from anchorwatch.models.prompt_encoding import Prompt
from anchorwatch.probes import spec as probes
from anchorwatch.trace.trace import Trace

RULES = {
    "gu": rules.gu(0.3),
    "ratio": rules.ratio(10),
    "rulli": rules.rulli(3),
    "zscore": rules.zscore(3),
}
"""gu asks for a share, the others for so many times, or so far from, the rest: length-free."""
PROBES = (probes.received(groups=("all",), dtype="float32"), probes.norms(keys=True))
SINK = -2
"""Where the greatest key is if it is an added one."""


def measure_written(
    model: Model, prompts: Sequence[Prompt], length: int, steps: int
) -> dict[str, Any]:
    """Sink statistics of the runs that write `length` positions after each prompt, with nulls.

    Intervals resample prompts: they say how sure a number is of this model, not of its kind.
    """
    decoding = LowConfidence(length=length, steps=min(steps, length))
    greedy = LeftToRight(length=length) if model.family.kind == "arm" else decoding
    traces = run_many(model, list(prompts), greedy, probes=PROBES)
    found: dict[str, Any] = {
        "incidence": {
            name: cells(metrics.sinks(traces, rule, by=()))["incidence"]
            for name, rule in RULES.items()
        },
        "greatest": cells(metrics.sinks(traces, RULES["rulli"], by=()))["greatest"],
        "greatest_is": _classes(metrics.enrichment(traces, rules.topk(1))),
        "switch_all": switches(traces),
        "n": len(traces),
    }
    moves = cells(metrics.jumps(traces, RULES["rulli"], by=()))
    found |= {"switch": moves["jump_rate_any"], "switch_sinks": moves["jump_rate"]}
    norms = cells(metrics.value_norms(traces, RULES["rulli"], by=()))
    return found | {"sink_value": norms["ratio"], "sink_value_auroc": norms["auroc"]}


def cells(table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Quantities of a metric's table that is split by nothing."""
    names = ["value", "null", "low", "high", "n"]
    return {
        row["quantity"]: {name: float(row[name]) for name in names} for _, row in table.iterrows()
    }


def _classes(table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Share of the greatest keys that each token class has, and of all keys."""
    kept = table[table["value"].notna()]
    return {
        str(row["class"]).replace(" ", "_"): {
            "value": float(row["value"]),
            "null": float(row["null"]),
        }
        for _, row in kept.iterrows()
    }


def switches(traces: Sequence[Trace]) -> dict[str, float]:
    """How often the greatest of all keys, added ones included, is another than a step before.

    Added keys count as one, by what they receive together. The mean over prompts of the share of
    (step, layer, head) that have a step before; `sink` is how often the greatest is an added key.
    """
    moved, added = [], []
    for trace in traces:
        path = greatest_path(trace)
        there = (path[1:] >= SINK) & (path[:-1] >= SINK)
        moved.append(np.mean((path[1:] != path[:-1])[there]) if there.any() else np.nan)
        added.append(np.mean(path[path >= SINK] == SINK))
    value = float(np.nanmean(moved)) if np.isfinite(moved).any() else float("nan")
    return {"value": value, "sink": float(np.mean(added)), "n": len(traces)}


_NOWHERE = -3


def greatest_path(trace: Trace) -> np.ndarray:
    """[step, layer, head] the greatest key: a position, -2 an added key, -3 not measured."""
    shares = trace["received"].sel(group="all").values
    there = ~np.isnan(shares).all(axis=-1)
    filled = np.where(np.isnan(shares), -1.0, shares)
    path = np.where(there, filled.argmax(axis=-1), _NOWHERE)
    if "sink_received" in trace:
        sink = trace["sink_received"].sel(group="all").values
        path = np.where(there & (np.nan_to_num(sink) > filled.max(axis=-1)), SINK, path)
    return path
