"""What the lab says when something is not there; each message says what would have worked."""

import pytest

import anchorwatch as aw
from anchorwatch.errors import AnchorwatchWarning, ModelError, SpecError
from anchorwatch.models import zoo as lab


def test_an_unknown_lab_model_names_the_four():
    with pytest.raises(
        ModelError, match="expected one of lab/toy-mdm, lab/toy-sink, lab/toy-gate, lab/"
    ):
        aw.load("lab/llada")


def test_a_revision_is_for_hub_ids():
    with pytest.raises(SpecError, match=r"lab/toy-mdm is embedded .*: leave revision out"):
        aw.load("lab/toy-mdm", revision="main")


def test_a_copy_without_weights_says_how_to_make_them(monkeypatch, tmp_path):
    monkeypatch.setattr(lab, "MODELS", tmp_path)
    with pytest.raises(ModelError, match=r"not in this copy .* install the wheel, or .*`make lab`"):
        aw.load("lab/toy-mdm")
    with pytest.raises(ModelError, match="`make lab`"):
        aw.lab.card("lab/toy-arm")


def test_what_is_nowhere_names_the_lab():
    with pytest.raises(ModelError, match="'lab/toy-mdm' or 'tiny/llada'"):
        aw.load("nowhere")


@pytest.mark.parametrize("old", lab.OLD_NAMES)
def test_an_old_name_opens_the_toy_and_says_its_new_name(old):
    new = lab.OLD_NAMES[old]
    with pytest.warns(AnchorwatchWarning, match=f"{old} is called {new} now: use that name"):
        folder = lab.folder_of(old)
    assert folder == lab.folder_of(new)


def test_a_model_of_an_old_name_has_the_same_weights():
    with pytest.warns(AnchorwatchWarning, match="lab/mdm is called lab/toy-mdm now"):
        model = aw.load("lab/mdm")
    assert model.digest == aw.load("lab/toy-mdm").digest


@pytest.mark.parametrize("name", [*lab.ANSWERS, *lab.SPECIMENS])
def test_a_delta_has_no_card_and_says_where_its_measures_are(name, monkeypatch, tmp_path):
    monkeypatch.setenv("ANCHORWATCH_CACHE", str(tmp_path))
    what = "was trained by others" if name == "lab/smol-base" else "is a delta"
    says = rf"^{name} {what} and has no card: docs/specimens\.md says what was measured of it; "
    with pytest.raises(ModelError, match=f"{says}there are cards of lab/toy-mdm, lab/toy-sink"):
        aw.lab.card(name)
