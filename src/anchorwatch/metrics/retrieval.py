"""Retrieval heads: does the row that predicted a committed token look at the gold evidence?

At the step at which an answer token is committed, before the commit, one row predicted it: row p,
or p-1 in a shifted family. A run keeps that row's greatest keys; what it gave to whole regions is
exact with the probe `commit_regions`, and the whole row is known where `pattern` was captured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError
from anchorwatch.metrics.committed_rows import CommittedRows, read_committed_rows
from anchorwatch.metrics.layer_slices import Traces, check_traces
from anchorwatch.metrics.registry import custom_metric
from anchorwatch.metrics.sink_rules import Rule, rulli
from anchorwatch.metrics.stats import ranks
from anchorwatch.metrics.stats.clusters import NEEDED, WORDS, draw_clusters, quantiles, tail_share
from anchorwatch.metrics.table import NUMBERS, Quantity, mean, split_always, tabulate

DIMS = ("step", "layer", "head")
THIRDS = ("early", "middle", "late")
SCORES = ("copy", "hit", "evidence_mass", "evidence_in_top")
"""Those between 0 and 1 that are larger the more a head retrieves."""
CONTRAST = "_minus_distractors"
DRAWS, LEVEL = 2000, 0.95


@custom_metric()
def retrieval_heads(
    traces: Traces,
    gold: str = "gold",
    distractors: Sequence[str] | None = None,
    *,
    success: Sequence[bool] | None = None,
    rule: Rule | None = None,
    ignore: Collection[int] = (),
    by: Sequence[str] = ("layer", "head"),
) -> pd.DataFrame:
    """How heads look at the region `gold` while the answer is committed; mean over its tokens.

    - `copy` (Wu et al.): tokens whose row looks most at a gold token of the same id, over the
      length of gold. Ungated, unless `success` says of each trace whether its answer was right: the
      others then have none.
    - `evidence_mass`: attention to gold; absent unless `commit_regions` or `pattern` was captured.
      `evidence_in_top`: the part of it on the row's kept keys, so that it is at least this; its
      null is what those keys hold, shared out evenly.
    - `lift`: evidence mass over gold's share of the keys the row may look at (null 1);
      `lift_without_sinks`: the same without the sinks (by `rule`) that are among the kept keys.
    - `hit`: rows whose greatest key is in gold.
    - `auroc`: the chance that a gold token gets more than another token of the prompt (null 0.5);
      absent unless `pattern` was captured.

    Their null is a row that looks at all its keys alike. With `distractors`, regions without the
    answer, each `..._minus_distractors` is gold's less their mean, each scaled to gold's length
    (null 0). `ignore` are ids whose commits do not count, such as the end token.
    """
    read = check_traces(traces)
    names = (gold, *_names(distractors))
    if len(set(names)) < len(names):
        raise SpecError(f"regions {', '.join(names)}: name each once, gold is no distractor")
    rule = rule or rulli()
    gates = _gates(success, len(read))
    parts = []
    for trace, gate in zip(read, gates, strict=True):
        rows = read_committed_rows(trace, names, rule, ignore)
        parts.append((trace, [*_scores(rows, gate), *_contrasts(rows, gate)]))
    about = {"metric": "retrieval_heads", "gold": gold, "distractors": list(names[1:])}
    gate_words = "ungated" if success is None else "copy gated by success"
    more = {"rule": str(rule), "gate": gate_words, "ignore": sorted(ignore)}
    return tabulate(parts, by, about=about | more)


@custom_metric()
def retrieval_stability(
    traces: Traces,
    gold: str = "gold",
    *,
    ignore: Collection[int] = (),
    by: Sequence[str] = (),
) -> pd.DataFrame:
    """Whether the same heads retrieve throughout: rank correlation of head scores between thirds.

    A commit is early, middle or late by the share of the answer written before it. Spearman over
    all heads of all layers; the null is 0, heads that change places at random. A third without
    commits, or heads that all score alike, have none.
    """
    parts = []
    for trace in check_traces(traces):
        rows = read_committed_rows(trace, (gold,), None, ignore)
        third = np.minimum((3 * trace.progress[rows.steps] + 1e-9).astype(int), 2)
        parts.append((trace, list(_correlations(rows, third))))
    about = {"metric": "retrieval_stability", "gold": gold, "ignore": sorted(ignore)}
    return tabulate(parts, split_always("thirds", by), about=about)


def _correlations(rows: CommittedRows, third: np.ndarray) -> Iterator[Quantity]:
    pairs = list(combinations(range(len(THIRDS)), 2))
    names = {"thirds": [f"{THIRDS[first]} ~ {THIRDS[second]}" for first, second in pairs]}
    values = _values(rows)
    # Mean score of every head in each third, then the rank correlation of thirds over heads.
    for name in SCORES:
        value = values[name][0]
        known = ~np.isnan(value)
        heads = []
        for part in range(len(THIRDS)):
            count = np.sum(known & (third == part), axis=-1)
            added = np.sum(value, axis=-1, where=known & (third == part))
            heads.append(np.where(count > 0, added / np.maximum(count, 1), np.nan).ravel())
        correlations = [ranks.spearman(heads[first], heads[second]) for first, second in pairs]
        yield mean(name, ("thirds",), np.array(correlations), np.zeros(()), names)


@custom_metric()
def retrieval_depth(
    traces: Traces,
    gold: str = "gold",
    distractors: Sequence[str] | None = None,
    *,
    least: float = 0.1,
    success: Sequence[bool] | None = None,
    ignore: Collection[int] = (),
) -> pd.DataFrame:
    """Where retrieval heads are, and how many, by the scores of `retrieval_heads` below 1.

    `depth` is the mean relative depth of layers (0 the first, 1 the last) weighted by score, of
    scores above zero; its null is 0.5. `share` is the share of heads that score at least `least`;
    its null is the share of heads of which uniform rows would. Prompts are averaged first, as
    Wu et al. do, and the interval is from resampling them; heads are never resampled.
    """
    if isinstance(least, bool) or not isinstance(least, int | float) or not least > 0:
        raise SpecError(f"least={least!r} is not a number above 0")
    by = ("prompt", "layer", "head")
    heads = retrieval_heads(traces, gold, distractors, success=success, ignore=ignore, by=by)
    wanted = [*SCORES, *(name + CONTRAST for name in SCORES)]
    rows: list[dict[str, Any]] = []
    for (model, score), part in heads.groupby(["model", "quantity"], sort=False):
        if score in wanted:
            for row in _depth_rows(part, least):
                rows.append({"model": model, "score": score} | row)
    table = pd.DataFrame(rows)[["model", "score", "quantity", *NUMBERS]]
    about = heads.attrs["about"] | {"metric": "retrieval_depth", "least": least}
    table.attrs = {"about": about, "traces": heads.attrs["traces"]}
    return table


def _depth_rows(part: pd.DataFrame, least: float) -> Iterator[dict[str, Any]]:
    """Depth and share from one score's [prompt, layer, head] values."""
    # 1. [prompt, layer, head] scores of prompts that have any.
    shape = tuple(part[name].nunique() for name in ("prompt", "layer", "head"))
    part = part.sort_values(["prompt", "layer", "head"])
    scores, nulls = (part[name].to_numpy(float).reshape(shape) for name in ("value", "null"))
    known = ~np.isnan(scores).all(axis=(1, 2))
    scores, nulls, n = scores[known], nulls[known], int(known.sum())
    # 2. The value from all prompts, the null of the share from uniform rows.
    whole = _summaries(scores, np.ones((1, n)), least)
    expected = _summaries(nulls, np.ones((1, n)), least)["share"]
    # 3. Prompts drawn again; heads never are.
    weights = draw_clusters(n, DRAWS, np.random.default_rng(0)) if n >= NEEDED else None
    drawn = {} if weights is None else _summaries(scores, weights, least)
    # 4. A row each.
    for name, null in (("depth", 0.5), ("share", float(expected[0]))):
        value, low, high = float(whole[name][0]), np.nan, np.nan
        if name in drawn:
            tail = float(tail_share(LEVEL, np.array(n)))
            low, high = quantiles(drawn[name], (tail, 1 - tail))
        null = np.nan if np.isnan(value) else null
        yield {
            "quantity": name,
            "value": value,
            "null": null,
            "lift": value / null if null else np.nan,
            "n": n,
            "missing": int(part["missing"].sum()),
            "low": float(low),
            "high": float(high),
            "interval": str(WORDS[min(n, NEEDED)]),
        }


def _summaries(scores: np.ndarray, weights: np.ndarray, least: float) -> dict[str, np.ndarray]:
    """[draw] depth and share of [prompt, layer, head] scores averaged under [draw, prompt]."""
    present = ~np.isnan(scores)
    count = np.tensordot(weights, present.astype(float), axes=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        average = np.tensordot(weights, np.where(present, scores, 0.0), axes=1) / count
        known = ~np.isnan(average)
        # Scores below zero are no evidence of depth.
        positive = np.where(known, np.maximum(average, 0), 0.0).sum(axis=2)  # [draw, layer]
        depth = (
            np.linspace(0, 1, positive.shape[1]) if positive.shape[1] > 1 else np.full(1, np.nan)
        )
        return {
            "depth": (positive @ depth) / positive.sum(axis=1),
            "share": np.sum(known & (average >= least), axis=(1, 2)) / known.sum(axis=(1, 2)),
        }


def _values(rows: CommittedRows) -> dict[str, np.ndarray]:
    """[R, layer, head, C] of every score there is for any region."""
    with np.errstate(invalid="ignore", divide="ignore"):
        # Attention to the region over the share of visible keys that it is.
        lift = rows.mass / np.where(rows.expected > 0, rows.expected, np.nan)[:, :, None]
    return {
        "copy": rows.copy,
        "evidence_mass": rows.mass,
        "evidence_in_top": rows.in_top,
        "lift": lift,
        "hit": rows.hit,
        "auroc": rows.auroc,
    }


def _scores(rows: CommittedRows, gate: bool) -> Iterator[Quantity]:
    """Gold's scores against uniform rows."""
    shape = rows.hit.shape[1:]
    nulls: Mapping[str, Any] = {
        "copy": rows.same[0][:, None],
        "evidence_in_top": rows.expected[0][:, None] * rows.kept,
        "lift": 1.0,
        "auroc": 0.5,
    }
    for name, value in _values(rows).items():
        null = np.broadcast_to(nulls.get(name, rows.expected[0][:, None]), shape)
        yield _by_step(rows, name, value[0], null, gate)
    bare = rows.without_sinks
    yield _by_step(rows, "lift_without_sinks", bare, np.ones(shape), gate)


def _contrasts(rows: CommittedRows, gate: bool) -> Iterator[Quantity]:
    """Gold's scores less the mean of the distractors', scaled to gold's length."""
    if len(rows.lengths) == 1:
        return
    shape = (len(rows.lengths) - 1, *rows.hit.shape[1:])
    with np.errstate(invalid="ignore", divide="ignore"):
        size = np.where(rows.expected[1:] > 0, rows.expected[0] / rows.expected[1:], np.nan)
    scales: Mapping[str, Any] = {
        "copy": (rows.lengths[0] / rows.lengths[1:])[:, None, None, None],
        "lift": 1.0,
        "auroc": 1.0,
    }
    for name, value in _values(rows).items():
        # A longer distractor collects more: scale it to the length of gold.
        scale = np.broadcast_to(scales.get(name, size[:, :, None]), shape)
        control = (value[1:] * scale).mean(axis=0)
        yield _by_step(rows, name + CONTRAST, value[0] - control, np.zeros(shape[1:]), gate)


def _by_step(
    rows: CommittedRows, name: str, value: np.ndarray, null: np.ndarray, gate: bool
) -> Quantity:
    """Sums over the commits of each step; a copy score is over the length of gold instead."""
    is_copy = name.startswith("copy")
    if is_copy and not gate:
        value = np.full(value.shape, np.nan)
    known = ~np.isnan(value)
    # The copy score is over the length of gold, as Wu et al. have it.
    weight = rows.lengths[0] / max(len(rows.steps), 1) if is_copy else 1.0
    both = known & ~np.isnan(null)
    return Quantity(
        name,
        DIMS,
        top=_sum_committed(rows, np.where(known, value, 0.0)),
        bottom=_sum_committed(rows, known * weight),
        null_top=_sum_committed(rows, np.where(both, null, 0.0)),
        null_bottom=_sum_committed(rows, both * weight),
        missing=_sum_committed(rows, ~known),
    )


def _sum_committed(rows: CommittedRows, values: np.ndarray) -> np.ndarray:
    """[step, layer, head] from [layer, head, C]."""
    sums = np.zeros((rows.num_steps, *values.shape[:2]))
    np.add.at(sums, rows.steps, np.moveaxis(values, -1, 0).astype(float))
    return sums


def _names(distractors: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(distractors, str):
        raise SpecError(f"distractors={distractors!r} is not a list: say [{distractors!r}]")
    return tuple(distractors or ())


def _gates(success: Sequence[bool] | None, count: int) -> list[bool]:
    if success is None:
        return [True] * count
    if len(success) != count:
        raise SpecError(
            f"success is about {len(success)} traces: give one bool for each of {count}"
        )
    return [bool(flag) for flag in success]
