"""Studies made by us for the report: every claim with numbers of a known verdict, or not testable."""

import math

import numpy as np

from anchorwatch.errors import EvidenceError
from anchorwatch.evaluation.results import Results
from anchorwatch.studies.budget import BUDGETS
from anchorwatch.studies.claim import EQUAL, Finding, Measured
from anchorwatch.studies.estimate import SEED, Estimate
from anchorwatch.studies.evidence import Answers, AnswerTable, Cards, Evidence, Runs, Seeds
from anchorwatch.studies.papers import claims
from anchorwatch.studies.plan_study import Plan
from anchorwatch.studies.study_record import Study
from anchorwatch.studies.verdict import (
    BELOW_MARGIN,
    NOT_TESTABLE,
    REFUTED,
    SUPPORTED,
    UNDECIDED,
    JudgedClaim,
    verdicts,
)
from claim_evidence import answer_table, draw_answers, jumping_sink, seed_table, traces_with_sink

MODELS = {
    "mdm": "lab/toy-mdm",
    "arm": "lab/toy-arm",
    "sink": "lab/toy-sink",
    "gate": "lab/toy-gate",
}
VERDICTS_IN_TURN = (SUPPORTED, UNDECIDED, REFUTED, SUPPORTED, NOT_TESTABLE, BELOW_MARGIN)
"""Dealt out to claims in turn."""


def make_finding(claim, truth, rng):
    """A finding whose statistics lie inside, outside, or too near the margin to tell."""
    measured = {}
    for at, one in enumerate(claim.criteria):
        size = one.margin if one.direction == EQUAL else abs(one.margin) + 0.1
        side = -1.0 if one.direction == "less" else 1.0
        inside, outside = one.margin + side * size, one.margin - side * 0.8 * size
        if one.direction == EQUAL:
            inside, outside = one.about, one.about + 2 * size
        null = one.margin - side * 0.5 * size  # between what refutes and what only falls short
        if truth == BELOW_MARGIN:
            outside = one.margin - side * 0.25 * size
        wrong = truth in (REFUTED, BELOW_MARGIN) and at == 0
        centre = outside if wrong else inside
        count, spread = (6 if claim.unit == SEED else 40), 0.05 * size
        if truth == UNDECIDED:
            centre, count, spread = one.margin + 0.1 * side * size, 6, 0.5 * size
        values = rng.normal(centre, spread, count)
        null = null if one.null else math.nan
        control = float(centre + 0.3 * size) if one.control else math.nan
        measured[one.name] = Measured(Estimate.mean(values, claim.unit), null, control)
    return Finding(measured, {"on another scale": 0.25, "in words": "as expected"})


def judge_all(truths=VERDICTS_IN_TURN, names=()):
    """Claims of the catalogue, all where none is named, with truths dealt out in turn."""
    rng, held, lost = np.random.default_rng(0), {}, {}
    every = claims(names)
    for at, claim in enumerate(every):
        truth = truths[at % len(truths)]
        if truth == NOT_TESTABLE or not claim.is_testable:
            lost[claim.id] = claim.lacks or "an autoregressive model (--against)"
        else:
            held[claim.id] = make_finding(claim, truth, rng)
    said = {}
    for study in dict.fromkeys(one.study for one in every):
        mine = [one for one in every if one.study == study and one.id in held]
        each = verdicts([(one.criteria, held[one.id]) for one in mine])
        said |= {one.id: verdict for one, verdict in zip(mine, each, strict=True)}
    return tuple(
        JudgedClaim(one, held.get(one.id), said.get(one.id), lost.get(one.id, "")) for one in every
    )


def with_words(held):
    """Answers with words to them, as an evaluation keeps them."""
    rows = held.results.rows
    right = rows["containment"] == 1
    rows = rows.assign(prediction=np.where(right, "yes " + rows["item"], "no"))
    rows["answers"] = [["yes " + item] for item in rows["item"]]
    return AnswerTable(Results(rows, {}))


def evidence(count=8):
    """What comparisons read: runs of two models, answers, training seeds, cards."""
    rng = np.random.default_rng(5)
    runs = {
        "mdm": traces_with_sink(count, jumping_sink(0.6), seed=1),
        "arm": traces_with_sink(count, lambda rng, step, head: 0, causal=True, seed=2),
    }
    columns = ("bound.all", "answers.gold", "text.incidence.ratio", "text.switch_all")
    columns += ("bound.t.0.0-0.2.masked", "noisy.t.0.05.mask_share_visible")

    def make(spec):
        if isinstance(spec, Runs) and spec.role in runs:
            return runs[spec.role]
        if isinstance(spec, Answers):
            share = {"mdm": 0.8, "arm": 0.6}
            cells = [(r, c, e) for r in spec.asks for c in spec.contexts for e, _ in spec.edits]
            return with_words(
                answer_table(
                    {cell: draw_answers(rng, 60, share.get(cell[0], 0.5)) for cell in cells}
                )
            )
        if isinstance(spec, Seeds):
            wide = dict.fromkeys((*columns, *spec.columns))
            return seed_table(
                {
                    arm: {name: rng.normal(2.5 - 0.1 * at, 0.01, 5) for name in wide}
                    for at, arm in enumerate(spec.arms)
                }
            )
        if isinstance(spec, Cards):
            value = {"value": 2.5, "low": 2.4, "high": 2.6}
            measured = {"bound": {"all": value}, "answers": {"gold": value}}
            return {role: {"measured": measured} for role in spec.of}
        raise EvidenceError(f"{spec} was not planted")

    return Evidence(make)


def about(models=None):
    """A manifest."""
    models = models or MODELS
    return {
        "models": models,
        "weights": {role: f"{at}{'c0ffee' * 10}" for at, role in enumerate(models)},
        "budget": BUDGETS["quick"].as_dict(),
        "versions": {"anchorwatch": "0.1", "torch": "2.13", "python": "3.11"},
        "machine": {"system": "Linux x86_64", "processor": "planted", "cores": 2},
        "took": {"minutes": 3.2, "ended": "2026-01-02 03:04 UTC"},
        "cards": list(models),
        "arms": {"vanilla": 5, "sink": 5, "gate": 5},
        "plan": {},
    }


def study(truths=VERDICTS_IN_TURN, names=(), *, models=None):
    """A study as if it had been run."""
    return Study(judge_all(truths, names), about(models), Plan((), {}, ()), evidence())
