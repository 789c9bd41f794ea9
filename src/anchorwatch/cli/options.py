"""Options that several commands have, and words of the command line turned into values."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from anchorwatch.errors import SpecError
from anchorwatch.generation import decoding as decodings
from anchorwatch.generation.parse import DECODINGS, parse_edit, parse_flag, union_members
from anchorwatch.generation.parse import parse_decoding as parse_decoding_word
from anchorwatch.metrics import sink_rules
from anchorwatch.models.load_options import LoadOptions
from anchorwatch.probes.spec import PROBES

if TYPE_CHECKING:
    from anchorwatch.models.engines.choose import EngineOptions
    from anchorwatch.models.model import Model
    from anchorwatch.models.prompt_encoding import Prompt

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Decoded = Annotated[
    str | None, typer.Option(help=f"{', '.join(DECODINGS)}; with fields, dream:eps=0.01.")
]
Length = Annotated[int | None, typer.Option(help="Positions to write; 64, or all masks to infill.")]
Passes = Annotated[int | None, typer.Option(help="Forward passes.")]
Block = Annotated[int | None, typer.Option(help="Positions in a block.")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the run.")]
Edits = Annotated[
    list[str] | None,
    typer.Option(
        help="What to change: hide-sinks:1,form=weight, hide-keys:0+3, knock-out:2.3+2.5."
    ),
]
Traces = Annotated[
    list[Path] | None,
    typer.Argument(help="Traces, as `run -o` writes them, or folders of runs (`sweep -o`)."),
]
Where = Annotated[
    list[str] | None,
    typer.Option(help="Of a folder of runs, only these: edit=none, seed=0, model=..., prompt=..."),
]
Rule = Annotated[
    str | None, typer.Option(help="What a sink is: rulli:3, zscore:3, gu:0.3, topk:1.")
]
Group = Annotated[str | None, typer.Option(help="Queries that count: all, masked, written.")]
More = Annotated[list[str] | None, typer.Option("--set", help="Another option, name=value.")]

Probes = Annotated[
    str,
    typer.Option(
        help="default, none, or a list with settings: norms:keys=true,pattern:layers=2+5,steps=0; "
        f"of {', '.join(PROBES)}."
    ),
]
Regions = Annotated[
    list[str] | None, typer.Option(help="name=text: a part of the prompt, as it stands there.")
]

EngineName = Annotated[
    str, typer.Option("--engine", help="local: processes of this machine; ray: a Ray cluster.")
]
MaybeEngine = Annotated[
    str | None,
    typer.Option("--engine", help="Share the work out: local, processes of this machine; ray."),
]
Workers = Annotated[
    int | None, typer.Option(min=0, help="Of the engine; one for each GPU, else for each core.")
]
Threads = Annotated[int, typer.Option(min=1, help="Of each worker on a CPU.")]
Address = Annotated[
    str | None, typer.Option(help="Of a Ray cluster that runs: auto, or 10.0.0.1:6379.")
]

DEFAULTS = {"mdm": "low-confidence", "arm": "left-to-right"}

_LOADING = {
    "revision": Annotated[str | None, typer.Option(help="Hub branch, tag or commit.")],
    "dtype": Annotated[
        str | None, typer.Option(help="float32, bfloat16, float16; else as config.json says.")
    ],
    "device": Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps.")],
    "device_map": Annotated[
        str | None, typer.Option(help="auto, balanced, sequential: over GPUs, CPU and disk.")
    ],
    "mask_id": Annotated[int | None, typer.Option(help="The mask token's id.")],
    "family": Annotated[
        str | None, typer.Option(help="How to read it, where config.json misleads: llada.")
    ],
}
"""The option group of every command that loads a model: the fields of `LoadOptions`."""


def takes_load_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of loading: they arrive in its parameter `loading`."""
    signature = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def call(**given: Any) -> None:
        said = {name: given.pop(name) for name in _LOADING}
        command(**given, loading=LoadOptions(**said))

    # typer reads the signature: `loading` gives way to one parameter for each option.
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in _LOADING.items()
    ]
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in signature.parameters.values()
    ]
    index = next(i for i, parameter in enumerate(parameters) if parameter.name == "loading")
    parameters[index : index + 1] = options
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


def parse_decoding(
    word: str | None, fields: Mapping[str, Any], length: int | None
) -> decodings.Decoding | None:
    """The decoding asked for; None leaves it to the model, if a default takes these fields."""
    if word is not None:
        return parse_decoding_word(word, fields, length=length)
    with contextlib.suppress(SpecError):
        parse_decoding_word(DEFAULTS["arm"], fields, length=length)
        return None
    parse_decoding_word(DEFAULTS["mdm"], fields, length=length)
    return None


def parse_engine(
    name: str | None, workers: int | None, address: str | None
) -> EngineOptions | None:
    """The engine that the options say; None where none is named."""
    from anchorwatch.models.engines.choose import EngineOptions

    if name is None:
        if workers is not None or address is not None:
            raise SpecError("workers are of an engine: say --engine local or --engine ray, too")
        return None
    return EngineOptions(name, workers, address=address)


def parse_regions(pairs: list[str]) -> dict[str, str] | None:
    """`name=text` words as named parts of the prompt; None without any."""
    for pair in pairs:
        if not all(pair.partition("=")[::2]):
            raise SpecError(f"--region {pair} is not name=text, such as --region gold='Lena was'")
    return {name: text for name, _, text in (p.partition("=") for p in pairs)} or None


def parse_numbers(word: str, option: str) -> list[int]:
    """Whole numbers joined by commas."""
    try:
        return [int(part) for part in word.split(",")]
    except ValueError:
        raise SpecError(f"{option} {word} is not numbers such as {option} 1,5,10") from None


def parse_experiment(
    edits: list[str], control: str, doses: str | None, rule: str | None
) -> dict[str, Any]:
    """What `aw.effect` is asked, in words."""
    if not edits:
        raise SpecError("say what to change: --edit hide-sinks:1")
    beside: Any = {"random": "random", "none": None}.get(control, control)
    return {
        "edit": [parse_edit(word) for word in edits],
        "control": parse_edit(control) if beside not in ("random", None) else beside,
        "doses": None if doses is None else parse_numbers(doses, "--doses"),
        "rule": None if rule is None else sink_rules.parse(rule),
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


def find_metric(name: str) -> Callable[..., Any]:
    """The metric of that name, written with - or _."""
    from anchorwatch import metrics

    if (plain := name.replace("-", "_")) not in metrics.METRICS:
        known = ", ".join(metrics.METRICS)
        raise SpecError(f"no metric is called {name!r}: expected all or one of {known}")
    return getattr(metrics, plain)


def parse_options(
    functions: Sequence[Callable[..., Any]], takes: Collection[str], given: Mapping[str, str]
) -> dict[str, Any]:
    """Words for the options of some functions, each turned into what its type says.

    `takes` are the names of all options that there are.
    """
    hints: dict[str, Any] = {}
    for function in functions:
        hints |= get_type_hints(function)
    values = {}
    for name, word in given.items():
        if name not in takes:
            raise SpecError(f"there is no option {name}: it takes {', '.join(takes)}")
        try:
            values[name] = _convert_option(hints[name], word)
        except ValueError as error:
            reason = str(error) if isinstance(error, SpecError) else f"{word!r} cannot be read"
            raise SpecError(f"{name}: {reason}") from None
    return values


def parse_settings(pairs: list[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """`name=value` words as a mapping, with what was given otherwise."""
    values = dict(given or {})
    for pair in pairs:
        name, equals, word = pair.partition("=")
        if not name or not equals:
            raise SpecError(f"--set {pair} is not name=value, for example --set gold=passage")
        if (plain := name.replace("-", "_")) in values:
            raise SpecError(f"{plain} is given twice, {values[plain]} and {word}: say which one")
        values[plain] = word
    return values


def _convert_option(hint: Any, word: str) -> Any:
    """A word as the type says; several values stand between commas."""
    from anchorwatch.metrics.headtypes import TypeLimits
    from anchorwatch.trace.trace import Trace, read

    members = union_members(hint)
    lists = [member for member in members if get_origin(member) in (Sequence, Collection, tuple)]
    words = [part.strip() for part in word.split(",") if part.strip()]
    if Trace in members:  # a trace, or several
        return [read(path) for path in words]
    if TypeLimits in members:
        raise SpecError(
            f"{word!r} cannot be said in a word: in Python, give limits=TypeLimits(static=0.8)"
        )
    if str in members and lists and len(words) == 1:
        return words[0]
    if not lists:
        return _convert_value(members, word)
    item = get_args(lists[0])[0]
    return [_convert_value(union_members(item), part) for part in words]


def _convert_value(members: tuple[Any, ...], word: str) -> Any:
    """A word as one of some types; as it stands where they say nothing of it."""
    if sink_rules.Rule in members:
        is_rule = str not in members or word.partition(":")[0] in sink_rules.RULES
        return sink_rules.parse(word) if is_rule else word
    for kind, convert in _CONVERTERS.items():
        if kind in members:
            return convert(word)
    return word


def _layer_head(word: str) -> tuple[int, int]:
    layer, _, head = word.partition(":")
    try:
        return int(layer), int(head)
    except ValueError:
        raise SpecError(f"{word!r} is not layer:head, such as 3:0") from None


_CONVERTERS: dict[Any, Callable[[str], Any]] = {
    tuple[int, int]: _layer_head,
    bool: parse_flag,
    int: int,
    float: float,
}
