"""Attention to named keys: loops over dense maps, planted heads, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tolerances
from anchorwatch.errors import SpecError
from anchorwatch.metrics.aligned_keys import alignment
from synthetic_traces import assert_same, planted, random_maps, uniform

PROMPT, LENGTH = 4, 9


def whole_maps(maps):
    """The fields of `pattern`."""
    picks = list(np.ndindex(*maps.shape[:3]))
    fields = {
        "pattern": (
            ("pick", "query", "key"),
            np.stack([maps[pick] for pick in picks]).astype(np.float32),
        )
    }
    for axis, name in enumerate(("step", "layer", "head")):
        fields[f"pick_{name}"] = (("pick",), np.array([p[axis] for p in picks], dtype=np.int32))
    return fields


@given(st.integers(0, 50), st.booleans(), st.booleans())
def test_the_quantities_are_what_loops_over_maps_say(seed, causal, shift):
    generator = np.random.default_rng(seed)
    maps = random_maps(generator, (LENGTH - PROMPT, 2, 2, LENGTH), causal=causal)
    visibility = "causal" if causal else "bidirectional"
    options = {"prompt": PROMPT, "visibility": visibility, "shift": shift}
    trace = planted(maps, more=whole_maps(maps), **options)
    pairs = {p: [int(k) for k in generator.choice(PROMPT, 2, replace=False)] for p in (5, 6, 8)}
    table = alignment(trace, pairs)
    for layer, head in np.ndindex(2, 2):
        hits, masses, nulls = [], [], []
        for position, keys in pairs.items():
            row = max(position - int(shift or causal), 0)
            shares = maps[trace.committed_at[position], layer, head, row]
            hits.append(int(shares.argmax()) in keys)
            masses.append(shares[keys].sum())
            visible = range(row + 1) if causal else range(LENGTH)
            nulls.append(len(set(keys) & set(visible)) / len(visible))
        rows = table[(table.layer == layer) & (table["head"] == head)].set_index("quantity")
        assert_same(rows.value["hit"], np.mean(hits))
        assert_same(rows.value["mass"], np.mean(masses))
        assert rows.value["mass_in_top"] <= rows.value["mass"] + tolerances.METRIC
        assert_same(rows.null["mass"], np.mean(nulls))


def test_a_planted_head_hits_every_key_and_an_even_head_has_its_null():
    maps = uniform(LENGTH - PROMPT, 1, 2, LENGTH)
    pairs = {p: p - PROMPT for p in range(PROMPT, LENGTH - 1)}
    for position, key in pairs.items():
        maps[:, 0, 1, position] = 0
        maps[:, 0, 1, position, key] = 1
    table = alignment(planted(maps, prompt=PROMPT, more=whole_maps(maps)), pairs)
    rows = table.set_index(["head", "quantity"])
    assert rows.value[1, "hit"] == rows.value[1, "mass"] == 1
    assert_same(rows.lift[1, "mass"], LENGTH)
    assert_same(rows.value[0, "mass"], 1 / LENGTH)
    assert_same(rows.null[0, "mass"], 1 / LENGTH)


def test_without_maps_the_mass_is_absent_and_pairs_may_be_spelled():
    trace = planted(uniform(5, 1, 1, LENGTH), prompt=PROMPT)
    table = alignment(trace, "5=0,6=1+2").set_index("quantity")
    assert math.isnan(table.value["mass"])
    assert table.equals(alignment([trace], [{5: 0, 6: [1, 2]}]).set_index("quantity"))


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ("5=x", "is not spelled as 12=3 or 12=3"),
        ({5: 99}, "positions and keys are 0 to 8 here"),
        ({1: 0}, "the answer is 4 to 8"),
        ([{5: 0}, {5: 1}], "one mapping for all 1 traces"),
    ],
)
def test_what_cannot_be_aligned_is_refused_with_what_can(pairs, says):
    with pytest.raises(SpecError, match=says):
        alignment(planted(uniform(5, 1, 1, LENGTH), prompt=PROMPT), pairs)
