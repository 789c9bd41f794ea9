"""Intervals and tests over prompts, against loops and scipy, on planted data, and what they refuse."""

import tracemalloc

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from anchorwatch.errors import SpecError
from anchorwatch.metrics.stats import clusters as stats
from tolerances import BINOMIAL_ERRORS, DRAWN, STATISTIC

finite = st.floats(-50, 50).map(lambda x: round(x, 3))
maybe = st.one_of(finite, st.just(np.nan))


def rows(cells, least=0, most=9, elements=maybe):
    shape = st.integers(least, most).map(lambda clusters: (clusters, cells))
    return hnp.arrays(float, shape, elements=elements)


def close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=STATISTIC, atol=STATISTIC)


def within_binomial_error(share, expected, trials):
    return abs(share - expected) < BINOMIAL_ERRORS * np.sqrt(expected * (1 - expected) / trials)


def loop_bootstrap(values, draws, level, seed):
    """One cell: repeat each row as often as it was drawn, and take the mean of what is there."""
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(len(values), np.full(len(values), 1 / len(values)), size=draws)
    means = []
    for weight in weights:
        drawn = [v for v, times in zip(values, weight, strict=True) for _ in range(times)]
        drawn = [v for v in drawn if not np.isnan(v)]
        if drawn:
            means.append(sum(drawn) / len(drawn))
    tail = 100 * tail_by_hand(level, int(np.sum(~np.isnan(values))))
    return np.percentile(means, [tail, 100 - tail])


def tail_by_hand(level, n):
    """As far out as Student's t is, which a bootstrap of n values falls short of by (n - 1) / n."""
    reach = scipy.stats.t.ppf((1 + level) / 2, n - 1) * np.sqrt(n / (n - 1))
    return scipy.stats.norm.cdf(-reach)


# the bootstrap


@given(rows(cells=3, least=1), st.integers(1, 60), st.sampled_from([0.5, 0.9, 0.95]))
def test_the_bootstrap_is_the_loop_that_draws_prompts(values, draws, level):
    found = stats.cluster_bootstrap(values, draws=draws, level=level, seed=3)
    for cell in range(3):
        column = values[:, cell]
        known = column[~np.isnan(column)]
        assert found.n[cell] == len(known)
        close(found.value[cell], known.mean() if len(known) else np.nan)
        bounds = loop_bootstrap(column, draws, level, 3) if len(known) >= 5 else [np.nan, np.nan]
        close([found.low[cell], found.high[cell]], bounds)


@given(rows(cells=2, least=5, elements=finite), finite, st.floats(0.1, 10))
def test_the_bootstrap_moves_and_stretches_with_its_values(values, shift, scale):
    plain, moved = (stats.cluster_bootstrap(v, draws=50) for v in (values, scale * values + shift))
    for name in ("value", "low", "high"):
        close(getattr(moved, name), scale * getattr(plain, name) + shift)
    assert (plain.low <= plain.high).all()


def test_the_bootstrap_covers_nearly_as_often_as_it_says():
    # plain percentiles would cover 0.84 with 5 prompts and 0.89 with 8
    for clusters, theirs in ((5, 0.92), (8, 0.94), (20, 0.95), (60, 0.95)):
        values = np.random.default_rng(clusters).normal(3.0, 2.0, (clusters, 2000))
        found = stats.cluster_bootstrap(values)
        share = np.mean((found.low <= 3) & (found.high >= 3))
        assert within_binomial_error(share, theirs, 2000)


def test_prompts_are_the_unit_and_not_their_heads():
    # 8 heads repeat what their prompt says: as rows they would look like 8 times the evidence
    prompt = np.random.default_rng(0).normal(size=(12, 1))
    heads = np.repeat(prompt, 8, axis=1)
    right, wrong = stats.cluster_bootstrap(heads.mean(1)), stats.cluster_bootstrap(heads.ravel())
    assert right.high - right.low > 2.5 * (wrong.high - wrong.low)


def test_fewer_than_five_prompts_have_a_value_and_a_word_but_no_interval():
    values = np.ones((6, 4))
    values[3:, 0], values[1:, 1], values[1:, 2] = np.nan, np.nan, 2.0
    values[:, 3] = np.nan
    found = stats.cluster_bootstrap(values)
    assert found.why.tolist() == [
        "3 prompts, 5 needed", "1 prompt, 5 needed", "", "0 prompts, 5 needed",
    ]  # fmt: skip
    assert np.isnan(found.low).tolist() == [True, True, False, True]
    close(found.value, [1, 1, 11 / 6, np.nan])
    unpaired = stats.difference(values[:, 2], values[:4, 2], paired=False)
    assert (unpaired.n, unpaired.why) == (4, "4 prompts, 5 needed")
    assert np.isnan(unpaired.low)
    close(unpaired.value, 11 / 6 - 7 / 4)


def test_the_shape_of_the_other_axes_stays_and_none_gives_numbers():
    found = stats.cluster_bootstrap(np.zeros((7, 2, 3), dtype=np.float16), draws=10)
    assert found.value.shape == found.low.shape == found.n.shape == found.why.shape == (2, 3)
    single = stats.cluster_bootstrap([1, 2, 3, 4, 5])
    assert isinstance(single.value, float)
    assert single.why == ""
    assert stats.cluster_bootstrap(np.zeros((0, 2))).why.tolist() == ["0 prompts, 5 needed"] * 2
    assert stats.cluster_bootstrap(np.zeros((5, 0))).value.shape == (0,)


def test_the_seed_decides_the_interval_and_chunks_do_not(monkeypatch):
    values = np.random.default_rng(0).normal(size=(8, 50))
    values[0, :9] = np.nan
    first, again, other = (stats.cluster_bootstrap(values, seed=seed) for seed in (0, 0, 1))
    assert (first.low == again.low).all()
    assert (first.low != other.low).any()
    monkeypatch.setattr(stats, "CHUNK", 6000)
    close(stats.cluster_bootstrap(values).low, first.low)


def test_many_cells_stay_small_in_memory():
    values = np.random.default_rng(0).normal(size=(30, 8192)).astype(np.float32)
    tracemalloc.start()
    stats.cluster_bootstrap(values)
    assert tracemalloc.get_traced_memory()[1] < 100e6  # all draws at once would be 131e6
    tracemalloc.stop()


# two groups


@given(rows(cells=2, least=5), st.integers(0, 3))
def test_a_paired_difference_is_the_bootstrap_of_the_differences(values, seed):
    other = np.roll(values, 1, axis=0) ** 2
    paired = stats.difference(values, other, paired=True, draws=40, seed=seed)
    alone = stats.cluster_bootstrap(values - other, draws=40, seed=seed)
    for name in ("value", "low", "high", "n"):
        close(getattr(paired, name), getattr(alone, name))


def test_pairing_takes_the_prompt_out_of_the_interval():
    rng = np.random.default_rng(1)
    prompt = rng.normal(0, 10, 40)
    a, b = prompt + 1 + rng.normal(0, 0.1, 40), prompt + rng.normal(0, 0.1, 40)
    paired, unpaired = (stats.difference(a, b, paired=paired) for paired in (True, False))
    close(paired.value, unpaired.value)
    assert paired.low > 0.9
    assert unpaired.low < 0 < unpaired.high


def test_an_unpaired_difference_has_the_spread_of_both_groups():
    rng = np.random.default_rng(2)
    a, b = rng.normal(1, 1, 400), rng.normal(0, 2, 100)
    found = stats.difference(a, b, paired=False, draws=4000)
    error = np.sqrt(a.var() / 400 + b.var() / 100)
    close(found.value, a.mean() - b.mean())
    assert abs((found.high - found.low) / (2 * 1.96 * error) - 1) < DRAWN
    covered = 0
    for trial in range(200):
        rng = np.random.default_rng(trial)
        one = stats.difference(rng.normal(1, 1, 50), rng.normal(0, 3, 60), paired=False, draws=400)
        covered += one.low <= 1 <= one.high
    assert within_binomial_error(covered / 200, 0.95, 200)


@given(rows(cells=1, least=5, elements=st.floats(1, 9)), st.floats(0.5, 4), st.booleans())
def test_a_ratio_to_a_multiple_of_itself_is_that_multiple(values, times, paired):
    found = stats.ratio(times * values, values, paired=paired, draws=30)
    close(found.value, times)
    if paired:
        close([found.low, found.high], [[times], [times]])
    assert (found.low <= found.high).all()


def test_a_ratio_is_of_means_and_leaves_out_prompts_that_lack_one():
    a, b = np.array([1.0, 2, 3, 4, 5, np.nan, 9]), np.array([1.0, 1, 2, 2, 2, 5, np.nan])
    found = stats.ratio(a, b, paired=True)
    assert (found.n, found.why) == (5, "")
    close(found.value, 15 / 8)
    assert found.low < found.value < found.high
    close(stats.ratio(a, b, paired=False).value, 4.0 / (13 / 6))


def test_a_base_that_is_zero_gives_a_word_and_one_that_may_be_zero_an_infinite_end():
    never = stats.ratio(np.ones(6), np.zeros(6), paired=True)
    assert never.why == "the base is 0"
    assert np.isnan([never.value, never.low, never.high]).all()
    assert stats.ratio(np.ones(3), np.zeros(3), paired=True).why == "3 prompts, 5 needed"
    rare = stats.ratio(np.ones(6), [0, 0, 0, 0, 0, 1], paired=True)
    assert rare.value == 6
    assert rare.high == np.inf


# permutations


@given(st.data(), st.booleans(), st.sampled_from(stats.ALTERNATIVES))
def test_few_prompts_are_permuted_exactly_as_scipy_does(data, paired, alternative):
    a = data.draw(hnp.arrays(float, st.integers(2, 6), elements=finite))
    size = len(a) if paired else data.draw(st.integers(2, 6))
    b = data.draw(hnp.arrays(float, size, elements=finite))
    found = stats.permutation_test(a, b, paired=paired, alternative=alternative)
    twin = scipy.stats.permutation_test(
        (a, b),
        lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis),
        permutation_type="samples" if paired else "independent",
        vectorized=True,
        alternative=alternative,
    )
    close([found.value, found.null], [twin.statistic, 0.0])
    assert found.exact
    if abs(found.value) > 1e-6:  # scipy's own tolerance for ties is relative to the value
        close(found.p, twin.pvalue)


def test_known_permutations():
    found = stats.permutation_test([4, 5, 6], [1, 2, 3], paired=False, alternative="greater")
    assert (found.value, found.p, found.n, found.exact) == (3, 1 / 20, 6, True)
    assert stats.permutation_test([1, 2, 3, 4], [0, 0, 0, 0], paired=True).p == 2 / 16
    assert stats.permutation_test([1.0] * 5, [1.0] * 5, paired=True).p == 1
    assert stats.permutation_test([0.1, 0.2], [0.1, 0.2], paired=False).p == 1


def test_a_sampled_test_counts_the_observed_and_agrees_with_the_exact_one():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.6, 1, 11), rng.normal(0, 1, 11)
    for paired, groups in ((True, (a, b)), (False, (a[:8], b[:8]))):
        exact = stats.permutation_test(*groups, paired=paired, draws=20000)
        sampled = stats.permutation_test(*groups, paired=paired, draws=2000)
        assert exact.exact
        assert not sampled.exact
        assert within_binomial_error(sampled.p / 2, exact.p / 2, 2000)
    extreme = stats.permutation_test(np.arange(40) + 9.0, np.zeros(40), paired=True, draws=99)
    assert extreme.p == 2 / 100


def test_a_true_null_is_rejected_as_often_as_alpha():
    rng = np.random.default_rng(5)
    for paired in (True, False):
        a, b = rng.exponential(size=(2, 14, 2000))
        p = stats.permutation_test(a, b, paired=paired, draws=999).p
        assert within_binomial_error(np.mean(p <= 0.05), 0.05, 2000)


@given(rows(cells=4, most=6), st.booleans())
def test_cells_are_tested_alone_without_the_prompts_they_lack(values, paired):
    other = values[::-1] * 0.5 if paired else values[1:] * 0.5
    found = stats.permutation_test(values, other, paired=paired)
    for cell in range(4):
        a, b = values[:, cell], other[:, cell]
        if paired:
            known = ~np.isnan(a - b)
            a, b = a[known], b[known]
        a, b = a[~np.isnan(a)], b[~np.isnan(b)]
        assert found.n[cell] == (len(a) if paired else len(a) + len(b))
        if not len(a) or not len(b):
            assert np.isnan([found.value[cell], found.p[cell], found.null[cell]]).all()
        else:
            alone = stats.permutation_test(a, b, paired=paired)
            close([found.value[cell], found.p[cell]], [alone.value, alone.p])


# many p-values


def step_by_step(p, holm):
    """The textbook procedures: the least level at which each hypothesis is rejected."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    m, adjusted = len(p), [0.0] * len(p)
    for rank, i in enumerate(order):
        if holm:
            adjusted[i] = min(1, max((m - k) * p[order[k]] for k in range(rank + 1)))
        else:
            adjusted[i] = min(1, min(m / (k + 1) * p[order[k]] for k in range(rank, m)))
    return adjusted


@given(st.lists(st.one_of(st.floats(0, 1), st.just(np.nan)), max_size=12))
def test_adjusted_p_values_are_the_textbooks_and_nan_passes(p):
    p = np.array(p)
    known = ~np.isnan(p)
    for adjust, holm in ((stats.benjamini_hochberg, False), (stats.holm, True)):
        close(adjust(p)[known], step_by_step(p[known].tolist(), holm))
        assert np.isnan(adjust(p)[~known]).all()
    assert (stats.holm(p)[known] >= stats.benjamini_hochberg(p)[known] - STATISTIC).all()


def test_known_adjustments_keep_the_shape():
    p = np.array([[0.01, 0.04], [0.03, np.nan]])
    close(stats.holm(p), [[0.03, 0.06], [0.06, np.nan]])
    close(stats.benjamini_hochberg(p), [[0.03, 0.04], [0.04, np.nan]])


# equivalence


@given(rows(cells=2, least=5, elements=finite), st.floats(0.1, 20), st.booleans())
def test_equivalence_is_two_of_scipys_t_tests(values, margin, paired):
    rng = np.random.default_rng(0)
    a = values + rng.normal(size=values.shape)
    b = rng.normal(size=values.shape if paired else (7, 2))
    found = stats.equivalence(a, b, margin, paired=paired)

    def twin(shift, alternative):
        if paired:
            return scipy.stats.ttest_rel(a + shift, b, alternative=alternative)
        return scipy.stats.ttest_ind(a + shift, b, equal_var=False, alternative=alternative)

    close(found.p_above, twin(margin, "greater").pvalue)
    close(found.p_below, twin(-margin, "less").pvalue)
    close(found.p_zero, twin(0, "two-sided").pvalue)
    assert (found.p == np.maximum(found.p_above, found.p_below)).all()
    interval = twin(0, "two-sided").confidence_interval(0.9)
    close([found.low, found.high], [interval.low, interval.high])
    inside = (-margin < found.low) & (found.high < margin)
    assert (inside == (found.verdict == "equivalent")).all()


def test_the_verdicts():
    spread = np.array([-1.0, -0.5, 0, 0.5, 1, 0])

    def verdict(shift, margin, values=spread):
        return str(stats.equivalence(values + shift, 0, margin, paired=True).verdict)

    assert verdict(0.1, 2) == "equivalent"
    assert verdict(5, 2) == "different"
    assert verdict(0.5, 0.6) == "inconclusive"
    assert verdict(1.0, 5) == "equivalent"  # and p_zero < 0.05: small, but not zero
    few = stats.equivalence([1, 2, 3], 0, 1, paired=True)
    assert (few.verdict, few.why) == ("too few", "3 prompts, 5 needed")
    assert np.isnan([few.p, few.p_zero, few.low]).all()
    assert few.value == 2
    assert (few.level, few.margin) == (0.9, 1)


def test_greedy_runs_that_agree_bit_for_bit_are_equivalent():
    same = stats.equivalence(np.full(6, 0.25), np.full(6, 0.25), 0.01, paired=True)
    assert (same.verdict, same.p, same.low, same.high, same.p_zero) == ("equivalent", 0, 0, 0, 1)
    apart = stats.equivalence(np.full(6, 1.0), np.zeros(6), 0.01, paired=False)
    assert (apart.verdict, apart.p, apart.p_zero) == ("different", 1, 0)


def test_one_number_is_a_group_that_never_varies_and_nan_is_left_out():
    a = np.array([1.0, 2, np.nan, 4, 5, 6, 2])
    one, two = (stats.equivalence(a, 3, 1, paired=paired) for paired in (True, False))
    close([one.p, one.low, one.n], [two.p, two.low, 6])
    close(one.p_zero, scipy.stats.ttest_1samp(a[~np.isnan(a)], 3).pvalue)


# what is refused

TEN, FIVE = np.zeros(10), np.zeros(5)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: stats.cluster_bootstrap(3.0),
            "values is one number: give one row for each prompt",
        ),
        (
            lambda: stats.cluster_bootstrap([1, np.inf]),
            "infinite value: use NaN where a prompt has",
        ),
        (
            lambda: stats.cluster_bootstrap(TEN, draws=0),
            "draws=0 is not a whole number of at least 1",
        ),
        (lambda: stats.cluster_bootstrap(TEN, draws=True), "draws=True is not a whole number"),
        (lambda: stats.cluster_bootstrap(TEN, level=95), "level=95 is not above 0 and below 1"),
        (
            lambda: stats.cluster_bootstrap(TEN, seed=-1),
            "seed=-1 is not a whole number of at least 0",
        ),
        (
            lambda: stats.difference(TEN, FIVE, paired=True),
            "a has 10 and b 5: .* or use paired=False",
        ),
        (
            lambda: stats.difference(np.zeros((5, 2)), FIVE, paired=True),
            r"a has cells \(2,\) and b \(\): give them alike",
        ),
        (lambda: stats.ratio(TEN, TEN - 1, paired=True), "a base of at least 0, or use difference"),
        (
            lambda: stats.permutation_test(TEN, TEN, paired=True, alternative="more"),
            "alternative='more' is unknown: use two-sided, greater, less",
        ),
        (
            lambda: stats.permutation_test(TEN, TEN, paired=True, draws=1.5),
            "draws=1.5 is not a whole",
        ),
        (
            lambda: stats.holm([0.1, 1.1]),
            "a p-value lies outside 0 to 1: use NaN where there is none",
        ),
        (lambda: stats.benjamini_hochberg([-0.1]), "a p-value lies outside 0 to 1"),
        (
            lambda: stats.equivalence(TEN, 0, 0, paired=True),
            "margin=0 is not a finite number above 0",
        ),
        (
            lambda: stats.equivalence(TEN, 0, 1, paired=True, alpha=0.5),
            "alpha=0.5 is not above 0 and",
        ),
    ],
)
def test_the_impossible_is_refused_with_what_would_have_worked(call, says):
    with pytest.raises(SpecError, match=says):
        call()
