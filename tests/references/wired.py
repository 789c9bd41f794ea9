"""Attention maps of a wired network from its description: plain sums and cosines, no weights."""

import numpy as np

from anchorwatch.models.wired import BLOCKS, CODE, FEATURES, Codes, Length, Match, Near, Slope

RATES = (1.0, 10**-0.5, 0.1, 10**-1.5)
SLOPE_RATE = 10**-2.5


def streams_of(ids, words):
    """{block: [position, channel]} before the first layer."""
    length = len(ids)
    blocks = {name: np.zeros((length, CODE)) for name in BLOCKS}
    blocks["features"][:, : len(FEATURES)] = words.features[ids]
    blocks["token"], blocks["name"] = words.codes[ids].copy(), words.names[ids].copy()
    blocks["walk"] = words.states[ids].copy()
    return blocks


def feature(blocks, name):
    """[position] a feature of the token, or of its neighbour."""
    block, _, of_neighbour = name.partition(":")
    if of_neighbour:
        return blocks[block][:, FEATURES.index(of_neighbour)]
    return blocks["features"][:, FEATURES.index(name)]


def logits_of(head, blocks):
    """[query, key] the sum of a head's terms."""
    length = len(blocks["token"])
    total = np.zeros((length, length))
    for query in range(length):
        for key in range(length):
            for term in head.terms:
                total[query, key] += term_logit(term, blocks, query, key)
    return total


def term_logit(term, blocks, query, key):
    if isinstance(term, Match):
        gives = feature(blocks, term.query)[query]
        return gives * (term.base + term.weight * feature(blocks, term.key)[key])
    if isinstance(term, Codes):
        return term.weight * float(blocks[term.query][query] @ blocks[term.key][key])
    if isinstance(term, Near):
        back = query - key - term.offset
        each = [np.cos(rate * back) for rate in RATES]
        return term.weight * sum(each) * feature(blocks, "later")[key]
    if isinstance(term, Slope):
        sine = np.sin(SLOPE_RATE * (key - query)) / SLOPE_RATE
        return term.weight * sine * feature(blocks, term.key)[key]
    assert isinstance(term, Length)
    return 0.0


def maps_of(wiring, ids, words):
    """[layer, head, query, key] attention of the whole network, without its sink token."""
    blocks = streams_of(ids, words)
    causal = np.tril(np.ones((len(ids), len(ids)), dtype=bool))
    every = []
    for heads in wiring.layers:
        maps, brought = [], {name: 0.0 for name in BLOCKS}
        for head in heads:
            logits = logits_of(head, blocks)
            if wiring.is_causal:
                logits = np.where(causal, logits, -np.inf)
            shares = np.exp(logits - logits.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            maps.append(shares)
            for read, written in zip(head.reads, head.writes, strict=True):
                brought[written] = brought[written] + shares @ blocks[read]
        every.append(maps)
        blocks = {name: rows + brought[name] for name, rows in blocks.items()}
    return np.array(every)
