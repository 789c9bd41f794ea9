"""Runs that are changed from the page: one change, one fork, beside the run it leaves.

The page names a step and a change; `Change.as_edit` makes an edit of it, the same as in Python.
What computes is handed over by the command line as a `Live`: this package never loads a network.
One fork runs at a time. A fork is a trace in memory until it is saved, next to the run it came
from or in the folder that the command line named: no path comes from the page.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anchorwatch.edits.spec import Edit, force_commit, hide_keys, knock_out, sink_token
from anchorwatch.errors import AnchorwatchError, SpecError
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.trace import Trace

MOST_TEXT = 400
"""Characters of an error that a page is told."""
MOST_FORKS = 32
"""Forks that are kept in memory; each is as large as its run."""
CHANGES: Mapping[str, tuple[str, ...]] = {
    "commit": ("position", "token"),
    "write": ("position",),
    "hide": ("position",),
    "knock_out": ("layer", "head"),
    "sink_token": (),
}
"""By kind, the numbers that a change needs besides its step; `write` has a `text`, too."""
LONGEST_WORD = 80


@dataclass(frozen=True)
class Change:
    """What a fork does from a step on, as the page asks for it."""

    kind: str
    step: int
    numbers: Mapping[str, int]
    text: str = ""
    """What is written, of the kind `write`."""

    @classmethod
    def from_json(cls, fields: Any) -> Change:
        """From what the page sent; anything but whole numbers for known names is refused."""
        if not isinstance(fields, dict) or fields.get("kind") not in list(CHANGES):
            raise SpecError(f"a change has a kind: {', '.join(CHANGES)}")
        names = ("step", *CHANGES[fields["kind"]])
        texts = ("text",) if fields["kind"] == "write" else ()
        if set(fields) != {"kind", *names, *texts}:
            raise SpecError(f"a change of kind {fields['kind']} has {', '.join((*names, *texts))}")
        text = fields.get("text", "")
        if texts and not (isinstance(text, str) and 0 < len(text) <= LONGEST_WORD):
            raise SpecError(f"text of a change is a word of at most {LONGEST_WORD} characters")
        for name in names:
            if type(fields[name]) is not int or not 0 <= fields[name] < 10**7:
                raise SpecError(f"{name} of a change is a whole number of at least 0")
        return cls(fields["kind"], fields["step"], {name: fields[name] for name in names[1:]}, text)

    def with_token(self, find_token: Callable[[str], int]) -> Change:
        """A word as the token that it is; other changes stay as they are."""
        if self.kind != "write":
            return self
        return Change("commit", self.step, {**self.numbers, "token": find_token(self.text)})

    def as_edit(self) -> Edit:
        """The edit that makes it."""
        numbers = self.numbers
        if self.kind == "commit":
            return force_commit(numbers["position"], numbers["token"], step=self.step)
        if self.kind == "hide":
            return hide_keys((numbers["position"],))
        if self.kind == "knock_out":
            return knock_out(((numbers["layer"], numbers["head"]),))
        return sink_token()

    def in_words(self, trace: Trace) -> str:
        """For the name of the fork."""
        numbers = self.numbers
        if self.kind == "commit":
            text = one_line(trace.token(numbers["token"]))[:20].strip()
            return f"“{text}” at position {numbers['position']}"
        if self.kind == "hide":
            return f"without key {numbers['position']}"
        if self.kind == "knock_out":
            return f"without head {numbers['head']} of layer {numbers['layer']}"
        return "with a sink token"


@dataclass(frozen=True, eq=False)
class Candidates:
    """What a model would write at each masked position of a frame."""

    positions: np.ndarray
    """[n]."""
    tokens: np.ndarray
    """[n, k] ids, the likeliest first."""
    probabilities: np.ndarray
    """[n, k]."""
    texts: Mapping[int, str]
    """By id, what each token says."""


@dataclass(frozen=True)
class Live:
    """What a model at hand can do with one run."""

    candidates: Callable[[int], Candidates]
    """Of a step."""
    fork: Callable[[int, Edit, Callable[[int], None]], Trace]
    """Leave the run at a step with an edit; the callable is told each finished step."""
    find_token: Callable[[str], int]
    """The id of a word that is one token."""


@dataclass(frozen=True)
class ForkState:
    """How far the fork is: idle, running, done or failed."""

    state: str = "idle"
    done: int = 0
    steps: int = 0
    run: int | None = None
    """The number of the new run, where it is done."""
    name: str = ""
    error: str = ""


class BusyError(AnchorwatchError, RuntimeError):
    """A fork is running: one at a time."""


class Forks:
    """Makes forks one at a time, and saves them."""

    def __init__(
        self, add_run: Callable[[int, Trace, str], int], targets: Mapping[int, Path]
    ) -> None:
        """`add_run` shows a fork of a run and returns its number.

        `targets` are, by the number of a run, the path whose folder and name its forks get:
        lena.trace gives lena-fork1.trace.
        """
        self._add_run, self._targets = add_run, dict(targets)
        self._lock = threading.Lock()
        self._state = ForkState()
        self._made: dict[int, tuple[Trace, str]] = {}
        self._saved: dict[int, str] = {}

    @property
    def state(self) -> ForkState:
        return self._state

    def start(self, index: int, live: Live, trace: Trace, change: Change) -> ForkState:
        """Begin a fork of the run with this number; `state` says how it goes."""
        with self._lock:
            if self._state.state == "running":
                raise BusyError("a fork is running: wait until it is done")
            if len(self._made) >= MOST_FORKS:
                raise BusyError(f"{MOST_FORKS} forks are in memory: save them and view them again")
            change = change.with_token(live.find_token)
            edit = change.as_edit()
            steps = trace.decoding.num_passes
            self._state = ForkState("running", change.step, steps)
        work = (index, live, trace, change, edit)
        threading.Thread(target=self._work, args=work, daemon=True).start()
        return self._state

    def _work(self, index: int, live: Live, trace: Trace, change: Change, edit: Edit) -> None:
        steps = self._state.steps

        def advance(step: int) -> None:
            self._state = ForkState("running", step + 1, steps)

        try:
            fork = live.fork(change.step, edit, advance)
            name = f"fork at step {change.step}, {change.in_words(fork)}"
            number = self._add_run(index, fork, name)
        except (AnchorwatchError, MemoryError, RuntimeError) as error:
            why = one_line(str(error))[:MOST_TEXT] or type(error).__name__
            self._state = ForkState("failed", change.step, steps, error=why)
            return
        if index in self._targets:
            self._targets[number] = self._targets[index]
        self._made[number] = fork, f"fork{len(self._made) + 1}"
        self._state = ForkState("done", steps, steps, number, name)

    def save(self, index: int) -> str:
        """Write a fork; returns the name of its folder. Asked again, it is not written again."""
        with self._lock:
            if index in self._saved:
                return self._saved[index]
            if index not in self._made:
                raise SpecError("only forks are saved: this run is on disk already")
            if index not in self._targets:
                raise SpecError("there is no folder to save in: `anchorwatch view --forks FOLDER`")
            trace, word = self._made[index]
            near = self._targets[index]
            target = free_name(near.parent, f"{near.stem}-{word}")
            try:
                trace.write(target)
            except OSError as error:
                why = error.strerror or type(error).__name__
                raise SpecError(f"{target.name} cannot be written: {why}") from error
            self._saved[index] = target.name
            return target.name


def free_name(folder: Path, stem: str) -> Path:
    """A path in the folder that nothing is at: stem.trace, stem-2.trace, ..."""
    target, number = folder / f"{stem}.trace", 2
    while target.exists() or target.is_symlink():
        target, number = folder / f"{stem}-{number}.trace", number + 1
    return target
