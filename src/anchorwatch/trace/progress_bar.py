"""A progress bar on a terminal, a line a minute in a log; both on stderr, where talk belongs."""

from __future__ import annotations

import contextlib
import sys
import time
from contextvars import ContextVar
from types import TracebackType
from typing import Any

_SHOWN: ContextVar[bool] = ContextVar("a bar is shown", default=False)
_BETWEEN = 60.0
"""Seconds between two lines in a log: short work says nothing there."""


def silence() -> None:
    """Show no bar in this process: its parent shows one."""
    _SHOWN.set(True)


class Progress:
    """`with Progress("writing", total=64) as bar: bar.advance()`.

    Silent inside another bar: a terminal has room for one. What was `done` before does not count
    for the time left; without a total nothing is said in a log.
    """

    def __init__(self, what: str, total: int | None, done: int = 0) -> None:
        self._what, self._total = what, total
        self._before, self._done, self._outer = done, done, False
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        self._outer = not _SHOWN.get()
        if self._outer:
            _SHOWN.set(True)
            self._begun = self._said = time.monotonic()
        if self._outer and sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._what, total=self._total, completed=self._done)
            self._bar.start()
        return self

    def advance(self, note: str = "", count: int = 1) -> None:
        self._done += count
        if self._bar is not None:
            self._bar.update(self._task, advance=count, description=f"{self._what} {note}".rstrip())
        elif self._outer and self._total and time.monotonic() - self._said >= _BETWEEN:
            self._said = time.monotonic()
            each = (self._said - self._begun) / max(1, self._done - self._before)
            left = each * max(0, self._total - self._done) / 60
            share = min(1.0, self._done / self._total)
            with contextlib.suppress(OSError):  # a log that cannot be written stops no work
                line = f"{self._what}: {share:.0%}, {left:.0f} min left"
                sys.stderr.write(f"{line}, {note}\n" if note else f"{line}\n")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._outer:
            _SHOWN.set(False)
        if self._bar is not None:
            self._bar.stop()
