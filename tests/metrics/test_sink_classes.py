"""What sinks are: planted answers, and every share against loops over dense maps."""

from collections import Counter

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tolerances
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics.sink_classes import enrichment, sink_tokens, structure, structure_trend
from anchorwatch.metrics.sink_rules import rulli, topk
from anchorwatch.metrics.token_classes import CLASSES
from references import identity as slow
from synthetic_traces import MASK_ID, column, planted, random_maps, uniform

EPS = 0.7357
TEXTS = {1: "\n", 2: " .", 3: " the", 4: " anchor", 5: " 7", 6: "</s>", 7: " ", 8: " ship"}
CLASS = {MASK_ID: "mask", 1: "newline", 2: "punctuation", 3: "function word", 4: "content"}
CLASS |= {5: "digit", 6: "end", 7: "space", 8: "content"}
KIND = dict.fromkeys((1, 2, 3, 6, 7), "structure") | dict.fromkeys((4, 5, 8), "content")
KIND |= {MASK_ID: "mask"}


@st.composite
def made_of_maps(draw, least_layers=1):
    """(trace, maps): random maps and tokens, both visibilities, a step or a layer absent."""
    causal = draw(st.booleans())
    steps, layers = draw(st.integers(1, 4)), draw(st.integers(least_layers, 4))
    prompt, heads = draw(st.integers(2, 8)), draw(st.integers(1, 3))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    maps = random_maps(generator, (steps, layers, heads, prompt + steps), causal=causal)
    if draw(st.booleans()):
        maps[draw(st.integers(0, steps - 1))] = np.nan
    if draw(st.booleans()):
        maps[:, draw(st.integers(0, layers - 1))] = np.nan
    return planted(
        maps,
        prompt=prompt,
        tokens=generator.integers(1, 9, prompt + steps),
        texts=TEXTS,
        visibility="causal" if causal else "bidirectional",
    ), maps


def rows_of(table, *names):
    """{cell: row}; a cell of one name is that name."""
    keys = zip(*(table[name] for name in names), strict=True)
    rows = (row for _, row in table.iterrows())
    found = {key if len(names) > 1 else key[0]: row for key, row in zip(keys, rows, strict=True)}
    assert len(found) == len(table)
    return found


def same(row, value, null):
    assert row["value"] == pytest.approx(value, abs=tolerances.METRIC, nan_ok=True)
    assert row["null"] == pytest.approx(null, abs=tolerances.METRIC, nan_ok=True)


def divided(top, bottom):
    return top / bottom if bottom else np.nan


@given(made_of_maps(), st.sampled_from(["all", "masked", "written"]), st.booleans())
def test_enrichment_is_what_loops_count(made, group, matched):
    trace, maps = made
    rule = rulli(EPS)
    table = rows_of(
        enrichment(trace, rule, group=group, by=["layer"], matched=matched), "class", "layer"
    )
    counts = slow.class_counts(trace, maps, CLASS, EPS, group)
    pooled = [sum((layer[i] for layer in counts.values()), Counter()) for i in range(3)]
    for layer, (sinks, keys, placed) in counts.items():
        base = placed if matched else keys
        for name in CLASSES:
            found = divided(sinks[name], sinks.total())
            null = divided(base[name], base.total()) if sinks else np.nan
            same(table[name, layer], found, null)
    together = rows_of(enrichment(trace, rule, group=group, matched=matched), "class")
    base = pooled[2 if matched else 1]
    for name in CLASSES if pooled[0] else ():
        same(together[name], pooled[0][name] / pooled[0].total(), base[name] / base.total())


@settings(max_examples=12)
@given(made_of_maps())
def test_absent_cells_are_counted_and_shares_sum_to_one(made):
    trace, maps = made
    table = enrichment(trace, rulli(EPS), by=["layer"])
    measured = Counter(layer for _, layer, *_ in slow.cells(trace, maps))
    for (layer,), rows in table.groupby(["layer"]):
        assert (rows.missing == maps.shape[0] * maps.shape[2] - measured[layer]).all()
        assert rows.value.isna().all() or rows.value.sum() == pytest.approx(1)
        assert rows.null.isna().all() or rows.null.sum() == pytest.approx(1)


@given(made_of_maps(), st.sampled_from(["all", "masked"]))
def test_sink_tokens_are_what_a_plain_loop_counts(made, group):
    trace, maps = made
    table = sink_tokens(trace, rulli(EPS), top=None, group=group)
    sinks, keys = slow.token_counts(trace, maps, EPS, group)
    assert sinks or table.value.isna().all()
    assume(sinks)
    for text, row in rows_of(table, "token").items():
        same(row, sinks[text] / sinks.total(), keys[text] / keys.total())
    assert set(table.token) == set(sinks)
    assert table.value.sum() == pytest.approx(1)
    ranked = sorted(sinks, key=lambda text: (-sinks[text], text))
    assert list(table.token) == ranked and list(table["rank"]) == list(range(1, len(table) + 1))
    best = sink_tokens(trace, rulli(EPS), top=2, group=group)
    assert list(best.token) == ranked[:2]


@settings(max_examples=12)
@given(made_of_maps())
def test_sink_tokens_split_by_layer_step_and_head_add_up(made):
    trace, maps = made
    sinks, _ = slow.token_counts(trace, maps, EPS)
    table = sink_tokens(trace, rulli(EPS), top=None, by=["step", "layer", "head"])
    for step, layer, head, shares, _ in slow.cells(trace, maps):
        at = table[(table.step == step) & (table.layer == layer) & (table["head"] == head)]
        found = Counter(
            trace.token(int(trace.canvas[step, j])) for j in slow.rulli_sinks(shares, EPS)
        )
        for row in at.itertuples() if found else ():
            assert row.value == pytest.approx(found[row.token] / found.total())
    assert not sinks or set(table.token) == set(sinks)


@given(made_of_maps(), st.sampled_from(["all", "written"]))
def test_structure_is_what_loops_add_up(made, group):
    trace, maps = made
    table = rows_of(structure(trace, rulli(EPS), group=group), "quantity", "layer")
    for layer, sums in slow.kind_shares(trace, maps, KIND, EPS, group).items():
        for kind in ("structure", "mask", "content"):
            same(
                table[kind, layer],
                divided(sums[kind], sums["cells"]),
                divided(sums[kind, "null"], sums["cells"]),
            )
            of_sinks = divided(sums[kind, "sinks"], sums["on_sinks"])
            null = divided(sums[kind, "sinks null"], sums["on_sinks"])
            same(table[f"{kind}_of_sinks", layer], of_sinks, null)


@settings(max_examples=12)
@given(made_of_maps(least_layers=3))
def test_the_trend_is_spearmans_rho_of_what_structure_says(made):
    trace, _ = made
    shares = structure(trace, rulli(EPS))
    trend = rows_of(structure_trend(trace, rulli(EPS)), "quantity")
    for name in ("structure_of_sinks", "content"):
        values = shares[shares.quantity == name].sort_values("layer").value.dropna()
        if len(values) < 2 or values.nunique() < 2:
            assert np.isnan(trend[name]["value"]) and trend[name]["missing"] == 1
            continue
        rho = scipy.stats.spearmanr(np.arange(len(values)), values).statistic
        assert trend[name]["value"] == pytest.approx(rho, abs=tolerances.METRIC)
        assert trend[name]["null"] == 0


def newlines(seed, prompt=24, steps=4):
    """Sinks on newlines, every fourth token, and on nothing else."""
    length = prompt + steps
    tokens = np.where(np.arange(length) % 4 == 3, 1, 4)
    tokens[0] = 8 if seed % 2 else 3
    rows = np.full((length, length), 0.1 / (length - 2))
    rows[:, [3, 7]] = 0.45
    maps = np.broadcast_to(rows, (steps, 2, 2, length, length)).copy()
    return planted(maps, prompt=prompt, tokens=tokens, texts=TEXTS, seed=seed)


def test_sinks_on_newlines_only_are_enriched_by_one_over_their_base():
    trace = newlines(0)
    newline = rows_of(enrichment(trace, rulli(3)), "class")["newline"]
    base = np.mean(trace.canvas[:-1] == 1)
    assert newline["value"] == 1
    assert newline["lift"] == pytest.approx(1 / base)
    assert newline["log2"] == pytest.approx(-np.log2(base))
    others = enrichment(trace, rulli(3)).query("`class` != 'newline'")
    assert (others.value == 0).all()


def test_matched_sinks_are_compared_with_the_keys_of_their_own_steps():
    """Masks are half of the keys while there are sinks, and few of them afterwards."""
    maps = uniform(4, 1, 1, 16)
    maps[0, 0, 0] = column(16, 15, 0.9)
    trace = planted(maps, prompt=8, committed_at=[-1] * 8 + [0] * 7 + [3], texts=TEXTS)
    plain = rows_of(enrichment(trace, rulli(3)), "class")["mask"]
    fair = rows_of(enrichment(trace, rulli(3), matched=True), "class")["mask"]
    assert plain["value"] == fair["value"] == 1
    assert plain["null"] == pytest.approx((8 + 3 * 1) / 64)
    assert fair["null"] == pytest.approx(8 / 16)


def test_the_lift_has_an_interval_of_its_own():
    traces = [newlines(seed) for seed in range(6)]
    table = enrichment(traces, rulli(3))
    assert (table.n == 2).all()  # seeds that give the same prompt are one prompt
    assert table.lift_low.isna().all()
    traces = [newlines(0, prompt=24 + more) for more in range(6)]
    newline = rows_of(enrichment(traces, rulli(3)), "class")["newline"]
    assert newline["n"] == 6 and newline["low"] == newline["high"] == 1
    bases = [np.mean(trace.canvas[:-1] == 1) for trace in traces]
    assert 1 / max(bases) < newline["lift_low"] < newline["lift"] < newline["lift_high"]
    assert newline["lift"] == pytest.approx(1 / np.mean(bases))
    assert newline["lift_n"] == 6


def test_a_class_that_stands_in_few_prompts_has_no_interval():
    """One prompt of six holds the word: resampling six would give it a spread of nothing."""
    traces = [newlines(0, prompt=24 + more) for more in range(6)]
    word = newlines(0, prompt=31)
    tokens = np.where(np.arange(35) == 9, 5, word.canvas[-1])
    traces.append(
        planted(
            np.broadcast_to(column(35, 9, 0.9), (4, 2, 2, 35, 35)).copy(),
            prompt=31,
            tokens=tokens,
            texts=TEXTS,
        )
    )
    digit = rows_of(enrichment(traces, rulli(3)), "class")["digit"]
    assert digit["n"] == 7 and digit["lift_n"] == 1
    assert digit["lift"] == pytest.approx(35) and np.isnan(digit["lift_low"])


def test_table_2_has_the_papers_form():
    """The token is read from the current canvas: a masked position counts as the mask."""
    length = 20
    maps = np.stack(
        [np.broadcast_to(column(length, 16 + s, 0.8), (2, 3, length, length)) for s in (0, 0, 2, 3)]
    )
    trace = planted(maps, prompt=16, tokens=[4] * 16 + [1, 2, 3, 5], texts=TEXTS)
    table = sink_tokens(trace, rulli(3))
    # The sink is at 16, masked and then a newline, and at 18 and 19, both still masked.
    assert list(table.token) == ["<mask>", "\n"]
    assert table.value.tolist() == [0.75, 0.25]
    masks = np.mean(trace.canvas[:-1] == MASK_ID)
    assert table.null.tolist() == pytest.approx([masks, np.mean(trace.canvas[:-1] == 1)])
    assert list(table["rank"]) == [1, 2]


def test_a_token_that_one_prompt_lacks_is_zero_there_and_not_absent():
    one = newlines(0)
    other = planted(
        np.broadcast_to(column(28, 27, 0.9), (4, 2, 2, 28, 28)).copy(),
        prompt=24,
        tokens=[2] * 28,
        texts=TEXTS,
    )
    table = rows_of(sink_tokens([one, other], rulli(3)), "token")
    assert table["\n"]["value"] == table["<mask>"]["value"] == 0.5
    assert table["\n"]["n"] == 2
    assert table["\n"]["null"] == pytest.approx(np.mean(one.canvas[:-1] == 1) / 2)


def test_halves_of_characters_are_named_by_their_bytes():
    trace = planted(np.broadcast_to(column(12, 5, 0.9), (1, 1, 1, 12, 12)).copy(), prompt=11)
    manifest = trace.manifest
    manifest["token_bytes"] = {"6": "e4bd"}
    table = sink_tokens(type(trace)(trace.dataset(), manifest), rulli(3))
    assert list(table.token) == ["<0xE4BD>"]


def test_shallow_structure_and_deep_content_is_a_trend():
    length, layers = 24, 4
    texts = dict.fromkeys(range(1, 13), "\n") | dict.fromkeys(range(13, 25), " anchor")
    maps = uniform(3, layers, 2, length)
    for layer in range(layers):
        rows = np.full((length, length), 0.01 / (length - 2))
        rows[:, 2], rows[:, 20] = 0.99 * (layers - layer) / 5, 0.99 * (layer + 1) / 5
        maps[:, layer] = rows
    trace = planted(maps, prompt=21, texts=texts)
    table = rows_of(structure_trend(trace, rulli(3)), "quantity")
    assert table["structure_of_sinks"]["value"] == pytest.approx(-1)
    assert table["content"]["value"] == pytest.approx(1)
    by_head = structure_trend(trace, rulli(3), by=["head", "progress"]).dropna(subset="value")
    assert set(by_head["head"]) == {0, 1} and (by_head.value.abs() > 0.99).all()


def test_permuted_heads_give_permuted_rows():
    generator = np.random.default_rng(3)
    maps = random_maps(generator, (3, 2, 3, 12))
    tokens = generator.integers(1, 9, 12)
    order = [2, 0, 1]
    one = planted(maps, prompt=9, tokens=tokens, texts=TEXTS)
    other = planted(maps[:, :, order], prompt=9, tokens=tokens, texts=TEXTS)
    for metric in (enrichment, structure):
        a = metric(one, rulli(EPS), by=["head"]).groupby("head").value
        b = metric(other, rulli(EPS), by=["head"]).groupby("head").value
        for new, old in enumerate(order):
            assert np.array_equal(b.get_group(new), a.get_group(old), equal_nan=True)


def test_the_same_prompt_twice_changes_nothing():
    trace = newlines(0)
    for metric in (enrichment, sink_tokens, structure, structure_trend):
        once, twice = metric(trace, topk(2)), metric([trace, trace], topk(2))
        numbers = ["value", "null", "lift", "n"]
        assert np.array_equal(once[numbers], twice[numbers], equal_nan=True), metric.__name__


def test_models_have_their_own_tokens():
    one = newlines(0)
    other = planted(uniform(1, 1, 1, 12), prompt=11, source="other")
    table = sink_tokens([one, other], rulli(3))
    assert set(table[table.model == "planted"].token) == {"\n"}
    assert table[table.model == "other"].value.isna().all()  # no sinks at all: absent, not zero


def test_template_and_evidence_need_be_in_one_of_the_traces_only():
    one = planted(uniform(1, 1, 1, 6), prompt=5, texts={1: "Q:"}, regions={"gold": [3]})
    other = planted(uniform(1, 1, 1, 6), prompt=5, tokens=[9] * 6)
    table = enrichment([one, other], topk(1), template=["Q:"], evidence=["gold"])
    assert table.attrs["about"]["template"] == ["Q:"]
    rows = rows_of(table, "class")
    assert rows["template"]["null"] == pytest.approx(1 / 12)
    assert rows["answer-bearing"]["null"] == pytest.approx(1 / 12)


def test_what_cannot_be_asked_is_said():
    trace = newlines(0)
    with pytest.raises(SpecError, match=r"top=0 is not a whole number of at least 1, nor None"):
        sink_tokens(trace, top=0)
    for metric in (sink_tokens, structure_trend):
        with pytest.raises(SpecError, match=r"by='head' is not a list: say by=\['head'\]"):
            metric(trace, by="head")
    with pytest.raises(SpecError, match=r"cannot be split by layer: leave it out of by"):
        structure_trend(trace, by=["layer"])
    with pytest.raises(SpecError, match=r"share has no lag: it can be split by"):
        enrichment(trace, by=["lag"])
    with pytest.raises(TraceError, match=r"not of 'prompt': .*groups="):
        enrichment(trace, group="prompt")
    with pytest.raises(SpecError, match=r"stands in no prompt"):
        structure(trace, template=["Passage"])
