"""Claims of 2510.15731 about why hiding sinks costs little: detection, order, many steps."""

from __future__ import annotations

import numpy as np
import pandas as pd

from anchorwatch.edits import hide_random, hide_sinks
from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.estimates import ITEM, PROMPT, Estimate
from anchorwatch.studies.evidence import answers, by_effect, by_item, mean_of
from anchorwatch.studies.needs import ROLES, Asked, Effect, Rows
from anchorwatch.studies.sinks_hidden import HIDDEN

_PAPER = "arXiv 2510.15731"
_GAP = (-1.0, 1.0)
FOUND_EDITED = Effect("mdm", (hide_sinks(1, detect="previous_edited"),), control=None)
POSTPONED = Rows("mdm", "postponed", passes=96)
_SAME = (
    ("none", ()),
    ("sinks", (hide_sinks(1, detect="same_shadow"),)),
    ("random", (hide_random(1, detect="same_shadow"),)),
)
"""Found in the same pass: a run of one step has no step before it."""
ONE_STEP = Asked(("mdm",), ("gold",), _SAME, steps=1)
MANY_STEPS = Asked(("mdm",), ("gold",), _SAME, steps=16)
LEAST = 0.3
"""Unedited accuracy below which there is too little to lose."""


def _comes_back(evidence: Evidence) -> Finding:
    shadow, edited = (
        {name: by_effect(evidence, need, name, "edited") for name in ("hidden_share", "kl")}
        for need in (HIDDEN, FOUND_EDITED)
    )
    gap = {name: shadow[name] - edited[name] for name in shadow}
    control = {name: mean_of(edited[name]) for name in edited}
    return Finding(
        {
            "hidden": Measured(
                Estimate.mean(gap["hidden_share"], PROMPT, _GAP), 0.0, control["hidden_share"]
            ),
            "kl": Measured(Estimate.mean(gap["kl"], PROMPT), 0.0, control["kl"]),
        },
        {"KL, found without the edit": mean_of(shadow["kl"])},
    )


def _postponed(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[POSTPONED]
    wide = table.pivot(index="unit", columns="arm").sort_index()
    found = {}
    for name in ("later", "surer"):
        mine, other = (wide[name][arm].to_numpy(dtype=float) for arm in ("sinks", "random"))
        known = np.isfinite(other).any()
        control = mean_of(other) if known else float("nan")
        found[name] = Measured(Estimate.mean(mine, PROMPT, _GAP), 0.0, control)
    moved = float(wide["moved"]["sinks"].mean())
    return Finding(found, {"share of positions written at another step": moved})


def _needs_steps(evidence: Evidence) -> Finding:
    names = ("none", "sinks", "random")
    one, many = (
        by_item(evidence, need, [("mdm", "gold", name) for name in names])
        for need in (ONE_STEP, MANY_STEPS)
    )
    for held in (one, many):
        answers(mean_of(held[:, 0]), LEAST, ROLES["mdm"][0])
    lost = {"one": one[:, 1] - one[:, 0], "many": many[:, 1] - many[:, 0]}
    other = (one[:, 2] - one[:, 0]) - (many[:, 2] - many[:, 0])
    gap = Estimate.mean(lost["one"] - lost["many"], ITEM, (-2.0, 2.0))
    return Finding(
        {"steps": Measured(gap, null=0.0, control=mean_of(other))},
        {f"lost in {name} steps": mean_of(held) for name, held in lost.items()},
    )


CLAIMS = (
    Claim(
        "sinks/H15",
        "Sinks found in the edited map are hidden only every second step, so that robustness is "
        "overstated.",
        f"{_PAPER}, section on masking, silent on which map",
        "not reported",
        PROMPT,
        needs=(HIDDEN, FOUND_EDITED),
        criteria=(
            Criterion(
                "hidden",
                "attention that the hidden keys had: found without the edit, less found with it",
                GREATER,
                0.02,
                "a fiftieth of all attention: a sink of the paper's criterion has about that",
                null="no matter how they are found",
                control="found in the edited map",
            ),
            Criterion(
                "kl",
                "KL from the unedited distribution, in nats, the same difference",
                GREATER,
                0.01,
                "a hundredth of a nat is hardly a change of any answer",
                null="no matter how they are found",
                control="found in the edited map",
            ),
        ),
        judge=_comes_back,
        defect="the paper does not say which map the sinks of a step are found in",
    ),
    Claim(
        "sinks/H16",
        "Robustness comes from order: tokens that looked at the hidden sink lose confidence and "
        "are written later.",
        f"{_PAPER}, discussion",
        "hypothesis, untested",
        PROMPT,
        needs=(POSTPONED,),
        criteria=(
            Criterion(
                "later",
                "correlation over masked positions of the attention to the hidden sinks, at the "
                "first step that hides any, with the delay of their commit",
                GREATER,
                0.1,
                "a small correlation, by the usual words for sizes",
                null="unrelated: 0",
                control="as many other keys hidden",
            ),
            Criterion(
                "surer",
                "correlation of the same attention with the change of the log-probability at "
                "which the position was committed",
                LESS,
                -0.1,
                "a small correlation, by the usual words for sizes",
                null="unrelated: 0",
                control="as many other keys hidden",
            ),
        ),
        judge=_postponed,
        caveat="whether robustness shrinks with more tokens a step is H17's",
    ),
    Claim(
        "sinks/H17",
        "Robustness comes from many steps: where an answer is written in one, hiding a sink costs "
        "more.",
        f"{_PAPER}, discussion",
        "hypothesis, untested, beside that of looking both ways",
        ITEM,
        needs=(ONE_STEP, MANY_STEPS),
        criteria=(
            Criterion(
                "steps",
                "accuracy lost to hiding the greatest sink of every head: in one step less in "
                "sixteen",
                LESS,
                -0.01,
                "one point is what the paper calls robust",
                null="as much in one step as in many",
                control="as many other keys hidden",
            ),
        ),
        judge=_needs_steps,
        caveat="if it costs no more, looking both ways is what is left: no run under a causal "
        "mask, or in a fixed order, separates that",
    ),
)
