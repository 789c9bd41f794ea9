"""Every figure by name: what draws it, and the metric whose table it is drawn from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from anchorwatch import metrics
from anchorwatch.errors import SpecError

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure
    from anchorwatch.trace.trace import Trace


@dataclass(frozen=True)
class Plot:
    """One figure: `module.function` of figures, its metric (None: of one trace), and its split."""

    draws: str
    metric: str | None
    by: tuple[str, ...] | None = None

    @property
    def function(self) -> Callable[..., Figure]:
        module, name = self.draws.split(".")
        return getattr(import_module(f"anchorwatch.figures.{module}"), name)

    @property
    def measure(self) -> Callable[..., Any] | None:
        return None if self.metric is None else getattr(metrics, self.metric)

    @property
    def takes(self) -> dict[str, inspect.Parameter]:
        """Options of the figure and of its metric, by name."""
        functions = [self.function] + ([self.measure] if self.measure else [])
        return {
            name: parameter
            for function in functions
            for name, parameter in list(inspect.signature(function).parameters.items())[1:]
            if name != "traces"
        }

    @property
    def needs(self) -> list[str]:
        """Options that must be given."""
        known = inspect.signature(self.function).parameters
        return [
            name
            for name, one in self.takes.items()
            if name in known and one.default is inspect.Parameter.empty
        ]


REGIONS = ("query_region", "key_region")
FIGURES = {
    "sink-map": Plot("maps.sink_map", None),
    "map-pair": Plot("maps.map_pair", None),
    "qk-triptych": Plot("geometry.qk_triptych", None),
    "sinks": Plot("sinks.profile", "sinks"),
    "absorption": Plot("sinks.profile", "absorption"),
    "concentration": Plot("sinks.profile", "concentration"),
    "head-grid": Plot("sinks.head_grid", "sinks", ("layer", "head")),
    "epsilon-curve": Plot("sinks.epsilon_curve", "epsilon_curve"),
    "score-histogram": Plot("sinks.score_histogram", "score_histogram"),
    "sink-positions": Plot("movement.sink_positions", "sink_positions"),
    "sink-path": Plot("movement.sink_path", "sink_positions"),
    "survival": Plot("movement.survival", "survival"),
    "set-jaccard": Plot("movement.by_lag", "set_jaccard"),
    "received-similarity": Plot("movement.by_lag", "received_similarity"),
    "head-types": Plot("movement.head_types", "head_types"),
    "layer-consistency": Plot("movement.layer_consistency", "layer_consistency"),
    "enrichment": Plot("identity.enrichment", "enrichment"),
    "enrichment-depth": Plot("identity.enrichment_depth", "enrichment", ("layer",)),
    "structure": Plot("identity.structure", "structure"),
    "meaning-or-place": Plot("identity.meaning_or_place", "meaning_or_place"),
    "shapley-bars": Plot("geometry.shapley_bars", "qk_split"),
    "value-norms": Plot("geometry.value_norm_scatter", "value_norm_points"),
    "contributions": Plot("geometry.contribution_scatter", "contributions"),
    "mixing": Plot("geometry.mixing_by_depth", "mixing"),
    "retrieval-map": Plot("retrieval.retrieval_map", "retrieval_heads"),
    "retrieval-contrast": Plot("retrieval.retrieval_contrast", "retrieval_heads"),
    "flow-matrix": Plot("flow.flow_matrix", "region_flow", REGIONS),
    "flow-bands": Plot("flow.flow_bands", "region_flow", REGIONS),
    "gold-lift": Plot("flow.gold_lift", "gold_lift"),
    "rollout-depth": Plot("flow.rollout_depth", "rollout"),
    "rollout-columns": Plot("flow.rollout_columns", "published_rollout", REGIONS),
}


def find(name: str) -> Plot:
    """The figure of that name."""
    if name not in FIGURES:
        raise SpecError(f"no figure is called {name!r}: expected one of {', '.join(FIGURES)}")
    return FIGURES[name]


def draw(name: str, traces: Sequence[Trace], options: Mapping[str, Any] | None = None) -> Figure:
    """Measure what the figure needs and draw it; `options` are the metric's and the figure's."""
    plot, given = find(name), dict(options or {})
    if unknown := [option for option in given if option not in plot.takes]:
        raise SpecError(f"{name} has no {unknown[0]}: it takes {', '.join(plot.takes)}")
    if lost := [name for name in plot.needs if name not in given]:
        raise SpecError(f"{name} needs {', '.join(plot.needs)}: say which {lost[0]}")
    if plot.measure is None:
        if len(traces) != 1:
            raise SpecError(f"{name} is of one trace: {len(traces)} were given")
        return plot.function(traces[0], **given)
    known = inspect.signature(plot.measure).parameters
    asked = {option: given.pop(option) for option in list(given) if option in known}
    if "by" not in asked and "by" in known and given.get("x") is not None:
        asked["by"] = [given["x"]]  # what a profile is over
    if plot.by is not None and "by" not in asked:
        asked["by"] = plot.by
    table = plot.measure(list(traces), **asked)
    if "traces" in inspect.signature(plot.function).parameters:
        given["traces"] = list(traces)
    return plot.function(table, **given)
