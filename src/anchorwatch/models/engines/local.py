"""Jobs in processes of this machine, or in this very process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

from anchorwatch.errors import AnchorwatchError
from anchorwatch.models.engines.jobs import Job, JobQueue, ModelRef, Outcome
from anchorwatch.models.engines.worker import Worker, version_skew, versions
from anchorwatch.trace.machine_limits import memory_bytes

_WORKER_BYTES = 700_000_000
"""What a worker takes besides its model: torch and what a run holds."""
_FAILED_STARTS = 4
"""Workers that may end before they begin, one after another."""


def count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def list_gpus() -> list[str]:
    """CUDA devices that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip() not in ("", "-1")]
    folder = Path("/proc/driver/nvidia/gpus")
    return [str(index) for index, _ in enumerate(folder.iterdir())] if folder.is_dir() else []


def default_workers(model_bytes: int) -> int:
    """One for each GPU; else one for each core, as far as memory goes."""
    if gpus := list_gpus():
        return len(gpus)
    return max(1, min(count_cores(), memory_bytes() // bytes_of_worker(model_bytes)))


def bytes_of_worker(model_bytes: int) -> int:
    """Memory that a worker needs for a model of so many bytes."""
    return _WORKER_BYTES + 2 * model_bytes


class InProcess:
    """One job after another, in this process."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        worker, queue, loaded = Worker(), JobQueue(jobs), None
        while (job := queue.take(loaded)) is not None:
            loaded = job.model
            yield worker.perform(job)


@dataclass
class _Slot:
    """A place for a worker process; its GPU, where there are some."""

    gpu: str | None
    process: subprocess.Popen[bytes] | None = None
    connection: Connection | None = None
    greeted: bool = False
    job: Job | None = None
    loaded: ModelRef | None = None
    starts: int = field(default=0)


class LocalEngine:
    """Worker processes; one that dies is replaced, and its job is given to another."""

    def __init__(self, workers: int, *, threads: int = 1, allow_skew: bool = False) -> None:
        self.workers, self.threads, self.allow_skew = workers, threads, allow_skew
        self._slots: list[_Slot] = []

    @property
    def pids(self) -> list[int]:
        """Processes of living workers."""
        processes = [slot.process for slot in self._slots]
        return [process.pid for process in processes if process and process.poll() is None]

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        queue = JobQueue(jobs)
        gpus = list_gpus()
        count = min(self.workers, len(queue))
        self._slots = [_Slot(gpus[i % len(gpus)] if gpus else None) for i in range(count)]
        failed_starts = 0
        try:
            while True:
                # 1. Every worker that is free gets a job; one is started where none is.
                for slot in self._slots:
                    if slot.process is None and len(queue):
                        self._start(slot)
                    if slot.greeted and slot.job is None:
                        self._give(slot, queue)
                active = [slot for slot in self._slots if slot.process is not None]
                if not any(slot.job or not slot.greeted for slot in active):
                    return
                # 2. Whoever answers or dies first.
                for ready in wait([slot.connection for slot in active if slot.connection]):
                    slot = next(slot for slot in active if slot.connection is ready)
                    outcome = self._receive(slot, queue)
                    failed_starts = 0 if slot.greeted else failed_starts + (slot.process is None)
                    if failed_starts >= _FAILED_STARTS:
                        raise AnchorwatchError(
                            "workers end before they begin: their messages are above"
                        )
                    if outcome is not None:
                        yield outcome
        finally:
            self._stop()

    def _start(self, slot: _Slot) -> None:
        ours, theirs = socket.socketpair()
        package = str(Path(__file__).parents[3])
        before = os.environ.get("PYTHONPATH")
        env = os.environ | {
            "OMP_NUM_THREADS": str(self.threads),
            "PYTHONPATH": package if not before else f"{package}{os.pathsep}{before}",
        }
        if slot.gpu is not None:
            env["CUDA_VISIBLE_DEVICES"] = slot.gpu
        with ours, theirs:
            slot.process = subprocess.Popen(
                [sys.executable, "-m", "anchorwatch.models.engines.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=env,
            )
            slot.connection = Connection(os.dup(ours.fileno()))
        slot.greeted, slot.job, slot.loaded = False, None, None

    def _give(self, slot: _Slot, queue: JobQueue) -> None:
        job = queue.take(slot.loaded)
        if job is None:
            return
        assert slot.connection is not None
        slot.job, slot.loaded = job, job.model
        with suppress(OSError):  # it died meanwhile: `_receive` notices
            slot.connection.send(job)

    def _receive(self, slot: _Slot, queue: JobQueue) -> Outcome | None:
        """What a worker says, or that it died."""
        assert slot.connection is not None
        try:
            message = slot.connection.recv()
        except (EOFError, OSError):
            return self._handle_death(slot, queue)
        if isinstance(message, Outcome):
            slot.job = None
            return message
        skew = version_skew(versions(), message[1])
        if skew and not self.allow_skew:
            raise AnchorwatchError(f"a worker of this machine has {skew}: mend PYTHONPATH")
        slot.greeted = True
        return None

    def _handle_death(self, slot: _Slot, queue: JobQueue) -> Outcome | None:
        assert slot.process is not None and slot.connection is not None
        slot.connection.close()
        code = slot.process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        job, slot.job = slot.job, None
        slot.process = slot.connection = None
        return None if job is None else queue.put_back_after_death(job, how)

    def _stop(self) -> None:
        """End what still runs: after an interrupt, or when all is done."""
        for slot in self._slots:
            if slot.connection is not None:
                slot.connection.close()
            if slot.process is not None:
                if slot.job is not None:
                    slot.process.terminate()
                slot.process.wait()
            slot.process = slot.connection = None
