"""Let stories15M write stories for longer training than that of `lab/tales-*`.

    python recipes/write_stories.py --stories 12000

The network is read as it is (recipes/tales_base.py), on its own vocabulary. A story is kept if it
ends within the longest length and differs from all others. Batches are drawn by number: a second
call adds the batches that are missing, and the file is the same on one machine however often it was
stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

import tales_base
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from anchorwatch.trace.atomic_io import replace_file
from anchorwatch.trace.progress_bar import Progress

START, END = 1, 2
STORIES = 12_000
LENGTH = 320
"""Tokens of the longest story."""
BATCH = 192
TEMPERATURE, TOP_K, MIN_P = 0.8, 20, 0.05
"""Below 1 a network of this size misspells and forgets less; MIN_P is over the likeliest token."""


def build_writer(old: tales_base.Llama2c) -> LlamaForCausalLM:
    """stories15M as the stock class, unchanged."""
    config = LlamaConfig(
        vocab_size=len(old.tensors["embedding"]),
        hidden_size=old.dim,
        intermediate_size=old.hidden,
        num_hidden_layers=old.layers,
        num_attention_heads=old.heads,
        num_key_value_heads=old.heads,
        max_position_embeddings=LENGTH,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        pad_token_id=None,
    )
    network = LlamaForCausalLM(config)
    embedding = old.tensors["embedding"]
    layers, heads = tuple(range(old.layers)), old.heads
    state = tales_base.grow(old, embedding, layers=layers, heads=heads)
    network.load_state_dict(state, strict=False)
    network.tie_weights()
    return network.eval()


@torch.no_grad()
def write_batch(network: LlamaForCausalLM, number: int) -> list[list[int]]:
    """Ids of the stories of one batch that ended, without the start token."""
    generator = torch.Generator().manual_seed(number)
    cache, token = DynamicCache(config=network.config), torch.full((BATCH, 1), START)
    rows, stories = torch.arange(BATCH), []
    written: list[list[int]] = [[] for _ in range(BATCH)]
    for _ in range(LENGTH - 1):
        with torch.autocast("cpu", torch.bfloat16):
            logits = network(token, past_key_values=cache, use_cache=True).logits[:, -1]
        # Of the likeliest tokens one at random: the largest with Gumbel noise.
        some, tokens = logits.topk(TOP_K, dim=-1)
        some = some.float() / TEMPERATURE
        some[some < some[:, :1] + math.log(MIN_P)] = -torch.inf
        noise = -(-torch.rand(some.shape, generator=generator).log()).log()
        token = tokens.gather(1, (some + noise).argmax(dim=-1, keepdim=True))[:, 0]
        ended = (token == START) | (token == END)
        for row, word in zip(rows.tolist(), token.tolist(), strict=True):
            written[row].append(word)
        stories += [written[row][:-1] for row in rows[ended].tolist()]
        if bool(ended.all()):
            break
        # Rows that ended leave the batch.
        if float(ended.float().mean()) > 0:
            left = (~ended).nonzero().flatten()
            cache.batch_select_indices(left)
            rows, token = rows[left], token[left]
        token = token[:, None]
    return stories


def decode(pieces: tuple[bytes, ...], ids: list[int]) -> str | None:
    """The text, or None where it has other characters than ASCII's."""
    text = b"".join(pieces[token] for token in ids)
    return text.decode("ascii").strip() if text.isascii() else None


def write_stories(old: tales_base.Llama2c, path: Path, count: int) -> None:
    """Whole batches until there are so many stories; those in the file are not drawn again."""
    network, lines = build_writer(old), path.read_bytes().splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    seen = {record["text"] for record in records}
    batch = max((record["batch"] + 1 for record in records), default=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with Progress("stories", count, done=len(seen)) as bar:
        while len(seen) < count:
            written = [decode(old.pieces, ids) for ids in write_batch(network, batch)]
            texts = {text: None for text in written if text and text not in seen}
            lines += [json.dumps({"text": text, "batch": batch}).encode() for text in texts]
            replace_file(path, b"\n".join(lines) + b"\n")
            seen.update(texts)
            batch += 1
            bar.advance(count=len(texts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/tales/stories.jsonl"))
    parser.add_argument("--stories", type=int, default=STORIES)
    parser.add_argument("--data", type=Path, help="llama2.data, where it is there already")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        data = options.data or tales_base.fetch_package(Path(scratch))
        write_stories(tales_base.read_llama2c(data), options.out, options.stories)
    print(options.out, file=sys.stderr)


if __name__ == "__main__":
    main()
