"""The tiled survey against a dense float64 map, for any tile size, group ratio and visibility."""

import torch
from hypothesis import given
from hypothesis import strategies as st

import tolerances
from anchorwatch.models.attention import Call, _flash
from anchorwatch.probes.reduce import StatRequest, reduce_attention
from references import attention as dense


@st.composite
def calls(draw):
    """A random attention call: shapes, visibility, sharpness, with or without a log-sum-exp."""
    groups = draw(st.sampled_from([1, 2, 3]))
    repeats = draw(st.sampled_from([1, 2, 4]))
    batch, queries = draw(st.integers(1, 2)), draw(st.integers(1, 40))
    cached = draw(st.sampled_from([0, 0, 7]))
    size = draw(st.sampled_from([4, 16]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    sharpness = draw(st.sampled_from([0.3, 2.0]))
    query = normal(batch, groups * repeats, queries, size) * sharpness
    key, value = (
        normal(batch, groups, queries + cached, size),
        normal(batch, groups, queries + cached, size),
    )
    kind = draw(st.sampled_from(["all", "causal", "padded", "random", "dead"]))
    attendable, causal = None, False
    if kind == "causal" and not cached:
        causal = True
    elif kind == "padded":
        attendable = torch.ones(batch, 1, queries, queries + cached, dtype=torch.bool)
        attendable[0, ..., : (queries + cached) // 3] = False
    elif kind in ("random", "dead"):
        attendable = torch.rand(batch, 1, queries, queries + cached, generator=generator) < 0.5
        attendable[..., -1] = True
        if kind == "dead":
            attendable[:, :, queries // 2] = False
    scale = size**-0.5
    lse = None
    if draw(st.booleans()):
        lse = _flash(query, key, value, attendable, causal, scale)[1]
    call = Call(0, query, key, value, scale, attendable, causal, lse, None)
    weights = torch.rand(batch, 3, queries, generator=generator) < 0.5
    weights[:, 0] = True
    return call, weights.float()


def close_shares(ours, exact, call):
    assert ((ours - exact).abs() <= tolerances.of_call(call) * exact + tolerances.UNDERFLOW).all()


@given(calls(), st.sampled_from([1, 2_000, 2_000_000]))
def test_received_equals_the_dense_map(case, tile_bytes):
    call, weights = case
    found = reduce_attention(call, StatRequest(weights=weights), tile_bytes)
    exact = dense.received(dense.dense(call), weights)
    counts = (weights * found.live[:, None]).sum(-1).clamp(min=1)
    close_shares(found.sums / counts[:, None, :, None], exact / counts[:, None, :, None], call)


@given(calls(), st.sampled_from([1, 5_000]))
def test_entropy_diagonal_and_distance_equal_the_dense_map(case, tile_bytes):
    call, weights = case
    want = StatRequest(weights=weights, entropy=True, diagonal=True, distance=True)
    found = reduce_attention(call, want, tile_bytes)
    maps = dense.dense(call)
    exact = dense.entropy(maps)
    assert torch.equal(found.entropy.isnan(), exact.isnan()), "a dead row is NaN, and no other"
    assert (found.entropy - exact).nan_to_num().abs().max() <= tolerances.of_entropy(
        tolerances.of_call(call), call.key.shape[2]
    )
    offset = call.key.shape[2] - call.query.shape[2]
    exact = torch.diagonal(maps, offset, dim1=2, dim2=3)
    assert (found.diagonal - exact).nan_to_num().abs().max() <= tolerances.of_call(call)
    rows = call.query.shape[2]
    gap = (found.distance - dense.distance(maps, weights)).abs().max()
    assert gap <= tolerances.of_call(call) * rows


@given(calls(), st.integers(1, 5), st.sampled_from([1, 5_000]))
def test_top_keys_are_the_greatest_of_the_dense_map(case, k, tile_bytes):
    call, weights = case
    found = reduce_attention(
        call, StatRequest(weights=weights, top=k, top_rows=weights[:, 1].bool()), tile_bytes
    )
    maps = dense.dense(call)
    for b, h, query in torch.ones(maps.shape[:3]).nonzero().tolist():
        keys = found.top_key[b, h, query]
        if not weights[b, 1, query] or maps[b, h, query].isnan().any():
            assert (keys == -1).all()
            continue
        best = maps[b, h, query].sort(descending=True).values
        best = best[best > 1e-30][:k]
        mass = found.top_mass[b, h, query][: len(best)]
        assert (mass - best).abs().max() <= tolerances.of_call(call)
        picked = maps[b, h, query][keys[keys >= 0].long()]
        assert (picked - best[: len(picked)]).abs().max() <= tolerances.of_call(call)


@given(calls(), st.sampled_from([1, 5_000]))
def test_rows_give_to_regions_what_the_dense_map_says(case, tile_bytes):
    call, weights = case
    spans = (torch.rand(call.query.shape[0], call.key.shape[2], 3) < 0.3).float()
    asked = weights[:, 1].bool()
    found = reduce_attention(
        call, StatRequest(weights=weights, spans=spans, top_rows=asked), tile_bytes
    )
    exact = dense.dense(call) @ spans.double()[:, None]
    exact[~asked[:, None].expand(exact.shape[:3])] = torch.nan
    assert torch.equal(found.spans.isnan(), exact.isnan())
    assert (found.spans - exact).nan_to_num().abs().max() <= tolerances.of_call(call)


@given(calls(), st.sampled_from([1, 5_000]))
def test_maps_and_mixtures_equal_the_dense_map(case, tile_bytes):
    call, weights = case
    keys = call.key.shape[2]
    mixed = torch.rand(call.query.shape[0], keys, 3)
    heads = (0, call.query.shape[1] - 1)
    found = reduce_attention(
        call, StatRequest(weights=weights, maps=heads, mixed=mixed), tile_bytes
    )
    maps = dense.dense(call)
    exact = maps[:, list(heads)]
    assert torch.equal(found.maps.isnan(), exact.isnan())
    assert (found.maps - exact).nan_to_num().abs().max() <= tolerances.of_call(call)
    exact = maps.mean(1).nan_to_num() @ mixed.double()
    assert (found.mixed - exact).abs().max() <= tolerances.of_call(call)


def test_sharp_rows_of_logits_up_to_fifty():
    """One key far above the others: shares keep their relative precision, entropy its nats."""
    torch.manual_seed(0)
    query = torch.zeros(1, 1, 64, 4)
    key = torch.zeros(1, 1, 64, 4)
    query[..., 0] = 10.0
    key[..., 0] = torch.linspace(-5, 5, 64)
    for use_lse in (True, False):
        lse = _flash(query, key, key, None, False, 1.0)[1] if use_lse else None
        call = Call(0, query, key, key, 1.0, None, False, lse, None)
        weights = torch.ones(1, 1, 64)
        found = reduce_attention(call, StatRequest(weights=weights, entropy=True), 4_000)
        maps = dense.dense(call)
        close_shares(found.sums / 64, dense.received(maps, weights) / 64, call)
        assert (found.entropy - dense.entropy(maps)).abs().max() <= tolerances.of_entropy(
            tolerances.of_call(call), call.key.shape[2]
        )


def test_one_column_that_takes_nearly_all():
    """64 positions, one column 9 logits above the rest: it takes 0.992 of a row, 63.5 in sum."""
    query, key = torch.ones(1, 1, 64, 1), torch.zeros(1, 1, 64, 1)
    key[0, 0, 17] = 9.0
    call = Call(0, query, key, key, 1.0, None, False, None, None)
    found = reduce_attention(call, StatRequest(weights=torch.ones(1, 1, 64)))
    share = torch.tensor(9.0).exp() / (torch.tensor(9.0).exp() + 63)
    assert abs(float(found.sums[0, 0, 0, 17]) / 64 - float(share)) <= tolerances.of_call(call)
