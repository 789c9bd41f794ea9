"""Fills the pages of the three papers: every claim, and what a study found of it.

    python docs/papers.py                           # the claims alone, from the catalogue
    python docs/papers.py runs/papers               # with the verdicts in runs/papers/claims.json
    python docs/papers.py runs/smol --part smol     # those of other models, in a part of their own

`make papers` runs the study and then the second. What stands between two comments of a page is made
here, the rest is written by hand; a call writes its own part and leaves the others as they are. The
first paragraph of a page has a sentence for each part: what was tested, and what the models lack. A
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
from anchorwatch.studies.claim import ORIGINS, PAPER, Claim
from anchorwatch.studies.papers import claims
from anchorwatch.studies.report.text import plain_number, spell_counts
from anchorwatch.studies.study_record import read_record
from anchorwatch.studies.verdict import NOT_ABOUT, NOT_TESTABLE, UNDECIDED, VERDICTS

DOCS = Path(__file__).resolve().parent
PAGES = {"floating": "floating.md", "sinks": "sinks.md", "sink_token": "sink-token.md"}
"""By study."""
FIRST = ""
"""The part of the models that are taken where none is named."""
PARTS = (FIRST, "answers", "smol")
"""In the order of the pages: the tales, those that answer beside distractors, SmolLM2-135M."""

Row = Mapping[str, Any]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", nargs="?", type=Path, help="a study's folder; else no verdicts")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the pages are")
    parser.add_argument("--part", choices=PARTS[1:], default=FIRST, help="of other models")
    options = parser.parse_args(words)
    try:
        fill(options.docs, options.study, part=options.part)
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
        leads = dict.fromkeys(PAGES, "Not run yet.")
    else:
        record = read(study)
        studies = _whole(record, study) if part == FIRST else _by_study(record)
        describe = _describe_whole if part == FIRST else _describe_part
        blocks = {name: describe(record, rows) for name, rows in studies.items()}
        leads = {name: _lead(record, rows) for name, rows in studies.items()}
        if part == FIRST:
            leads = {name: lead + _count_changed(name) for name, lead in leads.items()}
    texts = {}  # of all pages, before any is written
    for name, block in blocks.items():
        page = docs / PAGES[name]
        text = _insert(page, _read_page(page), block, marks("found", part))
        texts[page] = _insert(page, text, leads[name], marks("lead", part))
    for page, text in texts.items():
        page.write_text(text, encoding="utf-8")


def marks(kind: str, part: str) -> tuple[str, str]:
    """The comments that a part of a page, or its words in the first paragraph, stand between."""
    name = f"{kind} {part}".rstrip()
    return f"<!-- {name} -->", f"<!-- /{name} -->"


def read(study: Path) -> dict[str, Any]:
    """claims.json of a study's folder; an older one as a record of today."""
    try:
        return read_record(study / "claims.json")
    except SpecError as error:
        raise SpecError(f"{error}: `anchorwatch study -o {study}` writes it") from None


def _read_page(page: Path) -> str:
    if not page.is_file():
        begin, end = marks("found", FIRST)
        raise SpecError(
            f"there is no page {page}: write it, and put {begin} and, below it, {end} where the "
            "table is to stand, once each"
        )
    return page.read_text(encoding="utf-8")


def _insert(page: Path, text: str, block: str, between: tuple[str, str]) -> str:
    """The text of a page with this block between two comments."""
    begin, end = between
    before, begun, rest = text.partition(f"{begin}\n")
    _, ended, after = rest.partition(end)
    if not begun or not ended or text.count(begin) != 1 or text.count(end) != 1:
        raise SpecError(
            f"{page} has no place for what was found: put {begin} and, below it, {end} where the "
            "table is to stand, once each"
        )
    return f"{before}{begin}\n{block}\n{end}{after}"


def _by_study(record: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Rows of a record by the study that they are of."""
    studies: dict[str, list[Row]] = {}
    for row in record["claims"]:
        studies.setdefault(row["study"], []).append(row)
    return studies


def _whole(record: Mapping[str, Any], study: Path) -> dict[str, list[Row]]:
    """Rows by study; a part of one is refused, as Holm's levels are those of all its claims."""
    studies = _by_study(record)
    for name, rows in studies.items():
        every = [claim.id for claim in claims([name])]
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
        [
            (_short(claim.id), claim.sentence, _whose(claim), claim.unit, claim.reported)
            for claim in every
        ],
    )
    lines += _details(
        ("claim", "what is measured", "supported if it is"),
        [
            (_short(claim.id), _named(claim.criteria, at), _wants(vars(criterion)))
            for claim in every
            for at, criterion in enumerate(claim.criteria)
        ],
    )
    lacking = [
        (claim.id, f"is not testable: it lacks {claim.lacks}") for claim in every if claim.lacks
    ]
    rows = [vars(claim) for claim in every]
    return "\n".join([*lines, *_not_run(lacking), *_contradictions(rows), *_changes(every)])


def _describe_whole(record: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The claims after a study."""
    every = claims([str(rows[0]["study"])]) if rows else ()
    return "\n".join([*_verdict_lines(record, rows), *_contradictions(rows), *_changes(every)])


def _describe_part(record: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The claims that were run on other models, and which were not."""
    ran = {row["id"] for row in rows}
    left = [_short(claim.id) for claim in claims([str(rows[0]["study"])]) if claim.id not in ran]
    lines = _verdict_lines(record, rows)
    return "\n".join([*lines, *(["", f"Not run on these models: {', '.join(left)}."] * bool(left))])


def _verdict_lines(record: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """What was tested, the table of verdicts, what is measured, and what was not testable."""
    lines = _about(record, rows)
    heads = ("claim", "in words", "whose", "verdict", "effect [interval]; needed", "n unit")
    lines += _table((*heads, "reported"), [_line(row) for row in rows])
    lines += _details(
        ("claim", "what is measured", "supported if it is", "found"),
        [
            (_short(row["id"]), _named(row["criteria"], at), _wants(criterion), _result(criterion))
            for row in rows
            for at, criterion in enumerate(row.get("criteria", ()))
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


def _lead(record: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """For the first paragraph: the models, verdicts on the paper's sentences, what models lack."""
    models = ", ".join(f"`{source}`" for source in record["about"]["models"].values())
    own = [row for row in rows if row["origin"] == PAPER]
    sentences = [row["verdict"] for row in own]
    counts = spell_counts({name: sentences.count(name) for name in VERDICTS})
    often = sorted(_group_failed(own).items(), key=lambda item: -len(item[1]))
    lacks = "; ".join(
        f"{_cell(name)} ({value}, at least {least} needed: {', '.join(ids)})"
        for (name, value, least), ids in often
    )
    words = f"Tested on {models}, budget {record['about']['budget']['name']}. "
    words += f"Sentences of the paper that were run ({len(own)}): {counts}."
    if lacks:
        words += f" A claim is not judged on models that cannot show it; these lack: {lacks}."
    return words


def _count_changed(study: str) -> str:
    """How many tests are not as they were first written."""
    every = claims([study])
    changed = sum(bool(claim.changes) for claim in every)
    return (
        f" The tests of {changed} of the {len(every)} claims were changed since they were first "
        "written, many of them with results known; the log below the first table says what, why, "
        "and what the old test said."
    )


def _group_failed(rows: Sequence[Row]) -> dict[tuple[str, str, str], list[str]]:
    """Claims by the precondition that does not hold: its name, value and minimum."""
    lost: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        for item in row["preconditions"]:
            if not item["holds"]:
                key = (item["name"], _number(item["value"]), _number(item["minimum"]))
                lost.setdefault(key, []).append(_short(row["id"]))
    return lost


def _about(record: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    about = record["about"]
    models = ", ".join(f"`{source}` ({role})" for role, source in about["models"].items())
    budget, versions = about["budget"], about["versions"]
    words = (
        f"{_headline(rows)} Models: {models}. "
        f"Budget: {budget['name']} ({budget['prompts']} prompts, "
        f"{budget['items']} items). anchorwatch {versions['anchorwatch']}, "
        f"manifest `{record['digest']}`. The effect is of the statistic that decides; intervals "
        "are at the level of Shaffer's step-down test over the claims of this paper that were run."
    )
    return [words, "", *_failed(rows)]


def _headline(rows: Sequence[Row]) -> str:
    """Verdicts by whose claim it is: the paper's own sentences first."""
    parts = []
    for origin, words in ORIGINS.items():
        verdicts = [row["verdict"] for row in rows if row["origin"] == origin]
        if verdicts:
            counts = spell_counts({name: verdicts.count(name) for name in VERDICTS})
            parts.append(f"{words[:1].upper()}{words[1:]} ({len(verdicts)}): {counts}.")
    return " ".join(parts)


def _failed(rows: Sequence[Row]) -> list[str]:
    """Preconditions that do not hold, each with the claims that need it, as a table."""
    heads = ("these models lack", "they have", "at least", "not testable for that")
    lines = [(*key, ", ".join(ids)) for key, ids in _group_failed(rows).items()]
    return [*_table(heads, lines), ""] if lines else []


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
        (_short(claim.id), change.what, change.why, change.before)
        for claim in every
        for change in claim.changes
    ]
    summary = "What was changed in the tests, why, and what the old ones said"
    return _details(heads, rows, summary)


def _whose(claim: Claim) -> str:
    """Origin, and of which models it was said."""
    return f"{claim.origin}, of {', '.join(claim.scope)}" if claim.scope else claim.origin


def _line(row: Row) -> tuple[str, ...]:
    whose = f"{row['origin']}, of {', '.join(row['scope'])}" if row["scope"] else row["origin"]
    cells = [_short(row["id"]), row["sentence"], whose, row["verdict"], "", "", row["reported"]]
    if row["verdict"] not in (NOT_TESTABLE, NOT_ABOUT):
        criterion = next(
            criterion for criterion in row["criteria"] if criterion["criterion"] == row["binding"]
        )
        several = sum(each["decides"] for each in row["criteria"]) > 1
        name = f" ({row['binding']})" if several else ""
        cells[4] = f"{_interval(criterion)}{name}; {_where(criterion)}"
        if row["verdict"] == UNDECIDED and criterion.get("units_needed"):
            cells[4] += f"; all alike, {criterion['units_needed']} such {row['unit']}s would decide"
        cells[5] = f"{criterion['n']} {row['unit']}s"
        cells[5] += f", {criterion['missing']} missing" if criterion["missing"] else ""
    return tuple(cells)


def _interval(criterion: Row) -> str:
    value = _number(criterion["effect"])
    if criterion["low"] is None or criterion["high"] is None:
        return f"{value}, no interval: {criterion['why']}" if criterion["why"] else value
    return f"{value} [{_number(criterion['low'])}, {_number(criterion['high'])}]"


def _result(criterion: Row) -> str:
    beside = [
        f"{name} {_number(criterion[name])}"
        for name in ("null", "control")
        if criterion[name] is not None
    ]
    if criterion.get("out_of_reach"):
        beside.append("no value has 80 % power")
    elif criterion.get("units_needed"):
        beside.append(f"all alike; {criterion['units_needed']} such units tell it from the margin")
    elif criterion.get("units_refuting"):
        beside.append(f"all alike; {criterion['units_refuting']} such units refute the claim")
    elif criterion.get("detectable") is not None:
        beside.append(f"80 % power to detect {_number(criterion['detectable'])}")
    return "; ".join([_interval(criterion), *beside])


def _wants(criterion: Row) -> str:
    return f"{_where(criterion)}: {criterion['reason']}"


def _where(criterion: Row) -> str:
    """Where the truth must lie."""
    margin = _number(criterion["margin"])
    return {
        "greater": f"above {margin}",
        "less": f"below {margin}",
        "equal": f"within {margin} of {_number(criterion['about'])}",
    }[criterion["direction"]]


def _named(criteria: Sequence[Any], at: int) -> str:
    """The statistic in words, after the criterion's name where a claim has several."""
    criterion = criteria[at] if isinstance(criteria[at], Mapping) else vars(criteria[at])
    name = criterion.get("criterion", criterion.get("name"))
    words = f"*{name}*: {criterion['statistic']}" if len(criteria) > 1 else criterion["statistic"]
    return words if criterion["decides"] else f"also measured, {words}"


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
