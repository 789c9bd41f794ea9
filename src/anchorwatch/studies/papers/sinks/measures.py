"""Constants, evidence and drawings that claims share: attention sinks paper (arXiv 2510.15731)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.edits.spec import Edit, hide_random, hide_sinks
from anchorwatch.generation.decoding import DreamOrder
from anchorwatch.metrics.layer_slices import LayerSlice, iter_layers
from anchorwatch.metrics.movement import direction, frontier_hits
from anchorwatch.metrics.sink_rules import Rule, rulli
from anchorwatch.metrics.sink_strength import RULES
from anchorwatch.metrics.table import (
    CHANCE,
    Parts,
    Quantity,
    layer_quantities,
    mean,
    prompt_id,
    ratio,
)
from anchorwatch.probes.spec import drift, received
from anchorwatch.studies.claim import Precondition
from anchorwatch.studies.estimate import PROMPT, Estimate
from anchorwatch.studies.evidence import (
    ROLES,
    Answers,
    Effect,
    Evidence,
    Experiment,
    Runs,
    TraceSet,
)
from anchorwatch.studies.measure import (
    ARM_TEXT,
    EVERY_LAYER,
    MDM_RUNS,
    MDM_TEXT,
    by_cell,
    by_item,
    by_prompt,
    by_sums,
    mean_of,
    pool_layers,
)
from anchorwatch.studies.prompts import TEXT
from anchorwatch.trace.trace import MASKED, Trace

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

LENGTH, BLOCK = 32, 8
"""Positions that an experiment writes, one a step, and those of a block."""
FREE_RUNS = Runs("mdm", prompts=TEXT, decoding=DreamOrder(LENGTH, LENGTH, algorithm="entropy"))
"""As Dream writes: anywhere."""
DRIFT_RUNS = Runs("mdm", prompts=TEXT, probes=(received(), drift()))
"""With the change of every key and value from step to step."""
LEAST_DRIFT = 0.01
"""Mean change of a key between steps, under which nothing drifts that could be ranked."""
HEAD_MAPS = Experiment("mdm", "head_maps", passes=LENGTH)
UNTRAINED = Experiment("mdm", "untrained_twin", passes=18)
PAPER_RULE, OTHER_RULES = RULES[0], RULES[1:-1]
"""The paper's own rule, and those that may find no sink either."""
FRONTIER_HIT = "frontier_hit_any"
ALIKE_COSINE = 0.9
"""Cosine from which two maps are called alike."""
LONG_STAY = 8
"""Steps beyond which a sink is expected to have gone."""
LEAST_MASKS = 4
"""Masks of a step that counts: of one or two, chance hits so often that nothing can exceed it."""
ADDED_MASKS = Experiment("mdm", "added_masks", passes=4)
NAMED_CLASSES = ("newline", "mask")
RIVALS = 5
"""Other tokens that newlines and masks are compared with: as many as the table has."""
LEAST_ACCURACY = 0.3
"""Share of first tokens that are right before few masks, below which little can be lost."""
MOST_ACCURACY = 0.95
"""Above which a model is too sure of its answers for masks to cost any."""
DOSES = (1, 5, 10, 20)
HIDDEN_SINKS = Effect("mdm", (hide_sinks(1),), doses=DOSES, prompts=TEXT)
HIDDEN_MATCHED = Effect(
    "mdm", (hide_sinks(1),), control=(hide_random(1, matched_to="mass"),), prompts=TEXT
)
"""Its control hides other keys that receive as much."""
SAME_PASS = (
    ("none", ()),
    ("sinks", (hide_sinks(1, detect="same_shadow"),)),
    ("random", (hide_random(1, detect="same_shadow"),)),
)
"""Found in the pass that is edited: by the step before, an answer of one step hides nothing."""
ONE_STEP = Answers(("mdm",), ("gold",), SAME_PASS, steps=1)
MANY_STEPS = Answers(("mdm",), ("gold",), SAME_PASS, steps=16)
LATER_WORDS = 0.8
"""Of an answer: what is written while keys are hidden."""
HIDDEN = (1, 5, 10)
"""Sinks of every head that the paper hides (its three thresholds)."""


def hiding_as_published(
    *, last_row: bool = False, hide_from: str = "all"
) -> tuple[tuple[str, tuple[Edit, ...]], ...]:
    """Edits by name: nothing, the greatest 1, 5 and 10 keys of the step before, another key."""
    sinks = [
        (f"sinks {k}", (hide_sinks(k, last_row=last_row, hide_from=hide_from),)) for k in HIDDEN
    ]
    other = hide_random(1, last_row=last_row, hide_from=hide_from)
    return (("none", ()), *sinks, ("random", (other,)))


MDM_HIDDEN = Answers(("mdm",), ("gold",), hiding_as_published())
"""All rows of the step before say what is hidden from all rows of this one."""
ARM_HIDDEN = Answers(("arm",), ("gold",), hiding_as_published(last_row=True, hide_from="last"))
"""The last row of the step before says what is hidden from the last row of this one."""
FOUND_IN_EDITED = Effect(
    "mdm", (hide_sinks(1, detect="previous_edited"),), control=None, prompts=TEXT
)
DELAYS = Experiment("mdm", "delayed", passes=102)
DISCARDED = {role: Experiment(role, "discarded_context", passes=64) for role in ("mdm", "arm")}


def share_that_drifts_more(trace: Trace, names: tuple[str, ...]) -> float:
    """Share of the other keys that change more than the most attended one, mean over steps, layers.

    Attention is the mean over heads; the change is the mean over key heads of the named fields.
    Ties count half: of any key it is 1/2 in the mean.
    """
    shares = []
    for layer in iter_layers(trace):
        # [step, key] attention received, and the change since the step before.
        received_mean = layer.shares().mean(axis=1)
        change = np.mean(
            [trace[name].values[:, layer.index].mean(axis=1) for name in names], axis=0
        )
        for attention, moved in zip(received_mean, change, strict=True):
            top, known = int(np.nanargmax(attention)), ~np.isnan(moved)
            if not known[top] or known.sum() < 2:
                continue
            others = moved[known & (np.arange(len(moved)) != top)]
            shares.append((others > moved[top]).mean() + (others == moved[top]).mean() / 2)
    return float(np.mean(shares)) if shares else np.nan


@cache
def keys_drift() -> Precondition:
    """Keys that change between steps."""

    def measure(evidence: Evidence) -> float:
        return mean_of(
            [np.nanmean(trace["key_drift"].values) for trace in evidence[DRIFT_RUNS].traces]
        )

    return Precondition(
        "keys that change",
        "the mean change of a key from one step to the next, as a share of its norm",
        LEAST_DRIFT,
        "where no key changes none changes least",
        measure,
        (DRIFT_RUNS,),
    )


@cache
def answers_outlast_first_step(spec: Answers) -> Precondition:
    """Answers of several words, since nothing is hidden in the step that writes the first one.

    What is scored counts, and not what a model writes after its answer.
    In an autoregressive model the first step reads the prompt and writes a token: in an answer of
    two words half is written before anything is hidden.
    """

    def measure(evidence: Evidence) -> float:
        rows = evidence[spec].results.rows
        answers = rows.loc[(rows["edit"] == "none") & (rows["unfit"] == ""), "prediction"]
        words = [len(text.split()) for text in answers]
        return mean_of([1 - 1 / max(count, 1) for count in words])

    (role,) = spec.asks
    return Precondition(
        "answers that outlast the first step",
        f"the share of the words of an answer of {ROLES[role][0]} that follow its first word",
        LATER_WORDS,
        "nothing is hidden in the first step, which writes the first word; five words and more",
        measure,
        (spec,),
    )


@cache
def is_trained() -> Precondition:
    """A model that has learnt something: what networks show that have not is no finding."""

    def measure(evidence: Evidence) -> float:
        table = evidence[UNTRAINED]
        return mean_of(table[table["network"] == "trained"]["learnt"])

    return Precondition(
        "a trained masked diffusion model",
        "log-probability of masked tokens of running text above that of a guess, in nats,",
        1.0,
        "untrained networks have 0 or less; one nat is a guess among a third of the tokens",
        measure,
        (UNTRAINED,),
    )


def has_sinks_in_maps() -> Precondition:
    """Sinks in the maps of neighbouring steps that some claims read."""
    return Precondition(
        "a sink in most heads",
        "the share of heads whose greatest key has four times an even share in the maps read",
        0.5,
        "what sinks do cannot be seen in heads that have none",
        lambda evidence: mean_of(evidence[HEAD_MAPS]["greatest"] > 4),
        (HEAD_MAPS,),
    )


@cache
def has_newlines(runs: Runs = MDM_RUNS) -> Precondition:
    """Newlines that could be sinks: the paper's prompts have them in their chat templates."""

    def measure(evidence: Evidence) -> float:
        texts = [str(trace.manifest["prompt_text"]) for trace in evidence[runs].traces]
        return mean_of(["\n" in text for text in texts])

    return Precondition(
        "prompts with newlines",
        "the share of prompts with a newline in them",
        0.9,
        "a token that is not there is no sink",
        measure,
        (runs,),
    )


@cache
def has_turning_queries() -> Precondition:
    """Sinks that appear from one step to the next, and queries that turn to them."""

    def measure(evidence: Evidence) -> float:
        return mean_of(evidence[HEAD_MAPS].groupby("unit")["turned"].sum() > 0)

    return Precondition(
        "queries that turn to a new sink",
        "the share of prompts in which any query gives a new sink a tenth of its attention more",
        0.5,
        "what a new sink takes from whom can only be seen where one appears",
        measure,
        (HEAD_MAPS,),
    )


@cache
def is_not_too_sure() -> Precondition:
    """Answers before few masks that are not all right."""

    def measure(evidence: Evidence) -> float:
        table = evidence[ADDED_MASKS]
        few = table[table["masks"] == table["masks"].min()]
        return 1 - mean_of(few["right"])

    return Precondition(
        "answers below the ceiling",
        "the share of first tokens that are wrong before few masks",
        1 - MOST_ACCURACY,
        "a model that is sure of every answer loses none to masks",
        measure,
        (ADDED_MASKS,),
    )


def changes_of_accuracy(evidence: Evidence, spec: Answers) -> dict[str, np.ndarray]:
    """[item] right or not, unedited ("none") and by edit the change of it."""
    (role,) = spec.asks
    names = [name for name, _ in spec.edits]
    right = by_item(evidence, spec, [(role, "gold", name) for name in names])
    changes = {name: right[:, column] - right[:, 0] for column, name in enumerate(names)}
    return changes | {"none": right[:, 0]}


def lost_to_one_sink(evidence: Evidence) -> float:
    """Accuracy that the ARM loses when one sink is hidden."""
    return -mean_of(changes_of_accuracy(evidence, ARM_HIDDEN)["sinks 1"])


def lost_to_oldest(evidence: Evidence) -> float:
    """Predictions that the ARM changes without the oldest passage, beyond another passage."""
    agreement = by_discarded(evidence, "arm")["agreement"]
    return mean_of(agreement["other"] - agreement["oldest"])


def by_discarded(evidence: Evidence, role: str) -> pd.DataFrame:
    """[unit] agreement and KL of a model, by what was discarded."""
    table: pd.DataFrame = evidence[DISCARDED[role]]
    return table.pivot(index="unit", columns="discarded").sort_index()


def standing_cells(layer: LayerSlice, rule: Rule) -> list[Quantity]:
    """Where the greatest sink of a head stands: at the first key, beyond the first third of the
    keys that exist, and on a position that is still masked."""
    path, dims = layer.sink_path(rule), ("head", "step")
    keys = np.sum(~np.isnan(layer.null()[:, 0]), axis=-1)  # [step]
    absent = np.where(np.isnan(path), np.nan, 0.0)
    position = np.nan_to_num(path).astype(int)
    role = layer.trace.role[:-1]
    masked = role[np.arange(len(keys)), position] == MASKED
    beyond = keys - np.ceil(keys / 3)
    waiting = np.sum(role == MASKED, axis=1)
    return [
        mean("first", dims, (path == 0) + absent, 1 / keys),
        mean("beyond", dims, (path >= keys / 3) + absent, beyond / keys),
        mean("future", dims, masked + absent, waiting / keys),
    ]


def layer_cells(layer: LayerSlice, rule: Rule) -> list[Quantity]:
    """Sinks of a layer at a step: different keys that are one in any of its heads, and whether
    its attention, mean over heads, has one."""
    measured = layer.is_measured().all(axis=1)
    empty = np.where(measured, 0.0, np.nan)
    distinct = layer.labels(rule).any(axis=1).sum(axis=-1)
    shares = layer.shares().mean(axis=1)
    of_mean = rule.labels(shares, layer.visible_share()[:, 0]).sum(axis=-1)
    return [
        mean("distinct", ("step",), distinct + empty),
        mean("of_mean", ("step",), of_mean + empty),
        mean("clear", ("step",), (of_mean > 0) + empty),
    ]


def sums_of(
    evidence: Evidence,
    spec: Runs,
    kernel: Callable[..., list[Quantity]],
    *,
    group: str | None = None,
) -> Parts:
    """A kernel's quantities of every run of a need, by the paper's rule; made once."""
    traces = list(evidence[spec].traces)
    made = partial(kernel, rule=PAPER_RULE)
    if group is not None:
        made = partial(made, group=group)
    parts: Parts = evidence.once((spec, kernel.__name__), lambda: layer_quantities(traces, made))
    return parts


def standing_share(evidence: Evidence, spec: Runs, where: str, *, null: bool = False) -> np.ndarray:
    """[prompt] share of greatest sinks that stand first, beyond or in the future, or its null."""
    parts = sums_of(evidence, spec, standing_cells)

    def of(_: Trace, found: Mapping[str, Quantity]) -> float:
        return pool_layers(null_of(found[where]) if null else found[where])

    return by_sums(evidence[spec], parts, of)


def null_of(quantity: Quantity) -> Quantity:
    """The null of a quantity, as a quantity."""
    assert quantity.null_top is not None and quantity.null_bottom is not None
    return Quantity(quantity.name, quantity.dims, quantity.null_top, quantity.null_bottom)


def nested_cells(layer: LayerSlice, rule: Rule) -> list[Quantity]:
    """Of the keys that another rule calls sinks, the share that this one does; its null is that
    share of all keys."""
    own, dims = layer.labels(rule), ("step", "head")
    keys = np.broadcast_to(np.sum(~np.isnan(layer.null()), axis=-1), own.shape[:2])
    measured = layer.is_measured()
    quantities = []
    for other in OTHER_RULES:
        theirs = layer.labels(other)
        null = own.sum(axis=-1) * measured, keys * measured
        shared = (own & theirs).sum(axis=-1), theirs.sum(axis=-1)
        quantities.append(ratio(type(other).__name__, dims, *shared, null))
    return quantities


def nested_share(evidence: Evidence, spec: Runs, name: str) -> tuple[np.ndarray, np.ndarray]:
    """([prompt] share of a rule's sinks that are the paper's too, [prompt] its null)."""
    parts, runs = sums_of(evidence, spec, nested_cells), evidence[spec]
    share = by_sums(runs, parts, lambda _, found: pool_layers(found[name]))
    return share, by_sums(runs, parts, lambda _, found: pool_layers(null_of(found[name])))


def layer_means(evidence: Evidence, spec: Runs, name: str) -> np.ndarray:
    """[prompt, layer] mean over steps of what `layer_cells` counts."""
    runs = evidence[spec]
    parts = sums_of(evidence, spec, layer_cells)
    layers = parts[0][1][0].top.shape[0] if parts else 0
    values = np.full((runs.count, layers), np.nan)
    for index, (_, quantities) in zip(runs.indices, parts, strict=True):
        (found,) = (quantity for quantity in quantities if quantity.name == name)
        values[index] = found.top.sum(axis=1) / np.maximum(found.bottom.sum(axis=1), 1)
    return values


def last_quarter_mean(values: np.ndarray) -> np.ndarray:
    """[prompt] mean over the deepest quarter of the layers, at least one.

    >>> last_quarter_mean(np.arange(8.0)[None]).tolist()
    [6.5]
    """
    return values[:, -max(1, values.shape[1] // 4) :].mean(axis=1)


def shares_of_tokens(evidence: Evidence, spec: Runs) -> dict[str, np.ndarray]:
    """[prompt] share of all sinks that each token has, the most frequent first."""
    runs: TraceSet = evidence[spec]
    make = partial(metrics.sink_tokens, list(runs.traces), top=None, by=["prompt"])
    table = evidence.once((spec, "sink_tokens by prompt"), make)
    shares = by_cell(runs, table, "token", "value")
    return dict(sorted(shares.items(), key=lambda item: -mean_of(item[1])))


def named_tokens(runs: TraceSet, tokens: Iterable[str]) -> dict[str, list[str]]:
    """Tokens that are a single newline, and the mask."""
    masks = {trace.token(int(trace.manifest["model"]["mask_id"])) for trace in runs.traces}
    every = list(tokens)
    return {
        "newline": [token for token in every if token.strip(" ") == "\n"],
        "mask": [token for token in every if token in masks],
    }


def share_without_sinks(evidence: Evidence, scale: str) -> np.ndarray:
    """[prompt] share of tokens that are no sink: heads and steps have as many keys each."""
    count = by_prompt(evidence, MDM_RUNS, "sinks", "count", options={"rule": rulli(3.0, scale)})
    runs = evidence[MDM_RUNS]
    keys = np.full(runs.count, np.nan)
    for index, trace in zip(runs.indices, runs.traces, strict=True):
        keys[index] = trace.canvas.shape[1]
    return 1 - count.value / keys


def draw_sink_paths(evidence: Evidence) -> Figure | None:
    """One prompt of each model: where the greatest sink of every head is."""
    from anchorwatch.figures.movement import sink_positions

    both = MDM_TEXT, ARM_TEXT
    first = [evidence[spec].traces[0] for spec in both if evidence[spec].traces]
    table = evidence.once(("first paths", *both), partial(metrics.sink_positions, first))
    return sink_positions(table)


def draw_score_histogram(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sink_strength import score_histogram

    traces = list(evidence[MDM_RUNS].traces)
    return score_histogram(
        evidence.once((MDM_RUNS, "score_histogram"), partial(metrics.score_histogram, traces))
    )


def at_age(values: np.ndarray, ages: tuple[int, ...], age: int) -> np.ndarray:
    """[prompt] of [prompt, age]; the oldest where there are fewer steps."""
    return values[:, ages.index(min(age, max(ages)))]


def draw_survival(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.movement import survival

    traces = list(evidence[MDM_TEXT].traces)
    return survival(evidence.once((MDM_TEXT, "survival"), partial(metrics.survival, traces)))


def draw_block_paths(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.movement import sink_positions

    first = list(evidence[MDM_TEXT].traces)[:1]
    return sink_positions(metrics.sink_positions(first)) if first else None


def frontier_hit_share(evidence: Evidence, *, chance: bool = False) -> np.ndarray:
    """[prompt] share of heads and steps with masks enough whose greatest key is the frontier."""

    def of(trace: Trace, quantities: Mapping[str, Quantity]) -> float:
        enough = np.sum(trace.role[:-1] == MASKED, axis=1) >= LEAST_MASKS
        return pool_layers(quantities[CHANCE * chance + FRONTIER_HIT], EVERY_LAYER, enough)

    return by_sums(evidence[FREE_RUNS], frontier_sums(evidence), of)


def first_step_hits(evidence: Evidence, *, chance: bool = False) -> np.ndarray:
    """[prompt] the same of the first step."""

    def of(trace: Trace, quantities: Mapping[str, Quantity]) -> float:
        return pool_layers(
            quantities[CHANCE * chance + FRONTIER_HIT], EVERY_LAYER, np.arange(trace.num_steps) == 0
        )

    return by_sums(evidence[FREE_RUNS], frontier_sums(evidence), of)


def frontier_sums(evidence: Evidence) -> Parts:
    return sums_of(evidence, FREE_RUNS, frontier_hits.kernel, group="all")


def drift_of_half(evidence: Evidence, half: str) -> np.ndarray:
    """[prompt] Kendall's tau of a head's greatest sink with the step, over half of the layers."""
    parts = sums_of(evidence, FREE_RUNS, direction.kernel, group="all")
    return by_sums(evidence[FREE_RUNS], parts, lambda _, found: pool_layers(found["tau"], half))


def draw_head_types(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.movement import head_types

    traces, make = list(evidence[MDM_TEXT].traces), metrics.head_types
    return head_types(evidence.once((MDM_TEXT, "head_types"), partial(make, traces)))


def draw_sinks_by_layer(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sink_strength import profile

    traces = list(evidence[MDM_TEXT].traces)
    table = evidence.once(
        (MDM_TEXT, "sinks by layer"), partial(metrics.sinks, traces, by=["layer"])
    )
    return profile(table)


def draw_angle_and_norm(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.geometry import shapley_bars

    traces = list(evidence[MDM_RUNS].traces)
    table = evidence.once(
        (MDM_RUNS, "qk by layer"), partial(metrics.qk_split, traces, by=["layer"])
    )
    return shapley_bars(table)


def mean_over_layers(runs: TraceSet, rows: pd.DataFrame, quantity: str, column: str) -> np.ndarray:
    """[prompt] mean over the other layers, in the order of the set."""
    means: Any = rows[rows["quantity"] == quantity].groupby("prompt")[column].mean()
    values = np.full(runs.count, np.nan)
    for index, trace in zip(runs.indices, runs.traces, strict=True):
        values[index] = means.get(prompt_id(trace), np.nan)
    return values


def draw_reuse(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.movement import layer_consistency

    traces = list(evidence[MDM_RUNS].traces)
    make = partial(metrics.layer_consistency, traces)
    return layer_consistency(evidence.once((MDM_RUNS, "layer_consistency"), make))


def mean_or_absent(values: np.ndarray) -> float | str:
    return mean_of(values) if np.isfinite(values).any() else "absent"


def draw_token_classes(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sink_classes import enrichment

    traces = list(evidence[MDM_RUNS].traces)
    make = partial(metrics.enrichment, traces, matched=True)
    table = evidence.once((MDM_RUNS, "enrichment"), make)
    return enrichment(table) if table["value"].notna().any() else None  # no sink, no share


def correlation_of_moments(means: np.ndarray) -> float:
    """Of means of x, y, xy, xx, yy."""
    x, y, xy, xx, yy = means
    size = np.sqrt(max(xx - x * x, 0.0) * max(yy - y * y, 0.0))
    return float((xy - x * y) / size) if size > 0 else float("nan")


def draw_doses(evidence: Evidence) -> Figure | None:
    """Sinks and other keys over the dose, with Student's interval over prompts."""
    from anchorwatch.figures.evaluation import effect_doses

    table: pd.DataFrame = evidence[HIDDEN_SINKS].table
    outcomes = ("argmax_agreement", "kl")
    rows = []
    shown = table[table["outcome"].isin(outcomes)]
    for (k, outcome, unit), part in shown.groupby(["k", "outcome", "unit"], sort=False):
        row = {"k": k, "outcome": outcome, "unit": unit, "n": len(part)}
        for value, ends in (("difference", ""), ("control_difference", "control_")):
            estimate = Estimate.mean(part[value], PROMPT)
            low, high = estimate.interval(0.95)
            row |= {value: estimate.value, f"{ends}low": low, f"{ends}high": high}
        rows.append(row)
    return effect_doses(pd.DataFrame(rows), outcomes=outcomes)
