"""A worker: holds one loaded model and runs jobs with it, in a process of this machine or of Ray.

`python -m anchorwatch.models.engines.worker FD` serves the process at the other end of a socket.
Jobs come pickled from our own parent, through a socket that nobody else has; no file is unpickled.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import uuid
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from anchorwatch import __version__
from anchorwatch.errors import AnchorwatchError, ModelError
from anchorwatch.models.engines.jobs import BusyError, Job, ModelRef, Outcome
from anchorwatch.trace.atomic_io import UNREADABLE
from anchorwatch.trace.progress_bar import silence

if TYPE_CHECKING:
    from anchorwatch.models.model import Model

FAILURES = (AnchorwatchError, *UNREADABLE, ImportError, AssertionError)
"""What a job may raise without ending its worker: the outcome says it, and others go on."""
VERSIONED = ("torch", "transformers", "numpy")
_LONGEST = 2000


def versions() -> dict[str, str]:
    """Versions that decide what is computed; those of all workers must agree."""
    known = {"anchorwatch": __version__, "python": sys.version.partition(" ")[0]}
    for name in VERSIONED:
        try:
            known[name] = version(name)
        except PackageNotFoundError:
            known[name] = "none"
    return known


def version_skew(ours: dict[str, str], theirs: dict[str, str]) -> str:
    """How the versions of a worker differ from those of the sweep, in words; empty if they agree.

    >>> version_skew({"torch": "2.9"}, {"torch": "2.8"})
    'torch 2.8 instead of 2.9'
    """
    different = [name for name in ours if theirs.get(name) != ours[name]]
    return ", ".join(
        f"{name} {theirs.get(name, 'none')} instead of {ours[name]}" for name in different
    )


class Worker:
    """Runs jobs one after another; keeps the model of the last one."""

    def __init__(self) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._loaded: tuple[ModelRef, Model] | None = None

    def model(self, ref: ModelRef) -> Model:
        """The model of a job, loaded when it is another than the last one's."""
        if self._loaded is None or self._loaded[0] != ref:
            from anchorwatch.models.engines.model_files import refuse_changed_files

            self._loaded = None  # let go of one before the next is loaded
            if ref.files is not None:
                refuse_changed_files(ref)
            model = ref.loading.load(ref.source)
            if ref.files is not None:  # not while it was read, either
                refuse_changed_files(ref, model)
            self._loaded = ref, model
        return self._loaded[1]

    def perform(self, job: Job) -> Outcome:
        """Run a job; what it raises becomes its outcome."""
        begun = time.perf_counter()
        try:
            value = _function(job.function)(self, job)
        except BusyError as error:
            return Outcome(job, "busy", str(error))
        except FAILURES as error:
            reason = f"{type(error).__name__}: {error}"[:_LONGEST]
            return Outcome(job, "failed", reason, time.perf_counter() - begun)
        return Outcome(job, "done", "", time.perf_counter() - begun, value)


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    if not module.startswith("anchorwatch."):
        raise ModelError(f"{name} is no function of anchorwatch: jobs name one of its own")
    return getattr(import_module(module), function)


def serve(connection: Connection) -> None:
    """Say who we are, then answer jobs until the other end is gone."""
    worker = Worker()
    connection.send((worker.name, versions()))
    while True:
        try:
            job = connection.recv()
        except (EOFError, ConnectionError):
            return
        if job is None:
            return
        outcome = worker.perform(job)
        try:
            connection.send(outcome)
        except (BrokenPipeError, ConnectionError):  # our parent died meanwhile
            return


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    set_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    silence()  # our parent shows how far it is
    serve(Connection(int(sys.argv[1])))


def set_threads(count: int) -> None:
    """Threads of torch: what is computed on a CPU may depend on how many there are."""
    import torch

    torch.set_num_threads(count)


if __name__ == "__main__":
    main()
