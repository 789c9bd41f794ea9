"""No bad input is answered with a traceback, a hang or nothing."""

import pytest

from bad_inputs import BAD_INPUTS, BROKE, lay_out
from command import type_in

EVERY = 24
"""Of the whole table one in so many is typed here; all of it takes many minutes."""
SECONDS = 300
"""A guard against a command that never ends."""
MEMORY = 8 << 30


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    lay_out(folder)
    words = ("run", "tiny/llada", "the", "--length", 4, "--steps", 2, "-o", folder / "good.trace")
    assert type_in(*words).returncode == 0
    return folder


@pytest.mark.parametrize("given", (*BROKE, *BAD_INPUTS[::EVERY]), ids=lambda given: given.name)
def test_a_bad_input_ends_in_one_line_that_says_what_was_wrong(bad, tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    stdin = given.stdin.decode("utf-8", "surrogateescape")
    done = type_in(*given.typed(bad), stdin=stdin, seconds=SECONDS, memory=MEMORY)
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    said = done.stdout if given.words[0] == "verify" else done.stderr.strip().splitlines()[-1]
    assert said.strip() if given.words[0] == "verify" else "error: " in said.lower()
    assert list(tmp_path.iterdir()) == []
