"""config.json of a family, rewritten as the config of the stock class that holds its weights.

An option that the stock class does not have is refused here, before any tensor is read:
a checkpoint that loads but computes something else is the worst outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anchorwatch.errors import FamilyError, ModelError
from anchorwatch.models.families import Family

Fields = dict[str, Any]

_NEVER = ("auto_map", "architectures", "dtype", "torch_dtype", "attn_implementation", "use_cache")
"""Fields we set ourselves or never follow: remote code, kernels, dtypes."""

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
}


def stock_config(family: Family, config: Mapping[str, Any]) -> Fields:
    """Keyword arguments for transformers' `AutoConfig.for_model`, `model_type` among them."""
    if config.get("quantization_config"):
        raise ModelError(
            "the checkpoint is quantised (quantization_config in config.json): "
            "load the unquantised weights, or a GGUF file of a causal LM"
        )
    translate = _TRANSLATIONS.get(family.name, _same)
    fields = translate(dict(config))
    fields = {k: v for k, v in fields.items() if k not in _NEVER and not k.startswith("_")}
    fields["model_type"] = family.network or fields.get("model_type")
    if not fields["model_type"]:
        raise FamilyError("config.json has no model_type: transformers needs it to choose a class")
    return fields


def block_of(config: Mapping[str, Any]) -> int:
    """Positions in a block of a block-causal model: SDAR says block_size, Fast-dLLM bd_size."""
    for name in ("block_size", "block_length", "bd_size"):
        if config.get(name):
            return int(config[name])
    return {"sdar": 4, "Fast_dLLM_Qwen": 32}[str(config.get("model_type"))]


def _same(config: Fields) -> Fields:
    return config


def _llada(config: Fields) -> Fields:
    for name, allowed in _LLADA_MUST.items():
        if name in config and config[name] not in allowed:
            raise ModelError(
                f"config.json says {name}={config[name]!r}, which Llama cannot compute: "
                f"expected {' or '.join(map(repr, allowed))}"
            )
    heads = config["n_heads"]
    kv_heads = config.get("n_kv_heads")
    if kv_heads is None:
        kv_heads = 1 if config.get("multi_query_attention") else heads
    hidden = config.get("mlp_hidden_size") or config["mlp_ratio"] * config["d_model"]
    return {
        "vocab_size": config.get("embedding_size") or config["vocab_size"],
        "hidden_size": config["d_model"],
        "intermediate_size": hidden,
        "num_hidden_layers": config["n_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": config["max_sequence_length"],
        "rms_norm_eps": config.get("rms_norm_eps", 1e-5),
        "rope_theta": config.get("rope_theta", 10000.0),
        "tie_word_embeddings": bool(config.get("weight_tying")),
        "bos_token_id": config.get("bos_token_id"),
        "eos_token_id": config.get("eos_token_id"),
        "pad_token_id": config.get("pad_token_id"),
    }


def _lit_gpt(config: Fields) -> Fields:
    return {
        "vocab_size": config["vocab_size"],
        "hidden_size": config["n_embd"],
        "intermediate_size": config["intermediate_size"],
        "num_hidden_layers": config["n_layer"],
        "num_attention_heads": config["n_head"],
        "num_key_value_heads": config.get("n_query_groups") or config["n_head"],
        "max_position_embeddings": config.get("block_size", 2048) + 1,  # one more for a sink token
        "rms_norm_eps": config.get("norm_eps", 1e-5),
        "rope_theta": config.get("rope_base", 10000.0),
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


_TRANSLATIONS: dict[str, Callable[[Fields], Fields]] = {"llada": _llada, "smdm": _lit_gpt}
