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
_NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "scheduler.bin")
"""What trainers leave beside the weights: pickled objects, never opened."""


def convert(source: str | Path, out: str | Path) -> Path:
    """Rewrite a folder's .bin files as one model.safetensors, and copy config and tokenizer."""
    source, out = Path(source), Path(out)
    if out.exists():
        raise WeightsError(f"{out} exists already: choose another folder")
    files = sorted(path for path in source.glob("*.bin") if path.name not in _NOT_WEIGHTS)
    if not files:
        raise WeightsError(f"{source} has no .bin file of weights: there is nothing to convert")
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


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        with warnings.catch_warnings():  # torch muses about pickle protocols
            warnings.simplefilter("ignore", UserWarning)
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise WeightsError(
            f"{path} holds more than tensors and was not run: expected a state dict"
        ) from error
    if not isinstance(content, dict) or not all(torch.is_tensor(v) for v in content.values()):
        raise WeightsError(f"{path} does not hold a dictionary of tensors: expected a state dict")
    return {str(name): tensor for name, tensor in content.items()}
