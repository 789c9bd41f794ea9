"""Tiny checkpoints under the names their authors released them with, made from seeded stock networks."""

import json
import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from anchorwatch.models import trained_additions

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MASK = 95
GOLDEN = Path(__file__).parent / "golden"


def network(model_type, *, masked=False, bidirectional=False, **differs):
    """A seeded stock network with weights large enough for attention to matter."""
    config = AutoConfig.for_model(model_type, **(SMALL | differs))
    if bidirectional:
        config.is_causal = False
    torch.manual_seed(7)
    auto = AutoModelForMaskedLM if masked else AutoModelForCausalLM
    made = auto.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return made


def tensors_of(made):
    """The state dict as a file holds it: tied copies left out, memory its own."""
    tied = set(made.all_tied_weights_keys)
    return {k: v.clone().contiguous() for k, v in made.state_dict().items() if k not in tied}


def write(folder, config, tensors):
    """A checkpoint folder as the hub would hold it."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


LLADA_NAMES = (
    (r"^model\.embed_tokens\.", "model.transformer.wte."),
    (r"^model\.norm\.", "model.transformer.ln_f."),
    (r"^lm_head\.", "model.transformer.ff_out."),
    (r"^model\.layers\.(\d+)\.input_layernorm\.", r"model.transformer.blocks.\1.attn_norm."),
    (r"^model\.layers\.(\d+)\.post_attention_layernorm\.", r"model.transformer.blocks.\1.ff_norm."),
    (r"^model\.layers\.(\d+)\.self_attn\.o_proj\.", r"model.transformer.blocks.\1.attn_out."),
    (r"^model\.layers\.(\d+)\.self_attn\.", r"model.transformer.blocks.\1."),
    (r"^model\.layers\.(\d+)\.mlp\.gate_proj\.", r"model.transformer.blocks.\1.ff_proj."),
    (r"^model\.layers\.(\d+)\.mlp\.down_proj\.", r"model.transformer.blocks.\1.ff_out."),
    (r"^model\.layers\.(\d+)\.mlp\.up_proj\.", r"model.transformer.blocks.\1.up_proj."),
)


def llada_names(tensors):
    out = {}
    for name, tensor in tensors.items():
        for pattern, replacement in LLADA_NAMES:
            if re.match(pattern, name):
                name = re.sub(pattern, replacement, name)
                break
        out[name] = tensor
    return out


def llada_config(**differs):
    return {
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        "block_type": "llama",
        "layer_norm_type": "rms",
        "activation_type": "silu",
        "rope": True,
        "alibi": False,
        "include_bias": False,
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "mlp_hidden_size": 48,
        "vocab_size": 90,
        "embedding_size": 96,
        "max_sequence_length": 64,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-6,
        "mask_token_id": MASK,
        "eos_token_id": 2,
        "weight_tying": False,
    } | differs


def write_llada(folder, **differs):
    """(folder, the network it was made from)."""
    made = network("llama", bidirectional=True, rope_theta=500000.0, rms_norm_eps=1e-6)
    return write(folder, llada_config(**differs), llada_names(tensors_of(made))), made


def write_tokenizer(folder, **special):
    """A byte-level tokenizer.json of the size of SMALL, with the special tokens asked for."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[: SMALL["vocab_size"] - 8]
    vocab = {letter: i for i, letter in enumerate(letters)}
    backend = Tokenizer(BPE(vocab, [], unk_token=letters[0]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    tokenizer.save_pretrained(folder)
    return tokenizer


ENCODERS = {
    "bert": {},
    "albert": {"embedding_size": 16},
    "roberta": {"pad_token_id": 1},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "modernbert": {"local_attention": 4, "global_attn_every_n_layers": 2},
}

CAUSAL = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "mistral": {"sliding_window": None},
    "gemma": {"head_dim": 8},
    "gpt2": {"n_positions": 64},
    "gpt_neox": {},
}


def lit_gpt_tensors(*, extra_rows, gate, layers=2, width=32, groups=2, heads=4, outputs=90):
    torch.manual_seed(3)
    size = width // heads

    def random(*shape):
        return torch.randn(*shape) * 0.3

    tensors = {
        "transformer.wte.weight": random(outputs + extra_rows, width),
        "transformer.ln_f.weight": 1 + random(width),
        "lm_head.weight": random(outputs, width),
    }
    for layer in range(layers):
        at = f"transformer.h.{layer}."
        tensors[at + "norm_1.weight"] = 1 + random(width)
        tensors[at + "norm_2.weight"] = 1 + random(width)
        tensors[at + "attn.attn.weight"] = random((heads + 2 * groups) * size, width)
        tensors[at + "attn.proj.weight"] = random(width, width)
        if gate:
            tensors[at + "attn.gate.weight"] = random(width, width)
        tensors[at + "mlp.swiglu.w1.weight"] = random(48, width)
        tensors[at + "mlp.swiglu.w2.weight"] = random(48, width)
        tensors[at + "mlp.swiglu.w3.weight"] = random(width, 48)
    return tensors


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path, *more):
    """A Llama as llama.cpp keeps it, queries and keys interleaved; returns the network it holds."""
    import gguf

    made = network("llama")
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(made.config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(96)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(93))])
    writer.add_token_scores([0.0] * 96)
    writer.add_token_types([2, 3, 3] + [6] * 93)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, tensor in tensors_of(made).items():
        stem, at = name.removesuffix(".weight"), ""
        if stem not in GGUF_NAMES:
            _, _, layer, stem = stem.split(".", 3)
            at = f"blk.{layer}."
        if heads := {"self_attn.q_proj": 4, "self_attn.k_proj": 2}.get(stem):
            halves = tensor.view(heads, 2, tensor.shape[0] // heads // 2, -1)
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        writer.add_tensor(f"{at}{GGUF_NAMES[stem]}.weight", tensor.numpy())
    for name in more:
        writer.add_tensor(name, torch.ones(4).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


def _as_llada():
    return network("llama", bidirectional=True, rope_theta=500000.0, rms_norm_eps=1e-6)


def trained(folder, parts, *, change=0.1):
    """A folder as training leaves it: the network's tensors, and the parts with their digests."""
    made = _as_llada()
    trained_additions.attach(made, parts)
    torch.manual_seed(1)
    with torch.no_grad():
        for name in trained_additions.tensor_names(made, parts):
            held = made.get_parameter(name)
            held.add_(change * torch.randn_like(held))
    now = trained_additions.collect_trained_parts(made, parts)
    config = llada_config() | {"anchorwatch": {"parts": [part.as_dict() for part in now]}}
    own = trained_additions.tensor_names(
        made, parts
    )  # these keep their names whatever the family's are
    tensors = {k: v.clone().contiguous() for k, v in made.state_dict().items()}
    named = llada_names({k: v for k, v in tensors.items() if k not in own})
    return write(folder, config, named | {k: tensors[k] for k in own}), now


def without_parts(folder):
    """The same network without any part."""
    return write(folder, llada_config(), llada_names(tensors_of(_as_llada())))
