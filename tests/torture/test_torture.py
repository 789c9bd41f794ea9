"""What `make torture` rests on: children die where they are told to, and nothing wrong is passed over."""

import os
import random
import signal
from pathlib import Path

import pytest

from torture import children, flips, inputs, kills, made, report
from torture.children import Ended, Fault, type_command
from torture.report import Case


def write_twice() -> None:
    """A file that is safe, and a second line that is not yet."""
    with Path("lines").open("ab") as file:
        for line in (b"first\n", b"second\n"):
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    Path("lines").rename("whole")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def test_a_child_ends_by_itself_and_its_operations_are_counted(folder):
    ended = type_command(write_twice, folder)
    assert (ended.code, ended.operations, ended.syncs) == (0, 4, 2)
    assert (folder / "whole").read_bytes() == b"first\nsecond\n"


@pytest.mark.parametrize(
    ("fault", "left"),
    [
        (Fault("operation", 1), None),
        (Fault("operation", 2), b"first\n"),
        (Fault("operation", 4), b"first\nsecond\n"),
        (Fault("torn", 1), b"fir"),
        (Fault("torn", 2), b"first\nsec"),
    ],
)
def test_a_child_dies_where_it_is_told_to(folder, fault, left):
    ended = type_command(write_twice, folder, fault)
    assert ended.killed
    assert not ended.traceback
    assert ((folder / "lines").read_bytes() if left else None) == left


def test_what_was_safe_before_is_not_cut(folder):
    (folder / "lines").write_bytes(b"older\n")
    type_command(write_twice, folder, Fault("torn", 1))
    assert (folder / "lines").read_bytes() == b"older\nfir"


def test_who_waits_for_nothing_hangs(folder, monkeypatch):
    monkeypatch.setattr(children, "IDLE_SECONDS", 0.0)
    os.mkfifo(folder / "pipe")
    ended = type_command(lambda: Path("pipe").read_bytes(), folder)
    assert ended.hung
    assert not ended.killed


def test_a_traceback_and_a_signal_are_seen(folder):
    assert type_command(lambda: 1 / 0, folder).traceback
    assert type_command(lambda: os.kill(os.getpid(), signal.SIGTERM), folder).traceback
    assert not type_command(lambda: os._exit(1), folder).traceback


def ended(code=0, stdout="", stderr=""):
    return Ended(code, stdout, stderr, 0.0)


def judged(code, stdout="", stderr="", *, notices=False):
    """What is said of a reader of a damaged file that printed `before` when it was whole."""
    case = Case("bit flip", "trace")
    hurt = flips.Hurt("a.trace/canvas/c.0", "bit flip", 3, 0)
    reader = flips.Reader((), notices=notices)
    flips.judge(case, "x", (hurt, reader, ended(code, stdout, stderr)), Path(), "before")
    return case.lost


def test_damage_is_refused_or_changes_nothing():
    assert not judged(0, "before")
    assert not judged(1, stderr="error: a.trace is damaged")
    assert judged(0, "after") == ["x: it ended well with another result"]
    assert "without naming it" in judged(1, stderr="error: no")[0]
    assert judged(0, "before", notices=True) == ["x: not noticed"]


def test_what_was_finished_may_only_grow():
    case = Case("SIGKILL", "run")
    kills.grown(case, {"steps": 8, "a": "x"}, {"steps": 16, "a": "x", "b": "y"})
    assert not case.failed
    kills.grown(case, {"steps": 8, "a": "x", "b": "y"}, {"steps": 0, "a": "z"})
    assert case.lost == ["steps was 8 and is 0", "a is gone or changed", "b is gone or changed"]


def test_plans_reach_every_victim_and_every_file():
    whole = kills.Undisturbed(None, 100, 10, 2.0)
    planned = [kills.plan(at, whole, 1.0, random.Random(0)) for at in range(len(kills.VICTIMS))]
    assert sum(len(faults) for cases in planned for faults in cases) >= 60
    assert {victim.name for victim in kills.VICTIMS} >= {
        *("run", "resume", "eval", "train", "study", "export")
    }
    assert sum(specimen.cases for specimen in flips.SPECIMENS) >= 500
    files = flips.Whole({f"a{n}.pdf": 9 for n in range(7)}, [])
    figure = [specimen.name for specimen in flips.SPECIMENS].index("figure")
    hurts = flips.plan(figure, files, 1.0, random.Random(0))
    assert {hurt.file for hurt in hurts} == set(files.files)
    assert {hurt.part for hurt in hurts} == {"bit flip", "truncation"}
    assert len(inputs.chosen(1.0, random.Random(0))) >= 300


def test_the_table_goes_between_its_marks(tmp_path, monkeypatch):
    document = tmp_path / "a.md"
    document.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    monkeypatch.setattr(report, "DOCUMENT", document)
    rows = report.rows_of([Case("SIGKILL", "run", faults=3), Case("bad input", "eval", inputs=2)])
    report.write_table(report.as_text(rows))
    text = document.read_text()
    assert text.startswith(f"before\n{report.BEGIN}\n\n|")
    assert "| killed | run | 3 | 0 | 0 | 0 | 0 |" in text
    assert "| **killed** | **all** | 3 | 0 | 0 | 0 | 0 |" in text
    assert "| bad input | eval | 0 | 2 | 0 | 0 | 0 |" in text
    assert "| **all** |  | 3 | 2 | 0 | 0 | 0 |" in text
    assert "old" not in text
    assert text.endswith(f"{report.END}\nafter\n")


def test_the_sentence_counts_what_was_done():
    cases = [Case("SIGKILL", "run", faults=3), Case("truncation", "trace", faults=1)]
    cases += [Case("bit flip", "trace", faults=1), Case("bad input", "eval", inputs=2, left=["a"])]
    says = report.sentence(cases, 5, 2.04)
    assert says.startswith("Seed 5, 2.0 minutes with")
    assert says.endswith(
        "3 kills, 1 bit flips, 1 truncations, 2 bad inputs; 1 temporary files were left over."
    )


def test_hidden_files_are_no_result_but_are_left_over(tmp_path):
    (tmp_path / "a").write_text("a")
    before = made.digest_of(tmp_path)
    (tmp_path / ".a.12345678.tmp").write_text("half")
    assert made.digest_of(tmp_path) == before
    assert made.leftovers(tmp_path) == [".a.12345678.tmp"]
