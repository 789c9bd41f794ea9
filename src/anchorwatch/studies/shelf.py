"""Where evidence is kept: a folder for each need and model, a file for each unit. No torch here.

What decides a piece of evidence is in the name of its folder: the need, the model (weights,
settings, tokenizer, device), the decoding, our version, torch's and transformers'. A unit is whole
or not there, so that a study that was killed goes on, and one with a larger budget finds what a
smaller one made.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd

from anchorwatch import __version__
from anchorwatch.errors import AnchorwatchWarning, EvidenceError, TraceError
from anchorwatch.evaluation.results import build_results
from anchorwatch.models.zoo.cards import read as read_card
from anchorwatch.studies.budget import Budget
from anchorwatch.studies.evidence import Answered, Compared, Traced
from anchorwatch.studies.needs import Asked, Available, Cards, Effect, Need, Rows, Runs, Seeds
from anchorwatch.trace.atomic_io import damage, read_sealed, replace_file, seal
from anchorwatch.trace.trace import Trace, read

ROWS = "rows.json"


@dataclass(frozen=True, eq=False)
class EvidenceStore:
    """The evidence of one study: what it is made with, and where it lies."""

    folder: Path
    budget: Budget
    hand: Available
    variants: pd.DataFrame | None = None
    card_folders: Mapping[str, Path] | None = None

    def place(self, need: Need, role: str) -> Path:
        """The folder of a need's units of one model."""
        held = self.hand.models[role]
        deciding: dict[str, Any] = {"need": need.as_dict()}
        deciding |= {
            name: getattr(held, name)
            for name in ("weights", "settings", "tokenizer", "device", "identity")
        }
        others = {name: _version_of(name) for name in ("torch", "transformers")}
        deciding["versions"] = {"anchorwatch": __version__} | others
        if isinstance(need, Runs | Effect):
            deciding["decoding"] = need.how(self.budget, held.kind).as_dict()
        if isinstance(need, Asked):
            deciding["items"] = self.budget.items
            deciding["decoding"] = need.how(self.budget, held.kind).as_dict()
        spelled = json.dumps(deciding, sort_keys=True)
        return self.folder / need.kind / hashlib.sha256(spelled.encode()).hexdigest()[:16]

    def unit(self, need: Need, role: str, index: int) -> Path:
        """The file, or for runs the trace, of a unit that was made."""
        folder = self.place(need, role)
        return folder / (f"{index:05}.trace" if isinstance(need, Runs) else f"{index:05}.json")

    def left(self, need: Need, role: str) -> list[int]:
        """Units that are not made yet."""
        if isinstance(need, Seeds | Cards):
            return []
        if isinstance(need, Asked):
            whole = (self.place(need, role) / ROWS).exists()
            return [] if whole else list(range(need.units(self.budget)))
        every = range(need.units(self.budget))
        return [at for at in every if not self._there(need, role, at)]

    def _there(self, need: Need, role: str, index: int) -> bool:
        path = self.unit(need, role, index)
        return path.exists() or path.with_suffix(".unfit").exists()

    def mend(self, need: Need, role: str) -> None:
        """Set damaged units aside, so that they are made again; each is warned of."""
        for path in self._kept(need, role):
            if said := _describe_damage(path):
                aside = path.with_name(f"{path.name}.damaged-{uuid.uuid4().hex[:8]}")
                path.rename(aside)
                warnings.warn(
                    f"{path} is damaged ({said}): it is now {aside.name}, and is made again",
                    AnchorwatchWarning,
                    stacklevel=2,
                )

    def _kept(self, need: Need, role: str) -> Iterator[Path]:
        """Every unit that was made, or could not be."""
        if isinstance(need, Seeds | Cards):
            return
        if isinstance(need, Asked):
            paths = [self.place(need, role) / ROWS]
        else:
            units = [self.unit(need, role, at) for at in range(need.units(self.budget))]
            paths = [one for path in units for one in (path, path.with_suffix(".unfit"))]
        yield from (path for path in paths if path.exists())

    def keep(self, path: Path, record: Mapping[str, Any]) -> None:
        """Write a sealed file, whole or not at all; NaN is kept as null."""
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, seal(_absent(record)))

    def opened(self, path: Path) -> dict[str, Any]:
        """What was kept; damage is named."""
        try:
            return read_sealed(path)
        except (OSError, ValueError) as error:
            raise TraceError(f"{path} is damaged ({error}): remove it, and run again") from None

    def load(self, need: Need) -> Any:
        """The evidence of a need, whose units are all made."""
        if isinstance(need, Runs):
            return self._traced(need)
        if isinstance(need, Effect):
            return self._compared(need)
        if isinstance(need, Asked):
            return self._answered(need)
        if isinstance(need, Rows):
            places, unfit = self._fit(need)
            table = _table(
                [row for at in places for row in self._record(need, need.role, at)["rows"]]
            )
            table.attrs["unfit"] = unfit
            return table
        if isinstance(need, Cards):
            assert self.card_folders is not None
            return {role: read_card(self.card_folders[role]) for role in need.of}
        assert isinstance(need, Seeds)
        assert self.variants is not None
        return self.variants[self.variants["arm"].isin(need.arms)]

    def _record(self, need: Need, role: str, index: int) -> dict[str, Any]:
        return self.opened(self.unit(need, role, index))

    def _fit(self, need: Runs | Effect | Rows) -> tuple[list[int], dict[int, str]]:
        """Units that were made, and why the others were not; one at least must have been."""
        every, unfit = range(need.units(self.budget)), {}
        for at in every:
            path = self.unit(need, need.role, at).with_suffix(".unfit")
            if path.exists():
                unfit[at] = str(self.opened(path)["unfit"])
        if len(unfit) == len(every):
            raise EvidenceError(
                f"prompts that fit the model: none of {len(every)} does for {need} ({unfit[0]})"
            )
        return [at for at in every if at not in unfit], unfit

    def _traced(self, need: Runs) -> Traced:
        places, unfit = self._fit(need)
        traces = [_run(self.unit(need, need.role, at)) for at in places]
        return Traced(traces, places, self.budget.prompts, unfit)

    def _compared(self, need: Effect) -> Compared:
        places, unfit = self._fit(need)
        parts: dict[str, list[pd.DataFrame]] = {"table": [], "layers": []}
        for at in places:
            record = self._record(need, need.role, at)
            for name, held in parts.items():
                held.append(_table(record[name]).assign(place=at))
        tables = {name: pd.concat(held, ignore_index=True) for name, held in parts.items()}
        return Compared(tables["table"], tables["layers"], self.budget.prompts, unfit)

    def _answered(self, need: Asked) -> Answered:
        rows: list[dict[str, Any]] = []
        manifests: dict[str, Any] = {}
        for role in need.roles:
            record = self.opened(self.place(need, role) / ROWS)
            rows += [row | {"role": role} for row in record["rows"]]
            manifests |= record["manifests"]
        return Answered(build_results(_numbers(rows), manifests, {}))


def _run(path: Path) -> Trace:
    """A trace of ours: it need not be copied again where it can be made again."""
    try:
        return read(path)
    except TraceError as error:
        raise TraceError(f"{error}; or remove {path}, and run again") from None


def _describe_damage(path: Path) -> str:
    """What is wrong with a unit; empty where nothing is."""
    if path.suffix == ".trace":
        return "".join(damage(path)[:1])
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


def _absent(value: Any) -> Any:
    """NaN and the infinite as null, all through a record."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _absent(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_absent(one) for one in value]
    return value


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
