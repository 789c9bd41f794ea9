"""The learning rate as a function of the update: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from anchorwatch.training.spec import Optimizer


def learning_rate(optimizer: Optimizer, update: int, updates: int) -> float:
    """Rises in a line over the warm-up, then falls along a cosine, or late in a line, to the floor.

    >>> half = Optimizer(lr=1.0, warm_up=0.5, floor=0.1)
    >>> [round(learning_rate(half, update, 4), 3) for update in range(4)]
    [0.5, 1.0, 1.0, 0.1]
    >>> late = Optimizer(lr=1.0, warm_up=1, fall="late", last=0.4, floor=0.0)
    >>> [round(learning_rate(late, update, 5), 3) for update in range(5)]
    [1.0, 1.0, 1.0, 0.5, 0.0]
    """
    warm = warm_up(optimizer, updates)
    if update < warm:
        return optimizer.lr * (update + 1) / warm
    if optimizer.fall == "late":
        begins = falls_from(optimizer, updates)
        fall = 1 - max(0, update - begins + 1) / max(1, updates - begins)
        return optimizer.lr * (optimizer.floor + (1 - optimizer.floor) * fall)
    done = (update - warm) / max(1, updates - warm - 1)
    fall = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return optimizer.lr * (optimizer.floor + (1 - optimizer.floor) * fall)


def warm_up(optimizer: Optimizer, updates: int) -> int:
    """Updates of the warm-up."""
    said = optimizer.warm_up
    return said if isinstance(said, int) else round(said * updates)


def falls_from(optimizer: Optimizer, updates: int) -> int:
    """The first update of a late fall: up to it, the rate does not depend on how many there are."""
    return max(warm_up(optimizer, updates), updates - round(optimizer.last * updates))
