"""What exact savings, caches and batches save, as ratios of one run: `make bench-decoding`.

Passes of a network with LLaDA-8B's layer shape and vocabulary (four layers that share their
weights, float32, random) over a prompt of 256 and an answer of 128 in blocks of 32, one commit a
step. A whole run would be 128 passes of one kind: it is composed of timed passes. Times are CPU
seconds of one thread, the best of `--turns`; ratios do not depend on what else the machine does.
The divergence of the cached pass is measured on the same canvas as the exact one. Then batches of
eight prompts on lab models, whose canvases must be those of single runs.
"""

import argparse
import copy
import json
import platform
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import anchorwatch as aw
from anchorwatch.generation.cached_pass import KeptKeys
from anchorwatch.generation.caches import CacheContext, dual
from anchorwatch.models.attention import NAME, register
from anchorwatch.models.families import by_name
from anchorwatch.models.model import Model
from anchorwatch.models.tokens import Specials

PROMPT, ANSWER, BLOCK, LAYERS, VOCABULARY = 256, 128, 32, 4, 126_464
LIMITS = {"exact": 1.3, "dual": 4.0, "batch": 1.5}
LAB = ("lab/toy-mdm", "lab/tales-mdm")


def llada_with_vocabulary(layers=LAYERS, vocabulary=VOCABULARY, width=4096):
    """A bidirectional Llama of LLaDA-8B's shape; its layers share their weights to save memory."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=1,
        num_attention_heads=width // 128,
        num_key_value_heads=width // 128,
        max_position_embeddings=PROMPT + ANSWER,
        tie_word_embeddings=True,
        use_cache=False,
    )
    config.is_causal = False
    register()
    network = AutoModelForCausalLM.from_config(config, attn_implementation=NAME).eval()
    first = network.model.layers[0]
    for index in range(1, layers):
        layer, attention = copy.copy(first), copy.copy(first.self_attn)
        attention.layer_idx = index
        layer._modules = dict(first._modules) | {"self_attn": attention}
        network.model.layers.append(layer)
    config.num_hidden_layers = layers
    mask = vocabulary - 1
    specials = Specials(mask, (2,), (2,), 1, 0, frozenset({0, 1, 2, mask}))
    return Model("benchmark", by_name("llada"), network.requires_grad_(False), None, specials)


def seconds(work, turns):
    """(CPU seconds of the fastest turn, its result)."""
    best = None
    for _ in range(turns):
        start = time.process_time()
        result = work()
        spent = time.process_time() - start
        best = spent if best is None else min(best, spent)
    return best, result


def time_passes(model, turns):
    """Seconds of each kind of pass in the middle of a block, and how far the cached one is off."""
    # 1. The canvas when the first block opens, and when half of it is written.
    torch.manual_seed(0)
    length = PROMPT + ANSWER
    opened = torch.randint(3, model.vocab_size - 1, (length,))
    opened[PROMPT:] = model.mask_id
    canvas = opened.clone()
    written = torch.arange(PROMPT, PROMPT + BLOCK, 2)
    canvas[written] = torch.randint(3, model.vocab_size - 1, (len(written),))
    read = torch.arange(PROMPT + 1, PROMPT + BLOCK, 2)
    # 2. Whole passes, with all logits and with those that the step reads.
    plain, _ = seconds(lambda: model.logits(canvas), turns)
    exact, logits = seconds(lambda: model.logits(canvas, columns=read), turns)
    # 3. The block alone, beside what the block's first pass left.
    kept, inside = KeptKeys(dual()), torch.zeros(length, dtype=torch.bool)
    inside[PROMPT : PROMPT + BLOCK] = True

    def block_pass(ids, rows, step):
        now = CacheContext(step, step, inside.numpy(), *[inside.numpy()] * 3)
        kept.begin_pass(rows, now)
        return model.logits_of_rows(ids, rows.nonzero()[:, 0], read, kept)

    block_pass(opened, inside | True, 0)
    cached, rows = seconds(lambda: block_pass(canvas, inside, 1), max(turns, 2))
    # 4. Divergence from the whole pass over the same canvas.
    p, q = (each.double().log_softmax(dim=-1) for each in (logits, rows))
    return {
        "plain": plain,
        "exact": exact,
        "dual": cached,
        "kl": float((p.exp() * (p - q)).sum(dim=-1).mean()),
        "flips": float((logits.argmax(dim=-1) != rows.argmax(dim=-1)).float().mean()),
    }


def compose(passes):
    """Ratios to the plain run: 128 steps, of which four open a block."""
    steps, blocks = ANSWER, ANSWER // BLOCK
    plain = steps * passes["plain"]
    return {
        "exact": plain / (steps * passes["exact"]),
        "dual": plain / (blocks * passes["exact"] + (steps - blocks) * passes["dual"]),
    }


def time_batches(name, turns):
    """How much faster eight prompts are together, and how many canvases differ."""
    model = aw.load(name)
    texts = [f"Question: where is the {word}? Answer:" for word in WORDS]
    decoding = aw.decoding.LowConfidence(length=16, steps=8)

    def run(batch):
        return aw.run_many(model, texts, decoding, probes=(), batch=batch)

    alone, singles = seconds(lambda: run(1), turns)
    together, rows = seconds(lambda: run(8), turns)
    differ = sum((a.canvas != b.canvas).any() for a, b in zip(singles, rows, strict=True))
    narrow = sum(int(trace["narrow"].sum()) for trace in singles)
    return {"batch": alone / together, "differ": int(differ), "near_ties": narrow}


WORDS = ("ship", "bay", "old harbour", "dog", "red lamp", "north", "anchor", "little boat")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="a narrow network, to try the script")
    parser.add_argument("--json", help="put the numbers into this file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    result = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
    for name in LAB:
        result[name] = time_batches(name, max(given.turns, 2))
        print(f"{name}: eight prompts together {result[name]}  (limit {LIMITS['batch']}x)")
    model = llada_with_vocabulary(**({"width": 256, "vocabulary": 1000} if given.small else {}))
    result["passes"] = time_passes(model, given.turns)
    result["ratios"] = compose(result["passes"])
    print({name: round(value, 4) for name, value in result["passes"].items()})
    for name, ratio in result["ratios"].items():
        print(f"{name}: {ratio:.2f}x plain  (limit {LIMITS[name]}x)")
    if given.json:
        # The page's file has other sections, which stay.
        path = Path(given.json)
        kept = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(kept | {"decoding": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
