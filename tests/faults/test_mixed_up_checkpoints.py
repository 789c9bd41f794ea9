"""Files and configs that do not belong together: each is refused with what would have worked."""

import json

import pytest
from safetensors.torch import save_file

import anchorwatch as aw
from anchorwatch.errors import ModelError, WeightsError
from checkpoints import write
from references.released_models import draw


def folder_of(tmp_path, kind, *, config=None, tensors=None, seed=2):
    """A drawn checkpoint with fields and tensor names changed."""
    fields, weights = draw(kind, seed)
    renamed = {tensors(name): tensor for name, tensor in weights.items()} if tensors else weights
    return write(tmp_path / "m", fields | (config or {}), renamed)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod."])
def test_a_wrapper_s_word_before_every_name(tmp_path, prefix):
    folder = folder_of(tmp_path, "sdar", tensors=lambda name: f"{prefix}{name}")
    with pytest.raises(WeightsError, match=f"every name begins with '{prefix}', rename"):
        aw.load(folder)


@pytest.mark.parametrize("said", [1, 7])
def test_another_number_of_layers(tmp_path, said):
    folder = folder_of(tmp_path, "sdar", config={"num_hidden_layers": said})
    with pytest.raises(WeightsError, match=f"has layers 0 to 3 and config.json says {said}"):
        aw.load(folder)


def test_a_pointer_in_place_of_the_weights(tmp_path):
    folder = folder_of(tmp_path, "sdar")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 16\n"
    (folder / "model.safetensors").write_text(pointer)
    with pytest.raises(WeightsError, match="pointer of Git LFS, not the weights: run `git lfs"):
        aw.load(folder)


def test_a_byte_order_mark_is_no_fault(tmp_path):
    folder = folder_of(tmp_path, "sdar")
    path = folder / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert aw.load(folder).family.name == "sdar"


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("llada2", {"topk_group": 9}, "no more chosen than there are"),
        ("llada2", {"n_group": 7}, "groups of at least two experts"),
        ("llada2", {"n_group": 8}, "groups of at least two experts"),
        ("llada2", {"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3}, "of 2 experts"),
        ("rnd1", {"num_experts_per_tok": 77}, "num_experts_per_tok=77, of 5 experts"),
        ("llada2", {"partial_rotary_factor": 0.3}, "leaves an even number to turn"),
        ("llada2", {"partial_rotary_factor": 2}, "expected a number up to 1"),
        ("llada2", {"partial_rotary_factor": "half"}, "expected a number up to 1"),
        ("llada2", {"rope_theta": None}, "no rope_theta: copy it"),
        ("rnd1", {"rope_theta": None}, "no rope_theta: copy it"),
        ("llada-moe", {"rope_theta": None}, "no rope_theta: copy it"),
        ("sdar", {"rope_scaling": {"rope_type": "odd"}}, "expected one of default, dynamic"),
    ],
)
def test_numbers_that_no_network_has(tmp_path, kind, fields, says):
    with pytest.raises(ModelError, match=says):
        aw.load(folder_of(tmp_path, kind, config=fields))


def test_a_theta_among_rope_parameters_is_enough(tmp_path):
    config, tensors = draw("rnd1", 2)
    plain = aw.load(write(tmp_path / "a", config, tensors))
    theta = config.pop("rope_theta")
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    moved = aw.load(write(tmp_path / "b", config, tensors))
    assert (moved.logits([1, 2, 3]) == plain.logits([1, 2, 3]))[1:].all()


def test_shards_of_two_checkpoints(tmp_path):
    """A shard of another download: its tensors have the right names and other shapes."""
    folder = folder_of(tmp_path, "sdar")
    (folder / "model.safetensors").unlink()
    weights, others = draw("sdar", 2)[1], draw("sdar", 3)[1]
    half = len(weights) // 2
    index = {}
    for number, part in enumerate((list(weights)[:half], list(weights)[half:])):
        own = {name: (weights, others)[number].get(name, weights[name]) for name in part}
        save_file(own, folder / f"model-{number}.safetensors")
        index |= dict.fromkeys(part, f"model-{number}.safetensors")
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(WeightsError, match=r"weights do not belong together"):
        aw.load(folder)
