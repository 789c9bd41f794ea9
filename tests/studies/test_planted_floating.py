"""Claims of Attention Floating about anchors and layers on evidence of known truth."""

import numpy as np
import pandas as pd
import pytest

from anchorwatch.studies.estimate import PROMPT, SEED, Bootstrap, Estimate, Greatest, Least
from anchorwatch.studies.evidence import Evidence, TraceSet
from anchorwatch.studies.measure import ARM_RUNS, MDM_RUNS
from anchorwatch.studies.papers import claims
from anchorwatch.studies.papers.floating import measures as floating_measures
from anchorwatch.studies.papers.sinks.measures import UNTRAINED
from anchorwatch.studies.verdict import (
    NOT_TESTABLE,
    REFUTED,
    SUPPORTED,
    UNDECIDED,
    judge_claims,
)
from claim_evidence import (
    LENGTH,
    STEPS,
    TRUTHS,
    assert_verdict,
    collect_plantings,
    jumping_sink,
    peaked_row,
    traces_by_layer,
    traces_with_sink,
)
from synthetic_traces import planted

PLANTED, plants = collect_plantings()
WIDE = 64
"""Keys among which mean + 3 sd finds up to six equal anchors."""
MDM, ARM = MDM_RUNS, ARM_RUNS
TEXT, ARM_TEXT = floating_measures.TEXT_RUNS, floating_measures.ARM_TEXT_RUNS
FROZEN = floating_measures.FROZEN_TEXT_RUNS


@plants("floating/H2")
def moves_or_stays(truth):
    count, mdm, arm = {
        SUPPORTED: (20, 0.8, 0.1),
        REFUTED: (20, 0.1, 0.8),
        UNDECIDED: (6, 0.5, 0.4),
    }[truth]
    return {
        TEXT: traces_with_sink(count, jumping_sink(mdm), length=16, seed=6),
        ARM_TEXT: traces_with_sink(count, jumping_sink(arm), length=16, causal=True, seed=7),
        FROZEN: traces_with_sink(count, jumping_sink(0.0), length=16, seed=8),
    }


@plants("floating/H3")
def right_or_left(truth):
    count, way, noise = {SUPPORTED: (20, 1, 0), REFUTED: (20, -1, 0), UNDECIDED: (6, 0, 4)}[truth]

    def keys(rng, prompt, layer, step):
        # one layer of four goes the other way where the claim is false
        goes = way if layer == 2 else 1
        at = 8 + goes * step + rng.integers(-1 - noise, 2 + noise)
        return peaked_row(int(np.clip(at, 0, LENGTH - 1)), 0.8)

    return {TEXT: traces_by_layer(count, keys, heads=1, seed=20)}


@plants("floating/H4")
def where_it_was_written(truth):
    count, follows = {SUPPORTED: (20, 0.9), REFUTED: (20, 0.03), UNDECIDED: (6, 0.12)}[truth]
    prompt = LENGTH - STEPS

    def keys(rng, index, layer, step):
        fresh = prompt + step - 1 if step else 0
        at = fresh if rng.random() < follows else int(rng.integers(0, prompt))
        return peaked_row(at, 0.8)

    return {TEXT: traces_by_layer(count, keys, layers=1, seed=21)}


@plants("floating/H5")
def token_or_place(truth):
    count, by_token = {
        SUPPORTED: (20, (True, False)),
        REFUTED: (20, (False, True)),
        UNDECIDED: (6, (True, False)),
    }[truth]
    weights = np.exp(np.random.default_rng(1).normal(0, 1, LENGTH + 1))
    orders = {}

    def tokens(rng, index):
        return orders[index]

    def keys(rng, index, layer, step):
        if index not in orders:
            orders[index] = rng.permutation(np.arange(1, LENGTH + 1))
        chosen = by_token[0] if layer == 0 else by_token[1]
        if truth == UNDECIDED and index % 2:  # one prompt says this, the next the contrary
            chosen = not chosen
        place = np.arange(LENGTH) * 10 // LENGTH
        held = weights[orders[index]] if chosen else weights[place]
        return held * np.exp(rng.normal(0, 0.05, LENGTH))

    trained = pd.DataFrame({"network": "trained", "learnt": 4.0}, index=range(count))
    traces = traces_by_layer(count, keys, layers=3, heads=1, seed=22, tokens=tokens)
    return {MDM: traces, UNTRAINED: trained}


@plants("floating/H6")
def sparser_or_not(truth):
    count, way = {SUPPORTED: (20, 1), REFUTED: (20, -1), UNDECIDED: (6, 0)}[truth]
    found = []
    for index in range(count):
        rng = np.random.default_rng((23, index))
        goes = way or (1 if index % 3 else -1)  # one prompt in three goes the other way
        maps = np.empty((6, 4, 1, WIDE, WIDE))
        for step, layer in np.ndindex(6, 4):
            depth = layer if goes > 0 else 3 - layer
            held = np.full(WIDE, 0.01) * rng.uniform(0.9, 1.1, WIDE)
            anchors = (4, 3, 1, 1)[depth] + int(rng.integers(2))
            held[rng.choice(WIDE, anchors, replace=False)] = 1.0
            maps[step, layer] = held / held.sum()
        found.append(planted(maps, prompt=WIDE - 6, tokens=np.arange(1, WIDE + 1) + 100 * index))
    return {MDM: TraceSet.from_traces(found)}


@plants("floating/H7")
def less_or_more(truth):
    count, mdm, arm, wide = {
        SUPPORTED: (20, 0.1, 0.9, 0.02),
        REFUTED: (20, 0.9, 0.5, 0.02),
        UNDECIDED: (6, 0.7, 0.85, 0.3),
    }[truth]

    def of(mean, seed):
        def keys(rng, index, layer, step):
            more = wide * np.random.default_rng((seed, index)).normal()  # prompts differ
            return peaked_row(0, float(np.clip(mean + more + 0.02 * rng.normal(), 0.05, 0.95)))

        return keys

    return {
        MDM: traces_by_layer(count, of(mdm, 1), layers=2, seed=24),
        ARM: traces_by_layer(count, of(arm, 2), layers=2, causal=True, seed=25),
    }


@plants("floating/H8")
def one_or_several(truth):
    count, second = {SUPPORTED: (20, 0.9), REFUTED: (20, 0.005), UNDECIDED: (6, 0.3)}[truth]

    return {MDM: _wide(count, second)}


def _wide(count, second):
    """Two anchors, or one, among forty keys."""
    found = []
    for index in range(count):
        rng = np.random.default_rng((26, index))
        maps = np.empty((6, 1, 2, 40, 40))
        for step in range(6):
            for head in range(2):
                held = np.full(40, 0.004)
                held[0] = 1.0
                held[5] = 0.9 if rng.random() < second else 0.004
                maps[step, 0, head] = held / held.sum()
        found.append(planted(maps, prompt=34, tokens=np.arange(1, 41) + 100 * (index + 1)))
    return TraceSet.from_traces(found)


@plants("floating/H9")
def grows_or_falls(truth):
    count, way, wide = {
        SUPPORTED: (20, 1, 0.02),
        REFUTED: (20, -1, 0.02),
        UNDECIDED: (6, 0.5, 0.1),
    }[truth]

    def keys(rng, index, layer, step):
        own = way + 10 * wide * np.random.default_rng((27, index)).normal()  # prompts differ
        return peaked_row(3, float(np.clip(0.4 + own * 0.1 * layer, 0.1, 0.9)))

    return {MDM: traces_by_layer(count, keys, heads=1, seed=27)}


def weights(rng, parent=None):
    """A table of weights of four layers: those of a parent and some noise, or of their own."""
    rows = [
        {"unit": unit, "layer": layer, "shape": "8x8", "held": rng.normal(0, 1, 16)}
        for unit in range(5)
        for layer in range(4)
    ]
    if parent is not None:
        for row, other in zip(rows, parent["held"], strict=True):
            row["held"] = other + 0.3 * row["held"]
    return pd.DataFrame(rows)


@plants("floating/H10")
def inherited_or_not(truth):
    count, mdm, arm = {SUPPORTED: (20, 2, 2), REFUTED: (20, 1, 3), UNDECIDED: (6, 2, 2)}[truth]
    rng = np.random.default_rng(28)

    def from_layer(place, wanders):
        def keys(rng, index, layer, step):
            first = place - (wanders and index % 3 == 0)
            return peaked_row(0, (0.8 if layer >= first else 0.3) + 0.1 * rng.uniform(-1, 1))

        return keys

    parent = weights(rng)
    return {
        MDM: traces_by_layer(count, from_layer(mdm, truth == UNDECIDED), heads=1, seed=28),
        ARM: traces_by_layer(count, from_layer(arm, False), heads=1, causal=True, seed=29),
        floating_measures.WEIGHTS["mdm"]: parent,
        floating_measures.WEIGHTS["arm"]: weights(rng, parent),
    }


@plants("floating/H29")
def others_or_the_same_by_layer(truth):
    count, mdm, arm = {
        SUPPORTED: (20, 0.9, 0.0),
        REFUTED: (20, 0.0, 0.9),
        UNDECIDED: (6, 0.1, 0.15),
    }[truth]

    def going(rate):
        def keys(rng, index, layer, step):
            return peaked_row(int(rng.integers(1, 12)) if rng.random() < rate else 0, 0.8)

        return keys

    return {
        TEXT: traces_by_layer(count, going(mdm), seed=47),
        ARM_TEXT: traces_by_layer(count, going(arm), causal=True, seed=48),
    }


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("name", PLANTED)
def test_the_verdict_is_the_truth(name, truth):
    assert_verdict(name, PLANTED[name](truth), truth)


def test_the_least_of_several_supports_only_if_all_do_and_refutes_with_a_correction():
    high, low = (Estimate.mean([x - 0.1, x, x + 0.1, x + 0.2], SEED) for x in (5.0, 1.0))
    least = Least.among([high, low])
    assert least.value == low.value
    assert least.p_above(0.5) == low.p_above(0.5) > high.p_above(0.5)
    assert least.p_below(2.0) == pytest.approx(2 * low.p_below(2.0))
    assert least.interval(0.95)[0] == low.interval(0.95)[0]
    assert least.interval(0.95)[1] == low.interval(0.975)[1]


def test_the_greatest_of_several_is_the_least_of_their_contraries():
    values = [[x - 0.1, x, x + 0.1, x + 0.2] for x in (5.0, 1.0)]
    most = Greatest.among([Estimate.mean(one, SEED) for one in values])
    least = Least.among([Estimate.mean(np.negative(one), SEED) for one in values])
    assert most.value == -least.value
    assert most.interval(0.9) == pytest.approx([-x for x in reversed(least.interval(0.9))])
    assert most.p_above(4.9) == pytest.approx(least.p_below(-4.9))
    assert most.p_below(5.3) == pytest.approx(least.p_above(-5.3))


@pytest.mark.parametrize("kind", [Least, Greatest])
def test_one_without_a_value_leaves_the_extreme_unknown_in_any_order(kind):
    known, unknown = Estimate.mean([1.0, 1.1, 1.2], SEED), Estimate.mean([np.nan] * 3, SEED)
    for order in ([known, unknown], [unknown, known]):
        found = kind.among(order)
        assert found.why
        assert np.isnan(found.value)
        assert all(map(np.isnan, found.interval(0.95)))


def failed(name, held):
    """Names of the preconditions of a claim that evidence, of a trained model, does not meet."""
    trained = pd.DataFrame({"network": "trained", "learnt": 4.0}, index=range(6))
    (judged,) = judge_claims(claims([name]), Evidence.of({UNTRAINED: trained} | held), {})
    assert judged.says == NOT_TESTABLE
    return {item.precondition.name for item in judged.preconditions if not item.holds}


def test_what_no_anchors_can_show_is_not_testable_and_not_refuted():
    """A model without a sink, or whose detectors never fire, decides nothing."""
    even = traces_by_layer(
        6, lambda rng, index, layer, step: np.ones(LENGTH) + 0.1 * rng.random(LENGTH)
    )
    causal = traces_by_layer(
        6, lambda rng, *_: np.ones(LENGTH) + 0.1 * rng.random(LENGTH), causal=True
    )
    first = "a sink at the first token"
    anchors = {"anchors by the paper's rule", "anchors that take much attention"}
    assert failed("floating/H7", less_or_more(SUPPORTED) | {ARM: causal}) >= {first}
    assert failed("floating/H7", less_or_more(SUPPORTED) | {MDM: even}) >= anchors
    begins = "a masked diffusion model whose sink begins at some layer"
    assert failed("floating/H10", inherited_or_not(SUPPORTED) | {MDM: even}) >= {begins}
    random = pd.DataFrame({"network": "trained", "learnt": 0.0}, index=range(6))
    assert failed("floating/H1", {ARM: causal, MDM: even, UNTRAINED: random}) == anchors | {
        "an autoregressive model with a sink, wherever it is",
        "a trained masked diffusion model",
    }


def test_networks_trained_apart_inherit_nothing():
    rng = np.random.default_rng(0)
    held = inherited_or_not(SUPPORTED) | {floating_measures.WEIGHTS["arm"]: weights(rng)}
    assert any("of one origin, such as Dream" in name for name in failed("floating/H10", held))
    other = held[floating_measures.WEIGHTS["arm"]].assign(shape="8x16")
    assert np.isnan(
        floating_measures.weight_correlation(held[floating_measures.WEIGHTS["mdm"]], other)
    )


def test_a_change_of_the_mean_is_found_where_single_prompts_scatter():
    """Mean profiles with one change, and a spread of a fifth in every prompt and layer."""
    rng, layers = np.random.default_rng(5), 28
    profile = np.where(np.arange(layers) >= 4, 0.35, 0.05)
    both = rng.normal(profile, 0.2, (48, 2, layers))
    singles = np.abs(
        floating_measures.onset_layer(both[:, 0]) - floating_measures.onset_layer(both[:, 1])
    )

    def apart(means):
        sides = means[:, :layers], means[:, layers:]
        return np.abs(np.subtract(*map(floating_measures.onset_layer, sides)))

    found = Bootstrap.over_units(both.reshape(48, -1), apart, PROMPT)
    assert singles.mean() > 1
    assert found.value == 0
    assert found.p_below(0.5) < 0.05


def test_a_bootstrap_says_nothing_of_few_units_and_agrees_with_student_on_a_mean():
    values = np.random.default_rng(6).normal(1, 1, (40, 1))
    found = Bootstrap.over_units(values, lambda means: means[:, 0], PROMPT)
    plain = Estimate.mean(values[:, 0], PROMPT)
    assert found.value == pytest.approx(plain.value)
    assert found.interval(0.95) == pytest.approx(plain.interval(0.95), abs=0.06)
    few = Bootstrap.over_units(values[:3], lambda means: means[:, 0], PROMPT)
    assert few.why == "3 prompts, 5 needed"
    assert (few.p_above(0.0), few.p_below(0.0)) == (1.0, 1.0)
    assert all(map(np.isnan, few.interval(0.95)))


def slow_beginning(profile):
    """The place whose two means leave the least squared error, among those that rise."""

    def error(at):
        parts = profile[:at], profile[at:]
        rises = parts[1].mean() > parts[0].mean()
        return sum(((part - part.mean()) ** 2).sum() for part in parts) if rises else np.inf

    return min(range(1, len(profile)), key=error)


def test_a_beginning_is_the_change_that_leaves_least():
    profiles = np.random.default_rng(1).normal(0, 1, (200, 6)) + np.arange(6)
    found = floating_measures.onset_layer(profiles)
    assert found.tolist() == [slow_beginning(one) for one in profiles]


def test_layers_alike_have_no_rise_though_a_beginning_is_always_found():
    profiles = np.random.default_rng(2).normal(0, 1, (400, 5))
    found = Estimate.mean(floating_measures.onset_rise(profiles), PROMPT)
    low, high = found.interval(0.999)
    assert low < 0 < high
    assert floating_measures.mean_steps(profiles).max(axis=1).mean() > 5 * found.error
