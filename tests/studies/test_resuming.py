"""A study that is killed in every kind of evidence ends as one that was not, from its manifest."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from anchorwatch import studies
from anchorwatch.evaluation import grid
from anchorwatch.studies import collect, run_study
from anchorwatch.studies.budget import Budget

pytestmark = pytest.mark.slow
SMALL = Budget("small", prompts=5, length=4, steps=4, items=5, rows=5, answer=4)
NAMES = ["floating/H24", "floating/H27", "sinks/H2", "sinks/H14"]
"""Answers, rows, runs and effects; without preconditions, which untrained networks fail."""
PARTS = {"run": collect, "effect": collect, "_run_experiment": collect, "answer_questions": grid}


class Killed(BaseException):
    """As a signal would."""


class Mortal:
    """Counts what is made, and dies once before the third piece of every kind."""

    def __init__(self, patch):
        patch.setattr(run_study, "named_claims", self.claims)
        self.made = dict.fromkeys(PARTS, 0)
        for name, module in PARTS.items():
            patch.setattr(module, name, self.counted(name, getattr(module, name)))
        self.dead = set()

    @staticmethod
    def claims(names):
        return tuple(replace(claim, preconditions=()) for claim in studies.claims(names))

    def counted(self, name, true):
        def call(*args, **named):
            if named.get("probes") == () or self.calibrating(named):
                return true(*args, **named)
            if self.made[name] == 2 and name not in self.dead:
                self.dead.add(name)
                raise Killed(name)
            found = true(*args, **named)
            self.made[name] += 1
            return found

        return call

    @staticmethod
    def calibrating(named):
        return "probes" in named and "seed" not in named


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A study that was killed four times, what was made of it, and its manifest."""
    out = tmp_path_factory.mktemp("study") / "out"
    with pytest.MonkeyPatch.context() as patch:
        mortal = Mortal(patch)
        for _ in PARTS:
            with pytest.raises(Killed):
                studies.study(NAMES, model="tiny/llada", budget=SMALL, out=out)
        found = studies.study(NAMES, model="tiny/llada", budget=SMALL, out=out)
    return found, mortal.made, json.loads((out / "claims.json").read_text())


def test_nothing_is_made_twice(ended):
    _, made, _ = ended
    assert (made["run"], made["effect"], made["_run_experiment"]) == (10, 10, 10)


def test_again_from_the_manifest_all_numbers_are_the_same(ended, tmp_path):
    found, made, held = ended
    about = held["about"]
    with pytest.MonkeyPatch.context() as patch:
        whole = Mortal(patch)
        whole.dead = set(PARTS)
        again = studies.study(
            about["claims"],
            model=about["models"]["mdm"],
            budget=Budget(**about["budget"]),
            out=tmp_path / "again",
        )
    pd.testing.assert_frame_equal(again.claims, found.claims, check_exact=True)
    assert whole.made == made
    other = json.loads((tmp_path / "again" / "claims.json").read_text())
    assert other["claims"] == held["claims"]
    assert about.pop("took") and other["about"].pop("took")
    assert other["about"] == about
