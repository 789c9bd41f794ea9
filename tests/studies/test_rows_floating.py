"""Rows that claims about anchors rest on, against slower ways to the same numbers."""

import numpy as np
import pytest
import scipy.spatial.distance

import anchorwatch as aw
from anchorwatch.edits import knock_out
from anchorwatch.errors import EvidenceError
from anchorwatch.models.loading import load
from anchorwatch.studies import rows_floating as made
from anchorwatch.studies import sets
from anchorwatch.studies.reading import Reads, right
from anchorwatch.studies.rows import ROWS
from anchorwatch.trace import MASKED
from tolerances import METRIC


@pytest.fixture(scope="module")
def mdm():
    return load("tiny/llada")


@pytest.fixture(scope="module")
def arm():
    return load("tiny/arm")


def test_every_table_is_known():
    assert made.ROWS.items() <= ROWS.items()


def maps_at(model, unit, step):
    """[layer, head, query, key] of a step, and which positions are masked."""
    item = sets.ASKED[unit]
    trace = aw.run(
        model, item.prompt(), made._writes(model), probes=(aw.probes.pattern(steps=(step,)),)
    )
    shape = (model.num_layers, model.num_heads)
    maps = trace["pattern"].values.astype(np.float64)
    return maps.reshape(*shape, *maps.shape[1:]), trace.role[step] == MASKED


def test_masked_and_other_queries_are_split_head_by_head(mdm):
    rows = made.query_split(mdm, 1, {})
    assert [row["layer"] for row in rows] == list(range(mdm.num_layers))
    slow = []
    for step in (4, 8, 12):
        maps, masked = maps_at(mdm, 1, step)
        slow.append(
            [
                np.mean(
                    [
                        scipy.spatial.distance.jensenshannon(
                            head[masked].mean(axis=0), head[~masked].mean(axis=0), base=2
                        )
                        ** 2
                        for head in layer
                    ]
                )
                for layer in maps
            ]
        )
    assert [row["value"] for row in rows] == pytest.approx(np.mean(slow, axis=0), rel=METRIC)
    assert all(row["null"] >= 0 for row in rows)


def test_queries_that_are_alike_are_no_further_apart_than_by_chance():
    rng = np.random.default_rng(0)
    heads = rng.dirichlet(np.full(12, 5.0), size=(6, 40))
    masked = np.arange(40) < 16
    value, null, _ = made._apart(heads, masked, rng)
    assert value == pytest.approx(null, rel=0.3)
    heads[:, masked] = heads[:, masked][..., ::-1] ** 4
    heads /= heads.sum(axis=-1, keepdims=True)
    assert made._apart(heads, masked, rng)[0] > 2 * null


def test_gold_is_looked_at_in_each_place(mdm):
    rows = made.gold_places(mdm, 0, {})
    assert [row["place"] for row in rows] == ["first", "middle", "last"]
    assert all(row["lift"] > 0 for row in rows)
    assert len({round(row["lift"], 6) for row in rows}) == 3


def test_even_causal_attention_flows_into_the_first_token_and_even_open_attention_does_not(
    mdm, arm
):
    (causal,), (open_,) = made.first_rollout(arm, 0, {}), made.first_rollout(mdm, 0, {})
    positions = len(mdm.encode(sets.ASKED[0].prompt())) + made.LENGTH
    left = 2.0**-mdm.num_layers  # what half of each layer, the residual, leaves where it was
    assert open_["null"] == pytest.approx((1 - left) / positions, rel=METRIC)
    assert causal["null"] > 2 * open_["null"]
    assert all(0 <= row[name] <= 1 for row in (causal, open_) for name in row)


def test_retrieval_heads_are_taken_out_and_others_of_their_layers(mdm, monkeypatch):
    monkeypatch.setattr(made, "ITEMS", 2)
    monkeypatch.setitem(made._HEADS, mdm, ((0, 1), (1, 0)))
    rows = made.heads_out(mdm, 3, {})
    assert [row["item"] for row in rows] == [6, 7]
    for row in rows:
        item = sets.ASKED[row["item"]]
        trace = aw.run(
            mdm, item.prompt(), made._writes(mdm), probes=(), edits=[knock_out([(0, 1), (1, 0)])]
        )
        assert row["right_heads"] == right(trace, item)
        assert row["heads"] == 2


def test_a_model_that_writes_no_answers_has_no_retrieval_heads(mdm, monkeypatch):
    shape = (mdm.num_layers, mdm.num_heads)
    nothing = Reads(*[np.full(shape, np.nan)] * 3)
    monkeypatch.setattr(made, "reads", lambda _: nothing)
    monkeypatch.setattr(made, "FOUND_ON", 1)
    with pytest.raises(EvidenceError, match="a model that writes answers: tiny/llada wrote none"):
        made._retrieval_heads(mdm)


def test_heads_that_look_at_gold_are_found_and_at_most_half_of_a_layer(mdm, monkeypatch):
    scores = np.zeros((mdm.num_layers, mdm.num_heads))
    scores[0] = 1.0 + np.arange(mdm.num_heads)
    scores[1, 1] = 0.5
    monkeypatch.setattr(made, "reads", lambda _: Reads(scores, 0 * scores, scores))
    monkeypatch.setattr(made, "FOUND_ON", 1)
    monkeypatch.setattr(made, "SHARE_OUT", (mdm.num_heads // 2 + 1) / scores.size)
    best = range(mdm.num_heads - mdm.num_heads // 2, mdm.num_heads)
    assert made._retrieval_heads(mdm) == (*((0, head) for head in best), (1, 1))


def test_both_halves_are_hidden_against_others_of_their_kind(mdm, monkeypatch):
    monkeypatch.setattr(made, "LENGTH", 4)
    rows = {row["half"]: row for row in made.hidden_by_depth(mdm, 0, {})}
    assert set(rows) == {"shallow", "deep"}
    for row in rows.values():
        assert row["did"] == pytest.approx(
            row["difference"] - row["control_difference"], abs=METRIC
        )


def test_weights_at_the_same_places_tell_who_is_who(mdm, arm):
    one, again, other = (made.weights(model, 2, {}) for model in (mdm, load("tiny/llada"), arm))
    assert one == again
    assert [row["layer"] for row in one] == list(range(mdm.num_layers))
    assert one != other
    assert one[0]["held"] != made.weights(mdm, 3, {})[0]["held"]
