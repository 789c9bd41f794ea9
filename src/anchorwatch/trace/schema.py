"""The arrays a trace may hold: names, dims, stored dtypes, units, sizes, and places in them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorwatch.errors import SpecError

PEAKS = 8
"""Keys at which geometry and norms are kept for every head: those that receive most."""

NEW_ROWS = "; with a cache, only of rows new at the step"
HALF = "; stored as float16, off by at most 5e-4 of it or 3e-8: shares under 3e-8 become 0"


@dataclass(frozen=True)
class RunShape:
    """The sizes that decide how much a probe keeps."""

    steps: int
    layers: int
    heads: int
    kv_heads: int
    positions: int
    regions: tuple[str, ...] = ()
    branches: int = 1
    """2 under guidance: the prompted branch and the blind one."""
    sink: bool = False
    """Whether parts add keys before the canvas."""
    cached: bool = False
    """Whether a step brings only its new rows, those before being kept."""


@dataclass(frozen=True)
class Field:
    """One array of a trace: its name, named dims, stored dtype and unit."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    unit: str
    says: str
    sizes: tuple[int, ...] = ()

    @property
    def num_bytes(self) -> int:
        return math.prod(self.sizes) * np.dtype(self.dtype).itemsize


def field(
    name: str,
    dims: tuple[str, ...],
    dtype: str,
    unit: str,
    says: str,
    shape: RunShape,
    rank: int = 0,
) -> Field:
    sizes = {
        "step": shape.steps,
        "layer": shape.layers,
        "head": shape.heads,
        "kv_head": shape.kv_heads,
        "group": rank,
        "rank": rank,
        "hidden": rank,
        "outlier": rank,
        "pick": rank,
        "peak": PEAKS,
        "query_region": len(shape.regions),
        "key_region": len(shape.regions),
    }
    if "query" in dims or dims == ("step", "layer", "position"):
        says += NEW_ROWS
    if dtype == "float16":
        says += HALF
    along = dict.fromkeys(("query", "key", "position", "distance"), shape.positions)
    return Field(name, dims, dtype, unit, says, tuple((sizes | along)[dim] for dim in dims))


def summary(name: str, unit: str, says: str, shape: RunShape, *, keys: bool) -> Iterator[Field]:
    per = ("step", "layer", "head")
    yield field(name, per, "float32", unit, f"{says}, mean over keys", shape)
    yield field(f"peak_{name}", (*per, "peak"), "float32", unit, f"{says}, at peak keys", shape)
    if keys:
        dims = (*per, "key")
        yield field(f"each_{name}", dims, "float32", unit, f"{says}, at every key", shape)


def peak_fields(shape: RunShape) -> Iterator[Field]:
    dims = ("step", "layer", "head", "peak")
    says = "the eight keys that receive most, most first"
    yield field("peak_key", dims, "int32", "position", says, shape)
    unit = "share of attention"
    yield field("peak_received", dims, "float32", unit, "what they receive", shape)


def check_positions(name: str, value: Any) -> Any:
    """Names or places as a tuple; places are whole numbers, each once."""
    if value is None:
        return value
    if isinstance(value, str | int) or not isinstance(value, Sequence | range | np.ndarray):
        raise SpecError(f"{name}={value!r} is not a list: say [{value!r}]")
    held = tuple(item.item() if isinstance(item, np.generic) else item for item in value)
    if not held and name != "hidden":
        raise SpecError(f"{name}=[] names none: name at least one, or leave {name} out")
    if len(set(held)) != len(held):
        raise SpecError(f"{name}={list(held)} names one twice: name each once")
    for place in held if name != "groups" else ():
        if not isinstance(place, int) or isinstance(place, bool) or place < 0:
            raise SpecError(f"{name}={list(held)}: {place!r} is not a whole number of at least 0")
    return held


def check_count(value: Any) -> int:
    """How many to keep."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise SpecError(f"k={value!r} is not a whole number of at least 1")
    return int(value)
