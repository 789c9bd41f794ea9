"""What an edit does: the same prompts and seeds clean, edited and under a control, compared.

Each run is compared twice: as every arm wrote it, and on the clean run's frames, which every arm
reads. Everything is checked before the weights are touched.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anchorwatch.edits.controls import Setting, dose_of, random_controls, with_dose
from anchorwatch.edits.spec import Edit
from anchorwatch.errors import AnchorwatchWarning, ModelError, PromptError, SpecError
from anchorwatch.evaluation.outcomes import (
    CLEAN,
    NAMES,
    OUTCOMES,
    Arm,
    Contrast,
    Effect,
    compare_runs,
    fit_trends,
    nan_mean,
)
from anchorwatch.evaluation.teacher_forced import ArmReading, read_clean_frames
from anchorwatch.generation.build_trace import build_trace
from anchorwatch.generation.decoding import Decoding
from anchorwatch.generation.loop import RunState, walk
from anchorwatch.generation.plan import edit_list
from anchorwatch.generation.prepare import (
    RUN_BYTES,
    RunRequest,
    checked_seed,
    plan_runs,
    prepare_run,
    prompt_list,
    refuse_batch,
    regions_for_each,
    rows_at_once,
    start_runs,
)
from anchorwatch.metrics.sink_rules import Rule, check_rule, rulli
from anchorwatch.metrics.table import prompt_id
from anchorwatch.models.engines.choose import EngineOptions
from anchorwatch.models.engines.jobs import Job, ModelRef
from anchorwatch.models.engines.worker import Worker, versions
from anchorwatch.models.load_options import DEFAULT_LOADING, LoadOptions
from anchorwatch.models.model import Model
from anchorwatch.models.prompt_encoding import Prompt
from anchorwatch.trace import machine_limits as limits
from anchorwatch.trace.atomic_io import expand_path, plain, read_sealed, replace_file, seal
from anchorwatch.trace.locks import Lock
from anchorwatch.trace.model_identity import identity_of
from anchorwatch.trace.progress_bar import Progress
from anchorwatch.trace.provenance import origin
from anchorwatch.trace.regions import Spans
from anchorwatch.trace.schema import check_count
from anchorwatch.trace.trace import Trace

_KEPT = ("prompt", "text", "origins", "clean", "value", "null", "layers")
"""Fields of the outcomes of a run."""
LEAST_MASS = 0.8
"""Share of the edit's attention that a control matched by attention is to hide, at least."""
AGAINST = np.array([outcome.against for outcome in OUTCOMES])


def effect(  # noqa: PLR0913 - one keyword for each thing an experiment can be given
    model: Model,
    prompts: Sequence[Prompt],
    decoding: Decoding | None,
    edit: Edit | Sequence[Edit],
    *,
    control: str | Edit | Sequence[Edit] | None = "random",
    doses: Sequence[int] | None = None,
    seed: int = 0,
    repeats: int = 1,
    batch: int | None = None,
    regions: Sequence[Spans] | Spans | None = None,
    rule: Rule | None = None,
    traces: bool = False,
    keep: str | Path | None = None,
    engine: EngineOptions | None = None,
    loading: LoadOptions = DEFAULT_LOADING,
) -> Effect:
    """Run every prompt clean, edited and under a control of equal budget, and compare.

    Args:
        model: as `aw.load` gives it.
        prompts: a list; the prompt is what is resampled, and five are needed for an interval.
        decoding: one of `aw.decoding`, or None for the model's default.
        edit: one of `aw.edits`, or a list of those that act together.
        control: "random" hides as many other keys, or takes out as many other heads of the same
            layers, drawn for each run; or an edit of yours; or None.
        doses: numbers of keys k to try instead of the edit's own, in the control too.
        seed: prompt i of n is run with seed + i in every arm, and in repeat r with seed + r n + i.
        repeats: runs of each prompt, averaged before prompts are resampled.
        batch: rows that share a forward pass while arms write, as in `aw.run_many`.
        regions: named parts of the prompts, as in `aw.run_many`, for edits that name one.
        rule: what a newly formed sink is.
        traces: keep the runs of every arm, without measurements.
        keep: a folder for what each run gave; what it holds already is not computed again.
        engine: shares the runs out to workers, which load `model.source` with `loading`.
        loading: how `model` was loaded, where it was not with the defaults.

    >>> from anchorwatch.models.load import load
    >>> from anchorwatch.generation.decoding import LowConfidence
    >>> from anchorwatch.edits.spec import no_op
    >>> found = effect(load("tiny/llada"), ["the anchor"], LowConfidence(4), no_op())
    >>> found.table.set_index("outcome").loc["argmax_agreement", ["clean", "edited"]].tolist()
    [1.0, 1.0]
    """
    sides = _list_sides(edit, control, doses)
    arms = 1 + sum(len(side.names()) for side in sides)
    request = _prepare_request(model, prompts, decoding, regions, seed, repeats, arms)
    rule, size = rulli() if rule is None else check_rule(rule), rows_at_once(model, batch)
    refuse_batch(model, request.jobs, size)
    _refuse_oracle(sides, len(request.jobs))
    for job, ask in zip(request.jobs, request.asks, strict=True):
        for edits in _arm_edits(sides, job, seed):  # a mistake costs no run
            start_runs(model, [replace(ask, edits=edits)], decoding, [job.seed])
    outcomes = _RunOutcomes(keeps=traces)
    if engine is not None or keep is not None:
        if traces:
            raise SpecError("traces are not kept run by run: leave traces out, or keep and engine")
        outcomes = _compare_apart(model, request, sides, rule, keep, engine, loading)
    else:
        with Progress("comparing", total=len(request.jobs) * 2 * arms) as bar:
            for start in range(0, len(request.jobs), size):
                _compare(model, request.take(start, size), sides, rule, outcomes, bar)
    about = _describe_effect(model, request, sides, control, rule)
    about |= {"seed": seed, "repeats": repeats, "doses": None if doses is None else list(doses)}
    result = _build_effect(outcomes, sides, about, doses)
    _warn_of_budget(result, any(_is_matched_by_mass(side) for side in sides))
    return result


@dataclass(frozen=True)
class _Request:
    """Every run of the clean arm, checked and not begun: prompts of all repeats."""

    asks: list[RunRequest]
    jobs: list[RunState]
    decoding: Decoding | None
    seed: int

    def take(self, start: int, size: int) -> _Request:
        chosen = slice(start, start + size)
        return replace(self, asks=self.asks[chosen], jobs=self.jobs[chosen])


@dataclass(frozen=True)
class _Side:
    """An edit of one dose, and its control: "random" is drawn for each run."""

    edits: tuple[Edit, ...]
    control: tuple[Edit, ...] | str | None
    k: int | None

    def names(self) -> list[str]:
        dose = "" if self.k is None else f" k={self.k}"
        return [f"{arm}{dose}" for arm in ("edited", "control")[: 1 + (self.control is not None)]]


@dataclass
class _RunOutcomes:
    """What was found in each run, run by run."""

    keeps: bool
    prompt: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    origins: list[dict[str, Any]] = field(default_factory=list)
    clean: list[list[float]] = field(default_factory=list)
    """[run, outcome]."""
    value: list[list[list[float]]] = field(default_factory=list)
    """[run, arm, outcome]."""
    null: list[list[list[float]]] = field(default_factory=list)
    layers: list[list[np.ndarray]] = field(default_factory=list)
    """[run, arm, layer]; the clean arm is the last."""
    traces: dict[str, list[Trace]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """What was found, as JSON has it: NaN is null."""
        return {name: _without_nan(plain(getattr(self, name))) for name in _KEPT}

    def add_record(self, record: Mapping[str, Any]) -> None:
        """Add what `as_dict` gave of other runs."""
        for name in _KEPT:
            texts = name in ("prompt", "text", "origins")
            getattr(self, name).extend(record[name] if texts else _with_nan(record[name]))


@dataclass(frozen=True)
class _EffectUnit:
    """One run of an experiment, as a worker is told of it."""

    ask: RunRequest
    decoding: Decoding | None
    seed: int
    """Of the run."""
    first_seed: int
    """Of the experiment, which random controls are drawn with."""
    sides: tuple[_Side, ...]
    rule: Rule
    model: Mapping[str, Any]
    """What decides the model that the experiment is of."""
    folder: Path | None

    @property
    def digest(self) -> str:
        """SHA-256 of all that decides what it gives."""
        deciding = {
            "prompt": self.ask.prompt,
            "regions": _spell_regions(self.ask.regions),
            "decoding": None if self.decoding is None else self.decoding.as_dict(),
            "seeds": [self.seed, self.first_seed],
            "sides": [_spell_side(side) for side in self.sides],
            "rule": str(self.rule),
            "model": dict(self.model),
            "versions": versions(),
        }
        spelled = json.dumps(plain(deciding), sort_keys=True)
        return hashlib.sha256(spelled.encode()).hexdigest()[:32]

    @property
    def path(self) -> Path | None:
        return None if self.folder is None else self.folder / f"{self.digest}.json"

    def read(self) -> dict[str, Any] | None:
        """What was kept; None where nothing was, or it is damaged, which costs a run."""
        if self.path is None:
            return None
        try:
            return read_sealed(self.path)
        except (OSError, ValueError):
            return None


def _spell_regions(regions: Spans | None) -> Any:
    if regions is None:
        return None
    return {
        name: [part.start, part.stop] if isinstance(part, range) else part
        for name, part in regions.items()
    }


def _spell_side(side: _Side) -> list[Any]:
    beside = side.control
    if beside is not None and not isinstance(beside, str):
        beside = [edit.as_dict() for edit in beside]  # type: ignore[assignment]
    return [[edit.as_dict() for edit in side.edits], beside, side.k]


def compare_run(worker: Worker, job: Job) -> dict[str, Any]:
    """Compare the arms of one run, in a worker; kept before it is given."""
    unit: _EffectUnit = job.payload
    model = worker.model(job.model)
    if identity_of(model.describe()) != unit.model:
        raise ModelError(
            f"{model.source} is another model in the worker: say loading=, as it was loaded here"
        )
    return _compare_unit(model, unit)


def _compare_unit(model: Model, unit: _EffectUnit) -> dict[str, Any]:
    """Compare the arms of a run; where another process is at it, what that one keeps is read."""
    if unit.path is None:
        return _compute_unit(model, unit)
    unit.path.parent.mkdir(parents=True, exist_ok=True)
    with Lock.claim(unit.path.parent, f"{unit.path.stem}.lock"):
        if (record := unit.read()) is not None:
            return record
        record = _compute_unit(model, unit)
        replace_file(unit.path, seal(record))
    return record


def _compute_unit(model: Model, unit: _EffectUnit) -> dict[str, Any]:
    jobs = start_runs(model, [unit.ask], unit.decoding, [unit.seed])
    request, outcomes = (
        _Request([unit.ask], jobs, unit.decoding, unit.first_seed),
        _RunOutcomes(False),
    )
    with Progress("comparing", total=None) as bar:
        _compare(model, request, unit.sides, unit.rule, outcomes, bar)
    return outcomes.as_dict()


def _compare_apart(
    model: Model,
    request: _Request,
    sides: Sequence[_Side],
    rule: Rule,
    keep: str | Path | None,
    engine: EngineOptions | None,
    loading: LoadOptions,
) -> _RunOutcomes:
    """Compare run by run: what is kept is read, the rest is made here or by workers."""
    identity = identity_of(model.describe())
    folder = None if keep is None else expand_path(keep)
    units = [
        _EffectUnit(
            ask, request.decoding, job.seed, request.seed, tuple(sides), rule, identity, folder
        )
        for ask, job in zip(request.asks, request.jobs, strict=True)
    ]
    records = {number: record for number, unit in enumerate(units) if (record := unit.read())}
    left = [number for number in range(len(units)) if number not in records]
    with Progress("comparing", total=len(units), done=len(records)) as bar:
        if engine is not None and left:
            ref = ModelRef(model.source, loading)
            function = "anchorwatch.evaluation.effect:compare_run"
            for outcome in engine.run(
                [Job(str(number), ref, function, units[number]) for number in left]
            ):
                if outcome.status == "done":
                    records[int(outcome.job.name)] = outcome.value
                bar.advance()
        for number in left:  # what workers could not make is tried here, which says why
            if number not in records:
                records[number] = _compare_unit(model, units[number])
                bar.advance()
    outcomes = _RunOutcomes(keeps=False)
    for number in range(len(units)):
        outcomes.add_record(records[number])
    return outcomes


def _prepare_request(
    model: Model,
    prompts: Any,
    decoding: Decoding | None,
    regions: Any,
    seed: int,
    repeats: Any,
    arms: int,
) -> _Request:
    listed, seed = prompt_list(prompts, "effect"), checked_seed(seed)
    if not listed:
        raise PromptError("there are no prompts: give at least one, and five for intervals")
    if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 1:
        raise SpecError(f"repeats={repeats!r} is not a whole number of at least 1")
    spans = regions_for_each(regions, len(listed))
    asks = [RunRequest(p, regions=s) for p, s in zip(listed, spans, strict=True)]
    _refuse_repeats(model, asks, decoding, repeats, arms)
    asks *= repeats
    jobs = start_runs(model, asks, decoding, range(seed, seed + len(asks)))
    return _Request(asks, jobs, decoding, seed)


def _refuse_repeats(
    model: Model, asks: Sequence[RunRequest], decoding: Decoding | None, repeats: int, arms: int
) -> None:
    """Refuse more runs than can be finished, or begun together."""
    once = plan_runs([prepare_run(model, ask, decoding) for ask in asks], ()).forward_passes
    passes = 2 * arms * once * repeats  # each arm writes, and then reads the clean frames
    bytes_held = len(asks) * repeats * RUN_BYTES
    fewer = limits.at_most(repeats, passes=passes, held=bytes_held)
    way = f"say repeats={fewer} at most, or give fewer prompts"
    limits.refuse_passes(passes, way)
    limits.refuse_bytes(bytes_held, "these runs together", way)


def _list_sides(edit: Any, control: Any, doses: Any) -> list[_Side]:
    """The edit at each dose, its own first."""
    edits = _edit_tuple(edit, "edit")
    if not edits:
        raise SpecError("there is no edit: give one of aw.edits, such as hide_sinks(1)")
    other: tuple[Edit, ...] | str | None = control
    if isinstance(control, str):
        if control != "random":
            raise SpecError(f"control={control!r} is unknown: say 'random', an edit, or None")
    elif control is not None:
        other = _edit_tuple(control, "control")
    if doses is None:
        return [_Side(edits, other, None)]
    if isinstance(doses, str) or not hasattr(doses, "__iter__"):
        raise SpecError(f"doses={doses!r} is not a list of numbers: say (1, 5, 10)")
    wanted = [check_count(dose) for dose in doses]
    if len(wanted) < 2 or len(set(wanted)) != len(wanted):
        raise SpecError(f"doses={list(doses)} are not two or more different numbers: say (1, 5)")
    own = dose_of(edits)
    every = [own, *(dose for dose in wanted if dose != own)]
    return [_Side(with_dose(edits, k), _dosed_control(other, k), k) for k in every]


def _dosed_control(control: Any, k: int) -> tuple[Edit, ...] | str | None:
    """A control that has no k is the same at every dose."""
    if control is None or isinstance(control, str) or not any(hasattr(e, "k") for e in control):
        return control
    return with_dose(control, k)


def _refuse_oracle(sides: Sequence[_Side], runs: int) -> None:
    every = [edit for side in sides for edit in (*side.edits, *(side.control or ()))]
    if runs > 1 and any(getattr(edit, "unedited", None) is not None for edit in every):
        raise SpecError(
            f"an oracle knows one run and there are {runs}: use detect='same_shadow', "
            "or give one prompt"
        )


def _edit_tuple(given: Any, name: str) -> tuple[Edit, ...]:
    if isinstance(given, Edit):
        return (given,)
    if isinstance(given, type) or given is None or isinstance(given, str):
        what = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
        raise SpecError(f"{name} is one of aw.edits, such as hide_sinks(1): got {what}")
    return edit_list(given)


def _arm_edits(sides: Sequence[_Side], job: RunState, seed: int) -> list[tuple[Edit, ...]]:
    """The edits of every arm of a run but the clean one, as `names` names them."""
    shape, answer = job.buffer.shape, tuple(job.sequence.answer.tolist())
    setting, arms = Setting(shape, answer, job.seed), []
    for side in sides:
        arms.append(side.edits)
        if side.control == "random":
            arms.append(random_controls(side.edits, setting, seed))
        elif side.control is not None:
            assert not isinstance(side.control, str)
            arms.append(side.control)
    return arms


def _compare(
    model: Model,
    request: _Request,
    sides: Sequence[_Side],
    rule: Rule,
    outcomes: _RunOutcomes,
    bar: Progress,
) -> None:
    """Write every arm of some runs, then read the clean frames with every arm."""
    arms = list(zip(*(_arm_edits(sides, job, request.seed) for job in request.jobs), strict=True))
    written = [_run_arm(model, request, edits, bar) for edits in ([()] * len(request.jobs), *arms)]
    names = ["clean", *(name for side in sides for name in side.names())]
    if outcomes.keeps:
        for name, runs in zip(names, written, strict=True):
            outcomes.traces.setdefault(name, []).extend(runs)
    for number, clean in enumerate(written[0]):
        edits = [arm[number] for arm in arms]
        readings = read_clean_frames(model, clean, edits, rule)
        _add_outcomes(outcomes, [runs[number] for runs in written], readings)
        bar.advance(count=1 + len(edits))


def _run_arm(
    model: Model, request: _Request, edits: Sequence[tuple[Edit, ...]], bar: Progress
) -> list[Trace]:
    """A trace of each run; those with the same edits share forward passes."""
    asks = [replace(ask, edits=mine) for ask, mine in zip(request.asks, edits, strict=True)]
    jobs = start_runs(model, asks, request.decoding, [job.seed for job in request.jobs])
    for _, same in groupby(jobs, key=lambda job: job.edits):
        group = list(same)
        for _ in walk(model, group):
            pass
        bar.advance(count=len(group))
    return [build_trace(job, model, (), batch=len(jobs)) for job in jobs]


def _add_outcomes(
    outcomes: _RunOutcomes, runs: Sequence[Trace], readings: Sequence[ArmReading]
) -> None:
    """Put the outcomes of one prompt in order; readings end with the clean arm's."""
    clean, *others = runs
    outcomes.prompt.append(prompt_id(clean))
    outcomes.text.append(clean.prompt)
    outcomes.origins.append(origin(clean))
    base = compare_runs(clean, clean) | readings[-1].values
    outcomes.clean.append([base[name] for name in NAMES])
    values = [
        compare_runs(clean, run) | reading.values
        for run, reading in zip(others, readings, strict=False)
    ]
    outcomes.value.append([[row[name] for name in NAMES] for row in values])
    nulls = [base | reading.nulls for reading in readings[:-1]]
    outcomes.null.append([[row[name] for name in NAMES] for row in nulls])
    outcomes.layers.append([reading.layers for reading in readings])


def _build_effect(
    outcomes: _RunOutcomes,
    sides: Sequence[_Side],
    about: dict[str, Any],
    doses: Sequence[int] | None,
) -> Effect:
    """From runs to prompts to tables."""
    # 1. Average the runs (repeats) of each prompt: the prompt is the unit.
    first = list(dict.fromkeys(outcomes.prompt))
    texts = dict(zip(outcomes.prompt, outcomes.text, strict=True))
    of = np.array([first.index(prompt_key) for prompt_key in outcomes.prompt])

    def by_prompt(values: Any) -> np.ndarray:
        runs = np.asarray(values, dtype=np.float64)
        return np.stack([nan_mean(runs[of == prompt]) for prompt in range(len(first))])

    value, null = np.array(outcomes.value), np.array(outcomes.null)
    clean = by_prompt(outcomes.clean)
    null = np.where(np.isnan(value), np.nan, null)  # runs that count, count on both sides
    # 2. One contrast (edited, control, clean) for each dose.
    arms = list(_pair_arms(sides, by_prompt(value), by_prompt(null)))
    contrasts = [Contrast(clean, edited, control, AGAINST) for edited, control in arms]
    prompts = {"prompt": first, "text": [texts[prompt_key] for prompt_key in first]}
    attrs = {"about": about, "traces": outcomes.origins}
    # 3. The same for hidden states by layer; the clean arm is the last one.
    states = by_prompt(outcomes.layers)
    still = np.repeat(states[:, -1:], states.shape[1] - 1, axis=1)
    (edited, control), *_ = _pair_arms(sides, states[:, :-1], still)
    depth = Contrast(states[:, -1], edited, control, np.full(states.shape[-1], CLEAN))
    places = {"layer": np.arange(states.shape[-1]), "outcome": "perturbation"}
    given = {"unit": "relative change of states", "against": CLEAN}
    # 4. Tables, each with what made it.
    labels = _labels(about["kind"] == "arm")
    tables = {
        "table": contrasts[0].table(labels),
        "prompts": contrasts[0].rows(prompts, NAMES),
        "layers": depth.table(places | given),
    }
    if doses is not None:
        tables |= _dose_tables(
            doses, dict(zip([side.k for side in sides], contrasts, strict=True)), labels
        )
    for table in tables.values():
        table.attrs = attrs
    return Effect(**tables, traces=outcomes.traces if outcomes.keeps else None)


def _is_matched_by_mass(side: _Side) -> bool:
    edits = () if side.control is None or isinstance(side.control, str) else side.control
    return any(getattr(edit, "matched_to", None) == "mass" for edit in edits)


def _warn_of_budget(result: Effect, by_mass: bool) -> None:
    """A control that found too few other keys hid fewer, and is no control of equal budget.

    One that is matched by attention is short where its keys received less, however many they are.
    """
    tables = [result.table] if result.doses is None else [result.doses]
    if by_mass:
        shares = pd.concat(tables).query("outcome == 'hidden_share'")
        short = shares[shares["control"] < LEAST_MASS * shares["edited"]]
        if len(short):
            edited, control = short.iloc[-1][["edited", "control"]]
            warnings.warn(
                f"the control hid keys with {control:.3g} of the attention where the edit hid "
                f"{edited:.3g}: the sinks have more than all others together, or more keys are "
                "needed, hide_random(..., matched_to='mass', most=256)",
                AnchorwatchWarning,
                stacklevel=3,
            )
        return
    rows = pd.concat(tables).query("outcome == 'hidden_keys' and did > 1e-9")
    if len(rows):
        edited, control = rows.iloc[-1][["edited", "control"]]
        warnings.warn(
            f"the control hid {control:.3g} keys where the edit hid {edited:.3g}, for there were "
            "too few others: hide fewer, or give a control of equal budget",
            AnchorwatchWarning,
            stacklevel=3,
        )


def _pair_arms(
    sides: Sequence[_Side], value: np.ndarray, null: np.ndarray
) -> Iterator[tuple[Arm, Arm]]:
    """Edited and control arm of each side, of [prompt, arm, cell] arrays."""
    column = 0
    for side in sides:
        edited = Arm(value[:, column], null[:, column])
        column += 1
        control = Arm.absent(edited.value.shape)
        if side.control is not None:
            control = Arm(value[:, column], null[:, column])
            column += 1
        yield edited, control


def _dose_tables(
    doses: Sequence[int], contrasts: dict[int | None, Contrast], labels: dict[str, Any]
) -> dict[str, Any]:
    ordered = sorted(doses)
    rows = [contrasts[k].table({"k": k, **labels}) for k in ordered]
    return {
        "doses": pd.concat(rows, ignore_index=True),
        "trends": fit_trends(ordered, [contrasts[k] for k in ordered], NAMES),
    }


def _labels(autoregressive: bool) -> dict[str, Any]:
    return {
        "outcome": list(NAMES),
        "unit": [outcome.unit_of(autoregressive) for outcome in OUTCOMES],
        "on": [outcome.on for outcome in OUTCOMES],
        "against": [outcome.against for outcome in OUTCOMES],
    }


def _describe_effect(
    model: Model, request: _Request, sides: Sequence[_Side], control: Any, rule: Rule
) -> dict[str, Any]:
    """What was asked, for files and for the reader."""
    job, side = request.jobs[0], sides[0]
    arms = _arm_edits(sides[:1], job, request.seed)
    drawn = "drawn for each run, such as " if control == "random" else ""
    beside = (
        side.control
        if isinstance(side.control, str | None)
        else [edit.as_dict() for edit in side.control]
    )
    settings = {k: v for k, v in job.decoding.as_dict().items() if v not in (None, 0.0, False)}
    name = settings.pop("name")
    return {
        "metric": "effect",
        "model": model.source,
        "kind": model.family.kind,
        "decoding": job.decoding.as_dict(),
        "decoding_text": f"{name}({', '.join(f'{k}={v}' for k, v in settings.items())})",
        "edit": [edit.as_dict() for edit in side.edits],
        "edit_text": ", ".join(map(repr, side.edits)),
        "control": beside,
        "control_text": drawn + ", ".join(map(repr, arms[1])) if side.control is not None else "",
        "rule": str(rule),
    }


def _without_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _with_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_nan(item) for item in value]
    return math.nan if value is None else value
