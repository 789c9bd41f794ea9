"""The papers' claims, run: each with its statistic, null, control and verdict.

`study()` runs them on models and writes claims.json, claims.csv, report.md and report.html;
`plan()` says first what it would cost; `claims()` names them; `register_claim` adds one. Nothing
heavy is imported until it is used.

>>> from anchorwatch import studies
>>> [claim.id for claim in studies.claims(["floating"])][:3]
['floating/H1', 'floating/H2', 'floating/H3']
"""

from typing import TYPE_CHECKING

from anchorwatch import lazy_attributes

if TYPE_CHECKING:
    from anchorwatch.studies.budget import BUDGETS, Budget
    from anchorwatch.studies.claim import (
        Change,
        Claim,
        Criterion,
        Finding,
        Measured,
        Paper,
        Precondition,
        register_claim,
        register_paper,
    )
    from anchorwatch.studies.estimate import Estimate
    from anchorwatch.studies.evidence import (
        Answers,
        Effect,
        Evidence,
        Experiment,
        Runs,
        Seeds,
        experiment,
    )
    from anchorwatch.studies.papers import STUDIES, claims
    from anchorwatch.studies.protocols import PROTOCOLS, Protocol, protocol
    from anchorwatch.studies.run_study import plan, study
    from anchorwatch.studies.study_record import Study

_LAZY = {
    "BUDGETS": "budget",
    "STUDIES": "papers",
    "Answers": "evidence",
    "Budget": "budget",
    "Change": "claim",
    "Claim": "claim",
    "Criterion": "claim",
    "Effect": "evidence",
    "Estimate": "estimate",
    "Evidence": "evidence",
    "Experiment": "evidence",
    "Finding": "claim",
    "Measured": "claim",
    "PROTOCOLS": "protocols",
    "Paper": "claim",
    "Precondition": "claim",
    "Protocol": "protocols",
    "Runs": "evidence",
    "Seeds": "evidence",
    "Study": "study_record",
    "claims": "papers",
    "experiment": "evidence",
    "plan": "run_study",
    "protocol": "protocols",
    "register_claim": "claim",
    "register_paper": "claim",
    "study": "run_study",
}

__all__ = [
    "BUDGETS",
    "PROTOCOLS",
    "STUDIES",
    "Answers",
    "Budget",
    "Change",
    "Claim",
    "Criterion",
    "Effect",
    "Estimate",
    "Evidence",
    "Experiment",
    "Finding",
    "Measured",
    "Paper",
    "Precondition",
    "Protocol",
    "Runs",
    "Seeds",
    "Study",
    "claims",
    "experiment",
    "plan",
    "protocol",
    "register_claim",
    "register_paper",
    "study",
]

__getattr__ = lazy_attributes("anchorwatch.studies", _LAZY)


def __dir__() -> list[str]:
    return sorted(__all__)
