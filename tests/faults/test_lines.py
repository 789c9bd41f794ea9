"""Line files of any shape: a line above the limit is named and never held in memory."""

import io
import tracemalloc
from unicodedata import category

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorwatch.cli import run
from anchorwatch.errors import SpecError
from anchorwatch.evaluation import readers
from anchorwatch.metrics import table_files
from anchorwatch.trace import input_files as inputs
from anchorwatch.trace.escape import csv_cell
from anchorwatch.trace.input_files import LongLineError, bounded_lines, plain_lines
from anchorwatch.training.data import read_texts

MOST = 1 << 16


@pytest.fixture
def short(monkeypatch):
    """A limit that a test can pass quickly, in every reader."""
    for line_reader in (bounded_lines, plain_lines):
        monkeypatch.setattr(line_reader, "__defaults__", (MOST,))


@given(st.binary(max_size=200), st.integers(1, 40))
def test_lines_are_those_of_python_but_for_long_ones(raw, most):
    found = list(bounded_lines(io.BytesIO(raw), most))
    expected = list(io.BytesIO(raw))
    assert len(found) == len(expected)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True), start=1):
        if len(theirs) <= most:
            assert ours == theirs
        else:
            assert isinstance(ours, LongLineError) and ours.number == number


class Endless(io.RawIOBase):
    """Bytes without a line break, so many that nobody can hold them."""

    def __init__(self, size):
        self.left = size

    def readable(self):
        return True

    def readinto(self, into):
        size = min(len(into), self.left)
        into[:size] = b"x" * size
        self.left -= size
        return size


def test_a_long_line_is_not_held():
    handle = io.BufferedReader(Endless(1 << 26))
    tracemalloc.start()
    try:
        found = list(bounded_lines(handle, 1 << 20))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [type(line) for line in found] == [LongLineError]
    assert peak < 8 << 20, "a few times the limit, not the 64 MiB of the line"


def test_every_reader_of_lines_names_the_line_and_the_limit(short, tmp_path, monkeypatch):
    long = "x" * (MOST + 1)
    said = r"line 2 is longer than the \d+ MiB that a line may have: break it up"
    for name in ("a.txt", "a.jsonl"):
        path = tmp_path / name
        path.write_text(f'{{"prompt": "a", "text": "b"}}\n{long}\n')
        with pytest.raises(SpecError, match=rf"{name}, {said}"):
            run.read_prompts(str(path), [], None)
        with pytest.raises(SpecError, match=rf"{name}, {said}"):
            read_texts(path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"a\n{long}".encode())))
    with pytest.raises(SpecError, match=rf"stdin, {said}"):
        run.read_prompts("-", [], None)
    path = tmp_path / "t.jsonl"
    path.write_text(f'{{"question": "a", "answer": "b"}}\n{long}\n{{"question": "c"}}\n')
    one, two, three = readers.read_records(path)
    assert isinstance(two, readers.BadRecord) and "is longer than" in two.says
    assert (one.where, two.where, three.where) == ("line 1", "line 2", "line 3")
    path = tmp_path / "t.csv"
    path.write_text(f"question,answer\na,{long}\n")
    with pytest.raises(SpecError, match=rf"t\.csv, {said}"):
        list(readers.read_records(path))


def test_a_prompt_on_stdin_has_a_limit(monkeypatch):
    monkeypatch.setattr(run, "LONGEST_LINE", 1 << 20)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x" * (1 << 20))))
    assert len(run.read_stdin()) == 1 << 20
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x" * (1 + (1 << 20)))))
    with pytest.raises(SpecError, match="stdin has more than the 1 MiB that a prompt may have"):
        run.read_stdin()


def test_prompts_come_from_a_pipe_but_from_no_device(tmp_path):
    import os
    import threading

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("one\ntwo\n",))
    writer.start()
    assert run.read_prompts(str(pipe), [], None) == ["one", "two"]
    writer.join()
    with pytest.raises(SpecError, match=r"/dev/zero is a device: name a \.txt or \.jsonl"):
        run.read_prompts("/dev/zero", [], None)


def test_the_limits_of_squads_object(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LARGEST", 1 << 20)
    path = tmp_path / "a.json"
    path.write_text('{"data": [\n"' + "x" * (1 << 20) + '"]}')
    with pytest.raises(SpecError, match="one JSON object of more than 1 MiB: make it JSON lines"):
        list(readers.read_records(path))


def test_json_that_is_nested_too_deeply_is_a_value_error():
    with pytest.raises(ValueError, match="nested too deeply"):
        inputs.parse_json("[" * 200_000)


# cells


@given(st.text())
def test_no_cell_is_a_formula_or_drives_a_terminal(text):
    cell = csv_cell(text)
    assert not cell.startswith(("=", "@", "\t", "\r"))
    drives = [c for c in cell if category(c)[0] == "C" or category(c) in ("Zl", "Zp")]
    assert set(drives) <= set("\n\t")
    if cell.startswith(("+", "-")):
        float(cell)
    if text.isprintable() and not text.startswith(("=", "+", "-", "@")):
        assert cell == text


@given(st.floats(), st.integers())
def test_numbers_stay_numbers(real, whole):
    assert csv_cell(str(real)) == str(real) and csv_cell(f"{whole:+d}") == f"{whole:+d}"


def test_a_table_is_neutralised_and_its_numbers_are_not():
    table = pd.DataFrame(
        {
            "model": ["=cmd|' /C calc'!A0", "a\x1b[2Jb", "@x", "ok"],
            "-value": [-0.5, float("nan"), 1e-300, float("-inf")],
            "count": [-1, 2, 3, 4],
            "cell": pd.Categorical(["-", "+1", "=x", "-0.5"]),
        }
    )
    lines = table_files.as_csv(table).splitlines()
    assert lines == [
        "model,'-value,count,cell",
        "'=cmd|' /C calc'!A0,-0.5,-1,'-",
        "a·[2Jb,,2,+1",
        "'@x,1e-300,3,'=x",
        "ok,-inf,4,-0.5",
    ]
    assert table["model"][0].startswith("="), "the table itself is as it was"
