"""GGUF files of LLaDA, Dream and LLaDA-MoE, written as llama.cpp's converter writes them."""

import json

import gguf
import pytest
import torch

import anchorwatch as aw
from anchorwatch.errors import AnchorwatchError, FamilyError, SpecError, WeightsError
from anchorwatch.models.convert import convert
from checkpoints import MASK, network, tensors_of

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
IDS = torch.tensor([5, 60, 7, MASK, MASK, 12, 33, MASK, 41])
SIZES = {"hidden_size": 64, "intermediate_size": 96}
MIXTURE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
KINDS = {
    "llada": ("llama", SIZES | {"rope_theta": 500000.0}),
    "dream": ("qwen2", SIZES | {"num_attention_heads": 8, "rms_norm_eps": 1e-6}),
    "llada-moe": ("qwen3_moe", SIZES | MIXTURE | {"norm_topk_prob": False}),
}


def file_tensors(made, arch):
    """(name in the file, tensor) of a network, as the converter lays them out."""
    config = made.config
    for name, tensor in tensors_of(made).items():
        stem, _, ending = name.rpartition(".")
        prefix = ""
        if ending in ("gate_up_proj", "down_proj"):  # all experts of a layer
            layer = name.split(".")[2]
            parts = {"gate": tensor[:, : tensor.shape[1] // 2], "up": tensor[:, -32:]}
            parts = parts if ending == "gate_up_proj" else {"down": tensor}
            for part, rows in parts.items():
                yield f"blk.{layer}.ffn_{part}_exps.weight", rows.contiguous()
            continue
        if stem not in NAMES:
            _, _, layer, stem = stem.split(".", 3)
            prefix = f"blk.{layer}."
        heads = {"self_attn.q_proj": config.num_attention_heads}
        heads |= {"self_attn.k_proj": config.num_key_value_heads}
        if arch == "llada" and stem in heads:
            halves = tensor.view(heads[stem], 2, tensor.shape[0] // heads[stem] // 2, -1)
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        yield f"{prefix}{NAMES[stem]}.{ending}", tensor


def write_gguf(path, arch, kind="F32", *, fields=(), drop=(), twice=()):
    """A file of `arch` with matrices of a quantised kind; the network that was written."""
    model_type, differs = KINDS[arch]
    made = network(model_type, bidirectional=True, **differs)
    config = made.config
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if arch == "llada-moe":
        writer.add_expert_count(6)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(32)
        writer.add_key_length(16)
    writer.add_causal_attention(False)
    writer.add_mask_token_id(MASK)
    writer.add_eos_token_id(2)
    for add, value in fields:
        getattr(writer, add)(value)
    quantised = gguf.GGMLQuantizationType[kind]
    for name, tensor in file_tensors(made, arch):
        if name in drop:
            continue
        values = tensor.numpy()
        if tensor.ndim > 1 and kind != "F32":
            values = gguf.quantize(values, quantised)
            writer.add_tensor(name, values, raw_dtype=quantised)
        else:
            writer.add_tensor(name, values)
    for name in twice:
        writer.add_tensor(name, torch.ones(64).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


@pytest.mark.parametrize("arch", KINDS)
def test_a_file_of_plain_numbers_is_its_network(tmp_path, arch):
    made = write_gguf(tmp_path / "m.gguf", arch)
    model = aw.load(tmp_path / "m.gguf")
    assert model.family.name == arch and model.mask_id == MASK
    assert model.specials.eos_ids == (2,) and model.tokenizer is None
    with torch.no_grad():
        expected = made(IDS[None]).logits[0]
    mine = model.logits(IDS)
    # A shifted model's row p speaks of position p: transformers' row p-1.
    assert torch.equal(mine[1:], expected[:-1]) if arch == "dream" else torch.equal(mine, expected)
    model.check()
    assert "GGUF weights, dequantised" in model.notes


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("arch", ["llada", "llada-moe"])
def test_codes_are_dequantised_as_transformers_does(tmp_path, arch, kind):
    from transformers.integrations.gguf import dequant

    made = write_gguf(tmp_path / "m.gguf", arch, kind)
    network_of_file = aw.load(tmp_path / "m.gguf").network.state_dict()
    number = gguf.GGMLQuantizationType[kind]
    for name, tensor in made.state_dict().items():
        if tensor.ndim == 1:
            assert torch.equal(network_of_file[name], tensor), name
            continue
        # Blocks lie along rows, so that reordered rows are the same codes in another order.
        if kind == "F16":
            expected = tensor.half().float()
        elif number.value in dequant.GGML_BLOCK:
            codes = torch.from_numpy(gguf.quantize(tensor.contiguous().numpy(), number))
            expected = dequant.dequantize(codes.reshape(-1, codes.shape[-1]), number.value)
            expected = expected.view(tensor.shape)
        else:
            codes = gguf.quantize(tensor.contiguous().numpy(), number)
            expected = torch.from_numpy(gguf.dequantize(codes, number)).view(tensor.shape)
        assert torch.equal(network_of_file[name], expected.float()), name


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
def test_kinds_that_only_llama_cpp_writes(tmp_path, kind):
    from transformers.integrations.gguf import dequant

    from anchorwatch.models.gguf import _gguf_tensor

    number = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[number]
    rows, per_row = 8, 2
    generator = torch.Generator().manual_seed(0)
    shape = (rows, per_row * size)
    # One bit is clear in every byte, so that no scale, wherever it lies, is infinite.
    codes = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8) & 0x7B
    (tmp_path / "codes").write_bytes(b"head" + codes.numpy().tobytes())
    place = (tmp_path / "codes", 4, (rows, per_row * block), per_row * size, number)
    read = _gguf_tensor(*place).read()
    theirs = dequant.dequantize(codes, number.value).view(read.shape)
    assert torch.allclose(read, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))
    # With two heads: row (head, half, pair) is row (head, pair, half) of the file.
    reordered = _gguf_tensor(*place, 2).read()
    plain = [head * 4 + pair * 2 + half for head in (0, 1) for half in (0, 1) for pair in (0, 1)]
    assert torch.equal(reordered, read[plain])


def test_a_run_of_a_quantised_llada(tmp_path):
    write_gguf(tmp_path / "m.gguf", "llada", "Q8_0")
    model = aw.load(tmp_path / "m.gguf", dtype="bfloat16", device="cpu")
    assert model.network.dtype == torch.bfloat16
    trace = aw.run(model, [5, 6, 7], aw.decoding.LowConfidence(length=4, steps=2))
    assert trace.num_steps == 2


@pytest.mark.parametrize("arch", ["llada", "dream"])
def test_convert_keeps_what_it_is(tmp_path, arch):
    write_gguf(tmp_path / "m.gguf", arch, "Q8_0")
    folder = convert(tmp_path / "m.gguf", tmp_path / "out")
    again, first = aw.load(folder), aw.load(tmp_path / "m.gguf")
    assert again.family.name == arch and again.mask_id == MASK
    gap = (again.logits(IDS) - first.logits(IDS))[1:].abs().max()
    assert float(gap) < 0.02 * float(first.logits(IDS)[1:].abs().max())  # kept in float16
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == {"llada": "llada", "dream": "Dream"}[arch]


def test_a_mixture_is_not_converted(tmp_path):
    write_gguf(tmp_path / "m.gguf", "llada-moe")
    with pytest.raises(WeightsError, match="load it as it is"):
        convert(tmp_path / "m.gguf", tmp_path / "out")


TOKENS = ["<unk>", "<s>", "</s>", *(chr(33 + i) for i in range(91)), "an", "<|mdm_mask|>"]


@pytest.mark.parametrize("pre", ["llama-bpe", "a way of its own"])
def test_the_tokenizer_is_inside(tmp_path, pre):
    fields = [("add_tokenizer_model", "gpt2"), ("add_tokenizer_pre", pre)]
    fields += [("add_token_list", TOKENS), ("add_token_types", [3, 3, 3] + [1] * 92 + [3])]
    fields += [("add_token_merges", ["a n"])]
    write_gguf(tmp_path / "m.gguf", "llada", fields=fields)
    if pre == "llama-bpe":
        model = aw.load(tmp_path / "m.gguf")
    else:
        with pytest.warns(UserWarning, match="which transformers does not know"):
            model = aw.load(tmp_path / "m.gguf")
    assert model.mask_id == MASK == model.tokenizer.convert_tokens_to_ids("<|mdm_mask|>")
    assert model.tokenizer("abc")["input_ids"] == [TOKENS.index(letter) for letter in "abc"]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"drop": ("blk.1.attn_q.weight",)}, WeightsError, "q_proj.weight is in the model and not"),
        ({"drop": ("token_embd.weight",)}, WeightsError, "has no token_embd.weight"),
        ({"twice": ("blk.0.odd.weight",)}, WeightsError, "in the file and not in the model"),
        ({"twice": ("rope_freqs.weight",)}, WeightsError, "scaled rotary tables"),
        (
            {"fields": [("add_diffusion_shift_logits", True)]},
            FamilyError,
            "shift_logits=True and llada models are read with False",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, changes, error, message):
    write_gguf(tmp_path / "m.gguf", "llada", **changes)
    with pytest.raises(error, match=message):
        aw.load(tmp_path / "m.gguf")


@pytest.mark.parametrize("kept", [3, 30, 200, 700, 3000, -1])
def test_a_file_that_ends_early_is_refused(tmp_path, kept):
    write_gguf(tmp_path / "m.gguf", "llada")
    content = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(content[:kept])
    with pytest.raises(AnchorwatchError, match=r"download it again|does not begin as one"):
        aw.load(tmp_path / "m.gguf")


def test_a_family_is_not_asked_for(tmp_path):
    write_gguf(tmp_path / "m.gguf", "llada")
    with pytest.raises(SpecError, match="says what it is"):
        aw.load(tmp_path / "m.gguf", family="dream")
