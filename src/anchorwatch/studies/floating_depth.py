"""Claims of 2601.07894 about depth: what makes anchors, retrieval heads, structure, flow."""

from __future__ import annotations

from anchorwatch.studies.claim import Claim
from anchorwatch.studies.estimates import ITEM, PROMPT

_PAPER = "arXiv 2601.07894"

CLAIMS = (
    Claim(
        "floating/H11",
        "Deep anchors are made by the angle between query and key, shallow ones also by norms.",
        f"{_PAPER}, QK figure",
        "angle 63 %, norm 37 % at layer 11; 128 and -28 % at layer 28",
        PROMPT,
        defect="vectors are averaged over heads before the cosine; grouped heads are mismatched",
    ),
    Claim(
        "floating/H12",
        "Anchor keys have a small norm in deep layers.",
        f"{_PAPER}, QK figure",
        "norm product 4.73 against 7.06 at layer 28",
        PROMPT,
    ),
    Claim(
        "floating/H13",
        "Retrieval heads of masked diffusion models lie deep, deeper than those of autoregressive "
        "ones.",
        f"{_PAPER}, retrieval-head maps",
        "weighted relative depth .62 (LLaDA), .66 (Dream); ARMs .46 to .63",
        PROMPT,
        defect="no script for retrieval heads was released",
    ),
    Claim(
        "floating/H14",
        "Retrieval heads are few.",
        f"{_PAPER}, retrieval-head maps",
        "ARMs 2 to 6 %; the MDM map has 20 % at .5 or more, on an unknown scale",
        PROMPT,
        defect="no script for retrieval heads was released",
    ),
    Claim(
        "floating/H15",
        "Retrieval heads matter: taking them out costs answers, more than as many others of the "
        "same layers.",
        f"{_PAPER}; Wu et al. for autoregressive models",
        "large drop in ARMs; not reported for MDMs",
        ITEM,
    ),
    Claim(
        "floating/H16",
        "Shallow anchors are structural tokens, deep attention is on content.",
        f"{_PAPER}, abstract",
        "qualitative",
        PROMPT,
        defect="no figure shows a token",
    ),
    Claim(
        "floating/H17",
        "Anchors are needed: hiding them in shallow layers costs more than hiding as many other "
        "keys of the same kind, and more than in deep layers.",
        f"{_PAPER}, abstract; 2510.15731 says hiding the greatest costs under a point",
        "not reported",
        PROMPT,
    ),
    Claim(
        "floating/H18",
        "The gold passage is attended to wherever it stands.",
        f"{_PAPER}, flow figures",
        "gold over other passages 1.47 / 1.50 / 1.42 at first, middle and last place, one example",
        PROMPT,
        defect="flow is not divided by length; one example; all rows of the map are equal",
    ),
    Claim(
        "floating/H19",
        "The contrast of rollouts between models is the mask's: even causal attention flows into "
        "the first token as well.",
        f"{_PAPER}, flow figures",
        "Llama 1.00 into the first token; a simulation without any sink .72 to .89",
        PROMPT,
        defect="in a causal model the first row can only look at itself and absorbs everything",
    ),
)
