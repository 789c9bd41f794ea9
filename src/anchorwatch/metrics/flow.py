"""Region flow: what the queries of a region look at directly, per token of what they look at.

A long region receives more for being long, and a causal map sends everything to the left. So each
flow stands beside what uniform attention under the same visibility gives, and beside its
density, the flow per token. Rows are those that stand in a region; where row p - 1 predicts
position p (`shift`), the row that predicts the first token of the answer stands before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics import stats
from anchorwatch.metrics.layer_slices import Traces, check_traces, require_field
from anchorwatch.metrics.null import for_each_layer, uniform_attention
from anchorwatch.metrics.registry import custom_metric
from anchorwatch.metrics.table import NUMBERS, Quantity, mean, ratio, stack_layers, tabulate
from anchorwatch.trace.trace import ABSENT, Trace

REGIONS = ("query_region", "key_region")
ANSWER = "answer"
DOCUMENTS = ("doc", "distractor", "passage")
"""How names of document regions begin, in any case."""
PLACES = ("start", "middle", "end")
CELLS = ("step", "progress", "layer", "head")


@dataclass(frozen=True, eq=False)
class Layout:
    """Which positions each region holds, and how many of them exist at each step."""

    names: tuple[str, ...]
    onto: np.ndarray
    """[position, region] 1 where the position belongs to the region, else 0."""
    lengths: np.ndarray
    """[step, region] positions that exist."""

    @property
    def labels(self) -> dict[str, Sequence[object]]:
        return dict.fromkeys(REGIONS, self.names)


def region_layout(trace: Trace) -> Layout:
    """The regions of a trace; none at all, and one without positions, are refused."""
    names = tuple(trace.manifest["regions"])
    called = f"the trace {trace.digest()[:12]}"
    if not names:
        raise TraceError(
            f"{called} has no regions: name them when it is run, "
            "aw.run(..., regions={'passage': (0, 42)})"
        )
    # A product with `onto` adds up positions by region.
    onto = (trace["region"].values[:, None] == np.arange(len(names))).astype(float)
    for name, size in zip(names, onto.sum(axis=0), strict=True):
        if not size:
            raise TraceError(
                f"the region {name!r} of {called} is empty: "
                "give it at least one token, or leave it out of regions={...}"
            )
    return Layout(names, onto, (trace.role[:-1] != ABSENT) @ onto)


def region_layouts(traces: Traces) -> list[tuple[Trace, Layout]]:
    """Each trace with its regions; their names must be the same, in any order."""
    layouts = [(trace, region_layout(trace)) for trace in check_traces(traces)]
    first = layouts[0][1].names
    for trace, other in layouts[1:]:
        if apart := sorted(set(first) ^ set(other.names)):
            raise SpecError(
                f"the traces have different regions ({', '.join(apart)} not in all of them; "
                f"{trace.digest()[:12]} has {', '.join(other.names)}): "
                "name the same parts alike, or measure them apart"
            )
    return layouts


def check_regions_in_by(by: Sequence[str]) -> None:
    """Shares of different regions are not averaged."""
    if not isinstance(by, str) and (lost := [dim for dim in REGIONS if dim not in by]):
        raise SpecError(
            f"a mean over every {lost[0]} means nothing: keep query_region and key_region in by, "
            "and choose rows of the table"
        )


def null_flows(trace: Trace, regions: Layout) -> list[np.ndarray]:
    """Of each layer [step, query_region, key_region] of uniform attention.

    NaN rows have no queries.
    """

    def pool(window: int | None, added: np.ndarray) -> np.ndarray:
        shares = uniform_attention(trace, regions.names, window, added).shares
        # Shares of uniform queries, added up over the keys of each region.
        flow = np.nan_to_num(shares) @ regions.onto
        flow[regions.lengths == 0] = np.nan
        return flow

    return for_each_layer(trace, pool)


@custom_metric()
def region_flow(traces: Traces, *, by: Sequence[str] = ("layer", *REGIONS)) -> pd.DataFrame:
    """Attention from region to region: mean over the one's queries, sum over the other's keys.

    `flow` is that share, and its null what uniform attention under the same visibility gives.
    `length_normalised` is f_ij = (P_ij / len_j) / sum_k (P_ik / len_k), which uniform attention
    spreads evenly over regions whatever their lengths. Dims: step (or progress), layer, head, and
    both regions. A region that does not exist yet (the answer of an autoregressive model at step 0)
    is absent.
    """
    check_regions_in_by(by)
    layouts = region_layouts(traces)
    parts = [
        (trace, _by_layer(trace, regions, _flow_cells, heads="head" in by))
        for trace, regions in layouts
    ]
    about = {"metric": "region_flow", "regions": list(layouts[0][1].names)}
    return tabulate(parts, by, about=about)


Kernel = Callable[[np.ndarray, np.ndarray, Layout], list[Quantity]]
"""(flow [step, head, query_region, key_region], its null without heads, the regions)."""


def _by_layer(trace: Trace, regions: Layout, kernel: Kernel, *, heads: bool) -> list[Quantity]:
    """Quantities of all layers; heads that nobody asks for are added up at once."""
    flow = require_field(trace, "region_flow").values
    nulls, layers = null_flows(trace, regions), []
    for layer in range(flow.shape[1]):
        exists = regions.lengths[:, None, None, :] > 0  # a region without keys receives no flow
        values = np.where(exists, flow[:, layer], np.nan).astype(np.float64)
        quantities = kernel(values, nulls[layer], regions)
        layers.append(quantities if heads else [_over_heads(quantity) for quantity in quantities])
    return stack_layers(layers)


def _over_heads(quantity: Quantity) -> Quantity:
    axis = quantity.dims.index("head")
    arrays = {
        name: getattr(quantity, name).sum(axis=axis)
        for name in ("top", "bottom", "null_top", "null_bottom", "missing")
    }
    return replace(quantity, dims=tuple(dim for dim in quantity.dims if dim != "head"), **arrays)


def _flow_cells(flow: np.ndarray, null: np.ndarray, regions: Layout) -> list[Quantity]:
    dims = ("step", "head", *REGIONS)
    nulls = np.broadcast_to(null[:, None], flow.shape)
    value = _shares(_density(flow, regions))
    expected = _shares(_density(nulls, regions), ~np.isnan(flow))
    return [
        mean("flow", dims, flow, nulls, regions.labels),
        ratio("length_normalised", dims, *value, expected, regions.labels),
    ]


def _density(flow: np.ndarray, regions: Layout) -> np.ndarray:
    """Flow per token of the region that receives it; NaN where it has none."""
    # A long region receives more for being long: divide by its tokens.
    lengths = regions.lengths[:, None, None, :]
    return flow / np.where(lengths > 0, lengths, np.nan)


def _shares(
    density: np.ndarray, measured: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(top, bottom) of each density among all of its row; both 0 where it is absent."""
    known = ~np.isnan(density) if measured is None else measured & ~np.isnan(density)
    # Absent densities are 0 above and below the line, so that they drop out of both sums.
    top = np.where(known, density, 0.0)
    return top, np.where(known, top.sum(axis=-1, keepdims=True), 0.0)


@custom_metric()
def gold_lift(
    traces: Traces,
    gold: str | Sequence[str] = "gold",
    distractors: Sequence[str] | None = None,
    *,
    items: Sequence[Hashable] | None = None,
    by: Sequence[str] = ("layer",),
) -> pd.DataFrame:
    """How much more the answer looks at a token of the gold document than at one of the others.

    f(answer -> gold) / mean f(answer -> distractor), f as in `region_flow`. The null is the same
    ratio of uniform attention: 1, unless a window hides documents from the answer.

    `gold` is one name, or one for each trace. `distractors` are the other documents, by default
    every region whose name begins with doc, distractor or passage. Dims: step (or progress),
    layer, head, `gold_index` (how many documents stand before gold) and `gold_at` (start, middle,
    end). The unit is the item: prompts that differ in the order of their documents are one item,
    unless `items` names the item of each trace.
    """
    runs = _collect_items(traces, gold, distractors, items)
    parts = [
        (run.trace, _by_layer(run.trace, run.regions, run.cells, heads="head" in by))
        for run in runs
    ]
    item_of = {id(run.trace): run.item for run in runs}
    about = {"metric": "gold_lift", "documents": sorted({d for run in runs for d in run.others})}
    return tabulate(parts, by, about=about, unit=lambda trace: item_of[id(trace)])


@dataclass(frozen=True, eq=False)
class _GoldRun:
    """One trace of `gold_lift`."""

    trace: Trace
    regions: Layout
    gold: str
    others: tuple[str, ...]
    item: str

    def cells(self, flow: np.ndarray, null: np.ndarray, regions: Layout) -> list[Quantity]:
        gold = regions.names.index(self.gold)
        others = [regions.names.index(name) for name in self.others]
        answer = regions.names.index(ANSWER)

        def lift(of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            density = _density(of, regions)[:, :, answer]
            return density[..., gold], density[..., others].mean(axis=-1)

        value, expected = lift(flow), lift(np.broadcast_to(null[:, None], flow.shape))
        known = ~np.isnan(value[0] + value[1])
        tops = [np.where(known, array, 0.0)[..., None, None] for array in (*value, *expected)]
        first = [int(np.flatnonzero(regions.onto[:, region])[0]) for region in (gold, *others)]
        before = sum(other < first[0] for other in first[1:])
        spot = PLACES[0] if before == 0 else PLACES[2] if before == len(others) else PLACES[1]
        labels: dict[str, Sequence[object]] = {"gold_index": [before], "gold_at": [spot]}
        dims = ("step", "head", "gold_index", "gold_at")
        return [ratio("gold_lift", dims, tops[0], tops[1], (tops[2], tops[3]), labels)]


def gold_places(
    traces: Traces,
    gold: str | Sequence[str] = "gold",
    distractors: Sequence[str] | None = None,
    *,
    items: Sequence[Hashable] | None = None,
    margin: float = 0.1,
    by: Sequence[str] = ("layer",),
) -> pd.DataFrame:
    """Whether the gold lift depends on where gold stands: ratios of lifts, paired by item.

    `value` is the geometric mean over items of one place's lift over another's; null 1. `verdict`
    is that of two one-sided tests (`stats.equivalence`) with a margin of 10 % either way, and the
    interval has their level of 90 %. Items that lack either place are counted in `missing`.
    """
    if not 0 < margin < np.inf:
        raise SpecError(f"margin={margin!r} is not a number above 0: 0.1 is 10 % either way")
    if lost := [dim for dim in by if dim not in CELLS]:
        raise SpecError(f"gold_places has no {lost[0]}: it can be split by {', '.join(CELLS)}")
    # 1. The lift of every item at every place, as a logarithm: ratios become differences.
    runs = _collect_items(traces, gold, distractors, items)
    lifts = gold_lift(
        [run.trace for run in runs],
        [run.gold for run in runs],
        distractors,
        items=[run.item for run in runs],
        by=("prompt", "gold_at", *by),
    )
    lifts["value"] = np.log(lifts["value"].where(lifts["value"] > 0))
    # 2. Places that occur; one alone cannot be compared.
    places = [spot for spot in PLACES if spot in set(lifts["gold_at"])]
    if len(places) < 2:
        raise SpecError(
            f"gold stands at the {places[0]} of its documents in every trace: "
            "give traces of the same items with gold elsewhere"
        )
    # 3. Each two places, paired by item.
    keys = ["model", *by]
    wide = lifts.pivot(index="prompt", columns=["gold_at", *keys], values="value")
    tables = [
        _compare_places(wide, pair, keys, np.log1p(margin)) for pair in combinations(places, 2)
    ]
    table = pd.concat(tables, ignore_index=True)
    table.attrs = {
        "about": {**lifts.attrs["about"], "metric": "gold_places", "margin": margin},
        "traces": lifts.attrs["traces"],
    }
    return table


def _compare_places(
    wide: pd.DataFrame, places: tuple[str, str], keys: list[str], margin: float
) -> pd.DataFrame:
    """One place against another; `wide` has an item a row and the cells of each place beside."""
    first, second = (wide[spot] for spot in places)
    # A cell that one place lacks is NaN there, and its items are missing.
    cells = first.columns.union(second.columns, sort=False)
    first, second = first.reindex(columns=cells), second.reindex(columns=cells)
    test = stats.equivalence(first.to_numpy(), second.to_numpy(), margin, paired=True)
    table = cells.to_frame(index=False, name=keys if len(keys) > 1 else keys[0])
    table["quantity"] = f"{places[0]} / {places[1]}"
    known = first.notna() | second.notna()
    table["value"], table["null"] = np.exp(test.value), 1.0
    table["lift"], table["n"] = table["value"], test.n
    table["missing"] = known.sum(axis=0).to_numpy() - test.n
    table["low"], table["high"] = np.exp(test.low), np.exp(test.high)
    table["interval"], table["p"], table["verdict"] = test.why, test.p, test.verdict
    return table[[*keys, "quantity", *NUMBERS, "p", "verdict"]]


def _collect_items(
    traces: Traces,
    gold: str | Sequence[str],
    distractors: Sequence[str] | None,
    items: Sequence[Hashable] | None,
) -> list[_GoldRun]:
    layouts = region_layouts(traces)
    golds = [gold] * len(layouts) if isinstance(gold, str) else list(gold)
    for name, given in (("gold", golds), ("items", items)):
        if given is not None and len(given) != len(layouts):
            raise SpecError(
                f"{name} names {len(given)} for {len(layouts)} traces: give one for each"
            )
    runs = []
    for index, (trace, regions) in enumerate(layouts):
        others = _others(regions.names, golds[index], distractors)
        item = (
            _item(trace, regions, (golds[index], *others)) if items is None else str(items[index])
        )
        runs.append(_GoldRun(trace, regions, golds[index], others, item))
    return runs


def _others(
    names: tuple[str, ...], gold: str, distractors: Sequence[str] | None
) -> tuple[str, ...]:
    """The documents besides gold, in the order of the regions."""
    if isinstance(distractors, str):
        raise SpecError(f"distractors={distractors!r} is not a list: say [{distractors!r}]")
    for name in (gold, *(distractors or ())):
        if name not in names or name == ANSWER:
            able = ", ".join(region for region in names if region != ANSWER)
            raise SpecError(f"no document is called {name!r}: the regions are {able}")
    if distractors is None:
        begins = tuple(name for name in names if name.lower().startswith(DOCUMENTS))
    others = tuple(n for n in names if n in (distractors or begins) and n != gold)
    if not others:
        raise SpecError(
            f"there is nothing to compare {gold!r} with: name the other documents, distractors="
            f"[...]; by itself only a region called doc..., distractor... or passage... is one"
        )
    return others


def _item(trace: Trace, regions: Layout, documents: tuple[str, ...]) -> str:
    """The same for prompts that hold the same documents in another order."""
    # Documents sorted by content: their order in the prompt does not matter.
    given = trace.given.astype("<i4")
    columns = [regions.names.index(name) for name in documents]
    texts = sorted(given[regions.onto[:, column] > 0].tobytes() for column in columns)
    rest = regions.onto[:, columns].sum(axis=1) == 0
    rest[trace.answer] = False
    return hashlib.sha256(b"\0\0".join([*texts, given[rest].tobytes()])).hexdigest()[:12]
