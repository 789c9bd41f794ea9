"""Anchors ("floating tokens"): the rule of 2601.07894, as its scripts mean it, and what is measured
of them: where they are, what they absorb, how they move and where they begin. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorwatch.metrics.layer_slices import LayerSlice, iter_layers
from anchorwatch.metrics.movement import centroid_path
from anchorwatch.metrics.sink_rules import Rule, topk, zscore
from anchorwatch.trace.trace import Trace


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


def greatest_beyond(layer: LayerSlice) -> np.ndarray:
    """[step, head] the key that receives most beyond what even attention gives it; -1 if absent.

    Under a causal mask the first keys receive most of even attention, too: that is taken off.
    """
    beyond = layer.shares() - layer.null()
    place = np.where(np.isnan(beyond), -np.inf, beyond).argmax(axis=-1)
    return np.where(layer.is_measured(), place, -1)


def absorbed_beyond(layer: LayerSlice, rule: Rule) -> tuple[np.ndarray, ...]:
    """[step, head] attention beyond even attention on the greatest key, on five, and on anchors.

    Keys are chosen by what they receive beyond even attention, so that a causal mask chooses none.
    """
    beyond = layer.shares().astype(np.float64) - layer.null()
    ordered = -np.sort(-np.nan_to_num(beyond), axis=-1)
    anchors = np.sum(beyond, axis=-1, where=rule.labels(beyond) & ~np.isnan(beyond))
    absent = np.where(layer.is_measured(), 0.0, np.nan)
    sums = ordered[..., 0], ordered[..., :5].sum(axis=-1), anchors
    return tuple(one + absent for one in sums)


def predicting_turnover(trace: Trace) -> float:
    """How many of the greatest keys of rows that predict are others a step later: 1 - Jaccard.

    A row predicts once, in either kind of model; rows that are only looked at again never change
    under a causal mask. Mean over heads and steps; NaN with fewer than two steps that commit.
    """
    top, when = trace["commit_top_key"].values[..., 0], trace.committed_at
    keys = trace.canvas.shape[1] + 2  # a key that was added to the network is -2
    held, found = None, []
    for step in range(trace.num_steps):
        rows = top[..., when == step]  # [layer, head, row]
        if not rows.shape[-1]:
            continue
        now = np.zeros((*rows.shape[:2], keys), dtype=bool)
        np.put_along_axis(now, rows % keys, values=True, axis=-1)
        if held is not None:
            either = (now | held).sum(axis=-1)
            found.append(1 - (now & held).sum(axis=-1) / either)
        held = now
    return float(np.mean(found)) if found else np.nan


def drifts(layer: LayerSlice) -> tuple[float, float]:
    """How far the centre of the anchors goes, and the greatest key, as shares of the canvas.

    Last quarter of the steps less the first, mean over heads: at most 1 either way.
    """
    shares, keys = layer.shares(), layer.shares().shape[-1]
    anchors = np.where(layer.labels(floating()), np.nan_to_num(shares), 0.0)
    paths = centroid_path(anchors), layer.top_key_path()  # [head, step]
    quarter = max(1, len(shares) // 4)
    each = [path[:, -quarter:].mean(axis=1) - path[:, :quarter].mean(axis=1) for path in paths]
    centre, greatest = (float(np.mean(one)) / keys for one in each)
    return centre, greatest


@dataclass(frozen=True)
class Onsets:
    """Of all anchors that begin in a run: shares, NaN where none does."""

    fresh: float
    """At a key that was committed a step before."""
    keys: float
    """The share of all keys that were, at the same steps."""
    shuffled: float
    """What it would be if commits were dealt out to other steps."""


def onsets(trace: Trace, rule: Rule) -> Onsets:
    """Where anchors begin, apart from end tokens: those fill the canvas and are no answer."""
    ends = np.isin(trace.own, trace.manifest["model"].get("end_ids", ()))
    steps, when = trace.num_steps, trace.committed_at
    fresh = when[None] == np.arange(steps)[1:, None] - 1  # [step, key], from the second step on
    fresh &= (when >= 0) & ~ends
    ever = fresh.sum(axis=0) / max(steps - 1, 1)
    share = fresh.sum(axis=1) / max(int((~ends).sum()), 1)
    count = hits = by_keys = by_time = 0.0
    for layer in iter_layers(trace):
        labels = layer.labels(rule) & ~ends
        begins = (labels[1:] & ~labels[:-1]).sum(axis=1)  # [step, key] heads
        count += begins.sum()
        hits += (begins * fresh).sum()
        by_keys += (begins * share[:, None]).sum()
        by_time += (begins * ever).sum()
    if not count:
        return Onsets(np.nan, np.nan, np.nan)
    return Onsets(*(float(one / count) for one in (hits, by_keys, by_time)))
