"""Does a key receive attention for its token or for its position? Variance explained by each.

Group means, nothing more: a key is predicted by the mean of its class, of its token, of the tenth
of the canvas it stands in, or by class and tenth together (least squares). Means are learnt on one
part and scored on another, so a factor with many levels has no advantage, and a sink that never
repeats explains nothing. Everything follows from sums, in closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError
from anchorwatch.metrics.layer_slices import Layers, LayerSlice, Traces, check_traces
from anchorwatch.metrics.registry import Reading, custom_metric
from anchorwatch.metrics.sink_classes import TokenClasses
from anchorwatch.metrics.sink_rules import Rule, rulli
from anchorwatch.metrics.table import (
    Parts,
    Quantity,
    arm_key,
    check_dimensions,
    prompt_id,
    stack_layers,
    stack_traces,
    tabulate,
)
from anchorwatch.metrics.token_classes import CLASSES
from anchorwatch.trace.trace import MISSING, Trace

OUTCOMES = ("received", "sink")
HELD_OUT = ("steps", "prompts")
TENTHS = 10
FLOOR = 1e-3
"""A share below this part of the null counts as this part: its logarithm would be rounding."""


@custom_metric(default=True)
def meaning_or_place(
    traces: Traces,
    rule: Rule | None = None,
    *,
    group: str = "all",
    by: Sequence[str] = ("layer",),
    held_out: str = "steps",
    template: Sequence[str] = (),
    evidence: Sequence[str] = (),
) -> Reading:
    """Share of the variance among keys that token class, token and place explain, out of sample.

    Two outcomes: `received`, log2 of share over null, and `sink`, the rule's label; both without
    the mean of their step and head. Each head learns its means on one half of the steps and is
    scored on the other, both ways: does it hold while the text is written? `held_out="prompts"`
    learns on all other prompts of the model instead: does it hold in any text? A score is 1 -
    squared error / variance, below 0 where the means mislead. `both` is class and place together;
    `class_beyond_place` and `place_beyond_class` are what the one adds to the other, and `shared`
    what either could explain. The null is the mean score of means learnt on permuted keys (within
    each step), a little below 0. A ratio to it means nothing, so there is no lift.
    """
    if held_out not in HELD_OUT:
        raise SpecError(f"held_out={held_out!r} is unknown: expected {' or '.join(HELD_OUT)}")
    rule, classes = rule or rulli(), TokenClasses(traces, template, evidence)
    checked, split = check_traces(traces), ["outcome", *check_dimensions(by)]
    about = {"metric": "meaning_or_place", "rule": str(rule), "group": group, "held_out": held_out}

    def table(parts: Parts) -> pd.DataFrame:
        return tabulate(parts, split, about=about).assign(lift=np.nan)

    if held_out == "steps":
        kernel = partial(split_cells, designs=Designs(classes), rule=rule, group=group)
        return Reading(checked, kernel, lambda layers: table(stack_traces(layers)))
    designs = Designs(classes, _common_tokens(checked))
    learn = partial(sum_outcomes, designs=designs, rule=rule, group=group)
    return Reading(checked, learn, lambda layers: table(_across_prompts(layers)))


def split_cells(
    layer: LayerSlice, designs: Designs, rule: Rule, group: str = "all"
) -> list[Quantity]:
    """Scores of one layer; each half of the measured steps is predicted from the other."""
    measured = np.flatnonzero(layer.is_measured(group).any(axis=1))
    halves = measured[: len(measured) // 2], measured[len(measured) // 2 :]
    early, late = (sum_outcomes(layer, designs, rule, group, half) for half in halves)
    return _quantities([(early, late), (late, early)])


@dataclass(frozen=True, eq=False)
class Sums:
    """All that group means and their scores need, of some steps of one layer."""

    products: np.ndarray
    """[head, column, column] how many keys are in both columns: classes, then tenths."""
    columns: np.ndarray
    """[outcome, head, column] sums of the outcome."""
    counts: np.ndarray
    """[head, token] how many keys are the token."""
    tokens: np.ndarray
    """[outcome, head, token] sums of the outcome."""
    squares: np.ndarray
    """[outcome, head] sum of squares of the outcome."""
    spread: np.ndarray
    """[outcome, head, column, column] covariance of `columns` if the keys of steps are permuted."""
    token_spread: np.ndarray
    """[outcome, head, token] variance of `tokens` if they are."""

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(a + b for a, b in zip(_arrays(self), _arrays(other), strict=True)))

    def __sub__(self, other: Sums) -> Sums:
        return Sums(*(a - b for a, b in zip(_arrays(self), _arrays(other), strict=True)))


def _arrays(sums: Sums) -> tuple[np.ndarray, ...]:
    return tuple(getattr(sums, field.name) for field in fields(sums))


@dataclass(frozen=True, eq=False)
class Design:
    """Which class, tenth and token each key is, of keys that some query may look at."""

    seen: np.ndarray
    """[step, key] bool; other keys are left out."""
    level: np.ndarray
    """[step, key] class."""
    tenth: np.ndarray
    """[step, key]"""
    columns: np.ndarray
    """[step, key, column] 1 or 0: classes, then tenths."""
    products: np.ndarray
    """[step, column, column] how many keys are in both."""
    token: np.ndarray
    """[step, key] index of the token among those known; the last one stands for none."""
    counts: np.ndarray
    """[step, token] how many keys are the token."""
    spread: np.ndarray
    """[step, column, column] covariance of sums over permuted keys of mean square 1."""
    token_spread: np.ndarray
    """[step, token] variance of the same."""


class Designs:
    """Designs as kernels read them: found once for the layers that see the same keys."""

    def __init__(self, classes: TokenClasses, known: dict[str, np.ndarray] | None = None) -> None:
        self._classes, self._known = classes, known
        self._kept: tuple[Trace, dict[bytes, Design]] | None = None

    def of(self, trace: Trace, seen: np.ndarray) -> Design:
        kept = self._kept
        if kept is None or kept[0] is not trace:
            kept = self._kept = (trace, {})
        same = seen.tobytes()
        if same not in kept[1]:
            kept[1][same] = self._build(trace, seen)
        return kept[1][same]

    def _build(self, trace: Trace, seen: np.ndarray) -> Design:
        # 1. Class and tenth of each key, one-hot side by side: [step, key, column].
        canvas = trace.canvas[:-1]
        length = np.count_nonzero(canvas != MISSING, axis=1)
        tenth = np.arange(seen.shape[1]) * TENTHS // np.maximum(length, 1)[:, None]
        parts = [self._classes.one_hot(trace), tenth[..., None] == np.arange(TENTHS)]
        columns = np.concatenate(parts, axis=-1, dtype=np.float32) * seen[..., None]
        products = (columns.transpose(0, 2, 1) @ columns).astype(np.float64)
        # 2. Tokens that can be learnt: those of the trace, or those that other prompts share.
        weights = arm_key(trace)
        known = np.unique(canvas[seen]) if self._known is None else self._known[weights]
        index = np.minimum(np.searchsorted(known, canvas), max(len(known) - 1, 0))
        is_known = seen & (known[index] == canvas if len(known) else False)
        token = np.where(is_known, index, len(known))
        counts = np.stack([np.bincount(row, minlength=len(known) + 1)[:-1] for row in token])
        # 3. Under a permutation of a step's keys, sums over n of N keys have variance n (1 - n /
        # N).
        keys = np.maximum(seen.sum(axis=1), 1)[:, None]
        sizes = np.diagonal(products, axis1=1, axis2=2)
        return Design(
            seen=seen,
            level=self._classes.of(trace),
            tenth=tenth,
            columns=columns,
            products=products,
            token=token,
            counts=counts,
            spread=products - sizes[:, :, None] * (sizes / keys)[:, None],
            token_spread=counts - counts**2 / keys,
        )


def sum_outcomes(
    layer: LayerSlice, designs: Designs, rule: Rule, group: str, steps: np.ndarray | None = None
) -> Sums:
    """Sums over some steps or all; a head that was not measured at a step has none of it."""
    steps = np.arange(layer.trace.num_steps) if steps is None else steps
    null = layer.null(group)[:, 0]
    design = designs.of(layer.trace, null > 0)  # NaN is not
    measured = layer.is_measured(group)[steps].astype(np.float64)  # [step, head]
    # Two outcomes, without the mean of their step and head.
    outcomes = [
        _received_sums(layer.shares(group), null, design, steps),
        _sink_sums(layer.labels(rule, group), design, measured, steps),
    ]
    columns, tokens, squares = (np.stack(sums) for sums in zip(*outcomes, strict=True))
    keys = design.seen[steps].sum(axis=1)[:, None]
    each = (squares / np.maximum(keys - 1, 1)).transpose(0, 2, 1)  # [outcome, head, step]
    return Sums(
        products=np.tensordot(measured.T, design.products[steps], axes=1),
        columns=columns,
        counts=measured.T @ design.counts[steps],
        tokens=tokens,
        squares=squares.sum(axis=1),
        spread=np.tensordot(each, design.spread[steps], axes=1),
        token_spread=each @ design.token_spread[steps],
    )


def _received_sums(
    shares: np.ndarray, null: np.ndarray, design: Design, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """([head, column], [head, token], [step, head]) sums of log2(share / null) less its mean."""
    seen = design.seen[steps].astype(np.float32)
    per_null = 1 / np.where(design.seen[steps], null[steps], np.inf)
    values = shares[steps] * per_null.astype(np.float32)[:, None]
    # What was not measured becomes the floor everywhere, and so nothing without its mean.
    np.log2(np.fmax(values, np.float32(FLOOR), out=values), out=values)
    middle = values @ seen[..., None] / np.maximum(seen.sum(axis=-1), 1)[:, None, None]
    values -= middle
    values *= seen[:, None]
    columns = (values @ design.columns[steps]).sum(axis=0, dtype=np.float64)
    squares = np.einsum("shk,shk->sh", values, values).astype(np.float64)
    token, size = design.token[steps].ravel(), design.counts.shape[1]
    each = (values[:, head].ravel() for head in range(values.shape[1]))
    tokens = np.stack([np.bincount(token, head_values, size + 1)[:size] for head_values in each])
    return columns, tokens, squares


def _sink_sums(
    labels: np.ndarray, design: Design, measured: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same of labels: what sinks add, less their rate times what all keys would."""
    chosen = labels[steps] & design.seen[steps][:, None]
    step, head, key = np.unravel_index(np.flatnonzero(chosen), chosen.shape)
    keys = design.seen[steps].sum(axis=-1, keepdims=True)
    rate = chosen.sum(axis=-1) / np.maximum(keys, 1)  # [step, head]
    heads, size = labels.shape[1], design.counts.shape[1]
    sizes = np.diagonal(design.products[steps], axis1=1, axis2=2)
    columns = np.zeros((heads, sizes.shape[1]))
    for level in (design.level[steps[step], key], design.tenth[steps[step], key] + len(CLASSES)):
        columns += _count_pairs(head, level, columns.shape)
    tokens = _count_pairs(head, design.token[steps[step], key], (heads, size + 1))[:, :size]
    squares = keys * rate * (1 - rate) * measured
    return columns - rate.T @ sizes, tokens - rate.T @ design.counts[steps], squares


def _count_pairs(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    return np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape)


def _quantities(folds: Sequence[tuple[Sums, Sums]]) -> list[Quantity]:
    """Scores added up over (learnt on, scored on); a head that lacks either part has none."""
    tops: dict[str, np.ndarray] = {}
    nulls: dict[str, np.ndarray] = {}
    bottom: np.ndarray | float = 0.0
    whole: np.ndarray | bool = True
    # Squares that predictions take off, added up over the folds.
    for train, test in folds:
        for name, (off, blind) in _scores(train, test).items():
            tops[name] = tops.get(name, 0.0) + off.T
            nulls[name] = nulls.get(name, 0.0) + blind.T
        bottom = bottom + test.squares.T
        whole = whole & _has_keys(train) & _has_keys(test)
    for scores in (tops, nulls):
        scores["class_beyond_place"] = scores["both"] - scores["place"]
        scores["place_beyond_class"] = scores["both"] - scores["class"]
        scores["shared"] = scores["class"] + scores["place"] - scores["both"]
    known = np.broadcast_to(np.asarray(whole)[:, None], np.shape(bottom)).astype(float)
    base = np.asarray(bottom) * known
    dims, labels = ("head", "outcome"), {"outcome": OUTCOMES}
    return [
        Quantity(name, dims, tops[name] * known, base, nulls[name] * known, base, 1 - known, labels)
        for name in tops
    ]


def _has_keys(sums: Sums) -> np.ndarray:
    """[head] whether anything was measured."""
    return np.trace(sums.products, axis1=1, axis2=2) > 0


def _scores(train: Sums, test: Sums) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(what predictions take off the squares, and what blind ones would), [outcome, head] each.

    A mean m of n keys that sum to s takes off 2 m s - m^2 n; learnt blindly, s is 0 on average.
    """
    learnt, scored = (np.diagonal(sums.products, axis1=1, axis2=2) for sums in (train, test))
    # Group means learnt on one part, scored on the other.
    means = _divide_or_zero(train.columns, learnt)
    off = 2 * means * test.columns - means**2 * scored
    spread = np.diagonal(train.spread, axis1=2, axis2=3)
    blind = -_divide_or_zero(_divide_or_zero(spread, learnt), learnt) * scored
    c = len(CLASSES)
    tokens = _divide_or_zero(train.tokens, train.counts)
    token_blind = _divide_or_zero(_divide_or_zero(train.token_spread, train.counts), train.counts)
    return {
        "class": (off[..., :c].sum(axis=-1), blind[..., :c].sum(axis=-1)),
        "place": (off[..., c:].sum(axis=-1), blind[..., c:].sum(axis=-1)),
        "both": _scores_together(train, test),
        "token": (
            np.sum(2 * tokens * test.tokens - tokens**2 * test.counts, axis=-1),
            -np.sum(token_blind * test.counts, axis=-1),
        ),
    }


def _scores_together(train: Sums, test: Sums) -> tuple[np.ndarray, np.ndarray]:
    """Class and place by least squares; of equally good solutions the smallest."""
    # Columns are dependent (classes and tenths both sum to one): the pseudo-inverse.
    solve = np.linalg.pinv(train.products, hermitian=True)  # [head, column, column]
    means = np.einsum("hij,ohj->ohi", solve, train.columns)
    cost = np.einsum("ohi,hij,ohj->oh", means, test.products, means, optimize=True)
    weight = solve @ test.products @ solve
    blind = -np.einsum("hij,ohij->oh", weight, train.spread)
    return 2 * np.sum(means * test.columns, axis=-1) - cost, blind


def _divide_or_zero(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Means; 0, the mean of all, for what was never met."""
    return np.where(counts > 0.5, sums / np.maximum(counts, 1), 0.0)


def _common_tokens(traces: list[Trace]) -> dict[str, np.ndarray]:
    """Of each model, the ids that can be learnt on another prompt; one prompt alone is refused."""
    models: dict[str, list[tuple[Trace, str]]] = {}
    for trace in traces:
        models.setdefault(arm_key(trace), []).append((trace, prompt_id(trace)))
    for runs in models.values():
        if len({prompt for _, prompt in runs}) < 2:
            raise SpecError(
                f"{runs[0][0].manifest['model']['source']} has one prompt, and none to learn from: "
                "give traces of at least two, or say held_out='steps'"
            )
    return {model: _common(runs) for model, runs in models.items()}


def _across_prompts(layers: Layers) -> Parts:
    """Scores of every trace, predicted from all other prompts of its model."""
    models: dict[str, list[tuple[Trace, str, list[Sums]]]] = {}
    for trace, sums in layers:
        models.setdefault(arm_key(trace), []).append((trace, prompt_id(trace), sums))
    return [part for runs in models.values() for part in _score_held_out(runs)]


def _common(runs: Sequence[tuple[Trace, str]]) -> np.ndarray:
    """Ids that stand in two prompts' canvases or more: only these can be learnt on another."""
    prompts: dict[str, set[int]] = {}
    for trace, prompt in runs:
        prompts.setdefault(prompt, set()).update(np.unique(trace.canvas[:-1]).tolist())
    ids, met = np.unique([i for own_ids in prompts.values() for i in own_ids], return_counts=True)
    return ids[(met > 1) & (ids != MISSING)]


def _score_held_out(
    read: Sequence[tuple[Trace, str, list[Sums]]],
) -> list[tuple[Trace, list[Quantity]]]:
    """Each trace of one model, from the sums of all that are not of its prompt."""
    # All sums of the model less those of the own prompt are what is learnt from.
    every, own = list[Sums](), dict[str, list[Sums]]()
    for _, prompt, layers in read:
        every = _add_sums(every, layers)
        own[prompt] = _add_sums(own.get(prompt, []), layers)
    parts = []
    for trace, prompt, layers in read:
        folds = zip(every, own[prompt], layers, strict=True)
        scores = [_quantities([(total - mine, test)]) for total, mine, test in folds]
        parts.append((trace, stack_layers(scores)))
    return parts


def _add_sums(first: list[Sums], second: list[Sums]) -> list[Sums]:
    return [a + b for a, b in zip(first, second, strict=True)] if first else second
