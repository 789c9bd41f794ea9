"""Tables that claims of 2510.15731 need and runs of a set do not give: maps, delays, masks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anchorwatch import metrics
from anchorwatch.edits.spec import Edit, hide_random, hide_sinks
from anchorwatch.errors import AnchorwatchWarning, PromptError
from anchorwatch.evaluation.synthetic import World
from anchorwatch.evaluation.teacher_forced import build_forced_run
from anchorwatch.generation.decoding import LowConfidence
from anchorwatch.generation.loop import walk
from anchorwatch.generation.run import build_recorder, run
from anchorwatch.models.model import Model
from anchorwatch.probes.spec import Probe, pattern, received
from anchorwatch.studies import prompts
from anchorwatch.studies.evidence import experiment
from anchorwatch.trace.trace import FRESH, MASKED, WRITTEN, Trace

LENGTH = 32
"""Positions that a run here writes, one a step."""
PAIRS = (4, 5, 12, 13, 20, 21, 28, 29)
"""Steps whose maps are looked at: neighbours, early and late."""
SHUFFLES = 19
"""A map is above all of so many shuffled ones by chance one time in twenty."""
FEW, MANY = 8, 56
"""Masks after a question: room for its answer, and 48 more."""
ITEMS = World("held-out", seed=prompts.SEED + 2)

Rows = list[dict[str, Any]]


@experiment("head_maps")
def head_maps(model: Model, unit: int, options: Mapping[str, Any]) -> Rows:
    """Of every head: how far its greatest key stands out of maps whose rows are shuffled, how alike
    the maps of neighbouring steps are, how often the greatest sink jumps, and whether masked and
    written queries look at different keys."""
    trace = _run_unit(model, unit, (received(), pattern(steps=PAIRS)))
    alike = metrics.map_similarity(trace, lags=[1], by=["layer", "head"])
    jumps = metrics.jumps(trace, by=["layer", "head"])
    quantities = {
        name: table[table["quantity"] == quantity].set_index(["layer", "head"])[["value", "null"]]
        for name, table, quantity in (
            ("cosine", alike, "map_cosine"),
            ("jumps", jumps, "jump_rate"),
        )
    }
    chance, rows = np.random.default_rng(unit), []
    steps, layers, heads = (trace[f"pick_{name}"].values for name in ("step", "layer", "head"))
    for layer, head in sorted(set(zip(layers.tolist(), heads.tolist(), strict=True))):
        picks = (layers == layer) & (heads == head)
        picked, roles = trace["pattern"].values[picks], trace.role[steps[picks]]
        row: dict[str, Any] = {"layer": layer, "head": head}
        for name, table in quantities.items():
            value, null = table.loc[(layer, head)]
            row |= {name: float(value), f"{name}_null": float(null)}
        rows.append(row | compare_with_shuffled(picked, chance) | own_keys(picked, roles, chance))
    return rows


def compare_with_shuffled(
    maps_of_head: np.ndarray, chance: np.random.Generator
) -> dict[str, float]:
    """Of [map, query, key]: share of maps whose greatest key is above that of all shuffled ones.

    A shuffle deals out each row's attention to its keys anew. `greatest` and `shuffled` are column
    sums, where even attention is 1.
    """
    above, most, even = [], [], []
    for attention in maps_of_head:
        greatest = attention.mean(axis=0).max()
        drawn = [chance.permuted(attention, axis=1).mean(axis=0).max() for _ in range(SHUFFLES)]
        above.append(greatest > max(drawn))
        most.append(greatest * attention.shape[1])
        even.append(np.mean(drawn) * attention.shape[1])
    lists = {"above": above, "greatest": most, "shuffled": even}
    return {name: float(np.mean(values)) for name, values in lists.items()}


def own_keys(
    maps_of_head: np.ndarray, roles: np.ndarray, chance: np.random.Generator
) -> dict[str, float]:
    """Of [map, query, key] and [map, position]: whether masked and written queries of the answer
    have greatest keys of their own, and the same of groups as large that are drawn among them."""
    sums: dict[str, list[float]] = {n: [] for n in ("own", "split", "own_drawn", "split_drawn")}
    for attention, role in zip(maps_of_head, roles, strict=True):
        asks = np.flatnonzero(np.isin(role, (MASKED, FRESH, WRITTEN)))
        masked = role[asks] == MASKED
        drawn = [own_key(attention[asks], chance.permutation(masked)) for _ in range(SHUFFLES)]
        for end, (own, split) in (
            ("", own_key(attention[asks], masked)),
            ("_drawn", np.mean(drawn, axis=0)),
        ):
            sums[f"own{end}"].append(own)
            sums[f"split{end}"].append(split)
    return {name: float(np.mean(values)) for name, values in sums.items()}


def own_key(rows: np.ndarray, first: np.ndarray) -> tuple[float, float]:
    """How much more each of two groups of queries gives its greatest key than the other group does.

    In even shares, the mean of both groups: 0 where they have the same greatest key. And whether
    they do not. `rows` [query, key], `first` [query] bool.
    """
    mine, other = rows[first].mean(axis=0), rows[~first].mean(axis=0)
    a, b = int(mine.argmax()), int(other.argmax())
    gap = (mine[a] - other[a] + other[b] - mine[b]) / 2
    return float(gap * rows.shape[1]), float(a != b)


@experiment("delayed")
def measure_delays(model: Model, unit: int, options: Mapping[str, Any]) -> Rows:
    """Whether positions that look at the sinks are written later, and less surely, without them.

    The first step hides nothing, so the second has the same canvas in every arm; what a position
    gives there, unedited, to the keys that are then hidden is held against its delay and against
    the change of its surest token. In a second row other keys are hidden, as many, and the
    attention is that to the sinks again.
    """
    clean = _run_unit(model, unit, (pattern(steps=(1,)),))
    arms = {"sinks": hide_sinks(1), "random": hide_random(1, seed=unit)}
    runs = {name: _run_unit(model, unit, (), (edit,)) for name, edit in arms.items()}
    looks, sure = looks_at_hidden(clean, runs["sinks"]), surest(model, clean, ())
    return [
        {"arm": name, "looks": float(looks.mean())}
        | delays(clean, runs[name], looks)
        | {"surer": partial_correlation(looks, surest(model, clean, (edit,)) - sure, sure)}
        for name, edit in arms.items()
    ]


def looks_at_hidden(clean: Trace, edited: Trace) -> np.ndarray:
    """[position masked at the second step] attention, unedited, to what the other run hides there:
    mean over layers and heads."""
    left = np.flatnonzero(clean.role[1] == MASKED)
    hidden = edited["hidden_keys"].values[1, :, :, 0]
    shares = clean["pattern"].values
    places = zip(clean["pick_layer"].values, clean["pick_head"].values, strict=True)
    looks = [attention[left, hidden[head]] for attention, head in zip(shares, places, strict=True)]
    return np.asarray(np.mean(looks, axis=0))


def surest(model: Model, clean: Trace, edits: Sequence[Edit]) -> np.ndarray:
    """[position masked at the second step] greatest log-probability there, on the clean canvas."""
    job = build_forced_run(model, clean, edits, ())
    steps = walk(model, [job], build_recorder(model, (), [job]))
    next(steps)
    job.buffer.next_block()  # it holds one step
    next(steps)
    assert job.rows is not None
    return job.rows.double().log_softmax(dim=-1).amax(dim=-1).cpu().numpy()


def delays(clean: Trace, edited: Trace, looks: np.ndarray) -> dict[str, float]:
    """Of the positions that are masked at the second step.

    A position that was written early can only be written later: the clean step is held fixed.
    """
    left = np.flatnonzero(clean.role[1] == MASKED)
    was = clean.committed_at[left].astype(float)
    delay = edited.committed_at[left] - was
    return {
        "later": partial_correlation(looks, delay, was),
        "moved": float(np.mean(delay != 0)),
    }


def partial_correlation(first: np.ndarray, other: np.ndarray, given: np.ndarray) -> float:
    """Pearson's of what a straight line in `given` leaves of both.

    0 where nothing changed, `other` being all the same; NaN where one of the rests does not vary.
    """
    if np.ptp(other) == 0:
        return 0.0
    line = np.stack([np.ones_like(given), given], axis=1)
    rests = [x - line @ np.linalg.lstsq(line, x, rcond=None)[0] for x in (first, other)]
    scale = [max(float(np.abs(x).max()), 1e-300) for x in (first, other)]
    flat = any(np.abs(r).max() <= 1e-9 * size for r, size in zip(rests, scale, strict=True))
    return float("nan") if flat else correlation(rests[0], rests[1])


def correlation(first: np.ndarray, other: np.ndarray) -> float:
    """Pearson's; NaN where one of them does not vary."""
    a, b = first - first.mean(), other - other.mean()
    size = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / size if size > 0 else float("nan")


@experiment("added_masks")
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
    gold, rows = int(whole[len(given)]), []
    for masks in (FEW, MANY):
        trace = run(model, prompt, LowConfidence(masks, 1), probes=(received(),))
        frame, position = trace.canvas[0], int(trace.answer[0])
        logprobs = model.logprobs(frame.tolist())[position]
        shares = trace["received"].sel(group="masked").values[0]
        masked = trace.role[0] == MASKED
        row = {"masks": masks, "right": float(int(logprobs.argmax()) == gold)}
        row |= {"logprob": float(logprobs[gold]), "even": float(masked.mean())}
        rows.append(row | {"mass": float(shares[..., masked].sum(axis=-1).mean())})
    return rows


def _run_unit(
    model: Model, unit: int, probes: Sequence[Probe], edits: Sequence[Edit] = ()
) -> Trace:
    how = LowConfidence(LENGTH, LENGTH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnchorwatchWarning)
        return run(
            model, prompts.prompt_of("asked", unit).text, how, probes=probes, edits=edits, seed=unit
        )
