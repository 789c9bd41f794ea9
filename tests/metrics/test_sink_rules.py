"""Rules: known answers, bounds, agreement with the printed inequality, words and refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorwatch import rules
from anchorwatch.errors import SpecError
from anchorwatch.metrics.sink_rules import (
    RESOLUTION,
    gu,
    mass,
    ratio,
    robust_zscore,
    rulli,
    topk,
    zscore,
)

ALL = (rulli(), rulli(3, "percent"), zscore(), robust_zscore(), gu(), ratio(), topk(3), mass())


def softmax(logits):
    exp = np.exp(logits - logits.max())
    return exp / exp.sum()


def equal_sinks(length, count, held):
    """`count` keys share `held`, the others share the rest."""
    shares = np.full(length, (1 - held) / (length - count))
    shares[:count] = held / count
    return shares


@st.composite
def some_shares(draw):
    seed, length = draw(st.integers(0, 2**32 - 1)), draw(st.integers(2, 40))
    absent = draw(st.integers(0, length - 2))
    logits = np.random.default_rng(seed).normal(0, draw(st.sampled_from([0.1, 1, 4])), length)
    shares = softmax(logits)
    shares[length - absent :] = np.nan
    return shares / np.nansum(shares)


def test_one_column_of_64_is_found_by_sum_percent_and_z_and_never_by_mean():
    shares = np.full(64, (1 - 62.79 / 64) / 63)  # column sum 62.79, share 0.981
    shares[17] = 62.79 / 64
    for rule in (rulli(3, "sum"), rulli(3, "percent"), zscore(3)):
        assert rule.labels(shares).nonzero()[0].tolist() == [17]
    score, others = shares, (1 - shares) / 63
    assert not (score > others + 3).any()  # the printed rule, on its printed scale


def test_the_mean_scale_with_an_eps_that_cannot_fire_is_refused():
    with pytest.raises(SpecError, match=r"can never fire.*scale='sum' or 'percent'"):
        rulli(eps=3, scale="mean")
    assert rulli(eps=0.5, scale="mean").labels(np.array([0.9, 0.05, 0.05])).tolist() == [
        True,
        False,
        False,
    ]


@given(some_shares(), st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.sampled_from(["sum", "percent"]))
def test_rulli_is_the_printed_inequality_on_its_scale(shares, eps, scale):
    there = shares[~np.isnan(shares)].astype(np.float64)
    size = len(there)
    score = there * (size if scale == "sum" else 100)
    found = rulli(eps, scale).labels(shares)
    edge = 1e-4 if eps else 2 * RESOLUTION * score.mean()  # even but for rounding is no sink
    for j in range(size):
        others = np.delete(score, j).mean()
        if abs(score[j] - others - eps) > edge:
            assert found[j] == (score[j] > others + eps)
    assert not found[size:].any()


@given(some_shares(), st.sampled_from(ALL))
def test_what_does_not_exist_is_never_a_sink_and_order_does_not_matter(shares, rule):
    found = rule.labels(shares)
    assert not found[np.isnan(shares)].any()
    order = np.random.default_rng(0).permutation(len(shares))
    if len(np.unique(shares)) == len(shares):  # ties go by place
        np.testing.assert_array_equal(rule.labels(shares[order]), found[order])


@given(some_shares())
def test_sinks_never_outnumber_what_the_threshold_leaves_room_for(shares):
    rule = rulli(3, "sum")
    size = np.sum(~np.isnan(shares))
    threshold = (1 + 3 * (size - 1) / size) / size
    assert rule.labels(shares).sum() <= 1 / threshold


@pytest.mark.parametrize("length", [4, 11, 64, 333])
def test_uniform_and_identity_maps_have_no_sink(length):
    shares = np.full(length, 1 / length, dtype=np.float32)
    stored = (np.eye(length) @ shares).astype(np.float16).astype(np.float32)
    noisy = shares * (1 + 1e-4 * np.random.default_rng(0).normal(size=length))
    for rule in (rulli(0.5), zscore(3), robust_zscore(3), ratio(1.5)):
        for seen in (shares, stored, noisy):
            assert not rule.labels(seen).any(), rule


@pytest.mark.parametrize("length", [8, 10, 11, 20, 52, 53, 64])
def test_equal_sinks_hide_one_another_from_the_z_rule_as_the_bound_says(length):
    for count in range(1, length // 3):
        shares = equal_sinks(length, count, 1.0)
        seen = zscore(3).labels(shares).sum()
        bound = np.sqrt((length - count) / count)
        if abs(bound - 3) > 1e-9:
            assert seen == (count if bound > 3 else 0)
        assert robust_zscore(10).labels(shares).sum() == count


@pytest.mark.parametrize("length", [16, 64, 190])
def test_equal_sinks_are_found_by_rulli_as_long_as_each_holds_enough(length):
    for count in range(1, length // 2):
        seen = rulli(3).labels(equal_sinks(length, count, 1.0)).sum()
        assert seen == (count if length / count > 1 + 3 * (length - 1) / length else 0)


def test_a_share_at_its_threshold_is_not_above_it():
    shares = equal_sinks(100, 10, 1.0).astype(np.float32)  # z is 3 exactly
    assert not zscore(3).labels(shares).any()
    assert not ratio(10).labels(shares).any()
    assert not gu(0.1).labels(shares).any()


def test_gu_counts_only_the_queries_that_may_look():
    shares = np.array([0.1, 0.1, 0.05])  # the last key is seen by a tenth of the queries
    seen = np.array([1.0, 1.0, 0.1])
    assert gu(0.3).labels(shares, seen).tolist() == [False, False, True]
    assert not gu(0.3).labels(shares).any()
    assert not gu(0.3).labels(np.array([0.0]), np.array([0.0])).any()


def test_top_and_mass_take_the_greatest_of_equals_the_first():
    shares = np.array([0.2, 0.4, 0.2, 0.2, np.nan])
    assert topk(2).labels(shares).nonzero()[0].tolist() == [0, 1]
    assert topk(9).labels(shares).nonzero()[0].tolist() == [0, 1, 2, 3]
    assert mass(0.4).labels(shares).nonzero()[0].tolist() == [1]
    assert mass(0.5).labels(shares).nonzero()[0].tolist() == [0, 1]
    assert mass(1.0).labels(shares).nonzero()[0].tolist() == [0, 1, 2, 3]
    assert not topk(1).labels(np.array([np.nan, np.nan])).any()


@given(some_shares(), st.floats(0.05, 1.0))
def test_mass_is_the_fewest_keys_that_reach_it(shares, share):
    found = mass(share).labels(shares)
    held, total = np.sum(shares, where=found), np.nansum(shares)
    assert held >= share * total - 1e-9
    if found.any():
        assert held - np.min(shares, where=found, initial=np.inf) < share * total + 1e-9


@pytest.mark.parametrize("rule", ALL, ids=str)
def test_rules_are_spelled_and_read_back(rule):
    assert rules.parse(str(rule)) == rule
    assert rules.from_dict(rule.as_dict()) == rule


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ruli", "no rule is called 'ruli': expected one of rulli, zscore"),
        ("rulli:x", "eps='x' is not a number"),
        ("topk:1:2", "'topk:1:2' has too many parts: it is spelled topk:k"),
        ("topk:0", "k=0 is not a whole number of at least 1"),
        ("rulli:-1", "eps=-1.0 is not a number of at least 0"),
        ("rulli:3:cubic", "scale='cubic' is unknown: expected sum, percent, mean"),
        ("gu:1", r"gu\(eps=1\) can never fire"),
        ("zscore:0", "z=0.0 is not a number above 0"),
        ("mass:2", "shares sum to one"),
        ("ratio:nan", "times=nan is not a number above 0"),
    ],
)
def test_a_rule_that_is_none_is_refused_with_what_would_have_worked(text, says):
    with pytest.raises(SpecError, match=says):
        rules.parse(text)
