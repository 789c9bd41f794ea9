"""The list of many runs in a real browser: reachable, quiet, by keyboard, from report to runs."""

import threading
from pathlib import Path

import pytest

import anchorwatch as aw
import planted_study
from anchorwatch.explorer.run_data import Options
from anchorwatch.explorer.run_list import Report, RunFolder
from anchorwatch.explorer.server import Server
from anchorwatch.studies.report.assets import page_policy
from anchorwatch.studies.report.page import page
from anchorwatch.trace.runs import CLAIMS, Runs
from planted_runs import make_runs
from waiting import listens, wait_until

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
PHONE, DESK = (360, 740), (1280, 900)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Eight runs, as if a study had been judged on them; one prompt would run if it could."""
    out = tmp_path_factory.mktemp("many") / "R"
    make_runs(out)
    runs = aw.open_runs(out)
    claims = ["sinks/H13"] * 3 + [""] * 5
    table = runs.table.assign(**{CLAIMS: claims})
    judged = planted_study.study(names=("sinks/H13",))
    object.__setattr__(judged, "runs", table)
    report = Report(page(judged, {}, []).encode(), page_policy())
    server = Server(RunFolder(Runs(runs._folder, table), Options(), report))
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    wait_until(lambda: listens(server.port), "the server")
    yield server.url
    server.close()
    thread.join()


@pytest.fixture
def opened(browser, address):
    contexts, said = [], []

    def open_page(query="", size=DESK, dark=False):
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if dark else "light",
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(address + query)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("query", ["", "?as=pictures&edit=sinks"])
def test_the_list_is_reachable(opened, query, dark):
    page = opened(query, PHONE if dark else DESK, dark)
    page.wait_for_function("() => [...document.images].every(image => image.complete)")
    page.evaluate(AXE.read_text())  # the page's policy takes no script element
    assert page.evaluate("axe.run(document)")["violations"] == []


def test_pictures_are_drawn_and_nothing_hostile_runs(opened):
    page = opened("?as=pictures")
    page.wait_for_function("() => [...document.images].every(image => image.naturalWidth > 0)")
    assert page.locator("ul.pictures li").count() == 8
    assert page.locator("ul.pictures b").count() == 0


def test_two_runs_are_chosen_and_opened_by_keyboard(opened):
    page = opened()
    page.get_by_label("edit").focus()
    page.keyboard.type("sinks")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Show"
    page.keyboard.press("Enter")
    page.wait_for_url("**edit=sinks**")
    assert "4 of 8 runs" in page.title()
    for number in (0, 1):
        page.locator("input[type=checkbox]").nth(number).focus()
        page.keyboard.press("Space")
    page.get_by_role("button", name="Open the ticked runs").press("Enter")
    page.wait_for_selector("[data-panel=map] canvas[data-drawn]")


def test_a_claim_of_the_report_leads_to_its_runs(opened):
    page = opened()
    page.get_by_role("link", name="The report").click()
    link = page.get_by_role("link", name="See them")
    assert link.is_visible()
    assert not page.get_by_text("anchorwatch view FOLDER").is_visible()
    link.click()
    page.wait_for_url("**claim=**")
    assert page.locator("ul.pictures li").count() == 3
