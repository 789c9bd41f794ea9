"""The one attention function, registered with transformers under one name.

It computes with the fused kernel, lets an editor change the call, and hands the very tensors and
mask of that call to an observer. Nothing is patched and nothing happens at import: `register()` is
called by `load`, nobody observes or edits outside a `with observe(...)` block, and nothing is added
to a network outside a `with use_additions(...)` block.
Shapes: B rows, H heads, G key heads, Q queries, K keys, n added keys, D channels.
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
from anchorwatch.models.extra_keys import ExtraKeys, concat_keys, merge_lse

NAME = "anchorwatch"
"""Our name in both of transformers' registries."""
_MOST_QUERIES = 512
"""Up to which a training pass on a CPU may hold the maps of a layer. Added keys do not count, so
that an arm with a sink token is computed as its pair without."""


@dataclass(frozen=True)
class Call:
    """One attention call as it was computed."""

    layer: int
    query: torch.Tensor
    """[B, H, Q, D], rotary applied."""
    key: torch.Tensor
    """[B, G, K, D], cache included; added keys are the first, 0 where they are no vectors."""
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
    extra_logits: torch.Tensor | None = None
    """[B, H, Q, n] logits of the first n keys, which additions put there; they hold in place of
    products. Without a mask a causal query i sees these and the n + i that follow."""

    @property
    def num_extra_keys(self) -> int:
        return 0 if self.extra_logits is None else self.extra_logits.shape[-1]


class AttentionObserver(Protocol):
    """Whoever looks at attention calls."""

    def wants(self, layer: int) -> bool:
        """Whether to hand over this layer's call."""

    def on_attention(self, call: Call) -> None:
        """Look at a call; nothing may be changed."""


class AttentionEditor(Protocol):
    """Whoever changes attention calls."""

    def wants(self, layer: int) -> bool:
        """Whether to hand over this layer's call."""

    def attend(self, call: Call) -> tuple[torch.Tensor, Call] | None:
        """Output [B, Q, H, D] and call as they are with the edits; None to leave it alone."""

    def verify_call(self, plain: Call, call: Call, out: torch.Tensor) -> None:
        """Verify the edited call against the unedited one; `out` is its output [B, Q, H, D]."""


class ActiveAdditions(Protocol):
    """Additions that a network has during one forward pass: sink tokens, gates."""

    layer: int
    """Calls so far."""

    @property
    def columns(self) -> int:
        """Keys they add to every layer's, seen or unseen."""

    def attend_alone(
        self, layer: int, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor | None:
        """Output [B, 1, H, D] of tokens that see only themselves; None in an ordinary pass."""

    def extra_keys(self, layer: int, query: torch.Tensor, scale: float) -> ExtraKeys | None:
        """The keys they add to a layer, or None."""

    def apply_gates(self, layer: int, out: torch.Tensor) -> torch.Tensor:
        """Output [B, Q, H, D] as gates leave it."""


@dataclass
class _Pass:
    observer: AttentionObserver | None
    editor: AttentionEditor | None = None
    layer: int = 0
    """Calls so far in this forward pass: the layer number, ALBERT's one module included."""


class KeptKeys(Protocol):
    """Keys and values of earlier passes, which a pass over some rows of a canvas looks at."""

    def complete(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Keys and values of the whole canvas, and who may look at whom (None: all at all)."""


_PASS: ContextVar[_Pass | None] = ContextVar("anchorwatch_pass", default=None)
_ADDITIONS: ContextVar[ActiveAdditions | None] = ContextVar("anchorwatch_additions", default=None)
_KEPT: ContextVar[KeptKeys | None] = ContextVar("anchorwatch_kept_keys", default=None)


@contextmanager
def observe(
    observer: AttentionObserver | None, editor: AttentionEditor | None = None
) -> Iterator[None]:
    """Let `observer` see, and `editor` change, every attention call of one forward pass."""
    token = _PASS.set(_Pass(observer, editor))
    try:
        yield
    finally:
        _PASS.reset(token)


@contextmanager
def use_additions(additions: ActiveAdditions | None) -> Iterator[None]:
    """Give a network additions for one forward pass; a pass inside this one has its own."""
    token = _ADDITIONS.set(additions)
    try:
        yield
    finally:
        _ADDITIONS.reset(token)


@contextmanager
def use_kept_keys(kept: KeptKeys) -> Iterator[None]:
    """Let the attention calls of one forward pass look at keys that earlier passes left."""
    token = _KEPT.set(kept)
    try:
        yield
    finally:
        _KEPT.reset(token)


def active_additions() -> ActiveAdditions | None:
    """The additions of the pass that is going on."""
    return _ADDITIONS.get()


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
    # 1. Without additions it is the plain call, seen and changed by whoever is there.
    current, additions, kept = _PASS.get(), _ADDITIONS.get(), _KEPT.get()
    if kept is not None:
        key, value, attention_mask = kept.complete(query, key, value, _scale(query, options))
    if additions is None:
        return _run_call(current, module, query, key, value, attention_mask, None, options), None
    # 2. A pass that computes a sink token's own key and value: each token sees only itself.
    layer = _number(additions, module)
    out = additions.attend_alone(layer, key, value)
    if out is None:
        # 3. An ordinary pass: the keys that additions put before the canvas's.
        extra = additions.extra_keys(layer, query, _scale(query, options))
        if extra is None and additions.columns and current is not None:
            # Observers and editors count columns: every layer of a pass has as many.
            extra = ExtraKeys.unseen(query, key.shape[1], additions.columns)
        out = _run_call(current, module, query, key, value, attention_mask, extra, options)
    # 4. Gates act on the heads' output, before the output projection.
    return additions.apply_gates(layer, out), None


def _run_call(
    current: _Pass | None,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    extra: ExtraKeys | None,
    options: dict[str, Any],
) -> torch.Tensor:
    """One call, changed and seen by whoever wants to."""
    # 1. Who wants this layer; with nobody and nothing added it is transformers' own call.
    observer = editor = None
    layer = 0 if current is None else _number(current, module)
    if current is not None:
        if current.observer is not None and current.observer.wants(layer):
            observer = current.observer
        if current.editor is not None and current.editor.wants(layer):
            editor = current.editor
    if observer is None and editor is None and extra is None:
        return _run_kernel(module, query, key, value, mask, options)
    # 2. The call as it would be without an edit.
    scale, causal = _scale(query, options), _causal(module, query, mask, options)
    bare = Call(layer, query, key, value, scale, _bool(mask), causal, None, module)
    if observer is None and editor is None:
        return _compute(bare, mask, extra, options)[0]
    plain = bare if extra is None else with_extra_keys(bare, extra)
    # 3. Computed by the editor, or by the kernel where the editor leaves it alone.
    edited = None if editor is None else editor.attend(plain)
    if edited is None:
        out, lse = _compute(bare, mask, extra, options)
        edited = out, replace(plain, lse=lse)
    out, call = edited
    # 4. Shown to both; they may change nothing.
    if editor is not None:
        editor.verify_call(plain, call, out)
    if observer is not None:
        observer.on_attention(call)
    return out


def with_extra_keys(call: Call, extra: ExtraKeys) -> Call:
    """The call as probes and edits see it: the added keys are the first."""
    batch, n = call.key.shape[0], extra.count
    key = extra.key
    if key is None:
        key = call.key.new_zeros(1, call.key.shape[1], n, call.key.shape[-1])
    attendable = call.attendable
    if attendable is not None:
        # [B, 1, Q, n]: visible where any head sees it; single heads are hidden by -inf.
        some = (extra.logits > -torch.inf).any(dim=1, keepdim=True)
        attendable = torch.cat([some, attendable.expand(batch, -1, -1, -1)], dim=-1)
    return replace(
        call,
        key=torch.cat([key.expand(batch, -1, -1, -1), call.key], dim=2),
        value=torch.cat([extra.value.expand(batch, -1, -1, -1), call.value], dim=2),
        attendable=attendable,
        extra_logits=extra.logits,
    )


def _compute(
    bare: Call, mask: torch.Tensor | None, extra: ExtraKeys | None, options: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output [B, Q, H, D] of an unchanged call, and the log-sum-exp where the kernel gives it."""
    query, key, value = bare.query, bare.key, bare.value
    if _fused_on_cpu(query, value, mask, options):
        out, lse = _flash(query, key, value, mask, bare.causal, bare.scale)
        if extra is None:
            return out, lse
        if mask is not None:  # the kernel gives 0 for a row that sees nothing
            lse = lse.masked_fill(~mask.any(dim=-1), -torch.inf)
        return merge_lse(out, lse, extra.logits, extra.value)
    if extra is None:
        return _run_kernel(bare.module, query, key, value, mask, options), None
    whole = concat_keys(query, key, value, mask, bare.causal, bare.scale, extra)
    options = options | {"scaling": bare.scale, "is_causal": bare.causal}
    out = _run_kernel(bare.module, whole.query, whole.key, whole.value, whole.mask, options)
    return whole.cut_output(out), None


def _run_kernel(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    options: dict[str, Any],
) -> torch.Tensor:
    """Output [B, Q, H, D] of transformers' own call; a training pass in bfloat16 on a CPU
    computes the two products instead, whose gradients take a half to a third of the time."""
    trained = torch.is_grad_enabled() and query.requires_grad
    if (
        not (trained and query.device.type == "cpu" and _computes_in_bf16(query))
        or options.get("dropout")
        or query.shape[2] > _MOST_QUERIES
        or not (mask is None or mask.dtype == torch.bool)
    ):
        return sdpa_attention_forward(module, query, key, value, mask, **options)[0]
    # 1. As many key heads as heads; logits in the products' own precision.
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    query, key, value = (x.to(torch.bfloat16) for x in (query, key, value))
    logits = (query * _scale(query, options)) @ key.transpose(-1, -2)
    # 2. Hidden keys; then weights, whose sums torch keeps in float32.
    if _causal(module, query, mask, options):
        mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    with torch.autocast("cpu", enabled=False):  # it would take softmax to float32
        weights = logits.softmax(dim=-1)
    # 3. A row that sees nothing gives 0, as the fused kernel has it.
    sees = None if mask is None else mask.any(dim=-1, keepdim=True)
    if sees is not None and not bool(sees.all()):
        weights = weights.masked_fill(~sees, 0.0)
    return (weights @ value).transpose(1, 2).contiguous()


def _computes_in_bf16(query: torch.Tensor) -> bool:
    autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
    return torch.bfloat16 in (query.dtype, autocast)


def weigh_values(call: Call, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Values [B, H, K, D] weighed by the call's attention with its bias, by the fused kernel.

    Gives [B, Q, H, D], and the log-sum-exp of the logits where the kernel gives it.
    """
    # 1. Added keys apart: their logits are known, and are no products.
    n, query = call.num_extra_keys, call.query
    key = call.key[:, :, n:].repeat_interleave(value.shape[1] // call.key.shape[1], dim=1)
    before, value = value[:, :, :n], value[:, :, n:]
    mask, causal = _mask_of(call), call.causal and call.bias is None and call.attendable is None
    # 2. The kernel that gives the log-sum-exp: added keys are merged in afterwards.
    if _fused_on_cpu(query, value, None, {}):
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask, scale=call.scale
        )
        out = out.transpose(1, 2).contiguous()
        if call.extra_logits is None:
            return out, lse
        if mask is not None:
            lse = lse.masked_fill((mask == -torch.inf).all(dim=-1), -torch.inf)
        return merge_lse(out, lse, call.extra_logits, before)
    # 3. Any other kernel: added keys are concatenated in front.
    parts, rows, size = (query, key, value, mask), 0, value.shape[-1]
    if call.extra_logits is not None:
        whole = concat_keys(*parts, causal, call.scale, ExtraKeys(call.extra_logits, before, None))
        parts, rows = (whole.query, whole.key, whole.value, whole.mask), whole.rows
    out = torch.nn.functional.scaled_dot_product_attention(
        *parts, is_causal=causal, scale=call.scale
    )
    return out[:, :, rows:, :size].transpose(1, 2).contiguous(), None


def visible(call: Call) -> torch.Tensor | None:
    """[B or 1, 1, Q, K] bool: who may look at whom before any edit; None where all see all."""
    if call.attendable is not None or not call.causal:
        return call.attendable
    rows, keys = call.query.shape[2], call.key.shape[2]
    everything = torch.ones(rows, keys, dtype=torch.bool, device=call.key.device)
    return everything.tril(call.num_extra_keys)[None, None]


def _mask_of(call: Call) -> torch.Tensor | None:
    """[B or 1, H or 1, Q, K] what the kernel adds to the canvas's logits; None where nothing is."""
    if call.bias is None and call.attendable is None:
        return None
    seen, rows, n = visible(call), call.query.shape[2], call.num_extra_keys
    bias = call.query.new_zeros(1, 1, 1, call.key.shape[2]) if call.bias is None else call.bias
    bias = bias[..., n:].to(call.query.dtype)
    # All see all: the bias alone, the same for every query.
    if seen is None:
        return bias.expand(-1, -1, rows, -1)
    return torch.where(seen[..., n:], bias, -torch.inf)


def _scale(query: torch.Tensor, options: dict[str, Any]) -> float:
    return float(options.get("scaling") or query.shape[-1] ** -0.5)


def _causal(
    module: Any, query: torch.Tensor, mask: torch.Tensor | None, options: dict[str, Any]
) -> bool:
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    # One query sees all keys of its cache: there is nothing after it to hide.
    return bool(causal) and mask is None and query.shape[2] > 1


def _number(current: _Pass | ActiveAdditions, module: Any) -> int:
    """The layer is the call order, checked against the module's own number where it has one."""
    layer = current.layer
    current.layer += 1
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
    # Merging overwrites the output in place: with gradients the added keys are concatenated.
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
    # Grouped heads: this kernel wants as many key heads as heads.
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    bias = None
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device)
        bias.masked_fill_(~mask, -torch.inf)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=bias, scale=scale
    )
    return out.transpose(1, 2).contiguous(), lse


def _bool(mask: torch.Tensor | None) -> torch.Tensor | None:
    if mask is None or mask.dtype == torch.bool:
        return mask
    return mask > torch.finfo(mask.dtype).min / 2  # an additive mask: 0, or very negative
