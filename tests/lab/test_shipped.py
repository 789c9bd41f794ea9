"""The models that ship: they load without a pass, answer from the passage, and are what their cards say.

Where they are missing, everything here fails: `make lab` makes them.
"""

import platform
import shutil
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import export_model
import numpy as np
import pytest
from torch.nn.modules.module import register_module_forward_hook
from transformers import PreTrainedModel

import anchorwatch as aw
from anchorwatch.errors import ModelError, TraceError
from anchorwatch.models.zoo import ALL, ANSWERS, MODELS, NAMES, SPECIMENS, TALES, cards
from anchorwatch.models.zoo.describe import describe_model
from anchorwatch.trace.atomic_io import COMMIT, find_damage
from anchorwatch.training import answers, variants
from anchorwatch.training import card_measures as measure
from tolerances import SAME_MATHS

RECIPE = MODELS.parents[3] / "recipes" / "lab.toml"
SIZE, TALES_SIZE, ANSWERS_SIZE = 30e6, 120e6, 1.5e6
OPEN, CLOSED = 0.9, 0.1
ASKED = 100


@cache
def model(name):
    return aw.load(name)


@cache
def card(name):
    return aw.lab.card(name)


def test_the_names_are_the_arms():
    assert [f"lab/{arm}" for arm in variants.LAB] == list(NAMES)


def test_all_weights_together_are_small():
    sizes = {
        folder.name: sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        for folder in MODELS.iterdir()
        if (folder / "config.json").is_file()
    }
    assert 0 < sum(sizes[name.removeprefix("lab/")] for name in NAMES) <= SIZE
    assert 0 < sum(sizes[name.removeprefix("lab/")] for name in TALES) <= TALES_SIZE
    assert len(list(MODELS.glob("*/model.safetensors"))) == len(NAMES + TALES)
    assert max(sizes[name.removeprefix("lab/")] for name in ANSWERS) <= ANSWERS_SIZE
    deltas = [sizes[name.removeprefix("lab/")] for name in SPECIMENS if name != "lab/smol-base"]
    assert max(deltas) <= SIZE


@contextmanager
def passes():
    """Whole passes through networks while this lasts: what loading and running cost anywhere."""
    seen = []

    def note(module, given, found):
        if isinstance(module, PreTrainedModel) and module.get_output_embeddings() is not None:
            seen.append(type(module).__name__)

    watching = register_module_forward_hook(note)
    try:
        yield seen
    finally:
        watching.remove()


@pytest.mark.parametrize("name", NAMES + TALES)
def test_every_byte_is_what_was_written(name):
    folder = MODELS / name.removeprefix("lab/")
    assert (folder / COMMIT).is_file()
    assert find_damage(folder) == []


@pytest.mark.parametrize("file", ["card.json", "model.safetensors", "config.json", "COMMIT.json"])
def test_a_flipped_bit_is_not_read(tmp_path, file):
    folder = shutil.copytree(MODELS / "toy-mdm", tmp_path / "mdm")
    assert cards.read(folder) == card("lab/toy-mdm")
    aw.load(folder)
    raw = bytearray((folder / file).read_bytes())
    raw[len(raw) // 2] ^= 1
    (folder / file).write_bytes(raw)
    with pytest.raises(TraceError, match=rf"mdm is damaged \({file} .*\): copy it again"):
        cards.read(folder)
    with pytest.raises(ModelError, match=rf"{file} .*: copy it again"):
        aw.load(folder)


@pytest.mark.parametrize("name", NAMES + TALES)
def test_it_loads_without_a_pass_and_obeys_the_laws(name):
    """`make bench` has the seconds."""
    with passes() as seen:
        loaded = aw.load(name)
    assert seen == []
    assert loaded.source == name
    assert str(loaded.network.dtype) == "torch.float32"
    assert loaded.check()
    parts = {"sink": ["sink_token"], "gate": ["gate"]}.get(name.rpartition("-")[2], [])
    assert [type(part).__name__ for part in loaded.parts] == parts


@pytest.mark.parametrize("name", NAMES)
def test_a_run_takes_one_pass_for_each_step_whatever_is_probed(name):
    kind = aw.decoding.LeftToRight if name == "lab/toy-arm" else aw.decoding.LowConfidence
    ask = measure.CONTEXTS["gold"][0][0].prompt()
    loaded = model(name)
    with passes() as bare:
        aw.run(loaded, ask, kind(length=16), probes=())
    with passes() as watched:
        trace = aw.run(loaded, ask, kind(length=16))
    assert len(watched) == len(bare) == trace.num_steps > 0
    assert trace.manifest["model"]["source"] == name


@pytest.mark.parametrize("name", ["lab/toy-mdm", "lab/toy-arm"])
def test_it_answers_from_the_passage_and_not_without(name):
    items = list(aw.worlds.items("held-out", hops=1, n=ASKED))
    assert answers(model(name), items)["right"].mean() >= OPEN
    assert answers(model(name), items, book="closed")["right"].mean() <= CLOSED


@pytest.mark.parametrize("name", NAMES)
def test_the_card_is_of_these_weights_and_this_recipe(name):
    said, arm = card(name), name.removeprefix("lab/")
    assert said["weights"] == model(name).digest
    assert said["name"] == name
    assert said["training"]["digest"] == variants.read_arm(RECIPE, variants.LAB, arm).digest
    assert (MODELS / arm / "README.md").read_text(encoding="utf-8") == cards.words(said)
    assert said["measured"]["version"] == measure.VERSION


def test_the_four_were_trained_alike():
    made = [card(name)["training"] for name in NAMES]
    for what in ("seed", "corpus"):
        assert all(one[what] == made[0][what] for one in made), what
    assert len({one["budget"]["updates"] for one in made}) == 1
    assert len({one["budget"]["tokens"] for one in made}) == 1


@pytest.mark.parametrize("name", ["lab/toy-mdm", "lab/toy-arm"])
def test_the_rows_it_was_trained_on_are_still_made(name):
    made = card(name)["training"]
    told = made["machine"]["python"].rpartition(".")[0]
    if not platform.python_version().startswith(f"{told}."):
        pytest.skip(f"Python {told} told this prose, and every version tells its own")
    for run in (made, made["stem"]):
        corpus = export_model.open_corpus(run["spec"], model(name).tokenizer)
        assert corpus.digest == run["corpus"]["digest"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_what_the_card_says_is_measured_again(name):
    """The first answers and the whole bound: the same items, noise and weights."""
    said, loaded = card(name)["measured"], model(name)
    effort = measure.Effort(**said["effort"])
    corpus = export_model.open_corpus(card(name)["training"]["spec"], loaded.tokenizer)
    held = replace(corpus, split="held-out", seed=measure.SEED)
    again = measure.measure_bounds(loaded, held, effort)
    assert again["all"]["value"] == pytest.approx(said["bound"]["all"]["value"], abs=SAME_MATHS)
    few = 20
    right = measure.measure_answers(loaded, "gold", few)["value"] * few
    total, n = (said["answers"]["gold"][what] for what in ("value", "n"))
    assert 0 <= total * n - right <= n - few, "the first items are among all"
    assert np.isclose(total * n, round(total * n))


def test_the_table_of_variants_ships_too():
    table = aw.lab.variants()
    assert set(variants.VARIANTS) - {"gate-plain", "sink-no-rotary"} <= set(table["arm"])
    seeds = table.groupby("arm")["seed"].nunique()
    assert (seeds >= 3).all()
    assert not table.duplicated(["arm", "seed"]).any()
    found = aw.lab.differences(table, ["bound.all"])
    assert found["low"].notna().all()


def test_the_table_by_position_ships_too():
    table = variants.by_position()
    assert not table.duplicated(["rows", "arm", "seed"]).any()
    assert (table["bound.all"] > 0).all()
    parts = [f"bound.from.{edge}.part" for edge in variants.EDGES]
    assert np.allclose(table[parts].sum(axis=1), table["bound.all"], rtol=1e-5)  # seven digits
    whole = table[table["rows"] == "whole"]
    assert {"vanilla", "sink", "sink-no-rotary"} <= set(whole["arm"])


def write_row(record):
    """A model's row in the table of docs/lab.md."""
    stored = "fetched" if record.name == "lab/smol-base" else f"{record.bytes / 1e6:.1f} MB"
    cells = (
        f"`{record.name}`",
        record.kind,
        ", ".join(part.replace("_", " ") for part in record.parts) or "–",
        f"{record.parameters / 1e6:.1f} M",
        stored,
        f"a delta of `{record.delta_of}`" if record.delta_of else "whole",
        "yes" if record.card else "no",
        f"`{record.needs}`" if record.needs else "in the package",
    )
    return f"| {' | '.join(cells)} |"


def test_every_model_on_board_stands_in_the_table_of_the_lab():
    """The rows are those that `write_row` gives, in the order of the zoo."""
    page = (RECIPE.parents[1] / "docs" / "lab.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `lab/")]
    assert rows == [write_row(describe_model(name)) for name in ALL]
    folders = {f"lab/{path.parent.name}" for path in MODELS.glob("*/config.json")}
    assert folders == set(ALL) - {"lab/smol-base"}


@pytest.mark.parametrize("name", NAMES + TALES + ANSWERS)
def test_a_description_is_of_the_network_that_is_loaded(name):
    record, loaded = describe_model(name), model(name)
    assert record.parameters == sum(tensor.numel() for tensor in loaded.network.parameters())
    assert record.kind == loaded.family.kind
    assert record.shape["positions"] == loaded.num_positions
    assert len(record.parts) == len(loaded.parts)
    assert record.weights in (loaded.digest, None)


def test_the_base_that_is_not_fetched_is_described_too(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHORWATCH_CACHE", str(tmp_path))
    base, delta = describe_model("lab/smol-base"), describe_model("lab/smol-sink")
    assert base.bytes is None
    assert base.needs == delta.needs == "anchorwatch fetch smol"
    assert (delta.delta_of, delta.parts) == ("lab/smol-arm", ("sink_token",))
