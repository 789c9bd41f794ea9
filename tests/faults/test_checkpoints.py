"""Damaged, incomplete, hostile or contradictory checkpoints: one clear line, before any forward pass."""

import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

import anchorwatch as aw
import checkpoints
from anchorwatch.errors import AnchorwatchWarning, ModelError, SpecError, WeightsError
from anchorwatch.models.convert import convert
from checkpoints import MASK, network, tensors_of, write


@pytest.fixture
def llada(tmp_path):
    return checkpoints.write_llada(tmp_path / "llada")[0]


def change(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def reconfigure(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


NORM = "model.transformer.ln_f.weight"


def test_a_missing_tensor(llada):
    change(llada, lambda tensors: tensors.pop(NORM))
    with pytest.raises(
        WeightsError, match=r"model\.norm\.weight is in the model and not in the file"
    ):
        aw.load(llada)


def test_a_tensor_too_many(llada):
    change(llada, lambda tensors: tensors.update({"model.extra": torch.zeros(1)}))
    with pytest.raises(WeightsError, match=r"model\.extra is in the file and not in the model"):
        aw.load(llada)


def test_two_tensors_that_mean_the_same(llada):
    change(llada, lambda tensors: tensors.update({"model.norm.weight": tensors[NORM].clone()}))
    with pytest.raises(WeightsError, match=r"both mean model\.norm\.weight"):
        aw.load(llada)


def test_a_wrong_shape(llada):
    change(llada, lambda tensors: tensors.update({NORM: torch.ones(31)}))
    with pytest.raises(
        WeightsError, match=r"shape \[31\] in the file and \[32\] in LlamaForCausalLM"
    ):
        aw.load(llada)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_numbers(llada, value):
    def spoil(tensors):
        tensors[NORM][3] = value

    change(llada, spoil)
    with pytest.raises(WeightsError, match=r"model\.norm\.weight holds NaN or infinite weights"):
        aw.load(llada)


def test_a_truncated_file(llada):
    path = llada / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsError, match="cannot be read as safetensors"):
        aw.load(llada)


def test_a_missing_shard_and_a_lying_index(tmp_path):
    made = network("llama")
    folder = tmp_path / "m"
    made.save_pretrained(folder, max_shard_size="8KB")
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    content = shard.read_bytes()
    shard.unlink()
    with pytest.raises(WeightsError, match=f"the shard {shard.name} is missing"):
        aw.load(folder)
    shard.write_bytes(content)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.ghost"] = shard.name
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=r"lacks model\.ghost"):
        aw.load(folder)
    index["weight_map"]["model.ghost"] = "../../elsewhere.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match="points outside the folder"):
        aw.load(folder)


def test_one_shard_of_many_without_an_index(llada):
    (llada / "model.safetensors").rename(llada / "model-00001-of-00002.safetensors")
    with pytest.raises(WeightsError, match="one of 2 shards"):
        aw.load(llada)


def test_pickles_are_refused_and_the_converter_is_named(tmp_path):
    made = network("bert", masked=True)
    folder = tmp_path / "m"
    made.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | {
        "architectures": ["BertForMaskedLM"]
    }
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(tensors_of(made), folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="anchorwatch convert"):
        aw.load(folder)
    model = aw.load(convert(folder, tmp_path / "out"), mask_id=MASK)
    with torch.no_grad():
        ids = torch.tensor([5, 6, 7])
        assert torch.equal(model.logits(ids), made(ids[None]).logits[0])


class Bomb:
    def __reduce__(self):
        return (exec, ("import pathlib; pathlib.Path('BOOM').touch()",))


def test_the_converter_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Bomb()}))
    with pytest.raises(WeightsError, match="was not run"):
        convert(tmp_path / "m", tmp_path / "out")
    assert not (tmp_path / "BOOM").exists()
    assert not (tmp_path / "out").exists()


def test_remote_code_is_ignored_and_said_once(llada):
    reconfigure(llada, auto_map={"AutoModel": "evil--modeling.Evil"})
    (llada / "modeling.py").write_text("raise SystemExit('remote code ran')")
    with pytest.warns(AnchorwatchWarning, match=r"auto_map in config\.json.: ignored") as said:
        model = aw.load(llada)
    assert len(said) == 1
    assert any("auto_map" in note for note in model.notes)


@pytest.mark.parametrize("field", ["_attn_implementation_internal", "attn_implementation"])
def test_the_config_does_not_choose_the_kernel(llada, field):
    reconfigure(llada, **{field: "owner/kernel-from-a-hub"})
    assert aw.load(llada).network.config._attn_implementation == "anchorwatch"


def test_quantised_checkpoints_are_refused(llada):
    reconfigure(llada, quantization_config={"bits": 4})
    with pytest.raises(ModelError, match="load the unquantised weights"):
        aw.load(llada)


def test_two_mask_ids_that_disagree_are_both_shown(llada):
    tokenizer = checkpoints.write_tokenizer(llada, mask_token="<|mdm_mask|>")
    expected = rf"config\.json says {MASK} and tokenizer\.mask_token says {tokenizer.mask_token_id}"
    with pytest.raises(ModelError, match=expected):
        aw.load(llada)
    assert aw.load(llada, mask_id=MASK).mask_id == MASK


def test_a_mask_is_found_among_added_tokens(llada):
    reconfigure(llada, mask_token_id=None)
    tokenizer = checkpoints.write_tokenizer(llada, additional_special_tokens=["<|mdm_mask|>"])
    model = aw.load(llada)
    assert model.mask_id == tokenizer.convert_tokens_to_ids("<|mdm_mask|>")


def test_a_mask_outside_the_embedding(llada):
    with pytest.raises(ModelError, match="mask id 4000 is outside the embedding of 96 rows"):
        aw.load(llada, mask_id=4000)


def test_a_mask_that_nobody_names(tmp_path):
    made = network("llama")
    config = {"architectures": ["A2DLlamaLMHeadModel"]} | made.config.to_dict()
    config = config | {"architectures": ["A2DLlamaLMHeadModel"], "model_type": "a2d-llama"}
    with pytest.raises(ModelError, match="no mask token was found"):
        aw.load(write(tmp_path / "m", config, tensors_of(made)))


def test_no_mask_for_an_autoregressive_model(tmp_path):
    network("llama").save_pretrained(tmp_path / "m")
    with pytest.raises(SpecError, match="leave mask_id out"):
        aw.load(tmp_path / "m", mask_id=5)


def test_tied_weights_that_differ(tmp_path):
    made = network("llama", tie_word_embeddings=True)
    tensors = tensors_of(made) | {"lm_head.weight": torch.randn(96, 32)}
    config = made.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    with pytest.raises(WeightsError, match=r"tied in config\.json but differ in the file"):
        aw.load(write(tmp_path / "m", config, tensors))


@pytest.mark.parametrize(
    ("content", "says"),
    [("{not json", "is not JSON"), ("[1, 2]", "expected a JSON object")],
)
def test_a_config_that_is_no_config(llada, content, says):
    (llada / "config.json").write_text(content)
    with pytest.raises(ModelError, match=says):
        aw.load(llada)


def test_what_is_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="there is no folder 'nowhere'"):
        aw.load("nowhere")
    with pytest.raises(ModelError, match="hub did not give it"):
        aw.load("nobody/nothing-of-this-name")
    with pytest.raises(ModelError, match=r"expected one of tiny/llada, tiny/dream"):
        aw.load("tiny/llama")
    with pytest.raises(ModelError, match=r"there is no file '\./x\.gguf'"):
        aw.load("./x.gguf")
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(WeightsError, match="cannot be read as GGUF"):
        aw.load(tmp_path / "x.gguf")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"needs its config\.json"):
        aw.load(tmp_path / "empty")


def test_options_that_do_not_exist(llada):
    with pytest.raises(SpecError, match="expected one of float32, bfloat16, float16"):
        aw.load(llada, dtype="int4")
    with pytest.raises(SpecError, match="expected 'cpu', 'cuda'"):
        aw.load(llada, device="toaster")


def test_bfloat16_weights_are_kept_in_bfloat16_and_the_rotary_table_is_not(llada):
    model = aw.load(llada, dtype="bfloat16")
    assert model.network.dtype == torch.bfloat16
    assert model.network.model.rotary_emb.inv_freq.dtype == torch.float32
    assert model.logprobs([1, 2, 3]).dtype == torch.float32


def test_a_rotary_table_of_zeros_is_found(llada):
    from anchorwatch.models.proof import prove_rotary

    model = aw.load(llada)
    assert prove_rotary(model.network) < 1e-6
    model.network.model.rotary_emb.inv_freq.zero_()
    with pytest.raises(WeightsError, match="it was not initialised"):
        prove_rotary(model.network)


def test_dream_s_own_tokenizer_class_is_read_by_the_stock_one(tmp_path):
    made = network("qwen2", bidirectional=True)
    config = made.config.to_dict() | {"architectures": ["DreamModel"], "model_type": "Dream"}
    folder = write(tmp_path / "m", config | {"mask_token_id": 95}, tensors_of(made))
    letters = [chr(c) for c in range(33, 127)]
    (folder / "vocab.json").write_text(json.dumps({c: i for i, c in enumerate(letters)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    said = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "pad_token": "!",
        "eos_token": "!",
        "unk_token": "!",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    (folder / "tokenization_dream.py").write_text("raise SystemExit('remote code ran')")
    model = aw.load(folder)
    assert model.decode(model.encode("abc")) == "abc"
