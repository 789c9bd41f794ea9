"""The obvious attention map in float64, and every statistic taken from it by loops."""

import math

import torch


def visible(call):
    """[B, Q, K] bool from the mask of a call, or from causality."""
    batch, _, queries, _ = call.query.shape
    keys = call.key.shape[2]
    if call.attendable is not None:
        return call.attendable[:, 0].expand(batch, queries, keys)
    if call.causal:
        return torch.ones(queries, keys, dtype=torch.bool).tril().expand(batch, queries, keys)
    return torch.ones(batch, queries, keys, dtype=torch.bool)


def dense(call):
    """[B, H, Q, K] float64 probabilities; a row that may look at nothing is all NaN."""
    heads, groups = call.query.shape[1], call.key.shape[1]
    key = call.key.double().repeat_interleave(heads // groups, dim=1)
    scores = call.query.double() @ key.transpose(2, 3) * call.scale
    return torch.softmax(scores.masked_fill(~visible(call)[:, None], -torch.inf), dim=-1)


def received(maps, weights):
    """[B, H, N, K] sums over the queries of each group, dead rows left out."""
    batch, heads, _, keys = maps.shape
    out = torch.zeros(batch, heads, weights.shape[1], keys, dtype=torch.float64)
    for b in range(batch):
        for group in range(weights.shape[1]):
            for query in weights[b, group].nonzero()[:, 0].tolist():
                if not maps[b, 0, query].isnan().any():
                    out[b, :, group] += maps[b, :, query]
    return out


def entropy(maps):
    """[B, H, Q] nats."""
    return -(maps * torch.where(maps > 0, maps, 1.0).log()).sum(-1)


def distance(maps, weights):
    """[B, H, K] mass at each distance, summed over the queries of group 0."""
    batch, heads, queries, keys = maps.shape
    out = torch.zeros(batch, heads, keys, dtype=torch.float64)
    offset = keys - queries
    for b in range(batch):
        for query in weights[b, 0].nonzero()[:, 0].tolist():
            if maps[b, 0, query].isnan().any():
                continue
            for key in range(keys):
                out[b, :, abs(query + offset - key)] += maps[b, :, query, key]
    return out


def geometry(query, key, scale):
    """Means over all queries, pair by pair: cosine, norm product and logit, [H, K] each."""
    heads, groups = query.shape[0], key.shape[0]
    key = key.double().repeat_interleave(heads // groups, dim=0)
    query = query.double()
    dots = query @ key.transpose(1, 2)
    norms = query.norm(dim=-1)[:, :, None] * key.norm(dim=-1)[:, None, :]
    return {
        "cosine": (dots / norms).mean(dim=1),
        "norm_product": norms.mean(dim=1),
        "logit": dots.mean(dim=1) * scale,
    }


def rollout(maps, onehot):
    """[layer, Q, R]: X <- (X + mean over heads of A X) / 2; maps are [layer, H, Q, K]."""
    state = onehot.double()
    out = []
    for layer in maps:
        state = (state + layer.double().mean(dim=0) @ state) / 2
        out.append(state)
    return torch.stack(out)


def effective_rank(states):
    spread = torch.linalg.svdvals(states.double())
    share = spread / spread.sum()
    return math.exp(-sum(float(s) * math.log(float(s)) for s in share if s > 0))


def mean_cosine(states):
    total, pairs = 0.0, 0
    for i in range(len(states)):
        for j in range(len(states)):
            if i != j:
                total += float(torch.cosine_similarity(states[i], states[j], dim=0))
                pairs += 1
    return total / pairs
