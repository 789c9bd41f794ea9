"""Sinks: planted answers, and every number against loops over dense maps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tolerances
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics import sink_strength as metrics
from anchorwatch.metrics.null import group_queries
from anchorwatch.metrics.sink_rules import gu, mass, ratio, rulli, topk, zscore
from anchorwatch.metrics.table import NUMBERS
from references import sinks as slow
from synthetic_traces import column, planted, random_maps, uniform


@st.composite
def made_of_maps(draw):
    """(trace, maps): random maps with a prompt, both visibilities."""
    causal = draw(st.booleans())
    steps, layers, heads = draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    prompt, answer = draw(st.integers(1, 9)), steps
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    maps = random_maps(generator, (steps, layers, heads, prompt + answer), causal=causal)
    return planted(maps, prompt=prompt, visibility="causal" if causal else "bidirectional"), maps


def cells_of(trace, maps, group="all"):
    """(step, layer, head, shares, null shares) of every cell that has queries, by loops."""
    causal = trace.manifest["model"]["visibility"] == "causal"
    for step in range(maps.shape[0]):
        queries = np.flatnonzero(group_queries(trace, step, group)).tolist()
        there = int((trace.canvas[step] != -1).sum())
        if not queries:
            continue
        for layer in range(maps.shape[1]):
            for head in range(maps.shape[2]):
                rows = [maps[step, layer, head, q] for q in queries]
                shares = slow.column_shares(rows, there)
                yield step, layer, head, shares, slow.null_shares(queries, there, causal)


def value(table, quantity, **cell):
    """The one row of a cell; a table is turned into a lookup once."""
    if "rows" not in table.attrs:
        names = [name for name in table.columns[1:] if name not in NUMBERS]
        keys = zip(*(table[name] for name in names), strict=True)
        table.attrs["rows"] = names, dict(zip(keys, table.itertuples(), strict=True))
        assert len(table.attrs["rows"][1]) == len(table)
    names, rows = table.attrs["rows"]
    return rows[tuple({**cell, "quantity": quantity}[name] for name in names)]


@given(made_of_maps(), st.sampled_from(["all", "masked", "written"]))
def test_sinks_are_what_loops_over_dense_maps_count(made, group):
    trace, maps = made
    eps = 1.3571
    table = metrics.sinks(trace, rulli(eps), group=group, by=("step", "layer", "head"))
    seen = set()
    for step, layer, head, shares, null in cells_of(trace, maps, group):
        at = {"step": step, "layer": layer, "head": head}
        found, nothing = slow.rulli_sinks(shares, eps), slow.rulli_sinks(null, eps)
        assert value(table, "count", **at).value == len(found)
        assert value(table, "count", **at).null == len(nothing)
        assert value(table, "incidence", **at).value == bool(found)
        absorbed = value(table, "absorbed", **at)
        assert absorbed.value == pytest.approx(sum(shares[j] for j in found), abs=tolerances.METRIC)
        assert absorbed.null == pytest.approx(sum(null[j] for j in found), abs=tolerances.METRIC)
        greatest = value(table, "greatest", **at)
        assert greatest.value == pytest.approx(max(shares), abs=tolerances.METRIC)
        best = int(np.argmax(shares))
        assert greatest.null == pytest.approx(null[best], abs=tolerances.METRIC)
        seen.add((step, layer, head))
    absent = table[table.value.isna()]
    assert len(table) / 4 - len(seen) == len(absent) / 4  # neither dropped nor zero
    assert (absent.missing == 1).all() and (absent.n == 0).all()


@given(made_of_maps())
def test_concentration_is_what_loops_over_pairs_of_keys_say(made):
    trace, maps = made
    table = metrics.concentration(trace, by=("step", "layer", "head"))
    for step, layer, head, shares, null in cells_of(trace, maps):
        at = {"step": step, "layer": layer, "head": head}
        for name, twin in (
            ("gini", slow.gini),
            ("normalised_entropy", slow.normalised_entropy),
            ("effective_share", slow.effective_share),
        ):
            if len(shares) == 1 and name == "normalised_entropy":
                continue
            row = value(table, name, **at)
            assert row.value == pytest.approx(twin(shares), abs=tolerances.METRIC), name
            assert row.null == pytest.approx(twin(null), abs=tolerances.METRIC), name


@given(made_of_maps())
def test_absorption_adds_up_the_same_keys_under_the_null(made):
    trace, maps = made
    table = metrics.absorption(trace, ("first", "top1", "top3"), by=("step", "layer", "head"))
    for step, layer, head, shares, null in cells_of(trace, maps):
        at = {"step": step, "layer": layer, "head": head}
        best = np.argsort(-np.array(shares), kind="stable")
        for name, keys in (("first", [0]), ("top1", best[:1]), ("top3", best[:3])):
            row = value(table, name, **at)
            assert row.value == pytest.approx(sum(shares[k] for k in keys), abs=tolerances.METRIC)
            assert row.null == pytest.approx(sum(null[k] for k in keys), abs=tolerances.METRIC)


@given(made_of_maps(), st.sampled_from(["sum", "percent"]))
def test_the_epsilon_curve_is_one_rule_after_another(made, scale):
    trace, _ = made
    eps = [0.0, 0.4, 1.1, 2.2, 5.5]
    table = metrics.epsilon_curve(trace, eps, scale=scale, by=("layer",))
    for one in eps:
        count = metrics.sinks(trace, rulli(one, scale), by=("layer", "step", "head"))
        for layer in range(trace.manifest["model"]["layers"]):
            rows = count[(count.quantity == "count") & (count.layer == layer)]
            keys = np.array([(trace.canvas[step] != -1).sum() for step in rows.step])
            row = value(table, "retained", eps=one, layer=layer)
            assert row.value == pytest.approx(1 - rows.value.sum() / keys.sum())
            assert row.null == pytest.approx(1 - rows.null.sum() / keys.sum())


@given(made_of_maps())
def test_the_histogram_counts_every_key_once(made):
    trace, maps = made
    table = metrics.score_histogram(trace, [0, 0.5, 1.5, 4.0, 9.0])
    scores = [len(shares) * share for *_, shares, _ in cells_of(trace, maps) for share in shares]
    assert table.value.sum() == pytest.approx(1)
    assert table.null.sum() == pytest.approx(1)
    last = value(table, "share_of_keys", score=4.0).value
    assert last == pytest.approx(np.mean(np.array(scores) >= 4.0), abs=tolerances.METRIC)


@settings(max_examples=15)
@given(made_of_maps())
def test_agreement_is_kappa_over_all_keys(made):
    trace, maps = made
    rules = (rulli(1.3571), ratio(1.7), topk(2), mass(0.5))
    table = metrics.agreement(trace, rules, by=("layer", "head"))
    for layer in range(maps.shape[1]):
        for head in range(maps.shape[2]):
            yes = {str(rule): [] for rule in rules}
            for step, at_layer, at_head, shares, _ in cells_of(trace, maps):
                if (at_layer, at_head) == (layer, head):
                    held = trace["received"].sel(group="all").values[step, layer, head]
                    for rule in rules:
                        yes[str(rule)] += rule.labels(held)[: len(shares)].tolist()
            one, other = str(rules[0]), str(rules[2])
            row = value(table, "kappa", rules=f"{one} ~ {other}", layer=layer, head=head)
            exact = slow.kappa(yes[one], yes[other])
            assert row.value == pytest.approx(exact, nan_ok=True)


def test_uniform_attention_has_no_sinks_and_absorbs_what_its_null_says():
    trace = planted(uniform(3, 2, 2, 20), prompt=17)
    sinks = metrics.sinks(trace, by=())
    assert value(sinks, "count").value == 0
    absorbed = metrics.absorption(trace, ("top5", zscore(3)), by=())
    assert value(absorbed, "top5").value == pytest.approx(5 / 20)
    assert value(absorbed, "top5").lift == pytest.approx(1)
    assert value(absorbed, "zscore:3").value == 0
    even = metrics.concentration(trace, by=())
    assert value(even, "effective_share").value == pytest.approx(1)
    assert value(even, "gini").value == pytest.approx(0, abs=tolerances.METRIC)


def test_uniform_causal_attention_has_sinks_made_of_nothing_and_lift_one():
    maps = uniform(8, 1, 1, 85, causal=True)
    trace = planted(maps, prompt=77, visibility="causal")
    table = metrics.sinks(trace, by=())
    assert value(table, "count").value > 1
    for quantity in ("count", "incidence", "absorbed", "greatest"):
        assert value(table, quantity).lift == pytest.approx(1, abs=tolerances.METRIC)
    assert value(metrics.sink_rate(trace), "first").value == 0  # fair to causal models


def test_a_planted_column_is_counted_where_it_is():
    maps = uniform(4, 2, 3, 64)
    maps[1:, 1, 2] = column(64, 5, 62.79 / 64)
    trace = planted(maps, prompt=60)
    table = metrics.sinks(trace, by=("layer", "head"))
    row = value(table, "count", layer=1, head=2)
    assert row.value == 0.75
    assert value(table, "absorbed", layer=1, head=2).lift == pytest.approx(
        62.79, rel=tolerances.METRIC
    )
    rest = table[(table.quantity == "count") & ~((table.layer == 1) & (table["head"] == 2))]
    assert (rest.value == 0).all()
    rate = metrics.sink_rate(trace, by=("step",))
    assert value(rate, "anywhere", step=0).value == 0
    assert value(rate, "anywhere", step=3).value == pytest.approx(1 / 6)


def test_permuting_heads_permutes_rows():
    maps = random_maps(np.random.default_rng(0), (3, 2, 4, 12))
    order = [2, 0, 3, 1]
    plain = metrics.sinks(planted(maps, prompt=9), rulli(1), by=("head",))
    moved = metrics.sinks(planted(maps[:, :, order], prompt=9), rulli(1), by=("head",))
    for new, old in enumerate(order):
        for quantity in ("count", "absorbed"):
            expected = value(plain, quantity, head=old).value
            assert value(moved, quantity, head=new).value == pytest.approx(expected)


def test_a_group_or_field_that_was_not_captured_names_the_replay_call():
    trace = planted(uniform(2, 1, 1, 6), prompt=4)
    with pytest.raises(TraceError, match=r"not of 'prompt'.*aw\.replay.*'written', 'prompt'\]"):
        metrics.sinks(trace, group="prompt")
    bare = planted(uniform(2, 1, 1, 6), prompt=4)
    bare._dataset = bare._dataset.drop_vars(["received"])
    with pytest.raises(TraceError, match=r"no 'received'.*aw\.probes\.received\(\)"):
        metrics.sinks(bare)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda t: metrics.sinks([]), "at least one trace"),
        (lambda t: metrics.sinks("a.trace"), r"reads traces, not str: aw\.read"),
        (lambda t: metrics.sinks(t, by="layer"), r"by='layer' is not a list: say by=\['layer'\]"),
        (lambda t: metrics.sinks(t, by=["key"]), "no key: it can be split by trace, layer, step"),
        (lambda t: metrics.absorption(t, ["best"]), "no set of keys is called 'best': expected"),
        (lambda t: metrics.epsilon_curve(t, [3, 1]), "from small to large"),
        (lambda t: metrics.epsilon_curve(t, scale="log"), "scale='log' is unknown"),
        (lambda t: metrics.score_histogram(t, [2, 3]), "edges begin at 2, .*: begin at 0"),
        (lambda t: metrics.agreement(t, [gu()]), "at least two"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_what_can(ask, says):
    trace = planted(uniform(2, 1, 1, 6), prompt=4)
    with pytest.raises(SpecError, match=says):
        ask(trace)
