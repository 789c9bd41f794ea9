"""Parts the published way: tokens in the sequence and a dense mask, one row and head at a time."""

import torch

from references.networks import rms, rotate


def with_sinks(network, ids, embedding, *, position="front", visible=None, first=None):
    """Logits [T, V] of a stock network with sink tokens in its sequence and a (T + n)^2 mask.

    `visible` [T, T] says who may look at whom on the canvas; None is everyone at everyone. As
    published the first token of the sequence is at place 0; `first` puts it elsewhere.
    """
    n, length = len(embedding), len(ids)
    tokens = network.get_input_embeddings()(ids)
    front = position == "front"
    order = [embedding, tokens] if front else [tokens, embedding]
    whole = torch.cat(order)[None]
    canvas = slice(n, n + length) if front else slice(0, length)
    sinks = slice(0, n) if front else slice(length, length + n)
    mask = torch.zeros(n + length, n + length, dtype=torch.bool)
    mask[canvas, canvas] = True if visible is None else visible
    mask[canvas, sinks] = True
    mask[sinks, sinks] = torch.eye(n, dtype=torch.bool)
    places = torch.arange(n + length) + (first or 0)
    if not any(name.endswith("inv_freq") for name, _ in network.named_buffers()):
        places = torch.cat([torch.zeros(n, dtype=torch.long), torch.arange(length)])
        if network.config.model_type == "roberta":
            places += network.config.pad_token_id + 1
    out = network(inputs_embeds=whole, attention_mask=mask[None, None], position_ids=places[None])
    return out.logits[0, canvas]


def llama(network, ids, visible, *, sink=None, rotary=True, zero=False, gate=None, logit=None):
    """A Llama or Qwen2 forward pass by hand: dense softmax with one sink token or one logit.

    `sink` [width] passes through the layers beside the text; it sees only itself. With
    `rotary=False` its logit is a product before positions turn anything. `gate` is (W of each
    layer, factor); `logit` [layers, heads] is a key without a value.
    """
    config = network.config
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    size = config.hidden_size // heads
    base, eps = config.rope_parameters["rope_theta"], config.rms_norm_eps
    x = network.model.embed_tokens(ids)
    x = x if sink is None else torch.cat([sink[None], x])
    first = 0 if sink is None else 1
    places = torch.arange(len(x)) - first
    for at, layer in enumerate(network.model.layers):
        own = layer.self_attn
        read = rms(x, layer.input_layernorm.weight, eps)
        q = own.q_proj(read).view(-1, heads, size)
        k = own.k_proj(read).view(-1, groups, size)
        v = own.v_proj(read).view(-1, groups, size).clone()
        if zero and sink is not None:
            v[0] = 0
        turned = rotate(q, places, base).to(q.dtype), rotate(k, places, base).to(q.dtype)
        y = torch.empty_like(q)
        for head in range(heads):
            group = head // (heads // groups)
            logits = turned[0][:, head] @ turned[1][:, group].T * size**-0.5
            if sink is not None:
                if not rotary:
                    logits[:, 0] = q[:, head] @ k[0, group] * size**-0.5
                seen = torch.zeros_like(logits, dtype=torch.bool)
                seen[1:, 1:], seen[:, 0] = visible, True
            else:
                seen = visible
            logits = logits.masked_fill(~seen, -torch.inf)
            if logit is not None:
                more = logit[at, head].to(logits.dtype).expand(len(logits), 1)
                weights = torch.cat([logits, more], dim=-1).softmax(-1)[:, :-1]
            else:
                weights = logits.softmax(-1)
            y[:, head] = weights @ v[:, group]
        y = y.flatten(1)
        if gate is not None:
            weight, factor = gate
            by = torch.sigmoid(read @ weight[at].T) * factor
            y = y * by.repeat_interleave(y.shape[1] // by.shape[1], dim=-1)
        x = x + own.o_proj(y)
        x = x + layer.mlp(rms(x, layer.post_attention_layernorm.weight, eps))
    return network.lm_head(rms(x[first:], network.model.norm.weight, eps))
