"""Killed at any moment and started again, a run ends with the same weights, bit for bit."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from anchorwatch.errors import SpecError
from anchorwatch.training import fit
from anchorwatch.training.checkpoints import read_newest
from anchorwatch.training.log import from_json
from toy_texts import Texts, fields, stopped_before, tokenizer

SCRIPT = Path(__file__).with_name("killed.py")
KILLED = -signal.SIGKILL


class Runs:
    """One process that forks a child for each run."""

    def __init__(self):
        env = os.environ | {"HF_HUB_OFFLINE": "1"}
        pipe, words = subprocess.PIPE, [sys.executable, str(SCRIPT)]
        self.server = subprocess.Popen(words, stdin=pipe, stdout=pipe, env=env, text=True)

    def __call__(self, out, moment="never", number=1):
        self.server.stdin.write(f"{out}|{moment}|{number}\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())


@pytest.fixture(scope="module")
def runs():
    held = Runs()
    yield held
    held.server.stdin.close()
    held.server.wait()
    held.server.stdout.close()


def weights(out):
    return load_file(out / "model" / "model.safetensors")


def curve(out):
    """All that is logged but the speed, which is the machine's."""
    lines = from_json((out / "log.jsonl").read_text())
    return [(one.update, one.loss, one.lr, one.grad_norm, one.tokens) for one in lines]


@pytest.fixture(scope="module")
def whole(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    assert runs(out) == 0
    return out


def same(one, other):
    assert curve(one) == curve(other)
    held, expected = weights(one), weights(other)
    assert held.keys() == expected.keys()
    for name in expected:
        assert torch.equal(held[name], expected[name]), name


CHAINS = {
    # run.json, log.jsonl, log.csv
    "beginning": [("before a small file has its name", number) for number in (1, 2, 2)],
    "updates": [("in an update", 2), ("after an update", 6), ("in an update", 3)],
    "logs": [("after a log line", 2), ("after a log line", 1), ("in an update", 5)],
    "writes": [
        ("while tensors are written", 1),
        ("before the record", 1),
        ("before the record", 2),
    ],
    "renames": [("before the rename", 1), ("after the rename", 2), ("before the old one goes", 1)],
    "end": [("before the model", 1), ("before the rename", 1)],
}


QUICK = ("updates", "writes", "renames")
CHOSEN = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in CHAINS]


@pytest.mark.parametrize("chain", CHOSEN)
def test_killed_at_named_moments(chain, runs, whole, tmp_path):
    out = tmp_path / "run"
    for moment, number in CHAINS[chain]:
        assert runs(out, moment, number) == KILLED, moment
    assert runs(out) == 0
    same(out, whole)
    assert not list(out.rglob("*.tmp"))


def test_killed_while_the_record_is_written(runs, whole, tmp_path):
    out = tmp_path / "run"
    assert runs(out, "before a small file has its name") == KILLED
    left = sorted(path.name for path in out.iterdir())
    assert [name.startswith(".run.json.") for name in left] == [False, True, False]
    (out / left[1]).write_text('{"half')
    assert runs(out) == 0
    same(out, whole)
    assert not list(out.rglob("*.tmp"))


def test_killed_between_the_model_and_its_curve(runs, whole, tmp_path):
    out = tmp_path / "run"
    assert runs(out, "after the model") == KILLED
    assert (out / "model").exists()
    assert not (out / "loss.pdf").exists()
    assert runs(out) == 0
    same(out, whole)
    assert (out / "loss.pdf").read_bytes() == (whole / "loss.pdf").read_bytes()


@pytest.mark.slow
def test_killed_at_drawn_file_operations(runs, whole, tmp_path):
    out, chance = tmp_path / "run", random.Random(0)
    for _ in range(8):
        assert runs(out, "before a file operation", chance.randrange(1, 60)) in (0, KILLED)
    assert runs(out) == 0
    same(out, whole)


def test_nothing_is_left_lying_about(whole):
    assert not list(whole.rglob("*.tmp"))
    assert sorted(path.name for path in (whole / "checkpoints").iterdir()) == ["update-00000011"]
    held = read_newest(whole)
    assert held.update == 11
    assert len(held.lines) == 11
    assert json.loads((whole / "run.json").read_text())["spec"]["updates"] == 11


def test_a_finished_run_is_not_trained_again(runs, whole):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}
    assert runs(whole) == 0
    after = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}
    assert {p: t for p, t in after.items() if p.name != ".lock"} == {
        p: t for p, t in before.items() if p.name != ".lock"
    }


@pytest.mark.parametrize("name", ["log.jsonl", "log.csv"])
@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-30], lambda raw: raw.replace(b"1", b"2"), None]
)
def test_a_damaged_log_of_a_finished_run_is_written_anew(runs, whole, tmp_path, name, damage):
    out = shutil.copytree(whole, tmp_path / "run")
    before = (out / name).read_bytes()
    if damage is None:
        (out / name).unlink()
    else:
        (out / name).write_bytes(damage(before))
    assert runs(out) == 0
    assert (out / name).read_bytes() == before


def test_a_run_whose_rate_falls_late_is_made_longer_before_it_falls(tmp_path):
    late = {"lr": 1e-2, "warm_up": 2, "fall": "late", "last": 0.25}
    whole = fit(
        fields(updates=16, optimizer=late),
        tmp_path / "whole",
        corpus=Texts(),
        tokenizer=tokenizer(),
    )
    cut = tmp_path / "cut"
    said = {"optimizer": late, "checkpoints": {"updates": 4}}
    with stopped_before(9):
        fit(fields(updates=12, **said), cut, corpus=Texts(), tokenizer=tokenizer())
    longer = fit(fields(updates=16, **said), cut, corpus=Texts(), tokenizer=tokenizer())
    assert longer.resumed_at == 8
    one, other = (load_file(run.model / "model.safetensors") for run in (whole, longer))
    assert all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(SpecError, match="only before its rate begins to fall"):
        fit(fields(updates=20, **said), cut, corpus=Texts(), tokenizer=tokenizer())


def test_a_run_whose_warm_up_is_a_share_is_not_made_longer_and_says_why(tmp_path):
    late = {"lr": 1e-2, "warm_up": 0.25, "fall": "late", "last": 0.25}
    said = {"optimizer": late, "checkpoints": {"updates": 4}}
    with stopped_before(9):
        fit(fields(updates=16, **said), tmp_path, corpus=Texts(), tokenizer=tokenizer())
    says = r"warm_up = 0.25 is a share of updates: .* it would be 8; .* such as warm_up = 4, can be"
    with pytest.raises(SpecError, match=says):
        fit(fields(updates=32, **said), tmp_path, corpus=Texts(), tokenizer=tokenizer())


def test_a_run_at_one_rate_is_stopped_early_and_gone_on_with(tmp_path):
    late = {"optimizer": {"lr": 1e-2, "warm_up": 2, "fall": "late", "last": 0.0}}
    whole = fit(
        fields(updates=12, **late), tmp_path / "whole", corpus=Texts(), tokenizer=tokenizer()
    )
    cut = tmp_path / "cut"
    early = fit(fields(updates=7, **late), cut, corpus=Texts(), tokenizer=tokenizer())
    assert early.updates == 7
    later = fit(fields(updates=12, **late), cut, corpus=Texts(), tokenizer=tokenizer())
    one, other = (load_file(run.model / "model.safetensors") for run in (whole, later))
    assert all(torch.equal(one[name], other[name]) for name in one)
