"""Every hypothesis of the three papers is there, whole, and says what it is about."""

import ast
from pathlib import Path

import pytest

from anchorwatch.errors import SpecError
from anchorwatch.studies import papers
from anchorwatch.studies.estimate import SEED
from anchorwatch.studies.evidence import EvidenceSpec, Seeds
from anchorwatch.studies.papers import STUDIES, claims


def test_all_claims_are_registered_once():
    ids = [one.id for one in claims()]
    assert ids == [f"{study}/H{n}" for study, count in STUDIES.items() for n in range(1, count + 1)]
    assert len(set(ids)) == len(ids) >= 72


@pytest.mark.parametrize("claim", claims(), ids=lambda one: one.id)
def test_a_claim_says_what_is_claimed_and_where(claim):
    assert claim.sentence.endswith(".")
    assert claim.source
    assert claim.reported
    for words in (claim.defect, claim.caveat, claim.reported):
        assert not words.endswith("."), words
    for one in claim.criteria:
        assert one.statistic
        assert one.reason
    uses_seeds = any(isinstance(spec, Seeds) for spec in claim.needs)
    assert not claim.is_testable or uses_seeds == (claim.unit == SEED), (
        "seeds are the unit of training"
    )


def registrations():
    """(file, call) of every claim as it is written in the papers' modules."""
    for path in sorted(Path(papers.__file__).parent.glob("*/claims.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(getattr(node, "func", None), "id", "")
            if name in ("register_claim", "register_untested_claim"):
                yield path, node


def test_every_claim_says_whose_it_is():
    """Said where it is written, not left to a default: whoever adds a claim has to decide."""
    calls = list(registrations())
    assert len(calls) == len(claims())
    for path, call in calls:
        given = {keyword.arg for keyword in call.keywords}
        assert "origin" in given, f"{path}: {call.args[0].value} does not say origin="


def test_needs_that_are_alike_are_one_and_have_a_digest_of_their_own():
    every: dict[EvidenceSpec, str] = {}
    for claim in claims():
        for spec in claim.needs:
            assert every.setdefault(spec, spec.digest) == spec.digest
    assert len(set(every.values())) == len(every)


def test_claims_are_chosen_by_study_or_id():
    assert len(claims(["sinks"])) == STUDIES["sinks"]
    assert [one.id for one in claims(["sinks/H3", "sink_token/H5"])] == [
        "sinks/H3",
        "sink_token/H5",
    ]
    with pytest.raises(SpecError, match="expected floating, sinks, sink_token, or sinks/H3"):
        claims(["sink"])
