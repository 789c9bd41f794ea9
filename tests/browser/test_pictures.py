"""What can be kept of a panel: a PNG that shows what the page shows, an SVG, a whole table."""

import io
import xml.etree.ElementTree as ET

import matplotlib.image
import numpy as np
import pytest

from anchorwatch.explorer.export import export
from anchorwatch.explorer.open import from_memory
from anchorwatch.explorer.run_data import Run

PANELS = ("map", "layers", "text", "heads", "flow", "geometry", "exact")
APART = ("difference", "layers-difference", "heads-difference", "flow-difference")
FRAME = """panel => {
  const heat = document.querySelector(`[data-panel=${panel}] .heat`);
  const [left, top] = heat.dataset.frame.split(' ').map(Number);
  const canvas = heat.querySelector('canvas');
  const pixel = canvas.getContext('2d').getImageData(left + 4, top + 4, 1, 1).data;
  return {colour: [...pixel.slice(0, 3)].map(v => v / 255), pixels: canvas.width};
}"""


def kept(page, panel, word):
    """What a button of a panel saves: (name, bytes)."""
    button = page.locator(f"[data-panel={panel}] button", has_text=word)
    with page.expect_download() as held:
        button.click()
    return held.value.suggested_filename, held.value.path().read_bytes()


def image(raw):
    return matplotlib.image.imread(io.BytesIO(raw), format="png")[..., :3]


def test_every_panel_can_be_kept_as_png(look, url):
    page = look(url).go(f"{url}#v=1&with=none&step=2&layer=1&head=3&token=5")
    page.wait_for_selector("[data-panel=exact] canvas[data-drawn]")
    page.wait_for_selector("[data-panel=geometry] figure:nth-child(5)")
    for panel in PANELS:
        name, raw = kept(page, panel, "PNG")
        assert name == f"{panel}.png"
        held = image(raw)
        box = page.locator(f"[data-panel={panel}]").bounding_box()
        assert held.shape[1] == pytest.approx(2 * box["width"], abs=6)
        colours = np.unique((held * 255).astype(int).reshape(-1, 3), axis=0)
        assert len(colours) > 20  # no empty page


def test_a_png_has_the_colours_of_the_page(look, url):
    page = look(url).go(f"{url}#v=1&with=none&step=2&layer=1")
    page.evaluate("settled()")
    seen = page.evaluate(FRAME, "heads")
    wanted = seen["colour"]
    _, raw = kept(page, "heads", "PNG")
    held = image(raw)
    assert (np.abs(held - wanted).max(axis=-1) < 0.02).sum() > 400  # a cell of it, twice as fine
    width = page.evaluate("document.querySelector('[data-panel=heads] canvas').width")
    assert width == seen["pixels"]  # the page is as it was


def test_every_difference_can_be_kept_as_png(look, url):
    page = look(url).go(f"{url}#v=1&with=0&step=2&layer=1")
    for panel in APART:
        page.wait_for_selector(
            f"[data-panel={panel}] canvas[data-drawn], [data-panel={panel}] .matrix"
        )
        name, raw = kept(page, panel, "PNG")
        assert name == f"{panel}.png"
        assert image(raw).shape[0] > 200


def test_a_dark_page_makes_a_dark_picture(look, url):
    page = look(url).go(f"{url}#v=1&with=none&step=2&layer=1&theme=dark")
    page.evaluate("settled()")
    _, raw = kept(page, "flow", "PNG")
    assert image(raw)[4, 4].max() < 0.25


def test_hostile_text_makes_pictures_too(look, url):
    page = look(url).go(f"{url}#v=1&with=none&run=2&step=5&layer=1&head=0&token=1")
    page.evaluate("settled()")
    for panel in ("map", "text", "flow"):
        assert image(kept(page, panel, "PNG")[1]).shape[0] > 100
    root = ET.fromstring(kept(page, "flow", "SVG")[1])
    tags = {node.tag.rpartition("}")[2] for node in root.iter()}
    assert tags <= {"svg", "g", "path", "rect", "text", "tspan", "title"}
    assert not any(name.startswith("on") for node in root.iter() for name in node.attrib)
    assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize("panel", ["flow", "geometry"])
def test_charts_of_lines_can_be_kept_as_svg(look, url, panel):
    page = look(url).go(f"{url}#v=1&with=none&step=5&layer=1")
    page.wait_for_selector("[data-panel=geometry] figure:nth-child(5)")
    name, raw = kept(page, panel, "SVG")
    assert name == f"{panel}.svg"
    root = ET.fromstring(raw)
    texts = " ".join("".join(node.itertext()) for node in root.iter())
    for word in {"flow": ("passage", "masked"), "geometry": ("cos(q, k)", "top key")}[panel]:
        assert word in texts
    space = "{http://www.w3.org/2000/svg}"
    assert "anchorwatch" in root.find(f"{space}title").text
    for node in root.iter(f"{space}path"):  # colours are in it, not in a style sheet
        assert "fill:" in node.attrib["style"]
        assert "var(" not in node.attrib["style"]


def test_a_sent_page_makes_pictures(look, tmp_path, plain):
    place = export([Run(from_memory(plain))], tmp_path / "page.html").as_uri()
    page = look(place).go(f"{place}#v=1&step=2&layer=1")
    assert image(kept(page, "map", "PNG")[1]).shape[0] > 400


def test_a_notebook_may_save_too(look, tmp_path, plain):
    place = tmp_path / "notebook.html"
    html = plain.show()._repr_mimebundle_()["text/html"]
    place.write_text(f"<!doctype html><title>notebook</title>{html}")
    held = look(place.as_uri())
    held.page.goto(place.as_uri())
    frame = held.page.frame_locator("iframe")
    frame.locator("[data-panel=map] canvas[data-drawn]").wait_for()
    with held.page.expect_download() as saved:
        frame.locator("[data-panel=map] button", has_text="PNG").click()
    assert image(saved.value.path().read_bytes()).shape[0] > 400


def test_a_saved_table_is_whole(look, url):
    page = look(url).go(f"{url}#v=1&with=none&step=2&layer=1")
    page.locator("[data-panel=heads] button", has_text="Table").click()
    assert page.locator("[data-panel=heads] tbody tr").count() == 8
    text = kept(page, "heads", "CSV")[1].decode()
    assert len(text.splitlines()) == 1 + 3 * 4
