"""Fills the pages of the three papers: every claim, and what a study found of it.

    python docs/papers.py                  # the claims alone, from the catalogue
    python docs/papers.py runs/papers      # with the verdicts in runs/papers/claims.json

`make papers` runs the study and then the second. What stands between two comments of a page is made
here, the rest is written by hand. Nothing that changes from run to run (dates, seconds) is written,
so that a second call leaves a page as it is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anchorwatch.errors import SpecError
from anchorwatch.studies.claim import Claim
from anchorwatch.studies.papers import claims
from anchorwatch.studies.report.text import plain_number
from anchorwatch.studies.study_record import VERSION
from anchorwatch.studies.verdict import LACKING, VERDICTS

DOCS = Path(__file__).resolve().parent
PAGES = {"floating": "floating.md", "sinks": "sinks.md", "sink_token": "sink-token.md"}
"""By study."""
BEGIN, END = "<!-- found -->", "<!-- /found -->"

Row = Mapping[str, Any]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", nargs="?", type=Path, help="a study's folder; else no verdicts")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the pages are")
    asked = parser.parse_args(words)
    try:
        fill(asked.docs, asked.study)
    except SpecError as error:
        raise SystemExit(str(error)) from None


def fill(docs: Path, study: Path | None = None) -> None:
    """Write the pages of all papers that a study ran whole; of all where there is none."""
    if study is None:
        blocks = {name: _announced(claims([name])) for name in PAGES}
    else:
        held = read(study)
        blocks = {name: _found(held, rows) for name, rows in _whole(held, study).items()}
    pages = {docs / PAGES[name]: block for name, block in blocks.items()}
    made = {page: between(page, block) for page, block in pages.items()}  # all, or none
    for page, text in made.items():
        page.write_text(text, encoding="utf-8")


def read(study: Path) -> dict[str, Any]:
    """claims.json of a study's folder."""
    path = study / "claims.json"
    made_by = f"`anchorwatch study -o {study}` writes it"
    if not path.is_file():
        raise SpecError(f"there is no {path}: {made_by}")
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SpecError(f"{path} is no JSON ({error}): {made_by}") from None
    if not isinstance(held, dict) or held.get("version") != VERSION:
        raise SpecError(f"{path} is not of version {VERSION}: {made_by}")
    return held


def between(page: Path, block: str) -> str:
    """The page with this block between its two comments."""
    wants = f"put {BEGIN} and, below it, {END} where the table is to stand, once each"
    if not page.is_file():
        raise SpecError(f"there is no page {page}: write it, and {wants}")
    text = page.read_text(encoding="utf-8")
    before, begun, rest = text.partition(f"{BEGIN}\n")
    _, ended, after = rest.partition(END)
    if not begun or not ended or text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SpecError(f"{page} has no place for what was found: {wants}")
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


def _whole(held: Mapping[str, Any], study: Path) -> dict[str, list[Row]]:
    """Rows by study; a part of one is refused, as Holm's levels are those of all its claims."""
    found: dict[str, list[Row]] = {}
    for row in held["claims"]:
        found.setdefault(row["study"], []).append(row)
    for name, rows in found.items():
        every = [one.id for one in claims([name])]
        if [row["id"] for row in rows] != every:
            raise SpecError(
                f"{study} has {len(rows)} of the {len(every)} claims of {name}: "
                f"run them together, `anchorwatch study {name} -o {study}`"
            )
    return found


def _announced(every: Sequence[Claim]) -> str:
    """The claims before any study."""
    lines = ["Not run yet: `make papers` runs the study and fills in the verdicts.", ""]
    lines += _table(
        ("claim", "in words", "unit", "reported"),
        [(_short(one.id), one.sentence, one.unit, one.reported) for one in every],
    )
    lines += _details(
        ("claim", "what is measured", "supported if it is"),
        [
            (_short(claim.id), _named(claim.criteria, at), _wants(vars(one)))
            for claim in every
            for at, one in enumerate(claim.criteria)
        ],
    )
    lacking = [(one.id, one.lacks) for one in every if one.lacks]
    return "\n".join([*lines, *_not_run(lacking)])


def _found(held: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The claims after a study."""
    lines = [_about(held, rows), ""]
    heads = ("claim", "in words", "verdict", "effect [interval]; needed", "n unit", "reported")
    lines += _table(heads, [_line(row) for row in rows])
    lines += _details(
        ("claim", "what is measured", "supported if it is", "found"),
        [
            (_short(row["id"]), _named(row["criteria"], at), _wants(one), _result(one))
            for row in rows
            for at, one in enumerate(row.get("criteria", ()))
        ],
    )
    lacking = [(row["id"], row["lacking"]) for row in rows if row["verdict"] == LACKING]
    return "\n".join([*lines, *_not_run(lacking)])


def _about(held: Mapping[str, Any], rows: Sequence[Row]) -> str:
    about = held["about"]
    models = ", ".join(f"`{source}` ({role})" for role, source in about["models"].items())
    budget, versions = about["budget"], about["versions"]
    said = [row["verdict"] for row in rows]
    counts = ", ".join(f"{said.count(name)} {name}" for name in VERDICTS)
    return (
        f"{counts}. Models: {models}. Budget: {budget['name']} ({budget['prompts']} prompts, "
        f"{budget['items']} items). anchorwatch {versions['anchorwatch']}, "
        f"manifest `{held['digest']}`. The effect is of the statistic that decides; intervals are "
        "at Holm's level over the claims of this paper that were run."
    )


def _line(row: Row) -> tuple[str, ...]:
    cells = [_short(row["id"]), row["sentence"], row["verdict"], "", "", row["reported"]]
    if row["verdict"] != LACKING:
        one = next(one for one in row["criteria"] if one["criterion"] == row["binding"])
        name = f" ({row['binding']})" if len(row["criteria"]) > 1 else ""
        cells[3] = f"{_interval(one)}{name}; {_where(one)}"
        cells[4] = f"{one['n']} {row['unit']}s"
        cells[4] += f", {one['missing']} missing" if one["missing"] else ""
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
    return f"*{name}*: {one['statistic']}" if len(criteria) > 1 else one["statistic"]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *([_cell(words) for words in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _details(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    summary = "<summary>What is measured, and where it must lie</summary>"
    return ["", "<details>", summary, "", *_table(heads, rows), "", "</details>"] if rows else []


def _not_run(lacking: Sequence[tuple[str, str]]) -> list[str]:
    lines = [f"- {_short(name)} is not judged. It lacks {_cell(words)}." for name, words in lacking]
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
