"""Faults injected into sweeps: disks, memory, NaN, changed models, claims, kills."""

import errno
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import integers

from anchorwatch.errors import AnchorwatchError
from anchorwatch.models import zoo
from anchorwatch.models.engines import local
from anchorwatch.models.engines.choose import EngineOptions
from anchorwatch.models.engines.jobs import MOST_DEATHS, Job, JobQueue, ModelRef, Outcome
from anchorwatch.models.engines.local import InProcess, LocalEngine
from anchorwatch.models.engines.model_files import largest_model
from anchorwatch.models.engines.worker import Worker, versions
from anchorwatch.models.load import load
from anchorwatch.probes import reduce
from anchorwatch.sweeps import run_cell
from anchorwatch.sweeps.status import read_status
from anchorwatch.sweeps.sweep import prepare, sweep
from anchorwatch.trace import atomic_io, locks
from anchorwatch.trace.cells import RECORD, open_cells
from anchorwatch.trace.progress_bar import Progress
from kill_sweeps import folder_bytes, torture
from planted_runs import plan, record_of

FIELDS = {
    "models": ["tiny/llada"],
    "prompts": ["the anchor"],
    "decodings": {"short": "low-confidence:length=2"},
}


class FailingDisk:
    """The n-th operation on files fails."""

    def __init__(self, monkeypatch, code):
        self.left, self.hit, self._code = -1, False, code
        for module, name in (
            (atomic_io, "put_file"),
            (atomic_io, "_hash_and_sync"),
            (atomic_io, "sync_folder"),
            (atomic_io.os, "rename"),
        ):
            monkeypatch.setattr(module, name, self._wrap(getattr(module, name)))

    def _wrap(self, real):
        def call(*given):
            self.left -= 1
            if self.left == 0:
                self.hit = True
                raise OSError(self._code, os.strerror(self._code), str(given[0]))
            return real(*given)

        return call


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_at_the_nth_write(tmp_path, monkeypatch, code):
    """Old or new at every write: the cell is there whole or it is not, and a rerun completes it."""
    fields = FIELDS | {"probes": "none"}  # few files, and as many kinds of write
    sweep(fields, tmp_path / "calm", workers=0)
    calm = folder_bytes(tmp_path / "calm")
    prepared, disk = prepare(fields), FailingDisk(monkeypatch, code)
    engine = _Kept()
    for n in range(1, 200):
        out = tmp_path / f"R{n}"
        open_cells(out, create=True)
        job = prepared.job(next(iter(prepared.keys.cells())), str(out))
        disk.left, disk.hit = n, False
        (outcome,) = engine.run([job])
        disk.left = -1
        assert folder_bytes(out) in ({}, calm)
        if not disk.hit:
            assert outcome.status == "done"
            break
        if outcome.status == "failed":
            assert os.strerror(code) in outcome.reason
            (outcome,) = engine.run([job])
        assert outcome.status == "done"
        assert folder_bytes(out) == calm
        shutil.rmtree(out)
    assert n > 10


class _Kept(InProcess):
    """An engine in this process that keeps its model."""

    def __init__(self):
        self._worker = Worker()

    def run(self, jobs):
        return [self._worker.perform(job) for job in jobs]


def test_nan_logits_are_recorded_with_their_step(tmp_path, monkeypatch):
    model, calls = load("tiny/llada"), []

    def spoil(module, given, logits):
        calls.append(1)
        return logits * float("nan") if len(calls) > 2 else logits

    model.network.get_output_embeddings().register_forward_hook(spoil)
    monkeypatch.setattr(Worker, "model", lambda self, ref: model)
    fields = FIELDS | {"decodings": {"d": "low-confidence:length=4,steps=4"}}
    result = sweep(fields, tmp_path / "R", workers=0)
    assert "NaN at step 2" in next(iter(result.failed.values()))
    assert folder_bytes(tmp_path / "R") == {}


def test_out_of_memory_makes_smaller_tiles_then_a_failure(tmp_path, monkeypatch):
    real, enough = run_cell.run, [4]

    def limited(*given, **more):
        if reduce._DIVISOR.get() < enough[0]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return real(*given, **more)

    monkeypatch.setattr(run_cell, "run", limited)
    assert sweep(FIELDS, tmp_path / "A", workers=0).exit_code == 0
    folder = open_cells(tmp_path / "A")
    assert folder.record(next(iter(folder.done())))["smaller_tiles"] == 4
    enough[0] = 10**6
    result = sweep(FIELDS, tmp_path / "B", workers=0)
    assert "not enough memory" in next(iter(result.failed.values()))


def test_smaller_tiles_measure_the_same():
    import numpy as np

    import anchorwatch as aw
    from tolerances import SUMMED

    model = load("tiny/llada")
    usual = aw.run(model, "the anchor holds the ship", aw.decoding.LowConfidence(8))
    with reduce.smaller_tiles(16):
        small = aw.run(model, "the anchor holds the ship", aw.decoding.LowConfidence(8))
    np.testing.assert_allclose(small["received"].values, usual["received"].values, atol=SUMMED)


def test_a_model_folder_that_changes_under_a_sweep(tmp_path):
    source = tmp_path / "model"
    shutil.copytree(zoo.folder_of("lab/toy-mdm"), source)
    fields = FIELDS | {"models": [str(source)]}
    prepared, out = prepare(fields), tmp_path / "R"
    open_cells(out, create=True)
    config = source / "config.json"
    text = config.read_text()
    config.write_text(text + "\n")
    job = prepared.job(next(iter(prepared.keys.cells())), str(out))
    (outcome,) = InProcess().run([job])
    assert "were changed since the work was planned" in outcome.reason
    config.write_text(text)  # the old ones again, with another time
    (outcome,) = InProcess().run([job])
    assert outcome.status == "done"


def test_a_made_model_is_the_same_in_another_dtype(tmp_path):
    result = sweep(FIELDS | {"load": {"dtype": "bfloat16"}}, tmp_path / "R", workers=0)
    assert result.failed == {}


def test_workers_are_as_many_as_their_models_leave_memory_for(monkeypatch):
    """Two cores; memory for one worker with this model, or for two without one."""
    model = ModelRef("lab/toy-mdm")
    room = 2 * local._WORKER_BYTES + largest_model([model])
    monkeypatch.setattr(local, "memory_bytes", lambda: room)
    monkeypatch.setattr(local, "count_cores", lambda: 2)
    monkeypatch.setattr(local, "list_gpus", list)
    counts = []
    monkeypatch.setattr(LocalEngine, "run", lambda self, jobs: counts.append(self.workers) or [])
    for ref in (model, ModelRef("tiny/llada")):
        EngineOptions().run([Job("a", ref, "anchorwatch.x:y", None)])
    assert counts == [1, 2]


def test_bars_are_shown_after_a_sweep_in_this_process(tmp_path):
    sweep(FIELDS, tmp_path / "R", workers=0)
    with Progress("next", total=1) as bar:
        assert bar._outer


def test_workers_of_other_versions_are_refused(monkeypatch):
    monkeypatch.setattr(local, "versions", lambda: {"torch": "0.1"})
    with pytest.raises(AnchorwatchError, match=r"has torch .* instead of 0\.1"):
        list(LocalEngine(1).run([Job("a", ModelRef("tiny/llada"), "anchorwatch.x:y", None)]))


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("auto", ConnectionError("Could not find any running Ray instance.")),
        ("10.0.0.1:6379", RuntimeError("Version mismatch: The cluster was started with:\n Ray: 1")),
        (None, ValueError("Ray is not for this machine")),
    ],
)
def test_a_ray_that_is_not_there_is_said(monkeypatch, address, error):
    """Without an address a Ray of ours is started, also beside one that runs here already."""
    from anchorwatch.models.engines import on_ray

    given = {}

    def refuse(**words):
        given.update(words)
        raise error

    monkeypatch.setattr(on_ray.ray, "init", refuse)
    job = Job("a", ModelRef("tiny/llada"), "anchorwatch.x:y", None)
    with pytest.raises(AnchorwatchError, match=r"there is no Ray to use .* `ray start --head`"):
        list(EngineOptions("ray", 1, address=address).run([job]))
    assert given["address"] == (address or "local")


def test_a_cluster_decides_how_many_workers_there_are(monkeypatch):
    from anchorwatch.models.engines import on_ray

    resources = {"CPU": 12.0, "memory": 8.5 * local._WORKER_BYTES}
    monkeypatch.setattr(on_ray.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(on_ray.ray, "cluster_resources", lambda: resources)
    options = EngineOptions("ray", threads=1, address="auto")
    assert options.make()._count_workers() == 8  # as far as memory goes
    assert EngineOptions("ray", threads=2, address="auto").make()._count_workers() == 6
    resources["GPU"] = 3.0
    assert options.make()._count_workers() == 3
    assert EngineOptions("ray", 5, address="auto").make()._count_workers() == 5


class Waiting:
    """A worker of a Ray that has room for one only: the first answers, the others never begin."""

    count = 0

    def __init__(self):
        Waiting.count += 1
        self._begins = Waiting.count == 1
        self.greet = SimpleNamespace(remote=lambda: self._call(("name", 1, versions())))
        self.perform = SimpleNamespace(remote=lambda job: self._call(Outcome(job, "done")))

    def _call(self, value):
        return SimpleNamespace(value=value, ready=self._begins)


def test_workers_that_never_begin_are_not_waited_for_at_the_end(monkeypatch):
    from anchorwatch.models.engines import on_ray

    looks = []

    def wait(calls, timeout):
        looks.append(1)
        assert len(looks) < 20, "it waits for workers that have nothing to do"
        return [call for call in calls if call.ready], []

    ray = SimpleNamespace(
        is_initialized=lambda: True, wait=wait, get=lambda call: call.value, kill=lambda actor: None
    )
    monkeypatch.setattr(on_ray, "ray", ray)
    monkeypatch.setattr(on_ray.RayEngine, "_start", lambda self: Waiting())
    jobs = [Job(name, ModelRef("tiny/llada"), "anchorwatch.x:y", None) for name in "abc"]
    assert [outcome.job.name for outcome in on_ray.RayEngine(2).run(jobs)] == ["a", "b", "c"]


def test_a_job_that_kills_its_workers_is_given_up():
    job = Job("a", ModelRef("tiny/llada"), "", None)
    queue = JobQueue([job])
    for _ in range(MOST_DEATHS - 1):
        assert queue.take(None) is job
        assert queue.put_back_after_death(job, "signal SIGKILL") is None
    outcome = queue.put_back_after_death(queue.take(None), "signal SIGKILL")
    assert outcome.status == "failed"
    assert "SIGKILL" in outcome.reason


def test_a_cell_that_another_process_computes_is_waited_for(tmp_path):
    prepared, out = prepare(FIELDS), tmp_path / "R"
    folder = open_cells(out, create=True)
    cell = next(iter(prepared.keys.cells()))
    claim = folder.claim(cell.name)
    assert folder.claim(cell.name) is None
    assert list(folder.running()) == [cell.name]
    engine = _Kept()
    (outcome,) = engine.run([prepared.job(cell, str(out))])
    assert outcome.status == "busy"
    claim.release()
    (outcome,) = engine.run([prepared.job(cell, str(out))])
    assert (outcome.status, folder.running()) == ("done", {})


@pytest.mark.slow
def test_two_sweeps_on_one_folder_compute_nothing_twice(tmp_path):
    spec = tmp_path / "s.toml"
    spec.write_text(
        'models = ["tiny/llada"]\nprompts = ["the anchor"]\nseeds = [0, 1, 2, 3, 4, 5, 6, 7]\n'
        '[decodings]\nd = "low-confidence:length=4"\n'
    )
    words = [
        sys.executable,
        "-m",
        "anchorwatch",
        "sweep",
        spec,
        "-o",
        tmp_path / "R",
        "--workers",
        "1",
    ]
    both = [subprocess.Popen(list(map(str, words))) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    state = read_status(tmp_path / "R")
    assert (state.done, state.computed) == (8, 8)


@pytest.mark.slow
def test_a_killed_driver_leaves_a_folder_to_go_on_from(tmp_path):
    from kill_sweeps import spec_of
    from waiting import wait_until

    code = "import json,sys; from anchorwatch.sweeps.sweep import sweep; sweep(json.loads(sys.argv[1]), sys.argv[2], workers=2)"
    import json

    spec = spec_of(20)
    words = [sys.executable, "-c", code, json.dumps(spec), str(tmp_path / "R")]
    driver = subprocess.Popen(words)
    wait_until(lambda: len(open_cells(tmp_path / "R").done()) >= 3, "three cells")
    driver.kill()
    driver.wait()
    assert sweep(spec, tmp_path / "R", workers=0).exit_code == 0
    sweep(spec, tmp_path / "calm", workers=0)
    assert folder_bytes(tmp_path / "R") == folder_bytes(tmp_path / "calm")


@pytest.mark.slow
def test_killed_workers_lose_nothing(tmp_path):
    left = torture(tmp_path, 20, 3, EngineOptions("local", workers=2))
    assert left["committed"] == 20
    assert left["equal_bytes"]
    assert (left["failed"], left["damaged"], left["left_over"]) == (0, 0, 0)
    assert left["computed_twice"] <= left["kills"]


class Cells(RuleBasedStateMachine):
    """Workers that claim, commit and crash at any moment, on a real folder.

    A cell has one owner at most; what was committed stays as it is; when all that crashed is swept,
    every cell can be finished and nothing else is left.
    """

    def __init__(self):
        super().__init__()
        import tempfile

        self._temporary = tempfile.TemporaryDirectory()
        self.path = Path(self._temporary.name) / "R"
        self.folder = open_cells(self.path, create=True)
        self.axes, keys = plan()
        self.cells = list(keys.cells())[:4]
        self.owners = {}
        self.committed = {}
        self.litter = []

    @rule(cell=integers(0, 3))
    def claim(self, cell):
        name = self.cells[cell].name
        claim = self.folder.claim(name)
        assert (claim is None) == (name in self.owners)
        if claim is not None:
            self.owners[name] = claim

    @precondition(lambda self: self.owners)
    @rule(pick=integers(0, 3))
    def commit(self, pick):
        name = sorted(self.owners)[pick % len(self.owners)]
        self._commit(name)
        self.owners.pop(name).release()

    def _commit(self, name):
        cell = next(cell for cell in self.cells if cell.name == name)
        with self.folder.stage() as staged:
            atomic_io.put_file(staged / RECORD, atomic_io.seal(record_of(self.axes, cell)))
            self.folder.commit(name, staged)
        self.committed.setdefault(name, self.folder.read_bytes(self.folder.record_name(name)))

    @precondition(lambda self: self.owners)
    @rule(pick=integers(0, 3), written=integers(0, 3))
    def crash(self, pick, written):
        """The process ends: the kernel lets its locks go, its files stay."""
        name = sorted(self.owners)[pick % len(self.owners)]
        if written:
            path, handle = locks._create_temporary(self.path / "growing" / "cell", folder=True)
            (path / RECORD).write_bytes(b"{" * written)
            os.close(handle)
            self.litter.append(path)
        self.owners.pop(name)._lock.release()

    @rule()
    def resume(self):
        """A new sweep finishes what nobody is at."""
        with ExitStack() as stack:
            for cell in self.cells:
                if self.folder.is_done(cell.name) or cell.name in self.owners:
                    continue
                claim = self.folder.claim(cell.name)
                assert claim is not None
                stack.callback(claim.release)
                self._commit(cell.name)
        assert {cell.name for cell in self.cells} == self.folder.done() | set(self.owners)

    @invariant()
    def committed_cells_stay(self):
        assert self.folder.done() == set(self.committed)
        for name, content in self.committed.items():
            assert self.folder.read_bytes(self.folder.record_name(name)) == content
        assert set(self.folder.running()) == set(self.owners)

    def teardown(self):
        for claim in self.owners.values():
            claim.release()
        with self.folder.stage():
            assert not [path for path in self.litter if path.exists()]
        with suppress(OSError):
            self._temporary.cleanup()


Cells.TestCase.settings = settings(max_examples=8, stateful_step_count=10, deadline=None)
TestCells = Cells.TestCase
