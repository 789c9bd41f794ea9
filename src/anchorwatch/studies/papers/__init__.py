"""Every claim by id: three papers, 72 hypotheses. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module

from anchorwatch.errors import SpecError
from anchorwatch.studies.claim import Claim

STUDIES = {"floating": 27, "sinks": 25, "sink_token": 20}
"""Papers, and how many claims each has."""


@cache
def every() -> tuple[Claim, ...]:
    """All claims, in the order of papers and numbers."""
    found: list[Claim] = []
    for study, count in STUDIES.items():
        claims = import_module(f"anchorwatch.studies.papers.{study}").CLAIMS
        assert [one.id for one in claims] == [f"{study}/H{n}" for n in range(1, count + 1)], study
        found += claims
    return tuple(found)


def claims(names: Sequence[str] = ()) -> tuple[Claim, ...]:
    """Claims by study or id; all of them where nothing is named.

    >>> [one.id for one in claims(["sinks/H3", "floating/H1"])]
    ['floating/H1', 'sinks/H3']
    """
    if isinstance(names, str):
        names = [names]
    ids = {one.id for one in every()}
    for name in names:
        if name not in STUDIES and name not in ids:
            known = ", ".join(STUDIES)
            raise SpecError(f"no study or claim is called {name!r}: expected {known}, or sinks/H3")
    return tuple(one for one in every() if not names or one.study in names or one.id in names)
