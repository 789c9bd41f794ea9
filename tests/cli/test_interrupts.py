"""Ctrl-C at any moment, while a command is being imported too: one line and exit code 130."""

import os
import signal
import subprocess
import sys

import pytest
from typer.core import TyperGroup

from anchorwatch.cli import app
from command import COMMAND, ENV, one_line_of

INTERRUPTING = """
import signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and "anchorwatch" in sys.modules:
            sys.meta_path.remove(self)
            exec("signal.raise_signal(signal.SIGINT)")  # as dataclasses execute what they write

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started us may ignore it
sys.meta_path.insert(0, Interrupting())
"""
"""A process gets the signal when it begins to import a module: nothing depends on time."""

MODULES = ["anchorwatch.cli.app", "typer", "anchorwatch.cli.output", "torch"]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("start", [COMMAND, [sys.executable, "-m", "anchorwatch"]], ids=len)
def test_an_interrupt_during_imports_is_one_line(start, module, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING.format(module=module))
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [*start, "run", "tiny/llada", "the anchor", "--length", "4"],
        capture_output=True,
        text=True,
        env=ENV | {"PYTHONPATH": os.pathsep.join(paths)},
        check=False,
    )
    assert one_line_of(done).startswith("error: interrupted")
    assert (done.returncode, done.stdout) == (130, "")


def test_an_interrupt_while_words_are_read_is_one_line(monkeypatch, capsys):
    def interrupt(*_):
        signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.setattr(sys, "argv", ["anchorwatch", "models"])
        monkeypatch.setattr(TyperGroup, "parse_args", interrupt)
        with pytest.raises(SystemExit) as ended:
            app.main()
    finally:
        signal.signal(signal.SIGINT, previous)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "error: interrupted\n"
