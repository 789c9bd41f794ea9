"""Every written claim on evidence of known truth: true, false and under-powered."""

import numpy as np
import pytest

from anchorwatch.studies.evidence import Evidence
from anchorwatch.studies.measure import ARM_RUNS, MDM_RUNS
from anchorwatch.studies.papers import claims
from anchorwatch.studies.papers.floating import measures as floating_measures
from anchorwatch.studies.papers.sink_token import measures as sink_token_measures
from anchorwatch.studies.verdict import REFUTED, SUPPORTED, UNDECIDED, verdicts
from claim_evidence import (
    TRUTHS,
    answer_table,
    assert_verdict,
    collect_plantings,
    draw_answers,
    jumping_sink,
    seed_table,
    sink_attention_table,
    traces_with_sink,
)

PLANTED, plants = collect_plantings()


@plants("floating/H1")
def first_or_not(truth):
    stays, count, roams = {
        SUPPORTED: (0.99, 40, 0.8),
        REFUTED: (0.0, 40, 0.8),
        UNDECIDED: (0.75, 6, 0.8),
    }[truth]

    def arm(rng, step, head):
        return 0 if rng.random() < stays else int(rng.integers(1, 6))

    held = (
        traces_with_sink(count, arm, causal=True, seed=3),
        traces_with_sink(count, jumping_sink(roams), seed=4),
    )
    return dict(zip((ARM_RUNS, MDM_RUNS), held, strict=True))


@plants("floating/H21")
def flatter_or_steeper(truth):
    rng = np.random.default_rng(12)
    count, mdm, arm = {
        SUPPORTED: (1500, 0.0, 0.15),
        REFUTED: (1500, 0.15, 0.0),
        UNDECIDED: (40, 0.02, 0.03),
    }[truth]
    cells = {}
    for role, falls in (("mdm", mdm), ("arm", arm)):
        for at, context in enumerate(floating_measures.DISTRACTED.contexts):
            cells[role, context, "none"] = draw_answers(rng, count, 0.9 - falls * at)
    return {floating_measures.DISTRACTED: answer_table(cells)}


@plants("floating/H23")
def doubles_or_not(truth):
    rng = np.random.default_rng(13)
    count, mdm, arm = {
        SUPPORTED: (800, 0.8, 0.2),
        REFUTED: (800, 0.3, 0.4),
        UNDECIDED: (40, 0.3, 0.15),
    }[truth]
    cells = {}
    for role, gain in (("mdm", mdm), ("arm", arm)):
        cells[role, "closed", "none"] = draw_answers(rng, count, 0.1)
        cells[role, "gold", "none"] = draw_answers(rng, count, 0.1 + gain)
    return {floating_measures.GAIN: answer_table(cells)}


@plants("sink_token/H5")
def better_or_worse(truth):
    rng = np.random.default_rng(14)
    count, gap = {SUPPORTED: (6, -0.05), REFUTED: (6, 0.05), UNDECIDED: (4, -0.01)}[truth]
    base = rng.normal(2.5, 0.1, count)
    arms = {"vanilla": base, "sink": base + rng.normal(gap, 0.01, count)}
    columns = {arm: {"bound.all": v, "answers.gold": np.ones(count)} for arm, v in arms.items()}
    table = {sink_token_measures.IMPROVED: seed_table(columns)}
    return table | sink_attention_table(rng, count)


@plants("sink_token/H7")
def place_matters_or_not(truth):
    rng = np.random.default_rng(15)
    count, moved, noise = {
        SUPPORTED: (8, 0.0, 0.004),
        REFUTED: (8, 0.08, 0.004),
        UNDECIDED: (4, 0.01, 0.05),
    }[truth]
    base = rng.normal(2.5, 0.1, count)
    sink = base - rng.normal(0.1, 0.005, count)
    arms = {"vanilla": base, "sink": sink, "sink-end": sink + rng.normal(moved, noise, count)}
    columns = {arm: {"bound.all": held} for arm, held in arms.items()}
    table = {sink_token_measures.END_POSITION: seed_table(columns)}
    return table | sink_attention_table(rng, count)


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("name", PLANTED)
def test_the_verdict_is_the_truth(name, truth):
    assert_verdict(name, PLANTED[name](truth), truth)


def test_a_sink_token_that_does_nothing_is_supported_at_most_at_the_error_rate():
    (claim,) = claims(["sink_token/H5"])
    rng, wrong, runs = np.random.default_rng(0), 0, 400
    for _ in range(runs):
        base = rng.normal(2.5, 0.1, 5)
        sink = base + rng.normal(claim.criteria[0].margin, 0.03, 5)
        columns = {"vanilla": base, "sink": sink}
        table = seed_table({a: {"bound.all": v, "answers.gold": v} for a, v in columns.items()})
        finding = claim.find(Evidence.of({sink_token_measures.IMPROVED: table}))
        wrong += verdicts([(claim.criteria, finding)])[0].says == SUPPORTED
    assert wrong / runs <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5
