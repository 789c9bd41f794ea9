"""Quantised checkpoints: codes become the weights that their own packages compute.

The record was made by bitsandbytes, AutoGPTQ and AutoAWQ; twins below go weight by weight.
"""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

import anchorwatch as aw
from anchorwatch.errors import AnchorwatchError, ModelError, WeightsError
from anchorwatch.models import quantised
from anchorwatch.models.checkpoint import Checkpoint
from anchorwatch.models.quantised import dequantise, unpack_words
from anchorwatch.models.weight_files import list_file
from checkpoints import (
    GOLDEN,
    MASK,
    SMALL,
    llada_config,
    llada_names,
    network,
    tensors_of,
    write,
)
from references.released_models import draw

RECORD = GOLDEN / "quantised" / "record.safetensors"
RECORDED = [
    *(f"bitsandbytes.{kind}" for kind in ("nf4-nested", "nf4-plain", "fp4-nested", "fp4-plain")),
    "bitsandbytes.int8",
    *("gptq.2.32.plain", "gptq.3.32.order", "gptq.4.32.order", "gptq.4.-1.plain"),
    *("gptq.8.32.order", "awq.32", "awq.64"),
]


def open_record(name):
    """One recorded tensor as the only one of a checkpoint, and what its package made of it."""
    method, _, rest = name.partition(".")
    files = list_file(RECORD)
    fields = {"quant_method": method, "bits": 4}
    if method == "gptq":
        bits, group_size, _ = rest.split(".")
        fields |= {"bits": int(bits), "group_size": int(group_size)}
    if method == "awq":
        fields |= {"group_size": int(rest)}
    mine = {key: tensor for key, tensor in files.items() if key.startswith(f"{name}.")}
    checkpoint = Checkpoint(
        name, RECORD.parent, RECORD.parent, {"quantization_config": fields}, dict(mine), files=mine
    )
    read, notes = dequantise(checkpoint)
    assert "quantization_config" not in read.config and method in notes[0]
    return read.stored[f"{name}.weight"], files[f"expected.{name}"].read()


@pytest.mark.parametrize("name", RECORDED)
def test_weights_are_those_of_the_package(name, monkeypatch):
    tensor, expected = open_record(name)
    assert tensor.shape == tuple(expected.shape)
    read = tensor.read()
    # AutoAWQ multiplies in float16; a code times a scale of 11 bits is exact in float32.
    assert torch.equal(read.half().float() if name.startswith("awq") else read, expected)
    # However many rows are computed at once, and in any dtype: the same numbers, rounded once.
    for weights in (1, 3 * tensor.shape[1], 1 << 21):
        monkeypatch.setattr(quantised, "CHUNK_WEIGHTS", weights)
        assert torch.equal(tensor.read(), read)
        half = torch.empty(tensor.shape, dtype=torch.bfloat16)
        assert sum(len(chunk) for chunk in tensor.fill(half)) == read.numel()
        assert torch.equal(half, read.bfloat16())


def bits_of(words):
    """The bits of some words, lowest first."""
    return [(int(word) >> bit) & 1 for word in words for bit in range(32)]


@settings(max_examples=30, deadline=None)
@given(bits=st.sampled_from([2, 3, 4, 8]), seed=st.integers(0, 999), groups=st.integers(1, 3))
def test_words_are_unpacked_bit_by_bit(bits, seed, groups):
    words = 3 * groups  # 32 numbers of 3 bits are 3 words
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randint(-(2**31), 2**31, (2, words), generator=generator).int()
    unpacked = unpack_words(packed, bits)
    for row, numbers in zip(packed, unpacked, strict=True):
        stream = bits_of(row)
        count = words * 32 // bits
        plain = [
            sum(stream[number * bits + k] << k for k in range(bits)) for number in range(count)
        ]
        assert numbers.tolist() == plain


def slow_gptq(parts, bits, size, added):
    """Weight by weight, from the description of the format."""
    inputs, outputs = parts["qweight"].shape[0] * 32 // bits, parts["qweight"].shape[1]
    weights = torch.zeros(outputs, inputs)
    for output in range(outputs):
        stream = bits_of(parts["qweight"][:, output])
        for k in range(inputs):
            code = sum(stream[k * bits + b] << b for b in range(bits))
            group = int(parts["g_idx"][k]) if "g_idx" in parts else k // size
            zero_stream = bits_of(parts["qzeros"][group])
            zero = sum(zero_stream[output * bits + b] << b for b in range(bits))
            zero = (zero + added) % 2**bits
            weights[output, k] = (code - zero) * float(parts["scales"][group, output])
    return weights


@pytest.mark.parametrize("kind", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("ordered", [True, False])
def test_gptq_against_its_slow_twin(tmp_path, kind, bits, ordered):
    generator = torch.Generator().manual_seed(bits)
    inputs, outputs, size = 64, 32, 16

    def words(*shape):
        return torch.randint(-(2**31), 2**31, shape, generator=generator).int()

    parts = {"qweight": words(inputs * bits // 32, outputs)}
    parts["qzeros"] = words(inputs // size, outputs * bits // 32)
    parts["scales"] = torch.rand(inputs // size, outputs, generator=generator).half()
    if ordered:
        parts["g_idx"] = torch.randint(0, inputs // size, (inputs,), generator=generator).int()
    save_file({f"x.{name}": part for name, part in parts.items()}, tmp_path / "m.safetensors")
    files = list_file(tmp_path / "m.safetensors")
    config = {"quant_method": "gptq", "bits": bits, "group_size": size, "checkpoint_format": kind}
    checkpoint = Checkpoint(
        "x", tmp_path, tmp_path, {"quantization_config": config}, dict(files), files=files
    )
    read = dequantise(checkpoint)[0].stored["x.weight"].read()
    assert torch.equal(read, slow_gptq(parts, bits, size, int(kind == "gptq")))


@pytest.mark.parametrize("shape", [(2, 6, 1, 16), (3, 4, 2, 16)])
def test_mxfp4_is_what_transformers_makes_of_it(tmp_path, shape):
    from transformers.integrations.mxfp4 import FP4_VALUES, convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    scales = torch.randint(117, 134, shape[:-1], generator=generator, dtype=torch.uint8)
    parts = {"x.gate_up_proj_blocks": blocks, "x.gate_up_proj_scales": scales}
    save_file(parts, tmp_path / "m.safetensors")
    files = list_file(tmp_path / "m.safetensors")
    config = {"quantization_config": {"quant_method": "mxfp4"}}
    read = dequantise(Checkpoint("x", tmp_path, tmp_path, config, dict(files), files=files))[0]
    tensor = read.stored["x.gate_up_proj"].read()
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert torch.equal(tensor, theirs)
    # And weight by weight.
    for expert in range(shape[0]):
        for row in range(shape[1]):
            for column in range(shape[2] * 32):
                byte = int(blocks[expert, row, column // 32, column % 32 // 2])
                code = byte & 15 if column % 2 == 0 else byte >> 4
                exponent = int(scales[expert, row, column // 32]) - 127
                assert tensor[expert, column, row] == math.ldexp(FP4_VALUES[code], exponent)


# Whole checkpoints: quantised by a plain quantiser, loaded, and compared with the network of the
# dequantised weights.

IDS = torch.tensor([5, 60, 7, MASK, MASK, 12, 33, MASK])
WIDE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}


def pack(codes, bits):
    """[N, ...] whole numbers as int32 words along the first axis, lowest bits first."""
    stream = torch.stack([(codes >> b) & 1 for b in range(bits)], dim=1).flatten(0, 1)
    lines = stream.reshape(-1, 32, *codes.shape[1:]).to(torch.int64)
    shape = (1, 32, *([1] * (codes.ndim - 1)))
    words = (lines << torch.arange(32).view(shape)).sum(dim=1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def quantise_gptq(name, weight, bits=4, size=32):
    """Symmetric codes of a weight, and the weight that they stand for."""
    outputs, inputs = weight.shape
    middle = 2 ** (bits - 1)
    grouped = weight.view(outputs, inputs // size, size)
    scales = (grouped.abs().amax(-1) / (middle - 1)).half().float()
    codes = (grouped / scales[..., None]).round().clamp(-middle, middle - 1) + middle
    kept = ((codes - middle) * scales[..., None]).view(outputs, inputs)
    zeros = torch.full((outputs, inputs // size), middle - 1)  # less one, as the format has it
    stem = name.removesuffix(".weight")
    tensors = {
        f"{stem}.qweight": pack(codes.view(outputs, inputs).T.int(), bits).contiguous(),
        f"{stem}.qzeros": pack(zeros.int(), bits).T.contiguous(),
        f"{stem}.scales": scales.T.half().contiguous(),
        f"{stem}.g_idx": (torch.arange(inputs) // size).int(),
    }
    return tensors, kept


def quantise_int8(name, weight):
    scales = weight.abs().amax(dim=1)
    codes = (weight / scales[:, None] * 127).round().to(torch.int8)
    stem = name.removesuffix(".weight")
    tensors = {name: codes, f"{stem}.SCB": scales}
    tensors[f"{stem}.weight_format"] = torch.tensor(0, dtype=torch.uint8)
    return tensors, codes.float() * scales[:, None] * (1 / 127)


def quantise_four_bit(name, weight, block=64):
    values = torch.linspace(-1, 1, 16)
    flat = weight.reshape(-1, block)
    scales = flat.abs().amax(dim=1)
    codes = (flat[..., None] / scales[:, None, None] - values).abs().argmin(-1).flatten()
    state = {"quant_type": "nf4", "blocksize": block, "dtype": "float32"}
    state |= {"shape": list(weight.shape)}
    text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    pairs = codes.view(-1, 2).to(torch.uint8)
    tensors = {
        name: (pairs[:, 0] << 4 | pairs[:, 1])[:, None],
        f"{name}.absmax": scales,
        f"{name}.quant_map": values,
        f"{name}.quant_state.bitsandbytes__nf4": text,
    }
    kept = values[codes].view(-1, block) * scales[:, None]
    return tensors, kept.view(weight.shape)


def quantise_fp8(name, weight, block=(24, 40), kind="_scale_inv"):
    """Weight by weight: blocks of rows and columns share a scale, also where they do not divide."""
    outputs, inputs = weight.shape
    height, width = block[0] or outputs, block[1] or inputs
    scales = torch.zeros(-(-outputs // height), -(-inputs // width))
    codes, kept = torch.zeros(weight.shape, dtype=torch.float8_e4m3fn), torch.zeros_like(weight)
    for row in range(scales.shape[0]):
        for column in range(scales.shape[1]):
            where = (
                slice(row * height, (row + 1) * height),
                slice(column * width, (column + 1) * width),
            )
            scales[row, column] = weight[where].abs().max() / 448  # the greatest e4m3 number
            codes[where] = (weight[where] / scales[row, column]).to(torch.float8_e4m3fn)
            kept[where] = codes[where].float() * scales[row, column]
    tensors = {name: codes, f"{name}{kind}": scales}
    if kind == "_scale":  # of activations, which are not quantised here
        tensors[name.removesuffix("weight") + "input_scale"] = torch.ones(1)
    return tensors, kept


def quantise_fp8_rows(name, weight):
    return quantise_fp8(name, weight, (1, None), "_scale")


def quantise_fp8_whole(name, weight):
    tensors, kept = quantise_fp8(name, weight, (None, None), "_scale")
    return tensors | {f"{name}_scale": tensors[f"{name}_scale"].reshape(())}, kept


COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized"}
QUANTISERS = {
    "fp8": (quantise_fp8, {"quant_method": "fp8", "weight_block_size": [24, 40]}),
    "fp8 rows": (quantise_fp8_rows, COMPRESSED),
    "fp8 whole": (quantise_fp8_whole, {"quant_method": "fp8", "activation_scheme": "static"}),
    "gptq": (quantise_gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32}),
    "8 bit": (quantise_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "4 bit": (quantise_four_bit, {"quant_method": "bitsandbytes", "load_in_4bit": True}),
}


def write_quantised(folder, kind):
    """(folder, the network of the weights that the codes stand for)."""
    made = network("llama", bidirectional=True, rope_theta=500000.0, rms_norm_eps=1e-6, **WIDE)
    quantise, fields = QUANTISERS[kind]
    tensors = {}
    for name, tensor in llada_names(tensors_of(made)).items():
        own = {k: v for k, v in tensors_of(made).items() if tensor.shape == v.shape}
        stock = next(k for k, v in own.items() if torch.equal(v, tensor))
        if ".blocks." not in name or tensor.ndim == 1:
            tensors[name] = tensor
            continue
        packed, kept = quantise(name, tensor)
        tensors |= packed
        with torch.no_grad():
            made.get_parameter(stock).copy_(kept)
    config = llada_config(d_model=64, mlp_hidden_size=96, quantization_config=fields)
    return write(folder, config, tensors), made


@pytest.mark.parametrize("kind", QUANTISERS)
def test_a_quantised_llada_computes_with_its_dequantised_weights(tmp_path, kind):
    folder, made = write_quantised(tmp_path / "m", kind)
    with pytest.warns(UserWarning, match="cannot be proved from the file"):
        model = aw.load(folder)
    with torch.no_grad():
        expected = made(IDS[None]).logits[0]
    assert torch.equal(model.logits(IDS), expected)
    model.check()
    assert any("codes and were dequantised" in note for note in model.notes)
    with pytest.warns(UserWarning, match="dequantised"):
        half = aw.load(folder, dtype="bfloat16", device="cpu")
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(
        half.network.get_parameter(name), made.get_parameter(name).to(torch.bfloat16)
    )


GPT_OSS = {"num_local_experts": 3, "num_experts_per_tok": 2, "intermediate_size": 32}
GPT_OSS |= {"head_dim": 8, "sliding_window": 4}
GPT_OSS |= {"layer_types": ["sliding_attention", "full_attention"]}
GPT_OSS |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}


def test_gpt_oss_s_released_mxfp4_layout_loads(tmp_path):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    config = AutoConfig.for_model("gpt_oss", **(SMALL | GPT_OSS))
    made = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, tensor in made.state_dict().items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            tensors[name] = tensor.clone().contiguous()
            continue
        experts, inputs, outputs = tensor.shape
        shape = (experts, outputs, inputs // 32, 16)
        blocks = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        scales = torch.randint(120, 126, shape[:-1], generator=generator, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        with torch.no_grad():
            tensor.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    fields = {k: v for k, v in made.config.to_dict().items() if k not in ("dtype", "is_causal")}
    fields |= {"architectures": ["GptOssForCausalLM"]}
    fields |= {"quantization_config": {"quant_method": "mxfp4"}}
    with pytest.warns(UserWarning, match="mxfp4 codes"):
        model = aw.load(write(tmp_path / "m", fields, tensors))
    state = model.network.state_dict()
    for name, tensor in made.state_dict().items():
        assert torch.equal(state[name], tensor), name


def spoil(folder, change):
    """The same checkpoint with its tensors changed by `change`."""
    from safetensors.torch import load_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


STEM = "model.transformer.blocks.0.q_proj"


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("gptq", lambda t: t.pop(f"{STEM}.scales"), "scales is missing from the file"),
        ("gptq", lambda t: t[f"{STEM}.g_idx"].fill_(9), "names a group beyond 2"),
        ("gptq", lambda t: t.update({f"{STEM}.qzeros": t[f"{STEM}.qzeros"][:1]}), "needs"),
        ("8 bit", lambda t: t[f"{STEM}.weight_format"].fill_(1), "order of a GPU kernel"),
        ("8 bit", lambda t: t.update({f"{STEM}.SCB": torch.ones(3)}), "3 scales .* needs 64"),
        ("8 bit", lambda t: t[f"{STEM}.SCB"].fill_(torch.nan), "NaN or infinite"),
        ("4 bit", lambda t: t.pop(f"{STEM}.weight.absmax"), "absmax is missing"),
        ("fp8", lambda t: t.pop(f"{STEM}.weight_scale_inv"), "the file has 0 of .* expected one"),
        ("fp8", lambda t: t[f"{STEM}.weight_scale_inv"].fill_(torch.nan), "NaN or infinite"),
        ("fp8", lambda t: t[f"{STEM}.weight"].view(torch.uint8).fill_(127), "NaN or infinite"),
        (
            "fp8",
            lambda t: t.update({f"{STEM}.weight_scale_inv": torch.ones(2, 2)}),
            r"scales of shape \[2, 2\] and needs \[3, 2\]",
        ),
        ("fp8 rows", lambda t: t.update({f"{STEM}.weight_scale": torch.ones(7)}), "has 7 scales"),
        ("4 bit", lambda t: t.update({f"{STEM}.weight": t[f"{STEM}.weight"][:5]}), "needs 2048"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*were dequantised")
def test_damaged_codes_are_refused(tmp_path, kind, change, message):
    folder, _ = write_quantised(tmp_path / "m", kind)
    spoil(folder, change)
    with pytest.raises(AnchorwatchError, match=message):
        aw.load(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"quant_method": "hqq"}, "quantised as hqq, which is not read: .* unquantised weights"),
        ({"quant_method": "gptq", "bits": 5, "group_size": 32}, "expected 2 or 3 or 4 or 8"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "expected 'gptq'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "expected 'gemm'"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "two whole numbers above 0"),
        ({"quant_method": "fp8"}, "says fp8 and its files hold no such tensor"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "'float-quantized'"),
        ({"quant_method": "mxfp4"}, "says mxfp4 and its files hold no such tensor"),
        ("4 bit", "expected an object such as"),
    ],
)
def test_what_is_not_read_says_what_is(tmp_path, fields, message):
    folder, _ = write_quantised(tmp_path / "m", "gptq")
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": fields}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        aw.load(folder)


def test_older_files_without_a_quantization_config(tmp_path):
    folder, made = write_quantised(tmp_path / "m", "gptq")
    config = json.loads((folder / "config.json").read_text())
    settings = config.pop("quantization_config")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"no quantization_config in config\.json: copy it"):
        aw.load(folder)
    (folder / "quantize_config.json").write_text(json.dumps(settings))
    with pytest.warns(UserWarning, match="dequantised"):
        model = aw.load(folder)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(model.network.get_parameter(name), made.get_parameter(name))
    four, _ = write_quantised(tmp_path / "four", "4 bit")
    (four / "config.json").write_text(json.dumps(llada_config(d_model=64, mlp_hidden_size=96)))
    with pytest.warns(UserWarning, match="bitsandbytes codes"):
        aw.load(four)


def test_fp8_blocks_are_what_transformers_makes_of_them():
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    weight = torch.randn(48, 80, generator=torch.Generator().manual_seed(2))
    tensors, kept = quantise_fp8("w", weight, (24, 40))
    theirs = Fp8Dequantize(None)._dequantize_one(tensors["w"], tensors["w_scale_inv"])
    assert torch.equal(kept, theirs.float())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["sdar-moe", "llada2"])
def test_fp8_experts_of_a_mixture(tmp_path, kind):
    """One tensor and one grid of scales for each expert, as released mixtures have them."""
    config, plain = draw(kind, 2)
    tensors, kept = {}, {}
    for name, tensor in plain.items():
        kept[name] = tensor
        tensors[name] = tensor
        if ".experts." in name or ".query_key_value." in name:
            del tensors[name]
            packed, kept[name] = quantise_fp8(name, tensor, (8, 8))
            tensors |= packed
    assert len(tensors) > len(plain)
    fields = {"quant_method": "fp8", "weight_block_size": [8, 8]}
    model = aw.load(write(tmp_path / "m", config | {"quantization_config": fields}, tensors))
    other = aw.load(write(tmp_path / "o", config, kept))
    assert model.digest == other.digest


def test_codes_and_weights_of_one_name_are_refused(tmp_path):
    folder, _ = write_quantised(tmp_path / "m", "gptq")
    spoil(folder, lambda tensors: tensors.update({f"{STEM}.weight": torch.ones(64, 64)}))
    with pytest.raises(WeightsError, match="as codes and as weights"):
        aw.load(folder)
