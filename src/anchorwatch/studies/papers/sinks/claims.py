"""The claims of the attention sinks paper (arXiv 2510.15731) and its neighbours, in its order."""

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
    Criterion,
    Finding,
    Measured,
    Paper,
    register_claim,
    register_paper,
    register_untested_claim,
)
from anchorwatch.studies.estimate import ITEM, PROMPT, Correlation, Estimate
from anchorwatch.studies.evidence import ROLES, Evidence, TraceSet
from anchorwatch.studies.measure import (
    ARM_RUNS,
    DIFFERENCE,
    DIFFERENCE_OF_DIFFERENCES,
    EVERY_LAYER,
    FIRST_HALF,
    FROZEN_RUNS,
    LAST_HALF,
    MDM_RUNS,
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
    require_accuracy,
    sink_moves,
)
from anchorwatch.studies.papers.sinks.measures import (
    ADDED_MASKS,
    ALIKE_COSINE,
    BLOCK_RUNS,
    DELAYS,
    DOSES,
    FOUND_IN_EDITED,
    HEAD_MAPS,
    HIDDEN_ANSWERS,
    HIDDEN_SINKS,
    LEAST_ACCURACY,
    LEAST_ACCURACY_BY_ROLE,
    LEAST_MASKS,
    LONG_STAY,
    MANY_STEPS,
    NAMED_CLASSES,
    ONE_STEP,
    OTHER_RULES,
    PAPER_RULE,
    TOP_KEY_RULE,
    at_age,
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
    first_step_hits,
    frontier_hit_share,
    mean_or_absent,
    mean_over_layers,
    share_without_sinks,
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
_GIVEN = "here of the model that is given, whichever it is"


@register_claim(
    "sinks/H1",
    "Heads have keys that take more attention than chance would give any.",
    source=f"{_PAPER}, Fig. 3 and 9",
    reported="few tokens very high, most near 0",
    unit=PROMPT,
    needs=(HEAD_MAPS, MDM_RUNS),
    criteria=(
        Criterion(
            "above",
            "share of maps (step, layer, head) whose greatest key receives more than the "
            "greatest of each of 19 maps with shuffled rows",
            GREATER,
            0.5,
            "most heads and steps must have one",
            null="every row's attention dealt out to its keys anew: one in twenty",
        ),
        Criterion(
            "greatest",
            "column sum of the greatest key, less that in maps with shuffled rows, mean over "
            "heads and steps; 1 is even attention",
            GREATER,
            0.0,
            "more than chance is what is said; in how many heads is the other criterion's",
            null="no more than chance",
            control="every row's attention dealt out to its keys anew",
        ),
    ),
    draw=draw_score_histogram,
    defect=_SCALE,
)
def measure_sinks_exist(evidence: Evidence) -> Finding:
    units = evidence[HEAD_MAPS].groupby("unit")
    above, greatest, shuffled = (units[name].mean() for name in ("above", "greatest", "shuffled"))
    beyond = Estimate.mean(greatest - shuffled, PROMPT)
    return Finding(
        {
            "above": Measured(Estimate.mean(above, PROMPT, SHARE), null=1 / 20),
            "greatest": Measured(beyond, null=0.0, control=float(shuffled.mean())),
        },
        {"column sum of the greatest key": float(greatest.mean())},
    )


@register_claim(
    "sinks/H2",
    "The criterion (eps = 3) calls few tokens sinks: at least 96 % are none, in a masked "
    "diffusion model.",
    source=f"{_PAPER}, Fig. 10",
    reported="at least 96 % at eps = 3",
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
    defect=_SCALE,
    caveat="even attention passes too: it says that sinks are few, not that there are any; "
    "said of three models, here of the one that is given",
)
def measure_few_sinks(evidence: Evidence) -> Finding:
    shares = {scale: share_without_sinks(evidence, scale) for scale in ("sum", "percent")}
    effect = Estimate.mean(shares["sum"], PROMPT, SHARE)
    also = {"on the percent scale": mean_of(shares["percent"])}
    return Finding({"sum": Measured(effect, null=1.0)}, also)


@register_claim(
    "sinks/H3",
    "The greatest sink of a masked diffusion model moves over steps, more than an "
    "autoregressive model's.",
    source=f"{_PAPER}, Fig. 1, 4 and 7",
    reported="LLaDA and Dream move; MMaDA and Llama do not",
    unit=PROMPT,
    needs=(MDM_RUNS, ARM_RUNS, FROZEN_RUNS),
    criteria=(
        Criterion(
            "beside the ARM",
            "of rows that predict: share of neighbouring pairs of commits whose common sink "
            "(a key with more than 0.3 of both rows) is another, MDM less ARM on the same "
            "prompts",
            GREATER,
            0.05,
            "one in twenty: less could not be seen in the paper's figures",
            null="no difference between the models",
            control="the ARM",
        ),
        Criterion(
            "moves",
            "of all rows: share of neighbouring steps with a sink at which a head's greatest "
            "sink is another, MDM",
            GREATER,
            0.05,
            "one step in twenty",
            null="steps shuffled",
            control="a frozen canvas, 0 by determinism: a check of the measurement",
        ),
    ),
    draw=draw_sink_paths,
    caveat="over all rows the ARM's greatest key is nearly fixed by its mask, so that models "
    "are compared in the rows that predict a token, two at a time; a sink that never stays for "
    "two commits is not seen there",
)
def measure_sink_moves(evidence: Evidence) -> Finding:
    mdm, frozen = (
        by_prompt(evidence, spec, "jumps", "jump_rate") for spec in (MDM_RUNS, FROZEN_RUNS)
    )
    any_key, arm_key = (
        mean_of(by_prompt(evidence, spec, "jumps", "jump_rate_any").value)
        for spec in (MDM_RUNS, ARM_RUNS)
    )
    rows = {spec.role: by_trace(evidence[spec], sink_moves) for spec in (MDM_RUNS, ARM_RUNS)}
    beside = Estimate.mean(rows["mdm"] - rows["arm"], PROMPT, DIFFERENCE)
    return Finding(
        {
            "beside the ARM": Measured(beside, null=0.0, control=mean_of(rows["arm"])),
            "moves": Measured(
                Estimate.mean(mdm.value, PROMPT, SHARE), mean_of(mdm.null), mean_of(frozen.value)
            ),
        },
        {
            "rows that predict, MDM": mean_of(rows["mdm"]),
            "greatest key of all rows, sink or not, MDM": any_key,
            "the same of the ARM, whose mask all but fixes it": arm_key,
        },
    )


@register_claim(
    "sinks/H4",
    "Attention maps of neighbouring steps are alike, and yet the greatest sink jumps.",
    source=f"{_PAPER}, Fig. 4, against SparseD",
    reported="contradictory between papers: patterns stay similar, sinks move",
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
    caveat="heads count alike here and steps in sinks/H3, so that heads with a sink at few "
    "steps, which jump more, weigh more here",
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
    "A sink stays for some steps and then vanishes; some live one step only.",
    source=f"{_PAPER}, Fig. 6b and text",
    reported="qualitative",
    unit=PROMPT,
    needs=(MDM_RUNS,),
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
            0.05,
            "one stay in twenty: fewer would be exceptions",
            null="steps shuffled",
        ),
    ),
    draw=draw_survival,
)
def measure_stays(evidence: Evidence) -> Finding:
    curve = by_prompt(evidence, MDM_RUNS, "survival", "survival", over="age")
    flicker = by_prompt(evidence, MDM_RUNS, "lifetime", "flicker")
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
    "Written block by block, the sink moves to the right with the blocks, and jumps where one "
    "begins.",
    source=f"{_PAPER}, Fig. 7",
    reported="qualitative, of LLaDA",
    unit=PROMPT,
    needs=(BLOCK_RUNS,),
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
        ),
    ),
    draw=draw_block_paths,
    caveat=f"said of LLaDA, {_GIVEN}",
)
def measure_block_drift(evidence: Evidence) -> Finding:
    tau = by_prompt(evidence, BLOCK_RUNS, "direction", "tau")
    opening, inside = (
        by_prompt(evidence, BLOCK_RUNS, "block_jumps", f"jump_rate_{where}").value
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
    "the left, most in early layers.",
    source=f"{_PAPER}, Fig. 7 and 8b",
    reported="qualitative, of Dream",
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "left",
            "Kendall's tau of a head's greatest sink with the step",
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
            "one head in twenty beyond chance",
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
        ),
        Criterion(
            "early",
            "the same share in the first half of the layers less that in the last",
            GREATER,
            0.02,
            "strongest in early layers is what is said; no number is given",
            null="alike in all layers",
        ),
    ),
    caveat=f"said of Dream, {_GIVEN}; a third-party count finds most of Dream's heads fixed",
)
def measure_frontier(evidence: Evidence) -> Finding:
    tau = by_prompt(evidence, MDM_RUNS, "direction", "tau").value
    hits = {
        half: frontier_hit_share(evidence, half) for half in (EVERY_LAYER, FIRST_HALF, LAST_HALF)
    }
    chance, first_chance = (
        frontier_hit_share(evidence, EVERY_LAYER, chance=True),
        first_step_hits(evidence, chance=True),
    )
    first = first_step_hits(evidence)
    beyond = {"begins": (first, first_chance), "frontier": (hits[EVERY_LAYER], chance)}
    early = hits[FIRST_HALF] - hits[LAST_HALF]
    return Finding(
        {"left": Measured(Estimate.mean(tau, PROMPT, DIFFERENCE), null=0.0)}
        | {
            name: Measured(Estimate.mean(mine - even, PROMPT, DIFFERENCE), 0.0, mean_of(even))
            for name, (mine, even) in beyond.items()
        }
        | {"early": Measured(Estimate.mean(early, PROMPT, DIFFERENCE), null=0.0)},
        {"hits": mean_of(hits[EVERY_LAYER]), "hits at the first step": mean_of(first)},
    )


@register_claim(
    "sinks/H8",
    "The sink is static, and most heads have none.",
    source=f"{_PAPER}, Fig. 7 and 8a",
    reported="qualitative, of MMaDA",
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "modal",
            "share of the steps with a sink at which it is where it is most often",
            GREATER,
            0.9,
            "the limit from which a head's sink is called static",
            null="positions drawn evenly",
        ),
        Criterion(
            "none",
            "share of heads that have no sink at more than nine steps in ten",
            GREATER,
            0.5,
            "most is more than half",
        ),
    ),
    draw=draw_head_types,
    caveat=f"said of MMaDA, {_GIVEN}; the comparison with LLaDA takes two such models",
)
def measure_static(evidence: Evidence) -> Finding:
    modal = by_prompt(evidence, MDM_RUNS, "spread", "modal_share")
    types = by_prompt(evidence, MDM_RUNS, "head_type_shares", "share_of_heads", over="type")
    none = types.value[:, types.labels.index("none")]
    return Finding(
        {
            "modal": Measured(Estimate.mean(modal.value, PROMPT, SHARE), mean_of(modal.null)),
            "none": Measured(Estimate.mean(none, PROMPT, SHARE)),
        },
        {
            f"{name} heads": mean_of(types.value[:, column])
            for column, name in enumerate(types.labels)
        },
    )


@register_claim(
    "sinks/H9",
    "Deeper layers have fewer and stronger sinks.",
    source=f"{_PAPER}, Fig. 5",
    reported="one or two in deep layers of LLaDA",
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "fewer",
            "sinks of a head and step, last half of the layers less the first",
            LESS,
            -0.1,
            "one sink in ten heads; no number is given",
            null="as many in all layers",
        ),
        Criterion(
            "stronger",
            "share of attention of the greatest key, last half of the layers over the first",
            GREATER,
            1.25,
            "a quarter more: less could not be told by the colours of the figure",
            null="indifferent attention to the same keys",
        ),
    ),
    draw=draw_sinks_by_layer,
    caveat="halves of the layers, for models of few layers",
)
def measure_fewer_and_stronger(evidence: Evidence) -> Finding:
    count, most = (
        by_prompt(evidence, MDM_RUNS, "sinks", name, over="layer") for name in ("count", "greatest")
    )
    fewer = last_half_mean(count.value) - first_half_mean(count.value)
    stronger = last_half_mean(most.value) / first_half_mean(most.value)
    even = mean_of(last_half_mean(most.null) / first_half_mean(most.null))
    last = count.value[:, -max(1, count.value.shape[1] // 4) :].mean(axis=1)
    return Finding(
        {
            "fewer": Measured(Estimate.mean(fewer, PROMPT), null=0.0),
            "stronger": Measured(Estimate.mean(stronger, PROMPT), null=even),
        },
        {"sinks of a head in the last quarter": mean_of(last)},
    )


@register_claim(
    "sinks/H10",
    "Sinks are newlines and masks far more often than chance.",
    source=f"{_PAPER}, Table 2",
    reported="LLaDA: newline .368, mask .366, full stop .050; Dream: mask .321, newline .090",
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "newline",
            "share of sinks that are newlines, less their share of the keys of the same steps",
            GREATER,
            0.05,
            "a twentieth of all sinks, half of the least that the table has for newlines",
            null="sinks anywhere",
            control="the share of such keys",
        ),
        Criterion(
            "mask",
            "the same of masks",
            GREATER,
            0.05,
            "a twentieth of all sinks; the table gives no share of keys, and masks are many",
            null="sinks anywhere",
            control="the share of such keys",
        ),
    ),
    draw=draw_token_classes,
    defect="not seen; the paper's text names end tokens, which its table does not have, and "
    "leaves out masks, which it has; the share of such keys in the text is not given",
)
def measure_enrichment(evidence: Evidence) -> Finding:
    runs: TraceSet = evidence[MDM_RUNS]
    make = partial(metrics.enrichment, list(runs.traces), by=["prompt"], matched=True)
    table = evidence.once((MDM_RUNS, "enrichment by prompt"), make)
    share, even = (by_cell(runs, table, "class", name) for name in ("value", "null"))
    measured = {
        name: Measured(
            Estimate.mean(share[name] - even[name], PROMPT, DIFFERENCE),
            null=0.0,
            control=mean_of(even[name]),
        )
        for name in NAMED_CLASSES
    }
    end = mean_of(share["end"] - even["end"]) if "end" in share else float("nan")
    classes = [name for name in (*NAMED_CLASSES, "punctuation") if name in share]
    also: dict[str, float | str] = {f"share of {name}": mean_of(share[name]) for name in classes}
    return Finding(measured, also | {"ends beyond chance": end if np.isfinite(end) else "absent"})


@register_claim(
    "sinks/H11",
    "What a token is decides whether it is a sink, more than where it stands.",
    source=f"{_PAPER}, section on sink types",
    reported="qualitative, of LLaDA; the contrary of Dream",
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
    caveat="said of LLaDA, here of the model that is given; what is refuted of it may hold of "
    "Dream. No token was changed for another: it is no cause",
)
def measure_class_or_position(evidence: Evidence) -> Finding:
    runs: TraceSet = evidence[MDM_RUNS]
    make = partial(metrics.meaning_or_place, list(runs.traces), by=["prompt"])
    table = evidence.once((MDM_RUNS, "meaning_or_place by prompt"), make)
    sink = table[table["outcome"] == "sink"]
    value, null = (by_cell(runs, sink, "quantity", name) for name in ("value", "null"))
    beyond = {name: value[name] - null[name] for name in ("class", "place")}
    gap = beyond["class"] - beyond["place"]
    return Finding(
        {"class": Measured(Estimate.mean(gap, PROMPT), null=0.0)},
        {f"explained by {name}": mean_of(value[name]) for name in ("class", "place", "token")},
    )


@register_claim(
    "sinks/H12",
    "In deep layers masked and written queries have different sinks.",
    source=f"{_PAPER}, Fig. 6a",
    reported="qualitative, of LLaDA's deepest layers",
    unit=PROMPT,
    needs=(HEAD_MAPS,),
    criteria=(
        Criterion(
            "deep",
            "how much more masked and written queries of a head each give their greatest key, "
            "where it is not the same one, than the others give it, in even shares, less the "
            "same of as large groups drawn among both; last half of the layers",
            GREATER,
            0.3,
            "one step in ten with what eps = 3 asks of a sink: the paper shows single maps and "
            "gives no rate",
            null="queries that do not differ",
            control="masked and written dealt out to the queries of the step anew",
        ),
        Criterion(
            "deeper",
            "the same, last half of the layers less the first",
            GREATER,
            0.15,
            "one step in twenty with such a sink",
            null="as much in all layers",
        ),
    ),
    caveat="of eight steps of a run; few queries always have a greatest key that stands out, "
    "so that only what groups of their size do not have counts. Masked and written positions "
    "also stand at other places, which a head that looks near by shows as well",
)
def measure_splits(evidence: Evidence) -> Finding:
    wide = evidence[HEAD_MAPS].pivot_table(index=["unit", "layer"], aggfunc="mean")
    own, drawn, split, by_chance = (
        wide[name].unstack().to_numpy(dtype=float)  # [prompt, layer]
        for name in ("own", "own_drawn", "split", "split_drawn")
    )
    beyond = own - drawn
    last = last_half_mean(beyond)
    return Finding(
        {
            "deep": Measured(Estimate.mean(last, PROMPT), 0.0, mean_of(last_half_mean(drawn))),
            "deeper": Measured(Estimate.mean(last - first_half_mean(beyond), PROMPT), null=0.0),
        },
        {
            "not the same greatest key in deep layers": mean_of(last_half_mean(split)),
            "the same of groups drawn by lot": mean_of(last_half_mean(by_chance)),
        },
    )


@register_claim(
    "sinks/H13",
    "Hiding the greatest sink of every head costs a masked diffusion model under one point of "
    "accuracy, and destroys an autoregressive one.",
    source=f"{_PAPER}, Table 1",
    reported="GSM8K: LLaDA .76 to .75, Dream .82 to .79, Llama .85 to .02",
    unit=ITEM,
    needs=(HIDDEN_ANSWERS,),
    criteria=(
        Criterion(
            "mdm",
            "accuracy with the greatest sink of every head hidden, less unedited, MDM",
            GREATER,
            -0.01,
            "under one point is what is claimed",
            null="an edit that does nothing",
            control="as many other keys hidden",
            published={"LLaDA": 0.75 - 0.76, "Dream": 0.79 - 0.82},
        ),
        Criterion(
            "arm",
            "the same of the ARM",
            LESS,
            -0.5,
            "fifty points: less would not be called destroyed; Llama loses 83",
            null="an edit that does nothing",
            control="as many other keys hidden",
            published={"Llama": 0.02 - 0.85},
        ),
    ),
    defect="not seen; the paper has no random control and one seed, does not say in which map "
    "the sinks were found, and in its own table Dream loses three points",
    caveat="accuracy of made-up questions with their passage, not GSM8K; sinks are found in "
    "the pass they are hidden in, and the ARM reads all its text at each step, as the MDM "
    "does, so that no row was made without the edit",
)
def measure_robustness(evidence: Evidence) -> Finding:
    names = ("none", "sinks", "random")
    scores = {
        role: by_item(evidence, HIDDEN_ANSWERS, [(role, "gold", name) for name in names])
        for role in HIDDEN_ANSWERS.asks
    }
    for role, least in LEAST_ACCURACY_BY_ROLE.items():
        require_accuracy(mean_of(scores[role][:, 0]), least, ROLES[role][0])
    measured, also = {}, {}
    for role, right in scores.items():
        effect = Estimate.pairs(right[:, 1], right[:, 0], ITEM)
        control = mean_of(right[:, 2] - right[:, 0])
        measured[role] = Measured(effect, null=0.0, control=control)
        also[f"{role.upper()} unedited"] = mean_of(right[:, 0])
    return Finding(measured, also)


@register_claim(
    "sinks/H14",
    "What hiding a sink does is about the sink: as many other keys hidden do less.",
    source=f"{_PAPER}, no control is reported",
    reported="never reported for diffusion models",
    unit=PROMPT,
    needs=(HIDDEN_SINKS,),
    criteria=(
        Criterion(
            "agreement",
            "share of masked positions whose likeliest token stays, sinks hidden less other "
            "keys hidden, on the same frames",
            LESS,
            -0.01,
            "one position in a hundred",
            null="the same as the control",
            control="as many other keys, drawn for each run",
        ),
        Criterion(
            "kl",
            "KL from the unedited distribution, in nats, sinks hidden less other keys hidden",
            GREATER,
            0.01,
            "a hundredth of a nat is hardly a change of any answer",
            null="the same as the control",
            control="as many other keys, drawn for each run",
        ),
    ),
    draw=draw_doses,
)
def measure_specificity(evidence: Evidence) -> Finding:
    agreement, kl = (by_effect(evidence, HIDDEN_SINKS, name) for name in ("argmax_agreement", "kl"))
    beside = {
        name: mean_of(by_effect(evidence, HIDDEN_SINKS, name, "control_difference"))
        for name in ("argmax_agreement", "kl")
    }
    doses = {
        f"KL beyond the control at k = {k}": mean_of(by_effect(evidence, HIDDEN_SINKS, "kl", k=k))
        for k in DOSES
    }
    return Finding(
        {
            "agreement": Measured(
                Estimate.mean(agreement, PROMPT, (-1.0, 1.0)), 0.0, beside["argmax_agreement"]
            ),
            "kl": Measured(Estimate.mean(kl, PROMPT), 0.0, beside["kl"]),
        },
        doses,
    )


@register_claim(
    "sinks/H15",
    "Sinks found in the edited map are hidden only every second step, so that robustness is "
    "overstated.",
    source=f"{_PAPER}, section on masking, silent on which map",
    reported="not reported",
    unit=PROMPT,
    needs=(HIDDEN_SINKS, FOUND_IN_EDITED),
    criteria=(
        Criterion(
            "hidden",
            "share of (step, layer, head) at which the greatest key of the unedited map is "
            "hidden: sinks found without the edit, less found with it",
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
    defect="not seen; the paper does not say which map the sinks of a step are found in",
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
    source=f"{_PAPER}, discussion",
    reported="hypothesis, untested",
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
    source=f"{_PAPER}, discussion",
    reported="hypothesis, untested, beside that of looking both ways",
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
    caveat="if it costs no more, looking both ways is what is left: no run under a causal "
    "mask, or in a fixed order, separates that",
)
def measure_steps(evidence: Evidence) -> Finding:
    names = ("none", "sinks", "random")
    single, many = (
        by_item(evidence, spec, [("mdm", "gold", name) for name in names])
        for spec in (ONE_STEP, MANY_STEPS)
    )
    for right in (single, many):
        require_accuracy(mean_of(right[:, 0]), LEAST_ACCURACY, ROLES["mdm"][0])
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
        ),
        Criterion(
            "ratio",
            "norm of a sink's value over that of the other keys",
            LESS,
            0.5,
            "half; the paper's are 0.32 and 0.39",
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
)
def measure_small_values(evidence: Evidence) -> Finding:
    smaller, ratio = (
        by_prompt(evidence, NORM_RUNS, "value_norms", name) for name in ("auroc", "ratio")
    )
    idle, taken = (
        by_prompt(evidence, NORM_RUNS, "contributions", name).value
        for name in ("no_op_share", "attention_share")
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        of_theirs = np.where(taken > 0, idle / taken, np.nan)
    return Finding(
        {
            "smaller": Measured(Estimate.mean(smaller.value, PROMPT, SHARE), null=0.5),
            "ratio": Measured(Estimate.mean(ratio.value, PROMPT), null=1.0),
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
            0.05,
            "a twentieth of what both bring",
            null="alike in all layers",
        ),
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
    source=f"{_PAPER}, open question",
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
    "Masks added after the answer draw attention and cost accuracy, and the one explains the "
    "other.",
    source="arXiv 2511.21338, beside 2510.15731",
    reported="up to 27 points lost (LLaDA), 8 (Dream)",
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
        ),
        Criterion(
            "explains",
            "correlation over questions of the attention that added masks took with the change "
            "of the answer's log-probability",
            LESS,
            -0.1,
            "a small correlation, by the usual words for sizes",
            null="unrelated: 0",
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
    "Rules of what a sink is agree.",
    source=f"{_PAPER}, and its neighbours' definitions",
    reported="not studied",
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=tuple(
        Criterion(
            name,
            f"Cohen's kappa of {words} with column sums above eps = 3{where}",
            GREATER,
            0.6,
            "substantial agreement, by the usual words for kappa",
            null="agreement by chance: 0",
        )
        for name, words, where in (
            ("zscore", "three standard deviations above the mean", ""),
            ("gu", "a share above 0.3 of the queries that see it", ""),
            ("topk", "the greatest key", ", in the heads and steps that have such a sink"),
        )
    ),
    caveat="the greatest key exists in every head, a sink does not, so that the two can only "
    "agree where there is one; a rule that never fires has no kappa. Whether conclusions turn "
    "with the rule is not tested",
)
def measure_rules_agree(evidence: Evidence) -> Finding:
    measured: dict[str, Measured] = {}
    also: dict[str, float | str] = {}
    for other in (*OTHER_RULES, TOP_KEY_RULE):
        options = {"rules": (PAPER_RULE, other)} | (
            {"given": PAPER_RULE} if other is TOP_KEY_RULE else {}
        )
        kappa = by_prompt(evidence, MDM_RUNS, "agreement", "kappa", over="rules", options=options)
        measured[type(other).__name__] = Measured(
            Estimate.mean(kappa.value[:, 0], PROMPT, DIFFERENCE), null=0.0
        )
    for rule in (PAPER_RULE, *OTHER_RULES):
        share = by_prompt(evidence, MDM_RUNS, "sinks", "incidence", options={"rule": rule}).value
        also[f"heads and steps with a sink, {type(rule).__name__}"] = mean_of(share)
    return Finding(measured, also)


register_untested_claim(
    "sinks/H24",
    "Instruction tuning, or a start from an autoregressive model, changes sinks.",
    source=f"{_PAPER}, limitations",
    reported="not studied",
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
    source=f"{_PAPER}, open question",
    reported="unknown",
    unit=PROMPT,
    needs=(HIDDEN_SINKS,),
    criteria=(
        Criterion(
            "gainer",
            "share of the freed attention that the key which gains most takes, beyond what it "
            "would if all gained in proportion; a sink hidden less another key hidden",
            GREATER,
            0.05,
            "a twentieth of what was freed",
            null="the same as the control",
            control="as many other keys, drawn for each run, beyond proportion",
        ),
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
    ),
)
def measure_recovery(evidence: Evidence) -> Finding:
    measured = {}
    for name, outcome in (("gainer", "largest_gainer"), ("new", "new_sink_share")):
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
