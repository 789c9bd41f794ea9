"""What does not fit is said: answers at the floor, unknown words, a chat model asked plainly."""

import warnings

import pandas as pd
import pytest

import anchorwatch as aw
from anchorwatch.errors import AnchorwatchWarning
from anchorwatch.evaluation.grid import LEAST_ITEMS, LEAST_RIGHT, evaluate, warn_floor
from anchorwatch.studies import run_study
from anchorwatch.studies.budget import Budget
from anchorwatch.studies.papers import claims


class Answered:
    """Results with so many right answers of so many items in each context."""

    def __init__(self, **contexts):
        rows = []
        for context, (right, asked, passages) in contexts.items():
            for item in range(asked):
                row = {"model": "m", "context": context, "edit": "none", "unfit": ""}
                rows.append(row | {"passages": passages, "containment": float(item < right)})
        self.rows = pd.DataFrame(rows)


def said(results):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_floor(results)
    return [str(warning.message) for warning in caught]


def test_the_floor_is_where_losing_everything_is_not_significant():
    from scipy.stats import binomtest

    # The exact test of pairs with all right answers lost and none gained.
    assert binomtest(LEAST_RIGHT, LEAST_RIGHT).pvalue < 0.05
    assert binomtest(LEAST_RIGHT - 1, LEAST_RIGHT - 1).pvalue >= 0.05
    low = said(Answered(gold=(LEAST_RIGHT - 1, 50, 1)))
    assert len(low) == 1 and "5 of 50 in gold right" in low[0] and "easier items" in low[0]
    assert said(Answered(gold=(LEAST_RIGHT, 50, 1))) == []
    assert said(Answered(gold=(0, LEAST_ITEMS - 1, 1))) == []


def test_knowing_nothing_without_passages_is_no_floor_unless_there_are_none():
    assert said(Answered(closed=(0, 50, 0), gold=(20, 50, 1))) == []
    assert "0 of 50 in closed" in said(Answered(closed=(0, 50, 0)))[0]


def test_an_evaluation_of_an_untrained_model_says_so():
    how = aw.decoding.LowConfidence(length=2, steps=1)
    with pytest.warns(AnchorwatchWarning, match="is at the floor: it answers 0 of 20 in gold"):
        evaluate("tiny/llada", "synthetic/one-hop", contexts=["gold"], decoding=how, limit=20)


CLAIM = ["sinks/H2"]
"""A claim that reads questions with passages."""


def test_an_evaluation_and_a_study_say_what_does_not_fit(monkeypatch):
    model = aw.load("lab/toy-mdm")
    how = aw.decoding.LowConfidence(length=2, steps=1)
    model.tokenizer.chat_template = "{{ messages[0]['content'] }}"
    object.__setattr__(model, "source", "owner/Toy-Instruct")
    with pytest.warns(AnchorwatchWarning, match="is a chat model and the prompt is plain text"):
        evaluate(model, "synthetic/one-hop", contexts=["gold"], decoding=how, limit=2)
    budget = Budget("small", prompts=2, length=4, steps=4, items=2, rows=2)
    with pytest.warns(AnchorwatchWarning, match="is a chat model"):
        run_study._warn_misfits(claims(CLAIM), budget, model)
    # Every token unknown: nothing of the prompt is read.
    object.__setattr__(model, "source", "owner/base")
    monkeypatch.setattr(type(model), "encode", lambda self, prompt: [0, 0, 0])
    model.tokenizer.unk_token = model.tokenizer.convert_ids_to_tokens(0)
    with pytest.warns(AnchorwatchWarning, match="3 of the 3 tokens of the prompt are unknown"):
        run_study._warn_misfits(claims(CLAIM), budget, model)
