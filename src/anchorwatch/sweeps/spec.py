"""What to sweep: SPEC.toml as frozen values, and the digest that names each cell. No torch here.

A sweep is a product of five axes: models, prompts (given, or the items of a task in contexts),
decodings, edits and seeds. A cell is named by the SHA-256 of the keys of its axes, of the probes
and of the versions: another order of the axes, or more of them, gives the same names to the same
cells. How a model is called decides nothing; its files do.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from anchorwatch.edits.spec import Edit
from anchorwatch.errors import SpecError
from anchorwatch.generation import parse
from anchorwatch.generation.decoding import Decoding
from anchorwatch.probes.spec import Probe
from anchorwatch.trace.atomic_io import plain
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.input_files import parse_json
from anchorwatch.trace.toml_spec import Table, check_table, read_toml

MOST_CELLS = 10_000_000
"""Cells of one sweep: more are a mistake in the spec, or several sweeps."""
SCHEMA = "anchorwatch/cell 1"
KINDS = ("mdm", "arm")
_LONGEST_LABEL, _LONGEST_WORDS = 120, 32

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class TaskTable(Table):
    """[task]: the items of an evaluation task, each in every context, as prompts."""

    name: str
    """A file, synthetic/one-hop or synthetic/two-hop."""
    contexts: list[str] = Field(default=["gold"])
    limit: Count = 100
    template: str = "plain"
    format: str | None = None
    seed: Seed = 0
    """Where chance begins in contexts that draw passages."""


class LoadTable(Table):
    """[load]: how every model is loaded, as `aw.load` takes it."""

    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    device: str | None = None
    device_map: str | None = None
    mask_id: Annotated[int, Field(ge=0)] | None = None
    family: str | None = None


class PromptTable(Table):
    """A prompt with a name or regions: {prompt = "...", id = "p1", regions = {gold = "words"}}."""

    prompt: str | list[Any]
    id: str | None = None
    regions: dict[str, str] = Field(default={})


class Spec(Table):
    """A SPEC.toml."""

    models: list[str] = Field(min_length=1)
    prompts: list[str | PromptTable] | str = Field(default=[])
    """Prompts, or the path of a .txt of lines or a .jsonl with "prompt" on each line."""
    task: TaskTable | None = None
    decodings: dict[str, Any] = Field(default={})
    """By name: a word such as "low-confidence:length=16", or one for each of mdm and arm."""
    edits: dict[str, Any] = Field(default={"none": ""})
    """By name: words such as "hide-sinks:1", or "" for the model as it is."""
    seeds: list[Seed] = Field(default=[0], min_length=1)
    probes: str = "default"
    chat: bool = False
    load: LoadTable = LoadTable()

    @field_validator("models", "seeds")
    @classmethod
    def _refuse_twice(cls, values: list[Any]) -> list[Any]:
        if twice := [value for value, count in Counter(values).items() if count > 1]:
            raise ValueError(f"{twice[0]} is named twice: name each once")
        return values

    @model_validator(mode="after")
    def _check_prompts(self) -> Self:
        if bool(self.prompts) == (self.task is not None):
            raise ValueError("say prompts = [...] or a [task], one of both")
        return self


_TABLES: dict[str, type[Table]] = {"task": TaskTable, "load": LoadTable, "prompts": PromptTable}


def read_spec(path: str | Path) -> Spec:
    """A SPEC.toml; prompts that it names by a path are seen from its own folder."""
    fields, file = read_toml(path), Path(path).expanduser()
    named = fields.get("prompts")
    if isinstance(named, str) and not Path(named).expanduser().is_absolute():
        fields["prompts"] = str(file.parent / named)
    return spec_from(fields, where=file.name)


def spec_from(fields: Mapping[str, Any], where: str = "the spec") -> Spec:
    """A spec from plain values, or a SpecError that says what would have worked.

    >>> spec_from({"models": ["tiny/llada"], "prompt": ["the anchor"]})
    Traceback (most recent call last):
    ...
    anchorwatch.errors.SpecError: the spec: there is no field prompt: did you mean prompts?
    """
    return check_table(Spec, fields, where, _TABLES)


@dataclass(frozen=True)
class PromptValue:
    """A prompt as a run takes it."""

    label: str
    prompt: Any
    """Text, token ids or chat messages."""
    regions: tuple[tuple[str, Any], ...] = ()
    """Words, or (begin, end) in characters of the text."""
    chat: bool = False
    context: str = ""
    """Of a task's item."""

    @property
    def deciding(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "regions": dict(self.regions), "chat": self.chat}


@dataclass(frozen=True)
class DecodingValue:
    """How a cell is written: a decoding for each kind of model; None leaves it to the model."""

    label: str
    by_kind: tuple[tuple[str, Decoding | None], ...]

    @property
    def deciding(self) -> dict[str, Any]:
        return {kind: how and how.as_dict() for kind, how in self.by_kind}


@dataclass(frozen=True)
class EditValue:
    label: str
    edits: tuple[Edit, ...]

    @property
    def deciding(self) -> list[dict[str, Any]]:
        return [edit.as_dict() for edit in self.edits]


@dataclass(frozen=True)
class Axes:
    """A spec whose words were read: the values of each axis but the models' files."""

    models: tuple[str, ...]
    load: tuple[tuple[str, Any], ...]
    """What was said of loading, by keyword of `aw.load`."""
    prompts: tuple[PromptValue, ...]
    decodings: tuple[DecodingValue, ...]
    edits: tuple[EditValue, ...]
    seeds: tuple[int, ...]
    probes: tuple[Probe, ...]

    @property
    def num_cells(self) -> int:
        counts = (self.models, self.prompts, self.decodings, self.edits, self.seeds)
        number = 1
        for values in counts:
            number *= len(values)
        return number


def read_axes(spec: Spec) -> Axes:
    """The axes of a spec; everything that can be refused without a model is refused here."""
    given = {name: value for name, value in spec.load.model_dump().items() if value is not None}
    prompts = _task_prompts(spec.task, spec.chat) if spec.task else _given_prompts(spec)
    axes = Axes(
        tuple(spec.models),
        tuple(given.items()),
        tuple(prompts),
        tuple(_decoding_values(spec.decodings)),
        tuple(_edit_values(spec.edits)),
        tuple(spec.seeds),
        parse.parse_probes(spec.probes),
    )
    _refuse_equal("prompts", axes.prompts)
    _refuse_equal("edits", axes.edits)
    _refuse_equal("decodings", axes.decodings)
    if axes.num_cells > MOST_CELLS:
        raise SpecError(
            f"{len(axes.models)} models x {len(axes.prompts)} prompts x {len(axes.decodings)} "
            f"decodings x {len(axes.edits)} edits x {len(axes.seeds)} seeds are {axes.num_cells:,} "
            f"cells and {MOST_CELLS:,} are the most: make several sweeps of it"
        )
    return axes


def _refuse_equal(name: str, values: Sequence[Any]) -> None:
    """Refuse two values with one label, or two labels of one value: one cell has one name."""
    labels: set[str] = set()
    keys: dict[str, str] = {}
    for value in values:
        key = digest_of(value.deciding)
        if key in keys:
            raise SpecError(f"{name}: {keys[key]!r} and {value.label!r} are the same: keep one")
        if value.label in labels:
            raise SpecError(f"{name}: {value.label!r} is named twice: name each once")
        labels.add(value.label)
        keys[key] = value.label


def _given_prompts(spec: Spec) -> Iterator[PromptValue]:
    listed = _read_prompts(spec.prompts) if isinstance(spec.prompts, str) else spec.prompts
    for number, given in enumerate(listed):
        table = PromptTable(prompt=given) if isinstance(given, str) else given
        if not table.prompt:
            raise SpecError(f"prompt {number} is empty: leave it out")
        chat = spec.chat and isinstance(table.prompt, str)
        value = PromptValue("", _frozen(table.prompt), tuple(table.regions.items()), chat)
        yield replace(value, label=(table.id or _label_prompt(value))[:_LONGEST_LABEL])


def _label_prompt(value: PromptValue) -> str:
    """What a prompt without an id is called: by its words, so that its place in a list is free.

    >>> _label_prompt(PromptValue("", "the anchor"))
    'the anchor'
    >>> _label_prompt(PromptValue("", "the anchor holds the ship and the ship holds"))
    'the anchor holds the ship ... 0c89fa'
    """
    words = value.prompt if isinstance(value.prompt, str) else json.dumps(plain(value.prompt))
    text = one_line(" ".join(words.split()))
    if text == value.prompt and len(text) <= _LONGEST_WORDS and not (value.regions or value.chat):
        return text
    return f"{text[: _LONGEST_WORDS - 6].rstrip()} ... {digest_of(value.deciding)[:6]}"


def _read_prompts(path: str) -> list[str | PromptTable]:
    """Prompts of a .txt of lines, or of a .jsonl of tables."""
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise SpecError(
            f"{path} cannot be read ({error}): name a .txt or .jsonl of prompts"
        ) from None
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not filled:
        raise SpecError(f"{path} has no prompts: it needs one on each line")
    if not path.endswith(".jsonl"):
        return [line for _, line in filled]
    prompts: list[str | PromptTable] = []
    for number, line in filled:
        where = f"{path}, line {number}"
        try:
            fields = parse_json(line)
        except ValueError:
            raise SpecError(f'{where} is not JSON: expected {{"prompt": "..."}}') from None
        if not isinstance(fields, dict):
            raise SpecError(f'{where} is no table: expected {{"prompt": "..."}}')
        prompts.append(check_table(PromptTable, fields, where))
    return prompts


def _task_prompts(table: TaskTable, chat: bool) -> Iterator[PromptValue]:
    """Items of a task as each context shows them."""
    from anchorwatch.evaluation.contexts import contexts
    from anchorwatch.evaluation.prompt_templates import template
    from anchorwatch.evaluation.tasks import item_key, task

    items, shown = task(table.name, format=table.format), contexts(table.contexts)
    words = template(table.template, chat=chat)
    if masked := [context.name for context in shown if context.masks]:
        raise SpecError(f"{masked[0]} changes the decoding too: ask it with `anchorwatch eval`")
    pool = items.pool() if any(context.needs_pool for context in shown) else ()
    for item in islice(items, table.limit):
        key = item_key(item)
        for context in shown:
            rendered = words.render(context.apply(item, pool, table.seed))
            regions = tuple((name, tuple(span)) for name, span in rendered.regions.items())
            yield PromptValue(
                f"{key[:16]} {context.name}", rendered.text, regions, words.chat, context.name
            )


def _decoding_values(named: Mapping[str, Any]) -> Iterator[DecodingValue]:
    if not named:
        yield DecodingValue("default", tuple((kind, None) for kind in KINDS))
    for label, given in named.items():
        if isinstance(given, Mapping) and "name" not in given:
            if unknown := [kind for kind in given if kind not in KINDS]:
                raise SpecError(
                    f"decodings.{label} has {unknown[0]!r}: expected a word, or mdm and arm"
                )
            by_kind = {kind: parse.as_decoding(given.get(kind)) for kind in KINDS}
            _refuse_other_kind(label, by_kind)
        else:
            by_kind = dict.fromkeys(KINDS, parse.as_decoding(given))
        yield DecodingValue(label, tuple(by_kind.items()))


def _refuse_other_kind(label: str, by_kind: Mapping[str, Decoding | None]) -> None:
    """Refuse a decoding under the kind of model that cannot write so."""
    for kind, writes, fits in (
        ("mdm", "absent", "low-confidence"),
        ("arm", "masked", "left-to-right"),
    ):
        how = by_kind[kind]
        if how is not None and how.writes == writes:
            raise SpecError(
                f"decodings.{label}.{kind}: {type(how).__name__} is not for this kind of model: "
                f"say {fits}:length=..."
            )


def _edit_values(named: Mapping[str, Any]) -> Iterator[EditValue]:
    for label, given in named.items():
        yield EditValue(label, parse.as_edits(given or None))


@dataclass(frozen=True)
class Cell:
    """One run of the product: its name, and which value of each axis it has."""

    name: str
    model: int
    prompt: int
    decoding: int
    edit: int
    seed: int


@dataclass(frozen=True)
class Keys:
    """The keys of each axis: all that names cells, and what `status` needs to know of a sweep."""

    common: str
    models: tuple[str, ...]
    prompts: tuple[str, ...]
    decodings: tuple[str, ...]
    edits: tuple[str, ...]
    seeds: tuple[int, ...]

    def cells(self) -> Iterator[Cell]:
        """Every cell, model by model."""
        axes = (self.models, self.prompts, self.decodings, self.edits, self.seeds)
        for places in product(*(range(len(axis)) for axis in axes)):
            m, p, d, e, s = places
            words = (
                self.common,
                self.models[m],
                self.prompts[p],
                self.decodings[d],
                self.edits[e],
                str(self.seeds[s]),
            )
            name = hashlib.sha256("\n".join(words).encode()).hexdigest()[:32]
            yield Cell(name, m, p, d, e, s)


def make_keys(axes: Axes, models: Sequence[str], versions: Mapping[str, str]) -> Keys:
    """Keys of axes whose models have files with these digests."""
    common = {
        "schema": SCHEMA,
        "probes": [probe.as_dict() for probe in axes.probes],
        "versions": dict(versions),
    }
    loading = dict(axes.load)
    return Keys(
        digest_of(common),
        tuple(digest_of({"files": files, "loading": loading}) for files in models),
        tuple(digest_of(value.deciding) for value in axes.prompts),
        tuple(digest_of(value.deciding) for value in axes.decodings),
        tuple(digest_of(value.deciding) for value in axes.edits),
        axes.seeds,
    )


def sweep_record(axes: Axes, keys: Keys, models: Sequence[str]) -> dict[str, Any]:
    """What a folder keeps of a sweep: enough to name and to label every cell of it."""
    return {
        "schema": SCHEMA,
        "common": keys.common,
        "models": _labelled(axes.models, keys.models),
        "files": list(models),
        "prompts": _labelled([value.label for value in axes.prompts], keys.prompts),
        "decodings": _labelled([value.label for value in axes.decodings], keys.decodings),
        "edits": _labelled([value.label for value in axes.edits], keys.edits),
        "seeds": list(keys.seeds),
    }


def list_relabelled(
    record: Mapping[str, Any], earlier: Mapping[str, Any], axis: str, done: Container[str]
) -> list[str]:
    """Labels of an axis that mean something else in cells of an earlier sweep that are done.

    Cells keep the labels that they were made under, so a table would mix the two meanings.
    """
    keys = {entry["label"]: entry["key"] for entry in record[axis]}
    labels = {
        number: entry["label"]
        for number, entry in enumerate(earlier[axis])
        if keys.get(entry["label"], entry["key"]) != entry["key"]
    }
    if not labels:
        return []
    field = axis.removesuffix("s")
    made = {getattr(cell, field) for cell in keys_of(earlier).cells() if cell.name in done}
    return [label for number, label in labels.items() if number in made]


def share_labels(record: Mapping[str, Any], earlier: Mapping[str, Any]) -> bool:
    """Whether some cells of two sweeps are called the same on every axis."""
    axes = ("models", "prompts", "decodings", "edits")
    labels = [[{entry["label"] for entry in r[axis]} for axis in axes] for r in (record, earlier)]
    seeds = set(record["seeds"]) & set(earlier["seeds"])
    return bool(seeds) and all(ours & theirs for ours, theirs in zip(*labels, strict=True))


def keys_of(record: Mapping[str, Any]) -> Keys:
    """The keys that a sweep's record holds."""
    if record.get("schema") != SCHEMA:
        raise SpecError(
            f"the sweep was written as {record.get('schema')!r} and this version reads {SCHEMA!r}: "
            "use the version that wrote it"
        )
    key = {
        name: tuple(entry["key"] for entry in record[name])
        for name in ("models", "prompts", "decodings", "edits")
    }
    return Keys(record["common"], **key, seeds=tuple(record["seeds"]))


def _labelled(labels: Sequence[str], keys: Sequence[str]) -> list[dict[str, str]]:
    return [{"label": label, "key": key} for label, key in zip(labels, keys, strict=True)]


def digest_of(value: Any) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(plain(value), sort_keys=True).encode()).hexdigest()


def take_shard(cells: Sequence[Cell], shard: str | None) -> Sequence[Cell]:
    """Part i of n, counted from 1: neighbours, so that a shard loads few models.

    >>> take_shard("abcdefg", "1/3"), take_shard("abcdefg", "3/3")
    ('ab', 'efg')
    """
    if shard is None:
        return cells
    part, slash, count = shard.partition("/")
    if not (slash and part.isdecimal() and count.isdecimal() and 1 <= int(part) <= int(count)):
        raise SpecError(f"shard {shard!r} is not i/n with 1 <= i <= n: say 1/8 for the first of 8")
    i, n = int(part), int(count)
    return cells[len(cells) * (i - 1) // n : len(cells) * i // n]


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
