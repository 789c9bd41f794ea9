"""What the documents show runs."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def python_blocks(document):
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_the_readme_s_lines_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = python_blocks("README.md")
    assert len([line for line in code.splitlines() if line]) <= 11
    exec(compile(code, "README.md", "exec"), {})
    assert "null" in capsys.readouterr().out
    assert (tmp_path / "sinks.pdf").stat().st_size > 1000


def test_the_quickstart_s_lines_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = python_blocks("docs/quickstart.md")
    exec(compile(code, "quickstart.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert (tmp_path / "first.trace").is_dir()


@pytest.mark.parametrize("page", ["concepts", "how-to", "caches", "models", "sweeps"])
def test_the_lines_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(python_blocks(f"docs/{page}.md"))
    exec(compile(code, f"{page}.md", "exec"), {})


def test_every_family_stands_in_models():
    from anchorwatch.models.families import FAMILIES

    text = (ROOT / "docs" / "models.md").read_text()
    assert [family.name for family in FAMILIES if f"`{family.name}`" not in text] == []


RUN_SECTIONS = """
import re, sys
text = open(sys.argv[1], encoding="utf-8").read()
for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
    code = "\\n".join(re.findall(r"```python\\n(.*?)```", section, re.DOTALL))
    exec(compile(code, section.splitlines()[0], "exec"), {"__name__": "__main__"})
    print(section.splitlines()[0])
"""
KINDS = ["probe", "edit", "decoding", "metric", "figure", "claim", "model family", "explorer"]


def test_every_example_of_extending_runs(tmp_path):
    """In a process of its own: what the examples register is not for the other tests."""
    document = ROOT / "docs" / "extending.md"
    done = subprocess.run(
        [sys.executable, "-c", RUN_SECTIONS, str(document)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(any(kind in line for line in done.stdout.splitlines()) for kind in KINDS)


def test_every_public_module_has_a_page_of_the_reference():
    """`make docs` fails on a page that the navigation names and that is not there."""
    import anchorwatch as aw

    nav = (ROOT / "mkdocs.yml").read_text()
    assert set(re.findall(r"reference/(\w+)\.md", nav)) == {"run", "values", *aw._MODULES}


@pytest.mark.slow
def test_the_pages_are_built_and_every_link_leads_somewhere(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    built = subprocess.run(
        [*command, "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site" / "reference" / "run.html").read_text()
    assert "run_many" in page
    sources = re.findall(r'(?:src|href)="(https?://[^"]+)"', page)
    assert [url for url in sources if "squidfunk" not in url] == []  # nothing is fetched


SLOW = {"effect.py"}
EXAMPLES = [
    pytest.param(path, id=path.name, marks=[pytest.mark.slow] * (path.name in SLOW))
    for path in sorted((ROOT / "examples").glob("*.py"))
]


@pytest.mark.parametrize("path", EXAMPLES)
def test_every_example_runs(path, capsys):
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


def test_the_glossary_knows_every_role():
    from anchorwatch.trace.trace import ROLES

    text = (ROOT / "GLOSSARY.md").read_text()
    assert all(role in text for role in ROLES)


def test_every_file_that_the_architecture_names_is_there():
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", text)
    assert len(named) > 25
    missing = [
        path
        for path in named
        if not (ROOT / "src" / "anchorwatch" / path).exists() and not (ROOT / path).exists()
    ]
    assert missing == []


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def run_notebooks():
    spec = importlib.util.spec_from_file_location(
        "run_notebooks", ROOT / "docs" / "run_notebooks.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_runs_and_shows_what_is_kept_in_it(
    path, run_notebooks, tmp_path, monkeypatch
):
    """Numbers may differ between machines; which cells show what may not."""
    monkeypatch.chdir(tmp_path)
    kept = run_notebooks.read_notebook(path)
    fresh = run_notebooks.execute(kept)
    assert kinds_of_output(fresh) == kinds_of_output(kept)
    assert path.stat().st_size < 500_000


def kinds_of_output(notebook):
    return [
        [sorted(output.get("data", ["printed"])) for output in cell.get("outputs", ())]
        for cell in notebook["cells"]
    ]


def test_notebooks_are_pages_whose_links_and_pictures_are_whole(run_notebooks):
    assert len(NOTEBOOKS) == 3
    nav = (ROOT / "mkdocs.yml").read_text()
    for path in NOTEBOOKS:
        assert f"notebooks/{path.stem}.md" in nav
        notebook = run_notebooks.read_notebook(path)
        assert {"nbformat", "nbformat_minor", "metadata", "cells"} == set(notebook)
        page = run_notebooks.as_markdown(notebook)
        links = re.findall(r"\]\(([\w./-]+)\)", page)
        assert links and all((path.parent / link).exists() for link in links)
        assert "data:image/png;base64," in page


def test_a_notebook_shows_values_as_jupyter_does(run_notebooks):
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["value = 1\n", "print('<b>')\n", "value + 1"]},
        {"cell_type": "code", "source": ["value = None"]},
    ]
    done = run_notebooks.execute({"cells": cells})
    printed, result = done["cells"][1]["outputs"]
    assert printed["text"] == ["<b>\n"] and result["data"] == {"text/plain": ["2"]}
    assert done["cells"][2]["outputs"] == []
    page = run_notebooks.as_markdown(done)
    assert ">&lt;b&gt;\n</pre>" in page
    with pytest.raises(ZeroDivisionError):
        run_notebooks.execute({"cells": [{"cell_type": "code", "source": ["1 / 0"]}]})


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def shown_commands(page, program):
    """What the console blocks of a page type: the words after a program, continued lines joined."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
    for block in blocks:
        joined = re.sub(r"\\\n> *", " ", block)
        for line in joined.splitlines():
            if line.startswith(f"$ {program} "):
                yield line.split("  #")[0].removeprefix(f"$ {program} ").strip()


def test_every_command_that_a_page_shows_is_there_with_its_options():
    import typer

    from anchorwatch.cli.app import app

    commands = typer.main.get_command(app).commands
    wrong, count = [], 0
    for page in PAGES:
        for line in shown_commands(page, "anchorwatch"):
            name, count = line.split()[0], count + 1
            known = {
                option
                for parameter in commands[name].params
                for option in (*parameter.opts, *parameter.secondary_opts)
            }
            if name != "lm-eval":  # it passes on what is lm-eval's own
                typed = re.findall(r"(?<!\S)--[a-z][\w-]*", line)
                wrong += [f"{page.name}: {name} {word}" for word in typed if word not in known]
    assert wrong == []
    assert count > 60


def test_every_target_that_a_page_shows_is_in_the_makefile():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {line.split()[0] for page in PAGES for line in shown_commands(page, "make")}
    inline = {word for page in PAGES for word in re.findall(r"`make ([\w-]+)`", page.read_text())}
    assert shown and (shown | inline) - targets == set()
