"""The command line typed by tests: in a process of its own, in a shell, or in this one."""

import atexit
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from typer.testing import CliRunner

from anchorwatch.cli.app import app

COMMAND = [str(Path(sys.executable).with_name("anchorwatch"))]
ENV = os.environ | {"HF_HUB_OFFLINE": "1", "COLUMNS": "100", "NO_COLOR": "1"}


def type_in(*words, stdin=None, fresh=False, seconds=0, memory=0, **env):
    """A command in a process of its own, forked from one that has imported what is slow.

    `fresh` starts it from nothing, as a person does, and so does an environment of its own. A
    forked one may have a limit of `seconds`, and of `memory` in bytes of address space. What is no
    UTF-8 on its streams is spelled as in arguments.
    """
    typed = list(map(str, words))
    if not fresh and not env:
        return _forks()(typed, stdin or "", (seconds, memory))
    return subprocess.run(
        [*COMMAND, *typed],
        capture_output=True,
        encoding="utf-8",
        env=ENV | env,
        input=stdin,
        check=False,
    )


class _Forks:
    """The process that imports, once for all tests of a worker."""

    def __init__(self):
        pipe, script = subprocess.PIPE, Path(__file__).with_name("forks.py")
        self._server = subprocess.Popen(
            [sys.executable, script], stdin=pipe, stdout=pipe, env=ENV, text=True
        )
        atexit.register(self._server.communicate)

    def __call__(self, words, stdin, limits):
        with TemporaryDirectory() as folder:
            place = {name: Path(folder, name) for name in ("stdin", "stdout", "stderr")}
            place["stdin"].write_bytes(stdin.encode("utf-8", "surrogateescape"))
            asked = {"words": words, "cwd": str(Path.cwd()), "limits": limits}
            asked |= {name: str(path) for name, path in place.items()}
            self._server.stdin.write(json.dumps(asked) + "\n")
            self._server.stdin.flush()
            ended = self._server.stdout.readline()
            if not ended:
                _forks.cache_clear()
                raise RuntimeError(f"tests/forks.py ended with {self._server.wait()}: see stderr")
            code = int(ended)
            out, err = (
                place[name].read_text(encoding="utf-8", errors="surrogateescape")
                for name in ("stdout", "stderr")
            )
        return subprocess.CompletedProcess([*COMMAND, *words], code, out, err)


@cache
def _forks():
    return _Forks()


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
