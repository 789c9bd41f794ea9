"""Attention received by every key, layer and head, against other tools: `make bench-peers`.

All arms read the same Llama-shaped weights and the same canvas in one process, each through a
network of its own, and give the same numbers: [layer, head, key] attention received, summed over
queries. Each tool is used the way that keeps least: maps are reduced inside its hook or trace where
it has one. Arms take turns; time is CPU time of the process, and a ratio is the median over turns
of two arms' times in one turn. Memory is the process's own peak in a turn of its own, with the heap
given back before it. The truth is the same network in float64.

Sections: received, attention (one layer's attention without the linear layers), growth, likelihood.
What is measured is kept in the JSON file at once, and not
measured again without --again. With --turns 0 memory and errors are measured and no times, which a
busy machine would spoil; times are added by a later run. docs/benchmarks.py makes tables and plots.
"""

import argparse
import ctypes
import gc
import json
import os
import platform
import statistics
import tempfile
import time
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from attention import turned
from transformers import AutoModelForCausalLM, LlamaConfig

import anchorwatch as aw
from anchorwatch.models.attention import NAME, attend, observe, register
from anchorwatch.models.families import by_name
from anchorwatch.models.model import Model
from anchorwatch.models.tokens import Specials
from anchorwatch.probes.reduce import StatRequest, reduce_attention

SHAPES = {
    "heads of 32": {"hidden": 256, "heads": 8, "inner": 512},
    "heads of 64": {"hidden": 512, "heads": 8, "inner": 1024},
    "heads of 128": {"hidden": 1024, "heads": 8, "inner": 3072},
    "heads of 128, grouped": {"hidden": 1024, "heads": 8, "key_heads": 2, "inner": 3072},
}
"""Heads of 128 channels are LLaDA-8B's; grouped ones (four to a key head) are Dream's."""
LENGTHS = (64, 256, 1024, 2048)
LAYERS = 4
PACKAGES = ("torch", "transformers", "nnsight", "nnterp", "transformer-lens", "lm-eval")
OUT = Path(__file__).parents[1] / "docs" / "benchmarks.json"
MASK = 511


def build(hidden, heads, inner, layers, positions, key_heads=None):
    """A bidirectional Llama with random weights: the same at every call."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads or heads,
        max_position_embeddings=positions,
        use_cache=False,
    )
    config.is_causal = False
    register()
    network = AutoModelForCausalLM.from_config(config, attn_implementation=NAME).eval()
    return network.requires_grad_(False)


def canvas_of(length, batch=1):
    return torch.randint(5, 500, (batch, length), generator=torch.Generator().manual_seed(0))


class Received:
    """Keeps what each key receives: the reduction that the `received` probe makes."""

    def __init__(self, canvas):
        self.wanted = StatRequest(weights=torch.ones(canvas.shape[0], 1, canvas.shape[1]))
        self.layers = []

    def wants(self, layer):
        return True

    def on_attention(self, call):
        self.layers.append(reduce_attention(call, self.wanted).sums[:, :, 0])


# Each arm: from a fresh network to a function of the canvas that gives [B, layer, head, key] and
# the bytes of attention that were kept at once.


def plain_arm(network):
    def work(canvas):
        network(canvas)
        return None, 0

    return work


def our_arm(network):
    def work(canvas):
        observer = Received(canvas)
        with observe(observer):
            network(canvas)
        return torch.stack(observer.layers, dim=1), 0

    return work


def eager_arm(network):
    """transformers with output_attentions: every map is kept until the pass is over."""
    network.set_attn_implementation("eager")

    def work(canvas):
        maps = network(canvas, output_attentions=True).attentions
        kept = sum(layer.numel() * layer.element_size() for layer in maps)
        return torch.stack([layer.sum(dim=2) for layer in maps], dim=1), kept

    return work


def recomputed_arm(network):
    """The reference method: keep hidden states, then rebuild each layer's map outside."""
    size = network.config.head_dim
    repeats = network.config.num_attention_heads // network.config.num_key_value_heads

    def work(canvas):
        states = network.model(canvas, output_hidden_states=True).hidden_states
        cos, sin = network.model.rotary_emb(states[0], torch.arange(canvas.shape[1])[None])
        received = []
        for layer, state in zip(network.model.layers, states, strict=False):
            normed = layer.input_layernorm(state)
            shape = (*canvas.shape, -1, size)
            query = layer.self_attn.q_proj(normed).view(shape).transpose(1, 2)
            key = layer.self_attn.k_proj(normed).view(shape).transpose(1, 2)
            query, key = (turned(x, cos, sin) for x in (query, key))
            key = key.repeat_interleave(repeats, dim=1)
            maps = torch.softmax(query @ key.transpose(2, 3) * size**-0.5, dim=-1)
            received.append(maps.sum(dim=2))
        return torch.stack(received, dim=1), maps.numel() * maps.element_size()

    return work


def nnsight_arm(network):
    """nnsight's trace of the eager network: each layer's map is reduced inside the trace."""
    from nnsight import NNsight

    network.set_attn_implementation("eager")
    wrapped = NNsight(network)

    def work(canvas):
        with wrapped.trace(canvas):
            received = list().save()
            for layer in wrapped.model.layers:
                received.append(layer.self_attn.output[1].sum(dim=2))
        return torch.stack(list(received), dim=1), one_map(network, canvas)

    return work


def nnterp_arm(network):
    """nnterp's accessor of attention probabilities, on nnsight."""
    from nnterp import StandardizedTransformer
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    network.set_attn_implementation("eager")
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="a", pad_token="b", eos_token="c", bos_token="c"
    )
    wrapped = StandardizedTransformer(network, tokenizer=tokenizer, enable_attention_probs=True)
    layers = network.config.num_hidden_layers

    def work(canvas):
        with wrapped.trace(canvas):
            received = list().save()
            for layer in range(layers):
                received.append(wrapped.attention_probabilities[layer].sum(dim=2))
        return torch.stack(list(received), dim=1), one_map(network, canvas)

    return work


def lens_arm(network):
    """TransformerLens: its bridge over the same network, each pattern reduced in a hook."""
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    config = network.config
    network.set_attn_implementation("eager")
    bridge = build_bridge_from_module(network, "LlamaForCausalLM", hf_config=config)
    for block in bridge.blocks:  # its Llama looks back only, unless this says otherwise
        vars(block.attn)["is_causal"] = False

    def work(canvas):
        received = []
        hook = (
            lambda name: name.endswith("hook_pattern"),
            lambda pattern, hook: received.append(pattern.sum(dim=2)),
        )
        bridge.run_with_hooks(canvas, return_type=None, fwd_hooks=[hook])
        batch, length = canvas.shape
        return torch.stack(received, dim=1), 4 * batch * config.num_attention_heads * length**2

    return work


def one_map(network, canvas):
    """Bytes of one layer's map."""
    batch, length = canvas.shape
    return 4 * batch * network.config.num_attention_heads * length**2


ARMS = {
    "plain": plain_arm,
    "anchorwatch": our_arm,
    "HF eager": eager_arm,
    "recomputed": recomputed_arm,
    "nnsight": nnsight_arm,
    "nnterp": nnterp_arm,
    "TransformerLens": lens_arm,
}


def build_arms(shape, layers, positions, names=None):
    """Every arm that can run here, and why others cannot."""
    arms, missing = {}, {}
    for name in names or ARMS:
        try:
            arms[name] = ARMS[name](build(**SHAPES[shape], layers=layers, positions=positions))
        except ImportError as error:
            missing[name] = str(error)
    return arms, missing


def give_back():
    """Return freed memory to the machine, so that a peak is what an arm takes itself."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def peak_of(work, canvas):
    """Bytes that the process takes at most above where it stood."""
    give_back()
    Path("/proc/self/clear_refs").write_text("5")
    before = memory_of("VmRSS")
    work(canvas)
    return max(memory_of("VmHWM") - before, 0)


def memory_of(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def take_turns(arms, canvas, turns):
    """CPU seconds of each arm in each turn; every turn begins with another arm."""
    seconds, names = {name: [] for name in arms}, list(arms)
    for turn in range(turns + 1 if turns else 0):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            start = time.process_time()
            arms[name](canvas)
            if turn:  # the first one warms up
                seconds[name].append(time.process_time() - start)
    return seconds


@torch.no_grad()
def compare(shape, length, turns, layers=LAYERS):
    """One row for each arm: seconds, ratio to ours, memory above plain, bytes kept, error."""
    # 1. The same weights and canvas for all, and the truth in float64.
    canvas = canvas_of(length)
    arms, missing = build_arms(shape, layers, length)
    truth = eager_arm(build(**SHAPES[shape], layers=layers, positions=length).double())(canvas)[0]
    rows = {}
    for name, work in arms.items():
        received, kept = work(canvas)
        row = rows[name] = {"kept": kept}
        if received is not None:
            row["error"] = float((received - truth).abs().max() / truth.abs().max())
        del received
        row["peak"] = min(peak_of(work, canvas) for _ in range(2))
        row["above_plain"] = max(row["peak"] - rows["plain"]["peak"], 0)
    result = {"rows": rows, "missing": missing}
    # 2. Times, and ratios within a turn; how much of the eager pass is attention.
    if turns:
        seconds = take_turns(arms, canvas, turns)
        for name, row in rows.items():
            pairs = zip(seconds[name], seconds["anchorwatch"], strict=True)
            row["seconds"] = statistics.median(seconds[name])
            row["times_ours"] = statistics.median(theirs / mine for theirs, mine in pairs)
        eager_seconds = rows["HF eager"]["seconds"]
        result["attention_share"] = attention_share(shape, length, layers, eager_seconds)
    print(f"\n{shape}, T = {length}, attention {result.get('attention_share')}", missing or "")
    for name, row in rows.items():
        print(
            f"  {name:<16} {row.get('seconds', 0):8.4f} s  {row.get('times_ours', 0):5.2f}x ours  "
            f"{row['above_plain'] / 1e6:8.1f} MB above plain  error {row.get('error', 0):.1e}",
            flush=True,
        )
    return result


def attention_share(shape, length, layers, eager_seconds):
    """Seconds of eager attention alone, as a share of the whole eager pass."""
    from transformers.models.llama.modeling_llama import eager_attention_forward

    network = build(**SHAPES[shape], layers=1, positions=8)
    module, size = network.model.layers[0].self_attn, network.config.head_dim
    query = torch.randn(1, network.config.num_attention_heads, length, size)
    key, value = torch.randn(2, 1, network.config.num_key_value_heads, length, size).unbind()
    times = []
    for _ in range(4):
        start = time.process_time()
        kept = [
            eager_attention_forward(module, query, key, value, None, size**-0.5)
            for _ in range(layers)
        ]
        times.append(time.process_time() - start)
        del kept
    return min(min(times) / eager_seconds, 1.0)


@torch.no_grad()
def attention_alone(shape, turns, length=1024):
    """One layer's attention, watched by us or reduced from eager attention's map; quartiles."""
    from transformers.models.llama.modeling_llama import eager_attention_forward

    network = build(**SHAPES[shape], layers=1, positions=8)
    module, size = network.model.layers[0].self_attn, network.config.head_dim
    heads = (network.config.num_attention_heads, *[network.config.num_key_value_heads] * 2)
    # As projections leave them: the heads of a position lie side by side.
    parts = [torch.randn(1, length, count, size).transpose(1, 2) for count in heads]

    def ours(canvas):
        with observe(Received(canvas)):
            attend(module, *parts, None, scaling=size**-0.5)

    arms = {
        "plain": lambda _: attend(module, *parts, None, scaling=size**-0.5),
        "anchorwatch": ours,
        "HF eager": lambda _: eager_attention_forward(module, *parts, None, size**-0.5)[1].sum(2),
    }
    seconds = take_turns(arms, canvas_of(length), 4 * turns)
    pairs = zip(seconds["HF eager"], seconds["anchorwatch"], strict=True)
    ratios = statistics.quantiles([theirs / mine for theirs, mine in pairs], n=4)
    print(f"attention alone, {shape}, T = {length}: HF eager {ratios} times ours", flush=True)
    rows = {name: {"seconds": statistics.median(each)} for name, each in seconds.items()}
    rows["HF eager"]["times_ours"] = ratios
    return {"rows": rows}


GROWTH = {
    "T": (256, 512, 1024, 2048),
    "layers": (2, 4, 8, 16),
    "batch": (1, 2, 4, 8),
}
GROWN = ("plain", "anchorwatch", "HF eager", "TransformerLens")
MOST_BYTES = 3_000_000_000


@torch.no_grad()
def grow(axis, turns):
    """Seconds and peak bytes of each arm along one axis, heads of 32, and fitted exponents."""
    rows = {name: {"size": [], "seconds": [], "above_plain": []} for name in GROWN}
    for size in GROWTH[axis]:
        at = {"T": 512, "layers": 2, "batch": 1} | {axis: size}
        canvas = canvas_of(at["T"], at["batch"])
        # An arm that keeps every map is left out where it would not fit.
        maps = 4 * at["batch"] * at["layers"] * 8 * at["T"] ** 2
        names = [name for name in GROWN if name != "HF eager" or 3 * maps < MOST_BYTES]
        arms, _ = build_arms("heads of 32", at["layers"], at["T"], names)
        seconds = take_turns(arms, canvas, turns)
        peaks = {name: min(peak_of(work, canvas) for _ in range(2)) for name, work in arms.items()}
        for name in arms:
            rows[name]["size"].append(size)
            rows[name]["seconds"] += [statistics.median(seconds[name])] if turns else []
            rows[name]["above_plain"].append(max(peaks[name] - peaks["plain"], 0))
        if axis != "T":
            continue
        made = bytes_made(at["T"], at["layers"])
        rows["anchorwatch"].setdefault("bytes_made", []).append(made)
    return finish_growth(axis, rows)


def grow_steps(turns):
    """Whole runs streamed to disk, by the number of steps: what memory and time they take."""
    rows = {name: {"size": [], "seconds": [], "above_plain": []} for name in ("plain", "received")}
    network = build(**SHAPES["heads of 32"], layers=4, positions=256)
    specials = Specials(MASK, (2,), (2,), 1, 0, frozenset({0, 1, 2, MASK}))
    model = Model("benchmark", by_name("llada"), network, None, specials)
    prompt = canvas_of(128)[0].tolist()
    _ = model.digest
    for steps in (8, 16, 32, 64):
        decoding = aw.decoding.LowConfidence(length=64, steps=steps)

        def run(probes, decoding=decoding):
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "run.trace"
                aw.run(model, prompt, decoding, probes=probes, out=out)

        arms = {"plain": lambda _: run(()), "received": lambda _: run((aw.probes.received(),))}
        seconds = take_turns(arms, None, turns)
        for name, work in arms.items():
            rows[name]["size"].append(steps)
            rows[name]["seconds"] += [statistics.median(seconds[name])] if turns else []
            rows[name]["above_plain"].append(min(peak_of(work, None) for _ in range(2)))
    return finish_growth("steps", rows)


def finish_growth(axis, rows):
    """With the fitted exponents of time, and of memory where there is any."""
    for name, row in rows.items():
        if row["seconds"]:
            row["time_exponent"] = exponent(row["size"], row["seconds"])
        if min(row["above_plain"], default=0) > 0:
            row["memory_exponent"] = exponent(row["size"], row["above_plain"])
        if "bytes_made" in row:
            row["bytes_made_exponent"] = exponent(row["size"], row["bytes_made"])
        print(axis, name, {key: row[key] for key in row if key != "size"}, flush=True)
    return rows


def exponent(sizes, values):
    """Slope of log value against log size: 1 is linear, 2 is quadratic."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-9)), 1)[0])


def bytes_made(length, layers):
    """Bytes that our reductions allocate in one pass: counted, so the same on any machine."""
    network = build(**SHAPES["heads of 32"], layers=layers, positions=length)
    counted = [0]

    class Counting(Received):
        def on_attention(self, call):
            with torch.profiler.profile(profile_memory=True) as profile:
                super().on_attention(call)
            counted[0] += sum(
                max(event.self_cpu_memory_usage, 0) for event in profile.key_averages()
            )

    canvas = canvas_of(length)
    with observe(Counting(canvas)):
        network(canvas)
    return counted[0]


def likelihoods(turns):
    """Log-likelihood of answers by lm-eval's `hf` and by ours, on the same autoregressive model."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model = aw.load("lab/tales-arm")
    pairs = [  # all different: lm-eval computes equal requests once
        (f"Once upon a time there was a {kind} {word} by the sea.", f" The {word} was happy.")
        for kind in ("big", "little", "red", "blue")
        for word in ("girl", "boy", "dog", "cat", "bird", "fish", "king", "queen")
    ]
    with tempfile.TemporaryDirectory() as folder:
        model.network.set_attn_implementation("sdpa")
        model.network.save_pretrained(folder)
        model.tokenizer.save_pretrained(folder)
        model.network.set_attn_implementation(NAME)
        theirs = HFLM(pretrained=folder, device="cpu", dtype="float32", batch_size=8)
    requests = [Instance("loglikelihood", {}, pair, 0) for pair in pairs]
    arms = {
        "lm-eval hf": lambda _: [
            value for value, _ in theirs.loglikelihood(requests, disable_tqdm=True)
        ],
        "anchorwatch": lambda _: [
            each.value for each in aw.evaluation.loglikelihoods(model, pairs, batch=8)
        ],
    }
    values = {name: np.array(work(None)) for name, work in arms.items()}
    seconds = take_turns(arms, None, turns)
    ours = seconds["anchorwatch"]
    rows = {
        name: {
            "seconds": statistics.median(seconds[name]),
            "times_ours": statistics.median(
                a / b for a, b in zip(seconds[name], ours, strict=True)
            ),
            "gap": float(np.abs(values[name] - values["lm-eval hf"]).max()),
        }
        for name in arms
    }
    print(rows, flush=True)
    return {"answers": len(pairs), "rows": rows}


def is_timed(cell):
    """Whether times were measured, not memory alone."""
    rows = cell.get("rows", cell)
    return all(row.get("seconds") for name, row in rows.items() if name != "facts")


def facts():
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    return versions | {
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("received", "attention", "growth", "likelihood"))
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--again", action="store_true", help="measure what is in the file, too")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kept = json.loads(given.out.read_text()) if given.out.exists() else {}
    work = {
        ("received", f"{shape}, T = {length}"): (compare, shape, length, given.turns)
        for length in given.lengths
        for shape in SHAPES
    }
    work |= {("growth", axis): (grow, axis, min(given.turns, 2)) for axis in GROWTH}
    work |= {("growth", "steps"): (grow_steps, min(given.turns, 1))}
    if given.turns:
        work |= {("attention", shape): (attention_alone, shape, given.turns) for shape in SHAPES}
        work |= {("likelihood", "lab/tales-arm"): (likelihoods, given.turns)}
    for (section, name), (measure, *args) in work.items():
        before = kept.get(section, {}).get(name)
        done = before is not None and (not given.turns or is_timed(before))
        if (done and not given.again) or given.only not in (None, section):
            continue
        kept.setdefault(section, {})[name] = measure(*args) | {"facts": facts()}
        given.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
