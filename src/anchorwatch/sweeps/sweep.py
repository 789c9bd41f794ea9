"""Runs a sweep: names its cells, gives those that are not there to an engine, records failures."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorwatch.errors import AnchorwatchWarning, SpecError, TraceError
from anchorwatch.models.engines.choose import EngineOptions
from anchorwatch.models.engines.jobs import Job, ModelRef, Outcome
from anchorwatch.models.engines.model_files import digest_files, largest_model
from anchorwatch.models.engines.worker import versions
from anchorwatch.models.load import find
from anchorwatch.models.load_options import LoadOptions
from anchorwatch.sweeps.run_cell import CellRequest
from anchorwatch.sweeps.spec import (
    Axes,
    Cell,
    Keys,
    Spec,
    digest_of,
    list_relabelled,
    make_keys,
    read_axes,
    read_spec,
    share_labels,
    spec_from,
    sweep_record,
    take_shard,
)
from anchorwatch.trace.cells import (
    INDEX,
    SWEEPS,
    BucketCells,
    CellFolder,
    absolute_address,
    open_cells,
)
from anchorwatch.trace.progress_bar import Progress
from anchorwatch.trace.runs import Runs, build_index, open_runs

RUN_CELL = "anchorwatch.sweeps.run_cell:run_cell"
_WAIT_SECONDS = 0.5
"""Between two looks at cells that other processes compute."""


@dataclass(frozen=True)
class SweepResult:
    """What became of a sweep, or of a shard of it."""

    path: str
    cells: int
    """Of this sweep or shard."""
    computed: int
    """Of these, by this call."""
    failed: Mapping[str, str]
    """Why cells could not be made."""

    @property
    def exit_code(self) -> int:
        """0: all are there; 3: some are; 1: none is."""
        if not self.failed:
            return 0
        return 1 if len(self.failed) == self.cells else 3

    def runs(self) -> Runs:
        """The cells of the folder as one table and traces."""
        return open_runs(self.path)

    def __repr__(self) -> str:
        there = self.cells - len(self.failed)
        return (
            f"SweepResult({there} of {self.cells} cells at {self.path}, {self.computed} computed "
            f"now, {len(self.failed)} failed)"
        )


def sweep(
    spec: str | Path | Mapping[str, Any] | Spec,
    out: str | Path,
    *,
    engine: str | EngineOptions = "local",
    workers: int | None = None,
    shard: str | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> SweepResult:
    """Run every cell of a spec that is not in `out` yet; the same call again goes on.

    Args:
        spec: the path of a SPEC.toml, or its fields: `{"models": [...], "prompts": [...]}`.
        out: a folder, or an address that fsspec opens (s3://, gs://, memory://).
        engine: "local", "ray", or `EngineOptions` with threads, address and so on.
        workers: processes or actors; 0 runs all in this process. One for each GPU, or for each
            core as far as memory goes, where left out.
        shard: "i/n", part i of n: for array jobs that share a folder.
        on_outcome: called with each outcome.

    Cells that failed before are tried again. A cell that another living process computes is waited
    for.
    """
    options = EngineOptions(engine, workers) if isinstance(engine, str) else engine
    if not str(out):
        raise SpecError("the folder of the runs has no name: say -o runs/sweep")
    prepared = prepare(spec)
    folder = open_cells(out, create=True)
    if isinstance(folder, BucketCells) and folder.is_in_memory and options.workers != 0:
        raise SpecError("memory:// is seen by this process only: say workers=0, or name a folder")
    cells = list(take_shard(list(prepared.keys.cells()), shard))
    _refuse_relabelled(prepared.record, folder)
    _keep_record(prepared.record, folder)
    failed: dict[str, str] = {}
    computed = 0
    there = folder.done()
    address = absolute_address(folder.path)  # workers may live in other folders
    jobs = [prepared.job(cell, address) for cell in cells if cell.name not in there]
    with Progress("sweeping", total=len(cells), done=len(cells) - len(jobs)) as bar:
        for outcome in run_all(jobs, options, folder):
            bar.advance(outcome.job.model.source)
            computed += outcome.status == "done" and bool(outcome.value)
            if outcome.status == "failed":
                failed[outcome.job.name] = outcome.reason
            if on_outcome is not None:
                on_outcome(outcome)
    # What counts is in the folder: workers of other machines may have written to disks of theirs.
    there = folder.done()
    for cell in cells:
        if cell.name not in there and cell.name not in failed:
            failed[cell.name] = (
                f"its worker made it, and it is not in {folder.path} here: name a folder that all "
                "machines see, a shared disk or a bucket"
            )
    _keep_index(folder)
    return SweepResult(folder.path, len(cells), computed, failed)


def _keep_record(record: Mapping[str, Any], folder: CellFolder) -> None:
    """Write down what was asked for; a folder that cannot be written is refused here."""
    try:
        folder.put_sweep(record, digest_of(record)[:32])
    except OSError as error:
        raise SpecError(
            f"{folder.path} cannot be written, {error.strerror or error}: choose another place"
        ) from None


def _keep_index(folder: CellFolder) -> None:
    """Write index.parquet; where it cannot be, the runs are there without it."""
    try:
        build_index(folder)
    except OSError as error:
        warnings.warn(
            f"{INDEX} cannot be written ({error.strerror or error}): the runs are opened without "
            "it, more slowly",
            AnchorwatchWarning,
            stacklevel=3,
        )


def _refuse_relabelled(record: Mapping[str, Any], folder: CellFolder) -> None:
    """Refuse labels that meant something else in an earlier sweep of the folder.

    Files of a model and versions are no words of the spec: where they changed, a note says so.
    """
    ours, done, changed = digest_of(record)[:32], folder.done(), set[str]()
    for name in folder.records(SWEEPS):
        try:
            earlier = folder.sealed(f"{SWEEPS}/{name}")
        except TraceError:  # `status` says so
            continue
        if name == f"{ours}.json" or earlier.get("schema") != record["schema"]:
            continue
        for axis in ("prompts", "decodings", "edits"):
            if labels := list_relabelled(record, earlier, axis, done):
                raise SpecError(
                    f"{axis}: {labels[0]!r} was something else in an earlier sweep of "
                    f"{folder.path}, and tables would mix the two: give it another name, or "
                    "choose another folder"
                )
        changed.update(list_relabelled(record, earlier, "models", done))
        if earlier["common"] != record["common"] and share_labels(record, earlier):
            changed.add("the probes or the installed versions")
    if changed:
        warnings.warn(
            f"{', '.join(sorted(changed))}: changed since an earlier sweep of {folder.path}, whose "
            "runs stay there under the same labels; choose another folder to keep them apart",
            AnchorwatchWarning,
            stacklevel=3,
        )


def run_all(jobs: Sequence[Job], options: EngineOptions, folder: CellFolder) -> Iterator[Outcome]:
    """Outcomes of all jobs; those that others are at are waited for."""
    left: Sequence[Job] = jobs
    engine = options.make(largest_model(job.model for job in jobs))
    while left:
        busy: list[Job] = []
        for outcome in engine.run(left):
            if outcome.status == "busy":
                busy.append(outcome.job)
                continue
            if outcome.status == "failed":
                _record_failure(folder, outcome)
            yield outcome
        left = []
        for job in _wait_for_others(busy, folder):
            if folder.is_done(job.name):
                yield Outcome(job, "done", value=False)
            else:
                left.append(job)


def _wait_for_others(jobs: Sequence[Job], folder: CellFolder) -> Sequence[Job]:
    """Wait, without a worker, until other processes have let go of all of these."""
    names = {job.name for job in jobs}
    while names & folder.running().keys():
        time.sleep(_WAIT_SECONDS)
    return jobs


def _record_failure(folder: CellFolder, outcome: Outcome) -> None:
    """Keep the reason; on a full disk it is in the result only."""
    labels = outcome.job.payload.labels
    try:
        folder.fail(outcome.job.name, {"reason": outcome.reason, "labels": dict(labels)})
    except OSError:
        return


@dataclass(frozen=True)
class Prepared:
    """A sweep whose cells have names."""

    axes: Axes
    keys: Keys
    models: tuple[ModelRef, ...]
    versions: Mapping[str, str]

    @property
    def record(self) -> dict[str, Any]:
        return sweep_record(self.axes, self.keys, [_digest(ref) for ref in self.models])

    def job(self, cell: Cell, folder: str) -> Job:
        """The job that makes a cell."""
        axes, ref = self.axes, self.models[cell.model]
        prompt, decoding = axes.prompts[cell.prompt], axes.decodings[cell.decoding]
        edits, seed = axes.edits[cell.edit], axes.seeds[cell.seed]
        labels = {
            "model": ref.source,
            "prompt": prompt.label,
            "context": prompt.context,
            "decoding": decoding.label,
            "edit": edits.label,
            "seed": seed,
        }
        deciding = {
            "model": {"files": _digest(ref), "loading": dict(axes.load)},
            "prompt": prompt.deciding,
            "decoding": decoding.deciding,
            "edits": edits.deciding,
            "probes": [probe.as_dict() for probe in axes.probes],
            "seed": seed,
            "versions": dict(self.versions),
        }
        request = CellRequest(
            folder, labels, deciding, prompt, decoding, edits.edits, axes.probes, seed
        )
        return Job(cell.name, ref, RUN_CELL, request)


def _digest(ref: ModelRef) -> str:
    assert ref.files is not None
    return ref.files.digest


def prepare(spec: str | Path | Mapping[str, Any] | Spec) -> Prepared:
    """Read a spec and the files of its models; no weights are loaded."""
    if isinstance(spec, str | Path):
        spec = read_spec(spec)
    elif not isinstance(spec, Spec):
        spec = spec_from(spec)
    axes = read_axes(spec)
    loading = LoadOptions(**dict(axes.load))
    loading.refuse_several(len(axes.models))
    for source in axes.models:  # a wrong name is said before the first is read
        find(source, loading.revision)
    refs = tuple(ModelRef(source, loading, digest_files(source, loading)) for source in axes.models)
    _refuse_same_files(refs)
    known = versions()
    return Prepared(axes, make_keys(axes, [_digest(ref) for ref in refs], known), refs, known)


def _refuse_same_files(refs: Iterable[ModelRef]) -> None:
    seen: dict[str, str] = {}
    for ref in refs:
        if (digest := _digest(ref)) in seen:
            raise SpecError(f"{seen[digest]} and {ref.source} are the same files: keep one")
        seen[digest] = ref.source
