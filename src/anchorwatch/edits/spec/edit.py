"""What every edit has in common: where and when it acts, what a run asks of it, its registration.

An edit is one frozen dataclass under `@register_edit`; which methods it has depends on its kind:

- **hide keys**: a `Hiding` with `ranks` (how many at most) and `select_keys(row)` (which); one that
  goes by the attention keys receive is a `Detecting` and overrides how keys are ranked;
- **change values or heads**: an `Edit` with `fill_patch(patch, row)`, which marks keys or heads of
  one attention call in an `AttentionPatch`;
- **change the canvas**: a `CanvasEdit` that says which tokens are shown, forced, delayed;
- **add to the network**: a `Addition` (a sink token, a gate).

`control(draws)` is the edit of equal budget that chose by chance; `check(shape)` refuses a run that
cannot have it. Application, verification on the tensors, manifests, the command line and `aw.edits`
need nothing more: whatever an edit marks in the patch is applied and verified alike.

Hiding the first keys of the canvas needs one class:

>>> from anchorwatch.edits.spec import EDITS, Hiding, hide_keys
>>> @register_edit
... @dataclass(frozen=True, repr=False)
... class hide_first(Hiding):
...     n: int = 1
...     @property
...     def ranks(self):
...         return self.n
...     def select_keys(self, row):
...         return np.arange(self.n)[None]  # the same keys for every head
...     def control(self, draws):
...         return hide_keys(range(self.n), form=self.form).control(draws)
>>> EDITS.pop("hide_first")(2, layers=[0])
hide_first(n=2, layers=(0,))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from anchorwatch.errors import SpecError
from anchorwatch.metrics.sink_rules import Rule
from anchorwatch.trace.schema import Field, RunShape, check_positions, field

if TYPE_CHECKING:
    from anchorwatch.edits.ablation import AttentionPatch
    from anchorwatch.edits.controls import ControlDraws
    from anchorwatch.edits.runtime import EditedRow

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
    """What shows that it took effect."""

    def __post_init__(self) -> None:
        for name in _LISTS:
            if hasattr(self, name):
                object.__setattr__(self, name, check_positions(name, getattr(self, name)))
        if self.progress is not None:
            object.__setattr__(self, "progress", _share_range(self.progress))

    def acts_at(self, step: int, progress: float) -> bool:
        """Whether it acts at a step before which `progress` of the answer is written."""
        # [low, high), but for 1: progress is 1 only when all is written.
        low, high = self.progress or (0.0, 1.0)
        inside = low <= progress and (progress < high or high == 1)
        return inside and (self.steps is None or step in self.steps)

    def heads_at(self, layer: int, heads: int) -> tuple[int, ...]:
        """Heads of a layer it acts on; () where it leaves the layer alone."""
        if self.layers is not None and layer not in self.layers:
            return ()
        return tuple(range(heads)) if self.heads is None else tuple(self.heads)

    def limit_to_steps(self, steps: range) -> Edit | None:
        """The edit at those of its steps that are among these; None where none is left."""
        left = tuple(steps if self.steps is None else (s for s in self.steps if s in steps))
        if left == (0,) and self.remembers:
            return None  # there is no step before the first
        return dataclasses.replace(self, steps=left) if left else None

    def fill_patch(self, patch: AttentionPatch, row: EditedRow) -> None:
        """Mark in the patch what it does to one row of the batch in one attention call."""

    def control(self, draws: ControlDraws) -> Edit:
        """An edit of equal budget that chose by chance."""
        raise SpecError(
            f"no random control is known for {self!r}: give one of equal budget as control=edit, "
            "or control=None"
        )

    @property
    def ranks(self) -> int:
        """How many keys it may hide in one head."""
        return 0

    @property
    def fewest_keys(self) -> int:
        """How many keys it hides in a head of which enough are left: a run must have more."""
        return self.ranks

    @property
    def named_keys(self) -> tuple[int, ...]:
        """Positions whose keys it names, which no control may draw."""
        return ()

    @property
    def named_heads(self) -> tuple[tuple[int, int], ...]:
        """(layer, head) that it names, which no control may draw."""
        return ()

    @property
    def query_groups(self) -> tuple[str, ...]:
        """Groups of positions it needs to know at each step."""
        return ()

    @property
    def remembers(self) -> bool:
        """Whether it decides by the step before."""
        return False

    @property
    def needs_earlier_rows(self) -> bool:
        """Whether it needs the outputs of rows that a cache does not bring again."""
        return False

    @property
    def needs_token_classes(self) -> bool:
        """Whether it needs to know the kind of token at each position."""
        return False

    def fields(self, shape: RunShape) -> Iterator[Field]:
        """What it adds to a trace, besides the keys that edits hid."""
        return iter(())

    def check(self, shape: RunShape) -> None:
        """Refuse a run of this shape, if it lacks what the edit names."""
        kind = type(self).__name__
        for name, (numbers, size) in self._numbers_named(shape).items():
            if numbers and max(numbers) >= size:
                what = f"{kind}({name}=[{max(numbers)}])"
                raise SpecError(f"{what} is not there: this run has {name} 0 to {size - 1}")
        if self.steps is not None and min(self.steps) >= shape.steps:
            what = f"{kind}(steps={list(self.steps)})"
            raise SpecError(f"{what} would change nothing: this run has 0 to {shape.steps - 1}")
        # One key must be left to look at.
        if self.fewest_keys >= shape.positions:
            raise SpecError(
                f"{kind} would hide {self.fewest_keys} keys of {shape.positions}: "
                "hide fewer than there are"
            )

    def _numbers_named(self, shape: RunShape) -> dict[str, tuple[tuple[int, ...], int]]:
        """By setting, the numbers it names and how many the run has."""
        return {
            "layers": (self.layers or (), shape.layers),
            "heads": (() if self.heads is None else self.heads, shape.heads),
            "positions": (getattr(self, "positions", ()), shape.positions),
        }

    def contradicts(self, other: Edit) -> str | None:
        """Why it cannot act together with another edit, in words; None where it can."""
        return None

    def as_dict(self) -> dict[str, Any]:
        """Name and fields, for the manifest."""
        return {"name": type(self).__name__} | {k: _plain(v) for k, v in vars(self).items()}

    def __repr__(self) -> str:
        """As it is written in Python; settings that have their default are left out."""
        order = sorted(dataclasses.fields(self), key=lambda setting: bool(setting.kw_only))
        # Positional settings first, as the class would be called.
        values = {setting.name: getattr(self, setting.name) for setting in order}
        changed = [
            f"{setting.name}={values[setting.name]!r}"
            for setting in order
            if values[setting.name] != setting.default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"


EDITS: dict[str, type[Edit]] = {}
"""Every edit by its name."""

_Kind = TypeVar("_Kind", bound=type[Edit])


def register_edit(kind: _Kind) -> _Kind:
    """Make an edit known to Python, manifests and the command line, by its class's name."""
    if kind.__name__ in EDITS:
        raise SpecError(f"there is an edit {kind.__name__} already: name it otherwise")
    EDITS[kind.__name__] = kind
    return kind


def from_dict(fields: Mapping[str, Any]) -> Edit:
    """The edit a manifest describes; the inverse of `as_dict`."""
    rest = dict(fields)
    name = rest.pop("name", None)
    if name not in EDITS:
        raise SpecError(f"no edit is called {name!r}: expected one of {', '.join(EDITS)}")
    settings = dataclasses.fields(EDITS[name])
    known = {setting.name for setting in settings}
    if unknown := sorted(set(rest) - known):
        raise SpecError(f"{name} has no {', '.join(unknown)}: it takes {', '.join(sorted(known))}")
    # A manifest written by hand (a TOML file) may lack what has no default.
    for setting in settings:
        required = setting.default is setting.default_factory is dataclasses.MISSING
        if required and setting.name not in rest:
            raise SpecError(f"{name} needs its {setting.name}: say {setting.name} = ...")
    return EDITS[name](**rest)


def check_edits(edits: Sequence[Edit], shape: RunShape) -> None:
    """Refuse edits that a run of this shape cannot have, alone or together."""
    for edit in edits:
        edit.check(shape)
    for edit, other in combinations(edits, 2):
        why = edit.contradicts(other) if _meet(edit, other, shape) else None
        if why:
            raise SpecError(f"{edit!r} and {other!r} contradict each other: {why}")


def slots(edits: tuple[Edit, ...]) -> list[slice]:
    """Where on the last axis of `hidden_keys` each edit writes."""
    # hidden_keys is one array: each edit has as many ranks as it may hide keys.
    ends = np.cumsum([0, *(edit.ranks for edit in edits)]).tolist()
    return [slice(a, b) for a, b in pairwise(ends)]


def fields_of(edits: tuple[Edit, ...], shape: RunShape) -> Iterator[Field]:
    """What edits add to a trace: their own fields, and the keys they hid."""
    yield from {own.name: own for edit in edits for own in edit.fields(shape)}.values()
    total = sum(edit.ranks for edit in edits)
    if not total:
        return
    dims = ("step", "layer", "head", "hidden")
    says = "keys the edits hid, in the order of the manifest's edits"
    yield field("hidden_keys", dims, "int32", "position", says, shape, total)
    says = "rows, over all heads, that would have lost their last key and kept their best"
    yield field("spared_rows", dims[:2], "int32", "queries", says, shape)


def check_word(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a word that is none of the choices."""
    if value not in choices:
        raise SpecError(f"{name}={value!r} is unknown: expected one of {', '.join(choices)}")


def check_seed(seed: Any) -> int:
    """A seed for numpy and torch, or a refusal."""
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or seed < 0:
        raise SpecError(f"seed={seed!r} is not a whole number of at least 0")
    return int(seed)


def overlap_in_time(edit: Edit, other: Edit) -> bool:
    """Whether there may be a step at which both act, by the times that they name."""
    both_named = edit.steps is not None and other.steps is not None
    if both_named and not set(edit.steps or ()) & set(other.steps or ()):
        return False
    (low, high), (lower, higher) = edit.progress or (0, 1), other.progress or (0, 1)
    return max(low, lower) < min(high, higher)


def _meet(edit: Edit, other: Edit, shape: RunShape) -> bool:
    """Whether there is a head and a step of the run at which both act."""
    # Edits of the canvas have no heads: they never meet here, `check_canvas` compares them.
    every = range(shape.steps)
    steps = set(every if edit.steps is None else edit.steps)
    if not steps & set(every if other.steps is None else other.steps):
        return False
    return overlap_in_time(edit, other) and any(
        set(edit.heads_at(layer, shape.heads)) & set(other.heads_at(layer, shape.heads))
        for layer in range(shape.layers)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Rule):
        return value.as_dict()
    if hasattr(value, "digest"):  # numbers too many for a manifest
        return value.digest
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _share_range(value: Any) -> tuple[float, float]:
    try:
        low, high = (float(number) for number in value)
    except (TypeError, ValueError):
        raise SpecError(f"progress={value!r} is not (low, high): say progress=(0.0, 0.5)") from None
    if not 0 <= low < high <= 1:
        raise SpecError(f"progress={value!r} is not 0 <= low < high <= 1: say progress=(0.0, 0.5)")
    return low, high
