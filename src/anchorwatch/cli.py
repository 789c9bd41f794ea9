"""The command line: argument parsing only. Each command is one call of one public function.

stdout is data, stderr is talk. Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted.
Heavy imports live inside commands, so that --help answers at once.
"""

from __future__ import annotations

import inspect
import io
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchorwatch import probes as kinds
from anchorwatch import talk, viewing, words
from anchorwatch._version import __version__
from anchorwatch.errors import AnchorwatchError, SpecError
from anchorwatch.foreign import one_line

if TYPE_CHECKING:
    from anchorwatch.models.prompts import Prompt
    from anchorwatch.trace import Trace

app = typer.Typer(
    help="The laboratory for attention in masked diffusion language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Revision = Annotated[str | None, typer.Option(help="Hub branch, tag or commit.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps.")]
MaskId = Annotated[int | None, typer.Option(help="The mask token's id.")]
Traces = Annotated[list[Path] | None, typer.Argument(help="Traces, as `run -o` writes them.")]
Rule = Annotated[
    str | None, typer.Option(help="What a sink is: rulli:3, zscore:3, gu:0.3, topk:1.")
]
Group = Annotated[str | None, typer.Option(help="Queries that count: all, masked, written.")]
More = Annotated[list[str] | None, typer.Option("--set", help="Another option, name=value.")]
_LENGTH = 64
_EMBEDDED = ("tiny/llada", "tiny/dream", "tiny/arm", "tiny/bert")


@app.command()
def run(
    model: Annotated[str, typer.Argument(help="Folder, .gguf file, hub id, or tiny/llada.")],
    prompt: Annotated[
        str,
        typer.Argument(
            help="The prompt. - reads it from stdin; "
            'put -- before one that begins with a dash: -- "-5 degrees".'
        ),
    ],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the trace here.")] = None,
    decoding: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(words.DECODINGS)}.")
    ] = None,
    length: Annotated[
        int | None, typer.Option(help=f"Positions to write; {_LENGTH}, or all masks to infill.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Forward passes.")] = None,
    block: Annotated[int | None, typer.Option(help="Positions in a block.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
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
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the run.")] = 0,
    probes: Annotated[
        str, typer.Option(help=f"default, none, or a list a,b,c of {', '.join(kinds.PROBES)}.")
    ] = "default",
    region: Annotated[
        list[str] | None, typer.Option(help="name=text: a part of the prompt, as it stands there.")
    ] = None,
    infill: Annotated[bool, typer.Option("--infill", help="Fill the prompt's masks.")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template.")] = False,
    revision: Revision = None,
    dtype: Dtype = None,
    device: Device = None,
    mask_id: MaskId = None,
    as_json: AsJson = False,
) -> None:
    """Write an answer and keep every frame of it."""
    given: dict[str, Any] = {
        "length": _LENGTH if length is None and not infill else length,
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
    named = words.named(decoding, fields)
    measured, regions = words.probes(probes), words.regions(region or [])
    if out is not None:
        words.refuse_place(out)
    text = words.stdin() if prompt == "-" else prompt
    import anchorwatch as aw

    loaded = aw.load(model, revision=revision, dtype=dtype, device=device, mask_id=mask_id)
    how = named or words.decoding(words.DEFAULTS[loaded.family.kind], fields)
    asked: Prompt = [{"role": "user", "content": text}] if chat else text
    ask, canvas = (None, words.masked_canvas(loaded, asked)) if infill else (asked, None)
    plan = str(
        aw.plan(loaded, ask, how, canvas=canvas, regions=regions, probes=measured)
    ).splitlines()
    talk.say(f"plan: {plan[0]}; {plan[-1]}")
    options: dict[str, Any] = {"canvas": canvas, "regions": regions, "probes": measured}
    talk.tell(aw.run(loaded, ask, how, **options, seed=seed, out=out), out, as_json)


@app.command()
def resume(
    model: Annotated[str, typer.Argument(help="The model the run was begun with.")],
    trace: Annotated[Path, typer.Argument(help="The -o of a run that did not end.")],
    revision: Revision = None,
    dtype: Dtype = None,
    device: Device = None,
    mask_id: MaskId = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was killed, after its last whole block of steps."""
    import anchorwatch as aw

    loaded = aw.load(model, revision=revision, dtype=dtype, device=device, mask_id=mask_id)
    finished = trace.with_suffix("") if trace.suffix == ".partial" else trace
    talk.tell(aw.run(loaded, resume=trace), finished, as_json)


@app.command()
def show(
    trace: Annotated[Path, typer.Argument(help="A trace, as `run -o` writes it.")],
    step: Annotated[int | None, typer.Option(help="Only the frame before this step.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every frame of a long film.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a trace: the canvas coloured by role, one frame or the film of the run."""
    from anchorwatch import show as shows
    from anchorwatch.trace import read

    if every and step is not None:
        raise SpecError("--all shows every frame and --step one: choose one of them")
    held = read(trace)
    if as_json:
        frames = shows.frames_json(held, step)
        talk.print_json({"manifest": held.manifest, "frames": frames}, indent=None)
    else:
        shows.show(held, step, every=every)


@app.command()
def verify(
    trace: Annotated[Path, typer.Argument(help="A trace, as `run -o` writes it.")],
    as_json: AsJson = False,
) -> None:
    """Compare every byte of a trace with its commit record; exit code 1 if anything differs."""
    from anchorwatch.commits import damage, extent

    found = damage(trace)
    files, size = (0, 0) if found else extent(trace)
    if as_json:
        talk.print_json({"whole": not found, "damage": found, "files": files, "bytes": size})
    else:
        typer.echo("\n".join(found) or f"whole: {files} files, {size} bytes")
    raise typer.Exit(1 if found else 0)


@app.command()
def measure(
    metric: Annotated[
        str, typer.Argument(help="sinks, jumps, ...; list names them, all is the default ones.")
    ],
    traces: Traces = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="A .csv, .json, .parquet.")
    ] = None,
    rule: Rule = None,
    group: Group = None,
    by: Annotated[str | None, typer.Option(help="Split by: layer,head,progress ...")] = None,
    more: More = None,
    as_json: AsJson = False,
) -> None:
    """Measure traces: a tidy table with null, lift and interval, as CSV on stdout."""
    from anchorwatch import metrics
    from anchorwatch.metrics import files
    from anchorwatch.metrics.everything import measure_all

    if metric == "list":
        return talk.print_names({name: getattr(metrics, name) for name in metrics.METRICS})
    given = _given({"rule": rule, "group": group, "by": by}, more)
    if metric == "all":
        folder = words.folder_for_all(out, given)
        for name, table in measure_all(_read(traces)).items():
            files.save(table, folder / f"{name}.{'json' if as_json else 'csv'}")
        return talk.say(f"wrote {one_line(str(folder))}")
    function = words.metric(metric)
    takes = dict(list(inspect.signature(function).parameters.items())[1:])
    asked = words.options(takes, given)
    if out is not None:
        files.place(out, "table", files.KINDS)
    table = function(_read(traces), **asked)
    if out is not None:
        talk.say(f"wrote {one_line(str(files.save(table, out)))}")
    if out is None or as_json:
        typer.echo(files.as_json(table) if as_json else files.as_csv(table), nl=as_json)


@app.command()
def plot(
    figure: Annotated[str, typer.Argument(help="sink-map, absorption, ...; list names all.")],
    traces: Traces = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="A .pdf, .svg or .png.")] = None,
    rule: Rule = None,
    group: Group = None,
    layer: Annotated[int | None, typer.Option(help="Only this layer.")] = None,
    head: Annotated[int | None, typer.Option(help="Only this head.")] = None,
    step: Annotated[int | None, typer.Option(help="Only this step.")] = None,
    more: More = None,
) -> None:
    """Draw a figure of traces into a file that remembers what made it."""
    from anchorwatch.figures.catalogue import FIGURES, draw, find
    from anchorwatch.figures.figure import KINDS
    from anchorwatch.metrics.files import place

    if figure == "list":
        return talk.print_names({name: one.function for name, one in FIGURES.items()})
    takes = find(figure).takes
    named = {"rule": rule, "group": group, "layer": layer, "head": head, "step": step}
    asked = words.options(takes, _given(named, more))
    if out is None:
        raise SpecError("say where to: -o sinks.pdf")
    place(out, "figure", KINDS)
    typer.echo(str(draw(figure, _read(traces), asked).save(out)))


@app.command()
def whence(
    file: Annotated[Path, typer.Argument(help="A figure, or a .json or .parquet table.")],
) -> None:
    """Say what made a figure or a table: settings and traces, as JSON."""
    from anchorwatch.figures import whence as of_figure
    from anchorwatch.metrics.files import origin

    table = file.suffix.lower() in (".json", ".parquet", ".csv")
    talk.print_json(origin(file) if table else of_figure(file))


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the families that can be loaded, and what each checkpoint must look like."""
    from anchorwatch.models.families import FAMILIES, UNSUPPORTED

    if as_json:
        names = ("name", "kind", "architectures", "model_types", "network", "visibility", "shift")
        rows = [
            {name: getattr(family, name) for name in (*names, "mask_id", "checkpoints")}
            for family in FAMILIES
        ]
        talk.print_json({"families": rows, "embedded": _EMBEDDED, "not_read": UNSUPPORTED})
        return
    row = "{:<13}{:<6}{:<15}{:<5}{:<16}{}"
    typer.echo(row.format("family", "kind", "visibility", "row", "mask id", "held by"))
    for family in FAMILIES:
        mask = "none" if family.kind == "arm" else str(family.mask_id or "from tokenizer")
        held, at = family.network or "its own class", "p-1" if family.shift else "p"
        cells = (family.name, family.kind, family.visibility, at, mask, held)
        typer.echo(row.format(*cells))
        typer.echo(talk.wrapped(family.checkpoints, 13))
    typer.echo("\nrow p-1: what the network says at the position before is about the token at p")
    typer.echo(f"embedded: {', '.join(_EMBEDDED)}\n\nknown and not read:")
    for name, reason in UNSUPPORTED.items():
        typer.echo(f"  {name}\n{talk.wrapped(reason, 4)}")


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="Folder with pickled weights (.bin).")],
    out: Annotated[Path, typer.Argument(help="Folder to write safetensors to.")],
) -> None:
    """Rewrite pickled weights as safetensors, reading tensors only and running nothing."""
    from anchorwatch.models.convert import convert as rewrite

    typer.echo(str(rewrite(source, out)))


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Check this machine: versions, devices, and that the embedded models obey their laws."""
    from anchorwatch.doctor import examine

    findings = examine()
    failed = [finding for finding in findings if not finding.good]
    if as_json:
        talk.print_json([finding.as_dict() for finding in findings])
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            mark = "ok  " if finding.good else "FAIL"
            typer.echo(f"{mark} {finding.name:<{width}}  {finding.says}")
    raise typer.Exit(1 if failed else 0)


viewing.add_to(app)


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
        talk.fail(talk.lacking(error), 1)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        talk.fail(f"{error.strerror}{where}" if error.strerror else str(error), 1)
    except AnchorwatchError as error:
        talk.fail(str(error), 1)
    except KeyboardInterrupt:
        sys.exit(130)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def _read(paths: list[Path] | None) -> list[Trace]:
    from anchorwatch.trace import read

    if not paths:
        raise SpecError("name at least one trace, as `anchorwatch run -o` writes it")
    return [read(path) for path in paths]


def _given(named: Mapping[str, object], more: list[str] | None) -> dict[str, str]:
    return words.settings(more or [], {k: str(v) for k, v in named.items() if v is not None})


if __name__ == "__main__":
    main()
