"""Retrieval heads: planted copy heads with and without the shift, and loops over dense maps."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorwatch as aw
import tolerances
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics import retrieval
from anchorwatch.metrics.sink_rules import rulli, topk
from anchorwatch.trace.trace import Trace
from references import retrieval as slow
from strategies import load
from synthetic_traces import planted, random_maps, uniform

P = aw.probes
HEAD = ("layer", "head")


def rows(table, **cell):
    for name, at in cell.items():
        table = table[table[name] == at]
    assert not table.quantity.duplicated().any()
    return {row.quantity: row for row in table.itertuples()}


def row_of(trace, position):
    return max(position - trace.manifest["model"]["shift"], 0)


def region_masses(maps, trace, regions):
    """The field of `commit_regions`, by loops."""
    _, layers, heads, length, _ = maps.shape
    found = np.full((layers, heads, length, len(regions)), np.nan, dtype=np.float32)
    for position in trace.answer:
        step = trace.committed_at[position]
        for r, keys in enumerate(regions.values()):
            if step >= 0:
                found[:, :, position, r] = maps[step][:, :, row_of(trace, position)][..., keys].sum(
                    -1
                )
    return {"commit_region_mass": (("layer", "head", "position", "key_region"), found)}


def whole_maps(maps, picks=None):
    """The fields of `pattern`."""
    steps, layers, heads, _, _ = maps.shape
    picks = list(np.ndindex(steps, layers, heads)) if picks is None else picks
    pattern = np.stack([maps[pick] for pick in picks]).astype(np.float32)
    found = {"pattern": (("pick", "query", "key"), pattern)}
    for axis, name in enumerate(("step", "layer", "head")):
        found[f"pick_{name}"] = (("pick",), np.array([p[axis] for p in picks], dtype=np.int32))
    return found


def made_of(maps, regions, *, probe=True, pattern=False, **options):
    bare = planted(maps, regions=regions, **options)
    more = region_masses(maps, bare, regions) if probe else {}
    more |= whole_maps(maps) if pattern else {}
    return planted(maps, regions=regions, more=more, **options)


GOLD, OTHER = [2, 3, 4, 5], [6, 7, 8, 9]
TOKENS = [1, 2, 31, 32, 33, 34, 41, 42, 43, 44, 11, 12, 31, 32, 33, 34]
"""The answer, positions 12 to 15, says what gold says."""


def copying(shift, source):
    """Head 0 of layer 1 copies: the row that predicts position 12 + i looks at source + i."""
    maps = uniform(4, 2, 2, 16)
    for i in range(4):
        row = np.full(16, 0.1 / 15)
        row[source + i] = 0.9
        maps[i, 1, 0, 12 + i - shift] = row
    return maps


@pytest.mark.parametrize("shift", [False, True])
def test_a_copy_head_is_found_in_the_row_that_predicts(shift):
    regions = {"gold": GOLD, "d1": OTHER}
    options = {"prompt": 12, "tokens": TOKENS}
    trace = made_of(copying(shift, 2), regions, shift=shift, pattern=True, **options)
    table = retrieval.retrieval_heads(trace, distractors=["d1"])
    found = rows(table, layer=1, head=0)
    assert found["copy"].value == 1 and found["hit"].value == 1
    assert found["copy"].null == pytest.approx(1 / 16)
    assert found["evidence_mass"].value == pytest.approx(0.92, abs=tolerances.METRIC)
    assert found["evidence_mass"].null == 4 / 16
    assert found["lift"].value == pytest.approx(0.92 * 4, abs=tolerances.METRIC)
    assert found["copy_minus_distractors"].value == 1
    assert found["evidence_mass_minus_distractors"].value == pytest.approx(
        0.92 - 4 * 0.1 / 15, abs=tolerances.METRIC
    )
    # one gold token above the eight others, three among equals
    assert found["auroc"].value == pytest.approx((1 + 3 * 0.5) / 4)
    idle = rows(table, layer=0, head=1)
    assert idle["copy"].value == 0 and idle["auroc"].value == 0.5
    assert idle["evidence_mass"].value == pytest.approx(1 / 4, abs=tolerances.METRIC)
    wrong = made_of(copying(shift, 2), regions, shift=not shift, **options)
    assert rows(retrieval.retrieval_heads(wrong), layer=1, head=0)["copy"].value < 0.3


def test_a_head_that_looks_at_gold_but_at_another_token_hits_and_does_not_copy():
    tokens = [*TOKENS[:12], 34, 33, 32, 31]
    trace = made_of(copying(False, 2), {"gold": GOLD}, prompt=12, tokens=tokens)
    found = rows(retrieval.retrieval_heads(trace), layer=1, head=0)
    assert found["hit"].value == 1 and found["copy"].value == 0


def test_a_head_that_copies_a_distractor_is_negative():
    tokens = [*TOKENS[:12], 41, 42, 43, 44]
    regions = {"gold": GOLD, "d1": OTHER}
    trace = made_of(copying(False, 6), regions, prompt=12, tokens=tokens)
    found = rows(retrieval.retrieval_heads(trace, distractors=["d1"]), layer=1, head=0)
    assert found["copy"].value == 0 and found["copy_minus_distractors"].value == -1
    assert found["hit_minus_distractors"].value == -1


def test_distractors_of_another_length_are_scaled_to_gold_s():
    """Indifferent rows have no preference, whatever the lengths."""
    regions = {"gold": [2, 3, 4], "d1": [5, 6, 7, 8, 9], "d2": [10]}
    trace = made_of(uniform(4, 1, 1, 16), regions, prompt=12, pattern=True)
    table = rows(retrieval.retrieval_heads(trace, distractors=["d1", "d2"], by=()))
    for name in ("evidence_mass", "lift", "auroc"):
        assert table[f"{name}_minus_distractors"].value == pytest.approx(0, abs=tolerances.METRIC)


@st.composite
def runs(draw):
    visibility = draw(st.sampled_from(["bidirectional", "causal"]))
    steps, layers, heads = draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    prompt = draw(st.integers(6, 14))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    causal = visibility == "causal"
    maps = random_maps(generator, (steps, layers, heads, prompt + steps), causal=causal)
    cut = draw(st.integers(2, prompt - 2))
    regions = {
        "d1": range(1, cut),
        "gold": range(cut, prompt - 1),
        "answer": range(prompt, prompt + steps),
    }
    options = {
        "prompt": prompt,
        "visibility": visibility,
        "shift": draw(st.booleans()),
        "tokens": generator.integers(1, 5, prompt + steps),
    }
    if not causal:  # any order, several at once, some never
        options["committed_at"] = [-1] * prompt + generator.integers(-1, steps, steps).tolist()
    regions = {name: list(keys) for name, keys in regions.items()}
    return maps, regions, options


def looked(trace, maps, regions, sink_count):
    """(layer, head, step, scores of gold, of d1, without sinks, auroc) of each commit."""
    causal = trace.manifest["model"]["visibility"] == "causal"
    context = [p for p in range(maps.shape[3]) if p not in trace.answer]
    for position in trace.answer:
        step = int(trace.committed_at[position])
        if step < 0:
            continue
        row_index, there = row_of(trace, position), int((trace.canvas[step] >= 0).sum())
        span = (0, row_index + 1) if causal else (0, there)
        ids, token = trace.canvas[step].tolist(), int(trace.canvas[step + 1, position])
        for layer, head in np.ndindex(maps.shape[1:3]):
            row = maps[step, layer, head, row_index].tolist()
            scores = [
                slow.row_scores(row, span, set(regions[name]), ids, token)
                for name in ("gold", "d1")
            ]
            received = trace["received"].values[step, layer, head, 0, :there].tolist()
            sinks = set(sorted(range(there), key=lambda j: -received[j])[:sink_count])
            bare = slow.without_sinks(row, span, set(regions["gold"]), sinks)
            auroc = slow.row_auroc(row, context, set(regions["gold"]))
            yield layer, head, step, scores, bare, auroc


def mean(values):
    there = [value for value in values if not math.isnan(value)]
    return sum(there) / len(there) if there else math.nan


@settings(max_examples=20)
@given(runs(), st.sampled_from(["probe", "pattern"]))
def test_scores_are_what_loops_over_rows_say(made, source):
    maps, regions, options = made
    trace = made_of(maps, regions, probe=source == "probe", pattern=source == "pattern", **options)
    table = retrieval.retrieval_heads(trace, distractors=["d1"], rule=topk(2))
    every = list(looked(trace, maps, regions, 2))
    length, other = len(regions["gold"]), len(regions["d1"])
    for layer, head in np.ndindex(maps.shape[1:3]):
        here = [one for one in every if one[:2] == (layer, head)]
        ours = rows(table, layer=layer, head=head)
        if not here:
            assert math.isnan(ours["hit"].value) and ours["hit"].missing == 0
            continue
        gold, d1 = [one[3][0] for one in here], [one[3][1] for one in here]
        for name in ("hit", "evidence_mass", "evidence_in_top", "lift"):
            exact = mean([one[name] for one in gold])
            assert ours[name].value == pytest.approx(exact, abs=tolerances.METRIC), name
        assert ours["hit"].null == pytest.approx(mean([one["expected"] for one in gold]))
        in_top = mean([one["expected"] * one["kept"] for one in gold])
        assert ours["evidence_in_top"].null == pytest.approx(in_top)
        assert ours["copy"].value == pytest.approx(sum(one["copy"] for one in gold) / length)
        assert ours["copy"].null == pytest.approx(sum(one["same"] for one in gold) / length)
        exact = sum(one["copy"] for one in gold) / length - sum(one["copy"] for one in d1) / other
        assert ours["copy_minus_distractors"].value == pytest.approx(exact)
        for name in ("hit", "evidence_mass"):
            pairs = zip(gold, d1, strict=True)
            exact = mean([g[name] - d[name] * g["expected"] / d["expected"] for g, d in pairs])
            got = ours[f"{name}_minus_distractors"].value
            assert got == pytest.approx(exact, abs=tolerances.METRIC), name
        bare = [one[4] for one in here]
        got = ours["lift_without_sinks"]
        assert got.value == pytest.approx(mean(bare), abs=tolerances.REST, nan_ok=True)
        assert got.missing == sum(map(math.isnan, bare))
        if source == "pattern":
            exact = mean([one[5] for one in here])
            assert ours["auroc"].value == pytest.approx(exact, abs=tolerances.METRIC)
        else:
            assert math.isnan(ours["auroc"].value) and ours["auroc"].missing == len(here)


@settings(max_examples=15)
@given(runs())
def test_stability_is_the_rank_correlation_of_thirds(made):
    maps, regions, options = made
    trace = made_of(maps, regions, **options)
    table = retrieval.retrieval_stability(trace)
    every = list(looked(trace, maps, regions, 1))
    third = {step: min(int(3 * trace.progress[step] + 1e-9), 2) for step in range(trace.num_steps)}
    heads = list(np.ndindex(maps.shape[1:3]))

    def scores(part):
        return [
            mean(
                [
                    s[0]["evidence_mass"]
                    for la, h, step, s, *_ in every
                    if (la, h) == place and third[step] == part
                ]
            )
            for place in heads
        ]

    for name, one, other in (
        ("early ~ middle", 0, 1),
        ("early ~ late", 0, 2),
        ("middle ~ late", 1, 2),
    ):
        a, b = np.float32(scores(one)).tolist(), np.float32(scores(other)).tolist()
        there = not any(map(math.isnan, a + b))
        exact = slow.spearman(a, b) if there else math.nan
        ours = rows(table, thirds=name)["evidence_mass"]
        assert ours.value == pytest.approx(exact, abs=tolerances.METRIC, nan_ok=True)
        assert ours.null == 0 or math.isnan(exact)


def prompts(count, heads=(1, 0)):
    """Traces of different prompts, in each of which one head of layer 1 copies."""
    found = []
    for i in range(count):
        maps = copying(False, 2)[:, :, list(heads)]
        tokens = [i + 50, *TOKENS[1:]]
        found.append(made_of(maps, {"gold": GOLD, "d1": OTHER}, prompt=12, tokens=tokens))
    return found


def test_depth_and_share_of_a_copy_head_in_the_last_layer():
    table = retrieval.retrieval_depth(prompts(6), least=0.5)
    copy = {row.quantity: row for row in table[table.score == "copy"].itertuples()}
    assert copy["depth"].value == 1 and copy["depth"].null == 0.5
    assert copy["share"].value == 1 / 4 and copy["share"].null == 0
    assert (copy["depth"].low, copy["depth"].high, copy["depth"].n) == (1, 1, 6)
    mass = {row.quantity: row for row in table[table.score == "evidence_mass"].itertuples()}
    # 0.25 in three heads, 0.92 in one of the last layer
    assert mass["depth"].value == pytest.approx(
        (0.92 + 0.25) / (0.92 + 0.75), abs=tolerances.METRIC
    )
    assert mass["share"].value == 1 / 4
    few = retrieval.retrieval_depth(prompts(2), least=0.5)
    assert few.low.isna().all() and (few.interval == "2 prompts, 5 needed").all()


def test_prompts_are_averaged_before_heads_are_counted():
    """One head copies in half of the prompts and another in the rest: none scores 0.6."""
    both = [*prompts(3), *[t for i, t in enumerate(prompts(6, heads=(0, 1))) if i >= 3]]
    table = retrieval.retrieval_depth(both, distractors=["d1"], least=0.6)
    copy = table[(table.score == "copy") & (table.quantity == "share")]
    assert copy.value.item() == 0 and copy.high.item() > 0
    easy = retrieval.retrieval_depth(both, least=0.4)
    assert easy.value[(easy.score == "copy") & (easy.quantity == "share")].item() == 0.5


def test_the_published_depth_is_that_of_layers_from_0_to_1():
    means = "18 14 16 9 13 14 14 23 15 16 27 14 15 34 16 20 39 26 23 38 20 33 38 42 30 38 38 46 40 46 47 49"
    scores = np.array([float(word) for word in means.split()])[None, :, None] / 100
    found = retrieval._summaries(scores, np.ones((1, 1)), 0.1)
    assert round(float(found["depth"][0]), 2) == 0.62


def test_a_gate_leaves_failed_answers_out_of_the_copy_score():
    right, wrong = prompts(2)
    plain = rows(retrieval.retrieval_heads([right, wrong]), layer=1, head=1)
    assert plain["copy"].value == 1 and plain["copy"].n == 2
    table = retrieval.retrieval_heads([right, wrong], success=[True, False])
    gated = rows(table, layer=1, head=1)
    assert gated["copy"].value == 1 and gated["copy"].n == 1 and gated["copy"].missing == 4
    assert gated["hit"].n == 2, "only the copy score is gated"
    assert table.attrs["about"]["gate"] == "copy gated by success"
    ungated = retrieval.retrieval_heads(right).attrs["about"]["gate"]
    assert ungated == "ungated"


def test_ignored_tokens_do_not_count():
    regions = {"gold": GOLD}
    trace = made_of(copying(False, 2), regions, prompt=12, tokens=TOKENS)
    found = rows(retrieval.retrieval_heads(trace, ignore=[33, 34]), layer=1, head=0)
    assert found["hit"].value == 1 and found["copy"].value == 2 / 4
    none = rows(retrieval.retrieval_heads(trace, ignore=range(30, 40)), layer=1, head=0)
    assert math.isnan(none["hit"].value) and none["hit"].missing == 0


def test_default_runs_say_what_they_know():
    """Without the probe the evidence mass is absent, and at least what the top keys hold."""
    trace = planted(copying(False, 2), regions={"gold": GOLD}, prompt=12, tokens=TOKENS)
    found = rows(retrieval.retrieval_heads(trace), layer=1, head=0)
    assert math.isnan(found["evidence_mass"].value) and found["evidence_mass"].missing == 4
    assert found["evidence_in_top"].value <= 0.92 + tolerances.METRIC
    assert found["evidence_in_top"].value >= 0.9
    assert found["copy"].value == 1
    one_map = whole_maps(copying(False, 2), picks=[(0, 1, 0)])
    part = planted(
        copying(False, 2), regions={"gold": GOLD}, prompt=12, tokens=TOKENS, more=one_map
    )
    found = rows(retrieval.retrieval_heads(part), layer=1, head=0)
    assert found["evidence_mass"].value == pytest.approx(0.92, abs=tolerances.METRIC)
    assert found["evidence_mass"].missing == 3


def test_lift_without_a_sink_that_hides_the_evidence():
    maps = uniform(4, 1, 1, 16)
    maps[:, 0, 0] = 0.9 * np.eye(16)[0] + 0.1 * np.eye(16)[3]
    trace = made_of(maps, {"gold": GOLD}, prompt=12)
    found = rows(retrieval.retrieval_heads(trace, rule=rulli()), layer=0, head=0)
    assert found["lift"].value == pytest.approx(0.1 * 16 / 4, abs=tolerances.METRIC)
    assert found["lift_without_sinks"].value == pytest.approx(15 / 4, rel=tolerances.METRIC)
    less = Trace(trace.dataset().drop_vars("received"), trace.manifest)
    found = rows(retrieval.retrieval_heads(less), layer=0, head=0)
    assert math.isnan(found["lift_without_sinks"].value) and found["hit"].value == 0


def test_the_null_knows_windows_and_sink_tokens():
    options = {"prompt": 12, "tokens": TOKENS, "visibility": "causal"}
    trace = made_of(uniform(4, 2, 1, 16, causal=True), {"gold": GOLD, "late": [9, 10]}, **options)
    manifest = trace.manifest
    manifest["model"] |= {"windows": [4, None], "parts": [{"name": "sink_token"}]}
    seen = Trace(trace.dataset(), manifest)
    table = retrieval.retrieval_heads(seen, "late")
    # rows 11 to 14 see four keys and the sink token: 9 and 10, 9 and 10, 10, neither
    null = rows(table, layer=0, head=0)["hit"].null
    assert null == pytest.approx((2 / 5 + 2 / 5 + 1 / 5 + 0) / 4)
    whole = rows(table, layer=1, head=0)["hit"].null
    assert whole == pytest.approx(np.mean([2 / (row + 2) for row in (11, 12, 13, 14)]))
    assert rows(table, layer=0, head=0)["lift"].missing == 1, "a row that cannot see it has none"


def test_a_table_may_be_split_by_progress():
    trace = made_of(copying(False, 2), {"gold": GOLD}, prompt=12, tokens=TOKENS)
    table = retrieval.retrieval_heads(trace, by=("progress",))
    first = rows(table, progress=0.05)["hit"]
    assert first.value == pytest.approx(1 / 4), "one head of four, in every step"
    whole = rows(retrieval.retrieval_heads(trace, by=()))["copy"].value
    parts = table[(table.quantity == "copy") & table.value.notna()].value
    assert parts.mean() == pytest.approx(whole)


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream", "tiny/arm"])
def test_real_runs_give_the_same_by_probe_and_by_map(name):
    model = load(name)
    text = "Passage: Lena was born in Oslo.\nThe ship was near the river.\nQuestion: Where was Lena born?"
    regions = {"gold": (0, 31), "d1": (32, 60)}
    left = aw.decoding.LeftToRight(6, stop=False)
    decoding = left if name == "tiny/arm" else aw.decoding.LowConfidence(6, 3)
    tables = []
    for probe in (P.commit_regions(), P.pattern()):
        probes = [*P.DEFAULT, probe]
        trace = aw.run(model, text, decoding, regions=regions, probes=probes)
        tables.append(retrieval.retrieval_heads(trace, distractors=["d1"]))
    for name in ("evidence_mass", "lift_without_sinks", "evidence_mass_minus_distractors"):
        one, two = (table[table.quantity == name] for table in tables)
        assert one.value.notna().all()
        np.testing.assert_allclose(
            one.value, two.value, rtol=tolerances.REST, atol=tolerances.METRIC
        )
    assert tables[1].value[tables[1].quantity == "auroc"].notna().all()


def test_what_cannot_be_asked():
    bare = planted(uniform(1, 1, 1, 6), prompt=5)
    with pytest.raises(SpecError, match=r"has no region 'gold': run\(\.\.\., regions="):
        retrieval.retrieval_heads(bare)
    trace = planted(uniform(1, 1, 1, 6), prompt=5, regions={"gold": [1, 2], "d1": [3], "empty": []})
    with pytest.raises(SpecError, match="has no region 'silver': it has gold, d1, empty"):
        retrieval.retrieval_heads(trace, "silver")
    with pytest.raises(TraceError, match="the region 'empty' of the trace is empty"):
        retrieval.retrieval_heads(trace, distractors=["empty"])
    with pytest.raises(SpecError, match="distractors='d1' is not a list"):
        retrieval.retrieval_heads(trace, distractors="d1")
    with pytest.raises(SpecError, match="name each once, gold is no distractor"):
        retrieval.retrieval_heads(trace, distractors=["gold"])
    with pytest.raises(SpecError, match="success is about 2 traces: give one bool for each of 1"):
        retrieval.retrieval_heads(trace, success=[True, False])
    with pytest.raises(SpecError, match="least=0 is not a number above 0"):
        retrieval.retrieval_depth(trace, least=0)
    lost = Trace(trace.dataset().drop_vars("commit_top_key"), trace.manifest)
    with pytest.raises(
        TraceError, match=r"aw\.replay\(model, trace, probes=\[aw\.probes\.top_keys"
    ):
        retrieval.retrieval_heads(lost)
