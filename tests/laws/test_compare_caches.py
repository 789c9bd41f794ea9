"""Drift of keys and values, and cached runs beside exact ones, against the obvious computation."""

import numpy as np
import pytest
import torch

import anchorwatch as aw
import tolerances
from anchorwatch.errors import SpecError
from anchorwatch.evaluation.compare_caches import QUANTITIES
from anchorwatch.generation.decoding import DreamOrder, LeftToRight, LowConfidence
from anchorwatch.models.attention import use_kept_keys
from strategies import load

PROMPT = [5, 6, 7, 8, 9, 10]


def keys_of(model, frame):
    """[layer, kv_head, position, channel] keys of a whole pass over a frame."""
    kept = []

    class Keep:
        def complete(self, query, key, value, scale):
            kept.append(key[0])
            return key, value, None

    with use_kept_keys(Keep()):
        model.logits(torch.tensor(frame).long())
    return torch.stack(kept)


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream"])
def test_drift_is_the_change_of_each_key(name):
    model = load(name)
    trace = aw.run(model, PROMPT, LowConfidence(4), probes=[aw.probes.drift()])
    drift = trace["key_drift"].values
    assert drift.shape == (4, model.num_layers, model.num_kv_heads, 10)
    assert np.isnan(drift[0]).all() and not np.isnan(drift[1:]).any()
    for step in (1, 3):
        then, now = (keys_of(model, trace.canvas[frame]) for frame in (step - 1, step))
        obvious = ((now - then).norm(dim=-1) / then.norm(dim=-1)).numpy()
        np.testing.assert_allclose(drift[step], obvious, atol=tolerances.NORM)
    # In the first layer a key depends on its own token alone: committed ones change.
    moved = (drift[1:, 0] > 0).any(axis=1)
    np.testing.assert_array_equal(moved, trace.canvas[:-2] != trace.canvas[1:-1])


def test_rows_that_a_cache_kept_have_no_drift():
    decoding = LowConfidence(8, block=4, cache=aw.caches.dual())
    trace = aw.run(load("tiny/llada"), PROMPT, decoding, probes=[aw.probes.drift()])
    known = ~np.isnan(trace["key_drift"].values[:, 0, 0])
    assert not known[0].any()
    np.testing.assert_array_equal(known[1:], trace["row_computed"].values[1:] == 1)


def test_keys_of_autoregression_never_drift():
    trace = aw.run(load("tiny/arm"), PROMPT, LeftToRight(4, stop=False), probes=[aw.probes.drift()])
    drift = trace["value_drift"].values
    for step in range(1, 4):
        assert (drift[step, :, :, : 6 + step - 1] == 0).all()
        assert np.isnan(drift[step, :, :, 6 + step - 1 :]).all()


def test_a_cache_that_keeps_nothing_changes_nothing():
    table = aw.compare_caches(
        load("tiny/llada"), [PROMPT, PROMPT[:4]], LowConfidence(8, block=4), ["interval:1:1"]
    )
    assert table["quantity"].tolist() == list(QUANTITIES)
    np.testing.assert_array_equal(table["value"], table["null"])


def test_what_a_cache_changes_is_what_two_passes_say():
    model, decoding = load("tiny/llada"), LowConfidence(8, block=4)
    table = aw.compare_caches(model, [PROMPT], decoding, ["dual", aw.caches.prefix()])
    values = table.pivot(index="cache", columns="quantity", values="value")
    for word in ("dual", "prefix"):
        cached = aw.run(model, PROMPT, LowConfidence(8, block=4, cache=word), probes=())
        exact = aw.run(model, PROMPT, decoding, probes=())
        row = values.loc[word]
        answer = exact.answer
        changed = (cached.canvas[-1, answer] != exact.canvas[-1, answer]).mean()
        assert row["commits_changed"] == changed
        assert row["rows"] == cached.manifest["rows_computed"] / (8 * 14)
        assert row["passes"] == 1
        # The log-probability of what was committed, then and by a whole pass over the frame.
        apart = []
        for position in answer:
            step = cached.committed_at[position]
            frame = torch.tensor(cached.canvas[step]).long()
            token = cached.canvas[-1, position]
            apart.append(cached.logprob[position] - float(model.logprobs(frame)[position, token]))
        assert row["kl"] > 0 and np.abs(apart).max() > 0
        assert 0 < row["attention_error"] < 1 and 0 <= row["flips"] <= 1
    assert (values.loc["prefix", "rows"] > values.loc["dual", "rows"]).all()


def test_what_cannot_be_compared_is_refused():
    model = load("tiny/llada")
    cached = LowConfidence(8, cache="dual")
    with pytest.raises(SpecError, match="give the exact one, and the caches as a list"):
        aw.compare_caches(model, [PROMPT], cached, ["dual"])
    with pytest.raises(SpecError, match="use LowConfidence, RandomOrder or Threshold"):
        aw.compare_caches(model, [PROMPT], DreamOrder(8), ["dual"])
    with pytest.raises(SpecError, match="there is no cache to compare"):
        aw.compare_caches(model, [PROMPT], LowConfidence(8), [])
