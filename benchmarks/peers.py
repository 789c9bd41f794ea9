"""Attention received by every key, layer and head, against other tools: `make bench-peers`.

All arms read the same Llama-shaped weights and the same canvas in one process, and give the same
numbers: [layer, head, key] attention received, summed over queries. They take turns; time is CPU
time of the process (the machine may be shared), and a ratio is the median over turns of two arms'
times in one turn. Memory is what the process took above its resting size, less what the plain pass
took. An arm whose package is not installed is left out and named.
"""

import argparse
import gc
import json
import os
import platform
import statistics
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from attention import Peak, turned
from transformers import AutoModelForCausalLM, LlamaConfig

from anchorwatch.models.attention import NAME, observe, register
from anchorwatch.probes.reduce import StatRequest, reduce_attention

SHAPES = {
    "narrow heads": {"hidden": 256, "heads": 8, "inner": 512},
    "LLaDA's heads": {"hidden": 1024, "heads": 8, "inner": 3072},
}
"""Narrow heads spend most of a pass in attention; heads of 128 channels are LLaDA-8B's."""
PACKAGES = ("torch", "transformers", "nnsight", "transformer-lens")


def build(hidden, heads, inner, layers, positions):
    """A bidirectional Llama with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=positions,
    )
    config.is_causal = False
    register()
    network = AutoModelForCausalLM.from_config(config, attn_implementation=NAME).eval()
    return network.requires_grad_(False)


class Received:
    """Keeps what each key receives: the reduction that the `received` probe makes."""

    def __init__(self, length):
        self.wanted = StatRequest(weights=torch.ones(1, 1, length))
        self.layers = []

    def wants(self, layer):
        return True

    def on_attention(self, call):
        self.layers.append(reduce_attention(call, self.wanted).sums[0, :, 0])


def ours(network, canvas):
    observer = Received(canvas.shape[1])
    with observe(observer):
        network(canvas)
    return torch.stack(observer.layers)


def eager(network, canvas):
    network.set_attn_implementation("eager")
    maps = network(canvas, output_attentions=True).attentions
    network.set_attn_implementation(NAME)
    return torch.stack([layer[0].sum(dim=1) for layer in maps])


def recomputed(network, canvas):
    """The reference method: keep hidden states, then rebuild each layer's map outside."""
    states = network.model(canvas, output_hidden_states=True).hidden_states
    size = network.config.head_dim
    cos, sin = network.model.rotary_emb(states[0], torch.arange(canvas.shape[1])[None])
    received = []
    for layer, state in zip(network.model.layers, states, strict=False):
        normed = layer.input_layernorm(state)
        shape = (1, canvas.shape[1], -1, size)
        query = layer.self_attn.q_proj(normed).view(shape).transpose(1, 2)
        key = layer.self_attn.k_proj(normed).view(shape).transpose(1, 2)
        query, key = (turned(x, cos, sin) for x in (query, key))
        maps = torch.softmax(query @ key.transpose(2, 3) * size**-0.5, dim=-1)
        received.append(maps[0].sum(dim=1))
    return torch.stack(received)


def nnsight_arm(network):
    """nnsight's trace of the eager network: each layer's map is reduced inside the trace."""
    from nnsight import NNsight

    wrapped = NNsight(network)

    def work(_, canvas):
        network.set_attn_implementation("eager")
        received = []
        with wrapped.trace(canvas):
            for layer in wrapped.model.layers:
                received.append(layer.self_attn.output[1][0].sum(dim=1).save())
        network.set_attn_implementation(NAME)
        return torch.stack(list(received))

    return work


def arms_of(network):
    """Every arm that can run here, and why others cannot."""
    arms = {"plain": lambda net, canvas: net(canvas), "anchorwatch": ours}
    arms |= {"eager": eager, "recomputed": recomputed}
    missing = {}
    try:
        arms["nnsight"] = nnsight_arm(network)
    except ImportError as error:
        missing["nnsight"] = str(error)
    return arms, missing


@torch.no_grad()
def compare(shape, layers, length, turns):
    """One row for each arm: median seconds, ratio to ours, memory above plain, gap to eager."""
    # 1. The same weights and canvas for all; an arm that fails is said and left out.
    network = build(**SHAPES[shape], layers=layers, positions=length)
    canvas = torch.randint(5, 500, (1, length), generator=torch.Generator().manual_seed(0))
    arms, missing = arms_of(network)
    exact = eager(network, canvas)
    rows = {}
    # 2. Turns; the first one warms up and gives the numbers to compare.
    seconds = {name: [] for name in arms}
    for turn in range(turns + 1):
        for name, work in arms.items():
            gc.collect()
            with Peak() as peak:
                start = time.process_time()
                result = work(network, canvas)
                spent = time.process_time() - start
            row = rows.setdefault(name, {"bytes": 0})
            if turn:
                seconds[name].append(spent)
                row["bytes"] = max(row["bytes"], peak.bytes)
            elif name != "plain":
                row["gap"] = float((result - exact).abs().max() / exact.abs().max())
            del result
    # 3. Ratios within a turn.
    for name, row in rows.items():
        row["seconds"] = statistics.median(seconds[name])
        pairs = zip(seconds[name], seconds["anchorwatch"], strict=True)
        row["times_ours"] = statistics.median(theirs / mine for theirs, mine in pairs)
        row["above_plain"] = max(row["bytes"] - rows["plain"]["bytes"], 0)
    print(f"\n{shape}, {layers} layers, T = {length}", *missing.items())
    for name, row in rows.items():
        print(
            f"  {name:<12} {row['seconds']:8.3f} s  {row['times_ours']:5.2f}x ours  "
            f"{row['above_plain'] / 1e6:8.1f} MB above plain  gap {row.get('gap', 0):.1e}",
            flush=True,
        )
    return rows


def exponent(sizes, values):
    """Slope of log value against log size: 1 is linear, 2 is quadratic."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1)), 1)[0])


def bytes_made(length, layers=1):
    """Bytes that our reduction allocates for one pass: counted, so the same on any machine."""
    network = build(**SHAPES["narrow heads"], layers=layers, positions=length)
    canvas = torch.randint(5, 500, (1, length))
    counted = [0]

    class Counting(Received):
        def on_attention(self, call):
            with torch.profiler.profile(profile_memory=True) as profile:
                super().on_attention(call)
            counted[0] += sum(
                max(event.self_cpu_memory_usage, 0) for event in profile.key_averages()
            )

    with torch.no_grad(), observe(Counting(length)):
        network(canvas)
    return counted[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 2048])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-peers.json"))
    given = parser.parse_args()
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    facts = {"machine": platform.machine(), "threads": torch.get_num_threads()} | versions
    facts["load"] = os.getloadavg()[0]
    print(" ".join(f"{name}={value}" for name, value in facts.items()))
    rows = {
        f"{shape}, T = {length}": compare(shape, given.layers, length, given.turns)
        for shape in SHAPES
        for length in given.lengths
    }
    sizes = [512, 1024, 2048, 4096]
    made = {length: bytes_made(length) for length in sizes}
    growth = exponent(sizes, list(made.values()))
    print(f"\nbytes allocated by the reduction of a layer: {made}, exponent in T {growth:.2f}")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(
        json.dumps({"facts": facts, "rows": rows, "bytes": made, "exponent": growth}, indent=1)
    )


if __name__ == "__main__":
    main()
