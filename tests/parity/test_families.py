"""Every family: a tiny file under the released names loads, proves itself, and computes what it should."""

import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

import anchorwatch as aw
import checkpoints
import tolerances
from anchorwatch.errors import (
    AnchorwatchWarning,
    FamilyError,
    ModelError,
    PromptError,
    SpecError,
)
from checkpoints import CAUSAL, ENCODERS, MASK, lit_gpt_tensors, network, tensors_of, write
from references.networks import lit_gpt

IDS = torch.tensor([5, 60, 7, MASK, MASK, 12, 33, MASK, 41, 8, 9])


def config_of(made, **differs):
    fields = made.config.to_dict()
    for name in ("architectures", "transformers_version", "is_causal", "_name_or_path"):
        fields.pop(name, None)
    return fields | {"mask_token_id": MASK} | differs


def logits(made, ids, visible=None):
    with torch.no_grad():
        mask = None if visible is None else visible[None, None]
        return made(ids[None], attention_mask=mask).logits[0]


def shifted(rows):
    return torch.cat([rows[:1], rows[:-1]])


def block_causal(length, block):
    places = torch.arange(length) // block
    return places[:, None] >= places[None, :]


@pytest.mark.parametrize("architecture", ["LLaDAModelLM", "MMadaModelLM"])
def test_llada_with_grouped_keys_and_a_wider_embedding(tmp_path, architecture):
    folder, made = checkpoints.write_llada(tmp_path / "m", architectures=[architecture])
    model = aw.load(folder)
    assert torch.equal(model.logits(IDS), logits(made, IDS))
    assert (model.num_layers, model.num_heads, model.num_kv_heads) == (2, 4, 2)
    assert model.vocab_size == 96
    assert model.mask_id == MASK
    model.check()


def test_llada_with_tied_weights(tmp_path):
    made = network("llama", bidirectional=True, tie_word_embeddings=True)
    config = checkpoints.llada_config(weight_tying=True, rope_theta=10000.0)
    folder = write(tmp_path / "m", config, checkpoints.llada_names(tensors_of(made)))
    assert torch.equal(aw.load(folder).logits(IDS), logits(made, IDS))


@pytest.mark.parametrize(
    ("lost", "differs", "same"),
    [
        ("rms_norm_eps", {}, {"rms_norm_eps": 1e-5}),
        ("rope_theta", {}, {"rope_theta": 10000.0}),
        ("n_kv_heads", {}, {"num_key_value_heads": 4}),
        ("n_kv_heads", {"multi_query_attention": True}, {"num_key_value_heads": 1}),
        ("mlp_hidden_size", {"mlp_ratio": 2}, {"intermediate_size": 64}),
        ("embedding_size", {"vocab_size": 96}, {}),
    ],
)
def test_what_llada_s_config_leaves_out_has_its_authors_default(tmp_path, lost, differs, same):
    fields = {"rope_theta": 500000.0, "rms_norm_eps": 1e-3} | same
    made = network("llama", bidirectional=True, **fields)
    config = checkpoints.llada_config(rms_norm_eps=1e-3, **differs)
    del config[lost]
    folder = write(tmp_path / "m", config, checkpoints.llada_names(tensors_of(made)))
    assert torch.equal(aw.load(folder).logits(IDS), logits(made, IDS))


def test_dream_predicts_the_next_row(tmp_path):
    made = network("qwen2", bidirectional=True)
    config = config_of(made, architectures=["DreamModel"], model_type="Dream")
    model = aw.load(write(tmp_path / "m", config, tensors_of(made)))
    assert torch.equal(model.logits(IDS), shifted(logits(made, IDS)))
    model.check()


def test_dream_with_heads_wider_than_its_stream(tmp_path):
    """Qwen2 follows a head_dim that its config class does not declare."""
    made = network("qwen2", bidirectional=True, head_dim=16)
    config = config_of(made, architectures=["DreamModel"], model_type="Dream")
    model = aw.load(write(tmp_path / "m", config, tensors_of(made)))
    assert torch.equal(model.logits(IDS), shifted(logits(made, IDS)))


def test_open_dcoder_is_qwen2_with_a_mask_token(tmp_path):
    made = network("qwen2", bidirectional=True)
    config = config_of(made, architectures=["Qwen2ForCausalLM"], mask_token_id=None)
    folder = write(tmp_path / "m", config, tensors_of(made))
    plain = aw.load(folder)
    assert plain.family.name == "causal", "without a mask token it is the autoregressive model"
    tokenizer = checkpoints.write_tokenizer(folder, mask_token="<M>")
    model = aw.load(folder)
    assert model.family.name == "open-dcoder"
    assert model.mask_id == tokenizer.mask_token_id
    assert torch.equal(model.logits(IDS), shifted(logits(made, IDS)))


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_open_dcoder_is_known_by_a_mask_id_too(tmp_path, file):
    made = network("qwen2", bidirectional=True)
    config = config_of(made, architectures=["Qwen2ForCausalLM"], mask_token_id=None)
    folder = write(tmp_path / "m", config, tensors_of(made))
    said = json.loads((folder / file).read_text()) if file == "config.json" else {}
    (folder / file).write_text(json.dumps(said | {"mask_token_id": MASK}))
    model = aw.load(folder)
    assert model.family.name == "open-dcoder"
    assert model.mask_id == MASK
    assert torch.equal(model.logits(IDS), shifted(logits(made, IDS)))


def test_a_mask_id_makes_a_qwen2_a_diffusion_model_and_says_so(tmp_path):
    network("qwen2").save_pretrained(tmp_path / "m")
    assert aw.load(tmp_path / "m").family.name == "causal"
    with pytest.warns(
        AnchorwatchWarning, match="mask_id=95 makes it open-dcoder, a diffusion model"
    ):
        model = aw.load(tmp_path / "m", mask_id=MASK)
    assert model.family.name == "open-dcoder"
    assert any("names no mask token" in note for note in model.notes)


@pytest.mark.parametrize(
    ("name", "architecture", "model_type", "field", "kind", "shift"),
    [
        ("sdar", "SDARForCausalLM", "sdar", "block_size", "qwen3", False),
        ("fast-dllm-v2", "Fast_dLLM_QwenForCausalLM", "Fast_dLLM_Qwen", "bd_size", "qwen2", True),
    ],
)
def test_block_causal_families(tmp_path, name, architecture, model_type, field, kind, shift):
    made = network(kind, bidirectional=True, head_dim=8)
    config = config_of(made, architectures=[architecture], model_type=model_type) | {field: 4}
    model = aw.load(write(tmp_path / "m", config, tensors_of(made)))
    assert model.family.name == name
    assert model.block == 4
    expected = logits(made, IDS, block_causal(len(IDS), 4))
    expected = shifted(expected) if shift else expected
    assert (model.logits(IDS) - expected).abs().max() <= tolerances.SAME_MATHS
    model.check()


@pytest.mark.parametrize(
    ("architecture", "model_type", "kind", "block"),
    [
        ("SDARForCausalLM", "sdar", "qwen3", 4),
        ("Fast_dLLM_QwenForCausalLM", "Fast_dLLM_Qwen", "qwen2", 32),
        ("Fast_dLLM_QwenForCausalLM", None, "qwen2", 32),
    ],
)
@pytest.mark.filterwarnings("ignore:.*names no block size")
def test_block_causal_families_have_a_block_of_their_own(
    tmp_path, architecture, model_type, kind, block
):
    made = network(kind, bidirectional=True, head_dim=8)
    config = config_of(made, architectures=[architecture], model_type=model_type)
    model = aw.load(write(tmp_path / "m", config, tensors_of(made)))
    assert model.block == block
    ids = torch.arange(2, 42)
    expected = logits(made, ids, block_causal(len(ids), block))
    expected = shifted(expected) if model.family.shift else expected
    assert (model.logits(ids) - expected).abs().max() <= tolerances.SAME_MATHS


def test_block_causal_blocks_count_from_the_first_real_token(tmp_path):
    made = network("qwen3", bidirectional=True, head_dim=8)
    config = config_of(made, architectures=["SDARForCausalLM"], model_type="sdar", block_size=4)
    model = aw.load(write(tmp_path / "m", config, tensors_of(made)))
    padded = model.logits(torch.cat([torch.zeros(3, dtype=torch.long), IDS]), padding=3)[3:]
    assert (padded - model.logits(IDS)).abs().max() <= tolerances.SAME_MATHS


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("shift", [False, True])
def test_tiny_a2d_says_itself_whether_it_shifts(tmp_path, kind, shift):
    made = network(kind, bidirectional=True)
    config = config_of(made, model_type=f"a2d-{kind}", right_shift_logits=shift)
    model = aw.load(write(tmp_path / "m", config, tensors_of(made)))
    assert model.family.name == f"a2d-{kind}"
    rows = logits(made, IDS)
    assert torch.equal(model.logits(IDS), shifted(rows) if shift else rows)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_diffugpt_and_diffullama_are_known_by_their_tensors(tmp_path, kind):
    extra = {"n_positions": 64} if kind == "gpt2" else {"tie_word_embeddings": False}
    made = network(kind, bidirectional=True, **extra)
    base = {"gpt2": "transformer.", "llama": "model."}[kind]
    embedding = {"gpt2": "wte.weight", "llama": "embed_tokens.weight"}[kind]
    renamed = {}
    for name, tensor in tensors_of(made).items():
        if name == base + embedding:
            name = "embed_tokens.weight"
        renamed[name.replace(base, "denoise_model.", 1) if name.startswith(base) else name] = tensor
    architecture = {"gpt2": "GPT2LMHeadModel", "llama": "DiscreteDiffusionModel"}[kind]
    config = config_of(made, architectures=[architecture])
    model = aw.load(write(tmp_path / "m", config, renamed))
    assert model.family.name == {"gpt2": "diffugpt", "llama": "diffullama"}[kind]
    assert torch.equal(model.logits(IDS), shifted(logits(made, IDS)))
    model.check()


@pytest.mark.parametrize(
    ("extra_rows", "gate"), [(1, False), (2, False), (1, True)], ids=["vanilla", "sink", "gate"]
)
def test_smdm_and_one_token_is_enough(tmp_path, extra_rows, gate):
    tensors = lit_gpt_tensors(extra_rows=extra_rows, gate=gate)
    folder = write(tmp_path / "m", {"n_head": 4, "mask_token_id": 90}, tensors)
    model = aw.load(folder)
    assert model.family.name == "smdm"
    kinds = [type(part).__name__ for part in model.parts]
    assert kinds == ["sink_token"] * (extra_rows == 2) + ["gate"] * gate
    assert (model.num_heads, model.num_kv_heads) == (4, 2)
    ids = torch.tensor([5, 60, 90, 7, 90, 12])
    expected = lit_gpt(
        tensors, ids, layers=2, heads=4, groups=2, sink_id=91 if extra_rows == 2 else None
    )
    ours = model.logits(ids)
    assert ours.shape == (6, 90), "the mask and the sink cannot be written"
    assert (ours - expected).abs().max() <= tolerances.SAME_MATHS
    model.check()
    trace = aw.run(model, [5, 60, 7], aw.decoding.LowConfidence(5))
    assert trace.num_left_masked == 0


@pytest.mark.parametrize(("layers", "width", "heads"), [(6, 256, 4), (8, 384, 6)])
def test_an_smdm_file_alone_takes_its_heads_from_the_ladder(tmp_path, layers, width, heads):
    """mdm-*.safetensors come without config.json: 6 layers of width 256 are the 6M model, 4 heads."""
    sizes = {"layers": layers, "width": width, "heads": heads, "groups": heads}
    tensors = lit_gpt_tensors(extra_rows=1, gate=False, outputs=40, **sizes)
    path = tmp_path / "mdm-6M-1e18.safetensors"
    save_file(tensors, path)
    model = aw.load(path, mask_id=40)
    assert (model.num_layers, model.num_heads, model.num_kv_heads) == (layers, heads, heads)
    ids = torch.tensor([3, 40, 5])
    expected = lit_gpt(tensors, ids, layers=layers, heads=heads, groups=heads)
    gap = (model.logits(ids) - expected).abs().max()
    assert gap <= tolerances.of_logits(layers=layers, width=width, largest=expected.abs().max())


@pytest.mark.parametrize("extra_rows", [1, 2], ids=["vanilla", "sink"])
@pytest.mark.parametrize("block_size", [24, None])
def test_smdm_has_the_positions_it_was_trained_on(tmp_path, extra_rows, block_size):
    """A sink takes one more, which is not the canvas's."""
    tensors = lit_gpt_tensors(extra_rows=extra_rows, gate=False)
    config = {"n_head": 4, "mask_token_id": 90, "block_size": block_size}
    model = aw.load(write(tmp_path / "m", config, tensors))
    assert model.num_positions == (block_size or 2048)
    full = torch.arange(model.num_positions) % 90
    assert model.logits(full).isfinite().all()
    with pytest.raises(PromptError, match=f"was made for {model.num_positions}"):
        model.logits(torch.arange(model.num_positions + 1) % 90)


def test_roberta_has_the_positions_after_its_padding_row(tmp_path):
    network("roberta", masked=True, pad_token_id=3).save_pretrained(tmp_path / "m")
    model = aw.load(tmp_path / "m", mask_id=MASK)
    assert model.num_positions == 64 - 4
    assert model.logits(torch.arange(60)).isfinite().all()
    with pytest.raises(PromptError, match="was made for 60"):
        model.logits(torch.arange(61))


@pytest.mark.parametrize("kind", ENCODERS)
def test_masked_language_models_are_denoisers(tmp_path, kind):
    made = network(kind, masked=True, **ENCODERS[kind])
    made.save_pretrained(tmp_path / "m")
    model = aw.load(tmp_path / "m", mask_id=MASK)
    assert model.family.name == "encoder"
    assert torch.equal(model.logits(IDS), logits(made, IDS))
    model.check()
    trace = aw.run(model, canvas=IDS)
    assert trace.answer.tolist() == [3, 4, 7]


@pytest.mark.parametrize("kind", CAUSAL)
def test_causal_models_are_autoregressive(tmp_path, kind):
    made = network(kind, **CAUSAL[kind])
    made.save_pretrained(tmp_path / "m")
    model = aw.load(tmp_path / "m")
    assert model.family.name == "causal"
    rows = model.logits(IDS)
    assert rows[0].isnan().all()
    assert torch.equal(rows[1:], logits(made, IDS)[:-1])
    model.check()
    for cache in (True, False):
        ours = aw.run(model, IDS.tolist(), aw.decoding.LeftToRight(12, cache=cache))
        theirs = made.generate(IDS[None], do_sample=False, max_new_tokens=12, pad_token_id=0)
        assert ours.canvas[-1][: theirs.shape[1]].tolist() == theirs[0].tolist()


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("said", [{"is_decoder": False}, {"is_decoder": True}, {}])
def test_an_encoder_s_class_loaded_as_causal_is_causal(tmp_path, kind, said):
    made = network(kind, is_decoder=True, pad_token_id=1)
    architecture = {"bert": "BertLMHeadModel", "roberta": "RobertaForCausalLM"}[kind]
    config = config_of(made, architectures=[architecture], mask_token_id=None)
    del config["is_decoder"]
    model = aw.load(write(tmp_path / "m", config | said, tensors_of(made)))
    assert model.family.name == "causal"
    assert torch.equal(model.logits(IDS)[1:], logits(made, IDS)[:-1])
    model.check()
    for cache in (True, False):
        trace = aw.run(model, IDS.tolist(), aw.decoding.LeftToRight(4, cache=cache))
        canvas = IDS.clone()
        for _ in range(4):
            canvas = torch.cat([canvas, logits(made, canvas)[-1:].argmax(dim=-1)])
        assert trace.canvas[-1].tolist() == canvas.tolist()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("llama", {"is_causal": False}),
        ("gemma3_text", {"use_bidirectional_attention": True}),
    ],
)
def test_a_config_does_not_let_an_autoregressive_model_see_the_future(tmp_path, kind, said):
    made = network(kind, head_dim=8)
    made.save_pretrained(tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    (name,) = said
    with pytest.warns(AnchorwatchWarning, match=f"{name}=.*: ignored, causal models are causal"):
        model = aw.load(tmp_path / "m")
    assert any(name in note for note in model.notes)
    assert torch.equal(model.logits(IDS)[1:], logits(made, IDS)[:-1])
    model.check()


def test_a_config_does_not_blind_a_denoiser(tmp_path):
    made = network("bert", masked=True)
    config = config_of(made, architectures=["BertForMaskedLM"], is_decoder=True)
    folder = write(tmp_path / "m", config, tensors_of(made))
    with pytest.warns(
        AnchorwatchWarning, match="is_decoder=True: ignored, encoder models are bidir"
    ):
        model = aw.load(folder)
    assert torch.equal(model.logits(IDS), logits(made, IDS))
    folder, made = checkpoints.write_llada(tmp_path / "llada", is_causal=True)
    with pytest.warns(AnchorwatchWarning, match="is_causal=True: ignored"):
        assert torch.equal(aw.load(folder).logits(IDS), logits(made, IDS))


@pytest.mark.parametrize("field", ["add_cross_attention", "is_encoder_decoder"])
def test_half_of_an_encoder_decoder_is_not_made(tmp_path, field):
    made = network("gpt2", n_positions=64)
    config = config_of(made, architectures=["GPT2LMHeadModel"], mask_token_id=None) | {field: True}
    model = aw.load(write(tmp_path / "m", config, tensors_of(made)))
    assert torch.equal(model.logits(IDS)[1:], logits(made, IDS)[:-1])


@pytest.mark.parametrize("said", [{"return_dict": False}, {"chunk_size_feed_forward": 5}])
def test_a_config_does_not_change_the_form_of_the_output(tmp_path, said):
    made = network("bert", masked=True)
    config = config_of(made, architectures=["BertForMaskedLM"])
    model = aw.load(write(tmp_path / "m", config | said, tensors_of(made)))
    assert torch.equal(model.logits(IDS), logits(made, IDS))


def test_a_gguf_file_is_the_network_it_was_made_of(tmp_path, monkeypatch, capfd):
    import gguf

    made = checkpoints.write_gguf(tmp_path / "x.gguf")
    readers = []
    honest = gguf.GGUFReader.__init__
    monkeypatch.setattr(
        gguf.GGUFReader,
        "__init__",
        lambda self, *given: (readers.append(1), honest(self, *given))[1],
    )
    capfd.readouterr()
    model = aw.load(tmp_path / "x.gguf")
    assert len(readers) == 1, "a real file takes seconds for each"
    assert capfd.readouterr().err == ""
    stock = AutoTokenizer.from_pretrained(tmp_path, gguf_file="x.gguf")
    assert type(model.tokenizer) is type(stock)
    assert model.tokenizer.get_vocab() == stock.get_vocab()
    assert torch.equal(model.logits(IDS)[1:], logits(made, IDS)[:-1])
    assert model.specials.eos_ids == (2,)
    model.check()


def test_a_gpt2_file_without_the_prefix_and_with_old_buffers(tmp_path):
    """The hub's gpt2 has `h.0.attn.c_attn.weight` and causal-mask buffers."""
    made = network("gpt2", n_positions=64)
    tensors = {n.removeprefix("transformer."): t for n, t in tensors_of(made).items()}
    for layer in range(2):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    config = config_of(made, architectures=["GPT2LMHeadModel"], mask_token_id=None)
    model = aw.load(write(tmp_path / "m", config, tensors))
    assert torch.equal(model.logits(IDS)[1:], logits(made, IDS)[:-1])
    assert any("causal-mask buffer" in note for note in model.notes)


def test_old_bert_names_and_heads_are_understood(tmp_path):
    made = network("bert", masked=True)
    tensors = {}
    for name, tensor in tensors_of(made).items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        tensors[name.replace("LayerNorm.bias", "LayerNorm.beta")] = tensor
    tensors["bert.pooler.dense.weight"] = torch.zeros(32, 32)
    tensors["cls.seq_relationship.weight"] = torch.zeros(2, 32)
    config = config_of(made, architectures=["BertForPreTraining"])
    model = aw.load(write(tmp_path / "m", config, tensors))
    assert torch.equal(model.logits(IDS), logits(made, IDS))
    assert len(model.notes) == 2


def test_the_same_weights_have_the_same_digest_however_they_are_kept(tmp_path):
    folder, made = checkpoints.write_llada(tmp_path / "llada")
    sharded = tmp_path / "sharded"
    made.save_pretrained(sharded, max_shard_size="8KB")
    config = config_of(made, architectures=["A2DLlamaLMHeadModel"])
    (sharded / "config.json").write_text(json.dumps(config))
    assert (sharded / "model.safetensors.index.json").exists()
    assert aw.load(folder).digest == aw.load(sharded).digest


def test_attendable_pairs_hide_what_they_hide(tmp_path):
    folder, made = checkpoints.write_llada(tmp_path / "m")
    model = aw.load(folder)
    visible = torch.rand(len(IDS), len(IDS), generator=torch.Generator().manual_seed(1)) < 0.6
    visible |= torch.eye(len(IDS), dtype=torch.bool)
    assert torch.equal(model.logits(IDS, visible), logits(made, IDS, visible))


def test_a_causal_model_stays_causal_under_attendable_pairs():
    model = aw.load("tiny/arm")
    ids = IDS.clone()
    everyone = torch.ones(len(ids), len(ids), dtype=torch.bool)
    gap = (model.logits(ids, everyone) - model.logits(ids)).abs().nan_to_num().max()
    assert gap <= tolerances.LOGPROB


def test_sliding_windows_take_hidden_keys_but_not_pairs(tmp_path):
    made = network("modernbert", masked=True, **ENCODERS["modernbert"])
    made.save_pretrained(tmp_path / "m")
    model = aw.load(tmp_path / "m", mask_id=MASK)
    with pytest.raises(SpecError, match=r"sliding-window layers: attendable may only hide keys"):
        model.logits(IDS, torch.ones(len(IDS), len(IDS), dtype=torch.bool))


@pytest.mark.parametrize(
    ("architecture", "model_type", "says"),
    [
        ("ILLaDAForCausalLM", "llada", "could not be verified"),
        ("MDLM", "mdlm", "time-conditioned"),
        ("LLaDAModelLN", "llada", "nearest is LLaDAModelLM .family 'llada'."),
        ("", "llamma", "nearest is llama"),
    ],
)
def test_unknown_architectures_are_refused_with_the_nearest(
    tmp_path, architecture, model_type, says
):
    _, made = checkpoints.write_llada(tmp_path / "m")
    config = {"architectures": [architecture], "model_type": model_type}
    folder = write(tmp_path / "x", config, tensors_of(made))
    with pytest.raises(FamilyError, match=says) as error:
        aw.load(folder)
    assert "models/families.py" in str(error.value)


@pytest.mark.parametrize(
    ("field", "value"), [("alibi", True), ("layer_norm_type", "low_precision"), ("rope", False)]
)
def test_llada_options_that_llama_lacks_are_refused(tmp_path, field, value):
    folder, _ = checkpoints.write_llada(tmp_path / "m", **{field: value})
    with pytest.raises(ModelError, match=f"{field}=.*which Llama cannot compute"):
        aw.load(folder)
