"""Probes through whole networks: against the golden records, against eager attention, by name."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import anchorwatch as aw
import checkpoints
import tolerances
from anchorwatch.errors import SpecError
from checkpoints import CAUSAL, ENCODERS, GOLDEN, MASK, lit_gpt_tensors, network
from references import attention as dense
from strategies import load

P = aw.probes
IDS = [5, 60, 7, MASK, MASK, 12, 33, MASK, 41, 8, 9]


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_patterns_equal_the_golden_attention(name):
    model = aw.load(GOLDEN / name)
    golden = load_file(GOLDEN / name / "golden.safetensors")
    for row, ids in enumerate(golden["input_ids"]):
        trace = aw.run(model, canvas=ids, probes=[P.pattern(steps=[0]), P.received(steps=[0])])
        for pick in range(trace["pattern"].sizes["pick"]):
            layer, head = int(trace["pick_layer"][pick]), int(trace["pick_head"][pick])
            exact = golden[f"attention.{layer}"][row, head].numpy()
            gap = np.abs(trace["pattern"].values[pick] - exact).max()
            assert gap <= tolerances.GOLDEN_ATTENTION
            ours = trace["received"].sel(group="all").values[0, layer, head]
            assert np.abs(ours - exact.mean(0)).max() <= tolerances.GOLDEN_ATTENTION


NETWORKS = {
    **{kind: (True, options) for kind, options in ENCODERS.items()},
    **{kind: (False, options) for kind, options in CAUSAL.items()},
    "sliding": (False, {"sliding_window": 4}),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_every_stock_network_is_measured_as_eager_attention_would(tmp_path, kind):
    masked, options = NETWORKS[kind]
    made = network("mistral" if kind == "sliding" else kind, masked=masked, **options)
    made.save_pretrained(tmp_path / "m")
    made.set_attn_implementation("eager")
    probes = [P.pattern(), P.received(), P.entropy()]
    if masked:
        model = aw.load(tmp_path / "m", mask_id=MASK)
        trace = aw.run(
            model, canvas=IDS, decoding=aw.decoding.LowConfidence(steps=1), probes=probes
        )
    else:
        model = aw.load(tmp_path / "m")
        decoding = aw.decoding.LeftToRight(1, cache=False)
        trace = aw.run(model, IDS, decoding, probes=probes)
    with torch.no_grad():
        exact = made(torch.tensor([IDS]), output_attentions=True).attentions
    there = len(IDS)
    for pick in range(trace["pattern"].sizes["pick"]):
        layer, head = int(trace["pick_layer"][pick]), int(trace["pick_head"][pick])
        ours = trace["pattern"].values[pick][:there, :there]
        theirs = exact[layer][0, head].numpy()
        assert np.abs(ours - theirs).max() <= tolerances.EAGER_ATTENTION
        share = trace["received"].sel(group="all").values[0, layer, head][:there]
        assert np.abs(share - theirs.mean(0)).max() <= tolerances.EAGER_ATTENTION


def maps_of(trace, step):
    """[layer, head, query, key] of one step, from the pattern probe."""
    shape = (
        int(trace["pick_layer"].max()) + 1,
        int(trace["pick_head"].max()) + 1,
        *trace["pattern"].shape[1:],
    )
    out = torch.full(shape, torch.nan, dtype=torch.float64)
    for pick in range(trace["pattern"].sizes["pick"]):
        if int(trace["pick_step"][pick]) == step:
            place = int(trace["pick_layer"][pick]), int(trace["pick_head"][pick])
            out[place] = torch.tensor(trace["pattern"].values[pick])
    return out


TEXT = "Passage: Lena was born in Oslo.\nQuestion: Where was Lena born?"
REGIONS = {"passage": (0, 31), "question": (32, 63)}


@pytest.fixture(scope="module", params=["tiny/llada", "tiny/dream", "tiny/bert"])
def full(request):
    """One run with every probe there is."""
    model = load(request.param)
    probes = [
        P.received(groups=("all", "masked", "written", "prompt", "passage", "answer")),
        P.entropy(rows=True),
        P.diagonal(rows=True),
        P.distance(),
        P.top_keys(4),
        P.commit_regions(),
        P.region_flow(),
        P.region_rollout(),
        P.qk_geometry(keys=True),
        P.norms(keys=True, contribution=True, residual=True),
        P.massive(),
        P.mixing(),
        P.pattern(),
    ]
    decoding = aw.decoding.LowConfidence(6, 3)
    return model, aw.run(model, TEXT, decoding, regions=REGIONS, probes=probes)


def test_group_means_sum_to_one_and_are_means_of_their_rows(full):
    model, trace = full
    for step in range(trace.num_steps):
        maps = maps_of(trace, step)
        canvas = trace.canvas[step]
        masked = canvas == model.mask_id
        answer = np.isin(np.arange(len(canvas)), trace.answer)
        rows = {
            "all": np.ones(len(canvas), dtype=bool),
            "masked": masked,
            "written": answer & ~masked,
            "prompt": ~answer,
            "passage": trace["region"].values == 0,
            "answer": answer,
        }
        for group, inside in rows.items():
            share = trace["received"].sel(group=group).values[step]
            count = int(trace["queries"].sel(group=group).values[step])
            assert count == inside.sum()
            if not inside.any():
                assert np.isnan(share).all(), "a group without rows has no share"
                continue
            np.testing.assert_allclose(share.sum(-1), 1, atol=tolerances.SHARE)
            exact = maps[:, :, inside].mean(2).numpy()
            assert np.abs(share - exact).max() <= tolerances.SUMMED


def test_rows_and_summaries_agree_with_the_maps(full):
    _, trace = full
    for step in range(trace.num_steps):
        maps = maps_of(trace, step)
        exact = dense.entropy(maps).numpy()
        assert np.abs(trace["row_entropy"].values[step] - exact).max() <= tolerances.ENTROPY
        assert np.abs(trace["entropy"].values[step] - exact.mean(-1)).max() <= tolerances.ENTROPY
        exact = torch.diagonal(maps, dim1=2, dim2=3).numpy()
        assert np.abs(trace["row_diagonal"].values[step] - exact).max() <= tolerances.SUMMED
        assert np.abs(trace["diagonal"].values[step] - exact.mean(-1)).max() <= tolerances.SUMMED
        weights = torch.ones(maps.shape[0], 1, maps.shape[2])
        exact = dense.distance(maps, weights).numpy() / maps.shape[2]
        assert np.abs(trace["distance_mass"].values[step] - exact).max() <= tolerances.SUMMED


def test_flow_and_rollout_agree_with_the_maps(full):
    _, trace = full
    of = torch.tensor(trace["region"].values)
    onehot = torch.stack([of == r for r in range(3)], dim=1).double()
    assert trace["region_flow"].query_region.values.tolist() == ["passage", "question", "answer"]
    for step in range(trace.num_steps):
        maps = maps_of(trace, step)
        rolled = dense.rollout(maps, onehot)
        for region in range(3):
            exact = (maps[:, :, of == region].mean(2) @ onehot).numpy()
            ours = trace["region_flow"].values[step, :, :, region]
            assert np.abs(ours - exact).max() <= tolerances.SUMMED
            exact = rolled[:, of == region].mean(1).numpy()
            ours = trace["region_rollout"].values[step, :, region]
            assert np.abs(ours - exact).max() <= tolerances.ROLLED


def test_committed_rows_keep_the_keys_they_looked_at(full):
    model, trace = full
    for position in trace.answer:
        step = trace.committed_at[position]
        row = max(position - model.family.shift, 0)
        maps = maps_of(trace, step)[:, :, row]
        best = maps.sort(dim=-1, descending=True).values[..., :4].numpy()
        mass = trace["commit_top_mass"].values[:, :, position]
        assert np.abs(mass - best).max() <= tolerances.SUMMED
        keys = torch.tensor(trace["commit_top_key"].values[:, :, position]).long()
        assert np.abs(maps.gather(-1, keys).numpy() - best).max() <= tolerances.SUMMED
    given = np.setdiff1d(np.arange(trace.canvas.shape[1]), trace.answer)
    assert (trace["commit_top_key"].values[:, :, given] == -1).all()


def test_committed_rows_keep_what_they_gave_each_region(full):
    model, trace = full
    of = torch.tensor(trace["region"].values)
    onehot = torch.stack([of == r for r in range(3)], dim=1).double()
    kept = trace["commit_region_mass"]
    assert kept.key_region.values.tolist() == ["passage", "question", "answer"]
    for position in trace.answer:
        row = max(position - model.family.shift, 0)
        exact = maps_of(trace, trace.committed_at[position])[:, :, row] @ onehot
        gap = np.abs(kept.values[:, :, position] - exact.numpy()).max()
        assert gap <= tolerances.SUMMED
    given = np.setdiff1d(np.arange(trace.canvas.shape[1]), trace.answer)
    assert np.isnan(kept.values[:, :, given]).all()


@pytest.mark.parametrize("cache", [True, False])
def test_regions_of_autoregressive_rows(cache):
    model = load("tiny/arm")
    decoding = aw.decoding.LeftToRight(5, stop=False, cache=cache)
    probes = [P.commit_regions(), P.pattern()]
    trace = aw.run(model, TEXT, decoding, regions=REGIONS, probes=probes)
    of = trace["region"].values
    for position in trace.answer:
        maps = maps_of(trace, trace.committed_at[position])[:, :, position - 1].numpy()
        for region in range(3):
            exact = np.nansum(maps[..., of == region], axis=-1)
            ours = trace["commit_region_mass"].values[:, :, position, region]
            assert np.abs(ours - exact).max() <= tolerances.SUMMED


class Keep:
    """A watcher that keeps every call."""

    def __init__(self):
        self.calls = []

    def wants(self, layer):
        return True

    def on_attention(self, call):
        self.calls.append(call)


def calls_of(model, canvas):
    from anchorwatch.models.attention import observe

    keep = Keep()
    with observe(keep):
        model.logits(torch.tensor(canvas).long())
    return keep.calls


def test_geometry_and_norms_agree_with_pair_by_pair_means(full):
    model, trace = full
    for call in calls_of(model, trace.canvas[1]):
        layer = call.layer
        exact = dense.geometry(call.query[0], call.key[0], call.scale)
        for name, values in exact.items():
            ours = trace[f"each_{name}"].values[1, layer]
            gap = np.abs(ours - values.numpy()).max() / max(1.0, float(values.abs().max()))
            assert gap <= tolerances.GEOMETRY, name
            mean = trace[name].values[1, layer]
            gap = np.abs(mean - values.mean(-1).numpy()).max() / max(1.0, float(values.abs().max()))
            assert gap <= tolerances.GEOMETRY, name
        repeats = model.num_heads // model.num_kv_heads
        exact = call.value[0].norm(dim=-1).repeat_interleave(repeats, 0).numpy()
        np.testing.assert_allclose(
            trace["each_value_norm"].values[1, layer], exact, rtol=tolerances.NORM
        )
        keys = trace["peak_key"].values[1, layer]
        peak = np.take_along_axis(exact, keys, axis=-1)
        np.testing.assert_allclose(
            trace["peak_value_norm"].values[1, layer], peak, rtol=tolerances.NORM
        )
        everyone = trace["received"].sel(group="all").values[1, layer]
        best = np.sort(everyone, axis=-1)[:, ::-1][:, :8]
        np.testing.assert_allclose(
            trace["peak_received"].values[1, layer], best, rtol=tolerances.SUMMED
        )
        self_check = everyone.argmax(-1)
        assert (keys[:, 0] == self_check).all()


def test_contributions_go_through_the_output_projection(full):
    from anchorwatch.models.sites import output_rows

    model, trace = full
    for call in calls_of(model, trace.canvas[1]):
        rows = output_rows(model.network, call.layer)
        size = call.query.shape[-1]
        repeats = model.num_heads // model.num_kv_heads
        for head in range(model.num_heads):
            carried = call.value[0, head // repeats] @ rows[head * size : (head + 1) * size]
            ours = trace["each_contribution_norm"].values[1, call.layer, head]
            exact = carried.norm(dim=-1).numpy()
            np.testing.assert_allclose(ours, exact, rtol=tolerances.CARRIED)


def test_residual_probes_agree_with_hidden_states(full):
    model, trace = full
    with torch.no_grad():
        ids = torch.tensor(trace.canvas[2])[None].long()
        states = model.network(ids, output_hidden_states=True).hidden_states
    for layer in range(model.num_layers):
        here = states[layer][0]
        ours = trace["residual_norm"].values[2, layer]
        np.testing.assert_allclose(ours, here.norm(dim=-1).numpy(), rtol=tolerances.NORM)
        assert trace["massive_value"].values[2, layer, 0] == here.flatten()[here.abs().argmax()]
        where = (
            trace["massive_position"].values[2, layer, 0],
            trace["massive_channel"].values[2, layer, 0],
        )
        assert here[where] == trace["massive_value"].values[2, layer, 0]
        median = float(here.abs().median())
        assert trace["massive_median"].values[2, layer] == pytest.approx(median)
        assert trace["effective_rank"].values[2, layer] == pytest.approx(
            dense.effective_rank(here), rel=tolerances.SPECTRUM
        )
        assert trace["state_cosine"].values[2, layer] == pytest.approx(
            dense.mean_cosine(here), abs=tolerances.GEOMETRY
        )


def test_geometry_before_rotary_is_that_of_the_projections():
    model = load("tiny/dream")
    probes = [P.qk_geometry(keys=True, rotary="before")]
    trace = aw.run(model, TEXT, aw.decoding.LowConfidence(4, 1), probes=probes)
    kept = {}
    layer = model.network.model.layers[1].self_attn
    handles = [
        module.register_forward_hook(lambda _, __, out, name=name: kept.update({name: out}))
        for name, module in (("q", layer.q_proj), ("k", layer.k_proj))
    ]
    model.logits(torch.tensor(trace.canvas[0]).long())
    for handle in handles:
        handle.remove()
    length = trace.canvas.shape[1]
    query = kept["q"].view(length, model.num_heads, -1).transpose(0, 1)
    key = kept["k"].view(length, model.num_kv_heads, -1).transpose(0, 1)
    for name, values in dense.geometry(query, key, query.shape[-1] ** -0.5).items():
        ours = trace[f"each_{name}_before_rotary"].values[0, 1]
        gap = np.abs(ours - values.numpy()).max() / max(1.0, float(values.abs().max()))
        assert gap <= tolerances.GEOMETRY


def test_hidden_anchors_are_taken_out_of_the_rollout():
    model = load("tiny/llada")
    decoding = aw.decoding.LowConfidence(4, 1)

    def rolled(hidden):
        probes = [P.region_rollout(hidden=hidden), P.pattern(steps=[0])]
        return aw.run(model, TEXT, decoding, regions=REGIONS, probes=probes)

    trace = rolled((3, 9))
    maps = maps_of(trace, 0)
    maps[..., [3, 9]] = 0
    maps = maps / maps.sum(-1, keepdim=True)
    of = torch.tensor(trace["region"].values)
    onehot = torch.stack([of == r for r in range(3)], dim=1).double()
    exact = dense.rollout(maps, onehot)
    for region in range(3):
        ours = trace["region_rollout"].values[0, :, region]
        assert np.abs(ours - exact[:, of == region].mean(1).numpy()).max() <= tolerances.ROLLED
    assert (
        np.abs(ours - rolled(()).dataset()["region_rollout"].values[0, :, 2]).max()
        > 10 * tolerances.ROLLED
    )


def test_a_sink_token_s_share_is_kept_apart(tmp_path):
    tensors = lit_gpt_tensors(extra_rows=2, gate=False)
    folder = checkpoints.write(tmp_path / "m", {"n_head": 4, "mask_token_id": 90}, tensors)
    trace = aw.run(aw.load(folder), [5, 60, 7], aw.decoding.LowConfidence(5, 2))
    share = trace["received"].sel(group="all").sum("key") + trace["sink_received"].sel(group="all")
    np.testing.assert_allclose(share.values, 1, atol=tolerances.SHARE)
    assert (trace["sink_received"].sel(group="all").values > 0).all()


@pytest.mark.parametrize(
    ("probes", "says"),
    [
        ([P.received(groups=("nobody",))], "expected one of all, masked, written, prompt"),
        ([P.region_flow()], "region_flow needs regions"),
        ([P.commit_regions()], "commit_regions needs regions"),
        ([P.received(), P.received(groups=("all",))], "two probes give received differently"),
    ],
)
def test_probes_that_cannot_be(probes, says):
    with pytest.raises(SpecError, match=says):
        aw.run(load("tiny/llada"), "the anchor", aw.decoding.LowConfidence(4), probes=probes)


def test_options_of_probes_are_checked():
    with pytest.raises(SpecError, match="is not a list"):
        P.received(layers=2)
    with pytest.raises(SpecError, match="is not a list"):
        P.received(groups="all")
    with pytest.raises(SpecError, match="expected 'after' or 'before'"):
        P.qk_geometry(rotary="sideways")
    with pytest.raises(SpecError, match="k=0 is not a whole number"):
        P.top_keys(0)
    with pytest.raises(SpecError, match="has no rotary positions"):
        probes = [P.qk_geometry(rotary="before")]
        aw.run(load("tiny/bert"), "the anchor", aw.decoding.LowConfidence(4), probes=probes)
    with pytest.raises(SpecError, match=r"say cache=False in the decoding"):
        probes = [P.qk_geometry(rotary="before")]
        aw.run(load("tiny/arm"), "the anchor", aw.decoding.LeftToRight(4), probes=probes)


@pytest.mark.parametrize(
    ("regions", "says"),
    [
        ({"a": (0, 8), "b": (4, 12)}, "the regions 'a' and 'b' overlap"),
        ({"a": (500, 600)}, "holds no token"),
        ({"answer": (0, 8)}, "choose another name"),
    ],
)
def test_regions_that_cannot_be(regions, says):
    with pytest.raises(SpecError, match=says):
        aw.run(load("tiny/llada"), TEXT, aw.decoding.LowConfidence(4), regions=regions)


def test_top_keys_of_every_row_are_those_of_the_maps():
    model = load("tiny/dream")
    probes = [P.top_keys(3, every_row=True), P.pattern(steps=[1])]
    trace = aw.run(model, TEXT, aw.decoding.LowConfidence(4, 2), probes=probes)
    maps = maps_of(trace, 1)
    best = maps.sort(dim=-1, descending=True).values[..., :3].numpy()
    assert np.abs(trace["row_top_mass"].values[1] - best).max() <= tolerances.SUMMED
    keys = torch.tensor(trace["row_top_key"].values[1]).long()
    assert np.abs(maps.gather(-1, keys).numpy() - best).max() <= tolerances.SUMMED


def test_bfloat16_is_watched_and_left_alone():
    model = aw.load("tiny/llada", dtype="bfloat16")
    decoding = aw.decoding.LowConfidence(4)
    plain = aw.run(model, "the anchor drifts", decoding, probes=())
    trace = aw.run(model, "the anchor drifts", decoding)
    np.testing.assert_array_equal(plain.canvas, trace.canvas)
    np.testing.assert_array_equal(plain.logprob, trace.logprob)
    share = trace["received"].sel(group="all").sum("key").values
    np.testing.assert_allclose(share, 1, atol=tolerances.SHARE)


def test_block_causal_visibility_is_measured_as_it_was_computed(tmp_path):
    made = network("qwen3", bidirectional=True, head_dim=8)
    config = made.config.to_dict() | {"architectures": ["SDARForCausalLM"], "block_size": 4}
    config |= {"model_type": "sdar", "mask_token_id": MASK}
    config.pop("is_causal", None)
    folder = checkpoints.write(tmp_path / "m", config, checkpoints.tensors_of(made))
    decoding = aw.decoding.LowConfidence(8, 1)
    trace = aw.run(aw.load(folder), [5, 6, 7, 8], decoding, probes=[P.pattern(), P.received()])
    places = np.arange(12) // 4
    unseen = places[:, None] < places[None, :]
    for layer in maps_of(trace, 0).numpy():
        assert (layer[:, unseen] == 0).all()
        assert (layer[:, ~unseen] > 0).all()
    assert np.abs(maps_of(trace, 0).numpy().sum(-1) - 1).max() <= tolerances.SHARE
