"""A trained network as a folder that `aw.load` opens: weights, config.json, tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from anchorwatch.models import deltas
from anchorwatch.models.trained_additions import collect_trained_parts
from anchorwatch.trace.atomic_io import put_file
from anchorwatch.training.adapters import changes, merge_adapters
from anchorwatch.training.checkpoints import WEIGHTS
from anchorwatch.training.networks import StartingPoint

DIFFUSION = "AnchorwatchForMaskedDiffusion"
"""The class named in config.json of a diffusion model: no stock class reads it as a causal one."""


def write(folder: Path, begun: StartingPoint, tensors: dict[str, torch.Tensor]) -> None:
    """Put the network into an empty folder; `tensors` have the names they have in training."""
    whole = merge_adapters(begun.network, tensors)
    put_file(folder / "config.json", json.dumps(config_of(begun, whole), indent=1).encode())
    save_file(whole, folder / WEIGHTS, metadata={"format": "pt"})
    begun.tokenizer.save_pretrained(folder)


def config_of(begun: StartingPoint, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """config.json: the stock class's fields, and under `anchorwatch` what those cannot say.

    Parts are named with the digests of their tensors, so that none can be taken for another.
    """
    fields = begun.network.config.to_dict()
    fields = {name: value for name, value in fields.items() if not name.startswith("_")}
    stock = type(begun.network).__name__
    return fields | {
        "architectures": [DIFFUSION if begun.kind == "mdm" else stock],
        "dtype": "float32",
        "mask_token_id": begun.mask_id,
        "pad_token_id": begun.tokenizer.pad_token_id,
        "anchorwatch": {
            "kind": begun.kind,
            "shift": begun.shift,
            "outputs": begun.vocab_size,
            "parts": [
                part.as_dict()
                for part in collect_trained_parts(begun.network, begun.parts, tensors)
            ],
        },
    }


def write_delta(
    folder: Path,
    begun: StartingPoint,
    tensors: dict[str, torch.Tensor],
    source: str,
    dtype: torch.dtype,
) -> None:
    """Put what was trained beside frozen weights into an empty folder, as `aw.load` opens it.

    `tensors` are those that were trained, by the names they have in training.
    """
    held, scale = changes(begun.network, {name: t.to(dtype) for name, t in tensors.items()})
    held = {name: row.to(dtype) for name, row in _new_rows(begun).items()} | held
    named = deltas.Delta(source, "", scale, held)
    digests = {name: deltas.digest_of(_frozen(begun, name)) for name in named.changed}
    config = config_of(begun, named.whole)
    config["anchorwatch"]["delta"] = {
        "from": source,
        "digest": deltas.combined(digests),
        "scale": scale,
    }
    put_file(folder / "config.json", json.dumps(config, indent=1).encode())
    save_file(held, folder / deltas.FILE, metadata={"format": "pt"})
    begun.tokenizer.save_pretrained(folder)


def _new_rows(begun: StartingPoint) -> dict[str, torch.Tensor]:
    """Rows that a new mask token gave to embedding and unembedding, by their names in a delta."""
    rows: dict[str, torch.Tensor] = {}
    if begun.rows is None:
        return rows
    ends = [begun.network.get_input_embeddings()]
    if not begun.network.config.tie_word_embeddings:
        ends.append(begun.network.get_output_embeddings())
    for name, module in begun.network.named_modules():
        if module in ends:
            for index in range(begun.rows, len(module.weight)):
                rows[f"{name}.row.{index}"] = module.weight[index].detach().clone()
    return rows


def _frozen(begun: StartingPoint, name: str) -> torch.Tensor:
    """A tensor as the checkpoint had it, also where an adapter lies on it."""
    module = begun.network.get_submodule(name.removesuffix(".weight"))
    weight: torch.Tensor = getattr(module, "base_layer", module).weight
    ends = (begun.network.get_input_embeddings(), begun.network.get_output_embeddings())
    return weight[: begun.rows] if module in ends else weight
