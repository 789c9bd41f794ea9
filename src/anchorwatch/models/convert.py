"""The one place that reads pickled weights: tensors only (`weights_only=True`), to safetensors."""

from __future__ import annotations

import pickle
import shutil
import uuid
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file

from anchorwatch.errors import WeightsError

_BESIDE = ("*.json", "*.txt", "*.model", "*.jinja")
_PICKLED = (".bin", ".pt", ".pth")
_NOT_WEIGHTS = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")
"""What trainers leave beside the weights: pickled objects, never opened."""


def convert(source: str | Path, out: str | Path) -> Path:
    """Rewrite pickled weights as one model.safetensors, and copy config and tokenizer.

    `source` is a folder with .bin, .pt or .pth files (the first kind it has), or one such file.
    """
    source, out = Path(source).expanduser(), Path(out).expanduser()
    if out.exists():
        raise WeightsError(f"{out} exists already: choose another folder")
    files = _pickled(source)
    source = source.parent if source.is_file() else source
    tensors: dict[str, torch.Tensor] = {}
    for path in files:
        for name, tensor in _tensors(path).items():
            if name in tensors:
                raise WeightsError(f"{name} is in two files of {source}: expected it once")
            tensors[name] = tensor.clone().contiguous()  # tied tensors share memory in a pickle
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}.tmp")
    partial.mkdir()
    try:
        save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
        for pattern in _BESIDE:
            for path in source.glob(pattern):
                if not path.name.endswith(".index.json"):
                    shutil.copyfile(path, partial / path.name)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return out


def _pickled(source: Path) -> list[Path]:
    if source.is_file() and source.suffix in _PICKLED:
        return [source]
    if not source.is_dir():
        raise WeightsError(
            f"there is no folder {source}: give a folder with {', '.join(_PICKLED)} files, or one "
            "such file"
        )
    for suffix in _PICKLED:
        found = sorted(source.glob(f"*{suffix}"))
        if found := [path for path in found if not path.stem.startswith(_NOT_WEIGHTS)]:
            return found
    raise WeightsError(
        f"{source} has no {', '.join(_PICKLED)} file of weights: there is nothing to convert"
    )


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        with warnings.catch_warnings():  # torch muses about pickle protocols
            warnings.simplefilter("ignore", UserWarning)
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise WeightsError(
            f"{path} holds more than tensors and was not run: expected a state dict"
        ) from error
    for inner in ("model", "state_dict"):  # trainers put the weights beside their own state
        if isinstance(content, dict) and isinstance(content.get(inner), dict):
            content = content[inner]
    if not isinstance(content, dict) or not all(torch.is_tensor(v) for v in content.values()):
        raise WeightsError(f"{path} does not hold a dictionary of tensors: expected a state dict")
    return {str(name): tensor for name, tensor in content.items()}
