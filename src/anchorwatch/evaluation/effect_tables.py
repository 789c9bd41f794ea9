"""From numbers of single prompts to what an edit did: differences with intervals, beside a control.

The unit is the prompt. `difference` is edited - null, the null being the clean run, or what
indifferent or proportional attention gives (`against` says which). `did` is the difference in
differences: how much more the edit did than its control, whose budget is the same. No torch here.
"""

from __future__ import annotations

import html
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError
from anchorwatch.evaluation.outcomes import CLEAN
from anchorwatch.metrics import stats
from anchorwatch.metrics.table_files import save
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.trace import Trace

NUMBERS = (
    *("clean", "edited", "control", "null", "difference", "low", "high"),
    *("control_difference", "control_low", "control_high", "did", "did_low", "did_high"),
    *("n", "did_n", "interval"),
)
"""The columns that every table of an effect ends with."""
NEVER = "its null is absent: there is nothing to differ from"
SERIES = ("difference", "control_difference", "did")


@dataclass(frozen=True, eq=False)
class Arm:
    """What one arm gave: [prompt, cell] values, and what each is held against."""

    value: np.ndarray
    null: np.ndarray

    @classmethod
    def absent(cls, shape: tuple[int, ...]) -> Arm:
        return cls(np.full(shape, np.nan), np.full(shape, np.nan))


@dataclass(frozen=True, eq=False)
class Contrast:
    """An edit beside its control, prompt by prompt: [prompt, cell] each, NaN where absent."""

    clean: np.ndarray
    edited: Arm
    control: Arm
    against: np.ndarray
    """[cell] what the null is."""

    @property
    def difference(self) -> np.ndarray:
        return self.edited.value - self.edited.null

    @property
    def control_difference(self) -> np.ndarray:
        return self.control.value - self.control.null

    @property
    def did(self) -> np.ndarray:
        """The clean run is the same for both and falls out, so that it need not exist."""
        direct = self.edited.value - self.control.value
        return np.where(self.against == CLEAN, direct, self.difference - self.control_difference)

    def table(self, labels: Mapping[str, Any]) -> pd.DataFrame:
        """One row for each cell, with intervals from resampling prompts."""
        difference = stats.cluster_bootstrap(self.difference)
        control = stats.cluster_bootstrap(self.control_difference)
        did = stats.cluster_bootstrap(self.did)
        n = np.sum(~np.isnan(self.edited.value), axis=0)
        never = (n > 0) & np.isnan(self.edited.null).all(axis=0)
        numbers = {
            "clean": mean_of(self.clean),
            "edited": mean_of(self.edited.value),
            "control": mean_of(self.control.value),
            "null": mean_of(self.edited.null),
            "difference": difference.value,
            "low": difference.low,
            "high": difference.high,
            "control_difference": control.value,
            "control_low": control.low,
            "control_high": control.high,
            "did": did.value,
            "did_low": did.low,
            "did_high": did.high,
            "n": n,
            "did_n": did.n,
            "interval": np.where(never, NEVER, difference.why),
        }
        assert tuple(numbers) == NUMBERS
        return pd.DataFrame(dict(labels) | numbers)

    def rows(self, prompts: Mapping[str, Sequence[Any]], outcomes: Sequence[str]) -> pd.DataFrame:
        """One row for each prompt and outcome."""
        count, cells = self.clean.shape
        columns: dict[str, Any] = {name: np.repeat(held, cells) for name, held in prompts.items()}
        columns["outcome"] = np.tile(np.asarray(outcomes, dtype=object), count)
        arrays = {
            "clean": self.clean,
            "edited": self.edited.value,
            "control": self.control.value,
            "null": self.edited.null,
            "control_null": self.control.null,
            "difference": self.difference,
            "control_difference": self.control_difference,
            "did": self.did,
        }
        return pd.DataFrame(columns | {name: array.ravel() for name, array in arrays.items()})


def trends(doses: Sequence[int], contrasts: Sequence[Contrast], outcomes: Sequence[str]) -> Any:
    """Whether an outcome grows with the dose: each prompt's Theil-Sen slope, then over prompts.

    `p` is two-sided, of slopes whose signs are turned at random; NaN with fewer than two doses.
    """
    found = []
    for series in SERIES:
        each = np.stack([getattr(one, series) for one in contrasts], axis=-1)
        slopes = stats.theil_sen(np.asarray(doses, dtype=float), each).value
        over = stats.cluster_bootstrap(slopes)
        p = stats.permutation_test(slopes, np.zeros_like(slopes), paired=True).p
        columns = {"outcome": outcomes, "series": series, "slope": over.value, "low": over.low}
        columns |= {"high": over.high, "p": p, "n": over.n, "interval": over.why}
        found.append(pd.DataFrame(columns))
    both = pd.concat(found, ignore_index=True)
    order = {name: place for place, name in enumerate(outcomes)}
    return both.sort_values("outcome", key=lambda c: c.map(order), kind="stable", ignore_index=True)


def mean_of(values: np.ndarray) -> np.ndarray:
    """The mean over prompts that have a value; NaN where none has."""
    there = ~np.isnan(values)
    count = there.sum(axis=0)
    total = np.where(there, values, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


@dataclass(frozen=True, eq=False, repr=False)
class Effect:
    """What an edit did. `print(effect)` shows the table; every table is tidy pandas."""

    table: pd.DataFrame
    """One row for each outcome."""
    prompts: pd.DataFrame
    """One row for each prompt and outcome."""
    layers: pd.DataFrame
    """One row for each layer: how far hidden states moved after it."""
    doses: pd.DataFrame | None = None
    """One row for each dose k and outcome."""
    trends: pd.DataFrame | None = None
    """One row for each outcome and series: its slope over the dose, tested over prompts."""
    traces: Mapping[str, Sequence[Trace]] | None = field(default=None)
    """The runs of each arm, where they were asked for."""

    @property
    def about(self) -> dict[str, Any]:
        """What was asked (a copy)."""
        return dict(self.table.attrs["about"])

    def named(self, which: str) -> pd.DataFrame:
        """The old name of `get_table`."""
        warnings.warn("Effect.named is now Effect.get_table", DeprecationWarning, stacklevel=2)
        return self.get_table(which)

    def get_table(self, which: str) -> pd.DataFrame:
        """One of its tables by name."""
        names = ("table", "prompts", "layers", "doses", "trends")
        if which not in names:
            raise SpecError(f"an effect has no {which!r}: expected one of {', '.join(names)}")
        held: pd.DataFrame | None = getattr(self, which)
        if held is None:
            raise SpecError(f"there are no {which} without doses: give doses=(1, 5, 10)")
        return held

    def save(self, path: str | Path, which: str = "table") -> Path:
        """Write one of its tables as .csv, .json or .parquet; the last two say what made them."""
        return save(self.get_table(which), path)

    def summary(self) -> str:
        """What was asked, and a line for each outcome, in text."""
        return "\n".join([*self._head(), *_align_columns(self._cells()), *self._foot()])

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        head = "<br>".join(html.escape(line) for line in self._head())
        first, *rest = self._cells()
        lines = ["".join(f"<th>{html.escape(cell)}</th>" for cell in first)]
        lines += ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rest]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        foot = "<br>".join(html.escape(line) for line in self._foot())
        return f"<p>{head}</p><table>{body}</table><p>{foot}</p>"

    def _head(self) -> list[str]:
        about, count = self.about, self.prompts["prompt"].nunique()
        seeds = f", {about['repeats']} seeds each" if about["repeats"] > 1 else ""
        where = f"{about['model']}, {about['decoding_text']}, {count} prompt{'s' * (count != 1)}"
        return [
            one_line(f"effect of  {about['edit_text']}"),
            one_line(f"beside     {about['control_text'] or 'no control'}"),
            one_line(f"on         {where}{seeds}"),
        ]

    def _there(self) -> pd.Series:
        return self.table[["edited", "control"]].notna().any(axis=1)

    def _foot(self) -> list[str]:
        absent = self.table["outcome"][~self._there()]
        return [f"absent     {', '.join(absent)}"] if len(absent) else []

    def _cells(self) -> list[list[str]]:
        """Header, and a row for each outcome that some prompt has."""
        rows = [["outcome", "clean", "edited", "control", "difference", "beyond control", "n"]]
        for row in self.table[self._there()].to_dict(orient="records"):
            change = _with_interval(row["difference"], row["low"], row["high"])
            beyond = _with_interval(row["did"], row["did_low"], row["did_high"])
            values = [_short(row[name]) for name in ("clean", "edited", "control")]
            rows.append([row["outcome"], *values, change, beyond, str(row["n"])])
        return rows


def _with_interval(value: float, low: float, high: float) -> str:
    if np.isnan(value):
        return "-"
    said = f"{value:+.3g}" if value else "0"
    return said if np.isnan(low) else f"{said} [{_short(low)}, {_short(high)}]"


def _short(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3g}"


def _align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
