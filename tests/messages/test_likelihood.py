"""Likelihoods that cannot be had are refused before the weights are touched."""

from unittest import mock

import pytest

import anchorwatch as aw
from anchorwatch.errors import PromptError, SpecError
from anchorwatch.evaluation import loglikelihood, loglikelihoods
from strategies import load

E = aw.edits
PROMPT, ANSWER = [310, 320, 330], [400, 401]
MASK = load("tiny/llada").mask_id


def refused(name, error, says, prompt=PROMPT, answer=ANSWER, **options):
    model = load(name)
    touched = mock.Mock(side_effect=AssertionError("touched"))
    with (
        mock.patch.multiple(type(model), logits=touched, extend=touched),
        pytest.raises(error, match=says),
    ):
        loglikelihood(model, prompt, answer, **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "guess"}, "expected one of counts, monte_carlo, inverse_t, chain, pseudo"),
        ({"method": "exact", "passes": 2}, r"2\*\*2 - 1 passes, .* or method='counts'"),
        ({"passes": 0}, "passes=0 is not a whole number of at least 1"),
        ({"passes": True}, "passes=True is not a whole number"),
        ({"batch": 0}, "batch=0 is not a whole number of at least 1"),
        ({"guidance": -1.0}, "guidance=-1.0 is not a finite number of at least 0"),
        ({"guidance": "1"}, "guidance='1' is not a finite number"),
        ({"seed": -1}, "seed=-1 is not a whole number from 0"),
        ({"edits": E.no_op()}, "edits is a list of values"),
        ({"edits": [E.hide_keys([0], steps=[1])]}, r"leave steps out, or say progress="),
        ({"edits": [E.hide_sinks(1)]}, "use detect='same_shadow'"),
        ({"edits": [E.hide_keys([5])]}, "this run has positions 0 to 4"),
        ({"edits": [E.swap_token(0, 7)]}, "a likelihood writes nothing: give the prompt"),
        ({"edits": [E.freeze_canvas()]}, "a likelihood writes nothing: give the prompt"),
        ({"edits": [E.sink_token(steps=[0])]}, "say progress="),
        ({"edits": [E.sink_token(embedding=[1.0, 2.0])]}, r"this network takes \[1, "),
    ],
)
def test_what_cannot_be_asked_of_a_diffusion_model(options, says):
    refused("tiny/llada", SpecError, says, **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "counts"}, "knows its likelihood in one pass: leave method out"),
        ({"guidance": 1.0}, "cannot mask its prompt: leave guidance out"),
        ({"edits": [E.hide_keys([0], progress=(0.0, 0.5))]}, "leave progress out"),
        ({"edits": [E.register()]}, "a register is a sink token there: use sink_token"),
        ({"edits": [E.sink_token(position="end")]}, "sees no end: use position='front'"),
    ],
)
def test_what_cannot_be_asked_of_an_autoregressive_one(options, says):
    refused("tiny/arm", SpecError, says, **options)


@pytest.mark.parametrize(
    ("prompt", "answer", "says"),
    [
        (PROMPT, [], "the answer is empty: give text or at least one token id"),
        (PROMPT, "", "the answer is empty"),
        (PROMPT, [400, MASK], f"the answer holds the mask id {MASK}"),
        (PROMPT, [400, 10**6], "outside the vocabulary"),
        (PROMPT * 200, ANSWER, "take 602 positions and tiny/llada was made for 512: shorten"),
        ("the anchor", "s", "begin the answer with the space that stands before it"),
        (3, ANSWER, "a prompt is text, a list of token ids"),
    ],
)
def test_prompts_and_answers_that_are_none(prompt, answer, says):
    refused("tiny/llada", PromptError, says, prompt, answer)


def test_many_are_a_list_of_pairs_and_the_wrong_one_is_named():
    model = load("tiny/llada")
    with pytest.raises(PromptError, match=r"give \[\(prompt, answer\)\]"):
        loglikelihoods(model, "the anchor")
    with pytest.raises(PromptError, match=r"item 1 is not \(prompt, answer\)"):
        loglikelihoods(model, [(PROMPT, ANSWER), PROMPT])
    with pytest.raises(PromptError, match="item 1: prompt and answer take 602 positions"):
        loglikelihoods(model, [(PROMPT, ANSWER), (PROMPT * 200, ANSWER)])
    assert loglikelihoods(model, []) == []


def test_seeds_are_as_many_as_prompts():
    with pytest.raises(SpecError, match="there are 2 prompts and 1 seeds: give one for each"):
        aw.run_many(load("tiny/llada"), [PROMPT, PROMPT], seed=[3])
