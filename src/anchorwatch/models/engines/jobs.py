"""Jobs, outcomes, and the order in which workers get jobs. Importable without torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from anchorwatch.errors import AnchorwatchError
from anchorwatch.models.load_options import DEFAULT_LOADING, LoadOptions

MOST_DEATHS = 5
"""Workers that may die over one job before it is given up."""


class BusyError(AnchorwatchError):
    """Another process has the claim of this job.

    It is defined here and not in `worker`, which worker processes run as `__main__`: a class of
    that module would be another one in them.
    """


@dataclass(frozen=True)
class ModelFiles:
    """The files of a checkpoint: what they hold, and how to tell quickly that they are the same."""

    digest: str
    """SHA-256 of names and contents; of a made model, of its weights."""
    stats: tuple[tuple[str, int, int], ...] = ()
    """Path, bytes and time of change of each."""

    @property
    def num_bytes(self) -> int:
        return sum(size for _, size, _ in self.stats)


@dataclass(frozen=True)
class ModelRef:
    """A model by what `aw.load` takes; where `files` are known, only those are loaded."""

    source: str
    loading: LoadOptions = DEFAULT_LOADING
    files: ModelFiles | None = None


@dataclass(frozen=True)
class Job:
    """A call of `function(worker, job)` in a worker; what it keeps, it keeps itself."""

    name: str
    model: ModelRef
    function: str
    """`module:name`, of this package."""
    payload: Any
    """Frozen values."""


@dataclass(frozen=True)
class Outcome:
    """What became of a job."""

    job: Job
    status: str
    """done; failed; busy, where another process is at it; refused, where the worker may not."""
    reason: str = ""
    seconds: float = 0.0
    value: Any = None


class Engine(Protocol):
    """Runs jobs; gives each outcome as it comes, in any order."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]: ...


class JobQueue:
    """Jobs by model: a worker stays with the model it has loaded as long as there is work for it.

    >>> ref = [ModelRef("a"), ModelRef("b")]
    >>> queue = JobQueue(Job(name, ref[name > "1"], "", None) for name in "1234")
    >>> queue.take(ref[0]).name, queue.take(ref[0]).name, len(queue)
    ('1', '2', 2)
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._waiting: dict[ModelRef, deque[Job]] = {}
        self._deaths: dict[str, int] = {}
        for job in jobs:
            self._waiting.setdefault(job.model, deque()).append(job)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def take(self, loaded: ModelRef | None) -> Job | None:
        """The next job for a worker with this model: of it, or of the model with most jobs left."""
        if not len(self):
            return None
        model = loaded
        if model is None or not self._waiting.get(model):
            model = max(self._waiting, key=lambda ref: len(self._waiting[ref]))
        return self._waiting[model].popleft()

    def put_back(self, job: Job) -> None:
        """A job that was not begun."""
        self._waiting.setdefault(job.model, deque()).appendleft(job)

    def put_back_after_death(self, job: Job, how: str) -> Outcome | None:
        """A job whose worker died is tried again, but not for ever: then its outcome says so."""
        deaths = self._deaths[job.name] = self._deaths.get(job.name, 0) + 1
        if deaths < MOST_DEATHS:
            self.put_back(job)
            return None
        return Outcome(
            job,
            "failed",
            f"{deaths} workers died over it ({how}): where memory ran out, use fewer workers or "
            "fewer probes",
        )
