"""What a sink token receives, and how long its value is, against the whole map and the network."""

import numpy as np
import pytest

import anchorwatch as aw
import tolerances
from anchorwatch.errors import TraceError

HOW = aw.decoding.LowConfidence(length=6, steps=6)


@pytest.fixture(scope="module")
def model():
    return aw.load("tiny/llada")


@pytest.fixture(scope="module")
def trace(model):
    probes = [aw.probes.received(dtype="float32"), aw.probes.pattern(), aw.probes.norms(sink=True)]
    return aw.run(
        model, "the anchor holds", HOW, probes=probes, edits=[aw.edits.sink_token(2, value="zero")]
    )


def test_the_mass_is_what_the_whole_maps_lack_to_one(trace):
    """Slow: rows of every map over the canvas sum to one less what the added keys took."""
    maps = trace["pattern"].values.astype(np.float64)
    lack = 1 - maps.sum(axis=-1).mean(axis=-1)  # [pick]
    layers = trace["pick_layer"].values
    table = aw.metrics.sink_mass(trace, by=("layer",)).set_index("layer")
    for layer in np.unique(layers):
        slow = lack[layers == layer].mean()
        assert table.loc[layer, "value"] == pytest.approx(slow, abs=tolerances.of_sums(100))


def test_the_null_is_the_share_of_the_added_keys(trace):
    positions = trace.canvas.shape[1]
    table = aw.metrics.sink_mass(trace)
    assert table["null"].to_numpy() == pytest.approx(2 / (positions + 2))
    assert (table["missing"] == 0).all()


def test_steps_without_the_token_are_not_in_the_mean(model):
    early = aw.edits.sink_token(progress=(0, 0.5))
    trace = aw.run(model, "the anchor", HOW, probes=[aw.probes.received()], edits=[early])
    table = aw.metrics.sink_mass(trace, by=("layer", "step")).set_index(["layer", "step"])
    first, last = table.loc[(0, 0)], table.loc[(0, 5)]
    assert 0 < first["value"] < 1 and first["null"] > 0
    assert np.nan_to_num(last["value"]) == 0 and np.nan_to_num(last["null"]) == 0


def test_an_empty_value_has_no_norm_and_a_learned_one_has(trace, model):
    table = aw.metrics.sink_value_norms(trace)
    assert (table[table["quantity"] == "ratio"]["value"] == 0).all()
    assert (table[table["quantity"] == "ratio"]["null"] == 1).all()
    plain = aw.run(
        model,
        "the anchor holds",
        HOW,
        probes=[aw.probes.received(), aw.probes.norms(sink=True, keys=True)],
        edits=[aw.edits.sink_token()],
    )
    table = aw.metrics.sink_value_norms(plain).set_index(["quantity", "layer"])
    # Slow: the mean over the canvas of every key's norm, and one constant of the network.
    each = plain["each_value_norm"].values.astype(np.float64)
    own = plain["sink_value_norm"].values.astype(np.float64)
    assert np.ptp(own, axis=0).max() == 0  # the token sees only itself: the same at every step
    for layer in range(each.shape[1]):
        slow = own[:, layer].sum() / each[:, layer].mean(axis=-1).sum()
        found = table.loc[("ratio", layer), "value"]
        assert found == pytest.approx(slow, rel=tolerances.of_sums(100))


def test_a_model_without_added_keys_is_refused(model):
    trace = aw.run(model, "the anchor", HOW, probes=[aw.probes.received()])
    with pytest.raises(TraceError, match="adds no keys to layer 0: run a model with a sink token"):
        aw.metrics.sink_mass(trace)
