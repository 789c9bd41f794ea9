"""The claims of the attention sinks paper (arXiv 2510.15731) and its neighbours, in its order.

H1 to H25 were numbered first; H26 on are sentences of the paper that were in no claim. What decides
is what a sentence says; what else is measured stands beside it. Sentences about one model carry its
family as their scope.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.errors import EvidenceError
from anchorwatch.metrics.geometry import split_cells
from anchorwatch.metrics.sink_rules import rulli
from anchorwatch.metrics.table import Quantity, layer_quantities
from anchorwatch.studies.claim import (
    GREATER,
    LESS,
    NEIGHBOUR,
    OURS,
    PAPER,
    Change,
    Criterion,
    Finding,
    Measured,
    Paper,
    register_claim,
    register_paper,
    register_untested_claim,
)
from anchorwatch.studies.estimate import ITEM, PROMPT, Correlation, Estimate, Least
from anchorwatch.studies.evidence import ROLES, Evidence, TraceSet
from anchorwatch.studies.measure import (
    ARM_TEXT,
    DIFFERENCE,
    DIFFERENCE_OF_DIFFERENCES,
    FIRST_HALF,
    LAST_HALF,
    MDM_RUNS,
    MDM_TEXT,
    NORM_RUNS,
    SHARE,
    by_cell,
    by_effect,
    by_item,
    by_prompt,
    by_sums,
    by_trace,
    first_half_mean,
    last_half_mean,
    mean_of,
    pool_layers,
    pooled_norm_ratio,
    require_accuracy,
    sink_moves,
)
from anchorwatch.studies.papers.sinks.measures import (
    ADDED_MASKS,
    ALIKE_COSINE,
    ARM_HIDDEN,
    DELAYS,
    DISCARDED,
    DOSES,
    DRIFT_RUNS,
    FOUND_IN_EDITED,
    FREE_RUNS,
    HEAD_MAPS,
    HIDDEN_MATCHED,
    HIDDEN_SINKS,
    LEAST_ACCURACY,
    LEAST_MASKS,
    LONG_STAY,
    MANY_STEPS,
    MDM_HIDDEN,
    NAMED_CLASSES,
    ONE_STEP,
    OTHER_RULES,
    PAPER_RULE,
    RIVALS,
    UNTRAINED,
    answers_outlast_first_step,
    at_age,
    by_discarded,
    changes_of_accuracy,
    correlation_of_moments,
    draw_angle_and_norm,
    draw_block_paths,
    draw_doses,
    draw_head_types,
    draw_reuse,
    draw_score_histogram,
    draw_sink_paths,
    draw_sinks_by_layer,
    draw_survival,
    draw_token_classes,
    drift_of_half,
    first_step_hits,
    frontier_hit_share,
    has_newlines,
    has_sinks_in_maps,
    has_turning_queries,
    is_not_too_sure,
    is_trained,
    keys_drift,
    last_quarter_mean,
    layer_means,
    lost_to_oldest,
    lost_to_one_sink,
    mean_or_absent,
    mean_over_layers,
    named_tokens,
    nested_share,
    share_that_drifts_more,
    share_without_sinks,
    shares_of_tokens,
    standing_share,
)
from anchorwatch.studies.preconditions import (
    has_first_key_sink,
    has_layers,
    has_sinks,
    keys_not_normalised,
    leaves_room_to_fall,
    loses_something,
    survives_random_hiding,
    writes_text,
)
from anchorwatch.trace.trace import Trace

register_paper(
    "sinks",
    Paper(
        "Attention Sinks in Diffusion Language Models",
        "Rulli and others, 2025",
        "2510.15731",
        "Masked diffusion models have attention sinks too, but these move while text is written, "
        "and hiding them hardly hurts.",
    ),
)
_PAPER = "arXiv 2510.15731"
_SCALE = (
    "not seen; the paper prints a criterion of column means, which never exceed 1: eps = 3 cannot "
    "fire"
)
_TEXT = Change(
    "Runs go on with running text; they answered questions before.",
    "the sentence is about text that is being written, and of the positions that answers to our "
    "questions fill nine in ten are end tokens",
    "watched the answers to questions",
)
_SCOPE = Change(
    "The claim is judged on the family that it was said of, and on no other.",
    "the paper says it of one model and the contrary, or nothing, of the others",
    "was judged on whatever model was given, so that one of the sentences about LLaDA, Dream and "
    "MMaDA had to be refuted",
)
_SINKS = Change(
    "Asks first whether the model has sinks, and whether it is trained.",
    "the sentence is about sinks by Eq. 3; the greatest key of a head without one is no sink",
    "was judged on models without sinks too",
)
_LLADA, _DREAM, _MMADA = ("llada",), ("dream",), ("mmada",)


@register_claim(
    "sinks/H1",
    "Trained masked diffusion models have sinks, at every stage of writing.",
    source=f"{_PAPER}, contributions, Sec. 4, Fig. 3 and 9",
    reported="sinks consistently emerge; few tokens very high, most near 0",
    origin=PAPER,
    unit=PROMPT,
    needs=(UNTRAINED, HEAD_MAPS, MDM_RUNS),
    criteria=(
        Criterion(
            "steps",
            "share of denoising steps at which some head has a sink (Eq. 3, eps = 3)",
            GREATER,
            0.75,
            "consistently: three steps in four at least; most layers of MMaDA show none, so that "
            "it need not be every layer",
            null="even attention has no sink: 0",
            control="the untrained network",
        ),
        Criterion(
            "emerge",
            "share of (step, layer, head) with a sink, less that in the same network as training "
            "begins",
            GREATER,
            0.05,
            "one head in twenty that has one by training; the paper gives no number",
            null="no more than before training",
            control="the untrained network",
        ),
        Criterion(
            "above",
            "share of maps (step, layer, head) whose greatest key receives more than the "
            "greatest of each of 19 maps with shuffled rows",
            GREATER,
            0.5,
            "most maps; untrained networks pass it too",
            null="every row's attention dealt out to its keys anew: one in twenty",
            decides=False,
        ),
    ),
    draw=draw_score_histogram,
    defect=_SCALE,
    preconditions=(is_trained(),),
    changes=(
        Change(
            "The rule is the paper's own, and the null an untrained network of the same shape.",
            "the sentence says that sinks emerge; a network that was never trained scored 1.00 on "
            "the old statistic, which asked for any structure in the columns of a map",
            "asked for more than half of all maps to exceed shuffled rows, .489, undecided",
        ),
        Change(
            "The untrained network has its first values, not random ones of the trained size.",
            "random weights of trained size saturate the statistic: on lab/toy-mdm they gave .28 "
            "to .34 of the heads a sink, the trained ones .18 to .29, first values .03 to .04. "
            "This was chosen after these numbers had been seen; against the other null H1 does not "
            "hold of lab/toy-mdm",
            "compared with random weights of the trained size",
        ),
    ),
)
def measure_sinks_exist(evidence: Evidence) -> Finding:
    wide = evidence[UNTRAINED].pivot(index="unit", columns="network").sort_index()
    steps, heads = wide["steps"], wide["heads"]
    emerge = Estimate.mean(heads["trained"] - heads["untrained"], PROMPT, DIFFERENCE)
    units = evidence[HEAD_MAPS].groupby("unit")
    above, greatest = units["above"].mean(), units["greatest"].mean()
    return Finding(
        {
            "steps": Measured(
                Estimate.mean(steps["trained"], PROMPT, SHARE), 0.0, mean_of(steps["untrained"])
            ),
            "emerge": Measured(emerge, 0.0, mean_of(heads["untrained"])),
            "above": Measured(Estimate.mean(above, PROMPT, SHARE), null=1 / 20),
        },
        {
            "share of heads and steps with a sink": mean_of(heads["trained"]),
            "column sum of the greatest key": float(greatest.mean()),
        },
    )


@register_claim(
    "sinks/H2",
    "The criterion (eps = 3) calls few tokens sinks: at least 96 % are none, in a masked "
    "diffusion model.",
    source=f"{_PAPER}, Sec. 4.1, Fig. 10",
    reported="at least 96 % at eps = 3",
    origin=PAPER,
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "sum",
            "share of (step, layer, head, token) that is no sink, eps = 3 on column sums",
            GREATER,
            0.96,
            "the number that is claimed",
            null="even attention has no sink: 1",
            published={"at least": 0.96},
        ),
    ),
    preconditions=(is_trained(), has_sinks(MDM_RUNS)),
    changes=(
        Change(
            "Asked of trained networks that have sinks.",
            "that sinks are few says something where there are any",
            "asked of any network: even attention passed, and untrained networks did",
        ),
    ),
    defect=_SCALE,
    caveat="said of three models, here of the one that is given",
)
def measure_few_sinks(evidence: Evidence) -> Finding:
    shares = {scale: share_without_sinks(evidence, scale) for scale in ("sum", "percent")}
    effect = Estimate.mean(shares["sum"], PROMPT, SHARE)
    also = {"on the percent scale": mean_of(shares["percent"])}
    return Finding({"sum": Measured(effect, null=1.0)}, also)


@register_claim(
    "sinks/H3",
    "The sinks of a masked diffusion model leave their place while it writes, more than those of "
    "an autoregressive model.",
    source=f"{_PAPER}, abstract, Sec. 4.2, Fig. 1, 4 and 7",
    reported="LLaDA and Dream move; MMaDA and autoregressive models are mostly static",
    origin=PAPER,
    unit=PROMPT,
    needs=(MDM_TEXT, ARM_TEXT),
    criteria=(
        Criterion(
            "beside the ARM",
            "share of the steps with a sink at which a head's greatest sink is not where it is "
            "most often, mean over heads, MDM less ARM on the same prompts",
            GREATER,
            0.05,
            "a moving sink does not remain at the same position across all steps (Sec. 4.2); one "
            "step in twenty more than the ARM's",
            null="no difference between the models",
            control="the ARM",
        ),
        Criterion(
            "jumps",
            "share of neighbouring steps with a sink at which a head's greatest sink is another, "
            "MDM less ARM",
            GREATER,
            0.0,
            "more is what is said; a sink that moves once a block of 32 of 128 jumps at .024 of "
            "the steps",
            null="no difference between the models",
            control="the ARM",
            decides=False,
        ),
        Criterion(
            "rows that predict",
            "share of neighbouring pairs of commits whose common sink (a key with more than 0.3 "
            "of both rows) is another, MDM less ARM",
            GREATER,
            0.0,
            "over all rows an ARM's greatest key is nearly fixed by its mask; of rows that "
            "predict it is not",
            null="no difference between the models",
            control="the ARM",
            decides=False,
        ),
    ),
    draw=draw_sink_paths,
    preconditions=(
        is_trained(),
        has_sinks(MDM_TEXT),
        has_first_key_sink(ARM_TEXT),
        writes_text(MDM_TEXT),
    ),
    changes=(
        Change(
            "Compares how often sinks are away from their usual place; jumps are also measured.",
            "the sentence is comparative (unlike in ARMs), and defines a moving sink as one that "
            "does not remain at the same position; a sink that moves once a block does that, and "
            "jumps at 3 of 127 steps",
            "asked for a jump at one step in twenty, .038 [.029, .047], refuted, beside .006 of "
            "the ARM",
        ),
        _TEXT,
        _SINKS,
    ),
    caveat="over all rows, as the paper's score has it, the causal mask holds an ARM's greatest "
    "key in place; that its first token takes much beyond that is asked first",
)
def measure_sink_moves(evidence: Evidence) -> Finding:
    both = {"mdm": MDM_TEXT, "arm": ARM_TEXT}
    each = {
        "beside the ARM": {
            role: 1 - by_prompt(evidence, spec, "spread", "modal_share").value
            for role, spec in both.items()
        },
        "jumps": {
            role: by_prompt(evidence, spec, "jumps", "jump_rate").value
            for role, spec in both.items()
        },
        "rows that predict": {
            role: by_trace(evidence[spec], sink_moves) for role, spec in both.items()
        },
    }
    measured = {
        name: Measured(
            Estimate.mean(rates["mdm"] - rates["arm"], PROMPT, DIFFERENCE),
            null=0.0,
            control=mean_of(rates["arm"]),
        )
        for name, rates in each.items()
    }
    return Finding(
        measured, {f"{name}, MDM": mean_of(rates["mdm"]) for name, rates in each.items()}
    )


@register_claim(
    "sinks/H4",
    "Attention maps of neighbouring steps are alike, and yet the greatest sink jumps.",
    source="arXiv 2509.24014 (SparseD), whose patterns stay similar over steps; against "
    "2510.15731, Fig. 4",
    reported="contradictory between papers: patterns stay similar, sinks move",
    origin=NEIGHBOUR,
    preconditions=(is_trained(), has_sinks_in_maps()),
    changes=(_TEXT, _SINKS),
    unit=PROMPT,
    needs=(HEAD_MAPS,),
    criteria=(
        Criterion(
            "alike",
            "cosine of a head's map with its map a step later, mean over rows, heads and four "
            "pairs of steps",
            GREATER,
            ALIKE_COSINE,
            "a pattern found at one step could be used at the next; no number is given",
            null="any two of the steps",
        ),
        Criterion(
            "jumps",
            "share of neighbouring steps with a sink at which the greatest sink is another, in "
            f"the heads whose maps have a cosine of at least {ALIKE_COSINE}, mean over heads",
            GREATER,
            0.05,
            "one step in twenty: less could not be seen in the paper's figures",
            null="steps shuffled; a sink that stays for some steps jumps less than that",
        ),
    ),
    caveat="heads count alike, so that those with a sink at few steps, which jump more, weigh as "
    "much as others",
)
def measure_alike_and_jumps(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[HEAD_MAPS]
    units = table.groupby("unit")
    cosine, any_two = units["cosine"].mean(), units["cosine_null"].mean()
    near = table["cosine"] >= ALIKE_COSINE
    mine = table[near].groupby("unit")[["jumps", "jumps_null"]].mean().reindex(cosine.index)
    also: dict[str, float | str] = {"share of heads alike": float(near.mean())}
    for words, heads in (("alike", table[near]), ("not alike", table[~near])):
        with_sink = heads["jumps"].dropna()
        name = f"share of heads {words} with sinks that jump at all"
        also[name] = float((with_sink > 0).mean()) if len(with_sink) else "no such heads"
    return Finding(
        {
            "alike": Measured(Estimate.mean(cosine, PROMPT, DIFFERENCE), float(any_two.mean())),
            "jumps": Measured(
                Estimate.mean(mine["jumps"], PROMPT, SHARE), mean_of(mine["jumps_null"])
            ),
        },
        also,
    )


@register_claim(
    "sinks/H5",
    "A sink stays at its place for some steps, and then vanishes.",
    source=f"{_PAPER}, Sec. 4.2 on LLaDA, Fig. 6b",
    reported="often remain for some consecutive steps before vanishing; edge cases of one step",
    origin=PAPER,
    unit=PROMPT,
    needs=(MDM_TEXT,),
    criteria=(
        Criterion(
            "stays",
            "share of stays that last longer than a step (Kaplan-Meier)",
            GREATER,
            0.5,
            "then the median stay is more than one step",
            null="steps shuffled",
        ),
        Criterion(
            "vanishes",
            f"share of stays that last longer than {LONG_STAY} steps",
            LESS,
            0.95,
            "at least one in twenty must be seen to end: 1 would be sinks that never do",
            null="steps shuffled",
        ),
        Criterion(
            "flickers",
            "share of stays that last one step, those cut off by the end left out",
            GREATER,
            0.0,
            "there are some: the paper calls them edge cases",
            null="steps shuffled",
            decides=False,
        ),
    ),
    draw=draw_survival,
    scope=_LLADA,
    preconditions=(is_trained(), has_sinks(MDM_TEXT), writes_text(MDM_TEXT)),
    changes=(
        Change(
            "Sinks of one step decide nothing any more.",
            "the paper calls them edge cases; asking for one in twenty contradicted it",
            "asked for one stay in twenty to last one step, and was supported",
        ),
        _SCOPE,
        _TEXT,
        _SINKS,
    ),
)
def measure_stays(evidence: Evidence) -> Finding:
    curve = by_prompt(evidence, MDM_TEXT, "survival", "survival", over="age")
    flicker = by_prompt(evidence, MDM_TEXT, "lifetime", "flicker")
    first, long = (at_age(curve.value, curve.labels, age) for age in (1, LONG_STAY))
    null = at_age(curve.null, curve.labels, 1), at_age(curve.null, curve.labels, LONG_STAY)
    return Finding(
        {
            "stays": Measured(Estimate.mean(first, PROMPT, SHARE), mean_of(null[0])),
            "vanishes": Measured(Estimate.mean(long, PROMPT, SHARE), mean_of(null[1])),
            "flickers": Measured(
                Estimate.mean(flicker.value, PROMPT, SHARE), mean_of(flicker.null)
            ),
        }
    )


@register_claim(
    "sinks/H6",
    "Written block by block, the sink moves to the right with the blocks.",
    source=f"{_PAPER}, Sec. 4.2, Fig. 7",
    reported="of LLaDA: tends to shift right as more blocks are denoised (one head is shown)",
    origin=PAPER,
    unit=PROMPT,
    needs=(MDM_TEXT,),
    criteria=(
        Criterion(
            "right",
            "Kendall's tau of a head's greatest sink with the step, mean over heads whose sink "
            "moves; four blocks of eight",
            GREATER,
            0.1,
            "a tenth of a perfect drift: in the figure it is plain to see",
            null="steps shuffled",
        ),
        Criterion(
            "boundaries",
            "jump rate at the steps that open a block, less that at the others",
            GREATER,
            0.05,
            "one step in twenty",
            null="opening steps dealt out at random",
            control="the rate inside blocks",
            decides=False,
        ),
    ),
    draw=draw_block_paths,
    scope=_LLADA,
    preconditions=(is_trained(), has_sinks(MDM_TEXT), writes_text(MDM_TEXT)),
    changes=(
        Change(
            "Jumps where a block opens are also measured and decide nothing.",
            "the paper says that the sink shifts to the right with the blocks, not at which step",
            "asked for more jumps at the steps that open a block, -.005 [-.027, .017], refuted",
        ),
        _SCOPE,
        _TEXT,
        _SINKS,
    ),
)
def measure_block_drift(evidence: Evidence) -> Finding:
    tau = by_prompt(evidence, MDM_TEXT, "direction", "tau")
    opening, inside = (
        by_prompt(evidence, MDM_TEXT, "block_jumps", f"jump_rate_{where}").value
        for where in ("at_boundaries", "inside")
    )
    return Finding(
        {
            "right": Measured(Estimate.mean(tau.value, PROMPT, DIFFERENCE), null=0.0),
            "boundaries": Measured(
                Estimate.mean(opening - inside, PROMPT, DIFFERENCE),
                null=0.0,
                control=mean_of(inside),
            ),
        }
    )


@register_claim(
    "sinks/H7",
    "Written in a free order, the sink begins at the rightmost masked position and moves to "
    "the left.",
    source=f"{_PAPER}, Sec. 4.2 on Dream, Fig. 7 and 8b",
    reported="of Dream: often originate at the rightmost masked token and shift leftward",
    origin=PAPER,
    unit=PROMPT,
    needs=(FREE_RUNS,),
    criteria=(
        Criterion(
            "left",
            "Kendall's tau of a head's greatest sink with the step, mean over heads whose sink "
            "moves",
            LESS,
            -0.1,
            "a tenth of a perfect drift: in the figure it is plain to see",
            null="steps shuffled",
        ),
        Criterion(
            "begins",
            "share of heads whose greatest key at the first step is the rightmost masked "
            "position, less that of a masked position drawn by chance",
            GREATER,
            0.05,
            "often: one head in twenty beyond chance",
            null="no more often than chance",
            control="a masked position drawn by chance",
        ),
        Criterion(
            "frontier",
            f"the same share over all steps with at least {LEAST_MASKS} masks",
            GREATER,
            0.05,
            "one step in twenty beyond chance",
            null="no more often than chance",
            control="a masked position drawn by chance",
            decides=False,
        ),
    ),
    scope=_DREAM,
    preconditions=(is_trained(), has_sinks(FREE_RUNS), writes_text(FREE_RUNS)),
    changes=(
        Change(
            "Written in Dream's own order; the share at the frontier decides nothing, and early "
            "layers are a claim of their own (H32).",
            "the sentence says where sinks begin and which way they go; two further criteria could "
            "only refute it",
            "asked for four things in LLaDA's order, frontier -.076, refuted",
        ),
        _SCOPE,
        _TEXT,
        _SINKS,
    ),
    caveat="a third-party count finds most of Dream's heads fixed",
)
def measure_frontier(evidence: Evidence) -> Finding:
    tau = by_prompt(evidence, FREE_RUNS, "direction", "tau").value
    shares = {
        "begins": (first_step_hits(evidence), first_step_hits(evidence, chance=True)),
        "frontier": (frontier_hit_share(evidence), frontier_hit_share(evidence, chance=True)),
    }
    return Finding(
        {"left": Measured(Estimate.mean(tau, PROMPT, DIFFERENCE), null=0.0)}
        | {
            name: Measured(Estimate.mean(hits - even, PROMPT, DIFFERENCE), 0.0, mean_of(even))
            for name, (hits, even) in shares.items()
        },
        {
            "hits": mean_of(shares["frontier"][0]),
            "hits at the first step": mean_of(shares["begins"][0]),
        },
    )


@register_claim(
    "sinks/H8",
    "Where there are sinks, most are static.",
    source=f"{_PAPER}, Sec. 4.2 on MMaDA, Fig. 7 and 8a",
    reported="of MMaDA: generally static; often fixed at their initial positions",
    origin=PAPER,
    unit=PROMPT,
    needs=(MDM_TEXT,),
    criteria=(
        Criterion(
            "static",
            "of the heads with a sink: share whose greatest sink is at one place in nine steps in "
            "ten",
            GREATER,
            0.5,
            "generally: most of them",
        ),
        Criterion(
            "modal",
            "share of the steps with a sink at which it is where it is most often",
            GREATER,
            0.9,
            "the limit from which a head's sink is called static",
            null="positions drawn evenly",
            decides=False,
        ),
    ),
    draw=draw_head_types,
    scope=_MMADA,
    preconditions=(is_trained(), writes_text(MDM_TEXT)),
    changes=(
        Change(
            "Counts heads whose sink is static among those that have one; layers without a sink "
            "are a claim of their own (H34).",
            "two sentences: sinks that appear are generally static, and most layers have none",
            "asked for a mean modal share of .9 and for most heads to have no sink, .835, refuted",
        ),
        _SCOPE,
        _TEXT,
    ),
    caveat="the comparison with LLaDA and Dream takes two such models",
)
def measure_static(evidence: Evidence) -> Finding:
    modal = by_prompt(evidence, MDM_TEXT, "spread", "modal_share")
    types = by_prompt(evidence, MDM_TEXT, "head_type_shares", "share_of_heads", over="type")
    of_type = dict(zip(types.labels, types.value.T, strict=True))
    with_sink = 1 - of_type["none"]
    with np.errstate(invalid="ignore", divide="ignore"):
        static = np.where(with_sink > 0, of_type["static"] / with_sink, np.nan)
    return Finding(
        {
            "static": Measured(Estimate.mean(static, PROMPT, SHARE)),
            "modal": Measured(Estimate.mean(modal.value, PROMPT, SHARE), mean_of(modal.null)),
        },
        {f"{name} heads": mean_of(shares) for name, shares in of_type.items()},
    )


@register_claim(
    "sinks/H9",
    "Deeper layers have fewer and stronger sinks.",
    source=f"{_PAPER}, Sec. 4.2 on LLaDA, Fig. 5",
    reported="of LLaDA: the number decreases, converging to one or two per layer; the score is "
    "therefore higher",
    origin=PAPER,
    unit=PROMPT,
    needs=(MDM_TEXT,),
    criteria=(
        Criterion(
            "fewer",
            "different tokens that are a sink in any head of a layer at a step, last half of the "
            "layers less the first",
            LESS,
            0.0,
            "fewer is what is said",
            null="as many in all layers",
            control="the first half of the layers",
        ),
        Criterion(
            "stronger",
            "share of attention of a head's greatest key, last half of the layers over the first",
            GREATER,
            1.0,
            "higher is what is said",
            null="indifferent attention to the same keys",
        ),
        Criterion(
            "one or two",
            "different sinks of a layer at a step in the deepest quarter",
            LESS,
            2.5,
            "one or two per layer; how those of several heads are counted is not said, so that "
            "the number is shown and does not decide",
            decides=False,
        ),
    ),
    draw=draw_sinks_by_layer,
    scope=_LLADA,
    preconditions=(
        is_trained(),
        has_sinks(MDM_TEXT),
        writes_text(MDM_TEXT),
        has_layers(4, MDM_TEXT),
    ),
    changes=(
        Change(
            "Counts different tokens of a layer; margins of fewer and stronger are nought.",
            "the paper speaks of sinks per layer, and says fewer and higher without a number",
            "counted sinks of single heads, with margins of ours, +.426, refuted",
        ),
        _SCOPE,
        _TEXT,
        _SINKS,
    ),
    caveat="halves of the layers, for models of few layers",
)
def measure_fewer_and_stronger(evidence: Evidence) -> Finding:
    distinct = layer_means(evidence, MDM_TEXT, "distinct")
    of_mean = layer_means(evidence, MDM_TEXT, "of_mean")
    most = by_prompt(evidence, MDM_TEXT, "sinks", "greatest", over="layer")
    first = first_half_mean(distinct)
    stronger = last_half_mean(most.value) / first_half_mean(most.value)
    even = mean_of(last_half_mean(most.null) / first_half_mean(most.null))
    return Finding(
        {
            "fewer": Measured(
                Estimate.mean(last_half_mean(distinct) - first, PROMPT), 0.0, mean_of(first)
            ),
            "stronger": Measured(Estimate.mean(stronger, PROMPT), null=even),
            "one or two": Measured(Estimate.mean(last_quarter_mean(distinct), PROMPT)),
        },
        {"sinks of the mean over heads, deepest quarter": mean_of(last_quarter_mean(of_mean))},
    )


@register_claim(
    "sinks/H10",
    "Newlines and masks are the two tokens that are sinks most often.",
    source=f"{_PAPER}, Table 2",
    reported="LLaDA: newline .368, mask .366, full stop .050; Dream: mask .321, newline .090, full "
    "stop .046; MMaDA: newline .180, mask .166, end of header .160",
    origin=PAPER,
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "newline",
            "share of sinks that are a newline, less that of the most frequent other token but "
            f"the mask, the least of {RIVALS} differences",
            GREATER,
            0.0,
            "the two most frequent is what is said",
            control="the share of newlines among keys",
            published={"LLaDA": 0.368 - 0.050, "Dream": 0.090 - 0.046, "MMaDA": 0.180 - 0.160},
        ),
        Criterion(
            "mask",
            "the same of masks",
            GREATER,
            0.0,
            "the two most frequent is what is said",
            control="the share of masks among keys",
            published={"LLaDA": 0.366 - 0.050, "Dream": 0.321 - 0.046, "MMaDA": 0.166 - 0.160},
        ),
        *(
            Criterion(
                f"{name} beyond chance",
                f"share of sinks that are {name}s, less their share of the keys of the same steps",
                GREATER,
                0.0,
                "more than their number; the paper gives no share of keys",
                null="sinks anywhere",
                control="the share of such keys",
                decides=False,
            )
            for name in NAMED_CLASSES
        ),
    ),
    draw=draw_token_classes,
    defect="not seen; of LLaDA the text names full stops, commas, white space and end tokens, and "
    "its part of the table has no comma, no end token, and masks; the share of such keys in the "
    "text is not given",
    preconditions=(is_trained(), has_sinks(MDM_RUNS), has_newlines(MDM_RUNS)),
    changes=(
        Change(
            "Ranks tokens by their share of all sinks, as the table does.",
            "the table is of relative frequency; masks are a third and more of all keys, so that "
            "their surplus over chance could be at most .03 of LLaDA's own .366",
            "asked for a surplus of .05 over the share of such keys, mask -.156, refuted",
        ),
        _SINKS,
    ),
)
def measure_most_frequent(evidence: Evidence) -> Finding:
    # 1. Shares of tokens, and of the two that are named.
    runs: TraceSet = evidence[MDM_RUNS]
    shares = shares_of_tokens(evidence, MDM_RUNS)
    named = named_tokens(runs, shares)
    none = np.zeros(runs.count)
    share = {name: sum((shares[token] for token in named[name]), none) for name in named}
    # 2. Each beside the most frequent of the others; the least difference is that one's.
    taken = {token for tokens in named.values() for token in tokens}
    rivals = [token for token in shares if token not in taken][:RIVALS]
    make = partial(metrics.enrichment, list(runs.traces), by=["prompt"], matched=True)
    table = evidence.once((MDM_RUNS, "enrichment by prompt"), make)
    of_class, even = (by_cell(runs, table, "class", name) for name in ("value", "null"))
    measured = {
        name: Measured(
            Least.among(
                [Estimate.mean(share[name] - shares[token], PROMPT, DIFFERENCE) for token in rivals]
                or [Estimate.mean(share[name], PROMPT, DIFFERENCE)]
            ),
            control=mean_of(even[name]),
        )
        for name in NAMED_CLASSES
    }
    # 3. The same by class, beyond chance.
    for name in NAMED_CLASSES:
        beyond = Estimate.mean(of_class[name] - even[name], PROMPT, DIFFERENCE)
        measured[f"{name} beyond chance"] = Measured(beyond, 0.0, mean_of(even[name]))
    also: dict[str, float | str] = {f"share of {name}": mean_of(share[name]) for name in share}
    if rivals:
        also["next token"] = repr(rivals[0])
        also["its share"] = mean_of(shares[rivals[0]])
    return Finding(measured, also)


@register_claim(
    "sinks/H11",
    "What a token is decides whether it is a sink, more than where it stands.",
    source=f"{_PAPER}, Sec. 4.2 on LLaDA",
    reported="of LLaDA: a strong semantic basis (punctuation, white space, end tokens); the "
    "contrary of Dream (H33)",
    origin=PAPER,
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "class",
            "share of the variance of sink or not that token class explains on other steps, "
            "less the share that the tenth of the canvas explains, each beyond permuted keys",
            GREATER,
            0.02,
            "two hundredths of the variance",
            null="keys permuted within steps",
        ),
    ),
    scope=_LLADA,
    preconditions=(is_trained(), has_sinks(MDM_RUNS)),
    changes=(_SCOPE, _SINKS),
    caveat="no token was changed for another: it is no cause",
)
def measure_class_or_position(evidence: Evidence) -> Finding:
    explained = class_and_place(evidence)
    gap = explained["class"] - explained["place"]
    return Finding(
        {"class": Measured(Estimate.mean(gap, PROMPT), null=0.0)},
        {f"explained by {name} beyond chance": mean_of(each) for name, each in explained.items()},
    )


def class_and_place(evidence: Evidence) -> dict[str, np.ndarray]:
    """[prompt] share of the variance of sink or not that class, place and token explain, beyond
    permuted keys."""
    runs: TraceSet = evidence[MDM_RUNS]
    make = partial(metrics.meaning_or_place, list(runs.traces), by=["prompt"])
    table = evidence.once((MDM_RUNS, "meaning_or_place by prompt"), make)
    sink = table[table["outcome"] == "sink"]
    value, null = (by_cell(runs, sink, "quantity", name) for name in ("value", "null"))
    return {name: value[name] - null[name] for name in ("class", "place", "token")}


@register_claim(
    "sinks/H12",
    "In the deepest layers masked and unmasked queries have different sinks.",
    source=f"{_PAPER}, Sec. 4.2 on LLaDA, Fig. 6a",
    reported="of LLaDA: the deepest layers; some heads do",
    origin=PAPER,
    unit=PROMPT,
    needs=(HEAD_MAPS,),
    criteria=(
        Criterion(
            "deep",
            "share of (step, head) at which masked and unmasked queries each have a sink (Eq. 3), "
            "and not the same, less the same of as large groups drawn among both; deepest quarter "
            "of the layers",
            GREATER,
            0.05,
            "some heads: one head and step in twenty beyond chance",
            null="queries that do not differ",
            control="masked and unmasked dealt out to the queries of the step anew",
        ),
        Criterion(
            "deeper",
            "the same, last half of the layers less the first",
            GREATER,
            0.0,
            "the deepest layers are named; whether others do it too is not said",
            null="as often in all layers",
            decides=False,
        ),
    ),
    scope=_LLADA,
    preconditions=(is_trained(), has_sinks_in_maps()),
    changes=(
        Change(
            "Both keys must be sinks by the paper's rule; written and given tokens are one group.",
            "the sentence is of sinks, and of masked and unmasked tokens",
            "asked only how much more each group gives its own greatest key, 2.91 even shares, "
            "supported; a random network has 12.6 to 22",
        ),
        _SCOPE,
        _TEXT,
        _SINKS,
    ),
    caveat="of eight steps of a run; groups of few queries have sinks of their own by chance, and "
    "so does a head that looks near by: what counts is what drawn groups of their size do not have",
)
def measure_splits(evidence: Evidence) -> Finding:
    wide = evidence[HEAD_MAPS].pivot_table(index=["unit", "layer"], aggfunc="mean")
    split, drawn = (
        wide[name].unstack().to_numpy(dtype=float)  # [prompt, layer]
        for name in ("split", "split_drawn")
    )
    beyond = split - drawn
    deep, depth = last_quarter_mean(beyond), last_half_mean(beyond) - first_half_mean(beyond)
    return Finding(
        {
            "deep": Measured(
                Estimate.mean(deep, PROMPT, DIFFERENCE), 0.0, mean_of(last_quarter_mean(drawn))
            ),
            "deeper": Measured(Estimate.mean(depth, PROMPT, DIFFERENCE_OF_DIFFERENCES), null=0.0),
        },
        {"different sinks in the deepest layers": mean_of(last_quarter_mean(split))},
    )


_HIDING = Change(
    "Sinks are hidden as the paper does it: those of the step before; in an ARM those of its last "
    "row, and from its last row only.",
    "Sec. 4.3: the map of step t - 1 says what is masked at step t, and in the ARM the attention "
    "of the last token; hidden from all rows, an ARM's next token becomes its sink",
    "hid the greatest key of the same pass from all rows, in both models",
)
_MDM_ROOM = (
    leaves_room_to_fall(MDM_HIDDEN, "mdm", context="gold", minimum=0.5),
    survives_random_hiding(MDM_HIDDEN, "mdm", context="gold"),
)
_ROOM_AFTER_FIVE = leaves_room_to_fall(MDM_HIDDEN, "mdm", context="gold", edit="sinks 5")
_ARM_ROOM = (
    leaves_room_to_fall(ARM_HIDDEN, "arm", context="gold", minimum=0.5),
    survives_random_hiding(ARM_HIDDEN, "arm", context="gold"),
    has_first_key_sink(),
    answers_outlast_first_step(ARM_HIDDEN),
)
_HIDDEN_NOT_GSM8K = (
    "accuracy of made-up questions with their passage, not GSM8K; nothing is hidden in the first "
    "step, in which an ARM writes its first token"
)
_LONG_ANSWERS = Change(
    "Answers of the ARM, as they are scored, must have five words and more.",
    "nothing is hidden in the step that writes the first token: of a hundred tokens that is "
    "little, of two it is half of the answer, and what follows the answer is not scored. Verdicts "
    "on SmolLM2-135M were known",
    "answers of any length, later with what was written after them: a model whose answers are "
    "names of two tokens lost little, which said nothing of its sinks",
)


@register_claim(
    "sinks/H13",
    "Hiding the greatest sink of every head costs a masked diffusion model less accuracy than an "
    "autoregressive one.",
    source=f"{_PAPER}, abstract, Sec. 4.3, Table 1",
    reported="GSM8K: LLaDA .76 to .75, Dream .82 to .79, MMaDA .54 to .53, Llama .85 to .02",
    origin=PAPER,
    unit=ITEM,
    needs=(MDM_HIDDEN, ARM_HIDDEN),
    criteria=(
        Criterion(
            "beside the ARM",
            "change of accuracy with one sink of every head hidden, MDM less ARM, on the same "
            "questions",
            GREATER,
            0.1,
            "ten points: ARMs fail and MDMs are robust; in the table it is eighty",
            null="both lose as much",
            control="the ARM",
            published={
                "LLaDA": (0.75 - 0.76) - (0.02 - 0.85),
                "Dream": (0.79 - 0.82) - (0.02 - 0.85),
                "MMaDA": (0.53 - 0.54) - (0.02 - 0.85),
            },
        ),
        *(
            Criterion(
                f"beside the ARM, {k}",
                f"the same with {k} sinks hidden",
                GREATER,
                0.1,
                "ten points, as above",
                null="both lose as much",
                control="the ARM",
                published={"LLaDA": mdm - (arm - 0.85)},
                decides=False,
            )
            for k, mdm, arm in ((5, 0.73 - 0.76, 0.02), (10, 0.55 - 0.76, 0.01))
        ),
    ),
    defect="not seen; the paper has no random control and one seed, and does not say in which map, "
    "with the edit or without, sinks were found",
    preconditions=(
        is_trained(),
        has_sinks(MDM_RUNS),
        *_MDM_ROOM,
        *_ARM_ROOM,
        loses_something(
            "hiding one sink of every head", (ARM_HIDDEN,), lost_to_one_sink, minimum=0.1
        ),
    ),
    changes=(
        Change(
            "The contrast of the two models decides; the loss of under one point (H27), five and "
            "ten sinks (H28) and the ARM's own fall (H29) are claims of their own.",
            "the abstract and Sec. 4.3 compare DLMs with ARMs; no criterion did",
            "asked for both under one point and more than fifty, ARM -.105, refuted",
        ),
        _LONG_ANSWERS,
        _HIDING,
        _SINKS,
    ),
    caveat=_HIDDEN_NOT_GSM8K,
)
def measure_robustness(evidence: Evidence) -> Finding:
    mdm, arm = (changes_of_accuracy(evidence, spec) for spec in (MDM_HIDDEN, ARM_HIDDEN))
    measured = {}
    for k, end in ((1, ""), (5, ", 5"), (10, ", 10")):
        gap = mdm[f"sinks {k}"] - arm[f"sinks {k}"]
        effect = Estimate.mean(gap, ITEM, DIFFERENCE_OF_DIFFERENCES)
        measured[f"beside the ARM{end}"] = Measured(effect, 0.0, mean_of(arm[f"sinks {k}"]))
    also: dict[str, float | str] = {}
    for role, changes in (("MDM", mdm), ("ARM", arm)):
        also[f"{role} unedited"] = mean_of(changes["none"])
        also |= {
            f"{role}, change with {name} hidden": mean_of(change)
            for name, change in changes.items()
            if name != "none"
        }
    return Finding(measured, also)


@register_claim(
    "sinks/H14",
    "What hiding a sink does is about the sink: other keys with as much attention do less.",
    source=f"beside {_PAPER}, which reports no control",
    reported="never reported for diffusion models",
    origin=OURS,
    unit=PROMPT,
    needs=(HIDDEN_MATCHED, HIDDEN_SINKS),
    criteria=(
        Criterion(
            "agreement",
            "share of masked positions whose likeliest token stays, sinks hidden less other "
            "keys hidden, on the same frames",
            LESS,
            -0.01,
            "one position in a hundred",
            null="the same as the control",
            control="other keys that receive as much, drawn for each run",
        ),
        Criterion(
            "kl",
            "KL from the unedited distribution, in nats, sinks hidden less other keys hidden",
            GREATER,
            0.01,
            "a hundredth of a nat is hardly a change of any answer",
            null="the same as the control",
            control="other keys that receive as much, drawn for each run",
        ),
    ),
    draw=draw_doses,
    preconditions=(is_trained(), has_sinks(MDM_TEXT), writes_text(MDM_TEXT)),
    changes=(
        Change(
            "The control hides other keys that take as much attention together, not as many keys.",
            "hiding what takes half of the attention changes more than hiding what takes a "
            "hundredth, sink or not",
            "hid as many keys at random, KL .128 more, supported",
        ),
        _TEXT,
        _SINKS,
    ),
)
def measure_specificity(evidence: Evidence) -> Finding:
    outcomes = {"agreement": ("argmax_agreement", DIFFERENCE), "kl": ("kl", None)}
    measured = {}
    for name, (outcome, bounds) in outcomes.items():
        beyond = by_effect(evidence, HIDDEN_MATCHED, outcome)
        control = mean_of(by_effect(evidence, HIDDEN_MATCHED, outcome, "control_difference"))
        measured[name] = Measured(Estimate.mean(beyond, PROMPT, bounds), 0.0, control)
    also: dict[str, float | str] = {
        f"attention that the {words} hidden keys had": mean_of(
            by_effect(evidence, HIDDEN_MATCHED, "hidden_share", series)
        )
        for words, series in (("sinks'", "edited"), ("control's", "control"))
    }
    for k in DOSES:
        more = mean_of(by_effect(evidence, HIDDEN_SINKS, "kl", k=k))
        also[f"KL beyond as many other keys at k = {k}"] = more
    return Finding(measured, also)


@register_claim(
    "sinks/H15",
    "Sinks found in the edited map are hidden only every second step, so that robustness is "
    "overstated.",
    source=f"beside {_PAPER}, Sec. 4.3, silent on whether the map is the edited one",
    reported="not reported",
    origin=OURS,
    unit=PROMPT,
    needs=(HIDDEN_SINKS, FOUND_IN_EDITED),
    criteria=(
        Criterion(
            "hidden",
            "share of (step from the second on, layer, head) at which the greatest key of the "
            "unedited map is hidden: sinks found without the edit, less found with it",
            GREATER,
            0.25,
            "every second step is a half of those of a sink that stays; half of that",
            null="no matter how they are found",
            control="found in the edited map",
        ),
        Criterion(
            "kl",
            "KL from the unedited distribution, in nats, the same difference",
            GREATER,
            0.01,
            "a hundredth of a nat is hardly a change of any answer",
            null="no matter how they are found",
            control="found in the edited map",
        ),
    ),
    defect="not seen; the paper takes the map of the step before, and does not say whether that is "
    "the edited one",
    preconditions=(is_trained(), has_sinks(MDM_TEXT), writes_text(MDM_TEXT)),
    changes=(_TEXT, _SINKS),
)
def measure_detection_map(evidence: Evidence) -> Finding:
    shadow, edited = (
        {name: by_effect(evidence, spec, name, "edited") for name in ("greatest_hidden", "kl")}
        for spec in (HIDDEN_SINKS, FOUND_IN_EDITED)
    )
    gap = {name: shadow[name] - edited[name] for name in shadow}
    control = {name: mean_of(edited[name]) for name in edited}
    return Finding(
        {
            "hidden": Measured(
                Estimate.mean(gap["greatest_hidden"], PROMPT, DIFFERENCE),
                0.0,
                control["greatest_hidden"],
            ),
            "kl": Measured(Estimate.mean(gap["kl"], PROMPT), 0.0, control["kl"]),
        },
        {
            "greatest key hidden, found without the edit": mean_of(shadow["greatest_hidden"]),
            "KL, found without the edit": mean_of(shadow["kl"]),
        },
    )


@register_claim(
    "sinks/H16",
    "Robustness comes from order: tokens that looked at the hidden sink lose confidence and "
    "are written later.",
    source=f"{_PAPER}, Sec. 5.2",
    reported="a belief, untested",
    origin=PAPER,
    unit=PROMPT,
    needs=(DELAYS,),
    criteria=(
        Criterion(
            "later",
            "partial correlation over masked positions, given the step at which the unedited "
            "run wrote them, of the attention to the sinks with the delay of their commit: "
            "sinks hidden less other keys hidden",
            GREATER,
            0.1,
            "a small correlation, by the usual words for sizes",
            null="the same as the control",
            control="the same attention, while as many other keys are hidden",
        ),
        Criterion(
            "surer",
            "the same with the change of the greatest log-probability at the first step that "
            "hides any, whose canvas is the same in all runs, given what it was",
            LESS,
            -0.1,
            "a small correlation, by the usual words for sizes",
            null="the same as the control",
            control="the same attention, while as many other keys are hidden",
        ),
    ),
    preconditions=(is_trained(), has_sinks(MDM_TEXT), writes_text(MDM_TEXT)),
    changes=(_TEXT, _SINKS),
    caveat="whether robustness shrinks with more tokens a step is H17's",
)
def measure_delay(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[DELAYS]
    wide = table.pivot(index="unit", columns="arm").sort_index()
    measured, also = {}, {}
    for name in ("later", "surer"):
        mine, other = (wide[name][arm].to_numpy(dtype=float) for arm in ("sinks", "random"))
        effect = Estimate.mean(mine - other, PROMPT, DIFFERENCE_OF_DIFFERENCES)
        measured[name] = Measured(effect, 0.0, mean_of(other))
        also[f"{name}, sinks hidden"] = mean_of(mine)
    for arm, words in (("sinks", "sinks"), ("random", "other keys")):
        also[f"share written at another step, {words} hidden"] = mean_of(wide["moved"][arm])
    return Finding(measured, also)


@register_claim(
    "sinks/H17",
    "Robustness comes from many steps: where an answer is written in one, hiding a sink costs "
    "more.",
    source=f"{_PAPER}, Sec. 1 and 5.2",
    reported="a belief, untested, beside that of looking both ways",
    origin=PAPER,
    unit=ITEM,
    needs=(ONE_STEP, MANY_STEPS),
    criteria=(
        Criterion(
            "steps",
            "change of accuracy when the greatest sink of every head is hidden, less that when "
            "another key is: in one step less in sixteen; below 0 one step loses more",
            LESS,
            -0.05,
            "five points: the one that the paper calls robust is less than 2000 questions can "
            "tell in a difference of differences",
            null="as much in one step as in many",
            control="as many other keys hidden",
        ),
    ),
    preconditions=(
        is_trained(),
        has_sinks(MDM_RUNS),
        leaves_room_to_fall(ONE_STEP, "mdm", context="gold"),
        leaves_room_to_fall(MANY_STEPS, "mdm", context="gold"),
    ),
    changes=(_SINKS,),
    caveat="if it costs no more, looking both ways is what is left: no run under a causal "
    "mask, or in a fixed order, separates that",
)
def measure_steps(evidence: Evidence) -> Finding:
    names = ("none", "sinks", "random")
    single, many = (
        by_item(evidence, spec, [("mdm", "gold", name) for name in names])
        for spec in (ONE_STEP, MANY_STEPS)
    )
    change = {  # [item] of accuracy, by what is hidden and in how many steps
        (arm, steps): right[:, arm] - right[:, 0]
        for steps, right in (("one step", single), ("sixteen", many))
        for arm in (1, 2)
    }
    sinks, other = (change[arm, "one step"] - change[arm, "sixteen"] for arm in (1, 2))
    gap = Estimate.mean(sinks - other, ITEM, DIFFERENCE_OF_DIFFERENCES)
    words = {1: "sinks", 2: "other keys"}
    return Finding(
        {"steps": Measured(gap, null=0.0, control=mean_of(other))},
        {
            f"change of accuracy in {steps}, {words[arm]} hidden": mean_of(right)
            for (arm, steps), right in change.items()
        },
    )


@register_claim(
    "sinks/H18",
    "Sinks have small values: attending to them does nearly nothing.",
    source="arXiv 2601.19657, Fig. 1, beside 2510.15731",
    reported="value norm 2.4 against 7.6 (LLaDA), 3.0 against 7.7 (Dream)",
    unit=PROMPT,
    needs=(NORM_RUNS,),
    criteria=(
        Criterion(
            "smaller",
            "chance that a sink's value has a smaller norm than another key of the same head "
            "and step (AUROC)",
            GREATER,
            0.9,
            "in the figure the two clouds hardly overlap",
            null="no difference: one half",
            decides=False,
        ),
        Criterion(
            "ratio",
            "norm of sinks over that of the other keys, both means over heads (Eq. 16), median "
            "over layers, as in sink_token/H1",
            LESS,
            0.8,
            "a fifth smaller, as sink_token/H1 asks; the paper's are 0.32 and 0.39",
            null="no difference: 1",
            published={"LLaDA": 2.4 / 7.6, "Dream": 3.0 / 7.7},
        ),
        Criterion(
            "idle",
            "share of the attention to sinks that moves nothing: what they take beyond what "
            "would have brought as much at the other keys (no_op_share), over what they take; "
            "below 0 they bring more than as much attention elsewhere",
            GREATER,
            0.5,
            "half; the paper's norms alone would make it 0.6 or 0.7",
            null="they bring as much as other keys do: 0",
        ),
    ),
    origin=NEIGHBOUR,
    preconditions=(is_trained(), has_sinks(NORM_RUNS)),
    changes=(
        Change(
            "The size of values and what sinks bring decide, at the margin of sink_token/H1.",
            "the sentence says small and nearly nothing; how far the two clouds overlap is ours. "
            "Values on SmolLM2-135M (norms .44 of the others', AUROC .91) were known",
            "asked for half the norm and an AUROC of .9 as well: of one figure two claims said "
            "different things",
        ),
        Change(
            "Norms are means over heads, as in sink_token/H1.",
            "the published numbers are of them (appendix A.3.2 of 2601.19657). Values on "
            "lab/tales-mdm and SmolLM2-135M were known",
            "norms of single heads, mean over layers",
        ),
        _SINKS,
    ),
)
def measure_small_values(evidence: Evidence) -> Finding:
    smaller = by_prompt(evidence, NORM_RUNS, "value_norms", "auroc")
    ratio = by_trace(evidence[NORM_RUNS], pooled_norm_ratio)
    idle, taken = (
        by_prompt(evidence, NORM_RUNS, "contributions", name).value
        for name in ("no_op_share", "attention_share")
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        of_theirs = np.where(taken > 0, idle / taken, np.nan)
    return Finding(
        {
            "smaller": Measured(Estimate.mean(smaller.value, PROMPT, SHARE), null=0.5),
            "ratio": Measured(Estimate.mean(ratio, PROMPT), null=1.0),
            "idle": Measured(Estimate.mean(of_theirs, PROMPT), null=0.0),
        },
        {"share of all attention that sinks take": mean_of(taken)},
    )


@register_claim(
    "sinks/H19",
    "Deep sinks are made by the angle to queries, not by the key's norm.",
    source="arXiv 2601.07894, figure of QK, beside 2510.15731",
    reported="angle-driven in deep layers; angle and norm in shallow ones",
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "deep",
            "angle / (|angle| + |norm|) of the logit advantage of sinks (Shapley split, head "
            "by head, sums over the sinks of the last half of the layers); below 0 the angle "
            "works against them",
            GREATER,
            0.5,
            "mostly by the angle is more than half",
            null="a key like the others has no advantage",
            control="norm / (|angle| + |norm|)",
        ),
        Criterion(
            "deeper",
            "the same, last half of the layers less the first",
            GREATER,
            0.0,
            "more by the angle in deep layers is what is said",
            null="alike in all layers",
        ),
    ),
    origin=NEIGHBOUR,
    preconditions=(is_trained(), has_sinks(MDM_RUNS), keys_not_normalised()),
    changes=(
        Change(
            "Deeper asks for more than in the first half, without a margin.",
            "angle and norm in shallow layers, angle in deep ones, is a comparison; where the "
            "share is .93 in the first half, .05 more is hardly possible",
            "asked for a twentieth more, -.032, refuted",
        ),
        _SINKS,
    ),
    draw=draw_angle_and_norm,
    defect="it averages vectors over heads before the cosine",
)
def measure_angle(evidence: Evidence) -> Finding:
    # 1. sums over sinks of what angle and norm bring, kept per layer so that halves can be pooled
    runs = evidence[MDM_RUNS]
    kernel = partial(split_cells, rule=rulli())
    parts = evidence.once(
        (MDM_RUNS, "qk sums"), lambda: layer_quantities(list(runs.traces), kernel)
    )

    def of_half(name: str, half: str) -> np.ndarray:
        def of(trace: Trace, quantities: Mapping[str, Quantity]) -> float:
            return pool_layers(quantities[f"{name}_share"], half)

        return by_sums(runs, parts, of)

    # 2. shares of each half, over the same prompts: those with sinks in both halves
    angle = {half: of_half("angle", half) for half in (FIRST_HALF, LAST_HALF)}
    both = np.where(np.isnan(angle[FIRST_HALF] + angle[LAST_HALF]), np.nan, 0.0)
    last, first, norm = (
        angle[LAST_HALF] + both,
        angle[FIRST_HALF] + both,
        of_half("norm", LAST_HALF) + both,
    )
    return Finding(
        {
            "deep": Measured(
                Estimate.mean(last, PROMPT, DIFFERENCE), null=0.0, control=mean_of(norm)
            ),
            "deeper": Measured(Estimate.mean(last - first, PROMPT, (-2.0, 2.0)), null=0.0),
        },
        {"the same in the first half of the layers": mean_of(first)},
    )


@register_claim(
    "sinks/H20",
    "Massive activations are where sinks are, as in autoregressive models.",
    source=f"beside {_PAPER}, which cites it of autoregressive models",
    reported="unknown",
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "sink if massive",
            "chance that a position with a massive activation (above 100, and 1000 times the "
            "median) is a sink of a head, less that of any position",
            GREATER,
            0.1,
            "one head in ten; nothing is reported of diffusion models",
            null="any position",
        ),
    ),
    origin=OURS,
    preconditions=(is_trained(), has_sinks(MDM_RUNS)),
    changes=(_SINKS,),
    caveat="the three largest activations of each layer and step are known, no more",
)
def measure_massive_activations(evidence: Evidence) -> Finding:
    chance = by_prompt(evidence, MDM_RUNS, "massive_activations", "sink_if_massive")
    if not np.isfinite(chance.value).any():
        most = mean_of(by_prompt(evidence, MDM_RUNS, "massive_activations", "largest").value)
        raise EvidenceError(
            "a model with massive activations (above 100, and 1000 times the median): the largest "
            f"of this one is {most:.3g}"
        )
    gap = chance.value - chance.null
    return Finding(
        {"sink if massive": Measured(Estimate.mean(gap, PROMPT, DIFFERENCE), null=0.0)},
        {"a massive position is a sink": mean_of(chance.value), "any is": mean_of(chance.null)},
    )


@register_claim(
    "sinks/H21",
    "The sinks of a middle layer are those of the later ones, more often than chance.",
    source="Focus-dLLM's premise, beside 2510.15731",
    reported="assumed",
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "beyond chance",
            "keys that are sinks in the middle layer and in a later one, over those that are "
            "in either, at the same step, less what as many sinks anywhere would share",
            GREATER,
            0.05,
            "a twentieth beyond chance",
            null="no more than chance",
            control="as many sinks anywhere",
        ),
    ),
    origin=NEIGHBOUR,
    preconditions=(is_trained(), has_sinks(MDM_RUNS), has_layers(4)),
    changes=(_SINKS,),
    draw=draw_reuse,
    caveat="more than chance is not enough for one set to stand for another: see what is shared",
)
def measure_reuse(evidence: Evidence) -> Finding:
    runs: TraceSet = evidence[MDM_RUNS]
    every = ["prompt", "layer", "other_layer"]
    make = partial(metrics.layer_consistency, list(runs.traces), by=every)
    table = evidence.once((MDM_RUNS, "layer_consistency", tuple(every)), make)
    middle = (int(table["layer"].max()) + 1) // 2
    rows = table[(table["layer"] == middle) & (table["other_layer"] > middle)]
    shared, chance = (mean_over_layers(runs, rows, "jaccard", name) for name in ("value", "chance"))
    same = mean_over_layers(runs, rows, "same_greatest", "value")
    return Finding(
        {
            "beyond chance": Measured(
                Estimate.mean(shared - chance, PROMPT, DIFFERENCE), 0.0, mean_of(chance)
            )
        },
        {
            "shared": mean_or_absent(shared),
            "same greatest sink": mean_or_absent(same),
            "middle layer": middle,
        },
    )


@register_claim(
    "sinks/H22",
    "Masks added after the answer cost accuracy.",
    source="arXiv 2511.21338, beside 2510.15731",
    reported="one step, first mask scored: up to 27 points lost (LLaDA), 8 (Dream)",
    unit=ITEM,
    needs=(ADDED_MASKS,),
    criteria=(
        Criterion(
            "cost",
            "first token of the answer right in one pass, before 56 masks less before 8",
            LESS,
            -0.05,
            "five points; the least that is reported is 6",
            null="masks that cost nothing",
        ),
        Criterion(
            "taken",
            "attention of masked queries to masks, the same difference",
            GREATER,
            0.05,
            "a twentieth of all attention",
            null="added masks that draw nothing",
            decides=False,
        ),
        Criterion(
            "beyond",
            "attention of masked queries to masks before 56 of them, less that of indifferent "
            "attention",
            GREATER,
            0.0,
            "more than their number alone would draw",
            null="indifferent attention",
            control="indifferent attention",
            decides=False,
        ),
        Criterion(
            "explains",
            "correlation over questions of the attention that added masks took with the change "
            "of the answer's log-probability",
            LESS,
            -0.1,
            "a small correlation, by the usual words for sizes",
            null="unrelated: 0",
            decides=False,
        ),
    ),
    origin=NEIGHBOUR,
    preconditions=(is_trained(), is_not_too_sure()),
    changes=(
        Change(
            "The cost decides; what masks draw, and whether the one explains the other, is also "
            "measured. Asks first for answers that are not all right before few masks.",
            "the neighbour reports the cost; that more masks draw more attention is no wonder",
            "asked for all four, cost 0 [-.071, .071] at its ceiling, undecided",
        ),
    ),
    caveat="a correlation over questions is no mediation that was brought about by an edit",
)
def measure_mask_tax(evidence: Evidence) -> Finding:
    # 1. [item] before few masks and before many
    table: pd.DataFrame = evidence[ADDED_MASKS]
    few, many = (int(n) for n in sorted(table["masks"].unique()))
    wide = table.pivot(index="unit", columns="masks").sort_index()
    right = {n: wide["right"][n].to_numpy(dtype=float) for n in (few, many)}
    require_accuracy(float(right[few].mean()), LEAST_ACCURACY, ROLES["mdm"][0])
    # 2. what added masks draw, and what the answer loses
    taken = (wide["mass"][many] - wide["mass"][few]).to_numpy(dtype=float)
    beyond = {n: (wide["mass"][n] - wide["even"][n]).to_numpy(dtype=float) for n in (few, many)}
    lost = (wide["logprob"][many] - wide["logprob"][few]).to_numpy(dtype=float)
    # 3. their correlation, as a function of moments
    moments = np.stack([taken, lost, taken * lost, taken**2, lost**2], axis=1)
    return Finding(
        {
            "cost": Measured(Estimate.pairs(right[many], right[few], ITEM), null=0.0),
            "taken": Measured(Estimate.mean(taken, ITEM, DIFFERENCE), null=0.0),
            "beyond": Measured(
                Estimate.mean(beyond[many], ITEM, DIFFERENCE), 0.0, mean_of(wide["even"][many])
            ),
            "explains": Measured(
                Correlation.jackknife(moments, correlation_of_moments, ITEM), null=0.0
            ),
        },
        {
            "right before few masks": float(right[few].mean()),
            "beyond indifferent attention before few masks": mean_of(beyond[few]),
        },
    )


@register_claim(
    "sinks/H23",
    "What a rule by standard deviations calls a sink, the paper's rule calls one too.",
    source=f"beside {_PAPER}; its neighbours' definitions",
    reported="not studied",
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "zscore",
            "share of the keys three standard deviations above the mean whose column sum is above "
            "eps = 3",
            GREATER,
            0.8,
            "four in five: else the rules speak of different keys",
            null="any key is as often above eps = 3",
        ),
        Criterion(
            "gu",
            "the same of keys with a share above 0.3 of the queries that see them",
            GREATER,
            0.8,
            "of more than 13 keys it cannot be otherwise where all queries see all keys",
            null="any key is as often above eps = 3",
            decides=False,
        ),
    ),
    origin=OURS,
    preconditions=(is_trained(), has_sinks(MDM_RUNS)),
    changes=(
        Change(
            "Asks whether sinks of the stricter rule are sinks of the paper's.",
            "nobody says that rules agree; at the paper's 2.6 sinks of 64 tokens a rule that finds "
            "one of them has a kappa of .55, below the .6 that was asked for",
            "asked for a kappa of .6 with three rules, .433, refuted",
        ),
        _SINKS,
    ),
    caveat="a rule that never fires has no share",
)
def measure_rules_nested(evidence: Evidence) -> Finding:
    measured: dict[str, Measured] = {}
    also: dict[str, float | str] = {}
    for other in OTHER_RULES:
        name = type(other).__name__
        share, chance = nested_share(evidence, MDM_RUNS, name)
        measured[name] = Measured(Estimate.mean(share, PROMPT, SHARE), null=mean_of(chance))
        options = {"rules": (PAPER_RULE, other)}
        kappa = by_prompt(evidence, MDM_RUNS, "agreement", "kappa", over="rules", options=options)
        also[f"kappa with {name}"] = mean_or_absent(kappa.value[:, 0])
    for rule in (PAPER_RULE, *OTHER_RULES):
        share = by_prompt(evidence, MDM_RUNS, "sinks", "incidence", options={"rule": rule}).value
        also[f"heads and steps with a sink, {type(rule).__name__}"] = mean_of(share)
    return Finding(measured, also)


register_untested_claim(
    "sinks/H24",
    "Instruction tuning, or a start from an autoregressive model, changes sinks.",
    source=f"beside {_PAPER}, Sec. 8: only instruct models were studied",
    reported="not studied",
    origin=OURS,
    unit=PROMPT,
    caveat="Dream beside LLaDA differs in data and architecture as well as in its start",
    lacks="a second masked diffusion model beside --model: the same one before it was tuned on "
    "instructions, or, of an arm that goes on from a next-token network, the same arm trained "
    "from scratch with three seeds in the table of variants (all arms there have a stem)",
)


@register_claim(
    "sinks/H25",
    "After a sink is hidden a new one forms: its attention goes to one other key, more than "
    "that of other keys does.",
    source=f"beside {_PAPER}",
    reported="unknown",
    unit=PROMPT,
    needs=(HIDDEN_SINKS,),
    criteria=(
        Criterion(
            "new",
            "share of the freed attention that keys take which the rule calls sinks only now; "
            "the same difference",
            GREATER,
            0.05,
            "a twentieth of what was freed: a sink that takes less did not take its place",
            null="the same as the control",
            control="as many other keys, drawn for each run, beyond proportion",
        ),
        Criterion(
            "gainer",
            "share of the freed attention that the key which gains most takes, beyond what it "
            "would if all gained in proportion; a sink hidden less another key hidden",
            GREATER,
            0.05,
            "a twentieth of what was freed",
            null="the same as the control",
            control="as many other keys, drawn for each run, beyond proportion",
            decides=False,
        ),
    ),
    origin=OURS,
    preconditions=(is_trained(), has_sinks(MDM_TEXT), writes_text(MDM_TEXT)),
    changes=(
        Change(
            "What new sinks take decides; the greatest gain is also measured.",
            "a new sink is what the sentence is about. Keys that are no sinks lose attention in "
            "heads that look near by, where one query's goes to one neighbour: the control's "
            "greatest gain is near 1 whatever sinks do",
            "asked for both; refuted a wired network in which one new sink takes all (-.82)",
        ),
        _TEXT,
        _SINKS,
    ),
)
def measure_recovery(evidence: Evidence) -> Finding:
    measured = {}
    for name, outcome in (("new", "new_sink_share"), ("gainer", "largest_gainer")):
        beyond, control = (
            by_effect(evidence, HIDDEN_SINKS, outcome, series)
            for series in ("did", "control_difference")
        )
        measured[name] = Measured(
            Estimate.mean(beyond, PROMPT, DIFFERENCE_OF_DIFFERENCES), 0.0, mean_of(control)
        )
    even, expected = (
        mean_of(by_effect(evidence, HIDDEN_SINKS, "gain_entropy", series))
        for series in ("edited", "null")
    )
    also: dict[str, float | str] = {"evenness of gains": even, "if in proportion": expected}
    for words, outcome in (("greatest gain", "largest_gainer"), ("new sinks", "new_sink_share")):
        also[f"{words} beyond proportion"] = mean_of(
            by_effect(evidence, HIDDEN_SINKS, outcome, "difference")
        )
    return Finding(measured, also)


@register_claim(
    "sinks/H26",
    "Sinks of a masked diffusion model stand in the middle or towards the end too, those of an "
    "autoregressive model at the beginning.",
    source=f"{_PAPER}, Sec. 4.2 and 5.3",
    reported="not necessarily at the beginning, but also in the middle or towards the end; ARMs: "
    "usually only at the beginning",
    origin=PAPER,
    unit=PROMPT,
    needs=(MDM_TEXT, ARM_TEXT),
    criteria=(
        Criterion(
            "middle or end",
            "share of a head's greatest sinks that stand beyond the first third of the keys, MDM",
            GREATER,
            0.1,
            "also is more than an exception: one in ten",
            null="sinks anywhere",
        ),
        Criterion(
            "beside the ARM",
            "the same share, MDM less ARM on the same prompts",
            GREATER,
            0.0,
            "more than an ARM's is what is said",
            null="no difference between the models",
            control="the ARM",
        ),
        Criterion(
            "first token",
            "share of the ARM's greatest sinks that stand at its first token",
            GREATER,
            0.5,
            "usually: more than half",
            null="sinks anywhere",
            decides=False,
        ),
    ),
    preconditions=(
        is_trained(),
        has_sinks(MDM_TEXT),
        has_first_key_sink(ARM_TEXT),
        writes_text(MDM_TEXT),
    ),
    changes=(
        Change(
            "A new claim.",
            "the sentence was in no claim",
            "nothing was asked",
        ),
    ),
    caveat="the causal mask lets early keys receive more, whatever an ARM learnt",
)
def measure_standing(evidence: Evidence) -> Finding:
    beyond, arm = (standing_share(evidence, spec, "beyond") for spec in (MDM_TEXT, ARM_TEXT))
    first = standing_share(evidence, ARM_TEXT, "first")
    anywhere = standing_share(evidence, MDM_TEXT, "beyond", null=True)
    first_anywhere = standing_share(evidence, ARM_TEXT, "first", null=True)
    return Finding(
        {
            "middle or end": Measured(Estimate.mean(beyond, PROMPT, SHARE), mean_of(anywhere)),
            "beside the ARM": Measured(
                Estimate.mean(beyond - arm, PROMPT, DIFFERENCE), 0.0, mean_of(arm)
            ),
            "first token": Measured(Estimate.mean(first, PROMPT, SHARE), mean_of(first_anywhere)),
        },
        {
            "at the first token, MDM": mean_of(standing_share(evidence, MDM_TEXT, "first")),
            "on a masked position, MDM": mean_of(standing_share(evidence, MDM_TEXT, "future")),
        },
    )


@register_claim(
    "sinks/H27",
    "Hiding the greatest sink of every head costs a masked diffusion model under one point of "
    "accuracy.",
    source=f"{_PAPER}, Sec. 4.3",
    reported="smaller than 1 % for all tested models",
    origin=PAPER,
    unit=ITEM,
    needs=(MDM_HIDDEN,),
    criteria=(
        Criterion(
            "one point",
            "change of accuracy with one sink of every head hidden",
            GREATER,
            -0.01,
            "under one point is what is claimed",
            null="an edit that does nothing",
            control="another key of every head hidden",
            published={"LLaDA": 0.75 - 0.76, "Dream": 0.79 - 0.82, "MMaDA": 0.53 - 0.54},
        ),
    ),
    defect="not seen; one seed, no random control",
    contradiction="Table 1 has Dream at .82 and .79 on GSM8K, three points; LLaDA and MMaDA lose "
    "one, as printed neither more nor less than a point; on HumanEval's 164 questions a point "
    "cannot be told from none",
    preconditions=(is_trained(), has_sinks(MDM_RUNS), *_MDM_ROOM),
    changes=(
        Change(
            "A claim of its own, no part of H13.",
            "a loss under a point and the contrast with ARMs are two sentences",
            "was one of two criteria of H13; of 400 items not one may differ for it to be shown",
        ),
        _HIDING,
        _SINKS,
    ),
    caveat="a point is little: 440 items of which none changes show it, and where one item in "
    "fifty changes some 4000 do; --budget full has 2000; " + _HIDDEN_NOT_GSM8K,
)
def measure_one_point(evidence: Evidence) -> Finding:
    changes = changes_of_accuracy(evidence, MDM_HIDDEN)
    right = changes["none"]
    effect = Estimate.pairs(right + changes["sinks 1"], right, ITEM)
    return Finding(
        {"one point": Measured(effect, 0.0, mean_of(changes["random"]))},
        {
            "unedited": mean_of(right),
            "share of answers that change": mean_of(changes["sinks 1"] != 0),
        },
    )


@register_claim(
    "sinks/H28",
    "With five sinks of every head hidden a masked diffusion model still loses little.",
    source=f"{_PAPER}, Sec. 4.3, Table 1",
    reported="GSM8K, five: LLaDA .73, Dream .78, MMaDA .54; ten: .55, .75, .37",
    origin=PAPER,
    unit=ITEM,
    needs=(MDM_HIDDEN,),
    criteria=(
        Criterion(
            "five",
            "change of accuracy with five sinks of every head hidden",
            GREATER,
            -0.1,
            "modest; what the paper calls substantial is .17 and .21, and what it does not is .04",
            null="an edit that does nothing",
            published={"LLaDA": 0.73 - 0.76, "Dream": 0.78 - 0.82, "MMaDA": 0.54 - 0.54},
        ),
    ),
    preconditions=(is_trained(), has_sinks(MDM_RUNS), *_MDM_ROOM),
    changes=(
        Change(
            "Ten hidden sinks are a claim of their own (H36).",
            "the paper says two things: little at five, much only at ten",
            "the sentence named both, and five alone decided: a model that loses nothing at ten "
            "was supported",
        ),
        Change(
            "A new claim.",
            "Table 1 has one, five and ten sinks; claims had one",
            "nothing was asked",
        ),
        _HIDING,
    ),
    caveat=_HIDDEN_NOT_GSM8K,
)
def measure_five_sinks(evidence: Evidence) -> Finding:
    changes = changes_of_accuracy(evidence, MDM_HIDDEN)
    right = changes["none"]
    effect = Estimate.pairs(right + changes["sinks 5"], right, ITEM)
    return Finding(
        {"five": Measured(effect, null=0.0)},
        {"unedited": mean_of(right), "change with ten hidden": mean_of(changes["sinks 10"])},
    )


@register_claim(
    "sinks/H29",
    "Hiding the greatest sink of every head destroys an autoregressive model.",
    source=f"{_PAPER}, Sec. 4.3, Table 1",
    reported="Llama: GSM8K .85 to .02, HumanEval .66 to .00",
    origin=PAPER,
    unit=ITEM,
    needs=(ARM_HIDDEN,),
    criteria=(
        Criterion(
            "half",
            "accuracy with one sink of every head hidden, less half of the unedited accuracy",
            LESS,
            0.0,
            "severe: more than half of what it got right is lost",
            null="an edit that does nothing: half of the accuracy",
            control="another key of every head hidden",
            published={"Llama, GSM8K": 0.02 - 0.85 / 2, "Llama, HumanEval": 0.0 - 0.66 / 2},
        ),
    ),
    preconditions=_ARM_ROOM,
    changes=(
        Change(
            "A claim of its own, no part of H13; half of its accuracy, not fifty points.",
            "it is a sentence about ARMs; a model that is right in .4 of its answers cannot lose "
            ".5",
            "asked the ARM to lose fifty points, -.105, refuted, of a model without a sink at its "
            "first token",
        ),
        _LONG_ANSWERS,
        _HIDING,
    ),
    caveat=_HIDDEN_NOT_GSM8K,
)
def measure_arm_fails(evidence: Evidence) -> Finding:
    changes = changes_of_accuracy(evidence, ARM_HIDDEN)
    right = changes["none"]
    kept = right + changes["sinks 1"] - right / 2
    control = mean_of(right + changes["random"] - right / 2)
    return Finding(
        {"half": Measured(Estimate.mean(kept, ITEM, (-0.5, 1.0)), mean_of(right) / 2, control)},
        {"unedited": mean_of(right), "change": mean_of(changes["sinks 1"])},
    )


@register_claim(
    "sinks/H30",
    "A new sink takes the self-attention of the tokens that turn to it.",
    source=f"{_PAPER}, Fig. 4b",
    reported="of a sink of MMaDA: absorbs the self-attention from each of the tokens paying it "
    "attention",
    origin=PAPER,
    unit=PROMPT,
    needs=(HEAD_MAPS,),
    criteria=(
        Criterion(
            "beyond proportion",
            "share of the attention to themselves that queries lose which turn to a new sink, less "
            "what they would lose if all other keys did in proportion",
            GREATER,
            0.01,
            "self-attention is what is named, and not all attention; a hundredth, for rounding is "
            "no loss",
            null="all keys lose in proportion",
            control="in proportion",
        ),
        Criterion(
            "most",
            "share of the attention to themselves that these queries lose",
            GREATER,
            0.5,
            "absorbs: more than half of it",
            null="all keys lose in proportion",
            decides=False,
        ),
    ),
    scope=_MMADA,
    preconditions=(is_trained(), has_turning_queries()),
    changes=(
        Change(
            "A new claim.",
            "the caption of Fig. 4b was in no claim",
            "nothing was asked",
        ),
        Change(
            "The margin is a hundredth, not zero.",
            "where all queries look alike the loss is in proportion exactly, and the sign of what "
            "is left is rounding",
            "supported wired networks whose self-attention is lost in proportion (1e-8)",
        ),
    ),
    caveat="the paper shows one sink of one head",
)
def measure_self_attention(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[HEAD_MAPS]
    units = table.groupby("unit")
    lost, expected = units["self_lost"].mean(), units["self_expected"].mean()
    return Finding(
        {
            "beyond proportion": Measured(
                Estimate.mean(lost - expected, PROMPT), 0.0, mean_of(expected)
            ),
            "most": Measured(Estimate.mean(lost, PROMPT), null=mean_of(expected)),
        },
        {"queries that turn, of a prompt": float(units["turned"].sum().mean())},
    )


@register_claim(
    "sinks/H31",
    "A masked diffusion model can do without its oldest context, an autoregressive one cannot.",
    source=f"{_PAPER}, Sec. 5.3",
    reported="asserted: moving sinks, often in the future, allow the model to discard the past "
    "without significant degradation; not measured",
    origin=PAPER,
    unit=PROMPT,
    needs=(DISCARDED["mdm"], DISCARDED["arm"], MDM_TEXT),
    criteria=(
        Criterion(
            "beside the ARM",
            "share of predictions that stay when an unrelated oldest passage and the first token "
            "are hidden from new rows, MDM less ARM",
            GREATER,
            0.05,
            "one prediction in twenty; no number is given",
            null="both keep as many",
            control="the ARM",
        ),
        Criterion(
            "beside another passage",
            "the same share of the MDM, less that when another unrelated passage is hidden",
            GREATER,
            -0.05,
            "without significant degradation: no more than one in twenty beyond other context",
            null="as much as another passage",
            control="another unrelated passage",
            decides=False,
        ),
    ),
    preconditions=(
        is_trained(),
        has_sinks(MDM_TEXT),
        writes_text(MDM_TEXT),
        has_first_key_sink(),
        loses_something(
            "discarding the oldest passage, beyond another one,",
            (DISCARDED["arm"],),
            lost_to_oldest,
            minimum=0.05,
        ),
    ),
    changes=(
        Change(
            "A new claim.",
            "the assertion of Sec. 5.3 was in no claim",
            "nothing was asked",
        ),
    ),
    caveat="predictions on the frames of the unedited run, not accuracy; what an ARM computed "
    "before stays in its cache, a masked model computes all anew",
)
def measure_discarding(evidence: Evidence) -> Finding:
    mdm, arm = (by_discarded(evidence, role)["agreement"] for role in ("mdm", "arm"))
    beside = (mdm["oldest"] - arm["oldest"]).to_numpy(dtype=float)
    other = (mdm["oldest"] - mdm["other"]).to_numpy(dtype=float)
    future = standing_share(evidence, MDM_TEXT, "future")
    return Finding(
        {
            "beside the ARM": Measured(
                Estimate.mean(beside, PROMPT, DIFFERENCE), 0.0, mean_of(arm["oldest"])
            ),
            "beside another passage": Measured(
                Estimate.mean(other, PROMPT, DIFFERENCE), 0.0, mean_of(mdm["other"])
            ),
        },
        {
            "predictions of the MDM that stay": mean_of(mdm["oldest"]),
            "predictions of the ARM that stay without another passage": mean_of(arm["other"]),
            "greatest sinks of the MDM on positions yet to be written": mean_of(future),
        },
    )


@register_claim(
    "sinks/H32",
    "The sink's way to the left is most prominent in early layers.",
    source=f"{_PAPER}, Sec. 4.2 on Dream",
    reported="of Dream: right-to-left migration is most prominent in early layers",
    origin=PAPER,
    unit=PROMPT,
    needs=(FREE_RUNS,),
    criteria=(
        Criterion(
            "early",
            "Kendall's tau of a head's greatest sink with the step, first half of the layers less "
            "the last",
            LESS,
            0.0,
            "more to the left in early layers is what is said",
            null="alike in all layers",
            control="the last half of the layers",
        ),
    ),
    scope=_DREAM,
    preconditions=(
        is_trained(),
        has_sinks(FREE_RUNS),
        writes_text(FREE_RUNS),
        has_layers(4, FREE_RUNS),
    ),
    changes=(
        Change(
            "A claim of its own, about the way to the left; was a part of H7.",
            "the sentence is about the migration, not about how often the frontier is hit",
            "asked for more hits of the frontier in early layers, as one of four criteria",
        ),
    ),
)
def measure_early_drift(evidence: Evidence) -> Finding:
    first, last = (drift_of_half(evidence, half) for half in (FIRST_HALF, LAST_HALF))
    return Finding(
        {
            "early": Measured(
                Estimate.mean(first - last, PROMPT, DIFFERENCE_OF_DIFFERENCES), 0.0, mean_of(last)
            )
        },
        {"tau in the first half of the layers": mean_of(first)},
    )


@register_claim(
    "sinks/H33",
    "Where a token stands decides whether it is a sink, more than what it is.",
    source=f"{_PAPER}, Sec. 4.2 on Dream",
    reported="of Dream: primarily a positional rather than a semantic pattern",
    origin=PAPER,
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "place",
            "share of the variance of sink or not that the tenth of the canvas explains on other "
            "steps, less the share that token class explains, each beyond permuted keys",
            GREATER,
            0.02,
            "two hundredths of the variance, as in H11",
            null="keys permuted within steps",
        ),
    ),
    scope=_DREAM,
    preconditions=(is_trained(), has_sinks(MDM_RUNS)),
    changes=(
        Change(
            "A new claim: the contrary of H11, which the paper says of Dream.",
            "a Dream that did as the paper says used to refute H11",
            "nothing was asked",
        ),
    ),
    caveat="no token was moved to another place: it is no cause",
)
def measure_position_or_class(evidence: Evidence) -> Finding:
    explained = class_and_place(evidence)
    gap = explained["place"] - explained["class"]
    return Finding(
        {"place": Measured(Estimate.mean(gap, PROMPT), null=0.0)},
        {f"explained by {name} beyond chance": mean_of(each) for name, each in explained.items()},
    )


@register_claim(
    "sinks/H34",
    "Most layers have no clear sink.",
    source=f"{_PAPER}, Sec. 4.2 on MMaDA",
    reported="of MMaDA: most layers showing no clear sink patterns at all",
    origin=PAPER,
    unit=PROMPT,
    needs=(MDM_TEXT,),
    criteria=(
        Criterion(
            "layers",
            "share of layers whose attention, mean over heads, has no sink (Eq. 3) at most steps",
            GREATER,
            0.5,
            "most is more than half",
        ),
        Criterion(
            "heads",
            "share of heads that have no sink at more than nine steps in ten",
            GREATER,
            0.5,
            "the same of heads",
            decides=False,
        ),
    ),
    scope=_MMADA,
    preconditions=(is_trained(), writes_text(MDM_TEXT), has_layers(4, MDM_TEXT)),
    changes=(
        Change(
            "Counts layers, by their mean over heads; heads are also measured.",
            "the sentence is of layers and of clear sinks; that of Fig. 7 tells the sink of a head "
            "from the averaged one",
            "was a part of H8, of heads with nothing above four times an even share",
        ),
        _SCOPE,
        _TEXT,
    ),
)
def measure_layers_without(evidence: Evidence) -> Finding:
    clear = layer_means(evidence, MDM_TEXT, "clear")
    without = np.where(np.isnan(clear).any(axis=1), np.nan, (clear <= 0.5).mean(axis=1))
    types = by_prompt(evidence, MDM_TEXT, "head_type_shares", "share_of_heads", over="type")
    none = types.value[:, types.labels.index("none")]
    return Finding(
        {
            "layers": Measured(Estimate.mean(without, PROMPT, SHARE)),
            "heads": Measured(Estimate.mean(none, PROMPT, SHARE)),
        },
        {"share of layers and steps with a clear sink": mean_of(clear.mean(axis=1))},
    )


_BOTH = ("key_drift", "value_drift")


@register_claim(
    "sinks/H35",
    "The most attended token is the one whose keys and values drift least.",
    source="arXiv 2510.14973 (Elastic-Cache), abstract",
    reported="the most-attended token exhibits the smallest KV drift, a conservative lower bound "
    "on cache change for other tokens",
    unit=PROMPT,
    needs=(DRIFT_RUNS,),
    criteria=(
        Criterion(
            "least",
            "share of the other keys whose key and value change more from one step to the next "
            "than those of the most attended key (attention mean over heads), mean over steps and "
            "layers; ties count half",
            GREATER,
            0.9,
            "the least of all would be 1; nine in ten leaves room for near-ties",
            null="one half: any other key in its place",
        ),
        Criterion(
            "keys",
            "the same of keys alone",
            GREATER,
            0.9,
            "as above",
            null="one half: any other key in its place",
            decides=False,
        ),
        Criterion(
            "values",
            "the same of values alone",
            GREATER,
            0.9,
            "as above",
            null="one half: any other key in its place",
            decides=False,
        ),
    ),
    origin=NEIGHBOUR,
    preconditions=(is_trained(), has_sinks(DRIFT_RUNS), writes_text(DRIFT_RUNS), keys_drift()),
    changes=(
        Change(
            "A new claim: the premise of a cache that is refreshed by attention.",
            "the sentence is what Elastic-Cache's test of drift rests on",
            "nothing was asked",
        ),
    ),
    caveat="drift is of exact runs; which cache it would spoil is measured by aw.compare_caches",
)
def measure_least_drift(evidence: Evidence) -> Finding:
    runs: TraceSet = evidence[DRIFT_RUNS]
    measured = {}
    for name, fields in (("least", _BOTH), ("keys", _BOTH[:1]), ("values", _BOTH[1:])):
        each = by_trace(runs, partial(share_that_drifts_more, names=fields))
        measured[name] = Measured(Estimate.mean(each, PROMPT, SHARE), null=0.5)
    drifts = by_trace(runs, lambda trace: float(np.nanmean(trace["key_drift"].values)))
    return Finding(measured, {"mean change of a key, share of its norm": mean_of(drifts)})


@register_claim(
    "sinks/H36",
    "Ten hidden sinks of every head cost a masked diffusion model clearly more than five.",
    source=f"{_PAPER}, Sec. 4.3, Table 1",
    reported="GSM8K, ten less five: LLaDA -.18, Dream -.03, MMaDA -.17",
    origin=PAPER,
    unit=ITEM,
    needs=(MDM_HIDDEN,),
    criteria=(
        Criterion(
            "ten",
            "accuracy with ten sinks of every head hidden, less that with five",
            LESS,
            -0.05,
            "five points: what the paper calls substantial is .17 and .18, what it does not .03",
            null="no more than with five",
            published={"LLaDA": 0.55 - 0.73, "Dream": 0.75 - 0.78, "MMaDA": 0.37 - 0.54},
        ),
    ),
    contradiction="in Dream ten cost three points more than five; the paper adds that it is mostly "
    "MMaDA: in points LLaDA loses more at ten on GSM8K (.21 against .17), as a share of the "
    "unedited accuracy MMaDA does (31 % against 28 %)",
    preconditions=(is_trained(), has_sinks(MDM_RUNS), *_MDM_ROOM, _ROOM_AFTER_FIVE),
    changes=(
        Change(
            "A claim of its own, the second half of what H28 said.",
            "little at five and much only at ten are two sentences. The margin lies between the "
            "paper's numbers; values on the tales (-.03) were known",
            "was measured beside H28 and decided nothing",
        ),
        Change(
            "Asks for answers that are left with five sinks hidden.",
            "who answers nothing with five hidden cannot lose more with ten",
            "room in the unedited answers was enough: a model at 0 with five was refuted",
        ),
        _HIDING,
    ),
    caveat=_HIDDEN_NOT_GSM8K,
)
def measure_ten_sinks(evidence: Evidence) -> Finding:
    changes = changes_of_accuracy(evidence, MDM_HIDDEN)
    right = changes["none"]
    five, ten = (right + changes[f"sinks {k}"] for k in (5, 10))
    return Finding(
        {"ten": Measured(Estimate.pairs(ten, five, ITEM), null=0.0)},
        {"unedited": mean_of(right), "change with ten hidden": mean_of(changes["sinks 10"])},
    )
