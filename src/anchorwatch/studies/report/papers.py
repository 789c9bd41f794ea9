"""The three papers: what they are, and the numbers of theirs that are on the scale of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """One paper whose claims are run."""

    title: str
    authors: str
    arxiv: str
    says: str
    """In a sentence, for who has not read it."""

    @property
    def cited(self) -> str:
        """As a list of references has it; an address as text, nothing to follow."""
        return f"{self.authors}. {self.title}. arXiv {self.arxiv} (https://arxiv.org/abs/{self.arxiv})."


PAPERS: Mapping[str, Paper] = {
    "floating": Paper(
        "Revealing the Attention Floating Mechanism in Masked Diffusion Models",
        "Dai, Huang, Liu, Wang, Yan, Xiao, Gu, Yu and Sun, 2026",
        "2601.07894",
        "Attention of autoregressive models falls into one fixed place; that of masked diffusion "
        "models has anchors that move over steps and layers, which is said to help them use "
        "passages.",
    ),
    "sinks": Paper(
        "Attention Sinks in Diffusion Language Models",
        "Rulli and others, 2025",
        "2510.15731",
        "Masked diffusion models have attention sinks too, but these move while text is written, "
        "and hiding them hardly hurts.",
    ),
    "sink_token": Paper(
        "One Token Is Enough: Improving Diffusion Language Models with a Sink Token",
        "Zhang, Xie, Zhong, Liu and Cao, 2026",
        "2601.19657",
        "One extra token that all see and that sees only itself gives attention a place to rest, "
        "and makes masked diffusion models better.",
    ),
}
"""By study."""


def _log2(ratio: float) -> float:
    return math.log2(ratio)


REPORTED: Mapping[tuple[str, str], Mapping[str, float]] = {
    ("floating/H13", "deep"): {"LLaDA": 0.62, "Dream": 0.66},
    ("floating/H18", "attended"): {
        "one example": (_log2(1.47) + _log2(1.50) + _log2(1.42)) / 3,
    },
    ("floating/H18", "first and last"): {"one example": _log2(1.47) - _log2(1.42)},
    ("floating/H18", "middle and ends"): {
        "one example": _log2(1.50) - (_log2(1.47) + _log2(1.42)) / 2,
    },
    ("floating/H23", "doubles"): {"all models": 0.1946 - 2 * 0.0851},
    ("sinks/H2", "sum"): {"at least": 0.96},
    ("sinks/H13", "mdm"): {"LLaDA": 0.75 - 0.76, "Dream": 0.79 - 0.82},
    ("sinks/H13", "arm"): {"Llama": 0.02 - 0.85},
    ("sinks/H18", "ratio"): {"LLaDA": 2.4 / 7.6, "Dream": 3.0 / 7.7},
    ("sink_token/H1", "ratio"): {"LLaDA": 0.31, "Dream": 0.40},
}
"""By claim and criterion: only where the paper's statistic is ours, so that both fit one axis."""
