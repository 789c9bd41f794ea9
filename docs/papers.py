"""Fills the pages of the three papers: every claim, and what a study found of it.

    python docs/papers.py                           # the claims alone, from the catalogue
    python docs/papers.py runs/papers               # with the verdicts in runs/papers/claims.json
    python docs/papers.py runs/smol --part smol     # those of other models, in a part of their own

`make papers` runs the study and then the second. What stands between two comments of a page is made
here, the rest is written by hand; a call writes its own part and leaves the others as they are. A
part of other models may be of some claims only, and says which were not run; the log of changes is
in the first part. Nothing that changes from run to run (dates, seconds) is written, so that a
second call leaves a page as it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anchorwatch.errors import SpecError
from anchorwatch.studies.claim import ORIGINS, Claim
from anchorwatch.studies.papers import claims
from anchorwatch.studies.report.text import plain_number, spell_counts
from anchorwatch.studies.study_record import read_record
from anchorwatch.studies.verdict import NOT_ABOUT, NOT_TESTABLE, VERDICTS

DOCS = Path(__file__).resolve().parent
PAGES = {"floating": "floating.md", "sinks": "sinks.md", "sink_token": "sink-token.md"}
"""By study."""
FIRST = ""
"""The part of the models that are taken where none is named."""
PARTS = (FIRST, "smol")

Row = Mapping[str, Any]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", nargs="?", type=Path, help="a study's folder; else no verdicts")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the pages are")
    parser.add_argument("--part", choices=PARTS[1:], default=FIRST, help="of other models")
    asked = parser.parse_args(words)
    try:
        fill(asked.docs, asked.study, part=asked.part)
    except SpecError as error:
        raise SystemExit(str(error)) from None


def fill(docs: Path, study: Path | None = None, *, part: str = FIRST) -> None:
    """Write the pages of all papers that a study ran whole; of all where there is none.

    A part of other models is of whatever claims were run.
    """
    if study is None:
        if part != FIRST:
            raise SpecError(f"--part {part} takes a study: python docs/papers.py FOLDER")
        blocks = {name: _announced(claims([name])) for name in PAGES}
    else:
        held = read(study)
        if part == FIRST:
            blocks = {name: _found(held, rows) for name, rows in _whole(held, study).items()}
        else:
            blocks = {name: _beside(held, rows) for name, rows in _by_study(held).items()}
    pages = {docs / PAGES[name]: block for name, block in blocks.items()}
    made = {page: between(page, block, part=part) for page, block in pages.items()}  # all, or none
    for page, text in made.items():
        page.write_text(text, encoding="utf-8")


def marks(part: str) -> tuple[str, str]:
    """The comments that a part stands between."""
    name = f"found {part}".rstrip()
    return f"<!-- {name} -->", f"<!-- /{name} -->"


def read(study: Path) -> dict[str, Any]:
    """claims.json of a study's folder; an older one as a record of today."""
    try:
        return read_record(study / "claims.json")
    except SpecError as error:
        raise SpecError(f"{error}: `anchorwatch study -o {study}` writes it") from None


def between(page: Path, block: str, *, part: str = FIRST) -> str:
    """The page with this block between the two comments of its part."""
    begin, end = marks(part)
    wants = f"put {begin} and, below it, {end} where the table is to stand, once each"
    if not page.is_file():
        raise SpecError(f"there is no page {page}: write it, and {wants}")
    text = page.read_text(encoding="utf-8")
    before, begun, rest = text.partition(f"{begin}\n")
    _, ended, after = rest.partition(end)
    if not begun or not ended or text.count(begin) != 1 or text.count(end) != 1:
        raise SpecError(f"{page} has no place for what was found: {wants}")
    return f"{before}{begin}\n{block}\n{end}{after}"


def _by_study(held: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Rows of a record by the study that they are of."""
    studies: dict[str, list[Row]] = {}
    for row in held["claims"]:
        studies.setdefault(row["study"], []).append(row)
    return studies


def _whole(held: Mapping[str, Any], study: Path) -> dict[str, list[Row]]:
    """Rows by study; a part of one is refused, as Holm's levels are those of all its claims."""
    studies = _by_study(held)
    for name, rows in studies.items():
        every = [one.id for one in claims([name])]
        if [row["id"] for row in rows] != every:
            raise SpecError(
                f"{study} has {len(rows)} of the {len(every)} claims of {name}: "
                f"run them together, `anchorwatch study {name} -o {study}`"
            )
    return studies


def _announced(every: Sequence[Claim]) -> str:
    """The claims before any study."""
    lines = ["Not run yet: `make papers` runs the study and fills in the verdicts.", ""]
    lines += _table(
        ("claim", "in words", "whose", "unit", "reported"),
        [(_short(one.id), one.sentence, _whose(one), one.unit, one.reported) for one in every],
    )
    lines += _details(
        ("claim", "what is measured", "supported if it is"),
        [
            (_short(claim.id), _named(claim.criteria, at), _wants(vars(one)))
            for claim in every
            for at, one in enumerate(claim.criteria)
        ],
    )
    lacking = [(one.id, f"is not testable: it lacks {one.lacks}") for one in every if one.lacks]
    rows = [vars(one) for one in every]
    return "\n".join([*lines, *_not_run(lacking), *_contradictions(rows), *_changes(every)])


def _found(held: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The claims after a study."""
    every = claims([str(rows[0]["study"])]) if rows else ()
    return "\n".join([*_verdict_lines(held, rows), *_contradictions(rows), *_changes(every)])


def _beside(held: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The claims that were run on other models, and which were not."""
    ran = {row["id"] for row in rows}
    left = [_short(one.id) for one in claims([str(rows[0]["study"])]) if one.id not in ran]
    lines = _verdict_lines(held, rows)
    return "\n".join([*lines, *(["", f"Not run on these models: {', '.join(left)}."] * bool(left))])


def _verdict_lines(held: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """What was tested, the table of verdicts, what is measured, and what was not testable."""
    lines = [_about(held, rows), ""]
    heads = ("claim", "in words", "whose", "verdict", "effect [interval]; needed", "n unit")
    lines += _table((*heads, "reported"), [_line(row) for row in rows])
    lines += _details(
        ("claim", "what is measured", "supported if it is", "found"),
        [
            (_short(row["id"]), _named(row["criteria"], at), _wants(one), _result(one))
            for row in rows
            for at, one in enumerate(row.get("criteria", ()))
        ],
    )
    why = {NOT_TESTABLE: "lacking", NOT_ABOUT: "not_about"}
    verb = {NOT_TESTABLE: "is not testable here: it lacks", NOT_ABOUT: "is not about this model:"}
    not_run = [
        (row["id"], f"{verb[row['verdict']]} {row[why[row['verdict']]]}")
        for row in rows
        if row["verdict"] in why
    ]
    return [*lines, *_not_run(not_run)]


def _about(held: Mapping[str, Any], rows: Sequence[Row]) -> str:
    about = held["about"]
    models = ", ".join(f"`{source}` ({role})" for role, source in about["models"].items())
    budget, versions = about["budget"], about["versions"]
    return (
        f"{_headline(rows)} {_failed(rows)}Models: {models}. "
        f"Budget: {budget['name']} ({budget['prompts']} prompts, "
        f"{budget['items']} items). anchorwatch {versions['anchorwatch']}, "
        f"manifest `{held['digest']}`. The effect is of the statistic that decides; intervals are "
        "at the level of Shaffer's step-down test over the claims of this paper that were run."
    )


def _headline(rows: Sequence[Row]) -> str:
    """Verdicts by whose claim it is: the paper's own sentences first."""
    parts = []
    for origin, words in ORIGINS.items():
        said = [row["verdict"] for row in rows if row["origin"] == origin]
        if said:
            counts = spell_counts({name: said.count(name) for name in VERDICTS})
            parts.append(f"{words[:1].upper()}{words[1:]} ({len(said)}): {counts}.")
    return " ".join(parts)


def _failed(rows: Sequence[Row]) -> str:
    """Preconditions that do not hold, each with the claims that need it."""
    lost: dict[str, list[str]] = {}
    for row in rows:
        for item in row["preconditions"]:
            if not item["holds"]:
                has = f"{_number(item['value'])}, at least {_number(item['minimum'])} is needed"
                lost.setdefault(f"{item['name']} ({has})", []).append(_short(row["id"]))
    each = "; ".join(f"{words} for {', '.join(ids)}" for words, ids in lost.items())
    return f"These models lack {_cell(each)}. " if each else ""


def _contradictions(rows: Sequence[Row]) -> list[str]:
    """Claims that the paper's own numbers contradict."""
    lines = [
        f"- The paper's own numbers, {_short(row['id'])}: {_cell(row['contradiction'])}."
        for row in rows
        if row["contradiction"]
    ]
    return ["", *lines] if lines else []


def _changes(every: Sequence[Claim]) -> list[str]:
    """The log of what was changed in the tests."""
    heads = ("claim", "what was changed", "why", "what the old test said")
    rows = [
        (_short(one.id), change.what, change.why, change.before)
        for one in every
        for change in one.changes
    ]
    summary = "What was changed in the tests, why, and what the old ones said"
    return _details(heads, rows, summary)


def _whose(one: Claim) -> str:
    """Origin, and of which models it was said."""
    return f"{one.origin}, of {', '.join(one.scope)}" if one.scope else one.origin


def _line(row: Row) -> tuple[str, ...]:
    whose = f"{row['origin']}, of {', '.join(row['scope'])}" if row["scope"] else row["origin"]
    cells = [_short(row["id"]), row["sentence"], whose, row["verdict"], "", "", row["reported"]]
    if row["verdict"] not in (NOT_TESTABLE, NOT_ABOUT):
        one = next(one for one in row["criteria"] if one["criterion"] == row["binding"])
        several = sum(each["decides"] for each in row["criteria"]) > 1
        name = f" ({row['binding']})" if several else ""
        cells[4] = f"{_interval(one)}{name}; {_where(one)}"
        cells[5] = f"{one['n']} {row['unit']}s"
        cells[5] += f", {one['missing']} missing" if one["missing"] else ""
    return tuple(cells)


def _interval(one: Row) -> str:
    value = _number(one["effect"])
    if one["low"] is None or one["high"] is None:
        return f"{value}, no interval: {one['why']}" if one["why"] else value
    return f"{value} [{_number(one['low'])}, {_number(one['high'])}]"


def _result(one: Row) -> str:
    beside = [
        f"{name} {_number(one[name])}" for name in ("null", "control") if one[name] is not None
    ]
    if one.get("out_of_reach"):
        beside.append("no value has 80 % power")
    elif one.get("detectable") is not None:
        beside.append(f"80 % power to detect {_number(one['detectable'])}")
    return "; ".join([_interval(one), *beside])


def _wants(one: Row) -> str:
    return f"{_where(one)}: {one['reason']}"


def _where(one: Row) -> str:
    """Where the truth must lie."""
    margin = _number(one["margin"])
    return {
        "greater": f"above {margin}",
        "less": f"below {margin}",
        "equal": f"within {margin} of {_number(one['about'])}",
    }[one["direction"]]


def _named(criteria: Sequence[Any], at: int) -> str:
    """The statistic in words, after the criterion's name where a claim has several."""
    one = criteria[at] if isinstance(criteria[at], Mapping) else vars(criteria[at])
    name = one.get("criterion", one.get("name"))
    words = f"*{name}*: {one['statistic']}" if len(criteria) > 1 else one["statistic"]
    return words if one["decides"] else f"also measured, {words}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *([_cell(words) for words in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _details(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    summary: str = "What is measured, and where it must lie",
) -> list[str]:
    head = f"<summary>{summary}</summary>"
    return ["", "<details>", head, "", *_table(heads, rows), "", "</details>"] if rows else []


def _not_run(lacking: Sequence[tuple[str, str]]) -> list[str]:
    lines = [f"- {_short(name)} {_cell(words)}." for name, words in lacking]
    return ["", *lines] if lines else []


def _cell(words: str) -> str:
    """One line that cannot end its cell, nor be taken for a tag or for our comments."""
    return " ".join(words.split()).replace("|", "\\|").replace("<", "&lt;")


def _short(name: str) -> str:
    return name.partition("/")[2]


def _number(value: float | None) -> str:
    return "-" if value is None else plain_number(value)


if __name__ == "__main__":
    main()
