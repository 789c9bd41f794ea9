"""How a metric is made and listed: `@metric` on a function of one layer is all it takes.

    @metric(by=("layer",))
    def top_share(layer: LayerSlice, *, group: str) -> list[Quantity]:
        '''Mean share of the key that receives most.'''
        return [mean("top_share", ("step", "head"), layer.top_key(group)[1])]

gives `aw.metrics.top_share(traces, group="all", by=("layer",))`, and lists it in `aw.metrics`, in
`anchorwatch measure list` and for `measure_all`. A metric that needs more than one function of a
layer is a `custom_metric`: it returns its table, or the `Reading` that makes it. Because a reading
is a value (which traces, which function of a layer, which table), many metrics can share one pass
over the layers.
"""

from __future__ import annotations

import inspect
import pkgutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, update_wrapper
from importlib import import_module
from typing import Any, ParamSpec, Protocol

import pandas as pd

from anchorwatch.errors import AnchorwatchWarning, SpecError, TraceError
from anchorwatch.metrics.layer_slices import (
    Kernel,
    Layers,
    LayerSlice,
    Traces,
    check_traces,
    map_kernels,
    map_layers,
)
from anchorwatch.metrics.sink_rules import Rule, rulli
from anchorwatch.metrics.table import (
    Finish,
    Parts,
    Quantity,
    arm_key,
    compare_with_chance,
    model_names,
    prompt_id,
    split_always,
    stack_layers,
    tabulate,
)
from anchorwatch.trace.provenance import origin
from anchorwatch.trace.trace import Trace

P = ParamSpec("P")
Combine = Callable[[Trace, list[Any]], list[Quantity]]
"""From what a kernel returned for each layer of a trace to the quantities of the trace."""

METRICS: dict[str, Callable[..., pd.DataFrame]] = {}
"""Every metric by name; `load_metrics` fills it with those of this package."""
_PLANS: dict[str, Callable[..., Reading | pd.DataFrame]] = {}
_DEFAULT: list[str] = []


@dataclass(frozen=True, eq=False)
class Reading:
    """What a metric reads, and the table it makes of that."""

    traces: list[Trace]
    kernel: Kernel
    """Is called with every layer of every trace."""
    table: Callable[[Layers], pd.DataFrame]
    """From what the kernel returned."""

    def make(self) -> pd.DataFrame:
        """Read the layers and make the table."""
        return self.table(map_layers(self.traces, self.kernel))


class LayerMetric(Protocol):
    """A metric that was written as a function of one layer."""

    __name__: str
    kernel: Callable[..., list[Quantity]]
    """The function itself: `kernel(layer, rule=..., group=...)`."""

    def __call__(self, traces: Traces, *args: Any, **options: Any) -> pd.DataFrame: ...


def metric(
    *,
    by: Sequence[str] = (),
    always: str | None = None,
    finish: Finish | None = None,
    baselines: bool = False,
    default: bool = False,
) -> Callable[[Callable[..., list[Quantity]]], LayerMetric]:
    """Make a metric of a function `(layer, ...) -> quantities`, whose name and docstring it gets.

    What the function takes besides the layer are the metric's options. Two are supplied where it
    names them: `rule` (by default `rulli()`) and `group` (by default "all"). The metric also takes
    `by`, what its table is split by, and with `baselines=True` the traces `frozen` and `untrained`,
    whose values become columns of those names, beside `chance`.

    `always` is a dim that every table is split by, such as an age. `finish` turns added-up
    quantities into others, such as a curve. `default=True` puts the metric into `measure_all`,
    which is for those that need no probe beyond the default ones.
    """

    def register(kernel: Callable[..., list[Quantity]]) -> LayerMetric:
        signature = _public_signature(kernel, tuple(by), baselines)

        def plan(*args: Any, **given: Any) -> Reading:
            try:
                bound = signature.bind(*args, **given)
            except TypeError as error:
                raise TypeError(f"{kernel.__name__}() {error}") from None
            bound.apply_defaults()
            options = dict(bound.arguments)
            traces, split = options.pop("traces"), options.pop("by")
            others = {n: options.pop(n) for n in ("frozen", "untrained")} if baselines else None
            if "rule" in options:
                options["rule"] = options["rule"] or rulli()
            named = {n: str(o) if n == "rule" else o for n, o in options.items()}
            return read_quantities(
                traces,
                partial(kernel, **options),
                split if always is None else split_always(always, split),
                about={"metric": kernel.__name__} | named,
                finish=finish,
                baselines=others,
            )

        def measure(*args: Any, **given: Any) -> pd.DataFrame:
            return plan(*args, **given).make()

        update_wrapper(measure, kernel)
        measure.__signature__ = signature  # type: ignore[attr-defined]
        measure.__annotations__ = {n: p.annotation for n, p in signature.parameters.items()}
        measure.kernel = kernel  # type: ignore[attr-defined]
        _register(kernel.__name__, measure, plan, default)
        return measure  # type: ignore[return-value]

    return register


def custom_metric(
    *, default: bool = False
) -> Callable[[Callable[P, Reading | pd.DataFrame]], Callable[P, pd.DataFrame]]:
    """Make a metric of a function of traces that returns its table, or a reading that makes it."""

    def register(function: Callable[P, Reading | pd.DataFrame]) -> Callable[P, pd.DataFrame]:
        def measure(*args: P.args, **options: P.kwargs) -> pd.DataFrame:
            result = function(*args, **options)
            return result.make() if isinstance(result, Reading) else result

        update_wrapper(measure, function)
        _register(function.__name__, measure, function, default)
        return measure

    return register


def _register(
    name: str,
    measure: Callable[..., pd.DataFrame],
    plan: Callable[..., Reading | pd.DataFrame],
    default: bool,
) -> None:
    known = METRICS.get(name)
    if known is not None and known.__module__ != measure.__module__:
        raise SpecError(
            f"there is a metric {name!r} already, in {known.__module__}: choose another name"
        )
    if measure.__module__ == f"anchorwatch.metrics.{name}":
        raise SpecError(
            f"the metric {name!r} stands in a module of the same name, which would hide it: call "
            f"the file {name}_metric.py, or anything else"
        )
    METRICS[name], _PLANS[name] = measure, plan
    if default and name not in _DEFAULT:
        _DEFAULT.append(name)


def _public_signature(
    kernel: Callable[..., Any], by: tuple[str, ...], baselines: bool
) -> inspect.Signature:
    """What the metric takes: traces, the options of its kernel, and what the decorator supplies."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("traces", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Traces)
    ]
    for parameter in list(inspect.signature(kernel).parameters.values())[1:]:
        if parameter.name == "rule":
            parameter = parameter.replace(default=None, annotation=Rule | None)
        elif parameter.name == "group":
            parameter = parameter.replace(default="all", annotation=str)
        parameters.append(parameter)
    parameters.append(inspect.Parameter("by", keyword, default=by, annotation=Sequence[str]))
    for name in ("frozen", "untrained") if baselines else ():
        parameters.append(inspect.Parameter(name, keyword, default=None, annotation=Traces | None))
    return inspect.Signature(parameters, return_annotation=pd.DataFrame)


def read_quantities(
    traces: Traces,
    kernel: Kernel,
    by: Sequence[str],
    *,
    about: Mapping[str, Any],
    finish: Finish | None = None,
    baselines: Mapping[str, Traces | None] | None = None,
    combine: Combine = lambda trace, layers: stack_layers(layers),
) -> Reading:
    """The usual reading: a kernel gives quantities of each layer, which are added up and split.

    `about` says what was asked for, and is kept with the table. `combine` is for kernels that
    return something else than quantities. With `baselines`, other traces by the name of their
    column, the table has these columns and `chance`.
    """

    def add_up(layers: Layers) -> Parts:
        return [(trace, combine(trace, every)) for trace, every in layers]

    def table(layers: Layers) -> pd.DataFrame:
        if baselines is None:
            return tabulate(add_up(layers), by, finish, about)
        others = {
            name: None if other is None else add_up(map_layers(other, kernel))
            for name, other in baselines.items()
        }
        return compare_with_chance(add_up(layers), others, by, finish=finish, about=about)

    return Reading(check_traces(traces), kernel, table)


def read_rows(
    traces: Traces, kernel: Callable[[LayerSlice], Any], about: Mapping[str, Any]
) -> Reading:
    """A reading whose table is the plain rows that a kernel gives of each layer, below each other.

    Each row also gets model, trace, prompt and seed.
    """
    checked = check_traces(traces)

    def table(layers: Layers) -> pd.DataFrame:
        names, frames = model_names(checked), []
        for trace, every in layers:
            fixed = {
                "model": names[arm_key(trace)],
                "trace": trace.digest()[:12],
                "prompt": prompt_id(trace),
                "seed": trace.seed,
            }
            frames += [pd.DataFrame(fixed | rows) for rows in every]
        rows = pd.concat(frames, ignore_index=True)
        rows.attrs = {"about": dict(about), "traces": [origin(trace) for trace in checked]}
        return rows

    return Reading(checked, kernel, table)


@cache
def load_metrics() -> None:
    """Import every module of this package, so that each metric in it is registered."""
    package = import_module("anchorwatch.metrics")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"anchorwatch.metrics.{module.name}")


def default_metrics() -> tuple[str, ...]:
    """Names of the metrics that need no probe beyond the default ones, and nothing but traces."""
    load_metrics()
    return tuple(_DEFAULT)


def measure_all(traces: Traces, metrics: Sequence[str] | None = None) -> dict[str, pd.DataFrame]:
    """The table of every default metric by name; layers are read once for all of them.

    A metric whose fields were not captured is left out with a warning that says how to get them.
    """
    checked = check_traces(traces)
    names = default_metrics() if metrics is None else tuple(metrics)
    # 1. What each metric reads. A missing field may show here or when layers are read.
    results = {name: _plan(name, checked) for name in names}
    # 2. One pass over the layers for all kernels.
    readings = {name: plan for name, plan in results.items() if isinstance(plan, Reading)}
    passes = map_kernels(checked, [plan.kernel for plan in readings.values()]) if readings else []
    # 3. The tables.
    for (name, plan), layers in zip(readings.items(), passes, strict=True):
        results[name] = layers if isinstance(layers, TraceError) else _make_table(plan, layers)
    for name, table in results.items():
        if isinstance(table, TraceError):
            warnings.warn(f"{name} is left out: {table}", AnchorwatchWarning, stacklevel=2)
    return {name: table for name, table in results.items() if isinstance(table, pd.DataFrame)}


def _plan(name: str, traces: list[Trace]) -> Reading | pd.DataFrame | TraceError:
    load_metrics()
    try:
        return _PLANS[name](traces)
    except TraceError as error:
        return error


def _make_table(plan: Reading, layers: Layers) -> pd.DataFrame | TraceError:
    try:
        return plan.table(layers)
    except TraceError as error:
        return error
