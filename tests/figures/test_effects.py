"""Figures of effects: a line for each arm, differences from a null of 0."""

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch import figures

PROMPTS = [f"the {who} at anchor" for who in "ship crew captain lookout mate".split()]


@pytest.fixture(scope="module")
def effect(model):
    edit = aw.edits.hide_sinks(1)
    return aw.effect(model, PROMPTS, aw.decoding.LowConfidence(4, 2), edit, doses=(1, 3))


def drawn(ax):
    return {line.get_label(): line.get_ydata() for line in ax.get_lines()}


def test_doses_have_a_panel_for_each_outcome_and_a_line_for_each_arm(effect):
    figure = figures.effect_doses(effect.doses, outcomes=["kl", "perturbation"])
    assert [ax.get_title("left") for ax in figure.axes] == [
        "kl, difference",
        "perturbation, difference",
    ]
    found, rows = drawn(figure.axes[0]), effect.doses[effect.doses["outcome"] == "kl"]
    np.testing.assert_array_equal(found["edited"], rows["difference"])
    np.testing.assert_array_equal(found["control"], rows["control_difference"])
    assert (found["null"] == 0).all()
    assert figure.axes[0].get_ylabel() == "nats per masked position"
    assert figure.whence["settings"]["edit_text"] == "hide_sinks(k=1)"
    assert len(figure.whence["traces"]) == len(PROMPTS)


def test_layers_have_a_line_for_each_arm(effect, tmp_path):
    figure = figures.effect_layers(effect.layers)
    found = drawn(figure.axes[0])
    np.testing.assert_array_equal(found["edited"], effect.layers["difference"])
    assert figures.whence(figure.save(tmp_path / "a.svg"))["figure"] == "effect_layers"


def test_without_a_control_there_is_one_line(model):
    edit = aw.edits.hide_keys([0])
    alone = aw.effect(model, PROMPTS, aw.decoding.LowConfidence(4, 2), edit, control=None)
    assert set(drawn(figures.effect_layers(alone.layers).axes[0])) == {"edited", "null"}
