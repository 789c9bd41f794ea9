"""Which runs each claim was judged on, as the table that a study writes beside its report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from anchorwatch.studies.evidence import Evidence, EvidenceStore, Runs
from anchorwatch.studies.verdict import JudgedClaim
from anchorwatch.trace.runs import CLAIMS, COLUMNS
from anchorwatch.trace.trace import Trace

_LONGEST_ANSWER = 500


def list_runs(
    store: EvidenceStore, findings: Sequence[JudgedClaim], evidence: Evidence
) -> pd.DataFrame:
    """A row for each trace that a verdict rests on, with the claims that were judged on it."""
    claims: dict[Runs, list[str]] = {}
    for judged in findings:
        for spec in judged.claim.needs if judged.verdict is not None else ():
            if isinstance(spec, Runs):
                claims.setdefault(spec, []).append(judged.claim.id)
    rows: dict[str, dict[str, Any]] = {}
    for spec, names in claims.items():
        pieces = evidence[spec]
        for index, trace in zip(pieces.indices, pieces.traces, strict=True):
            path = store.unit_path(spec, spec.role, index)
            cell = path.relative_to(store.folder.parent).as_posix()
            rows[cell] = _describe(trace, spec, index) | {"cell": cell, CLAIMS: " ".join(names)}
    columns = [*COLUMNS, CLAIMS]
    return pd.DataFrame([rows[cell] for cell in sorted(rows)], columns=columns)


def _describe(trace: Trace, spec: Runs, index: int) -> dict[str, Any]:
    manifest = trace.manifest
    return {
        "model": manifest["model"]["source"],
        "prompt": f"{spec.prompts} {index:02}",
        "context": "",
        "decoding": manifest["decoding"]["name"],
        "edit": "; ".join(map(repr, spec.edits)) or "none",
        "seed": manifest["seed"],
        "steps": trace.num_steps,
        "positions": int(trace.canvas.shape[1]),
        "left_masked": trace.num_left_masked,
        "bytes": 0,
        "answer": trace.text[:_LONGEST_ANSWER],
        "trace": trace.digest(),
    }
