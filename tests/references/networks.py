"""Slow, obvious forward passes: dense softmax, explicit masks, one head at a time."""

import math

import torch


def dense_attention(query, key, value, visible):
    """[T, H, D] queries on [T, G, D] keys and values; visible [T, T] says who may look at whom."""
    heads, groups = query.shape[1], key.shape[1]
    out = torch.empty_like(query)
    for head in range(heads):
        group = head // (heads // groups)
        scores = query[:, head] @ key[:, group].T / math.sqrt(query.shape[-1])
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
        out[:, head] = weights @ value[:, group]
    return out


def rotate(x, positions, base):
    """Rotary positions, halves rotated, on [T, H, D]."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * base ** (-torch.arange(half) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def rms(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def lit_gpt(tensors, ids, *, layers, heads, groups, sink_id=None, eps=1e-5, base=10000.0):
    """SMDM's TransEncoder with OneTokenIsEnough's extras, straight from the fused tensors."""
    gated = any(".attn.gate." in name for name in tensors)
    ids = ids if sink_id is None else torch.cat([torch.tensor([sink_id]), ids])
    x = tensors["transformer.wte.weight"][ids]
    length, width = x.shape
    size = width // heads
    per_group = heads // groups
    visible = torch.ones(length, length, dtype=torch.bool)
    if sink_id is not None:
        visible[0, 1:] = False
    positions = torch.arange(length)
    for layer in range(layers):
        at = f"transformer.h.{layer}."
        n = rms(x, tensors[at + "norm_1.weight"], eps)
        fused = (n @ tensors[at + "attn.attn.weight"].T).view(length, groups, per_group + 2, size)
        query = fused[:, :, :per_group].reshape(length, heads, size)
        key, value = fused[:, :, per_group], fused[:, :, per_group + 1]
        query, key = rotate(query, positions, base), rotate(key, positions, base)
        y = dense_attention(query, key, value, visible).reshape(length, width)
        if gated:
            y = y * torch.sigmoid(n @ tensors[at + "attn.gate.weight"].T)
        x = x + y @ tensors[at + "attn.proj.weight"].T
        n = rms(x, tensors[at + "norm_2.weight"], eps)
        gate = torch.nn.functional.silu(n @ tensors[at + "mlp.swiglu.w1.weight"].T)
        up = n @ tensors[at + "mlp.swiglu.w2.weight"].T
        x = x + (gate * up) @ tensors[at + "mlp.swiglu.w3.weight"].T
    x = rms(x, tensors["transformer.ln_f.weight"], eps)
    x = x if sink_id is None else x[1:]
    return x @ tensors["lm_head.weight"].T
