"""The page of a study: every claim, its words and pictures, and foreign text that stays text."""

import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

import planted_study
from anchorwatch.studies.claim import (
    EQUAL,
    GREATER,
    LESS,
    PAPERS,
    CheckedPrecondition,
    Claim,
    Criterion,
    Finding,
    Measured,
    Precondition,
)
from anchorwatch.studies.estimate import Estimate
from anchorwatch.studies.evidence import Evidence, Runs, TraceSet
from anchorwatch.studies.measure import by_prompt
from anchorwatch.studies.papers import claims
from anchorwatch.studies.papers.floating.measures import GAIN
from anchorwatch.studies.plan_study import Plan
from anchorwatch.studies.report import text as sentences
from anchorwatch.studies.report.assets import read_asset
from anchorwatch.studies.report.comparison import sections
from anchorwatch.studies.report.page import _templates, inline_figure, page, run_facts, write
from anchorwatch.studies.report.picture import claim_figure, marks, ticks
from anchorwatch.studies.study_record import Study
from anchorwatch.studies.verdict import (
    NOT_ABOUT,
    NOT_TESTABLE,
    REFUTED,
    SUPPORTED,
    UNDECIDED,
    VERDICTS,
    JudgedClaim,
    verdicts,
)
from claim_evidence import answer_table
from synthetic_traces import planted, random_maps

LARGEST = 8_000_000
FEW = ("floating/H2", "floating/H23", "sink_token/H5")
"""Claims of each kind of evidence that is compared, two of which draw."""
SOME = (*FEW, "floating/H1", "floating/H3", "sinks/H13", "sink_token/H1")
"""And of every verdict, some whose pictures cannot be drawn."""
HOSTILE = {
    "mdm": "</script><script>alert(1)</script>",
    "arm": '"><img src=x onerror=alert(2)>',
    "sink": "a\x1b[31m\u202ered",
    "gate": "<!--]]>&amp;",
}


class Found(HTMLParser):
    """What a browser would find in a page."""

    VOID = ("meta", "input", "br")
    INLINE = ("a", "b", "code")

    def __init__(self, words):
        super().__init__()
        self.tags, self.ids, self.text, self.open, self.crossed = [], [], [], [], []
        self.paragraphs = [""]
        self.feed(words)

    def handle_starttag(self, name, attributes):
        if name not in self.INLINE:
            self.paragraphs.append("")
        held = dict(attributes)
        self.tags.append((name, held))
        if "id" in held:
            self.ids.append(held["id"])
        if name not in self.VOID:
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.handle_starttag(name, attributes)
        if name not in self.VOID:
            self.open.pop()

    def handle_endtag(self, name):
        if name not in self.INLINE:
            self.paragraphs.append("")
        if not self.open or self.open.pop() != name:
            self.crossed.append(name)

    def handle_data(self, words):
        self.text.append(words)
        self.paragraphs[-1] += words


@pytest.fixture(scope="module")
def study():
    return planted_study.study()


@pytest.fixture(scope="module")
def words(study):
    """The page with no figure but those of criteria."""
    return page(study, {}, [])


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(SOME, id="some"),
        pytest.param((), id="all", marks=pytest.mark.slow),
    ],
)
def written(request, tmp_path_factory):
    """A study whose claims draw, and compare; its page; and the folder of them."""
    study = planted_study.study(names=request.param)
    folder = tmp_path_factory.mktemp("report")
    stale = folder / "figures" / "sinks-H99.pdf"
    kept = folder / "figures" / "mine.pdf"
    stale.parent.mkdir()
    for path in (stale, kept):
        path.write_bytes(b"old")
    return study, write(study, folder), folder


def one(criteria, values, unit="prompt"):
    """A claim of its own, judged alone."""
    claim = Claim(
        *("sinks/H3", "A sentence.", "a paper", "0.5", unit),
        needs=(Runs("mdm"),),
        criteria=tuple(criteria),
        measure=lambda _: None,
    )
    pairs = zip(criteria, values, strict=True)
    found = Finding({c.name: Measured(Estimate.mean(v, unit), 0.0) for c, v in pairs})
    return JudgedClaim(claim, found, verdicts([(claim.criteria, found)])[0])


def test_every_claim_is_on_the_page_with_its_verdict(study, words):
    found = Found(words)
    assert {one.says for one in study.findings} == set(VERDICTS) - {NOT_ABOUT}
    rows = [held for name, held in found.tags if name == "tr" and "data-claim" in held]
    articles = [held for name, held in found.tags if name == "article"]
    for told in (rows, articles):
        assert [held["data-claim"] for held in told] == [one.id for one in claims()]
        assert [held["data-verdict"] for held in told] == [one.says for one in study.findings]
    text = " ".join(found.text)
    for held in study.findings:
        assert held.claim.sentence in text
        assert held.claim.reported in text
        assert held.claim.defect in text
        assert sentences.reason(held) in text


def test_a_claim_that_ran_has_a_picture_of_each_criterion_and_the_others_what_they_lack(
    study, words
):
    for held in study.findings:
        at = words.index(f'<article data-claim="{held.claim.id}"')
        part = words[at : words.index("</article>", at)]
        wanted = 0 if held.verdict is None else len(held.claim.criteria)
        assert part.count("<svg") == wanted
        if held.verdict is None:
            assert "Not testable. It lacks" in part


def test_the_page_is_well_formed_and_its_ids_are_its_own(written):
    found = Found(written[1].read_text())
    assert found.crossed == []
    assert found.open == []
    assert len(set(found.ids)) == len(found.ids)
    aims = [held["href"] for name, held in found.tags if name == "a"]
    assert {aim[1:] for aim in aims} <= set(found.ids)
    headings = [int(name[1]) for name, _ in found.tags if re.fullmatch("h[1-6]", name)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(headings))
    assert all("scope" in held for name, held in found.tags if name == "th")


def test_the_page_is_one_small_file_that_asks_nobody(written):
    text = written[1].read_text()
    assert len(text.encode()) < LARGEST
    found = Found(text)
    for name, held in found.tags:
        assert name not in ("link", "img", "iframe", "object", "base")
        assert "style" not in held, "the page's policy forbids it"
        assert not [key for key in held if key.startswith("on")]
        for key in ("src", "href", "xlink:href", "action"):
            assert held.get(key, "#").startswith(("#", "data:image/png")), held
        for value in held.values():
            assert "url(#" in value if "url(" in str(value) else True
    css = re.search("<style>(.*?)</style>", text, re.DOTALL)[1]
    assert "url(" not in css
    assert "@import" not in css
    policy = next(held["content"] for _, held in found.tags if "http-equiv" in held)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_foreign_text_stays_text(tmp_path):
    study = planted_study.study((SUPPORTED,), FEW, models=HOSTILE)
    text = write(study, tmp_path).read_text()
    found = Found(text)
    assert [name for name, _ in found.tags].count("script") == 1
    assert [name for name, _ in found.tags].count("img") == 0
    assert not [key for _, held in found.tags for key in held if key.startswith("on")]
    assert found.crossed == []
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "a·[31m·red" in text
    shown = "".join(found.text)
    assert HOSTILE["arm"] in shown
    assert HOSTILE["gate"] in shown


def test_the_same_study_gives_the_same_bytes(tmp_path):
    both = [write(planted_study.study((SUPPORTED,), FEW), tmp_path / name) for name in "ab"]
    assert both[0].read_bytes() == both[1].read_bytes()
    for name in sorted(path.name for path in (tmp_path / "a" / "figures").iterdir()):
        a, b = (tmp_path / place / "figures" / name for place in "ab")
        assert a.read_bytes() == b.read_bytes()


def test_every_picture_is_a_pdf_and_old_ones_go(written):
    study, _, folder = written
    names = {path.stem for path in (folder / "figures").glob("*.pdf")}
    ran = {one.claim.id.replace("/", "-") for one in study.findings if one.verdict}
    assert ran <= names
    assert {"mine", "compared-attention-0", "compared-variants-0"} <= names
    assert "sinks-H99" not in names
    lacking = {one.claim.id.replace("/", "-") for one in study.findings if not one.verdict}
    assert not lacking & names


def test_what_a_claim_draws_is_on_the_page_or_why_not(written):
    text = written[1].read_text()
    assert 'id="floating-H2-drawn-' in text
    assert "its picture could not be drawn" in text  # of evidence that was not planted


def test_models_are_compared_where_there_are_two(study):
    found = {one.name: one for one in sections(study)}
    assert set(found) == {"attention", "answers", "variants", "cards"}
    attention = found["attention"]
    assert attention.head[1:3] == ("lab/toy-mdm", "lab/toy-arm")
    assert "lab/toy-arm less lab/toy-mdm" in attention.head
    rows = {row[0].partition(",")[0]: row[1:] for row in attention.rows}
    moves = [float(cell.split(" ")[0]) for cell in rows["greatest key moves"][:2]]
    assert moves[0] > 0.4
    assert moves[1] == 0.0
    assert "6 positions in 6 steps" in attention.words[0]
    assert len(attention.figures) == 1  # networks of one layer have no depth
    arms = [row[0] for row in found["variants"].rows]
    assert arms[0] == "vanilla"
    assert "sink" in arms and any(arm.startswith("gate") for arm in arms)


def test_shares_of_answers_stay_shares_and_are_never_certain():
    scores = {"mdm": [1.0] * 31 + [0.0], "arm": [1.0] * 32}
    rows = {
        (role, where, "none"): right for role, right in scores.items() for where in GAIN.contexts
    }
    held = planted_study.study((SUPPORTED,), ("floating/H23",))
    evidence = Evidence.of({GAIN: answer_table(rows)})
    about = dict(held.about) | {"cards": ()}
    found = sections(Study(held.findings, about, held.plan, evidence))
    (section,) = (one for one in found if one.name == "answers")
    for row in section.rows:
        for cell in row[1:3]:
            low, high = re.search(r"\[(.+) to (.+)\]", cell).groups()
            assert 0 <= float(low) < float(high) <= 1


def layered(layers, *, causal):
    """Runs of a network with so many layers."""
    rng = np.random.default_rng(layers)
    visibility = "causal" if causal else "bidirectional"
    made = [
        planted(
            random_maps(rng, (4, layers, 2, 8), causal=causal),
            prompt=4,
            tokens=np.arange(1, 9) + 100 * (at + 1),
            visibility=visibility,
            source=visibility,
        )
        for at in range(5)
    ]
    return TraceSet.from_traces(made)


def test_layers_of_different_networks_meet_at_relative_depth():
    held = planted_study.study((SUPPORTED,), ("floating/H7",))
    runs = {Runs("mdm"): layered(3, causal=False), Runs("arm"): layered(2, causal=True)}
    study = Study(held.findings, held.about | {"cards": []}, held.plan, Evidence.of(runs))
    (attention,) = sections(study)
    (_, progress), (_, depth) = attention.figures
    found = {str(name): sorted(set(part["depth"])) for name, part in depth.data.groupby("model")}
    assert found == {"lab/toy-mdm": [0.0, 0.5, 1.0], "lab/toy-arm": [0.0, 1.0]}
    assert progress.data["progress"].between(0, 1).all()


def test_a_difference_of_models_is_paired_by_prompt(study):
    (attention,) = (one for one in sections(study) if one.name == "attention")
    at = [row[0].partition(",")[0] for row in attention.rows].index("on the greatest key")
    values = [
        by_prompt(
            study.evidence, Runs(role), "absorption", "top1", options={"sets": ("first", "top1")}
        ).value
        for role in ("mdm", "arm")
    ]
    slow = sum(b - a for a, b in zip(*values, strict=True)) / len(values[0])
    other = attention.head.index("lab/toy-arm less lab/toy-mdm")
    assert attention.rows[at][other].startswith(f"{sentences.number(slow)} [")


def test_claims_of_training_seeds_alone_are_of_no_model():
    study = planted_study.study((SUPPORTED,), ("sink_token/H5",))
    bare = replace(study, about=study.about | {"models": {}})
    assert "1 of 1 claim could be tested on training runs alone" in sentences.summary(bare)
    nothing = planted_study.study((NOT_TESTABLE,), ("sink_token/H5",))
    assert "Claims (none) were tested" in sentences.methods(nothing)


def test_one_model_alone_is_compared_with_nothing():
    study = planted_study.study((NOT_TESTABLE,))
    assert "no evidence of two models" in page(study, {}, [])


ABOVE = Criterion("a", "the statistic a", GREATER, 0.1, "because")
BELOW = Criterion("b", "the statistic b", LESS, 0.1, "because")
NEAR = Criterion("c", "the statistic c", EQUAL, 0.1, "because", about=1.0)


@pytest.mark.parametrize(
    ("criteria", "values", "said"),
    [
        ([ABOVE], [[0.5, 0.6, 0.5, 0.6, 0.5]], "Supported: the interval (0.472 to 0.608) lies"),
        ([ABOVE], [[-0.5, -0.6, -0.5, -0.6, -0.5]], "Refuted: the interval (−0.608 to −0.472)"),
        ([ABOVE], [[0.5, -0.6, 0.5, -0.6, 0.5]], "Undecided: the interval"),
        ([ABOVE], [[0.5, 0.6]], "Undecided: there is no interval (2 prompts, 5 needed)"),
        (
            [ABOVE, BELOW],
            [[0.5, 0.6, 0.5, 0.6, 0.5], [-0.5, -0.6, -0.5, -0.6, -0.5]],
            "Supported: all 2 intervals lie where the claim needs them",
        ),
        (
            [ABOVE, BELOW],
            [[0.5, 0.6, 0.5, 0.6, 0.5], [0.5, 0.6, 0.5, 0.6, 0.5]],
            "Refuted: the interval of “b”",
        ),
        ([NEAR], [[1.0, 1.01, 0.99, 1.0, 1.0]], "needs it, within 0.1 of 1"),
    ],
)
def test_the_reason_is_in_words(criteria, values, said):
    assert said in sentences.reason(one(criteria, values))


def test_power_is_said_where_nothing_was_decided():
    held = one([ABOVE], [[0.5, -0.6, 0.5, -0.6, 0.5]])
    row = held.criterion_row(ABOVE)
    assert "80 % power to detect a true value of" in sentences.power(row, "prompt")
    decided = one([ABOVE], [[0.5, 0.6, 0.5, 0.6, 0.5]])
    assert sentences.power(decided.criterion_row(ABOVE), "prompt") == ""


@pytest.mark.parametrize(("direction", "value"), [(GREATER, 0.0), (LESS, 1.0), (EQUAL, 0.0)])
@pytest.mark.parametrize("criteria", [1, 2])
def test_alike_units_on_the_wrong_side_say_how_many_would_refute(direction, value, criteria):
    first = Criterion("a", "a share", direction, 0.2, "because", about=0.9)
    each = [replace(first, name=name) for name in "ab"[:criteria]]

    def judge(count):
        measured = {
            item.name: Measured(Estimate.mean([value] * count, "prompt", (-1.0, 2.0)))
            for item in each
        }
        finding = Finding(measured)
        claim = one(each, [[0.5] * 5] * criteria).claim
        return JudgedClaim(claim, finding, verdicts([(tuple(each), finding)])[0])

    few = judge(5)
    row = few.criterion_row(first)
    needed = row["units_refuting"]
    assert few.says == UNDECIDED
    assert [judge(count).says for count in (needed - 1, needed)] == [UNDECIDED, REFUTED]
    said = sentences.power(row, "prompt")
    assert said == f"These 5 prompts are all alike; {needed} like them refute the claim."


def test_a_value_that_cannot_be_is_not_said_to_be_what_would_have_shown():
    criterion = Criterion("a", "a share", GREATER, 0.9, "because")
    found = Finding({"a": Measured(Estimate.mean([1.0, 1.0, 0.6, 1.0, 0.9], "prompt", (0, 1)))})
    held = one([criterion], [[0.9] * 5])
    held = JudgedClaim(held.claim, found, verdicts([((criterion,), found)])[0])
    row = held.criterion_row(criterion)
    assert row["out_of_reach"] and np.isnan(row["detectable"])
    said = sentences.power(row, "prompt")
    assert said == (
        "With these 5 prompts there is no value that it can have with 80 % power to detect it."
    )
    assert said in sentences.markdown_page(
        Study((held,), planted_study.about(), Plan((), {}, ()), None)
    )


def test_the_text_says_the_level_what_is_missing_and_what_did_not_fit():
    held = one([ABOVE], [[0.5, 0.6, 0.5, 0.6, 0.5, np.nan, np.nan]])
    held = JudgedClaim(
        held.claim, held.finding, held.verdict, unfit=("2 units of rows (too long\x1b)",)
    )
    said = sentences.markdown_page(Study((held,), planted_study.about(), Plan((), {}, ()), None))
    assert "| 5 prompts, 2 without a value |" in said
    assert "interval 0.472 to 0.608 at 95\u202f%, n = 5 prompts, 2 without a value;" in said
    assert "Did not fit: 2 units of rows (too long·)." in said


BROKEN = re.compile(r"[,.;:] ?[:;]|,\.|\.,|\.\.|,,|[a-z0-9”][.?!]\)? [a-z]")
"""Marks that stand on each other, and sentences that begin with a small letter."""
ABBREVIATED = re.compile(r"\bal\.|\. arXiv ")


def test_no_claim_breaks_the_marks_of_a_sentence(study):
    findings = tuple(
        replace(
            judged,
            preconditions=tuple(CheckedPrecondition(p, 0.5) for p in judged.claim.preconditions),
        )
        for judged in study.findings
    )
    asked = replace(study, findings=findings)
    shown = re.sub(r"<(script|style|pre)\b.*?</\1>", "", page(asked, {}, []), flags=re.DOTALL)
    parts = [*sentences.markdown_page(asked).splitlines(), *Found(shown).paragraphs]
    assert len(parts) > 10 * len(findings)
    broken = [part for part in parts if BROKEN.search(ABBREVIATED.sub("", part))]
    assert not broken


def test_a_statistic_with_a_comma_at_its_end_is_no_broken_sentence():
    stated = Precondition("a sink wherever it is.", "loss, in nats,", 1, "a guess.", lambda _: 2)
    words = sentences.describe_precondition(CheckedPrecondition(stated, 2.0))
    assert words == "Holds: a sink wherever it is. Loss, in nats: 2, at least 1 (a guess)"


def test_training_runs_are_listed_only_where_a_claim_read_them():
    for name, listed in (("floating/H2", False), ("sink_token/H5", True)):
        facts = dict(run_facts(planted_study.study((SUPPORTED,), [name])))
        assert ("training" in facts) == listed, name


def test_how_many_units_stays_on_one_line(words):
    cells = re.findall(r'<td role="cell" class="spare number">(\d+ [a-z ]+)</td>', words)
    assert "40 prompts" in cells
    style = read_asset("page.css")
    assert re.search(r"td\.number.*white-space: nowrap", style)


def test_marks_are_on_the_axis_and_what_is_far_away_is_named():
    held = one([ABOVE], [[0.5, 0.6, 0.5, 0.62, 0.48]])
    near = marks(held, ABOVE)
    assert near.region == (0.1, near.high)
    assert dict(near.named) == {"null": 0.0}
    assert len(near.values) == 5
    for value in (near.effect, *near.interval, *near.limits, *near.values):
        assert 0 < near.at(value) < 1
    far = Finding({"a": Measured(Estimate.mean([0.5, 0.6, 0.5, 0.62, 0.48], "prompt"), 0.0, 99.0)})
    away = JudgedClaim(held.claim, far, held.verdict)
    assert dict(marks(away, ABOVE).off) == {"control": 99.0}


@pytest.mark.parametrize(
    ("criterion", "centre", "lies"),
    [
        (ABOVE, 0.5, SUPPORTED),
        (ABOVE, -0.5, REFUTED),
        (ABOVE, 0.1, UNDECIDED),
        (BELOW, -0.5, SUPPORTED),
        (BELOW, 0.5, REFUTED),
        (NEAR, 1.0, SUPPORTED),
        (NEAR, 2.0, REFUTED),
        (NEAR, 0.0, REFUTED),
        (NEAR, 1.1, UNDECIDED),
    ],
)
def test_each_interval_has_the_colour_of_where_it_lies(criterion, centre, lies):
    values = [centre + gap for gap in (-0.02, -0.01, 0.0, 0.01, 0.02)]
    held = one([criterion], [values])
    assert marks(held, criterion).lies == lies == held.says


def test_right_and_wrong_answers_are_no_points():
    held = one([ABOVE], [[1.0, 0.0, 1.0, 1.0, 0.0, -1.0]], "item")
    assert marks(held, ABOVE).values == ()


@pytest.mark.parametrize(("low", "high"), [(-0.03, 0.41), (0, 1e-5), (-1e6, 3), (0.9, 0.95)])
def test_ticks_are_round_and_few(low, high):
    found = ticks(low, high)
    assert 2 <= len(found) <= 6
    assert all(low <= value <= high for value in found)
    gaps = {round((b - a) / (found[1] - found[0]), 6) for a, b in itertools.pairwise(found)}
    assert gaps == {1.0}


def test_every_paper_has_claims():
    assert set(PAPERS) == {one.study for one in claims()}


def test_a_figure_of_a_claim_has_a_panel_for_each_criterion(study):
    held = next(one for one in study.findings if one.verdict and len(one.claim.criteria) == 3)
    figure = claim_figure(held)
    assert len(figure.axes) == 3
    assert list(figure.data["effect"]) == [
        held.criterion_row(criterion)["effect"] for criterion in held.claim.criteria
    ]


def test_a_drawn_figure_follows_the_page_s_colours_and_keeps_its_text(study):
    held = next(one for one in study.findings if one.verdict)
    svg = inline_figure(claim_figure(held), "name", 'an "alt"')
    assert "style=" not in svg
    assert not {"#000000", "#767676", "#009e73"} & set(re.findall("#[0-9a-f]{6}", svg))
    assert "var(--muted)" in svg
    assert "var(--green)" in svg
    assert held.claim.id in svg
    assert 'aria-label="an &quot;alt&quot;"' in svg
    assert set(re.findall(r'id="([^"]*)"', svg)) == {
        name for name in re.findall(r'id="([^"]*)"', svg) if name.startswith("name-")
    }


def test_nothing_gets_into_markup_unescaped():
    template = _templates().from_string('<p title="{{ words }}">{{ words }}{{ markup }}</p>')
    said = template.render(words='"<b>\x1b\u202e', markup=Markup("<br>"))
    assert said == '<p title="&#34;&lt;b&gt;··">&#34;&lt;b&gt;··<br></p>'
    with pytest.raises(UndefinedError):
        _templates().from_string("{{ nothing }}").render()


def test_no_template_marks_text_as_safe():
    """Markup comes from macros, from figures we draw and from our own files: nowhere else."""
    for path in (Path(page.__code__.co_filename).parent / "templates").glob("*.[hs][tv][mg]*"):
        assert "safe" not in path.read_text(), path
        assert "autoescape" not in path.read_text(), path
