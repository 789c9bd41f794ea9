"""What cards and the table of variants are made of, against loops over maps and states."""

import json

import export_model
import numpy as np
import pytest
import torch

import anchorwatch as aw
from anchorwatch.evaluation.synthetic import World
from anchorwatch.generation.decoding import LowConfidence
from anchorwatch.models.sites import layer_modules
from anchorwatch.training import card_measures as measure
from anchorwatch.training import nll_bound, variants
from synthetic_traces import planted
from tolerances import METRIC, SAME_MATHS

SMALL = measure.Effort(examples=8, draws=2, items=4, prompts=5, texts=2, steps=4)
EDITS = {"vanilla": [], "sinks": [aw.edits.sink_token(n=2)], "register": [aw.edits.register()]}


def corpus_of(model, folder):
    return export_model.open_corpus(
        export_model.read_training_record(folder)["spec"], model.tokenizer
    )


def slow_mask_shares(pattern, masked):
    """Loops over one head's map [query, key], whose rows may keep some for added keys."""
    keys, found = len(masked), {"visible": [], "masked": [], "of_visible": [], "of_masked": []}
    for query in range(keys):
        others = [key for key in range(keys) if key != query]
        on = sum(pattern[query, key] for key in others if masked[key])
        there = sum(1 for key in others if masked[key])
        who = "masked" if masked[query] else "visible"
        found[who].append(on / (there / keys))
        total = sum(pattern[query, key] for key in others)
        found[f"of_{who}"].append((on, total, there / (keys - 1)))
    return {
        "mask_share_visible": np.mean(found["visible"]),
        "mask_share_masked": np.mean(found["masked"]),
        **{
            f"mask_preference_{who}": sum(on for on, _, _ in found[f"of_{who}"])
            / sum(total for _, total, _ in found[f"of_{who}"])
            / found[f"of_{who}"][0][2]
            for who in ("visible", "masked")
        },
    }


@pytest.mark.parametrize("case", EDITS)
def test_shares_of_masks_are_those_of_loops_over_maps(case):
    model = aw.load("tiny/llada")
    canvas = torch.tensor(model.encode("the anchor drifts by the old pier at night"))
    canvas[[1, 4, 5, 8]] = model.mask_id
    probes = [*measure.NOISY_PROBES, aw.probes.pattern()]
    trace = aw.run(
        model, canvas=canvas, decoding=LowConfidence(steps=1), probes=probes, edits=EDITS[case]
    )
    fast = measure.mask_shares(trace)
    for pick, pattern in enumerate(trace["pattern"].values.astype(np.float64)):
        layer, head = int(trace["pick_layer"][pick]), int(trace["pick_head"][pick])
        slow = slow_mask_shares(pattern, trace.masked[0])
        for name, value in slow.items():
            assert fast[name][layer, head] == pytest.approx(value, rel=METRIC), name


def test_even_attention_has_shares_of_one():
    maps = np.full((1, 1, 1, 6, 6), 1 / 6)
    own = (("step", "layer", "head", "query"), np.full((1, 1, 1, 6), 1 / 6))
    trace = planted(maps, prompt=2, committed_at=[-1, -1, 0, 0, 0, 0], more={"row_diagonal": own})
    for name, value in measure.mask_shares(trace).items():
        expected = (4 * 2 / 6 + 3 * 4 / 6) / 6 if name == "mask_mass" else 1.0
        assert value == pytest.approx(expected, rel=METRIC), name


def test_a_lone_mask_has_no_other_mask():
    maps = np.full((1, 1, 1, 4, 4), 1 / 4)
    own = (("step", "layer", "head", "query"), np.full((1, 1, 1, 4), 1 / 4))
    trace = planted(maps, prompt=3, more={"row_diagonal": own})
    found = measure.mask_shares(trace)
    assert np.isnan(found["mask_share_masked"]).all()
    assert found["mask_share_visible"] == pytest.approx(1.0)


def path_maps(path, keys=5, share=0.6):
    """Maps [step, 1, 1, query, key] whose greatest key follows a path."""
    maps = np.full((len(path), 1, 1, keys, keys), (1 - share) / (keys - 1))
    for step, key in enumerate(path):
        maps[step, 0, 0, :, key] = share
    return maps


def test_switches_follow_a_planted_path():
    trace = planted(path_maps([0, 0, 3, 3, 1]), prompt=1)
    assert measure.greatest_path(trace)[:, 0, 0].tolist() == [0, 0, 3, 3, 1]
    assert measure.measure_switches([trace]) == {"value": 2 / 4, "sink": 0.0, "n": 1}


def test_an_added_key_can_be_the_greatest():
    dims = ("step", "layer", "head", "group")
    mass = np.full((5, 1, 1, 3), 0.7)
    mass[2] = 0.1
    maps = path_maps([0, 0, 3, 3, 1]) * (1 - mass[:, :, :, :1, None])
    trace = planted(maps, prompt=1, more={"sink_received": (dims, mass)})
    assert measure.greatest_path(trace)[:, 0, 0].tolist() == [-2, -2, 3, -2, -2]
    assert measure.measure_switches([trace]) == {"value": 2 / 4, "sink": 4 / 5, "n": 1}


def hidden_after(model, canvas):
    """[layer, position, width] by transformers' own record of a pass."""
    kept = []

    def keep(_, args, out):
        if out.shape[1] == len(canvas):  # a sink token passes alone
            kept.append(out)

    hooks = [layer.register_forward_hook(keep) for layer in layer_modules(model.network)]
    with torch.no_grad():
        model.network(canvas[None])
    for hook in hooks:
        hook.remove()
    return torch.stack([one[0] for one in kept])


def test_spread_is_the_change_of_all_other_states(models):
    model = aw.load(models / "toy-sink")
    canvas = torch.tensor(model.encode("Passage: Oda was born in Lorwick."))
    canvas[[2, 5]] = model.mask_id
    key = (0, 7)
    draw = aw.worlds.Draw("spread", *key)
    at = draw.pick([p for p in range(len(canvas)) if p not in (2, 5)])
    other = canvas.clone()
    plain = sorted(set(range(model.vocab_size)) - model.specials.special_ids - {int(canvas[at])})
    other[at] = draw.pick(plain)
    one, two = hidden_after(model, canvas), hidden_after(model, other)
    expected = []
    for layer in range(model.num_layers):
        gaps = [
            float((two[layer, p] - one[layer, p]).norm() / one[layer, p].norm())
            for p in range(len(canvas))
            if p != at
        ]
        expected.append(np.mean(gaps))
    found = measure.measure_states(model, canvas, key)
    assert found["spread"] == pytest.approx(expected, abs=SAME_MATHS)
    assert min(found["spread"]) > 0
    assert np.isnan(found["gate"]).all()


def test_the_mean_gate_is_that_of_its_formula(models):
    model = aw.load(models / "toy-gate")
    canvas = torch.tensor(model.encode("Passage: Oda was born in Lorwick."))
    reads = []
    hooks = [
        layer.input_layernorm.register_forward_hook(lambda _, args, out: reads.append(out[0]))
        for layer in layer_modules(model.network)
    ]
    model.logits(canvas)
    for hook in hooks:
        hook.remove()
    expected = [
        float((2 * torch.sigmoid(x @ layer.self_attn.gate.weight.T)).mean())
        for x, layer in zip(reads, layer_modules(model.network), strict=True)
    ]
    found = measure.measure_states(model, canvas, (1, 1))["gate"]
    assert found == pytest.approx(expected, abs=SAME_MATHS)
    assert not np.allclose(found, 1.0, atol=1e-7), "training moved it"


@torch.no_grad()
def test_norms_of_a_sink_token_are_those_of_its_own_pass(models):
    model = aw.load(models / "toy-sink")
    network = model.network
    state = network.anchorwatch.sink.detach()
    expected = []
    for layer in layer_modules(network):  # it sees only itself: what attention gives is its value
        value = layer.self_attn.v_proj(layer.input_layernorm(state))
        expected.append(float(value.view(model.num_heads, -1).norm(dim=-1).mean()))
        state = state + layer.self_attn.o_proj(value)
        state = state + layer.mlp(layer.post_attention_layernorm(state))
    assert measure.sink_norms(model, 9) == pytest.approx(expected, rel=METRIC)
    assert np.isnan(measure.sink_norms(aw.load("tiny/llada"), 9)).all()


def test_parts_of_a_bound_add_up(models):
    model = aw.load(models / "toy-gate")
    held = corpus_of(model, models / "toy-gate").held_out()
    found = nll_bound(model, held, examples=12, draws=2)
    first = np.arange(12) < 5
    one, two = measure.bound_of(found, first), measure.bound_of(found, ~first)
    tokens = found.scored[first].sum(), found.scored[~first].sum()
    both = (one["value"] * tokens[0] + two["value"] * tokens[1]) / sum(tokens)
    assert both == pytest.approx(found.value, rel=METRIC)
    assert one["low"] <= one["value"] <= one["high"]
    assert one["n"] == 5


@pytest.mark.parametrize("arm", ["toy-sink", "toy-gate", "toy-arm"])
def test_all_that_is_measured_is_plain_and_named_alike(models, arm):
    model = aw.load(models / arm)
    found = measure.measure_model(model, corpus_of(model, models / arm), SMALL)
    row = measure.flatten_measures(found)
    json.dumps(measure.plain_values(found), allow_nan=False)
    json.dumps(measure.plain_values(row), allow_nan=False)
    for name in ("bound.all", "bound.answers", "length.quarter", "length.longest", "answers.gold"):
        assert np.isfinite(row[name]), name
    assert row["bound.all.null"] == pytest.approx(np.log(600))
    assert {f"text.incidence.{rule}.null" for rule in measure.RULES} <= set(row)
    if arm == "toy-arm":
        assert not any(name.startswith("noisy.t.0.5") for name in row)
        return
    assert {*variants.QUANTITIES, *variants.OWN} <= set(row), "the page names what is measured"
    assert np.isfinite(row["noisy.t.0.5.mask_share_visible"])
    assert np.isfinite(row["noisy.t.0.5.sink_mass"]) == (arm == "toy-sink")
    assert np.isfinite(row["noisy.t.0.5.gate"]) == (arm == "toy-gate")
    assert row["text.switch_all.sink"] >= 0


def test_arms_are_asked_about_the_same_masks(models):
    canvases = {}
    for arm in ("toy-sink", "toy-gate"):
        model, kept = aw.load(models / arm), []
        plain = measure.plain_text(corpus_of(model, models / arm).held_out(), 64)
        texts = measure._read_rows(plain, 64, 2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                measure,
                "read_first_step",
                lambda model, trace, kept=kept: kept.append(trace.canvas[0]) or {},
            )
            patch.setattr(measure, "measure_states", lambda *_: {"n": np.zeros(1)})
            list(measure._run_at(model, texts, 0.5, 3))
        canvases[arm] = kept
    assert len(canvases["toy-sink"]) == 2
    assert np.array_equal(canvases["toy-sink"], canvases["toy-gate"])


def test_running_text_fills_any_length(models):
    model = aw.load(models / "toy-gate")
    held = corpus_of(model, models / "toy-gate").held_out()
    plain = measure.plain_text(held, 192)
    assert {plain[index].kind for index in range(20)} == {"backcopy"}
    assert {len(plain[index].ids) for index in range(20)} == {192}
    assert all(plain[index].scored.all() for index in range(20))


def test_lengths_and_questions():
    assert measure.lengths(96, 256) == {"quarter": 24, "half": 48, "trained": 96, "longest": 256}
    assert "longest" not in measure.lengths(96, 96)
    for world, _ in measure.CONTEXTS.values():
        assert isinstance(world, World)
        assert world.split == "held-out"
    assert len(measure.CONTEXTS["gold+2"][0][0].passages) == 3
    assert measure.CONTEXTS["gold+2"][0][5].question == measure.CONTEXTS["gold"][0][5].question


def test_a_row_has_values_and_nulls_and_no_intervals():
    found = {
        "a": {"value": 1.0, "null": 0.5, "low": 0.1, "high": 2.0, "n": 3},
        "b": {"c": [1.0, 2.0], "d": "word"},
    }
    assert measure.flatten_measures(found) == {
        "a": 1.0,
        "a.null": 0.5,
        "b.c.0": 1.0,
        "b.c.1": 2.0,
        "b.d": "word",
    }
    assert measure.plain_values({"x": [np.float32("nan"), np.int64(2)]}) == {"x": [None, 2]}
