"""Figures and tables of 2601.19657, One Token Is Enough."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from anchorwatch import metrics
from anchorwatch.evaluation.paired import as_grid, compare_arms, result_rows
from anchorwatch.figures.added_keys import sink_mass_steps
from anchorwatch.figures.geometry import value_norm_scatter
from anchorwatch.figures.maps import map_pair
from anchorwatch.figures.sink_strength import profile
from anchorwatch.metrics.sink_rules import rulli, topk
from anchorwatch.probes.spec import pattern
from anchorwatch.studies.papers.find_heads import find_moving, middle_step
from anchorwatch.studies.reproduction import Product, Workbench, paper_item
from anchorwatch.training.variants import differences, variants

RULE = rulli(3)
POINTS = 3840
"""Sinks and other tokens of each model in the published figure."""
BENCHMARKS = "arc_easy arc_challenge hellaswag piqa race social_iqa lambada_openai gsm8k"
QUANTITIES = {
    "bound.all": "nats per token",
    "bound.answers": "nats per answer token",
    "answers.gold": "answers, gold passage",
    "answers.gold+2": "answers, two distractors",
    "answers.two-hop": "answers, two hops",
}
"""Columns of the tables of training seeds, and what they are."""
_TASKS = " ".join(f"--task {name}" for name in BENCHMARKS.split())


@paper_item(
    "sink_token",
    "figure 1",
    "Value norms of sinks and other tokens, and one head's map at the first and a middle step.",
)
def low_norms(bench: Workbench) -> Iterator[Product]:
    sources = bench.need("mdm")
    runs = [trace for source in sources for trace in bench.text_runs(source)]
    # The sinks of the mean over heads; where the rule finds none, the top key of each step.
    for rule in (RULE, topk(1)):
        points = metrics.METRICS["value_norm_points"](runs, rule, count=POINTS, seed=bench.seed)
        if (points["kind"] == "sink").any():
            break
    yield "norms", value_norm_scatter(points)
    for source in sources:
        trace = bench.text_runs(source, 1)[0]
        cell, middle = find_moving(trace), max(1, middle_step(trace))
        where = pattern(layers=(cell.layer,), heads=(cell.head,), steps=(0, middle))
        drawn = map_pair(
            bench.replay(trace, [where]), step=0, layer=cell.layer, head=cell.head, later=middle
        )
        yield f"maps-{source.replace('/', '-')}" if len(sources) > 1 else "maps", drawn


@paper_item(
    "sink_token",
    "figure sink-mass",
    "Section 4.4: attention that the sink token receives by layer over steps, and its value norm.",
    roles=("sink",),
)
def sink_mass(bench: Workbench) -> Iterator[Product]:
    runs = [trace for source in bench.need("sink") for trace in bench.text_runs(source)]
    yield "steps", sink_mass_steps(metrics.METRICS["sink_mass"](runs, by=("layer", "step")))
    yield "", profile(metrics.METRICS["sink_mass"](runs))
    norms = metrics.METRICS["sink_value_norms"](runs)
    yield "norms", profile(norms, quantities=["norm"], unit="norm of the sink token's value")


@paper_item(
    "sink_token",
    "table 1",
    "A model adapted from an autoregressive one, with a sink token, and with gates: accuracy.",
    roles=("mdm", "sink", "gate"),
    published="three models of recipes/paper-sink-token-qwen.toml (0.5B and 1.5B on FineWeb), and "
    f"the benchmarks of lm-eval: {_TASKS}",
)
def from_autoregression(bench: Workbench) -> Iterator[Product]:
    yield from _compare(bench, [*bench.need("mdm"), *bench.need("sink"), *bench.need("gate")])


@paper_item(
    "sink_token",
    "table 2",
    "The same of models that were trained from scratch.",
    roles=("mdm", "sink", "gate"),
    published="three models of recipes/paper-sink-token-scratch.toml (472M on SlimPajama), and the "
    f"benchmarks of lm-eval: {_TASKS}",
)
def from_scratch(bench: Workbench) -> Iterator[Product]:
    roles = ("mdm", "sink", "gate")
    given = [source for role in roles for source in bench.sources.get(role, ())]
    if all(source.startswith("lab/") for source in given):
        raise bench.lacks(
            "three models trained from scratch, and the lab's begin with an autoregressive one "
            "(anchorwatch train recipes/paper-sink-token-scratch.toml -o runs/scratch, again with "
            """--set 'variant=["sink_token"]' and """
            """--set 'variant=[{name="gate", form="elementwise", init="plain"}]')""",
            "--model runs/scratch/model --sink runs/scratch-sink/model "
            "--gate runs/scratch-gate/model",
        )
    yield from _compare(bench, [source for role in roles for source in bench.need(role)])


@paper_item("sink_token", "table 3", "The sink token in front and at the end.")
def positions(bench: Workbench) -> Iterator[Product]:
    yield from _arms(bench, {"sink": "front", "sink-end": "end"})


@paper_item("sink_token", "table 4", "No sink token, one, two and four.")
def numbers(bench: Workbench) -> Iterator[Product]:
    yield from _arms(bench, {"vanilla": "0", "sink": "1", "sink-2": "2", "sink-4": "4"})


@paper_item("sink_token", "table 5", "A learned value of the sink token and an empty one.")
def empty_value(bench: Workbench) -> Iterator[Product]:
    yield from _arms(bench, {"sink": "learned value", "sink-zero": "zero value"})


def _arms(bench: Workbench, arms: Mapping[str, str]) -> Iterator[Product]:
    """Arms of training: models that were named, in the order of the arms, or the table of seeds."""
    named = bench.sources.get("mdm", ())
    if len(named) == len(arms) and not named[0].startswith("lab/"):
        yield from _compare(bench, list(named), list(arms.values()))
        return
    if len(named) > 1:
        words = ", ".join(arms.values())
        raise bench.lacks(f"one model for each of {words}", "--model A --model B ...")
    yield from _seeds(bench, arms)


def _seeds(bench: Workbench, arms: Mapping[str, str]) -> Iterator[Product]:
    """Means over training seeds, and differences from the first arm, paired by seed."""
    table = variants(bench.variants)
    if lost := [arm for arm in arms if arm not in set(table["arm"])]:
        raise bench.lacks(f"a table with the arm {lost[0]}, `make variants` makes one", "")
    part = table[table["arm"].isin(arms)]
    base = next(iter(arms))
    means = part.groupby("arm", sort=False)[list(QUANTITIES)].mean().reindex(list(arms))
    gaps = differences(part, list(QUANTITIES), base=base)
    wide = gaps.pivot(index="arm", columns="quantity", values=["value", "p_holm"])
    rows = []
    for arm, name in arms.items():
        row: dict[str, object] = {"sink token": name, "seeds": int((part["arm"] == arm).sum())}
        for quantity, says in QUANTITIES.items():
            text = f"{means.loc[arm, quantity]:.3f}"
            if arm != base:
                star = "*" if wide.loc[arm, ("p_holm", quantity)] < 0.05 else ""
                text += f" ({wide.loc[arm, ('value', quantity)]:+.3f}{star})"
            row[says] = text
        rows.append(row)
    yield "", pd.DataFrame(rows)
    yield "paired", gaps.assign(arm=gaps["arm"].map(arms))


def _compare(
    bench: Workbench, sources: Sequence[str], names: Sequence[str] | None = None
) -> Iterator[Product]:
    """Models on the same items: question sets, or tasks of lm-eval; differences from the first."""
    called = dict(zip(sources, names or sources, strict=True))
    parts = []
    for task in bench.question_tasks():
        shown = "adjacent+2" if task.startswith("synthetic/two") else "gold"
        found = bench.evaluate(sources, task, [shown])
        parts.append(result_rows(found, ["containment"], arm="model"))
    if tasks := bench.harness_tasks():
        for source in sources:
            rows = bench.run_harness(source, tasks, ())
            parts.append(rows.assign(model="", arm=source))
    table = compare_arms(pd.concat(parts, ignore_index=True), sources[0])
    table = table.assign(arm=table["arm"].map(called))
    grid = as_grid(table).drop(columns="model").rename(columns={"arm": "model"})
    yield "", grid.set_index("model").loc[list(called.values())].reset_index()
    yield "paired", table
