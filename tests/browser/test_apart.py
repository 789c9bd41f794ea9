"""Two runs cell by cell: top keys, heads and region flow, against the numbers of the traces."""

import numpy as np
import pytest

from anchorwatch import metrics
from anchorwatch.explorer.head_tables import read_tables
from anchorwatch.explorer.open import from_memory
from anchorwatch.explorer.run_data import Options, Run
from anchorwatch.metrics import table_files
from synthetic_traces import planted, random_maps

APART = ("difference", "layers-difference", "heads-difference", "flow-difference")
STEP, LAYER, HEAD = 3, 1, 2


def of(trace, step=STEP, layer=LAYER):
    """[head, key] shares; -1 for keys that are not there yet."""
    return np.nan_to_num(trace["received"].sel(group="all")[step, layer].values, nan=-1)


def reading(page, panel):
    return page.locator(f"[data-panel={panel}] .reading").inner_text()


def cells(page, panel):
    """The rows of a panel's table."""
    section = page.locator(f"[data-panel={panel}]")
    section.locator("button", has_text="Table").click()
    return [
        [cell.strip() for cell in row.split("\t")]
        for row in section.locator(".table tbody tr").all_inner_texts()
    ]


@pytest.fixture
def both(look, serving, plain, causal):
    """Both runs by step, where one layer and head are looked at."""
    url = serving([Run(from_memory(plain)), Run(from_memory(causal))])
    held = look(url)
    page = held.go(f"{url}#v=1&with=1&align=step&step={STEP}&layer={LAYER}&head={HEAD}")
    for panel in APART[:3]:
        page.wait_for_selector(f"[data-panel={panel}] canvas[data-drawn]")
    page.wait_for_function("() => !document.querySelector('[data-panel^=layers] [role=status]')")
    return page


def test_greatest_keys_are_compared_by_layer_and_step(both, plain, causal):
    one, two = of(plain)[HEAD], of(causal)[HEAD]
    text = reading(both, "layers-difference")
    assert f"A {one.argmax()} “" in text
    assert f"B {two.argmax()} “" in text
    assert text.endswith("the same token" if one.argmax() == two.argmax() else "another token")
    rows = cells(both, "layers-difference")
    assert len(rows) == 3
    for layer, row in enumerate(rows):
        one, two = (of(trace, layer=layer)[HEAD] for trace in (plain, causal))
        assert [int(row[0]), int(row[1])] == [layer, layer]
        assert [int(row[2]), int(row[5])] == [one.argmax(), two.argmax()]
        assert float(row[8]) == pytest.approx(float(two.max() - one.max()), rel=1e-4, abs=1e-7)
        assert row[9] == ("the same" if one.argmax() == two.argmax() else "another")


def test_greatest_keys_say_in_how_many_cells_it_is_another_token(both, plain, causal):
    others = sum(
        of(plain, step, layer)[HEAD].argmax() != of(causal, min(step, 5), layer)[HEAD].argmax()
        for step in range(8)
        for layer in range(3)
    )
    says = both.locator("[data-panel=layers-difference] .says").inner_text()
    assert f"in {others} of 24 cells it is another token" in says


def test_heads_are_compared_head_by_head(both, plain, causal):
    rows = cells(both, "heads-difference")
    assert len(rows) == 8
    wanted = np.stack([of(causal, layer=n).max(-1) - of(plain, layer=n).max(-1) for n in range(3)])
    for row in rows:
        assert float(row[4]) == pytest.approx(wanted[int(row[0]), int(row[1])], rel=1e-4, abs=1e-7)
    assert abs(float(rows[0][4])) == pytest.approx(np.abs(wanted).max(), rel=1e-4)
    says = both.locator("[data-panel=heads-difference] .says").inner_text()
    assert "heads by number only" in says  # two models
    under = both.locator("[data-panel=heads-difference] .under").inner_text()
    assert "top 8 of 12 heads shown" in under


def test_a_measure_that_only_one_run_has_is_said(both):
    both.wait_for_function(
        "() => document.querySelectorAll('[data-panel=headsA] option').length > 10"
    )
    both.locator("[data-panel=headsA] select").select_option("entropy")
    said = both.locator("[data-panel=heads-difference] .empty")
    said.wait_for()
    assert said.inner_text() == "B has no “entropy”: choose a measure that both have."


def test_a_place_has_no_size(both, plain, causal):
    both.locator("[data-panel=headsA] select").select_option("top key")
    both.wait_for_function(
        "() => document.querySelector('[data-panel=heads-difference] .says')?.textContent.includes('no size')"
    )
    same = of(plain)[HEAD].argmax() == of(causal)[HEAD].argmax()
    assert reading(both, "heads-difference").endswith("the same" if same else "not the same")


def test_verdicts_are_the_same_or_not(look, serving, plain, tmp_path):
    table = metrics.head_types([plain])
    tables = tuple(read_tables([table_files.save(table, tmp_path / "types.csv")]))
    runs = [Run(from_memory(plain), Options(tables=tables)) for _ in range(2)]
    url = serving(runs)
    page = look(url).go(f"{url}#v=1&with=1&step=2&layer=1&head=1&measure=type+%28types%29")
    page.wait_for_selector("[data-panel=heads-difference] canvas[data-drawn]")
    page.wait_for_function(
        "() => document.querySelector('[data-panel=heads-difference] .reading')?.textContent.endsWith('the same')"
    )
    verdict = table[(table["layer"] == 1) & (table["head"] == 1)]["type"].iloc[0]
    assert f"A {verdict} · B {verdict}" in reading(page, "heads-difference")


def test_flow_is_compared_between_parts_that_both_have(look, serving, plain):
    other = planted(
        random_maps(np.random.default_rng(5), (8, 3, 4, 14)),
        prompt=4,
        regions={"answer": range(4, 14), "notes": range(2)},
        source="lab/other",
    )
    url = serving([Run(from_memory(plain)), Run(from_memory(other))])
    page = look(url).go(f"{url}#v=1&with=1&align=step&step={STEP}&layer={LAYER}")
    page.wait_for_selector("[data-panel=flow-difference] .matrix")
    rows = cells(page, "flow-difference")
    one, two = (of(trace).mean(0) for trace in (plain, other))
    row = next(row for row in rows if row[:2] == ["all", "answer"])
    assert float(row[2]) == pytest.approx(one[4:].sum(), rel=1e-4)
    assert float(row[4]) == pytest.approx(two[4:].sum() - one[4:].sum(), rel=1e-3)
    says = page.locator("[data-panel=flow-difference] .says").inner_text()
    assert "only A has keys that are passage" in says
    assert "only B has keys that are notes" in says


def test_parts_of_other_kinds_are_not_compared(look, url):
    page = look(url).go(f"{url}#v=1&with=1&step=2&layer=1")  # regions beside roles
    page.wait_for_selector("[data-panel=flow-difference] .empty")
    said = page.locator("[data-panel=flow-difference]").inner_text()
    assert "keys are told apart by region in A and by role in B" in said


def test_heads_of_unequal_number_are_not_compared(look, serving, plain):
    maps = random_maps(np.random.default_rng(4), (8, 7, 2, 14))
    url = serving(
        [Run(from_memory(plain)), Run(from_memory(planted(maps, prompt=4, source="lab/deep")))]
    )
    page = look(url).go(f"{url}#v=1&with=1&step=2&layer=1")
    page.wait_for_selector("[data-panel=layers-difference] canvas[data-drawn]")
    said = page.locator("[data-panel=heads-difference] .empty").inner_text()
    assert "A has 4 heads in a layer and B 2" in said
    says = page.locator("[data-panel=layers-difference] .says").inner_text()
    assert "layers by depth, 3 beside 7" in says


@pytest.mark.parametrize("panel", APART)
def test_every_difference_can_be_enlarged_and_linked(look, url, panel):
    held = look(url)
    page = held.go(f"{url}#v=1&with=1&step=2&layer=1&panel={panel}")
    page.wait_for_selector(f"[data-panel={panel}].widest")
    assert page.locator("[data-panel]").count() == 1
    page.keyboard.press("Escape")
    page.wait_for_selector("[data-panel=mapA]")
    assert "panel" not in held.hash()


def test_a_click_on_a_difference_moves_both_runs(look, url):
    held = look(url)
    page = held.go(f"{url}#v=1&with=1&align=step&step=0&layer=1")
    heat = page.locator("[data-panel=layers-difference] .heat")
    heat.scroll_into_view_if_needed()
    x, y, w, h = map(float, heat.get_attribute("data-frame").split())
    heat.click(position={"x": x + 4.5 * w / 8, "y": y + 2.5 * h / 3})
    assert "layer=2" in held.hash("step=4")
    assert "layer 2" in page.locator("[data-panel=mapB] .says").inner_text()
    assert "before step 4" in page.locator("[data-panel=textB] .says").inner_text()


def test_head_grids_of_two_runs_have_one_scale(both):
    legends = [
        both.locator(f"[data-panel={panel}] .legend .numbers").inner_text()
        for panel in ("headsA", "headsB")
    ]
    assert legends[0] == legends[1]


@pytest.mark.parametrize("head", [None, 2])
def test_added_keys_stand_beside_the_map(look, serving, plain, head):
    """What a sink token takes is no column of the text: a strip, and a sentence in the difference."""
    taken = np.random.default_rng(2).uniform(0.2, 0.5, (8, 3, 4, 3)).astype(np.float32)
    dims = ("step", "layer", "head", "group")
    maps = random_maps(np.random.default_rng(5), (8, 3, 4, 14))
    sunk = planted(maps, prompt=4, source="lab/sink", more={"sink_received": (dims, taken)})
    url = serving([Run(from_memory(plain)), Run(from_memory(sunk))])
    word = "" if head is None else f"&head={head}"
    held = look(url)
    page = held.go(f"{url}#v=1&with=1&align=step&step={STEP}&layer={LAYER}{word}")
    page.wait_for_selector("[data-panel=difference] canvas[data-drawn]")
    assert page.locator("[data-panel=mapA] [data-added]").count() == 0
    page.wait_for_selector("[data-panel=mapB] [data-added] canvas[data-drawn]")
    share = taken[STEP, LAYER, :, 0]
    percent = 100 * float(share.mean() if head is None else share[head])
    said = f"receive {float(f'{percent:.3g}'):g} % of attention"
    page.wait_for_function(
        "word => document.querySelector('[data-panel=mapB]')?.textContent.includes(word)", arg=said
    )
    assert said in page.locator("[data-panel=difference]").inner_text()
    strip = page.locator("[data-panel=mapB] [data-added] .heat")
    x, y, _, h = map(float, strip.get_attribute("data-frame").split())
    strip.click(position={"x": x + 5, "y": y + 5.5 * h / 8})
    held.hash("step=5")
