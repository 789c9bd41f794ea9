"""Norms: planted empty sinks, and every number against loops over keys."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorwatch as aw
import tolerances
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics import geometry
from anchorwatch.metrics.sink_rules import ratio, topk
from references import geometry as slow
from strategies import load
from synthetic_traces import column, planted, random_maps, uniform

PER = ("step", "layer", "head")
P = aw.probes


def rows(table, **cell):
    """quantity -> row of one cell."""
    for name, at in cell.items():
        table = table[table[name] == at]
    assert not table.quantity.duplicated().any()
    return {row.quantity: row for row in table.itertuples()}


@st.composite
def vectors(draw):
    steps, layers, prompt = (
        draw(st.integers(1, 2)),
        draw(st.integers(1, 2)),
        draw(st.integers(3, 9)),
    )
    heads, repeats = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (steps, layers, heads * repeats, prompt + steps)
    made = slow.Vectors(generator, shape, kv_heads=heads, causal=draw(st.booleans()))
    absent = draw(st.sets(st.tuples(st.integers(0, steps - 1), st.integers(0, layers - 1))))
    return made, prompt, absent


def cells(made, trace, count):
    """(at, numbers, sinks, shares) of every cell, by loops."""
    steps, layers, heads = trace["received"].shape[:3]
    for step, layer, head in np.ndindex(steps, layers, heads):
        there = int((trace.canvas[step] >= 0).sum())
        shares = trace["received"].values[step, layer, head, 0, :there].tolist()
        sinks = sorted(range(there), key=lambda j: -shares[j])[:count]
        at = {"step": step, "layer": layer, "head": head}
        yield at, made.numbers(step, layer, head, there), sinks, shares


@settings(max_examples=15)
@given(vectors(), st.booleans())
def test_norms_are_what_loops_over_keys_say(made, keys):
    vector, prompt, absent = made
    trace = vector.trace(prompt=prompt, keys=keys, absent=absent)
    tables = {
        "value_norm": geometry.value_norms(trace, topk(2), by=PER),
        "key_norm": geometry.key_norms(trace, topk(2), by=PER),
    }
    for at, numbers, sinks, _ in cells(vector, trace, 2):
        for name, table in tables.items():
            ours, held = rows(table, **at), numbers[name]
            if (at["step"], at["layer"]) in absent:
                assert math.isnan(ours["sink"].value) and ours["sink"].missing == 2
                continue
            sink = sum(held[j] for j in sinks) / 2
            others = [held[j] for j in range(len(held)) if j not in sinks]
            other = sum(others) / len(others)
            assert ours["sink"].value == pytest.approx(sink, abs=tolerances.SPLIT)
            assert ours["sink"].null == pytest.approx(other, abs=tolerances.SPLIT)
            assert ours["ratio"].value == pytest.approx(sink / other, abs=tolerances.SPLIT)
            assert ours["difference"].value == pytest.approx(sink - other, abs=tolerances.SPLIT)
            if keys:
                exact = slow.auroc(np.float32(held).tolist(), sinks)
                assert ours["auroc"].value == pytest.approx(exact, abs=tolerances.METRIC)
                assert ours["auroc"].null == 0.5
            else:
                assert math.isnan(ours["auroc"].value) and ours["auroc"].missing == 1


@settings(max_examples=15)
@given(vectors(), st.sampled_from(["contribution_norm", "value_norm"]))
def test_contributions_are_what_loops_over_keys_say(made, of):
    vector, prompt, absent = made
    trace = vector.trace(prompt=prompt, keys=True, absent=absent)
    table = geometry.contributions(trace, topk(1), of=of, by=PER)
    for at, numbers, (sink,), shares in cells(vector, trace, 1):
        ours = rows(table, **at)
        if (at["step"], at["layer"]) in absent:
            assert all(math.isnan(row.value) and row.missing == 1 for row in ours.values())
            continue
        brought = [share * norm for share, norm in zip(shares, numbers[of], strict=True)]
        attention = shares[sink] / sum(shares)
        rate = (sum(brought) - brought[sink]) / (sum(shares) - shares[sink])
        wasted = (shares[sink] - brought[sink] / rate) / sum(shares)
        found = ours["contribution_share"]
        assert found.value == pytest.approx(brought[sink] / sum(brought), abs=tolerances.SPLIT)
        assert found.null == pytest.approx(attention, abs=tolerances.METRIC)
        assert ours["attention_share"].value == pytest.approx(attention, abs=tolerances.METRIC)
        assert ours["no_op_share"].value == pytest.approx(wasted, abs=tolerances.SPLIT)


def keyed(maps, value, **options):
    """A trace whose every key holds a value of this norm, [key]."""
    held = np.broadcast_to(np.float32(value), maps.shape[:4]).copy()
    dims = ("step", "layer", "head", "key")
    more = {"each_value_norm": (dims, held), "each_contribution_norm": (dims, held)}
    return planted(maps, more=more, **options)


def test_a_sink_of_nothing_is_no_operation():
    maps = np.broadcast_to(column(20, 4, 0.7), (3, 1, 2, 20, 20)).copy()
    value = np.full(20, 5.0)
    value[4] = 0.0
    found = rows(geometry.contributions(keyed(maps, value, prompt=17), by=()))
    assert found["attention_share"].value == pytest.approx(0.7, abs=tolerances.METRIC)
    assert found["attention_share"].null == pytest.approx(1 / 20)
    assert found["contribution_share"].value == 0
    assert found["contribution_share"].null == pytest.approx(0.7, abs=tolerances.METRIC)
    assert found["no_op_share"].value == pytest.approx(0.7, abs=tolerances.METRIC)
    seen = rows(geometry.value_norms(keyed(maps, value, prompt=17), by=()))
    assert seen["ratio"].value == 0 and seen["auroc"].value == 1
    assert seen["difference"].value == -5


def test_a_sink_like_the_others_is_an_operation():
    maps = np.broadcast_to(column(20, 4, 0.7), (3, 1, 2, 20, 20)).copy()
    trace = keyed(maps, np.full(20, 5.0), prompt=17)
    found = rows(geometry.contributions(trace, by=()))
    assert found["contribution_share"].lift == pytest.approx(1, abs=tolerances.METRIC)
    assert found["no_op_share"].value == pytest.approx(0, abs=tolerances.METRIC)
    seen = rows(geometry.value_norms(trace, by=()))
    assert (seen["ratio"].value, seen["auroc"].value) == (1, 0.5)


def test_residual_norms_of_positions_that_are_sinks_of_a_head():
    maps = uniform(2, 2, 2, 12)
    maps[:, :, 1] = column(12, 3, 0.8)
    held = np.ones((2, 2, 12), dtype=np.float32)
    held[:, 1, 3] = 40
    more = {"residual_norm": (("step", "layer", "position"), held)}
    table = geometry.residual_norms(planted(maps, prompt=10, more=more), by=("layer", "head"))
    assert rows(table, layer=1, head=1)["ratio"].value == 40
    assert rows(table, layer=1, head=1)["auroc"].value == 0
    assert rows(table, layer=0, head=1)["ratio"].value == 1
    lonely = rows(table, layer=1, head=0)["ratio"]
    assert math.isnan(lonely.value) and lonely.missing == 0, "a head without sinks lacks nothing"


def test_points_are_sampled_sinks_and_others():
    generator = np.random.default_rng(2)
    maps = random_maps(generator, (4, 2, 3, 16))
    value = generator.uniform(1, 2, 16)
    trace = keyed(maps, value, prompt=12)
    whole = geometry.value_norm_points(trace, ratio(2))
    shares = trace["received"].sel(group="all").values.mean(axis=2)  # [step, layer, key]
    sinks = {(s, la, k) for s, la, k in zip(*np.nonzero(shares > 2 / 16), strict=True)}
    for kind, exact in (("sink", sinks), ("other", set(np.ndindex(4, 2, 16)) - sinks)):
        part = whole[whole.kind == kind]
        assert set(zip(part.step, part.layer, part.position, strict=True)) == exact
        assert len(part) == len(exact)
    np.testing.assert_allclose(whole.value_norm, value[whole.position], rtol=tolerances.NORM)
    for row in whole.itertuples():
        assert row.received == pytest.approx(shares[row.step, row.layer, row.position])
    some = geometry.value_norm_points(trace, ratio(2), count=5, seed=1)
    assert some.kind.value_counts().to_dict() == {"sink": 5, "other": 5}
    again = geometry.value_norm_points(trace, ratio(2), count=5, seed=1)
    assert some.equals(again)
    other = geometry.value_norm_points(trace, ratio(2), count=5, seed=2)
    assert not some.equals(other)
    names = ["kind", "step", "layer", "position"]
    assert len(some.merge(whole, on=names)) == 10, "a sample is of the tokens there are"
    two = geometry.value_norm_points([trace, keyed(maps, value, prompt=12, source="b")], count=3)
    assert two.groupby(["model", "kind"]).size().to_dict() == {
        (model, kind): 3 for model in ("b", "planted") for kind in ("sink", "other")
    }
    assert two.attrs["about"]["count"] == 3 and len(two.attrs["traces"]) == 2


def test_points_without_sinks_are_all_others():
    table = geometry.value_norm_points(keyed(uniform(2, 1, 1, 12), np.ones(12), prompt=10))
    assert table.kind.unique().tolist() == ["other"] and len(table) == 24


def massive(positions, values, median, layers=1):
    """Fields of the massive probe from [step, outlier] places and values, the same in each layer."""
    values = np.repeat(np.float32(values)[:, None], layers, axis=1)
    places = np.repeat(np.int32(positions)[:, None], layers, axis=1)
    dims = ("step", "layer", "outlier")
    return {
        "massive_value": (dims, values),
        "massive_position": (dims, places),
        "massive_channel": (dims, np.zeros_like(places)),
        "massive_median": (("step", "layer"), np.full(values.shape[:2], np.float32(median))),
    }


def test_massive_activations_and_whether_they_are_sinks():
    maps = uniform(2, 1, 2, 20)
    maps[:, :, 0] = column(20, 4, 0.7)
    more = massive([[4, 7, 9], [4, 7, 9]], [[-500, 300, 2], [500, 90, 2]], 0.1)
    found = rows(geometry.massive_activations(planted(maps, prompt=18, more=more), by=()))
    assert found["count"].value == 1.5 and found["capped"].value == 0
    assert found["largest"].value == 500 and found["over_median"].value == pytest.approx(5000)
    # 80 (step, head, position): 6 massive, 2 of them sinks, no other sinks; a half each
    assert found["odds_ratio"].value == pytest.approx(2.5 * 74.5 / (4.5 * 0.5))
    assert found["odds_ratio"].null == 1
    assert found["log_odds_ratio"].value == pytest.approx(math.log(2.5 * 74.5 / (4.5 * 0.5)))
    assert found["sink_if_massive"].value == pytest.approx(2 / 6)
    assert found["sink_if_massive"].null == pytest.approx(2 / 80)
    strict = rows(
        geometry.massive_activations(planted(maps, prompt=18, more=more), times=6000, by=())
    )
    assert strict["count"].value == 0 and math.isnan(strict["odds_ratio"].value)
    loose = rows(
        geometry.massive_activations(planted(maps, prompt=18, more=more), least=1, times=1, by=())
    )
    assert loose["count"].value == 3 and loose["capped"].value == 1


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_massive_positions_cross_with_sinks_as_loops_count(seed, causal):
    generator = np.random.default_rng(seed)
    maps = random_maps(generator, (3, 2, 2, 9), causal=causal)
    places = np.stack([generator.permutation(6)[:3] for _ in range(3)])
    values = -np.sort(-generator.lognormal(5, 1, (3, 3)))
    more = massive(places, values, 0.1, layers=2)
    more["massive_median"][1][1, 1] = np.nan
    more["massive_value"][1][1, 1] = np.nan
    visibility = "causal" if causal else "bidirectional"
    trace = planted(maps, prompt=6, visibility=visibility, more=more)
    table = geometry.massive_activations(trace, topk(2), by=("layer",))
    for layer in range(2):
        counts = np.zeros((2, 2))
        for step in range(3):
            if (step, layer) == (1, 1):
                continue
            for head in range(2):
                there = int((trace.canvas[step] >= 0).sum())
                shares = trace["received"].values[step, layer, head, 0, :there].tolist()
                sinks = sorted(range(there), key=lambda j: -shares[j])[:2]
                for j in range(there):
                    is_massive = any(
                        p == j and v > 100 for p, v in zip(places[step], values[step], strict=True)
                    )
                    counts[0 if is_massive else 1, 0 if j in sinks else 1] += 1
        ours = rows(table, layer=layer)
        assert ours["odds_ratio"].missing == (2 if layer else 0)
        if counts[0].sum() == 0:
            assert math.isnan(ours["odds_ratio"].value)
            continue
        assert ours["sink_if_massive"].value == pytest.approx(counts[0, 0] / counts[0].sum())
        if counts[0, 0] + counts[0].sum() * counts[:, 0].sum() / counts.sum() < 1:
            assert math.isnan(ours["odds_ratio"].value)
            continue
        counts += 0.5 * (counts == 0).any()
        exact = counts[0, 0] * counts[1, 1] / (counts[0, 1] * counts[1, 0])
        assert ours["odds_ratio"].value == pytest.approx(exact)


def test_a_real_run_has_all_of_it():
    model = load("tiny/dream")
    probes = [P.received(), P.massive(), P.norms(keys=True, contribution=True, residual=True)]
    trace = aw.run(model, "the anchor holds", aw.decoding.LowConfidence(4, 2), probes=probes)
    for metric in (
        geometry.value_norms,
        geometry.key_norms,
        geometry.residual_norms,
        geometry.contributions,
    ):
        assert not metric(trace, topk(2)).value.isna().any()
    assert len(geometry.value_norm_points(trace, topk(2))) == 2 * 3 * trace.canvas.shape[1]
    default = aw.run(model, "the anchor holds", aw.decoding.LowConfidence(4, 2))
    one, two = (geometry.value_norms(t, topk(2)) for t in (trace, default))
    known = one.quantity != "auroc"
    np.testing.assert_allclose(one.value[known], two.value[known], rtol=tolerances.METRIC)
    assert two.value[~known].isna().all()


@pytest.mark.parametrize(
    ("metric", "probe"),
    [
        (geometry.value_norms, r"norms\(\)"),
        (geometry.key_norms, r"norms\(\)"),
        (geometry.residual_norms, r"norms\(residual=True\)"),
        (geometry.value_norm_points, r"norms\(keys=True\)"),
        (geometry.contributions, r"norms\(contribution=True, keys=True\)"),
        (geometry.massive_activations, r"massive\(\)"),
    ],
)
def test_what_was_not_captured_is_named_with_its_probe(metric, probe):
    with pytest.raises(
        TraceError, match=rf"aw\.replay\(model, trace, probes=\[aw\.probes\.{probe}"
    ):
        metric(planted(uniform(1, 1, 1, 6), prompt=5))


def test_what_cannot_be_asked():
    trace = planted(uniform(1, 1, 1, 6), prompt=5)
    with pytest.raises(SpecError, match="expected 'contribution_norm' or 'value_norm'"):
        geometry.contributions(trace, of="key_norm")
    with pytest.raises(SpecError, match="count=0 is not a whole number of at least 1"):
        geometry.value_norm_points(trace, count=0)
