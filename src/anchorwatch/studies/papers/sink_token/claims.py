"""The claims of the sink token paper (arXiv 2601.19657), in its order."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from anchorwatch.errors import EvidenceError
from anchorwatch.metrics.sink_rules import topk
from anchorwatch.studies.claim import (
    GREATER,
    LESS,
    Criterion,
    Finding,
    Measured,
    Paper,
    register_claim,
    register_paper,
    register_untested_claim,
)
from anchorwatch.studies.estimate import ITEM, PROMPT, SEED, Estimate
from anchorwatch.studies.evidence import Evidence
from anchorwatch.studies.measure import (
    ARM_RUNS,
    DIFFERENCE,
    MDM_RUNS,
    NORM_RUNS,
    SHARE,
    by_prompt,
    by_seed,
    mean_of,
)
from anchorwatch.studies.papers.sink_token.measures import (
    ALIKE_SHARE,
    BOUND,
    CONSTANTS,
    CONTENTS,
    CONVERTED,
    DRAINED_VALUES,
    END_POSITION,
    FEW_MASKS,
    GATES,
    IMPROVED,
    IN_CONTEXT,
    KNOCK_OUTS,
    LEAST_COST,
    LEAST_DIFFERENCE,
    LEAST_GAIN,
    LEAST_LOSS,
    LENGTHS,
    MASK_SHARES,
    MIXED_STATES,
    OPENNESS,
    OPERATIONS,
    REGISTERS,
    REPLACED_SINKS,
    SINK_ATTENTION,
    TIME_BINS,
    TOKEN_COUNTS,
    TWENTIETH,
    arm_difference,
    attention_on_sink_token,
    attention_ratios,
    compare_with_sink,
    draw_differences,
    draw_sink_paths,
    draw_value_norms,
    medians_over_layers,
    openness_by_unit,
    openness_correlations,
    require_sink,
    seed_mean,
)

register_paper(
    "sink_token",
    Paper(
        "One Token Is Enough: Improving Diffusion Language Models with a Sink Token",
        "Zhang, Xie, Zhong, Liu and Cao, 2026",
        "2601.19657",
        "One extra token that all see and that sees only itself gives attention a place to rest, "
        "and makes masked diffusion models better.",
    ),
)
_PAPER = "arXiv 2601.19657"
_HALF = "what takes the place of another leaves less than half of it"
_NAMES = "output folders of the three arms are exchanged, so that arms picked by name are others"
_WHY = "half a percent of perplexity; less is within what a recipe's details do"
_FIFTH = "a fifth of the gain: the effect is to be small beside that of the token"
_NO_SINK = (
    "how far the added token is looked at is told and decides nothing: where it gets no more than "
    "an even share, what is found is not the work of a sink"
)


def _both_sides(word: str, arm: str) -> tuple[Criterion, ...]:
    """Both sides of being alike: linear in the arms, so that no ratio is taken."""
    return tuple(
        Criterion(
            f"{word} not {side}",
            f"bound of {arm_} less {other}, less a fifth of the gain of a sink token, by seed",
            LESS,
            0.0,
            _FIFTH,
            null="no difference, and no gain",
        )
        for side, arm_, other in (("worse", arm, "sink"), ("better", "sink", arm))
    )


@register_claim(
    "sink_token/H1",
    "Sinks of an ordinary masked diffusion model have values of small norm.",
    source=f"{_PAPER}, Fig. 1",
    reported="norm ratio .31 (LLaDA), .40 (Dream); AUC 1.000",
    unit=PROMPT,
    needs=(NORM_RUNS,),
    criteria=(
        Criterion(
            "ratio",
            "norm of the values of sinks over those of the other keys of their head and step, "
            "median over layers",
            LESS,
            0.8,
            "a fifth smaller; the paper's are smaller by 60 to 69 %",
            null="as large as the others'",
            published={"LLaDA": 0.31, "Dream": 0.40},
        ),
    ),
    draw=draw_value_norms,
    defect="the caption says 10K tokens of each kind, the figure has 3,840; one unnamed layer",
    caveat="sinks are chosen by attention, and training may drain what is looked at: that they "
    "go together does not say which makes which",
)
def measure_low_norms(evidence: Evidence) -> Finding:
    """The median over layers for each prompt: one layer with large vectors does not decide."""
    ratio = by_prompt(evidence, NORM_RUNS, "value_norms", "ratio", over="layer")
    middle = medians_over_layers(ratio.value)
    auroc = by_prompt(evidence, NORM_RUNS, "value_norms", "auroc", over="layer")
    greatest = by_prompt(
        evidence, NORM_RUNS, "value_norms", "ratio", over="layer", options={"rule": topk(1)}
    )
    also = {
        "AUROC of the smaller norm": mean_of(medians_over_layers(auroc.value)),
        "ratio of the greatest key, sink or not": mean_of(medians_over_layers(greatest.value)),
    }
    return Finding({"ratio": Measured(Estimate.mean(middle, PROMPT), 1.0)}, also)


@register_claim(
    "sink_token/H2",
    "Those sinks move over denoising.",
    source=f"{_PAPER}, Fig. 1",
    reported="shown for steps 0 and 64 only",
    unit=PROMPT,
    needs=(MDM_RUNS, ARM_RUNS),
    criteria=(
        Criterion(
            "switch",
            "share of neighbouring steps, both with a sink, at which a head's greatest sink is "
            "another",
            GREATER,
            0.05,
            "one step in twenty: a sink that moves less is there for nearly the whole run",
            null="a sink that stays",
            control="an ARM, whose rows are what they are once they are written",
        ),
        Criterion(
            "places",
            "share of the steps that a head's greatest sink spends at its commonest place",
            LESS,
            0.95,
            "one step in twenty is spent elsewhere",
            null="a sink that stays",
            control="an ARM",
        ),
    ),
    draw=draw_sink_paths,
    defect="two steps of one run, one unnamed head",
    caveat="of the MDM alone: an ARM is told beside it and decides nothing, since its sinks "
    "can hardly move, whatever it learned (old rows never change, and all of them see the "
    "first key)",
)
def measure_sink_moves(evidence: Evidence) -> Finding:
    rates = [by_prompt(evidence, spec, "jumps", "jump_rate") for spec in (MDM_RUNS, ARM_RUNS)]
    stays = [by_prompt(evidence, spec, "spread", "modal_share") for spec in (MDM_RUNS, ARM_RUNS)]
    measured = {
        name: Measured(Estimate.mean(mdm.value, PROMPT, SHARE), stays_put, mean_of(arm.value))
        for name, (mdm, arm), stays_put in (("switch", rates, 0.0), ("places", stays, 1.0))
    }
    also = {
        "switch, steps shuffled": mean_of(rates[0].null),
        "commonest place, drawn evenly": mean_of(stays[0].null),
    }
    return Finding(measured, also)


@register_claim(
    "sink_token/H3",
    "A sink token takes their place: content sinks become fewer, masks get an even share, and "
    "the greatest key stays.",
    source=f"{_PAPER}, section 4.4",
    reported="claimed",
    unit=SEED,
    needs=(REPLACED_SINKS, SINK_ATTENTION),
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
    draw=draw_differences(REPLACED_SINKS),
    caveat="attention that goes to the sink token goes to no mask, so that their share falls "
    "even if they are looked at as before among the tokens; half of few sinks is a small "
    "number, and how many vanilla has is told",
)
def measure_replacement(evidence: Evidence) -> Finding:
    """Each as the sink arm's less half of vanilla's."""
    names = ("content sinks", "masks", "greatest key")
    measured: dict[str, Measured] = {}
    also = require_sink(evidence)
    for name, column in zip(names, REPLACED_SINKS.columns, strict=False):
        wide = by_seed(evidence, REPLACED_SINKS, column)
        also |= {f"{name}, {arm}": mean_of(wide[arm]) for arm in REPLACED_SINKS.arms}
        wide = (wide - 1).abs() if name == "masks" else wide
        left = (wide["sink"] - wide["vanilla"] / 2).to_numpy()
        measured[name] = Measured(Estimate.mean(left, SEED), mean_of(wide["vanilla"]) / 2)
    among = arm_difference(evidence, REPLACED_SINKS, REPLACED_SINKS.columns[3], "sink", "vanilla")
    also["masks among what goes to tokens, sink less vanilla"] = mean_of(among)
    return Finding(measured, also)


@register_claim(
    "sink_token/H4",
    "The learned sink token is drained: its values have small norms.",
    source=f"{_PAPER}, section 4.4",
    reported="negligible, numbers not known to us",
    unit=SEED,
    needs=(DRAINED_VALUES, SINK_ATTENTION),
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
    caveat="norms before the output projection; its share of what attention brings is not in "
    "the table",
)
def measure_drain(evidence: Evidence) -> Finding:
    """Logarithms of ratios: no interval of theirs reaches below a norm of 0."""
    also = require_sink(evidence)
    each = np.stack(
        [by_seed(evidence, DRAINED_VALUES, name)["sink"] for name in DRAINED_VALUES.columns]
    )
    measured = Measured(Estimate.mean(np.log(each.mean(axis=0)), SEED), 0.0)
    also["norm ratio"] = math.exp(measured.estimate.value)
    table = evidence[DRAINED_VALUES]
    prefix = "noisy.layer.sink_value_ratio."
    layers = [name for name in table.columns if name.startswith(prefix)]
    also |= {f"layer {name.removeprefix(prefix)}": float(table[name].mean()) for name in layers}
    return Finding({"value": measured}, also)


@register_claim(
    "sink_token/H5",
    "A sink token improves the model.",
    source=f"{_PAPER}, Tables 1 and 2",
    reported="+5.15 / +1.53 / +5.50 points of mean accuracy",
    unit=SEED,
    needs=(IMPROVED,),
    criteria=(
        Criterion(
            "bound",
            "held-out bound in nats per token, sink token less vanilla, paired by seed",
            LESS,
            -LEAST_DIFFERENCE,
            _WHY,
            null="no difference",
            control="vanilla",
        ),
    ),
    draw=draw_differences(IMPROVED),
    defect=_NAMES + "; arms share no noise, and each is one run",
    caveat="small networks and few tokens; the paper's are of 0.5B and 1.5B parameters; "
    + _NO_SINK,
)
def measure_improvement(evidence: Evidence) -> Finding:
    wide, answers = (by_seed(evidence, IMPROVED, name) for name in IMPROVED.columns)
    better = (wide["sink"] - wide["vanilla"]).to_numpy()
    right = mean_of(answers["sink"] - answers["vanilla"])
    measured = Measured(Estimate.mean(better, SEED), 0.0, mean_of(wide["vanilla"]))
    also = {"answers with passage, sink less vanilla": right}
    return Finding({"bound": measured}, also | attention_ratios(evidence, IMPROVED))


@register_claim(
    "sink_token/H6",
    "A sink token is at least as good as gated attention.",
    source=f"{_PAPER}, Tables 1 and 2",
    reported="+2.9 / +8.2 / +2.2 points over gates",
    unit=SEED,
    needs=(GATES,),
    criteria=tuple(
        Criterion(
            arm,
            f"bound in nats per token, sink token less {says}, paired by seed",
            LESS,
            LEAST_DIFFERENCE,
            f"no worse by more than {_WHY.partition(';')[0]}",
            null="no difference",
        )
        for arm, says in (
            ("gate-plain", "gates of channels that begin near one half, the paper's"),
            ("gate", "gates of channels that begin as 1"),
            ("gate-headwise", "gates of heads that begin as 1"),
        )
    ),
    draw=draw_differences(GATES),
    defect=_NAMES,
    caveat="at least as good, not better: the paper's gates begin near one half, which damages "
    "a pretrained network, and it has no others; " + _NO_SINK,
)
def measure_gates(evidence: Evidence) -> Finding:
    measured = {
        arm: seed_mean(arm_difference(evidence, GATES, BOUND, "sink", arm))
        for arm in ("gate-plain", "gate", "gate-headwise")
    }
    means = {
        f"{arm} less vanilla": mean_of(arm_difference(evidence, GATES, BOUND, arm, "vanilla"))
        for arm in GATES.arms[1:]
    }
    return Finding(measured, means | attention_ratios(evidence, GATES))


@register_claim(
    "sink_token/H7",
    "Where the sink token stands does not matter.",
    source=f"{_PAPER}, Table 3",
    reported="mean of five tasks 46.76 (front), 46.58 (end)",
    unit=SEED,
    needs=(END_POSITION,),
    criteria=_both_sides("end", "sink-end"),
    draw=draw_differences(END_POSITION),
    defect="code for the other place was not released",
    caveat="a token in the middle, or without a rotary position, is in no table; " + _NO_SINK,
)
def measure_position(evidence: Evidence) -> Finding:
    return compare_with_sink(evidence, END_POSITION, "sink-end", "end")


@register_claim(
    "sink_token/H8",
    "One sink token is enough: it gains, and two or four gain hardly more.",
    source=f"{_PAPER}, Table 4",
    reported="mean of five tasks 38.72 / 46.76 / 46.53 / 46.20 for 0 / 1 / 2 / 4",
    unit=SEED,
    needs=(TOKEN_COUNTS,),
    criteria=(
        Criterion(
            "one gains",
            "bound in nats per token, one sink token less vanilla, paired by seed",
            LESS,
            0.0,
            "what gains nothing is not enough for anything",
            null="no difference",
        ),
        *(
            Criterion(
                f"{word} gain no more",
                f"bound of one sink token less {word}, less a fifth of the gain of one, by seed",
                LESS,
                0.0,
                _FIFTH,
                null="no difference, and no gain",
            )
            for word in ("two", "four")
        ),
    ),
    draw=draw_differences(TOKEN_COUNTS),
    defect="code for more than one was not released; whether several see each other is not "
    "said (ours see only themselves)",
    caveat=_NO_SINK,
)
def measure_number(evidence: Evidence) -> Finding:
    gain = arm_difference(evidence, TOKEN_COUNTS, BOUND, "vanilla", "sink")
    more = {
        arm: arm_difference(evidence, TOKEN_COUNTS, BOUND, "sink", arm)
        for arm in ("sink-2", "sink-4")
    }
    measured = {"one gains": seed_mean(-gain)}
    measured |= {
        f"{word} gain no more": seed_mean(more[arm] - ALIKE_SHARE * gain)
        for word, arm in (("two", "sink-2"), ("four", "sink-4"))
    }
    also = {f"gain of {arm} over one": mean_of(more[arm]) for arm in more}
    also["gain of one"] = mean_of(gain)
    return Finding(measured, also | attention_ratios(evidence, TOKEN_COUNTS))


@register_claim(
    "sink_token/H9",
    "What the sink token holds does not matter: an empty value does as well.",
    source=f"{_PAPER}, Table 5",
    reported="46.76 against 46.88",
    unit=SEED,
    needs=(CONTENTS,),
    criteria=_both_sides("empty", "sink-zero"),
    draw=draw_differences(CONTENTS),
    defect="code for the empty value was not released; whether it is empty in training or only "
    "afterwards is not said (ours is in both)",
    caveat="relatives without a token (off by one, a logit of each head) are told and decide "
    "nothing; a frozen token, or a value emptied after training, is in no table; " + _NO_SINK,
)
def measure_content(evidence: Evidence) -> Finding:
    return compare_with_sink(evidence, CONTENTS, "sink-zero", "empty")


@register_claim(
    "sink_token/H10",
    "That the sink token sees only itself matters: a register that sees all does less.",
    source=f"{_PAPER}, Eq. 6",
    reported="not in the paper",
    unit=SEED,
    needs=(REGISTERS,),
    criteria=(
        Criterion(
            "register",
            "bound in nats per token, register less sink token, paired by seed",
            GREATER,
            LEAST_DIFFERENCE,
            _WHY,
            null="no difference",
        ),
    ),
    draw=draw_differences(REGISTERS),
    defect="neither the paper nor its code has the arm without the mask",
    caveat="what a register's state tells of the text is not measured; a sink token's tells "
    "nothing, as sink_token/H11 says; " + _NO_SINK,
)
def measure_visibility(evidence: Evidence) -> Finding:
    less = arm_difference(evidence, REGISTERS, BOUND, "register", "sink")
    also = {
        f"{arm} less vanilla": mean_of(arm_difference(evidence, REGISTERS, BOUND, arm, "vanilla"))
        for arm in REGISTERS.arms[1:]
    }
    return Finding({"register": seed_mean(less)}, also | attention_ratios(evidence, REGISTERS))


@register_claim(
    "sink_token/H11",
    "Key and value of the sink token are constants of each layer.",
    source=f"{_PAPER}, Eq. 5 and 6, as an identity",
    reported="exact",
    unit=PROMPT,
    needs=(CONSTANTS,),
    criteria=(
        Criterion(
            "apart",
            "relative differences between the published form (the token in the sequence, a "
            "mask that shows it only itself) and constants: of keys and of values, at the "
            "layer where they are greatest, and of logits, added up",
            LESS,
            1e-5,
            "what rounding in float32 leaves of an equality",
            null="equal",
            control="its value if it saw all tokens",
        ),
    ),
    defect="a dense mask is built at every pass and flash attention is off",
)
def measure_constant_key(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[CONSTANTS]
    parts = ("key", "value", "logits")
    whole = table[list(parts)].sum(axis=1).to_numpy(dtype=float)
    seeing = float(table["value_if_it_sees_all"].mean())
    measured = Measured(Estimate.mean(whole, PROMPT), 0.0, seeing)
    return Finding({"apart": measured}, {f"greatest of {n}": float(table[n].max()) for n in parts})


@register_claim(
    "sink_token/H12",
    "The sink token prevents over-mixing of states.",
    source=f"{_PAPER}, introduction",
    reported="claimed, not measured",
    unit=SEED,
    needs=(MIXED_STATES, SINK_ATTENTION),
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
    draw=draw_differences(MIXED_STATES),
    caveat="at equal training, not at equal bound; networks of one depth, where over-mixing is "
    "said to come with depth",
)
def measure_mixing(evidence: Evidence) -> Finding:
    also = require_sink(evidence)
    spread, rank, cosine = (
        by_seed(evidence, MIXED_STATES, name) for name in MIXED_STATES.columns[:3]
    )
    means = [mean_of(wide["vanilla"]) for wide in (spread, rank)]
    less = (spread["sink"] - (1 - TWENTIETH) * spread["vanilla"]).to_numpy()
    more = (rank["sink"] - (1 + TWENTIETH) * rank["vanilla"]).to_numpy()
    apart = (cosine["sink"] - cosine["vanilla"]).to_numpy()
    measured = {
        "spread": Measured(Estimate.mean(less, SEED), TWENTIETH * means[0]),
        "rank": Measured(Estimate.mean(more, SEED), -TWENTIETH * means[1]),
        "cosine": Measured(Estimate.mean(apart, SEED), 0.0),
    }
    also |= {"spread, vanilla": means[0], "rank, vanilla": means[1]}
    also["bound, sink less vanilla"] = mean_of(
        arm_difference(evidence, MIXED_STATES, BOUND, "sink", "vanilla")
    )
    return Finding(measured, also)


register_untested_claim(
    "sink_token/H13",
    "Models with a sink token are more robust to seed, order and number of steps.",
    source=f"{_PAPER}, introduction",
    reported="claimed, not measured",
    unit=SEED,
    defect="the greedy sampler's answers depend on the other rows of the batch",
    lacks="columns of the table of variants with each training run's answers under several "
    "sampling seeds, orders and numbers of steps (the spread of exact match over seeds, its "
    "slope over steps; `answers.*` has one greedy run): one pair of models cannot tell a sink "
    "token from a training seed",
)


@register_claim(
    "sink_token/H14",
    "A sink token costs nearly nothing, computed as here: a constant key and value, no mask.",
    source=f"{_PAPER}, method",
    reported="claimed, not measured; a dense mask costs 1.4 to 1.7 times on a CPU",
    unit=PROMPT,
    needs=(OPERATIONS,),
    criteria=(
        Criterion(
            "operations",
            "multiplications and additions of a forward pass, with the sink token over "
            "without, less 1, at the length of each prompt",
            LESS,
            LEAST_COST,
            "one part in a hundred",
            null="no sink token",
            control="the token in the sequence, as published",
        ),
    ),
    defect="only the arm with the sink token loses flash attention",
    caveat="operations are counted and nothing is timed, since no rerun would repeat it; they "
    "follow from the length alone, so that the interval is over lengths and not over chance, "
    "and the share falls as texts grow, in the published form too; seconds and memory, of "
    "which a dense mask without a fast kernel takes far more, are not in it",
)
def measure_cost(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[OPERATIONS]
    more, published = (
        (table[name] / table["without"] - 1).to_numpy(dtype=float) for name in ("with", "published")
    )
    theirs = float(published.mean())
    lies = "within" if theirs < LEAST_COST else "beyond"
    also: dict[str, float | str] = {"positions": float(table["positions"].mean())}
    also["the published form is"] = f"{lies} the margin"
    return Finding({"operations": Measured(Estimate.mean(more, PROMPT), 0.0, theirs)}, also)


@register_claim(
    "sink_token/H15",
    "Gates hurt where a trained autoregressive model is made into a diffusion model; a sink "
    "token does not.",
    source=f"{_PAPER}, Table 1",
    reported="gates -6.7 points, a sink token +1.5 at 1.5B; gates +2.3 at 0.5B",
    unit=SEED,
    needs=(CONVERTED,),
    criteria=(
        Criterion(
            "gates hurt",
            "bound in nats per token after conversion, gates that begin near one half less "
            "vanilla, paired by seed",
            GREATER,
            LEAST_DIFFERENCE,
            _WHY,
            null="no difference",
        ),
        Criterion(
            "a sink token does not",
            "the same of a sink token",
            LESS,
            LEAST_DIFFERENCE,
            "no worse by more than half a percent of perplexity",
            null="no difference",
        ),
    ),
    draw=draw_differences(CONVERTED),
    defect="code for networks that go on from Qwen2.5 was not released; how gates begin there "
    "is not said",
    caveat="of a table whose arms go on from a next-token network, as the package's do; the "
    "bound is that of the end, the jump at the first update is not in the table",
)
def measure_conversion(evidence: Evidence) -> Finding:
    measured = {
        "gates hurt": seed_mean(
            arm_difference(evidence, CONVERTED, BOUND, "gate-plain", "vanilla")
        ),
        "a sink token does not": seed_mean(
            arm_difference(evidence, CONVERTED, BOUND, "sink", "vanilla")
        ),
    }
    begun = mean_of(arm_difference(evidence, CONVERTED, BOUND, "gate", "vanilla"))
    return Finding(measured, {"gates that begin as 1, less vanilla": begun})


@register_claim(
    "sink_token/H16",
    "The gain of a sink token grows away from the training length.",
    source="ours, after a confound of 2601.19657",
    reported="not in the paper",
    unit=SEED,
    needs=(LENGTHS,),
    criteria=tuple(
        Criterion(
            name,
            f"bound of sink token less vanilla on {says}, less the same at the training "
            "length, by seed",
            LESS,
            -LEAST_DIFFERENCE,
            _WHY,
            null="the same gain at every length",
        )
        for name, says in (
            ("quarter", "texts of a quarter of the training length"),
            ("longest", "texts of all positions there are"),
        )
    ),
    draw=draw_differences(LENGTHS),
    defect="trained at one length and evaluated on shorter texts, so that a sink token may be "
    "a device against that",
)
def measure_off_length(evidence: Evidence) -> Finding:
    gains = {
        name.removeprefix("length."): arm_difference(evidence, LENGTHS, name, "sink", "vanilla")
        for name in LENGTHS.columns
    }
    measured = {
        name: Measured(Estimate.mean(gains[name] - gains["trained"], SEED), 0.0)
        for name in ("quarter", "longest")
    }
    also = {f"sink less vanilla, {name}": mean_of(values) for name, values in gains.items()}
    return Finding(measured, also)


@register_claim(
    "sink_token/H17",
    "The gain of a sink token is where masks are few.",
    source="ours, after 2601.19657",
    reported="not in the paper",
    unit=SEED,
    needs=(FEW_MASKS,),
    criteria=(
        Criterion(
            "few masks",
            "nats per masked token at t < 0.2, sink token less vanilla, paired by seed",
            LESS,
            -LEAST_DIFFERENCE,
            _WHY,
            null="no difference",
        ),
        Criterion(
            "slope",
            "slope over t of the same difference, in nats from no masks to all",
            GREATER,
            LEAST_DIFFERENCE,
            _WHY,
            null="the same gain at every t",
        ),
    ),
    draw=draw_differences(FEW_MASKS),
)
def measure_few_masks(evidence: Evidence) -> Finding:
    gaps = np.stack(
        [arm_difference(evidence, FEW_MASKS, name, "sink", "vanilla") for name in TIME_BINS]
    )
    t = np.array(list(TIME_BINS.values()))
    centred = t - t.mean()
    slope = centred @ gaps / (centred @ centred)
    measured = {
        "few masks": Measured(Estimate.mean(gaps[0], SEED), 0.0),
        "slope": Measured(Estimate.mean(slope, SEED), 0.0),
    }
    shares = {
        f"attention on masks over their share, vanilla, t = {t}": mean_of(
            by_seed(evidence, FEW_MASKS, name)["vanilla"]
        )
        for t, name in MASK_SHARES.items()
    }
    return Finding(measured, {"many masks": mean_of(gaps[-1])} | shares)


@register_claim(
    "sink_token/H18",
    "Sinks matter causally: hiding the sink token costs more than hiding the greatest content "
    "key, and that more than a random one.",
    source=f"{_PAPER}; 2510.15731 finds small effects",
    reported="small for diffusion models without a sink token",
    unit=PROMPT,
    needs=(KNOCK_OUTS, OPENNESS["sink"]),
    criteria=tuple(
        Criterion(
            name,
            f"KL from the unedited distribution in nats per masked position, {hidden} hidden in "
            f"every head less {other} hidden, on the same frames",
            GREATER,
            0.01,
            "a hundredth of a nat is hardly a change of any answer",
            null="no difference",
            control=f"{other} hidden",
        )
        for name, hidden, other in (
            ("token over key", "the sink token", "the greatest key of the canvas"),
            ("key over chance", "the greatest key of the canvas", "another key"),
        )
    ),
    caveat="a model that was trained with its sink token has had no need to learn to do "
    "without; one that hardly looks at it has nothing to lose with it, and how far it does is "
    "told",
)
def measure_knock_outs(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[KNOCK_OUTS]
    kl = {name: table[name].to_numpy(dtype=float) for name in ("sink", "greatest", "random")}
    measured = {
        name: Measured(Estimate.mean(kl[hidden] - kl[other], PROMPT), 0.0, mean_of(kl[other]))
        for name, hidden, other in (
            ("token over key", "sink", "greatest"),
            ("key over chance", "greatest", "random"),
        )
    }
    return Finding(
        measured,
        {"KL without the sink token": mean_of(kl["sink"])} | attention_on_sink_token(evidence),
    )


@register_claim(
    "sink_token/H19",
    "Sink token and gate learn the same: where one is looked at, the other closes.",
    source=f"{_PAPER}, as an identity of the two forms",
    reported="not in the paper",
    unit=PROMPT,
    needs=tuple(OPENNESS.values()),
    criteria=(
        Criterion(
            "correlation",
            "correlation over layers, heads and positions of the attention that does not go to "
            "the sink token with the other model's mean gate, on the same canvases",
            GREATER,
            0.5,
            "two that have less than a quarter of their variance in common are not the same",
            null="unrelated",
            control="positions shuffled within each head",
        ),
    ),
    caveat="of one pair of trained networks: the interval is over prompts, and another "
    "training seed may say otherwise (the table of seeds has no openness by head); head by "
    "head, where those that began alike (the lab's go on from one) may have the same heads "
    "and others need not",
)
def measure_same_as_gate(evidence: Evidence) -> Finding:
    """Pearson's over (layer, head, position), and the part of it that heads alone have."""
    sides = {role: openness_by_unit(evidence[spec]) for role, spec in OPENNESS.items()}
    both = sorted(set(sides["sink"]) & set(sides["gate"]))
    correlations = np.array(
        [openness_correlations(sides["sink"][u], sides["gate"][u]) for u in both]
    )
    measured = Measured(
        Estimate.mean(correlations[:, 0], PROMPT, DIFFERENCE), 0.0, mean_of(correlations[:, 1])
    )
    return Finding(
        {"correlation": measured},
        {"within heads": mean_of(correlations[:, 2])} | attention_on_sink_token(evidence),
    )


@register_claim(
    "sink_token/H20",
    "The sink token affects in-context learning: once it is hidden, answers that a passage "
    "tells are less likely, and lose more than answers that none tells.",
    source=f"{_PAPER}, README",
    reported="announced without direction, numbers not known to us",
    unit=ITEM,
    needs=(IN_CONTEXT, OPENNESS["sink"]),
    criteria=(
        Criterion(
            "told",
            "log-probability per token of the answer after its passage, as the model is less "
            "with the sink token hidden: above 0 if hiding harms",
            GREATER,
            LEAST_LOSS,
            "a tenth of a nat is a tenth of the odds of every token",
            null="no difference",
            control="the same without any passage",
        ),
        Criterion(
            "more than untold",
            "that difference less the same difference without any passage",
            GREATER,
            0.0,
            "what all answers lose alike is not lost to in-context learning",
            null="as much as without a passage",
        ),
    ),
    defect="the experiments that the README announces are in no file",
    caveat="of one model whose sink token is hidden when it answers; of facts that only the "
    "prompt tells, not a slope over examples; an answer at its ceiling can be harmed unseen",
)
def measure_in_context(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[IN_CONTEXT]
    wide = table.pivot(index="unit", columns="context", values=["worn", "hidden"]).sort_index()
    brings = float((wide["worn"]["gold"] - wide["worn"]["closed"]).mean())
    if not brings >= LEAST_GAIN:
        raise EvidenceError(
            f"a masked diffusion model with a sink token to which a passage brings {LEAST_GAIN} "
            f"nats per token of the answer: to this one it brings {brings:.2f}"
        )
    lost = {
        name: (wide["worn"][name] - wide["hidden"][name]).to_numpy(dtype=float)
        for name in ("gold", "closed")
    }
    measured = {
        "told": Measured(Estimate.mean(lost["gold"], ITEM), 0.0, mean_of(lost["closed"])),
        "more than untold": Measured(Estimate.mean(lost["gold"] - lost["closed"], ITEM), 0.0),
    }
    sure = mean_of(wide["worn"]["gold"])
    also: dict[str, float | str] = {"what a passage brings": brings}
    also |= {"log-probability with its passage": sure, **attention_on_sink_token(evidence)}
    if sure > -LEAST_LOSS:
        also["at its ceiling"] = "the answer is all but certain with its passage"
    return Finding(measured, also)
