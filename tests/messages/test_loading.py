"""What loading and converting say of devices, tensors and links that cannot be."""

import pytest
import torch

import anchorwatch as aw
import checkpoints
from anchorwatch.errors import SpecError, WeightsError
from anchorwatch.models.convert import convert
from command import one_line_of, type_in


@pytest.mark.parametrize("device", ["meta", "cuda:99", "xla", "hpu", "vulkan", "fpga", "lazy"])
def test_a_device_that_cannot_be_used(device):
    with pytest.raises(SpecError, match=f"device='{device}' cannot be used .*: use .*'cpu'"):
        aw.load("tiny/llada", device=device)


@pytest.mark.parametrize("device", ["gpu", "", "cpu:", "cuda:x", [], 1.5])
def test_a_device_that_is_none(device):
    with pytest.raises(SpecError, match=r"device=.* is unknown: expected 'cpu', 'cuda'"):
        aw.load("tiny/llada", device=device)


@pytest.mark.parametrize("device", ["meta", "cuda:99", "gpu"])
def test_the_command_line_says_so_in_one_line(device):
    done = type_in("run", "tiny/llada", "x", "--device", device)
    assert done.returncode == 2
    assert f"device='{device}'" in one_line_of(done)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def odd_tensors():
    eye = torch.eye(3)
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        csr = eye.to_sparse_csr()
    return {
        "sparse_coo": eye.to_sparse(),
        "sparse_csr": csr,
        "quantised": torch.quantize_per_tensor(eye, 0.1, 0, torch.qint8),
        "empty": torch.empty(3, device="meta"),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["sparse_coo", "sparse_csr", "quantised", "empty"])
def test_a_tensor_that_safetensors_cannot_keep(folder, tmp_path, kind):
    torch.save({"w": odd_tensors()[kind]}, folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=rf"w in .*pytorch_model\.bin.*(is {kind}|tensors)"):
        convert(folder, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_a_tensor_that_claims_more_than_there_is(folder, tmp_path):
    torch.save({"w": torch.zeros(1).expand(10**6, 10**6)}, folder / "pytorch_model.bin")
    says = r"w in .* has 1000000000000 numbers, more than the file holds: save its contiguous"
    with pytest.raises(WeightsError, match=says):
        convert(folder, tmp_path / "out")


@pytest.mark.parametrize("name", ["config.json", "secret.txt", "pytorch_model.bin"])
def test_links_out_of_the_folder_are_not_copied(folder, tmp_path, name):
    torch.save({"w": torch.zeros(1)}, folder / "pytorch_model.bin")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("a secret")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(elsewhere)
    with pytest.raises(WeightsError, match=rf"{name} is a link to .*elsewhere, out of the folder"):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_links_of_the_hub_s_cache_are_files(tmp_path):
    snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    torch.save({"w": torch.ones(2)}, blobs / "1")
    (blobs / "2").write_text("{}")
    (snapshot / "pytorch_model.bin").symlink_to("../../blobs/1")
    (snapshot / "config.json").symlink_to("../../blobs/2")
    out = convert(snapshot, tmp_path / "out")
    names = sorted(path.name for path in out.iterdir())
    assert names == ["COMMIT.json", "config.json", "model.safetensors"]


def test_a_pipe_is_no_file_of_a_checkpoint(folder, tmp_path):
    import os

    torch.save({"w": torch.zeros(1)}, folder / "pytorch_model.bin")
    os.mkfifo(folder / "merges.txt")
    with pytest.raises(WeightsError, match=r"merges\.txt is no ordinary file"):
        convert(folder, tmp_path / "out")


def test_what_is_wrong_with_config_json_is_not_blamed_on_the_tokenizer(tmp_path):
    from anchorwatch.errors import ModelError

    folder = checkpoints.network("llama").save_pretrained(tmp_path / "m") or tmp_path / "m"
    checkpoints.write_tokenizer(folder)
    import json

    good = json.loads((folder / "config.json").read_text())
    for fields in (
        {"num_attention_heads": "four"},
        {"hidden_size": []},
        {"rope_parameters": "x"},
        {"num_hidden_layers": None},
        {"transformers_version": "soon"},
        {"transformers_version": 5},
        {"hidden_act": 3},
    ):
        (folder / "config.json").write_text(json.dumps(good | fields))
        with pytest.raises(ModelError, match=r"config\.json") as said:
            aw.load(folder)
        assert "the tokenizer in" not in str(said.value), fields
