"""A trace that lacks some of what every trace has: told again from the rest, or absent.

The canvas is the truth: roles and commit times follow from it, and from one another. What does not
follow is absent, -1 or NaN, and `INSTEAD` says so in the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from anchorwatch.errors import TraceError
from anchorwatch.trace.trace import ABSENT, FRESH, MASKED, MISSING, PROMPT, WRITTEN
from anchorwatch.trace.validate import wrong_answer

INSTEAD = {
    "canvas": "not shown: no position has its token",
    "role": "told again from the canvas, special tokens as prompt",
    "committed_at": "told again from the frames",
    "region": "not shown: keys are told apart by their roles",
}
"""Of fields that a page needs, what it shows where they are damaged."""


def repair_dataset(dataset: xr.Dataset, manifest: Mapping[str, Any]) -> xr.Dataset:
    """The dataset with all that a page needs of every trace; refuses where nothing can be shown."""
    held = {name: dataset[name].values for name in ("canvas", "role") if name in dataset}
    if not held:
        raise TraceError("without its canvas and its roles there is nothing to show")
    shape = next(iter(held.values())).shape
    answer = manifest["answer_positions"]
    if wrong := wrong_answer(answer, shape[1]):
        raise TraceError(f"it cannot be read as a trace: {wrong}")
    if "committed_at" in dataset:
        when = dataset["committed_at"].values
    else:
        when = _fresh(held["role"]) if "role" in held else _commits(held["canvas"], answer)
    role = held["role"] if "role" in held else _roles(held["canvas"], when, answer)
    frame, place = ("frame", "position"), ("position",)
    needed: dict[str, tuple[tuple[str, ...], np.ndarray]] = {
        "canvas": (frame, np.full(shape, MISSING, np.int32)),
        "role": (frame, role.astype(np.int8)),
        "committed_at": (place, when.astype(np.int32)),
        "logprob": (place, np.full(shape[1], np.nan, np.float32)),
        "region": (place, np.full(shape[1], MISSING, np.int16)),
    }
    return dataset.assign({name: made for name, made in needed.items() if name not in dataset})


def _fresh(role: np.ndarray) -> np.ndarray:
    """[position] the step before the frame in which it is fresh; -1 where it never is."""
    fresh = role == FRESH
    return np.where(fresh.any(axis=0), fresh.argmax(axis=0) - 1, MISSING)


def _commits(canvas: np.ndarray, answer: list[int]) -> np.ndarray:
    """[position] the step after which a position of the answer first held something else."""
    other = canvas[:, answer] != canvas[0, answer]
    when = np.full(canvas.shape[1], MISSING)
    when[answer] = np.where(other.any(axis=0), other.argmax(axis=0) - 1, MISSING)
    return when


def _roles(canvas: np.ndarray, when: np.ndarray, answer: list[int]) -> np.ndarray:
    """[frame, position] as a run writes them, but for special tokens, which only a model knows."""
    role = np.full(canvas.shape, PROMPT)
    since = np.arange(len(canvas))[:, None] - when[answer]  # 1 in the frame after the commit
    waiting = np.where(canvas[:, answer] == MISSING, ABSENT, MASKED)
    done = (when[answer] != MISSING) & (since >= 1)
    role[:, answer] = np.where(done, np.where(since == 1, FRESH, WRITTEN), waiting)
    return role
