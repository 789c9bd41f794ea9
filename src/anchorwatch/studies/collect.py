"""Runs models to make evidence, unit by unit; each unit is kept on disk before the next begins."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anchorwatch.errors import AnchorwatchWarning, PromptError, TraceError
from anchorwatch.evaluation.effect import effect
from anchorwatch.evaluation.grid import evaluate
from anchorwatch.generation.decoding import Decoding, LeftToRight, LowConfidence
from anchorwatch.generation.run import run
from anchorwatch.models.model import Model
from anchorwatch.studies import prompts
from anchorwatch.studies.evidence import (
    EXPERIMENTS,
    REGIONAL,
    ROWS,
    Answers,
    Effect,
    EvidenceSpec,
    EvidenceStore,
    Experiment,
    Runs,
    experiment,
)
from anchorwatch.studies.papers import load_experiments
from anchorwatch.trace.atomic_io import extent
from anchorwatch.trace.locks import temporary

Said = Callable[[int], None]
"""Told how many units were made."""


@dataclass(frozen=True)
class Rates:
    """What a forward pass of a model costs on this machine."""

    watched: float
    """Seconds of one with probes."""
    plain: float
    """Seconds of one without."""
    bytes: float
    """Kept of one with probes."""


def gather(shelf: EvidenceStore, need: EvidenceSpec, role: str, model: Model, said: Said) -> None:
    """Make what is not there yet of a need, with the model of a role."""
    if isinstance(need, Runs):
        _each(shelf, need, role, said, lambda at, path: _run(shelf, need, model, at, path))
    elif isinstance(need, Effect):
        _each(shelf, need, role, said, lambda at, path: _compare(shelf, need, model, at, path))
    elif isinstance(need, Experiment):
        _each(shelf, need, role, said, lambda at, path: _row(shelf, need, model, at, path))
    elif isinstance(need, Answers):
        left = shelf.left(need, role)
        if left:
            _ask(shelf, need, role, model)
            said(len(left))


def _each(
    shelf: EvidenceStore,
    need: EvidenceSpec,
    role: str,
    said: Said,
    make: Callable[[int, Path], None],
) -> None:
    for at in shelf.left(need, role):
        path = shelf.unit(need, role, at)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            make(at, path)
        except PromptError as error:  # too long for this model, for instance: kept, and counted
            shelf.keep(path.with_suffix(".unfit"), {"unfit": str(error)})
        said(1)


def _run(shelf: EvidenceStore, need: Runs, model: Model, at: int, path: Path) -> None:
    shown = prompts.prompt_of(need.prompts, at)
    how = need.how(shelf.budget, model.family.kind)
    with _quiet():  # the manifest keeps what was warned of
        trace = run(
            model,
            shown.text,
            how,
            regions=dict(shown.regions) or None,
            probes=need.measures,
            edits=need.edits,
            seed=at,
        )
    trace.write(path)


def _compare(shelf: EvidenceStore, need: Effect, model: Model, at: int, path: Path) -> None:
    shown = prompts.prompt_of(need.prompts, at)
    with _quiet() as told:
        found = effect(
            model,
            [shown.text],
            need.how(shelf.budget, model.family.kind),
            need.edit,
            control=need.control,
            doses=need.doses or None,
            seed=at,
            regions=dict(shown.regions) or None,
        )
    table = found.table.assign(k=-1) if found.doses is None else found.doses
    record = {
        "table": _records(table),
        "layers": _records(found.layers),
        "warnings": sorted({str(one.message) for one in told}),
    }
    shelf.keep(path, record)


def _row(shelf: EvidenceStore, need: Experiment, model: Model, at: int, path: Path) -> None:
    load_experiments()
    made = EXPERIMENTS[need.name](model, at, dict(need.options))
    shelf.keep(path, {"rows": [{"unit": at} | dict(one) for one in made]})


def _ask(shelf: EvidenceStore, need: Answers, role: str, model: Model) -> None:
    """Cells are kept line by line under `cells`, where other needs find them too."""
    how = need.how(shelf.budget, model.family.kind)
    cells = shelf.folder / "cells"
    cells.mkdir(parents=True, exist_ok=True)
    found = evaluate(
        model,
        need.task,
        contexts=list(need.contexts),
        edits=dict(need.edits),
        decoding={model.family.kind: how},
        template=need.template,
        limit=shelf.budget.items,
        out=cells,
    )
    record = {"rows": _records(found.rows), "manifests": dict(found.manifests)}
    shelf.keep(shelf.place(need, role) / ROWS, record)


@experiment("confidence")
def measure_confidence(
    model: Model, unit: int, options: Mapping[str, Any]
) -> list[dict[str, float]]:
    """Mean log-probability of a prompt's own tokens, all of them visible: one row."""
    shown = prompts.prompt_of(str(options.get("prompts", "asked")), unit)
    ids = model.encode(shown.text)
    each = model.logprobs(ids)
    own = [float(each[position, token]) for position, token in enumerate(ids) if position]
    return [{"tokens": len(own), "logprob": sum(own) / max(len(own), 1)}]


def calibrate(shelf: EvidenceStore, role: str, model: Model) -> Rates:
    """Seconds and bytes of a pass, measured once for each model and kept."""
    budget = shelf.budget
    name = f"{shelf.hand.models[role].weights[:16]}-{budget.length}.json"
    path = shelf.folder / "rates" / name
    if (kept := _read_rates(shelf, path)) is not None:
        return kept
    shown, passes = prompts.prompt_of("asked", 0), min(4, budget.steps)
    how: Decoding = LowConfidence(budget.length, passes)
    if model.family.kind == "arm":
        how = LeftToRight(passes, cache=False, stop=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    run(model, shown.text, how, probes=())  # the first pass of a model is slower than the others
    _, plain = _time_call(lambda: run(model, shown.text, how, probes=()))
    parts = dict(shown.regions)
    trace, watched = _time_call(lambda: run(model, shown.text, how, regions=parts, probes=REGIONAL))
    with temporary(path, folder=True) as folder:
        written, wrote = _time_call(lambda: trace.write(folder / "rates.trace"))
        size = extent(written)[1]
    rates = Rates((watched + wrote) / passes, plain / passes, size / passes)
    shelf.keep(path, asdict(rates))
    return rates


def _read_rates(shelf: EvidenceStore, path: Path) -> Rates | None:
    """None where nothing was measured yet, or what was kept is damaged: both cost seconds."""
    try:
        return Rates(**{name: float(value) for name, value in shelf.opened(path).items()})
    except (TraceError, TypeError, ValueError):
        return None


def _time_call(call: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.perf_counter()
    return call(), time.perf_counter() - begun


def _records(table: Any) -> list[dict[str, Any]]:
    return [
        {str(k): v.item() if hasattr(v, "item") else v for k, v in row.items()}
        for row in table.to_dict(orient="records")
    ]


@contextmanager
def _quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Our own warnings are kept with the evidence instead of said for every prompt."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", AnchorwatchWarning)
        yield told
