"""The trace schema: every array and manifest field a trace has, written down once.

`RUN_FIELDS` are the arrays of every run; probes and edits add theirs as `Field` values. Storage
(`trace/store.py`), validation (`trace/validate.py`), planned bytes (`generation/plan.py`) and the
types of the explorer's page (`web/src/lib/schema.ts`, by `make web`) are derived from these. What
does not exist is absent, not zero: -1 among integers, NaN among floats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorwatch.errors import SpecError

SCHEMA = "anchorwatch/trace"
SCHEMA_VERSION = 1

MISSING = -1
"""An integer that does not exist: a position not there yet, a token never committed."""
ROLES = ("prompt", "special", "masked", "fresh", "written", "absent")
"""What a position is at a frame; `fresh` was committed by the step before."""
PROMPT, SPECIAL, MASKED, FRESH, WRITTEN, ABSENT = range(len(ROLES))

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
    """Whether additions such as a sink token put keys before the canvas."""
    cached: bool = False
    """Whether a step brings only its new rows, those before being kept."""
    approximate: bool = False
    """Whether an approximate cache leaves rows out of a pass."""
    evicting: bool = False
    """Whether that cache also hides keys."""
    experts: int = 0
    """Experts of a layer of a mixture; 0 in other networks."""
    experts_per_token: int = 0
    """How many of them each token goes through."""


@dataclass(frozen=True)
class Field:
    """One array of a trace: its name, named dims, stored dtype and unit."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    unit: str
    says: str
    """What it is, in words: the array's `long_name`."""
    sizes: tuple[int, ...] = ()
    meanings: tuple[str, ...] = ()
    """Of codes: what 0, 1, 2, ... stand for."""
    always_known: bool = False
    """Whether no integer of it can be absent."""
    required: bool = True
    """Of run fields: whether a trace without it is refused."""

    @property
    def num_bytes(self) -> int:
        return math.prod(self.sizes) * np.dtype(self.dtype).itemsize

    @property
    def kind(self) -> str:
        """numpy's letter for its dtype: i, u or f."""
        return np.dtype(self.dtype).kind

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes that stand beside the array in the store."""
        attrs: dict[str, Any] = {"long_name": self.says}
        if self.unit:
            attrs["units"] = self.unit
        if self.meanings:
            attrs["flag_values"] = list(range(len(self.meanings)))
            attrs["flag_meanings"] = " ".join(self.meanings)
        if self.kind == "i" and not self.always_known and not self.meanings:
            attrs["missing"] = MISSING
        return attrs


RUN_FIELDS: dict[str, Field] = {
    field.name: field
    for field in (
        Field(
            "canvas",
            ("frame", "position"),
            "int32",
            "",
            "token id before each step; the last frame is the result",
        ),
        Field(
            "role",
            ("frame", "position"),
            "int8",
            "",
            "what a position is at a frame",
            meanings=ROLES,
        ),
        Field(
            "committed_at",
            ("position",),
            "int32",
            "",
            "step that wrote the position; the last one where tokens are rewritten",
        ),
        Field(
            "logprob",
            ("position",),
            "float32",
            "nats",
            "log-probability of the committed token when it was committed, "
            "under the logits the decoding used (the guided ones under guidance)",
        ),
        Field(
            "margin",
            ("position",),
            "float32",
            "nats",
            "log-probability of the committed token minus that of the best other token when it was "
            "committed: 0 is a tie, below 0 another token was likelier",
            required=False,
        ),
        Field(
            "mask_chosen",
            ("step",),
            "int32",
            "positions",
            "positions where a step chose the mask id, so that they stayed masked",
            always_known=True,
        ),
        Field(
            "narrow",
            ("step",),
            "int32",
            "decisions",
            "decisions of a step whose margin was under 1e-5",
            always_known=True,
        ),
        Field(
            "region",
            ("position",),
            "int16",
            "",
            "named part of the prompt a position belongs to, by index into the manifest",
        ),
        Field(
            "first_row",
            ("step",),
            "int32",
            "position",
            "first position whose row the step computed, those before being kept; of decodings in "
            "blocks",
            always_known=True,
            required=False,
        ),
        Field(
            "end_row",
            ("step",),
            "int32",
            "position",
            "where the step's forward pass ended: one past the open block; of decodings in blocks",
            always_known=True,
            required=False,
        ),
        Field(
            "row_computed",
            ("step", "position"),
            "int8",
            "",
            "1 where the step computed the position's row, 0 where an approximate cache kept its "
            "keys and values",
            always_known=True,
            required=False,
        ),
        Field(
            "written_logprob",
            ("step", "position"),
            "float32",
            "nats",
            "log-probability of the token that a step wrote, rewrites included; NaN where it wrote "
            "none; of decodings that rewrite",
            required=False,
        ),
        Field(
            "random_state",
            ("step", "byte"),
            "uint8",
            "",
            "state of the random generator before each step",
            required=False,
        ),
    )
}
"""The arrays of every run, by name. A new one is `required=False`: older traces lack it."""

MANIFEST: dict[str, type] = {
    "model": dict,
    "decoding": dict,
    "tokens": dict,
    "answer_positions": list,
    "seed": int,
    "prompt_text": str,
    "answer_text": str,
    "regions": list,
}
"""What every manifest has, and of which JSON type."""

MANIFEST_MODEL: dict[str, type] = {
    "source": str,
    "family": str,
    "weights": str,
    "layers": int,
    "heads": int,
}
"""What every manifest says of the model."""


def field(
    name: str,
    dims: tuple[str, ...],
    dtype: str,
    unit: str,
    says: str,
    shape: RunShape,
    rank: int = 0,
) -> Field:
    """A field of a run of this shape; `rank` is the size of the one dim that no run decides."""
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
        "qk_pick": rank,
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
    """A quantity of each key: its mean over keys, at the peaks, and with `keys` at every key."""
    per = ("step", "layer", "head")
    yield field(name, per, "float32", unit, f"{says}, mean over keys", shape)
    yield field(f"peak_{name}", (*per, "peak"), "float32", unit, f"{says}, at peak keys", shape)
    if keys:
        dims = (*per, "key")
        yield field(f"each_{name}", dims, "float32", unit, f"{says}, at every key", shape)


def peak_fields(shape: RunShape) -> Iterator[Field]:
    """Which keys the peaks are, and what they receive."""
    dims = ("step", "layer", "head", "peak")
    says = "the eight keys that receive most, most first"
    yield field("peak_key", dims, "int32", "position", says, shape)
    unit = "share of attention"
    yield field("peak_received", dims, "float32", unit, "what they receive", shape)


def check_positions(name: str, value: Any) -> Any:
    """Names or positions as a tuple; positions are whole numbers, each once."""
    if value is None:
        return value
    if isinstance(value, str | int) or not isinstance(value, Sequence | range | np.ndarray):
        raise SpecError(f"{name}={value!r} is not a list: say [{value!r}]")
    items = tuple(item.item() if isinstance(item, np.generic) else item for item in value)
    if not items and name != "hidden":
        raise SpecError(f"{name}=[] names none: name at least one, or leave {name} out")
    if len(set(items)) != len(items):
        raise SpecError(f"{name}={list(items)} names one twice: name each once")
    for item in items if name != "groups" else ():
        if not isinstance(item, int) or isinstance(item, bool) or item < 0:
            raise SpecError(f"{name}={list(items)}: {item!r} is not a whole number of at least 0")
    return items


def check_count(value: Any, name: str = "k") -> int:
    """A number of things, at least one."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise SpecError(f"{name}={value!r} is not a whole number of at least 1")
    return int(value)
