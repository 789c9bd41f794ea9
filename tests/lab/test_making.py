"""From a run to a folder of the lab, its card, and a row of the table; what arms differ in."""

import importlib.util
import json
import re
import shutil
from pathlib import Path

import export_model
import make_models
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import anchorwatch as aw
from anchorwatch.errors import SpecError, TrainingError
from anchorwatch.models.zoo import cards
from anchorwatch.training import card_measures as measure
from anchorwatch.training import variants
from anchorwatch.training.log import Line
from lab_toys import RECIPE, TOY

SMALL = measure.Effort(examples=6, draws=1, items=3, prompts=5, texts=2, steps=3)


def test_arms_differ_only_in_their_settings():
    specs = {arm: variants.read_arm(RECIPE, variants.LAB, arm).as_dict() for arm in variants.LAB}
    base = specs["toy-mdm"]
    assert base["variant"] == [] and base["objective"]["name"] == "diffusion"
    for arm, changed in {
        "toy-sink": "variant",
        "toy-gate": "variant",
        "toy-arm": "objective",
    }.items():
        differ = {name for name in base if base[name] != specs[arm][name]}
        assert differ == {changed}, arm
    objectives = base["objective"], specs["toy-arm"]["objective"]
    differ = {name for name in objectives[0] if objectives[0][name] != objectives[1][name]}
    assert "name" in differ and differ <= {"name", *variants.NOISE}
    assert [part["name"] for part in specs["toy-sink"]["variant"]] == ["sink_token"]
    gate = {"name": "gate", "form": "elementwise", "init": "identity"}
    assert specs["toy-gate"]["variant"] == [gate]


@pytest.mark.parametrize("arm", variants.VARIANTS)
def test_variants_differ_only_in_their_parts(arm):
    recipe = RECIPE.with_name("variants.toml")
    base = variants.read_arm(recipe, variants.VARIANTS, "vanilla", ("seed=4",)).as_dict()
    spec = variants.read_arm(recipe, variants.VARIANTS, arm, ("seed=4",)).as_dict()
    assert {name for name in base if base[name] != spec[name]} <= {"variant"}
    assert (arm == "vanilla") == (base["variant"] == spec["variant"])
    assert spec["seed"] == 4


def test_next_token_leaves_the_noise_of_a_recipe_out(tmp_path):
    text = RECIPE.read_text().replace("[objective]", '[objective]\nt = "uniform"')
    recipe = tmp_path / "noisy.toml"
    recipe.write_text(text)
    mdm, arm = (
        variants.read_arm(recipe, variants.LAB, name).objective for name in ("toy-mdm", "toy-arm")
    )
    assert (mdm.masks, mdm.t) == ("counted", "uniform")
    assert (arm.name, arm.answer_only) == ("next_token", mdm.answer_only)
    assert (arm.masks, arm.t) == ("single", "stratified")


BROKEN = {
    "a bracket that is open": ("[objective", "is not TOML"),
    "a key without end": ("a." * 200 + "b = 1", "a key has 100 parts or more"),
    "a value for a table": ("objective = 3\n", "objective is a value and holds no name"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_recipe_is_refused_in_words(kind, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the script goes to the repository
    text, says = BROKEN[kind]
    recipe = tmp_path / "broken.toml"
    recipe.write_text(text)
    with pytest.raises(SpecError, match=says):
        variants.read_arm(recipe, variants.LAB, "toy-arm")
    script = load_script("lab")
    words = ["--base", str(recipe), "--runs", str(tmp_path / "runs"), "--only", "train"]
    assert script.main(words) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and "Traceback" not in printed


def test_a_recipe_that_is_not_there(tmp_path):
    with pytest.raises(SpecError, match=r"give a SPEC\.toml"):
        variants.read_arm(tmp_path / "none.toml", variants.LAB, "toy-arm")


def load_script(name):
    """A script of recipes/ as a module."""
    spec = importlib.util.spec_from_file_location(
        f"recipe_of_{name}", RECIPE.with_name(f"{name}.py")
    )
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_an_arm_that_is_none():
    with pytest.raises(
        SpecError, match="no arm 'mdn': expected toy-mdm, toy-sink, toy-gate, toy-arm"
    ):
        variants.read_arm(RECIPE, variants.LAB, "mdn")


@pytest.mark.parametrize("arm", ["toy-sink", "toy-gate", "toy-arm"])
def test_what_is_exported_is_the_run_rounded_once(runs, models, arm):
    stored = load_file(models / arm / "model.safetensors")
    trained = load_file(runs / arm / "model" / "model.safetensors")
    assert stored.keys() == trained.keys()
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    assert all(torch.equal(stored[name], trained[name].half()) for name in stored)
    model = aw.load(models / arm)
    assert model.network.dtype == torch.float32
    held = model.network.state_dict()
    assert all(torch.equal(held[name], stored[name].float()) for name in stored)
    names = {"toy-sink": ["sink_token"], "toy-gate": ["gate"], "toy-arm": []}[arm]
    assert [type(part).__name__ for part in model.parts] == names
    assert model.family.kind == ("arm" if arm == "toy-arm" else "mdm")


@pytest.mark.parametrize("digits", [7, 8, 11])
def test_weights_may_keep_fewer_digits(runs, tmp_path, digits):
    folder = export_model.export(
        runs / "toy-sink", tmp_path / "toy-sink", "toy-sink", digits=digits
    )
    stored, trained = (
        load_file(path / "model.safetensors") for path in (folder, runs / "toy-sink" / "model")
    )
    assert {value.dtype for value in stored.values()} == {torch.float16}
    for name, value in stored.items():
        normal = value.abs() >= torch.finfo(torch.float16).smallest_normal
        kept, full = value[normal].double(), trained[name][normal].double()
        half_a_digit = 2.0**-digits * 2 ** full.abs().log2().floor()
        assert ((kept - full).abs() <= half_a_digit).all()
        mantissa = torch.frexp(kept)[0] * 2**digits
        assert torch.equal(mantissa, mantissa.round()), "no more digits than that"
    assert export_model.read_training_record(tmp_path / "toy-sink")["digits"] == digits
    assert aw.load(folder).parts, "the added part is named by its rounded tensors"


def test_rounding_to_digits_is_that_of_the_types_that_have_them():
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(export_model.round_digits(values, 8), values.bfloat16().float())
    assert torch.equal(export_model.round_digits(values, 24), values)


def test_the_record_says_how_it_was_made(runs, models):
    made = export_model.read_training_record(models / "toy-sink")
    spec = variants.read_arm(RECIPE, variants.LAB, "toy-sink", TOY)
    assert made["digest"] == spec.digest
    assert made["settings"] == [*TOY, *variants.LAB["toy-sink"]]
    assert made["budget"]["updates"] == 4
    assert made["corpus"]["vocabulary"] == 600
    assert len(made["loss"]["loss"]) == 4
    model = aw.load(models / "toy-sink")
    again = export_model.open_corpus(made["spec"], model.tokenizer)
    said = {name: held for name, held in made["corpus"].items() if name != "digest"}
    assert json.loads(json.dumps(again.describe())) == said, "the corpus can be read again"


def test_the_record_and_the_card_name_the_stem(runs, tmp_path):
    shutil.copytree(runs / "toy-arm", tmp_path / "runs" / "stem")
    shutil.copytree(runs / "toy-gate", tmp_path / "runs" / "toy-gate")
    folder = make_models.export_arm("toy-gate", tmp_path / "runs", tmp_path / "models", TOY)
    made = export_model.read_training_record(folder)
    assert made["stem"] == export_model.build_record(runs / "toy-arm", "stem")
    assert made["stem"]["spec"]["objective"]["name"] == "next_token"
    card = make_models.write_card(folder, "lab/toy-gate", SMALL)
    said = f"| goes on from | recipes/lab-stem.toml: next_token, 4 updates, {made['stem']['budget']['tokens']:,} tokens"
    assert said in cards.words(card)
    assert card["shape"]["layers"] == 2 and "2 layers of 4 heads" in cards.words(card)


def test_arms_go_on_from_a_stem_of_their_own_seed(tmp_path):
    """The recipes name the stem's folder; its seed and size are the stem's own affair."""
    stem = make_models.train_base(
        RECIPE.with_name("variants-stem.toml"), tmp_path, "stem-seed3", TOY
    )
    source = f'model.from="{(stem / "model").as_posix()}"'
    spec = variants.read_arm(
        RECIPE.with_name("variants.toml"), variants.VARIANTS, "sink", (source,)
    )
    assert spec.model.source == (stem / "model").as_posix()
    model = aw.load(stem / "model")
    assert model.family.kind == "arm" and model.network.config.num_hidden_layers == 2


def test_minutes_and_curves_by_hand():
    lines = [Line(i + 1, 4.0 - i, 1e-3, 1.0, 50.0 * (1 + i % 2), 300 * (i + 1)) for i in range(4)]
    assert export_model.sum_budget(lines) == {"updates": 4, "tokens": 1200, "minutes": 0.3}
    assert export_model.thin_loss_curve(lines, 2) == {"update": [2, 4], "loss": [3.5, 1.5]}


def test_a_run_that_has_not_finished(tmp_path):
    with pytest.raises(TrainingError, match="no finished model: train it first"):
        export_model.export(tmp_path, tmp_path / "model", "mdm")
    assert not (tmp_path / "model").exists()


def test_an_export_that_fails_leaves_the_old_one(runs, tmp_path, monkeypatch):
    old = make_models.export_arm("toy-arm", runs, tmp_path)
    kept = {path.name: path.read_bytes() for path in old.iterdir()}
    renamed = Path.rename

    def failing(self, target):
        if Path(target) == old and self.suffix == ".tmp":
            raise OSError("no space left")
        return renamed(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="no space left"):
        make_models.export_arm("toy-arm", runs, tmp_path)
    assert {path.name: path.read_bytes() for path in old.iterdir()} == kept
    assert [path.name for path in tmp_path.iterdir()] == ["toy-arm"]


def test_exporting_again_replaces(runs, tmp_path):
    (tmp_path / "toy-arm").mkdir()
    (tmp_path / "toy-arm" / "stale.txt").write_text("old")
    make_models.export_arm("toy-arm", runs, tmp_path)
    assert not (tmp_path / "toy-arm" / "stale.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["toy-arm"]


@pytest.fixture(scope="module")
def card(models):
    return make_models.write_card(models / "toy-sink", "lab/toy-sink", SMALL)


def test_a_card_is_numbers_and_words_made_from_them(models, card):
    folder = models / "toy-sink"
    assert cards.read(folder) == card
    assert (folder / "README.md").read_text() == cards.words(card)
    assert card["weights"] == aw.load(folder).digest
    text = cards.words(card)
    assert "nan" not in text.lower().split()
    assert f"{card['measured']['bound']['all']['value']:.2f}" in text
    for said in (
        "two hops, both gold passages",
        "trigger-copy",
        "log V",
        "attention on added keys",
    ):
        assert said in text, said
    assert "mean gate" not in text, "this model has none"
    changed = json.loads(json.dumps(card))
    changed["measured"]["answers"]["gold"]["value"] = 0.123
    assert "| one hop, gold passage | 0.123 |" in cards.words(changed)


def test_a_card_needs_only_its_folder_and_comes_out_the_same(models, card, tmp_path):
    copy = shutil.copytree(models / "toy-sink", tmp_path / "elsewhere")
    again = make_models.write_card(copy, "lab/toy-sink", SMALL)
    assert again == card


def test_a_row_that_was_measured_is_kept(tmp_path):
    recipe = RECIPE.with_name("variants.toml")
    row = make_models.measure_variant(recipe, "off-by-one", 3, tmp_path, SMALL, TOY)
    assert (row["arm"], row["seed"], row["updates"]) == ("off-by-one", 3, 4)
    assert np.isfinite(row["noisy.t.0.5.sink_mass"])
    kept = tmp_path / "off-by-one-seed3" / make_models.ROW
    kept.write_text(json.dumps(row | {"loss": -1.0}))
    assert (
        make_models.measure_variant(recipe, "off-by-one", 3, tmp_path, SMALL, TOY)["loss"] == -1.0
    )
    about = {name: row[name] for name in ("arm", "seed", "spec", "version")}
    more = measure.Effort(examples=7)
    assert make_models.read_kept_row(kept.parent, about, more) is None
    assert make_models.read_kept_row(kept.parent, about | {"version": 99}, SMALL) is None


def test_a_row_is_not_kept_when_its_stem_has_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(
        make_models, "measure_model", lambda model, corpus, effort: {"effort": vars(effort)}
    )
    stem, runs = RECIPE.with_name("variants-stem.toml"), tmp_path / "runs"
    folder = make_models.train_base(stem, tmp_path, "stem", (*TOY, "updates=1"))
    mix = 'corpus={mix = [{kind = "backcopy"}]}'
    more = (*TOY[:3], f'model={{from = "{(folder / "model").as_posix()}"}}', mix)
    asked = RECIPE.with_name("variants.toml"), "vanilla", 0, runs, SMALL, more
    row = make_models.measure_variant(*asked)
    kept = runs / "vanilla-seed0" / make_models.ROW
    kept.write_text(json.dumps(row | {"loss": -1.0}))
    assert make_models.measure_variant(*asked)["loss"] == -1.0
    shutil.rmtree(folder)
    make_models.train_base(stem, tmp_path, "stem", (*TOY, "updates=1", "seed=5"))
    with pytest.raises(SpecError, match=r"another run's folder .*start.origin is"):
        make_models.measure_variant(*asked)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_arms_go_on_from_the_stem_that_the_recipe_has_trained(elsewhere, tmp_path, monkeypatch):
    recipe = load_script("lab")
    stems, sources = [], []

    def train_arm(recipe, arm, runs, more):
        sources.append(
            Path(variants.read_arm(recipe, variants.LAB, arm, more).model.source).resolve()
        )

    monkeypatch.setattr(make_models, "train_base", lambda recipe, runs: stems.append(runs / "stem"))
    monkeypatch.setattr(make_models, "train_arm", train_arm)
    monkeypatch.chdir(tmp_path)  # the recipe goes elsewhere
    recipe.main(["--only", "train", *(["--runs", str(tmp_path / "mine")] if elsewhere else [])])
    assert set(sources) == {(stems[0] / "model").resolve()} and len(sources) == len(variants.LAB)
    assert elsewhere == (stems[0].parent == tmp_path / "mine")


def test_recipes_are_the_commands_of_make():
    text = (Path(RECIPE).parents[1] / "Makefile").read_text()
    for target, script in (("lab", "recipes/lab.py"), ("variants", "recipes/variants.py")):
        assert re.search(rf"^{target}: .*\n\t.*{script}$", text, re.MULTILINE)
        assert (Path(RECIPE).parents[1] / script).is_file()
