"""What `anchorwatch train` wrote is loaded as it was written, or not at all."""

import shutil

import pytest

import anchorwatch as aw
from anchorwatch.errors import ModelError
from anchorwatch.trace.atomic_io import COMMIT
from anchorwatch.training import fit
from toy_texts import Texts, fields, tokenizer


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "run"
    spec = fields(updates=2, checkpoints={"updates": 1, "keep": 1})
    fit(spec, out, corpus=Texts(), tokenizer=tokenizer())
    return out


@pytest.fixture(params=["model", "checkpoints"])
def folder(trained, tmp_path, request):
    """The finished model, and a checkpoint on the way; a copy each."""
    held = trained / "model"
    if request.param == "checkpoints":
        held = sorted((trained / "checkpoints").glob("update-*"))[-1]
    return shutil.copytree(held, tmp_path / "copy")


def flip(path, at):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_flipped_bit_is_not_read(folder, name):
    aw.load(folder)
    flip(folder / name, -5)
    says = rf"copy is not what its run wrote \({name} was changed: .*\): copy it again, or start"
    with pytest.raises(ModelError, match=says):
        aw.load(folder)
    with pytest.raises(ModelError, match=says):
        aw.load(folder / "model.safetensors")


def test_a_lost_file_and_a_spoilt_record_are_named(folder):
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer_config\.json is missing"):
        aw.load(folder)
    flip(folder / COMMIT, 20)
    with pytest.raises(ModelError, match=rf"{COMMIT} cannot be read: .*remove {COMMIT}"):
        aw.load(folder)


def test_a_change_that_is_meant_is_read_without_the_record(folder):
    before = aw.load(folder).digest
    flip(folder / "model.safetensors", -5)
    (folder / COMMIT).unlink()
    assert aw.load(folder).digest != before


def test_files_that_were_added_and_the_trainer_s_own_are_left_alone(folder):
    (folder / "notes.md").write_text("mine")
    if (folder / "training").is_dir():
        flip(folder / "training" / "optimizer.safetensors", -5)
    aw.load(folder)


def test_a_name_is_found_without_hashing(folder, monkeypatch):
    from anchorwatch.models import checkpoint
    from anchorwatch.models import load as loading

    def fail(*_, **__):
        raise AssertionError("hashed")

    monkeypatch.setattr(checkpoint, "changed_files", fail)
    loading.find(folder)
    with pytest.raises(AssertionError, match="hashed"):
        aw.load(folder)
    (folder / COMMIT).unlink()
    aw.load(folder)
