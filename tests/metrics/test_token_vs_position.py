"""Meaning or place: planted answers, and scores against least squares over dense maps."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tolerances
from anchorwatch.errors import SpecError
from anchorwatch.metrics.layer_slices import iter_layers
from anchorwatch.metrics.sink_classes import TokenClasses
from anchorwatch.metrics.sink_rules import rulli
from anchorwatch.metrics.table import prompt_id, stack_layers, tabulate
from anchorwatch.metrics.token_classes import CLASSES, step_classes
from anchorwatch.metrics.token_vs_position import (
    FLOOR,
    OUTCOMES,
    Designs,
    meaning_or_place,
    split_cells,
)
from anchorwatch.trace.trace import Trace
from references import identity as slow
from synthetic_traces import MASK_ID, planted, random_maps, uniform

EPS = 0.7357
TEXTS = {1: "\n", 2: " .", 3: " the", 4: " anchor", 5: " 7", 6: "</s>", 7: " ", 8: " ship"}
PARTS = ("class", "place", "token", "both")


def made(seed, *, causal=False, absent=False, groups=("all", "masked", "written"), prompt=6):
    generator = np.random.default_rng(seed)
    steps = int(generator.integers(2, 6))
    maps = random_maps(generator, (steps, 2, 2, prompt + steps), causal=causal)
    if absent:
        maps[int(generator.integers(0, steps))] = np.nan
    return planted(
        maps,
        prompt=prompt,
        tokens=generator.integers(1, 9, prompt + steps),
        texts=TEXTS,
        visibility="causal" if causal else "bidirectional",
        groups=groups,
    ), maps


def keys_of(trace, maps, outcome, group="all"):
    """{(layer, head): {step: keys}}, keys as `references.identity.scores` takes them."""
    names, found = step_classes(trace), {}
    for step, layer, head, shares, null in slow.cells(trace, maps, group):
        sinks = slow.rulli_sinks(shares, EPS)
        keys = []
        for j in range(len(shares)):
            if null[j] > 0:
                value = np.log2(max(shares[j] / null[j], FLOOR))
                value = value if outcome == "received" else float(j in sinks)
                tenth = j * 10 // len(shares)
                keys.append((names[step, j], tenth, trace.canvas[step, j], value, step))
        found.setdefault((layer, head), {})[step] = keys
    return found


def pooled(folds):
    """{name: score} of several (learnt on, scored on)."""
    each = [slow.scores(train, test) for train, test in folds]
    tops = {name: sum(one[name][0] for one in each) for name in PARTS}
    bottom = sum(one["class"][1] for one in each)
    return {name: top / bottom for name, top in tops.items()} if bottom else {}


def check(table, layer, head, outcome, expected):
    at = (table.layer == layer) & (table["head"] == head) & (table.outcome == outcome)
    values = dict(zip(table[at].quantity, table[at].value, strict=True))
    assert len(values) == 7
    if not expected:
        assert np.isnan(list(values.values())).all()
        return
    both, first, second = expected["both"], expected["class"], expected["place"]
    expected = expected | {
        "class_beyond_place": both - second,
        "place_beyond_class": both - first,
        "shared": first + second - both,
    }
    for name, value in expected.items():
        assert values[name] == pytest.approx(value, abs=tolerances.SCORE), name


@settings(max_examples=15)
@given(
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["all", "written", "prompt"]),
)
def test_halves_of_the_steps_are_scored_as_least_squares_says(seed, causal, absent, group):
    trace, maps = made(seed, causal=causal, absent=absent, groups=("all", "written", "prompt"))
    table = meaning_or_place(trace, rulli(EPS), group=group, by=["layer", "head"])
    for outcome in OUTCOMES:
        for (layer, head), steps in keys_of(trace, maps, outcome, group).items():
            order = sorted(steps)
            halves = order[: len(order) // 2], order[len(order) // 2 :]
            early, late = ([key for s in half for key in steps[s]] for half in halves)
            folds = [(early, late), (late, early)] if early else []
            check(table, layer, head, outcome, pooled(folds) if folds else {})


@settings(max_examples=8)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_prompts_are_scored_from_all_others(seed, causal):
    runs = [made(seed + i, causal=causal, absent=i == 1) for i in range(3)]
    runs.append((runs[0][0], runs[0][1]))  # a prompt may have several traces
    table = meaning_or_place(
        [trace for trace, _ in runs], rulli(EPS), by=["layer", "head", "prompt"], held_out="prompts"
    )
    for outcome in OUTCOMES:
        every = [
            (
                prompt_id(trace),
                {
                    at: [key for keys in steps.values() for key in keys]
                    for at, steps in keys_of(trace, maps, outcome).items()
                },
            )
            for trace, maps in runs
        ]
        for own, keys in every:
            for (layer, head), test in keys.items():
                # Steps of different runs are different steps: tell them apart by their run.
                train = [
                    (*key[:4], (run, key[4]))
                    for run, (prompt, others) in enumerate(every)
                    if prompt != own
                    for key in others[layer, head]
                ]
                expected = pooled([(train, test)])
                check(table[table.prompt == own], layer, head, outcome, expected)


def test_the_null_is_the_mean_score_over_every_permutation_of_what_is_learnt():
    """Two steps: each is learnt in all orders of its keys and scored on the other as it is."""
    maps = random_maps(np.random.default_rng(1), (2, 1, 1, 5))
    trace = planted(maps, prompt=3, tokens=[1, 4, 4, 1, 4], texts=TEXTS)
    table = meaning_or_place(trace, rulli(EPS))
    for outcome in OUTCOMES:
        one, other = (keys_of(trace, maps, outcome)[0, 0][step] for step in (0, 1))
        scores = {name: 0.0 for name in PARTS}
        orders = list(permutations(range(5)))
        for order in orders:
            mixed = [
                [(*key[:3], keys[at][3], key[4]) for key, at in zip(keys, order, strict=True)]
                for keys in (one, other)
            ]
            found = pooled([(mixed[0], other), (mixed[1], one)])
            scores = {name: scores[name] + found[name] / len(orders) for name in PARTS}
        rows = table[table.outcome == outcome].set_index("quantity")
        for name in PARTS:
            assert rows.null[name] == pytest.approx(scores[name], abs=tolerances.SCORE), name
        between = scores["both"] - scores["place"]
        assert rows.null["class_beyond_place"] == pytest.approx(between, abs=tolerances.SCORE)
    assert table.lift.isna().all()


def floating(kind, seed, steps=10, length=40, prompt=20):
    """Every head looks at newlines, or at position 30 whatever stands there, or nowhere."""
    generator = np.random.default_rng(seed)
    tokens = generator.choice([1, 4, 8, 2], size=length)
    when = np.array([-1] * prompt + generator.permutation(np.arange(length - prompt) // 2).tolist())
    logits = generator.normal(0, 0.3, (steps, 1, 2, 1, length))
    for step in range(steps):
        current = np.where(when < step, tokens, MASK_ID)
        logits[step, ..., current == 1] += 4 * (kind == "newline")
        logits[step, ..., 30] += 5 * (kind == "place")
    rows = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    maps = np.broadcast_to(rows, (steps, 1, 2, length, length)).copy()
    return planted(maps, prompt=prompt, committed_at=when, tokens=tokens, texts=TEXTS)


@pytest.mark.parametrize("held_out", ["steps", "prompts"])
def test_meaning_is_told_from_place(held_out):
    def shares(kind):
        traces = [floating(kind, seed) for seed in range(6)]
        table = meaning_or_place(traces, rulli(3), held_out=held_out)
        rows = table[table.outcome == "received"].set_index("quantity")
        assert list(rows.n) == [6] * 7
        return rows

    newline, place, nothing = (shares(kind) for kind in ("newline", "place", "nothing"))
    assert newline.value["class"] > 0.9 and newline.low["class_beyond_place"] > 0.5
    assert newline.high["place_beyond_class"] < 0.01
    assert place.low["place"] > 0.15 and place.low["place_beyond_class"] > 0.1
    assert place.high["class"] < 0.1
    for name in ("class", "place", "both", "token"):
        assert nothing.low[name] < nothing.null[name] + 0.01 and nothing.high[name] < 0.02


def test_place_in_one_prompt_is_told_from_the_token_that_changes_there():
    trace = floating("place", 0)
    table = meaning_or_place(trace, rulli(3)).set_index(["outcome", "quantity"]).value
    # The sink is one of the four keys of its tenth: (1/4 - 1/40) / (1 - 1/40) of its variance.
    assert table["sink", "place"] == pytest.approx((1 / 4 - 1 / 40) / (1 - 1 / 40))
    assert table["sink", "class"] < 0.05


def test_equal_tokens_with_equal_attention_are_explained_by_the_token():
    """As at layer 0, where a key is its token and its position alone."""
    weight = {MASK_ID: 1.0, 1: 9.0, 2: 4.0, 3: 2.0, 4: 1.0, 5: 5.0, 6: 7.0, 7: 1.5, 8: 12.0}
    tokens = np.random.default_rng(0).integers(1, 9, 40)
    when = np.array([-1] * 36 + [0, 1, 2, 3])
    rows = np.stack([[weight[i] for i in np.where(when < s, tokens, MASK_ID)] for s in range(4)])
    rows /= rows.sum(axis=1, keepdims=True)
    maps = np.broadcast_to(rows[:, None, None, None], (4, 1, 1, 40, 40)).copy()
    trace = planted(maps, prompt=36, committed_at=when, tokens=tokens, texts=TEXTS)
    table = meaning_or_place(trace).set_index(["outcome", "quantity"]).value
    assert table["received", "token"] > 0.99
    assert table["received", "class"] < table["received", "token"] - 0.05


def test_one_step_has_nothing_to_learn_from():
    table = meaning_or_place(planted(uniform(1, 2, 1, 8), prompt=7))
    assert table.value.isna().all() and (table.missing == 1).all() and (table.n == 0).all()


def test_what_cannot_be_asked_is_said():
    trace = floating("place", 0)
    with pytest.raises(SpecError, match=r"held_out='layers' is unknown: expected steps or prompts"):
        meaning_or_place(trace, held_out="layers")
    with pytest.raises(SpecError, match=r"planted has one prompt.*or say held_out='steps'"):
        meaning_or_place([trace, trace], held_out="prompts")
    with pytest.raises(SpecError, match=r"by='layer' is not a list"):
        meaning_or_place(trace, by="layer")
    with pytest.raises(SpecError, match=r"class has no step: it can be split by"):
        meaning_or_place(trace, by=["step"])
    with pytest.raises(SpecError, match=r"no trace has the region 'gold'"):
        meaning_or_place(trace, evidence=["gold"])
    assert len(CLASSES) == 11


def test_layers_that_see_other_keys_do_not_disturb_one_another():
    """Layers are read side by side; those with a window have fewer keys to explain."""
    trace, maps = made(5, prompt=12)
    trace = planted(np.repeat(maps, 4, axis=1), prompt=12, texts=TEXTS)
    manifest = trace.manifest
    manifest["model"]["windows"] = [2, None] * 4
    trace = Trace(trace.dataset(), manifest)
    table = meaning_or_place(trace, rulli(EPS), group="written", by=["layer", "head"])
    alone = []
    for layer in iter_layers(trace):
        classes = TokenClasses(trace)
        alone.append(split_cells(layer, Designs(classes), rulli(EPS), "written"))
    expected = tabulate([(trace, stack_layers(alone))], ["outcome", "layer", "head"])
    assert np.array_equal(table.value, expected.value, equal_nan=True)
    assert table.value.notna().any()
