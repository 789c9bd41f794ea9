"""Table 1 of 2510.15731 as `anchorwatch paper sinks --table 1 --task gsm8k --task humaneval` makes
it: lm-eval's formats of both tasks on a few local items, with 0, 1, 5, 10 and 20 sinks hidden."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from anchorwatch.studies.reproduction import SMALL, reproduce

SUMS = [(3, 4), (10, 5), (8, 9), (20, 2), (6, 6), (7, 30)]
LENGTH = 12
ITEMS = 5
HUMANEVAL = """
task: humaneval_local
dataset_path: json
test_split: test
unsafe_code: true
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{test}}\\ncheck({{entry_point}})"
num_fewshot: 0
generation_kwargs: {until: ["\\nclass", "\\ndef", "\\n#", "\\nif", "\\nprint"], max_gen_toks: %d}
filter_list: [{name: create_test, filter: [{function: custom, filter_fn: !function code.complete}]}]
metric_list: [{metric: !function code.passes, aggregation: mean, higher_is_better: true}]
metadata: {version: 1.0}
"""
"""As lm-eval's, but for the metric, whose code it would fetch from the hub."""
CODE = '''
import ast

def complete(resps, docs):
    return [[doc["prompt"] + text for text in texts] for texts, doc in zip(resps, docs)]

def passes(references, predictions):
    """Whether what was written is Python; nothing is run."""
    try:
        ast.parse(predictions[0][0])
    except SyntaxError:
        return 0.0
    return 1.0
'''


@pytest.fixture
def folder(tmp_path):
    """A folder of two tasks: GSM8K by the harness's own file, HumanEval in its format."""
    lm_eval = pytest.importorskip("lm_eval")
    path = tmp_path / "tasks"
    path.mkdir()
    rows = [
        {
            "question": f"Lena has {a} ropes and buys {b}. How many has she?",
            "answer": f"{a} + {b} = {a + b}\n#### {a + b}",
        }
        for a, b in SUMS
    ]
    for split in ("train", "test"):
        (path / f"gsm8k_{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    own = Path(lm_eval.__file__).parent / "tasks" / "gsm8k" / "gsm8k.yaml"
    files = ", ".join(f"{split}: '{path / f'gsm8k_{split}.jsonl'}'" for split in ("train", "test"))
    (path / "gsm8k_local.yaml").write_text(
        f"include: {own}\ntask: gsm8k_local\ntag: []\ndataset_path: json\ndataset_name: null\n"
        f"dataset_kwargs: {{data_files: {{{files}}}, cache_dir: '{tmp_path / 'cache'}'}}\n"
        f"num_fewshot: 1\ngeneration_kwargs: {{until: ['Question:'], max_gen_toks: {LENGTH}}}\n"
    )
    programs = [
        {
            "prompt": f"def add_{a}(x):\n    ",
            "entry_point": f"add_{a}",
            "test": f"def check(f):\n    assert f({b}) == {a + b}",
        }
        for a, b in SUMS
    ]
    data = path / "humaneval.jsonl"
    data.write_text("\n".join(map(json.dumps, programs)))
    kept = (
        f"dataset_kwargs: {{data_files: {{test: '{data}'}}, cache_dir: '{tmp_path / 'cache'}'}}\n"
    )
    (path / "humaneval_local.yaml").write_text(HUMANEVAL % LENGTH + kept)
    (path / "code.py").write_text(CODE)
    return path


@pytest.mark.slow
def test_gsm8k_and_humaneval_with_hidden_sinks(folder, tmp_path, monkeypatch):
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    made = reproduce(
        "sinks",
        ["table 1"],
        models=["tiny/llada"],
        against="tiny/arm",
        tasks=["gsm8k_local", "humaneval_local"],
        task_folder=str(folder),
        run_code=True,
        effort=replace(SMALL, items=ITEMS),
        out=tmp_path / "out",
    )
    (path,) = [file for file in made.made["table 1"] if file.name.endswith("paired.csv")]
    table = pd.read_csv(path)
    assert set(table["task"]) == {"gsm8k_local", "humaneval_local"}
    assert set(table["model"]) == {"tiny/llada", "tiny/arm"}
    arms = {"none", *(f"{k} sinks" for k in (1, 5, 10, 20)), "1 random"}
    for _, rows in table.groupby(["model", "task", "metric"]):
        assert set(rows["arm"]) == arms
        assert (rows["n"] == ITEMS).all()
