"""What sinks are, by loops over dense maps: the slow twins of metrics.sink_classes and token_vs_position."""

from collections import Counter

import numpy as np

from anchorwatch.metrics.null import group_queries
from references.sinks import column_shares, null_shares, rulli_sinks


def cells(trace, maps, group="all"):
    """(step, layer, head, shares, null shares) of every cell that was measured."""
    causal = trace.manifest["model"]["visibility"] == "causal"
    for step in range(maps.shape[0]):
        queries = np.flatnonzero(group_queries(trace, step, group)).tolist()
        there = int((trace.canvas[step] != -1).sum())
        for layer in range(maps.shape[1]):
            for head in range(maps.shape[2]):
                rows = [maps[step, layer, head, q] for q in queries]
                if rows and not np.isnan(rows).any():
                    null = null_shares(queries, there, causal)
                    yield step, layer, head, column_shares(rows, there), null


def class_counts(trace, maps, class_of, eps, group="all"):
    """{layer: (detections by class, keys by class, keys by class as often as there were sinks)}."""
    found = {layer: (Counter(), Counter(), Counter()) for layer in range(maps.shape[1])}
    for step, layer, _, shares, _ in cells(trace, maps, group):
        named = [class_of[int(i)] for i in trace.canvas[step] if i != -1]
        sinks = rulli_sinks(shares, eps)
        found[layer][0].update(named[j] for j in sinks)
        found[layer][1].update(named)
        for name in named:
            found[layer][2][name] += len(sinks) / len(named)
    return found


def token_counts(trace, maps, eps, group="all"):
    """(detections, keys) by token text, of all layers."""
    sinks, keys = Counter(), Counter()
    for step, _, _, shares, _ in cells(trace, maps, group):
        texts = [trace.token(int(i)) for i in trace.canvas[step] if i != -1]
        sinks.update(texts[j] for j in rulli_sinks(shares, eps))
        keys.update(texts)
    return sinks, keys


def kind_shares(trace, maps, kind_of, eps, group="all"):
    """{layer: {quantity: (value, null)}} of attention on structure, masks and content."""
    sums = {layer: Counter() for layer in range(maps.shape[1])}
    for step, layer, _, shares, null in cells(trace, maps, group):
        kinds = [kind_of[int(i)] for i in trace.canvas[step] if i != -1]
        sinks = rulli_sinks(shares, eps)
        on_sinks = sum(shares[j] for j in sinks)
        into = sums[layer]
        into["cells"] += 1
        into["on_sinks"] += on_sinks
        for j, kind in enumerate(kinds):
            into[kind] += shares[j]
            into[kind, "null"] += null[j]
            into[kind, "sinks"] += shares[j] if j in sinks else 0.0
            into[kind, "sinks null"] += on_sinks * null[j] / sum(null)
    return sums


def scores(train, test):
    """{name: (explained, squares)} of keys (class, tenth, token, outcome, step) learnt on others."""
    ways = {"class": lambda key: (key[0],), "place": lambda key: (key[1],)}
    ways["token"] = lambda key: (key[2],)
    ways["both"] = lambda key: (("class", key[0]), ("place", key[1]))
    train, test = centred(train), centred(test)
    squares = sum(key[3] ** 2 for key in test)
    found = {}
    for name, levels in ways.items():
        every = sorted({level for key in [*train, *test] for level in levels(key)}, key=str)
        at = {level: index for index, level in enumerate(every)}
        rows = np.zeros((len(train), len(every)))
        for row, key in zip(rows, train, strict=True):
            row[[at[level] for level in levels(key)]] = 1
        means = np.linalg.lstsq(rows, np.array([key[3] for key in train]), rcond=None)[0]
        error = sum((key[3] - sum(means[at[one]] for one in levels(key))) ** 2 for key in test)
        found[name] = squares - error, squares
    return found


def centred(keys):
    """The same keys, outcomes without the mean of their step."""
    found = []
    for step in sorted({key[4] for key in keys}):
        own = [key for key in keys if key[4] == step]
        mean = sum(key[3] for key in own) / len(own)
        found += [(*key[:3], key[3] - mean, step) for key in own]
    return found
