"""Low-rank adapters by peft, injected in place: the network stays the stock class."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from anchorwatch.errors import SpecError
from anchorwatch.training import initial
from anchorwatch.training.spec import Lora

_NAME = "default"
"""peft's own name for a first adapter; it stands in every tensor's name."""


def adapt(network: PreTrainedModel, lora: Lora, seed: int, *, embeddings: bool) -> None:
    """Freeze the network and give it adapters, whose first values derive from their names.

    To be called before parts are attached, so that their hooks see the adapted projections.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError:
        raise SpecError("lora needs peft: pip install 'anchorwatch[train]'") from None
    names = {name.rpartition(".")[2] for name, _ in network.named_modules()}
    if unknown := sorted(set(lora.targets) - names):
        raise SpecError(
            f"lora.targets names {unknown[0]}, which this network has not: "
            f"expected some of {', '.join(sorted(n for n in names if n.endswith('_proj')))}"
        )
    network.requires_grad_(False)
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.targets), lora_dropout=0.0
    )
    inject_adapter_in_model(config, network, adapter_name=_NAME)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if ".lora_A." in name:  # B begins at zero: the adapted network begins as the plain one
                first = initial.drawn(seed, name, tuple(parameter.shape))
                parameter.copy_(first / parameter.shape[1] ** 0.5)
    if embeddings if lora.embeddings is None else lora.embeddings:
        network.get_input_embeddings().requires_grad_(True)
        network.get_output_embeddings().requires_grad_(True)


@torch.no_grad()
def merged(network: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under stock names, each adapter added to the weight it adapts."""
    whole = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in tensors.items()
        if ".lora_" not in name
    }
    for name, module in network.named_modules():
        if f"{name}.lora_A.{_NAME}.weight" in tensors:
            down, up = (tensors[f"{name}.lora_{one}.{_NAME}.weight"] for one in "AB")
            plain = whole[f"{name}.weight"]
            whole[f"{name}.weight"] = plain + module.scaling[_NAME] * (up @ down).to(plain.dtype)
    return whole
