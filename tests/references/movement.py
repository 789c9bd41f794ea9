"""Movement the obvious way: loops over dense maps, and every shuffle of the steps one by one."""

import itertools
import math
import statistics

import numpy as np

from references.sinks import column_shares, rulli_sinks

NAN = float("nan")


def mean(values):
    held = [value for value in values if not math.isnan(value)]
    return sum(held) / len(held) if held else NAN


def history(trace, maps, layer, head, queries, eps):
    """For each step None, or (shares, sinks): `queries(step)` are the rows a mean is over."""
    found = []
    for step in range(maps.shape[0]):
        rows = [maps[step, layer, head, q] for q in queries(step)]
        there = int((trace.canvas[step] != -1).sum())
        if not rows or np.isnan(rows[0][0]):
            found.append(None)
            continue
        shares = column_shares(rows, there)
        found.append((shares, rulli_sinks(shares, eps)))
    return found


def path(told, *, sinks_only=True):
    """Position of the greatest key at each step, None where there is none."""
    found = []
    for one in told:
        best = None if one is None else max(range(len(one[0])), key=lambda k: one[0][k])
        if sinks_only and best is not None and best not in one[1]:
            best = None
        found.append(best)
    return found


def shuffles(values):
    """Every way to deal the values that are not None out to the same steps."""
    places = [step for step, value in enumerate(values) if value is not None]
    for order in itertools.permutations([values[step] for step in places]):
        dealt = list(values)
        for step, value in zip(places, order, strict=True):
            dealt[step] = value
        yield dealt


def gaps(positions):
    return [abs(b - a) for a, b in itertools.pairwise(positions) if a is not None and b is not None]


def jump_rate(positions):
    return mean([float(gap > 0) for gap in gaps(positions)])


def displacement(positions, length):
    return mean([gap / length for gap in gaps(positions)])


def variance(positions, length):
    held = [p / length for p in positions if p is not None]
    return statistics.pvariance(held) if len(held) >= 2 else NAN


def modal_share(positions):
    held = [p for p in positions if p is not None]
    return max(held.count(p) for p in held) / len(held) if len(held) >= 2 else NAN


def centroid(told):
    return [
        None if one is None else sum(k * s for k, s in enumerate(one[0])) / sum(one[0])
        for one in told
    ]


def tau(positions):
    """Kendall's tau-b with the step, which has no ties."""
    held = [(step, p) for step, p in enumerate(positions) if p is not None]
    up = down = level = 0
    for (_, a), (_, b) in itertools.combinations(held, 2):
        up, down, level = up + (b > a), down + (b < a), level + (b == a)
    pairs = up + down + level
    return (up - down) / math.sqrt(pairs * (up + down)) if up + down else NAN


def slope(positions):
    held = [(step, p) for step, p in enumerate(positions) if p is not None]
    slopes = [(b - a) / (t - s) for (s, a), (t, b) in itertools.combinations(held, 2)]
    return statistics.median(slopes) if slopes else NAN


def frontier(trace):
    """Masked positions at each step."""
    return [np.flatnonzero(row).tolist() for row in trace.masked[:-1]]


def frontier_hit(positions, masked):
    return mean(
        [float(p == max(m)) for p, m in zip(positions, masked, strict=True) if p is not None and m]
    )


def frontier_distance(positions, masked, length):
    both = zip(positions, masked, strict=True)
    return mean([abs(p - max(m)) / length for p, m in both if p is not None and m])


def transitions(told):
    """Steps with a step before them, both measured."""
    return [s for s in range(1, len(told)) if told[s] is not None and told[s - 1] is not None]


def onset_counts(told, committed):
    """onset and fresh, onset, fresh at risk, at risk; `committed[step]` is by the step before."""
    found = np.zeros(4)
    for step in transitions(told):
        for key in range(len(told[step][0])):
            if key in told[step - 1][1]:
                continue
            new, fresh = key in told[step][1], key in committed[step]
            found += [new and fresh, new, fresh, 1]
    return found


def odds(hit, onset, able, risk):
    table = [hit, onset - hit, able - hit, risk - onset - able + hit]
    if min(table) < 1e-12:
        table = [max(count, 0) + 0.5 for count in table]
    return table[0] * table[3] / (table[1] * table[2])


def stay_counts(told, shown=None):
    """({length: ended}, {length: censored}, how many began before they could be seen)."""
    ended, censored, old = {}, {}, 0
    sinks = [None if one is None else set(one[1]) for one in told] if shown is None else shown
    keys = max((max(one, default=-1) for one in sinks if one is not None), default=-1) + 1
    for key in range(keys):
        length = 0
        for step, held in enumerate(sinks):
            inside = held is not None and key in held
            if inside:
                old += length == 0 and (step == 0 or sinks[step - 1] is None)
                length += 1
            elif length:
                where = censored if held is None else ended
                where[length] = where.get(length, 0) + 1
                length = 0
        if length:
            censored[length] = censored.get(length, 0) + 1
    return ended, censored, old


def survival(ended, censored, longest):
    """Share that outlasts 1, 2, ..., longest steps."""
    share, found = 1.0, []
    for age in range(1, longest + 1):
        left = sum(n for at, n in (*ended.items(), *censored.items()) if at >= age)
        if left > 1e-12:
            share *= 1 - ended.get(age, 0) / left
        found.append(share if left > 1e-12 or share < 1e-12 else NAN)
    return found


def shuffled_stays(told, steps):
    """Expected counts of stays: each key's steps, as long as it exists, in every order."""
    ended, censored = {}, {}
    keys = max((len(one[0]) for one in told if one is not None), default=0)
    for key in range(keys):
        able = [s for s in range(steps) if told[s] is not None and key < len(told[s][0])]
        flags = [key in told[s][1] for s in able]
        orders = list(itertools.permutations(flags))
        for order in orders:
            on = {s for s, flag in zip(able, order, strict=True) if flag}
            shown = [None if told[s] is None else ({0} if s in on else set()) for s in range(steps)]
            for held, counts in zip((ended, censored), stay_counts(None, shown)[:2], strict=True):
                for length, number in counts.items():
                    held[length] = held.get(length, 0) + number / len(orders)
    return ended, censored


def jaccard(one, other):
    either = set(one) | set(other)
    return len(set(one) & set(other)) / len(either) if either else NAN


def cosine(one, other):
    a, b = padded(one, other)
    size = math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / size


def divergence(one, other):
    """Jensen-Shannon in bits."""
    a, b = padded(one, other)
    a, b = [x / sum(a) for x in a], [y / sum(b) for y in b]
    total = 0.0
    for x, y in zip(a, b, strict=True):
        middle = (x + y) / 2
        total += sum(w * math.log2(w / middle) / 2 for w in (x, y) if w > 0)
    return total


def padded(one, other):
    size = max(len(one), len(other))
    return [[*side, *[0.0] * (size - len(side))] for side in (one, other)]


def by_lag(values, alike, lag):
    """Mean over steps of the likeness to what was `lag` steps before."""
    return mean(
        [
            alike(values[step], values[step - lag])
            for step in range(lag, len(values))
            if values[step] is not None and values[step - lag] is not None
        ]
    )


def over_pairs(values, alike):
    held = [value for value in values if value is not None]
    return mean([alike(b, a) for a, b in itertools.combinations(held, 2)])


def split(one, other, there):
    """Share of steps (all in `there`) at which both have a sink and another."""
    apart = [
        float(one[s] is not None and other[s] is not None and one[s] != other[s]) for s in there
    ]
    return mean(apart)


def path_stays(positions):
    """(position, first step, length) of each stretch at one position."""
    found = []
    for step, position in enumerate(positions):
        if position is None:
            continue
        if found and found[-1][0] == position and found[-1][1] + found[-1][2] == step:
            found[-1][2] += 1
        else:
            found.append([position, step, 1])
    return found
