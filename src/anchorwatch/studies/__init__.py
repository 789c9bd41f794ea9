"""The papers' claims, run: each with its statistic, null, control and verdict.

`study()` runs them on models and writes claims.json, claims.csv, report.md and report.html;
`plan()` says first what it would cost; `claims()` names them; `register_claim` adds one.
`reproduce()` makes the papers' figures and tables, `paper_items()` names them. Nothing heavy is
imported until it is used.

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
    from anchorwatch.studies.reproduction import (
        PUBLISHED,
        Effort,
        paper_item,
        paper_items,
        reproduce,
    )
    from anchorwatch.studies.run_study import plan, study
    from anchorwatch.studies.study_record import Study
    from anchorwatch.studies.swept_runs import judge_runs

_LAZY = {
    "BUDGETS": "budget",
    "PUBLISHED": "reproduction",
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
    "Effort": "reproduction",
    "Runs": "evidence",
    "Seeds": "evidence",
    "Study": "study_record",
    "claims": "papers",
    "experiment": "evidence",
    "paper_item": "reproduction",
    "paper_items": "reproduction",
    "plan": "run_study",
    "protocol": "protocols",
    "register_claim": "claim",
    "register_paper": "claim",
    "reproduce": "reproduction",
    "study": "run_study",
    "judge_runs": "swept_runs",
}

__all__ = [
    "BUDGETS",
    "PROTOCOLS",
    "PUBLISHED",
    "STUDIES",
    "Answers",
    "Budget",
    "Change",
    "Claim",
    "Criterion",
    "Effect",
    "Effort",
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
    "judge_runs",
    "paper_item",
    "paper_items",
    "plan",
    "protocol",
    "register_claim",
    "register_paper",
    "reproduce",
    "study",
]

__getattr__ = lazy_attributes("anchorwatch.studies", _LAZY)


def __dir__() -> list[str]:
    return sorted(__all__)
