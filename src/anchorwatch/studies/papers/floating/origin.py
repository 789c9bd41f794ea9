"""The claim of 2601.07894 about where a diffusion model has its sink from: the layer it begins at.

It is about two networks of one origin, which their weights show: those of networks that were
trained apart are unrelated. No torch here.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from anchorwatch.errors import EvidenceError
from anchorwatch.studies.claim import LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.estimates import PROMPT, Estimate
from anchorwatch.studies.evidence import mean_of, means_of
from anchorwatch.studies.needs import ROLES, Rows
from anchorwatch.studies.papers.floating.anchors import ARM, MDM
from anchorwatch.studies.papers.floating.layers import DETECTOR, absorbed_share

_PAPER = "arXiv 2601.07894"
WEIGHTS = {role: Rows(role, "weights", passes=0) for role in ("mdm", "arm")}
KIN = 0.2
"""Correlation of weights from which two networks have one origin; apart they have 0."""
LAYERS = 3
"""With fewer there is one place to begin at."""
RISE = 0.05
"""Five points of attention, as for floating/H9; the figure jumps by 43 (Dream) and 66 (Qwen)."""


def _inherits(evidence: Evidence) -> Finding:
    related = kinship(*(evidence[need] for need in WEIGHTS.values()))
    if not related >= KIN:
        raise EvidenceError(
            "a masked diffusion model and an autoregressive one of one origin, such as Dream and "
            f"Qwen2.5: the weights of these have a correlation of {related:.2f}"
        )
    mdm, arm = (
        one.value - one.null
        for one in (absorbed_share(evidence, need, "top1", over="layer") for need in (MDM, ARM))
    )
    layers = mdm.shape[1]
    if layers < LAYERS:
        raise EvidenceError(f"models of {LAYERS} layers or more: these have {layers}")
    also = {}
    for role, held in (("mdm", mdm), ("arm", arm)):
        also[f"first layer after the change, {role.upper()}"] = mean_of(
            begins(means_of(held)[None])
        )
        also[f"rise there, {role.upper()}"] = risen = mean_of(rises(held))
        if not risen > RISE:  # a place is found in any profile: what does not begin has none
            raise EvidenceError(
                f"{ROLES[role][0]} whose sink begins at some layer, where attention on the "
                f"greatest key rises by more than {RISE:g}: this one's rises by {risen:.3f}"
            )
    apart = np.abs(begins(mdm) - begins(arm))
    effect = Estimate.mean(apart, PROMPT, (0.0, layers - 2.0))
    return Finding(
        {"apart": Measured(effect, _by_chance(layers))}, also | {"correlation of weights": related}
    )


def kinship(one: pd.DataFrame, other: pd.DataFrame) -> float:
    """Correlation of weights at the same places, the least of all layers; NaN of other shapes."""
    sides = [
        table.groupby("layer")["held"].agg(lambda parts: np.concatenate(list(parts)))
        for table in (one, other)
    ]
    if [len(held) for held in sides[0]] != [len(held) for held in sides[1]]:
        return np.nan
    if set(one["shape"]) != set(other["shape"]):
        return np.nan
    return min(float(np.corrcoef(a, b)[0, 1]) for a, b in zip(*sides, strict=True))


def begins(profiles: np.ndarray) -> np.ndarray:
    """[prompt] the layer before which the mean over layers rises most, in standard errors.

    >>> begins(np.array([[0.1, 0.1, 0.5, 0.6], [0.0, 0.4, 0.4, 0.4]])).tolist()
    [2.0, 1.0]
    """
    layers = profiles.shape[1]
    at = np.arange(1, layers)
    weight = np.sqrt(at * (layers - at) / layers)
    found = (_steps(profiles) * weight).argmax(axis=1) + 1.0
    return np.where(np.isnan(profiles).any(axis=1), np.nan, found)


def rises(profiles: np.ndarray) -> np.ndarray:
    """[prompt] the rise at the layer that all other prompts have it at: chance finds no rise."""
    found = np.full(len(profiles), np.nan)
    steps = _steps(profiles)
    for at in range(len(profiles)):
        others = means_of(np.delete(profiles, at, axis=0))
        if len(profiles) > 1 and not np.isnan(others).any():
            found[at] = steps[at, int(begins(others[None])[0]) - 1]
    return found


def _steps(profiles: np.ndarray) -> np.ndarray:
    """[prompt, place] mean of the layers from a place on, less that of those before."""
    layers = profiles.shape[1]
    at = np.arange(1, layers)
    before = np.cumsum(profiles, axis=1)[:, :-1]
    return (profiles.sum(axis=1, keepdims=True) - before) / (layers - at) - before / at


def _by_chance(layers: int) -> float:
    """Mean distance of two places drawn evenly."""
    at = np.arange(1, layers)
    return float(np.abs(at[:, None] - at).mean())


CLAIMS = (
    Claim(
        "floating/H10",
        "A diffusion model made from an autoregressive one inherits the layer at which its sink "
        "begins.",
        f"{_PAPER}, absorption figure",
        "Dream and Qwen2.5 both at layer 4",
        PROMPT,
        needs=(MDM, ARM, *WEIGHTS.values()),
        criteria=(
            Criterion(
                "apart",
                "distance in layers between the places where attention on the greatest key, "
                "beyond even attention, rises most (one change of the mean), MDM and ARM of one "
                "origin, the same prompts",
                LESS,
                0.5,
                "nearer to the same layer than to the next",
                null="two places drawn evenly",
            ),
        ),
        judge=_inherits,
        defect=DETECTOR,
        caveat="one pair of networks, whose weights show one origin; the fewer layers, the "
        "likelier the same one by chance. The lab's two go on from one next-token network, so that "
        "neither is the other's parent",
    ),
)
