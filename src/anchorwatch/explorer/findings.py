"""What stands out in a run: its strongest sinks, moves, splits and retrieval heads, with sentences.

There is one sink and one move for a layer: of the mean over heads, as the page's map and its view
of the top key show it, or of the head that does most where the mean does less (a head counts by its
share of the layer). Splits are of the mean over heads, retrieval of single heads.

- sink: the top key where the rule calls it a sink, at the step at which it takes most.
- move: the top sink is another key than a step before. The value is the new key's share; it is
  ranked by how much attention went along: half of what the new key gained and the old one lost.
- split: masked and written queries have different top sinks at a step; its strength is the smaller
  of both shares.
- retrieval: while a token is written that stands in a region of the prompt, a head looks most at
  it there (a copy by Wu et al.). The value is what it gives to it, over all such tokens, 0 where
  its top key is another.

Every finding has a value, what even attention would give in its place, and the ratio. Which keys
are sinks, paths of top keys, splits and copies are those of `metrics`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.explorer.contract import (
    Finding,
    FindingList,
    FindingPlace,
    Findings,
    SentencePart,
)
from anchorwatch.metrics.committed_rows import CommittedRows, read_committed_rows
from anchorwatch.metrics.layer_slices import LayerSlice, iter_layers
from anchorwatch.metrics.null import group_queries
from anchorwatch.metrics.similarity import split_cells
from anchorwatch.metrics.sink_rules import RESOLUTION, Rule
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.trace import MASKED, PROMPT, SPECIAL, Trace

MOST = 5
"""Findings of each kind that a page lists."""
RETRIEVES = 0.1
"""What a head must give, on average, to the word that is written: the threshold of Wu et al."""
SMALL_MOVE = 0.1
"""Where so little moves of what the strongest sink takes, the first sentence is about that sink."""
FROM_FEW = 2.0
"""What a key receives from a group of queries, added up: of few queries that look at different keys
each may give one key more than the rule asks for, which is no sink."""
LONGEST_LABEL = 18
GROUPS = ("masked", "written")


@dataclass(frozen=True)
class Ranked:
    """A finding, what it is ranked by among those of its kind, and the sentence of a first look."""

    strength: float
    finding: Finding
    sentence: list[SentencePart]
    count: int = 1
    """How many it was chosen from: all moves of its layer."""


def find_all(trace: Trace, rule: Rule, group: str = "all", *, heads: bool = True) -> Findings:
    """Everything that stands out; `group` is whose attention sinks and moves are of.

    Without `heads`, sinks and moves are of means over heads alone: what a sent page can show.
    """
    sinks, moves, splits = [], [], []
    rows = []
    for layer in iter_layers(trace):
        mean, rows_of_layer = layer.head_mean(), layer.shares(group).shape[1]
        single = heads and rows_of_layer > 1  # a layer's only head is its mean
        rows.append(rows_of_layer if single else 0)
        sinks += find_sink(layer, mean, rule, group, single)
        moves += find_move(layer, mean, rule, group, single)
        if set(GROUPS) <= set(layer.groups):
            splits += find_split(mean, rule)
    where = "in no layer, nor in any single head," if heads else "in no layer"
    asks = f"{where} is there a key that {rule.in_words()}"
    retrieval, no_retrieval = find_retrieval(trace)
    lists = [
        _strongest("sink", sinks, f"none: {asks}"),
        _strongest("move", moves, _no_moves(sinks, asks)),
        _strongest("split", splits, _no_splits(trace)),
        _strongest("retrieval", retrieval, no_retrieval),
    ]
    strongest = max((one.strength for one in sinks), default=0.0)
    large = [one for one in moves if one.strength > SMALL_MOVE * strongest]
    count, among = sum(one.count for one in moves), _among(rows)
    chosen = [
        (large, f"{_first_of(count, 'largest', 'move', 'moves')} between sinks in {among}"),
        (sinks, f"the strongest sink in {among}"),
        (splits, f"the strongest split in {_among([0] * len(rows))}"),
        (retrieval, _first_of(len(retrieval), "strongest", "such head", "such heads")),
    ]
    for ranked, which in chosen:
        if ranked:
            first = max(ranked, key=lambda one: one.strength)
            words = [*first.sentence, _text(f" This is {which}.")]
            return {"words": words, "place": first.finding["place"], "lists": lists}
    nothing = _text(f"Nothing stands out in this run: {asks}.")
    return {"words": [nothing], "place": None, "lists": lists}


def find_sink(
    layer: LayerSlice, mean: LayerSlice, rule: Rule, group: str, heads: bool = True
) -> list[Ranked]:
    """The strongest sink of a layer's mean; where that has none, of its heads."""
    for slice_ in (mean, layer) if heads else (mean,):
        # 1. The step at which the top sink takes most, and the head that has it.
        sink, share = slice_.top_sink(rule, group), slice_.top_key(group)[1]
        strength = np.where(sink >= 0, np.nan_to_num(share), -1.0)
        step, row = map(int, np.unravel_index(strength.argmax(), strength.shape))
        key, value = int(sink[step, row]), float(share[step, row])
        null = float(mean.null(group)[step, 0, key])
        if key >= 0 and value > (1 + RESOLUTION) * null:
            break
    else:
        return []
    # 2. For how long it is the top sink, and of a mean the head that looks at it most.
    head = row if slice_ is layer else None
    lasts = int((sink[:, row] == key).sum())
    measured = int(slice_.is_measured(group)[:, row].sum())
    at = FindingPlace(view="map", step=step, layer=layer.index, head=head, token=key)
    rest = [_text(f" at step {step} and is the top key at {lasts} of {measured} steps")]
    if head is None:
        by_head = np.nan_to_num(layer.shares(group)[step, :, key])
        most = int(by_head.argmax())
        rest += [
            _text("; "),
            _link(f"head {most}", {**at, "head": most, "view": "heads"}),
            _text(f" gives it most, {_percent(float(by_head[most]))}"),
        ]
    # 3. In words.
    takes = [
        _link(_name_key(mean.trace, step, key), at),
        _text(" takes "),
        _link(f"{_percent(value)} of attention", at),
    ]
    words = [*_where(layer.index, head, step), _text(": "), *takes, *rest]
    finding = _build_finding("sink", words, at, value, null)
    sentence = [_text("In "), *_where(layer.index, head, step, inside=True), _text(" "), *takes]
    sentence += [*_say_lift(finding), _text(","), *rest, _text(".")]
    return [Ranked(value * _weight(layer, head), finding, sentence)]


def find_move(
    layer: LayerSlice, mean: LayerSlice, rule: Rule, group: str, heads: bool = True
) -> list[Ranked]:
    """The move of a layer's top sink, of its mean or of a head, that takes most attention along."""
    moves = [
        _move_of(slice_, row, None if slice_ is mean else row, rule, group)
        for slice_ in ((mean, layer) if heads else (mean,))
        for row in range(slice_.shares(group).shape[1])
    ]
    weighed = [
        replace(move, strength=move.strength * _weight(layer, move.finding["place"]["head"]))
        for move in moves
        if move is not None
    ]
    if not weighed:
        return []
    largest = max(weighed, key=lambda one: one.strength)
    return [replace(largest, count=sum(one.count for one in weighed))]


def _move_of(
    slice_: LayerSlice, row: int, head: int | None, rule: Rule, group: str
) -> Ranked | None:
    """The largest move of one head, or of a mean, which is the only row of its slice."""
    # 1. Neighbouring steps that both have a top sink, and not the same.
    path = slice_.sink_path(rule, group)[row]
    moved = np.abs(np.diff(path)) > 0  # NaN is no move
    if not moved.any():
        return None
    steps = np.flatnonzero(moved) + 1
    old, new = path[steps - 1].astype(int), path[steps].astype(int)
    # 2. What the new key gained and the old one lost; a key that was not there had nothing.
    shares = np.nan_to_num(slice_.shares(group)[:, row])
    gained = shares[steps, new] - shares[steps - 1, new]
    lost = shares[steps - 1, old] - shares[steps, old]
    best = int(((gained + lost) / 2).argmax())
    step, source, target = int(steps[best]), int(old[best]), int(new[best])
    change, value = float((gained + lost)[best] / 2), float(shares[step, target])
    # 3. In words.
    trace, layer = slice_.trace, slice_.index
    at = FindingPlace(view="map", step=step, layer=layer, head=head, token=target)
    before: FindingPlace = {**at, "step": step - 1, "token": source}
    names = [_name_key(trace, step - 1, source), _name_key(trace, step, target)]
    if names[0] == names[1]:  # two tokens of one text
        names = [
            f"{name} at position {key}" for name, key in zip(names, (source, target), strict=True)
        ]
    moves = [
        _text("the top key moves from "),
        _link(names[0], before),
        _text(" to "),
        _link(names[1], at),
        _text(" at "),
        _link(f"step {step} of {len(path)}", {**at, "view": "text"}),
    ]
    was = float(shares[step - 1, target])
    takes = _text(
        f"; the new one goes from {_percent(was)} to {_percent(value)} of attention"
        f"; moves between sinks at {len(steps)} of {len(path) - 1} steps"
    )
    null = float(slice_.null(group)[step, 0, target])
    words = [*_where(layer, head, step), _text(": "), *moves, takes]
    finding = _build_finding("move", words, at, value, null)
    written = f", with {_percent(float(trace.progress[step]))} of the answer written"
    sentence = [_text("In "), *_where(layer, head, step, inside=True), _text(" "), *moves]
    sentence += [_text(f"{written}; at that step the new one takes ")]
    sentence += [_link(f"{_percent(value)} of attention", at), *_say_lift(finding), _text(".")]
    return Ranked(change, finding, sentence, len(steps))


def _weight(layer: LayerSlice, head: int | None) -> float:
    """What a finding counts among those of whole layers: a single head is one of many."""
    return 1.0 if head is None else 1 / layer.shares(layer.groups[0]).shape[1]


def find_split(mean: LayerSlice, rule: Rule) -> list[Ranked]:
    """The step at which masked and written queries look most at different sinks."""
    # 1. Steps that are split, by the metric.
    cells = {quantity.name: quantity for quantity in split_cells(mean, rule, GROUPS)}["split"]
    steps = np.flatnonzero(cells.top[0])
    keys = {name: mean.sink_path(rule, name)[0, steps].astype(int) for name in GROUPS}
    shares = np.stack([mean.shares(name)[steps, 0, keys[name]] for name in GROUPS])
    # 2. Without those of few queries: two that look at their neighbours make no sink.
    count = np.array(
        [
            [group_queries(mean.trace, step, name).sum() for step in steps.tolist()]
            for name in GROUPS
        ]
    )
    many = (shares * count > FROM_FEW).all(axis=0) if len(steps) else np.zeros(0, dtype=bool)
    if not many.any():
        return []
    steps, shares = steps[many], shares[:, many]
    keys = {name: key[many] for name, key in keys.items()}
    # 3. The one at which the weaker of both sinks is strongest.
    nulls = np.stack([mean.null(name)[steps, 0, keys[name]] for name in GROUPS])
    best = int(shares.min(axis=0).argmax())
    weaker, step = int(shares[:, best].argmin()), int(steps[best])
    # 4. In words.
    trace, layer = mean.trace, mean.index
    places = [
        FindingPlace(
            view="map", step=step, layer=layer, head=None, token=int(keys[name][best]), group=name
        )
        for name in GROUPS
    ]
    words = [
        *_where(layer, None, step),
        _text(": at "),
        _link(f"step {step}", {**places[0], "view": "text"}),
    ]
    for kind, name, at in zip(range(2), GROUPS, places, strict=True):
        looks = " masked positions look at " if kind == 0 else ", written ones at "
        share = float(shares[kind, best])
        words += [
            _text(looks),
            _link(_name_key(trace, step, int(keys[name][best])), at),
            _text(f" ({_percent(share)})"),
        ]
    words.append(_text(f"; split at {len(steps)} of {int(cells.bottom[0].sum())} steps"))
    value, null = float(shares[weaker, best]), float(nulls[weaker, best])
    finding = _build_finding("split", words, places[weaker], value, null)
    return [Ranked(value, finding, [*words, *_say_lift(finding), _text(".")])]


def find_retrieval(trace: Trace) -> tuple[list[Ranked], str]:
    """Heads that copy from a region of the prompt, and why there is none."""
    names = _regions_of_prompt(trace)
    if not names:
        return (
            [],
            "not known: the run names no part of the prompt, as regions={'gold': ...} does",
        )
    try:
        rows = read_committed_rows(trace, names, None)
    except (SpecError, TraceError) as error:
        return [], f"not known: {one_line(str(error))[:200]}"
    # 1. Written tokens that stand in the region, and what each head gives to its top key where that
    #    is the same token there: [region, layer, head, commit].
    stands = rows.same[:, :, None] > 0
    given = np.where(stands & ~np.isnan(rows.copy), rows.copy * rows.top_mass, np.nan)
    known = ~np.isnan(given)
    count = np.maximum(known.sum(axis=-1), 1)
    value = np.nansum(given, axis=-1) / count
    null = np.where(known, rows.same[:, :, None], 0.0).sum(axis=-1) / count
    # 2. Heads above the threshold, with the token to which each gives most.
    heads = []
    for cell in np.argwhere((value >= RETRIEVES) & (value > null)).tolist():
        at = tuple(cell)
        best = int(np.nan_to_num(given[at]).argmax())
        counts = int((given[at] > 0).sum()), int(known[at].sum())
        words, place = _retrieval_words(trace, rows, names[at[0]], at[1:], best, counts)
        finding = _build_finding("retrieval", words, place, float(value[at]), float(null[at]))
        heads.append(Ranked(float(value[at]), finding, [*words, *_say_lift(finding), _text(".")]))
    looked = " and ".join(one_line(name)[:40] for name in names[:4])
    return heads, f"none: no head looks at the word it writes in {looked}"


def _retrieval_words(
    trace: Trace,
    rows: CommittedRows,
    region: str,
    where: tuple[int, ...],
    best: int,
    counts: tuple[int, int],
) -> tuple[list[SentencePart], FindingPlace]:
    layer, head = where
    step, query = int(rows.steps[best]), int(rows.positions[best])
    key, given = int(rows.top_key[layer, head, best]), float(rows.top_mass[layer, head, best])
    at = FindingPlace(view="heads", step=step, layer=layer, head=head, token=key)
    written = f"“{_label(trace, int(trace.own[query]))}”"
    words = [
        _link(f"Layer {layer}, head {head}", at),
        _text(": while "),
        _link(written, {**at, "view": "text", "token": query}),
        _text(f" is written at step {step}, it gives "),
        _link(_percent(given), {**at, "view": "exact", "query": query}),
        _text(f" of its attention to the same word in “{one_line(region)[:40]}”; "),
        _text(f"so it does for {counts[0]} of {counts[1]} written tokens that stand there"),
    ]
    return words, at


def _regions_of_prompt(trace: Trace) -> list[str]:
    """The region `gold` where there is one, else all that are wholly of the prompt."""
    names, region = list(trace.manifest["regions"]), trace["region"].values
    given = np.isin(trace.role[0], (PROMPT, SPECIAL))
    whole = [
        name
        for index, name in enumerate(names)
        if (region == index).any() and given[region == index].all()
    ]
    return ["gold"] if "gold" in whole else whole


def _strongest(kind: str, ranked: list[Ranked], none: str) -> FindingList:
    order = sorted(ranked, key=lambda one: -one.strength)
    return {
        "kind": kind,  # type: ignore[typeddict-item]
        "findings": [one.finding for one in order[:MOST]],
        "more": max(len(order) - MOST, 0),
        "none": "" if order else none,
    }


def _among(rows: list[int]) -> str:
    """What was looked at: means, and of each layer `rows` single heads, 0 where the mean is all."""
    layers = "one layer" if len(rows) == 1 else f"{len(rows)} layers"
    means = f"the mean of heads of {layers}"
    if not any(rows):
        return means
    return f"{sum(rows)} single heads, each counted as 1/{max(rows)}, and in {means}"


def _first_of(count: int, most: str, singular: str, plural: str) -> str:
    return f"the only {singular}" if count == 1 else f"the {most} of {count} {plural}"


def _no_moves(sinks: list[Ranked], asks: str) -> str:
    return "none: every top sink stays where it is" if sinks else f"none: {asks}"


def _no_splits(trace: Trace) -> str:
    if "received" in trace and not set(GROUPS) <= set(trace["received"].coords["group"].values):
        return "not known: the run has no attention of masked and of written queries by themselves"
    return "none: masked and written positions never have different top sinks"


def _where(layer: int, head: int | None, step: int, *, inside: bool = False) -> list[SentencePart]:
    """`Layer 5` or `Layer 5, head 3`; inside a sentence `layer 5` or `head 3 of layer 5`."""
    word = "layer" if inside else "Layer"
    name = f"{word} {layer}" if head is None else f"{word} {layer}, head {head}"
    if inside and head is not None:
        name = f"head {head} of layer {layer}"
    return [_link(name, FindingPlace(view="layers", step=step, layer=layer, head=head))]


def _say_lift(finding: Finding) -> list[SentencePart]:
    """`, 18 times an even share`, where there is an even share."""
    if finding["lift"] is None:
        return []
    place: FindingPlace = {**finding["place"], "view": "map", "scale": "lift"}
    return [_text(", "), _link(f"{_times(finding['lift'])} times an even share", place)]


def _build_finding(
    kind: str, words: list[SentencePart], place: FindingPlace, value: float, null: float
) -> Finding:
    return {
        "kind": kind,  # type: ignore[typeddict-item]
        "words": words,
        "place": place,
        "value": value,
        "null": null,
        "lift": value / null if null > 0 else None,
    }


def _text(text: str) -> SentencePart:
    return {"text": text}


def _link(text: str, place: FindingPlace) -> SentencePart:
    return {"text": text, "place": place}


def _name_key(trace: Trace, step: int, key: int) -> str:
    """A key by its token; a masked one by its position and what it becomes."""
    last = _label(trace, int(trace.canvas[-1, key]))
    if trace.role[step, key] != MASKED:
        return f"“{_label(trace, int(trace.canvas[step, key]))}”"
    if trace.role[-1, key] == MASKED:
        return f"the masked position {key}"
    return f"the masked position {key} (later “{last}”)"


def _label(trace: Trace, token_id: int) -> str:
    """A token on one line, clipped, without spaces around it; of spaces alone they are seen."""
    whole = one_line(trace.token(token_id)[: 4 * LONGEST_LABEL])
    text = whole.strip(" ") or whole.replace(" ", "␣") or "(empty)"
    return text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}…"


def _percent(share: float) -> str:
    number = 100 * share
    if 99.5 <= number < 100:
        return "over 99 %"
    return f"{math.floor(number + 0.5)} %" if number >= 10 else f"{number:.2g} %"  # as the page


def _times(lift: float) -> str:
    return f"{lift:.0f}" if lift >= 10 else f"{lift:.1f}"
