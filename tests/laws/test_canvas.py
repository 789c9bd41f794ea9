"""Edits of the canvas: the frames are the truth, and everything else follows from them."""

import json
import warnings
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import anchorwatch as aw
import tolerances
from anchorwatch.errors import AnchorwatchWarning, ModelError
from anchorwatch.generation import canvas_editor, loop
from anchorwatch.generation.decoding import even_counts
from anchorwatch.generation.sequence import CommitConstraints, SequenceState
from anchorwatch.metrics.table import prompt_id
from anchorwatch.trace.store import BLOCK_STEPS
from anchorwatch.trace.trace import FRESH, MASKED, PROMPT, WRITTEN
from references import canvas as slow
from strategies import denoisers, denoisings, even, left_to_right, load, prompts, seeds, thresholds

E, P, D = aw.edits, aw.probes, aw.decoding
PROMPT_IDS = [300, 301, 302, 303, 304, 305]
tokens = st.integers(10, 570)


def identical(one, two, besides=()):
    """Every field of both traces is equal, bit for bit."""
    assert set(one.fields) - set(besides) == set(two.fields) - set(besides)
    for name in set(one.fields) - set(besides):
        np.testing.assert_array_equal(one[name].values, two[name].values, err_msg=name)


def run(*args, **options):
    """A run whose edits may never act: it may end before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnchorwatchWarning)
        return aw.run(*args, **options)


@st.composite
def touched(draw, prompt, decoding):
    """Canvas edits that fit a run and each other."""
    length, last = decoding.length, decoding.num_passes - 1
    answer = range(len(prompt), len(prompt) + length)
    steps = st.lists(st.integers(0, last), min_size=1, max_size=4, unique=True)
    found = []
    if draw(st.booleans()):
        place = draw(st.integers(0, len(prompt) - 1))
        when = draw(st.sampled_from(["always", "steps", "progress"]))
        options = {"steps": draw(steps)} if when == "steps" else {}
        options |= {"progress": (0.2, 0.9)} if when == "progress" else {}
        found.append(E.swap_token(place, draw(tokens), **options))
    forced = set()
    for place in draw(st.lists(st.sampled_from(answer), max_size=2, unique=True)):
        step = draw(st.integers(0, last))
        forced.add(step)
        found += [
            E.delay_commit([place], until=step),
            E.force_commit(place, draw(tokens), step=step),
        ]
        if step < last and draw(st.booleans()):  # written by then
            later = draw(st.lists(st.integers(step + 1, last), min_size=1, unique=True))
            found.append(E.swap_token(place, draw(tokens), steps=later))
    held = {p for e in found for p in e.positions_named}
    if free := [p for p in answer if p not in held]:
        places = draw(st.lists(st.sampled_from(free), max_size=3, unique=True))
        if places:
            found.append(E.delay_commit(places, until=draw(st.integers(0, last))))
    if draw(st.booleans()) and (still := [s for s in draw(steps) if s not in forced]):
        found.append(E.freeze_canvas(steps=still))
    return draw(st.permutations(found))


@st.composite
def cases(draw, decodings=denoisings):
    prompt, decoding = draw(prompts), draw(decodings)
    return prompt, decoding, draw(touched(prompt, decoding))


@st.composite
def cold(draw):
    """Decodings without chance."""
    made = draw(st.one_of(even, thresholds(), st.just(None)))
    if isinstance(made, D.LowConfidence | D.RandomOrder):
        return D.LowConfidence(made.length, made.steps, block=made.block)
    if isinstance(made, D.Threshold):
        return replace(made, temperature=0.0)
    steps = draw(st.integers(1, 8))
    return D.DreamOrder(draw(st.integers(1, 8)), steps, algorithm="maskgit_plus")


@settings(max_examples=80)
@given(denoisers, cases(cold()))
def test_a_touched_run_is_what_a_plain_loop_writes(model, case):
    prompt, decoding, edits = case
    trace = run(model, prompt, decoding, edits=edits, probes=())
    assume(not trace["narrow"].values.any())  # ties fall otherwise in a sorted list
    frames, when, logprob = slow.written(model, prompt, decoding, edits)
    np.testing.assert_array_equal(trace.canvas, frames)
    for place in range(trace.canvas.shape[1]):
        assert trace.committed_at[place] == when.get(place, -1)
        if place in when:
            # Fewer rows are unembedded than there: another shape of the product.
            assert abs(trace.logprob[place] - logprob[place]) <= tolerances.LOGPROB
        else:
            assert np.isnan(trace.logprob[place])


@given(denoisers, cases(), seeds)
def test_frames_hold_what_was_asked(model, case, seed):
    prompt, decoding, edits = case
    trace = run(model, prompt, decoding, edits=edits, seed=seed, probes=())
    steps, answer = trace.num_steps, trace.answer
    assert steps <= decoding.num_passes
    assert trace.edits == tuple(edits)
    swapped = np.zeros(trace.canvas.shape, dtype=bool)
    for edit in edits:
        if isinstance(edit, E.swap_token):
            acts = [edit.acts_at(step, trace.progress[step]) for step in range(steps)]
            swapped[:-1, edit.position] |= acts
            swapped[-1, edit.position] |= acts[-1]
            assert (trace.canvas[:-1, edit.position][acts] == edit.token).all()
        elif isinstance(edit, E.force_commit) and edit.step < steps:
            assert trace.committed_at[edit.position] == edit.step
            assert trace.own[edit.position] == edit.token
        elif isinstance(edit, E.delay_commit):
            when = trace.committed_at[list(edit.positions)]
            assert ((when >= edit.until) | (when == -1)).all()
        elif isinstance(edit, E.freeze_canvas):
            assert not np.isin(trace.committed_at, edit.steps).any()
    given_places = np.setdiff1d(np.arange(trace.canvas.shape[1]), answer)
    assert trace.given[given_places].tolist() == prompt
    assert (trace.given[answer] == model.mask_id).all()
    own = np.where(trace.role == MASKED, model.mask_id, trace.own)
    np.testing.assert_array_equal(np.where(swapped, trace.canvas, own), trace.canvas)
    assert ((trace.canvas == model.mask_id) == (trace.role == MASKED)).all()
    for frame in range(1, steps + 1):
        fresh = trace.role[frame, answer] == FRESH
        assert (fresh == (trace.committed_at[answer] == frame - 1)).all()
    assert trace.prompt == model.decode(prompt)


@given(denoisers, cases(), seeds)
def test_no_masks_are_left_within_the_passes(model, case, seed):
    """Unless the last steps were frozen, or the model itself chose the mask."""
    prompt, decoding, edits = case
    trace = run(model, prompt, decoding, edits=edits, seed=seed, probes=())
    frozen = [e.steps for e in edits if isinstance(e, E.freeze_canvas)]
    assume(not trace["mask_chosen"].values.any())
    assume(not any(decoding.num_passes - 1 in s for s in frozen))
    held = [e.until for e in edits if isinstance(e, E.delay_commit)]
    blocks = getattr(decoding, "num_blocks", 1)
    spare = decoding.num_passes - len({s for one in frozen for s in one})
    # each block needs a pass of its own
    assume(not (isinstance(decoding, D.Threshold) and frozen and (held or spare < blocks + 1)))
    assert trace.num_left_masked == 0


@settings(max_examples=15)
@given(denoisers, cases(), seeds)
def test_a_replay_repeats_a_touched_run(model, case, seed):
    prompt, decoding, edits = case
    live = run(model, prompt, decoding, edits=edits, seed=seed)
    blind = run(model, prompt, decoding, edits=edits, seed=seed, probes=())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnchorwatchWarning)
        again = aw.replay(model, blind)
    identical(live, again)
    assert again.manifest == live.manifest


@settings(max_examples=25)
@given(denoisers, cases(), seeds, st.data())
def test_a_fork_of_a_touched_run_goes_on_as_it_did(model, case, seed, data):
    prompt, decoding, edits = case
    trace = run(model, prompt, decoding, edits=edits, seed=seed, probes=())
    step = data.draw(st.integers(0, trace.num_steps - 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnchorwatchWarning)
        identical(trace, aw.fork(model, trace, step, probes=()))
        again = aw.fork(model, trace, step, probes=(), edits=[E.no_op()])
    np.testing.assert_array_equal(again.canvas[:step], trace.canvas[:step])
    np.testing.assert_array_equal(again.given, trace.given)
    np.testing.assert_array_equal(again.canvas[step, : len(prompt)], prompt)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnchorwatchWarning)
        identical(again, aw.replay(model, again, ()))


@settings(max_examples=15)
@given(denoisers, st.lists(prompts, min_size=2, max_size=3), denoisings, seeds, st.data())
def test_touched_runs_in_batches(model, many, decoding, seed, data):
    shortest = min(many, key=len)
    edits = data.draw(touched(shortest, decoding))
    shared = len(shortest)
    keeps = [
        e for e in edits if all(p < shared for p in e.positions_named)
    ]  # answers begin elsewhere
    options = {"edits": keeps, "probes": ()}
    alone = [run(model, one, decoding, seed=seed + i, **options) for i, one in enumerate(many)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnchorwatchWarning)
        singly = aw.run_many(model, many, decoding, seed=seed, **options)
        together = aw.run_many(model, many, decoding, seed=seed, batch=3, **options)
    for one, two, three in zip(alone, singly, together, strict=True):
        identical(one, two)
        if one["narrow"].sum() == 0 and three["narrow"].sum() == 0:
            np.testing.assert_array_equal(one.canvas, three.canvas)
            np.testing.assert_array_equal(one.own, three.own)


def test_several_answers_are_touched_in_one_batch():
    """Prompts of one length: every edit acts in every row, padded rows have their own places."""
    model, many = load("tiny/llada"), [[40, 41, 42], [50, 51, 52], [60, 61, 62]]
    edits = [
        E.swap_token(1, 77),
        E.force_commit(5, 78, step=1),
        E.swap_token(5, 79, steps=[2]),
        E.delay_commit([3], until=3),
    ]
    for prompts_, batch in ((many, 3), ([*many, [40, 41]], 4)):
        traces = aw.run_many(
            model, prompts_, D.LowConfidence(4), edits=edits, probes=(), batch=batch
        )
        for trace in traces:
            assert (trace.canvas[:, 1] == 77).all()
            assert trace.canvas[2:, 5].tolist() == [79, 78, 78]
            assert trace.committed_at[5] == 1 and trace.committed_at[3] == 3


@settings(max_examples=15)
@given(denoisers, prompts, denoisings, seeds, st.data())
def test_swapping_in_what_stands_there_is_nothing(model, prompt, decoding, seed, data):
    plain = aw.run(model, prompt, decoding, seed=seed)
    places = [p for p in range(len(prompt))]
    written = [p for p in plain.answer if 0 <= plain.committed_at[p] < plain.num_steps - 1]
    place = int(data.draw(st.sampled_from([*places, *written])))
    first = int(plain.committed_at[place]) + 1
    steps = range(first, plain.num_steps)
    edit = E.swap_token(place, int(plain.canvas[-1, place]), steps=steps)
    trace = aw.run(model, prompt, decoding, seed=seed, edits=[edit])
    identical(plain, trace, besides={"own_token"})
    np.testing.assert_array_equal(trace["own_token"].values, plain.canvas[-1])


@settings(max_examples=20)
@given(denoisers, prompts, denoisings, seeds, st.data())
def test_forcing_what_would_have_been_chosen_changes_nothing(model, prompt, decoding, seed, data):
    plain = aw.run(model, prompt, decoding, seed=seed)
    assume(not plain["narrow"].values.any())  # between equals topk looks at who else is there
    places = np.flatnonzero(plain.committed_at >= 0)
    assume(len(places))
    forced = data.draw(st.lists(st.sampled_from(places.tolist()), min_size=1, unique=True))
    edits = [
        E.force_commit(p, int(plain.canvas[-1, p]), step=int(plain.committed_at[p])) for p in forced
    ]
    trace = aw.run(model, prompt, decoding, seed=seed, edits=edits)
    identical(plain, trace, besides={"narrow"})
    assert (trace["narrow"] <= plain["narrow"] + 1).all()  # what is forced is no decision


@settings(max_examples=20)
@given(denoisers, prompts, denoisings, seeds, st.data())
def test_delaying_what_waits_anyway_changes_nothing(model, prompt, decoding, seed, data):
    plain = aw.run(model, prompt, decoding, seed=seed)
    nothing = aw.run(
        model, prompt, decoding, seed=seed, edits=[E.delay_commit([plain.answer[0]], until=0)]
    )
    identical(plain, nothing)
    assume(not plain["mask_chosen"].values.any())
    assume(not plain["narrow"].values.any())  # between equals topk looks at who else is there
    places = data.draw(st.lists(st.sampled_from(plain.answer.tolist()), min_size=1, unique=True))
    edits = [E.delay_commit([p], until=int(plain.committed_at[p])) for p in places]
    trace = aw.run(model, prompt, decoding, seed=seed, edits=edits)
    identical(plain, trace, besides={"narrow"})


KINDS = [
    *(kind(8, 8, block=4) for kind in (D.LowConfidence, D.RandomOrder)),
    *(kind(8, 4, temperature=0.7) for kind in (D.LowConfidence, D.RandomOrder)),
    *(
        D.DreamOrder(
            8, 6, algorithm=algorithm, temperature=temperature, algorithm_temperature=drawn
        )
        for algorithm in ("origin", "maskgit_plus", "topk_margin", "entropy")
        for temperature, drawn in ((0.0, None), (0.6, 0.5), (0.0, 0.5))
    ),
    *(D.Threshold(8, block=block, threshold=0.02) for block in (None, 4)),
    *(D.Threshold(8, block=block, threshold=0.9, temperature=0.7) for block in (None, 2)),
]
"""Every schedule with every way to choose."""


@pytest.mark.parametrize(
    "decoding",
    [
        D.LowConfidence(8, 4, block=4),
        D.LowConfidence(8),
        D.DreamOrder(8, 6, algorithm="maskgit_plus"),
        D.DreamOrder(8, 12, algorithm="maskgit_plus"),
        D.Threshold(8, block=4, threshold=0.02),
        D.Threshold(8, threshold=0.9),
    ],
    ids=repr,
)
def test_every_schedule_counts_as_a_plain_loop_does(decoding):
    model, first, last = load("tiny/llada"), len(PROMPT_IDS), decoding.num_passes - 1
    for edits in (
        [E.freeze_canvas(steps=[0, 2])],
        [E.delay_commit(range(first, first + 6), until=2)],
        [E.delay_commit([first, first + 3], until=last), E.swap_token(1, 99, steps=[1, last])],
        [E.force_commit(first + p, 70 + p, step=0) for p in (0, 2, 7)],
        [E.delay_commit([first + 1], until=2), E.force_commit(first + 1, 77, step=2)],
    ):
        trace = run(model, PROMPT_IDS, decoding, edits=edits, probes=())
        frames, when, _ = slow.written(model, PROMPT_IDS, decoding, edits)
        np.testing.assert_array_equal(trace.canvas, frames)
        assert {p: int(w) for p, w in enumerate(trace.committed_at) if w >= 0} == when


@pytest.mark.parametrize("decoding", KINDS, ids=repr)
def test_every_decoding_obeys(decoding):
    model, first, last = load("tiny/llada"), len(PROMPT_IDS), decoding.num_passes - 1
    edits = [
        E.delay_commit([first, first + 1, first + 2], until=3),
        E.delay_commit([first + 5], until=last),
        E.force_commit(first + 1, 77, step=3),
        E.freeze_canvas(steps=[1]),
    ]
    for seed in range(6):
        trace = run(model, PROMPT_IDS, decoding, edits=edits, seed=seed, probes=())
        when = trace.committed_at
        assert (when[[first, first + 2]] >= 3).all() and when[first + 5] == last
        assert when[first + 1] == 3 and trace.canvas[-1, first + 1] == 77
        assert not (when == 1).any()
        if not trace["mask_chosen"].values.any():
            assert trace.num_left_masked == 0 and trace.num_steps <= decoding.num_passes


@pytest.mark.parametrize("decoding", KINDS, ids=repr)
def test_every_decoding_chooses_the_others_as_it_would_have(decoding):
    """Forced: all that a step commits, or one of them. Delayed: until they come anyway."""
    model = load("tiny/llada")
    for seed in range(4):
        plain = aw.run(model, PROMPT_IDS, decoding, seed=seed, probes=())
        when, ids = plain.committed_at, plain.canvas[-1]
        there = np.flatnonzero(when >= 0)
        forced = [E.force_commit(int(p), int(ids[p]), step=int(when[p])) for p in there]
        for some in (forced, forced[::2], forced[:1]):
            trace = aw.run(model, PROMPT_IDS, decoding, seed=seed, probes=(), edits=some)
            identical(plain, trace, besides={"narrow"})
        if not plain["mask_chosen"].values.any():
            waits = [E.delay_commit([int(p)], until=int(when[p])) for p in there]
            trace = aw.run(model, PROMPT_IDS, decoding, seed=seed, probes=(), edits=waits)
            identical(plain, trace, besides={"narrow"})


PROBES = [
    *aw.probes.DEFAULT,
    P.diagonal(rows=True),
    P.distance(),
    P.massive(2),
    P.mixing(),
    P.region_flow(),
]


@settings(max_examples=12)
@given(denoisers, prompts, denoisings, seeds)
def test_a_frozen_canvas_is_read_alike_at_every_step(model, prompt, decoding, seed):
    regions = {"a": range(1)}
    trace = aw.run(
        model,
        prompt,
        decoding,
        seed=seed,
        regions=regions,
        probes=PROBES,
        edits=[E.freeze_canvas()],
    )
    assert trace.num_steps == decoding.num_passes
    assert (trace.canvas == trace.canvas[0]).all()
    assert trace.num_left_masked == decoding.length
    assert (trace.committed_at == -1).all() and np.isnan(trace.logprob).all()
    assert (trace.progress == 0).all() and trace.text == ""
    checked = 0
    for name in trace:
        if trace[name].dims[0] == "step":
            held = trace[name].values
            np.testing.assert_array_equal(held, np.broadcast_to(held[:1], held.shape), name)
            checked += 1
    assert checked > 10
    identical(trace, aw.replay(model, trace, PROBES))


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream"])
def test_nothing_moves_on_a_frozen_canvas(name):
    """The null of movement: every metric that takes frozen traces says that nothing moves there."""
    model, rule = load(name), aw.rules.rulli(eps=1.0)
    decoding = D.LowConfidence(8)
    asks = [[40 + i, 60 + i, 80, 90, 100 + i, 7 * i + 11] for i in range(5)]
    probes = [*aw.probes.DEFAULT, P.pattern()]
    moving = [aw.run(model, ask, decoding, probes=probes) for ask in asks]
    still = [aw.run(model, ask, decoding, probes=probes, edits=[E.freeze_canvas()]) for ask in asks]
    for name, quantities in STILL.items():
        metric = getattr(aw.metrics, name)
        alone, beside = metric(still, rule), metric(moving, rule, frozen=still)
        for quantity, expected in quantities.items():
            for table, column in ((alone, "value"), (beside, "frozen")):
                found = table[table["quantity"] == quantity][column].dropna()
                assert len(found), (name, quantity, column)
                gap = np.abs(found.to_numpy(dtype=float) - expected).max()
                assert gap <= tolerances.STATISTIC, (name, quantity, column)
    similar = aw.metrics.map_similarity(moving, frozen=still)
    for quantity, expected in (("map_cosine", 1), ("map_jensen_shannon", 0)):
        found = similar[similar["quantity"] == quantity]["frozen"].dropna().to_numpy(dtype=float)
        assert len(found) and (np.abs(found - expected) <= tolerances.METRIC).all()
    rate = aw.metrics.jumps(moving, rule)
    assert (rate[rate["quantity"] == "jump_rate_any"]["value"] > 0).any()


STILL = {
    "jumps": dict.fromkeys(["jump_rate", "jump_rate_any", "displacement", "displacement_any"], 0),
    "spread": {"position_variance": 0, "centroid_variance": 0, "modal_share": 1},
    "direction": {"slope": 0, "slope_any": 0, "centroid_slope": 0},
    "lifetime": {"flicker": 0, "censored": 1, "from_first_step": 1, "mean_lifetime": 8},
    "set_jaccard": {"jaccard": 1},
    "survival": {"survival": 1},
}
"""What each metric says of a run in which nothing moves."""


def test_a_swap_acts_and_is_over():
    model = load("tiny/llada")
    trace = aw.run(model, PROMPT_IDS, D.LowConfidence(6), edits=[E.swap_token(2, 99, steps=[1, 2])])
    assert trace.canvas[:, 2].tolist() == [302, 99, 99, 302, 302, 302, 302]
    assert (trace.role[:, 2] == PROMPT).all()
    plain = aw.run(model, PROMPT_IDS, D.LowConfidence(6))
    shares = [t["received"].values for t in (plain, trace)]
    np.testing.assert_array_equal(shares[0][0], shares[1][0])
    assert (shares[0][1] != shares[1][1]).any()
    assert prompt_id(plain) == prompt_id(trace), "the prompt is what was given"
    last = aw.run(model, PROMPT_IDS, D.LowConfidence(6), edits=[E.swap_token(2, 99, steps=[5])])
    assert last.canvas[:, 2].tolist() == [302] * 5 + [99, 99], "nothing is put back after the end"


def test_a_written_position_is_swapped_and_stays_what_it_was():
    model, decoding = load("tiny/llada"), D.LowConfidence(6)
    plain = aw.run(model, PROMPT_IDS, decoding)
    place = int(np.flatnonzero(plain.committed_at == 1)[0])
    token = int(plain.canvas[-1, place])
    edit = E.swap_token(place, 99, steps=[2, 3])
    trace = aw.run(model, PROMPT_IDS, decoding, edits=[edit])
    column = [model.mask_id] * 2 + [99, 99] + [token] * 3
    assert trace.canvas[:, place].tolist() == column, "it is never seen at its own frame"
    assert trace.committed_at[place] == 1 and trace.own[place] == token
    assert trace.logprob[place] == plain.logprob[place]
    assert trace.role[:, place].tolist() == [MASKED] * 2 + [FRESH] + [WRITTEN] * 4


@pytest.mark.parametrize("block", [None, 4])
def test_a_forced_commit_takes_a_place_in_the_schedule(block):
    model, decoding = load("tiny/llada"), D.LowConfidence(8, 4, block=block)
    edit = E.force_commit(len(PROMPT_IDS), 77, step=1)
    delay = E.delay_commit([len(PROMPT_IDS)], until=1)
    trace = aw.run(model, PROMPT_IDS, decoding, edits=[edit, delay])
    assert [int((trace.committed_at == step).sum()) for step in range(4)] == even_counts(8, 4)
    logprobs = model.logprobs(trace.canvas[1].astype(np.int64))
    apart = trace.logprob[len(PROMPT_IDS)] - float(logprobs[len(PROMPT_IDS), 77])
    assert abs(apart) <= tolerances.LOGPROB


def test_a_position_of_a_later_block_is_forced_besides():
    model, last = load("tiny/llada"), len(PROMPT_IDS) + 7
    trace = aw.run(
        model,
        PROMPT_IDS,
        D.LowConfidence(8, 4, block=4),
        edits=[E.force_commit(last, 77, step=0)],
    )
    assert [int((trace.committed_at == step).sum()) for step in range(4)] == [3, 2, 2, 1]
    assert (trace["commit_top_key"].values[:, :, last] >= 0).all(), "its row was looked at"


def test_more_than_a_step_has_are_forced_before_their_time():
    model, first = load("tiny/llada"), len(PROMPT_IDS)
    edits = [E.force_commit(first + i, 70 + i, step=1) for i in range(3)]
    edits.append(E.delay_commit([first, first + 1, first + 2], until=1))
    trace = aw.run(model, PROMPT_IDS, D.LowConfidence(6), edits=edits)
    assert [int((trace.committed_at == step).sum()) for step in range(6)] == [1, 3, 0, 0, 1, 1]


def test_a_delayed_schedule_catches_up():
    model, first = load("tiny/llada"), len(PROMPT_IDS)
    delay = E.delay_commit(range(first, first + 6), until=3)
    trace = aw.run(model, PROMPT_IDS, D.LowConfidence(6), edits=[delay])
    assert [int((trace.committed_at == step).sum()) for step in range(6)] == [0, 0, 0, 4, 1, 1]
    frozen = aw.run(model, PROMPT_IDS, D.LowConfidence(6), edits=[E.freeze_canvas(steps=[1, 2])])
    assert [int((frozen.committed_at == step).sum()) for step in range(6)] == [1, 0, 0, 3, 1, 1]


@pytest.mark.parametrize("until", [1, 4, 6])
def test_a_threshold_waits_at_the_end(until):
    """Blocks do not wait for what is delayed in them; three blocks of two and two spare passes."""
    model, first = load("tiny/llada"), len(PROMPT_IDS)
    decoding = D.Threshold(6, block=2, threshold=0.02)
    edits = [E.delay_commit([first], until=until)]
    trace = aw.run(model, PROMPT_IDS, decoding, edits=edits, probes=())
    assert trace.num_left_masked == 0 and trace.committed_at[first] >= until


def test_of_two_delays_the_later_one_counts():
    model, decoding = load("tiny/llada"), D.LowConfidence(6)
    plain = aw.run(model, PROMPT_IDS, decoding, probes=())
    place = int(np.flatnonzero(plain.committed_at == 0)[0])
    short, long = (E.delay_commit([place], until=until) for until in (2, 4))
    alone = aw.run(model, PROMPT_IDS, decoding, edits=[long], probes=())
    assert alone.committed_at[place] >= 4
    for both in ([short, long], [long, short]):
        identical(alone, aw.run(model, PROMPT_IDS, decoding, edits=both, probes=()))


def test_a_threshold_keeps_a_pass_for_what_is_delayed():
    """Of the first block one waits for the last step; the second has one step before that."""
    model, first = load("tiny/llada"), len(PROMPT_IDS)
    decoding = D.Threshold(4, block=2, threshold=1.0)
    last = decoding.num_passes - 1
    edits = [
        E.delay_commit([first], until=last),
        E.freeze_canvas(steps=range(1, last - 1)),
    ]
    trace = aw.run(model, PROMPT_IDS, decoding, edits=edits, probes=())
    assert trace.committed_at[first:].tolist() == [last, 0, last - 1, last - 1]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("delayed", [False, True])
def test_a_threshold_comes_back_for_what_is_delayed_only(temperature, delayed):
    """A block whose model writes masks is left for good, when its patience is over."""
    decoding = D.Threshold(6, block=2, temperature=temperature)
    sequence = SequenceState(
        torch.full((6,), 3), torch.arange(6), 3, (), (), generator=torch.Generator()
    )
    if delayed:
        until = torch.tensor([decoding.num_passes - 1, 0, 0, 0, 0, 0])
        sequence.constraints = CommitConstraints(until)
    taken = 0
    for _ in decoding.plan_steps(sequence):  # nothing is ever written
        sequence.step += 1
        taken += 1
    assert taken == (decoding.num_passes if delayed else 3 * decoding.patience)


COUNTED = [
    D.LowConfidence(8),
    D.RandomOrder(8, temperature=0.5),
    D.DreamOrder(8, algorithm="entropy"),
]


@pytest.mark.parametrize("decoding", COUNTED, ids=repr)
@pytest.mark.parametrize("until", [0, 7])
def test_a_frozen_last_step_leaves_masks_and_says_so(decoding, until):
    model, first = load("tiny/llada"), len(PROMPT_IDS)
    edits = [E.delay_commit(range(first, first + 8), until=until), E.freeze_canvas(steps=[7])]
    says = "positions stay masked, the last step, 7, is frozen: freeze earlier ones, or all with"
    with pytest.warns(AnchorwatchWarning, match=says):
        trace = aw.run(model, PROMPT_IDS, decoding, edits=edits, probes=())
    assert trace.num_left_masked == (8 if until == 7 else trace.num_left_masked) > 0
    left = f"{trace.num_left_masked} of 8 {says} freeze_canvas()"
    assert trace.manifest["warnings"] == [left]
    with pytest.warns(AnchorwatchWarning, match=says):
        assert aw.replay(model, trace, ()).manifest == trace.manifest
    earlier = [edits[0], E.freeze_canvas(steps=[6])]
    caught_up = aw.run(model, PROMPT_IDS, decoding, edits=earlier, probes=())
    assert caught_up.num_left_masked == 0 and "warnings" not in caught_up.manifest


def test_freezing_all_that_is_left_is_no_surprise():
    model, decoding = load("tiny/llada"), D.LowConfidence(8)
    for steps in (None, range(8)):
        still = aw.run(model, PROMPT_IDS, decoding, edits=[E.freeze_canvas(steps=steps)], probes=())
        assert still.num_left_masked == 8 and "warnings" not in still.manifest
    plain = aw.run(model, PROMPT_IDS, decoding, probes=())
    rest = aw.fork(model, plain, 3, edits=[E.freeze_canvas()], probes=())
    assert rest.num_left_masked == 5 and "warnings" not in rest.manifest
    assert aw.replay(model, rest, ()).manifest == rest.manifest


def test_a_threshold_that_cannot_catch_up_says_so():
    model, decoding = load("tiny/llada"), D.Threshold(8, block=4)
    edits = [E.freeze_canvas(steps=range(decoding.num_passes - 1))]
    says = r"4 of 8 positions stay masked, too few steps \(1\) to catch up in: freeze fewer"
    with pytest.warns(AnchorwatchWarning, match=says):
        trace = aw.run(model, PROMPT_IDS, decoding, edits=edits, probes=())
    assert trace.num_left_masked == 4


@settings(max_examples=10)
@given(prompts, left_to_right, seeds, st.data())
def test_autoregression_is_forced(prompt, decoding, seed, data):
    model = load("tiny/arm")
    plain = aw.run(model, prompt, decoding, seed=seed)
    step = data.draw(st.integers(0, plain.num_steps - 1))
    place = len(prompt) + step
    same = E.force_commit(place, int(plain.canvas[-1, place]), step=step)
    identical(plain, aw.run(model, prompt, decoding, seed=seed, edits=[same]), besides={"narrow"})
    token = data.draw(tokens)
    trace = aw.run(
        model, prompt, decoding, seed=seed, edits=[E.force_commit(place, token, step=step)]
    )
    assert trace.own[place] == token and trace.committed_at[place] == step
    np.testing.assert_array_equal(trace.canvas[: step + 1], plain.canvas[: step + 1])
    ids = trace.canvas[step][:place].astype(np.int64)
    expected = model.logprobs(np.append(ids, token))[place, token]
    assert abs(float(expected) - trace.logprob[place]) <= tolerances.LOGPROB
    identical(trace, aw.replay(model, aw.fork(model, trace, step)), besides=_measured(trace, step))


def _measured(trace, step):
    """Fields that a fork at a later step than the first does not have whole."""
    always = {"canvas", "role", "committed_at", "logprob", "mask_chosen", "narrow", "region"}
    return set(trace.fields) - always if step else set()


@settings(max_examples=10)
@given(prompts, left_to_right, seeds, st.data())
def test_autoregression_reads_swapped_tokens(prompt, decoding, seed, data):
    """Reading it swapped from the start is another prompt."""
    model, decoding = load("tiny/arm"), replace(decoding, cache=False)
    place, token = data.draw(st.integers(0, len(prompt) - 1)), data.draw(tokens)
    swapped = aw.run(model, prompt, decoding, seed=seed, edits=[E.swap_token(place, token)])
    other = [*prompt[:place], token, *prompt[place + 1 :]]
    identical(swapped, aw.run(model, other, decoding, seed=seed), besides={"own_token"})
    assert swapped.prompt == model.decode(prompt)
    identical(swapped, aw.replay(model, swapped))
    plain = aw.run(model, prompt, decoding, seed=seed)
    if plain.num_steps > 2:
        edit = E.swap_token(len(prompt), token, steps=range(1, 2))
        trace = run(model, prompt, decoding, seed=seed, edits=[edit])
        column = trace.canvas[:4, len(prompt)].tolist()
        assert column[:2] == [-1, token]
        assert column[2:] == [int(plain.canvas[1, len(prompt)])] * len(column[2:])


def test_guidance_reads_swapped_tokens_only_where_the_prompt_is_read():
    model = load("tiny/llada")
    options = {"decoding": D.LowConfidence(4, guidance=1.5), "probes": [P.received(("all",))]}
    plain = aw.run(model, PROMPT_IDS, **options)
    trace = aw.run(model, PROMPT_IDS, edits=[E.swap_token(1, 99, steps=[0])], **options)
    assert (trace["received"].values[0] != plain["received"].values[0]).any()
    np.testing.assert_array_equal(
        trace["blind_received"].values[0], plain["blind_received"].values[0]
    )


def test_canvas_and_attention_edits_act_together():
    model, decoding = load("tiny/llada"), D.LowConfidence(6)
    canvas = [E.swap_token(2, 99), E.freeze_canvas(steps=[2])]
    hiding = [E.hide_keys([0]), E.hide_random(2)]
    one = aw.run(model, PROMPT_IDS, decoding, edits=[*canvas, *hiding])
    two = aw.run(model, PROMPT_IDS, decoding, edits=[hiding[0], *canvas, hiding[1]])
    identical(one, two)
    other = [*PROMPT_IDS[:2], 99, *PROMPT_IDS[3:]]
    three = aw.run(model, other, decoding, edits=[canvas[1], *hiding])
    identical(one, three, besides={"own_token"})
    identical(one, aw.replay(model, one))


@pytest.mark.parametrize("killed_at", [0, 7, 9, 17])
@pytest.mark.parametrize("streamed", ["masked", "absent"])
def test_a_touched_run_that_was_killed_goes_on(tmp_path, monkeypatch, killed_at, streamed):
    length = 2 * BLOCK_STEPS + 3
    if streamed == "masked":
        model, decoding = load("tiny/llada"), D.LowConfidence(length, temperature=0.7)
        edits = [
            E.swap_token(1, 99, steps=range(4, 12)),
            E.delay_commit([9, 10], until=9),
            E.force_commit(9, 77, step=9),
            E.swap_token(9, 78, steps=range(10, 18)),
            E.freeze_canvas(steps=[6, 7, 8]),
        ]
    else:
        model, decoding = load("tiny/arm"), D.LeftToRight(length, cache=False, stop=False)
        edits = [E.force_commit(9, 77, step=3), E.swap_token(9, 78, steps=range(6, 17))]
    live = aw.run(model, PROMPT_IDS, decoding, edits=edits, seed=3)
    note = loop.RunState.append_step

    def die(job, *given):
        if len(job.steps) == killed_at:
            raise KeyboardInterrupt
        return note(job, *given)

    monkeypatch.setattr(loop.RunState, "append_step", die)
    with pytest.raises(KeyboardInterrupt):
        aw.run(model, PROMPT_IDS, decoding, edits=edits, seed=3, out=tmp_path / "a.trace")
    monkeypatch.undo()
    whole = aw.run(model, PROMPT_IDS, decoding, edits=edits, seed=3, out=tmp_path / "b.trace")
    held = aw.run(model, resume=tmp_path / "a.trace")
    identical(held, whole)
    assert held.manifest == whole.manifest == live.manifest
    for name in ("canvas", "own_token", "committed_at", "logprob", "role"):
        np.testing.assert_array_equal(held[name].values, live[name].values, err_msg=name)
    identical(live, aw.replay(model, held))


def test_a_trace_on_disk_knows_what_stood_there(tmp_path):
    model, decoding = load("tiny/llada"), D.LowConfidence(4)
    trace = aw.run(model, PROMPT_IDS, decoding, edits=[E.swap_token(1, 99)], probes=())
    held = aw.read(trace.write(tmp_path / "a.trace"))
    assert held.given[:6].tolist() == PROMPT_IDS and held.token(301) == model.text_of(301)
    freed = aw.fork(model, held, 2, edits=[])
    assert freed.canvas[:, 1].tolist() == [99, 99, 301, 301, 301]
    plain = aw.run(model, PROMPT_IDS, decoding, probes=())
    assert "own_token" not in plain and plain.given[:6].tolist() == PROMPT_IDS


@given(st.data())
def test_a_manifest_gives_canvas_edits_back(data):
    for edit in data.draw(touched([20, 21, 22], D.LowConfidence(6))):
        assert E.from_dict(json.loads(json.dumps(edit.as_dict()))) == edit
        assert "None" not in repr(edit), "what is as always is left out"


def test_what_never_acted_is_said_and_kept():
    model = load("tiny/llada")
    edit = E.swap_token(0, 99, progress=(0.9, 1.0))
    with pytest.warns(
        AnchorwatchWarning, match=r"swap_token\(.*\) never acted: the run has 4 steps"
    ):
        trace = aw.run(model, PROMPT_IDS, D.LowConfidence(4), edits=[edit])
    assert trace.manifest["warnings"] == [f"{edit!r} never acted: the run has 4 steps"]
    acted = aw.run(model, PROMPT_IDS, D.LowConfidence(4), edits=[E.swap_token(0, 99)])
    assert "warnings" not in acted.manifest


class Deaf(canvas_editor.CanvasEditor):
    """Forgets to write what it was asked for."""

    def _swap_tokens(self, active, known):
        before = self._sequence.canvas.clone()
        shown = super()._swap_tokens(active, known)
        self._sequence.canvas = before
        return shown


def test_a_swap_that_does_not_reach_the_model_stops_the_run():
    with (
        mock.patch.object(loop, "CanvasEditor", Deaf),
        pytest.raises(
            ModelError, match=r"not alive at step 1: .* token 302 at position 2 and 99 was"
        ),
    ):
        edit = E.swap_token(2, 99, steps=[1])
        aw.run(load("tiny/llada"), PROMPT_IDS, D.LowConfidence(4), edits=[edit])


@pytest.mark.parametrize(
    "edit",
    [E.force_commit(8, 99, step=1), E.freeze_canvas(), E.delay_commit([6, 7, 8, 9], until=3)],
)
def test_a_policy_that_ignores_canvas_edits_stops_the_run(edit):
    take = loop.RunState.commit

    def deaf(self, logits, plan):
        plain = replace(plan, withheld=None, forced=(), frozen=False, count=4)
        return take(self, logits, plain)

    with (
        mock.patch.object(loop.RunState, "commit", deaf),
        pytest.raises(
            (ModelError, aw.errors.SpecError), match=r"not alive at step 1|comes too late"
        ),
    ):
        aw.run(load("tiny/llada"), PROMPT_IDS, D.LowConfidence(4), edits=[edit])


def test_the_padding_of_a_batch_moves_nothing():
    """The proof reads the very row of the batch: a canvas shifted by one is found out."""
    padded = loop.pad_left

    def shifted(rows, pad_id):
        canvases, padding = padded(rows, pad_id)
        return canvases.roll(1, dims=1), padding

    with (
        mock.patch.object(loop, "pad_left", shifted),
        pytest.raises(ModelError, match="not alive at step 0"),
    ):
        aw.run(load("tiny/llada"), PROMPT_IDS, D.LowConfidence(4), edits=[E.swap_token(2, 99)])
