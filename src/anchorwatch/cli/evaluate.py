"""`anchorwatch eval` and `anchorwatch lm-eval`: argument parsing only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchorwatch.cli import options, output
from anchorwatch.errors import SpecError
from anchorwatch.generation import parse
from anchorwatch.generation.decoding import LeftToRight, LowConfidence
from anchorwatch.models.load_options import DEFAULT_LOADING, LoadOptions
from anchorwatch.trace.atomic_io import expand_path
from anchorwatch.trace.escape import one_line

if TYPE_CHECKING:
    import pandas as pd

    from anchorwatch.edits.spec import Edit
    from anchorwatch.evaluation.results import Results

ANY_WORDS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""What typer lets through to the harness's own command."""

_LENGTH = 16
TABLES = ("accuracy", "effects", "gains", "interactions", "gain_ratios", "edits", "models")


@options.takes_load_options
def evaluate(
    models: Annotated[list[str], typer.Argument(help="Folders, hub ids, or lab/toy-mdm.")],
    task: Annotated[
        str | None, typer.Option(help="A file, synthetic/one-hop or synthetic/two-hop.")
    ] = None,
    contexts: Annotated[
        str | None, typer.Option(help="closed,open5,gold,gold+4,gold@2/5,far+2,gold~typos10 ...")
    ] = None,
    stress: Annotated[
        bool, typer.Option("--stress", help="The default grid of twenty cells; no task.")
    ] = False,
    edit: Annotated[
        list[str] | None, typer.Option(help="name=edit, such as sinks=hide-sinks:1; or none.")
    ] = None,
    decoding: Annotated[
        str | None, typer.Option(help=f"Of the models it suits: {', '.join(parse.DECODINGS)}.")
    ] = None,
    length: Annotated[int | None, typer.Option(help="Positions of an answer; 16.")] = None,
    steps: Annotated[int | None, typer.Option(help="Forward passes; half the length.")] = None,
    template: Annotated[
        str, typer.Option(help="plain, floating-rules or floating-examples.")
    ] = "plain",
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template.")] = False,
    limit: Annotated[int | None, typer.Option(help="The first so many items.")] = None,
    batch: Annotated[int, typer.Option(help="Rows that share a forward pass.")] = 8,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Where chance begins.")] = 0,
    probes: Annotated[
        str | None,
        typer.Option(help="Keep each trace, measured so: default, or a list as of `run`."),
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="Of the file: kilt, squad, hotpot, plain ...")
    ] = None,
    bad: Annotated[
        str, typer.Option(help="Lines that are no item: refuse them, or count.")
    ] = "refuse",
    score: Annotated[str, typer.Option(help="What effects are of.")] = "containment",
    table: Annotated[str, typer.Option(help=f"To print: {', '.join(TABLES)}.")] = "accuracy",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for results, to go on from.")
    ] = None,
    engine: options.MaybeEngine = None,
    workers: options.Workers = None,
    address: options.Address = None,
    loading: LoadOptions = DEFAULT_LOADING,
    as_json: Annotated[bool, typer.Option("--json", help="Print every table as JSON.")] = False,
) -> None:
    """Ask models the items of a task in several contexts; a table with intervals on stdout.

    Exit code 3 if some items could not be asked; stderr says how many, and why.
    """
    _check(score, stress, task, contexts)
    how, named, out = _decodings(decoding, length, steps), _edits(edit), out and expand_path(out)
    _check_table(table, score, contexts, len(models), len(named or ()))
    given: dict[str, Any] = {"edits": named, "decoding": how, "batch": batch, "seed": seed}
    given["loading"] = loading
    given["engine"] = options.parse_engine(engine, workers, address)
    if engine is not None and out is None:
        raise SpecError("workers write to a folder: say -o runs/answers, too")
    if limit is not None:
        given["limit"] = limit
    measured = None if probes is None else parse.parse_probes(probes)
    own_prompt = measured is not None or chat or template != "plain" or form or bad != "refuse"
    if stress and own_prompt:
        raise SpecError(
            "--stress has its own task and prompt: leave --probes, --chat, --bad and so on out"
        )
    from anchorwatch import evaluation as ev

    if stress:
        results = ev.stress(models, **given, out=out)
    else:
        items = ev.task(str(task), format=form, bad=bad)
        prompt = ev.template(template, chat=chat)
        more: dict[str, Any] = {"contexts": contexts, "template": prompt, "probes": measured}
        results = {items.name: ev.evaluate(models, items, **given, **more, out=out)}
    partly = [_print_refusals(name, result) for name, result in results.items()]
    _print_tables(results, score, table, out, as_json)
    raise typer.Exit(3 if any(partly) else 0)


@options.takes_load_options
def lm_eval(given: typer.Context, loading: LoadOptions = DEFAULT_LOADING) -> None:
    """Run lm-eval's tasks: --model_args pretrained=MODEL,decoding=...,edits=... --tasks TASK.

    All other words are the harness's own, whose model is ours; `lm-eval ls tasks` names its tasks.
    """
    from anchorwatch import evaluation

    evaluation.lm_eval_command(given.args, loading)


def _check(score: str, stress: bool, task: str | None, contexts: str | None) -> None:
    """Refuse what cannot be before anything is loaded."""
    from anchorwatch.evaluation.contexts import contexts as named
    from anchorwatch.evaluation.scores import SCORES
    from anchorwatch.evaluation.tables import MISLED

    if score not in (*SCORES, MISLED):
        known = ", ".join((*SCORES, MISLED))
        raise SpecError(f"no score is called {score!r}: expected one of {known}")
    if stress and (task or contexts):
        raise SpecError("--stress says which tasks and contexts: leave --task and --contexts out")
    if not stress and (task is None or contexts is None):
        raise SpecError(
            "say what to ask: --task synthetic/one-hop --contexts closed,gold,gold+4, or --stress"
        )
    if contexts is not None:
        named(contexts)


def _check_table(table: str, score: str, contexts: str | None, models: int, edits: int) -> None:
    """Refuse a table that these results would not have; without contexts it is the stress grid."""
    from anchorwatch.evaluation.contexts import contexts as named
    from anchorwatch.evaluation.scores import BINARY
    from anchorwatch.evaluation.tables import CLOSED

    if table not in TABLES:
        raise SpecError(f"no table is called {table!r}: expected one of {', '.join(TABLES)}")
    names = [] if contexts is None else [context.name for context in named(contexts)]
    if table in ("gains", "gain_ratios") and names and (CLOSED not in names or len(names) < 2):
        raise SpecError(
            f"--table {table} is over the closed book: say --contexts closed,gold, or more"
        )
    if table in ("edits", "models") and score not in BINARY:
        raise SpecError(
            f"--table {table} takes right or wrong, and {score} is neither: "
            f"say --score {' or '.join(BINARY)}"
        )
    if table == "edits" and edits < 2:
        raise SpecError("--table edits compares two: say --edit sinks=hide-sinks:1")
    if table in ("models", "interactions", "gain_ratios") and models < 2:
        raise SpecError(f"--table {table} compares two models: name another beside it")


def _decodings(name: str | None, length: int | None, steps: int | None) -> Any:
    """What was said, for each kind of model; None where nothing was."""
    if name is None and length is None and steps is None:
        return None
    if name is not None:
        values = {"length": length, "steps": steps}
        fields = {field: value for field, value in values.items() if value is not None}
        return parse.parse_decoding(name, fields, length=_LENGTH)
    long = _LENGTH if length is None else length
    passes = -(-long // 2) if steps is None else steps
    return {"mdm": LowConfidence(long, passes), "arm": LeftToRight(long)}


def _edits(pairs: Sequence[str] | None) -> Mapping[str, Sequence[Edit]] | None:
    """`name=edit` words by name; the model as it is comes first, unless it is all."""
    if not pairs:
        return None
    edits: dict[str, Sequence[Edit]] = {"none": ()}
    for pair in pairs:
        name, equals, spelled = pair.partition("=")
        if pair == "none":
            continue
        if not name or not equals or not spelled:
            raise SpecError(f"--edit {pair} is not name=edit, such as --edit sinks=hide-sinks:1")
        if name in edits:
            raise SpecError(f"the edit {name} is given twice: name each once")
        edits[name] = parse.as_edits(spelled)
    return edits


def _print_refusals(name: str, results: Results) -> bool:
    """Say what could not be asked; whether there was any."""
    output.say(f"{name}: {results!r}, {results.num_narrow} decided by less than 1e-5")
    for row in results.unfit().itertuples():
        where = f"{row.model} {row.context}" + ("" if row.edit == "none" else f" {row.edit}")
        output.say(f"  {row.items} not asked, {one_line(where)}: {one_line(row.unfit)}")
    left = results.about.get("bad", {})
    for line, says in list(left.items())[:5]:
        output.say(f"  left out, {line}: {one_line(says)}")
    if len(left) > 5:
        output.say(f"  and {len(left) - 5} more lines")
    if twice := results.about.get("duplicates"):
        output.say(f"  {twice} items are there twice and were asked once")
    return bool(results.num_unfit or left)


def _print_tables(
    found: Mapping[str, Results], score: str, table: str, out: Path | None, as_json: bool
) -> None:
    """Every table into `out`, and the one that was asked for on stdout."""
    import json

    import pandas as pd

    from anchorwatch.evaluation.tables import stress_tables
    from anchorwatch.metrics import table_files
    from anchorwatch.trace.locks import Lock

    parts_of: dict[str, list[pd.DataFrame]] = {}
    for task, results in found.items():
        for name, rows in stress_tables(results, score).items():
            attrs, rows = rows.attrs, rows.copy()
            rows.insert(0, "task", task)
            rows.attrs = attrs
            parts_of.setdefault(name, []).append(rows)
    whole = {name: pd.concat(parts, ignore_index=True) for name, parts in parts_of.items()}
    for name, parts in parts_of.items():
        traces = [trace for part in parts for trace in part.attrs["traces"]]
        whole[name].attrs = {"about": parts[0].attrs["about"], "traces": traces}
    if out is not None:
        folder = out / "tables"
        folder.mkdir(exist_ok=True)
        with Lock.take(out, f"{out} is being written", wait=True):  # or two commands' are mixed
            for name in TABLES:
                for path in (folder / f"{name}.csv", folder / f"{name}.json"):
                    if name in whole:
                        table_files.save(whole[name], path)
                    else:
                        path.unlink(missing_ok=True)  # an earlier command's, of other results
        output.say(f"wrote {one_line(str(folder))}")
    if as_json:
        output.print_json(
            {name: json.loads(table_files.as_json(one)) for name, one in whole.items()}
        )
    elif table in whole:
        typer.echo(table_files.as_csv(whole[table]), nl=False)
    else:
        output.say(f"these results have no table {table}: they have {', '.join(whole)}")
