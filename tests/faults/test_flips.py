"""Flipped bits and cut ends in every kind of file we write: named, or read as it was; no traceback.

tests/faults/test_store.py does the same to every file of a trace.
"""

import random
import shutil
import warnings
from functools import partial

import numpy as np
import pytest

import anchorwatch as aw
from anchorwatch import figures
from anchorwatch.errors import AnchorwatchError, AnchorwatchWarning
from anchorwatch.evaluation.grid import evaluate
from anchorwatch.evaluation.results import read_results
from anchorwatch.explorer.head_tables import read_table
from anchorwatch.metrics import table_files
from anchorwatch.models import zoo
from anchorwatch.models.zoo import cards
from anchorwatch.studies.evidence import EvidenceStore
from anchorwatch.trace import atomic_io
from anchorwatch.trace.store import Partial, Spec
from anchorwatch.training.log import Line, as_json, read_log
from strategies import load
from synthetic_traces import planted, uniform

HURTS = 40


def hurt(raw, rng):
    """The bytes with a bit flipped, or cut short."""
    at = rng.randrange(len(raw))
    if rng.random() < 0.3:
        return raw[:at]
    return raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :]


def survives(path, reader, same=None):
    """Hurt a file again and again; the reader names it, or (with `same`) finds what was there."""
    raw, rng, named = path.read_bytes(), random.Random(path.name), 0
    whole = reader()
    for _ in range(HURTS):
        path.write_bytes(hurt(raw, rng))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", AnchorwatchWarning)
                found = reader()
        except AnchorwatchError as error:
            named += 1
            assert path.name in str(error) or path.parent.name in str(error), error
        except AnchorwatchWarning as error:
            named += 1
            assert path.name in str(error)
        else:
            if same is not None:
                assert same(found, whole), f"{path.name} is read as something else"
    path.write_bytes(raw)
    return named


@pytest.fixture(scope="module")
def trace():
    return planted(uniform(2, 2, 2, 6), prompt=4)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    how = aw.decoding.LowConfidence(length=2, steps=1)
    options = {"contexts": "closed", "limit": 3, "decoding": how, "out": out}
    evaluate(load("tiny/llada"), "synthetic/one-hop", **options)
    return out


@pytest.mark.parametrize("name", ["manifest.json", "items.jsonl", "count.json"])
def test_results(results, name):
    (path,) = results.glob(f"*/{name}")
    named = survives(path, lambda: read_results(results).rows, lambda a, b: a.equals(b))
    assert named == HURTS


@pytest.mark.parametrize("kind", ["pdf", "png", "svg"])
def test_figures(trace, tmp_path, kind):
    """A picture may be changed; what it says of its origin may not."""
    path = figures.sink_map(trace, layer=1).save(tmp_path / f"a.{kind}")
    raw, record = path.read_bytes(), figures.whence(path)
    survives(path, partial(figures.whence, path), lambda a, b: a == b)
    inside = raw.index(b"sink_map")
    for bit in range(8):
        path.write_bytes(raw[:inside] + bytes([raw[inside] ^ 1 << bit]) + raw[inside + 1 :])
        try:
            assert figures.whence(path) == record  # its title is there too
        except AnchorwatchError as error:
            assert "does not say what made it" in str(error)


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_tables(trace, tmp_path, kind):
    table = aw.metrics.sinks(trace, by=("layer", "head"))
    path = table_files.save(table, tmp_path / f"t.{kind}")
    checked = kind == "json"  # of a .parquet its pages and its origin have a checksum, no more
    survives(path, lambda: read_table(path).rows, (lambda a, b: a.equals(b)) if checked else None)
    assert survives(path, lambda: table_files.read_origin(path), lambda a, b: a == b)


def test_evidence(tmp_path):
    path = tmp_path / "00000.json"
    store = EvidenceStore(tmp_path, None, None)
    store.keep(path, {"rows": [{"value": 0.1, "text": "é"}] * 5})
    assert survives(path, lambda: store.read_record(path), lambda a, b: a == b) == HURTS


@pytest.mark.parametrize(
    "name",
    ["run.json", "state-8.npz", "store/x/zarr.json", "store/x/c.0.0", "store/zarr.json"],
)
def test_unfinished_runs(tmp_path, name):
    spec = Spec(("step", "k"), (9, 200), "float32", {"units": "nats"})
    begun = Partial.create(tmp_path / "a.trace", {"x": spec}, {"seed": 4})
    begun.put(0, {"x": np.random.default_rng(0).random((8, 200), np.float32)})
    begun.save(8, {"total": np.arange(9)})
    begun.close()

    def resumed():
        going, done, arrays, head = Partial.open(tmp_path / "a.trace")
        try:
            values = np.asarray(going._arrays["x"][:done]).tobytes() if done else b""
            return done, {k: v.tolist() for k, v in arrays.items()}, head, values
        finally:
            going.close()

    def same(found, whole):
        return found == whole or (name == "state-8.npz" and found[0] == 0)

    survives(begun.path / name, resumed, same)


def test_logs_and_cards(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(
        as_json([Line(i + 1, 4.0 - i, 1e-3, 1.0, 50.0, 300 * (i + 1)) for i in range(4)])
    )
    assert survives(log, lambda: read_log(log))
    shutil.copyfile(zoo.folder_of("lab/toy-mdm") / cards.CARD, tmp_path / cards.CARD)
    survives(tmp_path / cards.CARD, lambda: cards.read(tmp_path))


def test_records_with_a_digest_say_when_they_were_changed():
    record = {"a": [1, 2.5, None], "b": {"c": "é"}}
    held = atomic_io.with_digest(record)
    assert atomic_io.without_digest(held) == record == atomic_io.without_digest(record)
    with pytest.raises(ValueError, match="does not agree with its own digest"):
        atomic_io.without_digest(held | {"a": [1, 2.5, 0]})
