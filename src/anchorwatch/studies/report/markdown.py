"""A study as text: report.md. No torch here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from anchorwatch.studies.report.sentences import (
    describe_target,
    level,
    methods,
    over,
    power,
    reason,
    summary,
)
from anchorwatch.trace.escape import one_line

if TYPE_CHECKING:
    from anchorwatch.studies.claim import Criterion
    from anchorwatch.studies.study_record import Study
    from anchorwatch.studies.verdict import JudgedClaim


def page(study: Study) -> str:
    """The whole report."""
    models = [
        f"- {role}: {one_line(str(source))}" for role, source in study.about["models"].items()
    ]
    said = ", ".join(f"{count} {name}" for name, count in study.counts().items())
    head = ["# Study", "", one_line(summary(study)), "", f"{said}.", "", *models, ""]
    head += [one_line(methods(study)), ""]
    lines = [*head, "| claim | verdict | effect | interval | needed | n | reported |"]
    lines += ["|---|---|---|---|---|---|---|", *map(_line, study.findings), ""]
    for one in study.findings:
        lines += _part(one)
    return "\n".join(lines).rstrip() + "\n"


def _line(one: JudgedClaim) -> str:
    cells = [one.claim.id, one.says, "", "", "", "", _cell(one.claim.reported)]
    if (binding := one.binding) is not None:
        row = one.criterion_row(binding)
        cells[2:4] = [number(row["effect"]), _interval(row)]
        cells[4:6] = [describe_target(binding), over(row, one.claim.unit)]
    return f"| {' | '.join(cells)} |"


def _part(one: JudgedClaim) -> list[str]:
    claim = one.claim
    lines = [f"## {claim.id}: {one.says}", "", claim.sentence, ""]
    lines += [f"Source: {claim.source}. Reported: {claim.reported}.", ""]
    lines += [reason(one), ""]
    for criterion in claim.criteria if one.finding else ():
        lines += [_sentence(one, criterion), ""]
    also = dict(one.finding.also) if one.finding else {}
    if also:
        pairs = (
            f"{name} {value if isinstance(value, str) else number(value)}"
            for name, value in also.items()
        )
        lines += [f"Also: {'; '.join(pairs)}.", ""]
    notes = (
        ("Did not fit", one_line("; ".join(one.unfit))),
        ("The published code", claim.defect),
        ("Mind", claim.caveat),
    )
    for name, words in notes:
        if words:
            lines += [f"{name}: {words}.", ""]
    return lines


def _sentence(one: JudgedClaim, criterion: Criterion) -> str:
    row = one.criterion_row(criterion)
    at = "" if math.isnan(row["low"]) else f" at {level(row['level'])}"
    says = f"- {row['statistic']}: {number(row['effect'])}, interval {_interval(row)}{at}, "
    says += (
        f"n = {over(row, one.claim.unit)}; to be {describe_target(criterion)} ({row['reason']})."
    )
    for name in ("null", "control"):
        if not math.isnan(row[name]):
            says += f" {name.capitalize()}: {number(row[name])} ({row[f'{name}_is']})."
    if row["why"]:
        says += f" No interval: {row['why']}."
    return f"{says} {power(row, one.claim.unit)}".rstrip()


def number(value: float) -> str:
    """Three digits that matter.

    >>> number(0.01234), number(-3.0)
    ('0.0123', '-3')
    """
    return "-" if math.isnan(value) else f"{value:.3g}"


def _interval(row: dict[str, Any]) -> str:
    if math.isnan(row["low"]):
        return "none"
    return f"{number(row['low'])} to {number(row['high'])}"


def _cell(words: str) -> str:
    return words.replace("|", "\\|")
