"""Checkpoints that ask for code to be run: none is, nothing is asked, nothing outside is read."""

import ast
import builtins
import json
import subprocess
import warnings
from pathlib import Path

import pytest
import transformers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

import anchorwatch as aw
import checkpoints
from anchorwatch.errors import AnchorwatchError
from command import COMMAND, ENV

AUTO = [name for name in dir(transformers) if name.startswith("Auto")]
FILES = ("config.json", "tokenizer_config.json", "generation_config.json")
STOCK = "PreTrainedTokenizerFast"


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A checkpoint whose own code writes a marker, loaded by one who answers y to everything."""
    folder, marker = plant(tmp_path)
    questions = []

    def answer(question=""):
        questions.append(question)
        return "y"

    monkeypatch.setattr(builtins, "input", answer)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield folder
    assert questions == []
    assert not marker.exists()


def plant(tmp_path):
    folder, marker = tmp_path / "evil", tmp_path / "ran"
    checkpoints.write_llada(folder)
    checkpoints.write_tokenizer(folder)
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Evil:\n    pass\n")
    return folder, marker


def put(folder, name, **fields):
    path = folder / name
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | fields))


def code_for(*names, prefix=""):
    """An auto_map that names the planted class for each of these."""
    own = f"{prefix}evil.Evil"
    return {name: [own, own] if "Token" in name else own for name in names}


def refusal(folder, **asked):
    """What loading says where it refuses; None where it loads. Any other error fails the test."""
    try:
        aw.load(folder, **asked)
    except AnchorwatchError as error:
        return str(error)
    return None


def test_no_auto_class_is_taken_for_a_tokenizer(planted):
    assert len(AUTO) > 40
    for file in FILES:
        put(planted, file, auto_map=code_for(*AUTO))
    for name in AUTO:
        for file in ("config.json", "tokenizer_config.json"):
            for spelled in (name, f"{name}Fast"):
                put(planted, "config.json", tokenizer_class=None)
                put(planted, "tokenizer_config.json", tokenizer_class=None)
                put(planted, file, tokenizer_class=spelled)
                said = refusal(planted)
                assert said is not None, (file, spelled)
                assert f"{file} says tokenizer_class='{spelled}'" in said
                assert f"expected a tokenizer class of transformers, such as '{STOCK}'" in said


@pytest.mark.parametrize("name", ["pipeline", "pipelines", "TrainingArguments", "RagTokenizer"])
def test_only_tokenizers_are_taken_for_one(planted, name):
    put(planted, "tokenizer_config.json", tokenizer_class=name)
    assert "expected a tokenizer class of transformers" in refusal(planted)


@pytest.mark.parametrize("name", [3, ["AutoModel"], {"AutoModel": 1}, True])
def test_the_name_of_a_tokenizer_class_is_text(planted, name):
    put(planted, "tokenizer_config.json", tokenizer_class=name)
    assert "tokenizer_config.json says tokenizer_class=" in refusal(planted)


@pytest.mark.parametrize("prefix", ["", "someone/else--"])
@pytest.mark.parametrize("file", FILES)
def test_code_that_a_file_names_is_not_run(planted, file, prefix):
    for named in (None, STOCK, "EvilTokenizer", "Qwen2Tokenizer"):
        put(planted, "tokenizer_config.json", tokenizer_class=named)
        put(planted, file, auto_map=code_for(*AUTO, prefix=prefix))
        assert refusal(planted) is None
        put(planted, file, auto_map=[f"{prefix}evil.Evil"] * 2)
        refusal(planted)


def test_no_model_type_leads_to_code(planted):
    for file in FILES:
        put(planted, file, auto_map=code_for(*AUTO))
    put(planted, "tokenizer_config.json", tokenizer_class=None)
    for kind in TOKENIZER_MAPPING_NAMES:
        put(planted, "config.json", model_type=kind)
        refusal(planted)


def test_what_lies_beside_a_gguf_file_runs_nothing(planted):
    checkpoints.write_gguf(planted / "x.gguf")
    for file in FILES:
        put(planted, file, auto_map=code_for(*AUTO))
    for name in (*AUTO, None, STOCK, "EvilTokenizer"):
        put(planted, "tokenizer_config.json", tokenizer_class=name)
        refusal(planted / "x.gguf")


def test_every_call_that_could_trust_code_says_that_it_does_not():
    """`from_pretrained` and `from_config`, wherever they are called."""
    calls = []
    for path in sorted(Path(aw.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            if getattr(called, "attr", "") in ("from_pretrained", "from_config"):
                said = {word.arg: ast.unparse(word.value) for word in node.keywords}
                calls.append((path.name, node.lineno, said.get("trust_remote_code")))
    assert len(calls) >= 8
    assert [call for call in calls if call[2] != "False"] == []


def test_a_shell_that_answers_yes_runs_nothing(tmp_path):
    folder, marker = plant(tmp_path)
    put(folder, "config.json", auto_map=code_for(*AUTO))
    put(folder, "tokenizer_config.json", auto_map=code_for(*AUTO), tokenizer_class="AutoModel")
    done = subprocess.run(
        [*COMMAND, "run", str(folder), "x"],
        input="y\n" * 100,
        capture_output=True,
        encoding="utf-8",
        env=ENV | {"HF_MODULES_CACHE": str(tmp_path / "modules")},
        check=False,
    )
    assert done.returncode == 1
    assert "[y/N]" not in done.stdout + done.stderr
    assert "tokenizer_config.json says tokenizer_class='AutoModel'" in done.stderr
    assert not marker.exists()
