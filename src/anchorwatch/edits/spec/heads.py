"""Heads taken out, and other heads of the same layers as their control."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from anchorwatch.edits.spec.edit import Edit, one_of
from anchorwatch.errors import SpecError


@dataclass(frozen=True, repr=False)
class knock_out(Edit):  # noqa: N801
    """Take heads out: {(layer, head), ...}, or every head of `layers`.

    "zero" empties their output, "mean" replaces each row of it by the mean over the positions that
    row may look at, "uniform" makes them look at all of those alike (the published mask test).
    """

    heads: tuple[tuple[int, int], ...] | None = None
    form: str = "zero"

    FORMS: ClassVar[tuple[str, ...]] = ("zero", "mean", "uniform")
    observable: ClassVar[str] = "head output"

    def __post_init__(self) -> None:
        pairs = self.heads
        object.__setattr__(self, "heads", None)
        super().__post_init__()
        one_of("form", self.form, self.FORMS)
        if pairs is not None:
            if self.layers is not None:
                raise SpecError("knock_out names heads as (layer, head): leave layers out")
            object.__setattr__(self, "heads", _pairs(pairs))

    def heads_at(self, layer: int, heads: int) -> tuple[int, ...]:
        if self.heads is None:
            return super().heads_at(layer, heads)
        return tuple(head for at, head in self.heads if at == layer)


def random_heads(
    heads: Any, *, layers: int, per_layer: int, seed: int = 0, besides: Any = ()
) -> tuple[tuple[int, int], ...]:
    """As many other heads of the same layers, for `knock_out`: the layer-matched control.

    `layers` and `per_layer` are the model's numbers of layers and of heads in each; heads `besides`
    these are not drawn either.

    >>> random_heads({(1, 0), (1, 2)}, layers=3, per_layer=4)
    ((1, 1), (1, 3))
    """
    taken, found = _pairs(heads), []
    draw = np.random.default_rng(seed)
    for layer in sorted({layer for layer, _ in taken}):
        mine = {head for at, head in taken if at == layer}
        out = mine | {head for at, head in besides if at == layer}
        others = [head for head in range(per_layer) if head not in out]
        if layer >= layers or max(mine) >= per_layer:
            raise SpecError(
                f"the model has {layers} layers of {per_layer} heads: {taken} do not fit"
            )
        if len(others) < len(mine):
            raise SpecError(
                f"layer {layer} has {len(others)} heads besides the {len(mine)} named: "
                "name at most half of a layer"
            )
        chosen = draw.choice(others, size=len(mine), replace=False)
        found += [(layer, int(head)) for head in sorted(chosen)]
    return tuple(found)


def _pairs(value: Any) -> tuple[tuple[int, int], ...]:
    wrong = SpecError(f"heads={value!r} are not pairs: say {{(layer, head), (layer, head)}}")
    if isinstance(value, str | Mapping) or not hasattr(value, "__iter__"):
        raise wrong
    found = []
    for pair in value:
        if not hasattr(pair, "__len__") or len(pair) != 2:
            raise wrong
        if any(not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 0 for n in pair):
            raise wrong
        found.append((int(pair[0]), int(pair[1])))
    if not found:
        raise SpecError("heads=[] names none: name at least one, or leave heads out")
    return tuple(sorted(set(found)))
