"""The family table: how each architecture is named, read and understood. No torch here.

A family says which stock class holds the weights, how the file's names become that class's names,
who may look at whom, and whether row p or row p-1 of the raw logits predicts the token at p.
To add one: write a `Family` below, and a config translation in configs.py if the fields differ.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from anchorwatch.errors import FamilyError, ModelError

Kind = Literal["mdm", "arm"]
Visibility = Literal["bidirectional", "causal", "block-causal"]


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
    tokenizer: str | None = None
    """Stock tokenizer class to use where the folder names one of its own."""
    tying: str = "tie_word_embeddings"
    """The field of config.json that ties embedding and unembedding."""
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
_LIT_GPT_NAMES = (  # attn.attn (fused, grouped) is split in keymaps.py
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
    AllowedDifference(r".*rotary_emb\.inv_freq", "a buffer that is recomputed from the config"),
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
)

_ENCODERS = (
    "BertForMaskedLM",
    "BertForPreTraining",
    "AlbertForMaskedLM",
    "AlbertForPreTraining",
    "RobertaForMaskedLM",
    "DistilBertForMaskedLM",
    "ModernBertForMaskedLM",
)

FAMILIES: tuple[Family, ...] = (
    Family(
        name="llada",
        kind="mdm",
        architectures=("LLaDAModelLM", "MMadaModelLM"),
        model_types=("llada", "mmada"),
        network="llama",
        mask_id=126336,
        positions="canvas",
        names=_LLADA_NAMES,
        tying="weight_tying",
        checkpoints="GSAI-ML/LLaDA-8B-Base, -Instruct, LLaDA-1.5; Gen-Verse/MMaDA-8B (text)",
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
        shift=True,
        mask_id=151665,
        unused=_OLD_BUFFERS,
        tokenizer="Qwen2Tokenizer",
        checkpoints="Efficient-Large-Model/Fast_dLLM_v2_1.5B, _7B",
    ),
    Family(
        name="sdar",
        kind="mdm",
        architectures=("SDARForCausalLM",),
        model_types=("sdar",),
        network="qwen3",
        visibility="block-causal",
        mask_id=151669,
        unused=_OLD_BUFFERS,
        tokenizer="Qwen2Tokenizer",
        checkpoints="JetLM/SDAR-1.7B-Chat, -4B-Chat, -8B-Chat",
    ),
    Family(
        name="a2d-qwen3",
        kind="mdm",
        architectures=("A2DQwen3LMHeadModel",),
        model_types=("a2d-qwen3",),
        network="qwen3",
        unused=_OLD_BUFFERS,
        checkpoints="dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1, -bd3lm-v0.1",
    ),
    Family(
        name="a2d-qwen2",
        kind="mdm",
        architectures=("A2DQwen2LMHeadModel",),
        model_types=("a2d-qwen2",),
        network="qwen2",
        unused=_OLD_BUFFERS,
        checkpoints="dllm-hub/Qwen2.5-Coder-0.5B-diffusion",
    ),
    Family(
        name="a2d-llama",
        kind="mdm",
        architectures=("A2DLlamaLMHeadModel",),
        model_types=("a2d-llama",),
        network="llama",
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
        model_types=("bert", "albert", "roberta", "distilbert", "modernbert"),
        names=_LAYER_NORM_NAMES,
        unused=_OLD_BUFFERS + _ENCODER_HEADS,
        checkpoints="any BERT, ALBERT, RoBERTa, DistilBERT or ModernBERT masked LM",
    ),
    Family(
        name="causal",
        kind="arm",
        architectures=(),  # every causal LM class of transformers, see `family_of`
        visibility="causal",
        shift=True,
        names=((r"embed_out\.", "lm_head."),),  # GPT-NeoX's unembedding
        unused=_OLD_BUFFERS,
        checkpoints=(
            "any causal LM of transformers with fused attention: "
            "Llama, Qwen2/3, Mistral, Gemma, GPT-2, GPT-NeoX; GGUF"
        ),
    ),
)

UNSUPPORTED: dict[str, str] = {
    "LLaDAMoEModelLM": (
        "mixture-of-experts LLaDA has per-head query and key norms that no stock class has"
    ),
    "LLaDA2MoeModelLM": (
        "LLaDA 2.x is a Bailing mixture of experts, which transformers does not have"
    ),
    "SDARMoeForCausalLM": "the mixture-of-experts SDAR is not read yet; the dense SDAR models are",
    "DreamForCausalLM": "DreamReasoner decodes in blocks without the shift; only Dream-v0 is read",
    "ILLaDAForCausalLM": "iLLaDA's tensor names could not be verified",
    "MDLM": "MDLM is a time-conditioned DiT, which no stock class holds",
    "NemotronLabsDiffusionModel": "Nemotron diffusion needs its own code",
    "DiffusionGemmaForBlockDiffusion": (
        "DiffusionGemma has no mask token: its canvas is random tokens"
    ),
}
"""Architectures we know and do not read, with the reason."""

_ADD = "`anchorwatch models` lists what is read; a new family is one entry in models/families.py"


def by_name(name: str) -> Family:
    """The family called `name`."""
    return next(family for family in FAMILIES if family.name == name)


def architecture_of(config: Mapping[str, Any]) -> str:
    """`architectures[0]` of config.json, or empty; a bare string is taken as a list of one."""
    said = config.get("architectures") or []
    said = [said] if isinstance(said, str) else said
    if not isinstance(said, list) or not all(isinstance(name, str) for name in said):
        raise ModelError(
            f"config.json says architectures={said!r}: "
            'expected a list of class names, such as ["LlamaForCausalLM"]'
        )
    return str(said[0]) if said else ""


def model_type_of(config: Mapping[str, Any]) -> str:
    """`model_type` of config.json, or empty."""
    said = config.get("model_type")
    if not isinstance(said, str | None):
        raise ModelError(f'config.json says model_type={said!r}: expected a name, such as "llama"')
    return said or ""


def family_of(
    config: Mapping[str, Any], tensors: Iterable[str], causal: Mapping[str, str]
) -> Family:
    """The family that reads this config.json: by architecture first, by model_type second.

    `causal` is transformers' table of causal LMs (model_type to class name). The file's tensor
    names decide where a wrapper kept the architecture name of what it wraps.
    """
    architecture, model_type = architecture_of(config), model_type_of(config)
    if architecture in UNSUPPORTED:
        raise FamilyError(f"{architecture} cannot be loaded: {UNSUPPORTED[architecture]}; {_ADD}")
    if any(name.startswith("denoise_model.") for name in tensors):
        return by_name("diffugpt" if model_type == "gpt2" else "diffullama")
    for family in FAMILIES:
        if architecture in family.architectures:
            return family
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


def unnamed_encoder(config: Mapping[str, Any], tensors: Iterable[str]) -> str | None:
    """model_type of an encoder whose config.json names nothing, as none did before 2020.

    transformers puts it before every tensor's name: bert.embeddings..., albert.encoder...
    """
    if architecture_of(config) or model_type_of(config):
        return None
    prefixes = {name.partition(".")[0] for name in tensors}
    return next((kind for kind in by_name("encoder").model_types if kind in prefixes), None)


def _unknown(said: str, causal: Mapping[str, str]) -> str:
    families = dict.fromkeys((*causal.values(), *causal), "causal")
    for family in FAMILIES:
        families |= dict.fromkeys(family.architectures + family.model_types, family.name)
    near = difflib.get_close_matches(said, families, n=1, cutoff=0.0)[0]
    return f"no family reads {said!r}: the nearest is {near} (family {families[near]!r}); {_ADD}"
