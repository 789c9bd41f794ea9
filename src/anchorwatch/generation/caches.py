"""Approximate caches of denoising: which rows a pass computes, the others being kept.

In two-way attention every key and value depends on every token, so that keeping some of them from
an earlier pass is an approximation. A cache is one frozen dataclass under `@register_cache`: its
fields are its settings, `rows(now)` says which positions the next pass computes. A decoding takes
one as `cache=`: `LowConfidence(64, block=16, cache=aw.caches.dual())`; on the command line it is
`low-confidence:block=16,cache=dual`, with settings in their order: `cache=interval:32:4`.

What is known of each, with the public code it follows, stands in its docstring; docs/caches.md
measures what each saves and what it changes. Torch is not imported here: traces name their cache,
and a laptop that only reads them knows it.
Shapes: T positions of the canvas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, get_args

import numpy as np

from anchorwatch.errors import SpecError


@dataclass(frozen=True)
class CacheContext:
    """What a cache knows before a pass."""

    step: int
    """Steps of the run so far."""
    block_step: int
    """Passes since the open block was opened."""
    block: np.ndarray
    """[T] bool: positions of the open block."""
    masked: np.ndarray
    """[T] bool."""
    fresh: np.ndarray
    """[T] bool: positions that the step before committed."""
    answer: np.ndarray
    """[T] bool: positions that the run writes."""
    received: np.ndarray | None = None
    """[T] attention received in the last pass over all rows, mean over layers, heads and queries;
    None where the cache does not read it."""
    drift: float = 0.0
    """1 - the smallest cosine, over layers, of the attention to the most attended key in the last
    two passes; 0 where the cache does not read it."""

    @property
    def all_rows(self) -> np.ndarray:
        return np.ones_like(self.block)


@dataclass(frozen=True)
class Cache:
    """What every cache has in common."""

    word: ClassVar[str] = ""
    """Its name on the command line."""
    reads_received: ClassVar[bool] = False
    """Whether it needs the attention that positions receive in a pass over all rows."""
    reads_drift: ClassVar[bool] = False
    """Whether it needs how the attention to the most attended key changes."""
    evicts: ClassVar[bool] = False
    """Whether it hides keys from the rows of later passes."""

    def rows(self, now: CacheContext) -> np.ndarray:
        """[T] bool: positions whose rows the next pass computes; those it reads come on top."""
        raise SpecError(f"no rule is known for {type(self).__name__}")

    def as_dict(self) -> dict[str, Any]:
        """Name and settings, for the manifest."""
        return {"name": self.word} | dataclasses.asdict(self)

    def as_word(self) -> str:
        """As it is written on the command line.

        >>> interval(32, 4).as_word(), dual().as_word()
        ('interval:32:4', 'dual')
        """
        return ":".join([self.word, *(str(value) for value in dataclasses.asdict(self).values())])


CACHES: dict[str, type[Cache]] = {}
"""Every cache by its word."""

_Kind = TypeVar("_Kind", bound=type[Cache])


def register_cache(kind: _Kind) -> _Kind:
    """Make a cache known to Python, manifests and the command line, by its class's name."""
    word = kind.__name__.replace("_", "-")
    if word in CACHES:
        raise SpecError(f"there is a cache {word} already: name it otherwise")
    kind.word = word
    CACHES[word] = kind
    return kind


@register_cache
@dataclass(frozen=True)
class prefix(Cache):  # noqa: N801
    """Fast-dLLM's prefix cache: a block's first pass has all rows, the others those from it on.

    What stands before the open block keeps the keys and values of that first pass.
    """

    def rows(self, now: CacheContext) -> np.ndarray:
        if now.block_step == 0:
            return now.all_rows
        return np.arange(len(now.block)) >= np.flatnonzero(now.block)[0]


@register_cache
@dataclass(frozen=True)
class dual(Cache):  # noqa: N801
    """Fast-dLLM's dual cache: a block's first pass is over all rows, the others over the block.

    What stands before and after the open block keeps the keys and values of that first pass.
    """

    def rows(self, now: CacheContext) -> np.ndarray:
        return now.all_rows if now.block_step == 0 else now.block


@register_cache
@dataclass(frozen=True)
class delayed(Cache):  # noqa: N801
    """dKV-Cache-Decode: a token's key and value are kept from one step after its commit on.

    Masked positions and those that the last step committed are computed; all rows in the first two
    passes of a block, and in every `refresh`-th.
    """

    refresh: int = 4
    """All rows are computed at every so many passes of a block."""

    def __post_init__(self) -> None:
        _check_count("refresh", self.refresh)

    def rows(self, now: CacheContext) -> np.ndarray:
        if now.block_step < 2 or now.block_step % self.refresh == 0:
            return now.all_rows
        return now.masked | now.fresh


@register_cache
@dataclass(frozen=True)
class interval(Cache):  # noqa: N801
    """dLLM-Cache's two clocks: prompt and answer are computed again at every so many steps.

    Between them the open block alone is computed. dLLM-Cache also computes the rows whose values
    changed most, which is left out here.
    """

    prompt: int = 32
    """Rows of what was given are computed at every so many steps."""
    answer: int = 4
    """Rows of the answer outside of the open block are computed at every so many steps."""

    def __post_init__(self) -> None:
        _check_count("prompt", self.prompt)
        _check_count("answer", self.answer)

    def rows(self, now: CacheContext) -> np.ndarray:
        rows = now.block.copy()
        if now.step % self.answer == 0:
            rows |= now.answer
        if now.step % self.prompt == 0:
            rows |= ~now.answer
        return rows


@register_cache
@dataclass(frozen=True)
class elastic(Cache):  # noqa: N801
    """Elastic-Cache's test: all rows are computed again when attention to its main key has drifted.

    Between refreshes the open block and what the last step committed are computed. In each layer
    the most attended key of one pass is followed into the next: where the cosine between the two
    columns of attention falls below `threshold` in some layer, the next pass is over all rows.
    Elastic-Cache refreshes the deeper layers alone, within the same pass; here it is all layers.
    """

    threshold: float = 0.9
    """Cosine under which attention counts as drifted."""

    reads_drift: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.threshold, int | float) or not 0 < self.threshold <= 1:
            raise SpecError(f"threshold={self.threshold!r} is not a number above 0 and at most 1")

    def rows(self, now: CacheContext) -> np.ndarray:
        if now.step == 0 or now.drift > 1 - self.threshold:
            return now.all_rows
        return now.block | now.fresh


@register_cache
@dataclass(frozen=True)
class evicting(Cache):  # noqa: N801
    """Sparse-dLLM: the dual cache, with a part of the keys outside of the block hidden.

    A block's first two passes are over all rows. In the second each layer scores its keys outside
    of the block by the mean product with the block's queries over all heads, takes the largest
    score among three neighbours, and hides all but the best `share` from later passes. Hidden keys
    stay in memory here: what is measured is the change, not the memory.
    """

    share: float = 0.5
    """Share of the keys outside of the block that stay visible."""

    evicts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.share, int | float) or not 0 < self.share <= 1:
            raise SpecError(f"share={self.share!r} is not a number above 0 and at most 1")

    def rows(self, now: CacheContext) -> np.ndarray:
        return now.all_rows if now.block_step < 2 else now.block


SinkRows = Literal["refresh", "keep"]


@register_cache
@dataclass(frozen=True)
class keep_sinks(Cache):  # noqa: N801
    """The dual cache with sinks apart: always computed, or never again after the first pass.

    Sinks are the positions that receive most attention in the last pass over all rows. If they
    carry what a cache spoils, `refresh` repairs it at the cost of a few rows; if they never change,
    `keep` costs nothing.
    """

    sinks: int = 4
    """How many positions count as sinks."""
    mode: SinkRows = "refresh"
    """refresh: computed in every pass; keep: not even when a block opens."""

    reads_received: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_count("sinks", self.sinks)
        if self.mode not in get_args(SinkRows):
            known = ", ".join(get_args(SinkRows))
            raise SpecError(f"mode={self.mode!r} is unknown: expected one of {known}")

    def rows(self, now: CacheContext) -> np.ndarray:
        if now.received is None:
            return now.all_rows
        sinks = np.zeros_like(now.block)
        sinks[np.argsort(-now.received, kind="stable")[: self.sinks]] = True
        if self.mode == "refresh":
            return now.all_rows if now.block_step == 0 else now.block | sinks
        return ~sinks if now.block_step == 0 else now.block & ~sinks


def from_dict(fields: Mapping[str, Any]) -> Cache:
    """The cache that a manifest describes; the inverse of `as_dict`."""
    rest = dict(fields)
    kind = _find(rest.pop("name", None))
    known = {field.name for field in dataclasses.fields(kind)}
    if unknown := sorted(set(rest) - known):
        takes = ", ".join(sorted(known)) or "no settings"
        raise SpecError(f"{kind.word} has no {', '.join(unknown)}: it takes {takes}")
    return kind(**rest)


_READ: dict[type, Any] = {int: int, float: float, str: str}


def parse_cache(word: str) -> Cache:
    """The cache that a word spells, settings in their order.

    >>> parse_cache("keep-sinks:2:keep")
    keep_sinks(sinks=2, mode='keep')
    """
    name, *values = word.split(":")
    kind = _find(name.strip())
    fields = dataclasses.fields(kind)
    if len(values) > len(fields):
        takes = ", ".join(field.name for field in fields) or "no settings"
        raise SpecError(f"{word} has too many values: {kind.word} takes {takes}")
    given = {}
    for field, value in zip(fields, values, strict=False):
        try:
            given[field.name] = _READ[type(field.default)](value)
        except ValueError:
            example = f"{kind.word}:{field.default}"
            raise SpecError(f"{field.name}={value!r} cannot be read: say {example}") from None
    return kind(**given)


def as_cache(value: Any) -> Cache | None:
    """A cache, or one as a manifest or a word says it; None is no cache."""
    if value is None or isinstance(value, Cache):
        return value
    if isinstance(value, Mapping):
        return from_dict(value)
    if isinstance(value, str):
        return parse_cache(value)
    raise SpecError(f"cache={value!r} is no cache: say aw.caches.dual() for example, or None")


def approximate_cache(decoding: Any) -> Cache | None:
    """The approximate cache of a decoding; None where it has none, or an exact one."""
    cache = getattr(decoding, "cache", None)
    return cache if isinstance(cache, Cache) else None


def plan_rows(decoding: Any, positions: int, answer: np.ndarray) -> int:
    """Query rows of all passes, where each block takes as many passes as it may.

    Commits are as even as can be; what a cache decides by attention (a drift, which rows are sinks)
    is counted as the most that it may be.
    """
    cache = approximate_cache(decoding)
    assert cache is not None
    if cache.reads_drift:
        return int(decoding.num_passes) * positions
    # 1. Blocks of the answer, and the passes that each one gets.
    blocks = np.array_split(answer, max(decoding.num_blocks, 1))
    waiting, ours = np.zeros((2, positions), dtype=bool)
    waiting[answer] = ours[answer] = True
    rows, step = 0, 0
    passes = int(decoding.num_passes) // len(blocks)
    # 2. A run that commits from the left, evenly, and whose sinks are outside of the open block.
    fresh = np.zeros(positions, dtype=bool)
    for block in blocks:
        inside = np.zeros(positions, dtype=bool)
        inside[block] = True
        for index, part in enumerate(np.array_split(block, passes)):
            received = None if step == 0 else (~inside).astype(float)
            now = CacheContext(step, index, inside, waiting.copy(), fresh, ours, received)
            rows += int((cache.rows(now) | (inside & waiting)).sum())
            fresh = np.zeros(positions, dtype=bool)
            fresh[part] = True
            waiting[part] = False
            step += 1
    return rows


def _find(name: Any) -> type[Cache]:
    kind = CACHES.get(str(name).replace("_", "-"))
    if kind is None:
        raise SpecError(f"no cache is called {name!r}: expected one of {', '.join(CACHES)}")
    return kind


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(f"{name}={value!r} is not a whole number of at least 1")
