"""Runs that begin with a trace: what a fork says of its origin, what a replay may add, and diff."""

import numpy as np
import pytest

import anchorwatch as aw
import tolerances
from anchorwatch.errors import TraceError
from strategies import load

P, D = aw.probes, aw.decoding
ASK = "Passage: Lena was born in Oslo.\nQuestion: Where was Lena born?\nAnswer:"
DRAWN = D.LowConfidence(8, 4, temperature=1.0)
PASSAGE = {"passage": "Lena was born in Oslo."}


def same(one, two, *names):
    for name in names:
        np.testing.assert_array_equal(one[name].values, two[name].values, err_msg=name)


@pytest.mark.parametrize("seed", [None, 9])
def test_a_fork_s_manifest_remakes_it(seed):
    model = load("tiny/llada")
    parent = aw.run(model, ASK, DRAWN, seed=4, probes=())
    forked = aw.fork(model, parent, 2, seed=seed, probes=())
    origin = {"of": parent.digest(), "step": 2, "seed": 4, "reseeded": seed is not None}
    assert forked.manifest["fork"] == origin
    assert "seed 4" in repr(parent) and "forked" not in repr(parent)
    assert f"seed {forked.seed}, forked at step 2" in repr(forked)
    assert len(repr(forked).splitlines()) == 5
    anew = forked.seed if origin["reseeded"] else None
    again = aw.fork(model, parent, origin["step"], seed=anew, probes=())
    assert again.digest() == forked.digest()
    assert aw.replay(model, forked, ()).manifest["fork"] == origin


def test_a_fork_is_read_as_one(tmp_path):
    model = load("tiny/llada")
    forked = aw.fork(model, aw.run(model, ASK, DRAWN, probes=()), 1, probes=())
    forked.write(tmp_path / "a.trace")
    assert aw.read(tmp_path / "a.trace").manifest["fork"]["step"] == 1


@pytest.mark.parametrize(
    ("name", "decoding"),
    [
        ("tiny/llada", D.LowConfidence(6)),
        ("tiny/arm", D.LeftToRight(6, stop=False)),
        ("tiny/arm", D.LeftToRight(6, stop=False, cache=False)),
    ],
)
def test_steps_before_a_fork_are_absent_and_the_others_as_in_the_run(name, decoding):
    model, probes = load(name), [P.received(), P.massive(1), P.top_keys(3), P.pattern(layers=[1])]
    whole = aw.run(model, ASK, decoding, probes=probes)
    forked = aw.fork(model, whole, 2, probes=probes)
    for field in ("received", "massive_value"):
        assert np.isnan(forked[field].values[:2]).all()
        np.testing.assert_array_equal(forked[field].values[2:], whole[field].values[2:])
    early = (whole.committed_at >= 0) & (whole.committed_at < 2)
    assert (forked["commit_top_key"].values[:, :, early] == -1).all()
    late = whole.committed_at >= 2
    np.testing.assert_array_equal(
        forked["commit_top_key"].values[:, :, late], whole["commit_top_key"].values[:, :, late]
    )
    assert sorted(set(forked["pick_step"].values.tolist())) == [2, 3, 4, 5]
    assert forked.manifest["probes"] == whole.manifest["probes"]


def test_steps_of_a_replay_are_those_of_both():
    model = load("tiny/llada")
    trace = aw.run(model, ASK, D.LowConfidence(4), probes=())
    probes = [P.entropy(steps=[1, 2]), P.diagonal()]
    found = aw.replay(model, trace, probes, steps=[2, 3])
    assert [p["steps"] for p in found.manifest["probes"]] == [[2], [2, 3]]
    for field, steps in (("entropy", [2]), ("diagonal", [2, 3])):
        there = ~np.isnan(found[field].values).all(axis=(1, 2))
        assert np.flatnonzero(there).tolist() == steps


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/arm"])
def test_a_trace_gets_regions_afterwards(name):
    model = load(name)
    decoding = D.LowConfidence(4, 2) if name == "tiny/llada" else D.LeftToRight(4, stop=False)
    probes = [P.region_flow(), P.received(["passage", "answer"])]
    live = aw.run(model, ASK, decoding, regions=PASSAGE, probes=probes)
    bare = aw.run(model, ASK, decoding, probes=())
    places = np.flatnonzero(live["region"].values == 0)
    spelled = {"passage": range(int(places[0]), int(places[-1]) + 1)}
    for regions in (PASSAGE, spelled):
        found = aw.replay(model, bare, probes, regions=regions)
        same(live, found, "region", "region_flow", "received")
        assert found.manifest["regions"] == ["passage", "answer"]
    again = aw.replay(model, live, probes)
    same(live, again, "region", "region_flow")
    other = aw.replay(model, live, [P.region_flow()], regions={"a": range(3)})
    assert other.manifest["regions"] == ["a", "answer"]


def test_words_characters_and_positions_name_the_same_region():
    model = load("tiny/llada")
    begin = ASK.index(PASSAGE["passage"])
    words = aw.run(model, ASK, D.LowConfidence(2), regions=PASSAGE, probes=())
    spelled = "".join(words.token(int(i)) for i in words.canvas[0][words["region"].values == 0])
    assert spelled.strip() == PASSAGE["passage"]
    places = np.flatnonzero(words["region"].values == 0).tolist()
    ids = words.canvas[0][:-2].tolist()
    for prompt, span in (
        (ASK, (begin, begin + len(PASSAGE["passage"]))),
        (ASK, range(places[0], places[-1] + 1)),
        (ids, (places[0], places[-1] + 1)),
    ):
        other = aw.run(model, prompt, D.LowConfidence(2), regions={"passage": span}, probes=())
        same(words, other, "region")


def test_a_canvas_has_regions_by_position_and_its_masks_are_the_answer():
    model = load("tiny/llada")
    canvas = [40, 41, model.mask_id, 43, model.mask_id, 45]
    regions = {"a": (0, 3), "b": range(3, 6)}
    trace = aw.run(model, canvas=canvas, regions=regions, probes=[P.region_flow()])
    assert trace["region"].values.tolist() == [0, 0, 2, 1, 2, 1]
    total = trace["region_flow"].sum("key_region").sel(query_region="a").values
    np.testing.assert_allclose(total, 1, atol=tolerances.SHARE)


@pytest.mark.parametrize("batch", [1, 2])
def test_several_prompts_have_regions_each(batch):
    model, decoding, probes = load("tiny/llada"), D.LowConfidence(4, 2), [P.region_flow()]
    prompts = [ASK, "Lena was born in Oslo. Where?"]
    each = [PASSAGE, {"passage": (0, 22)}]
    for regions in (PASSAGE, each):
        many = aw.run_many(model, prompts, decoding, regions=regions, probes=probes, batch=batch)
        for prompt, trace in zip(prompts, many, strict=True):
            alone = aw.run(model, prompt, decoding, regions=PASSAGE, probes=probes)
            same(trace, alone, "region")
            gap = np.abs(trace["region_flow"].values - alone["region_flow"].values)
            assert np.nanmax(gap) <= tolerances.PADDED


def test_a_row_of_a_batch_is_replayed_to_the_tolerance():
    model, decoding = load("tiny/llada"), D.LowConfidence(4, 2)
    for trace in aw.run_many(model, [ASK, [40]], decoding, batch=2):
        found = aw.replay(model, trace)
        np.testing.assert_array_equal(found.canvas, trace.canvas)
        gap = np.abs(found["received"].values - trace["received"].values)
        assert np.nanmax(gap) <= tolerances.PADDED


def test_runs_that_begin_differently_did_not_part():
    model, arm = load("tiny/llada"), load("tiny/arm")
    one = aw.run(model, [40, 41, 42], D.LowConfidence(4), probes=())
    two = aw.run(model, [40, 43, 42], D.LowConfidence(4), probes=())
    found = aw.diff(one, two)
    assert found and found.step is None and found.position == 1
    assert found.tokens == (one.token(41), two.token(43))
    assert str(found).startswith("the runs begin differently at position 1: ")
    beside = aw.run(arm, [40, 41, 42], D.LeftToRight(4, stop=False), probes=())
    found = aw.diff(one, beside)
    assert (found.step, found.position, found.tokens) == (None, 3, ("<|mask|>", "nothing"))
    assert not aw.diff(one, one) and "the same canvas" in str(aw.diff(one, one))
    longer = aw.run(model, [40, 44, 42, 43], D.LowConfidence(4), probes=())
    with pytest.raises(TraceError, match="have 7 and 8 positions and begin differently at positio"):
        aw.diff(one, longer)


def test_runs_of_different_tokenizers_are_not_compared():
    one = aw.run(load("tiny/llada"), [40, 41], D.LowConfidence(2), probes=())
    two = aw.run(load("tiny/llada"), [40, 41], D.LowConfidence(2), probes=())
    two._manifest["tokens"]["40"] = "something else"
    with pytest.raises(
        TraceError, match=r"token 40 is .* compare runs of models with the same tok"
    ):
        aw.diff(one, two)
