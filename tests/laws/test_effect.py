"""What an edit does: nothing for a no-op, what was planted, and what plain loops say."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorwatch as aw
import tolerances
from anchorwatch.edits.controls import Setting, random_controls
from anchorwatch.errors import AnchorwatchWarning
from anchorwatch.evaluation import outcomes, teacher_forced
from anchorwatch.models import tiny
from checkpoints import CAUSAL, ENCODERS, MASK, network
from references import effects as slow
from strategies import denoisers, denoisings, left_to_right, load, prompts, seeds

E = aw.edits
PROMPTS = [f"the {who} drifts in the {where}" for who, where in zip(
    ("anchor", "ship", "crew", "buoy", "boat", "sail"),
    ("harbor", "bay", "fog", "gale", "current", "night"), strict=True)]  # fmt: skip
SHORT = aw.decoding.LowConfidence(4, 4)
COMPARED = [one.name for one in outcomes.OUTCOMES if one.name not in outcomes.MOVED]


def rows(effect, name="table"):
    return effect.get_table(name).set_index("outcome")


def nothing_happened(effect):
    """Every difference there is is exactly 0, and what cannot differ is absent."""
    table = rows(effect)
    for column in ("difference", "control_difference", "did"):
        held = table[column].dropna()
        assert (held == 0).all()
        assert set(table.index) - set(held.index) <= {
            "divergence_step",
            "order_tau",
            *outcomes.MOVED,
        }
    for name, value in {"argmax_agreement": 1, "kl": 0, "perturbation": 0}.items():
        assert (table.loc[name, ["clean", "edited", "control"]] == value).all(), name
    for name, value in {"answer_changed": 0, "edit_distance": 0, "tokens_in_common": 1}.items():
        assert table.loc[name, "edited"] == value
    assert np.isnan(table.loc["divergence_step", "edited"])
    assert (effect.layers[["edited", "control", "did"]] == 0).all(axis=None)


@settings(max_examples=10)
@given(denoisers, st.lists(prompts, min_size=1, max_size=2), denoisings, seeds)
def test_a_no_op_does_nothing(model, many, decoding, seed):
    nothing_happened(aw.effect(model, many, decoding, E.no_op(), seed=seed))


@settings(max_examples=8)
@given(st.lists(prompts, min_size=1, max_size=2), left_to_right, seeds)
def test_a_no_op_does_nothing_left_to_right(many, decoding, seed):
    nothing_happened(aw.effect(load("tiny/arm"), many, decoding, E.no_op(), seed=seed))


def test_a_no_op_does_nothing_in_batches():
    effect = aw.effect(load("tiny/dream"), PROMPTS[:3], SHORT, [E.no_op(), E.no_op()], batch=3)
    nothing_happened(effect)


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream"])
def test_on_the_clean_frames_as_plain_loops_say(name):
    """Against transformers' eager attention with the keys hidden by its own mask."""
    model, eager, hidden = load(name), slow.Eager(name), (1, 3)
    many = PROMPTS[:2]
    effect = aw.effect(model, many, SHORT, E.hide_keys(hidden), control=None)
    table, by_loops, layers = rows(effect), [], []
    for number, prompt in enumerate(many):
        clean = aw.run(model, prompt, SHORT, seed=number, probes=())
        values, changes = slow.on_clean_frames(eager, clean, hidden)
        by_loops.append(values)
        layers.append(changes)
    for name, expected in pd.DataFrame(by_loops).mean().items():
        assert abs(table.loc[name, "edited"] - expected) <= tolerances.COMPARED, name
    found = effect.layers["edited"].to_numpy()
    assert np.abs(found - np.mean(layers, axis=0)).max() <= tolerances.COMPARED
    assert table.loc["argmax_agreement", "edited"] < 1
    assert table.loc["kl", "edited"] > 0


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream"])
def test_where_attention_went_as_dense_maps_say(name):
    model, eager, hidden = load(name), slow.Eager(name), (0, 2)
    rule = aw.rules.gu(0.2)
    effect = aw.effect(model, PROMPTS[:1], SHORT, E.hide_keys(hidden), control=None, rule=rule)
    clean = aw.run(model, PROMPTS[0], SHORT, probes=())
    maps = [[], []]
    for step in range(clean.num_steps):
        for which, gone in enumerate(((), hidden)):
            _, seen, _ = eager.read(clean.canvas[step], gone)
            maps[which].append(seen.mean(dim=2).numpy())  # over queries
    before, after = (np.concatenate(each) for each in maps)  # steps one after another
    keys = before.shape[-1]
    even = outcomes.UniformBaseline(
        np.full((len(before), keys), 1 / keys), np.ones((len(before), keys))
    )
    gone = np.broadcast_to(np.array(hidden), (*before.shape[:2], 2))
    table = rows(effect)
    for name, (value, null) in slow.moved(before, after, gone, even, rule).items():
        assert abs(table.loc[name, "edited"] - value) <= tolerances.COMPARED, name
        if name != "hidden_keys":
            assert abs(table.loc[name, "null"] - null) <= tolerances.COMPARED, name
    assert table.loc["hidden_keys", "edited"] == 2


def test_the_next_token_is_compared_left_to_right():
    """Without and with a cache, against the model's own answer with the keys hidden."""
    model, hidden = load("tiny/arm"), (2,)
    tables = []
    for cache in (False, True):
        decoding = aw.decoding.LeftToRight(5, stop=False, cache=cache)
        effect = aw.effect(model, PROMPTS[:2], decoding, E.hide_keys(hidden), control=None)
        tables.append(rows(effect))
    agree, kl = [], []
    for number, prompt in enumerate(PROMPTS[:2]):
        clean = aw.run(model, prompt, decoding, seed=number, probes=())
        for step in range(clean.num_steps):
            frame = [int(one) for one in clean.canvas[step] if one != -1]
            ids, keys = (
                torch.tensor([*frame, frame[0]]),
                torch.ones(len(frame) + 1, dtype=torch.bool),
            )
            keys[list(hidden)] = False
            p = model.logprobs(ids)[-1].double()
            q = model.logprobs(ids, keys)[-1].double()
            agree.append(float(p.argmax() == q.argmax()))
            kl.append(float((p.exp() * (p - q)).sum()))
    for table in tables:
        gap = table.loc["argmax_agreement", "edited"] - np.mean(agree)
        assert abs(gap) <= tolerances.STATISTIC
        assert abs(table.loc["kl", "edited"] - np.mean(kl)) <= tolerances.COMPARED
        assert table.loc["kl", "unit"] == "nats per next token"
        assert np.isnan(table.loc["order_tau", "edited"])


def test_on_their_own_runs_as_plain_loops_say():
    model, edit = load("tiny/llada"), E.hide_sinks(1)
    effect = aw.effect(model, PROMPTS, SHORT, edit, traces=True, control=None)
    each = effect.prompts.set_index(["prompt", "outcome"])["edited"].unstack()
    for number, prompt in enumerate(PROMPTS):
        clean = aw.run(model, prompt, SHORT, seed=number, probes=())
        other = aw.run(model, prompt, SHORT, seed=number, probes=(), edits=[edit])
        assert effect.traces["clean"][number].digest() == clean.digest()
        assert effect.traces["edited"][number].digest() == other.digest()
        one, two = (trace.canvas[:, trace.answer] for trace in (clean, other))
        found = each.iloc[[each.index.get_loc(aw.metrics.table.prompt_id(clean))]].iloc[0]
        step = slow.parted(one, two)
        assert found["answer_changed"] == (list(one[-1]) != list(two[-1]))
        assert found["edit_distance"] == slow.edit_distance(one[-1], two[-1])
        assert found["steps_shared"] == (1 if step is None else step / clean.num_steps)
        assert np.array_equal(found["divergence_step"], np.nan if step is None else step, True)
        tau = slow.order_tau(*(trace.committed_at[trace.answer] for trace in (clean, other)))
        assert abs(found["order_tau"] - tau) <= tolerances.STATISTIC
        confidence = np.mean([float(other.logprob[p]) for p in other.answer])
        assert abs(found["confidence"] - confidence) <= tolerances.STATISTIC
        assert found["tokens_in_common"] == np.mean(one[-1] == two[-1])
        if step is not None:
            assert aw.diff(clean, other).step == step


def sunk():
    """A BERT whose first layer gives 98 % of every row to position 0, and the rest evenly."""
    model = tiny.build("tiny/bert", torch.float32)
    inside, keys = model.network.bert, 12
    parts, attention = inside.embeddings, inside.encoder.layer[0].attention.self
    gap = math.log(0.98 / 0.02 * (keys - 1))
    with torch.no_grad():
        for table in (
            parts.word_embeddings,
            parts.position_embeddings,
            parts.token_type_embeddings,
        ):
            table.weight[:, 0] = 0
        parts.position_embeddings.weight[0, 0] = 1e4
        parts.LayerNorm.weight[0], parts.LayerNorm.bias[0] = 1, 0
        for linear in (attention.query, attention.key):
            linear.weight.zero_()
            linear.bias.zero_()
        for head in range(4):
            attention.key.weight[head * 16, 0] = 1
            attention.query.bias[head * 16] = gap * 4 / math.sqrt(63)
    return model


def test_a_planted_sink_is_what_matters():
    model = sunk()
    many = [[300 + n + p for p in range(8)] for n in range(5)]
    effect = aw.effect(model, many, SHORT, E.hide_keys([0], layers=[0]))
    table = rows(effect)
    assert abs(table.loc["hidden_share", "edited"] - 0.98) <= tolerances.PLANTED_SINK
    assert abs(table.loc["hidden_share", "control"] - 0.02 / 11) <= tolerances.PLANTED_SINK
    assert abs(table.loc["hidden_share", "null"] - 1 / 12) <= tolerances.STATISTIC
    for name in ("largest_gainer", "gain_entropy", "new_sink_share"):
        # every query asks for the same, so that what is left is shared out in proportion
        assert abs(table.loc[name, "edited"] - table.loc[name, "null"]) <= tolerances.METRIC
    for name, sign in {"kl": 1, "perturbation": 1, "argmax_agreement": -1}.items():
        nearer_to_zero = "did_low" if sign > 0 else "did_high"
        assert sign * table.loc[name, nearer_to_zero] > 0
    assert table.loc["kl", "edited"] > 10 * table.loc["kl", "control"]
    layers = effect.layers
    assert (layers["did_low"] > 0).all()


def test_a_model_without_heads_is_another_model():
    effect = aw.effect(load("tiny/llada"), PROMPTS, SHORT, E.knock_out(), control=None)
    table = rows(effect)
    assert table.loc["answer_changed", "edited"] == 1
    assert table.loc["argmax_agreement", "high"] < -0.3
    assert table.loc["kl", "low"] > 0.5
    assert table.loc[list(outcomes.MOVED), "edited"].isna().all()  # nothing was hidden


def test_a_control_that_is_the_edit_leaves_no_difference_in_differences():
    edit = E.hide_sinks(2)
    effect = aw.effect(load("tiny/llada"), PROMPTS, SHORT, edit, control=edit)
    assert (effect.table["did"].dropna() == 0).all()
    assert effect.table["did"].notna().sum() >= 13
    assert (rows(effect).loc[["kl", "perturbation"], "difference"] > 0).all()


@pytest.mark.parametrize(
    "decoding",
    [
        pytest.param(SHORT, id="greedy", marks=pytest.mark.slow),
        pytest.param(aw.decoding.RandomOrder(4, temperature=0.7), id="drawn"),
    ],
)
def test_the_same_call_gives_the_same_tables(decoding):
    options = {"doses": (1, 2), "repeats": 2, "seed": 5}
    one, two = (
        aw.effect(load("tiny/llada"), PROMPTS[:2], decoding, E.hide_sinks(1), **options)
        for _ in range(2)
    )
    for name in ("table", "prompts", "layers", "doses", "trends"):
        pd.testing.assert_frame_equal(one.get_table(name), two.get_table(name), check_exact=True)


@pytest.mark.slow
def test_doses_are_effects_of_their_own():
    model, doses = load("tiny/llada"), (1, 2, 4)
    effect = aw.effect(model, PROMPTS, SHORT, E.hide_sinks(2), doses=doses)
    for k in doses:
        alone = aw.effect(model, PROMPTS, SHORT, E.hide_sinks(k)).table
        part = effect.doses[effect.doses["k"] == k].drop(columns="k").reset_index(drop=True)
        pd.testing.assert_frame_equal(part, alone, check_exact=True)
        if k == 2:
            pd.testing.assert_frame_equal(effect.table, alone, check_exact=True)
    assert len(effect.doses) == len(doses) * len(outcomes.NAMES)
    slopes = effect.trends.set_index(["outcome", "series"])
    assert slopes.loc[("hidden_keys", "did"), "slope"] == 0
    assert slopes.loc[("perturbation", "difference"), "low"] > 0


def test_repeats_are_averaged_before_prompts_are_resampled():
    model, decoding = load("tiny/llada"), aw.decoding.LowConfidence(4, temperature=0.9)
    both = aw.effect(model, PROMPTS[:3], decoding, E.hide_sinks(1), repeats=2, seed=3)
    first = aw.effect(model, PROMPTS[:3], decoding, E.hide_sinks(1), seed=3)
    other = aw.effect(model, PROMPTS[:3], decoding, E.hide_sinks(1), seed=6)
    assert (rows(both)["n"] <= 3).all()
    keys = ["prompt", "outcome"]
    one, two, mean = (found.prompts.set_index(keys) for found in (first, other, both))
    for name in ("kl", "confidence", "edit_distance"):
        for column in ("clean", "edited"):
            expected = (one.xs(name, level=1)[column] + two.xs(name, level=1)[column]) / 2
            gap = (mean.xs(name, level=1)[column] - expected).abs().max()
            assert gap <= tolerances.STATISTIC


def test_a_prompt_given_twice_is_one_prompt():
    effect = aw.effect(load("tiny/llada"), [PROMPTS[0]] * 3 + [PROMPTS[1]], SHORT, E.hide_keys([0]))
    assert rows(effect).loc["kl", "n"] == 2
    assert effect.prompts["prompt"].nunique() == 2


def test_positions_that_an_edit_names_are_not_spread_to():
    """A value zeroed in the last layer changes other rows; the named row is left out of the mean."""
    model = load("tiny/llada")
    clean = aw.run(model, PROMPTS[0], SHORT, probes=())
    edit = E.hide_keys([0, 5], layers=[2])
    (found, _) = teacher_forced.read_clean_frames(model, clean, [[edit]], aw.rules.rulli())
    assert (found.layers[:2] == 0).all()
    assert found.layers[2] > 0
    kept = teacher_forced._untouched_positions([edit], 8)
    assert np.flatnonzero(~kept).tolist() == [0, 5]
    one = torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]])
    two = torch.tensor([[3.0, 4.0], [0.0, 3.0], [1.0, 1.0]])
    assert teacher_forced.relative_change(one, two, np.array([True, False, True])).tolist() == [
        0,
        1,
    ]
    assert teacher_forced.relative_change(one[-1:], two[-1:], np.array([False, True])).tolist() == [
        1
    ]


@pytest.mark.parametrize("kind", [*ENCODERS, *CAUSAL])
def test_states_are_those_between_the_layers_of_every_stock_network(tmp_path, kind):
    masked = kind in ENCODERS
    made = network(kind, masked=masked, **(ENCODERS | CAUSAL)[kind])
    made.save_pretrained(tmp_path / "m")
    model = aw.load(tmp_path / "m", **({"mask_id": MASK} if masked else {}))
    kept = {}
    with teacher_forced._after_layers(model, lambda layer, states: kept.update({layer: states})):
        model.logits([5, 60, 7, 12])
    assert sorted(kept) == list(range(model.num_layers))
    with torch.no_grad():
        ids = torch.tensor([[5, 60, 7, 12]])
        between = model.network(ids, output_hidden_states=True).hidden_states[1:-1]
    for layer, states in enumerate(between):
        assert (kept[layer] - states).abs().max() <= tolerances.SAME_MATHS
    assert not torch.equal(kept[0], kept[model.num_layers - 1])


@given(st.integers(0, 100), st.integers(0, 100))
def test_a_random_control_has_the_same_budget_and_none_of_the_edit(seed, run):
    from anchorwatch.trace.schema import RunShape

    setting = Setting(RunShape(8, 3, 4, 4, 12), tuple(range(8, 12)), run)
    (keys,) = random_controls([E.hide_keys([0, 3, 9], form="value", steps=[1])], setting, seed)
    assert len([p for p in keys.positions if p < 8]) == 2
    assert len([p for p in keys.positions if p >= 8]) == 1
    assert not set(keys.positions) & {0, 3, 9}
    assert (keys.form, keys.steps) == ("value", (1,))
    out = E.knock_out({(1, 0), (1, 2), (2, 3)}, form="mean")
    (heads,) = random_controls([out], setting, seed)
    assert sorted(layer for layer, _ in heads.heads) == [1, 1, 2]
    assert not set(heads.heads) & {(1, 0), (1, 2), (2, 3)}
    assert heads.form == "mean"
    sinks = E.hide_sinks(3, rule="gu:0.2", scope="layer", layers=[1], form="penalty", penalty=2.0)
    (drawn,) = random_controls([sinks], setting, seed)
    same = drawn.as_dict()
    assert same.pop("name") == "hide_random"
    assert (same.pop("seed"), same.pop("matched_to")) == (seed, "sinks")
    assert same == {k: v for k, v in sinks.as_dict().items() if k != "name"}
    assert random_controls([E.no_op()], setting, seed) == (E.no_op(),)


@given(st.integers(0, 100), st.integers(0, 100))
def test_the_control_of_a_list_is_none_of_its_edits_and_nothing_twice(seed, run):
    from anchorwatch.trace.schema import RunShape

    setting = Setting(RunShape(8, 3, 4, 4, 12), tuple(range(8, 12)), run)
    edits = [E.knock_out({(0, 0)}), E.knock_out({(0, 1)}), E.hide_keys([0]), E.hide_keys([1, 2])]
    one, two, few, more = random_controls(edits, setting, seed)
    assert {*one.heads, *two.heads} == {(0, 2), (0, 3)}
    drawn = {*few.positions, *more.positions}
    assert len(drawn) == 3
    assert not drawn & {0, 1, 2}


def test_random_controls_differ_from_run_to_run():
    effect = aw.effect(load("tiny/llada"), PROMPTS, SHORT, E.knock_out({(0, 1)}), traces=True)
    drawn = {trace.edits[0].heads for trace in effect.traces["control"]}
    assert len(drawn) > 1
    assert all(layer == 0 and head != 1 for ((layer, head),) in drawn)


def test_a_control_that_found_too_few_keys_is_no_equal_budget():
    """Of 12 keys 8 are sinks: only 4 are left to draw from."""
    with pytest.warns(AnchorwatchWarning, match="hid 4 keys where the edit hid 8, for there were"):
        effect = aw.effect(load("tiny/llada"), [list(range(300, 308))], SHORT, E.hide_sinks(8))
    assert rows(effect).loc["hidden_keys", "did"] == 4


def test_regions_can_be_named():
    regions = [{"where": prompt.split()[-1]} for prompt in PROMPTS[:2]]
    edit = E.hide_sinks(1, eligible="where")
    effect = aw.effect(
        load("tiny/llada"), PROMPTS[:2], SHORT, edit, regions=regions, control=None, traces=True
    )
    for trace in effect.traces["edited"]:
        hidden = np.unique(trace["hidden_keys"].values[1:])
        assert np.isin(hidden[hidden >= 0], np.flatnonzero(trace["region"].values == 0)).all()


def test_an_effect_says_what_it_is(tmp_path):
    effect = aw.effect(load("tiny/llada"), PROMPTS, SHORT, E.hide_sinks(1), doses=(1, 3))
    said = str(effect).splitlines()
    assert said[0] == "effect of  hide_sinks(k=1)"
    assert said[1] == "beside     drawn for each run, such as hide_random(k=1)"
    assert said[2] == "on         tiny/llada, LowConfidence(length=4, steps=4), 6 prompts"
    assert len(said) == 4 + len(outcomes.NAMES)  # all of them are there
    assert max(map(len, said)) <= 110
    assert "<td>argmax_agreement</td>" in effect._repr_html_()
    assert effect.traces is None
    for which in ("table", "prompts", "layers", "doses", "trends"):
        for kind in ("csv", "json", "parquet"):
            effect.save(tmp_path / f"{which}.{kind}", which)
    from anchorwatch.metrics.table_files import read_origin

    made = read_origin(tmp_path / "doses.json")
    assert made["about"]["doses"] == [1, 3]
    assert made["about"]["edit"][0]["name"] == "hide_sinks"
    assert [one["seed"] for one in made["traces"]] == list(range(6))
    held = pd.read_parquet(tmp_path / "table.parquet")
    pd.testing.assert_frame_equal(held, effect.table, check_exact=True)


OPAQUE = (
    E.hide_keys([1, 4]),
    E.hide_sinks(2, detect="same_shadow"),
    E.knock_out({(0, 1), (2, 2)}, form="mean"),
    E.swap_token(1, 400),
    E.sink_token(2, position="end"),
    E.register(),
    E.sink_logit(2.0),
    E.gate(init="plain"),
    [E.sink_token(), E.hide_sinks(1, detect="same_shadow")],
)


@pytest.mark.parametrize("edit", OPAQUE, ids=repr)
@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream"])
def test_in_one_step_both_comparisons_are_one(edit, name):
    """All positions are committed from the first frame, which every run shares, whatever the edit."""
    decoding = aw.decoding.LowConfidence(6, 1)
    effect = aw.effect(load(name), PROMPTS[:3], decoding, edit, control=None)
    each = effect.prompts.set_index(["prompt", "outcome"])["edited"].unstack()
    np.testing.assert_array_equal(each["argmax_agreement"], each["tokens_in_common"])
    assert (each["kl"] > 0).all()
    assert (each["perturbation"] > 0).all()


def test_a_gate_that_is_open_does_nothing():
    effect = aw.effect(load("tiny/llada"), PROMPTS[:2], SHORT, E.gate(), control=E.gate())
    nothing_happened(effect)


@pytest.mark.parametrize(
    "edit",
    [E.force_commit(9, 400, step=0), E.delay_commit([9], until=2), E.freeze_canvas(steps=[1])],
    ids=repr,
)
def test_what_only_commits_otherwise_reads_the_clean_frames_as_they_are(edit):
    """Nothing was tried there, which is not the same as no difference."""
    effect = aw.effect(load("tiny/llada"), PROMPTS[:2], SHORT, edit, control=None)
    table = rows(effect)
    assert table.loc[["argmax_agreement", "kl", "perturbation"], "edited"].isna().all()
    assert (table.loc[["argmax_agreement", "kl"], "clean"] == [1, 0]).all()
    assert table.loc["steps_shared", "edited"] < 1
    assert "absent     argmax_agreement, kl, perturbation" in str(effect)


def test_a_swapped_token_is_not_an_answer():
    """What the run committed there is compared, not what an edit put in its place."""
    model = load("tiny/llada")
    clean = aw.run(model, PROMPTS[0], SHORT, probes=())
    first = int(np.flatnonzero(clean.committed_at == 0)[0])
    edit = E.swap_token(first, 400, steps=[3])
    other = aw.run(model, PROMPTS[0], SHORT, probes=(), edits=[edit])
    assert other.canvas[-1][first] == 400
    found = outcomes.compare_runs(clean, other)
    assert found["divergence_step"] != 0
    assert found["tokens_in_common"] >= 3 / 4


def test_guidance_and_blocks_are_compared_too():
    decoding = aw.decoding.LowConfidence(4, 4, block=2, guidance=1.5)
    effect = aw.effect(load("tiny/llada"), PROMPTS[:1], decoding, E.hide_sinks(1))
    assert rows(effect).loc[COMPARED, "edited"].drop("order_tau").notna().all()
