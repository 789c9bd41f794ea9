"""Figures and tables of 2510.15731, Attention Sinks in Diffusion Language Models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from anchorwatch import metrics
from anchorwatch.edits.spec import Edit, hide_random, hide_sinks
from anchorwatch.evaluation.paired import as_grid, compare_arms, result_rows
from anchorwatch.figures.figure import Figure
from anchorwatch.figures.frames import step_frames
from anchorwatch.figures.head_maps import attention_map
from anchorwatch.figures.maps import map_pair, sink_map
from anchorwatch.figures.movement import sink_path
from anchorwatch.figures.sink_strength import epsilon_curve, head_grid, score_histogram
from anchorwatch.metrics.sink_rules import rulli
from anchorwatch.probes.spec import pattern
from anchorwatch.studies.papers.find_heads import (
    HeadCell,
    find_fixed,
    find_flicker,
    find_moving,
    find_split,
    middle_step,
)
from anchorwatch.studies.reproduction import Product, Workbench, paper_item
from anchorwatch.trace.trace import Trace

RULE = rulli(3)
"""Equation 3 with eps = 3."""
DOSES = (1, 5, 10, 20)
"""Sinks hidden in Table 1 (the paper: 1, 5 and 10)."""
UNEDITED = "none"


@paper_item(
    "sinks",
    "figure 1",
    "Attention each token receives, step by step, in the head with the strongest move of its top "
    "key.",
)
def received_over_steps(bench: Workbench) -> Iterator[Product]:
    for name, trace in _first_runs(bench):
        cell = find_moving(trace)
        yield name, sink_map(trace, layer=cell.layer, head=cell.head, rule=RULE)


@paper_item(
    "sinks",
    "figure 2",
    "One inference step of each kind of model: which row predicts which token.",
    roles=("mdm", "arm"),
)
def inference_step(bench: Workbench) -> Iterator[Product]:
    sources = [*bench.need("mdm"), *bench.sources.get("arm", ())]
    traces = [bench.text_runs(source, 1)[0] for source in sources]
    yield "", step_frames(traces, step=middle_step(traces[0]))


@paper_item("sinks", "figure 3", "How attention scores are spread over keys.")
def scores(bench: Workbench) -> Iterator[Product]:
    runs = bench.text_runs(bench.need("mdm")[0])
    yield "", score_histogram(metrics.METRICS["score_histogram"](runs))


@paper_item(
    "sinks",
    "figure 4",
    "Maps of the head with the strongest move of its top key, before and after it.",
)
def moving_sink(bench: Workbench) -> Iterator[Product]:
    for name, trace in _first_runs(bench):
        cell = find_moving(trace)
        yield name, _pair(bench, trace, cell, cell.step + 1)


@paper_item("sinks", "figure 5", "Score of the main sink by layer and head, mean over steps.")
def main_sink(bench: Workbench) -> Iterator[Product]:
    runs = [trace for source in bench.need("mdm") for trace in bench.text_runs(source)]
    yield "", head_grid(metrics.METRICS["sinks"](runs, RULE, by=("layer", "head")))


@paper_item(
    "sinks",
    "figure 6",
    "(a) the head with the strongest top keys where masked and other tokens have one each; (b) the "
    "head with the strongest top key of a single step.",
)
def kinds_of_moving_sinks(bench: Workbench) -> Iterator[Product]:
    for name, trace in _first_runs(bench):
        cell = find_split(trace)
        maps = bench.replay(trace, [_maps(cell, (cell.step,))])
        yield (
            _join("a", name),
            attention_map(maps, step=cell.step, layer=cell.layer, head=cell.head),
        )
        cell = find_flicker(trace)
        yield _join("b", name), _pair(bench, trace, cell, cell.step + 1)


@paper_item(
    "sinks", "figure 7", "Position of the greatest sink of one head of each model, over steps."
)
def greatest_sink(bench: Workbench) -> Iterator[Product]:
    for name, trace in _first_runs(bench):
        cell = find_moving(trace)
        table = metrics.METRICS["sink_positions"]([trace], RULE)
        yield name, sink_path(table, [trace], heads=[(cell.layer, cell.head)])


@paper_item(
    "sinks",
    "figure 8",
    "(a) the head whose top key stays longest, at the first and the last step; (b) the head with "
    "the strongest move of its top key to the left.",
)
def fixed_and_moving(bench: Workbench) -> Iterator[Product]:
    for name, trace in _first_runs(bench):
        cell = find_fixed(trace)
        first = HeadCell(0, cell.layer, cell.head, cell.score)
        yield _join("a", name), _pair(bench, trace, first, trace.num_steps - 1)
        cell = find_moving(trace, direction=-1)
        yield _join("b", name), _pair(bench, trace, cell, cell.step + 1)


@paper_item("sinks", "figure 9", "Figure 3 of every model that is given.")
def scores_of_all(bench: Workbench) -> Iterator[Product]:
    runs = [trace for source in bench.need("mdm") for trace in bench.text_runs(source)]
    yield "", score_histogram(metrics.METRICS["score_histogram"](runs))


@paper_item("sinks", "figure 10", "Share of tokens that are no sinks, over the threshold eps.")
def thresholds(bench: Workbench) -> Iterator[Product]:
    runs = [trace for source in bench.need("mdm") for trace in bench.text_runs(source)]
    yield "", epsilon_curve(metrics.METRICS["epsilon_curve"](runs))


@paper_item(
    "sinks",
    "table 1",
    "Accuracy with 0, 1, 5, 10 and 20 sinks hidden, paired by item, beside random keys.",
    roles=("mdm", "arm"),
    published="GSM8K and HumanEval, which lm-eval fetches from the hub: --task gsm8k "
    "--task humaneval --run-code, LLaDA in blocks of 32 with 256 positions (GSM8K) and 512 "
    "(HumanEval); without --task our made-up questions",
)
def hidden_sinks(bench: Workbench) -> Iterator[Product]:
    sources = [*bench.need("mdm"), *bench.sources.get("arm", ())]
    rows = pd.concat([_table_rows(bench, source) for source in sources], ignore_index=True)
    table = compare_arms(rows, UNEDITED)
    yield "", as_grid(table)
    yield "paired", table


@paper_item(
    "sinks",
    "table 2",
    "The five tokens that are sinks most often, beside their share of all keys.",
)
def sink_tokens(bench: Workbench) -> Iterator[Product]:
    runs = [trace for source in bench.need("mdm") for trace in bench.text_runs(source)]
    table = metrics.METRICS["sink_tokens"](runs, RULE, top=5)
    yield "", table.sort_values(["model", "rank"], ignore_index=True)


def _first_runs(bench: Workbench) -> Iterator[tuple[str, Trace]]:
    """The first run of each masked diffusion model, with a name where there are several."""
    sources = bench.need("mdm")
    for source in sources:
        name = source.replace("/", "-") if len(sources) > 1 else ""
        yield name, bench.text_runs(source, 1)[0]


def _pair(bench: Workbench, trace: Trace, cell: HeadCell, later: int) -> Figure:
    """The maps of a head at two steps, taken in a replay."""
    maps = bench.replay(trace, [_maps(cell, (cell.step, later))])
    return map_pair(maps, step=cell.step, layer=cell.layer, head=cell.head, later=later)


def _maps(cell: HeadCell, steps: Sequence[int]) -> pattern:
    return pattern(layers=(cell.layer,), heads=(cell.head,), steps=tuple(steps))


def _join(*words: str) -> str:
    return "-".join(word for word in words if word)


def _edits(kind: str) -> Mapping[str, Sequence[Edit]]:
    """What is hidden: the sinks of the step before. Beside it one other key, drawn at random.

    In an autoregressive model, as published, sinks are those of the last row, and hidden from it.
    """
    last = kind == "arm"
    whom = "last" if last else "all"
    edits: dict[str, Sequence[Edit]] = {UNEDITED: ()}
    edits |= {f"{k} sinks": [hide_sinks(k, last_row=last, hide_from=whom)] for k in DOSES}
    return edits | {"1 random": [hide_random(1, last_row=last, hide_from=whom)]}


def _table_rows(bench: Workbench, source: str) -> pd.DataFrame:
    """Every item of every task under every edit, for one model."""
    edits = _edits(bench.load(source).family.kind)
    parts = []
    for task in bench.question_tasks():
        results = bench.evaluate([source], task, ["gold"], edits)
        parts.append(result_rows(results, ["containment"]))
    if tasks := bench.harness_tasks():
        for arm, listed in edits.items():
            rows = bench.run_harness(source, tasks, listed)
            parts.append(rows.assign(model=source, arm=arm))
    return pd.concat(parts, ignore_index=True)
