"""The command line as a person types it."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [str(Path(sys.executable).with_name("anchorwatch"))]
ENV = os.environ | {"HF_HUB_OFFLINE": "1", "COLUMNS": "100", "NO_COLOR": "1"}


def type_in(*words, stdin=None):
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        capture_output=True,
        text=True,
        env=ENV,
        input=stdin,
        check=False,
    )


@pytest.fixture(scope="module")
def lena(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "lena.trace"
    done = type_in("run", "tiny/llada", "Lena was born in", "--length", 8, "--steps", 4, "-o", path)
    assert done.returncode == 0, done.stderr
    return path, done


def test_run_prints_the_answer_on_stdout_and_talks_on_stderr(lena):
    path, done = lena
    assert len(done.stdout.strip().splitlines()) == 1
    assert "wrote" in done.stderr
    assert "LowConfidence(length=8, steps=4)" in done.stderr
    assert path.is_dir()


def test_show_prints_the_film_and_one_frame(lena):
    film = type_in("show", lena[0]).stdout
    assert film.count("\n") >= 7
    assert "░" in film
    frame = type_in("show", lena[0], "--step", 2).stdout
    assert "frame 2 of 4, 50% written" in frame
    wrong = type_in("show", lena[0], "--step", 9)
    assert wrong.returncode == 2
    assert "it has frames 0 to 4" in wrong.stderr


def test_json_is_json(lena):
    frames = json.loads(type_in("show", lena[0], "--json").stdout)
    assert len(frames["frames"]) == 5
    assert frames["frames"][0]["positions"][-1]["role"] == "masked"
    families = json.loads(type_in("models", "--json").stdout)
    assert {"llada", "dream", "encoder", "causal"} <= {row["name"] for row in families["families"]}
    run = json.loads(type_in("run", "tiny/arm", "the", "--length", 3, "--json").stdout)
    assert run["decoding"]["name"] == "LeftToRight"


def test_verify_says_whole_or_names_what_is_not(lena, tmp_path):
    done = type_in("verify", lena[0])
    sizes = [path.stat().st_size for path in lena[0].rglob("*") if path.is_file()]
    assert done.returncode == 0, done.stdout
    assert done.stdout == f"whole: {len(sizes)} files, {sum(sizes)} bytes\n"
    hurt = shutil.copytree(lena[0], tmp_path / "hurt.trace")
    (hurt / "role" / "c.0.0").write_bytes(b"")
    (hurt / "note.txt").write_text("mine")
    done = type_in("verify", hurt)
    assert done.returncode == 1
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["role/c.0.0", "note.txt"]
    report = json.loads(type_in("verify", hurt, "--json").stdout)
    assert report["whole"] is False
    assert len(report["damage"]) == 2
    gone = type_in("verify", tmp_path / "nowhere.trace")
    assert gone.returncode == 1
    assert "there is no trace at" in gone.stdout


def test_the_prompt_may_come_from_stdin_and_through_the_chat_template():
    done = type_in("run", "tiny/dream", "-", "--chat", "--length", 3, "--json", stdin="the tide")
    assert json.loads(done.stdout)["prompt_text"].strip() == "the tide"


def test_every_decoding_has_a_name():
    for name, options in {
        "random": ["--steps", 2],
        "dream": ["--algorithm", "entropy"],
        "threshold": ["--threshold", 0.5, "--block", 2],
    }.items():
        done = type_in("run", "tiny/llada", "the", "--decoding", name, "--length", 4, *options)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["run", "tiny/llada", "the", "--step", "4"], 2, "--steps"),
        (["run", "tiny/llada", "the", "--decoding", "beam"], 2, "expected one of low-confidence"),
        (
            ["run", "tiny/llada", "the", "--decoding", "left-to-right", "--steps", "3"],
            2,
            "no steps",
        ),
        (["run", "tiny/nothing", "the"], 1, "expected one of tiny/llada"),
        (["show", "nowhere.trace"], 1, "there is no trace at nowhere.trace"),
        (["run", "tiny/llada", ""], 2, "the prompt is empty"),
        (["convert", "nowhere", "out"], 1, "nothing to convert"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(words, code, says):
    done = type_in(*words)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_an_existing_trace_is_refused_before_anything_is_loaded(lena):
    done = type_in("run", "no/such-model", "the", "-o", lena[0])
    assert "exists already" in done.stderr


def test_help_answers_at_once():
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        assert type_in("--help").returncode == 0
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.4, seconds


def test_doctor_finds_nothing_wrong():
    done = type_in("doctor", "--json")
    assert done.returncode == 0, done.stdout
    assert all(finding["good"] for finding in json.loads(done.stdout))


OPTIONS = {
    "run": """--algorithm --block --chat --decoding --device --dtype --guidance --json --length
        --mask-id --out --revision --seed --steps --temperature --threshold --top-k --top-p""",
    "show": "--json --step",
    "verify": "--json",
    "models": "--json",
    "convert": "",
    "doctor": "--json",
}


def test_the_options_are_a_promise():
    """Growth needs a decision: add here what you add there, and a sentence in CHANGELOG.md."""
    from typer.main import get_command

    from anchorwatch.cli import app

    commands = get_command(app).commands
    for name, command in commands.items():
        options = {o for p in command.params for o in p.opts if o.startswith("--")} - {"--help"}
        assert options == set(OPTIONS[name].split()), name
    assert set(commands) == set(OPTIONS)


def test_foreign_text_cannot_drive_the_terminal():
    from anchorwatch.show import visible

    assert visible("a\x1b[31mb\u202ec\r") == "a·[31mb·c␍"
    assert visible("one\ntwo") == "one⏎\ntwo"
