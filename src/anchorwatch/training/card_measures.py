"""One way to measure a trained network, for model cards and for the table of variants.

Everything is about held-out text and held-out questions, the same for every network that has the
same tokenizer; noise is addressed, so that arms are asked about the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from anchorwatch.evaluation.synthetic import Distractors, Item, World
from anchorwatch.metrics import stats
from anchorwatch.models.model import Model
from anchorwatch.training.corpora import Corpus, Mix
from anchorwatch.training.held_out import Bound, answers, bound
from anchorwatch.training.noisy_text import noisy
from anchorwatch.training.sources import Example, Passages
from anchorwatch.training.variants import VERSION
from anchorwatch.training.written_text import measure_written

SEED = 20_000
"""Of held-out rows, items and noise: no training seed comes near it."""
BINS = 5
"""Of t, for the bound."""
RUNNING = ("passages", "retold", "backcopy", "prose")
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


def measured(model: Model, corpus: Corpus, effort: Effort | None = None) -> dict[str, Any]:
    """All that cards and tables say of a network, as nested plain values; absent is NaN.

    `corpus` is what it was trained on; its held-out split is read, with other rows.
    """
    effort = effort or Effort()
    held = replace(corpus, split="held-out", seed=SEED)
    plain = plain_text(held, model.num_positions)
    return {
        "version": VERSION,
        "effort": asdict(effort),
        "bound": bounds(model, held, effort),
        "length": by_length(model, plain, held.length, effort),
        "answers": {name: measure_answers(model, name, effort.items) for name in CONTEXTS},
        "noisy": noisy(model, _rows(plain, held.length, effort.texts), SEED),
        "asked": measure_written(model, _prompts(effort.prompts), ROOM, ROOM),
        "text": _measure_continuations(model, plain, held.length, effort),
    }


def bounds(model: Model, held: Corpus, effort: Effort) -> dict[str, Any]:
    """Nats per scored token with its null: all rows, by kind of row, by t, of answers alone."""
    rows = [held[index] for index in range(effort.examples)]
    kinds, asks = np.array([row.kind for row in rows]), np.array([_asks(row) for row in rows])
    found = bound(model, held, examples=effort.examples, draws=effort.draws, seed=SEED)
    said: dict[str, Any] = {"all": part_of(found, np.ones(len(kinds), dtype=bool))}
    said["kind"] = {kind: part_of(found, kinds == kind) for kind in sorted(set(kinds))}
    times = found.by_time(BINS)
    said["t"] = {
        f"{row.t_low:.1f}-{row.t_high:.1f}": {"value": row.value, "masked": row.masked}
        for row in times.itertuples()
    }
    if asks.any():
        only = bound(
            model,
            held,
            examples=effort.examples,
            draws=effort.draws,
            answer_only=True,
            seed=SEED,
        )
        said["answers"] = part_of(only, asks)
    return said


def _asks(row: Example) -> bool:
    """Whether a row has a prompt, and an answer that is more than the row."""
    return bool(row.scored.any() and not row.scored.all())


def part_of(found: Bound, chosen: np.ndarray) -> dict[str, float]:
    """The bound of some of its sequences, with an interval over them."""
    nats, scored = found.nats.mean(axis=0)[chosen], found.scored[chosen]
    spread = stats.ratio(nats, scored, paired=True)
    return {
        "value": float(nats.sum() / scored.sum()),
        "low": float(spread.low),
        "high": float(spread.high),
        "null": found.null,
        "n": int(chosen.sum()),
    }


def by_length(model: Model, plain: Corpus, trained: int, effort: Effort) -> dict[str, Any]:
    """The bound of the same text cut to a quarter, a half and all of the training length, and to
    all positions there are."""
    found = {}
    for name, length in lengths(trained, model.num_positions).items():
        cost = bound(
            model,
            plain,
            examples=max(1, effort.examples // 2),
            draws=effort.draws,
            length=length,
            seed=SEED,
        )
        found[name] = part_of(cost, np.ones(len(cost.scored), dtype=bool)) | {"length": length}
    return found


def lengths(trained: int, positions: int) -> dict[str, int]:
    """Named lengths in order; `longest` only where it is beyond training."""
    found = {"quarter": trained // 4, "half": trained // 2, "trained": trained}
    return found | ({"longest": positions} if positions > trained else {})


def plain_text(held: Corpus, length: int) -> Corpus:
    """The mix's kinds of running text at another length; passages, where it has none."""
    pairs = zip(held.mix.sources, held.mix.shares, strict=True)
    kept = [(one, share) for one, share in pairs if one.kind in RUNNING]
    sources, shares = zip(*kept, strict=True) if kept else ((Passages(),), (1.0,))
    return replace(held, mix=Mix(tuple(sources), tuple(shares)), length=length)


def measure_answers(model: Model, context: str, count: int) -> dict[str, float]:
    """Exact match of greedy answers in a context, Wilson's interval, and the guesser's null."""
    world, book = CONTEXTS[context]
    table = answers(model, [world[i] for i in range(count)], book=book, length=ROOM)
    found = stats.wilson(int(table["right"].sum()), len(table))
    null = world.closed_book_chance() if book == "closed" else float(table["null"].mean())
    return {
        "value": float(found.value),
        "low": float(found.low),
        "high": float(found.high),
        "null": null,
        "n": len(table),
    }


def _prompts(count: int) -> list[str]:
    """One-hop questions with their passage, other ones than are scored."""
    world: World = replace(CONTEXTS["gold"][0], seed=SEED + 1)
    items: list[Item] = [world[index] for index in range(count)]
    return [item.prompt() for item in items]


def _rows(plain: Corpus, length: int, count: int) -> list[np.ndarray]:
    return [np.asarray(plain[index].ids[:length], dtype=np.int64) for index in range(count)]


def _measure_continuations(
    model: Model, plain: Corpus, length: int, effort: Effort
) -> dict[str, Any]:
    """Watched runs that write three quarters of a text after its first quarter."""
    given = max(2, length // 4)
    prompts = [row[:given].tolist() for row in _rows(plain, length, effort.prompts)]
    return measure_written(model, prompts, length - given, effort.steps)


def flat(found: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """One row of a table: names with dots, the value of what has one and its null as `.null`.

    Intervals of one network are left out: they are not evidence for a kind of network.
    """
    row: dict[str, Any] = {}
    for name, held in found.items():
        at = f"{prefix}{name}"
        if isinstance(held, Mapping) and "value" in held:
            row[at] = held["value"]
            row |= {f"{at}.{key}": held[key] for key in _BESIDE if key in held}
        elif isinstance(held, Mapping):
            row |= flat(held, f"{at}.")
        elif isinstance(held, list):
            row |= {f"{at}.{index}": value for index, value in enumerate(held)}
        else:
            row[at] = held
    return row


_BESIDE = ("null", "masked", "sink", "length")


def plain_values(found: Any) -> Any:
    """For JSON, which has no NaN: absent becomes null."""
    if isinstance(found, Mapping):
        return {name: plain_values(held) for name, held in found.items()}
    if isinstance(found, Sequence) and not isinstance(found, str):
        return [plain_values(held) for held in found]
    if isinstance(found, np.generic):
        found = found.item()
    return None if isinstance(found, float) and not math.isfinite(found) else found
