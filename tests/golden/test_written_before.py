"""What an earlier tree wrote still reads, bit for bit: traces, results, a trained model, evidence.

`written_before/files.zip` was written before the modules moved into packages; `expected.json` has
the digests that the earlier tree read from it, `evidence_needs.json` what each claim asked for (the
name of an evidence folder is a digest of it).
"""

import hashlib
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch.studies.papers import claims
from anchorwatch.trace.atomic_io import read_sealed
from anchorwatch.training import variants

HERE = Path(__file__).parent / "written_before"
EXPECTED = json.loads((HERE / "expected.json").read_text())


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("written_before")
    with zipfile.ZipFile(HERE / "files.zip") as files:
        files.extractall(path)
    return path


@pytest.mark.parametrize("name", EXPECTED["traces"])
def test_a_trace_reads_bit_for_bit(folder, name):
    trace, expected = aw.read(folder / f"{name}.trace"), EXPECTED["traces"][name]
    assert {field: sha256(trace[field].values) for field in trace} == expected["fields"]
    assert sha256(trace.canvas) == expected["canvas"]
    assert trace.digest() == expected["digest"]


def test_a_trained_model_is_the_same_network(folder):
    description = aw.load(str(folder / "trained" / "model")).describe()
    assert {name: description[name] for name in EXPECTED["model"]} == EXPECTED["model"]


def test_a_finished_training_run_is_recognised(folder, tmp_path):
    copy = shutil.copytree(folder / "trained", tmp_path / "trained")
    before = (copy / "model" / "model.safetensors").read_bytes()
    run = aw.training.fit(folder / "first.toml", copy)
    assert run.updates == 4
    assert (copy / "model" / "model.safetensors").read_bytes() == before


def test_specs_have_the_digests_that_the_table_of_variants_was_made_with():
    """A row of the table is kept, not trained again, while the digest of its spec is the same."""
    recipe = Path(__file__).parents[2] / "recipes" / "variants.toml"
    table = aw.lab.variants()
    for arm, seed, digest in zip(table["arm"], table["seed"], table["spec"], strict=True):
        source = f'model.from="runs/variants/stem-seed{seed}/model"'
        settings = (source, f"corpus.seed={1000 + seed}", f"seed={seed}")
        assert variants.read_arm(recipe, variants.VARIANTS, arm, settings).digest == digest


def test_results_of_an_evaluation_read_the_same(folder):
    rows = aw.evaluation.read_results(folder / "results").rows
    digest = hashlib.sha256(rows.to_json(orient="records").encode()).hexdigest()
    assert digest == EXPECTED["results"]


def test_a_unit_of_evidence_is_read(folder):
    assert {"layers", "table"} <= read_sealed(folder / "effect_unit.json").keys()


def test_evidence_is_asked_for_in_the_same_words():
    """Evidence that was collected is found again: its folder is named by what was asked for.

    Claims may ask for other evidence than they did; a kind of need that was known then has no
    other fields, and most of what was asked for still is.
    """

    def spelled(need):
        return json.dumps(need, sort_keys=True)

    before = json.loads((HERE / "evidence_needs.json").read_text())
    old = {spelled(need): need for needs in before.values() for need in needs}
    new = {spelled(spec.as_dict()): spec.as_dict() for claim in claims() for spec in claim.needs}
    fields = {need["need"]: need.keys() for need in old.values()}
    for need in new.values():
        assert need.keys() == fields.get(need["need"], need.keys()), need
    assert len(old.keys() & new.keys()) > len(old) / 2
