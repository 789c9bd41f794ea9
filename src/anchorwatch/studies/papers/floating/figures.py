"""Figures and tables of 2601.07894, Revealing the Attention Floating Mechanism.

Figures go by what they show, as in the published repository: numbers are those of Table 1 only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.evaluation.paired import compare_arms, result_rows
from anchorwatch.evaluation.results import Results
from anchorwatch.evaluation.tables import curve, gain_ratios
from anchorwatch.figures.evaluation import layout_bars, noise_curve, position_curve
from anchorwatch.figures.flow import flow_matrix, rollout_columns
from anchorwatch.figures.geometry import shapley_bars
from anchorwatch.figures.head_maps import layer_maps, qk_maps
from anchorwatch.figures.maps import sink_map
from anchorwatch.figures.retrieval import retrieval_map
from anchorwatch.figures.sink_classes import enrichment_depth, structure
from anchorwatch.figures.sink_strength import profile
from anchorwatch.metrics.flow import REGIONS
from anchorwatch.metrics.sink_rules import zscore
from anchorwatch.probes.spec import pattern
from anchorwatch.probes.spec import qk_maps as qk_maps_probe
from anchorwatch.studies.papers.find_heads import find_strong, middle_step
from anchorwatch.studies.reproduction import Product, Workbench, paper_item
from anchorwatch.trace.trace import Trace

RULE = zscore(3)
"""Of the published script: above the mean by three standard deviations."""
ACCURACY, F1 = "substring_containment", "token_f1"
"""The scores of Table 1: the answer stands in the prediction, and F1 over words."""
CLOSED = "closed"


@paper_item(
    "floating",
    "figure intro",
    "Mean maps of a shallow, a middle and a deep layer, with the top key of each.",
    roles=("mdm", "arm"),
)
def introduction(bench: Workbench) -> Iterator[Product]:
    sources = [*bench.sources.get("arm", ()), *bench.need("mdm")]
    traces = []
    for source in sources:
        trace = bench.text_runs(source, 1)[0]
        step = middle_step(trace)
        traces.append((trace, step))
    depth = min(trace.manifest["model"]["layers"] for trace, _ in traces)
    step = min(step for _, step in traces)
    layers = _three(depth)
    maps = [bench.replay(trace, [pattern(layers=layers, steps=(step,))]) for trace, _ in traces]
    yield "", layer_maps(maps, step=step, layers=layers)


@paper_item(
    "floating",
    "figure temporal",
    "Attention received over steps in the first and last layer, mean of heads; anchors hatched.",
)
def temporal(bench: Workbench) -> Iterator[Product]:
    for name, trace in _first_runs(bench):
        last = trace.manifest["model"]["layers"] - 1
        for layer in (0, last):
            yield _join(name, f"layer-{layer}"), sink_map(trace, layer=layer, rule=RULE)


@paper_item(
    "floating",
    "figure absorption",
    "Attention that the first key and the top key absorb by layer: of each head, and as published "
    "of the mean over heads.",
    roles=("mdm", "arm"),
)
def absorption(bench: Workbench) -> Iterator[Product]:
    runs = _runs(bench, (*bench.need("mdm"), *bench.sources.get("arm", ())))
    table = metrics.METRICS["absorption"](runs, ["first", "top1"], heads="both")
    shown = ["first", "top1", "top1 of the head mean"]
    yield "", profile(table, quantities=shown)


@paper_item(
    "floating",
    "figure qk",
    "Logits, cosines and norms of every query and key of a shallow, a middle and a deep head.",
)
def decomposition(bench: Workbench) -> Iterator[Product]:
    for name, trace in _first_runs(bench):
        step = middle_step(trace)
        cells = [find_strong(trace, n, step) for n in _three(trace.manifest["model"]["layers"])]
        for cell in cells:
            probe = qk_maps_probe(layers=(cell.layer,), heads=(cell.head,), steps=(step,))
            maps = bench.replay(trace, [probe])
            drawn = qk_maps(maps, step=step, layer=cell.layer, head=cell.head, rule=RULE)
            yield _join(name, f"layer-{cell.layer}"), drawn
    runs = _runs(bench, bench.need("mdm"))
    yield "shares", shapley_bars(metrics.METRICS["qk_split"](runs, RULE))


@paper_item(
    "floating",
    "figure retrieval",
    "How much each head looks at the evidence while the answer is written, by layer and head.",
    roles=("mdm", "arm"),
)
def retrieval_heads(bench: Workbench) -> Iterator[Product]:
    traces: list[Trace] = []
    for source in (*bench.need("mdm"), *bench.sources.get("arm", ())):
        traces += [trace for trace, _ in bench.question_runs(source, "gold+2")]
    ends = {token for trace in traces for token in trace.manifest["model"]["end_ids"]}
    table = metrics.METRICS["retrieval_heads"](traces, ignore=sorted(ends))
    yield "", retrieval_map(table)


@paper_item(
    "floating",
    "figure rollout",
    "Rollout from region to region with the gold passage first, in the middle and last.",
    roles=("mdm", "arm"),
    published="ten documents of lost-in-the-middle: "
    "--task nq-open-10_total_documents_gold_at_0.jsonl.gz --full",
)
def rollouts(bench: Workbench) -> Iterator[Product]:
    total = bench.effort.documents
    for place in (1, (total + 1) // 2, total):
        traces = []
        for source in (*bench.need("mdm"), *bench.sources.get("arm", ())):
            runs = bench.question_runs(source, f"gold@{place}/{total}", 1)
            traces += [trace for trace, _ in runs]
        table = metrics.METRICS["published_rollout"](traces, by=REGIONS)
        yield f"gold-{place}", flow_matrix(table, quantity="rollout")
        yield f"gold-{place}-answer", rollout_columns(table)


@paper_item(
    "floating",
    "figure structure",
    "Shares of structure, masks and content by layer, of sinks and of all attention; which kinds "
    "of token anchors are by depth.",
)
def structural(bench: Workbench) -> Iterator[Product]:
    runs = _runs(bench, bench.need("mdm"))
    yield "", structure(metrics.METRICS["structure"](runs, RULE))
    yield "kinds", enrichment_depth(metrics.METRICS["enrichment"](runs, RULE, by=("layer",)))


@paper_item(
    "floating",
    "figure stress",
    "Accuracy over distractors, the place of the evidence, and the order of two passages.",
    roles=("mdm", "arm"),
)
def stress_tests(bench: Workbench) -> Iterator[Product]:
    sources = (*bench.need("mdm"), *bench.sources.get("arm", ()))
    given = bench.question_tasks()
    one, two = given[0], given[1] if len(given) > 1 else given[0]
    total = bench.effort.documents
    beside = [0, *(count for count in (1, 2, 4, 9, 19) if count < total)]
    noise = bench.evaluate(sources, one, [f"gold+{count}" if count else "gold" for count in beside])
    yield "noise", noise_curve(curve(noise, "noise"))
    ranks = dict.fromkeys((1, (total + 1) // 2, total))
    places = bench.evaluate(sources, one, [f"gold@{rank}/{total}" for rank in ranks])
    yield "place", position_curve(curve(places, "position"))
    layouts = bench.evaluate(sources, two, ("adjacent+2", "far+2", "reversed+2"))
    if layouts.num_unfit < len(layouts.rows):
        yield "layout", layout_bars(curve(layouts, "layout"))


@paper_item(
    "floating",
    "table 1",
    "Accuracy and F1 with and without passages on each question set, with gains and their ratio.",
    roles=("mdm", "arm"),
    published="NQ, TriviaQA, MARCO QA, HotpotQA and T-REx with retrieved passages, as KILT files: "
    "--task nq.jsonl --task tqa.jsonl --task marco.jsonl --task hotpot.jsonl --task trex.jsonl",
)
def questions(bench: Workbench) -> Iterator[Product]:
    # 1. Every model on every set, closed book and with passages.
    sources = (*bench.need("mdm"), *bench.need("arm"))
    sets = bench.question_tasks()
    if not sets:
        raise bench.lacks("question sets, not tasks of lm-eval", "--task nq.jsonl")
    results: dict[str, Results] = {}
    for task in sets:
        shown = "gold+4" if task.startswith("synthetic/one") else "open5"
        shown = "adjacent+2" if task.startswith("synthetic/two") else shown
        results[task] = bench.evaluate(sources, task, (CLOSED, shown))
    # 2. As printed: a row for each model without and with passages, their mean and the gain.
    yield "", _wide(results)
    # 3. Paired by item: the gain of each model on each set.
    rows = []
    for found in results.values():
        part = result_rows(found, [ACCURACY, F1], arm="context")
        rows.append(part.assign(arm=np.where(part["arm"] == CLOSED, CLOSED, "passages")))
    yield "gains", compare_arms(pd.concat(rows, ignore_index=True), CLOSED)
    ratios = [gain_ratios(found, ACCURACY).assign(task=task) for task, found in results.items()]
    yield "gain-ratios", pd.concat(ratios, ignore_index=True)


def _wide(results: dict[str, Results]) -> pd.DataFrame:
    """Accuracy and F1 in percent: a row for each model and context, a column for each set."""
    columns: dict[tuple[str, str], pd.Series] = {}
    for task, found in results.items():
        rows = found.rows.assign(
            passages=np.where(found.rows["context"] == CLOSED, "without", "with")
        )
        means = 100 * rows.groupby(["model", "passages"], sort=False)[[ACCURACY, F1]].mean()
        columns[task, "accuracy"], columns[task, "F1"] = means[ACCURACY], means[F1]
    table = pd.DataFrame(columns)
    table.columns = [f"{task} {score}" for task, score in table.columns]
    table["mean"] = table.mean(axis=1)
    closed = table["mean"].xs("without", level="passages")
    models = table.index.get_level_values("model")
    table["gain"] = table["mean"].to_numpy() - closed.reindex(models).to_numpy()
    return table.round(2).reset_index()


def _three(layers: int) -> tuple[int, ...]:
    """A shallow, a middle and a deep layer, as deep as 1, 11 and 28 are among 32."""
    depths = (min(round(layers * layer / 32), layers - 1) for layer in (1, 11, 28))
    return tuple(dict.fromkeys(depths))


def _runs(bench: Workbench, sources: Sequence[str]) -> list[Trace]:
    return [trace for source in sources for trace in bench.text_runs(source)]


def _first_runs(bench: Workbench) -> Iterator[tuple[str, Trace]]:
    """The first run of each masked diffusion model, with a name where there are several."""
    sources = bench.need("mdm")
    for source in sources:
        name = source.replace("/", "-") if len(sources) > 1 else ""
        yield name, bench.text_runs(source, 1)[0]


def _join(*words: str) -> str:
    return "-".join(word for word in words if word)
