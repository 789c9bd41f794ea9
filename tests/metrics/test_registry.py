"""One pass for many metrics says what each says alone."""

import warnings

import numpy as np
import pandas as pd
import pytest

import anchorwatch as aw
from anchorwatch.errors import AnchorwatchWarning, SpecError
from anchorwatch.metrics.registry import default_metrics, measure_all
from synthetic_traces import planted, random_maps


@pytest.fixture(scope="module")
def traces():
    how = aw.decoding.LowConfidence(length=8, steps=8)
    mdm = aw.run(aw.load("tiny/llada"), "the anchor holds in the storm", how)
    arm = aw.run(aw.load("tiny/arm"), "the anchor holds", aw.decoding.LeftToRight(length=6))
    return [mdm, arm]


def test_all_default_metrics_together_are_each_of_them_alone(traces):
    tables = measure_all(traces)
    assert set(tables) == set(default_metrics())
    for name, table in tables.items():
        alone = getattr(aw.metrics, name)(traces)
        pd.testing.assert_frame_equal(table, alone)
        assert table.attrs == alone.attrs, name


def test_baselines_are_read_for_themselves(traces):
    mdm, arm = traces
    table = aw.metrics.jumps(mdm, frozen=arm)
    alone = aw.metrics.jumps(arm).set_index(["layer", "quantity"])["value"]
    rows = table.set_index(["layer", "quantity"])["frozen"]
    pd.testing.assert_series_equal(rows, alone.reindex(rows.index), check_names=False)


def test_a_metric_whose_fields_are_not_there_is_left_out_with_a_word():
    maps = random_maps(np.random.default_rng(0), (3, 2, 2, 12))
    trace = planted(maps, prompt=9)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        tables = measure_all(trace)
    lost = set(default_metrics()) - set(tables)
    assert lost == {"qk_split", "value_norms", "key_norms"}
    for name in lost:
        assert any(
            issubclass(one.category, AnchorwatchWarning)
            and str(one.message).startswith(f"{name} is left out: ")
            and "aw.replay" in str(one.message)
            for one in said
        )


def test_public_names_are_never_hidden_by_modules():
    """`aw.metrics.sinks` would be a module once metrics/sinks.py is imported."""
    import pkgutil

    for package in (aw.metrics, aw.figures):
        modules = {one.name for one in pkgutil.iter_modules(package.__path__)}
        assert not modules & set(dir(package))
        for name in dir(package):
            assert callable(getattr(package, name)) or name == "METRICS"


def test_two_tables_of_one_metric_come_of_one_reading(traces, monkeypatch):
    from anchorwatch.metrics import layer_slices

    read = []
    plain = layer_slices.iter_layers
    monkeypatch.setattr(
        layer_slices, "iter_layers", lambda trace: read.append(trace) or plain(trace)
    )
    aw.metrics.onsets(traces)
    assert read == traces


def test_a_metric_is_one_function_of_a_layer(traces, monkeypatch):
    from anchorwatch.metrics import registry
    from anchorwatch.metrics.table import mean

    for name in ("METRICS", "_PLANS"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    monkeypatch.setattr(registry, "_DEFAULT", [])

    @registry.metric(by=("layer",), default=True)
    def top_share(layer, rule, *, scale: float = 1.0, group):
        """Share of the top key where it is a sink."""
        share = np.where(layer.top_sink(rule, group) >= 0, layer.top_key(group)[1], np.nan)
        return [mean("top_share", ("step", "head"), share * scale)]

    table = top_share(traces, aw.rules.topk(1), scale=2.0)
    expected = aw.metrics.sinks(traces, aw.rules.topk(1))
    expected = expected[expected["quantity"] == "greatest"]
    np.testing.assert_allclose(table["value"], 2 * expected["value"])
    about = {"metric": "top_share", "rule": "topk:1", "scale": 2.0, "group": "all"}
    assert table.attrs["about"] == about
    assert "top_share" in registry.METRICS and list(measure_all(traces)) == ["top_share"]
    with pytest.raises(TypeError, match=r"top_share\(\) got an unexpected keyword argument 'nix'"):
        top_share(traces, nix=1)


def test_two_metrics_have_two_names():
    from anchorwatch.metrics.registry import METRICS, metric

    known = METRICS["sinks"]
    with pytest.raises(SpecError, match="there is a metric 'sinks' already, in anchorwatch"):

        @metric()
        def sinks(layer):
            """Another one."""
            return []

    assert METRICS["sinks"] is known


def test_a_module_named_like_its_metric_would_hide_it():
    from anchorwatch.metrics.registry import METRICS, metric

    def runner_up(layer):
        """Stands in runner_up.py."""
        return []

    runner_up.__module__ = "anchorwatch.metrics.runner_up"
    with pytest.raises(SpecError, match=r"call the file runner_up_metric\.py"):
        metric()(runner_up)
    assert "runner_up" not in METRICS
