"""Tables: planted answers give back what was planted, and slow twins agree."""

import dataclasses
from unittest import mock

import numpy as np
import pandas as pd
import pytest

import anchorwatch as aw
from anchorwatch import stats
from anchorwatch.errors import SpecError
from anchorwatch.evaluation import tables
from anchorwatch.evaluation.results import Results, build_results
from anchorwatch.evaluation.scores import score_all
from tolerances import STATISTIC

KINDS = {"mdm": "mdm", "arm": "arm", "other": "mdm"}
PLACES = ["Oslo", "Bergen", "Tromso", "Molde", "Narvik", "Voss", "Hamar", "Bodo"]


def results_of(cells, lost=()):
    """Results in which item i of a cell is right where its list says so."""
    rows, manifests = [], {}
    for number, ((model, context, edit), right) in enumerate(cells.items()):
        cell = f"{number:016x}"
        manifests[cell] = {
            "model": {"source": model, "kind": KINDS[model], "weights": f"weights of {model}"},
            "task": {"name": "planted"}, "context": context, "edit": edit, "edits": [],
            "decoding": {"name": "LowConfidence"}, "seed": 0,
        }  # fmt: skip
        for at, good in enumerate(right):
            answer = PLACES[at % len(PLACES)]
            said = answer if good else "nowhere"
            unfit = "it does not fit" if (model, context, edit, at) in lost else ""
            scores = (
                dict.fromkeys(score_all("", [""]), np.nan) if unfit else score_all(said, [answer])
            )
            rows.append(
                {"model": model, "kind": KINDS[model], "context": context, "edit": edit,
                 "item": f"item {at:03}", "prediction": said, "answers": [answer], "unfit": unfit,
                 "narrow": 0, "cell": cell, "misled": np.nan, "task": "planted", **scores}
            )  # fmt: skip
    return build_results(rows, manifests, {})


def share(count, of):
    return [at < count for at in range(of)]


@pytest.fixture(scope="module")
def planted():
    """Forty items: the diffusion model gains 30, the autoregressive one 10."""
    return results_of(
        {
            ("mdm", "closed", "none"): share(4, 40),
            ("mdm", "gold", "none"): share(34, 40),
            ("arm", "closed", "none"): share(8, 40),
            ("arm", "gold", "none"): share(18, 40),
        }
    )


def row(table, **keys):
    for name, value in keys.items():
        table = table[table[name] == value]
    assert len(table) == 1, table
    return table.iloc[0]


def test_accuracy_with_interval_and_null(planted):
    table = tables.accuracy(planted)
    found = row(table, model="mdm", context="gold", quantity="exact_match")
    assert found.value == 34 / 40 and found.n == 40 and found.missing == 0
    twin = stats.cluster_bootstrap(np.array(share(34, 40), dtype=float))
    assert (found.low, found.high) == (float(twin.low), float(twin.high))
    assert set(table.quantity) == set(score_all("", [""]))
    assert list(dict.fromkeys(table.context)) == ["closed", "gold"]
    assert len(table.attrs["traces"]) == 4
    assert table.attrs["traces"][0]["prompt"] == "planted closed"


def test_the_null_of_a_score_is_what_the_answers_score_elsewhere():
    """Whoever always says Oslo is right one time in four, and so is the null: no lift."""
    found = results_of({("mdm", "gold", "none"): share(0, 40)})
    rows = found.rows.assign(prediction="Oslo")
    rows["answers"] = [[PLACES[at % 4]] for at in range(40)]
    rows["exact_match"] = [float(at % 4 == 0) for at in range(40)]
    always = dataclasses.replace(found, rows=rows)
    got = row(tables.accuracy(always, ["exact_match"]))
    assert got.value == 0.25
    # of answers other than the item's own: 0 on the ten Oslo items, 10 / 30 on the thirty others
    assert got.null == pytest.approx(0.25, abs=0.02)
    assert got.lift == pytest.approx(1.0, abs=0.1)
    right = row(
        tables.accuracy(results_of({("mdm", "gold", "none"): share(40, 40)}), ["exact_match"])
    )
    assert right.value == 1 and right.null == 0 and np.isnan(right.lift)


def test_all_alike_has_wilson_s_interval_or_none():
    found = results_of(
        {("mdm", "closed", "none"): share(0, 10), ("mdm", "gold", "none"): share(10, 10)}
    )
    table = tables.accuracy(found)
    zero = row(table, context="closed", quantity="containment")
    assert zero.low == 0 and zero.high == float(stats.wilson(0, 10).high) and zero.interval == ""
    assert row(table, context="closed", quantity="token_f1").interval == "no two items differ"
    gain = row(tables.gains(found), quantity="gain")
    assert gain.value == 1 and np.isnan(gain.low) and gain.interval == "no two items differ"


def test_few_items_have_no_interval():
    found = results_of(
        {("mdm", "closed", "none"): share(1, 4), ("mdm", "gold", "none"): share(3, 4)}
    )
    assert (
        row(tables.accuracy(found, ["containment"]), context="gold").interval == "4 items, 5 needed"
    )
    gain = row(tables.gains(found), quantity="gain")
    assert gain.value == 0.5 and np.isnan(gain.low) and gain.interval == "4 items, 5 needed"


@pytest.mark.parametrize(("closed", "some"), [(10, 2000), (9, None), (2, 0)])
def test_a_share_of_no_room_has_no_interval_and_says_so(closed, some):
    """Resamplings in which the closed book is always right have no share: none is left out."""
    found = results_of(
        {("mdm", "closed", "none"): share(closed, 10), ("mdm", "gold", "none"): share(9, 10)}
    )
    room = row(tables.gains(found), quantity="share_of_room")
    weights = stats.clusters.draw_clusters(10, tables.DRAWS, np.random.default_rng(0))
    absent = int((weights @ share(closed, 10) == 10).sum())
    assert some in (None, absent) and np.isnan(room.value) == (closed == 10)
    assert np.isnan(room.low) == np.isnan(room.high) == (absent > 0)
    assert room.interval == (f"no value in {absent} of 2000 resamplings" if absent else "")


def test_resamplings_are_drawn_once(planted):
    tables._weights.cache_clear()
    with mock.patch.object(tables, "draw_clusters", wraps=stats.clusters.draw_clusters) as drawn:
        tables.effects(planted)
        tables.gains(planted)
    assert drawn.call_count == 1


def test_gains_are_paired(planted):
    table = tables.gains(planted)
    gain = row(table, model="mdm", quantity="gain")
    a, b = (np.array(share(count, 40), dtype=float) for count in (34, 4))
    twin = stats.difference(a, b, paired=True)
    for got, expected in ((gain.value, twin.value), (gain.low, twin.low), (gain.high, twin.high)):
        assert got == pytest.approx(float(expected), abs=STATISTIC)
    room = row(table, model="mdm", quantity="share_of_room")
    assert room.value == pytest.approx(30 / 36, abs=STATISTIC)
    assert row(table, model="arm", quantity="share_of_room").value == pytest.approx(10 / 32)


def test_the_ratio_of_gains(planted):
    found = row(tables.gain_ratios(planted))
    assert found.value == pytest.approx(3.0, abs=STATISTIC) and found.null == 1
    rng = np.random.default_rng(0)
    weights = stats.clusters.draw_clusters(40, 2000, rng)
    cells = [np.array(share(count, 40), dtype=float) for count in (4, 34, 8, 18)]
    drawn = []
    for weight in weights:  # the slow twin: one resampled evaluation after another
        means = [np.average(cell, weights=weight) for cell in cells]
        drawn.append((means[1] - means[0]) / (means[3] - means[2]))
    tail = float(stats.clusters.tail_share(0.95, np.array(40)))
    low, high = np.quantile(drawn, [tail, 1 - tail])
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    none = results_of(
        {
            ("mdm", "closed", "none"): share(4, 40),
            ("mdm", "gold", "none"): share(34, 40),
            ("arm", "closed", "none"): share(8, 40),
            ("arm", "gold", "none"): share(9, 40),
        }
    )
    weak = row(tables.gain_ratios(none))
    assert weak.value == pytest.approx(30.0) and np.isnan(weak.low)
    assert weak.interval == "the autoregressive gain is not clearly above 0"


def test_a_gain_of_every_item_is_clearly_above_0():
    cells = {("mdm", "closed", "none"): share(0, 40), ("mdm", "gold", "none"): share(34, 40)}
    cells |= {("arm", "closed", "none"): share(0, 40), ("arm", "gold", "none"): share(40, 40)}
    found = row(tables.gain_ratios(results_of(cells)))
    assert found.value == pytest.approx(0.85)
    assert found.low < 0.85 < found.high < 1


def under(model, cells, edit="none"):
    return {(model, name, edit): list(values) for name, values in cells.items()}


def test_the_slope_per_doubling():
    """Nested items: each doubling of the passages costs exactly eight of eighty."""
    right = {
        f"gold+{n}" if n else "gold": share(72 - 8 * k, 80) for k, n in enumerate((0, 1, 3, 7))
    }
    found = row(
        tables.effects(results_of(under("mdm", right))), effect="slope per doubling of random"
    )
    assert found.value == pytest.approx(-0.1, abs=STATISTIC) and found.null == 0
    assert found.low < -0.1 < found.high < 0
    per_item = np.array([np.polyfit([0, 1, 2, 3], values, 1)[0] for values in zip(*right.values(), strict=True)])  # fmt: skip
    twin = stats.cluster_bootstrap(per_item)
    assert found.low == pytest.approx(float(twin.low), abs=STATISTIC), (
        "the mean of items' own slopes"
    )
    assert found.high == pytest.approx(float(twin.high), abs=STATISTIC)


def test_position_effects():
    curve = {"gold@1/5": 60, "gold@2/5": 40, "gold@3/5": 20, "gold@4/5": 40, "gold@5/5": 70}
    found = results_of(under("mdm", {name: share(count, 100) for name, count in curve.items()}))
    table = tables.effects(found)
    assert row(table, effect="U-index of 5").value == pytest.approx(0.65 - 0.2)
    assert row(table, effect="range of 5").value == pytest.approx(0.5)
    slope = np.polyfit([0, 0.25, 0.5, 0.75, 1], [0.6, 0.4, 0.2, 0.4, 0.7], 1)[0]
    assert row(table, effect="locality slope of 5").value == pytest.approx(slope)
    assert (table.test == "position").all()


def test_indices_of_the_worst_place_have_a_null_above_zero():
    """Where places do not matter, the worst of three is still below the mean of two."""
    rng = np.random.default_rng(5)
    cells = {f"gold@{place}/5": rng.random(60) < 0.5 for place in range(1, 6)}
    table = tables.effects(results_of(under("mdm", cells)))
    index, spread = (row(table, effect=f"{name} of 5") for name in ("U-index", "range"))
    assert index.null > 0.02 and spread.null > 0.08
    slow = []
    values = np.array(list(cells.values()), dtype=float).T
    for _ in range(2000):
        mixed = np.array([rng.permutation(one) for one in values]).mean(axis=0)
        slow.append((mixed[0] + mixed[4]) / 2 - mixed[1:4].min())
    assert index.null == pytest.approx(
        np.mean(slow), abs=4 * np.std(slow) / np.sqrt(tables.PERMUTATIONS)
    )


def test_layouts_masks_kinds_and_wording():
    cells = {
        "adjacent+4": share(30, 40), "far+4": share(20, 40), "reversed+4": share(25, 40),
        "gold": share(36, 40), "gold~masks16": share(30, 40), "gold~typos10": share(33, 40),
        "gold~paraphrase": share(35, 40), "gold+2": share(34, 40), "gold+2hard": share(26, 40),
        "irrelevant1/4": share(30, 40), "irrelevant3/4": share(20, 40),
    }  # fmt: skip
    table = tables.effects(results_of(under("mdm", cells))).set_index("effect")
    expected = {
        "adjacent+4 minus far+4": ("layout", 10 / 40),
        "adjacent+4 minus reversed+4": ("layout", 5 / 40),
        "gold~masks16 minus gold": ("masks", -6 / 40),
        "gold~typos10 minus gold": ("wording", -3 / 40),
        "gold~paraphrase minus gold": ("wording", -1 / 40),
        "gold+2hard minus gold+2": ("noise", -8 / 40),
        "slope of the irrelevant share of 4": ("irrelevant", -10 / 40 / 0.5),
    }
    for name, (test, value) in expected.items():
        assert table.loc[name].test == test and table.loc[name].value == pytest.approx(value), name


def test_interactions_are_differences_of_effects_on_the_same_items():
    one = {
        "closed": share(4, 60),
        "gold": share(50, 60),
        "gold+1": share(46, 60),
        "gold+3": share(42, 60),
    }
    two = {
        "closed": share(10, 60),
        "gold": share(40, 60),
        "gold+1": share(30, 60),
        "gold+3": share(20, 60),
    }
    found = results_of(under("mdm", one) | under("arm", two))
    own = tables.effects(found).set_index(["model", "effect"]).value
    table = tables.interactions(found)
    assert len(table) == 4
    for got in table.itertuples():
        expected = own["mdm", got.effect] - own["arm", got.effect]
        assert got.value == pytest.approx(expected, abs=STATISTIC) and got.n == 60
        assert got.low < got.value < got.high
    assert row(table, effect="slope per doubling of random").value == pytest.approx(
        10 / 60 - 4 / 60
    )


def test_mcnemar_between_edits_and_models():
    cells = {
        ("mdm", "gold", "none"): [1, 1, 1, 1, 1, 1, 1, 1, 0, 0],
        ("mdm", "gold", "random"): [1, 1, 1, 1, 1, 1, 1, 0, 1, 0],
        ("mdm", "gold", "sinks"): [0, 0, 0, 0, 0, 0, 0, 1, 0, 0],
        ("other", "gold", "none"): [1, 1, 1, 1, 0, 0, 0, 0, 0, 0],
    }
    found = results_of(cells)
    table = tables.edits_compared(found)
    assert len(table) == 3
    pair = row(table, a="none", b="sinks")
    twin = stats.mcnemar(7, 0, both=1, neither=2)
    assert (pair.a_only, pair.b_only, pair.p) == (7, 0, float(twin.p))
    assert (pair.value, pair.low, pair.high) == (0.7, float(twin.low), float(twin.high))
    np.testing.assert_allclose(table.p_holm, stats.holm(table.p))
    both = row(tables.models_compared(found))
    assert (both.a, both.b, both.value) == ("mdm", "other", 0.4)
    with pytest.raises(SpecError, match="token_f1 is neither: use one of exact_match, containment"):
        tables.edits_compared(found, "token_f1")


def test_items_that_a_cell_could_not_ask_are_left_out_of_the_pair_and_counted():
    cells = {("mdm", "closed", "none"): share(2, 20), ("mdm", "gold", "none"): share(12, 20)}
    lost = {("mdm", "gold", "none", at) for at in range(4)}
    found = results_of(cells, lost)
    assert row(tables.accuracy(found, ["containment"]), context="gold").missing == 4
    gain = row(tables.gains(found), quantity="gain")
    assert (gain.n, gain.missing) == (16, 4) and gain.value == pytest.approx(8 / 16)
    assert found.num_unfit == 4


@pytest.mark.parametrize(
    ("test", "column", "values"),
    [
        ("position", "place", [1, 2]),
        ("noise", "distractors", [0, 4]),
        ("irrelevant", "share", [0.2, 0.6]),
        ("masks", "masks", [0, 16]),
        ("layout", "shown", ["adjacent+2", "far+2"]),
        ("wording", "shown", ["gold", "gold~typos10"]),
    ],
)
def test_curves(test, column, values):
    names = ["closed", "gold", "gold+4", "gold@1/2", "gold@2/2", "irrelevant1/5", "irrelevant3/5",
             "gold~masks16", "adjacent+2", "far+2", "gold~typos10"]  # fmt: skip
    found = results_of(under("mdm", {name: share(at, 11) for at, name in enumerate(names)}))
    table = tables.curve(found, test)
    assert sorted(table[column]) == values
    assert table.attrs["about"]["test"] == test
    with pytest.raises(SpecError, match="expected one of gain, position, noise"):
        tables.curve(found, "weather")


def test_the_guesser_is_a_mean_over_the_items_that_were_asked():
    right = {("mdm", "gold", "none"): share(6, 8), ("mdm", "gold+1", "none"): share(3, 8)}
    found = results_of(right, lost={("mdm", "gold+1", "none", 0)})
    assert tables.accuracy(found).guesser.isna().all(), "older results do not know it"
    found.rows["guesser"] = np.where(found.rows.context == "gold", 1.0, 0.5)
    found.rows.loc[found.rows.unfit != "", "guesser"] = 0.0
    table = tables.accuracy(found)
    for name, chance in (("gold", 1.0), ("gold+1", 0.5)):
        assert row(table, context=name, quantity="containment").guesser == chance
    assert table[table.quantity == "token_f1"].guesser.isna().all(), "no word is right or wrong"
    assert tables.curve(found, "noise").guesser.tolist() == [1.0, 0.5]


def test_a_curve_of_nothing():
    found = results_of(under("mdm", {"closed": share(1, 6)}))
    with pytest.raises(SpecError, match="no context shows position: closed were asked"):
        tables.curve(found, "position")
    with pytest.raises(SpecError, match="nothing was asked in the context closed beside another"):
        tables.gains(found)
    with pytest.raises(SpecError, match="no score is called 'luck': expected one of exact_match"):
        tables.accuracy(found, ["luck"])


def test_every_table_that_says_something(planted):
    assert list(tables.stress_tables(planted)) == [
        "accuracy", "effects", "gains", "interactions", "gain_ratios", "models",
    ]  # fmt: skip


def test_effects_cover_random_draws():
    """The interval of a planted gain covers it about as often as it says."""
    hits = 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        cells = {"closed": rng.random(50) < 0.2, "gold": rng.random(50) < 0.6}
        found = row(tables.gains(results_of(under("mdm", cells))), quantity="gain")
        hits += found.low <= 0.4 <= found.high
    assert hits >= 70


def test_attention_beside_correctness(tmp_path, monkeypatch):
    found = aw.evaluation.evaluate(
        "tiny/llada", "synthetic/one-hop", contexts="gold", limit=3, out=tmp_path,
        decoding=aw.decoding.LowConfidence(length=4, steps=2), probes=[aw.probes.received()],
    )  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    joined = tables.join_attention(
        found, f"~/{tmp_path.name}", lambda traces: aw.metrics.concentration(traces, by=["trace"])
    )
    assert set(joined.item) == set(found.rows.item)
    one = joined[joined.quantity == joined.quantity.iloc[0]]
    assert len(one) == 3 and one.value.notna().all() and one.containment.notna().all()
    trace = aw.read(tmp_path / one.cell.iloc[0] / "traces" / f"{one.item.iloc[0]}.trace")
    alone = aw.metrics.concentration([trace], by=[])
    assert one.value.iloc[0] == alone[alone.quantity == one.quantity.iloc[0]].value.item()
    with pytest.raises(SpecError, match=r"give it by=\['trace'\]"):
        tables.join_attention(found, tmp_path, lambda traces: aw.metrics.concentration(traces))
    with pytest.raises(SpecError, match=r"no traces are kept in .* evaluate\(\.\.\., probes"):
        tables.join_attention(found, tmp_path / "other", lambda traces: traces)


def test_one_source_with_other_weights_has_two_names():
    rows = [{"model": "m", "kind": "mdm", "context": "gold", "edit": "none", "item": "i", "cell": c,
             "unfit": "", "narrow": 0} for c in "ab"]  # fmt: skip
    held = {c: {"model": {"source": "m", "weights": c * 10}} for c in "ab"}
    assert list(build_results(rows, held, {}).rows.model) == ["m@aaaaaaaa", "m@bbbbbbbb"]
    assert isinstance(Results(pd.DataFrame(rows), held), Results)


def test_effects_of_names_alone():
    assert tables.find_effects(["gold"]) == []
    assert [one.name for one in tables.find_effects(["gold@1/3", "gold@3/3"])] == [
        "locality slope of 3",
        "range of 3",
    ]


def test_results_of_several_evaluations_are_not_mixed(planted):
    other = dataclasses.replace(planted, rows=planted.rows.assign(task="another"))
    both = dataclasses.replace(planted, rows=pd.concat([planted.rows, other.rows]))
    with pytest.raises(
        SpecError, match=r"of 2 tasks: take one, read_results\(out, task='planted'\)"
    ):
        tables.accuracy(both)
    twice = dataclasses.replace(planted, rows=pd.concat([planted.rows, planted.rows]))
    with pytest.raises(SpecError, match=r"another seed, template or decoding: take what evaluate"):
        tables.effects(twice)
