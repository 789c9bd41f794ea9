"""report.html: one file with its style and its script inside, which asks nothing of any network.

Its policy (CSP) names style and script by their hashes and forbids everything else, so that no
text in it, wherever it came from, can run or fetch anything.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from anchorwatch.figures.figure import Figure
from anchorwatch.studies.claim import PAPERS
from anchorwatch.studies.report import overview
from anchorwatch.studies.report.claims import of_paper, picture
from anchorwatch.studies.report.comparison import Section
from anchorwatch.studies.report.markup import Markup, join_markup, tag
from anchorwatch.studies.report.sentences import methods

if TYPE_CHECKING:
    from anchorwatch.studies.study_record import Study

HOW = (
    "In each picture the shaded part is where the claim holds, its edge the margin that was stated "
    "beforehand. The large dot is what was found, the bar its interval; small dots are single "
    "prompts or training seeds. The dashed line is the null: what indifferent attention, chance or "
    "an edit that does nothing would give. Dotted is the control. Where the paper gives a number "
    "of the same statistic it is marked too."
)


def page(study: Study, drawn: Mapping[str, Figure | str], beside: Sequence[Section]) -> str:
    """The whole page; `drawn` are the claims' own figures, or why there is none."""
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    names = dict.fromkeys(one.claim.study for one in study.findings)
    body = [
        overview.opening(study),
        tag(
            "main",
            None,
            overview.what_was_run(study),
            overview.table(study),
            _beside(beside),
            tag(
                "section",
                {"aria-label": "How to read the pictures"},
                tag("p", {"class": "note"}, HOW),
            ),
            *(of_paper(study, name, drawn) for name in names),
            _methods(study),
            _manifest(study),
        ),
        tag("footer", None, _provenance_section(study)),
        Markup(f"<script>{script}</script>"),
    ]
    head = [
        tag("meta", {"charset": "utf-8"}),
        tag("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        tag("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        tag("meta", {"name": "referrer", "content": "no-referrer"}),
        tag("title", None, "anchorwatch study: do the papers’ claims hold here?"),
        Markup(f"<style>{style}</style>"),
    ]
    whole = tag("html", {"lang": "en"}, tag("head", None, *head), tag("body", None, *body))
    return f"<!doctype html>\n{whole}\n"


def _asset(name: str) -> str:
    return files("anchorwatch.studies.report").joinpath(name).read_text(encoding="utf-8")


def _hash(words: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(words.encode()).digest()).decode()}"


def _beside(beside: Sequence[Section]) -> Markup:
    """Comparisons of models."""
    parts = [_comparison_section(one) for one in beside]
    if not parts:
        words = "This study has no evidence of two models, so there is nothing to compare."
        parts = [tag("p", None, words)]
    title = tag("h2", {"id": "beside"}, "Models side by side")
    return tag("section", {"aria-labelledby": "beside"}, title, *parts)


def _comparison_section(one: Section) -> Markup:
    parts = [tag("h3", None, one.title), *(tag("p", None, words) for words in one.words)]
    if one.rows:
        head = [tag("th", {"scope": "col"}, name) if name else tag("td") for name in one.head]
        rows = [
            tag(
                "tr",
                None,
                tag("th", {"scope": "row"}, first),
                *(tag("td", None, cell) for cell in rest),
            )
            for first, *rest in one.rows
        ]
        table = tag(
            "table",
            None,
            tag("caption", None, one.caption),
            tag("thead", None, tag("tr", None, *head)),
            tag("tbody", None, *rows),
        )
        scroll = {"class": "scroll", "tabindex": 0, "role": "group", "aria-label": one.title}
        parts.append(tag("div", scroll, table))
    for at, (says, figure) in enumerate(one.figures):
        parts.append(picture(figure, f"compared-{one.name}-{at}", says))
    return tag("div", None, *parts)


def _methods(study: Study) -> Markup:
    names = dict.fromkeys(one.claim.study for one in study.findings)
    version = study.about["versions"]["anchorwatch"]
    ours = (
        f"anchorwatch {version}: a laboratory for attention in masked diffusion language models. "
        "Software, 2026."
    )
    cited = [tag("li", None, PAPERS[name].citation) for name in names]
    return tag(
        "section",
        {"aria-labelledby": "methods"},
        tag("h2", {"id": "methods"}, "Methods and citation"),
        tag("p", None, methods(study)),
        tag("h3", None, "To cite"),
        tag("ul", None, tag("li", None, ours), *cited),
    )


def _manifest(study: Study) -> Markup:
    """All it takes to run it again; json.dumps leaves nothing but ASCII, so that no mark hides."""
    held = json.dumps(study.as_dict()["about"], indent=1, allow_nan=False)
    pre = Markup(f'<pre tabindex="0">{html.escape(held)}</pre>')
    return tag(
        "section",
        {"aria-labelledby": "manifest"},
        tag("h2", {"id": "manifest"}, "Manifest"),
        tag("p", None, f"Digest {study.digest}: a study that shares it gives the same numbers."),
        tag("details", None, tag("summary", None, "All of it, as in claims.json"), pre),
    )


def _provenance_section(study: Study) -> Markup:
    version = study.about["versions"]["anchorwatch"]
    words = (
        f"Made by anchorwatch {version}. Beside this page, claims.json, claims.csv and report.md "
        "say the same for machines and editors, and figures/ has every picture as PDF."
    )
    return join_markup(tag("p", None, words))
