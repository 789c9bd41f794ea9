"""What each process reads in each update: rows of a corpus, by number, in any order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

from anchorwatch.training.networks import StartingPoint
from anchorwatch.training.objectives import BatchBuilder, Example, NoisyBatch
from anchorwatch.training.spec import Spec


class Corpus(Protocol):
    """Texts by index, the same in every process; it never ends."""

    def __getitem__(self, index: int) -> Example:
        """The example at an index."""

    @property
    def digest(self) -> str:
        """Of all that decides the examples."""

    def describe(self) -> dict[str, Any]:
        """What a run's record says of it."""


class Updates(Dataset):
    """The rows this process reads in each update, by the update's number."""

    def __init__(
        self, spec: Spec, corpus: Corpus, poser: BatchBuilder, rank: int, world: int
    ) -> None:
        self.spec, self.corpus, self.poser, self.rank, self.world = spec, corpus, poser, rank, world

    def __getitem__(self, update: int) -> list[NoisyBatch]:
        """One `Rows` for each pass.

        Places are dealt to the processes in turn, so that each has all times; its passes hold rows
        of like lengths, so that little of them is padding.
        """
        spec, first = self.spec, update * self.spec.batch
        places = list(range(self.rank, spec.batch, self.world))
        examples = {place: self.corpus[first + place] for place in places}
        places.sort(key=lambda place: len(examples[place].ids))
        size = len(places) // spec.accumulation
        passes = [places[at : at + size] for at in range(0, len(places), size)]
        return [self.poser([examples[place] for place in some], update, some) for some in passes]


def loader_of(
    spec: Spec, corpus: Corpus, poser: BatchBuilder, accelerator: Accelerator, done: int
) -> Iterator[list[NoisyBatch]]:
    """Rows of every update that is left."""
    rows = Updates(spec, corpus, poser, accelerator.process_index, accelerator.num_processes)
    ahead = {"prefetch_factor": 4} if spec.workers else {}
    left = range(done, spec.updates)
    return iter(
        DataLoader(rows, batch_size=None, sampler=left, num_workers=spec.workers, **ahead)  # type: ignore[arg-type]
    )


def poser_of(spec: Spec, begun: StartingPoint) -> BatchBuilder:
    """How this run's examples become rows."""
    return BatchBuilder(
        objective=spec.objective,
        kind=begun.kind,
        shift=begun.shift,
        mask_id=begun.mask_id,
        pad_id=begun.pad_id,
        vocab_size=begun.vocab_size,
        length=spec.length,
        batch=spec.batch,
        seed=spec.seed,
    )
