"""Claims of 2510.15731 about sinks as they are: existence, movement, depth, identity, geometry."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from anchorwatch import metrics
from anchorwatch.edits import freeze_canvas
from anchorwatch.rules import rulli
from anchorwatch.studies.claim import GREATER, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.estimates import ITEM, PROMPT, Estimate
from anchorwatch.studies.evidence import by_prompt
from anchorwatch.studies.needs import Runs

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2510.15731"
_SHARE, _GAP = (0.0, 1.0), (-1.0, 1.0)
MDM, ARM = Runs("mdm"), Runs("arm")
FROZEN = Runs("mdm", edits=(freeze_canvas(),))
_SCALE = "the criterion as printed is of column means, which never exceed 1: eps = 3 cannot fire"


def _kept(evidence: Evidence, scale: str) -> np.ndarray:
    """[prompt] share of tokens that are no sink: heads and steps have as many keys each."""
    count = by_prompt(evidence, MDM, "sinks", "count", options={"rule": rulli(3.0, scale)})
    held = evidence[MDM]
    keys = np.full(held.count, np.nan)
    for place, trace in zip(held.places, held.traces, strict=True):
        keys[place] = trace.canvas.shape[1]
    return 1 - count.value / keys


def _filtered(evidence: Evidence) -> Finding:
    found = {scale: _kept(evidence, scale) for scale in ("sum", "percent")}
    effect = Estimate.mean(found["sum"], PROMPT, _SHARE)
    also = {"on the percent scale": float(np.nanmean(found["percent"]))}
    return Finding({"sum": Measured(effect, null=1.0)}, also)


def _moves(evidence: Evidence) -> Finding:
    mdm, arm, frozen = (
        by_prompt(evidence, need, "jumps", "jump_rate_any") for need in (MDM, ARM, FROZEN)
    )
    beside = Estimate.mean(mdm.value - arm.value, PROMPT, _GAP)
    still = Estimate.mean(mdm.value - frozen.value, PROMPT, _GAP)
    shuffled = float(np.nanmean(mdm.null))
    return Finding(
        {
            "beside the ARM": Measured(beside, null=0.0, control=float(np.nanmean(arm.value))),
            "beside a frozen canvas": Measured(
                still, null=0.0, control=float(np.nanmean(frozen.value))
            ),
        },
        {"MDM": float(np.nanmean(mdm.value)), "MDM, steps shuffled": shuffled},
    )


def _path_figure(evidence: Evidence) -> Figure | None:
    """One prompt of each model: where the greatest sink of every head is."""
    from anchorwatch.figures.movement import sink_positions

    first = [evidence[need].traces[0] for need in (MDM, ARM) if evidence[need].traces]
    table = evidence.once(("first paths", MDM, ARM), partial(metrics.sink_positions, first))
    return sink_positions(table)


CLAIMS = (
    Claim(
        "sinks/H1",
        "Heads have keys that take more attention than chance would give any.",
        f"{_PAPER}, Fig. 3 and 9",
        "few tokens very high, most near 0",
        PROMPT,
        defect=_SCALE,
    ),
    Claim(
        "sinks/H2",
        "The criterion (eps = 3) calls few tokens sinks: at least 96 % are none, in each model.",
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
        judge=_filtered,
        defect=_SCALE,
        caveat="even attention passes too: it says that sinks are few, not that there are any",
    ),
    Claim(
        "sinks/H3",
        "The greatest sink of a masked diffusion model moves over steps, more than an "
        "autoregressive model's, and because the canvas changes.",
        f"{_PAPER}, Fig. 1, 4 and 7",
        "LLaDA and Dream move; MMaDA and Llama do not",
        PROMPT,
        needs=(MDM, ARM, FROZEN),
        criteria=(
            Criterion(
                "beside the ARM",
                "share of neighbouring steps at which a head's greatest key is another, MDM less "
                "ARM on the same prompts",
                GREATER,
                0.05,
                "one step in twenty: less could not be seen in the paper's figures",
                null="no difference between the models",
                control="the ARM",
            ),
            Criterion(
                "beside a frozen canvas",
                "the same of the MDM, less that of runs in which nothing is committed",
                GREATER,
                0.05,
                "one step in twenty",
                null="a canvas that does not change moves nothing",
                control="the same prompts with a frozen canvas",
            ),
        ),
        judge=_moves,
        draw=_path_figure,
        caveat="the greatest key counts whether the rule calls it a sink or not",
    ),
    Claim(
        "sinks/H4",
        "Attention maps of neighbouring steps are alike, and yet the greatest sink jumps.",
        f"{_PAPER}, Fig. 4, against SparseD",
        "contradictory between papers",
        PROMPT,
    ),
    Claim(
        "sinks/H5",
        "A sink stays for some steps and then vanishes; some live one step only.",
        f"{_PAPER}, Fig. 6b and text",
        "qualitative",
        PROMPT,
    ),
    Claim(
        "sinks/H6",
        "LLaDA's sink moves to the right with the blocks, and jumps where a block begins.",
        f"{_PAPER}, Fig. 7",
        "qualitative",
        PROMPT,
    ),
    Claim(
        "sinks/H7",
        "Dream's sink begins at the rightmost masked position and moves to the left, most in early "
        "layers.",
        f"{_PAPER}, Fig. 7 and 8b",
        "qualitative",
        PROMPT,
    ),
    Claim(
        "sinks/H8",
        "MMaDA's sink is static, and most of its heads have none.",
        f"{_PAPER}, Fig. 7 and 8a",
        "qualitative",
        PROMPT,
    ),
    Claim(
        "sinks/H9",
        "Deeper layers have fewer and stronger sinks, one or two in the last ones.",
        f"{_PAPER}, Fig. 5",
        "one or two in deep layers of LLaDA",
        PROMPT,
    ),
    Claim(
        "sinks/H10",
        "Sinks are newlines, masks and punctuation far more often than chance.",
        f"{_PAPER}, Table 2",
        "LLaDA: newline .368, mask .366, full stop .050; Dream: mask .321, newline .090",
        PROMPT,
        defect="the text names end tokens, which the table does not have, and leaves out masks, "
        "which it has",
    ),
    Claim(
        "sinks/H11",
        "LLaDA's sinks are decided by what a token is, Dream's by where it stands.",
        f"{_PAPER}, section on sink types",
        "qualitative",
        PROMPT,
    ),
    Claim(
        "sinks/H12",
        "In deep layers masked and written queries have different sinks.",
        f"{_PAPER}, Fig. 6a",
        "qualitative",
        PROMPT,
    ),
    Claim(
        "sinks/H18",
        "Sinks have small values: attending to them does nearly nothing.",
        "2601.19657, Fig. 1, beside 2510.15731",
        "value norm 2.4 against 7.6 (LLaDA), 3.0 against 7.7 (Dream)",
        PROMPT,
    ),
    Claim(
        "sinks/H19",
        "Deep sinks are made by the angle to queries, not by the key's norm.",
        "2601.07894, QK figure, beside 2510.15731",
        "angle-driven in deep layers",
        PROMPT,
        defect="vectors are averaged over heads before the cosine",
    ),
    Claim(
        "sinks/H20",
        "Massive activations are where sinks are, as in autoregressive models.",
        f"{_PAPER}, open question",
        "unknown",
        PROMPT,
    ),
    Claim(
        "sinks/H21",
        "The sinks of a middle layer are those of the later ones.",
        "Focus-dLLM's premise, beside 2510.15731",
        "assumed",
        PROMPT,
    ),
    Claim(
        "sinks/H22",
        "Masks added after the answer draw attention and cost accuracy, and the one explains the "
        "other.",
        "2511.21338, beside 2510.15731",
        "masks are distracting",
        ITEM,
    ),
    Claim(
        "sinks/H23",
        "Rules of what a sink is agree, and no conclusion turns with the rule.",
        f"{_PAPER}, and its neighbours' definitions",
        "not studied",
        PROMPT,
    ),
    Claim(
        "sinks/H24",
        "Instruction tuning, or a start from an autoregressive model, changes sinks.",
        f"{_PAPER}, limitations",
        "not studied",
        PROMPT,
    ),
)
