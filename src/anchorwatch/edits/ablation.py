"""One attention call with keys hidden and heads taken out, by the fused kernel; no map is held.

A hidden column is a bias on the logits; zeroed weights and changed values are other values under
the same weights; heads are taken out of the query (uniform) or of the output (zero, mean).
Shapes: B rows, H heads, G key heads, Q queries, K keys, D channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from anchorwatch.models.attention import Call, visible, weigh_values


@dataclass
class AttentionPatch:
    """What to change in one call. Keys are [B, H, K], heads are [B, H]."""

    logit: torch.Tensor
    """bool: -inf before the softmax."""
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

    @classmethod
    def nothing(cls, call: Call) -> AttentionPatch:
        """A change that changes nothing yet."""
        batch, heads = call.query.shape[:2]
        keys, device = call.key.shape[2], call.query.device

        def none(*more: int, dtype: torch.dtype = torch.bool) -> torch.Tensor:
            return torch.zeros(batch, heads, *more, dtype=dtype, device=device)

        by_key = {name: none(keys) for name in ("logit", "weight", "value", "value_mean")}
        by_head = {name: none() for name in ("zero", "mean", "uniform")}
        return cls(penalty=none(keys, dtype=torch.float32), **by_key, **by_head)

    @property
    def is_nothing(self) -> bool:
        return not any(bool(held.any()) for held in vars(self).values())

    @property
    def emptied(self) -> torch.Tensor:
        """[B, H, K] bool: columns that are to be empty."""
        return self.logit | self.weight


@dataclass(frozen=True)
class RescuedRows:
    """Rows that would have lost their last key, and the key each keeps: [n] places."""

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
    """An edited call: its output [B, Q, H, D], what probes see, and rows that were spared."""

    out: torch.Tensor
    call: Call
    spared: RescuedRows
    before_heads: torch.Tensor
    """[B, k, H, D] output before heads were taken out of it, of earlier rows too."""


def unpatched_call(call: Call, out: torch.Tensor) -> PatchedCall:
    """A call that nothing changed, in the same words."""
    none = torch.zeros(0, dtype=torch.long, device=out.device)
    return PatchedCall(out, call, RescuedRows(none, none, none, none, none.float()), out)


def apply_patch(
    plain: Call, change: AttentionPatch, before: torch.Tensor | None = None
) -> PatchedCall:
    """The call with the change. `before` [B, k, H, D] is output of earlier rows under a cache."""
    query, added = plain.query, plain.added
    if bool(change.uniform.any()):
        even = change.uniform[..., None, None]
        query = query.masked_fill(even, 0.0)
        if added is not None:
            added = added.masked_fill(even & (added > -torch.inf), 0.0)
    call = replace(plain, query=query, added=added)
    spared = _find_rescued_rows(call, change)
    call = replace(
        call, bias=_bias(call, change, spared), dropped=_dropped_weights(call, change, spared)
    )
    value = plain.value.repeat_interleave(query.shape[1] // plain.value.shape[1], dim=1)
    emptied = change.weight | change.value | change.value_mean
    inner = value.masked_fill(emptied[..., None], 0.0) if bool(emptied.any()) else value
    out, lse = weigh_values(call, inner)
    kept = change.weight[spared.row, spared.head, spared.key]
    if bool(kept.any()):  # its one key was zeroed with the others and is given back
        s = RescuedRows(*(held[kept] for held in vars(spared).values()))
        back = s.share[:, None].to(out.dtype) * value[s.row, s.head, s.key]
        out[s.row, s.query, s.head] += back
    if bool(change.value_mean.any()):
        hidden = change.value_mean[..., None].to(value.dtype).expand_as(value).contiguous()
        out = out + weigh_values(call, hidden)[0] * _mean(plain, value).transpose(1, 2)
    seen = _visible_values(plain, change, value)
    rows = out if before is None else torch.cat([before, out], dim=1)
    seen_call = replace(call, lse=lse, value=seen)
    return PatchedCall(_heads(plain, change, out, rows), seen_call, spared, rows)


def _heads(
    plain: Call, change: AttentionPatch, out: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Output with heads taken out."""
    if bool(change.mean.any()):
        out = torch.where(
            change.mean[:, None, :, None], _mean(plain, rows.transpose(1, 2)).transpose(1, 2), out
        )
    return out.masked_fill(change.zero[:, None, :, None], 0.0)


def _mean(call: Call, states: torch.Tensor) -> torch.Tensor:
    """[B, H, Q, D]: the mean of [B, H, K, D] over the positions each row may look at.

    Added keys are no positions: states may hold them (values do) or not (outputs do not).
    """
    seen, keys = visible(call), call.key.shape[2] - call.num_added
    states = states[:, :, -keys:]
    if seen is None:
        return states.mean(dim=2, keepdim=True).expand(-1, -1, call.query.shape[2], -1)
    seen = seen[..., -keys:]
    share = seen.float() / seen.sum(dim=-1, keepdim=True).clamp(min=1)
    return (share @ states.float()).to(states.dtype)


def _visible_values(plain: Call, change: AttentionPatch, value: torch.Tensor) -> torch.Tensor:
    """Values as probes see them: zeroed or replaced (by the last row's mean), else the call's."""
    if not bool((change.value | change.value_mean).any()):
        return plain.value
    shown = value.masked_fill(change.value[..., None], 0.0)
    if bool(change.value_mean.any()):
        last = _mean(plain, value)[:, :, -1:]
        shown = torch.where(change.value_mean[..., None], last, shown)
    return shown


def _bias(call: Call, change: AttentionPatch, spared: RescuedRows) -> torch.Tensor | None:
    if not bool(change.logit.any()) and not bool(change.penalty.any()):
        return None
    bias = (-change.penalty).masked_fill(change.logit, -torch.inf)[:, :, None]
    if not len(spared.row):
        return bias
    bias = bias.expand(-1, -1, call.query.shape[2], -1).clone()
    lowered = -change.penalty[spared.row, spared.head, spared.key]
    bias[spared.row, spared.head, spared.query, spared.key] = lowered
    return bias


def _dropped_weights(
    call: Call, change: AttentionPatch, spared: RescuedRows
) -> torch.Tensor | None:
    if not bool(change.weight.any()):
        return None
    dropped = change.weight[:, :, None]
    if len(spared.row):
        dropped = dropped.expand(-1, -1, call.query.shape[2], -1).clone()
        dropped[spared.row, spared.head, spared.query, spared.key] = False
    return dropped


def _find_rescued_rows(call: Call, change: AttentionPatch) -> RescuedRows:
    """Rows that may look at something and would be left with nothing."""
    emptied, seen = change.emptied, visible(call)
    queries, n = call.query.shape[2], call.num_added
    if call.added is not None:  # what a head does not see cannot be its last key
        emptied = emptied.clone()
        emptied[..., :n] |= (call.added == -torch.inf).all(dim=2)
    if seen is None:
        bare = emptied.all(dim=-1, keepdim=True).expand(-1, -1, queries)
    else:
        total = seen.sum(dim=-1)  # [B or 1, 1, Q]
        lost = emptied.float() @ seen[:, 0].float().transpose(1, 2)  # [B, H, Q]
        bare = (lost >= total - 0.5) & (total > 0)
    row, head, query = bare.nonzero(as_tuple=True)
    key, share = torch.zeros_like(row), torch.zeros(len(row), device=row.device)
    for b, h in {(int(b), int(h)) for b, h in zip(row, head, strict=True)}:
        mine = (row == b) & (head == h)
        logits = logits_of(call, b, h, query[mine]) - change.penalty[b, h]
        best = logits.argmax(dim=-1)
        hidden = change.logit[b, h].expand_as(logits).clone()
        hidden[torch.arange(len(best)), best] = False
        shares = logits.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        key[mine], share[mine] = best, shares.gather(-1, best[:, None])[:, 0]
    return RescuedRows(row, head, query, key, share)


def logits_of(call: Call, b: int, h: int, queries: torch.Tensor) -> torch.Tensor:
    """[n, K] logits of some rows of one head without any bias; -inf where a row may not look."""
    group = h * call.key.shape[1] // call.query.shape[1]
    logits = call.query[b, h, queries].float() @ call.key[b, group].float().T * call.scale
    if call.added is not None:
        logits[:, : call.num_added] = call.added[b, h, queries].float()
    seen = visible(call)
    if seen is None:
        return logits
    return logits.masked_fill(~seen[b if seen.shape[0] > 1 else 0, 0, queries], -torch.inf)
