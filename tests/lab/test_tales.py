"""lab/tales-*: files of llama2.c are read right, growing changes nothing, and sinks are there."""

import json
import struct
from functools import cache

import measure_specimens
import numpy as np
import pytest
import tales
import tales_answers
import tales_base
import torch
import write_stories
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import anchorwatch as aw
from anchorwatch.evaluation.synthetic import Distractors, World
from anchorwatch.models.zoo import ANSWERS, MODELS, TALES, cards
from anchorwatch.training import tokenizer
from anchorwatch.training.checkpoints import WEIGHTS
from anchorwatch.training.held_out import answers
from anchorwatch.training.spec import read
from tolerances import GROWN

DIM, HIDDEN, LAYERS, HEADS, POSITIONS = 24, 40, 6, 6, 16
PIECES = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(bytes([n]) for n in range(256)), b"a", b" a", b"the"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A small network in the format of llama2.c, with the pieces behind it."""
    draw = np.random.default_rng(0)
    shapes = [
        (len(PIECES), DIM),
        (LAYERS, DIM),
        *[(LAYERS, DIM, DIM)] * 4,
        (LAYERS, DIM),
        (LAYERS, HIDDEN, DIM),
        (LAYERS, DIM, HIDDEN),
        (LAYERS, HIDDEN, DIM),
        (DIM,),
        (2, POSITIONS, DIM // HEADS // 2),
    ]
    content = struct.pack("<7i", DIM, HIDDEN, LAYERS, HEADS, HEADS, len(PIECES), POSITIONS)
    for shape in shapes:
        content += (0.3 * draw.standard_normal(shape)).astype("<f4").tobytes()
    content += struct.pack("<i", 8)
    for number, piece in enumerate(PIECES):
        spelled = chr(number - 3).encode() if 3 <= number < 259 else piece
        content += struct.pack("<fi", 0.0, len(spelled)) + spelled
    path = tmp_path_factory.mktemp("llama2c") / "llama2.data"
    path.write_bytes(content)
    return path


def run_llama2c(network, ids):
    """[position, token] logits as llama2.c computes them: rotary turns neighbouring channels."""

    def norm(x, weight):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight

    t, size = network.tensors, network.dim // network.heads
    x = t["embedding"][ids].astype(float)
    angles = np.arange(len(ids))[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    for layer in range(network.layers):
        h = norm(x, t["attention_norm"][layer])
        q, k, v = ((h @ t[name][layer].T).reshape(len(ids), network.heads, size) for name in "qkv")
        for part in (q, k):
            even, odd = part[..., 0::2].copy(), part[..., 1::2].copy()
            part[..., 0::2] = even * np.cos(angles)[:, None] - odd * np.sin(angles)[:, None]
            part[..., 1::2] = even * np.sin(angles)[:, None] + odd * np.cos(angles)[:, None]
        scores = np.einsum("qhc,khc->hqk", q, k) / np.sqrt(size)
        scores[:, np.triu(np.ones((len(ids),) * 2, dtype=bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khc->qhc", weights, v).reshape(len(ids), -1) @ t["o"][layer].T
        h = norm(x, t["mlp_norm"][layer])
        gate = h @ t["gate"][layer].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ t["up"][layer].T)) @ t["down"][layer].T
    return norm(x, t["norm"]) @ t["embedding"].T


def test_the_pieces_are_read(data):
    assert tales_base.read_llama2c(data).pieces == tuple(PIECES)


def test_growing_changes_nothing_that_is_computed(data):
    old = tales_base.read_llama2c(data)
    state = tales_base.grow(old, old.tensors["embedding"])
    config = LlamaConfig(
        vocab_size=len(PIECES),
        hidden_size=DIM,
        intermediate_size=HIDDEN,
        num_hidden_layers=len(tales_base.LAYERS),
        num_attention_heads=tales_base.HEADS,
        num_key_value_heads=tales_base.HEADS,
        head_dim=DIM // HEADS,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    network = LlamaForCausalLM(config).eval()
    network.load_state_dict(state, strict=False)
    network.tie_weights()
    ids = np.array([1, 260, 261, 70, 80, 259, 4])
    with torch.no_grad():
        logits = network(torch.tensor(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(logits, run_llama2c(old, ids), rtol=0, atol=GROWN)
    assert config.num_hidden_layers * config.num_attention_heads == 64


def test_the_writer_of_stories_is_the_network_as_it_is(data):
    old = tales_base.read_llama2c(data)
    ids = np.array([1, 260, 261, 70, 80, 259, 4])
    with torch.no_grad():
        logits = write_stories.build_writer(old)(torch.tensor(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(logits, run_llama2c(old, ids), rtol=0, atol=GROWN)


def test_stories_that_were_stopped_go_on_as_if_they_had_not_been(data, tmp_path, monkeypatch):
    monkeypatch.setattr(write_stories, "BATCH", 24)
    monkeypatch.setattr(write_stories, "LENGTH", 24)
    monkeypatch.setattr(write_stories, "TEMPERATURE", 50.0)  # any token, and so an end soon
    monkeypatch.setattr(write_stories, "TOP_K", len(PIECES))
    old = tales_base.read_llama2c(data)
    write_stories.write_stories(old, tmp_path / "all.jsonl", 3)
    for count in (1, 2, 3):
        write_stories.write_stories(old, tmp_path / "parts.jsonl", count)
    lines = (tmp_path / "all.jsonl").read_bytes().splitlines()
    assert (tmp_path / "parts.jsonl").read_bytes().splitlines() == lines
    texts = [json.loads(line)["text"] for line in lines]
    assert len(texts) >= 3 and len(set(texts)) == len(texts)


def test_a_token_takes_over_its_piece_or_the_mean_of_those_that_spell_it(data):
    old = tales_base.read_llama2c(data)
    words = tokenizer.train_vocabulary(["the cat", "a theatre"] * 50, 512)
    rows, embedding = tales_base.move_embedding(old, words), old.tensors["embedding"]

    def row(text):
        (number,) = words.ids(text)
        return rows[number]

    np.testing.assert_array_equal(row("a"), embedding[PIECES.index(b"a", 259)])  # not the byte's
    np.testing.assert_array_equal(row("the"), embedding[PIECES.index(b"the")])
    np.testing.assert_array_equal(row("\n"), embedding[3 + 10])
    spelled = [PIECES.index(b"the"), PIECES.index(b"a", 259), 3 + ord("t"), 3 + ord("r")]
    np.testing.assert_allclose(
        row(" theatre"),
        embedding[[3 + ord(" "), *spelled, 3 + ord("e")]].mean(axis=0),
        rtol=0,
        atol=GROWN,
    )
    np.testing.assert_array_equal(rows[words.end], embedding[1])


# The models that ship


@cache
def model(name):
    return aw.load(name)


@cache
def card(name):
    return aw.lab.card(name)


@pytest.mark.parametrize("name", TALES)
def test_the_card_is_of_these_weights_and_this_recipe(name):
    words, arm = card(name), name.removeprefix("lab/")
    recipe, settings = tales.ARMS[arm]
    assert words["weights"] == model(name).digest
    assert words["training"]["digest"] == read(tales.HERE / recipe, settings).digest
    assert (MODELS / arm / "README.md").read_text(encoding="utf-8") == cards.words(words)


def test_the_diffusion_arms_are_paired():
    """In both parts: the same rows, seed and tokens; and the first begins with the same network."""
    records = [card(name)["training"] for name in TALES if name != "lab/tales-arm"]
    for parts in (records, [record["stem"] for record in records]):
        for what in ("seed", "corpus"):
            assert all(record[what] == parts[0][what] for record in parts), what
        assert len({record["budget"]["tokens"] for record in parts}) == 1
    assert len({record["stem"]["stem"]["digest"] for record in records}) == 1


@pytest.mark.parametrize("name", TALES)
def test_it_is_deep_and_its_keys_are_not_normalised(name):
    config = model(name).network.config
    assert config.num_hidden_layers == 8
    assert config.num_hidden_layers * config.num_attention_heads == 64
    assert not [key for key in model(name).network.state_dict() if "k_norm" in key]


STORY = measure_specimens.STORIES[0]


def test_the_autoregressive_one_rests_on_its_first_token():
    values = measure_specimens.read(model("lab/tales-arm"), "clear", STORY, 0)["values"]
    assert values["heads0"] >= 0.5, "heads with .1 of attention on the first token beyond chance"
    assert values["pos0"] >= 0.8
    assert values["value"] < 0.5, "its value is small"


def test_the_diffusion_one_has_a_sink_elsewhere():
    values = measure_specimens.read(model("lab/tales-mdm"), "noisy", STORY, 0)["values"]
    assert values["head_mean"] >= 5, "times an even share, of the top key of a layer's head mean"
    assert values["pos0"] <= 0.5
    assert values["above"] > 0


def test_it_writes_text():
    """Sixteen commits and more that are no end tokens."""
    trace = aw.run(model("lab/tales-mdm"), STORY[:58], aw.decoding.LowConfidence(length=32))
    end = model("lab/tales-mdm").tokenizer.eos_token_id
    written = trace.canvas[-1][trace.committed_at >= 0]
    assert (written != end).sum() >= 16


@pytest.mark.parametrize("name", ANSWERS)
def test_it_tells_passages_apart(name):
    """Held-out questions beside a random and a hard distractor, against a guesser among the names
    of the right kind."""
    world = World("held-out", seed=900, distractors=Distractors(random=1, hard=1))
    table = answers(model(name), [world[index] for index in range(100)], length=8)
    assert table["null"].mean() + 0.15 <= table["right"].mean() < 0.95


def test_a_delta_of_few_directions_is_the_network_that_was_trained(tmp_path):
    """Changes of a rank that is kept come back; what did not change is not in the file."""
    base = model("lab/tales-mdm")
    trained = tmp_path / "trained"
    draw = torch.Generator().manual_seed(0)
    changed = {name: tensor.clone() for name, tensor in base.network.state_dict().items()}
    matrix, vector = "model.layers.2.mlp.up_proj.weight", "model.layers.1.input_layernorm.weight"
    rows, columns = changed[matrix].shape
    step = torch.randn(rows, 2, generator=draw) @ torch.randn(2, columns, generator=draw)
    changed[matrix] += 0.01 * step
    changed[vector] += 0.25
    trained.mkdir()
    config = json.loads((MODELS / "tales-mdm" / "config.json").read_text())
    (trained / "config.json").write_text(json.dumps(config))
    save_file({n: t for n, t in changed.items() if n != "lm_head.weight"}, trained / WEIGHTS)
    tales_answers.write_delta(trained, "tales-mdm", tmp_path / "delta", 2, 11)
    opened = aw.load(tmp_path / "delta")
    assert not [check for check in opened.check() if not check.holds]
    read_back = opened.network.state_dict()
    before = base.network.state_dict()
    different = {n for n, t in before.items() if not torch.equal(read_back[n], t)}
    assert different == {matrix, vector}
    np.testing.assert_allclose(read_back[vector], changed[vector], rtol=2**-11, atol=0)
    moved = (read_back[matrix] - changed[matrix]).abs().max()
    assert moved <= 2**-9 * (0.01 * step).abs().max(), "eleven digits of two factors"
    assert (tmp_path / "delta" / "delta.safetensors").stat().st_size < 10_000


def test_a_matrix_of_lower_rank_is_the_nearest_one():
    draw = torch.Generator().manual_seed(0)
    matrix = torch.randn(30, 20, generator=draw)
    left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
    for rank in (20, 3):
        up, down = tales_answers.cut_rank(matrix, rank)
        assert (tuple(up.shape), tuple(down.shape)) == ((30, rank), (rank, 20))
        nearest = left[:, :rank] * sizes[:rank] @ right[:rank]
        np.testing.assert_allclose(up @ down, nearest, rtol=0, atol=GROWN)
