"""The option group of loading: the same on every command that loads a model."""

import dataclasses

import pytest
import typer.main
from typer.testing import CliRunner

from anchorwatch.cli.app import app
from anchorwatch.errors import SpecError
from anchorwatch.evaluation.lm_eval import _add_load_options
from anchorwatch.models.load_options import LoadOptions

GROUP = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(LoadOptions)}


@pytest.mark.parametrize(
    "name", [*("run", "resume", "replay", "effect", "eval", "lm-eval", "study", "paper", "view")]
)
def test_every_command_that_loads_has_the_group(name):
    command = typer.main.get_command(app).commands[name]
    spelled = {word for parameter in command.params for word in parameter.opts}
    assert spelled >= GROUP


def test_options_of_loading_without_a_model_to_load(tmp_path):
    result = CliRunner().invoke(app, ["view", str(tmp_path), "--dtype", "float32"])
    assert isinstance(result.exception, SpecError)
    assert "are of --model: name it, too" in str(result.exception)


def test_only_what_is_said_is_handed_on():
    assert LoadOptions().as_keywords() == {}
    said = LoadOptions(dtype="bfloat16", mask_id=0)
    assert said.as_keywords() == {"dtype": "bfloat16", "mask_id": 0}
    assert said.for_other_models() == LoadOptions(dtype="bfloat16")
    assert str(LoadOptions(dtype="float16").load("tiny/llada").network.dtype) == "torch.float16"


def test_what_is_of_one_checkpoint_is_refused_for_several():
    LoadOptions(device="cpu").refuse_several(2)
    with pytest.raises(SpecError, match="name one, or load them in Python"):
        LoadOptions(revision="main").refuse_several(2)


def test_lm_eval_gets_them_as_its_own_words():
    loading = LoadOptions(device="cpu", dtype="float32", family="llada")
    words = _add_load_options(["--model_args", "pretrained=x", "--tasks", "t"], loading)
    assert words == [
        *("--model_args", "dtype=float32", "family=llada", "pretrained=x"),
        *("--tasks", "t", "--device", "cpu"),
    ]
    words = _add_load_options(["--model_args=pretrained=x"], LoadOptions(dtype="float32"))
    assert words == ["--model_args=pretrained=x,dtype=float32"]
    assert _add_load_options(["ls"], LoadOptions()) == ["ls"]
