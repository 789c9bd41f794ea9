"""Wrong input never reaches the weights: one line that says what would have worked."""

import numpy as np
import pytest
import torch

import anchorwatch as aw
from anchorwatch.errors import AnchorwatchError, PromptError, SpecError
from anchorwatch.models import prompt_encoding
from strategies import load

D = aw.decoding


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: D.LowConfidence(8, 0), "steps=0 is not a whole number of at least 1"),
        (lambda: D.LowConfidence(0), "length=0 is not a whole number"),
        (lambda: D.LowConfidence(True), "length=True is not a whole number"),
        (lambda: D.LowConfidence(8.5), "length=8.5 is not a whole number"),
        (
            lambda: D.LowConfidence(16, block=5),
            "does not divide length=16: use one of 1, 2, 4, 8, 16",
        ),
        (lambda: D.LowConfidence(16, 5, block=8), "use a multiple of 2, for example 4"),
        (lambda: D.LowConfidence(8, temperature=float("nan")), "temperature=nan is not a finite"),
        (lambda: D.LowConfidence(8, temperature=-1), "at least 0"),
        (lambda: D.LowConfidence(8, temperature="hot"), "temperature='hot' is not a finite number"),
        (lambda: D.LowConfidence(8, guidance=float("inf")), "guidance=inf is not a finite number"),
        (lambda: D.RandomOrder(8, defer_end=True), "use LowConfidence"),
        (lambda: D.DreamOrder(8, algorithm="best"), "expected one of origin, maskgit_plus"),
        (lambda: D.DreamOrder(8, eps=1.0), "above 0 and below 1"),
        (lambda: D.DreamOrder(8, top_p=0.0), "above 0 and at most 1"),
        (lambda: D.DreamOrder(8, top_k=0), "top_k=0 is not a whole number"),
        (lambda: D.Threshold(8, threshold=1.5), "at most 1"),
        (lambda: D.LowConfidence(8, temperature=1e-40), "too cold to divide by: use 0"),
        (lambda: D.DreamOrder(8, algorithm_temperature=1e-9), "too cold to divide by"),
    ],
)
def test_decodings_refuse_the_impossible(make, says):
    with pytest.raises(SpecError, match=says):
        make()


def test_unknown_fields_name_the_known_ones():
    with pytest.raises(SpecError, match="LeftToRight has no steps: it takes cache, length"):
        D.from_dict({"name": "LeftToRight", "steps": 3})
    with pytest.raises(SpecError, match="expected one of LowConfidence, RandomOrder"):
        D.from_dict({"name": "Beam"})


@pytest.fixture
def untouched(monkeypatch):
    """An embedded denoiser whose weights raise when they are used."""
    model = load("tiny/llada")

    def forward(*_, **__):
        raise AssertionError("wrong input reached the weights")

    monkeypatch.setattr(model.network, "forward", forward)
    return model


WRONG = [
    ("", {}, "the prompt is empty"),
    ([], {}, "the prompt is empty"),
    ([5, 9999], {}, "token id 9999 is outside the vocabulary of tiny/llada: ids run from 0 to"),
    ([5, -1], {}, "token id -1 is outside the vocabulary"),
    (["a", "b"], {}, "a prompt is text, a list of token ids, or a list of"),
    ([1.5, 2.5], {}, "a prompt is text, a list of token ids"),
    ([True, False], {}, "a prompt is text, a list of token ids"),
    ([10, 3, 11], {}, r"holds the mask id 3 at position 1: .* infill it with canvas=ids"),
    ("the <|mask|> drifts", {}, "infill it with canvas=ids"),
    ("a lone \ud800 surrogate", {}, "lone surrogate at character 7"),
    (
        list(range(10, 500)) * 2,
        {},
        "was made for 512: shorten the prompt$",
    ),
    (list(range(10, 500)), {}, "set length to at most 22"),
    (5, {}, "a prompt is text, .*: got int"),
    (b"the", {}, "a prompt is text, .*: got bytes"),
    ([{"role": "user"}], {}, "message 0 needs 'role' and 'content'"),
    ([{"role": "user", "content": "a\ud800"}], {}, "message 0 has a lone surrogate at character 1"),
    ("the", {"seed": -1}, "seed=-1 is not a whole number from 0"),
    ("the", {"seed": 0.5}, "seed=0.5 is not a whole number"),
    ("the", {"decoding": "low"}, "is not one of aw.decoding"),
    ("the", {"decoding": D.LowConfidence()}, "the decoding has no length"),
    ("the", {"decoding": D.LeftToRight(4)}, r"LowConfidence\(length=..., block=1\)"),
    (None, {}, "give either a prompt"),
    ("the", {"canvas": [3]}, "give either a prompt"),
    (None, {"canvas": [10, 11]}, "no masked position: put the mask id 3"),
    (None, {"canvas": "the <|mask|>"}, "a canvas is token ids"),
    (
        None,
        {"canvas": [3, 3], "decoding": D.LowConfidence(5)},
        "writes length=5 positions, but the canvas has 2 masked",
    ),
]


@pytest.mark.parametrize(("prompt", "options", "says"), WRONG)
def test_wrong_input_never_reaches_the_weights(untouched, prompt, options, says):
    options = {"decoding": D.LowConfidence(64)} | options
    if options.get("canvas") is not None and options["decoding"].length == 64:
        options["decoding"] = D.LowConfidence()
    with pytest.raises(AnchorwatchError, match=says) as error:
        aw.run(untouched, prompt, **options)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, ValueError)


def test_autoregressive_models_say_what_they_take():
    model = load("tiny/arm")
    with pytest.raises(SpecError, match=r"use LeftToRight\(length=...\)"):
        aw.run(model, "the", D.LowConfidence(4))
    with pytest.raises(PromptError, match="cannot infill a canvas"):
        aw.run(model, canvas=[5, 3])
    with pytest.raises(SpecError, match="has no mask token"):
        _ = model.mask_id


def test_models_without_a_tokenizer_ask_for_ids(tmp_path):
    from checkpoints import write_llada

    model = aw.load(write_llada(tmp_path / "m")[0])
    with pytest.raises(
        PromptError, match="has no tokenizer, so text cannot be read: give token ids"
    ):
        aw.run(model, "the anchor", D.LowConfidence(4))


def test_messages_need_a_chat_template():
    model = load("tiny/llada")
    template = model.tokenizer.chat_template
    try:
        model.tokenizer.chat_template = None
        with pytest.raises(PromptError, match="no chat template: give the prompt as text"):
            model.encode([{"role": "user", "content": "hello"}])
    finally:
        model.tokenizer.chat_template = template


@pytest.mark.parametrize(
    ("canvas", "says"),
    [
        (torch.tensor([0.5]), "whole token ids"),
        (torch.zeros(2, 2, 2, dtype=torch.long), r"got torch.int64 of shape \[2, 2, 2\]"),
        ([], "whole token ids"),
        ([9999], "outside the vocabulary"),
        (list(range(10, 500)) * 2, "was made for 512"),
    ],
)
def test_logprobs_refuse_what_is_no_canvas(untouched, canvas, says):
    with pytest.raises(PromptError, match=says):
        untouched.logprobs(canvas)


def test_attendable_of_a_wrong_shape(untouched):
    with pytest.raises(
        SpecError, match=r"shape \[4\]: expected \[..., 3\] .keys. or \[..., 3, 3\]"
    ):
        untouched.logprobs([5, 6, 7], torch.ones(4, dtype=torch.bool))


def test_numpy_and_torch_ids_are_ids():
    model = load("tiny/llada")
    ids = [10, 20, 30]
    expected = aw.run(model, ids, D.LowConfidence(3)).digest()
    assert aw.run(model, np.array(ids), D.LowConfidence(3)).digest() == expected
    assert aw.run(model, torch.tensor(ids), D.LowConfidence(3)).digest() == expected


def test_batches_are_whole_numbers_of_lists():
    for batch in (0, 2.5, True):
        with pytest.raises(SpecError, match=f"batch={batch}"):
            aw.run_many(load("tiny/llada"), ["the"], D.LowConfidence(3), batch=batch)
    with pytest.raises(PromptError, match=r"takes a list of prompts: give \[prompt\]"):
        aw.run_many(load("tiny/llada"), "the anchor", D.LowConfidence(3))


def test_attendable_is_true_or_false(untouched):
    with pytest.raises(SpecError, match="not numbers to add"):
        untouched.logprobs([5, 6, 7], torch.tensor([0.0, -torch.inf, 0.0]))


def test_padding_leaves_a_token(untouched):
    with pytest.raises(SpecError, match="leaves a row without a token: expected 0 to 2"):
        untouched.logprobs([5, 6, 7], padding=3)


def test_absent_positions_are_explained(untouched):
    with pytest.raises(PromptError, match="-1 marks an absent position, cut the canvas there"):
        untouched.logprobs([5, 6, -1])


def test_forbidding_an_end_needs_one():
    from dataclasses import replace

    model = load("tiny/llada")
    endless = replace(model, specials=replace(model.specials, eos_ids=(), end_ids=()))
    for option in ("forbid_end", "defer_end"):
        with pytest.raises(SpecError, match=f"names no end token .*: leave {option} out"):
            aw.run(endless, "the", D.LowConfidence(3, **{option: True}))


ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "filters": "{% for a in range(9999) %}{% set x = range(99999)|map('string')|list %}{% endfor %}",
    "doubling": "{% set n = namespace(x='abcdefgh') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}"
    "{% endfor %}{{ n.x }}",
    "recursion": "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}",
}
REFUSED = {
    "{{ 9 ** 9 ** 9 }}": r"raises to a power",
    "{% set n = 9 %}{{ 'a' * (n * n) }}": "multiplies by a number it does not name",
    "{{ 'a'|center(10000000000) }}": "counts to 10000000000",
    "{{ '%9999999999d' % 1 }}": "pads a text to a width",
    "{{ '{:9999999999}'.format(1) }}": "pads a text to a width",
    "{% for": "cannot be read",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}": "cannot be read",
}


def _with_template(text):
    model = aw.load("tiny/llada")
    model.tokenizer.chat_template = text
    return model


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_chat_template_that_never_ends(kind, monkeypatch):
    monkeypatch.setattr(prompt_encoding, "MOST_STEPS", 100_000)
    monkeypatch.setattr(prompt_encoding, "MOST_BYTES", 32 << 20)
    model = _with_template(ENDLESS[kind])
    with pytest.raises(PromptError, match="the chat template does not take these messages: "):
        model.encode([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:20])
def test_a_chat_template_that_could_fill_the_memory_in_one_step(text):
    with pytest.raises(PromptError, match=f"the chat template {REFUSED[text]}"):
        _with_template(text).encode([{"role": "user", "content": "hi"}])


def test_an_ordinary_chat_template_is_rendered_as_ever():
    text = (
        "{%- for message in messages -%}{{ '<' ~ message.role ~ '>' }}{% generation %}"
        "{{ message.content }}{% endgeneration %}{{ '-' * 3 }}{% if loop.last %}{% break %}"
        "{% endif %}{%- endfor -%}{{ {'max': 1000}|tojson }}"
    )
    model = _with_template(text)
    talk = [{"role": "user", "content": "hi"}, {"role": "user", "content": "there"}]
    expected = model.tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
    assert model.encode(talk) == model.tokenizer(expected, add_special_tokens=False)["input_ids"]
