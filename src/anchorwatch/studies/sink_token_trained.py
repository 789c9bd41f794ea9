"""Claims of 2601.19657 about training with a sink token: the unit is the training seed."""

from __future__ import annotations

import numpy as np

from anchorwatch.studies.claim import LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.estimates import SEED, Estimate
from anchorwatch.studies.evidence import by_seed
from anchorwatch.studies.needs import Seeds

_PAPER = "arXiv 2601.19657"
BOUND = "bound.all"
IMPROVES = Seeds((BOUND, "answers.gold"))
PLACES = Seeds((BOUND,), ("vanilla", "sink", "sink-end"))
_NAMES = "output folders of the three arms are exchanged, so that arms picked by name are others"
_PART = 0.2
"""Of the effect of a sink token: what two kinds of it may differ by and still be called alike."""


def _improves(evidence: Evidence) -> Finding:
    wide, answers = (by_seed(evidence, IMPROVES, name) for name in IMPROVES.columns)
    gap = (wide["sink"] - wide["vanilla"]).to_numpy()
    right = float(np.nanmean(answers["sink"] - answers["vanilla"]))
    found = Measured(Estimate.mean(gap, SEED), 0.0, float(np.nanmean(wide["vanilla"])))
    return Finding({"bound": found}, {"answers with passage, sink less vanilla": right})


def _place(evidence: Evidence) -> Finding:
    wide = by_seed(evidence, PLACES, BOUND)
    gain = (wide["vanilla"] - wide["sink"]).to_numpy()
    moved = (wide["sink-end"] - wide["sink"]).to_numpy()
    sides = {"end not worse": moved, "end not better": -moved}
    found = {
        name: Measured(Estimate.mean(side - _PART * gain, SEED), 0.0)
        for name, side in sides.items()
    }
    means = {"end less front": float(np.nanmean(moved)), "gain of a sink": float(np.nanmean(gain))}
    return Finding(found, means)


CLAIMS = (
    Claim(
        "sink_token/H5",
        "A sink token improves the model.",
        f"{_PAPER}, Tables 1 and 2",
        "+5.15 / +1.53 / +5.50 points of mean accuracy",
        SEED,
        needs=(IMPROVES,),
        criteria=(
            Criterion(
                "bound",
                "held-out bound in nats per token, sink token less vanilla, paired by seed",
                LESS,
                -0.005,
                "half a percent of perplexity; less is within what a recipe's details do",
                null="no difference",
                control="vanilla",
            ),
        ),
        judge=_improves,
        defect=_NAMES + "; arms share no noise, and each is one run",
        caveat="small networks and few tokens; the paper's are of 0.5B and 1.5B parameters",
    ),
    Claim(
        "sink_token/H6",
        "A sink token is at least as good as gated attention.",
        f"{_PAPER}, Tables 1 and 2",
        "+2.9 / +8.2 / +2.2 points over gates",
        SEED,
        defect=_NAMES,
        caveat="gates that begin at one half damage a pretrained network; the paper has no others",
    ),
    Claim(
        "sink_token/H7",
        "Where the sink token stands does not matter.",
        f"{_PAPER}, Table 3",
        "mean of five tasks 46.76 (front), 46.58 (end)",
        SEED,
        needs=(PLACES,),
        criteria=tuple(
            Criterion(
                name,
                f"bound of {one} less {other}, less a fifth of the gain of a sink token, by seed",
                LESS,
                0.0,
                "a fifth of the gain: the effect of place is to be small beside that of the token",
                null="no difference in place, and no gain",
            )
            for name, one, other in (
                ("end not worse", "end", "front"),
                ("end not better", "front", "end"),
            )
        ),
        judge=_place,
        defect="code for the other place was not released",
        caveat="if a sink token gains nothing here, no place can be called equal on this scale",
    ),
    Claim(
        "sink_token/H8",
        "One sink token is enough.",
        f"{_PAPER}, Table 4",
        "mean of five tasks 46.76 / 46.53 / 46.20 for 1 / 2 / 4",
        SEED,
        defect="code for more than one was not released",
    ),
    Claim(
        "sink_token/H9",
        "What the sink token holds does not matter: an empty value does as well.",
        f"{_PAPER}, Table 5",
        "46.76 against 46.88",
        SEED,
        defect="code for the empty value was not released",
    ),
    Claim(
        "sink_token/H15",
        "Gates hurt where a trained autoregressive model is made into a diffusion model; a sink "
        "token does not.",
        f"{_PAPER}, Table 1",
        "-6.7 points at 1.5B",
        SEED,
    ),
    Claim(
        "sink_token/H16",
        "The gain of a sink token grows away from the training length.",
        "ours, after a confound of 2601.19657",
        "not in the paper",
        SEED,
    ),
    Claim(
        "sink_token/H17",
        "The gain of a sink token is where masks are few.",
        "ours, after 2601.19657",
        "not in the paper",
        SEED,
    ),
)
