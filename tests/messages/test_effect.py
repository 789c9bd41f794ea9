"""Experiments that cannot be are refused before the weights are touched, and say what would work."""

from unittest import mock

import pytest

import anchorwatch as aw
from anchorwatch.errors import PromptError, SpecError
from strategies import load

E = aw.edits
MANY = [list(range(300, 306)), list(range(310, 316))]
SHORT = aw.decoding.LowConfidence(4)


@pytest.mark.parametrize(
    ("edit", "options", "says"),
    [
        (
            E.hide_sinks,
            {},
            r"edit is one of aw.edits, such as hide_sinks\(1\): got the class hide_s",
        ),
        ("hide-sinks:1", {}, "edit is one of aw.edits, .* got 'hide-sinks:1'"),
        (None, {}, "edit is one of aw.edits, .* got None"),
        ([], {}, "there is no edit: give one of aw.edits"),
        ([E.no_op(), 3], {}, "edits is a list of values"),
        (
            E.no_op(),
            {"control": "sinks"},
            "control='sinks' is unknown: say 'random', an edit, or N",
        ),
        (E.no_op(), {"control": E.no_op}, "control is one of aw.edits, .* got the class no_op"),
        (
            E.hide_lowest(1),
            {},
            r"no random control is known for hide_lowest\(k=1\): .* control=None",
        ),
        (E.hide_random(1), {}, "no random control is known"),
        (E.knock_out(layers=[1]), {}, r"leaves no other heads to draw from: name at most half"),
        (E.knock_out({(0, 0), (0, 1), (0, 2)}), {}, "name at most half of a layer"),
        (E.hide_keys([0, 1, 2, 3]), {}, "hides 4 positions of the prompt and leaves 2 to draw"),
        (E.hide_keys([7, 8, 9]), {}, "hides 3 positions of the answer and leaves 1 to draw"),
        (E.hide_sinks(10), {}, "would hide 10 keys of 10: hide fewer"),
        (E.hide_sinks(1), {"doses": (1, 10)}, "would hide 10 keys of 10: hide fewer"),
        (E.hide_keys([10]), {"control": None}, "this run has positions 0 to 9"),
        (E.hide_sinks(1), {"control": E.hide_keys([10])}, "this run has positions 0 to 9"),
        (E.hide_keys([0]), {"doses": (1, 2)}, r"of hide_keys\(positions=\(0,\)\) none have a k"),
        ([E.hide_sinks(1), E.hide_lowest(2)], {"doses": (1, 2)}, "2 have a k: give hide_sinks"),
        (E.hide_sinks(1), {"doses": 5}, r"doses=5 is not a list of numbers: say \(1, 5, 10\)"),
        (E.hide_sinks(1), {"doses": (1,)}, "are not two or more different numbers"),
        (E.hide_sinks(1), {"doses": (2, 2)}, "are not two or more different numbers"),
        (E.hide_sinks(1), {"doses": (0, 2)}, "k=0 is not a whole number of at least 1"),
        (E.no_op(), {"repeats": 0}, "repeats=0 is not a whole number of at least 1"),
        (E.no_op(), {"batch": 0}, "batch=0 is not a whole number of at least 1"),
        (E.no_op(), {"seed": -1}, "seed=-1 is not a whole number"),
        (E.no_op(), {"rule": "rulli:3"}, "is not a rule: aw.rules.rulli"),
        (E.no_op(), {"regions": [{"a": range(2)}]}, "there are 2 prompts and 1 regions"),
        (E.hide_sinks(1, eligible="gold"), {}, "eligible='gold' is unknown: expected one of all"),
    ],
)
def test_experiments_that_cannot_be(edit, options, says):
    model = load("tiny/llada")
    with (
        mock.patch.object(type(model), "logits", side_effect=AssertionError("touched")),
        pytest.raises(SpecError, match=says),
    ):
        aw.effect(model, MANY, SHORT, edit, **options)


@pytest.mark.parametrize(
    ("prompts", "says"),
    [
        ("the anchor", r"effect takes a list of prompts: give \[prompt\]"),
        ([], "there are no prompts: give at least one, and five for intervals"),
        ([[999_999]], "token id 999999 is outside the vocabulary"),
    ],
)
def test_prompts_that_cannot_be(prompts, says):
    with pytest.raises(PromptError, match=says):
        aw.effect(load("tiny/llada"), prompts, SHORT, E.no_op())


def test_an_oracle_knows_one_run():
    model = load("tiny/llada")
    plain = aw.run(model, MANY[0], SHORT)
    edit = E.hide_sinks(1, detect="oracle", unedited=plain)
    with pytest.raises(
        SpecError, match="an oracle knows one run and there are 2: use detect='same"
    ):
        aw.effect(model, MANY, SHORT, edit, control=None)
    assert aw.effect(model, MANY[:1], SHORT, edit).table["edited"].notna().any()


def test_tables_that_are_not_there():
    effect = aw.effect(load("tiny/llada"), MANY[:1], SHORT, E.no_op())
    with pytest.raises(
        SpecError, match=r"there are no doses without doses: give doses=\(1, 5, 10\)"
    ):
        effect.save("a.csv", "doses")
    with pytest.raises(
        SpecError, match="no 'heads': expected one of table, prompts, layers, doses"
    ):
        effect.get_table("heads")
    with pytest.raises(SpecError, match=r"the name ends in \.csv, \.json, \.parquet"):
        effect.save("a.txt")


def test_figures_that_cannot_be_drawn():
    effect = aw.effect(load("tiny/llada"), MANY, SHORT, E.hide_sinks(1), doses=(1, 2))
    with pytest.raises(SpecError, match="no outcome 'accuracy': it has answer_changed, edit_dist"):
        aw.figures.effect_doses(effect.doses, outcomes=["accuracy"])
    with pytest.raises(SpecError, match="no column k: its columns are outcome"):
        aw.figures.effect_doses(effect.table)
    with pytest.raises(SpecError, match="none of divergence_step exists in this effect"):
        aw.figures.effect_doses(effect.doses, outcomes=["divergence_step"])
    with pytest.raises(SpecError, match="there is nothing to draw"):
        aw.figures.effect_layers(effect.layers.assign(difference=float("nan")))
