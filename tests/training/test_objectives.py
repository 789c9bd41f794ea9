"""The loss is what it says: log V for the indifferent, the bound for short answers, nothing learned by heart."""

import dataclasses
import math
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorwatch.errors import SpecError
from anchorwatch.training import fit, noise
from anchorwatch.training.corpora import build_batch_builder
from anchorwatch.training.networks import build_start
from anchorwatch.training.objective import Scorer, token_nats
from anchorwatch.training.spec import Objective, from_dict
from references.bounds import over_mask_sets, over_orders
from tolerances import ENUMERATED, INDIFFERENT, SHUFFLED
from toy_texts import MASK, WORDS, Text, Texts, fields, tokenizer

OBJECTIVES = {
    "diffusion": {"eps": 0.5},
    "answers": {"eps": 0.5, "answer_only": 1.0},
    "rows": {"eps": 0.5, "answer_only": 0.5, "weigh": "rows"},
    "counted": {"masks": "counted", "answer_only": 0.5, "weigh": "rows"},
    "next_token": {"name": "next_token"},
    "next answers": {"name": "next_token", "answer_only": 1.0, "weigh": "rows"},
}


def made(**differs):
    spec = from_dict(fields(**differs))
    begun = build_start(spec, tokenizer())
    return spec, begun, build_batch_builder(spec, begun), Scorer(begun.network)


def rows_of(poser, spec, update, texts=Texts()):  # noqa: B008 - a frozen value
    places = range(spec.batch)
    return poser([texts[update * spec.batch + i] for i in places], update, places)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_indifferent_network_pays_log_v_for_each_scored_token(name):
    spec, begun, poser, scorer = made(objective=OBJECTIVES[name])
    torch.nn.init.zeros_(begun.network.lm_head.weight)
    weighed, divisor, masses = 0.0, 0.0, 0.0
    for update in range(40):
        rows = rows_of(poser, spec, update)
        costs = token_nats(scorer, rows).detach()
        assert torch.allclose(costs, torch.full_like(costs, math.log(WORDS)), rtol=INDIFFERENT)
        weighed += float((costs * rows.weights).sum())
        masses += float(rows.weights.sum())
        divisor += rows.divisor
    assert weighed == pytest.approx(masses * math.log(WORDS), rel=INDIFFERENT)
    if "next" in name or name == "counted":  # weights of a row sum to its tokens, whatever is drawn
        assert masses == pytest.approx(divisor, rel=INDIFFERENT)
    else:  # a mean of 1 / p over draws: eps = 1/2 keeps it near
        assert masses == pytest.approx(divisor, rel=SHUFFLED)


class Exact:
    """Costs of a network in float64, asked through our own rows."""

    def __init__(self):
        self.spec, self.begun, self.poser, self.scorer = made()
        self.begun.network.double()
        with torch.no_grad():
            for parameter in self.begun.network.parameters():
                parameter.mul_(4.0)  # so that tokens matter to each other
        self.ids = Texts(ragged=False)[5].ids

    @torch.no_grad()
    def __call__(self, masked, at):
        canvas = self.ids.copy()
        canvas[list(masked)] = MASK
        network = self.begun.network
        states = network.model(torch.from_numpy(canvas)[None], use_cache=False)[0][0, at]
        logits = network.lm_head(states)
        return -float(torch.log_softmax(logits, -1)[self.ids[at]])


def test_the_bound_over_mask_sets_is_the_mean_over_all_orders():
    cost, answer = Exact(), (2, 7, 8, 15)
    orders = over_orders(cost, answer)
    assert over_mask_sets(cost, answer) == pytest.approx(orders, abs=ENUMERATED)
    apart = [cost(frozenset(answer), at) - cost(frozenset([at]), at) for at in answer]
    assert max(map(abs, apart)) > 1e-3  # the masks do matter


def test_our_loss_is_that_bound_when_t_and_masks_are_integrated(monkeypatch):
    """Gauss-Legendre nodes are exact for the polynomials in p, and every set of masks is tried."""
    cost, answer = Exact(), (2, 7, 8)
    text = Text(cost.ids, np.isin(np.arange(len(cost.ids)), answer))
    poser = dataclasses.replace(cost.poser, objective=Objective(eps=1e-9, answer_only=1.0))
    points, mass = np.polynomial.legendre.leggauss(6)
    total = 0.0
    for p, share in zip((points + 1) / 2, mass / 2, strict=True):
        monkeypatch.setattr(
            noise, "draw_times", lambda *_, p=p: np.array([(p - 1e-9) / (1 - 1e-9)])
        )
        for code in range(2 ** len(answer)):
            masked = [at for i, at in enumerate(answer) if code >> i & 1]
            chosen = np.isin(np.arange(len(text.ids)), masked)
            monkeypatch.setattr(noise, "draw_masks", lambda *_, chosen=chosen: chosen)
            rows = poser([text], 0, [0])
            assert rows.divisor == len(answer)
            chance = p ** len(masked) * (1 - p) ** (len(answer) - len(masked))
            loss = (token_nats(cost.scorer, rows).detach() * rows.weights).sum()
            total += share * chance * float(loss)
    assert total == pytest.approx(over_orders(cost, answer), abs=ENUMERATED)


def test_counted_masks_have_the_same_bound(monkeypatch):
    """Every count and every set of that many masks is tried, each as likely as it is drawn."""
    cost, answer = Exact(), (2, 7, 8)
    text = Text(cost.ids, np.isin(np.arange(len(cost.ids)), answer))
    poser = dataclasses.replace(cost.poser, objective=Objective(masks="counted", answer_only=1.0))
    total = 0.0
    for count in range(1, len(answer) + 1):
        sets = list(combinations(answer, count))
        for masked in sets:
            chosen = np.isin(np.arange(len(text.ids)), masked)
            monkeypatch.setattr(noise, "draw_counted_masks", lambda *_, chosen=chosen, **__: chosen)
            rows = poser([text], 0, [0])
            loss = (token_nats(cost.scorer, rows).detach() * rows.weights).sum()
            total += float(loss) / len(answer) / len(sets)
    assert total == pytest.approx(over_orders(cost, answer), abs=ENUMERATED)


@given(st.integers(0, 2**20), st.lists(st.booleans(), min_size=1, max_size=12).filter(any))
def test_counts_are_even_and_scored_only(seed, flags):
    scored = np.array(flags)
    n = int(scored.sum())
    slices = [noise.draw_counted_masks(seed, 3, 1, (k + 0.5) / n, scored) for k in range(n)]
    assert [int(chosen.sum()) for chosen in slices] == list(range(1, n + 1))
    for less, more in pairwise(slices):
        assert not (less & ~more).any() and not (more & ~scored).any()


def test_rows_ask_what_the_slow_way_asks():
    spec, _, poser, _ = made(objective={"answer_only": 0.5})
    rows, texts = rows_of(poser, spec, 3), Texts()
    t = noise.draw_times("stratified", spec.seed, 3, range(spec.batch), spec.batch)
    asked = 0
    for row in range(spec.batch):
        index = 3 * spec.batch + row
        text, p = texts[index], (1 - 1e-3) * t[row] + 1e-3
        only = noise.is_answer_only(spec.seed, 3, index, 0.5)
        drawn = noise.open_stream(spec.seed, "mask", 3, index).random(len(text.ids))
        for at in range(len(text.ids)):
            hidden = drawn[at] < p and (text.scored[at] or not only)
            assert rows.canvas[row, at] == (MASK if hidden else text.ids[at])
            if hidden:
                assert rows.predictors[asked] == row * rows.canvas.shape[1] + at
                assert rows.targets[asked] == text.ids[at]
                assert float(rows.weights[asked]) == pytest.approx(1 / p, rel=INDIFFERENT)
                asked += 1
    assert asked == len(rows.targets)


def test_padding_is_never_looked_at():
    _, _, poser, scorer = made()
    short, long = Texts(ragged=False, length=9)[1], Texts(ragged=False)[2]
    two = poser([short, long], 0, [0, 1])
    assert two.real.sum(dim=1).tolist() == [9, 16]
    before = token_nats(scorer, two)[two.owners == 0]
    two.canvas[0, 9:] = 17
    assert torch.equal(token_nats(scorer, two)[two.owners == 0], before)


def test_a_shifted_network_is_asked_at_the_row_before():
    _, _, poser, _ = made()
    plain = poser([Texts()[1]], 0, [0])
    shifted = dataclasses.replace(poser, shift=True)([Texts()[1]], 0, [0])
    assert torch.equal(shifted.predictors, (plain.predictors - 1).clamp(min=0))
    assert torch.equal(shifted.targets, plain.targets)


@pytest.mark.parametrize("name", ["diffusion", "next_token"])
def test_32_sequences_are_learned_by_heart(name, tmp_path):
    # Answers only, all their words masked or not: what is left is what was not learned.
    spec = fields(
        updates=250,
        batch=32,
        model={"layers": 2, "width": 64, "heads": 4},
        objective={"name": name, "answer_only": 1.0},
        optimizer={"lr": 3e-3, "weight_decay": 0.0},
    )
    done = fit(spec, tmp_path / "run", corpus=Texts(32, ragged=False), tokenizer=tokenizer())
    assert done.lines[0].loss > 2
    assert done.loss < 0.05


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6), st.integers(1, 64))
def test_noise_does_not_depend_on_who_draws_it(seed, update, batch):
    everyone = range(batch)
    for how in ("stratified", "antithetic", "uniform"):
        whole = noise.draw_times(how, seed, update, everyone, batch)
        for world in (1, 2, 3):
            for rank in range(world):
                mine = everyone[rank::world]
                drawn = noise.draw_times(how, seed, update, mine, batch)
                assert np.array_equal(drawn, whole[rank::world])
        assert ((whole >= 0) & (whole < 1)).all()


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6), st.integers(1, 64))
def test_stratified_times_have_one_in_each_slice(seed, update, batch):
    t = noise.draw_times("stratified", seed, update, range(batch), batch)
    offset = t.min()
    slices = np.floor((t - offset) * batch + 0.5).astype(int)
    assert sorted(slices) == list(range(batch))


@given(st.integers(0, 2**63 - 1), st.floats(0, 1), st.floats(0, 1))
def test_a_greater_probability_masks_a_superset(seed, one, other):
    low, high = sorted((one, other))
    few, many = (noise.draw_masks(seed, 3, 17, p, 50) for p in (low, high))
    assert not (few & ~many).any()


def test_examples_and_updates_have_their_own_noise():
    drawn = {
        noise.draw_masks(0, update, example, 0.5, 64).tobytes()
        for update in range(5)
        for example in range(20)
    }
    assert len(drawn) == 100


def test_text_is_not_changed_by_posing():
    _, _, poser, _ = made()
    text = Text(np.arange(6, 16), np.ones(10, dtype=bool))
    poser([text], 0, [0])
    assert text.ids.tolist() == list(range(6, 16))
    assert text.scored.all()


def test_a_start_that_is_kept_is_never_masked_nor_scored():
    spec, _, poser, _ = made(objective={"eps": 0.5, "keep_start": True})
    plain = made(objective={"eps": 0.5})[2]
    kept, masked = rows_of(poser, spec, 0), rows_of(plain, spec, 0)
    assert not (kept.positions == 0).any() and (masked.positions == 0).any()
    assert torch.equal(kept.canvas[:, 1:], masked.canvas[:, 1:])  # the same noise
    assert kept.divisor == masked.divisor - spec.batch


def test_continued_rows_score_what_is_added_after_a_clear_beginning():
    said = {"masks": "counted", "continuations": 1.0}
    spec, _, poser, _ = made(objective=said)
    text = Text(np.arange(6, 16), np.ones(10, dtype=bool))
    plans = [
        noise.draw_continuation(spec.seed, update, update * spec.batch, 1.0, 10)
        for update in range(60)
    ]
    for update, plan in enumerate(plans):
        rows = poser([text], update, [0])
        given, masked = plan.given, rows.canvas[0] == MASK
        assert rows.canvas.shape == (1, given + plan.added) and rows.divisor == plan.added
        assert given >= 1 and not masked[:given].any() and masked.any()
        assert torch.equal(rows.canvas[0, :given], torch.arange(6, 6 + given))
        assert torch.equal(rows.positions, masked.nonzero()[:, 0])
        assert rows.weights.sum().item() == pytest.approx(plan.added)
        if plan.from_end:  # the last tokens, all of them: a text written from left to right
            assert masked[rows.positions[0] :].all()
    assert {plan.from_end for plan in plans} == {True, False}
    assert {plan.given for plan in plans} == set(range(1, 10))  # every beginning


def test_rows_with_answers_and_other_shares_are_not_continued():
    spec, _, poser, _ = made(objective={"masks": "counted", "continuations": 1.0})
    plain = made(objective={"masks": "counted"})[2]
    asked = Text(np.arange(6, 16), np.arange(10) >= 7)
    some, same = poser([asked], 3, [0]), plain([asked], 3, [0])
    assert torch.equal(some.canvas, same.canvas) and torch.equal(some.weights, same.weights)
    drawn = [noise.draw_continuation(spec.seed, 0, i, 0.25, 10) is not None for i in range(400)]
    assert sum(drawn) / 400 == pytest.approx(0.25, abs=0.1)
    assert noise.draw_continuation(spec.seed, 0, 0, 1.0, 1) is None  # nothing could be added


def test_continuations_need_counted_masks():
    with pytest.raises(SpecError, match="say masks = 'counted'"):
        from_dict(fields(objective={"continuations": 0.5}))
