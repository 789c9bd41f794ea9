"""Arms that answered the same items, as one table: accuracy of each, and its paired difference.

An arm is whatever differs while items stay the same: an edit, or a network. Rows come from
`evaluate` (question sets) or from lm-eval (`harness_rows`), so that one grid holds both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError
from anchorwatch.evaluation.results import Results
from anchorwatch.metrics import stats

ROWS = ("model", "task", "metric", "arm", "item", "value")
"""Columns of rows that can be compared: one value for each item under each arm."""


def result_rows(results: Results, scores: Sequence[str], *, arm: str = "edit") -> pd.DataFrame:
    """Rows of an evaluation; `arm` is the column that arms differ in: edit, model or context.

    Items that could not be asked are NaN, and count as missing in every comparison.
    """
    wide = results.rows
    parts = [
        pd.DataFrame(
            {
                "model": wide["model"] if arm != "model" else "",
                "task": wide["task"] + (" " + wide["context"] if arm != "context" else ""),
                "metric": score,
                "arm": wide[arm],
                "item": wide["item"],
                "value": wide[score].astype(float),
            }
        )
        for score in scores
    ]
    return pd.concat(parts, ignore_index=True)


def compare_arms(rows: pd.DataFrame, base: str) -> pd.DataFrame:
    """One line for each model, task, metric and arm: its mean, and the difference from `base`.

    The unit is the item; an item that either arm lacks is in neither, and counted as missing. Right
    or wrong: Wilson's interval, Newcombe's of the paired difference, McNemar's exact p. Other
    scores: bootstrap over items, without p. `p_holm` is corrected over the whole table.
    """
    if lost := [name for name in ROWS if name not in rows.columns]:
        raise SpecError(f"the rows have no column {lost[0]}: they need {', '.join(ROWS)}")
    if base not in set(rows["arm"]):
        known = ", ".join(dict.fromkeys(map(str, rows["arm"])))
        raise SpecError(f"no arm is called {base!r}: the rows have {known}")
    table = pd.DataFrame([line for line in _lines(rows, base)])
    known = table["p"].notna().to_numpy()
    table["p_holm"] = np.nan
    if known.any():
        table.loc[known, "p_holm"] = stats.holm(table.loc[known, "p"].to_numpy(dtype=float))
    return table


def _lines(rows: pd.DataFrame, base: str) -> Iterator[dict[str, Any]]:
    arms = list(dict.fromkeys(rows["arm"]))
    for keys, part in rows.groupby(["model", "task", "metric"], sort=False):
        wide = part.pivot(index="item", columns="arm", values="value")
        for arm in (name for name in arms if name in wide.columns):
            line = dict(zip(("model", "task", "metric"), keys, strict=True)) | {"arm": arm}
            pair = wide[[arm]] if arm == base else wide[[arm, base]]
            pair = pair.dropna()
            yield line | _mean(pair[arm].to_numpy(dtype=float), len(wide)) | _gap(pair, arm, base)


def _mean(values: np.ndarray, items: int) -> dict[str, Any]:
    """The mean with its interval."""
    if _binary(values):
        found = stats.wilson(int(values.sum()), len(values))
    else:
        found = stats.cluster_bootstrap(values)
    return {
        "value": float(found.value),
        "low": float(found.low),
        "high": float(found.high),
        "n": len(values),
        "missing": items - len(values),
    }


def _gap(pair: pd.DataFrame, arm: str, base: str) -> dict[str, Any]:
    """The paired difference from the base; none of the base itself."""
    empty = dict.fromkeys(("difference", "difference_low", "difference_high", "p"), np.nan)
    if arm == base or pair.empty:
        return empty
    a, b = (pair[name].to_numpy(dtype=float) for name in (arm, base))
    if _binary(a) and _binary(b):
        test = stats.mcnemar_of(a == 1, b == 1)
        bounds = (test.value, test.low, test.high, test.p)
    else:
        gap = stats.difference(a, b, paired=True)
        bounds = (gap.value, gap.low, gap.high, np.array(np.nan))
    return dict(zip(empty, map(float, bounds), strict=True))


def _binary(values: np.ndarray) -> bool:
    return bool(np.isin(values, (0.0, 1.0)).all())


def as_grid(table: pd.DataFrame, *, columns: Sequence[str] = ("task", "metric")) -> pd.DataFrame:
    """The table as papers print it: a row for each model and arm, a column for each task.

    Cells are percent with the paired difference from the base in brackets; * marks p < 0.05 after
    Holm's correction.
    """

    def cell(row: Any) -> str:
        text = f"{100 * row.value:.1f}"
        if np.isfinite(row.difference):
            star = "*" if row.p_holm < 0.05 else ""
            text += f" ({100 * row.difference:+.1f}{star})"
        return text

    shown = table.assign(
        cell=[cell(row) for row in table.itertuples()],
        column=table[list(columns)].astype(str).agg(", ".join, axis=1),
    )
    order = list(dict.fromkeys(shown["column"]))
    index = pd.MultiIndex.from_frame(shown[["model", "arm"]].drop_duplicates())
    wide = shown.pivot(index=["model", "arm"], columns="column", values="cell")
    return wide.reindex(index=index, columns=order).reset_index().rename_axis(columns=None)
