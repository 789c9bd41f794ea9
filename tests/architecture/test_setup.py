"""What set-up says on a machine that lacks something: a sentence, before anything is done."""

import ast
import re
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


def planned(target):
    """What `make` would type for a target."""
    command = ["/usr/bin/make", "-n", target]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("target", ["test", "test-slow"])
def test_tests_need_the_browser_first(target):
    said = planned(target)
    assert said.index("need Chromium") < said.index("-m pytest")


def test_every_test_is_run_before_a_change_lands():
    """A test has one of three marks or none, and a target for each of them is in .ci/run."""
    chosen = {"test": '"not real and not slow"', "test-slow": '"slow and not real"'}
    chosen["test-real"] = "real tests/real"
    for target, words in chosen.items():
        assert f"-m {words}" in planned(target)
    parts = re.search(r"for part in (.*); do", (ROOT / ".ci" / "run").read_text()).group(1).split()
    assert parts == ["check", "test", "test-slow", "test-machines", "test-real"]


CLOCKS = re.compile(r"perf_counter|monotonic\(|process_time|wait_for_timeout|\bsleep\(")


def test_no_test_measures_time_or_sleeps():
    """A busy machine would fail it: benchmarks print times, `waiting.wait_until` waits.

    Programs that only tests or `make` start, and that print how long they took, are no tests.
    """
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for pattern in ("test_*.py", "conftest.py")
        for path in sorted((ROOT / "tests").rglob(pattern))
        for line in path.read_text(encoding="utf-8").splitlines()
        if CLOCKS.search(line) and path != Path(__file__)
    ]
    assert found == []


BARE_LOOKUP = re.compile(r"=> *!?document\.(querySelector|getElementById)\([^)]*\)\.")


def test_a_page_is_waited_for_also_while_the_element_is_not_there():
    """A predicate that reads a missing element throws, and the wait ends: `?.` waits on."""
    bare = [
        f"{path.name}: {line.strip()}"
        for path in sorted((ROOT / "tests" / "browser").glob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if BARE_LOOKUP.search(line)
    ]
    assert bare == []


def test_laws_assume_and_never_return():
    """An example that a law is not about is not counted as one that obeys it."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for law in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(law, ast.FunctionDef) and any(
                re.match(r"(given|law)\(", ast.unparse(mark)) for mark in law.decorator_list
            ):
                inner = {
                    id(node)
                    for part in ast.walk(law)
                    if isinstance(part, ast.FunctionDef | ast.Lambda) and part is not law
                    for node in ast.walk(part)
                }
                found += [
                    f"{path.name}:{node.lineno}"
                    for node in ast.walk(law)
                    if isinstance(node, ast.Return) and id(node) not in inner
                ]
    assert found == []


def test_a_first_look_needs_what_a_study_needs_and_the_page():
    said = planned("look")
    run, view = said.index("anchorwatch run lab/tales-mdm"), said.index("anchorwatch view runs/")
    assert run < view and "--model lab/tales-mdm" in said[view:]
    assert "[dev]" not in planned_anew("look")


def planned_anew(target):
    """What `make` would type where nothing is installed or built yet."""
    command = ["/usr/bin/make", "-n", "-B", "VENV=.none", target]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
