"""report.html and figures/: one file with its style and script inside, which asks nothing of any
network, and every picture as PDF.

The markup is in templates/. Everything that a template prints is made visible (no control character
and no mark that turns the direction of what follows gets through) and escaped, unless it is markup
already. The page's policy (CSP) names style and script by their hashes and forbids everything else,
so that no text in it, wherever it came from, can run or fetch anything.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from anchorwatch.errors import AnchorwatchError
from anchorwatch.figures.figure import Figure
from anchorwatch.studies.claim import ORIGINS, PAPERS, Criterion
from anchorwatch.studies.evidence import Seeds
from anchorwatch.studies.report import picture, text
from anchorwatch.studies.report.assets import page_policy, read_asset
from anchorwatch.studies.report.comparison import Section, sections
from anchorwatch.trace.atomic_io import replace_file
from anchorwatch.trace.escape import one_line

if TYPE_CHECKING:
    from anchorwatch.studies.study_record import Study
    from anchorwatch.studies.verdict import JudgedClaim

PAGE, FIGURES = "report.html", "figures"
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


def write(study: Study, folder: Path) -> Path:
    """The page and its figures; returns where the page is."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {
        judged.claim.id: own_figure(study, judged) for judged in study.findings if judged.verdict
    }
    drawn = {name: figure for name, figure in own.items() if figure is not None}
    beside = sections(study)
    replace_file(folder / PAGE, page(study, drawn, beside).encode())
    save_figures(_figures(study, drawn, beside), folder / FIGURES)
    return folder / PAGE


def page(study: Study, drawn: Mapping[str, Figure | str], beside: Sequence[Section]) -> str:
    """The whole page; `drawn` are the claims' own figures, or why there is none."""
    names = dict.fromkeys(judged.claim.study for judged in study.findings)
    # json.dumps leaves nothing but ASCII, so that no mark hides; its line breaks are to stay
    manifest = escape(json.dumps(study.as_dict()["about"], indent=1, allow_nan=False))
    return (
        _templates()
        .get_template("page.html")
        .render(
            study=study,
            drawn=drawn,
            beside=beside,
            papers={name: PAPERS[name] for name in names},
            tallies=_tally_verdicts(study, names),
            manifest=manifest,
            style=Markup(read_asset("page.css")),
            script=Markup(read_asset("page.js")),
            policy=page_policy(),
        )
    )


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("anchorwatch.studies.report"),
        autoescape=True,
        finalize=_make_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words = ["number", "interval", "describe_target", "count_units", "reason", "summary", "methods"]
    words += ["class_name", "describe_precondition", "strip_end"]
    environment.globals |= {name: getattr(text, name) for name in words}
    pictures = ("marks", "draw_criterion", "draw_small")
    environment.globals |= {name: getattr(picture, name) for name in pictures}
    here = (anchor_of, inline_figure, describe_figure, criterion_facts, run_facts)
    environment.globals |= {function.__name__: function for function in here}
    environment.globals |= {"meaning": text.MEANING, "glossary": text.WORDS}
    return environment


def _make_visible(value: Any) -> Any:
    """What a template prints, on one line and without controls; markup is ours and stays."""
    return value if isinstance(value, Markup) else one_line(str(value))


def _tally_verdicts(study: Study, names: Iterable[str]) -> list[tuple[str, str, dict[str, int]]]:
    """(paper, whose claims, how many came to each verdict): a paper's own sentences first."""
    rows = [
        (name, words, study.counts(origin, name))
        for name in names
        for origin, words in ORIGINS.items()
    ]
    return [row for row in rows if any(row[2].values())]


def run_facts(study: Study) -> list[tuple[str, str]]:
    """What was run: models, amounts, time, machine, versions."""
    about = study.about
    budget, weights = about["budget"], dict(about.get("weights", {}))
    rows = [
        (text.KIND[role], f"{source}, weights {str(weights.get(role, 'unknown'))[:12]}")
        for role, source in about["models"].items()
    ]
    amount = (
        f"{budget['name']}: {text.count_prompts(study)}, {budget['items']} questions in each "
        f"cell of an evaluation, {budget['rows']} units of a table"
    )
    rows.append(("budget", amount))
    rows.append(("watched runs", text.describe_runs(about)))
    texts = budget.get("protocol", {}).get("prompts")
    going_on = "texts of the user's" if texts else "held-out stories"
    asked = "made-up questions with passages, of names that no model has seen"
    rows.append(("prompts", f"{asked}; as running text, {going_on}"))
    if "took" in about:
        took = about["took"]
        minutes = f"{took['minutes']:.1f} minutes, ended {took['ended']}"
        rows.append(("time", f"{minutes}; evidence that was there already was not made again"))
    if "machine" in about:
        machine = about["machine"]
        cores = text.count_units(int(machine["cores"]), "core")
        rows.append(("machine", f"{machine['system']}, {machine['processor']}, {cores}"))
    if (arms := dict(about.get("arms", {}))) and _reads_training(study):
        runs = text.count_units(sum(arms.values()), "training run")
        number = text.count_units(len(arms), "arm")
        rows.append(("training", f"{runs} of {number}: {', '.join(arms)}"))
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    rows.append(("versions", versions))
    return rows


def _reads_training(study: Study) -> bool:
    """Whether a claim that was judged read the table of training runs."""
    judged_claims = (judged.claim for judged in study.findings if judged.verdict is not None)
    return any(type(spec) is Seeds for claim in judged_claims for spec in claim.needs)


def criterion_facts(judged: JudgedClaim, criterion: Criterion) -> list[tuple[str, str]]:
    """The numbers of a criterion, each with its meaning."""
    row, unit, number = judged.criterion_row(criterion), judged.claim.unit, text.number
    within = f"interval {text.interval(row['low'], row['high'])} at {text.level(row['level'])}"
    within = f"no interval: {text.strip_end(row['why'])}" if row["why"] else within
    effect = f"{number(row['effect'])}, {within}"
    needed = "needed" if criterion.decides else "held against"
    facts = [
        ("found", f"{effect}; n\u202f=\u202f{text.over(row, unit)}"),
        (needed, f"{text.describe_target(criterion)} ({text.strip_end(row['reason'])})"),
    ]
    for name in ("null", "control"):
        if not math.isnan(row[name]):
            words = text.strip_end(row[f"{name}_is"])
            facts.append((name, f"{number(row[name])} ({words})"))
    if criterion.published:
        each = ", ".join(f"{number(value)} ({who})" for who, value in criterion.published.items())
        facts.append(("the paper's", each))
    if words := text.power(row, unit):
        facts.append(("power", words))
    return facts


def describe_figure(figure: Figure) -> str:
    """What a figure of a claim's evidence shows."""
    name = str(figure.whence["figure"]).replace("-", "_")
    return SHOWS.get(name, name.replace("_", " "))


def own_figure(study: Study, judged: JudgedClaim) -> Figure | str | None:
    """What a claim draws of its evidence; in words why it could not; None where it draws none."""
    try:
        return study.draw(judged.claim.id)
    except AnchorwatchError as error:  # a picture less: the numbers stand
        return f"its picture could not be drawn: {error}"


def anchor_of(claim: str) -> str:
    """A claim's id as the name of a file, and of a place in the page."""
    return claim.replace("/", "-")


def _figures(
    study: Study, drawn: Mapping[str, Figure | str], beside: Sequence[Section]
) -> Iterator[tuple[str, Figure]]:
    """Every figure with the name of its file; those of criteria are drawn one at a time."""
    for judged in study.findings:
        if judged.verdict is not None:
            yield anchor_of(judged.claim.id), picture.claim_figure(judged)
    for name, figure in drawn.items():
        if isinstance(figure, Figure):
            yield f"{anchor_of(name)}-drawn", figure
    for section in beside:
        for index, (_, figure) in enumerate(section.figures):
            yield f"compared-{section.name}-{index}", figure


def save_figures(drawn: Iterable[tuple[str, Figure]], folder: Path) -> None:
    """Figures by name as PDF; those of an earlier study in this folder that are not made go."""
    folder.mkdir(parents=True, exist_ok=True)
    names = set()
    for name, figure in drawn:
        figure.save(folder / f"{name}.pdf")
        names.add(name)
    papers = "|".join(map(re.escape, PAPERS))
    ours = re.compile(rf"(({papers})-H[1-9][0-9]?|compared)(-[a-z0-9-]+)?\.pdf")
    for path in folder.glob("*.pdf"):
        if ours.fullmatch(path.name) and path.stem not in names:
            path.unlink()


# A matplotlib figure inside the page. The policy would refuse matplotlib's `style="..."`, so each
# becomes attributes; ids are made the figure's own, black and white the page's ink and paper.

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_FONT = re.compile(r"(?:(?:normal|bold|italic|oblique|\d00)\s+)*([0-9.]+)px.*")
_KEPT = frozenset(
    "fill stroke stroke-width stroke-dasharray stroke-dashoffset stroke-linejoin stroke-linecap "
    "stroke-opacity fill-opacity opacity text-anchor font-size clip-path".split()
)
INK = {
    "#000000": "var(--ink)",
    "#ffffff": "var(--paper)",
    "#f2f2f2": "var(--faint)",
    "#e3e3e3": "var(--faint)",
    "#dedede": "var(--line)",
    "#b0b0b0": "var(--line)",
    "#767676": "var(--muted)",
    "#0072b2": "var(--blue)",
    "#d55e00": "var(--orange)",
    "#009e73": "var(--green)",
    "#cc79a7": "var(--pink)",
}
"""Colours of figures that have a twin for dark pages."""


def inline_figure(figure: Figure, name: str, alt: str) -> Markup:
    """The figure as an <svg> element; `name` keeps its ids apart from those of others."""
    root = ElementTree.fromstring(figure._repr_svg_())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style", f"{_SVG}title"):
                parent.remove(child)
    _paperless(root)
    for element in root.iter():
        _plain(element, name)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "class": "drawn wide" if _width(root) > 300 else "drawn",
        "role": "img",
        "aria-label": alt,
    }
    return Markup(ElementTree.tostring(root, encoding="unicode", short_empty_elements=True))


def _width(root: ElementTree.Element) -> float:
    return float(root.attrib["viewBox"].split()[2])


def _paperless(root: ElementTree.Element) -> None:
    """Without the white sheet behind everything."""
    for group in root.iter(f"{_SVG}g"):
        if group.get("id") == "patch_1":
            group.clear()
            return


def _plain(element: ElementTree.Element, name: str) -> None:
    element.tag = element.tag.removeprefix(_SVG)
    attributes = dict(element.attrib)
    element.attrib.clear()
    for key, value in attributes.items():
        if key == "style":
            for part, style_value in _parts(value):
                element.attrib[part] = _own(style_value, name)
        elif key == f"{_XLINK}href":
            element.attrib["href"] = f"#{name}-{value[1:]}" if value.startswith("#") else value
        elif key == "id":
            element.attrib["id"] = f"{name}-{value}"
        elif not key.startswith("{"):
            element.attrib[key] = _own(value, name)


def _parts(style: str) -> list[tuple[str, str]]:
    """Declarations as attributes; what no attribute can say is left out."""
    declarations = []
    for declaration in style.split(";"):
        key, _, value = (part.strip() for part in declaration.partition(":"))
        if key == "font" and (size := _FONT.match(value)):
            declarations.append(("font-size", size[1]))
        elif key in _KEPT:
            declarations.append((key, INK.get(value.lower(), value)))
    return declarations


def _own(value: str, name: str) -> str:
    """References to ids, as they are called now; colours as the page has them."""
    return INK.get(value.lower(), value.replace("url(#", f"url(#{name}-"))
