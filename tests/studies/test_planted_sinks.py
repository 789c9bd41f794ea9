"""Claims about attention sinks on evidence of known truth: true, false and under-powered."""

import numpy as np
import pandas as pd
import pytest

from anchorwatch.errors import EvidenceError
from anchorwatch.metrics.table import Quantity
from anchorwatch.studies.budget import budget
from anchorwatch.studies.evidence import Evidence, TraceSet
from anchorwatch.studies.measure import (
    FIRST_HALF,
    LAST_HALF,
    MDM_RUNS,
    NORM_RUNS,
    pair_sinks,
    pool_layers,
    sink_moves,
)
from anchorwatch.studies.papers import claims
from anchorwatch.studies.papers.floating.measures import GAIN
from anchorwatch.studies.papers.sinks import measures as sinks_measures
from anchorwatch.studies.verdict import REFUTED, SUPPORTED, UNDECIDED
from claim_evidence import (
    TRUTHS,
    answer_table,
    assert_verdict,
    collect_plantings,
    draw_answers,
    effect_tables,
    jumping_sink,
    traces_with_sink,
)
from synthetic_traces import planted, with_blocks

PLANTED, plants = collect_plantings()
CLAIM = {one.id: one for one in claims(["sinks"])}
MDM = MDM_RUNS
SURE = {SUPPORTED: 24, REFUTED: 24, UNDECIDED: 6}
ALIKE = {SUPPORTED: 45, REFUTED: 45, UNDECIDED: 6}
"""Prompts; more of them where no two differ, and a share of others can only be bounded."""
LENGTH, PROMPT, STEPS = 24, 16, 8


def grown(count, keys, *, seed, layers=1, heads=2, more=None, words=None, first=0, **options):
    """Runs in which `keys(rng, step, layer, head)` take most, of all queries or by their group.

    One key or several, or {"masked": key, "written": key}; None for no sink. `more(rng, maps)` adds
    fields, `words` {position: token id} puts known tokens into the prompt.
    """
    found = []
    for index in range(first, first + count):
        rng = np.random.default_rng((seed, index))
        maps = np.full((STEPS, layers, heads, LENGTH, LENGTH), 1 / LENGTH)
        for step, layer, head in np.ndindex(*maps.shape[:3]):
            chosen = keys(rng, step, layer, head)
            for rows, key in parted(chosen, step).items():
                taken = np.size(key) * 0.3 if np.size(key) > 1 else 0.6
                maps[step, layer, head, list(rows)] *= 1 - taken
                for one in np.atleast_1d(key):
                    maps[step, layer, head, list(rows), one] += taken / np.size(key)
        tokens = np.arange(1, LENGTH + 1) + 100 * (index + 1)
        for position, token in (words or {}).items():
            tokens[position] = token
        fields = more(rng, maps) if more else None
        found.append(
            planted(maps, prompt=PROMPT, tokens=tokens, seed=index, more=fields, **options)
        )
    return TraceSet.from_traces(found)


def parted(chosen, step):
    """Rows to what they look at; answers are written one a step from the left."""
    if chosen is None:
        return {}
    if not isinstance(chosen, dict):
        return {tuple(range(LENGTH)): chosen}
    masked = tuple(range(PROMPT + step, LENGTH))
    return {masked: chosen["masked"], tuple(range(PROMPT + step)): chosen["written"]}


def table(values):
    """Rows of {column: [unit]}, one for each unit."""
    return pd.DataFrame(values).rename_axis("unit").reset_index()


@plants("sinks/H1")
def exist_or_not(truth):
    rng, count = np.random.default_rng(30), SURE[truth]
    above, most, wide = {
        SUPPORTED: (0.95, 3.0, 0.03),
        REFUTED: (0.7, 1.0, 0.03),
        UNDECIDED: (0.55, 2.5, 0.2),
    }[truth]
    held = {"above": np.clip(rng.normal(above, wide, count), 0, 1), "shuffled": np.full(count, 2.0)}
    return {
        sinks_measures.HEAD_MAPS: table(held | {"greatest": rng.normal(most, 10 * wide, count)}),
        MDM: traces_with_sink(2, jumping_sink(0.5)),
    }


@plants("sinks/H4")
def alike_or_not(truth):
    rng, count = np.random.default_rng(31), SURE[truth]
    cosine, jumps, wide = {
        SUPPORTED: (0.97, 0.2, 0.01),
        REFUTED: (0.6, 0.2, 0.01),
        UNDECIDED: (0.92, 0.06, 0.04),
    }[truth]
    held = {"cosine": np.clip(rng.normal(cosine, wide, count), 0, 1)}
    held |= {"cosine_null": np.full(count, 0.5), "jumps_null": np.full(count, 0.3)}
    return {
        sinks_measures.HEAD_MAPS: table(held | {"jumps": np.abs(rng.normal(jumps, wide, count))})
    }


@plants("sinks/H5")
def stays_or_flickers(truth):
    count, rate = {SUPPORTED: (24, 0.25), REFUTED: (24, 0.97), UNDECIDED: (6, 0.5)}[truth]
    return {MDM: traces_with_sink(count, jumping_sink(rate), length=LENGTH, steps=14, seed=32)}


@plants("sinks/H6")
def with_the_blocks_or_not(truth):
    def keys(rng, step, layer, head):
        drifts = 2 * (step // 2)
        if truth == UNDECIDED:
            return int(rng.integers(8))
        return drifts if truth == SUPPORTED else 14 - drifts

    held = grown(SURE[truth], keys, seed=33)
    return {
        sinks_measures.BLOCK_RUNS: TraceSet.from_traces(
            [with_blocks(one, 2) for one in held.traces]
        )
    }


@plants("sinks/H7")
def at_the_frontier_or_not(truth):
    when = [-1] * PROMPT + list(range(STEPS - 1, -1, -1))  # written from the right

    def keys(rng, step, layer, head):
        edge = LENGTH - 1 - step
        if truth == UNDECIDED:
            return edge if rng.random() < 0.3 else int(rng.integers(LENGTH))
        if truth == REFUTED:
            return step
        return edge if layer == 0 or rng.random() < 0.5 else edge - 8

    return {MDM: grown(SURE[truth], keys, seed=34, layers=2, committed_at=when)}


@plants("sinks/H8")
def static_or_not(truth):
    def keys(rng, step, layer, head):
        if truth == REFUTED:
            return int(rng.integers(LENGTH))
        if truth == UNDECIDED:
            return None if head else int(0 if rng.random() < 0.9 else rng.integers(LENGTH))
        return 3 if head == 0 else None

    return {MDM: grown(ALIKE[truth], keys, seed=35, heads=2 if truth == UNDECIDED else 4)}


@plants("sinks/H9")
def fewer_or_more(truth):
    def keys(rng, step, layer, head):
        sure = 0.6 if truth == UNDECIDED else 0.95
        two = ((layer < 2) == (truth != REFUTED)) == (rng.random() < sure)
        return [2, 7] if two else 4

    return {MDM: grown(SURE[truth], keys, seed=36, layers=4)}


@plants("sinks/H10")
def named_or_not(truth):
    newlines, stops = (5, 11), (7, 13)

    def keys(rng, step, layer, head):
        if truth == REFUTED or (truth == UNDECIDED and rng.random() < 0.35):
            return int(rng.integers(5))
        masks = tuple(range(PROMPT + step, LENGTH))
        return int(rng.choice((newlines, stops, masks)[rng.integers(3)]))

    words = dict.fromkeys(newlines, 1) | dict.fromkeys(stops, 2)
    texts = {1: "\n", 2: "."}
    return {MDM: grown(SURE[truth], keys, seed=37, words=words, texts=texts)}


@plants("sinks/H11")
def meaning_or_place(truth):
    newlines = (1, 8, 14)
    words = dict.fromkeys(newlines, 1)

    def grow(count, chosen, first):
        def keys(rng, step, layer, head):
            return int(rng.integers(LENGTH)) if rng.random() < 0.1 else list(chosen)

        held = grown(count, keys, seed=38, words=words, texts={1: "\n"}, first=first)
        return held.traces

    count = SURE[truth]
    share = {SUPPORTED: count, REFUTED: 0, UNDECIDED: count // 2}[truth]
    meant, placed = grow(share, newlines, 0), grow(count - share, (3, 4), share)
    return {MDM: TraceSet.from_traces([*meant, *placed])}


@plants("sinks/H12")
def split_or_not(truth):
    """Groups of few queries have keys of their own by chance: only what is beyond that counts."""
    rng, count, rows = np.random.default_rng(39), SURE[truth], []
    size, wide = {SUPPORTED: (3.0, 0.5), REFUTED: (0.0, 0.2), UNDECIDED: (0.5, 1.0)}[truth]
    for layer in range(4):
        drawn = rng.normal(5.0, 1.0, count)
        own = drawn + size * (layer >= 2) + rng.normal(0, wide, count)
        held = {"own": own, "own_drawn": drawn, "split": np.full(count, 0.9)}
        rows.append(table(held | {"split_drawn": np.full(count, 0.8)}).assign(layer=layer, head=0))
    return {sinks_measures.HEAD_MAPS: pd.concat(rows, ignore_index=True)}


@plants("sinks/H15")
def comes_back_or_not(truth):
    rng, count = np.random.default_rng(40), SURE[truth]
    hides, gap = {SUPPORTED: (0.5, 0.2), REFUTED: (0.05, 0.2), UNDECIDED: (0.27, 0.03)}[truth]

    def arm(mean):
        return {"edited": rng.normal(mean, 0.05, count)}

    shadow = {"greatest_hidden": arm(0.4 + hides), "kl": arm(0.4 + gap)}
    edited = {"greatest_hidden": arm(0.4), "kl": arm(0.4)}
    return {
        sinks_measures.HIDDEN_SINKS: effect_tables(shadow),
        sinks_measures.FOUND_IN_EDITED: effect_tables(edited, doses=(-1,)),
    }


@plants("sinks/H16")
def later_or_not(truth):
    rng, count = np.random.default_rng(41), SURE[truth]
    size = {SUPPORTED: 0.5, REFUTED: -0.3, UNDECIDED: 0.15}[truth]
    rows = []
    for unit in range(count):
        for arm, mean in (("sinks", 0.2 + size), ("random", 0.2)):  # not the sinks' doing
            later, surer = np.clip(rng.normal((mean, -mean), 0.2), -1, 1)
            rows.append({"unit": unit, "arm": arm, "later": later, "surer": surer, "moved": 0.5})
    return {sinks_measures.DELAYS: pd.DataFrame(rows)}


@plants("sinks/H17")
def needs_steps_or_not(truth):
    rng = np.random.default_rng(42)
    count, one, many = {
        SUPPORTED: (1500, 0.3, 0.0),
        REFUTED: (1500, 0.0, 0.2),
        UNDECIDED: (40, 0.3, 0.2),
    }[truth]
    held = {}
    for spec, lost in ((sinks_measures.ONE_STEP, one), (sinks_measures.MANY_STEPS, many)):
        clean = draw_answers(rng, count, 0.8)
        cells = {
            "none": clean,
            "sinks": clean * draw_answers(rng, count, 1 - lost),
            "random": clean,
        }
        held[spec] = answer_table({("mdm", "gold", name): cell for name, cell in cells.items()})
    return held


def at_sinks(maps, values, others):
    """[step, layer, head, key] of `values` [layer] at the greatest key, and else `others`."""
    greatest = maps.mean(axis=3).argmax(axis=-1)
    found = np.full((*greatest.shape, LENGTH), others, dtype=np.float32)
    put = np.broadcast_to(np.asarray(values, dtype=np.float32)[None, :, None], greatest.shape)
    np.put_along_axis(found, greatest[..., None], put[..., None], axis=-1)
    return ("step", "layer", "head", "key"), found


@plants("sinks/H18")
def small_or_large_values(truth):
    def more(rng, maps):
        sure = 2.0 if truth == SUPPORTED else 9.0
        norm = rng.uniform(1.0, 6.0) if truth == UNDECIDED else sure + rng.normal(0, 0.2)
        held = at_sinks(maps, [norm], 5.0)
        return {"each_value_norm": held, "each_contribution_norm": held}

    return {NORM_RUNS: grown(ALIKE[truth], lambda *_: 4, seed=43, more=more)}


@plants("sinks/H19")
def angle_or_norm(truth):
    def more(rng, maps):
        deep = rng.random() < 0.6 if truth == UNDECIDED else truth == SUPPORTED
        by_angle = np.array([not deep, not deep, deep, deep])
        wide = rng.uniform(0.9, 1.1)
        cosine, norm = np.where(by_angle, 0.8 * wide, 0.1), np.where(by_angle, 1.05, 5.0 * wide)
        return {
            "each_cosine": at_sinks(maps, cosine, 0.1),
            "each_norm_product": at_sinks(maps, norm, 1.0),
            "each_logit": at_sinks(maps, cosine * norm, 0.1),
        }

    return {MDM: grown(SURE[truth], lambda *_: 4, seed=44, layers=4, more=more)}


@plants("sinks/H20")
def massive_or_not(truth):
    count = {SUPPORTED: 12, REFUTED: 30, UNDECIDED: 6}[truth]

    def more(rng, maps):
        greatest = maps.mean(axis=3).argmax(axis=-1)[:, :, 0]
        hit = {SUPPORTED: 0.9, REFUTED: 0.0, UNDECIDED: 0.25}[truth]
        place = np.where(rng.random(greatest.shape) < hit, greatest, 20)[..., None]
        dims = ("step", "layer", "outlier")
        return {
            "massive_value": (dims, np.full(place.shape, 500.0, dtype=np.float32)),
            "massive_position": (dims, place.astype(np.int32)),
            "massive_channel": (dims, np.zeros(place.shape, dtype=np.int32)),
            "massive_median": (dims[:2], np.full(place.shape[:2], 0.1, dtype=np.float32)),
        }

    return {MDM: grown(count, lambda *_: 4, seed=45, heads=1, more=more)}


@plants("sinks/H21")
def reused_or_not(truth):
    share = {SUPPORTED: 0.95, REFUTED: 0.02, UNDECIDED: 0.15}[truth]

    def keys(rng, step, layer, head):
        same = rng.random() < share
        moves = rng.random() < 0.1  # so that prompts differ
        return (step + 1 if moves else step) if layer == 2 or same else step + 10

    return {MDM: grown(SURE[truth], keys, seed=46, layers=4, heads=1)}


@plants("sinks/H22")
def tax_or_not(truth):
    rng = np.random.default_rng(47)
    count, cost, link = {
        SUPPORTED: (200, 0.3, 1.0),
        REFUTED: (200, 0.0, -1.0),
        UNDECIDED: (12, 0.1, 0.3),
    }[truth]
    few = draw_answers(rng, count, 0.9)
    many, drawn = few * draw_answers(rng, count, 1 - cost), rng.normal(0.2, 0.05, count)
    lost = -link * 5 * drawn + rng.normal(0, 0.3, count)
    base = {"unit": np.arange(count), "even": 0.1, "logprob": -1.0, "mass": 0.5}
    rows = [
        pd.DataFrame(base | {"masks": 8, "right": few}),
        pd.DataFrame(
            base
            | {"masks": 56, "right": many, "logprob": lost - 1, "even": 0.5, "mass": 0.5 + drawn}
        ),
    ]
    return {sinks_measures.ADDED_MASKS: pd.concat(rows, ignore_index=True)}


@plants("sinks/H23")
def rules_agree_or_not(truth):
    def keys(rng, step, layer, head):
        three = rng.random() < 0.35 if truth == UNDECIDED else truth == REFUTED
        return [2 + step, 9 + step, 15 + step] if three else int(rng.integers(4))

    return {MDM: grown(SURE[truth], keys, seed=48)}


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("name", PLANTED)
def test_the_verdict_is_the_truth(name, truth):
    assert_verdict(name, PLANTED[name](truth), truth)


def test_a_model_without_massive_activations_is_no_evidence():
    still = grown(6, lambda *_: 4, seed=49, heads=1, more=_small)
    with pytest.raises(EvidenceError, match=r"a model with massive activations.* is 2"):
        CLAIM["sinks/H20"].find(Evidence.of({MDM: still}))


def _small(rng, maps):
    dims, shape = ("step", "layer", "outlier"), (STEPS, 1, 1)
    return {
        "massive_value": (dims, np.full(shape, 2.0, dtype=np.float32)),
        "massive_position": (dims, np.zeros(shape, dtype=np.int32)),
        "massive_channel": (dims, np.zeros(shape, dtype=np.int32)),
        "massive_median": (dims[:2], np.ones(shape[:2], dtype=np.float32)),
    }


def test_a_model_that_is_never_right_has_nothing_to_lose_to_masks():
    held = tax_or_not(SUPPORTED)
    none = {spec: rows.assign(right=0.0) for spec, rows in held.items()}
    with pytest.raises(EvidenceError, match="right in 30% of the questions"):
        CLAIM["sinks/H22"].find(Evidence.of(none))


def test_a_causal_map_that_is_even_has_no_sink_that_could_stay_or_move():
    """Over all rows its greatest key is always the first; the rows that predict have none."""
    even = traces_with_sink(2, lambda *_: None, causal=True, length=24, steps=16)
    assert all(np.isnan(sink_moves(one)) for one in even.traces)


def test_rows_that_predict_are_compared_two_at_a_time():
    at = [3, 3, 5, 5, 5, 2, 2, 2]  # pairs: 3, 5, none, 2
    held = grown(1, lambda rng, step, layer, head: at[step], seed=50, heads=1)
    assert pair_sinks(held.traces[0])[0, 0].tolist() == [3, 5, -1, 2]
    assert sink_moves(held.traces[0]) == 1


def test_the_greatest_key_agrees_with_a_rule_where_the_rule_finds_a_sink():
    rare = grown(6, lambda rng, *_: 4 if rng.random() < 0.2 else None, seed=51)
    found = CLAIM["sinks/H23"].find(Evidence.of({MDM: rare})).measured
    assert found["topk"].estimate.value == 1
    weak = grown(6, lambda *_: [2, 9, 15, 20], seed=52)  # 0.3 in all: no key is above 0.3
    gu = CLAIM["sinks/H23"].find(Evidence.of({MDM: weak})).measured["gu"].estimate
    assert (gu.n, gu.missing) == (0, 6)


def test_a_layer_without_a_value_is_no_gap_in_its_half():
    top, bottom = (
        np.array([[0.0, 0], [3, 1], [2, 2], [1, 1]]),
        np.array([[0, 0], [4, 4], [4, 0], [4, 4]]),
    )
    held = Quantity("share", ("layer", "step"), top, bottom.astype(float))
    assert pool_layers(held, FIRST_HALF) == 0.5
    assert pool_layers(held, LAST_HALF, np.array([True, False])) == 3 / 8
    assert pool_layers(held) == 10 / 20
    assert np.isnan(pool_layers(Quantity("share", ("layer", "step"), 0 * top, 0 * top)))


def test_under_edits_an_arm_answers_without_a_cache():
    arm = {spec: spec.how(budget("quick"), "arm") for spec in (sinks_measures.HIDDEN_ANSWERS, GAIN)}
    assert [how.cache for how in arm.values()] == [False, True]
    steps = [spec.how(budget("quick"), "mdm").steps for spec in (sinks_measures.ONE_STEP, GAIN)]
    assert steps == [1, 8]
