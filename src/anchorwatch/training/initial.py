"""First values of a network: each tensor's derive from (seed, its name, its shape) alone.

So two arms of a comparison begin with the same tensors wherever they share one, however many others
either of them has. The sizes are SMDM's: N(0, 2 / (5 width)), and N(0, 1 / (width layers^2)) for
what writes into the residual stream.
"""

from __future__ import annotations

import hashlib

import torch
from transformers import PreTrainedModel

_WRITERS = ("o_proj.weight", "down_proj.weight")


def drawn(seed: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Standard normal numbers of one tensor, float32 on the CPU."""
    said = f"{seed}:{name}:{'x'.join(map(str, shape))}".encode()
    start = int.from_bytes(hashlib.sha256(said).digest()[:8], "big") >> 1
    return torch.randn(shape, generator=torch.Generator().manual_seed(start))


@torch.no_grad()
def fill(network: PreTrainedModel, seed: int) -> None:
    """Give every parameter its first values; tied tensors are filled once, under one name."""
    width, layers = network.config.hidden_size, network.config.num_hidden_layers
    for name, parameter in network.named_parameters():
        if parameter.ndim == 1:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        deviation = (2 / (5 * width)) ** 0.5
        if name.endswith(_WRITERS):
            deviation = 1 / (width**0.5 * layers)
        parameter.copy_(drawn(seed, name, tuple(parameter.shape)) * deviation)
