"""Claims of 2601.19657 about what happens inside: norms, movement, mixing, cost, knock-outs."""

from __future__ import annotations

from anchorwatch.studies.claim import Claim
from anchorwatch.studies.estimates import ITEM, PROMPT, SEED

_PAPER = "arXiv 2601.19657"

CLAIMS = (
    Claim(
        "sink_token/H1",
        "Sinks of an ordinary masked diffusion model have values of small norm.",
        f"{_PAPER}, Fig. 1",
        "norm ratio .31 (LLaDA), .40 (Dream); AUC 1.000",
        PROMPT,
        defect="the caption says 10K tokens of each kind, the figure has 3,840; one unnamed layer",
    ),
    Claim(
        "sink_token/H2",
        "Those sinks move over denoising.",
        f"{_PAPER}, Fig. 1",
        "shown for steps 0 and 64 only",
        PROMPT,
    ),
    Claim(
        "sink_token/H3",
        "A sink token takes their place: content sinks become fewer, masks get an even share, and "
        "the greatest key stays.",
        f"{_PAPER}, section 4.4",
        "claimed",
        SEED,
    ),
    Claim(
        "sink_token/H4",
        "The learned sink token is drained: its values have small norms.",
        f"{_PAPER}, section 4.4",
        "negligible, numbers not known to us",
        SEED,
    ),
    Claim(
        "sink_token/H10",
        "That the sink token sees only itself matters: a register that sees all does less.",
        f"{_PAPER}, Eq. 6",
        "not in the paper",
        SEED,
    ),
    Claim(
        "sink_token/H11",
        "Key and value of the sink token are constants of each layer.",
        f"{_PAPER}, Eq. 5 and 6, as an identity",
        "exact",
        PROMPT,
        defect="a dense mask is built at every pass and flash attention is off",
    ),
    Claim(
        "sink_token/H12",
        "The sink token prevents over-mixing of states.",
        f"{_PAPER}, introduction",
        "claimed, not measured",
        SEED,
    ),
    Claim(
        "sink_token/H13",
        "Models with a sink token are more robust to seed, order and number of steps.",
        f"{_PAPER}, introduction",
        "claimed, not measured",
        ITEM,
        defect="the greedy sampler's answers depend on the other rows of the batch",
    ),
    Claim(
        "sink_token/H14",
        "A sink token costs nearly nothing.",
        f"{_PAPER}, method",
        "claimed, not measured; a dense mask costs 1.4 to 1.7 times on a CPU",
        PROMPT,
        defect="only the arm with the sink token loses flash attention",
    ),
    Claim(
        "sink_token/H18",
        "Sinks matter causally: hiding the sink token costs more than hiding the greatest content "
        "key, and that more than a random one.",
        f"{_PAPER}; 2510.15731 finds small effects",
        "small for diffusion models without a sink token",
        PROMPT,
    ),
    Claim(
        "sink_token/H19",
        "Sink token and gate learn the same: where one is looked at, the other closes.",
        f"{_PAPER}, as an identity of the two forms",
        "not in the paper",
        PROMPT,
    ),
    Claim(
        "sink_token/H20",
        "The sink token affects in-context learning.",
        f"{_PAPER}, README",
        "announced, numbers not known to us",
        ITEM,
    ),
)
