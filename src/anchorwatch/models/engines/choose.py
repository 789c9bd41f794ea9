"""The engine that words name: `local`, or `ray` with the address of its head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anchorwatch.errors import SpecError
from anchorwatch.models.engines.jobs import Engine, Job, Outcome
from anchorwatch.models.engines.local import InProcess, LocalEngine, default_workers

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class EngineOptions:
    """Where jobs run. `EngineOptions("local", workers=4)`."""

    name: str = "local"
    """local: processes of this machine; ray: actors of a Ray cluster."""
    workers: int | None = None
    """None: one for each GPU, or for each core as far as memory goes, of this machine or of the
    cluster at `address`; 0: in this process."""
    threads: int = 1
    """Of each worker on a CPU; the last bits of what is computed may depend on it."""
    address: str | None = None
    """Of a Ray cluster that runs already, such as auto or 10.0.0.1:6379."""
    allow_skew: bool = False
    """Whether workers may have other versions of torch and so on."""

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise SpecError(f"engine {self.name!r} is unknown: expected {' or '.join(ENGINES)}")
        if self.workers is not None and self.workers < (0 if self.name == "local" else 1):
            raise SpecError(f"workers={self.workers} is too few: say 1 or more")
        if self.threads < 1:
            raise SpecError(f"threads={self.threads} is too few: say 1 or more")
        if self.address is not None and self.name != "ray":
            raise SpecError("an address is Ray's: say --engine ray, too")

    def count_workers(self, model_bytes: int = 0) -> int:
        """How many workers there will be, for models of at most so many bytes."""
        return default_workers(model_bytes) if self.workers is None else self.workers

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Run jobs, with as many workers as their models leave memory for."""
        from anchorwatch.models.engines.model_files import largest_model

        return self.make(largest_model(job.model for job in jobs)).run(jobs)

    def make(self, model_bytes: int = 0) -> Engine:
        """The engine, for models of at most so many bytes."""
        if self.name == "ray":
            from anchorwatch.models.engines.on_ray import RayEngine

            return RayEngine(
                self.workers,
                threads=self.threads,
                address=self.address,
                allow_skew=self.allow_skew,
                model_bytes=model_bytes,
            )
        workers = self.count_workers(model_bytes)
        if workers == 0:
            return InProcess()
        return LocalEngine(workers, threads=self.threads, allow_skew=self.allow_skew)
