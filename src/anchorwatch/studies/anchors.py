"""The rule of 2601.07894 for anchors ("floating tokens"), as its scripts mean it. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorwatch.rules import Rule, topk, zscore


@dataclass(frozen=True)
class floating(Rule):  # noqa: N801
    """Keys more than z standard deviations above the mean; where there are none, the greatest.

    >>> floating().labels(np.array([[0.3, 0.4, 0.3]])).tolist()
    [[False, True, False]]
    """

    z: float = 3.0

    def labels(self, shares: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
        found = zscore(self.z).labels(shares, seen)
        none = ~found.any(axis=-1, keepdims=True)
        return found | (topk(1).labels(shares, seen) & none)
