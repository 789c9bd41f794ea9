"""Measures of attention: pure functions from one or many traces to a tidy table.

Every row has its null, what uniform attention (or shuffled steps) would have given, its lift (value
over null; absent where the null is 0, and the value then stands for itself), how
many prompts it is over, and the interval that resampling prompts gives. What was not measured is
counted in `missing`, never taken as zero. What a table is not split by is added up before it is
divided, so a ratio is one of sums; prompts come last and count alike. Metrics of movement take
`frozen=` and `untrained=` traces, and put their values into columns of those names.

>>> import anchorwatch as aw
>>> sorted(aw.metrics.METRICS)[:4]
['absorption', 'agreement', 'alignment', 'block_jumps']

A metric is a function decorated with `metric` (see `registry`) in any module of this package, or
in a module of your own: `METRICS`, the command line and `measure_all` find it by itself.
"""

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers; nothing else needs a metric to be named here
    from anchorwatch.metrics.aligned_keys import (
        alignment as alignment,
    )
    from anchorwatch.metrics.decisions import (
        commit_margins as commit_margins,
    )
    from anchorwatch.metrics.flow import (
        gold_lift as gold_lift,
    )
    from anchorwatch.metrics.flow import (
        region_flow as region_flow,
    )
    from anchorwatch.metrics.geometry import (
        contributions as contributions,
    )
    from anchorwatch.metrics.geometry import (
        key_norms as key_norms,
    )
    from anchorwatch.metrics.geometry import (
        massive_activations as massive_activations,
    )
    from anchorwatch.metrics.geometry import (
        mixing as mixing,
    )
    from anchorwatch.metrics.geometry import (
        qk_split as qk_split,
    )
    from anchorwatch.metrics.geometry import (
        residual_norms as residual_norms,
    )
    from anchorwatch.metrics.geometry import (
        value_norm_points as value_norm_points,
    )
    from anchorwatch.metrics.geometry import (
        value_norms as value_norms,
    )
    from anchorwatch.metrics.headtypes import (
        TypeLimits as TypeLimits,
    )
    from anchorwatch.metrics.headtypes import (
        head_type_shares as head_type_shares,
    )
    from anchorwatch.metrics.headtypes import (
        head_types as head_types,
    )
    from anchorwatch.metrics.lifetimes import (
        lifetime as lifetime,
    )
    from anchorwatch.metrics.lifetimes import (
        onsets as onsets,
    )
    from anchorwatch.metrics.lifetimes import (
        survival as survival,
    )
    from anchorwatch.metrics.movement import (
        block_jumps as block_jumps,
    )
    from anchorwatch.metrics.movement import (
        direction as direction,
    )
    from anchorwatch.metrics.movement import (
        frontier_hits as frontier_hits,
    )
    from anchorwatch.metrics.movement import (
        jumps as jumps,
    )
    from anchorwatch.metrics.movement import (
        sink_positions as sink_positions,
    )
    from anchorwatch.metrics.movement import (
        spread as spread,
    )
    from anchorwatch.metrics.registry import (
        custom_metric as custom_metric,
    )
    from anchorwatch.metrics.registry import (
        measure_all as measure_all,
    )
    from anchorwatch.metrics.registry import (
        metric as metric,
    )
    from anchorwatch.metrics.retrieval import (
        retrieval_depth as retrieval_depth,
    )
    from anchorwatch.metrics.retrieval import (
        retrieval_heads as retrieval_heads,
    )
    from anchorwatch.metrics.retrieval import (
        retrieval_stability as retrieval_stability,
    )
    from anchorwatch.metrics.rollouts import (
        published_rollout as published_rollout,
    )
    from anchorwatch.metrics.rollouts import (
        rollout as rollout,
    )
    from anchorwatch.metrics.rollouts import (
        token_rollout as token_rollout,
    )
    from anchorwatch.metrics.similarity import (
        layer_consistency as layer_consistency,
    )
    from anchorwatch.metrics.similarity import (
        map_similarity as map_similarity,
    )
    from anchorwatch.metrics.similarity import (
        received_similarity as received_similarity,
    )
    from anchorwatch.metrics.similarity import (
        set_jaccard as set_jaccard,
    )
    from anchorwatch.metrics.similarity import (
        split_index as split_index,
    )
    from anchorwatch.metrics.sink_classes import (
        enrichment as enrichment,
    )
    from anchorwatch.metrics.sink_classes import (
        sink_tokens as sink_tokens,
    )
    from anchorwatch.metrics.sink_classes import (
        structure as structure,
    )
    from anchorwatch.metrics.sink_classes import (
        structure_trend as structure_trend,
    )
    from anchorwatch.metrics.sink_strength import (
        absorption as absorption,
    )
    from anchorwatch.metrics.sink_strength import (
        agreement as agreement,
    )
    from anchorwatch.metrics.sink_strength import (
        concentration as concentration,
    )
    from anchorwatch.metrics.sink_strength import (
        epsilon_curve as epsilon_curve,
    )
    from anchorwatch.metrics.sink_strength import (
        score_histogram as score_histogram,
    )
    from anchorwatch.metrics.sink_strength import (
        sink_rate as sink_rate,
    )
    from anchorwatch.metrics.sink_strength import (
        sinks as sinks,
    )
    from anchorwatch.metrics.sink_table import (
        sink_keys as sink_keys,
    )
    from anchorwatch.metrics.table_files import (
        save as save,
    )
    from anchorwatch.metrics.token_classes import (
        classes as classes,
    )
    from anchorwatch.metrics.token_vs_position import (
        meaning_or_place as meaning_or_place,
    )

_OTHERS = {
    "TypeLimits": "headtypes",
    "classes": "token_classes",
    "custom_metric": "registry",
    "measure_all": "registry",
    "metric": "registry",
    "save": "table_files",
    "token_rollout": "rollouts",
}
"""Public names that are no metrics, by the module that has them."""
_MODULES = frozenset(module.name for module in pkgutil.iter_modules(__path__))


def __getattr__(name: str) -> Any:
    """A metric or another public name, imported when it is first used."""
    if name in _OTHERS:
        return getattr(import_module(f"anchorwatch.metrics.{_OTHERS[name]}"), name)
    # A submodule is not there yet while it is being imported: that must not load all the others.
    if name not in _MODULES and (not name.startswith("_") or name == "__all__"):
        from anchorwatch.metrics.registry import METRICS, load_metrics

        load_metrics()
        if name == "METRICS":
            return METRICS
        if name == "__all__":
            return __dir__()
        if name in METRICS:
            return METRICS[name]
    raise AttributeError(f"module 'anchorwatch.metrics' has no attribute {name!r}")


def __dir__() -> list[str]:
    from anchorwatch.metrics.registry import METRICS, load_metrics

    load_metrics()
    return sorted(["METRICS", *METRICS, *_OTHERS])
