"""Tasks as data: one schema, read from files or made by the world generator, always streamed.

A task can be walked any number of times. Nothing is dropped in silence: fields that nobody reads
are said once, and a line that is no item is named with its number, either in the refusal or, with
`bad="count"`, in `task.bad`.

>>> asked = next(iter(task("synthetic/one-hop", seed=1)))
>>> len(asked.answers), sum(passage.gold for passage in asked.passages)
(1, 1)
"""

from __future__ import annotations

import hashlib
import heapq
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from anchorwatch.errors import AnchorwatchWarning, SpecError
from anchorwatch.evaluation.formats import FORMATS, Format, detect, unknown_fields
from anchorwatch.evaluation.readers import BadRecord, Record, records
from anchorwatch.evaluation.synthetic import Distractors, Item, World
from anchorwatch.trace.atomic_io import expand_path as expanded
from anchorwatch.trace.atomic_io import plain

SYNTHETIC = {"synthetic/one-hop": 1, "synthetic/two-hop": 2}
BROUGHT = Distractors(random=19, hard=9, counterfactual=4)
"""What each made item brings; contexts choose among it."""
POOL = 512
"""Passages of a file that serve as random distractors of items that bring none."""
SHOWN = 5
"""Bad places that a message names one by one."""


@dataclass(frozen=True)
class Task:
    """Items of one kind, one after another: `for item in task`."""

    name: str
    path: Path | None = None
    """The file; None where items are made."""
    format: str | None = None
    """One of the formats; None finds it by the first record's fields."""
    split: str = "held-out"
    seed: int = 0
    bad: dict[str, str] | None = field(default=None, compare=False)
    """Place and fault of lines that were left out; None refuses the first."""
    said: set[str] = field(default_factory=set, compare=False, repr=False)
    """Unknown fields that were warned of already."""

    def __iter__(self) -> Iterator[Item]:
        return self._made() if self.path is None else self._read(self.path)

    def describe(self) -> dict[str, Any]:
        """What a manifest says of the task; items have digests of their own."""
        made = {"split": self.split, "seed": self.seed} if self.path is None else {}
        return {"name": self.name, "format": self.format} | made

    def pool(self, size: int = POOL) -> tuple[str, ...]:
        """Different passages of the whole task: those with the smallest digests, in their order.

        So they depend neither on the order of items nor on how many of them are asked. Made items
        bring all distractors they need, and share none.
        """
        if self.path is None:
            return ()
        kept: dict[int, str] = {}
        heap: list[int] = []  # negated: the largest digest kept stands first
        for item in self:
            for passage in item.passages:
                raw = passage.text.encode(errors="surrogatepass")  # JSON may hold half a letter
                digest = int.from_bytes(hashlib.sha256(raw).digest()[:8])
                if digest in kept or (len(heap) == size and digest > -heap[0]):
                    continue
                kept[digest] = passage.text
                heapq.heappush(heap, -digest)
                if len(heap) > size:
                    del kept[-heapq.heappop(heap)]
        return tuple(kept[digest] for digest in sorted(kept))

    def _made(self) -> Iterator[Item]:
        world = self.world()
        return (world[index] for index in count())  # without end: whoever asks says how many

    def world(self) -> World:
        """Where a made task's items come from."""
        return World(self.split, SYNTHETIC[self.name], self.seed, BROUGHT)

    def _read(self, path: Path) -> Iterator[Item]:
        form = FORMATS[self.format] if self.format else None
        for found in records(path):
            if isinstance(found, BadRecord):
                self._refuse(found)
                continue
            try:
                form = form or detect(found.fields)
                item = form.turn(found.fields)
                _check_letters(item)
            except SpecError as error:
                self._refuse(BadRecord(found.place, str(error)))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                said = f"does not fit the format {form.name if form else ''}: {error!r:.60}"
                self._refuse(BadRecord(found.place, said))
            else:
                self._say(found, form)
                yield item

    def _refuse(self, found: BadRecord) -> None:
        if self.bad is None:
            raise SpecError(
                f"{self.path}, {found.place}: {found.says}; repair it, "
                "or leave such lines out and have them counted with bad='count'"
            )
        self.bad[found.place] = found.says

    def _say(self, found: Record, form: Format) -> None:
        if fresh := unknown_fields(found.fields, form) - self.said:
            self.said.update(fresh)
            warnings.warn(
                f"{self.path}, {found.place}: nothing reads {', '.join(sorted(fresh)[:8])}"
                f" of the format {form.name}",
                AnchorwatchWarning,
                stacklevel=3,
            )


def task(
    name: str | Path | Task,
    *,
    format: str | None = None,
    split: str = "held-out",
    seed: int = 0,
    bad: str = "refuse",
) -> Task:
    """A task by its name (`synthetic/one-hop`, `synthetic/two-hop`) or the path of its file.

    Args:
        name: what to ask; a file may be JSON lines, a JSON array, SQuAD's JSON, CSV or Parquet.
        format: kilt, lost-in-the-middle, squad, hotpot or plain; found by the fields if not said.
        split: of a made task, "held-out" or "train".
        seed: of a made task, which world.
        bad: "refuse" stops at a line that is no item, "count" leaves it out and names it.
    """
    if isinstance(name, Task):
        return name
    if bad not in ("refuse", "count"):
        raise SpecError(f"bad={bad!r} is unknown: expected refuse or count")
    if str(name) in SYNTHETIC:
        if format is not None:
            raise SpecError(f"{name} is made and has no format: leave it out")
        return Task(str(name), split=split, seed=seed)
    if str(name).startswith("synthetic/"):
        raise SpecError(f"no task is called {name}: expected one of {', '.join(SYNTHETIC)}")
    if format is not None and format not in FORMATS:
        raise SpecError(f"no format is called {format!r}: expected one of {', '.join(FORMATS)}")
    path = expanded(name)
    if not path.is_file():
        next(records(path))  # says what is there instead
    return Task(path.name, path, format, bad={} if bad == "count" else None)


def _check_letters(item: Item) -> None:
    """Refuse what is no text where results quote it; a passage is only shown."""
    for name in (item.question, *item.answers, str(item.metadata.get("id", ""))):
        if any("\ud800" <= letter <= "\udfff" for letter in name):
            raise SpecError(f"{name!r:.40} has a lone surrogate, which is no text: replace it")


def told_bad(asked: Task) -> str:
    """What to say of lines that were left out; nothing where there were none."""
    if not asked.bad:
        return ""
    shown = [f"{place} ({says})" for place, says in list(asked.bad.items())[:SHOWN]]
    more = f" and {len(asked.bad) - SHOWN} more" if len(asked.bad) > SHOWN else ""
    return f"{len(asked.bad)} lines of {asked.path} were left out: {'; '.join(shown)}{more}"


def item_key(item: Item) -> str:
    """Sixteen letters that are the same for the same item, wherever it stands."""
    spelled = json.dumps(plain(item.as_dict()), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(spelled.encode()).hexdigest()[:16]
