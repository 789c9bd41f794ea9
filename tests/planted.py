"""Traces made of maps we wrote ourselves, so that every number a metric says is known beforehand.

`planted(maps)` reduces dense maps the obvious way into the fields a run would have kept.
"""

from collections.abc import Mapping, Sequence

import numpy as np

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
