"""The learning rate as a function of the update: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from anchorwatch.training.spec import Optimizer


def learning_rate(optimizer: Optimizer, update: int, updates: int) -> float:
    """Rises in a line over the warm-up, then falls along a cosine to the floor.

    >>> half = Optimizer(lr=1.0, warm_up=0.5, floor=0.1)
    >>> [round(learning_rate(half, update, 4), 3) for update in range(4)]
    [0.5, 1.0, 1.0, 0.1]
    """
    warm = round(optimizer.warm_up * updates)
    if update < warm:
        return optimizer.lr * (update + 1) / warm
    done = (update - warm) / max(1, updates - warm - 1)
    fall = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return optimizer.lr * (optimizer.floor + (1 - optimizer.floor) * fall)
