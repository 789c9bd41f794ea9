"""What an adversary tried: odd traces, numbers at their limits, asks that cannot be answered."""

import numpy as np
import pytest

import tolerances
from anchorwatch import metrics, rules
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.figures import registry
from anchorwatch.metrics import table_files
from anchorwatch.metrics.layer_slices import iter_layers
from anchorwatch.metrics.null import uniform_attention
from anchorwatch.metrics.similarity import _divergence_between_groups
from anchorwatch.trace.trace import Trace
from references import movement as slow
from synthetic_traces import column, planted, random_maps, uniform

KEYS = ("step", "layer", "head", "key")


def of_model(trace, **fields):
    """The same trace of a model that differs in these fields."""
    manifest = trace.manifest
    manifest["model"].update(fields)
    return Trace(trace.dataset(), manifest)


def one(table, quantity, **cell):
    rows = table[table["quantity"] == quantity]
    for name, value in cell.items():
        rows = rows[rows[name] == value]
    assert len(rows) == 1
    return rows.iloc[0]


@pytest.mark.parametrize("length", range(2, 60))
def test_an_even_null_has_no_gini_and_no_lift_made_of_rounding(length):
    trace = planted(random_maps(np.random.default_rng(0), (1, 1, 1, length)))
    found = one(metrics.concentration(trace, by=()), "gini")
    assert found.null == 0
    assert np.isnan(found.lift)


@pytest.mark.parametrize("length", range(2, 60))
def test_an_even_share_is_in_the_bin_that_begins_at_one(length):
    table = metrics.score_histogram(planted(uniform(1, 1, 1, length)), [0, 1, 2])
    assert one(table, "share_of_keys", score=1.0).null == 1
    assert one(table, "share_of_keys", score=1.0).value == 1
    assert one(table, "share_of_keys", score=0.0).value == 0


def test_a_key_that_receives_nothing_is_in_the_bin_that_begins_at_zero():
    maps = np.zeros((1, 1, 1, 4, 4))
    maps[..., 0] = 1
    table = metrics.score_histogram(planted(maps), [0, 1, 2])
    assert one(table, "share_of_keys", score=0.0).value == 0.75
    assert one(table, "share_of_keys", score=1.0).value == 0.25


def test_a_key_that_nobody_may_look_at_expects_exactly_nothing():
    rng = np.random.default_rng(0)
    for length in range(6, 40):
        trace = planted(random_maps(rng, (1, 1, 1, length)), prompt=length // 2)
        trace = of_model(trace, windows=[2])
        for group in ("all", "masked", "prompt"):
            null = uniform_attention(trace, [group], 2)
            assert (null.shares[null.visible == 0] == 0).all()


def test_a_sink_token_takes_its_part_of_indifferent_attention():
    maps = np.full((1, 1, 1, 4, 4), 1 / 5)  # the fifth is the sink token's
    trace = of_model(planted(maps), parts=[{"name": "sink_token"}])
    assert uniform_attention(trace, ["all"]).shares[0, 0] == pytest.approx([1 / 5] * 4)
    assert one(metrics.absorption(trace, ["first"], by=()), "first").lift == pytest.approx(1)


def test_shares_beside_a_sink_token_are_of_what_it_leaves_in_the_null_too():
    maps = np.full((1, 1, 1, 10, 10), 0.05)
    norms = np.ones((1, 1, 1, 10), dtype=np.float32)
    more = {"each_contribution_norm": (KEYS, norms)}
    trace = of_model(planted(maps, more=more), parts=[{"name": "sink_token"}])
    table = metrics.contributions(trace, rules.topk(2), by=())
    found = one(table, "attention_share")
    assert found.value == pytest.approx(0.2)
    assert found.null == pytest.approx(0.2)
    assert one(table, "no_op_share").value == pytest.approx(0, abs=tolerances.METRIC)


def test_what_attention_does_not_bring_is_a_share_of_what_a_sink_token_leaves():
    maps = np.full((1, 1, 1, 4, 4), 0.1)
    maps[..., 0] = 0.2
    norms = np.ones((1, 1, 1, 4), dtype=np.float32)
    norms[..., 0] = 0
    more = {"each_contribution_norm": (KEYS, norms)}
    trace = of_model(planted(maps, more=more), parts=[{"name": "sink_token"}])
    table = metrics.contributions(trace, rules.topk(1), by=())
    assert one(table, "no_op_share").value == pytest.approx(0.2 / 0.5)


def test_nothing_is_concentrated_where_the_sink_token_took_everything():
    trace = of_model(planted(np.zeros((1, 1, 1, 5, 5))), parts=[{"name": "sink_token"}])
    table = metrics.concentration(trace, by=())
    assert table["value"].isna().all()
    assert (table["missing"] == 1).all()


def test_agreement_counts_what_was_not_measured():
    maps = random_maps(np.random.default_rng(1), (4, 2, 3, 8))
    maps[1] = np.nan
    table = metrics.agreement(planted(maps), [rules.rulli(1), rules.topk(2)], by=("layer",))
    assert (table["missing"] == 3).all()


def test_the_greatest_key_is_held_to_a_rule_where_that_finds_a_sink():
    maps = np.stack([column(12, 3, 0.9), np.full((12, 12), 1 / 12)])[:, None, None]
    both = [rules.rulli(), rules.topk()]
    assert one(metrics.agreement(planted(maps), both), "kappa").value < 1
    assert one(metrics.agreement(planted(maps), both, given=rules.rulli()), "kappa").value == 1
    never = metrics.agreement(planted(maps[1:]), both)
    assert np.isnan(one(never, "kappa").value)


def test_jaccard_of_two_rules_expects_the_overlap_of_two_random_sets():
    maps = random_maps(np.random.default_rng(2), (1, 1, 1, 10))
    table = metrics.agreement(planted(maps), [rules.topk(4), rules.topk(2)])
    found = one(table, "jaccard")
    assert found.value == pytest.approx(2 / 4)
    assert found.null == pytest.approx(0.08 / (0.4 + 0.2 - 0.08))


def test_a_median_of_an_even_number_of_keys_is_between_two():
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    # middle 0.25, deviations 0.15 0.05 0.05 0.15: spread 0.14826
    assert rules.robust_zscore(1.0).labels(shares).tolist() == [False, False, False, True]
    assert not rules.robust_zscore(1.02).labels(shares).any()


def test_seeds_of_one_prompt_are_averaged_whatever_their_order():
    made = [
        planted(random_maps(np.random.default_rng(seed), (2, 1, 1, 6)), prompt=3, seed=seed)
        for seed in range(3)
    ]
    each = [one(metrics.sinks(trace, by=()), "greatest").value for trace in made]
    for order in (made, made[::-1]):
        found = one(metrics.sinks(order, by=()), "greatest")
        assert found.value == pytest.approx(np.mean(each))
        assert found.n == 1


def test_the_null_between_groups_pairs_each_step_with_another_as_a_whole():
    rng = np.random.default_rng(3)
    maps = random_maps(rng, (5, 1, 1, 9))
    trace = planted(maps, prompt=2)
    (layer,) = iter_layers(trace)
    there = (layer.is_measured("masked") & layer.is_measured("written")).T
    _, null = _divergence_between_groups(layer, ("masked", "written"), there)
    steps = np.flatnonzero(there.any(axis=0))
    order = np.random.default_rng(0).permutation(len(steps))
    for at, other in zip(steps, steps[order], strict=True):
        pair = layer.shares("masked")[at, 0], layer.shares("written")[other, 0]
        exact = slow.divergence(*(one.astype(float).tolist() for one in pair))
        assert null[0, at] == pytest.approx(exact, abs=tolerances.METRIC)


def test_maps_are_compared_on_the_rows_that_both_have():
    maps = random_maps(np.random.default_rng(4), (2, 1, 1, 5)).astype(np.float32)[:, 0, 0]
    maps[1, 3:] = np.nan
    picks = {f"pick_{name}": (("pick",), np.zeros(2, dtype=np.int32)) for name in ("layer", "head")}
    picks["pick_step"] = (("pick",), np.arange(2, dtype=np.int32))
    more = {"pattern": (("pick", "query", "key"), maps), **picks}
    trace = planted(random_maps(np.random.default_rng(4), (2, 1, 1, 5)), more=more)
    found = one(metrics.map_similarity(trace, lags=[1]), "map_cosine", lag=1)
    exact = [slow.cosine(maps[0, row].tolist(), maps[1, row].tolist()) for row in range(3)]
    assert found.value == pytest.approx(np.mean(exact), abs=tolerances.METRIC)


def test_sinks_beyond_the_peaks_count_among_the_others():
    maps = np.zeros((1, 1, 1, 6, 6))
    maps[..., :3] = [0.4, 0.3, 0.3]
    norms = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 9.0])
    cell, peak = ("step", "layer", "head"), ("step", "layer", "head", "peak")
    more = {
        "value_norm": (cell, np.full((1, 1, 1), norms.mean(), dtype=np.float32)),
        "peak_value_norm": (peak, norms[:2].reshape(1, 1, 1, 2).astype(np.float32)),
        "peak_key": (peak, np.arange(2, dtype=np.int32).reshape(1, 1, 1, 2)),
    }
    table = metrics.value_norms(planted(maps, more=more), rules.topk(3), by=())
    found = one(table, "sink")
    assert found.value == pytest.approx(norms[:2].mean())
    assert found.null == pytest.approx(norms[2:].mean())
    assert found.missing == 1


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda t: metrics.sinks(None), r"reads traces, not NoneType: aw\.read"),
        (lambda t: metrics.sinks(t, by=["layer", "layer"]), "names layer twice: name each once"),
        (lambda t: metrics.sinks(t, by=["trace", "trace"]), "names trace twice"),
        (lambda t: metrics.lifetime(t, by=["age"]), "lifetime has no age"),
        (lambda t: metrics.sinks(t, "rulli:3"), r"'rulli:3' is not a rule: aw\.rules\.rulli"),
        (lambda t: metrics.sinks(t, rules.rulli), "is not a rule"),
        (lambda t: metrics.agreement(t, ["rulli", "gu"]), "is not a rule"),
        (lambda t: metrics.score_histogram(t, [1]), "at least 2, from small to large"),
        (lambda t: metrics.score_histogram(t, [2, 1]), "from small to large"),
        (lambda t: metrics.score_histogram(t, [0, np.nan]), "from small to large"),
        (lambda t: metrics.epsilon_curve(t, [1, np.nan]), "from small to large"),
        (lambda t: metrics.epsilon_curve(t, 3), "from small to large"),
        (lambda t: metrics.epsilon_curve(t, [-1, 1]), "eps=-1.0 is not a number of at least 0"),
        (lambda t: metrics.epsilon_curve(t, scale="mean"), "can never fire"),
        (lambda t: metrics.absorption(t, []), "sets=.* is not a list: say sets="),
        (lambda t: metrics.absorption(t, [3]), "no set of keys is called 3"),
        (lambda t: metrics.split_index(t, groups=("masked",)), "is not a pair: say groups="),
        (lambda t: metrics.value_norm_points(t, seed=-1), "seed=-1 is not a whole number"),
        (lambda t: rules.topk(True), "k=True is not a whole number"),
        (lambda t: rules.rulli(True), "eps=True is not a number"),
        (lambda t: rules.from_dict({"name": "gu", "z": 3}), "gu has no z: it takes eps"),
        (lambda t: registry.draw("map-pair", [t]), "map-pair needs step, layer, head"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_what_can(ask, says):
    with pytest.raises(SpecError, match=says):
        ask(planted(uniform(3, 1, 1, 6), prompt=4))


def test_a_dim_that_is_always_there_may_be_asked_for():
    trace = planted(random_maps(np.random.default_rng(0), (4, 1, 1, 6)))
    plain, asked = (metrics.set_jaccard(trace, lags=[1, 2], by=by) for by in ((), ("lag",)))
    assert plain.equals(asked)


def test_rules_are_spelled_so_that_they_can_be_read_again():
    for rule in (rules.rulli(1 / 3), rules.gu(0.123456789), rules.topk(np.int64(3)), rules.mass()):
        assert rules.parse(str(rule)) == rule
        assert rules.from_dict(rule.as_dict()) == rule
    assert str(rules.rulli(np.float32(3))) == "rulli:3:sum"
    assert type(rules.topk(np.int64(3)).k) is int


def test_no_file_is_put_into_a_trace(tmp_path):
    trace = planted(uniform(2, 1, 1, 6), prompt=4)
    folder = trace.write(tmp_path / "trace")
    table = metrics.sinks(trace)
    figure = registry.draw("sinks", [trace])
    for spoil in (
        lambda at: table_files.save(table, at / "t.csv"),
        lambda at: figure.save(at / "f.pdf"),
    ):
        for at in (folder, folder / "received"):
            with pytest.raises(SpecError, match="is a trace, and a file in it would spoil it"):
                spoil(at)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(SpecError, match="is a folder: choose another name"):
        table_files.save(table, tmp_path / "folder.csv")


def test_a_table_goes_where_a_link_points(tmp_path):
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    table_files.save(metrics.sinks(planted(uniform(2, 1, 1, 6))), tmp_path / "link.csv")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text().startswith("model,")


@pytest.mark.parametrize("content", ["", "[1]", '"x"', "[" * 100_000, "{}"])
def test_a_table_that_does_not_say_what_made_it_is_refused(tmp_path, content):
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(TraceError, match="does not say what made it"):
        table_files.read_origin(tmp_path / "t.json")
    with pytest.raises(TraceError, match="there is no table at"):
        table_files.read_origin(tmp_path)


def test_figures_of_nothing_or_of_too_much_are_refused():
    absent = planted(np.full((2, 1, 1, 6, 6), np.nan))
    with pytest.raises(SpecError, match="nothing was measured"):
        registry.draw("score-histogram", [absent])
    many = [planted(uniform(2, 2, 2, 6), source=f"model {i}") for i in range(40)]
    with pytest.raises(SpecError, match="panels, too many for a page: show fewer models"):
        registry.draw("head-grid", many)
