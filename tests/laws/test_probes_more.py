"""Probes side by side, in part, with a cache, a window, a sink: each gives what it gives alone."""

import numpy as np
import pytest
import torch

import anchorwatch as aw
import checkpoints
import tolerances
from anchorwatch.errors import AnchorwatchWarning, SpecError, TraceError
from anchorwatch.generation import loop
from anchorwatch.generation.plan import fields_of
from anchorwatch.probes.accumulate import TraceBuffer, View
from anchorwatch.probes.recorder import Recorder
from anchorwatch.trace.regions import Regions
from anchorwatch.trace.schema import RunShape
from checkpoints import lit_gpt_tensors, network
from strategies import load

P, D = aw.probes, aw.decoding
PROMPT = "the anchor drifts"
REGIONS = {"a": (0, 4), "b": (4, 17)}
FOUR = D.LowConfidence(4)


def equal(one, two, *names):
    for name in names:
        np.testing.assert_array_equal(one[name].values, two[name].values, err_msg=name)


def near(one, two):
    np.testing.assert_array_equal(np.isnan(one), np.isnan(two))
    scale = max(1.0, float(np.nanmax(np.abs(two))))
    assert np.nanmax(np.abs(one - two)) / scale <= tolerances.PADDED


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream"])
def test_both_kinds_of_top_keys_give_what_each_gives_alone(name):
    rows, commits = P.top_keys(4, every_row=True), P.top_keys(4)
    for order in ([rows, commits], [commits, rows]):
        both = aw.run(load(name), PROMPT, FOUR, probes=order)
        alone = aw.run(load(name), PROMPT, FOUR, probes=[rows])
        equal(both, alone, "row_top_key", "row_top_mass")
        alone = aw.run(load(name), PROMPT, FOUR, probes=[commits])
        equal(both, alone, "commit_top_key", "commit_top_mass")


def test_top_keys_of_some_steps_leave_other_commits_absent():
    model = load("tiny/llada")
    whole = aw.run(model, PROMPT, FOUR, probes=[P.top_keys(4)])
    part = aw.run(model, PROMPT, FOUR, probes=[P.top_keys(4, steps=[1]), P.entropy()])
    now = whole.committed_at == 1
    for name, absent in (("commit_top_key", -1), ("commit_top_mass", np.nan)):
        held = part[name].values
        np.testing.assert_array_equal(held[:, :, now], whole[name].values[:, :, now])
        np.testing.assert_array_equal(held[:, :, ~now], np.full_like(held[:, :, ~now], absent))


def test_a_rollout_of_one_layer_begins_with_the_first():
    model = load("tiny/llada")
    whole = aw.run(model, PROMPT, FOUR, regions=REGIONS, probes=[P.region_rollout()])
    part = aw.run(model, PROMPT, FOUR, regions=REGIONS, probes=[P.region_rollout(layers=[2])])
    one, two = part["region_rollout"].values, whole["region_rollout"].values
    np.testing.assert_array_equal(one[:, 2], two[:, 2])
    assert np.isnan(one[:, :2]).all()


def test_a_rollout_may_hide_the_first_key_and_what_is_not_written_yet():
    """Causal row 0 has no other key than 0: it keeps what it has, and shares still sum to one."""
    model = load("tiny/arm")
    first = len(model.encode(PROMPT))
    probes = [P.region_rollout(hidden=(0, first + 1))]
    decoding = D.LeftToRight(3, cache=False, stop=False)
    trace = aw.run(model, PROMPT, decoding, regions={"all of it": (0, 17)}, probes=probes)
    total = trace["region_rollout"].values.sum(-1)
    np.testing.assert_allclose(total[:, :, 0], 1, atol=tolerances.SHARE)
    assert np.isnan(total[0, :, 1]).all(), "nothing of the answer is there at the first step"
    np.testing.assert_allclose(total[1:, :, 1], 1, atol=tolerances.SHARE)


@pytest.mark.parametrize(
    "probes",
    [
        [P.received(groups=("all",)), P.received(groups=("masked",))],
        [P.pattern(layers=[0]), P.pattern(layers=[1])],
        [P.pattern(heads=[0]), P.pattern(heads=[1])],
        [P.region_rollout(), P.region_rollout(hidden=(1,))],
        [P.top_keys(4), P.top_keys(3, every_row=True)],
    ],
)
def test_probes_that_would_fill_one_array_in_two_ways_are_refused(probes):
    kind = type(probes[0]).__name__
    with pytest.raises(SpecError, match=f"two probes give {kind} differently"):
        aw.plan(load("tiny/llada"), PROMPT, FOUR, regions=REGIONS, probes=probes)


@pytest.mark.parametrize(
    ("probe", "says"),
    [
        (P.received(layers=[3]), r"received\(layers=\[3\]\) is not there: this run has 0 to 2"),
        (P.pattern(heads=[4]), r"this run has 0 to 3"),
        (P.region_rollout(hidden=(99,)), r"region_rollout\(hidden=\[99\]\) is not there"),
    ],
)
def test_places_that_a_run_does_not_have_are_refused(probe, says):
    with pytest.raises(SpecError, match=says):
        aw.run(load("tiny/llada"), PROMPT, FOUR, regions=REGIONS, probes=[probe])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: P.received(layers=[-1]), "-1 is not a whole number of at least 0"),
        (lambda: P.entropy(steps=["0"]), "'0' is not a whole number"),
        (lambda: P.pattern(heads=[1, 1]), "names one twice"),
        (lambda: P.massive(0), "k=0 is not a whole number"),
        (lambda: P.received(dtype="int32"), "expected float16 or float32"),
    ],
)
def test_options_that_would_measure_nothing_are_refused(make, says):
    with pytest.raises(SpecError, match=says):
        make()


def test_counts_may_be_numpy_s_and_larger_than_what_there_is():
    trace = aw.run(load("tiny/llada"), PROMPT, FOUR, probes=[P.massive(np.int64(1000))])
    assert trace.manifest["probes"][0]["k"] == 1000
    there = trace.canvas.shape[1] * 64
    assert (trace["massive_position"].values[..., there:] == -1).all()
    assert np.isnan(trace["massive_value"].values[..., there:]).all()
    assert not np.isnan(trace["massive_value"].values[..., :there]).any()


@pytest.mark.parametrize("name", P.GROUPS)
def test_a_region_may_not_take_the_name_of_a_query_group(name):
    with pytest.raises(SpecError, match="is a query group of every run: choose another name"):
        aw.run(load("tiny/llada"), PROMPT, FOUR, regions={name: (0, 4)})


def test_residual_probes_see_every_row_with_a_cache_too():
    model = load("tiny/arm")
    probes = [P.massive(2), P.mixing()]
    cached = aw.run(model, PROMPT, D.LeftToRight(4, stop=False), probes=probes)
    again = aw.run(model, PROMPT, D.LeftToRight(4, stop=False, cache=False), probes=probes)
    equal(cached, again, "massive_position", "massive_channel")
    for name in ("massive_value", "massive_median", "state_cosine", "effective_rank"):
        near(cached[name].values, again[name].values)


def test_a_sliding_window_with_a_cache_is_measured_as_without(tmp_path):
    network("mistral", sliding_window=4).save_pretrained(tmp_path / "m")
    model = aw.load(tmp_path / "m")
    probes = [P.received(), P.distance(), P.diagonal(), P.norms(keys=True), P.top_keys(3)]
    prompts = [[5, 60, 7, 12, 33, 41], [9, 8]]
    many = aw.run_many(model, prompts, D.LeftToRight(6, stop=False), probes=probes, batch=2)
    for ids, cached in zip(prompts, many, strict=True):
        again = aw.run(model, ids, D.LeftToRight(6, stop=False, cache=False), probes=probes)
        equal(cached, again, "canvas")
        for name in ("received", "distance_mass", "diagonal", "each_value_norm", "commit_top_mass"):
            near(cached[name].values, again[name].values)


def test_a_sink_token_is_key_minus_two_and_at_no_distance(tmp_path):
    tensors = lit_gpt_tensors(extra_rows=2, gate=False)
    folder = checkpoints.write(tmp_path / "m", {"n_head": 4, "mask_token_id": 90}, tensors)
    probes = [P.top_keys(9, every_row=True), P.received(dtype="float32"), P.distance()]
    decoding = D.LowConfidence(5, 1)
    for trace in aw.run_many(aw.load(folder), [[5, 60, 7], [9]], decoding, probes=probes, batch=2):
        keys, mass = trace["row_top_key"].values[0], trace["row_top_mass"].values[0]
        assert (np.isnan(mass) == (keys == -1)).all(), "a key that is there has a name"
        sink = np.where(keys == -2, mass, 0).sum(-1).mean(-1)
        exact = trace["sink_received"].sel(group="all").values[0]
        assert np.abs(sink - exact).max() <= tolerances.SHARE
        apart = np.nansum(trace["distance_mass"].values[0], axis=-1)
        np.testing.assert_allclose(apart + exact, 1, atol=tolerances.SHARE)


@pytest.mark.parametrize("probes", [(), [P.pattern(layers=[1])], [P.top_keys(3)]])
@pytest.mark.parametrize("killed_at", [None, 13])
def test_runs_without_step_fields_are_written_and_gone_on_with(
    tmp_path, monkeypatch, probes, killed_at
):
    model, decoding, out = load("tiny/llada"), D.LowConfidence(18), tmp_path / "a.trace"
    live, note = aw.run(model, PROMPT, decoding, probes=probes), loop.RunState.append_step

    def die(job, *given):
        if len(job.steps) == killed_at:
            raise KeyboardInterrupt
        return note(job, *given)

    monkeypatch.setattr(loop.RunState, "append_step", die)
    if killed_at is None:
        held = aw.run(model, PROMPT, decoding, probes=probes, out=out)
    else:
        with pytest.raises(KeyboardInterrupt):
            aw.run(model, PROMPT, decoding, probes=probes, out=out)
        monkeypatch.undo()
        held = aw.run(model, resume=out)
    assert set(held.fields) == set(live.fields)
    for name in live.fields:
        np.testing.assert_array_equal(
            held[name].values, live[name].values.astype(held[name].dtype), err_msg=name
        )


def test_a_replay_and_a_resume_refuse_another_mask(tmp_path, monkeypatch):
    with pytest.warns(AnchorwatchWarning, match="mask_id=20, while"):
        other = aw.load("tiny/llada", mask_id=20)
    trace = aw.run(load("tiny/llada"), PROMPT, FOUR, probes=())
    with pytest.raises(TraceError, match="it has mask_id 3, tiny/llada has 20"):
        aw.replay(other, trace)

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop.RunState, "append_step", die)
    with pytest.raises(KeyboardInterrupt):
        aw.run(load("tiny/llada"), PROMPT, FOUR, out=tmp_path / "a.trace")
    monkeypatch.undo()
    with pytest.raises(TraceError, match="was begun with tiny/llada: it has mask_id 3"):
        aw.run(other, resume=tmp_path / "a.trace")
    with pytest.raises(SpecError, match=r"run\(model, resume=path\)"):
        aw.run(other, canvas=np.array([3, 4]), resume=tmp_path / "a.trace")


@pytest.mark.parametrize(
    ("probe", "cheaper"),
    [
        (P.received(), P.received(groups=("all",))),
        (P.entropy(rows=True), P.entropy(rows=False)),
        (P.qk_geometry(keys=True), P.qk_geometry(keys=False)),
        (P.norms(residual=True), P.norms(residual=False)),
    ],
)
def test_a_refusal_names_a_probe_that_is_cheaper(probe, cheaper):
    model, decoding, prompt = load("tiny/llada"), D.LowConfidence(8), [40] * 60
    plan = aw.plan(model, prompt, decoding, probes=[probe])
    less = aw.plan(model, prompt, decoding, probes=[cheaper])
    assert less.peak_bytes < plan.peak_bytes
    name = type(probe).__name__
    with pytest.raises(SpecError, match=rf"try {name}\((groups|rows|keys|residual)="):
        aw.run(model, prompt, decoding, probes=[probe], budget=less.peak_bytes)


def test_a_run_that_is_written_while_it_runs_needs_room_for_a_block(tmp_path):
    model, decoding = load("tiny/llada"), D.LowConfidence(40, 40)
    probes = [P.entropy(rows=True)]
    whole = aw.plan(model, PROMPT, decoding, probes=probes).peak_bytes
    with pytest.raises(SpecError, match="the budget is"):
        aw.run(model, PROMPT, decoding, probes=probes, budget=whole - 1)
    held = aw.run(
        model, PROMPT, decoding, probes=probes, budget=whole - 1, out=tmp_path / "a.trace"
    )
    assert held.num_steps == 40


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream"])
def test_rows_of_padding_are_in_no_mean(name):
    probes = [P.distance(), P.entropy(), P.qk_geometry(), P.mixing()]
    prompts, decoding = [[40], [41, 42, 43, 44, 45]], D.LowConfidence(4, 1)
    many = aw.run_many(load(name), prompts, decoding, probes=probes, batch=2)
    for ids, trace in zip(prompts, many, strict=True):
        alone = aw.run(load(name), ids, decoding, probes=probes)
        for field in ("distance_mass", "entropy", "cosine", "query_norm", "state_cosine"):
            near(trace[field].values, alone[field].values)


def test_steps_of_a_cached_run_count_the_rows_before_them():
    model, decoding = load("tiny/arm"), D.LeftToRight(5, stop=False)
    whole = aw.run(model, PROMPT, decoding, probes=[P.received(), P.entropy(), P.diagonal()])
    later = {"steps": [3], "layers": [1]}
    probes = [P.received(**later), P.entropy(**later), P.diagonal(**later)]
    part = aw.run(model, PROMPT, decoding, probes=probes)
    for name in ("received", "entropy", "diagonal"):
        np.testing.assert_array_equal(part[name].values[3, 1], whole[name].values[3, 1])
        assert np.isnan(part[name].values[[0, 1, 2, 4]]).all()


def test_a_shifted_family_s_first_position_is_predicted_by_its_own_row():
    model = load("tiny/dream")
    canvas = [model.mask_id, 40, 50, model.mask_id]
    probes = [P.top_keys(3), P.top_keys(3, every_row=True)]
    trace = aw.run(model, canvas=canvas, decoding=D.LowConfidence(steps=2), probes=probes)
    alone = aw.run(model, canvas=canvas, decoding=D.LowConfidence(steps=2), probes=probes[:1])
    for position, row in ((0, 0), (3, 2)):
        step = trace.committed_at[position]
        exact = trace["row_top_key"].values[step][:, :, row]
        np.testing.assert_array_equal(alone["commit_top_key"].values[:, :, position], exact)


def test_peaks_that_do_not_exist_are_absent():
    trace = aw.run(load("tiny/llada"), [40, 41], D.LowConfidence(3, 1), probes=[P.norms()])
    keys = trace["peak_key"].values
    assert (np.sort(keys[..., :5], axis=-1) == np.arange(5)).all()
    assert (keys[..., 5:] == -1).all()
    for name in ("peak_received", "peak_key_norm", "peak_value_norm"):
        np.testing.assert_array_equal(np.isnan(trace[name].values), keys == -1)


def test_a_fork_with_a_seed_says_so():
    model = load("tiny/llada")
    trace = aw.run(model, PROMPT, D.LowConfidence(4, temperature=1.0), probes=(), seed=1)
    assert aw.fork(model, trace, 2, probes=(), seed=9).seed == 9
    assert aw.fork(model, trace, 2, probes=()).seed == 1


def watched(pairs, ids):
    """The record of one forward pass with rows that may not look everywhere."""
    probes = [P.received(groups=("all",)), P.entropy(rows=True), P.diagonal(), P.qk_geometry()]
    model, length = load("tiny/llada"), len(ids)
    shape = RunShape(1, model.num_layers, model.num_heads, 4, length)
    record = TraceBuffer(fields_of(probes, shape), shape)
    watch = Recorder(model, probes, [record], [Regions(of=np.full(length, -1))])
    view = View(0, "", 0, 0, 0, length, length)
    everyone, nobody = np.ones((1, length), dtype=bool), np.zeros(length, dtype=bool)
    with watch.record_pass([view], [everyone], [nobody], (1, length)):
        model.logits(ids, pairs)
    return record.arrays


def test_a_row_that_may_look_at_nothing_is_in_no_mean():
    ids, dead = torch.arange(300, 312), 7
    pairs = torch.ones(12, 12, dtype=torch.bool)
    pairs[dead] = False
    found = watched(pairs, ids)
    assert (found["hidden_rows"] == 1).all()
    assert (found["queries"] == 11).all()
    np.testing.assert_allclose(found["received"][0, 0].sum(-1), 1, atol=tolerances.SHARE)
    rows = found["row_entropy"][0, 0]
    assert np.isnan(rows[:, dead]).all()
    np.testing.assert_allclose(
        found["entropy"][0, 0], np.nanmean(rows, axis=-1), atol=tolerances.ENTROPY
    )
    kept = []
    hook = (
        load("tiny/llada")
        .network.model.layers[0]
        .self_attn.q_proj.register_forward_hook(
            lambda _, __, out: kept.append(out[0].view(12, 4, -1).norm(dim=-1))
        )
    )
    load("tiny/llada").logits(ids)
    hook.remove()
    live = [row for row in range(12) if row != dead]  # rotary keeps lengths
    np.testing.assert_allclose(
        found["query_norm"][0, 0], kept[0][live].mean(0), rtol=tolerances.NORM
    )


def test_where_every_row_is_hidden_nothing_is_known():
    found = watched(torch.zeros(12, 12, dtype=torch.bool), torch.arange(300, 312))
    assert (found["hidden_rows"][0, 0] == 12).all()
    for name in ("received", "entropy", "diagonal", "cosine", "logit", "query_norm"):
        assert np.isnan(found[name][0, 0]).all(), name
    assert (found["peak_key"][0, 0] == -1).all()


SHAPE = RunShape(4, 3, 4, 4, 12, regions=("a", "answer"), sink=True)


@pytest.mark.parametrize("name", P.PROBES)
def test_a_probe_s_docstring_names_what_it_adds(name):
    kind = P.PROBES[name]
    options = {
        "rows",
        "every_row",
        "keys",
        "contribution",
        "residual",
    } & kind.__annotations__.keys()
    for probe in (kind(), *(kind(**{option: True}) for option in options)):
        for one in probe.fields(SHAPE):
            if not one.name.endswith("contribution_norm"):
                assert one.name in kind.__doc__, f"{probe} adds {one.name}"
    assert "Adds " in kind.__doc__


def test_the_module_lists_its_probes():
    assert set(P.PROBES) < set(dir(P))
    assert list(P.PROBES)[:3] == ["received", "entropy", "diagonal"] and len(P.PROBES) == 16
    assert not {"dataclass", "Field", "annotations"} & set(dir(P))
    for name in dir(P):
        assert getattr(P, name) is not None


def test_a_probe_is_shown_as_it_was_asked_for():
    assert repr(P.received()) == "received()"
    assert repr(P.received(["all"], layers=[1])) == "received(layers=(1,), groups=('all',))"
    default = "(received(), entropy(), diagonal(), qk_geometry(), norms(), top_keys())"
    assert repr(P.DEFAULT) == default
    assert repr(P.top_keys(3, every_row=True)) == "top_keys(k=3, every_row=True)"
    assert repr(P.pattern(heads=[0])) == "pattern(heads=(0,))"


def test_with_a_cache_rows_are_those_new_at_a_step_and_the_fields_say_so():
    probes = [P.entropy(rows=True), P.diagonal(rows=True), P.norms(residual=True)]
    probes += [P.top_keys(2, every_row=True), P.pattern()]
    trace = aw.run(load("tiny/arm"), PROMPT, D.LeftToRight(3, stop=False), probes=probes)
    first = len(load("tiny/arm").encode(PROMPT))
    fields = ("row_entropy", "row_diagonal", "residual_norm", "row_top_mass", "row_top_key")
    for name in (*fields, "pattern"):
        assert "with a cache, only of rows new at the step" in trace[name].attrs["long_name"], name
    for step, rows in enumerate([range(first), [first], [first + 1]]):
        there = ~np.isnan(trace["row_entropy"].values[step, 0, 0])
        assert np.flatnonzero(there).tolist() == list(rows)
        there = ~np.isnan(trace["residual_norm"].values[step, 0])
        assert np.flatnonzero(there).tolist() == list(rows)
    assert "cache" not in trace["entropy"].attrs["long_name"]
