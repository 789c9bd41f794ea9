"""Claims fed with the numbers that arXiv 2601.19657 prints: its own sentences come out supported.

Accuracies of Tables 1 to 5 become bounds, a hundredth of a nat for a point; the noise of a training
run is that of its test sets (binomial), since the paper has one run for each cell and no other.
"""

import numpy as np
import pandas as pd
import pytest

from anchorwatch.studies.evidence import TraceSet
from anchorwatch.studies.measure import NORM_RUNS
from anchorwatch.studies.papers import claims
from anchorwatch.studies.papers.sink_token import measures as own
from anchorwatch.studies.verdict import REFUTED, SUPPORTED
from claim_evidence import judge, seed_table
from synthetic_traces import column, planted

CLAIM = {one.id: one for one in claims(["sink_token"])}
SEEDS = 10
ITEMS = {
    "ARC-e": 2376,
    "ARC-c": 1172,
    "HellaSwag": 10042,
    "PIQA": 1838,
    "RACE": 1045,
    "SIQA": 1954,
    "LAMBADA": 5153,
    "GSM8K": 1319,
}
"""Test items of each task, in the order of Tables 1 and 2."""
SMALL = {
    "vanilla": (44.70, 27.13, 35.21, 55.28, 31.29, 40.28, 44.09, 46.92),
    "sink": (55.47, 32.17, 48.91, 63.44, 33.79, 37.82, 45.24, 49.20),
    "gate-plain": (47.85, 29.27, 41.95, 61.92, 34.07, 36.08, 45.10, 47.01),
}
LARGE = {
    "vanilla": (65.49, 41.47, 59.50, 66.49, 37.80, 36.18, 66.58, 57.77),
    "sink": (68.18, 43.43, 61.31, 68.17, 37.61, 39.97, 66.41, 58.45),
    "gate-plain": (53.03, 32.27, 52.90, 60.33, 37.42, 38.26, 51.10, 52.35),
}
SCRATCH = {
    "vanilla": (32.20, 25.09, 31.56, 54.08, 31.77, 35.98, 29.26, 34.95),
    "sink": (40.91, 22.35, 40.43, 62.24, 32.73, 37.92, 47.16, 35.17),
    "gate-plain": (36.28, 23.46, 37.61, 57.07, 33.68, 34.44, 42.27, 36.39),
}
"""Tables 1 and 2."""
FIVE = ("ARC-e", "ARC-c", "RACE", "HellaSwag", "PIQA")
ABLATIONS = {
    "vanilla": (44.70, 27.13, 31.29, 35.21, 55.28),
    "sink": (55.47, 32.17, 33.79, 48.91, 63.44),
    "sink-end": (56.14, 32.51, 31.77, 48.16, 64.31),
    "sink-2": (54.76, 32.42, 32.89, 48.94, 63.66),
    "sink-4": (55.39, 31.47, 33.06, 48.45, 62.62),
    "sink-zero": (55.68, 32.94, 32.87, 48.81, 64.09),
}
"""Tables 3 to 5."""


def bounds(scores, tasks=tuple(ITEMS), seed=0):
    """[seed] minus mean accuracy in hundredths, with the noise of the test sets; {arm: {column}}."""
    rng = np.random.default_rng(seed)
    sizes = np.array([ITEMS[task] for task in tasks])
    table = {}
    for arm, each in scores.items():
        share = np.array(each) / 100
        right = rng.binomial(sizes, share, (SEEDS, len(sizes))) / sizes
        table[arm] = {"bound.all": 3.0 - right.mean(axis=1)}
    return table


def with_answers(table):
    return {arm: held | {"answers.gold": np.ones(SEEDS)} for arm, held in table.items()}


@pytest.mark.parametrize("scores", [SMALL, LARGE, SCRATCH], ids=["0.5B", "1.5B", "scratch"])
def test_a_sink_token_improves_the_papers_models_and_beats_their_gates(scores):
    table = bounds(scores)
    held = {own.IMPROVED: seed_table(with_answers(table))}
    assert judge(CLAIM["sink_token/H5"], held)[0] == SUPPORTED
    gates = table | {name: table["gate-plain"] for name in ("gate", "gate-headwise")}
    verdict, finding = judge(CLAIM["sink_token/H6"], {own.GATES: seed_table(gates)})
    assert verdict == SUPPORTED
    better = np.mean(scores["sink"]) - np.mean(scores["gate-plain"])
    measured = finding.measured["gate-plain"].estimate
    assert measured.value == pytest.approx(-better / 100, abs=4 * measured.error)


@pytest.mark.parametrize(
    ("claim", "spec"),
    [("H7", own.END_POSITION), ("H8", own.TOKEN_COUNTS), ("H9", own.CONTENTS)],
)
def test_the_papers_ablations_support_what_it_says_of_them(claim, spec):
    table = bounds(ABLATIONS, FIVE)
    arms = {arm: table.get(arm, table["sink"]) for arm in spec.arms}
    assert judge(CLAIM[f"sink_token/{claim}"], {spec: seed_table(arms)})[0] == SUPPORTED


def test_gates_help_at_half_a_billion_and_hurt_at_one_and_a_half():
    small, large = bounds(SMALL), bounds(LARGE, seed=2)
    table = small | {f"{arm}{own.LARGER}": held for arm, held in large.items()}
    assert judge(CLAIM["sink_token/H15"], {own.CONVERTED: seed_table(table)})[0] == SUPPORTED
    turned = large | {f"{arm}{own.LARGER}": held for arm, held in small.items()}
    assert judge(CLAIM["sink_token/H15"], {own.CONVERTED: seed_table(turned)})[0] == REFUTED


@pytest.mark.parametrize(
    ("sinks", "others"),
    [((2.36, 0.16), (7.60, 0.26)), ((3.15, 0.46), (7.79, 0.36))],
    ids=["LLaDA", "Dream"],
)
def test_the_norms_of_figure_1_are_small(sinks, others):
    """Means and standard deviations of the points of the published figure."""
    rng = np.random.default_rng(3)
    found = []
    for index in range(24):
        maps = np.broadcast_to(column(12, 2, 0.6), (3, 2, 2, 12, 12))
        sizes = rng.normal(*others, (3, 2, 2, 12))
        sizes[..., 2] = rng.normal(*sinks, (3, 2, 2))
        norms = ("step", "layer", "head", "key"), sizes.astype(np.float32)
        tokens = np.arange(1, 13) + 100 * (index + 1)
        found.append(planted(maps.copy(), prompt=9, tokens=tokens, more={"each_value_norm": norms}))
    verdict, finding = judge(CLAIM["sink_token/H1"], {NORM_RUNS: TraceSet.from_traces(found)})
    assert verdict == SUPPORTED
    for name in ("mean over heads", "head by head"):
        assert finding.measured[name].estimate.value == pytest.approx(
            sinks[0] / others[0], abs=0.02
        )


def test_the_printed_numbers_contradict_the_word_consistent():
    """Of the mean the sentence holds, of every single task it does not."""
    falls = {
        name: [
            task
            for task, a, b in zip(ITEMS, scores["vanilla"], scores["sink"], strict=True)
            if b < a
        ]
        for name, scores in (("0.5B", SMALL), ("1.5B", LARGE), ("scratch", SCRATCH))
    }
    assert falls == {"0.5B": ["SIQA"], "1.5B": ["RACE", "LAMBADA"], "scratch": ["ARC-c"]}
    said = CLAIM["sink_token/H5"].contradiction
    assert all(task in said for each in falls.values() for task in each)


def test_a_length_of_2048_makes_the_token_cheap_in_the_published_form():
    length = np.arange(70, 90)
    tokens = 1 + length / 1000  # a token's own operations, and one more key for each query
    table = pd.DataFrame({"unit": range(20), "positions": length, "without": 1e6 * length})
    table = table.assign(published=1e6 * (length + tokens), **{"with": 1e6 * length + 1e5})
    verdict, finding = judge(CLAIM["sink_token/H14"], {own.OPERATIONS: table})
    assert verdict == SUPPORTED
    assert finding.measured["published form"].estimate.value == pytest.approx(tokens.mean() / 2048)
