"""Table files: round trips, what made them, and refusals."""

import json

import numpy as np
import pandas as pd
import pytest

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics import table_files
from anchorwatch.metrics.sink_strength import sinks
from synthetic_traces import planted, uniform


@pytest.fixture(scope="module")
def table():
    maps = uniform(3, 2, 2, 12)
    maps[1] = np.nan
    return sinks(planted(maps, prompt=9), by=("step", "layer"))


def test_csv_leaves_absent_cells_empty(table, tmp_path):
    held = pd.read_csv(table_files.save(table, tmp_path / "t.csv"), keep_default_na=False)
    assert held.columns.tolist() == table.columns.tolist()
    absent = held[(held.step == 1) & (held.quantity == "count")]
    assert (absent.value == "").all()


def test_json_and_parquet_remember_what_made_them(table, tmp_path):
    for kind in ("json", "parquet"):
        path = table_files.save(table, tmp_path / f"t.{kind}")
        made = table_files.read_origin(path)
        assert made["about"]["metric"] == "sinks"
        assert made["traces"] == table.attrs["traces"]
    rows = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert len(rows) == len(table)
    assert [row["value"] for row in rows if row["step"] == 1 and row["quantity"] == "count"] == [
        None,
        None,
    ]
    again = pd.read_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(again, table, check_dtype=False)


def test_a_table_is_replaced_whole(table, tmp_path):
    path = tmp_path / "t.json"
    path.write_text("old")
    table_files.save(table, path)
    assert table_files.read_origin(path)["about"]["rule"] == "rulli:3:sum"
    assert [one.name for one in tmp_path.iterdir()] == ["t.json"]


def test_what_is_no_table_of_ours_is_refused(table, tmp_path):
    with pytest.raises(SpecError, match=r"'t\.xlsx': the name ends in \.csv, \.json, \.parquet"):
        table_files.save(table, tmp_path / "t.xlsx")
    with pytest.raises(SpecError, match="does not exist: make it first"):
        table_files.save(table, tmp_path / "no" / "t.csv")
    (tmp_path / "x.json").write_text("[1, 2]")
    with pytest.raises(TraceError, match=r"does not say what made it: tables that `anchorwatch"):
        table_files.read_origin(tmp_path / "x.json")
