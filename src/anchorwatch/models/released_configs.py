"""config.json of released diffusion models, in the fields of the stock class that holds them.

Where config.json leaves out a field, the released config class decides, not the stock one. An
option that the stock class does not have is refused. Importable without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anchorwatch.errors import ModelError

Fields = dict[str, Any]
"""Fields of a config.json."""

_LLADA_MUST = {
    "block_type": ("llama",),
    "layer_norm_type": ("rms",),
    "activation_type": ("silu",),
    "rope": (True,),
    "alibi": (False,),
    "attention_layer_norm": (False,),
    "input_emb_norm": (False,),
    "scale_logits": (False,),
    "include_bias": (False,),
    "include_qkv_bias": (False,),
    "bias_for_layer_norm": (False, None),
    "block_group_size": (1,),
    "weight_tying": (False, True, None),
    "multi_query_attention": (False, True, None),
}
"""Options of LLaDA's config that a Llama can compute."""


_LLADA2_MUST = {
    "score_function": ("sigmoid", None),
    "use_rmsnorm": (True, None),
    "use_bias": (False, None),
    "norm_head": (False, None),
    "norm_softmax": (False, None),
    "use_sliding_window": (False, None),
}
"""Options of LLaDA2's config that a Glm4Moe can compute."""

_LLADA2_DEFAULTS = {
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 0,
    "rms_norm_eps": 1e-5,
}
"""What LLaDA2's own config class says where config.json does not; Glm4Moe's says otherwise."""

_LLADA_MOE_MUST = {
    "qk_layernorm": (True, None),
    "clip_qkv": (None, False),
    "moe_router_enable_expert_bias": (False, None),
    "moe_router_score_function": ("softmax", None),
    "partial_rotary_factor": (1, None),
    "routed_scaling_factor": (1, None),
    "router_num_group": (None, 0, 1),
    "router_topk_group": (None, 0, 1),
    "shared_expert_intermediate_size": (None, 0),
}
"""Options of LLaDA-MoE's config that a Qwen3Moe can compute."""


def check_whole(name: str, value: Any) -> int:
    """A size of config.json, or a refusal."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
        raise ModelError(
            f"config.json says {name}={value!r}: expected a whole number above 0 and below 2**31"
        )
    return value


def _required_fields(config: Fields, *names: str) -> list[Any]:
    for name in names:
        if config.get(name) is None:
            raise ModelError(f"config.json has no {name}: copy it from the released checkpoint")
    return [config[name] for name in names]


def _require_rope_theta(config: Fields) -> None:
    """Refuse a config without it: the stock class has a default of its own."""
    if not (config.get("rope_parameters") or config.get("rope_scaling") or {}).get("rope_theta"):
        _required_fields(config, "rope_theta")


def _check_options(config: Fields, allowed: Mapping[str, tuple[Any, ...]], network: str) -> None:
    """Refuse an option that the stock network does not have."""
    for name, values in allowed.items():
        if name in config and config[name] not in values:
            raise ModelError(
                f"config.json says {name}={config[name]!r}, which {network} cannot compute: "
                f"expected {' or '.join(map(repr, values))}"
            )


def translate_llada2(config: Fields) -> Fields:
    """LLaDA2's fields (Bailing-MoE) as Glm4Moe's."""
    config = _LLADA2_DEFAULTS | config
    _require_rope_theta(config)
    _check_options(config, _LLADA2_MUST, "Glm4Moe")
    experts, each = _required_fields(config, "num_experts", "num_experts_per_tok")
    # Without a shared expert Glm4Moe has one of width 0, which adds nothing.
    shared = config.get("num_shared_experts") or 0
    if shared != 0:
        check_whole("num_shared_experts", shared)
    per_head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rotary = config.get("partial_rotary_factor")
    if rotary is None:
        rotary = 0.5  # of the released class, which does not look at rotary_dim
        if config.get("rotary_dim") not in (None, per_head // 2):
            raise ModelError(
                f"config.json says rotary_dim={config['rotary_dim']!r} of heads of {per_head} and "
                "no partial_rotary_factor: add it, from the released checkpoint"
            )
    return (
        {name: value for name, value in config.items() if name not in _LLADA2_MUST}
        | {
            "head_dim": per_head,
            "n_routed_experts": experts,
            "n_shared_experts": shared,
            "use_qk_norm": config.get("use_qk_norm") is not False,
            "attention_bias": bool(config.get("use_qkv_bias")),
            "partial_rotary_factor": rotary,
            # The released code normalises whatever norm_topk_prob says, if there is more than one.
            "norm_topk_prob": each > 1,
            "n_group": config["n_group"] or 1,  # without groups all experts are one
            "topk_group": config["topk_group"] or 1,
            "num_mtp_layers": 0,
            "sliding_window": None,
        }
        | _routing_by_blocks(config, experts, each)
    )


def _routing_by_blocks(config: Fields, experts: int, each: int) -> Fields:
    """LLaDA2.2's routing, which `expert_capacity` turns on: its groups are then not followed."""
    if not config.get("expert_capacity"):
        return {"expert_capacity": None}
    capacity = check_whole("expert_capacity", config["expert_capacity"])
    block = check_whole("block_size", _required_fields(config, "block_size")[0])
    if not each <= capacity <= experts:
        raise ModelError(
            f"config.json says expert_capacity={capacity}, num_experts={experts} and "
            f"num_experts_per_tok={each}: expected a capacity between the two"
        )
    return {"n_group": 1, "topk_group": 1, "expert_capacity": capacity, "routing_block": block}


def translate_llada_moe(config: Fields) -> Fields:
    """LLaDA-MoE's fields as Qwen3Moe's."""
    _require_rope_theta(config)
    _check_options(config, _LLADA_MOE_MUST, "Qwen3Moe")
    layers, width = _required_fields(config, "num_hidden_layers", "expert_intermediate_size")
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads")
    kinds = config.get("moe_layer_freq")
    kinds = [1] * layers if kinds is None or isinstance(kinds, int) else kinds
    return {name: value for name, value in config.items() if name not in _LLADA_MOE_MUST} | {
        # Where config.json does not say: as LLaDA-MoE's own config class, not as Qwen3Moe's.
        "num_key_value_heads": heads,
        "rms_norm_eps": config.get("rms_norm_eps", 1e-5),
        "moe_intermediate_size": width,
        "intermediate_size": config.get("dense_intermediate_size") or width,
        # 0 is a dense layer.
        "mlp_only_layers": [layer for layer, kind in enumerate(kinds) if not kind],
        "decoder_sparse_step": 1,
        # The released code never normalises the chosen experts' weights.
        "norm_topk_prob": False,
        "use_sliding_window": False,
    }


def translate_sdar_moe(config: Fields) -> Fields:
    """SDAR-MoE's fields are Qwen3Moe's, which does not normalise unless it is told to."""
    _required_fields(config, "norm_topk_prob")
    _require_rope_theta(config)
    return config


def translate_rnd1(config: Fields) -> Fields:
    """RND1's fields are Qwen3Moe's; it says false where there is none."""
    fields: Fields = {"norm_topk_prob": True} | config
    for name in ("rope_scaling", "sliding_window"):
        if fields.get(name) is False:
            fields[name] = None
    _require_rope_theta(fields)
    return fields


def translate_llada(config: Fields) -> Fields:
    """LLaDA's own field names; an option that Llama lacks is refused.

    A conversion to Llama's names has Llama's fields too, and keeps them.
    """
    if "d_model" not in config and "hidden_size" in config:
        return config
    _check_options(config, _LLADA_MUST, "Llama")
    width, layers, heads, positions = _required_fields(
        config, "d_model", "n_layers", "n_heads", "max_sequence_length"
    )
    kv_heads = config.get("n_kv_heads")
    if kv_heads is None:
        kv_heads = 1 if config.get("multi_query_attention") else heads
    hidden = config.get("mlp_hidden_size")
    if hidden is None:
        hidden = _required_fields(config, "mlp_ratio")[0] * width
    return {
        "vocab_size": config.get("embedding_size") or _required_fields(config, "vocab_size")[0],
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
        "rms_norm_eps": config.get("rms_norm_eps", 1e-5),
        "rope_theta": config.get("rope_theta", 10000.0),
        "tie_word_embeddings": bool(config.get("weight_tying")),
        "bos_token_id": config.get("bos_token_id"),
        "eos_token_id": config.get("eos_token_id"),
        "pad_token_id": config.get("pad_token_id"),
    }
