"""config.json of a family, rewritten as the config of the stock class that holds its weights.

An option that the stock class does not have is refused here, before any tensor is read:
a checkpoint that loads but computes something else is the worst outcome. Who looks at whom is the
family's to say: fields of config.json that would change it never reach the stock class.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import CONFIG_MAPPING
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from anchorwatch.errors import FamilyError, ModelError
from anchorwatch.models.families import Family, architecture_of, model_type_of
from anchorwatch.models.released_configs import Fields, check_whole

_NEVER = frozenset(
    """
    auto_map architectures dtype torch_dtype attn_implementation use_cache name_or_path
    transformers_version return_dict use_return_dict output_attentions output_hidden_states
    torchscript chunk_size_feed_forward gradient_checkpointing
    id2label label2id num_labels problem_type
    """.split()
)
"""Fields we set ourselves or never follow: remote code, kernels, dtypes, the form of the output."""

_VISIBILITY = frozenset(
    """
    is_causal is_decoder use_bidirectional_attention is_encoder_decoder tie_encoder_decoder
    add_cross_attention cross_attention_hidden_size
    """.split()
)
"""Fields that decide who looks at whom: the family does, see `set_visibility`."""

_WIDTHS = (
    *("intermediate_size", "n_inner", "head_dim", "hidden_dim", "embedding_size"),
    *("type_vocab_size", "num_experts", "num_local_experts", "moe_intermediate_size"),
    *("n_routed_experts", "n_shared_experts", "num_experts_per_tok"),
)
_DECLARED = ("sliding_window", "layer_types", "attention_chunk_size", "num_key_value_heads")
"""Fields that caches and masks look for on any config: followed only where the class has them."""


def deciding_fields(config: Mapping[str, Any]) -> Fields:
    """The fields of a config that may change what is computed."""
    return {k: v for k, v in config.items() if k not in _NEVER and not k.startswith("_")}


def stock_config(family: Family, config: Mapping[str, Any]) -> Fields:
    """Keyword arguments for transformers' `AutoConfig.for_model`, `model_type` among them."""
    if config.get("quantization_config"):
        raise ModelError(
            "the checkpoint is quantised (quantization_config in config.json): "
            "load the unquantised weights, or a GGUF file of a causal LM"
        )
    if config.get("per_layer_config"):
        raise ModelError(
            "config.json describes layers that differ (per_layer_config): "
            "expected one shape for all layers"
        )
    fields = dict(config)
    if family.translate_config is not None:
        fields = family.translate_config(fields)
    never = _NEVER | _VISIBILITY
    fields = {k: v for k, v in fields.items() if k not in never and not k.startswith("_")}
    model_type = family.network or model_type_of(config)
    if model_type not in CONFIG_MAPPING:
        raise FamilyError(
            f"config.json says model_type={model_type!r}, which transformers does not have: "
            "expected that of the class in architectures, such as 'llama'"
        )
    # A config keeps unknown fields, and caches and masks would follow these.
    declared = inspect.signature(CONFIG_MAPPING[model_type]).parameters
    fields = {k: v for k, v in fields.items() if k not in _DECLARED or k in declared}
    return fields | {"model_type": model_type}


def set_visibility(family: Family, stock: Any) -> None:
    """Make the stock config causal or not, as the family is."""
    causal = family.visibility == "causal"
    if not family.masked_lm:
        stock.is_causal = causal  # block-causal families bring their own pairs
    if hasattr(stock, "is_decoder"):  # BERT's kind: one class, causal or not
        stock.is_decoder = causal


def overruled_fields(family: Family, config: Mapping[str, Any]) -> tuple[str, ...]:
    """What config.json says of visibility and the family does not follow, in words."""
    causal = family.visibility == "causal"
    against = {"is_causal": not causal, "use_bidirectional_attention": causal}
    if not causal:
        against["is_decoder"] = True
    return tuple(
        f"config.json says {name}={config[name]!r}: ignored, {family.name} models are "
        f"{family.visibility}"
        for name, value in against.items()
        if config.get(name) is not None and bool(config[name]) is value
    )


def check_layers(fields: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse more layers than the file can have, before a config makes a list of them."""
    limit = len(shapes) * (100 if fields["model_type"] == "albert" else 1)
    for name in ("num_hidden_layers", "num_layers", "n_layers", "n_layer"):
        count = fields.get(name)
        if isinstance(count, int) and count > limit:
            raise ModelError(
                f"config.json says {name}={count}, which is more than its file holds: "
                "config.json and weights do not belong together"
            )


def check_sizes(stock: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse sizes that no network can have, or that are far from the file's, before building."""
    counts = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")
    sizes = {name: _count(stock, name) for name in counts}
    sizes["max_position_embeddings"] = _count(stock, "max_position_embeddings", 1)
    heads, width = sizes["num_attention_heads"], sizes["hidden_size"]
    kv_heads = _count(stock, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(
            f"config.json says {heads} heads and {kv_heads} key-value heads: "
            "expected heads to be a multiple of key-value heads"
        )
    if _count(stock, "head_dim", 0) == 0 and width % heads:
        raise ModelError(
            f"config.json says {heads} heads and a width of {width}: expected heads to divide it"
        )
    # Sizes far beyond the file would allocate memory before any shape is compared.
    largest = max((max(shape, default=0) for shape in shapes.values()), default=0)
    limits = {"num_hidden_layers": len(shapes), "hidden_size": largest, "vocab_size": largest}
    for name in _WIDTHS:  # a tensor has each of them as a side
        none = name == "n_shared_experts" and getattr(stock, name, None) == 0
        if isinstance(getattr(stock, name, None), int) and not none:
            sizes[name], limits[name] = _count(stock, name), max(largest, len(shapes))
    if stock.model_type == "albert":  # its layers share their tensors, its groups do not
        sizes |= {name: _count(stock, name) for name in ("num_hidden_groups", "inner_group_num")}
        limits |= {"num_hidden_groups": len(shapes), "inner_group_num": len(shapes)}
        limits["num_hidden_layers"] = 100 * len(shapes)
    if any(name.endswith(("position_embeddings.weight", "wpe.weight")) for name in shapes):
        limits["max_position_embeddings"] = largest
    for name, limit in limits.items():
        if sizes[name] > limit:
            raise ModelError(
                f"config.json says {name}={sizes[name]}, which is more than its file holds: "
                "config.json and weights do not belong together"
            )


def check_experts(stock: Any) -> None:
    """Refuse a router that would choose among fewer experts than it is to choose."""
    names = ("num_experts", "n_routed_experts", "num_local_experts")
    experts = next((n for name in names if isinstance(n := getattr(stock, name, None), int)), None)
    each = getattr(stock, "num_experts_per_tok", None)
    if experts is None or not isinstance(each, int):
        return
    groups, kept = _count(stock, "n_group", 1), _count(stock, "topk_group", 1)
    if experts % groups or kept > groups or (groups > 1 and experts < 2 * groups):
        raise ModelError(
            f"config.json says {experts} experts, n_group={groups} and topk_group={kept}: expected "
            "groups of at least two experts each, and no more chosen than there are"
        )
    if each > experts // groups * kept:
        raise ModelError(
            f"config.json says num_experts_per_tok={each}, of {experts // groups * kept} experts "
            "that can be chosen: expected no more than those"
        )


def check_numbers(stock: Any) -> None:
    """Refuse numbers that would make every logit NaN, and a padding id that is no row."""
    for name, value in vars(stock).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ModelError(f"config.json says {name}={value}: expected a finite number")
    _count(stock, "sliding_window", 1)
    for name in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"):
        _positive(name, getattr(stock, name, None))
    for layer_type, parameters in rope_parameters(stock):
        name = f"{layer_type}.rope_theta" if layer_type else "rope_theta"
        if parameters.get("rope_theta") is None:
            raise ModelError(f"config.json says {name}=None: expected a number above 0")
        _positive(name, parameters["rope_theta"])
        _check_rotary(stock, parameters)
    pad = getattr(stock, "pad_token_id", None)
    if isinstance(pad, int) and 0 <= pad < stock.vocab_size:
        return
    if stock.model_type == "roberta":
        raise ModelError(
            f"config.json says pad_token_id={pad!r}, after which RoBERTa's positions are counted: "
            f"expected an id from 0 to {stock.vocab_size - 1}"
        )
    stock.pad_token_id = None  # only training looks at the embedding's padding row


def _check_rotary(stock: Any, parameters: Fields) -> None:
    """Refuse a kind of rotary embedding that is unknown, and a share of a head that is no pairs."""
    kind = parameters.get("rope_type", "default")
    if kind != "default" and kind not in ROPE_INIT_FUNCTIONS:
        known = ", ".join(sorted({"default", *ROPE_INIT_FUNCTIONS}))
        raise ModelError(f"config.json says rope_type={kind!r}: expected one of {known}")
    share = parameters.get("partial_rotary_factor")
    if share is None:
        share = getattr(stock, "partial_rotary_factor", None)
    if share is None:
        return
    size = getattr(stock, "head_dim", None) or stock.hidden_size // stock.num_attention_heads
    number = isinstance(share, int | float) and not isinstance(share, bool) and 0 < share <= 1
    if not number or int(size * share) < 2 or int(size * share) % 2:
        raise ModelError(
            f"config.json says partial_rotary_factor={share!r} of heads of {size}: expected a "
            "number up to 1 that leaves an even number to turn"
        )


def rope_parameters(stock: Any) -> Iterator[tuple[str, Fields]]:
    """(layer type, rotary parameters); the layer type is empty where all layers share them."""
    parameters = getattr(stock, "rope_parameters", None) or {}
    nested = {kind: value for kind, value in parameters.items() if isinstance(value, dict)}
    yield from (nested or ({"": parameters} if parameters else {})).items()


_BLOCK_FIELDS = ("block_size", "block_length", "bd_size")


def block_of(family: Family, config: Mapping[str, Any]) -> int | None:
    """Positions in a block of a block-causal model: SDAR says block_size, Fast-dLLM bd_size."""
    if family.visibility != "block-causal":
        return None
    for name in _BLOCK_FIELDS:
        value = config.get(name)
        if value is not None:
            return check_whole(name, value)
    named = model_type_of(config) in ("", *family.model_types)
    known = named or architecture_of(config) in family.architectures
    if not known or family.block is None:
        raise ModelError(
            f"config.json of this {family.name} model names no block size: "
            "add block_size (SDAR) or bd_size (Fast-dLLM), as the checkpoint was trained"
        )
    return family.block


def assumed_block(source: str, family: Family, config: Mapping[str, Any]) -> tuple[str, ...]:
    """That a block size was assumed which the checkpoint may not have, in words."""
    if not family.block_varies or any(config.get(name) is not None for name in _BLOCK_FIELDS):
        return ()
    return (
        f"config.json of {source} names no block size: taken as {family.block}, which not all "
        f"{family.name} checkpoints have; add block_size to it, or say the decoding's block=",
    )


def _count(stock: Any, name: str, missing: int | None = None) -> int:
    value = getattr(stock, name, None)
    if value is None and missing is not None:
        return missing  # a class may not have the field
    return check_whole(name, value)


def _positive(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ModelError(f"config.json says {name}={value!r}: expected a number above 0")
