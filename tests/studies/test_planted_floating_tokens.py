"""Claims of Attention Floating about what anchors are and go with, on evidence of known truth."""

import numpy as np
import pytest

from anchorwatch.errors import EvidenceError
from anchorwatch.studies import prompts
from anchorwatch.studies.evidence import Evidence, TraceSet
from anchorwatch.studies.measure import ARM_RUNS, MDM_RUNS
from anchorwatch.studies.papers import claims
from anchorwatch.studies.papers.floating import measures as floating_measures
from anchorwatch.studies.verdict import REFUTED, SUPPORTED, UNDECIDED, judge_claims
from claim_evidence import (
    LENGTH,
    STEPS,
    TRUTHS,
    assert_verdict,
    collect_plantings,
    judge,
    peaked_row,
    traces_by_layer,
)

PLANTED, plants = collect_plantings()
MDM, ARM = MDM_RUNS, ARM_RUNS


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
    return peaked_row(3, 0.8)


@plants("floating/H11")
def angle_or_norm(truth):
    count, norms, spread = {
        SUPPORTED: (20, (10.0, 10.0, 4.0, 4.0), 0.02),
        REFUTED: (20, (4.0, 4.0, 10.0, 10.0), 0.02),
        UNDECIDED: (6, (6.0, 6.0, 6.0, 6.0), 0.4),
    }[truth]
    made = geometry(lambda rng, layer: norms[layer], spread)
    return {MDM: traces_by_layer(count, to_key_3, seed=36, more=made)}


@plants("floating/H12")
def short_or_long(truth):
    count, deep, spread = {
        SUPPORTED: (20, 3.0, 0.05),
        REFUTED: (20, 6.0, 0.05),
        UNDECIDED: (6, 4.6, 0.3),
    }[truth]
    made = geometry(lambda rng, layer: deep if layer > 1 else 5.0, spread)
    return {MDM: traces_by_layer(count, to_key_3, seed=37, more=made)}


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


ANSWER = 7


def answering(rng, index, maps):
    """What is written is the answer."""
    return {ANSWER: " " + prompts.QUESTION_SETS["asked"][index].answers[0]}


def right_tokens(rng, index):
    own = np.arange(10, LENGTH + 10) + 100 * (index + 1)
    own[[0, *range(LENGTH - STEPS, LENGTH)]] = ANSWER  # what is written stands in gold
    return own


def even(rng, index, layer, step):
    return np.ones(LENGTH)


@plants("floating/H13")
def deep_or_shallow(truth):
    count, way, noise = {SUPPORTED: (20, 1, 0.05), REFUTED: (20, -1, 0.05), UNDECIDED: (6, 0, 0.2)}[
        truth
    ]

    def going(way):
        return lambda rng, index, layer: 0.4 + way * 0.1 * (layer - 1.5) + noise * rng.normal()

    given = {"regions": passages, "tokens": right_tokens, "texts": answering}
    return {
        MDM: traces_by_layer(count, even, seed=38, more=masses(going(way)), **given),
        ARM: traces_by_layer(count, even, causal=True, seed=39, more=masses(going(-way)), **given),
    }


@plants("floating/H14")
def few_or_all(truth):
    count, mdm, arm = {SUPPORTED: (20, 8, 1), REFUTED: (20, 1, 8), UNDECIDED: (6, 3, 2)}[truth]

    def by(copying):
        def keys(rng, index, layer, step):
            held = np.ones((2, 1, LENGTH))
            for head in range(2):
                copies = rng.random() < (0.9 if 2 * layer + head < copying else 0.05)
                held[head, 0, 0 if copies else 11] = 20.0
            return held

        return keys

    gold = masses(lambda rng, index, layer: 0.3)
    given = {"regions": passages, "more": gold, "tokens": right_tokens, "texts": answering}
    return {
        MDM: traces_by_layer(count, by(mdm), seed=40, **given),
        ARM: traces_by_layer(count, by(arm), causal=True, seed=41, **given),
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
        mark = rng.random() < (0.5 if way == 0 else 0.9 if (layer < 2) == (way > 0) else 0.1)
        return peaked_row(4 if mark else 2, 0.6 + 0.1 * rng.random())

    return {MDM: traces_by_layer(count, keys, seed=42, tokens=templated, texts=texts)}


@plants("floating/H25")
def goes_with_or_not(truth):
    count, way = {SUPPORTED: (40, 1), REFUTED: (40, -1), UNDECIDED: (12, 0)}[truth]
    good = np.arange(count) % 2 == 0
    at = {}

    def keys(rng, index, layer, step):
        rate = 0.5 if way == 0 else 0.7 if good[index] == (way > 0) else 0.3
        if step == 0 or rng.random() < rate:
            at[layer] = int(rng.integers(0, LENGTH - STEPS))
        return peaked_row(at[layer], 0.8)

    def gold(rng, index, layer):
        return 0.4 + 0.1 * way * (1 if good[index] else -1) + 0.1 * rng.normal()

    def tokens(rng, index):
        own = np.arange(10, LENGTH + 10) + 100 * (index + 1)
        own[LENGTH - STEPS] = 5
        return own

    def answers(rng, index, maps):
        return {
            5: " " + prompts.QUESTION_SETS["asked"][index].answers[0] if good[index] else " nothing"
        }

    given = {"regions": passages, "more": masses(gold), "tokens": tokens, "texts": answers}
    return {MDM: traces_by_layer(count, keys, seed=43, **given)}


@plants("floating/H26")
def another_task_or_not(truth):
    count, other = {SUPPORTED: (20, 2), REFUTED: (20, 4), UNDECIDED: (6, 2)}[truth]

    def to(place):
        def keys(rng, index, layer, step):
            alike = truth == UNDECIDED and index % 3 > 0  # one prompt in three is another's
            at = 4 if alike else place
            return peaked_row(at if rng.random() < 0.9 else 6 - at, 0.8)

        return keys

    given = {"layers": 1, "texts": texts}
    return {
        MDM: traces_by_layer(count, to(4), seed=44, tokens=templated, **given),
        floating_measures.PASSAGE_RUNS: traces_by_layer(
            count, to(other), seed=45, tokens=untemplated, **given
        ),
    }


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("name", PLANTED)
def test_the_verdict_is_the_truth(name, truth):
    assert_verdict(name, PLANTED[name](truth), truth)


def test_what_heads_look_at_in_wrong_answers_is_no_retrieval():
    wrong = {"tokens": right_tokens, "texts": lambda *_: {ANSWER: " nothing"}}
    more = masses(lambda rng, index, layer: 0.3)
    held = deep_or_shallow(SUPPORTED)
    held |= {MDM: traces_by_layer(8, even, seed=38, regions=passages, more=more, **wrong)}
    held |= {ARM: TraceSet.from_traces(held[ARM].traces[:8])}
    with pytest.raises(EvidenceError, match=r"of 8 there are 0 \(the MDM is right in 0, the"):
        judge(claims(["floating/H14"])[0], held)
    (judged,) = judge_claims(claims(["floating/H13"]), Evidence.of(held), {})
    assert "prompts that the masked diffusion model answers rightly (their number is 0" in (
        judged.lacking
    )
    with pytest.raises(EvidenceError, match="this one is right in 0 and wrong in 8"):
        judge(claims(["floating/H25"])[0], held)


def test_layers_that_look_at_any_passage_deep_are_not_said_to_retrieve_deep():
    def both(rng, index, maps):
        (_, held) = masses(lambda rng, index, layer: 0.1 * (layer + 1))(rng, index, maps)[
            "commit_region_mass"
        ]
        held = held[..., :1] * np.exp(0.05 * rng.normal(size=held.shape))
        return {"commit_region_mass": (("layer", "head", "position", "key_region"), held)}

    held = deep_or_shallow(SUPPORTED)
    given = {"regions": passages, "tokens": right_tokens, "texts": answering}
    held[MDM] = traces_by_layer(20, even, seed=46, more=both, **given)
    _, finding = judge(claims(["floating/H13"])[0], held)
    assert finding.measured["deep"].estimate.interval(0.99)[0] > 0.5
    low, high = finding.measured["beside other passages"].estimate.interval(0.99)
    assert low < 0 < high


def test_a_kind_of_token_that_a_prompt_lacks_says_nothing_of_its_task():
    lifts = np.array([1.0, 2.0, np.nan, 0.5])
    other, rest = np.array([1.0, 2.0, 3.0, 0.5]), np.array([2.0, 4.0, 0.0, 1.0])
    assert floating_measures.divergences(lifts, other, rest) == pytest.approx([0.0, 0.0])
