"""The distance between experts of sinks, masked and written positions and of the others."""

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch.errors import TraceError
from anchorwatch.metrics import expert_use
from anchorwatch.metrics.layer_slices import iter_layers
from anchorwatch.trace.trace import MASKED
from checkpoints import GOLDEN
from strategies import load

pytestmark = pytest.mark.filterwarnings("ignore:.*asks for remote code")


@pytest.fixture(scope="module")
def trace():
    with pytest.warns(aw.errors.AnchorwatchWarning, match="remote code"):
        model = aw.load(GOLDEN / "llada2_moe", mask_id=250)
    probes = [aw.probes.experts(), aw.probes.received()]
    decoding = aw.decoding.BlockDiffusion(12, 4, block=8, threshold=1.0, stop="never")
    return aw.run(model, list(range(20, 33)), decoding, probes=probes)


def test_masked_positions_by_hand(trace):
    """The obvious computation: count choices with bincount, compare the two distributions."""
    layer = list(iter_layers(trace))[1]
    values = {q.name: q for q in expert_use.expert_distance.__wrapped__(
        layer, rule=aw.rules.rulli(), group="all")}  # fmt: skip
    choices = trace["expert_choice"].values[:, 1]
    for step in range(trace.num_steps):
        end = int(trace["end_row"].values[step])
        masked = trace.role[step, :end] == MASKED
        counts = [
            np.bincount(choices[step, :end][member].ravel(), minlength=16) / (4 * member.sum())
            for member in (masked, ~masked)
        ]
        expected = np.abs(counts[0] - counts[1]).sum() / 2
        top, bottom = values["masked"].top[step], values["masked"].bottom[step]
        np.testing.assert_allclose(top / bottom, expected)


def test_a_planted_set_is_far_and_a_random_one_is_as_far_as_the_null():
    random = np.random.default_rng(0)
    choices = random.integers(0, 8, size=(60, 2))
    planted = choices.copy()
    planted[:6] = 9  # six positions go through an expert of their own
    inside = np.arange(60) < 6
    assert expert_use._distance(expert_use._shares(planted), inside) == pytest.approx(1.0)
    used = expert_use._shares(choices)
    null = expert_use._random_distance(used, 6, 0)
    assert 0 < null < 0.6 and abs(expert_use._distance(used, inside) - null) < 0.3


def test_a_dense_layer_is_missing_and_a_mixture_has_a_null(trace):
    table = aw.metrics.expert_distance([trace], by=["layer"])
    assert set(table["quantity"]) == {"sinks", "masked", "written"}
    masked = table[table["quantity"] == "masked"].set_index("layer")
    assert np.isnan(masked.loc[0, "value"]) and masked.loc[1, "value"] > 0
    assert masked.loc[1, "null"] > 0


def test_without_the_probe_the_error_says_which():
    trace = aw.run(load("tiny/llada"), [20, 21], aw.decoding.LowConfidence(2))
    with pytest.raises(TraceError, match=r"aw\.probes\.experts\(\)"):
        aw.metrics.expert_distance([trace])
