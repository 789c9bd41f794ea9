"""Sink metrics the obvious way: loops over dense maps, one query, one key at a time."""

import numpy as np


def column_shares(rows, there):
    """[key] mean over query rows, only keys that exist."""
    return [sum(row[k] for row in rows) / len(rows) for k in range(there)]


def null_shares(queries, there, causal):
    """[key] mean over queries of an even share among the keys each may look at."""
    found = []
    for k in range(there):
        looks = [1 / (q + 1) if k <= q else 0.0 for q in queries] if causal else [1 / there]
        found.append(sum(looks) / len(looks))
    return found


def rulli_sinks(shares, eps):
    """Positions whose column sum exceeds the mean of the others by eps."""
    size = len(shares)
    sums = [size * share for share in shares]
    found = []
    for j in range(size):
        others = [sums[k] for k in range(size) if k != j]
        if others and sums[j] > sum(others) / len(others) + eps:
            found.append(j)
    return found


def gini(shares):
    """Mean absolute difference of all pairs over twice the mean."""
    size, total = len(shares), sum(shares)
    apart = sum(abs(a - b) for a in shares for b in shares)
    return apart / (2 * size * total)


def normalised_entropy(shares):
    p = np.array(shares) / sum(shares)
    return float(-sum(x * np.log(x) for x in p if x > 0) / np.log(len(p)))


def effective_share(shares):
    p = np.array(shares) / sum(shares)
    return float(1 / sum(p**2) / len(p))


def kappa(a, b):
    """Cohen's kappa of two lists of yes and no; none where one of them never says yes."""
    size = len(a)
    if not any(a) or not any(b):
        return float("nan")
    agree = sum(x == y for x, y in zip(a, b, strict=True)) / size
    chance = sum(a) * sum(b) / size**2 + (size - sum(a)) * (size - sum(b)) / size**2
    return (agree - chance) / (1 - chance) if chance < 1 else float("nan")
