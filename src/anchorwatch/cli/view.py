"""The commands `view` and `export`: traces in the browser, here or in a page to send."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from anchorwatch.cli import output
from anchorwatch.cli.options import takes_load_options
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics.sink_rules import parse, rulli
from anchorwatch.models.load_options import DEFAULT_LOADING, LoadOptions
from anchorwatch.trace.atomic_io import expand_path
from anchorwatch.trace.cells import as_address, is_runs, is_study
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.input_files import read_plain

if TYPE_CHECKING:
    import numpy as np

    from anchorwatch.edits.spec import Edit
    from anchorwatch.explorer.live import Forks, Live
    from anchorwatch.explorer.open import OpenedTrace
    from anchorwatch.explorer.run_data import Options, Replay, Run
    from anchorwatch.explorer.run_list import Report
    from anchorwatch.trace.runs import Runs
    from anchorwatch.trace.trace import Trace

_MOST_REPORT = 200_000_000
"""Bytes of a report that are served."""
Traces = Annotated[
    list[Path], typer.Argument(help="Traces, two or more to compare; or a folder of runs.")
]
Tables = Annotated[
    list[Path] | None,
    typer.Option(
        "--table",
        help="Metrics for the head grid: a file of `measure METRIC --by layer,head -o`, a folder.",
    ),
]
RuleWord = Annotated[str | None, typer.Option(help="What a sink is: rulli:3, zscore:3, gu:0.3.")]


@takes_load_options
def view(
    traces: Traces,
    rule: RuleWord = None,
    at: Annotated[str, typer.Option(help="Where to begin: step=40,layer=31,token=17.")] = "",
    model: Annotated[
        str | None,
        typer.Option(
            help="The model that wrote them: exact maps on demand, candidates, and forks by hand."
        ),
    ] = None,
    forks: Annotated[
        Path | None,
        typer.Option(help="The folder in which forks are saved; else beside the run they leave."),
    ] = None,
    claim: Annotated[
        str | None, typer.Option(help="Of a study's folder: the runs this claim was judged on.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
    table: Tables = None,
    loading: LoadOptions = DEFAULT_LOADING,
    no_open: Annotated[bool, typer.Option("--no-open", help="Only print the address.")] = False,
) -> None:
    """Look at traces in the browser: a server for this machine only, until interrupted."""
    import webbrowser

    from anchorwatch.explorer.run_data import Run
    from anchorwatch.explorer.server import Server, link, spot

    where = spot(at)  # a typing mistake costs no reading
    if model is None and loading.as_keywords():
        raise SpecError("--dtype and the other options of loading are of --model: name it, too")
    if len(traces) == 1 and is_runs(address := as_address(traces[0])):
        return _view_folder(address, rule, table, model, claim, port, no_open)
    if claim is not None:
        raise SpecError("--claim is of a study's folder: name the -o of `anchorwatch study`")
    options, opened = _looked_at(traces, rule, table)
    loaded, replays = _replays(model, opened, loading)
    runs = [
        Run(one, options, replay, no_replay=why, live=_live(loaded, one.trace) if replay else None)
        for one, (replay, why) in zip(opened, replays, strict=True)
    ]
    for run, (_, why) in zip(runs, replays, strict=True):
        for problem in (*run.header()["damage"], *filter(None, [why])):
            _note(f"{run.opened.name}: {problem}")
    changes = None if loaded is None else _forks(loaded, runs, options, forks)
    server = Server(runs, port=port, layer=where.get("layer"), forks=changes)
    address = link(server.url, where)
    typer.echo(address)
    output.say("press Ctrl-C to stop; the address is for this machine and holds a secret")
    if not no_open:
        webbrowser.open(server.door(address).as_uri())
    server.serve()


def _view_folder(
    path: str,
    rule: str | None,
    table: Sequence[Path] | None,
    model: str | None,
    claim: str | None,
    port: int,
    no_open: bool,
) -> None:
    """List the runs of a sweep or of a study; each is opened when it is chosen."""
    import webbrowser

    from anchorwatch.explorer.run_data import Options
    from anchorwatch.explorer.run_list import RunFolder
    from anchorwatch.explorer.server import Server
    from anchorwatch.trace.runs import open_runs

    if table or model is not None:
        raise SpecError("--table and --model are of single traces: name one of the folder's")
    runs = open_runs(path)
    if not len(runs):
        raise TraceError(f"{path} has no finished run yet: `anchorwatch status {path}` says more")
    options = Options(rule=rulli() if rule is None else parse(rule))
    server = Server(RunFolder(runs, options, _read_report(path)), port=port)
    address = server.url if claim is None else server.url + _claim_query(claim, runs)
    typer.echo(address)
    output.say("press Ctrl-C to stop; the address is for this machine and holds a secret")
    if not no_open:
        webbrowser.open(server.door(address).as_uri())
    server.serve()


def _claim_query(claim: str, runs: Runs) -> str:
    """The part of an address that chooses a claim's runs."""
    from anchorwatch.trace.runs import CLAIMS

    known = sorted({name for names in runs.table.get(CLAIMS, ()) for name in names.split()})
    if claim not in known:
        listed = ", ".join(known) or "none: this is no study's folder"
        raise SpecError(f"no run was judged for {claim!r}: expected one of {listed}")
    return "?" + urlencode({"claim": claim, "as": "pictures"})


def _read_report(path: str) -> Report | None:
    """The report of a study's folder, to be served beside its runs."""
    from anchorwatch.explorer.run_list import Report

    file = expand_path(path) / "report.html"
    if not is_study(path) or not file.is_file():
        return None
    from anchorwatch.studies.report.assets import page_policy

    return Report(read_plain(file, most=_MOST_REPORT), f"{page_policy()}; frame-ancestors 'none'")


def export(
    traces: Traces,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="A page.html, or a folder for a web server.")
    ],
    rule: RuleWord = None,
    layers: Annotated[str | None, typer.Option(help="Only these layers: 0,8,31.")] = None,
    table: Tables = None,
) -> None:
    """Write traces as one page that opens from a mail attachment; exit code 3 if any is damaged."""
    from anchorwatch.explorer import export as exports
    from anchorwatch.explorer.run_data import Run

    chosen = _layers(layers)
    options, opened = _looked_at(traces, rule, table)
    runs = [Run(trace, options) for trace in opened]
    if not any(run.opened.trace for run in runs):
        raise TraceError(f"{opened[0].name} cannot be shown: {runs[0].opened.damage[0]}")
    typer.echo(str(exports.export(runs, out, layers=chosen, say=_note)))
    if any(run.header()["damage"] for run in runs):
        raise typer.Exit(3)


def _looked_at(
    traces: Sequence[Path], rule: str | None, table: Sequence[Path] | None
) -> tuple[Options, list[OpenedTrace]]:
    """How runs are shown, and the runs; a wrong rule or table costs no reading of traces."""
    from anchorwatch.explorer import head_tables
    from anchorwatch.explorer.run_data import Options

    chosen, read = rulli() if rule is None else parse(rule), head_tables.read_tables(table or [])
    opened = _open_traces(traces)
    known = [one.trace for one in opened if one.trace is not None and "canvas" not in one.lost]
    head_tables.refuse_strangers(read, known)
    return Options(rule=chosen, tables=tuple(read)), opened


def _open_traces(traces: Sequence[Path]) -> list[OpenedTrace]:
    """The traces; a path that is none is refused, a damaged trace is not."""
    from anchorwatch.explorer.open import open_for_viewing
    from anchorwatch.trace import atomic_io

    for path in traces:
        folder = atomic_io.expand_path(path)
        if problem := atomic_io.describe_missing(folder) or atomic_io.describe_unfinished(folder):
            raise TraceError(problem)
        if atomic_io.is_no_trace(folder):
            raise TraceError(f"{path} is a folder and no trace: name one that `run -o` wrote")
    return [open_for_viewing(path) for path in traces]


def _note(text: str) -> None:
    output.say(f"note: {one_line(text)}")


def _layers(words: str | None) -> list[int] | None:
    if words is None:
        return None
    try:
        return [int(word) for word in words.split(",")]
    except ValueError:
        raise SpecError(f"--layers {words} is not a list of layers, such as 0,8,31") from None


def _replays(
    model: str | None, opened: Sequence[OpenedTrace], loading: LoadOptions = DEFAULT_LOADING
) -> tuple[LockedModel | None, list[tuple[Replay | None, str]]]:
    """The model, and of each run what measures its exact maps, or why the model does not.

    It fits one of them at least.
    """
    if model is None:
        return None, [(None, "")] * len(opened)
    from anchorwatch.generation.forced import model_difference

    loaded = loading.load(model)
    shared = LockedModel(loaded, threading.Lock())
    replays: list[tuple[Replay | None, str]] = []
    for run in opened:
        if run.trace is None or run.damage:
            replays.append((None, f"{model} measures no exact maps of a damaged run"))
        elif differs := model_difference(
            loaded,
            written := run.trace.manifest["model"],
            run.trace.manifest.get("versions"),
        ):
            by = f"it was {written['source']}, {differs}"
            replays.append(
                (None, f"{model} did not write this run and measures no maps of it: {by}")
            )
        else:
            replays.append((_replay(shared, run.trace), ""))
    if not any(replay for replay, _ in replays):
        reasons = "; ".join(
            f"{run.name}: {why}" for run, (_, why) in zip(opened, replays, strict=True)
        )
        raise SpecError(
            one_line(f"--model {model} fits none of the runs, name their own: {reasons}")
        )
    return shared, replays


@dataclass(frozen=True)
class LockedModel:
    """A model that several requests use, one after another."""

    model: Any
    lock: threading.Lock


def _replay(shared: LockedModel, trace: Trace) -> Replay:
    def measure_map(step: int, layer: int, head: int) -> np.ndarray:
        import anchorwatch as aw

        probe = aw.probes.pattern(layers=(layer,), heads=(head,), steps=(step,))
        with shared.lock:
            return aw.replay(shared.model, trace, [probe], steps=[step])["pattern"].values[0]

    return measure_map


def _live(shared: LockedModel | None, trace: Trace | None) -> Live | None:
    """What the model can do with a run that it wrote: say candidates, and run on otherwise."""
    if shared is None or trace is None:
        return None
    from anchorwatch.explorer.live import Candidates, Live

    model = shared.model

    def candidates(step: int) -> Candidates:
        from anchorwatch.generation.candidates import likely_tokens

        with shared.lock:
            likely = likely_tokens(model, trace, step)
        ids = sorted(set(likely.tokens.ravel().tolist()))
        texts = {token: model.tokenizer.decode([token]) for token in ids}
        return Candidates(likely.positions, likely.tokens, likely.probabilities, texts)

    def fork(step: int, edit: Edit, on_step: Callable[[int], None]) -> Trace:
        import anchorwatch as aw

        rest = range(step, trace.decoding.num_passes)
        kept = [one for one in trace.edits if one.limit_to_steps(rest) is not None]
        with shared.lock:
            return aw.fork(model, trace, step, edits=[*kept, edit], on_step=on_step)

    def find_token(text: str) -> int:
        from anchorwatch.models.tokens import find_single_token

        return find_single_token(model.tokenizer, text)

    return Live(candidates, fork, find_token)


def _forks(shared: LockedModel, runs: list[Run], options: Options, folder: Path | None) -> Forks:
    """What makes forks of the runs and shows them beside the others."""
    from anchorwatch.explorer.live import Forks
    from anchorwatch.explorer.open import OpenedTrace
    from anchorwatch.explorer.run_data import Run
    from anchorwatch.trace import atomic_io

    if folder is not None:
        folder = atomic_io.expand_path(folder)
        atomic_io.refuse_inside_trace(folder / "fork.trace")
        if not folder.is_dir():
            raise SpecError(f"--forks {folder} is no folder: make it first")

    def add_run(_: int, trace: Trace, name: str) -> int:
        opened = OpenedTrace(name, trace)
        runs.append(Run(opened, options, _replay(shared, trace), live=_live(shared, trace)))
        return len(runs) - 1

    targets = {
        index: run.opened.path if folder is None else folder / run.opened.path.name
        for index, run in enumerate(runs)
        if run.opened.path is not None
    }
    return Forks(add_run, targets)
