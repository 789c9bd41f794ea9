"""Runs a study: collects all evidence once, measures every claim, writes what was found.

Preconditions are measured first, the cheapest of each claim before the others, and what only claims
need that fail them is not collected. Models are in memory one at a time. What was collected is kept
under `out/evidence`, so that the same call resumes where it was stopped, and finds everything where
it was not.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformers

from anchorwatch import __version__
from anchorwatch.errors import (
    AnchorwatchError,
    AnchorwatchWarning,
    ModelError,
    PromptError,
    SpecError,
    TraceError,
)
from anchorwatch.evaluation.synthetic import Item
from anchorwatch.generation.prepare import check_decoding
from anchorwatch.models import zoo as lab
from anchorwatch.models.engines.choose import EngineOptions
from anchorwatch.models.engines.jobs import ModelRef
from anchorwatch.models.load import find
from anchorwatch.models.load_options import DEFAULT_LOADING, LoadOptions
from anchorwatch.models.model import Model
from anchorwatch.models.prompt_encoding import misfits
from anchorwatch.models.sites import normalises_keys
from anchorwatch.studies.budget import Budget
from anchorwatch.studies.budget import budget as named_budget
from anchorwatch.studies.claim import CheckedPrecondition, Claim, Precondition
from anchorwatch.studies.collect import calibrate, collect, list_jobs
from anchorwatch.studies.estimate import PROMPT, UNITS
from anchorwatch.studies.evidence import (
    READS,
    ROLES,
    Answers,
    Available,
    Effect,
    Evidence,
    EvidenceSpec,
    EvidenceStore,
    Experiment,
    ModelIdentity,
    Runs,
    refuse_other_model,
)
from anchorwatch.studies.list_runs import list_runs
from anchorwatch.studies.papers import claims as named_claims
from anchorwatch.studies.papers import load_experiments
from anchorwatch.studies.plan_study import Plan, PlanPiece, Rates, plan_study
from anchorwatch.studies.prompts import QUESTION_SETS, SETS, TEXT
from anchorwatch.studies.protocols import MADE_TASK, Protocol
from anchorwatch.studies.protocols import protocol as named_protocol
from anchorwatch.studies.study_record import Study
from anchorwatch.studies.verdict import judge_claims
from anchorwatch.trace.atomic_io import expand_path, refuse_inside_trace
from anchorwatch.trace.locks import Lock
from anchorwatch.trace.model_identity import identity_digest
from anchorwatch.trace.progress_bar import Progress
from anchorwatch.training import variants as tables

DEFAULTS = {
    "mdm": "lab/tales-mdm",
    "arm": "lab/tales-arm",
    "sink": "lab/tales-sink",
    "gate": "lab/tales-gate",
}
"""What a study is of where no model is named."""
EVIDENCE = "evidence"


def study(  # noqa: PLR0913 - one keyword for each thing a study can be given
    names: Sequence[str] = (),
    *,
    model: str | None = None,
    against: str | None = None,
    sink: str | None = None,
    gate: str | None = None,
    budget: str | Budget = "quick",
    protocol: str | Protocol | None = None,
    loading: LoadOptions = DEFAULT_LOADING,
    out: str | Path = "study",
    variants: str | Path | None = None,
    before: Callable[[Plan], None] | None = None,
    engine: EngineOptions | None = None,
    report: bool = True,
) -> Study:
    """Run the claims of papers and say what came of each.

    Args:
        names: studies (floating, sinks, sink_token) or claims ("sinks/H3"); all where left out.
        model: the masked diffusion model the claims are about; a name, folder or hub id.
        against: the autoregressive one beside it.
        sink: one trained with a sink token.
        gate: one trained with gates.
        budget: quick, standard or full; or a `Budget`.
        protocol: how models are prompted and write: rulli, floating or sink-token; or a `Protocol`,
            such as `aw.studies.protocol("rulli", length=64)`. The budget's way where left out.
        loading: device and dtype of all models; revision, mask id and family of `model`.
        out: a folder: report.html, report.md, claims.json, claims.csv, figures, evidence.
        variants: the table of training seeds; the package's own where left out.
        before: told the plan before anything runs.
        engine: shares the units of evidence out to workers.
        report: whether report, figures and tables are written; the evidence is kept in any case.

    Where no model is named, those of the lab are taken that the claims need; where one is, only
    those that are.
    """
    begun = time.monotonic()
    much = _under_protocol(budget, protocol)
    task = _prepare(names, (model, against, sink, gate), much, out, variants, loading)
    task.engine = engine
    with _lock_folder(task.out):
        task.mend()
        plan = task.plan()
        if before is not None:
            before(plan)
        evidence = Evidence(task.store.load, task.store.available.models, much.protocol)
        collected = task.collect_evidence(plan, evidence)
        lost = dict(plan.lacking) | collected.lacking
        each = judge_claims(task.claims, evidence, lost, collected.not_testable)
        plan = replace(plan, pieces=collected.used(plan))
        about = task.manifest(plan) | _describe_duration(begun)
        record = Study(each, about, plan, evidence, list_runs(task.store, each, evidence))
        if report:
            record.save(task.out)
    return record


def _lock_folder(folder: Path) -> Lock:
    """Make the folder of a study, or take it from nobody: two at once would spoil each other."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(
            f"{folder} cannot be written, {error.strerror}: choose another place"
        ) from None
    return Lock.take(folder, f"another study is writing to {folder}")


def plan(
    names: Sequence[str] = (),
    *,
    model: str | None = None,
    against: str | None = None,
    sink: str | None = None,
    gate: str | None = None,
    budget: str | Budget = "quick",
    protocol: str | Protocol | None = None,
    loading: LoadOptions = DEFAULT_LOADING,
    out: str | Path = "study",
    variants: str | Path | None = None,
) -> Plan:
    """What `study` with these arguments would run: passes, minutes on this machine, bytes."""
    much = _under_protocol(budget, protocol)
    return _prepare(names, (model, against, sink, gate), much, out, variants, loading).plan()


def _under_protocol(budget: str | Budget, protocol: str | Protocol | None) -> Budget:
    return named_budget(budget, None if protocol is None else named_protocol(protocol))


def sets_read(claims: Sequence[Claim]) -> set[str]:
    """Sets of prompts and questions that watched runs, effects and experiments of claims read."""
    load_experiments()
    needs = [spec for claim in claims for spec in claim.needs]
    runs = {spec.prompts for spec in needs if isinstance(spec, Runs | Effect)}
    names = [spec.name for spec in needs if isinstance(spec, Experiment)]
    return runs | {read for name in names for read in READS.get(name, ())}


def check_protocol(claims: Sequence[Claim], protocol: Protocol) -> None:
    """Refuse prompts, a task and contexts that none of the claims would read."""
    needs = [spec for claim in claims for spec in claim.needs]
    sets = sets_read(claims)
    if protocol.prompts and TEXT not in sets:
        raise SpecError(
            "none of these claims watches running text: leave --prompts out, or name claims that "
            "do, such as sinks/H3"
        )
    asked = {
        context
        for spec in needs
        if isinstance(spec, Answers) and spec.task == MADE_TASK
        for context in spec.contexts
    }
    asked |= {QUESTION_SETS[name].context for name in sets if name in QUESTION_SETS}
    if protocol.task is not None and not asked:
        raise SpecError(
            "none of these claims asks questions of one hop: leave --task out, or name claims that "
            "do, such as floating/H23"
        )
    if lost := [name for name, _ in protocol.contexts if name not in asked]:
        known = ", ".join(sorted(asked))
        raise SpecError(f"no claim here asks in the context {lost[0]}: they ask in {known}")


def _count_tenths(pieces: Sequence[PlanPiece]) -> int:
    """Tenths of a second that are left of these pieces: what a progress bar counts."""
    return sum(max(1, round(piece.seconds * 10)) for piece in pieces if piece.left)


def _describe_duration(begun: float) -> dict[str, Any]:
    """How long a study took, and when it ended: all that a rerun on this machine does not repeat.

    Evidence that was there already took its time before.
    """
    ended = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {"took": {"minutes": (time.monotonic() - begun) / 60, "ended": ended}}


def _roles(claims: Sequence[Claim], sources: Sequence[str | None]) -> dict[str, str]:
    """Sources by role; where none is named, those of the lab that the claims need."""
    given = zip(ROLES, sources, strict=True)
    named = {role: str(source) for role, source in given if source is not None}
    if named:
        return named
    needed = {role for claim in claims for spec in claim.needs for role in spec.roles}
    return {role: name for role, name in DEFAULTS.items() if role in needed and _is_shipped(name)}


def _is_shipped(name: str) -> bool:
    try:
        lab.folder_of(name)
    except ModelError:
        return False
    return True


def _prepare(
    names: Sequence[str],
    sources: Sequence[str | None],
    budget: Budget,
    out: str | Path,
    variants: str | Path | None,
    loading: LoadOptions,
) -> _StudyRun:
    """Check everything that can be before weights are touched."""
    claims, folder = named_claims(names), expand_path(out)
    check_protocol(claims, budget.protocol)
    _refuse_task(claims, budget)
    _warn_few_prompts(claims, budget)
    _refuse_loading(sources[0], loading)
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"{folder} is a file: a study is many files, name a folder")
    refuse_inside_trace(folder)
    roles, table = _roles(claims, sources), _variants(variants)
    task = _StudyRun(claims, folder, roles, _describe_table(table, variants), loading)
    for role, source in roles.items():
        # The last of four names may be wrong, and the first model take minutes.
        find(source, task.loading_of(role).revision)
    holdings = {}
    for role in roles:
        loaded = task.model(role)
        holdings[role] = _identify_model(role, loaded)
        if budget.protocol.chat and not getattr(loaded.tokenizer, "chat_template", None):
            raise SpecError(
                f"{loaded.source} has no chat template: leave --chat out (--no-chat under a "
                "protocol that has it), or name a model that was tuned to chat"
            )
        if budget.protocol.decoding is not None and loaded.family.kind == "mdm":
            check_decoding(loaded, budget.decoding("mdm"))
        _warn_misfits(claims, budget, loaded)
    with_card = lab.NAMES + lab.TALES
    cards = {role: lab.folder_of(source) for role, source in roles.items() if source in with_card}
    positions = _positions(variants)
    available = Available(
        holdings,
        () if table is None else tuple(table.columns),
        None if table is None else {str(k): int(v) for k, v in table["arm"].value_counts().items()},
        tuple(cards),
        positions={
            str(rows): {str(k): int(v) for k, v in part["arm"].value_counts().items()}
            for rows, part in ([] if positions is None else positions.groupby("rows"))
        },
    )
    task.store = EvidenceStore(folder / EVIDENCE, budget, available, table, cards, positions)
    return task


def _refuse_task(claims: Sequence[Claim], budget: Budget) -> None:
    """Refuse a task without questions, or of which a set that claims read cannot be made."""
    protocol = budget.protocol
    if protocol.task and not protocol.count_prompts("asked", 1):
        raise SpecError(f"{protocol.task} holds no item: there is nothing to ask")
    for name in sorted(sets_read(claims) & set(QUESTION_SETS)) if protocol.task else ():
        try:
            _read_first(budget, name)
        except PromptError as error:
            readers = [claim.id for claim in claims if name in sets_read([claim])]
            others = f" and {len(readers) - 3} more" if len(readers) > 3 else ""
            raise SpecError(
                f"{error}: say which context of the task stands for it, such as --contexts "
                f"{QUESTION_SETS[name].context}=open, or leave out claims that read it, "
                f"{', '.join(readers[:3])}{others}"
            ) from None


def _warn_few_prompts(claims: Sequence[Claim], budget: Budget) -> None:
    """Say before anything runs that the user's own prompts are too few for an interval."""
    least, protocol = UNITS[PROMPT], budget.protocol
    own = {TEXT} if protocol.prompts else set[str]()
    own |= set(QUESTION_SETS) if protocol.task else set()
    counts = {
        protocol.count_prompts(name, budget.prompts) for name in own & sets_read(claims) & set(SETS)
    }
    if counts and min(counts) < least <= budget.prompts:
        warnings.warn(
            f"{min(counts)} prompts have no interval, and claims that read them stay undecided: "
            f"give {least} at least",
            AnchorwatchWarning,
            stacklevel=4,
        )


def _read_first(budget: Budget, name: str) -> Item:
    """The first item of a set of questions that can be shown; the first one's error if none can."""
    failed: PromptError | None = None
    for index in range(max(1, budget.protocol.count_prompts(name, budget.prompts))):
        try:
            return budget.protocol.item_of(name, index)
        except PromptError as error:
            failed = failed or error
    assert failed is not None
    raise failed


def _warn_misfits(claims: Sequence[Claim], budget: Budget, model: Model) -> None:
    """Say once, before runs that keep their warnings to themselves, what does not fit a model."""
    if budget.protocol.chat or model.tokenizer is None:
        return
    sets = sets_read(claims) & set(SETS)
    if any(isinstance(spec, Answers) for claim in claims for spec in claim.needs):
        sets.add("alone")  # questions, in whichever contexts
    notes: dict[str, None] = {}
    for name in sorted(sets):
        try:
            text = budget.protocol.prompt_of(name, 0).text
        except PromptError:  # others of the set can be shown
            continue
        if isinstance(text, str):
            each = misfits(text, model.encode(text), model.tokenizer, model.source)
            notes |= dict.fromkeys(each)
    for note in notes:
        warnings.warn(note, AnchorwatchWarning, stacklevel=4)


def _refuse_loading(model: str | None, loading: LoadOptions) -> None:
    """Refuse what is said of one checkpoint where none is named."""
    named = [name for name in ("revision", "mask_id", "family") if getattr(loading, name)]
    if named and model is None:
        option = f"--{named[0].replace('_', '-')}"
        raise SpecError(f"{option} is said of --model, which is not named: say --model, too")


def _variants(path: str | Path | None) -> pd.DataFrame | None:
    """The table of training seeds; None where the package has none and none was named."""
    if path is not None:
        return tables.variants(path)
    try:
        return tables.variants()
    except TraceError:
        return None


def _positions(path: str | Path | None) -> pd.DataFrame | None:
    """The package's table by position; None beside a table of the user's, whose runs are others."""
    if path is not None:
        return None
    try:
        return tables.by_position()
    except TraceError:
        return None


def _describe_table(table: pd.DataFrame | None, path: str | Path | None) -> dict[str, str] | None:
    """Which table of training seeds a study read; None where it had none."""
    if table is None:
        return None
    spelled = table.to_csv(index=False).encode()
    source = "the package's" if path is None else str(path)
    return {"source": source, "sha256": hashlib.sha256(spelled).hexdigest()}


def _identify_model(role: str, model: Model) -> ModelIdentity:
    """What is known of a model, once it was proved to be what its role says."""
    refuse_other_model(role, model, DEFAULTS[role])
    description = model.describe()
    return ModelIdentity(
        source=model.source,
        kind=model.family.kind,
        weights=description["weights"],
        parts=tuple(part.as_dict()["name"] for part in model.parts),
        layers=model.num_layers,
        heads=model.num_heads,
        positions=model.num_positions,
        settings=description["settings"],
        tokenizer=description["tokenizer"],
        device=description["device"],
        identity=identity_digest(description),
        family=description["family"],
        normalises_keys=normalises_keys(model.network),
    )


@dataclass
class _Collected:
    """Which evidence there is, and which claims need no more of it."""

    specs: set[EvidenceSpec] = field(default_factory=set)
    failed: dict[EvidenceSpec, str] = field(default_factory=dict)
    """Evidence that could not be collected, and why."""
    lacking: dict[str, str] = field(default_factory=dict)
    """Claims whose evidence or precondition could not be made."""
    not_testable: dict[str, tuple[CheckedPrecondition, ...]] = field(default_factory=dict)
    """Claims with a precondition that failed, and all that were measured of them."""
    checked: dict[str, list[CheckedPrecondition]] = field(default_factory=dict)

    def is_open(self, claim: Claim) -> bool:
        return claim.id not in self.lacking and claim.id not in self.not_testable

    def check(self, claim: Claim, stated: Precondition, evidence: Evidence) -> None:
        """Measure a precondition whose evidence is there; the claim may be closed by it."""
        try:
            result = stated.check(evidence)
        except AnchorwatchError as error:  # what is there cannot be measured so: it is said
            self.lacking[claim.id] = str(error)
            return
        self.checked.setdefault(claim.id, []).append(result)
        if not result.holds:
            self.not_testable[claim.id] = tuple(self.checked[claim.id])

    def used(self, plan: Plan) -> tuple[PlanPiece, ...]:
        """The pieces of a plan that were needed."""
        return tuple(piece for piece in plan.pieces if piece.spec in self.specs)


@dataclass
class _StudyRun:
    """A study on its way."""

    claims: tuple[Claim, ...]
    out: Path
    sources: dict[str, str]
    table: dict[str, str] | None
    """Which table of training seeds."""
    loading: LoadOptions
    engine: EngineOptions | None = None
    store: EvidenceStore = field(init=False)
    _loaded: tuple[str, Model] | None = None
    """The role and model in memory."""

    def model(self, role: str) -> Model:
        """Loaded when it is another than the last."""
        if self._loaded is None or self._loaded[0] != role:
            self._loaded = None  # let go of one before the next is loaded
            self._loaded = role, self.loading_of(role).load(self.sources[role])
        return self._loaded[1]

    def loading_of(self, role: str) -> LoadOptions:
        """Revision, mask id and family are said of the model that claims are about."""
        return self.loading if role == "mdm" else self.loading.for_other_models()

    def requests(self) -> dict[tuple[EvidenceSpec, str], None]:
        """Every need that takes a model, once, with each role that is at hand."""
        return {
            (spec, role): None
            for claim in self.claims
            for spec in claim.needs
            if spec.kind not in ("cards", "seeds")
            for role in spec.roles
            if role in self.sources
        }

    def mend(self) -> None:
        """What was kept and is damaged since counts as not made."""
        for spec, role in self.requests():
            self.store.mend(spec, role)

    def plan(self) -> Plan:
        needed = {role for _, role in self.requests()}
        rates: dict[str, Rates] = {}
        for role in self.sources:
            if role in needed:
                rates[role] = calibrate(self.store, role, self.model(role))
        return plan_study(self.claims, self.store, rates)

    def collect_evidence(self, plan: Plan, evidence: Evidence) -> _Collected:
        """Collect what the preconditions of claims need, round by round, then the rest.

        In each round every claim that is still open has its cheapest precondition measured. The
        rest is collected of claims whose preconditions hold.
        """
        collected = _Collected()
        runs = set(plan.runs)
        claims = [claim for claim in self.claims if claim.id in runs]
        passes: dict[EvidenceSpec, int] = {}
        for piece in plan.pieces:
            passes[piece.spec] = passes.get(piece.spec, 0) + piece.whole
        waiting = {claim.id: list(claim.preconditions) for claim in claims}
        with Progress("gathering", total=_count_tenths(plan.pieces)) as bar:
            # 1. the cheapest precondition of each claim, what is collected already costs nothing
            while stated := {
                claim.id: min(
                    waiting[claim.id],
                    key=lambda item: sum(
                        passes.get(spec, 0) for spec in item.needs if spec not in collected.specs
                    ),
                )
                for claim in claims
                if collected.is_open(claim) and waiting[claim.id]
            }:
                needed = {spec for item in stated.values() for spec in item.needs}
                self._collect_specs(plan, needed, collected, bar)
                for claim in claims:
                    if claim.id in stated and collected.is_open(claim):
                        waiting[claim.id].remove(stated[claim.id])
                        collected.check(claim, stated[claim.id], evidence)
            # 2. everything else that open claims need
            rest = {spec for claim in claims if collected.is_open(claim) for spec in claim.needs}
            self._collect_specs(plan, rest, collected, bar)
            spared = [piece for piece in plan.pieces if piece.spec not in collected.specs]
            if tenths := _count_tenths(spared):
                bar.advance("claims that are not testable cost nothing", tenths)
        return collected

    def _share_out(self, needs: Sequence[tuple[EvidenceSpec, str]]) -> None:
        """Let workers make units; what they could not is tried again here, which says why."""
        if self.engine is None:
            return
        models = {
            role: ModelRef(source, self.loading_of(role)) for role, source in self.sources.items()
        }
        jobs = list_jobs(self.store, needs, models)
        if len(jobs) < 2:
            return
        self._loaded = None  # the workers need the memory
        for _ in self.engine.run(jobs):
            pass

    def _collect_specs(
        self, plan: Plan, specs: set[EvidenceSpec], collected: _Collected, bar: Progress
    ) -> None:
        """Make what is left of these specs, model by model; claims that lose one are closed."""
        roles = list(self.sources)
        pieces = [p for p in plan.pieces if p.spec in specs and p.spec not in collected.specs]
        self._share_out([(p.spec, p.role) for p in pieces if p.left])
        for piece in sorted(pieces, key=lambda piece: roles.index(piece.role)):
            if not piece.left or piece.spec in collected.failed:
                continue
            tenths = max(1, round(piece.seconds * 10)) / piece.left

            def on_units(count: int, note: str = str(piece.spec), each: float = tenths) -> None:
                bar.advance(note, max(1, round(count * each)))

            try:
                collect(self.store, piece.spec, piece.role, self.model(piece.role), on_units)
            except AnchorwatchError as error:
                collected.failed[piece.spec] = f"{piece.spec} could not be made: {error}"
        collected.specs |= specs
        for claim in self.claims:
            for spec in claim.needs:
                if spec in collected.failed:
                    collected.lacking[claim.id] = collected.failed[spec]

    def manifest(self, plan: Plan) -> dict[str, Any]:
        """The manifest."""
        models = self.store.available.models
        return {
            "claims": [claim.id for claim in self.claims],
            "models": dict(self.sources),
            "weights": {role: model.weights for role, model in models.items()},
            "settings": {role: model.settings for role, model in models.items()},
            "tokenizers": {role: model.tokenizer for role, model in models.items()},
            "devices": {role: model.device for role, model in models.items()},
            "families": {role: model.family for role, model in models.items()},
            "variants": self.table,
            "budget": self.store.budget.as_dict(),
            "decoding": self.store.budget.describe(),
            "versions": {
                "anchorwatch": __version__,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "python": platform.python_version(),
            },
            "machine": {
                "system": platform.system(),
                "processor": platform.machine(),
                "cores": os.cpu_count() or 1,
                "threads": torch.get_num_threads(),
            },
            "cards": list(self.store.available.cards),
            "arms": dict(self.store.available.arms or {}),
            "plan": plan.total_cost(),
        }
