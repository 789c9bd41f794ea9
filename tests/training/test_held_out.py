"""Held-out numbers: the bound against its enumeration, paired noise, answers by exact match."""

import numpy as np
import pytest
import torch

import anchorwatch as aw
from anchorwatch.errors import SpecError
from anchorwatch.evaluation.synthetic import Item, Passage
from anchorwatch.training import answers, by_length, fit, nll_bound
from anchorwatch.training.held_out import nll_by_position
from references.bounds import over_orders
from tolerances import METRIC, SAME_MATHS, SHUFFLED
from toy_texts import MASK, WORDS, Text, Texts, fields, tokenizer


def trained(out, **differs):
    return aw.load(fit(fields(**differs), out, corpus=Texts(), tokenizer=tokenizer()).model)


@pytest.fixture(scope="module")
def mdm(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("mdm") / "run", updates=40)


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arm") / "run"
    return trained(folder, updates=40, objective={"name": "next_token"})


class One:
    """One text, again and again."""

    digest = "one"

    def __init__(self, text):
        self.text = text

    def __getitem__(self, index):
        return self.text

    def describe(self):
        return {}


def test_the_bound_of_a_short_answer_is_the_mean_over_orders(mdm):
    ids = Texts(ragged=False)[3].ids
    answer = (4, 9, 15)

    def cost(masked, at):
        canvas = torch.from_numpy(ids.copy())
        canvas[list(masked)] = MASK
        return -float(mdm.logprobs(canvas)[at, ids[at]])

    text = Text(ids, np.isin(np.arange(len(ids)), answer))
    held = nll_bound(mdm, One(text), examples=512, draws=4, answer_only=True)
    assert held.scored.tolist() == [3] * 512
    expected = over_orders(cost, answer) / len(answer)
    assert held.value == pytest.approx(expected, rel=SHUFFLED)


def test_an_autoregressive_cost_is_exact(arm):
    held = nll_bound(arm, Texts(), examples=5)
    for index in range(5):
        ids = torch.from_numpy(Texts()[index].ids)
        rows = arm.logprobs(ids)[1:].gather(-1, ids[1:, None])
        assert held.sequences[index] == pytest.approx(-float(rows.mean()), abs=SAME_MATHS)
    assert np.isnan(held.t).all()
    assert held.scored.tolist() == [len(Texts()[i].ids) - 1 for i in range(5)]


def test_noise_is_shared_by_arms_and_batches(mdm, tmp_path):
    other = trained(tmp_path / "run", updates=5, variant=["gate"])
    one, two = nll_bound(mdm, Texts(), examples=24), nll_bound(other, Texts(), examples=24)
    assert np.array_equal(one.t, two.t)
    assert np.array_equal(one.masked, two.masked)
    assert not np.allclose(one.nats, two.nats)
    again = nll_bound(mdm, Texts(), examples=24, batch=5)
    assert np.array_equal(again.masked, one.masked)
    assert np.allclose(again.nats, one.nats, rtol=SAME_MATHS)


def test_slices_of_t_average_to_the_bound(mdm):
    held = nll_bound(mdm, Texts(ragged=False), examples=40, draws=2)
    table = held.by_time(bins=4)
    assert table["n"].tolist() == [20, 20, 20, 20]
    assert table["value"].mean() == pytest.approx(held.value, rel=METRIC)
    assert (table["null"] == np.log(WORDS)).all()
    wide = held.by_time(bins=400)
    assert wide["value"].isna().sum() == (wide["n"] == 0).sum() > 0  # absent is not zero


def test_parts_by_position_add_up_to_the_bound(mdm):
    held = nll_bound(mdm, Texts(), examples=24, draws=2)
    table = nll_by_position(mdm, Texts(), (0, 4, 10), examples=24, draws=2, batch=7)
    assert table["part"].sum() == pytest.approx(held.value, rel=SAME_MATHS)
    assert table["n"].sum() == held.scored.sum()
    assert (table["value"] * table["n"]).sum() == pytest.approx(
        held.value * held.scored.sum(), rel=SAME_MATHS
    )


def test_parts_by_position_are_of_their_positions(mdm):
    ids = Texts(ragged=False)[3].ids
    first = One(Text(ids[:4], np.ones(4, dtype=bool)))
    whole = nll_by_position(mdm, first, (0, 4), examples=8)
    assert whole["value"].iloc[0] == pytest.approx(nll_bound(mdm, first, examples=8).value)
    assert np.isnan(whole["value"].iloc[1])  # no token stands there: absent is not zero
    assert whole["n"].tolist() == [32, 0]


def test_parts_by_position_need_masks_and_growing_edges(mdm, arm):
    with pytest.raises(SpecError, match="use nll_bound"):
        nll_by_position(arm, Texts(), (0, 4))
    for edges in ((), (1, 4), (0, 4, 4)):
        with pytest.raises(SpecError, match="expected growing positions from 0"):
            nll_by_position(mdm, Texts(), edges)


def test_lengths_are_cut_and_named(mdm):
    table = by_length(mdm, Texts(), [4, 8, 16], examples=12)
    assert table["length"].tolist() == [4, 8, 16]
    whole = nll_bound(mdm, Texts(), examples=12)
    assert table["value"].iloc[-1] == whole.value
    assert table["value"].nunique() == 3


@pytest.mark.parametrize(
    ("kind", "length", "said"),
    [
        ("mdm", 17, "length 17 cannot be measured: the model has 16 positions"),
        ("mdm", 0, "length=0 leaves nothing to score: expected 1 or more"),
        ("arm", 1, "length=1 leaves nothing to score: expected 2 or more"),
    ],
)
def test_a_length_that_is_not_measured_is_not_in_the_table(kind, length, said, request):
    with pytest.raises(SpecError, match=said):
        by_length(request.getfixturevalue(kind), Texts(), [4, length], examples=4)


def test_texts_that_are_too_short_have_no_length(mdm):
    with pytest.raises(SpecError, match="and the longest of the 4 texts 8 tokens"):
        by_length(mdm, Texts(length=8), [8, 16], examples=4)


def item(question, answer):
    return Item(question, (answer,), (Passage("w9 w8", gold=True, rivals=("w8",)),), {})


class Planted:
    """`aw.run_many` whose traces say what is planted: the answer, an end, and rubbish after it."""

    def __init__(self, model, said):
        self.model, self.said, self.prompts = model, said, []

    def __call__(self, model, prompts, decoding, *, probes, batch):
        self.prompts += prompts
        return [self.trace(words) for words in self.said]

    def trace(self, words):
        class Trace:
            answer = np.arange(2, 2 + len(words))
            canvas = np.array([[6, 7, *words]])

        return Trace()


@pytest.mark.parametrize("book", ["open", "closed"])
def test_answers_end_at_the_first_end_token(mdm, monkeypatch, book):
    from anchorwatch.training import held_out

    w = {name: mdm.tokenizer.convert_tokens_to_ids(name) for name in ("w1", "w2", "w3")}
    end = mdm.specials.end_ids[0]
    planted = Planted(mdm, [[w["w1"], end, w["w2"]], [w["w3"], end, end]])
    monkeypatch.setattr(held_out, "run_many", planted)
    table = answers(mdm, [item("q1", "w1"), item("q2", "w2")], book=book)
    assert table["said"].tolist() == ["w1", "w3"]
    assert table["right"].tolist() == [1.0, 0.0]
    assert (table["null"] == 0.5).all() if book == "open" else table["null"].isna().all()
    assert all(("Passage" in prompt) == (book == "open") for prompt in planted.prompts)


@pytest.mark.parametrize("kind", ["mdm", "arm"])
def test_real_runs_answer_too(kind, request):
    model = request.getfixturevalue(kind)
    table = answers(model, [item("w1", "w1"), item("w2 w3", "w2")], length=3)
    assert len(table) == 2
    assert set(table["right"]) <= {0.0, 1.0}


def test_old_names_work_and_warn():
    from anchorwatch import training
    from anchorwatch.training import corpora

    for old, new in (("bound", "nll_bound"), ("Bound", "NLLBound")):
        with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
            assert getattr(training, old) is getattr(training, new)
    with pytest.warns(DeprecationWarning, match="measured is now measure_model"):
        assert aw.lab.measured is aw.lab.measure_model
    with pytest.warns(DeprecationWarning, match="attended is now join_attention"):
        assert aw.evaluation.attended is aw.evaluation.join_attention
    with pytest.warns(DeprecationWarning, match="read is now"):
        assert corpora.read is corpora.read_corpus
