"""Measures of attention: pure functions from one or many traces to a tidy table. No torch here.

Every row has its null, what indifferent attention (or shuffled steps) would have given, its lift,
how many prompts it is over, and the interval that resampling prompts gives. What was not measured
is counted in `missing`, never taken as zero. What a table is not split by is added up before it is
divided, so a ratio is one of sums; prompts come last and count alike. Metrics of movement take
`frozen=` and `untrained=` traces, and put their values into columns of those names.

>>> import anchorwatch as aw
>>> sorted(aw.metrics.METRICS)[:4]
['absorption', 'agreement', 'block_jumps', 'concentration']
"""

from typing import TYPE_CHECKING

from anchorwatch import lazy_attributes

if TYPE_CHECKING:
    from anchorwatch.metrics.amounts import (
        absorption,
        agreement,
        concentration,
        epsilon_curve,
        score_histogram,
        sink_rate,
        sinks,
    )
    from anchorwatch.metrics.consistency import layer_consistency
    from anchorwatch.metrics.everything import measure_all
    from anchorwatch.metrics.files import save
    from anchorwatch.metrics.flow import gold_lift, region_flow
    from anchorwatch.metrics.geometry import mixing, qk_split
    from anchorwatch.metrics.headtypes import TypeLimits, head_type_shares, head_types
    from anchorwatch.metrics.identity import enrichment, sink_tokens, structure, structure_trend
    from anchorwatch.metrics.lifetimes import lifetime, onsets, survival
    from anchorwatch.metrics.meaning import meaning_or_place
    from anchorwatch.metrics.movement import (
        block_jumps,
        direction,
        frontier_hits,
        jumps,
        sink_positions,
        spread,
    )
    from anchorwatch.metrics.norms import (
        contributions,
        key_norms,
        massive_activations,
        residual_norms,
        value_norm_points,
        value_norms,
    )
    from anchorwatch.metrics.overlaps import (
        map_similarity,
        received_similarity,
        set_jaccard,
        split_index,
    )
    from anchorwatch.metrics.retrieval import (
        retrieval_depth,
        retrieval_heads,
        retrieval_stability,
    )
    from anchorwatch.metrics.rollouts import published_rollout, rollout, token_rollout
    from anchorwatch.metrics.tokens import classes

METRICS = {
    "sinks": "amounts",
    "absorption": "amounts",
    "sink_rate": "amounts",
    "concentration": "amounts",
    "epsilon_curve": "amounts",
    "score_histogram": "amounts",
    "agreement": "amounts",
    "sink_positions": "movement",
    "jumps": "movement",
    "spread": "movement",
    "direction": "movement",
    "frontier_hits": "movement",
    "block_jumps": "movement",
    "set_jaccard": "overlaps",
    "received_similarity": "overlaps",
    "map_similarity": "overlaps",
    "split_index": "overlaps",
    "survival": "lifetimes",
    "lifetime": "lifetimes",
    "onsets": "lifetimes",
    "layer_consistency": "consistency",
    "head_types": "headtypes",
    "head_type_shares": "headtypes",
    "enrichment": "identity",
    "sink_tokens": "identity",
    "structure": "identity",
    "structure_trend": "identity",
    "meaning_or_place": "meaning",
    "qk_split": "geometry",
    "mixing": "geometry",
    "value_norms": "norms",
    "key_norms": "norms",
    "residual_norms": "norms",
    "value_norm_points": "norms",
    "contributions": "norms",
    "massive_activations": "norms",
    "retrieval_heads": "retrieval",
    "retrieval_stability": "retrieval",
    "retrieval_depth": "retrieval",
    "region_flow": "flow",
    "gold_lift": "flow",
    "rollout": "rollouts",
    "published_rollout": "rollouts",
}
"""Every metric by name, and the module it lives in."""

_OTHERS = {
    "TypeLimits": "headtypes",
    "classes": "tokens",
    "measure_all": "everything",
    "save": "files",
    "token_rollout": "rollouts",
}

__all__ = [
    "METRICS",
    "TypeLimits",
    "absorption",
    "agreement",
    "block_jumps",
    "classes",
    "concentration",
    "contributions",
    "direction",
    "enrichment",
    "epsilon_curve",
    "frontier_hits",
    "gold_lift",
    "head_type_shares",
    "head_types",
    "jumps",
    "key_norms",
    "layer_consistency",
    "lifetime",
    "map_similarity",
    "massive_activations",
    "meaning_or_place",
    "measure_all",
    "mixing",
    "onsets",
    "published_rollout",
    "qk_split",
    "received_similarity",
    "region_flow",
    "residual_norms",
    "retrieval_depth",
    "retrieval_heads",
    "retrieval_stability",
    "rollout",
    "save",
    "score_histogram",
    "set_jaccard",
    "sink_positions",
    "sink_rate",
    "sink_tokens",
    "sinks",
    "split_index",
    "spread",
    "structure",
    "structure_trend",
    "survival",
    "token_rollout",
    "value_norm_points",
    "value_norms",
]


__getattr__ = lazy_attributes("anchorwatch.metrics", METRICS | _OTHERS)


def __dir__() -> list[str]:
    return sorted(__all__)
