"""Claims of 2601.19657 about what a sink token changes in trained models: the unit is the seed."""

from __future__ import annotations

import math

import numpy as np

from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.estimates import SEED, Estimate
from anchorwatch.studies.evidence import by_seed, mean_of
from anchorwatch.studies.needs import Seeds
from anchorwatch.studies.papers.sink_token.seeds import (
    BOUND,
    LOOKED_AT,
    TIMES,
    acts_as_a_sink,
    draw_differences,
    gap,
)

_PAPER = "arXiv 2601.19657"
BINS = {f"bound.t.{low / 5:.1f}-{(low + 1) / 5:.1f}.masked": (low + 0.5) / 5 for low in range(5)}
"""Nats per masked token, and the middle of each range of t."""
MASKS = {t: f"noisy.t.{t}.mask_share_visible" for t in (TIMES[0], TIMES[-1])}
REPLACED = Seeds(
    (
        "text.incidence.ratio",
        MASKS["0.05"],
        "text.switch_all",
        "noisy.t.0.05.mask_preference_visible",
    )
)
DRAINED = Seeds(tuple(f"noisy.t.{t}.sink_value_ratio" for t in TIMES), ("sink",))
MIXED = Seeds((*(f"noisy.t.0.5.{n}" for n in ("spread", "effective_rank", "state_cosine")), BOUND))
LENGTHS = Seeds(tuple(f"length.{name}" for name in ("quarter", "longest", "trained", "half")))
FEW = Seeds((*BINS, *MASKS.values()))
_HALF = "what takes the place of another leaves less than half of it"
_TWENTIETH = 0.05
_LEAST, _WHY = 0.005, "half a percent of perplexity; less is within what a recipe's details do"


def _replaces(evidence: Evidence) -> Finding:
    """Each as the sink arm's less half of vanilla's."""
    names = ("content sinks", "masks", "greatest key")
    found: dict[str, Measured] = {}
    also = acts_as_a_sink(evidence)
    for name, column in zip(names, REPLACED.columns, strict=False):
        wide = by_seed(evidence, REPLACED, column)
        also |= {f"{name}, {arm}": mean_of(wide[arm]) for arm in REPLACED.arms}
        wide = (wide - 1).abs() if name == "masks" else wide
        left = (wide["sink"] - wide["vanilla"] / 2).to_numpy()
        found[name] = Measured(Estimate.mean(left, SEED), mean_of(wide["vanilla"]) / 2)
    among = gap(evidence, REPLACED, REPLACED.columns[3], "sink", "vanilla")
    also["masks among what goes to tokens, sink less vanilla"] = mean_of(among)
    return Finding(found, also)


def _measure_drain(evidence: Evidence) -> Finding:
    """Logarithms of ratios: no interval of theirs reaches below a norm of 0."""
    also = acts_as_a_sink(evidence)
    each = np.stack([by_seed(evidence, DRAINED, name)["sink"] for name in DRAINED.columns])
    found = Measured(Estimate.mean(np.log(each.mean(axis=0)), SEED), 0.0)
    also["norm ratio"] = math.exp(found.estimate.value)
    table = evidence[DRAINED]
    prefix = "noisy.layer.sink_value_ratio."
    layers = [name for name in table.columns if name.startswith(prefix)]
    also |= {f"layer {name.removeprefix(prefix)}": float(table[name].mean()) for name in layers}
    return Finding({"value": found}, also)


def _mixes(evidence: Evidence) -> Finding:
    also = acts_as_a_sink(evidence)
    spread, rank, cosine = (by_seed(evidence, MIXED, name) for name in MIXED.columns[:3])
    means = [mean_of(wide["vanilla"]) for wide in (spread, rank)]
    less = (spread["sink"] - (1 - _TWENTIETH) * spread["vanilla"]).to_numpy()
    more = (rank["sink"] - (1 + _TWENTIETH) * rank["vanilla"]).to_numpy()
    apart = (cosine["sink"] - cosine["vanilla"]).to_numpy()
    found = {
        "spread": Measured(Estimate.mean(less, SEED), _TWENTIETH * means[0]),
        "rank": Measured(Estimate.mean(more, SEED), -_TWENTIETH * means[1]),
        "cosine": Measured(Estimate.mean(apart, SEED), 0.0),
    }
    also |= {"spread, vanilla": means[0], "rank, vanilla": means[1]}
    also["bound, sink less vanilla"] = mean_of(gap(evidence, MIXED, BOUND, "sink", "vanilla"))
    return Finding(found, also)


def _off_length(evidence: Evidence) -> Finding:
    gains = {
        name.removeprefix("length."): gap(evidence, LENGTHS, name, "sink", "vanilla")
        for name in LENGTHS.columns
    }
    found = {
        name: Measured(Estimate.mean(gains[name] - gains["trained"], SEED), 0.0)
        for name in ("quarter", "longest")
    }
    also = {f"sink less vanilla, {name}": mean_of(held) for name, held in gains.items()}
    return Finding(found, also)


def _few_masks(evidence: Evidence) -> Finding:
    gaps = np.stack([gap(evidence, FEW, name, "sink", "vanilla") for name in BINS])
    t = np.array(list(BINS.values()))
    centred = t - t.mean()
    slope = centred @ gaps / (centred @ centred)
    found = {
        "few masks": Measured(Estimate.mean(gaps[0], SEED), 0.0),
        "slope": Measured(Estimate.mean(slope, SEED), 0.0),
    }
    shares = {
        f"attention on masks over their share, vanilla, t = {t}": mean_of(
            by_seed(evidence, FEW, name)["vanilla"]
        )
        for t, name in MASKS.items()
    }
    return Finding(found, {"many masks": mean_of(gaps[-1])} | shares)


CLAIMS = (
    Claim(
        "sink_token/H3",
        "A sink token takes their place: content sinks become fewer, masks get an even share, and "
        "the greatest key stays.",
        f"{_PAPER}, section 4.4",
        "claimed",
        SEED,
        needs=(REPLACED, LOOKED_AT),
        criteria=tuple(
            Criterion(
                name,
                f"{says}, with a sink token less half of vanilla's, paired by seed",
                LESS,
                0.0,
                _HALF,
                null="a sink token changes nothing",
            )
            for name, says in (
                (
                    "content sinks",
                    "share of heads and steps in which a token receives 10 times an even share",
                ),
                (
                    "masks",
                    "distance from 1 of the attention on masks over their share, visible queries, "
                    "t = 0.05",
                ),
                (
                    "greatest key",
                    "share of neighbouring steps at which the greatest of all keys, the sink token "
                    "among them, is another",
                ),
            )
        ),
        judge=_replaces,
        draw=draw_differences(REPLACED),
        caveat="attention that goes to the sink token goes to no mask, so that their share falls "
        "even if they are looked at as before among the tokens; half of few sinks is a small "
        "number, and how many vanilla has is told",
    ),
    Claim(
        "sink_token/H4",
        "The learned sink token is drained: its values have small norms.",
        f"{_PAPER}, section 4.4",
        "negligible, numbers not known to us",
        SEED,
        needs=(DRAINED, LOOKED_AT),
        criteria=(
            Criterion(
                "value",
                "logarithm of the norm of the sink token's value over the mean of the tokens' (a "
                "mean over layers and shares of masks), by seed",
                LESS,
                math.log(0.8),
                "a fifth smaller, log 0.8: what is asked of the sinks of ordinary models "
                "(sink_token/H1); the paper's have .31 and .40",
                null="as large as the tokens'",
            ),
        ),
        judge=_measure_drain,
        caveat="norms before the output projection; its share of what attention brings is not in "
        "the table",
    ),
    Claim(
        "sink_token/H12",
        "The sink token prevents over-mixing of states.",
        f"{_PAPER}, introduction",
        "claimed, not measured",
        SEED,
        needs=(MIXED, LOOKED_AT),
        criteria=(
            Criterion(
                "spread",
                "mean relative change of all other states when one token is another, with a sink "
                "token less 0.95 of vanilla's, t = 0.5",
                LESS,
                0.0,
                "a twentieth less: it is said to prevent, not to shift",
                null="a sink token changes nothing",
            ),
            Criterion(
                "rank",
                "effective rank of states over positions, with a sink token less 1.05 of vanilla's",
                GREATER,
                0.0,
                "a twentieth more",
                null="a sink token changes nothing",
            ),
            Criterion(
                "cosine",
                "mean cosine of the states of two positions, sink token less vanilla",
                LESS,
                -0.01,
                "a hundredth of the scale",
                null="no difference",
            ),
        ),
        judge=_mixes,
        draw=draw_differences(MIXED),
        caveat="at equal training, not at equal bound; networks of one depth, where over-mixing is "
        "said to come with depth",
    ),
    Claim(
        "sink_token/H13",
        "Models with a sink token are more robust to seed, order and number of steps.",
        f"{_PAPER}, introduction",
        "claimed, not measured",
        SEED,
        defect="the greedy sampler's answers depend on the other rows of the batch",
        lacks="columns of the table of variants with each training run's answers under several "
        "sampling seeds, orders and numbers of steps (the spread of exact match over seeds, its "
        "slope over steps; `answers.*` has one greedy run): one pair of models cannot tell a sink "
        "token from a training seed",
    ),
    Claim(
        "sink_token/H16",
        "The gain of a sink token grows away from the training length.",
        "ours, after a confound of 2601.19657",
        "not in the paper",
        SEED,
        needs=(LENGTHS,),
        criteria=tuple(
            Criterion(
                name,
                f"bound of sink token less vanilla on {says}, less the same at the training "
                "length, by seed",
                LESS,
                -_LEAST,
                _WHY,
                null="the same gain at every length",
            )
            for name, says in (
                ("quarter", "texts of a quarter of the training length"),
                ("longest", "texts of all positions there are"),
            )
        ),
        judge=_off_length,
        draw=draw_differences(LENGTHS),
        defect="trained at one length and evaluated on shorter texts, so that a sink token may be "
        "a device against that",
    ),
    Claim(
        "sink_token/H17",
        "The gain of a sink token is where masks are few.",
        "ours, after 2601.19657",
        "not in the paper",
        SEED,
        needs=(FEW,),
        criteria=(
            Criterion(
                "few masks",
                "nats per masked token at t < 0.2, sink token less vanilla, paired by seed",
                LESS,
                -_LEAST,
                _WHY,
                null="no difference",
            ),
            Criterion(
                "slope",
                "slope over t of the same difference, in nats from no masks to all",
                GREATER,
                _LEAST,
                _WHY,
                null="the same gain at every t",
            ),
        ),
        judge=_few_masks,
        draw=draw_differences(FEW),
    ),
)
