"""Words of the command line turned into values: decodings, probes, edits, options."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from anchorwatch import decoding as decodings
from anchorwatch import probes as kinds
from anchorwatch.edits import EDITS, Edit
from anchorwatch.errors import SpecError
from anchorwatch.rules import RULES, parse

if TYPE_CHECKING:
    from anchorwatch.models.model import Model
    from anchorwatch.models.prompts import Prompt

DECODINGS = {
    "low-confidence": "LowConfidence",
    "random": "RandomOrder",
    "dream": "DreamOrder",
    "threshold": "Threshold",
    "left-to-right": "LeftToRight",
}
DEFAULTS = {"mdm": "low-confidence", "arm": "left-to-right"}


def named(name: str | None, fields: dict[str, Any]) -> decodings.Decoding | None:
    """The decoding asked for; None leaves it to the model, if a default takes these fields."""
    if name is not None:
        return decoding(name, fields)
    with contextlib.suppress(SpecError):
        decoding(DEFAULTS["arm"], fields)
        return None
    decoding(DEFAULTS["mdm"], fields)
    return None


def decoding(name: str, fields: dict[str, Any]) -> decodings.Decoding:
    """The decoding of that name with these fields; says which decoding takes a field."""
    if name not in DECODINGS:
        raise SpecError(f"no decoding is called {name!r}: expected one of {', '.join(DECODINGS)}")
    takes = {
        other: {field.name for field in dataclasses.fields(decodings.DECODINGS[kind])}
        for other, kind in DECODINGS.items()
    }
    for field in fields:
        if field not in takes[name]:
            others = ", ".join(other for other in takes if field in takes[other])
            raise SpecError(f"{name} has no {field}: leave it out, or use --decoding {others}")
    return decodings.from_dict({"name": DECODINGS[name]} | fields)


def probes(names: str) -> tuple[kinds.Probe, ...]:
    """The probes of a comma-separated list; `default` stands for the default set."""
    if names == "none":
        return ()
    found: list[kinds.Probe] = []
    for name in (word.strip() for word in names.split(",")):
        if name != "default" and name not in kinds.PROBES:
            known = ", ".join(kinds.PROBES)
            raise SpecError(
                f"no probe is called {name!r}: expected default, none or some of {known}"
            )
        found += kinds.DEFAULT if name == "default" else (kinds.PROBES[name](),)
    return tuple(dict.fromkeys(found))


def regions(pairs: list[str]) -> dict[str, str] | None:
    """`name=text` words as named parts of the prompt; None without any."""
    for pair in pairs:
        if not all(pair.partition("=")[::2]):
            raise SpecError(f"--region {pair} is not name=text, such as --region gold='Lena was'")
    return {name: text for name, _, text in (p.partition("=") for p in pairs)} or None


def edit(word: str) -> Edit:
    """An edit spelled `name:value,field=value`: hide-sinks:1,form=weight or knock-out:2.3+2.5.

    Several numbers are joined by +, 4-7 is from 4 to 7, a head of a layer is layer.head. Values
    without a name go to the fields in their order.

    >>> edit("hide-keys:0+3,layers=0-2")
    hide_keys(positions=(0, 3), layers=(0, 1, 2))
    """
    name, _, rest = word.partition(":")
    kind = EDITS.get(name.replace("-", "_"))
    if kind is None:
        known = ", ".join(one.replace("_", "-") for one in EDITS)
        raise SpecError(f"no edit is called {name!r}: expected one of {known}")
    fields = sorted(dataclasses.fields(kind), key=lambda one: bool(one.kw_only))
    given: dict[str, Any] = {}
    for part in (part.strip() for part in rest.split(",") if part.strip()):
        field, value = _field_of(name, fields, part, len(given))
        if field.name in given:
            raise SpecError(f"{word}: {field.name} is given twice: say which one")
        given[field.name] = _edit_value(name, field, value)
    absent = (dataclasses.MISSING, dataclasses.MISSING)
    for field in fields:
        if field.name not in given and (field.default, field.default_factory) == absent:
            raise SpecError(f"{word} lacks {field.name}: say {name}:{field.name}=...")
    return kind(**given)


def _field_of(
    name: str, fields: list[dataclasses.Field[Any]], part: str, place: int
) -> tuple[dataclasses.Field[Any], str]:
    """Which field of an edit a part of its word is for: by its name, or by its place."""
    key, equals, value = part.partition("=")
    takes = ", ".join(one.name for one in fields)
    if not equals:
        in_order = [one for one in fields if not one.kw_only]
        if place >= len(in_order):
            raise SpecError(f"{name} does not know what {part!r} is: say field={part}, of {takes}")
        return in_order[place], part
    plain = key.strip().replace("-", "_")
    for field in fields:
        if field.name == plain:
            return field, value.strip()
    raise SpecError(f"{name} has no {plain}: it takes {takes}")


def _edit_value(name: str, field: dataclasses.Field[Any], word: str) -> Any:
    """A word as what the field's annotation says."""
    kind = str(field.type)
    try:
        if word.lower() == "none" and "None" in kind:
            return None
        if field.name == "unedited":
            from anchorwatch.trace import read

            return read(word)
        if field.name == "heads" and kind == "Any":  # a list, even of one
            return _many(int, word)
        for mark, (turn, _) in _EDIT_KINDS.items():
            if mark in kind:
                return turn(word)
        return _any(word)
    except ValueError as error:
        if isinstance(error, SpecError):
            raise SpecError(f"{name}, {field.name}: {error}") from None
        how = next((said for mark, (_, said) in _EDIT_KINDS.items() if mark in kind), "0+3")
        raise SpecError(f"{name}, {field.name}: {word!r} cannot be read: say {how}") from None


def _many(turn: Callable[[str], Any], word: str) -> tuple[Any, ...]:
    found: list[Any] = []
    for part in word.split("+"):
        first, dash, last = part.partition("-")
        if turn is int and first and dash:
            found += range(int(first), int(last) + 1)
        else:
            found.append(turn(part))
    return tuple(found)


def _places(word: str) -> tuple[tuple[int, int], ...]:
    pairs = [part.split(".") for part in word.split("+")]
    return tuple((int(layer), int(head)) for layer, head in pairs)


def _any(word: str) -> Any:
    """A number, several numbers, true or false, or the word itself."""
    for turn in (int, float, lambda one: _many(int, one), lambda one: _many(float, one), _flag):
        with contextlib.suppress(ValueError):
            return turn(word)
    return word


def numbers(word: str, option: str) -> list[int]:
    """Whole numbers joined by commas."""
    try:
        return [int(part) for part in word.split(",")]
    except ValueError:
        raise SpecError(f"{option} {word} is not numbers such as {option} 1,5,10") from None


def experiment(
    edits: list[str], control: str, doses: str | None, rule: str | None
) -> dict[str, Any]:
    """What `aw.effect` is asked, in words."""
    if not edits:
        raise SpecError("say what to change: --edit hide-sinks:1")
    beside: Any = {"random": "random", "none": None}.get(control, control)
    return {
        "edit": [edit(word) for word in edits],
        "control": edit(control) if beside not in ("random", None) else beside,
        "doses": None if doses is None else numbers(doses, "--doses"),
        "rule": None if rule is None else parse(rule),
    }


def masked_canvas(model: Model, ask: Prompt) -> list[int]:
    """The prompt as ids, with the mask id where its text spells the mask token."""
    mask_id = model.specials.mask_id
    if mask_id is None:
        raise SpecError(f"{model.source} is autoregressive and cannot infill: leave --infill out")
    ids = model.encode(ask)
    if mask_id not in ids:
        spelled = model.tokenizer and model.tokenizer.convert_ids_to_tokens(mask_id)
        where = f"write {spelled} in the prompt where tokens are wanted"
        python = "the tokenizer has no mask token, so infill in Python: aw.run(model, canvas=ids)"
        raise SpecError(f"nothing to infill: {where if spelled else python}")
    return ids


def metric(name: str) -> Callable[..., Any]:
    """The metric of that name, written with - or _."""
    from anchorwatch import metrics

    if (plain := name.replace("-", "_")) not in metrics.METRICS:
        known = ", ".join(metrics.METRICS)
        raise SpecError(f"no metric is called {name!r}: expected all or one of {known}")
    return getattr(metrics, plain)


def options(takes: Mapping[str, inspect.Parameter], given: Mapping[str, str]) -> dict[str, Any]:
    """Words for the options of a metric or figure, each turned into what its annotation says."""
    found = {}
    for name, word in given.items():
        if name not in takes:
            raise SpecError(f"there is no option {name}: it takes {', '.join(takes)}")
        try:
            found[name] = _option(str(takes[name].annotation), word)
        except ValueError as error:
            said = str(error) if isinstance(error, SpecError) else f"{word!r} cannot be read"
            raise SpecError(f"{name}: {said}") from None
    return found


def settings(pairs: list[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """`name=value` words as a mapping, with what was given otherwise."""
    found = dict(given or {})
    for pair in pairs:
        name, equals, word = pair.partition("=")
        if not name or not equals:
            raise SpecError(f"--set {pair} is not name=value, for example --set gold=passage")
        if (plain := name.replace("-", "_")) in found:
            raise SpecError(f"{plain} is given twice, {found[plain]} and {word}: say which one")
        found[plain] = word
    return found


def _option(kind: str, word: str) -> Any:
    several = any(name in kind for name in ("Sequence", "Collection", "tuple"))
    words = [part.strip() for part in word.split(",") if part.strip()]
    if kind.startswith("str | Sequence") and len(words) == 1:
        return words[0]
    if "Traces" in kind:
        from anchorwatch.trace import read

        return [read(path) for path in words]
    for name, turn in _KINDS.items():
        if name in kind:
            return [turn(part) for part in words] if several else turn(word)
    return words if several else word


def _rule_or_word(word: str) -> Any:
    return parse(word) if word.partition(":")[0] in RULES else word


def _pair(word: str) -> tuple[int, int]:
    one, _, other = word.partition(":")
    try:
        return int(one), int(other)
    except ValueError:
        raise SpecError(f"{word!r} is not layer:head, such as 3:0") from None


def _only_in_python(word: str) -> Any:
    raise SpecError(
        f"{word!r} cannot be said in a word: in Python, give limits=TypeLimits(static=0.8)"
    )


def _flag(word: str) -> bool:
    if word.lower() not in ("true", "false"):
        raise SpecError(f"{word!r} is neither true nor false")
    return word.lower() == "true"


_KINDS: dict[str, Callable[[str], Any]] = {  # the first that an annotation holds
    "TypeLimits": _only_in_python,
    "str | Rule": _rule_or_word,
    "Rule": parse,
    "tuple[int, int]": _pair,
    "bool": _flag,
    "int": int,
    "float": float,
}


_EDIT_KINDS: dict[str, tuple[Callable[[str], Any], str]] = {  # the first an annotation holds
    "tuple[tuple[int, int]": (_places, "2.3+2.5, layer.head of each"),
    "tuple[int": (lambda word: _many(int, word), "0+3 or 0-3"),
    "tuple[float": (lambda word: _many(float, word), "0+0.5"),
    "Rule": (parse, "rulli:3"),
    "bool": (_flag, "true or false"),
    "Any": (_any, "a number or a word"),
    "str": (str, "a word"),
    "int": (int, "a whole number"),
    "float": (float, "a number"),
}
