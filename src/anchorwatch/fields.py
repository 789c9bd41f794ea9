"""The arrays a trace may hold: names, dims, stored dtypes, units, and how large they will be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

PEAKS = 8
"""Keys at which geometry and norms are kept for every head: those that receive most."""


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
    """Whether a sink token stands before the canvas."""


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
        "outlier": rank,
        "peak": PEAKS,
        "query_region": len(shape.regions),
        "key_region": len(shape.regions),
    }
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
