"""Claims of 2510.15731 and its neighbours about what sinks are: tokens, values, activations."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.errors import EvidenceError
from anchorwatch.probes.spec import norms, received
from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.correlations import Correlation
from anchorwatch.studies.estimates import ITEM, PROMPT, Estimate
from anchorwatch.studies.evidence import Traced, answers, by_cell, by_prompt, mean_of
from anchorwatch.studies.needs import ROLES, Rows, Runs

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2510.15731"
_SHARE, _GAP = (0.0, 1.0), (-1.0, 1.0)
MDM = Runs("mdm")
NORMS = Runs("mdm", probes=(received(), norms(keys=True, contribution=True)))
MASKS = Rows("mdm", "added_masks", passes=4)
NAMED = ("newline", "mask")
LEAST = 0.3
"""Share of first tokens that are right before few masks, below which little can be lost."""


def _measure_enrichment(evidence: Evidence) -> Finding:
    held: Traced = evidence[MDM]
    make = partial(metrics.enrichment, list(held.traces), by=["prompt"], matched=True)
    table = evidence.once((MDM, "enrichment by prompt"), make)
    share, even = (by_cell(held, table, "class", name) for name in ("value", "null"))
    found = {
        name: Measured(
            Estimate.mean(share[name] - even[name], PROMPT, _GAP),
            null=0.0,
            control=mean_of(even[name]),
        )
        for name in NAMED
    }
    end = mean_of(share["end"] - even["end"]) if "end" in share else float("nan")
    told = [name for name in (*NAMED, "punctuation") if name in share]
    also: dict[str, float | str] = {f"share of {name}": mean_of(share[name]) for name in told}
    return Finding(found, also | {"ends beyond chance": end if np.isfinite(end) else "absent"})


def _token_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sink_classes import enrichment

    held = list(evidence[MDM].traces)
    make = partial(metrics.enrichment, held, matched=True)
    table = evidence.once((MDM, "enrichment"), make)
    return enrichment(table) if table["value"].notna().any() else None  # no sink, no share


def _class_or_place(evidence: Evidence) -> Finding:
    held: Traced = evidence[MDM]
    make = partial(metrics.meaning_or_place, list(held.traces), by=["prompt"])
    table = evidence.once((MDM, "meaning_or_place by prompt"), make)
    sink = table[table["outcome"] == "sink"]
    value, null = (by_cell(held, sink, "quantity", name) for name in ("value", "null"))
    beyond = {name: value[name] - null[name] for name in ("class", "place")}
    gap = beyond["class"] - beyond["place"]
    return Finding(
        {"class": Measured(Estimate.mean(gap, PROMPT), null=0.0)},
        {f"explained by {name}": mean_of(value[name]) for name in ("class", "place", "token")},
    )


def _small_values(evidence: Evidence) -> Finding:
    smaller, ratio = (
        by_prompt(evidence, NORMS, "value_norms", name) for name in ("auroc", "ratio")
    )
    idle, taken = (
        by_prompt(evidence, NORMS, "contributions", name).value
        for name in ("no_op_share", "attention_share")
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        of_theirs = np.where(taken > 0, idle / taken, np.nan)
    return Finding(
        {
            "smaller": Measured(Estimate.mean(smaller.value, PROMPT, _SHARE), null=0.5),
            "ratio": Measured(Estimate.mean(ratio.value, PROMPT), null=1.0),
            "idle": Measured(Estimate.mean(of_theirs, PROMPT), null=0.0),
        },
        {"share of all attention that sinks take": mean_of(taken)},
    )


def _massive(evidence: Evidence) -> Finding:
    chance = by_prompt(evidence, MDM, "massive_activations", "sink_if_massive")
    if not np.isfinite(chance.value).any():
        most = mean_of(by_prompt(evidence, MDM, "massive_activations", "largest").value)
        raise EvidenceError(
            "a model with massive activations (above 100, and 1000 times the median): the largest "
            f"of this one is {most:.3g}"
        )
    gap = chance.value - chance.null
    return Finding(
        {"sink if massive": Measured(Estimate.mean(gap, PROMPT, _GAP), null=0.0)},
        {"a massive position is a sink": mean_of(chance.value), "any is": mean_of(chance.null)},
    )


def _mask_tax(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[MASKS]
    few, many = (int(n) for n in sorted(table["masks"].unique()))
    wide = table.pivot(index="unit", columns="masks").sort_index()
    right = {n: wide["right"][n].to_numpy(dtype=float) for n in (few, many)}
    answers(float(right[few].mean()), LEAST, ROLES["mdm"][0])
    taken = (wide["mass"][many] - wide["mass"][few]).to_numpy(dtype=float)
    beyond = {n: (wide["mass"][n] - wide["even"][n]).to_numpy(dtype=float) for n in (few, many)}
    lost = (wide["logprob"][many] - wide["logprob"][few]).to_numpy(dtype=float)
    moments = np.stack([taken, lost, taken * lost, taken**2, lost**2], axis=1)
    return Finding(
        {
            "cost": Measured(Estimate.pairs(right[many], right[few], ITEM), null=0.0),
            "taken": Measured(Estimate.mean(taken, ITEM, _GAP), null=0.0),
            "beyond": Measured(
                Estimate.mean(beyond[many], ITEM, _GAP), 0.0, mean_of(wide["even"][many])
            ),
            "explains": Measured(Correlation.jackknifed(moments, _correlation, ITEM), null=0.0),
        },
        {
            "right before few masks": float(right[few].mean()),
            "beyond indifferent attention before few masks": mean_of(beyond[few]),
        },
    )


def _correlation(means: np.ndarray) -> float:
    """Of means of x, y, xy, xx, yy."""
    x, y, xy, xx, yy = means
    size = np.sqrt(max(xx - x * x, 0.0) * max(yy - y * y, 0.0))
    return float((xy - x * y) / size) if size > 0 else float("nan")


CLAIMS = (
    Claim(
        "sinks/H10",
        "Sinks are newlines and masks far more often than chance.",
        f"{_PAPER}, Table 2",
        "LLaDA: newline .368, mask .366, full stop .050; Dream: mask .321, newline .090",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "newline",
                "share of sinks that are newlines, less their share of the keys of the same steps",
                GREATER,
                0.05,
                "a twentieth of all sinks, half of the least that the table has for newlines",
                null="sinks anywhere",
                control="the share of such keys",
            ),
            Criterion(
                "mask",
                "the same of masks",
                GREATER,
                0.05,
                "a twentieth of all sinks; the table gives no share of keys, and masks are many",
                null="sinks anywhere",
                control="the share of such keys",
            ),
        ),
        judge=_measure_enrichment,
        draw=_token_figure,
        defect="not seen; the paper's text names end tokens, which its table does not have, and "
        "leaves out masks, which it has; the share of such keys in the text is not given",
    ),
    Claim(
        "sinks/H11",
        "What a token is decides whether it is a sink, more than where it stands.",
        f"{_PAPER}, section on sink types",
        "qualitative, of LLaDA; the contrary of Dream",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "class",
                "share of the variance of sink or not that token class explains on other steps, "
                "less the share that the tenth of the canvas explains, each beyond permuted keys",
                GREATER,
                0.02,
                "two hundredths of the variance",
                null="keys permuted within steps",
            ),
        ),
        judge=_class_or_place,
        caveat="said of LLaDA, here of the model that is given; what is refuted of it may hold of "
        "Dream. No token was changed for another: it is no cause",
    ),
    Claim(
        "sinks/H18",
        "Sinks have small values: attending to them does nearly nothing.",
        "arXiv 2601.19657, Fig. 1, beside 2510.15731",
        "value norm 2.4 against 7.6 (LLaDA), 3.0 against 7.7 (Dream)",
        PROMPT,
        needs=(NORMS,),
        criteria=(
            Criterion(
                "smaller",
                "chance that a sink's value has a smaller norm than another key of the same head "
                "and step (AUROC)",
                GREATER,
                0.9,
                "in the figure the two clouds hardly overlap",
                null="no difference: one half",
            ),
            Criterion(
                "ratio",
                "norm of a sink's value over that of the other keys",
                LESS,
                0.5,
                "half; the paper's are 0.32 and 0.39",
                null="no difference: 1",
            ),
            Criterion(
                "idle",
                "share of the attention to sinks that moves nothing: what they take beyond what "
                "would have brought as much at the other keys (no_op_share), over what they take; "
                "below 0 they bring more than as much attention elsewhere",
                GREATER,
                0.5,
                "half; the paper's norms alone would make it 0.6 or 0.7",
                null="they bring as much as other keys do: 0",
            ),
        ),
        judge=_small_values,
    ),
    Claim(
        "sinks/H20",
        "Massive activations are where sinks are, as in autoregressive models.",
        f"{_PAPER}, open question",
        "unknown",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "sink if massive",
                "chance that a position with a massive activation (above 100, and 1000 times the "
                "median) is a sink of a head, less that of any position",
                GREATER,
                0.1,
                "one head in ten; nothing is reported of diffusion models",
                null="any position",
            ),
        ),
        judge=_massive,
        caveat="the three largest activations of each layer and step are known, no more",
    ),
    Claim(
        "sinks/H22",
        "Masks added after the answer draw attention and cost accuracy, and the one explains the "
        "other.",
        "arXiv 2511.21338, beside 2510.15731",
        "up to 27 points lost (LLaDA), 8 (Dream)",
        ITEM,
        needs=(MASKS,),
        criteria=(
            Criterion(
                "cost",
                "first token of the answer right in one pass, before 56 masks less before 8",
                LESS,
                -0.05,
                "five points; the least that is reported is 6",
                null="masks that cost nothing",
            ),
            Criterion(
                "taken",
                "attention of masked queries to masks, the same difference",
                GREATER,
                0.05,
                "a twentieth of all attention",
                null="added masks that draw nothing",
            ),
            Criterion(
                "beyond",
                "attention of masked queries to masks before 56 of them, less that of indifferent "
                "attention",
                GREATER,
                0.0,
                "more than their number alone would draw",
                null="indifferent attention",
                control="indifferent attention",
            ),
            Criterion(
                "explains",
                "correlation over questions of the attention that added masks took with the change "
                "of the answer's log-probability",
                LESS,
                -0.1,
                "a small correlation, by the usual words for sizes",
                null="unrelated: 0",
            ),
        ),
        judge=_mask_tax,
        caveat="a correlation over questions is no mediation that was brought about by an edit",
    ),
)
