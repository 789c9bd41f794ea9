"""Claims of 2510.15731 about sinks as they are: existence, number, movement, and by which rule."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from anchorwatch import metrics
from anchorwatch.edits.spec import freeze_canvas
from anchorwatch.metrics.sink_rules import rulli
from anchorwatch.metrics.sink_strength import RULES
from anchorwatch.studies.claim import GREATER, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.estimates import PROMPT, Estimate
from anchorwatch.studies.evidence import by_prompt, by_trace, mean_of
from anchorwatch.studies.needs import Rows, Runs
from anchorwatch.studies.predicting import sink_moves

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2510.15731"
_SHARE, _GAP = (0.0, 1.0), (-1.0, 1.0)
MDM, ARM = Runs("mdm"), Runs("arm")
FROZEN = Runs("mdm", edits=(freeze_canvas(),))
MAPS = Rows("mdm", "head_maps", passes=32)
RULE, OTHERS, TOP = RULES[0], RULES[1:-1], RULES[-1]
"""The paper's own rule, those that may find no sink either, and the greatest key."""
_SCALE = (
    "not seen; the paper prints a criterion of column means, which never exceed 1: eps = 3 cannot "
    "fire"
)


def _share_without_sinks(evidence: Evidence, scale: str) -> np.ndarray:
    """[prompt] share of tokens that are no sink: heads and steps have as many keys each."""
    count = by_prompt(evidence, MDM, "sinks", "count", options={"rule": rulli(3.0, scale)})
    held = evidence[MDM]
    keys = np.full(held.count, np.nan)
    for place, trace in zip(held.places, held.traces, strict=True):
        keys[place] = trace.canvas.shape[1]
    return 1 - count.value / keys


def _measure_filtered(evidence: Evidence) -> Finding:
    found = {scale: _share_without_sinks(evidence, scale) for scale in ("sum", "percent")}
    effect = Estimate.mean(found["sum"], PROMPT, _SHARE)
    also = {"on the percent scale": mean_of(found["percent"])}
    return Finding({"sum": Measured(effect, null=1.0)}, also)


def _moves(evidence: Evidence) -> Finding:
    mdm, frozen = (by_prompt(evidence, need, "jumps", "jump_rate") for need in (MDM, FROZEN))
    any_key, arm_key = (
        mean_of(by_prompt(evidence, need, "jumps", "jump_rate_any").value) for need in (MDM, ARM)
    )
    rows = {need.role: by_trace(evidence[need], sink_moves) for need in (MDM, ARM)}
    beside = Estimate.mean(rows["mdm"] - rows["arm"], PROMPT, _GAP)
    return Finding(
        {
            "beside the ARM": Measured(beside, null=0.0, control=mean_of(rows["arm"])),
            "moves": Measured(
                Estimate.mean(mdm.value, PROMPT, _SHARE), mean_of(mdm.null), mean_of(frozen.value)
            ),
        },
        {
            "rows that predict, MDM": mean_of(rows["mdm"]),
            "greatest key of all rows, sink or not, MDM": any_key,
            "the same of the ARM, whose mask all but fixes it": arm_key,
        },
    )


def _path_figure(evidence: Evidence) -> Figure | None:
    """One prompt of each model: where the greatest sink of every head is."""
    from anchorwatch.figures.movement import sink_positions

    first = [evidence[need].traces[0] for need in (MDM, ARM) if evidence[need].traces]
    table = evidence.once(("first paths", MDM, ARM), partial(metrics.sink_positions, first))
    return sink_positions(table)


def _exist(evidence: Evidence) -> Finding:
    units = evidence[MAPS].groupby("unit")
    above, greatest, shuffled = (units[name].mean() for name in ("above", "greatest", "shuffled"))
    beyond = Estimate.mean(greatest - shuffled, PROMPT)
    return Finding(
        {
            "above": Measured(Estimate.mean(above, PROMPT, _SHARE), null=1 / 20),
            "greatest": Measured(beyond, null=0.0, control=float(shuffled.mean())),
        },
        {"column sum of the greatest key": float(greatest.mean())},
    )


def _histogram(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sink_strength import score_histogram

    held = list(evidence[MDM].traces)
    return score_histogram(
        evidence.once((MDM, "score_histogram"), partial(metrics.score_histogram, held))
    )


def _agree(evidence: Evidence) -> Finding:
    found: dict[str, Measured] = {}
    also: dict[str, float | str] = {}
    for other in (*OTHERS, TOP):
        options = {"rules": (RULE, other)} | ({"given": RULE} if other is TOP else {})
        kappa = by_prompt(evidence, MDM, "agreement", "kappa", over="rules", options=options)
        found[type(other).__name__] = Measured(
            Estimate.mean(kappa.value[:, 0], PROMPT, _GAP), null=0.0
        )
    for rule in (RULE, *OTHERS):
        share = by_prompt(evidence, MDM, "sinks", "incidence", options={"rule": rule}).value
        also[f"heads and steps with a sink, {type(rule).__name__}"] = mean_of(share)
    return Finding(found, also)


CLAIMS = (
    Claim(
        "sinks/H1",
        "Heads have keys that take more attention than chance would give any.",
        f"{_PAPER}, Fig. 3 and 9",
        "few tokens very high, most near 0",
        PROMPT,
        needs=(MAPS, MDM),
        criteria=(
            Criterion(
                "above",
                "share of maps (step, layer, head) whose greatest key receives more than the "
                "greatest of each of 19 maps with shuffled rows",
                GREATER,
                0.5,
                "most heads and steps must have one",
                null="every row's attention dealt out to its keys anew: one in twenty",
            ),
            Criterion(
                "greatest",
                "column sum of the greatest key, less that in maps with shuffled rows, mean over "
                "heads and steps; 1 is even attention",
                GREATER,
                0.0,
                "more than chance is what is said; in how many heads is the other criterion's",
                null="no more than chance",
                control="every row's attention dealt out to its keys anew",
            ),
        ),
        judge=_exist,
        draw=_histogram,
        defect=_SCALE,
    ),
    Claim(
        "sinks/H2",
        "The criterion (eps = 3) calls few tokens sinks: at least 96 % are none, in a masked "
        "diffusion model.",
        f"{_PAPER}, Fig. 10",
        "at least 96 % at eps = 3",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "sum",
                "share of (step, layer, head, token) that is no sink, eps = 3 on column sums",
                GREATER,
                0.96,
                "the number that is claimed",
                null="even attention has no sink: 1",
            ),
        ),
        judge=_measure_filtered,
        defect=_SCALE,
        caveat="even attention passes too: it says that sinks are few, not that there are any; "
        "said of three models, here of the one that is given",
    ),
    Claim(
        "sinks/H3",
        "The greatest sink of a masked diffusion model moves over steps, more than an "
        "autoregressive model's.",
        f"{_PAPER}, Fig. 1, 4 and 7",
        "LLaDA and Dream move; MMaDA and Llama do not",
        PROMPT,
        needs=(MDM, ARM, FROZEN),
        criteria=(
            Criterion(
                "beside the ARM",
                "of rows that predict: share of neighbouring pairs of commits whose common sink "
                "(a key with more than 0.3 of both rows) is another, MDM less ARM on the same "
                "prompts",
                GREATER,
                0.05,
                "one in twenty: less could not be seen in the paper's figures",
                null="no difference between the models",
                control="the ARM",
            ),
            Criterion(
                "moves",
                "of all rows: share of neighbouring steps with a sink at which a head's greatest "
                "sink is another, MDM",
                GREATER,
                0.05,
                "one step in twenty",
                null="steps shuffled",
                control="a frozen canvas, 0 by determinism: a check of the measurement",
            ),
        ),
        judge=_moves,
        draw=_path_figure,
        caveat="over all rows the ARM's greatest key is nearly fixed by its mask, so that models "
        "are compared in the rows that predict a token, two at a time; a sink that never stays for "
        "two commits is not seen there",
    ),
    Claim(
        "sinks/H23",
        "Rules of what a sink is agree.",
        f"{_PAPER}, and its neighbours' definitions",
        "not studied",
        PROMPT,
        needs=(MDM,),
        criteria=tuple(
            Criterion(
                name,
                f"Cohen's kappa of {words} with column sums above eps = 3{where}",
                GREATER,
                0.6,
                "substantial agreement, by the usual words for kappa",
                null="agreement by chance: 0",
            )
            for name, words, where in (
                ("zscore", "three standard deviations above the mean", ""),
                ("gu", "a share above 0.3 of the queries that see it", ""),
                ("topk", "the greatest key", ", in the heads and steps that have such a sink"),
            )
        ),
        judge=_agree,
        caveat="the greatest key exists in every head, a sink does not, so that the two can only "
        "agree where there is one; a rule that never fires has no kappa. Whether conclusions turn "
        "with the rule is not tested",
    ),
    Claim(
        "sinks/H24",
        "Instruction tuning, or a start from an autoregressive model, changes sinks.",
        f"{_PAPER}, limitations",
        "not studied",
        PROMPT,
        caveat="Dream beside LLaDA differs in data and architecture as well as in its start",
        lacks="a second masked diffusion model beside --model: the same one before it was tuned on "
        "instructions, or, of an arm that goes on from a next-token network, the same arm trained "
        "from scratch with three seeds in the table of variants (all arms there have a stem)",
    ),
)
