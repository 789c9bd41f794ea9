"""Folders of runs: the index, lazily opened traces, buckets, and what reads them."""

import json

import pytest
from typer.testing import CliRunner

import anchorwatch as aw
from anchorwatch.cli.app import app
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.explorer.run_data import MissingError, Options
from anchorwatch.explorer.run_list import ROWS, ListQuery, RunFolder, parse_numbers
from anchorwatch.sweeps.status import read_status
from anchorwatch.sweeps.sweep import sweep
from anchorwatch.trace.cells import DONE, INDEX, open_cells
from anchorwatch.trace.runs import build_index
from planted_runs import commit_cell, make_runs, plan
from synthetic_traces import small_trace


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    out = tmp_path_factory.mktemp("planted") / "R"
    make_runs(out)
    return out


def test_the_index_is_made_of_the_cells_at_any_time(planted):
    folder = open_cells(planted)
    table = build_index(folder)
    assert len(table) == 8
    kept = folder.read_bytes(INDEX)
    folder.remove(INDEX)
    assert build_index(folder).equals(table)
    assert folder.read_bytes(INDEX) == kept
    folder.write_bytes(INDEX, b"no parquet")
    assert build_index(folder).equals(table)
    assert build_index(folder, anew=True).equals(table)


def test_an_index_with_other_bytes_is_made_again(planted):
    folder = open_cells(planted)
    table = build_index(folder)
    kept = folder.read_bytes(INDEX)
    # 200 places, spread over pages and footer, with one bit of each turned
    for place in range(4, len(kept) - 8, len(kept) // 200):
        damaged = bytearray(kept)
        damaged[place] ^= 1
        folder.write_bytes(INDEX, bytes(damaged))
        assert build_index(folder, keep=False).equals(table)
    folder.write_bytes(INDEX, kept)


def test_the_index_follows_cells_that_come_and_go(tmp_path):
    folder = make_runs(tmp_path / "R", count=3, traces=False)
    assert len(build_index(folder)) == 3
    axes, keys = plan()
    cells = list(keys.cells())
    commit_cell(folder, axes, cells[5])
    (tmp_path / "R" / "cells" / cells[0].name / "cell.json").unlink()
    (tmp_path / "R" / "cells" / cells[0].name).rmdir()
    assert set(build_index(folder)["cell"]) == {cells[i].name for i in (1, 2, 5)}


def test_runs_are_a_table_and_traces(planted):
    runs = aw.open_runs(planted)
    assert len(runs) == 8 == len(runs[:5]) + len(runs[5:])
    assert runs[0].digest() == small_trace().digest()
    assert len(runs.select(edit="sinks", seed=[0])) == 2
    assert len(runs.select("SHIP sinks")) == 2
    assert len(runs.select("nowhere")) == 0
    assert runs.damage() == {}
    table = aw.metrics.sinks(runs[:2], aw.rules.rulli(eps=3))
    assert table.equals(aw.metrics.sinks([small_trace(), small_trace()], aw.rules.rulli(eps=3)))


def test_damage_is_found_in_its_cell_only(tmp_path):
    make_runs(tmp_path / "R", count=2)
    file = next((tmp_path / "R" / "cells").glob("*/run.trace/canvas/c*"))
    file.write_bytes(file.read_bytes()[:-1])
    damage = aw.open_runs(tmp_path / "R").damage()
    assert list(damage) == [file.parents[2].name]
    done = CliRunner().invoke(app, ["verify", str(tmp_path / "R"), "--json"])
    assert (done.exit_code, len(json.loads(done.stdout)["damage"])) == (1, 1)
    assert "remove what is damaged, and start its sweep" in done.stderr
    (file.parents[2] / "cell.json").write_bytes(b"{half")
    cell = f"cells/{file.parents[2].name}"
    with pytest.raises(TraceError, match=f"is damaged .* remove .*{cell}, and run the sweep again"):
        aw.open_runs(tmp_path / "R")


def test_commands_take_a_folder_of_runs(planted):
    done = CliRunner().invoke(app, ["measure", "sinks", str(planted), "--where", "edit=none"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("model,")
    words = ["--where", "edit=sinks", "--where", "seed=1", "--where", "prompt=the anchor"]
    out = planted.parent / "map.svg"
    done = CliRunner().invoke(app, ["plot", "sink-map", str(planted), *words, "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert out.is_file()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--where edit=none"),
        (["edit=nine"], "no run has edit=nine: expected one of none, sinks"),
        (["edits=none"], "expected model, prompt, context"),
        (["seed=x"], "say seed=0"),
    ],
)
def test_runs_under_several_edits_are_not_mixed(planted, words, says):
    chosen = [part for word in words for part in ("--where", word)]
    done = CliRunner().invoke(app, ["measure", "sinks", str(planted), *chosen])
    assert isinstance(done.exception, SpecError)
    assert says in str(done.exception)


# the explorer's list


def test_the_list_filters_and_escapes(planted):
    folder = RunFolder(aw.open_runs(planted), Options())
    page = folder.page(ListQuery())
    assert page.count("<tr>") == 9
    assert "<b>ship" not in page
    assert "&lt;b&gt;ship" in page
    assert "4 of 8 runs" in folder.page(ListQuery("ship"))
    assert 'value="&quot;&gt;x"' in folder.page(ListQuery('">x'))
    assert folder.run(0).header()["positions"] == 14
    with pytest.raises(MissingError):
        folder.run(8)
    assert parse_numbers(["1", "2"]) == [1, 2]
    for wrong in ([], ["-1"], ["a"], ["1"] * 5, ["9" * 12]):
        with pytest.raises(MissingError):
            parse_numbers(wrong)


def test_the_list_is_served_and_opens_two(planted):
    from explorer_server import Held

    held = Held(RunFolder(aw.open_runs(planted), Options()))
    try:
        status_code, body, headers = held("")
        assert (status_code, body.count(b"<tr>")) == (200, 9)
        assert "form-action 'self'" in headers["content-security-policy"]
        assert b"4 of 8 runs" in held("?words=sinks&page=1")[1]
        assert b"8 runs" in held("?page=zero")[1]
        status_code, body, _ = held("open?run=0&run=3")
        assert status_code == 200
        assert b'"id":3' in body
        assert held("data/3/header.json")[0] == 200
        assert held("open?run=99")[0] == 404
        assert held("open?run=../../etc")[0] == 404
        assert held("data/99/header.json")[0] == 404
    finally:
        held.server.close()
        held.thread.join()


def test_a_hundred_thousand_rows_are_paged():
    """The list's cost is of the page and the filter: no run is opened for it."""
    import pandas as pd

    from anchorwatch.trace.runs import COLUMNS, Runs

    count = 100_000
    column = {name: "x" for name in COLUMNS} | {"seed": range(count), "steps": 4}
    table = pd.DataFrame({name: column[name] for name in COLUMNS}, index=range(count))
    folder = RunFolder(Runs(None, table), Options())
    page = folder.page(ListQuery("99999"))
    assert page.count("<tr>") == 2
    assert folder.page(ListQuery(page=1000)).count("<tr>") == ROWS + 1
    assert "page 1000 of 1000" in folder.page(ListQuery(page=10**6))


# buckets


def check_bucket(url):
    fields = {
        "models": ["tiny/llada"],
        "prompts": ["the anchor", "the ship " * 400],
        "decodings": {"short": "low-confidence:length=2"},
    }
    result = sweep(fields, url, workers=0)
    assert (result.computed, len(result.failed)) == (1, 1)
    again = sweep(fields, url, workers=0)
    assert again.computed == 0
    runs = aw.open_runs(url)
    trace = aw.run(aw.load("tiny/llada"), "the anchor", aw.decoding.LowConfidence(2))
    assert runs[0].digest() == trace.digest()
    assert runs.damage() == {}
    state = read_status(url)
    assert (state.done, len(state.failed), state.left) == (1, 1, 1)
    assert RunFolder(runs, Options()).run(0).header()["damage"] == []
    folder = open_cells(url)
    cell = next(iter(folder.done()))
    folder.remove(f"{DONE}/{cell}.json")  # sent, and not finished
    assert read_status(url).done == 0
    assert sweep(fields, url, workers=0).computed == 1


def test_runs_in_memory():
    check_bucket("memory://runs-of-a-test")


@pytest.mark.slow
def test_runs_in_s3(monkeypatch):
    """A real S3 client against moto's server on loopback."""
    from moto.server import ThreadedMotoServer

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        import boto3
        import fsspec

        boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket="runs")
        fsspec.config.conf["s3"] = {"endpoint_url": f"http://{host}:{port}"}
        check_bucket("s3://runs/first")
    finally:
        fsspec.config.conf.pop("s3", None)
        server.stop()


def test_a_bucket_that_does_not_answer_is_said(monkeypatch):
    """Kinds of bucket have errors of their own, such as botocore's for missing keys."""

    class NoKeysError(Exception):
        pass

    def locked(*given, **more):
        raise NoKeysError("Unable to locate credentials")

    url = "memory://runs-without-keys"
    folder = open_cells(url)
    for name in ("exists", "ls", "cat_file", "pipe_file"):
        monkeypatch.setattr(type(folder._files), name, locked)
    for act in (folder.done, lambda: folder.is_done("a"), lambda: folder.read_bytes("a")):
        with pytest.raises(OSError, match=r"Unable to locate .* see to its address and its keys"):
            act()
    fields = {"models": ["tiny/llada"], "prompts": ["the anchor"]}
    with pytest.raises(OSError, match="Unable to locate credentials"):
        sweep(fields, url, workers=0)


def test_an_address_that_nothing_opens_is_refused():

    with pytest.raises(SpecError, match="cannot be opened"):
        open_cells("nosuch://bucket/runs")


# claims on runs that are there


def test_claims_are_judged_on_swept_runs(tmp_path):
    spec = {
        "models": ["tiny/llada"],
        "prompts": ["the anchor holds", "the ship sails", "a rope", "the sea", "the mast"],
        "decodings": {"d": "low-confidence:length=6"},
    }
    sweep(spec, tmp_path / "R", workers=0)
    judged = {
        each.claim.id: each
        for each in aw.studies.judge_runs(["sinks"], aw.open_runs(tmp_path / "R"))
    }
    assert "which is not among these runs" in judged["sinks/H27"].lacking
    assert any("among these runs" not in each.lacking for each in judged.values())


def test_two_models_in_one_role_are_refused():

    runs = [
        aw.run(aw.load(name), "the anchor", aw.decoding.LowConfidence(2))
        for name in ("tiny/llada", "tiny/dream")
    ]
    with pytest.raises(SpecError, match=r"runs of 2 models, .* select one"):
        aw.studies.judge_runs(["sinks/H3"], runs)
