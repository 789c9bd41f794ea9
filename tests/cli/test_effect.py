"""Edits and experiments as a person types them."""

import dataclasses
import io
import json

import pandas as pd
import pytest

import anchorwatch as aw
from anchorwatch.edits.spec import EDITS
from anchorwatch.errors import SpecError
from anchorwatch.generation import parse as spelling
from command import called, one_line_of, type_in

E = aw.edits
LINES = "".join(f"the {who} at anchor\n" for who in "ship crew captain lookout mate".split())


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text(LINES + "\n")
    return path


@pytest.mark.parametrize(
    ("word", "edit"),
    [
        ("no-op", E.no_op()),
        ("hide-keys:0+3", E.hide_keys([0, 3])),
        ("hide_keys:4-6,layers=0,heads=1", E.hide_keys([4, 5, 6], layers=[0], heads=[1])),
        (
            "hide-sinks:1,form=weight,detect=same_shadow,layers=0+1",
            E.hide_sinks(1, form="weight", detect="same_shadow", layers=[0, 1]),
        ),
        ("hide-sinks: 2, rule=rulli:2:percent", E.hide_sinks(2, rule="rulli:2:percent")),
        ("hide-sinks:k=2,last-row=true", E.hide_sinks(2, last_row=True)),
        (
            "hide-sinks:1,layers=none,penalty=3,form=penalty",
            E.hide_sinks(1, form="penalty", penalty=3),
        ),
        ("hide-random:1,matched_to=class,seed=4", E.hide_random(1, matched_to="class", seed=4)),
        (
            "hide-keys:0,progress=0+0.5,steps=1-3",
            E.hide_keys([0], progress=(0, 0.5), steps=[1, 2, 3]),
        ),
        ("knock-out:2.3+2.5", E.knock_out({(2, 3), (2, 5)})),
        ("knock-out:layers=1,form=mean", E.knock_out(layers=[1], form="mean")),
    ],
)
def test_an_edit_is_spelled_by_its_fields(word, edit):
    assert spelling.parse_edit(word) == edit


@pytest.mark.parametrize("name", EDITS)
def test_every_edit_has_a_word_for_every_number_and_name_it_takes(name):
    """What an edit needs is asked for by name; what it does not know, it names."""
    fields = {one.name for one in dataclasses.fields(EDITS[name])}
    with pytest.raises(SpecError, match=f"has no nothing: it takes .*{min(fields)}"):
        spelling.parse_edit(f"{name.replace('_', '-')}:nothing=1")
    for one in dataclasses.fields(EDITS[name]):
        if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
            with pytest.raises(SpecError, match="lacks"):
                spelling.parse_edit(name)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("hide-sink:1", "no edit is called 'hide-sink': expected one of hide-keys, hide-sinks"),
        ("hide-sinks", "hide-sinks lacks k: say hide-sinks:k=..."),
        ("hide-sinks:one", "hide-sinks, k: 'one' cannot be read: say a whole number"),
        ("hide-sinks:1,2", "does not know what '2' is: say field=2, of k, layers"),
        ("hide-sinks:1,k=2", "k is given twice"),
        ("hide-sinks:1,depth=2", "hide-sinks has no depth: it takes k, layers, heads"),
        ("hide-keys:a", r"hide-keys, positions: 'a' cannot be read: say 0\+3 or 0-3"),
        ("hide-keys:0,heads=x", r"hide-keys, heads: 'x' cannot be read"),
        ("knock-out:2", "knock-out, heads: '2' cannot be read: say 2.3\\+2.5, layer.head of each"),
        ("hide-sinks:1,rule=sunk", "hide-sinks, rule: no rule is called 'sunk': expected one of"),
        ("hide-sinks:1,last_row=maybe", "hide-sinks, last_row: 'maybe' is neither true nor false"),
        ("hide-sinks:1,form=gone", "form='gone' is unknown: expected one of logit"),
        ("hide-sinks:0", "k=0 is not a whole number of at least 1"),
    ],
)
def test_an_edit_that_cannot_be_read_says_what_would_have_worked(word, says):
    with pytest.raises(SpecError, match=says):
        spelling.parse_edit(word)


def test_a_run_takes_edits():
    held = called(
        "run", "tiny/llada", "the anchor", "--length", 2, "--edit", "hide-keys:0", "--edit", "no-op"
    )
    assert [edit["name"] for edit in held["edits"]] == ["hide_keys", "no_op"]
    done = type_in("run", "no/such-model", "the", "--edit", "hide-sink:1")
    assert done.returncode == 2
    assert "expected one of hide-keys" in one_line_of(done)


def test_effect_prints_csv_and_talks_on_stderr(lines):
    asked = ["effect", "tiny/llada", lines, "--edit", "hide-sinks:1", "--length", 4, "--steps", 2]
    done = type_in(*asked, fresh=True)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(io.StringIO(done.stdout)).set_index("outcome")
    assert table.loc["kl", "n"] == 5
    assert table.loc["kl", "difference"] > 0
    assert done.stderr.startswith("effect of  hide_sinks(k=1)\n")
    python = aw.effect(
        aw.load("tiny/llada"),
        LINES.split("\n")[:-1],
        aw.decoding.LowConfidence(4, 2),
        E.hide_sinks(1),
    )
    assert done.stdout == python.table.to_csv(index=False)
    first = type_in(*asked, "--limit", 2, "--table", "prompts", "--control", "none", "--seed", 3)
    assert len(pd.read_csv(io.StringIO(first.stdout))["prompt"].unique()) == 2


def test_effect_writes_doses_and_draws_them(lines, tmp_path):
    out, plot = tmp_path / "doses.json", tmp_path / "doses.pdf"
    done = type_in(
        "effect", "tiny/llada", lines, "--edit", "hide-sinks:1", "--doses", "1,2", "--length", 4,
        "-o", out, "--plot", plot, "--control", "hide-random:1,matched_to=rank",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert {row["k"] for row in json.loads(out.read_text())["rows"]} == {1, 2}
    assert done.stderr.count("wrote ") == 2
    made = json.loads(type_in("whence", plot).stdout)
    assert made["figure"] == "effect_doses"
    assert made["settings"]["control"][0]["matched_to"] == "rank"
    assert json.loads(type_in("whence", out).stdout)["about"]["doses"] == [1, 2]


def test_prompts_come_from_json_lines_stdin_or_the_command_line(tmp_path):
    held = tmp_path / "prompts.jsonl"
    held.write_text('{"prompt": "the anchor", "id": 1}\n\n{"prompt": [300, 301]}\n')
    asked = ["--edit", "no-op", "--length", 2, "--table", "prompts", "--json"]

    def texts(*words, stdin=None):
        done = type_in("effect", "tiny/llada", *words, *asked, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return list(dict.fromkeys(row["text"] for row in json.loads(done.stdout)["rows"]))

    assert texts(held)[0] == "the anchor"
    assert len(texts(held)) == 2
    assert texts("-", stdin="the crew\nthe ship\n") == ["the crew", "the ship"]
    assert texts("--prompt", "the sea", "--prompt", "the sky") == ["the sea", "the sky"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a.txt"], "say what to change: --edit hide-sinks:1"),
        (["--edit", "no-op"], "give a file of prompts, or --prompt TEXT once for each"),
        (["a.txt", "--prompt", "the", "--edit", "no-op"], "give a file of prompts, or --prompt"),
        (["gone.txt", "--edit", "no-op"], "there is no file gone.txt: name a .txt or .jsonl"),
        (["empty.txt", "--edit", "no-op"], "empty.txt has no prompts: it needs one on each line"),
        (["bad.jsonl", "--edit", "no-op"], "line 3 of bad.jsonl is not JSON"),
        (["odd.jsonl", "--edit", "no-op"], 'line 2 of odd.jsonl has no "prompt"'),
        (["void.jsonl", "--edit", "no-op"], "line 2 of void.jsonl has an empty prompt: give text"),
        (["latin.txt", "--edit", "no-op"], "latin.txt is not UTF-8 (byte at offset 1)"),
        (
            ["a.txt", "--edit", "hide-sinks:1", "--doses", "1;2"],
            "is not numbers such as --doses 1,5",
        ),
        (["a.txt", "--edit", "no-op", "--table", "doses"], "needs doses: add --doses 1,5,10"),
        (
            ["a.txt", "--edit", "no-op", "--table", "heads"],
            "expected one of table, prompts, layers",
        ),
        (["a.txt", "--edit", "no-op", "-o", "a.xls"], "the name ends in .csv, .json, .parquet"),
        (["a.txt", "--edit", "no-op", "--plot", "a.csv"], "the name ends in .pdf, .png, .svg"),
        (["a.txt", "--edit", "no-op", "--control", "rnadom"], "no edit is called 'rnadom'"),
        (["a.txt", "--edit", "no-op", "--eps", "1"], "--eps"),
    ],
)
def test_mistakes_cost_no_loading(words, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("the anchor\n")
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n\n{"prompt": \n')
    (tmp_path / "odd.jsonl").write_text('{"prompt": "a"}\n{"text": "b"}\n')
    (tmp_path / "void.jsonl").write_text('{"prompt": "a"}\n{"prompt": ""}\n')
    (tmp_path / "latin.txt").write_bytes(b"a\xe9\n")
    done = type_in("effect", "no/such-model", *words)
    assert done.returncode == 2, done.stderr
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
