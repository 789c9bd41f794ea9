"""Runs of planted maps for claims about anchors: what keys receive, layer by layer."""

import numpy as np

from anchorwatch.studies.evidence import TraceSet
from planted import planted

LENGTH, STEPS = 20, 8


def layered(count, keys, *, layers=4, heads=2, causal=False, seed=0, tokens=None, **more):
    """Runs whose rows all look at keys as `keys(rng, prompt, layer, step)` [key] says."""
    found = []
    seen = np.tril(np.ones((LENGTH, LENGTH))) if causal else np.ones((LENGTH, LENGTH))
    for index in range(count):
        rng = np.random.default_rng((seed, index))
        maps = np.empty((STEPS, layers, heads, LENGTH, LENGTH))
        for step in range(STEPS):
            for layer in range(layers):
                rows = seen * (np.asarray(keys(rng, index, layer, step)) + 1e-4)
                maps[step, layer] = rows / rows.sum(axis=-1, keepdims=True)
        own = np.arange(1, LENGTH + 1) + 100 * (index + 1) if tokens is None else tokens(rng, index)
        given = {name: made(rng, index, maps) for name, made in more.items()}
        found.append(
            planted(
                maps,
                prompt=LENGTH - STEPS,
                tokens=own,
                visibility="causal" if causal else "bidirectional",
                source="planted/arm" if causal else "planted/mdm",
                seed=index,
                **given,
            )
        )
    return TraceSet.of(found)


def peaked(at, share, length=LENGTH):
    """[key] with this share on one key, the rest even."""
    keys = np.full(length, (1 - share) / (length - 1))
    keys[at] = share
    return keys
