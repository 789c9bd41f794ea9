"""Figures for papers: vector, colour-blind safe, with token labels, and each remembers its traces.

>>> from anchorwatch import figures
>>> figures.whence  # doctest: +ELLIPSIS
<function whence at ...>

Nothing here touches pyplot or any setting of matplotlib outside of its own drawing. `whence` needs
no matplotlib at all.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    "Figure": "anchorwatch.figures.figure",
    "flow_bands": "anchorwatch.figures.flow",
    "flow_matrix": "anchorwatch.figures.flow",
    "gold_lift": "anchorwatch.figures.flow",
    "rollout_columns": "anchorwatch.figures.flow",
    "rollout_depth": "anchorwatch.figures.flow",
    "map_pair": "anchorwatch.figures.maps",
    "sink_map": "anchorwatch.figures.maps",
    "contribution_scatter": "anchorwatch.figures.geometry",
    "mixing_by_depth": "anchorwatch.figures.geometry",
    "qk_triptych": "anchorwatch.figures.geometry",
    "shapley_bars": "anchorwatch.figures.geometry",
    "value_norm_scatter": "anchorwatch.figures.geometry",
    "retrieval_contrast": "anchorwatch.figures.retrieval",
    "retrieval_map": "anchorwatch.figures.retrieval",
    "by_lag": "anchorwatch.figures.movement",
    "head_types": "anchorwatch.figures.movement",
    "layer_consistency": "anchorwatch.figures.movement",
    "sink_path": "anchorwatch.figures.movement",
    "sink_positions": "anchorwatch.figures.movement",
    "survival": "anchorwatch.figures.movement",
    "enrichment": "anchorwatch.figures.identity",
    "enrichment_depth": "anchorwatch.figures.identity",
    "meaning_or_place": "anchorwatch.figures.identity",
    "structure": "anchorwatch.figures.identity",
    "dose_response": "anchorwatch.figures.sinks",
    "effect_doses": "anchorwatch.figures.effects",
    "effect_layers": "anchorwatch.figures.effects",
    "epsilon_curve": "anchorwatch.figures.sinks",
    "head_grid": "anchorwatch.figures.sinks",
    "profile": "anchorwatch.figures.sinks",
    "score_histogram": "anchorwatch.figures.sinks",
    "accuracy_bars": "anchorwatch.figures.evaluation",
    "effect_intervals": "anchorwatch.figures.evaluation",
    "gain_bars": "anchorwatch.figures.evaluation",
    "irrelevant_curve": "anchorwatch.figures.evaluation",
    "layout_bars": "anchorwatch.figures.evaluation",
    "mask_curve": "anchorwatch.figures.evaluation",
    "noise_curve": "anchorwatch.figures.evaluation",
    "position_curve": "anchorwatch.figures.evaluation",
    "wording_bars": "anchorwatch.figures.evaluation",
    "whence": "anchorwatch.figures.origins",
    "draw": "anchorwatch.figures.catalogue",
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


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'anchorwatch.figures' has no attribute {name!r}")
    try:
        return getattr(import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] == "matplotlib":
            raise ModuleNotFoundError(
                f"aw.figures.{name} needs matplotlib, which is not installed: "
                "pip install matplotlib",
                name="matplotlib",
            ) from None
        raise


def __dir__() -> list[str]:
    return sorted(__all__)
