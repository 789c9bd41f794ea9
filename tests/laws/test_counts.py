"""Proportions, paired answers and 2 x 2 tables: against scipy and printed tables."""

import numpy as np
import pytest
import scipy
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from anchorwatch.errors import SpecError
from anchorwatch.metrics.stats import counts
from tolerances import BINOMIAL_ERRORS, PUBLISHED, STATISTIC

few = st.integers(0, 40)
tables = hnp.arrays(int, (3, 2, 2), elements=few)
answers = hnp.arrays(bool, hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=12))


def close(got, expected, tolerance=STATISTIC):
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def test_wilson_of_no_trials_says_so():
    found = counts.wilson(0, 0, level=0.95)
    assert np.isnan([found.value, found.low, found.high]).all()
    assert found.why == "0 trials, 1 needed"


@given(few, few, st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_is_scipys(successes, failures, level):
    n = successes + failures
    assume(n)
    found = counts.wilson(successes, n, level=level)
    twin = scipy.stats.binomtest(successes, n).proportion_ci(level, method="wilson")
    close([found.value, found.low, found.high], [successes / n, *twin])
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_wilson_takes_arrays():
    found = counts.wilson([[0, 5], [10, 3]], 10)
    assert found.value.tolist() == [[0, 0.5], [1, 0.3]]
    assert found.low[0, 0] == 0
    assert found.high[1, 0] == 1
    assert found.n.tolist() == [[10, 10], [10, 10]]


@given(few, few)
def test_mcnemar_is_the_sign_test_of_the_pairs_that_differ(a_only, b_only):
    found = counts.mcnemar(a_only, b_only)
    apart = a_only + b_only
    close(found.p, min(1, 2 * scipy.stats.binom.cdf(min(a_only, b_only), apart, 0.5)))
    assert found.n == apart
    assert found.why == "both and neither are not given"
    assert np.isnan([found.value, found.low, found.high]).all()
    close(counts.mcnemar(b_only, a_only).p, found.p)


def test_the_paired_difference_has_newcombes_interval():
    # 1998, method 10; quoted from memory, the paper was not at hand
    found = counts.mcnemar(12, 2, both=36, neither=0)
    close([found.value, found.low, found.high], [0.2, 0.0569, 0.3404], PUBLISHED)


def test_the_paired_interval_covers_a_planted_difference():
    trials, chances = 600, [0.4, 0.25, 0.1, 0.25]
    covered = 0
    for table in np.random.default_rng(0).multinomial(40, chances, size=trials).tolist():
        both, a_only, b_only, neither = table
        found = counts.mcnemar(a_only, b_only, both=both, neither=neither)
        covered += found.low <= 0.15 <= found.high
    assert abs(covered / trials - 0.95) < BINOMIAL_ERRORS * np.sqrt(0.95 * 0.05 / trials)


@given(few, few, few, few)
def test_the_paired_interval_turns_with_the_pairs_and_stays_in_range(both, a_only, b_only, neither):
    one = counts.mcnemar(a_only, b_only, both=both, neither=neither)
    two = counts.mcnemar(b_only, a_only, both=both, neither=neither)
    other = counts.mcnemar(a_only, b_only, both=neither, neither=both)
    close([one.value, one.low, one.high], [-two.value, -two.high, -two.low])
    close([one.low, one.high], [other.low, other.high])
    if one.n:
        assert -1 - STATISTIC <= one.low <= one.value <= one.high <= 1 + STATISTIC
    else:
        assert one.why == "0 pairs, 1 needed"
        assert np.isnan(one.low)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20))
def test_two_boolean_arrays_are_counted(pairs):
    a, b = np.array(pairs, dtype=bool).reshape(-1, 2).T
    found = counts.mcnemar_of(a, b)
    by_hand = counts.mcnemar(
        pairs.count((True, False)),
        pairs.count((False, True)),
        both=pairs.count((True, True)),
        neither=pairs.count((False, False)),
    )
    close(
        [found.p, found.value, found.low, found.n],
        [by_hand.p, by_hand.value, by_hand.low, len(pairs)],
    )


@given(tables)
def test_odds_ratios_are_scipys_where_no_cell_is_empty(table):
    found = counts.odds_ratio(table)
    for one in range(3):
        close(found.p[one], scipy.stats.fisher_exact(table[one]).pvalue)
        halved = table[one] + (0.5 if (table[one] == 0).any() else 0)
        close(found.value[one], halved[0, 0] * halved[1, 1] / (halved[0, 1] * halved[1, 0]))
        if (table[one] > 0).all():
            twin = scipy.stats.contingency.odds_ratio(table[one], kind="sample")
            close(found.value[one], twin.statistic)
            close([found.low[one], found.high[one]], [*twin.confidence_interval()])
    assert (found.low < found.value).all()
    assert (found.n == table.sum((1, 2))).all()


def test_an_empty_cell_without_haldane_has_no_interval():
    found = counts.odds_ratio([[[5, 0], [2, 4]], [[5, 1], [2, 4]]], haldane=False)
    assert found.value.tolist() == [np.inf, 10]
    assert np.isnan(found.low).tolist() == [True, False]
    assert found.why.tolist() == ["an empty cell, haldane=True needed", ""]
    close(counts.odds_ratio([[5, 0], [2, 4]]).value, 5.5 * 4.5 / (0.5 * 2.5))
    assert np.isnan(counts.odds_ratio([[0, 0], [2, 4]], haldane=False).value)


@given(answers, st.integers(0, 9))
def test_kappa_is_agreement_beyond_chance(a, seed):
    b = np.random.default_rng(seed).random(a.shape) < 0.5
    found = np.atleast_1d(counts.cohens_kappa(a, b))
    for one, x, y in zip(found.ravel(), np.atleast_2d(a), np.atleast_2d(b), strict=True):
        n = len(x)
        agreed = sum(p == q for p, q in zip(x, y, strict=True)) / n if n else np.nan
        chance = x.mean() * y.mean() + (1 - x.mean()) * (1 - y.mean()) if n else np.nan
        close(one, (agreed - chance) / (1 - chance) if n and chance < 1 else np.nan)


def test_known_kappas_and_one_reference_for_many():
    close(counts.cohens_kappa_of([[20, 5], [10, 15]]), 0.4)
    a = np.array([[True, True, False, False], [False, False, True, True], [True] * 4])
    close(counts.cohens_kappa(a, a[0]), [1, -1, 0])
    assert np.isnan(counts.cohens_kappa(a[2], a[2]))


YES = np.array([True, False])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: counts.wilson(3, 2), "successes exceed n: give the successes among n trials"),
        (lambda: counts.wilson(-1, 2), "successes: a count is not a whole number of at least 0"),
        (lambda: counts.wilson(1, 2.5), "n: a count is not a whole number of at least 0"),
        (lambda: counts.wilson(1, 2, level=0), "level=0 is not above 0 and below 1"),
        (lambda: counts.mcnemar(0.5, 2), "a_only and b_only: a count is not a whole number"),
        (
            lambda: counts.mcnemar(1, 2, both=-1, neither=0),
            "both and neither: a count is not a whole",
        ),
        (lambda: counts.mcnemar_of([1, 0], YES), "a is int64 and b bool: give boolean arrays"),
        (
            lambda: counts.cohens_kappa(YES, YES[:1]),
            r"a has shape \(2,\) and b has shape \(1,\): the",
        ),
        (
            lambda: counts.odds_ratio([1, 2, 3, 4]),
            r"table has shape \(4,\): give counts \[..., 2, 2\]",
        ),
        (lambda: counts.odds_ratio([[1, 2], [3, np.nan]]), "table: a count is not a whole number"),
    ],
)
def test_the_impossible_is_refused_with_what_would_have_worked(call, says):
    with pytest.raises(SpecError, match=says):
        call()
