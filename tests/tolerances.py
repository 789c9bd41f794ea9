"""How far two different computations of one number may differ. A test never writes its own number."""

GOLDEN_LOGITS = 1e-5
"""Logits against the golden records, float32 on a CPU: 0.0 where they were made, rounding elsewhere."""

SAME_MATHS = 2e-5
"""One formula by two kernels (fused and dense), float32, values of order one."""

PADDED = 1e-4
"""A padded row against the same row alone: other shapes, other blocking of the same sums."""

RECEIVED_RELATIVE, RECEIVED_ABSOLUTE = 1e-5, 1e-8
"""Share of attention received, against float64: relative where it exceeds 1e-3 / T, else absolute."""

ENTROPY = 1e-4
"""Row entropy in nats, against float64, for logits up to 50."""

SHARE = 2e-6
"""One attention probability, or a sum of them below one, against float64; logits up to 50."""

GEOMETRY = 2e-5
"""Mean cosine, and mean logit and norm product relative to the largest, against float64."""

GOLDEN_ATTENTION = 2e-6
"""Attention probabilities against the golden records, float32 on a CPU."""

EAGER_ATTENTION = 5e-6
"""Our maps against transformers' eager attention, whole networks, float32."""

METRIC = 1e-5
"""A metric of float32 shares against a float64 loop over the maps they came from."""

STATISTIC = 1e-9
"""A statistic by another formula or scipy's code, float64, values of order one to a thousand."""

PUBLISHED = 6e-4
"""A number as printed, to three or four decimals."""

BINOMIAL_ERRORS = 4
"""Standard errors a share of seeded trials may lie from its expectation: 1 in 16000 by chance."""

DRAWN = 0.06
"""The width of an interval from 4000 draws against the normal formula, relative."""

SPLIT = 2e-5
"""A split of float32 logits and norms of order one to ten, against float64 loops over pairs."""

SHUFFLED = 0.05
"""A mean over some hundred or thousand seeded draws against its exact value, relative."""

REST = 1e-4
"""A lift of what a float32 row has left once sinks with up to 98 % of it are taken out."""

SCORE = 2e-4
"""A share of variance explained: float32 logarithms against float64, the error over the variance."""

PLANTED_SINK = 3e-3
"""A planted sink's share against the round number it was planted for (0.98, or nothing)."""

COMPARED = 2e-5
"""A mean over two runs (KL in nats, a change of states, a share of gains): float32 against eager."""

IDENTITY = 1e-5
"""Logits of a whole float32 pass by two forms of one identity, relative to the largest."""

IDENTITY_64 = 1e-10
"""The same in float64, and gradients, relative to the largest."""

BFLOAT16_SHARE, BFLOAT16_LOGPROB = 0.08, 0.2
"""A share of attention, a log-probability of order five: bfloat16 against float32, tiny networks."""

LIKELIHOOD = 1e-4
"""A log-likelihood of a few tokens, in nats, in another batch or against float64 loops."""

COVERED = 0.93, 0.97
"""Share of nominal 95 % intervals that hold the truth, over at least 1,000 fixed seeds."""

SEEDED_ERRORS = 3
"""Standard errors that the mean over many seeds may lie from the truth."""

SHARED_LOSS = 2e-5
"""A loss of order one after a few updates, one process against two: other sums of the same numbers."""

ENUMERATED = 1e-6
"""A bound in nats against the sum over all mask sets or orders, float64 networks."""

INDIFFERENT = 1e-6
"""A loss against log V, relative: float32 logits of zero, some hundred terms."""
