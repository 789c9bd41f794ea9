"""Loading holds every weight once: bytes of memory are counted, in a process of its own."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from anchorwatch.models.weight_files import CHUNK_BYTES, FileTensor, list_file
from checkpoints import MASK

SPARE = 48 << 20
"""Bytes that anything else in the process may take meanwhile: chunks, headers, the allocator's."""

MEASURE = """
import json, sys, torch
import anchorwatch as aw

def status(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

aw.load("tiny/llada").logits([1, 2, 3])  # imports and thread pools are not loading
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # forget the peak so far
model = aw.load(sys.argv[1], dtype=sys.argv[2])
peak = status("VmHWM")
held = {p.data_ptr(): p.numel() * p.element_size() for p in model.network.parameters()}
print(json.dumps({"peak": peak - before, "model": sum(held.values())}))
"""


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """LLaDA's names and layout, 3 shards of bfloat16, the embedding larger than several chunks."""
    folder = tmp_path_factory.mktemp("sharded")
    width, rows = 1024, 3 * CHUNK_BYTES // 2048 + 96
    config = {"model_type": "llada", "architectures": ["LLaDAModelLM"], "d_model": width}
    config |= {"n_layers": 1, "n_heads": 8, "n_kv_heads": 8, "mlp_hidden_size": 2048}
    config |= {"vocab_size": rows, "embedding_size": rows, "max_sequence_length": 64}
    config |= {"mask_token_id": MASK, "eos_token_id": 2, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    block = "model.transformer.blocks.0."
    shapes = {f"{block}{name}.weight": (width, width) for name in ("q_proj", "k_proj", "v_proj")}
    shapes |= {f"{block}attn_out.weight": (width, width), f"{block}ff_out.weight": (width, 2048)}
    shapes |= {f"{block}{name}.weight": (2048, width) for name in ("ff_proj", "up_proj")}
    shapes |= {f"{block}{name}.weight": (width,) for name in ("attn_norm", "ff_norm")}
    shards = [{"model.transformer.wte.weight": (rows, width)}]
    shards += [{"model.transformer.ff_out.weight": (rows, width)}]
    shards += [shapes | {"model.transformer.ln_f.weight": (width,)}]
    index = {}
    torch.manual_seed(0)
    for number, named in enumerate(shards, 1):
        name = f"model-{number:05}-of-00003.safetensors"
        tensors = {key: torch.randn(shape).bfloat16() * 0.02 for key, shape in named.items()}
        save_file(tensors, folder / name)
        index |= dict.fromkeys(named, name)
    listed = json.dumps({"weight_map": index})
    (folder / "model.safetensors.index.json").write_text(listed)
    return folder


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_no_weight_is_in_memory_twice(sharded, dtype):
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, sharded, dtype], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)
    size = {"bfloat16": 2, "float32": 4}[dtype]
    assert counted["model"] > 6 * CHUNK_BYTES * size / 2
    assert counted["peak"] <= 1.15 * counted["model"] + SPARE


def test_a_tensor_in_chunks_is_the_tensor(sharded):
    name, path = "model.transformer.wte.weight", sharded / "model-00001-of-00003.safetensors"
    tensor = list_file(path)[name]
    assert isinstance(tensor, FileTensor)
    from safetensors import safe_open

    with safe_open(path, framework="pt") as handle:
        truth = handle.get_tensor(name)
    chunks = list(chunk.clone() for chunk in tensor.chunks())
    assert len(chunks) > 3
    assert max(len(chunk) for chunk in chunks) * 2 <= CHUNK_BYTES
    assert torch.equal(torch.cat(chunks).view(truth.shape), truth)
    assert torch.equal(tensor.read(), truth)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        target = torch.empty(truth.shape, dtype=dtype)
        done = sum(len(chunk) for chunk in tensor.fill(target))
        assert done == truth.numel()
        assert torch.equal(target, truth.to(dtype))


def test_the_dtype_is_the_config_s_and_said(sharded):
    import anchorwatch as aw

    with pytest.warns(UserWarning, match=r"bfloat16, as config.json says: .* dtype='float32'"):
        model = aw.load(sharded, device="cpu")
    assert model.network.dtype == torch.bfloat16
    assert model.precision == "bfloat16, as config.json says"
    assert aw.load("lab/toy-mdm", device="cpu").network.dtype == torch.float32
