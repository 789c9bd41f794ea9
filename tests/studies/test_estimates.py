"""Intervals, p-values and power of one estimate: against scipy, by simulation, and at the edges."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import tolerances
from anchorwatch.studies.estimate import (
    ITEM,
    PROMPT,
    SEED,
    Correlation,
    Estimate,
    Greatest,
    Least,
)

VALUES = st.lists(st.floats(-5, 5), min_size=5, max_size=30).filter(lambda v: np.ptp(v) > 1e-3)


@given(VALUES, st.floats(0.5, 0.999))
def test_a_mean_has_students_interval(values, level):
    found = Estimate.mean(values, PROMPT)
    twin = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(level)
    assert found.interval(level) == pytest.approx(twin, abs=tolerances.STATISTIC)
    assert found.n == len(values)


@given(VALUES, st.floats(-6, 6))
def test_one_sided_p_values_are_scipys(values, limit):
    found = Estimate.mean(values, PROMPT)
    above = scipy.stats.ttest_1samp(values, limit, alternative="greater").pvalue
    below = scipy.stats.ttest_1samp(values, limit, alternative="less").pvalue
    assert found.p_above(limit) == pytest.approx(above, abs=tolerances.STATISTIC)
    assert found.p_below(limit) == pytest.approx(below, abs=tolerances.STATISTIC)


@given(
    st.one_of(
        VALUES.map(lambda v: Estimate.mean(v, PROMPT)),
        st.tuples(st.floats(0.1, 0.9), st.integers(5, 80)).map(
            lambda one: Estimate.mean([one[0]] * one[1], PROMPT, (0.0, 1.0))
        ),
    ),
    st.floats(0.01, 0.99),
    st.floats(0.5, 0.999),
)
def test_an_interval_leaves_out_what_its_p_rejects(found, limit, level):
    low, high = found.interval(level)
    tail = (1 - level) / 2
    for bound, p in ((low, found.p_above(limit)), (high, found.p_below(limit))):
        if abs(bound - limit) > 1e-9:
            assert (p < tail) == (bound > limit if bound is low else bound < limit)


@pytest.mark.parametrize("n", [5, 20, 100])
def test_alike_units_leave_room_for_as_many_others_as_could_be_missed(n):
    low, high = Estimate.mean([1.0] * n, PROMPT, (0.0, 1.0)).interval(0.95)
    # n units of a share q of ones are all ones with chance q^n: exactly the tail at the bound
    assert low**n == pytest.approx(0.025)
    assert high == 1.0
    inner = Estimate.mean([0.4] * n, PROMPT, (0.0, 1.0)).interval(0.95)
    assert inner[0] == pytest.approx(0.4 * low)
    assert inner[1] == pytest.approx(0.4 + 0.6 * (1 - low))


def test_alike_units_without_bounds_have_no_interval():
    found = Estimate.mean([0.3] * 9, PROMPT)
    assert found.why == "no two prompts differ"
    assert all(map(math.isnan, found.interval(0.95)))
    assert found.p_above(-10) == found.p_below(10) == 1.0


def test_too_few_units_have_no_interval_and_say_so():
    assert Estimate.mean([0.1, 0.2, 0.3, 0.4], PROMPT).why == "4 prompts, 5 needed"
    assert Estimate.mean([0.1, 0.2], SEED).why == "2 training seeds, 3 needed"
    assert Estimate.mean([0.1, 0.2, 0.4], SEED).why == ""
    absent = Estimate.mean([np.nan] * 6, ITEM)
    assert (absent.n, absent.missing, absent.why) == (0, 6, "0 items, 5 needed")


def test_pairs_that_hardly_differ_are_not_certain():
    wrong, right = np.zeros(100), np.r_[np.ones(3), np.zeros(97)]
    found = Estimate.pairs(right, wrong, ITEM)
    assert found.value == pytest.approx(0.03)
    exact = scipy.stats.binomtest(3, 3, 0.5, alternative="greater").pvalue
    plain = Estimate.mean(right - wrong, ITEM).p_above(0)
    assert abs(found.p_above(0) - exact) < abs(plain - exact)


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.3])
def test_pairs_cover_the_truth(rate):
    rng, held = np.random.default_rng(1), 0
    for _ in range(2000):
        gap = rng.choice([-1.0, 0.0, 1.0], 200, p=[rate / 3, 1 - rate, 2 * rate / 3])
        low, high = Estimate.pairs(np.maximum(gap, 0), np.maximum(-gap, 0), ITEM).interval(0.95)
        held += low <= rate / 3 <= high
    assert held / 2000 >= tolerances.COVERED[0]


@pytest.mark.parametrize(("value", "limit", "side"), [(1.0, 0.75, 1), (0.0, 0.2, -1), (1, 0.5, 1)])
@pytest.mark.parametrize("tail", [0.05, 0.001])
def test_units_that_are_all_alike_say_how_many_it_takes(value, limit, side, tail):
    few = Estimate.mean(np.full(10, value), PROMPT, (0.0, 1.0))
    needed = few.units_needed(limit, side, tail)

    def p_value(count):
        estimate = Estimate.mean(np.full(count, value), PROMPT, (0.0, 1.0))
        return estimate.p_above(limit) if side > 0 else estimate.p_below(limit)

    assert p_value(max(needed, 5)) <= tail
    assert needed <= 5 or p_value(needed - 1) > tail


@pytest.mark.parametrize(("kind", "value", "side"), [(Least, 0.0, -1), (Greatest, 1.0, 1)])
def test_any_of_several_estimates_shares_the_level(kind, value, side):
    def among(count):
        return kind.among([Estimate.mean(np.full(count, value), PROMPT, (0.0, 1.0))] * 3)

    def p_value(count):
        return among(count).p_above(0.5) if side > 0 else among(count).p_below(0.5)

    needed = among(10).units_needed(0.5, side, 0.005)
    assert p_value(needed) <= 0.005 < p_value(needed - 1)


def test_units_that_differ_or_lie_on_the_other_side_need_no_number():
    differ = Estimate.mean([0.9, 1.0, 0.8, 1.0, 0.9], PROMPT, (0.0, 1.0))
    alike = Estimate.mean(np.ones(10), PROMPT, (0.0, 1.0))
    assert differ.units_needed(0.5, 1, 0.05) is None
    assert alike.units_needed(0.5, -1, 0.05) is None
    assert Estimate.mean(np.ones(10), PROMPT).units_needed(0.5, 1, 0.05) is None


FINITE = st.floats(-1e6, 1e6)
ALIKE = st.tuples(FINITE, FINITE, FINITE, st.integers(5, 60)).map(
    lambda drawn: Estimate.mean(
        np.full(drawn[3], sorted(drawn[:3])[1]), PROMPT, (min(drawn[:3]), max(drawn[:3]))
    )
)
"""Alike units anywhere within their bounds, on them too."""


@given(ALIKE, FINITE, FINITE, st.floats(1e-6, 0.5))
def test_alike_units_answer_any_limit_and_a_farther_limit_is_rejected_more(found, a, b, tail):
    near = [*(found.bounds or ()), found.value]
    limits = sorted(
        [a, b, *near, *(math.nextafter(x, side * math.inf) for x in near for side in (-1, 1))]
    )
    above, below = ([p(limit) for limit in limits] for p in (found.p_above, found.p_below))
    assert all(0 <= p <= 1 for p in (*above, *below))
    assert above == sorted(above)
    assert below == sorted(below, reverse=True)
    for limit in limits:
        for side in (1, -1):
            needed = found.units_needed(limit, side, tail)
            assert needed is None or needed >= 1


@pytest.mark.parametrize(("value", "limit", "side"), [(0.0, -0.1, 1), (1.0, 1.1, -1)])
def test_nothing_lies_beyond_a_bound(value, limit, side):
    found = Estimate.mean(np.full(50, value), PROMPT, (0.0, 1.0))
    assert (found.p_above(limit) if side > 0 else found.p_below(limit)) == 0.0
    assert found.units_needed(limit, side, 0.01) == 1


def test_a_limit_that_all_but_touches_its_bound_takes_one_unit():
    assert Estimate.mean([2.0] * 5, PROMPT, (0.0, 2.0)).units_needed(5e-324, 1, 0.5) == 1


def test_no_number_of_units_tells_a_value_from_a_limit_that_rounds_to_it():
    found = Estimate.mean(np.full(50, 1e-17), PROMPT, (-1.0, 1.0))
    assert found.p_above(0.0) == 1.0
    assert found.units_needed(0.0, 1, 0.01) is None


def test_a_jackknife_of_a_mean_is_the_mean():
    values = np.random.default_rng(0).normal(1, 2, 40)
    found = Estimate.jackknife(values[:, None], lambda means: float(means[0]), PROMPT)
    plain = Estimate.mean(values, PROMPT)
    assert found.interval(0.95) == pytest.approx(plain.interval(0.95), abs=tolerances.STATISTIC)


def test_a_jackknife_of_a_ratio_covers_it():
    rng, held = np.random.default_rng(0), 0
    for _ in range(1000):
        base = rng.gamma(4, 0.5, 40)
        rows = np.stack([1.5 * base + rng.normal(0, 0.5, 40), base], axis=1)
        found = Estimate.jackknife(rows, lambda means: float(means[0] / means[1]), PROMPT)
        low, high = found.interval(0.95)
        held += low <= 1.5 <= high
    assert tolerances.COVERED[0] <= held / 1000 <= tolerances.COVERED[1] + 0.01


def moments(x, y):
    return np.stack([x, y, x * y, x**2, y**2], axis=1)


def pearson(means):
    x, y, xy, xx, yy = means
    size = math.sqrt(max(xx - x * x, 0.0) * max(yy - y * y, 0.0))
    return (xy - x * y) / size if size > 0 else math.nan


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_a_correlation_covers_the_truth_and_stays_within_its_ends(rho):
    rng, held, runs = np.random.default_rng(0), 0, 1000
    for _ in range(runs):
        x, own = rng.normal(size=(2, 24))
        y = rho * x + math.sqrt(1 - rho**2) * own
        found = Correlation.jackknife(moments(x, y), pearson, PROMPT)
        assert found.value == pytest.approx(np.corrcoef(x, y)[0, 1], abs=tolerances.STATISTIC)
        low, high = found.interval(0.95)
        assert -1 < low < high < 1
        held += low <= rho <= high
    assert tolerances.COVERED[0] - 0.02 <= held / runs <= tolerances.COVERED[1] + 0.02


@given(st.integers(0, 1000), st.floats(-0.9, 0.9), st.floats(0.5, 0.999))
def test_a_correlation_s_interval_leaves_out_what_its_p_rejects(seed, limit, level):
    x, own = np.random.default_rng(seed).normal(size=(2, 12))
    found = Correlation.jackknife(moments(x, 0.5 * x + own), pearson, PROMPT)
    low, high = found.interval(level)
    tail = (1 - level) / 2
    assert (found.p_above(limit) < tail) == (low > limit)
    assert (found.p_below(limit) < tail) == (high < limit)
    assert -1 < found.beyond(limit, -1.0, tail) < limit < found.beyond(limit, 1.0, tail) < 1


def test_a_correlation_of_one_and_one_of_nothing_have_no_interval():
    x = np.random.default_rng(0).normal(size=9)
    whole = Correlation.jackknife(moments(x, 2 * x), pearson, PROMPT)
    assert whole.why
    assert math.isnan(whole.interval(0.95)[0])
    none = Correlation.jackknife(moments(x * np.nan, x), pearson, PROMPT)
    assert (none.n, none.missing) == (0, 9)
    assert none.p_above(-0.5) == none.p_below(0.5) == 1.0


def test_reach_is_what_is_shown_four_times_in_five():
    rng, shown, error = np.random.default_rng(0), 0, 1 / math.sqrt(20)
    beyond = Estimate(0.0, error, 19, 20, PROMPT, centre=0.0).reach(0.025)
    for _ in range(2000):
        found = Estimate.mean(rng.normal(beyond, 1, 20), PROMPT)
        shown += found.interval(0.95)[0] > 0
    assert shown / 2000 == pytest.approx(0.8, abs=tolerances.of_trials(2000, 0.8))
