"""Numbers of single prompts: each by its slow twin, and what must hold of any edit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tolerances
from anchorwatch import rules, stats
from anchorwatch.evaluation import outcomes
from anchorwatch.evaluation.outcomes import (
    CLEAN,
    MOVED,
    NEVER,
    PROPORTIONAL,
    Arm,
    Contrast,
    UniformBaseline,
    fit_trends,
    sum_moved_attention,
)
from references import effects as slow

tokens = st.lists(st.integers(0, 4), max_size=9).map(np.array)
LARGEST, ENTROPY, NEW = (
    MOVED.index(n) for n in ("largest_gainer", "gain_entropy", "new_sink_share")
)


@given(tokens, tokens)
def test_the_edit_distance_is_levenshtein_s(one, two):
    found = outcomes.edit_distance(one, two)
    assert found == slow.edit_distance(one, two)
    assert found == outcomes.edit_distance(two, one)
    assert 0 <= found <= 1
    assert (found == 0) == (one.tolist() == two.tolist())


@given(tokens, tokens, tokens)
def test_a_detour_is_no_shorter(one, two, three):
    def far(a, b):
        return outcomes.edit_distance(a, b) * max(len(a), len(b))

    assert far(one, three) <= far(one, two) + far(two, three) + tolerances.STATISTIC


times = hnp.arrays(np.int64, 7, elements=st.integers(-1, 6))


@given(times, times)
def test_the_order_is_compared_where_both_runs_committed(one, two):
    found, twin = outcomes.order_tau(one, two), slow.order_tau(one, two)
    assert np.isnan(found) if np.isnan(twin) else abs(found - twin) <= tolerances.STATISTIC
    assert np.array_equal(outcomes.order_tau(two, one), found, equal_nan=True)


@given(st.permutations(range(6)))
def test_an_order_agrees_with_itself_and_not_with_its_reverse(order):
    when = np.array(order)
    assert outcomes.order_tau(when, when) == 1
    assert outcomes.order_tau(when, 5 - when) == -1


@st.composite
def films(draw):
    """The frames of a run of four positions, written one or more at a time."""
    final = draw(hnp.arrays(np.int64, 4, elements=st.integers(1, 3)))
    when = draw(hnp.arrays(np.int64, 4, elements=st.integers(-1, 3)))
    frames = np.arange(draw(st.integers(5, 6)))[:, None]
    written = (when >= 0) & (frames > when)
    return when, final, np.where(written, final, 0)


@given(films(), films())
def test_runs_part_at_the_first_step_that_commits_otherwise(one, two):
    (when, final, frames), (other, token, others) = one, two
    assert outcomes.first_divergence(when, other, final == token) == slow.parted(frames, others)
    assert outcomes.first_divergence(when, when, final == final) is None


@st.composite
def redistributions(draw):
    """Shares [layer, head, key] before and after, some keys absent, and keys that were hidden."""
    layers, heads, keys = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(4, 9))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    ranks = draw(st.integers(1, 2))
    hidden = rng.integers(-1, keys - 1, (layers, heads, ranks))
    shares = rng.dirichlet(np.full(keys, 0.4), (2, layers, heads))
    for layer, head in np.ndindex(layers, heads):
        for key in set(hidden[layer, head].tolist()) - {-1}:
            shares[1, layer, head, key] = 0
    shares[1] /= shares[1].sum(axis=-1, keepdims=True)
    absent = draw(st.booleans())
    if absent:  # the last key is not written yet, and received nothing
        shares[..., -1] = 0
        shares /= shares.sum(axis=-1, keepdims=True)
        shares[..., -1] = np.nan
    even = np.full((layers, keys), 1 / (keys - absent))
    seen = np.ones((layers, keys))
    return shares[0], shares[1], hidden, UniformBaseline(even, seen)


@given(redistributions(), st.sampled_from([rules.rulli(0.5), rules.gu(0.3), rules.topk(1)]))
def test_where_attention_went_by_loops(case, rule):
    found = sum_moved_attention(*case, rule)
    with np.errstate(invalid="ignore"):
        values = found[:, :2] / found[:, 2:]
    twin = np.array(list(slow.moved(*case, rule).values()))
    np.testing.assert_allclose(values, twin, atol=tolerances.METRIC, rtol=0)


@given(redistributions())
def test_shares_of_gains_are_shares(case):
    sums = sum_moved_attention(*case, rules.gu(0.3))[2:]
    if (sums[:, 2] > 0).all():
        values = sums[:, :2] / sums[:, 2:]
        assert (values >= -tolerances.STATISTIC).all()
        assert (values <= 1 + tolerances.STATISTIC).all()


@given(redistributions())
def test_proportional_gains_are_their_null(case):
    before, _, hidden, even = case
    gone = np.zeros(before.shape, dtype=bool)
    for layer, head in np.ndindex(before.shape[:2]):
        gone[layer, head, [key for key in hidden[layer, head] if key >= 0]] = True
    left = np.where(gone, 0.0, before)
    after = left / np.nansum(left, axis=-1, keepdims=True)
    sums = sum_moved_attention(before, after, hidden, even, rules.gu(0.3))
    for row in (LARGEST, ENTROPY, NEW):
        assert abs(sums[row, 0] - sums[row, 1]) <= tolerances.METRIC


def test_an_added_key_that_holds_attention_takes_its_part_of_what_is_freed():
    before = np.array([[[0.12, 0.08, 0.0, 0.0]]])  # the rest, 0.8, is a sink token's
    after = np.array([[[0.0, 0.08, 0.0, 0.0]]]) / (1 - 0.12)
    even = UniformBaseline(np.full((1, 4), 0.2), np.ones((1, 4)))
    sums = sum_moved_attention(before, after, np.array([[[0]]]), even, rules.gu(0.3))
    assert sums[NEW, 0] == sums[NEW, 1] == 0 < sums[NEW, 2]


def test_a_hidden_share_that_rounds_above_one_has_the_same_null():
    """In float32 a key that takes nearly everything may sum to more than 1."""
    before = np.array([[[1.00002, 1e-6, 1e-6, 1e-6]]])
    after = np.array([[[0.0, 1.0, 1.0, 1.0]]]) / 3
    even = UniformBaseline(np.full((1, 4), 0.25), np.ones((1, 4)))
    sums = sum_moved_attention(before, after, np.array([[[0]]]), even, rules.gu(0.3))
    assert sums[NEW, 1] == pytest.approx(sums[NEW, 0], rel=tolerances.STATISTIC)
    assert sums[NEW, 0] > 0


def test_one_key_that_takes_all_is_a_new_sink():
    before = np.array([[[0.7, 0.1, 0.1, 0.1]]])
    even = UniformBaseline(np.full((1, 4), 0.25), np.ones((1, 4)))
    hidden = np.array([[[0]]])
    alone = np.array([[[0.0, 0.1, 0.8, 0.1]]])
    sums = sum_moved_attention(before, alone, hidden, even, rules.gu(0.3))
    values, null = sums[:, 0] / sums[:, 2], sums[:, 1] / sums[:, 2]
    np.testing.assert_allclose(values, [1, 0.7, 1, 0, 1, 1], atol=tolerances.STATISTIC)
    np.testing.assert_allclose(null[1:], [0.25, 1 / 3, 1, 1, 0.25], atol=tolerances.STATISTIC)
    # under gu(0.5) a third each makes no new sink, and the null says so
    sums = sum_moved_attention(before, alone, hidden, even, rules.gu(0.5))
    assert sums[NEW, 1] == 0 and sums[NEW, 0] == sums[NEW, 2]


def test_attention_that_nobody_lost_is_absent():
    shares = np.array([[[0.7, 0.1, 0.1, 0.1]]])
    even = UniformBaseline(np.full((1, 4), 0.25), np.ones((1, 4)))
    none = sum_moved_attention(shares, shares, np.array([[[-1]]]), even, rules.gu(0.3))
    assert (none[:, 2] == 0).all()
    kept = sum_moved_attention(
        shares, shares, np.array([[[0]]]), even, rules.gu(0.3)
    )  # its value was zeroed
    assert kept[:, 2].tolist() == [1, 1, 0, 0, 0, 1]


arrays = hnp.arrays(np.float64, (6, 3), elements=st.floats(-5, 5))


@given(arrays, arrays, arrays)
def test_a_control_that_is_the_edit_leaves_no_difference(clean, value, null):
    arm = Arm(value, null)
    made = Contrast(clean, arm, arm, np.array([CLEAN, PROPORTIONAL, CLEAN]))
    table = made.table({"outcome": list("abc")})
    assert (table[["did", "did_low", "did_high"]] == 0).all(axis=None)
    np.testing.assert_array_equal(table["difference"], table["control_difference"])
    np.testing.assert_allclose(
        table["difference"], (value - null).mean(axis=0), atol=tolerances.STATISTIC
    )
    assert (table["low"] <= table["difference"] + tolerances.STATISTIC).all()
    assert (table["difference"] <= table["high"] + tolerances.STATISTIC).all()


@given(arrays, arrays)
def test_a_difference_has_the_interval_of_resampled_prompts(clean, value):
    arm = Arm(value, clean)
    table = Contrast(clean, arm, Arm.absent(value.shape), np.full(3, CLEAN)).table({})
    found = stats.cluster_bootstrap(value - clean)
    np.testing.assert_array_equal(table[["low", "high"]].to_numpy().T, [found.low, found.high])
    assert table[["control", "did", "did_low"]].isna().all(axis=None)


def test_few_prompts_have_no_interval_and_say_so():
    value = np.arange(8.0).reshape(4, 2)
    arm = Arm(value, np.zeros((4, 2)))
    table = Contrast(np.zeros((4, 2)), arm, arm, np.full(2, CLEAN)).table({})
    assert table[["low", "high", "did_low", "did_high"]].isna().all(axis=None)
    assert (table["interval"] == "4 prompts, 5 needed").all()


def test_what_a_clean_run_cannot_have_is_compared_with_the_control():
    """The step at which runs part: a clean run never does."""
    nothing = np.full((6, 1), np.nan)
    edited, control = Arm(np.full((6, 1), 2.0), nothing), Arm(np.full((6, 1), 5.0), nothing)
    edited.value[0] = np.nan
    row = Contrast(nothing, edited, control, np.array([CLEAN])).table({}).iloc[0]
    assert (row["edited"], row["control"], row["did"]) == (2, 5, -3)
    assert (row["n"], row["did_n"], row["interval"]) == (5, 5, NEVER)
    assert np.isnan(row["difference"])


@pytest.mark.parametrize("slope", [0.0, 0.5, -2.0])
def test_a_planted_trend_is_found(slope):
    doses, rng = (1, 5, 10), np.random.default_rng(1)
    noise = rng.normal(0, 0.1, (8, 1))
    made = []
    for k in doses:
        edited = Arm(slope * k + noise, np.zeros((8, 1)))
        made.append(
            Contrast(np.zeros((8, 1)), edited, Arm(noise, np.zeros((8, 1))), np.array([CLEAN]))
        )
    table = fit_trends(doses, made, ["kl"]).set_index("series")
    for series in ("difference", "did"):
        np.testing.assert_allclose(table.loc[series, "slope"], slope, atol=tolerances.STATISTIC)
        assert table.loc[series, "p"] == (1 if slope == 0 else 2 / 2**8)
    assert table.loc["control_difference", "slope"] == 0
