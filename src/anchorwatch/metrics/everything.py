"""All default metrics of some traces, read once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from importlib import import_module

import pandas as pd

from anchorwatch.errors import AnchorwatchWarning, TraceError
from anchorwatch.metrics import METRICS
from anchorwatch.metrics.passes import together
from anchorwatch.metrics.reading import check_traces
from anchorwatch.trace.trace import Trace

DEFAULT = (
    "sinks",
    "absorption",
    "sink_rate",
    "concentration",
    "epsilon_curve",
    "score_histogram",
    "agreement",
    "jumps",
    "spread",
    "direction",
    "frontier_hits",
    "set_jaccard",
    "received_similarity",
    "split_index",
    "survival",
    "lifetime",
    "onsets",
    "layer_consistency",
    "head_type_shares",
    "enrichment",
    "sink_tokens",
    "structure",
    "structure_trend",
    "meaning_or_place",
    "qk_split",
    "value_norms",
    "key_norms",
)
"""What needs no probe beyond the default ones, and nothing but traces to ask for."""


def measure_all(
    traces: Trace | Sequence[Trace], metrics: Sequence[str] = DEFAULT
) -> dict[str, pd.DataFrame]:
    """The table of every default metric by name.

    A metric whose fields were not captured is left out with a warning that says how to get them.
    """
    found = check_traces(traces)
    asked = {
        name: partial(getattr(import_module(f"anchorwatch.metrics.{METRICS[name]}"), name), found)
        for name in metrics
    }
    tables = together(found, asked)
    for name, table in tables.items():
        if isinstance(table, TraceError):
            warnings.warn(f"{name} is left out: {table}", AnchorwatchWarning, stacklevel=2)
    return {name: table for name, table in tables.items() if not isinstance(table, TraceError)}
