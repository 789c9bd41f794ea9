"""Claims of 2510.15731 and its neighbours about depth: number, strength, splits, keys, reuse."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.metrics.geometry import split_cells
from anchorwatch.metrics.sink_rules import rulli
from anchorwatch.metrics.table import Quantity, layer_quantities, prompt_id
from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.depths import FIRST, LAST, by_sums, deep, pool_layers, shallow
from anchorwatch.studies.estimates import PROMPT, Estimate
from anchorwatch.studies.evidence import Traced, by_prompt, mean_of
from anchorwatch.studies.needs import Rows, Runs
from anchorwatch.trace.trace import Trace

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2510.15731"
_GAP = (-1.0, 1.0)
MDM = Runs("mdm")
MAPS = Rows("mdm", "head_maps", passes=32)


def _fewer_and_stronger(evidence: Evidence) -> Finding:
    count, most = (
        by_prompt(evidence, MDM, "sinks", name, over="layer") for name in ("count", "greatest")
    )
    fewer = deep(count.value) - shallow(count.value)
    stronger = deep(most.value) / shallow(most.value)
    even = mean_of(deep(most.null) / shallow(most.null))
    last = count.value[:, -max(1, count.value.shape[1] // 4) :].mean(axis=1)
    return Finding(
        {
            "fewer": Measured(Estimate.mean(fewer, PROMPT), null=0.0),
            "stronger": Measured(Estimate.mean(stronger, PROMPT), null=even),
        },
        {"sinks of a head in the last quarter": mean_of(last)},
    )


def _depth_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sink_strength import profile

    held = list(evidence[MDM].traces)
    table = evidence.once((MDM, "sinks by layer"), partial(metrics.sinks, held, by=["layer"]))
    return profile(table)


def _splits(evidence: Evidence) -> Finding:
    wide = evidence[MAPS].pivot_table(index=["unit", "layer"], aggfunc="mean")
    own, drawn, split, by_chance = (
        wide[name].unstack().to_numpy(dtype=float)  # [prompt, layer]
        for name in ("own", "own_drawn", "split", "split_drawn")
    )
    beyond = own - drawn
    last = deep(beyond)
    return Finding(
        {
            "deep": Measured(Estimate.mean(last, PROMPT), 0.0, mean_of(deep(drawn))),
            "deeper": Measured(Estimate.mean(last - shallow(beyond), PROMPT), null=0.0),
        },
        {
            "not the same greatest key in deep layers": mean_of(deep(split)),
            "the same of groups drawn by lot": mean_of(deep(by_chance)),
        },
    )


def _by_angle(evidence: Evidence) -> Finding:
    held = evidence[MDM]
    kernel = partial(split_cells, rule=rulli())
    parts = evidence.once((MDM, "qk sums"), lambda: layer_quantities(list(held.traces), kernel))

    def of_half(name: str, half: str) -> np.ndarray:
        def of(trace: Trace, quantities: Mapping[str, Quantity]) -> float:
            return pool_layers(quantities[f"{name}_share"], half)

        return by_sums(held, parts, of)

    angle = {half: of_half("angle", half) for half in (FIRST, LAST)}
    both = np.where(np.isnan(angle[FIRST] + angle[LAST]), np.nan, 0.0)  # the same prompts for all
    last, first, norm = angle[LAST] + both, angle[FIRST] + both, of_half("norm", LAST) + both
    return Finding(
        {
            "deep": Measured(Estimate.mean(last, PROMPT, _GAP), null=0.0, control=mean_of(norm)),
            "deeper": Measured(Estimate.mean(last - first, PROMPT, (-2.0, 2.0)), null=0.0),
        },
        {"the same in the first half of the layers": mean_of(first)},
    )


def _angle_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.geometry import shapley_bars

    held = list(evidence[MDM].traces)
    table = evidence.once((MDM, "qk by layer"), partial(metrics.qk_split, held, by=["layer"]))
    return shapley_bars(table)


def _measure_reuse(evidence: Evidence) -> Finding:
    held: Traced = evidence[MDM]
    every = ["prompt", "layer", "other_layer"]
    make = partial(metrics.layer_consistency, list(held.traces), by=every)
    table = evidence.once((MDM, "layer_consistency", tuple(every)), make)
    middle = (int(table["layer"].max()) + 1) // 2
    rows = table[(table["layer"] == middle) & (table["other_layer"] > middle)]
    shared, chance = (_by_place(held, rows, "jaccard", name) for name in ("value", "chance"))
    same = _by_place(held, rows, "same_greatest", "value")
    return Finding(
        {
            "beyond chance": Measured(
                Estimate.mean(shared - chance, PROMPT, _GAP), 0.0, mean_of(chance)
            )
        },
        {
            "shared": _mean(shared),
            "same greatest sink": _mean(same),
            "middle layer": middle,
        },
    )


def _by_place(held: Traced, rows: pd.DataFrame, quantity: str, column: str) -> np.ndarray:
    """[prompt] mean over the other layers, in the order of the set."""
    means: Any = rows[rows["quantity"] == quantity].groupby("prompt")[column].mean()
    found = np.full(held.count, np.nan)
    for place, trace in zip(held.places, held.traces, strict=True):
        found[place] = means.get(prompt_id(trace), np.nan)
    return found


def _reuse_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.movement import layer_consistency

    held = list(evidence[MDM].traces)
    make = partial(metrics.layer_consistency, held)
    return layer_consistency(evidence.once((MDM, "layer_consistency"), make))


def _mean(values: np.ndarray) -> float | str:
    return mean_of(values) if np.isfinite(values).any() else "absent"


CLAIMS = (
    Claim(
        "sinks/H9",
        "Deeper layers have fewer and stronger sinks.",
        f"{_PAPER}, Fig. 5",
        "one or two in deep layers of LLaDA",
        PROMPT,
        needs=(MDM,),
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
        judge=_fewer_and_stronger,
        draw=_depth_figure,
        caveat="halves of the layers, for models of few layers",
    ),
    Claim(
        "sinks/H12",
        "In deep layers masked and written queries have different sinks.",
        f"{_PAPER}, Fig. 6a",
        "qualitative, of LLaDA's deepest layers",
        PROMPT,
        needs=(MAPS,),
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
        judge=_splits,
        caveat="of eight steps of a run; few queries always have a greatest key that stands out, "
        "so that only what groups of their size do not have counts. Masked and written positions "
        "also stand at other places, which a head that looks near by shows as well",
    ),
    Claim(
        "sinks/H19",
        "Deep sinks are made by the angle to queries, not by the key's norm.",
        "arXiv 2601.07894, figure of QK, beside 2510.15731",
        "angle-driven in deep layers; angle and norm in shallow ones",
        PROMPT,
        needs=(MDM,),
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
        judge=_by_angle,
        draw=_angle_figure,
        defect="it averages vectors over heads before the cosine",
    ),
    Claim(
        "sinks/H21",
        "The sinks of a middle layer are those of the later ones, more often than chance.",
        "Focus-dLLM's premise, beside 2510.15731",
        "assumed",
        PROMPT,
        needs=(MDM,),
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
        judge=_measure_reuse,
        draw=_reuse_figure,
        caveat="more than chance is not enough for one set to stand for another: see what is "
        "shared",
    ),
)
