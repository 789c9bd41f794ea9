"""Model cards: numbers in card.json, and README.md made from them, never by hand. No torch here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from anchorwatch.errors import TraceError
from anchorwatch.trace.atomic_io import COMMIT, commit, find_damage, read_record

CARD, WORDS = "card.json", "README.md"
_BARS = "▁▂▃▄▅▆▇█"
_KINDS = {
    "questions": "question items of a made-up world (names, facts and wordings drawn by this "
    "package)",
    "passages": "passages of the same world",
    "quiz": "passages of the same world with a question for each fact",
    "retold": "passages of the same world, told again in other words",
    "backcopy": "trigger-copy text drawn by this package",
    "prose": "windows of the language reference that CPython carries (copyright Python Software "
    "Foundation, PSF licence version 2); the text itself is not shipped",
    "file": "stories that stories15M (MIT) wrote",
}
CONTEXTS = {
    "closed": "one hop, no passage",
    "gold": "one hop, gold passage",
    "gold+2": "one hop, gold, one random and one hard distractor",
    "two-hop": "two hops, both gold passages",
}
"""What a card's contexts show, in words; its `gold+2` is `irrelevant1/3` of an evaluation."""
_RULES = {
    "gu": "share above 0.3",
    "ratio": "10 times an even share",
    "rulli": "column sum 3 above the others' mean",
    "zscore": "3 standard deviations",
}
_RECIPES = {"tales-arm": "tales-arm"} | {
    f"tales-{arm}": "tales-mdm-more" for arm in ("mdm", "sink", "gate")
}
"""Of arms that are made by a recipe of their own."""
_EARLIER = {
    "lab": ("lab-stem",),
    "tales-arm": ("tales-start",),
    "tales-mdm-more": ("tales-mdm", "tales-arm"),
}
"""Recipes of what each goes on from, the last first."""
_WRITES = {"asked": "answering a question", "text": "writing on a text"}


def write(folder: str | Path, card: Mapping[str, Any]) -> Path:
    """card.json and README.md of a model's folder, and the record of every byte in it."""
    target = Path(folder)
    (target / CARD).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    (target / WORDS).write_text(words(card), encoding="utf-8")
    commit(target)
    return target / CARD


def _describe_storage(card: Mapping[str, Any]) -> str:
    """How exactly weights are stored."""
    digits = card["training"].get("digits")
    return "float16" if digits is None else f"float16, of which {digits} binary digits are kept"


def read(folder: str | Path) -> dict[str, Any]:
    """card.json of a model's folder; one that is not as it was written is refused."""
    if (Path(folder) / COMMIT).is_file() and (problems := find_damage(folder, additions=False)):
        raise TraceError(f"{folder} is damaged ({problems[0]}): copy it again, or make it again")
    return read_record(Path(folder) / CARD)


def words(card: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    measured = card["measured"]
    parts = [
        f"# {card['name']}",
        "Made from card.json by `make lab`; every number is of the weights in this folder.",
        _about(card),
        "## Held-out text\n\n" + _likelihood_table(measured),
        "## Questions\n\n" + _answers(measured["answers"]),
        "## Attention\n\n"
        + "\n\n".join(_describe_written(name, measured[name]) for name in _WRITES),
        _noisy(measured["noisy"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _about(card: Mapping[str, Any]) -> str:
    training, spec = card["training"], card["training"]["spec"]
    shape, machine = card["shape"], training["machine"]
    objective, recipe = spec["objective"], _RECIPES.get(training["arm"], "lab")
    earlier = list(_earlier_parts(training))
    records = (training, *earlier)
    variants = [record["spec"]["variant"] for record in records if record["spec"]["variant"]]
    variant = variants[0] if variants else []
    loss = training["loss"]["loss"]
    rows = [
        ("network", f"{shape['network']}, {_shape(shape)}, {card['parameters']:,} parameters"),
        ("objective", f"{objective['name']}, answer_only {objective['answer_only']:g}"),
        ("parts", ", ".join(part["name"] for part in variant) or "none"),
        (
            "recipe",
            f"recipes/{recipe}.toml {_settings(training['settings'])}, "
            f"digest {training['digest'][:16]}",
        ),
        ("seed", training["seed"]),
        ("budget", _budget(training)),
        ("machine", f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}"),
        ("loss", f"{sparkline(loss)} from {loss[0]:.2f} to {loss[-1]:.2f} nats per scored token"),
        (
            "weights",
            f"{_describe_storage(card)}, computed in float32; digest {card['weights'][:16]}",
        ),
    ]
    for name, stem in zip(_EARLIER[recipe], earlier, strict=False):
        text = f"{stem['spec']['objective']['name']}, {_budget(stem)}, digest {stem['digest'][:16]}"
        rows.insert(3, ("goes on from", f"recipes/{name}.toml: {text}"))
    data = _data(training["corpus"])
    return _table(("", ""), rows) + f"\n\n**Data.** {data}"


def _earlier_parts(training: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The training that a run goes on from, the one before that, and so on."""
    while "stem" in training:
        training = training["stem"]
        yield training


def _data(corpus: Mapping[str, Any]) -> str:
    kinds = [
        f"{100 * kind['weight']:.0f} % {_KINDS[kind['kind']]}{_more(kind)}"
        for kind in corpus["mix"]
    ]
    own = "; nothing was downloaded" if all(k["kind"] != "file" for k in corpus["mix"]) else ""
    return (
        "; ".join(kinds) + ". No person, place or fact in it is real but for that reference, if it "
        f"is named{own}. Held-out names and values stand in no training text. "
        f"Corpus digest {corpus['digest'][:16]}."
    )


def _more(rows: Mapping[str, Any]) -> str:
    """What tells a kind of rows from another of the same kind."""
    details = [f"hops {rows['hops']}"] if "hops" in rows else []
    if rows.get("random") or rows.get("hard"):
        details.append(f"up to {rows['random']} random and {rows['hard']} hard distractors")
    if rows.get("after"):
        details.append(f"from row {rows['after']:,} on")
    return f" ({', '.join(details)})" if details else ""


def _shape(shape: Mapping[str, Any]) -> str:
    text = f"{shape['layers']} layers of {shape['heads']} heads, width {shape['width']}"
    return f"{text}, {shape['positions']} positions"


def _budget(training: Mapping[str, Any]) -> str:
    budget = training["budget"]
    text = f"{budget['updates']:,} updates, {budget['tokens']:,} tokens"
    return f"{text}, {budget['minutes']:g} minutes"


def _settings(settings: Sequence[str]) -> str:
    return (
        "with " + ", ".join(f"`{setting}`" for setting in settings) if settings else "as it stands"
    )


def _likelihood_table(measured: Mapping[str, Any]) -> str:
    bound = measured["bound"]
    rows = [("all rows", bound["all"])]
    rows += [(f"rows of {kind}", estimate) for kind, estimate in bound["kind"].items()]
    if "answers" in bound:
        rows.append(("answers, prompt clear", bound["answers"]))
    rows += [
        (f"text, {estimate['length']} tokens", estimate) for estimate in measured["length"].values()
    ]
    lines = [(name, *_cells(estimate), estimate["n"]) for name, estimate in rows]
    table = _table(("", "nats per token", "95 % interval", "null (log V)", "rows"), lines)
    times = [(t, _number(estimate["masked"])) for t, estimate in bound["t"].items()]
    if all(cost == "–" for _, cost in times):
        return table
    return table + "\n\n" + _table(("t", "nats per masked token"), times)


def _answers(contexts: Mapping[str, Any]) -> str:
    lines = [
        (CONTEXTS[name], *_cells(estimate), estimate["n"]) for name, estimate in contexts.items()
    ]
    table = _table(("", "exact match", "95 % interval", "guesser's null", "items"), lines)
    return table + (
        "\n\nThe guesser knows every name of the split (no passage), or picks among the names of "
        "the right kind in the passages, the answer among them."
    )


def _describe_written(name: str, written: Mapping[str, Any]) -> str:
    rows = [(f"sinks: {_RULES[rule]}", estimate) for rule, estimate in written["incidence"].items()]
    rows += [
        ("greatest share of a head", written["greatest"]),
        ("greatest key is another than a step before", written["switch"]),
        ("greatest sink is another than a step before", written["switch_sinks"]),
        ("value norm of sinks over the others'", written["sink_value"]),
    ]
    lines = [(what, *_cells(estimate)) for what, estimate in rows]
    if (share := written["switch_all"]["sink"]) > 0:
        lines.append(("greatest key is an added one", _number(share), "–", "–"))
    lines += [
        (f"greatest key is {token.replace('_', ' ')}", *_cells(estimate))
        for token, estimate in written["greatest_is"].items()
        if max(estimate["value"] or 0, estimate["null"] or 0) >= _SHOWN
    ]
    header = (f"while {_WRITES[name]} ({written['n']} runs)", "value", "95 % interval", "null")
    return _table(header, lines)


_SHOWN = 0.005
"""A token class with less is left out of the words."""
_LOOKS = {
    "mask_share_visible": "attention on masks over their share, visible queries",
    "mask_share_masked": "the same, masked queries, oneself left out",
    "mask_value_ratio": "value norm of masked keys over visible ones",
    "sink_mass": "attention on added keys",
    "sink_mass_null": "the same of even attention",
    "sink_value_ratio": "value norm of the sink token over the others'",
    "gate": "mean gate",
    "diagonal": "attention on oneself",
    "effective_rank": "effective rank of states over positions",
    "spread": "change of other states when one token is another",
}


def _noisy(noisy: Mapping[str, Any]) -> str:
    """A column for each t; rows that exist nowhere are left out."""
    times = noisy["t"]
    lines = []
    for name, what in _LOOKS.items():
        cells = [_number(column[name]) for column in times.values()]
        if any(cell != "–" for cell in cells):
            lines.append((what, *cells))
    return _table(("held-out text masked at t", *times), lines)


def _cells(estimate: Mapping[str, Any]) -> tuple[str, str, str]:
    low, high = _number(estimate.get("low")), _number(estimate.get("high"))
    between = "–" if "–" in (low, high) else f"{low} to {high}"
    return _number(estimate["value"]), between, _number(estimate.get("null"))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"


def sparkline(values: Sequence[float]) -> str:
    """Values as bars, the least at the bottom.

    >>> sparkline([3.0, 2.0, 1.0])
    '█▅▁'
    """
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)
