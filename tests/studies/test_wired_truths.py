"""Claims on networks wired by hand, through real runs: what is true is supported, what is not is not.

The table of networks is docs/planted.py's, and so is the page that shows it.
"""

import json
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from anchorwatch.studies.estimate import SEED
from anchorwatch.studies.evidence import Seeds
from anchorwatch.studies.papers import STUDIES, claims
from anchorwatch.studies.run_study import study
from anchorwatch.studies.verdict import SUPPORTED

ROOT = Path(__file__).parents[2]


def open_module(path):
    spec = spec_from_file_location(f"opened_{path.stem}", path)
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


planted = open_module(ROOT / "docs" / "planted.py")
CLAIMS = {claim.id for claim in claims() if claim.is_testable}
RECORD = json.loads((ROOT / "docs" / "planted.json").read_text())
CURRENT = [row for row in RECORD if planted.is_current(row)]
CONFIRMED = [
    name
    for name in planted.PLANTED
    if name in CLAIMS and sum(row["claim"] == name for row in CURRENT) == 2
]
"""Claims of which both networks are on record."""
EVERY_FOURTH = list(planted.PLANTED)[::4]
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
    """Where a claim or a wiring has changed: `python docs/planted.py CLAIM`, or `--page`."""
    assert planted.write_table(RECORD) in (ROOT / "docs" / "planted.md").read_text()
    assert {row["claim"] for row in RECORD} <= set(planted.PLANTED)


def test_a_row_of_another_claim_or_wiring_is_not_shown_as_recorded():
    (first, *_) = CURRENT
    stale = first | {"digest": "0" * 16}
    assert planted.is_current(first)
    assert not planted.is_current(stale)
    shown = planted.write_table([stale]).splitlines()
    (line,) = [line for line in shown if line.startswith(f"| {first['claim']} |")]
    assert line.count("not recorded") == 2


def test_the_record_says_what_was_planted():
    """Every truth comes out, and at the standard budget with the power that is asked for."""
    for row in CURRENT:
        assert_row(row)


def assert_row(row):
    assert row["verdict"] == planted.expect_verdict(row["claim"], supports=row["has"]), row
    assert row["power"] >= planted.LEAST_POWER, row


def test_one_claim_through_real_runs(folder):
    for rows in planted.run_all([QUICK], folder):
        for row in rows:
            assert_row(row)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* is at the floor")  # some networks are wired not to answer
@pytest.mark.parametrize("name", [name for name in EVERY_FOURTH if name in CONFIRMED])
def test_claims_through_real_runs(name, folder):
    """One in four: all of them take 20 minutes or more, `python docs/planted.py NAME` runs any."""
    for rows in planted.run_all([name], folder):
        for row in rows:
            assert_row(row)


TRUE_OF_ANY_WEIGHTS = {
    "floating/H19": "it is about even attention under a causal mask",
    "sink_token/H11": "an identity of the architecture",
    "sink_token/H14": "a count of operations",
}
"""Claims that are no findings about training, and why."""
TRAINED = "lab/tales-arm"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* is at the floor")  # random weights answer nothing
@pytest.mark.parametrize(
    ("paper", "arm"),
    [*((paper, "tiny/arm") for paper in STUDIES), ("floating", TRAINED), ("sinks", TRAINED)],
)
def test_untrained_networks_support_nothing(paper, arm, tmp_path):
    """Neither of the two is trained, or the autoregressive one alone, which has a sink."""
    names = [
        claim.id
        for claim in claims([paper])
        if claim.is_testable and claim.unit != SEED and claim.id not in TRUE_OF_ANY_WEIGHTS
    ]
    models = replace(planted.UNTRAINED, arm=arm).models
    record = study(names, **models, budget=planted.BUDGET, out=tmp_path, report=False)
    assert [one.claim.id for one in record.findings if one.says == SUPPORTED] == []
