"""The explorer in a notebook: the exported page in a frame that reaches nothing outside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from anchorwatch.errors import AnchorwatchError
from anchorwatch.explorer.export import whole
from anchorwatch.explorer.head_tables import check_table, refuse_strangers
from anchorwatch.explorer.open import from_memory
from anchorwatch.explorer.run_data import Options, Run
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.trace import Trace, checked_trace

if TYPE_CHECKING:
    import pandas as pd

HEIGHT = 900
_INSTEAD = "or outside of the notebook: trace.write('run.trace'), then `anchorwatch view run.trace`"


@dataclass(frozen=True)
class NotebookView:
    """What `trace.show()` returns; a notebook displays it, `str` says what it is."""

    says: str
    page: str | None = field(repr=False)
    """The whole page; None where there is none to show, or it would be too large."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        if self.page is None:
            return {"text/plain": self.says}
        frame = (
            '<iframe sandbox="allow-scripts allow-downloads" '  # tables and pictures can be saved
            f'style="width:100%;height:{HEIGHT}px;border:0" '
            f'title="anchorwatch explorer" srcdoc="{escape(self.page)}"></iframe>'
        )
        return {"text/plain": self.says, "text/html": frame}

    def __str__(self) -> str:
        return self.says


def show_in_notebook(
    trace: Trace, beside: Trace | None = None, tables: Mapping[str, pd.DataFrame] | None = None
) -> NotebookView:
    """The explorer of one run, or of two side by side, with metrics by head in its head grid."""
    traces = [trace] if beside is None else [trace, checked_trace(beside)]
    checked = tuple(check_table(name, table) for name, table in (tables or {}).items())
    refuse_strangers(checked, traces)
    try:
        page = whole([Run(from_memory(shown), Options(tables=checked)) for shown in traces])
    except AnchorwatchError as error:
        return NotebookView(one_line(f"not shown here: {error} ({_INSTEAD})"), None)
    names = " and ".join(from_memory(shown).name for shown in traces)
    return NotebookView(f"explorer of {names}, {len(page) / 1e6:.1f} MB", page)
