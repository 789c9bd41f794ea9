"""Trained parts that stock classes do not have: today the elementwise output gate."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel


def attach_gates(network: PreTrainedModel) -> None:
    """Give each attention module a gate: its output becomes `y * sigmoid(gate(x))` before o_proj.

    x is what the attention module reads (after the norm), y the heads' outputs side by side.
    """
    for layer in network.model.layers:
        _attach(layer.self_attn)


def _attach(attention: Any) -> None:
    width = attention.o_proj.in_features
    reads = attention.q_proj.in_features
    attention.gate = torch.nn.Linear(reads, width, bias=False, device="meta")
    seen: list[torch.Tensor] = []

    def remember(_: torch.nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        seen[:] = [given["hidden_states"] if "hidden_states" in given else args[0]]

    def multiply(_: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (args[0] * torch.sigmoid(attention.gate(seen.pop())), *args[1:])

    attention.register_forward_pre_hook(remember, with_kwargs=True)
    attention.o_proj.register_forward_pre_hook(multiply)
