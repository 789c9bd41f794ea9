"""Figures for papers: vector, colour-blind safe, with token labels, and each remembers its traces.

>>> from anchorwatch import figures
>>> figures.whence  # doctest: +ELLIPSIS
<function whence at ...>

Nothing here touches pyplot or any setting of matplotlib outside of its own drawing. `whence` needs
no matplotlib at all.
"""

from typing import TYPE_CHECKING

from anchorwatch import lazy_attributes

if TYPE_CHECKING:
    from anchorwatch.figures.catalogue import draw
    from anchorwatch.figures.effects import effect_doses, effect_layers
    from anchorwatch.figures.evaluation import (
        accuracy_bars,
        effect_intervals,
        gain_bars,
        irrelevant_curve,
        layout_bars,
        mask_curve,
        noise_curve,
        position_curve,
        wording_bars,
    )
    from anchorwatch.figures.figure import Figure
    from anchorwatch.figures.flow import (
        flow_bands,
        flow_matrix,
        gold_lift,
        rollout_columns,
        rollout_depth,
    )
    from anchorwatch.figures.geometry import (
        contribution_scatter,
        mixing_by_depth,
        qk_triptych,
        shapley_bars,
        value_norm_scatter,
    )
    from anchorwatch.figures.identity import (
        enrichment,
        enrichment_depth,
        meaning_or_place,
        structure,
    )
    from anchorwatch.figures.maps import map_pair, sink_map
    from anchorwatch.figures.movement import (
        by_lag,
        head_types,
        layer_consistency,
        sink_path,
        sink_positions,
        survival,
    )
    from anchorwatch.figures.origins import whence
    from anchorwatch.figures.retrieval import retrieval_contrast, retrieval_map
    from anchorwatch.figures.sinks import (
        dose_response,
        epsilon_curve,
        head_grid,
        profile,
        score_histogram,
    )

_LAZY = {
    "Figure": "figure",
    "flow_bands": "flow",
    "flow_matrix": "flow",
    "gold_lift": "flow",
    "rollout_columns": "flow",
    "rollout_depth": "flow",
    "map_pair": "maps",
    "sink_map": "maps",
    "contribution_scatter": "geometry",
    "mixing_by_depth": "geometry",
    "qk_triptych": "geometry",
    "shapley_bars": "geometry",
    "value_norm_scatter": "geometry",
    "retrieval_contrast": "retrieval",
    "retrieval_map": "retrieval",
    "by_lag": "movement",
    "head_types": "movement",
    "layer_consistency": "movement",
    "sink_path": "movement",
    "sink_positions": "movement",
    "survival": "movement",
    "enrichment": "identity",
    "enrichment_depth": "identity",
    "meaning_or_place": "identity",
    "structure": "identity",
    "dose_response": "sinks",
    "effect_doses": "effects",
    "effect_layers": "effects",
    "epsilon_curve": "sinks",
    "head_grid": "sinks",
    "profile": "sinks",
    "score_histogram": "sinks",
    "accuracy_bars": "evaluation",
    "effect_intervals": "evaluation",
    "gain_bars": "evaluation",
    "irrelevant_curve": "evaluation",
    "layout_bars": "evaluation",
    "mask_curve": "evaluation",
    "noise_curve": "evaluation",
    "position_curve": "evaluation",
    "wording_bars": "evaluation",
    "whence": "origins",
    "draw": "catalogue",
}

__all__ = [
    "Figure",
    "accuracy_bars",
    "by_lag",
    "contribution_scatter",
    "dose_response",
    "draw",
    "effect_doses",
    "effect_intervals",
    "effect_layers",
    "enrichment",
    "enrichment_depth",
    "epsilon_curve",
    "flow_bands",
    "flow_matrix",
    "gain_bars",
    "gold_lift",
    "head_grid",
    "head_types",
    "irrelevant_curve",
    "layer_consistency",
    "layout_bars",
    "map_pair",
    "mask_curve",
    "meaning_or_place",
    "mixing_by_depth",
    "noise_curve",
    "position_curve",
    "profile",
    "qk_triptych",
    "retrieval_contrast",
    "retrieval_map",
    "rollout_columns",
    "rollout_depth",
    "score_histogram",
    "shapley_bars",
    "sink_map",
    "sink_path",
    "sink_positions",
    "structure",
    "survival",
    "value_norm_scatter",
    "whence",
    "wording_bars",
]


__getattr__ = lazy_attributes("anchorwatch.figures", _LAZY)


def __dir__() -> list[str]:
    return sorted(__all__)
