"""What is measured of anchors, by slower ways to the same numbers, and where a mask would deceive."""

from itertools import pairwise

import numpy as np
import pytest

from anchorwatch.metrics.layer_slices import iter_layers
from anchorwatch.metrics.sink_rules import zscore
from anchorwatch.studies.evidence import Evidence, TraceSet
from anchorwatch.studies.measure import MDM_RUNS
from anchorwatch.studies.papers.floating.measures import (
    absorbed_beyond,
    absorbed_by_layer,
    anchor_drift,
    anchor_onsets,
    map_anchor_counts,
    predicting_turnover,
    top_key_beyond,
    turnover_across_layers,
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
    assert anchor_drift(layer.shares()) == pytest.approx((12 / LENGTH, 12 / LENGTH), abs=METRIC)
    (layer,) = iter_layers(of(np.broadcast_to(column(LENGTH, 3, 0.9), maps.shape)))
    assert anchor_drift(layer.shares()) == (0.0, 0.0)


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
    ended = Trace(trace.dataset(), manifest | {"model": model})
    assert anchor_onsets(ended, zscore()) == anchor_onsets(trace, zscore()), "a commit like any"
    found = anchor_onsets(ended, zscore(), of_text=True)
    assert found.fresh == 1.0
    left = LENGTH - STEPS + 3
    assert found.keys == pytest.approx(1 / left)


def test_steps_before_which_only_end_tokens_were_committed_do_not_count():
    """There no onset could be a hit, whatever the model does."""
    trace = of(begins_at_each_commit())
    prompt = LENGTH - STEPS
    ends = trace.own[prompt : prompt + 4].tolist()  # the first four commits
    model = trace.manifest["model"] | {"end_ids": ends}
    maps = begins_at_each_commit()
    maps[:5] = column(LENGTH, 2, 0.9)  # elsewhere while only end tokens are written
    other = of(maps)
    ended = Trace(other.dataset(), other.manifest | {"model": model})
    assert anchor_onsets(ended, zscore(), of_text=True).fresh == 1.0


def test_anchors_of_layers_are_compared_with_their_neighbours():
    same = np.broadcast_to(column(LENGTH, 3, 0.9), (STEPS, 3, 2, LENGTH, LENGTH))
    assert turnover_across_layers(of(same)) == 0.0
    apart = np.array(same)
    apart[:, 1] = column(LENGTH, 5, 0.9)
    assert turnover_across_layers(of(apart)) == 1.0
    assert np.isnan(turnover_across_layers(of(same[:, :1])))


def test_the_head_mean_is_read_and_not_single_heads():
    """Two heads with sinks of their own: the mean map has two anchors, each head one."""
    maps = np.empty((STEPS, 1, 2, LENGTH, LENGTH))
    maps[:, :, 0], maps[:, :, 1] = column(LENGTH, 2, 0.9), column(LENGTH, 9, 0.8)
    evidence = Evidence.of({MDM_RUNS: TraceSet.from_traces([of(maps)] * 2)})
    assert map_anchor_counts(evidence, MDM_RUNS)[0, 0] == 2
    found = absorbed_by_layer(evidence, MDM_RUNS)["top1"][0, 0]
    assert found == pytest.approx((0.9 + 0.2 / (LENGTH - 1)) / 2 - 1 / LENGTH, abs=METRIC)
