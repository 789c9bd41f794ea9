"""Jobs in actors of Ray, on this machine or on a cluster.

Each actor is a `Worker`: it holds a loaded model. The driver keeps one call of each actor in flight
and waits for whichever ends first (`ray.wait`), so that nothing queues up beyond the workers. Ray
restarts an actor that died, on another node if its own is gone; its job is given out again by the
driver. Between processes go pickled jobs and outcomes (values of this package, no arrays); traces
go to the folder.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RaySystemError, RayTaskError

from anchorwatch.errors import AnchorwatchError, AnchorwatchWarning
from anchorwatch.models.engines.jobs import Job, JobQueue, ModelRef, Outcome
from anchorwatch.models.engines.local import bytes_of_worker, default_workers
from anchorwatch.models.engines.worker import Worker, set_threads, version_skew, versions
from anchorwatch.trace.progress_bar import silence

OBJECT_STORE_BYTES = 80_000_000
"""Of a Ray that we start ourselves: jobs and outcomes are small."""
_WAIT_SECONDS = 1.0
_LONGEST_REASON = 300
_MOST_ACTORS_LOST = 8
"""New actors for each worker, beyond Ray's own restarts."""


class _Actor:
    """A worker in a process of Ray."""

    def __init__(self, threads: int, folder: str) -> None:
        with suppress(OSError):  # relative paths mean the driver's, where this machine has them
            os.chdir(folder)
        set_threads(threads)
        silence()  # the driver shows how far it is
        self._worker = Worker()

    def greet(self) -> tuple[str, int, dict[str, str]]:
        """Name, process and versions; asked again after each restart."""
        return self._worker.name, os.getpid(), versions()

    def perform(self, job: Job) -> Outcome:
        return self._worker.perform(job)


@dataclass
class _Slot:
    """A place for an actor, and the one call of it that is in flight."""

    actor: Any
    call: Any
    job: Job | None = None
    loaded: ModelRef | None = None
    lost: int = 0


class RayEngine:
    """Actors that hold a model; `max_restarts`, lost nodes and back-pressure are seen to."""

    def __init__(
        self,
        workers: int | None,
        *,
        threads: int = 1,
        address: str | None = None,
        allow_skew: bool = False,
        model_bytes: int = 0,
    ) -> None:
        self.workers, self.threads, self._model_bytes = workers, threads, model_bytes
        self.address, self.allow_skew = address, allow_skew
        self.pids: dict[int, int] = {}
        """Process of each worker, as of its last greeting."""
        self._warned = False

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        queue = JobQueue(jobs)
        ours = self._connect()
        slots: list[_Slot] = []
        try:
            for _ in range(min(self._count_workers(), len(queue))):
                actor = self._start()
                slots.append(_Slot(actor, actor.greet.remote()))
            refused: list[str] = []
            while any(slot.job for slot in slots) or (slots and len(queue)):
                ready, _ = ray.wait([slot.call for slot in slots], timeout=_WAIT_SECONDS)
                for call in ready:
                    slot = next(slot for slot in slots if slot.call is call)
                    outcome = self._receive(slot, queue, refused)
                    if outcome is not None:
                        yield outcome
                    if not self._continue(slot, queue):
                        ray.kill(slot.actor)
                        slots.remove(slot)
            if len(queue):
                raise AnchorwatchError(
                    f"no worker is left for {len(queue)} jobs: {'; '.join(refused) or 'all died'}"
                )
        finally:
            for slot in slots:
                ray.kill(slot.actor)
            if ours:
                ray.shutdown()

    def _connect(self) -> bool:
        """Join a cluster, or start one on this machine's loopback; whether it is ours to end."""
        if ray.is_initialized():
            return False
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        given: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        if self.address is None:  # "local": a Ray that runs here already is somebody else's
            given["num_cpus"] = self._count_workers() * self.threads
            given["object_store_memory"] = OBJECT_STORE_BYTES
            given |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        try:
            ray.init(address=self.address or "local", **given)
        except (OSError, RuntimeError, ValueError) as error:
            where = "on this machine" if self.address is None else f"at {self.address}"
            reason = " ".join(str(error).split())[:_LONGEST_REASON]
            raise AnchorwatchError(
                f"there is no Ray to use {where} ({reason}): `ray start --head` starts one, "
                f"with Ray {ray.__version__} and the Python of this machine on every node"
            ) from None
        return True

    def _count_workers(self) -> int:
        """As many as were asked for; else one for each GPU, or for each core that has memory."""
        if self.workers is not None:
            return self.workers
        if not ray.is_initialized():
            return default_workers(self._model_bytes)
        there = ray.cluster_resources()
        if gpus := int(there.get("GPU", 0)):
            return gpus
        room = int(there.get("memory", 0)) // bytes_of_worker(self._model_bytes)
        return max(1, min(int(there.get("CPU", 1)) // self.threads, room))

    def _start(self) -> Any:
        package = str(Path(__file__).parents[3])
        paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        env = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(self.threads)}
        most = max(
            (node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0
        )
        if most < self.threads and not self._warned:
            self._warned = True
            warnings.warn(
                f"no node of the cluster has {self.threads} CPUs for a worker: waiting for one; "
                f"--threads {max(1, int(most))} would do without",
                AnchorwatchWarning,
                stacklevel=5,
            )
        gpus = 1 if ray.cluster_resources().get("GPU", 0) else 0
        actor = ray.remote(_Actor).options(
            num_cpus=self.threads,
            num_gpus=gpus,
            max_restarts=-1,
            max_task_retries=0,
            runtime_env={"env_vars": env},
        )
        return actor.remote(self.threads, str(Path.cwd()))

    def _receive(self, slot: _Slot, queue: JobQueue, refused: list[str]) -> Outcome | None:
        """What a call gave: a greeting, an outcome, or that its actor died."""
        job, slot.job = slot.job, None
        call, slot.call = slot.call, None
        try:
            message = ray.get(call)
        except (RayActorError, ActorUnavailableError, RaySystemError) as error:
            return self._handle_death(slot, job, queue, type(error).__name__)
        except RayTaskError as error:  # it could not even take the job
            if job is None:
                raise AnchorwatchError(f"a worker cannot begin: {error}") from None
            return Outcome(job, "failed", str(error).strip().splitlines()[-1])
        if isinstance(message, Outcome):
            slot.lost = 0
            return message
        name, pid, theirs = message
        self.pids[id(slot)] = pid
        slot.loaded = None
        skew = version_skew(versions(), theirs)
        if skew and not self.allow_skew:
            refused.append(f"{name} has {skew}: install the same there, or --allow-version-skew")
            slot.lost = _MOST_ACTORS_LOST + 1
        return None

    def _handle_death(
        self, slot: _Slot, job: Job | None, queue: JobQueue, how: str
    ) -> Outcome | None:
        """Its job goes back; the actor is greeted again, or a new one where Ray gave it up."""
        slot.lost += 1
        slot.loaded = None
        self.pids.pop(id(slot), None)
        outcome = None if job is None else queue.put_back_after_death(job, how)
        if slot.lost <= _MOST_ACTORS_LOST:
            if how == "ActorDiedError":  # Ray will not restart it
                ray.kill(slot.actor)
                slot.actor = self._start()
            slot.call = slot.actor.greet.options(max_task_retries=-1).remote()
        return outcome

    def _continue(self, slot: _Slot, queue: JobQueue) -> bool:
        """Give the next call to a free actor; False where there is none for it."""
        if slot.call is not None:
            return True
        if slot.lost > _MOST_ACTORS_LOST:
            return False
        job = queue.take(slot.loaded)
        if job is None:
            return False
        slot.job, slot.loaded = job, job.model
        slot.call = slot.actor.perform.remote(job)
        return True
