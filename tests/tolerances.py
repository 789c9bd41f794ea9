"""How far two computations of one number may differ, from what is computed. A test never writes its own.

A sum of n terms, each addition rounded to nearest, is off by at most n units of its largest partial
sum, and by about sqrt(n) of them where roundings are independent (Higham, Accuracy and Stability of
Numerical Algorithms, 4.2). Kernels differ in the order of their sums, so this is what two of them may
be apart. Tests that know their sizes call the functions; the names below are those functions at the
sizes of the networks that many tests share. tests/parity/test_tolerances.py checks these sizes, and
that every tolerance is ten times under what planted mistakes do.
"""

import math

UNIT = {"float32": 2.0**-24, "float64": 2.0**-53, "bfloat16": 2.0**-8}
"""Unit roundoff: the relative error of one rounding to nearest with 24, 53 and 8 binary digits."""

SAFETY = 2
"""Over the sqrt(n) model: two computations are compared, and each may be off."""

TINY = {"layers": 3, "width": 64}
"""The embedded networks tiny/* and the golden records."""

SMALL = {"layers": 2, "width": 32}
"""The stock networks of tests/checkpoints.py."""

TINY_HEADS = {"logit": 65.0, "size": 16}
"""Heads of tiny/*: the largest |query| |key| scale, which bounds their logits, and the head size."""

GOLDEN_HEADS = {"logit": 25.0, "size": 16}
SMALL_HEADS = {"logit": 8.0, "size": 8}

TINY_LOGIT = 12.0
"""The largest output logit of tiny/*."""

KEYS = 100
"""Positions of the longest canvas whose maps are compared."""


def of_sums(
    length: float, *, times: float = 1, scale: float = 1.0, dtype: str = "float32"
) -> float:
    """`times` sums in a row of `length` terms, partial sums up to `scale`."""
    return SAFETY * times * math.sqrt(length) * UNIT[dtype] * scale


def of_shares(*, logit: float, size: int) -> float:
    """An attention probability, relative to itself: exp(q k scale - log-sum-exp).

    What the exponent is off by is what the share is off by. Its product is a sum of `size` terms, no
    partial sum above |q| |k| scale = `logit`, which few pairs of a call come near: the sqrt(n) model
    without SAFETY. Two numbers up to `logit` are then rounded and subtracted. The 4 is for the
    exponential and its like, which do not grow with the logit.
    """
    product = of_sums(size, scale=logit) / SAFETY
    return product + of_sums(1, scale=logit) + of_sums(1, times=4)


def of_call(call) -> float:
    """A share of one attention call, relative to itself: by its longest query and key, and what a
    penalty on logits takes off; then a sum over keys or queries."""
    logit = float(call.query.norm(dim=-1).max() * call.key.norm(dim=-1).max()) * call.scale
    if call.bias is not None:
        logit += float(call.bias.abs().nan_to_num(posinf=0.0).max())
    return of_shares(logit=logit, size=call.query.shape[-1]) + SUMMED


def of_entropy(share: float, keys: int) -> float:
    """Nats of a row: shares off by a relative `share` move -sum p log p by share (H + 1), and their
    logarithms by share once more; H is at most log(keys)."""
    return share * (math.log(keys) + 2)


def of_maps(*, layers: int, logit: float, size: int) -> float:
    """A share of a whole network. Queries and keys that are off by sqrt(width) units move a logit by
    sqrt(width / size) of them, no more than its own sum does: each layer adds as much again, and what
    is independent adds as the root of its number."""
    return math.sqrt(layers) * of_shares(logit=logit, size=size)


def of_logits(*, layers: int, width: int, largest: float = 1.0, dtype: str = "float32") -> float:
    """Logits of a whole network whose largest is `largest`.

    A layer is six products in a row (projections, scores, mixing, output, up, down), each off by
    sqrt(width) units of its largest value. Norms keep the stream's scale and layers add to it, so
    their errors add up.
    """
    return of_sums(width, times=6 * layers, scale=largest, dtype=dtype)


def of_trials(trials: float, share: float) -> float:
    """A share of seeded trials against its expectation: BINOMIAL_ERRORS standard errors."""
    return BINOMIAL_ERRORS * math.sqrt(share * (1 - share) / trials)


def of_draws(draws: float, spread: float = 1.0) -> float:
    """A mean of seeded draws with this standard deviation: BINOMIAL_ERRORS standard errors."""
    return BINOMIAL_ERRORS * spread / math.sqrt(draws)


# Attention.

SUMMED = of_sums(KEYS)
"""A sum or mean of float32 shares, against float64 sums of the same shares."""

SHARE = of_shares(**TINY_HEADS)
"""One attention probability of tiny/*, or a sum of them below one, against float64 (or 1)."""

ENTROPY = of_entropy(SHARE, KEYS)
"""Entropy of a row of tiny/*, in nats, against float64."""

ROLLED = of_sums(KEYS, times=TINY["layers"])
"""Rollouts over the layers of tiny/*: one sum over keys after another."""

UNDERFLOW = 2.0**-126
"""Shares below float32's smallest normal number may be anything down to 0."""

GOLDEN_ATTENTION = of_maps(layers=TINY["layers"], **GOLDEN_HEADS)
"""Attention probabilities against the golden records, made by another machine."""

EAGER_ATTENTION = of_maps(layers=SMALL["layers"], **SMALL_HEADS)
"""Our maps of the stock networks against transformers' eager attention."""

GEOMETRY = of_sums(KEYS, times=2)
"""Mean cosine, logit and norm product over the queries, relative to the largest, against float64:
a product of 16 terms for each pair, then a mean over up to KEYS of them."""

NORM = of_sums(TINY["width"])
"""A norm over one row, relative: a sum of squares, none negative, and a root that halves its error."""

CARRIED = of_sums(TINY["width"], times=2, scale=math.sqrt(TINY["width"]))
"""A norm of values taken through the output projection, relative: by the Gram matrix of its rows a
vector that shrinks loses what the others cancel, up to sqrt(width) of the product's scale."""

SPECTRUM = of_sums(TINY["width"] * KEYS, times=TINY["width"])
"""An effective rank, relative: singular values of [KEYS, width] states, each off by the norm of the
matrix's rounding, and as many of them as the width in the entropy."""

# Whole networks.

IDENTITY = of_logits(**TINY)
"""Logits of a whole float32 pass by two forms of one identity, relative to the largest."""

IDENTITY_64 = of_logits(**TINY, dtype="float64", largest=1_000.0)
"""The same in float64, gradients too: a backward pass sums over positions and vocabulary what
cancels, up to a thousand times the result."""

GOLDEN_LOGITS = of_logits(**TINY, largest=8.0)
"""Logits against the golden records, which reach 7."""

RECORDS = 1e-4
"""Logits of the records of LLaDA2, LLaDA-MoE, SDAR and RND1, which reach 38: what was agreed when they
were made. Stock classes were 2.1e-5 away; `of_logits` would allow 4.5e-4."""

RECORDS_ATTENTION = 2e-6
"""Attention of the same records, agreed alike; stock classes were 3.0e-7 away."""

SAME_MATHS = of_logits(**SMALL, largest=4.0)
"""Logits and losses of small networks by two kernels: two layers of width 32, logits up to 4."""

GROWN = of_logits(layers=8, width=24, largest=8.0)
"""Logits of eight layers of width 24 (up to 8), float32 against float64."""

PADDED = of_maps(layers=TINY["layers"], **TINY_HEADS)
"""A share of attention of a padded, cached or batched row of tiny/* against the same row alone."""

PADDED_ENTROPY = of_entropy(PADDED, KEYS)
"""The entropy of such a row, in nats."""

LOGPROB = of_logits(**TINY, largest=TINY_LOGIT)
"""Logits and log-probabilities of such a row, in nats."""

LIKELIHOOD = LOGPROB
"""A log-likelihood of a few tokens of tiny/*, in nats: roundings of the tokens do not add up beyond
those of one by more than the root of their number, which the largest logit is not reached for."""

COMPARED = of_logits(**TINY, largest=2.0)
"""A mean over two runs of tiny/* (KL in nats, a change of states, a share of gains), float32 against
eager: a mean over positions, where errors of single logits average out, of numbers up to 2."""

SHARED_LOSS = SAME_MATHS
"""A loss after a few updates, one process against two: other sums of the same numbers."""

BFLOAT16_SHARE = (
    math.sqrt(TINY["layers"] * 2 / TINY_HEADS["size"])
    * UNIT["bfloat16"]
    * TINY_HEADS["logit"]
    * (1 / 8 - 1 / 64)
)
"""Shares of attention received of eight positions, root mean square, bfloat16 against float32. Queries
and keys are rounded: each logit moves by sqrt(2 / size) units of |q| |k| scale in every layer, and a
share p by p (1 - p) of that. It is a third of what an edit does, not a tenth: bfloat16 is no finer."""

BFLOAT16_LOGPROB = of_sums(2 * TINY["layers"], scale=5.0, dtype="bfloat16")
"""Log-probabilities of order five, root mean square: what attention and MLP add to the stream is
rounded once each in every layer."""

BFLOAT16_LOSS = of_sums(1, times=2 * SMALL["layers"], dtype="bfloat16")
"""A loss in bfloat16 against float32, relative, small networks."""

BFLOAT16_TRAINING_LOGIT = 4.0
BFLOAT16_TRAINING = SAFETY * UNIT["bfloat16"] * (BFLOAT16_TRAINING_LOGIT + 4)
"""Outputs and gradients of one attention call computed as two products in bfloat16, against float64,
root mean square over that of the result: logits up to 4 are rounded once, which moves a share by as
many units; queries, keys, weights and values are rounded once each."""

# Metrics and statistics.

METRIC = of_sums(KEYS, scale=10.0)
"""A metric of float32 shares against float64 loops over the maps they came from: sums over keys,
divided by null shares that make lifts up to ten of them."""

REST = 2 * SUMMED / (1 - 0.98)
"""A lift, up to 2, of what a float32 row has left once sinks with up to 98 % of it are taken out."""

SPLIT = of_sums(KEYS, times=2, scale=10.0)
"""A split of float32 logits and norms of order one to ten, against float64 loops over pairs."""

SCORE = 2 * SUMMED / 0.01
"""A share of variance explained: logarithms of float32 shares, twice (squared), over a standard
deviation of at least 0.01."""

STATISTIC = of_sums(10_000, times=50, scale=1_000.0, dtype="float64")
"""A statistic by another formula or scipy's code, float64: up to fifty operations in a row (series
of special functions) on sums of up to 10,000 terms, values up to a thousand."""

EXACT = of_sums(10_000, times=10, dtype="float64")
"""Float64 sums and products of values of order one by another order of the same operations."""

ENUMERATED = of_sums(8, scale=3.0)
"""A bound in nats against the sum over all mask sets or orders: float64 networks, and float32 weights
of the eight sets, with up to 3 nats each."""

INDIFFERENT = of_sums(100)
"""A loss against log V, relative: float32 logits of zero, some hundred terms."""

PUBLISHED = 6e-4
"""A number as printed, to three or four decimals: half of the third, and a fifth for its own rounding."""

WIRED = math.sqrt(4) * of_shares(logit=1_000.0, size=64) + 40.0 * 1e-4
"""A share of a wired network of four layers against its wiring, of which logits reach 1,000. Its still
channels turn by up to 10^-4 over 300 positions, which moves products of codes, up to 40, by as much."""

PLANTED_SINK = 0.02 / 7 + SHARE
"""A planted sink's share against the round number it was planted for, 0.98 or nothing: no key gets more
than its part of the 0.02 that are left for at least seven others."""

# Seeded draws.

BINOMIAL_ERRORS = 4
"""Standard errors a share of seeded trials may lie from its expectation: 1 in 16000 by chance."""

SEEDED_ERRORS = 3
"""Standard errors that the mean over many seeds may lie from the truth: 1 in 370 by chance."""

SHUFFLED = of_draws(1_600, 0.5)
"""A mean over some thousand seeded draws against its exact value, relative: draws that vary by half."""

DRAWN = of_draws(4_000, math.sqrt(0.025 * 0.975) / 0.0584) * math.sqrt(2) / (2 * 1.96)
"""The width of a 95 % interval from 4,000 draws against the normal formula, relative: the standard
error of a quantile is sqrt(p (1 - p) / draws) over the density there, 0.0584, and there are two."""

COVERED = tuple(0.95 + side * SEEDED_ERRORS * math.sqrt(0.95 * 0.05 / 1_000) for side in (-1, 1))
"""Share of nominal 95 % intervals that hold the truth, over at least 1,000 fixed seeds."""
