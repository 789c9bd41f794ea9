"""Claims of 2601.07894 about answers: gain from passages, noise, places, layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from anchorwatch.errors import EvidenceError
from anchorwatch.evaluation.tables import gains, slope
from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.discrete import mean_score
from anchorwatch.studies.estimates import ITEM
from anchorwatch.studies.evidence import answers, by_item, mean_of, means_of
from anchorwatch.studies.needs import ROLES, Asked

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2601.07894"
GAIN = Asked(("mdm", "arm"), ("closed", "gold"))
NOISE = Asked(("mdm", "arm"), ("gold", "gold+1", "gold+2", "gold+4"))
PLACES = Asked(("mdm", "arm"), ("gold@1/5", "gold@3/5", "gold@5/5"))
LAYOUT = Asked(("mdm", "arm"), ("adjacent+2", "far+2", "reversed+2"), task="synthetic/two-hop")
PROMPTED = {
    name: Asked(("mdm",), ("closed", "gold"), template=f"floating-{name}")
    for name in ("rules", "examples")
}
LEAST = 0.3
"""Of the questions, as for floating/H15: a model that answers fewer has too little to lose."""
GAINS = 0.05
"""Of the questions: a model that gains less from a passage has nothing to double."""
_DOUBLINGS = tuple(float(np.log2(1 + others)) for others in (0, 1, 2, 4))


def _doubles(evidence: Evidence) -> Finding:
    cells = [(role, context, "none") for role in ("mdm", "arm") for context in GAIN.contexts]
    scores = by_item(evidence, GAIN, cells)
    mdm, arm = scores[:, 1] - scores[:, 0], scores[:, 3] - scores[:, 2]
    means = means_of(scores)
    answers(mean_of(arm), GAINS, f"with its passage, over the closed book, {ROLES['arm'][0]}")
    gained, beside = mean_of(mdm), mean_of(arm)
    if 2 * beside > (room := 1 - float(means[0])):
        raise EvidenceError(
            f"questions of which {ROLES['mdm'][0]} could gain twice what {ROLES['arm'][0]} does: "
            f"the latter gains {beside:.3f}, the former can gain {room:.3f} at most"
        )
    also = {
        "gain of the MDM": gained,
        "gain of the ARM": beside,
        "ratio": gained / beside if beside > 0 else float("nan"),
        "MDM with passage": float(means[1]),
        "ARM with passage": float(means[3]),
        "MDM closed book": float(means[0]),
        "ARM closed book": float(means[2]),
    }
    effect = mean_score(mdm - 2 * arm, ITEM, (-3.0, 3.0))
    return Finding({"doubles": Measured(effect, null=-beside, control=beside)}, also)


def _gain_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.evaluation import gain_bars

    return gain_bars(gains(evidence[GAIN].results))


def _flatter(evidence: Evidence) -> Finding:
    roles, of = ("mdm", "arm"), slope(_DOUBLINGS)
    cells = [(role, context, "none") for role in roles for context in NOISE.contexts]
    scores = by_item(evidence, NOISE, cells)
    half = len(NOISE.contexts)
    for role, share in zip(roles, means_of(scores)[[0, half]], strict=True):
        answers(float(share), LEAST, ROLES[role][0])
    mdm, arm = of(scores[:, :half]), of(scores[:, half:])
    also = {
        f"slope of the {role.upper()}": mean_of(x)
        for role, x in zip(roles, (mdm, arm), strict=True)
    }
    for role, share in zip(roles, means_of(scores)[[0, half]], strict=True):
        also[f"accuracy without distractors, {role.upper()}"] = float(share)
    steepest = float(np.abs(of(np.eye(half))).sum())  # right before the middle, wrong after it
    effect = mean_score(mdm - arm, ITEM, (-steepest, steepest))
    return Finding({"slope": Measured(effect, null=0.0)}, also)


def _by_role(evidence: Evidence, need: Asked) -> dict[str, np.ndarray]:
    """[item, context] of each role; a model that answers nothing in any context is refused."""
    found = {}
    for role in need.asks:
        found[role] = by_item(evidence, need, [(role, name, "none") for name in need.contexts])
        answers(mean_of(found[role]), LEAST, ROLES[role][0])
    return found


def _not_lost(evidence: Evidence) -> Finding:
    scores = _by_role(evidence, PLACES)
    index, also = {}, {}
    for role, held in scores.items():
        index[role] = (held[:, 0] + held[:, 2]) / 2 - held[:, 1]
        also[f"last less first, {role.upper()}"] = mean_of(held[:, 2] - held[:, 0])
        also[f"accuracy, {role.upper()}"] = mean_of(held)
    apart = mean_score(index["mdm"] - index["arm"], ITEM, (-2.0, 2.0))
    beside = mean_of(index["arm"])
    return Finding(
        {
            "mdm": Measured(mean_score(index["mdm"], ITEM, (-1.0, 1.0)), null=0.0),
            "beside the ARM": Measured(apart, 0.0, beside),
        },
        also,
    )


def _place_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.evaluation.tables import curve
    from anchorwatch.figures.evaluation import position_curve

    return position_curve(curve(evidence[PLACES].results, "position"))


def _noise_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.evaluation.tables import curve
    from anchorwatch.figures.evaluation import noise_curve

    return noise_curve(curve(evidence[NOISE].results, "noise"))


def _integrates(evidence: Evidence) -> Finding:
    scores = _by_role(evidence, LAYOUT)
    found, also = {}, {}
    for name, other in (("far", 1), ("order", 2)):
        cost = {role: held[:, 0] - held[:, other] for role, held in scores.items()}
        effect = mean_score(cost["mdm"] - cost["arm"], ITEM, (-2.0, 2.0))
        found[name] = Measured(effect, 0.0, mean_of(cost["arm"]))
        also[f"cost to the MDM, {name}"] = mean_of(cost["mdm"])
    return Finding(found, also)


def _prompt_helps(evidence: Evidence) -> Finding:
    gain, also = {}, {}
    for name, need in PROMPTED.items():
        held = by_item(evidence, need, [("mdm", context, "none") for context in need.contexts])
        gain[name] = held[:, 1] - held[:, 0]
        also[f"gain with the prompt of {name}"] = mean_of(gain[name])
    answers(
        mean_of(gain["rules"]),
        GAINS,
        f"with its passage, over the closed book, in the prompt of rules, {ROLES['mdm'][0]}",
    )
    effect = mean_score(gain["rules"] - gain["examples"], ITEM, (-2.0, 2.0))
    return Finding({"less": Measured(effect, 0.0, mean_of(gain["examples"]))}, also)


CLAIMS = (
    Claim(
        "floating/H20",
        "Masked diffusion models are not lost in the middle, and less than autoregressive ones.",
        f"{_PAPER}, stress tests; 2511.21338 reports the contrary, a bias to what is near",
        "claimed, numbers not known to us",
        ITEM,
        needs=(PLACES,),
        criteria=(
            Criterion(
                "mdm",
                "U-index of the MDM: accuracy with the evidence first or last of five, less in the "
                "middle",
                LESS,
                0.05,
                "five points; lost in the middle are models that lose ten or twenty",
                null="places alike",
            ),
            Criterion(
                "beside the ARM",
                "the same, less that of the ARM, the same items",
                LESS,
                -0.01,
                "a point is the least that would matter",
                null="no difference between the models",
                control="the ARM",
            ),
        ),
        judge=_not_lost,
        draw=_place_figure,
        defect="no code for the stress tests was released",
        caveat="an MDM answers in a fixed number of positions, of which those after the answer are "
        "masks for a while; 2511.21338 finds these harmful, and their number is not varied here",
    ),
    Claim(
        "floating/H21",
        "Distracting passages cost a masked diffusion model less than an autoregressive one.",
        f"{_PAPER}, stress tests",
        "claimed, numbers not known to us",
        ITEM,
        needs=(NOISE,),
        criteria=(
            Criterion(
                "slope",
                "change of accuracy per doubling of the passages, MDM less ARM, the same items",
                GREATER,
                0.01,
                "a point for each doubling is the least that would matter",
                null="no difference between the models",
            ),
        ),
        judge=_flatter,
        draw=_noise_figure,
        defect="no code for the stress tests was released",
        caveat="a line in accuracy and not in its logarithmic odds: what is claimed is lost "
        "answers, and an item that is always right has no odds. Who has more to lose falls more "
        "steeply, so that accuracy without distractors is given for both",
    ),
    Claim(
        "floating/H22",
        "Evidence in two passages that are apart, or in the other order, costs a masked diffusion "
        "model less than an autoregressive one.",
        f"{_PAPER}, stress tests",
        "claimed, numbers not known to us",
        ITEM,
        needs=(LAYOUT,),
        criteria=(
            Criterion(
                "far",
                "accuracy with the two passages side by side, less with two others between them, "
                "MDM less ARM, the same items",
                LESS,
                -0.01,
                "a point is the least that would matter",
                null="no difference between the models",
                control="the ARM",
            ),
            Criterion(
                "order",
                "accuracy with the first hop first, less with the second first, MDM less ARM",
                LESS,
                -0.01,
                "a point is the least that would matter",
                null="no difference between the models",
                control="the ARM",
            ),
        ),
        judge=_integrates,
        defect="no code for the stress tests was released",
    ),
    Claim(
        "floating/H23",
        "Passages help a masked diffusion model twice as much as an autoregressive one.",
        f"{_PAPER}, Table 1",
        "mean gain 19.46 against 8.51 points (2.29 times); Dream alone 1.56 times; with passages "
        "43.8 against 37.0",
        ITEM,
        needs=(GAIN,),
        criteria=(
            Criterion(
                "doubles",
                "gain of the MDM less twice the gain of the ARM, in accuracy, the same items",
                GREATER,
                0.0,
                "double is what is claimed; as a difference it needs no division by a small gain",
                null="equal gains",
                control="the gain of the ARM",
            ),
        ),
        judge=_doubles,
        draw=_gain_figure,
        defect="LLaDA, the model with the largest gain, has a prompt of its own; Llama gets two "
        "first tokens; the code of the closed book is missing",
        caveat="one prompt, one metric and greedy answers for both models",
    ),
    Claim(
        "floating/H24",
        "Part of LLaDA's gain is its prompt: with the others' three examples it gains less.",
        f"{_PAPER}, evaluation scripts",
        "untested; +25.68 points with its own prompt",
        ITEM,
        needs=tuple(PROMPTED.values()),
        criteria=(
            Criterion(
                "less",
                "gain from the passage in the prompt of rules (LLaDA's), less that in the prompt "
                "with three examples (the others'), the same items",
                GREATER,
                0.01,
                "a point is the least that would matter",
                null="prompts alike",
                control="the gain in the prompt with examples",
            ),
        ),
        judge=_prompt_helps,
        defect="the prompts are said to be the same and are not",
        caveat="prompts in our words; a model that was never trained on instructions may answer "
        "in neither",
    ),
)
