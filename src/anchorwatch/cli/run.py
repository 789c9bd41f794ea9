"""`anchorwatch run`, `resume`, `replay` and `effect`: options to arguments, and one call each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from anchorwatch.cli import options, output
from anchorwatch.errors import SpecError
from anchorwatch.generation import parse
from anchorwatch.models.load_options import DEFAULT_LOADING, LoadOptions
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.input_files import (
    LONGEST_LINE,
    odd_kind,
    open_plain,
    parse_json,
    plain_lines,
    read_bounded,
)

if TYPE_CHECKING:
    from anchorwatch.models.prompt_encoding import Prompt

_LENGTH = 64
"""Positions that are written unless another length is said."""


@options.takes_load_options
def run(
    model: Annotated[str, typer.Argument(help="Folder, .gguf file, hub id, or lab/toy-mdm.")],
    prompt: Annotated[
        str,
        typer.Argument(
            help="The prompt. - reads it from stdin; "
            'put -- before one that begins with a dash: -- "-5 degrees".'
        ),
    ],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the trace here.")] = None,
    decoding: options.Decoded = None,
    length: options.Length = None,
    steps: options.Passes = None,
    block: options.Block = None,
    temperature: options.Temperature = None,
    guidance: Annotated[float | None, typer.Option(help="Classifier-free guidance scale.")] = None,
    forbid_end: Annotated[bool, typer.Option("--forbid-end", help="No end tokens.")] = False,
    defer_end: Annotated[bool, typer.Option("--defer-end", help="End tokens last.")] = False,
    algorithm: Annotated[str | None, typer.Option(help="Dream's order.")] = None,
    algorithm_temperature: Annotated[float | None, typer.Option(help="Above 0, draws.")] = None,
    eps: Annotated[float | None, typer.Option(help="Dream's time at the last step.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Confidence enough to commit.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus mass.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Likeliest tokens kept.")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Reread all each step.")] = False,
    no_stop: Annotated[bool, typer.Option("--no-stop", help="Go on after an end token.")] = False,
    seed: options.Seed = 0,
    probes: options.Probes = "default",
    region: options.Regions = None,
    edit: options.Edits = None,
    infill: Annotated[bool, typer.Option("--infill", help="Fill the prompt's masks.")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template.")] = False,
    loading: LoadOptions = DEFAULT_LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Write an answer and keep every frame of it."""
    given: dict[str, Any] = {
        "length": length,
        "steps": steps,
        "block": block,
        "temperature": temperature,
        "guidance": guidance,
        "forbid_end": forbid_end or None,
        "defer_end": defer_end or None,
        "algorithm": algorithm,
        "algorithm_temperature": algorithm_temperature,
        "eps": eps,
        "threshold": threshold,
        "top_p": top_p,
        "top_k": top_k,
        "cache": False if no_cache else None,
        "stop": False if no_stop else None,
    }
    # A typing mistake costs no loading: all that can be is checked first.
    fields = {name: value for name, value in given.items() if value is not None}
    long = None if infill else _LENGTH
    named = options.parse_decoding(decoding, fields, long)
    measured, regions = parse.parse_probes(probes), options.parse_regions(region or [])
    edits = [parse.parse_edit(word) for word in edit or []]
    if out is not None:
        out = output.refuse_trace_path(out)
    text = read_stdin() if prompt == "-" else prompt
    import anchorwatch as aw

    loaded = loading.load(model)
    how = named or parse.parse_decoding(options.DEFAULTS[loaded.family.kind], fields, length=long)
    message: Prompt = [{"role": "user", "content": text}] if chat else text
    ask, canvas = (None, options.masked_canvas(loaded, message)) if infill else (message, None)
    more: dict[str, Any] = {"canvas": canvas, "regions": regions, "probes": measured}
    more["edits"] = edits
    plan = str(aw.plan(loaded, ask, how, **more)).splitlines()
    output.say(f"plan: {plan[0]}; {plan[-1]}")
    output.print_run(aw.run(loaded, ask, how, **more, seed=seed, out=out), out, as_json)


@options.takes_load_options
def resume(
    model: Annotated[str, typer.Argument(help="The model the run was begun with.")],
    trace: Annotated[Path, typer.Argument(help="The -o of a run that did not end.")],
    loading: LoadOptions = DEFAULT_LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Go on with a run that was killed, after its last whole block of steps."""
    import anchorwatch as aw
    from anchorwatch.trace.atomic_io import finished_of

    loaded = loading.load(model)
    output.print_run(aw.run(loaded, resume=trace), finished_of(trace), as_json)


@options.takes_load_options
def replay(
    trace: Annotated[Path, typer.Argument(help="A trace, as `run -o` writes it.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Write the new trace here.")],
    probes: options.Probes = "default",
    model: Annotated[
        str | None, typer.Option(help="The model that wrote it; else what the trace names.")
    ] = None,
    region: options.Regions = None,
    steps: Annotated[str | None, typer.Option(help="Only these steps: 0+8 or 0-7.")] = None,
    loading: LoadOptions = DEFAULT_LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Measure a finished run again: the same canvases, the same calls, other probes."""
    from anchorwatch.trace.trace import read

    measured, regions = parse.parse_probes(probes), options.parse_regions(region or [])
    only = None if steps is None else parse.parse_numbers(steps, "--steps")
    out = output.refuse_trace_path(out)
    finished = read(trace)
    import anchorwatch as aw

    loaded = loading.load(model or finished.manifest["model"]["source"])
    again = aw.replay(loaded, finished, measured, steps=only, regions=regions)
    again.write(out)
    output.print_run(again, out, as_json)


@options.takes_load_options
def effect(
    model: Annotated[str, typer.Argument(help="Folder, .gguf file, hub id, or lab/toy-mdm.")],
    prompts: Annotated[
        str | None,
        typer.Argument(help='A .txt of lines, a .jsonl with "prompt", or - for lines on stdin.'),
    ] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt, instead of a file.")] = None,
    edit: options.Edits = None,
    control: Annotated[
        str, typer.Option(help="random, none, or an edit of equal budget.")
    ] = "random",
    doses: Annotated[str | None, typer.Option(help="Numbers of keys to try: 1,5,10,20.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="A .csv, .json, .parquet.")
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="table, prompts, layers, doses or trends.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="A .pdf, .svg or .png: doses, or layers without any.")
    ] = None,
    decoding: options.Decoded = None,
    length: options.Length = None,
    steps: options.Passes = None,
    block: options.Block = None,
    temperature: options.Temperature = None,
    seed: options.Seed = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Seeds of each prompt.")] = 1,
    batch: Annotated[int | None, typer.Option(min=1, help="Prompts at once.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first prompts.")] = None,
    rule: options.Rule = None,
    keep: Annotated[
        Path | None, typer.Option(help="Folder for what each prompt gave, to go on from.")
    ] = None,
    engine: options.MaybeEngine = None,
    workers: options.Workers = None,
    address: options.Address = None,
    loading: LoadOptions = DEFAULT_LOADING,
    as_json: options.AsJson = False,
) -> None:
    """Say what an edit does, beside a control: a table with intervals, as CSV on stdout."""
    given: dict[str, Any] = {"length": length, "steps": steps, "block": block}
    given |= {"temperature": temperature}
    fields = {name: value for name, value in given.items() if value is not None}
    named, texts = (
        options.parse_decoding(decoding, fields, _LENGTH),
        read_prompts(prompts, prompt or [], limit),
    )
    experiment = options.parse_experiment(edit or [], control, doses, rule)
    shared = options.parse_engine(engine, workers, address)
    which = table or ("doses" if doses else "table")
    output.check_effect_paths(which, out, plot, doses=doses is not None)
    import anchorwatch as aw
    from anchorwatch.metrics import table_files

    loaded = loading.load(model)
    how = named or parse.parse_decoding(
        options.DEFAULTS[loaded.family.kind], fields, length=_LENGTH
    )
    more: dict[str, Any] = {"seed": seed, "repeats": repeats, "batch": batch, "keep": keep}
    result = aw.effect(loaded, texts, how, **experiment, **more, engine=shared, loading=loading)
    output.say(result.summary())
    if plot is not None:
        drawn = aw.figures.effect_doses if doses else aw.figures.effect_layers
        output.say(
            "wrote "
            + one_line(str(drawn(result.get_table("doses" if doses else "layers")).save(plot)))
        )
    rows = result.get_table(which)
    if out is not None:
        output.say(f"wrote {one_line(str(table_files.save(rows, out)))}")
    if out is None or as_json:
        typer.echo(table_files.as_json(rows) if as_json else table_files.as_csv(rows), nl=as_json)


def read_prompts(source: str | None, texts: list[str], limit: int | None) -> list[Any]:
    """The prompts of a file, or those that were typed; `limit` takes the first so many.

    A .jsonl has an object with `prompt` on each line: text, token ids or chat messages. Any other
    file, and - for stdin, is text with a prompt on each line. An empty line is no prompt.
    """
    if (source is None) == (not texts):
        raise SpecError("give a file of prompts, or --prompt TEXT once for each")
    prompts: list[Any] = list(texts)
    if source is not None:
        json_lines = source.lower().endswith((".jsonl", ".json"))
        lines = [(number, line) for number, line in enumerate(_lines_of(source), 1) if line.strip()]
        prompts = [_parse_prompt(source, *line) if json_lines else line[1] for line in lines]
    if not prompts:
        raise SpecError(f"{source} has no prompts: it needs one on each line")
    return prompts[:limit]


def _lines_of(source: str) -> Iterator[str]:
    """Lines of a file, a pipe such as <(...), or - for stdin; a line is never above its limit."""
    if source == "-":
        yield from _decode_lines("stdin", plain_lines(_stdin_bytes(), "stdin"))
        return
    path = Path(source)
    try:
        kind = odd_kind(path)
        if kind not in (None, "a pipe"):
            raise SpecError(f"{path} is {kind}: name a .txt or .jsonl of prompts")
        with path.open("rb") if kind else open_plain(path) as handle:
            yield from _decode_lines(str(path), plain_lines(handle, path))
    except FileNotFoundError:
        raise SpecError(f"there is no file {path}: name a .txt or .jsonl of prompts") from None
    except OSError as error:
        raise SpecError(
            f"{path} cannot be read, {error.strerror or error}: name a .txt or .jsonl of prompts"
        ) from None
    except SpecError:
        raise
    except ValueError as error:  # a name that no file has
        raise SpecError(
            f"{path} cannot be read, {error}: name a .txt or .jsonl of prompts"
        ) from None


def _decode_lines(name: str, lines: Iterator[bytes]) -> Iterator[str]:
    """Lines as text, also where another mark than a line feed ends them."""
    before = 0
    for line in lines:
        try:
            yield from line.decode("utf-8").splitlines()
        except UnicodeDecodeError as error:
            offset = before + error.start
            raise SpecError(
                f"{name} is not UTF-8 (byte at offset {offset}): convert it first, "
                "for example with iconv -t utf-8"
            ) from None
        before += len(line)


def _parse_prompt(source: str, number: int, line: str) -> Any:
    """The prompt of one line of JSON."""
    try:
        record = parse_json(line)
    except ValueError:
        raise SpecError(
            f'line {number} of {source} is not JSON: expected {{"prompt": "..."}} on each line'
        ) from None
    if not isinstance(record, dict) or not isinstance(record.get("prompt"), str | list):
        raise SpecError(f'line {number} of {source} has no "prompt", which is text or a list')
    if not record["prompt"]:
        raise SpecError(
            f"line {number} of {source} has an empty prompt: give text, token ids or chat "
            "messages, or leave the line out"
        )
    return record["prompt"]


def read_stdin() -> str:
    """Everything on stdin, as text."""
    whole = read_bounded(_stdin_bytes(), LONGEST_LINE)
    if whole is None:
        raise SpecError(
            f"stdin has more than the {LONGEST_LINE >> 20} MiB that a prompt may have: shorten it"
        )
    try:
        return whole.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = error.object[error.start]
        raise SpecError(
            f"stdin is not UTF-8: byte {wrong:#04x} at offset {error.start}; "
            "convert it first, for example with iconv -t utf-8"
        ) from None


def _stdin_bytes() -> BinaryIO:
    if sys.stdin is None:
        raise SpecError("stdin is closed: pipe the prompt in, or give it as an argument")
    return sys.stdin.buffer
