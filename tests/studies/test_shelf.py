"""Evidence that is kept: found again, told from other evidence, and never half there."""

import math
from dataclasses import replace

import pytest

from anchorwatch.edits.spec import hide_sinks
from anchorwatch.errors import AnchorwatchWarning, EvidenceError, TraceError
from anchorwatch.studies import evidence as shelves
from anchorwatch.studies.budget import Budget
from anchorwatch.studies.evidence import (
    Answers,
    Available,
    Effect,
    EvidenceStore,
    Experiment,
    ModelIdentity,
    Runs,
    skipped_units,
)

BUDGET = Budget("small", prompts=4, length=4, steps=4, items=5, rows=4)
NEED = Experiment("mdm", "query_split", passes=1)
EFFECT = Effect("mdm", (hide_sinks(1),))
ASKED = Answers(("mdm",), ("gold",))


HELD = ModelIdentity("planted", "mdm", "abc", (), 2, 2, 64, "rope", "words", "cpu")


def store(folder, held=HELD, budget=BUDGET):
    return EvidenceStore(folder, budget, Available({"mdm": held}))


def filled(one, spec=NEED, unfit=()):
    """Every unit a row of its number, or why it has none."""
    for at in range(spec.units(one.budget)):
        path = one.unit_path(spec, "mdm", at)
        if at in unfit:
            one.keep(path.with_suffix(".unfit"), {"unfit": f"too long by {at}"})
        else:
            row = {"unit": at, "outcome": "kl", "value": math.nan if at == 1 else at / 2}
            one.keep(path, {"rows": [row], "table": [row], "layers": [row]})
    return one


def test_what_was_kept_is_found_and_absent_stays_absent(tmp_path):
    one = store(tmp_path)
    assert one.missing_units(NEED, "mdm") == [0, 1, 2, 3]
    table = filled(one).load(NEED)
    assert one.missing_units(NEED, "mdm") == []
    assert table["unit"].tolist() == [0, 1, 2, 3]
    assert [round(v, 1) for v in table["value"].drop(1)] == [0.0, 1.0, 1.5]
    assert math.isnan(table["value"][1])


def test_a_unit_that_did_not_fit_is_left_out_and_not_tried_again(tmp_path):
    one = filled(store(tmp_path), unfit=(0, 2))
    assert one.missing_units(NEED, "mdm") == []
    table = one.load(NEED)
    assert table["unit"].tolist() == [1, 3]
    assert skipped_units(table) == {0: "too long by 0", 2: "too long by 2"}
    found = filled(store(tmp_path), EFFECT, unfit=(2,)).load(EFFECT)
    assert found.table["place"].tolist() == [0, 1, 3]
    assert (found.count, found.skipped) == (4, {2: "too long by 2"})


@pytest.mark.parametrize("spec", [NEED, EFFECT, Runs("mdm")], ids=lambda one: one.kind)
def test_evidence_of_nothing_is_refused_with_its_reason(tmp_path, spec):
    one = filled(store(tmp_path), spec, unfit=range(4))
    with pytest.raises(EvidenceError, match=r"none of 4 does for .* \(too long by 0\)"):
        one.load(spec)


def test_a_larger_budget_goes_on_from_a_smaller_one(tmp_path):
    filled(store(tmp_path))
    more = store(tmp_path, budget=replace(BUDGET, name="more", rows=6))
    assert more.missing_units(NEED, "mdm") == [4, 5]


def test_other_evidence_has_another_place(tmp_path, monkeypatch):
    one = store(tmp_path)
    longer = store(tmp_path, budget=replace(BUDGET, length=8, steps=8))
    other = Effect("mdm", (hide_sinks(2),))
    places = {
        one.unit_folder(NEED, "mdm"),
        one.unit_folder(EFFECT, "mdm"),
        one.unit_folder(other, "mdm"),
        longer.unit_folder(EFFECT, "mdm"),
    }
    for name in ("weights", "settings", "tokenizer", "device"):
        places.add(store(tmp_path, replace(HELD, **{name: "other"})).unit_folder(NEED, "mdm"))
    assert len(places) == 8
    monkeypatch.setattr(shelves, "__version__", "0")
    places.add(one.unit_folder(NEED, "mdm"))
    monkeypatch.setattr(shelves, "version", lambda name: f"{name} 0")
    places.add(one.unit_folder(NEED, "mdm"))
    assert len(places) == 10
    assert longer.unit_folder(NEED, "mdm") == one.unit_folder(NEED, "mdm")  # its length is its own


@pytest.mark.parametrize("harm", [lambda b: b[:-9], lambda b: b.replace(b"0.0", b"9.0")])
def test_damage_is_named_with_what_helps(tmp_path, harm):
    one = filled(store(tmp_path))
    path = one.unit_path(NEED, "mdm", 0)
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(TraceError, match=r"00000\.json is damaged .*: remove it, and run again"):
        one.load(NEED)


@pytest.mark.parametrize("spec", [NEED, EFFECT, ASKED], ids=lambda one: one.kind)
def test_a_damaged_unit_is_set_aside_with_a_warning_and_counts_as_not_made(tmp_path, spec):
    one = store(tmp_path)
    whole = [one.unit_folder(spec, "mdm") / shelves.ANSWER_FILE]
    if spec is not ASKED:
        whole = [
            path.with_suffix(end)
            for path, end in zip(
                (one.unit_path(spec, "mdm", at) for at in range(4)),
                (".json", ".unfit") * 2,
                strict=True,
            )
        ]
    for path in whole:
        one.keep(path, {"rows": [], "unfit": "too long"})
    assert one.missing_units(spec, "mdm") == []
    one.mend(spec, "mdm")
    for path in whole:
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(AnchorwatchWarning, match="damaged.*and is made again") as told:
        one.mend(spec, "mdm")
    assert len(told) == len(whole)
    assert one.missing_units(spec, "mdm") == list(range(spec.units(BUDGET)))
    aside = [next(path.parent.glob(f"{path.name}.damaged-*")) for path in whole]
    assert all(path.stat().st_size for path in aside)


def test_a_write_that_fails_leaves_no_unit(tmp_path, monkeypatch):
    one = store(tmp_path)

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(shelves, "replace_file", full)
    with pytest.raises(OSError, match="no space"):
        one.keep(one.unit_path(NEED, "mdm", 0), {"rows": []})
    assert one.missing_units(NEED, "mdm") == [0, 1, 2, 3]
