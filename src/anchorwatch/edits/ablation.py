"""One attention call with edits applied, by the fused kernel; no map is held.

A hidden column is a bias on the logits; zeroed weights and changed values are other values under
the same weights; heads are taken out of the query (uniform) or of the output (zero, mean).
The last query of a call is the last row of every canvas: batches are padded on the left.
Shapes: B rows, H heads, G key heads, Q queries, K keys, D channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from anchorwatch.models.attention import Call, visible, weigh_values


@dataclass
class AttentionPatch:
    """What to patch in one call: keys are [B, H, K], heads are [B, H]; zeros patch nothing.

    Edits mark in it what they do (`mark_keys`, `mark_heads`); `apply_patch` does it, and `verify`
    computes the same from the obvious formula.
    """

    logit: torch.Tensor
    """bool: -inf before the softmax."""
    last_logit: torch.Tensor
    """bool: -inf before the softmax, in the last row of the canvas only."""
    penalty: torch.Tensor
    """float: taken off the logit."""
    weight: torch.Tensor
    """bool: zero after the softmax."""
    value: torch.Tensor
    """bool: value zeroed."""
    value_mean: torch.Tensor
    """bool: value replaced by the mean over the keys a query may look at."""
    zero: torch.Tensor
    """bool: heads without output."""
    mean: torch.Tensor
    """bool: heads whose output is its mean."""
    uniform: torch.Tensor
    """bool: heads that look at all keys alike."""
    value_gain: torch.Tensor
    """float: value multiplied by 1 + this."""
    head_gain: torch.Tensor
    """float: output of heads multiplied by 1 + this."""

    @classmethod
    def empty(cls, call: Call) -> AttentionPatch:
        """A patch that changes nothing yet."""
        batch, heads = call.query.shape[:2]
        keys, device = call.key.shape[2], call.query.device

        def zeros(*more: int, dtype: torch.dtype = torch.bool) -> torch.Tensor:
            return torch.zeros(batch, heads, *more, dtype=dtype, device=device)

        forms = ("logit", "last_logit", "weight", "value", "value_mean")
        by_key = {name: zeros(keys) for name in forms}
        by_head = {name: zeros() for name in ("zero", "mean", "uniform")}
        numbers = {name: zeros(keys, dtype=torch.float32) for name in ("penalty", "value_gain")}
        return cls(**by_key, **by_head, **numbers, head_gain=zeros(dtype=torch.float32))

    def mark_keys(
        self,
        form: str,
        row: int,
        heads: np.ndarray,
        columns: np.ndarray,
        value: float | bool = True,
    ) -> None:
        """Change keys of one row of the batch: `columns` of the call, each of one of `heads`."""
        marked = getattr(self, form)
        marked[row, torch.from_numpy(heads), torch.from_numpy(columns)] = value

    def mark_heads(
        self, form: str, row: int, heads: Sequence[int], value: float | bool = True
    ) -> None:
        """Change heads of one row of the batch."""
        getattr(self, form)[row, torch.tensor(heads)] = value

    @property
    def is_empty(self) -> bool:
        return not any(bool(marked.any()) for marked in vars(self).values())

    @property
    def emptied_columns(self) -> torch.Tensor:
        """[B, H, K] bool: columns of the map that are to be empty."""
        return self.logit | self.weight

    def hidden_before_softmax(self, b: int, h: int, is_last: torch.Tensor) -> torch.Tensor:
        """[n, K] bool: keys of one head with the logit -inf, for rows that are the last or not."""
        return self.logit[b, h] | (is_last[:, None] & self.last_logit[b, h])


@dataclass(frozen=True)
class RescuedRows:
    """Rows that would have lost their last key, and the key each keeps: [n] of each."""

    row: torch.Tensor
    head: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    share: torch.Tensor
    """What the row gives to it."""

    def count(self, row: int, queries: slice) -> int:
        """How many belong to some queries of a row of the batch, over all heads."""
        inside = (self.query >= queries.start) & (self.query < queries.stop)
        return int(((self.row == row) & inside).sum())


@dataclass(frozen=True)
class PatchedCall:
    """An edited call: its output [B, Q, H, D], the call as probes see it, and rescued rows."""

    out: torch.Tensor
    call: Call
    rescued: RescuedRows
    before_heads: torch.Tensor
    """[B, k, H, D] output before heads were taken out of it, of earlier rows too."""


def unpatched_call(call: Call, out: torch.Tensor) -> PatchedCall:
    """A call that nothing changed, in the same words."""
    none = torch.zeros(0, dtype=torch.long, device=out.device)
    return PatchedCall(out, call, RescuedRows(none, none, none, none, none.float()), out)


def apply_patch(
    plain: Call, patch: AttentionPatch, before: torch.Tensor | None = None
) -> PatchedCall:
    """The call with the patch. `before` [B, k, H, D] is output of earlier rows under a cache."""
    # 1. Uniform heads: a query of zeros gives every visible key the same logit.
    query, added = plain.query, plain.extra_logits
    if bool(patch.uniform.any()):
        even = patch.uniform[..., None, None]
        query = query.masked_fill(even, 0.0)
        if added is not None:
            added = added.masked_fill(even & (added > -torch.inf), 0.0)
    # 2. Hidden keys: a bias on the logits, or weights dropped after the softmax; rows that would
    #    lose their last key keep their best one.
    call = replace(plain, query=query, extra_logits=added)
    rescued = _find_rescued_rows(call, patch)
    call = replace(
        call, bias=_bias(call, patch, rescued), dropped=_dropped_weights(call, patch, rescued)
    )
    # 3. The fused kernel, over values of which some are emptied: a weight of zero and a value of
    #    zero give the same output.
    value = _scaled_values(plain, patch)
    emptied = patch.weight | patch.value | patch.value_mean
    inner = value.masked_fill(emptied[..., None], 0.0) if bool(emptied.any()) else value
    out, lse = weigh_values(call, inner)
    # 4. What emptying took too much: the one key of a rescued row, and means instead of values.
    kept = patch.weight[rescued.row, rescued.head, rescued.key]
    if bool(kept.any()):
        s = RescuedRows(*(entries[kept] for entries in vars(rescued).values()))
        back = s.share[:, None].to(out.dtype) * value[s.row, s.head, s.key]
        out[s.row, s.query, s.head] += back
    if bool(patch.value_mean.any()):
        hidden = patch.value_mean[..., None].to(value.dtype).expand_as(value).contiguous()
        out = out + weigh_values(call, hidden)[0] * _mean(plain, value).transpose(1, 2)
    # 5. Heads taken out of the output.
    rows = out if before is None else torch.cat([before, out], dim=1)
    seen_call = replace(call, lse=lse, value=_visible_values(plain, patch, value))
    return PatchedCall(_heads(plain, patch, out, rows), seen_call, rescued, rows)


def _scaled_values(plain: Call, patch: AttentionPatch) -> torch.Tensor:
    """[B, H, K, D] values of every head, multiplied by what the patch says."""
    value = plain.value.repeat_interleave(plain.query.shape[1] // plain.value.shape[1], dim=1)
    if bool(patch.value_gain.any()):
        value = value * (1 + patch.value_gain[..., None]).to(value.dtype)
    return value


def _heads(
    plain: Call, patch: AttentionPatch, out: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Output [B, Q, H, D] with heads replaced by their mean, multiplied, or emptied."""
    if bool(patch.mean.any()):
        out = torch.where(
            patch.mean[:, None, :, None], _mean(plain, rows.transpose(1, 2)).transpose(1, 2), out
        )
    if bool(patch.head_gain.any()):
        out = out * (1 + patch.head_gain[:, None, :, None]).to(out.dtype)
    return out.masked_fill(patch.zero[:, None, :, None], 0.0)


def _mean(call: Call, states: torch.Tensor) -> torch.Tensor:
    """[B, H, Q, D]: the mean of [B, H, K, D] over the positions each row may look at.

    Added keys are no positions: states may hold them (values do) or not (outputs do not).
    """
    # Every row that sees everything has the same mean.
    seen, keys = visible(call), call.key.shape[2] - call.num_extra_keys
    states = states[:, :, -keys:]
    if seen is None:
        return states.mean(dim=2, keepdim=True).expand(-1, -1, call.query.shape[2], -1)
    seen = seen[..., -keys:]
    share = seen.float() / seen.sum(dim=-1, keepdim=True).clamp(min=1)
    return (share @ states.float()).to(states.dtype)


def _visible_values(plain: Call, patch: AttentionPatch, value: torch.Tensor) -> torch.Tensor:
    """Values as probes see them: zeroed or replaced (by the last row's mean), else the call's."""
    if not bool((patch.value | patch.value_mean).any()):
        return value if bool(patch.value_gain.any()) else plain.value
    shown = value.masked_fill(patch.value[..., None], 0.0)
    if bool(patch.value_mean.any()):
        last = _mean(plain, value)[:, :, -1:]
        shown = torch.where(patch.value_mean[..., None], last, shown)
    return shown


def _bias(call: Call, patch: AttentionPatch, rescued: RescuedRows) -> torch.Tensor | None:
    last = bool(patch.last_logit.any())
    if not (last or bool(patch.logit.any()) or bool(patch.penalty.any())):
        return None
    # [B, H, 1, K]: one bias for all queries, unless some row keeps a key, or the last loses more.
    bias = (-patch.penalty).masked_fill(patch.logit, -torch.inf)[:, :, None]
    if not (last or len(rescued.row)):
        return bias
    bias = bias.expand(-1, -1, call.query.shape[2], -1).clone()
    bias[:, :, -1].masked_fill_(patch.last_logit, -torch.inf)
    lowered = -patch.penalty[rescued.row, rescued.head, rescued.key]
    bias[rescued.row, rescued.head, rescued.query, rescued.key] = lowered
    return bias


def _dropped_weights(
    call: Call, patch: AttentionPatch, rescued: RescuedRows
) -> torch.Tensor | None:
    if not bool(patch.weight.any()):
        return None
    # Zero after the softmax: the row then sums to less than one.
    dropped = patch.weight[:, :, None]
    if len(rescued.row):
        dropped = dropped.expand(-1, -1, call.query.shape[2], -1).clone()
        dropped[rescued.row, rescued.head, rescued.query, rescued.key] = False
    return dropped


def _find_rescued_rows(call: Call, patch: AttentionPatch) -> RescuedRows:
    """Rows that may look at something and would be left with nothing."""
    # 1. Rows whose visible keys are all emptied: as many are lost as there are.
    emptied, seen = patch.emptied_columns, visible(call)
    queries, n = call.query.shape[2], call.num_extra_keys
    if call.extra_logits is not None:  # what a head does not see cannot be its last key
        emptied = emptied.clone()
        emptied[..., :n] |= (call.extra_logits == -torch.inf).all(dim=2)
    if seen is None:
        bare = emptied.all(dim=-1, keepdim=True).expand(-1, -1, queries)
    else:
        total = seen.sum(dim=-1)  # [B or 1, 1, Q]
        lost = emptied.float() @ seen[:, 0].float().transpose(1, 2)  # [B, H, Q]
        bare = (lost >= total - 0.5) & (total > 0)
    if bool(patch.last_logit.any()):  # the last row may lose more than the others
        left = ~(emptied | patch.last_logit) & (True if seen is None else seen[:, :, -1])
        sees = True if seen is None else seen[:, :, -1].any(dim=-1)
        bare = bare.clone()
        bare[:, :, -1] = ~left.any(dim=-1) & sees
    # 2. The key each of them keeps is its best one; its share is as if the others were hidden.
    row, head, query = bare.nonzero(as_tuple=True)
    key, share = torch.zeros_like(row), torch.zeros(len(row), device=row.device)
    for b, h in {(int(b), int(h)) for b, h in zip(row, head, strict=True)}:
        # Head by head: rows of one head share their hidden keys and penalties.
        mine = (row == b) & (head == h)
        logits = logits_of(call, b, head[mine][:1], query[mine])[0] - patch.penalty[b, h]
        best = logits.argmax(dim=-1)
        hidden = patch.hidden_before_softmax(b, h, query[mine] == queries - 1).clone()
        hidden[torch.arange(len(best)), best] = False
        shares = logits.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        key[mine], share[mine] = best, shares.gather(-1, best[:, None])[:, 0]
    return RescuedRows(row, head, query, key, share)


def logits_of(call: Call, b: int, heads: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """[h, n, K] logits of rows of heads without any bias; -inf where a row may not look."""
    # With grouped queries several heads share a key head.
    group = heads * call.key.shape[1] // call.query.shape[1]
    query, key = call.query[b, heads][:, queries].float(), call.key[b, group].float()
    logits = query @ key.transpose(1, 2) * call.scale
    if call.extra_logits is not None:
        extra = call.extra_logits[b, heads][:, queries].float()
        logits[..., : call.num_extra_keys] = extra
    seen = visible(call)
    if seen is None:
        return logits
    return logits.masked_fill(~seen[b if seen.shape[0] > 1 else 0, 0, queries], -torch.inf)
