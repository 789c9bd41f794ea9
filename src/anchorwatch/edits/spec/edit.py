"""What every edit has in common: where and when it acts, and how it stands in a manifest."""

from __future__ import annotations

import dataclasses
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from anchorwatch.errors import SpecError
from anchorwatch.metrics.sink_rules import Rule
from anchorwatch.trace.schema import check_positions

_LISTS = ("layers", "heads", "steps", "positions")


@dataclass(frozen=True, repr=False)
class Edit:
    """What every edit has in common: where and when it acts."""

    _: KW_ONLY
    layers: tuple[int, ...] | None = None
    heads: Any = None
    steps: tuple[int, ...] | None = None
    progress: tuple[float, float] | None = None

    observable: ClassVar[str] = "nothing"
    """What shows that it is alive."""

    def __post_init__(self) -> None:
        for name in _LISTS:
            if hasattr(self, name):
                object.__setattr__(self, name, check_positions(name, getattr(self, name)))
        if self.progress is not None:
            object.__setattr__(self, "progress", _share_range(self.progress))

    def acts_at(self, step: int, progress: float) -> bool:
        """Whether it acts at a step before which `progress` of the answer is written."""
        low, high = self.progress or (0.0, 1.0)
        inside = low <= progress and (progress < high or high == 1)
        return inside and (self.steps is None or step in self.steps)

    def heads_at(self, layer: int, heads: int) -> tuple[int, ...]:
        """Heads of a layer it acts on; () where it leaves the layer alone."""
        if self.layers is not None and layer not in self.layers:
            return ()
        return tuple(range(heads)) if self.heads is None else tuple(self.heads)

    @property
    def ranks(self) -> int:
        """Keys it may hide at one place."""
        return 0

    def as_dict(self) -> dict[str, Any]:
        """Name and fields, for the manifest."""
        return {"name": type(self).__name__} | {k: _plain(v) for k, v in vars(self).items()}

    def __repr__(self) -> str:
        """As it was asked for: what is as always is left out."""
        order = sorted(dataclasses.fields(self), key=lambda one: bool(one.kw_only))
        held = {one.name: getattr(self, one.name) for one in order}
        said = [f"{one.name}={held[one.name]!r}" for one in order if held[one.name] != one.default]
        return f"{type(self).__name__}({', '.join(said)})"


@dataclass(frozen=True, repr=False)
class no_op(Edit):  # noqa: N801
    """Goes through all the motions and changes nothing: the twin every edit is compared with."""


def one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a word that is none of the choices."""
    if value not in choices:
        raise SpecError(f"{name}={value!r} is unknown: expected one of {', '.join(choices)}")


def check_seed(seed: Any) -> int:
    """A seed for numpy and torch, or a refusal."""
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or seed < 0:
        raise SpecError(f"seed={seed!r} is not a whole number of at least 0")
    return int(seed)


def _plain(value: Any) -> Any:
    if isinstance(value, Rule):
        return value.as_dict()
    if hasattr(value, "digest"):  # numbers too many for a manifest
        return value.digest
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _share_range(value: Any) -> tuple[float, float]:
    try:
        low, high = (float(one) for one in value)
    except (TypeError, ValueError):
        raise SpecError(f"progress={value!r} is not (low, high): say progress=(0.0, 0.5)") from None
    if not 0 <= low < high <= 1:
        raise SpecError(f"progress={value!r} is not 0 <= low < high <= 1: say progress=(0.0, 0.5)")
    return low, high
