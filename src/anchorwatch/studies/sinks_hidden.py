"""Claims of 2510.15731 about hiding sinks: robustness, its control, its cause, what comes after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from anchorwatch.edits import hide_random, hide_sinks
from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.estimates import ITEM, PROMPT, Estimate
from anchorwatch.studies.evidence import answers, by_effect, by_item, mean_of
from anchorwatch.studies.needs import ROLES, Asked, Effect

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2510.15731"
DOSES = (1, 5, 10, 20)
HIDDEN = Effect("mdm", (hide_sinks(1),), doses=DOSES)
ANSWERED = Asked(
    ("mdm", "arm"),
    ("gold",),
    (("none", ()), ("sinks", (hide_sinks(1),)), ("random", (hide_random(1),))),
)

LEAST = {"mdm": 0.3, "arm": 0.5}
"""Unedited accuracy below which there is too little to lose: the ARM is to lose half."""


def _robust(evidence: Evidence) -> Finding:
    names = ("none", "sinks", "random")
    scores = {
        role: by_item(evidence, ANSWERED, [(role, "gold", name) for name in names])
        for role in ANSWERED.asks
    }
    for role, least in LEAST.items():
        answers(mean_of(scores[role][:, 0]), least, ROLES[role][0])
    found, also = {}, {}
    for role, held in scores.items():
        effect = Estimate.pairs(held[:, 1], held[:, 0], ITEM)
        control = mean_of(held[:, 2] - held[:, 0])
        found[role] = Measured(effect, null=0.0, control=control)
        also[f"{role.upper()} unedited"] = mean_of(held[:, 0])
    return Finding(found, also)


def _specific(evidence: Evidence) -> Finding:
    agreement, kl = (by_effect(evidence, HIDDEN, name) for name in ("argmax_agreement", "kl"))
    beside = {
        name: mean_of(by_effect(evidence, HIDDEN, name, "control_difference"))
        for name in ("argmax_agreement", "kl")
    }
    doses = {
        f"KL beyond the control at k = {k}": mean_of(by_effect(evidence, HIDDEN, "kl", k=k))
        for k in DOSES
    }
    return Finding(
        {
            "agreement": Measured(
                Estimate.mean(agreement, PROMPT, (-1.0, 1.0)), 0.0, beside["argmax_agreement"]
            ),
            "kl": Measured(Estimate.mean(kl, PROMPT), 0.0, beside["kl"]),
        },
        doses,
    )


def _dose_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.contrasts import NUMBERS
    from anchorwatch.figures.effects import effect_doses

    table: pd.DataFrame = evidence[HIDDEN].table
    kept = [name for name in NUMBERS if name in table and name not in ("n", "did_n", "interval")]
    means = table.groupby(["k", "outcome", "unit", "on", "against"], sort=False)[kept].mean()
    held = means.reset_index().assign(n=evidence[HIDDEN].count, interval="")
    return effect_doses(held, outcomes=("argmax_agreement", "kl"))


def _recovers(evidence: Evidence) -> Finding:
    gainer = by_effect(evidence, HIDDEN, "largest_gainer", "difference")
    null = by_effect(evidence, HIDDEN, "largest_gainer", "null")
    even, expected = (
        mean_of(by_effect(evidence, HIDDEN, "gain_entropy", series))
        for series in ("edited", "null")
    )
    found = Measured(Estimate.mean(gainer, PROMPT, (-1.0, 1.0)), mean_of(null))
    new = mean_of(by_effect(evidence, HIDDEN, "new_sink_share", "edited"))
    return Finding(
        {"gainer": found},
        {"evenness of gains": even, "if in proportion": expected, "gains of new sinks": new},
    )


CLAIMS = (
    Claim(
        "sinks/H13",
        "Hiding the greatest sink of every head costs a masked diffusion model under one point of "
        "accuracy, and destroys an autoregressive one.",
        f"{_PAPER}, Table 1",
        "GSM8K: LLaDA .76 to .75, Dream .82 to .79, Llama .85 to .02",
        ITEM,
        needs=(ANSWERED,),
        criteria=(
            Criterion(
                "mdm",
                "accuracy with the greatest sink of every head hidden, less unedited, MDM",
                GREATER,
                -0.01,
                "under one point is what is claimed",
                null="an edit that does nothing",
                control="as many other keys hidden",
            ),
            Criterion(
                "arm",
                "the same of the ARM",
                LESS,
                -0.5,
                "fifty points: less would not be called destroyed; Llama loses 83",
                null="an edit that does nothing",
                control="as many other keys hidden",
            ),
        ),
        judge=_robust,
        defect="no random control, one seed; which map the sinks were found in is not said; Dream "
        "loses three points in the paper's own table",
        caveat="accuracy of made-up questions with their passage, not GSM8K",
    ),
    Claim(
        "sinks/H14",
        "What hiding a sink does is about the sink: as many other keys hidden do less.",
        f"{_PAPER}, no control is reported",
        "never reported for diffusion models",
        PROMPT,
        needs=(HIDDEN,),
        criteria=(
            Criterion(
                "agreement",
                "share of masked positions whose likeliest token stays, sinks hidden less other "
                "keys hidden, on the same frames",
                LESS,
                -0.01,
                "one position in a hundred",
                null="the same as the control",
                control="as many other keys, drawn for each run",
            ),
            Criterion(
                "kl",
                "KL from the unedited distribution, in nats, sinks hidden less other keys hidden",
                GREATER,
                0.01,
                "a hundredth of a nat is hardly a change of any answer",
                null="the same as the control",
                control="as many other keys, drawn for each run",
            ),
        ),
        judge=_specific,
        draw=_dose_figure,
    ),
    Claim(
        "sinks/H25",
        "After a sink is hidden a new one forms: its attention goes to one other key.",
        f"{_PAPER}, open question",
        "unknown",
        PROMPT,
        needs=(HIDDEN,),
        criteria=(
            Criterion(
                "gainer",
                "share of the freed attention that the key which gains most takes, less what it "
                "would if all gained in proportion",
                GREATER,
                0.05,
                "a twentieth of what was freed",
                null="every other key gains in proportion to what it had",
            ),
        ),
        judge=_recovers,
    ),
)
