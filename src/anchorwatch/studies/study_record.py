"""What a study found, as a value and as files: claims.json, claims.csv, report.md, report.html."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from anchorwatch import __version__
from anchorwatch.errors import SpecError
from anchorwatch.metrics.table_files import as_csv
from anchorwatch.studies.claim import ORIGINS, PAPER
from anchorwatch.studies.evidence import Evidence, to_json_value
from anchorwatch.studies.plan_study import Plan
from anchorwatch.studies.verdict import ALPHA, NOT_TESTABLE, VERDICTS, JudgedClaim
from anchorwatch.trace.atomic_io import replace_file
from anchorwatch.trace.cells import STUDY_RUNS
from anchorwatch.trace.runs import CLAIMS

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

VERSION = 3
"""Of claims.json."""
OLDEST_VERSION = 2
"""That can still be read: see `read_record`."""
DECIDING = (
    *("claims", "models", "weights", "settings", "tokenizers", "devices", "variants"),
    *("budget", "versions"),
)
"""What of a manifest decides the numbers; claims do, as those of a paper share an error rate."""
COLUMNS = (
    *("id", "origin", "verdict", "sentence", "criterion", "statistic", "unit", "n", "missing"),
    *("effect", "low", "high", "level", "direction", "margin", "null", "control"),
    *("p", "p_holm", "detectable", "why", "lacking", "not_about", "reported", "source", "defect"),
    *("caveat",),
)


@dataclass(frozen=True, eq=False, repr=False)
class Study:
    """What a study found. `study.claims` is the table, `study.findings` all of it."""

    findings: tuple[JudgedClaim, ...]
    about: Mapping[str, Any]
    """The manifest: models, budget, versions, plan."""
    plan: Plan
    evidence: Evidence = field(repr=False)
    runs: pd.DataFrame | None = field(default=None, repr=False)
    """The traces that claims were judged on; None where they are not in the study's folder."""

    @property
    def claims(self) -> pd.DataFrame:
        """A row for each claim, with the criterion that binds."""
        rows = []
        for judged in self.findings:
            record = judged.as_dict() | {"criterion": ""}
            if (binding := judged.binding_criterion) is not None:
                record |= judged.criterion_row(binding)
            rows.append({name: record.get(name, math.nan) for name in COLUMNS})
        whole = {"n": "Int64", "missing": "Int64"}
        return pd.DataFrame(rows, columns=list(COLUMNS)).astype(whole)

    @property
    def criteria(self) -> pd.DataFrame:
        """A row for each criterion of each claim that was measured, deciding or not."""
        rows = []
        for judged in self.findings:
            record = judged.as_dict()
            claim = {name: record[name] for name in ("id", "origin", "verdict")}
            rows += [claim | row for row in record.get("criteria", ())]
        columns = ["id", "origin", "verdict", *dict.fromkeys(n for row in rows for n in row)]
        return pd.DataFrame(rows, columns=list(dict.fromkeys(columns)))

    def __getitem__(self, name: str) -> JudgedClaim:
        """One claim, by its id."""
        for judged in self.findings:
            if judged.claim.id == name:
                return judged
        raise SpecError(f"this study has no claim {name!r}: it has {self.findings[0].claim.id} ...")

    def count_runs(self, claim: str) -> int:
        """How many traces a claim was judged on."""
        if self.runs is None:
            return 0
        return sum(claim in names.split() for names in self.runs[CLAIMS])

    def counts(self, origin: str | None = None, paper: str | None = None) -> dict[str, int]:
        """How many claims came to each verdict; of one origin or paper where it is named."""
        verdicts = [
            judged.says
            for judged in self.findings
            if origin in (None, judged.claim.origin) and paper in (None, judged.claim.study)
        ]
        return {verdict: verdicts.count(verdict) for verdict in VERDICTS}

    def draw(self, name: str) -> Figure | None:
        """The figure of a claim that was run, where it has one."""
        judged = self[name]
        if judged.verdict is None or judged.claim.draw is None:
            return None
        return judged.claim.draw(self.evidence)

    @property
    def digest(self) -> str:
        """Short, of what decides the numbers: two studies that share it found the same."""
        deciding = to_json_value({name: self.about.get(name) for name in DECIDING})
        spelled = json.dumps(deciding, sort_keys=True)
        return hashlib.sha256(spelled.encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """What claims.json holds."""
        return {
            "anchorwatch": __version__,
            "version": VERSION,
            "digest": self.digest,
            "alpha": ALPHA,
            "about": to_json_value(dict(self.about)),
            "counts": self.counts(),
            "counts_by_origin": {origin: self.counts(origin) for origin in ORIGINS},
            "claims": [judged.as_dict() for judged in self.findings],
        }

    def save(self, out: str | Path) -> Path:
        """Write claims.json, claims.csv, criteria.csv, runs.csv, report.md and .html, figures/."""
        from anchorwatch.studies.report.page import write
        from anchorwatch.studies.report.text import markdown_page

        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "claims.json", (json.dumps(self.as_dict(), indent=1) + "\n").encode())
        replace_file(folder / "claims.csv", as_csv(self.claims).encode())
        replace_file(folder / "criteria.csv", as_csv(self.criteria).encode())
        if self.runs is not None:
            replace_file(folder / STUDY_RUNS, as_csv(self.runs).encode())
        replace_file(folder / "report.md", markdown_page(self).encode())
        write(self, folder)
        return folder

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts().items() if count)
        return f"Study({counts})"


def read_record(path: str | Path) -> dict[str, Any]:
    """claims.json of a study as a record of this version; older ones are brought up to it.

    A record of version 2 knows no origins, scopes, preconditions and changes: its claims count as
    the paper's own, as they did then, and "lacking" is now "not testable".
    """
    path = Path(path)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise SpecError(f"there is no {path}") from None
    except ValueError as error:
        raise SpecError(f"{path} is no JSON ({error})") from None
    version = record.get("version") if isinstance(record, dict) else None
    if version not in range(OLDEST_VERSION, VERSION + 1):
        raise SpecError(f"{path} is not of version {OLDEST_VERSION} to {VERSION}")
    return record if version == VERSION else _upgrade_record(record)


def _upgrade_record(record: Mapping[str, Any]) -> dict[str, Any]:
    absent: dict[str, Any] = {"origin": PAPER, "scope": [], "not_about": "", "contradiction": ""}
    absent |= {"preconditions": [], "changes": []}
    claims = []
    for claim in record["claims"]:
        verdict = NOT_TESTABLE if claim["verdict"] == "lacking" else claim["verdict"]
        criteria = [{"decides": True} | row for row in claim.get("criteria", ())]
        with_criteria = {"criteria": criteria} if "criteria" in claim else {}
        claims.append(absent | claim | {"verdict": verdict} | with_criteria)
    verdicts = [claim["verdict"] for claim in claims]
    counts = {verdict: verdicts.count(verdict) for verdict in VERDICTS}
    by_origin = {
        origin: counts if origin == PAPER else dict.fromkeys(counts, 0) for origin in ORIGINS
    }
    upgraded = {"version": VERSION, "claims": claims}
    return dict(record) | upgraded | {"counts": counts, "counts_by_origin": by_origin}
