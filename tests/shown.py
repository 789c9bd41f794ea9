"""Traces to look at, made without a model: of any size, with sinks where we put them."""

from collections.abc import Mapping, Sequence

import numpy as np

from anchorwatch.trace.schema import Field
from anchorwatch.trace.trace import FRESH, MASKED, PROMPT, WRITTEN, Trace, make_trace
from planted import planted, random_maps

GROUPS = ("all", "masked", "written")
MASK_ID = 0

HOSTILE = (
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    '"><svg onload=window.hacked=1>',
    "{{7*7}}",
    "<!--",
    "-->",
    "]]>",
    "\x1b[31mred\x1b[0m",
    "[red]markup[/red]",
    "\u202egnirts",
    "\u2066isolate",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\ud800",
    "\x00",
    "",
    "   ",
    "\n\n",
    "\t",
    "\r\n",
    "مرحبا",
    "[MASK]",
    "\u2028\u2029",
    "javascript:alert(1)",
    "abc مرحبا 123 שלום",
    "<|endoftext|><s>[INST]",
    "{@html x}${x}`",
    "'onmouseover=window.hacked=1 x='",
    '=HYPERLINK("http://evil.example")',
    "x" * 1_000_000,
)


def small(
    steps: int = 8,
    length: int = 14,
    *,
    seed: int = 0,
    texts: Mapping[int, str] | None = None,
    **more,
) -> Trace:
    """Random maps of three layers and four heads, four given positions."""
    maps = random_maps(np.random.default_rng(seed), (steps, 3, 4, length))
    return planted(maps, prompt=4, texts=texts, seed=seed, **more)


def hostile() -> Trace:
    """Every hostile text once, as token and as region name."""
    length = len(HOSTILE)
    texts = dict(enumerate(HOSTILE, start=1))
    maps = random_maps(np.random.default_rng(3), (6, 2, 2, length))
    regions = {HOSTILE[0]: range(3), HOSTILE[9]: range(3, 6)}
    return planted(maps, prompt=6, texts=texts, regions=regions, source=HOSTILE[1])


def large(
    steps: int = 128,
    length: int = 1024,
    *,
    layers: int = 12,
    heads: int = 8,
    seed: int = 0,
    groups: Sequence[str] = GROUPS,
) -> Trace:
    """A trace of full size, without maps: shares with one sink that stays and one that floats."""
    generator = np.random.default_rng(seed)
    prompt = length // 4
    when = np.full(length, -1)
    order = generator.permutation(length - prompt) + prompt
    when[order] = np.arange(len(order)) * steps // len(order)
    frames = np.arange(steps + 1)[:, None]
    since, given = frames - when, np.arange(length) < prompt
    done = (when >= 0) & (since >= 1)
    role = np.where(done, np.where(since == 1, FRESH, WRITTEN), MASKED)
    role = np.where(given, PROMPT, role)
    ids = generator.integers(1, 400, length)
    received = _shares(generator, (steps, layers, heads, length), prompt, len(groups))
    measured = {
        "received": (("step", "layer", "head", "group", "key"), received),
        "queries": (("step", "group"), np.full((steps, len(groups)), length, dtype=np.int32)),
    }
    for name in ("entropy", "cosine", "peak_cosine", "value_norm", "peak_value_norm"):
        values = generator.normal(2, 0.4, (steps, layers, heads)).astype(np.float32)
        dims = ("step", "layer", "head")
        if name.startswith("peak"):
            values, dims = values[..., None] * np.ones(8, np.float32), (*dims, "peak")
        measured[name] = (dims, values)
    return make_trace(
        canvas=np.where(given | done, ids, MASK_ID),
        role=role,
        committed_at=when,
        logprob=np.where(when >= 0, -0.5, np.nan),
        mask_chosen=np.zeros(steps),
        narrow=np.zeros(steps),
        region=np.where(given, 0, 1),
        random_state=None,
        measured={
            name: (
                Field(name, dims, "float16" if name == "received" else str(a.dtype), "", name),
                a,
            )
            for name, (dims, a) in measured.items()
        },
        coordinates={"group": list(groups)},
        manifest=_manifest((steps, length, layers, heads), prompt, ids, seed),
    )


def _shares(generator, shape, prompt, groups) -> np.ndarray:
    """[step, layer, head, group, key] float32; key 0 is a sink, another floats to the right."""
    steps, layers, heads, length = shape
    received = np.empty((steps, layers, heads, groups, length), dtype=np.float32)
    base = generator.gamma(1.2, 1.0, (layers, heads, length)).astype(np.float32)
    for step in range(steps):
        rows = base * generator.uniform(0.8, 1.2, (1, 1, length)).astype(np.float32)
        rows[:, :, 0] = 60 + 40 * np.arange(layers)[:, None]
        floating = prompt + (length - prompt - 2) * step // max(steps - 1, 1)
        rows[:, heads // 2 :, floating] = 120
        received[step] = (rows / rows.sum(axis=-1, keepdims=True))[:, :, None]
    return received


def _manifest(sizes, prompt, ids, seed) -> dict:
    steps, length, layers, heads = sizes
    words = (
        "the anchor holds while ships drift and lines part by night under a low moon . , \n"
    ).split(" ")
    tokens = {str(i): f" {words[i % len(words)]}" for i in {*ids.tolist()}}
    return {
        "model": {
            "source": "made/large",
            "family": "made",
            "kind": "mdm",
            "visibility": "bidirectional",
            "block": None,
            "windows": None,
            "shift": False,
            "mask_id": MASK_ID,
            "parts": [],
            "layers": layers,
            "heads": heads,
            "kv_heads": heads,
            "weights": "made",
            "tokenizer": "made",
        },
        "decoding": {"name": "LowConfidence", "length": length - prompt, "steps": steps},
        "seed": seed,
        "tokens": tokens | {str(MASK_ID): "<mask>"},
        "token_bytes": {},
        "answer_positions": list(range(prompt, length)),
        "prompt_text": "a long prompt",
        "answer_text": "a long answer",
        "regions": ["passage", "answer"],
        "probes": [],
    }
