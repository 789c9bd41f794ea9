"""What the page is given, against slow twins over the trace's own arrays."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given as law
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import anchorwatch as aw
from anchorwatch.explorer import encode
from anchorwatch.explorer.open import from_memory
from anchorwatch.explorer.run_data import MissingError, Options, Run
from anchorwatch.trace.trace import ROLES
from synthetic_traces import large_trace, planted, random_maps, small_trace
from tolerances import SUMMED
from waiting import GUARD

SHARES = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 9)),
    elements=st.one_of(st.floats(0, 1, width=32), st.just(float("nan"))),
)


@law(SHARES)
def test_codes_keep_absence_zero_and_order(shares):
    coded, most = encode.codes(shares)
    back = encode.decode_shares(coded, most)
    assert ((coded == 0) == np.isnan(shares)).all()
    there = ~np.isnan(shares)
    assert (back[there][shares[there] == 0] == 0).all()
    order = np.argsort(shares[there], kind="stable")
    assert (np.diff(coded[there][order].astype(int)) >= 0).all()
    # half a level on the cube-root scale, the promise of the docstring
    level = 0.5 / encode.LEVELS + 1e-6
    root, held = np.cbrt(shares[there] / (most or 1)), np.cbrt(back[there] / (most or 1))
    assert (np.abs(root - held) <= level).all()


@law(SHARES, st.integers(1, 5))
def test_a_bin_is_the_greatest_of_its_positions(shares, width):
    got = encode.bin_maxima(shares, width)
    for row, binned in zip(shares, got, strict=True):
        for at, value in enumerate(binned):
            held = [x for x in row[at * width : (at + 1) * width] if not np.isnan(x)]
            assert value == max(held) if held else np.isnan(value)


@law(
    st.dictionaries(
        st.text("abc_", min_size=1, max_size=5),
        hnp.arrays(st.sampled_from([np.uint8, np.int32, np.float32]), hnp.array_shapes(min_side=0)),
        max_size=4,
    )
)
def test_packets_come_back(arrays):
    back, meta = encode.unpack(encode.pack(arrays, {"a": 1}))
    assert meta == {"a": 1}
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


def test_a_packet_refuses_what_the_page_cannot_read():
    with pytest.raises(TypeError, match=r"float64.*u1, i4, f4"):
        encode.pack({"a": np.zeros(2)})


def shares_of(trace, layer, head, group="all"):
    """[step, key] by the plainest reading of the field."""
    held = trace["received"].sel(group=group)[:, layer]
    held = held.mean("head", skipna=True) if head is None else held[:, head]
    return held.values.astype(np.float64)


@pytest.mark.parametrize("head", [None, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_tiles_are_the_field(head, causal):
    maps = random_maps(np.random.default_rng(1), (6, 3, 4, 14), causal=causal)
    trace = planted(maps, prompt=4, visibility="causal" if causal else "bidirectional")
    run = Run(from_memory(trace))
    for layer in range(3):
        for g, group in enumerate(("all", "masked", "written")):
            key = f"tile-{layer}-{'mean' if head is None else head}-{g}"
            arrays, meta = encode.unpack(run.packet(key))
            wanted = shares_of(trace, layer, head, group)
            coded, most = encode.codes(wanted.astype(np.float32))
            np.testing.assert_array_equal(arrays["codes"], coded)
            assert meta["most"] == pytest.approx(most, abs=SUMMED)
            labels = run.options.rule.labels(wanted)
            np.testing.assert_array_equal(
                np.stack([arrays["sink_step"], arrays["sink_key"]]), np.nonzero(labels)
            )
            np.testing.assert_allclose(arrays["sink_share"], wanted[labels], atol=SUMMED)


def test_a_layer_holds_the_greatest_and_the_sinks_of_every_head():
    trace = small_trace(seed=4)
    run = Run(from_memory(trace))
    rule = run.options.rule
    for layer in range(3):
        arrays, _ = encode.unpack(run.packet(f"layer-{layer}"))
        mean = shares_of(trace, layer, None)
        np.testing.assert_array_equal(arrays["top_key"], mean.argmax(1))
        np.testing.assert_allclose(arrays["top_share"], mean.max(1), atol=SUMMED)
        for head in range(4):
            shares = shares_of(trace, layer, head)
            for step in range(trace.num_steps):
                row = shares[step]
                sinks = rule.labels(row)
                assert arrays["head_top_key"][step, head] == row.argmax()
                assert arrays["head_sinks"][step, head] == sinks.sum()
                taken = arrays["head_sink_share"][step, head]
                assert taken == pytest.approx(row[sinks].sum(), abs=SUMMED)
                assert arrays["head_top_share"][step, head] == pytest.approx(row.max(), abs=SUMMED)


@pytest.mark.parametrize("regions", [None, {"gold": range(2), "other": range(2, 4)}])
def test_what_groups_give_to_classes_adds_up(regions):
    trace = small_trace(seed=5, regions=regions)
    run = Run(from_memory(trace))
    names = run.header()["classes"]
    assert names == (["gold", "other", "elsewhere"] if regions else list(ROLES))
    region = trace["region"].values
    for layer in range(3):
        flow = encode.unpack(run.packet(f"layer-{layer}"))[0]["flow"]
        for g, group in enumerate(run.header()["groups"]):
            shares = shares_of(trace, layer, None, group)
            for step in range(trace.num_steps):
                for c in range(len(names)):
                    kind = np.where(region < 0, 2, region) if regions else trace.role[step]
                    wanted = shares[step][kind == c].sum()
                    if np.isnan(shares[step]).all():
                        assert np.isnan(flow[step, g, c])
                    else:
                        assert flow[step, g, c] == pytest.approx(wanted, abs=SUMMED)


def test_rows_are_exact():
    trace = small_trace(seed=6)
    run = Run(from_memory(trace))
    arrays, _ = encode.unpack(run.packet("row-3-1-2"))
    np.testing.assert_array_equal(arrays["shares"], trace["received"].values[3, 1, 2])
    arrays, _ = encode.unpack(run.packet("row-3-1-mean"))
    wanted = trace["received"].values[3, 1].mean(axis=0, dtype=np.float64).astype(np.float32)
    np.testing.assert_array_equal(arrays["shares"], wanted)
    np.testing.assert_allclose(arrays["null"][0], 1 / 14, atol=SUMMED)


def test_a_causal_run_has_the_causal_null():
    maps = random_maps(np.random.default_rng(1), (5, 1, 1, 10), causal=True)
    run = Run(from_memory(planted(maps, prompt=4, visibility="causal")))
    null = encode.unpack(run.packet("row-0-0-mean"))[0]["null"][0]
    # four rows exist: key p is seen by rows p.. and gets 1 / (row + 1) of each
    wanted = [sum(1 / (row + 1) for row in range(p, 4)) / 4 for p in range(4)]
    np.testing.assert_allclose(null[:4], wanted, atol=SUMMED)
    assert np.isnan(null[4:]).all()


def test_frames_spell_the_canvas():
    trace = small_trace(seed=7)
    run = Run(from_memory(trace))
    told = run.header()
    arrays, _ = encode.unpack(run.packet("frames"))
    ids = np.array([one["id"] for one in told["tokens"]])
    np.testing.assert_array_equal(ids[arrays["canvas"]], trace.canvas)
    np.testing.assert_array_equal(arrays["role"], trace.role)
    np.testing.assert_array_equal(arrays["committed_at"], trace.committed_at)
    assert [one["text"] for one in told["tokens"]] == [trace.token(i) for i in ids.tolist()]


def test_absent_positions_of_a_growing_canvas_stay_absent():
    maps = random_maps(np.random.default_rng(1), (5, 1, 1, 9), causal=True)
    trace = planted(maps, prompt=4, visibility="causal")
    run = Run(from_memory(trace))
    arrays, _ = encode.unpack(run.packet("frames"))
    np.testing.assert_array_equal(arrays["canvas"] == -1, trace.canvas == -1)
    coded = encode.unpack(run.packet("layer-0"))[0]["codes"]
    np.testing.assert_array_equal(coded == 0, trace.canvas[:-1] == -1)
    np.testing.assert_array_equal(arrays["keys"], [4, 5, 6, 7, 8])


def test_a_long_canvas_is_binned_and_says_so():
    trace = small_trace(length=14)
    run = Run(from_memory(trace), Options(columns=5))
    told = run.header()
    assert (told["width"], told["bins"]) == (3, 5)
    assert "binned 3:1" in " ".join(told["left_out"])
    arrays, _ = encode.unpack(run.packet("layer-1"))
    wanted = shares_of(trace, 1, None).astype(np.float32)
    best = np.stack([wanted[:, at : at + 3].max(axis=1) for at in range(0, 14, 3)], axis=1)
    np.testing.assert_array_equal(arrays["codes"], encode.codes(best)[0])


def test_measures_are_the_fields_with_a_number_for_each_head():
    generator = np.random.default_rng(2)
    entropy = generator.normal(size=(8, 3, 4)).astype(np.float32)
    peaks = generator.normal(size=(8, 3, 4, 8)).astype(np.float32)
    more = {
        "entropy": (("step", "layer", "head"), entropy),
        "peak_cosine": (("step", "layer", "head", "peak"), peaks),
    }
    run = Run(from_memory(small_trace(more=more)))
    names = [one["name"] for one in run.header()["measures"]]
    assert names == ["entropy", "peak_cosine"]
    for at, wanted in enumerate((entropy, peaks[..., 0])):
        held = encode.unpack(run.packet(f"measure-{at}"))[0]["values"]
        np.testing.assert_array_equal(held, wanted)
        arrays, meta = encode.unpack(run.small_measure(at))
        back = meta["least"] + (arrays["codes"] - 1.0) / 254 * (meta["most"] - meta["least"])
        room = (meta["most"] - meta["least"]) / 254
        assert np.abs(back - wanted).max() <= room / 2 + SUMMED


def test_flow_is_a_mean_over_heads():
    flow = np.random.default_rng(1).uniform(size=(8, 3, 4, 2, 2)).astype(np.float32)
    dims = ("step", "layer", "head", "query_region", "key_region")
    regions = {"a": range(2), "b": range(2, 14)}
    run = Run(from_memory(small_trace(more={"region_flow": (dims, flow)}, regions=regions)))
    assert run.header()["flow"]
    held = encode.unpack(run.packet("flow"))[0]["flow"]
    np.testing.assert_allclose(held, flow.mean(axis=2), atol=SUMMED)


def test_exact_maps_come_from_the_trace_or_a_replay_or_say_how():
    maps = random_maps(np.random.default_rng(0), (4, 2, 2, 9)).astype(np.float32)
    more = {"pattern": (("pick", "query", "key"), maps[2:3, 1, 0])} | {
        f"pick_{name}": (("pick",), np.array([value], dtype=np.int32))
        for name, value in (("step", 2), ("layer", 1), ("head", 0))
    }
    trace = planted(maps, prompt=3, more=more)
    run = Run(from_memory(trace))
    assert run.header()["maps"] == [[2, 1, 0]]
    np.testing.assert_array_equal(encode.unpack(run.packet("map-2-1-0"))[0]["map"], maps[2, 1, 0])
    with pytest.raises(MissingError, match=r"--model, or measure it with aw.replay.*steps=\[3\]"):
        run.packet("map-3-1-0")
    asked = []
    replayed = Run(from_memory(trace), replay=lambda *at: asked.append(at) or maps[at])
    held = encode.unpack(replayed.packet("map-3-1-0"))[0]["map"]
    np.testing.assert_array_equal(held, maps[3, 1, 0])
    assert asked == [(3, 1, 0)]


@pytest.mark.parametrize(
    "key",
    [
        *(
            "",
            "layer",
            "layer-9",
            "layer--1",
            "layer-mean",
            "row-0-0",
            "row-99-0-mean",
            "tile-0-9-0",
        ),
        *(
            "../../etc/passwd",
            "header",
            "map-0-0-mean",
            "layer-0-0",
            "measure-99",
            "null-1",
            "null-1-0",
            "null-0-9",
            "part-0-0-0-1",
            "part-0-0-0",
            "part-9-mean-0-0",
        ),
        *("LAYER-0", "layer-1e3", "layer-٣", "row-0-0-mean-0", "keys", "packet-0"),
    ],
)
def test_what_is_not_there_is_missing(key):
    with pytest.raises(MissingError):
        Run(from_memory(small_trace())).packet(key)


def test_a_run_without_received_says_how_to_measure_it():
    trace = aw.run(aw.load("tiny/llada"), "the anchor", aw.decoding.LowConfidence(4), probes=())
    run = Run(from_memory(trace))
    assert run.header()["layers"] == []
    assert run.keys() == ["frames"]
    with pytest.raises(MissingError, match=r"aw.probes.received\(\)"):
        run.packet("layer-0")


def test_the_header_is_plain_json_whatever_the_trace_holds():
    told = Run(from_memory(small_trace())).header()
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_many_sinks_of_a_step_are_counted_and_the_greatest_kept():
    trace = large_trace(steps=4, length=300, layers=1, heads=2)
    run = Run(from_memory(trace), Options(rule=aw.rules.topk(100)))
    arrays, meta = encode.unpack(run.packet("layer-0"))
    assert np.bincount(arrays["sink_step"]).tolist() == [64] * 4
    assert meta["sinks_left_out"] == 4 * 36
    row = shares_of(trace, 0, None)[0]
    kept = set(arrays["sink_key"][arrays["sink_step"] == 0].tolist())
    stored = row.astype(np.float16).astype(np.float32)
    assert stored[sorted(kept)].min() >= np.sort(stored)[-65]


def test_a_layer_is_read_a_few_steps_at_a_time(tmp_path, monkeypatch):
    from anchorwatch.explorer import received

    trace = large_trace(steps=24, length=64, layers=2, heads=4)
    trace.write(tmp_path / "a.trace")
    whole = Run(from_memory(aw.read(tmp_path / "a.trace"))).packet("layer-1")
    monkeypatch.setattr(received, "AT_ONCE_BYTES", 1)
    held = Run(from_memory(aw.read(tmp_path / "a.trace")))
    sizes = [len(values) for _, values in held._shares().blocks(1)]
    assert sizes == [8, 8, 8]
    assert held.packet("layer-1") == whole
    assert Run(from_memory(trace)).packet("layer-1") == whole  # before it is written, the same


def test_the_share_of_added_keys_is_a_class_and_a_measure():
    taken = np.random.default_rng(8).uniform(size=(8, 3, 4, 3)).astype(np.float32)
    more = {"sink_received": (("step", "layer", "head", "group"), taken)}
    run = Run(from_memory(small_trace(more=more)))
    told = run.header()
    assert told["classes"][-1] == "added keys"
    flow = encode.unpack(run.packet("layer-2"))[0]["flow"]
    assert flow.shape == (8, 3, len(told["classes"]))
    np.testing.assert_allclose(flow[..., -1], taken[:, 2].mean(axis=1), atol=SUMMED)
    assert [one["name"] for one in told["measures"]] == ["sink_received"]
    assert told["added"]
    assert not Run(from_memory(small_trace())).header()["added"]
    np.testing.assert_array_equal(
        encode.unpack(run.packet("measure-0"))[0]["values"], taken[..., 0]
    )


@pytest.mark.parametrize("head", [None, 1])
def test_a_part_is_the_positions_without_bins(head):
    trace = small_trace(steps=5, length=150)
    run = Run(from_memory(trace), Options(columns=20))
    assert run.header()["part"] == 64
    for at, keys in enumerate((slice(0, 64), slice(64, 128), slice(128, 150))):
        arrays, _ = encode.unpack(run.packet(f"part-2-{'mean' if head is None else head}-0-{at}"))
        wanted = shares_of(trace, 2, head)[:, keys]
        np.testing.assert_allclose(arrays["shares"], wanted, atol=SUMMED)
        np.testing.assert_allclose(arrays["null"], np.full(wanted.shape, 1 / 150), atol=SUMMED)
    with pytest.raises(MissingError):
        run.packet("part-2-mean-0-3")


def test_layers_with_added_keys_have_a_null_of_their_own():
    trace = small_trace()
    part = aw.edits.off_by_one(layers=[1])
    held = dict(trace.manifest)
    held["model"] = held["model"] | {"parts": [part.as_dict()]}
    run = Run(from_memory(type(trace)(trace.dataset(), held)))
    told = run.header()
    assert told["null_of"] == [0, 1, 0]
    assert "off_by_one" in told["model"]["parts"][0]
    for kind, keys in ((0, 14), (1, 15)):
        arrays, meta = encode.unpack(run.packet(f"null-{kind}-0"))
        back = encode.decode_shares(arrays["codes"], meta["most"])
        np.testing.assert_allclose(back, 1 / keys, atol=SUMMED)
    with pytest.raises(MissingError):
        run.packet("null-2-0")


def test_a_query_group_has_its_own_null():
    maps = random_maps(np.random.default_rng(9), (6, 1, 1, 10), causal=True)
    run = Run(from_memory(planted(maps, prompt=4, visibility="causal")))
    told = run.header()
    exact = encode.unpack(run.packet("row-3-0-mean"))[0]["null"]
    for group in range(len(told["groups"])):
        arrays, meta = encode.unpack(run.packet(f"null-0-{group}"))
        back = encode.decode_shares(arrays["codes"], meta["most"])[3]
        assert (np.isnan(back) == np.isnan(exact[group])).all()
        there = ~np.isnan(back)
        level = np.abs(np.cbrt(back) - np.cbrt(exact[group]))[there] / np.cbrt(meta["most"])
        assert (level <= 0.5 / encode.LEVELS + 1e-6).all()


@pytest.mark.parametrize("key", ["frames", "row-0-0-mean"])
def test_what_is_small_does_not_wait_for_a_layer_that_is_being_made(key):
    run = Run(from_memory(small_trace()))
    with run._lock, ThreadPoolExecutor() as pool:
        assert pool.submit(run.packet, key).result(timeout=GUARD) == Run(
            from_memory(small_trace())
        ).packet(key)


def test_what_is_prepared_is_the_layer_a_page_asks_for_first():
    run = Run(from_memory(small_trace()))
    run.prepare()
    assert run._kept == {"layer-1": Run(from_memory(small_trace())).packet("layer-1")}  # of three
    run.prepare(2)
    run.prepare(9)  # there is none: who asks for it is told
    assert list(run._kept) == ["layer-1", "layer-2"]


def test_a_measure_of_heads_is_one_function_of_a_trace(monkeypatch):
    from anchorwatch.explorer import measures

    monkeypatch.setattr(measures, "MEASURES", {})
    maps = random_maps(np.random.default_rng(1), (3, 2, 2, 8))
    trace = planted(maps, prompt=4)

    @measures.head_measure(unit="steps", says="the number of the step")
    def step_number(trace):
        return np.broadcast_to(np.arange(3.0)[:, None, None], (3, 2, 2))

    @measures.head_measure()
    def not_here(trace):
        return None

    run = Run(from_memory(trace))
    listed = run.header()["measures"]
    assert listed[-1] == {"name": "step_number", "unit": "steps", "says": "the number of the step"}
    arrays, _ = encode.unpack(run.packet(f"measure-{len(listed) - 1}"))
    assert arrays["values"][:, 1, 1].tolist() == [0, 1, 2]
    assert "not_here" not in [measure["name"] for measure in listed]
