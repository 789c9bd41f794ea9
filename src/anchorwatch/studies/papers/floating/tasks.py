"""Claims of 2601.07894 about what anchors go with: right answers, the task, the kind of query."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.errors import EvidenceError
from anchorwatch.metrics.stats.ranks import jensen_shannon
from anchorwatch.metrics.token_classes import CLASSES, MASK, TEMPLATE
from anchorwatch.studies import sets
from anchorwatch.studies.claim import GREATER, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.correlations import Correlation
from anchorwatch.studies.depths import deep
from anchorwatch.studies.estimates import PROMPT, Estimate
from anchorwatch.studies.evidence import Traced, by_cell, by_trace, mean_of, means_of
from anchorwatch.studies.least import Greatest
from anchorwatch.studies.needs import ROLES, Rows, Runs
from anchorwatch.studies.papers.floating.anchor_rule import floating
from anchorwatch.studies.papers.floating.anchors import MDM, turnover
from anchorwatch.studies.papers.floating.heads import by_head, score_answers
from anchorwatch.studies.reading import RIGHT

_PAPER = "arXiv 2601.07894"
TOLD = Runs("mdm", "told")
QUERIES = Rows("mdm", "queries_written", passes=16)
_MOMENTS = (("y", "y"), ("x", "x"), ("z", "z"), ("y", "x"), ("y", "z"), ("x", "z"))


def _success(evidence: Evidence) -> Finding:
    held, score = evidence[MDM], score_answers(evidence, MDM)
    good, bad = int((score == 1).sum()), int((score == 0).sum())
    if min(good, bad) < RIGHT:
        raise EvidenceError(
            f"{ROLES['mdm'][0]} that is right in {RIGHT} prompts and wrong in {RIGHT} at least: "
            f"this one is right in {good} and wrong in {bad}"
        )
    length = by_trace(held, lambda trace: trace.canvas.shape[1])
    seen = by_head(evidence, MDM)
    looks = (seen["gold"] - seen["other"]).mean(axis=(1, 2))
    moves = turnover(evidence, MDM)
    each = {"moves": _goes_with(score, moves, length), "evidence": _goes_with(score, looks, length)}
    also = {"right": mean_of(score)}
    also |= {f"correlation, {name}": one.value for name, one in each.items()}
    for name, held_by in (("turnover", moves), ("attention to gold beyond others", looks)):
        for words, which in (("right", score == 1), ("wrong", score == 0)):
            also[f"{name}, {words} answers"] = mean_of(held_by[which])
    return Finding({"either": Measured(Greatest.among(list(each.values())), null=0.0)}, also)


def _goes_with(y: np.ndarray, x: np.ndarray, z: np.ndarray) -> Estimate:
    """Correlation of y and x over prompts, given z: a smooth function of means."""
    values = {"y": y, "x": _centre(x), "z": _centre(z)}
    rows = [*values.values(), *(values[a] * values[b] for a, b in _MOMENTS)]
    return Correlation.jackknifed(np.column_stack(rows), _partial, PROMPT)


def _centre(values: np.ndarray) -> np.ndarray:
    """Nothing but numerics: products of small numbers keep more digits."""
    return values - mean_of(values)


def _partial(means: np.ndarray) -> float:
    """From means of y, x, z and of `_MOMENTS`; z that never varies takes nothing out."""
    first = dict(zip("yxz", means[:3], strict=True))
    cov = {a + b: means[3 + at] - first[a] * first[b] for at, (a, b) in enumerate(_MOMENTS)}
    taken = 1 / cov["zz"] if cov["zz"] > 1e-9 else 0.0
    both = cov["yx"] - cov["yz"] * cov["xz"] * taken
    sizes = [cov[a + a] - cov[a + "z"] ** 2 * taken for a in "yx"]
    return both / sqrt(sizes[0] * sizes[1]) if min(sizes) > 1e-15 else np.nan


def _tasks(evidence: Evidence) -> Finding:
    asked, told = (_profiles(evidence, need) for need in (MDM, TOLD))
    # words that only a prompt's template has, and masks, are no other use of a text
    known = np.delete(np.arange(len(CLASSES)), [MASK, TEMPLATE])
    sides = asked[:, known], told[:, known]
    each = np.full((2, 2, len(asked)), np.nan)  # [across or within, task, prompt]
    for task, (own, other) in enumerate((sides, sides[::-1])):
        for prompt in range(len(own)):
            rest = means_of(np.delete(own, prompt, axis=0))
            each[:, task, prompt] = _further(own[prompt], means_of(other), rest)
    across, within = each.mean(axis=1)
    also: dict[str, float | str] = {}
    for at, name in enumerate(np.array(CLASSES)[known]):
        if np.nansum(sides[0][:, at]) + np.nansum(sides[1][:, at]):
            also |= {
                f"lift of {name}, {task}": mean_of(side[:, at])
                for task, side in zip(("asked", "told"), sides, strict=True)
                if not np.isnan(side[:, at]).all()
            }
    effect = Estimate.mean(across - within, PROMPT, (-1.0, 1.0))
    return Finding({"tasks": Measured(effect, 0.0, mean_of(within))}, also)


def _further(own: np.ndarray, other: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Divergences in bits of a prompt's lifts from another task's and from the rest of its own.

    Of kinds of token that all three have: what a prompt has no keys of says nothing.
    """
    there = ~np.isnan(own + other + rest)
    if not there.any():
        return np.full(2, np.nan)
    return np.array([jensen_shannon(own[there], one[there]) for one in (other, rest)])


def _profiles(evidence: Evidence, need: Runs) -> np.ndarray:
    """[prompt, class] share of anchors over the class's share of the keys; NaN: it has no keys."""
    held: Traced = evidence[need]
    words = sets.TEMPLATE if need.prompts == "asked" else ()
    table = metrics.enrichment(list(held.traces), floating(), by=["prompt"], template=words)
    share, even = (by_cell(held, table, "class", name) for name in ("value", "null"))
    profile = np.full((held.count, len(CLASSES)), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        for name, null in even.items():
            lift = np.where(null > 0, share[name] / null, np.nan)
            profile[:, CLASSES.index(str(name))] = lift
    return profile


def _queries(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[QUERIES]
    wide = table.pivot(index="unit", columns="layer")
    value, null = (wide[name].to_numpy(dtype=float) for name in ("value", "null"))
    effect = Estimate.mean((value - null).mean(axis=1), PROMPT, (-1.0, 1.0))
    return Finding(
        {"apart": Measured(effect, 0.0, mean_of(null))},
        {
            "last half of the layers": mean_of(deep(value - null)),
            "heads whose greatest key is another": mean_of(wide["elsewhere"]),
        },
    )


CLAIMS = (
    Claim(
        "floating/H25",
        "Moving attention, or attention on the evidence, goes with right answers within a model.",
        f"{_PAPER}, abstract: it is to explain in-context learning",
        "untested",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "either",
                "correlation over prompts of a right answer, given the prompt's length: with the "
                "turnover of anchors, or with attention to the gold passage beyond other passages "
                "of the rows that predict the answer, the greater of both",
                GREATER,
                0.1,
                "a hundredth of the variance is the least that would explain anything",
                null="no relation",
            ),
        ),
        judge=_success,
        caveat="what goes with right answers need not be why they are right",
    ),
    Claim(
        "floating/H26",
        "Where anchors are depends on the task, beyond the places of the prompt's template.",
        f"{_PAPER}, README",
        "claimed without data",
        PROMPT,
        needs=(MDM, TOLD),
        criteria=(
            Criterion(
                "tasks",
                "Jensen-Shannon, in bits, of a prompt's anchors by kind of token (relative to how "
                "common the kind is) from those of the other task, less from those of other "
                "prompts of its own",
                GREATER,
                0.05,
                "a twentieth of a bit: two profiles that few would call alike",
                null="tasks alike",
                control="prompts of one task",
            ),
        ),
        judge=_tasks,
        defect="no data and no code were released for it",
        caveat="questions with passages beside passages to go on with; words of the template, "
        "masks, and kinds of token that a prompt has none of are left out",
    ),
    Claim(
        "floating/H27",
        "Masked and other positions use different anchors.",
        "arXiv 2510.15731, Fig. 6a, beside 2601.07894",
        "qualitative",
        PROMPT,
        needs=(QUERIES,),
        criteria=(
            Criterion(
                "apart",
                "Jensen-Shannon, in bits, between the anchors in the prompt that positions of the "
                "answer use while they are masked and once they are written, less that of as many "
                "positions that stayed as they were in the same steps",
                GREATER,
                0.05,
                "a twentieth of a bit",
                null="queries alike",
                control="positions that stayed as they were",
            ),
        ),
        judge=_queries,
        caveat="masked and written positions stand apart, so that each is compared with itself: "
        "attention to what is near is then no difference. Most of what is written is end tokens",
    ),
)
