"""Numbers that are not exact say so: bins of long texts, and the eight bits of a sent page."""

import numpy as np
import pytest

from anchorwatch.explorer.export import export
from anchorwatch.explorer.open import from_memory
from anchorwatch.explorer.run_data import Options, Run
from synthetic_traces import small_trace

STEP, LAYER, BIN = 2, 1, 30


@pytest.fixture(scope="module")
def long():
    """150 positions in 50 columns, three each."""
    return small_trace(steps=6, length=150)


@pytest.fixture(scope="module")
def asked(serving, long):
    return serving([Run(from_memory(long), Options(columns=50))])


@pytest.fixture(scope="module")
def sent(tmp_path_factory, long):
    place = tmp_path_factory.mktemp("binned") / "page.html"
    return export([Run(from_memory(long), Options(columns=50))], place).as_uri()


def shares(trace, step=STEP):
    return trace["received"].sel(group="all")[step, LAYER].mean("head").values


def point(page, step=STEP, column=BIN):
    heat = page.locator("[data-panel=map] .heat").first
    x, y, w, h = map(float, heat.get_attribute("data-frame").split())
    heat.hover(position={"x": x + (column + 0.5) * w / 50, "y": y + (step + 0.5) * h / 6})


def reading(page, panel="map"):
    return page.locator(f"[data-panel={panel}] .reading").first.inner_text()


def cells(page, panel):
    section = page.locator(f"[data-panel={panel}]")
    section.locator("button", has_text="Table").click()
    head = section.locator("th").all_inner_texts()
    return head, [
        [cell.strip() for cell in row.split("\t")]
        for row in section.locator(".table tbody tr").all_inner_texts()
    ]


def test_a_column_of_several_positions_names_the_greatest(look, asked, long):
    page = look(asked).go(f"{asked}#v=1&step=0&layer={LAYER}")
    point(page)
    row = shares(long)
    greatest = 3 * BIN + int(row[3 * BIN : 3 * BIN + 3].argmax())
    page.wait_for_function(
        "word => document.querySelector('[data-panel=map] .reading')?.textContent.includes(word)",
        arg=f"position {greatest} · ",
    )
    assert reading(page).endswith(f"greatest of positions {3 * BIN} to {3 * BIN + 2}")
    assert f"{float(f'{row[greatest]:.5g}')}"[:6] in reading(page)


def test_a_sent_column_names_its_range_only(look, sent, long):
    page = look(sent).go(f"{sent}#v=1&step=0&layer={LAYER}")
    quiet = next(  # no sink of it is exact
        at for at in range(50) if shares(long)[3 * at : 3 * at + 3].max() < 1.5 / 150
    )
    point(page, column=quiet)
    said = reading(page)
    assert f"step {STEP} · positions {3 * quiet} to {3 * quiet + 2} · the greatest of them" in said
    assert "≈" in said


def test_tokens_of_a_bin_have_their_own_colours_where_they_are_read(look, asked, sent):
    colours = """() => [...document.querySelectorAll('[data-panel=text] [data-p]')]
      .map(span => span.style.backgroundColor)"""
    page = look(asked).go(f"{asked}#v=1&step={STEP}&layer={LAYER}")
    page.locator("[data-panel=text] li", has_text="of each token its own").wait_for()
    own = np.array(page.evaluate(colours)).reshape(50, 3)
    assert sum(len({*bin_}) > 1 for bin_ in own) > 25
    page = look(sent).go(f"{sent}#v=1&step={STEP}&layer={LAYER}")
    page.locator("[data-panel=text] li", has_text="of each 3 tokens the greatest").wait_for()
    shared = np.array(page.evaluate(colours)).reshape(50, 3)
    assert all(len({*bin_}) == 1 for bin_ in shared)


def test_tables_of_a_sent_page_give_the_greatest_to_the_bin(look, sent, long):
    page = look(sent).go(f"{sent}#v=1&step={STEP}&layer={LAYER}")
    head, rows = cells(page, "map")
    assert head[:3] == ["positions", "share of the greatest", "read as"]
    assert len(rows) == 50
    for row in rows:
        first, last = map(int, row[0].split(" to "))
        held = shares(long)[first : last + 1]
        assert float(row[1]) == pytest.approx(held.max(), rel=0.1)
        if row[3]:
            assert int(row[3]) == first + held.argmax()
    head, rows = cells(page, "text")
    assert head[-2:] == ["≈ share", "read as"]
    assert {row[-1] for row in rows} <= {"exact", "8 bit, the greatest of its bin"}


def test_a_lift_is_of_one_position_or_not_offered(look, asked):
    held = look(asked)
    page = held.go(f"{asked}#v=1&step={STEP}&layer={LAYER}&token=91&scale=lift")
    assert "not for columns of several positions" in page.locator(".notice").inner_text()
    assert "scale=lift" not in held.hash()
    assert page.locator("option", has_text="times an even share").count() == 0
    for word in ("scale=share", "layer="):
        page.keyboard.press("n")
        assert "scale=lift" not in held.hash(word)
    page.wait_for_function(  # of one position it is exact
        "() => document.querySelector('[data-panel=map] .reading')?.textContent.includes('× even share')"
    )


@pytest.fixture(scope="module")
def rounded(tmp_path_factory, plain):
    place = tmp_path_factory.mktemp("rounded") / "page.html"
    return export([Run(from_memory(plain)), Run(from_memory(plain))], place).as_uri()


def test_tables_of_a_sent_page_mark_what_is_rounded(look, rounded):
    page = look(rounded).go(f"{rounded}#v=1&with=none&step=2&layer=1&measure=entropy")
    page.wait_for_selector("[data-panel=geometry] figure:nth-child(5)")
    head, rows = cells(page, "heads")
    assert head[2:4] == ["≈ entropy", "read as"]
    assert {row[3] for row in rows} == {"8 bit"}
    head, rows = cells(page, "geometry")
    assert head[3:] == ["≈ lower quartile", "≈ median", "≈ upper quartile", "read as"]
    assert {row[-1] for row in rows} == {"8 bit"}
    head, rows = cells(page, "text")
    assert head[-2:] == ["≈ share", "read as"]
    assert "8 bit" in {row[-1] for row in rows}
    page.locator("[data-panel=heads] select").select_option("greatest share")
    page.wait_for_function(
        "() => document.querySelector('[data-panel=heads] td:nth-child(4)')?.textContent === 'exact'"
    )


def test_differences_of_a_sent_page_mark_what_is_rounded(look, rounded):
    page = look(rounded).go(f"{rounded}#v=1&step=2&layer=1&measure=entropy")
    page.wait_for_selector("[data-panel=heads-difference] canvas[data-drawn]")
    head, rows = cells(page, "heads-difference")
    assert head[2:] == ["≈ entropy in A", "≈ in B", "≈ B minus A", "read as"]
    assert {row[-1] for row in rows} == {"8 bit"}


def test_an_enlarged_text_of_two_runs_is_exact_too(look, serving, plain, causal):
    url = serving([Run(from_memory(plain)), Run(from_memory(causal))])
    page = look(url).go(f"{url}#v=1&step=2&layer=1&token=3&panel=text")
    for side in "AB":
        page.wait_for_function(
            "side => document.querySelector(`[data-panel=text${side}] .reading`)?.textContent.includes('≈') === false",
            arg=side,
        )
