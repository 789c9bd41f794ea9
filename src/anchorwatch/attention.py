"""The one attention function, registered with transformers under one name.

It computes with the fused kernel, lets whoever edits change the call, and hands the very tensors
and mask of that call to whoever is watching. Nothing is patched and nothing happens at import:
`register()` is called by `load`, and nobody watches or edits outside a `with watching(...)` block.
Shapes: B rows, H heads, G key heads, Q queries, K keys, D channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
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
    bias: torch.Tensor | None = None
    """[B or 1, H or 1, 1 or Q, K] added to the logits by an edit; -inf hides a key."""
    dropped: torch.Tensor | None = None
    """[B, H, 1 or Q, K] bool: weights an edit zeroed after the softmax; rows no longer sum to 1."""


class Watcher(Protocol):
    """Whoever looks at attention calls."""

    def wants(self, layer: int) -> bool:
        """Whether to hand over this layer's call."""

    def see(self, call: Call) -> None:
        """Look at a call; nothing may be changed."""


class Changer(Protocol):
    """Whoever changes attention calls."""

    def wants(self, layer: int) -> bool:
        """Whether to hand over this layer's call."""

    def attend(self, call: Call) -> tuple[torch.Tensor, Call] | None:
        """Output [B, Q, H, D] and call as they are with the edits; None to leave it alone."""

    def look(self, plain: Call, call: Call) -> None:
        """Look at a call as it would have been, and as it was."""


@dataclass
class _Pass:
    watcher: Watcher | None
    changer: Changer | None = None
    layer: int = 0
    """Calls so far in this forward pass: the layer number, ALBERT's one module included."""


_PASS: ContextVar[_Pass | None] = ContextVar("anchorwatch_pass", default=None)


@contextmanager
def watching(watcher: Watcher | None, changer: Changer | None = None) -> Iterator[None]:
    """Let `watcher` see, and `changer` change, every attention call of one forward pass."""
    token = _PASS.set(_Pass(watcher, changer))
    try:
        yield
    finally:
        _PASS.reset(token)


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
    now = _PASS.get()
    if now is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    layer = _number(now, module)
    watcher = now.watcher if now.watcher is not None and now.watcher.wants(layer) else None
    changer = now.changer if now.changer is not None and now.changer.wants(layer) else None
    if watcher is None and changer is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    plain = Call(layer, query, key, value, scale, _bool(attention_mask), causal, None, module)
    made = None if changer is None else changer.attend(plain)
    if made is None:
        out, lse = None, None
        if _fused_on_cpu(query, value, attention_mask, options):
            out, lse = _flash(query, key, value, attention_mask, causal, scale)
        if out is None:
            out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        made = out, replace(plain, lse=lse)
    out, call = made
    if changer is not None:
        changer.look(plain, call)
    if watcher is not None:
        watcher.see(call)
    return out, None


def weighed(call: Call, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Values [B, H, K, D] weighed by the call's attention with its bias, by the fused kernel.

    Gives [B, Q, H, D], and the log-sum-exp of the logits where the kernel gives it.
    """
    query, key = call.query, call.key.repeat_interleave(value.shape[1] // call.key.shape[1], dim=1)
    mask = _added(call)
    if _fused_on_cpu(query, value, None, {}):
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, call.causal and mask is None, attn_mask=mask, scale=call.scale
        )
        return out.transpose(1, 2).contiguous(), lse
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, is_causal=call.causal and mask is None, scale=call.scale
    )
    return out.transpose(1, 2).contiguous(), None


def visible(call: Call) -> torch.Tensor | None:
    """[B or 1, 1, Q, K] bool: who may look at whom before any edit; None where all see all."""
    if call.attendable is not None or not call.causal:
        return call.attendable
    rows, keys = call.query.shape[2], call.key.shape[2]
    everything = torch.ones(rows, keys, dtype=torch.bool, device=call.key.device)
    return everything.tril()[None, None]


def _added(call: Call) -> torch.Tensor | None:
    """[B or 1, H or 1, Q, K] what the kernel adds to the logits; None where nothing is."""
    if call.bias is None and call.attendable is None:
        return None
    seen, rows, keys = visible(call), call.query.shape[2], call.key.shape[2]
    bias = call.query.new_zeros(1, 1, 1, keys) if call.bias is None else call.bias
    bias = bias.to(call.query.dtype)
    if seen is None:
        return bias.expand(-1, -1, rows, -1)
    return torch.where(seen, bias, -torch.inf)


def _number(now: _Pass, module: Any) -> int:
    """The layer is the call order, checked against the module's own number where it has one."""
    layer = now.layer
    now.layer += 1
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
