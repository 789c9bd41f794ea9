"""Query, key and value vectors at sinks: angle against norm, value norms, massive activations.

A head's mean logit at key j is a product: |k_j| times the mean over queries of |q| cos(q, k_j). So
what a sink has over the other keys of its head splits into angle and norm without a rest, head by
head. Vectors of different heads are never averaged: they live in unrelated bases. A sink is
compared with the other keys of its own head and step, so that heads with large vectors do not
decide. Massive activations are those of the residual stream before the layer.

A run keeps geometry and norms at the eight keys that receive most, and their mean over all keys.
Both give the mean of the others without having them: (all keys - the sinks) / how many are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError
from anchorwatch.metrics.layer_slices import (
    Layers,
    LayerSlice,
    Traces,
    check_traces,
    iter_layers,
    require_field,
)
from anchorwatch.metrics.registry import Reading, custom_metric, metric, read_quantities
from anchorwatch.metrics.sink_rules import Rule, check_rule, rulli
from anchorwatch.metrics.table import (
    Cell,
    Quantity,
    append_quantities,
    arm_key,
    mean,
    model_names,
    odds_table,
    ratio,
    stack_traces,
    tabulate,
    total,
)
from anchorwatch.trace.provenance import origin
from anchorwatch.trace.trace import ABSENT

CELL = ("step", "head")


@dataclass(frozen=True, eq=False)
class Columns:
    """One field of one layer at the keys where it was kept."""

    values: np.ndarray
    """[step, head, place], NaN where there is none."""
    keys: np.ndarray | None
    """[step, head, place] the key at each place, -1 where there is none; None: place is key."""
    total: np.ndarray
    """[step, head] the sum over all keys that exist, kept or not."""
    count: np.ndarray
    """[step, head] how many exist."""

    @property
    def every(self) -> bool:
        """Whether every key was kept."""
        return self.keys is None


def read_columns(layer_slice: LayerSlice, name: str) -> Columns:
    """A field such as `value_norm` at every key where that was captured, else at the peaks."""
    trace, layer = layer_slice.trace, layer_slice.index
    if f"each_{name}" in trace.fields:
        return columns_of_every_key(require_field(trace, f"each_{name}")[:, layer].values)
    # Peaks only: the mean over all keys times their number gives the sum back.
    average = require_field(trace, name)[:, layer].values.astype(np.float64)
    count = np.broadcast_to(np.sum(trace.canvas[:-1] >= 0, axis=-1)[:, None], average.shape)
    return Columns(
        values=require_field(trace, f"peak_{name}")[:, layer].values,
        keys=require_field(trace, "peak_key")[:, layer].values,
        total=average * count,
        count=count,
    )


def columns_of_every_key(values: np.ndarray) -> Columns:
    """Columns of [step, head, key] values, NaN where a key does not exist."""
    # NaN keys do not exist yet (autoregressive) or were not measured.
    count = np.sum(~np.isnan(values), axis=-1)
    total = np.nansum(values, axis=-1, dtype=np.float64)
    return Columns(values, None, np.where(count > 0, total, np.nan), count)


class SinkColumns:
    """The sinks of a layer whose numbers were kept, one after another: [sink] arrays."""

    def __init__(self, layer: LayerSlice, rule: Rule, group: str, kept: Columns) -> None:
        labels = layer.labels(rule, group)
        at_places = labels
        # Labels are by key, values by place among the peaks: look up the key of each place.
        if kept.keys is not None:
            places = np.maximum(kept.keys, 0).astype(np.intp)
            at_places = np.take_along_axis(labels, places, axis=-1) & (kept.keys >= 0)
        self.places = np.nonzero(at_places & ~np.isnan(kept.values))
        """(step, head, place) of each."""
        self.shape = labels.shape[:2]
        self._cell = np.ravel_multi_index(self.places[:2], self.shape)
        self._sinks = labels.sum(axis=-1)
        self._measured = layer.is_measured(group)

    def at_sinks(self, kept: Columns) -> np.ndarray:
        """[sink] a field at the sinks."""
        return kept.values[self.places].astype(np.float64)

    def mean_of_others(self, kept: Columns) -> np.ndarray:
        """[sink] its mean over the keys of the same head that are no kept sinks; NaN if none is."""
        # (sum of all keys - sum of the kept sinks) / how many are left
        left = kept.count - self._add(np.ones(len(self._cell)))
        rest = kept.total - self._add(self.at_sinks(kept))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(left > 0, rest / left, np.nan)[self.places[:2]]

    def mean(
        self, name: str, value: np.ndarray, null: float | np.ndarray | None = None
    ) -> Quantity:
        """The mean over sinks of [sink] values, and of their null."""
        unit = np.ones(len(value))
        return self.ratio(name, value, unit, None if null is None else (unit * null, unit))

    def ratio(
        self,
        name: str,
        top: np.ndarray,
        bottom: np.ndarray,
        null: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> Quantity:
        """Sums over sinks of `top` and `bottom`, to be divided; the null likewise.

        Missing are sinks without both numbers, and cells in which sinks could not be told.
        """
        known = ~np.isnan(top + bottom)
        missing = self._sinks - self._add(known.astype(float)) + ~self._measured
        sums = self._add(top, known), self._add(bottom, known)
        if null is None:
            return Quantity(name, CELL, *sums, missing=missing)
        known = known & ~np.isnan(null[0] + null[1])
        nulls = self._add(null[0], known), self._add(null[1], known)
        return Quantity(name, CELL, *sums, *nulls, missing)

    def _add(self, values: np.ndarray, known: np.ndarray | None = None) -> np.ndarray:
        """[step, head] sums of [sink] values."""
        weights = values if known is None else np.where(known, values, 0.0)
        # bincount over flat (step, head) cells adds up sinks without a loop.
        size = self.shape[0] * self.shape[1]
        return np.bincount(self._cell, weights, minlength=size).reshape(self.shape)


ROTARY = {"after": "", "before": "_before_rotary"}


@custom_metric(default=True)
def qk_split(
    traces: Traces,
    rule: Rule | None = None,
    *,
    rotary: str = "after",
    head_size: int | None = None,
    group: str = "all",
    by: Sequence[str] = ("layer",),
) -> Reading:
    """A sink's logit advantage over the other keys of its head, split into angle and norm.

    `advantage` is its mean logit less that of the others, and `angle` + `norm` are exactly that:
    the Shapley split of n * c, where n is the mean norm product and c = logit / n the cosine as
    the logit feels it, each query weighted by its norm. A query's norm is common to all keys, so
    the norm is that of the key alone. `angle_share` is angle / (|angle| + |norm|), sums over
    columns first; `angle_of_advantage` may exceed 1 where the norm works against the sink.

    The `plain_` ones split the product of two means, mean cosine (every query alike) times mean
    norm product, as published; with `head_size` they are in logits, and `plain_residual` is the
    part of the advantage that this product leaves out.

    The null is 0: a key like the others has no advantage. Means are over all queries, those that
    may not look at the key among them. Where only peaks were kept, sinks beyond the eight are
    missing, and count among the others; `qk_geometry(keys=True)` keeps every key.
    """
    rule = rule or rulli()
    if rotary not in ROTARY:
        raise SpecError(f"rotary={rotary!r} is unknown: expected 'after' or 'before'")
    if head_size is not None and (not isinstance(head_size, int) or head_size < 1):
        raise SpecError(f"head_size={head_size!r} is not a whole number of at least 1")
    kernel = partial(
        split_cells, rule=rule, suffix=ROTARY[rotary], head_size=head_size, group=group
    )
    about = {"metric": "qk_split", "rule": str(rule), "rotary": rotary, "group": group}
    return read_quantities(traces, kernel, by, about=about | {"head_size": head_size})


def split_cells(
    layer: LayerSlice,
    rule: Rule,
    suffix: str = "",
    head_size: int | None = None,
    group: str = "all",
) -> list[Quantity]:
    # 1. Numbers of each sink, and their mean over the other keys of its head.
    logit, product, cosine = (
        read_columns(layer, f"{name}{suffix}") for name in ("logit", "norm_product", "cosine")
    )
    sinks = SinkColumns(layer, rule, group, logit)
    norms, other_norms = sinks.at_sinks(product), sinks.mean_of_others(product)
    logits, other_logits = sinks.at_sinks(logit), sinks.mean_of_others(logit)
    advantage = logits - other_logits
    # 2. The exact split: cosine as the logit feels it is logit / norm product.
    with np.errstate(invalid="ignore", divide="ignore"):
        angle, norm = shapley(logits / norms, norms, other_logits / other_norms, other_norms)
    # 3. The split of the product of two means, as published; in logits if the head size is known.
    scale = 1.0 if head_size is None else head_size**-0.5
    cosines = sinks.at_sinks(cosine), sinks.mean_of_others(cosine)
    plain_angle, plain_norm = (
        scale * part for part in shapley(cosines[0], norms, cosines[1], other_norms)
    )
    rest = advantage - plain_angle - plain_norm if head_size else np.full(len(norms), np.nan)
    # 4. Shares divide by the sum of sizes, so that parts of opposite sign do not cancel.
    size, plain_size = np.abs(angle) + np.abs(norm), np.abs(plain_angle) + np.abs(plain_norm)
    return [
        sinks.mean("advantage", advantage, 0.0),
        sinks.mean("angle", angle, 0.0),
        sinks.mean("norm", norm, 0.0),
        sinks.ratio("angle_share", angle, size),
        sinks.ratio("norm_share", norm, size),
        sinks.ratio("angle_of_advantage", angle, advantage),
        sinks.mean("plain_angle", plain_angle, 0.0),
        sinks.mean("plain_norm", plain_norm, 0.0),
        sinks.ratio("plain_angle_share", plain_angle, plain_size),
        sinks.mean("plain_residual", rest, 0.0),
    ]


def shapley(
    cosine: np.ndarray, norm: np.ndarray, other_cosine: np.ndarray, other_norm: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(angle, norm): the two-player Shapley split of norm * cosine - other_norm * other_cosine.

    >>> angle, norm = shapley(*(np.array(x) for x in (0.347, 4.73, 0.018, 7.06)))
    >>> float((angle / (angle + norm)).round(2))  # the norm works against this sink
    1.28
    """
    # Each part is its change times the mean of the other factor: both orders, averaged.
    angle = (cosine - other_cosine) * (other_norm + norm) / 2
    return angle, (norm - other_norm) * (other_cosine + cosine) / 2


@custom_metric()
def mixing(traces: Traces, *, by: Sequence[str] = ("layer",)) -> pd.DataFrame:
    """How alike the states of different positions are before each layer.

    `state_cosine` is the mean cosine of two positions, whose null is 0: unrelated states.
    `effective_rank` is how many directions the states spread over, whose null is the number of
    positions, each going its own way; the lift is the share of that which is left.
    """
    parts = []
    for trace in check_traces(traces):
        # Both fields are [step, layer].
        cosine = require_field(trace, "state_cosine").values
        rank = require_field(trace, "effective_rank").values
        positions = np.sum(trace.role[:-1] != ABSENT, axis=-1)[:, None]
        parts.append(
            (
                trace,
                [
                    mean("state_cosine", ("step", "layer"), cosine, np.zeros(())),
                    mean("effective_rank", ("step", "layer"), rank, positions),
                ],
            )
        )
    return tabulate(parts, by, about={"metric": "mixing"})


CARRIED = ("contribution_norm", "value_norm")


@metric(by=("layer",), default=True)
def value_norms(layer: LayerSlice, rule: Rule, *, group: str) -> list[Quantity]:
    """Norms of the values of sinks against those of the other keys of the same head and step.

    `sink` is their mean norm, and its null that of the others; `ratio` the one over the other
    (null 1); `difference` (null 0); `auroc` the chance that a sink's norm is the smaller one, ties
    half (null 0.5), which needs every key: `norms(keys=True)`. Else sinks beyond the eight peaks
    are missing and count among the others.
    """
    return norm_cells(layer, rule, read_columns(layer, "value_norm"), group)


@metric(by=("layer",), default=True)
def key_norms(layer: LayerSlice, rule: Rule, *, group: str) -> list[Quantity]:
    """The same of keys: a sink whose key is short is one by its angle."""
    return norm_cells(layer, rule, read_columns(layer, "key_norm"), group)


@metric(by=("layer",))
def residual_norms(layer: LayerSlice, rule: Rule, *, group: str) -> list[Quantity]:
    """The same of residual streams before the layer: of positions that are a head's sinks."""
    return norm_cells(layer, rule, _positions(layer, "residual_norm"), group)


def norm_cells(layer: LayerSlice, rule: Rule, kept: Columns, group: str = "all") -> list[Quantity]:
    """Norms of the sinks against those of the other keys of their head."""
    # Sinks whose norm was kept, each beside the mean of the other keys of its head and step.
    sinks = SinkColumns(layer, rule, group, kept)
    norms, others = sinks.at_sinks(kept), sinks.mean_of_others(kept)
    unit = np.ones(len(norms))
    return [
        sinks.mean("sink", norms, others),
        sinks.ratio("ratio", norms, others, (unit, unit)),
        sinks.mean("difference", norms - others, 0.0),
        _smaller(layer.labels(rule, group), kept, layer.is_measured(group)),
    ]


def _positions(layer: LayerSlice, name: str) -> Columns:
    """A field of positions, the same for every head."""
    values = require_field(layer.trace, name)[:, layer.index].values
    return columns_of_every_key(np.broadcast_to(values[:, None], layer.shares().shape))


def _smaller(labels: np.ndarray, kept: Columns, measured: np.ndarray) -> Quantity:
    """[step, head] AUROC of the negative norm, of heads that have sinks and other keys."""
    any_sink = labels.any(axis=-1)
    chance = np.full(any_sink.shape, np.nan)
    # An AUROC needs every key, not just the peaks.
    if kept.every and any_sink.any():
        chance[any_sink] = _smaller_chance(kept.values[any_sink], labels[any_sink])
    known = ~np.isnan(chance)
    missing = (any_sink & ~known) | ~measured
    sums = np.where(known, chance, 0.0), known.astype(float)
    return Quantity("auroc", CELL, *sums, sums[1] / 2, sums[1], missing.astype(float))


def _smaller_chance(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """[row] the chance that a labelled value of [row, key] is smaller than another, ties half.

    Few keys are labelled, so that finding those in the sorted row is quicker than ranking all.
    """
    ordered = np.sort(values, axis=-1)  # NaN last
    counts = np.sum(~np.isnan(values), axis=-1)
    chances = np.full(len(values), np.nan)
    for row, count in enumerate(counts.tolist()):
        mine = values[row, labels[row] & ~np.isnan(values[row])]
        line, size = ordered[row, :count], len(mine)
        if 0 < size < count:
            # Twice the rank with ties in the middle: keys below plus keys below or equal.
            not_above = np.searchsorted(line, mine, "left") + np.searchsorted(line, mine, "right")
            twice_won = 2 * count * size - not_above.sum() - size**2  # less those among themselves
            chances[row] = twice_won / (2 * size * (count - size))
    return chances


@custom_metric()
def value_norm_points(
    traces: Traces,
    rule: Rule | None = None,
    *,
    count: int = 10_000,
    seed: int = 0,
    group: str = "all",
) -> pd.DataFrame:
    """Sampled tokens with the norm of their value, mean over heads: `count` sinks, `count` others.

    A token is one (step, layer, position); it is a sink where the rule says so of what it receives
    on average over heads. One row each, of every model; if there are fewer, all of them.
    """
    rule = rule or rulli()
    if not isinstance(count, int) or count < 1:
        raise SpecError(f"count={count!r} is not a whole number of at least 1")
    if not isinstance(seed, int) or seed < 0:
        raise SpecError(f"seed={seed!r} is not a whole number of at least 0")
    # 1. Each token gets a random lot, layer by layer, so that no layer must be kept.
    generator = np.random.default_rng(seed)
    read = check_traces(traces)
    models = model_names(read)
    sampled: dict[tuple[str, str], list[pd.DataFrame]] = {}
    # 2. Of each model and kind, the tokens with the smallest lots so far.
    for trace in read:
        require_field(trace, "each_value_norm")
        model = models[arm_key(trace)]
        for layer in iter_layers(trace):
            for kind, points in _points(layer, rule, group, generator):
                both = pd.concat([*sampled.get((model, kind), []), points])
                sampled[model, kind] = [both.nsmallest(count, "lot")]  # lots decide, not the order
    # 3. One table, in the order of model and kind.
    names = ["model", "kind", "trace", "step", "layer", "position", "received", "value_norm"]
    frames = [frame.assign(model=m, kind=k) for (m, k), (frame,) in sorted(sampled.items())]
    table = pd.concat(frames, ignore_index=True)[names] if frames else pd.DataFrame(columns=names)
    about = {"metric": "value_norm_points", "rule": str(rule), "count": count, "seed": seed}
    origins = [origin(trace) for trace in read]
    table.attrs = {"about": about | {"group": group}, "traces": origins}
    return table


def _points(
    layer: LayerSlice, rule: Rule, group: str, generator: np.random.Generator
) -> Iterator[tuple[str, pd.DataFrame]]:
    """The tokens of a layer by kind, a lot drawn for each; a kind that it lacks is left out."""
    shares = layer.shares(group).mean(axis=1)  # [step, key]
    norms = layer.trace["each_value_norm"][:, layer.index].values.mean(axis=1)
    labels = check_rule(rule).labels(shares, layer.visible_share(group)[:, 0])
    lots = generator.random(shares.shape)
    known = ~np.isnan(shares) & ~np.isnan(norms)
    for kind, chosen in (("sink", known & labels), ("other", known & ~labels)):
        step, position = np.nonzero(chosen)
        points = {
            "trace": layer.trace.digest()[:12],
            "step": step,
            "layer": layer.index,
            "position": position,
            "received": shares[chosen],
            "value_norm": norms[chosen],
            "lot": lots[chosen],
        }
        if len(step):
            yield kind, pd.DataFrame(points)


@metric(by=("layer",))
def contributions(
    layer: LayerSlice, rule: Rule, *, of: str = "contribution_norm", group: str
) -> list[Quantity]:
    """What sinks bring against what they take: is attention to them no operation?

    A key contributes the attention it receives times the norm of its value, carried through the
    output projection (or not, with of="value_norm"). `contribution_share` is the sinks' share of
    all contributions; its null is their share of the attention in the same heads. `attention_share`
    is that share, against what uniform attention gives the same keys.
    `no_op_share` is the attention that moves nothing: what sinks receive, less what would have
    brought as much at the other keys; null 0. Norms add up here as if no two cancelled.
    """
    if of not in CARRIED:
        raise SpecError(f"of={of!r} is unknown: expected {' or '.join(map(repr, CARRIED))}")
    shares, labels = layer.shares(group), layer.labels(rule, group)
    # 1. What each key brings: attention received times the norm of its value.
    norms = require_field(layer.trace, f"each_{of}")[:, layer.index].values
    known = layer.is_measured(group) & ~np.isnan(norms[..., 0])
    brought = np.nan_to_num(shares * norms)
    # 2. Sums over all keys and over the sinks, of what they bring and of what they take.
    everyone = np.where(known, np.sum(brought, axis=-1, dtype=np.float64), 0.0)
    mine = np.where(known, np.sum(brought, axis=-1, where=labels, dtype=np.float64), 0.0)
    all_taken = np.where(known, np.nansum(shares, axis=-1, dtype=np.float64), np.nan)
    taken = np.where(known, np.sum(shares, axis=-1, where=labels, dtype=np.float64), np.nan)
    # 3. Attention that would have brought as much elsewhere is not wasted; the rest is.
    with np.errstate(invalid="ignore", divide="ignore"):
        share = taken / all_taken
        rate = (everyone - mine) / (all_taken - taken)  # what attention elsewhere brings
        wasted = (taken - np.where(mine > 0, mine / rate, 0.0)) / all_taken
    # 4. What uniform attention gives the same keys.
    null = layer.null(group)
    expected = np.sum(np.broadcast_to(null, shares.shape), axis=-1, where=labels)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = expected / np.nansum(null, axis=-1)  # of what a sink token leaves, as `share`
    weighted, none = np.where(known, share, 0.0) * everyone, np.zeros(())
    return [
        ratio("contribution_share", CELL, mine, everyone, (weighted, everyone)),
        mean("attention_share", CELL, share, expected),
        mean("no_op_share", CELL, np.where(np.isfinite(wasted), wasted, np.nan), none),
    ]


@custom_metric()
def massive_activations(
    traces: Traces,
    rule: Rule | None = None,
    *,
    least: float = 100.0,
    times: float = 1000.0,
    group: str = "all",
    by: Sequence[str] = ("layer",),
) -> Reading:
    """Massive residual activations (above `least`, and `times` the median), and whether they sink.

    `count` is how many there are among the few that the probe keeps; where all of those are massive
    (`capped`) there may be more. `largest` is the largest activation, `over_median` that over the
    median. `odds_ratio` (null 1) and its logarithm cross a position being massive with it being a
    sink, over heads, steps and prompts; a half is added where a count is 0. `sink_if_massive` is
    the chance of a massive position to be a sink; its null is that of any position.
    """
    rule = rule or rulli()
    kernel = partial(massive_cells, rule=rule, least=least, times=times, group=group)
    about = {"metric": "massive_activations", "rule": str(rule), "least": least, "times": times}

    def table(layers: Layers) -> pd.DataFrame:
        parts = stack_traces(layers)
        chances = tabulate(parts, by, _conditional_chance, about | {"group": group})
        return append_quantities(chances, odds_table(parts, by, _cross_tabulate))

    return Reading(check_traces(traces), kernel, table)


CROSSED = ("both", "massive", "sinks", "keys")


def massive_cells(
    layer_slice: LayerSlice,
    rule: Rule,
    least: float = 100.0,
    times: float = 1000.0,
    group: str = "all",
) -> list[Quantity]:
    trace, layer = layer_slice.trace, layer_slice.index
    # 1. The few largest activations of each step, [step, outlier], and the median of all.
    size = np.abs(require_field(trace, "massive_value")[:, layer].values)
    median = require_field(trace, "massive_median")[:, layer].values
    position = require_field(trace, "massive_position")[:, layer].values
    labels, known = (
        layer_slice.labels(rule, group),
        layer_slice.is_measured(group) & ~np.isnan(median)[:, None],
    )
    # 2. Massive: above a fixed size, and so many times the median.
    with np.errstate(invalid="ignore", divide="ignore"):
        massive = (size > least) & (size > times * median[:, None])
        over = size[:, 0] / median
    # 3. Positions that hold one, crossed with the keys that are sinks of a head.
    is_massive = np.zeros((len(size), labels.shape[-1]), dtype=bool)
    step, outlier = np.nonzero(massive)
    is_massive[step, position[step, outlier]] = True
    exists = ~np.isnan(layer_slice.shares(group))
    counts = {
        "both": labels & is_massive[:, None],
        "massive": exists & is_massive[:, None],
        "sinks": labels,
        "keys": exists,
    }
    # 4. Numbers of the step are the same for every head.
    shape = known.shape
    empty = np.where(np.isnan(median), np.nan, 0.0)
    seen = {
        "count": massive.sum(axis=-1) + empty,
        "capped": massive.all(axis=-1) + empty,
        "largest": size[:, 0],
        "over_median": np.where(np.isfinite(over), over, np.nan),
    }
    crossed = [
        replace(total(name, CELL, marked.sum(axis=-1) * known), missing=(~known).astype(float))
        for name, marked in counts.items()
    ]
    return crossed + [
        mean(name, CELL, np.broadcast_to(value[:, None], shape)) for name, value in seen.items()
    ]


def _cross_tabulate(cells: dict[str, Cell]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Massive or not x sink or not; independent, as the null has it, the odds ratio is 1."""
    both, massive, sinks, keys = (cells[name].value for name in CROSSED)
    # both, massive only, sink only, neither
    counts = np.stack([both, massive - both, sinks - both, keys - massive - sinks + both])
    return counts, np.ones_like(counts), cells["both"].missing


def _conditional_chance(cells: dict[str, Cell]) -> dict[str, Cell]:
    """The chance of a massive position to be a sink, instead of the counts it comes from."""
    missing = cells["both"].missing
    both, massive, sinks, keys = (cells.pop(name).value for name in CROSSED)
    with np.errstate(invalid="ignore", divide="ignore"):
        chance, any_key = both / massive, np.where(massive > 0, sinks / keys, np.nan)
    return cells | {"sink_if_massive": Cell(chance, any_key, missing)}
