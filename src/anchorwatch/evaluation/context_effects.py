"""What contexts were asked for: the effects that a set of contexts can show. No torch here.

An effect is a number made of the mean scores in some contexts: a gain, a slope, an index. Found by
the names of the contexts alone, it can be taken of any model, and resampled by item.

>>> [effect.name for effect in effects_of(["closed", "gold", "gold+1", "gold+4"])]
['gain of gold', 'gain of gold+1', 'gain of gold+4', 'slope per doubling of random']
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from anchorwatch.evaluation.contexts import Context, context

CLOSED = "closed"


@dataclass(frozen=True)
class Effect:
    """One number of some contexts."""

    name: str
    test: str
    """The stress test it belongs to: gain, position, noise, irrelevant, layout, masks, wording."""
    contexts: tuple[str, ...]
    of: Callable[[np.ndarray], np.ndarray]
    """From mean scores [..., context] to the number [...]."""
    linear: bool = True
    """Whether it is a sum, which is 0 where contexts do not matter; else its null is permuted."""


def effects_of(names: Sequence[str]) -> list[Effect]:
    """Every effect that these contexts can show, in the order of the tests."""
    known = [context(name) for name in dict.fromkeys(names)]
    return [
        *_gains(known),
        *_positions(known),
        *_noise(known),
        *_irrelevant(known),
        *_layouts(known),
        *_changes(known),
    ]


def slope(x: Sequence[float]) -> Callable[[np.ndarray], np.ndarray]:
    """The least-squares slope over x, as a function of values [..., x]."""
    centred = np.asarray(x, dtype=float) - np.mean(x)
    weights = centred / np.sum(centred**2)
    return lambda means: means @ weights


def u_index(means: np.ndarray) -> np.ndarray:
    """Mean of both ends minus the worst in between: above 0 where the middle is lost."""
    return (means[..., 0] + means[..., -1]) / 2 - means[..., 1:-1].min(axis=-1)


def spread(means: np.ndarray) -> np.ndarray:
    """The best place minus the worst."""
    return means.max(axis=-1) - means.min(axis=-1)


def minus(means: np.ndarray) -> np.ndarray:
    """The second context minus the first."""
    return means[..., 1] - means[..., 0]


def room(means: np.ndarray) -> np.ndarray:
    """The gain as a share of what was left to gain."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(means[..., 0] < 1, minus(means) / (1 - means[..., 0]), np.nan)


def plain_of(one: Context) -> Context:
    """The context without what was done to it."""
    return replace(one, shuffle=0, typos=0, paraphrase=False, masks=0)


def _plain(known: Sequence[Context]) -> list[Context]:
    return [one for one in known if one == plain_of(one)]


def _gains(known: Sequence[Context]) -> Iterator[Effect]:
    if CLOSED in [one.name for one in known]:
        for one in _plain(known):
            if one.name != CLOSED:
                yield Effect(f"gain of {one.name}", "gain", (CLOSED, one.name), minus)


def _positions(known: Sequence[Context]) -> Iterator[Effect]:
    placed = [one for one in _plain(known) if one.place is not None]
    for (total, kind), group in _group_contexts(placed, lambda one: (one.total, one.kind)):
        alike = sorted(group, key=lambda one: one.place or 0)
        if len(alike) < 2:
            continue
        names, places = tuple(one.name for one in alike), [one.place or 0 for one in alike]
        said = f"of {total}" + ("" if kind == "random" else f" {kind}")
        where = [(place - 1) / max(total - 1, 1) for place in places]
        yield Effect(f"locality slope {said}", "position", names, slope(where))
        yield Effect(f"range {said}", "position", names, spread, linear=False)
        if len(alike) > 2 and places[0] == 1 and places[-1] == total:
            yield Effect(f"U-index {said}", "position", names, u_index, linear=False)


def _noise(known: Sequence[Context]) -> Iterator[Effect]:
    gold = [one for one in _plain(known) if one.base == "gold" and one.place is None]
    for kind in ("random", "hard", "counterfactual"):
        alike = [one for one in gold if not one.others or one.kind == kind]
        alike.sort(key=lambda one: one.others)
        if sum(one.others > 0 for one in alike) and len(alike) > 1:
            doublings = [float(np.log2(1 + one.others)) for one in alike]
            names = tuple(one.name for one in alike)
            yield Effect(f"slope per doubling of {kind}", "noise", names, slope(doublings))


def _irrelevant(known: Sequence[Context]) -> Iterator[Effect]:
    shares = [one for one in _plain(known) if one.base == "irrelevant"]
    for total, group in _group_contexts(shares, lambda one: one.total):
        alike = sorted(group, key=lambda one: one.others)
        if len(alike) > 1:
            names = tuple(one.name for one in alike)
            x = [one.others / total for one in alike]
            yield Effect(f"slope of the irrelevant share of {total}", "irrelevant", names, slope(x))


_PAIRS = (("far", "adjacent"), ("reversed", "adjacent"), ("far-reversed", "far"))


def _layouts(known: Sequence[Context]) -> Iterator[Effect]:
    """Close minus far, and told in order minus told in reverse."""
    plain = _plain(known)
    for one in plain:
        for base, other in _PAIRS:
            beside = replace(one, base=other)
            if one.base == base and beside in plain:
                names = (one.name, beside.name)
                yield Effect(f"{beside.name} minus {one.name}", "layout", names, minus)


def _changes(known: Sequence[Context]) -> Iterator[Effect]:
    """What was done to a context, minus the same without it; the kind of distractors too."""
    for one in known:
        bare = plain_of(one)
        if bare != one and bare in known:
            test = "masks" if one.masks else "wording"
            yield Effect(f"{one.name} minus {bare.name}", test, (bare.name, one.name), minus)
        random = replace(bare, kind="random")
        if one == bare and random != one and random in known:
            names = (random.name, one.name)
            yield Effect(f"{one.name} minus {random.name}", "noise", names, minus)


def _group_contexts(
    held: Sequence[Context], by: Callable[[Context], Any]
) -> list[tuple[Any, list[Context]]]:
    return [(key, list(group)) for key, group in groupby(sorted(held, key=by), key=by)]
