"""Rows that claims about anchors rest on, against slower ways to the same numbers."""

import numpy as np
import pytest
import scipy.spatial.distance

import anchorwatch as aw
from anchorwatch.edits.spec import knock_out, random_heads
from anchorwatch.errors import EvidenceError
from anchorwatch.generation.decoding import LowConfidence
from anchorwatch.models.load import load
from anchorwatch.studies import prompts
from anchorwatch.studies.evidence import EXPERIMENTS
from anchorwatch.studies.measure import PassageAttention, score_answer
from anchorwatch.studies.papers.floating import experiments as made
from anchorwatch.studies.protocols import DEFAULT_PROTOCOL
from anchorwatch.trace.trace import MASKED
from tolerances import METRIC


@pytest.fixture(scope="module")
def mdm():
    return load("tiny/llada")


@pytest.fixture(scope="module")
def arm():
    return load("tiny/arm")


def test_every_table_is_known():
    names = ("gold_looks", "first_rollout", "queries_rewritten", "hidden_in_halves", "heads_taken")
    assert {EXPERIMENTS[name].__module__ for name in (*names, "weights")} == {made.__name__}


def slow_between(before, after, queries, prompt):
    """Head by head, of [head, query, key] maps."""
    each = []
    for one, other in zip(before, after, strict=True):
        rows = [side[queries][:, :prompt].mean(axis=0) for side in (one, other)]
        anchors = np.zeros(prompt, dtype=bool)
        for row in rows:
            high = row > row.mean() + 3 * row.std()
            anchors |= high if high.any() else row == row.max()
        kept = [row[anchors] / row[anchors].sum() for row in rows]
        each.append(scipy.spatial.distance.jensenshannon(*kept, base=2) ** 2)
    return np.mean(each)


def test_positions_are_compared_with_themselves_before_they_were_written(mdm):
    rows = made.queries_rewritten(mdm, 1, {})
    assert [row["layer"] for row in rows] == list(range(mdm.num_layers))
    at, item = (4, 8, 12), prompts.QUESTION_SETS["asked"][1]
    probes = (aw.probes.pattern(steps=at),)
    how = LowConfidence(made.LENGTH, made.LENGTH, forbid_end=True)
    trace = aw.run(mdm, item.prompt(), how, probes=probes)
    held = trace["pattern"].values.astype(np.float64)
    maps = held.reshape(len(at), mdm.num_layers, mdm.num_heads, *held.shape[1:])
    prompt = int((trace.role[0] != MASKED).sum())
    slow = np.zeros(mdm.num_layers)
    for first in (0, 1):
        masked = [trace.role[at[first + later]] == MASKED for later in (0, 1)]
        wrote = np.flatnonzero(masked[0] & ~masked[1])
        assert len(wrote) == 4
        slow += [
            slow_between(*pair, wrote, prompt)
            for pair in zip(*maps[first : first + 2], strict=True)
        ]
    assert [row["value"] for row in rows] == pytest.approx(slow / 2, rel=METRIC, abs=METRIC)
    assert all(row["null"] >= 0 for row in rows)
    assert all(row["rewritten"] > 0 for row in rows), "another word stands there"


def test_other_words_are_of_the_prompt_and_none_is_the_one_that_was_written(mdm):
    item = prompts.QUESTION_SETS["asked"][2]
    trace = aw.run(mdm, item.prompt(), made._one_per_step(mdm), probes=())
    words = made._other_words(trace, trace.answer, np.random.default_rng(0))
    assert (words != trace.own[trace.answer]).all()
    given = set(trace.own[trace.role[0] != MASKED].tolist())
    assert set(words.tolist()) <= given - set(trace.manifest["model"]["special_ids"])


def test_attention_to_what_is_near_is_no_difference_of_queries():
    """Masked positions stand together: dealt out by chance, these would be far from alike."""
    queries, keys = 16, 60
    near = np.exp(-np.abs(np.arange(keys) - (keys + np.arange(queries))[:, None]) / 5)
    near = np.stack([near / near.sum(axis=1, keepdims=True)] * 2)
    masked = [np.arange(queries) >= 4, np.arange(queries) >= 8]
    value, null, elsewhere = made._divergence_when_written(
        [near, near], masked, np.random.default_rng(0)
    )
    assert (value, null, elsewhere) == (0.0, 0.0, 0.0)
    looks = near.copy()
    looks[:, 4:8] = looks[:, 4:8, ::-1]  # once written, they look at the other end
    value, null, elsewhere = made._divergence_when_written(
        [near, looks], masked, np.random.default_rng(0)
    )
    assert value > 0.5
    assert (null, elsewhere) == (0.0, 1.0)


def test_gold_is_looked_at_in_each_place(mdm):
    rows = made.gold_looks(mdm, 0, {})
    assert [row["place"] for row in rows] == ["first", "middle", "last"]
    assert all(row["lift"] > 0 for row in rows)
    assert {row["right"] for row in rows} <= {0.0, 1.0}
    assert len({round(row["lift"], 6) for row in rows}) == 3


def test_even_causal_attention_flows_into_the_first_token_and_even_open_attention_does_not(
    mdm, arm
):
    (causal,), (open_,) = made.first_rollout(arm, 0, {}), made.first_rollout(mdm, 0, {})
    positions = len(mdm.encode(prompts.QUESTION_SETS["asked"][0].prompt())) + made.LENGTH
    left = 2.0**-mdm.num_layers  # what half of each layer, the residual, leaves where it was
    even = (1 - left) / open_["null"]  # positions of all regions: an even share of what moves
    assert even == pytest.approx(round(even), rel=METRIC)
    assert even <= positions
    assert causal["null"] > 2 * open_["null"]
    assert all(0 <= row[name] <= 1 for row in (causal, open_) for name in row)


def test_retrieval_heads_are_taken_out_and_others_of_their_layers(mdm, monkeypatch):
    monkeypatch.setattr(made, "ITEMS", 2)
    monkeypatch.setitem(made._HEADS, mdm, ((0, 1), (1, 0)))
    rows = made.heads_taken(mdm, 3, {})
    assert [row["item"] for row in rows] == [6, 7]
    sizes = {"layers": mdm.num_layers, "per_layer": mdm.num_heads}
    for row in rows:
        item, own = prompts.QUESTION_SETS["own passage"][row["item"]], [(0, 1), (1, 0)]
        drawn = random_heads(own, **sizes, seed=row["item"])  # anew for each question
        for name, heads in (("heads", own), ("others", drawn)):
            edits = [knock_out(heads)]
            trace = aw.run(mdm, item.prompt(), made._answer_decoding(mdm), probes=(), edits=edits)
            assert row[f"right_{name}"] == score_answer(trace, item)
        assert row["heads"] == 2


def finds(monkeypatch, scores, share=1.0, is_right=1.0):
    """Heads as if every prompt had these scores, and was answered rightly or not."""
    monkeypatch.setattr(
        made, "read_passage_attention", lambda _: PassageAttention(scores, 0 * scores, scores)
    )
    monkeypatch.setattr(made, "score_answer", lambda *_: is_right)
    monkeypatch.setattr(made, "NUM_SEARCH_PROMPTS", 2)
    monkeypatch.setattr(made, "FEWEST_RIGHT", 2)
    monkeypatch.setattr(made, "SHARE_OF_HEADS", share)


def test_a_model_that_is_never_right_has_no_retrieval_heads(mdm, monkeypatch):
    finds(monkeypatch, np.ones((mdm.num_layers, mdm.num_heads)), is_right=0.0)
    with pytest.raises(EvidenceError, match="2 of 2 prompts at least: tiny/llada is right in 0"):
        made._retrieval_heads(mdm, DEFAULT_PROTOCOL)


def test_heads_that_look_at_other_passages_more_are_no_retrieval_heads(mdm, monkeypatch):
    finds(monkeypatch, np.full((mdm.num_layers, mdm.num_heads), -0.1), share=0.0)
    with pytest.raises(EvidenceError, match=r"2 heads that look more .* looks 0.100 less"):
        made._retrieval_heads(mdm, DEFAULT_PROTOCOL)


def test_heads_that_look_at_gold_are_found_and_at_most_half_of_a_layer(mdm, monkeypatch):
    scores = np.zeros((mdm.num_layers, mdm.num_heads))
    scores[0] = 1.0 + np.arange(mdm.num_heads)
    scores[1, 1] = 0.5
    finds(monkeypatch, scores, share=(mdm.num_heads // 2 + 1) / scores.size)
    best = range(mdm.num_heads - mdm.num_heads // 2, mdm.num_heads)
    assert made._retrieval_heads(mdm, DEFAULT_PROTOCOL) == (*((0, head) for head in best), (1, 1))


def test_both_halves_are_hidden_against_others_of_their_kind(mdm, monkeypatch):
    monkeypatch.setattr(made, "LENGTH", 4)
    rows = {row["half"]: row for row in made.hidden_in_halves(mdm, 0, {})}
    assert set(rows) == {"shallow", "deep"}
    for row in rows.values():
        assert row["did"] == pytest.approx(
            row["difference"] - row["control_difference"], abs=METRIC
        )
        assert row["hidden_keys_edited"] >= row["hidden_keys_control"] >= 0


def test_weights_at_the_same_places_tell_who_is_who(mdm, arm):
    one, again, other = (made.weights(model, 2, {}) for model in (mdm, load("tiny/llada"), arm))
    assert one == again
    assert [row["layer"] for row in one] == list(range(mdm.num_layers))
    assert one != other
    assert one[0]["held"] != made.weights(mdm, 3, {})[0]["held"]
