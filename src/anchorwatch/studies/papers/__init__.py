"""The papers, one folder each: `claims` (what is claimed and how it is measured), `measures` (how
evidence becomes numbers) and `experiments` (what models must do for it beyond plain runs)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from anchorwatch.errors import SpecError
from anchorwatch.studies.claim import CLAIMS, PAPERS, Claim

if TYPE_CHECKING:
    STUDIES: dict[str, int]
    """Papers, and how many claims each has."""

FOLDERS = ("floating", "sinks", "sink_token")
"""Papers of this package, in the order of reports; others are in the order of registration."""


def claims(names: Sequence[str] = ()) -> tuple[Claim, ...]:
    """Claims by study or id; all of them where nothing is named.

    >>> [claim.id for claim in claims(["sinks/H3", "floating/H1"])]
    ['floating/H1', 'sinks/H3']
    """
    if isinstance(names, str):
        names = [names]
    for folder in FOLDERS:
        import_module(f"{__name__}.{folder}.claims")
    papers = list(dict.fromkeys((*FOLDERS, *PAPERS)))
    names = [_as_registered(name) for name in names]
    for name in names:
        if name not in papers and name not in CLAIMS:
            paper = name.partition("/")[0]
            own = [claim.id for claim in CLAIMS.values() if claim.study == paper]
            known = ", ".join(own or [*papers, "or sinks/H3"])
            raise SpecError(f"no study or claim is called {name!r}: expected {known}")
    ordered = sorted(CLAIMS.values(), key=lambda claim: (papers.index(claim.study), claim.number))
    return tuple(
        claim for claim in ordered if not names or claim.study in names or claim.id in names
    )


def _as_registered(name: str) -> str:
    """A name with underscores where it is written as in `anchorwatch paper sink-token`."""
    spelled = name.replace("-", "_")
    return spelled if spelled in CLAIMS or spelled in (*FOLDERS, *PAPERS) else name


def load_experiments() -> None:
    """Import the experiments of all papers, which register themselves; they need torch."""
    for folder in FOLDERS:
        import_module(f"{__name__}.{folder}.experiments")


def __getattr__(name: str) -> Any:
    if name == "STUDIES":  # counted when it is read: a claim may be registered at any time
        return dict(Counter(claim.study for claim in claims()))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
