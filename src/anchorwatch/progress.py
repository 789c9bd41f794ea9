"""A progress bar on a terminal, nothing anywhere else; it writes to stderr, where talk belongs."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from types import TracebackType
from typing import Any

_SHOWN: ContextVar[bool] = ContextVar("a bar is shown", default=False)


class Progress:
    """`with Progress("writing", total=64) as bar: bar.advance()`.

    Silent unless stderr is a terminal, and inside another bar: a terminal has room for one.
    """

    def __init__(self, what: str, total: int | None) -> None:
        self._what, self._total = what, total
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty() and not _SHOWN.get():
            _SHOWN.set(True)
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._what, total=self._total)
            self._bar.start()
        return self

    def advance(self, note: str = "", count: int = 1) -> None:
        if self._bar is not None:
            self._bar.update(self._task, advance=count, description=f"{self._what} {note}".rstrip())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            _SHOWN.set(False)
            self._bar.stop()
