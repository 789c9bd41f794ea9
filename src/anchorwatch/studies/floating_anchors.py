"""Claims of 2601.07894 about where anchors are: fixed, moving, how many, how much they absorb."""

from __future__ import annotations

from functools import partial

import numpy as np

from anchorwatch import metrics
from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.estimates import PROMPT, Estimate
from anchorwatch.studies.evidence import by_prompt
from anchorwatch.studies.needs import Runs

_PAPER = "arXiv 2601.07894"
_SHARE = (0.0, 1.0)
MDM, ARM = Runs("mdm"), Runs("arm")

_DETECTOR = (
    "the detector adds 3 to a column mean, which is at most 1: it can never fire and falls back to "
    "the greatest key, so that every figure of absorption is of one key"
)


def _greatest_is_first(evidence: Evidence, need: Runs) -> np.ndarray:
    """[prompt] share of heads and steps whose greatest key is position 0."""
    held = evidence[need]
    table = evidence.once(
        (need, "sink_positions"), partial(metrics.sink_positions, list(held.traces))
    )
    there = table[table["position"] >= 0]
    first = (there["position"] == 0).groupby(there["trace"]).mean()
    found = np.full(held.count, np.nan)
    for place, trace in zip(held.places, held.traces, strict=True):
        found[place] = first.get(trace.digest()[:12], np.nan)
    return found


def _fixed(evidence: Evidence) -> Finding:
    arm, mdm = (_greatest_is_first(evidence, need) for need in (ARM, MDM))
    first = by_prompt(evidence, ARM, "absorption", "first", options={"sets": ("first",)})
    beyond = Estimate.mean(first.value - first.null, PROMPT, (-1.0, 1.0))
    return Finding(
        {
            "arm": Measured(Estimate.mean(arm, PROMPT, _SHARE), null=1.0),
            "beyond the mask": Measured(beyond, null=0.0),
            "mdm": Measured(Estimate.mean(mdm, PROMPT, _SHARE)),
        },
        {
            "share on position 0": float(np.nanmean(first.value)),
            "of even attention": float(np.nanmean(first.null)),
        },
    )


CLAIMS = (
    Claim(
        "floating/H1",
        "An autoregressive model's attention sinks into one fixed place, the first token; a masked "
        "diffusion model's does not.",
        f"{_PAPER}, abstract and introduction",
        "ARM fixed, MDM not; no number",
        PROMPT,
        needs=(ARM, MDM),
        criteria=(
            Criterion(
                "arm",
                "share of heads and steps of the ARM whose greatest key is position 0",
                GREATER,
                0.9,
                "nine in ten is what 'fixed' is taken to mean",
                null="even attention under a causal mask: position 0 always receives most",
            ),
            Criterion(
                "beyond the mask",
                "attention on position 0 of the ARM, less what even causal attention gives it",
                GREATER,
                0.05,
                "a twentieth of all attention: less would be the mask's doing",
                null="even attention under the same visibility",
            ),
            Criterion(
                "mdm",
                "share of heads and steps of the MDM whose greatest key is position 0",
                LESS,
                0.9,
                "the same limit from the other side",
            ),
        ),
        judge=_fixed,
        defect="the published comparison is on finished text, without a masked position",
        caveat="heads and steps are averaged within a prompt; prompts are the unit",
    ),
    Claim(
        "floating/H2",
        "Anchors of a masked diffusion model move from step to step, more than an autoregressive "
        "model's and more than shuffled layers would.",
        f"{_PAPER}, README, temporal figures",
        "qualitative; in the released deep-layer example the greatest key moves at two steps of 32",
        PROMPT,
        defect="no released code makes the input of the temporal figure",
    ),
    Claim(
        "floating/H3",
        "Anchors drift to the right over denoising, at each layer.",
        f"{_PAPER}, README, temporal figures",
        "right shift at each layer",
        PROMPT,
        defect="no statistic of drift is computed anywhere",
    ),
    Claim(
        "floating/H4",
        "Anchors appear at positions that were committed a step before.",
        f"{_PAPER}, temporal figure of layer 0",
        "three positions of one example do so",
        PROMPT,
    ),
    Claim(
        "floating/H5",
        "At the first layer anchors are decided by which token stands there, deeper by position.",
        f"{_PAPER}, temporal figure of layer 0",
        "equal tokens have equal values in one example",
        PROMPT,
    ),
    Claim(
        "floating/H6",
        "Attention is spread over many anchors in shallow layers and sparse in deep ones.",
        f"{_PAPER}, README",
        "qualitative",
        PROMPT,
        defect="mean + 3 sd cannot flag more than a tenth of the positions, so that spread anchors "
        "are not seen",
    ),
    Claim(
        "floating/H7",
        "A masked diffusion model's anchors absorb less attention than an autoregressive model's "
        "sink.",
        f"{_PAPER}, absorption figure",
        "74.5 / 63.0 % (Llama, Qwen) against 34.1 / 18.4 % (LLaDA, Dream)",
        PROMPT,
        defect=_DETECTOR + "; models are compared with other prompts, lengths and sets of keys",
    ),
    Claim(
        "floating/H8",
        "The detector's fault matters: absorption by detected anchors is not that of one key.",
        f"{_PAPER}, absorption script",
        "not reported; a simulation gives 84 against 28.5 %",
        PROMPT,
        defect=_DETECTOR,
    ),
    Claim(
        "floating/H9",
        "Absorption grows with depth in masked diffusion models.",
        f"{_PAPER}, absorption figure",
        "thirds of the layers: LLaDA 12 / 19 / 25 %, Dream 23 / 37 / 44 %",
        PROMPT,
        defect=_DETECTOR,
    ),
    Claim(
        "floating/H10",
        "A diffusion model made from an autoregressive one inherits the layer at which its sink "
        "begins.",
        f"{_PAPER}, absorption figure",
        "Dream and Qwen2.5 both at layer 4",
        PROMPT,
        defect=_DETECTOR,
    ),
    Claim(
        "floating/H26",
        "Where anchors are depends on the task, beyond the places of the prompt's template.",
        f"{_PAPER}, README",
        "claimed without data",
        PROMPT,
    ),
    Claim(
        "floating/H27",
        "Masked and written positions use different anchors.",
        "arXiv 2510.15731, Fig. 6a, beside 2601.07894",
        "qualitative",
        PROMPT,
    ),
)
