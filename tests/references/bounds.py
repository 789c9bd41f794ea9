"""What an answer costs a diffusion model, by going through every order and every set of masks."""

from itertools import chain, combinations, permutations
from math import factorial

import numpy as np


def over_orders(cost, answer):
    """Mean over all orders of writing `answer`; cost(masked, position) is -log p of the token."""
    totals = []
    for order in permutations(answer):
        totals.append(sum(cost(frozenset(order[i:]), at) for i, at in enumerate(order)))
    return float(np.mean(totals))


def over_mask_sets(cost, answer):
    """The diffusion bound: each set of k of n masks weighs (k - 1)! (n - k)! / n!."""
    n = len(answer)
    sets = chain.from_iterable(combinations(answer, k) for k in range(1, n + 1))
    return sum(
        factorial(len(held) - 1)
        * factorial(n - len(held))
        / factorial(n)
        * sum(cost(frozenset(held), at) for at in held)
        for held in sets
    )
