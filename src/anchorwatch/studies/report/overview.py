"""The first screens of the page: what was run, what came of it, and the table of verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anchorwatch.studies.claim import PAPERS
from anchorwatch.studies.report.figures import name_of
from anchorwatch.studies.report.forest import mini
from anchorwatch.studies.report.markup import Markup, join_markup, tag
from anchorwatch.studies.report.sentences import (
    KIND,
    MEANING,
    WORDS,
    count_units,
    describe_target,
    interval,
    number,
    summary,
)
from anchorwatch.studies.verdict import VERDICTS

if TYPE_CHECKING:
    from anchorwatch.studies.study_record import Study
    from anchorwatch.studies.verdict import JudgedClaim

_HEAD = ("claim", "verdict", "what is claimed", "picture", "found", "needed", "over")
_COLUMN = {"scope": "col", "role": "columnheader"}
_SPARE = frozenset(("picture", "found", "needed", "over"))
"""Columns that a phone has no room for: they are told again with each claim."""


def opening(study: Study) -> Markup:
    """The title, and where to go from it."""
    places = [("summary", "Summary"), ("verdicts", "Verdicts"), ("beside", "Models side by side")]
    places += [(f"paper-{name}", f"Claims of {name}") for name in _studies(study)]
    places += [("methods", "Methods and citation"), ("manifest", "Manifest")]
    links = [tag("li", None, tag("a", {"href": f"#{at}"}, words)) for at, words in places]
    says = (
        "What papers claim about attention in masked diffusion language models, tested on the "
        "models named below, claim by claim, with a margin stated before anything ran."
    )
    return tag(
        "header",
        None,
        tag("a", {"class": "skip", "href": "#verdicts"}, "Skip to the verdicts"),
        tag("h1", None, "Do the papers’ claims hold here?"),
        tag("p", {"class": "muted"}, says),
        tag("nav", {"aria-label": "Contents"}, tag("ul", None, *links)),
    )


def what_was_run(study: Study) -> Markup:
    """A paragraph, the four counts, and the facts of the run."""
    count = study.counts()
    cards = [
        tag(
            "li",
            {"class": name},
            tag("b", None, str(count[name])),
            tag("span", {"class": f"verdict {name}"}, name),
            tag("br"),
            MEANING[name],
        )
        for name in VERDICTS
    ]
    return tag(
        "section",
        {"aria-labelledby": "summary"},
        tag("h2", {"id": "summary"}, "Summary"),
        tag("p", {"class": "lead"}, summary(study)),
        tag("ul", {"class": "cards"}, *cards),
        _by_paper(study),
        tag("h3", None, "What was run"),
        _facts(study),
        _words(),
    )


def _words() -> Markup:
    """What a newcomer has to know."""
    pairs = [
        join_markup(tag("dt", None, word), tag("dd", None, says)) for word, says in WORDS.items()
    ]
    title = tag("summary", None, "New to this? The words of this page")
    return tag("details", None, title, tag("dl", {"class": "facts"}, *pairs))


def _studies(study: Study) -> list[str]:
    return list(dict.fromkeys(one.claim.study for one in study.findings))


def _by_paper(study: Study) -> Markup:
    """Verdicts of each paper: counts, and a bar of them."""
    rows = []
    for name in _studies(study):
        said = [one.says for one in study.findings if one.claim.study == name]
        cells = [tag("td", {"class": "number"}, str(said.count(one))) for one in VERDICTS]
        link = tag("a", {"href": f"#paper-{name}"}, name)
        title = tag("span", {"class": "spare title"}, PAPERS[name].title)
        row = tag("th", {"scope": "row"}, link, title)
        bar = tag("td", {"class": "spare"}, _stack([said.count(one) for one in VERDICTS]))
        rows.append(tag("tr", None, row, *cells, bar))
    head = [tag("th", {"scope": "col"}, "paper")]
    head += [tag("th", {"scope": "col", "class": "number"}, one) for one in VERDICTS]
    head.append(tag("th", {"scope": "col", "class": "spare"}, "share"))
    return tag(
        "table",
        {"class": "papers"},
        tag("caption", None, "Verdicts by paper"),
        tag("thead", None, tag("tr", None, *head)),
        tag("tbody", None, *rows),
    )


def _stack(counts: list[int]) -> Markup:
    parts, at, whole = [], 0.0, max(sum(counts), 1)
    for name, count in zip(VERDICTS, counts, strict=True):
        width = 100 * count / whole
        place = {"x": f"{at:.2f}%", "y": 2, "width": f"{width:.2f}%", "height": 14}
        if count:
            parts.append(tag("rect", {"class": name} | place))
        at += width
    frame = {"class": "stack", "width": 160, "height": 18, "aria-hidden": "true"}
    return tag("svg", frame, *parts)


def _facts(study: Study) -> Markup:
    about = study.about
    budget, weights = about["budget"], dict(about.get("weights", {}))
    rows = [
        (KIND[role], f"{source}, weights {str(weights.get(role, 'unknown'))[:12]}")
        for role, source in about["models"].items()
    ]
    amount = (
        f"{budget['name']}: {budget['prompts']} prompts of each kind, {budget['length']} positions "
        f"in {budget['steps']} steps, {budget['items']} questions in each cell of an evaluation, "
        f"{budget['rows']} units of a table"
    )
    rows.append(("budget", amount))
    rows.append(("prompts", "made-up questions with passages, of names that no model has seen"))
    if "took" in about:
        took = about["took"]
        minutes = f"{took['minutes']:.1f} minutes, ended {took['ended']}"
        rows.append(("time", f"{minutes}; evidence that was there already was not made again"))
    if "machine" in about:
        held = about["machine"]
        cores = count_units(int(held["cores"]), "core")
        rows.append(("machine", f"{held['system']}, {held['processor']}, {cores}"))
    if arms := dict(about.get("arms", {})):
        runs = count_units(sum(arms.values()), "training run")
        rows.append(("training", f"{runs} of {count_units(len(arms), 'arm')}: {', '.join(arms)}"))
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    rows.append(("versions", versions))
    pairs = [join_markup(tag("dt", None, name), tag("dd", None, words)) for name, words in rows]
    return tag("dl", {"class": "facts"}, *pairs)


def verdict(says: str) -> Markup:
    """The word, with its mark and colour."""
    return tag("span", {"class": f"verdict {says}"}, says)


def table(study: Study) -> Markup:
    """Every claim, a row each, with what filters it."""
    head = [
        tag("th", _COLUMN | {"class": "spare" if name in _SPARE else None}, name) for name in _HEAD
    ]
    rows = [_row(one) for one in study.findings]
    caption = (
        "Found and needed are of the statistic that decides; the shaded part of each picture is "
        "where the claim holds. Every claim is told in full below."
    )
    return tag(
        "section",
        {"aria-labelledby": "verdicts"},
        tag("h2", {"id": "verdicts"}, "Verdicts"),
        _filters(study),
        tag(
            "table",
            {"class": "verdicts", "role": "table"},
            tag("caption", None, caption),
            tag("thead", {"role": "rowgroup"}, tag("tr", {"role": "row"}, *head)),
            tag("tbody", {"role": "rowgroup"}, *rows),
        ),
    )


def _filters(study: Study) -> Markup:
    """Hidden unless the page's script runs, which shows them."""
    papers = [tag("option", {"value": name}, name) for name in _studies(study)]
    said = [tag("option", {"value": name}, name) for name in VERDICTS]
    every = tag("option", {"value": ""}, "all")
    return tag(
        "form",
        {"id": "filters", "class": "filters", "hidden": True, "aria-label": "Filter the claims"},
        tag("label", None, "paper", tag("select", {"name": "paper"}, every, *papers)),
        tag("label", None, "verdict", tag("select", {"name": "verdict"}, every, *said)),
        tag("label", None, "words", tag("input", {"name": "words", "type": "search", "size": 18})),
        tag("button", {"type": "reset"}, "show all"),
        tag("span", {"id": "told", "role": "status"}, f"{len(study.findings)} claims"),
    )


def filtered_by(one: JudgedClaim) -> dict[str, str]:
    """What the filters look at."""
    words = f"{one.claim.id} {one.claim.sentence}".lower()
    held = {"data-claim": one.claim.id, "data-paper": one.claim.study}
    return held | {"data-verdict": one.says, "data-words": words}


def _row(one: JudgedClaim) -> Markup:
    """Roles are said because a phone lays the row out as a block, which would take them away."""
    claim, cell = one.claim, {"role": "cell"}
    spare = cell | {"class": "spare"}
    link = tag("a", {"href": f"#{name_of(claim.id)}"}, claim.id)
    cells = [
        tag("td", cell | {"class": "id"}, link),
        tag("td", cell, verdict(one.says)),
        tag("td", cell, claim.sentence),
    ]
    binding = one.binding
    if binding is None:
        lacks = cell | {"class": "spare muted", "colspan": "4"}
        cells.append(tag("td", lacks, f"lacks {one.lacking}"))
    else:
        row = one.criterion_row(binding)
        found = f"{number(row['effect'])} [{interval(row['low'], row['high'])}]"
        told = (mini(one), found, describe_target(binding), count_units(row["n"], claim.unit))
        cells += [tag("td", spare, words) for words in told]
    return tag("tr", filtered_by(one) | {"class": one.says, "role": "row"}, *cells)
