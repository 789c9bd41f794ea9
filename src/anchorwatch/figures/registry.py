"""How a figure is made and listed: `@figure` on a function that draws a table is all it takes.

    @figure(Plot("top-share", metric="top_share"))
    def top_share(table: pd.DataFrame) -> Figure:
        ...

lists it in `aw.figures`, in `anchorwatch plot list` and in the gallery, where it is drawn from the
table of its metric. A function may be the plot of several metrics, or of none: `@figure()` is
drawn only from Python.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec

from anchorwatch import metrics
from anchorwatch.errors import SpecError
from anchorwatch.figures.style import look

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure
    from anchorwatch.trace.trace import Trace

P = ParamSpec("P")


@dataclass(frozen=True)
class Plot:
    """One way to draw a figure from traces, by its name on the command line."""

    name: str
    metric: str | None = None
    """The metric whose table is drawn; None: the figure is of one trace."""
    by: tuple[str, ...] | None = None
    """What the table is split by, unless asked otherwise; None: as the metric splits."""
    draws: Callable[..., Figure] | None = None
    """Set by `figure`."""

    @property
    def function(self) -> Callable[..., Figure]:
        """What draws it."""
        assert self.draws is not None
        return self.draws

    @property
    def measure(self) -> Callable[..., Any] | None:
        """The metric itself."""
        return None if self.metric is None else metrics.METRICS[self.metric]

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
            for name, parameter in self.takes.items()
            if name in known and parameter.default is inspect.Parameter.empty
        ]


FIGURES: dict[str, Plot] = {}
"""Every figure that is drawn from traces, by its name on the command line."""
FUNCTIONS: dict[str, Callable[..., Figure]] = {}
"""Every function that draws a figure, by its name in `aw.figures`."""


def figure(*plots: Plot) -> Callable[[Callable[P, Figure]], Callable[P, Figure]]:
    """Register a function that draws, in our style, and the plots that it is for."""

    def register(function: Callable[P, Figure]) -> Callable[P, Figure]:
        drawing = look()(function)
        FUNCTIONS[function.__name__] = drawing
        for plot in plots:
            known = FIGURES.get(plot.name)
            if known is not None and known.function.__module__ != function.__module__:
                raise SpecError(
                    f"there is a figure {plot.name!r} already, in {known.function.__module__}: "
                    "choose another name"
                )
            FIGURES[plot.name] = replace(plot, draws=drawing)
        return drawing

    return register


@cache
def load_figures() -> None:
    """Import every module of this package, so that each figure in it is registered."""
    package = import_module("anchorwatch.figures")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"anchorwatch.figures.{module.name}")


def find(name: str) -> Plot:
    """The figure of that name."""
    load_figures()
    if name not in FIGURES:
        raise SpecError(f"no figure is called {name!r}: expected one of {', '.join(FIGURES)}")
    return FIGURES[name]


def draw(name: str, traces: Sequence[Trace], options: Mapping[str, Any] | None = None) -> Figure:
    """Measure what the figure needs and draw it; `options` are the metric's and the figure's."""
    # 1. Every option is one of the figure's or of its metric's, and those it needs are given.
    plot, given = find(name), dict(options or {})
    if unknown := [option for option in given if option not in plot.takes]:
        raise SpecError(f"{name} has no {unknown[0]}: it takes {', '.join(plot.takes)}")
    if lost := [name for name in plot.needs if name not in given]:
        raise SpecError(f"{name} needs {', '.join(plot.needs)}: say which {lost[0]}")
    if plot.measure is None:
        if len(traces) != 1:
            raise SpecError(f"{name} is of one trace: {len(traces)} were given")
        return plot.function(traces[0], **given)
    # 2. The table of its metric; what it is split by may follow from the figure's own options.
    known = inspect.signature(plot.measure).parameters
    measuring = {option: given.pop(option) for option in list(given) if option in known}
    if "by" not in measuring and "by" in known and given.get("x") is not None:
        measuring["by"] = [given["x"]]  # what a profile is over
    if plot.by is not None and "by" not in measuring:
        measuring["by"] = plot.by
    table = plot.measure(list(traces), **measuring)
    # 3. The figure; some also show the canvas of the traces.
    if "traces" in inspect.signature(plot.function).parameters:
        given["traces"] = list(traces)
    return plot.function(table, **given)
