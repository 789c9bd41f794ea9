"""Claims of Attention Floating about answers, heads and flow, on evidence of known truth."""

import numpy as np
import pandas as pd
import pytest

from anchorwatch.errors import EvidenceError
from anchorwatch.studies.estimate import ITEM, Estimate, mean_score
from anchorwatch.studies.evidence import Evidence
from anchorwatch.studies.papers import claims
from anchorwatch.studies.papers.floating import measures as floating_measures
from anchorwatch.studies.verdict import (
    NOT_TESTABLE,
    REFUTED,
    SUPPORTED,
    UNDECIDED,
    judge_claims,
)
from claim_evidence import (
    TRUTHS,
    answer_table,
    assert_verdict,
    collect_plantings,
    draw_answers,
    judge,
)

PLANTED, plants = collect_plantings()
ARMS = ("edited", "control")


@plants("floating/H15")
def heads_matter_or_not(truth):
    rng = np.random.default_rng(29)
    count, lost = {SUPPORTED: (600, 0.4), REFUTED: (600, 0.0), UNDECIDED: (30, 0.1)}[truth]
    held = {}
    for spec in floating_measures.KNOCKED_OUT_HEADS.values():
        whole = draw_answers(rng, count, 0.8)
        rows = {"unit": np.arange(count) // 8, "item": np.arange(count), "heads": 2}
        rows |= {"right_none": whole, "right_others": whole * draw_answers(rng, count, 0.98)}
        held[spec] = pd.DataFrame(
            rows | {"right_heads": whole * draw_answers(rng, count, 1 - lost)}
        )
    return held


@plants("floating/H17")
def shallow_or_deep(truth):
    rng = np.random.default_rng(28)
    count, own, deep = {
        SUPPORTED: (24, 0.3, 0.1),
        REFUTED: (24, -0.1, 0.1),
        UNDECIDED: (6, 0.02, 0.0),
    }[truth]
    rows = [
        {"unit": unit, "half": half, "did": mean + 0.05 * rng.normal()}
        | {"difference": mean + 0.1, "control_difference": 0.1}
        | {f"hidden_{what}_{arm}": 0.2 for what in ("keys", "share") for arm in ARMS}
        for unit in range(count)
        for half, mean in (("shallow", own), ("deep", deep))
    ]
    return {floating_measures.HALVES: pd.DataFrame(rows)}


@plants("floating/H18")
def wherever_or_near(truth):
    rng = np.random.default_rng(30)
    count, least, near, noise = {
        SUPPORTED: (30, 0.5, 0.3, 0.05),
        REFUTED: (30, -0.6, 0.6, 0.05),
        UNDECIDED: (6, 0.3, 0.0, 0.6),
    }[truth]
    rows = [
        {"unit": unit, "place": place, "lift": 2 ** (least + near * at + noise * rng.normal())}
        | {"right": 1.0}
        for unit in range(count)
        for at, place in enumerate(("first", "middle", "last"))
    ]
    return {floating_measures.GOLD_ATTENTION: pd.DataFrame(rows)}


@plants("floating/H19")
def the_mask_or_the_model(truth):
    rng = np.random.default_rng(31)
    count, even, noise = {
        SUPPORTED: (20, 0.8, 0.01),
        REFUTED: (20, 0.3, 0.01),
        UNDECIDED: (6, 0.41, 0.1),
    }[truth]
    held = {}
    for role, value, null in (("arm", 0.8, even), ("mdm", 0.01, 0.01)):
        rows = {"unit": np.arange(count), "dobrushin": 0.01}
        rows |= {"value": value + noise * rng.normal(size=count) / 4}
        rows |= {"null": null + noise * rng.normal(size=count)}
        held[floating_measures.ROLLOUTS[role]] = pd.DataFrame(rows)
    return held


@plants("floating/H20")
def middle_or_ends(truth):
    rng = np.random.default_rng(32)
    count, mdm, arm = {
        SUPPORTED: (2000, 0.0, 0.3),
        REFUTED: (2000, 0.3, 0.0),
        UNDECIDED: (40, 0.0, 0.05),
    }[truth]
    cells = {}
    for role, lost in (("mdm", mdm), ("arm", arm)):
        for at, context in enumerate(floating_measures.GOLD_POSITIONS.contexts):
            cells[role, context, "none"] = draw_answers(rng, count, 0.8 - lost * (at == 1))
    return {floating_measures.GOLD_POSITIONS: answer_table(cells)}


@plants("floating/H22")
def together_or_not(truth):
    rng = np.random.default_rng(33)
    count, mdm, arm = {
        SUPPORTED: (2000, 0.0, 0.3),
        REFUTED: (2000, 0.3, 0.0),
        UNDECIDED: (40, 0.0, 0.05),
    }[truth]
    cells = {}
    for role, lost in (("mdm", mdm), ("arm", arm)):
        for at, context in enumerate(floating_measures.LAYOUTS.contexts):
            cells[role, context, "none"] = draw_answers(rng, count, 0.8 - lost * (at > 0))
    return {floating_measures.LAYOUTS: answer_table(cells)}


@plants("floating/H24")
def prompt_or_model(truth):
    rng = np.random.default_rng(34)
    count, rules, examples = {
        SUPPORTED: (1500, 0.6, 0.3),
        REFUTED: (1500, 0.3, 0.6),
        UNDECIDED: (40, 0.4, 0.35),
    }[truth]
    held = {}
    for name, gain in (("rules", rules), ("examples", examples)):
        cells = {("mdm", "closed", "none"): draw_answers(rng, count, 0.1)}
        cells["mdm", "gold", "none"] = draw_answers(rng, count, 0.1 + gain)
        held[floating_measures.TEMPLATES[name]] = answer_table(cells)
    return held


@plants("floating/H27")
def apart_or_alike(truth):
    rng = np.random.default_rng(35)
    count, gap, noise = {
        SUPPORTED: (20, 0.2, 0.05),
        REFUTED: (20, 0.0, 0.02),
        UNDECIDED: (6, 0.06, 0.1),
    }[truth]
    rows = [
        {"unit": unit, "layer": layer, "null": 0.01, "rewritten": 0.02, "elsewhere": 0.5}
        | {"value": 0.02 + gap + noise * rng.normal()}
        for unit in range(count)
        for layer in range(4)
    ]
    return {floating_measures.REWRITTEN_QUERIES: pd.DataFrame(rows)}


@plants("floating/H28")
def better_or_not(truth):
    rng = np.random.default_rng(36)
    count, mdm, arm = {
        SUPPORTED: (1000, 0.8, 0.6),
        REFUTED: (1000, 0.5, 0.7),
        UNDECIDED: (40, 0.6, 0.55),
    }[truth]
    cells = {}
    for role, share in (("mdm", mdm), ("arm", arm)):
        cells[role, "closed", "none"] = draw_answers(rng, count, 0.1)
        cells[role, "gold", "none"] = draw_answers(rng, count, share)
    return {floating_measures.GAIN: answer_table(cells)}


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("name", PLANTED)
def test_the_verdict_is_the_truth(name, truth):
    assert_verdict(name, PLANTED[name](truth), truth)


def test_what_cannot_be_doubled_lacks_room_and_is_not_refuted():
    held = {
        (role, context, "none"): [float(context == "gold")] * 40
        for role in ("mdm", "arm")
        for context in ("closed", "gold")
    }
    evidence = Evidence.of({floating_measures.GAIN: answer_table(held)})
    (judged,) = judge_claims(claims(["floating/H23"]), evidence, {})
    assert judged.says == NOT_TESTABLE
    assert "questions that leave room to gain twice as much" in judged.lacking
    assert "is -1, at least 0 is needed" in judged.lacking
    (judged,) = judge_claims(claims(["floating/H28"]), evidence, {})
    assert "accuracy below the ceiling" in judged.lacking


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("floating/H20", floating_measures.GOLD_POSITIONS),
        ("floating/H21", floating_measures.DISTRACTED),
        ("floating/H22", floating_measures.LAYOUTS),
    ],
)
def test_nobody_loses_less_than_nothing(name, spec):
    right = draw_answers(np.random.default_rng(0), 400, 0.7)
    cells = {(role, context, "none"): right for role in spec.asks for context in spec.contexts}
    (judged,) = judge_claims(claims([name]), Evidence.of({spec: answer_table(cells)}), {})
    assert judged.says == NOT_TESTABLE
    assert "an autoregressive model that loses something" in judged.lacking


def test_rollouts_that_do_not_differ_have_no_reason():
    held = the_mask_or_the_model(SUPPORTED)
    held[floating_measures.ROLLOUTS["arm"]] = held[floating_measures.ROLLOUTS["mdm"]]
    with pytest.raises(EvidenceError, match="models whose rollouts differ: into the first token"):
        judge(claims(["floating/H19"])[0], held)


def test_a_score_that_hardly_an_item_differs_in_is_not_certain():
    values = np.r_[np.full(47, 0.0), 0.5]
    found, plain = mean_score(values, ITEM, (-1.0, 1.0)), Estimate.mean(values, ITEM, (-1.0, 1.0))
    assert found.value == plain.value
    assert found.error > 2 * plain.error
    many = np.tile([-1.0, 0.0, 1.0], 1000)
    assert mean_score(many, ITEM, (-1.0, 1.0)).interval(0.95) == pytest.approx(
        Estimate.mean(many, ITEM).interval(0.95), abs=1e-3
    )
    assert mean_score([1.0] * 3, ITEM, (-1.0, 1.0)).why == "3 items, 5 needed"
