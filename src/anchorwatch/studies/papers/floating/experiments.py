"""Tables that claims of 2601.07894 need and runs of a set do not give: places, halves, heads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from anchorwatch import metrics
from anchorwatch.edits.spec import (
    Edit,
    hide_random,
    hide_sinks,
    knock_out,
    random_heads,
    swap_token,
)
from anchorwatch.errors import AnchorwatchWarning, EvidenceError
from anchorwatch.evaluation.effect import effect
from anchorwatch.evaluation.synthetic import Item
from anchorwatch.generation.decoding import Decoding, LeftToRight, LowConfidence
from anchorwatch.generation.run import run, run_many
from anchorwatch.metrics.sink_rules import zscore
from anchorwatch.metrics.stats.ranks import jensen_shannon
from anchorwatch.models.model import Model
from anchorwatch.models.sites import attention_modules
from anchorwatch.probes.spec import commit_regions, pattern, region_flow, top_keys
from anchorwatch.studies.evidence import experiment
from anchorwatch.studies.measure import FEWEST_RIGHT, read_passage_attention, score_answer
from anchorwatch.studies.papers.floating.measures import floating
from anchorwatch.studies.protocols import DEFAULT_PROTOCOL, Protocol
from anchorwatch.trace.trace import MASKED, PROMPT, Trace

LENGTH = 16
"""Positions that a run here writes, one a step."""
ITEMS = 8
"""Questions of a unit of `heads_taken`: an answer says little, so that a unit asks several."""
NUM_SEARCH_PROMPTS = 16
"""Prompts on which retrieval heads are found, beside one other passage: beside more a small model
is seldom right, and then shows no retrieval. They are apart from those that are asked later."""
SHARE_OF_HEADS = 0.03
"""Of the heads: Wu et al. take out 30 of 1024."""
KEYS = 3
"""Anchors hidden in each head, at most."""
DRAWS = 20
"""Of positions that stayed as they were."""

WEIGHTS = 64
"""Of each layer, for a unit of `weights`."""

Rows = list[dict[str, Any]]


@experiment("gold_looks", reads=("asked",))
def gold_looks(
    model: Model, unit: int, options: Mapping[str, Any], protocol: Protocol = DEFAULT_PROTOCOL
) -> Rows:
    """How much more the answer looks at gold than at others, per token, with gold at each place.

    Of the rows that predict tokens of the answer, when they do: most of what a run writes is there
    to fill its length.
    """
    item = protocol.item_of("asked", unit)
    gold = next(index for index, passage in enumerate(item.passages) if passage.gold)
    others = [index for index in range(len(item.passages)) if index != gold]
    rows = []
    for position, name in enumerate(("first", "middle", "last")):
        shown = item.arrange([*others[:position], gold, *others[position:]])
        trace = _run_item(model, shown, top_keys(), commit_regions())
        seen = read_passage_attention(trace)
        lift = float(seen.gold.mean() / seen.other.mean())
        rows.append({"place": name, "lift": lift, "right": score_answer(trace, shown)})
    return rows


@experiment("first_rollout", reads=("asked",))
def first_rollout(
    model: Model, unit: int, options: Mapping[str, Any], protocol: Protocol = DEFAULT_PROTOCOL
) -> Rows:
    """The published rollout from the answer to the first token, at the last step, and its null."""
    item = protocol.item_of("asked", unit)
    trace = _run_item(model, item, region_flow(), more={"first": range(1)})
    with _ignore_warnings():  # its rows have collapsed, as it warns: that is the claim
        table = metrics.published_rollout(trace, by=("step", "query_region", "key_region"))
    last = table[(table["query_region"] == "answer") & (table["key_region"] == "first")]
    row = last.sort_values("step").iloc[-1]
    return [{name: float(row[name]) for name in ("value", "null", "dobrushin")}]


@experiment("queries_rewritten", reads=("asked",))
def queries_rewritten(
    model: Model, unit: int, options: Mapping[str, Any], protocol: Protocol = DEFAULT_PROTOCOL
) -> Rows:
    """Whether a query that was masked uses other anchors once it is written: one row a layer.

    `value` is the Jensen-Shannon divergence, in bits, of what the same positions look at before and
    after they are written; `rewritten` that of the same positions at the later step, before and
    after other words stand there: a token changed, and nothing was masked. `null` is that of as
    many positions which stayed as they were in the same steps. A position keeps its distances, so
    that attention to what is near is no difference.
    """
    # 1. the run as it is: no end tokens, so that words are written
    chosen_steps = tuple(LENGTH * quarter // 4 for quarter in (1, 2, 3))
    item = protocol.item_of("asked", unit)
    how = LowConfidence(LENGTH, LENGTH, forbid_end=True)
    trace = run(
        model,
        item.prompt(),
        how,
        regions=item.regions(),
        probes=(pattern(steps=chosen_steps),),
    )
    masked = {step: trace.role[step][trace.answer] == MASKED for step in chosen_steps}
    clean = {step: _answer_maps(trace, step) for step in chosen_steps}  # [layer, head, query, key]
    chance = np.random.default_rng(unit)
    # 2. each pair of steps: positions that were written in between, and others in their place
    each = []
    for before, after in pairwise(chosen_steps):
        wrote = np.flatnonzero(masked[before] & ~masked[after])
        words = _other_words(trace, trace.answer[wrote], chance)
        swaps = [
            swap_token(int(position), int(token), steps=(after,))
            for position, token in zip(trace.answer[wrote], words, strict=True)
        ]
        again = run(
            model,
            item.prompt(),
            how,
            regions=item.regions(),
            probes=(pattern(steps=(after,)),),
            edits=swaps,
        )
        other = _answer_maps(again, after)
        sides = [masked[before], masked[after]]
        each.append(
            [
                (
                    *_divergence_when_written([clean[before][at], clean[after][at]], sides, chance),
                    _mean_divergence([clean[after][at], other[at]], wrote),
                )
                for at in range(model.num_layers)
            ]
        )
    # 3. the mean of both pairs
    names = ("value", "null", "elsewhere", "rewritten")
    means = np.mean(each, axis=0).tolist()
    return [
        {"layer": layer} | dict(zip(names, values, strict=True))
        for layer, values in enumerate(means)
    ]


def _answer_maps(trace: Trace, step: int) -> np.ndarray:
    """[layer, head, query, key] attention of the answer's positions to the prompt at a step."""
    picked = trace["pick_step"].values == step
    maps = trace["pattern"].values[picked][:, trace.answer][:, :, trace.role[0] == PROMPT]
    layers = len(np.unique(trace["pick_layer"].values[picked]))
    return maps.astype(np.float64).reshape(layers, -1, *maps.shape[1:])


def _other_words(trace: Trace, positions: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """[position] words of the prompt, each another than the one that was written there."""
    prompt = np.unique(trace.own[trace.role[0] == PROMPT])
    words = prompt[~np.isin(prompt, trace.manifest["model"]["special_ids"])]
    return np.array([chance.choice(words[words != trace.own[place]]) for place in positions])


def _divergence_when_written(
    heads: Sequence[np.ndarray], masked: Sequence[np.ndarray], chance: np.random.Generator
) -> tuple[float, float, float]:
    """Of [head, query, key] maps before and after: divergence of queries that were written in
    between, of as many that stayed as they were, and heads with another greatest key."""
    wrote, stayed = np.flatnonzero(masked[0] & ~masked[1]), np.flatnonzero(masked[0] == masked[1])
    size = min(len(wrote), len(stayed))
    if not size:
        return np.nan, np.nan, np.nan
    null = [
        _mean_divergence(heads, chance.choice(stayed, size, replace=False)) for _ in range(DRAWS)
    ]
    before, after = (side[:, wrote].mean(axis=1).argmax(axis=-1) for side in heads)
    return _mean_divergence(heads, wrote), float(np.mean(null)), float(np.mean(before != after))


def _mean_divergence(heads: Sequence[np.ndarray], queries: np.ndarray) -> float:
    """Mean over heads of the divergence of queries of two maps, on keys that are anchors in one."""
    before, other = (side[:, queries].mean(axis=1) for side in heads)
    anchors = floating().labels(before) | floating().labels(other)
    return float(jensen_shannon(np.where(anchors, before, 0), np.where(anchors, other, 0)).mean())


@experiment("hidden_in_halves", reads=("asked",))
def hidden_in_halves(
    model: Model, unit: int, options: Mapping[str, Any], protocol: Protocol = DEFAULT_PROTOCOL
) -> Rows:
    """KL, in nats, of anchors hidden in the shallow and in the deep half of the layers.

    The control hides as many other keys of the same kind of token in the same layers; how many keys
    and how much attention either hid is kept beside.
    """
    half, shown = model.num_layers // 2, protocol.prompt_of("asked", unit)
    halves = {"shallow": range(half), "deep": range(model.num_layers - half, model.num_layers)}
    rows = []
    for name, layers in halves.items():
        chosen = tuple(layers)
        with _ignore_warnings():
            result = effect(
                model,
                [shown.text],
                _one_per_step(model, LENGTH // 2),
                hide_sinks(KEYS, rule=zscore(), layers=chosen),
                control=hide_random(
                    KEYS, rule=zscore(), layers=chosen, matched_to="class", seed=unit
                ),
                seed=unit,
            )
        table = result.table.set_index("outcome")
        numbers = ("difference", "control_difference", "did")
        row = {"half": name} | {number: float(table.loc["kl", number]) for number in numbers}
        for what in ("hidden_keys", "hidden_share"):
            row |= {f"{what}_{arm}": float(table.loc[what, arm]) for arm in ("edited", "control")}
        rows.append(row)
    return rows


_HEADS: WeakKeyDictionary[Model, tuple[tuple[int, int], ...]] = WeakKeyDictionary()


@experiment("heads_taken", reads=("own passage", "beside one"))
def heads_taken(
    model: Model, unit: int, options: Mapping[str, Any], protocol: Protocol = DEFAULT_PROTOCOL
) -> Rows:
    """Answers with retrieval heads taken out, with as many others of their layers, and unedited.

    Each question has its own passage only: what is lost is then lost to the heads. The others are
    drawn anew for each question, so that questions stay independent.
    """
    if model not in _HEADS:
        _HEADS[model] = _retrieval_heads(model, protocol)
    heads = _HEADS[model]
    sizes = {"layers": model.num_layers, "per_layer": model.num_heads}
    indices = range(unit * ITEMS, (unit + 1) * ITEMS)
    items = [protocol.item_of("own passage", index) for index in indices]
    texts = [item.prompt() for item in items]

    def answer_at(position: slice, *edits: Edit) -> list[Trace]:
        how = _answer_decoding(model)
        return run_many(model, texts[position], how, probes=(), edits=edits, batch=ITEMS)

    arms = {"none": answer_at(slice(None)), "heads": answer_at(slice(None), knock_out(heads))}
    arms["others"] = [
        answer_at(
            slice(position, position + 1), knock_out(random_heads(heads, **sizes, seed=index))
        )[0]
        for position, index in enumerate(indices)
    ]
    rows: Rows = [{"item": index, "heads": len(heads)} for index in indices]
    for name, traces in arms.items():
        for row, trace, item in zip(rows, traces, items, strict=True):
            row[f"right_{name}"] = score_answer(trace, item)
    return rows


def _retrieval_heads(model: Model, protocol: Protocol) -> tuple[tuple[int, int], ...]:
    """The heads that look most at gold beyond another passage, at most half of any layer.

    Only where the answer is right: of a wrong one nobody knows what was read.
    """
    scores = []
    for cell in range(NUM_SEARCH_PROMPTS):
        item = protocol.item_of("beside one", cell, apart=True)
        trace = _run_item(model, item, top_keys(), commit_regions())
        if score_answer(trace, item):
            scores.append(read_passage_attention(trace).beyond)
    if len(scores) < FEWEST_RIGHT:
        raise EvidenceError(
            f"a model that answers beside another passage, {FEWEST_RIGHT} of "
            f"{NUM_SEARCH_PROMPTS} prompts at least: {model.source} is right in {len(scores)}"
        )
    mean = np.mean(scores, axis=0)  # [layer, head]
    count = max(2, round(SHARE_OF_HEADS * mean.size))
    taken: list[tuple[int, int]] = []
    for flat_index in np.argsort(-mean, axis=None, kind="stable").tolist():
        layer, head = divmod(flat_index, mean.shape[1])
        if sum(cell == layer for cell, _ in taken) < mean.shape[1] // 2 and len(taken) < count:
            taken.append((layer, head))
    if not (least := min(mean[cell] for cell in taken)) > 0:
        raise EvidenceError(
            f"a model with {count} heads that look more at the evidence than at another passage: "
            f"one of {model.source}'s best looks {-least:.3f} less"
        )
    return tuple(sorted(taken))


@experiment("weights")
def weights(model: Model, unit: int, options: Mapping[str, Any]) -> Rows:
    """Some weights of each layer's attention, at places that a unit draws: a row a layer."""
    table = []
    for layer, module in enumerate(attention_modules(model.network)):
        named = sorted(dict(module.named_parameters()).items())
        matrix = next(values for _, values in named if values.ndim == 2).detach()
        chance = np.random.default_rng((unit, layer))
        rows, columns = (chance.integers(size, size=WEIGHTS) for size in matrix.shape)
        values = matrix[rows, columns].double().tolist()
        shape = "x".join(map(str, matrix.shape))
        table.append({"layer": layer, "shape": shape, "held": values})
    return table


def _answer_decoding(model: Model) -> Decoding:
    """As questions are answered elsewhere: two commits a step where masks are filled."""
    if model.family.kind == "arm":
        return LeftToRight(LENGTH)
    return LowConfidence(LENGTH, LENGTH // 2)


def _one_per_step(model: Model, length: int | None = None) -> Decoding:
    """A position a step, to the end."""
    positions = LENGTH if length is None else length
    if model.family.kind == "arm":
        return LeftToRight(positions, cache=False, stop=False)
    return LowConfidence(positions, positions)


def _run_item(
    model: Model, item: Item, *probes: Any, more: Mapping[str, Any] | None = None
) -> Trace:
    regions = dict(more or {}) | item.regions()
    return run(model, item.prompt(), _one_per_step(model), regions=regions, probes=probes)


@contextmanager
def _ignore_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnchorwatchWarning)
        yield
