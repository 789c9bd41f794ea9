"""Numbers of every head that the page's head grid shows: one function with a decorator adds one.

    @head_measure(unit="share", says="share of the key that receives most")
    def top_share(trace: Trace) -> np.ndarray | None:
        ...

A function returns [step, layer, head] numbers, NaN where there is none, or None for a trace that
lacks what it needs. Fields of a trace that have a number for each step, layer and head are shown by
themselves, and so are tables of metrics (`head_tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from anchorwatch.errors import SpecError
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.trace import Trace

LONGEST_NAME, LONGEST_UNIT, LONGEST_SENTENCE = 60, 40, 200
_PEAKED = "at the key that receives most"


@dataclass(frozen=True, eq=False)
class HeadMeasure:
    """One quantity of one run, as the head grid shows it."""

    name: str
    says: str
    read: Callable[[], Mapping[str, np.ndarray]]
    """`values` [step or one, layer, head], NaN where there is none; tables have more beside it."""
    unit: str = ""
    words: tuple[str, ...] = ()
    """What each number stands for, where it is a verdict."""
    table: bool = False
    """Whether it comes from a table, which is sent exactly and over as many steps as it has."""

    def as_dict(self) -> dict[str, Any]:
        """What the header has of it."""
        fields: dict[str, Any] = {"name": self.name, "unit": self.unit, "says": self.says}
        fields |= {"table": True} if self.table else {}
        return fields | ({"words": list(self.words)} if self.words else {})


@dataclass(frozen=True)
class _Registered:
    unit: str
    says: str
    function: Callable[[Trace], np.ndarray | None]


MEASURES: dict[str, _Registered] = {}
"""Every registered measure by name."""


def head_measure(
    *, unit: str = "", says: str = ""
) -> Callable[[Callable[[Trace], np.ndarray | None]], Callable[[Trace], np.ndarray | None]]:
    """Register a function from a trace to [step, layer, head] numbers, by its own name."""

    def register(
        function: Callable[[Trace], np.ndarray | None],
    ) -> Callable[[Trace], np.ndarray | None]:
        MEASURES[function.__name__] = _Registered(unit, says or function.__name__, function)
        return function

    return register


def list_measures(trace: Trace, group: int = 0) -> tuple[list[HeadMeasure], list[str]]:
    """What can be shown of each head, and a sentence for each field that cannot be.

    Of a field that has peaks the first is shown, of one that has query groups the `group`-th.
    """
    measures, problems = [], []
    model = trace.manifest["model"]
    for name in trace.fields:
        field = trace[name]
        # 1. Only fields with a number for each step, layer and head.
        if field.dtype.kind != "f" or field.dims[:3] != ("step", "layer", "head"):
            continue
        if field.dims[3:] not in ((), ("peak",)) and name != "sink_received":
            continue
        if field.shape[1:3] != (model["layers"], model["heads"]):
            layers, heads = field.shape[1:3]
            what = f"it is of {layers} layers and {heads} heads, not of all"
            problems.append(f"{one_line(name)[:LONGEST_NAME]} cannot be shown: {what}")
            continue
        # 2. What the page calls it.
        says = one_line(str(field.attrs.get("long_name", name)))
        if field.dims[3:] == ("peak",):
            says = f"{says.removesuffix(', at peak keys')}, {_PEAKED}"
        unit = one_line(str(field.attrs.get("units", "")))
        measures.append(
            HeadMeasure(
                one_line(name)[:LONGEST_NAME],
                says[:LONGEST_SENTENCE],
                partial(_read_field, trace, name, group),
                unit[:LONGEST_UNIT],
            )
        )
    return measures + _registered_measures(trace), problems


def _read_field(trace: Trace, name: str, group: int) -> dict[str, np.ndarray]:
    field = trace[name]
    last = group if field.dims[-1] == "group" else 0
    return {"values": field.values if field.ndim == 3 else field[..., last].values}


def _registered_measures(trace: Trace) -> list[HeadMeasure]:
    """Those of the registry that this trace has what they need for."""
    model = trace.manifest["model"]
    shape = (trace.num_steps, model["layers"], model["heads"])
    measures = []
    for name, registered in MEASURES.items():
        values = registered.function(trace)
        if values is None:
            continue
        if values.shape != shape:
            raise SpecError(
                f"the measure {name!r} has shape {values.shape}: "
                f"give [step, layer, head] numbers, here {shape}"
            )
        arrays = {"values": values}
        measures.append(HeadMeasure(name, registered.says, partial(dict, arrays), registered.unit))
    return measures
