"""The claims of the sink token paper (arXiv 2601.19657), in its order."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from anchorwatch.metrics.sink_rules import topk
from anchorwatch.studies.claim import (
    CODE,
    GREATER,
    LESS,
    OURS,
    PAPER,
    Change,
    Criterion,
    Finding,
    Measured,
    Paper,
    register_claim,
    register_paper,
)
from anchorwatch.studies.estimate import ITEM, PROMPT, SEED, Estimate, mean_score
from anchorwatch.studies.evidence import Evidence
from anchorwatch.studies.measure import (
    ARM_TEXT,
    DIFFERENCE,
    DIFFERENCE_OF_DIFFERENCES,
    MDM_TEXT,
    NORM_RUNS,
    SHARE,
    by_item,
    by_prompt,
    by_seed,
    by_trace,
    mean_of,
    medians_over_layers,
    pooled_norm_ratio,
)
from anchorwatch.studies.papers.sink_token.measures import (
    ALIKE_SHARE,
    ANSWERS_CAN_CHANGE,
    BOUND,
    BY_POSITION,
    CONSTANTS,
    CONTENTS,
    CONVERTED,
    CROPPED,
    DRAINED_VALUES,
    END_POSITION,
    ENOUGH_SEEDS,
    FEW_MASKS,
    FEW_STEPS,
    GATES,
    IMPROVED,
    IN_CONTEXT,
    INCIDENCE,
    KNOCK_OUTS,
    LARGER,
    LATER,
    LAYERED,
    LEAST_COST,
    LEAST_DIFFERENCE,
    LEAST_LOSS,
    LENGTHS,
    MANY_STEPS,
    MASK_SHARES,
    MIXING,
    OPENNESS,
    OPERATIONS,
    PAPER_LENGTH,
    PASSAGES_ARE_READ,
    PLAIN_RUNS_HAVE_SINKS,
    PREFERENCE,
    REGISTERS,
    REPLACED_SINKS,
    SINK_ATTENTION,
    SINKS_ARE_SMALL,
    SWITCHES,
    TIME_BINS,
    TOKEN_COUNTS,
    TOKEN_IS_USED,
    TRAINED_TOKEN_IS_USED,
    TWENTIETH,
    answer_logprobs,
    arm_difference,
    attention_on_sink_token,
    attention_ratios,
    compare_with_sink,
    draw_differences,
    draw_sink_paths,
    draw_value_norms,
    fall_of,
    gain_by_position,
    gain_per_row,
    mass_by_layer,
    openness_by_unit,
    openness_correlations,
    plain_fall,
    row_lengths,
    seed_mean,
    shares_of_gain,
)
from anchorwatch.studies.papers.sinks.measures import is_trained
from anchorwatch.studies.preconditions import (
    SINK_TOKEN_TIMES_EVEN,
    has_sinks,
    leaves_room_to_fall,
    loses_something,
    writes_text,
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
_BEFORE = {
    "H5": "supported, -.044 [-.067, -.021]",
    "H6": "supported, -.048 [-.079, -.016]",
    "H7": "undecided, .045 [.002, .087] (end not worse)",
    "H8": "undecided, -.009 [-.036, .018] (four gain no more)",
    "H9": "undecided, -.005 [-.028, .018] (empty not worse)",
    "H10": "undecided, -.001 [-.026, .024]",
}
"""What the tests said before, of the package's table (six training seeds)."""


def _now_used(number: str) -> Change:
    return Change(
        "the token must get four times an even share",
        "the sentence is about a token that works as a sink; what one does that is hardly looked "
        "at, such as to mark where a row begins, speaks neither for it nor against it",
        "judged of any token, and how far it is looked at (1.36 times here) was told: "
        + _BEFORE[number],
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
    source=f"{_PAPER}, abstract, section 3.2 and Fig. 1",
    reported="norm ratio .31 (LLaDA), .40 (Dream); AUC 1.000",
    origin=PAPER,
    unit=PROMPT,
    needs=(NORM_RUNS,),
    preconditions=(is_trained(), has_sinks(NORM_RUNS)),
    criteria=(
        Criterion(
            "mean over heads",
            "norm of sinks over that of the other keys, of one number for each token, the mean "
            "over heads of its norms (Eq. 16); sinks are those of the attention's mean over "
            "heads; median over layers",
            LESS,
            0.8,
            "a fifth smaller; the paper's are smaller by 60 to 69 %",
            null="as large as the others'",
            published={"LLaDA": 0.31, "Dream": 0.40},
        ),
        Criterion(
            "head by head",
            "norm of the values of sinks over those of the other keys of their head and step, "
            "median over layers",
            LESS,
            0.8,
            "a fifth smaller, as above",
            null="as large as the others'",
            decides=False,
        ),
    ),
    draw=draw_value_norms,
    changes=(
        Change(
            "a model must have sinks in most heads, or the claim is not testable on it; the mean "
            "over heads of Eq. 16 is measured beside",
            "the sentence is about sinks: norms of keys that are none say nothing about it",
            "judged on any model; refuted on lab/toy-mdm, which has a sink in few heads",
        ),
        Change(
            "Asked of trained networks.",
            "that sinks have small values is learnt: random weights say nothing about it",
            "asked of any network with sinks: refuted on untrained ones, whose chance sinks are "
            "keys like any other",
        ),
        Change(
            "Means over heads decide (Eq. 16); norms head by head are also measured.",
            "appendix A.3.2 says that the norm of a token is the mean of its norms over heads, and "
            "the published numbers are of it. Values on lab/tales-mdm and SmolLM2-135M were known",
            "norms head by head decided: refuted on lab/tales-mdm (1.18), where means over heads "
            "are .55; supported on lab/smol-mdm (.40), where they are .23",
        ),
    ),
    defect="the caption says 10K tokens of each kind, the figure has 3,840; one unnamed layer",
    caveat="sinks are chosen by attention, and training may drain what is looked at: that they "
    "go together does not say which makes which",
)
def measure_low_norms(evidence: Evidence) -> Finding:
    """The median over layers for each prompt: one layer with large vectors does not decide."""
    single = by_prompt(evidence, NORM_RUNS, "value_norms", "ratio", over="layer")
    auroc = by_prompt(evidence, NORM_RUNS, "value_norms", "auroc", over="layer")
    greatest = by_prompt(
        evidence, NORM_RUNS, "value_norms", "ratio", over="layer", options={"rule": topk(1)}
    )
    also = {
        "AUROC of the smaller norm": mean_of(medians_over_layers(auroc.value)),
        "ratio of the greatest key, sink or not": mean_of(medians_over_layers(greatest.value)),
    }
    measured = {
        "mean over heads": by_trace(evidence[NORM_RUNS], pooled_norm_ratio),
        "head by head": medians_over_layers(single.value),
    }
    return Finding(
        {name: Measured(Estimate.mean(each, PROMPT), 1.0) for name, each in measured.items()}, also
    )


@register_claim(
    "sink_token/H2",
    "Those sinks move over denoising.",
    source=f"{_PAPER}, abstract and section 3.2 (the sink shifts across tokens), Fig. 1",
    reported="shown for steps 0 and 64 only",
    origin=PAPER,
    unit=PROMPT,
    needs=(MDM_TEXT, ARM_TEXT),
    preconditions=(is_trained(), has_sinks(MDM_TEXT), writes_text(MDM_TEXT)),
    criteria=(
        Criterion(
            "switch",
            "share of neighbouring steps, both with a sink, at which a head's greatest sink is "
            "another",
            GREATER,
            0.05,
            "one step in twenty",
            null="a sink that stays",
            control="an ARM, whose rows are what they are once they are written",
            decides=False,
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
    changes=(
        Change(
            "the rate of moves a step is measured beside and decides no more; a model must have "
            "sinks, and write text",
            "the sentence says that sinks are elsewhere at other steps, not how often they move: a "
            "sink that moves once in 32 steps has moved, and its rate is 3 %",
            "a rate above 5 % a step was asked for too: refuted by it alone (.038), where the "
            "commonest place (.835, below .95) held",
        ),
        Change(
            "runs that continue running text are watched",
            "the sentence is about text that is written; nine tenths of what answers to questions "
            "fill are end tokens",
            "runs that answer questions",
        ),
    ),
    defect="two steps of one run, one unnamed head",
    caveat="of the MDM alone: an ARM is told beside it and decides nothing, since its sinks "
    "can hardly move, whatever it learned (old rows never change, and all of them see the "
    "first key)",
)
def measure_sink_moves(evidence: Evidence) -> Finding:
    rates = [by_prompt(evidence, spec, "jumps", "jump_rate") for spec in (MDM_TEXT, ARM_TEXT)]
    stays = [by_prompt(evidence, spec, "spread", "modal_share") for spec in (MDM_TEXT, ARM_TEXT)]
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
    "A sink token takes their place: content tokens become sinks less often, and the greatest key "
    "stays where it is.",
    source=f"{_PAPER}, abstract and section 3.2: a stable target absorbs what content tokens took",
    reported="claimed",
    origin=PAPER,
    unit=SEED,
    needs=(REPLACED_SINKS,),
    preconditions=(PLAIN_RUNS_HAVE_SINKS, TRAINED_TOKEN_IS_USED),
    criteria=(
        Criterion(
            "content sinks",
            "share of heads and steps in which a token receives 3 more than the others' mean, as a "
            "column sum, with a sink token less half of vanilla's, paired by seed",
            LESS,
            0.0,
            _HALF,
            null="a sink token changes nothing",
        ),
        Criterion(
            "greatest key",
            "share of neighbouring steps at which the greatest of all keys, the sink token among "
            "them, is another, with a sink token less half of vanilla's, paired by seed",
            LESS,
            0.0,
            _HALF,
            null="a sink token changes nothing",
        ),
        Criterion(
            "masks",
            "distance from 1 of the attention on masks over their share, among what visible "
            "queries give to other tokens, t = 0.05, with a sink token less half of vanilla's, "
            "paired by seed",
            LESS,
            0.0,
            _HALF,
            null="a sink token changes nothing",
            decides=False,
        ),
    ),
    draw=draw_differences(REPLACED_SINKS),
    caveat="half of few sinks is a small number, and how many vanilla has is told",
    changes=(
        Change(
            "content sinks are counted by the rule of sums (3 above the others' mean) and not by "
            "10 times the mean of what tokens receive",
            "a sink is a token that takes much attention; a threshold in times of what tokens "
            "receive falls with it, so that a token is called a sink the more easily the less "
            "tokens get: a sink token that takes all attention could not pass",
            "10 times the mean share of tokens, which the text called an even share",
        ),
        Change(
            "attention on masks is renormalised to what goes to tokens, and decides no more",
            "no sentence says that masks get an even share; not renormalised, what a working sink "
            "token takes moves it away from one",
            "distance of the mask's share of all attention from its share of keys; with the other "
            "two it refuted, as it would have for a sink token that works",
        ),
        Change(
            "plain training must have sinks, and the token must get four times an even share",
            "what is not there cannot be replaced, and what nobody looks at replaces nothing",
            "more than an even share was enough (1.36 times here)",
        ),
    ),
)
def measure_replacement(evidence: Evidence) -> Finding:
    """Each as the sink arm's less half of vanilla's."""
    names = {"content sinks": INCIDENCE, "greatest key": SWITCHES, "masks": PREFERENCE}
    measured: dict[str, Measured] = {}
    also: dict[str, float | str] = {}
    for name, column in names.items():
        wide = by_seed(evidence, REPLACED_SINKS, column)
        also |= {f"{name}, {arm}": mean_of(wide[arm]) for arm in REPLACED_SINKS.arms}
        wide = (wide - 1).abs() if name == "masks" else wide
        left = (wide["sink"] - wide["vanilla"] / 2).to_numpy()
        measured[name] = Measured(Estimate.mean(left, SEED), mean_of(wide["vanilla"]) / 2)
    strong = by_seed(evidence, REPLACED_SINKS, "text.incidence.gu")
    also |= {f"a token above 0.3, {arm}": mean_of(strong[arm]) for arm in REPLACED_SINKS.arms}
    return Finding(measured, also | attention_ratios(evidence, SINK_ATTENTION))


@register_claim(
    "sink_token/H4",
    "The learned sink token is drained: its values have small norms.",
    source=f"{_PAPER}, sections 3.2 and 4.4: a low-norm target",
    reported="negligible, numbers not known to us",
    origin=PAPER,
    unit=SEED,
    needs=(DRAINED_VALUES,),
    preconditions=(TRAINED_TOKEN_IS_USED,),
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
    changes=(
        Change(
            "the token must get four times an even share",
            "values are said to be small of a token that is a sink",
            "more than an even share was enough (1.36 times here); refuted",
        ),
    ),
    caveat="norms before the output projection; its share of what attention brings is not in "
    "the table",
)
def measure_drain(evidence: Evidence) -> Finding:
    """Logarithms of ratios: no interval of theirs reaches below a norm of 0."""
    also = attention_ratios(evidence, SINK_ATTENTION)
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
    source=f"{_PAPER}, section 4.2, Tables 1 and 2",
    reported="+5.14 / +1.53 / +5.50 points of mean accuracy",
    origin=PAPER,
    unit=SEED,
    needs=(IMPROVED,),
    preconditions=(TRAINED_TOKEN_IS_USED,),
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
    changes=(_now_used("H5"),),
    defect=_NAMES + "; arms share no noise, and each is one run",
    caveat="small networks and few tokens; the paper's are of 0.5B and 1.5B parameters, and its "
    "measure is accuracy, of which a bound is a proxy; on our table about two thirds of the gain "
    "lie at the first four positions of a row, where the token says where the row begins "
    "(sink_token/H22 and docs/sink-token.md)",
    contradiction="improvements are called consistent, and of single tasks some fall: SIQA by 2.5 "
    "points at 0.5B, RACE and LAMBADA by 0.2 at 1.5B, ARC-c by 2.7 from scratch; the means rise",
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
    reported="+2.8 / +8.2 / +2.2 points over gates",
    origin=PAPER,
    unit=SEED,
    needs=(GATES,),
    preconditions=(TRAINED_TOKEN_IS_USED,),
    criteria=tuple(
        Criterion(
            arm,
            f"bound in nats per token, sink token less {says}, paired by seed",
            LESS,
            LEAST_DIFFERENCE,
            f"no worse by more than {_WHY.partition(';')[0]}",
            null="no difference",
            decides=arm == "gate-plain",
        )
        for arm, says in (
            ("gate-plain", "gates of channels that begin near one half, the paper's"),
            ("gate", "gates of channels that begin as 1"),
            ("gate-headwise", "gates of heads that begin as 1"),
        )
    ),
    draw=draw_differences(GATES),
    changes=(
        _now_used("H6"),
        Change(
            "judged on the paper's own gate, elementwise and begun near one half; gates that begin "
            "as the identity, and gates of heads, are measured beside",
            "the sentence and its tables are about that gate (appendix A.2)",
            "all three gates had to be no better: undecided by the gates of heads, where the "
            "paper's own gave -.048 [-.076, -.019]",
        ),
    ),
    defect=_NAMES,
    caveat="at least as good, not better: the paper's gates begin near one half, which damages "
    "a pretrained network, and it has no others",
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
    source=f"{_PAPER}, abstract and section 4.3.1, Table 3",
    reported="mean of five tasks 46.76 (front), 46.58 (end)",
    origin=PAPER,
    unit=SEED,
    needs=(END_POSITION,),
    preconditions=(TRAINED_TOKEN_IS_USED,),
    criteria=_both_sides("end", "sink-end"),
    draw=draw_differences(END_POSITION),
    changes=(_now_used("H7"),),
    defect="code for the other place was not released",
    caveat="a token in the middle is in no table; one without a rotary position is in that by "
    "position (docs/variants.md)",
)
def measure_position(evidence: Evidence) -> Finding:
    return compare_with_sink(evidence, END_POSITION, "sink-end", "end")


@register_claim(
    "sink_token/H8",
    "One sink token is enough: it gains, and two or four gain hardly more.",
    source=f"{_PAPER}, section 4.3.2, Table 4",
    reported="mean of five tasks 38.72 / 46.76 / 46.53 / 46.20 for 0 / 1 / 2 / 4",
    origin=PAPER,
    unit=SEED,
    needs=(TOKEN_COUNTS,),
    preconditions=(TRAINED_TOKEN_IS_USED,),
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
    changes=(_now_used("H8"),),
    defect="code for more than one was not released; whether several see each other is not "
    "said (ours see only themselves)",
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
    source=f"{_PAPER}, abstract and section 4.4, Table 5",
    reported="46.76 against 46.88",
    origin=PAPER,
    unit=SEED,
    needs=(CONTENTS,),
    preconditions=(TRAINED_TOKEN_IS_USED,),
    criteria=_both_sides("empty", "sink-zero"),
    draw=draw_differences(CONTENTS),
    changes=(_now_used("H9"),),
    defect="code for the empty value was not released; whether it is empty in training or only "
    "afterwards is not said (ours is in both)",
    caveat="relatives without a token (off by one, a logit of each head) are told and decide "
    "nothing; a frozen token, or a value emptied after training, is in no table",
)
def measure_content(evidence: Evidence) -> Finding:
    return compare_with_sink(evidence, CONTENTS, "sink-zero", "empty")


@register_claim(
    "sink_token/H10",
    "That the sink token sees only itself matters: a register that sees all does less.",
    source="ours, about Eq. 6 of 2601.19657",
    origin=OURS,
    reported="not in the paper",
    unit=SEED,
    needs=(REGISTERS,),
    preconditions=(TRAINED_TOKEN_IS_USED,),
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
    changes=(_now_used("H10"),),
    defect="neither the paper nor its code has the arm without the mask",
    caveat="what a register's state tells of the text is not measured; a sink token's tells "
    "nothing, as sink_token/H11 says",
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
    source=f"{_PAPER}, section 3.2, Eq. 5 and 6: the token takes up nothing of the sequence",
    reported="exact",
    origin=PAPER,
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
    "Sinks of an ordinary masked diffusion model keep states from mixing too much: without them, "
    "one token reaches further into the others.",
    source=f"{_PAPER}, abstract: moving sinks protect from excessive mixing",
    reported="claimed, not measured",
    origin=PAPER,
    unit=PROMPT,
    needs=(MIXING,),
    preconditions=(has_sinks(NORM_RUNS), SINKS_ARE_SMALL),
    criteria=(
        Criterion(
            "spread",
            "logarithm of the mean relative change of all other states when one token is another, "
            "with sinks hidden in every head over the model as it is",
            GREATER,
            TWENTIETH,
            "a twentieth more: they are said to prevent, not to shift",
            null="hiding sinks changes nothing",
            control="as many other keys hidden",
        ),
        Criterion(
            "over other keys",
            "the same over as many other keys hidden",
            GREATER,
            TWENTIETH,
            "a twentieth more",
            null="sinks are like other keys",
            decides=False,
        ),
        Criterion(
            "rank",
            "logarithm of the effective rank of states over positions, with sinks hidden over the "
            "model as it is",
            LESS,
            -TWENTIETH,
            "a twentieth less: states that mix become alike",
            null="hiding sinks changes nothing",
            decides=False,
        ),
        Criterion(
            "cosine",
            "mean cosine of the states of two positions, with sinks hidden less the model as it is",
            GREATER,
            0.01,
            "a hundredth of the scale",
            null="hiding sinks changes nothing",
            decides=False,
        ),
    ),
    caveat="one pass at one share of masks for each prompt; hiding a key gives its attention to "
    "the others, which alone makes them reach further: that small values are what protects is a "
    "precondition, and not shown here",
    changes=(
        Change(
            "a plain model is compared with itself without its sinks",
            "the sentence is about moving sinks of plain models; it does not say that a sink token "
            "mixes less than they do",
            "spread, rank and cosine of models with a sink token against those of plain models, "
            "over training seeds; refuted",
        ),
    ),
)
def measure_mixing(evidence: Evidence) -> Finding:
    """Logarithms, so that a factor is the same for prompts whose states mix much or little."""
    table: pd.DataFrame = evidence[MIXING]
    wide = table.pivot(index="unit", columns="edit", values=["spread", "rank", "cosine", "sinks"])
    spread, rank = (np.log(wide[name].sort_index()) for name in ("spread", "rank"))
    cosine = wide["cosine"].sort_index()
    by_chance = mean_of(spread["random"] - spread["none"])
    rise = {
        "spread": spread["sinks"] - spread["none"],
        "over other keys": spread["sinks"] - spread["random"],
        "rank": rank["sinks"] - rank["none"],
        "cosine": cosine["sinks"] - cosine["none"],
    }
    measured = {
        name: Measured(
            Estimate.mean(values.to_numpy(dtype=float), PROMPT),
            0.0,
            by_chance if name == "spread" else math.nan,
        )
        for name, values in rise.items()
    }
    return Finding(measured, {"sinks hidden in a head": mean_of(wide["sinks"]["none"])})


@register_claim(
    "sink_token/H13",
    "Inference of a model with a sink token is more robust: it loses less when steps are few.",
    source=f"{_PAPER}, abstract and section 3.2: moving sinks undermine robustness of inference",
    reported="claimed, not measured",
    origin=PAPER,
    unit=ITEM,
    needs=(MANY_STEPS, FEW_STEPS),
    preconditions=(
        *(leaves_room_to_fall(MANY_STEPS, role, minimum=0.5) for role in ("mdm", "sink")),
        loses_something(
            "one step instead of many", (MANY_STEPS, FEW_STEPS), plain_fall, role="mdm"
        ),
    ),
    criteria=(
        Criterion(
            "fall",
            "right answers that are lost between many steps and one: plain model less the model "
            "with a sink token, on the same questions",
            GREATER,
            0.01,
            "a hundredth of the questions",
            null="both lose alike",
            control="what the plain model loses",
        ),
    ),
    defect="the greedy sampler's answers depend on the other rows of the batch",
    caveat="of one pair of networks: a training seed may do as much, and the interval is over "
    "questions; number of steps only, since greedy answers have no sampling seed",
    changes=(
        Change(
            "measured, for two models and over the number of steps",
            "the abstract says that robustness of inference suffers across diffusion steps",
            "lacking",
        ),
    ),
)
def measure_robustness(evidence: Evidence) -> Finding:
    falls = {role: fall_of(evidence, role) for role in ("mdm", "sink")}
    gap = mean_score(falls["mdm"] - falls["sink"], ITEM, DIFFERENCE_OF_DIFFERENCES)
    also = {
        f"{role}, {steps} steps": mean_of(by_item(evidence, spec, [(role, "gold", "none")]))
        for role in falls
        for steps, spec in (("many", MANY_STEPS), ("one", FEW_STEPS))
    }
    return Finding({"fall": Measured(gap, 0.0, mean_of(falls["mdm"]))}, also)


@register_claim(
    "sink_token/H14",
    "A sink token costs nearly nothing.",
    source=f"{_PAPER}, section 3.2: one more token and a standard mask",
    reported="claimed, not measured; a dense mask costs 1.4 to 1.7 times on a CPU",
    origin=PAPER,
    unit=PROMPT,
    needs=(OPERATIONS,),
    criteria=(
        Criterion(
            "published form",
            "multiplications and additions of a forward pass, with the token in the sequence over "
            "without, less 1, times the length of the prompt over 2,048, the length of the "
            "paper's rows",
            LESS,
            LEAST_COST,
            "one part in a hundred",
            null="no sink token",
        ),
        Criterion(
            "constant key and value",
            "the same of the token as computed here, at the length of each prompt",
            LESS,
            LEAST_COST,
            "one part in a hundred",
            null="no sink token",
            control="the published form at that length",
            decides=False,
        ),
    ),
    defect="only the arm with the sink token loses flash attention",
    caveat="operations are counted and nothing is timed, since no rerun would repeat it; they "
    "follow from the length alone, so that the interval is over lengths and not over chance; "
    "seconds and memory, of which a dense mask without a fast kernel takes far more, are not in it",
    changes=(
        Change(
            "the published form at the paper's length decides; the constant key and value is "
            "measured beside",
            "the sentence is about the token in the sequence of the paper's trainings (2,048)",
            "the form computed here, at the length of our prompts (81), where the published form "
            "costs 1.4 %: supported",
        ),
    ),
)
def measure_cost(evidence: Evidence) -> Finding:
    """One token of T costs a share that falls as 1 / T: it is taken to the paper's length."""
    table: pd.DataFrame = evidence[OPERATIONS]
    more, published = (
        (table[name] / table["without"] - 1).to_numpy(dtype=float) for name in ("with", "published")
    )
    at_length = published * table["positions"].to_numpy(dtype=float) / PAPER_LENGTH
    measured = {
        "published form": Measured(Estimate.mean(at_length, PROMPT), 0.0),
        "constant key and value": Measured(
            Estimate.mean(more, PROMPT), 0.0, float(published.mean())
        ),
    }
    return Finding(measured, {"positions of a prompt": float(table["positions"].mean())})


@register_claim(
    "sink_token/H15",
    "Where a trained autoregressive model is made into a diffusion model, gates help a smaller "
    "network and hurt a larger one; a sink token helps the larger one too.",
    source=f"{_PAPER}, section 4.2, Table 1",
    reported="gates +2.3 points at 0.5B and -6.7 at 1.5B, a sink token +5.1 and +1.5",
    origin=PAPER,
    unit=SEED,
    needs=(CONVERTED,),
    criteria=(
        Criterion(
            "gates help the smaller",
            "bound in nats per token after conversion, gates that begin near one half less "
            "vanilla, paired by seed",
            LESS,
            -LEAST_DIFFERENCE,
            _WHY,
            null="no difference",
        ),
        Criterion(
            "gates hurt the larger",
            "the same of the larger network",
            GREATER,
            LEAST_DIFFERENCE,
            _WHY,
            null="no difference",
        ),
        Criterion(
            "a sink token helps the larger",
            "bound in nats per token, sink token less vanilla of the larger network",
            LESS,
            -LEAST_DIFFERENCE,
            _WHY,
            null="no difference",
        ),
    ),
    draw=draw_differences(CONVERTED),
    defect="code for networks that go on from Qwen2.5 was not released; how gates begin there "
    "is not said",
    caveat="needs a table of two sizes, whose larger arms end in -large; the package's has one; "
    "the bound is that of the end, the jump at the first update is not in the table",
    changes=(
        Change(
            "two sizes are compared, as in Table 1",
            "the paper says that gates help at 0.5B and hurt at 1.5B",
            "that gates hurt was asked for at any size: undecided (.0035 [-.032, .039])",
        ),
    ),
)
def measure_conversion(evidence: Evidence) -> Finding:
    def less_vanilla(arm: str, size: str = "") -> np.ndarray:
        return arm_difference(evidence, CONVERTED, BOUND, f"{arm}{size}", f"vanilla{size}")

    measured = {
        "gates help the smaller": seed_mean(less_vanilla("gate-plain")),
        "gates hurt the larger": seed_mean(less_vanilla("gate-plain", LARGER)),
        "a sink token helps the larger": seed_mean(less_vanilla("sink", LARGER)),
    }
    return Finding(measured, {"sink token, smaller": mean_of(less_vanilla("sink"))})


@register_claim(
    "sink_token/H16",
    "The gain of a sink token grows away from the training length.",
    source="ours, after a confound of 2601.19657",
    reported="not in the paper",
    origin=OURS,
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
    caveat="a gain at the first positions is a constant for each row, and so more for each token "
    "of a shorter one (sink_token/H22)",
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
    origin=OURS,
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
    source="ours, after 2601.19657; 2510.15731 finds small effects",
    origin=OURS,
    reported="small for diffusion models without a sink token",
    unit=PROMPT,
    preconditions=(TOKEN_IS_USED,),
    changes=(
        Change(
            "the token must get four times an even share",
            "what nobody looks at has nothing to lose, and closes nothing",
            "judged of any token, how far it is looked at was told; refuted",
        ),
    ),
    needs=(KNOCK_OUTS,),
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
    source="ours, from an identity of the two forms",
    origin=OURS,
    reported="not in the paper",
    unit=PROMPT,
    preconditions=(TOKEN_IS_USED,),
    changes=(
        Change(
            "the token must get four times an even share",
            "what nobody looks at has nothing to lose, and closes nothing",
            "judged of any token, how far it is looked at was told; refuted",
        ),
    ),
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
    "The sink token affects in-context learning: once it is hidden, answers that a passage tells "
    "are more or less likely.",
    source="the README of the published code: it does affect in-context learning",
    reported="announced without direction, numbers not known to us",
    origin=CODE,
    unit=ITEM,
    needs=(IN_CONTEXT,),
    preconditions=(TOKEN_IS_USED, PASSAGES_ARE_READ, ANSWERS_CAN_CHANGE),
    criteria=(
        Criterion(
            "told",
            "change of the log-probability per token of the answer after its passage when the sink "
            "token is hidden, without its sign",
            GREATER,
            LEAST_LOSS,
            "a tenth of a nat is a tenth of the odds of every token",
            control="the same without any passage",
        ),
        Criterion(
            "harm",
            "the same with its sign: as the model is less with the sink token hidden, above 0 if "
            "hiding harms",
            GREATER,
            LEAST_LOSS,
            "a tenth of a nat is a tenth of the odds of every token",
            null="no difference",
            decides=False,
        ),
        Criterion(
            "more than untold",
            "that harm less the same without any passage",
            GREATER,
            0.0,
            "what all answers lose alike is not lost to in-context learning",
            null="as much as without a passage",
            decides=False,
        ),
    ),
    defect="the experiments that the README announces are in no file",
    caveat="of one model whose sink token is hidden when it answers; of facts that only the "
    "prompt tells, not a slope over examples",
    changes=(
        Change(
            "no direction is asked for; harm, and more harm than without a passage, are measured "
            "beside",
            "the README says that in-context learning is affected, and not which way",
            "hiding had to make answers less likely, and more so than without a passage; refuted",
        ),
        Change(
            "answers must have room: at most -0.3 nats per token with their passage",
            "an answer that is all but certain can be harmed unseen",
            "the ceiling was told (-.023 nats) and refuted all the same",
        ),
    ),
)
def measure_in_context(evidence: Evidence) -> Finding:
    worn, hidden = answer_logprobs(evidence)
    lost = {name: (worn[name] - hidden[name]).to_numpy(dtype=float) for name in worn}
    changed = {name: np.abs(values) for name, values in lost.items()}
    harm = lost["gold"] - lost["closed"]
    measured = {
        "told": Measured(Estimate.mean(changed["gold"], ITEM), control=mean_of(changed["closed"])),
        "harm": Measured(Estimate.mean(lost["gold"], ITEM), 0.0),
        "more than untold": Measured(Estimate.mean(harm, ITEM), 0.0),
    }
    also = {"what a passage brings": mean_of(worn["gold"] - worn["closed"])}
    also |= {"log-probability with its passage": mean_of(worn["gold"])}
    return Finding(measured, also | attention_on_sink_token(evidence))


@register_claim(
    "sink_token/H21",
    "The sink token takes the excess attention, layer after layer.",
    source=f"{_PAPER}, section 4.4: attention mass on the sink token across layers",
    reported="measured there over 100K steps; the numbers are in no text that we have, and "
    "summaries say that middle layers give most",
    origin=PAPER,
    unit=SEED,
    needs=(LAYERED,),
    preconditions=(PLAIN_RUNS_HAVE_SINKS,),
    criteria=(
        Criterion(
            "median layer",
            "attention on the sink token over an even share, median over layers, mean over shares "
            "of masks, by seed",
            GREATER,
            SINK_TOKEN_TIMES_EVEN,
            "four times an even share is what the rule of sums asks of a sink (3 above the "
            "others' mean)",
            null="an even share",
        ),
        Criterion(
            "middle layers",
            "attention on the sink token over an even share, mean of the middle layers less mean "
            "of the first and last thirds",
            GREATER,
            0.0,
            "more in the middle",
            null="alike in all layers",
            decides=False,
        ),
    ),
    caveat="on held-out text with masks, where the paper samples steps of GSM8K after fine-tuning",
    changes=(
        Change(
            "added",
            "section 4.4 measures the mass on the sink token across layers, and no claim did",
            "in no claim",
        ),
    ),
)
def measure_layer_mass(evidence: Evidence) -> Finding:
    mass = mass_by_layer(evidence)  # [seed, layer], over an even share
    third = -(-mass.shape[1] // 3)
    outer = np.concatenate([mass[:, :third], mass[:, -third:]], axis=1)
    middle = mass[:, third:-third]
    more = middle.mean(axis=1) - outer.mean(axis=1) if middle.size else np.full(len(mass), np.nan)
    measured = {
        "median layer": Measured(Estimate.mean(np.median(mass, axis=1), SEED), 1.0),
        "middle layers": Measured(Estimate.mean(more, SEED), 0.0),
    }
    means = {f"layer {layer}": float(mass[:, layer].mean()) for layer in range(mass.shape[1])}
    return Finding(measured, means)


@register_claim(
    "sink_token/H22",
    "Most of the gain of a sink token lies where a row begins.",
    source="ours, about Tables 1 and 2 of 2601.19657",
    reported="not in the paper",
    origin=OURS,
    unit=SEED,
    needs=(LENGTHS,),
    criteria=(
        Criterion(
            "first quarter",
            "gain in nats per row on texts cut to a quarter of the training length, less half of "
            "the gain per row at the training length, by seed",
            GREATER,
            0.0,
            "more than half is most",
            null="the same gain for every token",
        ),
        Criterion(
            "beyond training",
            "gain in nats per row on texts of all positions there are, less twice the gain per row "
            "at the training length, by seed",
            LESS,
            0.0,
            "a gain for every token would be 2.7 times as much on rows 2.7 times as long",
            null="the same gain for every token",
            decides=False,
        ),
    ),
    draw=draw_differences(LENGTHS),
    caveat="rows of 96 tokens that begin with one and the same token; of rows of 2,048 the first "
    "are a far smaller part",
)
def measure_gain_positions(evidence: Evidence) -> Finding:
    """A gain that is the same for every row is one of its beginning; that for every token grows."""
    rows = gain_per_row(evidence)
    quarter, trained, longest = (rows[name] for name in ("quarter", "trained", "longest"))
    lengths = row_lengths(evidence)
    scale = {name: lengths[name] / lengths["trained"] for name in lengths}
    evenly = mean_of(trained) * np.array([scale["quarter"] - 0.5, scale["longest"] - 2])
    measured = {
        "first quarter": Measured(Estimate.mean(quarter - trained / 2, SEED), float(evenly[0])),
        "beyond training": Measured(Estimate.mean(longest - 2 * trained, SEED), float(evenly[1])),
    }
    also = {f"gain per row, {lengths[n]:.0f} tokens": mean_of(v) for n, v in rows.items()}
    return Finding(measured, also)


@register_claim(
    "sink_token/H23",
    "A sink token gains beyond the first positions of a row, and where rows begin with no constant "
    "token, too.",
    source="ours, about Tables 1 and 2 of 2601.19657",
    reported="not in the paper",
    origin=OURS,
    unit=SEED,
    needs=(BY_POSITION, CROPPED),
    preconditions=(ENOUGH_SEEDS,),
    criteria=(
        Criterion(
            "later",
            "bound in nats per token of the positions from 16 on, sink token less vanilla, paired "
            "by seed",
            LESS,
            -LEAST_DIFFERENCE,
            _WHY,
            null="no difference",
        ),
        Criterion(
            "cropped",
            "bound in nats per token, sink token less vanilla, paired by seed, where rows lose 1 "
            "to 16 of their first tokens in training and in what is measured",
            LESS,
            -LEAST_DIFFERENCE,
            _WHY,
            null="no difference",
        ),
    ),
    caveat="small networks that go on from one whose rows began with the start token",
)
def measure_later_gain(evidence: Evidence) -> Finding:
    whole, cropped = (gain_by_position(evidence, spec) for spec in (BY_POSITION, CROPPED))
    measured = {
        "later": seed_mean(-whole[LATER].to_numpy()),
        "cropped": seed_mean(-cropped[BOUND].to_numpy()),
    }
    return Finding(measured, shares_of_gain(whole))
