"""Keys that parts add before the canvas's, and attention over both: two forms, one result.

Where the fused kernel gives the log-sum-exp of the canvas's logits the added keys are merged in
afterwards, and nothing is copied or masked. Elsewhere (other devices, other dtypes, gradients) they
are concatenated in front of the keys, again without a mask where there was none.
Shapes: B rows, H heads, G key heads, Q queries, K keys of the canvas, n added ones, D channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

UNSEEN = -1e30
"""A logit that leaves nothing after the softmax and is finite, for products with zero."""


@dataclass(frozen=True)
class ExtraKeys:
    """Added keys as one call sees them."""

    logits: torch.Tensor
    """[B, H, Q, n], scaled; -inf where a head or a row of the batch does not see them."""
    value: torch.Tensor
    """[B or 1, G, n, D]."""
    key: torch.Tensor | None
    """[B or 1, G, n, D] where all logits are products with it; None where some are not."""

    @property
    def count(self) -> int:
        return self.logits.shape[-1]

    @classmethod
    def together(cls, many: Sequence[ExtraKeys]) -> ExtraKeys:
        """Several as one, in their order."""
        if len(many) == 1:
            return many[0]
        # Some are the same for all rows of the batch (B = 1) and are expanded beside the others.
        rows = max(extra.value.shape[0] for extra in many)
        keys = [extra.key for extra in many if extra.key is not None]

        def cat(parts: list[torch.Tensor]) -> torch.Tensor:
            return torch.cat([part.expand(rows, -1, -1, -1) for part in parts], dim=2)

        return cls(
            torch.cat([extra.logits for extra in many], dim=-1),
            cat([extra.value for extra in many]),
            cat(keys) if len(keys) == len(many) else None,
        )

    @classmethod
    def unseen(cls, query: torch.Tensor, groups: int, count: int) -> ExtraKeys:
        """As many columns that nobody sees, where a layer goes without the pass's parts."""
        logits = query.new_full((*query.shape[:3], count), -torch.inf)
        return cls(logits, query.new_zeros(1, groups, count, query.shape[-1]), None)


def products(query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
    """[B, H, Q, n] logits of queries [B, H, Q, D] with keys [B or 1, G, n, D]."""
    # Grouped heads share a key: [B, G, H/G, Q, D] @ [B, G, 1, D, n].
    batch, heads, queries, size = query.shape
    groups = key.shape[1]
    grouped = query.view(batch, groups, heads // groups, queries, size)
    return (grouped @ key[:, :, None].transpose(-1, -2)).view(batch, heads, queries, -1) * scale


def merge_lse(
    out: torch.Tensor, lse: torch.Tensor, logits: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [B, Q, H, D] and log-sum-exp [B, H, Q] with added keys, from those without.

    `lse` is -inf for a row that sees nothing else. `value` is [B or 1, G or H, n, D]. Overwrites
    `out`.
    """
    # Softmax over both sets: each output is weighed by its share of the joint denominator.
    total = torch.logaddexp(lse, torch.logsumexp(logits, dim=-1))
    total = total.masked_fill(total == -torch.inf, 0.0)  # a row that sees nothing at all keeps 0
    kept, shares = (lse - total).exp(), (logits - total[..., None]).exp()
    batch, heads, queries, count = shares.shape
    groups = value.shape[1]
    # Grouped heads share a value: [B, G, H/G, Q, n] @ [B, G, 1, n, D].
    more = shares.view(batch, groups, heads // groups, queries, count) @ value[:, :, None]
    out.mul_(kept.transpose(1, 2)[..., None])
    out.add_(more.view(batch, heads, queries, -1).transpose(1, 2))
    return out, total


@dataclass(frozen=True)
class ConcatenatedKeys:
    """Tensors for any kernel, the added keys in front; `rows` and `size` cut the output back."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    rows: int
    """Queries before the first real one."""
    size: int
    """Channels of a value."""

    def cut_output(self, out: torch.Tensor) -> torch.Tensor:
        """[B, Q, H, D] of the real rows and channels."""
        return out[:, self.rows :, :, : self.size]


def concat_keys(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float,
    added: ExtraKeys,
) -> ConcatenatedKeys:
    """Concatenate added keys in front; differentiable.

    Logits that are no products get a channel each: the query's holds the logit, the added key's 1,
    everybody else's 0. A causal call without a mask gets as many empty rows in front, so that row
    i + n sees the added keys and those up to i.
    """
    # 1. The keys in front: as they are, or unit vectors in new channels for plain logits.
    n, size, batch = added.count, value.shape[-1], key.shape[0]
    before = added.value.expand(batch, -1, -1, -1).to(value.dtype)
    if added.key is not None:
        front = added.key.expand(batch, -1, -1, -1).to(key.dtype)
    else:
        # -inf would give NaN in a product with 0: a finite logit that no softmax sees.
        lowest = max(UNSEEN, torch.finfo(query.dtype).min / 4)
        logits = (added.logits / scale).clamp(min=lowest).to(query.dtype)
        query = torch.cat([query, logits], dim=-1)
        marks = torch.eye(n, dtype=key.dtype, device=key.device)
        front = torch.nn.functional.pad(marks, (key.shape[-1], 0))
        front = front.expand(batch, key.shape[1], -1, -1)
        key = torch.nn.functional.pad(key, (0, n))
        value, before = (torch.nn.functional.pad(part, (0, n)) for part in (value, before))
    # 2. One sequence of n + K keys; everyone may look at the added ones.
    key, value = torch.cat([front, key], dim=2), torch.cat([before, value], dim=2)
    if mask is not None:
        everyone = True if mask.dtype == torch.bool else 0.0
        mask = torch.nn.functional.pad(mask, (n, 0), value=everyone)
    # 3. A causal kernel counts from the first key: n empty queries make row i + n see n + i + 1.
    rows = n if causal else 0
    query = torch.nn.functional.pad(query, (0, 0, rows, 0))
    return ConcatenatedKeys(query, key, value, mask, rows, size)
