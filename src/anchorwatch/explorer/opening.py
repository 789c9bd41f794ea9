"""Traces opened for looking: a damaged one shows what is damaged and the rest.

`aw.read` refuses a trace with a single wrong byte. Here a field with a damaged file is named, left
out and never read. Without its record, its metadata or its canvas there is nothing to trust.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from anchorwatch import commits
from anchorwatch.errors import TraceError
from anchorwatch.foreign import one_line
from anchorwatch.trace import Trace, read

MOST_SAID = 24
"""Sentences of damage that are kept; a folder may hold thousands of files."""
_LONGEST = 400


@dataclass(frozen=True, eq=False)
class Opened:
    """A trace to look at, or why there is none."""

    name: str
    """What the page calls it: the folder's name, never its path."""
    trace: Trace | None
    damage: tuple[str, ...] = ()
    """What is not as it was written, a sentence each."""
    lost: tuple[str, ...] = ()
    """Fields that are left out because of it."""


def opened(path: str | Path) -> Opened:
    """Open what can be opened; what cannot be is said, never raised."""
    place = commits.place(path)
    name = one_line(place.name)[:80] or "trace"
    found = commits.damage(place)
    if not found:
        return _read(place, name)
    try:
        files = commits.differing(place)
    except commits.UNREADABLE:  # no record, or none to trust
        return Opened(name, None, _said(found, place))
    lost = tuple(sorted({file.partition("/")[0] for file in files if "/" in file}))
    if "zarr.json" in files:
        return Opened(name, None, _said(found, place), lost)
    return _read(place, name, _said(found, place), lost)


def given(trace: Trace) -> Opened:
    """A trace that is in memory, or was read whole."""
    return Opened(f"{trace.manifest['model']['source']} {trace.digest()[:8]}", trace)


def _read(
    place: Path, name: str, damage: tuple[str, ...] = (), lost: tuple[str, ...] = ()
) -> Opened:
    try:
        trace = read(place, without=lost)
    except (TraceError, *commits.UNREADABLE) as error:
        return Opened(name, None, (*damage, *_said([str(error)], place)), lost)
    return Opened(name, trace, damage, lost)


def _said(found: Iterable[str], place: Path) -> tuple[str, ...]:
    """Sentences without the folders above the trace: a page may be sent to others."""
    said = [one_line(text.replace(f"{place.parent}/", ""))[:_LONGEST] for text in found]
    more = len(said) - MOST_SAID
    rest = [f"and {more} more: `anchorwatch verify` names all"] if more > 0 else []
    return (*said[:MOST_SAID], *rest)
