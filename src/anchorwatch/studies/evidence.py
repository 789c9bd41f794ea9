"""Evidence of claims: what they ask for, what is handed to them, and where it is kept on disk.

An `EvidenceSpec` is a frozen value: runs, effects, answers, training seeds, cards, or the table of
an experiment. It names models by their role and no amounts; the budget has these. Claims with equal
specs share one piece of evidence, made once and kept under the spec's digest.

An `EvidenceStore` keeps it: a folder for each spec and model, a file for each unit. What decides a
piece of evidence is in the name of its folder: the spec, the model (weights, settings, tokenizer,
device), the decoding, our version, torch's and transformers'. A unit is whole or not there, so that
a study that was killed resumes, and one with a larger budget reuses what a smaller one made.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from anchorwatch import __version__
from anchorwatch.edits.spec import Edit
from anchorwatch.errors import AnchorwatchWarning, EvidenceError, SpecError, TraceError
from anchorwatch.evaluation.results import Results, build_results
from anchorwatch.generation.decoding import Decoding, LeftToRight
from anchorwatch.models.zoo.cards import read as read_card
from anchorwatch.probes.spec import DEFAULT, Probe, commit_regions, massive, region_flow
from anchorwatch.studies.budget import Budget
from anchorwatch.studies.prompts import SETS, TEXT, WITHOUT_REGIONS
from anchorwatch.studies.protocols import DEFAULT_PROTOCOL, Protocol, describe_decoding
from anchorwatch.trace.atomic_io import find_damage, read_sealed, replace_file, seal
from anchorwatch.trace.trace import Trace, read

if TYPE_CHECKING:
    from anchorwatch.models.model import Model

ROLES: Mapping[str, tuple[str, str]] = {
    "mdm": ("a masked diffusion model", "--model"),
    "arm": ("an autoregressive model", "--against"),
    "sink": ("a masked diffusion model with a sink token", "--sink"),
    "gate": ("a masked diffusion model with gates", "--gate"),
}
"""What a study is given, in words, and the option that names it."""
ROLE_KINDS = {"mdm": "mdm", "arm": "arm", "sink": "mdm", "gate": "mdm"}
ROLE_ADDITIONS = {"sink": "sink_token", "gate": "gate"}
PLAIN_PROBES: tuple[Probe, ...] = (*DEFAULT, massive())
REGION_PROBES: tuple[Probe, ...] = (*PLAIN_PROBES, region_flow(), commit_regions())
"""What watched runs measure: one set for all claims, so that they share runs."""


def refuse_other_model(role: str, model: Model, example: str) -> None:
    """Refuse a model that is not what its role says."""
    kind, parts = model.family.kind, tuple(part.as_dict()["name"] for part in model.parts)
    if kind != ROLE_KINDS[role] or (role in ROLE_ADDITIONS and ROLE_ADDITIONS[role] not in parts):
        says, option = ROLES[role]
        has = ", ".join(parts) or "no part"
        raise SpecError(
            f"{option} {model.source} is {kind} with {has}: {option} is {says}, such as {example}"
        )


@dataclass(frozen=True)
class ModelIdentity:
    """What is known of the model in a role before anything is run."""

    source: str
    kind: str
    weights: str
    parts: tuple[str, ...]
    layers: int
    heads: int
    positions: int
    settings: str
    """Digest of what decides answers besides weights and vocabulary: rotary base, epsilons, ids."""
    tokenizer: str | None
    """Digest of its whole definition."""
    device: str
    identity: str = ""
    """Digest of all that decides what it computes: family, shift, mask id, parts, dtype too."""
    family: str = ""
    """Name of its family, which a claim's scope is compared with; empty where it is not known."""
    normalises_keys: bool = False
    """Whether queries and keys are normalised before they meet (QK-norm)."""


@dataclass(frozen=True)
class Available:
    """What a study has: models by role, and the columns and seeds of each arm of the variants."""

    models: Mapping[str, ModelIdentity]
    columns: tuple[str, ...] = ()
    arms: Mapping[str, int] | None = None
    """How many seeds each arm has; None where there is no table."""
    cards: tuple[str, ...] = ()
    """Roles whose model has a card."""
    positions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Of the table of variants by position: how many seeds each arm has, by kind of rows."""


@dataclass(frozen=True)
class Cost:
    """Forward passes of one role."""

    watched: int = 0
    """With probes; what a run keeps on disk goes with them."""
    plain: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.watched + other.watched, self.plain + other.plain)


@dataclass(frozen=True)
class EvidenceSpec:
    """What every need has."""

    kind: ClassVar[str] = ""

    @property
    def roles(self) -> tuple[str, ...]:
        """Models it is made with."""
        return ()

    def units(self, budget: Budget) -> int:
        """Pieces that are made and kept one after another, for each role."""
        return 1

    def lacks(self, available: Available) -> str:
        """What is missing, in words; empty where nothing is."""
        for role in self.roles:
            if role not in available.models:
                says, option = ROLES[role]
                return f"{says} ({option})"
        return ""

    def cost(self, budget: Budget, kind: str) -> Cost:
        """Of one role, whose model is of this kind."""
        return Cost()

    def as_dict(self) -> dict[str, Any]:
        """Plain values that decide what is made."""
        values = {item.name: _plain(getattr(self, item.name)) for item in fields(self)}
        return {"need": self.kind} | values

    @property
    def digest(self) -> str:
        spelled = json.dumps(self.as_dict(), sort_keys=True)
        return hashlib.sha256(spelled.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.kind} {' '.join(self.roles)}".strip()


@dataclass(frozen=True)
class Runs(EvidenceSpec):
    """Watched runs of one model over a set of prompts: gives `TraceSet`.

    `Runs("mdm")` answers questions: most of what it writes may be end tokens that fill its length.
    A claim about how attention moves while text is written asks for running text instead,
    `Runs("mdm", "text")`: held-out stories continued in blocks, without end tokens where masks are
    filled. `measure.MDM_TEXT`, `ARM_TEXT` and `SINK_TEXT` are these; `measure.end_share` says how
    much of what was written are end tokens all the same, and with `preconditions.writes_text` a
    claim about text is not testable where most are.
    """

    kind: ClassVar[str] = "runs"

    role: str
    prompts: str = "asked"
    decoding: Decoding | None = None
    """None: the budget's way, which for `text` is in blocks. What a protocol says wins, but for the
    order of a decoding that is not LowConfidence: a claim that names one is about it."""
    edits: tuple[Edit, ...] = ()
    probes: tuple[Probe, ...] | None = None
    """None: REGION_PROBES where the prompts have regions, else PLAIN_PROBES."""

    def __post_init__(self) -> None:
        _check_roles(self.roles, self.prompts)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    @property
    def measures(self) -> tuple[Probe, ...]:
        return (
            self.probes
            if self.probes is not None
            else PLAIN_PROBES
            if self._bare
            else REGION_PROBES
        )

    @property
    def _bare(self) -> bool:
        return self.prompts in WITHOUT_REGIONS

    def how(self, budget: Budget, kind: str) -> Decoding:
        return _decoding_of(self, budget, kind)

    def units(self, budget: Budget) -> int:
        return budget.protocol.count_prompts(self.prompts, budget.prompts)

    def cost(self, budget: Budget, kind: str) -> Cost:
        return Cost(watched=self.units(budget) * self.how(budget, kind).num_passes)

    def __str__(self) -> str:
        edits = "".join(f", {edit!r}" for edit in self.edits)
        return f"runs of {self.role}, {self.prompts}{_describe_decoding(self.decoding)}{edits}"


@dataclass(frozen=True)
class Effect(EvidenceSpec):
    """Every prompt clean, edited and under a control: gives `EffectTables`."""

    kind: ClassVar[str] = "effect"

    role: str
    edit: tuple[Edit, ...]
    control: tuple[Edit, ...] | str | None = "random"
    doses: tuple[int, ...] = ()
    prompts: str = "asked"
    decoding: Decoding | None = None

    def __post_init__(self) -> None:
        _check_roles(self.roles, self.prompts)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def how(self, budget: Budget, kind: str) -> Decoding:
        return _decoding_of(self, budget, kind)

    def units(self, budget: Budget) -> int:
        return budget.protocol.count_prompts(self.prompts, budget.prompts)

    def cost(self, budget: Budget, kind: str) -> Cost:
        own = getattr(self.edit[0], "k", None)
        sides = len({*self.doses, own}) if self.doses else 1
        arms = 1 + sides * (1 + (self.control is not None))
        passes = self.units(budget) * self.how(budget, kind).num_passes * arms
        return Cost(plain=2 * passes)  # each arm writes, then reads the clean frames

    def __str__(self) -> str:
        edits = ", ".join(map(repr, self.edit))
        doses = f", k = {', '.join(map(str, self.doses))}" if self.doses else ""
        where = f"{self.role}, {self.prompts}{_describe_decoding(self.decoding)}"
        return f"effect of {edits}{doses} on {where}"


@dataclass(frozen=True)
class Answers(EvidenceSpec):
    """Items of a task asked in several contexts, under several edits: gives `AnswerTable`."""

    kind: ClassVar[str] = "asked"

    asks: tuple[str, ...]
    """Roles."""
    contexts: tuple[str, ...]
    edits: tuple[tuple[str, tuple[Edit, ...]], ...] = (("none", ()),)
    """By name."""
    task: str = "synthetic/one-hop"
    template: str = "plain"
    steps: int | None = None
    """Of an answer, where masks are filled; None: two commits a step."""

    def __post_init__(self) -> None:
        _check_roles(self.roles)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.asks

    def units(self, budget: Budget) -> int:
        return budget.items * len(self.contexts) * len(self.edits)

    def how(self, budget: Budget, kind: str) -> Decoding:
        """How an answer is written.

        Under edits an autoregressive model keeps no cache: what it holds is not read again, so
        that an edit would reach one new row at a step, and every row of a masked model.
        """
        how = budget.answer_decoding(kind)
        if isinstance(how, LeftToRight) and any(edits for _, edits in self.edits):
            return replace(how, cache=False)
        if self.steps is not None and hasattr(how, "steps"):
            given: dict[str, Any] = {"steps": self.steps}
            return replace(how, **given)
        return how

    def cost(self, budget: Budget, kind: str) -> Cost:
        return Cost(plain=self.units(budget) * self.how(budget, kind).num_passes)

    def __str__(self) -> str:
        under = [name for name, _ in self.edits if name != "none"]
        more = f", under {', '.join(under)}" if under else ""
        return f"{self.task} asked of {', '.join(self.asks)} in {', '.join(self.contexts)}{more}"


@dataclass(frozen=True)
class Seeds(EvidenceSpec):
    """The table of training runs, a row for each arm and seed: gives a DataFrame."""

    kind: ClassVar[str] = "seeds"

    columns: tuple[str, ...]
    arms: tuple[str, ...] = ("vanilla", "sink")

    def lacks(self, available: Available) -> str:
        if available.arms is None:
            return "the table of variants (`make variants`, or --variants)"
        if lost := [name for name in self.columns if name not in available.columns]:
            return f"a table of variants with the column {lost[0]}"
        if lost := [name for name in self.arms if not available.arms.get(name)]:
            return f"a table of variants with the arm {lost[0]}"
        return ""

    def __str__(self) -> str:
        return f"training seeds of {', '.join(self.arms)}: {', '.join(self.columns)}"


@dataclass(frozen=True)
class SeedsByPosition(Seeds):
    """The table of training runs that tells positions of a row apart: gives a DataFrame.

    `rows` is "whole", which begin with the start token, or "cropped", which begin anywhere.
    """

    kind: ClassVar[str] = "seeds by position"

    rows: str = "whole"

    def lacks(self, available: Available) -> str:
        seeds = available.positions.get(self.rows)
        if not seeds:
            return f"the package's table of variants by position with {self.rows} rows"
        if lost := [name for name in self.arms if not seeds.get(name)]:
            return f"a table of variants by position with the arm {lost[0]}, {self.rows} rows"
        return ""

    def __str__(self) -> str:
        return f"training seeds by position of {', '.join(self.arms)}, {self.rows} rows"


@dataclass(frozen=True)
class Cards(EvidenceSpec):
    """What was measured of models when they were made: gives a dict for each role."""

    kind: ClassVar[str] = "cards"

    of: tuple[str, ...]

    @property
    def roles(self) -> tuple[str, ...]:
        return self.of

    def lacks(self, available: Available) -> str:
        reason = super().lacks(available)
        bare = [role for role in self.of if role not in available.cards]
        return reason or (f"a card of {available.models[bare[0]].source}" if bare else "")


@dataclass(frozen=True)
class Experiment(EvidenceSpec):
    """A table that a named function makes of a model, unit by unit: gives a DataFrame.

    Functions register their name with the decorator `experiment`; each row says its `unit`.
    """

    kind: ClassVar[str] = "rows"

    role: str
    name: str
    passes: int
    """Forward passes of a unit, for the plan."""
    options: tuple[tuple[str, float | str], ...] = ()

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def units(self, budget: Budget) -> int:
        return budget.rows

    def cost(self, budget: Budget, kind: str) -> Cost:
        return Cost(plain=budget.rows * self.passes)

    def __str__(self) -> str:
        return f"{self.name} of {self.role}"


ExperimentFunction = Callable[..., Iterable[Mapping[str, Any]]]
"""Takes a model, the number of a unit and the options, and, where it reads texts or questions, the
protocol; gives rows of plain values."""
EXPERIMENTS: dict[str, ExperimentFunction] = {}
"""Functions that make the tables of `Experiment`, by name; `papers/*/experiments.py` has them."""
READS: dict[str, tuple[str, ...]] = {}
"""Sets of prompts or questions that an experiment reads, by its name."""


def experiment(
    name: str, *, reads: tuple[str, ...] = ()
) -> Callable[[ExperimentFunction], ExperimentFunction]:
    """A decorator: the function makes the rows of `Experiment(role, name, ...)`.

    It is called once for each unit; what it gives is kept. One that says what it `reads` (sets of
    `prompts.SETS` or `prompts.QUESTION_SETS`) is given the protocol as a fourth argument, whose
    `prompt_of` and `item_of` have the user's own texts and questions, if there are any.
    """

    def register(function: ExperimentFunction) -> ExperimentFunction:
        EXPERIMENTS[name], READS[name] = function, reads
        return function

    return register


def _check_roles(roles: Sequence[str], prompts: str | None = None) -> None:
    """Refuse a role or a set that nobody can give."""
    if lost := [role for role in roles if role not in ROLES]:
        raise SpecError(f"no role is called {lost[0]!r}: expected one of {', '.join(ROLES)}")
    if prompts is not None and prompts not in SETS:
        raise SpecError(f"no set of prompts is called {prompts!r}: expected {', '.join(SETS)}")


def _decoding_of(spec: Runs | Effect, budget: Budget, kind: str) -> Decoding:
    """How a run writes: the spec's way, else that of its set of prompts; a protocol wins."""
    if spec.decoding is not None:
        return budget.protocol.decoding_for(kind, spec.decoding)
    return budget.text_decoding(kind) if spec.prompts == TEXT else budget.decoding(kind)


def _describe_decoding(decoding: Decoding | None) -> str:
    return "" if decoding is None else f", {describe_decoding(decoding)}"


def _plain(value: Any) -> Any:
    """Edits, probes and decodings by their fields; tuples as lists."""
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


class Evidence:
    """What was gathered, by need; made or read when it is first asked for, and kept.

    >>> Evidence.of({Seeds(("bound.all",)): 3})[Seeds(("bound.all",))]
    3
    """

    def __init__(
        self,
        make: Callable[[EvidenceSpec], Any],
        models: Mapping[str, ModelIdentity] | None = None,
        protocol: Protocol = DEFAULT_PROTOCOL,
    ) -> None:
        self._make = make
        self.protocol = protocol
        """Whose prompts and questions it was made with."""
        self._kept: dict[Hashable, Any] = {}
        self.models: Mapping[str, ModelIdentity] = dict(models or {})
        """What it was made with, by role; empty where that is not known."""

    @classmethod
    def of(
        cls, pieces: Mapping[EvidenceSpec, Any], models: Mapping[str, ModelIdentity] | None = None
    ) -> Evidence:
        """Evidence that is there already: planted, or read."""
        return cls(lambda spec: pieces[spec], models)

    def __getitem__(self, spec: EvidenceSpec) -> Any:
        return self.once(spec, lambda: self._make(spec))

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` gives, made once for all claims that ask under this key."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]


@dataclass(frozen=True, eq=False)
class TraceSet:
    """Runs of a set of prompts."""

    traces: Sequence[Trace]
    indices: Sequence[int]
    """Which prompt of the set each trace is of."""
    count: int
    """Prompts that were asked for."""
    skipped: Mapping[int, str] = field(default_factory=dict)
    """Why a prompt could not be run, by its place."""

    @classmethod
    def from_traces(cls, traces: Sequence[Trace]) -> TraceSet:
        return cls(traces, range(len(traces)), len(traces))


@dataclass(frozen=True, eq=False)
class EffectTables:
    """An effect, prompt by prompt."""

    table: pd.DataFrame
    """A row for each place, k and outcome, as in `aw.effect(...).doses`; k is -1 without doses."""
    layers: pd.DataFrame
    """A row for each place and layer, as in `aw.effect(...).layers`."""
    count: int
    skipped: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AnswerTable:
    """An evaluation; its rows have a column `role`."""

    results: Results


def skipped_units(piece: Any) -> Mapping[Any, str]:
    """Why units of a need's evidence could not be run, by unit; empty where all could."""
    if isinstance(piece, TraceSet | EffectTables):
        return piece.skipped
    if isinstance(piece, AnswerTable):
        lost = piece.results.rows[piece.results.rows["unfit"] != ""]
        return dict(zip(lost["item"], lost["unfit"], strict=True))
    return dict(piece.attrs.get("unfit", {})) if isinstance(piece, pd.DataFrame) else {}


ANSWER_FILE = "rows.json"


@dataclass(frozen=True, eq=False)
class EvidenceStore:
    """The evidence of one study: what it is made with, and where it lies."""

    folder: Path
    budget: Budget
    available: Available
    variants: pd.DataFrame | None = None
    card_folders: Mapping[str, Path] | None = None
    positions: pd.DataFrame | None = None
    """The table of variants by position."""

    def unit_folder(self, spec: EvidenceSpec, role: str) -> Path:
        """The folder of a need's units of one model."""
        model = self.available.models[role]
        deciding: dict[str, Any] = {"need": spec.as_dict()}
        deciding |= {
            name: getattr(model, name)
            for name in ("weights", "settings", "tokenizer", "device", "identity")
        }
        others = {name: _version_of(name) for name in ("torch", "transformers")}
        deciding["versions"] = {"anchorwatch": __version__} | others
        protocol = self.budget.protocol
        if isinstance(spec, Runs | Effect):
            deciding["decoding"] = spec.how(self.budget, model.kind).as_dict()
            deciding |= protocol.prompts_key(spec.prompts)
        if isinstance(spec, Answers):
            deciding["items"] = self.budget.items
            deciding["decoding"] = spec.how(self.budget, model.kind).as_dict()
            deciding |= protocol.answers_key(spec.task, spec.contexts)
        if isinstance(spec, Experiment):
            deciding |= protocol.material_key(READS.get(spec.name, ()))
        spelled = json.dumps(deciding, sort_keys=True)
        return self.folder / spec.kind / hashlib.sha256(spelled.encode()).hexdigest()[:16]

    def unit_path(self, spec: EvidenceSpec, role: str, index: int) -> Path:
        """The file, or for runs the trace, of a unit that was made."""
        folder = self.unit_folder(spec, role)
        return folder / (f"{index:05}.trace" if isinstance(spec, Runs) else f"{index:05}.json")

    def missing_units(self, spec: EvidenceSpec, role: str) -> list[int]:
        """Units that are not made yet."""
        if isinstance(spec, Seeds | Cards):
            return []
        if isinstance(spec, Answers):
            whole = (self.unit_folder(spec, role) / ANSWER_FILE).exists()
            return [] if whole else list(range(spec.units(self.budget)))
        every = range(spec.units(self.budget))
        return [index for index in every if not self._exists(spec, role, index)]

    def _exists(self, spec: EvidenceSpec, role: str, index: int) -> bool:
        path = self.unit_path(spec, role, index)
        return path.exists() or path.with_suffix(".unfit").exists()

    def mend(self, spec: EvidenceSpec, role: str) -> None:
        """Set damaged units aside, so that they are made again; each is warned of."""
        for path in self._existing_paths(spec, role):
            if problem := _describe_damage(path):
                aside = path.with_name(f"{path.name}.damaged-{uuid.uuid4().hex[:8]}")
                path.rename(aside)
                warnings.warn(
                    f"{path} is damaged ({problem}): it is now {aside.name}, and is made again",
                    AnchorwatchWarning,
                    stacklevel=2,
                )

    def _existing_paths(self, spec: EvidenceSpec, role: str) -> Iterator[Path]:
        """Every unit that was made, or could not be."""
        if isinstance(spec, Seeds | Cards):
            return
        if isinstance(spec, Answers):
            paths = [self.unit_folder(spec, role) / ANSWER_FILE]
        else:
            units = [self.unit_path(spec, role, index) for index in range(spec.units(self.budget))]
            paths = [file for path in units for file in (path, path.with_suffix(".unfit"))]
        yield from (path for path in paths if path.exists())

    def keep(self, path: Path, record: Mapping[str, Any]) -> None:
        """Write a sealed file, whole or not at all; NaN is kept as null."""
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, seal(to_json_value(record)))

    def read_record(self, path: Path) -> dict[str, Any]:
        """What was kept; damage is named."""
        try:
            return read_sealed(path)
        except (OSError, ValueError) as error:
            raise TraceError(f"{path} is damaged ({error}): remove it, and run again") from None

    def load(self, spec: EvidenceSpec) -> Any:
        """The evidence of a need, whose units are all made."""
        if isinstance(spec, Runs):
            return self._load_runs(spec)
        if isinstance(spec, Effect):
            return self._load_effects(spec)
        if isinstance(spec, Answers):
            return self._load_answers(spec)
        if isinstance(spec, Experiment):
            places, unfit = self._made_and_skipped(spec)
            table = _table(
                [row for index in places for row in self._record(spec, spec.role, index)["rows"]]
            )
            table.attrs["unfit"] = unfit
            return table
        if isinstance(spec, Cards):
            assert self.card_folders is not None
            return {role: read_card(self.card_folders[role]) for role in spec.of}
        if isinstance(spec, SeedsByPosition):
            assert self.positions is not None
            chosen = (self.positions["rows"] == spec.rows) & self.positions["arm"].isin(spec.arms)
            return self.positions[chosen]
        assert isinstance(spec, Seeds)
        assert self.variants is not None
        return self.variants[self.variants["arm"].isin(spec.arms)]

    def _record(self, spec: EvidenceSpec, role: str, index: int) -> dict[str, Any]:
        return self.read_record(self.unit_path(spec, role, index))

    def _made_and_skipped(
        self, spec: Runs | Effect | Experiment
    ) -> tuple[list[int], dict[int, str]]:
        """Units that were made, and why the others were not; one at least must have been."""
        every, unfit = range(spec.units(self.budget)), {}
        for index in every:
            path = self.unit_path(spec, spec.role, index).with_suffix(".unfit")
            if path.exists():
                unfit[index] = str(self.read_record(path)["unfit"])
        if len(unfit) == len(every):
            raise EvidenceError(
                f"prompts that fit the model: none of {len(every)} does for {spec} ({unfit[0]})"
            )
        return [index for index in every if index not in unfit], unfit

    def _load_runs(self, spec: Runs) -> TraceSet:
        places, unfit = self._made_and_skipped(spec)
        traces = [_read_trace(self.unit_path(spec, spec.role, index)) for index in places]
        return TraceSet(traces, places, spec.units(self.budget), unfit)

    def _load_effects(self, spec: Effect) -> EffectTables:
        places, unfit = self._made_and_skipped(spec)
        parts: dict[str, list[pd.DataFrame]] = {"table": [], "layers": []}
        for index in places:
            record = self._record(spec, spec.role, index)
            for name, frames in parts.items():
                frames.append(_table(record[name]).assign(place=index))
        tables = {name: pd.concat(frames, ignore_index=True) for name, frames in parts.items()}
        return EffectTables(tables["table"], tables["layers"], spec.units(self.budget), unfit)

    def _load_answers(self, spec: Answers) -> AnswerTable:
        rows: list[dict[str, Any]] = []
        manifests: dict[str, Any] = {}
        for role in spec.roles:
            record = self.read_record(self.unit_folder(spec, role) / ANSWER_FILE)
            rows += [row | {"role": role} for row in record["rows"]]
            manifests |= record["manifests"]
        return AnswerTable(build_results(_numbers(rows), manifests, {}))


def _read_trace(path: Path) -> Trace:
    """A trace of ours: it need not be copied again where it can be made again."""
    try:
        return read(path)
    except TraceError as error:
        raise TraceError(f"{error}; or remove {path}, and run again") from None


def _describe_damage(path: Path) -> str:
    """What is wrong with a unit; empty where nothing is."""
    if path.suffix == ".trace":
        return "".join(find_damage(path)[:1])
    try:
        read_sealed(path)
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _numbers(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Null is NaN again."""
    return [{k: math.nan if v is None else v for k, v in row.items()} for row in rows]


def _table(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(_numbers(rows))


def to_json_value(value: Any) -> Any:
    """Plain values all through a record; NaN and the infinite, which JSON has not, are null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): to_json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    return value.item() if hasattr(value, "item") else value


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
