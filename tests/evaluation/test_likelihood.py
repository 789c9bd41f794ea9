"""Likelihoods: exact ones against slow loops, estimates against the enumerated bound."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import anchorwatch as aw
from anchorwatch.evaluation import likelihood, loglikelihood, loglikelihoods
from anchorwatch.evaluation.likelihood import METHODS, draw_sets, estimate, every_set
from anchorwatch.models.additions import fit_addition
from anchorwatch.models.load import load as load_afresh
from checkpoints import lit_gpt_tensors, trained, without_parts, write
from references import likelihood as slow
from references import parts as slow_parts
from references.networks import lit_gpt
from strategies import load
from tolerances import COVERED, LIKELIHOOD, SEEDED_ERRORS, STATISTIC

MDMS = ("tiny/llada", "tiny/dream", "tiny/bert")
PROMPT = [310, 320, 330, 340, 350]
ANSWER = [400, 311, 425, 512]
DRAWN = ("counts", "monte_carlo", "inverse_t")
HIDE = aw.edits.hide_keys([2])


@pytest.mark.parametrize("name", MDMS)
def test_the_bound_is_the_mean_of_the_chain_rule_over_all_orders(name):
    found = loglikelihood(load(name), PROMPT, ANSWER, method="exact")
    assert found.value == pytest.approx(slow.bound(load(name), PROMPT, ANSWER), abs=LIKELIHOOD)
    assert (found.passes, found.standard_error, found.replicates) == (15, 0.0, 0)
    assert found.interval() == (found.value, found.value)


@pytest.mark.parametrize("name", MDMS)
def test_chain_and_pseudo_are_their_formulas(name):
    model = load(name)
    chain = loglikelihood(model, PROMPT, ANSWER, method="chain")
    assert chain.value == pytest.approx(slow.chain(model, PROMPT, ANSWER), abs=LIKELIHOOD)
    pseudo = loglikelihood(model, PROMPT, ANSWER, method="pseudo")
    assert pseudo.value == pytest.approx(slow.pseudo(model, PROMPT, ANSWER), abs=LIKELIHOOD)
    assert chain.passes == pseudo.passes == len(ANSWER)
    each = [slow.token_logprob(model, PROMPT, ANSWER, [i], i) for i in range(4)]
    assert pseudo.per_token == pytest.approx(each, abs=LIKELIHOOD)


def test_autoregression_is_exact_in_one_pass():
    found = loglikelihood(load("tiny/arm"), PROMPT, ANSWER)
    expected = slow.autoregressive(load("tiny/arm"), PROMPT, ANSWER)
    assert found.value == pytest.approx(expected, abs=LIKELIHOOD)
    assert (found.method, found.passes, found.standard_error) == ("exact", 1, 0.0)
    rows = load("tiny/arm").logprobs(PROMPT + ANSWER)[len(PROMPT) :]
    each = [float(row[token]) for row, token in zip(rows, ANSWER, strict=True)]
    assert found.per_token == pytest.approx(each, abs=LIKELIHOOD)
    assert found.greedy is False


def test_greedy_says_whether_every_token_was_the_likeliest():
    arm, mdm = load("tiny/arm"), load("tiny/llada")
    trace = aw.run(arm, PROMPT, aw.decoding.LeftToRight(4), probes=())
    written = trace.canvas[-1][len(PROMPT) :].tolist()
    assert loglikelihood(arm, PROMPT, written).greedy is True
    assert loglikelihood(arm, PROMPT, [*written[:-1], 311]).greedy is False
    trace = aw.run(mdm, PROMPT, aw.decoding.LowConfidence(4, block=1), probes=())
    written = trace.canvas[-1][len(PROMPT) :].tolist()
    assert loglikelihood(mdm, PROMPT, written, method="chain").greedy is True
    assert loglikelihood(mdm, PROMPT, written, method="pseudo").greedy is None
    assert loglikelihood(mdm, PROMPT, written, method="counts").greedy is None


def test_the_longest_text_an_autoregressive_model_can_score_is_one_token_longer_than_it_reads():
    arm = load("tiny/arm")
    ids = torch.randint(10, 570, (arm.num_positions + 1,), generator=torch.manual_seed(1)).tolist()
    found = loglikelihood(arm, ids[:-3], ids[-3:])
    last = torch.log_softmax(arm.extend(torch.tensor([ids[:-1]]))[0][0].float(), dim=-1)
    assert found.per_token[-1] == pytest.approx(float(last[ids[-1]]), abs=LIKELIHOOD)


@pytest.mark.parametrize("guidance", [0.5, 2.0])
def test_guidance_is_its_formula(guidance):
    model = load("tiny/dream")
    found = loglikelihood(model, PROMPT, ANSWER[:3], guidance=guidance)
    expected = slow.bound(model, PROMPT, ANSWER[:3], guidance)
    assert found.value == pytest.approx(expected, abs=(1 + 2 * guidance) * LIKELIHOOD)
    assert found.passes == 14, "two for each set"
    assert loglikelihood(model, PROMPT, ANSWER[:3], guidance=0.0).passes == 7


class Slow:
    """A model whose logits are computed elsewhere, one canvas at a time; row p is about p."""

    def __init__(self, model, rows):
        self.mask_id, self.model, self.rows = model.mask_id, model, rows

    @torch.no_grad()
    def logits(self, canvas, attendable=None):
        assert attendable is None
        raw = self.rows(torch.tensor(canvas))
        return torch.cat([raw[:1], raw[:-1]]) if self.model.family.shift else raw


def check_likelihoods(model, twin, prompt, answer, edits=()):
    """Enumerated, guided and by the chain rule, in batches whose rows are padded."""
    short = (prompt[:2], answer[:2])
    for guidance in (0.0, 1.5):
        loose = (1 + 2 * guidance) * LIKELIHOOD
        found = loglikelihoods(
            model, [(prompt, answer), short], guidance=guidance, edits=edits, batch=6
        )
        for one, item in zip(found, ((prompt, answer), short), strict=True):
            assert one.value == pytest.approx(slow.bound(twin, *item, guidance), abs=loose)
    chain = loglikelihood(model, prompt, answer, method="chain", edits=edits)
    assert chain.value == pytest.approx(slow.chain(twin, prompt, answer), abs=LIKELIHOOD)
    return chain.value


def by_hand(model, part):
    """The model with a part as published or by its formula, on a network that has none."""
    network, fit = model.network, fit_addition(part, model)

    def rows(ids):
        everyone = torch.ones(len(ids), len(ids), dtype=torch.bool)
        if isinstance(part, aw.edits.sink_token):
            return slow_parts.with_sinks(network, ids, fit.embedding, position=part.position)
        if isinstance(part, aw.edits.register):
            tokens = torch.cat([fit.embedding, network.get_input_embeddings()(ids)])[None]
            return network(inputs_embeds=tokens).logits[0, part.n :]
        if isinstance(part, aw.edits.gate):
            return slow_parts.llama(network, ids, everyone, gate=(fit.weight, 1))
        return slow_parts.llama(network, ids, everyone, logit=torch.stack(fit.logit))

    return Slow(model, rows)


PARTS = [
    aw.edits.sink_token(2, embedding="random"),
    aw.edits.sink_token(position="end", embedding="random", seed=5),
    aw.edits.register(2, embedding="random", seed=3),
    aw.edits.sink_logit(1.5),
    aw.edits.gate("elementwise", "plain", seed=3),
    aw.edits.gate("headwise", "plain", seed=3),
]


@pytest.mark.parametrize("part", PARTS, ids=repr)
@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream"])
def test_a_part_of_a_run_is_scored_as_by_hand(name, part):
    model = load(name)
    found = check_likelihoods(model, by_hand(model, part), PROMPT, ANSWER[:3], [part])
    plain = loglikelihood(model, PROMPT, ANSWER[:3], method="chain").value
    assert abs(found - plain) > 100 * LIKELIHOOD


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_a_trained_part_is_scored_as_by_hand(part, tmp_path):
    """Both branches of guidance keep it; the twin has a network without it, and its numbers."""
    folder, (own,) = trained(tmp_path / "m", [part])
    model, vanilla = aw.load(folder), aw.load(without_parts(tmp_path / "v"))
    assert model.parts == (own,) and not vanilla.parts
    found = check_likelihoods(model, by_hand(vanilla, own), [5, 60, 7, 12], [33, 8, 9])
    plain = loglikelihood(vanilla, [5, 60, 7, 12], [33, 8, 9], method="chain").value
    assert abs(found - plain) > 100 * LIKELIHOOD


@pytest.mark.parametrize(("rows", "gate"), [(2, False), (1, True)], ids=["sink", "gate"])
def test_what_was_published_with_a_part_is_scored_with_it(rows, gate, tmp_path):
    """The twin reads the tensors of the file."""
    tensors = lit_gpt_tensors(extra_rows=rows, gate=gate)
    folder = write(tmp_path / "part", {"n_head": 4, "mask_token_id": 90}, tensors)
    model = aw.load(folder, device="cpu")
    assert [type(part).__name__ for part in model.parts] == ["gate" if gate else "sink_token"]
    sink_id = None if gate else 91
    twin = Slow(
        model,
        lambda ids: lit_gpt(tensors, ids, layers=2, heads=4, groups=2, sink_id=sink_id),
    )
    check_likelihoods(model, twin, [1, 2, 3, 4], [5, 6, 7])


def test_parts_of_an_edited_autoregressive_model_are_scored_too():
    model, part = load("tiny/arm"), aw.edits.sink_token(embedding="random")
    canvas = torch.tensor(PROMPT + ANSWER)
    causal = torch.ones(len(canvas), len(canvas), dtype=torch.bool).tril()
    with torch.no_grad():
        rows = slow_parts.with_sinks(
            model.network, canvas, fit_addition(part, model).embedding, visible=causal
        )
    each = torch.log_softmax(rows.double(), dim=-1)[len(PROMPT) - 1 : -1]
    expected = float(each.gather(-1, torch.tensor(ANSWER)[:, None]).sum())
    found = loglikelihoods(model, [(PROMPT, ANSWER), (PROMPT[:2], ANSWER)], edits=[part], batch=2)
    assert found[0].value == pytest.approx(expected, abs=LIKELIHOOD)


def test_a_part_goes_by_the_share_of_the_answer_that_is_there():
    """Rows of one pass differ in which parts they wear."""
    model = load("tiny/llada")
    early = aw.edits.sink_token(embedding="random", progress=(0.0, 0.2))
    plain, found, always = (
        loglikelihood(model, PROMPT, ANSWER, method="chain", edits=edits).per_token
        for edits in ((), (early,), (early.everywhere,))
    )
    assert abs(plain[0] - always[0]) > 100 * LIKELIHOOD
    assert found[0] == pytest.approx(always[0], abs=LIKELIHOOD)
    assert found[1:] == pytest.approx(plain[1:], abs=LIKELIHOOD)


@pytest.mark.parametrize("method", METHODS)
def test_an_indifferent_model_is_scored_as_such_by_every_method(method):
    model = load_afresh("tiny/llada", device="cpu")
    model.network.get_output_embeddings().weight.zero_()
    found = loglikelihood(model, PROMPT, ANSWER, method=method, passes=4096)
    even = -len(ANSWER) * math.log(model.vocab_size)
    if method in ("monte_carlo", "inverse_t"):  # how many are masked is left to chance
        low, high = found.interval(0.999)
        assert low < even < high
    else:
        assert found.value == pytest.approx(even, abs=LIKELIHOOD)
        assert found.standard_error == pytest.approx(0.0, abs=STATISTIC)


@given(st.integers(1, 5), st.integers(0, 2**32))
def test_every_set_once_is_the_mean_over_orders_of_any_table(length, seed):
    """Also where the numbers come from no model."""
    how = every_set(length)
    table = np.random.default_rng(seed).normal(-5, 3, how.masked.shape)
    value, error, each = estimate(how, table)
    row_of = {frozenset(np.flatnonzero(m)): i for i, m in enumerate(how.masked)}
    orders = list(permutations(range(length)))
    total = sum(
        table[row_of[frozenset(order[at:])], order[at]] for order in orders for at in range(length)
    )
    assert value == pytest.approx(total / len(orders), abs=STATISTIC)
    assert each.sum() == pytest.approx(value, abs=STATISTIC)
    assert error == 0.0


def sets_of(name, length):
    """(bound, l(S) by the code of S) of an answer of some length, from a model."""
    model, answer = load(name), np.random.default_rng(length).integers(300, 570, length)
    how = every_set(length)
    canvases = np.where(how.masked, model.mask_id, answer)
    canvases = np.concatenate([np.tile(PROMPT, (len(canvases), 1)), canvases], axis=1)
    rows = model.logprobs(torch.tensor(canvases))[:, len(PROMPT) :]
    logprobs = rows.gather(-1, torch.tensor(answer)[None, :, None].expand(len(rows), -1, 1))
    table = np.where(how.masked, logprobs[..., 0].double().numpy(), 0.0)
    by_code = np.zeros((2**length, length))
    by_code[how.masked @ (1 << np.arange(length))] = table
    return estimate(how, table)[0], by_code


def estimates(method, passes, by_code, seeds):
    """[seed] values, errors and whether a 95 % interval would hold each number asked."""
    length = by_code.shape[1]
    found = []
    for seed in seeds:
        how = draw_sets(method, length, passes, (seed,))
        value, error, _ = estimate(how, by_code[how.masked @ (1 << np.arange(length))])
        found.append(likelihood.Likelihood(value, error, method, passes, (), how.replicates, None))
    return found


def coverage(found, truth):
    inside = [low <= truth <= high for low, high in (one.interval() for one in found)]
    return float(np.mean(inside))


@pytest.mark.parametrize(
    ("name", "length", "passes"),
    [("tiny/llada", 3, 64), ("tiny/llada", 4, 128), ("tiny/dream", 4, 64), ("tiny/bert", 9, 64)],
)
@pytest.mark.parametrize("method", ["counts", "monte_carlo"])
def test_estimates_are_unbiased_and_their_errors_calibrated(method, name, length, passes):
    truth, by_code = sets_of(name, length)
    found = estimates(method, passes, by_code, range(1200))
    values = np.array([one.value for one in found])
    off = (values.mean() - truth) / (values.std(ddof=1) / math.sqrt(len(values)))
    assert abs(off) < SEEDED_ERRORS
    assert COVERED[0] <= coverage(found, truth) <= COVERED[1]


def test_a_whole_likelihood_is_unbiased_and_calibrated_too():
    """The same through the public call, model and all."""
    model = load("tiny/llada")
    truth = loglikelihood(model, PROMPT, ANSWER, method="exact").value
    found = [
        loglikelihood(model, PROMPT, ANSWER, method="counts", passes=64, seed=seed)
        for seed in range(1000)
    ]
    values = np.array([one.value for one in found])
    assert abs(values.mean() - truth) < SEEDED_ERRORS * values.std(ddof=1) / math.sqrt(1000)
    assert COVERED[0] <= coverage(found, truth) <= COVERED[1]


def test_the_published_weights_are_unbiased_but_their_errors_are_not_to_be_trusted():
    truth, by_code = sets_of("tiny/llada", 3)
    found = estimates("inverse_t", 128, by_code, range(2000))
    values = np.array([one.value for one in found])
    assert abs(values.mean() - truth) < SEEDED_ERRORS * values.std(ddof=1) / math.sqrt(2000)
    assert coverage(found, truth) < COVERED[0]


def test_counts_have_the_least_noise():
    _, by_code = sets_of("tiny/dream", 6)
    spread = {
        method: np.std([one.value for one in estimates(method, 64, by_code, range(300))])
        for method in DRAWN
    }
    assert 2 * spread["counts"] < spread["monte_carlo"] < spread["inverse_t"]


@given(st.sampled_from(DRAWN), st.integers(1, 12), st.integers(1, 200), st.integers(0, 2**63 - 1))
def test_draws_keep_to_the_budget_and_grow_without_changing(method, length, passes, seed):
    how = draw_sets(method, length, passes, (seed, 7))
    assert 0 < len(how.masked) <= passes
    assert len(how.masked) > passes - likelihood.STRATA
    assert np.isfinite(how.weights).all() and (how.weights > 0).all()
    if method == "counts":
        assert how.masked.any(axis=1).all()
    if passes >= 4 * likelihood.STRATA:  # replicates are as large as they ever are
        more = draw_sets(method, length, passes + 64, (seed, 7))
        assert np.array_equal(more.masked[: len(how.masked)], how.masked)


def test_one_replicate_has_no_error_and_says_so():
    found = loglikelihood(load("tiny/llada"), PROMPT, [400] * 9, passes=1, method="counts")
    assert math.isnan(found.standard_error)
    assert all(math.isnan(end) for end in found.interval())
    assert math.isfinite(found.value)


@pytest.mark.parametrize("method", ["monte_carlo", "inverse_t"])
def test_draws_that_mask_nothing_bring_nothing(method):
    """A short answer and few draws: the estimate is then 0, and no pass was needed."""
    model, seeds = load("tiny/llada"), range(12)
    pairs = [(PROMPT, ANSWER[:1]), (PROMPT, ANSWER)]
    found = [loglikelihoods(model, pairs, method=method, passes=2, seed=seed) for seed in seeds]
    empty = [one for one, _ in found if one.passes == 0]
    assert empty and len(empty) < len(found), "else the test says nothing"
    for one in empty:
        assert (one.value, one.standard_error, one.per_token) == (0.0, 0.0, (0.0,))
        assert one.greedy is None, "nothing was looked at"
    assert all(whole.passes for _, whole in found), "its mate is scored all the same"


def test_the_default_is_exact_where_the_budget_allows_it():
    model = load("tiny/llada")
    assert loglikelihood(model, PROMPT, [400] * 7).method == "exact"
    assert loglikelihood(model, PROMPT, [400] * 8).method == "counts"
    assert loglikelihood(model, PROMPT, [400] * 3, passes=6).method == "counts"
    single = loglikelihood(model, PROMPT, [400], method="counts")
    assert (single.passes, single.standard_error) == (1, 0.0), "equal rows go once"


ITEMS = [
    (PROMPT, ANSWER),
    (PROMPT[:1], [400, 401, 402, 403, 404, 405, 406, 407, 408]),
    ([333] * 11, [345]),
    (PROMPT, ANSWER[:2]),
    (PROMPT[:2], ANSWER),
]
WAYS = [
    {},
    {"method": "counts", "passes": 24},
    {"method": "monte_carlo", "passes": 24, "guidance": 1.0},
    {"method": "chain"},
    {"passes": 20, "edits": [aw.edits.hide_sinks(1, detect="same_shadow")]},
    {"passes": 20, "guidance": 0.5, "edits": [aw.edits.hide_random(1, detect="same_shadow")]},
]


@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize("name", [*MDMS, "tiny/arm"])
def test_neither_batch_nor_order_changes_a_likelihood(name, way):
    model, options = load(name), dict(WAYS[way])
    if name == "tiny/arm":
        options = {"edits": options.get("edits", ())}
    alone = [loglikelihood(model, *item, batch=1, **options) for item in ITEMS]
    for batch in (3, 64, None):
        for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
            pairs = [ITEMS[i] for i in order]
            found = loglikelihoods(model, pairs, batch=batch, **options)
            for i, one in zip(order, found, strict=True):
                loose = LIKELIHOOD * (1 + 2 * options.get("guidance", 0.0))
                assert one.value == pytest.approx(alone[i].value, abs=loose)
                assert one.per_token == pytest.approx(alone[i].per_token, abs=loose)
                assert one.passes == alone[i].passes


def test_seeds_differ_and_repeat():
    model, options = load("tiny/llada"), {"method": "counts", "passes": 16}
    first, again = (loglikelihood(model, PROMPT, [400] * 9, seed=3, **options) for _ in range(2))
    assert first == again
    assert first.value != loglikelihood(model, PROMPT, [400] * 9, seed=4, **options).value


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream"])
def test_a_hidden_key_is_one_that_nobody_may_look_at(name):
    model = load(name)
    attendable = torch.ones(len(PROMPT + ANSWER), dtype=torch.bool)
    attendable[2] = False
    expected = slow.chain(model, PROMPT, ANSWER, attendable=attendable)
    found = loglikelihood(model, PROMPT, ANSWER, method="chain", edits=[HIDE])
    assert found.value == pytest.approx(expected, abs=LIKELIHOOD)
    plain = loglikelihood(model, PROMPT, ANSWER, method="chain")
    assert abs(found.value - plain.value) > 100 * LIKELIHOOD


def test_an_edited_autoregressive_model_too():
    model = load("tiny/arm")
    canvas, attendable = PROMPT + ANSWER, torch.ones(9, dtype=torch.bool)
    attendable[2] = False
    rows = model.logprobs(canvas, attendable)[len(PROMPT) :]
    expected = sum(float(row[token]) for row, token in zip(rows, ANSWER, strict=True))
    found = loglikelihood(model, PROMPT, ANSWER, edits=[HIDE])
    assert found.value == pytest.approx(expected, abs=LIKELIHOOD)


@pytest.mark.parametrize("name", [*MDMS, "tiny/arm"])
def test_an_edit_that_changes_nothing_changes_nothing(name):
    edited = loglikelihood(load(name), PROMPT, ANSWER, edits=[aw.edits.no_op()])
    assert edited == loglikelihood(load(name), PROMPT, ANSWER)


def test_edits_go_by_the_share_of_the_answer_that_is_there():
    """With none of the answer written, progress is 0: only the first pass of the chain is edited."""
    model = load("tiny/llada")
    early = aw.edits.hide_keys([2], progress=(0.0, 0.2))
    plain, found, always = (
        loglikelihood(model, PROMPT, ANSWER, method="chain", edits=edits).per_token
        for edits in ((), (early,), (HIDE,))
    )
    assert found[0] == pytest.approx(always[0], abs=LIKELIHOOD)
    assert found[1:] == pytest.approx(plain[1:], abs=LIKELIHOOD)


def test_text_is_read_as_it_stands_after_the_prompt():
    model = load("tiny/llada")
    text = loglikelihood(model, "Lena was born in", " Oslo and the sea")
    whole = model.encode("Lena was born in Oslo and the sea")
    assert text == loglikelihood(model, whole[:4], whole[4:])
    said = [{"role": "user", "content": "Lena was born in"}]
    chat = loglikelihood(model, said, "Oslo")
    assert chat == loglikelihood(model, model.encode(said), model.encode("Oslo"))
    start = loglikelihood(model, "", "Oslo")
    assert start == loglikelihood(model, [model.specials.bos_id], model.encode("Oslo"))


@pytest.mark.parametrize("name", [*MDMS, "tiny/arm"])
def test_the_last_rows_alone_are_the_last_rows(name):
    model = load(name)
    canvas = torch.randint(10, 570, (3, 9), generator=torch.manual_seed(2))
    padding = torch.tensor([0, 2, 8])
    for before in (None, padding):
        whole = model.logits(canvas, padding=before)
        for last in (1, 4, 8, 9, 20):
            some = model.logits(canvas, padding=before, last=last)
            wanted = whole[:, -last:]
            assert some.shape == wanted.shape
            assert torch.allclose(some, wanted, atol=LIKELIHOOD, equal_nan=True)
    assert model.logits(canvas[0], last=2).shape == (2, model.vocab_size)


def test_seeds_of_many_runs_may_be_a_list():
    model, how = load("tiny/llada"), aw.decoding.RandomOrder(6, temperature=1.0)
    both = aw.run_many(model, [PROMPT, PROMPT[::-1]], how, probes=(), seed=[5, 9])
    for trace, prompt, seed in zip(both, (PROMPT, PROMPT[::-1]), (5, 9), strict=True):
        alone = aw.run(model, prompt, how, probes=(), seed=seed)
        assert np.array_equal(trace.canvas, alone.canvas)
