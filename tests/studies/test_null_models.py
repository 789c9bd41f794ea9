"""Studies in which nothing is so: any claim is decided at most at the stated error rate.

The hardest case for a verdict that must not be given: one criterion of every claim lies on its
margin, and the others hold. Neither "supported" nor "refuted" is true then.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.special

from anchorwatch.studies.claim import GREATER, LESS, Criterion, Finding, Measured
from anchorwatch.studies.estimate import ITEM, PROMPT, Correlation, Estimate, Least, mean_score
from anchorwatch.studies.evidence import Evidence
from anchorwatch.studies.papers import claims
from anchorwatch.studies.papers.floating import measures as floating_measures
from anchorwatch.studies.papers.sink_token import measures as sink_token_measures
from anchorwatch.studies.papers.sinks import measures as sinks_measures
from anchorwatch.studies.papers.sinks.measures import correlation_of_moments
from anchorwatch.studies.verdict import (
    ALPHA,
    BELOW_MARGIN,
    REFUTED,
    SUPPORTED,
    judge_claims,
    verdicts,
)
from claim_evidence import (
    answer_table,
    openness_table,
    position_table,
    seed_table,
    sink_attention_table,
)

RUNS = 150
pytestmark = pytest.mark.slow
COLUMN = sink_token_measures.BOUND


def at_most(wrong, runs, rate=ALPHA):
    """Whether so many of the runs are no more than chance makes of an error rate."""
    return wrong / runs <= rate + 3 * math.sqrt(rate * (1 - rate) / runs)


def trained(rng, spec, gaps, count=5, wide=0.02):
    """Seeds of a need's arms: vanilla and {arm: {column: what it has more}}, and chance."""
    base = {name: rng.normal(2.5, 0.1, count) for name in spec.columns}
    held = {}
    for arm in spec.arms:
        more = gaps.get(arm, {})
        noise = 0.0 if arm == "vanilla" else wide
        held[arm] = {
            name: one + more.get(name, 0.0) + noise * rng.normal(size=count)
            for name, one in base.items()
        }
    return seed_table(held)


def training(rng):
    """Arms that gain just too little, cost just too much, or are just not alike."""
    own = sink_token_measures
    gaps = {
        own.IMPROVED: {"sink": -0.005},
        own.GATES: {"sink": 0.0, "gate-plain": -0.005, "gate": 1.0, "gate-headwise": 1.0},
        own.REGISTERS: {"sink": -0.05, "register": -0.045},
        own.CONVERTED: {
            "sink": -1.0,
            "gate-plain": -1.0,
            "sink-large": -1.0,
            "gate-plain-large": 0.005,
        },
        own.END_POSITION: {"sink": -1.0, "sink-end": -0.8},
        own.TOKEN_COUNTS: {"sink": -1.0, "sink-2": -1.2, "sink-4": -1.0},
        own.CONTENTS: {"sink": -1.0, "sink-zero": -1.2},
    }
    held = {
        spec: trained(rng, spec, {arm: {COLUMN: gap} for arm, gap in arms.items()})
        for spec, arms in gaps.items()
    }
    quarter, longest = (f"length.{name}" for name in ("quarter", "longest"))
    lengths = {"sink": {quarter: -0.01, longest: -1.005, "length.trained": -0.005}}
    slope = {name: 0.005 * t - 1.0 for name, t in own.TIME_BINS.items()}
    tokens = {"quarter": 24, "half": 48, "trained": 96, "longest": 256}
    held[own.LENGTHS] = trained(rng, own.LENGTHS, lengths).assign(
        **{f"length.{name}.length": count for name, count in tokens.items()}
    )
    held[own.FEW_MASKS] = trained(rng, own.FEW_MASKS, {"sink": slope})
    drained = {name: rng.normal(0.8, 0.05, 5) for name in own.DRAINED_VALUES.columns}
    held[own.DRAINED_VALUES] = seed_table({"sink": drained})
    later = 0.005 * 2 * 64 / 80  # half of it, over the tokens that stand there
    held |= position_table(rng, 5, later, 0.0, 0.02)
    held |= position_table(rng, 5, 1.0, 0.0, 0.02, own.CROPPED)
    return held | looking(rng) | sink_attention_table(rng, 5)


def looking(rng, count=5):
    """Sink tokens that leave half of the sinks, and are just no sinks themselves."""
    own = sink_token_measures
    sinks, moves, masks, strong = own.REPLACED_SINKS.columns
    before = {sinks: 0.7, moves: 0.6, masks: 1.5, strong: 0.3}
    after = {sinks: 0.35, moves: 0.01, masks: 1.1, strong: 0.1}
    each = {
        arm: {name: rng.normal(mean, 0.02, count) for name, mean in means.items()}
        for arm, means in (("vanilla", before), ("sink", after))
    }
    table = seed_table(each)
    layers = dict.fromkeys(own.LAYERED.columns[:3], 0.01 * rng.normal(4.0, 0.5, count))
    even = {name: np.full(count, 0.01) for name in own.EVEN}
    return {
        own.REPLACED_SINKS: table,
        own.PLAIN_SINKS: table[table["arm"] == "vanilla"],
        own.LAYERED: seed_table({"sink": layers | even}),
    }


def coins(rng, count, shares):
    """Answers of {cell: share that is right} to items that are hard or easy in every cell."""
    item = rng.normal(size=count)
    return answer_table(
        {
            cell: (0.7 * item + math.sqrt(0.51) * rng.normal(size=count) < scipy.special.ndtri(s))
            for cell, s in shares.items()
        }
    )


def answering(rng, count=100):
    """Models that differ, gain or lose just too little."""
    asked = floating_measures
    doublings = dict(zip(asked.DISTRACTED.contexts, asked.DOUBLINGS, strict=True))
    falls = {"mdm": 0.02, "arm": 0.03}
    shares = {
        asked.DISTRACTED: {
            (role, context): 0.8 - fall * more
            for role, fall in falls.items()
            for context, more in doublings.items()
        },
        asked.GOLD_POSITIONS: {
            (role, context): 0.8 - 0.01 * (role == "arm" and at == 1)
            for role in falls
            for at, context in enumerate(asked.GOLD_POSITIONS.contexts)
        },
        asked.LAYOUTS: {
            (role, context): 0.8 - 0.01 * (role == "arm" and at > 0)
            for role in falls
            for at, context in enumerate(asked.LAYOUTS.contexts)
        },
        asked.GAIN: {
            ("mdm", "closed"): 0.06,
            ("mdm", "gold"): 0.46,
            ("arm", "closed"): 0.25,
            ("arm", "gold"): 0.45,
        },
    }
    own = sink_token_measures
    shares[own.MANY_STEPS] = {("mdm", "gold"): 0.8, ("sink", "gold"): 0.8}
    shares[own.FEW_STEPS] = {("mdm", "gold"): 0.5, ("sink", "gold"): 0.51}
    for name, gold in (("rules", 0.61), ("examples", 0.6)):
        shares[asked.TEMPLATES[name]] = {("mdm", "closed"): 0.1, ("mdm", "gold"): gold}
    held = {
        spec: coins(rng, count, {(*cell, "none"): share for cell, share in cells.items()})
        for spec, cells in shares.items()
    }
    return held | hiding(rng, count)


def hiding(rng, count):
    """A masked model that loses to hidden sinks just too much, an autoregressive one half."""
    held, edits = {}, ("none", "sinks", "random")
    for spec, lost in ((sinks_measures.ONE_STEP, 0.05), (sinks_measures.MANY_STEPS, 0.0)):
        cells = {("mdm", "gold", edit): 0.8 - lost * (edit == "sinks") for edit in edits}
        held[spec] = coins(rng, count, cells)
    mdm, arm = sinks_measures.MDM_HIDDEN, sinks_measures.ARM_HIDDEN
    edits = [name for name, _ in mdm.edits]
    lost = {"sinks 1": 0.01, "sinks 5": 0.1, "sinks 10": 0.15}  # margins of H27, H28, H36
    held[mdm] = coins(rng, count, {("mdm", "gold", e): 0.8 - lost.get(e, 0.0) for e in edits})
    lost = {"sinks 1": 0.11, "sinks 5": 0.2, "sinks 10": 0.2}  # ten points more: that of H13
    held[arm] = coins(rng, count, {("arm", "gold", e): 0.22 - lost.get(e, 0.0) for e in edits})
    return held


def units(rng, count, means, wide=0.1):
    """A table of units, each column about its mean."""
    held = {name: rng.normal(mean, wide, count) for name, mean in means.items()}
    return pd.DataFrame(held).rename_axis("unit").reset_index()


def parts(rng, count, column, each, means, wide=0.1):
    """Such tables one below the other, a part for each name; `each` has the means that differ."""
    made = [units(rng, count, means | more, wide).assign(**{column: at}) for at, more in each]
    return pd.concat(made, ignore_index=True)


def watching(rng, count=12):
    """Prompts about the margins of the claims about them."""
    kl = {"difference": 0.1, "control_difference": 0.1}
    kl |= {
        f"hidden_{what}_{arm}": 0.2 for what in ("keys", "share") for arm in ("edited", "control")
    }
    halves = (("shallow", {"did": 0.01}), ("deep", {"did": -2.0}))
    log = floating_measures.TENTH + 0.1 * rng.normal(size=count)
    places = [
        pd.DataFrame(
            {"unit": range(count), "lift": 2 ** (log + 0.005 * rng.normal(size=count))}
        ).assign(right=1.0)
        for _ in range(3)
    ]
    names = ("first", "middle", "last")
    put = [one.assign(place=name) for one, name in zip(places, names, strict=True)]
    delays = [("sinks", {"later": 0.3, "surer": -1.0}), ("random", {"later": 0.2, "surer": 0.0})]
    rolled = {"value": 0.8, "null": 0.4, "dobrushin": 0.1}
    maps = {"cosine": 0.97, "jumps": 0.05, "cosine_null": 0.9, "jumps_null": 0.1}
    maps |= {"split_drawn": 0.5, "turned": 3.0, "self_lost": 0.31, "self_expected": 0.3}
    depths = [(at, {"split": 0.55 if at >= 2 else 0.0}) for at in range(4)]
    told = [("closed", {"worn": -9.0, "hidden": -9.0}), ("gold", {"worn": -5.0, "hidden": -5.1})]
    layers = [(at, {"value": 0.07, "null": 0.02, "rewritten": 0.02}) for at in range(4)]
    return {
        floating_measures.HALVES: parts(rng, count, "half", halves, kl),
        floating_measures.GOLD_ATTENTION: pd.concat(put, ignore_index=True),
        floating_measures.ROLLOUTS["arm"]: units(rng, count, rolled),
        floating_measures.ROLLOUTS["mdm"]: units(rng, count, dict.fromkeys(rolled, 0.0), 0.0),
        floating_measures.REWRITTEN_QUERIES: parts(rng, count, "layer", layers, {"elsewhere": 0.5}),
        sinks_measures.DELAYS: parts(rng, count, "arm", delays, {"moved": 0.5}),
        sinks_measures.HEAD_MAPS: parts(rng, count, "layer", depths, maps, 0.01),
        sink_token_measures.KNOCK_OUTS: units(
            rng, count, {"sink": 2.01, "greatest": 2.0, "random": 0.0}
        ),
        sink_token_measures.IN_CONTEXT: parts(rng, count, "context", told, {}, 0.01),
        sink_token_measures.OPENNESS["sink"]: openness_table(rng, count, 0.0),
    }


DECIDED = (SUPPORTED, REFUTED, BELOW_MARGIN)


def reads_only(one, held):
    """Whether a claim is measured from this evidence, whatever its preconditions read."""
    try:
        return one.is_testable and bool(one.find(Evidence.of(held)))
    except KeyError:
        return False


def without_preconditions(one, held):
    """The hardest case: nothing is asked for first."""
    return replace(one, preconditions=(), needs=tuple(x for x in one.needs if x in held))


@pytest.mark.parametrize(
    ("make", "least"),
    [(training, 11), (answering, 7), (watching, 9)],
    ids=["seeds", "items", "prompts"],
)
def test_a_study_of_nothing_decides_any_claim_at_most_at_the_error_rate(make, least):
    rng, said, able = np.random.default_rng(3), {}, []
    for _ in range(RUNS):
        held = make(rng)
        able = able or [
            without_preconditions(one, held) for one in claims() if reads_only(one, held)
        ]
        found = judge_claims(able, Evidence.of(held), {})
        assert all(one.verdict for one in found), [one.lacking for one in found if one.lacking]
        for one in found:
            said.setdefault(one.claim.study, []).append(one.says)
    assert len(able) >= least
    for (study, every), verdict in itertools.product(said.items(), DECIDED):
        each = np.array(every).reshape(RUNS, -1) == verdict
        assert at_most(each.any(axis=1).sum(), RUNS), (study, verdict, each.mean(axis=0))


def mean(rng, n=24):
    return Estimate.mean(rng.normal(0.3, 1, n), PROMPT)


def share(rng, n=40):
    return Estimate.mean(rng.random(n) < 0.3, PROMPT, (0.0, 1.0))


def pair(rng, n=100):
    gap = rng.choice([-1.0, 0.0, 1.0], n, p=[0.1, 0.5, 0.4])
    return Estimate.pairs(np.maximum(gap, 0), np.maximum(-gap, 0), ITEM)


def score(rng, n=48):
    """Items that hardly ever differ: mostly 0.3, seldom a bound."""
    values = rng.choice([-1.0, 0.3, 1.0], n, p=[0.35 * 0.04, 0.96, 0.65 * 0.04])
    return mean_score(values, ITEM, (-1.0, 1.0))


def ratio(rng, n=24):
    base = rng.normal(2, 0.3, n)
    rows = np.stack([0.3 * base + rng.normal(0, 0.2, n), base], axis=1)
    return Estimate.jackknife(rows, lambda means: float(means[0] / means[1]), PROMPT)


def correlation(rng, n=40):
    x, own = rng.normal(size=(2, n))
    y = 0.3 * x + math.sqrt(1 - 0.3**2) * own
    rows = np.stack([x, y, x * y, x**2, y**2], axis=1)
    return Correlation.jackknife(rows, correlation_of_moments, PROMPT)


def least(rng, n=24):
    """Of four, one of which is on the margin and the others above."""
    return Least.among([Estimate.mean(rng.normal(m, 1, n), PROMPT) for m in (0.3, 2.0, 2.0, 2.0)])


def least_of_equals(rng, n=24):
    return Least.among([Estimate.mean(rng.normal(0.3, 1, n), PROMPT) for _ in range(4)])


@pytest.mark.parametrize(
    "kind", [mean, share, pair, score, ratio, correlation, least, least_of_equals]
)
@pytest.mark.parametrize("direction", [GREATER, LESS])
def test_every_kind_of_estimate_keeps_the_error_rate_on_its_margin(kind, direction):
    rng, runs = np.random.default_rng(4), 1500
    one = Criterion("it", "a number", direction, 0.3, "planted")
    counts = {SUPPORTED: 0, REFUTED: 0}
    for _ in range(runs):
        finding = Finding({"it": Measured(kind(rng))})
        (verdict,) = verdicts([((one,), finding)])
        counts[verdict.says] = counts.get(verdict.says, 0) + 1
    assert at_most(counts[SUPPORTED], runs)
    assert at_most(counts[REFUTED], runs)


@pytest.mark.parametrize("alike", [0.0, 0.8])
@pytest.mark.parametrize(("true", "size"), [(0, 0.0), (5, 3.0), (11, 3.0), (5, 0.6), (11, 0.6)])
def test_true_claims_beside_false_ones_spend_nothing_of_the_error_rate(true, size, alike):
    """Holm steps down past what is sure: those left must keep the rate, also if all go together.

    Of claims that are true by little, half are not seen to be, and any may be said to be false.
    """
    rng, runs, wrong = np.random.default_rng(5), 1000, 0
    criteria = (Criterion("it", "a number", GREATER, 0.0, "planted"),)
    for _ in range(runs):
        common = rng.normal(size=24)
        found = []
        for at in range(12):
            own = math.sqrt(1 - alike) * rng.normal(size=24) + math.sqrt(alike) * common
            found.append(
                (
                    criteria,
                    Finding({"it": Measured(Estimate.mean(own + size * (at < true), PROMPT))}),
                )
            )
        said = [one.says for one in verdicts(found)]
        assert size < 1 or said[:true] == [SUPPORTED] * true
        wrong += REFUTED in said or SUPPORTED in said[true:]
    assert at_most(wrong, runs)
