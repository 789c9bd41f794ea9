"""What set-up says on a machine that lacks something: a sentence, before anything is done."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tools(tmp_path):
    """A PATH of its own, with a user who is not root."""
    put(tmp_path, "id", "echo 1000")
    return tmp_path


def put(folder, name, script):
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def make(tools, *words):
    command = ["/usr/bin/make", "--no-print-directory", *words]
    done = subprocess.run(
        command, cwd=ROOT, env={"PATH": str(tools)}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def test_without_a_browser_it_says_what_to_type(tools):
    code, said = make(tools, "setup-browser")
    assert code != 0
    assert said.strip() == (
        "the tests of the explorer need Chromium: sudo apt-get install chromium"
    )


@pytest.mark.parametrize("name", ["chromium", "chromium-browser"])
def test_a_browser_that_is_there_is_enough(tools, name):
    put(tools, name, "exit 0")
    assert make(tools, "setup-browser") == (0, "")


def test_root_gets_the_browser_from_debian(tools):
    put(tools, "id", "echo 0")
    put(tools, "apt-get", 'echo "apt-get $*"')
    code, said = make(tools, "setup-browser")
    assert code == 0
    assert said.splitlines() == ["apt-get update -qq", "apt-get install -y -qq chromium"]


@pytest.mark.parametrize(
    ("script", "found"),
    [(None, "none"), ('[ "$1" = --version ] || exit 1\necho v18.2.0', "v18.2.0")],
)
@pytest.mark.parametrize("target", ["web", "setup"])
def test_an_old_node_or_none_is_said_before_anything_is_installed(tools, script, found, target):
    if script is not None:
        put(tools, "node", script)
    put(tools, "python3", "exit 0")
    put(tools, "npm", "echo installed")
    code, said = make(tools, "-B", target)
    assert code != 0
    assert f"needs Node 20.19 or newer, this is {found}: install it" in said
    assert "ANCHORWATCH_WITHOUT_PAGE=1" in said
    assert "installed" not in said


def test_tests_need_the_browser_and_time_is_measured_last():
    """Both are in what `make test` would do, in this order."""
    command = ["/usr/bin/make", "-n", "test"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    browser = said.index("need Chromium")
    many, alone = said.index('-m "not real and not alone"'), said.index("-m alone")
    assert browser < many < alone
    assert "-n 2" not in said[alone:].splitlines()[0]
