"""Edited attention in bfloat16: every form runs, proves itself, and stays near float32.

Commits are forced, so that both read the same frames.
"""

from functools import cache

import numpy as np
import pytest

import anchorwatch as aw
import tolerances

E, D, P = aw.edits, aw.decoding, aw.probes
IDS, WRITTEN = [300, 301, 302, 303, 304, 305], (320, 321)
NAMES = ["tiny/llada", "tiny/dream", "tiny/bert", "tiny/arm"]
EDITS = {
    **{form: E.hide_keys([2], form=form) for form in E.FORMS if form != "penalty"},
    "penalty": E.hide_keys([2], form="penalty", penalty=3.0),
    **{form: E.knock_out({(0, 1), (1, 2)}, form=form) for form in E.knock_out.FORMS},
}


@cache
def load(name, dtype):
    return aw.load(name, device="cpu", dtype=dtype)


@cache
def run(name, dtype, form=None):
    first = len(IDS)
    edits = [E.force_commit(first + i, token, step=i) for i, token in enumerate(WRITTEN)]
    if name == "tiny/arm":
        decoding = D.LeftToRight(2, stop=False)
    else:
        decoding = D.LowConfidence(2)
        edits.append(E.delay_commit([first + 1], until=1))
    edits += [EDITS[form]] if form else []
    probes = [P.received(("all",), dtype="float32")]
    return aw.run(load(name, dtype), IDS, decoding, edits=edits, probes=probes)


def gap(one, two, field):
    """Root mean square: the largest of many roundings is another on every machine."""
    return float(np.sqrt(np.nanmean((one[field].values - two[field].values) ** 2)))


@pytest.mark.parametrize("form", EDITS)
@pytest.mark.parametrize("name", NAMES)
def test_edited_bfloat16_stays_near_float32(name, form):
    exact, rough = run(name, "float32", form), run(name, "bfloat16", form)
    np.testing.assert_array_equal(exact.canvas, rough.canvas)
    assert gap(exact, rough, "received") <= tolerances.BFLOAT16_SHARE
    assert gap(exact, rough, "logprob") <= tolerances.BFLOAT16_LOGPROB
    effect = gap(exact, run(name, "float32"), "received")
    assert gap(exact, rough, "received") < effect / 4, "rounding must not hide what the edit does"
    if form in ("logit", "weight"):
        assert (rough["received"].sel(group="all").values[..., 2] == 0).all()


@pytest.mark.parametrize("kind", [E.hide_sinks, E.hide_random, E.hide_lowest])
@pytest.mark.parametrize("name", NAMES)
def test_edits_that_find_their_keys_do_so_in_bfloat16(name, kind):
    model = load(name, "bfloat16")
    decoding = (
        D.LeftToRight(3, stop=False, cache=False) if name == "tiny/arm" else D.LowConfidence(3)
    )
    probes = [P.received(("all",), dtype="float32")]
    trace = aw.run(model, IDS, decoding, edits=[kind(1)], probes=probes)
    hidden = trace["hidden_keys"].values
    assert (hidden[0] == -1).all() and (hidden[1:] >= 0).all()
    share = trace["received"].sel(group="all").values[1:]
    held = np.take_along_axis(share, hidden[1:].astype(int), -1)
    if name == "tiny/arm":  # the first row of a causal map keeps its only key
        held = held[hidden[1:] > 0]
    assert (held == 0).all()
    again = aw.replay(model, trace, probes)
    np.testing.assert_array_equal(again["received"].values, trace["received"].values)
