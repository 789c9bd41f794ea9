"""A run changed by hand in the page: candidates, forks beside the original, saved and reopened."""

import threading

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch.cli import view as cli_view
from anchorwatch.explorer.live import Candidates, Forks, Live
from anchorwatch.explorer.open import OpenedTrace, from_memory, open_for_viewing
from anchorwatch.explorer.run_data import Options, Run
from anchorwatch.explorer.server import Server
from anchorwatch.trace.trace import MASKED
from synthetic_traces import HOSTILE, hostile_trace
from waiting import GUARD, listens, wait_until

AT = "#v=1&with=none&step=2&layer=1"


@pytest.fixture(scope="module")
def trace():
    prompt = "Passage: Lena was born in Oslo. Answer:"
    return aw.run(aw.load("tiny/llada"), prompt, aw.decoding.LowConfidence(6, 6))


@pytest.fixture
def live(trace, tmp_path):
    """(address, folder) of a server that can fork."""
    opened = open_for_viewing(trace.write(tmp_path / "lena.trace"))
    shared = cli_view.LockedModel(aw.load("tiny/llada"), threading.Lock())
    runs = [Run(opened, live=cli_view._live(shared, opened.trace))]
    server = Server(runs, forks=cli_view._forks(shared, runs, Options(), None))
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    wait_until(lambda: listens(server.port), "the start of the server")
    yield server.url, tmp_path
    server.close()
    thread.join(timeout=GUARD)


def open_live(held, address):
    page = held.go(address)
    page.locator(".live summary").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".live table")
    return page


def test_a_token_is_written_by_hand_and_the_fork_is_saved_and_reopened(look, live, trace):
    url, folder = live
    position = int(np.flatnonzero(trace.role[2] == MASKED)[-1])
    held = look(url)
    page = open_live(held, url + AT)
    assert page.locator(".live tbody tr").count() == int((trace.role[2] == MASKED).sum())
    row = page.locator(".live tbody button", has_text=str(position))
    row.focus()
    page.keyboard.press("Enter")  # keyboard alone
    held.hash(f"token={position}")
    writes = page.locator(".choices button[type=button]")
    assert writes.count() == 5
    word = writes.nth(1).inner_text()
    writes.nth(1).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-panel=mapB] canvas[data-drawn]")
    assert "with=1" in held.hash("with=1")
    text = page.locator(".runs select").nth(1).evaluate("e => e.selectedOptions[0].textContent")
    assert text.startswith("fork at step 2, “")
    assert page.locator(".about", has_text="forked at step 2").count() == 1
    held.settle()
    assert held.axe() == []
    page.get_by_role("button", name="Save the fork").click()
    page.wait_for_function(
        "() => document.querySelector('.live')?.textContent.includes('lena-fork1.trace')"
    )
    again = aw.read(folder / "lena-fork1.trace")
    assert f"“{again.token(int(again.canvas[3, position])).strip()}”" in word.replace("␣", "")
    opened = Run(open_for_viewing(folder / "lena-fork1.trace"))
    assert opened.header()["fork"] == 2
    assert opened.header()["damage"] == []


def test_a_word_of_ones_own_is_typed_and_written_by_keyboard(look, live, trace):
    url, _ = live
    position = int(np.flatnonzero(trace.role[2] == MASKED)[-1])
    held = look(url, quiet=False)  # what is refused is an error of the console, too
    page = open_live(held, f"{url}{AT}&token={position}")
    page.get_by_label("or a word of your own").focus()
    page.keyboard.type("<img src=x onerror=window.hacked=1>")
    page.keyboard.press("Enter")
    page.wait_for_function(
        "() => document.querySelector('.live [role=alert]')?.textContent.includes('<img src=x')"
    )
    assert page.locator(".live img").count() == 0
    page.get_by_label("or a word of your own").fill("ship")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-panel=mapB] canvas[data-drawn]")
    options = page.locator(".runs select").nth(1).locator("option").all_inner_texts()
    assert f"fork at step 2, “ship” at position {position}" in options
    assert page.evaluate("window.hacked") is None
    assert held.axe() == []


@pytest.mark.parametrize(
    ("place", "button", "name"),
    [
        ("&token=3", "Hide position 3", "without key 3"),
        ("&head=1", "Knock out layer 1, head 1", "without head 1 of layer 1"),
        ("", "Add a sink token", "with a sink token"),
    ],
)
def test_a_key_a_head_or_a_sink_token(look, live, place, button, name):
    url, _ = live
    held = look(url)
    page = open_live(held, url + AT + place)
    page.get_by_role("button", name=button).click()
    page.wait_for_selector("[data-panel=mapB] canvas[data-drawn]")
    options = page.locator(".runs select").nth(1).locator("option").all_inner_texts()
    assert f"fork at step 2, {name}" in options
    held.settle()


def test_what_goes_wrong_is_said_in_the_panel(look, live):
    url, _ = live
    held = look(url, quiet=False)
    page = open_live(held, url + AT)

    def fail(route):
        route.fulfill(status=409, json={"error": "a fork is running: wait until it is done"})

    held.page.route("**/fork", fail)
    page.get_by_role("button", name="Add a sink token").click()
    page.wait_for_function(
        "() => document.querySelector('.live [role=alert]')?.textContent.includes('a fork is running')"
    )
    held.page.unroute("**/fork")
    page.get_by_role("button", name="Add a sink token").click()
    page.wait_for_selector("[data-panel=mapB] canvas[data-drawn]")
    assert page.locator(".live [role=alert]").count() == 0


def test_a_run_without_its_model_has_no_live_panel(look, url):
    page = look(url).go(f"{url}{AT}")
    assert page.locator(".live").count() == 0


@pytest.mark.parametrize("dark", [False, True])
def test_the_live_panel_is_accessible_on_a_phone(look, live, dark):
    url, _ = live
    held = look(url, width=390, dark=dark)
    page = open_live(held, url + AT)
    held.settle()
    assert held.axe() == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_hostile_candidates_and_names_of_forks_are_text(look):
    """What a tokenizer spells is foreign: in the table, on the buttons and in the name of a fork."""
    trace, ids = hostile_trace(), np.arange(1, len(HOSTILE) + 1, dtype=np.int32)
    masked = np.flatnonzero(trace.role[2] == MASKED).astype(np.int32)
    likely = Candidates(
        masked,
        np.stack([np.roll(ids, -row) for row in range(len(masked))]),
        np.full((len(masked), len(ids)), 0.05, dtype=np.float32),
        dict(enumerate(HOSTILE, start=1)),
    )
    runs = []
    live = Live(lambda step: likely, lambda step, edit, on_step: trace, find_token=None)

    def add_run(index, fork, name):
        runs.append(Run(OpenedTrace(name, fork), live=live))
        return len(runs) - 1

    runs.append(Run(from_memory(trace), live=live))
    server = Server(runs, forks=Forks(add_run, {}))
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        wait_until(lambda: listens(server.port), "the start of the server")
        held = look(server.url)
        page = open_live(held, f"{server.url}#v=1&with=none&step=2&layer=1&token={masked[0]}")
        writes = page.locator(".choices button[type=button]")
        assert writes.count() == len(HOSTILE)
        assert "Write “<img␣src=x␣onerro…”" in page.locator(".choices").inner_text()
        writes.nth(1).click()
        page.wait_for_selector("[data-panel=mapB] canvas[data-drawn]")
        held.settle()
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main svg[onload]").count() == 0
        options = page.locator(".runs select").nth(1).locator("option").all_inner_texts()
        assert any("fork at step 2, “<img src=x" in option for option in options)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert held.axe() == []
    finally:
        server.close()
        thread.join(timeout=GUARD)
