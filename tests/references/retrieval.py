"""What committed rows look at, one row of a dense map at a time."""

import math


def row_scores(row, span, gold, ids, token, k=8):
    """Scores of one row (a list over keys) for a region: gold is a set of keys, span (first, last).

    `row` holds what the row gives to each key, `ids` the canvas before the commit.
    """
    seen = range(*span)
    greatest = max(seen, key=lambda j: row[j])
    kept = sorted(seen, key=lambda j: -row[j])[:k]
    expected = len([j for j in seen if j in gold]) / len(seen)
    mass = sum(row[j] for j in gold)
    same = [j for j in seen if j in gold and ids[j] == token]
    return {
        "hit": float(greatest in gold),
        "copy": float(greatest in gold and ids[greatest] == token),
        "evidence_mass": mass,
        "evidence_in_top": sum(row[j] for j in kept if j in gold),
        "lift": mass / expected,
        "expected": expected,
        "kept": sum(row[j] for j in kept),
        "same": len(same) / len(seen),
    }


def row_auroc(row, context, gold):
    """Gold keys against the other keys of the context, ties half."""
    ours, others = [j for j in context if j in gold], [j for j in context if j not in gold]
    if not ours or not others:
        return math.nan
    won = sum((row[i] > row[j]) + (row[i] == row[j]) / 2 for i in ours for j in others)
    return won / (len(ours) * len(others))


def without_sinks(row, span, gold, sinks, k=8):
    """Lift of gold once the sinks among the k kept keys are taken out and the row made whole."""
    seen = list(range(*span))
    kept = sorted(seen, key=lambda j: -row[j])[:k]
    out = {j for j in kept if j in sinks}
    left = [j for j in seen if j not in out]
    golden = [j for j in left if j in gold]
    rest = 1 - sum(row[j] for j in out)
    if rest < 0.02 or not golden:
        return math.nan
    return sum(row[j] for j in golden) / rest / (len(golden) / len(left))


def spearman(one, two):
    """Of two lists without missing values; NaN where one is constant."""

    def ranks(values):
        return [sum(w < v for w in values) + (sum(w == v for w in values) + 1) / 2 for v in values]

    a, b = ranks(one), ranks(two)
    mean = (len(a) + 1) / 2
    top = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    bottom = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    return top / bottom if bottom else math.nan
