"""Evaluations as a person types them."""

import io
import json

import pandas as pd
import pytest
from typer.testing import CliRunner

from anchorwatch.cli.app import app
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.evaluation.grid import STRESS
from anchorwatch.evaluation.results import read_results
from command import one_line_of, type_in
from question_files import PLAIN, lines


def typed(*words):
    """In this process, which has torch already."""
    return CliRunner().invoke(app, ["eval", *map(str, words)])


ASKED = ("--task", "x", "--contexts", "closed,gold")
SHORT = ("--length", 6, "--steps", 3)


def test_a_table_with_intervals_on_stdout_and_talk_on_stderr(tmp_path):
    words = ("eval", "tiny/llada", "tiny/arm", "--task", "synthetic/one-hop", "--contexts",
             "closed,gold,gold+1", "--limit", 5, *SHORT, "-o", tmp_path / "out")  # fmt: skip
    done = type_in(*words, fresh=True)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(io.StringIO(done.stdout))
    assert list(table.columns) == [
        "task", "model", "context", "edit", "quantity", "value", "null", "lift", "n", "missing",
        "low", "high", "interval", "guesser",
    ]  # fmt: skip
    assert len(table) == 2 * 3 * 5 and (table.n == 5).all() and table.value.between(0, 1).all()
    assert table[table.quantity == "containment"].guesser.between(0, 1).all()
    said = done.stderr.splitlines()
    assert said[0].startswith("synthetic/one-hop: Results(6 cells of 5 items, 0 unfit), ")
    assert said[-1] == f"wrote {tmp_path / 'out' / 'tables'}"
    held = pd.read_csv(tmp_path / "out" / "tables" / "gains.csv")
    assert set(held.context) == {"gold", "gold+1"}
    assert len(read_results(tmp_path / "out").rows) == 30
    made = json.loads(type_in("whence", tmp_path / "out" / "tables" / "effects.json").stdout)
    assert made["about"]["table"] == "effects" and len(made["traces"]) == 6


def test_edits_tables_and_json(tmp_path):
    words = ("tiny/llada", "--task", "synthetic/one-hop", "--contexts", "gold", "--limit", 5, *SHORT,
             "--edit", "sinks=hide-sinks:1", "--edit", "random=hide-random:1:seed=2",
             "-o", tmp_path)  # fmt: skip
    done = typed(*words, "--table", "edits")
    assert done.exit_code == 0, done.output
    table = pd.read_csv(io.StringIO(done.stdout))
    assert list(zip(table.a, table.b, strict=True)) == [
        ("none", "sinks"), ("none", "random"), ("sinks", "random"),
    ]  # fmt: skip
    held = json.loads(typed(*words, "--json").stdout)
    assert set(held) == {"accuracy", "edits"}
    assert held["edits"]["rows"][0]["p_holm"] == 1.0
    manifests = read_results(tmp_path).manifests.values()
    named = {one["edit"]: one["edits"] for one in manifests}
    assert named["none"] == [] and named["random"][0]["name"] == "hide_random"


def test_a_file_with_bad_lines_and_items_that_do_not_fit(tmp_path):
    path = lines(tmp_path / "mine.jsonl", [*PLAIN, PLAIN[0]])
    path.write_text(path.read_text() + "oops\n")
    words = (path, "--contexts", "gold,closed", *SHORT)
    with pytest.raises(SpecError, match=r"line 5: is not JSON.*bad='count'"):
        raise typed("tiny/arm", "--task", *words).exception
    done = typed("tiny/arm", "--task", *words, "--bad", "count")
    assert done.exit_code == 3
    assert "1 not asked, tiny/arm gold: none of its passages is gold" in done.stderr
    assert "left out, line 5: is not JSON" in done.stderr
    assert "1 items are there twice and were asked once" in done.stderr
    table = pd.read_csv(io.StringIO(done.stdout))
    assert set(table[table.context == "gold"].missing) == {1}


def test_traces_prompts_and_decodings(tmp_path):
    done = typed("tiny/llada", "--task", "synthetic/one-hop", "--contexts", "gold", "--limit", 2,
                 "--decoding", "threshold", "--length", 4, "--template", "floating-rules", "--chat",
                 "--probes", "entropy", "-o", tmp_path)  # fmt: skip
    assert done.exit_code == 0, done.output
    (manifest,) = read_results(tmp_path).manifests.values()
    assert manifest["decoding"]["name"] == "Threshold" and manifest["decoding"]["length"] == 4
    assert manifest["template"]["name"] == "floating-rules" and manifest["template"]["chat"]
    assert len(list(tmp_path.glob("*/traces/*.trace"))) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "say what to ask: --task synthetic/one-hop --contexts closed,gold"),
        (["--task", "synthetic/one-hop"], "say what to ask"),
        (["--stress", "--task", "x"], "leave --task and --contexts out"),
        (["--stress", "--chat"], "--stress has its own task and prompt"),
        (["--task", "x", "--contexts", "golden"], "no context is called 'golden'"),
        (["--task", "nowhere.jsonl", "--contexts", "gold"], "does not exist"),
        (["--task", "x", "--contexts", "gold", "--table", "all"], "expected one of accuracy"),
        (["--task", "x", "--contexts", "gold", "--score", "luck"], "expected one of exact_match"),
        (["--task", "x", "--contexts", "gold", "--edit", "hide-sinks:1"], "is not name=edit"),
        (["--task", "x", "--contexts", "gold", "--edit", "a=sink:1"], "no edit is called 'sink'"),
        (["--task", "x", "--contexts", "gold", "--edit", "a=no-op", "--edit", "a=no-op"], "twice"),
        (["--task", "x", "--contexts", "gold", "--steps", "0"], "steps=0"),
        (["--task", "x", "--contexts", "gold", "--table", "gains"], "say --contexts closed,gold"),
        (["--task", "x", "--contexts", "closed", "--table", "gains"], "say --contexts closed,gold"),
        (
            [*ASKED, "--table", "edits", "--score", "token_f1", "--edit", "a=no-op"],
            "token_f1 is neither: say --score exact_match or containment",
        ),
        ([*ASKED, "--table", "edits"], "compares two: say --edit sinks=hide-sinks:1"),
        ([*ASKED, "--table", "models"], "compares two models: name another"),
        (["--stress", "--table", "interactions"], "compares two models: name another"),
        (["--task", "x", "--contexts", "gold", "--probes", "heat"], "no probe is called 'heat'"),
    ],
)
def test_mistakes_cost_no_loading(words, says):
    with pytest.raises(SpecError, match=says):
        raise typed("no/such-model", *words).exception


def test_a_folder_is_where_home_is_and_holds_no_table_of_an_earlier_command(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ("tiny/arm", "--task", "synthetic/one-hop", "--limit", 2, *SHORT, "--out=~/x")
    done = typed(*words, "--contexts", "closed,gold")
    assert done.exit_code == 0, done.output
    tables = tmp_path / "x" / "tables"
    (tables / "mine.csv").write_text("")
    assert (tables / "gains.csv").exists() and (tables / "gains.json").exists()
    assert typed(*words, "--contexts", "gold").exit_code == 0
    assert {path.name for path in tables.iterdir()} == {"accuracy.csv", "accuracy.json", "mine.csv"}


def test_being_misled_is_a_score_too():
    done = typed("tiny/arm", "--task", "synthetic/one-hop", "--limit", 5, *SHORT, "--score",
                 "misled", "--contexts", "gold,gold+1counterfactual", "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    rows = {(row["context"], row["quantity"]): row for row in json.loads(done.stdout)["accuracy"]["rows"]}  # fmt: skip
    assert rows["gold+1counterfactual", "misled"]["n"] == 5
    assert rows["gold", "misled"]["n"] == 0, "none was shown"


def test_an_error_is_one_line():
    done = type_in("eval", "tiny/arm", "--task", "synthetic/one-hop", "--contexts", "golden")
    assert done.returncode == 2 and "no context is called" in one_line_of(done)


def test_the_default_grid_is_of_twenty_cells_at_most(tmp_path):
    assert sum(map(len, STRESS.values())) == 20
    done = typed("tiny/arm", "--stress", "--limit", 1, "--length", 4, "-o", tmp_path, "--json")
    assert done.exit_code in (0, 3), done.exception
    held = json.loads(done.stdout)
    asked = {(row["task"], row["context"]) for row in held["accuracy"]["rows"]}
    assert len(asked) == 20 and ("synthetic/one-hop", "gold~masks12") in asked
    assert read_results(tmp_path, "synthetic/two-hop").rows.context.nunique() == 4
    with pytest.raises(TraceError, match="have no item of mine yet"):
        read_results(tmp_path, "mine")
