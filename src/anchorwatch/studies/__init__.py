"""The papers' claims, run: each with its statistic, null, control and verdict.

`study()` runs them on models and writes claims.json, claims.csv and report.md; `plan()` says first
what it would cost; `claims()` names them. Nothing heavy is imported until it is used.

>>> from anchorwatch import studies
>>> len(studies.claims())
72
"""

from typing import TYPE_CHECKING

from anchorwatch import lazy_attributes

if TYPE_CHECKING:
    from anchorwatch.studies.budget import BUDGETS, Budget
    from anchorwatch.studies.claim import Claim, Criterion, Evidence, Finding, Measured
    from anchorwatch.studies.estimates import Estimate
    from anchorwatch.studies.findings import Study
    from anchorwatch.studies.papers import STUDIES, claims
    from anchorwatch.studies.running import plan, study

_LAZY = {
    "BUDGETS": "budget",
    "Budget": "budget",
    "Claim": "claim",
    "Criterion": "claim",
    "Estimate": "estimates",
    "Evidence": "claim",
    "Finding": "claim",
    "Measured": "claim",
    "STUDIES": "papers",
    "Study": "findings",
    "claims": "papers",
    "plan": "running",
    "study": "running",
}

__all__ = [
    "BUDGETS",
    "STUDIES",
    "Budget",
    "Claim",
    "Criterion",
    "Estimate",
    "Evidence",
    "Finding",
    "Measured",
    "Study",
    "claims",
    "plan",
    "study",
]

__getattr__ = lazy_attributes("anchorwatch.studies", _LAZY)


def __dir__() -> list[str]:
    return sorted(__all__)
