"""The command line typed by tests: in a process of its own, in a shell, or in this one."""

import json
import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from anchorwatch.cli import app

COMMAND = [str(Path(sys.executable).with_name("anchorwatch"))]
ENV = os.environ | {"HF_HUB_OFFLINE": "1", "COLUMNS": "100", "NO_COLOR": "1"}


def type_in(*words, stdin=None, **env):
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        capture_output=True,
        encoding="utf-8",
        env=ENV | env,
        input=stdin,
        check=False,
    )


def in_shell(line, *words):
    """A line of shell in which "$@" is the command."""
    return subprocess.run(
        ["sh", "-c", line, "sh", *COMMAND, *map(str, words)],
        capture_output=True,
        encoding="utf-8",
        env=ENV,
        check=False,
    )


def called(*words):
    """The manifest of a run in this process, which has torch already."""
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout)


def one_line_of(done):
    """What a failed command said, which is one line."""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr
