"""Which tokens are sinks: by token class, by token, and structure against content by depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError
from anchorwatch.metrics import stats
from anchorwatch.metrics.layer_slices import LayerSlice, Traces, check_traces
from anchorwatch.metrics.registry import Reading, custom_metric, read_quantities
from anchorwatch.metrics.sink_rules import Rule, rulli
from anchorwatch.metrics.stats.ranks import spearman
from anchorwatch.metrics.table import (
    TRACE_DIMS,
    Cell,
    Parts,
    Quantity,
    arm_key,
    check_dimensions,
    collapse,
    mean,
    model_names,
    stack_traces,
    tabulate,
)
from anchorwatch.metrics.token_classes import (
    CLASSES,
    MASK,
    MEANING,
    STRUCTURE,
    MarkedPositions,
    classify_steps,
    token_names,
)
from anchorwatch.trace.trace import MISSING, Trace

CELL = ("step", "head")
KINDS = {"structure": STRUCTURE, "mask": (MASK,), "content": MEANING}
"""Every class is of one kind."""
TRENDS = ("structure_of_sinks", "content")


class TokenClasses:
    """Token classes as kernels read them: those of a trace are found once, for all its layers.

    Layers may be read side by side, so what is kept is put in place whole.
    """

    def __init__(
        self, traces: Traces, template: Sequence[str] = (), evidence: Sequence[str] = ()
    ) -> None:
        self._places = MarkedPositions(check_traces(traces), template, evidence)
        self._kept: tuple[Trace, np.ndarray, np.ndarray] | None = None

    def of(self, trace: Trace) -> np.ndarray:
        """[step, key] index into CLASSES; -1 where absent."""
        return self._load(trace)[1]

    def one_hot(self, trace: Trace) -> np.ndarray:
        """[step, key, class] 1 where the key is of the class, else 0."""
        return self._load(trace)[2]

    def _load(self, trace: Trace) -> tuple[Trace, np.ndarray, np.ndarray]:
        kept = self._kept
        if kept is None or kept[0] is not trace:
            classes = classify_steps(trace, *self._places.of(trace))
            one_hot = (classes[..., None] == np.arange(len(CLASSES))).astype(np.float32)
            kept = self._kept = (trace, classes, one_hot)
        return kept


@custom_metric(default=True)
def enrichment(
    traces: Traces,
    rule: Rule | None = None,
    *,
    group: str = "all",
    by: Sequence[str] = (),
    template: Sequence[str] = (),
    evidence: Sequence[str] = (),
    matched: bool = False,
) -> Reading:
    """Share of all sink detections (step, layer, head, key) that each token class has.

    The null is the class's share among the keys that exist; `matched=True` puts each sink on any
    key of its own step instead, so that masks are not enriched for being many when sinks are.
    `log2` is that of the lift; `lift_low` and `lift_high` resample value and null together, over
    the `lift_n` prompts in which the class stands.
    """
    rule, classes = rule or rulli(), TokenClasses(traces, template, evidence)
    kernel = partial(enrichment_cells, classes=classes, rule=rule, group=group, matched=matched)
    about = _about("enrichment", rule, group, template, evidence) | {"matched": matched}
    split = ["class", *by]
    return Reading(
        check_traces(traces),
        kernel,
        lambda layers: enrichment_table(stack_traces(layers), split, about),
    )


def enrichment_cells(
    layer: LayerSlice, classes: TokenClasses, rule: Rule, group: str = "all", matched: bool = False
) -> list[Quantity]:
    one_hot, measured = classes.one_hot(layer.trace), layer.is_measured(group)
    # Sink detections by class: a product with one-hot classes.
    hits = (layer.labels(rule, group).astype(np.float32) @ one_hot).astype(np.float64)
    detections = np.broadcast_to(hits.sum(axis=-1, keepdims=True), hits.shape)
    keys = one_hot.sum(axis=1, dtype=np.float64)[:, None] * measured[..., None]
    every = np.broadcast_to(keys.sum(axis=-1, keepdims=True), hits.shape)
    if matched:
        keys, every = keys * detections / np.maximum(every, 1), detections
    lost = np.broadcast_to(~measured[..., None], hits.shape).astype(float)
    dims, labels = (*CELL, "class"), {"class": CLASSES}
    return [Quantity("share", dims, hits, detections, keys, every, lost, labels)]


def enrichment_table(parts: Parts, by: list[str], about: dict[str, Any]) -> pd.DataFrame:
    """The table with log2 and an interval of the lift, which divides prompt by prompt."""
    table = tabulate(parts, by, _where_found, about)
    keys = ["model", *by, "quantity"]
    each = tabulate(parts, list(dict.fromkeys([*by, "prompt"])), _where_found)
    row = each.merge(table[keys].assign(row=np.arange(len(table))), on=keys, how="left")["row"]
    prompt = pd.factorize(each["prompt"])[0]
    # Value and null of each prompt, row by row, so that both are resampled together.
    shares = np.full((2, int(prompt.max()) + 1, len(table)), np.nan)
    shares[:, prompt, row] = each["value"], each["null"]
    shares[:, shares[1] == 0] = np.nan  # a class that stands nowhere in a prompt says nothing there
    lifts = stats.ratio(shares[0], shares[1], paired=True)
    with np.errstate(divide="ignore"):
        log2 = np.log2(table["lift"].to_numpy())
    return table.assign(log2=log2, lift_low=lifts.low, lift_high=lifts.high, lift_n=lifts.n)


def _where_found(cells: dict[str, Cell]) -> dict[str, Cell]:
    """A prompt without a sink has no share to compare with a null."""
    return {
        name: replace(cell, null=np.where(np.isnan(cell.value), np.nan, cell.null))
        for name, cell in cells.items()
    }


@custom_metric(default=True)
def sink_tokens(
    traces: Traces,
    rule: Rule | None = None,
    *,
    top: int | None = 5,
    group: str = "all",
    by: Sequence[str] = (),
) -> Reading:
    """The tokens that are sinks most often, as shares of all detections (2510.15731, Table 2).

    One count for each (step, layer, head, key), of the token that stands there then: a masked
    position counts as the mask. The null is the token's share among keys. `top` tokens of each
    model, most frequent first; None gives all that ever were, and their shares sum to one.
    """
    if top is not None and (not isinstance(top, int) or top < 1):
        raise SpecError(f"top={top!r} is not a whole number of at least 1, nor None for all tokens")
    check_dimensions(by)
    rule = rule or rulli()
    kernel = partial(token_cells, tokens=Tokens(), rule=rule, group=group, by=tuple(by))
    about = _about("sink_tokens", rule, group) | {"top": top}
    return Reading(
        check_traces(traces),
        kernel,
        lambda layers: token_table(stack_traces(layers), by, top, about),
    )


def token_table(
    parts: Parts, by: Sequence[str], top: int | None, about: dict[str, Any]
) -> pd.DataFrame:
    """The most frequent tokens of each model, ranked over everything, in each cell of `by`."""
    named = model_names([trace for trace, _ in parts])
    ranked = _most_frequent(parts, named, top)
    chosen = [(trace, [_only(share, ranked[named[arm_key(trace)]])]) for trace, (share,) in parts]
    table = tabulate(chosen, ["token", *by], _where_found, about)
    ranks = [
        1 + ranked[share][token] for share, token in zip(table.model, table.token, strict=True)
    ]
    return table.assign(rank=ranks)


@dataclass(frozen=True, eq=False)
class NamedTokens:
    """The tokens of each step of a trace, by name."""

    trace: Trace
    names: list[str]
    index: np.ndarray
    """[step, key] index into the names; -1 where absent."""
    counts: np.ndarray
    """[step, name] how often it stands there."""


class Tokens:
    """Tokens as kernels read them: those of a trace are found once, for all its layers."""

    def __init__(self) -> None:
        self._kept: NamedTokens | None = None

    def of(self, trace: Trace) -> NamedTokens:
        kept = self._kept
        if kept is None or kept.trace is not trace:
            kept = self._kept = _name_tokens(trace)
        return kept


def _name_tokens(trace: Trace) -> NamedTokens:
    canvas, texts = trace.canvas[:-1], token_names(trace)
    ids, which = np.unique(canvas, return_inverse=True)
    named = [texts.get(i, "") for i in ids.tolist()]
    # Ids with the same text share a name; half a character is named by its bytes.
    names = list(dict.fromkeys(n for n, i in zip(named, ids, strict=True) if i != MISSING))
    index = {name: number for number, name in enumerate(names)}
    of_id = [MISSING if i == MISSING else index[n] for n, i in zip(named, ids, strict=True)]
    number = np.array(of_id)[which.reshape(canvas.shape)]
    counts = [np.bincount(row[row >= 0], minlength=len(names)) for row in number]
    return NamedTokens(trace, names, number, np.stack(counts).astype(float))


def token_cells(
    layer: LayerSlice, tokens: Tokens, rule: Rule, group: str = "all", by: Sequence[str] = ()
) -> list[Quantity]:
    """Counts of every token; steps and heads are kept apart only where `by` asks for them."""
    # 1. Keep only the dims that the table is split by: there may be thousands of tokens.
    dims = ("step", *by) if "progress" in by else tuple(by)
    kept = tuple(dim for dim in CELL if dim in dims)
    named, measured = tokens.of(layer.trace), layer.is_measured(group)
    sizes = dict(zip(CELL, measured.shape, strict=True))
    # 2. Each detection as a flat (kept dims, token) cell.
    labels = layer.labels(rule, group)
    step, head, key = np.unravel_index(np.flatnonzero(labels), labels.shape)  # as nonzero, faster
    cell = np.zeros(len(key), dtype=np.int64)
    for dim, index in zip(CELL, (step, head), strict=True):
        cell = cell * sizes[dim] + index if dim in kept else cell
    shape = (*(sizes[dim] for dim in kept), len(named.names))
    flat = cell * len(named.names) + named.index[step, key]
    hits = np.bincount(flat, minlength=int(np.prod(shape))).reshape(shape).astype(float)
    # 3. The null: how often each token stands among the measured keys.
    left = "".join(dim[0] for dim in kept)
    keys = np.einsum(f"sh,sv->{left}v", measured.astype(float), named.counts, optimize=True)
    lost = np.asarray(np.einsum(f"sh->{left}", (~measured).astype(float)))[..., None]
    return [
        Quantity(
            "share",
            (*kept, "token"),
            top=hits,
            bottom=np.broadcast_to(hits.sum(axis=-1, keepdims=True), shape),
            null_top=keys,
            null_bottom=np.broadcast_to(keys.sum(axis=-1, keepdims=True), shape),
            missing=np.broadcast_to(lost, shape),
            labels={"token": named.names},
        )
    ]


def _most_frequent(
    parts: Parts, named: dict[str, str], top: int | None
) -> dict[str, dict[str, int]]:
    """The most frequent tokens of each model and their rank, from 0; equals in text order."""
    every: dict[str, dict[str, int]] = {name: {} for name in named.values()}
    for trace, (share,) in parts:
        every[named[arm_key(trace)]] |= dict.fromkeys(map(str, share.labels["token"]), 0)
    wide = [(trace, [_only(share, every[named[arm_key(trace)]])]) for trace, (share,) in parts]
    table = tabulate(wide, ["token"]).fillna({"value": 0.0})
    table = table.sort_values(["value", "token"], ascending=[False, True])
    ranked = {}
    for name, rows in table.groupby("model", sort=False):
        were = rows[rows.value > 0] if (rows.value > 0).any() else rows
        ranked[str(name)] = {token: rank for rank, token in enumerate(were.token[:top])}
    return ranked


def _only(quantity: Quantity, tokens: dict[str, int]) -> Quantity:
    """The quantity over just these tokens; one that never stands in the trace is 0 of its keys."""
    have = {token: index for index, token in enumerate(quantity.labels["token"])}
    index = np.array([have.get(token, MISSING) for token in tokens])
    assert (
        quantity.null_top is not None
        and quantity.null_bottom is not None
        and quantity.missing is not None
    )
    return replace(
        quantity,
        top=np.where(index >= 0, quantity.top[..., index], 0.0),
        bottom=quantity.bottom[..., np.maximum(index, 0)],
        null_top=np.where(index >= 0, quantity.null_top[..., index], 0.0),
        null_bottom=quantity.null_bottom[..., np.maximum(index, 0)],
        missing=quantity.missing[..., np.maximum(index, 0)],
        labels={"token": list(tokens)},
    )


@custom_metric(default=True)
def structure(
    traces: Traces,
    rule: Rule | None = None,
    *,
    group: str = "all",
    by: Sequence[str] = ("layer",),
    template: Sequence[str] = (),
    evidence: Sequence[str] = (),
) -> Reading:
    """How much attention goes to structure, to masks and to content: of sinks, and of everything.

    `structure_of_sinks` is the attention on sinks of structural classes over the attention on all
    sinks; its null spreads it uniformly over the keys of the same step. `content` is
    the share of all attention that content receives; its null is what uniform attention gives
    the same keys: the share they are of all keys, where every key is seen alike. The `_of_sinks`
    sum to one, and so do the others unless a sink token stands before the canvas.
    """
    rule, classes = rule or rulli(), TokenClasses(traces, template, evidence)
    kernel = partial(structure_cells, classes=classes, rule=rule, group=group)
    about = _about("structure", rule, group, template, evidence)
    return read_quantities(traces, kernel, by, about=about)


def structure_cells(
    layer: LayerSlice, classes: TokenClasses, rule: Rule, group: str = "all"
) -> list[Quantity]:
    one_hot = classes.one_hot(layer.trace)
    kinds = np.stack([one_hot[..., list(kind)].sum(axis=-1) for kind in KINDS.values()], axis=-1)
    measured = layer.is_measured(group)
    shares = layer.shares(group).copy()
    shares[np.isnan(shares)] = 0
    # What each kind receives in all, and on sinks only.
    received = (shares @ kinds).astype(np.float64)
    on_sinks = (np.multiply(shares, layer.labels(rule, group), out=shares) @ kinds).astype(float)
    null = np.nan_to_num(layer.null(group)) @ kinds  # [step, 1, kind]
    every, null_every = on_sinks.sum(axis=-1), null.sum(axis=-1)
    empty = np.where(measured, 0.0, np.nan)
    lost = (~measured).astype(float)
    quantities = []
    for index, name in enumerate(KINDS):
        laid = every * null[..., index] / np.where(null_every > 0, null_every, 1.0)
        sums = on_sinks[..., index], every, laid, every
        quantities.append(Quantity(f"{name}_of_sinks", CELL, *sums, lost))
        expected = np.broadcast_to(null[..., index], measured.shape)
        quantities.append(mean(name, CELL, received[..., index] + empty, expected))
    return quantities


@custom_metric(default=True)
def structure_trend(
    traces: Traces,
    rule: Rule | None = None,
    *,
    group: str = "all",
    by: Sequence[str] = (),
    template: Sequence[str] = (),
    evidence: Sequence[str] = (),
) -> Reading:
    """Spearman's rho with depth of the structure share of sinks and the content share of attention.

    "Shallow structure-aware, deep content-focused" is a rho below 0 of the first and above 0 of the
    second. One rho for each prompt, over the layers that have a share; the null is no trend, 0.
    """
    check_dimensions(by)
    if "layer" in by:
        raise SpecError("a trend over layers cannot be split by layer: leave it out of by")
    rule, classes = rule or rulli(), TokenClasses(traces, template, evidence)
    kernel = partial(structure_cells, classes=classes, rule=rule, group=group)
    about = _about("structure_trend", rule, group, template, evidence)
    return Reading(
        check_traces(traces), kernel, lambda layers: trend_table(stack_traces(layers), by, about)
    )


def trend_table(parts: Parts, by: Sequence[str], about: dict[str, Any]) -> pd.DataFrame:
    """From the parts that `structure_cells` gives."""
    trends = [
        (trace, [_trend(quantity, by, trace) for quantity in quantities if quantity.name in TRENDS])
        for trace, quantities in parts
    ]
    return tabulate(trends, by, about=about)


def _trend(quantity: Quantity, by: Sequence[str], trace: Trace) -> Quantity:
    inner = [dim for dim in by if dim not in TRACE_DIMS]
    cell = collapse(quantity, [*inner, "layer"], trace.progress[:-1])
    # One correlation of depth and share for each prompt.
    rho = spearman(np.broadcast_to(np.arange(cell.value.shape[-1]), cell.value.shape), cell.value)
    return mean(quantity.name, tuple(inner), np.asarray(rho), np.zeros(np.shape(rho)))


def _about(
    metric: str,
    rule: Rule,
    group: str,
    template: Sequence[str] = (),
    evidence: Sequence[str] = (),
) -> dict[str, Any]:
    options = {"template": list(template), "evidence": list(evidence)}
    named = {name: given for name, given in options.items() if given}
    return {"metric": metric, "rule": str(rule), "group": group} | named
