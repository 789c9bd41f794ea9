"""What training says when it cannot be done; each message says what would have worked."""

import errno
import fcntl
import os
import re
import resource

import numpy as np
import pytest

from anchorwatch.errors import SpecError, TrainingError
from anchorwatch.training import checkpoints, fit, read
from anchorwatch.training.spec import from_dict
from toy_texts import Text, Texts, fields, tokenizer

WRONG = {
    "unknown field": (
        {"batchsize": 3},
        "there is no field batchsize: expected one of model, length",
    ),
    "unknown inner field": (
        {"optimizer": {"lrr": 1}},
        "no field optimizer.lrr: expected one of lr",
    ),
    "no number": ({"updates": "many"}, "updates = 'many': input should be a valid integer"),
    "a flag for a number": ({"updates": True}, "updates = True: input should be a valid integer"),
    "unknown objective": (
        {"objective": {"name": "mlm"}},
        "'diffusion', 'next_token' or 'fine_tune'",
    ),
    "unknown size": ({"model": {"size": "7M"}}, "size '7M' is unknown: expected 6M, 19M"),
    "size twice": (
        {"model": {"size": "6M", "layers": 3}},
        "size says layers already: leave it out",
    ),
    "no shape": ({"model": {}}, "say size = '6M', or layers, width and heads, or from = 'folder'"),
    "two shapes": ({"model": {"from": "x", "layers": 2}}, "brings its own shape: leave layers out"),
    "odd heads": ({"model": {"layers": 1, "width": 30, "heads": 4}}, "width 32 does"),
    "batch": ({"batch": 9, "accumulation": 2}, "say batch = 8"),
    "too long": (
        {"model": {"layers": 1, "width": 32, "heads": 4, "positions": 8}},
        "lower length or raise model.positions",
    ),
    "noise for next token": ({"objective": {"name": "next_token", "eps": 0.1}}, "leave eps out"),
    "least of counted masks": (
        {"objective": {"masks": "counted", "eps": 0.1}},
        "counted masks have no least probability: leave eps out",
    ),
    "fine tuning nothing": ({"objective": {"name": "fine_tune"}}, "say model.from"),
    "lora of nothing": ({"lora": {"rank": 2}}, "say model.from, or leave lora out"),
    "nameless part": ({"variant": [{"n": 1}]}, 'expected {name = "gate"}'),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_spec_says_what_would_have_worked(case):
    differs, said = WRONG[case]
    with pytest.raises(SpecError, match=re.escape(said)):
        from_dict(fields(**differs))


def test_a_file_that_is_no_spec(tmp_path):
    with pytest.raises(SpecError, match=r"cannot be read .*: give a SPEC.toml"):
        read(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("length = = 3")
    with pytest.raises(SpecError, match="is not TOML"):
        read(bad)
    good = tmp_path / "good.toml"
    good.write_text("length=16\nbatch=8\nupdates=3\n[model]\nlayers=1\nwidth=32\nheads=4\n")
    assert read(good, ["optimizer.lr=0.5", "model.network=qwen2"]).optimizer.lr == 0.5
    assert read(good, ["model.network=qwen2"]).model.network == "qwen2"
    for wrong in ("optimizer.lr", "=3", "batch.x=1"):
        with pytest.raises(SpecError, match=r"--set"):
            read(good, [wrong])


def train(out, texts=None, words=None, **differs):
    return fit(fields(**differs), out, corpus=texts or Texts(), tokenizer=words or tokenizer())


class Nothing:
    digest = "nothing"

    def __getitem__(self, index):
        raise IndexError(index)

    def describe(self):
        return {}


class Always(Nothing):
    def __init__(self, ids, scored=None):
        self.text = Text(np.asarray(ids), np.ones(len(ids), bool) if scored is None else scored)

    def __getitem__(self, index):
        return self.text


TEXTS = {
    "empty": (Nothing(), "the corpus is empty: give it at least one text"),
    "too long": (Always(range(6, 23)), "example 0 has 17 tokens and length is 16: raise length"),
    "another vocabulary": (
        Always([6, 40]),
        "token id 40 .* make corpus and network with one token",
    ),
    "no numbers": (Always(["a"]), "expected whole numbers and flags"),
    "flags missing": (Always([6, 7], np.ones(1, bool)), "expected whole numbers and flags"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_texts_that_cannot_be_trained_on_leave_nothing_behind(case, tmp_path):
    texts, said = TEXTS[case]
    with pytest.raises(SpecError, match=said):
        train(tmp_path / "run", texts)
    assert not list(tmp_path.iterdir())


def test_diffusion_needs_a_mask_token(tmp_path):
    with pytest.raises(SpecError, match="the tokenizer has none: add mask_token"):
        train(tmp_path / "run", words=tokenizer(masked=False))


def test_an_unknown_part_is_refused(tmp_path):
    with pytest.raises(SpecError, match="no part is called 'sponge'"):
        train(tmp_path / "run", variant=["sponge"])


def test_fine_tuning_needs_answers(tmp_path):
    done = train(tmp_path / "one", updates=2)
    plain = Always([6, 7, 8], np.zeros(3, bool))
    spec = fields(model={"from": str(done.model)}, objective={"name": "fine_tune"})
    with pytest.raises(SpecError, match="fine_tune needs one in each; use diffusion or next_token"):
        fit(spec, tmp_path / "two", corpus=plain)
    with pytest.raises(SpecError, match="is a diffusion model: use diffusion or fine_tune"):
        train(tmp_path / "two", model={"from": str(done.model)}, objective={"name": "next_token"})
    other = tokenizer(50)
    with pytest.raises(SpecError, match=r"another tokenizer .* the checkpoint's own is used"):
        fit(
            fields(model={"from": str(done.model)}),
            tmp_path / "two",
            corpus=Texts(),
            tokenizer=other,
        )
    with pytest.raises(SpecError, match="say length = 16 or less"):
        fit(fields(model={"from": str(done.model)}, length=17), tmp_path / "two", corpus=Texts())
    with pytest.raises(SpecError, match=r"lora.targets names x_proj, which this network has not"):
        train_from = {"model": {"from": str(done.model)}, "lora": {"targets": ["x_proj"]}}
        fit(fields(**train_from), tmp_path / "two", corpus=Texts())
    assert not (tmp_path / "two").exists()


def test_a_folder_of_another_run_is_refused_and_left_alone(tmp_path):
    out = tmp_path / "run"
    train(out, updates=2)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for differs in ({"seed": 1}, {"variant": ["gate"]}, {"objective": {"eps": 0.1}}):
        with pytest.raises(SpecError, match=r"is another run's folder .* there and .* here"):
            train(out, updates=2, **differs)
    with pytest.raises(SpecError, match=r"corpus.digest is"):
        train(out, Texts(count=5), updates=2)
    after = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert after == before
    train(out, updates=2, log={"every": 1}, checkpoints={"updates": 1})  # these do not decide


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(SpecError, match="holds something else than a training run: choose another"):
        train(tmp_path)
    with pytest.raises(SpecError, match="is a file: name a folder"):
        train(tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_two_processes_cannot_train_one_folder(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    with (out / checkpoints.LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TrainingError, match="is being trained by another process"):
            train(out, updates=2)


def full(path, content):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    out, written = tmp_path / "run", []
    honest = checkpoints.commit

    def commit(folder):
        written.append(folder)
        if len(written) == 2:
            full(folder, b"")
        honest(folder)

    monkeypatch.setattr(checkpoints, "commit", commit)
    said = {"updates": 8, "checkpoints": {"updates": 3}}
    with pytest.raises(
        TrainingError, match=r"No space left .* the one before it is kept; make room"
    ):
        train(out, **said)
    names = sorted(path.name for path in (out / "checkpoints").iterdir())
    assert names == ["update-00000003"]
    monkeypatch.setattr(checkpoints, "commit", honest)
    done = train(out, **said)
    assert done.resumed_at == 3
    whole = train(tmp_path / "whole", **said)
    assert [line.loss for line in done.lines] == [line.loss for line in whole.lines]


def test_a_file_that_cannot_grow_is_a_full_disk(tmp_path):
    """The limit is the kernel's, so that safetensors' own writer meets it too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    out = tmp_path / "run"
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # the weights are larger
        with pytest.raises(TrainingError, match="the checkpoint of update 4 could not be written"):
            train(out, updates=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list((out / "checkpoints").iterdir())
    assert train(out, updates=4).resumed_at == 0


def test_a_damaged_checkpoint_is_named(tmp_path):
    out = tmp_path / "run"
    done = train(out, updates=4)
    weights = next((out / "checkpoints").iterdir()) / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-5] ^= 1
    weights.write_bytes(raw)
    with pytest.raises(
        TrainingError, match=r"model.safetensors was changed.* begin again in another"
    ):
        train(out, updates=4)
    assert done.model.is_dir()


def test_a_loss_that_explodes_stops_the_run(tmp_path):
    with pytest.raises(
        TrainingError, match=r"the checkpoint of update 0 is kept; lower optimizer.lr"
    ):
        train(tmp_path / "run", updates=40, optimizer={"lr": 1e30, "clip": 1e30})
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_a_tracker_that_is_not_installed_is_said_first(tmp_path):
    with pytest.raises(SpecError, match="pip install trackio, or leave it out"):
        train(tmp_path / "run", log={"tracker": "trackio"})
    assert not (tmp_path / "run").exists()


PARTS = {
    "no part": ([{"name": "hide_sinks", "k": 1}], {}, "is no part of a model: expected what is"),
    "at steps": ([{"name": "gate", "steps": [1]}], {}, "expected what is always on, such as"),
    "twice": (["gate", {"name": "gate", "form": "headwise"}], {}, "a model has one of each kind"),
    "a digest": (
        [{"name": "sink_token", "embedding": "ab" * 32}],
        {},
        "variant names the embedding of sink_token by a digest: give its numbers, or a word",
    ),
    "a shape": (
        [{"name": "sink_token", "embedding": [1.0, 2.0]}],
        {},
        "this network takes [1, 32]",
    ),
    "a causal register": (
        ["register"],
        {"objective": {"name": "next_token"}},
        "is for networks that look both ways: use sink_token()",
    ),
    "compiled": (["gate"], {"compile": True}, "leave compile or the parts out"),
    "no mask": (
        [{"name": "sink_token", "embedding": "mask"}],
        {"objective": {"name": "next_token"}},
        "next_token has no mask token: use embedding = 'mean' or 'start'",
    ),
}


@pytest.mark.parametrize("case", PARTS)
def test_a_part_that_cannot_be_trained_is_said_before_anything_is_written(case, tmp_path):
    variant, differs, said = PARTS[case]
    with pytest.raises(SpecError, match=re.escape(said)):
        train(tmp_path / "run", variant=variant, **differs)
    assert not (tmp_path / "run").exists()


def test_a_part_that_the_checkpoint_has_is_not_given_again(tmp_path):
    first = train(tmp_path / "run", updates=1, variant=["sink_token"])
    again = fields(model={"from": str(first.model)}, variant=["sink_token"])
    with pytest.raises(SpecError, match=r"has a sink_token already, .*: leave it out of variant"):
        fit(again, tmp_path / "again", corpus=Texts())


def test_shards_cannot_train_parts(tmp_path, monkeypatch):
    from accelerate import Accelerator, DistributedType

    monkeypatch.setattr(Accelerator, "distributed_type", DistributedType.FSDP)
    with pytest.raises(SpecError, match="FSDP cannot train parts: use DDP, or leave variant out"):
        train(tmp_path / "run", variant=["gate"])
