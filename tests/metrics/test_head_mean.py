"""Absorption of the mean over heads, as published, beside that of each head."""

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch.errors import SpecError


@pytest.fixture(scope="module")
def trace():
    how = aw.decoding.LowConfidence(length=6, steps=6)
    return aw.run(aw.load("tiny/llada"), "the anchor holds", how, probes=[aw.probes.received()])


def slow(trace, layer):
    """Plain loops: the greatest share of the mean over heads, and the mean of the greatest."""
    shares = trace["received"].sel(group="all").values.astype(np.float16).astype(np.float64)
    of_mean, of_each = [], []
    for step in range(shares.shape[0]):
        heads = shares[step, layer]
        of_mean.append(max(heads.mean(axis=0)))
        of_each += [max(head) for head in heads]
    return np.mean(of_mean), np.mean(of_each)


def test_both_are_what_loops_say(trace):
    table = aw.metrics.absorption(trace, ["first", "top1"], heads="both")
    values = table.set_index(["quantity", "layer"])["value"]
    for layer in range(3):
        of_mean, of_each = slow(trace, layer)
        assert values["top1 of the head mean", layer] == pytest.approx(of_mean, rel=1e-6)
        assert values["top1", layer] == pytest.approx(of_each, rel=1e-6)
        # One position for all heads: the mean over heads changes nothing.
        first = values["first", layer]
        assert values["first of the head mean", layer] == pytest.approx(first, rel=1e-6)


def test_a_mean_never_absorbs_more_than_its_heads(trace):
    values = aw.metrics.absorption(trace, ["top1", "top3"], heads="both").set_index("quantity")
    for keys in ("top1", "top3"):
        assert (
            values.loc[f"{keys} of the head mean", "value"].to_numpy()
            <= values.loc[keys, "value"].to_numpy() + 1e-9
        ).all()


def test_the_default_is_as_it_was(trace):
    plain = aw.metrics.absorption(trace)
    each = aw.metrics.absorption(trace, heads="both")
    named = set(plain["quantity"])
    assert (
        plain["value"].to_numpy() == each[each["quantity"].isin(named)]["value"].to_numpy()
    ).all()


def test_what_cannot_be_is_refused(trace):
    with pytest.raises(SpecError, match="heads='some' is unknown: expected one of each, mean, bo"):
        aw.metrics.absorption(trace, heads="some")
    with pytest.raises(SpecError, match="leave head out of by"):
        aw.metrics.absorption(trace, heads="both", by=("head",))
