"""Evaluations that cannot be are refused before the weights are used, and say what would work."""

from unittest import mock

import pytest

import anchorwatch as aw
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.evaluation import questions
from anchorwatch.evaluation.grid import evaluate
from anchorwatch.evaluation.results import read_results
from strategies import load

SHORT = {
    "mdm": aw.decoding.LowConfidence(length=8, steps=4),
    "arm": aw.decoding.LeftToRight(length=8),
}


def models():
    return [load("tiny/llada"), load("tiny/arm")]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"contexts": "gold~masks5"}, "whole answers of 8 positions: say ~masks8"),
        ({"contexts": "golden"}, "no context is called"),
        ({"limit": 0}, "limit=0 is not a whole number of at least 1"),
        ({"batch": 2.5}, "batch=2.5 is not a whole number"),
        ({"edits": [aw.edits.no_op()]}, "edits are named lists: say edits="),
        ({"edits": {"a": [], "b": []}}, "asked the same twice: name each model"),
        ({"template": "mine"}, "no template is called 'mine'"),
        ({"probes": [aw.probes.entropy()]}, "traces need a place: say out="),
        ({"decoding": {"diffusion": SHORT["mdm"]}}, "expected 'mdm' and 'arm'"),
        ({"decoding": aw.decoding.LowConfidence()}, "has no length: say how many positions"),
        ({"seed": -1}, "seed=-1 is not"),
    ],
)
def test_what_cannot_be_is_refused_before_weights_are_used(options, says):
    given = {"contexts": "closed", "decoding": SHORT, "limit": 2} | options
    with (
        mock.patch.object(questions, "run_many", side_effect=AssertionError("touched")),
        pytest.raises(SpecError, match=says),
    ):
        evaluate(models()[:1], "synthetic/one-hop", **given)


def test_more_that_is_refused(tmp_path):
    with pytest.raises(SpecError, match="no model is named"):
        evaluate([], "synthetic/one-hop")
    with pytest.raises(SpecError, match="asked the same twice"):
        evaluate([models()[1], models()[1]], "synthetic/one-hop", limit=1, decoding=SHORT)
    with pytest.raises(SpecError, match="DreamOrder fills all masked positions at once"):
        evaluate("tiny/dream", "synthetic/one-hop", contexts="gold~masks8", limit=1,
                 decoding=aw.decoding.DreamOrder(length=8, algorithm="entropy"))  # fmt: skip
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="is a file: results are many files, name a folder"):
        evaluate("tiny/arm", "synthetic/one-hop", limit=1, out=tmp_path / "file")
    with pytest.raises(TraceError, match="there are no results at"):
        read_results(tmp_path)
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(SpecError, match="is empty"):
        evaluate("tiny/arm", tmp_path / "empty.jsonl")
