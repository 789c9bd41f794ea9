"""Damaged, incomplete, hostile or contradictory checkpoints: one clear line, before any forward pass."""

import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

import anchorwatch as aw
import checkpoints
from anchorwatch.errors import (
    AnchorwatchWarning,
    FamilyError,
    ModelError,
    SpecError,
    WeightsError,
)
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
    says = r"model\.norm\.weight \(model\.transformer\.ln_f\.weight in the file\) holds NaN or inf"
    with pytest.raises(WeightsError, match=says):
        aw.load(llada)


@pytest.mark.parametrize("dtype", ["int8", "bool", "complex64", "float8_e4m3fn", "int64"])
def test_weights_that_are_codes(llada, dtype):
    change(llada, lambda tensors: tensors.update({NORM: torch.ones(32).to(getattr(torch, dtype))}))
    with pytest.raises(
        WeightsError, match=rf"ln_f\.weight.* is {dtype} in the file: expected .*bfloat16"
    ):
        aw.load(llada)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_weights_of_other_precision_are_read(llada, dtype):
    change(
        llada,
        lambda tensors: tensors.update({NORM: torch.full((32,), 1.5).to(getattr(torch, dtype))}),
    )
    assert torch.equal(aw.load(llada).network.model.norm.weight, torch.full((32,), 1.5))


@pytest.mark.parametrize(
    ("kept", "value", "asked", "says"),
    [
        ("float64", 1e300, "float32", r"1e\+300, which is infinite in float32: no dtype holds it"),
        ("bfloat16", 1e5, "float16", "in float16: load it with dtype='float32' or 'bfloat16'"),
    ],
)
def test_weights_that_the_dtype_cannot_hold(llada, kept, value, asked, says):
    norm = torch.full((32,), value, dtype=getattr(torch, kept))
    change(llada, lambda tensors: tensors.update({NORM: norm}))
    with pytest.raises(WeightsError, match=says):
        aw.load(llada, dtype=asked)


def test_a_model_keeps_its_weights_when_the_file_is_overwritten(llada):
    model = aw.load(llada)
    before = model.logits([5, 6, 7])
    path = llada / "model.safetensors"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(bytes(size - size // 2))
    assert torch.equal(model.logits([5, 6, 7]), before)


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


@pytest.mark.parametrize(
    "name", ["../elsewhere.safetensors", "/tmp/x", "link/model.safetensors", "", 5, None, "x" * 300]
)
def test_an_index_that_points_elsewhere(llada, tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    (llada / "model.safetensors").rename(tmp_path / "elsewhere" / "model.safetensors")
    (llada / "link").symlink_to(tmp_path / "elsewhere")
    index = {"weight_map": {"model.transformer.wte.weight": name}}
    (llada / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=r"expected the plain name of a file|is missing"):
        aw.load(llada)


def test_a_tensor_in_two_shards(llada):
    tensors = load_file(llada / "model.safetensors")
    (llada / "model.safetensors").unlink()
    save_file(tensors, llada / "a.safetensors")
    save_file({NORM: tensors[NORM]}, llada / "b.safetensors")
    index = {name: "a.safetensors" for name in tensors if name != NORM} | {NORM: "b.safetensors"}
    (llada / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(WeightsError, match=r"ln_f\.weight is in a\.safetensors and in b\.saf"):
        aw.load(llada)


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


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_converted_folder_is_read_as_it_was_written(llada, tmp_path, name):
    tensors = load_file(llada / "model.safetensors")
    (llada / "model.safetensors").unlink()
    torch.save(tensors, llada / "pytorch_model.bin")
    (llada / "COMMIT.json").write_text("{}")  # of another folder: it is not copied
    out = convert(llada, tmp_path / "out")
    aw.load(out)
    raw = bytearray((out / name).read_bytes())
    raw[-5] ^= 1
    (out / name).write_bytes(raw)
    with pytest.raises(ModelError, match=rf"{name} was changed.*remove COMMIT"):
        aw.load(out)


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


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
@pytest.mark.parametrize("inside", [None, "model", "state_dict"])
def test_other_pickles_are_converted_too(llada, tmp_path, suffix, inside):
    tensors = load_file(llada / "model.safetensors")
    expected = aw.load(llada).digest
    (llada / "model.safetensors").unlink()
    torch.save({inside: tensors, "step": 5} if inside else tensors, llada / f"weights{suffix}")
    torch.save({"step": 5}, llada / f"optimizer{suffix}")
    assert aw.load(convert(llada, tmp_path / "out")).digest == expected
    assert aw.load(convert(llada / f"weights{suffix}", tmp_path / "one")).digest == expected


def test_nothing_to_convert(tmp_path):
    with pytest.raises(
        WeightsError, match=r"there is no folder .*nowhere: give a folder with \.bin"
    ):
        convert(tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "m").mkdir()
    with pytest.raises(WeightsError, match=r"has no \.bin, \.pt, \.pth file of weights"):
        convert(tmp_path / "m", tmp_path / "out")


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


@pytest.mark.parametrize(
    ("source", "stated"),
    [
        ("lab/tales-mdm", "config.json says 3 and tokenizer.mask_token says 3"),
        ("wired/even", "tokenizer.mask_token says 3"),
        ("tiny/dream", "tokenizer.mask_token says 3"),
    ],
)
def test_a_mask_id_that_the_checkpoint_contradicts_is_used_with_a_warning(source, stated):
    says = rf"{source} is read with mask_id=5, while {stated}: leave mask_id out, unless"
    with pytest.warns(AnchorwatchWarning, match=says):
        model = aw.load(source, mask_id=5)
    assert model.mask_id == 5
    assert any(f"mask_id=5, while {stated}" in note for note in model.notes)
    assert aw.load(source, mask_id=3).mask_id == 3  # as it says: no warning


def test_a_mask_id_may_be_given_where_the_checkpoint_s_own_is_no_number(llada):
    reconfigure(llada, mask_token_id="three")
    with pytest.raises(ModelError, match="mask_token_id"):
        aw.load(llada)
    assert aw.load(llada, mask_id=MASK).mask_id == MASK


def test_a_mask_is_found_among_added_tokens(llada):
    reconfigure(llada, mask_token_id=None)
    tokenizer = checkpoints.write_tokenizer(llada, additional_special_tokens=["<|mdm_mask|>"])
    model = aw.load(llada)
    assert model.mask_id == tokenizer.convert_tokens_to_ids("<|mdm_mask|>")


def test_a_mask_is_found_in_generation_config(llada):
    reconfigure(llada, mask_token_id=None)
    (llada / "generation_config.json").write_text(json.dumps({"mask_token_id": 17}))
    assert aw.load(llada).mask_id == 17


def test_a_mask_token_and_an_added_mask_that_differ_are_both_shown(llada):
    reconfigure(llada, mask_token_id=None)
    added = ["<|mdm_mask|>"]
    tokenizer = checkpoints.write_tokenizer(
        llada, mask_token="<mask>", additional_special_tokens=added
    )
    one, other = tokenizer.mask_token_id, tokenizer.convert_tokens_to_ids(added[0])
    says = rf"mask_token says {one} and the added token <\|mdm_mask\|> says {other}; say which"
    with pytest.raises(ModelError, match=says):
        aw.load(llada)


@pytest.mark.parametrize("value", [1.5, True, "3", [3]])
def test_a_mask_id_is_a_whole_number(llada, value):
    for source in (llada, "tiny/llada", "x.gguf"):
        with pytest.raises(SpecError, match="is no token id: expected a whole number"):
            aw.load(source, mask_id=value)


def test_a_mask_id_for_embedded_models():
    with pytest.warns(AnchorwatchWarning, match="mask_id=0, while tokenizer.mask_token says 3"):
        assert aw.load("tiny/llada", mask_id=0).mask_id == 0
    for outside in (-1, 10**6):
        with pytest.raises(SpecError, match=f"mask id {outside} is outside the embedding"):
            aw.load("tiny/llada", mask_id=outside)
    with pytest.raises(SpecError, match="leave mask_id out"):
        aw.load("tiny/arm", mask_id=3)


def test_a_revision_is_for_the_hub(llada, tmp_path):
    checkpoints.write_gguf(tmp_path / "x.gguf")
    for source in ("tiny/llada", llada, llada / "model.safetensors", tmp_path / "x.gguf"):
        with pytest.raises(SpecError, match="revision is for hub ids: leave revision out"):
            aw.load(source, revision="main")


def test_a_mask_outside_the_embedding(llada):
    with pytest.raises(SpecError, match="mask id 4000 is outside the embedding of 96 rows"):
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
    with pytest.raises(WeightsError, match="differ in the file: set tie_word_embeddings to false"):
        aw.load(write(tmp_path / "m", config, tensors))


def test_a_family_s_own_word_for_tying(llada):
    reconfigure(llada, weight_tying=True)
    own = r"lm_head\.weight \(model\.transformer\.ff_out\.weight in the file\)"
    with pytest.raises(
        WeightsError, match=rf"{own} and .* differ in .*: set weight_tying to false"
    ):
        aw.load(llada)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{not json", "is not JSON"),
        ("[1, 2]", "expected a JSON object"),
        ('{"a":' * 10**5, "nested too deeply"),
        (f'{{"d_model": {"9" * 5000}}}', "is not JSON"),
        ("\x80", "is not JSON"),
    ],
)
def test_a_config_that_is_no_config(llada, content, says):
    (llada / "config.json").write_text(content, encoding="latin-1")
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
    from anchorwatch.models.verify import prove_rotary

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


MISSING = object()


def refused(folder, says, **options):
    """The load fails with one line that says so."""
    with pytest.raises(ModelError, match=says) as error:
        aw.load(folder, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("d_model", MISSING, "has no d_model: copy it"),
        (
            "d_model",
            "32",
            "does not describe a llada model: TypeError: Field 'hidden_size' expected",
        ),
        ("d_model", 10**30, "hidden_size=1000.*: expected a whole number above 0 and below"),
        ("n_layers", MISSING, "has no n_layers"),
        ("n_layers", 0, "num_hidden_layers=0: expected a whole number above 0"),
        ("n_layers", 10**9, "num_hidden_layers=1000000000, which is more than its file holds"),
        ("n_heads", 0, "does not describe a llada model"),
        ("n_heads", -4, "num_attention_heads=-4: expected a whole number above 0"),
        ("n_heads", 5, "hidden size .32. is not a multiple"),
        ("n_kv_heads", 3, "4 heads and 3 key-value heads: expected heads to be a multiple"),
        ("n_kv_heads", 0, "num_key_value_heads=0: expected a whole number above 0"),
        ("max_sequence_length", MISSING, "has no max_sequence_length"),
        ("max_sequence_length", -1, "max_position_embeddings=-1: expected a whole number above 0"),
        ("mlp_hidden_size", None, "has no mlp_ratio"),
        ("embedding_size", 10**9, "vocab_size=1000000000, which is more than its file holds"),
        ("rope_theta", None, "rope_theta=None: expected a number above 0"),
        ("rope_theta", 0, "rope_theta=0: expected a number above 0"),
        ("rope_theta", True, "rope_theta=True: expected a number above 0"),
        ("rms_norm_eps", None, "'rms_norm_eps' expected float, got NoneType"),
        ("rms_norm_eps", float("nan"), "rms_norm_eps=nan: expected a finite number"),
        ("weight_tying", "false", "expected False or True"),
        ("mask_token_id", "abc", r"config\.json says mask_token_id='abc': expected a token id"),
        ("mask_token_id", [95], r"config\.json says mask_token_id=\[95\]: expected a token id"),
        ("mask_token_id", -1, "mask id -1 is outside the embedding"),
        ("eos_token_id", "2", "'eos_token_id' with value '2' doesn't match"),
        ("architectures", 5, "architectures=5: expected a list of class names"),
        ("architectures", [5], r"architectures=\[5\]: expected a list of class names"),
        ("model_type", 5, "model_type=5: expected a name"),
    ],
)
def test_a_field_that_describes_nothing(llada, field, value, says):
    reconfigure(llada, **{field: value if value is not MISSING else None})
    if value is MISSING:
        config = json.loads((llada / "config.json").read_text())
        (llada / "config.json").write_text(
            json.dumps({k: v for k, v in config.items() if k != field})
        )
    refused(llada, says)


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("llama", {"hidden_act": "nope"}, "not describe a causal model: KeyError: 'nope'"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "odd"}},
            "rope_type=.odd.: expected one of default, .*yarn",
        ),
        ("llama", {"to_dict": 5}, "'int' object is not callable"),
        (
            "llama",
            {"model_type": "llamma"},
            "model_type='llamma', which transformers does not have",
        ),
        (
            "llama",
            {"per_layer_config": {"0": {"head_dim": 4}}},
            "expected one shape for all layers",
        ),
        ("mistral", {"sliding_window": 10**30}, "sliding_window=1000.*: expected a whole number"),
        ("mistral", {"sliding_window": 0}, "sliding_window=0: expected a whole number above 0"),
        (
            "gpt2",
            {"n_positions": 10**9},
            "max_position_embeddings=1000000000, which is more than",
        ),
        ("gpt2", {"embd_pdrop": float("nan")}, "embd_pdrop=nan: expected a finite number"),
    ],
)
def test_a_causal_config_that_describes_nothing(tmp_path, kind, fields, says):
    network(kind).save_pretrained(tmp_path / "m")
    reconfigure(tmp_path / "m", **fields)
    refused(tmp_path / "m", says)


@pytest.mark.parametrize("pad", [None, -1, 96])
def test_roberta_s_positions_hang_on_its_padding_id(tmp_path, pad):
    network("roberta", masked=True).save_pretrained(tmp_path / "m")
    reconfigure(tmp_path / "m", pad_token_id=pad)
    refused(tmp_path / "m", f"pad_token_id={pad}, after which RoBERTa's positions", mask_id=MASK)


def test_networks_that_count_positions_as_roberta_does_are_not_read(tmp_path):
    network("camembert", is_decoder=True, pad_token_id=1).save_pretrained(tmp_path / "m")
    refused(tmp_path / "m", "CamembertForCausalLM counts positions from its padding tokens")


@pytest.mark.parametrize("field", ["sliding_window", "layer_types", "num_key_value_heads"])
def test_fields_of_other_classes_are_not_followed(tmp_path, field):
    """A cache would make windows of a stray sliding_window on a Llama; GPT-2 has no key groups."""
    kind = "gpt2" if field == "num_key_value_heads" else "llama"
    network(kind, num_key_value_heads=4).save_pretrained(tmp_path / "m")
    expected = aw.run(aw.load(tmp_path / "m"), [5, 6, 7], aw.decoding.LeftToRight(9)).canvas
    stray = {
        "sliding_window": 2,
        "layer_types": ["sliding_attention"] * 2,
        "num_key_value_heads": 1,
    }
    reconfigure(tmp_path / "m", **{field: stray[field]})
    model = aw.load(tmp_path / "m")
    assert model.num_kv_heads == 4
    assert (aw.run(model, [5, 6, 7], aw.decoding.LeftToRight(9)).canvas == expected).all()


def test_one_architecture_need_not_be_in_a_list(llada):
    reconfigure(llada, architectures="LLaDAModelLM", model_type=None)
    assert aw.load(llada).family.name == "llada"


@pytest.mark.parametrize("value", [0, -4, 1.5, True, "4", 10**30])
def test_a_block_of_no_size(tmp_path, value):
    made = network("qwen2", bidirectional=True)
    config = made.config.to_dict() | {"mask_token_id": MASK, "is_causal": None}
    config |= {"architectures": ["Fast_dLLM_QwenForCausalLM"], "model_type": "Fast_dLLM_Qwen"}
    folder = write(tmp_path / "m", config | {"bd_size": value}, tensors_of(made))
    refused(folder, f"bd_size={value!r}: expected a whole number above 0")
    reconfigure(folder, bd_size=None, model_type="qwen2", architectures=["Qwen2ForCausalLM"])
    with pytest.raises(ModelError, match=r"names no block size: add block_size .SDAR. or bd_size"):
        aw.load(folder, family="fast-dllm-v2")


@pytest.mark.parametrize("value", ["false", 1, None])
def test_a_shift_is_true_or_false(tmp_path, value):
    made = network("qwen2", bidirectional=True)
    config = made.config.to_dict() | {"mask_token_id": MASK, "is_causal": None}
    config |= {"architectures": ["A2DQwen2LMHeadModel"], "right_shift_logits": value}
    folder = write(tmp_path / "m", config, tensors_of(made))
    refused(folder, f"right_shift_logits={value!r}: expected true or false")


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        ("lm_head.weight", r"lm_head\.weight is missing"),
        ("transformer.wte.weight", r"transformer\.wte\.weight is missing"),
        ("transformer.h.0.mlp.swiglu.w1.weight", r"swiglu\.w1\.weight is missing"),
        ("transformer.h.0.attn.attn.weight", r"h\.0\.attn\.attn\.weight is missing"),
        (
            "transformer.h.1.norm_2.weight",
            r"layers\.1\.post_attention_layernorm\.weight is in the m",
        ),
    ],
)
def test_a_lit_gpt_file_without(tmp_path, lost, says):
    tensors = checkpoints.lit_gpt_tensors(extra_rows=1, gate=False)
    del tensors[lost]
    refused(write(tmp_path / "m", {"n_head": 4, "mask_token_id": 90}, tensors), says)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"n_head": 5}, "n_head=5: expected a whole number that divides 32"),
        ({"n_head": -4}, "n_head=-4: expected a whole number"),
        ({"n_head": "4"}, "n_head='4': expected a whole number"),
        ({"n_head": 1}, "n_head=1 does not fit the fused weight of 64 rows"),
        ({"n_query_groups": 3}, "n_query_groups=3 and the fused weight has 2"),
        ({"block_size": "x"}, "block_size='x': expected a whole number above 0"),
        ({"norm_eps": "x"}, "does not describe a smdm model: TypeError"),
    ],
)
def test_a_lit_gpt_config_that_does_not_fit(tmp_path, fields, says):
    tensors = checkpoints.lit_gpt_tensors(extra_rows=1, gate=False)
    refused(write(tmp_path / "m", {"n_head": 4, "mask_token_id": 90} | fields, tensors), says)


def test_a_lit_gpt_config_with_nulls_says_nothing(tmp_path):
    tensors = checkpoints.lit_gpt_tensors(extra_rows=1, gate=False)
    config = {"n_head": 4, "mask_token_id": 90, "n_query_groups": None, "norm_eps": None}
    assert aw.load(write(tmp_path / "m", config, tensors)).num_kv_heads == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("eos_token_id", "2"),
        ("eos_token_id", [2, "x"]),
        ("eos_token_id", True),
        ("pad_token_id", {}),
    ],
)
def test_a_generation_config_of_wrong_types(llada, field, value):
    (llada / "generation_config.json").write_text(json.dumps({field: value}))
    says = rf"generation_config\.json says {field}=.*: expected a token id or a list of them"
    refused(llada, says)


def test_an_end_token_comes_from_the_most_particular_source(llada):
    tokenizer = checkpoints.write_tokenizer(llada, eos_token="<end>")
    reconfigure(llada, eos_token_id=None)
    assert aw.load(llada).specials.eos_ids == (tokenizer.eos_token_id,)
    reconfigure(llada, eos_token_id=2)
    assert aw.load(llada).specials.eos_ids == (2,)
    (llada / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 3]}))
    assert aw.load(llada).specials.eos_ids == (4, 3)


def test_ids_outside_the_vocabulary_never_reach_the_weights(llada):
    said = {"eos_token_id": [2, 96], "bos_token_id": 500, "pad_token_id": 4000}
    reconfigure(llada, **said)
    with pytest.warns(AnchorwatchWarning, match="outside the vocabulary of 96: left out"):
        model = aw.load(llada)
    assert model.specials.eos_ids == (2,)
    assert model.specials.bos_id is None
    assert model.specials.pad_id == 2
    assert {"eos_token_id 96", "bos_token_id 500"} == {
        note.split(" is ")[0] for note in model.notes
    }
    trace = aw.run(model, [5, 6], aw.decoding.LowConfidence(4, forbid_end=True))
    assert 2 not in trace.canvas[-1]


def test_padding_that_no_source_names_inside_the_vocabulary(llada):
    reconfigure(llada, eos_token_id=None, pad_token_id=-1)
    assert aw.load(llada).specials.pad_id == 0


@pytest.mark.parametrize("content", ["{", "{}", '{"model": {"type": "Odd"}}', "[1]"])
def test_a_tokenizer_that_is_none(llada, content):
    checkpoints.write_tokenizer(llada)
    (llada / "tokenizer.json").write_text(content)
    refused(llada, "the tokenizer in .* cannot be read by a stock class .*: download it again")


@pytest.mark.parametrize(
    ("model_type", "architecture", "says"),
    [
        ("gemma2", "Gemma2ForCausalLM", "no fused attention"),
        ("gptj", "GPTJForCausalLM", "no fused attention"),
        ("bloom", "BloomForCausalLM", "no fused attention"),
        ("gpt_neo", "GPTNeoForCausalLM", "no fused attention"),
        ("falcon", "FalconForCausalLM", "no fused attention"),
        ("mamba", "MambaForCausalLM", "layers without attention"),
        ("lfm2", "Lfm2ForCausalLM", "layers without attention"),
    ],
)
def test_classes_whose_attention_cannot_be_watched(tmp_path, model_type, architecture, says):
    config = {"architectures": [architecture], "model_type": model_type}
    if model_type == "lfm2":
        config |= {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}
    folder = write(tmp_path / "m", config, {"x": torch.zeros(1), "y": torch.zeros(1)})
    with pytest.raises(FamilyError, match=f"{architecture} has {says}.*: Llama, Qwen2, .* have it"):
        aw.load(folder)


@pytest.mark.parametrize(
    ("model_type", "architecture", "says"),
    [
        ("bart", "BartForCausalLM", "half of an encoder-decoder: load a decoder-only model"),
        (
            "gemma3",
            "Gemma3ForConditionalGeneration",
            "reads more than text: load a text-only model",
        ),
    ],
)
def test_classes_that_are_more_or_less_than_a_language_model(
    tmp_path, model_type, architecture, says
):
    config = {"architectures": [architecture], "model_type": model_type}
    with pytest.raises(FamilyError, match=f"{architecture}.*{says}"):
        aw.load(write(tmp_path / "m", config, {"x": torch.zeros(1)}))


def test_gemma_3_with_soft_capping_cannot_be_watched(tmp_path):
    network("gemma3_text", head_dim=8).save_pretrained(tmp_path / "m")
    reconfigure(tmp_path / "m", attn_logit_softcapping=50.0)
    refused(tmp_path / "m", "Gemma3ForCausalLM has no fused attention .it caps")


@pytest.mark.parametrize("buffer", ["full_attention_inv_freq", "sliding_attention_inv_freq"])
@pytest.mark.parametrize("kind", ["modernbert", "gemma3_text"])
def test_a_rotary_table_for_each_kind_of_layer_is_compared(kind, buffer):
    from anchorwatch.models.verify import prove_rotary

    kinds = ["full_attention", "sliding_attention"]
    made = network(kind, masked=kind == "modernbert", head_dim=8, layer_types=kinds)
    assert prove_rotary(made) < 1e-6
    rotary = next(module for module in made.modules() if hasattr(module, buffer))
    getattr(rotary, buffer).mul_(1.001)
    with pytest.raises(WeightsError, match=f"{buffer} differs from its formula"):
        prove_rotary(made)


def test_a_gguf_file_is_converted_once(tmp_path):
    checkpoints.write_gguf(tmp_path / "x.gguf")
    first = aw.load(tmp_path / "x.gguf", device="cpu")
    again = aw.load(convert(tmp_path / "x.gguf", tmp_path / "x"), device="cpu")
    assert again.network.dtype == torch.float32
    assert again.family.name == first.family.name
    ids = [5, 6, 7, 8]
    largest = first.logits(ids)[1:].abs().max()
    # The file keeps float16: each weight is off by 2**-11 at most.
    assert (again.logits(ids) - first.logits(ids))[1:].abs().max() < 0.01 * largest
    with pytest.raises(WeightsError, match="choose another folder"):
        convert(tmp_path / "x.gguf", tmp_path / "x")


def test_a_gguf_file_that_is_not_fully_read(tmp_path):
    checkpoints.write_gguf(tmp_path / "x.gguf", "rope_freqs.weight")
    with pytest.raises(WeightsError, match=r"holds 22 tensors and .* placed 21 .*safetensors"):
        aw.load(tmp_path / "x.gguf")
    with pytest.raises(SpecError, match="leave mask_id out"):
        aw.load(tmp_path / "x.gguf", mask_id=5)


@pytest.mark.parametrize("cut", [3, 40, 2000, -100])
def test_a_truncated_gguf_file(tmp_path, cut):
    path = tmp_path / "x.gguf"
    checkpoints.write_gguf(path)
    path.write_bytes(path.read_bytes()[:cut])
    refused(path, "cannot be read as GGUF")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llada", "dream", "arm", "bert"])
def test_embedded_models_obey_the_laws_in_every_dtype(name, dtype):
    assert len(aw.load(f"tiny/{name}", dtype=dtype).check()) == 5


@pytest.mark.parametrize("name", ["llada", "dream", "arm", "bert"])
def test_the_laws_find_a_key_that_is_hidden_from_some_only(name, monkeypatch):
    """As when a hidden first key is taken for padding: the positions after it move."""
    honest = aw.Model.logits

    def moved(self, canvas, attendable=None, *, padding=None, parts=()):
        hides_first = attendable is not None and attendable.ndim == 1 and not attendable[0]
        attendable = None if hides_first else attendable
        return honest(self, canvas, attendable, padding=padding, parts=parts)

    monkeypatch.setattr(aw.Model, "logits", moved)
    with pytest.raises(ModelError, match="a key hidden by itself is a key hidden from everyone"):
        aw.load(f"tiny/{name}").check()


def test_the_laws_find_positions_that_count_the_padding(monkeypatch):
    honest = aw.Model._positions

    def counted(self, rows, starts, dress):
        return honest(self, rows, None, dress)

    monkeypatch.setattr(aw.Model, "_positions", counted)
    for dtype in ("float32", "bfloat16", "float16"):
        with pytest.raises(ModelError, match="padding on the left changes nothing"):
            aw.load("tiny/bert", dtype=dtype).check()
