"""Each claim in full: the sentence, the paper beside us, why the verdict, pictures and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from anchorwatch.figures.figure import Figure
from anchorwatch.studies.claim import PAPERS, Criterion
from anchorwatch.studies.report.figures import name_of
from anchorwatch.studies.report.forest import forest
from anchorwatch.studies.report.inlining import inline_figure
from anchorwatch.studies.report.marks import marks
from anchorwatch.studies.report.markup import Markup, join_markup, tag
from anchorwatch.studies.report.overview import filtered_by, verdict
from anchorwatch.studies.report.sentences import (
    count_units,
    describe_target,
    interval,
    level,
    number,
    over,
    power,
    reason,
)

if TYPE_CHECKING:
    from anchorwatch.studies.study_record import Study
    from anchorwatch.studies.verdict import JudgedClaim

SHOWS = {
    "effect_doses": "what hiding keys did, over how many were hidden, beside as many others",
    "enrichment": "which kinds of token are sinks, over how often they would be by chance",
    "gain_bars": "what passages add to the answers of each model",
    "head_types": "what the sink of each head does over steps, layer by head",
    "layer_consistency": "how far layers have the same sinks",
    "noise_curve": "answers right over the number of other passages, for each model",
    "position_curve": "answers right over the place of the passage, for each model",
    "profile": "layer by layer, with what even attention would give",
    "retrieval_map": "how much each head looks at the evidence, layer by head",
    "score_histogram": "how attention received is spread over keys, beside even attention",
    "shapley_bars": "what is due to the angle and what to the norm, layer by layer",
    "sink_positions": "where the greatest sink is, layer by step, of one prompt",
    "structure": "attention on what holds a text together and on what it says, layer by layer",
    "survival": "how long sinks stay, in steps",
    "value_norm_scatter": "the size of values over the attention that keys receive",
    "variant_differences": "every arm less vanilla, training seed by training seed",
}
"""What the figures that claims draw show, by name."""


def of_paper(study: Study, name: str, drawn: Mapping[str, Figure | str]) -> Markup:
    """All claims of one paper."""
    paper = PAPERS[name]
    mine = [one for one in study.findings if one.claim.study == name]
    return tag(
        "section",
        {"aria-labelledby": f"paper-{name}"},
        tag("h2", {"id": f"paper-{name}"}, f"Claims of {name}: {paper.title}"),
        tag("p", None, paper.summary),
        tag("p", {"class": "muted"}, paper.citation),
        *(_claim(one, drawn.get(one.claim.id)) for one in mine),
    )


def _claim(one: JudgedClaim, own: Figure | str | None) -> Markup:
    claim, name = one.claim, name_of(one.claim.id)
    title = tag("h3", {"id": name}, join_markup(claim.id + " ", verdict(one.says)))
    parts = [title, tag("p", {"class": "lead"}, claim.sentence), _beside(one)]
    if one.verdict is None:
        parts.append(tag("p", {"class": "lacks"}, reason(one)))
    else:
        parts.append(tag("p", None, reason(one)))
        parts += [_criterion(one, criterion) for criterion in claim.criteria]
        parts += [_own(one, own), _also(one)]
    notes = (
        ("Did not fit", "; ".join(one.unfit)),
        ("In the published code", claim.defect),
        ("Mind", claim.caveat),
    )
    for title_, words in notes:
        if words:
            parts.append(tag("p", {"class": "note"}, tag("b", None, f"{title_}: "), words + "."))
    attributes = filtered_by(one) | {"class": f"claim {one.says}"}
    return tag("article", attributes | {"aria-labelledby": name}, *parts)


def _beside(one: JudgedClaim) -> Markup:
    """The paper's number beside ours."""
    claim, binding = one.claim, one.binding
    paper = tag(
        "div",
        None,
        tag("span", {"class": "who"}, f"The paper ({claim.source})"),
        claim.reported,
    )
    if binding is None:
        ours: tuple[str, ...] = (tag("span", {"class": "much"}, "not judged"),)
    else:
        row = one.criterion_row(binding)
        found = f"{number(row['effect'])} [{interval(row['low'], row['high'])}]"
        which = f" {binding.name}," if len(claim.criteria) > 1 else ""
        much = f"{which} {count_units(row['n'], claim.unit)}"
        ours = (tag("span", {"class": "much"}, found), much)
    here = tag("div", None, tag("span", {"class": "who"}, "Here"), *ours)
    return tag("div", {"class": "beside"}, paper, here)


def _criterion(one: JudgedClaim, criterion: Criterion) -> Markup:
    """One statistic: what it is, its picture, its numbers."""
    row = one.criterion_row(criterion)
    caption = tag(
        "figcaption", None, tag("b", None, f"{criterion.name}: "), f"{criterion.statistic}."
    )
    facts = [
        join_markup(tag("dt", None, name), tag("dd", None, words))
        for name, words in _criterion_numbers(one, row)
    ]
    off = marks(one, criterion).off
    away = [f"{name} {number(value)}" for name, value in off]
    note = f"Not on this axis: {', '.join(away)}." if away else ""
    shown = [forest(one, criterion)]
    if note:
        shown.append(tag("p", {"class": "muted"}, note))
    told = tag("dl", {"class": "facts"}, *facts)
    return tag("figure", {"class": "criterion"}, caption, tag("div", None, *shown), told)


def _criterion_numbers(one: JudgedClaim, row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The numbers of a criterion, each with its meaning."""
    criterion = next(c for c in one.claim.criteria if c.name == row["criterion"])
    unit = one.claim.unit
    within = f"interval {interval(row['low'], row['high'])} at {level(row['level'])}"
    within = f"no interval: {row['why']}" if row["why"] else within
    found = f"{number(row['effect'])}, {within}"
    told = [
        ("found", f"{found}; n\u202f=\u202f{over(row, unit)}"),
        ("needed", f"{describe_target(criterion)} ({row['reason']})"),
    ]
    for name in ("null", "control"):
        if not math.isnan(row[name]):
            told.append((name, f"{number(row[name])} ({row[f'{name}_is']})"))
    theirs = criterion.published
    if theirs:
        each = ", ".join(f"{number(value)} ({who})" for who, value in theirs.items())
        told.append(("the paper's", each))
    if said := power(row, unit):
        told.append(("power", said))
    return told


def _own(one: JudgedClaim, own: Figure | str | None) -> Markup:
    """What the claim draws of its evidence."""
    if own is None:
        return Markup("")
    if isinstance(own, str):
        return tag("p", {"class": "muted"}, f"Of this claim {own}")
    name = str(own.whence["figure"]).replace("-", "_")
    says = SHOWS.get(name, name.replace("_", " "))
    return picture(own, f"{name_of(one.claim.id)}-drawn", f"The evidence: {says}")


def picture(figure: Figure, name: str, says: str) -> Markup:
    """A matplotlib figure with its caption; where it is wider than a phone it moves by itself."""
    scroll = {"class": "scroll", "tabindex": 0, "role": "group", "aria-label": says}
    return tag(
        "figure",
        None,
        tag("div", scroll, inline_figure(figure, name, says)),
        tag("figcaption", {"class": "muted"}, f"{says}."),
    )


def _also(one: JudgedClaim) -> Markup:
    also = dict(one.finding.also) if one.finding else {}
    if not also:
        return Markup("")
    said = [
        f"{name} {value if isinstance(value, str) else number(value)}"
        for name, value in also.items()
    ]
    return tag("p", {"class": "muted"}, f"Beside the verdict: {'; '.join(said)}.")
