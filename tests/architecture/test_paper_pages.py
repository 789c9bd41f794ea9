"""docs/papers.md has every figure and table of the papers, with its command and our picture."""

import importlib.util
import re
from pathlib import Path

import pytest

from anchorwatch.studies.reproduction import PAPERS, paper_items

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def pages():
    spec = importlib.util.spec_from_file_location("paper_pages", DOCS / "paper_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_registry_says(pages):
    """`python docs/paper_pages.py --only page` writes it again."""
    assert (DOCS / "papers.md").read_text(encoding="utf-8") == pages.page()


def test_every_item_has_its_command_and_what_the_lab_can_make(pages):
    text = pages.page()
    for paper in PAPERS:
        for item in paper_items(paper):
            (row,) = [
                line
                for line in text.splitlines()
                if line.startswith("| ") and f"`{item.command}`" in line
            ]
            made = f"](papers/{paper}-{item.slug}" in row or "[below](#" in row
            assert made or (paper, item.label) == ("sink_token", "table 2")


def test_the_page_says_how_few_items_its_numbers_are_of(pages):
    effort = pages.PROTOCOL
    says = (
        f"{effort.items} questions a cell, pictures {effort.prompts} prompts: differences of so few"
    )
    assert f"{says} items are not findings" in pages.page()


def test_pictures_are_there_and_small():
    named = re.findall(r"\]\(papers/([^)]+)\)", (DOCS / "papers.md").read_text(encoding="utf-8"))
    files = {path.name: path.stat().st_size for path in (DOCS / "papers").iterdir()}
    assert set(named) == {name for name in files if name.endswith(".png")}
    assert sum(files.values()) < 3_000_000
