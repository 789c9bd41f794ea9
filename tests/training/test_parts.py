"""Training with parts: sink tokens and their relatives, registers, gates."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

import anchorwatch as aw
from anchorwatch.errors import WeightsError
from anchorwatch.models.trained_additions import tensor_names
from anchorwatch.training import fit
from anchorwatch.training.corpora import build_batch_builder
from anchorwatch.training.loop import restore_tensors
from anchorwatch.training.networks import build_start
from anchorwatch.training.objective import Scorer
from anchorwatch.training.optimizer import build_adamw
from anchorwatch.training.spec import from_dict
from checkpoints import lit_gpt_tensors, write
from references.parts import with_sinks
from tolerances import BFLOAT16_LOSS, LOGPROB, SAME_MATHS
from toy_texts import MASK, WORDS, Texts, fields, stopped_before, tokenizer

VARIANTS = {
    "sink": [{"name": "sink_token"}],
    "end": [{"name": "sink_token", "position": "end", "embedding": "mask"}],
    "two": [{"name": "sink_token", "n": 2, "embedding": "random"}],
    "empty": [{"name": "sink_token", "value": "zero", "embedding": "start"}],
    "nowhere": [{"name": "sink_token", "rotary": False}],
    "register": [{"name": "register", "n": 2, "embedding": "random"}],
    "off by one": [{"name": "off_by_one"}],
    "logit": [{"name": "sink_logit", "logit": 0.5}],
    "bias": [{"name": "kv_bias", "n": 2}],
    "gate": [{"name": "gate"}],
    "plain gate": [{"name": "gate", "init": "plain"}],
    "head gate": [{"name": "gate", "form": "headwise"}],
    "plain head gate": [{"name": "gate", "form": "headwise", "init": "plain"}],
    "several": [{"name": "sink_token", "position": "end"}, {"name": "gate", "layers": [1]}],
}
CAUSAL = [name for name in VARIANTS if name not in ("end", "register", "several")]
CANVAS = torch.tensor([[6, MASK, 8, 9, MASK], [7, 11, MASK, MASK, 12]])
UPDATES = {"updates": 4, "checkpoints": {"updates": 2}}


def tables(variant):
    """A variant by its name here, or as a spec has it."""
    return VARIANTS[variant] if isinstance(variant, str) else variant


def begun(variant, **differs):
    said = fields(**differs) | {"variant": tables(variant)}
    words = None if "from" in said["model"] else tokenizer()
    return build_start(from_dict(said), words)


def trained(variant, out, **differs):
    said = fields(**(UPDATES | differs)) | {"variant": tables(variant)}
    words = None if "from" in said["model"] else tokenizer()
    return fit(said, out, corpus=Texts(), tokenizer=words)


def weights(folder):
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def vanilla(tmp_path_factory):
    return trained([], tmp_path_factory.mktemp("vanilla") / "run")


@pytest.fixture(scope="module")
def sink(tmp_path_factory):
    return trained("sink", tmp_path_factory.mktemp("sink") / "run")


def opened(variant, done, **differs):
    """(the model as it is loaded, the network as it was trained, what it began as)."""
    first, last = begun(variant, **differs), begun(variant, **differs)
    restore_tensors(last, weights(done.model))
    return aw.load(done.model), last.network.eval(), first.network


def check_trained(variant, done, **differs):
    model, network, first = opened(variant, done, **differs)
    asked = VARIANTS[variant]
    assert [type(part).__name__ for part in model.parts] == [part["name"] for part in asked]
    for part, table in zip(model.parts, asked, strict=True):
        for field in ("n", "position", "value", "rotary", "form", "init"):
            assert getattr(part, field, None) == table.get(field, getattr(part, field, None))
    with torch.no_grad():
        assert torch.equal(model.network(CANVAS).logits, network(CANVAS).logits)
        raw = network(CANVAS).logits
        expected = model._align_rows(raw, None, raw.shape[1]) if model.family.shift else raw
    assert torch.equal(model.logits(CANVAS)[:, 1:], expected[:, 1:])
    assert not [check for check in model.check() if not check.holds]
    for name in tensor_names(network, begun(variant, **differs).parts):
        assert not torch.equal(network.get_parameter(name), first.get_parameter(name)), name
    return model, network


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_trained_with_a_part_is_what_is_loaded(variant, tmp_path):
    done = trained(variant, tmp_path / "run")
    model, network = check_trained(variant, done)
    assert aw.load(done.folder / "checkpoints" / "update-00000004").digest == model.digest
    bare = build_start(from_dict(fields()), tokenizer()).network.eval()
    bare.load_state_dict(network.state_dict(), strict=False)
    with torch.no_grad():
        assert (bare(CANVAS).logits - network(CANVAS).logits).abs().max() > SAME_MATHS
    how = aw.decoding.LowConfidence(length=4, steps=2)
    assert aw.run(model, [6, 7, 8], how, probes=()).num_steps == 2  # every part proves itself


@pytest.mark.parametrize("variant", CAUSAL)
def test_autoregression_trains_with_parts_too(variant, tmp_path):
    objective = {"name": "next_token"}
    if variant == "empty":
        assert VARIANTS[variant][0]["embedding"] == "start"
    done = trained(variant, tmp_path / "run", objective=objective)
    model, _ = check_trained(variant, done, objective=objective)
    assert model.family.kind == "arm"


@pytest.mark.parametrize("variant", VARIANTS)
def test_arms_share_first_values_order_and_noise(variant):
    plain, other = begun([]), begun(variant)
    held, expected = other.network.state_dict(), plain.network.state_dict()
    assert all(torch.equal(held[name], expected[name]) for name in expected)
    assert set(held) - set(expected) == set(tensor_names(other.network, other.parts))
    texts = [Texts()[i] for i in range(8)]
    for update in (0, 5):
        one, two = (
            build_batch_builder(from_dict(fields(variant=said)), start_)(texts, update, range(8))
            for said, start_ in (([], plain), (VARIANTS[variant], other))
        )
        assert torch.equal(one.canvas, two.canvas)
        assert torch.equal(one.weights, two.weights)
        assert torch.equal(one.predictors, two.predictors)


def test_the_seed_of_a_part_is_the_spec_s_unless_it_has_its_own():
    def first(whole, **more):
        made = begun([{"name": "gate", "init": "plain"} | more], seed=whole)
        return made.network.get_parameter("model.layers.0.self_attn.gate.weight")

    assert not torch.equal(first(0), first(1))
    assert torch.equal(first(0, seed=9), first(1, seed=9))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_row_is_scored_as_if_it_were_alone(variant):
    """Padding stands on the right in training: a part at the end stands at each row's own end."""
    made = begun(variant)
    rows = build_batch_builder(from_dict(fields()), made)(
        [Texts()[i] for i in range(8)], 0, range(8)
    )
    assert rows.real is not None
    network, lengths = made.network.eval(), rows.real.sum(dim=1).tolist()
    assert len(set(lengths)) > 1
    with torch.no_grad():
        whole = network(rows.canvas, attention_mask=rows.real).logits
        for row, length in enumerate(lengths):
            alone = network(rows.canvas[row : row + 1, :length]).logits[0]
            assert (whole[row, :length] - alone).abs().max() <= LOGPROB
    states = network.model(rows.canvas, attention_mask=rows.real).last_hidden_state
    assert states.shape[1] == rows.canvas.shape[1]  # registers are taken off again


@pytest.mark.parametrize("variant", ["end", "register", "several"])
def test_passes_that_are_added_up_give_the_update_of_one(variant, tmp_path):
    one = trained(variant, tmp_path / "one", updates=3)
    four = trained(variant, tmp_path / "four", updates=3, accumulation=4)
    losses = [line.loss for line in one.lines]
    assert [line.loss for line in four.lines] == pytest.approx(losses, abs=SAME_MATHS)


@pytest.mark.parametrize("position", ["front", "end"])
def test_the_loss_is_that_of_the_published_form(position):
    """Tokens in the sequence and a dense mask: the value, and the gradients of all tensors."""
    part = {"name": "sink_token", "n": 2, "position": position, "embedding": "random"}
    made, bare = begun([part]), begun([])
    made.network.double(), bare.network.double()
    sink = made.network.anchorwatch.sink.detach().clone().requires_grad_()
    ids, at = CANVAS[0], torch.tensor([1, 4])
    targets = torch.tensor([7, 9])
    Scorer(made.network)(ids[None], None, at, targets).sum().backward()
    first = -2 if position == "front" else 0
    rows = with_sinks(bare.network, ids, sink, position=position, first=first)
    torch.nn.functional.cross_entropy(rows[at], targets, reduction="sum").backward()
    for name, parameter in bare.network.named_parameters():
        assert (made.network.get_parameter(name).grad - parameter.grad).abs().max() < SAME_MATHS
    assert (made.network.anchorwatch.sink.grad - sink.grad).abs().max() < SAME_MATHS
    assert sink.grad.abs().max() > 100 * SAME_MATHS


@pytest.mark.parametrize("variant", ["two", "register", "bias", "plain head gate"])
def test_bf16_trains_parts(variant, tmp_path):
    done = trained(variant, tmp_path / "run", precision="bf16")
    plain = trained(variant, tmp_path / "plain")
    assert {tensor.dtype for tensor in weights(done.model).values()} == {torch.float32}
    assert done.lines[0].loss == pytest.approx(plain.lines[0].loss, rel=BFLOAT16_LOSS)
    check_trained(variant, done)


@pytest.mark.parametrize("variant", ["several", "bias"])
def test_a_killed_run_with_parts_goes_on_bit_for_bit(variant, tmp_path):
    whole = trained(variant, tmp_path / "whole")

    with stopped_before(3):
        trained(variant, tmp_path / "cut")
    cut = trained(variant, tmp_path / "cut")
    assert cut.resumed_at == 2
    one, other = weights(whole.model), weights(cut.model)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [line.loss for line in whole.lines] == [line.loss for line in cut.lines]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("decay_all", [False, True])
def test_parts_decay_only_where_all_does(variant, decay_all):
    made = begun(variant)
    scorer = Scorer(made.network)
    asked = from_dict(fields(optimizer={"decay_all": decay_all})).optimizer
    groups = build_adamw(scorer, made.parts, asked, torch.device("cpu")).param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    added = tensor_names(made.network, made.parts)
    for name, parameter in made.network.named_parameters():
        exempt = not decay_all and (name in added or name.endswith("norm.weight"))
        assert decay[id(parameter)] == (0.0 if exempt else asked.weight_decay), name
    assert len(decay) == len(list(made.network.parameters()))


LORA = {"rank": 4, "targets": ["q_proj", "o_proj"]}


@pytest.mark.parametrize("variant", ["two", "register", "bias"])
def test_beside_adapters_parts_are_trained_in_full(variant, vanilla, tmp_path):
    source = {"from": str(vanilla.model)}
    done = trained(variant, tmp_path / "run", model=source, lora=LORA)
    old, new = weights(vanilla.model), weights(done.model)
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed == {name for name in old if name.endswith(("q_proj.weight", "o_proj.weight"))}
    first = begun(variant, model=source, lora=LORA)
    for name in set(new) - set(old):
        assert first.network.get_parameter(name).requires_grad
        assert not torch.equal(first.network.get_parameter(name), new[name])
    inner = done.folder / "checkpoints" / "update-00000004" / "training"
    restore_tensors(first, load_file(inner / "trained.safetensors"), adapted=True)
    with torch.no_grad():
        expected = first.network.eval()(CANVAS).logits
    assert torch.allclose(aw.load(done.model).logits(CANVAS), expected, atol=SAME_MATHS)


@pytest.mark.parametrize("lora", [None, LORA])
def test_the_parts_of_a_checkpoint_stay_and_are_trained_on(lora, sink, tmp_path):
    more = {"model": {"from": str(sink.model)}} | ({} if lora is None else {"lora": lora})
    done = trained(VARIANTS["plain gate"], tmp_path / "run", **more)
    old, new = weights(sink.model), weights(done.model)
    assert not torch.equal(old["anchorwatch.sink"], new["anchorwatch.sink"])
    model = aw.load(done.model)
    assert [type(part).__name__ for part in model.parts] == ["sink_token", "gate"]
    last = begun(VARIANTS["plain gate"], **more)
    assert [type(part).__name__ for part in last.parts] == ["sink_token", "gate"]
    if lora is None:
        restore_tensors(last, new)
        with torch.no_grad():
            assert torch.equal(model.logits(CANVAS), last.network.eval()(CANVAS).logits)
    again = trained([], tmp_path / "again", **more)
    assert [type(part).__name__ for part in aw.load(again.model).parts] == ["sink_token"]


@pytest.mark.parametrize(("rows", "gate"), [(2, False), (1, True)], ids=["sink", "gate"])
def test_a_published_checkpoint_with_a_part_can_be_gone_on_from(rows, gate, tmp_path):
    """It reads its mask and its sink, and writes neither."""
    tensors = lit_gpt_tensors(extra_rows=rows, gate=gate, outputs=WORDS)
    folder = write(tmp_path / "smdm", {"n_head": 4, "mask_token_id": WORDS}, tensors)
    tokenizer(masked=False).save_pretrained(folder)
    source = {"from": str(folder)}
    done = trained([], tmp_path / "run", model=source)
    model, last = aw.load(done.model), begun([], model=source)
    assert [type(part).__name__ for part in model.parts] == ["gate" if gate else "sink_token"]
    restore_tensors(last, weights(done.model))
    canvas = torch.tensor([[6, WORDS, 8, 9, WORDS]])
    with torch.no_grad():
        assert torch.equal(model.logits(canvas), last.network.eval()(canvas).logits)
    assert model.logits(canvas).shape[-1] == WORDS
    own = "model.layers.0.self_attn.gate.weight" if gate else "anchorwatch.sink"
    first = begun([], model=source).network.get_parameter(own)
    assert not torch.equal(first, weights(done.model)[own])


def renamed(folder, out, parts):
    """The same weights under a config.json that names other parts, without a record of bytes."""
    shutil.copytree(folder, out)
    (out / "COMMIT.json").unlink()
    config = json.loads((out / "config.json").read_text())
    config["anchorwatch"]["parts"] = parts
    (out / "config.json").write_text(json.dumps(config))
    return out


def test_another_variant_is_refused(sink, vanilla, tmp_path):
    own = json.loads((sink.model / "config.json").read_text())["anchorwatch"]["parts"]
    assert len(own[0]["embedding"]) == 64, "the digest of what was trained"
    cases = [
        (sink.model, [], r"holds anchorwatch\.sink and config.json names no part for it"),
        (sink.model, [{"name": "gate"}], r"names gate and the file has no .*gate\.weight"),
        (vanilla.model, own, r"names sink_token and the file has no anchorwatch\.sink"),
    ]
    for place, (folder, parts, says) in enumerate(cases):
        with pytest.raises(WeightsError, match=says):
            aw.load(renamed(folder, tmp_path / str(place), parts))
    early = sink.folder / "checkpoints" / "update-00000004"
    other = shutil.copytree(early, tmp_path / "other")
    shutil.copy(trained("sink", tmp_path / "run", seed=1).model / "model.safetensors", other)
    (other / "COMMIT.json").unlink()
    with pytest.raises(WeightsError, match=r"is not the one that config\.json names"):
        aw.load(other)
