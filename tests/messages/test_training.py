"""What training says when it cannot be done; each message says what would have worked."""

import errno
import fcntl
import json
import os
import re
import resource
import shutil

import numpy as np
import pytest

from anchorwatch.errors import AnchorwatchWarning, SpecError, TrainingError
from anchorwatch.trace.atomic_io import commit
from anchorwatch.training import checkpoints, fit, log, read
from anchorwatch.training.log import Log
from anchorwatch.training.spec import from_dict
from toy_texts import Text, Texts, fields, stopped_before, tokenizer

WRONG = {
    "unknown field": (
        {"batchsize": 3},
        "there is no field batchsize: did you mean batch?",
    ),
    "unknown inner field": (
        {"optimizer": {"lrr": 1}},
        "no field optimizer.lrr: did you mean lr?",
    ),
    "a field of nothing": ({"zzz": 1}, "there is no field zzz: expected one of model, length"),
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
    "a decay of one": ({"optimizer": {"betas": [1.0, 1.0]}}, "betas.0 = 1.0: input should be less"),
    "endless rate": ({"optimizer": {"lr": float("inf")}}, "lr = inf: input should be a finite"),
    "endless decay": (
        {"optimizer": {"weight_decay": float("inf")}},
        "weight_decay = inf: input should be a finite number",
    ),
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


class Ending(Texts):
    def __getitem__(self, index):
        return [Texts()[number] for number in range(self.count)][index]


TEXTS = {
    "empty": (Nothing(), r"the corpus ends \(it is empty\): give it at least one text"),
    "less than a batch": (Ending(3), r"there is no row 3, and the run reads 96\).*\[i % count\]"),
    "less than a run": (Ending(95), r"there is no row 95, and the run reads 96\).*\[i % count\]"),
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


LATE = {
    "too long": (
        {"kind": "questions", "hops": 2, "after": 200},  # beyond what the digest reads
        {"workers": 1, "updates": 40},
        "questions of 2 hops do not fit into length 16",
    ),
    "never": (
        {"kind": "prose", "after": 96},
        {},
        r"after=96 is never reached: the run reads rows 0 to 95; lower after, or raise updates",
    ),
}


@pytest.mark.parametrize("case", LATE)
def test_a_kind_that_begins_late_is_tried_at_the_start(case, tmp_path):
    kind, differs, said = LATE[case]
    mix = [{"kind": "backcopy"}, kind]
    with pytest.raises(SpecError, match=said):
        fit(fields(corpus={"vocabulary": 512, "mix": mix}, **differs), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_diffusion_needs_a_mask_token(tmp_path):
    with pytest.raises(SpecError, match="the tokenizer has none: add mask_token"):
        train(tmp_path / "run", words=tokenizer(masked=False))


def test_an_unknown_part_is_refused(tmp_path):
    with pytest.raises(SpecError, match="no part is called 'sponge'"):
        train(tmp_path / "run", variant=["sponge"])


def test_fine_tuning_an_autoregressive_model_has_no_noise(tmp_path):
    done = train(tmp_path / "one", updates=2, objective={"name": "next_token"})
    told = {"name": "fine_tune", "masks": "counted", "t": "uniform"}
    with pytest.raises(SpecError, match="has no noise; leave masks, t out, or use diffusion"):
        train(tmp_path / "two", model={"from": str(done.model)}, objective=told)


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """An autoregressive checkpoint with tied ends and an added token that nothing uses."""
    words = tokenizer(masked=False)
    words.add_special_tokens({"additional_special_tokens": ["<|spare|>"]})
    shape = {"layers": 2, "width": 32, "heads": 4, "tied": True}
    said = {"updates": 1, "objective": {"name": "next_token"}, "model": shape}
    return train(tmp_path_factory.mktemp("arm") / "run", words=words, **said).model


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    """A checkpoint with two key-value heads of eight channels."""
    shape = {"layers": 1, "width": 32, "heads": 4, "kv_heads": 2}
    return train(tmp_path_factory.mktemp("grouped") / "run", updates=1, model=shape).model


@pytest.mark.parametrize("target", ["embed_tokens", "lm_head", "mlp", "norm"])
def test_adapters_are_of_linear_layers_that_stand_alone(target, arm, tmp_path):
    spec = fields(model={"from": str(arm)}, lora={"targets": ["q_proj", target]})
    works = r"expected some of down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj$"
    with pytest.raises(SpecError, match=rf"names {target}, which is no linear .*: {works}"):
        fit(spec, tmp_path / "run", corpus=Texts())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("target", "side"), [("up_proj", 32), ("v_proj", 16)])
def test_adapters_have_no_more_directions_than_their_target(target, side, grouped, tmp_path):
    targets = [target, "down_proj"]
    spec = fields(model={"from": str(grouped)}, lora={"targets": targets, "rank": 100_000})
    says = rf"lora.rank 100000 is more than {target}'s {side}: .*say lora.rank = {side} or"
    with pytest.raises(SpecError, match=says):
        fit(spec, tmp_path / "run", corpus=Texts())
    assert not list(tmp_path.iterdir())
    as_said = spec | {"lora": {"targets": targets, "rank": side}, "updates": 1}
    assert fit(as_said, tmp_path / "run", corpus=Texts()).updates == 1


@pytest.mark.parametrize("mask_id", [1, 10, 40, 9999])
def test_a_mask_id_is_a_token_that_no_text_holds(mask_id, arm, tmp_path):
    spec = fields(model={"from": str(arm), "mask_id": mask_id})
    said = r"is no spare token .*: leave mask_id out, and a mask token is added; or .* tokens, 3$"
    with pytest.raises(SpecError, match=said):
        fit(spec, tmp_path / "run", corpus=Texts())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("objective", ["next_token", "fine_tune"])
def test_what_has_no_masks_takes_no_mask_id(objective, arm, tmp_path):
    spec = fields(model={"from": str(arm), "mask_id": 3}, objective={"name": objective})
    with pytest.raises(SpecError, match=r"leave model.mask_id out, or use diffusion"):
        fit(spec, tmp_path / "run", corpus=Texts())


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


def test_checkpoints_without_their_record_are_refused(tmp_path):
    out = tmp_path / "run"
    train(out, updates=4)
    shutil.move(out / "checkpoints", tmp_path / "left" / "checkpoints")
    for differs in ({}, {"seed": 7}, {"updates": 2}, {"model": WIDER}):
        with pytest.raises(SpecError, match=r"holds checkpoints but no run.json.* choose another"):
            train(tmp_path / "left", **({"updates": 4} | differs))
    assert [path.name for path in (tmp_path / "left").iterdir()] == ["checkpoints"]


WIDER = {"layers": 2, "width": 64, "heads": 4}
OTHERS = {"seed": {"seed": 7}, "updates": {"updates": 2}, "width": {"model": WIDER}}


@pytest.mark.parametrize("differs", OTHERS)
def test_a_checkpoint_of_another_run_is_refused(differs, tmp_path):
    name, mine = "update-00000004", {"updates": 8} | OTHERS[differs]
    train(tmp_path / "theirs", updates=4)
    with stopped_before(1):
        train(tmp_path / "mine", **mine)
    put = shutil.copytree(
        tmp_path / "theirs/checkpoints" / name, tmp_path / "mine/checkpoints" / name
    )
    with pytest.raises(SpecError, match=r"update-00000004 is a checkpoint of another run: move it"):
        train(tmp_path / "mine", **mine)
    shutil.rmtree(put)
    assert train(tmp_path / "mine", **mine).resumed_at == 0


def without_owner(folder):
    """The checkpoint as it was written when none said whose it is."""
    state = folder / "training" / "state.json"
    state.write_text(json.dumps({"update": json.loads(state.read_text())["update"]}))
    commit(folder)


def test_a_checkpoint_that_does_not_say_whose_it_is_belongs_to_its_folder(tmp_path):
    out = tmp_path / "run"
    with stopped_before(5):
        train(out, updates=6, checkpoints={"updates": 4})
    without_owner(out / "checkpoints" / "update-00000004")
    assert train(out, updates=6).resumed_at == 4
    wider = tmp_path / "wider"
    with stopped_before(5):
        train(wider, updates=6, checkpoints={"updates": 4}, model=WIDER)
    old = wider / "checkpoints" / "update-00000004"
    shutil.rmtree(old)
    shutil.copytree(out / "checkpoints" / "update-00000006", old)
    without_owner(old)
    with pytest.raises(
        TrainingError, match=r"does not fit .*size mismatch.* choose another folder"
    ):
        train(wider, updates=6, model=WIDER)


def test_a_run_that_began_in_between_is_refused(tmp_path, monkeypatch):
    out, honest = tmp_path / "run", fcntl.flock

    def flock(handle, how):
        monkeypatch.setattr(fcntl, "flock", honest)
        checkpoints.replace_file(out / "run.json", checkpoints.seal({"spec": {"seed": 3}}))
        honest(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(SpecError, match=r"is another run's folder"):
        train(out, updates=2)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(SpecError, match="holds something else than a training run: choose another"):
        train(tmp_path)
    with pytest.raises(SpecError, match="is a file: name a folder"):
        train(tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "precious"


@pytest.mark.parametrize("name", [".thesis.tex.0123abcd.tmp", "checkpoints/notes.txt", ".run.tmp"])
def test_what_a_killed_start_did_not_leave_is_something_else(name, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("precious")
    with pytest.raises(SpecError, match="holds something else than a training run: choose another"):
        train(tmp_path)
    assert (tmp_path / name).read_text() == "precious"


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
        TrainingError, match=r"No space left .* the checkpoint of update 3 is kept; make room"
    ):
        train(out, **said)
    names = sorted(path.name for path in (out / "checkpoints").iterdir())
    assert names == ["update-00000003"]
    monkeypatch.setattr(checkpoints, "commit", honest)
    done = train(out, **said)
    assert done.resumed_at == 3
    whole = train(tmp_path / "whole", **said)
    assert [line.loss for line in done.lines] == [line.loss for line in whole.lines]


@pytest.mark.parametrize("name", ["log.jsonl", "log.csv"])
def test_a_log_that_meets_a_full_disk_says_what_is_kept(name, tmp_path, monkeypatch):
    out, said = tmp_path / "run", {"updates": 6, "checkpoints": {"updates": 3}, "log": {"every": 1}}
    honest = Log.add

    def add(log, lines):
        if lines[0].update == 5:
            (out / name).unlink()
            (out / name).symlink_to("/dev/full")
        honest(log, lines)

    monkeypatch.setattr(Log, "add", add)
    kept = "the checkpoint of update 3 is kept; make room on the disk"
    with pytest.raises(TrainingError, match=rf"written to .*{name} \(No space left .*\): {kept}"):
        train(out, **said)
    monkeypatch.setattr(Log, "add", honest)
    assert train(out, **said).resumed_at == 3
    assert (out / name).is_file()
    assert not (out / name).is_symlink()


FILES = {"run.json": (checkpoints, "no checkpoint was made"), "log.csv": (log, "no checkpoint")}


@pytest.mark.parametrize("name", FILES)
def test_a_small_file_that_meets_a_full_disk_is_named(name, tmp_path, monkeypatch):
    owner, kept = FILES[name]

    def replace_file(path, content, honest=owner.replace_file):
        (full if path.name == name else honest)(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(owner, "replace_file", replace_file)
        with pytest.raises(
            TrainingError, match=rf"{name} \(No space left .*\): {kept}.* make room"
        ):
            train(tmp_path / "run", updates=2)
    assert train(tmp_path / "run", updates=2).updates == 2


def test_a_loss_curve_that_meets_a_full_disk_is_drawn_later(tmp_path, monkeypatch):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("anchorwatch.figures.figure.replace_file", full)
        said = r"loss.pdf \(No space left .*\): the checkpoint of update 2 is kept"
        with pytest.raises(TrainingError, match=said):
            train(out, updates=2)
    assert train(out, updates=2).resumed_at == 2
    assert (out / "loss.pdf").is_file()


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


def flip_a_bit(path):
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)


def test_a_damaged_checkpoint_is_named(tmp_path):
    out = tmp_path / "run"
    done = train(out, updates=4)
    flip_a_bit(next((out / "checkpoints").iterdir()) / "model.safetensors")
    with pytest.raises(
        TrainingError, match=r"model.safetensors was changed.* begin again in another"
    ):
        train(out, updates=4)
    assert done.model.is_dir()


TWO = {"updates": 6, "checkpoints": {"updates": 2, "keep": 2}}


@pytest.mark.parametrize("number", [4, 6])
def test_a_damaged_checkpoint_is_set_aside_where_another_is_whole(number, tmp_path):
    out, name = tmp_path / "run", f"update-{number:08d}"
    whole = train(out, **TWO)
    weights = (whole.model / "model.safetensors").read_bytes()
    shutil.rmtree(whole.model)
    flip_a_bit(out / "checkpoints" / name / "model.safetensors")
    with pytest.warns(
        AnchorwatchWarning,
        match=rf"{name} is damaged .*changed.* kept as {name}.damaged-.* made again",
    ):
        done = train(out, **TWO)
    assert done.resumed_at == (4 if number == 6 else 6)
    assert (done.model / "model.safetensors").read_bytes() == weights
    assert [line.loss for line in done.lines] == [line.loss for line in whole.lines]
    kept = sorted(path.name.split("-")[1] for path in (out / "checkpoints").iterdir())
    assert f"{number:08d}.damaged" in kept
    assert train(out, **TWO).resumed_at == 6  # and nothing is said any more


def test_damaged_checkpoints_do_not_count_as_kept(tmp_path):
    out = tmp_path / "run"
    with stopped_before(5):
        train(out, **TWO)
    flip_a_bit(out / "checkpoints" / "update-00000004" / "model.safetensors")
    with pytest.warns(AnchorwatchWarning, match="is damaged"), stopped_before(4):
        train(out, updates=6, checkpoints={"updates": 3, "keep": 2})
    names = sorted(path.name.split("-")[1] for path in (out / "checkpoints").iterdir())
    assert names == ["00000002", "00000003", "00000004.damaged"]


@pytest.mark.parametrize("hurt", ["truncated", "removed", "changed"])
def test_a_damaged_model_is_made_again_from_the_last_checkpoint(hurt, tmp_path):
    out = tmp_path / "run"
    weights = train(out, updates=4).model / "model.safetensors"
    before = weights.read_bytes()
    if hurt == "truncated":
        os.truncate(weights, 100)
    elif hurt == "removed":
        weights.unlink()
    else:
        flip_a_bit(weights)
    with pytest.warns(AnchorwatchWarning, match=r"model is damaged .* kept as model.damaged-"):
        assert train(out, updates=4).resumed_at == 4
    assert weights.read_bytes() == before
    assert train(out, updates=4).resumed_at == 4


def test_a_file_put_beside_the_finished_weights_is_left_there(tmp_path):
    out = tmp_path / "run"
    notes = train(out, updates=2).model / "NOTES.md"
    notes.write_text("mine")
    assert train(out, updates=2).resumed_at == 2
    assert notes.read_text() == "mine"


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
    "no such layer": (
        [{"name": "gate", "layers": [0, 9]}],
        {},
        "gate(layers=[9]) is not there: this network has layers 0 to 1",
    ),
    "no such head": (
        [{"name": "sink_logit", "logit": 0.0, "heads": [77]}],
        {},
        "sink_logit(heads=[77]) is not there: this network has heads 0 to 3",
    ),
    "no logit": (["sink_logit"], {}, "sink_logit needs its logit: say logit = ..."),
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
