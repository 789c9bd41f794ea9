"""Runs models to make evidence, unit by unit; each unit is kept on disk before the next begins."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from anchorwatch.errors import AnchorwatchWarning, PromptError, TraceError
from anchorwatch.evaluation.effect import effect
from anchorwatch.evaluation.grid import evaluate
from anchorwatch.evaluation.prompt_templates import template
from anchorwatch.evaluation.questions import token_regions
from anchorwatch.generation.decoding import Decoding, EvenSteps, LeftToRight, LowConfidence
from anchorwatch.generation.run import run
from anchorwatch.models.engines.jobs import Job, ModelRef
from anchorwatch.models.engines.worker import Worker
from anchorwatch.models.model import Model
from anchorwatch.studies import prompts
from anchorwatch.studies.evidence import (
    ANSWER_FILE,
    EXPERIMENTS,
    READS,
    REGION_PROBES,
    Answers,
    Effect,
    EvidenceSpec,
    EvidenceStore,
    Experiment,
    Runs,
    experiment,
)
from anchorwatch.studies.papers import load_experiments
from anchorwatch.studies.plan_study import Rates
from anchorwatch.studies.protocols import DEFAULT_PROTOCOL, Protocol
from anchorwatch.trace.atomic_io import extent
from anchorwatch.trace.locks import temporary
from anchorwatch.trace.regions import Spans

OnUnits = Callable[[int], None]
"""Called with the number of units that were made."""


def collect(
    store: EvidenceStore,
    spec: EvidenceSpec,
    role: str,
    model: Model,
    on_units: OnUnits,
    only: Collection[int] | None = None,
) -> None:
    """Make what is not there yet of a need, with the model of a role; `only` names some units."""
    load_experiments()  # they say what they read, and the folder of their units depends on it
    if isinstance(spec, Runs):
        _make_units(
            store,
            spec,
            role,
            on_units,
            only,
            lambda index, path: _run_prompt(store, spec, model, index, path),
        )
    elif isinstance(spec, Effect):
        _make_units(
            store,
            spec,
            role,
            on_units,
            only,
            lambda index, path: _measure_effect(store, spec, model, index, path),
        )
    elif isinstance(spec, Experiment):
        _make_units(
            store,
            spec,
            role,
            on_units,
            only,
            lambda index, path: _run_experiment(store, spec, model, index, path),
        )
    elif isinstance(spec, Answers):
        left = store.missing_units(spec, role)
        if left:
            _ask_questions(store, spec, role, model)
            on_units(len(left))


@dataclass(frozen=True)
class UnitRequest:
    """What a worker is to make: one unit of a need, or all that several needs ask."""

    store: EvidenceStore
    role: str
    specs: tuple[EvidenceSpec, ...]
    index: int | None = None
    """None: all units."""


def list_jobs(
    store: EvidenceStore, needs: Sequence[tuple[EvidenceSpec, str]], models: Mapping[str, ModelRef]
) -> list[Job]:
    """A job for each unit that is not made yet; the answers of a model are one, for they share
    cells.
    """
    lean = replace(store, variants=None, card_folders=None, positions=None)
    jobs, answers = [], dict[str, list[EvidenceSpec]]()
    for spec, role in needs:
        left = store.missing_units(spec, role)
        if isinstance(spec, Answers):
            if left:
                answers.setdefault(role, []).append(spec)
            continue
        for index in left:
            request = UnitRequest(lean, role, (spec,), index)
            jobs.append(Job(f"{spec} {index}", models[role], _COLLECT, request))
    for role, specs in answers.items():
        request = UnitRequest(lean, role, tuple(specs))
        jobs.append(Job(f"answers of {role}", models[role], _COLLECT, request))
    return jobs


def collect_units(worker: Worker, job: Job) -> None:
    """Make the units of a job, in a worker."""
    request: UnitRequest = job.payload
    model = worker.model(job.model)
    for spec in request.specs:
        indices = None if request.index is None else (request.index,)
        collect(request.store, spec, request.role, model, lambda _: None, indices)


_COLLECT = "anchorwatch.studies.collect:collect_units"


def _make_units(
    store: EvidenceStore,
    spec: EvidenceSpec,
    role: str,
    on_units: OnUnits,
    only: Collection[int] | None,
    make: Callable[[int, Path], None],
) -> None:
    for index in store.missing_units(spec, role):
        if only is not None and index not in only:
            continue
        path = store.unit_path(spec, role, index)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            make(index, path)
        except PromptError as error:  # too long for this model, for instance: kept, and counted
            store.keep(path.with_suffix(".unfit"), {"unfit": str(error)})
        on_units(1)


def _run_prompt(store: EvidenceStore, spec: Runs, model: Model, index: int, path: Path) -> None:
    prompt, regions = _prompt_for(store, spec, model, index)
    how = _fit_decoding(spec.how(store.budget, model.family.kind), model)
    with _catch_warnings():  # the manifest keeps what was warned of
        trace = run(
            model,
            prompt,
            how,
            regions=regions,
            probes=spec.measures,
            edits=spec.edits,
            seed=index,
        )
    trace.write(path)


def _prompt_for(
    store: EvidenceStore, spec: Runs | Effect, model: Model, index: int
) -> tuple[Any, Spans | None]:
    """Prompt `index` of a spec as the model is given it, and its regions; in a chat as ids."""
    protocol = store.budget.protocol
    shown = protocol.prompt_of(spec.prompts, index)
    message = shown.text if shown.message is None else shown.message
    if not protocol.chat or not isinstance(message, str):  # ids and messages stand as they are
        return shown.text, dict(shown.regions) or None
    ids = model.encode([{"role": "user", "content": message}])
    if not shown.regions:
        return ids, None
    return ids, token_regions(model, message, dict(shown.regions), ids, chat=True)


def _fit_decoding(how: Decoding, model: Model) -> Decoding:
    """A model that names no end token has none to forbid."""
    if isinstance(how, EvenSteps) and how.forbid_end and not model.specials.end_ids:
        return replace(how, forbid_end=False)
    return how


def _measure_effect(
    store: EvidenceStore, spec: Effect, model: Model, index: int, path: Path
) -> None:
    prompt, regions = _prompt_for(store, spec, model, index)
    with _catch_warnings() as caught:
        effects = effect(
            model,
            [prompt],
            _fit_decoding(spec.how(store.budget, model.family.kind), model),
            spec.edit,
            control=spec.control,
            doses=spec.doses or None,
            seed=index,
            regions=regions,
        )
    table = effects.table.assign(k=-1) if effects.doses is None else effects.doses
    record = {
        "table": _records(table),
        "layers": _records(effects.layers),
        "warnings": sorted({str(warning.message) for warning in caught}),
    }
    store.keep(path, record)


def _run_experiment(
    store: EvidenceStore, spec: Experiment, model: Model, index: int, path: Path
) -> None:
    given = (store.budget.protocol,) if READS[spec.name] else ()
    rows = EXPERIMENTS[spec.name](model, index, dict(spec.options), *given)
    store.keep(path, {"rows": [{"unit": index} | dict(row) for row in rows]})


def _ask_questions(store: EvidenceStore, spec: Answers, role: str, model: Model) -> None:
    """Cells are kept line by line under `cells`, where other needs find them too."""
    how, protocol = spec.how(store.budget, model.family.kind), store.budget.protocol
    cells = store.folder / "cells"
    cells.mkdir(parents=True, exist_ok=True)
    names = protocol.contexts_of(spec.task, spec.contexts)
    plain = spec.template == Answers.template
    words = protocol.template if plain and protocol.template is not None else spec.template
    results = evaluate(
        model,
        protocol.task_of(spec.task),
        contexts=list(names),
        edits=dict(spec.edits),
        decoding={model.family.kind: how},
        template=template(words, chat=protocol.chat),
        limit=store.budget.items,
        out=cells,
    )
    rows = results.rows.assign(context=results.rows["context"].map(names))  # as claims say them
    record = {"rows": _records(rows), "manifests": dict(results.manifests)}
    store.keep(store.unit_folder(spec, role) / ANSWER_FILE, record)


@experiment("confidence", reads=tuple(prompts.SETS))
def measure_confidence(
    model: Model, unit: int, options: Mapping[str, Any], protocol: Protocol = DEFAULT_PROTOCOL
) -> list[dict[str, float]]:
    """Mean log-probability of a prompt's own tokens, all of them visible: one row."""
    shown = protocol.prompt_of(str(options.get("prompts", "asked")), unit)
    ids = model.encode(shown.text)
    each = model.logprobs(ids)
    own = [float(each[position, token]) for position, token in enumerate(ids) if position]
    return [{"tokens": len(own), "logprob": sum(own) / max(len(own), 1)}]


def calibrate(store: EvidenceStore, role: str, model: Model) -> Rates:
    """Seconds and bytes of a pass, measured once for each model and kept."""
    wanted = store.budget.decoding(model.family.kind).length or 1
    path = store.folder / "rates" / f"{store.available.models[role].weights[:16]}-{wanted}.json"
    if (kept := _read_rates(store, path)) is not None:
        return kept
    shown = prompts.prompt_of("asked", 0)
    length = max(1, min(wanted, model.num_positions - len(model.encode(shown.text))))
    passes = min(4, length)
    how: Decoding = LowConfidence(length, passes)
    if model.family.kind == "arm":
        how = LeftToRight(passes, cache=False, stop=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    run(model, shown.text, how, probes=())  # the first pass of a model is slower than the others
    _, plain = _time_call(lambda: run(model, shown.text, how, probes=()))
    parts = dict(shown.regions)
    trace, watched = _time_call(
        lambda: run(model, shown.text, how, regions=parts, probes=REGION_PROBES)
    )
    with temporary(path, folder=True) as folder:
        written, wrote = _time_call(lambda: trace.write(folder / "rates.trace"))
        size = extent(written)[1]
    rates = Rates((watched + wrote) / passes, plain / passes, size / passes)
    store.keep(path, asdict(rates))
    return rates


def _read_rates(store: EvidenceStore, path: Path) -> Rates | None:
    """None where nothing was measured yet, or what was kept is damaged: both cost seconds."""
    try:
        return Rates(**{name: float(value) for name, value in store.read_record(path).items()})
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
def _catch_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Our own warnings are kept with the evidence instead of said for every prompt."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AnchorwatchWarning)
        yield caught
