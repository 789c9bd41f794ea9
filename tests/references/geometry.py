"""Attention from vectors we wrote ourselves, and what sinks have over other keys, by loops."""

import math

import numpy as np

from synthetic_traces import planted

PER = ("step", "layer", "head")


class Vectors:
    """Queries [step, layer, head, T, d], keys and values of fewer heads, and the maps they give."""

    def __init__(self, generator, shape, *, kv_heads, size=4, causal=False):
        steps, layers, heads, length = shape
        self.causal, self.size = causal, size
        self.query = generator.normal(0, 1, (steps, layers, heads, length, size))
        self.query += generator.normal(0, 1, (steps, layers, heads, 1, size))
        self.key = generator.normal(0, 1, (steps, layers, kv_heads, length, size))
        self.key *= generator.lognormal(0, 0.5, (steps, layers, kv_heads, length, 1))
        self.value = generator.normal(0, 1, (steps, layers, kv_heads, length, size))
        self.projection = generator.normal(0, 1, (layers, heads, size, 5))

    @property
    def repeats(self):
        return self.query.shape[2] // self.key.shape[2]

    def maps(self):
        key = self.key.repeat(self.repeats, axis=2)
        logits = self.query @ key.swapaxes(-1, -2) / math.sqrt(self.size)
        if self.causal:
            logits = np.where(np.tril(np.ones(logits.shape[-2:])) > 0, logits, -np.inf)
        rows = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return rows / rows.sum(axis=-1, keepdims=True)

    def trace(self, *, prompt=2, keys=False, absent=(), suffix="", **options):
        """A planted trace with geometry and norms, at every key or at peaks; `absent` are
        (step, layer) that were not measured."""
        visibility = "causal" if self.causal else "bidirectional"
        maps = self.maps()
        bare = planted(maps, prompt=prompt, visibility=visibility, **options)
        more = self.fields(bare, keys, set(absent), suffix) | options.pop("more", {})
        return planted(maps, prompt=prompt, visibility=visibility, more=more, **options)

    def numbers(self, step, layer, head, there):
        """name -> one number for each existing key, pair by pair."""
        queries = self.query[step, layer, head, :there]
        found = {name: [] for name in ("logit", "cosine", "norm_product", "key_norm")}
        found |= {"value_norm": [], "contribution_norm": []}
        for j in range(there):
            key = self.key[step, layer, head // self.repeats, j]
            value = self.value[step, layer, head // self.repeats, j]
            dots = [float(q @ key) for q in queries]
            norms = [float(np.linalg.norm(q) * np.linalg.norm(key)) for q in queries]
            found["logit"].append(sum(dots) / there / math.sqrt(self.size))
            found["norm_product"].append(sum(norms) / there)
            cosines = [dot / norm for dot, norm in zip(dots, norms, strict=True)]
            found["cosine"].append(sum(cosines) / there)
            found["key_norm"].append(float(np.linalg.norm(key)))
            found["value_norm"].append(float(np.linalg.norm(value)))
            carried = value @ self.projection[layer, head]
            found["contribution_norm"].append(float(np.linalg.norm(carried)))
        return found

    def fields(self, trace, keys, absent, suffix):
        received = trace["received"].values[:, :, :, 0]
        steps, layers, heads, _ = received.shape
        names = ("logit", "cosine", "norm_product", "key_norm", "value_norm", "contribution_norm")
        mean = {name: np.full((steps, layers, heads), np.nan, dtype=np.float32) for name in names}
        each = {name: np.full(received.shape, np.nan, dtype=np.float32) for name in names}
        peak = {name: np.full((steps, layers, heads, 8), np.nan, np.float32) for name in names}
        places = np.full((steps, layers, heads, 8), -1, dtype=np.int32)
        for step, layer, head in np.ndindex(steps, layers, heads):
            if (step, layer) in absent:
                continue
            there = int((trace.canvas[step] >= 0).sum())
            order = np.argsort(-received[step, layer, head, :there], kind="stable")[:8]
            places[step, layer, head, : len(order)] = order
            for name, values in self.numbers(step, layer, head, there).items():
                mean[name][step, layer, head] = sum(values) / there
                each[name][step, layer, head, :there] = values
                peak[name][step, layer, head, : len(order)] = np.array(values)[order]
        found = {"peak_key": ((*PER, "peak"), places)}
        for name in names:
            spelled = name + (suffix if name in names[:3] else "")
            found[spelled] = (PER, mean[name])
            found[f"peak_{spelled}"] = ((*PER, "peak"), peak[name])
            if keys:
                found[f"each_{spelled}"] = ((*PER, "key"), each[name])
        return found


def split(numbers, sinks, scale):
    """[(advantage, angle, norm, plain angle, plain norm)] of each sink against the others."""
    others = [j for j in range(len(numbers["logit"])) if j not in sinks]
    if not others:
        return []

    def rest(name):
        return sum(numbers[name][j] for j in others) / len(others)

    found = []
    for j in sinks:
        n, other_n = numbers["norm_product"][j], rest("norm_product")
        c, other_c = numbers["logit"][j] / n, rest("logit") / other_n
        p, other_p = numbers["cosine"][j], rest("cosine")
        # Shapley by its definition: the mean over both orders of changing one, then the other
        angle = ((c - other_c) * other_n + (c - other_c) * n) / 2
        norm = ((n - other_n) * other_c + (n - other_n) * c) / 2
        plain_angle = ((p - other_p) * other_n + (p - other_p) * n) / 2 * scale
        plain_norm = ((n - other_n) * other_p + (n - other_n) * p) / 2 * scale
        advantage = numbers["logit"][j] - rest("logit")
        found.append((advantage, angle, norm, plain_angle, plain_norm))
    return found


def auroc(values, sinks):
    """The chance that a sink's value is smaller, ties half."""
    others = [j for j in range(len(values)) if j not in sinks]
    if not others or not sinks:
        return math.nan
    won = sum((values[i] < values[j]) + (values[i] == values[j]) / 2 for i in sinks for j in others)
    return won / (len(sinks) * len(others))
