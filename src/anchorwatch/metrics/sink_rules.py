"""What counts as a sink, as frozen values that carry their scale.

A rule reads the shares of attention that the keys of one head received, NaN where a key does not
exist, and says which keys are sinks. Published rules disagree strongly, so each has its own name:

>>> import numpy as np
>>> shares = np.array([0.91, 0.01, 0.02, 0.02, 0.01, 0.01, 0.01, 0.01])
>>> rulli(eps=3).labels(shares).nonzero()[0].tolist()
[0]
>>> zscore(3).labels(shares).any()  # among 8 keys even all attention on one is z = 2.65
np.False_
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorwatch.errors import SpecError

SCALES = ("sum", "percent", "mean")
TIE = np.float32(1 + 1e-6)
"""A share at its threshold, but for the rounding of sums, is not above it."""
RESOLUTION = 1e-3
"""A spread below this share of the mean is rounding: stored float16 shares are off by 5e-4."""


@dataclass(frozen=True)
class Rule:
    """What every rule can do: label keys, and spell itself as `name:number:word`."""

    def labels(self, shares: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
        """[..., key] bool. `seen` is the share of the queries that may look at each key."""
        raise NotImplementedError

    def in_words(self) -> str:
        """What a sink is by this rule, as the end of the sentence "a sink is a key that ..."."""
        return f"the rule {self} picks"

    def as_dict(self) -> dict[str, Any]:
        """Name and fields, for tables and manifests."""
        return {"name": type(self).__name__} | vars(self)

    def __str__(self) -> str:
        return ":".join([type(self).__name__, *(_plain(value) for value in vars(self).values())])


@dataclass(frozen=True)
class rulli(Rule):  # noqa: N801
    """More than the mean of the others plus eps (2510.15731, Eq. 3), on a scale that can fire.

    `sum` is the column sum, where uniform attention scores 1 and eps=3 asks for about four times
    the uniform share at any length; `percent` is 100 times the share. `mean`, as printed, never
    exceeds 1.
    """

    eps: float = 3.0
    scale: str = "sum"

    def __post_init__(self) -> None:
        _positive(self, "eps", zero=True)
        if self.scale not in SCALES:
            raise SpecError(f"scale={self.scale!r} is unknown: expected {', '.join(SCALES)}")
        if self.scale == "mean" and self.eps >= 1:
            raise SpecError(
                f"rulli(eps={self.eps:g}, scale='mean') can never fire, a mean share is at most 1: "
                "use scale='sum' or 'percent', or an eps below 1"
            )

    def in_words(self) -> str:
        if self.scale == "sum":
            return f"takes about {self.eps + 1:g} times an even share or more"
        more = f"{self.eps:g} %" if self.scale == "percent" else f"{100 * self.eps:g} %"
        return f"takes {more} of the attention more than the other keys do on average"

    def labels(self, shares: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
        return _above(shares, self.threshold(shares))

    def threshold(self, shares: np.ndarray) -> np.ndarray:
        """[..., 1] the share above which a key is a sink."""
        count, total = _count(shares), np.nansum(shares, axis=-1, keepdims=True)
        unit = {"sum": 1 / np.maximum(count, 1), "percent": 0.01, "mean": 1.0}[self.scale]
        more = np.maximum(self.eps * unit * (count - 1), RESOLUTION * total)
        return (total + more) / np.maximum(count, 1)


@dataclass(frozen=True)
class zscore(Rule):  # noqa: N801
    """More than z standard deviations above the mean over keys (Attention Floating's figures).

    All attention on one of T keys is z = sqrt(T - 1), and k equal sinks are sqrt((T - k) / k): ten
    keys or fewer never have a sink at z = 3, and T/10 or more equal sinks hide one another.
    """

    z: float = 3.0

    def __post_init__(self) -> None:
        _positive(self, "z")

    def in_words(self) -> str:
        return f"takes more than the mean over keys plus {self.z:g} standard deviations"

    def labels(self, shares: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
        count = np.maximum(_count(shares), 1)
        mean = np.nansum(shares, axis=-1, keepdims=True) / count
        spread = np.sqrt(np.nansum((shares - mean) ** 2, axis=-1, keepdims=True) / count)
        return _above(shares, mean + self.z * np.maximum(spread, RESOLUTION * mean))


@dataclass(frozen=True)
class robust_zscore(Rule):  # noqa: N801
    """More than z robust deviations (1.4826 MAD) above the median: sinks cannot hide one another.

    Attention is skewed, so a cautious z is larger than for `zscore`.
    """

    z: float = 10.0

    def __post_init__(self) -> None:
        _positive(self, "z")

    def in_words(self) -> str:
        return f"takes more than the median over keys plus {self.z:g} robust deviations"

    def labels(self, shares: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
        middle = _median(shares)
        spread = 1.4826 * _median(np.abs(shares - middle))
        mean = np.nansum(shares, axis=-1, keepdims=True) / np.maximum(_count(shares), 1)
        return _above(shares, middle + self.z * np.maximum(spread, RESOLUTION * mean))


@dataclass(frozen=True)
class gu(Rule):  # noqa: N801
    """More than eps of the attention of the queries that may look at the key (Gu et al. 2024)."""

    eps: float = 0.3

    def __post_init__(self) -> None:
        _positive(self, "eps")
        if self.eps >= 1:
            raise SpecError(f"gu(eps={self.eps:g}) can never fire: a share is at most 1")

    def in_words(self) -> str:
        return f"takes more than {100 * self.eps:g} % of the attention that could go to it"

    def labels(self, shares: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
        if seen is None:
            return _above(shares, np.float32(self.eps))
        return _above(shares, np.where(seen > 0, self.eps * seen, np.inf))


@dataclass(frozen=True)
class ratio(Rule):  # noqa: N801
    """More than `times` the mean share (a column sum above tau times the mean)."""

    times: float = 10.0

    def __post_init__(self) -> None:
        _positive(self, "times")

    def in_words(self) -> str:
        return f"takes more than {self.times:g} times the mean share"

    def labels(self, shares: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
        mean = np.nansum(shares, axis=-1, keepdims=True) / np.maximum(_count(shares), 1)
        return _above(shares, self.times * mean)


@dataclass(frozen=True)
class topk(Rule):  # noqa: N801
    """The k keys that receive most, whatever that is; of equals the first."""

    k: int = 1

    def __post_init__(self) -> None:
        k = _number(self, "k")
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise SpecError(f"k={self.k!r} is not a whole number of at least 1")

    def in_words(self) -> str:
        return f"is one of the {self.k} that take most" if self.k > 1 else "takes most"

    def labels(self, shares: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
        # NaN sorts below every share.
        filled = np.where(np.isnan(shares), shares.dtype.type(-1), shares)
        if self.k >= filled.shape[-1]:
            return filled > 0
        last = np.partition(filled, -self.k, axis=-1)[..., -self.k, None]
        chosen, equal = filled > last, filled == last
        room = self.k - chosen.sum(axis=-1, keepdims=True)
        return (chosen | (equal & (np.cumsum(equal, axis=-1) <= room))) & (filled > 0)


@dataclass(frozen=True)
class mass(Rule):  # noqa: N801
    """The fewest keys that together hold `share` of the attention."""

    share: float = 0.5

    def __post_init__(self) -> None:
        _positive(self, "share")
        if self.share > 1:
            raise SpecError(f"mass(share={self.share:g}) is above 1: shares sum to one")

    def in_words(self) -> str:
        return f"is among the fewest that take {100 * self.share:g} % together"

    def labels(self, shares: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
        filled = np.nan_to_num(shares, nan=0.0)
        order = np.argsort(-filled, axis=-1, kind="stable")
        total = np.cumsum(np.take_along_axis(filled, order, axis=-1), axis=-1, dtype=np.float64)
        before = np.concatenate([np.zeros_like(total[..., :1]), total[..., :-1]], axis=-1)
        needed = before < self.share * total[..., -1:] - 1e-12
        chosen = np.zeros(shares.shape, dtype=bool)
        np.put_along_axis(chosen, order, needed, axis=-1)
        return chosen & (filled > 0)


RULES: dict[str, type[Rule]] = {
    kind.__name__: kind for kind in (rulli, zscore, robust_zscore, gu, ratio, topk, mass)
}


def parse(text: str) -> Rule:
    """The rule spelled `rulli`, `rulli:3`, `rulli:3:percent`, `topk:5`.

    >>> parse("rulli:2:percent")
    rulli(eps=2.0, scale='percent')
    """
    name, *words = text.split(":")
    if name not in RULES:
        raise SpecError(f"no rule is called {name!r}: expected one of {', '.join(RULES)}")
    fields = dataclasses.fields(RULES[name])
    if len(words) > len(fields):
        takes = ":".join([name, *(field.name for field in fields)])
        raise SpecError(f"{text!r} has too many parts: it is spelled {takes}")
    given = {
        field.name: _parse_word(field, word) for field, word in zip(fields, words, strict=False)
    }
    return RULES[name](**given)


def from_dict(fields: Mapping[str, Any]) -> Rule:
    """The inverse of `as_dict`."""
    rest = dict(fields)
    name = rest.pop("name", None)
    if name not in RULES:
        raise SpecError(f"no rule is called {name!r}: expected one of {', '.join(RULES)}")
    takes = [field.name for field in dataclasses.fields(RULES[name])]
    if unknown := [option for option in rest if option not in takes]:
        raise SpecError(f"{name} has no {unknown[0]}: it takes {', '.join(takes)}")
    return RULES[name](**rest)


def check_rule(rule: Any) -> Rule:
    """The rule that was given, or a refusal that says how to spell one."""
    if not isinstance(rule, Rule):
        raise SpecError(
            f"{rule!r:.60} is not a rule: aw.rules.rulli(eps=3) is one, "
            "and aw.rules.parse('rulli:3') reads a word"
        )
    return rule


def _parse_word(field: dataclasses.Field, word: str) -> Any:
    kind = {"float": float, "int": int, "str": str}[str(field.type)]
    try:
        return kind(word)
    except ValueError:
        raise SpecError(f"{field.name}={word!r} is not a number") from None


def _plain(value: Any) -> str:
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def _positive(rule: Rule, name: str, *, zero: bool = False) -> None:
    value = _number(rule, name)
    good = isinstance(value, int | float) and np.isfinite(value) and (value > 0 or zero)
    if not good or isinstance(value, bool) or value < 0:
        least = "of at least 0" if zero else "above 0"
        raise SpecError(f"{name}={value!r} is not a number {least}")


def _number(rule: Rule, name: str) -> Any:
    """A field; a numpy number becomes a plain one, which a manifest can hold."""
    value = getattr(rule, name)
    if isinstance(value, np.integer | np.floating):
        value = value.item()
        object.__setattr__(rule, name, value)
    return value


def _count(shares: np.ndarray) -> np.ndarray:
    """[..., 1] how many keys exist."""
    return np.sum(~np.isnan(shares), axis=-1, keepdims=True)


def _above(shares: np.ndarray, threshold: np.ndarray | np.floating) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # NaN, a key that does not exist, is above nothing
        return shares > threshold * TIE


def _median(values: np.ndarray) -> np.ndarray:
    """[..., 1] over the keys that exist; NaN where there is none."""
    count = np.sum(~np.isnan(values), axis=-1, keepdims=True)
    ordered = np.sort(values, axis=-1)  # NaN last
    low = np.take_along_axis(ordered, np.maximum((count - 1) // 2, 0), axis=-1)
    high = np.take_along_axis(ordered, np.minimum(count // 2, values.shape[-1] - 1), axis=-1)
    return (low + high) / 2
