"""What an edit did to one prompt, in numbers: plain arrays and traces, no torch.

On their own runs the clean and the edited one are compared as they were written. On the clean
frames both read the same canvases, so that only what the model makes of them can differ. Each
outcome is held against a null: what an edit that does nothing gives (the clean run beside itself),
or, for attention that hidden keys lost, what indifference gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorwatch.metrics.sink_rules import Rule
from anchorwatch.metrics.stats import kendall
from anchorwatch.trace.trace import MISSING, Trace

OWN, FORCED = "own run", "clean frames"
CLEAN, INDIFFERENT, PROPORTIONAL = "clean", "indifferent", "proportional"


@dataclass(frozen=True)
class Outcome:
    """One number for each prompt and arm."""

    name: str
    unit: str
    on: str
    """own run: as each arm wrote it; clean frames: every arm reads the clean run's canvases."""
    against: str
    """What the null is: the clean run itself, indifferent or proportional attention."""
    causal_unit: str | None = None
    """Of autoregression, where it is another."""

    def unit_of(self, autoregressive: bool) -> str:
        return self.causal_unit or self.unit if autoregressive else self.unit


OUTCOMES = (
    Outcome("answer_changed", "share of runs", OWN, CLEAN),
    Outcome("edit_distance", "share of the longer answer", OWN, CLEAN),
    Outcome("divergence_step", "step", OWN, CLEAN),
    Outcome("steps_shared", "share of the clean run's steps", OWN, CLEAN),
    Outcome("order_tau", "Kendall's tau-b", OWN, CLEAN),
    Outcome("confidence", "nats per committed token", OWN, CLEAN),
    Outcome("tokens_in_common", "share of the clean answer", OWN, CLEAN),
    Outcome("argmax_agreement", "share of masked positions", FORCED, CLEAN, "share of next tokens"),
    Outcome("kl", "nats per masked position", FORCED, CLEAN, "nats per next token"),
    Outcome("perturbation", "relative change of states", FORCED, CLEAN),
    Outcome("hidden_keys", "keys of a head that hides some", FORCED, CLEAN),
    Outcome("hidden_share", "share of attention", FORCED, INDIFFERENT),
    Outcome("largest_gainer", "share of the gains", FORCED, PROPORTIONAL),
    Outcome("gain_entropy", "entropy / log keys", FORCED, PROPORTIONAL),
    Outcome("new_sink_share", "share of the gains", FORCED, PROPORTIONAL),
    Outcome("greatest_hidden", "share of heads that hide some", FORCED, INDIFFERENT),
)
NAMES = tuple(one.name for one in OUTCOMES)
MOVED = (
    *("hidden_keys", "hidden_share", "largest_gainer", "gain_entropy", "new_sink_share"),
    "greatest_hidden",
)
"""Outcomes of attention that hidden keys lost, in the order of `moved`."""


def own_run(clean: Trace, other: Trace) -> dict[str, float]:
    """Outcomes of two runs of one prompt; NaN where one does not exist."""
    answer, steps = clean.answer, clean.num_steps
    one, two = clean.own[answer], other.own[answer]
    there = one != MISSING
    when = clean.committed_at[answer], other.committed_at[answer]
    step = first_divergence(*when, one == two)
    order = np.nan
    if clean.decoding.writes == "masked":  # left to right there is only one order
        order = order_tau(*when)
    return {
        "answer_changed": float((one != two).any()),
        "edit_distance": edit_distance(one[there], two[two != MISSING]),
        "divergence_step": np.nan if step is None else float(step),
        "steps_shared": 1.0 if step is None else min(step / steps, 1.0),
        "order_tau": order,
        "confidence": _mean(other.logprob[answer]),
        "tokens_in_common": _mean((one == two)[there]),
    }


def first_divergence(one: np.ndarray, two: np.ndarray, same: np.ndarray) -> int | None:
    """The first step whose commits differ; None where none does.

    [position] each: when both runs committed it, -1 for never, and whether to the same token.
    """
    first = np.minimum(*(np.where(when == MISSING, np.inf, when) for when in (one, two)))
    apart = first[((one != two) | ~same) & np.isfinite(first)]
    return int(apart.min()) if len(apart) else None


def edit_distance(one: np.ndarray, two: np.ndarray) -> float:
    """Insertions, deletions and substitutions (Levenshtein), over the length of the longer one.

    >>> edit_distance(np.array([1, 2, 3, 4]), np.array([2, 3, 4]))
    0.25
    """
    longer = max(len(one), len(two))
    if not longer:
        return 0.0
    places = np.arange(len(two) + 1)
    row = places.copy()
    for number, token in enumerate(one, start=1):
        best = np.minimum(row[:-1] + (two != token), row[1:] + 1)
        # from the left: row[j] = min(best[j], row[j - 1] + 1), all at once
        row = np.minimum.accumulate(np.concatenate([[number], best]) - places) + places
    return float(row[-1]) / longer


def order_tau(one: np.ndarray, two: np.ndarray) -> float:
    """Kendall's tau-b of commit times over the positions that both runs committed."""
    first, second = (np.where(x == MISSING, np.nan, x.astype(float)) for x in (one, two))
    return float(kendall(first, second)) if len(first) > 1 else np.nan


@dataclass(frozen=True, eq=False)
class UniformBaseline:
    """What indifferent attention gives to the keys of one step: [layer, key] each, NaN: absent."""

    shares: np.ndarray
    seen: np.ndarray
    """Share of the queries that may look at each key."""


def moved_attention(
    before: np.ndarray, after: np.ndarray, hidden: np.ndarray, even: UniformBaseline, rule: Rule
) -> np.ndarray:
    """[MOVED, (value, null, weight)] sums over [layer, head] of where hidden keys' attention went.

    `before` and `after` are [layer, head, key] shares without and with the edit, `hidden` [layer,
    head, rank] keys, -1 for none. A value is its sum over the sum of weights: `hidden_keys`, how
    many there are, `hidden_share`, what they had, and `greatest_hidden`, whether the key that
    received most is among them, count every head that hid some; the others count a head by the
    attention its hidden keys lost. Gains are of the keys that were not hidden;
    the null gives each of them in proportion to what it had: p (1 - q_hidden) / (1 - p_hidden).
    """
    there = ~np.isnan(before) & ~np.isnan(after)
    p, q = (np.where(there, shares, 0.0).astype(np.float64) for shares in (before, after))
    gone = _flags(hidden, p.shape)
    hides = gone.any(axis=-1)
    had, has = (p * gone).sum(axis=-1), (q * gone).sum(axis=-1)
    gains, total = _to_distribution(np.where(gone, 0.0, np.maximum(q - p, 0.0)))
    null, rest = _to_distribution(np.where(gone, 0.0, p))
    lost = np.where((total > 0) & (rest > 0) & hides, np.maximum(had - has, 0.0), 0.0)
    grown = (1 - has) / np.where(had < 1, 1 - had, 1.0)  # of added keys too, which hold the rest
    proportional = np.where(gone, q, p * grown[..., None])
    was = _sinks(p, there, even, rule)
    new = [_sinks(x, there, even, rule) & ~was for x in (q, proportional)]
    free = (there & ~gone).sum(axis=-1)
    share_of_even = np.where(gone, np.nan_to_num(even.shares)[:, None], 0.0).sum(axis=-1)
    pairs = (
        (gone.sum(axis=-1), np.full(had.shape, np.nan), hides.astype(float)),
        (had, share_of_even, hides.astype(float)),
        (gains.max(axis=-1), null.max(axis=-1), lost),
        (_evenness(gains, free), _evenness(null, free), np.where(free > 1, lost, 0.0)),
        ((gains * new[0]).sum(axis=-1), (null * new[1]).sum(axis=-1), lost),
        (_of_greatest(gone, p), gone.sum(axis=-1) / there.sum(axis=-1), hides.astype(float)),
    )
    return np.array([[(x * w).sum(), (y * w).sum(), w.sum()] for x, y, w in pairs])


def _flags(hidden: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """[layer, head, key] bool from the keys' numbers."""
    found = np.zeros((*shape[:-1], shape[-1] + 1), dtype=bool)  # the last place takes the -1s
    np.put_along_axis(found, hidden.astype(np.intp) % (shape[-1] + 1), True, axis=-1)
    return found[..., :-1]


def _of_greatest(flags: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """[layer, head] the flag of the key that receives most, 0 or 1."""
    at = shares.argmax(axis=-1)[..., None]
    return np.take_along_axis(flags, at, axis=-1)[..., 0].astype(float)


def _to_distribution(shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[..., key] as a distribution, zero where there is nothing, and the total."""
    total = shares.sum(axis=-1)
    return shares / np.where(total > 0, total, 1.0)[..., None], total


def _evenness(shares: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Entropy over log of the number of keys: 1 when all gain alike, 0 when one takes all."""
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return -(shares * logs).sum(axis=-1) / np.log(np.maximum(count, 2))


def _sinks(shares: np.ndarray, there: np.ndarray, even: UniformBaseline, rule: Rule) -> np.ndarray:
    return rule.labels(np.where(there, shares, np.nan), even.seen[:, None])


def _mean(values: np.ndarray) -> float:
    """The mean of what is there; NaN where nothing is."""
    held = np.asarray(values, dtype=np.float64)
    held = held[~np.isnan(held)]
    return float(held.mean()) if len(held) else np.nan
