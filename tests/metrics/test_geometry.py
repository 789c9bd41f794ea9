"""Geometry: planted angles and norms, splits against loops over pairs, grouped keys."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorwatch as aw
import checkpoints
import tolerances
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics import geometry
from anchorwatch.metrics.null import group_queries
from anchorwatch.metrics.sink_rules import gu, ratio, topk
from anchorwatch.models.attention import observe
from checkpoints import network
from references import geometry as slow
from strategies import load
from synthetic_traces import planted, uniform

P = aw.probes
PER = ("step", "layer", "head")


def values(table, **cell):
    """quantity -> value of the rows of one cell."""
    for name, at in cell.items():
        table = table[table[name] == at]
    assert not table.quantity.duplicated().any()
    return dict(zip(table.quantity, table.value, strict=True))


@st.composite
def vectors(draw):
    causal = draw(st.booleans())
    heads, repeats = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    steps, layers, prompt = (
        draw(st.integers(1, 2)),
        draw(st.integers(1, 2)),
        draw(st.integers(2, 9)),
    )
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (steps, layers, heads * repeats, prompt + steps)
    absent = draw(st.sets(st.tuples(st.integers(0, steps - 1), st.integers(0, layers - 1))))
    made = slow.Vectors(generator, shape, kv_heads=heads, causal=causal)
    return made, prompt, absent


def sinks_of(trace, rule, step, layer, head):
    there = int((trace.canvas[step] >= 0).sum())
    shares = trace["received"].values[step, layer, head, 0, :there]
    seen = None
    if trace.manifest["model"]["visibility"] == "causal":
        asks = group_queries(trace, step, "all")[:there]
        seen = np.array([asks[j:].sum() / asks.sum() for j in range(there)])
    return np.flatnonzero(rule.labels(shares, seen)).tolist()


@settings(max_examples=15)
@given(vectors(), st.sampled_from([topk(2), ratio(1.3), gu(0.2)]), st.booleans())
def test_the_split_is_what_loops_over_pairs_say(made, rule, keys):
    vector, prompt, absent = made
    trace = vector.trace(prompt=prompt, keys=keys, absent=absent)
    table = geometry.qk_split(trace, rule, head_size=vector.size, by=PER)
    steps, layers, heads = trace["received"].shape[:3]
    for step, layer, head in np.ndindex(steps, layers, heads):
        at = {"step": step, "layer": layer, "head": head}
        ours, there = values(table, **at), int((trace.canvas[step] >= 0).sum())
        sinks = sinks_of(trace, rule, step, layer, head)
        if not keys:  # only peaks were kept: a ninth sink counts among the others
            peaks = trace["peak_key"].values[step, layer, head].tolist()
            sinks = [j for j in sinks if j in peaks]
        numbers = vector.numbers(step, layer, head, there)
        found = slow.split(numbers, sinks, vector.size**-0.5)
        if (step, layer) in absent or not found:
            assert math.isnan(ours["advantage"])
            continue
        mean = [sum(column) / len(found) for column in zip(*found, strict=True)]
        names = ("advantage", "angle", "norm", "plain_angle", "plain_norm")
        for name, exact in zip(names, mean, strict=True):
            assert ours[name] == pytest.approx(exact, abs=tolerances.SPLIT), name
        size = sum(abs(one[1]) + abs(one[2]) for one in found)
        assert ours["angle_share"] == pytest.approx(
            sum(one[1] for one in found) / size, abs=tolerances.SPLIT
        )
        assert ours["angle"] + ours["norm"] == pytest.approx(
            ours["advantage"], abs=tolerances.SPLIT
        )
        rest = mean[0] - mean[3] - mean[4]
        assert ours["plain_residual"] == pytest.approx(rest, abs=tolerances.SPLIT)


def planted_column(norm, angle, *, keys):
    """Eight steps of one head: all keys alike but key 3, longer by `norm`, turned by `angle`."""
    length = 16
    made = slow.Vectors(np.random.default_rng(0), (2, 1, 2, length), kv_heads=1, size=2)
    made.query[...] = np.array([2.0, 0.0]) * np.linspace(1, 2, length)[:, None]
    made.key[...] = np.array([math.cos(1.2), math.sin(1.2)])
    made.key[..., 3, :] = norm * np.array([math.cos(1.2 - angle), math.sin(1.2 - angle)])
    return made.trace(prompt=14, keys=keys)


@pytest.mark.parametrize("keys", [True, False])
def test_a_longer_key_is_all_norm_and_a_turned_key_all_angle(keys):
    longer = values(geometry.qk_split(planted_column(3, 0, keys=keys), topk(1), by=()))
    assert longer["advantage"] > 1
    assert longer["angle_share"] == pytest.approx(0, abs=tolerances.SPLIT)
    assert longer["norm_share"] == pytest.approx(1, abs=tolerances.SPLIT)
    assert longer["plain_angle_share"] == pytest.approx(0, abs=tolerances.SPLIT)
    turned = values(geometry.qk_split(planted_column(1, 1, keys=keys), topk(1), by=()))
    assert turned["advantage"] > 1
    assert turned["angle_share"] == pytest.approx(1, abs=tolerances.SPLIT)
    assert turned["norm_share"] == pytest.approx(0, abs=tolerances.SPLIT)
    assert turned["plain_angle_share"] == pytest.approx(1, abs=tolerances.SPLIT)


@pytest.mark.parametrize(
    ("at_sink", "elsewhere", "published"),
    [((0.546, 6.21), (0.358, 4.85), 0.63), ((0.347, 4.73), (0.018, 7.06), 1.28)],
)
def test_the_split_of_the_published_figure(at_sink, elsewhere, published):
    angle, norm = geometry.shapley(*map(np.array, (*at_sink, *elsewhere)))
    assert angle + norm == pytest.approx(math.prod(at_sink) - math.prod(elsewhere))
    assert round(float(angle / (angle + norm)), 2) == published


def test_peaks_give_what_every_key_gives_and_say_which_sinks_they_lack():
    made = slow.Vectors(np.random.default_rng(5), (3, 2, 4, 24), kv_heads=2)
    few = [geometry.qk_split(made.trace(prompt=21, keys=keys), topk(4)) for keys in (True, False)]
    np.testing.assert_allclose(few[0].value, few[1].value, atol=tolerances.SPLIT)
    assert (few[1].missing[few[1].quantity == "angle"] == 0).all()
    many = geometry.qk_split(made.trace(prompt=21), topk(10), by=())
    assert many.missing[many.quantity == "angle"].item() == 2 * 3 * 2 * 4
    whole = geometry.qk_split(made.trace(prompt=21, keys=True), topk(10), by=())
    assert whole.missing[whole.quantity == "angle"].item() == 0


def test_the_norm_is_that_of_the_key_alone():
    """A query's norm is common to all keys of its row, so |k| alone splits the same."""
    made = slow.Vectors(np.random.default_rng(6), (1, 1, 2, 12), kv_heads=2)
    trace = made.trace(prompt=11, keys=True)
    for head in range(2):
        numbers = made.numbers(0, 0, head, 12)
        sink = int(trace["received"].values[0, 0, head, 0].argmax())
        others = [j for j in range(12) if j != sink]
        k, s = numbers["key_norm"], numbers["logit"]
        other_k, other_s = np.mean([k[j] for j in others]), np.mean([s[j] for j in others])
        angle, norm = geometry.shapley(s[sink] / k[sink], k[sink], other_s / other_k, other_k)
        ours = values(geometry.qk_split(trace, topk(1), by=("head",)), head=head)
        assert ours["angle"] == pytest.approx(angle, abs=tolerances.SPLIT)
        assert ours["norm"] == pytest.approx(norm, abs=tolerances.SPLIT)


class Keep:
    """A watcher that keeps every call."""

    def __init__(self):
        self.calls = []

    def wants(self, layer):
        return True

    def on_attention(self, call):
        self.calls.append(call)


def heads_and_their_keys(call):
    """(head, queries, keys) of one sequence: head h reads the keys of group h // (H / G)."""
    repeats = call.query.shape[1] // call.key.shape[1]
    for head in range(call.query.shape[1]):
        yield head, call.query[0, head].double().numpy(), call.key[0, head // repeats].numpy()


@pytest.mark.parametrize("name", ["tiny/dream", "llama of 4 heads and 1 group"])
@pytest.mark.parametrize("keys", [True, False])
def test_heads_that_share_keys_are_split_one_by_one(tmp_path, name, keys):
    if name.startswith("tiny"):
        model = load(name)
    else:
        made = network("llama", num_key_value_heads=1, bidirectional=True, rope_theta=5e5)
        tensors = checkpoints.llada_names(checkpoints.tensors_of(made))
        config = checkpoints.llada_config(n_kv_heads=1)
        model = aw.load(checkpoints.write(tmp_path / "m", config, tensors))
        assert (model.num_heads, model.num_kv_heads) == (4, 1)
    canvas = [5, 60, 7, 9, 12, 33, 41, 8, 9, 11, model.mask_id, model.mask_id]
    probes = [P.received(dtype="float32"), P.qk_geometry(keys=keys)]
    trace = aw.run(model, canvas=canvas, probes=probes)
    kept = Keep()
    with observe(kept):
        model.logits(torch.tensor(trace.canvas[0]).long())
    table = geometry.qk_split(trace, topk(2), by=PER)
    for call in kept.calls:
        for head, query, key in heads_and_their_keys(call):
            dots = query @ key.T.astype(float)
            norms = np.linalg.norm(query, axis=1)[:, None] * np.linalg.norm(key, axis=1)
            numbers = {
                "logit": (dots.mean(0) * call.scale).tolist(),
                "norm_product": norms.mean(0).tolist(),
                "cosine": (dots / norms).mean(0).tolist(),
            }
            sinks = sinks_of(trace, topk(2), 0, call.layer, head)
            found = slow.split(numbers, sinks, call.scale)
            ours = values(table, step=0, layer=call.layer, head=head)
            exact = np.mean(found, axis=0)
            scale = max(1.0, max(map(abs, numbers["logit"])))
            assert ours["angle"] == pytest.approx(exact[1], abs=tolerances.SPLIT * scale)
            assert ours["norm"] == pytest.approx(exact[2], abs=tolerances.SPLIT * scale)


def test_averaging_vectors_over_heads_is_another_number():
    """The published mistake: heads live in unrelated bases, their mean vectors are short."""
    made = slow.Vectors(np.random.default_rng(3), (1, 1, 16, 40), kv_heads=16, size=16)
    mean_q, mean_k = made.query[0, 0].mean(0), made.key[0, 0].mean(0)
    averaged = np.outer(np.linalg.norm(mean_q, axis=1), np.linalg.norm(mean_k, axis=1)).mean()
    trace = made.trace(prompt=39)
    assert averaged < trace["norm_product"].values.mean() / 4


def test_rotary_before_reads_its_own_fields():
    made = slow.Vectors(np.random.default_rng(4), (1, 2, 2, 10), kv_heads=2)
    after = made.trace(prompt=9)
    before = made.trace(prompt=9, suffix="_before_rotary")
    one = geometry.qk_split(after, topk(2))
    two = geometry.qk_split(before, topk(2), rotary="before")
    np.testing.assert_array_equal(one.value, two.value)
    assert two.attrs["about"]["rotary"] == "before"
    with pytest.raises(TraceError, match=r"probes\.qk_geometry\(rotary='before'\)"):
        geometry.qk_split(after, topk(2), rotary="before")


def test_permuted_heads_permute_rows_and_a_prompt_twice_is_one_prompt():
    made = slow.Vectors(np.random.default_rng(8), (2, 1, 3, 12), kv_heads=3)
    turned = slow.Vectors(np.random.default_rng(8), (2, 1, 3, 12), kv_heads=3)
    order = [2, 0, 1]
    for name in ("query", "key", "value"):
        setattr(turned, name, getattr(made, name)[:, :, order])
    one = geometry.qk_split(made.trace(prompt=10), topk(2), by=("head",))
    two = geometry.qk_split(turned.trace(prompt=10), topk(2), by=("head",))
    for new, old in enumerate(order):
        here, there = two.value[two["head"] == new], one.value[one["head"] == old]
        np.testing.assert_array_equal(here, there)
    trace = made.trace(prompt=10)
    twice = geometry.qk_split([trace, trace], topk(2), by=("head",))
    np.testing.assert_array_equal(twice.value, one.value)
    assert (twice.n == one.n).all()


def test_mixing_is_the_mean_over_steps_against_unrelated_states():
    cosine = np.array([[0.1, 0.9], [0.3, np.nan]], dtype=np.float32)
    rank = np.array([[5.0, 2.0], [6.0, np.nan]], dtype=np.float32)
    dims = ("step", "layer")
    more = {"state_cosine": (dims, cosine), "effective_rank": (dims, rank)}
    for visibility, positions in (("bidirectional", 8), ("causal", 6.5)):
        maps = uniform(2, 2, 1, 8, causal=visibility == "causal")
        trace = planted(maps, prompt=6, visibility=visibility, more=more)
        table = geometry.mixing(trace).set_index(["layer", "quantity"])
        assert table.value[0, "state_cosine"] == pytest.approx(0.2)
        assert table.null[0, "state_cosine"] == 0
        assert table.value[0, "effective_rank"] == pytest.approx(5.5)
        assert table.null[0, "effective_rank"] == positions
        assert table.value[1, "effective_rank"] == 2
        assert table.missing[1, "effective_rank"] == 1


def test_what_cannot_be_asked():
    trace = planted(uniform(1, 1, 1, 6), prompt=5)
    with pytest.raises(SpecError, match="expected 'after' or 'before'"):
        geometry.qk_split(trace, rotary="sideways")
    with pytest.raises(SpecError, match="head_size=0 is not a whole number of at least 1"):
        geometry.qk_split(trace, head_size=0)
    with pytest.raises(TraceError, match=r"aw\.replay\(model, trace, probes=\[aw\.probes\.qk_geo"):
        geometry.qk_split(trace)
    with pytest.raises(TraceError, match=r"probes\.mixing\(\)"):
        geometry.mixing(trace)
    with pytest.raises(SpecError, match="it can be split by trace, layer, step, head, progress"):
        made = slow.Vectors(np.random.default_rng(1), (1, 1, 1, 6), kv_heads=1)
        geometry.qk_split(made.trace(prompt=5), by=("channel",))
