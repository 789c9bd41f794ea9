"""Every view, in a real browser, against the numbers of the trace."""

import matplotlib
import numpy as np
import pytest

from anchorwatch import metrics
from anchorwatch.explorer.encode import codes, decode_shares
from anchorwatch.explorer.head_tables import read_tables
from anchorwatch.explorer.open import from_memory
from anchorwatch.explorer.run_data import Options, Run
from anchorwatch.metrics import table_files

PANELS = ("map", "layers", "text", "heads", "flow", "geometry", "exact")
COLOUR = 8
"""Levels of 255 that a colour may be off: the page mixes between 33 stops."""


def shares_of(trace, layer, head=None):
    held = trace["received"].sel(group="all")[:, layer]
    return (held.mean("head") if head is None else held[:, head]).values


def said(value, digits):
    """A number as the page says it."""
    short = float(f"{value:.{digits}g}")
    plain = f"{short:.{digits + 4}f}".rstrip("0").rstrip(".")
    if 1e-4 <= abs(short) < 1e6:
        return plain
    mantissa, _, power = f"{short:.{digits - 1}e}".partition("e")
    return f"{mantissa}e{int(power):+d}"


def pixels(page, panel, cells, sizes):
    """Colours at the middles of (row, column) cells of a panel's map."""
    script = """([panel, cells, [rows, cols]]) => {
      const heat = document.querySelector(`[data-panel=${panel}] .heat`);
      const canvas = heat.querySelector('canvas');
      const [x, y, w, h] = heat.dataset.frame.split(' ').map(Number);
      const ratio = canvas.width / canvas.clientWidth;
      const pen = canvas.getContext('2d');
      const all = pen.getImageData(0, 0, canvas.width, canvas.height).data;
      return cells.map(([row, col]) => {
        const across = Math.round((x + (col + 0.3) * w / cols) * ratio);
        const down = Math.round((y + (row + 0.3) * h / rows) * ratio);
        const at = 4 * (down * canvas.width + across);
        return [all[at], all[at + 1], all[at + 2]];
      });
    }"""
    return np.array(page.evaluate(script, [panel, cells, list(sizes)]))


def test_every_view_is_there(look, url):
    page = look(url).go(f"{url}#v=1&with=none&step=2&layer=1&head=3&token=5")
    for panel in PANELS:
        section = page.locator(f"[data-panel={panel}]")
        assert section.locator("h2").inner_text()
        section.locator("canvas[data-drawn], svg, .text span").first.wait_for(state="attached")
    assert page.locator("[data-panel]").count() == len(PANELS)


@pytest.mark.parametrize(("head", "word"), [(None, ""), (2, "&head=2")])
def test_the_sink_map_shows_the_numbers(look, url, plain, head, word):
    page = look(url).go(f"{url}#v=1&with=none&step=7&layer=1&scale=share{word}")
    page.wait_for_function(
        "() => document.querySelector('[data-panel=map] .says')?.textContent.includes('layer 1')"
    )
    page.evaluate("settled()")
    shares = shares_of(plain, 1, head).astype(np.float32)
    shown = decode_shares(*codes(shares))
    sinks = np.abs(shares) > 3.9 / 14  # hatched cells have other colours
    masked = plain.masked[:-1]  # and masked ones a dot in the middle
    cells = [(r, c) for r in range(6) for c in range(13) if not sinks[r, c] and not masked[r, c]]
    got = pixels(page, "map", cells, shares.shape)
    wanted = matplotlib.colormaps["cividis"](shown / np.nanmax(shares))[..., :3] * 255
    for colour, (row, col) in zip(got, cells, strict=True):
        assert np.abs(colour - wanted[row, col]).max() <= COLOUR, (row, col)


def test_numbers_under_the_pointer_are_exact(look, url, plain):
    page = look(url).go(f"{url}#v=1&with=none&step=0&layer=1")
    heat = page.locator("[data-panel=map] .heat")
    x, y, w, h = map(float, heat.get_attribute("data-frame").split())
    heat.hover(position={"x": x + 9.5 * w / 14, "y": y + 4.5 * h / 8})
    share = shares_of(plain, 1)[4, 9]
    reading = page.locator("[data-panel=map] .reading")
    page.wait_for_function(
        "() => document.querySelector('[data-panel=map] .reading')?.textContent.includes('≈') === false"
    )
    text = reading.inner_text()
    assert "step 4 · position 9" in text
    assert f"{said(share, 5)} of attention" in text
    assert f"{said(share * 14, 3)} × even share" in text


def test_a_click_moves_every_view(look, url):
    held = look(url)
    page = held.go(f"{url}#v=1&with=none&step=0&layer=1")
    heat = page.locator("[data-panel=map] .heat")
    x, y, w, h = map(float, heat.get_attribute("data-frame").split())
    heat.click(position={"x": x + 9.5 * w / 14, "y": y + 4.5 * h / 8})
    assert "token=9" in held.hash("step=4")
    assert "before step 4" in page.locator("[data-panel=text] .says").inner_text()
    assert page.locator("[data-panel=text] .here").get_attribute("data-p") == "9"
    assert page.locator("input[type=range]").input_value() == "4"
    layers = page.locator("[data-panel=layers] .heat")
    x, y, w, h = map(float, layers.get_attribute("data-frame").split())
    layers.click(position={"x": x + 6.5 * w / 8, "y": y + 2.5 * h / 3})
    assert "step=6" in held.hash("layer=2")
    heads = page.locator("[data-panel=heads] .heat")
    x, y, w, h = map(float, heads.get_attribute("data-frame").split())
    heads.click(position={"x": x + 3.5 * w / 4, "y": y + 0.5 * h / 3})
    assert "layer=0" in held.hash("head=3")
    assert "head 3" in page.locator("[data-panel=map] .says").inner_text()
    assert "head 3" in page.locator("[data-panel=geometry] .says").inner_text()


def test_the_text_is_the_canvas(look, url, plain):
    page = look(url).go(f"{url}#v=1&with=none&step=3&layer=1")
    held = page.evaluate(
        "[...document.querySelectorAll('[data-panel=text] [data-p]')].map(s => [s.textContent, s.className])"
    )
    for position, (text, kind) in enumerate(held):
        role = ("prompt", "special", "masked", "fresh", "written", "absent")[
            plain.role[3, position]
        ]
        assert kind == role
        token = plain.token(int(plain.canvas[-1, position])).replace("\n", "⏎\n")
        assert len(text) == len(token)  # masked or not, nothing moves
        assert (text == token) == (role != "masked")
        assert text.endswith("\n") == token.endswith("\n")


def test_where_the_greatest_key_is(look, url, plain):
    page = look(url).go(f"{url}#v=1&with=none&step=5&layer=2")
    page.wait_for_function("() => !document.querySelector('[data-panel=layers] [role=status]')")
    row = shares_of(plain, 2)[5]
    text = page.locator("[data-panel=layers] .reading").inner_text()
    assert f"layer 2 · step 5 · position {row.argmax()} " in text
    assert f"{said(100 * row.max(), 3)} %" in text


def test_heads_show_any_measure(look, url, plain):
    held = look(url)
    page = held.go(f"{url}#v=1&with=none&step=5&layer=2&head=1")
    page.wait_for_function(
        "() => document.querySelectorAll('[data-panel=heads] option').length > 10"
    )
    page.locator("[data-panel=heads] select").select_option("entropy")
    held.hash("measure=entropy")
    value = plain["entropy"].values[5, 2, 1]
    page.wait_for_function(
        "() => document.querySelector('[data-panel=heads] .reading')?.textContent.includes('not measured') === false"
    )
    text = page.locator("[data-panel=heads] .reading").inner_text()
    assert f"layer 2 · head 1 · entropy {said(value, 4)}" in text
    page.locator("[data-panel=heads] button", has_text="Table").click()
    assert "top 8 of 12 heads shown" in page.locator("[data-panel=heads] .under").inner_text()


def test_heads_show_a_table_with_its_null(look, serving, plain, tmp_path):
    table = metrics.absorption([plain], by=["layer", "head"])
    place = table_files.save(table, tmp_path / "taken.csv")
    types = metrics.head_types([plain])
    more = table_files.save(types, tmp_path / "types.csv")
    url = serving([Run(from_memory(plain), Options(tables=tuple(read_tables([place, more]))))])
    row = table[(table["layer"] == 2) & (table["head"] == 1) & (table["null"] > 0)].iloc[0]
    page = look(url).go(f"{url}#v=1&with=none&step=5&layer=2&head=1")
    page.wait_for_function(
        "word => [...document.querySelectorAll('[data-panel=heads] option')].some(o => o.textContent === word)",
        arg=f"{row['quantity']} (taken)",
    )
    page.locator("[data-panel=heads] select").select_option(f"{row['quantity']} (taken)")
    page.wait_for_function(
        "() => document.querySelector('[data-panel=heads] .reading')?.textContent.includes('null')"
    )
    text = page.locator("[data-panel=heads] .reading").inner_text()
    assert f"{row['quantity']} (taken) {said(row['value'], 4)}" in text
    assert f"null {said(row['null'], 3)}" in text
    assert "one prompt" in text
    page.locator("[data-panel=heads] button", has_text="Table").click()
    under = page.locator("[data-panel=heads] .under").inner_text()
    assert "over all steps: top 8 of 12 heads shown" in under
    page.locator("[data-panel=heads] select").select_option("type (types)")
    verdict = types[(types["layer"] == 2) & (types["head"] == 1)]["type"].iloc[0]
    page.wait_for_function(
        "word => document.querySelector('[data-panel=heads] .reading')?.textContent.endsWith(word)",
        arg=f"type (types) {verdict}",
    )


def test_flow_says_who_gives_to_whom(look, url, plain):
    page = look(url).go(f"{url}#v=1&with=none&step=5&layer=1")
    page.wait_for_selector("[data-panel=flow] svg")
    label = page.locator("[data-panel=flow] svg").first.get_attribute("aria-label")
    shares = plain["received"].sel(group="masked")[5, 1].mean("head").values
    given = 100 * shares[:3].sum()
    assert f"masked queries give {said(given, 3)} % to passage" in label


def test_parts_of_the_text_by_layer(look, url, plain):
    held = look(url)
    page = held.go(f"{url}#v=1&with=none&step=5&layer=1")
    chart = page.locator("[data-panel=flow] svg").nth(1)
    page.wait_for_function(
        "() => document.querySelectorAll('[data-panel=flow] svg')[1]?.querySelectorAll('rect').length >= 9"
    )
    shares = plain["received"].sel(group="all")[5].mean("head").values
    label = chart.get_attribute("aria-label")
    assert f"layer 1: passage {said(100 * shares[1, :3].sum(), 3)} %" in label
    bars = chart.locator("rect").evaluate_all(
        "all => all.map(one => Number(one.getAttribute('height')))"
    )
    assert sum(bars) == pytest.approx(3 * 84, rel=1e-4)  # of each layer all is shown
    box = chart.bounding_box()
    chart.click(position={"x": 42 + (box["width"] - 44) * 5 / 6, "y": 40})
    held.hash("layer=2")


def test_geometry_beside_the_greatest_key(look, url, plain):
    page = look(url).go(f"{url}#v=1&with=none&step=5&layer=1")
    page.wait_for_selector("[data-panel=geometry] figure:nth-child(5)")
    page.wait_for_selector("[data-panel=geometry] svg[aria-label*='top key']")
    label = page.locator("[data-panel=geometry] svg").first.get_attribute("aria-label")
    mean = float(np.median(plain["cosine"].values[5, 1]))
    peak = float(np.median(plain["peak_cosine"].values[5, 1, :, 0]))
    assert f"all keys {said(mean, 3)}, top key {said(peak, 3)}" in label


def test_exact_maps_from_the_trace_and_by_replay(look, url, plain):
    held = look(url)
    page = held.go(f"{url}#v=1&with=none&step=2&layer=1&head=3&token=6")
    page.wait_for_selector("[data-panel=exact] canvas[data-drawn]")
    value = plain["pattern"].values[0][6, 6]
    assert f"{said(value, 5)}" in page.locator("[data-panel=exact] .reading").inner_text()
    page.keyboard.press("ArrowRight")
    page.locator("[data-panel=exact] button", has_text="Measure it now").click()
    page.wait_for_selector("[data-panel=exact] canvas[data-drawn]")
    assert "step 3" in page.locator("[data-panel=exact] .says").inner_text()


def test_an_exact_map_that_is_not_there_says_how(look, url):
    page = look(url).go(f"{url}#v=1&with=none&run=1&step=3&layer=2&head=1")
    text = page.locator("[data-panel=exact] pre").inner_text()
    assert "aw.replay(model, trace, [aw.probes.pattern(layers=[2], heads=[1])], steps=[3])" in text


def test_every_view_has_a_table(look, url):
    page = look(url).go(f"{url}#v=1&with=none&step=2&layer=1&head=3&token=5")
    page.wait_for_selector("[data-panel=exact] canvas[data-drawn]")
    page.wait_for_selector("[data-panel=geometry] figure:nth-child(5)")
    for panel in PANELS:
        section = page.locator(f"[data-panel={panel}]")
        section.locator("button", has_text="Table").click()
        assert section.locator("th").count() > 1
        assert section.locator("tbody tr").count() > 0


def test_the_table_of_the_map_is_the_row(look, url, plain):
    page = look(url).go(f"{url}#v=1&with=none&step=2&layer=1&tables=1")
    page.wait_for_function(
        "() => [...document.querySelectorAll('[data-panel=map] td')].some(c => c.textContent === 'exact')"
    )
    page.evaluate("settled()")
    rows = page.locator("[data-panel=map] tbody tr").all_inner_texts()
    shares = shares_of(plain, 1)[2]
    order = np.argsort(-shares)
    for line, position in zip(rows, order, strict=True):
        cells = line.split("\t")
        assert int(cells[0]) == position
        assert float(cells[2]) == pytest.approx(shares[position], rel=1e-5)


def test_a_table_can_be_saved(look, url):
    page = look(url).go(f"{url}#v=1&with=none&step=2&layer=1")
    section = page.locator("[data-panel=text]")
    section.locator("button", has_text="Table").click()
    page.wait_for_function(  # until its numbers are read, they are marked ≈
        "() => [...document.querySelectorAll('[data-panel=text] th')].some(c => c.textContent === 'share')"
    )
    with page.expect_download() as held:
        section.locator("button", has_text="Save CSV").click()
    text = held.value.path().read_text()
    assert text.startswith("position,token,role,committed at,log-probability,margin,share,read as")
    assert len(text.splitlines()) == 15


def test_query_groups_can_be_chosen(look, url, plain):
    held = look(url)
    page = held.go(f"{url}#v=1&with=none&step=4&layer=1&token=6")
    page.locator(".bar select").nth(3).select_option("masked")
    held.hash("group=masked")
    share = plain["received"].sel(group="masked")[4, 1].mean("head").values[6]
    page.wait_for_function(
        "() => document.querySelector('[data-panel=map] .reading')?.textContent.includes('≈') === false"
    )
    page.evaluate("settled()")
    text = page.locator("[data-panel=map] .reading").inner_text()
    assert f"{said(share, 5)} of attention" in text
    assert "masked queries only" in page.locator("[data-panel=map] .says").inner_text()


def test_play_goes_on_and_stops_at_the_end(look, url):
    held = look(url)
    page = held.go(f"{url}#v=1&with=none&step=5&layer=1")
    page.locator(".scrub select").select_option("30 / s")
    page.get_by_role("button", name="Play").click()
    held.hash("step=7")
    page.get_by_role("button", name="Play").wait_for()


@pytest.mark.parametrize("width", [390, 768, 1280, 1800])
def test_nothing_sticks_out(look, url, width):
    for address in (f"{url}#v=1&step=3", f"{url}#v=1&with=1&step=3", f"{url}#v=1&run=2&tables=1"):
        page = look(url, width=width).go(address)
        page.evaluate("settled()")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, address
