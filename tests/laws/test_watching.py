"""Watching: it changes nothing, it can be done afterwards, and it tells the truth about hiding."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorwatch as aw
import tolerances
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.models import tiny
from anchorwatch.models.attention import observe
from strategies import denoisers, denoisings, left_to_right, load, prompts, seeds

P = aw.probes


def identical(one, two):
    """Every field both traces hold is equal, bit for bit."""
    assert set(one.fields) == set(two.fields)
    for name in one.fields:
        np.testing.assert_array_equal(one[name].values, two[name].values, err_msg=name)


@given(denoisers, prompts, denoisings, seeds)
def test_watching_changes_nothing(model, prompt, decoding, seed):
    plain = aw.run(model, prompt, decoding, seed=seed, probes=())
    watched = aw.run(model, prompt, decoding, seed=seed)
    np.testing.assert_array_equal(plain.canvas, watched.canvas)
    np.testing.assert_array_equal(plain.logprob, watched.logprob)


@given(prompts, left_to_right, seeds)
def test_watching_changes_nothing_left_to_right(prompt, decoding, seed):
    model = load("tiny/arm")
    plain = aw.run(model, prompt, decoding, seed=seed, probes=())
    watched = aw.run(model, prompt, decoding, seed=seed)
    np.testing.assert_array_equal(plain.canvas, watched.canvas)
    np.testing.assert_array_equal(plain.logprob, watched.logprob)


@given(denoisers, prompts, denoisings, seeds)
def test_a_replay_equals_having_measured_live(model, prompt, decoding, seed):
    live = aw.run(model, prompt, decoding, seed=seed)
    identical(live, aw.replay(model, aw.run(model, prompt, decoding, seed=seed, probes=())))


@given(prompts, left_to_right, seeds)
def test_a_replay_repeats_prefill_and_cache(prompt, decoding, seed):
    model = load("tiny/arm")
    live = aw.run(model, prompt, decoding, seed=seed)
    identical(live, aw.replay(model, aw.run(model, prompt, decoding, seed=seed, probes=())))


@given(denoisers, prompts, denoisings, seeds, st.data())
def test_a_fork_that_changes_nothing_is_the_run(model, prompt, decoding, seed, data):
    trace = aw.run(model, prompt, decoding, seed=seed, probes=())
    step = data.draw(st.integers(0, trace.num_steps - 1))
    forked = aw.fork(model, trace, step, probes=())
    identical(trace, forked)
    assert not aw.diff(trace, forked)


@given(prompts, left_to_right, seeds, st.data())
def test_a_fork_of_autoregression_is_the_run(prompt, decoding, seed, data):
    model = load("tiny/arm")
    trace = aw.run(model, prompt, decoding, seed=seed, probes=())
    step = data.draw(st.integers(0, trace.num_steps - 1))
    identical(trace, aw.fork(model, trace, step, probes=()))


@settings(max_examples=10)
@given(prompts, st.booleans())
def test_cached_rows_add_up_to_what_reading_again_gives(prompt, stop):
    model = load("tiny/arm")
    cached = aw.run(model, prompt, aw.decoding.LeftToRight(6, stop=stop))
    again = aw.run(model, prompt, aw.decoding.LeftToRight(6, stop=stop, cache=False))
    for name in ("received", "entropy", "diagonal", "peak_received", "commit_top_mass"):
        one, two = cached[name].values, again[name].values
        np.testing.assert_array_equal(np.isnan(one), np.isnan(two), err_msg=name)
        close = tolerances.PADDED_ENTROPY if name == "entropy" else tolerances.PADDED
        assert np.nanmax(np.abs(one - two)) <= close, name
    assert np.isnan(cached["received"].sel(group="masked")).all()


@settings(max_examples=10)
@given(denoisers, st.lists(prompts, min_size=2, max_size=3), seeds)
def test_fields_of_a_padded_batch_are_those_of_single_runs(model, many, seed):
    decoding = aw.decoding.LowConfidence(4, 2)
    for i, trace in enumerate(aw.run_many(model, many, decoding, seed=seed % 100, batch=3)):
        alone = aw.run(model, many[i], decoding, seed=seed % 100 + i)
        if trace.digest() != alone.digest():
            assert trace["narrow"].sum() + alone["narrow"].sum() > 0
            continue
        for name in ("received", "entropy", "diagonal", "value_norm"):
            one, two = trace[name].values, alone[name].values
            np.testing.assert_array_equal(np.isnan(one), np.isnan(two), err_msg=name)
            close = tolerances.PADDED_ENTROPY if name == "entropy" else tolerances.PADDED
            assert np.nanmax(np.abs(one - two)) <= close, name


def test_steps_and_layers_that_were_not_asked_for_are_absent():
    model = load("tiny/llada")
    whole = aw.run(model, "the anchor", aw.decoding.LowConfidence(4))
    probes = [P.received(steps=[1], layers=[0, 2]), P.entropy(steps=[1], layers=[0, 2])]
    part = aw.run(model, "the anchor", aw.decoding.LowConfidence(4), probes=probes)
    assert np.isnan(part["received"].values[[0, 2, 3]]).all()
    assert np.isnan(part["received"].values[1, 1]).all()
    np.testing.assert_array_equal(part["received"].values[1, 2], whole["received"].values[1, 2])
    np.testing.assert_array_equal(part["entropy"].values[1, 0], whole["entropy"].values[1, 0])


class Column:
    """A watcher that keeps the received mass of each call."""

    def __init__(self):
        self.sums = []
        self.live = []

    def wants(self, layer):
        return True

    def on_attention(self, call):
        from anchorwatch.probes.reduce import StatRequest, reduce_attention

        found = reduce_attention(
            call, StatRequest(weights=torch.ones(*call.query.shape[:1], 1, call.query.shape[2]))
        )
        self.sums.append(found.sums[:, :, 0])
        self.live.append(found.live)


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream", "tiny/bert", "tiny/arm"])
def test_a_hidden_key_receives_nothing(name):
    """Sums over keys cannot see an axis mix-up; emptying a column can."""
    model = load(name)
    ids = torch.arange(300, 312)
    attendable = torch.ones(12, dtype=torch.bool)
    attendable[5] = False
    seen = Column()
    with observe(seen):
        model.logits(ids, attendable)
    for sums in seen.sums:
        assert (sums[..., 5] == 0).all()
        assert (sums[..., 4] > 0).all()


def test_a_row_that_may_look_at_nothing_is_counted_and_absent():
    model = load("tiny/llada")
    ids = torch.arange(300, 312)
    pairs = torch.ones(12, 12, dtype=torch.bool)
    pairs[7] = False
    seen = Column()
    with observe(seen):
        model.logits(ids, pairs)
    for live in seen.live:
        assert (~live[0]).nonzero().flatten().tolist() == [7]


def test_permuting_heads_permutes_fields():
    one, two = tiny.build("tiny/llada", torch.float32), tiny.build("tiny/llada", torch.float32)
    order = [2, 0, 3, 1]
    size = one.network.config.hidden_size // one.num_heads
    rows = torch.cat([torch.arange(h * size, (h + 1) * size) for h in order])
    with torch.no_grad():
        for layer in two.network.model.layers:
            attention = layer.self_attn
            for name in ("q_proj", "k_proj", "v_proj"):
                weight = getattr(attention, name).weight
                weight.copy_(weight[rows].clone())
            attention.o_proj.weight.copy_(attention.o_proj.weight[:, rows].clone())
    decoding = aw.decoding.LowConfidence(4, 2)
    a, b = aw.run(one, "the anchor drifts", decoding), aw.run(two, "the anchor drifts", decoding)
    for name in ("received", "entropy", "diagonal", "value_norm", "cosine"):
        gap = np.nanmax(np.abs(a[name].values[:, :, order] - b[name].values))
        assert gap <= (tolerances.PADDED_ENTROPY if name == "entropy" else tolerances.PADDED), name


def test_both_branches_of_guidance_are_kept_and_labelled():
    model = load("tiny/llada")
    trace = aw.run(model, "the anchor", aw.decoding.LowConfidence(4, guidance=2.0))
    share = trace["blind_received"].sel(group="all").sum("key")
    np.testing.assert_allclose(share.values, 1, atol=tolerances.SHARE)
    assert np.nanmax(np.abs(trace["blind_received"] - trace["received"])) > 10 * tolerances.PADDED


def test_a_replay_refuses_another_model():
    trace = aw.run(load("tiny/llada"), "the anchor", aw.decoding.LowConfidence(4), probes=())
    with pytest.raises(TraceError, match=r"tiny/dream is not the model .*: it was tiny/llada"):
        aw.replay(load("tiny/dream"), trace)
    other = tiny.build("tiny/llada", torch.float32)
    _ = other.digest
    with torch.no_grad():  # the digest was taken: the log-probabilities must tell
        other.network.lm_head.weight.mul_(2)
    with pytest.raises(TraceError, match=r"at step 0 this model gives .* other log-probabilities"):
        aw.replay(other, trace)


def test_steps_that_are_not_there():
    model = load("tiny/llada")
    trace = aw.run(model, "the anchor", aw.decoding.LowConfidence(4), probes=())
    with pytest.raises(SpecError, match="step 9 is not in the trace: it has 0 to 3"):
        aw.replay(model, trace, steps=[9])
    with pytest.raises(SpecError, match="step 4 is not in the trace"):
        aw.fork(model, trace, 4)


def test_a_plan_says_what_a_run_will_keep():
    model = load("tiny/llada")
    decoding = aw.decoding.LowConfidence(8, 4)
    plan = aw.plan(model, "the anchor", decoding)
    trace = aw.run(model, "the anchor", decoding)
    assert plan.forward_passes == trace.num_steps
    for field in plan.fields:
        assert trace[field.name].shape == field.sizes
        assert trace[field.name].dims == field.dims
        assert field.num_bytes == trace[field.name].astype(field.dtype).nbytes
    with pytest.raises(SpecError, match=r"pattern alone takes .*; try name fewer layers"):
        aw.run(model, "the anchor", decoding, probes=[P.pattern()], budget=1000)


def test_the_default_probes_of_a_large_run_stay_under_a_gigabyte():
    from anchorwatch.generation.plan import Plan, fields_of
    from anchorwatch.probes.spec import DEFAULT
    from anchorwatch.trace.schema import RunShape

    shape = RunShape(steps=128, layers=32, heads=32, kv_heads=32, positions=1024)
    plan = Plan(128, tuple(fields_of(DEFAULT, shape).values()))
    assert plan.disk_bytes <= 1_000_000_000


@given(st.sampled_from([*P.DEFAULT, P.pattern(layers=[1], heads=[0]), P.massive(2), P.distance()]))
def test_a_manifest_gives_the_probe_back(probe):
    import json

    assert P.from_dict(json.loads(json.dumps(probe.as_dict()))) == probe


def test_runs_that_part_say_where():
    model = load("tiny/llada")
    one = aw.run(model, "the anchor", aw.decoding.LowConfidence(6, temperature=1.0), seed=1)
    two = aw.fork(model, one, 2, seed=5)
    parted = aw.diff(one, two)
    assert parted.step >= 2
    frame = parted.step + 1
    np.testing.assert_array_equal(one.canvas[:frame], two.canvas[:frame])
    assert one.canvas[frame, parted.position] != two.canvas[frame, parted.position]
    assert "the runs part at step" in str(parted)
    with pytest.raises(TraceError, match="compare runs of the same prompt and length"):
        aw.diff(one, aw.run(model, "the anchor drifts", aw.decoding.LowConfidence(6)))
