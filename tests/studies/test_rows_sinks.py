"""Rows that claims about sinks rest on, against what was planted and against slower ways."""

import numpy as np
import pytest
import torch

import tolerances
from anchorwatch.models.load import load
from anchorwatch.studies import prompts
from anchorwatch.studies.evidence import EXPERIMENTS
from anchorwatch.studies.papers.sinks import experiments as rows_sinks
from anchorwatch.trace.trace import MASKED, PROMPT, WRITTEN
from synthetic_traces import column


def test_a_column_stands_out_of_shuffled_rows_and_shuffled_rows_do_not():
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.full(20, 0.2), size=(400, 20))
    assert rows_sinks.compare_with_shuffled(column(20, 3, 0.9)[None], rng)["above"] == 1
    by_chance = rows_sinks.compare_with_shuffled(rows, rng)
    expected = 1 / (rows_sinks.SHUFFLES + 1)
    error = (expected * (1 - expected) / len(rows)) ** 0.5
    assert abs(by_chance["above"] - expected) < tolerances.BINOMIAL_ERRORS * error
    assert by_chance["greatest"] == pytest.approx(by_chance["shuffled"], rel=0.1)


def test_a_correlation_is_pearsons_and_absent_without_variation():
    one, other = np.random.default_rng(1).normal(size=(2, 30))
    found = rows_sinks.correlation(one, other)
    assert found == pytest.approx(np.corrcoef(one, other)[0, 1], rel=tolerances.STATISTIC)
    assert np.isnan(rows_sinks.correlation(one, np.ones(30)))


def test_a_partial_correlation_holds_the_third_fixed():
    rng = np.random.default_rng(2)
    given, noise = rng.normal(size=(2, 60))
    one, other = given + 0.3 * noise, -given + 0.3 * noise
    found = rows_sinks.partial_correlation(one, other, given)
    r = np.corrcoef([one, other, given])
    expected = (r[0, 1] - r[0, 2] * r[1, 2]) / np.sqrt((1 - r[0, 2] ** 2) * (1 - r[1, 2] ** 2))
    assert found == pytest.approx(expected, rel=tolerances.STATISTIC)
    assert rows_sinks.correlation(one, other) < 0 < found
    assert rows_sinks.partial_correlation(one, np.zeros(60), given) == 0  # nothing was changed
    assert np.isnan(rows_sinks.partial_correlation(2 * given, other, given))


def test_groups_have_sinks_of_their_own_if_both_are_sinks_and_differ():
    first = np.arange(8) < 4
    same = np.concatenate([column(10, 3, 0.9)[:4], column(10, 3, 0.5)[:4]])
    assert rows_sinks.have_own_sinks(same, first) == 0
    apart = np.concatenate([column(10, 3, 0.9)[:4], column(10, 6, 0.9)[:4]])
    assert rows_sinks.have_own_sinks(apart, first) == 1
    weak = np.concatenate([column(10, 3, 0.9)[:4], column(10, 6, 0.2)[:4]])  # twice even: no sink
    assert rows_sinks.have_own_sinks(weak, first) == 0
    assert np.isnan(rows_sinks.have_own_sinks(apart, np.ones(8, dtype=bool)))


def test_queries_that_do_not_differ_have_as_many_sinks_of_their_own_as_drawn_groups():
    rng = np.random.default_rng(3)
    maps = rng.dirichlet(np.full(20, 0.05), size=(400, 20))
    roles = np.tile([PROMPT] * 8 + [WRITTEN] * 5 + [MASKED] * 7, (400, 1))
    found = rows_sinks.own_sinks(maps, roles, rng)
    assert 0.05 < found["split_drawn"] < 0.95
    error = (found["split_drawn"] * (1 - found["split_drawn"]) / len(maps)) ** 0.5
    assert abs(found["split"] - found["split_drawn"]) < tolerances.BINOMIAL_ERRORS * error
    maps[:, 13:, 2] += 3.0
    maps[:, :13, 5] += 3.0
    maps /= maps.sum(axis=-1, keepdims=True)
    found = rows_sinks.own_sinks(maps, roles, rng)
    assert found["split"] == 1
    assert found["split_drawn"] < 0.6


def test_a_local_head_is_no_split():
    """Each query looks at itself: groups of any size have greatest keys of their own."""
    maps, roles = np.eye(20)[None], np.array([[PROMPT] * 12 + [MASKED] * 8])
    found = rows_sinks.own_sinks(maps, roles, np.random.default_rng(0))
    assert found["split"] <= found["split_drawn"]


def turned_maps(lost):
    """A head whose queries 0 to 4 turn to key 7 and lose this share of their self-attention."""
    earlier = np.full((10, 10), 0.05)
    np.fill_diagonal(earlier, 0.55)
    later = earlier.copy()
    for query in range(5):
        later[query] = (1 - 0.6) / (1 - 0.05) * earlier[query]
        later[query, query] = (1 - lost) * earlier[query, query]
        later[query, 7] = 0.0
        later[query, 7] = 1 - later[query].sum()
    return np.stack([earlier, later])


def test_a_sink_takes_self_attention_or_takes_from_all_in_proportion():
    steps = np.array([4, 5])
    found = rows_sinks.self_attention_taken(turned_maps(lost=0.55 / 0.95), steps)
    assert found["turned"] == 5
    assert found["self_lost"] == pytest.approx(found["self_expected"], rel=tolerances.STATISTIC)
    found = rows_sinks.self_attention_taken(turned_maps(lost=1.0), steps)
    assert found["self_lost"] == pytest.approx(1.0, rel=tolerances.STATISTIC)
    assert found["self_expected"] < 0.9
    apart = rows_sinks.self_attention_taken(turned_maps(lost=1.0), np.array([4, 9]))
    assert apart["turned"] == 0  # no neighbouring steps
    assert np.isnan(apart["self_lost"])


def test_an_untrained_twin_has_the_shape_and_nothing_else():
    model = load("tiny/llada")
    before = {name: tensor.clone() for name, tensor in model.network.named_parameters()}
    twin = rows_sinks.initialise_again(model, seed=3)
    again = rows_sinks.initialise_again(model, seed=3)
    for (name, tensor), same in zip(
        twin.network.named_parameters(), again.network.parameters(), strict=True
    ):
        assert torch.equal(tensor, same)
        assert torch.equal(model.network.get_parameter(name), before[name])  # left alone
        assert tensor.shape == before[name].shape
        spread = float(tensor.std()) if tensor.ndim > 1 else 0.0
        expected = model.network.config.initializer_range if tensor.ndim > 1 else 0.0
        assert spread == pytest.approx(expected, rel=0.1)
    assert abs(rows_sinks.gain_over_guessing(twin, prompts.prompt_of("text", 0).text)) < 0.5


def test_the_oldest_passage_is_discarded_from_the_second_step_on():
    for name in ("tiny/llada", "tiny/arm"):
        rows = {row["discarded"]: row for row in rows_sinks.discard_context(load(name), 0, {})}
        assert set(rows) == {"oldest", "other"}
        assert rows["oldest"]["keys"] > rows["other"]["keys"] > 5
        assert all(row["kl"] > 0 and 0 < row["agreement"] <= 1 for row in rows.values())


def test_every_table_is_known_and_is_made_of_a_model():
    model = load("tiny/llada")
    names = ("head_maps", "delayed", "added_masks", "untrained_twin", "discarded_context")
    assert {EXPERIMENTS[name].__module__ for name in names} == {rows_sinks.__name__}
    heads = rows_sinks.head_maps(model, 0, {})
    assert len(heads) == model.num_layers * model.num_heads
    assert all(0 <= row["above"] <= 1 and row["greatest"] >= 1 for row in heads)
    assert all(0 <= row["split_drawn"] <= 1 and 0 <= row["cosine_null"] <= 1 for row in heads)
    trained, untrained = rows_sinks.compare_with_untrained(model, 0, {})
    assert (trained["network"], untrained["network"]) == ("trained", "untrained")
    assert untrained["heads"] < trained["heads"]
    assert trained["learnt"] < 1  # its weights are drawn, too: no claim is tested on it
    sinks, other = rows_sinks.measure_delays(model, 0, {})
    assert (sinks["arm"], other["arm"]) == ("sinks", "random")
    assert sinks["looks"] == other["looks"] > 0
    assert all(-1 <= row[name] <= 1 for row in (sinks, other) for name in ("later", "surer"))
    few, many = rows_sinks.added_masks(model, 0, {})
    assert (few["masks"], many["masks"]) == (rows_sinks.FEW, rows_sinks.MANY)
    assert few["mass"] < many["mass"]
    assert few["even"] < many["even"]
