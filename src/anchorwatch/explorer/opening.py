"""Traces opened for looking: a damaged or foreign one shows what is damaged and the rest.

`aw.read` refuses a trace with a single wrong byte. Here a field that is not as it was written is
named, left out and never read. Without its record or its metadata there is nothing to trust, and
without its canvas and its roles nothing to show.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import xarray as xr

from anchorwatch.errors import TraceError
from anchorwatch.explorer.mending import repair_dataset
from anchorwatch.trace import atomic_io as commits
from anchorwatch.trace import store
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.trace import ROLES, Trace
from anchorwatch.trace.validate import ARRAYS, wrong_array, wrong_manifest

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
    """Fields that are left out because of it; those of `soundness.ARRAYS` are mended."""
    place: Path | None = None
    """Where it was read from."""

    def without_place(self, text: str) -> str:
        """A sentence without the folders above the trace: a page may be sent to others."""
        return text if self.place is None else text.replace(f"{self.place.parent}/", "")


def open_for_viewing(path: str | Path) -> OpenedTrace:
    """Open what can be opened; what cannot be is said, never raised."""
    place = commits.expand_path(path)
    name = one_line(place.name)[:80] or "trace"
    found = commits.damage(place)
    if not found:
        return _read(place, name)
    try:
        files = commits.changed_files(place)
    except commits.UNREADABLE:  # no record, or none to trust
        return OpenedTrace(name, None, _describe_damage(found, place))
    lost = tuple(sorted({file.partition("/")[0] for file in files if "/" in file}))
    if "zarr.json" in files:
        return OpenedTrace(name, None, _describe_damage(found, place), lost)
    return _read(place, name, found, lost)


def from_memory(trace: Trace) -> OpenedTrace:
    """A trace that is in memory, or was read whole."""
    return OpenedTrace(f"{trace.manifest['model']['source']} {trace.digest()[:8]}", trace)


def _read(
    place: Path, name: str, found: Collection[str] = (), lost: Collection[str] = ()
) -> OpenedTrace:
    try:
        dataset, unread = _together(place, lost)
        manifest = dataset.attrs.pop("manifest")
        if wrong := wrong_manifest(manifest):
            raise TraceError(f"it cannot be read as a trace: {wrong}")
        unfit = _unfit(dataset, {*lost, *unread})
        said = _describe_damage([*found, *unread.values(), *unfit.values()], place)
        whole = repair_dataset(dataset.drop_vars([*unfit], errors="ignore"), manifest)
        gone = tuple(sorted({*lost, *unread, *unfit}))
        return OpenedTrace(name, Trace(whole, manifest), said, gone, place)
    except (TraceError, *commits.UNREADABLE) as error:
        return OpenedTrace(name, None, _describe_damage([*found, str(error)], place), tuple(lost))


def _together(place: Path, lost: Collection[str]) -> tuple[xr.Dataset, dict[str, str]]:
    """What can be read, and of the fields that cannot be, why."""
    try:
        return store.open_store(place, check=False, without=lost), {}
    except TraceError:
        wrong = _one_by_one(place, lost)
        return store.open_store(place, check=False, without=[*lost, *wrong]), wrong


def _one_by_one(place: Path, lost: Collection[str]) -> dict[str, str]:
    """Fields that cannot be read alone, or whose axes are not as long as those of others."""
    known = commits.read_json(place / "zarr.json")["consolidated_metadata"]["metadata"]
    if len(known) > MOST_FIELDS:
        raise TraceError(f"it declares {len(known)} fields, more than the {MOST_FIELDS} one tries")
    first = [name for name in ("canvas", "role") if name in known]
    sizes: dict[str, int] = {}
    wrong: dict[str, str] = {}
    for name in dict.fromkeys([*first, *known]):
        if name in lost:
            continue
        try:
            alone = store.open_store(place, check=False, without=known.keys() - {name})
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
    for name in (one for one in ARRAYS if one not in lost):
        if name not in dataset:
            unfit[name] = f"{name} is not in it"
        elif said := wrong_array(name, dataset[name], len(ROLES)):
            unfit[name] = said
    frames, steps = dataset.sizes.get("frame", 0), dataset.sizes.get("step")
    if steps is not None and steps != frames - 1:
        by_step = [str(name) for name in dataset.data_vars if "step" in dataset[name].dims]
        unfit |= {name: f"{name} has {steps} steps, {frames} frames do not fit" for name in by_step}
    return unfit


def _describe_damage(found: Iterable[str], place: Path) -> tuple[str, ...]:
    """Sentences without the folders above the trace: a page may be sent to others."""
    said = [one_line(text.replace(f"{place.parent}/", ""))[:_LONGEST] for text in found]
    more = len(said) - MOST_SAID
    rest = [f"and {more} more: `anchorwatch verify` names all"] if more > 0 else []
    return (*said[:MOST_SAID], *rest)
