"""`view` and `export` as a person types them, and what they say when they cannot."""

import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import webbrowser
from html import escape
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import anchorwatch as aw
from anchorwatch.cli import view as cli_view
from anchorwatch.cli.app import app
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.explorer import encode, server
from anchorwatch.explorer.open import from_memory
from anchorwatch.explorer.run_data import MissingError, Run
from command import COMMAND, ENV, one_line_of, type_in
from synthetic_traces import small_trace
from waiting import GUARD, wait_until


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return small_trace().write(tmp_path_factory.mktemp("view") / "a.trace")


@pytest.fixture
def broken(tmp_path):
    path = small_trace().write(tmp_path / "b.trace")
    file = next(file for file in (path / "received").iterdir() if file.name.startswith("c"))
    file.write_bytes(file.read_bytes()[:-1])
    return path


def typed(*words):
    done = CliRunner().invoke(app, [*map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_view_serves_until_interrupted(path):
    command = [*COMMAND, "view", str(path), "--no-open", "--at", "step=3"]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV
    )
    try:
        address = running.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32,}/#v=1&step=3", address)
        with urllib.request.urlopen(address.partition("#")[0], timeout=GUARD) as answer:
            assert b"<div id=app>" in answer.read()
        running.send_signal(signal.SIGINT)
        _, talk = running.communicate(timeout=GUARD)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode in (0, 130)
    assert "Ctrl-C" in talk
    assert "Traceback" not in talk


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_no_list_of_processes_shows_the_token(path, tmp_path, how):
    """A browser gets a file, which leads to the address and is gone when the server is."""
    browser, left = tmp_path / "browser", tmp_path / "left"
    browser.write_text(f'#!/bin/sh\necho "$1" > {left}.new && mv {left}.new {left}\n')
    browser.chmod(0o700)
    (tmp_path / "private").mkdir()
    running = subprocess.Popen(
        [*COMMAND, "view", str(path), "--at", "step=3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENV | {"BROWSER": str(browser), "TMPDIR": str(tmp_path / "private")},
    )
    try:
        address = running.stdout.readline().strip()
        wait_until(left.exists, "the start of the browser")
        given_to_it = left.read_text().strip()
        assert given_to_it.startswith(f"file://{tmp_path}/private/anchorwatch-")
        assert escape(address) in Path(given_to_it.removeprefix("file://")).read_text()
        host = address.split("/")[2]
        with pytest.raises(urllib.error.HTTPError, match="403"):  # it serves, and says no
            urllib.request.urlopen(f"http://{host}/wrong/", timeout=GUARD)
        running.send_signal(how)
        running.communicate(timeout=GUARD)
    finally:
        running.kill()
        running.communicate()
    assert list((tmp_path / "private").glob("anchorwatch-*")) == []


@pytest.fixture
def held(monkeypatch):
    """What would have been served and opened."""
    found = {"opened": [], "served": [], "runs": []}
    monkeypatch.setattr(webbrowser, "open", found["opened"].append)
    made = server.Server.__init__

    def noted(self, runs, *, port=0, layer=None, forks=None):
        found["runs"], found["layer"] = list(runs), layer
        made(self, runs, port=port, forks=forks)

    monkeypatch.setattr(server.Server, "__init__", noted)
    monkeypatch.setattr(
        server.Server, "serve", lambda self: (found["served"].append(self), self.close())
    )
    return found


@pytest.mark.parametrize("at", ["", "step=3", "step=3&layer=2"])
def test_view_leaves_it_to_the_page_to_compare_two(path, held, at):
    """Two listed runs stand side by side unless a link says with=none: no address hides one."""
    done = typed("view", path, path, *(["--at", at.replace("&", ",")] if at else []))
    assert done.stdout.strip().partition("#")[2] == ("v=1&" + at if at else "v=1")
    assert len(held["served"]) == len(held["opened"]) == 1
    assert held["served"][0].token not in held["opened"][0]
    assert held["layer"] == (2 if "layer" in at else None)


def test_view_shows_a_damaged_trace_and_says_so(broken, held):
    done = typed("view", broken, "--no-open")
    assert held["opened"] == []
    assert len(held["served"]) == 1
    assert "note: b.trace: received/" in done.stderr


def test_view_refuses_what_is_not_there_before_serving(tmp_path, held):
    with pytest.raises(TraceError, match=r"no trace at .*anchorwatch run"):
        typed("view", tmp_path / "none.trace")
    with pytest.raises(SpecError, match="step=40,layer=31"):
        typed("view", tmp_path / "none.trace", "--at", "window=3")
    assert held["served"] == []


def test_view_with_a_model_measures_maps_on_demand(tmp_path):
    model = aw.load("tiny/llada")
    trace = aw.run(model, "the anchor", aw.decoding.LowConfidence(4), probes=())
    probe = aw.probes.pattern(layers=[1], heads=[2], steps=[3])
    wanted = aw.replay(model, trace, [probe])["pattern"].values[0]
    _, ((replay, why),) = cli_view._replays("tiny/llada", [from_memory(trace)])
    assert why == ""
    run = Run(from_memory(trace), replay=replay)
    assert run.header()["on_demand"]["maps"]
    np.testing.assert_array_equal(encode.unpack(run.packet("map-3-1-2"))[0]["map"], wanted)


def test_a_model_is_at_hand_for_its_own_runs_only(tmp_path, held):
    asked = ("the anchor", aw.decoding.LowConfidence(4))
    paths = [
        aw.run(aw.load(name), *asked, probes=()).write(tmp_path / f"{name[5:]}.trace")
        for name in ("tiny/llada", "tiny/dream")
    ]
    done = typed("view", *paths, "--model", "tiny/llada", "--no-open")
    said = "tiny/llada did not write this run and measures no maps of it: it was tiny/dream, "
    assert f"note: dream.trace: {said}" in " ".join(done.stderr.split())
    own, other = held["runs"]
    assert own.header()["on_demand"]["maps"]
    assert own.header()["on_demand"]["live"]
    assert not other.header()["on_demand"]["maps"]
    assert not other.header()["on_demand"]["live"]
    assert said in " ".join(other.header()["left_out"])
    with pytest.raises(MissingError, match="did not write this run"):
        other.packet("map-0-0-0")
    with pytest.raises(SpecError, match=r"fits none of the runs, name their own: .*tiny/dream"):
        typed("view", paths[1], "--model", "tiny/llada", "--no-open")


def test_export_writes_one_page(path, tmp_path):
    done = typed(
        "export", path, "-o", tmp_path / "page.html", "--rule", "topk:2", "--layers", "0,2"
    )
    assert done.stdout.strip() == str(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "topk:2" in text
    assert "2 of 3 layers are in this page: 0, 2" in text


def test_export_says_what_is_left_out(path, tmp_path):
    done = typed("export", path, "-o", tmp_path / "page.html", "--layers", "0,2")
    assert "note: a.trace: 2 of 3 layers are in this page: 0, 2" in done.stderr
    assert done.exit_code == 0
    assert typed("export", path, "-o", tmp_path / "site").stderr == ""


def test_export_takes_tables_for_the_head_grid(path, tmp_path):
    table, page = tmp_path / "taken.csv", tmp_path / "a.html"
    assert typed("measure", "absorption", path, "--by", "layer,head", "-o", table).exit_code == 0
    assert typed("export", path, "-o", page, "--table", table).exit_code == 0
    assert "top1 (taken)" in page.read_text()
    other = small_trace(source="made/other").write(tmp_path / "other.trace")
    with pytest.raises(SpecError, match="taken is about planted, which is not shown"):
        typed("export", other, "-o", page, "--table", table)
    with pytest.raises(SpecError, match="there is no table"):
        typed("view", path, "--table", tmp_path / "absent.csv")


def test_export_of_a_damaged_trace_is_partly_done(broken, tmp_path):
    done = typed("export", broken, "-o", tmp_path / "page.html")
    assert done.exit_code == 3
    assert "note: b.trace: received/" in done.stderr
    assert "note: b.trace: received is damaged and not shown" in done.stderr
    assert (tmp_path / "page.html").exists()
    (broken / "COMMIT.json").unlink()
    with pytest.raises(TraceError, match=r"COMMIT.json is missing"):
        typed("export", broken, "-o", tmp_path / "other.html")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--layers", "all"], "not a list of layers, such as 0,8,31"),
        (["--layers", "7"], "layer 7 is not in a.trace: it has 0 to 2"),
        (["--rule", "rully"], "expected one of rulli"),
    ],
)
def test_export_says_what_would_have_worked(path, tmp_path, words, says):
    with pytest.raises(SpecError, match=re.escape(says)):
        typed("export", path, "-o", tmp_path / "page.html", *words)
    assert not (tmp_path / "page.html").exists()


def test_a_folder_is_no_page(path, tmp_path):
    (tmp_path / "page.html").mkdir()
    with pytest.raises(SpecError, match="name a file"):
        typed("export", path, "-o", tmp_path / "page.html")


def test_an_export_that_cannot_be_written_leaves_nothing(path, tmp_path):
    done = type_in("export", path, "-o", tmp_path / "none" / "page.html", fresh=True)
    assert done.returncode == 1
    assert "none" in one_line_of(done)
    assert not (tmp_path / "none").exists()


def test_looking_needs_no_torch(path, tmp_path):
    code = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {{"torch", "transformers"}}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
sys.argv = ["anchorwatch", "export", {str(path)!r}, "-o", {str(tmp_path / "p.html")!r}]
from anchorwatch.cli.app import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "p.html").exists()


def test_without_the_server_s_packages_it_says_what_to_install(path):
    code = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {{"starlette", "uvicorn"}}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.split(".")[0])
sys.meta_path.insert(0, Block())
sys.argv = ["anchorwatch", "view", {str(path)!r}, "--no-open"]
from anchorwatch.cli.app import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'anchorwatch[explore]'" in done.stderr


@pytest.mark.parametrize("command", ["view", "export"])
def test_a_folder_that_is_no_trace_is_refused(tmp_path, command):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "notes.txt").write_text("nothing here is a trace")
    out = ["-o", tmp_path / "page.html"] if command == "export" else []
    done = type_in(command, tmp_path / "plain", *out)
    assert done.returncode == 1
    assert "plain is a folder and no trace: name one that `run -o` wrote" in one_line_of(done)
