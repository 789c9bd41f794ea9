"""Tokens are foreign text: whatever they say, the page shows it and does nothing else."""

import pytest

from anchorwatch.explorer.export import export
from anchorwatch.explorer.open import from_memory
from anchorwatch.explorer.run_data import Run
from anchorwatch.trace.escape import visible
from synthetic_traces import HOSTILE, hostile_trace


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    place = tmp_path_factory.mktemp("hostile") / "page.html"
    return export([Run(from_memory(hostile_trace()))], place).as_uri()


def texts(page):
    return page.evaluate(
        "[...document.querySelectorAll('[data-panel=text] [data-p]')].map(s => s.textContent)"
    )


@pytest.mark.parametrize("where", ["server", "file"])
def test_hostile_tokens_are_text_everywhere(look, url, sent, where):
    address = f"{url}#v=1&with=none&run=2&" if where == "server" else f"{sent}#v=1&"
    held = look(url if where == "server" else sent)
    page = held.go(
        f"{address}step=5&layer=1&tables=1&head=0"
        if where == "server"
        else f"{address}step=5&layer=1&tables=1"
    )
    page.evaluate("settled()")
    shown = texts(page)
    role = hostile_trace().role[5]
    for position, text in enumerate(HOSTILE):
        if role[position] == 2:
            continue
        if text == "":
            assert shown[position] == "∅"
        elif len(text) > 160:
            assert shown[position].startswith("x" * 160)
            assert "1,000,000 characters" in shown[position]
        else:
            assert shown[position] == visible(text)
    for _ in HOSTILE:  # every reading and label too
        page.keyboard.press(".")
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img").count() == 0
    assert page.evaluate("document.querySelectorAll('[onerror], [onload]').length") == 0
    assert page.evaluate("[...document.scripts].length") == 2


def test_a_right_to_left_token_turns_only_itself(look, url):
    page = look(url).go(f"{url}#v=1&with=none&run=2&step=5&layer=1")
    turned = HOSTILE.index("مرحبا")
    held = page.evaluate(
        "[...document.querySelectorAll('[data-panel=text] [data-p]')].map(s => ["
        "getComputedStyle(s).unicodeBidi, s.getBoundingClientRect().left, s.getBoundingClientRect().top])"
    )
    assert {one[0] for one in held} == {"isolate"}
    before, here, after = held[turned - 1 : turned + 2]
    for left, right in ((before, here), (here, after)):
        assert right[2] > left[2] or right[1] >= left[1]


def test_nothing_of_the_page_is_made_from_text():
    """No way for text to become markup, in any source file of the page."""
    from pathlib import Path

    source = Path(__file__).parents[2] / "web" / "src"
    files = [*source.rglob("*.svelte"), *source.rglob("*.ts")]
    assert len(files) > 15
    for file in files:
        text = file.read_text()
        for word in (
            "{@html",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ):
            assert word not in text, f"{file.name}: {word}"
