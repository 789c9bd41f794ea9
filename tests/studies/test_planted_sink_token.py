"""Claims about sink tokens on evidence of known truth: true, false and under-powered."""

import numpy as np
import pandas as pd
import pytest

from anchorwatch.errors import EvidenceError
from anchorwatch.studies.budget import BUDGETS
from anchorwatch.studies.evidence import Available, Evidence, EvidenceStore, TraceSet
from anchorwatch.studies.measure import ARM_TEXT, MDM_TEXT, NORM_RUNS
from anchorwatch.studies.papers import claims
from anchorwatch.studies.papers.sink_token import measures as sink_token_measures
from anchorwatch.studies.papers.sinks.measures import UNTRAINED
from anchorwatch.studies.verdict import REFUTED, SUPPORTED, UNDECIDED
from claim_evidence import (
    TRUTHS,
    answer_table,
    assert_verdict,
    collect_plantings,
    draw_answers,
    judge,
    jumping_sink,
    openness_table,
    position_table,
    seed_table,
    sink_attention_table,
    traces_with_sink,
)
from synthetic_traces import column, planted

PLANTED, plants = collect_plantings()
CLAIM = {one.id: one for one in claims(["sink_token"])}
SURE = {SUPPORTED: 8, REFUTED: 8, UNDECIDED: 4}
"""Training seeds."""
OPEN = sink_token_measures.OPENNESS["sink"]


def arms(truth, column, means, *, noise=0.004, start=20):
    """A table of one column whose arms are vanilla's and so much more, seed by seed.

    What nobody could tell is how an arm differs from another, not what a sink token gains.
    """
    rng, count = np.random.default_rng(start), SURE[truth]
    wide = dict.fromkeys(means, 0.05 if truth == UNDECIDED else noise)
    if abs(means["sink"]) >= 0.1:
        wide["sink"] = noise
    base = rng.normal(2.5, 0.1, count)
    held = {arm: base + mean + rng.normal(0, wide[arm], count) for arm, mean in means.items()}
    return seed_table({arm: {column: one} for arm, one in ({"vanilla": base} | held).items()})


@plants("sink_token/H1")
def small_or_large(truth):
    count, ratio, wide = {
        SUPPORTED: (20, 0.4, 0.1),
        REFUTED: (20, 1.0, 0.1),
        UNDECIDED: (5, 0.75, 0.3),
    }[truth]
    found = []
    for index in range(count):
        rng = np.random.default_rng((21, index))
        steps, layers, length = 3, 2, 12
        maps = np.broadcast_to(column(length, 2, 0.6), (steps, layers, 2, length, length))
        sizes = rng.uniform(0.9, 1.1, (steps, layers, 2, length))
        sizes[..., 2] *= ratio + wide * (-1) ** index
        norms = ("step", "layer", "head", "key"), sizes.astype(np.float32)
        tokens = np.arange(1, length + 1) + 100 * (index + 1)
        found.append(planted(maps.copy(), prompt=9, tokens=tokens, more={"each_value_norm": norms}))
    trained = pd.DataFrame({"network": "trained", "learnt": 4.0}, index=range(count))
    return {NORM_RUNS: TraceSet.from_traces(found), UNTRAINED: trained}


@plants("sink_token/H2")
def moves_or_stays(truth):
    count, mdm, arm = {
        SUPPORTED: (20, 0.3, 0.05),
        REFUTED: (60, 0.001, 0.3),
        UNDECIDED: (5, 0.02, 0.25),
    }[truth]
    size = {"length": 24, "steps": 16}
    return {
        MDM_TEXT: traces_with_sink(count, jumping_sink(mdm), seed=22, **size),
        ARM_TEXT: traces_with_sink(count, jumping_sink(arm), causal=True, seed=23, **size),
        UNTRAINED: pd.DataFrame({"network": "trained", "learnt": 4.0}, index=range(count)),
    }


@plants("sink_token/H3")
def replaces_or_not(truth):
    rng, count = np.random.default_rng(24), SURE[truth]
    left, wide = {SUPPORTED: (0.1, 0.02), REFUTED: (1.2, 0.02), UNDECIDED: (0.5, 0.2)}[truth]

    def times(base):
        return np.abs(base * (left + rng.normal(0, wide, count)))

    sinks, moves, shares = (rng.normal(m, 0.02, count) for m in (0.7, 0.6, 1.5))
    names = sink_token_measures.REPLACED_SINKS.columns
    vanilla = dict(zip(names, (sinks, moves, 1 + shares, sinks), strict=True))
    values = (times(sinks), times(moves), 1 + times(shares), times(sinks))
    arms = {"vanilla": vanilla, "sink": dict(zip(names, values, strict=True))}
    table = seed_table(arms)
    plain = {sink_token_measures.PLAIN_SINKS: table[table["arm"] == "vanilla"]}
    return {sink_token_measures.REPLACED_SINKS: table} | plain | sink_attention_table(rng, count)


@plants("sink_token/H4")
def drained_or_full(truth):
    rng, count = np.random.default_rng(25), SURE[truth]
    mean, wide = {SUPPORTED: (0.4, 0.05), REFUTED: (1.3, 0.05), UNDECIDED: (0.75, 0.2)}[truth]
    ratio = rng.normal(mean, wide, count)
    columns = {
        name: ratio + 0.01 * at
        for at, name in enumerate(sink_token_measures.DRAINED_VALUES.columns)
    }
    columns["noisy.layer.sink_value_ratio.0"] = ratio
    return {
        sink_token_measures.DRAINED_VALUES: seed_table({"sink": columns})
    } | sink_attention_table(rng, count)


def looked_at(truth):
    """Training seeds whose sink token works as one."""
    return sink_attention_table(np.random.default_rng(26), SURE[truth])


@plants("sink_token/H6")
def gates_or_sink(truth):
    gates = {SUPPORTED: 0.05, REFUTED: -0.05, UNDECIDED: 0.0}[truth]
    means = {"sink": 0.0, "gate-plain": gates, "gate": 0.03, "gate-headwise": 0.04}
    return {sink_token_measures.GATES: arms(truth, "bound.all", means)} | looked_at(truth)


@plants("sink_token/H8")
def enough_or_not(truth):
    two = {SUPPORTED: 0.0, REFUTED: -0.08, UNDECIDED: 0.0}[truth]
    means = {"sink": -0.1, "sink-2": -0.1 + two, "sink-4": -0.095}
    return {sink_token_measures.TOKEN_COUNTS: arms(truth, "bound.all", means)} | looked_at(truth)


@plants("sink_token/H9")
def empty_or_not(truth):
    empty = {SUPPORTED: 0.0, REFUTED: 0.08, UNDECIDED: 0.0}[truth]
    means = {"sink": -0.1, "sink-zero": -0.1 + empty, "off-by-one": -0.05, "sink-logit": -0.05}
    return {sink_token_measures.CONTENTS: arms(truth, "bound.all", means)} | looked_at(truth)


@plants("sink_token/H10")
def sees_or_not(truth):
    register = {SUPPORTED: 0.0, REFUTED: -0.1, UNDECIDED: -0.05}[truth]
    means = {"sink": -0.05, "register": register}
    return {sink_token_measures.REGISTERS: arms(truth, "bound.all", means)} | looked_at(truth)


def rows(held):
    """A table with a row for each unit."""
    return pd.DataFrame(held).rename_axis("unit").reset_index()


@plants("sink_token/H11")
def constant_or_not(truth):
    rng = np.random.default_rng(26)
    count, size = {SUPPORTED: (12, 3e-7), REFUTED: (12, 0.1), UNDECIDED: (5, 3.3e-6)}[truth]
    apart = {name: size * rng.uniform(0.5, 1.5, count) for name in ("key", "value", "logits")}
    return {sink_token_measures.CONSTANTS: rows(apart | {"value_if_it_sees_all": 0.5})}


@plants("sink_token/H12")
def protects_or_not(truth):
    rng = np.random.default_rng(27)
    count, rise, wide = {
        SUPPORTED: (20, 0.3, 0.1),
        REFUTED: (20, -0.2, 0.1),
        UNDECIDED: (5, 0.08, 0.2),
    }[truth]
    spread, rank = rng.uniform(0.02, 0.05, count), rng.uniform(0.3, 0.5, count)
    logs = {"none": np.zeros(count), "random": rng.normal(0, 0.01, count)}
    logs["sinks"] = rng.normal(rise, wide, count)
    tables = [
        rows(
            {
                "spread": spread * np.exp(more),
                "rank": rank * np.exp(-more),
                "cosine": 0.4 + 0.1 * more,
                "sinks": np.full(count, 1.2),
            }
        ).assign(edit=edit)
        for edit, more in logs.items()
    ]
    return {sink_token_measures.MIXING: pd.concat(tables)} | small_or_large(SUPPORTED)


@plants("sink_token/H13")
def robust_or_not(truth):
    rng = np.random.default_rng(40)
    count, falls = {
        SUPPORTED: (1500, (0.3, 0.1)),
        REFUTED: (1500, (0.1, 0.3)),
        UNDECIDED: (60, (0.2, 0.18)),
    }[truth]
    many, few = {}, {}
    for role, fall in zip(("mdm", "sink"), falls, strict=True):
        right = draw_answers(rng, count, 0.8)
        many[role, "gold", "none"] = right
        few[role, "gold", "none"] = right * draw_answers(rng, count, 1 - fall / 0.8)
    return {
        sink_token_measures.MANY_STEPS: answer_table(many),
        sink_token_measures.FEW_STEPS: answer_table(few),
    }


@plants("sink_token/H14")
def cheap_or_not(truth):
    rng = np.random.default_rng(28)
    count, tokens = {SUPPORTED: (12, 1.5), REFUTED: (12, 80.0), UNDECIDED: (5, 20.0)}[truth]
    length = rng.integers(60, 120, count)
    without = 1e6 * length
    more = tokens * rng.uniform(0.5, 1.5, count)
    held = {"positions": length, "without": without, "published": without + 1e6 * more}
    return {sink_token_measures.OPERATIONS: rows(held | {"with": without + 1e5 * more})}


@plants("sink_token/H15")
def depends_on_size_or_not(truth):
    large = {SUPPORTED: 0.1, REFUTED: -0.05, UNDECIDED: 0.02}[truth]
    means = {"sink": -0.05, "gate-plain": -0.05, "vanilla-large": -0.3}
    means |= {"sink-large": -0.35, "gate-plain-large": -0.3 + large}
    return {sink_token_measures.CONVERTED: arms(truth, "bound.all", means)}


@plants("sink_token/H16")
def off_length_or_not(truth):
    rng, count = np.random.default_rng(29), SURE[truth]
    more, wide = {SUPPORTED: (-0.1, 0.01), REFUTED: (0.1, 0.01), UNDECIDED: (-0.01, 0.05)}[truth]
    base = {name: rng.normal(2.5, 0.1, count) for name in sink_token_measures.LENGTHS.columns}
    gain = rng.normal(-0.05, 0.02, count)
    sink = {
        name: held + gain + (rng.normal(more, wide, count) if name != "length.trained" else 0.0)
        for name, held in base.items()
    }
    return {sink_token_measures.LENGTHS: seed_table({"vanilla": base, "sink": sink})}


@plants("sink_token/H17")
def where_few_or_many(truth):
    rng, count = np.random.default_rng(30), SURE[truth]
    low, high = {SUPPORTED: (-0.1, 0.0), REFUTED: (0.0, -0.1), UNDECIDED: (-0.02, 0.0)}[truth]
    wide = 0.1 if truth == UNDECIDED else 0.005
    bins = sink_token_measures.TIME_BINS
    base = {name: rng.normal(2.5, 0.1, count) for name in sink_token_measures.FEW_MASKS.columns}
    sink = {
        name: base[name] + low + (high - low) * t + rng.normal(0, wide, count)
        for name, t in bins.items()
    }
    return {sink_token_measures.FEW_MASKS: seed_table({"vanilla": base, "sink": base | sink})}


@plants("sink_token/H18")
def causal_or_not(truth):
    rng = np.random.default_rng(31)
    count, size = {SUPPORTED: (20, 1.0), REFUTED: (20, -1.0), UNDECIDED: (5, 0.1)}[truth]
    chance = rng.uniform(0.1, 0.2, count)
    greatest = chance + rng.normal(0.2 * size, 0.05, count)
    sink = greatest + rng.normal(0.3 * size, 0.1, count)
    hidden = {"sink": sink, "greatest": greatest, "random": chance}
    return {sink_token_measures.KNOCK_OUTS: rows(hidden), OPEN: openness_table(rng, count, 0.0)}


@plants("sink_token/H19")
def same_or_not(truth):
    rng = np.random.default_rng(32)
    count, share, keys = {
        SUPPORTED: (12, 0.9, 30),
        REFUTED: (12, -0.1, 30),
        UNDECIDED: (5, 0.55, 8),
    }[truth]
    sides = {"sink": [], "gate": []}
    for unit in range(count):
        for layer, head in np.ndindex(2, 2):
            common, own = rng.normal(0, 1, (2, keys))
            values = {"sink": common, "gate": share * common + (1 - share**2) ** 0.5 * own}
            for role, held in values.items():
                sides[role].append(
                    {"unit": unit, "layer": layer, "head": head, "open": list(0.5 + 0.1 * held)}
                )
    return {sink_token_measures.OPENNESS[role]: pd.DataFrame(held) for role, held in sides.items()}


@plants("sink_token/H20")
def affected_or_not(truth):
    rng = np.random.default_rng(33)
    count, lost, wide = {
        SUPPORTED: (30, 0.6, 0.3),
        REFUTED: (30, 0.0, 0.02),
        UNDECIDED: (5, 0.1, 0.2),
    }[truth]
    table = told(rng, count, 2.0, rng.normal(lost, wide, count))
    return {sink_token_measures.IN_CONTEXT: table, OPEN: openness_table(rng, count, 0.0)}


@plants("sink_token/H21")
def taken_or_not(truth):
    rng, count = np.random.default_rng(41), SURE[truth]
    times, wide = {SUPPORTED: (8.0, 0.5), REFUTED: (0.8, 0.1), UNDECIDED: (4.0, 2.0)}[truth]
    spec = sink_token_measures.LAYERED
    columns = {name: np.full(count, 0.01) for name in sink_token_measures.EVEN}
    layers = (1.0, 1.2, 0.9)
    for name, more in zip(spec.columns[:3], layers, strict=True):
        columns[name] = 0.01 * rng.normal(times * more, wide, count)
    return {spec: seed_table({"sink": columns})} | plain_sinks(rng, count)


def plain_sinks(rng, count, share=0.7):
    """Training seeds of plain models with sinks in this share of heads and steps."""
    spec = sink_token_measures.PLAIN_SINKS
    columns = {name: rng.normal(share, 0.02, count) for name in spec.columns}
    return {spec: seed_table({"vanilla": columns})}


@plants("sink_token/H22")
def at_the_beginning_or_not(truth):
    """A gain for each row, for each token, or nobody knows."""
    rng, count = np.random.default_rng(42), SURE[truth]
    row, token, wide = {
        SUPPORTED: (2.0, 0.0, 0.1),
        REFUTED: (-0.5, 0.03, 0.02),
        UNDECIDED: (1.0, 0.014, 1.0),
    }[truth]
    lengths = {"quarter": 24, "half": 48, "trained": 96, "longest": 256}
    held = {"vanilla": {}, "sink": {}}
    for name, length in lengths.items():
        base = rng.normal(3.4, 0.1, count)
        gain = (row + rng.normal(0, wide, count)) / length + token
        for arm, values in (("vanilla", base), ("sink", base - gain)):
            held[arm][f"length.{name}"] = values
            held[arm][f"length.{name}.length"] = np.full(count, length)
    return {sink_token_measures.LENGTHS: seed_table(held)}


@plants("sink_token/H23")
def later_or_not(truth):
    rng, count = np.random.default_rng(43), SURE[truth]
    gain, noise = {SUPPORTED: (0.05, 0.002), REFUTED: (-0.02, 0.002), UNDECIDED: (0.02, 0.05)}[
        truth
    ]
    return position_table(rng, count, gain, 0.05, noise) | position_table(
        rng, count, gain, 0.05, noise, sink_token_measures.CROPPED
    )


def told(rng, count, brings, lost):
    """Answers to which a passage brings so much, and less without the sink token."""
    closed = rng.normal(-4, 0.2, count)
    held = {
        "closed": (closed, closed - 0.05),
        "gold": (closed + brings, closed + brings - lost - 0.05),
    }
    parts = [
        pd.DataFrame({"context": context, "worn": worn, "hidden": hidden}).rename_axis("unit")
        for context, (worn, hidden) in held.items()
    ]
    return pd.concat(parts).reset_index()


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("name", PLANTED)
def test_the_verdict_is_the_truth(name, truth):
    assert_verdict(name, PLANTED[name](truth), truth)


@pytest.mark.parametrize("hurts", [0.05, 0.2])
def test_one_that_hurts_is_not_enough_though_two_hurt_more(hurts):
    means = {"sink": hurts, "sink-2": 2 * hurts, "sink-4": 3 * hurts}
    held = {sink_token_measures.TOKEN_COUNTS: arms(SUPPORTED, "bound.all", means)}
    assert judge(CLAIM["sink_token/H8"], held)[0] == REFUTED


def failing(name, held):
    """Preconditions of a claim that this evidence does not meet, in words."""
    evidence = Evidence.of(held)
    checked = [one.check(evidence) for one in CLAIM[f"sink_token/{name}"].preconditions]
    return [str(one) for one in checked if not one.holds]


@pytest.mark.parametrize("name", [name for name in PLANTED if CLAIM[name].preconditions])
def test_what_is_judged_meets_its_preconditions(name):
    assert failing(name.partition("/")[2], PLANTED[name](SUPPORTED)) == []


@pytest.mark.parametrize("name", ["H5", "H6", "H7", "H8", "H9", "H10"])
def test_what_is_said_of_a_sink_token_is_not_asked_of_one_that_nobody_looks_at(name):
    """What the package's own table has, 1.4 times an even share, is too little."""
    (reason,) = failing(name, sink_attention_table(np.random.default_rng(35), 6, share=0.014))
    assert reason.startswith("a trained sink token that is looked at")
    assert "at least 4 is needed" in reason


def test_a_model_that_reads_nothing_has_nothing_to_lose():
    rng = np.random.default_rng(34)
    held = {sink_token_measures.IN_CONTEXT: told(rng, 20, 0.1, rng.normal(0, 0.01, 20))}
    (reason,) = failing("H20", held | {OPEN: openness_table(rng, 20, 0.0)})
    assert reason.startswith("a model that learns from its prompt")
    assert "is 0.1, at least 0.5 is needed" in reason


def test_answers_at_their_ceiling_are_not_testable():
    """As in the lab's network: answers are certain, and hiding the token cannot be seen."""
    rng = np.random.default_rng(36)
    held = {sink_token_measures.IN_CONTEXT: told(rng, 40, 3.98, rng.normal(0, 0.005, 40))}
    (reason,) = failing("H20", held | {OPEN: openness_table(rng, 40, 0.0)})
    assert reason.startswith("answers that are not certain")


@pytest.mark.parametrize("sign", [-1, 1])
def test_in_context_learning_is_affected_either_way(sign):
    rng = np.random.default_rng(44)
    table = told(rng, 30, 2.0, sign * rng.normal(0.6, 0.1, 30))
    held = {sink_token_measures.IN_CONTEXT: table, OPEN: openness_table(rng, 30, 0.0)}
    verdict, finding = judge(CLAIM["sink_token/H20"], held)
    assert verdict == SUPPORTED
    assert np.sign(finding.measured["harm"].estimate.value) == sign


@pytest.mark.parametrize("count", [5, 9])
@pytest.mark.parametrize("gain", [0.05, 0.0])
def test_nothing_is_alike_on_the_scale_of_a_gain_that_is_none(gain, count):
    """Arms that are exactly alike, whose sink token is worse than nothing or no better."""
    rng = np.random.default_rng(37)
    vanilla = rng.normal(2.5, 0.1, count)
    sink = vanilla + rng.normal(gain, 0.01, count)
    for spec, claim in (
        (sink_token_measures.END_POSITION, "H7"),
        (sink_token_measures.CONTENTS, "H9"),
    ):
        each = {arm: {"bound.all": sink} for arm in spec.arms} | {"vanilla": {"bound.all": vanilla}}
        lacks = rf"a sink token that gains beyond chance.*: here .* interval .*, {count} training"
        with pytest.raises(EvidenceError, match=lacks):
            judge(CLAIM[f"sink_token/{claim}"], {spec: seed_table(each)})


@pytest.mark.parametrize("claim", ["H3", "H4"])
def test_a_trained_token_that_is_hardly_looked_at_is_no_sink_to_judge(claim):
    rng = np.random.default_rng(38)
    held = PLANTED[f"sink_token/{claim}"](SUPPORTED) | sink_attention_table(rng, 6, share=0.0136)
    (reason,) = failing(claim, held)
    assert "in times of an even share, is 1.3" in reason


@pytest.mark.parametrize("claim", ["H18", "H19", "H20"])
def test_a_token_that_is_hardly_looked_at_has_nothing_to_lose(claim):
    held = PLANTED[f"sink_token/{claim}"](SUPPORTED)
    held[OPEN] = openness_table(np.random.default_rng(39), 12, 0.9)
    (reason,) = failing(claim, held)
    assert reason.startswith("a sink token that is looked at")


@pytest.mark.parametrize("claim", ["H3", "H21"])
def test_where_plain_training_has_no_sinks_there_is_nothing_to_replace(claim):
    rng = np.random.default_rng(45)
    held = PLANTED[f"sink_token/{claim}"](SUPPORTED) | plain_sinks(rng, 8, 0.3)
    (reason,) = failing(claim, held)
    assert reason.startswith("plain training runs that have sinks")


def test_sinks_of_full_values_protect_from_nothing():
    held = PLANTED["sink_token/H12"](SUPPORTED) | small_or_large(REFUTED)
    (reason,) = failing("H12", held)
    assert reason.startswith("sinks whose values are small")


def test_a_plain_model_that_loses_nothing_with_few_steps_is_no_measure_of_robustness():
    held = PLANTED["sink_token/H13"](SUPPORTED)
    held[sink_token_measures.FEW_STEPS] = held[sink_token_measures.MANY_STEPS]
    (reason,) = failing("H13", held)
    assert reason.startswith("a masked diffusion model that loses something")


def test_how_far_what_is_added_is_looked_at_is_told_of_each_arm_that_adds_something():
    means = {"sink": -0.1, "sink-2": -0.1, "sink-4": -0.095}
    table = arms(SUPPORTED, "bound.all", means)
    for name in sink_token_measures.MASS:
        table[name] = table["arm"].map({"vanilla": np.nan, "sink": 0.02, "sink-2": 0.06})
    for name in sink_token_measures.EVEN:
        table[name] = 0.01
    _, finding = judge(CLAIM["sink_token/H8"], {sink_token_measures.TOKEN_COUNTS: table})
    looked = {k.rpartition(", ")[2]: v for k, v in finding.also.items() if "is added" in k}
    assert looked == pytest.approx({"sink": 2.0, "sink-2": 6.0})


def test_heads_that_differ_alike_are_told_from_positions_that_do():
    """Two models whose heads are open alike, and whose positions have nothing in common."""
    rng = np.random.default_rng(35)
    means = np.array([0.1, 0.4, 0.6, 0.9])
    one, other = (means[:, None] + rng.normal(0, 0.05, (4, 400)) for _ in range(2))
    whole, heads, within = sink_token_measures.openness_correlations(one, other)
    assert whole == pytest.approx(heads, abs=0.01)
    assert whole > 0.9
    assert abs(within) < 0.1
    assert whole == pytest.approx(np.corrcoef(one.ravel(), other.ravel())[0, 1])
    shuffled = [
        np.corrcoef(one.ravel(), rng.permuted(other, axis=1).ravel())[0, 1] for _ in range(50)
    ]
    assert heads == pytest.approx(np.mean(shuffled), abs=0.01)


def test_a_table_by_position_says_what_it_lacks():
    spec = sink_token_measures.CROPPED
    assert "by position with cropped rows" in spec.lacks(Available({}))
    some = Available({}, positions={"cropped": {"vanilla": 3}})
    assert spec.lacks(some) == "a table of variants by position with the arm sink, cropped rows"
    assert spec.lacks(Available({}, positions={"cropped": {"vanilla": 3, "sink": 1}})) == ""


def test_kinds_of_rows_and_arms_are_taken_from_the_table_by_position(tmp_path):
    table = pd.DataFrame(
        [
            {"rows": rows, "arm": arm, "seed": seed, "bound.all": seed}
            for rows in ("whole", "cropped")
            for arm in ("vanilla", "sink", "sink-no-rotary")
            for seed in range(3)
        ]
    )
    store = EvidenceStore(tmp_path, BUDGETS["quick"], Available({}), positions=table)
    found = store.load(sink_token_measures.CROPPED)
    assert set(found["rows"]) == {"cropped"}
    assert set(found["arm"]) == {"vanilla", "sink"}
    assert len(found) == 6


def test_two_seeds_by_position_are_not_enough():
    held = PLANTED["sink_token/H23"](SUPPORTED)
    few = {spec: table[table["seed"] < 2] for spec, table in held.items()}
    (reason,) = failing("H23", few)
    assert reason.startswith("training seeds enough for an interval")
