"""How long keys stay sinks, and whether they become sinks when they are committed.

A stay is a stretch of steps in a row at which a key is a sink of a head. One that reaches the last
measured step is censored: how long it would have lasted was not seen. The null shuffles the steps
of every head and key; the stays to be expected then are a closed form in how many steps it is a
sink.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import numpy as np
import pandas as pd
import scipy  # its submodules load when they are first used

from anchorwatch.errors import SpecError
from anchorwatch.metrics.layer_slices import Layers, LayerSlice, Traces, check_traces
from anchorwatch.metrics.registry import Reading, custom_metric, read_quantities
from anchorwatch.metrics.sink_rules import Rule, rulli
from anchorwatch.metrics.stats.ranks import kaplan_meier
from anchorwatch.metrics.table import (
    CHANCE,
    TRACE_DIMS,
    Cell,
    Parts,
    Quantity,
    add_columns,
    append_quantities,
    check_dimensions,
    collapse,
    compare_with_chance,
    layer_quantities,
    mean,
    odds_table,
    ratio,
    select_chances,
    split_always,
    stack_layers,
    stack_traces,
    total,
)

JUST = "share_just_committed"
ROUNDING = 1e-9
"""Expected counts below this are zero: they are sums and differences of fractions."""
COUNTS = ("ended", "censored", "shuffled_ended", "shuffled_censored")


@custom_metric(default=True)
def survival(
    traces: Traces,
    rule: Rule | None = None,
    *,
    group: str = "all",
    by: Sequence[str] = (),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> Reading:
    """Kaplan-Meier share of stays that last longer than `age` steps, censored stays allowed for.

    Stays of all keys and heads of a cell are pooled. A value is absent, and missing, once no stay
    is left whose end could be seen. Dims: age (always), layer, head.
    """
    rule = rule or rulli()
    kernel = partial(stay_cells, rule=rule, group=group)
    return read_quantities(
        traces,
        kernel,
        split_always("age", by),
        finish=_curves,
        about={"metric": "survival", "rule": str(rule), "group": group},
        baselines={"frozen": frozen, "untrained": untrained},
    )


@custom_metric(default=True)
def lifetime(
    traces: Traces,
    rule: Rule | None = None,
    *,
    group: str = "all",
    by: Sequence[str] = ("layer",),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> Reading:
    """Lifetimes in numbers: median and mean in steps, and which stays they come from.

    `mean_lifetime` is the area under the survival curve as far as it was seen. `flicker` is the
    share of stays that last one step, those cut off after one left out; `censored` the share that
    was still there at the last step, `from_first_step` the share that was there at the first
    already, so that its beginning was not seen (it has no null). Dims: layer, head.
    """
    rule = rule or rulli()
    kernel = partial(stay_cells, rule=rule, group=group)
    inner = tuple(dim for dim in check_dimensions(by) if dim not in TRACE_DIMS)
    if "age" in inner:
        raise SpecError("lifetime has no age: it can be split by layer and head; survival has ages")

    return read_quantities(
        traces,
        kernel,
        by,
        combine=lambda trace, layers: _summary(stack_layers(layers), inner),
        about={"metric": "lifetime", "rule": str(rule), "group": group},
        baselines={"frozen": frozen, "untrained": untrained},
    )


def stay_cells(layer: LayerSlice, rule: Rule, group: str = "all") -> list[Quantity]:
    """Counts by head and length: of stays that ended, were censored, are to be expected of shuffled
    steps, and were there at the first step. Together they make `survival` and `lifetime`.
    """
    labels = layer.labels(rule, group)
    steps, heads, _ = labels.shape
    measured = np.asarray(layer.is_measured(group).all(axis=1))
    # 1. Stays by length; one at whose next step nothing was measured is censored.
    head, first, last = stays(labels)
    after, before = np.append(measured, False), np.insert(measured, 0, False)
    lost, old = ~after[last + 1], ~before[first]
    cell, size = head * steps + last - first, heads * steps
    counts = [np.bincount(cell[part], minlength=size) for part in (~lost, lost)]
    # 2. What shuffled steps would give, by how long each key exists.
    exists = ~np.isnan(layer.null(group)[:, 0]) & measured[:, None]  # [step, key]
    counts = [count.reshape(heads, steps) for count in counts] + _expected_if_shuffled(
        labels, exists
    )
    # 3. Counts by head and age, to be added up and turned into curves later.
    ages = {"age": list(range(1, steps + 1))}
    totals = [
        total(name, ("head", "age"), count, ages)
        for name, count in zip(COUNTS, counts, strict=True)
    ]
    # [head, age] although it is of no age, so that all can be added up alike
    began = np.zeros((heads, steps))
    began[:, 0] = np.bincount(head[old], minlength=heads)
    return [*totals, total("from_first_step", ("head", "age"), began, ages)]


def stays(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(head, first step, last step) of every stay of [step, head, key] labels."""
    steps, heads, keys = labels.shape
    begins, ends = labels.copy(), labels.copy()
    # An edge is a step at which a label comes or goes.
    begins[1:] &= ~labels[:-1]
    ends[:-1] &= ~labels[1:]
    ordered = []
    for edge in (begins, ends):
        step, series = np.divmod(np.flatnonzero(edge), heads * keys)
        ordered.append(np.sort(series * steps + step))  # one key after another, so edges pair up
    series, first = np.divmod(ordered[0], steps)
    return series // keys, first, ordered[1] % steps


def _expected_if_shuffled(labels: np.ndarray, exists: np.ndarray) -> list[np.ndarray]:
    """[head, age] stays expected to end and to be censored if the steps were shuffled."""
    steps, heads, _ = labels.shape
    times = labels.sum(axis=0, dtype=np.int32)  # [head, key] steps as a sink
    kinds, kind = np.unique(exists, axis=1, return_inverse=True)
    sums = [np.zeros((heads, steps)), np.zeros((heads, steps))]
    # Keys that exist at the same steps share their expectation.
    for index, pattern in enumerate(kinds.T):
        chosen = times[:, kind.ravel() == index]
        if not chosen.any():
            continue
        count = int(pattern.sum())
        head = np.repeat(np.arange(heads), chosen.shape[1])
        # How many keys of each head are a sink at 0, 1, 2, ... of those steps.
        series = np.bincount(head * (count + 1) + chosen.ravel(), minlength=heads * (count + 1))
        for added, expected in zip(sums, expected_stays(_stretches(pattern)), strict=True):
            added[:, :count] += series.reshape(heads, -1) @ expected
    return sums


@cache
def expected_stays(stretches: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """[times, length - 1] expected stays that end and that are censored, of shuffled steps.

    `times` of the steps, which form stretches of these lengths, are a sink's. A stay needs itself,
    and before and behind it another step, unless a stretch begins or ends there.
    """
    steps = sum(stretches)
    times, length = np.arange(steps + 1)[:, None], np.arange(1, steps + 1)

    def chance(others: int) -> np.ndarray:
        """That `length` given steps are a sink's and so many others are not."""
        free, left = steps - length - others, times - length
        log = _log_choose(free, left) - _log_choose(np.array(steps), times)
        return np.where((left >= 0) & (left <= free), np.exp(log), 0.0)

    # Chances of a stay that fills its stretch, touches one end of it, or none.
    whole, edge, inner = chance(0), chance(1), chance(2)
    ended, censored = np.zeros_like(whole), np.zeros_like(whole)
    for stretch in stretches:
        shorter = length < stretch
        ended += shorter * (edge + np.maximum(stretch - length - 1, 0) * inner)
        censored += shorter * edge + (length == stretch) * whole
    return ended, censored


def _log_choose(n: np.ndarray, k: np.ndarray) -> np.ndarray:
    n, k = np.maximum(n, 0), np.clip(k, 0, np.maximum(n, 0))  # others are set to zero afterwards
    gammaln = scipy.special.gammaln
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)


def _stretches(pattern: np.ndarray) -> tuple[int, ...]:
    """Lengths of the stretches of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], pattern.astype(np.int8), [0]])))
    return tuple((edges[1::2] - edges[::2]).tolist())


def _curves(cells: dict[str, Cell]) -> dict[str, Cell]:
    """Of cells [age, ...]."""
    # Kaplan-Meier goes along the last axis, tables have the age first.
    ended, censored, null_ended, null_censored = (
        np.moveaxis(cells[name].value, 0, -1) for name in COUNTS
    )
    value = np.moveaxis(kaplan_meier(ended, censored).value, -1, 0)
    null = np.moveaxis(_expected_survival(null_ended, null_censored), -1, 0)
    null = np.where(np.isnan(value), np.nan, null)
    return {"survival": Cell(value, null, np.isnan(value).astype(float))}


def _expected_survival(ended: np.ndarray, censored: np.ndarray) -> np.ndarray:
    """[..., age] as `kaplan_meier`, which counts whole stays, from expected numbers of them."""
    # Stays still there at each age: those that end or are last seen at it or later.
    left = np.cumsum((ended + censored)[..., ::-1], axis=-1)[..., ::-1]
    known = left > ROUNDING
    kept = 1 - np.divide(ended, left, out=np.zeros(left.shape), where=known)
    share = np.cumprod(np.where(kept < ROUNDING, 0.0, kept), axis=-1)
    return np.where(known | (share == 0), share, np.nan)


def _summary(quantities: list[Quantity], inner: tuple[str, ...]) -> list[Quantity]:
    """Quantities of the dims that a table is split by: a median does not add up."""
    by = [*inner, "age"]
    ended, censored, null_ended, null_censored, old = (collapse(q, by).value for q in quantities)
    # Curves of each cell, and what is read off them.
    curve, null = kaplan_meier(ended, censored), _expected_survival(null_ended, null_censored)
    half = null <= 0.5
    null_median = np.where(half.any(axis=-1), half.argmax(axis=-1) + 1.0, np.nan)
    every, null_every = (ended + censored).sum(axis=-1), (null_ended + null_censored).sum(axis=-1)
    known, null_known = every - censored[..., 0], null_every - null_censored[..., 0]
    lost, null_lost = censored.sum(axis=-1), null_censored.sum(axis=-1)
    return [
        mean("median_lifetime", inner, curve.median, null_median),
        mean("mean_lifetime", inner, _area(curve.value), _area(null)),
        ratio("flicker", inner, ended[..., 0], known, (null_ended[..., 0], null_known)),
        ratio("censored", inner, lost, every, (null_lost, null_every)),
        ratio("from_first_step", inner, old.sum(axis=-1), every),
    ]


def _area(share: np.ndarray) -> np.ndarray:
    """Mean lifetime: every stay lasts a step, and `share` of them longer than 1, 2, ... steps.

    The last share that was seen is of stays whose further life was not.
    """
    seen = np.sum(~np.isnan(share), axis=-1, keepdims=True)
    last = np.take_along_axis(share, np.maximum(seen - 1, 0), axis=-1)[..., 0]
    return 1 + np.nansum(share, axis=-1) - last


@custom_metric(default=True)
def onsets(
    traces: Traces,
    rule: Rule | None = None,
    *,
    group: str = "all",
    by: Sequence[str] = ("layer",),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> Reading:
    """Whether keys become sinks when they have just been committed.

    An onset is a key that is a sink at a step and was none at the step before; just committed is
    what that step before committed. `share_just_committed` is of onsets; the column `chance` is the
    share of all keys that were just committed. `odds_ratio` and `log_odds_ratio` are of the table
    onset or not x just committed or not, over keys that were no sinks before, the counts of all
    prompts added up; where neither they nor chance hold one joint event they are absent. The null
    is the table to be expected if the commits were dealt out to other steps. Dims: step (or
    progress), layer, head.
    """
    rule = rule or rulli()
    kernel = partial(onset_cells, rule=rule, group=group)
    others = {"frozen": frozen, "untrained": untrained}
    about = {"metric": "onsets", "rule": str(rule), "group": group}

    def odds(parts: Parts) -> pd.DataFrame:
        return odds_table(
            select_chances(parts, chances=False), check_dimensions(by), _cross_tabulate
        )

    def table(layers: Layers) -> pd.DataFrame:
        parts = stack_traces(layers)
        given = {
            name: None if other is None else layer_quantities(other, kernel)
            for name, other in others.items()
        }
        shares = compare_with_chance(parts, given, by, finish=_shares, about=about)
        columns = {name: None if other is None else odds(other) for name, other in given.items()}
        return append_quantities(shares, add_columns(odds(parts), columns))

    return Reading(check_traces(traces), kernel, table)


def onset_cells(layer: LayerSlice, rule: Rule, group: str = "all") -> list[Quantity]:
    # 1. Steps that have a measured step before them, and keys that exist.
    labels, when = layer.labels(rule, group), layer.trace.committed_at
    steps, heads, keys = labels.shape
    measured = np.asarray(layer.is_measured(group).all(axis=1))
    pair = np.insert(measured[1:] & measured[:-1], 0, False)  # [step] there is a step before it
    exists = ~np.isnan(layer.null(group)[:, 0])  # [step, key]
    # 2. Keys committed by the step before; and, with the commits dealt to other steps, how likely.
    fresh = np.zeros((steps, keys), dtype=bool)  # committed by the step before
    known = np.flatnonzero((when >= 0) & (when + 1 < steps))
    fresh[when[known] + 1, known] = True
    fresh &= pair[:, None]
    ever = fresh.any(axis=0) / max(pair.sum(), 1)  # [key] chance that a random step committed it
    weights = {"": np.ones((1, keys)), "_fresh": fresh, "_shuffled": ever[None]}
    # 3. Sinks that are new, and sinks that were there already and so cannot begin.
    step, head, key = np.nonzero(labels)
    new = pair[step] & ~labels[step - 1, head, key]
    old = np.append(pair, False)[step + 1]  # a sink already, where the next step might begin one
    # 4. Onsets and keys at risk: all, just committed, and as if commits were shuffled.
    counts, shape = {}, (steps, heads)
    for name, weight in weights.items():
        weight = np.broadcast_to(weight, (steps, keys))
        counts[f"onset{name}"] = _sum_at(shape, step[new], head[new], weight[step[new], key[new]])
        after = step[old] + 1
        able = np.sum(weight * exists, axis=1) * pair
        taken = _sum_at(shape, after, head[old], weight[after, key[old]])
        counts[f"risk{name}"] = able[:, None] - taken
    # 5. The share of all keys that were just committed is what chance gives.
    share = fresh.sum(axis=-1) / np.maximum(exists.sum(axis=-1), 1)  # [step]
    lost = np.broadcast_to(~measured[:, None], shape).astype(float)
    dims = ("step", "head")
    return [
        *(total(name, dims, count) for name, count in counts.items()),
        total("lost", dims, lost),
        ratio(f"{CHANCE}{JUST}", dims, counts["onset"] * share[:, None], counts["onset"]),
    ]


def _sum_at(
    shape: tuple[int, int], step: np.ndarray, head: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    steps, heads = shape
    return np.bincount(step * heads + head, weight, steps * heads).reshape(shape)


def _shares(cells: dict[str, Cell]) -> dict[str, Cell]:
    onset, missing = cells["onset"].value, cells["lost"].value
    share, null = (
        np.divide(cells[f"onset_{kind}"].value, onset, out=np.full(onset.shape, np.nan),
                  where=onset > 0)
        for kind in ("fresh", "shuffled")
    )  # fmt: skip
    return {JUST: Cell(share, null, missing)}


def _cross_tabulate(cells: dict[str, Cell]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Onset or not x just committed or not; the same with the commits dealt to other steps."""
    onset, risk, tables = cells["onset"].value, cells["risk"].value, []
    for kind in ("fresh", "shuffled"):
        # onset and fresh, onset only, fresh only, neither
        hit, able = cells[f"onset_{kind}"].value, cells[f"risk_{kind}"].value
        tables.append(np.stack([hit, onset - hit, able - hit, risk - onset - able + hit]))
    return tables[0], tables[1], cells["lost"].value
