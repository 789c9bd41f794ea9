"""Sink tokens and their relatives by three forms: a dense mask, concatenated keys, an epilogue."""

from dataclasses import replace
from unittest import mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import anchorwatch as aw
import checkpoints
import tolerances
from anchorwatch.models import attention, tiny, trained_additions
from anchorwatch.models.additions import fit_addition, sink_pairs_at
from anchorwatch.models.attention import Call, with_extra_keys
from anchorwatch.models.extra_keys import ExtraKeys, products
from anchorwatch.probes.reduce import StatRequest, reduce_attention
from checkpoints import CAUSAL, ENCODERS, MASK, network
from references import parts as slow
from strategies import load

E = aw.edits
IDS = torch.randint(10, 500, (11,), generator=torch.Generator().manual_seed(0))
MODELS = ("tiny/llada", "tiny/dream", "tiny/bert", "tiny/arm")


def concatenated():
    """Every call by the form that other devices and gradients take."""
    return mock.patch.object(attention, "_fused_on_cpu", lambda *_: False)


def near(one, two, tolerance):
    there = ~(one.isnan() | two.isnan())
    assert there.any()
    assert bool((one.isnan() == two.isnan()).all())
    assert (one - two)[there].abs().max() <= tolerance * two[there].abs().max()


class Bare(torch.nn.Module):
    num_key_value_groups = 1

    def __init__(self, repeats, causal):
        super().__init__()
        self.num_key_value_groups, self.is_causal = repeats, causal


@st.composite
def cases(draw):
    """A random call in float64, its mask, and keys added to it: products and others, limited."""
    groups, repeats = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 3]))
    batch, queries, size = draw(st.integers(1, 2)), draw(st.integers(2, 7)), 8
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    heads, scale = groups * repeats, size**-0.5
    query = normal(batch, heads, queries, size) * 2
    key, value = normal(batch, groups, queries, size), normal(batch, groups, queries, size)
    kind = draw(st.sampled_from(["all", "causal", "padded", "random"]))
    mask = None
    if kind == "padded":
        mask = torch.ones(batch, 1, queries, queries, dtype=torch.bool)
        mask[0, ..., : queries // 2] = False
    elif kind == "random":  # some rows see nothing but what is added
        mask = torch.rand(batch, 1, queries, queries, generator=generator) < 0.4
    many = []
    for what in draw(st.lists(st.sampled_from(["key", "logit", "heads"]), min_size=1, max_size=3)):
        n = draw(st.integers(1, 2))
        rows = draw(st.sampled_from([1, batch]))  # the same for all, or each row's own
        keys, values = normal(rows, groups, n, size), normal(rows, groups, n, size)
        logits = products(query, keys, scale)
        if what == "logit":
            logits, keys = normal(batch, heads, queries, n), None
        if what == "heads":
            logits = logits.clone()
            logits[:, 0], keys = -torch.inf, None
        many.append(ExtraKeys(logits, values, keys))
    module = Bare(repeats, kind == "causal")
    call = Call(0, query, key, value, scale, mask, kind == "causal", None, module)
    return call, mask, ExtraKeys.together(many)


def nothing_seen():
    """No row sees any key, added or not."""
    one = torch.ones(1, 1, 2, 8, dtype=torch.float64)
    mask = torch.zeros(1, 1, 2, 2, dtype=torch.bool)
    call = Call(0, one, one, one, 1.0, mask, False, None, Bare(1, False))
    return call, mask, ExtraKeys(torch.full_like(one[..., :1], -torch.inf), one[:, :, :1], None)


def slowly(call, mask, added):
    """(maps [B, H, Q, n + K], output [B, Q, H, D]), one row at a time."""
    batch, heads, queries, size = call.query.shape
    n, keys = added.count, call.key.shape[2]
    maps = torch.zeros(batch, heads, queries, n + keys, dtype=torch.float64)
    out = torch.zeros(batch, queries, heads, size, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            g = h // (heads // call.key.shape[1])
            for q in range(queries):
                logits = torch.cat(
                    [added.logits[b, h, q], call.key[b, g] @ call.query[b, h, q] * call.scale]
                )
                for k in range(keys):
                    hidden = mask is not None and not mask[b if len(mask) > 1 else 0, 0, q, k]
                    if hidden or (call.causal and k > q):
                        logits[n + k] = -torch.inf
                if bool((logits == -torch.inf).all()):
                    continue
                maps[b, h, q] = logits.softmax(-1)
                before = added.value[b if len(added.value) > 1 else 0, g]
                out[b, q, h] = maps[b, h, q] @ torch.cat([before, call.value[b, g]])
    return maps, out


@settings(max_examples=80)
@example(nothing_seen())
@given(cases())
def test_both_forms_are_what_one_row_at_a_time_gives(case):
    call, mask, added = case
    maps, exact = slowly(call, mask, added)
    options = {"scaling": call.scale}
    epilogue, lse = attention.merge_lse(*_kernel(call, mask), added.logits, added.value)
    assert (epilogue - exact).abs().max() <= tolerances.IDENTITY_64
    with concatenated():
        out, none = attention._compute(call, mask, added, options)
    assert none is None
    live = maps.sum(-1) > 0.5  # [B, H, Q]; a row that sees nothing has no map
    rows = live.transpose(1, 2)
    assert ((out - exact)[rows].abs() <= tolerances.IDENTITY_64).all()
    assert not epilogue[~rows].any()
    assert out.isfinite().all()  # what it is where nothing is seen is nobody's, but no NaN
    seen = with_extra_keys(call, added)
    ones = torch.ones(call.query.shape[0], 1, call.query.shape[2])
    want = StatRequest(weights=ones, maps=tuple(range(call.query.shape[1])), entropy=True)
    for given_lse in (lse.float(), None):
        found = reduce_attention(replace(seen, lse=given_lse), want)
        assert ((found.maps - maps)[live].abs() <= tolerances.of_call(seen)).all()
        assert not found.sums.isnan().any()
        assert torch.equal(found.live, live.any(dim=1))
        dead = ~found.live[:, None].expand_as(live)
        assert found.maps[dead].isnan().all()
        assert found.entropy[dead].isnan().all()
        assert not found.sums[~found.live.any(dim=1)].any()


def _kernel(call, mask):
    """What the fused kernel gives without the added keys; -inf for a row that sees none."""
    logits = (
        call.query @ call.key.repeat_interleave(call.module.num_key_value_groups, 1).mT * call.scale
    )
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    if call.causal:
        later = torch.ones_like(logits[0, 0], dtype=torch.bool).triu(1)
        logits = logits.masked_fill(later, -torch.inf)
    value = call.value.repeat_interleave(call.module.num_key_value_groups, 1)
    out = (logits.softmax(-1).nan_to_num() @ value).transpose(1, 2).contiguous()
    return out, torch.logsumexp(logits, -1)


def visible_of(model, length):
    return (
        torch.ones(length, length, dtype=torch.bool).tril() if model.family.kind == "arm" else None
    )


def dense(model, part, ids=IDS, **options):
    """The published form's logits, aligned."""
    embedding = fit_addition(part, model).embedding
    visible = options.pop("visible", visible_of(model, len(ids)))
    with torch.no_grad():
        rows = slow.with_sinks(
            model.network, ids, embedding, position=part.position, visible=visible, **options
        )
    return model._align_rows(rows[None], None, len(rows))[0] if model.family.shift else rows


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize(
    ("name", "position"),
    [*((name, "front") for name in MODELS), ("tiny/llada", "end"), ("tiny/dream", "end")],
)
def test_a_sink_token_is_a_token_in_the_sequence_behind_a_dense_mask(name, position, n):
    part = E.sink_token(n, position=position, embedding="random")
    model = load(name)
    published = dense(model, part)
    near(model.logits(IDS, parts=[part]), published, tolerances.IDENTITY)
    with concatenated():
        near(model.logits(IDS, parts=[part]), published, tolerances.IDENTITY)
    double = tiny.build(name, torch.float64)  # rotary tables are float32: the same places
    first = -n if position == "front" else 0
    ours = double.logits(IDS, parts=[part])
    near(ours, dense(double, part, first=first), tolerances.IDENTITY_64)


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream", "tiny/arm"])
def test_sink_tokens_with_and_without_place_and_value(name, rotary, zero):
    part = E.sink_token(rotary=rotary, value="zero" if zero else "own", embedding="start")
    for dtype, tolerance in (
        (torch.float32, tolerances.IDENTITY),
        (torch.float64, tolerances.IDENTITY),
    ):
        model = tiny.build(name, dtype)
        seen = torch.ones(len(IDS), len(IDS), dtype=torch.bool)
        seen = seen.tril() if name == "tiny/arm" else seen
        sink = fit_addition(part, model).embedding[0]
        with torch.no_grad():
            rows = slow.llama(model.network, IDS, seen, sink=sink, rotary=rotary, zero=zero)
        expected = model._align_rows(rows[None], None, len(rows))[0] if model.family.shift else rows
        near(model.logits(IDS, parts=[part]), expected, tolerance)
        with concatenated():
            near(model.logits(IDS, parts=[part]), expected, tolerance)
    plain = load(name).logits(IDS)[1:]
    assert (load(name).logits(IDS, parts=[part])[1:] - plain).abs().max() > 0.1


PLACED = (
    E.sink_token(),
    E.sink_token(2, position="end"),
    E.sink_token(rotary=False),
    E.register(2),
    E.off_by_one(),
    E.sink_logit([0.5, -1.0, 2.0, -9.0]),
    E.kv_bias(2, seed=3, heads=[1, 2]),
    E.gate("headwise", "plain"),
    E.gate("elementwise", "plain", layers=[1]),
)


def fits(name, part):
    """What is refused is in tests/messages/test_parts.py."""
    at_end = getattr(part, "position", "") == "end"
    never = {"tiny/arm": isinstance(part, E.register) or at_end, "tiny/bert": at_end}
    return not never.get(name, False)


@pytest.mark.parametrize(
    ("name", "part"),
    [(name, part) for name in MODELS for part in PLACED if fits(name, part)],
    ids=repr,
)
def test_padding_changes_nothing_but_rounding(name, part):
    model = load(name)
    rows = torch.full((2, 14), model.specials.pad_id)
    rows[0, 3:], rows[1] = IDS, torch.arange(40, 54)
    padded = model.logits(rows, padding=torch.tensor([3, 0]), parts=[part])
    for form in (mock.MagicMock(), concatenated()):
        with form:
            alone = [model.logits(IDS, parts=[part]), model.logits(rows[1], parts=[part])]
        near(padded[0, 3:], alone[0], tolerances.IDENTITY)
        near(padded[1], alone[1], tolerances.IDENTITY)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream"])
def test_parts_of_every_row_stand_beside_parts_of_all(name, turned):
    """An end sink has a place of its own in each row of a padded batch, a bias has none."""
    model, parts = load(name), [E.sink_token(2, position="end"), E.kv_bias(2, seed=3)]
    parts = parts[::-1] if turned else parts
    rows = torch.full((2, 14), model.specials.pad_id)
    rows[0, 3:], rows[1] = IDS, torch.arange(40, 54)
    for form in (mock.MagicMock(), concatenated()):
        with form:
            padded = model.logits(rows, padding=torch.tensor([3, 0]), parts=parts)
            near(padded[0, 3:], model.logits(IDS, parts=parts), tolerances.IDENTITY)
            near(padded[1], model.logits(rows[1], parts=parts), tolerances.IDENTITY)


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream"])
def test_an_end_sink_moves_with_the_end(name):
    """After a canvas of another length it is what a model that never saw one gives."""
    part, used = E.sink_token(position="end", embedding="random"), tiny.build(name, torch.float32)
    short = used.logits(IDS[:6], parts=[part])
    for ids in (IDS, IDS[:6]):
        fresh = tiny.build(name, torch.float32).logits(ids, parts=[part])
        assert torch.equal(used.logits(ids, parts=[part]), fresh)
    assert torch.equal(short, fresh)


@pytest.mark.parametrize("name", MODELS)
def test_three_ways_to_say_off_by_one_are_one(name):
    model = load(name)
    nothing = E.kv_bias(key="zero", value="zero")
    one, two, three = (
        model.logits(IDS, parts=[part]) for part in (E.off_by_one(), E.sink_logit(0), nothing)
    )
    first = int(name == "tiny/arm")
    assert torch.equal(one[first:], two[first:])
    assert torch.equal(one[first:], three[first:])
    assert not torch.equal(one[first:], model.logits(IDS)[first:])


def test_a_logit_of_each_layer_and_head_is_that_of_a_row_at_a_time():
    logit = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)) * 2
    for name in ("tiny/llada", "tiny/dream"):
        model = load(name)
        seen = torch.ones(len(IDS), len(IDS), dtype=torch.bool)
        rows = slow.llama(model.network, IDS, seen, logit=logit)
        expected = model._align_rows(rows[None], None, len(rows))[0] if model.family.shift else rows
        for form in (mock.MagicMock(), concatenated()):
            with form:
                near(model.logits(IDS, parts=[E.sink_logit(logit)]), expected, tolerances.IDENTITY)


@pytest.mark.parametrize("name", MODELS)
def test_what_nobody_sees_changes_nothing(name):
    model, first = load(name), int(name == "tiny/arm")
    plain = model.logits(IDS)[first:]
    for part in (E.sink_logit(float("-inf")), E.gate(), E.gate("headwise")):
        assert torch.equal(model.logits(IDS, parts=[part])[first:], plain), part


@pytest.mark.parametrize("form", ["elementwise", "headwise"])
@pytest.mark.parametrize("init", ["identity", "plain"])
def test_gates_multiply_what_heads_give(form, init):
    outputs = 64 if form == "elementwise" else 4
    weight = torch.randn(3, outputs, 64, generator=torch.Generator().manual_seed(2)) / 8
    model = load("tiny/llada")
    seen = torch.ones(len(IDS), len(IDS), dtype=torch.bool)
    gate = (weight, 2 if init == "identity" else 1)
    part = E.gate(form, init, weight=weight)
    near(
        model.logits(IDS, parts=[part]),
        slow.llama(model.network, IDS, seen, gate=gate),
        tolerances.IDENTITY,
    )
    sink = E.sink_token(embedding="mask")  # a gate is there for the sink token too
    embedding = fit_addition(sink, model).embedding[0]
    both = slow.llama(model.network, IDS, seen, sink=embedding, gate=gate)
    near(model.logits(IDS, parts=[sink, part]), both, tolerances.IDENTITY)


def test_a_plain_gate_begins_near_one_half_and_an_identity_gate_at_one():
    model = load("tiny/llada")
    weight = torch.stack(fit_addition(E.gate("elementwise", "plain"), model).weight)
    assert abs(float(weight.var()) / (2 / (5 * 64)) - 1) <= tolerances.of_draws(
        weight.numel(), 2**0.5
    )
    assert not torch.stack(fit_addition(E.gate(), model).weight).any()


@pytest.mark.parametrize("name", ["tiny/llada", "tiny/dream", "tiny/bert"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_register_is_a_token_in_front(name, n):
    model = load(name)
    part = E.register(n, embedding="random", seed=5)
    tokens = torch.cat(
        [fit_addition(part, model).embedding, model.network.get_input_embeddings()(IDS)]
    )
    places = torch.arange(n + len(IDS))
    if name == "tiny/bert":
        places = torch.cat([torch.zeros(n, dtype=torch.long), torch.arange(len(IDS))])
    with torch.no_grad():
        ones = torch.ones(1, 1, len(tokens), len(tokens), dtype=torch.bool)
        rows = model.network(
            inputs_embeds=tokens[None], position_ids=places[None], attention_mask=ones
        ).logits[0, n:]
    expected = model._align_rows(rows[None], None, len(rows))[0] if model.family.shift else rows
    near(model.logits(IDS, parts=[part]), expected, tolerances.IDENTITY)


def test_block_causal_visibility_stays(tmp_path):
    made = network("qwen3", bidirectional=True, head_dim=8)
    config = made.config.to_dict() | {"architectures": ["SDARForCausalLM"], "block_size": 4}
    config |= {"model_type": "sdar", "mask_token_id": MASK}
    config.pop("is_causal", None)
    model = aw.load(checkpoints.write(tmp_path / "m", config, checkpoints.tensors_of(made)))
    ids = IDS % 90
    block = torch.arange(len(ids)) // 4
    visible = block[:, None] >= block[None]
    for part in (
        E.sink_token(2, embedding="random"),
        E.sink_token(position="end", embedding="mask"),
    ):
        expected = dense(model, part, ids, visible=visible)
        near(model.logits(ids, parts=[part]), expected, tolerances.IDENTITY)


@pytest.mark.parametrize(
    "part",
    [p for p in PLACED if not isinstance(p, E.register) and getattr(p, "position", "") != "end"],
    ids=repr,
)
def test_a_cache_changes_nothing_but_rounding(part):
    model = load("tiny/arm")
    whole = model.logits(torch.cat([IDS, IDS[:1]]), parts=[part])
    _, cache = model.extend(IDS[None, :6], parts=[part])
    _, cache = model.extend(IDS[None, 6:10], cache=cache, parts=[part])
    last, _ = model.extend(IDS[None, 10:], cache=cache, parts=[part])
    near(last[0], whole[11], tolerances.IDENTITY)


@pytest.mark.parametrize("name", MODELS)
def test_a_sink_token_is_a_constant_of_the_checkpoint(name):
    """Whatever the canvas, its masks and its step: the very same numbers, made once."""
    model, part = load(name), E.sink_token(embedding="random", seed=11)
    seen = []

    class Looker:
        def wants(self, layer):
            return True

        def on_attention(self, call):
            seen.append((call.key[0, :, 0], call.value[0, :, 0]))

    for ids in (IDS, IDS + 3, IDS[:5]):
        with attention.observe(Looker()):
            model.logits(ids, parts=[part])
    layers = model.num_layers
    for at in range(layers, 3 * layers):
        for one, two in zip(seen[at % layers], seen[at], strict=True):
            assert torch.equal(one, two)
    alone = sink_pairs_at(model.network, fit_addition(part, model), [], 0)
    for (key, value), pair in zip(seen, alone, strict=False):
        assert torch.equal(key, pair.key[0, :, 0])
        assert torch.equal(value, pair.value[0, :, 0])


def test_constants_follow_the_weights():
    model, part = tiny.build("tiny/llada", torch.float32), E.sink_token(embedding="mask")
    before = model.logits(IDS, parts=[part])
    with torch.no_grad():
        model.network.model.layers[0].mlp.down_proj.weight.mul_(1.5)
    near(model.logits(IDS, parts=[part]), dense(model, part), tolerances.IDENTITY)
    assert not torch.equal(before, model.logits(IDS, parts=[part]))


NETWORKS = {kind: (True, options) for kind, options in ENCODERS.items()}
NETWORKS |= {kind: (False, options) for kind, options in CAUSAL.items()}
NETWORKS["sliding"] = (False, {"sliding_window": 4})


@pytest.mark.parametrize("kind", NETWORKS)
def test_every_stock_network_takes_parts_by_the_same_code(tmp_path, kind):
    masked, options = NETWORKS[kind]
    made = network("mistral" if kind == "sliding" else kind, masked=masked, **options)
    made.save_pretrained(tmp_path / "m")
    model = aw.load(tmp_path / "m", **({"mask_id": MASK} if masked else {}))
    ids = IDS % 90 + 3
    asked = {"canvas": [5, 60, 7, MASK, MASK, 12]} if masked else {"prompt": [5, 60, 7, 8]}
    asked |= {} if masked else {"decoding": aw.decoding.LeftToRight(3)}
    plain = model.logits(ids)[1:]
    for part in (
        E.sink_token(embedding="random"),
        E.sink_token(rotary=False),
        E.kv_bias(),
        E.gate("headwise", "plain"),
        E.sink_logit(1.0),
    ):
        fused = model.logits(ids, parts=[part])
        with concatenated():
            near(model.logits(ids, parts=[part]), fused, tolerances.IDENTITY)
        assert not torch.equal(fused[1:], plain)
        aw.run(model, **asked, edits=[part])  # proves itself
    if kind not in ("sliding", "modernbert"):  # their windows would have to be drawn by hand
        part = E.sink_token(embedding="random")
        near(model.logits(ids, parts=[part]), dense(model, part, ids), tolerances.IDENTITY)


@pytest.mark.parametrize("position", ["front", "end"])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_gradients_are_those_of_the_dense_form(kind, n, position):
    ids, bare = IDS % 90, network(kind, bidirectional=True).double()
    made = network(kind, bidirectional=True).double()
    trained_additions.attach(made, [E.sink_token(n, position=position, embedding="random")])
    torch.manual_seed(0)
    weights = torch.randn(len(ids), 96, dtype=torch.float64)
    (made(ids[None]).logits[0] * weights).sum().backward()
    sink = made.anchorwatch.sink.detach().clone().requires_grad_()
    first = -n if position == "front" else 0
    rows = slow.with_sinks(bare, ids, sink, position=position, first=first)
    (rows * weights).sum().backward()
    for name, parameter in bare.named_parameters():
        near(made.get_parameter(name).grad, parameter.grad, tolerances.IDENTITY_64)
    near(made.anchorwatch.sink.grad, sink.grad, tolerances.IDENTITY_64)


@pytest.mark.parametrize(
    "part",
    [
        E.sink_token(rotary=False, embedding="random"),
        E.sink_logit(0.3),
        E.gate("headwise", "plain"),
        E.gate(),
        E.kv_bias(2),
        E.register(embedding="random"),
        E.off_by_one(),
        E.sink_token(value="zero", embedding="random"),
    ],
    ids=repr,
)
def test_a_network_in_training_computes_what_a_run_would(part):
    """Gradients reach the part, and the bare network's logits are those of the edit."""
    made = tiny.build("tiny/llada", torch.float32)
    expected = made.logits(IDS, parts=[part])
    made.network.requires_grad_(True)
    trained_additions.attach(made.network, [part])
    out = made.network(IDS[None]).logits
    near(out[0].detach(), expected, tolerances.IDENTITY)
    out.logsumexp(-1).sum().backward()
    own = [n for n in trained_additions.tensor_names(made.network, [part])]
    grads = dict(made.network.named_parameters())
    for name in own:
        assert grads[name].grad is not None, name
        assert grads[name].grad.abs().max() > 0, name
    hidden = made.network.model(IDS[None]).last_hidden_state  # called without its unembedding
    near(made.network.lm_head(hidden)[0].detach(), expected, tolerances.IDENTITY)
    padded = torch.cat([IDS, IDS[:2]])[None]
    seen = torch.ones_like(padded)
    seen[:, -2:] = 0
    rows = made.network(padded, attention_mask=seen).logits[0, :-2].detach()
    near(rows, expected, tolerances.IDENTITY)
