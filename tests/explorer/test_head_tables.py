"""Tables of metrics in the head grid: the numbers of the table, for the run that they are about."""

import json

import numpy as np
import pandas as pd
import pytest

from anchorwatch import metrics
from anchorwatch.errors import SpecError
from anchorwatch.explorer import encode
from anchorwatch.explorer.head_tables import check_table, read_table, read_tables, refuse_strangers
from anchorwatch.explorer.notebook import show_in_notebook
from anchorwatch.explorer.open import from_memory
from anchorwatch.explorer.run_data import Options, Run
from anchorwatch.metrics import table_files
from synthetic_traces import HOSTILE, small_trace


@pytest.fixture(scope="module")
def trace():
    return small_trace(source="made/one")


@pytest.fixture(scope="module")
def table(trace):
    return metrics.sinks([trace], by=["layer", "head"])


def seen(trace, *tables):
    run = Run(from_memory(trace), Options(tables=tables))
    return run.header()["measures"], run


def looked_up(table, quantity, column, shape=(3, 4)):
    """[layer, head] of a column, row by row."""
    found = np.full(shape, np.nan)
    for row in table[table["quantity"] == quantity].to_dict("records"):
        found[row["layer"], row["head"]] = row[column]
    return found.astype(np.float32)


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_every_number_of_a_table_comes_to_the_page(trace, table, tmp_path, kind):
    place = table_files.save(table, tmp_path / f"sinks.{kind}")
    listed, run = seen(trace, read_table(place))
    quantities = list(dict.fromkeys(table["quantity"]))
    assert [one["name"] for one in listed] == [f"{name} (sinks)" for name in quantities]
    assert all(one["table"] and "over all steps" in one["says"] for one in listed)
    for at, quantity in enumerate(quantities):
        arrays = encode.unpack(run.packet(f"measure-{at}"))[0]
        for name in ("value", "null", "lift", "low", "high", "n"):
            got = arrays["values" if name == "value" else name]
            assert got.shape == (1, 3, 4)
            np.testing.assert_array_equal(got[0], looked_up(table, quantity, name))
        assert run.small_measure(at) == run.packet(f"measure-{at}")  # a sent page has them exactly


def test_fields_of_the_trace_come_first(table):
    entropy = np.random.default_rng(0).normal(size=(8, 3, 4)).astype(np.float32)
    held = small_trace(source="made/one", more={"entropy": (("step", "layer", "head"), entropy)})
    listed, run = seen(held, check_table("sinks", table))
    assert listed[0]["name"] == "entropy"
    np.testing.assert_array_equal(encode.unpack(run.packet("measure-0"))[0]["values"], entropy)
    assert "null" in encode.unpack(run.packet("measure-1"))[0]


def test_a_table_by_step_has_every_step(trace):
    rows = [
        {"model": "made/one", "layer": la, "head": h, "step": s, "quantity": "x", "value": s + h}
        for la in range(3)
        for h in range(4)
        for s in range(1, 8)
    ]
    (one,), run = seen(trace, check_table("made", pd.DataFrame(rows)))
    assert "by step" in one["says"]
    arrays = encode.unpack(run.packet("measure-0"))[0]
    wanted = np.broadcast_to(np.arange(8.0)[:, None, None] + np.arange(4), (8, 3, 4)).copy()
    wanted[0] = np.nan  # no row, no number
    np.testing.assert_array_equal(arrays["values"], wanted)
    assert np.isnan(arrays["null"]).all()  # the table has none


def test_each_run_gets_its_own_rows(trace):
    other = small_trace(seed=5, source="made/two")
    both = metrics.sinks([trace, other], by=["layer", "head"])
    for held in (trace, other):
        _, run = seen(held, check_table("both", both))
        mine = both[both["model"] == held.manifest["model"]["source"]]
        quantity = mine["quantity"].iloc[0]
        arrays = encode.unpack(run.packet("measure-0"))[0]
        np.testing.assert_array_equal(arrays["values"][0], looked_up(mine, quantity, "value"))
    split = metrics.sinks([trace, other], by=["trace", "layer", "head"])
    _, run = seen(other, check_table("both", split))
    mine = split[split["trace"] == other.digest()[:12]]
    arrays = encode.unpack(run.packet("measure-0"))[0]
    wanted = looked_up(mine, mine["quantity"].iloc[0], "value")
    np.testing.assert_array_equal(arrays["values"][0], wanted)


def test_a_table_about_other_runs_is_refused(table):
    with pytest.raises(SpecError, match=r"about made/one, which is not shown"):
        refuse_strangers([check_table("sinks", table)], [small_trace(source="made/three")])
    assert seen(small_trace(source="made/three"), check_table("sinks", table))[0] == []


def test_tables_that_are_not_of_heads_say_how(trace, table):
    with pytest.raises(SpecError, match=r"no column head: measure it with --by layer,head"):
        check_table("sinks", metrics.sinks([trace], by=["layer"]))
    with pytest.raises(SpecError, match=r"split by progress too: measure it with --by layer,head"):
        check_table("sinks", metrics.sinks([trace], by=["layer", "head", "progress"]))
    with pytest.raises(SpecError, match="which model or trace"):
        check_table("sinks", table.drop(columns="model"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layer": 7}, r"names layer 7: the run has 0 to 2"),
        ({"head": -1}, r"names head -1: the run has 0 to 3"),
        ({"head": 1.5}, r"names head 1\.5"),
        ({"layer": float("nan")}, r"names layer nan"),
        ({"layer": "\x1b[31mx"}, r"names layer .*x: the run has"),
        ({"layer": 1e300}, r"names layer 1e\+300"),
    ],
)
def test_places_that_are_not_in_the_run_are_named(trace, table, change, says):
    wrong = table.astype({name: object for name in change})
    for name, value in change.items():
        wrong.loc[wrong.index[0], name] = value
    with pytest.raises(SpecError, match=says) as caught:
        seen(trace, check_table("sinks", wrong))
    assert "\x1b" not in str(caught.value)


def test_two_rows_for_one_head_are_refused(trace, table):
    twice = pd.concat([table, table.head(1)], ignore_index=True)
    with pytest.raises(SpecError, match="several rows for one head"):
        seen(trace, check_table("sinks", twice))


def test_names_that_meet_are_told_apart(trace, table):
    one = check_table("sinks", table)
    listed, _ = seen(trace, one, one)
    names = [measure["name"] for measure in listed]
    assert len(set(names)) == len(names)
    long = table.assign(quantity="q" * 300)
    named = seen(trace, check_table("a", long.drop_duplicates(["layer", "head"])))[0]
    assert len(named[0]["name"]) <= 60


def test_hostile_names_are_plain_text(trace, table):
    rows = table.drop_duplicates(["layer", "head"])
    for text in HOSTILE:
        if text:
            spelled = pd.Series([text] * len(rows), index=rows.index, dtype=object)
            listed, _ = seen(trace, check_table(text, rows.assign(quantity=spelled)))
            said = json.dumps(listed, ensure_ascii=False)
            for bad in ("\x1b", "\u202e", "\u2066", "\u2028", "\ud800", "\r"):
                assert bad not in said
            assert len(said) < 2000


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "", "cannot be read"),
        ("a.csv", "a,b\n1,2\n", "no column layer, head, quantity, value"),
        ("a.csv", b"\xff\xfe\x00", "cannot be read"),
        ("a.json", "[" * 100_000, "cannot be read"),
        ("a.json", '{"rows": 3}', "cannot be read"),
        ("a.json", '{"about": {}}', "cannot be read"),
        ("a.parquet", "PAR1 it is not", "cannot be read"),
        ("a.txt", "", r"ends in \.csv, \.json, \.parquet"),
    ],
)
def test_files_that_are_no_tables_say_so(tmp_path, name, text, says):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SpecError, match=says):
        read_table(tmp_path / name)
    with pytest.raises(SpecError, match="there is no table"):
        read_table(tmp_path / "absent.csv")


def test_head_types_are_verdicts_in_words(trace, tmp_path):
    table = metrics.head_types([trace])
    listed, run = seen(trace, read_table(table_files.save(table, tmp_path / "types.csv")))
    by_name = {one["name"]: (at, one) for at, one in enumerate(listed)}
    at, verdict = by_name["type (types)"]
    assert verdict["words"] == sorted(set(table["type"]))
    arrays = encode.unpack(run.packet(f"measure-{at}"))[0]
    for row in table.to_dict("records"):
        code = arrays["values"][0, row["layer"], row["head"]]
        assert verdict["words"][int(code)] == row["type"]
    for name, null in (("jump_rate", "jump_rate_null"), ("frontier_hit", "frontier_null")):
        at, one = by_name[f"{name} (types)"]
        assert "words" not in one
        arrays = encode.unpack(run.packet(f"measure-{at}"))[0]
        for row in table.to_dict("records"):
            spot = (0, row["layer"], row["head"])
            np.testing.assert_equal(arrays["values"][spot], np.float32(row[name]))
            np.testing.assert_equal(arrays["null"][spot], np.float32(row[null]))
    assert not any("null (types)" in name for name in by_name)


def test_a_folder_gives_its_tables_of_heads(trace, table, tmp_path):
    table_files.save(table, tmp_path / "heads.csv")
    table_files.save(metrics.sinks([trace], by=["layer"]), tmp_path / "layers.csv")
    assert [one.name for one in read_tables([tmp_path])] == ["heads"]
    (tmp_path / "heads.csv").unlink()
    with pytest.raises(SpecError, match="no table with a number for each head"):
        read_tables([tmp_path])


def test_a_notebook_takes_tables_as_they_are(trace, table):
    page = show_in_notebook(trace, tables={"sinks": table}).page
    assert "(sinks)" in page
    with pytest.raises(SpecError, match="not shown"):
        show_in_notebook(small_trace(source="made/three"), tables={"sinks": table})
