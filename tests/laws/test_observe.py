"""`aw.observe`: a finished text is measured as a run would measure it, and nothing is written."""

from collections import Counter

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch.errors import AnchorwatchWarning, PromptError, SpecError
from anchorwatch.metrics.registry import measure_all
from anchorwatch.models.prompt_encoding import misfits

TEXT = "the anchor holds the ship"


@pytest.mark.parametrize(
    "name", ["tiny/llada", "tiny/dream", "tiny/arm", "tiny/bert", "lab/toy-sink"]
)
def test_nothing_is_written(name, tmp_path):
    model = aw.load(name)
    trace = aw.observe(model, TEXT)
    assert trace.num_steps == 1
    assert (trace.canvas == model.encode(TEXT)).all()
    assert (trace.committed_at == -1).all()
    assert (trace.progress == 1).all()
    assert trace.num_left_masked == 0
    assert aw.read(trace.write(tmp_path / "text.trace")).digest() == trace.digest()


def test_it_is_what_a_run_sees_of_the_same_canvas():
    """The last step of a run of a mask reads the canvas that an observation of it reads."""
    model = aw.load("tiny/llada")
    ids = model.encode(TEXT)
    ids[2] = model.mask_id
    probe = aw.probes.received(groups=("all", "masked"), dtype="float32")
    ran = aw.run(model, canvas=ids, probes=[probe])
    seen = aw.observe(model, ids, probes=[probe])
    assert np.array_equal(ran["received"].values[0], seen["received"].values[0])
    assert seen.num_left_masked == 1


def test_it_can_be_replayed_and_measured():
    model = aw.load("lab/toy-mdm")
    trace = aw.observe(model, TEXT, regions={"ship": "the ship"})
    again = aw.replay(model, trace, [aw.probes.received()])
    assert np.array_equal(again["received"].values, trace["received"].values, equal_nan=True)
    assert len(measure_all([trace])["sinks"]) > 0


def test_edits_act_on_it():
    model = aw.load("tiny/llada")
    hidden = aw.observe(model, TEXT, edits=[aw.edits.hide_keys([0])])
    assert (hidden["received"].sel(group="all").values[..., 0] == 0).all()


def test_what_it_refuses():
    model = aw.load("tiny/llada")
    with pytest.raises(SpecError, match=r"say aw.observe\(model, text\)"):
        aw.run(model, TEXT, aw.decoding.Observe(length=4))
    with pytest.raises(PromptError, match="give the prompt as text"):
        aw.run(model, [1, 2], chat=True)


def test_chat_is_the_template():
    model = aw.load("lab/toy-mdm")
    writes = aw.decoding.LowConfidence(length=4, steps=2)
    message = [{"role": "user", "content": TEXT}]
    asked = aw.run(model, message, writes, probes=())
    assert aw.run(model, TEXT, writes, chat=True, probes=()).digest() == asked.digest()
    assert aw.run_many(model, [TEXT], writes, chat=True, probes=())[0].digest() == asked.digest()


class _Tokenizer:
    unk_token_id, chat_template = 3, "{{ messages }}"


def test_prompts_that_do_not_fit_are_named_with_what_helps():
    unknown = misfits("x y z", [3, 3, 5], _Tokenizer(), "owner/Some-8B-Base")
    assert len(unknown) == 1 and "2 of the 3 tokens" in unknown[0] and "load another" in unknown[0]
    plain = misfits("x y z", [4, 3, 5], _Tokenizer(), "GSAI-ML/LLaDA-8B-Instruct")
    assert len(plain) == 1 and "chat=True" in plain[0]
    assert misfits([4, 3], [4, 3], _Tokenizer(), "GSAI-ML/LLaDA-8B-Instruct") == []
    assert misfits("x", [4], _Tokenizer(), "owner/with-italics") == []
    assert misfits("x", [3], None, "tiny/llada") == []


@pytest.mark.parametrize(
    ("source", "chat"),
    [
        ("inclusionAI/LLaDA2.0-mini", True),
        ("GSAI-ML/LLaDA-1.5", True),
        ("/cache/models--GSAI-ML--LLaDA-8B-Instruct/snapshots/0a1b2c", True),
        ("/cache/models--GSAI-ML--LLaDA-8B-Base/snapshots/0a1b2c", False),
        ("Dream-org/Dream-v0-Base-7B", False),
    ],
)
def test_a_chat_model_is_known_by_its_name(source, chat):
    assert bool(misfits("x y z", [4, 3, 5], _Tokenizer(), source)) is chat


def test_a_run_warns_of_them(monkeypatch):
    model = aw.load("lab/toy-mdm")
    text = "anchor " * 8
    common = Counter(model.encode(text)).most_common(1)[0][0]
    monkeypatch.setattr(type(model.tokenizer), "unk_token_id", common, raising=False)
    with pytest.warns(AnchorwatchWarning, match="unknown to the tokenizer"):
        aw.run(model, text, aw.decoding.LowConfidence(2), probes=())


def test_each_text_counts_as_a_prompt_of_its_own():
    model = aw.load("tiny/llada")
    texts = [TEXT, "the ship drifts", "a rope", "a chain", "the sea is calm"]
    traces = [aw.observe(model, text) for text in (*texts, TEXT)]
    table = aw.metrics.sinks(traces, aw.rules.rulli(eps=2))
    assert (table["n"] == len(texts)).all(), "the text that was given twice is one prompt"
    assert table["low"].notna().any()
