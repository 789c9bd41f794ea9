"""What to change inside attention, as frozen values that say what, where and when. No torch here.

An edit acts on `layers` and `heads`, at `steps` or while `progress` (share of the answer written)
is in [low, high); None is everywhere and always. It stands in the manifest, and what it decided
stands in the trace, so that a replay repeats it. Hiding empties a key's column for every query; a
row that would lose its last key keeps its best one, and `spared_rows` counts those.

>>> hide_keys([0, 3], layers=[2])
hide_keys(positions=(0, 3), layers=(2,))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from anchorwatch import rules
from anchorwatch.errors import SpecError
from anchorwatch.fields import Field, RunShape, counted, field, listed
from anchorwatch.rules import Rule

FORMS = ("logit", "penalty", "weight", "value", "value_mean")
DETECT = ("previous_shadow", "previous_edited", "same_shadow", "oracle")
SCOPES = ("head", "layer", "model")
MATCHES = ("sinks", "class", "rank")
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
                object.__setattr__(self, name, listed(name, getattr(self, name)))
        if self.progress is not None:
            object.__setattr__(self, "progress", _share_range(self.progress))

    def at(self, step: int, progress: float) -> bool:
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
        _one_of("form", self.form, self.FORMS)
        if pairs is not None:
            if self.layers is not None:
                raise SpecError("knock_out names heads as (layer, head): leave layers out")
            object.__setattr__(self, "heads", _pairs(pairs))

    def heads_at(self, layer: int, heads: int) -> tuple[int, ...]:
        if self.heads is None:
            return super().heads_at(layer, heads)
        return tuple(head for at, head in self.heads if at == layer)


@dataclass(frozen=True, repr=False)
class Hiding(Edit):
    """Edits that hide keys, in one of five forms.

    "logit": -inf before the softmax, rows renormalise. "penalty": the logit lowered by `penalty`.
    "weight": zero after the softmax, nothing renormalised. "value": the value zeroed, attention as
    it was. "value_mean": the value replaced by the mean over the keys that a query may look at.
    """

    _: KW_ONLY
    form: str = "logit"
    penalty: float | None = None

    observable: ClassVar[str] = "the hidden keys' share of each row"

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("form", self.form, FORMS)
        if self.form != "penalty":
            if self.penalty is not None:
                raise SpecError(f"form={self.form!r} takes no penalty: say form='penalty'")
            return
        c = self.penalty
        if not isinstance(c, int | float) or isinstance(c, bool) or not 0 < c < np.inf:
            raise SpecError(f"penalty={c!r} is not a number above 0: say penalty=5.0")
        object.__setattr__(self, "penalty", float(c))


@dataclass(frozen=True, repr=False)
class hide_keys(Hiding):  # noqa: N801
    """Hide the keys at some canvas positions (of autoregression: once they are written)."""

    positions: tuple[int, ...]

    @property
    def ranks(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class Oracle:
    """Shares of attention of an unedited trace, known by its digest."""

    digest: str
    shares: np.ndarray | None = dataclasses.field(default=None, compare=False, repr=False)
    """[step, layer, head, key]; None where only a manifest is left."""


@dataclass(frozen=True, repr=False)
class Detecting(Hiding):
    """Edits that find their keys themselves, k at each place, by the attention that keys receive.

    `detect`: "previous_shadow" reads the map of the step before as it would be without the edit,
    "previous_edited" as it was with it (a hidden key then scores 0 and is back every second step),
    "same_shadow" this very pass, "oracle" the trace `unedited`. `scope` is one set for each "head",
    each "layer", or the "model". `eligible` is a query group or a region. `last_row` reads only the
    last row of the map, as published for autoregression.
    """

    k: int
    _: KW_ONLY
    detect: str = "previous_shadow"
    scope: str = "head"
    eligible: str = "all"
    last_row: bool = False
    unedited: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "k", counted(self.k))
        _one_of("detect", self.detect, DETECT)
        _one_of("scope", self.scope, SCOPES)
        if not isinstance(self.eligible, str):
            raise SpecError(f"eligible={self.eligible!r} is not the name of a group or region")
        if self.detect == "same_shadow" and self.scope == "model":
            raise SpecError(
                "same_shadow decides at each layer, scope='model' after the last: "
                "use scope='layer', or detect='previous_shadow'"
            )
        if (self.detect == "oracle") != (self.unedited is not None):
            raise SpecError("detect='oracle' and unedited=trace go together: give both or neither")
        if self.detect == "oracle":
            if self.last_row:
                raise SpecError("an oracle knows what all rows gave: leave last_row out")
            object.__setattr__(self, "unedited", _oracle(self.unedited))

    @property
    def ranks(self) -> int:
        return self.k

    @property
    def remembers(self) -> bool:
        """Whether it needs to have seen the step before."""
        return self.detect.startswith("previous")


@dataclass(frozen=True, repr=False)
class hide_sinks(Detecting):  # noqa: N801
    """Hide the k keys that receive most; with a rule, only those of them it calls sinks."""

    _: KW_ONLY
    rule: Rule | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rule", _rule(self.rule))


@dataclass(frozen=True, repr=False)
class hide_random(Detecting):  # noqa: N801
    """The control of hide_sinks: as many keys as it would hide, drawn from the others.

    `matched_to` "sinks": any others; "class": for each sink one of the same kind of token, while
    there is one; "rank": from the next 2k in rank, which receive most after the sinks.
    """

    _: KW_ONLY
    rule: Rule | None = None
    matched_to: str = "sinks"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rule", _rule(self.rule))
        _one_of("matched_to", self.matched_to, MATCHES)
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or self.seed < 0:
            raise SpecError(f"seed={self.seed!r} is not a whole number of at least 0")


@dataclass(frozen=True, repr=False)
class hide_lowest(Detecting):  # noqa: N801
    """Hide the k keys that receive least: a control that should cost nothing."""


EDITS: dict[str, type[Edit]] = {
    kind.__name__: kind
    for kind in (hide_keys, hide_sinks, hide_random, hide_lowest, knock_out, no_op)
}


def from_dict(fields: Mapping[str, Any]) -> Edit:
    """The edit a manifest describes; the inverse of `as_dict`."""
    rest = dict(fields)
    name = rest.pop("name", None)
    if name not in EDITS:
        raise SpecError(f"no edit is called {name!r}: expected one of {', '.join(EDITS)}")
    known = {one.name for one in dataclasses.fields(EDITS[name])}
    if unknown := sorted(set(rest) - known):
        raise SpecError(f"{name} has no {', '.join(unknown)}: it takes {', '.join(sorted(known))}")
    return EDITS[name](**rest)


def random_heads(
    heads: Any, *, layers: int, per_layer: int, seed: int = 0
) -> tuple[tuple[int, int], ...]:
    """As many other heads of the same layers, for `knock_out`: the layer-matched control.

    `layers` and `per_layer` are the model's numbers of layers and of heads in each.

    >>> random_heads({(1, 0), (1, 2)}, layers=3, per_layer=4)
    ((1, 1), (1, 3))
    """
    taken, found = _pairs(heads), []
    draw = np.random.default_rng(seed)
    for layer in sorted({layer for layer, _ in taken}):
        mine = {head for at, head in taken if at == layer}
        others = [head for head in range(per_layer) if head not in mine]
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


def limited(edit: Edit, steps: range) -> Edit | None:
    """The edit at those of its steps that are among these; None where none is left."""
    left = tuple(steps if edit.steps is None else (one for one in edit.steps if one in steps))
    if left == (0,) and getattr(edit, "remembers", False):
        return None  # there is no step before the first
    return dataclasses.replace(edit, steps=left) if left else None


def slots(edits: tuple[Edit, ...]) -> list[slice]:
    """Where on the last axis of `hidden_keys` each edit writes."""
    ends = np.cumsum([0, *(edit.ranks for edit in edits)]).tolist()
    return [slice(a, b) for a, b in pairwise(ends)]


def fields_of(edits: tuple[Edit, ...], shape: RunShape) -> Iterator[Field]:
    """What edits add to a trace: what they decided."""
    total = sum(edit.ranks for edit in edits)
    if not total:
        return
    dims = ("step", "layer", "head", "hidden")
    says = "keys the edits hid, in the order of the manifest's edits"
    yield field("hidden_keys", dims, "int32", "position", says, shape, total)
    says = "rows, over all heads, that would have lost their last key and kept their best"
    yield field("spared_rows", dims[:2], "int32", "queries", says, shape)


def _plain(value: Any) -> Any:
    if isinstance(value, Rule):
        return value.as_dict()
    if isinstance(value, Oracle):
        return value.digest
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _rule(value: Any) -> Rule | None:
    if value is None or isinstance(value, Rule):
        return value
    if isinstance(value, str):
        return rules.parse(value)
    if isinstance(value, Mapping):
        return rules.from_dict(value)
    raise SpecError(f"rule={value!r} is not a rule: say rule=aw.rules.rulli(eps=3), or 'rulli:3'")


def _oracle(value: Any) -> Oracle:
    """From a trace, or from the digest that a manifest holds."""
    if isinstance(value, Oracle):
        return value
    if isinstance(value, str):
        return Oracle(value)
    try:
        edited, digest = value.manifest.get("edits"), value.digest()
        shares = value["received"].sel(group="all").values
    except (AttributeError, KeyError):
        raise SpecError(
            "unedited is a trace that holds `received` of all queries: aw.run(model, prompt, ...)"
        ) from None
    if edited:
        raise SpecError("the oracle's trace was edited itself: run it without edits")
    return Oracle(digest, shares.astype(np.float32))


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


def _share_range(value: Any) -> tuple[float, float]:
    try:
        low, high = (float(one) for one in value)
    except (TypeError, ValueError):
        raise SpecError(f"progress={value!r} is not (low, high): say progress=(0.0, 0.5)") from None
    if not 0 <= low < high <= 1:
        raise SpecError(f"progress={value!r} is not 0 <= low < high <= 1: say progress=(0.0, 0.5)")
    return low, high


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SpecError(f"{name}={value!r} is unknown: expected one of {', '.join(choices)}")
