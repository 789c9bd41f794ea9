"""The grid: every item of a task, by every model, in every context, under every edit.

Each answer is on disk before the next one is asked for, a batch at a time; asking again finds what
is there. Answers depend neither on the batch nor on the order of items, unless a margin under 1e-5
decides (`narrow` counts those). What cannot be asked is kept with its reason, never dropped.

`stress` is the default grid, twenty contexts for each model, of one hop and of two. It asks what
the papers claim of diffusion models: that passages help them more, that they stand noise, distance
and order better, and what masks after the answer cost them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import file_digest, sha256
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import torch
import transformers

from anchorwatch import __version__
from anchorwatch.edits.spec import Edit
from anchorwatch.errors import AnchorwatchWarning, ItemError, PromptError, SpecError
from anchorwatch.evaluation.contexts import Context
from anchorwatch.evaluation.contexts import contexts as listed_contexts
from anchorwatch.evaluation.prompt_templates import Template
from anchorwatch.evaluation.prompt_templates import template as named_template
from anchorwatch.evaluation.questions import (
    LENGTH,
    Question,
    QuestionSettings,
    add_masks,
    answer_questions,
    build_question,
    build_record,
    build_skipped,
    check_fits,
    default_decoding,
    keep_trace,
)
from anchorwatch.evaluation.results import (
    TRACES,
    UNEDITED,
    Cell,
    ItemsRecord,
    Results,
    build_results,
    build_row,
)
from anchorwatch.evaluation.synthetic import Item
from anchorwatch.evaluation.tasks import Task, item_key
from anchorwatch.evaluation.tasks import task as named_task
from anchorwatch.generation.decoding import Decoding
from anchorwatch.generation.plan import edit_list, probe_list
from anchorwatch.generation.prepare import checked_seed
from anchorwatch.models.engines.choose import EngineOptions
from anchorwatch.models.engines.jobs import Job, ModelRef
from anchorwatch.models.engines.worker import Worker
from anchorwatch.models.load import find
from anchorwatch.models.load_options import DEFAULT_LOADING, LoadOptions
from anchorwatch.models.model import Model
from anchorwatch.models.prompt_encoding import misfits
from anchorwatch.probes.spec import Probe
from anchorwatch.trace import machine_limits as limits
from anchorwatch.trace.atomic_io import expand_path, refuse_inside_trace
from anchorwatch.trace.input_files import open_plain
from anchorwatch.trace.progress_bar import Progress

ITEMS_AT_ONCE = 64
"""Items in memory at once."""
MADE_ITEMS = 100
"""Items of a made task, which has no end, unless a limit is said."""
BATCH = 8
_ITEM_BYTES = 150
"""At least what an item takes: its key, in a list and in a set."""

_SAMPLE = 8
"""Items by which it is judged whether prompts fit a model."""
LEAST_ITEMS = 20
"""Items from which on an accuracy is judged: fewer are a trial."""
LEAST_RIGHT = 6
"""Right answers that must be there to be lost. If all k right answers are lost and none is gained,
the exact test of pairs gives p = 2 * 0.5 ** k, which is below 0.05 from k = 6 on."""

Decodings = Decoding | Mapping[str, Decoding] | None


def evaluate(  # noqa: PLR0913 - one keyword for each thing an evaluation can be given
    models: Model | str | Sequence[Model | str],
    task: str | Path | Task,
    *,
    contexts: str | Sequence[str | Context] = ("closed", "gold"),
    edits: Mapping[str, Sequence[Edit]] | None = None,
    decoding: Decodings = None,
    template: str | Template = "plain",
    probes: Sequence[Probe] | None = None,
    limit: int | None = None,
    batch: int = BATCH,
    seed: int = 0,
    out: str | Path | None = None,
    loading: LoadOptions = DEFAULT_LOADING,
    engine: EngineOptions | None = None,
) -> Results:
    """Ask every model every item of a task in every context, under every edit.

    Args:
        models: as `aw.load` gives them, or what it takes; those are loaded one after another.
        task: a name such as "synthetic/one-hop", the path of a file, or a `Task`.
        contexts: names, such as "closed,gold,gold+4"; `aw.evaluation.contexts` explains them.
        edits: by name, `{"none": [], "sinks": [aw.edits.hide_sinks(1)]}`; "none" is the default.
        decoding: one for all models that it suits, or `{"mdm": ..., "arm": ...}`. Any other model
            writes as many positions greedily, 16 unless said, in half as many steps if masked.
        template: the prompt, the same for all models.
        probes: keeps the trace of each item, measured so, under `out`.
        limit: the first so many items; without it all of a file, and 100 made ones.
        batch: rows that share a forward pass.
        seed: where chance begins, of contexts and of decodings that draw.
        out: a folder for the results; what it holds already is not asked again.
        loading: how models that are named are loaded: device, dtype, revision, mask_id, family.
        engine: shares cells (a model, a context, an edit) out to workers, which write to `out`.
    """
    grid = Grid(
        task=named_task(task),
        contexts=listed_contexts(contexts),
        edits=_name_edits(edits),
        decoding=decoding,
        template=named_template(template),
        probes=None if probes is None else probe_list(probes),
        limit=_check_count("limit", limit),
        batch=_check_count("batch", batch) or BATCH,
        seed=checked_seed(seed),
        out=None if out is None else expand_path(out),
    )
    listed = [models] if isinstance(models, Model | str) else list(models)
    if not listed:
        raise SpecError("no model is named: say evaluate(['tiny/llada'], ...)")
    loading.refuse_several(len(listed))
    if engine is not None:
        grid.share_out(listed, loading, engine)
    return grid.run(listed, loading)


@dataclass(frozen=True)
class Grid:
    """An evaluation that has been checked and not begun."""

    task: Task
    contexts: tuple[Context, ...]
    edits: Mapping[str, tuple[Edit, ...]]
    decoding: Decodings
    template: Template
    probes: tuple[Probe, ...] | None
    limit: int | None
    batch: int
    seed: int
    out: Path | None

    def __post_init__(self) -> None:
        if self.probes is not None and self.out is None:
            raise SpecError("traces need a place: say out=, or leave probes out")
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise SpecError(f"{self.out} is a file: results are many files, name a folder")
        if self.out is not None:
            refuse_inside_trace(self.out)

    def run(self, models: Sequence[Model | str], loading: LoadOptions = DEFAULT_LOADING) -> Results:
        """Ask all of them, one after another."""
        self._refuse_too_many(len(models))
        keys, twice = self._list_keys()
        for source in models:
            if isinstance(source, str):
                find(
                    source, loading.revision
                )  # a wrong name is said before the first of them is asked
        total, record = len(keys), self._record_items(keys)
        pool = self.task.pool() if any(shown.needs_pool for shown in self.contexts) else ()
        drawn = sha256("\0".join(pool).encode(errors="surrogatepass")).hexdigest()
        cells = len(self.contexts) * len(self.edits)
        rows: list[dict[str, Any]] = []
        manifests: dict[str, Mapping[str, Any]] = {}
        with Progress("asking", total=total * cells * len(models)) as bar:
            for source in models:
                model = loading.load(source) if isinstance(source, str) else source
                self._warn_misfits(model)
                with ExitStack() as stack:
                    asking = [
                        CellRunner(
                            self, model, self._settings(model, context, name), context, pool, cell
                        )
                        for context, name, cell in self._open_cells(
                            model, manifests, stack, drawn, record
                        )
                    ]
                    rows += self._run_cells(asking, bar)
        about = {"items": total, "duplicates": twice, "bad": dict(self.task.bad or {})}
        results = build_results(rows, manifests, about)
        warn_floor(results)
        return results

    def _warn_misfits(self, model: Model) -> None:
        """Say once for each model what does not fit between the first items and it."""
        if self.template.chat:
            return
        texts, ids = [], []
        for item in islice(self._walk_items(), _SAMPLE):
            text = self.template.render(item).text
            try:
                ids += model.encode(text)
            except PromptError:
                continue  # kept with its reason when it is asked
            texts.append(text)
        for note in misfits("\n".join(texts), ids, model.tokenizer, model.source) if ids else ():
            warnings.warn(note, AnchorwatchWarning, stacklevel=5)

    def share_out(
        self, models: Sequence[Model | str], loading: LoadOptions, engine: EngineOptions
    ) -> None:
        """Let workers answer the cells; what they could not, `run` tries again and says why."""
        sources = [source for source in models if isinstance(source, str)]
        if self.out is None or len(sources) < len(models):
            raise SpecError(
                "workers load models by name and write to a folder: name models, and say out="
            )
        self._refuse_too_many(len(models))
        jobs = [
            Job(
                f"{source} {shown.name} {name}",
                ModelRef(source, loading),
                "anchorwatch.evaluation.grid:answer_cell",
                replace(self, contexts=(shown,), edits={name: edits}),
            )
            for source in sources
            for shown in self.contexts
            for name, edits in self.edits.items()
        ]
        with Progress("asking", total=len(jobs)) as bar:
            for outcome in engine.run(jobs):
                bar.advance(outcome.job.name)

    def items(self) -> Iterator[tuple[str, Item]]:
        """The items that are asked, each once: one that stands there twice has one answer."""
        seen: set[str] = set()
        for item in self._walk_items():
            if (key := item_key(item)) not in seen:
                seen.add(key)
                yield key, item

    def _walk_items(self) -> Iterator[Item]:
        return islice(self.task, self.limit or (MADE_ITEMS if self.task.path is None else None))

    def _refuse_too_many(self, models: int) -> None:
        """Refuse more made items than can be asked; a file has as many as it has."""
        if self.limit is None or self.task.path is not None:
            return
        passes = self.limit * len(self.contexts) * len(self.edits) * models
        bytes_held = self.limit * _ITEM_BYTES
        way = f"say limit={limits.at_most(self.limit, passes=passes, held=bytes_held)} at most"
        limits.refuse_passes(passes, way)
        limits.refuse_bytes(bytes_held, "these items", way)

    def _list_keys(self) -> tuple[frozenset[str], int]:
        """Items, and how many are there twice; the walk finds bad lines before weights are used."""
        keys = [item_key(item) for item in self._walk_items()]
        if not keys:
            raise SpecError(f"{self.task.name} holds no item: there is nothing to ask")
        return frozenset(keys), len(keys) - len(set(keys))

    def _record_items(self, keys: frozenset[str]) -> ItemsRecord | None:
        """Which file the items are of, so that answers to another version of it can be told."""
        if self.task.path is None or self.out is None:
            return None
        with open_plain(self.task.path) as handle:
            return ItemsRecord(file_digest(handle, "sha256").hexdigest(), keys)

    def _run_cells(self, asking: Sequence[CellRunner], bar: Progress) -> Iterator[dict[str, Any]]:
        """A few items in all cells, then the next few: a kill leaves pairs, not one long cell."""
        walk = self.items()
        while some := list(islice(walk, ITEMS_AT_ONCE)):
            for runner in asking:
                runner.ask(some, bar)
                for key, _ in some:
                    yield runner.row(key)

    def _open_cells(
        self,
        model: Model,
        manifests: dict[str, Mapping[str, Any]],
        stack: ExitStack,
        pool: str,
        record: ItemsRecord | None,
    ) -> Iterator[tuple[Context, str, Cell]]:
        for context in self.contexts:
            for order, name in enumerate(self.edits):
                manifest = self._manifest(model, context, name) | {"place": order}
                # Random distractors of a file come from all of it: another file, other answers.
                manifest["pool"] = pool if context.needs_pool else None
                cell = Cell(manifest, self.out, record)
                if cell.digest[:16] in manifests:
                    raise SpecError(
                        f"{model.source} under the edit {name!r} would be asked the same twice: "
                        "name each model, and each list of edits, once"
                    )
                manifests[cell.digest[:16]] = cell.manifest
                yield context, name, stack.enter_context(cell)

    def _manifest(self, model: Model, context: Context, name: str) -> dict[str, Any]:
        how = self._settings(model, context, name)
        return {
            "model": model.describe(),
            "task": self.task.describe(),
            "context": context.name,
            "edit": name,
            "edits": [edit.as_dict() for edit in how.edits],
            "decoding": how.decoding.as_dict(),
            "answer": how.answer,
            "template": self.template.as_dict(),
            "probes": None if self.probes is None else [probe.as_dict() for probe in self.probes],
            "seed": self.seed,
            "versions": {
                "anchorwatch": __version__,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
        }

    def _settings(self, model: Model, context: Context, name: str) -> QuestionSettings:
        decoding = self._decoding(model)
        return QuestionSettings(
            decoding=add_masks(decoding, context, model),
            template=self.template,
            edits=self.edits[name],
            probes=self.probes,
            answer=decoding.length or 0,
            seed=self.seed,
            batch=self.batch,
        )

    def _decoding(self, model: Model) -> Decoding:
        """What was said for this kind of model, or the default of the same length."""
        kind, decoding = model.family.kind, self.decoding
        if isinstance(decoding, Mapping):
            if unknown := [key for key in decoding if key not in ("mdm", "arm")]:
                raise SpecError(f"decoding has {unknown[0]!r}: expected 'mdm' and 'arm'")
            decoding = decoding.get(kind)
        lengths = [decoding.length] if isinstance(decoding, Decoding) and decoding.length else []
        if decoding is None or decoding.writes != ("absent" if kind == "arm" else "masked"):
            return default_decoding(model, *lengths)
        if decoding.length is None:
            raise SpecError("the decoding has no length: say how many positions, length=16")
        return decoding


def answer_cell(worker: Worker, job: Job) -> None:
    """Answer one cell of a grid, in a worker."""
    job.payload.run([worker.model(job.model)])


@dataclass(frozen=True)
class CellRunner:
    """One cell at work."""

    grid: Grid
    model: Model
    how: QuestionSettings
    context: Context
    pool: Sequence[str]
    cell: Cell

    def ask(self, items: Sequence[tuple[str, Item]], bar: Progress) -> None:
        """Ask those of the items that have no line yet."""
        note = f"{self.model.source} {self.context.name}"
        waiting, lost = [], []
        for key, item in items:
            if key in self.cell.done:
                bar.advance(note)
                continue
            shown, question, parts = item, None, self.how.probes is not None
            try:
                shown = self.context.apply(item, self.pool, self.grid.seed)
                question = build_question(self.model, self.how.template, key, shown, parts=parts)
                check_fits(self.model, question, self.how)
                waiting.append(question)
            except (ItemError, PromptError) as error:
                lost.append(
                    build_skipped(key, shown, str(error), len(question.ids) if question else -1)
                )
                bar.advance(note)
        if lost:
            self.cell.add(*lost)
        for group in self._batches(waiting):
            traces = answer_questions(self.model, group, self.how)
            if self.how.probes is not None and self.cell.folder is not None:
                for question, trace in zip(group, traces, strict=True):
                    keep_trace(trace, self.cell.folder / TRACES, question.key)
            both = zip(group, traces, strict=True)
            self.cell.add(
                *(build_record(self.model, question, trace, self.how) for question, trace in both)
            )
            bar.advance(note, len(group))

    def row(self, key: str) -> dict[str, Any]:
        """What the results say of an item."""
        return build_row(self.cell.done[key], self.cell.manifest, self.cell.digest[:16])

    def _batches(self, waiting: Iterable[Question]) -> Iterator[list[Question]]:
        """Questions of like length, which need little padding, and of the same parts."""
        ordered = sorted(
            waiting, key=lambda question: (tuple(question.regions), len(question.ids), question.key)
        )
        for _, alike in groupby(ordered, key=lambda question: tuple(question.regions)):
            group = list(alike)
            for start in range(0, len(group), self.how.batch):
                yield group[start : start + self.how.batch]


def warn_floor(results: Results, score: str = "containment") -> None:
    """Warn where so few answers are right that no edit or context could take any away.

    Where some contexts have passages, those without are left out: there a model may know nothing.
    """
    rows = results.rows
    rows = rows[(rows["unfit"] == "") & (rows["edit"] == UNEDITED)]
    rows = rows[(rows["passages"] > 0) | (not (rows["passages"] > 0).any())]
    low: dict[str, list[str]] = {}
    for (model, context), part in rows.groupby(["model", "context"], sort=False):
        right, asked = int((part[score] > 0).sum()), int(part[score].notna().sum())
        if asked >= LEAST_ITEMS and right < LEAST_RIGHT:
            low.setdefault(str(model), []).append(f"{right} of {asked} in {context}")
    for model, cells in low.items():
        warnings.warn(
            f"{model} is at the floor: it answers {', '.join(cells)} right, and losing fewer than "
            f"{LEAST_RIGHT} answers cannot be told from chance, so that no edit or context can be "
            "seen to cost it anything; ask more or easier items, let it write longer answers, or "
            "take a model that can answer them",
            AnchorwatchWarning,
            stacklevel=4,
        )


def _name_edits(edits: Mapping[str, Sequence[Edit]] | None) -> dict[str, tuple[Edit, ...]]:
    if edits is None:
        return {UNEDITED: ()}
    if not isinstance(edits, Mapping) or not edits:
        raise SpecError(
            "edits are named lists: say edits={'none': [], 'sinks': [aw.edits.hide_sinks(1)]}"
        )
    named = {str(name): edit_list(listed) for name, listed in edits.items()}
    return dict(sorted(named.items(), key=lambda pair: pair[0] != UNEDITED))  # it comes first


def _check_count(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(f"{name}={value!r} is not a whole number of at least 1")
    return value


STRESS: Mapping[str, tuple[str, ...]] = {
    "synthetic/one-hop": (
        "closed",
        "gold",
        "gold+1",
        "gold+2",
        "gold+4",
        "gold+4hard",
        "gold+4counterfactual",
        "gold@1/5",
        "gold@3/5",
        "gold@5/5",
        "irrelevant2/5",
        "irrelevant4/5",
        "gold+4~shuffle",
        "gold~typos10",
        "gold~paraphrase",
        "gold~masks{}",
    ),
    "synthetic/two-hop": ("closed", "adjacent+2", "far+2", "reversed+2"),
}
"""Contexts of each task; `{}` is three answers' worth of masks."""


def stress(
    models: Model | str | Sequence[Model | str],
    *,
    edits: Mapping[str, Sequence[Edit]] | None = None,
    decoding: Decodings = None,
    limit: int = MADE_ITEMS,
    batch: int = BATCH,
    seed: int = 0,
    out: str | Path | None = None,
    loading: LoadOptions = DEFAULT_LOADING,
    engine: EngineOptions | None = None,
) -> dict[str, Results]:
    """Ask the whole default grid; the results of each task, whose items are its own.

    `aw.evaluation.tables.stress_tables` makes the tables of each.
    """
    lengths = [each.length for each in _list_decodings(decoding) if each.length]
    masks = 3 * (lengths[0] if lengths else LENGTH)
    return {
        task: evaluate(
            models,
            task,
            contexts=[name.format(masks) for name in names],
            edits=edits,
            decoding=decoding,
            limit=limit,
            batch=batch,
            seed=seed,
            out=out,
            loading=loading,
            engine=engine,
        )
        for task, names in STRESS.items()
    }


def _list_decodings(decoding: Decodings) -> list[Decoding]:
    """The decodings that were said, that of masked models first."""
    if isinstance(decoding, Mapping):
        return [decoding[kind] for kind in ("mdm", "arm") if kind in decoding]
    return [] if decoding is None else [decoding]
