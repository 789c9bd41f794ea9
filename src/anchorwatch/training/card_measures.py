"""What is measured of a trained network, for model cards and for the table of variants.

Everything is about held-out text and held-out questions, the same for every network that has the
same tokenizer; noise is addressed, so that arms are asked about the same tokens. Three parts: NLL
bounds and answers; sinks while the network writes; attention on held-out text at fixed shares of
masks, where each row is masked at every t with the numbers that training noise has. What is said
of a head there is a mean over rows; [layer, head] and [layer] arrays first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from anchorwatch import metrics
from anchorwatch.edits.spec import gate
from anchorwatch.evaluation.synthetic import Distractors, Draw, Item, World
from anchorwatch.generation.decoding import LeftToRight, LowConfidence
from anchorwatch.generation.run import run, run_many
from anchorwatch.metrics import sink_rules as rules
from anchorwatch.metrics import stats
from anchorwatch.metrics.layer_slices import find_top_key
from anchorwatch.models.additions import gate_of
from anchorwatch.models.model import Model
from anchorwatch.models.prompt_encoding import Prompt
from anchorwatch.models.sites import attention_modules, layer_modules
from anchorwatch.models.trained_additions import fit_trained_addition
from anchorwatch.probes import spec as probes
from anchorwatch.trace.trace import Trace
from anchorwatch.training import noise
from anchorwatch.training.corpora import Corpus, Mix
from anchorwatch.training.data import Example, Passages
from anchorwatch.training.held_out import NLLBound, answers, nll_bound
from anchorwatch.training.variants import VERSION

SEED = 20_000
"""Of held-out rows, items and noise: no training seed comes near it."""
BINS = 5
"""Of t, for the bound."""
RUNNING = ("passages", "retold", "backcopy", "prose", "file")
"""Kinds of rows that fill any length."""
ROOM = 16
"""Positions an answer is written into."""


@dataclass(frozen=True)
class Effort:
    """How much is measured: rows, items, runs."""

    examples: int = 256
    """Held-out rows of the bound."""
    draws: int = 4
    """Of the noise on each."""
    items: int = 200
    """Questions in each context."""
    prompts: int = 12
    """Runs of each kind that are watched."""
    texts: int = 12
    """Rows that are looked at with masks."""
    steps: int = 32
    """Denoising steps of a watched run of text."""


CONTEXTS: Mapping[str, tuple[World, str]] = {
    "closed": (World("held-out", seed=SEED), "closed"),
    "gold": (World("held-out", seed=SEED), "open"),
    "gold+2": (
        World("held-out", seed=SEED, distractors=Distractors(random=1, hard=1)),
        "open",
    ),
    "two-hop": (World("held-out", hops=2, seed=SEED), "open"),
}
"""Questions: one hop without its passage, with it, with a random and a hard distractor; two."""


def measure_model(model: Model, corpus: Corpus, effort: Effort | None = None) -> dict[str, Any]:
    """All that cards and tables say of a network, as nested plain values; absent is NaN.

    `corpus` is what it was trained on; its held-out split is read, with other rows.
    """
    effort = effort or Effort()
    held_out = replace(corpus, split="held-out", seed=SEED)
    plain = plain_text(held_out, model.num_positions)
    return {
        "version": VERSION,
        "effort": asdict(effort),
        "bound": measure_bounds(model, held_out, effort),
        "length": measure_lengths(model, plain, held_out.length, effort),
        "answers": {name: measure_answers(model, name, effort.items) for name in CONTEXTS},
        "noisy": measure_noisy(model, _read_rows(plain, held_out.length, effort.texts), SEED),
        "asked": measure_written(model, _prompts(effort.prompts), ROOM, ROOM),
        "text": _measure_continuations(model, plain, held_out.length, effort),
    }


def measure_bounds(model: Model, held_out: Corpus, effort: Effort) -> dict[str, Any]:
    """Nats per scored token with its null: all rows, by kind of row, by t, of answers alone."""
    rows = [held_out[index] for index in range(effort.examples)]
    kinds, asks = np.array([row.kind for row in rows]), np.array([_has_answer(row) for row in rows])
    cost = nll_bound(model, held_out, examples=effort.examples, draws=effort.draws, seed=SEED)
    measures: dict[str, Any] = {"all": bound_of(cost, np.ones(len(kinds), dtype=bool))}
    measures["kind"] = {kind: bound_of(cost, kinds == kind) for kind in sorted(set(kinds))}
    times = cost.by_time(BINS)
    measures["t"] = {
        f"{row.t_low:.1f}-{row.t_high:.1f}": {"value": row.value, "masked": row.masked}
        for row in times.itertuples()
    }
    if asks.any():
        only = nll_bound(
            model,
            held_out,
            examples=effort.examples,
            draws=effort.draws,
            answer_only=True,
            seed=SEED,
        )
        measures["answers"] = bound_of(only, asks)
    return measures


def _has_answer(row: Example) -> bool:
    """Whether a row has a prompt, and an answer that is more than the row."""
    return bool(row.scored.any() and not row.scored.all())


def bound_of(cost: NLLBound, chosen: np.ndarray) -> dict[str, float]:
    """The bound of some of its sequences, with an interval over them."""
    nats, scored = cost.nats.mean(axis=0)[chosen], cost.scored[chosen]
    spread = stats.ratio(nats, scored, paired=True)
    return {
        "value": float(nats.sum() / scored.sum()),
        "low": float(spread.low),
        "high": float(spread.high),
        "null": cost.null,
        "n": int(chosen.sum()),
    }


def measure_lengths(model: Model, plain: Corpus, trained: int, effort: Effort) -> dict[str, Any]:
    """The bound of the same text cut to a quarter, a half and all of the training length, and to
    all positions there are."""
    measures = {}
    for name, length in lengths(trained, model.num_positions).items():
        cost = nll_bound(
            model,
            plain,
            examples=max(1, effort.examples // 2),
            draws=effort.draws,
            length=length,
            seed=SEED,
        )
        measures[name] = bound_of(cost, np.ones(len(cost.scored), dtype=bool)) | {"length": length}
    return measures


def lengths(trained: int, positions: int) -> dict[str, int]:
    """Named lengths in order; `longest` only where it is beyond training."""
    named = {"quarter": trained // 4, "half": trained // 2, "trained": trained}
    return named | ({"longest": positions} if positions > trained else {})


def plain_text(held_out: Corpus, length: int) -> Corpus:
    """The mix's kinds of running text at another length; passages, where it has none."""
    pairs = zip(held_out.mix.sources, held_out.mix.shares, strict=True)
    kept = [(source, share) for source, share in pairs if source.kind in RUNNING]
    sources, shares = zip(*kept, strict=True) if kept else ((Passages(),), (1.0,))
    return replace(held_out, mix=Mix(tuple(sources), tuple(shares)), length=length)


def measure_answers(model: Model, context: str, count: int) -> dict[str, float]:
    """Exact match of greedy answers in a context, Wilson's interval, and the guesser's null."""
    world, book = CONTEXTS[context]
    table = answers(model, [world[i] for i in range(count)], book=book, length=ROOM)
    share = stats.wilson(int(table["right"].sum()), len(table))
    return {
        "value": float(share.value),
        "low": float(share.low),
        "high": float(share.high),
        "null": float(table["null"].mean()),
        "n": len(table),
    }


def _prompts(count: int) -> list[str]:
    """One-hop questions with their passage, other ones than are scored."""
    world: World = replace(CONTEXTS["gold"][0], seed=SEED + 1)
    items: list[Item] = [world[index] for index in range(count)]
    return [item.prompt() for item in items]


def _read_rows(plain: Corpus, length: int, count: int) -> list[np.ndarray]:
    return [np.asarray(plain[index].ids[:length], dtype=np.int64) for index in range(count)]


def _measure_continuations(
    model: Model, plain: Corpus, length: int, effort: Effort
) -> dict[str, Any]:
    """Watched runs that write three quarters of a text after its first quarter."""
    given = max(2, length // 4)
    prompts = [row[:given].tolist() for row in _read_rows(plain, length, effort.prompts)]
    return measure_written(model, prompts, length - given, effort.steps)


def flatten_measures(measures: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """One row of a table: names with dots, the value of what has one and its null as `.null`.

    Intervals of one network are left out: they are not evidence for a kind of network.
    """
    row: dict[str, Any] = {}
    for name, measure in measures.items():
        column = f"{prefix}{name}"
        if isinstance(measure, Mapping) and "value" in measure:
            row[column] = measure["value"]
            row |= {f"{column}.{key}": measure[key] for key in _BESIDE if key in measure}
        elif isinstance(measure, Mapping):
            row |= flatten_measures(measure, f"{column}.")
        elif isinstance(measure, list):
            row |= {f"{column}.{index}": value for index, value in enumerate(measure)}
        else:
            row[column] = measure
    return row


_BESIDE = ("null", "masked", "sink", "length")


def plain_values(value: Any) -> Any:
    """For JSON, which has no NaN: absent becomes null."""
    if isinstance(value, Mapping):
        return {name: plain_values(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain_values(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


RULES = {
    "gu": rules.gu(0.3),
    "ratio": rules.ratio(10),
    "rulli": rules.rulli(3),
    "zscore": rules.zscore(3),
}
"""gu asks for a share, the others for so many times, or so far from, the rest: length-free."""
WRITING_PROBES = (probes.received(groups=("all",), dtype="float32"), probes.norms(keys=True))
SINK = -2
"""Where the greatest key is if it is an added one."""


def measure_written(
    model: Model, prompts: Sequence[Prompt], length: int, steps: int
) -> dict[str, Any]:
    """Sink statistics of the runs that write `length` positions after each prompt, with nulls.

    Intervals resample prompts: they say how sure a number is of this model, not of its kind.
    """
    decoding = LowConfidence(length=length, steps=min(steps, length))
    greedy = LeftToRight(length=length) if model.family.kind == "arm" else decoding
    traces = run_many(model, list(prompts), greedy, probes=WRITING_PROBES)
    measures: dict[str, Any] = {
        "incidence": {
            name: read_cells(metrics.sinks(traces, rule, by=()))["incidence"]
            for name, rule in RULES.items()
        },
        "greatest": read_cells(metrics.sinks(traces, RULES["rulli"], by=()))["greatest"],
        "greatest_is": _read_classes(metrics.enrichment(traces, rules.topk(1))),
        "switch_all": measure_switches(traces),
        "n": len(traces),
    }
    moves = read_cells(metrics.jumps(traces, RULES["rulli"], by=()))
    measures |= {"switch": moves["jump_rate_any"], "switch_sinks": moves["jump_rate"]}
    norms = read_cells(metrics.value_norms(traces, RULES["rulli"], by=()))
    return measures | {"sink_value": norms["ratio"], "sink_value_auroc": norms["auroc"]}


def read_cells(table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Quantities of a metric's table that is split by nothing."""
    names = ["value", "null", "low", "high", "n"]
    return {
        row["quantity"]: {name: float(row[name]) for name in names} for _, row in table.iterrows()
    }


def _read_classes(table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Share of the greatest keys that each token class has, and of all keys."""
    kept = table[table["value"].notna()]
    return {
        str(row["class"]).replace(" ", "_"): {
            "value": float(row["value"]),
            "null": float(row["null"]),
        }
        for _, row in kept.iterrows()
    }


def measure_switches(traces: Sequence[Trace]) -> dict[str, float]:
    """How often the greatest of all keys, added ones included, is another than a step before.

    Added keys count as one, by what they receive together. The mean over prompts of the share of
    (step, layer, head) that have a step before; `sink` is how often the greatest is an added key.
    """
    moved, added = [], []
    for trace in traces:
        path = greatest_path(trace)
        present = (path[1:] >= SINK) & (path[:-1] >= SINK)
        moved.append(np.mean((path[1:] != path[:-1])[present]) if present.any() else np.nan)
        added.append(np.mean(path[path >= SINK] == SINK))
    value = float(np.nanmean(moved)) if np.isfinite(moved).any() else float("nan")
    return {"value": value, "sink": float(np.mean(added)), "n": len(traces)}


_NOWHERE = -3


def greatest_path(trace: Trace) -> np.ndarray:
    """[step, layer, head] the greatest key: a position, -2 an added key, -3 not measured."""
    position, share = find_top_key(trace["received"].sel(group="all").values)
    path = np.where(position >= 0, position, _NOWHERE)
    if "sink_received" in trace:
        sink = np.nan_to_num(trace["sink_received"].sel(group="all").values)
        path = np.where(sink > share, SINK, path)  # never where the share is NaN
    return path


TIMES = (0.05, 0.2, 0.5, 0.8, 0.95)
NOISY_PROBES = (
    probes.received(groups=("all", "masked"), dtype="float32"),
    probes.diagonal(rows=True),
    probes.norms(keys=True, residual=True),
    probes.massive(k=1),
    probes.mixing(),
)
BY_LAYER = (
    *("mask_value_ratio", "sink_value_ratio", "sink_mass", "gate", "spread"),
    *("residual_peak", "massive", "state_cosine", "effective_rank"),
)
"""What is also kept for each layer, as a mean over t."""

HeadArrays = dict[str, np.ndarray]


def measure_noisy(model: Model, texts: Sequence[np.ndarray], seed: int = 0) -> dict[str, Any]:
    """Means over texts at each t, and over all t by layer; an autoregressive model has t = 0 only.

    mask_share: attention on masked keys other than oneself, over their share of the keys, of
    visible and of masked queries; 1 for even attention. mask_preference: the same among what goes
    to other tokens of the canvas. null_mass: on added keys, oneself, and masks together.
    """
    times = TIMES if model.family.kind == "mdm" else (0.0,)
    rows_by_time = {t: [looks for looks in _run_at(model, texts, t, seed) if looks] for t in times}
    by_time = {
        f"{t:g}": {name: _mean([looks[name] for looks in rows]) for name in rows[0]}
        | {"n": len(rows)}
        for t, rows in rows_by_time.items()
        if rows
    }
    every = [looks for rows in rows_by_time.values() for looks in rows]
    layers = {name: _by_layer([looks[name] for looks in every]) for name in BY_LAYER}
    return {"t": by_time, "layer": layers}


def _run_at(model: Model, texts: Sequence[np.ndarray], t: float, seed: int) -> Iterator[HeadArrays]:
    for index, ids in enumerate(texts):
        canvas = torch.as_tensor(ids, dtype=torch.int64)
        if model.family.kind == "arm":
            trace = run(model, canvas[:-1].tolist(), LeftToRight(length=1), probes=NOISY_PROBES)
            yield read_first_step(model, trace) | measure_states(model, canvas[:-1], (index, seed))
            continue
        masked = torch.from_numpy(noise.draw_masks(seed, 0, index, t, len(canvas)))
        if not 0 < int(masked.sum()) < len(canvas):
            yield {}
            continue
        canvas = torch.where(masked, model.mask_id, canvas)
        trace = run(model, canvas=canvas, decoding=LowConfidence(steps=1), probes=NOISY_PROBES)
        yield read_first_step(model, trace) | measure_states(model, canvas, (index, seed))


def read_first_step(model: Model, trace: Trace) -> HeadArrays:
    """What the first step of a trace saw: [layer, head] of attention, [layer] of states."""
    present = trace.canvas[0] >= 0
    positions = int(present.sum())
    masked = trace.masked[0][present]
    norms = trace["each_value_norm"].values[0][..., present].mean(axis=1)  # [layer, key]
    residual = trace["residual_norm"].values[0][..., present]
    own = trace["diagonal"].values[0]
    sink, null = _sink_mass(model, trace, own.shape, positions)
    shares = mask_shares(trace) if masked.any() else _absent_shares(own.shape)
    none = np.full(len(norms), np.nan)
    ratio = norms[:, masked].mean(-1) / norms[:, ~masked].mean(-1) if masked.any() else none
    on_masks = shares.pop("mask_mass")
    return shares | {
        "mask_value_ratio": ratio,
        "sink_value_ratio": sink_norms(model, positions) / norms.mean(axis=-1),
        "sink_mass": sink,
        "sink_mass_null": null,
        "diagonal": own,
        "null_mass": np.nan_to_num(sink) + own + np.nan_to_num(on_masks),
        "residual_peak": residual.max(axis=-1) / np.median(residual, axis=-1),
        "massive": np.abs(trace["massive_value"].values[0, :, 0])
        / trace["massive_median"].values[0],
        "state_cosine": trace["state_cosine"].values[0],
        "effective_rank": trace["effective_rank"].values[0] / positions,
    }


def mask_shares(trace: Trace) -> HeadArrays:
    """[layer, head] attention on masked keys other than oneself, of visible and masked queries."""
    masked = trace.masked[0]
    keys, hidden = len(masked), int(masked.sum())
    everyone, theirs = (trace["received"].sel(group=g).values[0] for g in ("all", "masked"))
    own = trace["row_diagonal"].values[0].astype(np.float64)  # [layer, head, query]
    others = (keys * everyone.astype(np.float64) - hidden * theirs) / (keys - hidden)
    seen, own_seen = others[..., masked].sum(-1), own[..., ~masked].mean(-1)
    own_masked = own[..., masked].mean(-1)
    met = theirs[..., masked].sum(-1, dtype=np.float64) - own_masked
    met_of = hidden - 1 if hidden > 1 else np.nan  # one mask has no other
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "mask_share_visible": seen / (hidden / keys),
            "mask_share_masked": met / (met_of / keys),
            "mask_preference_visible": seen / (others.sum(-1) - own_seen) * (keys - 1) / hidden,
            "mask_preference_masked": met
            / (theirs.sum(-1, dtype=np.float64) - own_masked)
            * ((keys - 1) / met_of),
            "mask_mass": (seen * (keys - hidden) + met * hidden) / keys,
        }


def _absent_shares(shape: tuple[int, ...]) -> HeadArrays:
    names = [f"mask_{what}_{who}" for what in ("share", "preference") for who in _QUERIES]
    return {name: np.full(shape, np.nan) for name in (*names, "mask_mass")}


_QUERIES = ("visible", "masked")


def _sink_mass(
    model: Model, trace: Trace, shape: tuple[int, ...], positions: int
) -> tuple[np.ndarray, np.ndarray]:
    """[layer, head] what added keys receive, and what they would of even attention."""
    columns = sum(part.columns for part in model.parts)
    if not columns or "sink_received" not in trace:
        return np.full(shape, np.nan), np.full(shape, np.nan)
    mass = trace["sink_received"].sel(group="all").values[0]
    return mass, np.full(shape, columns / (positions + columns))


def sink_norms(model: Model, positions: int) -> np.ndarray:
    """[layer] mean norm of the values of sink tokens; NaN where there are none."""
    dress = model.active_additions((), [positions])
    pairs = [] if dress is None else list(dress.pairs.values())
    if not pairs:
        return np.full(model.num_layers, np.nan)
    return np.array([float(pair.value.float().norm(dim=-1).mean()) for pair in pairs[0]])


def measure_states(model: Model, canvas: torch.Tensor, key: tuple[int, ...]) -> HeadArrays:
    """[layer] mean gate, and how far one other token moves the states of all the others.

    The token is a visible one; `key` names which, and what stands there instead.
    """
    draw = Draw("spread", *key)
    visible = [
        index for index, token in enumerate(canvas.tolist()) if token != model.specials.mask_id
    ]
    position = draw.pick(visible)
    plain = sorted(
        set(range(model.vocab_size)) - model.specials.special_ids - {int(canvas[position])}
    )
    other = canvas.clone()
    other[position] = draw.pick(plain)
    clean, gates = _run_pass(model, canvas)
    moved, _ = _run_pass(model, other)
    rest = torch.arange(len(canvas)) != position
    change = (moved - clean).norm(dim=-1) / clean.norm(dim=-1).clamp(min=1e-30)
    return {"spread": change[:, rest].double().mean(dim=-1).numpy(), "gate": gates}


@torch.no_grad()
def _run_pass(model: Model, canvas: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    """States [layer, position, width] after each layer, and the mean gate [layer] of a pass."""
    states: list[torch.Tensor] = []
    gates = np.full(model.num_layers, np.nan)
    fits = [
        fit_trained_addition(model.network, part) for part in model.parts if isinstance(part, gate)
    ]

    def keep(_: Any, args: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        states.append(hidden[0, -len(canvas) :].float().cpu())

    def read(layer: int) -> Callable[..., None]:
        def look(_: Any, args: Any, given: dict[str, Any]) -> None:
            reads = given["hidden_states"] if "hidden_states" in given else args[0]
            by = gate_of(fits[0], layer, reads[:, -len(canvas) :], model.num_heads)
            gates[layer] = float(by.double().mean())

        return look

    dress = model.active_additions((), [len(canvas)])  # a sink token's own pass is not to be kept
    with _capture_states(model, keep, read if fits else None):
        model.logits(canvas, parts=() if dress is None else dress)
    return torch.stack(states), gates


@contextmanager
def _capture_states(
    model: Model, keep: Callable[..., None], read: Callable[[int], Callable[..., None]] | None
) -> Iterator[None]:
    with ExitStack() as stack:
        for module in layer_modules(model.network):
            stack.callback(module.register_forward_hook(keep).remove)
        for layer, module in enumerate(attention_modules(model.network) if read else ()):
            hook = module.register_forward_pre_hook(read(layer), with_kwargs=True)  # type: ignore[misc]
            stack.callback(hook.remove)
        yield


def _mean(arrays: Sequence[np.ndarray]) -> float:
    """Over everything that exists; NaN where nothing does."""
    whole = np.concatenate([np.ravel(array) for array in arrays])
    present = whole[~np.isnan(whole)]
    return float(present.mean()) if len(present) else float("nan")


def _by_layer(arrays: Sequence[np.ndarray]) -> list[float]:
    return [_mean([array[layer] for array in arrays]) for layer in range(len(arrays[0]))]
