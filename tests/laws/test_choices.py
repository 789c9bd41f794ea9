"""Which keys an edit hides, against one place and one key at a time."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorwatch as aw
from anchorwatch.edits.spec import Candidates

E = aw.edits


def slow(edit, shares, pool):
    """[place, k] by lists: the sinks in order, then for a control one draw after another."""
    found = []
    for place, row in enumerate(shares):
        known = dict(enumerate(row[: len(pool.eligible)]))
        allowed = [key for key in known if pool.eligible[key]]
        most = min(edit.k, len(known) - 1)
        sign = 1 if isinstance(edit, E.hide_lowest) else -1
        order = sorted(known, key=lambda key: (sign * known[key], key))
        ordered = [key for key in order if key in allowed]
        rule = getattr(edit, "rule", None)
        labels = np.ones(len(known), dtype=bool)
        if rule is not None:
            padded = np.full((1, len(pool.eligible)), np.nan)
            padded[0, : len(known)] = list(known.values())
            labels = rule.labels(padded, None)[0]
        if isinstance(edit, E.hide_lowest):
            keys = ordered[:most]
        else:
            keys = [key for key in ordered if known[key] > 0 and labels[key]][:most]
        if isinstance(edit, E.hide_random):
            keys = drawn(edit, keys, [key for key in ordered if key not in keys], pool, place)
        found.append(keys + [-1] * (edit.k - len(keys)))
    return found


def drawn(edit, sinks, others, pool, place):
    chance = np.random.default_rng((*pool.draw, place))
    if edit.matched_to == "rank":
        others = others[: 2 * edit.k]
    picked = []
    for sink in sinks:
        left = [key for key in others if key not in picked]
        alike = [key for key in left if pool.classes[key] == pool.classes[sink]]
        among = alike if alike and edit.matched_to == "class" else left
        if among:
            picked.append(int(chance.choice(among)))
    return picked


@st.composite
def cases(draw):
    canvas, places = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    known = draw(st.integers(1, canvas))
    grid = st.integers(0, 9)  # ties too
    shares = draw(
        st.lists(st.lists(grid, min_size=known, max_size=known), min_size=places, max_size=places)
    )
    pool = Candidates(
        eligible=np.array(draw(st.lists(st.booleans(), min_size=canvas, max_size=canvas))),
        classes=np.array(draw(st.lists(st.integers(0, 2), min_size=canvas, max_size=canvas))),
        draw=(draw(st.integers(0, 99)), 3, 1),
    )
    k, rule = draw(st.integers(1, 5)), draw(st.sampled_from([None, aw.rules.rulli(eps=0.5)]))
    kind = draw(st.sampled_from([E.hide_sinks, E.hide_lowest, E.hide_random]))
    if kind is E.hide_lowest:
        return kind(k), np.array(shares) / 50, pool
    options = {"matched_to": draw(st.sampled_from(E.MATCHES))} if kind is E.hide_random else {}
    return kind(k, rule=rule, **options), np.array(shares) / 50, pool


@settings(max_examples=300)
@given(cases())
def test_keys_are_those_that_lists_find(case):
    edit, shares, pool = case
    np.testing.assert_array_equal(edit.choose_keys(shares, None, pool), slow(edit, shares, pool))


def test_a_seed_draws_what_it_always_drew():
    """Traces of controls can be made again: these keys were drawn by the first version."""
    shares = np.random.default_rng(7).random((4, 24))
    pool = Candidates(np.ones(24, dtype=bool), np.arange(24) % 3, (5, 6, 0, 2))
    expected = {
        "sinks": [[4, 23, 5], [18, 0, 7], [3, 23, 5], [20, 15, 13]],
        "class": [[10, 4, 7], [6, 8, 7], [13, 2, 7], [10, 21, 20]],
        "rank": [[17, 0, 5], [10, 23, 20], [14, 12, 22], [3, 23, 19]],
    }
    for matched_to, keys in expected.items():
        found = E.hide_random(3, matched_to=matched_to).choose_keys(shares, None, pool)
        assert found.tolist() == keys, matched_to
