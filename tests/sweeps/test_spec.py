"""What a sweep is asked for: read, refused with what would have worked, and named."""

import re
from pathlib import Path

import pytest

from anchorwatch.errors import SpecError
from anchorwatch.sweeps.spec import (
    keys_of,
    make_keys,
    read_axes,
    read_spec,
    spec_from,
    sweep_record,
    take_shard,
)

FIELDS = {
    "models": ["tiny/llada"],
    "prompts": ["the anchor", "the ship"],
    "decodings": {"short": "low-confidence:length=4"},
    "edits": {"none": "", "sinks": "hide-sinks:1"},
    "seeds": [0, 1],
}
VERSIONS = {"anchorwatch": "1", "torch": "2"}


def cells(fields, files=("f",), versions=VERSIONS):
    axes = read_axes(spec_from(fields))
    return {cell.name for cell in make_keys(axes, list(files), versions).cells()}


def test_the_product_is_named_without_repeats():
    assert len(cells(FIELDS)) == 2 * 2 * 2


@pytest.mark.parametrize(
    ("change", "files", "versions"),
    [
        ({"probes": "none"}, ("f",), VERSIONS),
        ({"chat": True}, ("f",), VERSIONS),
        ({"decodings": {"short": "low-confidence:length=5"}}, ("f",), VERSIONS),
        ({"seeds": [2, 3]}, ("f",), VERSIONS),
        ({"load": {"dtype": "bfloat16"}}, ("f",), VERSIONS),
        ({}, ("g",), VERSIONS),
        ({}, ("f",), VERSIONS | {"torch": "3"}),
    ],
)
def test_whatever_decides_a_cell_changes_its_name(change, files, versions):
    assert not cells(FIELDS) & cells(FIELDS | change, files, versions)


def test_names_and_order_decide_nothing():
    renamed = FIELDS | {
        "models": ["lab/other"],
        "prompts": FIELDS["prompts"][::-1],
        "decodings": {"other": "low-confidence:length=4"},
        "edits": {"b": "hide-sinks:1", "a": ""},
        "seeds": [1, 0],
    }
    assert cells(renamed) == cells(FIELDS)


def test_a_longer_axis_keeps_the_cells_of_a_shorter_one():
    assert cells(FIELDS) < cells(FIELDS | {"seeds": [0, 1, 2]})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"promts": ["x"]}, "there is no field promts: did you mean prompts\\?"),
        ({"load": {"dtyp": "x"}}, "load.dtyp: did you mean dtype\\?"),
        ({"zzz": 1}, "there is no field zzz: expected one of models, prompts"),
        ({"models": []}, "models is empty"),
        ({"prompts": [1]}, "prompts.0 = 1: input should be a valid string$"),
        ({"prompts": [{"prompt": 3}]}, "prompts.0.prompt = 3: input should be"),
        ({"prompts": [{"promt": "x"}]}, "prompts.0.promt: did you mean prompt\\?"),
        ({"models": ["a", "a"]}, "a is named twice"),
        ({"seeds": [-1]}, "seeds"),
        ({"seeds": ["0"]}, "seeds"),
        ({"prompts": []}, "say prompts = .* or a \\[task\\]"),
        ({"prompts": ["x", "x"]}, "are the same: keep one"),
        ({"edits": {"a": "hide-sinks:1", "b": "hide-sinks:1"}}, "are the same: keep one"),
        ({"edits": {"a": "hide-snks:1"}}, "no edit is called 'hide-snks'"),
        ({"decodings": {"a": {"mdn": "x"}}}, "expected a word, or mdm and arm"),
        ({"decodings": {"a": {"mdm": "left-to-right:length=3"}}}, "say low-confidence:length="),
        ({"decodings": {"a": {"arm": "low-confidence:length=3"}}}, "say left-to-right:length="),
        ({"load": {"dtype": "float17"}}, "load.dtype = 'float17': .* 'bfloat16'"),
        ({"probes": "recieved"}, "no probe is called"),
        ({"prompts": "/no/such.txt"}, "cannot be read"),
        (
            {"seeds": list(range(10**4)), "prompts": [str(i) for i in range(1001)]},
            "cells and 10,000,000 are the most",
        ),
        (
            {"prompts": [], "task": {"name": "synthetic/one-hop", "contexts": ["gold~masks48"]}},
            "changes the decoding too",
        ),
    ],
)
def test_a_wrong_spec_is_refused_with_what_would_have_worked(fields, says):
    with pytest.raises(SpecError, match=says):
        read_axes(spec_from(FIELDS | fields))


def test_a_file_is_read_and_its_prompts_are_seen_from_its_folder(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "the anchor", "id": "a"}\n\n{"prompt": [1, 2]}\n')
    (tmp_path / "s.toml").write_text('models = ["tiny/llada"]\nprompts = "p.jsonl"\n')
    axes = read_axes(read_spec(tmp_path / "s.toml"))
    assert axes.prompts[0].label == "a"
    assert axes.prompts[1].label.startswith("[1, 2] ... ")
    assert axes.prompts[1].prompt == (1, 2)
    (tmp_path / "p.jsonl").write_text('{"promt": "the anchor"}\n')
    with pytest.raises(SpecError, match="did you mean prompt"):
        read_axes(read_spec(tmp_path / "s.toml"))
    (tmp_path / "s.toml").write_text("models = [")
    with pytest.raises(SpecError, match="is not TOML"):
        read_spec(tmp_path / "s.toml")


def test_items_of_a_task_are_prompts_in_each_context():
    task = {"name": "synthetic/one-hop", "contexts": ["closed", "gold+1"], "limit": 3}
    axes = read_axes(spec_from({"models": ["m"], "task": task}))
    assert len(axes.prompts) == 6
    assert [value.context for value in axes.prompts[:2]] == ["closed", "gold+1"]
    assert "gold" in dict(axes.prompts[1].regions)


def test_a_record_names_the_same_cells():
    axes = read_axes(spec_from(FIELDS))
    keys = make_keys(axes, ["f"], VERSIONS)
    assert keys_of(sweep_record(axes, keys, ["f"])) == keys
    with pytest.raises(SpecError, match="use the version that wrote it"):
        keys_of({"schema": "anchorwatch/cell 99"})


@pytest.mark.parametrize("word", ["0/2", "3/2", "a/2", "1", "1/0", "-1/2"])
def test_a_wrong_shard_is_refused(word):
    with pytest.raises(SpecError, match="is not i/n"):
        take_shard([], word)


def test_shards_part_the_cells():
    everything = list(range(17))
    parts = [take_shard(everything, f"{i}/5") for i in range(1, 6)]
    assert [x for part in parts for x in part] == everything


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"models": "tiny/llada"},
            r'models = "tiny/llada" is no list: say models = \["tiny/llada"\]',
        ),
        ({"seeds": 3}, r"seeds = 3 is no list: say seeds = \[3\]"),
        ({"models": []}, "models is empty: name at least one"),
    ],
)
def test_a_list_is_asked_for_as_it_is_written(fields, says):
    with pytest.raises(SpecError, match=says):
        spec_from(FIELDS | fields)


def test_prompts_are_called_by_their_words():
    long = "the anchor holds the ship and the ship holds the anchor"
    prompts = ["the anchor", f"{long} a", f"{long} b", {"prompt": "the anchor", "regions": {}}]
    prompts[3]["regions"] = {"gold": "anchor"}
    labels = [value.label for value in read_axes(spec_from(FIELDS | {"prompts": prompts})).prompts]
    assert labels[0] == "the anchor"
    assert all(label.startswith("the anchor holds the ship ... ") for label in labels[1:3])
    assert len(set(labels)) == 4
    other = read_axes(spec_from(FIELDS | {"prompts": prompts[::-1]})).prompts
    assert [value.label for value in other] == labels[::-1]


def test_the_spec_of_the_docs_is_read(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "sweep.toml").write_text(text)
    line = re.search(r"A line of prompts\.jsonl is `(\{.*?\}\})`", page).group(1)
    (tmp_path / "prompts.jsonl").write_text(f"{line}\n")
    axes = read_axes(read_spec(tmp_path / "sweep.toml"))
    assert (axes.num_cells, axes.prompts[0].label) == (2 * 2 * 3, "p1")
