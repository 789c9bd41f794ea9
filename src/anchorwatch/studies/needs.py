"""Evidence as requests: what a claim needs, as frozen values that claims can share. No torch here.

A need says which models it takes by their role, and nothing of how much: the budget does. Two
claims with equal needs share one piece of evidence, made once and kept under the need's digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from anchorwatch.edits.spec import Edit
from anchorwatch.errors import SpecError
from anchorwatch.generation.decoding import Decoding, LeftToRight, LowConfidence
from anchorwatch.probes.spec import DEFAULT, Probe, commit_regions, massive, region_flow
from anchorwatch.studies.budget import Budget
from anchorwatch.studies.sets import SETS

ROLES: Mapping[str, tuple[str, str]] = {
    "mdm": ("a masked diffusion model", "--model"),
    "arm": ("an autoregressive model", "--against"),
    "sink": ("a masked diffusion model with a sink token", "--sink"),
    "gate": ("a masked diffusion model with gates", "--gate"),
}
"""What a study is given, in words, and the option that names it."""
KINDS = {"mdm": "mdm", "arm": "arm", "sink": "mdm", "gate": "mdm"}
PARTS = {"sink": "sink_token", "gate": "gate"}
PLAIN: tuple[Probe, ...] = (*DEFAULT, massive())
REGIONAL: tuple[Probe, ...] = (*PLAIN, region_flow(), commit_regions())
"""What watched runs measure: one set for all claims, so that they share runs."""


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


@dataclass(frozen=True)
class Available:
    """What a study has: models by role, and the columns and seeds of each arm of the variants."""

    models: Mapping[str, ModelIdentity]
    columns: tuple[str, ...] = ()
    arms: Mapping[str, int] | None = None
    """How many seeds each arm has; None where there is no table."""
    cards: tuple[str, ...] = ()
    """Roles whose model has a card."""


@dataclass(frozen=True)
class Cost:
    """Forward passes of one role."""

    watched: int = 0
    """With probes; what a run keeps on disk goes with them."""
    plain: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.watched + other.watched, self.plain + other.plain)


@dataclass(frozen=True)
class Need:
    """What every need has."""

    kind: ClassVar[str] = ""

    @property
    def roles(self) -> tuple[str, ...]:
        """Models it is made with."""
        return ()

    def units(self, budget: Budget) -> int:
        """Pieces that are made and kept one after another, for each role."""
        return 1

    def lacks(self, hand: Available) -> str:
        """What is missing, in words; empty where nothing is."""
        for role in self.roles:
            if role not in hand.models:
                says, option = ROLES[role]
                return f"{says} ({option})"
        return ""

    def cost(self, budget: Budget, kind: str) -> Cost:
        """Of one role, whose model is of this kind."""
        return Cost()

    def as_dict(self) -> dict[str, Any]:
        """Plain values that decide what is made."""
        held = {one.name: _plain(getattr(self, one.name)) for one in fields(self)}
        return {"need": self.kind} | held

    @property
    def digest(self) -> str:
        spelled = json.dumps(self.as_dict(), sort_keys=True)
        return hashlib.sha256(spelled.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.kind} {' '.join(self.roles)}".strip()


@dataclass(frozen=True)
class Runs(Need):
    """Watched runs of one model over a set of prompts: gives `Traced`."""

    kind: ClassVar[str] = "runs"

    role: str
    prompts: str = "asked"
    decoding: Decoding | None = None
    """None: the budget's length and steps."""
    edits: tuple[Edit, ...] = ()
    probes: tuple[Probe, ...] | None = None
    """None: REGIONAL where the prompts have regions, else PLAIN."""

    def __post_init__(self) -> None:
        _check_roles(self.roles, self.prompts)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    @property
    def measures(self) -> tuple[Probe, ...]:
        return self.probes if self.probes is not None else PLAIN if self._bare else REGIONAL

    @property
    def _bare(self) -> bool:
        return self.prompts == "told"

    def how(self, budget: Budget, kind: str) -> Decoding:
        return self.decoding or budget.decoding(kind)

    def units(self, budget: Budget) -> int:
        return budget.prompts

    def cost(self, budget: Budget, kind: str) -> Cost:
        return Cost(watched=budget.prompts * self.how(budget, kind).num_passes)

    def __str__(self) -> str:
        edits = "".join(f", {edit!r}" for edit in self.edits)
        return f"runs of {self.role}, {self.prompts}{_describe_decoding(self.decoding)}{edits}"


@dataclass(frozen=True)
class Effect(Need):
    """Every prompt clean, edited and under a control: gives `Compared`."""

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
        return self.decoding or budget.decoding(kind)

    def units(self, budget: Budget) -> int:
        return budget.prompts

    def cost(self, budget: Budget, kind: str) -> Cost:
        own = getattr(self.edit[0], "k", None)
        sides = len({*self.doses, own}) if self.doses else 1
        arms = 1 + sides * (1 + (self.control is not None))
        passes = budget.prompts * self.how(budget, kind).num_passes * arms
        return Cost(plain=2 * passes)  # each arm writes, then reads the clean frames

    def __str__(self) -> str:
        edits = ", ".join(map(repr, self.edit))
        doses = f", k = {', '.join(map(str, self.doses))}" if self.doses else ""
        where = f"{self.role}, {self.prompts}{_describe_decoding(self.decoding)}"
        return f"effect of {edits}{doses} on {where}"


@dataclass(frozen=True)
class Asked(Need):
    """Items of a task asked in several contexts, under several edits: gives `Answered`."""

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
        how = budget.asked(kind)
        if isinstance(how, LeftToRight) and any(edits for _, edits in self.edits):
            return replace(how, cache=False)
        if isinstance(how, LowConfidence) and self.steps is not None:
            return replace(how, steps=self.steps)
        return how

    def cost(self, budget: Budget, kind: str) -> Cost:
        return Cost(plain=self.units(budget) * self.how(budget, kind).num_passes)

    def __str__(self) -> str:
        under = [name for name, _ in self.edits if name != "none"]
        more = f", under {', '.join(under)}" if under else ""
        return f"{self.task} asked of {', '.join(self.asks)} in {', '.join(self.contexts)}{more}"


@dataclass(frozen=True)
class Seeds(Need):
    """The table of training runs, a row for each arm and seed: gives a DataFrame."""

    kind: ClassVar[str] = "seeds"

    columns: tuple[str, ...]
    arms: tuple[str, ...] = ("vanilla", "sink")

    def lacks(self, hand: Available) -> str:
        if hand.arms is None:
            return "the table of variants (`make variants`, or --variants)"
        if lost := [name for name in self.columns if name not in hand.columns]:
            return f"a table of variants with the column {lost[0]}"
        if lost := [name for name in self.arms if not hand.arms.get(name)]:
            return f"a table of variants with the arm {lost[0]}"
        return ""

    def __str__(self) -> str:
        return f"training seeds of {', '.join(self.arms)}: {', '.join(self.columns)}"


@dataclass(frozen=True)
class Cards(Need):
    """What was measured of models when they were made: gives a dict for each role."""

    kind: ClassVar[str] = "cards"

    of: tuple[str, ...]

    @property
    def roles(self) -> tuple[str, ...]:
        return self.of

    def lacks(self, hand: Available) -> str:
        said = super().lacks(hand)
        bare = [role for role in self.of if role not in hand.cards]
        return said or (f"a card of {hand.models[bare[0]].source}" if bare else "")


@dataclass(frozen=True)
class Rows(Need):
    """A table that a named function makes of a model, unit by unit: gives a DataFrame.

    `anchorwatch.studies.experiments` has the functions; each row says its `unit`.
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


def _check_roles(roles: Sequence[str], prompts: str | None = None) -> None:
    """Refuse a role or a set that nobody can give."""
    if lost := [role for role in roles if role not in ROLES]:
        raise SpecError(f"no role is called {lost[0]!r}: expected one of {', '.join(ROLES)}")
    if prompts is not None and prompts not in SETS:
        raise SpecError(f"no set of prompts is called {prompts!r}: expected {', '.join(SETS)}")


def _describe_decoding(decoding: Decoding | None) -> str:
    return "" if decoding is None else f", {decoding}"


def _plain(value: Any) -> Any:
    """Edits, probes and decodings by their fields; tuples as lists."""
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value
