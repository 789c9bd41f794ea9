"""Norms of what sinks hold: attention that brings little is nearly no operation at all.

A sink is compared with the other keys of its own head and step, so that layers and heads with large
vectors do not decide. Massive activations are those of the residual stream before the layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError
from anchorwatch.metrics.cells import Cell, Quantity, mean, ratio, total
from anchorwatch.metrics.columns import CELL, Columns, SinkColumns, columns, every_key
from anchorwatch.metrics.odds import odds_table
from anchorwatch.metrics.reading import LayerSlice, Traces, check_traces, require_field, slabs
from anchorwatch.metrics.sink_rules import Rule, check_rule, rulli
from anchorwatch.metrics.tables import append_quantities, arm, model_names, over_slabs, tabulate
from anchorwatch.trace.provenance import origin

CARRIED = ("contribution_norm", "value_norm")


def value_norms(
    traces: Traces, rule: Rule | None = None, *, group: str = "all", by: Sequence[str] = ("layer",)
) -> pd.DataFrame:
    """Norms of the values of sinks against those of the other keys of the same head and step.

    `sink` is their mean norm, and its null that of the others; `ratio` the one over the other
    (null 1); `difference` (null 0); `auroc` the chance that a sink's norm is the smaller one, ties
    half (null 0.5), which needs every key: `norms(keys=True)`. Else sinks beyond the eight peaks
    are missing and count among the others.
    """
    return _norms(traces, rule, "value_norm", group, by)


def key_norms(
    traces: Traces, rule: Rule | None = None, *, group: str = "all", by: Sequence[str] = ("layer",)
) -> pd.DataFrame:
    """The same of keys: a sink whose key is short is one by its angle."""
    return _norms(traces, rule, "key_norm", group, by)


def residual_norms(
    traces: Traces, rule: Rule | None = None, *, group: str = "all", by: Sequence[str] = ("layer",)
) -> pd.DataFrame:
    """The same of residual streams before the layer: of positions that are a head's sinks."""
    return _norms(traces, rule, "residual_norm", group, by)


def _norms(
    traces: Traces, rule: Rule | None, name: str, group: str, by: Sequence[str]
) -> pd.DataFrame:
    rule = rule or rulli()
    parts = over_slabs(traces, partial(norm_cells, rule=rule, name=name, group=group))
    return tabulate(parts, by, about={"metric": f"{name}s", "rule": str(rule), "group": group})


def norm_cells(
    slab: LayerSlice, rule: Rule, name: str = "value_norm", group: str = "all"
) -> list[Quantity]:
    kept = _positions(slab, name) if name == "residual_norm" else columns(slab, name)
    sinks = SinkColumns(slab, rule, group, kept)
    norms, others = sinks.of(kept), sinks.others(kept)
    unit = np.ones(len(norms))
    return [
        sinks.mean("sink", norms, others),
        sinks.ratio("ratio", norms, others, (unit, unit)),
        sinks.mean("difference", norms - others, 0.0),
        _smaller(slab.labels(rule, group), kept, slab.measured(group)),
    ]


def _positions(slab: LayerSlice, name: str) -> Columns:
    """A field of positions, the same for every head."""
    values = require_field(slab.trace, name)[:, slab.layer].values
    return every_key(np.broadcast_to(values[:, None], slab.shares().shape))


def _smaller(labels: np.ndarray, kept: Columns, measured: np.ndarray) -> Quantity:
    """[step, head] AUROC of the negative norm, of heads that have sinks and other keys."""
    any_sink = labels.any(axis=-1)
    found = np.full(any_sink.shape, np.nan)
    if kept.every and any_sink.any():
        found[any_sink] = _smaller_chance(kept.values[any_sink], labels[any_sink])
    there = ~np.isnan(found)
    missing = (any_sink & ~there) | ~measured
    sums = np.where(there, found, 0.0), there.astype(float)
    return Quantity("auroc", CELL, *sums, sums[1] / 2, sums[1], missing.astype(float))


def _smaller_chance(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """[row] the chance that a labelled value of [row, key] is smaller than another, ties half.

    Few keys are labelled, so that finding those in the sorted row is quicker than ranking all.
    """
    ordered = np.sort(values, axis=-1)  # NaN last
    counts = np.sum(~np.isnan(values), axis=-1)
    found = np.full(len(values), np.nan)
    for row, count in enumerate(counts.tolist()):
        mine = values[row, labels[row] & ~np.isnan(values[row])]
        line, size = ordered[row, :count], len(mine)
        if 0 < size < count:
            not_above = np.searchsorted(line, mine, "left") + np.searchsorted(line, mine, "right")
            twice_won = 2 * count * size - not_above.sum() - size**2  # less those among themselves
            found[row] = twice_won / (2 * size * (count - size))
    return found


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
    generator = np.random.default_rng(seed)
    read = check_traces(traces)
    models = model_names(read)
    found: dict[tuple[str, str], list[pd.DataFrame]] = {}
    for trace in read:
        require_field(trace, "each_value_norm")
        model = models[arm(trace)]
        for slab in slabs(trace):
            for kind, points in _points(slab, rule, group, generator):
                both = pd.concat([*found.get((model, kind), []), points])
                found[model, kind] = [both.nsmallest(count, "lot")]  # lots decide, not the order
    names = ["model", "kind", "trace", "step", "layer", "position", "received", "value_norm"]
    frames = [frame.assign(model=m, kind=k) for (m, k), (frame,) in sorted(found.items())]
    table = pd.concat(frames, ignore_index=True)[names] if frames else pd.DataFrame(columns=names)
    about = {"metric": "value_norm_points", "rule": str(rule), "count": count, "seed": seed}
    origins = [origin(trace) for trace in read]
    table.attrs = {"about": about | {"group": group}, "traces": origins}
    return table


def _points(
    slab: LayerSlice, rule: Rule, group: str, generator: np.random.Generator
) -> Iterator[tuple[str, pd.DataFrame]]:
    """The tokens of a slab by kind, with a lot drawn for each; a kind that it lacks is left out."""
    shares = slab.shares(group).mean(axis=1)  # [step, key]
    norms = slab.trace["each_value_norm"][:, slab.layer].values.mean(axis=1)
    labels = check_rule(rule).labels(shares, slab.seen(group)[:, 0])
    lots = generator.random(shares.shape)
    there = ~np.isnan(shares) & ~np.isnan(norms)
    for kind, chosen in (("sink", there & labels), ("other", there & ~labels)):
        step, position = np.nonzero(chosen)
        points = {
            "trace": slab.trace.digest()[:12],
            "step": step,
            "layer": slab.layer,
            "position": position,
            "received": shares[chosen],
            "value_norm": norms[chosen],
            "lot": lots[chosen],
        }
        if len(step):
            yield kind, pd.DataFrame(points)


def contributions(
    traces: Traces,
    rule: Rule | None = None,
    *,
    of: str = "contribution_norm",
    group: str = "all",
    by: Sequence[str] = ("layer",),
) -> pd.DataFrame:
    """What sinks bring against what they take: is attention to them no operation?

    A key contributes the attention it receives times the norm of its value, carried through the
    output projection (or not, with of="value_norm"). `contribution_share` is the sinks' share of
    all contributions; its null is their share of the attention in the same heads. `attention_share`
    is that share, against what indifferent attention gives the same keys.
    `no_op_share` is the attention that moves nothing: what sinks receive, less what would have
    brought as much at the other keys; null 0. Norms add up here as if no two cancelled.
    """
    rule = rule or rulli()
    if of not in CARRIED:
        raise SpecError(f"of={of!r} is unknown: expected {' or '.join(map(repr, CARRIED))}")
    parts = over_slabs(traces, partial(contribution_cells, rule=rule, of=of, group=group))
    about = {"metric": "contributions", "rule": str(rule), "of": of, "group": group}
    return tabulate(parts, by, about=about)


def contribution_cells(
    slab: LayerSlice, rule: Rule, of: str = "contribution_norm", group: str = "all"
) -> list[Quantity]:
    shares, labels = slab.shares(group), slab.labels(rule, group)
    norms = require_field(slab.trace, f"each_{of}")[:, slab.layer].values
    known = slab.measured(group) & ~np.isnan(norms[..., 0])
    brought = np.nan_to_num(shares * norms)
    everyone = np.where(known, np.sum(brought, axis=-1, dtype=np.float64), 0.0)
    mine = np.where(known, np.sum(brought, axis=-1, where=labels, dtype=np.float64), 0.0)
    all_taken = np.where(known, np.nansum(shares, axis=-1, dtype=np.float64), np.nan)
    taken = np.where(known, np.sum(shares, axis=-1, where=labels, dtype=np.float64), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = taken / all_taken
        rate = (everyone - mine) / (all_taken - taken)  # what attention elsewhere brings
        wasted = (taken - np.where(mine > 0, mine / rate, 0.0)) / all_taken
    null = slab.null(group)
    expected = np.sum(np.broadcast_to(null, shares.shape), axis=-1, where=labels)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = expected / np.nansum(null, axis=-1)  # of what a sink token leaves, as `share`
    weighted, none = np.where(known, share, 0.0) * everyone, np.zeros(())
    return [
        ratio("contribution_share", CELL, mine, everyone, (weighted, everyone)),
        mean("attention_share", CELL, share, expected),
        mean("no_op_share", CELL, np.where(np.isfinite(wasted), wasted, np.nan), none),
    ]


def massive_activations(
    traces: Traces,
    rule: Rule | None = None,
    *,
    least: float = 100.0,
    times: float = 1000.0,
    group: str = "all",
    by: Sequence[str] = ("layer",),
) -> pd.DataFrame:
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
    parts = over_slabs(traces, kernel)
    table = tabulate(parts, by, _conditional_chance, about | {"group": group})
    return append_quantities(table, odds_table(parts, by, _cross_tabulate))


CROSSED = ("both", "massive", "sinks", "keys")


def massive_cells(
    slab: LayerSlice, rule: Rule, least: float = 100.0, times: float = 1000.0, group: str = "all"
) -> list[Quantity]:
    trace, layer = slab.trace, slab.layer
    size = np.abs(require_field(trace, "massive_value")[:, layer].values)
    median = require_field(trace, "massive_median")[:, layer].values
    place = require_field(trace, "massive_position")[:, layer].values
    labels, known = slab.labels(rule, group), slab.measured(group) & ~np.isnan(median)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        massive = (size > least) & (size > times * median[:, None])
        over = size[:, 0] / median
    at = np.zeros((len(size), labels.shape[-1]), dtype=bool)
    step, outlier = np.nonzero(massive)
    at[step, place[step, outlier]] = True
    there = ~np.isnan(slab.shares(group))
    counts = {
        "both": labels & at[:, None],
        "massive": there & at[:, None],
        "sinks": labels,
        "keys": there,
    }
    shape = known.shape
    empty = np.where(np.isnan(median), np.nan, 0.0)
    seen = {
        "count": massive.sum(axis=-1) + empty,
        "capped": massive.all(axis=-1) + empty,
        "largest": size[:, 0],
        "over_median": np.where(np.isfinite(over), over, np.nan),
    }
    crossed = [
        replace(total(name, CELL, found.sum(axis=-1) * known), missing=(~known).astype(float))
        for name, found in counts.items()
    ]
    return crossed + [
        mean(name, CELL, np.broadcast_to(value[:, None], shape)) for name, value in seen.items()
    ]


def _cross_tabulate(cells: dict[str, Cell]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Massive or not x sink or not; independent, as the null has it, the odds ratio is 1."""
    both, massive, sinks, keys = (cells[name].value for name in CROSSED)
    counts = np.stack([both, massive - both, sinks - both, keys - massive - sinks + both])
    return counts, np.ones_like(counts), cells["both"].missing


def _conditional_chance(cells: dict[str, Cell]) -> dict[str, Cell]:
    """The chance of a massive position to be a sink, instead of the counts it comes from."""
    missing = cells["both"].missing
    both, massive, sinks, keys = (cells.pop(name).value for name in CROSSED)
    with np.errstate(invalid="ignore", divide="ignore"):
        chance, any_key = both / massive, np.where(massive > 0, sinks / keys, np.nan)
    return cells | {"sink_if_massive": Cell(chance, any_key, missing)}
