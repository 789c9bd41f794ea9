"""Claims judged on runs that are there already, such as a sweep's folder: nothing is run.

The prompts are then whatever was swept. A claim that needs more than runs (effects, answers,
training seeds), or runs under an edit or a decoding that nobody swept, is not testable and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anchorwatch.errors import SpecError
from anchorwatch.studies.claim import Claim
from anchorwatch.studies.evidence import (
    ROLE_ADDITIONS,
    Evidence,
    EvidenceSpec,
    ModelIdentity,
    Runs,
    TraceSet,
)
from anchorwatch.studies.papers import claims as named_claims
from anchorwatch.studies.verdict import JudgedClaim, judge_claims
from anchorwatch.trace.model_identity import identity_digest
from anchorwatch.trace.trace import Trace


def judge_runs(names: Sequence[str], runs: Sequence[Trace]) -> tuple[JudgedClaim, ...]:
    """Judge claims on traces, such as `aw.open_runs("runs/sweep")` or a selection of it.

    Args:
        names: studies (floating, sinks, sink_token) or claims ("sinks/H3"); all where empty.
        runs: traces of one model for each role: masked, autoregressive, with a sink token, gated.
    """
    # 1. Traces by the role that their model can have.
    by_role: dict[str, list[Trace]] = {}
    for trace in runs:
        by_role.setdefault(_role_of(trace), []).append(trace)
    models = {role: _identify(role, traces) for role, traces in by_role.items()}
    # 2. What each need finds among them.
    claims = named_claims(names)
    pieces: dict[EvidenceSpec, Any] = {}
    lacking: dict[str, str] = {}
    for claim in claims:
        for spec in claim.needs:
            if spec not in pieces:
                pieces[spec] = _find(spec, by_role)
        if reason := _describe_lack(claim, pieces):
            lacking[claim.id] = reason
    # 3. The verdicts, as a study gives them.
    return judge_claims(claims, Evidence.of(pieces, models), lacking)


def _role_of(trace: Trace) -> str:
    model = trace.manifest["model"]
    if model["kind"] == "arm":
        return "arm"
    parts = {part["name"] for part in model.get("parts", ())}
    return next((role for role, part in ROLE_ADDITIONS.items() if part in parts), "mdm")


def _identify(role: str, traces: Sequence[Trace]) -> ModelIdentity:
    """What the manifests say of the one model of a role."""
    described = {trace.manifest["model"]["weights"]: trace for trace in traces}
    if len(described) > 1:
        sources = sorted(trace.manifest["model"]["source"] for trace in described.values())
        raise SpecError(
            f"the role {role} has runs of {len(described)} models, {', '.join(sources)}: select "
            "one, runs.select(model=...)"
        )
    trace = next(iter(described.values()))
    model = trace.manifest["model"]
    return ModelIdentity(
        source=model["source"],
        kind=model["kind"],
        weights=model["weights"],
        parts=tuple(part["name"] for part in model.get("parts", ())),
        layers=model["layers"],
        heads=model["heads"],
        positions=int(trace.canvas.shape[1]),
        settings=model["settings"],
        tokenizer=model["tokenizer"],
        device=model["device"],
        identity=identity_digest(model),
        family=model["family"],
    )


def _find(spec: EvidenceSpec, by_role: dict[str, list[Trace]]) -> TraceSet | None:
    """The runs that a need asks for; None where there is none."""
    if not isinstance(spec, Runs):
        return None
    fitting = [
        trace
        for trace in by_role.get(spec.role, ())
        if trace.edits == spec.edits and spec.decoding in (None, trace.decoding)
    ]
    return TraceSet.from_traces(fitting) if fitting else None


def _describe_lack(claim: Claim, pieces: dict[EvidenceSpec, Any]) -> str:
    if not claim.is_testable:
        return claim.lacks
    lost = [str(spec) for spec in claim.needs if pieces[spec] is None]
    return f"{lost[0]}, which is not among these runs" if lost else ""
