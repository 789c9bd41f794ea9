"""What a model or its evidence must have for a claim to be tested on it: ready-made preconditions.

Each is made by a function that takes the evidence it reads and, where that may differ, its minimum.
A claim names them in `preconditions=`; they are measured before the claim is, and one that fails
makes it "not testable", with the number. All are minima: where a value must not be too large, the
room that is left is measured. `Precondition` itself makes any other.

>>> has_layers(12).name
'a masked diffusion model of 12 layers'
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from anchorwatch.metrics.layer_slices import LayerSlice, iter_layers, require_field
from anchorwatch.metrics.sink_rules import Rule, rulli, zscore
from anchorwatch.studies.claim import Precondition
from anchorwatch.studies.evidence import ROLES, Answers, Evidence, EvidenceSpec, Runs, Seeds
from anchorwatch.studies.measure import (
    ARM_RUNS,
    MDM_RUNS,
    by_item,
    by_prompt,
    by_seed,
    end_share,
    mean_of,
)
from anchorwatch.trace.trace import Trace

MOST_HEADS = 0.5
"""Of heads: "most" of them."""
FIRST_KEY_SINK = 0.1
"""Attention on the first key beyond even causal attention: Llama and Qwen have 0.5 and more."""
ANCHOR_TIMES_EVEN = 5.0
"""Of the greatest key of a head-mean map: LLaDA's takes 18 % among some 50 keys, 9 times even."""
SINK_TOKEN_TIMES_EVEN = 4.0
"""2510.15731's rule for a sink, eps = 3 on column sums, asks for four times an even share."""
LEAST_ACCURACY = 0.3
"""Of the questions: below it there is too little to lose."""
KEPT_AT_RANDOM = 0.5
"""Of the unedited accuracy that must be left when keys at random are hidden."""
LEAST_LOSS = 0.03
"""Of the questions: what one model must lose for another to lose less."""
LEAST_TEXT = 0.5
"""Share of what a run writes that is no end token: with less, what is watched is no text."""


@cache
def has_sinks(
    runs: Runs = MDM_RUNS, *, rule: Rule | None = None, minimum: float = MOST_HEADS
) -> Precondition:
    """Sinks in most heads, by a paper's rule: by default 2510.15731's, eps = 3 on column sums."""
    chosen = rulli() if rule is None else rule

    def measure(evidence: Evidence) -> float:
        shares = [_sink_shares(trace, chosen) for trace in evidence[runs].traces]
        return mean_of(np.mean(shares, axis=0) > 0.5) if shares else np.nan

    return Precondition(
        "a sink in most heads",
        f"the share of heads of {ROLES[runs.role][0]} that have a sink ({chosen}) in most steps",
        minimum,
        "what sinks do cannot be seen in heads that have none",
        measure,
        (runs,),
    )


def _sink_shares(trace: Trace, rule: Rule) -> np.ndarray:
    """[layer, head] share of the steps in which a head has a sink."""
    return np.array([layer.labels(rule).any(axis=-1).mean(axis=0) for layer in iter_layers(trace)])


@cache
def has_first_key_sink(runs: Runs = ARM_RUNS, *, minimum: float = FIRST_KEY_SINK) -> Precondition:
    """A sink at the first token, beyond what a causal mask alone gives it."""

    def measure(evidence: Evidence) -> float:
        first = by_prompt(evidence, runs, "absorption", "first", options={"sets": ("first",)})
        return mean_of(first.value - first.null)

    return Precondition(
        "a sink at the first token",
        f"attention of {ROLES[runs.role][0]} on position 0, less what even attention under the "
        "same mask gives it,",
        minimum,
        "a tenth of all attention; published autoregressive models have half and more",
        measure,
        (runs,),
    )


@cache
def has_anchors(runs: Runs = MDM_RUNS) -> tuple[Precondition, Precondition]:
    """Anchors on the map that 2601.07894 reads: attention received, mean over heads."""

    def share_that_fires(evidence: Evidence) -> float:
        fires = [zscore(3.0).labels(mean).any(axis=-1) for mean in _head_means(evidence, runs)]
        return mean_of(np.concatenate(fires, axis=None)) if fires else np.nan

    def times_even(evidence: Evidence) -> float:
        times = [
            np.nanmax(mean, axis=-1) * np.sum(~np.isnan(mean), axis=-1)
            for mean in _head_means(evidence, runs)
        ]
        return mean_of(np.concatenate(times, axis=None)) if times else np.nan

    return (
        Precondition(
            "anchors by the paper's rule",
            "the share of layers and steps whose head-mean attention has a key above mean + 3 sd",
            0.5,
            "where the rule finds none, the greatest key is no anchor",
            share_that_fires,
            (runs,),
        ),
        Precondition(
            "anchors that take much attention",
            "the greatest key's head-mean attention, in times of an even share,",
            ANCHOR_TIMES_EVEN,
            "five times; 9 and more are published",
            times_even,
            (runs,),
        ),
    )


def _head_means(evidence: Evidence, runs: Runs) -> list[np.ndarray]:
    """[step, key] attention received of every layer of every trace, mean over heads."""

    def compute() -> list[np.ndarray]:
        layers = (layer for trace in evidence[runs].traces for layer in iter_layers(trace))
        return [head_mean(layer) for layer in layers]

    means: list[np.ndarray] = evidence.once((runs, "head means"), compute)
    return means


def head_mean(layer: LayerSlice) -> np.ndarray:
    """[step, key] attention received, mean over heads: the map of the published figures."""
    return layer.shares().astype(np.float64).mean(axis=1)


@cache
def has_layers(minimum: int, runs: Runs = MDM_RUNS) -> Precondition:
    """Layers enough to speak of shallow and deep ones."""
    return Precondition(
        f"{ROLES[runs.role][0]} of {minimum} layers",
        "the number of its layers",
        minimum,
        "halves or thirds of fewer layers are single layers",
        lambda evidence: _model_field(evidence, runs, "layers"),
        (runs,),
    )


@cache
def has_heads(minimum: int, runs: Runs = MDM_RUNS) -> Precondition:
    """Heads enough, in all layers together, to speak of few or many of them."""
    return Precondition(
        f"{ROLES[runs.role][0]} of {minimum} heads",
        "the number of heads in all its layers",
        minimum,
        "a few per cent of fewer heads are one or two",
        lambda evidence: (
            _model_field(evidence, runs, "layers") * _model_field(evidence, runs, "heads")
        ),
        (runs,),
    )


def _model_field(evidence: Evidence, runs: Runs, name: str) -> float:
    """A number that a trace's manifest has of its model."""
    traces = evidence[runs].traces
    return float(traces[0].manifest["model"][name]) if traces else np.nan


@cache
def writes_text(runs: Runs, *, minimum: float = LEAST_TEXT) -> Precondition:
    """Text in what is written: end tokens fill the rest of a canvas and are no text."""
    return Precondition(
        "runs that write text",
        f"the share of what {ROLES[runs.role][0]} wrote that is no end token",
        minimum,
        "what is claimed of text cannot be seen in end tokens: --prompts with texts that the model "
        "goes on with, or --decoding low-confidence:forbid_end=true",
        lambda evidence: 1 - mean_of(end_share(evidence, runs)),
        (runs,),
    )


@cache
def keys_not_normalised(role: str = "mdm") -> Precondition:
    """No QK-norm: keys that are normalised have norms that hardly differ, whatever they do."""

    def measure(evidence: Evidence) -> float:
        model = evidence.models.get(role)
        return float(model is None or not model.normalises_keys)

    return Precondition(
        "keys that are not normalised",
        f"whether {ROLES[role][0]} leaves keys as they are (1), or normalises them (0),",
        1.0,
        "the architecture, not training, decides the norms of keys that are normalised",
        measure,
    )


@cache
def leaves_room_to_fall(
    answers: Answers,
    role: str,
    *,
    context: str | None = None,
    edit: str = "none",
    minimum: float = LEAST_ACCURACY,
) -> Precondition:
    """Accuracy from which something can be lost; over all contexts, or in one."""
    contexts = answers.contexts if context is None else (context,)
    how = "unedited accuracy" if edit == "none" else f"accuracy, under the edit {edit!r},"
    return Precondition(
        "accuracy that leaves room to fall",
        f"the {how} of {ROLES[role][0]}",
        minimum,
        "who answers nothing can lose nothing",
        lambda evidence: mean_of(by_item(evidence, answers, [(role, x, edit) for x in contexts])),
        (answers,),
    )


@cache
def leaves_room_to_rise(
    answers: Answers, role: str, *, context: str, minimum: float = 0.1
) -> Precondition:
    """Accuracy below the ceiling."""
    return Precondition(
        "accuracy below the ceiling",
        f"the share of questions that {ROLES[role][0]} gets wrong ({context})",
        minimum,
        "who answers everything cannot show a difference",
        lambda evidence: 1 - mean_of(by_item(evidence, answers, [(role, context, "none")])),
        (answers,),
    )


@cache
def survives_random_hiding(
    answers: Answers,
    role: str,
    *,
    context: str,
    control: str = "random",
    minimum: float = KEPT_AT_RANDOM,
) -> Precondition:
    """Hiding as many keys at random leaves most answers: else nothing is due to sinks."""

    def measure(evidence: Evidence) -> float:
        cells = [(role, context, name) for name in (control, "none")]
        hidden, whole = by_item(evidence, answers, cells).T
        return mean_of(hidden) / mean_of(whole) if mean_of(whole) > 0 else np.nan

    return Precondition(
        "answers that survive hiding keys at random",
        f"the accuracy of {ROLES[role][0]} with random keys hidden, over the unedited one,",
        minimum,
        "where any hidden key destroys the answer, none is special",
        measure,
        (answers,),
    )


def loses_something(
    what: str,
    needs: tuple[EvidenceSpec, ...],
    measure: Callable[[Evidence], float],
    *,
    role: str = "arm",
    minimum: float = LEAST_LOSS,
) -> Precondition:
    """A loss of the model beside which another is to lose less; `measure` gives it, above 0."""
    return Precondition(
        f"{ROLES[role][0]} that loses something",
        f"what {what} costs it, as a share of the questions,",
        minimum,
        "nobody can lose less than nothing",
        measure,
        needs,
    )


@cache
def sink_token_is_used(runs: Runs, *, minimum: float = SINK_TOKEN_TIMES_EVEN) -> Precondition:
    """A sink token that takes several times an even share in watched runs."""

    def measure(evidence: Evidence) -> float:
        return mean_of([_sink_token_times_even(trace) for trace in evidence[runs].traces])

    return Precondition(
        "a sink token that is looked at",
        "attention on the sink token, in times of an even share,",
        minimum,
        "2510.15731's rule for a sink asks for four times",
        measure,
        (runs,),
    )


def _sink_token_times_even(trace: Trace) -> float:
    """Mean over steps, layers and heads; all keys, the added ones too, share evenly."""
    mass = require_field(trace, "sink_received").sel(group="all").values.astype(np.float64)
    return float(np.nanmean(mass)) * (trace.canvas.shape[1] + 1)


@cache
def trained_sink_is_used(
    seeds: Seeds,
    mass: tuple[str, ...],
    even: tuple[str, ...],
    *,
    arm: str = "sink",
    minimum: float = SINK_TOKEN_TIMES_EVEN,
) -> Precondition:
    """The same of training seeds, from columns of the attention on it and of even shares."""

    def measure(evidence: Evidence) -> float:
        taken, shares = (
            mean_of([by_seed(evidence, seeds, name)[arm] for name in names])
            for names in (mass, even)
        )
        return taken / shares

    return Precondition(
        "a trained sink token that is looked at",
        f"attention on the sink token of the arm {arm}, in times of an even share,",
        minimum,
        "2510.15731's rule for a sink asks for four times",
        measure,
        (seeds,),
    )
