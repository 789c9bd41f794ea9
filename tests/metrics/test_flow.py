"""Region flow and gold lift: planted answers, loops over dense maps, and networks that look evenly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anchorwatch as aw
import tolerances
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics import flow as metrics
from anchorwatch.metrics.table import NUMBERS
from anchorwatch.trace.trace import ABSENT, Trace
from references import flow as slow
from synthetic_traces import planted, random_maps, uniform

DIMS = ("step", "layer", "head", "query_region", "key_region")
EVERY = ("step", "layer", "head", "query_region", "key_region")


def with_flow(maps, regions, *, absent=(), **options):
    """A planted trace with the field `region_flow` of its maps; `absent` are (step, layer)."""
    bare = planted(maps, regions=regions, **options)
    of, names = bare["region"].values, list(regions)
    flow = np.full((*maps.shape[:3], len(names), len(names)), np.nan, dtype=np.float32)
    for step, layer, head in np.ndindex(*maps.shape[:3]):
        there = int((bare.role[step] != ABSENT).sum())
        if (step, layer) not in absent:
            rows = maps[step, layer, head, :there, :there]
            flow[step, layer, head] = slow.flow(rows, of, len(names))
    return planted(maps, regions=regions, more={"region_flow": (DIMS, flow)}, **options)


@st.composite
def made_of_maps(draw):
    """(trace, maps): random maps, regions that leave some positions out, some layers absent."""
    causal = draw(st.booleans())
    steps, layers, heads = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    left_out = draw(st.integers(0, 2))
    prompt = sum(sizes) + left_out
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    maps = random_maps(generator, (steps, layers, heads, prompt + steps), causal=causal)
    ends = np.cumsum([left_out, *sizes]).tolist()
    regions = {f"part{i}": range(ends[i], ends[i + 1]) for i in range(len(sizes))}
    regions["answer"] = range(prompt, prompt + steps)
    absent = {(steps - 1, 0)} if draw(st.booleans()) else set()
    visibility = "causal" if causal else "bidirectional"
    return (
        with_flow(maps, regions, absent=absent, prompt=prompt, visibility=visibility),
        maps,
        absent,
    )


@given(made_of_maps())
def test_flow_and_its_null_are_what_loops_over_dense_maps_say(made):
    trace, maps, absent = made
    names, of = trace.manifest["regions"], trace["region"].values
    causal = trace.manifest["model"]["visibility"] == "causal"
    table = metrics.region_flow(trace, by=EVERY)
    assert len(table) == 2 * maps[..., 0, 0].size * len(names) ** 2
    rows = {tuple(row[1:7]): row for row in table.itertuples(index=False)}
    for step, layer, head in np.ndindex(*maps.shape[:3]):
        there = int((trace.role[step] != ABSENT).sum())
        lengths = [int((of[:there] == r).sum()) for r in range(len(names))]
        even = slow.flow(slow.even_map(there, causal=causal), of, len(names))
        value = slow.flow(maps[step, layer, head, :there, :there], of, len(names))
        normal = [slow.length_normalised(one, lengths) for one in (value, even)]
        for i, one in enumerate(names):
            for j, other in enumerate(names):
                pairs = {
                    "flow": (value[i, j], even[i, j]),
                    "length_normalised": (normal[0][i, j], normal[1][i, j]),
                }
                for quantity, (exact, null) in pairs.items():
                    row = rows[step, layer, head, one, other, quantity]
                    if (step, layer) in absent or not lengths[i] or not lengths[j]:
                        assert np.isnan(row.value) and row.missing == 1
                        continue
                    assert row.value == pytest.approx(exact, abs=tolerances.METRIC)
                    assert row.null == pytest.approx(null, abs=tolerances.METRIC)
                    assert row.missing == 0


@given(made_of_maps())
def test_what_is_not_split_by_is_added_up_before_the_division(made):
    trace, maps, absent = made
    names, of = trace.manifest["regions"], trace["region"].values
    table = metrics.region_flow(trace, by=("query_region", "key_region"))
    for i, one in enumerate(names):
        for j, other in enumerate(names):
            flows, tops, bottoms, lost = [], [], [], 0
            for step, layer, head in np.ndindex(*maps.shape[:3]):
                there = int((trace.role[step] != ABSENT).sum())
                lengths = [int((of[:there] == r).sum()) for r in range(len(names))]
                if (step, layer) in absent or not lengths[i] or not lengths[j]:
                    lost += 1
                    continue
                pooled = slow.flow(maps[step, layer, head, :there, :there], of, len(names))[i]
                flows.append(pooled[j])
                tops.append(pooled[j] / lengths[j])
                bottoms.append(sum(p / n for p, n in zip(pooled, lengths, strict=True) if n))
            chosen = table[(table.query_region == one) & (table.key_region == other)]
            found = {row.quantity: row for row in chosen.itertuples()}
            assert {row.missing for row in found.values()} == {lost}
            if not flows:
                assert all(np.isnan(row.value) for row in found.values())
                continue
            assert found["flow"].value == pytest.approx(np.mean(flows), abs=tolerances.METRIC)
            exact = sum(tops) / sum(bottoms)
            assert found["length_normalised"].value == pytest.approx(exact, abs=tolerances.METRIC)


def documents(lengths, *, answer=4, gold_at=0, first=2):
    """Regions: a question, documents of these lengths with gold among them, the answer."""
    names = [f"doc{i}" for i in range(1, len(lengths))]
    names.insert(gold_at, "gold")
    ends = first + np.concatenate([[0], np.cumsum(lengths)])
    regions = {"question": range(first)}
    regions |= {n: range(ends[i], ends[i + 1]) for i, n in enumerate(names)}
    return regions | {"answer": range(int(ends[-1]), int(ends[-1]) + answer)}


def seeking(regions, times, *, steps=2, layers=2, heads=2):
    """Maps whose answer rows look `times` as much at each token of gold as at any other token."""
    length = max(max(span) for span in regions.values()) + 1
    weights = np.ones(length)
    weights[list(regions["gold"])] = times
    rows = np.full((length, length), 1 / length)
    rows[list(regions["answer"])] = weights / weights.sum()
    return np.broadcast_to(rows, (steps, layers, heads, length, length)).copy()


def placed(gold_at, times=3.0, lengths=(5, 2, 7, 3), *, tokens=None, source="planted"):
    sizes = list(lengths[1:])
    sizes.insert(gold_at, lengths[0])
    regions = documents(sizes, gold_at=gold_at)
    first = regions["answer"][0]
    words = tokens if tokens is not None else _told(regions, first)
    maps = seeking(regions, times)
    return with_flow(maps, regions, prompt=first, tokens=words, source=source)


def _told(regions, first, number=0):
    """Token ids that follow a document wherever it stands."""
    begins = {"question": 1000, "gold": 2000, "answer": 9000} | {
        f"doc{i}": 3000 + 100 * i for i in range(9)
    }
    ids = np.zeros(first + 4, dtype=int)
    for name, span in regions.items():
        ids[list(span)] = 10_000 * number + begins[name] + np.arange(len(span))
    return ids


def test_uniform_attention_flows_by_length_and_evenly_by_token():
    regions = documents([5, 1, 9], answer=3)
    trace = with_flow(uniform(2, 1, 2, 20), regions, prompt=17)
    table = metrics.region_flow(trace)
    flow = table[(table.quantity == "flow") & (table.query_region == "answer")].set_index(
        "key_region"
    )
    assert (flow.value * 20).round(4).to_dict() == {
        "question": 2, "gold": 5, "doc1": 1, "doc2": 9, "answer": 3,
    }  # fmt: skip
    np.testing.assert_allclose(flow.lift, 1, atol=tolerances.METRIC)
    even = table[table.quantity == "length_normalised"]
    np.testing.assert_allclose(even.value, 0.2, atol=tolerances.METRIC)
    assert tuple(table.columns) == (
        "model",
        "layer",
        "query_region",
        "key_region",
        "quantity",
        *NUMBERS,
    )


@pytest.mark.parametrize("gold_at", range(4))
@pytest.mark.parametrize("times", [0.5, 1.0, 3.0])
def test_a_planted_lift_is_found_wherever_gold_stands(gold_at, times):
    table = metrics.gold_lift(placed(gold_at, times), by=("step", "layer", "gold_index", "gold_at"))
    np.testing.assert_allclose(table.value, times, rtol=tolerances.METRIC)
    np.testing.assert_allclose(table.null, 1, atol=tolerances.EXACT)
    assert len(table) == 4 and set(table.gold_index) == {gold_at}
    assert set(table.gold_at) == {("start", "middle", "middle", "end")[gold_at]}


def test_causal_attention_to_documents_before_the_answer_has_a_null_of_one():
    regions = documents([5, 2, 7], gold_at=2)
    first = regions["answer"][0]
    trace = with_flow(
        uniform(4, 1, 1, first + 4, causal=True), regions, prompt=first, visibility="causal"
    )
    table = metrics.gold_lift(trace, by=("step",))
    assert np.isnan(table.value[0]) and table.missing[0] == 1  # no row of the answer yet
    np.testing.assert_allclose(table.value[1:], 1, rtol=tolerances.METRIC)
    np.testing.assert_allclose(table.null[1:], 1, atol=tolerances.EXACT)


def test_a_window_that_hides_gold_has_no_lift_to_expect():
    trace = placed(0)
    windowed = Trace(
        trace.dataset(),
        trace.manifest | {"model": trace.manifest["model"] | {"windows": [3, None]}},
    )
    table = metrics.gold_lift(windowed)
    assert table.null[0] == 0 and table.null[1] == 1


@given(made_of_maps())
def test_gold_lift_is_what_loops_over_dense_maps_say(made):
    trace, maps, absent = made
    names, of = trace.manifest["regions"], trace["region"].values
    others = names[1:-1]
    table = metrics.gold_lift(trace, names[0], others, by=("step", "layer"))
    for row in table.itertuples():
        there = int((trace.role[row.step] != ABSENT).sum())
        lengths = [int((of[:there] == r).sum()) for r in range(len(names))]
        if (row.step, row.layer) in absent or not lengths[-1]:
            assert np.isnan(row.value) and row.missing == maps.shape[2]
            continue
        pooled = sum(
            slow.flow(one[:there, :there], of, len(names))[-1] for one in maps[row.step, row.layer]
        )
        normal = slow.length_normalised(pooled[None], lengths)[0]
        assert row.value == pytest.approx(normal[0] / np.mean(normal[1:-1]), rel=tolerances.METRIC)


def test_permuting_heads_permutes_rows_and_duplicating_a_prompt_changes_nothing():
    generator = np.random.default_rng(3)
    maps = random_maps(generator, (2, 1, 3, 12))
    regions = {"doc1": range(4), "gold": range(4, 9), "answer": range(9, 12)}
    trace = with_flow(maps, regions, prompt=9)
    turned = with_flow(maps[:, :, [2, 0, 1]], regions, prompt=9)
    one, other = (metrics.gold_lift(t, by=("head",)).value.to_numpy() for t in (trace, turned))
    np.testing.assert_array_equal(one[[2, 0, 1]], other)
    once, twice = metrics.region_flow(trace), metrics.region_flow([trace, trace])
    np.testing.assert_array_equal(once.value, twice.value)
    assert (twice.n == 1).all()
    longer = {"answer": range(9, 12), "gold": range(4, 9), "doc1": range(4)}
    other_order = with_flow(maps, longer, prompt=9)
    both = metrics.region_flow([trace, other_order])
    np.testing.assert_allclose(both.value, once.value, atol=tolerances.METRIC)


def items(lifts, number_of=6):
    """Traces of several items, gold at the start, in the middle and at the end."""
    made = []
    for number in range(number_of):
        for gold_at, times in lifts.items():
            sizes = [2, 7, 3]
            sizes.insert(gold_at, 5)
            regions = documents(sizes, gold_at=gold_at)
            first = regions["answer"][0]
            maps = seeking(regions, times * (1 + 0.01 * number), layers=1)
            made.append(
                with_flow(maps, regions, prompt=first, tokens=_told(regions, first, number))
            )
    return made


def test_prompts_that_only_order_documents_otherwise_are_one_item():
    made = items({0: 2.0, 1: 3.0, 3: 4.0}, number_of=5)
    table = metrics.gold_lift(made, by=())
    assert table.n.item() == 5 and table.value.item() == pytest.approx(
        3 * 1.02, rel=tolerances.METRIC
    )
    assert table.low.item() < table.value.item() < table.high.item()
    apart = metrics.gold_lift(made, items=range(15), by=())
    assert apart.n.item() == 15
    split = metrics.gold_lift(made, by=("gold_at",)).set_index("gold_at")
    assert split.value.to_dict() == pytest.approx(
        {"start": 2.04, "middle": 3.06, "end": 4.08}, rel=tolerances.METRIC
    )
    assert set(split.n) == {5}


def test_an_item_is_its_documents_in_any_order_and_its_question_not_its_answer():
    made = []
    for order, answer in (("abc", 2), ("cab", 5), ("abd", 2)):
        names = {"a": "gold", "b": "doc1", "c": "doc2", "d": "doc2"}
        regions = {names[x]: range(1 + 3 * i, 4 + 3 * i) for i, x in enumerate(order)}
        regions["answer"] = range(10, 10 + answer)
        ids = [7, *(100 * ord(x) + i for x in order for i in range(3)), *range(1, answer + 1)]
        maps = uniform(1, 1, 1, 10 + answer)
        made.append(with_flow(maps, regions, prompt=10, tokens=ids))
    assert metrics.gold_lift(made[:2], by=()).n.item() == 1
    assert metrics.gold_lift(made, by=()).n.item() == 2


def test_places_are_equivalent_where_the_lift_is_the_same_and_different_where_it_is_not():
    same = metrics.gold_places(items({0: 3.0, 1: 3.01, 3: 2.99}), by=())
    assert same.quantity.tolist() == ["start / middle", "start / end", "middle / end"]
    assert same.verdict.tolist() == ["equivalent"] * 3
    assert same.value[0] == pytest.approx(3 / 3.01, rel=tolerances.METRIC) and (same.n == 6).all()
    other = metrics.gold_places(items({0: 3.0, 3: 2.0}), by=("layer",))
    assert other.verdict.item() == "different" and other.value.item() == pytest.approx(
        1.5, rel=tolerances.METRIC
    )
    assert other.low.item() <= 1.5001 and other.high.item() >= 1.4999 and other.null.item() == 1
    assert other.attrs["about"]["metric"] == "gold_places" and len(other.attrs["traces"]) == 12
    few = metrics.gold_places(items({0: 3.0, 3: 2.0}, number_of=3), by=())
    assert few.verdict.item() == "too few" and few.interval.item() == "3 prompts, 5 needed"
    lacking = metrics.gold_places(items({0: 3.0, 3: 2.0})[:-1], by=())
    assert lacking.n.item() == 5 and lacking.missing.item() == 1


def test_gold_may_have_another_name_in_every_trace():
    made = []
    for gold_at in (0, 2):
        regions = {f"Doc {i}": range(3 * i, 3 * i + 3) for i in range(3)} | {"answer": range(9, 11)}
        rows = np.full((11, 11), 1 / 11)
        rows[9:, :] = np.where(np.arange(11) // 3 == gold_at, 4, 1) / (11 + 9)
        maps = np.broadcast_to(rows, (2, 1, 1, 11, 11)).copy()
        made.append(with_flow(maps, regions, prompt=9))
    table = metrics.gold_lift(made, ["Doc 0", "Doc 2"], by=("gold_index",))
    assert table.value.tolist() == pytest.approx([4, 4], rel=tolerances.METRIC)
    assert table.gold_index.tolist() == [0, 2]
    assert table.attrs["about"]["documents"] == ["Doc 0", "Doc 1", "Doc 2"]


def test_the_null_is_what_a_network_that_looks_evenly_does():
    import torch

    model = aw.load("tiny/dream")
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            if ".q_proj." in name:
                parameter.zero_()
    spans = {"doc1": (1, 4), "gold": (4, 9)}
    trace = aw.run(
        model,
        list(range(10, 20)),
        aw.decoding.LowConfidence(4, 2),
        regions=spans,
        probes=[aw.probes.region_flow()],
    )
    table = metrics.region_flow(trace)
    assert len(table) == 2 * 9 * trace.manifest["model"]["layers"]
    np.testing.assert_allclose(table.value, table.null, atol=tolerances.METRIC)


def test_errors_say_what_would_have_worked():
    trace = placed(1)
    bare = planted(uniform(2, 1, 1, 6), prompt=4)
    with pytest.raises(
        TraceError, match=r"has no regions: name them when it is run, aw.run\(..., regions="
    ):
        metrics.region_flow(bare)
    unmeasured = planted(uniform(2, 1, 1, 6), prompt=4, regions={"doc": range(4), "answer": (4, 5)})
    with pytest.raises(
        TraceError, match=r"aw.replay\(model, trace, probes=\[aw.probes.region_flow\(\)\]\)"
    ):
        metrics.region_flow(unmeasured)
    empty = planted(
        uniform(2, 1, 1, 6), prompt=4, regions={"doc": range(4), "gold": (), "answer": (4, 5)}
    )
    with pytest.raises(
        TraceError, match=r"the region 'gold' of the trace .* is empty: give it at least one token"
    ):
        metrics.region_flow(empty)
    other = with_flow(uniform(2, 1, 1, 6), {"passage": range(4), "answer": (4, 5)}, prompt=4)
    with pytest.raises(
        SpecError,
        match=r"different regions \(doc1, doc2, .* not in all of them; .* name the same parts",
    ):
        metrics.region_flow([trace, other])
    with pytest.raises(
        SpecError,
        match="mean over every key_region means nothing: keep query_region and key_region",
    ):
        metrics.region_flow(trace, by=("layer", "query_region"))
    with pytest.raises(SpecError, match=r"by='layer' is not a list: say by=\['layer'\]"):
        metrics.region_flow(trace, by="layer")
    with pytest.raises(SpecError, match="flow has no key: it can be split by trace, layer, step"):
        metrics.region_flow(trace, by=("key", "query_region", "key_region"))


def test_errors_about_gold_say_what_would_have_worked():
    trace = placed(1)
    with pytest.raises(
        SpecError, match="no document is called 'golden': the regions are question, doc1, gold"
    ):
        metrics.gold_lift(trace, "golden")
    with pytest.raises(SpecError, match="no document is called 'answer'"):
        metrics.gold_lift(trace, distractors=["answer"])
    with pytest.raises(SpecError, match=r"distractors='doc1' is not a list: say \['doc1'\]"):
        metrics.gold_lift(trace, distractors="doc1")
    lone = with_flow(
        uniform(2, 1, 1, 6), {"gold": range(2), "title": (2, 3), "answer": (4, 5)}, prompt=4
    )
    with pytest.raises(SpecError, match="nothing to compare 'gold' with: name the other documents"):
        metrics.gold_lift(lone)
    with pytest.raises(SpecError, match="gold names 2 for 1 traces: give one for each"):
        metrics.gold_lift(trace, ["gold", "gold"])
    with pytest.raises(SpecError, match="items names 3 for 1 traces: give one for each"):
        metrics.gold_lift(trace, items=[1, 2, 3])
    with pytest.raises(
        SpecError, match="gold stands at the middle of its documents in every trace"
    ):
        metrics.gold_places([trace, trace])
    with pytest.raises(SpecError, match="margin=0 is not a number above 0"):
        metrics.gold_places(trace, margin=0)
    with pytest.raises(
        SpecError,
        match="gold_places has no gold_at: it can be split by step, progress, layer, head",
    ):
        metrics.gold_places(trace, by=("gold_at",))
