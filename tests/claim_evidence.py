"""Evidence made by us for claims: traces, effects, answers and training seeds of known truth."""

import numpy as np
import pandas as pd

from anchorwatch.evaluation.outcomes import OUTCOMES
from anchorwatch.evaluation.results import Results
from anchorwatch.studies.evidence import AnswerTable, EffectTables, Evidence, TraceSet
from anchorwatch.studies.papers import claims
from anchorwatch.studies.papers.sink_token import measures as sink_token_measures
from anchorwatch.studies.verdict import REFUTED, SUPPORTED, UNDECIDED, verdicts
from anchorwatch.training.variants import EDGES
from synthetic_traces import planted

TRUTHS = (SUPPORTED, REFUTED, UNDECIDED)
SHARE = 0.6
"""What a planted sink takes of every row that sees it."""


def collect_plantings():
    """What makes the evidence of each claim, by truth, and the decorator that keeps one there."""
    kept = {}

    def plants(claim):
        def keep(make):
            kept[claim] = make
            return make

        return keep

    return kept, plants


def assert_verdict(name, held, truth):
    """The verdict is the truth; what is supported was told whole and drawn, from its needs alone."""
    (claim,) = claims([name])
    verdict, finding = judge(claim, held)
    shown = {key: (one.estimate.value, one.estimate.error) for key, one in finding.measured.items()}
    assert verdict == truth, shown
    if truth == SUPPORTED:
        _assert_complete(claim, finding)
        if claim.draw is not None:
            needed = {spec: held[spec] for spec in claim.needs if spec in held}
            assert claim.draw(Evidence.of(needed)) is not None


def _assert_complete(claim, finding):
    """A finding has a value, and a null and a control where the criterion names one."""
    for one in claim.criteria:
        found = finding.measured[one.name]
        assert found.estimate.n >= 3
        assert not np.isnan(found.estimate.value)
        assert np.isnan(found.null) == (not one.null)
        assert np.isnan(found.control) == (not one.control)
    assert all(np.isfinite(v) for v in finding.also.values() if not isinstance(v, str))


def judge(claim, held):
    """The verdict on a claim that is the only one of its study, and the finding."""
    finding = claim.find(Evidence.of(held))
    return verdicts([(claim.criteria, finding)])[0].says, finding


def traces_with_sink(count, where, *, causal=False, length=12, steps=6, heads=2, seed=0):
    """Runs in which `where(rng, step, head)` is the key that takes most; None for no sink.

    Prompts differ, so that each is a unit.
    """
    found = []
    for index in range(count):
        rng = np.random.default_rng((seed, index))
        seen = np.tril(np.ones((length, length))) if causal else np.ones((length, length))
        even = seen / seen.sum(axis=-1, keepdims=True)
        maps = np.empty((steps, 1, heads, length, length))
        for step in range(steps):
            for head in range(heads):
                keys = where(rng, step, head)
                rows = even.copy()
                for key in [] if keys is None else np.atleast_1d(keys):
                    sees = seen[:, key] > 0
                    rows[sees] *= 1 - SHARE / np.size(keys)
                    rows[sees, key] += SHARE / np.size(keys)
                maps[step, 0, head] = rows / rows.sum(axis=-1, keepdims=True)
        tokens = np.arange(1, length + 1) + 100 * (index + 1)
        visibility = "causal" if causal else "bidirectional"
        source = "planted/arm" if causal else "planted/mdm"
        found.append(
            planted(
                maps,
                prompt=length - steps,
                tokens=tokens,
                visibility=visibility,
                source=source,
                seed=index,
            )
        )
    return TraceSet.from_traces(found)


def jumping_sink(rate, places=6):
    """A sink that is elsewhere than a step before with this chance."""
    at = {}

    def where(rng, step, head):
        if step == 0:
            at[head] = 0
        elif rng.random() < rate:
            at[head] = (at[head] + 1 + rng.integers(places - 1)) % places
        return at[head]

    return where


def effect_tables(values, doses=(1, 5, 10, 20)):
    """An effect whose outcomes are {outcome: {series: [prompt]}}, the same at every dose."""
    rows = []
    names = {one.name: one for one in OUTCOMES}
    count = len(next(iter(next(iter(values.values())).values())))
    columns = ("clean", "edited", "control", "null", "difference", "control_difference", "did")
    for place in range(count):
        for k in doses:
            for outcome, series in values.items():
                row = {"place": place, "k": k, "outcome": outcome, "unit": names[outcome].unit}
                row |= {"on": names[outcome].on, "against": names[outcome].against}
                row |= {
                    name: float(series[name][place]) if name in series else 0.0 for name in columns
                }
                rows.append(row)
    return EffectTables(pd.DataFrame(rows), pd.DataFrame(), count)


def answer_table(scores):
    """Answers of {(role, context, edit): [item] right or wrong}."""
    rows = [
        {
            "role": role,
            "model": f"planted/{role}",
            "kind": "arm" if role == "arm" else "mdm",
            "context": context,
            "edit": edit,
            "task": "planted",
            "item": f"{item:05}",
            "containment": float(right),
            "prediction": f"{item}" if right else "nothing",
            "answers": [f"{item}"],
            "unfit": "",
            "narrow": 0,
        }
        for (role, context, edit), held in scores.items()
        for item, right in enumerate(held)
    ]
    return AnswerTable(Results(pd.DataFrame(rows), {}))


def draw_answers(rng, count, share):
    """[item] answers, right with this chance."""
    return (rng.random(count) < share).astype(float)


def sink_attention_table(rng, count, share=0.2):
    """Training seeds whose sink token gets this share of attention, where a hundredth is even."""
    spec = sink_token_measures.SINK_ATTENTION
    columns = {name: rng.normal(share, 0.1 * share, count) for name in sink_token_measures.MASS}
    columns |= {name: np.full(count, 0.01) for name in sink_token_measures.EVEN}
    return {spec: seed_table({"sink": columns})}


def position_table(rng, count, gain, first=0.7, noise=0.002, spec=None):
    """Training seeds whose sink token gains so much, this share of it at the first positions.

    Of 80 tokens of a row 4 are at the first positions, 12 at the next and 64 later.
    """
    spec = sink_token_measures.BY_POSITION if spec is None else spec
    tokens = np.array([4, 12, 64]) / 80
    parts = np.array([first, (1 - first) / 2, (1 - first) / 2])
    base = rng.normal(3.0, 0.1, (count, 3))
    less = gain * parts / tokens + rng.normal(0, noise, (count, 3))
    arms = {}
    for arm, values in (("vanilla", base), ("sink", base - less)):
        columns = {"bound.all": values @ tokens}
        for at, edge in enumerate(EDGES):
            columns[f"bound.from.{edge}"] = values[:, at]
            columns[f"bound.from.{edge}.part"] = values[:, at] * tokens[at]
        arms[arm] = columns
    return {spec: seed_table(arms)}


def openness_table(rng, count, share=0.8):
    """Rows of prompts in which so much of a head's attention does not go to the sink token."""
    return pd.DataFrame(
        [
            {"unit": unit, "layer": 0, "head": head, "open": list(rng.uniform(share, 1.0, 8))}
            for unit in range(count)
            for head in range(2)
        ]
    )


def seed_table(arms):
    """A table of variants of {arm: {column: [seed]}}."""
    rows = [
        {"arm": arm, "seed": seed} | {name: held[seed] for name, held in columns.items()}
        for arm, columns in arms.items()
        for seed in range(len(next(iter(columns.values()))))
    ]
    return pd.DataFrame(rows)


LENGTH, STEPS = 20, 8


def traces_by_layer(count, keys, *, layers=4, heads=2, causal=False, seed=0, tokens=None, **more):
    """Runs whose rows all look at keys as `keys(rng, prompt, layer, step)` [key] says."""
    found = []
    seen = np.tril(np.ones((LENGTH, LENGTH))) if causal else np.ones((LENGTH, LENGTH))
    for index in range(count):
        rng = np.random.default_rng((seed, index))
        maps = np.empty((STEPS, layers, heads, LENGTH, LENGTH))
        for step in range(STEPS):
            for layer in range(layers):
                rows = seen * (np.asarray(keys(rng, index, layer, step)) + 1e-4)
                maps[step, layer] = rows / rows.sum(axis=-1, keepdims=True)
        own = np.arange(1, LENGTH + 1) + 100 * (index + 1) if tokens is None else tokens(rng, index)
        given = {name: made(rng, index, maps) for name, made in more.items()}
        found.append(
            planted(
                maps,
                prompt=LENGTH - STEPS,
                tokens=own,
                visibility="causal" if causal else "bidirectional",
                source="planted/arm" if causal else "planted/mdm",
                seed=index,
                **given,
            )
        )
    return TraceSet.from_traces(found)


def peaked_row(at, share, length=LENGTH):
    """[key] with this share on one key, the rest even."""
    keys = np.full(length, (1 - share) / (length - 1))
    keys[at] = share
    return keys
