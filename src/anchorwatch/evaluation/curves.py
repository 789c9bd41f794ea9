"""Results in the shape of a question: curves of stress tests, attention beside scores.

No torch here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from anchorwatch.errors import SpecError
from anchorwatch.evaluation.contexts import LAYOUTS, Context, context
from anchorwatch.evaluation.results import TRACES, Results
from anchorwatch.evaluation.tables import KEYS, NUMBERS, SCORE, accuracy
from anchorwatch.trace.atomic_io import expand_path
from anchorwatch.trace.trace import Trace, read


def curve(results: Results, test: str, score: str = SCORE) -> pd.DataFrame:
    """Accuracy over what a stress test varies, for its figure.

    `place` for position, `distractors` and `kind` for noise, `share` for irrelevant, `masks` for
    masks; for gain, layout and wording the contexts themselves.
    """
    if test not in _VARIED:
        raise SpecError(f"no stress test is called {test!r}: expected one of {', '.join(_VARIED)}")
    table = accuracy(results, [score])
    told = [_VARIED[test](context(name)) for name in table["context"]]
    kept = [at for at, found in enumerate(told) if found is not None]
    if not kept:
        asked = ", ".join(dict.fromkeys(table["context"]))
        raise SpecError(f"no context shows {test}: {asked} were asked")
    part = table.iloc[kept].reset_index(drop=True)
    more = pd.DataFrame([told[at] for at in kept])
    found = pd.concat([part[KEYS], more, part[["quantity", *NUMBERS]]], axis=1)
    found.attrs = dict(table.attrs) | {"about": {"table": "curve", "test": test, "score": score}}
    return found


def attended(
    results: Results, out: str | Path, measure: Callable[[list[Trace]], pd.DataFrame]
) -> pd.DataFrame:
    """Each item's scores beside what attention did: `measure` of its kept traces, `by=["trace"]`.

    >>> from anchorwatch import metrics
    >>> measure = lambda traces: metrics.concentration(traces, by=["trace"])
    """
    folder, rows = expand_path(out), results.rows[results.rows["unfit"] == ""]
    kept = [folder / row.cell / TRACES / f"{row.item}.trace" for row in rows.itertuples()]
    if not any(one.exists() for one in kept):
        raise SpecError(f"no traces are kept in {out}: evaluate(..., probes=[...]) keeps them")
    table = measure([read(one) for one in kept if one.exists()])
    if "trace" not in table:
        raise SpecError("the measure does not tell traces apart: give it by=['trace']")
    told = table.drop(columns=["model"], errors="ignore").rename(columns={"trace": "run"})
    found = rows.merge(told, on="run", how="inner")
    found.attrs = dict(table.attrs)
    return found


def _context_columns(one: Context) -> dict[str, Any]:
    return {"shown": one.name}


def _alone(one: Context) -> bool:
    """Whether nothing but the evidence is shown, as it is."""
    return one == Context("gold")


_VARIED: dict[str, Callable[[Context], dict[str, Any] | None]] = {
    "gain": _context_columns,
    "position": lambda one: (
        None if one.place is None else {"place": one.place, "total": one.total, "kind": one.kind}
    ),
    "noise": lambda one: (
        {"distractors": one.others, "kind": one.kind}
        if one.base == "gold" and one.place is None and "~" not in one.name
        else None
    ),
    "irrelevant": lambda one: (
        {"share": one.others / (one.total or 1)} if one.base == "irrelevant" else None
    ),
    "layout": lambda one: _context_columns(one) if one.base in LAYOUTS else None,
    "masks": lambda one: {"masks": one.masks} if _alone(replace(one, masks=0)) else None,
    "wording": lambda one: (
        _context_columns(one)
        if _alone(replace(one, typos=0, paraphrase=False, shuffle=0))
        else None
    ),
}
