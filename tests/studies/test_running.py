"""A study from end to end on tiny models: plan, resume, files, and what is lacking."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from anchorwatch import studies
from anchorwatch.errors import AnchorwatchWarning, ModelError, PromptError
from anchorwatch.models.load_options import LoadOptions
from anchorwatch.probes import norms, received
from anchorwatch.studies import collect, run_study
from anchorwatch.studies.budget import Budget
from anchorwatch.studies.claim import Precondition
from anchorwatch.studies.evidence import Runs
from anchorwatch.studies.papers.sink_token.measures import EVEN, MASS
from anchorwatch.studies.papers.sinks.measures import UNTRAINED
from anchorwatch.studies.study_record import DECIDING

SMALL = Budget("small", prompts=5, length=4, steps=4, items=5, rows=2, answer=4)
NAMES = ["sinks/H2", "sinks/H3", "sink_token/H5"]
MODELS = {"model": "tiny/llada", "against": "tiny/arm"}


def make_plain_claim():
    """A claim about watched runs that asks for nothing first."""
    (claim,) = studies.claims(["sinks/H2"])
    return replace(claim, needs=(Runs("mdm"),), preconditions=())


class Killed(BaseException):
    """As a signal would."""


def variants(folder):
    """A table of training seeds, three of each arm, whose sink token is looked at."""
    attention = dict.fromkeys(MASS, 0.2) | dict.fromkeys(EVEN, 0.01)
    rows = [
        {"arm": arm, "seed": seed, "spec": "x", "version": 1}
        | attention
        | {"bound.all": 2.5 + 0.01 * seed - gain * (1 + 0.1 * seed), "answers.gold": 0.5}
        for arm, gain in (("vanilla", 0.0), ("sink", 0.1))
        for seed in range(3)
    ]
    path = folder / "variants.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study that was killed in the middle, and ended when it was begun again."""
    folder = tmp_path_factory.mktemp("study")
    given = MODELS | {"budget": SMALL, "out": folder / "out", "variants": variants(folder)}
    planned, counts, true = studies.plan(NAMES, **given), [0], collect.run

    def dies(*args, **named):
        counts[0] += 1
        if counts[0] == 4:
            raise Killed
        return true(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "run", dies)
        with pytest.raises(Killed):
            studies.study(NAMES, **given)
        first = counts[0] - 1
        counts[0] = 100
        found = studies.study(NAMES, **given)
    return found, planned, given, (first, counts[0] - 100)


def test_a_killed_study_goes_on_and_makes_nothing_twice(made):
    _, _, _, (before, after) = made
    assert before == 3
    assert before + after == 5  # five prompts; what only sinks/H3 needs is not collected


def test_every_claim_has_a_verdict_or_what_it_lacks(made):
    found, _, given, _ = made
    held = json.loads((given["out"] / "claims.json").read_text())
    assert [one["id"] for one in held["claims"]] == NAMES
    says = {one["id"]: one["verdict"] for one in held["claims"]}
    for name in ("sinks/H2", "sinks/H3"):
        assert says.pop(name) == "not testable"  # the networks are untrained
        assert found[name].lacking.startswith("a trained masked diffusion model")
    assert set(says.values()) <= {"supported", "refuted", "undecided"}
    assert found["sink_token/H5"].says == "supported"
    table = pd.read_csv(given["out"] / "claims.csv")
    assert list(table["id"]) == NAMES
    criteria = pd.read_csv(given["out"] / "criteria.csv")
    assert len(criteria) == sum(len(one.get("criteria", ())) for one in held["claims"])
    assert {"id", "criterion", "decides", "effect", "low", "high", "null"} <= set(criteria)
    assert "## sinks/H3" in (given["out"] / "report.md").read_text()


def test_the_plan_counts_what_ran(made):
    _, planned, given, _ = made
    text = 2 * SMALL.prompts * SMALL.text_length  # two models
    assert planned.passes == SMALL.prompts * SMALL.steps + text + SMALL.rows * UNTRAINED.passes
    assert planned.minutes > 0
    assert planned.bytes > 0
    again = studies.plan(NAMES, **given)
    assert again.passes == text  # sinks/H3 is not testable, and its runs were not made
    assert sum(piece.passes for piece in again.pieces if "sinks/H2" in piece.claims) == 0
    assert set(planned.runs) == set(NAMES)


def test_again_gives_the_same_numbers_and_runs_nothing(made, monkeypatch):
    found, _, given, _ = made
    monkeypatch.setattr(collect, "run", None)
    again = studies.study(NAMES, **given)
    pd.testing.assert_frame_equal(again.claims, found.claims)


@pytest.mark.slow
def test_what_was_damaged_is_made_again_and_nothing_else(made, monkeypatch):
    """A trace that lost a byte, and timings that nobody can read."""
    found, _, given, _ = made
    trace = sorted((given["out"] / "evidence" / "runs").glob("*/00001.trace"))[0]
    file = trace / "zarr.json"
    file.write_bytes(file.read_bytes()[:-1])
    for path in (given["out"] / "evidence" / "rates").iterdir():
        path.write_text("{")
    true, counts = collect.run, [0]

    def counted(*args, **named):
        counts[0] += "seed" in named
        return true(*args, **named)

    monkeypatch.setattr(collect, "run", counted)
    with pytest.warns(AnchorwatchWarning, match="00001.trace is damaged .* and is made again"):
        again = studies.study(NAMES, **given)
    assert counts == [1]
    pd.testing.assert_frame_equal(again.claims, found.claims)
    assert len(list(trace.parent.glob("00001.trace.damaged-*"))) == 1


def test_evidence_of_a_claim_that_is_not_testable_is_not_collected(tmp_path, monkeypatch):
    """The cheapest precondition comes first, and a claim that fails it costs nothing more."""
    claim = make_plain_claim()
    order, costly = [], Runs("mdm", probes=(received(), norms()))

    def stated(value, *needs):
        def measure(evidence):
            assert all(evidence[spec].traces for spec in needs)
            order.append(value)
            return value

        return Precondition("a size", "it", 0.5, "as planted", measure, needs)

    both = (*claim.needs, costly)
    first = replace(claim, needs=both, preconditions=(stated(0.9, costly), stated(0.4)))
    other = replace(claim, id="sinks/H98", preconditions=(stated(0.3, *claim.needs), stated(0.6)))
    monkeypatch.setattr(run_study, "named_claims", lambda names: (first, other))
    given = {"model": "tiny/llada", "budget": SMALL, "out": tmp_path / "out"}
    found = studies.study((), **given)
    assert order == [0.4, 0.6, 0.3]
    assert [judged.says for judged in found.findings] == ["not testable", "not testable"]
    assert [checked.value for checked in found["sinks/H98"].preconditions] == [0.6, 0.3]
    assert found["sinks/H2"].lacking == "a size (it is 0.4, at least 0.5 is needed)"
    assert {piece.spec for piece in found.plan.pieces} == set(claim.needs)
    left = {piece.spec: piece.left for piece in studies.plan((), **given).pieces}
    assert left == {claim.needs[0]: 0, costly: SMALL.prompts}


def test_a_claim_that_was_not_tested_has_no_figure(made):
    assert made[0].draw("sinks/H3") is None  # it was not tested
    assert made[0].draw("sinks/H2") is None


def test_what_is_not_at_hand_is_said(tmp_path):
    names = ["sinks/H3", "sink_token/H5", "sink_token/H15", "sink_token/H20"]
    plan = studies.plan(names, model="tiny/llada", budget=SMALL, out=tmp_path / "out")
    assert plan.lacking["sinks/H3"] == "an autoregressive model (--against)"
    assert plan.lacking["sink_token/H15"] == "a table of variants with the arm vanilla-large"
    assert plan.lacking["sink_token/H20"] == "a masked diffusion model with a sink token (--sink)"


def test_only_models_that_the_claims_need_are_loaded(tmp_path, monkeypatch):
    loaded, true = [], LoadOptions.load
    monkeypatch.setattr(
        LoadOptions, "load", lambda self, source: loaded.append(source) or true(self, source)
    )
    studies.plan(["sink_token/H5"], budget=SMALL, out=tmp_path / "a")
    assert loaded == []  # it is about training seeds
    studies.plan(["sinks/H3"], budget=SMALL, out=tmp_path / "b")
    assert set(loaded) == {"lab/tales-mdm", "lab/tales-arm"}


def test_a_model_may_be_a_path(tmp_path):
    lab = Path(studies.__file__).parents[1] / "models" / "zoo"
    given = {"model": lab / "toy-mdm", "against": lab / "toy-arm", "budget": SMALL}
    assert studies.plan(["sinks/H3"], **given, out=tmp_path / "out").lacking == {}


@pytest.mark.parametrize("name", ["tiny/none", "lab/none", "no-such-folder", "no-such-file.gguf"])
def test_a_wrong_name_is_said_before_any_model_is_loaded(tmp_path, monkeypatch, name):
    monkeypatch.setattr(
        LoadOptions, "load", lambda self, source: pytest.fail(f"{source} was loaded")
    )
    with pytest.raises(ModelError, match=name.partition("/")[2] or name):
        studies.plan(["sinks/H3"], model="tiny/llada", against=name, out=tmp_path / "out")


def test_a_prompt_that_does_not_fit_is_kept_and_counted(made, tmp_path, monkeypatch):
    true = collect.run

    def long(model, text, *args, **named):
        if named.get("seed") == 2:
            raise PromptError("too long")
        return true(model, text, *args, **named)

    monkeypatch.setattr(collect, "run", long)
    budget = Budget("six", prompts=6, length=4, steps=4, items=5, rows=2)
    monkeypatch.setattr(run_study, "named_claims", lambda names: (make_plain_claim(),))
    found = studies.study((), model="tiny/llada", budget=budget, out=tmp_path / "out")
    held = found.evidence[Runs("mdm")]
    assert held.skipped == {2: "too long"}
    estimate = found["sinks/H2"].finding.measured["sum"].estimate
    assert (estimate.n, estimate.missing) == (5, 1)
    assert found["sinks/H2"].unfit == ("1 of the units of runs of mdm, asked (too long)",)


def test_evidence_that_cannot_be_made_is_said(tmp_path, monkeypatch):
    def breaks(*_):
        raise PromptError("this model cannot")

    monkeypatch.setattr(run_study, "collect", breaks)
    found = studies.study(["sinks/H2"], model="tiny/llada", budget=SMALL, out=tmp_path / "out")
    assert found["sinks/H2"].says == "not testable"
    assert "this model cannot" in found["sinks/H2"].lacking


@pytest.mark.parametrize("what", DECIDING)
def test_the_digest_is_of_what_decides_and_of_nothing_else(made, what):
    found = made[0]
    told = replace(found, about=dict(found.about) | {"took": 1, "machine": "other", "plan": {}})
    assert told.digest == found.digest
    assert replace(found, about=dict(found.about) | {what: "other"}).digest != found.digest
    assert found.digest in (made[2]["out"] / "report.html").read_text()
