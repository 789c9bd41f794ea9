"""Mixtures of experts: tensors of single experts are stacked right, and a wrong stack is refused."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import anchorwatch as aw
from anchorwatch.errors import ModelError, WeightsError
from anchorwatch.models import families, fill, stacking
from checkpoints import GOLDEN, SMALL, network, write

pytestmark = pytest.mark.filterwarnings("ignore:.*asks for remote code")

IDS = torch.tensor([5, 60, 7, 95, 95, 12, 33, 95, 41, 8, 9])
MIXTURES = ("llada2_moe", "llada_moe", "rnd1")
SIZES = {
    "num_experts": 6,
    "num_local_experts": 6,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "head_dim": 8,
}


def unstacked(made):
    """The state dict with one tensor for each expert, as released files hold them."""
    tensors = {}
    for name, tensor in made.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            for expert, rows in enumerate(tensor):
                gate, up = rows.clone().chunk(2)
                tensors[f"{stem}{expert}.gate_proj.weight"] = gate.contiguous()
                tensors[f"{stem}{expert}.up_proj.weight"] = up.contiguous()
        elif name.endswith("experts.down_proj"):
            for expert, rows in enumerate(tensor):
                tensors[f"{name.removesuffix('down_proj')}{expert}.down_proj.weight"] = rows.clone()
        else:
            tensors[name] = tensor.clone().contiguous()
    return tensors


def config_of(made, architecture, **differs):
    fields = made.config.to_dict()
    for name in ("transformers_version", "is_causal", "_name_or_path", "dtype"):
        fields.pop(name, None)
    return fields | {"architectures": [architecture]} | differs


def reference(made, visible=None):
    with torch.no_grad():
        mask = None if visible is None else visible[None, None]
        return made(IDS[None], attention_mask=mask).logits[0]


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("qwen3_moe", "Qwen3MoeForCausalLM"),
        ("olmoe", "OlmoeForCausalLM"),
        ("glm4_moe", "Glm4MoeForCausalLM"),
    ],
)
def test_an_autoregressive_mixture_loads(tmp_path, kind, architecture):
    made = network(kind, **SIZES)
    folder = write(tmp_path / "m", config_of(made, architecture), unstacked(made))
    model = aw.load(folder)
    assert model.family.name == "causal"
    assert torch.equal(model.logits(IDS)[1:], reference(made)[:-1])
    model.check()


def test_mixtral_s_names_load(tmp_path):
    made = network("mixtral", **SIZES, sliding_window=None)
    tensors = {}
    for name, tensor in unstacked(made).items():
        name = name.replace(".mlp.", ".block_sparse_moe.")
        for ours, theirs in (("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")):
            name = re.sub(rf"(experts\.\d+)\.{ours}", rf"\1.{theirs}", name)
        tensors[name] = tensor
    model = aw.load(write(tmp_path / "m", config_of(made, "MixtralForCausalLM"), tensors))
    assert torch.equal(model.logits(IDS)[1:], reference(made)[:-1])


def test_sdar_s_mixture_is_block_causal(tmp_path):
    made = network("qwen3_moe", bidirectional=True, **SIZES, norm_topk_prob=True)
    differs = {"model_type": "sdar_moe", "block_size": 4, "mask_token_id": 95}
    config = config_of(made, "SDARMoeForCausalLM", **differs)
    model = aw.load(write(tmp_path / "m", config, unstacked(made)))
    places = torch.arange(len(IDS)) // 4
    visible = places[:, None] >= places[None, :]
    assert model.family.name == "sdar-moe"
    assert torch.equal(model.logits(IDS), reference(made, visible))
    model.check()


def test_llada_moe_with_a_dense_layer(tmp_path):
    made = network(
        "qwen3_moe", bidirectional=True, **SIZES, mlp_only_layers=[0], intermediate_size=48,
    )  # fmt: skip
    config = {
        name: made.config.to_dict()[name]
        for name in (
            *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
            *("num_key_value_heads", "num_experts_per_tok", "rms_norm_eps", "head_dim"),
        )
    }
    config |= {
        "architectures": ["LLaDAMoEModelLM"],
        "model_type": "llada",
        "num_experts": 6,
        "expert_intermediate_size": 24,
        "dense_intermediate_size": 48,
        "moe_layer_freq": [0, 1],
        "max_position_embeddings": 64,
        "rope_theta": 10000.0,
        "norm_topk_prob": True,  # said, and ignored by the released code
        "mask_token_id": 95,
    }
    model = aw.load(write(tmp_path / "m", config, unstacked(made)))
    assert torch.equal(model.logits(IDS), reference(made))


def copy(tmp_path, name):
    folder = tmp_path / name
    shutil.copytree(GOLDEN / name, folder)
    return folder, load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", MIXTURES)
def test_a_missing_expert_is_named(tmp_path, name):
    folder, tensors = copy(tmp_path, name)
    del tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"part 1 of expert 3 of .*gate_up_proj is missing"):
        aw.load(folder, mask_id=250)


@pytest.mark.parametrize("name", MIXTURES)
def test_an_expert_too_many_is_named(tmp_path, name):
    folder, tensors = copy(tmp_path, name)
    one = tensors["model.layers.2.mlp.experts.0.down_proj.weight"].clone()
    tensors["model.layers.2.mlp.experts.99.down_proj.weight"] = one
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"experts\.99\.down_proj\.weight is expert 99"):
        aw.load(folder, mask_id=250)


def test_an_expert_of_another_shape_is_named(tmp_path):
    folder, tensors = copy(tmp_path, "llada_moe")
    name = "model.layers.0.mlp.experts.2.gate_proj.weight"
    tensors[name] = tensors[name].T.contiguous()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"experts\.2\.gate_proj\.weight has shape \[48, 24\]"):
        aw.load(folder, mask_id=250)


def test_a_nan_in_one_expert_is_named(tmp_path):
    folder, tensors = copy(tmp_path, "llada_moe")
    tensors["model.layers.0.mlp.experts.2.gate_proj.weight"][3, 4] = torch.nan
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"experts\.2\.gate_proj\.weight holds NaN"):
        aw.load(folder, mask_id=250)


def swap_gate_and_up(slot):
    return replace(slot, part=slot.parts - 1 - slot.part)


def reverse_experts(slot):
    return replace(slot, expert=7 - slot.expert)


@pytest.mark.parametrize("mutant", [swap_gate_and_up, reverse_experts])
@pytest.mark.parametrize("name", ["llada_moe", "rnd1"])
def test_tensors_written_to_a_wrong_slot_are_noticed(monkeypatch, name, mutant):
    """A mutant of the writer: the proof reads the parameter as the network's experts do."""
    right = stacking.rows_of_slot

    def wrong_rows(parameter, slot):
        return right(parameter, mutant(slot))

    monkeypatch.setattr(fill, "rows_of_slot", wrong_rows)
    with pytest.raises(WeightsError, match="is not where"):
        aw.load(GOLDEN / name, mask_id=250)


@pytest.mark.parametrize("name", MIXTURES)
def test_a_wrong_name_map_changes_the_logits(monkeypatch, name):
    """A mutant of the map itself, which the proof follows: the golden logits notice."""
    swapped = tuple(
        (pattern, target, tuple(reversed(parts))) for pattern, target, parts in families._STACKS
    )
    monkeypatch.setattr(families, "_STACKS", swapped)
    golden = load_file(GOLDEN / name / "golden.safetensors")
    model = aw.load(GOLDEN / name, mask_id=250)
    ours, theirs = model.logits(golden["input_ids"]), golden["logits"]
    if model.family.shift:
        ours, theirs = ours[:, 1:], theirs[:, :-1]
    assert (ours - theirs).abs().max() > 0.1


def test_a_router_bias_is_part_of_the_proof_and_of_the_digest(tmp_path):
    """It is a buffer of the stock class, not a parameter; bfloat16 leaves it in float32."""
    folder, tensors = copy(tmp_path, "llada2_moe")
    name = "model.layers.1.mlp.gate.expert_bias"
    model = aw.load(folder, mask_id=250)
    stock = "model.layers.1.mlp.gate.e_score_correction_bias"
    assert torch.equal(model.network.get_buffer(stock), tensors[name])
    half = aw.load(folder, mask_id=250, dtype="bfloat16")
    assert half.network.get_buffer(stock).dtype == torch.float32
    tensors[name][0] += 1
    save_file(tensors, folder / "model.safetensors")
    assert aw.load(folder, mask_id=250).digest != model.digest


def test_a_router_without_a_bias_adds_nothing(tmp_path):
    folder, tensors = copy(tmp_path, "llada2_moe")
    save_file(
        {name: tensor for name, tensor in tensors.items() if not name.endswith("expert_bias")},
        folder / "model.safetensors",
    )
    model = aw.load(folder, mask_id=250)
    assert any("adds 0 to its scores" in note for note in model.notes)
    for name, buffer in model.network.named_buffers():
        assert not name.endswith("correction_bias") or not buffer.any()


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("llada2_moe", "score_function", "softmax"),
        ("llada2_moe", "use_bias", True),
        ("llada2_moe", "num_shared_experts", -1),
        ("llada_moe", "qk_layernorm", False),
        ("llada_moe", "partial_rotary_factor", 0.5),
        ("llada_moe", "shared_expert_intermediate_size", 32),
    ],
)
def test_an_option_that_the_stock_class_lacks_is_refused(tmp_path, name, field, value):
    folder, _ = copy(tmp_path, name)
    config = json.loads((folder / "config.json").read_text()) | {field: value}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=field):
        aw.load(folder, mask_id=250)


def test_llada2_without_groups_of_experts_has_one(tmp_path):
    ids = load_file(GOLDEN / "llada2_moe" / "golden.safetensors")["input_ids"]
    logits = []
    for number, groups in enumerate((None, 1)):
        folder, _ = copy(tmp_path / str(number), "llada2_moe")
        config = json.loads((folder / "config.json").read_text())
        config |= {"n_group": groups, "topk_group": groups}
        (folder / "config.json").write_text(json.dumps(config))
        logits.append(aw.load(folder, mask_id=250).logits(ids))
    assert torch.equal(*logits)


LLADA2_SHAPES = [
    # experts, for each token, groups, groups for each token, shared experts, dense layers
    (16, 4, 4, 2, 1, 1),
    (12, 3, 3, 1, 2, 0),
    (8, 1, 2, 2, 3, 1),
    (10, 5, 1, 1, 1, 0),
    (8, 2, 4, 3, 0, 1),
    (6, 4, 2, 2, None, 0),
]


def llada2_block(x, tensors, config):
    """A sparse layer of LLaDA2, token by token and expert by expert; chosen experts too."""

    def mlp(row, prefix):
        gate, up = tensors[f"{prefix}gate_proj.weight"], tensors[f"{prefix}up_proj.weight"]
        hidden = torch.nn.functional.silu(gate @ row) * (up @ row)
        return tensors[f"{prefix}down_proj.weight"] @ hidden

    groups, size = config["n_group"], config["num_experts"] // config["n_group"]
    rows, chosen = [], []
    for row in x:
        scores = (tensors["gate.weight"] @ row).sigmoid()
        biased = scores + tensors["gate.expert_bias"]
        sums = [sum(sorted(biased[g * size : (g + 1) * size].tolist())[-2:]) for g in range(groups)]
        best = sorted(range(groups), key=lambda g: -sums[g])[: config["topk_group"]]
        able = [g * size + e for g in best for e in range(size)]
        picked = sorted(able, key=lambda e: -float(biased[e]))[: config["num_experts_per_tok"]]
        weights = scores[picked]
        weights = weights / weights.sum() if len(picked) > 1 else weights
        total = sum(
            weight * config["routed_scaling_factor"] * mlp(row, f"experts.{expert}.")
            for weight, expert in zip(weights, picked, strict=True)
        )
        if config["num_shared_experts"]:
            total = total + mlp(row, "shared_experts.")
        rows.append(total)
        chosen.append(set(picked))
    return torch.stack(rows), chosen


@pytest.mark.parametrize("shape", LLADA2_SHAPES, ids=str)
def test_llada2_s_sparse_layers_of_any_shape(tmp_path, shape):
    experts, each, groups, topk_group, shared, dense = shape
    sizes = {"n_routed_experts": experts, "num_experts_per_tok": each, "n_group": groups}
    sizes |= {"topk_group": topk_group, "n_shared_experts": shared or 1, "head_dim": 8}
    sizes |= {"first_k_dense_replace": dense, "moe_intermediate_size": 24, "use_qk_norm": True}
    made = network("glm4_moe", **sizes, partial_rotary_factor=0.5, attention_bias=False)
    # 1. Under the released names: queries, keys and values in one tensor, biases of experts.
    tensors = {}
    torch.manual_seed(1)
    for name, tensor in unstacked(made).items():
        if "shared_experts" in name and not shared:
            continue
        renamed = name.replace("self_attn.o_proj", "attention.dense")
        renamed = renamed.replace("embed_tokens", "word_embeddings")
        renamed = renamed.replace("self_attn.q_norm", "attention.query_layernorm")
        renamed = renamed.replace("self_attn.k_norm", "attention.key_layernorm")
        if name.endswith("e_score_correction_bias"):
            renamed = name.replace("e_score_correction_bias", "expert_bias")
            tensor = 0.3 * torch.randn_like(tensor)
        if re.search(r"\.[kv]_proj\.", name):
            continue
        if ".q_proj." in name:
            others = [unstacked(made)[name.replace("q_proj", f"{x}_proj")] for x in "kv"]
            renamed = name.replace("self_attn.q_proj", "attention.query_key_value")
            tensor = torch.cat([tensor, *others])
        tensors[renamed] = tensor
    config = {name: made.config.to_dict()[name] for name in SIZES if name in made.config.to_dict()}
    config |= {name: getattr(made.config, name) for name in SMALL}
    config |= {"architectures": ["LLaDA2MoeModelLM"], "model_type": "llada2_moe", "head_dim": 8}
    config |= {"num_experts": experts, "num_shared_experts": shared, "n_group": groups}
    config |= {"topk_group": topk_group, "first_k_dense_replace": dense, "rope_theta": 10000.0}
    config |= {"moe_intermediate_size": 24, "routed_scaling_factor": 2.5, "rotary_dim": 4}
    config |= {"partial_rotary_factor": 0.5, "rms_norm_eps": made.config.rms_norm_eps}
    model = aw.load(write(tmp_path / "m", config, tensors), mask_id=95)
    model.check()
    # 2. What goes into the last layer's experts and comes out of them.
    seen = {}
    layer = model.network.model.layers[1].mlp
    layer.register_forward_hook(lambda _, given, out: seen.update(x=given[0][0], y=out[0]))
    model.logits(IDS)
    prefix = "model.layers.1.mlp."
    mine = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    expected, chosen = llada2_block(seen["x"], mine, config)
    assert float((seen["y"] - expected).abs().max()) < 1e-4 * float(expected.abs().max())
    # 3. The probe names the same experts.
    trace = aw.run(model, [5, 6, 7], aw.decoding.BlockDiffusion(3, 1, block=4), probes=[
        aw.probes.experts()])  # fmt: skip
    assert trace["expert_choice"].shape[-1] == each and chosen
