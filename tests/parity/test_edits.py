"""Edited calls against the obvious computation, for every form, group ratio and visibility."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorwatch as aw
import checkpoints
import tolerances
from anchorwatch.edits.ablation import AttentionPatch, apply_patch
from anchorwatch.models.attention import Call
from anchorwatch.probes.reduce import StatRequest, reduce_attention
from checkpoints import CAUSAL, ENCODERS, MASK, network
from references import attention as dense
from references import edits as slow

BY_KEY = ("logit", "last_logit", "penalty", "weight", "value", "value_mean")
BY_HEAD = ("zero", "mean", "uniform")


@st.composite
def cases(draw, kinds=(*BY_KEY, *BY_HEAD)):
    """A random call and a random change of it; some rows may lose all they can look at."""
    groups, repeats = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 3]))
    batch, queries = draw(st.integers(1, 2)), draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    heads, size = groups * repeats, 8
    query = normal(batch, heads, queries, size) * 2
    key, value = normal(batch, groups, queries, size), normal(batch, groups, queries, size)
    kind = draw(st.sampled_from(["all", "causal", "padded", "window", "random"]))
    attendable = None
    if kind == "padded":
        attendable = torch.ones(batch, 1, queries, queries, dtype=torch.bool)
        attendable[0, ..., : queries // 3] = False
    elif kind == "window":
        places = torch.arange(queries)
        apart = places[:, None] - places
        attendable = ((apart >= 0) & (apart < 3))[None, None]
    elif kind == "random":
        attendable = torch.rand(batch, 1, queries, queries, generator=generator) < 0.5
        attendable |= torch.eye(queries, dtype=torch.bool)
    call = Call(0, query, key, value, size**-0.5, attendable, kind == "causal", None, None)
    change = AttentionPatch.empty(call)
    free = torch.ones_like(change.logit)  # two forms on one key are refused before any call
    for name in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3, unique=True)):
        held = getattr(change, name)
        chance = draw(st.sampled_from([0.2, 0.6]))
        some = torch.rand(held.shape, generator=generator) < chance
        if name in BY_KEY:
            some, free = some & free, free & ~some
        setattr(change, name, some * 2.5 if name == "penalty" else some)
    return call, change


@settings(max_examples=120)
@given(cases())
def test_an_edited_call_is_what_its_definition_says(case):
    call, change = case
    made = apply_patch(call, change)
    maps, out = slow.attended(call, change)
    close = tolerances.of_call(made.call)
    assert (made.out - out).abs().max() <= close * call.value.abs().max()
    ones = torch.ones(call.query.shape[0], 1, call.query.shape[2])
    for tile_bytes in (1, 4_000_000):
        found = reduce_attention(
            made.call,
            StatRequest(weights=ones, maps=tuple(range(call.query.shape[1])), entropy=True),
            tile_bytes,
        )
        assert (found.maps - maps).abs().nan_to_num().max() <= close
        assert (found.sums - dense.received(maps, ones)).abs().max() <= close * call.query.shape[2]
        assert not found.entropy.isnan().any()


@given(cases(kinds=("logit", "weight")))
def test_an_emptied_column_is_empty_but_for_spared_rows(case):
    call, change = case
    made = apply_patch(call, change)
    maps = reduce_attention(
        made.call,
        StatRequest(
            weights=torch.ones(call.query.shape[0], 1, call.query.shape[2]),
            maps=tuple(range(call.query.shape[1])),
        ),
    ).maps
    spared = made.rescued
    maps[spared.row, spared.head, spared.query, spared.key] = 0.0
    emptied = change.emptied_columns[:, :, None].expand_as(maps)
    assert (maps[emptied] == 0).all()


@given(cases(kinds=("logit", "last_logit", "penalty", "value", "zero", "uniform")))
def test_a_call_without_a_log_sum_exp_is_seen_alike(case):
    from dataclasses import replace

    call, change = case
    made = apply_patch(call, change).call
    ones = torch.ones(call.query.shape[0], 1, call.query.shape[2])
    one = reduce_attention(made, StatRequest(weights=ones)).sums
    two = reduce_attention(replace(made, lse=None), StatRequest(weights=ones)).sums
    assert (one - two).abs().max() <= tolerances.of_call(made) * call.query.shape[2]


P, E = aw.probes, aw.edits
IDS = [5, 60, 7, MASK, MASK, 12, 33, MASK, 41, 8, 9]
NETWORKS = {
    **{kind: (True, options) for kind, options in ENCODERS.items()},
    **{kind: (False, options) for kind, options in CAUSAL.items()},
    "sliding": (False, {"sliding_window": 4}),
}


def edited_folder(tmp_path, kind):
    """A model folder and what to run on it: stock networks, a window, block-causal visibility."""
    if kind == "block-causal":
        made = network("qwen3", bidirectional=True, head_dim=8)
        config = made.config.to_dict() | {"architectures": ["SDARForCausalLM"], "block_size": 4}
        config |= {"model_type": "sdar", "mask_token_id": MASK}
        config.pop("is_causal", None)
        folder = checkpoints.write(tmp_path / "m", config, checkpoints.tensors_of(made))
        return aw.load(folder), {
            "prompt": [5, 6, 7, 8],
            "decoding": aw.decoding.LowConfidence(8, 4),
        }
    masked, options = NETWORKS[kind]
    made = network("mistral" if kind == "sliding" else kind, masked=masked, **options)
    made.save_pretrained(tmp_path / "m")
    if masked:
        return aw.load(tmp_path / "m", mask_id=MASK), {"canvas": IDS}
    return aw.load(tmp_path / "m"), {"prompt": IDS, "decoding": aw.decoding.LeftToRight(3)}


@pytest.mark.parametrize("kind", [*NETWORKS, "block-causal"])
def test_every_stock_network_is_edited_by_the_same_code(tmp_path, kind):
    model, asked = edited_folder(tmp_path, kind)
    probes = [P.received(("all",), dtype="float32")]
    edits = [E.hide_keys([1]), E.hide_sinks(1)]
    trace = aw.run(model, **asked, probes=probes, edits=edits)
    share, hidden = trace["received"].values[:, :, :, 0], trace["hidden_keys"].values
    spared = trace["spared_rows"].values
    assert (share[..., 1] == 0).all()
    assert (hidden[..., 0] == 1).all()
    assert (hidden[1:, ..., 1] >= 0).all()
    for step, layer, head in np.ndindex(*hidden.shape[:3]):
        key = hidden[step, layer, head, 1]
        # cached rows of earlier steps, and rows with no other key, still count
        if key >= 0 and asked.get("canvas") and not spared[step, layer]:
            assert share[step, layer, head, key] == 0
    replayed = aw.replay(model, trace, probes)
    np.testing.assert_array_equal(replayed["received"], trace["received"])
