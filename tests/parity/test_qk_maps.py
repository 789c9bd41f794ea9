"""Maps of logits, cosines and norms against the attention they make and the means of other probes."""

import numpy as np
import pytest

import anchorwatch as aw
import tolerances

P = aw.probes
WHERE = {"layers": [0, 2], "heads": [1, 3], "steps": [1]}


@pytest.fixture(scope="module", params=["tiny/llada", "tiny/arm"])
def trace(request):
    model = aw.load(request.param)
    how = aw.decoding.LowConfidence(length=4)
    if request.param == "tiny/arm":
        how = aw.decoding.LeftToRight(length=4, cache=False)
    probes = [P.received(), P.pattern(**WHERE), P.qk_maps(**WHERE), P.qk_geometry(keys=True)]
    return aw.run(model, "the anchor holds", how, probes=probes)


def test_the_softmax_of_logits_is_the_attention(trace):
    causal = trace.manifest["model"]["visibility"] == "causal"
    for pick in range(4):
        logits = trace["qk_logit"].values[pick].astype(np.float64)
        size = int(np.count_nonzero(~np.isnan(logits[:, 0])))
        logits = logits[:size, :size]
        if causal:
            logits = np.where(np.tri(size, dtype=bool), logits, -np.inf)
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        found = trace["pattern"].values[pick][:size, :size]
        limit = tolerances.of_shares(**tolerances.TINY_HEADS)
        assert np.abs(found - shares).max() <= 2 * limit


def test_a_logit_is_its_cosine_times_its_norms(trace):
    logit, cosine, norms = (
        trace[name].values for name in ("qk_logit", "qk_cosine", "qk_norm_product")
    )
    ratio = logit / (cosine * norms)
    known = np.abs(cosine) > 0.01
    scale = np.nanmedian(ratio)
    assert scale == pytest.approx(1 / np.sqrt(tolerances.TINY_HEADS["size"]), rel=1e-5)
    assert np.nanmax(np.abs(ratio[known] / scale - 1)) < 1e-3
    assert np.nanmax(np.abs(cosine)) <= 1 + 1e-5


def test_means_over_queries_are_those_of_the_geometry(trace):
    for pick in range(4):
        cell = tuple(
            int(trace[f"qk_pick_{axis}"].values[pick]) for axis in ("step", "layer", "head")
        )
        for mine, theirs in (("qk_logit", "each_logit"), ("qk_cosine", "each_cosine")):
            known = ~np.isnan(trace[mine].values[pick][:, 0])
            mean = trace[mine].values[pick][known].astype(np.float64).mean(axis=0)
            found = trace[theirs].values[cell]
            assert np.nanmax(np.abs(mean - found)) < tolerances.of_sums(100, scale=65.0)


def test_picks_are_named_and_others_absent(trace):
    picks = {
        tuple(int(trace[f"qk_pick_{axis}"].values[pick]) for axis in ("step", "layer", "head"))
        for pick in range(trace["qk_logit"].sizes["qk_pick"])
    }
    assert picks == {(1, layer, head) for layer in (0, 2) for head in (1, 3)}
