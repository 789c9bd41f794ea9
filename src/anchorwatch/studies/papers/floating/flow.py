"""Claims of 2601.07894 about flow between passages: to the evidence, and into the first token."""

from __future__ import annotations

from math import log2

import numpy as np
import pandas as pd

from anchorwatch.errors import EvidenceError
from anchorwatch.studies.claim import EQUAL, GREATER, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.estimates import PROMPT, Estimate
from anchorwatch.studies.evidence import mean_of
from anchorwatch.studies.needs import Rows

_PAPER = "arXiv 2601.07894"
PLACES = Rows("mdm", "gold_looks", passes=48)
ROLLED = {role: Rows(role, "first_rollout", passes=16) for role in ("mdm", "arm")}
CONTRAST = 0.2
"""Of the rollout into the first token: a fifth of the published contrast; less needs no reason."""
TENTH = round(log2(1.1), 4)
"""Ten per cent either way, as a difference of logarithms."""


def _wherever(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[PLACES]
    wide = table.pivot(index="unit", columns="place", values="lift").astype(float)
    logs = np.log2(wide.where(wide > 0))
    first, middle, last = (logs[name].to_numpy() for name in ("first", "middle", "last"))
    also = {
        f"times, gold {name}": float(2 ** mean_of(logs[name]))
        for name in ("first", "middle", "last")
    }
    also["right"] = mean_of(table["right"])
    return Finding(
        {
            "attended": Measured(Estimate.mean((first + middle + last) / 3, PROMPT), null=0.0),
            "first and last": Measured(Estimate.mean(first - last, PROMPT), null=0.0),
            "middle and ends": Measured(
                Estimate.mean(middle - (first + last) / 2, PROMPT), null=0.0
            ),
        },
        also,
    )


def _masks_doing(evidence: Evidence) -> Finding:
    arm, mdm = (
        evidence[ROLLED[role]].set_index("unit").add_suffix(f" {role}") for role in ("arm", "mdm")
    )
    both: pd.DataFrame = arm.join(mdm, how="outer")

    def of(name: str) -> np.ndarray:
        return both[name].to_numpy(dtype=float)

    contrast = of("value arm") - of("value mdm")
    if not mean_of(contrast) > CONTRAST:
        raise EvidenceError(
            "models whose rollouts differ: into the first token by more than "
            f"{CONTRAST:g}, as published ones do by nearly 1: these differ by "
            f"{mean_of(contrast):.3f}"
        )
    of_masks = of("null arm") - of("null mdm")
    also = {
        f"{words}, {role.upper()}": mean_of(of(f"{name} {role}"))
        for role in ROLLED
        for words, name in (
            ("into the first token", "value"),
            ("of even attention", "null"),
            ("Dobrushin coefficient", "dobrushin"),
        )
    }
    share = Estimate.mean(of("null arm") - 0.9 * of("value arm"), PROMPT, (-0.9, 1.0))
    mask = Estimate.mean(of_masks - 0.9 * contrast, PROMPT, (-1.9, 1.9))
    return Finding({"null": Measured(share), "contrast": Measured(mask)}, also)


CLAIMS = (
    Claim(
        "floating/H18",
        "The gold passage is attended to wherever it stands.",
        f"{_PAPER}, flow figures",
        "gold over other passages 1.47 / 1.50 / 1.42 at first, middle and last place, one example",
        PROMPT,
        needs=(PLACES,),
        criteria=(
            Criterion(
                "attended",
                "log2 of how much more the answer looks at a token of gold than at one of another "
                "passage, mean over gold first, middle and last, the same items",
                GREATER,
                TENTH,
                "ten per cent more; 42 to 50 are reported",
                null="passages alike",
            ),
            Criterion(
                "first and last",
                "the same with gold first, less with gold last",
                EQUAL,
                TENTH,
                "ten per cent either way",
                null="no difference between places",
            ),
            Criterion(
                "middle and ends",
                "the same with gold in the middle, less the mean of first and last",
                EQUAL,
                TENTH,
                "ten per cent either way",
                null="no difference between places",
            ),
        ),
        judge=_wherever,
        defect="flow is not divided by length; one example; all rows of the map are equal",
        caveat="direct attention, in all layers, of the rows that predict the answer's tokens when "
        "they do, whether the answer is right or wrong; three passages",
    ),
    Claim(
        "floating/H19",
        "The contrast of rollouts between models is the mask's: even causal attention flows into "
        "the first token as well.",
        f"{_PAPER}, flow figures",
        "Llama 1.00 into the first token; a simulation without any sink .72 to .89",
        PROMPT,
        needs=tuple(ROLLED.values()),
        criteria=(
            Criterion(
                "null",
                "published rollout from the answer into the first token: that of even causal "
                "attention, less nine tenths of the ARM's",
                GREATER,
                0.0,
                "nine tenths is nearly all of it",
            ),
            Criterion(
                "contrast",
                "the same of the difference between ARM and MDM: that of even attention under "
                "either mask, less nine tenths of the models'",
                GREATER,
                0.0,
                "nine tenths is nearly all of it",
            ),
        ),
        judge=_masks_doing,
        defect="in a causal model the first row can only look at itself and absorbs everything",
        caveat="the more layers, the more flows into the first token; this is of the model's own. "
        "Whether answers look otherwise once the first token is left out is floating/H18's",
    ),
)
