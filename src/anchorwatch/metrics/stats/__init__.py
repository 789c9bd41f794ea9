"""Intervals and tests on numpy and scipy, whose unit is the prompt. No torch here.

`clusters` resamples prompts, `ranks` is about series and scores, `counts` about tables of counts,
`seeds` about training runs, which are the unit of claims about training.

>>> import anchorwatch as aw
>>> aw.stats.cluster_bootstrap([0.2, 0.3, 0.1, 0.4, 0.2]).value.round(2)
np.float64(0.24)
"""

from anchorwatch.metrics.stats.clusters import (
    Equivalence,
    Interval,
    Permutation,
    benjamini_hochberg,
    cluster_bootstrap,
    difference,
    equivalence,
    holm,
    permutation_test,
    ratio,
)
from anchorwatch.metrics.stats.counts import (
    Contrast,
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
from anchorwatch.metrics.stats.seeds import paired_t

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
