"""Verdicts are a function of direction, margin and estimate; Holm by a slow twin; error rates."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tolerances
from anchorwatch.studies.claim import EQUAL, GREATER, LESS, Criterion, Finding, Measured
from anchorwatch.studies.estimate import PROMPT, Estimate
from anchorwatch.studies.verdict import (
    BELOW_MARGIN,
    REFUTED,
    SUPPORTED,
    UNDECIDED,
    verdicts,
)

RUNS = 2000
SLACK = 3 * math.sqrt(0.05 * 0.95 / RUNS)


def criterion(direction=GREATER, margin=0.0, name="it"):
    return Criterion(name, "a number", direction, margin, "planted")


def claim(value, error=0.1, n=20, direction=GREATER, margin=0.0):
    one = criterion(direction, margin)
    estimate = Estimate(value, error, n - 1, n, PROMPT, centre=value)
    return (one,), Finding({"it": Measured(estimate)})


def alone(*given, **named):
    return verdicts([claim(*given, **named)])[0].says


@pytest.mark.parametrize(
    ("direction", "margin", "value", "says"),
    [
        (GREATER, 0.5, 1.0, SUPPORTED),
        (GREATER, 0.5, 0.0, REFUTED),
        (GREATER, 0.5, 0.55, UNDECIDED),
        (LESS, 0.5, 0.0, SUPPORTED),
        (LESS, 0.5, 1.0, REFUTED),
        (LESS, 0.5, 0.45, UNDECIDED),
        (EQUAL, 0.5, 0.0, SUPPORTED),
        (EQUAL, 0.5, 1.0, REFUTED),
        (EQUAL, 0.5, -1.0, REFUTED),
        (EQUAL, 0.5, 0.45, UNDECIDED),
    ],
)
def test_where_the_interval_lies_decides(direction, margin, value, says):
    assert alone(value, direction=direction, margin=margin) == says


@given(st.floats(-2, 2), st.floats(0.01, 1), st.floats(-1, 1))
def test_a_claim_and_its_contrary_are_never_both_supported(value, error, margin):
    one = alone(value, error, direction=GREATER, margin=margin)
    other = alone(value, error, direction=LESS, margin=margin)
    assert (one, other) in {
        (SUPPORTED, REFUTED),
        (REFUTED, SUPPORTED),
        (UNDECIDED, UNDECIDED),
    }


def slow_holm(each, alpha=0.05):
    """Step by step, from intervals: the surest first, until one holds its margin."""
    left, said = list(range(len(each))), [UNDECIDED] * len(each)

    def surety(at):
        (one,), finding = each[at]
        estimate = finding.measured["it"].estimate
        return abs(estimate.value - one.margin) / estimate.error

    while left:
        at = max(left, key=surety)
        (one,), finding = each[at]
        low, high = finding.measured["it"].estimate.interval(1 - alpha / len(left))
        if low <= one.margin <= high:
            break
        above = low > one.margin
        said[at] = SUPPORTED if above == (one.direction == GREATER) else REFUTED
        left.remove(at)
    return said


@given(
    st.lists(
        st.tuples(st.floats(-1, 1), st.floats(0.05, 0.5), st.sampled_from([GREATER, LESS])),
        min_size=1,
        max_size=8,
    )
)
def test_holm_is_the_walk_down_the_intervals(each):
    claims = [claim(value, error, direction=way) for value, error, way in each]
    assert [one.says for one in verdicts(claims)] == slow_holm(claims)


@given(
    st.lists(st.tuples(st.floats(-1, 1), st.floats(0.05, 0.5)), min_size=1, max_size=8),
)
def test_the_interval_in_the_row_says_the_verdict(each):
    claims = [claim(value, error) for value, error in each]
    for one in verdicts(claims):
        low, high = one.intervals["it"]
        assert one.says == (SUPPORTED if low > 0 else REFUTED if high < 0 else UNDECIDED)


def two(first, second):
    """A claim of two criteria, both to be above 0."""
    criteria = criterion(name="one"), criterion(name="two")
    held = [Measured(Estimate(v, 0.1, 19, 20, PROMPT, centre=v)) for v in (first, second)]
    return criteria, Finding({"one": held[0], "two": held[1]})


def test_all_criteria_must_hold_and_one_can_refute():
    assert verdicts([two(1, 1)])[0].says == SUPPORTED
    assert verdicts([two(1, 0.05)])[0].says == UNDECIDED
    assert verdicts([two(1, -1)])[0].says == REFUTED
    assert verdicts([two(-1, 0.05)])[0].says == REFUTED


@given(st.floats(-1, 1), st.floats(-1, 1))
def test_the_interval_of_a_refuted_claim_lies_outside_at_the_level_it_says(first, second):
    (found,) = verdicts([two(first, second)])
    assert found.level == pytest.approx(0.975 if found.says == REFUTED else 0.95)
    outside = [high < 0 for _, high in found.intervals.values()]
    assert any(outside) or found.says != REFUTED


def test_a_criterion_without_an_interval_supports_nothing():
    few = Finding({"it": Measured(Estimate.mean([1.0, 1.1], PROMPT))})
    found = verdicts([((criterion(),), few)])[0]
    assert (found.says, found.p) == (UNDECIDED, 1.0)


@pytest.mark.parametrize("direction", [GREATER, LESS, EQUAL])
def test_a_truth_on_the_margin_is_supported_at_most_at_the_error_rate(direction):
    rng, margin = np.random.default_rng(0), 0.3
    counts = dict.fromkeys((SUPPORTED, REFUTED, UNDECIDED), 0)
    one = criterion(direction, margin)
    for _ in range(RUNS):
        found = Finding({"it": Measured(Estimate.mean(rng.normal(margin, 1, 24), PROMPT))})
        counts[verdicts([((one,), found)])[0].says] += 1
    assert counts[SUPPORTED] / RUNS <= 0.05 + SLACK
    assert counts[REFUTED] / RUNS <= 0.05 + SLACK


def test_a_study_of_false_claims_says_supported_of_any_at_most_at_the_error_rate():
    rng, wrong = np.random.default_rng(1), 0
    one = criterion(GREATER, 0.0)
    for _ in range(RUNS):
        each = rng.normal(0, 1, (15, 24))
        found = [((one,), Finding({"it": Measured(Estimate.mean(v, PROMPT))})) for v in each]
        wrong += any(verdict.says == SUPPORTED for verdict in verdicts(found))
    assert wrong / RUNS <= 0.05 + SLACK


def test_undecided_says_what_would_have_been_shown():
    found = verdicts([claim(0.02, 0.1, 40)])[0]
    assert found.says == UNDECIDED
    beyond = found.detectable["it"]
    rng, shown = np.random.default_rng(2), 0
    for _ in range(RUNS):
        drawn = Finding(
            {"it": Measured(Estimate.mean(rng.normal(beyond, 0.1 * 40**0.5, 40), PROMPT))}
        )
        shown += verdicts([((criterion(),), drawn)])[0].says == SUPPORTED
    assert shown / RUNS == pytest.approx(0.8, abs=tolerances.of_trials(RUNS, 0.8))
    assert verdicts([claim(1.0)])[0].detectable == {}


def test_what_no_possible_value_would_have_shown_is_said_to_be_out_of_reach():
    share = Estimate(0.5, 0.2, 9, 10, PROMPT, centre=0.5, bounds=(0.0, 1.0))
    for direction, margin in ((GREATER, 0.7), (LESS, 0.3)):
        one = criterion(direction, margin)
        (found,) = verdicts([((one,), Finding({"it": Measured(share)}))])
        assert math.isinf(found.detectable["it"])


# --- below the margin ---------------------------------------------------------------------------


def with_null(value, null, direction=GREATER, margin=1.0, error=0.1):
    one = criterion(direction, margin)
    estimate = Estimate(value, error, 39, 40, PROMPT, centre=value)
    return (one,), Finding({"it": Measured(estimate, null)})


@pytest.mark.parametrize(
    ("direction", "margin", "null", "value", "says"),
    [
        (GREATER, 1.0, 0.0, 0.5, BELOW_MARGIN),
        (GREATER, 1.0, 0.0, 0.05, REFUTED),
        (GREATER, 1.0, 0.0, -0.5, REFUTED),
        (GREATER, 1.0, 0.0, 1.5, SUPPORTED),
        (GREATER, 1.0, 0.0, 0.95, UNDECIDED),
        (GREATER, 1.0, math.nan, 0.5, REFUTED),
        (GREATER, 1.0, 2.0, 0.5, REFUTED),
        (LESS, -1.0, 0.0, -0.5, BELOW_MARGIN),
        (LESS, -1.0, 0.0, 0.5, REFUTED),
        (LESS, 1.0, 0.0, 1.5, REFUTED),
        (EQUAL, 1.0, 0.0, 1.5, REFUTED),
    ],
)
def test_an_effect_that_is_too_small_is_below_the_margin(direction, margin, null, value, says):
    assert verdicts([with_null(value, null, direction, margin)])[0].says == says


@given(
    st.lists(
        st.tuples(st.floats(-1, 3), st.sampled_from([0.0, math.nan]), st.floats(0.05, 0.5)),
        min_size=1,
        max_size=6,
    )
)
def test_the_interval_shows_which_side_of_null_and_margin_the_truth_is(each):
    claims = [with_null(value, null, error=error) for value, null, error in each]
    for (_, null, _), found in zip(each, verdicts(claims), strict=True):
        low, high = found.intervals["it"]
        if found.says == SUPPORTED:
            assert low > 1.0
        if found.says in (REFUTED, BELOW_MARGIN):
            assert high < 1.0
        if found.says == BELOW_MARGIN:
            assert low > null == 0.0


def two_with_nulls(first, second):
    criteria = criterion(margin=1.0, name="one"), criterion(margin=1.0, name="two")
    held = [Measured(Estimate(v, 0.1, 39, 40, PROMPT, centre=v), 0.0) for v in (first, second)]
    return criteria, Finding({"one": held[0], "two": held[1]})


def test_every_criterion_must_be_beyond_its_null():
    assert verdicts([two_with_nulls(2, 0.6)])[0].says == BELOW_MARGIN
    assert verdicts([two_with_nulls(0.6, 0.6)])[0].says == BELOW_MARGIN
    assert verdicts([two_with_nulls(0.6, 0.0)])[0].says == REFUTED
    assert verdicts([two_with_nulls(2, -0.6)])[0].says == REFUTED


def test_what_is_also_measured_has_no_part_in_the_verdict():
    beside = Criterion("beside", "a number", GREATER, 0.0, "planted", decides=False)
    for value in (-5.0, 0.0, math.nan):
        criteria, finding = claim(1.0)
        measured = Measured(Estimate(value, 0.1, 19, 20, PROMPT, centre=value))
        (alone_,) = verdicts([(criteria, finding)])
        both = (*criteria, beside), Finding({**finding.measured, "beside": measured})
        (found,) = verdicts([both])
        assert (found.says, found.p, found.level) == (alone_.says, alone_.p, alone_.level)
        assert set(found.intervals) == {"it", "beside"}
    wrong = (beside, *claim(-1.0)[0]), Finding({"beside": measured, **claim(-1.0)[1].measured})
    assert verdicts([wrong])[0].level == pytest.approx(0.95)  # one criterion decides


def test_a_refuted_claim_says_its_power_too():
    (found,) = verdicts([with_null(0.0, 0.0)])
    assert found.says == REFUTED
    assert 1.0 < found.detectable["it"] < 1.6


@pytest.mark.parametrize("share_at_null", [1.0, 0.5, 0.0])
def test_a_false_statement_about_margin_or_null_is_at_most_at_the_error_rate(share_at_null):
    """Claims on their nulls must not be called below the margin, claims on their margins nothing;
    in any mixture of both."""
    rng, wrong, count = np.random.default_rng(3), 0, 12
    one = criterion(GREATER, 10.0)
    at_null = np.arange(count) < share_at_null * count
    truth = np.where(at_null, 0.0, 10.0)
    for _ in range(RUNS):
        each = rng.normal(truth[:, None], 1, (count, 24))
        found = verdicts(
            [((one,), Finding({"it": Measured(Estimate.mean(v, PROMPT), 0.0)})) for v in each]
        )
        false = [
            verdict.says
            in ((SUPPORTED, BELOW_MARGIN) if null else (SUPPORTED, REFUTED, BELOW_MARGIN))
            for verdict, null in zip(found, at_null, strict=True)
        ]
        wrong += any(false)
    assert wrong / RUNS <= 0.05 + SLACK


@pytest.mark.parametrize(
    ("direction", "null", "says"),
    [(EQUAL, math.nan, SUPPORTED), (GREATER, -0.02, BELOW_MARGIN)],
)
def test_units_that_all_lie_on_a_bound_have_a_verdict(direction, null, says):
    zeros = Measured(Estimate.mean(np.zeros(50), PROMPT, (0.0, 1.0)), null)
    judged = (criterion(direction, margin=0.1),), Finding({"it": zeros})
    assert verdicts([judged])[0].says == says
