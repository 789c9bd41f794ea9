"""Sweeps end to end: in this process, in worker processes, and typed at the command line."""

import errno
import json
import os
import signal
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

import anchorwatch as aw
from anchorwatch.cli.app import app
from anchorwatch.errors import AnchorwatchError, AnchorwatchWarning, SpecError, TraceError
from anchorwatch.models.engines.choose import EngineOptions
from anchorwatch.models.engines.jobs import Outcome
from anchorwatch.models.engines.local import InProcess, LocalEngine
from anchorwatch.models.engines.worker import Worker
from anchorwatch.sweeps.plan import plan_sweep
from anchorwatch.sweeps.run_cell import run_cell
from anchorwatch.sweeps.status import read_status
from anchorwatch.sweeps.sweep import prepare, sweep
from anchorwatch.trace.cells import INDEX, LocalCells, open_cells

FIELDS = {
    "models": ["tiny/llada"],
    "prompts": ["the anchor", "the ship"],
    "decodings": {"short": {"mdm": "low-confidence:length=3", "arm": "left-to-right:length=3"}},
    "edits": {"none": "", "sinks": "hide-sinks:1"},
}


def type_words(*words):
    return CliRunner().invoke(app, [*map(str, words)])


def folder_bytes(folder):
    root = Path(folder) / "cells"
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "R"
    assert sweep(FIELDS, out, workers=0).computed == 4
    return out


def test_a_cell_is_the_run_that_its_labels_say(undisturbed):
    runs = aw.open_runs(undisturbed)
    row = runs.table.query("prompt == 'the ship' and edit == 'sinks'").index[0]
    again = aw.run(
        aw.load("tiny/llada"),
        "the ship",
        aw.decoding.LowConfidence(3),
        edits=[aw.edits.hide_sinks(1)],
    )
    assert runs[row].digest() == again.digest()
    assert runs.table.loc[row, "answer"] == again.text


def test_the_same_call_again_computes_nothing(undisturbed):
    before = folder_bytes(undisturbed)
    again = sweep(FIELDS, undisturbed, workers=0)
    assert (again.computed, again.exit_code) == (0, 0)
    assert folder_bytes(undisturbed) == before
    more = sweep(FIELDS | {"seeds": [0, 1]}, undisturbed, workers=0)
    assert more.computed == 4
    assert before.items() <= folder_bytes(undisturbed).items()


def test_shards_together_make_the_whole(undisturbed, tmp_path):
    for shard in ("1/3", "2/3", "3/3"):
        sweep(FIELDS, tmp_path / "R", workers=0, shard=shard)
    assert folder_bytes(tmp_path / "R").items() <= folder_bytes(undisturbed).items()
    assert read_status(tmp_path / "R").left == 0


def test_workers_make_the_same_bytes_and_survive_a_kill(undisturbed, tmp_path):
    """A worker is killed after its first cell; its job goes to the next one."""
    killed = []

    def kill(outcome):
        if not killed:
            pids = [int(p.stem.split("-")[-2]) for p in (tmp_path / "R" / "journal").iterdir()]
            killed.append(pids[0])
            os.kill(pids[0], signal.SIGKILL)

    result = sweep(FIELDS, tmp_path / "R", workers=2, on_outcome=kill)
    assert (result.exit_code, len(killed)) == (0, 1)
    assert folder_bytes(tmp_path / "R").items() <= folder_bytes(undisturbed).items()
    state = read_status(tmp_path / "R")
    assert state.done == 4
    assert state.computed <= 4 + 2  # those in flight at the kill
    assert not list((tmp_path / "R" / "claims").iterdir())


def test_a_claim_that_a_killed_worker_left_on_a_whole_cell_goes(tmp_path):
    """The kill falls between writing the cell and letting go of the claim."""
    out = tmp_path / "R"
    sweep(ONE, out, workers=0)
    prepared = prepare(ONE)
    job = prepared.job(next(iter(prepared.keys.cells())), str(out))
    left = out / "claims" / f"{job.name}.lock"
    left.touch()
    assert run_cell(Worker(), job) is False
    assert not left.exists()


def test_a_failed_cell_is_recorded_and_the_others_go_on(tmp_path):
    fields = FIELDS | {"prompts": ["the anchor", "the ship " * 400]}
    result = sweep(fields, tmp_path / "R", workers=0)
    assert (result.exit_code, len(result.failed)) == (3, 2)
    state = read_status(tmp_path / "R")
    assert (state.done, len(state.failed), state.exit_code) == (2, 2, 3)
    assert "positions" in next(iter(state.failed.values()))
    assert "failed 2, such as" in str(state)


def test_a_failure_is_forgotten_when_the_cell_is_made(tmp_path, monkeypatch):
    from anchorwatch.sweeps import run_cell

    real = run_cell.run

    def broken(*given, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_cell, "run", broken)
    assert sweep(FIELDS, tmp_path / "R", workers=0).exit_code == 1
    assert "No space left" in next(iter(read_status(tmp_path / "R").failed.values()))
    monkeypatch.setattr(run_cell, "run", real)
    assert sweep(FIELDS, tmp_path / "R", workers=0).exit_code == 0
    assert read_status(tmp_path / "R").failed == {}


def test_the_commands(tmp_path):
    spec = tmp_path / "s.toml"
    spec.write_text(
        'models = ["tiny/llada"]\nprompts = ["the anchor"]\n[decodings]\nd = "low-confidence:length=2"\n'
    )
    out = tmp_path / "R"
    planned = type_words("sweep", spec, "-o", out, "--plan", "--json")
    assert json.loads(planned.stdout)["passes"] == 2
    assert not out.exists()
    assert type_words("sweep", spec, "-o", out, "--workers", 0).exit_code == 0
    state = type_words("status", out, "--json")
    assert (state.exit_code, json.loads(state.stdout)["done"]) == (0, 1)
    assert "1 of 1 cells done (100%)" in type_words("status", out).stdout
    refused = type_words("sweep", spec, "-o", out, "--engine", "dask")
    assert "expected local or ray" in str(refused.exception)


def test_wrong_places_are_refused(tmp_path):
    with pytest.raises(TraceError, match="there is no sweep at"):
        read_status(tmp_path)
    with pytest.raises(TraceError, match="there are no runs at"):
        aw.open_runs(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(SpecError, match="is a file"):
        sweep(FIELDS, tmp_path / "file", workers=0)
    with pytest.raises(SpecError, match="say workers=0"):
        sweep(FIELDS, "memory://runs")
    with pytest.raises(SpecError, match="an address is Ray's"):
        EngineOptions("local", address="auto")


def test_workers_that_cannot_begin_are_said(monkeypatch):
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    from anchorwatch.models.engines.jobs import Job, ModelRef

    with pytest.raises(AnchorwatchError, match="workers end before they begin"):
        list(LocalEngine(1).run([Job("a", ModelRef("tiny/llada"), "anchorwatch.x:y", None)]))


ONE = FIELDS | {"prompts": ["the anchor"], "edits": {"none": ""}, "probes": "none"}


def test_prompts_may_be_added_anywhere(tmp_path):
    """A prompt without an id is called by its words, not by its place in the list."""
    sweep(ONE, tmp_path / "R", workers=0)
    more = sweep(ONE | {"prompts": ["a rope", "the anchor"]}, tmp_path / "R", workers=0)
    assert more.computed == 1
    runs = aw.open_runs(tmp_path / "R")
    model, how = aw.load("tiny/llada"), aw.decoding.LowConfidence(3)
    for words, trace in zip(("a rope", "the anchor"), runs, strict=True):
        assert trace.digest() == aw.run(model, words, how, probes=()).digest()
    assert runs.table["prompt"].tolist() == ["a rope", "the anchor"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"edits": {"none": "hide-sinks:1"}}, "edits: 'none' was something else"),
        ({"decodings": {"short": "low-confidence:length=2"}}, "decodings: 'short' was something"),
    ],
)
def test_a_label_keeps_its_meaning_in_a_folder(tmp_path, change, says):
    typed_wrong = prepare(ONE | {"edits": {"none": "hide-sinks:9"}}).record
    open_cells(tmp_path / "R", create=True).put_sweep(typed_wrong, "0" * 32)  # and no cell made
    sweep(ONE, tmp_path / "R", workers=0)
    with pytest.raises(SpecError, match=f"{says} .* another name, or choose another folder"):
        sweep(ONE | change, tmp_path / "R", workers=0)
    with pytest.warns(AnchorwatchWarning, match="the probes or the installed versions: changed"):
        sweep(ONE | {"probes": "default"}, tmp_path / "R", workers=0)
    state = read_status(tmp_path / "R")
    assert sorted(state.sweeps.values()) == [(0, 1), (1, 1), (1, 1)]
    assert "3 sweeps share the folder" in str(state)


def test_status_survives_damaged_records_and_notes(tmp_path):
    out = tmp_path / "R"
    sweep(ONE, out, workers=0)
    cell = next(iter(open_cells(out).done()))
    (out / "journal" / "x.jsonl").write_bytes(
        b'{"event": "done"}\n{"event": "done", "when": 1, "seconds": []}\n\xff\n[1]\n{"event'
    )
    (out / "failed" / f"{cell}.json").write_bytes(b"{half")
    for name in ("failed", "sweeps", "cells"):
        (out / name / "notes.txt").write_text("mine")
    assert read_status(out).exit_code == 0
    (out / "cells" / cell).rename(tmp_path / "elsewhere")
    assert "is damaged" in read_status(out).failed[cell]
    assert sweep(ONE, out, workers=0).computed == 1
    assert read_status(out).failed == {}
    record = next((out / "sweeps").glob("*.json"))
    record.write_bytes(b"{}")
    with pytest.raises(TraceError, match=r"is damaged .* remove it, and run the sweep again"):
        read_status(out)
    sweep(ONE, out, workers=0)
    assert read_status(out).exit_code == 0


def test_a_shard_is_planned_alone_and_by_a_prompt_that_fits():
    fields = ONE | {"prompts": ["the ship " * 400, "the anchor"], "seeds": [0, 1]}
    whole, part = plan_sweep(fields), plan_sweep(fields, shard="2/2")
    assert (whole.cells, whole.planned, whole.passes) == (4, 4, 6)
    assert (part.cells, part.planned, part.passes) == (4, 2, 6)
    assert part.seconds > 0
    assert "4 cells, 2 in this shard" in str(part)


def test_an_index_that_cannot_be_written_costs_no_cell(tmp_path, monkeypatch):
    real = LocalCells.write_bytes

    def full(self, name, content):
        if name == INDEX:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(self, name, content)

    monkeypatch.setattr(LocalCells, "write_bytes", full)
    with pytest.warns(AnchorwatchWarning, match=r"index\.parquet cannot be written \(No space"):
        assert sweep(ONE, tmp_path / "R", workers=0).exit_code == 0
    assert len(aw.open_runs(tmp_path / "R")) == 1


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    def closed(self, name, content):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    sweep(ONE, tmp_path / "R", workers=0)
    monkeypatch.setattr(LocalCells, "write_bytes", closed)
    assert sweep(ONE, tmp_path / "R", workers=0).exit_code == 0  # nothing is to be written
    with pytest.raises(SpecError, match=r"cannot be written, Read-only .* choose another place"):
        sweep(ONE | {"seeds": [0, 1]}, tmp_path / "R", workers=0)
    with pytest.raises(SpecError, match="say -o runs/sweep"):
        sweep(ONE, "", workers=0)


def test_cells_that_are_not_in_the_folder_are_failures(tmp_path, monkeypatch):
    """Workers of a cluster whose machines do not share the disk."""

    def elsewhere(self, jobs):
        yield from (Outcome(job, "done", value=True) for job in jobs)

    monkeypatch.setattr(InProcess, "run", elsewhere)
    result = sweep(ONE, tmp_path / "R", workers=0)
    assert result.exit_code == 1
    assert "name a folder that all machines see" in next(iter(result.failed.values()))


def test_relative_folders_are_named_from_the_root_to_workers(tmp_path, monkeypatch):
    paths = []

    def note(self, jobs):
        paths.extend(job.payload.folder for job in jobs)
        return iter(())

    monkeypatch.setattr(InProcess, "run", note)
    monkeypatch.chdir(tmp_path)
    sweep(ONE, "R", workers=0)
    assert paths == [str(tmp_path / "R")]


def test_others_are_waited_for_without_workers(tmp_path, monkeypatch):
    """A second sweep of a folder starts no workers again and again while the first is at it."""
    out, starts, real = tmp_path / "R", [], InProcess.run
    cell = next(iter(prepare(ONE).keys.cells())).name
    claim = open_cells(out, create=True).claim(cell)

    def count(self, jobs):
        starts.append(len(jobs))
        return real(self, jobs)

    monkeypatch.setattr(InProcess, "run", count)
    results = []
    second = threading.Thread(target=lambda: results.append(sweep(ONE, out, workers=0)))
    second.start()
    second.join(1.2)  # longer than two looks
    assert second.is_alive()
    claim.release()
    second.join()
    assert (results[0].computed, starts) == (1, [1, 1])


def test_an_interrupt_says_how_to_go_on(tmp_path, monkeypatch):
    def stop(*given, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("anchorwatch.sweeps.sweep.sweep", stop)
    (tmp_path / "s.toml").write_text('models = ["tiny/llada"]\nprompts = ["the anchor"]\n')
    typed = type_words("sweep", tmp_path / "s.toml", "-o", tmp_path / "R")
    assert (typed.exit_code, "the same command goes on" in typed.output) == (130, True)
