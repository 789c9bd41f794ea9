"""The network that lab/smol-* are deltas of: converted once, found in the cache, never guessed."""

from pathlib import Path

import pytest
import torch

import anchorwatch as aw
import checkpoints
from anchorwatch.errors import ModelError
from anchorwatch.models.zoo import SPECIMENS, smol
from anchorwatch.training.spec import read
from command import type_in


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHORWATCH_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", SPECIMENS)
def test_an_absent_base_says_what_brings_it(cache, name):
    with pytest.raises(ModelError, match="run `anchorwatch fetch smol` once"):
        aw.load(name)


def test_a_converted_base_is_the_network_of_the_gguf_file(cache):
    checkpoints.write_gguf(cache / "x.gguf")
    smol.convert_base(cache / "x.gguf", cache / smol.NAME)
    model, direct = aw.load("lab/smol-base"), aw.load(cache / "x.gguf", dtype="float32")
    assert not [check for check in model.check() if not check.holds]
    written, read = model.network.state_dict(), direct.network.state_dict()
    assert all(torch.equal(written[name].half(), read[name].half()) for name in read)
    assert model.tokenizer.get_vocab() == direct.tokenizer.get_vocab()
    assert smol.fetch_base() == cache / smol.NAME  # nothing is fetched again


def test_a_damaged_base_is_refused(cache):
    checkpoints.write_gguf(cache / "x.gguf")
    smol.convert_base(cache / "x.gguf", cache / smol.NAME)
    weights = cache / smol.NAME / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        aw.load("lab/smol-base")


def test_only_what_there_is_can_be_fetched(cache):
    result = type_in("fetch", "llama")
    assert result.returncode == 2
    assert "expected smol" in result.stderr


@pytest.mark.parametrize("name", ["smol-arm", "smol-mdm", "smol-mdm-answers", "smol-sink"])
def test_a_recipe_is_a_spec_that_begins_from_a_specimen(name):
    spec = read(Path(__file__).parents[2] / "recipes" / f"{name}.toml")
    assert spec.model.source in SPECIMENS
    assert spec.lora is not None and spec.optimizer.fall == "late"
