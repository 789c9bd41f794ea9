"""A browser, a server, and pages that may talk to nobody else. Without a browser the tests fail."""

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from anchorwatch.explorer.open import from_memory, open_for_viewing
from anchorwatch.explorer.run_data import Run
from anchorwatch.explorer.server import Server
from synthetic_traces import hostile_trace, planted, random_maps, small_trace
from waiting import GUARD, listens, wait_until

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
WHOLE = "() => !document.querySelector('.grid:not(.alone):not(:has([data-name=exact]))')"
"""No view is left to be drawn: the first one comes before the others."""
PATIENCE_MS = 300_000
"""What a page has not done by then it will not do: no test depends on how long it takes."""
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    place = shutil.which("chromium") or shutil.which("chromium-browser")
    assert place, "the browser tests need Chromium: make setup-browser"
    with sync_playwright() as playwright:
        held = playwright.chromium.launch(executable_path=place, args=list(FLAGS))
        yield held
        held.close()


def measured(seed: int = 0, steps: int = 8) -> dict:
    """Fields as the default probes keep them."""
    generator = np.random.default_rng(seed)
    per, found = ("step", "layer", "head"), {}
    for name in ("entropy", "cosine", "norm_product", "logit", "key_norm", "value_norm"):
        found[name] = (per, generator.normal(2, 1, (steps, 3, 4)).astype(np.float32))
    for name in ("cosine", "norm_product", "logit", "key_norm", "value_norm"):
        values = generator.normal(3, 1, (steps, 3, 4, 8)).astype(np.float32)
        found[f"peak_{name}"] = ((*per, "peak"), values)
    return found


def mapped() -> tuple[np.ndarray, dict]:
    """Maps, and the fields that hold one of them: step 2, layer 1, head 3."""
    maps = random_maps(np.random.default_rng(0), (8, 3, 4, 14)).astype(np.float32)
    one = {"pattern": (("pick", "query", "key"), maps[2:3, 1, 3])}
    for name, value in (("step", 2), ("layer", 1), ("head", 3)):
        one[f"pick_{name}"] = (("pick",), np.array([value], dtype=np.int32))
    return maps, one


WORDS = {
    i: text for i, text in enumerate(" Passage| :| Lena| was|\n| Oslo| .| the|\n|x".split("|"), 1)
}


@pytest.fixture(scope="session")
def plain():
    """A diffusion run with regions, measures and one exact map."""
    maps, one = mapped()
    regions = {"passage": range(3), "answer": range(4, 14)}
    return planted(
        maps, prompt=4, regions=regions, texts=WORDS, more=measured() | one, source="lab/toy-mdm"
    )


@pytest.fixture(scope="session")
def causal():
    """An autoregressive run of another length."""
    maps = random_maps(np.random.default_rng(9), (6, 3, 4, 10), causal=True)
    return planted(maps, prompt=4, visibility="causal", texts=WORDS, source="lab/toy-arm")


@pytest.fixture(scope="session")
def damaged(tmp_path_factory):
    """A trace on disk whose received attention was changed."""
    path = small_trace(more=measured()).write(tmp_path_factory.mktemp("damaged") / "broken.trace")
    file = next(file for file in (path / "received").iterdir() if file.name.startswith("c"))
    raw = bytearray(file.read_bytes())
    raw[40] ^= 1
    file.write_bytes(bytes(raw))
    return path


@pytest.fixture(scope="session")
def foreign(tmp_path_factory):
    place = tmp_path_factory.mktemp("foreign") / "other.trace"
    place.mkdir()
    (place / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    return place


@pytest.fixture(scope="session")
def serving():
    """Serve runs until the tests end; returns the address."""
    held = []

    def serve(runs):
        server = Server(runs)
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        held.append((server, thread))
        wait_until(lambda: listens(server.port), "the start of the server")
        return server.url

    yield serve
    for server, thread in held:
        server.close()
        thread.join(timeout=GUARD)


@pytest.fixture(scope="session")
def url(serving, plain, causal, damaged, foreign):
    """Runs 0 to 4: plain, causal, hostile, damaged, foreign."""
    maps, _ = mapped()
    runs = [
        Run(from_memory(plain), replay=lambda *at: maps[at]),
        Run(from_memory(causal)),
        Run(from_memory(hostile_trace())),
        Run(open_for_viewing(damaged)),
        Run(open_for_viewing(foreign)),
    ]
    return serving(runs)


PENDING = """(() => {
  let pending = 0;
  const timers = new Set();
  const [later, cancel] = [window.setTimeout.bind(window), window.clearTimeout.bind(window)];
  window.setTimeout = (act, delay = 0, ...more) => {
    if (delay >= 1000) return later(act, delay, ...more);
    const id = later(() => { timers.delete(id); act(...more); }, delay);
    timers.add(id);
    return id;
  };
  window.clearTimeout = id => { timers.delete(id); cancel(id); };
  const counted = act => function (...given) {
    pending++;
    return act.apply(this, given).finally(() => pending--);
  };
  window.fetch = counted(window.fetch);
  for (const name of ["arrayBuffer", "json", "text"])
    Response.prototype[name] = counted(Response.prototype[name]);
  window.timersLeft = () => timers.size;
  window.settled = async () => {
    const frame = () => new Promise(done => requestAnimationFrame(() => later(done, 0)));
    for (let quiet = 0; quiet < 2; quiet = pending + timers.size ? 0 : quiet + 1) await frame();
  };
})()"""
"""Counts what a page has begun: timers below a second, requests, and bodies that are read."""


class Page:
    """A page under watch: what it said, and whom it asked."""

    def __init__(self, page):
        self.page, self.said, self.outside, self.asked, self.allowed = page, [], [], [], ()
        page.add_init_script(PENDING)
        page.on("console", lambda m: self.said.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("request", lambda request: self.asked.append(request.url))

    def begin(self, allowed):
        """Watch anew: what may be asked begins with one of `allowed`."""
        self.allowed = allowed
        for kept in (self.said, self.outside, self.asked):
            kept.clear()
        self.page.route("**/*", self._route)

    def _route(self, route):
        if route.request.url.startswith(self.allowed):
            route.continue_()
        else:
            self.outside.append(route.request.url)
            route.abort()

    def settle(self):
        """Wait until the page has nothing left to do: no timer, no request, and all is drawn."""
        self.page.evaluate("settled()")
        return self.page

    def go(self, address):
        """Open an address anew and wait for the first picture, or for what is said instead."""
        self.page.goto("about:blank")
        self.page.goto(address)
        self.page.wait_for_selector(
            "[data-panel] canvas[data-drawn], .notice.bad, [data-panel] .empty"
        )
        self.page.wait_for_function(WHOLE)
        return self.page

    def hash(self, has=None):
        """The address after #, once it has settled."""
        if has is not None:
            self.page.wait_for_function("word => location.hash.includes(word)", arg=has)
        else:
            self.settle()
        return self.page.evaluate("location.hash")

    def axe(self):
        """What axe finds wrong."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run(document)")
        return [
            (one["id"], [node["html"][:160] for node in one["nodes"][:3]])
            for one in found["violations"]
        ]

    def quiet(self):
        assert self.said == []
        assert self.outside == []


@pytest.fixture(scope="session")
def pages(browser):
    """Pages that tests use one after another: a new one each time takes three times as long."""
    context = browser.new_context(reduced_motion="reduce")
    idle = []
    yield context, idle
    context.close()


@pytest.fixture
def look(pages):
    """Open pages that may ask only `allowed`; each must have been quiet in the end."""
    context, idle = pages
    used = []

    def open_page(allowed, *, width=1280, height=900, dark=False, quiet=True):
        page = idle.pop() if idle else Page(context.new_page())
        page.page.set_default_timeout(PATIENCE_MS)
        used.append((page, quiet))
        page.page.set_viewport_size({"width": width, "height": height})
        page.page.emulate_media(color_scheme="dark" if dark else "light")
        page.begin((allowed, "about:", "data:", "blob:"))
        return page

    yield open_page
    for page, quiet in used:
        if quiet:
            page.quiet()
        page.page.unroute_all(behavior="ignoreErrors")
        page.page.goto("about:blank")
    idle += [page for page, _ in used]  # those of a test that failed are left alone
