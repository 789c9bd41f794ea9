"""Keys hidden from all who look: named ones, the ones that receive most, and their controls."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from anchorwatch.edits.spec.edit import Edit, check_seed, one_of
from anchorwatch.errors import SpecError
from anchorwatch.metrics import sink_rules as rules
from anchorwatch.metrics.sink_rules import Rule
from anchorwatch.trace.schema import check_count

FORMS = ("logit", "penalty", "weight", "value", "value_mean")
DETECT = ("previous_shadow", "previous_edited", "same_shadow", "oracle")
SCOPES = ("head", "layer", "model")
MATCHES = ("sinks", "class", "rank")


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
        one_of("form", self.form, FORMS)
        if self.form != "penalty":
            if self.penalty is not None:
                raise SpecError(f"form={self.form!r} takes no penalty: say form='penalty'")
            return
        c = self.penalty
        if not isinstance(c, int | float | np.number) or isinstance(c, bool) or not 0 < c < np.inf:
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
        object.__setattr__(self, "k", check_count(self.k))
        one_of("detect", self.detect, DETECT)
        one_of("scope", self.scope, SCOPES)
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
        one_of("matched_to", self.matched_to, MATCHES)
        object.__setattr__(self, "seed", check_seed(self.seed))


@dataclass(frozen=True, repr=False)
class hide_lowest(Detecting):  # noqa: N801
    """Hide the k keys that receive least: a control that should cost nothing."""


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
