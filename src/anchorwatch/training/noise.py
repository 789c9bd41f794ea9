"""Random numbers of training, each a function of its address: (seed, update, example) or a name.

The noise on rows comes from Philox, a function of key and counter: any process draws the same
numbers for an example, whatever its rank, how many processes there are, and what was drawn before.
So nothing has to be restored when a run resumes.

First values of a tensor derive from (seed, its name, its shape) alone: two arms of a comparison
begin with the same tensors wherever they share one. Their sizes are SMDM's: N(0, 2 / (5 width)),
and N(0, 1 / (width layers^2)) for what writes into the residual stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel

Times = Literal["stratified", "antithetic", "uniform"]

_PURPOSES = ("time", "mask", "answer", "length", "continuation")
_KEY = 0x616E63686F72  # our own half of the key


def open_stream(seed: int, purpose: str, update: int, example: int = 0) -> np.random.Generator:
    """The numbers at one address."""
    counter = [0, _PURPOSES.index(purpose), example, update]
    return np.random.Generator(np.random.Philox(key=[seed, _KEY], counter=counter))


def draw_times(how: Times, seed: int, update: int, places: Sequence[int], batch: int) -> np.ndarray:
    """[places] t in [0, 1) of these places of a global batch.

    stratified: each of `batch` equal slices of [0, 1) holds one t, all moved by one offset.
    antithetic: places 2i and 2i + 1 have t and 1 - t. uniform: all independent.
    """
    slots = np.asarray(places, dtype=np.int64)
    if how == "stratified":
        return (open_stream(seed, "time", update).random() + slots / batch) % 1.0
    if how == "antithetic":
        drawn = np.array(
            [open_stream(seed, "time", update, int(slot) // 2).random() for slot in slots]
        )
        return np.where(slots % 2, 1.0 - drawn, drawn) % 1.0
    return np.array([open_stream(seed, "time", update, int(slot)).random() for slot in slots])


def mask_probability(t: np.ndarray, eps: float) -> np.ndarray:
    """p = (1 - eps) t + eps: how likely each scored token is masked at t."""
    return (1.0 - eps) * t + eps


def draw_masks(seed: int, update: int, example: int, p: float, length: int) -> np.ndarray:
    """[length] bool: which tokens of an example are masked, each with probability p.

    The same numbers decide at every p, so that a greater p masks a superset.
    """
    return open_stream(seed, "mask", update, example).random(length) < p


def draw_counted_masks(
    seed: int, update: int, example: int, t: float, scored: np.ndarray, *, from_end: bool = False
) -> np.ndarray:
    """[length] bool: 1 + floor(t n) of the n scored tokens, those with the least numbers.

    A count that is even over 1..n, weighed by n over it, has the bound for its mean, as masks drawn
    one by one have; but no row goes by without a question, and no weight is above n. With
    `from_end` the last tokens are chosen, which is no bound of all orders but of one.
    """
    numbers = np.where(
        scored, open_stream(seed, "mask", update, example).random(len(scored)), np.inf
    )
    if from_end:
        numbers = np.where(scored, -np.arange(len(scored), dtype=float), np.inf)
    count = min(1 + int(t * scored.sum()), int(scored.sum()))
    chosen = np.zeros(len(scored), dtype=bool)
    chosen[np.argsort(numbers, kind="stable")[:count]] = True
    return chosen


def is_answer_only(seed: int, update: int, example: int, share: float) -> bool:
    """Whether an example with an answer is scored on its answer only."""
    return bool(open_stream(seed, "answer", update, example).random() < share)


@dataclass(frozen=True)
class Continuation:
    """A row as a text that is being continued: so many tokens are given, so many are added."""

    given: int
    added: int
    from_end: bool
    """Whether the tokens masked are the last ones, as when a text is written from left to right."""


LONGEST_CONTINUATION = 64
"""Tokens that a row may add."""


def draw_continuation(
    seed: int, update: int, example: int, share: float, length: int
) -> Continuation | None:
    """How a row of plain text is continued; None where it is not, or is too short."""
    drawn = open_stream(seed, "continuation", update, example)
    if length < 2 or drawn.random() >= share:
        return None
    given = int(drawn.integers(1, length))
    added = int(drawn.integers(1, min(LONGEST_CONTINUATION, length - given) + 1))
    return Continuation(given, added, from_end=bool(drawn.random() < 0.5))


def draw_length(seed: int, update: int, share: float, length: int) -> int:
    """The length that all rows of an update are cut to; `length` itself where they are not."""
    drawn = open_stream(seed, "length", update)
    return int(drawn.integers(2, length + 1)) if drawn.random() < share else length


_WRITERS = ("o_proj.weight", "down_proj.weight")


def draw_normal(seed: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Standard normal numbers of one tensor, float32 on the CPU."""
    address = f"{seed}:{name}:{'x'.join(map(str, shape))}".encode()
    start = int.from_bytes(hashlib.sha256(address).digest()[:8], "big") >> 1
    return torch.randn(shape, generator=torch.Generator().manual_seed(start))


@torch.no_grad()
def fill_first_values(network: PreTrainedModel, seed: int) -> None:
    """Give every parameter its first values; tied tensors are filled once, under one name."""
    width, layers = network.config.hidden_size, network.config.num_hidden_layers
    for name, parameter in network.named_parameters():
        if parameter.ndim == 1:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        deviation = (2 / (5 * width)) ** 0.5
        if name.endswith(_WRITERS):
            deviation = 1 / (width**0.5 * layers)
        parameter.copy_(draw_normal(seed, name, tuple(parameter.shape)) * deviation)
