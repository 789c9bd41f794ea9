"""Low-rank adapters by peft, injected in place: the network stays the stock class."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

import torch
from transformers import PreTrainedModel

from anchorwatch.errors import SpecError
from anchorwatch.models import deltas
from anchorwatch.models.checkpoint import open_checkpoint
from anchorwatch.training import noise
from anchorwatch.training.spec import Lora

ROW = "mask_row"
"""The mask token's embedding where it alone is trained: a parameter of the embedding."""
_NAME = "default"
"""peft's own name for a first adapter; it stands in every tensor's name."""


def add_adapters(
    network: PreTrainedModel,
    lora: Lora,
    seed: int,
    *,
    embeddings: bool,
    mask_id: int | None = None,
    full: Container[str] = (),
) -> None:
    """Freeze the network and give it adapters, whose first values derive from their names.

    To be called before parts are attached, so that their hooks see the adapted projections. Tensors
    of a checkpoint's parts (`full`) are trained in full and have none.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError:
        raise SpecError("lora needs peft: pip install 'anchorwatch[train]'") from None
    # 1. Freeze everything, then put adapters on the named linear layers.
    _check_targets(network, lora, full)
    _check_rank(network, lora)
    network.requires_grad_(False)
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.targets), lora_dropout=0.0
    )
    inject_adapter_in_model(config, network, adapter_name=_NAME)
    # 2. First values by name, as every tensor has them: arms of a comparison share theirs.
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if ".lora_A." in name:  # B begins at zero: the adapted network begins as the plain one
                first = noise.draw_normal(seed, name, tuple(parameter.shape))
                parameter.copy_(first / parameter.shape[1] ** 0.5)
    # 3. Embeddings: the mask token's row alone, all rows, or none.
    if lora.embeddings == "mask":
        if mask_id is None:
            raise SpecError("lora.embeddings = 'mask' needs a mask token: use diffusion")
        _train_mask_row(network, mask_id)
    elif embeddings if lora.embeddings is None else lora.embeddings:
        network.get_input_embeddings().requires_grad_(True)
        network.get_output_embeddings().requires_grad_(True)


def read_first_adapters(network: PreTrainedModel, lora: Lora, base: str) -> str | None:
    """Fill new adapters with those of the delta `lora.from`; its digest, None where none is named.

    It must change the same checkpoint in the same places, with adapters of the same rank and scale.
    """
    if lora.source is None:
        return None
    changes = open_checkpoint(lora.source).changes[-1:]
    if not changes or changes[0].source != base:
        kind = f"a delta of {changes[0].source}" if changes else "no delta"
        raise SpecError(
            f"lora.from: {lora.source} is {kind}, and the run begins with {base}: give a delta of "
            "that checkpoint, or leave lora.from out"
        )
    delta = changes[0]
    trained = {name: value for name, value in network.named_parameters() if value.requires_grad}
    first, scale = collect_changes(network, trained)
    # A delta may also hold rows that a new mask token was given, which are not trained.
    given = {name for name in delta.tensors if name in first or ".row." not in name}
    odd = sorted(first.keys() ^ given) or sorted(
        name for name in first if first[name].shape != delta.tensors[name].shape
    )
    if odd or scale != delta.scale:
        raise SpecError(
            f"lora.from: {lora.source} has other adapters ({odd[0] if odd else 'alpha'}) than this "
            "run: give lora the rank, alpha, targets and embeddings that it was trained with"
        )
    with torch.no_grad():
        for name, parameter in first.items():
            parameter.copy_(delta.tensors[name])
    return deltas.combine_digests({name: deltas.digest_of(delta.tensors[name]) for name in first})


def _train_mask_row(network: PreTrainedModel, mask_id: int) -> None:
    """Train one row of the embedding, and of a head that is tied to it; all others stay frozen."""
    embedding, head = network.get_input_embeddings(), network.get_output_embeddings()
    row = torch.nn.Parameter(embedding.weight[mask_id].detach().clone())
    embedding.register_parameter(ROW, row)
    embedding.mask_id = mask_id

    def embed(_: Any, given: tuple[torch.Tensor, ...], states: torch.Tensor) -> torch.Tensor:
        return torch.where((given[0] == mask_id)[..., None], row.to(states.dtype), states)

    def say(_: Any, given: tuple[torch.Tensor, ...], logits: torch.Tensor) -> torch.Tensor:
        column = given[0].to(logits.dtype) @ row.to(logits.dtype)
        return logits.index_copy(-1, torch.tensor([mask_id]), column[..., None])

    embedding.register_forward_hook(embed)
    if network.config.tie_word_embeddings:
        head.register_forward_hook(say)


def _check_targets(network: PreTrainedModel, lora: Lora, full: Container[str]) -> None:
    """Refuse what is no linear layer, and a head that is the embedding: neither can be merged."""
    kinds: dict[str, list[bool]] = {}
    tied = network.get_output_embeddings() if network.config.tie_word_embeddings else None
    for name, module in network.named_modules():
        fits = isinstance(module, torch.nn.Linear) and f"{name}.weight" not in full
        kinds.setdefault(name.rpartition(".")[2], []).append(fits and module is not tied)
    work = sorted(name for name, fits in kinds.items() if all(fits))
    for name in lora.targets:
        if name not in work:
            why = "which this network has not"
            if name in kinds:
                why = "which is no linear layer, is tied to another, or is a part trained in full"
            raise SpecError(f"lora.targets names {name}, {why}: expected some of {', '.join(work)}")


def _check_rank(network: PreTrainedModel, lora: Lora) -> None:
    """Refuse a rank that is more than the smallest side of a target: no change has more."""
    sides = [
        (min(module.in_features, module.out_features), name.rpartition(".")[2])
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.Linear) and name.rpartition(".")[2] in lora.targets
    ]
    side, target = min(sides, key=lambda pair: pair[0])
    if lora.rank > side:
        raise SpecError(
            f"lora.rank {lora.rank} is more than {target}'s {side}: no change of that matrix has "
            f"more directions; say lora.rank = {side} or less"
        )


def collect_changes(
    network: Any, tensors: dict[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], float]:
    """What was trained under the names of a delta, and the scale of its adapters."""
    changes: dict[str, torch.Tensor] = {}
    scales = {1.0}
    for name, tensor in tensors.items():
        if match := re.fullmatch(rf"(.+)\.lora_([AB])\.{_NAME}\.weight", name):
            changes[f"{match[1]}.{'down' if match[2] == 'A' else 'up'}"] = tensor.contiguous()
            scales = {float(network.get_submodule(match[1]).scaling[_NAME])}
        elif name.endswith(f".{ROW}"):
            module = name.removesuffix(f".{ROW}")
            changes[f"{module}.row.{network.get_submodule(module).mask_id}"] = tensor.contiguous()
        else:
            changes[name] = tensor.contiguous()
    return changes, scales.pop()


@torch.no_grad()
def merge_adapters(network: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under stock names, each adapter added to the weight it adapts."""
    whole = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in tensors.items()
        if ".lora_" not in name and not name.endswith(f".{ROW}")
    }
    for name, row in tensors.items():
        if name.endswith(f".{ROW}"):
            module = name.removesuffix(f".{ROW}")
            whole[f"{module}.weight"] = whole[f"{module}.weight"].clone()
            whole[f"{module}.weight"][network.get_submodule(module).mask_id] = row
    for name, module in network.named_modules():
        if f"{name}.lora_A.{_NAME}.weight" in tensors:
            down, up = (tensors[f"{name}.lora_{side}.{_NAME}.weight"] for side in "AB")
            plain = whole[f"{name}.weight"]
            whole[f"{name}.weight"] = plain + module.scaling[_NAME] * (up @ down).to(plain.dtype)
    return whole
