"""The family table: how each architecture is named, read and understood.

A family says which stock class holds the weights, how the file's names and config fields become
that class's, who may look at whom, and whether row p or row p-1 of the raw logits predicts the
token at p. To add one, write a `Family` and give it to `register_family`; nothing else needs to
know of it. Importable without torch.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from anchorwatch.edits.spec import Addition, gate, sink_logit, sink_token
from anchorwatch.errors import FamilyError, ModelError, SpecError, WeightsError
from anchorwatch.models.released_configs import (
    Fields,
    check_whole,
    translate_llada,
    translate_llada2,
    translate_llada_moe,
    translate_rnd1,
    translate_sdar_moe,
)
from anchorwatch.models.sites import SITES, Sites

Kind = Literal["mdm", "arm"]
Visibility = Literal["bidirectional", "causal", "block-causal"]
Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of a file's tensors, by name."""


@dataclass(frozen=True)
class AllowedDifference:
    """Tensors that may differ between file and model, and why that is right."""

    pattern: str
    """Regular expression over whole tensor names."""
    reason: str

    def covers(self, name: str) -> bool:
        return re.fullmatch(self.pattern, name) is not None


@dataclass(frozen=True)
class Family:
    """How one architecture is loaded and read."""

    name: str
    kind: Kind
    """mdm denoises a canvas with a mask token; arm writes left to right."""
    architectures: tuple[str, ...]
    """Values of `architectures[0]` in config.json; matched first."""
    model_types: tuple[str, ...] = ()
    """Values of `model_type`; matched second, because LLaDA-MoE says `llada` too."""
    network: str = ""
    """transformers' model_type whose stock class holds the weights; empty: the config's own."""
    visibility: Visibility = "bidirectional"
    shift: bool = False
    """True when raw row p-1 predicts the token at p."""
    mask_id: int | None = None
    """The released mask id, used when neither config nor tokenizer names one."""
    positions: Literal["canvas", "tokens"] = "tokens"
    """Where position 0 is under left padding: the first slot, or the first real token."""
    names: tuple[tuple[str, str], ...] = ()
    """Renaming rules (regular expression, replacement), file to stock class; first match wins."""
    unused: tuple[AllowedDifference, ...] = ()
    """Tensors of the file that the model has no place for."""
    absent: tuple[AllowedDifference, ...] = ()
    """Buffers of the stock class that a file may lack: their initial value is then right."""
    tokenizer: str | None = None
    """Stock tokenizer class to use where the folder names one of its own."""
    tying: str = "tie_word_embeddings"
    """The field of config.json that ties embedding and unembedding."""
    masked_lm: bool = False
    """Whether the stock class is transformers' masked LM, not its causal LM."""
    block: int | None = None
    """Positions in a block where config.json does not say (block-causal families)."""
    block_varies: bool = False
    """Whether released checkpoints differ in it and their config.json may not say."""
    shift_field: str = ""
    """The field of config.json that says whether rows are shifted, where checkpoints differ."""
    reserved_positions: int = 0
    """Positions of the stock class that no canvas can use."""
    sites: Sites | None = None
    """Where things are in `network`, if that is not in the table `SITES`."""
    known_by: Callable[[Mapping[str, Any], Iterable[str]], bool] | None = None
    """From config.json and tensor names: whether it is this family, whatever the architecture."""
    read_config: Callable[[Shapes, Mapping[str, Any]], Fields | None] | None = None
    """From shapes and config.json: a whole config for files that carry none; None for others."""
    translate_config: Callable[[Fields], Fields] | None = None
    """config.json's fields as the stock class's; None where they are the same."""
    split_tensor: Callable[[str, Any, int, int], Iterator[tuple[str, Any]]] | None = None
    """From (name, tensor, heads, key heads): tensors under stock names, for fused ones."""
    read_additions: Callable[[Shapes], tuple[Addition, ...]] | None = None
    """The sink tokens and gates that shapes show; the sink's embedding is the last row."""
    checkpoints: str = ""
    """Released checkpoints, for people."""

    def __repr__(self) -> str:
        return f"Family({self.name!r})"


MASK_TOKENS = ("<|mdm_mask|>", "<|mask|>", "<|MASK|>", "|<MASK>|", "<[MASK]>", "[MASK]", "<mask>")
"""Added-token spellings of the mask, tried after config and tokenizer.mask_token."""

_LLADA_NAMES = (
    (r"model\.transformer\.wte\.weight", "model.embed_tokens.weight"),
    (r"model\.transformer\.ln_f\.weight", "model.norm.weight"),
    (r"model\.transformer\.ff_out\.weight", "lm_head.weight"),  # the unembedding, not an MLP
    (r"model\.transformer\.blocks\.(\d+)\.attn_norm\.", r"model.layers.\1.input_layernorm."),
    (r"model\.transformer\.blocks\.(\d+)\.ff_norm\.", r"model.layers.\1.post_attention_layernorm."),
    (r"model\.transformer\.blocks\.(\d+)\.([qkv])_proj\.", r"model.layers.\1.self_attn.\2_proj."),
    (r"model\.transformer\.blocks\.(\d+)\.attn_out\.", r"model.layers.\1.self_attn.o_proj."),
    (r"model\.transformer\.blocks\.(\d+)\.ff_proj\.", r"model.layers.\1.mlp.gate_proj."),
    (r"model\.transformer\.blocks\.(\d+)\.up_proj\.", r"model.layers.\1.mlp.up_proj."),
    (r"model\.transformer\.blocks\.(\d+)\.ff_out\.", r"model.layers.\1.mlp.down_proj."),
)
_LIT_GPT_NAMES = (  # attn.attn (fused, grouped) is split by _split_lit_gpt_tensor
    (r"transformer\.wte\.weight", "model.embed_tokens.weight"),
    (r"transformer\.ln_f\.weight", "model.norm.weight"),
    (r"transformer\.h\.(\d+)\.norm_1\.", r"model.layers.\1.input_layernorm."),
    (r"transformer\.h\.(\d+)\.norm_2\.", r"model.layers.\1.post_attention_layernorm."),
    (r"transformer\.h\.(\d+)\.attn\.proj\.", r"model.layers.\1.self_attn.o_proj."),
    (r"transformer\.h\.(\d+)\.attn\.gate\.", r"model.layers.\1.self_attn.gate."),
    (r"transformer\.h\.(\d+)\.mlp\.swiglu\.w1\.", r"model.layers.\1.mlp.gate_proj."),
    (r"transformer\.h\.(\d+)\.mlp\.swiglu\.w2\.", r"model.layers.\1.mlp.up_proj."),
    (r"transformer\.h\.(\d+)\.mlp\.swiglu\.w3\.", r"model.layers.\1.mlp.down_proj."),
)
_LLADA2_NAMES = (  # query_key_value (fused) is split by _split_llada2_tensor
    (r"model\.word_embeddings\.", "model.embed_tokens."),
    (r"model\.layers\.(\d+)\.attention\.dense\.", r"model.layers.\1.self_attn.o_proj."),
    (r"model\.layers\.(\d+)\.attention\.query_layernorm\.", r"model.layers.\1.self_attn.q_norm."),
    (r"model\.layers\.(\d+)\.attention\.key_layernorm\.", r"model.layers.\1.self_attn.k_norm."),
    (
        r"model\.layers\.(\d+)\.mlp\.gate\.expert_bias",
        r"model.layers.\1.mlp.gate.e_score_correction_bias",
    ),
)
_DIFFUGPT_NAMES = (
    (r"embed_tokens\.weight", "transformer.wte.weight"),
    (r"denoise_model\.", "transformer."),
)
_DIFFULLAMA_NAMES = (
    (r"embed_tokens\.weight", "model.embed_tokens.weight"),
    (r"denoise_model\.", "model."),
)
_LAYER_NORM_NAMES = (  # files older than 2019 say gamma and beta
    (r"(.*LayerNorm)\.gamma", r"\1.weight"),
    (r"(.*LayerNorm)\.beta", r"\1.bias"),
    (r"(.*layer_norm)\.gamma", r"\1.weight"),
    (r"(.*layer_norm)\.beta", r"\1.bias"),
)

_OLD_BUFFERS = (
    AllowedDifference(
        r".*rotary_emb(eddings)?\.inv_freq", "a buffer that is recomputed from the config"
    ),
    AllowedDifference(r".*\.attn\.(bias|masked_bias)", "GPT-2's old causal-mask buffer"),
    AllowedDifference(r".*\.attention\.(bias|masked_bias)", "GPT-NeoX's old causal-mask buffer"),
    AllowedDifference(r".*embeddings\.position_ids", "a buffer that is recomputed from the config"),
)
_ENCODER_HEADS = (
    AllowedDifference(r"(.*\.)?pooler\..*", "the pooled sentence output, not used by a masked LM"),
    AllowedDifference(
        r"cls\.seq_relationship\..*", "the next-sentence head, not used by a masked LM"
    ),
    AllowedDifference(r"sop_classifier\..*", "the sentence-order head, not used by a masked LM"),
    AllowedDifference(r"(.*\.)?contact_head\..*", "ESM's contact head, not used by a masked LM"),
)

_ENCODERS = (
    "BertForMaskedLM",
    "BertForPreTraining",
    "AlbertForMaskedLM",
    "AlbertForPreTraining",
    "RobertaForMaskedLM",
    "DistilBertForMaskedLM",
    "ModernBertForMaskedLM",
    "EsmForMaskedLM",
)


def _wraps(names: Iterable[str]) -> bool:
    """DiffuGPT and DiffuLLaMA wrap a causal LM and keep its architecture's name."""
    return any(name.startswith("denoise_model.") for name in names)


_FUSED = re.compile(r"transformer\.h\.(\d+)\.attn\.attn\.(weight|bias)")

SMDM_HEADS = {
    (6, 256): 4, (8, 384): 6, (8, 512): 8, (9, 576): 9, (10, 640): 10, (13, 640): 10, (16, 640): 8,
    (12, 768): 12, (15, 768): 12, (18, 768): 12, (14, 896): 14, (16, 896): 14, (18, 896): 14,
    (16, 1024): 16, (18, 1024): 16, (20, 1024): 16, (18, 1280): 10, (21, 1280): 10, (24, 1280): 10,
    (18, 1408): 11, (21, 1408): 11, (24, 1408): 11, (19, 1536): 12, (22, 1536): 12, (25, 1536): 12,
    (20, 1792): 14, (24, 1792): 14, (22, 2048): 16, (25, 2048): 16, (28, 2176): 17,
}  # fmt: skip
"""Heads of SMDM's size ladder by (layers, width): the files do not say, and shapes cannot."""


def _read_lit_gpt_config(shapes: Shapes, given: Mapping[str, Any]) -> Fields | None:
    """SMDM's config read off the shapes; a config.json beside the file may say the rest."""
    if not any(_FUSED.fullmatch(name) for name in shapes):
        return None
    rows, width = _matrix(shapes, "transformer.wte.weight")
    layers = 1 + max(int(match[1]) for name in shapes if (match := _FUSED.fullmatch(name)))
    heads = given.get("n_head") or SMDM_HEADS.get((layers, width))
    if heads is None:
        raise ModelError(
            f"the number of heads cannot be read off {layers} layers of width {width}, "
            "which is not on SMDM's ladder: "
            'put a config.json beside the file that says {"n_head": ...}'
        )
    fused_rows, _ = _matrix(shapes, "transformer.h.0.attn.attn.weight")
    return {
        "architectures": ["TransEncoder"],
        "n_layer": layers,
        "n_embd": width,
        "n_head": heads,
        "n_query_groups": _groups(width, heads, fused_rows, given.get("n_query_groups")),
        "intermediate_size": _matrix(shapes, "transformer.h.0.mlp.swiglu.w1.weight")[0],
        "vocab_size": rows,
    } | {name: value for name, value in given.items() if value is not None}


def _read_lit_gpt_additions(shapes: Shapes) -> tuple[Addition, ...]:
    """What OneTokenIsEnough added to the vanilla model: a sink token, whose row is the embedding's
    last, or gates."""
    rows, _ = _matrix(shapes, "transformer.wte.weight")
    outputs, _ = _matrix(shapes, "lm_head.weight")
    if rows - outputs not in (1, 2):
        raise WeightsError(
            f"the embedding has {rows} rows and the unembedding {outputs}: expected one more "
            "(the mask) or two more (the mask and a sink token)"
        )
    sink = (sink_token(),) if rows - outputs == 2 else ()
    gated = any(".attn.gate." in name for name in shapes)
    return (*sink, gate(init="plain")) if gated else sink


def _split_lit_gpt_tensor(
    name: str, tensor: Any, heads: int, kv_heads: int
) -> Iterator[tuple[str, Any]]:
    """lit-gpt's fused rows, per group [queries of the group, one key, one value], as q, k and v."""
    match = _FUSED.fullmatch(name)
    if not match:
        yield name, tensor
        return
    # Rows are grouped: for each key head its queries, then one key, then one value.
    per_group = heads // kv_heads
    head_dim = tensor.shape[0] // (kv_heads * (per_group + 2))
    grouped = tensor.view(kv_heads, per_group + 2, head_dim, *tensor.shape[1:])
    parts = {"q": grouped[:, :per_group], "k": grouped[:, -2:-1], "v": grouped[:, -1:]}
    for letter, part in parts.items():
        rows = part.reshape(-1, *tensor.shape[1:])
        yield f"model.layers.{match[1]}.self_attn.{letter}_proj.{match[2]}", rows


def _read_gpt_oss_sinks(shapes: Shapes) -> tuple[Addition, ...]:
    """gpt-oss's learned sinks, which its fused kernels know of, are our sink logits."""
    return (sink_logit(0.0),)


def _copy_gpt_oss_sinks(
    name: str, tensor: Any, heads: int, kv_heads: int
) -> Iterator[tuple[str, Any]]:
    """The sinks of a layer, as the stock class has them and as our attention reads them."""
    yield name, tensor
    if name.endswith(".self_attn.sinks"):
        yield name.removesuffix("sinks") + "sink_logit", tensor


_FUSED_LLADA2 = re.compile(r"model\.layers\.(\d+)\.attention\.query_key_value\.(weight|bias)")


def _split_llada2_tensor(
    name: str, tensor: Any, heads: int, kv_heads: int
) -> Iterator[tuple[str, Any]]:
    """LLaDA2's fused rows, [all queries, all keys, all values], as q, k and v."""
    match = _FUSED_LLADA2.fullmatch(name)
    if not match:
        yield name, tensor
        return
    head_dim = tensor.shape[0] // (heads + 2 * kv_heads)
    sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
    if sum(sizes) != tensor.shape[0]:
        raise WeightsError(
            f"{name} has {tensor.shape[0]} rows, which {heads} heads and {kv_heads} key-value "
            "heads do not divide: config.json and weights do not belong together"
        )
    for letter, rows in zip("qkv", tensor.split(sizes), strict=True):
        yield f"model.layers.{match[1]}.self_attn.{letter}_proj.{match[2]}", rows


def _matrix(shapes: Shapes, name: str) -> tuple[int, int]:
    shape = shapes.get(name)
    if shape is None or len(shape) != 2:
        raise WeightsError(
            f"{name} is missing from the file or is no matrix: "
            "a lit-gpt checkpoint needs it, download the file again"
        )
    return shape[0], shape[1]


def _groups(width: int, heads: Any, fused_rows: int, given: Any) -> int:
    """Groups of queries that share a key, read off the fused rows: [heads + 2 groups] * size."""
    # Checked here because the division below would pass a wrong number on silently.
    if not isinstance(heads, int) or isinstance(heads, bool) or heads < 1 or width % heads:
        raise ModelError(
            f"config.json says n_head={heads!r}: expected a whole number that divides {width}"
        )
    # fused rows = width + 2 * groups * (width / heads), solved for groups.
    shared, rest = divmod(fused_rows - width, 2 * (width // heads))
    if rest or shared < 1 or heads % shared:
        raise ModelError(
            f"n_head={heads} does not fit the fused weight of {fused_rows} rows and width {width}: "
            "put the checkpoint's own n_head in config.json"
        )
    if given not in (None, shared):
        raise ModelError(
            f"config.json says n_query_groups={given!r} and the fused weight has {shared}: "
            "leave it out"
        )
    return shared


def _translate_lit_gpt(config: Fields) -> Fields:
    """lit-gpt's field names."""
    return {
        "vocab_size": config["vocab_size"],
        "hidden_size": config["n_embd"],
        "intermediate_size": config["intermediate_size"],
        "num_hidden_layers": config["n_layer"],
        "num_attention_heads": config["n_head"],
        "num_key_value_heads": config.get("n_query_groups") or config["n_head"],
        # one more for a sink
        "max_position_embeddings": check_whole("block_size", config.get("block_size", 2048)) + 1,
        "rms_norm_eps": config.get("norm_eps", 1e-5),
        "rope_theta": config.get("rope_base", 10000.0),
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


_LLADA = Family(
    name="llada",
    kind="mdm",
    architectures=("LLaDAModelLM",),
    model_types=("llada",),
    network="llama",
    mask_id=126336,
    positions="canvas",
    names=_LLADA_NAMES,
    translate_config=translate_llada,
    tying="weight_tying",
    checkpoints="GSAI-ML/LLaDA-8B-Base, -Instruct, LLaDA-1.5",
)
FAMILIES: list[Family] = [
    _LLADA,
    replace(  # the same tensors, trained on: a family of its own, since papers tell them apart
        _LLADA,
        name="mmada",
        architectures=("MMadaModelLM",),
        model_types=("mmada",),
        checkpoints="Gen-Verse/MMaDA-8B-Base, -MixCoT (text)",
    ),
    Family(
        name="dream",
        kind="mdm",
        architectures=("DreamModel",),
        model_types=("Dream",),
        network="qwen2",
        shift=True,
        mask_id=151666,
        unused=_OLD_BUFFERS,
        tokenizer="Qwen2Tokenizer",
        checkpoints="Dream-org/Dream-v0-Base-7B, -Instruct-7B; apple/DiffuCoder-7B",
    ),
    Family(
        name="open-dcoder",
        kind="mdm",
        architectures=(),  # says Qwen2ForCausalLM: known by its mask token
        network="qwen2",
        shift=True,
        unused=_OLD_BUFFERS,
        checkpoints="fredzzp/open-dcoder-0.5B",
    ),
    Family(
        name="fast-dllm-v2",
        kind="mdm",
        architectures=("Fast_dLLM_QwenForCausalLM",),
        model_types=("Fast_dLLM_Qwen",),
        network="qwen2",
        visibility="block-causal",
        block=32,
        shift=True,
        mask_id=151665,
        unused=_OLD_BUFFERS,
        tokenizer="Qwen2Tokenizer",
        checkpoints="Efficient-Large-Model/Fast_dLLM_v2_1.5B, _7B",
    ),
    Family(
        name="stable-diffcoder",
        kind="mdm",
        # Its model_type is `llama`: known by the architecture.
        architectures=("StableDiffcoderForCausalLM",),
        network="llama",
        visibility="block-causal",
        block=4,
        mask_id=5,
        unused=_OLD_BUFFERS,
        checkpoints="ByteDance-Seed/Stable-DiffCoder-8B-Base, -Instruct",
    ),
    Family(
        name="sdar",
        kind="mdm",
        architectures=("SDARForCausalLM",),
        model_types=("sdar",),
        network="qwen3",
        visibility="block-causal",
        block=4,
        block_varies=True,  # -b32 is one of them
        mask_id=151669,
        unused=_OLD_BUFFERS,
        tokenizer="Qwen2Tokenizer",
        checkpoints="JetLM/SDAR-1.7B-Chat, -4B-Chat, -8B-Chat, -b32",
    ),
    Family(
        name="sdar-moe",
        kind="mdm",
        architectures=("SDARMoeForCausalLM",),
        model_types=("sdar_moe",),
        network="qwen3_moe",
        visibility="block-causal",
        block=4,
        block_varies=True,
        mask_id=151669,
        translate_config=translate_sdar_moe,
        unused=_OLD_BUFFERS,
        tokenizer="Qwen2Tokenizer",
        checkpoints="JetLM/SDAR-30B-A3B-Chat, -Sci",
    ),
    Family(
        name="llada2",
        kind="mdm",
        architectures=("LLaDA2MoeModelLM",),
        model_types=("llada2_moe",),
        network="glm4_moe",
        visibility="block-causal",
        block=32,
        mask_id=156895,
        names=_LLADA2_NAMES,
        translate_config=translate_llada2,
        split_tensor=_split_llada2_tensor,
        unused=_OLD_BUFFERS,
        absent=(
            AllowedDifference(
                r".*\.mlp\.gate\.e_score_correction_bias",
                "a router without expert_bias adds 0 to its scores",
            ),
        ),
        checkpoints="inclusionAI/LLaDA2.0-mini, -flash, -CAP; LLaDA2.1- and 2.2-mini, -flash",
    ),
    Family(
        name="llada-moe",
        kind="mdm",
        # Its model_type is `llada`, like the dense model's: known by the architecture.
        architectures=("LLaDAMoEModelLM", "LLaDAMoEModel"),
        network="qwen3_moe",
        mask_id=156895,
        positions="canvas",
        translate_config=translate_llada_moe,
        unused=_OLD_BUFFERS,
        checkpoints="inclusionAI/LLaDA-MoE-7B-A1B-Base, -Instruct",
    ),
    Family(
        name="rnd1",
        kind="mdm",
        architectures=("RND1LM",),
        model_types=("rnd1",),
        network="qwen3_moe",
        shift=True,
        mask_id=151669,
        translate_config=translate_rnd1,
        unused=_OLD_BUFFERS,
        tokenizer="Qwen2Tokenizer",
        checkpoints="radicalnumerics/RND1-Base-0910",
    ),
    Family(
        name="a2d-qwen3",
        kind="mdm",
        architectures=("A2DQwen3LMHeadModel",),
        model_types=("a2d-qwen3",),
        network="qwen3",
        shift_field="right_shift_logits",
        unused=_OLD_BUFFERS,
        checkpoints="dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1, -bd3lm-v0.1",
    ),
    Family(
        name="a2d-qwen2",
        kind="mdm",
        architectures=("A2DQwen2LMHeadModel",),
        model_types=("a2d-qwen2",),
        network="qwen2",
        shift_field="right_shift_logits",
        unused=_OLD_BUFFERS,
        checkpoints="dllm-hub/Qwen2.5-Coder-0.5B-diffusion",
    ),
    Family(
        name="a2d-llama",
        kind="mdm",
        architectures=("A2DLlamaLMHeadModel",),
        model_types=("a2d-llama",),
        network="llama",
        shift_field="right_shift_logits",
        unused=_OLD_BUFFERS,
        checkpoints="Tiny-A2D conversions of Llama",
    ),
    Family(
        name="diffugpt",
        kind="mdm",
        # Its files say DiscreteDiffusionModel or GPT2LMHeadModel: known by its tensors.
        architectures=(),
        network="gpt2",
        shift=True,
        known_by=lambda config, names: _wraps(names) and model_type_of(config) == "gpt2",
        names=_DIFFUGPT_NAMES,
        unused=_OLD_BUFFERS,
        checkpoints="diffusionfamily/diffugpt-s, -m",
    ),
    Family(
        name="diffullama",
        kind="mdm",
        architectures=(),  # known by its tensors too
        network="llama",
        shift=True,
        known_by=lambda config, names: _wraps(names) and model_type_of(config) != "gpt2",
        names=_DIFFULLAMA_NAMES,
        unused=_OLD_BUFFERS,
        checkpoints="diffusionfamily/diffullama",
    ),
    Family(
        name="smdm",
        kind="mdm",
        architectures=("TransEncoder",),  # lit-gpt's class; the files carry no config.json
        network="llama",
        mask_id=32000,
        names=_LIT_GPT_NAMES,
        reserved_positions=1,  # the sink token's
        read_config=_read_lit_gpt_config,
        translate_config=_translate_lit_gpt,
        split_tensor=_split_lit_gpt_tensor,
        read_additions=_read_lit_gpt_additions,
        checkpoints="nieshen/SMDM mdm-*.safetensors; OneTokenIsEnough (vanilla, extra token, gate)",
    ),
    Family(
        name="anchorwatch",
        kind="mdm",
        architectures=("AnchorwatchForMaskedDiffusion",),  # in its own network: Llama or Qwen
        checkpoints="what `anchorwatch train` writes with the diffusion objective",
    ),
    Family(
        name="encoder",
        kind="mdm",
        architectures=_ENCODERS,
        model_types=("bert", "albert", "roberta", "distilbert", "modernbert", "esm"),
        masked_lm=True,
        names=_LAYER_NORM_NAMES,
        unused=_OLD_BUFFERS + _ENCODER_HEADS,
        absent=(
            AllowedDifference(
                r"esm\.rotary_embeddings\.inv_freq", "a buffer that is recomputed from the config"
            ),
        ),
        checkpoints="any BERT, ALBERT, RoBERTa, DistilBERT, ModernBERT or ESM-2 masked LM",
    ),
    Family(
        name="gpt-oss",
        kind="arm",
        architectures=("GptOssForCausalLM",),
        model_types=("gpt_oss",),
        network="gpt_oss",
        visibility="causal",
        shift=True,
        unused=_OLD_BUFFERS,
        split_tensor=_copy_gpt_oss_sinks,
        read_additions=_read_gpt_oss_sinks,
        checkpoints="gpt-oss-20b, -120b (MXFP4 as released, or bfloat16)",
    ),
    Family(
        name="causal",
        kind="arm",
        architectures=(),  # every causal LM class of transformers, see `family_of`
        visibility="causal",
        shift=True,
        names=(
            (r"embed_out\.", "lm_head."),  # GPT-NeoX's unembedding
            (r"model\.layers\.(\d+)\.block_sparse_moe\.", r"model.layers.\1.mlp."),  # Mixtral
        ),
        unused=_OLD_BUFFERS,
        checkpoints=(
            "any causal LM of transformers with fused attention: "
            "Llama, Qwen2/3, Mistral, Gemma, GPT-2, GPT-NeoX; mixtures such as Qwen3-MoE, OLMoE, "
            "Mixtral; GGUF"
        ),
    ),
]
"""Every family that is read, in the order in which they are tried."""

UNSUPPORTED: dict[str, str] = {
    "DreamForCausalLM": "DreamReasoner decodes in blocks without the shift; only Dream-v0 is read",
    "ILLaDAForCausalLM": "iLLaDA's tensor names could not be verified",
    "MDLM": "MDLM is a time-conditioned DiT, which no stock class holds",
    "BD3LM": "BD3LM is a time-conditioned DiT, which no stock class holds",
    "NemotronLabsDiffusionModel": (
        "finished text is read causally and the open block in both directions, and the first token "
        "of a block is the causal reading's: no visibility here says that"
    ),
    "WeDLMForCausalLM": (
        "it attends causally over a canvas that is put into another order at every step, so that "
        "row p of a pass is not about position p"
    ),
    "DiffusionGemmaForBlockDiffusion": (
        "it has no mask token: what a step does not accept is drawn again at random, accepted or "
        "not before, so that nothing is masked, written or committed as traces mean it, and a pass "
        "reads the last pass's logits besides the canvas"
    ),
    "DPLM2ForMaskedLM": "its tensor names and modality embeddings could not be verified",
}
"""Architectures we know and do not read, with the reason."""

_ADD = "`anchorwatch models` lists what is read; a new family is one entry in models/families.py"


def register_family(family: Family) -> Family:
    """Make `aw.load` and `anchorwatch models` know a family; gives it back."""
    if any(family.name == known.name for known in FAMILIES):
        raise SpecError(f"there is a family {family.name!r} already: choose another name")
    if family.sites is not None:
        SITES[family.network] = family.sites
    FAMILIES.append(family)
    return family


def by_name(name: str) -> Family:
    """The family called `name`."""
    return next(family for family in FAMILIES if family.name == name)


def architecture_of(config: Mapping[str, Any]) -> str:
    """`architectures[0]` of config.json, or empty; a bare string is taken as a list of one."""
    names = config.get("architectures") or []
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(
            f"config.json says architectures={names!r}: "
            'expected a list of class names, such as ["LlamaForCausalLM"]'
        )
    return str(names[0]) if names else ""


def model_type_of(config: Mapping[str, Any]) -> str:
    """`model_type` of config.json, or empty."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str | None):
        raise ModelError(
            f'config.json says model_type={model_type!r}: expected a name, such as "llama"'
        )
    return model_type or ""


def family_of(
    config: Mapping[str, Any], tensors: Iterable[str], causal: Mapping[str, str]
) -> Family:
    """The family that reads this config.json: by architecture first, by model_type second.

    `causal` is transformers' table of causal LMs (model_type to class name). The file's tensor
    names decide where a wrapper kept the architecture name of what it wraps.
    """
    architecture, model_type = architecture_of(config), model_type_of(config)
    claimed = {name: family for family in FAMILIES for name in family.architectures}
    if architecture in UNSUPPORTED and architecture not in claimed:
        raise FamilyError(f"{architecture} cannot be loaded: {UNSUPPORTED[architecture]}; {_ADD}")
    # A wrapper keeps the architecture name of what it wraps: tensors decide before names.
    for family in FAMILIES:
        if family.known_by is not None and family.known_by(config, tensors):
            return family
    if architecture in claimed:
        return claimed[architecture]
    # Any causal LM class of transformers, whatever it is called.
    if architecture in causal.values():
        return by_name("causal")
    if not architecture:
        for family in FAMILIES:
            if model_type in family.model_types:
                return family
        if model_type in causal:
            return by_name("causal")
        if not model_type:
            raise FamilyError(
                "config.json names neither architectures nor model_type: "
                'add what the weights are, for example "model_type": "llama"'
            )
    raise FamilyError(_unknown(architecture or model_type, causal))


_DIFFUSION_WORDS = re.compile(
    r"diffu|llada|dream|mdlm|bd3|sdar|dllm|dlm|maskgit|denois|masked", re.IGNORECASE
)
_DIFFUSION_FIELDS = re.compile(r"mask_token_id|bd_size|.*diffusion.*|.*denoising.*|dlm_.*")


def diffusion_hints(
    config: Mapping[str, Any], generation: Mapping[str, Any], masks: Iterable[str]
) -> list[str]:
    """What of a checkpoint that calls itself a causal LM speaks of diffusion, in words.

    `masks` are the places that name a mask token.
    """
    hints = [f"{where} names a mask token" for where in masks]
    for file, fields in (("config.json", config), ("generation_config.json", generation)):
        said = [name for name in fields if _DIFFUSION_FIELDS.fullmatch(name)]
        said = [name for name in said if name != "mask_token_id" and fields[name] is not None]
        hints += [f"{file} says {name}" for name in said]
    auto_map = config.get("auto_map")
    for value in auto_map.values() if isinstance(auto_map, dict) else ():
        for code in value if isinstance(value, list) else [value]:
            if isinstance(code, str) and _DIFFUSION_WORDS.search(code):
                hints.append(f"auto_map names {code}")
    if auto_map:
        for name, causal in (("is_causal", True), ("use_bidirectional_attention", False)):
            if config.get(name) is not None and bool(config[name]) is not causal:
                hints.append(f"config.json says {name}={config[name]!r}")
    return list(dict.fromkeys(hints))


def refuse_hidden_diffusion(source: str, config: Mapping[str, Any], hints: list[str]) -> None:
    """Refuse a causal LM by name that may be a diffusion model: both would load and run."""
    if not hints:
        return
    network = model_type_of(config)
    fitting = [f.name for f in FAMILIES if f.kind == "mdm" and f.network == network]
    named = " or ".join(f"family={name!r}" for name in fitting[:4])
    diffusion = f"{named} for a diffusion model" if named else "a family of its own for diffusion"
    raise FamilyError(
        f"{source} calls itself {architecture_of(config) or network}, which is autoregressive, but "
        f"{' and '.join(hints[:3])}: say what it is, family='causal' if it writes left to right, "
        f"{diffusion}"
    )


def unnamed_encoder(config: Mapping[str, Any], tensors: Iterable[str]) -> str | None:
    """model_type of an encoder whose config.json names nothing, as none did before 2020.

    transformers puts it before every tensor's name: bert.embeddings..., albert.encoder...
    """
    if architecture_of(config) or model_type_of(config):
        return None
    # Only the first word counts: the rest differs between versions of transformers.
    prefixes = {name.partition(".")[0] for name in tensors}
    return next((kind for kind in by_name("encoder").model_types if kind in prefixes), None)


def _unknown(name: str, causal: Mapping[str, str]) -> str:
    # Own architectures override transformers' where both have the name.
    families = dict.fromkeys((*causal.values(), *causal), "causal")
    for family in FAMILIES:
        families |= dict.fromkeys(family.architectures + family.model_types, family.name)
    near = difflib.get_close_matches(name, families, n=1, cutoff=0.0)[0]
    return f"no family reads {name!r}: the nearest is {near} (family {families[near]!r}); {_ADD}"


@dataclass(frozen=True)
class Slot:
    """Where the tensor of a single expert lies in the stacked parameter of all experts."""

    target: str
    """Stock name of the parameter [experts, parts * rows, columns]."""
    expert: int
    part: int
    """Which of the parts, in the order in which the stock class splits its rows."""
    parts: int


_STACKS = (
    # (expert tensor of the file, stacked parameter, its parts in order)
    (r"(.*\.experts)\.(\d+)\.(gate|up)_proj\.weight", r"\1.gate_up_proj", ("gate", "up")),
    (r"(.*\.experts)\.(\d+)\.(down_proj)\.weight", r"\1.down_proj", ("down_proj",)),
    (r"(.*\.experts)\.(\d+)\.(w1|w3)\.weight", r"\1.gate_up_proj", ("w1", "w3")),
    (r"(.*\.experts)\.(\d+)\.(w2)\.weight", r"\1.down_proj", ("w2",)),
)
"""Files hold one tensor for each expert and projection, transformers 5 one for all experts.

Its experts compute `gate, up = (x @ gate_up_proj[e].T).chunk(2)`: gate rows first, then up rows.
The last two rules are Mixtral's names.
"""


def stack_slot(name: str, stock: Container[str]) -> Slot | None:
    """The slot of an expert's tensor, by its stock name; None for every other tensor.

    A network that keeps its experts apart has the name itself, and nothing is stacked.
    """
    if name in stock:
        return None
    for pattern, target, parts in _STACKS:
        if match := re.fullmatch(pattern, name):
            stacked = match.expand(target)
            if stacked in stock:
                return Slot(stacked, int(match[2]), parts.index(match[3]), len(parts))
    return None


def stock_name(family: Family, name: str, stock: set[str], prefix: str) -> str:
    """The stock name of one tensor; the base prefix is added where an old file left it out."""
    for pattern, replacement in family.names:
        if re.match(pattern, name):
            name = re.sub(pattern, replacement, name, count=1)
            break
    if name not in stock and f"{prefix}.{name}" in stock:
        return f"{prefix}.{name}"
    return name
