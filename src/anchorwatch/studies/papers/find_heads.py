"""Which head, layer and step show a thing best: papers print chosen heads, and we choose by rule.

Each function looks at all heads of a run and returns the cell with the greatest score; the score is
stated, so that the choice can be argued with. All read the attention received, no map.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anchorwatch.errors import EvidenceError
from anchorwatch.metrics.layer_slices import LayerSlice, find_top_key, iter_layers
from anchorwatch.trace.trace import MASKED, Trace


@dataclass(frozen=True)
class HeadCell:
    """A head at a step."""

    step: int
    layer: int
    head: int
    score: float


def find_moving(trace: Trace, *, direction: int = 0) -> HeadCell:
    """Where the top key is another one at the next step, and both are strong.

    The score is the smaller of both top shares; `direction` -1 or +1 takes moves to the left or to
    the right only.
    """

    def score(layer: LayerSlice) -> np.ndarray:
        position, share = layer.top_key()
        step = np.diff(position, axis=0)
        moved = step != 0 if direction == 0 else step * direction > 0
        return np.where(moved, np.minimum(share[:-1], share[1:]), -np.inf)

    words = {-1: "to the left ", 0: "", 1: "to the right "}[direction]
    return _best(trace, score, f"no top key moves {words}between two steps")


def find_flicker(trace: Trace) -> HeadCell:
    """Where a top key is there for one step only: its share less the greater of its neighbours'."""

    def score(layer: LayerSlice) -> np.ndarray:
        position, share = layer.top_key()
        shares = layer.shares()
        beside = np.full(share.shape, -np.inf)
        for step in range(1, len(position) - 1):
            key = np.maximum(position[step], 0)[:, None]
            around = [
                np.take_along_axis(shares[n], key, axis=-1)[:, 0] for n in (step - 1, step + 1)
            ]
            beside[step] = share[step] - np.fmax(*around)
        return beside

    return _best(trace, score, "it takes three steps to see a key that is there at one of them")


def find_fixed(trace: Trace) -> HeadCell:
    """The head whose most frequent top key is there longest and takes most.

    The score is the share of steps at which it is the top key, times the mean share of the top key.
    """

    def score(layer: LayerSlice) -> np.ndarray:
        position, share = layer.top_key()
        stays = np.array([np.bincount(head[head >= 0]).max() for head in position.T])
        return (stays / len(position) * np.nanmean(share, axis=0))[None]

    return _best(trace, score, "nothing was measured")


def find_split(trace: Trace) -> HeadCell:
    """Where masked queries have another top key than all others; the smaller of both shares.

    What the others give follows from what all give and what the masked ones give. Steps with fewer
    than three queries of either kind are left out.
    """
    queries = trace["queries"].values.astype(float)
    groups = [str(name) for name in trace["queries"].coords["group"].values]
    whole, masked = queries[:, groups.index("all")], queries[:, groups.index("masked")]
    share_masked = masked / np.maximum(whole, 1)
    usable = np.minimum(masked, whole - masked) >= 3

    def score(layer: LayerSlice) -> np.ndarray:
        of_masked, of_all = layer.shares("masked"), layer.shares("all")
        weight = share_masked[:, None, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            of_others = (of_all - weight * of_masked) / (1 - weight)
        (first, mass), (second, other) = find_top_key(of_masked), find_top_key(of_others)
        apart = (first != second) & usable[:, None]
        return np.where(apart, np.minimum(mass, other), -np.inf)

    none = "no step has both masked and other queries with top keys of their own"
    return _best(trace, score, none)


def find_strong(trace: Trace, layer: int, step: int) -> HeadCell:
    """The head of a layer with the strongest top key at a step."""

    def score(found: LayerSlice) -> np.ndarray:
        _, share = found.top_key()
        scores = np.full(share.shape, -np.inf)
        if found.index == layer:
            scores[step] = share[step]
        return scores

    return _best(trace, score, f"layer {layer} was not measured at step {step}")


def middle_step(trace: Trace) -> int:
    """The step before which half of the answer is written."""
    left = np.mean(trace.role[:-1][:, trace.answer] == MASKED, axis=1)
    return int(np.argmin(np.abs(left - 0.5))) if left.any() else trace.num_steps // 2


def _best(trace: Trace, score: Callable[[LayerSlice], np.ndarray], none: str) -> HeadCell:
    """The cell with the greatest of [step, head] scores over all layers."""
    best = HeadCell(-1, -1, -1, -np.inf)
    for layer in iter_layers(trace):
        scores = np.nan_to_num(score(layer), nan=-np.inf, neginf=-np.inf)
        step, head = np.unravel_index(int(scores.argmax()), scores.shape)
        if scores[step, head] > best.score:
            best = HeadCell(int(step), layer.index, int(head), float(scores[step, head]))
    if best.layer < 0:
        raise EvidenceError(
            f"the run {trace.digest()[:12]} does not show it: {none}; try another prompt, a longer "
            "run or another model"
        )
    return best
