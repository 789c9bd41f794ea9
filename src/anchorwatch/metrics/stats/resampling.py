"""Drawing clusters again: how often each is drawn, and which quantiles make an interval."""

from __future__ import annotations

import numpy as np
import scipy  # its submodules load when they are first used

from anchorwatch.errors import SpecError

NEEDED = 5
"""Clusters below which there is no interval."""
WORDS = np.array([f"{n} prompt{'s' * (n != 1)}, {NEEDED} needed" for n in range(NEEDED)] + [""])


def tail_share(level: float, n: np.ndarray) -> np.ndarray:
    """The share of draws that an interval from `n` clusters leaves out on either side."""
    reach = scipy.special.stdtrit(n - 1, (1 + level) / 2) * np.sqrt(n / (n - 1))
    return scipy.special.ndtr(-reach)


def quantiles(values: np.ndarray, levels: tuple[float | np.ndarray, ...]) -> np.ndarray:
    """[level, ...] along the last axis, linear, NaN left out; sorts `values` in place."""
    values.sort(axis=-1)  # NaN last
    last = np.maximum(np.sum(~np.isnan(values), axis=-1, keepdims=True) - 1, 0)
    found = []
    for level in levels:
        at = level * last
        left = np.take_along_axis(values, np.floor(at).astype(int), axis=-1)
        right = np.take_along_axis(values, np.ceil(at).astype(int), axis=-1)
        with np.errstate(invalid="ignore"):  # inf - inf where both are infinite
            found.append(np.where(left == right, left, left + (right - left) * (at % 1))[..., 0])
    return np.array(found)


def draw_clusters(clusters: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """[draw, cluster] how often each cluster was drawn."""
    faces = max(clusters, 1)  # a die needs one
    thrown = rng.multinomial(clusters, np.full(faces, 1 / faces), size=draws)
    return thrown[:, :clusters].astype(float)


def check_options(draws: int, seed: int, level: float = 0.5) -> None:
    """What every resampling takes."""
    for name, value, least in (("draws", draws, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise SpecError(f"{name}={value!r} is not a whole number of at least {least}")
    check_inside("level", level, 1)


def check_inside(name: str, value: float, top: float) -> None:
    """A level that may be neither nothing nor all."""
    if not 0 < value < top:
        raise SpecError(f"{name}={value!r} is not above 0 and below {top:g}")
