"""Claims of Attention Floating on evidence of known truth: true, false and under-powered."""

import numpy as np
import pandas as pd
import pytest

from anchorwatch.studies import (
    floating_anchors,
    floating_answers,
    floating_depth,
    floating_flow,
    floating_heads,
    floating_tasks,
    sets,
)
from anchorwatch.studies.catalogue import claims
from anchorwatch.studies.estimates import SEED, Estimate
from anchorwatch.studies.evidence import Traced
from anchorwatch.studies.least import Least
from anchorwatch.studies.verdicts import REFUTED, SUPPORTED, UNDECIDED
from evidenced import TRUTHS, answered, jumping, planting, right, said, told_whole, traces
from planted import planted

PLANTED, plants = planting()
MDM, ARM, FROZEN = floating_anchors.MDM, floating_anchors.ARM, floating_anchors.FROZEN
LENGTH, STEPS = 20, 8


def layered(count, keys, *, layers=4, heads=2, causal=False, seed=0, tokens=None, **more):
    """Runs whose rows all look at keys as `keys(rng, prompt, layer, step)` [key] says."""
    found = []
    seen = np.tril(np.ones((LENGTH, LENGTH))) if causal else np.ones((LENGTH, LENGTH))
    for index in range(count):
        rng = np.random.default_rng((seed, index))
        maps = np.empty((STEPS, layers, heads, LENGTH, LENGTH))
        for step in range(STEPS):
            for layer in range(layers):
                rows = seen * (np.asarray(keys(rng, index, layer, step)) + 1e-4)
                maps[step, layer] = rows / rows.sum(axis=-1, keepdims=True)
        own = np.arange(1, LENGTH + 1) + 100 * (index + 1) if tokens is None else tokens(rng, index)
        given = {name: made(rng, index, maps) for name, made in more.items()}
        found.append(
            planted(
                maps,
                prompt=LENGTH - STEPS,
                tokens=own,
                visibility="causal" if causal else "bidirectional",
                source="planted/arm" if causal else "planted/mdm",
                seed=index,
                **given,
            )
        )
    return Traced.of(found)


def peaked(at, share, length=LENGTH):
    """[key] with this share on one key, the rest even."""
    keys = np.full(length, (1 - share) / (length - 1))
    keys[at] = share
    return keys


@plants("floating/H2")
def moves_or_stays(truth):
    count, mdm, arm = {
        SUPPORTED: (20, 0.8, 0.1),
        REFUTED: (20, 0.1, 0.8),
        UNDECIDED: (6, 0.35, 0.25),
    }[truth]
    return {
        MDM: traces(count, jumping(mdm), length=16, seed=6),
        ARM: traces(count, jumping(arm), length=16, causal=True, seed=7),
        FROZEN: traces(count, jumping(0.0), length=16, seed=8),
    }


@plants("floating/H3")
def right_or_left(truth):
    count, way, noise = {SUPPORTED: (20, 1, 0), REFUTED: (20, -1, 0), UNDECIDED: (6, 0, 4)}[truth]

    def keys(rng, prompt, layer, step):
        # one layer of four goes the other way where the claim is false
        goes = way if layer == 2 else 1
        at = 8 + goes * step + rng.integers(-1 - noise, 2 + noise)
        return peaked(int(np.clip(at, 0, LENGTH - 1)), 0.8)

    return {MDM: layered(count, keys, heads=1, seed=20)}


@plants("floating/H4")
def where_it_was_written(truth):
    count, follows = {SUPPORTED: (20, 0.9), REFUTED: (20, 0.0), UNDECIDED: (6, 0.25)}[truth]
    prompt = LENGTH - STEPS

    def keys(rng, index, layer, step):
        fresh = prompt + step - 1 if step else 0
        at = fresh if rng.random() < follows else int(rng.integers(0, prompt))
        return peaked(at, 0.8)

    return {MDM: layered(count, keys, layers=1, seed=21)}


@plants("floating/H5")
def token_or_place(truth):
    count, by_token, noise = {
        SUPPORTED: (20, (True, False), 0.05),
        REFUTED: (20, (False, True), 0.05),
        UNDECIDED: (6, (True, True), 0.05),
    }[truth]
    weights = np.exp(np.random.default_rng(1).normal(0, 1, LENGTH + 1))
    orders = {}

    def tokens(rng, index):
        return orders[index]

    def keys(rng, index, layer, step):
        if index not in orders:
            orders[index] = rng.permutation(np.arange(1, LENGTH + 1))
        chosen = by_token[0] if layer == 0 else by_token[1]
        place = np.arange(LENGTH) * 10 // LENGTH
        held = weights[orders[index]] if chosen else weights[place]
        return held * np.exp(rng.normal(0, noise, LENGTH))

    return {MDM: layered(count, keys, layers=3, heads=1, seed=22, tokens=tokens)}


@plants("floating/H6")
def sparser_or_not(truth):
    count, way = {SUPPORTED: (20, 1), REFUTED: (20, -1), UNDECIDED: (6, 0)}[truth]

    def keys(rng, index, layer, step):
        depth = layer if way > 0 else 3 - layer if way < 0 else int(rng.integers(4))
        anchors = (6, 4, 2, 1)[depth]
        held = np.full(LENGTH, 0.01) * rng.uniform(0.9, 1.1, LENGTH)
        held[rng.choice(LENGTH, anchors, replace=False)] = 1.0
        return held

    return {MDM: layered(count, keys, heads=1, seed=23)}


@plants("floating/H7")
def less_or_more(truth):
    count, mdm, arm = {
        SUPPORTED: (20, 0.3, 0.8),
        REFUTED: (20, 0.8, 0.3),
        UNDECIDED: (6, 0.5, 0.6),
    }[truth]

    def of(mean):
        def keys(rng, index, layer, step):
            return peaked(0, float(np.clip(mean + 0.15 * rng.normal(), 0.05, 0.95)))

        return keys

    return {
        MDM: layered(count, of(mdm), layers=2, seed=24),
        ARM: layered(count, of(arm), layers=2, causal=True, seed=25),
    }


@plants("floating/H8")
def one_or_several(truth):
    count, second = {SUPPORTED: (20, 1.0), REFUTED: (20, 0.0), UNDECIDED: (6, 0.1)}[truth]

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
    return Traced.of(found)


@plants("floating/H9")
def grows_or_falls(truth):
    count, way, noise = {SUPPORTED: (20, 1, 0.02), REFUTED: (20, -1, 0.02), UNDECIDED: (6, 0, 0.2)}[
        truth
    ]

    def keys(rng, index, layer, step):
        return peaked(3, float(np.clip(0.4 + way * 0.1 * layer + noise * rng.normal(), 0.1, 0.9)))

    return {MDM: layered(count, keys, heads=1, seed=27)}


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
        for unit in range(count)
        for half, mean in (("shallow", own), ("deep", deep))
    ]
    return {floating_depth.HALVES: pd.DataFrame(rows)}


@plants("floating/H15")
def heads_matter_or_not(truth):
    rng = np.random.default_rng(29)
    count, lost = {SUPPORTED: (600, 0.4), REFUTED: (600, 0.0), UNDECIDED: (30, 0.1)}[truth]
    held = {}
    for need in floating_heads.OUT.values():
        whole = right(rng, count, 0.8)
        rows = {"unit": np.arange(count) // 8, "item": np.arange(count), "heads": 2}
        rows |= {"right_none": whole, "right_others": whole * right(rng, count, 0.98)}
        held[need] = pd.DataFrame(rows | {"right_heads": whole * right(rng, count, 1 - lost)})
    return held


@plants("floating/H18")
def wherever_or_near(truth):
    rng = np.random.default_rng(30)
    count, near, noise = {
        SUPPORTED: (30, 0.0, 0.05),
        REFUTED: (30, 1.0, 0.05),
        UNDECIDED: (6, 0.0, 0.6),
    }[truth]
    rows = [
        {"unit": unit, "place": place, "lift": 2 ** (0.6 + near * at + noise * rng.normal())}
        for unit in range(count)
        for at, place in enumerate(("first", "middle", "last"))
    ]
    return {floating_flow.PLACES: pd.DataFrame(rows)}


@plants("floating/H19")
def the_mask_or_the_model(truth):
    rng = np.random.default_rng(31)
    count, even, noise = {
        SUPPORTED: (20, 0.8, 0.01),
        REFUTED: (20, 0.3, 0.01),
        UNDECIDED: (6, 0.73, 0.1),
    }[truth]
    held = {}
    for role, value, null in (("arm", 0.8, even), ("mdm", 0.01, 0.01)):
        rows = {"unit": np.arange(count), "dobrushin": 0.01}
        rows |= {"value": value + noise * rng.normal(size=count) / 4}
        rows |= {"null": null + noise * rng.normal(size=count)}
        held[floating_flow.ROLLED[role]] = pd.DataFrame(rows)
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
        for at, context in enumerate(floating_answers.PLACES.contexts):
            cells[role, context, "none"] = right(rng, count, 0.8 - lost * (at == 1))
    return {floating_answers.PLACES: answered(cells)}


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
        for at, context in enumerate(floating_answers.LAYOUT.contexts):
            cells[role, context, "none"] = right(rng, count, 0.8 - lost * (at > 0))
    return {floating_answers.LAYOUT: answered(cells)}


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
        cells = {("mdm", "closed", "none"): right(rng, count, 0.1)}
        cells["mdm", "gold", "none"] = right(rng, count, 0.1 + gain)
        held[floating_answers.PROMPTED[name]] = answered(cells)
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
        {"unit": unit, "layer": layer, "null": 0.02, "elsewhere": 0.5}
        | {"value": 0.02 + gap + noise * rng.normal()}
        for unit in range(count)
        for layer in range(4)
    ]
    return {floating_tasks.QUERIES: pd.DataFrame(rows)}


def geometry(at_key, spread):
    """Fields of every key; the key 3 of a layer has a norm of its own, and a larger cosine."""

    def made(rng, index, maps):
        shape = (*maps.shape[:3], LENGTH)
        norm, cosine = np.full(shape, 5.0), np.full(shape, 0.1)
        for layer in range(shape[1]):
            norm[:, layer, :, 3] = at_key(rng, layer) * (1 + spread * rng.normal())
        cosine[..., 3] = 0.5
        dims = ("step", "layer", "head", "key")
        return {
            "each_norm_product": (dims, norm),
            "each_cosine": (dims, cosine),
            "each_logit": (dims, norm * cosine),
            "each_key_norm": (dims, norm),
        }

    return made


def to_key_3(rng, index, layer, step):
    return peaked(3, 0.8)


@plants("floating/H11")
def angle_or_norm(truth):
    count, norms, spread = {
        SUPPORTED: (20, (10.0, 10.0, 4.0, 4.0), 0.02),
        REFUTED: (20, (4.0, 4.0, 10.0, 10.0), 0.02),
        UNDECIDED: (6, (6.0, 6.0, 6.0, 6.0), 0.4),
    }[truth]
    made = geometry(lambda rng, layer: norms[layer], spread)
    return {MDM: layered(count, to_key_3, seed=36, more=made)}


@plants("floating/H12")
def short_or_long(truth):
    count, deep, spread = {
        SUPPORTED: (20, 3.0, 0.05),
        REFUTED: (20, 6.0, 0.05),
        UNDECIDED: (6, 4.6, 0.3),
    }[truth]
    made = geometry(lambda rng, layer: deep if layer > 1 else 5.0, spread)
    return {MDM: layered(count, to_key_3, seed=37, more=made)}


REGIONS = {"gold": range(4), "distractor 1": range(4, 8), "distractor 2": range(8, 11)}


def passages(rng, index, maps):
    return REGIONS


def masses(gold):
    """Attention of committed rows to each passage; `gold(rng, index, layer)` to the evidence."""

    def made(rng, index, maps):
        _, layers, heads, length, _ = maps.shape
        held = np.full((layers, heads, length, len(REGIONS)), 0.1, dtype=np.float32)
        for layer in range(layers):
            held[layer, :, :, 0] = max(gold(rng, index, layer), 0.001)
        return {"commit_region_mass": (("layer", "head", "position", "key_region"), held)}

    return made


def even(rng, index, layer, step):
    return np.ones(LENGTH)


@plants("floating/H13")
def deep_or_shallow(truth):
    count, way, noise = {SUPPORTED: (20, 1, 0.05), REFUTED: (20, -1, 0.05), UNDECIDED: (6, 0, 0.2)}[
        truth
    ]

    def going(way):
        return lambda rng, index, layer: 0.4 + way * 0.1 * (layer - 1.5) + noise * rng.normal()

    return {
        MDM: layered(count, even, seed=38, regions=passages, more=masses(going(way))),
        ARM: layered(count, even, causal=True, seed=39, regions=passages, more=masses(going(-way))),
    }


@plants("floating/H14")
def few_or_all(truth):
    count, copying, chance = {
        SUPPORTED: (20, 1, 0.9),
        REFUTED: (20, 8, 0.9),
        UNDECIDED: (6, 2, 0.6),
    }[truth]

    def tokens(rng, index):
        own = np.arange(1, LENGTH + 1) + 100 * (index + 1)
        own[[0, *range(LENGTH - STEPS, LENGTH)]] = 7  # what is written stands in gold
        return own

    def keys(rng, index, layer, step):
        held = np.ones((2, 1, LENGTH))
        for head in range(2):
            copies = 2 * layer + head < copying and rng.random() < chance
            held[head, 0, 0 if copies else 11] = 20.0
        return held

    gold = masses(lambda rng, index, layer: 0.3)
    given = {"regions": passages, "more": gold, "tokens": tokens}
    return {
        MDM: layered(count, keys, seed=40, **given),
        ARM: layered(count, keys, causal=True, seed=41, **given),
    }


TEMPLATE = {1: "Passage:", 2: " Question:", 3: " Answer:", 4: "."}


def texts(rng, index, maps):
    return TEMPLATE


def templated(rng, index):
    """Passage: w w w . w w Question: w w w Answer: and what is written."""
    own = np.arange(10, LENGTH + 10) + 100 * (index + 1)
    own[[0, 4, 7, 11]] = [1, 4, 2, 3]
    return own


def untemplated(rng, index):
    own = np.arange(10, LENGTH + 10) + 100 * (index + 1) + 50_000
    own[[4, 9]] = 4
    return own


@plants("floating/H16")
def structure_or_content(truth):
    count, way = {SUPPORTED: (20, 1), REFUTED: (20, -1), UNDECIDED: (6, 0)}[truth]

    def keys(rng, index, layer, step):
        mark = rng.random() < 0.5 if way == 0 else (layer < 2) == (way > 0)
        return peaked(4 if mark else 2, 0.6 + 0.1 * rng.random())

    return {MDM: layered(count, keys, seed=42, tokens=templated, texts=texts)}


@plants("floating/H25")
def goes_with_or_not(truth):
    count, way = {SUPPORTED: (40, 1), REFUTED: (40, -1), UNDECIDED: (8, 0)}[truth]
    good = np.arange(count) % 2 == 0
    at = {}

    def keys(rng, index, layer, step):
        rate = 0.5 if way == 0 else 0.7 if good[index] == (way > 0) else 0.3
        if step == 0 or rng.random() < rate:
            at[layer] = int(rng.integers(0, LENGTH - STEPS))
        return peaked(at[layer], 0.8)

    def gold(rng, index, layer):
        return 0.4 + 0.1 * way * (1 if good[index] else -1) + 0.1 * rng.normal()

    def tokens(rng, index):
        own = np.arange(10, LENGTH + 10) + 100 * (index + 1)
        own[LENGTH - STEPS] = 5
        return own

    def answers(rng, index, maps):
        return {5: " " + sets.ASKED[index].answers[0] if good[index] else " nothing"}

    given = {"regions": passages, "more": masses(gold), "tokens": tokens, "texts": answers}
    return {MDM: layered(count, keys, seed=43, **given)}


@plants("floating/H26")
def another_task_or_not(truth):
    count, other, sure = {SUPPORTED: (20, 2, 0.9), REFUTED: (20, 4, 0.9), UNDECIDED: (6, 2, 0.5)}[
        truth
    ]

    def to(place):
        def keys(rng, index, layer, step):
            return peaked(place if rng.random() < sure else 6 - place, 0.8)

        return keys

    given = {"layers": 1, "texts": texts}
    return {
        MDM: layered(count, to(4), seed=44, tokens=templated, **given),
        floating_tasks.TOLD: layered(count, to(other), seed=45, tokens=untemplated, **given),
    }


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("name", PLANTED)
def test_the_verdict_is_the_truth(name, truth):
    (claim,) = claims([name])
    verdict, finding = said(claim, PLANTED[name](truth))
    shown = {key: (one.estimate.value, one.estimate.error) for key, one in finding.measured.items()}
    assert verdict == truth, shown


@pytest.mark.parametrize("name", PLANTED)
def test_what_it_measured_is_told_whole(name):
    (claim,) = claims([name])
    told_whole(claim, said(claim, PLANTED[name](SUPPORTED))[1])


def test_the_least_of_several_supports_only_if_all_do_and_refutes_with_a_correction():
    high, low = (Estimate.mean([x - 0.1, x, x + 0.1, x + 0.2], SEED) for x in (5.0, 1.0))
    least = Least.among([high, low])
    assert least.value == low.value
    assert least.p_above(0.5) == low.p_above(0.5) > high.p_above(0.5)
    assert least.p_below(2.0) == pytest.approx(2 * low.p_below(2.0))
    assert least.interval(0.95)[0] == low.interval(0.95)[0]
    assert least.interval(0.95)[1] == low.interval(0.975)[1]
