"""Claims of 2510.15731 about why hiding sinks costs little: detection, order, many steps."""

from __future__ import annotations

import pandas as pd

from anchorwatch.edits.spec import hide_sinks
from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.estimates import ITEM, PROMPT, Estimate
from anchorwatch.studies.evidence import answers, by_effect, by_item, mean_of
from anchorwatch.studies.needs import ROLES, Asked, Effect, Rows
from anchorwatch.studies.papers.sinks.hidden import HIDDEN, SAME_PASS

_PAPER = "arXiv 2510.15731"
_GAP, _GAP2 = (-1.0, 1.0), (-2.0, 2.0)
FOUND_EDITED = Effect("mdm", (hide_sinks(1, detect="previous_edited"),), control=None)
DELAYED = Rows("mdm", "delayed", passes=102)
ONE_STEP = Asked(("mdm",), ("gold",), SAME_PASS, steps=1)
MANY_STEPS = Asked(("mdm",), ("gold",), SAME_PASS, steps=16)
LEAST = 0.3
"""Unedited accuracy below which there is too little to lose."""


def _comes_back(evidence: Evidence) -> Finding:
    shadow, edited = (
        {name: by_effect(evidence, need, name, "edited") for name in ("greatest_hidden", "kl")}
        for need in (HIDDEN, FOUND_EDITED)
    )
    gap = {name: shadow[name] - edited[name] for name in shadow}
    control = {name: mean_of(edited[name]) for name in edited}
    return Finding(
        {
            "hidden": Measured(
                Estimate.mean(gap["greatest_hidden"], PROMPT, _GAP),
                0.0,
                control["greatest_hidden"],
            ),
            "kl": Measured(Estimate.mean(gap["kl"], PROMPT), 0.0, control["kl"]),
        },
        {
            "greatest key hidden, found without the edit": mean_of(shadow["greatest_hidden"]),
            "KL, found without the edit": mean_of(shadow["kl"]),
        },
    )


def _measure_postponed(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[DELAYED]
    wide = table.pivot(index="unit", columns="arm").sort_index()
    found, also = {}, {}
    for name in ("later", "surer"):
        mine, other = (wide[name][arm].to_numpy(dtype=float) for arm in ("sinks", "random"))
        effect = Estimate.mean(mine - other, PROMPT, _GAP2)
        found[name] = Measured(effect, 0.0, mean_of(other))
        also[f"{name}, sinks hidden"] = mean_of(mine)
    for arm, words in (("sinks", "sinks"), ("random", "other keys")):
        also[f"share written at another step, {words} hidden"] = mean_of(wide["moved"][arm])
    return Finding(found, also)


def _needs_steps(evidence: Evidence) -> Finding:
    names = ("none", "sinks", "random")
    one, many = (
        by_item(evidence, need, [("mdm", "gold", name) for name in names])
        for need in (ONE_STEP, MANY_STEPS)
    )
    for held in (one, many):
        answers(mean_of(held[:, 0]), LEAST, ROLES["mdm"][0])
    change = {  # [item] of accuracy, by what is hidden and in how many steps
        (at, steps): held[:, at] - held[:, 0]
        for steps, held in (("one step", one), ("sixteen", many))
        for at in (1, 2)
    }
    sinks, other = (change[at, "one step"] - change[at, "sixteen"] for at in (1, 2))
    gap = Estimate.mean(sinks - other, ITEM, _GAP2)
    words = {1: "sinks", 2: "other keys"}
    return Finding(
        {"steps": Measured(gap, null=0.0, control=mean_of(other))},
        {
            f"change of accuracy in {steps}, {words[at]} hidden": mean_of(held)
            for (at, steps), held in change.items()
        },
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
                "share of (step, layer, head) at which the greatest key of the unedited map is "
                "hidden: sinks found without the edit, less found with it",
                GREATER,
                0.25,
                "every second step is a half of those of a sink that stays; half of that",
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
        defect="not seen; the paper does not say which map the sinks of a step are found in",
    ),
    Claim(
        "sinks/H16",
        "Robustness comes from order: tokens that looked at the hidden sink lose confidence and "
        "are written later.",
        f"{_PAPER}, discussion",
        "hypothesis, untested",
        PROMPT,
        needs=(DELAYED,),
        criteria=(
            Criterion(
                "later",
                "partial correlation over masked positions, given the step at which the unedited "
                "run wrote them, of the attention to the sinks with the delay of their commit: "
                "sinks hidden less other keys hidden",
                GREATER,
                0.1,
                "a small correlation, by the usual words for sizes",
                null="the same as the control",
                control="the same attention, while as many other keys are hidden",
            ),
            Criterion(
                "surer",
                "the same with the change of the greatest log-probability at the first step that "
                "hides any, whose canvas is the same in all runs, given what it was",
                LESS,
                -0.1,
                "a small correlation, by the usual words for sizes",
                null="the same as the control",
                control="the same attention, while as many other keys are hidden",
            ),
        ),
        judge=_measure_postponed,
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
                "change of accuracy when the greatest sink of every head is hidden, less that when "
                "another key is: in one step less in sixteen; below 0 one step loses more",
                LESS,
                -0.05,
                "five points: the one that the paper calls robust is less than 2000 questions can "
                "tell in a difference of differences",
                null="as much in one step as in many",
                control="as many other keys hidden",
            ),
        ),
        judge=_needs_steps,
        caveat="if it costs no more, looking both ways is what is left: no run under a causal "
        "mask, or in a fixed order, separates that",
    ),
)
