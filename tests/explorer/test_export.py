"""One page, or a folder: self-contained, small enough, honest, and safe with any text in it."""

import base64
import gzip
import hashlib
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.explorer import encode, page, run_data
from anchorwatch.explorer import export as exports
from anchorwatch.explorer.export import choose_layers, export, whole
from anchorwatch.explorer.open import OpenedTrace, from_memory, open_for_viewing
from anchorwatch.explorer.run_data import MissingError, Run
from synthetic_traces import HOSTILE, hostile_trace, large_trace, planted, random_maps, small_trace


class Elements(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, text):
        super().__init__()
        self.found, self.inside, self.texts = [], None, {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = len(self.found) - 1

    def handle_data(self, data):
        self.texts[self.inside] = self.texts.get(self.inside, "") + data

    def scripts(self):
        return [
            (attrs, self.texts.get(at, ""))
            for at, (tag, attrs) in enumerate(self.found)
            if tag == "script"
        ]


def data_of(text):
    scripts = Elements(text).scripts()
    return json.loads(next(body for attrs, body in scripts if attrs.get("id") == page.DATA_ID))


def packet_of(held, key):
    return encode.unpack(gzip.decompress(base64.b64decode(held["packets"][key])))


def test_a_page_holds_what_the_server_would_give():
    run = Run(from_memory(small_trace()))
    (held,) = data_of(whole([run]))["runs"]
    assert held["packets"].keys() == set(run.keys())
    for key in ("frames", "null-0-0", "layer-0", "layer-2"):
        wanted, meta = encode.unpack(run.packet(key))
        got, got_meta = packet_of(held, key)
        assert got_meta == meta
        for name in wanted:
            np.testing.assert_array_equal(got[name], wanted[name])


def test_a_page_is_the_same_each_time():
    assert whole([Run(from_memory(small_trace()))]) == whole([Run(from_memory(small_trace()))])


def test_a_page_asks_nobody_for_anything():
    text = whole([Run(from_memory(small_trace()))])
    elements = Elements(text)
    for tag, attrs in elements.found:
        assert not attrs.get("src"), tag
        assert attrs.get("href", "data:,").startswith("data:"), tag
    policy = next(a["content"] for t, a in elements.found if a.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    script = next(body for attrs, body in elements.scripts() if not attrs.get("type"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    for name in ("app.js", "app.css"):
        # names of XML vocabularies are no addresses anybody loads
        loads = re.findall(
            r"https?://(?!www\.w3\.org/|svelte\.dev/e/)[\w.]+", page.read_built(name)
        )
        assert loads == []


def test_hostile_text_is_text():
    text = whole([Run(from_memory(hostile_trace()))])
    tags = [tag for tag, _ in Elements(text).found]
    assert tags.count("script") == 2
    assert not {"img", "svg"} & set(tags)
    (held,) = data_of(text)["runs"]
    shown = {one["id"]: one for one in held["header"]["tokens"]}
    assert shown[1]["text"] == HOSTILE[0]
    assert len(shown[len(HOSTILE)]["text"]) <= 160
    assert shown[len(HOSTILE)]["length"] == 1_000_000
    assert len(text) < 1_500_000
    for one in shown.values():  # nothing that turns or hides the rest reaches the page
        assert not re.search(
            "[\u202a-\u202e\u2066-\u2069\x00\x1b\ud800-\udfff\u2028\u2029]", one["text"]
        )
    assert shown[HOSTILE.index("\u202egnirts") + 1]["escaped"] == r"\u202egnirts"


@pytest.mark.parametrize("text", [*HOSTILE[:-1], "&lt;/script&gt;", "\\u003c/script>"])
def test_embedded_json_comes_back_and_ends_nothing(text):
    spelled = page.to_script_json({"a": text, text[:9]: 1})
    assert json.loads(spelled) == {"a": text, text[:9]: 1}
    assert not set("<>&\u2028\u2029") & set(spelled)
    assert spelled.isascii()


def test_what_is_left_out_is_said():
    trace = large_trace(steps=4, length=40, layers=20, heads=2)
    (held,) = data_of(whole([Run(from_memory(trace))]))["runs"]
    told = held["header"]
    said = " ".join(told["left_out"])
    assert "16 of 20 layers are in this page" in said
    assert "single heads and query groups are not in this page" in said
    assert len(told["layers"]) == 16
    assert {f"layer-{at}" for at in told["layers"]} <= held["packets"].keys()
    assert "layer-1" in held["packets"] or 1 not in told["layers"]
    assert not any(told["on_demand"].values())


def test_layers_can_be_named():
    run = Run(from_memory(small_trace()))
    (held,) = data_of(whole([run], layers=[2, 0]))["runs"]
    assert held["header"]["layers"] == [0, 2]
    with pytest.raises(SpecError, match=r"layer 3 is not in .*: it has 0 to 2"):
        whole([run], layers=[3])


def test_a_full_trace_fits(tmp_path):
    path = export([Run(from_memory(large_trace(layers=16)))], tmp_path / "page.html")
    assert 100_000 < path.stat().st_size < exports.LIMIT_BYTES


def test_layers_go_until_it_fits(monkeypatch):
    run = Run(from_memory(large_trace(steps=16, length=512, layers=8, heads=4)))
    full = len(whole([run]))
    monkeypatch.setattr(exports, "LIMIT_BYTES", full - 1)
    text = whole([run])
    assert len(text) < full
    (held,) = data_of(text)["runs"]
    assert len(held["header"]["layers"]) < 8
    assert f"{len(held['header']['layers'])} of 8 layers" in " ".join(held["header"]["left_out"])
    monkeypatch.setattr(exports, "LIMIT_BYTES", 1000)
    with pytest.raises(SpecError, match="anchorwatch view"):
        whole([run])


@pytest.mark.parametrize("count", [1, 2, 5, 16, 17, 32, 80])
@pytest.mark.parametrize("most", [1, 2, 7, 16])
def test_chosen_layers_are_spread_from_first_to_last(count, most):
    held = choose_layers(count, most)
    assert len(held) == min(count, most)
    assert held == sorted(set(held))
    assert held[-1] == count - 1
    assert held[0] == 0 or most == 1


def test_a_folder_has_every_packet_as_a_file(tmp_path):
    run = Run(from_memory(small_trace()))
    folder = export([run], tmp_path / "site")
    assert sorted(p.name for p in folder.iterdir()) == ["app.css", "app.js", "data", "index.html"]
    for key in [*run.keys()]:
        expected = run.sent_packet(key)  # findings of a sent page are of means alone
        assert (folder / "data" / "0" / f"{key}.bin").read_bytes() == expected
        assert key == "findings" or expected == run.packet(key)
    told = json.loads((folder / "data" / "0" / "header.json").read_text())
    assert told["layers"] == [0, 1, 2]
    with pytest.raises(aw.AnchorwatchError, match="exists already"):
        export([run], folder)


def test_a_folder_asks_nobody_but_its_server(tmp_path):
    text = (
        export([Run(from_memory(hostile_trace()))], tmp_path / "site") / "index.html"
    ).read_text()
    elements = Elements(text)
    (policy,) = [a["content"] for t, a in elements.found if a.get("http-equiv")]
    held = dict(one.strip().split(" ", 1) for one in policy.split(";"))
    assert held["default-src"] == "'none'"
    assert held["script-src"] == held["connect-src"] == "'self'"
    assert held["img-src"] == "data: blob:"
    assert held["base-uri"] == held["form-action"] == "'none'"
    loads = [a[word] for _, a in elements.found for word in ("src", "href") if a.get(word)]
    assert loads == ["data:,", "app.css", "app.js"]
    tags = [(tag, attrs.get("http-equiv")) for tag, attrs in elements.found]
    assert tags.index(("meta", "Content-Security-Policy")) < tags.index(("link", None))


def test_exact_maps_of_the_trace_are_in_the_page(monkeypatch):
    trace = aw.run(
        aw.load("tiny/llada"),
        "the anchor",
        aw.decoding.LowConfidence(4),
        probes=[*aw.probes.DEFAULT, aw.probes.pattern(layers=[1], heads=[0, 1], steps=[2])],
    )
    (held,) = data_of(whole([Run(from_memory(trace))]))["runs"]
    assert held["header"]["maps"] == [[2, 1, 0], [2, 1, 1]]
    wanted = trace["pattern"].values[0]
    np.testing.assert_array_equal(packet_of(held, "map-2-1-0")[0]["map"], wanted)
    monkeypatch.setattr(exports, "MOST_MAPS_BYTES", 10)
    (held,) = data_of(whole([Run(from_memory(trace))]))["runs"]
    assert held["header"]["maps"] == []
    assert "2 of 2 exact maps are too large" in " ".join(held["header"]["left_out"])


def test_exact_maps_that_do_not_fit_are_counted_and_those_that_do_are_kept(monkeypatch, tmp_path):
    maps = random_maps(np.random.default_rng(0), (4, 2, 2, 9)).astype(np.float32)
    picks = {"step": [1, 2, 3], "layer": [1, 1, 0], "head": [0, 1, 1]}
    more = {"pattern": (("pick", "query", "key"), maps[1:4, 1, 0])} | {
        f"pick_{name}": (("pick",), np.array(at, np.int32)) for name, at in picks.items()
    }
    run = Run(from_memory(planted(maps, prompt=3, more=more)))
    one = len(exports._pack(run, "map-1-1-0"))
    monkeypatch.setattr(exports, "MOST_MAPS_BYTES", one + 10)
    said, read = [], []
    kind = run_data.PACKETS["map", 3]
    counted = replace(kind, make=lambda run, *at: read.append(at) or kind.make(run, *at))
    monkeypatch.setitem(run_data.PACKETS, ("map", 3), counted)
    path = export([run], tmp_path / "page.html", say=said.append)
    assert read == [(1, 1, 0), (2, 1, 1)]  # what comes after the first that does not fit is not
    (held,) = data_of(path.read_text())["runs"]
    assert held["header"]["maps"] == [[1, 1, 0]]
    assert {key for key in held["packets"] if key.startswith("map")} == {"map-1-1-0"}
    wanted = "2 of 3 exact maps are too large for this page: export a folder"
    assert wanted in " ".join(held["header"]["left_out"])
    assert wanted in " ".join(said)
    said = []
    folder = export([run], tmp_path / "site", say=said.append)
    assert said == []
    assert len(list((folder / "data" / "0").glob("map-*.bin"))) == 3


def failing(monkeypatch, *keys):
    """Parts of runs that cannot be read when their turn comes."""
    made = Run.packet

    def packet(self, key):
        if key in keys:
            raise MissingError(f"{key} has gone")
        return made(self, key)

    monkeypatch.setattr(Run, "packet", packet)


@pytest.mark.parametrize("out", ["page.html", "site"])
def test_a_part_that_cannot_be_read_is_left_out_and_said(monkeypatch, tmp_path, out):
    flow = np.zeros((8, 3, 4, 2, 2), np.float32)
    dims = ("step", "layer", "head", "query_region", "key_region")
    regions = {"a": range(2), "b": range(2, 14)}
    run = Run(from_memory(small_trace(more={"region_flow": (dims, flow)}, regions=regions)))
    failing(monkeypatch, "layer-1", "flow")
    said = []
    path = export([run], tmp_path / out, say=said.append)
    if out == "site":
        told = json.loads((path / "data" / "0" / "header.json").read_text())
        keys = {file.stem for file in (path / "data" / "0").glob("*.bin")}
    else:
        (held,) = data_of(path.read_text())["runs"]
        told, keys = held["header"], held["packets"].keys()
    assert told["layers"] == [0, 2]
    assert not told["flow"]
    assert {"layer-0", "layer-2", "frames"} <= keys
    assert not {"layer-1", "flow"} & keys
    for part in ("layer-1", "flow"):
        sentence = f"{part} is left out: {part} has gone"
        assert told["damage"].count(sentence) == 1
        assert sentence in " ".join(said)


def test_a_measure_that_cannot_be_read_is_left_out_and_said(monkeypatch, tmp_path):
    run = Run(from_memory(large_trace(steps=4, length=40, layers=2, heads=2)))

    def gone(self, at):
        raise TraceError("entropy/c.0.0.0 has gone")

    monkeypatch.setattr(Run, "small_measure", gone)
    (held,) = data_of(whole([run]))["runs"]
    assert "measure-0" not in held["packets"]
    assert held["header"]["layers"] == [0, 1]
    assert "measure-0 is left out: measure cannot be read: entropy/c.0.0.0 has gone" in " ".join(
        held["header"]["damage"]
    )


def test_a_trace_that_goes_while_it_is_exported_is_said_without_its_path(tmp_path):
    path = large_trace(steps=32, length=1024, layers=2, heads=4).write(tmp_path / "c.trace")
    run = Run(open_for_viewing(path))
    shutil.rmtree(path)
    text = whole([run])
    (held,) = data_of(text)["runs"]
    assert held["header"]["layers"] == []
    # chunks are read side by side: any of them may be the first that is missed
    damage = " ".join(held["header"]["damage"])
    assert re.search(r": c\.trace/received/c[.0-9]+ has gone", damage)
    assert "frames" in held["packets"]
    assert str(tmp_path) not in text


def test_a_run_without_frames_is_in_the_page_with_why(monkeypatch, tmp_path):
    failing(monkeypatch, "frames")
    said = []
    path = export([Run(from_memory(small_trace()))], tmp_path / "page.html", say=said.append)
    (held,) = data_of(path.read_text())["runs"]
    assert "frames" not in held["header"]
    assert "frames has gone" in " ".join(held["header"]["damage"])
    assert "frames has gone" in " ".join(said)


def test_a_folder_has_all_layers_unless_asked(tmp_path):
    run = Run(from_memory(large_trace(steps=4, length=40, layers=20, heads=2)))
    for name, layers in (("all", None), ("some", [3, 19])):
        folder = export([run], tmp_path / name, layers=layers)
        told = json.loads((folder / "data" / "0" / "header.json").read_text())
        assert told["layers"] == (layers or list(range(20)))
        files = (folder / "data" / "0").glob("layer-*.bin")
        assert len(list(files)) == len(told["layers"])
        assert ("layers are in this page" in " ".join(told["left_out"])) == (layers is not None)


def test_named_layers_are_all_in_the_page_or_it_is_refused(monkeypatch):
    run = Run(from_memory(large_trace(steps=4, length=40, layers=20, heads=2)))
    (held,) = data_of(whole([run], layers=range(18)))["runs"]
    assert held["header"]["layers"] == list(range(18))
    monkeypatch.setattr(exports, "LIMIT_BYTES", len(whole([run], layers=range(18))) - 1)
    with pytest.raises(SpecError, match=r"18 layers .* name fewer layers, export a folder"):
        whole([run], layers=range(18))
    assert whole([run], layers=[0, 1])


def test_a_run_that_cannot_be_shown_is_in_the_page_with_why():
    broken = OpenedTrace("b.trace", None, ("canvas/c.0.0 is missing",))
    held = data_of(whole([Run(from_memory(small_trace())), Run(broken)]))["runs"]
    assert held[1]["header"]["damage"] == ["canvas/c.0.0 is missing"]


def test_a_page_never_holds_a_path(tmp_path):
    path = small_trace().write(tmp_path / "a.trace")
    assert str(tmp_path) not in whole([Run(open_for_viewing(path))])


def test_a_notebook_gets_a_frame_that_reaches_nothing():
    trace = small_trace()
    held = trace.show(small_trace(seed=1))
    bundle = held._repr_mimebundle_()
    ((tag, attrs),) = Elements(bundle["text/html"]).found
    assert tag == "iframe"
    assert attrs["sandbox"] == "allow-scripts allow-downloads"
    assert attrs["srcdoc"] == held.page
    assert len(data_of(held.page)["runs"]) == 2
    assert "srcdoc" not in repr(held)
    with pytest.raises(SpecError, match=r"aw.read\(path\)"):
        trace.show("b.trace")


def test_a_notebook_is_spared_what_is_too_large(monkeypatch):
    monkeypatch.setattr(exports, "LIMIT_BYTES", 1000)
    bundle = small_trace().show()._repr_mimebundle_()
    assert bundle.keys() == {"text/plain"}
    assert "anchorwatch view" in bundle["text/plain"]


def test_a_notebook_says_what_is_wrong_with_a_trace(tmp_path, monkeypatch):
    trace = aw.read(small_trace().write(tmp_path / "a.trace"))

    def gone(self):
        raise TraceError("canvas/c.0.0 has gone since the trace was opened")

    monkeypatch.setattr(type(trace), "digest", gone)
    bundle = trace.show()._repr_mimebundle_()
    assert bundle.keys() == {"text/plain"}
    assert "canvas/c.0.0 has gone" in bundle["text/plain"]


def test_a_page_that_was_not_built_says_how(monkeypatch, tmp_path):
    monkeypatch.setattr(page, "files", lambda _: tmp_path)
    with pytest.raises(page.PageError, match="make web"):
        whole([Run(from_memory(small_trace()))])


def test_the_script_is_small():
    assert len(gzip.compress(page.read_built("app.js").encode())) < 150_000
