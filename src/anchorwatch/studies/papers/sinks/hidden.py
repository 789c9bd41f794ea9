"""Claims of 2510.15731 about hiding sinks: robustness, its control, its cause, what comes after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from anchorwatch.edits.spec import hide_random, hide_sinks
from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.estimates import ITEM, PROMPT, Estimate
from anchorwatch.studies.evidence import answers, by_effect, by_item, mean_of
from anchorwatch.studies.needs import ROLES, Asked, Effect

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2510.15731"
_GAP2 = (-2.0, 2.0)
DOSES = (1, 5, 10, 20)
HIDDEN = Effect("mdm", (hide_sinks(1),), doses=DOSES)
SAME_PASS = (
    ("none", ()),
    ("sinks", (hide_sinks(1, detect="same_shadow"),)),
    ("random", (hide_random(1, detect="same_shadow"),)),
)
"""Found in the pass that is edited: by the step before, the first pass of a run hides nothing, and
of an answer of a few tokens that is the one that reads the prompt."""
ANSWERED = Asked(("mdm", "arm"), ("gold",), SAME_PASS)

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
    """Sinks and other keys over the dose, with Student's interval over prompts."""
    from anchorwatch.figures.evaluation import effect_doses

    table: pd.DataFrame = evidence[HIDDEN].table
    outcomes = ("argmax_agreement", "kl")
    rows = []
    shown = table[table["outcome"].isin(outcomes)]
    for (k, outcome, unit), part in shown.groupby(["k", "outcome", "unit"], sort=False):
        row = {"k": k, "outcome": outcome, "unit": unit, "n": len(part)}
        for value, ends in (("difference", ""), ("control_difference", "control_")):
            found = Estimate.mean(part[value], PROMPT)
            low, high = found.interval(0.95)
            row |= {value: found.value, f"{ends}low": low, f"{ends}high": high}
        rows.append(row)
    return effect_doses(pd.DataFrame(rows), outcomes=outcomes)


def _recovers(evidence: Evidence) -> Finding:
    found = {}
    for name, outcome in (("gainer", "largest_gainer"), ("new", "new_sink_share")):
        beyond, control = (
            by_effect(evidence, HIDDEN, outcome, series) for series in ("did", "control_difference")
        )
        found[name] = Measured(Estimate.mean(beyond, PROMPT, _GAP2), 0.0, mean_of(control))
    even, expected = (
        mean_of(by_effect(evidence, HIDDEN, "gain_entropy", series))
        for series in ("edited", "null")
    )
    also: dict[str, float | str] = {"evenness of gains": even, "if in proportion": expected}
    for words, outcome in (("greatest gain", "largest_gainer"), ("new sinks", "new_sink_share")):
        also[f"{words} beyond proportion"] = mean_of(
            by_effect(evidence, HIDDEN, outcome, "difference")
        )
    return Finding(found, also)


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
        defect="not seen; the paper has no random control and one seed, does not say in which map "
        "the sinks were found, and in its own table Dream loses three points",
        caveat="accuracy of made-up questions with their passage, not GSM8K; sinks are found in "
        "the pass they are hidden in, and the ARM reads all its text at each step, as the MDM "
        "does, so that no row was made without the edit",
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
        "After a sink is hidden a new one forms: its attention goes to one other key, more than "
        "that of other keys does.",
        f"{_PAPER}, open question",
        "unknown",
        PROMPT,
        needs=(HIDDEN,),
        criteria=(
            Criterion(
                "gainer",
                "share of the freed attention that the key which gains most takes, beyond what it "
                "would if all gained in proportion; a sink hidden less another key hidden",
                GREATER,
                0.05,
                "a twentieth of what was freed",
                null="the same as the control",
                control="as many other keys, drawn for each run, beyond proportion",
            ),
            Criterion(
                "new",
                "share of the freed attention that keys take which the rule calls sinks only now; "
                "the same difference",
                GREATER,
                0.05,
                "a twentieth of what was freed: a sink that takes less did not take its place",
                null="the same as the control",
                control="as many other keys, drawn for each run, beyond proportion",
            ),
        ),
        judge=_recovers,
    ),
)
