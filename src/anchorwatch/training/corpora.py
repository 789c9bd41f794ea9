"""Training text by number: `corpus[i]` is a function of the corpus, its seed and i, nothing else.

So any process can make any row at any time, and a run resumes where it was. `BatchDataset` says
which rows a process reads in each update.

>>> table = {"vocabulary": 512, "mix": [{"kind": "backcopy"}]}
>>> corpus = read_corpus(table, length=32)
>>> corpus[7].ids.tolist() == corpus[7].ids.tolist()
True
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerBase

from anchorwatch.errors import SpecError
from anchorwatch.evaluation.synthetic import Draw
from anchorwatch.evaluation.synthetic.names import require_split
from anchorwatch.training.data import SOURCES, Example, MakeRow, RowSettings, Source
from anchorwatch.training.objective import BatchBuilder, ExampleLike, NoisyBatch
from anchorwatch.training.spec import Spec
from anchorwatch.training.tokenizer import Vocabulary, read_vocabulary, train_vocabulary

if TYPE_CHECKING:
    from accelerate import Accelerator

    from anchorwatch.training.networks import StartingPoint

DEFAULT: tuple[dict[str, Any], ...] = (
    {"kind": "questions", "weight": 0.5, "hops": 1},
    {"kind": "questions", "weight": 0.15, "hops": 2},
    {"kind": "passages", "weight": 0.1},
    {"kind": "backcopy", "weight": 0.15},
    {"kind": "prose", "weight": 0.1},
)
"""The mix where a spec names none."""

VOCABULARY = 2048
_SHORTEST = 8
_LEARNED = 4000
"""Rows that a tokenizer is learned from."""
_SAMPLE = 128
"""Rows that the digest and the description look at."""
_ADDED_LATER: dict[str, Any] = {"separator": "", "passages": 1, "whole": False}
"""Fields of sources that older records do not have, and their defaults: no digest has these."""
_FIELDS = ("mix", "tokenizer", "vocabulary", "seed", "crop")


@dataclass(frozen=True)
class Mix:
    """Kinds of rows and how often each is drawn."""

    sources: tuple[Source, ...]
    weights: tuple[float, ...]
    after: tuple[int, ...] = ()
    """The training row at which each begins to be drawn; empty for all at once."""

    def __post_init__(self) -> None:
        if not self.sources or len(self.sources) != len(self.weights):
            raise SpecError(
                "the corpus is empty: a mix needs at least one kind, each with a weight"
            )
        for weight in self.weights:
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                raise SpecError(f"weight={weight!r} is no number: expected one above 0")
            if not 0 < weight < math.inf:
                raise SpecError(f"weight={weight!r}: expected a number above 0")
        for row in self.after:
            if isinstance(row, bool) or not isinstance(row, int) or row < 0:
                raise SpecError(f"after={row!r}: expected the number of a row, 0 or more")
        if (first := min(self.after, default=0)) > 0:
            raise SpecError(f"the first row is of no kind: all begin after row {first}")

    def shares_at(self, index: int) -> tuple[float, ...]:
        """How likely the training row at an index is of each kind."""
        active = [index >= row for row in self.after] or [True] * len(self.weights)
        weights = [w if on else 0.0 for w, on in zip(self.weights, active, strict=True)]
        return tuple(weight / sum(weights) for weight in weights)

    @property
    def shares(self) -> tuple[float, ...]:
        """The weights, summing to one."""
        return tuple(weight / sum(self.weights) for weight in self.weights)

    def vocabulary(self, size: int = VOCABULARY, seed: int = 0) -> Vocabulary:
        """A tokenizer learned from text of the training split, each kind by its share."""

        def texts() -> Iterator[str]:
            for source, share in zip(self.sources, self.shares, strict=True):
                yield from source.sample_texts(seed, max(1, round(share * _LEARNED)))

        return train_vocabulary(texts(), size)

    def as_dicts(self) -> list[dict[str, Any]]:
        """The tables of a spec that say it; fields that older records lack, at their defaults,
        are left out."""
        after = self.after or (0,) * len(self.sources)
        tables = [
            {"kind": source.kind, "weight": share, "after": row, **dataclasses.asdict(source)}
            for source, share, row in zip(self.sources, self.shares, after, strict=True)
        ]
        return [
            {name: value for name, value in table.items() if _ADDED_LATER.get(name) != value}
            for table in tables
        ]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Rows without end; of a split, `held_out()` gives the other one."""

    mix: Mix
    vocabulary: Vocabulary
    length: int
    """Tokens of the longest row."""
    seed: int = 0
    split: str = "train"
    crop: int = 0
    """Each row loses 1 to so many of its first tokens, by its number; 0 keeps rows whole."""

    def __post_init__(self) -> None:
        require_split(self.split)
        if isinstance(self.crop, bool) or not isinstance(self.crop, int) or self.crop < 0:
            raise SpecError(f"corpus.crop={self.crop!r}: expected a whole number, 0 or more")
        if self.length < _SHORTEST:
            raise SpecError(f"length={self.length!r}: a row needs {_SHORTEST} tokens or more")
        _ = self._rows

    def __getitem__(self, index: int) -> Example:
        index = operator.index(index)  # draws are keyed by how a number is written
        if index < 0:
            raise SpecError(f"rows are counted from 0: there is no row {index}")
        share = Draw("mix", self.split, self.seed, index).word() / 2.0**64
        early = self.split == "train" and index < max(self.mix.after, default=0)
        upto = np.cumsum(self.mix.shares_at(index))[:-1] if early else self._upto
        which = int(np.searchsorted(upto, share, side="right"))
        row = self._rows[which](index)
        return self._crop_row(row, index) if self.crop else row

    def _crop_row(self, row: Example, index: int) -> Example:
        """The row without its first tokens; what is scored of a prompted row stays whole.

        So rows begin neither with the start token nor with the first words of a template.
        """
        first = 1 + Draw("crop", self.split, self.seed, index).below(self.crop)
        longest = int(row.scored.argmax()) if not row.scored.all() else len(row.ids) - 1
        first = min(first, longest)
        return dataclasses.replace(row, ids=row.ids[first:], scored=row.scored[first:])

    @cached_property
    def _rows(self) -> tuple[MakeRow, ...]:
        settings = RowSettings(self.vocabulary, self.length, self.split, self.seed)
        return tuple(source.open(settings) for source in self.mix.sources)

    @cached_property
    def _upto(self) -> np.ndarray:
        """[source - 1] where the next kind begins, of all below one."""
        return np.cumsum(self.mix.shares)[:-1]

    def first_of_each(self, rows: int) -> list[Example]:
        """One row of every kind, for a run of so many rows; what it cannot make is refused now."""
        if (last := max(self.mix.after, default=0)) >= rows:
            raise SpecError(
                f"after={last} is never reached: the run reads rows 0 to {rows - 1}; lower after, "
                "or raise updates or batch"
            )
        return [make(0) for make in self._rows]

    def held_out(self) -> Corpus:
        """The same mix of unseen names, values and pieces of text."""
        return dataclasses.replace(self, split="held-out")

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The stock tokenizer, to be saved beside the weights."""
        return self.vocabulary.stock

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that decides the rows, and of the first ones themselves."""
        deciding = {
            "mix": [
                {name: value for name, value in table.items() if name != "path"}
                for table in self.mix.as_dicts()
            ],
            "content": [source.content() for source in self.mix.sources],
            "tokenizer": self.vocabulary.digest,
            "place": [self.length, self.seed, self.split],
        } | ({"crop": self.crop} if self.crop else {})
        hashed = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode())
        for example in self._sample:
            hashed.update(example.ids.tobytes() + example.scored.tobytes())
        return hashed.hexdigest()

    @cached_property
    def _sample(self) -> tuple[Example, ...]:
        return tuple(self[index] for index in range(_SAMPLE))

    def describe(self) -> dict[str, Any]:
        """What it is made of, and how long its first rows are; plain values."""
        tokens = [len(example.ids) for example in self._sample]
        answers = [int(e.scored.sum()) for e in self._sample if not e.scored.all()]
        return {
            "mix": self.mix.as_dicts(),
            "split": self.split,
            "seed": self.seed,
            "length": self.length,
            "vocabulary": len(self.vocabulary),
            "tokens_per_row": float(np.mean(tokens)),
            "tokens_per_answer": float(np.mean(answers)) if answers else None,
        } | ({"crop": self.crop} if self.crop else {})


def read_corpus(
    table: Mapping[str, Any],
    length: int,
    seed: int = 0,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Corpus:
    """A corpus from the table [corpus] of a spec.

    Its fields: `mix`, tables with a kind, a weight and what the kind takes; `tokenizer`, a folder,
    or else `vocabulary`, the size of one that is learned; `seed`; `crop`, how many first tokens a
    row may lose. A `tokenizer` given here is that of the base checkpoint, and the only one that
    fits.
    """
    for name in table:
        if name not in _FIELDS:
            raise SpecError(f"corpus.{name} is unknown: expected {', '.join(_FIELDS)}")
    mix = _read_mix(table.get("mix", DEFAULT))
    seed = table.get("seed", seed)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise SpecError(f"corpus.seed={seed!r}: expected a whole number, 0 or more")
    chosen = [name for name in ("tokenizer", "vocabulary") if name in table]
    if len(chosen) + (tokenizer is not None) > 1:
        keep = "the checkpoint brings its own" if tokenizer is not None else "say one of the two"
        raise SpecError(f"corpus.{' and corpus.'.join(chosen)}: there is one tokenizer; {keep}")
    if tokenizer is not None:
        vocabulary = Vocabulary(tokenizer)
    elif "tokenizer" in table:
        if not isinstance(table["tokenizer"], str | Path):
            raise SpecError(
                f"corpus.tokenizer={table['tokenizer']!r}: expected the path of a folder"
            )
        vocabulary = read_vocabulary(table["tokenizer"])
    else:
        vocabulary = mix.vocabulary(table.get("vocabulary", VOCABULARY), seed)
    return Corpus(mix, vocabulary, length, seed, crop=table.get("crop", 0))


def _read_mix(tables: Any) -> Mix:
    if not isinstance(tables, Sequence) or not all(isinstance(table, Mapping) for table in tables):
        raise SpecError('corpus.mix is a list of tables: say [{kind = "questions", weight = 1.0}]')
    sources = tuple(_read_source(table) for table in tables)
    after = tuple(table.get("after", 0) for table in tables)
    weights = tuple(table.get("weight", 1.0) for table in tables)
    return Mix(sources, weights, after if any(after) else ())


def _read_source(table: Mapping[str, Any]) -> Source:
    """A kind of row from its table; a field of the wrong type or name is refused."""
    kind_name = table.get("kind")
    kind = SOURCES.get(kind_name) if isinstance(kind_name, str) else None
    if kind is None:
        raise SpecError(f"corpus.mix: kind={kind_name!r} is unknown: expected {', '.join(SOURCES)}")
    known = {field.name: field.default for field in dataclasses.fields(kind)}
    given = {
        name: value for name, value in table.items() if name not in ("kind", "weight", "after")
    }
    for name, value in given.items():
        if name not in known:
            takes = ", ".join(known) or "nothing but a weight"
            raise SpecError(f"corpus.mix: {kind.kind} takes no {name}: it takes {takes}")
        given[name] = _check_type(f"{kind.kind}.{name}", value, known[name])
    return kind(**given)


def _check_type(where: str, value: Any, default: Any) -> Any:
    """The value as a field with this default holds it."""
    if isinstance(default, tuple):
        if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
            return tuple(value)
        raise SpecError(f"corpus.mix: {where}={value!r} is no list of names")
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        raise SpecError(f"corpus.mix: {where}={value!r}: expected true or false")
    wanted = int | float if isinstance(default, float) else type(default)
    if not isinstance(value, wanted) or isinstance(value, bool):
        word = {int: "a whole number", float: "a number", str: "text"}[type(default)]
        raise SpecError(f"corpus.mix: {where}={value!r}: expected {word}")
    return value


class CorpusLike(Protocol):
    """Texts by index, the same in every process; it never ends."""

    def __getitem__(self, index: int) -> ExampleLike:
        """The example at an index."""

    @property
    def digest(self) -> str:
        """Of all that decides the examples."""

    def describe(self) -> dict[str, Any]:
        """What a run's record says of it."""


class BatchDataset(Dataset):
    """The rows this process reads in each update, by the update's number."""

    def __init__(
        self, spec: Spec, corpus: CorpusLike, builder: BatchBuilder, rank: int, world: int
    ) -> None:
        self.spec, self.corpus, self.builder, self.rank, self.world = (
            spec,
            corpus,
            builder,
            rank,
            world,
        )

    def __getitem__(self, update: int) -> list[NoisyBatch]:
        """One `Rows` for each pass.

        Places are dealt to the processes in turn, so that each has all times; its passes hold rows
        of like lengths, so that little of them is padding.
        """
        spec, first = self.spec, update * self.spec.batch
        slots = list(range(self.rank, spec.batch, self.world))
        examples = {slot: self.corpus[first + slot] for slot in slots}
        slots.sort(key=lambda slot: len(examples[slot].ids))
        size = len(slots) // spec.accumulation
        passes = [slots[start : start + size] for start in range(0, len(slots), size)]
        return [self.builder([examples[slot] for slot in some], update, some) for some in passes]


def build_loader(
    spec: Spec, corpus: CorpusLike, builder: BatchBuilder, accelerator: Accelerator, done: int
) -> Iterator[list[NoisyBatch]]:
    """Rows of every update that is left."""
    rows = BatchDataset(spec, corpus, builder, accelerator.process_index, accelerator.num_processes)
    ahead = {"prefetch_factor": 4} if spec.workers else {}
    left = range(done, spec.updates)
    return iter(
        DataLoader(rows, batch_size=None, sampler=left, num_workers=spec.workers, **ahead)  # type: ignore[arg-type]
    )


def build_batch_builder(spec: Spec, start: StartingPoint) -> BatchBuilder:
    """How this run's examples become rows."""
    return BatchBuilder(
        objective=spec.objective,
        kind=start.kind,
        shift=start.shift,
        mask_id=start.mask_id,
        pad_id=start.pad_id,
        vocab_size=start.vocab_size,
        length=spec.length,
        batch=spec.batch,
        seed=spec.seed,
    )


def __getattr__(name: str) -> Any:
    if name == "read":
        warnings.warn(
            "training.corpora.read is now training.corpora.read_corpus",
            DeprecationWarning,
            stacklevel=2,
        )
        return read_corpus
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
