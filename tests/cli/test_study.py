"""`anchorwatch study`: the plan alone, the study, and what a typing mistake costs."""

import json
import webbrowser
from unittest import mock

import pytest
from typer.testing import CliRunner

from anchorwatch.cli import study as cli_study
from anchorwatch.cli.app import app
from anchorwatch.errors import AnchorwatchWarning, SpecError
from anchorwatch.models.load_options import LoadOptions
from anchorwatch.studies.papers import claims
from planted_study import study

GIVEN = ("--model", "tiny/llada", "--against", "tiny/arm")
TWIN = 10 * 18
"""Passes of the experiment that says whether a model is trained, for ten prompts."""


def typed(*words):
    return CliRunner().invoke(app, ["study", *map(str, words)])


def test_the_plan_alone_runs_nothing(tmp_path):
    done = typed("sinks/H2", "sinks/H24", *GIVEN, "--plan", "--json", "-o", tmp_path / "out")
    plan = json.loads(done.stdout)
    assert plan["claims"] == ["sinks/H2"]
    assert list(plan["lacking"]) == ["sinks/H24"]
    assert "a second masked diffusion model" in plan["lacking"]["sinks/H24"]
    assert plan["passes"] == 10 * 16 + TWIN
    assert not (tmp_path / "out" / "claims.json").exists()


def test_the_plan_says_what_a_claim_lacks_and_ends_with_the_sum(tmp_path):
    done = typed("sinks/H2", "sink_token/H20", *GIVEN, "--plan", "-o", tmp_path / "out")
    *_, lost, total = done.stdout.splitlines()
    assert lost.startswith("sink_token/H20 lacks ") and lost.endswith("(--sink)")
    assert total.endswith("in all: 1 claim to run, 1 lacks something")


def test_a_claim_that_lacks_something_is_listed_and_the_exit_code_says_so(tmp_path):
    done = typed("sink_token/H20", *GIVEN, "-o", tmp_path / "out")
    assert done.exit_code == 3
    assert "sink_token/H20,not testable" in done.stdout
    held = json.loads((tmp_path / "out" / "claims.json").read_text())
    assert held["claims"][0]["lacking"].endswith("(--sink)")


def test_a_typing_mistake_is_refused_before_anything_is_loaded(tmp_path):
    for words in (["poems"], ["--budget", "huge"], ["--variants", tmp_path / "none.csv"]):
        assert isinstance(typed(*words).exception, SpecError)


def test_a_protocol_and_what_is_said_beside_it_stand_in_the_plan(tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("the anchor drifts\nthe tide runs out\n")
    words = ("--protocol", "rulli", "--length", 32, "--block", 8, "--device", "cpu", "--plan")
    done = typed("sinks/H2", *GIVEN, *words, "--json", "-o", tmp_path / "out")
    plan = json.loads(done.stdout)
    assert plan["passes"] == 10 * 32 + TWIN
    assert plan["settings"].startswith("questions: 32 positions in blocks of 8, 32 steps; running")
    assert plan["settings"].endswith(
        "rulli: chat template, LowConfidence, length 32, block 8, answers of 128"
    )
    words = ("--decoding", "dream:algorithm=entropy", "--length", 8, "--no-chat", "--plan")
    done = typed("sinks/H2", *GIVEN, "--protocol", "rulli", *words, "-o", tmp_path / "out")
    assert done.stdout.splitlines()[0].endswith(
        "8 steps; rulli: DreamOrder(length=8, algorithm=entropy), answers of 128"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--protocol", "wu"], "expected one of rulli, floating, sink-token"),
        (["--decoding", "left-to-right"], "say how the masked one does"),
        (["--decoding", "dream", "--block", "8"], "dream has no block: leave it out, or use"),
        (["--decoding", "low-confidence:steps=8", "--steps", "4"], "steps is given twice"),
        (["--decoding", "block-diffusion"], "say BlockDiffusion(block=8) or --block 8"),
        (["--decoding", "token-editing"], "say TokenEditing(block=8) or --block 8"),
        (["--decoding", "dream-on"], "say a decoding that keeps it, such as DreamOrder()"),
        (["--length", "0"], "length=0 is not a whole number of at least 1"),
        (["--steps", "0"], "steps=0 is not a whole number of at least 1"),
        (["--block", "0"], "block=0 is not a whole number of at least 1"),
        (["--answer", "-3"], "answer=-3 is not a whole number of at least 1"),
        (["--block", "5"], "block=5 does not divide length=16: use one of"),
        (["--prompts", "none.txt"], "there is no file none.txt"),
        (["--task", "none.jsonl"], "none.jsonl"),
        (["--contexts", "gold"], "is not claim=task, such as --contexts gold=open5"),
        (["--contexts", "gold=open5"], "name it, task="),
        (["--contexts", "gold=gold,gold=open5"], "says twice what gold is: say one of them"),
        (["sinks/H99"], "expected sinks/H1, sinks/H2"),
        (["sinkz"], "expected floating, sinks, sink_token, or sinks/H3"),
        (["--revision", "main"], "--revision is said of --model, which is not named"),
        (
            ["sinks/H3", "--task", "synthetic/two-hop"],
            "none of these claims asks questions of one hop",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_loaded(words, says):
    with mock.patch.object(LoadOptions, "load", side_effect=AssertionError("loaded")):
        failed = typed(*words, "--plan").exception
    assert isinstance(failed, SpecError)
    assert says in str(failed)


def test_a_task_without_questions_is_refused_before_anything_is_loaded(tmp_path):
    path = tmp_path / "none.csv"
    path.write_text("question,answers\n")
    with mock.patch.object(LoadOptions, "load", side_effect=AssertionError("loaded")):
        failed = typed("floating/H23", "--task", path, "--plan").exception
    assert "holds no item: there is nothing to ask" in str(failed)


def test_few_prompts_are_warned_of_before_anything_runs(tmp_path):
    path = tmp_path / "few.txt"
    path.write_text("A ship left.\nA bell rang.\n")
    with pytest.warns(AnchorwatchWarning, match="2 prompts have no interval.* give 5 at least"):
        typed("sinks/H6", *GIVEN, "--prompts", path, "--plan", "-o", tmp_path / "out")


def test_a_paper_is_named_with_a_hyphen_too():
    assert claims(["sink-token/H1", "sink-token"]) == claims(["sink_token"])


@pytest.mark.parametrize(("words", "shown"), [([], 0), (["--open"], 1), (["--no-open"], 0)])
def test_the_page_is_written_said_and_shown_where_it_is_asked_for(
    tmp_path, monkeypatch, words, shown
):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)) or True)
    out = tmp_path / "a study"
    done = typed("sink_token/H20", *GIVEN, "-o", out, *words)
    page = out / "report.html"
    assert f"wrote {page}" in done.stderr
    assert 'data-claim="sink_token/H20"' in page.read_text()
    assert opened == [page.resolve().as_uri()] * shown


def test_where_there_is_no_browser_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    done = typed("sink_token/H20", *GIVEN, "-o", tmp_path / "out", "--open")
    assert "there is no browser to open it in" in done.stderr


def test_at_a_terminal_the_table_is_lines_that_can_be_read(monkeypatch):
    found = study(names=("sinks",))
    monkeypatch.setattr(cli_study.sys.stdout, "isatty", lambda: True, raising=False)
    lines = cli_study._table(found).splitlines()
    assert len(lines) == len(found.findings)
    by_name = {line.split()[0]: line for line in lines}
    first = found["sinks/H1"]
    assert first.says in by_name["sinks/H1"] and "n = 40 prompts" in by_name["sinks/H1"]
    lost = next(one for one in found.findings if one.says == "not testable")
    assert f"lacks {lost.lacking}" in by_name[lost.claim.id]


def test_in_a_file_the_table_is_csv_with_whole_counts(tmp_path):
    head, first, *_ = cli_study._table(study(names=("sinks",))).splitlines()
    shown = "id,verdict,criterion,effect,low,high,direction,margin,detectable,n,unit"
    assert head == f"{shown},lacking,not_about"
    assert ",40,prompt," in first
