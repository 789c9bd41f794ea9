"""Whose claim it is, of which models, and what they must have first."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from anchorwatch.errors import SpecError
from anchorwatch.metrics.sink_rules import rulli
from anchorwatch.studies import preconditions
from anchorwatch.studies.claim import (
    GREATER,
    OURS,
    Change,
    Claim,
    Criterion,
    Finding,
    Measured,
    Precondition,
)
from anchorwatch.studies.estimate import PROMPT, Estimate
from anchorwatch.studies.evidence import (
    Answers,
    Evidence,
    ModelIdentity,
    Runs,
    Seeds,
    TraceSet,
)
from anchorwatch.studies.measure import ARM_RUNS, MDM_RUNS
from anchorwatch.studies.papers import claims
from anchorwatch.studies.papers.sinks.measures import (
    ARM_HIDDEN,
    MDM_HIDDEN,
    answers_outlast_first_step,
    is_trained,
)
from anchorwatch.studies.report import text
from anchorwatch.studies.study_record import VERSION, read_record
from anchorwatch.studies.verdict import (
    NOT_ABOUT,
    NOT_TESTABLE,
    SUPPORTED,
    judge_claims,
)
from claim_evidence import answer_table, seed_table, traces_with_sink
from synthetic_traces import planted


def identity(family="llada", **changed):
    base = ModelIdentity("a/model", "mdm", "w", (), 2, 2, 64, "s", None, "cpu", "i", family)
    return replace(base, **changed)


def holds(evidence):
    return Finding({"it": Measured(Estimate.mean([1.0, 1.1, 0.9, 1.0, 1.05], PROMPT), 0.0)})


def claim(**changed):
    base = Claim(
        *("sinks/H3", "A sentence.", "a paper", "0.5", PROMPT),
        needs=(MDM_RUNS,),
        criteria=(Criterion("it", "a number", GREATER, 0.1, "planted"),),
        measure=holds,
    )
    return replace(base, **changed)


def evidence(family="llada", **changed):
    runs = traces_with_sink(6, lambda rng, step, head: 0, seed=1)
    return Evidence.of({MDM_RUNS: runs}, {"mdm": identity(family, **changed)})


def test_a_sentence_about_other_models_is_not_about_this_one():
    dream = claim(scope=("dream",))
    (found,) = judge_claims([dream], evidence("llada"), {})
    assert found.says == NOT_ABOUT
    assert found.not_about == "it was said of dream, and a/model is llada"
    assert text.reason(found).startswith("Not about this model: it was said of dream")
    (found,) = judge_claims([dream], evidence("dream"), {})
    assert found.says == SUPPORTED
    (found,) = judge_claims([claim()], evidence("llada"), {})
    assert found.says == SUPPORTED
    (found,) = judge_claims([dream], evidence(""), {})  # nothing is known of it
    assert found.says == SUPPORTED


def test_what_is_not_about_a_model_does_not_lack_anything():
    (found,) = judge_claims([claim(scope=("dream",))], evidence(), {"sinks/H3": "a model"})
    assert (found.says, found.lacking) == (NOT_ABOUT, "")


def stated(value, minimum=0.5):
    return Precondition("a sink", "the share of heads", minimum, "planted", lambda _: value)


@pytest.mark.parametrize("value", [0.2, math.nan])
def test_a_precondition_that_fails_says_what_lacks_with_the_number(value):
    (found,) = judge_claims([claim(preconditions=(stated(0.9), stated(value)))], evidence(), {})
    assert found.says == NOT_TESTABLE
    number = "cannot be measured here" if math.isnan(value) else "is 0.2"
    assert found.lacking == f"a sink (the share of heads {number}, at least 0.5 is needed)"
    assert [item.holds for item in found.preconditions] == [True, False]
    record = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert [item["holds"] for item in record["preconditions"]] == [True, False]


def test_a_precondition_that_holds_is_told_beside_the_verdict():
    (found,) = judge_claims([claim(preconditions=(stated(0.5),))], evidence(), {})
    assert found.says == SUPPORTED
    assert found.as_dict()["preconditions"][0]["value"] == 0.5


def test_a_precondition_is_measured_once_for_all_claims():
    calls = []
    once = Precondition("a", "b", 0.0, "c", lambda _: calls.append(1) or 1.0)
    each = [claim(preconditions=(once,)), claim(id="sinks/H4", preconditions=(once,))]
    judge_claims(each, evidence(), {})
    assert len(calls) == 1


def test_claims_that_say_too_little_are_refused():
    with pytest.raises(SpecError, match="expected paper, neighbour, code, ours"):
        claim(origin="theirs")
    with pytest.raises(SpecError, match="no criterion that decides: leave out decides=False"):
        claim(criteria=(Criterion("it", "a", GREATER, 0.1, "b", decides=False),))
    with pytest.raises(
        SpecError, match="a precondition reads runs of arm, asked: name it in needs"
    ):
        claim(preconditions=(preconditions.has_first_key_sink(),))
    with pytest.raises(SpecError, match="needs a minimum that is a number, and a reason"):
        Precondition("a sink", "the share", math.nan, "planted", lambda _: 1.0)
    with pytest.raises(SpecError, match="says what was changed, why, and what was there before"):
        Change("a", "", "b")
    assert claim(origin=OURS).origin == OURS


# --- the ready-made ones, on planted evidence of both kinds ---------------------------------------


def flat(count=5):
    even = np.full((4, 2, 3, 24, 24), 1 / 24)
    return TraceSet.from_traces(
        [planted(even, prompt=8, tokens=np.arange(24) + 100 * at) for at in range(count)]
    )


def value(condition, pieces, models=None):
    return condition.check(Evidence.of(pieces, models)).value


def test_sinks_in_most_heads():
    condition = preconditions.has_sinks()
    assert value(condition, {MDM_RUNS: sharp()}) == 1.0
    assert value(condition, {MDM_RUNS: flat()}) == 0.0
    assert condition is preconditions.has_sinks()
    assert preconditions.has_sinks(rule=rulli(2.0)) is not condition


def sharp(count=5, keys=24, share=0.7):
    """Every head gives key 3 most of its attention."""
    one = np.full((4, 2, 3, keys, keys), (1 - share) / (keys - 1))
    one[..., 3] = share
    return TraceSet.from_traces(
        [planted(one, prompt=8, tokens=np.arange(keys) + 100 * at) for at in range(count)]
    )


def test_anchors_on_the_head_mean_map():
    fires, times = preconditions.has_anchors()
    assert value(fires, {MDM_RUNS: sharp()}) == 1.0
    assert value(times, {MDM_RUNS: sharp()}) == pytest.approx(0.7 * 24, rel=1e-3)
    assert value(fires, {MDM_RUNS: flat()}) == 0.0
    assert value(times, {MDM_RUNS: flat()}) == pytest.approx(1.0, rel=1e-3)


def test_a_first_key_sink_is_more_than_the_mask_gives():
    even = np.tril(np.ones((24, 24))) / np.arange(1, 25)[:, None]
    even = np.broadcast_to(even, (4, 2, 2, 24, 24))
    first = even * 0.3
    first[..., 0] += 0.7
    condition = preconditions.has_first_key_sink()
    made = {
        name: TraceSet.from_traces(
            [
                planted(maps, prompt=8, tokens=np.arange(24) + 100 * at, visibility="causal")
                for at in range(5)
            ]
        )
        for name, maps in (("even", even), ("first", first))
    }
    assert value(condition, {ARM_RUNS: made["even"]}) == pytest.approx(0.0, abs=1e-3)
    assert value(condition, {ARM_RUNS: made["first"]}) > 0.4


def test_layers_heads_and_text():
    pieces = {MDM_RUNS: sharp()}
    assert value(preconditions.has_layers(2), pieces) == 2.0
    assert value(preconditions.has_heads(6), pieces) == 6.0
    assert value(preconditions.writes_text(MDM_RUNS), pieces) == 1.0


def test_an_answer_of_two_words_ends_before_most_is_hidden():
    condition = answers_outlast_first_step(ARM_HIDDEN)
    cells = {("arm", "gold", name): np.ones(4) for name, _ in ARM_HIDDEN.edits}
    for answer, share in (("Iron Heron", 0.5), ("He went to sea with Ann", 5 / 6), ("", 0.0)):
        table = answer_table(cells)
        table.results.rows["written"] = f"{answer}\nQuestion: who else was there?"
        table.results.rows["prediction"] = answer
        measured = condition.check(Evidence.of({ARM_HIDDEN: table}))
        assert measured.value == pytest.approx(share)
        assert measured.holds is (share > 0.8)
    for name in ("sinks/H13", "sinks/H29"):
        assert condition in claims([name])[0].preconditions


UNTRAINED_TOO = {
    "floating/H10": "the rise of a sink by layer, which random weights do not have",
    "floating/H13": "prompts that are answered rightly",
    "floating/H14": "prompts that are answered rightly",
    "floating/H15": "prompts that are answered rightly",
    "floating/H25": "prompts that are answered rightly",
    "sink_token/H12": "sinks whose values are small",
}
"""Claims that read runs of the masked diffusion model and do not ask whether it is trained, and
what keeps random weights out."""


def test_claims_about_runs_ask_whether_the_model_is_trained():
    reads_runs = {
        claim.id
        for claim in claims()
        if any(isinstance(spec, Runs) and spec.role == "mdm" for spec in claim.needs)
    }
    asks = {claim.id for claim in claims() if is_trained() in claim.preconditions}
    assert reads_runs - asks == set(UNTRAINED_TOO)


def test_ten_sinks_are_hidden_from_a_model_that_is_right_with_five_hidden():
    (claim,) = claims(["sinks/H36"])
    left = claim.preconditions[-1]
    cells = {("mdm", "gold", name): [1.0] * 9 + [0.0] for name, _ in MDM_HIDDEN.edits}
    cells |= {("mdm", "gold", f"sinks {k}"): [0.0] * 10 for k in (5, 10)}
    measured = left.check(Evidence.of({MDM_HIDDEN: answer_table(cells)}))
    assert (measured.value, measured.holds) == (0.0, False)
    assert "under the edit 'sinks 5'" in left.statistic


def test_normalised_keys():
    condition = preconditions.keys_not_normalised()
    assert condition.check(evidence(normalises_keys=True)).holds is False
    assert condition.check(evidence(normalises_keys=False)).holds is True


def test_accuracy_that_can_fall_and_what_is_left_at_random():
    asked = Answers(("mdm",), ("gold",), (("none", ()), ("sinks", ()), ("random", ())))
    rows = {("mdm", "gold", "none"): [1.0] * 8 + [0.0] * 2}
    rows |= {("mdm", "gold", name): [1.0] * 4 + [0.0] * 6 for name in ("sinks", "random")}
    pieces = {asked: answer_table(rows)}
    assert value(preconditions.leaves_room_to_fall(asked, "mdm"), pieces) == pytest.approx(0.8)
    room = preconditions.leaves_room_to_rise(asked, "mdm", context="gold")
    assert value(room, pieces) == pytest.approx(0.2)
    left = preconditions.survives_random_hiding(asked, "mdm", context="gold")
    assert value(left, pieces) == pytest.approx(0.5)


def test_a_loss_of_the_other_model():
    condition = preconditions.loses_something("noise", (), lambda _: 0.01)
    assert not condition.check(evidence()).holds
    assert condition.statistic == "what noise costs it, as a share of the questions,"


def test_a_trained_sink_that_is_looked_at():
    seeds = Seeds(("mass", "even"))
    table = seed_table({"sink": {"mass": [0.2, 0.3, 0.1], "even": [0.05] * 3}})
    condition = preconditions.trained_sink_is_used(seeds, ("mass",), ("even",))
    assert value(condition, {seeds: table}) == pytest.approx(4.0)


# --- records of older versions --------------------------------------------------------------------


def test_an_old_record_is_read_as_one_of_today(tmp_path):
    old = {
        "version": 2,
        "claims": [
            {"id": "sinks/H1", "verdict": "lacking", "lacking": "a model"},
            {"id": "sinks/H2", "verdict": "refuted", "criteria": [{"criterion": "it"}]},
        ],
    }
    (tmp_path / "claims.json").write_text(json.dumps(old))
    record = read_record(tmp_path / "claims.json")
    assert record["version"] == VERSION
    assert [row["verdict"] for row in record["claims"]] == [NOT_TESTABLE, "refuted"]
    assert record["claims"][1]["criteria"][0]["decides"] is True
    assert record["counts"][NOT_TESTABLE] == 1
    assert record["counts_by_origin"]["paper"]["refuted"] == 1
    (tmp_path / "claims.json").write_text(json.dumps({"version": 1}))
    with pytest.raises(SpecError, match="is not of version 2 to 3"):
        read_record(tmp_path / "claims.json")
