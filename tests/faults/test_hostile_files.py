"""Files that lie about themselves: one line, no hang, and little memory."""

import json
import os
import struct
import tracemalloc
import warnings

import pytest

import anchorwatch as aw
import checkpoints
from anchorwatch.errors import AnchorwatchError, ModelError, PromptError, WeightsError
from anchorwatch.models.checkpoint import LIMIT_JSON_BYTES
from checkpoints import MASK, network

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DEEP = "[" * 200_000 + "]" * 200_000
MOST_BYTES = 64 << 20
"""Of Python's own memory while a checkpoint of 100 kB is refused."""


@pytest.fixture
def llama(tmp_path):
    network("llama").save_pretrained(tmp_path / "m")
    aw.load(tmp_path / "m")  # what is imported is not counted
    return tmp_path / "m"


def put(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def refusal(source, **asked):
    """What is said, with little memory; anything but a refusal fails the test."""
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(AnchorwatchError) as said:
                aw.load(source, **asked)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    return str(said.value)


@pytest.mark.parametrize("name", ["config.json", INDEX, "generation_config.json"])
@pytest.mark.parametrize("text", ["[]", "3", "NaN", '"x"', "", "{", DEEP, f'{{"a": {DEEP}}}'])
def test_json_that_is_no_object(llama, name, text):
    (llama / name).write_text(text)
    assert name in refusal(llama)


def test_json_without_end(llama):
    with (llama / "config.json").open("wb") as handle:
        handle.truncate(LIMIT_JSON_BYTES + 10)
    tracemalloc.start()
    with pytest.raises(ModelError, match=r"config\.json has more than 64 MB"):
        aw.load(llama)
    tracemalloc.stop()


SIZES = {
    "llama": ("num_hidden_layers", "hidden_size", "vocab_size", "intermediate_size", "head_dim"),
    "qwen2": ("num_hidden_layers", "intermediate_size", "num_attention_heads"),
    "gpt2": ("n_layer", "n_embd", "n_inner", "vocab_size"),
    "gemma3_text": ("num_hidden_layers", "intermediate_size", "head_dim"),
    "bert": ("num_hidden_layers", "intermediate_size", "type_vocab_size"),
    "albert": ("num_hidden_layers", "num_hidden_groups", "inner_group_num", "embedding_size"),
    "modernbert": ("num_hidden_layers", "intermediate_size", "hidden_size"),
}


@pytest.mark.parametrize(("kind", "field"), [(k, f) for k, of in SIZES.items() for f in of])
def test_sizes_that_the_file_does_not_have(tmp_path, kind, field):
    masked = kind in checkpoints.ENCODERS
    differs = checkpoints.ENCODERS.get(kind, {}) | checkpoints.CAUSAL.get(kind, {})
    differs |= {"head_dim": 8} if kind == "gemma3_text" else {}
    folder = tmp_path / "m"
    network(kind, masked=masked, **differs).save_pretrained(folder)
    if masked or kind == "qwen2":  # a causal LM with a mask token would be asked for its family
        put(folder, mask_token_id=MASK)
    aw.load(folder)
    for value in (10**8, 2**31 - 1, 10**30, -1, 0, 1.5, float("nan"), float("inf"), "x", []):
        put(folder, **{field: value})
        said = refusal(folder)
        assert "config.json" in said, (value, said)


@pytest.mark.parametrize("kind", ["qwen2", "gemma3_text", "modernbert"])
def test_layers_that_a_config_would_list(tmp_path, kind):
    """Where config.json does not say each layer's kind, its class makes a list of all of them."""
    network(kind, masked=kind == "modernbert", head_dim=8).save_pretrained(tmp_path / "m")
    mask = {} if kind == "gemma3_text" else {"mask_token_id": MASK}
    put(tmp_path / "m", layer_types=None, **mask)
    aw.load(tmp_path / "m")
    put(tmp_path / "m", num_hidden_layers=10**8)
    assert "num_hidden_layers=100000000, which is more than its file" in refusal(tmp_path / "m")


def header(folder):
    raw = (folder / WEIGHTS).read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def spelled(head, body):
    raw = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(raw)) + raw + body


@pytest.mark.parametrize(
    "change",
    [
        {"data_offsets": [0, 2**50]},
        {"data_offsets": [-1, 5]},
        {"data_offsets": [8, 4]},
        {"data_offsets": "same"},
        {"shape": [2**40, 2**40]},
        {"shape": [-1]},
        {"shape": "x"},
        {"dtype": "F4096"},
    ],
    ids=str,
)
def test_a_header_that_lies(llama, change):
    head, body = header(llama)
    first, second = [name for name in head if name != "__metadata__"][:2]
    if change.get("data_offsets") == "same":
        change = {"data_offsets": head[second]["data_offsets"]}
    head[first] |= change
    (llama / WEIGHTS).write_bytes(spelled(head, body))
    assert "cannot be read as safetensors" in refusal(llama)


@pytest.mark.parametrize("size", [0, 2**40, 2**60, 2**64 - 1])
def test_a_header_of_a_length_that_cannot_be(llama, size):
    raw = (llama / WEIGHTS).read_bytes()
    (llama / WEIGHTS).write_bytes(struct.pack("<Q", size) + raw[8:])
    assert "cannot be read as safetensors" in refusal(llama)


@pytest.mark.parametrize("head", [b"[]", b"NaN", DEEP.encode()], ids=["list", "nan", "deep"])
def test_a_header_that_is_no_object(llama, head):
    (llama / WEIGHTS).write_bytes(spelled(head, b""))
    assert "cannot be read as safetensors" in refusal(llama)


@pytest.mark.parametrize("name", [INDEX, "config.json", ".", "..", "\0", "../m/" + WEIGHTS])
def test_an_index_that_names_itself_or_no_weights(llama, name):
    (llama / INDEX).write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    refusal(llama)


@pytest.mark.parametrize(
    "name",
    [
        *("config.json", WEIGHTS, "other.safetensors", INDEX, "generation_config.json"),
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "vocab.txt"),
    ],
)
def test_pipes_and_devices_are_never_opened(llama, name):
    if name.startswith("other"):
        (llama / WEIGHTS).unlink()
    (llama / name).unlink(missing_ok=True)
    os.mkfifo(llama / name)
    assert f"{name} is no ordinary file" in refusal(llama)
    (llama / name).unlink()
    (llama / name).symlink_to("/dev/zero")
    assert f"{name} is no ordinary file" in refusal(llama)


OUTSIDE = {
    "init_inputs": ["/etc/hostname"],
    "gguf_file": "/etc/hostname",
    "tokenizer_object": {"a": 1},
    "fast_tokenizer_files": ["../../x/tokenizer.4.0.0.json"],
    "sp_model_kwargs": {"model_file": "/etc/hostname"},
    "mecab_kwargs": {"mecab_option": "-r /etc/hostname"},
}


@pytest.mark.parametrize("field", OUTSIDE)
def test_a_tokenizer_reads_nothing_outside_its_folder(llama, field):
    checkpoints.write_tokenizer(llama)
    path = llama / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: OUTSIDE[field]}))
    said = refusal(llama)
    assert f"tokenizer_config.json says {field}=" in said


def test_paths_that_old_tokenizers_recorded_are_ignored(llama):
    written = checkpoints.write_tokenizer(llama)
    path = llama / "tokenizer_config.json"
    old = {"tokenizer_file": "/nowhere", "special_tokens_map_file": "/nowhere", "init_inputs": []}
    path.write_text(json.dumps(json.loads(path.read_text()) | old | {"name_or_path": "a/b"}))
    assert aw.load(llama).encode("ab") == written("ab")["input_ids"]


def test_kernels_of_strangers_are_not_fetched(llama):
    asked = {
        "attn_implementation": "kernels-community/flash-attn",
        "_attn_implementation": "kernels-community/flash-attn",
        "_experts_implementation": "kernels-community/moe",
        "use_kernels": True,
        "kernel_config": {"RMSNorm": "kernels-community/rms:RMSNorm"},
    }
    before = aw.load(llama)
    put(llama, **asked)
    (llama / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "someone/else", "peft_type": "LORA"})
    )
    model = aw.load(llama)
    assert model.describe()["kernel"] == before.describe()["kernel"]
    assert model.network.kernel_config is None
    assert model.digest == before.digest


def test_a_tokenizer_that_fails_when_it_is_used(llama):
    checkpoints.write_tokenizer(llama)
    path = llama / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": "x"}))
    model = aw.load(llama)
    with pytest.raises(
        PromptError, match=r"the tokenizer of .* cannot read this prompt .*token ids"
    ):
        model.encode("ab")


def test_a_tokenizer_that_makes_its_library_panic(llama, capfd):
    checkpoints.write_tokenizer(llama)
    path = llama / "tokenizer.json"
    spoilt = {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | spoilt))
    with pytest.raises(ModelError, match=r"the tokenizer in .* cannot be read by a stock class"):
        aw.load(llama)


def test_weights_of_no_tensor_are_refused(llama):
    (llama / WEIGHTS).write_bytes(spelled({}, b""))
    with pytest.raises(WeightsError, match="without a tensor"):
        aw.load(llama)
