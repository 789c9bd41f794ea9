"""From a spec to a folder that `aw.load` opens: from scratch, from a checkpoint, with parts, with adapters."""

import json

import pytest
import torch
from safetensors.torch import load_file

import anchorwatch as aw
from anchorwatch.errors import AnchorwatchWarning
from anchorwatch.trace.atomic_io import COMMIT
from anchorwatch.training import checkpoints, fit
from anchorwatch.training.networks import build_start
from anchorwatch.training.objective import Scorer
from anchorwatch.training.spec import SIZES, from_dict
from checkpoints import network, tensors_of, write
from tolerances import BFLOAT16_LOSS, SAME_MATHS
from toy_texts import MASK, WORDS, Texts, fields, stopped_before, tokenizer


def fitted(out, **differs):
    texts = differs.pop("corpus", Texts())
    words = None if "from" in differs.get("model", {}) else tokenizer()
    return fit(fields(**differs), out, corpus=texts, tokenizer=words)


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """An autoregressive checkpoint whose tokenizer has no mask token and no spare row."""
    out = tmp_path_factory.mktemp("arm") / "run"
    spec = fields(objective={"name": "next_token"})
    return fit(spec, out, corpus=Texts(), tokenizer=tokenizer(masked=False)).model


@pytest.fixture(scope="module")
def mdm(tmp_path_factory):
    return fitted(tmp_path_factory.mktemp("mdm") / "run").model


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("objective", ["diffusion", "next_token"])
def test_what_is_trained_is_what_is_loaded(kind, objective, tmp_path):
    shape = {"network": kind, "layers": 2, "width": 32, "heads": 4, "kv_heads": 2}
    done = fitted(tmp_path / "run", model=shape, objective={"name": objective})
    model = aw.load(done.model)
    arm = objective == "next_token"
    assert model.family.kind == ("arm" if arm else "mdm")
    assert model.family.shift is arm
    assert model.specials.mask_id == (None if arm else MASK)
    assert not [check for check in model.check() if not check.holds]
    held = load_file(done.model / "model.safetensors")
    assert all(torch.equal(held[name], value) for name, value in model.network.named_parameters())
    assert aw.load(done.folder / "checkpoints" / "update-00000012").digest == model.digest
    ask = [6, 7, 8]
    how = aw.decoding.LeftToRight(length=4) if arm else aw.decoding.LowConfidence(length=4)
    assert aw.run(model, ask, how, probes=()).num_steps


def test_tied_embeddings_are_saved_once_and_stay_tied(tmp_path):
    shape = {"layers": 1, "width": 32, "heads": 4, "tied": True}
    done = fitted(tmp_path / "run", model=shape, updates=3)
    assert "lm_head.weight" not in load_file(done.model / "model.safetensors")
    loaded = aw.load(done.model).network
    assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()


def test_arms_begin_with_the_same_tensors():
    plain = build_start(from_dict(fields()), tokenizer()).network.state_dict()
    gated = build_start(from_dict(fields(variant=["gate"])), tokenizer()).network.state_dict()
    other = build_start(from_dict(fields(seed=1)), tokenizer()).network.state_dict()
    assert set(gated) - set(plain) == {f"model.layers.{i}.self_attn.gate.weight" for i in range(2)}
    assert all(torch.equal(plain[name], gated[name]) for name in plain)
    drawn = [name for name in plain if plain[name].ndim == 2]
    assert not any(torch.equal(plain[name], other[name]) for name in drawn)
    flat = [plain[name].flatten()[:32] for name in drawn]
    assert len({tuple(one.tolist()) for one in flat}) == len(drawn)


def test_a_deeper_arm_shares_its_first_layers():
    def first(layers):
        shape = {"layers": layers, "width": 32, "heads": 4}
        return build_start(from_dict(fields(model=shape)), tokenizer()).network.state_dict()

    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(first(2)[name], first(3)[name])


def test_a_gated_arm_is_loaded_with_its_gates(tmp_path):
    done = fitted(tmp_path / "run", variant=["gate"])
    model = aw.load(done.model)
    begun = build_start(from_dict(fields(variant=["gate"])), tokenizer())
    begun.network.load_state_dict(load_file(done.model / "model.safetensors"))
    canvas = torch.tensor([[6, MASK, 8, 9]])
    with torch.no_grad():
        expected = begun.network.eval()(canvas).logits
        ungated = build_start(from_dict(fields()), tokenizer()).network.eval()
        ungated.load_state_dict(begun.network.state_dict(), strict=False)
        assert not torch.allclose(ungated(canvas).logits, expected, atol=SAME_MATHS)
    assert torch.equal(model.logits(canvas), expected)


def test_an_autoregressive_checkpoint_becomes_a_diffusion_model(arm, tmp_path):
    begun = build_start(from_dict(fields(model={"from": str(arm)})))
    assert (begun.kind, begun.shift, begun.mask_id) == ("mdm", True, WORDS)
    old = load_file(arm / "model.safetensors")
    rows = begun.network.model.embed_tokens.weight
    assert torch.equal(rows[:WORDS], old["model.embed_tokens.weight"])
    assert torch.allclose(rows[WORDS], old["model.embed_tokens.weight"].mean(dim=0))
    done = fitted(tmp_path / "run", model={"from": str(arm)})
    model = aw.load(done.model)
    assert (model.family.kind, model.family.shift, model.mask_id) == ("mdm", True, WORDS)
    assert model.tokenizer.mask_token_id == WORDS
    # Every position sees every other: the last token changes what is said of the first.
    one, other = model.logits([[6, WORDS, 8, 9], [6, WORDS, 8, 10]])
    assert not torch.equal(one[1], other[1])


def test_a_spare_token_may_become_the_mask(tmp_path):
    words = tokenizer(masked=False)
    words.add_special_tokens({"additional_special_tokens": ["<|spare|>"]})
    said = fields(updates=1, objective={"name": "next_token"})
    done = fit(said, tmp_path / "run", corpus=Texts(), tokenizer=words)
    begun = build_start(from_dict(fields(model={"from": str(done.model), "mask_id": MASK})))
    assert (begun.mask_id, begun.tokenizer.mask_token, begun.vocab_size) == (
        MASK,
        "<|spare|>",
        WORDS,
    )


def test_fine_tuning_keeps_the_kind_and_the_prompt_clear(arm, mdm, tmp_path):
    for source, kind in ((arm, "arm"), (mdm, "mdm")):
        spec = fields(model={"from": str(source)}, objective={"name": "fine_tune"})
        done = fit(spec, tmp_path / kind, corpus=Texts())
        assert aw.load(done.model).family.kind == kind
    from anchorwatch.training.corpora import build_batch_builder

    spec = from_dict(fields(model={"from": str(mdm)}, objective={"name": "fine_tune"}))
    rows = build_batch_builder(spec, build_start(spec))([Texts()[i] for i in range(8)], 0, range(8))
    for row in range(8):
        text = Texts()[row]
        prompt = len(text.ids) - 4
        assert rows.canvas[row, :prompt].tolist() == text.ids[:prompt].tolist()
    assert rows.divisor == 32


def test_a_first_update_of_a_converted_checkpoint_begins_at_its_weights(arm, tmp_path):
    spec = fields(model={"from": str(arm)}, updates=1, optimizer={"lr": 1e-12, "weight_decay": 0.0})
    done = fit(spec, tmp_path / "run", corpus=Texts())
    old, new = (load_file(at / "model.safetensors") for at in (arm, done.model))
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.allclose(old[name], new[name], atol=1e-9)


LORA = {"rank": 4, "targets": ["q_proj", "o_proj", "up_proj"]}


def test_adapters_train_and_are_saved_merged(mdm, tmp_path):
    out = tmp_path / "run"
    done = fitted(out, model={"from": str(mdm)}, lora=LORA, variant=["gate"])
    old, new = (load_file(at / "model.safetensors") for at in (mdm, done.model))
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    targets = ("q_proj.weight", "o_proj.weight", "up_proj.weight")
    assert changed == {name for name in old if name.endswith(targets)}
    assert not [name for name in new if "lora" in name or "base_layer" in name]
    # The part is trained in full, and is not where it began.
    spec = from_dict(fields(model={"from": str(mdm)}, lora=LORA, variant=["gate"]))
    begun = build_start(spec)
    gate = "model.layers.0.self_attn.gate.weight"
    assert not torch.equal(begun.network.state_dict()[gate], new[gate])
    # Merged is what was trained, but for rounding.
    inner = done.folder / "checkpoints" / "update-00000012" / "training"
    begun.network.load_state_dict(load_file(inner / "trained.safetensors"), strict=False)
    canvas = torch.tensor([[6, MASK, 8, 9]])
    with torch.no_grad():
        expected = begun.network.eval()(canvas).logits
    assert torch.allclose(aw.load(done.model).logits(canvas), expected, atol=SAME_MATHS)


def test_adapters_of_a_new_mask_token_train_its_row(arm, tmp_path):
    done = fitted(tmp_path / "run", model={"from": str(arm)}, lora=LORA)
    rows = load_file(done.model / "model.safetensors")["model.embed_tokens.weight"]
    mean = load_file(arm / "model.safetensors")["model.embed_tokens.weight"].mean(dim=0)
    assert not torch.allclose(rows[WORDS], mean, atol=1e-4)


def test_adapters_go_on_bit_for_bit(mdm, tmp_path):
    said = {"model": {"from": str(mdm)}, "lora": LORA, "checkpoints": {"updates": 5}}
    whole = fitted(tmp_path / "whole", **said)
    with stopped_before(8):
        fitted(tmp_path / "cut", **said)
    cut = fitted(tmp_path / "cut", **said)
    assert cut.resumed_at == 5
    one, other = (load_file(run.model / "model.safetensors") for run in (whole, cut))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_scorer_is_the_networks_own_loss(mdm):
    model = aw.load(mdm)
    canvas, at = torch.tensor([[6, MASK, 8, MASK]]), torch.tensor([1, 3])
    costs = Scorer(model.network)(canvas, None, at, torch.tensor([7, 9]))
    logprobs = model.logprobs(canvas)[0]
    expected = torch.stack([-logprobs[1, 7], -logprobs[3, 9]])
    assert torch.allclose(costs, expected, atol=SAME_MATHS)


def test_bf16_computes_in_bf16_and_keeps_float32(tmp_path):
    done = fitted(tmp_path / "run", precision="bf16", updates=3)
    plain = fitted(tmp_path / "plain", updates=3)
    held = load_file(done.model / "model.safetensors")
    assert {tensor.dtype for tensor in held.values()} == {torch.float32}
    assert done.lines[0].loss != plain.lines[0].loss
    assert done.lines[0].loss == pytest.approx(plain.lines[0].loss, rel=BFLOAT16_LOSS)


def test_workers_change_nothing(tmp_path):
    one = fitted(tmp_path / "one", updates=4)
    other = fitted(tmp_path / "other", updates=4, workers=1)
    assert [line.loss for line in one.lines] == [line.loss for line in other.lines]


def test_passes_that_are_added_up_give_the_update_of_one(tmp_path):
    one = fitted(tmp_path / "one", updates=3)
    four = fitted(tmp_path / "four", updates=3, accumulation=4)
    losses = [line.loss for line in one.lines]
    assert [line.loss for line in four.lines] == pytest.approx(losses, abs=SAME_MATHS)


def test_the_environment_does_not_divide_gradients(tmp_path, monkeypatch):
    plain = fitted(tmp_path / "plain", updates=2)
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    launched = fitted(tmp_path / "launched", updates=2)
    assert [line.grad_norm for line in launched.lines] == [line.grad_norm for line in plain.lines]
    assert [line.loss for line in launched.lines] == [line.loss for line in plain.lines]


def test_the_log_is_whole_in_both_forms(tmp_path):
    done = fitted(tmp_path / "run")
    lines = (done.folder / "log.csv").read_text().splitlines()
    assert lines[0] == "update,loss,lr,grad_norm,tokens_per_second,tokens"
    assert [int(line.split(",")[0]) for line in lines[1:]] == list(range(1, 13))
    held = [json.loads(line) for line in (done.folder / "log.jsonl").read_text().splitlines()]
    assert [one["loss"] for one in held] == [line.loss for line in done.lines]
    assert held[-1]["lr"] == pytest.approx(1e-3)
    assert (done.folder / "loss.pdf").stat().st_size > 1000


def test_the_ladder_is_smdm_s():
    from anchorwatch.models.families import SMDM_HEADS

    assert all(SMDM_HEADS[layers, width] == heads for layers, width, heads in SIZES.values())


def test_a_foreign_stock_checkpoint_can_be_gone_on_from(tmp_path):
    made = network("llama", vocab_size=WORDS)
    config = made.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    folder = write(tmp_path / "stock", config, tensors_of(made))
    tokenizer(masked=False).save_pretrained(folder)
    done = fitted(tmp_path / "run", model={"from": str(folder)})
    assert aw.load(done.model).family.shift


def test_the_mask_row_alone_is_trained_beside_adapters(arm, tmp_path):
    said = LORA | {"embeddings": "mask"}
    done = fitted(tmp_path / "run", model={"from": str(arm)}, lora=said)
    old, new = (
        load_file(at / "model.safetensors")["model.embed_tokens.weight"] for at in (arm, done.model)
    )
    assert torch.equal(new[:WORDS], old)
    assert not torch.allclose(new[WORDS], old.mean(dim=0), atol=1e-4)
    # What is kept is small: adapters and the row, and no frozen tensor.
    inner = done.folder / "checkpoints" / "update-00000012" / "training"
    kept = load_file(inner / "trained.safetensors")
    assert all(".lora_" in name or name.endswith("mask_row") for name in kept)
    begun = build_start(from_dict(fields(model={"from": str(arm)}, lora=said)))
    begun.network.load_state_dict(kept, strict=False)
    canvas = torch.tensor([[6, WORDS, 8, 9]])
    with torch.no_grad():
        expected = begun.network.eval()(canvas).logits
    found = aw.load(done.model).logits(canvas)  # shifted: the row before says a token
    assert torch.allclose(found[:, 1:], expected[:, :-1], atol=SAME_MATHS)


def test_the_mask_row_of_a_tied_network_is_merged_into_both(tmp_path):
    shape = {"layers": 1, "width": 32, "heads": 4, "tied": True}
    source = fit(
        fields(model=shape, objective={"name": "next_token"}),
        tmp_path / "arm",
        corpus=Texts(),
        tokenizer=tokenizer(),
    ).model
    said = {"model": {"from": str(source)}, "lora": LORA | {"embeddings": "mask"}}
    done = fitted(tmp_path / "run", **said)
    begun = build_start(from_dict(fields(**said)))
    inner = done.folder / "checkpoints" / "update-00000012" / "training"
    begun.network.load_state_dict(load_file(inner / "trained.safetensors"), strict=False)
    canvas = torch.tensor([[6, MASK, 8, 9]])
    with torch.no_grad():
        expected = begun.network.eval()(canvas).logits
    found = aw.load(done.model).logits(canvas)
    assert torch.allclose(found[:, 1:], expected[:, :-1], atol=SAME_MATHS)


def test_a_mask_row_needs_a_mask(arm, tmp_path):
    said = LORA | {"embeddings": "mask"}
    with pytest.raises(aw.errors.SpecError, match="needs a mask token: use diffusion"):
        fitted(
            tmp_path / "run", model={"from": str(arm)}, lora=said, objective={"name": "next_token"}
        )


def test_snapshots_stay_and_open(mdm, tmp_path):
    whole = fitted(tmp_path / "whole", checkpoints={"at": [0, 3]})
    kept = whole.folder / "snapshots"
    assert sorted(path.name for path in kept.iterdir()) == ["update-00000000", "update-00000003"]
    assert aw.load(kept / "update-00000003").digest != aw.load(whole.model).digest


def test_snapshots_at_token_counts(tmp_path):
    """One after the first update that reaches a count, also where the run was stopped there."""
    plain = fitted(tmp_path / "plain", updates=4)
    tokens = [line.tokens for line in plain.lines]
    counts = {"at_tokens": [1, tokens[1], tokens[1] + 1, 10**9]}
    stopped = tmp_path / "run"
    with stopped_before(2):
        fitted(stopped, updates=4, checkpoints=counts | {"updates": 1})
    with pytest.warns(AnchorwatchWarning, match="no snapshot of 1000000000 tokens"):
        done = fitted(stopped, updates=4, checkpoints=counts | {"updates": 1})
    names = sorted(path.name for path in (done.folder / "snapshots").iterdir())
    assert names == ["update-00000001", "update-00000002", "update-00000003"]
    assert done.lines[-1].loss == plain.lines[-1].loss
    assert aw.load(done.folder / "snapshots" / names[1]).digest != aw.load(done.model).digest


def test_counts_that_a_run_had_passed_and_those_it_never_reached_are_named(tmp_path):
    first = fitted(tmp_path, updates=4, checkpoints={"at": [2]})
    tokens = [line.tokens for line in first.lines]
    # 1. Asked for afterwards: update 2 has its snapshot, and of update 4 there is none.
    asked = {"at": [0, 2, 4, 9], "at_tokens": [1, tokens[1], tokens[3], 10**9]}
    with pytest.warns(AnchorwatchWarning) as warned:
        fitted(tmp_path, updates=4, checkpoints=asked)
    assert [str(warning.message) for warning in warned] == [
        f"{tmp_path} has no snapshot of update 0, update 4, 1 token, {tokens[3]} tokens (passed "
        "before checkpoints asked for that: train into another folder), nor of update 9, "
        f"1000000000 tokens (never reached, the run ended at update 4 after {tokens[3]} tokens: "
        "say more updates)"
    ]
    # 2. Asked for when the run was on its way, at update 3 of 4.
    stopped = tmp_path / "stopped"
    with stopped_before(3):
        fitted(stopped, updates=4, checkpoints={"updates": 1})
    with pytest.warns(AnchorwatchWarning, match=r"no snapshot of update 2 \(passed before"):
        fitted(stopped, updates=4, checkpoints={"at": [2, 3, 4]})
    names = sorted(path.name for path in (stopped / "snapshots").iterdir())
    assert names == ["update-00000003", "update-00000004"]


def test_a_snapshot_that_a_kill_came_before_is_written_later(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    said = {"updates": 3, "checkpoints": {"updates": 1, "at": [2], "at_tokens": [1]}}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoints, "save_snapshot", killed)
        fitted(tmp_path / "run", **said)
    done = fitted(tmp_path / "run", **said)
    assert done.resumed_at == 1
    names = sorted(path.name for path in (done.folder / "snapshots").iterdir())
    assert names == ["update-00000001", "update-00000002"]


def test_adapters_are_kept_as_a_delta_that_opens(arm, tmp_path):
    said = {"model": {"from": str(arm)}, "lora": LORA | {"embeddings": "mask"}}
    done = fitted(tmp_path / "run", variant=["gate"], checkpoints={"at": [12]}, **said)
    kept = done.folder / "snapshots" / "update-00000012"
    assert sum(path.stat().st_size for path in kept.glob("*.safetensors")) < 40_000
    small, whole = aw.load(kept), aw.load(done.model)
    assert small.family == whole.family and small.specials == whole.specials
    canvas = torch.tensor([[6, WORDS, 8, 9]])
    assert torch.allclose(small.logits(canvas), whole.logits(canvas), atol=2e-2)  # float16
    assert not [check for check in small.check() if not check.holds]


def test_a_delta_goes_on_its_own_network_alone(arm, mdm, tmp_path):
    said = {"model": {"from": str(arm)}, "lora": LORA | {"embeddings": "mask"}}
    done = fitted(tmp_path / "run", checkpoints={"at": [12]}, **said)
    kept = done.folder / "snapshots" / "update-00000012"
    config = json.loads((kept / "config.json").read_text())
    config["anchorwatch"]["delta"]["from"] = str(mdm)
    (kept / "config.json").write_text(json.dumps(config))
    (kept / COMMIT).unlink()  # whoever changes a folder on purpose removes its record
    with pytest.raises(aw.errors.WeightsError, match="not the network that this delta was made"):
        aw.load(kept)


def test_a_delta_goes_on_a_delta_and_a_circle_is_refused(arm, tmp_path):
    first = fitted(
        tmp_path / "first",
        model={"from": str(arm)},
        lora=LORA,
        checkpoints={"at": [12]},
        objective={"name": "next_token"},
    )
    stem = first.folder / "snapshots" / "update-00000012"
    second = fitted(
        tmp_path / "second",
        model={"from": str(stem)},
        lora=LORA | {"embeddings": "mask"},
        checkpoints={"at": [12]},
    )
    kept = second.folder / "snapshots" / "update-00000012"
    canvas = torch.tensor([[6, WORDS, 8, 9]])
    small, whole = aw.load(kept), aw.load(second.model)
    assert small.family.kind == "mdm"
    assert torch.allclose(small.logits(canvas), whole.logits(canvas), atol=2e-2)  # float16
    config = json.loads((kept / "config.json").read_text())
    config["anchorwatch"]["delta"]["from"] = "."
    (kept / "config.json").write_text(json.dumps(config))
    (kept / COMMIT).unlink()  # whoever changes a folder on purpose removes its record
    with pytest.raises(aw.errors.ModelError, match="in a circle"):
        aw.load(kept)


def test_the_adapters_of_a_delta_are_trained_on(arm, tmp_path):
    said = {"model": {"from": str(arm)}, "lora": LORA | {"embeddings": "mask"}}
    first = fitted(tmp_path / "first", checkpoints={"at": [0, 12]}, **said)
    kept = first.folder / "snapshots" / "update-00000012"
    more = said | {"lora": said["lora"] | {"from": str(kept)}}
    canvas = torch.tensor([[6, WORDS, 8, 9]])
    # 1. It begins as the delta, and its own delta is of the same network and as small.
    done = fitted(tmp_path / "more", checkpoints={"at": [0, 12]}, seed=1, **more)
    begun, ended = (done.folder / "snapshots" / f"update-{update:08d}" for update in (0, 12))
    assert torch.equal(aw.load(begun).logits(canvas), aw.load(kept).logits(canvas))
    assert not torch.equal(aw.load(ended).logits(canvas), aw.load(kept).logits(canvas))
    sizes = {
        path.stat().st_size for path in (kept / "delta.safetensors", ended / "delta.safetensors")
    }
    assert len(sizes) == 1
    # 2. The record names the adapters; a run that begins with others is another run.
    assert build_start(from_dict(fields(**more))).describe()["first_adapters"]
    assert "first_adapters" not in build_start(from_dict(fields(**said))).describe()
    other = said | {
        "lora": said["lora"] | {"from": str(first.folder / "snapshots/update-00000000")}
    }
    with pytest.raises(aw.errors.SpecError, match=r"start\.first_adapters is"):
        fitted(tmp_path / "more", checkpoints={"at": [0, 12]}, seed=1, **other)


@pytest.mark.parametrize(
    ("lora", "says"),
    [({"rank": 2}, "has other adapters"), ({"alpha": 5}, "alpha")],
)
def test_adapters_that_do_not_fit_are_refused(arm, lora, says, tmp_path):
    said = {"model": {"from": str(arm)}, "lora": LORA | {"embeddings": "mask"}}
    first = fitted(tmp_path / "first", updates=2, checkpoints={"at": [2]}, **said)
    kept = first.folder / "snapshots" / "update-00000002"
    more = said | {"lora": said["lora"] | lora | {"from": str(kept)}}
    with pytest.raises(aw.errors.SpecError, match=says):
        fitted(tmp_path / "more", **more)


def test_adapters_of_another_checkpoint_are_refused(arm, mdm, tmp_path):
    said = {"model": {"from": str(arm)}, "lora": LORA | {"from": str(mdm)}}
    with pytest.raises(aw.errors.SpecError, match="is no delta"):
        fitted(tmp_path / "more", **said)
