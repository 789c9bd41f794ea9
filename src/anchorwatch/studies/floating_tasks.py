"""Claims of 2601.07894 about what anchors go with: right answers, the task, the kind of query."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.errors import EvidenceError
from anchorwatch.metrics.tokens import CLASSES, MASK, TEMPLATE
from anchorwatch.stats.ranks import jensen_shannon
from anchorwatch.studies import sets
from anchorwatch.studies.anchors import floating
from anchorwatch.studies.claim import GREATER, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.correlations import Correlation
from anchorwatch.studies.depths import deep
from anchorwatch.studies.estimates import PROMPT, Estimate
from anchorwatch.studies.evidence import Traced, by_cell, by_trace, mean_of
from anchorwatch.studies.floating_anchors import MDM, turnover
from anchorwatch.studies.floating_heads import by_head
from anchorwatch.studies.needs import ROLES, Rows, Runs
from anchorwatch.studies.reading import right

_PAPER = "arXiv 2601.07894"
TOLD = Runs("mdm", "told")
QUERIES = Rows("mdm", "query_split", passes=16)
ROOM = 0.05
"""Of the answers: fewer wrong ones, or right ones, say nothing of what goes with them."""
_MOMENTS = (("y", "y"), ("x", "x"), ("z", "z"), ("y", "x"), ("y", "z"), ("x", "z"))


def _success(evidence: Evidence) -> Finding:
    held = evidence[MDM]
    scored = np.full(held.count, np.nan)
    for place, trace in zip(held.places, held.traces, strict=True):
        scored[place] = right(trace, sets.ASKED[place])
    share = mean_of(scored)
    if not ROOM <= share <= 1 - ROOM:
        raise EvidenceError(
            f"{ROLES['mdm'][0]} that is right in {ROOM:.0%} to {1 - ROOM:.0%} of the prompts: "
            f"this one is in {share:.0%}"
        )
    length = by_trace(held, lambda trace: trace.canvas.shape[1])
    seen = by_head(evidence, MDM)
    looks = (seen["gold"] - seen["other"]).mean(axis=(1, 2))
    moves = turnover(evidence, MDM)
    found = {
        "moves": Measured(_goes_with(scored, moves, length), null=0.0),
        "evidence": Measured(_goes_with(scored, looks, length), null=0.0),
    }
    also = {"right": share}
    for name, held_by in (("turnover", moves), ("attention to gold beyond others", looks)):
        for words, which in (("right", scored > 0.5), ("wrong", scored <= 0.5)):
            also[f"{name}, {words} answers"] = mean_of(held_by[which])
    return Finding(found, also)


def _goes_with(y: np.ndarray, x: np.ndarray, z: np.ndarray) -> Estimate:
    """Correlation of y and x over prompts, given z: a smooth function of means."""
    values = {"y": y, "x": _centred(x), "z": _centred(z)}
    rows = [*values.values(), *(values[a] * values[b] for a, b in _MOMENTS)]
    return Correlation.jackknifed(np.column_stack(rows), _partial, PROMPT)


def _centred(values: np.ndarray) -> np.ndarray:
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
    known = ~(np.isnan(asked).all(axis=0) | np.isnan(told).all(axis=0))
    known[TEMPLATE] = False  # what only a prompt's template has is no other use of a text
    sides = [_scaled(np.nan_to_num(one[:, known])) for one in (asked, told)]
    means = [_without_each(one) for one in sides]
    across = (_apart(sides[0], means[1]) + _apart(sides[1], means[0])) / 2
    within = (_apart(sides[0], means[0]) + _apart(sides[1], means[1])) / 2
    also = {}
    for at, name in zip(np.flatnonzero(known), np.array(CLASSES)[known], strict=True):
        if at == MASK or not np.nansum(asked[:, at]) + np.nansum(told[:, at]):
            continue
        also[f"lift of {name}, asked"] = mean_of(asked[:, at])
        also[f"lift of {name}, told"] = mean_of(told[:, at])
    effect = Estimate.mean(across - within, PROMPT, (-1.0, 1.0))
    return Finding({"tasks": Measured(effect, 0.0, mean_of(within))}, also)


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


def _scaled(lifts: np.ndarray) -> np.ndarray:
    """[prompt, class] as a distribution; NaN where a prompt has none."""
    total = lifts.sum(axis=1, keepdims=True)
    return lifts / np.where(total > 0, total, np.nan)


def _without_each(profiles: np.ndarray) -> np.ndarray:
    """[prompt, class] the mean of all the others."""
    there = ~np.isnan(profiles[:, :1])
    kept = np.where(there, profiles, 0.0)
    return (kept.sum(axis=0) - kept) / np.maximum(there.sum() - there, 1)


def _apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """[prompt] divergence in bits; NaN where a side is absent."""
    found = np.asarray(jensen_shannon(one, other), dtype=float)
    return np.where(np.isnan(one).any(axis=1) | np.isnan(other).any(axis=1), np.nan, found)


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
        "Moving attention, and attention on the evidence, go with right answers within a model.",
        f"{_PAPER}, abstract: it is to explain in-context learning",
        "untested",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "moves",
                "correlation over prompts of a right answer with the turnover of anchors, given "
                "the prompt's length",
                GREATER,
                0.1,
                "a hundredth of the variance is the least that would explain anything",
                null="no relation",
            ),
            Criterion(
                "evidence",
                "the same with attention to the gold passage beyond other passages, of the rows "
                "that predict the answer",
                GREATER,
                0.1,
                "a hundredth of the variance",
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
        caveat="questions with passages beside passages to go on with; words of the template are "
        "left out",
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
                "Jensen-Shannon, in bits, between what masked and other queries of a head look at, "
                "less that of the same queries dealt out by chance",
                GREATER,
                0.05,
                "a twentieth of a bit",
                null="queries alike",
                control="the same queries dealt out by chance",
            ),
        ),
        judge=_queries,
        caveat="masked positions stand at the end, so that attention to what is near counts as a "
        "difference too",
    ),
)
