"""Links, keys, two runs at once, pages without a server, and readers who do not see."""

import http.server
import threading
from functools import partial

import numpy as np
import pytest

from anchorwatch.explorer.export import export
from anchorwatch.explorer.findings import find_all
from anchorwatch.explorer.open import from_memory, open_for_viewing
from anchorwatch.explorer.run_data import Options, Run
from anchorwatch.explorer.server import link
from anchorwatch.metrics.sink_rules import rulli
from synthetic_traces import planted, random_maps, small_trace


def reading(page, panel="map"):
    return page.locator(f"[data-panel={panel}] .reading").first.inner_text()


def wait_for_exact(page):
    """Until the difference under the pointer is read, not the rounded one of the colours."""
    page.wait_for_function(
        "() => document.querySelector('[data-panel=difference] .reading')?.textContent.includes('≈') === false"
    )


def test_a_link_brings_everything_back(look, url):
    held = look(url)
    page = held.go(f"{url}#v=1&with=none&step=2&layer=1")
    for key in ("ArrowRight", "ArrowDown", "]", "]", ".", ".", ".", "n", "t"):
        page.keyboard.press(key)
    address = held.hash("tables=1")
    for word in ("step=3", "layer=2", "head=1", "token=2", "scale=share"):
        assert word in address
    page.evaluate("settled()")
    said = reading(page)
    again = look(url)
    page = again.go(url + address)
    page.evaluate("settled()")
    assert reading(page) == said
    assert again.hash() == address


def test_a_page_begins_where_something_happens_however_slow(look, url, plain):
    held = look(url)

    def hold(route):  # until the page has done all that it does meanwhile
        held.page.wait_for_function("() => timersLeft() === 0")
        route.continue_()

    held.page.route("**/header.json", hold)
    held.go(url)
    place = find_all(plain, rulli())["place"]
    held.hash(f"step={place['step']}&layer={place['layer']}&token={place['token']}")
    says = held.page.locator("[data-panel=mapA] .says").inner_text()
    assert f"layer {place['layer']}" in says


KEYS = [
    ("ArrowRight", "step=4"),
    ("ArrowLeft", "step=2"),
    ("Shift+ArrowRight", "step=7"),
    ("End", "step=7"),
    ("ArrowDown", "layer=2"),
    ("]", "head=0"),
    (".", "token=6"),
    (",", "token=4"),
    ("n", "scale=share"),
    ("t", "tables=1"),
    ("m", "panel=map"),
    ("c", "with=0"),
]


@pytest.mark.parametrize(("key", "word"), KEYS)
def test_every_key_does_what_the_help_says(look, url, key, word):
    held = look(url)
    page = held.go(f"{url}#v=1&with=none&run={1 if key == 'c' else 0}&step=3&layer=1&token=5")
    page.keyboard.press(key)
    if key == "c":
        held.hash("with=") if word != "with=0" else page.wait_for_selector(
            "[data-panel=difference]"
        )
    else:
        held.hash(word)


def test_the_first_step_and_layer_are_ends(look, url):
    held = look(url)
    page = held.go(f"{url}#v=1&with=none&step=0&layer=0&token=0")
    for key in ("ArrowLeft", "ArrowUp", "[", ",", "Home"):
        page.keyboard.press(key)
    assert "step=" not in held.hash()
    page.keyboard.press("Escape")
    assert "token" not in held.hash()


def test_search_space_help_and_escape(look, url):
    held = look(url)
    page = held.go(f"{url}#v=1&with=none&step=1&layer=1")
    page.keyboard.press("/")
    page.keyboard.type("oslo")
    page.keyboard.press("Enter")
    held.hash("token=5")
    page.keyboard.press("ArrowRight")  # an input has the focus: no key is ours
    assert "step=1" in held.hash()
    page.locator(".scrub select").select_option("1 / s")
    page.locator("#main").focus()
    page.keyboard.press(" ")
    page.get_by_role("button", name="Pause").wait_for()
    page.keyboard.press(" ")
    page.get_by_role("button", name="Play").wait_for()
    page.keyboard.press("?")
    assert page.locator("dialog[open]").count() == 1
    page.keyboard.press("Escape")
    page.keyboard.press("m")
    held.hash("panel=map")
    assert page.locator(".widest").count() == 1
    page.keyboard.press("Escape")
    page.wait_for_function("() => !document.querySelector('.widest')")


def test_the_panel_that_has_the_focus_is_enlarged(look, url):
    held = look(url)
    page = held.go(f"{url}#v=1&with=none&step=1&layer=1")
    page.locator("[data-panel=heads] select").focus()
    page.keyboard.press("Tab")  # from the select, which has its own keys, to a button
    page.keyboard.press("m")
    held.hash("panel=heads")
    page.keyboard.press("m")
    page.wait_for_function("() => !document.querySelector('.widest')")


def test_every_control_can_be_reached_with_tab(look, url):
    page = look(url).go(f"{url}#v=1&with=none&step=3&layer=1")
    page.evaluate("settled()")
    for _ in range(120):
        page.keyboard.press("Tab")
        page.evaluate("document.activeElement.dataset.seen = 'yes'")
    missed = page.evaluate(
        "[...document.querySelectorAll('button, select, input')]"
        ".filter(e => !e.disabled && !e.closest('dialog, details:not([open])') && !e.dataset.seen)"
        ".map(e => e.outerHTML)"
    )
    assert missed == []


@pytest.mark.parametrize(
    ("hash_", "says"),
    [
        ("step=99", "step 99 is not in this run: showing 7"),
        ("layer=40", "layer 40 is not in this run: showing 2"),
        ("step=-1", "step=-1 is not a whole number"),
        ("step=1e309", "not a whole number"),
        ("run=77", "there is no run 77"),
        ("with=77", "there is no run 77 to compare with"),
        ("v=9", "version"),
        ("step=3&" + "x" * 5000, "too long"),
    ],
)
def test_a_link_that_asks_too_much_is_clamped_and_said(look, url, hash_, says):
    page = look(url).go(f"{url}#{hash_}&with=none")
    page.wait_for_selector("[data-panel^=map] canvas[data-drawn]")
    assert says in page.locator(".notice").inner_text()


def test_two_runs_have_one_cursor(look, url, plain, causal):
    held = look(url)
    page = held.go(f"{url}#v=1&with=1&step=4&layer=1&token=5")
    page.wait_for_selector("[data-panel=difference] canvas[data-drawn]")
    words = page.locator(".align").inner_text()
    assert "aligned by the share of tokens decided: step 4 of A (40 % decided)" in words
    progress = causal.progress
    nearest = min(range(6), key=lambda step: (abs(progress[step] - plain.progress[4]), step))
    assert f"step {nearest} of B" in words
    assert f"before step {nearest}" in page.locator("[data-panel=textB] .says").inner_text()
    assert page.locator("[data-panel=textB] .here").get_attribute("data-p") == "5"
    for panel in ("map", "layers", "text", "heads", "flow", "geometry", "exact"):
        assert page.locator(f"[data-panel={panel}A]").count() == 1
        assert page.locator(f"[data-panel={panel}B]").count() == 1
    assert "4 only in A, 0 only in B" in page.locator("[data-panel=difference] .says").inner_text()
    page.keyboard.press("a")
    held.hash("align=step")
    assert "aligned by step: step 4 of A" in page.locator(".align").inner_text()
    heat = page.locator("[data-panel=mapB] .heat")
    x, y, w, h = map(float, heat.get_attribute("data-frame").split())
    heat.click(position={"x": x + 2.5 * w / 10, "y": y + 1.5 * h / 6})
    assert "token=2" in held.hash("step=1")


def test_the_difference_is_b_minus_a(look, serving, plain, causal):
    url = serving([Run(from_memory(plain)), Run(from_memory(causal))])
    page = look(url).go(f"{url}#v=1&with=1&align=step&step=2&layer=1&token=3&scale=share")
    page.wait_for_selector("[data-panel=difference] canvas[data-drawn]")
    page.evaluate("settled()")
    one, two = (
        t["received"].sel(group="all")[2, 1].mean("head").values[3] for t in (plain, causal)
    )
    wait_for_exact(page)
    said = float(reading(page, "difference").rpartition("·")[2].replace("+", ""))
    assert said == pytest.approx(float(two - one), rel=1e-3)  # four digits are said
    page.locator("[data-panel=difference] button", has_text="Table").click()
    rows = [
        row.split("\t")
        for row in page.locator("[data-panel=difference] tbody tr").all_inner_texts()
    ]
    assert {row[-1] for row in rows} == {"exact"}
    shares = [t["received"].sel(group="all")[2, 1].mean("head").values for t in (plain, causal)]
    for a, _, b, _, value, *_ in rows:
        assert float(value) == pytest.approx(
            shares[1][int(b)] - shares[0][int(a)], rel=1e-4, abs=1e-7
        )
    assert "rounded to eight bits" in page.locator("[data-panel=difference] .note").inner_text()


def test_a_run_beside_itself_does_not_differ(look, url):
    page = look(url).go(f"{url}#v=1&with=0&step=4&layer=1&token=5")
    page.wait_for_selector("[data-panel=difference] canvas[data-drawn]")
    wait_for_exact(page)
    assert reading(page, "difference").endswith("· 0")


def test_layers_of_unequal_depth_are_matched_in_words(look, serving, plain):
    deep = planted(
        random_maps(np.random.default_rng(4), (8, 7, 2, 14)), prompt=4, source="lab/deep"
    )
    url = serving([Run(from_memory(plain)), Run(from_memory(deep))])
    page = look(url).go(f"{url}#v=1&with=1&step=2&layer=1&head=3")
    page.wait_for_selector("[data-panel=difference] canvas[data-drawn]")
    words = page.locator(".align").inner_text()
    assert "layer 1 of A is beside layer 3 of B: A has 3 layers and B 7, matched by depth" in words
    assert "B has no head 3: the mean of its 2 is shown" in words
    assert "layer 3, mean of 2 heads" in page.locator("[data-panel=mapB] .says").inner_text()


def test_a_sent_difference_says_how_far_it_may_be_off(look, sent, plain, causal):
    held = look(sent[0].as_uri())
    page = held.go(f"{sent[0].as_uri()}#v=1&with=1&align=step&step=2&layer=1&token=3&scale=share")
    page.wait_for_selector("[data-panel=difference] canvas[data-drawn]")
    one, two = (
        float(t["received"].sel(group="all")[2, 1].mean("head").values[3]) for t in (plain, causal)
    )
    said = reading(page, "difference").rpartition("·")[2]
    if "≈" in said:
        low, high = (float(word) for word in said.partition("from ")[2].split(" to "))
        room = 1e-3 * max(abs(low), abs(high))  # three digits are said
        assert low - room <= two - one <= high + room
    else:  # sinks in both
        assert float(said) == pytest.approx(two - one, rel=1e-3)
    assert (
        "the least and the greatest they may be"
        in page.locator("[data-panel=difference] .note").inner_text()
    )


def test_a_bin_opens_its_positions(look, serving):
    trace = small_trace(steps=6, length=150)
    url = serving([Run(from_memory(trace), Options(columns=50))])
    held = look(url)
    page = held.go(f"{url}#v=1&with=none&step=2&layer=1&scale=share")
    assert "A column is 3 positions" in page.locator("[data-range]").inner_text()
    heat = page.locator("[data-panel=map] .heat").first
    x, y, w, h = map(float, heat.get_attribute("data-frame").split())
    heat.click(position={"x": x + 30.5 * w / 50, "y": y + 4.5 * h / 6})
    page.wait_for_selector("[data-range] canvas[data-drawn]")
    assert "positions 64 to 127, one column each" in page.locator("[data-range]").inner_text()
    token = int(held.hash("step=4").partition("token=")[2].partition("&")[0])
    assert 90 <= token <= 92
    small_heat = page.locator("[data-range] .heat")
    x, y, w, h = map(float, small_heat.get_attribute("data-frame").split())
    small_heat.click(position={"x": x + 40.5 * w / 64, "y": y + 3.5 * h / 6})
    assert "token=104" in held.hash("step=3")
    share = trace["received"].sel(group="all")[3, 1].mean("head").values[104]
    said = page.locator("[data-range] .reading").inner_text()
    assert "position 104" in said
    assert f"{float(f'{share:.5g}')}"[:6] in said
    for _ in range(30):  # keys go on into the next part
        page.keyboard.press(".")
    page.wait_for_function(
        "() => document.querySelector('[data-range]')?.textContent.includes('positions 128 to 149')"
    )
    page.keyboard.press("Escape")
    page.wait_for_function("() => !document.querySelector('[data-range] canvas')")


def test_a_sent_page_says_that_bins_stay_shut(look, tmp_path):
    runs = [Run(from_memory(small_trace(steps=6, length=150)), Options(columns=50))]
    place = export(runs, tmp_path / "page.html").as_uri()
    page = look(place).go(f"{place}#v=1&step=2&layer=1&token=90")
    assert "this page holds no more" in page.locator("[data-range]").inner_text()


@pytest.fixture(scope="module")
def sent(tmp_path_factory, plain, causal):
    place = tmp_path_factory.mktemp("sent")
    runs = [Run(from_memory(plain)), Run(from_memory(causal))]
    return export(runs, place / "page.html"), export(runs, place / "site")


def test_a_page_opens_from_a_file(look, sent, plain):
    held = look(sent[0].as_uri())
    page = held.go(f"{sent[0].as_uri()}#v=1&with=1&step=4&layer=1")
    page.wait_for_selector("[data-panel=difference] canvas[data-drawn]")
    page = held.go(f"{sent[0].as_uri()}#v=1&with=none&step=2&layer=1&head=3&token=6")
    page.wait_for_selector("[data-panel=exact] canvas[data-drawn]")
    assert "not in this page" in page.locator("[data-panel=map] .empty").inner_text()
    page = held.go(f"{sent[0].as_uri()}#v=1&with=none&step=2&layer=1")
    shares = plain["received"].sel(group="all")[:, 1].mean("head").values
    page.keyboard.press("Home")
    for _ in range(int(shares[0].argmax()) + 1):
        page.keyboard.press(".")
    held.hash(f"token={shares[0].argmax()}")
    said = reading(page)
    if shares[0].max() > 4 / 14:  # a sink, exact
        assert f"{float(f'{shares[0].max():.5g}'):g}" in said
        assert "≈" not in said
    assert "rounded" not in page.locator(".about").inner_text()
    assert "rounded to eight bits" in page.locator("[data-panel=map] .key").inner_text()
    assert held.page.url.startswith("file://")


def test_a_sent_page_marks_measures_that_are_rounded(look, sent, plain):
    page = look(sent[0].as_uri()).go(
        f"{sent[0].as_uri()}#v=1&with=none&step=2&layer=1&head=3&measure=entropy"
    )
    page.wait_for_function(
        "() => document.querySelector('[data-panel=heads] .reading')?.textContent.includes('entropy ≈')"
    )
    value = float(reading(page, "heads").partition("≈ ")[2])
    field = plain["entropy"].values
    step = float(field.max() - field.min()) / 254
    assert abs(value - field[2, 1, 3]) <= step / 2 + 0.01 * abs(value)  # three digits are said


@pytest.fixture(scope="module")
def site(sent):
    """The folder behind a plain web server."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=sent[1]))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_a_folder_opens_from_any_web_server(look, site):
    page = look(site).go(f"{site}#v=1&with=1&step=4&layer=1")
    page.wait_for_selector("[data-panel=difference] canvas[data-drawn]")
    page.wait_for_selector("[data-panel=geometryA] figure:nth-child(5)")


def test_two_runs_are_both_seen_though_nobody_says_so(look, sent, site, url):
    """A file, a folder, and the address that `view A B --at step=4` prints."""
    file = sent[0].as_uri()
    for place, address in ((file, file), (site, site), (url, link(url, {"step": 4}))):
        held = look(place)
        page = held.go(address)
        page.wait_for_selector("[data-panel=difference] canvas[data-drawn]")
        assert page.locator("[data-panel=mapB]").count() == 1
        assert "with=1" in held.hash("with=1")


def test_a_run_that_was_chosen_alone_stays_alone(look, sent):
    held = look(sent[0].as_uri())
    page = held.go(sent[0].as_uri())
    page.wait_for_selector("[data-panel=difference]")
    page.locator(".runs select").nth(1).select_option("no other run")
    address = held.hash("with=none")
    again = look(sent[0].as_uri())
    page = again.go(sent[0].as_uri() + address)
    page.wait_for_selector("[data-panel=map] canvas[data-drawn]")
    assert page.locator("[data-panel=difference]").count() == 0
    assert again.hash() == address


def test_a_notebook_shows_both_runs(look, tmp_path, plain, causal):
    place = tmp_path / "notebook.html"
    html = plain.show(causal)._repr_mimebundle_()["text/html"]
    place.write_text(f"<!doctype html><title>notebook</title>{html}")
    held = look(place.as_uri())
    held.page.goto(place.as_uri())
    held.page.frame_locator("iframe").locator(
        "[data-panel=difference] canvas[data-drawn]"
    ).wait_for()


def test_a_notebook_shows_it_in_a_frame(look, tmp_path, plain):
    bundle = plain.show()._repr_mimebundle_()
    place = tmp_path / "notebook.html"
    place.write_text(f"<!doctype html><title>notebook</title>{bundle['text/html']}")
    held = look(place.as_uri())
    held.page.goto(place.as_uri())
    frame = held.page.frame_locator("iframe")
    frame.locator("[data-panel=map] canvas[data-drawn]").wait_for()
    frame.locator("#main").focus()
    held.page.keyboard.press("Home")  # it opened where something happens
    held.page.keyboard.press("ArrowRight")
    frame.locator("[data-panel=text] .says", has_text="before step 1").wait_for()


AXED = {
    "two runs": "#v=1&with=1&step=3&layer=1&token=5",
    "tables": "#v=1&with=none&step=2&layer=1&head=3&tables=1",
    "damaged": "#v=1&with=none&run=3",
    "enlarged": "#v=1&with=none&step=3&panel=map",
    "foreign": "#v=1&with=none&run=4",
    "hostile": "#v=1&with=none&run=2&tables=1",
    "noticed": "#v=1&with=none&step=99",
}


LOOKS = [
    pytest.param(False, tuple(AXED), id="light"),
    pytest.param(True, ("two runs", "tables", "damaged"), id="dark", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("dark", "names"), LOOKS)
def test_axe_finds_nothing(look, url, dark, names):
    held = look(url, dark=dark)
    found = {}
    for name in names:
        held.go(url + AXED[name]).evaluate("settled()")
        if wrong := held.axe():
            found[name] = wrong
    assert found == {}


def test_the_help_is_accessible_too(look, url):
    held = look(url)
    held.go(f"{url}#v=1").keyboard.press("?")
    assert held.axe() == []


def test_a_damaged_trace_shows_what_is_damaged_and_the_rest(look, url, damaged):
    page = look(url).go(f"{url}#v=1&with=none&run=3&step=2&layer=1")
    page.wait_for_selector("[data-panel=geometry] figure:nth-child(5)")
    assert "received/" in page.locator("details.bad").inner_text()
    assert "received is damaged and not shown" in page.locator(".about").inner_text()
    assert "no received attention" in page.locator("[data-panel=map] .empty").inner_text()
    assert page.locator("[data-panel=text] [data-p]").count() == 14
    assert page.locator("[data-panel=heads] select").input_value() == "cosine"
    assert str(damaged.parent) not in page.content()


def test_a_foreign_trace_says_why(look, url):
    page = look(url).go(f"{url}#v=1&with=none&run=4")
    assert "other.trace cannot be shown" in page.locator(".notice.bad").inner_text()
    page = look(url).go(f"{url}#v=1&with=4&step=2")
    page.wait_for_selector(".notice.bad")
    assert page.locator("[data-panel=map] canvas").count() > 0


def test_a_run_without_attention_beside_one_with_says_what_cannot_be_compared(look, url):
    page = look(url).go(f"{url}#v=1&with=3&step=2&layer=1")
    page.wait_for_selector("[data-panel=mapA] canvas[data-drawn]")
    said = page.locator("[data-panel=difference]").inner_text()
    assert "B: This run has no received attention" in said
    assert "loading" not in said
    page.wait_for_selector("[data-panel=headsB] canvas[data-drawn]")
    assert page.locator("[data-panel=textB] [data-p]").count() == 14


def test_runs_of_other_tokenizers_are_aligned_where_they_can_be(look, url, plain):
    page = look(url).go(f"{url}#v=1&with=2&step=2&layer=1&token=0")
    page.wait_for_selector("[data-panel=difference] canvas[data-drawn]")
    said = page.locator("[data-panel=difference] .says").inner_text()
    assert "only in A" in said
    assert "matched by depth" in said  # three layers beside two
    assert "is only in A" in reading(page, "difference")


def test_a_server_that_stops_is_said(look, serving, plain, tmp_path):
    from synthetic_traces import large_trace

    path = large_trace(steps=32, length=1024, layers=3, heads=4).write(tmp_path / "c.trace")
    url = serving([Run(open_for_viewing(path))])
    held = look(url, quiet=False)
    page = held.go(f"{url}#v=1&with=none&step=2&layer=1")
    page.wait_for_function("() => !document.querySelector('[data-panel=layers] [role=status]')")
    page.route("**/*", lambda route: route.abort())
    page.keyboard.press("]")
    page.wait_for_selector("[data-panel=map] .empty")
    page.wait_for_function(
        "() => document.querySelector('[data-panel=map] .empty')?.textContent.includes('nobody answers')"
    )
