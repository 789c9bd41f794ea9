"""Figures for papers: vector, colour-blind safe, with token labels, and each remembers its traces.

>>> from anchorwatch import figures
>>> figures.whence  # doctest: +ELLIPSIS
<function whence at ...>

Nothing here touches pyplot or any setting of matplotlib outside of its own drawing. `whence` needs
no matplotlib at all. A figure is a function decorated with `figure` (see `registry`) in any module
of this package, or in one of your own.
"""

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

from anchorwatch import explain_missing_module

if TYPE_CHECKING:  # for editors and type checkers; nothing else needs a figure to be named here
    from anchorwatch.figures.decisions import (
        commit_margins as commit_margins,
    )
    from anchorwatch.figures.evaluation import (
        accuracy_bars as accuracy_bars,
    )
    from anchorwatch.figures.evaluation import (
        effect_doses as effect_doses,
    )
    from anchorwatch.figures.evaluation import (
        effect_intervals as effect_intervals,
    )
    from anchorwatch.figures.evaluation import (
        effect_layers as effect_layers,
    )
    from anchorwatch.figures.evaluation import (
        gain_bars as gain_bars,
    )
    from anchorwatch.figures.evaluation import (
        irrelevant_curve as irrelevant_curve,
    )
    from anchorwatch.figures.evaluation import (
        layout_bars as layout_bars,
    )
    from anchorwatch.figures.evaluation import (
        mask_curve as mask_curve,
    )
    from anchorwatch.figures.evaluation import (
        noise_curve as noise_curve,
    )
    from anchorwatch.figures.evaluation import (
        position_curve as position_curve,
    )
    from anchorwatch.figures.evaluation import (
        wording_bars as wording_bars,
    )
    from anchorwatch.figures.figure import (
        Figure as Figure,
    )
    from anchorwatch.figures.flow import (
        flow_bands as flow_bands,
    )
    from anchorwatch.figures.flow import (
        flow_matrix as flow_matrix,
    )
    from anchorwatch.figures.flow import (
        gold_lift as gold_lift,
    )
    from anchorwatch.figures.flow import (
        rollout_columns as rollout_columns,
    )
    from anchorwatch.figures.flow import (
        rollout_depth as rollout_depth,
    )
    from anchorwatch.figures.geometry import (
        contribution_scatter as contribution_scatter,
    )
    from anchorwatch.figures.geometry import (
        mixing_by_depth as mixing_by_depth,
    )
    from anchorwatch.figures.geometry import (
        qk_triptych as qk_triptych,
    )
    from anchorwatch.figures.geometry import (
        shapley_bars as shapley_bars,
    )
    from anchorwatch.figures.geometry import (
        value_norm_scatter as value_norm_scatter,
    )
    from anchorwatch.figures.maps import (
        map_pair as map_pair,
    )
    from anchorwatch.figures.maps import (
        sink_map as sink_map,
    )
    from anchorwatch.figures.movement import (
        by_lag as by_lag,
    )
    from anchorwatch.figures.movement import (
        head_types as head_types,
    )
    from anchorwatch.figures.movement import (
        layer_consistency as layer_consistency,
    )
    from anchorwatch.figures.movement import (
        sink_path as sink_path,
    )
    from anchorwatch.figures.movement import (
        sink_positions as sink_positions,
    )
    from anchorwatch.figures.movement import (
        survival as survival,
    )
    from anchorwatch.figures.origins import (
        whence as whence,
    )
    from anchorwatch.figures.registry import (
        draw as draw,
    )
    from anchorwatch.figures.retrieval import (
        retrieval_contrast as retrieval_contrast,
    )
    from anchorwatch.figures.retrieval import (
        retrieval_map as retrieval_map,
    )
    from anchorwatch.figures.sink_classes import (
        enrichment as enrichment,
    )
    from anchorwatch.figures.sink_classes import (
        enrichment_depth as enrichment_depth,
    )
    from anchorwatch.figures.sink_classes import (
        meaning_or_place as meaning_or_place,
    )
    from anchorwatch.figures.sink_classes import (
        structure as structure,
    )
    from anchorwatch.figures.sink_strength import (
        dose_response as dose_response,
    )
    from anchorwatch.figures.sink_strength import (
        epsilon_curve as epsilon_curve,
    )
    from anchorwatch.figures.sink_strength import (
        head_grid as head_grid,
    )
    from anchorwatch.figures.sink_strength import (
        profile as profile,
    )
    from anchorwatch.figures.sink_strength import (
        score_histogram as score_histogram,
    )

_OTHERS = {"Figure": "figure", "draw": "registry", "whence": "origins"}
"""Public names that draw nothing by themselves, by the module that has them."""
_MODULES = frozenset(module.name for module in pkgutil.iter_modules(__path__))


def __getattr__(name: str) -> Any:
    """A figure or another public name, imported when it is first used."""
    try:
        if name in _OTHERS:
            return getattr(import_module(f"anchorwatch.figures.{_OTHERS[name]}"), name)
        # A submodule is not there yet while it is being imported: that must not load the others.
        if name not in _MODULES and (not name.startswith("_") or name == "__all__"):
            from anchorwatch.figures.registry import FIGURES, FUNCTIONS, load_figures

            load_figures()
            if name == "FIGURES":
                return FIGURES
            if name == "__all__":
                return __dir__()
            if name in FUNCTIONS:
                return FUNCTIONS[name]
    except ModuleNotFoundError as error:
        raise explain_missing_module(error, f"aw.figures.{name}") from None
    raise AttributeError(f"module 'anchorwatch.figures' has no attribute {name!r}")


def __dir__() -> list[str]:
    from anchorwatch.figures.registry import FUNCTIONS, load_figures

    load_figures()
    return sorted([*FUNCTIONS, *_OTHERS])
