"""The explorer's list of many runs: filters, small pictures, a study's runs and its report."""

import io

import numpy as np
import pytest
from matplotlib.image import imread

import anchorwatch as aw
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.explorer.run_data import MissingError, Options
from anchorwatch.explorer.run_list import ListQuery, Report, RunFolder
from anchorwatch.explorer.thumbnail import MOST_COLUMNS, draw_thumbnail
from anchorwatch.studies.report.assets import page_policy
from anchorwatch.trace.cells import STUDY_RUNS, is_runs
from explorer_server import Held
from planted_runs import make_runs
from synthetic_traces import planted as planted_trace
from synthetic_traces import small_trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("listed") / "R"
    make_runs(out)
    return RunFolder(aw.open_runs(out), Options())


def test_labels_are_chosen_from_lists(folder):
    query = folder.read_query({"edit": "sinks", "seed": "1", "as": "pictures", "page": "2"})
    assert query == ListQuery("", (("edit", "sinks"), ("seed", "1")), True, 2)
    assert set(folder.filter(query)["edit"]) == {"sinks"}
    page = folder.page(query)
    assert "2 of 8 runs" in page
    assert '<option value="sinks" selected>' in page
    assert page.count("<img ") == 2
    assert "model <select" not in page  # there is one model
    assert "0 of 8 runs" in folder.page(folder.read_query({"edit": "nothing"}))
    assert folder.read_query({"page": "²"}).page == 1


def test_a_page_s_links_keep_what_was_chosen(folder):
    query = folder.read_query({"edit": "sinks", "words": 'a"b'})
    assert query.link(page=3) == "./?words=a%22b&amp;edit=sinks&amp;page=3"
    assert "as=pictures" in query.link(pictures=True)


def pixels(png):
    return (255 * imread(io.BytesIO(png))[..., :3]).round().astype(int)


def test_a_picture_has_a_row_for_each_step_and_shows_the_sink():
    trace = small_trace()
    picture = pixels(draw_thumbnail(trace))
    assert picture.shape[:2] == (trace.num_steps, trace.canvas.shape[1])
    written = np.argwhere((picture == [213, 94, 0]).all(axis=-1))
    expected = {(int(s), p) for p, s in enumerate(trace.committed_at) if s >= 0}
    assert {tuple(pair) for pair in written.tolist()} == expected


def test_the_darkest_column_is_the_planted_sink():
    maps = np.full((6, 2, 2, 10, 10), 0.02, np.float32)
    maps[..., 3] = 0.82
    picture = pixels(draw_thumbnail(planted_trace(maps, prompt=4))).sum(axis=2)
    assert int(picture[:, :4].mean(axis=0).argmin()) == 3


def test_a_run_without_attention_is_drawn():
    bare = aw.run(aw.load("tiny/llada"), "the anchor", aw.decoding.LowConfidence(4), probes=())
    assert pixels(draw_thumbnail(bare)).shape[0] == bare.num_steps


def test_a_sink_of_a_long_run_is_not_lost():
    length = MOST_COLUMNS + 88
    maps = np.full((2, 1, 1, length, length), 0.5 / (length - 1), np.float32)
    maps[..., 301] = 0.5
    picture = pixels(draw_thumbnail(planted_trace(maps, prompt=length - 2))).sum(axis=2)
    assert picture.shape[1] == MOST_COLUMNS
    darkest = int(picture[0, : MOST_COLUMNS - 3].argmin())
    assert darkest * length // MOST_COLUMNS in (300, 301)


def test_pictures_and_the_report_are_served(folder, tmp_path):
    runs = aw.open_runs(folder._runs.path)
    served = RunFolder(runs, Options(), Report(b"<p>the report</p>", page_policy()))
    held = Held(served)
    try:
        code, body, headers = held("picture/3.png")
        assert (code, body[:4], headers["content-type"]) == (200, b"\x89PNG", "image/png")
        assert held("picture/99.png")[0] == 404
        code, body, headers = held("report")
        assert (code, body) == (200, b"<p>the report</p>")
        assert "script-src 'sha256-" in headers["content-security-policy"]
        assert b'href="report"' in held("")[1]
    finally:
        held.server.close()
        held.thread.join()
    with pytest.raises(MissingError):
        served.picture(99)


def test_a_damaged_run_is_not_drawn(tmp_path):
    make_runs(tmp_path / "R", count=1)
    for file in (tmp_path / "R" / "cells").glob("*/run.trace/*.json"):
        file.write_bytes(b"{")
    shown = RunFolder(aw.open_runs(tmp_path / "R"), Options())
    with pytest.raises(TraceError, match="cannot be drawn"):
        shown.picture(0)


# a study's evidence


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    sizes = {"prompts": 5, "length": 8, "steps": 8, "items": 8, "rows": 5, "answer": 8}
    budget = aw.studies.Budget("small", **sizes, text_length=16, text_block=8)
    out = tmp_path_factory.mktemp("study") / "S"
    judged = aw.studies.study(
        ["sinks/H2", "sinks/H3"], model="wired/static-sink", budget=budget, out=out
    )
    return out, judged


def test_a_study_s_runs_open_with_their_claims(study):
    out, judged = study
    assert is_runs(out)
    runs = aw.open_runs(out)
    assert len(runs) == judged.count_runs("sinks/H2") > 0
    assert runs.damage() == {}
    assert set(runs.table["model"]) == {"wired/static-sink"}
    digests = [trace.digest() for trace in runs]
    assert digests == list(runs.table["trace"])
    shown = RunFolder(runs, Options())
    query = shown.read_query({"claim": "sinks/H2"})
    assert len(shown.filter(query)) == judged.count_runs("sinks/H2")
    assert len(shown.filter(shown.read_query({"claim": "sinks/H"}))) == 0


def test_a_claim_of_the_report_leads_to_its_runs(study):
    out, judged = study
    html = (out / "report.html").read_text()
    count = judged.count_runs("sinks/H2")
    assert f"Judged on {count} runs" in html
    assert 'href="./?claim=sinks/H2&amp;as=pictures"' in html
    assert "anchorwatch view FOLDER --claim sinks/H2" in html


def test_a_claim_that_was_not_judged_is_refused(study):
    from anchorwatch.cli.view import _claim_query

    runs = aw.open_runs(study[0])
    assert _claim_query("sinks/H2", runs) == "?claim=sinks%2FH2&as=pictures"
    with pytest.raises(SpecError, match="expected one of sinks/H2"):
        _claim_query("sinks/H99", runs)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("evidence/runs/", "../../runs/", "is no trace of a study"),
        ("cell,model", "sell,model", "its columns are not"),
        (",8,", ",eight,", "no such number"),
    ],
)
def test_a_foreign_list_of_runs_is_refused(study, tmp_path, before, after, says):
    text = (study[0] / STUDY_RUNS).read_text()
    assert before in text
    (tmp_path / STUDY_RUNS).write_text(text.replace(before, after))
    with pytest.raises(TraceError, match=says):
        aw.open_runs(tmp_path)
