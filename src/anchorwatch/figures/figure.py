"""A finished figure: what was drawn, the table it was drawn from, and what made it.

The same table gives the same bytes: no date is written, and identifiers come from the content.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet

from anchorwatch import __version__
from anchorwatch.errors import SpecError
from anchorwatch.figures.origins import PNG_KEY, build_record, to_json
from anchorwatch.figures.style import look
from anchorwatch.metrics.table_files import check_target
from anchorwatch.trace.atomic_io import replace_file, with_digest
from anchorwatch.trace.trace import Trace

KINDS = ("pdf", "png", "svg")
_DPI, _SCREEN_DPI = 300, 160


class Figure:
    """One figure. `figure.save("sinks.pdf")` remembers which traces made it; see `whence`."""

    def __init__(
        self,
        drawn: Sheet,
        data: pd.DataFrame,
        *,
        name: str,
        settings: Mapping[str, Any],
        traces: Sequence[Trace | Mapping[str, Any]],
    ) -> None:
        self._drawn, self._data = drawn, data
        self._whence = build_record(name, settings, traces)
        with look(), warnings.catch_warnings():
            warnings.filterwarnings("error", message="constrained_layout not applied")
            try:
                drawn.draw_without_rendering()  # settles the layout: every save is the same
            except UserWarning:
                raise SpecError(
                    f"{name} has {len(drawn.axes)} panels, too many for a page: show fewer models"
                ) from None
        drawn.set_layout_engine("none")

    @classmethod
    def of_table(
        cls,
        drawn: Sheet,
        data: pd.DataFrame,
        name: str,
        settings: Mapping[str, Any] | None = None,
        table: pd.DataFrame | None = None,
    ) -> Figure:
        """A figure of a metric's table, or of data made from `table`, which knows its traces."""
        attrs = (data if table is None else table).attrs
        kept = dict(attrs.get("about", {})) | dict(settings or {})
        return cls(drawn, data, name=name, settings=kept, traces=attrs.get("traces", []))

    @property
    def data(self) -> pd.DataFrame:
        """The table the marks were drawn from (a copy)."""
        return self._data.copy()

    @property
    def whence(self) -> dict[str, Any]:
        """What made it: name and settings, our version, and each trace (a copy)."""
        return json.loads(to_json(self._whence))

    @property
    def drawn(self) -> Sheet:
        """The matplotlib figure itself."""
        return self._drawn

    @property
    def axes(self) -> list[Axes]:
        """Its matplotlib axes; they are placed already and do not move."""
        return list(self._drawn.axes)

    def save(self, path: str | Path) -> Path:
        """Write a .pdf, .svg or .png, whole or not at all; a figure of that name is replaced."""
        target, kind = check_target(path, "figure", KINDS)
        replace_file(target, self._bytes(kind))
        return Path(path)

    def _bytes(self, kind: str, dpi: int = _DPI) -> bytes:
        buffer = io.BytesIO()
        with look():
            self._drawn.savefig(buffer, format=kind, dpi=dpi, metadata=self._metadata(kind))
        return buffer.getvalue()

    def _metadata(self, kind: str) -> dict[str, Any]:
        record, title, us = (
            to_json(with_digest(self._whence)),
            self._whence["figure"],
            f"anchorwatch {__version__}",
        )
        if kind == "png":
            return {"Title": title, "Software": us, PNG_KEY: record}
        if kind == "svg":
            return {"Title": title, "Creator": us, "Description": record, "Date": None}
        producer = f"matplotlib {matplotlib.__version__}"
        fixed = {"Creator": us, "Producer": producer, "CreationDate": None}
        return {"Title": title, "Keywords": record} | fixed

    def _repr_png_(self) -> bytes:
        return self._bytes("png", _SCREEN_DPI)

    def _repr_svg_(self) -> str:
        return self._bytes("svg").decode()

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value}" for key, value in self._whence["settings"].items())
        digests = ", ".join(str(trace.get("digest"))[:12] for trace in self._whence["traces"])
        return f"Figure {self._whence['figure']}({settings})  of {digests or 'no trace'}"
