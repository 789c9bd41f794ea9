"""The command line as a person types it."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

import anchorwatch as aw
from anchorwatch.cli.app import app
from anchorwatch.errors import SpecError
from anchorwatch.models import tiny
from anchorwatch.models import zoo as lab
from command import ENV, called, in_shell, one_line_of, type_in


@pytest.fixture(scope="module")
def lena(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "lena.trace"
    words = ("run", "tiny/llada", "Lena was born in", "--length", 8, "--steps", 4, "-o", path)
    done = type_in(*words, fresh=True)
    assert done.returncode == 0, done.stderr
    return path, done


def test_run_prints_the_answer_on_stdout_and_talks_on_stderr(lena):
    path, done = lena
    assert len(done.stdout.strip().splitlines()) == 1
    assert "wrote" in done.stderr
    assert "LowConfidence(length=8, steps=4)" in done.stderr
    assert done.stderr.startswith("plan: 4 forward passes; ")
    assert path.is_dir()


def test_show_prints_the_film_and_one_frame(lena):
    film = type_in("show", lena[0], fresh=True).stdout
    assert film.count("\n") >= 7
    assert "░" in film
    frame = type_in("show", lena[0], "--step", 2).stdout
    assert "frame 2 of 4, 50% written" in frame
    assert type_in("show", lena[0], "--all").stdout == film
    for words in (["--step", 9], ["--json", "--step", 9]):
        wrong = type_in("show", lena[0], *words)
        assert wrong.returncode == 2
        assert one_line_of(wrong) == "error: step 9 is not in the trace: it has frames 0 to 4\n"
    both = type_in("show", lena[0], "--step", 2, "--all")
    assert "choose one of them" in one_line_of(both)


def test_a_line_without_a_command_says_so():
    wrong = type_in("--")
    assert wrong.returncode == 2
    assert one_line_of(wrong) == ("error: no command was named: `anchorwatch --help` lists them\n")
    assert "Commands:" in type_in().stdout + type_in().stderr


EMBEDDED = (*lab.NAMES, *lab.TALES, *lab.ANSWERS, *lab.SPECIMENS, *tiny.NAMES)
WIRED = "wired/even and others (docs/planted.md)"


def test_json_is_json(lena):
    frames = json.loads(type_in("show", lena[0], "--json").stdout)
    assert len(frames["frames"]) == 5
    assert frames["frames"][0]["positions"][-1]["role"] == "masked"
    families = json.loads(type_in("models", "--json").stdout)
    rows = {row["name"]: row for row in families["families"]}
    assert {"llada", "dream", "encoder", "causal"} <= set(rows)
    assert "albert" in rows["encoder"]["model_types"]
    assert tuple(families["embedded"]) == (*EMBEDDED, WIRED)
    run = json.loads(type_in("run", "tiny/arm", "the", "--length", 3, "--json").stdout)
    assert run["decoding"]["name"] == "LeftToRight"


def test_verify_says_whole_or_names_what_is_not(lena, tmp_path):
    done = type_in("verify", lena[0], fresh=True)
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


def test_json_is_ascii_whatever_the_text(tmp_path):
    done = type_in(
        "run", "tiny/llada", "é \u202e \x9b", "--length", 2, "--json", "-o", tmp_path / "a"
    )
    shown = type_in("show", tmp_path / "a", "--json")
    for text in (done.stdout, shown.stdout):
        assert text.isascii()
        assert "\x1b" not in text
    assert json.loads(done.stdout)["prompt_text"] == "é \u202e \x9b"
    assert "manifest" in json.loads(shown.stdout)


@pytest.mark.parametrize(
    ("name", "model", "options", "fields"),
    [
        ("random", "tiny/llada", "--steps 2 --forbid-end", {"steps": 2, "forbid_end": True}),
        ("low-confidence", "tiny/llada", "--defer-end", {"defer_end": True}),
        (
            "dream",
            "tiny/llada",
            "--algorithm entropy --eps 0.01 --algorithm-temperature 0.5",
            {"algorithm": "entropy", "eps": 0.01, "algorithm_temperature": 0.5},
        ),
        ("threshold", "tiny/llada", "--threshold 0.5 --block 2", {"threshold": 0.5, "block": 2}),
        ("left-to-right", "tiny/arm", "--no-cache --no-stop", {"cache": False, "stop": False}),
    ],
)
def test_every_decoding_and_its_options_can_be_asked_for(name, model, options, fields):
    words = ["--decoding", name, "--length", 4, "--probes", "none", *options.split()]
    decoding = called("run", model, "the", *words)["decoding"]
    assert {key: decoding[key] for key in fields} == fields


SPELLED = ("BlockDiffusion", "TokenEditing", "EntropyOrder", "DreamOn")
"""Decodings of single families, whose own fields are spelled: --decoding NAME:FIELD=VALUE."""


def test_every_field_of_every_decoding_is_an_option_or_can_be_spelled():
    from anchorwatch.generation.decoding import DECODINGS, WORDS
    from anchorwatch.generation.parse import parse_decoding

    options = OPTIONS["run"].split()
    words = {name: word for word, name in WORDS.items()}
    for name, kind in DECODINGS.items():
        for field in dataclasses.fields(kind):
            option = f"--{field.name}".replace("_", "-")
            if {option, option.replace("--", "--no-")} & set(options):
                continue
            assert name in SPELLED, field.name
            if isinstance(field.default, bool | int | float | str):
                value = str(field.default).lower()
                decoding = parse_decoding(f"{words[name]}:{field.name}={value}")
                assert getattr(decoding, field.name) == field.default


def test_masks_spelled_in_the_prompt_are_filled():
    text = "the <|mask|> is <|mask|><|mask|> deep"
    held = called("run", "tiny/llada", text, "--infill", "--probes", "none")
    assert len(held["answer_positions"]) == 3
    assert held["decoding"]["length"] == 3
    assert held["probes"] == []
    with pytest.raises(SpecError, match=r"nothing to infill: write <\|mask\|> in the prompt"):
        called("run", "tiny/llada", "the", "--infill")
    with pytest.raises(SpecError, match="cannot infill: leave --infill out"):
        called("run", "tiny/arm", "the", "--infill")


def test_probes_are_asked_for_by_name():
    held = called("run", "tiny/llada", "the", "--length", 2, "--probes", "entropy,massive,entropy")
    assert [probe["name"] for probe in held["probes"]] == ["entropy", "massive"]
    held = called("run", "tiny/llada", "the", "--length", 2)
    assert [probe["name"] for probe in held["probes"]][:2] == ["received", "entropy"]


def test_a_prompt_may_begin_with_a_dash():
    done = type_in("run", "tiny/llada", "--length", 2, "--json", "--", "-5 degrees")
    assert json.loads(done.stdout)["prompt_text"] == "-5 degrees", done.stderr
    assert '-- "-5 degrees"' in " ".join(type_in("run", "--help").stdout.split())


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["run", "tiny/llada", "the", "--step", "4"], 2, "--steps"),
        (["run", "tiny/llada", "the", "--decoding", "beam"], 2, "expected one of low-confidence"),
        (
            ["run", "tiny/llada", "the", "--decoding", "left-to-right", "--steps", "3"],
            2,
            "left-to-right has no steps: leave it out, or use low-confidence, random",
        ),
        (["run", "no/such-model", "the", "--eps", "0.1"], 2, "leave it out, or use dream"),
        (["run", "no/such-model", "the", "--temperature", "nan"], 2, "temperature=nan is not"),
        (["run", "no/such-model", "the", "--probes", "all"], 2, "expected default, none or some"),
        (["run", "no/such-model", "the", "--seed", "-1"], 2, "--seed"),
        (["run", "tiny/arm", "the", "--steps", "3"], 2, "left-to-right has no steps"),
        (["run", "tiny/nothing", "the"], 1, "expected one of tiny/llada"),
        (["run", "tiny/llada", "the", "--mask-id", "99999"], 2, "say mask_id=, from 0 to"),
        (["show", "nowhere.trace"], 1, "there is no trace at nowhere.trace"),
        (["run", "tiny/llada", ""], 2, "the prompt is empty"),
        (["convert", "nowhere", "out"], 1, "there is no folder nowhere"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(words, code, says):
    done = type_in(*words, fresh=words[0] == "convert")
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["study", "paper", "eval", "train", "sweep", "models"])
def test_an_interrupted_command_says_how_to_go_on(name, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(typer.main.get_command(app).commands[name].__class__, "invoke", interrupt)
    needed = {"paper": ["sinks"], "eval": ["m"], "train": ["a"], "sweep": ["a", "-o", "b"]}
    done = CliRunner().invoke(app, [name, *needed.get(name, ())])
    assert done.exit_code == 130
    assert done.stderr.startswith("error: interrupted") and done.stderr.count("\n") == 1
    assert ("the same command goes on" in done.stderr) == (name != "models")


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_loaded(lena, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for place, says in {
        lena[0]: "exists already: choose another name",
        tmp_path / "no" / "x.trace": "no does not exist: make it first",
        file / "x.trace": "cannot be written, Not a directory: choose another place",
        tmp_path / ("a" * 300): "cannot be written, File name too long: choose another place",
        Path("/proc/x.trace"): "/proc/x.trace cannot be written",
    }.items():
        done = type_in("run", "no/such-model", "the", "-o", place)
        assert done.returncode == 2
        assert says in one_line_of(done)
    assert list(tmp_path.iterdir()) == [file]


def test_stdin_that_is_no_text_is_one_line():
    done = in_shell("printf 'ab\\377' | \"$@\"", "run", "no/such-model", "-")
    assert done.returncode == 2
    assert "stdin is not UTF-8: byte 0xff at offset 2" in one_line_of(done)
    done = in_shell('"$@" <&-', "run", "no/such-model", "-")
    assert done.returncode == 2
    assert "stdin is closed" in one_line_of(done)


def test_a_stdout_that_cannot_spell_or_hold_it_is_no_traceback(lena):
    for words in (["show", lena[0]], ["models"], ["show", lena[0], "--step", 1]):
        done = type_in(*words, PYTHONIOENCODING="ascii")
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii()
    assert "<" in type_in("show", lena[0], PYTHONIOENCODING="ascii").stdout
    for words in (["show", lena[0]], ["show", lena[0], "--json"], ["--help"], ["verify", lena[0]]):
        done = in_shell('"$@" >/dev/full', *words)
        assert done.returncode == 1
        assert one_line_of(done) == "error: No space left on device\n"
        assert in_shell('"$@" >&-', *words).returncode == 0
        assert "Traceback" not in in_shell('"$@" | head -c 1', *words).stderr
    done = in_shell('"$@" 2>/dev/full', "show", lena[0], "--step", 99)
    assert done.returncode == 2


def test_talk_that_nobody_hears_costs_nothing(tmp_path):
    words = ["run", "tiny/llada", "the", "--length", 2, "-o", tmp_path / "a.trace"]
    done = in_shell('"$@" 2>/dev/full', *words)
    assert done.returncode == 0
    assert (tmp_path / "a.trace").is_dir()


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "anchorwatch", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == type_in("--version").stdout


def test_the_family_table_fits_eighty_columns_and_loses_nothing():
    from anchorwatch.models.families import FAMILIES, UNSUPPORTED

    table = type_in("models", COLUMNS="80").stdout
    assert max(map(len, table.splitlines())) <= 80
    words = " ".join(table.split())
    for family in FAMILIES:
        assert f"{family.name} {family.kind}" in words
        assert " ".join(family.checkpoints.split()) in words
    assert all(f"{name} {reason}" in words for name, reason in UNSUPPORTED.items())
    assert ", ".join((*EMBEDDED, WIRED)) in words


def test_models_says_what_is_known_of_one_on_board():
    whole = type_in("models", "lab/tales-mdm").stdout
    card = aw.lab.card("lab/tales-mdm")
    assert f"weights       digest {card['weights']}\n" in whole
    assert "parts         none\n" in whole
    assert "of 60 questions, guesser 0.39: one hop, gold, one random and one hard" in whole
    delta = type_in("models", "lab/tales-mdm-answers").stdout
    assert "delta of      lab/tales-mdm, whose changed tensors have the digest" in delta
    assert "card          none: docs/specimens.md says what was measured\n" in delta
    record = json.loads(type_in("models", "lab/smol-sink", "--json").stdout)
    assert record["delta_of"] == "lab/smol-arm"
    assert record["needs"] == "anchorwatch fetch smol"
    wrong = type_in("models", "tiny/llada")
    assert wrong.returncode == 1
    assert "there is no lab model 'tiny/llada': expected one of lab/toy-mdm" in one_line_of(wrong)


TORCH_FREE = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers", "accelerate", "safetensors", "tokenizers"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])
sys.meta_path.insert(0, Block())
from anchorwatch.cli.app import main
main()
"""


def without_torch(*words):
    return subprocess.run(
        [sys.executable, "-c", TORCH_FREE, *map(str, words)],
        capture_output=True,
        text=True,
        env=ENV,
        check=False,
    )


def test_without_torch_what_reads_works_and_what_runs_says_what_to_install(lena, tmp_path):
    known = ["models", "lab/tales-mdm"], ["models", "lab/smol-mdm"]
    for words in (["show", lena[0]], ["verify", lena[0]], ["models"], *known):
        assert without_torch(*words).returncode == 0, words
    for words in (["run", "tiny/llada", "the"], ["convert", tmp_path, tmp_path / "out"]):
        done = without_torch(*words)
        assert done.returncode == 1
        assert "needs torch, which is not installed: pip install 'anchorwatch[run]'" in one_line_of(
            done
        )
    done = without_torch("doctor")
    assert done.returncode == 0, done.stdout
    line = next(line for line in done.stdout.splitlines() if "[run]" in line)
    assert line.startswith("ok   [run]")
    assert "absent (torch, transformers," in line
    assert "pip install 'anchorwatch[run]'" in line


ASKED_FOR_HELP = """
import sys
from anchorwatch.cli.app import main
try:
    main()
finally:
    sys.stderr.write(" ".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""
HEAVY = {"torch", "transformers", "accelerate", "safetensors", "tokenizers", "huggingface_hub",
         "pandas", "scipy", "xarray", "zarr", "matplotlib", "peft", "lm_eval", "ray", "starlette",
         "uvicorn"}  # fmt: skip


@pytest.mark.parametrize("words", [[], ["run"], ["study"], ["view"]], ids=" ".join)
def test_help_imports_nothing_heavy(words):
    """What makes help quick on any machine: `make bench` has the seconds."""
    done = subprocess.run(
        [sys.executable, "-c", ASKED_FOR_HELP, *words, "--help"],
        capture_output=True,
        text=True,
        env=ENV,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
    imported = set(done.stderr.split())
    assert "anchorwatch" in imported
    assert imported & HEAVY == set()


def test_doctor_finds_nothing_wrong():
    done = type_in("doctor", "--json", fresh=True)
    assert done.returncode == 0, done.stdout
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert all(finding["good"] for finding in findings.values())
    assert "HF_HUB_OFFLINE" in findings["hub"]["says"]
    assert "[run]" not in findings
    checked = {*lab.NAMES, *lab.TALES, *lab.ANSWERS, *tiny.NAMES}
    assert all(findings[name]["says"] == "5 laws hold" for name in checked)
    assert "not checked" in findings["lab/smol-*"]["says"]


OPTIONS = {
    "run": """--algorithm --algorithm-temperature --block --chat --decoding --defer-end --device --device-map
        --dtype --edit --eps --family --forbid-end --guidance --infill --json --length --mask-id --no-cache --no-stop
        --out --probes --region --revision --seed --steps --temperature --threshold --top-k --top-p""",
    "effect": """--batch --block --control --decoding --device --device-map --doses --dtype --edit --family --json
        --length --limit --mask-id --out --plot --prompt --repeats --revision --rule --seed --steps --table
        --temperature --keep --engine --workers --address""",
    "resume": "--device --device-map --dtype --family --json --mask-id --revision",
    "measure": "--by --group --json --out --rule --set --where",
    "plot": "--group --head --layer --out --rule --set --step --where",
    "whence": "",
    "view": "--at --claim --device --device-map --dtype --family --forks --mask-id --model --no-open --port --revision --rule --table",
    "export": "--layers --out --rule --table",
    "show": "--all --json --step",
    "verify": "--json",
    "eval": """--bad --batch --chat --contexts --decoding --device --device-map --dtype --edit --family --format
        --json --length --limit --mask-id --out --probes --revision --score --seed --steps --stress --table --task --template
        --engine --workers --address""",
    "study": """--against --answer --block --budget --chat --contexts --decoding --device --device-map --dtype
        --family --gate --json --length --mask-id --model --open --out --plan --prompts --protocol --revision
        --sink --steps --task --variants --engine --workers --address""",
    "replay": """--device --device-map --dtype --family --json --mask-id --model --out --probes --region --revision
        --steps""",
    "paper": """--against --all --block --chat --decoding --device --device-map --dtype --family --figure --format
        --full --gate --items --json --length --limit --mask-id --model --out --prompts --revision --run-code --seed
        --sink --steps --table --task --task-folder --variants""",
    "sweep": "--out --engine --workers --threads --address --shard --allow-version-skew --plan --json",
    "status": "--json",
    "train": "--json --out --set",
    "lm-eval": "--device --device-map --dtype --family --mask-id --revision",
    "models": "--json",
    "convert": "",
    "fetch": "",
    "doctor": "--json",
}


def test_the_options_are_a_promise():
    """Growth needs a decision: add here what you add there, and a sentence in CHANGELOG.md."""
    from typer.main import get_command

    commands = get_command(app).commands
    for name, command in commands.items():
        options = {o for p in command.params for o in p.opts if o.startswith("--")} - {"--help"}
        assert options == set(OPTIONS[name].split()), name
    assert set(commands) == set(OPTIONS)
