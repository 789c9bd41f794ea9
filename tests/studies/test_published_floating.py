"""The paper's own numbers, fed to its claims: each comes out supported, or says where the numbers
contradict it.

From the figures and Table 1 of arXiv 2601.07894: absorption by layer, the two temporal maps of
LLaDA (52 positions, 32 steps, layers 0 and 31), the QK figure, the retrieval-head maps, the flow
maps and the table. Prompts differ by noise that we add; nothing else is added. Sentences without a
number (H16, H20 to H22, H26) cannot be fed.
"""

import numpy as np
import pandas as pd
import pytest

from anchorwatch.studies import prompts
from anchorwatch.studies.evidence import Evidence, TraceSet
from anchorwatch.studies.measure import ARM_RUNS, MDM_RUNS
from anchorwatch.studies.papers import claims
from anchorwatch.studies.papers.floating import measures
from anchorwatch.studies.verdict import REFUTED, SUPPORTED, UNDECIDED, verdicts
from claim_evidence import LENGTH, STEPS, answer_table, draw_answers, traces_by_layer
from synthetic_traces import planted

LLAMA = (
    *(52.3, 79.6, 91.2, 87.1, 81.8, 78.1, 72.7, 65.3, 63.2, 63.3, 67.4, 59.7, 58.0, 58.2, 60.6),
    *(62.3, 66.2, 72.4, 81.1, 84.2, 83.7, 82.1, 84.5, 88.7, 87.5, 88.4, 82.8, 83.0, 80.3, 82.4),
    *(69.3, 66.9),
)
QWEN = (
    *(12.0, 19.3, 28.1, 15.7, 81.3, 83.5, 71.0, 68.1, 73.2, 65.5, 66.0, 68.6, 64.7, 58.0, 69.7),
    *(64.6, 67.9, 69.7, 60.1, 60.3, 69.0, 68.9, 81.1, 76.7, 78.5, 76.7, 81.0, 66.2),
)
LLADA = (
    *(11.8, 11.1, 11.8, 9.4, 8.6, 10.2, 9.4, 11.8, 10.6, 11.8, 27.1, 15.2, 18.3, 21.5, 17.3, 16.6),
    *(24.2, 19.6, 19.4, 22.2, 15.2, 21.1, 23.6, 22.4, 19.2, 23.1, 25.8, 32.0, 28.9, 30.9, 29.3),
    10.3,
)
DREAM = (
    *(4.4, 4.1, 9.8, 6.5, 49.3, 26.8, 29.3, 27.5, 39.2, 29.5, 38.2, 41.2, 43.0, 32.8, 39.8, 34.2),
    *(35.2, 36.2, 32.6, 31.0, 34.9, 36.3, 48.0, 49.7, 53.2, 51.7, 55.2, 34.6),
)
"""Per cent of head-mean attention by layer: on the first key (Llama, Qwen), on the greatest."""
RETRIEVAL = {
    "LLaDA": (
        *(0.18, 0.14, 0.16, 0.09, 0.13, 0.14, 0.14, 0.23, 0.15, 0.16, 0.27, 0.14, 0.15, 0.34),
        *(0.16, 0.20, 0.39, 0.26, 0.23, 0.38, 0.20, 0.33, 0.38, 0.42, 0.30, 0.38, 0.38, 0.46),
        *(0.40, 0.46, 0.47, 0.49),
    ),
    "Dream": (
        *(0.05, 0.02, 0.11, 0.04, 0.17, 0.15, 0.03, 0.07, 0.19, 0.17, 0.05, 0.24, 0.21, 0.08),
        *(0.50, 0.21, 0.44, 0.21, 0.11, 0.46, 0.13, 0.32, 0.50, 0.46, 0.21, 0.25, 0.55, 0.51),
    ),
}
"""Mean score of the heads of each layer."""
TABLE = {
    "Llama": (0.2889, 0.3625),
    "Qwen": (0.2809, 0.3774),
    "Dream": (0.2616, 0.3939),
    "LLaDA": (0.2252, 0.4820),
}
"""Mean of accuracy and F1 over five question sets, without and with passages."""
KEYS, MAP_STEPS, UNITS = 52, 32, 24
QUESTIONS = 21_796
"""Of the five sets together."""


def verdict(name, held):
    """Of a claim that is the only one of its study, and the finding."""
    (claim,) = claims([name])
    finding = claim.find(Evidence.of(held))
    return verdicts([(claim.criteria, finding)])[0].says, finding


def absorbing(curve, *, causal, count=16, seed=0):
    """Prompts whose layers give one key these shares, give or take four points."""
    seen = np.tril(np.ones((KEYS, KEYS))) if causal else np.ones((KEYS, KEYS))
    even = seen / seen.sum(axis=1, keepdims=True)
    key = 0 if causal else 17
    by_mask = even[:, key].mean()
    found = []
    for index in range(count):
        rng = np.random.default_rng((seed, index))
        share = np.clip(np.array(curve) / 100 + rng.normal(0, 0.04, len(curve)), by_mask, 0.99)
        own = ((share - by_mask) / (1 - by_mask))[None, :, None, None, None]
        maps = np.broadcast_to((1 - own) * even, (2, len(curve), 1, KEYS, KEYS)).copy()
        maps[..., key] += own[..., 0]
        visibility = "causal" if causal else "bidirectional"
        tokens = np.arange(KEYS) + 100 * index
        found.append(planted(maps, prompt=KEYS - 2, tokens=tokens, visibility=visibility))
    return TraceSet.from_traces(found)


MDMS = {"LLaDA": LLADA, "Dream": DREAM}
ARMS = {"Llama": LLAMA, "Qwen": QWEN}


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("mdm", MDMS)
def test_absorption_of_every_pair_is_lower_in_the_diffusion_model(mdm, arm):
    held = {
        MDM_RUNS: absorbing(MDMS[mdm], causal=False, seed=1),
        ARM_RUNS: absorbing(ARMS[arm], causal=True, seed=2),
    }
    assert verdict("floating/H7", held)[0] == SUPPORTED


@pytest.mark.parametrize("mdm", MDMS)
def test_absorption_rises_with_depth(mdm):
    held = {MDM_RUNS: absorbing(MDMS[mdm], causal=False, seed=3)}
    assert verdict("floating/H9", held)[0] == SUPPORTED


def test_dream_s_sink_begins_where_qwen_s_does():
    held = {
        MDM_RUNS: absorbing(DREAM, causal=False, seed=4),
        ARM_RUNS: absorbing(QWEN, causal=True, seed=5),
    }
    says, finding = verdict("floating/H10", held)
    assert says == SUPPORTED
    assert {v for k, v in finding.also.items() if k.startswith("first layer")} == {4.0}


def temporal_maps(rng):
    """[step, layer, head, query, key] of the two released maps, in parts of the colour maximum.

    Prompts differ by when 45 takes over at layer 0, and by which two of the first steps look
    elsewhere at layer 31.
    """
    turn = int(rng.integers(25, 28))
    shares = np.full((MAP_STEPS, 2, KEYS), 0.02) * rng.uniform(0.9, 1.1, (MAP_STEPS, 2, KEYS))
    first, last = shares[:, 0], shares[:, 1]
    # layer 0: 17 and 20 decay together, 3 falls, 33 appears, 45 takes over, 51 at the end
    first[0, [17, 3]] = 1.0, 0.63
    first[1:turn, [17, 20]] = np.linspace(0.76, 0.42, turn - 1)[:, None]
    first[1:turn, 17] += 1e-3
    first[1:, 3] = np.linspace(0.3, 0.24, MAP_STEPS - 1)
    first[turn:, [17, 20]] = 0.2
    first[turn:, 45] = np.linspace(0.56, 0.49, MAP_STEPS - turn)
    first[31, 51] = 0.45
    # layer 31: 17 in 30 of 32 steps
    last[:, 17] = np.linspace(0.67, 1.0, MAP_STEPS)
    last[:, [14, 15, 25, 28]] = 0.15
    steps, keys = (rng.choice(x, 2, replace=False) for x in ((1, 3, 4), (19, 21, 23)))
    for step, key in zip(steps, keys, strict=True):
        last[step, 17], last[step, key] = 0.15, 0.7 + 0.1 * rng.random()
    shares /= shares.sum(axis=-1, keepdims=True)
    return np.broadcast_to(shares[:, :, None, None], (MAP_STEPS, 2, 1, KEYS, KEYS))


@pytest.fixture(scope="module")
def temporal():
    """The released example, and an ARM whose sink is the first token of every layer."""
    mdm = [
        planted(
            temporal_maps(np.random.default_rng(index)),
            prompt=KEYS - MAP_STEPS,
            tokens=np.arange(KEYS) + 100 * index,
        )
        for index in range(UNITS)
    ]
    arm = np.tril(np.ones((KEYS, KEYS)))
    arm = 0.3 * arm / arm.sum(axis=1, keepdims=True)
    arm[:, 0] += 0.7
    arm = np.broadcast_to(arm, (MAP_STEPS, 2, 1, KEYS, KEYS))
    causal = [
        planted(
            arm,
            prompt=KEYS - MAP_STEPS,
            tokens=np.arange(KEYS) + 100 * index,
            visibility="causal",
        )
        for index in range(UNITS)
    ]
    pair = TraceSet.from_traces(mdm), TraceSet.from_traces(causal)
    still = TraceSet.from_traces([mdm[0]] * UNITS)
    held = dict(zip((MDM_RUNS, ARM_RUNS), pair, strict=True))
    held |= dict(zip((measures.TEXT_RUNS, measures.ARM_TEXT_RUNS), pair, strict=True))
    return held | {measures.FROZEN_TEXT_RUNS: still}


def test_anchors_of_the_released_maps_move_from_step_to_step_and_layer_to_layer(temporal):
    (claim,) = claims(["floating/H2"])
    _, finding = verdict("floating/H2", temporal)
    for criterion in claim.criteria:
        assert finding.measured[criterion.name].estimate.interval(0.95)[0] > criterion.margin
    assert verdict("floating/H29", temporal)[0] == SUPPORTED


def test_deep_layers_of_the_released_maps_have_fewer_anchors(temporal):
    assert verdict("floating/H6", temporal)[0] == SUPPORTED


def test_the_released_maps_contradict_a_drift_at_each_layer(temporal):
    says, finding = verdict("floating/H3", temporal)
    assert says == REFUTED
    layer_0, layer_31 = finding.measured["anchors"].estimate.others
    assert layer_0.value > 0.2
    assert layer_31.value == pytest.approx(-0.019, abs=0.01)
    (claim,) = claims(["floating/H3"])
    assert "layer 31" in claim.contradiction


def test_the_released_maps_have_a_fixed_place_though_the_arm_s_is_fixed_too(temporal):
    says, finding = verdict("floating/H1", temporal)
    assert finding.measured["arm"].estimate.value == 1.0
    assert finding.measured["mdm"].estimate.value == pytest.approx(56 / 64, abs=0.02)
    assert says == REFUTED
    (claim,) = claims(["floating/H1"])
    assert "56 of 64" in claim.contradiction


QK = {"norm": ((6.21, 4.85), (4.73, 7.06)), "cosine": ((0.546, 0.358), (0.347, 0.018))}
"""The floating column and the others, at layers 11 and 28."""


def figure_geometry(rng, index, maps):
    shape = (*maps.shape[:3], LENGTH)
    fields = {}
    for name, layers in QK.items():
        values = np.empty(shape)
        for layer, (own, other) in enumerate(layers):
            values[:, layer] = other
            values[:, layer, :, 3] = own * (1 + 0.02 * rng.normal())
        fields[name] = values
    dims = ("step", "layer", "head", "key")
    return {
        "each_norm_product": (dims, fields["norm"]),
        "each_cosine": (dims, fields["cosine"]),
        "each_logit": (dims, fields["norm"] * fields["cosine"]),
        "each_key_norm": (dims, fields["norm"]),
    }


@pytest.mark.parametrize("name", ["floating/H11", "floating/H12"])
def test_the_column_of_the_qk_figure_is_made_by_its_angle_and_is_short(name):
    row = np.where(np.arange(LENGTH) == 3, 0.8, 0.01)
    held = {MDM_RUNS: traces_by_layer(12, lambda *_: row, layers=2, more=figure_geometry)}
    says, finding = verdict(name, held)
    assert says == SUPPORTED
    if name == "floating/H11":
        found = [finding.measured[key].estimate.value for key in ("shallow norm", "deep angle")]
        assert found == pytest.approx([0.37, 0.82], abs=0.02)


@pytest.mark.parametrize(("model", "depth"), [("LLaDA", 0.62), ("Dream", 0.66)])
def test_retrieval_heads_of_the_published_maps_lie_deep(model, depth):
    scores, answer = RETRIEVAL[model], 7
    regions = {"gold": range(4), "distractor 1": range(4, 8), "distractor 2": range(8, 11)}

    def masses(rng, index, maps):
        values = np.full((len(scores), maps.shape[2], LENGTH, 3), 0.1, dtype=np.float32)
        noise = np.exp(0.3 * rng.normal(size=len(scores)))
        values[..., 0] = (np.array(scores) * noise)[:, None, None]
        return {"commit_region_mass": (("layer", "head", "position", "key_region"), values)}

    def tokens(rng, index):
        own = np.arange(10, LENGTH + 10) + 100 * (index + 1)
        own[[0, *range(LENGTH - STEPS, LENGTH)]] = answer
        return own

    given = {
        "layers": len(scores),
        "heads": 1,
        "tokens": tokens,
        "more": masses,
        "regions": lambda *_: regions,
        "texts": lambda rng, index, maps: {
            answer: f" {prompts.QUESTION_SETS['asked'][index].answers[0]}"
        },
    }
    runs = [
        traces_by_layer(10, lambda *_: np.ones(LENGTH), causal=causal, **given)
        for causal in (False, True)
    ]
    says, finding = verdict("floating/H13", dict(zip((MDM_RUNS, ARM_RUNS), runs, strict=True)))
    assert says == SUPPORTED
    assert finding.measured["deep"].estimate.value == pytest.approx(depth, abs=0.02)


def test_gold_is_attended_to_at_each_place_of_the_flow_maps():
    rng = np.random.default_rng(6)
    rows = [
        {"unit": unit, "place": place, "lift": lift * 2 ** (0.5 * rng.normal()), "right": 1.0}
        for unit in range(48)
        for place, lift in (("first", 1.47), ("middle", 1.50), ("last", 1.42))
    ]
    assert verdict("floating/H18", {measures.GOLD_ATTENTION: pd.DataFrame(rows)})[0] == SUPPORTED


@pytest.mark.parametrize("even", [0.58, 0.89])
def test_most_of_the_flow_into_llama_s_first_token_is_the_mask_s(even):
    rng = np.random.default_rng(7)
    held = {
        measures.ROLLOUTS[role]: pd.DataFrame(
            {
                "unit": range(20),
                "value": value + 0.01 * rng.normal(size=20),
                "null": null + 0.01 * rng.normal(size=20),
                "dobrushin": 0.001,
            }
        )
        for role, value, null in (("arm", 0.98, even), ("mdm", 0.0005, 0.0005))
    }
    assert verdict("floating/H19", held)[0] == SUPPORTED


def answers_of_table(mdm, arm):
    rng = np.random.default_rng(8)
    cells = {}
    for role, model in (("mdm", mdm), ("arm", arm)):
        for context, share in zip(("closed", "gold"), TABLE[model], strict=True):
            cells[role, context, "none"] = draw_answers(rng, QUESTIONS, share)
    return {measures.GAIN: answer_table(cells)}


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("mdm", MDMS)
def test_table_1_doubles_the_gain_of_llada_and_not_of_dream(mdm, arm):
    held = answers_of_table(mdm, arm)
    says, finding = verdict("floating/H23", held)
    gains = [round(TABLE[model][1] - TABLE[model][0], 4) for model in (mdm, arm)]
    assert finding.measured["doubles"].estimate.value == pytest.approx(
        gains[0] - 2 * gains[1], abs=0.03
    )
    assert (says == SUPPORTED) == (mdm == "LLaDA")
    (claim,) = claims(["floating/H23"])
    assert "that of Dream 6.1 and 1.5 points less" in claim.contradiction
    better = verdict("floating/H28", held)[0]
    assert better == SUPPORTED or (mdm, arm, better) == ("Dream", "Qwen", UNDECIDED)
