"""The two jobs behind `make lab` and `make variants`: train, export, measure; each can resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import export_model

from anchorwatch.models.load import load
from anchorwatch.models.model import Model
from anchorwatch.models.zoo import cards
from anchorwatch.trace.atomic_io import read_record, read_sealed, replace_file
from anchorwatch.training import variants
from anchorwatch.training.card_measures import Effort, flatten_measures, measure_model, plain_values
from anchorwatch.training.checkpoints import RUN
from anchorwatch.training.corpora import Corpus
from anchorwatch.training.loop import fit
from anchorwatch.training.spec import read
from anchorwatch.training.variants import VERSION

ROW = "row.json"
BASE = "stem"
"""The folder of the base checkpoint: a part of the digests of shipped models, so its name stays."""


def train_base(recipe: Path, runs: Path, name: str = BASE, more: tuple[str, ...] = ()) -> Path:
    """Train or resume the base checkpoint of the arms in `runs`/name; the run's folder."""
    return fit(read(recipe, more), runs / name).folder


def train_arm(recipe: Path, arm: str, runs: Path, more: tuple[str, ...] = ()) -> Path:
    """Train or resume an arm of the lab in `runs`/arm; the run's folder."""
    return fit(variants.read_arm(recipe, variants.LAB, arm, more), runs / arm).folder


def export_arm(arm: str, runs: Path, models: Path, more: tuple[str, ...] = ()) -> Path:
    """The finished run of an arm as a folder of the lab."""
    base = runs / BASE
    stem = export_model.build_record(base, BASE) if base.is_dir() else None
    return export_model.export(
        runs / arm, models / arm, arm, (*more, *variants.LAB[arm]), stem=stem
    )


def write_card(folder: Path, name: str, effort: Effort | None = None) -> dict[str, Any]:
    """Measure what lies in a lab folder and write its card; nothing of the run is needed."""
    model = load(folder, device="cpu")
    training = export_model.read_training_record(folder)
    card = {
        "name": name,
        "weights": model.digest,
        "parameters": sum(p.numel() for p in model.network.parameters()),
        "shape": _shape(model),
        "training": training,
        "measured": measure_model(model, _open_corpus(model, training["spec"]), effort),
    }
    plain: dict[str, Any] = plain_values(card)
    cards.write(folder, plain)
    return plain


def _shape(model: Model) -> dict[str, Any]:
    config = model.network.config
    return {
        "network": config.model_type,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "width": config.hidden_size,
        "positions": config.max_position_embeddings,
    }


def measure_variant(
    recipe: Path, arm: str, seed: int, runs: Path, effort: Effort, more: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Train and measure one arm with one seed: a row of the table, kept beside the run.

    A row that was measured before is read again, if spec, base checkpoint and effort are the same.
    """
    spec = variants.read_arm(recipe, variants.VARIANTS, arm, (*more, f"seed={seed}"))
    about = {"arm": arm, "seed": seed, "spec": spec.digest, "version": VERSION}
    folder = runs / f"{arm}-seed{seed}"
    kept = read_kept_row(folder, about, effort)
    if kept is not None and _starts_from(folder, spec.model.source):
        return kept
    done = fit(spec, folder)
    model = load(done.model, device="cpu")
    row = about | {
        "updates": done.updates,
        "tokens": done.tokens,
        "parameters": sum(p.numel() for p in model.network.parameters()),
        "loss": done.loss,
    }
    row |= flatten_measures(measure_model(model, _open_corpus(model, spec.as_dict()), effort))
    plain: dict[str, Any] = plain_values(row)
    replace_file(folder / ROW, (json.dumps(plain, indent=1) + "\n").encode())
    return plain


def _open_corpus(model: Model, spec: Mapping[str, Any]) -> Corpus:
    assert model.tokenizer is not None, "what we train has one"
    return export_model.open_corpus(spec, model.tokenizer)


def _starts_from(folder: Path, source: str | None) -> bool:
    """Whether a run began with the weights that lie at `source` now: a spec knows their path."""
    if not (folder / RUN).is_file():
        return False
    origin = None if source is None else load(source, dtype="float32", device="cpu").digest
    return bool(read_sealed(folder / RUN)["start"]["origin"] == origin)


def read_kept_row(folder: Path, about: Mapping[str, Any], effort: Effort) -> dict[str, Any] | None:
    """The row of a run that was measured as is asked now, or None."""
    if not (folder / ROW).is_file():
        return None
    row = read_record(folder / ROW)
    wanted = dict(about) | {f"effort.{name}": value for name, value in asdict(effort).items()}
    return row if all(row.get(name) == value for name, value in wanted.items()) else None
