"""Claims on networks wired by hand, through real runs: what is true is supported, what is not is not.

The table of networks is docs/planted.py's, and so is the page that shows it.
"""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from anchorwatch.studies.evidence import Seeds
from anchorwatch.studies.papers import claims
from anchorwatch.studies.verdict import REFUTED, SUPPORTED, UNDECIDED

ROOT = Path(__file__).parents[2]


def open_module(path):
    spec = spec_from_file_location(f"opened_{path.stem}", path)
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


planted = open_module(ROOT / "docs" / "planted.py")
CLAIMS = {claim.id for claim in claims() if claim.is_testable}
RECORD = json.loads((ROOT / "docs" / "planted.json").read_text())
CONFIRMED = [
    name
    for name in planted.PLANTED
    if name in CLAIMS
    and name not in planted.UNCONFIRMED
    and sum(row["claim"] == name for row in RECORD) == 2
]
"""Claims of which both networks are on record."""
QUICK = "sink_token/H1"
ABOUT_TRAINING = [
    claim.id
    for claim in claims()
    if claim.is_testable and all(type(spec) is Seeds for spec in claim.needs)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Evidence that the tests of this module share: each network is run once."""
    return tmp_path_factory.mktemp("planted")


def test_every_claim_is_planted_or_says_why_not():
    every = {claim.id for claim in claims() if claim.is_testable}
    known = [*planted.PLANTED, *ABOUT_TRAINING, *planted.NOT_PLANTED]
    assert len(set(known)) == len(known)
    assert every <= set(known)
    assert all(len(reason.split()) > 4 for reason in planted.NOT_PLANTED.values())


def test_the_page_shows_the_record():
    assert planted.write_table(RECORD) in (ROOT / "docs" / "planted.md").read_text()
    assert {row["claim"] for row in RECORD} <= set(planted.PLANTED)


def test_the_record_says_what_was_planted():
    """Every truth is found at the standard budget with the power that is asked for."""
    for row in RECORD:
        if row["claim"] not in planted.UNCONFIRMED:
            assert_row(row)


def assert_row(row):
    expected = SUPPORTED if row["has"] else REFUTED
    assert row["verdict"] in (expected, UNDECIDED), row
    if row["has"] or row["claim"] not in planted.CONSTANT:
        assert row["power"] >= planted.LEAST_POWER, row


def test_one_claim_through_real_runs(folder):
    for row in planted.run_all([QUICK], folder):
        assert row["verdict"] == (SUPPORTED if row["has"] else REFUTED), row
        assert_row(row)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIRMED)
def test_claims_through_real_runs(name, folder):
    for row in planted.run_all([name], folder):
        assert_row(row)


@pytest.mark.slow
def test_untrained_networks_support_nothing(folder):
    names = [name for name in planted.PLANTED if name in CLAIMS and name.startswith("sinks/")]
    judged = planted.run_subject(planted.UNTRAINED, names, folder)
    assert {name for name, one in judged.items() if one.says == SUPPORTED} == set()
