"""Other files of weights rewritten as safetensors: pickles and GGUF.

The one place that reads pickled weights: tensors only (`weights_only=True`).
"""

from __future__ import annotations

import json
import pickle
import shutil
import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from anchorwatch.errors import WeightsError
from anchorwatch.trace.atomic_io import COMMIT, commit, stage_folder

_BESIDE = ("*.json", "*.txt", "*.model", "*.jinja")
_PICKLED = (".bin", ".pt", ".pth")
_NOT_WEIGHTS = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")
"""What trainers leave beside the weights: pickled objects, never opened."""


def convert(source: str | Path, out: str | Path) -> Path:
    """Rewrite pickled or GGUF weights as one model.safetensors, and copy config and tokenizer.

    Beside them is a record of every byte, which `aw.load` compares.

    `source` is a folder with .bin, .pt or .pth files (the first kind it has), one such file, or a
    .gguf file, whose weights are dequantised and kept in float16.
    """
    source, out = Path(source).expanduser(), Path(out).expanduser()
    if out.exists():
        raise WeightsError(f"{out} exists already: choose another folder")
    if source.suffix == ".gguf":
        return _convert_gguf(source, out)
    # 1. What is read and copied; nothing that a link leads out of the folder.
    files = _find_pickles(source)
    named = source.is_file()  # a file that is named may be a link: whoever names it chose it
    source = source.parent if named else source
    beside = [
        path
        for pattern in _BESIDE
        for path in sorted(source.glob(pattern))
        if not path.name.endswith(".index.json") and path.name != COMMIT
    ]
    for path in beside if named else (*files, *beside):
        _refuse_outside(path, source)
    # 2. Every tensor once, in memory of its own: pickles share storage, safetensors cannot.
    tensors: dict[str, torch.Tensor] = {}
    for path in files:
        for name, tensor in _tensors(path).items():
            if name in tensors:
                raise WeightsError(f"{name} is in two files of {source}: expected it once")
            tensors[name] = _plain(name, path, tensor)
    # 3. Written whole or not at all, with a record of every byte.
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with stage_folder(out) as folder:
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
            for path in beside:
                shutil.copyfile(path, folder / path.name)
            commit(folder)
    except SafetensorError as error:
        raise WeightsError(f"{source} cannot be kept as safetensors ({error})") from error
    return out


def _convert_gguf(source: Path, out: Path) -> Path:
    """The dequantised weights of a GGUF file in float16, its config and its tokenizer."""
    from anchorwatch.models.load import load

    model = load(source, dtype="float32", device="cpu")
    config, family = model.network.config, model.family
    if family.name == "llada-moe":
        raise WeightsError(
            f"{source} is a mixture, whose experts GGUF stacks: load it as it is, or convert the "
            "released safetensors"
        )
    if hasattr(config, "quantization_config"):  # the weights are no longer quantised
        del config.quantization_config
    out.parent.mkdir(parents=True, exist_ok=True)
    with stage_folder(out) as folder:
        model.network.half().save_pretrained(folder)
        if model.tokenizer is not None:
            model.tokenizer.save_pretrained(folder)
        # float16 is how the file keeps them; it computes in float32, as the GGUF file does.
        path = folder / "config.json"
        written = json.loads(path.read_text(encoding="utf-8")) | {"dtype": "float32"}
        if family.kind == "mdm":  # the stock class would be read as a causal LM
            written |= {"architectures": [family.architectures[0]]}
            written |= {"model_type": family.model_types[0], "mask_token_id": model.mask_id}
        path.write_text(json.dumps(written, indent=1), encoding="utf-8")
        commit(folder)
    return out


def _find_pickles(source: Path) -> list[Path]:
    if source.is_file() and source.suffix in _PICKLED:
        return [source]
    if not source.is_dir():
        raise WeightsError(
            f"there is no folder {source}: give a folder with {', '.join(_PICKLED)} files, one "
            "such file, or a .gguf file"
        )
    for suffix in _PICKLED:
        pickles = sorted(source.glob(f"*{suffix}"))
        if pickles := [path for path in pickles if not path.stem.startswith(_NOT_WEIGHTS)]:
            return pickles
    raise WeightsError(
        f"{source} has no {', '.join(_PICKLED)} file of weights: there is nothing to convert"
    )


def _refuse_outside(path: Path, folder: Path) -> None:
    """Refuse links out of the folder, and what is no file; the hub's cache links to its blobs."""
    target, home = path.resolve(), folder.resolve()
    inside = [home]
    if home.parent.name == "snapshots":
        inside.append(home.parent.parent / "blobs")
    if not any(target.is_relative_to(parent) for parent in inside):
        raise WeightsError(
            f"{path} is a link to {target}, out of the folder: put the file itself there"
        )
    if not target.is_file():
        raise WeightsError(f"{path} is no ordinary file: remove it, or put a file there")


def _plain(name: str, path: Path, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in memory of its own, as safetensors keeps it; tied ones share it in a pickle."""
    kind = str(tensor.layout).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "quantised" if tensor.is_quantized else "empty" if tensor.is_meta else kind
        raise WeightsError(
            f"{name} in {path} is {kind}: expected a dense tensor, save its to_dense() there"
        )
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise WeightsError(
            f"{name} in {path} has {tensor.numel()} numbers, more than the file holds: "
            "save its contiguous() there"
        )
    return tensor.clone().contiguous()


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
