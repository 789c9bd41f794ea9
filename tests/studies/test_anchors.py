"""What is measured of anchors, by slower ways to the same numbers, and where a mask would deceive."""

from itertools import pairwise

import numpy as np
import pytest

from anchorwatch.metrics.layer_slices import iter_layers
from anchorwatch.metrics.sink_rules import zscore
from anchorwatch.studies.papers.floating.measures import (
    absorbed_beyond,
    anchor_drift,
    anchor_onsets,
    predicting_turnover,
    top_key_beyond,
)
from anchorwatch.trace.trace import Trace
from synthetic_traces import column, planted, random_maps, uniform
from tolerances import METRIC

LENGTH, STEPS = 24, 8


def of(maps, **more):
    return planted(maps, prompt=LENGTH - STEPS, **more)


def test_even_causal_attention_has_no_greatest_key_at_the_first_place():
    maps = uniform(STEPS, 1, 2, LENGTH, causal=True)
    maps[..., 5:, :] *= 0.9
    maps[..., 5:, 5] += 0.1
    (layer,) = iter_layers(of(maps, visibility="causal"))
    assert (layer.top_key()[0] == 0).all(), "by what it receives, it is the first"
    assert (top_key_beyond(layer) == 5).all()


def test_what_keys_absorb_beyond_even_attention_is_of_keys_chosen_so():
    maps = np.broadcast_to(column(LENGTH, 7, 0.6), (STEPS, 1, 2, LENGTH, LENGTH))
    (layer,) = iter_layers(of(maps))
    one, five, anchors = absorbed_beyond(layer, zscore())
    assert one == pytest.approx(np.full((STEPS, 2), 0.6 - 1 / LENGTH), abs=METRIC)
    assert anchors == pytest.approx(one, abs=METRIC)
    assert (five < one).all(), "the others are below an even share"
    even = absorbed_beyond(next(iter_layers(of(uniform(STEPS, 1, 2, LENGTH)))), zscore())
    assert np.abs(even).max() < 1e-3


def test_turnover_of_predicting_rows_is_that_of_sets():
    rng = np.random.default_rng(0)
    when = [-1] * (LENGTH - STEPS) + [0, 0, 1, 1, 1, 2, 3, 3]  # several commit at a step
    trace = of(random_maps(rng, (4, 2, 3, LENGTH)), committed_at=when)
    top = trace["commit_top_key"].values[..., 0]
    slow = []
    for layer in range(2):
        for head in range(3):
            sets = [set(top[layer, head, np.equal(when, step)].tolist()) for step in range(4)]
            slow += [1 - len(a & b) / len(a | b) for a, b in pairwise(sets)]
    assert predicting_turnover(trace) == pytest.approx(np.mean(slow))


def test_a_causal_model_whose_new_rows_all_look_elsewhere_moves_and_one_with_a_sink_does_not():
    """Its earlier rows never change, so that turnover of all rows would hardly see it."""
    maps = uniform(STEPS, 1, 1, LENGTH, causal=True)
    for row in range(LENGTH):
        maps[:, :, :, row] *= 0.1
        maps[:, :, :, row, row // 2] += 0.9
    still = uniform(STEPS, 1, 1, LENGTH, causal=True) * 0.1
    still[..., 0] += 0.9
    rows = [of(one, visibility="causal") for one in (maps, still)]
    assert [predicting_turnover(one) for one in rows] == pytest.approx([4 / 7, 0.0])


def test_drift_is_from_the_first_quarter_to_the_last():
    maps = np.stack([column(LENGTH, 2 + 2 * step, 0.9) for step in range(STEPS)])[:, None, None]
    (layer,) = iter_layers(of(maps))
    assert anchor_drift(layer) == pytest.approx((12 / LENGTH, 12 / LENGTH), abs=METRIC)
    (layer,) = iter_layers(of(np.broadcast_to(column(LENGTH, 3, 0.9), maps.shape)))
    assert anchor_drift(layer) == (0.0, 0.0)


def begins_at_each_commit():
    prompt = LENGTH - STEPS
    at = [0, *range(prompt, LENGTH - 1)]  # where a token was just committed
    return np.stack([column(LENGTH, key, 0.9) for key in at])[:, None, None]


def test_onsets_are_counted_where_something_was_just_committed():
    found = anchor_onsets(of(begins_at_each_commit()), zscore())
    assert found.fresh == 1.0
    assert found.keys == pytest.approx(1 / LENGTH)
    assert found.shuffled == pytest.approx(1 / (STEPS - 1))
    assert np.isnan(anchor_onsets(of(uniform(STEPS, 1, 1, LENGTH)), zscore()).fresh)


def test_end_tokens_are_no_onsets():
    trace = of(begins_at_each_commit())
    manifest = trace.manifest
    model = manifest["model"] | {"end_ids": trace.own[LENGTH - STEPS : LENGTH - 3].tolist()}
    found = anchor_onsets(Trace(trace.dataset(), manifest | {"model": model}), zscore())
    assert found.fresh == 1.0
    left = LENGTH - STEPS + 3
    assert found.keys == pytest.approx(1 / left)
