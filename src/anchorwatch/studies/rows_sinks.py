"""Tables that claims of 2510.15731 need and runs of a set do not give: maps, delays, masks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anchorwatch import metrics
from anchorwatch.decoding import LowConfidence
from anchorwatch.edits import Edit, hide_random, hide_sinks
from anchorwatch.errors import AnchorwatchWarning, PromptError
from anchorwatch.models.model import Model
from anchorwatch.probes import Probe, pattern, received
from anchorwatch.runs import run
from anchorwatch.studies import sets
from anchorwatch.trace import MASKED, Trace
from anchorwatch.worlds import World

LENGTH = 32
"""Positions that a run here writes, one a step."""
PAIRS = (4, 5, 12, 13, 20, 21, 28, 29)
"""Steps whose maps are looked at: neighbours, early and late."""
SHUFFLES = 19
"""A map is above all of so many shuffled ones by chance one time in twenty."""
FEW, MANY = 8, 56
"""Masks after a question: room for its answer, and 48 more."""
ITEMS = World("held-out", seed=sets.SEED + 2)

Rows = list[dict[str, Any]]


def maps(model: Model, unit: int, options: Mapping[str, Any]) -> Rows:
    """Of every head: how far its greatest key stands out of maps whose rows are shuffled, how alike
    the maps of neighbouring steps are, and how often the greatest key jumps."""
    trace = _written(model, unit, (received(), pattern(steps=PAIRS)))
    alike = metrics.map_similarity(trace, lags=[1], by=["layer", "head"])
    jumps = metrics.jumps(trace, by=["layer", "head"])
    cosine, jumped = (
        table[table["quantity"] == name].set_index(["layer", "head"])["value"]
        for table, name in ((alike, "map_cosine"), (jumps, "jump_rate_any"))
    )
    chance, found = np.random.default_rng(unit), []
    layers, heads = trace["pick_layer"].values, trace["pick_head"].values
    for layer, head in sorted(set(zip(layers.tolist(), heads.tolist(), strict=True))):
        picked = trace["pattern"].values[(layers == layer) & (heads == head)]
        row: dict[str, Any] = {"layer": layer, "head": head}
        row |= {"cosine": float(cosine[layer, head]), "jumps": float(jumped[layer, head])}
        found.append(row | stands_out(picked, chance))
    return found


def stands_out(maps_of_head: np.ndarray, chance: np.random.Generator) -> dict[str, float]:
    """Of [map, query, key]: share of maps whose greatest key is above that of all shuffled ones.

    A shuffle deals out each row's attention to its keys anew. `greatest` and `shuffled` are column
    sums, where even attention is 1.
    """
    above, most, even = [], [], []
    for one in maps_of_head:
        greatest = one.mean(axis=0).max()
        drawn = [chance.permuted(one, axis=1).mean(axis=0).max() for _ in range(SHUFFLES)]
        above.append(greatest > max(drawn))
        most.append(greatest * one.shape[1])
        even.append(np.mean(drawn) * one.shape[1])
    said = {"above": above, "greatest": most, "shuffled": even}
    return {name: float(np.mean(values)) for name, values in said.items()}


def postponed(model: Model, unit: int, options: Mapping[str, Any]) -> Rows:
    """Whether positions that look at the hidden keys are written later, and less surely.

    The first step hides nothing, so the second has the same canvas in every arm; what a position
    gives there, unedited, to the keys that are then hidden is held against its delay. A row for
    sinks and one for as many other keys.
    """
    clean = _written(model, unit, (pattern(steps=(1,)),))
    arms = {"sinks": hide_sinks(1), "random": hide_random(1, seed=unit)}
    return [
        {"arm": name} | delays(clean, _written(model, unit, (), (edit,)))
        for name, edit in arms.items()
    ]


def delays(clean: Trace, edited: Trace) -> dict[str, float]:
    """Correlations over the positions that are masked at the second step; NaN without variation."""
    left = np.flatnonzero(clean.role[1] == MASKED)
    hidden = edited["hidden_keys"].values[1, :, :, 0]
    shares = clean["pattern"].values
    places = zip(clean["pick_layer"].values, clean["pick_head"].values, strict=True)
    looks = np.mean(
        [one[left, hidden[place]] for one, place in zip(shares, places, strict=True)], axis=0
    )
    delay = (edited.committed_at - clean.committed_at)[left].astype(float)
    surer = (edited.logprob - clean.logprob)[left].astype(float)
    return {
        "later": correlation(looks, delay),
        "surer": correlation(looks, surer),
        "moved": float(np.mean(delay != 0)),
        "looks": float(looks.mean()),
    }


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's; NaN where one of them does not vary."""
    a, b = one - one.mean(), other - other.mean()
    size = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / size if size > 0 else float("nan")


def added_masks(model: Model, unit: int, options: Mapping[str, Any]) -> Rows:
    """The first token of an answer before few masks and before many, in one pass.

    `mass` is what masked queries give to masks, mean over layers and heads; `even` what indifferent
    ones would.
    """
    item = ITEMS[unit]
    prompt = item.prompt()
    given, whole = model.encode(prompt), model.encode(f"{prompt} {item.answers[0]}")
    if list(whole[: len(given)]) != list(given) or len(whole) == len(given):
        raise PromptError("the answer is not spelled in tokens of its own after this prompt")
    gold, found = int(whole[len(given)]), []
    for masks in (FEW, MANY):
        trace = run(model, prompt, LowConfidence(masks, 1), probes=(received(),))
        frame, at = trace.canvas[0], int(trace.answer[0])
        said = model.logprobs(frame.tolist())[at]
        shares = trace["received"].sel(group="masked").values[0]
        masked = trace.role[0] == MASKED
        row = {"masks": masks, "right": float(int(said.argmax()) == gold)}
        row |= {"logprob": float(said[gold]), "even": float(masked.mean())}
        found.append(row | {"mass": float(shares[..., masked].sum(axis=-1).mean())})
    return found


def _written(model: Model, unit: int, probes: Sequence[Probe], edits: Sequence[Edit] = ()) -> Trace:
    how = LowConfidence(LENGTH, LENGTH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnchorwatchWarning)
        return run(
            model, sets.shown("asked", unit).text, how, probes=probes, edits=edits, seed=unit
        )


ROWS = {"maps": maps, "postponed": postponed, "added_masks": added_masks}
