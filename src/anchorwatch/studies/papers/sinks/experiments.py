"""Tables that claims of 2510.15731 need and runs of a set do not give: maps, delays, masks."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from anchorwatch import metrics
from anchorwatch.edits.spec import Edit, hide_keys, hide_random, hide_sinks
from anchorwatch.errors import AnchorwatchWarning, PromptError
from anchorwatch.evaluation.teacher_forced import build_forced_run, read_clean_frames
from anchorwatch.generation.decoding import Decoding, LeftToRight, LowConfidence
from anchorwatch.generation.loop import walk
from anchorwatch.generation.run import build_recorder, run
from anchorwatch.metrics.sink_rules import rulli
from anchorwatch.models.model import Model
from anchorwatch.models.wired import NAMES as WIRED
from anchorwatch.probes.spec import Probe, pattern, received
from anchorwatch.studies import prompts
from anchorwatch.studies.evidence import experiment
from anchorwatch.studies.papers.sinks.measures import BLOCK, LENGTH
from anchorwatch.studies.protocols import DEFAULT_PROTOCOL, Protocol
from anchorwatch.trace.trace import MASKED, Trace

PAIRS = (4, 5, 12, 13, 20, 21, 28, 29)
"""Steps whose maps are looked at: neighbours, early and late."""
SHUFFLES = 19
"""A map is above all of so many shuffled ones by chance one time in twenty."""
TURNS = 0.1
"""Attention that a query must give a new sink, beyond what it gave it before, to have turned."""
FEW, MANY = 8, 56
"""Masks after a question: room for its answer, and 48 more."""
CONTINUED = 16
"""Tokens written after a context of which a part is discarded."""

Rows = list[dict[str, Any]]


@experiment("head_maps", reads=(prompts.TEXT,))
def head_maps(
    model: Model, unit: int, options: Mapping[str, Any], protocol: Protocol = DEFAULT_PROTOCOL
) -> Rows:
    """Of every head: how far its greatest key stands out of maps whose rows are shuffled, how alike
    the maps of neighbouring steps are, how often the greatest sink jumps, whether masked and
    unmasked queries have sinks of their own, and whether a new sink takes self-attention."""
    # 1. A run that keeps the maps of neighbouring steps, and what is measured of all heads at once.
    trace = _run_unit(model, unit, (received(), pattern(steps=PAIRS)), protocol=protocol)
    alike = metrics.map_similarity(trace, lags=[1], by=["layer", "head"])
    jumps = metrics.jumps(trace, by=["layer", "head"])
    quantities = {
        name: table[table["quantity"] == quantity].set_index(["layer", "head"])[["value", "null"]]
        for name, table, quantity in (
            ("cosine", alike, "map_cosine"),
            ("jumps", jumps, "jump_rate"),
        )
    }
    # 2. Head by head, what reads its maps.
    chance, rows = np.random.default_rng(unit), []
    steps, layers, heads = (trace[f"pick_{name}"].values for name in ("step", "layer", "head"))
    for layer, head in sorted(set(zip(layers.tolist(), heads.tolist(), strict=True))):
        picks = (layers == layer) & (heads == head)
        picked, roles = trace["pattern"].values[picks], trace.role[steps[picks]]
        row: dict[str, Any] = {"layer": layer, "head": head}
        for name, table in quantities.items():
            value, null = table.loc[(layer, head)]
            row |= {name: float(value), f"{name}_null": float(null)}
        row |= compare_with_shuffled(picked, chance) | own_sinks(picked, roles, chance)
        rows.append(row | self_attention_taken(picked, steps[picks]))
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


def own_sinks(
    maps_of_head: np.ndarray, roles: np.ndarray, chance: np.random.Generator
) -> dict[str, float]:
    """Of [map, query, key] and [map, position]: how often masked and unmasked queries have sinks
    of their own, and the same of groups as large that are drawn among all queries."""
    split, drawn = [], []
    for attention, role in zip(maps_of_head, roles, strict=True):
        masked = role == MASKED
        split.append(have_own_sinks(attention, masked))
        shuffled = [chance.permutation(masked) for _ in range(SHUFFLES)]
        drawn.append(np.mean([have_own_sinks(attention, first) for first in shuffled]))
    return {"split": float(np.mean(split)), "split_drawn": float(np.mean(drawn))}


def have_own_sinks(rows: np.ndarray, first: np.ndarray) -> float:
    """1 if both groups of queries give their greatest key what a sink gets, and it is not the same
    key, else 0. `rows` [query, key], `first` [query] bool; NaN where a group is empty."""
    if not first.any() or first.all():
        return float("nan")
    shares = np.stack([rows[first].mean(axis=0), rows[~first].mean(axis=0)])
    greatest = shares.argmax(axis=1)
    are_sinks = np.take_along_axis(rulli().labels(shares), greatest[:, None], axis=1)
    return float(are_sinks.all() and greatest[0] != greatest[1])


def self_attention_taken(maps_of_head: np.ndarray, steps: np.ndarray) -> dict[str, float]:
    """Of [map, query, key] at neighbouring steps: what queries that turn to a new sink lose of the
    attention to themselves, as a share of it, and what they would if all keys lost in proportion.

    A new sink is the greatest key of the later map, a sink there and not the greatest before. A
    query turns that gives it at least TURNS more. NaN where no query does.
    """
    before = lost = expected = 0.0
    turned = 0
    for index in np.flatnonzero(np.diff(steps) == 1):
        earlier, later = maps_of_head[index], maps_of_head[index + 1]
        shares = later.mean(axis=0)
        sink = int(shares.argmax())
        if not rulli().labels(shares)[sink] or earlier.mean(axis=0).argmax() == sink:
            continue
        gain = later[:, sink] - earlier[:, sink]
        queries = np.flatnonzero((gain >= TURNS) & (np.arange(len(gain)) != sink))
        own = earlier[queries, queries]
        before += own.sum()
        lost += (own - later[queries, queries]).sum()
        # Others lose in proportion: a key keeps (1 - later sink) / (1 - earlier sink) of its own.
        expected += (own * gain[queries] / (1 - earlier[queries, sink])).sum()
        turned += len(queries)
    taken = {"turned": float(turned), "self_lost": np.nan, "self_expected": np.nan}
    if before > 0:
        taken |= {"self_lost": lost / before, "self_expected": expected / before}
    return {name: float(value) for name, value in taken.items()}


@experiment("untrained_twin", reads=(prompts.TEXT,))
def compare_with_untrained(
    model: Model, unit: int, options: Mapping[str, Any], protocol: Protocol = DEFAULT_PROTOCOL
) -> Rows:
    """Sinks of the model and of its untrained twin on one prompt, and how much each has learnt.

    `heads` is the share of (step, layer, head) with a sink, `steps` the share of steps at which any
    head has one, `learnt` the log-probability of hidden tokens of the prompt above that of a guess.
    """
    rows, known = [], None
    text = protocol.prompt_of(prompts.TEXT, unit).text
    if model.source in WIRED:  # it knows no story, only what it writes itself
        wrote = _run_unit(model, unit, (), block=None, protocol=protocol)
        known = [int(wrote.own[0]), *wrote.own[wrote.answer].tolist()]  # after a start token
    for name, network in (("trained", model), ("untrained", initialise_again(model, seed=unit))):
        trace = _run_unit(network, unit, (received(),), steps=LENGTH // 4, protocol=protocol)
        by_step = metrics.sinks(trace, by=["step"])
        share = by_step[by_step["quantity"] == "incidence"]["value"]
        row = {"network": name, "heads": float(share.mean()), "steps": float((share > 0).mean())}
        rows.append(row | {"learnt": gain_over_guessing(network, text if known is None else known)})
    return rows


@torch.no_grad()
def initialise_again(model: Model, *, seed: int) -> Model:
    """The model as training would begin: matrices normal with the config's spread, norms 1,
    biases 0."""
    network = copy.deepcopy(model.network)
    spread = float(getattr(network.config, "initializer_range", 0.02))
    for name, tensor in network.named_parameters():
        if tensor.ndim == 1:
            tensor.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8]
        chance = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        noise = torch.randn(tensor.shape, generator=chance)
        tensor.copy_((spread * noise).to(tensor))
    return replace(model, source=f"untrained/{model.source}", network=network)


def gain_over_guessing(model: Model, text: Any) -> float:
    """Mean log-probability of every fourth token of a text, masked, plus log of the vocabulary: in
    nats, 0 of a guess among all tokens. The text is what `encode` takes, or token ids."""
    is_ids = not isinstance(text, str) and all(isinstance(token, int) for token in text)
    tokens = list(map(int, text if is_ids else model.encode(text)))
    hidden = range(3, len(tokens), 4)
    canvas = [model.mask_id if index in hidden else token for index, token in enumerate(tokens)]
    logprobs = model.logprobs(canvas)
    each = [float(logprobs[index, tokens[index]]) for index in hidden]
    return float(np.mean(each) + np.log(logprobs.shape[-1]))


@experiment("discarded_context", reads=("two unrelated",))
def discard_context(
    model: Model, unit: int, options: Mapping[str, Any], protocol: Protocol = DEFAULT_PROTOCOL
) -> Rows:
    """What a model says after its oldest context is discarded, and after as much other context is.

    The prompt has two unrelated passages before its own. From the second step on, all up to the
    end of the first passage is hidden, or as many tokens of the second passage; keys and values
    that an autoregressive model made before stay as they are. Rows are read on the clean frames.
    """
    # 1. Oldest, other and own passage, and the question; the clean run.
    item = protocol.item_of("two unrelated", unit)
    others = [index for index, passage in enumerate(item.passages) if not passage.gold]
    golds = [index for index, passage in enumerate(item.passages) if passage.gold]
    item = item.arrange([*others, *golds])
    how: Decoding = LowConfidence(CONTINUED, CONTINUED)
    if model.family.kind == "arm":
        how = LeftToRight(CONTINUED, cache=True, stop=False)
    with _quietly():
        clean = run(model, item.prompt(), how, regions=item.regions(), probes=(), seed=unit)
    # 2. Positions of either passage, as many of both.
    region, names = clean["region"].values, list(clean.manifest["regions"])
    first, second = (
        np.flatnonzero(region == names.index(f"distractor {number}")) for number in (1, 2)
    )
    oldest = np.arange(first.max() + 1)  # what stands before the passage too: the first token
    count = min(len(oldest), len(second))
    arms = {"oldest": oldest, "other": second[:count]}
    # 3. Every arm on the clean frames; nothing is discarded before the first token.
    later = tuple(range(1, clean.num_steps))
    edits = [(hide_keys(tuple(map(int, keys)), steps=later),) for keys in arms.values()]
    readings = read_clean_frames(model, clean, edits, rulli())
    return [
        {"discarded": name, "keys": len(keys)}
        | {"agreement": reading.values["argmax_agreement"], "kl": reading.values["kl"]}
        for (name, keys), reading in zip(arms.items(), readings, strict=False)
    ]


@experiment("delayed", reads=(prompts.TEXT,))
def measure_delays(
    model: Model, unit: int, options: Mapping[str, Any], protocol: Protocol = DEFAULT_PROTOCOL
) -> Rows:
    """Whether positions that look at the sinks are written later, and less surely, without them.

    The first step hides nothing, so the second has the same canvas in every arm; what a position
    gives there, unedited, to the keys that are then hidden is held against its delay and against
    the change of its surest token. In a second row other keys are hidden, as many, and the
    attention is that to the sinks again.
    """

    def write(probes: Sequence[Probe], *edits: Edit) -> Trace:
        return _run_unit(model, unit, probes, edits, block=None, protocol=protocol)

    clean = write((pattern(steps=(1,)),))
    arms = {"sinks": hide_sinks(1), "random": hide_random(1, seed=unit)}
    runs = {name: write((), edit) for name, edit in arms.items()}
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


@experiment("added_masks", reads=("other own passage",))
def added_masks(
    model: Model, unit: int, options: Mapping[str, Any], protocol: Protocol = DEFAULT_PROTOCOL
) -> Rows:
    """The first token of an answer before few masks and before many, in one pass.

    `mass` is what masked queries give to masks, mean over layers and heads; `even` what indifferent
    ones would.
    """
    item = protocol.item_of("other own passage", unit)
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
    model: Model,
    unit: int,
    probes: Sequence[Probe],
    edits: Sequence[Edit] = (),
    *,
    steps: int = LENGTH,
    block: int | None = BLOCK,
    protocol: Protocol = DEFAULT_PROTOCOL,
) -> Trace:
    """A run that goes on with running text, without end tokens."""
    how = LowConfidence(LENGTH, steps, block=block, forbid_end=True)
    text = protocol.prompt_of(prompts.TEXT, unit).text
    with _quietly():
        return run(model, text, how, probes=probes, edits=edits, seed=unit)


@contextmanager
def _quietly() -> Iterator[None]:
    """Our own warnings are in the manifest of a run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnchorwatchWarning)
        yield
