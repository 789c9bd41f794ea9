"""The one attention function, registered with transformers under one name.

It computes with the fused kernel, and hands the very tensors and mask of that call to whoever is
watching. Nothing is patched and nothing happens at import: `register()` is called by `load`, and
nobody watches outside a `with watching(...)` block.
Shapes: B rows, H heads, G key heads, Q queries, K keys, D channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from anchorwatch.errors import ModelError

NAME = "anchorwatch"
"""Our name in both of transformers' registries."""


@dataclass(frozen=True)
class Call:
    """One attention call as it was computed."""

    layer: int
    query: torch.Tensor
    """[B, H, Q, D], rotary applied."""
    key: torch.Tensor
    """[B, G, K, D], cache included."""
    value: torch.Tensor
    """[B, G, K, D]."""
    scale: float
    attendable: torch.Tensor | None
    """[B or 1, 1, Q, K] bool, or None where the kernel needed no mask."""
    causal: bool
    """Without a mask: whether query i sees keys up to i only."""
    lse: torch.Tensor | None
    """[B, H, Q] log-sum-exp of the logits, where the kernel gave it."""
    module: Any
    """The network's attention module."""


class Watcher(Protocol):
    """Whoever looks at attention calls."""

    def wants(self, layer: int) -> bool:
        """Whether to hand over this layer's call."""

    def see(self, call: Call) -> None:
        """Look at a call; nothing may be changed."""


@dataclass
class _Watch:
    watcher: Watcher
    layer: int = 0
    """Calls so far in this forward pass: the layer number, ALBERT's one module included."""


_WATCH: ContextVar[_Watch | None] = ContextVar("anchorwatch_watch", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Let `watcher` see every attention call of one forward pass."""
    token = _WATCH.set(_Watch(watcher))
    try:
        yield
    finally:
        _WATCH.reset(token)


def register() -> None:
    """Make the function known to transformers, for computing and for building masks. Idempotent."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for any stock class; transformers' own plug decides this signature."""
    watch = _WATCH.get()
    if watch is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    layer = _number(watch, module)
    if not watch.watcher.wants(layer):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    out, lse = None, None
    if _fused_on_cpu(query, value, attention_mask, options):
        out, lse = _flash(query, key, value, attention_mask, causal, scale)
    if out is None:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    call = Call(layer, query, key, value, scale, _bool(attention_mask), causal, lse, module)
    watch.watcher.see(call)
    return out, None


def _number(watch: _Watch, module: Any) -> int:
    """The layer is the call order, checked against the module's own number where it has one."""
    layer = watch.layer
    watch.layer += 1
    own = getattr(module, "layer_idx", None)
    if own is not None and own != layer:
        raise ModelError(
            f"{type(module).__name__} says it is layer {own} and was called as layer {layer}: "
            "this network calls its layers out of order and cannot be measured"
        )
    return layer


def _fused_on_cpu(
    query: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, options: dict[str, Any]
) -> bool:
    """Whether SDPA would choose the CPU flash kernel, which can also return the log-sum-exp."""
    plain = query.device.type == "cpu" and not options.get("dropout")
    same = query.shape[-1] == value.shape[-1] and query.dtype == torch.float32
    grad = torch.is_grad_enabled() and query.requires_grad
    return plain and same and not grad and (mask is None or mask.dtype == torch.bool)


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel behind SDPA on a CPU, by its own name: the same bits, and the log-sum-exp."""
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    bias = None
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=bias, scale=scale
    )
    return out.transpose(1, 2).contiguous(), lse


def _bool(mask: torch.Tensor | None) -> torch.Tensor | None:
    if mask is None or mask.dtype == torch.bool:
        return mask
    return mask > torch.finfo(mask.dtype).min / 2  # an additive mask: 0, or very negative
