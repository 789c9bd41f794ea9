"""Chance in training, by address: (seed, update, example) names a stream of numbers.

Philox is a function of key and counter, so that any process draws the same numbers for an example,
whatever its rank, how many others there are, and what was drawn before. Nothing is ever restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

Times = Literal["stratified", "antithetic", "uniform"]

_PURPOSES = ("time", "mask", "answer", "length")
_KEY = 0x616E63686F72  # our own half of the key


def stream(seed: int, purpose: str, update: int, example: int = 0) -> np.random.Generator:
    """The numbers at one address."""
    counter = [0, _PURPOSES.index(purpose), example, update]
    return np.random.Generator(np.random.Philox(key=[seed, _KEY], counter=counter))


def times(how: Times, seed: int, update: int, places: Sequence[int], batch: int) -> np.ndarray:
    """[places] t in [0, 1) of these places of a global batch.

    stratified: each of `batch` equal slices of [0, 1) holds one t, all moved by one offset.
    antithetic: places 2i and 2i + 1 have t and 1 - t. uniform: all independent.
    """
    at = np.asarray(places, dtype=np.int64)
    if how == "stratified":
        return (stream(seed, "time", update).random() + at / batch) % 1.0
    if how == "antithetic":
        drawn = np.array([stream(seed, "time", update, int(one) // 2).random() for one in at])
        return np.where(at % 2, 1.0 - drawn, drawn) % 1.0
    return np.array([stream(seed, "time", update, int(one)).random() for one in at])


def probability(t: np.ndarray, eps: float) -> np.ndarray:
    """p = (1 - eps) t + eps: how likely each scored token is masked at t."""
    return (1.0 - eps) * t + eps


def draw_masks(seed: int, update: int, example: int, p: float, length: int) -> np.ndarray:
    """[length] bool: which tokens of an example are masked, each with probability p.

    The same numbers decide at every p, so that a greater p masks a superset.
    """
    return stream(seed, "mask", update, example).random(length) < p


def draw_counted_masks(
    seed: int, update: int, example: int, t: float, scored: np.ndarray
) -> np.ndarray:
    """[length] bool: 1 + floor(t n) of the n scored tokens, those with the least numbers.

    A count that is even over 1..n, weighed by n over it, has the bound for its mean, as masks drawn
    one by one have; but no row goes by without a question, and no weight is above n.
    """
    numbers = np.where(scored, stream(seed, "mask", update, example).random(len(scored)), np.inf)
    count = min(1 + int(t * scored.sum()), int(scored.sum()))
    chosen = np.zeros(len(scored), dtype=bool)
    chosen[np.argsort(numbers, kind="stable")[:count]] = True
    return chosen


def answers_only(seed: int, update: int, example: int, share: float) -> bool:
    """Whether an example with an answer is scored on its answer only."""
    return bool(stream(seed, "answer", update, example).random() < share)


def cut(seed: int, update: int, share: float, length: int) -> int:
    """The length that all rows of an update are cut to; `length` itself where they are not."""
    drawn = stream(seed, "length", update)
    return int(drawn.integers(2, length + 1)) if drawn.random() < share else length
