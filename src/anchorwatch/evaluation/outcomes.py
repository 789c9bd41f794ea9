"""What an edit did: outcomes of one prompt, and tables over prompts with intervals and a control.

On their own runs the clean and the edited one are compared as they were written. On the clean
frames both read the same canvases, so that only what the model makes of them can differ. Each
outcome is held against a null: what an edit that does nothing gives (the clean run beside itself),
or, for attention that hidden keys lost, what uniform attention gives.

Over prompts, `difference` is edited - null (`against` says which null), and `did` is the difference
in differences: how much more the edit did than its control, whose budget is the same. The unit is
the prompt.
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
from anchorwatch.metrics import stats
from anchorwatch.metrics.sink_rules import Rule
from anchorwatch.metrics.stats import kendall
from anchorwatch.metrics.table_files import save
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.trace import MISSING, Trace

OWN, FORCED = "own run", "clean frames"
CLEAN, INDIFFERENT, PROPORTIONAL = "clean", "indifferent", "proportional"


@dataclass(frozen=True)
class Outcome:
    """One number for each prompt and arm."""

    name: str
    unit: str
    on: str
    """own run: as each arm wrote it; clean frames: every arm reads the clean run's canvases."""
    against: str
    """What the null is: the clean run itself, indifferent or proportional attention."""
    causal_unit: str | None = None
    """Of autoregression, where it is another."""

    def unit_of(self, autoregressive: bool) -> str:
        return self.causal_unit or self.unit if autoregressive else self.unit


OUTCOMES = (
    Outcome("answer_changed", "share of runs", OWN, CLEAN),
    Outcome("edit_distance", "share of the longer answer", OWN, CLEAN),
    Outcome("divergence_step", "step", OWN, CLEAN),
    Outcome("steps_shared", "share of the clean run's steps", OWN, CLEAN),
    Outcome("order_tau", "Kendall's tau-b", OWN, CLEAN),
    Outcome("confidence", "nats per committed token", OWN, CLEAN),
    Outcome("tokens_in_common", "share of the clean answer", OWN, CLEAN),
    Outcome("argmax_agreement", "share of masked positions", FORCED, CLEAN, "share of next tokens"),
    Outcome("kl", "nats per masked position", FORCED, CLEAN, "nats per next token"),
    Outcome("perturbation", "relative change of states", FORCED, CLEAN),
    Outcome("hidden_keys", "keys of a head that hides some", FORCED, CLEAN),
    Outcome("hidden_share", "share of attention", FORCED, INDIFFERENT),
    Outcome("largest_gainer", "share of the gains", FORCED, PROPORTIONAL),
    Outcome("gain_entropy", "entropy / log keys", FORCED, PROPORTIONAL),
    Outcome("new_sink_share", "share of the gains", FORCED, PROPORTIONAL),
    Outcome("greatest_hidden", "share of heads that hide some", FORCED, INDIFFERENT),
)
NAMES = tuple(outcome.name for outcome in OUTCOMES)
MOVED = (
    *("hidden_keys", "hidden_share", "largest_gainer", "gain_entropy", "new_sink_share"),
    "greatest_hidden",
)
"""Outcomes of attention that hidden keys lost, in the order of `moved`."""


def compare_runs(clean: Trace, other: Trace) -> dict[str, float]:
    """Outcomes of two runs of one prompt; NaN where one does not exist."""
    answer, steps = clean.answer, clean.num_steps
    first, second = clean.own[answer], other.own[answer]
    written = first != MISSING
    when = clean.committed_at[answer], other.committed_at[answer]
    step = first_divergence(*when, first == second)
    order = np.nan
    if clean.decoding.writes == "masked":  # left to right there is only one order
        order = order_tau(*when)
    return {
        "answer_changed": float((first != second).any()),
        "edit_distance": edit_distance(first[written], second[second != MISSING]),
        "divergence_step": np.nan if step is None else float(step),
        "steps_shared": 1.0 if step is None else min(step / steps, 1.0),
        "order_tau": order,
        "confidence": _mean_of_present(other.logprob[answer]),
        "tokens_in_common": _mean_of_present((first == second)[written]),
    }


def first_divergence(times: np.ndarray, other_times: np.ndarray, same: np.ndarray) -> int | None:
    """The first step whose commits differ; None where none does.

    [position] each: when both runs committed it, -1 for never, and whether to the same token.
    """
    first = np.minimum(*(np.where(when == MISSING, np.inf, when) for when in (times, other_times)))
    apart = first[((times != other_times) | ~same) & np.isfinite(first)]
    return int(apart.min()) if len(apart) else None


def edit_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Insertions, deletions and substitutions (Levenshtein), over the length of the longer one.

    >>> edit_distance(np.array([1, 2, 3, 4]), np.array([2, 3, 4]))
    0.25
    """
    longer = max(len(first), len(second))
    if not longer:
        return 0.0
    places = np.arange(len(second) + 1)
    row = places.copy()
    for number, token in enumerate(first, start=1):
        best = np.minimum(row[:-1] + (second != token), row[1:] + 1)
        # from the left: row[j] = min(best[j], row[j - 1] + 1), all at once
        row = np.minimum.accumulate(np.concatenate([[number], best]) - places) + places
    return float(row[-1]) / longer


def order_tau(times: np.ndarray, other_times: np.ndarray) -> float:
    """Kendall's tau-b of commit times over the positions that both runs committed."""
    first, second = (np.where(x == MISSING, np.nan, x.astype(float)) for x in (times, other_times))
    return float(kendall(first, second)) if len(first) > 1 else np.nan


@dataclass(frozen=True, eq=False)
class UniformBaseline:
    """What indifferent attention gives to the keys of one step: [layer, key] each, NaN: absent."""

    shares: np.ndarray
    seen: np.ndarray
    """Share of the queries that may look at each key."""


def sum_moved_attention(
    before: np.ndarray, after: np.ndarray, hidden: np.ndarray, even: UniformBaseline, rule: Rule
) -> np.ndarray:
    """[MOVED, (value, null, weight)] sums over [layer, head] of where hidden keys' attention went.

    `before` and `after` are [layer, head, key] shares without and with the edit, `hidden` [layer,
    head, rank] keys, -1 for none. A value is its sum over the sum of weights: `hidden_keys`, how
    many there are, `hidden_share`, what they had, and `greatest_hidden`, whether the key that
    received most is among them, count every head that hid some; the others count a head by the
    attention its hidden keys lost. Gains are of the keys that were not hidden;
    the null gives each of them in proportion to what it had: p (1 - q_hidden) / (1 - p_hidden).
    """
    # 1. What hidden keys had (p) and have (q), per head.
    present = ~np.isnan(before) & ~np.isnan(after)
    p, q = (np.where(present, shares, 0.0).astype(np.float64) for shares in (before, after))
    gone = _flag_keys(hidden, p.shape)
    hides = gone.any(axis=-1)
    had, has = (p * gone).sum(axis=-1), (q * gone).sum(axis=-1)
    # 2. Where it went: gains of the other keys as a distribution, beside what they had (the null).
    gains, total = _to_distribution(np.where(gone, 0.0, np.maximum(q - p, 0.0)))
    null, rest = _to_distribution(np.where(gone, 0.0, p))
    lost = np.where((total > 0) & (rest > 0) & hides, np.maximum(had - has, 0.0), 0.0)
    # Not hidden are the other keys and added ones, which hold the rest. Where the hidden keys' sum
    # rounds to 1 or more, what is left is what the other keys have.
    left = np.maximum(1 - had, rest)
    grown = (1 - has) / np.where(left > 0, left, 1.0)
    proportional = np.where(gone, q, p * grown[..., None])
    # 3. Sinks that were none before: really, and had every key grown in proportion.
    was = _label_sinks(p, present, even, rule)
    new = [_label_sinks(x, present, even, rule) & ~was for x in (q, proportional)]
    free = (present & ~gone).sum(axis=-1)
    # 4. (value, null, weight) of each outcome; a head that hides nothing weighs 0.
    share_of_even = np.where(gone, np.nan_to_num(even.shares)[:, None], 0.0).sum(axis=-1)
    pairs = (
        (gone.sum(axis=-1), np.full(had.shape, np.nan), hides.astype(float)),
        (had, share_of_even, hides.astype(float)),
        (gains.max(axis=-1), null.max(axis=-1), lost),
        (
            _normalised_entropy(gains, free),
            _normalised_entropy(null, free),
            np.where(free > 1, lost, 0.0),
        ),
        ((gains * new[0]).sum(axis=-1), (null * new[1]).sum(axis=-1), lost),
        (_flag_of_top_key(gone, p), gone.sum(axis=-1) / present.sum(axis=-1), hides.astype(float)),
    )
    return np.array([[(x * w).sum(), (y * w).sum(), w.sum()] for x, y, w in pairs])


def _flag_keys(hidden: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """[layer, head, key] bool from the keys' numbers."""
    flags = np.zeros((*shape[:-1], shape[-1] + 1), dtype=bool)  # the last place takes the -1s
    np.put_along_axis(flags, hidden.astype(np.intp) % (shape[-1] + 1), True, axis=-1)
    return flags[..., :-1]


def _flag_of_top_key(flags: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """[layer, head] the flag of the key that receives most, 0 or 1."""
    top = shares.argmax(axis=-1)[..., None]
    return np.take_along_axis(flags, top, axis=-1)[..., 0].astype(float)


def _to_distribution(shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[..., key] as a distribution, zero where there is nothing, and the total."""
    total = shares.sum(axis=-1)
    return shares / np.where(total > 0, total, 1.0)[..., None], total


def _normalised_entropy(shares: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Entropy over log of the number of keys: 1 when all gain alike, 0 when one takes all."""
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return -(shares * logs).sum(axis=-1) / np.log(np.maximum(count, 2))


def _label_sinks(
    shares: np.ndarray, present: np.ndarray, even: UniformBaseline, rule: Rule
) -> np.ndarray:
    return rule.labels(np.where(present, shares, np.nan), even.seen[:, None])


def _mean_of_present(values: np.ndarray) -> float:
    """The mean of what is there; NaN where nothing is."""
    array = np.asarray(values, dtype=np.float64)
    array = array[~np.isnan(array)]
    return float(array.mean()) if len(array) else np.nan


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
        # 1. Means and percentile intervals, prompts resampled: edit, control, edit over control.
        difference = stats.cluster_bootstrap(self.difference)
        control = stats.cluster_bootstrap(self.control_difference)
        did = stats.cluster_bootstrap(self.did)
        n = np.sum(~np.isnan(self.edited.value), axis=0)
        # 2. A null that is absent for every prompt is said; it is no lack of prompts.
        never = (n > 0) & np.isnan(self.edited.null).all(axis=0)
        numbers = {
            "clean": nan_mean(self.clean),
            "edited": nan_mean(self.edited.value),
            "control": nan_mean(self.control.value),
            "null": nan_mean(self.edited.null),
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
        columns: dict[str, Any] = {
            name: np.repeat(column, cells) for name, column in prompts.items()
        }
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


def fit_trends(doses: Sequence[int], contrasts: Sequence[Contrast], outcomes: Sequence[str]) -> Any:
    """Whether an outcome grows with the dose: each prompt's Theil-Sen slope, then over prompts.

    `p` is two-sided, of slopes whose signs are turned at random; NaN with fewer than two doses.
    """
    tables = []
    for series in SERIES:
        each = np.stack([getattr(contrast, series) for contrast in contrasts], axis=-1)
        slopes = stats.theil_sen(np.asarray(doses, dtype=float), each).value
        over = stats.cluster_bootstrap(slopes)
        p = stats.permutation_test(slopes, np.zeros_like(slopes), paired=True).p
        columns = {"outcome": outcomes, "series": series, "slope": over.value, "low": over.low}
        columns |= {"high": over.high, "p": p, "n": over.n, "interval": over.why}
        tables.append(pd.DataFrame(columns))
    both = pd.concat(tables, ignore_index=True)
    order = {name: index for index, name in enumerate(outcomes)}
    return both.sort_values("outcome", key=lambda c: c.map(order), kind="stable", ignore_index=True)


def nan_mean(values: np.ndarray) -> np.ndarray:
    """The mean over prompts that have a value; NaN where none has."""
    present = ~np.isnan(values)
    count = present.sum(axis=0)
    total = np.where(present, values, 0.0).sum(axis=0)
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
        table: pd.DataFrame | None = getattr(self, which)
        if table is None:
            raise SpecError(f"there are no {which} without doses: give doses=(1, 5, 10)")
        return table

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

    def _has_value(self) -> pd.Series:
        return self.table[["edited", "control"]].notna().any(axis=1)

    def _foot(self) -> list[str]:
        absent = self.table["outcome"][~self._has_value()]
        return [f"absent     {', '.join(absent)}"] if len(absent) else []

    def _cells(self) -> list[list[str]]:
        """Header, and a row for each outcome that some prompt has."""
        rows = [["outcome", "clean", "edited", "control", "difference", "beyond control", "n"]]
        for row in self.table[self._has_value()].to_dict(orient="records"):
            change = _with_interval(row["difference"], row["low"], row["high"])
            beyond = _with_interval(row["did"], row["did_low"], row["did_high"])
            values = [_short(row[name]) for name in ("clean", "edited", "control")]
            rows.append([row["outcome"], *values, change, beyond, str(row["n"])])
        return rows


def _with_interval(value: float, low: float, high: float) -> str:
    if np.isnan(value):
        return "-"
    text = f"{value:+.3g}" if value else "0"
    return text if np.isnan(low) else f"{text} [{_short(low)}, {_short(high)}]"


def _short(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3g}"


def _align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
