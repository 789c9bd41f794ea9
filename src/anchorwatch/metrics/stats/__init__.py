"""Intervals and tests on numpy and scipy, whose unit is the prompt.

`clusters` resamples prompts, and has the t tests: of equivalence, and of training runs, which are
the unit of claims about training. `ranks` is about series and scores, `counts` about tables of
counts. Distributions, ranks and exact tests are scipy's; what is ours works on many cells at once,
with NaN where a prompt has no value.

>>> import anchorwatch as aw
>>> aw.stats.cluster_bootstrap([0.2, 0.3, 0.1, 0.4, 0.2]).value.round(2)
np.float64(0.24)
"""

from anchorwatch.metrics.stats.clusters import (
    Contrast,
    Equivalence,
    Interval,
    Permutation,
    benjamini_hochberg,
    cluster_bootstrap,
    difference,
    equivalence,
    holm,
    paired_t,
    permutation_test,
    ratio,
)
from anchorwatch.metrics.stats.counts import (
    cohens_kappa,
    cohens_kappa_of,
    mcnemar,
    mcnemar_of,
    odds_ratio,
    wilson,
)
from anchorwatch.metrics.stats.ranks import (
    Survival,
    Trend,
    auroc,
    auroc_interval,
    cosine,
    jensen_shannon,
    kaplan_meier,
    kendall,
    spearman,
    theil_sen,
)

__all__ = [
    "Contrast",
    "Equivalence",
    "Interval",
    "Permutation",
    "Survival",
    "Trend",
    "auroc",
    "auroc_interval",
    "benjamini_hochberg",
    "cluster_bootstrap",
    "cohens_kappa",
    "cohens_kappa_of",
    "cosine",
    "difference",
    "equivalence",
    "holm",
    "jensen_shannon",
    "kaplan_meier",
    "kendall",
    "mcnemar",
    "mcnemar_of",
    "odds_ratio",
    "paired_t",
    "permutation_test",
    "ratio",
    "spearman",
    "theil_sen",
    "wilson",
]
