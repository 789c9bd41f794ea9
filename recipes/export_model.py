"""A finished training run as a folder of the lab: half-precision weights, and how they were made.

    config.json, model.safetensors, tokenizer files    what `aw.load` opens
    training.json                                      spec, corpus, budget, loss curve
    card.json, README.md                               what was measured of these very weights

Weights are stored as float16 and computed in float32: what is measured is measured after rounding.
A network that was trained in bfloat16 may keep fewer binary digits, about as many as its products
were computed with: with seven the file packs to .72 of its size, with float16's eleven to .92.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase

from anchorwatch.errors import TrainingError
from anchorwatch.models.load import load
from anchorwatch.models.trained_additions import collect_trained_parts
from anchorwatch.trace.atomic_io import read_record, read_sealed
from anchorwatch.trace.locks import temporary, temporary_name
from anchorwatch.training.checkpoints import MODEL, RUN, WEIGHTS
from anchorwatch.training.corpora import Corpus
from anchorwatch.training.corpora import read_corpus as read_corpus
from anchorwatch.training.log import Line, read_log

TRAINING = "training.json"
POINTS = 60
"""Of a loss curve."""
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def export(
    run: str | Path,
    folder: str | Path,
    arm: str,
    settings: Sequence[str] = (),
    *,
    stem: Mapping[str, Any] | None = None,
    digits: int | None = None,
) -> Path:
    """Write the finished model of a run's folder into `folder`, which is replaced.

    `stem` is the record of the run that it goes on from, which its own record then names too.
    `digits` is how many binary digits weights keep; None: eleven, those of float16.
    """
    run, target = Path(run), Path(folder)
    if not (run / MODEL / WEIGHTS).is_file():
        raise TrainingError(f"{run} has no finished model: train it first, fit(spec, {str(run)!r})")
    target.parent.mkdir(parents=True, exist_ok=True)
    old = temporary_name(target).with_suffix(".old")
    try:
        with temporary(target, folder=True) as new:
            _round_weights(run / MODEL, new, digits)
            made_how = build_record(run, arm, settings)
            if stem is not None:
                made_how["stem"] = dict(stem)
            if digits is not None:
                made_how["digits"] = digits
            text = json.dumps(made_how, indent=1)
            (new / TRAINING).write_text(text + "\n", encoding="utf-8")
            if target.exists():
                target.rename(old)
            new.rename(target)
    finally:
        if old.exists() and not target.exists():
            old.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    return target


def _round_weights(source: Path, target: Path, digits: int | None) -> None:
    """The model with every tensor rounded; trained parts are named by their new digests."""
    model = load(source, device="cpu")
    stored = load_file(source / WEIGHTS)
    if digits is not None:
        stored = {name: round_digits(value, digits) for name, value in stored.items()}
    tensors = {name: value.half() for name, value in stored.items()}
    if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
        raise TrainingError(f"a weight of {source} is too large for float16: it cannot be shipped")
    config = read_record(source / "config.json")
    parts = collect_trained_parts(model.network, model.parts, tensors)
    config["anchorwatch"]["parts"] = [part.as_dict() for part in parts]
    save_file(tensors, target / WEIGHTS, metadata={"format": "pt"})
    (target / WEIGHTS).chmod(0o644)  # safetensors lets only its owner read
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    for name in _TOKENIZER:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def round_digits(values: torch.Tensor, digits: int) -> torch.Tensor:
    """The nearest values, in float32, that have so many binary digits."""
    mantissa, exponent = torch.frexp(values.float())  # mantissas are in [.5, 1)
    return torch.ldexp((mantissa * 2**digits).round() / 2**digits, exponent)


def build_record(run: Path, arm: str, settings: Sequence[str] = ()) -> dict[str, Any]:
    """How a run was new: arm, spec with its digest, corpus, budget, loss curve; plain values."""
    run_record = read_sealed(run / RUN)
    lines = read_log(run / "log.jsonl")
    spec = run_record["spec"]
    return {
        "arm": arm,
        "settings": list(settings),
        "spec": spec,
        "digest": hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest(),
        "corpus": run_record["corpus"],
        "seed": spec["seed"],
        "budget": sum_budget(lines),
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "loss": thin_loss_curve(lines),
    }


def sum_budget(lines: Sequence[Line]) -> dict[str, float]:
    """Updates, tokens read, and minutes of training, by the log's own clock."""
    tokens = np.diff([0, *(line.tokens for line in lines)])
    speed = np.array([line.tokens_per_second for line in lines])
    return {
        "updates": len(lines),
        "tokens": lines[-1].tokens,
        "minutes": round(float(np.sum(tokens / speed)) / 60, 1),
    }


def thin_loss_curve(lines: Sequence[Line], points: int = POINTS) -> dict[str, list[float]]:
    """Mean loss of equal stretches of the updates, and the update each ends with."""
    stretches = [part for part in np.array_split(np.arange(len(lines)), points) if len(part)]
    return {
        "update": [lines[part[-1]].update for part in stretches],
        "loss": [round(float(np.mean([lines[i].loss for i in part])), 4) for part in stretches],
    }


def read_training_record(folder: str | Path) -> dict[str, Any]:
    """What training.json of a lab folder says."""
    return read_record(Path(folder) / TRAINING)


def open_corpus(spec: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Corpus:
    """The corpus of a spec's fields, read with the tokenizer that the weights have."""
    given = ("mix", "seed", "crop")
    table = {name: spec["corpus"][name] for name in given if name in spec["corpus"]}
    return read_corpus(table, spec["length"], spec["seed"], tokenizer)
