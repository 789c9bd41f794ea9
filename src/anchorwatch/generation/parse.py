"""Edits, decodings and probes spelled in words: `name:value,field=value`, wherever one is typed.

`hide-sinks:1,form=weight`; `low-confidence:steps=32,block=8`; `norms:keys=true,pattern:layers=2+5`,
where a piece that names a setting belongs to the probe before it. Several numbers are joined by +,
4-7 is from 4 to 7, a head of a layer is layer.head. Values without a name come first and go to the
fields in their order. A colon does what a comma does, for where commas are taken (lm-eval's
--model_args); what follows a named value without a name of its own belongs to it: rule=rulli:3.
`/` stands between several edits. A mapping, as manifests hold it, does as well as a word.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from anchorwatch.edits.spec import EDITS, Edit
from anchorwatch.edits.spec import from_dict as edit_from
from anchorwatch.errors import SpecError
from anchorwatch.generation import decoding as decodings
from anchorwatch.generation.caches import Cache, parse_cache
from anchorwatch.generation.decoding import Decoding
from anchorwatch.metrics.sink_rules import Rule
from anchorwatch.metrics.sink_rules import parse as parse_rule
from anchorwatch.probes.spec import DEFAULT, PROBES, Probe

_Value = TypeVar("_Value")

DECODINGS = decodings.WORDS
"""Words for decodings, and the names they have in Python, which do as well."""

MOST_NUMBERS = 2**20
"""Numbers of a range: more than a canvas has positions, or a model layers and heads."""


def parse_edit(word: str) -> Edit:
    """The edit that a word spells.

    >>> parse_edit("hide-keys:0+3,layers=0-2") == parse_edit("hide-keys:0+3:layers=0-2")
    True
    >>> parse_edit("hide-keys:0+3,layers=0-2")
    hide_keys(positions=(0, 3), layers=(0, 1, 2))
    """
    name, rest = _split_word(word)
    # Edits are looked up when a word is read, so that those registered later are known too.
    kind = EDITS.get(name.replace("-", "_"))
    if kind is None:
        known = ", ".join(known_name.replace("_", "-") for known_name in EDITS)
        raise SpecError(f"no edit is called {name!r}: expected one of {known}")
    given = _values(name, kind, rest)
    absent = (dataclasses.MISSING, dataclasses.MISSING)
    for field in _fields(kind):
        if field.name not in given and (field.default, field.default_factory) == absent:
            raise SpecError(f"{word} lacks {field.name}: say {name}:{field.name}=...")
    return kind(**given)


def as_edits(value: Any) -> tuple[Edit, ...]:
    """The edits that a word, a list of words or mappings, or a list of edits says.

    >>> as_edits("hide-sinks:1:detect=same_shadow/knock-out:2.3+2.5")
    (hide_sinks(k=1, detect='same_shadow'), knock_out(heads=((2, 3), (2, 5))))
    """
    if value is None:
        return ()
    if isinstance(value, str):
        # Split at a slash before an edit's name: a path in a value may hold slashes.
        names = "|".join(name.replace("_", "[-_]") for name in EDITS)
        value = [word for word in re.split(f"/(?=(?:{names})(?:[:/]|$))", value) if word]
    if isinstance(value, Mapping | Edit) or not isinstance(value, Iterable):
        value = [value]
    return tuple(
        item if isinstance(item, Edit) else _parse(item, edit_from, parse_edit, "hide-keys:0+3")
        for item in value
    )


def parse_decoding(
    word: str, fields: Mapping[str, Any] | None = None, *, length: int | None = None
) -> Decoding:
    """The decoding that a word spells, with other fields; `length` is for one that says none.

    >>> parse_decoding("low-confidence:steps=8") == decodings.LowConfidence(steps=8)
    True
    """
    name, rest = _split_word(word)
    # low-confidence, low_confidence and LowConfidence are the same word.
    plain = re.sub("[-_]", "", name).lower()
    words = {kind.lower(): kind for kind in DECODINGS.values()}
    words |= {short.replace("-", ""): kind for short, kind in DECODINGS.items()}
    if plain not in words:
        raise SpecError(f"no decoding is called {name!r}: expected one of {', '.join(DECODINGS)}")
    kind = decodings.DECODINGS[words[plain]]
    given = _values(name, kind, rest)
    # Fields that an option such as --steps gave; a word may not give them a second time.
    for field, value in (fields or {}).items():
        _check_field(name, kind, field)
        if field in given:
            raise SpecError(f"{field} is given twice, in {word} and as {value}: say which one")
        given[field] = value
    if length is not None:
        given.setdefault("length", length)
    return kind(**given)


def as_decoding(value: Any) -> Decoding | None:
    """The decoding that a word, a mapping or a decoding says; None leaves it to the model."""
    if value is None or isinstance(value, Decoding):
        return value
    return _parse(value, decodings.from_dict, parse_decoding, "low-confidence:steps=32")


def parse_probes(words: str) -> tuple[Probe, ...]:
    """The probes of a list; `default` stands for the default set, `none` for no probe.

    >>> parse_probes("norms:keys=true,pattern:layers=2+5,steps=0+8")
    (norms(keys=True), pattern(layers=(2, 5), steps=(0, 8)))
    >>> parse_probes("massive:5,entropy")
    (massive(k=5), entropy())
    >>> parse_probes("default:every=8")[0]
    received(every=8)
    """
    if words.strip() == "none":
        return ()
    # 1. Pieces of one probe: a piece that names a setting belongs to the probe before it.
    spelled: list[str] = []
    for piece in (piece.strip() for piece in words.split(",")):
        if spelled and "=" in piece.partition(":")[0]:
            spelled[-1] += f",{piece}"
        else:
            spelled.append(piece)
    # 2. The probes, each once.
    probes: list[Probe] = []
    for word in spelled:
        probes += (
            _parse_default(word) if _split_word(word)[0] == "default" else (_parse_probe(word),)
        )
    return tuple(dict.fromkeys(probes))


def _parse_default(word: str) -> tuple[Probe, ...]:
    """The default set, with settings that every probe has: layers, steps, every."""
    settings = _values("default", Probe, _split_word(word)[1])
    return tuple(dataclasses.replace(probe, **settings) for probe in DEFAULT)


def _parse_probe(word: str) -> Probe:
    name, rest = _split_word(word)
    kind = PROBES.get(name.replace("-", "_"))
    if kind is None:
        known = ", ".join(PROBES)
        raise SpecError(f"no probe is called {name!r}: expected default, none or some of {known}")
    return kind(**_values(name, kind, rest))


def parse_flag(word: str) -> bool:
    """True or false."""
    if word.lower() not in ("true", "false"):
        raise SpecError(f"{word!r} is neither true nor false")
    return word.lower() == "true"


def parse_numbers(word: str, option: str) -> tuple[int, ...]:
    """Whole numbers joined by +, with ranges.

    >>> parse_numbers("0+4-6", "--steps")
    (0, 4, 5, 6)
    """
    try:
        return _many(int, word)
    except SpecError:
        raise
    except ValueError:
        raise SpecError(f"{option} {word} is not numbers: say {option} 0+8 or 0-7") from None


def _parse(
    value: Any,
    from_dict: Callable[[Mapping[str, Any]], _Value],
    spelled: Callable[[str], _Value],
    example: str,
) -> _Value:
    """What a mapping or a word says."""
    if isinstance(value, Mapping):
        return from_dict(value)
    if isinstance(value, str):
        return spelled(value)
    raise SpecError(f"{value!r} spells nothing: say {example}")


def _split_word(word: str) -> tuple[str, list[str]]:
    """The name, and its values: unnamed ones first, then each `field=value` whole."""
    name, *pieces = (piece.strip() for piece in re.split("[:,]", word))
    values: list[str] = []
    for piece in pieces:
        # rule=rulli:3 was split at its colon: what has no name belongs to the value before.
        if values and "=" in values[-1] and "=" not in piece:
            values[-1] += f":{piece}"
        elif piece:
            values.append(piece)
    return name, values


def _fields(kind: type) -> list[dataclasses.Field[Any]]:
    """Fields in the order that values without a name fill them."""
    return sorted(dataclasses.fields(kind), key=lambda field: bool(field.kw_only))


def _values(name: str, kind: type, rest: list[str]) -> dict[str, Any]:
    """The values of a word, by field."""
    given: dict[str, Any] = {}
    for part in rest:
        field, value = _field_of(name, _fields(kind), part, len(given))
        if field.name in given:
            raise SpecError(f"{name}: {field.name} is given twice: say which one")
        given[field.name] = _value(name, kind, field, value)
    return given


def _field_of(
    name: str, fields: list[dataclasses.Field[Any]], part: str, position: int
) -> tuple[dataclasses.Field[Any], str]:
    """Which field a part of a word is for: by its name, or by its position."""
    key, equals, value = part.partition("=")
    takes = ", ".join(field.name for field in fields)
    if not equals:
        in_order = [field for field in fields if not field.kw_only]
        if position >= len(in_order):
            raise SpecError(f"{name} does not know what {part!r} is: say field={part}, of {takes}")
        return in_order[position], part
    plain = key.strip().replace("-", "_")
    for field in fields:
        if field.name == plain:
            return field, value.strip()
    raise SpecError(f"{name} has no {plain}: it takes {takes}")


def _check_field(name: str, kind: type, field: str) -> None:
    """Refuse a field that a decoding has not; says which have it."""
    if field not in {own.name for own in dataclasses.fields(kind)}:
        others = (
            short
            for short, other in DECODINGS.items()
            if field in {own.name for own in dataclasses.fields(decodings.DECODINGS[other])}
        )
        raise SpecError(f"{name} has no {field}: leave it out, or use {', '.join(others)}")


def _value(name: str, kind: type, field: dataclasses.Field[Any], word: str) -> Any:
    """A word as what the field's type says."""
    hint = get_type_hints(kind)[field.name]
    if word.lower() == "none" and NoneType in get_args(hint):
        return None
    convert, example = _converter(union_members(hint)[0])
    try:
        if field.name == "unedited":
            from anchorwatch.trace.trace import read

            return read(word)
        if field.name == "heads" and hint is Any:  # a list, even of one
            return _many(int, word)
        return convert(word)
    except ValueError as error:
        if isinstance(error, SpecError):
            raise SpecError(f"{name}, {field.name}: {error}") from None
        raise SpecError(f"{name}, {field.name}: {word!r} cannot be read: say {example}") from None


def union_members(hint: Any) -> tuple[Any, ...]:
    """The types that a union allows, None left out; of another type, itself.

    >>> union_members(int | None)
    (<class 'int'>,)
    """
    if get_origin(hint) not in (Union, UnionType):
        return (hint,)
    return tuple(member for member in get_args(hint) if member is not NoneType)


def _converter(hint: Any) -> tuple[Callable[[str], Any], str]:
    """How to read a word as a type, and an example for who spelled it wrong."""
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        if get_origin(item) is tuple:
            return _layer_heads, "2.3+2.5, layer.head of each"
        if item in (int, float):
            return lambda word: _many(item, word), "0+3 or 0-3" if item is int else "0+0.5"
        if item is str:
            return lambda word: tuple(word.split("+")), "all+masked"
    plain: dict[Any, tuple[Callable[[str], Any], str]] = {
        Rule: (parse_rule, "rulli:3"),
        Cache: (parse_cache, "dual, or interval:32:4"),
        bool: (parse_flag, "true or false"),
        str: (str, "a word"),
        int: (int, "a whole number"),
        float: (float, "a number"),
        Any: (_any, "a number or a word"),
    }
    return plain.get(hint, (_any, "0+3"))


def _many(convert: Callable[[str], Any], word: str) -> tuple[Any, ...]:
    values: list[Any] = []
    for part in word.split("+"):
        # 4-7 is a range; a leading minus is not.
        first, dash, last = part.partition("-")
        if convert is int and first and dash:
            values += _range(int(first), int(last))
        else:
            values.append(convert(part))
    return tuple(values)


def _range(first: int, last: int) -> range:
    if last < first:
        raise SpecError(f"{first}-{last} is reversed: say {last}-{first}")
    # A typo such as 0-9999999999 must not fill the memory before anything can refuse it.
    if last - first >= MOST_NUMBERS:
        raise SpecError(f"{first}-{last} is more than {MOST_NUMBERS:,} numbers: name fewer")
    return range(first, last + 1)


def _layer_heads(word: str) -> tuple[tuple[int, int], ...]:
    pairs = [part.split(".") for part in word.split("+")]
    return tuple((int(layer), int(head)) for layer, head in pairs)


def _any(word: str) -> Any:
    """A number, several numbers, true or false, or the word itself."""
    for convert in (int, float, lambda w: _many(int, w), lambda w: _many(float, w), parse_flag):
        with contextlib.suppress(ValueError):
            return convert(word)
    return word
