"""Words of the command line turned into values: probes, regions, experiments, options."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from anchorwatch.errors import SpecError
from anchorwatch.generation import decoding as decodings
from anchorwatch.generation.parse import decoding, edit, flag
from anchorwatch.metrics.sink_rules import RULES, parse
from anchorwatch.probes import spec as kinds

if TYPE_CHECKING:
    from anchorwatch.models.model import Model
    from anchorwatch.models.prompt_encoding import Prompt

DEFAULTS = {"mdm": "low-confidence", "arm": "left-to-right"}


def parse_decoding(
    word: str | None, fields: Mapping[str, Any], length: int | None
) -> decodings.Decoding | None:
    """The decoding asked for; None leaves it to the model, if a default takes these fields."""
    if word is not None:
        return decoding(word, fields, length=length)
    with contextlib.suppress(SpecError):
        decoding(DEFAULTS["arm"], fields, length=length)
        return None
    decoding(DEFAULTS["mdm"], fields, length=length)
    return None


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
        from anchorwatch.trace.trace import read

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


_KINDS: dict[str, Callable[[str], Any]] = {  # the first that an annotation holds
    "TypeLimits": _only_in_python,
    "str | Rule": _rule_or_word,
    "Rule": parse,
    "tuple[int, int]": _pair,
    "bool": flag,
    "int": int,
    "float": float,
}
