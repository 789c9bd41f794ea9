"""No claim is run that was not seen to say true, false and undecided, each on evidence of its own."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from anchorwatch.studies.papers import claims
from anchorwatch.studies.verdict import REFUTED, SUPPORTED, UNDECIDED
from claim_evidence import TRUTHS

FILES = sorted(set(Path(__file__).parent.glob("test_planted_*.py")) - {Path(__file__)})


def opened(path):
    spec = spec_from_file_location(f"planted_by_{path.stem}", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def modules():
    return [opened(path) for path in FILES]


def test_there_are_three_truths():
    assert sorted(TRUTHS) == sorted((SUPPORTED, REFUTED, UNDECIDED))


def test_every_written_claim_is_planted_once_and_no_other(modules):
    found = [name for module in modules for name in module.PLANTED]
    assert sorted(found) == sorted(one.id for one in claims() if one.is_testable)


def test_every_planting_is_tested_for_all_three(modules):
    """By the marks of the test itself, so that none is left out, skipped or expected to fail."""
    for module in modules:
        marks = module.test_the_verdict_is_the_truth.pytestmark
        assert {mark.name for mark in marks} == {"parametrize"}
        given = {mark.args[0]: list(mark.args[1]) for mark in marks}
        assert given == {"truth": list(TRUTHS), "name": list(module.PLANTED)}


def test_what_lacks_says_what(modules):
    for one in claims():
        assert one.is_testable != bool(one.lacks), one.id
        if not one.is_testable:
            assert len(one.lacks.split()) > 10, one.id
