"""What the documents show runs."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_readme_s_ten_lines_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    exec(compile(code, "README.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert (tmp_path / "first.trace").is_dir()


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
