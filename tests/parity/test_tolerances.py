"""Every tolerance is ten times under what mistakes do, on the kinds of values it is used for.

Each table names mistakes and gives what they make of a number; the tolerances it is held against are
those of tests that would see them. Mistakes in seeded draws cannot be ten times over a standard error
without ten thousands of runs: those are held against twice the tolerance.
"""

import math
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

import tolerances as t
from anchorwatch.models import tiny
from anchorwatch.models.attention import observe
from checkpoints import CAUSAL, ENCODERS, GOLDEN, MASK, lit_gpt_tensors, network
from references import attention as dense
from references.bounds import over_mask_sets
from references.networks import lit_gpt
from strategies import load

TIMES = 10
IDS = torch.arange(300, 340)
NAMES = ("tiny/llada", "tiny/dream", "tiny/bert", "tiny/arm")


class Calls(list):
    """A watcher that keeps every call."""

    def wants(self, layer):
        return True

    def on_attention(self, call):
        self.append(call)


@cache
def calls(name):
    kept = Calls()
    with observe(kept):
        load(name).logits(IDS)
    return kept


def gap(one, two):
    return float((torch.as_tensor(one) - torch.as_tensor(two)).nan_to_num().abs().max())


def softmax(call, *, scale=1.0, hidden=(), causal=False, extra=False, dim=-1, dtype=torch.float64):
    """The dense map of a call in float64, or one with a mistake."""
    query, key = call.query[0].to(dtype).double(), call.key[0].to(dtype).double()
    scores = query @ key.repeat_interleave(len(query) // len(key), 0).mT * call.scale * scale
    scores[..., list(hidden)] = -torch.inf
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -torch.inf)
    if extra:  # a key that gives nothing, as off-by-one attention has
        scores = torch.cat([torch.zeros_like(scores[..., :1]), scores], dim=-1)
    return scores.softmax(dim)[..., int(extra) :]


MAPS = {
    "scaled by 1/d, not its root": {"scale": 1 / 4},
    "not scaled": {"scale": 4.0},
    "a key left out": {"hidden": (7,)},
    "a causal mask": {"causal": True},
    "a key too many": {"extra": True},
    "normalised over queries": {"dim": 1},
    "queries and keys in bfloat16": {"dtype": torch.bfloat16},
}


@pytest.mark.parametrize("mistake", MAPS)
@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream", "tiny/bert"])
def test_mistakes_in_attention_are_far_over_its_tolerances(name, mistake):
    shares, received, entropy = 0.0, 0.0, 0.0
    for call in calls(name):
        exact, wrong = softmax(call), softmax(call, **MAPS[mistake])
        shares = max(shares, gap(exact, wrong))
        received = max(received, gap(exact.mean(1), wrong.mean(1)))
        entropy = max(entropy, gap(dense.entropy(exact), dense.entropy(wrong)))
    assert shares > TIMES * max(t.SHARE, t.PADDED, t.GOLDEN_ATTENTION, t.EAGER_ATTENTION)
    assert entropy > TIMES * t.ENTROPY
    if mistake != "a key too many":  # a logit of 0 is small beside these: single rows show it
        assert received > TIMES * max(t.SHARE, t.PADDED)
        assert entropy > TIMES * t.PADDED_ENTROPY


def test_mistakes_in_sums_of_shares_are_far_over_theirs():
    """What is compared with sums of the same maps."""
    maps = torch.stack([softmax(call) for call in calls("tiny/llada")])
    first = torch.arange(len(IDS)) < 20
    received, entropy = maps.mean(2), dense.entropy(maps)
    rolled = dense.rollout(maps, torch.stack([first, ~first], 1))
    sums = {
        "a query left out": (maps[:, :, 1:].mean(2), received),
        "one row further": (maps.roll(1, 2)[:, :, :20].mean(2), maps[:, :, :20].mean(2)),
        "one key further": (maps.roll(1, 3).mean(2), received),
        "a group one longer": (maps[..., :21].sum(-1), maps[..., :20].sum(-1)),
        "the diagonal beside": (maps.diagonal(1, 2, 3), maps.diagonal(0, 2, 3)[..., 1:]),
    }
    rollouts = {
        "a sum over heads": dense.rollout(maps * 4, torch.stack([first, ~first], 1)),
        "no residual": dense.rollout(2 * maps - torch.eye(40), torch.stack([first, ~first], 1)),
        "layers in reverse": dense.rollout(maps.flip(0), torch.stack([first, ~first], 1)),
    }
    for mistake, (wrong, exact) in sums.items():
        assert gap(wrong, exact) > TIMES * t.SUMMED, mistake
    for mistake, wrong in rollouts.items():
        assert gap(wrong, rolled) > TIMES * t.ROLLED, mistake
    assert gap(entropy / math.log(2), entropy) > TIMES * t.ENTROPY, "bits"
    assert gap(entropy.mean(-1), entropy[..., 1:].mean(-1)) > TIMES * t.ENTROPY, "a row left out"


@pytest.mark.parametrize(("groups", "sharpness"), [(1, 0.3), (2, 2.0)])
def test_mistakes_in_random_calls_are_far_over_what_their_sizes_allow(groups, sharpness):
    from anchorwatch.models.attention import Call

    torch.manual_seed(0)
    query = sharpness * torch.randn(1, 4, 30, 16)
    key = torch.randn(1, groups, 30, 16)
    call = Call(0, query, key, key, 0.25, None, False, None, None)
    exact = softmax(call)
    for mistake, options in MAPS.items():
        wrong = softmax(call, **options)
        assert gap(wrong, exact) > TIMES * t.of_call(call), mistake
        bound = t.of_entropy(t.of_call(call), 30)
        if mistake not in ("a key left out",):
            assert gap(dense.entropy(wrong), dense.entropy(exact)) > TIMES * bound, mistake


def test_mistakes_in_geometry_and_norms_are_far_over_theirs():
    call = calls("tiny/llada")[1]
    query, key = call.query[0].double(), call.key[0].double()
    exact = dense.geometry(query, key, call.scale)
    wrong = {
        "a query left out": dense.geometry(query[:, 1:], key, call.scale),
        "a channel left out": dense.geometry(query[..., 1:], key[..., 1:], call.scale),
        "the next key": dense.geometry(query, key.roll(1, 1), call.scale),
        "means before products": {
            "cosine": (query.mean(1, keepdim=True) @ key.mT)[:, 0]
            / (query.mean(1, keepdim=True).norm(dim=-1) * key.norm(dim=-1)),
            "norm_product": query.mean(1).norm(dim=-1)[:, None] * key.norm(dim=-1),
        },
    }
    for mistake, fields in wrong.items():
        for field, values in fields.items():
            scale = max(1.0, float(exact[field].abs().max()))
            if (mistake, field) != ("a channel left out", "logit"):
                assert gap(values, exact[field]) / scale > TIMES * t.GEOMETRY, (mistake, field)
    norms = key.norm(dim=-1)
    for mistake, values in {
        "a channel left out": key[..., 1:].norm(dim=-1),
        "the next key": norms.roll(1, 1),
        "in bfloat16": key.bfloat16().double().norm(dim=-1),
    }.items():
        assert gap(values / norms, 1) > TIMES * max(t.NORM, t.CARRIED), mistake
    with torch.no_grad():
        states = load("tiny/llada").network(IDS[None], output_hidden_states=True)
    states = states.hidden_states[1][0].double()
    rank = dense.effective_rank(states)
    for mistake, wrong_states in {
        "centred": states - states.mean(0),
        "a row left out": states[1:],
        "rows normalised": states / states.norm(dim=-1, keepdim=True),
    }.items():
        assert abs(dense.effective_rank(wrong_states) / rank - 1) > TIMES * t.SPECTRUM, mistake


def changed(name, mistake):
    """An embedded network with a mistake in it."""
    model = tiny.build(name, torch.float32)
    layers = model.network.model.layers
    with torch.no_grad():
        if mistake == "rotary base 1e4":
            model.network.model.rotary_emb.inv_freq.copy_(1e4 ** (-torch.arange(8) / 8))
        elif mistake == "heads scaled by 1/d":
            layers[-1].self_attn.scaling /= 4
        elif mistake == "a head left out":
            layers[-1].self_attn.o_proj.weight[:, :16] = 0
        elif mistake == "bfloat16":
            model.network.bfloat16()
        elif mistake == "a layer left out":
            layers[-1].mlp.down_proj.weight.zero_()
    return model


MISTAKES = (
    "rotary base 1e4",
    "heads scaled by 1/d",
    "a head left out",
    "a layer left out",
    "bfloat16",
)


@pytest.mark.parametrize("mistake", [*MISTAKES, "one row further", "a key hidden", "causal"])
@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream"])
def test_mistakes_in_networks_are_far_over_their_tolerances(name, mistake):
    model, n = load(name), len(IDS)
    exact = model.logits(IDS).float()
    if mistake in MISTAKES:
        wrong = changed(name, mistake).logits(IDS).float()
    elif mistake == "one row further":
        wrong = exact.roll(1, 0)
    elif mistake == "a key hidden":
        wrong = model.logits(IDS, torch.arange(n) != 3)
    else:
        wrong = model.logits(IDS, torch.ones(n, n, dtype=torch.bool).tril())
    assert gap(exact, wrong) / float(exact.abs().max()) > TIMES * t.IDENTITY
    assert gap(exact, wrong) > TIMES * max(t.GOLDEN_LOGITS, t.SAME_MATHS)
    pick = exact.argmax(-1, keepdim=True)
    logprobs = (rows.log_softmax(-1).gather(-1, pick) for rows in (exact, wrong))
    assert gap(*logprobs) > TIMES * max(t.LOGPROB, t.LIKELIHOOD)
    if mistake not in ("bfloat16", "a key hidden"):
        off = exact.log_softmax(-1).gather(-1, pick) - wrong.log_softmax(-1).gather(-1, pick)
        assert float(off.pow(2).mean().sqrt()) > 2 * t.BFLOAT16_LOGPROB
    kl = (exact.softmax(-1) * (exact.log_softmax(-1) - wrong.log_softmax(-1))).sum(-1).mean()
    assert float(kl) > TIMES * t.COMPARED


def test_mistakes_in_small_networks_are_far_over_same_maths():
    """A loss, logits and what an update changes, two layers of width 32."""
    ids = torch.tensor([[5, 60, 7, MASK, MASK, 12, 33, MASK, 41, 8, 9]])
    with torch.no_grad():
        exact = network("llama", bidirectional=True)(ids).logits
        wrong = {
            "causal": network("llama")(ids).logits,
            "rotary base 5e5": network("llama", bidirectional=True, rope_theta=5e5)(ids).logits,
            "bfloat16": network("llama", bidirectional=True).bfloat16()(ids).logits.float(),
            "one row further": exact.roll(1, 1),
        }
    for mistake, rows in wrong.items():
        assert gap(rows, exact) > TIMES * t.SAME_MATHS, mistake
        losses = [-one.log_softmax(-1)[0, :, 7].mean() for one in (rows, exact)]
        assert gap(*losses) > TIMES * t.SHARED_LOSS or mistake == "one row further", mistake


@pytest.mark.parametrize(("layers", "width", "heads"), [(6, 256, 4), (8, 384, 6)])
def test_mistakes_in_deeper_networks_are_far_over_what_their_sizes_allow(layers, width, heads):
    sizes = {"layers": layers, "heads": heads, "groups": heads}
    tensors = lit_gpt_tensors(extra_rows=1, gate=False, outputs=40, width=width, **sizes)
    ids = torch.tensor([3, 40, 5])
    exact = lit_gpt(tensors, ids, **sizes)
    allowed = t.of_logits(layers=layers, width=width, largest=float(exact.abs().max()))
    half = {"layers": layers, "heads": heads // 2, "groups": heads // 2}
    for mistake, wrong in {
        "half the heads": lit_gpt(tensors, ids, **half),
        "another rotary base": lit_gpt(tensors, ids, **sizes, base=5e5),
        "another epsilon": lit_gpt(tensors, ids, **sizes, eps=1e-2),
        "a layer left out": lit_gpt(tensors, ids, **sizes | {"layers": layers - 1}),
        "bfloat16 weights": lit_gpt({k: v.bfloat16().float() for k, v in tensors.items()}, ids, **sizes),
    }.items():  # fmt: skip
        assert gap(wrong, exact) > TIMES * allowed, mistake


def test_mistakes_in_float64_are_far_over_its_tolerances():
    """The same mathematics with anything of it in float32."""
    torch.manual_seed(0)
    model = tiny.build("tiny/llada", torch.float64)
    exact, single = model.logits(IDS), load("tiny/llada").logits(IDS)
    assert gap(exact, single) / float(exact.abs().max()) > TIMES * t.IDENTITY_64
    values = np.random.default_rng(0).normal(3, 2, 40)
    wrong = {
        "in float32": values.astype(np.float32).mean(dtype=np.float32) - values.mean(),
        "divided by n": values.std() - values.std(ddof=1),
        "normal for t": scipy_stats.norm.ppf(0.975) - scipy_stats.t.ppf(0.975, 39),
        "a value left out": values[1:].mean() - values.mean(),
    }
    for mistake, off in wrong.items():
        assert abs(off) > TIMES * max(t.STATISTIC, t.EXACT), mistake


def test_mistakes_in_metrics_are_far_over_their_tolerances():
    maps = np.random.default_rng(0).dirichlet(np.full(24, 0.3), size=(4, 24))
    shares, null = maps.mean(1), 1 / 24
    top = np.sort(shares)[:, -1]
    rest = shares / (1 - top[:, None])
    metrics = {
        "a null of one key more": top / null - top / (1 / 25),
        "a sink left out": np.sort(shares)[:, -3:].sum(1) - np.sort(shares)[:, -2:].sum(1),
        "a query left out": maps[:, 1:].max(2).mean(1) - maps.max(2).mean(1),
        "a median for a mean": np.median(maps, 1).max(1) - top,
    }
    for mistake, off in metrics.items():
        assert np.abs(off).min() > TIMES * max(t.METRIC, t.SPLIT), mistake
    assert np.abs(rest - shares).max() > TIMES * t.REST, "the sink not taken out"
    logs = np.log(shares)
    scores = [1 - logs.var(1) / (logs - m).__pow__(2).mean(1) for m in (0, logs.mean(1)[:, None])]
    assert np.abs(scores[0] - scores[1]).min() > TIMES * t.SCORE, "variance about 0"
    assert abs(math.log(64) - math.log(63)) / math.log(64) > TIMES * t.INDIFFERENT, "a word less"
    assert TIMES * t.PLANTED_SINK < 0.98 - 1 / 12, "attention stays even"
    assert abs(0.5 * math.log(1.4 / 0.6) - 0.4) > TIMES * t.PUBLISHED, "r for Fisher's z"


def test_mistakes_in_bounds_are_far_over_enumerated():
    costs = np.random.default_rng(0).uniform(1, 3, (16, 4))

    def cost(masked, at):
        return costs[sum(1 << i for i in masked), at]

    exact = over_mask_sets(cost, range(4))
    plain = sum(cost(frozenset(range(4)), at) for at in range(4))
    assert abs(exact - plain) > TIMES * t.ENUMERATED, "one pass instead of all sets"
    assert abs(exact - over_mask_sets(lambda m, at: cost(m, (at + 1) % 4), range(4))) > (
        TIMES * t.ENUMERATED
    )


def test_mistakes_in_seeded_draws_are_twice_over_their_tolerances():
    """What a mistake makes of coverage, of a width and of a mean, in closed form."""

    def held(wide):
        return 2 * scipy_stats.norm.cdf(1.96 * wide) - 1

    room = 0.95 - t.COVERED[0]
    assert t.COVERED[1] < 1
    for mistake, wide in {"90 % quantiles": 1.645 / 1.96, "groups not paired": 0.5**0.5}.items():
        assert 0.95 - held(wide) > 2 * room, mistake
        assert 1 - wide > 2 * t.DRAWN, mistake
        assert 0.8 - scipy_stats.norm.cdf(2.8 * wide - 1.96) > 2 * t.of_trials(2_000, 0.8), mistake
    assert 2 * t.SHUFFLED < 1 - 7 / 8, "a mean over one of eight too few"
    assert t.of_draws(12_288, 2**0.5) * 2 < 0.2, "fan-in for fan-in and fan-out: a variance of 6/5"


def test_the_sizes_the_table_says_are_those_of_the_networks(tmp_path):
    import anchorwatch as aw

    def bounds(model, ids):
        kept = Calls()
        with observe(kept):
            rows = model.logits(ids)
        longest = max(float(c.query.norm(dim=-1).max() * c.key.norm(dim=-1).max()) * c.scale for c in kept)  # fmt: skip
        sizes = len(kept), kept[0].query.shape[-1]
        return longest, float(rows.nan_to_num().abs().max()), sizes

    for name in NAMES:
        longest, largest, sizes = bounds(load(name), IDS)
        assert longest <= t.TINY_HEADS["logit"] and largest <= t.TINY_LOGIT, name
        assert sizes == (t.TINY["layers"], t.TINY_HEADS["size"])
        assert load(name).network.config.hidden_size == t.TINY["width"]
    for name in ("llada", "dream"):
        longest, largest, sizes = bounds(aw.load(GOLDEN / name), torch.arange(20, 60))
        assert longest <= t.GOLDEN_HEADS["logit"] and largest <= 8.0, name
        assert sizes == (t.TINY["layers"], t.GOLDEN_HEADS["size"])
    ids = torch.tensor([5, 60, 7, 12, 33, 41, 8, 9])
    for kind, options in (ENCODERS | CAUSAL).items():
        network(kind, masked=kind in ENCODERS, **options).save_pretrained(tmp_path / kind)
        mask = {"mask_id": MASK} if kind in ENCODERS else {}
        longest, _, sizes = bounds(aw.load(tmp_path / kind, **mask), ids)
        assert longest <= t.SMALL_HEADS["logit"], kind
        assert sizes == (t.SMALL["layers"], t.SMALL_HEADS["size"])
