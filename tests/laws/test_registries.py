"""One class adds one thing: a probe, an edit or a decoding that is registered outside works alike."""

from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest
import torch

import anchorwatch as aw
import tolerances
from anchorwatch.edits import ablation
from anchorwatch.edits.spec import EDITS, CanvasEdit, Edit, Hiding, register_edit
from anchorwatch.errors import ModelError, SpecError
from anchorwatch.generation.decoding import DECODINGS, WORDS, EvenSteps, register_decoding
from anchorwatch.generation.parse import parse_decoding, parse_edit
from anchorwatch.probes.spec import PROBES, Probe, find_probe, register_probe
from anchorwatch.trace.schema import field
from strategies import load

PROMPT = list(range(300, 306))
WRITES = aw.decoding.LowConfidence(4)


@pytest.fixture(autouse=True)
def registries():
    """What a test registers is gone after it."""
    with (
        mock.patch.dict(PROBES),
        mock.patch.dict(EDITS),
        mock.patch.dict(DECODINGS),
        mock.patch.dict(WORDS),
    ):
        yield


def test_a_probe_is_one_class():
    @register_probe
    @dataclass(frozen=True, repr=False)
    class first_key(Probe):  # noqa: N801
        def fields(self, shape):
            dims = ("step", "layer", "head")
            yield field("first_key", dims, "float32", "share", "attention to position 0", shape)

        def collect(self, reading):
            reading.put("first_key", reading.sums.mean_received()[:, 0, 0])

    assert find_probe("first_key") == "first_key" and find_probe("nothing") is None
    assert aw.probes.first_key is first_key and "first_key" in dir(aw.probes)
    probes = [first_key(), aw.probes.received(dtype="float32")]
    trace = aw.run(load("tiny/llada"), PROMPT, WRITES, probes=probes)
    expected = trace["received"].sel(group="all").values[..., 0]
    np.testing.assert_array_equal(trace["first_key"].values, expected)
    assert aw.probes.from_dict(trace.manifest["probes"][0]) == first_key()
    with pytest.raises(SpecError, match="there is a probe first_key already: name it otherwise"):
        register_probe(first_key)


@dataclass(frozen=True, repr=False)
class hide_last(Hiding):  # noqa: N801
    """Hide the last position."""

    @property
    def ranks(self):
        return 1

    def select_keys(self, row):
        return np.array([[row.view.length - 1]])


def test_an_edit_of_keys_is_one_class():
    register_edit(hide_last)
    trace = aw.run(load("tiny/llada"), PROMPT, WRITES, edits=[aw.edits.hide_last(layers=[0])])
    assert (trace["hidden_keys"].values[:, 0] == 9).all()
    assert (trace["received"].values[:, 0, :, 0, 9] == 0).all()
    assert trace.edits == (parse_edit("hide-last:layers=0"),)
    with pytest.raises(SpecError, match="no random control is known for hide_last"):
        aw.effect(load("tiny/llada"), [PROMPT], WRITES, edit=[hide_last()])
    with pytest.raises(SpecError, match="there is an edit hide_last already: name it otherwise"):
        register_edit(hide_last)


@register_edit
@dataclass(frozen=True, repr=False)
class scale(Edit):  # noqa: N801
    """Multiply values of all keys, or outputs of heads, by a factor."""

    form: str = "value_gain"
    factor: float = 2.0
    observable = "head output"

    def fill_patch(self, patch, row):
        if self.form == "head_gain":
            patch.mark_heads(self.form, row.view.row, row.heads, self.factor - 1)
            return
        view = row.view
        for head in row.heads:
            columns = np.arange(view.key_slice.start, view.key_slice.stop)
            heads = np.full(len(columns), head)
            patch.mark_keys(self.form, view.row, heads, columns, self.factor - 1)


EDITS.pop("scale")


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/arm"])
def test_twice_the_values_are_twice_the_output(name):
    model = load(name)
    writes = WRITES if name == "tiny/llada" else aw.decoding.LeftToRight(4)
    values, heads = (
        aw.run(model, PROMPT, writes, edits=[scale(form, layers=[1])])
        for form in ("value_gain", "head_gain")
    )
    plain = aw.run(model, PROMPT, writes)
    np.testing.assert_array_equal(values.canvas, heads.canvas)
    np.testing.assert_allclose(values.logprob, heads.logprob, atol=tolerances.LOGPROB)
    assert (values.logprob[-4:] != plain.logprob[-4:]).any()
    seen = values["value_norm"].values[0, 1] / plain["value_norm"].values[0, 1]
    np.testing.assert_allclose(seen, 2.0, rtol=1e-5)


@pytest.mark.parametrize("form", ["value_gain", "head_gain"])
def test_a_gain_that_is_lost_is_found_out(form):
    apply = ablation.apply_patch

    def deaf(call, patch, before=None):
        return apply(call, ablation.AttentionPatch.empty(call), before)

    with (
        mock.patch("anchorwatch.edits.runtime.apply_patch", deaf),
        pytest.raises(ModelError, match="the edit is not alive at layer 0"),
    ):
        aw.run(load("tiny/llada"), PROMPT, WRITES, edits=[scale(form)], probes=())


def test_an_edit_of_the_canvas_is_one_class():
    @register_edit
    @dataclass(frozen=True, repr=False)
    class hold_back(CanvasEdit):  # noqa: N801
        """The answer's first position is written at the third step or later."""

        position: int
        needs_masked = True

        @property
        def positions_named(self):
            return (self.position,)

        def first_steps_allowed(self):
            return {self.position: 2}

    trace = aw.run(load("tiny/llada"), PROMPT, WRITES, edits=[hold_back(6)], probes=())
    assert trace.committed_at[6] >= 2 and trace.num_left_masked == 0
    with pytest.raises(SpecError, match="hold_back of position 2, which is given"):
        aw.run(load("tiny/llada"), PROMPT, WRITES, edits=[hold_back(2)])


def test_a_decoding_is_one_class():
    @register_decoding("from-the-right")
    @dataclass(frozen=True)
    class FromTheRight(EvenSteps):
        def rank_positions(self, sequence, logits, positions, tokens):
            return positions.to(torch.float32)

    trace = aw.run(load("tiny/llada"), PROMPT, FromTheRight(4), probes=())
    assert trace.committed_at[-4:].tolist() == [3, 2, 1, 0]
    assert parse_decoding("from-the-right:4,steps=2") == aw.decoding.FromTheRight(4, 2)
    assert trace.decoding == FromTheRight(4)
    with pytest.raises(SpecError, match="there is a decoding FromTheRight, from-the-right already"):
        register_decoding("from-the-right")(FromTheRight)


def test_older_names_work_and_say_the_new_one():
    with pytest.warns(DeprecationWarning, match="given_again is now restore_numbers"):
        assert aw.edits.given_again((), ()) == ()
    with pytest.warns(DeprecationWarning, match=r"limit_to_steps is now edit.limit_to_steps"):
        edit = aw.edits.limit_to_steps(aw.edits.hide_keys([0]), range(2))
    assert edit == aw.edits.hide_keys([0], steps=[0, 1])
