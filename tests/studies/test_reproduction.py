"""Figures and tables of the papers: each is made on small models, or says what it lacks."""

import json
import re

import pandas as pd
import pytest

import anchorwatch as aw
import synthetic_traces
from anchorwatch.errors import EvidenceError, MissingDataError, SpecError
from anchorwatch.studies.papers import find_heads
from anchorwatch.studies.protocols import PROTOCOLS
from anchorwatch.studies.reproduction import (
    ITEMS,
    LAB,
    PAPERS,
    PUBLISHED,
    SMALL,
    Effort,
    change_effort,
    find_items,
    load_items,
    paper_items,
    reproduce,
)

TINY = Effort(prompts=2, length=6, block=3, documents=2, items=2, answer=4)
MODELS = {"models": ["tiny/llada"], "against": "tiny/arm", "sink": "lab/toy-sink"}
NEEDS_SCRATCH = ("sink_token", "table 2")
load_items()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Shared, so that runs are made once."""
    return tmp_path_factory.mktemp("papers")


@pytest.mark.parametrize(("paper", "label"), [key for key in ITEMS if key != NEEDS_SCRATCH])
def test_every_item_is_made_of_small_models(paper, label, folder):
    more = {"gate": "lab/toy-gate"} if label == "table 1" and paper == "sink_token" else {}
    made = reproduce(paper, [label], effort=TINY, out=folder / paper, **MODELS, **more).made
    paths = made[label]
    assert paths and all(path.is_file() for path in paths)
    kinds = {path.suffix for path in paths}
    assert kinds <= {".svg", ".csv", ".md"}
    assert ".svg" in kinds if label.startswith("figure") else ".md" in kinds
    for path in paths:
        if path.suffix == ".csv":
            assert len(pd.read_csv(path)) > 0
        if path.suffix == ".svg":
            assert aw.figures.whence(path)["settings"] is not None


def test_runs_are_kept_and_found_again(folder):
    (paths,) = reproduce(
        "sinks", ["figure 3"], effort=TINY, out=folder / "a", **MODELS
    ).made.values()
    kept = sorted((folder / "a" / "traces").iterdir())
    before = [(path.name, path.stat().st_mtime_ns) for path in kept]
    again = reproduce("sinks", ["figure 3", "figure 9"], effort=TINY, out=folder / "a", **MODELS)
    assert [
        (path.name, path.stat().st_mtime_ns) for path in sorted(kept[0].parent.iterdir())
    ] == before
    assert len(before) == TINY.prompts
    assert again.made["figure 3"] == paths and not again.lacking


def test_what_is_lacking_is_said_with_the_command(tmp_path):
    with pytest.raises(MissingDataError) as error:
        reproduce("sink-token", ["figure sink-mass"], models=["tiny/llada"], out=tmp_path)
    assert str(error.value) == (
        "figure sink-mass needs a model with a sink token: anchorwatch paper sink-token --figure "
        "sink-mass --model tiny/llada --sink lab/tales-sink"
    )
    with pytest.raises(
        MissingDataError, match=r"needs an autoregressive model .* --against lab/tales-arm"
    ):
        reproduce("floating", ["table 1"], models=["tiny/llada"], out=tmp_path)
    with pytest.raises(MissingDataError, match=r"train recipes/paper-sink-token-scratch.toml"):
        reproduce(
            "sink-token",
            ["table 2"],
            models=["lab/toy-mdm"],
            sink="lab/toy-sink",
            gate="lab/toy-gate",
            out=tmp_path,
        )
    with pytest.raises(MissingDataError, match="one model for each of front, end"):
        both = ["tiny/llada", "tiny/dream", "lab/toy-mdm"]
        reproduce("sink-token", ["table 3"], models=both, out=tmp_path)
    with pytest.raises(MissingDataError, match="question sets, not tasks of lm-eval"):
        reproduce("floating", ["table 1"], tasks=["gsm8k"], out=tmp_path)


def test_models_from_scratch_are_compared_where_they_are_named(folder):
    more = {"sink": "wired/sink-token", "gate": "lab/toy-gate"}
    made = reproduce(
        "sink-token", ["table 2"], effort=TINY, out=folder / "b", models=["tiny/llada"], **more
    ).made
    (paths,) = made.values()
    table = pd.read_csv(next(path for path in paths if path.suffix == ".csv"))
    assert table["model"].tolist() == ["tiny/llada", "wired/sink-token", "lab/toy-gate"]


def test_of_several_each_says_what_it_lacks(tmp_path):
    labels = ["figure sink-mass", "table 3"]
    found = reproduce("sink-token", labels, models=["tiny/llada"], effort=TINY, out=tmp_path)
    assert set(found.made) == {"table 3"} and set(found.lacking) == {"figure sink-mass"}


def test_wrong_names_cost_nothing(tmp_path):
    with pytest.raises(SpecError, match="sinks has no figure 11: it has figures 1, 2, 3"):
        reproduce("sinks", ["figure 11"], out=tmp_path)
    with pytest.raises(SpecError, match="no paper is called 'sink': expected one of floating, sin"):
        paper_items("sink")
    with pytest.raises(SpecError, match="a figure cannot be a gif"):
        reproduce("sinks", ["figure 1"], kind="gif", out=tmp_path)
    with pytest.raises(aw.AnchorwatchError, match="tiny/nobody"):
        reproduce("sinks", ["figure 1"], models=["tiny/nobody"], out=tmp_path)
    with pytest.raises(SpecError, match="an effort has no size: it has prompts, length"):
        change_effort(SMALL, {"size": 3})
    with pytest.raises(SpecError, match="length=0 is not a whole number of at least 1"):
        change_effort(SMALL, {"length": 0})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"models": ["lab/toy-arm"]}, "--model lab/toy-arm is arm .* such as lab/tales-mdm"),
        ({"against": "lab/toy-mdm"}, "--against lab/toy-mdm is mdm .* such as lab/tales-arm"),
        ({"sink": "lab/toy-mdm"}, "--sink lab/toy-mdm is mdm with no part: .* lab/tales-sink"),
        ({"gate": "lab/toy-sink"}, "--gate lab/toy-sink is mdm with sink_token: .* with gates"),
    ],
)
def test_a_model_of_another_kind_is_refused(given, says, tmp_path):
    with pytest.raises(SpecError, match=says):
        reproduce("sinks", ["figure 1"], effort=TINY, out=tmp_path, **given)
    assert not any(tmp_path.iterdir())


def test_sizes_beside_a_decoding_are_not_ignored(tmp_path):
    from command import one_line_of, type_in

    words = ("paper", "sinks", "--figure", 1, "--model", "tiny/llada", "-o", tmp_path)
    for spelled, size, says in (
        ("low-confidence:length=7", ("--length", 9), "length is given twice"),
        ("low-confidence", ("--steps", 4), "say --decoding low-confidence:steps=4"),
        ("low-confidence", ("--block", 3), "say --decoding low-confidence:block=3"),
    ):
        done = type_in(*words, "--decoding", spelled, *size)
        assert says in one_line_of(done) and done.returncode == 2
    assert not any(tmp_path.iterdir())


def test_every_paper_has_its_published_items():
    """Numbers as the papers print them; 2601.07894's figures go by name."""
    labels = {paper: [item.label for item in paper_items(paper)] for paper in PAPERS}
    assert [f"figure {n}" for n in range(1, 11)] == [x for x in labels["sinks"] if "figure" in x]
    assert [x for x in labels["sinks"] if "table" in x] == ["table 1", "table 2"]
    assert [x for x in labels["sink_token"] if "table" in x] == [f"table {n}" for n in range(1, 6)]
    assert "figure 1" in labels["sink_token"] and "table 1" in labels["floating"]
    assert set(PUBLISHED) == set(PAPERS) and set(LAB) == {"mdm", "arm", "sink", "gate"}
    assert (
        find_items("sink-token", ["table 1"])[0].command == "anchorwatch paper sink-token --table 1"
    )


def test_captions_say_what_is_drawn_and_no_result():
    results = r"\b(floats|shifts|moves|few keys|stays,|structure in shallow|content in deep)\b"
    for paper in PAPERS:
        for item in paper_items(paper):
            assert not re.search(results, item.says), item.label


def test_models_of_a_table_may_be_named(tmp_path):
    both = ["tiny/llada", "tiny/dream"]
    made = reproduce("sink-token", ["table 3"], models=both, effort=TINY, out=tmp_path).made
    text = (tmp_path / "table-3.md").read_text()
    assert "| front |" in text and "| end |" in text and len(made["table 3"]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_the_lab_makes_all_but_what_it_lacks(paper, tmp_path):
    found = reproduce(paper, effort=Effort(prompts=2, items=4, length=16), out=tmp_path)
    lacking = {"table 2"} if paper == "sink_token" else set()  # models trained from scratch
    assert set(found.lacking) == lacking
    assert set(found.made) == {item.label for item in paper_items(paper)} - lacking


STEPS, LAYERS, HEADS, LENGTH = 6, 3, 4, 12


def give(maps, cell, position, share):
    """One head at a step: every query gives a key this share."""
    maps[cell] = synthetic_traces.column(LENGTH, position, share)


def test_the_heads_that_are_found_are_those_that_were_planted():
    maps = synthetic_traces.uniform(STEPS, LAYERS, HEADS, LENGTH)
    for step in range(STEPS):
        give(maps, (step, 1, 2), 4 if step < 3 else 6, 0.5)  # moves to the right after step 2
        give(maps, (step, 2, 1), 7 if step < 4 else 5, 0.4)  # and to the left after step 3
        give(maps, (step, 0, 3), 2, 0.6)  # stays
    give(maps, (3, 2, 3), 8, 0.8)  # there at one step only
    trace = synthetic_traces.planted(maps, prompt=LENGTH - STEPS)
    found = find_heads.find_moving(trace)
    assert (found.step, found.layer, found.head) == (2, 1, 2)
    assert found.score == pytest.approx(0.5, abs=1e-3)
    left = find_heads.find_moving(trace, direction=-1)
    assert (left.step, left.layer, left.head) == (3, 2, 1)
    fixed = find_heads.find_fixed(trace)
    assert (fixed.layer, fixed.head) == (0, 3)
    flicker = find_heads.find_flicker(trace)
    assert (flicker.step, flicker.layer, flicker.head) == (3, 2, 3)
    assert find_heads.find_strong(trace, 0, 1).head == 3


def test_a_split_by_masks_is_found():
    maps = synthetic_traces.uniform(STEPS, LAYERS, HEADS, LENGTH)
    plain = synthetic_traces.planted(maps, prompt=LENGTH - STEPS)
    step = 3
    masked = plain.masked[step]
    assert masked.sum() == 3
    maps[step, 2, 0] = 0
    maps[step, 2, 0, masked, 3] = 1
    maps[step, 2, 0, ~masked, 1] = 1
    found = find_heads.find_split(synthetic_traces.planted(maps, prompt=LENGTH - STEPS))
    assert (found.step, found.layer, found.head) == (step, 2, 0)
    assert found.score == pytest.approx(1.0, abs=1e-3)


def test_what_no_head_shows_is_said():
    maps = synthetic_traces.uniform(STEPS, LAYERS, HEADS, LENGTH)
    with pytest.raises(EvidenceError, match="does not show it: no top key moves between two steps"):
        find_heads.find_moving(synthetic_traces.planted(maps, prompt=LENGTH - STEPS))


def test_the_command_lists_and_makes(tmp_path):
    from command import one_line_of, type_in

    listed = type_in("paper", "sinks")
    assert listed.returncode == 0
    assert [line for line in listed.stdout.splitlines() if line.startswith("figure 4 ")]
    rows = json.loads(type_in("paper", "sink-token", "--json").stdout)
    assert {row["label"] for row in rows} == {item.label for item in paper_items("sink_token")}
    words = ("--model", "tiny/llada", "--length", 6, "--block", 3, "--limit", 1, "-o", tmp_path)
    done = type_in("paper", "sinks", "--figure", 4, "--figure", 10, *words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "figure-4.svg").is_file() and (tmp_path / "figure-10.csv").is_file()
    done = type_in("paper", "sink-token", "--figure", "sink-mass", "--table", 4, *words)
    assert done.returncode == 3
    assert done.stderr.startswith("not made, figure sink-mass: figure sink-mass needs a model with")
    lacking = type_in("paper", "sink-token", "--figure", "sink-mass", *words)
    assert "--sink lab/tales-sink" in one_line_of(lacking) and lacking.returncode == 2
    assert "leave --figure and --table out" in one_line_of(
        type_in("paper", "sinks", "--all", "--figure", 1)
    )
    assert "no decoding is called 'dreams'" in one_line_of(
        type_in("paper", "sinks", "--figure", 1, "--decoding", "dreams")
    )


def test_published_sizes_are_those_of_the_protocols():
    of = {"sinks": "rulli", "floating": "floating", "sink_token": "sink-token"}
    for paper, name in of.items():
        effort = PUBLISHED[paper]
        assert effort.length == PROTOCOLS[name].length
        assert effort.block == (PROTOCOLS[name].block or effort.length)
