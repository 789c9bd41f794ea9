"""A rehearsal at real size: a random checkpoint under released names, loaded, run and replayed.

    python benchmarks/rehearse.py                     LLaDA-8B, and 4 of LLaDA2-mini's 20 layers
    python benchmarks/rehearse.py --model llada --layers 2
    python benchmarks/rehearse.py --keep              leaves the files

The checkpoint is written shard by shard. Everything after that is one process of its own, whose
memory is counted: loading, 4 steps at 256 positions with the default probes, the trace written,
verified, replayed and shown. One line of JSON for each model is on stdout.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SHARD_BYTES = 2 << 30
POSITIONS, STEPS, LENGTH = 256, 4, 64

Shapes = Iterator[tuple[str, tuple[int, ...]]]

LLADA = {
    "architectures": ["LLaDAModelLM"],
    "model_type": "llada",
    "d_model": 4096,
    "n_heads": 32,
    "n_kv_heads": 32,
    "n_layers": 32,
    "mlp_hidden_size": 12288,
    "vocab_size": 126464,
    "embedding_size": 126464,
    "max_sequence_length": 4096,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "weight_tying": False,
    "mask_token_id": 126336,
    "eos_token_id": 126081,
    "pad_token_id": 126081,
    "torch_dtype": "bfloat16",
}
"""config.json of GSAI-ML/LLaDA-8B-Base, the fields that decide shapes and numbers."""

LLADA2 = {
    "architectures": ["LLaDA2MoeModelLM"],
    "model_type": "llada2_moe",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "partial_rotary_factor": 0.5,
    "rope_theta": 600000,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "vocab_size": 157184,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "pad_token_id": 156892,
    "eos_token_id": 156892,
    "dtype": "bfloat16",
}
"""config.json of inclusionAI/LLaDA2.0-mini, the fields that decide shapes and numbers."""


def llada_shapes(config: dict) -> Shapes:
    """Released names and shapes of a LLaDA."""
    width, hidden, rows = config["d_model"], config["mlp_hidden_size"], config["embedding_size"]
    keys = width // config["n_heads"] * config["n_kv_heads"]
    yield "model.transformer.wte.weight", (rows, width)
    for layer in range(config["n_layers"]):
        block = f"model.transformer.blocks.{layer}."
        yield f"{block}attn_norm.weight", (width,)
        yield f"{block}q_proj.weight", (width, width)
        yield f"{block}k_proj.weight", (keys, width)
        yield f"{block}v_proj.weight", (keys, width)
        yield f"{block}attn_out.weight", (width, width)
        yield f"{block}ff_norm.weight", (width,)
        yield f"{block}ff_proj.weight", (hidden, width)
        yield f"{block}up_proj.weight", (hidden, width)
        yield f"{block}ff_out.weight", (width, hidden)
    yield "model.transformer.ln_f.weight", (width,)
    yield "model.transformer.ff_out.weight", (rows, width)


def llada2_shapes(config: dict) -> Shapes:
    """Released names and shapes of a LLaDA2: one tensor for each expert and projection."""
    width, rows, per_head = config["hidden_size"], config["vocab_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    yield "model.word_embeddings.weight", (rows, width)
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}."
        fused = (heads + 2 * kv_heads) * per_head
        yield f"{block}input_layernorm.weight", (width,)
        yield f"{block}attention.query_key_value.weight", (fused, width)
        yield f"{block}attention.query_layernorm.weight", (per_head,)
        yield f"{block}attention.key_layernorm.weight", (per_head,)
        yield f"{block}attention.dense.weight", (width, heads * per_head)
        yield f"{block}post_attention_layernorm.weight", (width,)
        if layer < config["first_k_dense_replace"]:
            yield from _mlp(f"{block}mlp.", config["intermediate_size"], width)
            continue
        expert = config["moe_intermediate_size"]
        yield f"{block}mlp.gate.weight", (config["num_experts"], width)
        yield f"{block}mlp.gate.expert_bias", (config["num_experts"],)
        yield from _mlp(f"{block}mlp.shared_experts.", expert, width)
        for number in range(config["num_experts"]):
            yield from _mlp(f"{block}mlp.experts.{number}.", expert, width)
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (rows, width)


def _mlp(prefix: str, hidden: int, width: int) -> Shapes:
    yield f"{prefix}gate_proj.weight", (hidden, width)
    yield f"{prefix}up_proj.weight", (hidden, width)
    yield f"{prefix}down_proj.weight", (width, hidden)


MODELS = {
    # name: (config, its field of layers, names and shapes, layers that fit on 24 GiB)
    "llada": (LLADA, "n_layers", llada_shapes, 32),
    "llada2": (LLADA2, "num_hidden_layers", llada2_shapes, 4),
}


def write_checkpoint(folder: Path, config: dict, shapes: Shapes) -> int:
    """Random bfloat16 weights in shards of about 2 GB, with an index; bytes of all tensors."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    shard: dict[str, torch.Tensor] = {}
    index: dict[str, str] = {}
    total = held = 0

    def close_shard() -> None:
        nonlocal held
        held = 0
        name = f"model-{len(set(index.values())) + 1:05}.safetensors"
        index.update(dict.fromkeys(shard, name))
        save_file(shard, folder / name, metadata={"format": "pt"})
        shard.clear()

    for name, shape in shapes:
        if name.endswith("norm.weight") or name.endswith("ln_f.weight"):
            tensor = torch.ones(shape, dtype=torch.bfloat16)
        elif name.endswith("expert_bias"):
            tensor = torch.zeros(shape)
        else:
            # Uniform numbers of the usual variance: drawn several times faster than normal ones.
            tensor = torch.empty(shape, dtype=torch.bfloat16)
            limit = math.sqrt(3 / shape[-1])
            tensor.uniform_(-limit, limit, generator=generator)
        shard[name] = tensor
        size = tensor.numel() * tensor.element_size()
        total, held = total + size, held + size
        if held >= SHARD_BYTES:
            close_shard()
    if shard:
        close_shard()
    (folder / "config.json").write_text(json.dumps(config))
    listed = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(listed))
    return total


def rehearse(folder: Path) -> dict:
    """Load, run, write, verify, replay and show; seconds and bytes of each."""
    import numpy as np

    import anchorwatch as aw
    from anchorwatch.trace.atomic_io import find_damage
    from anchorwatch.trace.render_terminal import show

    report: dict = {"seconds": {}}

    def timed(name: str, call):
        start, used = time.perf_counter(), time.process_time()
        result = call()
        report["seconds"][name] = round(time.perf_counter() - start, 1)
        report.setdefault("cpu_seconds", {})[name] = round(time.process_time() - used, 2)
        report.setdefault("peak_gb", {})[name] = round(_status("VmHWM") / 1e9, 2)
        print(name, report["seconds"][name], report["peak_gb"][name], file=sys.stderr, flush=True)
        return result

    timed("import", lambda: aw.load("tiny/llada").logits([1, 2]))
    report["imports_gb"] = round(_status("VmRSS") / 1e9, 2)
    timed("read through a small buffer", lambda: _read(folder))
    timed("read into own memory", lambda: _read_whole(folder))
    _forget_peak()  # a file of weights was in memory
    model = timed("load", lambda: aw.load(folder, device="cpu", dtype="bfloat16"))
    used = report["cpu_seconds"]
    report["load_ratio"] = {
        name: round(used["load"] / max(used[name], 0.01), 2)
        for name in ("read through a small buffer", "read into own memory")
    }
    held = {p.data_ptr(): p.numel() * p.element_size() for p in model.network.parameters()}
    report["model_gb"] = round(sum(held.values()) / 1e9, 2)
    prompt = np.random.default_rng(0).integers(100, 90_000, POSITIONS - LENGTH).tolist()
    decoding = aw.decoding.LowConfidence(length=LENGTH, steps=STEPS)
    report["plan"] = str(aw.plan(model, prompt, decoding)).splitlines()[-1]
    trace_path = folder / "rehearsal.trace"
    timed("run", lambda: aw.run(model, prompt, decoding, out=trace_path))
    damage = timed("verify", lambda: find_damage(trace_path))
    trace = aw.read(trace_path)
    again = timed("replay", lambda: aw.replay(model, trace, [aw.probes.received()]))
    timed("show", lambda: show(trace, 0))
    report["whole"] = not damage and trace.num_steps == STEPS
    gap = np.abs(again["received"].values - trace["received"].values)
    report["replay_gap"] = float(np.nanmax(gap))
    return report


def _read_whole(folder: Path) -> None:
    """Every byte of the weights once, into new memory of the size of each file."""
    import torch

    for path in sorted(folder.glob("*.safetensors")):
        memory = torch.empty(path.stat().st_size, dtype=torch.uint8).numpy().data
        with path.open("rb", buffering=0) as file:
            while len(memory) and (count := file.readinto(memory[: 1 << 25])):
                memory = memory[count:]


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _read(folder: Path) -> None:
    """Every byte of the weights once, into a small buffer that is used again and again."""
    buffer = bytearray(1 << 25)
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run is not None:  # the process that is counted
        report = rehearse(given.run)
        (given.run / "report.json").write_text(json.dumps(report))
        return
    for name in [given.model] if given.model else MODELS:
        config, field, shapes, fitting = MODELS[name]
        layers = given.layers or fitting
        folder = Path(tempfile.mkdtemp(prefix=f"rehearse-{name}-", dir=given.folder))
        try:
            changed = config | {field: layers}
            written = write_checkpoint(folder, changed, shapes(changed))
            subprocess.run(
                [sys.executable, __file__, "--run", folder], check=True, stdout=sys.stderr
            )
            report = json.loads((folder / "report.json").read_text())
            about = {"model": name, "layers": f"{layers} of {config[field]}"}
            print(json.dumps(about | {"file_gb": round(written / 1e9, 2)} | report), flush=True)
        finally:
            if not given.keep:
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
