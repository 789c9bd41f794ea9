"""Traces of maps we wrote ourselves, so that every number a metric says is known beforehand.

`planted(maps)` reduces dense maps the obvious way into the fields a run would have kept. Beside it:
traces of any size to look at, with hostile texts too, and traces whose sinks move, with the history
of every head by loops.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import strategies as st

import tolerances
from anchorwatch.metrics.null import group_queries
from anchorwatch.metrics.sink_rules import rulli
from anchorwatch.trace.schema import Field
from anchorwatch.trace.trace import (
    ABSENT,
    FRESH,
    MASKED,
    MISSING,
    PROMPT,
    WRITTEN,
    Trace,
    make_trace,
)
from references import movement as slow

GROUPS = ("all", "masked", "written")
MASK_ID = 0


def planted(
    maps: np.ndarray,
    *,
    prompt: int = 0,
    committed_at: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
    texts: Mapping[int, str] | None = None,
    visibility: str = "bidirectional",
    groups: Sequence[str] = GROUPS,
    regions: Mapping[str, Sequence[int]] | None = None,
    shift: bool = False,
    source: str = "planted",
    seed: int = 0,
    more: Mapping[str, tuple[tuple[str, ...], np.ndarray]] | None = None,
) -> Trace:
    """A trace of maps [step, layer, head, query, key], rows that sum to one (NaN: absent row).

    The first `prompt` positions are given, the rest is committed one per step from the left unless
    `committed_at` ([position], -1 for given ones) says otherwise. Token ids are 1, 2, 3, ... unless
    given; `more` adds fields as (dims, array).
    """
    steps, layers, heads, length, _ = maps.shape
    causal = visibility == "causal"
    if committed_at is None:
        committed_at = [-1] * prompt + [
            min(p - prompt, steps - 1) if p - prompt < steps or not causal else -1
            for p in range(prompt, length)
        ]
    when = np.asarray(committed_at)
    ids = np.arange(1, length + 1) if tokens is None else np.asarray(tokens)
    answer = [p for p in range(length) if p >= prompt]
    canvas, role = _frames(when, ids, prompt, steps, causal)
    names = tuple(regions or {})
    region = np.full(length, -1)
    for index, name in enumerate(names):
        region[list(regions[name])] = index
    received, queries = _received(maps, role, region, groups, names)
    measured = {
        "received": (("step", "layer", "head", "group", "key"), received),
        "queries": (("step", "group"), queries),
        **_commit_top(maps, when, shift or causal),
    } | dict(more or {})
    return make_trace(
        canvas=canvas,
        role=role,
        committed_at=when,
        logprob=np.where(when >= 0, -0.5, np.nan),
        mask_chosen=np.zeros(steps),
        narrow=np.zeros(steps),
        region=region,
        random_state=None,
        measured={
            name: (Field(name, dims, str(array.dtype), "", name), array)
            for name, (dims, array) in measured.items()
        },
        coordinates={"group": list(groups)}
        | ({"query_region": list(names), "key_region": list(names)} if names else {}),
        manifest=_manifest(
            (layers, heads, visibility, shift or causal, source, seed),
            sorted({*ids.tolist(), MASK_ID}),
            texts or {},
            (answer, list(names), steps),
        ),
    )


def uniform(
    steps: int, layers: int, heads: int, length: int, *, causal: bool = False
) -> np.ndarray:
    """Indifferent maps."""
    seen = np.tril(np.ones((length, length))) if causal else np.ones((length, length))
    rows = seen / seen.sum(axis=-1, keepdims=True)
    return np.broadcast_to(rows, (steps, layers, heads, length, length)).copy()


def column(length: int, key: int, share: float) -> np.ndarray:
    """[query, key]: every query gives `share` to one key and the rest evenly to the others."""
    rows = np.full((length, length), (1 - share) / (length - 1))
    rows[:, key] = share
    return rows


def random_maps(
    generator: np.random.Generator, shape: tuple[int, int, int, int], *, causal: bool = False
) -> np.ndarray:
    """Random maps of (steps, layers, heads, length), some rows peaked."""
    steps, layers, heads, length = shape
    logits = generator.normal(0, 2, (steps, layers, heads, length, length))
    logits += 4 * generator.normal(0, 1, (steps, layers, heads, 1, length))
    if causal:
        logits = np.where(np.tril(np.ones((length, length))) > 0, logits, -np.inf)
    rows = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return rows / rows.sum(axis=-1, keepdims=True)


def _frames(
    when: np.ndarray, ids: np.ndarray, prompt: int, steps: int, causal: bool
) -> tuple[np.ndarray, np.ndarray]:
    frames, length = np.arange(steps + 1)[:, None], len(when)
    since = frames - when
    done = (when >= 0) & (since >= 1)
    given = np.arange(length) < prompt
    role = np.where(done, np.where(since == 1, FRESH, WRITTEN), ABSENT if causal else MASKED)
    role = np.where(given, PROMPT, role)
    waiting = MISSING if causal else MASK_ID
    return np.where(given | done, ids, waiting), role


def members(role: np.ndarray, region: np.ndarray, group: str, names: Sequence[str]) -> np.ndarray:
    """[position] bool of a frame's roles."""
    there = role != ABSENT
    if group in names:
        return there & (region == list(names).index(group))
    return {
        "all": there,
        "masked": role == MASKED,
        "written": np.isin(role, (FRESH, WRITTEN)),
        "prompt": role == PROMPT,
    }[group]


def _received(
    maps: np.ndarray, role: np.ndarray, region: np.ndarray, groups: Sequence[str], names: Sequence
) -> tuple[np.ndarray, np.ndarray]:
    steps, layers, heads, length, _ = maps.shape
    received = np.full((steps, layers, heads, len(groups), length), np.nan, dtype=np.float32)
    queries = np.zeros((steps, len(groups)), dtype=np.int32)
    for step in range(steps):
        there = role[step] != ABSENT
        for g, group in enumerate(groups):
            rows = members(role[step], region, group, names)
            queries[step, g] = rows.sum()
            if rows.any():
                received[step, :, :, g, there] = np.moveaxis(
                    maps[step][:, :, rows][..., there].mean(axis=2), -1, 0
                )
    return received, queries


def _commit_top(maps: np.ndarray, when: np.ndarray, shift: bool, k: int = 8) -> dict:
    _, layers, heads, length, _ = maps.shape
    keys = np.full((layers, heads, length, k), -1, dtype=np.int32)
    mass = np.full((layers, heads, length, k), np.nan, dtype=np.float32)
    for position, step in enumerate(when):
        if step >= 0:
            rows = maps[step, :, :, max(position - shift, 0)]
            order = np.argsort(-rows, axis=-1, kind="stable")[..., :k]
            best = np.take_along_axis(rows, order, axis=-1)
            keys[:, :, position, : order.shape[-1]] = np.where(best > 0, order, -1)
            mass[:, :, position, : order.shape[-1]] = np.where(best > 0, best, np.nan)
    dims = ("layer", "head", "position", "rank")
    return {"commit_top_key": (dims, keys), "commit_top_mass": (dims, mass)}


def _manifest(model: tuple, ids: list[int], texts: Mapping[int, str], rest: tuple) -> dict:
    layers, heads, visibility, shift, source, seed = model
    answer, regions, steps = rest
    kind = "arm" if visibility == "causal" else "mdm"
    name = "LeftToRight" if kind == "arm" else "LowConfidence"
    return {
        "model": {
            "source": source,
            "family": "planted",
            "kind": kind,
            "visibility": visibility,
            "block": None,
            "windows": None,
            "shift": shift,
            "mask_id": None if kind == "arm" else MASK_ID,
            "parts": [],
            "layers": layers,
            "heads": heads,
            "kv_heads": heads,
            "weights": source,
            "tokenizer": "planted",
        },
        "decoding": {"name": name, "length": len(answer)}
        | ({} if kind == "arm" else {"steps": steps}),
        "seed": seed,
        "tokens": {str(i): texts.get(i, "<mask>" if i == MASK_ID else f" w{i}") for i in ids},
        "token_bytes": {},
        "answer_positions": answer,
        "prompt_text": f"prompt of {source}",
        "answer_text": "answer",
        "regions": regions,
        "probes": [],
    }


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


def small_trace(
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


def hostile_trace() -> Trace:
    """Every hostile text once, as token and as region name."""
    length = len(HOSTILE)
    texts = dict(enumerate(HOSTILE, start=1))
    maps = random_maps(np.random.default_rng(3), (6, 2, 2, length))
    regions = {HOSTILE[0]: range(3), HOSTILE[9]: range(3, 6)}
    return planted(maps, prompt=6, texts=texts, regions=regions, source=HOSTILE[1])


def large_trace(
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
        manifest=_large_manifest((steps, length, layers, heads), prompt, ids, seed),
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


def _large_manifest(sizes, prompt, ids, seed) -> dict:
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


EPS = 1.3571
RULE = rulli(EPS)


@st.composite
def traces_and_maps(draw, most_steps=5):
    """(trace, maps): random maps that hold a while, some steps and layers absent."""
    causal = draw(st.booleans())
    steps, layers, heads = draw(st.integers(1, most_steps)), draw(st.integers(1, 2)), 2
    prompt = draw(st.integers(1, 7))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    maps = random_maps(generator, (steps, layers, heads, prompt + steps), causal=causal)
    for step in range(1, steps):  # without it hardly a position is held
        for head in range(heads):
            if generator.random() < 0.4:
                maps[step, :, head] = maps[step - 1, :, head]
    if steps > 2 and draw(st.booleans()):
        maps[draw(st.integers(0, steps - 1)), draw(st.integers(0, layers - 1))] = np.nan
    visibility = "causal" if causal else "bidirectional"
    return planted(maps, prompt=prompt, visibility=visibility), maps


def head_histories(trace, maps, group="all"):
    """(layer, head, history) of every head."""
    for layer in range(maps.shape[1]):
        for head in range(maps.shape[2]):
            rows = [
                np.flatnonzero(group_queries(trace, s, group)).tolist() for s in range(len(maps))
            ]
            yield layer, head, slow.history(trace, maps, layer, head, rows.__getitem__, EPS)


def row_of(table, quantity, **cell):
    """The one row of a cell, whose table is turned into a lookup once."""
    names = tuple(sorted(cell))
    kept = table.attrs.setdefault("rows", {})
    if names not in kept:
        columns = [table[name].tolist() for name in (*names, "quantity")]
        kept[names] = dict(zip(zip(*columns, strict=True), table.itertuples(), strict=True))
        assert len(kept[names]) == len(table), "a cell has several rows"
    return kept[names][(*(cell[name] for name in names), quantity)]


def assert_same(value, twin):
    assert value == pytest.approx(twin, abs=tolerances.METRIC, nan_ok=True)


def with_blocks(trace, block):
    trace._manifest["decoding"]["block"] = block
    return trace


def moving_maps(place, *, length, share=0.9, heads=1):
    """Maps of one layer whose heads all have a column at place[step]; None: indifferent."""
    maps = uniform(len(place), 1, heads, length)
    for step, key in enumerate(place):
        if key is not None:
            maps[step] = column(length, key, share)
    return maps
