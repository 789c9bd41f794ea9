"""Traces opened for viewing: of a damaged or foreign one, what is damaged and the rest.

`aw.read` refuses a trace with a single wrong byte. Here a field that is not as it was written is
named, left out and never read. Without its record or its metadata there is nothing to trust, and
without its canvas and its roles nothing to show.

Of what every trace has and this one lacks, some is worked out from the rest: roles and commit times
follow from the canvas, and from one another. What does not follow is absent, -1 or NaN, and
`INSTEAD` says so in the page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from anchorwatch.errors import TraceError
from anchorwatch.trace import atomic_io, store
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.trace import ABSENT, FRESH, MASKED, MISSING, PROMPT, ROLES, WRITTEN, Trace
from anchorwatch.trace.validate import ARRAYS, wrong_answer, wrong_array, wrong_manifest

MOST_SAID = 24
"""Sentences of damage that are kept; a folder may hold thousands of files."""
MOST_FIELDS = 256
"""Fields that are tried one by one where they cannot be read together."""
_LONGEST = 400


@dataclass(frozen=True, eq=False)
class OpenedTrace:
    """A trace to look at, or why there is none."""

    name: str
    """What the page calls it: the folder's name, never its path."""
    trace: Trace | None
    damage: tuple[str, ...] = ()
    """What is not as it was written, a sentence each."""
    lost: tuple[str, ...] = ()
    """Fields that are left out because of it; those of `validate.ARRAYS` are mended."""
    path: Path | None = None
    """Where it was read from."""

    def without_folders(self, text: str) -> str:
        """A sentence without the folders above the trace: a page may be sent to others."""
        return text if self.path is None else text.replace(f"{self.path.parent}/", "")


def open_for_viewing(path: str | Path) -> OpenedTrace:
    """Open what can be opened; what cannot be is said, never raised."""
    target = atomic_io.expand_path(path)
    name = one_line(target.name)[:80] or "trace"
    damage = atomic_io.find_damage(target)
    if not damage:
        return _open_readable(target, name)
    try:
        files = atomic_io.changed_files(target)
    except atomic_io.UNREADABLE:  # no record, or none to trust
        return OpenedTrace(name, None, _describe_damage(damage, target))
    lost = tuple(sorted({file.partition("/")[0] for file in files if "/" in file}))
    if "zarr.json" in files:
        return OpenedTrace(name, None, _describe_damage(damage, target), lost)
    return _open_readable(target, name, damage, lost)


def from_memory(trace: Trace) -> OpenedTrace:
    """A trace that is in memory, or was read whole."""
    return OpenedTrace(f"{trace.manifest['model']['source']} {trace.digest()[:8]}", trace)


def _open_readable(
    path: Path, name: str, damage: Collection[str] = (), lost: Collection[str] = ()
) -> OpenedTrace:
    try:
        dataset, unread = _together(path, lost)
        manifest = dataset.attrs.pop("manifest")
        if wrong := wrong_manifest(manifest):
            raise TraceError(f"it cannot be read as a trace: {wrong}")
        unfit = _unfit(dataset, {*lost, *unread})
        sentences = _describe_damage([*damage, *unread.values(), *unfit.values()], path)
        whole = repair_dataset(dataset.drop_vars([*unfit], errors="ignore"), manifest)
        gone = tuple(sorted({*lost, *unread, *unfit}))
        return OpenedTrace(name, Trace(whole, manifest), sentences, gone, path)
    except (TraceError, *atomic_io.UNREADABLE) as error:
        return OpenedTrace(name, None, _describe_damage([*damage, str(error)], path), tuple(lost))


def _together(path: Path, lost: Collection[str]) -> tuple[xr.Dataset, dict[str, str]]:
    """What can be read, and of the fields that cannot be, why."""
    try:
        return store.open_store(path, check=False, without=lost), {}
    except TraceError:
        wrong = _one_by_one(path, lost)
        return store.open_store(path, check=False, without=[*lost, *wrong]), wrong


def _one_by_one(path: Path, lost: Collection[str]) -> dict[str, str]:
    """Fields that cannot be read alone, or whose axes are not as long as those of others."""
    known = atomic_io.read_json(path / "zarr.json")["consolidated_metadata"]["metadata"]
    if len(known) > MOST_FIELDS:
        raise TraceError(f"it declares {len(known)} fields, more than the {MOST_FIELDS} one tries")
    first = [name for name in ("canvas", "role") if name in known]
    sizes: dict[str, int] = {}
    wrong: dict[str, str] = {}
    for name in dict.fromkeys([*first, *known]):
        if name in lost:
            continue
        try:
            alone = store.open_store(path, check=False, without=known.keys() - {name})
        except TraceError as error:
            wrong[name] = f"{name} cannot be read: {error}"
            continue
        own = {str(dim): size for dim, size in alone.sizes.items()}
        if odd := [dim for dim in own if sizes.get(dim, own[dim]) != own[dim]]:
            wrong[name] = f"{name} has {own[odd[0]]} along {odd[0]}, others {sizes[odd[0]]}"
        else:
            sizes |= own
    return wrong


def _unfit(dataset: xr.Dataset, lost: Collection[str]) -> dict[str, str]:
    """Other fields that are not as we write them, each with a sentence."""
    unfit = {}
    for name in (field for field in ARRAYS if field not in lost):
        if name not in dataset:
            unfit[name] = f"{name} is not in it"
        elif reason := wrong_array(name, dataset[name], len(ROLES)):
            unfit[name] = reason
    frames, steps = dataset.sizes.get("frame", 0), dataset.sizes.get("step")
    if steps is not None and steps != frames - 1:
        by_step = [str(name) for name in dataset.data_vars if "step" in dataset[name].dims]
        unfit |= {name: f"{name} has {steps} steps, {frames} frames do not fit" for name in by_step}
    return unfit


def _describe_damage(damage: Iterable[str], path: Path) -> tuple[str, ...]:
    """Sentences without the folders above the trace: a page may be sent to others."""
    sentences = [one_line(text.replace(f"{path.parent}/", ""))[:_LONGEST] for text in damage]
    more = len(sentences) - MOST_SAID
    rest = [f"and {more} more: `anchorwatch verify` names all"] if more > 0 else []
    return (*sentences[:MOST_SAID], *rest)


INSTEAD = {
    "canvas": "not shown: no position has its token",
    "role": "told again from the canvas, special tokens as prompt",
    "committed_at": "told again from the frames",
    "region": "not shown: keys are told apart by their roles",
}
"""Of fields that a page needs, what it shows where they are damaged."""


def repair_dataset(dataset: xr.Dataset, manifest: Mapping[str, Any]) -> xr.Dataset:
    """The dataset with all that a page needs of every trace; refuses where nothing can be shown."""
    arrays = {name: dataset[name].values for name in ("canvas", "role") if name in dataset}
    if not arrays:
        raise TraceError("without its canvas and its roles there is nothing to show")
    shape = next(iter(arrays.values())).shape
    answer = manifest["answer_positions"]
    if wrong := wrong_answer(answer, shape[1]):
        raise TraceError(f"it cannot be read as a trace: {wrong}")
    if "committed_at" in dataset:
        when = dataset["committed_at"].values
    else:
        when = _fresh(arrays["role"]) if "role" in arrays else _commits(arrays["canvas"], answer)
    role = arrays["role"] if "role" in arrays else _roles(arrays["canvas"], when, answer)
    frame, position = ("frame", "position"), ("position",)
    needed: dict[str, tuple[tuple[str, ...], np.ndarray]] = {
        "canvas": (frame, np.full(shape, MISSING, np.int32)),
        "role": (frame, role.astype(np.int8)),
        "committed_at": (position, when.astype(np.int32)),
        "logprob": (position, np.full(shape[1], np.nan, np.float32)),
        "region": (position, np.full(shape[1], MISSING, np.int16)),
    }
    return dataset.assign({name: array for name, array in needed.items() if name not in dataset})


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
