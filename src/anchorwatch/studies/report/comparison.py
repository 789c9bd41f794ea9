"""Models side by side, from evidence that claims were judged on: nothing is run for it.

Runs of different lengths and step counts meet on progress (the share of the answer written), layers
of networks of different depth on relative depth. A difference is taken prompt by prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.errors import AnchorwatchError
from anchorwatch.figures.figure import Figure
from anchorwatch.figures.marks import bars, key, lines
from anchorwatch.figures.style import PAGE, look, sheet
from anchorwatch.studies.estimate import ITEM, PROMPT, Estimate, mean_score
from anchorwatch.studies.evidence import Answers, Cards, EvidenceSpec, Runs, Seeds, TraceSet
from anchorwatch.studies.measure import by_prompt
from anchorwatch.studies.report.text import count_units, interval, join_words, number
from anchorwatch.training.plots import SHOWN, TITLES, variant_differences
from anchorwatch.training.variants import differences

if TYPE_CHECKING:
    from anchorwatch.studies.study_record import Study

LEVEL = 0.95
MEASURES = {
    "on position 0": ("absorption", "first", "share of attention"),
    "on the greatest key": ("absorption", "top1", "share of attention"),
    "greatest key moves": ("jumps", "jump_rate_any", "share of steps"),
    "keys in use": ("concentration", "effective_share", "effective share of keys"),
}
"""What is compared: metric, its quantity, unit."""
OPTIONS: dict[str, dict[str, Any]] = {"absorption": {"sets": ("first", "top1")}}


@dataclass(frozen=True, eq=False)
class Section:
    """One comparison: what it is of, in words, as a table and as figures."""

    name: str
    title: str
    words: tuple[str, ...]
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    figures: tuple[tuple[str, Figure], ...] = ()
    """With what they show, in words."""


def sections(study: Study) -> list[Section]:
    """All comparisons that the evidence of this study can show."""
    gathered = [spec for judged in study.findings if judged.verdict for spec in judged.claim.needs]
    unique = list(dict.fromkeys(gathered))
    makers = {
        "attention": partial(_attention, study, unique),
        "answers": partial(_answers, study, unique),
        "variants": partial(_variants, study, unique),
        "cards": partial(_cards, study),
    }
    parts: list[Section] = []
    for name, make in makers.items():
        try:
            parts += make()
        except AnchorwatchError as error:  # said on the page, and the rest of it stands
            words = (f"This comparison could not be made: {error}",)
            parts.append(Section(name, name.capitalize(), words, (), (), ""))
    return parts


def _attention(study: Study, gathered: Sequence[EvidenceSpec]) -> Iterator[Section]:
    """Watched runs of at least two models, or of one in two ways."""
    order = list(study.about["models"])
    specs = [spec for spec in gathered if isinstance(spec, Runs) and _plain(spec)]
    specs.sort(key=lambda spec: (spec.decoding is not None, order.index(spec.role)))
    needs = {_label(study, spec): spec for spec in specs if study.evidence[spec].traces}
    if len(needs) < 2:
        return
    first = next(iter(needs))
    head = ("", *needs, *(f"{other} less {first}" for other in list(needs)[1:]))
    rows = [_compare_quantity(study, name, needs) for name in MEASURES]
    steps = [
        f"{name} writes {len(trace.answer)} positions in {trace.num_steps} steps"
        for name, spec in needs.items()
        for trace in study.evidence[spec].traces[:1]
    ]
    words = (
        f"The same prompts, watched while they are answered: {join_words(steps)}. Curves are over "
        "progress, the share of the answer that is written, in tenths, so that runs of different "
        "step counts meet; and over relative depth, 0 the first layer and 1 the last.",
    )
    figures = [
        (f"Over progress: {', '.join(MEASURES)}", _profile(study, needs, "progress")),
        (f"Over depth: {', '.join(MEASURES)}", _profile(study, needs, "layer")),
    ]
    title = "Attention, model beside model"
    caption = (
        "Mean over prompts with its 95 % interval; differences are paired by prompt, and not "
        "corrected for being many: verdicts are above. In parentheses what even attention gives."
    )
    drawn = tuple((says, figure) for says, figure in figures if figure is not None)
    yield Section("attention", title, words, head, tuple(rows), caption, drawn)


def _plain(spec: Runs) -> bool:
    return spec.prompts == "asked" and not spec.edits and spec.probes is None


def _label(study: Study, spec: Runs) -> str:
    """The model, and how it wrote where that is not the budget's way."""
    source = str(study.about["models"].get(spec.role, spec.role))
    if spec.decoding is None:
        return source
    how = spec.decoding.as_dict()
    return f"{source}, blocks of {how['block']}" if how.get("block") else f"{source}, {how['name']}"


def _compare_quantity(study: Study, name: str, needs: dict[str, Runs]) -> tuple[str, ...]:
    """One quantity of every model, and what it differs by from the first."""
    metric, quantity, unit = MEASURES[name]
    read = partial(by_prompt, study.evidence, metric=metric, quantity=quantity)
    quantities = [read(spec, options=OPTIONS.get(metric)) for spec in needs.values()]
    cells = []
    for per_prompt in quantities:
        null = (
            float(np.nanmean([np.nan, *per_prompt.null]))
            if np.isfinite(per_prompt.null).any()
            else np.nan
        )
        even = "" if np.isnan(null) or metric == "jumps" else f" ({number(null)})"
        cells.append(_format_estimate(per_prompt.value) + even)
    first = quantities[0].value
    for per_prompt in quantities[1:]:
        same = min(len(first), len(per_prompt.value))
        cells.append(_format_estimate(per_prompt.value[:same] - first[:same]))
    return (f"{name}, {unit}", *cells)


def _format_estimate(values: np.ndarray) -> str:
    return _within(Estimate.mean(values, PROMPT))


def _within(estimate: Estimate) -> str:
    low, high = estimate.interval(LEVEL)
    if np.isnan(estimate.value):
        return "–"
    within = estimate.why if np.isnan(low) else interval(low, high)
    return f"{number(estimate.value)} [{within}]"


@look()
def _profile(study: Study, needs: dict[str, Runs], by: str) -> Figure | None:
    """A panel for each quantity over progress or depth, a line for each model."""
    tables = []
    for label, spec in needs.items():
        runs: TraceSet = study.evidence[spec]
        for metric in dict.fromkeys(metric for metric, _, _ in MEASURES.values()):
            result = getattr(metrics, metric)(list(runs.traces), by=[by], **OPTIONS.get(metric, {}))
            tables.append(result.assign(model=label))
    table = pd.concat(tables, ignore_index=True)
    axis = "progress"
    if by == "layer" and table["layer"].nunique() < 2:
        return None
    if by == "layer":
        axis, deepest = "depth", table.groupby("model")["layer"].transform("max")
        table["depth"] = (table["layer"] / deepest.where(deepest > 0, 1)).astype(float)
    table["model"] = pd.Categorical(table["model"], list(needs), ordered=True)
    drawn, axes = sheet(PAGE, 3.6, rows=2, columns=2)
    entries: list[Any] = []
    for ax, (name, (_, quantity, unit)) in zip(axes, MEASURES.items(), strict=True):
        part = table[table["quantity"] == quantity].dropna(subset="value")  # tenths without a step
        if quantity == "jump_rate_any":
            part = part.drop(columns="null")  # of shuffled steps: not even attention
        result = lines(ax, part, x=axis, unit=unit, colour_by="model")
        entries = result if len(result) > len(entries) else entries
        ax.set_title(name)
        if part["value"].min() >= 0:
            ax.set_ylim(bottom=0)
    key(drawn, entries)
    traces = [trace for spec in needs.values() for trace in study.evidence[spec].traces]
    return Figure(drawn, table, name="beside", settings={"by": by}, traces=traces)


def _answers(study: Study, gathered: Sequence[EvidenceSpec]) -> Iterator[Section]:
    """Questions that several models were asked in the same contexts."""
    tables: dict[tuple[str, str], pd.DataFrame] = {}
    for spec in gathered:
        if not isinstance(spec, Answers) or len(spec.asks) < 2 or not _asked_plainly(spec):
            continue
        rows = study.evidence[spec].results.rows
        for context in spec.contexts:
            part = rows[(rows["context"] == context) & (rows["edit"] == "none")]
            wide = part.pivot(index="item", columns="role", values="containment").astype(float)
            known = tables.get((spec.task, context))
            if known is None or len(wide.columns) > len(known.columns):
                tables[spec.task, context] = wide  # the same questions, asked of more models
    if not tables:
        return
    roles = list(dict.fromkeys(role for table in tables.values() for role in table.columns))
    roles.sort(key=list(study.about["models"]).index)
    names = [str(study.about["models"][role]) for role in roles]
    tables = {key: table.reindex(columns=roles) for key, table in tables.items()}  # NaN: not asked
    rows = []
    for (task, context), table in tables.items():
        cells = [_within(mean_score(table[role], ITEM, (0.0, 1.0))) for role in roles]
        gaps = [table[other] - table[roles[0]] for other in roles[1:]]
        apart = [_within(mean_score(gap, ITEM, (-1.0, 1.0))) for gap in gaps]
        rows.append((f"{task.removeprefix('synthetic/')}, {context}", *cells, *apart))
    n = max(len(table) for table in tables.values())
    head = ("questions", *names, *(f"{other} less {names[0]}" for other in names[1:]))
    words = (
        f"The same {count_units(n, 'made-up question')} asked of each model, with the passage that "
        "holds the answer (gold), others beside it (+), in several orders, or none (closed); share "
        "answered right.",
    )
    caption = "Mean over questions with its 95 % interval, paired by question."
    drawn = ("Answers right by context", _answer_bars(tables, dict(zip(roles, names, strict=True))))
    title = "Answers, model beside model"
    yield Section("answers", title, words, head, tuple(rows), caption, (drawn,))


def _asked_plainly(spec: Answers) -> bool:
    """Whether models were asked in the usual prompt, with the usual number of steps."""
    return spec.template == "plain" and spec.steps is None


@look()
def _answer_bars(tables: dict[tuple[str, str], pd.DataFrame], names: dict[str, str]) -> Figure:
    rows = []
    for (task, context), table in tables.items():
        for role, name in names.items():
            estimate = mean_score(table[role], ITEM, (0.0, 1.0))
            if not estimate.n:  # this model was not asked so
                continue
            low, high = estimate.interval(LEVEL)
            where = context if task.endswith("one-hop") else f"2: {context}"
            row = {
                "context": where,
                "model": name,
                "value": estimate.value,
                "low": low,
                "high": high,
            }
            rows.append(row | {"n": estimate.n})
    data = pd.DataFrame(rows)
    for name in ("context", "model"):
        data[name] = pd.Categorical(data[name], list(dict.fromkeys(data[name])), ordered=True)
    drawn, (ax,) = sheet(PAGE, 2.3)
    entries = bars(ax, data, x="context", unit="answered right", colour_by="model", of="questions")
    ax.set_ylim(0, 1)
    key(drawn, entries)
    return Figure(drawn, data, name="answers", settings={}, traces=[])


def _variants(study: Study, gathered: Sequence[EvidenceSpec]) -> Iterator[Section]:
    """Arms of training: vanilla, sink token, gate and their relatives, paired by training seed."""
    # The table by position is of other runs, and is not paired with this one.
    parts = [study.evidence[spec] for spec in gathered if type(spec) is Seeds]
    if not parts:
        return
    table = pd.concat(parts, ignore_index=True).groupby(["arm", "seed"], sort=False).first()
    table = table.copy().reset_index()  # copied whole: its columns lie in too many pieces
    names = [name for name in SHOWN if name in table.columns]
    if "vanilla" not in set(table["arm"]) or table["arm"].nunique() < 2 or not names:
        return
    gaps = differences(table, names).set_index(["arm", "quantity"])
    rows = [("vanilla", *(number(_base(gaps, name)) for name in names))]
    for arm in dict.fromkeys(gaps.index.get_level_values("arm")):
        cells = [gaps.loc[(arm, name)] for name in names]
        rows.append((str(arm), *(_difference(cell) for cell in cells)))
    seeds = int(table["seed"].nunique())
    words = (
        "Networks trained on the same data with the same noise, "
        f"{count_units(seeds, 'training seed')} each: with nothing added (vanilla), "
        "with a sink token, with gates, and relatives of these. They are smaller and trained for "
        "less long than the models above. The first row is "
        "vanilla's mean, every other what the arm differs by; arms that no claim here needs are "
        "left out.",
    )
    head = ("arm", *(TITLES[name] for name in names))
    caption = (
        "Mean difference to vanilla over training seeds, with Student's 95 % interval; paired, "
        "not corrected for being many."
    )
    drawn = ("Differences to vanilla: dots are seeds", variant_differences(table))
    title = "Vanilla, sink token and gate"
    yield Section("variants", title, words, head, tuple(rows), caption, (drawn,))


def _base(gaps: pd.DataFrame, name: str) -> float:
    return float(gaps.xs(name, level="quantity")["base"].mean())


def _difference(cell: pd.Series) -> str:
    if np.isnan(cell["value"]):
        return "–"
    if not cell["high"] > cell["low"]:  # no two seeds differ: nothing is known of the spread
        return number(cell["value"])
    return f"{number(cell['value'])} [{interval(cell['low'], cell['high'])}]"


def _cards(study: Study) -> Iterator[Section]:
    """What was measured of the models when they were made, where at least two have a card."""
    roles = tuple(study.about.get("cards", ()))
    if len(roles) < 2:
        return
    cards = study.evidence[Cards(roles)]
    names = [name for name in SHOWN if any(_of_card(cards[role], name) for role in roles)]
    rows = [
        (TITLES[name], *(_of_card(cards[role], name) or "–" for role in roles)) for name in names
    ]
    head = ("", *(str(study.about["models"][role]) for role in roles))
    words = (
        "What the cards of these models say, measured once when they were made, on other texts "
        "than the prompts above.",
    )
    caption = "With the card's 95 % interval where it has one."
    title = "The models, by their cards"
    yield Section("cards", title, words, head, tuple(rows), caption)


def _of_card(card: dict[str, Any], name: str) -> str:
    """A measure by its dotted name (keys have dots themselves); empty where there is none."""
    value: Any = card["measured"]
    rest = name
    while rest:
        if not isinstance(value, dict):
            return ""
        step = next((k for k in value if rest == k or rest.startswith(f"{k}.")), None)
        if step is None:
            return ""
        value, rest = value[step], rest[len(step) + 1 :]
    if not isinstance(value, dict):
        return "" if value is None else number(float(value))
    if value.get("value") is None:
        return ""
    within = f" [{interval(value['low'], value['high'])}]" if "low" in value else ""
    return number(float(value["value"])) + within
