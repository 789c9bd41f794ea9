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
            others = [key for key in ordered if key not in keys]
            by_mass = edit.matched_to == "mass"
            keys = (
                weighed(edit, keys, others, known, (*pool.draw, place))
                if by_mass
                else drawn(edit, keys, others, pool, place)
            )
        found.append(keys + [-1] * (edit.ranks - len(keys)))
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


def weighed(edit, sinks, others, known, seed):
    """Others in an order by chance: of all first n of them the n that weighs most like the sinks."""
    if not sinks or not others:
        return []
    order = np.random.default_rng(seed).permutation(others).tolist()[: edit.ranks]
    wanted = sum(known[key] for key in sinks)
    gaps = {n: abs(sum(known[key] for key in order[:n]) - wanted) for n in range(1, len(order) + 1)}
    return order[: min(gaps, key=lambda n: (round(gaps[n], 9), n))]


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
    if options.get("matched_to") == "mass":
        options["most"] = draw(st.sampled_from([None, 1, 4]))
    return kind(k, rule=rule, **options), np.array(shares) / 50, pool


@settings(max_examples=300)
@given(cases())
def test_keys_are_those_that_lists_find(case):
    edit, shares, pool = case
    np.testing.assert_array_equal(edit.choose_keys(shares, None, pool), slow(edit, shares, pool))


def test_a_control_by_mass_takes_as_much_attention_as_the_sinks():
    """Within half of its largest key, where enough keys are left to reach it."""
    shares = np.random.default_rng(3).dirichlet(np.full(40, 0.5), size=16)
    pool = Candidates(np.ones(40, dtype=bool), np.zeros(40), (1, 2, 3))
    sinks = E.hide_sinks(2).choose_keys(shares, None, pool)
    control = E.hide_random(2, matched_to="mass").choose_keys(shares, None, pool)
    for row, sunk, others in zip(shares, sinks, control, strict=True):
        others = others[others >= 0]
        assert not set(sunk) & set(others)
        least = np.delete(row, sunk).max() / 2
        assert abs(row[sunk].sum() - row[others].sum()) <= least + 1e-12


def test_number_is_another_word_for_any_others():
    assert E.hide_random(3, matched_to="number") == E.hide_random(3)


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
