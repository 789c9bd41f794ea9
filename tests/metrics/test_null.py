"""Nulls: closed forms, a dense twin, and networks whose queries are zero and so indifferent."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import anchorwatch as aw
import checkpoints
import tolerances
from anchorwatch.metrics.layer_slices import iter_layers
from anchorwatch.metrics.null import _spans, uniform_attention
from checkpoints import MASK, network
from synthetic_traces import planted, uniform

IDS = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]


def zero_queries(model):
    """Attention of a network whose queries are zero is indifferent to its keys."""
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            if ".q_proj." in name or ".query." in name or ".q_lin." in name:
                parameter.zero_()
    return model


def dense(model, there, window, asks):
    """[key] by the obvious way: a map of who may look at whom, rows normalised."""
    q, k = np.arange(there)[:, None], np.arange(there)[None]
    seen = np.ones((there, there), dtype=bool)
    if model["visibility"] == "causal":
        seen &= k <= q
    if model["visibility"] == "block-causal":
        seen &= k // model["block"] <= q // model["block"]
    if window is not None:
        seen &= (k > q - window) if model["visibility"] == "causal" else abs(q - k) <= window
    rows = seen / seen.sum(-1, keepdims=True)
    return rows[asks].mean(0), seen[asks].mean(0)


@given(
    st.sampled_from(["bidirectional", "causal", "block-causal"]),
    st.integers(1, 24),
    st.one_of(st.none(), st.integers(1, 12)),
    st.integers(1, 6),
    st.integers(0, 2**32 - 1),
)
def test_spans_say_what_a_map_of_who_may_look_at_whom_says(visibility, there, window, block, seed):
    model = {"visibility": visibility, "block": block}
    first, last = _spans(model, there, window)
    asks = np.random.default_rng(seed).random(there) < 0.6
    asks[0] = True
    shares, seen = dense(model, there, window, asks)
    q = np.arange(there)
    inside = (q[None] >= first[:, None]) & (q[None] < last[:, None])
    rows = inside / inside.sum(-1, keepdims=True)
    np.testing.assert_allclose(rows[asks].mean(0), shares, atol=tolerances.EXACT)
    np.testing.assert_allclose(inside[asks].mean(0), seen, atol=tolerances.EXACT)


@pytest.mark.parametrize("length", [5, 28, 85, 256])
def test_uniform_causal_attention_has_the_harmonic_null(length):
    maps = uniform(1, 1, 1, length, causal=True)
    trace = planted(maps, prompt=length - 1, committed_at=[-1] * length, visibility="causal")
    null = uniform_attention(trace, ["all"]).shares[0, 0]
    harmonic = np.concatenate([[0], np.cumsum(1 / np.arange(1, length))])
    there = length - 1  # the last position is not written yet
    exact = (harmonic[there] - harmonic[:there]) / there
    np.testing.assert_allclose(null[:there], exact, atol=tolerances.EXACT)
    assert np.isnan(null[there])


def test_position_0_of_256_uniform_causal_queries_looks_like_a_sink_made_of_nothing():
    maps = uniform(1, 1, 1, 257, causal=True)
    trace = planted(maps, prompt=256, committed_at=[-1] * 257, visibility="causal")
    null = uniform_attention(trace, ["all"]).shares[0, 0]
    assert round(null[0] * 256, 1) == 6.1


def runs(tmp_path):
    """Models of every visibility, with the windows transformers gives them."""
    yield aw.load("tiny/llada"), aw.decoding.LowConfidence(6, 2)
    yield aw.load("tiny/dream"), aw.decoding.LowConfidence(6, 3)
    yield aw.load("tiny/bert"), aw.decoding.LowConfidence(6, 2)
    yield aw.load("tiny/arm"), aw.decoding.LeftToRight(5)
    yield aw.load("tiny/arm"), aw.decoding.LeftToRight(5, cache=False)
    network("mistral", sliding_window=4).save_pretrained(tmp_path / "window")
    yield aw.load(tmp_path / "window"), aw.decoding.LeftToRight(4, cache=False)
    yield aw.load(tmp_path / "window"), aw.decoding.LeftToRight(4)
    mixed = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
    network("qwen2", **mixed).save_pretrained(tmp_path / "mixed")
    yield aw.load(tmp_path / "mixed"), aw.decoding.LeftToRight(4, cache=False)
    config = network("qwen3", bidirectional=True, head_dim=8)
    held = config.config.to_dict() | {"architectures": ["SDARForCausalLM"], "block_size": 4}
    held |= {"model_type": "sdar", "mask_token_id": MASK}
    held.pop("is_causal", None)
    folder = checkpoints.write(tmp_path / "blocks", held, checkpoints.tensors_of(config))
    yield aw.load(folder), aw.decoding.LowConfidence(8, 2)
    # Other blocks than the model's, rows up to the open one, with and without the cache.
    for cache in (False, True):
        yield aw.load(folder), aw.decoding.BlockDiffusion(8, 2, block=6, cache=cache)


def test_the_null_is_what_a_network_with_zero_queries_does(tmp_path):
    groups = ["all", "masked", "written", "prompt"]
    probes = [aw.probes.received(groups=groups, dtype="float32")]
    for model, decoding in runs(tmp_path):
        trace = aw.run(zero_queries(model), IDS, decoding, probes=probes)
        for layer in iter_layers(trace):
            for group in layer.groups:
                shares = layer.shares(group)
                null = np.broadcast_to(layer.null(group), shares.shape)
                np.testing.assert_array_equal(np.isnan(shares), np.isnan(null))
                np.testing.assert_allclose(shares, null, atol=tolerances.SUMMED)


def test_a_window_on_both_sides_is_the_null_of_modernbert(tmp_path):
    made = network("modernbert", masked=True, local_attention=4, global_attn_every_n_layers=2)
    with torch.no_grad():  # one matrix holds q, k and v: its first third is q
        for name, parameter in made.named_parameters():
            if "Wqkv" in name:
                parameter[: parameter.shape[0] // 3] = 0
    made.save_pretrained(tmp_path / "m")
    model = aw.load(tmp_path / "m", mask_id=MASK)
    assert model.windows == [None, 2]
    canvas = [*IDS, MASK]
    exact = [aw.probes.received(dtype="float32")]
    trace = aw.run(model, canvas=canvas, decoding=aw.decoding.LowConfidence(steps=1), probes=exact)
    for layer in iter_layers(trace):
        null = np.broadcast_to(layer.null(), layer.shares().shape)
        np.testing.assert_allclose(layer.shares(), null, atol=tolerances.SUMMED)
