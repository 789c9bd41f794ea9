"""Tables that claims of 2601.07894 need and runs of a set do not give: places, halves, heads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from anchorwatch import metrics
from anchorwatch.decoding import Decoding, LeftToRight, LowConfidence
from anchorwatch.edits import Edit, hide_random, hide_sinks, knock_out, random_heads
from anchorwatch.effects import effect
from anchorwatch.errors import AnchorwatchWarning, EvidenceError
from anchorwatch.models.model import Model
from anchorwatch.models.sites import attention_modules
from anchorwatch.probes import commit_regions, pattern, region_flow, top_keys
from anchorwatch.rules import zscore
from anchorwatch.runs import run
from anchorwatch.stats.ranks import jensen_shannon
from anchorwatch.studies import sets
from anchorwatch.studies.reading import reads, right
from anchorwatch.trace import ABSENT, MASKED, Trace
from anchorwatch.worlds import Item

LENGTH = 16
"""Positions that a run here writes, one a step."""
ITEMS = 8
"""Questions of a unit of `heads_out`: an answer says little, so that a unit asks several."""
FOUND_ON = 12
"""Prompts on which retrieval heads are found; none of them is asked later."""
FAR = 1_000_000
"""Where those begin in the set."""
SHARE_OUT = 0.03
"""Of the heads: Wu et al. take out 30 of 1024."""
KEYS = 3
"""Anchors hidden in each head, at most."""
DRAWS = 20
"""Of queries dealt out by chance."""

WEIGHTS = 64
"""Of each layer, for a unit of `weights`."""

Rows = list[dict[str, Any]]


def gold_places(model: Model, unit: int, options: Mapping[str, Any]) -> Rows:
    """How much more the answer looks at gold than at others, per token, with gold at each place."""
    item = sets.ASKED[unit]
    gold = next(at for at, passage in enumerate(item.passages) if passage.gold)
    others = [at for at in range(len(item.passages)) if at != gold]
    found = []
    for place, name in enumerate(("first", "middle", "last")):
        shown = item.arranged([*others[:place], gold, *others[place:]])
        trace = _written(model, shown, region_flow())
        lift = float(metrics.gold_lift(trace, by=[])["value"].iloc[0])
        found.append({"place": name, "lift": lift})
    return found


def first_rollout(model: Model, unit: int, options: Mapping[str, Any]) -> Rows:
    """The published rollout from the answer to the first token, at the last step, and its null."""
    trace = _written(model, sets.ASKED[unit], region_flow(), more={"first": range(1)})
    with _quiet():  # its rows have collapsed, as it warns: that is the claim
        table = metrics.published_rollout(trace, by=("step", "query_region", "key_region"))
    last = table[(table["query_region"] == "answer") & (table["key_region"] == "first")]
    row = last.sort_values("step").iloc[-1]
    return [{name: float(row[name]) for name in ("value", "null", "dobrushin")}]


def query_split(model: Model, unit: int, options: Mapping[str, Any]) -> Rows:
    """Jensen-Shannon, in bits, between what masked and other queries look at; one row a layer.

    `null` deals out the same queries by chance, as many to each side; `elsewhere` is the share of
    heads whose greatest key is another.
    """
    at = tuple(LENGTH * quarter // 4 for quarter in (1, 2, 3))
    trace = _written(model, sets.ASKED[unit], pattern(steps=at))
    maps = trace["pattern"].values
    picked = {name: trace[f"pick_{name}"].values for name in ("step", "layer")}
    chance = np.random.default_rng(unit)
    found = []
    for layer in range(model.num_layers):
        each = []
        for step in at:
            there = trace.role[step] != ABSENT
            masked = (trace.role[step] == MASKED)[there]
            chosen = (picked["step"] == step) & (picked["layer"] == layer)
            heads = maps[chosen][:, there][:, :, there].astype(np.float64)
            each.append(_apart(heads, masked, chance))
        value, null, elsewhere = np.mean(each, axis=0).tolist()
        found.append({"layer": layer, "value": value, "null": null, "elsewhere": elsewhere})
    return found


def _apart(
    heads: np.ndarray, masked: np.ndarray, chance: np.random.Generator
) -> tuple[float, float, float]:
    """Of [head, query, key] maps: divergence of two groups, of groups by chance, other peaks."""

    def sides(group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return heads[:, group].mean(axis=1), heads[:, ~group].mean(axis=1)

    one, other = sides(masked)
    null = [jensen_shannon(*sides(chance.permutation(masked))).mean() for _ in range(DRAWS)]
    peaks = one.argmax(axis=-1) != other.argmax(axis=-1)
    return float(jensen_shannon(one, other).mean()), float(np.mean(null)), float(peaks.mean())


def hidden_by_depth(model: Model, unit: int, options: Mapping[str, Any]) -> Rows:
    """KL, in nats, of anchors hidden in the shallow and in the deep half of the layers.

    The control hides as many other keys of the same kind of token in the same layers.
    """
    half, shown = model.num_layers // 2, sets.shown("asked", unit)
    halves = {"shallow": range(half), "deep": range(model.num_layers - half, model.num_layers)}
    found = []
    for name, layers in halves.items():
        at = tuple(layers)
        with _quiet():
            made = effect(
                model,
                [shown.text],
                _writes(model),
                hide_sinks(KEYS, rule=zscore(), layers=at),
                control=hide_random(KEYS, rule=zscore(), layers=at, matched_to="class", seed=unit),
                seed=unit,
            )
        kl = made.table.set_index("outcome").loc["kl"]
        numbers = ("difference", "control_difference", "did")
        found.append({"half": name} | {one: float(kl[one]) for one in numbers})
    return found


_HEADS: WeakKeyDictionary[Model, tuple[tuple[int, int], ...]] = WeakKeyDictionary()


def heads_out(model: Model, unit: int, options: Mapping[str, Any]) -> Rows:
    """Answers with retrieval heads taken out, with as many others of their layers, and unedited."""
    if model not in _HEADS:
        _HEADS[model] = _retrieval_heads(model)
    heads = _HEADS[model]
    sizes = {"layers": model.num_layers, "per_layer": model.num_heads}
    others = random_heads(heads, **sizes, seed=unit)
    arms: dict[str, tuple[Edit, ...]] = {
        "none": (),
        "heads": (knock_out(heads),),
        "others": (knock_out(others),),
    }
    found = []
    for index in range(unit * ITEMS, (unit + 1) * ITEMS):
        item = sets.ASKED[index]
        row: dict[str, Any] = {"item": index, "heads": len(heads)}
        for name, edits in arms.items():
            trace = run(model, item.prompt(), _writes(model), probes=(), edits=edits)
            row[f"right_{name}"] = right(trace, item)
        found.append(row)
    return found


def _retrieval_heads(model: Model) -> tuple[tuple[int, int], ...]:
    """The heads that look most at gold beyond other passages, at most half of any layer."""
    scores = [
        reads(_written(model, sets.ASKED[FAR + at], top_keys(), commit_regions())).beyond
        for at in range(FOUND_ON)
    ]
    if np.isnan(scores).all():
        raise EvidenceError(
            f"a model that writes answers: {model.source} wrote none to {FOUND_ON} prompts"
        )
    mean = np.nanmean(scores, axis=0)  # [layer, head]
    count = max(2, round(SHARE_OUT * mean.size))
    taken: list[tuple[int, int]] = []
    for place in np.argsort(-np.nan_to_num(mean), axis=None, kind="stable").tolist():
        layer, head = divmod(place, mean.shape[1])
        if sum(at == layer for at, _ in taken) < mean.shape[1] // 2 and len(taken) < count:
            taken.append((layer, head))
    return tuple(sorted(taken))


def weights(model: Model, unit: int, options: Mapping[str, Any]) -> Rows:
    """Some weights of each layer's attention, at places that a unit draws: a row a layer."""
    found = []
    for layer, module in enumerate(attention_modules(model.network)):
        named = sorted(dict(module.named_parameters()).items())
        matrix = next(held for _, held in named if held.ndim == 2).detach()
        chance = np.random.default_rng((unit, layer))
        rows, columns = (chance.integers(size, size=WEIGHTS) for size in matrix.shape)
        held = matrix[rows, columns].double().tolist()
        shape = "x".join(map(str, matrix.shape))
        found.append({"layer": layer, "shape": shape, "held": held})
    return found


def _writes(model: Model) -> Decoding:
    if model.family.kind == "arm":
        return LeftToRight(LENGTH, cache=False, stop=False)
    return LowConfidence(LENGTH, LENGTH)


def _written(
    model: Model, item: Item, *probes: Any, more: Mapping[str, Any] | None = None
) -> Trace:
    regions = dict(more or {}) | item.regions()
    return run(model, item.prompt(), _writes(model), regions=regions, probes=probes)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnchorwatchWarning)
        yield


ROWS = {
    one.__name__: one
    for one in (gold_places, first_rollout, query_split, hidden_by_depth, heads_out, weights)
}
