"""What the lab says when something is not there; each message says what would have worked."""

import pytest

import anchorwatch as aw
from anchorwatch.errors import ModelError, SpecError
from anchorwatch.models import zoo as lab


def test_an_unknown_lab_model_names_the_four():
    with pytest.raises(
        ModelError, match="expected one of lab/mdm, lab/mdm-sink, lab/mdm-gate, lab/"
    ):
        aw.load("lab/llada")


def test_a_revision_is_for_hub_ids():
    with pytest.raises(SpecError, match=r"lab/mdm is embedded .*: leave revision out"):
        aw.load("lab/mdm", revision="main")


def test_a_copy_without_weights_says_how_to_make_them(monkeypatch, tmp_path):
    monkeypatch.setattr(lab, "MODELS", tmp_path)
    with pytest.raises(ModelError, match=r"not in this copy .* install the wheel, or .*`make lab`"):
        aw.load("lab/mdm")
    with pytest.raises(ModelError, match="`make lab`"):
        aw.lab.card("lab/arm")


def test_what_is_nowhere_names_the_lab():
    with pytest.raises(ModelError, match="'lab/mdm' or 'tiny/llada'"):
        aw.load("nowhere")
