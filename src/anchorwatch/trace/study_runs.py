"""The runs that a study was judged on: its folder's runs.csv as a table of traces, with claims.

A study writes the file beside its report. Each row is a trace of the evidence, by its path in the
folder, with the claims that were judged on it.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pandas as pd

from anchorwatch.errors import TraceError
from anchorwatch.trace import atomic_io
from anchorwatch.trace.cells import STUDY_RUNS
from anchorwatch.trace.input_files import read_plain

MOST_BYTES = 200_000_000
_TRACE = re.compile(r"evidence/runs/[0-9a-f]{16}/[0-9]{5}\.trace")


class StudyTraces:
    """The traces of a study's evidence, by their path in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = str(folder)

    def trace_path(self, cell: str) -> Path:
        return self._folder / cell

    def record(self, cell: str) -> dict[str, Any]:
        """A trace of evidence has no record beside it: its own is in the trace."""
        return {}


def read_study_runs(path: str | Path, columns: tuple[str, ...]) -> tuple[StudyTraces, pd.DataFrame]:
    """The traces and the rows of a study's folder; the columns must be these."""
    folder = atomic_io.expand_path(path)
    try:
        content = read_plain(folder / STUDY_RUNS, most=MOST_BYTES)
        table = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise TraceError(
            f"{folder / STUDY_RUNS} cannot be read ({error}): run the study again"
        ) from None
    problem = ""
    if tuple(table.columns) != columns:
        problem = f"its columns are not {', '.join(columns)}"
    elif strange := [cell for cell in table["cell"] if not _TRACE.fullmatch(cell)]:
        problem = f"it names {strange[0]!r:.80}, which is no trace of a study"
    if problem:
        raise TraceError(f"{folder / STUDY_RUNS} is not a study's: {problem}; run the study again")
    return StudyTraces(folder), table
