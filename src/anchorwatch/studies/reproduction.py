"""Every figure and table of a paper, made from any models by one call.

    aw.studies.reproduce("sinks", ["figure 4"], models=["lab/tales-mdm"], out="runs/sinks")

A paper's items stand in one file, `studies/papers/PAPER/figures.py`: a function under `@paper_item`
is all it takes to add one. It is given a `Workbench`, asks it for runs, replays and evaluations,
and yields what it drew. What cannot be made says what it needs and the command that gives it
(`MissingDataError`). Runs are kept under `out`/traces and found again by what decided them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from anchorwatch.errors import EvidenceError, MissingDataError, SpecError
from anchorwatch.evaluation.contexts import context as named_context
from anchorwatch.evaluation.synthetic import Item
from anchorwatch.evaluation.tasks import task as named_task
from anchorwatch.figures.figure import KINDS, Figure
from anchorwatch.generation.decoding import Decoding, LeftToRight
from anchorwatch.generation.parse import parse_decoding
from anchorwatch.generation.run import run
from anchorwatch.metrics import table_files
from anchorwatch.models.load import find, load
from anchorwatch.models.load_options import DEFAULT_LOADING, LoadOptions
from anchorwatch.models.zoo import NAMES
from anchorwatch.probes.spec import (
    Probe,
    commit_regions,
    diagonal,
    entropy,
    norms,
    qk_geometry,
    received,
    region_flow,
    top_keys,
)
from anchorwatch.studies.evidence import refuse_other_model
from anchorwatch.studies.prompts import prompt_of
from anchorwatch.studies.protocols import PROTOCOLS
from anchorwatch.trace.atomic_io import expand_path, refuse_inside_trace, replace_file
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.trace import Trace, read

if TYPE_CHECKING:
    from anchorwatch.edits.spec import Edit
    from anchorwatch.evaluation.results import Results
    from anchorwatch.models.model import Model
    from anchorwatch.models.prompt_encoding import Prompt

PAPERS = {"floating": "2601.07894", "sinks": "2510.15731", "sink_token": "2601.19657"}
"""Papers by the folder of their items, with their arXiv numbers."""
LAB = {
    "mdm": "lab/tales-mdm",
    "arm": "lab/tales-arm",
    "sink": "lab/tales-sink",
    "gate": "lab/tales-gate",
}
"""What is drawn where no model is named."""
OPTION = {"mdm": "--model", "arm": "--against", "sink": "--sink", "gate": "--gate"}
MADE_TASKS = ("synthetic/one-hop", "synthetic/two-hop")
"""Question sets that need no file."""
BASE_PROBES: tuple[Probe, ...] = (
    *(received(), entropy(), diagonal(), qk_geometry()),
    *(norms(keys=True, sink=True), top_keys()),
)
"""What every run of an item measures; maps are taken in replays."""


@dataclass(frozen=True)
class Effort:
    """How much is run for a figure or table."""

    prompts: int = 6
    """Runs of each model."""
    length: int = 32
    """Positions that a run writes, one a step unless `steps` says otherwise."""
    steps: int | None = None
    block: int | None = 8
    documents: int = 5
    """Passages beside each other where the place of gold matters."""
    items: int = 24
    """Questions in each cell of a table."""
    answer: int = 16
    """Positions of an answer to a question."""


SMALL = Effort()
"""For the models on board, and to try a figure out."""


def _sizes_of(protocol: str) -> Effort:
    """The length and blocks of a paper's protocol."""
    preset = PROTOCOLS[protocol]
    length = preset.length or SMALL.length
    return replace(SMALL, length=length, block=preset.block or length)


PUBLISHED: Mapping[str, Effort] = {
    "sinks": replace(_sizes_of("rulli"), prompts=30, items=1319, answer=256),
    "floating": replace(_sizes_of("floating"), prompts=30, documents=10, items=2837, answer=32),
    "sink_token": replace(_sizes_of("sink-token"), prompts=30, items=1319, answer=256),
}
"""As the papers report it, or as their published code has it where they do not say."""


Product = tuple[str, Figure | pd.DataFrame]
"""A name beside others of the same item ("" where there is one), and what was made."""
Maker = Callable[["Workbench"], Iterator[Product]]


@dataclass(frozen=True)
class PaperItem:
    """One figure or table of a paper."""

    paper: str
    label: str
    """As it is asked for: "figure 4", "table 1", "figure temporal"."""
    says: str
    """What it shows, in one line."""
    make: Maker
    roles: tuple[str, ...] = ("mdm",)
    """Models that it is made from."""
    published: str = ""
    """What the paper's own version takes beyond models, where that is more than we carry."""

    @property
    def slug(self) -> str:
        """For file names."""
        return self.label.replace(" ", "-")

    @property
    def command(self) -> str:
        """What makes it."""
        kind, _, name = self.label.partition(" ")
        return f"anchorwatch paper {self.paper.replace('_', '-')} --{kind} {name}"


ITEMS: dict[tuple[str, str], PaperItem] = {}
"""By paper and label, in the order of registration; `load_items` fills it."""


def paper_item(
    paper: str,
    label: str,
    says: str,
    *,
    roles: tuple[str, ...] = ("mdm",),
    published: str = "",
) -> Callable[[Maker], Maker]:
    """Register a function that makes a figure or table of a paper."""

    def register(make: Maker) -> Maker:
        known = ITEMS.get((paper, label))
        if known is not None and known.make.__module__ != make.__module__:
            raise SpecError(f"{paper} has a {label} already, in {known.make.__module__}")
        ITEMS[paper, label] = PaperItem(paper, label, says, make, roles, published)
        return make

    return register


@cache
def load_items() -> None:
    """Import the items of all papers, which register themselves."""
    for paper in PAPERS:
        import_module(f"anchorwatch.studies.papers.{paper}.figures")


def paper_items(paper: str) -> tuple[PaperItem, ...]:
    """Every figure and table of a paper, in its order."""
    load_items()
    folder = paper.replace("-", "_")
    items = tuple(item for item in ITEMS.values() if item.paper == folder)
    if not items:
        known = ", ".join(dict.fromkeys(item.paper.replace("_", "-") for item in ITEMS.values()))
        raise SpecError(f"no paper is called {paper!r}: expected one of {known}")
    return items


def find_items(paper: str, labels: Sequence[str]) -> tuple[PaperItem, ...]:
    """The items of these labels; of all of them without any."""
    items = {item.label: item for item in paper_items(paper)}
    for label in labels:
        if label not in items:
            kind = label.partition(" ")[0]
            same = [name.partition(" ")[2] for name in items if name.startswith(f"{kind} ")]
            raise SpecError(
                f"{paper} has no {label}: it has {kind}s {', '.join(same)}"
                if same
                else f"{paper} has no {label}: it has {', '.join(items)}"
            )
    return tuple(items[label] for label in labels) if labels else tuple(items.values())


@dataclass(frozen=True)
class Reproduced:
    """What was made, and what could not be."""

    made: Mapping[str, tuple[Path, ...]]
    """Files by label."""
    lacking: Mapping[str, str]
    """By label, what is needed and the command that gives it."""


def reproduce(  # noqa: PLR0913 - one keyword for each thing an item can be given
    paper: str,
    labels: Sequence[str] = (),
    *,
    models: Sequence[str] = (),
    against: str | None = None,
    sink: str | None = None,
    gate: str | None = None,
    tasks: Sequence[str] = (),
    task_folder: str | None = None,
    run_code: bool = False,
    prompts: Sequence[Prompt] = (),
    chat: bool = False,
    decoding: str | None = None,
    effort: Effort = SMALL,
    variants: str | Path | None = None,
    loading: LoadOptions = DEFAULT_LOADING,
    seed: int = 0,
    kind: str = "svg",
    out: str | Path = "paper",
) -> Reproduced:
    """Make figures and tables of a paper from models, into a folder.

    Args:
        paper: floating, sinks or sink-token.
        labels: such as "figure 4" or "table 1"; without any, all that can be made.
        models: masked diffusion models, as `aw.load` takes them; without any model the tales.
        against: an autoregressive one.
        sink: one with a sink token.
        gate: one with gates.
        tasks: question files, made tasks (synthetic/one-hop), or names of lm-eval's tasks.
        task_folder: tasks of your own for lm-eval.
        run_code: let lm-eval run code that models wrote (HumanEval): in a container only.
        prompts: what runs go on with; without any, stories, or passages for the toys.
        chat: put prompts into the chat template.
        decoding: of masked diffusion models, as on the command line, such as "dream".
        effort: how much is run; `PUBLISHED[paper]` is as the paper has it.
        variants: a table of training seeds, as `make variants` writes it; else the package's.
        seed: where chance begins.
        kind: of figures: svg, png or pdf.
        out: the folder; runs are kept in it, and found again.

    A single label that cannot be made raises `MissingDataError`, or `EvidenceError` where no head
    of a run shows the thing; of several, each says what it lacks in the result.
    """
    if kind not in KINDS:
        raise SpecError(f"a figure cannot be a {kind}: expected {', '.join(KINDS)}")
    chosen = find_items(paper, list(labels))
    sources: dict[str, tuple[str, ...]] = {"mdm": tuple(models)}
    named = {"arm": against, "sink": sink, "gate": gate}
    sources |= {role: (source,) for role, source in named.items() if source}
    named_by_user = any(sources.values())
    if not named_by_user:
        sources = {role: (source,) for role, source in LAB.items()}
    for source in (source for group in sources.values() for source in group):
        find(source)  # a wrong name is said before anything runs
    refuse_inside_trace(expand_path(out))
    bench = Workbench(
        paper=chosen[0].paper,
        sources=sources,
        tasks=tuple(tasks),
        task_folder=task_folder,
        run_code=run_code,
        prompts=tuple(prompts),
        chat=chat,
        decoding=decoding,
        effort=effort,
        variants=variants,
        loading=loading,
        seed=seed,
        out=expand_path(out),
    )
    if named_by_user:
        bench.check_models()
    made: dict[str, tuple[Path, ...]] = {}
    lacking: dict[str, str] = {}
    for item in chosen:
        try:
            made[item.label] = tuple(bench.save(item, kind))
        except (MissingDataError, EvidenceError) as error:
            if len(chosen) == 1:
                raise
            lacking[item.label] = str(error)
    return Reproduced(made, lacking)


@dataclass
class Workbench:
    """What an item is made with: models, runs, replays and evaluations, each made once."""

    paper: str
    sources: Mapping[str, tuple[str, ...]]
    """By role: mdm, arm, sink, gate."""
    out: Path
    effort: Effort = SMALL
    tasks: tuple[str, ...] = ()
    task_folder: str | None = None
    run_code: bool = False
    prompts: tuple[Prompt, ...] = ()
    chat: bool = False
    decoding: str | None = None
    variants: str | Path | None = None
    loading: LoadOptions = DEFAULT_LOADING
    seed: int = 0
    item: PaperItem | None = None
    """The item that is made now."""
    _loaded: dict[str, Model] = field(default_factory=dict)
    _traces: dict[str, Trace] = field(default_factory=dict)

    # Models

    def need(self, role: str) -> tuple[str, ...]:
        """The models of a role; where none was given, the item says so with its command."""
        if sources := self.sources.get(role):
            return sources
        words = {
            "mdm": "a masked diffusion model",
            "arm": "an autoregressive model to set beside it",
            "sink": "a model with a sink token",
            "gate": "a model with gates",
        }
        raise self.lacks(words[role], f"{OPTION[role]} {LAB[role]}")

    def check_models(self) -> None:
        """Refuse a model that is not what its role says, before anything runs."""
        for role, group in self.sources.items():
            for source in group:
                refuse_other_model(role, self.load(source), LAB[role])

    def lacks(self, what: str, more: str) -> MissingDataError:
        """The error of an item that needs something, with the command that gives it."""
        assert self.item is not None
        given = " ".join(
            f"{OPTION[role]} {source}"
            for role, group in self.sources.items()
            for source in group
            if OPTION[role] not in more
        )
        command = " ".join(word for word in (self.item.command, given, more) if word)
        return MissingDataError(f"{self.item.label} needs {what}: {command}")

    @property
    def know_no_stories(self) -> bool:
        """Whether all models are toys or tiny ones, which know only their own world."""
        every = [source for group in self.sources.values() for source in group]
        return all(source.startswith("tiny/") or source in NAMES for source in every)

    def load(self, source: str) -> Model:
        """A model; one is held at a time."""
        if source not in self._loaded:
            self._loaded.clear()
            several = sum(map(len, self.sources.values())) > 1
            how = self.loading.for_other_models() if several else self.loading
            self._loaded[source] = load(source, **how.as_keywords())
        return self._loaded[source]

    # Runs

    def text_runs(self, source: str, count: int | None = None) -> list[Trace]:
        """Runs that go on with a text: the given prompts, stories, or passages of the toys' world.

        The end token is forbidden where the prompts are ours, so that text is watched and not the
        filling of an answer's length.
        """
        wanted = count or self.effort.prompts
        if self.prompts:
            texts: list[Prompt] = list(self.prompts[:wanted])
        else:
            name = "told" if self.know_no_stories else "text"
            texts = [prompt_of(name, index).text for index in range(wanted)]
        messages = [self._message(text) for text in texts]
        return [self._run(source, text, self._writes(source), {}) for text in messages]

    def question_runs(
        self, source: str, shown: str, count: int | None = None
    ) -> list[tuple[Trace, Item]]:
        """Runs that answer questions in a context (`gold@1/5`), with the item of each.

        Besides the item's own regions the first token is one, `first`, where it is in no other.
        """
        task = named_task(self.question_task())
        pool = task.pool() if named_context(shown).needs_pool else ()
        runs: list[tuple[Trace, Item]] = []
        for item in task:
            if len(runs) == (count or self.effort.prompts):
                break
            asked = named_context(shown).apply(item, pool, self.seed)
            answers = self._writes(source, length=self.effort.answer, text=False)
            regions: dict[str, Any] = {"first": range(1)} | asked.regions()
            if any(begin == 0 for begin, _ in asked.regions().values()):
                del regions["first"]
            trace = self._run(source, asked.prompt(), answers, regions)
            runs.append((trace, asked))
        return runs

    def replay(self, trace: Trace, probes: Sequence[Probe]) -> Trace:
        """The trace with other fields: maps of the heads that an item chose."""
        from anchorwatch.generation.replay import replay

        model = self.load(trace.manifest["model"]["source"])
        return replay(model, trace, [received(), *probes])

    def _message(self, text: Prompt) -> Prompt:
        return [{"role": "user", "content": text}] if self.chat and isinstance(text, str) else text

    def _writes(self, source: str, *, length: int | None = None, text: bool = True) -> Decoding:
        """How a model writes: masks as `decoding` says, else in blocks; or left to right."""
        model, size = self.load(source), length or self.effort.length
        if model.family.kind == "arm":
            return LeftToRight(size, cache=False, stop=False)
        if self.decoding is not None:
            return parse_decoding(self.decoding, length=size)
        fields: dict[str, Any] = {"length": size, "steps": self.effort.steps or size}
        if text:
            fields["block"] = model.block or self.effort.block
            fields["forbid_end"] = not self.prompts
        return parse_decoding("low-confidence", {k: v for k, v in fields.items() if v})

    def _run(self, source: str, prompt: Prompt, how: Decoding, regions: Mapping[str, Any]) -> Trace:
        """A run, or the trace of the same one that is there already."""
        model = self.load(source)
        probes = (*BASE_PROBES, *((region_flow(), commit_regions()) if regions else ()))
        decided = {
            "model": {k: v for k, v in model.describe().items() if k != "source"},
            "prompt": prompt,
            "decoding": how.as_dict(),
            "regions": {name: list(span) for name, span in regions.items()},
            "probes": [probe.as_dict() for probe in probes],
            "seed": self.seed,
        }
        raw = json.dumps(decided, sort_keys=True, default=str).encode()
        key = hashlib.sha256(raw).hexdigest()[:16]
        path = self.out / "traces" / f"{key}.trace"
        if key not in self._traces:
            if path.exists():
                self._traces[key] = read(path)
            else:
                trace = run(
                    model, prompt, how, regions=dict(regions) or None, probes=probes, seed=self.seed
                )
                path.parent.mkdir(parents=True, exist_ok=True)
                trace.write(path)
                self._traces[key] = trace
        return self._traces[key]

    # Evaluations

    def question_task(self) -> str:
        """The first question set that was given, else a made one."""
        given = [name for name in self.tasks if is_question_set(name)]
        return given[0] if given else MADE_TASKS[0]

    def question_tasks(self) -> list[str]:
        """Question sets that were given; the made ones where no task was named at all."""
        given = [name for name in self.tasks if is_question_set(name)]
        return given or ([] if self.tasks else list(MADE_TASKS))

    def harness_tasks(self) -> list[str]:
        """Names of lm-eval's tasks that were given."""
        return [name for name in self.tasks if not is_question_set(name)]

    def evaluate(
        self,
        sources: Sequence[str],
        task: str,
        contexts: Sequence[str],
        edits: Mapping[str, Sequence[Edit]] | None = None,
    ) -> Results:
        """Answers to a question set, kept under `out`/answers and found again."""
        from anchorwatch.evaluation.grid import evaluate

        kinds = {"mdm": "low-confidence", "arm": "left-to-right"}
        decodings: dict[str, Decoding] = {}
        for role, word in kinds.items():
            spelled = self.decoding if role == "mdm" and self.decoding else word
            decodings[role] = parse_decoding(spelled, length=self.effort.answer)
        return evaluate(
            list(sources),
            task,
            contexts=list(contexts),
            edits=edits,
            decoding=decodings,
            limit=self.effort.items,
            seed=self.seed,
            loading=self.loading.for_other_models(),
            out=self.out / "answers",
        )

    def run_harness(self, source: str, tasks: Sequence[str], edits: Sequence[Edit]) -> pd.DataFrame:
        """The value of every item of some of lm-eval's tasks."""
        from anchorwatch.evaluation.lm_eval import Harness, harness_rows

        lm = Harness(self.load(source), edits=list(edits), decoding=self._harness_decoding(source))
        options = {"folder": self.task_folder, "limit": self.effort.items}
        return harness_rows(lm, tasks, run_code=self.run_code, **options)  # type: ignore[arg-type]

    def _harness_decoding(self, source: str) -> str | None:
        if self.load(source).family.kind == "arm" or self.decoding is None:
            return None
        return self.decoding

    # Files

    def save(self, item: PaperItem, kind: str) -> Iterator[Path]:
        """Make an item and write what it yields: pictures with data, tables as CSV and text."""
        self.item = item
        self.out.mkdir(parents=True, exist_ok=True)
        for name, product in item.make(self):
            stem = self.out / "-".join(word for word in (item.slug, name) if word)
            if isinstance(product, Figure):
                yield product.save(stem.with_name(f"{stem.name}.{kind}"))
                yield table_files.save(product.data, stem.with_name(f"{stem.name}.csv"))
            else:
                yield table_files.save(product, stem.with_name(f"{stem.name}.csv"))
                text = stem.with_name(f"{stem.name}.md")
                replace_file(text, as_markdown(product).encode())
                yield text


def is_question_set(name: str) -> bool:
    """Whether a task is a file of questions or a made set; else it is lm-eval's."""
    return name.startswith("synthetic/") or Path(name).suffix != "" or "/" in name


def as_markdown(table: pd.DataFrame) -> str:
    """A table as text; numbers with three digits, absent ones empty."""

    def word(value: Any) -> str:
        if isinstance(value, float):
            return "" if pd.isna(value) else f"{value:.3g}"
        return one_line(str(value)).replace("|", "\\|")

    heads = [one_line(str(name)) for name in table.columns]
    lines = [heads, ["---"] * len(heads), *([word(v) for v in row] for row in table.to_numpy())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def published_effort(paper: str, changes: Mapping[str, Any] | None = None) -> Effort:
    """How the paper did it, with some of it changed."""
    known = PUBLISHED[paper.replace("-", "_")]
    return change_effort(known, changes or {})


def change_effort(effort: Effort, changes: Mapping[str, Any]) -> Effort:
    """The effort with what was said over it; None leaves a setting as it is."""
    said = {name: value for name, value in changes.items() if value is not None}
    for name, value in said.items():
        if name not in asdict(effort):
            raise SpecError(f"an effort has no {name}: it has {', '.join(asdict(effort))}")
        if not isinstance(value, int) or value < 1:
            raise SpecError(f"{name}={value!r} is not a whole number of at least 1")
    return replace(effort, **said)
