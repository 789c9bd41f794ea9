"""Table 1 of 2510.15731 as `anchorwatch paper sinks --table 1 --task gsm8k --task humaneval` makes
it: lm-eval's own files of both tasks on a few local items, with 0, 1, 5, 10 and 20 sinks hidden."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from anchorwatch.errors import SpecError
from anchorwatch.evaluation.lm_eval import Harness, harness_rows
from anchorwatch.studies.reproduction import SMALL, reproduce

SUMS = [(3, 4), (10, 5), (8, 9), (20, 2), (6, 6), (7, 30)]
LENGTH = 8
ITEMS = 3
TASKS = ["gsm8k_local", "humaneval_local"]


class CodeCheck:
    """In place of the metric `code_eval`, which lm-eval's file of HumanEval fetches from the hub.

    Runs nothing: whether what was written is Python.
    """

    seen: list

    def __init__(self):
        self.seen = []

    def compute(self, references, predictions, k):
        self.seen.append((references, predictions))
        (program,) = predictions[0]
        try:
            ast.parse(program)
        except SyntaxError:
            return {f"pass@{k[0]}": 0.0}, {}
        return {f"pass@{k[0]}": 1.0}, {}


@pytest.fixture
def code_check(monkeypatch):
    """Offline, with the metric in place of the hub's."""
    import evaluate

    check = CodeCheck()
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(evaluate, "load", lambda name: check)
    return check


def write_task(folder, own, rows, **settings):
    """A task of lm-eval by its own file, with our rows as its data."""
    import lm_eval

    name = f"{own}_local"
    data = folder / f"{name}.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    files = dict.fromkeys(("train", "test"), str(data))
    lines = {
        "include": str(Path(lm_eval.__file__).parent / "tasks" / own / f"{own}.yaml"),
        "task": name,
        "tag": [],
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files, "cache_dir": str(folder.parent / "cache")},
        **settings,
    }
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items())
    (folder / f"{name}.yaml").write_text(text)


@pytest.fixture
def folder(tmp_path):
    """GSM8K and HumanEval by the harness's files; only data, examples and lengths are ours."""
    path = tmp_path / "tasks"
    path.mkdir()
    stops = {"gsm8k": ["Question:"], "humaneval": ["\nclass", "\ndef"]}
    write = {
        name: {"until": words, "max_gen_toks": LENGTH, "do_sample": False}
        for name, words in stops.items()
    }
    problems = [
        {
            "question": f"Lena has {a} ropes and buys {b}. How many has she?",
            "answer": f"{a} + {b} = {a + b}\n#### {a + b}",
        }
        for a, b in SUMS
    ]
    write_task(path, "gsm8k", problems, num_fewshot=1, generation_kwargs=write["gsm8k"])
    programs = [
        {
            "prompt": f"def add_{a}(x):\n    ",
            "entry_point": f"add_{a}",
            "test": f"def check(f):\n    assert f({b}) == {a + b}",
        }
        for a, b in SUMS
    ]
    write_task(path, "humaneval", programs, generation_kwargs=write["humaneval"])
    return path


def test_gsm8k_and_humaneval_with_hidden_sinks(folder, tmp_path, code_check):
    made = reproduce(
        "sinks",
        ["table 1"],
        models=["tiny/llada"],
        against="tiny/arm",
        tasks=TASKS,
        task_folder=str(folder),
        run_code=True,
        effort=replace(SMALL, items=ITEMS),
        out=tmp_path / "out",
    )
    (path,) = [file for file in made.made["table 1"] if file.name.endswith("paired.csv")]
    table = pd.read_csv(path)
    arms = {"none", *(f"{k} sinks" for k in (1, 5, 10, 20)), "1 random"}
    metrics = {
        ("gsm8k_local", "exact_match,strict-match"),
        ("gsm8k_local", "exact_match,flexible-extract"),
        ("humaneval_local", "pass@1"),
    }
    assert set(zip(table["task"], table["metric"], strict=True)) == metrics
    assert set(table["model"]) == {"tiny/llada", "tiny/arm"}
    for _, rows in table.groupby(["model", "task", "metric"]):
        assert set(rows["arm"]) == arms
        assert (rows["n"] == ITEMS).all()
    references, predictions = code_check.seen[-1]
    assert "check(add_" in references[0]
    assert predictions[0][0].startswith("def add_")


def test_code_of_a_model_is_run_only_where_that_was_said(folder, code_check):
    lm = Harness("tiny/llada")
    before = len(code_check.seen)
    with pytest.raises(SpecError, match=r"in a container, say --run-code .* HF_ALLOW_CODE_EVAL=1"):
        harness_rows(lm, ["humaneval_local"], folder=str(folder), limit=1)
    assert not any("add_" in program for _, [[program]] in code_check.seen[before:])
