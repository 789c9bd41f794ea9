"""The claims of 2510.15731 on its own numbers: simulated from Tables 1 and 2, Fig. 7 and Fig. 10.

Each of its sentences is supported by what it prints, or the claim says where it is contradicted.
"""

import numpy as np
import pytest

from anchorwatch.studies.estimate import ITEM, PROMPT, Estimate
from anchorwatch.studies.evidence import Evidence, TraceSet
from anchorwatch.studies.measure import ARM_TEXT, MDM_RUNS, MDM_TEXT
from anchorwatch.studies.papers import claims
from anchorwatch.studies.papers.sinks import measures
from anchorwatch.studies.verdict import BELOW_MARGIN, REFUTED, SUPPORTED, UNDECIDED, p_supports
from claim_evidence import answer_table, judge, traces_with_sink
from synthetic_traces import planted

CLAIM = {claim.id: claim for claim in claims(["sinks"])}
GSM8K, HUMAN_EVAL = 1319, 164
"""Questions of the two tasks: the printed standard errors are theirs."""
TABLE_1 = {
    ("GSM8K", "Dream"): (0.82, 0.79, 0.78, 0.75),
    ("GSM8K", "LLaDA"): (0.76, 0.75, 0.73, 0.55),
    ("GSM8K", "MMaDA"): (0.54, 0.53, 0.54, 0.37),
    ("GSM8K", "Llama"): (0.85, 0.02, 0.02, 0.01),
    ("HumanEval", "Dream"): (0.60, 0.64, 0.61, 0.57),
    ("HumanEval", "LLaDA"): (0.37, 0.37, 0.39, 0.35),
    ("HumanEval", "MMaDA"): (0.16, 0.16, 0.18, 0.09),
    ("HumanEval", "Llama"): (0.66, 0.00, 0.00, 0.00),
}
"""Accuracy with 0, 1, 5 and 10 sinks hidden."""
TABLE_2 = {
    "LLaDA": {"\n": 0.368, "<mask>": 0.366, ".": 0.050, "<|start_header_id|>": 0.008, " ": 0.008},
    "Dream": {"<mask>": 0.321, "\n": 0.090, ".": 0.046, ",": 0.044, "<|endoftext|>": 0.040},
    "MMaDA": {
        "\n": 0.180,
        "<mask>": 0.166,
        "<|end_header_id|>": 0.160,
        "<|startoftext|>": 0.108,
        "istant": 0.066,
    },
}
MDMS = ("LLaDA", "Dream", "MMaDA")


def printed_answers(task, model, spec):
    """Answers with the printed accuracies: as many as the task has, fewest that change."""
    count = GSM8K if task == "GSM8K" else HUMAN_EVAL
    (role,) = spec.asks
    shares = dict(
        zip(("none", "sinks 1", "sinks 5", "sinks 10"), TABLE_1[task, model], strict=True)
    )
    shares["random"] = shares["none"]
    cells = {
        (role, "gold", name): np.arange(count) < round(share * count)
        for name, share in shares.items()
    }
    return {spec: answer_table(cells)}


@pytest.mark.parametrize("task", ["GSM8K", "HumanEval"])
@pytest.mark.parametrize("model", MDMS)
def test_masked_models_lose_less_than_llama(task, model):
    mdm = printed_answers(task, model, measures.MDM_HIDDEN)
    arm = printed_answers(task, "Llama", measures.ARM_HIDDEN)
    verdict, finding = judge(CLAIM["sinks/H13"], mdm | arm)
    assert verdict == SUPPORTED
    (criterion,) = CLAIM["sinks/H13"].deciding
    effect = finding.measured[criterion.name].estimate.value
    if task == "GSM8K":
        assert effect == pytest.approx(criterion.published[model], abs=0.001)
    assert judge(CLAIM["sinks/H29"], arm)[0] == SUPPORTED


@pytest.mark.parametrize("model", MDMS)
def test_five_hidden_sinks_cost_little_and_ten_much_but_in_dream(model):
    held = printed_answers("GSM8K", model, measures.MDM_HIDDEN)
    expected = {
        "sinks/H28": SUPPORTED,
        "sinks/H36": BELOW_MARGIN if model == "Dream" else SUPPORTED,
    }
    for name, verdict in expected.items():
        says, finding = judge(CLAIM[name], held)
        (criterion,) = CLAIM[name].criteria
        assert says == verdict
        effect = finding.measured[criterion.name].estimate.value
        assert effect == pytest.approx(criterion.published[model], abs=0.001)


@pytest.mark.parametrize(
    ("model", "verdict"), [("LLaDA", UNDECIDED), ("MMaDA", UNDECIDED), ("Dream", REFUTED)]
)
def test_under_one_point_is_not_what_the_table_has_for_dream(model, verdict):
    """LLaDA and MMaDA lose one point as printed: on the margin."""
    claim = CLAIM["sinks/H27"]
    held = printed_answers("GSM8K", model, measures.MDM_HIDDEN)
    assert judge(claim, held)[0] == verdict
    assert "Dream at .82 and .79" in claim.contradiction
    assert claim.criteria[0].published["Dream"] == pytest.approx(-0.03)


def frequencies(model, count=30, sinks=1000):
    """[prompt] shares of the tokens of Table 2 in generations of so many sinks."""
    rng, table = np.random.default_rng(0), TABLE_2[model]
    rest = 1 - sum(table.values())
    drawn = rng.multinomial(sinks, [*table.values(), rest], size=count) / sinks
    return dict(zip(table, drawn.T, strict=False))


@pytest.mark.parametrize("model", MDMS)
def test_newline_and_mask_are_the_two_most_frequent_sinks(model, monkeypatch):
    """Shares of thirty generations, as the table is of; a planted run supplies all else."""
    runs = runs_with_newlines(30)
    shares = frequencies(model)
    module = "anchorwatch.studies.papers.sinks.claims"
    monkeypatch.setattr(f"{module}.shares_of_tokens", lambda evidence, spec: shares)
    finding = CLAIM["sinks/H10"].find(Evidence.of({MDM_RUNS: runs}))
    for criterion in CLAIM["sinks/H10"].deciding:
        estimate = finding.measured[criterion.name].estimate
        assert estimate.value == pytest.approx(criterion.published[model], abs=0.01)
        assert p_supports(estimate, criterion) < 0.05


def runs_with_newlines(count):
    texts, found = {1: "\n"}, []
    for index in range(count):
        maps = np.full((4, 1, 1, 20, 20), 1 / 20)
        tokens = np.arange(1, 21) + 100 * (index + 1)
        tokens[3] = 1
        maps[..., 3] += 0.5
        maps /= maps.sum(axis=-1, keepdims=True)
        found.append(planted(maps, prompt=16, tokens=tokens, texts=texts, seed=index))
    return TraceSet.from_traces(found)


def test_at_least_96_percent_of_64_tokens_are_no_sinks():
    """Fig. 10: 64 tokens, at most 2.56 sinks of a head on average, at eps = 3."""

    def where(rng, step, head):
        return rng.choice(40, int(rng.integers(1, 4)), replace=False)  # two on average

    runs = traces_with_sink(20, where, length=64, steps=4, seed=3)
    verdict, finding = judge(CLAIM["sinks/H2"], {MDM_RUNS: runs})
    assert 0.96 < finding.measured["sum"].estimate.value < 0.975
    assert verdict == SUPPORTED


def test_a_sink_that_moves_once_a_block_moves():
    """Fig. 7: four blocks, in each of which the sink stays; here of eight steps, there of 32."""
    steps, length = 32, 48

    def by_block(rng, step, head):
        return 8 * (step // 8) + 2

    def static(rng, step, head):
        return 0

    held = {
        MDM_TEXT: traces_with_sink(20, by_block, length=length, steps=steps, seed=4),
        ARM_TEXT: traces_with_sink(20, static, length=length, steps=steps, causal=True, seed=5),
    }
    verdict, finding = judge(CLAIM["sinks/H3"], held)
    assert verdict == SUPPORTED
    assert finding.measured["jumps"].estimate.value == pytest.approx(3 / 31)
    assert finding.measured["beside the ARM"].estimate.value == pytest.approx(0.75)


def test_every_sentence_of_the_paper_that_has_numbers_says_which():
    numbered = {claim.id for claim in CLAIM.values() for item in claim.criteria if item.published}
    assert {f"sinks/H{number}" for number in (2, 10, 13, 18, 27, 28, 29, 36)} == numbered
    assert {claim.id for claim in CLAIM.values() if claim.contradiction} == {
        "sinks/H27",
        "sinks/H36",
    }


def test_a_point_can_be_shown_with_items_enough():
    """What the caveat of H27 says: 440 items of which none changes."""
    (criterion,) = CLAIM["sinks/H27"].criteria
    level = 0.05 / 25 / 2  # among twenty-five claims, two-sided
    for count, shown in ((300, False), (450, True)):
        right = np.ones(count)
        assert (p_supports(Estimate.pairs(right, right, ITEM), criterion) < level) == shown


def test_prompts_are_the_unit_of_claims_about_attention():
    answered = {"sinks/H13", "sinks/H17", "sinks/H22", "sinks/H27", "sinks/H28", "sinks/H29"}
    answered |= {"sinks/H36"}
    assert {claim.id for claim in CLAIM.values() if claim.unit == ITEM} == answered
    assert {claim.unit for claim in CLAIM.values()} == {PROMPT, ITEM}
