"""Canvas edits that cannot be are refused, and the refusal says what would have worked."""

from unittest import mock

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch.errors import SpecError
from strategies import load

E, D = aw.edits, aw.decoding
MASK = 3
PROMPT = [300, 301, 302, 303, 304, 305]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: E.swap_token(2, "\n"),
            r"token='\\n' is text: give its id, model.tokenizer.encode",
        ),
        (lambda: E.swap_token(2, -1), "token=-1 is not a whole number of at least 0"),
        (lambda: E.swap_token(2, True), "token=True is not a whole number"),
        (lambda: E.swap_token(2.0, 9), "position=2.0 is not a whole number"),
        (
            lambda: E.swap_token(2, 9, layers=[1]),
            "all layers and heads read: leave layers and heads",
        ),
        (lambda: E.force_commit(7, 9, step=1, heads=[1]), "leave layers and heads out"),
        (lambda: E.force_commit(7, 9, step=-1), "step=-1 is not a whole number"),
        (
            lambda: E.force_commit(7, 9, step=1, steps=[1]),
            "takes no steps and no progress: say step",
        ),
        (lambda: E.force_commit(7, "a", step=1), "token='a' is text: give its id"),
        (lambda: E.delay_commit([7], until=1.5), "until=1.5 is not a whole number"),
        (lambda: E.delay_commit(7, until=1), r"positions=7 is not a list: say \[7\]"),
        (lambda: E.delay_commit([], until=1), "names none"),
        (lambda: E.delay_commit([7], until=1, progress=(0, 1)), "say until=3"),
        (lambda: E.delay_commit([7], until=1, layers=[0]), "leave layers and heads out"),
        (lambda: E.freeze_canvas(progress=(0, 0.5)), r"stands still .* say steps=\[2, 3\]"),
        (lambda: E.freeze_canvas(layers=[0]), "leave layers and heads out"),
    ],
)
def test_values_that_cannot_be(make, says):
    with pytest.raises(SpecError, match=says):
        make()


BEFORE = [
    (
        [E.swap_token(10, 9)],
        "swap_token of position 10 is not there: this run has positions 0 to 9",
    ),
    ([E.force_commit(12, 9, step=0)], "force_commit of position 12 is not there"),
    (
        [E.delay_commit([6, 10], until=1)],
        r"delay_commit\(positions=\[10\]\) is not there: .* 0 to 9",
    ),
    ([E.swap_token(2, 10**6)], "token 1000000 is outside the vocabulary: ids run from 0 to"),
    ([E.swap_token(2, MASK)], "token 3 is the mask id, which is not written: hide_keys hides"),
    (
        [E.force_commit(7, MASK, step=0)],
        "token 3 is the mask id, which is not written: delay_commit",
    ),
    (
        [E.force_commit(2, 9, step=0)],
        "position 2, which is given: the run writes 6 to 9; swap_token",
    ),
    (
        [E.delay_commit([2], until=1)],
        "position 2, which is given: the run writes 6 to 9; swap_token",
    ),
    ([E.force_commit(7, 9, step=4)], r"force_commit\(step=4\) never comes: .* steps 0 to 3"),
    (
        [E.delay_commit([7], until=4)],
        "would leave masks: the last step of this run is 3; say until=3",
    ),
    ([E.swap_token(7, 9)], r"is masked at step 0: say from when, steps=range\(2, 4\), or write it"),
    ([E.swap_token(7, 9, progress=(0, 0.5))], "is masked at step 0: say from when"),
    ([E.swap_token(2, 9, steps=[4])], r"would change nothing: this run has 0 to 3"),
    ([E.freeze_canvas(steps=[9])], r"would change nothing: this run has 0 to 3"),
    (
        [E.swap_token(2, 9), E.swap_token(2, 10)],
        "contradict .* holds one token at a time; give each",
    ),
    (
        [E.swap_token(2, 9, steps=[1, 2]), E.swap_token(2, 10, steps=[2, 3])],
        "position 2 holds one token at a time",
    ),
    (
        [E.force_commit(7, 9, step=1), E.force_commit(7, 10, step=1)],
        "contradict each other: position 7 is committed once",
    ),
    (
        [E.force_commit(7, 9, step=1), E.delay_commit([6, 7], until=2)],
        "position 7 waits until step 2; force it from then on",
    ),
    (
        [E.freeze_canvas(steps=[1]), E.force_commit(7, 9, step=1)],
        "nothing is committed while the canvas is frozen; force another step",
    ),
    (
        [E.force_commit(7, 9, step=2), E.swap_token(7, 10, steps=[2, 3])],
        "position 7 is masked up to step 2; swap it later",
    ),
    (
        [E.swap_token(7, 10, steps=[2, 3]), E.delay_commit([7], until=2)],
        "position 7 is masked up to step 2; swap it later",
    ),
]


@pytest.mark.parametrize(("edits", "says"), BEFORE)
def test_what_does_not_fit_a_run_is_refused_before_the_weights_are_touched(edits, says):
    model = load("tiny/llada")
    assert model.mask_id == MASK
    with (
        mock.patch.object(type(model), "logits", side_effect=AssertionError("touched")),
        pytest.raises(SpecError, match=says),
    ):
        aw.run(model, PROMPT, D.LowConfidence(4), edits=edits)


def test_edits_that_do_not_meet_go_together():
    edits = [
        E.swap_token(2, 9, steps=[0, 1]),
        E.swap_token(2, 10, steps=[2, 3]),
        E.swap_token(2, 10, steps=[3]),
        E.delay_commit([6, 7], until=1),
        E.force_commit(7, 11, step=1),
        E.swap_token(7, 12, steps=[2]),
        E.delay_commit([6], until=2),
        E.freeze_canvas(steps=[0]),
    ]
    trace = aw.run(load("tiny/llada"), PROMPT, D.LowConfidence(4), edits=edits)
    assert trace.edits == tuple(edits)
    assert trace.canvas[:, 2].tolist() == [9, 9, 10, 10, 10]
    assert trace.committed_at[6] >= 2


def test_a_swap_of_a_masked_position_is_refused_at_the_time():
    model = load("tiny/llada")
    edit = E.swap_token(8, 99, steps=[1])
    waits = E.delay_commit([8], until=0)
    says = r"position 8, which is masked at step 1: .* force_commit\(8, 99, step=1\)"
    plain = aw.run(model, PROMPT, D.LowConfidence(4), probes=())
    late = int(plain.answer[plain.committed_at[plain.answer] == 3][0])
    edit = E.swap_token(late, 99, steps=[1])
    with pytest.raises(SpecError, match=says.replace("8", str(late))):
        aw.run(model, PROMPT, D.LowConfidence(4), edits=[edit, waits])


def test_a_force_that_comes_too_late_is_refused_at_the_time():
    model = load("tiny/llada")
    plain = aw.run(model, PROMPT, D.LowConfidence(4), probes=())
    early = int(plain.answer[plain.committed_at[plain.answer] == 0][0])
    says = rf"comes too late, the position is written: .* delay_commit\(\[{early}\], until=2\)"
    with pytest.raises(SpecError, match=says):
        aw.run(model, PROMPT, D.LowConfidence(4), edits=[E.force_commit(early, 99, step=2)])


@pytest.mark.parametrize(
    ("edit", "cache", "says"),
    [
        (E.swap_token(2, 99), True, r"a cache keeps its keys: use LeftToRight\(cache=False\)"),
        (
            E.delay_commit([7], until=2),
            False,
            "cannot wait: delay_commit is for models that denoise",
        ),
        (
            E.freeze_canvas(),
            True,
            "freeze_canvas is for models that denoise; force_commit and swap",
        ),
        (E.force_commit(7, 99, step=0), True, "writes position 7 at step 1: say step=1"),
        (E.swap_token(7, 99), False, "position 7, which is absent at step 0: say from when"),
    ],
)
def test_autoregression_refuses_before_the_weights_are_touched(edit, cache, says):
    model = load("tiny/arm")
    with (
        mock.patch.object(type(model), "extend", side_effect=AssertionError("touched")),
        pytest.raises(SpecError, match=says),
    ):
        aw.run(model, PROMPT, D.LeftToRight(4, cache=cache), edits=[edit])


def test_autoregression_refuses_to_swap_what_is_not_written_yet():
    decoding = D.LeftToRight(4, cache=False, stop=False)
    with pytest.raises(SpecError, match="position 8, which is absent at step 1: swap it later"):
        aw.run(load("tiny/arm"), PROMPT, decoding, edits=[E.swap_token(8, 99, steps=[1])])


def test_many_prompts_are_all_checked_first():
    model = load("tiny/llada")
    with (
        mock.patch.object(type(model), "logits", side_effect=AssertionError("touched")),
        pytest.raises(SpecError, match="position 9 is not there: this run has positions 0 to 5"),
    ):
        many = [PROMPT, PROMPT[:2]]
        aw.run_many(model, many, D.LowConfidence(4), edits=[E.force_commit(9, 7, step=0)])


def test_a_fork_refuses_what_does_not_fit_its_rest():
    model = load("tiny/llada")
    trace = aw.run(model, PROMPT, D.LowConfidence(4), probes=())
    with pytest.raises(SpecError, match="acts at no step from 2 on"):
        aw.fork(model, trace, 2, edits=[E.force_commit(7, 99, step=1)])
    with pytest.raises(SpecError, match="acts at no step from 2 on"):
        aw.fork(model, trace, 2, edits=[E.delay_commit([7], until=2)])
    with pytest.raises(SpecError, match="is the mask id"):
        aw.fork(model, trace, 2, edits=[E.swap_token(2, model.mask_id)])
    with pytest.raises(SpecError, match="force_commit of position 12 is not there"):
        aw.fork(model, trace, 2, edits=[E.force_commit(12, 99, step=2)])


def test_a_fork_refuses_to_delay_or_force_what_is_written():
    model = load("tiny/llada")
    trace = aw.run(model, PROMPT, D.LowConfidence(4), probes=())
    early, late = (int(np.flatnonzero(trace.committed_at == step)[0]) for step in (1, 2))
    for edit in (E.delay_commit([early, late], until=3), E.force_commit(early, 99, step=3)):
        says = rf"{type(edit).__name__} of positions \[{early}\], which are written at step 2: "
        with (
            mock.patch.object(type(model), "logits", side_effect=AssertionError("touched")),
            pytest.raises(SpecError, match=says + "leave them out, or fork at step 1 or before"),
        ):
            aw.fork(model, trace, 2, edits=[edit])
    left_out = aw.fork(model, trace, 2, edits=[E.delay_commit([late], until=3)])
    before = aw.fork(model, trace, 1, edits=[E.delay_commit([early, late], until=3)])
    assert left_out.committed_at[late] == 3
    assert (before.committed_at[[early, late]] == 3).all()
