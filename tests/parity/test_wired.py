"""Networks wired by hand: their attention is what the wiring says, and they are ordinary networks."""

import numpy as np
import pytest

import anchorwatch as aw
import tolerances
from anchorwatch.evaluation.synthetic import Item, Passage
from anchorwatch.metrics.token_classes import CLASSES, STRUCTURE, classes
from anchorwatch.models import wired
from references.wired import maps_of

ITEM = Item(
    "buoy",
    ("sand",),
    (
        Passage("anchor bay.", False, kind="random"),
        Passage("It was buoy sand.", True, 1),
        Passage("cabin moon.", False, kind="random"),
    ),
)
LENGTH = 6
PROMPT_TOKENS = 27
CHOSEN = [
    f"wired/{name}"
    for name in (
        *("even", "static-sink", "first-mask-sink", "last-mask-sink", "last-text-sink"),
        *("last-line-sink", "split-sink", "many-sinks", "first-places", "deep-angle"),
        *("eighth-sinks", "own-words", "start-or-colon", "needed-sink-retrieval"),
        *("spare-sink", "no-spare-sink", "near-and-far-heads"),
        *("retrieval", "needed-sink", "arm-first-sink", "arm-retrieval"),
    )
]
"""Every kind of head, and every kind of network."""


def decoding_of(model, length=LENGTH):
    if model.family.kind == "arm":
        return aw.decoding.LeftToRight(length, cache=False, stop=False)
    return aw.decoding.LowConfidence(length, length)


def run_network(name, probes=None, length=LENGTH):
    model = aw.load(name)
    given = {} if probes is None else {"probes": probes}
    return model, aw.run(model, ITEM.prompt(), decoding_of(model, length), **given)


@pytest.mark.parametrize("name", CHOSEN)
def test_attention_is_what_the_wiring_says(name):
    step = 3
    model, trace = run_network(name, [aw.probes.pattern(steps=[step])])
    ids = trace.canvas[step]
    ids = ids[ids >= 0]
    expected = maps_of(wired.wire(wired.plan_of(name)), ids, wired.Vocabulary.of(model.tokenizer))
    measured = trace["pattern"].values.reshape(
        model.num_layers, model.num_heads, *trace["pattern"].shape[1:]
    )
    measured = measured[..., : len(ids), : len(ids)]
    np.testing.assert_allclose(measured, expected, atol=tolerances.WIRED)


def greatest_keys(trace, group="all"):
    """[step, layer, head] the key that receives most, and what it receives."""
    shares = np.nan_to_num(trace["received"].sel(group=group).values, nan=-1.0)
    return shares.argmax(axis=-1), shares.max(axis=-1)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("wired/static-sink", lambda step: 0),
        ("wired/arm-first-sink", lambda step: 0),
        ("wired/first-mask-sink", lambda step: PROMPT_TOKENS + step),
        ("wired/last-text-sink", lambda step: PROMPT_TOKENS + step - 1),
        ("wired/last-mask-sink", lambda step: PROMPT_TOKENS + LENGTH - 1 - step),
    ],
)
def test_the_sink_is_where_it_was_put(name, where):
    _, trace = run_network(name)
    keys, shares = greatest_keys(trace)
    for step in range(LENGTH):
        assert (keys[step, 1:] == where(step)).all()
    assert shares[:, 1:].min() > 0.75


def test_the_last_line_break_is_a_sink_until_there_is_another():
    _, trace = run_network("wired/last-line-sink", length=12)
    keys, _ = greatest_keys(trace)
    for step in range(12):
        breaks = np.flatnonzero(trace.canvas[step] == trace.canvas[0, PROMPT_TOKENS - 3])
        assert (keys[step, 1:] == breaks[-1]).all()
    assert len(set(keys[:, 1].ravel().tolist())) == 2


def test_every_network_is_wired():
    """All plans fit into their layers, whether or not the other tests build them."""
    for name in wired.NAMES:
        plan = wired.plan_of(name)
        layers = wired.wire(plan).layers
        assert len(layers) == plan.depth
        assert {len(heads) for heads in layers} == {plan.width}


def test_masked_and_written_queries_may_have_different_sinks():
    _, trace = run_network("wired/split-sink")
    masked, _ = greatest_keys(trace, "masked")
    written, shares = greatest_keys(trace, "written")
    for step in range(1, LENGTH):
        assert (masked[step, 1:] == 0).all()
        assert (written[step, 1:] == PROMPT_TOKENS + step).all()
    assert shares[1:, 1:].min() > 0.9


def test_a_network_without_sinks_looks_everywhere_alike():
    _, trace = run_network("wired/even")
    shares = trace["received"].sel(group="all").values[:, 1:]
    np.testing.assert_allclose(shares, 1 / (PROMPT_TOKENS + LENGTH), atol=tolerances.SHARE)


@pytest.mark.parametrize("name", ["wired/static-sink", "wired/first-mask-sink"])
def test_the_value_of_a_sink_is_empty(name):
    _, trace = run_network(name, [aw.probes.received(), aw.probes.norms(keys=True)])
    table = aw.metrics.value_norms([trace], by=["layer"])
    ratio = table[table["quantity"] == "ratio"]["value"].to_numpy()
    assert (ratio[1:] < 0.2).all()


@pytest.mark.parametrize("name", ["wired/retrieval", "wired/arm-retrieval"])
def test_a_retrieval_head_brings_the_answer(name):
    _, trace = run_network(name)
    assert trace.spell(trace.own[trace.answer].tolist()).startswith(" sand\n")


def test_without_a_retrieval_head_something_else_is_written():
    _, trace = run_network("wired/no-retrieval")
    assert "sand" not in trace.spell(trace.own[trace.answer].tolist())


def test_a_sink_token_is_looked_at_or_not():
    for name, share in (("wired/sink-token", 0.98), ("wired/idle-sink-token", 0.0)):
        _, trace = run_network(name)
        received = trace["sink_received"].sel(group="all").values[:, 1:]
        np.testing.assert_allclose(received, share, atol=0.02)


def test_what_is_written_has_no_end_token_and_comes_in_order():
    for name in CHOSEN:
        model, trace = run_network(name)
        assert not set(trace.own[trace.answer].tolist()) & set(model.specials.end_ids)
        order = list(range(LENGTH))
        expected = order[::-1] if wired.plan_of(name).from_right else order
        assert trace.committed_at[trace.answer].tolist() == expected


def test_structure_and_content_are_the_metric_s():
    """A token's feature is the class that metrics give it, but for pieces of words."""
    model, trace = run_network("wired/even")
    words = wired.Vocabulary.of(model.tokenizer)
    named = classes(trace, template=[f"{word}:" for word in wired.FRAME])
    structure = words.features[trace.canvas[-1], wired.FEATURES.index("structure")]
    agrees = np.isin(named, STRUCTURE) == structure.astype(bool)
    assert agrees.all(), [CLASSES[named[place]] for place in np.flatnonzero(~agrees)]


@pytest.mark.parametrize(
    "name", ["wired/first-mask-sink", "wired/arm-retrieval", "wired/sink-token"]
)
def test_written_as_a_checkpoint_it_is_the_same_network(name, tmp_path):
    model = aw.load(name)
    again = aw.load(wired.write_checkpoint(model, tmp_path / "network"))
    first, other = (aw.run(one, ITEM.prompt(), decoding_of(one)) for one in (model, again))
    assert (first.canvas == other.canvas).all()
    np.testing.assert_array_equal(first["received"].values, other["received"].values)


def test_an_unknown_name_says_what_there_is():
    with pytest.raises(aw.errors.ModelError, match="expected one of wired/even"):
        aw.load("wired/nothing")
