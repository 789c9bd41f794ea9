"""Sweeps end to end: in this process, in worker processes, and typed at the command line."""

import json
import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

import anchorwatch as aw
from anchorwatch.cli.app import app
from anchorwatch.errors import AnchorwatchError, SpecError, TraceError
from anchorwatch.models.engines.choose import EngineOptions
from anchorwatch.models.engines.local import LocalEngine
from anchorwatch.sweeps.status import read_status
from anchorwatch.sweeps.sweep import sweep

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
    row = runs.table.query("prompt == 'prompt 1' and edit == 'sinks'").index[0]
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
