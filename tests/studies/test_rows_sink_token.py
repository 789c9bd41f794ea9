"""Rows about sink tokens and gates, against slower ways to the same numbers."""

import numpy as np
import pytest
import torch

import anchorwatch as aw
import checkpoints
from anchorwatch import metrics
from anchorwatch.edits.spec import gate, hide_keys, sink_logit, sink_token
from anchorwatch.errors import SpecError
from anchorwatch.evaluation.synthetic import Draw, World
from anchorwatch.generation.decoding import LowConfidence
from anchorwatch.generation.run import run_many
from anchorwatch.models.sites import layer_modules
from anchorwatch.studies import prompts, protocols
from anchorwatch.studies.papers.sink_token import experiments as made
from anchorwatch.studies.prompts import StudyPrompt
from anchorwatch.training import card_measures, variants
from anchorwatch.training.loop import fit
from lab_toys import RECIPE, TOY
from references.parts import with_sinks
from tolerances import COMPARED, METRIC, SAME_MATHS

CANVAS = torch.tensor([5, 9, checkpoints.MASK, 11, checkpoints.MASK, 40, 41, 7, checkpoints.MASK])


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return aw.load(checkpoints.without_parts(tmp_path_factory.mktemp("bare")))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two sink tokens after the text."""
    part = sink_token(2, position="end", embedding="random")
    return aw.load(checkpoints.trained(tmp_path_factory.mktemp("two"), [part])[0])


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    """Networks of the lab's kind after four updates, with a tokenizer."""
    runs = tmp_path_factory.mktemp("runs")
    return {
        arm: aw.load(
            fit(variants.read_arm(RECIPE, variants.LAB, arm, TOY), runs / arm).model, device="cpu"
        )
        for arm in ("toy-sink", "toy-gate")
    }


def test_without_its_sink_token_a_model_is_the_network_that_never_had_one(two, bare):
    hidden = two.logits(CANVAS, parts=made.without_sink(two, len(CANVAS)))
    assert torch.equal(hidden, bare.logits(CANVAS))
    assert not torch.allclose(hidden, two.logits(CANVAS), atol=SAME_MATHS)


def test_the_published_form_is_that_of_the_reference(two, bare):
    said, kept = made.run_in_sequence(two, CANVAS)
    sink = two.network.anchorwatch.sink.detach()
    slow = with_sinks(bare.network, CANVAS, sink, position="end")
    assert (said - slow).abs().max() < SAME_MATHS
    assert [key.shape for key, _ in kept] == [(2, 2, 8)] * 2  # key heads, tokens, channels


@pytest.mark.parametrize("unit", [0, 3])
def test_a_sink_token_is_a_constant_unless_it_sees(toys, unit):
    (row,) = made.constants(toys["toy-sink"], unit, {})
    assert max(row[name] for name in ("key", "value", "logits")) < COMPARED
    assert row["value_if_it_sees_all"] > 0.01


def test_a_token_that_cannot_stand_in_the_sequence_is_refused(bare, tmp_path):
    empty = aw.load(checkpoints.trained(tmp_path, [sink_token(value="zero")])[0])
    with pytest.raises(SpecError, match="name a model whose sink token has both"):
        made.run_in_sequence(empty, CANVAS)
    with pytest.raises(SpecError, match="such as lab/toy-sink"):
        made.run_in_sequence(bare, CANVAS)


def test_a_sink_token_adds_one_key_to_every_query(toys):
    model = toys["toy-sink"]
    (row,) = made.operations(model, 0, {})
    queries = model.num_layers * model.num_heads * row["positions"]
    channels = model.network.config.head_dim
    each = 4 * channels  # of a query and a key: two products, and what they add up to
    assert row["with"] - row["without"] == queries * each
    token = (row["without"] - queries * row["positions"] * each) / row["positions"]
    pairs = 2 * row["positions"] + 1  # of one more query and one more key
    added = token + pairs * queries / row["positions"] * each
    assert row["published"] - row["without"] == added


def test_hiding_is_measured_on_the_clean_frames(toys, monkeypatch):
    model = toys["toy-sink"]
    monkeypatch.setattr(
        protocols, "prompt_of", lambda *_: StudyPrompt("the anchor drifts by the pier", {})
    )
    (row,) = made.knock_outs(model, 0, {"length": 4, "steps": 2})
    how = LowConfidence(4, 2)
    clean = aw.run(model, "the anchor drifts by the pier", how, probes=(), seed=0)
    slow = []
    for canvas in clean.canvas[:-1]:
        pair = [
            model.logits(canvas, parts=parts).double().softmax(-1)
            for parts in ((), made.without_sink(model, len(canvas)))
        ]
        for at in np.flatnonzero(canvas == model.mask_id):
            p, q = (rows[at] for rows in pair)
            slow.append(float((p * (p / q).log()).sum()))
    assert row["sink"] == pytest.approx(np.mean(slow), rel=METRIC)
    assert row["greatest"] > 0
    assert row["random"] > 0


def test_what_does_not_go_to_the_sink_token_is_open(toys):
    model = toys["toy-sink"]
    rows = made.openness(model, 1, {})
    canvas = made.noisy_canvas(model, 1)
    trace = aw.run(model, canvas=canvas, decoding=LowConfidence(steps=1))
    taken = trace["sink_received"].sel(group="all").values[0]
    assert len(rows) == taken.size
    for row in rows:
        assert len(row["open"]) == len(canvas)
        assert 1 - np.mean(row["open"]) == pytest.approx(
            taken[row["layer"], row["head"]], abs=METRIC
        )


def test_gates_are_those_that_the_network_multiplies_by(toys):
    model = toys["toy-gate"]
    rows = made.openness(model, 2, {})
    by_layer = card_measures.measure_states(model, made.noisy_canvas(model, 2), (0,))["gate"]
    for layer, gates in enumerate(by_layer):
        mine = [row["open"] for row in rows if row["layer"] == layer]
        assert np.mean(mine) == pytest.approx(gates, abs=METRIC)
    assert np.ptp([row["open"] for row in rows]) > METRIC


def test_answers_are_scored_with_and_without_passage_and_token(toys):
    model = toys["toy-sink"]
    rows = {row["context"]: row for row in made.in_context(model, 4, {})}
    assert set(rows) == {"gold", "closed"}
    item = World("held-out", seed=prompts.SEED + 2)[4]
    answer = model.encode(" " + item.answers[0])
    prompt = model.encode(item.prompt())
    answer = [i for i in answer if i not in model.specials.special_ids]
    each = model.logprobs([*prompt, *[model.mask_id] * len(answer)])
    own = [float(each[len(prompt) + at, token]) for at, token in enumerate(answer)]
    assert rows["gold"]["worn"] == pytest.approx(np.mean(own), abs=METRIC)
    assert len({round(row[name], 9) for row in rows.values() for name in ("worn", "hidden")}) == 4


def test_other_parts_stay_when_the_sink_token_is_hidden(tmp_path):
    parts = [sink_token(), gate(init="plain")]
    both = aw.load(checkpoints.trained(tmp_path / "both", parts)[0])
    gated = aw.load(checkpoints.trained(tmp_path / "gated", parts[1:])[0])
    held = gated.network.state_dict()
    both.network.load_state_dict(held, strict=False)
    hidden = both.logits(CANVAS, parts=made.without_sink(both, len(CANVAS)))
    assert torch.equal(hidden, gated.logits(CANVAS))


def states_of(model, canvas):
    """[layer, position, width] after every layer, by hooks on the network itself."""
    kept = []

    def keep(_, args, output):
        kept.append((output[0] if isinstance(output, tuple) else output)[0].detach().clone())

    hooks = [module.register_forward_hook(keep) for module in layer_modules(model.network)]
    model.logits(canvas)
    for hook in hooks:
        hook.remove()
    return torch.stack(kept)


def test_mixing_is_how_far_one_other_token_moves_the_other_states(bare, monkeypatch):
    monkeypatch.setattr(made, "noisy_canvas", lambda *_: CANVAS)
    rows = {row["edit"]: row for row in made.mixing(bare, 3, {"k": 2})}
    assert list(rows) == ["none", "sinks", "random"]
    position = made._choose_position(bare, CANVAS, np.zeros((1, 1, len(CANVAS)), dtype=bool), 3)
    other = CANVAS.clone()
    plain = set(range(bare.vocab_size)) - bare.specials.special_ids - {int(CANVAS[position])}
    other[position] = Draw("mixing", 3, "token").pick(sorted(plain))
    before, after = states_of(bare, CANVAS), states_of(bare, other)
    rest = [p for p in range(len(CANVAS)) if p != position]
    slow = [
        float((after[layer, p] - before[layer, p]).norm() / before[layer, p].norm())
        for layer in range(len(before))
        for p in rest
    ]
    if rows["none"]["sinks"] == 0:  # nothing was hidden, and the token was drawn from all
        assert rows["none"]["spread"] == pytest.approx(np.mean(slow), rel=COMPARED)
        assert rows["sinks"]["spread"] == rows["random"]["spread"] == rows["none"]["spread"]


def test_states_are_those_of_the_edited_pass(bare):
    clean, _ = made._states(bare, CANVAS, (), 3)
    assert torch.allclose(clean, states_of(bare, CANVAS), atol=SAME_MATHS)
    hidden, trace = made._states(bare, CANVAS, (hide_keys((3,)),), 3)
    assert not torch.allclose(hidden, clean, atol=SAME_MATHS)
    assert trace["received"].sel(group="all").values[0][..., 3].max() == 0


def test_the_token_that_is_changed_is_visible_and_no_sink(bare):
    sinks = np.zeros((2, 2, len(CANVAS)), dtype=bool)
    sinks[:, 0, 3] = sinks[1, 1, 0] = True
    drawn = {made._choose_position(bare, CANVAS, sinks, unit) for unit in range(40)}
    assert drawn == {1, 5, 6, 7}
    sinks[0, 1, [1, 5, 6, 7]] = True  # all are sinks somewhere: those of one head are left
    assert {made._choose_position(bare, CANVAS, sinks, u) for u in range(60)} == {0, 1, 5, 6, 7}


def test_a_working_sink_leaves_less_than_half_of_the_other_sinks():
    """The columns that sink_token/H3 reads, of a trained network with an added empty key.

    Whatever the key takes: a rule in times of what tokens receive would not see it.
    """
    model = aw.load("lab/toy-mdm")
    asked = card_measures._prompts(3)
    how = LowConfidence(length=12, steps=6)
    found = {}
    for logit in (None, 6.0, 10.0):
        edits = () if logit is None else (sink_logit(logit),)
        traces = run_many(model, asked, how, probes=card_measures.WRITING_PROBES, edits=edits)
        sinks = metrics.sinks(traces, card_measures.RULES["rulli"], by=())
        incidence = card_measures.read_cells(sinks)["incidence"]["value"]
        found[logit] = incidence, card_measures.measure_switches(traces)["value"]
    plain = found.pop(None)
    assert min(plain) > 0
    for working in found.values():
        assert all(now < before / 2 for now, before in zip(working, plain, strict=True))
