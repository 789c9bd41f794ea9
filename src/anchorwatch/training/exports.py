"""A trained network as a folder that `aw.load` opens: weights, config.json, tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from anchorwatch.models.variants import trained
from anchorwatch.trace.atomic_io import put_file
from anchorwatch.training.adapters import merged
from anchorwatch.training.checkpoints import WEIGHTS
from anchorwatch.training.networks import Start

DIFFUSION = "AnchorwatchForMaskedDiffusion"
"""The class named in config.json of a diffusion model: no stock class reads it as a causal one."""


def write(folder: Path, begun: Start, tensors: dict[str, torch.Tensor]) -> None:
    """Put the network into an empty folder; `tensors` have the names they have in training."""
    whole = merged(begun.network, tensors)
    put_file(folder / "config.json", json.dumps(config_of(begun, whole), indent=1).encode())
    save_file(whole, folder / WEIGHTS, metadata={"format": "pt"})
    begun.tokenizer.save_pretrained(folder)


def config_of(begun: Start, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
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
            "parts": [part.as_dict() for part in trained(begun.network, begun.parts, tensors)],
        },
    }
