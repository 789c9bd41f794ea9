"""What watching costs, as ratios measured in one run: `make bench`.

Arms: plain generation; ours with the default probes, and with `received` alone; transformers' eager
attention with `output_attentions=True`, reduced to the same numbers; and the published way, hidden
states first and then a recomputed T x T map for each layer. Then parts: one pass without and with a
sink token, ours and the published dense mask. Times are CPU seconds of the process, the least of
several interleaved turns; peak memory is what it took above its resting size, read in a turn of its
own. `--page` measures what docs/benchmarks.md shows of the probes, on one thread, and keeps it in
docs/benchmarks.json.
"""

import argparse
import gc
import json
import os
import platform
import tempfile
import threading
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import anchorwatch as aw
from anchorwatch.models.additions import fit_addition
from anchorwatch.models.attention import NAME, attend, observe, register
from anchorwatch.models.families import by_name
from anchorwatch.models.model import Model
from anchorwatch.models.tokens import Specials
from anchorwatch.probes.reduce import StatRequest, reduce_attention

PAGE = os.sysconf("SC_PAGE_SIZE")
RECEIVED = (aw.probes.received(),)
EVERY_4TH = aw.probes.measure_every(4)
ARMS = ("plain", "received", "default", "eager", "recomputed")
PAGE_JSON = Path(__file__).parents[1] / "docs" / "benchmarks.json"


def llada_layers(layers, positions):
    """A bidirectional Llama with LLaDA-8B's layer shape, random weights and a small vocabulary."""
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=32,
        max_position_embeddings=positions,
    )
    config.is_causal = False
    register()
    network = AutoModelForCausalLM.from_config(config, attn_implementation=NAME).eval()
    specials = Specials(511, (2,), (2,), 1, 0, frozenset({0, 1, 2, 511}))
    return Model("benchmark", by_name("llada"), network.requires_grad_(False), None, specials)


class Peak:
    """Resident memory above where it stood, sampled every two milliseconds."""

    def __enter__(self):
        gc.collect()
        self.start = self.most = resident()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.sample, daemon=True)
        self.thread.start()
        return self

    def sample(self):
        while not self.done.wait(0.002):
            self.most = max(self.most, resident())

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
        self.bytes = max(self.most, resident()) - self.start


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def reduced(maps):
    """The default probes' numbers from whole maps: by group, entropy, diagonal, top keys."""
    for layer in maps:
        half = layer.shape[2] // 2
        for rows in (layer, layer[:, :, :half], layer[:, :, half:]):
            rows.mean(dim=2).topk(8, dim=-1)
        -(layer * layer.clamp(min=1e-30).log()).sum(dim=-1).mean(dim=-1)
        torch.diagonal(layer, dim1=2, dim2=3).mean(dim=-1)
        layer[:, :, half:].topk(8, dim=-1)


def recomputed(model, ids):
    """The published way: keep hidden states, then rebuild each layer's map outside the network."""
    network = model.network
    states = network.model(ids, output_hidden_states=True).hidden_states
    positions = torch.arange(ids.shape[1])[None]
    for layer, state in zip(network.model.layers, states, strict=False):
        normed = layer.input_layernorm(state)
        cos, sin = network.model.rotary_emb(normed, positions)
        shape = (1, ids.shape[1], -1, 128)
        query = layer.self_attn.q_proj(normed).view(shape).transpose(1, 2)
        key = layer.self_attn.k_proj(normed).view(shape).transpose(1, 2)
        query, key = (turned(x, cos, sin) for x in (query, key))
        reduced([torch.softmax(query @ key.transpose(2, 3) * 128**-0.5, dim=-1)])


def turned(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos[:, None] + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin[:, None]


def arm_of(name, model, length):
    """One forward pass over `length` positions, half of them masked, the way `name` does it."""
    ids = torch.randint(5, 500, (length // 2,), generator=torch.Generator().manual_seed(0)).tolist()
    decoding = aw.decoding.LowConfidence(length - len(ids), 1)
    canvas = torch.tensor([ids + [511] * (length - len(ids))])
    probes = {"plain": (), "received": RECEIVED, "default": aw.probes.DEFAULT}.get(name)
    if probes is not None:
        return lambda: aw.run(model, ids, decoding, probes=probes)

    @torch.no_grad()
    def other():
        if name == "recomputed":
            return recomputed(model, canvas)
        model.network.set_attn_implementation("eager")
        reduced(model.network(canvas, output_attentions=True).attentions)
        model.network.set_attn_implementation(NAME)

    return other


def measured(arms, turns):
    """Least CPU seconds and peak memory of each arm, the arms taking turns."""
    rows = {name: {"seconds": float("inf"), "bytes": 0} for name in arms}
    for turn in range(turns + 1):
        for name, work in arms.items():
            if not turn:  # the first turn warms up, then memory is measured
                work()
                with Peak() as peak:
                    work()
                rows[name]["bytes"] = peak.bytes
                continue
            start = time.process_time()
            work()
            rows[name]["seconds"] = min(rows[name]["seconds"], time.process_time() - start)
    return rows


def layer_table(lengths, layers, turns, names=ARMS):
    model = llada_layers(layers, max(lengths))
    _ = model.digest
    found = {}
    for length in lengths:
        rows = measured({name: arm_of(name, model, length) for name in names}, turns)
        plain = rows["plain"]
        for row in rows.values():
            row["ratio"] = row["seconds"] / plain["seconds"]
            row["above_plain"] = max(row["bytes"] - plain["bytes"], 0)
        found[length] = rows
        print(f"\nLLaDA-8B layer shape, {layers} layer(s), T = {length}")
        for name, row in rows.items():
            print(
                f"  {name:<11} {row['seconds']:8.3f} s  {row['ratio']:5.2f}x plain  "
                f"{row['above_plain'] / 1e6:8.1f} MB above plain"
            )
    return found


def dense_mask(model, ids, embedding):
    """The published sink token: a token in the sequence and a boolean (T + 1)^2 mask."""
    tokens = torch.cat([embedding, model.network.get_input_embeddings()(ids[0])])[None]
    seen = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool)
    seen[0, 1:] = False
    return model.network(inputs_embeds=tokens, attention_mask=seen[None, None]).logits[:, 1:]


def parts_table(length, layers, turns):
    """One bare forward pass without and with a sink token: ours, and the published form."""
    model = llada_layers(layers, length + 1)
    ids = torch.randint(5, 500, (1, length), generator=torch.Generator().manual_seed(0))
    ids[:, length // 2 :] = 511
    sink = aw.edits.sink_token()
    embedding = fit_addition(sink, model).embedding
    parts = {
        "off by one": aw.edits.off_by_one(),
        "position-free": aw.edits.sink_token(rotary=False),
        "register": aw.edits.register(),
    }
    with torch.no_grad():
        arms = {
            "plain": lambda: model.logits(ids),
            "sink token": lambda: model.logits(ids, parts=[sink]),
            "dense mask": lambda: dense_mask(model, ids, embedding),
        } | {
            name: lambda part=part: model.logits(ids, parts=[part]) for name, part in parts.items()
        }
        gap = (arms["sink token"]() - arms["dense mask"]()).abs().max()
        rows = measured(arms, turns)
    print(
        f"\nParts, LLaDA-8B layer shape, {layers} layer(s), T = {length}; forms differ by {gap:.1e}"
    )
    for name, row in rows.items():
        row["ratio"] = row["seconds"] / rows["plain"]["seconds"]
        print(f"  {name:<13} {row['seconds']:8.3f} s  {row['ratio']:5.3f}x plain")
    return rows


class Surveyor:
    """Attention alone: surveys each call, as the probes do."""

    def __init__(self, weights, **what):
        self.want = StatRequest(weights=weights, **what)

    def wants(self, layer):
        return True

    def on_attention(self, call):
        reduce_attention(call, self.want)


class Bare(torch.nn.Module):
    is_causal = False


def attention_table(turns, heads=8, size=64, length=4096):
    query, key, value = (torch.randn(1, heads, length, size) for _ in range(3))
    weights = torch.zeros(1, 3, length)
    weights[:, 0], weights[:, 1, : length // 2], weights[:, 2, length // 2 :] = 1, 1, 1
    module = Bare()

    def ours(watcher):
        def work():
            with torch.no_grad(), observe(watcher):
                attend(module, query, key, value, None, scaling=size**-0.5)

        return work

    def eager():
        maps = torch.softmax(query @ key.transpose(2, 3) * size**-0.5, dim=-1)
        (maps @ value).transpose(1, 2).contiguous()
        reduced([maps])

    open_rows = weights[:, 2].bool()
    arms = {
        "received": ours(Surveyor(weights)),
        "default": ours(Surveyor(weights, entropy=True, diagonal=True, top=8, top_rows=open_rows)),
        "eager": eager,
    }
    rows = measured(arms, turns)
    print(f"\nAttention alone, {heads} heads x {size}, T = {length}")
    for name, row in rows.items():
        row["faster"] = rows["eager"]["seconds"] / row["seconds"]
        print(f"  {name:<11} {row['seconds']:8.3f} s  {row['faster']:5.2f}x as fast as eager")
    return rows


def tiny_table(turns, folder):
    """Whole runs of the networks that ship with random weights, as multiples of unwatched ones."""
    found = {}
    prompt, decoding = list(range(300, 364)), aw.decoding.LowConfidence(32)
    print("\nEmbedded models, a whole run of 32 steps, T = 96")
    for name in ("tiny/llada", "tiny/dream", "tiny/bert"):
        model = aw.load(name)
        arms = {
            "plain": lambda m=model: aw.run(m, prompt, decoding, probes=()),
            "default": lambda m=model: aw.run(m, prompt, decoding),
            "every 4th step": lambda m=model: aw.run(m, prompt, decoding, probes=EVERY_4TH),
        }
        rows = measured(arms, turns)
        path = folder / f"{name.replace('/', '-')}-{os.getpid()}.trace"
        aw.run(model, prompt, decoding).write(path)
        written = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
        for row in rows.values():
            row["ratio"] = row["seconds"] / rows["plain"]["seconds"]
        found[name] = rows | {"written": written}
        ratio, some = (rows[arm]["ratio"] for arm in ("default", "every 4th step"))
        print(
            f"  {name:<11} {ratio:5.2f}x plain, {some:5.2f}x every 4th step, "
            f"{written / 1e3:.0f} kB written"
        )
    return found


def keep_for_page(lengths, layers, turns):
    """Measure what the probes cost, on one thread, and keep it in docs/benchmarks.json."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        tiny = tiny_table(max(turns, 5), Path(folder))
    layer = layer_table(lengths, layers, turns, ("plain", "received", "default"))
    kept = json.loads(PAGE_JSON.read_text()) if PAGE_JSON.exists() else {}
    kept["probes"] = {"tiny": tiny, "layer": layer}
    PAGE_JSON.write_text(json.dumps(kept, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--parts-length", type=int, default=512)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/attention.json"))
    parser.add_argument("--page", action="store_true", help="only what docs/benchmarks.md shows")
    given = parser.parse_args()
    if given.page:
        keep_for_page(given.lengths, given.layers, given.turns)
        return
    facts = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load": os.getloadavg(),
    }
    print(" ".join(f"{name}={value}" for name, value in facts.items()))
    with tempfile.TemporaryDirectory() as folder:
        result = {
            "facts": facts,
            "attention": attention_table(given.turns),
            "tiny": tiny_table(given.turns, Path(folder)),
            "parts": parts_table(given.parts_length, given.layers, given.turns),
            "layer": layer_table(given.lengths, given.layers, given.turns),
        }
    given.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
