"""Token classes: merged tokens, pieces of words, half characters, scripts, boilerplate, evidence."""

import json

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics.token_classes import (
    CLASSES,
    FUNCTION_WORDS,
    MEANING,
    STRUCTURE,
    classes,
    step_classes,
    token_names,
)
from anchorwatch.trace.trace import SPECIAL, Trace
from synthetic_traces import MASK_ID, planted, uniform


def told(texts, *, split=None, model=None, regions=None, prompt=None, frame=-1, **asked):
    """Class names of a canvas of these tokens; `split` maps places to bytes."""
    length = len(texts)
    trace = planted(
        uniform(1, 1, 1, length),
        prompt=length - 1 if prompt is None else prompt,
        texts=dict(enumerate(texts, 1)),
        regions=regions,
    )
    manifest = trace.manifest
    manifest["model"] |= model or {}
    manifest["token_bytes"] = {str(1 + at): raw.hex() for at, raw in (split or {}).items()}
    for key in manifest["token_bytes"]:
        manifest["tokens"][key] = bytes.fromhex(manifest["token_bytes"][key]).decode(
            "utf-8", "replace"
        )
    found = classes(Trace(trace.dataset(), manifest), frame, **asked)
    return [CLASSES[index] for index in found]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("\n", "newline"),
        (".\n\n", "newline"),  # a line break says more than a mark
        (" \r\n\t", "newline"),
        ("{\n", "newline"),
        (" ", "space"),
        ("\t  ", "space"),
        ("\u3000", "space"),  # the ideographic space
        ("\u200b", "space"),
        ("", "space"),
        (".", "punctuation"),
        (' ,"', "punctuation"),
        ("...", "punctuation"),
        (" --", "punctuation"),
        ("。", "punctuation"),
        ("，「", "punctuation"),
        ("=", "punctuation"),
        ("$", "punctuation"),
        ("^", "punctuation"),
        ("7", "digit"),
        (" 1999", "digit"),
        (".5", "digit"),
        ("１", "digit"),
        ("½", "digit"),
        (" the", "function word"),
        ("The", "function word"),
        (" of,", "function word"),
        (" anchor", "content"),
        ("anchor.\n", "content"),
        (" H2O", "content"),
        ("你", "content"),
        ("的", "content"),  # the list of function words is English
        ("😀", "content"),
        ("👍🏽", "content"),
        ("🏽", "content"),
        ("\u0301", "content"),
        ("\ufffd", "content"),
        ("</s>", "end"),
        ("<|endoftext|>", "end"),
        ("<|eot_id|>", "end"),
        ("<s>", "special"),
        ("<|start_header_id|>", "special"),
        ("[CLS]", "special"),
        ("<div>", "content"),
    ],
)
def test_one_token_alone(text, name):
    assert told([" anchor", "\n", text, "\n"])[2] == name


def test_every_class_is_of_one_kind():
    kinds = [*STRUCTURE, *MEANING, CLASSES.index("mask")]
    assert sorted(kinds) == list(range(len(CLASSES)))
    assert 120 <= len(FUNCTION_WORDS) <= 220


def test_pieces_of_a_word_have_the_class_of_the_word():
    assert told([" the", "ory", "."]) == ["content", "content", "punctuation"]
    assert told([" with", "out", " a"]) == ["function word"] * 3
    assert told([" is", "_valid", " is"]) == ["content", "content", "function word"]
    assert told([" a", "3", " a"]) == ["content", "digit", "function word"]
    assert told(["T", "h", "e", " ", "s", "ea"])[:3] == ["function word"] * 3


def test_byte_level_and_sentencepiece_texts_are_told_alike():
    """Decoded, both have the space in front of a word; only the first word may lack it."""
    byte_level = ["The", " anchor", " hold", "s", ",", " and", " the", " ship", ".\n", "It"]
    pieces = [" The", " anchor", " hold", "s", ",", " and", " the", " ship", ".", "\n", "It"]
    expected = ["function word", "content", "content", "content", "punctuation", "function word"]
    expected += ["function word", "content"]
    assert told(byte_level) == [*expected, "newline", "function word"]
    assert told(pieces) == [*expected, "punctuation", "newline", "function word"]


def test_shortened_words_are_function_words_and_owners_are_not():
    assert told([" don", "'t", " go"]) == ["function word", "function word", "content"]
    assert told([" ca", "n", "'t"]) == ["function word"] * 3
    assert told([" won", "’t", " won"]) == ["function word", "function word", "content"]
    assert told([" John", "'s", " ship"]) == ["content", "function word", "content"]
    assert told([" I", "'m", " it", "'ll"]) == ["function word"] * 4
    assert told([" o", "'clock", "'"]) == ["content", "content", "punctuation"]


def test_letters_whose_lower_case_is_longer_do_not_shift_the_rest():
    assert told([" İ", "'s", " the"]) == ["content", "function word", "function word"]


def test_half_characters_are_put_together():
    you, stop = "你".encode(), "。".encode()
    split = {1: you[:1], 2: you[1:] + stop[:2], 3: stop[2:]}
    assert told([" a", "", "", "", "\n"], split=split)[1:4] == ["content", "content", "punctuation"]
    split = {1: stop[:1], 2: stop[1:2], 3: stop[2:]}
    assert told([" a", "", "", "", "\n"], split=split)[1:4] == ["punctuation"] * 3
    assert told([" a", "", " b"], split={1: stop[:2]})[1] == "content"  # its end is not there
    assert told([" a", "", " b"], split={1: b" \xf0\x9f"})[1] == "content"
    grin = "😀".encode()
    assert told([" the", "", "", " b"], split={1: grin[:2], 2: grin[2:]})[:3] == [
        "function word",
        "content",
        "content",
    ]


def test_ids_decide_before_texts():
    texts = [" stop", " start", " word"]
    model = {"end_ids": [1], "special_ids": [1, 2]}
    assert told(texts, model=model) == ["end", "special", "content"]
    model = {"end_ids": [9], "special_ids": []}
    assert told(["<|endoftext|>", " a"], model=model)[0] == "special"  # it does not end this model


def test_traces_that_do_not_name_their_special_ids_go_by_role_and_text():
    trace = planted(uniform(1, 1, 1, 4), prompt=3, texts={1: "[INST]", 2: " a", 3: "[INST]"})
    dataset = trace.dataset().copy(deep=True)
    dataset["role"].values[:, 0] = SPECIAL
    found = classes(Trace(dataset, trace.manifest))
    assert [CLASSES[index] for index in found][:2] == ["special", "function word"]
    assert "special_ids" not in trace.manifest["model"]


def test_classes_are_of_the_canvas_at_the_frame():
    trace = planted(uniform(2, 1, 1, 4), prompt=2, texts={1: " the", 2: " un", 3: "do", 4: "."})
    history = [[CLASSES[i] for i in row] for row in step_classes(trace)]
    assert history[0] == ["function word", "content", "mask", "mask"]
    assert history[1] == ["function word", "content", "content", "mask"]  # "do" is part of undo
    last = [CLASSES[i] for i in classes(trace)]
    assert last == ["function word", "content", "content", "punctuation"]
    assert (classes(trace, 1) == step_classes(trace)[1]).all()


def test_absent_positions_have_no_class():
    maps = uniform(2, 1, 1, 4, causal=True)
    trace = planted(maps, prompt=2, visibility="causal", texts=dict(enumerate("abcd", 1)))
    assert step_classes(trace)[0].tolist()[2:] == [-1, -1]
    assert trace.manifest["model"]["mask_id"] is None
    assert MASK_ID not in trace.canvas


def test_boilerplate_is_found_in_the_spelled_prompt():
    texts = ["<s>", "Quest", "ion", ":", " who", "?\n", "Answer", ":\n", " Question", ":", " x"]
    found = told(texts, template=["Question:", "Answer"])
    assert found[:4] == ["special", "template", "template", "template"]
    assert found[4:8] == ["function word", "newline", "template", "newline"]
    assert found[8:10] == ["template", "template"]
    assert told(texts, template=["Answer:"])[6:8] == ["template", "template"]
    assert told(texts, template=["<s>Quest"])[:2] == ["special", "template"]
    assert "template" not in told(texts)


def test_boilerplate_is_not_found_in_what_the_run_wrote():
    texts = ["Question", ":", " Question", ":"]
    assert told(texts, prompt=2, template=["Question:"])[2:] == ["content", "punctuation"]


def test_boilerplate_may_be_a_region():
    found = told(["Read", ":", " anchors", " x"], regions={"frame": [0, 1]}, template=["frame"])
    assert found == ["template", "template", "content", "content"]


def test_evidence_is_the_content_of_its_region():
    texts = [" In", " 1912", " the", " ship", " sank", ".", " It", " was", " old"]
    found = told(texts, regions={"gold": [0, 1, 2, 3]}, evidence=["gold"])
    assert found[:4] == ["function word", "answer-bearing", "function word", "answer-bearing"]
    assert found[4:6] == ["content", "punctuation"]


def test_a_real_run_of_bytes_and_words():
    model = aw.load("tiny/llada")
    assert model.describe()["end_ids"] == list(model.specials.end_ids)
    trace = aw.run(model, "The anchor.\n你。", aw.decoding.LowConfidence(4), probes=())
    found = [CLASSES[i] for i in classes(trace, 0)]
    assert found[:4] == ["space", "function word", "function word", "function word"]
    assert found[4:7] == ["content", "punctuation", "newline"]
    assert found[7:13] == ["content"] * 3 + ["punctuation"] * 3
    assert found[13:] == ["mask"] * 4
    json.dumps(trace.manifest)
    assert token_names(trace)[int(trace.canvas[0, 7])] == "<0xE4>"


def test_what_cannot_be_asked_is_said():
    trace = planted(uniform(1, 1, 1, 3), prompt=2, regions={"gold": [0]})
    with pytest.raises(SpecError, match=r"frame 7 is not in the trace: it has 0 to 1"):
        classes(trace, 7)
    with pytest.raises(SpecError, match=r"template='Question:' is not a list: say \['Question:'\]"):
        classes(trace, template="Question:")
    with pytest.raises(SpecError, match=r"'Passage' stands in no prompt: .*or name a region: gold"):
        classes(trace, template=["Passage"])
    with pytest.raises(SpecError, match=r"'  ' stands in no prompt"):
        classes(trace, template=["  "])
    with pytest.raises(SpecError, match=r"no trace has the region 'silver'.*name a region: gold"):
        step_classes(trace, evidence=["silver"])
    manifest = trace.manifest
    manifest["model"]["tokenizer"] = None
    with pytest.raises(TraceError, match=r"planted was run without a tokenizer"):
        classes(Trace(trace.dataset(), manifest))


def test_many_frames_are_one_frame_after_another():
    generator = np.random.default_rng(0)
    texts = dict(enumerate(["a", " the", "ory", ".", "\n", " with", "out", "'s", "你", " x"], 1))
    ids = generator.integers(1, 11, 40)
    trace = planted(uniform(20, 1, 1, 40), prompt=20, tokens=ids, texts=texts)
    history = step_classes(trace)
    for frame in range(20):
        assert (history[frame] == classes(trace, frame)).all()
