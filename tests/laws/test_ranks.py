"""Ranks, trends, lifetimes and likeness of many series: against scipy, one series at a time."""

import warnings

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from anchorwatch.errors import SpecError
from anchorwatch.metrics.stats import ranks
from tolerances import STATISTIC

grid = st.integers(-4, 4).map(float)  # few values, so that ties are many
maybe = st.one_of(grid, st.floats(-50, 50).map(lambda x: round(x, 3)), st.just(np.nan))


@st.composite
def pairs_of_series(draw, elements=maybe):
    shape = draw(st.tuples(st.integers(1, 3), st.integers(0, 9)))
    return tuple(draw(hnp.arrays(float, shape, elements=elements)) for _ in range(2))


def close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=STATISTIC, atol=STATISTIC)


def known(x, y):
    there = ~np.isnan(x) & ~np.isnan(y)
    return x[there], y[there]


def varies(*series):
    return all(len(set(values.tolist())) > 1 for values in series)


# auroc


@given(hnp.arrays(float, (3, 9), elements=maybe), hnp.arrays(bool, (3, 9)))
def test_auroc_is_the_share_of_pairs_won(scores, labels):
    found = ranks.auroc(scores, labels)
    for row in range(3):
        values, true = known(scores[row], labels[row].astype(float))
        hits, misses = values[true == 1], values[true == 0]
        won = [(h > m) + (h == m) / 2 for h in hits for m in misses]
        close(found[row], np.mean(won) if won else np.nan)
    close(ranks.auroc(-scores, labels), 1 - found)
    close(ranks.auroc(scores, ~labels), 1 - found)


def test_auroc_of_one_series_and_of_infinite_scores():
    assert ranks.auroc([0.1, 0.9, 0.5], [False, True, True]) == 1
    assert ranks.auroc([-np.inf, np.inf], [False, True]) == 1
    assert ranks.auroc([[1, 2], [2, 1]], [False, True]).tolist() == [1, 0]
    assert np.isnan(ranks.auroc([1.0, 2.0], [True, True]))


def test_the_interval_of_auroc_is_the_loop_that_draws_prompts():
    rng = np.random.default_rng(0)
    prompts = np.repeat(["a", "b", "c", "d", "e", "f"], 7)
    scores, labels = rng.integers(0, 9, 42).astype(float), rng.random(42) < 0.3
    scores[:3] = np.nan
    found = ranks.auroc_interval(scores, labels, prompts, draws=50, level=0.8)
    drawn = []
    for weight in np.random.default_rng(0).multinomial(6, np.full(6, 1 / 6), size=50):
        places = [
            place
            for name, times in zip("abcdef", weight, strict=True)
            for _ in range(times)
            for place in np.flatnonzero(prompts == name)
        ]
        drawn.append(ranks.auroc(scores[places], labels[places]))
    tail = 100 * scipy.stats.norm.cdf(-scipy.stats.t.ppf(0.9, 5) * np.sqrt(6 / 5))
    close([found.low, found.high], np.nanpercentile(drawn, [tail, 100 - tail]))
    assert found.value == ranks.auroc(scores, labels)
    assert (found.n, found.why, found.level) == (6, "", 0.8)


def test_few_prompts_or_one_class_have_no_interval_of_auroc():
    labels = np.arange(8) % 2 == 0
    few = ranks.auroc_interval(np.arange(8.0), labels, np.arange(8) // 2)
    assert few.why == "4 prompts, 5 needed"
    assert np.isnan([few.low, few.high]).all()
    close(few.value, 0.375)
    one = ranks.auroc_interval(np.arange(8.0), np.ones(8, dtype=bool), np.arange(8))
    assert one.why == "one class is empty"
    assert np.isnan([one.value, one.low]).all()


# lifetimes


@given(hnp.arrays(int, (2, 2, 6), elements=st.integers(0, 4)))
def test_survival_is_scipys(counts):
    ended, censored = counts
    found = ranks.kaplan_meier(ended, censored)
    durations = np.arange(1, 7)
    for row in range(2):
        uncensored, right = (np.repeat(durations, part[row]) for part in counts)
        assert found.n[row] == len(uncensored) + len(right)
        if not found.n[row]:
            assert np.isnan(found.value[row]).all()
            continue
        data = scipy.stats.CensoredData(uncensored=uncensored, right=right)
        twin = scipy.stats.ecdf(data).sf
        seen = (durations <= max(*uncensored, *right, 0)) | (found.value[row] == 0)
        close(found.value[row][seen], twin.evaluate(durations[seen]))
        assert np.isnan(found.value[row][~seen]).all()
        half = durations[seen][found.value[row][seen] <= 0.5 + STATISTIC]
        close(found.median[row], half[0] if len(half) else np.nan)
        assert found.at_risk[row].tolist() == [sum(counts[:, row, d:].ravel()) for d in range(6)]


@given(hnp.arrays(int, (2, 6), elements=st.integers(0, 4)))
def test_greenwoods_error_is_the_sum_over_ends(counts):
    ended, censored = counts
    found = ranks.kaplan_meier(ended, censored)
    total, left = 0.0, int(counts.sum())
    for duration in range(6):
        share = found.value[duration]
        if left and ended[duration] < left:
            total += ended[duration] / (left * (left - ended[duration]))
            close(found.error[duration], share * np.sqrt(total))
        else:
            assert np.isnan(found.error[duration])
        left -= counts[:, duration].sum()
        if not share > 0:
            break


def test_known_survival():
    # without censoring it is the share that is left, and its error is the binomial one
    found = ranks.kaplan_meier([3, 1, 0, 4, 2], np.zeros(5))
    close(found.value, [0.7, 0.6, 0.6, 0.2, 0.0])
    close(found.error[:4] ** 2, [0.021, 0.024, 0.024, 0.016])
    assert found.median == 4
    assert np.isnan(ranks.kaplan_meier([1, 0], [0, 5]).median)
    # after the last end nobody is left and it stays 0; after the last sight nobody knows
    assert ranks.kaplan_meier([2, 0], [0, 0]).value.tolist() == [0, 0]
    close(ranks.kaplan_meier([1, 0, 0], [0, 1, 0]).value, [0.5, 0.5, np.nan])
    assert ranks.kaplan_meier([[1, 1], [2, 0]], [0, 0]).median.tolist() == [1, 1]


# correlation and trend


@given(pairs_of_series())
def test_kendall_is_scipys_tau_b(pair):
    x, y = pair
    found = ranks.kendall(x, y)
    for row in range(len(x)):
        one, two = known(x[row], y[row])
        close(
            found[row], scipy.stats.kendalltau(one, two).statistic if varies(one, two) else np.nan
        )


@given(pairs_of_series())
def test_spearman_is_scipys_rho(pair):
    x, y = pair
    found = ranks.spearman(x, y)
    for row in range(len(x)):
        one, two = known(x[row], y[row])
        close(found[row], scipy.stats.spearmanr(one, two).statistic if varies(one, two) else np.nan)


@given(pairs_of_series())
def test_theil_sen_is_scipys_line(pair):
    x, y = pair
    found = ranks.theil_sen(x, y)
    for row in range(len(x)):
        one, two = known(x[row], y[row])
        assert found.n[row] == len(one)
        if varies(one):
            with warnings.catch_warnings():  # of scipy's interval, which is not ours
                warnings.simplefilter("ignore", RuntimeWarning)
                twin = scipy.stats.theilslopes(two, one)
            close([found.value[row], found.intercept[row]], [twin.slope, twin.intercept])
        else:
            assert np.isnan([found.value[row], found.intercept[row]]).all()


def test_long_series_in_chunks_and_one_clock_for_all():
    rng = np.random.default_rng(0)
    clock, y = np.arange(300.0), rng.normal(size=(2, 100, 300)).cumsum(-1)
    y[0, 0, :250] = np.nan
    trend, tau = ranks.theil_sen(clock, y), ranks.kendall(clock, y)
    assert trend.value.shape == tau.shape == (2, 100)
    assert trend.n[0, 0] == 50
    for place in ((0, 0), (1, 99)):
        one, two = known(clock, y[place])
        close(trend.value[place], scipy.stats.theilslopes(two, one).slope)
        close(tau[place], scipy.stats.kendalltau(one, two).statistic)


@given(pairs_of_series(), st.floats(0.1, 9), st.floats(-9, 9))
def test_ranks_ignore_a_rising_change_and_trends_follow_a_straight_one(pair, scale, shift):
    x, y = pair
    close(ranks.kendall(x, np.exp(y / 9)), ranks.kendall(x, y))
    close(ranks.spearman(x, np.arctan(y)), ranks.spearman(x, y))
    close(ranks.kendall(y, -x), -ranks.kendall(x, y))
    plain, moved = ranks.theil_sen(x, y), ranks.theil_sen(x, scale * y + shift)
    close(moved.value, scale * plain.value)
    close(moved.intercept, scale * plain.intercept + shift)


def test_the_arguments_stay_as_they_were():
    x, y = np.array([3.0, 1, 2]), np.array([1.0, np.nan, 0])
    for measure in (
        ranks.kendall,
        ranks.theil_sen,
        ranks.spearman,
        ranks.cosine,
        ranks.jensen_shannon,
    ):
        measure(x, y)
    assert x.tolist() == [3, 1, 2]
    assert y[[0, 2]].tolist() == [1, 0]


# likeness


@given(pairs_of_series())
def test_cosine_is_the_dot_over_the_lengths(pair):
    found = ranks.cosine(*pair)
    for row in range(len(found)):
        one, two = known(pair[0][row], pair[1][row])
        length = np.linalg.norm(one) * np.linalg.norm(two)
        close(found[row], one @ two / length if length else np.nan)


@given(pairs_of_series(elements=st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.1, 5))))
def test_jensen_shannon_is_scipys_squared_distance_in_bits(pair):
    p, q = pair
    found = ranks.jensen_shannon(p, q)
    for row in range(len(p)):
        if p[row].sum() and q[row].sum():
            # scipy takes the root of a rounded divergence, NaN when that is below zero
            with np.errstate(invalid="ignore"):
                distance = scipy.spatial.distance.jensenshannon(p[row], q[row], base=2)
            close(found[row], np.nan_to_num(distance) ** 2)
        else:
            assert np.isnan(found[row])
    close(ranks.jensen_shannon(q, p), found)
    close(ranks.jensen_shannon(7 * p, q), found)


def test_known_divergences():
    assert ranks.jensen_shannon([1, 0], [0, 1]) == 1
    assert ranks.jensen_shannon([0.5, 0.5, 0], [1, 1, 0]) == 0
    close(ranks.jensen_shannon([1, 0], [0.5, 0.5]), 0.31127812445913283)
    assert ranks.jensen_shannon([1, np.nan, 3], [1, 9, 3]) == 0


THREE = np.zeros(3)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: ranks.auroc(THREE, THREE),
            "labels are float64: give a boolean array, NaN goes into",
        ),
        (
            lambda: ranks.auroc(THREE, [True]),
            r"scores has shape \(3,\) and labels has shape \(1,\): the",
        ),
        (
            lambda: ranks.auroc_interval(THREE, THREE > 0, [1, 2]),
            r"shape \(3,\) and clusters \(2,\): give one series, and the prompt of each score",
        ),
        (
            lambda: ranks.auroc_interval(THREE, THREE > 0, THREE, draws=0),
            "draws=0 is not a whole number of at least 1",
        ),
        (
            lambda: ranks.kendall(THREE, THREE[:2]),
            "the last axes must be alike, the others must broad",
        ),
        (
            lambda: ranks.spearman(np.zeros((2, 3)), np.zeros((4, 3))),
            r"has shape \(4, 3\): the last ax",
        ),
        (lambda: ranks.cosine(1.0, 2.0), r"the first has shape \(\) and the second has shape \(\)"),
        (
            lambda: ranks.theil_sen(THREE, [1, 2, np.inf]),
            "an infinite value: use NaN where there is",
        ),
        (
            lambda: ranks.kaplan_meier([1, -1], [0, 0]),
            "durations 1, 2, ...: give whole numbers, 0 for",
        ),
        (lambda: ranks.kaplan_meier([1, 1], [0, np.nan]), "give whole numbers, 0 for none"),
        (lambda: ranks.kaplan_meier([], []), "runs are counted at durations 1, 2"),
        (
            lambda: ranks.jensen_shannon([1, -1], [1, 1]),
            "negative or infinite: give shares or counts",
        ),
        (lambda: ranks.jensen_shannon([1, 1], [1, np.inf]), "negative or infinite"),
    ],
)
def test_the_impossible_is_refused_with_what_would_have_worked(call, says):
    with pytest.raises(SpecError, match=says):
        call()
