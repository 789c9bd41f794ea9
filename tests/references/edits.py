"""Edited attention the obvious way: one row at a time, in float64, every form by its definition."""

import torch

from references.attention import visible


def attended(call, change):
    """(maps [B, H, Q, K], output [B, Q, H, D]) of a call under a change; dead rows are NaN."""
    batch, heads, queries, size = call.query.shape
    keys = call.key.shape[2]
    repeats = heads // call.key.shape[1]
    seen = visible(call)
    maps = torch.full((batch, heads, queries, keys), torch.nan, dtype=torch.float64)
    out = torch.zeros(batch, queries, heads, size, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for q in range(queries):
                looked = seen[b, q].nonzero()[:, 0].tolist()
                if looked:
                    row, out[b, q, h] = _row(call, change, (b, h, q), h // repeats, looked)
                    maps[b, h, q] = row
    for b, h in change.mean.nonzero().tolist():
        before = out[b, :, h].clone()
        for q in range(queries):
            out[b, q, h] = before[seen[b, q]].mean(0)
    for b, h in change.zero.nonzero().tolist():
        out[b, :, h] = 0.0
    return maps, out


def _row(call, change, place, group, looked):
    b, h, q = place
    row = torch.zeros(call.key.shape[2], dtype=torch.float64)
    logits = {
        k: float(call.query[b, h, q].double() @ call.key[b, group, k].double()) * call.scale
        for k in looked
    }
    if change.uniform[b, h]:
        logits = dict.fromkeys(looked, 0.0)
    logits = {k: logit - float(change.penalty[b, h, k]) for k, logit in logits.items()}
    gone = {k for k in looked if change.logit[b, h, k]}
    if q == call.query.shape[2] - 1:
        gone |= {k for k in looked if change.last_logit[b, h, k]}
    zeroed = {k for k in looked if change.weight[b, h, k]}
    if gone | zeroed == set(looked):  # the last key stays: the one it looks at most
        best = max(looked, key=lambda k: logits[k])
        gone, zeroed = gone - {best}, zeroed - {best}
    left = [k for k in looked if k not in gone]
    top = max(logits[k] for k in left)
    weights = {k: torch.tensor(logits[k] - top, dtype=torch.float64).exp() for k in left}
    total = sum(weights.values())
    out = torch.zeros(call.value.shape[-1], dtype=torch.float64)
    mean = call.value[b, group, looked].double().mean(0)
    for k in left:
        if k in zeroed:
            continue
        row[k] = weights[k] / total
        value = call.value[b, group, k].double()
        if change.value_mean[b, h, k]:
            value = mean
        if change.value[b, h, k]:
            value = torch.zeros_like(value)
        out += row[k] * value
    return row, out
