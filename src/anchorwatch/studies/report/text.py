"""What a study says, in words: a paragraph, a reason for each verdict, the sentence for a paper,
and all of it as text: report.md.

Every number is taken from the study; nothing here knows what a claim is about.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from anchorwatch.studies.claim import EQUAL, GREATER, ORIGINS, Criterion
from anchorwatch.studies.evidence import Effect, Runs
from anchorwatch.studies.verdict import (
    ALPHA,
    BELOW_MARGIN,
    NOT_ABOUT,
    NOT_TESTABLE,
    REFUTED,
    SUPPORTED,
    UNDECIDED,
)
from anchorwatch.trace.escape import one_line

if TYPE_CHECKING:
    from anchorwatch.studies.claim import CheckedPrecondition
    from anchorwatch.studies.study_record import Study
    from anchorwatch.studies.verdict import JudgedClaim

MEANING = {
    SUPPORTED: "every interval lies where the claim says the truth is",
    REFUTED: "an interval, wider the more statistics a claim has, lies wholly where the claim says "
    "it is not",
    UNDECIDED: "an interval reaches across the margin, or not far enough past it for so many "
    "claims: more prompts, items or seeds could tell",
    BELOW_MARGIN: "in the claimed direction, beyond the null, and short of the margin that was "
    "stated",
    NOT_TESTABLE: "not judged, because the models or the evidence lack something it needs",
    NOT_ABOUT: "not judged, because it was said of other models",
}
WORDS = {
    "masked diffusion model": "a language model that starts from an answer of masks and fills "
    "them in over several steps, in any order",
    "autoregressive model": "a language model that writes from left to right, one token a step",
    "attention": "how much each position of the text looks at each other one; every row of it "
    "sums to one",
    "sink, anchor": "a position that takes much more attention than an even share",
    "step": "one pass through the network, after which some masks are filled",
    "progress": "the share of the answer that is written; the clock that both kinds of model have",
    "vanilla, sink token, gate": "a network with nothing added; with one extra token that all see "
    "and that sees only itself; with a factor that can close what attention brings",
    "static, moving, flickering head": "one whose sink stays at a position; goes on to others and "
    "stays there; is at most of them for a single step. Split: masked and written positions look "
    "at different sinks. Frontier, block-drift: it goes with the edge of the masks, with the block",
    "statistic": "what is measured of each prompt, question or training run, and then averaged",
    "null": "what the statistic would be if nothing of interest happened: even attention, chance",
    "control": "the same done to something else of equal size, to hold the effect against",
    "margin": "how far the statistic must be for the claim to count; each claim states its own",
    "also measured": "a statistic that stands beside a verdict and has no part in it",
    "interval": "where the true mean may lie, given how much prompts (questions, runs) differ",
}
"""For who is new to the field."""
KIND = {
    "mdm": "masked diffusion model",
    "arm": "autoregressive model",
    "sink": "masked diffusion model with a sink token",
    "gate": "masked diffusion model with gates",
}
"""What a model is in a study."""


def number(value: float) -> str:
    """Three digits that matter, with a minus sign that is one.

    >>> number(-0.01234), number(1234567.0), number(float("nan"))
    ('−0.0123', '1.23e+06', 'none')
    """
    return "none" if math.isnan(value) else f"{value:.3g}".replace("-", "−", 1)


def strip_end(words: str) -> str:
    """A text without the marks at its end, for the middle of a sentence.

    >>> strip_end("loss above that of a guess, in nats,"), strip_end("A new claim.")
    ('loss above that of a guess, in nats', 'A new claim')
    """
    return words.rstrip(" .,;:")


def start_sentence(words: str) -> str:
    """A text with a capital letter at its start.

    >>> start_sentence("attention of its heads")
    'Attention of its heads'
    """
    return words[:1].upper() + words[1:]


def chance(p: float) -> str:
    r"""A p-value as text.

    >>> chance(0.2), chance(1e-9)
    ('p\u202f=\u202f0.2', 'p\u202f<\u202f0.0001')
    """
    text = "p < 0.0001" if p < 1e-4 else f"p = {p:.3g}"
    return text.replace(" ", "\u202f")  # no line breaks within


def describe_target(criterion: Criterion) -> str:
    """Where the truth must lie for the claim to hold."""
    if criterion.direction == EQUAL:
        return f"within {number(criterion.margin)} of {number(criterion.about)}"
    side = "above" if criterion.direction == GREATER else "below"
    return f"{side} {number(criterion.margin)}"


def interval(low: float, high: float) -> str:
    """Both ends, or that there is none."""
    return "no interval" if math.isnan(low) else f"{number(low)} to {number(high)}"


def count_units(n: int, unit: str) -> str:
    """A number of units."""
    return f"{n} {unit}{'s' * (n != 1)}"


def over(row: Mapping[str, Any], unit: str) -> str:
    """How many units a number is over, and how many have none."""
    missing = f", {row['missing']} without a value" if row["missing"] else ""
    return count_units(row["n"], unit) + missing


def level(share: float) -> str:
    """Of an interval: 99.79 %."""
    return f"{100 * share:.4g}\u202f%"


def reason(judged: JudgedClaim) -> str:
    """Why the verdict is what it is."""
    binding = judged.binding_criterion
    if judged.says == NOT_ABOUT:
        return f"Not about this model: {strip_end(judged.not_about)}."
    if binding is None or judged.verdict is None:
        return f"Not testable. It lacks {strip_end(judged.lacking)}."
    row, several = judged.criterion_row(binding), len(judged.claim.deciding) > 1
    name = f" of “{binding.name}”" if several else ""
    lies = f"the interval{name} ({interval(row['low'], row['high'])})"
    shared = (
        f" It is at {level(row['level'])}, shared among {len(judged.claim.deciding)} statistics, "
        "any of which could have refuted the claim."
    )
    explanation = {
        SUPPORTED: _explain_supported(judged, binding, lies),
        REFUTED: f"Refuted: {lies} lies wholly outside of what the claim needs, "
        f"{describe_target(binding)}." + shared * several,
        BELOW_MARGIN: f"Below the margin: every statistic is on the claimed side of its null, and "
        f"{lies} lies short of what the claim needs, {describe_target(binding)}."
        + shared
        * several,
        UNDECIDED: _explain_undecided(row, binding, lies, name),
    }[judged.says]
    adjusted = f"After the correction for all claims {chance(judged.verdict.p_holm)}."
    return f"{explanation} {adjusted}"


def _explain_supported(judged: JudgedClaim, binding: Criterion, lies: str) -> str:
    if len(judged.claim.deciding) == 1:
        return (
            f"Supported: {lies} lies wholly where the claim needs it, {describe_target(binding)}."
        )
    many = len(judged.claim.deciding)
    return (
        f"Supported: all {many} intervals lie where the claim needs them; the nearest to its "
        f"margin is {lies.removeprefix('the interval of ')}, which must be "
        f"{describe_target(binding)}."
    )


def _explain_undecided(row: Mapping[str, Any], binding: Criterion, lies: str, name: str) -> str:
    if row["why"]:
        return f"Undecided: there is no interval{name} ({row['why']})."
    low, high = binding.region
    if row["low"] > low and row["high"] < high:
        return (
            f"Undecided: {lies} is inside what the claim needs ({describe_target(binding)}), "
            "and not far enough once all claims and statistics are counted."
        )
    if row["high"] <= low or row["low"] >= high:
        return (
            f"Undecided: {lies} is outside of what the claim needs ({describe_target(binding)}), "
            "and not far enough once all claims and statistics are counted."
        )
    return (
        f"Undecided: {lies} reaches across the margin; the claim needs {describe_target(binding)}."
    )


def power(row: Mapping[str, Any], unit: str) -> str:
    """What these units could have shown; empty where the claim is supported."""
    shown, units = row["detectable"], count_units(row["n"], unit)
    if row.get("out_of_reach"):
        return (
            f"With these {units} there is no value that it can have with 80 % power to detect it."
        )
    if needed := row.get("units_needed"):
        return f"These {units} are all alike; {needed} like them tell the value from the margin."
    if needed := row.get("units_refuting"):
        return f"These {units} are all alike; {needed} like them refute the claim."
    if shown is None or math.isnan(shown):
        return ""
    if row["direction"] == EQUAL:
        return f"With these {units} there is 80 % power to detect equality within {number(shown)}."
    return f"With these {units} there is 80 % power to detect a true value of {number(shown)}."


def summary(study: Study) -> str:
    """The study in one paragraph, for who reads nothing else."""
    count = study.counts()
    all_ = len(study.findings)
    run = all_ - count[NOT_TESTABLE] - count[NOT_ABOUT]
    models = [f"{source} ({KIND[role]})" for role, source in study.about["models"].items()]
    parts = [f"{run} of {count_units(all_, 'claim')} could be tested on {_on(models)}."]
    for origin in ORIGINS:
        by_verdict = study.counts(origin)
        if total := sum(by_verdict.values()):
            parts.append(
                f"{start_sentence(ORIGINS[origin])} ({total}): {spell_counts(by_verdict)}."
            )
    if count[NOT_TESTABLE]:
        lost = Counter(judged.lacking for judged in study.findings if judged.says == NOT_TESTABLE)
        what, most = lost.most_common(1)[0]
        often = f", most often ({most} times) {what}" if most > 1 else ""
        parts.append(f"{count[NOT_TESTABLE]} lack something{strip_end(often)}.")
    parts.append(
        "A verdict is about these models and these prompts, and about a margin that the claim "
        "stated before this study ran; it does not say that a paper is right or wrong elsewhere."
    )
    if changed := sum(bool(judged.claim.changes) for judged in study.findings):
        parts.append(
            f"The tests of {changed} of these claims have been changed since they were first "
            "written, many of them after results were known: the log of each says what was "
            "changed, why, and what the old test said."
        )
    return " ".join(parts)


def spell_counts(counts: Mapping[str, int]) -> str:
    """Verdicts that occurred, with how often.

    >>> spell_counts({"supported": 2, "refuted": 0, "undecided": 1})
    '2 supported, 1 undecided'
    """
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none"


def class_name(verdict: str) -> str:
    """A verdict as one word, for a style sheet.

    >>> class_name("below the margin")
    'below-the-margin'
    """
    return verdict.replace(" ", "-")


def _on(models: list[str]) -> str:
    """What a study is of; claims about training seeds take no model."""
    return join_words(models) if models else "training runs alone"


def join_words(words: list[str]) -> str:
    """a, b and c."""
    if len(words) < 2:
        return "".join(words) or "none"
    return f"{', '.join(words[:-1])} and {words[-1]}"


def describe_runs(about: Mapping[str, Any]) -> str:
    """How watched runs wrote: as the manifest says, or of an older one by its budget."""
    budget = about["budget"]
    plain = f"{budget['length']} positions written in {budget['steps']} steps"
    return str(about.get("decoding", plain))


def count_prompts(study: Study) -> str:
    """How many prompts of each kind were used; sets of the user's may have fewer than a budget."""
    wanted = study.about["budget"]["prompts"]
    used = {
        piece.spec.prompts: piece.units
        for piece in study.plan.pieces
        if isinstance(piece.spec, Runs | Effect)
    }
    fewer = {name: units for name, units in used.items() if units < wanted}
    if fewer and len(set(used.values())) == 1:
        return f"{count_units(next(iter(used.values())), 'prompt')} of each kind"
    said = join_words([f"{units} of the set “{name}”" for name, units in fewer.items()])
    return f"{count_units(wanted, 'prompt')} of each kind" + (f" but {said}" if fewer else "")


def methods(study: Study) -> str:
    """The sentence for a methods section."""
    about = study.about
    budget, versions = about["budget"], about["versions"]
    weights = dict(about.get("weights", {}))
    models = [
        f"{source} ({KIND[role]}, weights {str(weights.get(role, 'unknown'))[:12]})"
        for role, source in about["models"].items()
    ]
    papers = dict(
        Counter(judged.claim.study for judged in study.findings if judged.verdict is not None)
    )
    tested = join_words([f"{count} of {name}" for name, count in papers.items()])
    return (
        f"Claims ({tested}) were tested with anchorwatch {versions['anchorwatch']} on "
        f"{_on(models)}, with {count_prompts(study)} ({describe_runs(about)}), "
        f"{budget['items']} questions per cell of an evaluation and {budget['rows']} rows per "
        "table. Each statistic has a direction and a margin of its own, and an interval of "
        "Student's over its unit (prompt, question or training seed), at the level of Shaffer's "
        f"step-down test over the claims of a paper that were run (alpha = {ALPHA:g}). A claim is "
        "supported if all intervals that decide lie inside the stated region, refuted if one lies "
        "wholly outside (at a level shared among the claim's statistics), below the margin if it "
        "is refuted with every statistic on the claimed side of its null, else undecided."
    )


def markdown_page(study: Study) -> str:
    """The whole report."""
    models = [
        f"- {role}: {one_line(str(source))}" for role, source in study.about["models"].items()
    ]
    head = ["# Study", "", one_line(summary(study)), "", *models, ""]
    head += [one_line(methods(study)), ""]
    lines = [*head, "| claim | whose | verdict | effect | interval | needed | n | reported |"]
    lines += ["|---|---|---|---|---|---|---|---|", *map(_markdown_row, study.findings), ""]
    for judged in study.findings:
        lines += _markdown_claim(judged)
    return "\n".join(lines).rstrip() + "\n"


def _markdown_row(judged: JudgedClaim) -> str:
    claim = judged.claim
    cells = [claim.id, claim.origin, judged.says, "", "", "", "", _markdown_cell(claim.reported)]
    if (binding := judged.binding_criterion) is not None:
        row = judged.criterion_row(binding)
        cells[3:5] = [plain_number(row["effect"]), _plain_interval(row)]
        cells[5:7] = [describe_target(binding), over(row, claim.unit)]
    return f"| {' | '.join(cells)} |"


def _markdown_claim(judged: JudgedClaim) -> list[str]:
    claim = judged.claim
    lines = [f"## {claim.id}: {judged.says}", "", claim.sentence, ""]
    scope = f" Said of: {', '.join(claim.scope)}." if claim.scope else ""
    reported = strip_end(claim.reported)
    lines += [f"Source: {claim.source} ({claim.origin}). Reported: {reported}.{scope}", ""]
    lines += [one_line(reason(judged)), ""]
    for checked in judged.preconditions:
        lines += [f"- {describe_precondition(checked)}", ""]
    for criterion in claim.criteria if judged.finding else ():
        lines += [_markdown_criterion(judged, criterion), ""]
    also = dict(judged.finding.also) if judged.finding else {}
    if also:
        pairs = (
            f"{name} {value if isinstance(value, str) else plain_number(value)}"
            for name, value in also.items()
        )
        lines += [f"Also: {'; '.join(pairs)}.", ""]
    notes = (
        ("Did not fit", one_line("; ".join(judged.unfit))),
        ("The paper's own numbers", claim.contradiction),
        ("The published code", claim.defect),
        ("Mind", claim.caveat),
    )
    for name, words in notes:
        if words:
            lines += [f"{name}: {strip_end(words)}.", ""]
    for change in claim.changes:
        what, why, before = map(strip_end, (change.what, change.why, change.before))
        lines += [f"Changed: {what}. Why: {why}. Before: {before}.", ""]
    return lines


def describe_precondition(checked: CheckedPrecondition) -> str:
    """What was asked of the models first, what was measured, and whether it is enough."""
    stated = checked.precondition
    statistic = start_sentence(strip_end(stated.statistic))
    return (
        f"{'Holds' if checked.holds else 'Fails'}: {strip_end(stated.name)}. {statistic}: "
        f"{number(checked.value)}, at least {number(stated.minimum)} ({strip_end(stated.reason)})"
    )


def _markdown_criterion(judged: JudgedClaim, criterion: Criterion) -> str:
    row = judged.criterion_row(criterion)
    at_level = "" if math.isnan(row["low"]) else f" at {level(row['level'])}"
    beside = "" if criterion.decides else "also measured: "
    says = f"- {beside}{strip_end(row['statistic'])}: {plain_number(row['effect'])}, "
    says += f"interval {_plain_interval(row)}{at_level}, "
    compared = "to be" if criterion.decides else "held against"
    says += f"n = {over(row, judged.claim.unit)}; {compared} {describe_target(criterion)} "
    says += f"({strip_end(row['reason'])})."
    for name in ("null", "control"):
        if not math.isnan(row[name]):
            says += (
                f" {name.capitalize()}: {plain_number(row[name])} ({strip_end(row[f'{name}_is'])})."
            )
    if row["why"]:
        says += f" No interval: {strip_end(row['why'])}."
    return f"{says} {power(row, judged.claim.unit)}".rstrip()


def plain_number(value: float) -> str:
    """Three digits that matter.

    >>> plain_number(0.01234), plain_number(-3.0)
    ('0.0123', '-3')
    """
    return "-" if math.isnan(value) else f"{value:.3g}"


def _plain_interval(row: dict[str, Any]) -> str:
    if math.isnan(row["low"]):
        return "none"
    return f"{plain_number(row['low'])} to {plain_number(row['high'])}"


def _markdown_cell(words: str) -> str:
    return words.replace("|", "\\|")
