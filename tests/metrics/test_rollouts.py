"""Rollout: closed forms, dense twins, real networks, and the collapse that every rollout ends in."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorwatch as aw
import checkpoints
import tolerances
from anchorwatch.errors import AnchorwatchWarning, SpecError, TraceError
from anchorwatch.metrics import rollouts as metrics
from anchorwatch.metrics.null import _spans
from anchorwatch.metrics.table import NUMBERS
from anchorwatch.trace.schema import Field
from anchorwatch.trace.trace import ABSENT, PROMPT, Trace, make_trace
from checkpoints import MASK, network
from references import flow as slow
from synthetic_traces import column, planted, random_maps, uniform

FLOW = ("step", "layer", "head", "query_region", "key_region")
ROLLOUT = ("step", "layer", "query_region", "key_region")
EVERY = ROLLOUT
IDS = list(range(10, 22))


def rolled(maps, regions, *, hidden=(), **options):
    """A planted trace with `region_flow`, `region_rollout` and `pattern` of its maps."""
    bare = planted(maps, regions=regions, **options)
    of, count = bare["region"].values, len(regions)
    steps, layers, heads, length, _ = maps.shape
    flow = np.full((steps, layers, heads, count, count), np.nan, dtype=np.float32)
    roll = np.full((steps, layers, count, count), np.nan)
    pattern = np.full((steps * layers * heads, length, length), np.nan)
    picks = list(np.ndindex(steps, layers, heads))
    for step in range(steps):
        there = int((bare.role[step] != ABSENT).sum())
        inside = maps[step, :, :, :there, :there]
        for layer, state in enumerate(slow.rollouts(inside, hidden=hidden)):
            roll[step, layer] = slow.flow(state, of, count)
        for layer, head in np.ndindex(layers, heads):
            flow[step, layer, head] = slow.flow(inside[layer, head], of, count)
            pattern[picks.index((step, layer, head)), :there, :there] = inside[layer, head]
    more = {
        "region_flow": (FLOW, flow),
        "region_rollout": (ROLLOUT, roll),
        "pattern": (("pick", "query", "key"), pattern),
    } | {
        f"pick_{name}": (("pick",), np.array([pick[i] for pick in picks], dtype=np.int32))
        for i, name in enumerate(("step", "layer", "head"))
    }
    trace = planted(maps, regions=regions, more=more, **options)
    said = [{"name": "region_rollout", "layers": None, "steps": None, "hidden": list(hidden)}]
    return Trace(trace.dataset(), trace.manifest | {"probes": said})


def quiet(metric, *args, **options):
    """Without the warning, where it is not what the test is about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnchorwatchWarning)
        return metric(*args, **options)


@st.composite
def made_of_maps(draw):
    """(trace, maps, hidden): random maps, regions that leave positions out, anchors hidden."""
    causal = draw(st.booleans())
    steps, layers, heads = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    left_out = draw(st.integers(0, 1))
    prompt = sum(sizes) + left_out
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    maps = random_maps(generator, (steps, layers, heads, prompt + steps), causal=causal)
    ends = np.cumsum([left_out, *sizes]).tolist()
    regions = {f"part{i}": range(ends[i], ends[i + 1]) for i in range(len(sizes))}
    regions["answer"] = range(prompt, prompt + steps)
    hidden = draw(st.sampled_from([(), (0,), (0, 1), (2,)]))
    visibility = "causal" if causal else "bidirectional"
    return (
        rolled(maps, regions, hidden=hidden, prompt=prompt, visibility=visibility),
        maps,
        hidden,
    )


@given(made_of_maps())
def test_rollout_and_its_nulls_are_what_dense_products_say(made):
    trace, maps, hidden = made
    names, of = trace.manifest["regions"], trace["region"].values
    causal = trace.manifest["model"]["visibility"] == "causal"
    sink_at = 1 if 1 not in hidden else 3
    table = quiet(metrics.rollout, trace, sink_share=0.3, sink_at=sink_at, by=EVERY)
    rows = {tuple(row[1:5]): row for row in table.itertuples(index=False)}
    assert len(rows) == len(table) == maps.shape[0] * maps.shape[1] * len(names) ** 2
    for step in range(maps.shape[0]):
        there = int((trace.role[step] != ABSENT).sum())
        lengths = np.array([(of[:there] == r).sum() for r in range(len(names))])
        layers = maps[step, :, :, :there, :there]
        inside = [k for k in hidden if k < there]
        even = slow.even_map(there, causal=causal, hidden=inside)
        plant = (sink_at, 0.3)
        sunk = slow.even_map(there, causal=causal, hidden=inside, plant=plant)
        kept = np.array(
            [[of[k] == r and k not in hidden for k in range(there)] for r in range(len(names))]
        )
        found = {
            "value": slow.rollouts(layers, hidden=inside),
            "null": slow.rollouts([even[None]] * len(layers)),
            "sink_null": slow.rollouts([sunk[None]] * len(layers)),
        }
        for layer in range(len(layers)):
            pooled = {name: slow.flow(one[layer], of, len(names)) for name, one in found.items()}
            shown = there - len(inside) or np.nan  # all of them may be hidden
            pooled["length_null"] = np.tile(kept.sum(1) / shown, (len(names), 1))
            apart = slow.dobrushin(pooled["value"][lengths > 0])
            for i, j in np.ndindex(len(names), len(names)):
                row = rows[step, layer, names[i], names[j]]
                if not lengths[i] or not lengths[j]:
                    assert np.isnan(row.value) and row.missing == 1
                    continue
                for name, exact in pooled.items():
                    found_here = getattr(row, name)
                    assert found_here == pytest.approx(
                        exact[i, j], abs=tolerances.METRIC, nan_ok=True
                    )
                assert row.dobrushin == pytest.approx(apart, abs=tolerances.METRIC)


@settings(max_examples=12)
@given(made_of_maps())
def test_the_token_rollout_is_the_dense_product_and_pools_to_the_regions_rollout(made):
    trace, maps, hidden = made
    of, names = trace["region"].values, trace.manifest["regions"]
    causal = trace.manifest["model"]["visibility"] == "causal"
    step = maps.shape[0] - 1
    there = int((trace.role[step] != ABSENT).sum())
    layers = maps[step, :, :, :there, :there]
    for residual in (0.5, 0.0, 0.8):
        found = quiet(metrics.token_rollout, trace, step, hidden=hidden, residual=residual)
        exact = slow.rollouts(layers, hidden=hidden, residual=residual)[-1]
        np.testing.assert_allclose(found.shares[:there, :there], exact, atol=tolerances.STATISTIC)
        even = slow.even_map(there, causal=causal, hidden=hidden)[None]
        null = slow.rollouts([even] * len(layers), residual=residual)[-1]
        np.testing.assert_allclose(found.null[:there, :there], null, atol=tolerances.STATISTIC)
        assert np.isnan(found.shares[there:]).all() and np.isnan(found.shares[:, there:]).all()
        assert found.dobrushin == pytest.approx(slow.dobrushin(exact), abs=tolerances.STATISTIC)
    found = quiet(metrics.token_rollout, trace, step, hidden=hidden)
    pooled = found.regions()
    whole = quiet(metrics.rollout, trace, by=EVERY)
    last = whole[(whole.step == step) & (whole.layer == maps.shape[1] - 1)]
    for name in ("value", "null", "length_null"):
        np.testing.assert_allclose(pooled[name], last[name], atol=tolerances.METRIC)
    assert pooled.dobrushin.dropna().unique().tolist() == [pytest.approx(found.dobrushin)]
    assert len(pooled) == len(names) ** 2 and of.shape[0] == found.shares.shape[0]


@settings(max_examples=12)
@given(made_of_maps())
def test_the_published_rollout_is_what_the_released_recipe_computes(made):
    trace, maps, _ = made
    names, of = trace.manifest["regions"], trace["region"].values
    causal = trace.manifest["model"]["visibility"] == "causal"
    table = quiet(metrics.published_rollout, trace, by=EVERY)
    rows = {tuple(row[1:5]): row for row in table.itertuples(index=False)}
    for step in range(maps.shape[0]):
        there = int((trace.role[step] != ABSENT).sum())
        count = len(names) - (not (of[:there] == len(names) - 1).any())  # the answer stands last
        layers = maps[step, :, :, :there, :there]
        value = slow.published(layers, of[:there], count)
        even = slow.even_map(there, causal=causal)[None]
        null = slow.published([even] * len(layers), of[:there], count)
        for layer, i, j in np.ndindex(len(layers), len(names), len(names)):
            row = rows[step, layer, names[i], names[j]]
            if max(i, j) >= count:
                assert np.isnan(row.value) and row.missing == 1
                continue
            assert row.value == pytest.approx(value[layer][i, j], abs=tolerances.METRIC)
            assert row.null == pytest.approx(null[layer][i, j], abs=tolerances.METRIC)


@given(
    st.sampled_from(["bidirectional", "causal", "block-causal"]),
    st.integers(1, 20),
    st.one_of(st.none(), st.integers(1, 9)),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_cumulative_sums_give_what_a_dense_map_gives(visibility, there, window, block, sink, seed):
    generator = np.random.default_rng(seed)
    hidden = np.flatnonzero(generator.random(there) < 0.3).tolist()
    left = [k for k in range(there) if k not in hidden]
    plant = (int(generator.choice(left)), 0.4) if left and seed % 2 else None
    state = generator.random((there, 3))
    kept = np.ones(there)
    kept[hidden] = 0
    spans = _spans({"visibility": visibility, "block": block}, there, window)
    found = metrics.evenly(state, spans, kept, sink, plant)
    dense = slow.even_map(
        there,
        causal=visibility == "causal",
        window=window,
        block=block if visibility == "block-causal" else None,
        hidden=hidden,
        sink_token=sink,
        plant=plant,
    )
    np.testing.assert_allclose(found, dense @ state, atol=tolerances.STATISTIC)


def parts(lengths):
    """Regions of these lengths, the last one the answer."""
    ends = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    names = [*(f"part{i}" for i in range(len(lengths) - 1)), "answer"]
    return {name: range(ends[i], ends[i + 1]) for i, name in enumerate(names)}


def test_uniform_bidirectional_attention_rolls_out_to_the_lengths():
    lengths = [1, 6, 3, 10, 2]
    maps = uniform(1, 40, 1, 22)
    trace = rolled(maps, parts(lengths), prompt=20)
    found = quiet(metrics.token_rollout, trace, 0)
    left = 2.0**-40 + tolerances.EXACT  # forty layers halve what a row keeps of itself
    np.testing.assert_allclose(found.shares, 1 / 22, atol=left)
    with pytest.warns(AnchorwatchWarning, match="have collapsed from layer 4 on: their Dobrushin"):
        table = metrics.rollout(trace)
    last = table[table.layer == 39]
    exact = np.tile(np.array(lengths) / 22, 5)
    for name in ("value", "null", "length_null"):
        np.testing.assert_allclose(last[name], exact, atol=left)
    assert last.dobrushin.max() <= left
    # one layer of uniform attention leaves half of each row where it was
    first = table[table.layer == 0].dobrushin
    assert first.tolist() == pytest.approx([0.5] * 25)
    with pytest.warns(AnchorwatchWarning):
        published = metrics.published_rollout(trace, by=("query_region", "key_region"))
    np.testing.assert_allclose(published.value, exact, atol=tolerances.METRIC)


@pytest.mark.parametrize("even", [True, False])
def test_causal_attention_rolls_out_to_the_first_position_whatever_it_looks_at(even):
    length, layers = 16, 40
    maps = uniform(1, layers, 1, length, causal=True)
    if not even:
        maps = random_maps(np.random.default_rng(1), (1, layers, 1, length), causal=True)
        maps = 0.7 * maps + 0.3 * uniform(1, layers, 1, length, causal=True)
    regions = parts([1, 5, 6, 4])
    trace = rolled(maps, regions, prompt=12, committed_at=[-1] * 12 + [-1] * 4, visibility="causal")
    with pytest.warns(AnchorwatchWarning, match="differences between rows mean nothing"):
        table = metrics.rollout(trace)
    first = table[(table.query_region == "part2") & (table.key_region == "part0")]
    assert (np.diff(first.value) > -tolerances.EXACT).all() and first.value.iloc[-1] > 0.95
    assert first.value.iloc[0] < 0.06
    apart = table.groupby("layer").dobrushin.first()
    assert (np.diff(apart) < tolerances.EXACT).all() and apart.iloc[-1] < 0.05
    if even:
        np.testing.assert_allclose(
            table.value.dropna(), table.null[table.value.notna()], atol=tolerances.EXACT
        )


def test_the_published_recipe_finds_an_absorbing_first_token_without_any_sink():
    """Section 8: 13 regions, 32 uniform causal layers, BOS gets 0.72 to 0.89 out of nothing."""
    lengths = [1, 20, *[138] * 10, 32]
    regions = parts(lengths)
    total = sum(lengths)
    of = np.repeat(np.arange(13), lengths)
    even = np.tril(np.ones((total, total))) / np.arange(1, total + 1)[:, None]
    onto = np.eye(13)[of]
    flow = (onto.T @ even @ onto / np.array(lengths)[:, None])[None, None, None]
    trace = _without_maps(regions, total, np.repeat(flow, 32, axis=1).astype(np.float32))
    table = metrics.published_rollout(trace)
    first = table[
        (table.layer == 31) & (table.key_region == "part0") & (table.query_region != "part0")
    ]
    assert 0.72 < first.value.min() < 0.73 and 0.88 < first.value.max() < 0.89
    np.testing.assert_allclose(first.value, first.null, atol=tolerances.METRIC)
    # rows but the first have nearly the same shares: the map holds few numbers
    others = table[(table.layer == 31) & (table.query_region != "part0")]
    wide = others.pivot(index="query_region", columns="key_region", values="value")
    assert metrics.dobrushin(wide.to_numpy()) < 0.5 * metrics.dobrushin(
        table[table.layer == 0]
        .pivot(index="query_region", columns="key_region", values="value")
        .to_numpy()
    )


def _without_maps(regions, total, flow):
    """A causal trace of one step too long for dense maps: all is given, and only flow measured."""
    tiny = planted(uniform(1, 1, 1, 3, causal=True), prompt=2, visibility="causal")
    names = list(regions)
    region = np.concatenate([np.full(len(span), i) for i, span in enumerate(regions.values())])
    manifest = tiny.manifest
    manifest["model"] |= {"layers": flow.shape[1], "heads": flow.shape[2]}
    return make_trace(
        canvas=np.tile(np.arange(1, total + 1), (2, 1)),
        role=np.full((2, total), PROMPT),
        committed_at=np.full(total, -1),
        logprob=np.full(total, np.nan),
        mask_chosen=np.zeros(1),
        narrow=np.zeros(1),
        region=region,
        random_state=None,
        measured={"region_flow": (Field("region_flow", FLOW, "float32", "", "flow"), flow)},
        coordinates={"query_region": names, "key_region": names},
        manifest=manifest | {"regions": names, "answer_positions": list(regions["answer"])},
    )


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_a_causal_sink_absorbs_and_a_bidirectional_one_ends_at_its_share(share):
    """With share s to the first token a causal row keeps (1 - s/2)^layers, a bidirectional one s."""
    layers, length = 32, 25
    regions = parts([1, 10, 9, 4, 1])
    both = np.broadcast_to(column(length, 0, share), (1, layers, 1, length, length)).copy()
    trace = rolled(both, regions, prompt=24)
    table = quiet(metrics.published_rollout, trace, by=("query_region", "key_region"))
    ends = table[table.key_region == "part0"].value
    assert ends.tolist() == pytest.approx([share] * 5, abs=tolerances.METRIC)
    rows = np.tril(np.full((length, length), 1.0), 0)
    rows[:, 0] = 0
    counts = rows.sum(axis=1, keepdims=True)
    rows = np.where(counts > 0, (1 - share) * rows / np.maximum(counts, 1), 0)
    rows[:, 0] = share
    rows[0, 0] = 1
    maps = np.broadcast_to(rows, (1, layers, 1, length, length)).copy()
    causal = rolled(maps, regions, prompt=24, visibility="causal")
    table = quiet(metrics.published_rollout, causal, by=("query_region", "key_region"))
    ends = table[(table.key_region == "part0") & (table.query_region != "part0")].value
    assert ends.dropna().tolist() == pytest.approx(
        [1 - (1 - share / 2) ** layers] * 3, abs=tolerances.METRIC
    )
    sunk = quiet(metrics.rollout, causal, sink_share=share)
    assert sunk.value.notna().sum() == 32 * 16  # no answer yet
    np.testing.assert_allclose(sunk.value, sunk.sink_null, atol=tolerances.EXACT)


def test_a_hidden_sink_leaves_the_rollout_that_attention_without_it_would_have():
    generator = np.random.default_rng(5)
    free = random_maps(generator, (1, 3, 2, 15))
    free[..., 0] = 0
    free /= free.sum(axis=-1, keepdims=True)
    sunk = 0.2 * free
    sunk[..., 0] = 0.8
    regions = parts([1, 5, 6, 3])
    clean = rolled(free, regions, prompt=12)
    trace = rolled(sunk, regions, prompt=12)
    recovered = quiet(metrics.token_rollout, trace, 0, hidden=[0])
    exact = quiet(metrics.token_rollout, clean, 0)
    np.testing.assert_allclose(recovered.shares, exact.shares, atol=tolerances.STATISTIC)
    drowned = quiet(metrics.token_rollout, trace, 0)
    assert np.abs(drowned.shares - exact.shares).max() > 0.3
    hidden = rolled(sunk, regions, prompt=12, hidden=(0,))
    one, other = (quiet(metrics.rollout, t) for t in (hidden, clean))
    np.testing.assert_allclose(one.value, other.value, atol=tolerances.METRIC)
    assert (one.null != other.null).any()


def test_without_layer_it_is_the_rollout_through_all_of_them():
    maps = random_maps(np.random.default_rng(2), (2, 3, 1, 9))
    trace = rolled(maps, parts([2, 3, 4]), prompt=7)
    whole = quiet(metrics.rollout, trace, by=("query_region", "key_region"))
    deep = quiet(metrics.rollout, trace)
    deep = deep[deep.layer == 2].reset_index(drop=True)
    np.testing.assert_array_equal(whole.value, deep.value)
    np.testing.assert_array_equal(whole.dobrushin, deep.dobrushin)
    assert tuple(whole.columns) == (
        "model", "query_region", "key_region", "quantity", *NUMBERS, "length_null", "sink_null", "dobrushin",
    )  # fmt: skip
    assert whole.sink_null.isna().all()
    about = {"metric": "rollout", "sink_share": None, "sink_at": 0}
    assert whole.attrs["about"] == about | {"regions": ["part0", "part1", "answer"]}


def test_dobrushin_of_known_rows():
    assert metrics.dobrushin(np.eye(4)) == 1
    assert metrics.dobrushin(np.full((5, 3), 1 / 3)) == pytest.approx(0)
    assert metrics.dobrushin(np.array([[0.5, 0.5], [0.9, 0.1]])) == pytest.approx(0.4)
    assert metrics.dobrushin(np.array([[0.5, 0.0], [0.2, 0.0]])) == pytest.approx(0.3)
    assert np.isnan(metrics.dobrushin(np.array([[0.5, 0.5], [np.nan, np.nan]])))
    many = np.stack([np.eye(3), np.full((3, 3), 1 / 3)])
    np.testing.assert_allclose(metrics.dobrushin(many), [1, 0], atol=tolerances.EXACT)


def runs(tmp_path):
    yield aw.load("tiny/llada"), aw.decoding.LowConfidence(4, 2)
    yield aw.load("tiny/arm"), aw.decoding.LeftToRight(4, cache=False)
    mixed = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
    network("qwen2", **mixed).save_pretrained(tmp_path / "mixed")
    yield aw.load(tmp_path / "mixed"), aw.decoding.LeftToRight(4, cache=False)
    made = network("qwen3", bidirectional=True, head_dim=8)
    held = made.config.to_dict() | {"architectures": ["SDARForCausalLM"], "block_size": 4}
    held |= {"model_type": "sdar", "mask_token_id": MASK}
    held.pop("is_causal", None)
    folder = checkpoints.write(tmp_path / "blocks", held, checkpoints.tensors_of(made))
    yield aw.load(folder), aw.decoding.LowConfidence(8, 2)
    tensors = checkpoints.lit_gpt_tensors(extra_rows=2, gate=False)
    config = {"n_head": 4, "mask_token_id": 90}
    yield (
        aw.load(checkpoints.write(tmp_path / "sink", config, tensors)),
        aw.decoding.LowConfidence(5, 2),
    )


@pytest.mark.parametrize("hidden", [(), (0, 1)])
def test_networks_roll_out_token_by_token_as_by_region_and_look_evenly_like_the_null(
    tmp_path, hidden
):
    spans = {"one": (0, 3), "two": (4, 9)}
    for model, decoding in runs(tmp_path):
        for even in (False, True):
            if even:
                with torch.no_grad():
                    for name, parameter in model.network.named_parameters():
                        if ".q_proj." in name:
                            parameter.zero_()
            probes = [aw.probes.region_rollout(hidden=hidden), aw.probes.pattern(steps=[1])]
            trace = aw.run(model, IDS, decoding, regions=spans, probes=probes)
            table = quiet(metrics.rollout, trace, by=("step", "query_region", "key_region"))
            pooled = quiet(metrics.token_rollout, trace, 1, hidden=hidden).regions()
            at = table[table.step == 1]
            for name in ("value", "null", "length_null"):
                np.testing.assert_allclose(pooled[name], at[name], atol=tolerances.METRIC)
            if not hidden and decoding.length == 5:  # the sink token may be looked at too
                last = at[at.query_region == "answer"].length_null
                np.testing.assert_allclose(last, [3 / 18, 5 / 18, 5 / 18], atol=tolerances.EXACT)
            if even:
                np.testing.assert_array_equal(table.value.isna(), table.missing == 1)
                there = table[table.value.notna()]
                np.testing.assert_allclose(there.value, there.null, atol=tolerances.METRIC)


def test_errors_say_what_would_have_worked():
    maps = random_maps(np.random.default_rng(2), (2, 2, 2, 9))
    trace = rolled(maps, parts([2, 3, 4]), prompt=7)
    bare = planted(uniform(1, 1, 1, 4), prompt=3, regions={"a": range(3), "answer": (3,)})
    with pytest.raises(
        TraceError, match=r"aw.replay\(model, trace, probes=\[aw.probes.region_rollout\(\)\]\)"
    ):
        metrics.rollout(bare)
    with pytest.raises(
        TraceError, match=r"aw.replay\(model, trace, probes=\[aw.probes.region_flow\(\)\]\)"
    ):
        metrics.published_rollout(bare)
    with pytest.raises(
        TraceError, match=r"has no 'pattern': measure them .*aw.probes.pattern\(steps=\[0\]\)"
    ):
        metrics.token_rollout(bare, 0)
    with pytest.raises(SpecError, match="step 2 is not in the trace: it has 0 to 1"):
        metrics.token_rollout(trace, 2)
    with pytest.raises(SpecError, match=r"hidden=\[9\]: the trace has positions 0 to 8"):
        metrics.token_rollout(trace, 0, hidden=[9])
    with pytest.raises(
        SpecError, match=r"residual=1 is not at least 0 and below 1: 0.5 is the usual"
    ):
        metrics.token_rollout(trace, 0, residual=1)
    with pytest.raises(SpecError, match="sink_share=2 is no share: expected a number from 0 to 1"):
        metrics.rollout(trace, sink_share=2)
    with pytest.raises(SpecError, match="sink_at=-1 is no position"):
        metrics.rollout(trace, sink_share=0.2, sink_at=-1)
    with pytest.raises(SpecError, match="mean over every query_region means nothing"):
        metrics.rollout(trace, by=("layer",))
    without = rolled(maps, parts([2, 3, 4]), prompt=7, hidden=(0,))
    with pytest.raises(
        SpecError, match="position 0 was hidden from the rollout: plant a sink elsewhere"
    ):
        metrics.rollout(without, sink_share=0.2)


def test_a_token_rollout_with_maps_missing_says_which_and_how_to_get_them():
    maps = random_maps(np.random.default_rng(2), (2, 2, 2, 9))
    trace = rolled(maps, parts([2, 3, 4]), prompt=7)
    lacking = Trace(trace.dataset().isel(pick=[0, 1, 2, 3, 4, 5, 7]), trace.manifest)
    quiet(metrics.token_rollout, lacking, 0)
    with pytest.raises(
        TraceError, match=r"lacks the map of step 1, layer 1, head 0.*pattern\(steps=\[1\]\)"
    ):
        metrics.token_rollout(lacking, 1)
    torn = trace.dataset().copy(deep=True)
    torn["pattern"].values[1, 4] = np.nan
    with pytest.raises(TraceError, match="row 4 of layer 0 at step 0 is absent: measure them"):
        metrics.token_rollout(Trace(torn, trace.manifest), 0)


def test_a_collapsed_token_rollout_warns():
    trace = rolled(uniform(1, 8, 1, 9), parts([2, 3, 4]), prompt=7)
    with pytest.warns(AnchorwatchWarning, match="falls to 0.0039, below 0.05"):
        found = metrics.token_rollout(trace, 0)
    assert found.dobrushin == pytest.approx(0.5**8)
