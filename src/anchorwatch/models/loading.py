"""`load`: from a folder, a file, a hub id or `tiny/...` to a Model that has proved itself.

No remote code runs, ever: `auto_map` is ignored (and said), kernels and dtypes are set by us, and
the weights go into stock transformers classes tensor by tensor, with nothing left over.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from anchorwatch.attention import NAME, register
from anchorwatch.errors import AnchorwatchWarning, FamilyError, ModelError, SpecError, WeightsError
from anchorwatch.models import keymaps, tiny
from anchorwatch.models.checkpoint import Checkpoint, open_checkpoint, read_json
from anchorwatch.models.configs import block_of, stock_config
from anchorwatch.models.families import Family, by_name, family_of, unnamed_encoder
from anchorwatch.models.gguf import load_gguf
from anchorwatch.models.model import Model
from anchorwatch.models.proof import place, prove_rotary
from anchorwatch.models.tokens import find_mask, load_tokenizer, specials_of
from anchorwatch.models.variants import attach_gates

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load(
    source: str | Path,
    *,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    mask_id: int | None = None,
) -> Model:
    """Load a diffusion or autoregressive checkpoint and prove what was loaded.

    >>> model = load("tiny/llada")
    >>> model.logprobs([5, 6, model.mask_id]).shape[:1]
    torch.Size([3])

    Args:
        source: a folder, a .safetensors or .gguf file, a hub id, or tiny/llada|dream|arm|bert.
        revision: branch, tag or commit of a hub id.
        dtype: float32 (the default on a CPU), bfloat16 or float16; elsewhere the checkpoint's own.
        device: where to put it; the default is the first accelerator, else the CPU.
        mask_id: the mask token, where the checkpoint does not say or says two things.
    """
    register()
    source = str(source)
    place_on = _device(device)
    number = _dtype(dtype, place_on)
    if source.startswith("tiny/"):
        model = tiny.build(source, number or torch.float32, mask_id)
    elif source.endswith(".gguf"):
        model = load_gguf(source, revision, number or torch.float32)
    else:
        model = _load_safetensors(source, revision, number, mask_id)
    model.network.to(place_on)
    return model


def _load_safetensors(
    source: str, revision: str | None, dtype: torch.dtype | None, mask_id: int | None
) -> Model:
    checkpoint = open_checkpoint(source, revision)
    config = checkpoint.config
    if keymaps.is_lit_gpt(checkpoint.shapes):
        config = keymaps.lit_gpt_config(checkpoint.shapes, config)
    notes = _ignored_code(source, config)
    if kind := unnamed_encoder(config, checkpoint.shapes):
        config = config | {"model_type": kind}
        notes += _assumed_kind(source, kind)
    family, tokenizer = _identify(checkpoint, config, mask_id)
    generation = read_json(checkpoint.folder / "generation_config.json", missing={})
    mask = find_mask(mask_id, config, generation, tokenizer, family)
    network = _empty_network(family, config)
    sink_id, gated = None, False
    if family.name == "smdm":
        sink_id, gated = _lit_gpt_extras(network, checkpoint)
    dtype = dtype or _DTYPES.get(_said_dtype(config), torch.float32)
    notes += place(network, _stock_tensors(checkpoint, family, network), family, dtype)
    prove_rotary(network)
    rows = network.get_input_embeddings().weight.shape[0]
    if mask is not None and not 0 <= mask < rows:
        raise ModelError(f"mask id {mask} is outside the embedding of {rows} rows: say mask_id=")
    return Model(
        source=source,
        family=family,
        network=network.eval(),
        tokenizer=tokenizer,
        specials=specials_of(mask, config, generation, tokenizer),
        block=block_of(config) if family.visibility == "block-causal" else None,
        sink_id=sink_id,
        gated=gated,
        revision=checkpoint.revision,
        notes=notes,
    )


def _identify(
    checkpoint: Checkpoint, config: Mapping[str, Any], mask_id: int | None
) -> tuple[Family, PreTrainedTokenizerBase | None]:
    """Family and tokenizer; what only the checkpoint itself can say of its family is filled in."""
    family = family_of(config, checkpoint.shapes, _causal_classes())
    tokenizer = load_tokenizer(checkpoint.folder, family)
    has_mask = mask_id is not None or (tokenizer is not None and tokenizer.mask_token is not None)
    if family.name == "causal" and has_mask and config.get("model_type") == "qwen2":
        return by_name(
            "open-dcoder"
        ), tokenizer  # it says Qwen2ForCausalLM like the model it came from
    if family.name.startswith("a2d-"):
        family = replace(family, shift=bool(config.get("right_shift_logits", False)))
    return family, tokenizer


def _empty_network(family: Family, config: Mapping[str, Any]) -> PreTrainedModel:
    """The stock class with parameters that hold nothing yet (buffers, such as rotary, are real)."""
    fields = stock_config(family, config)
    try:
        stock = AutoConfig.for_model(fields.pop("model_type"), **fields)
    except (ValueError, KeyError, TypeError) as error:
        raise FamilyError(f"transformers makes no config for {family.name}: {error}") from error
    if family.kind == "mdm" and family.name != "encoder":
        stock.is_causal = False
    auto = AutoModelForMaskedLM if family.name == "encoder" else AutoModelForCausalLM
    with init_empty_weights(include_buffers=False):
        return auto.from_config(stock, attn_implementation=NAME)


def _lit_gpt_extras(network: PreTrainedModel, checkpoint: Checkpoint) -> tuple[int | None, bool]:
    """lit-gpt's unembedding has fewer rows than its embedding; it may have a sink or gates."""
    sink_id, gated = keymaps.lit_gpt_variant(checkpoint.shapes)
    outputs, width = checkpoint.shapes["lm_head.weight"]
    network.lm_head = torch.nn.Linear(width, outputs, bias=False, device="meta")
    if gated:
        attach_gates(network)
    return sink_id, gated


def _stock_tensors(
    checkpoint: Checkpoint, family: Family, network: PreTrainedModel
) -> dict[str, torch.Tensor]:
    """All tensors of the file under stock names; two that claim one name are refused."""
    stock = set(network.state_dict())
    heads = network.config.num_attention_heads
    kv_heads = getattr(network.config, "num_key_value_heads", None) or heads
    placed: dict[str, torch.Tensor] = {}
    origin: dict[str, str] = {}
    for name, tensor in checkpoint.tensors():
        parts = (
            keymaps.split_fused(name, tensor, heads, kv_heads)
            if family.name == "smdm"
            else [(name, tensor)]
        )
        for part, value in parts:
            target = keymaps.renamed(family, part, stock, network.base_model_prefix)
            if target in placed:
                raise WeightsError(
                    f"{name} and {origin[target]} both mean {target}: expected one of them"
                )
            placed[target], origin[target] = value, name
    return placed


def _ignored_code(source: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    if not config.get("auto_map"):
        return ()
    note = (
        f"{source} asks for remote code (auto_map in config.json): ignored, a stock class is used"
    )
    warnings.warn(note, AnchorwatchWarning, stacklevel=4)
    return (note,)


def _assumed_kind(source: str, kind: str) -> tuple[str, ...]:
    note = f"config.json of {source} names no model_type: taken as {kind}, as its tensors are named"
    warnings.warn(note, AnchorwatchWarning, stacklevel=4)
    return (note,)


def _said_dtype(config: Mapping[str, Any]) -> str:
    return str(config.get("dtype") or config.get("torch_dtype"))


def _causal_classes() -> dict[str, str]:
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
    return {kind: name if isinstance(name, str) else name[0] for kind, name in names}


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    try:
        return torch.device(device)
    except RuntimeError:
        raise SpecError(
            f"device={device!r} is unknown: expected 'cpu', 'cuda', 'cuda:1' or 'mps'"
        ) from None


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype | None:
    """The dtype asked for; on a CPU float32 unless asked; None leaves it to the checkpoint."""
    if dtype is None:
        return torch.float32 if device.type == "cpu" else None
    named = _DTYPES.get(re.sub(r"^torch\.", "", str(dtype)))
    if named is None:
        raise SpecError(f"dtype={dtype!r} is unknown: expected one of {', '.join(_DTYPES)}")
    return named
