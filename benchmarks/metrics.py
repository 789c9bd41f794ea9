"""What reading costs: every default metric of a large trace, in time and memory: `make bench-read`.

The trace has random shares of the size a 128-step run of an 8B model at T = 1024 leaves behind.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

import anchorwatch as aw
from anchorwatch.trace.schema import PEAKS, Field
from anchorwatch.trace.trace import FRESH, MASKED, PROMPT, WRITTEN, Trace, make_trace

GROUPS = ("all", "masked", "written")


def large(steps: int, layers: int, heads: int, length: int) -> Trace:
    """A trace with random `received`, a sink that moves in every second head."""
    generator = np.random.default_rng(0)
    prompt = length - steps
    received = np.empty((steps, layers, heads, len(GROUPS), length), dtype=np.float16)
    for step in range(steps):
        logits = generator.normal(0, 1.5, (layers, heads, len(GROUPS), length)).astype(np.float32)
        logits[:, ::2, :, prompt + step - 1] += 7
        shares = np.exp(logits)
        received[step] = shares / shares.sum(axis=-1, keepdims=True)
    received[0, :, :, 2] = np.nan  # nothing is written yet
    frames = np.arange(steps + 1)[:, None]
    when = np.concatenate([np.full(prompt, -1), np.arange(steps)])
    ids = generator.integers(10, 200, length)
    done = (when >= 0) & (frames > when)
    given = np.arange(length) < prompt
    role = np.where(given, PROMPT, np.where(frames - when == 1, FRESH, WRITTEN))
    role = np.where(given | done, role, MASKED)
    dims = ("step", "layer", "head", "group", "key")
    queries = np.stack([np.full(steps, length), steps - np.arange(steps), np.arange(steps)], 1)
    return make_trace(
        canvas=np.where(given | done, ids, 0),
        role=role,
        committed_at=when,
        logprob=np.where(when >= 0, -1.0, np.nan),
        mask_chosen=np.zeros(steps),
        narrow=np.zeros(steps),
        region=np.full(length, -1),
        random_state=None,
        measured={
            "received": (Field("received", dims, "float16", "share of attention", ""), received),
            "queries": (Field("queries", ("step", "group"), "int32", "", ""), queries.astype("i4")),
            **summaries(received[:, :, :, 0], generator),
        },
        coordinates={"group": list(GROUPS)},
        manifest=manifest(layers, heads, length, prompt, steps),
    )


def summaries(received: np.ndarray, generator: np.random.Generator) -> dict:
    """Geometry and norms as the default probes keep them: means, and values at the peaks."""
    per, sizes = ("step", "layer", "head"), received.shape[:3]
    keys = np.argpartition(-received, PEAKS, axis=-1)[..., :PEAKS].astype(np.int32)
    arrays = {"peak_key": ((*per, "peak"), keys)}
    shares = np.take_along_axis(received, keys, axis=-1).astype(np.float32)
    arrays["peak_received"] = ((*per, "peak"), shares)
    arrays["query_norm"] = (per, generator.uniform(5, 9, sizes).astype(np.float32))
    for name in ("cosine", "norm_product", "logit", "key_norm", "value_norm"):
        arrays[name] = (per, generator.uniform(0.2, 0.5, sizes).astype(np.float32))
        peaks = generator.uniform(0.5, 0.9, (*sizes, PEAKS)).astype(np.float32)
        arrays[f"peak_{name}"] = ((*per, "peak"), peaks)
    return {
        name: (Field(name, dims, str(array.dtype), "", name), array)
        for name, (dims, array) in arrays.items()
    }


def manifest(layers: int, heads: int, length: int, prompt: int, steps: int) -> dict:
    model = {"source": "benchmark", "family": "llada", "kind": "mdm", "weights": "benchmark"}
    model |= {"visibility": "bidirectional", "block": None, "windows": None, "shift": False}
    model |= {"mask_id": 0, "parts": [], "layers": layers, "heads": heads, "kv_heads": heads}
    words = [".", ",", "\n", " the", " of", " anchor", " 7", " holds"]
    return {
        "model": model,
        "decoding": {"name": "LowConfidence", "length": length - prompt, "steps": steps},
        "seed": 0,
        "tokens": {"0": "<mask>"} | {str(i): words[i % len(words)] for i in range(10, 200)},
        "answer_positions": list(range(prompt, length)),
        "prompt_text": "benchmark",
        "answer_text": "benchmark",
        "regions": [],
        "probes": [],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="128,32,32,1024", help="steps,layers,heads,positions")
    parser.add_argument("--folder", default=None, help="where the trace is kept between runs")
    options = parser.parse_args()
    folder = Path(options.folder or tempfile.mkdtemp())
    path = folder / f"large-{options.sizes.replace(',', 'x')}.trace"
    if not path.exists():
        large(*(int(size) for size in options.sizes.split(","))).write(path)
    print(f"{path}: {sum(f.stat().st_size for f in path.rglob('*') if f.is_file()) / 1e9:.2f} GB")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    tables = aw.metrics.measure_all(aw.read(path))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{len(tables)} metrics in {seconds:.1f} s, peak {peak:.2f} GB (before {before / 1e6:.2f})"
    )
    found = {"seconds": seconds, "peak_gb": peak, "metrics": sorted(tables)}
    Path("benchmarks/metrics.json").write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
