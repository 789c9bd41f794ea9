"""What a study refuses, and what it says would have worked."""

import pytest

import anchorwatch as aw
from anchorwatch.errors import EvidenceError, SpecError
from anchorwatch.studies.budget import budget
from anchorwatch.studies.claim import Claim, Criterion, Finding, Measured
from anchorwatch.studies.estimate import Estimate
from anchorwatch.studies.evidence import Evidence, Runs, Seeds, TraceSet
from anchorwatch.studies.measure import require_accuracy
from anchorwatch.studies.verdict import judge_claims

WORDS = ("a sentence.", "a source", "a number")


def criterion(**more):
    return Criterion(
        **{"name": "it", "statistic": "x", "direction": "greater", "margin": 0.0} | more
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: budget("huge"), "expected one of quick, standard, full"),
        (lambda: Runs("llm"), "expected one of mdm, arm, sink, gate"),
        (lambda: Runs("mdm", "poems"), "expected asked, alone, told"),
        (lambda: criterion(direction="more", reason="x"), "expected greater, less, equal"),
        (lambda: criterion(direction="equal", reason="x"), "above 0 if equal"),
        (lambda: criterion(reason=""), "does not say why"),
        (lambda: Claim("H3", *WORDS, "prompt"), "say floating/H3"),
        (lambda: Claim("sinks/H3", *WORDS, "head"), "expected one of prompt, item, training seed"),
        (lambda: Claim("sinks/H3", *WORDS, "prompt", needs=(Runs("mdm"),)), "give all or none"),
        (lambda: Estimate.mean([1.0], "head"), "expected one of prompt, item, training seed"),
        (lambda: Estimate.mean([[1.0]], "prompt"), "one number for each prompt"),
        (lambda: Estimate.mean([float("inf")], "prompt"), "use NaN"),
        (lambda: Estimate.pairs([0.5], [0.0], "item"), "use mean"),
    ],
)
def test_the_impossible_is_refused(make, says):
    with pytest.raises(SpecError, match=says):
        make()


def claim(measure):
    spec = Seeds(("bound.all",))
    return Claim(
        "sinks/H3", *WORDS, "prompt", (spec,), (criterion(reason="planted"),), measure=measure
    )


def test_a_measure_is_held_to_what_was_announced():
    measured = Measured(Estimate.mean([1.0, 2.0, 3.0, 4.0, 5.0], "item"))
    with pytest.raises(SpecError, match=r"announced \['it'\] and measured \['other'\]"):
        claim(lambda _: Finding({"other": measured})).find(Evidence.of({}))
    with pytest.raises(SpecError, match="about the prompt, and it is over items"):
        claim(lambda _: Finding({"it": measured})).find(Evidence.of({}))


def test_a_claim_without_one_measured_unit_is_lacking_and_not_undecided():
    none = Measured(Estimate.mean([float("nan")] * 7, "prompt"))
    empty, spec = claim(lambda _: Finding({"it": none})), Seeds(("bound.all",))
    lost = TraceSet((), (), 7, dict.fromkeys(range(5), "too long for 256 positions"))
    unfit = f"did not fit: 5 of the units of {spec} (too long for 256 positions)"
    for held, why in ((lost, unfit), (None, "all could be run, and it never came up in them")):
        (one,) = judge_claims([empty], Evidence.of({spec: held}), {})
        assert one.verdict is None
        said = "prompts with a value of every statistic: none of 7 has one"
        assert one.lacking == f"{said} ({why})"


def test_a_model_at_the_floor_carries_no_claim():
    with pytest.raises(
        EvidenceError, match="right in 30% of the questions, unedited: this one is in 2%"
    ):
        require_accuracy(0.02, 0.3, "a masked diffusion model")


def test_a_model_of_another_kind_than_its_role_is_refused(tmp_path):
    with pytest.raises(
        SpecError, match="--against is an autoregressive model, such as lab/tales-arm"
    ):
        aw.studies.plan(["sinks/H3"], against="tiny/llada", out=tmp_path)
    with pytest.raises(SpecError, match="--sink is a masked diffusion model with a sink token"):
        aw.studies.plan(["sinks/H3"], sink="tiny/llada", out=tmp_path)


def test_a_study_is_a_folder(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(SpecError, match="is a file: a study is many files, name a folder"):
        aw.studies.plan(["sinks/H3"], model="tiny/llada", out=tmp_path / "taken")
