"""What released diffusion models compute, straight from their own tensors and config fields.

A plain twin of `aw.load` and `Model.logits`: nothing of transformers and nothing of ours, float64,
one canvas at a time. `draw(kind, seed)` makes a small random checkpoint of some shape under the
released names, `Twin(config, tensors)` computes it. Rows are as the network gives them, not shifted.
Shapes: T positions, H heads, K key-value heads, D numbers of a head, E experts.
"""

import random
from dataclasses import dataclass, field

import torch

MASK, EOS, VOCAB = 90, (88, 89), 96


def _normed(x, weight, eps):
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def _rotate(x, positions, theta, size):
    """[T, H, D] with the first `size` numbers of each head turned, the halves against each other."""
    turns = positions[:, None] / theta ** (torch.arange(0, size, 2).double() / size)
    cos, sin = turns.cos()[:, None], turns.sin()[:, None]
    first, second, rest = x[..., : size // 2], x[..., size // 2 : size], x[..., size:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


@dataclass
class Twin:
    """A released model, from config.json's fields and the file's tensors."""

    config: dict
    tensors: dict
    experts: dict = field(default_factory=dict)
    """By layer: [T, k] experts that the last pass chose, sorted."""
    margin: float = float("inf")
    """The least margin by which an expert was ever chosen before another."""
    kept: dict = field(default_factory=dict)
    """By layer: keys and values [T, K, D] of all positions, as far as they were computed."""

    def __post_init__(self):
        self.tensors = {name: tensor.double() for name, tensor in self.tensors.items()}

    def __call__(self, ids, visible=None, *, positions=None, rows=None):
        """Logits of `rows` (all); keys of other rows are those of the last pass that had them."""
        ids = torch.as_tensor(ids)
        rows = torch.arange(len(ids)) if rows is None else torch.as_tensor(rows)
        positions = torch.arange(len(ids)) if positions is None else positions
        visible = torch.ones(len(ids), len(ids), dtype=torch.bool) if visible is None else visible
        config, get = self.config, self.tensors.get
        released = config["architectures"][0]
        llada = released == "LLaDAModelLM"
        names = {
            "embed": "model.transformer.wte.weight" if llada else "model.embed_tokens.weight",
            "norm": "model.transformer.ln_f.weight" if llada else "model.norm.weight",
            "head": "model.transformer.ff_out.weight" if llada else "lm_head.weight",
        }
        if released == "LLaDA2MoeModelLM":
            names["embed"] = "model.word_embeddings.weight"
        embed, eps = get(names["embed"]), config["rms_norm_eps"]
        x = embed[ids[rows]]
        for layer in range(config.get("n_layers") or config["num_hidden_layers"]):
            x = x + self._attend(layer, x, positions, rows, visible, len(ids))
            x = x + self._mlp(layer, x)
        head = get(names["head"])
        return _normed(x, get(names["norm"]), eps) @ (embed if head is None else head).T

    def _attend(self, layer, x, positions, rows, visible, length):
        config, get = self.config, self.tensors.get
        # 1. Queries, keys and values under each family's names.
        llada = config["architectures"][0] == "LLaDAModelLM"
        heads = config["n_heads" if llada else "num_attention_heads"]
        groups = config["n_kv_heads" if llada else "num_key_value_heads"]
        block = f"model.transformer.blocks.{layer}." if llada else f"model.layers.{layer}."
        before = get(f"{block}{'attn_norm' if llada else 'input_layernorm'}.weight")
        x = _normed(x, before, config["rms_norm_eps"])
        size = config.get("head_dim") or config["d_model" if llada else "hidden_size"] // heads
        if (fused := get(f"{block}attention.query_key_value.weight")) is not None:
            fused_rows = x @ fused.T + get(f"{block}attention.query_key_value.bias", torch.zeros(1))
            q, k, v = fused_rows.split([heads * size, groups * size, groups * size], -1)
            norms = [get(f"{block}attention.{name}_layernorm.weight") for name in ("query", "key")]
            out = get(f"{block}attention.dense.weight")
        else:
            stem = block if llada else f"{block}self_attn."
            q, k, v = (
                x @ get(f"{stem}{n}_proj.weight").T + get(f"{stem}{n}_proj.bias", torch.zeros(1))
                for n in "qkv"
            )
            norms = [get(f"{stem}{n}_norm.weight") for n in "qk"]
            out = get(f"{block}attn_out.weight" if llada else f"{stem}o_proj.weight")
        q, k, v = q.view(-1, heads, size), k.view(-1, groups, size), v.view(-1, groups, size)
        if norms[0] is not None:
            q, k = (_normed(y, w, config["rms_norm_eps"]) for y, w in zip((q, k), norms, strict=1))
        turned = int(size * config.get("partial_rotary_factor", 1))
        q = _rotate(q, positions[rows], config["rope_theta"], turned)
        k = _rotate(k, positions[rows], config["rope_theta"], turned)
        # 2. Rows that were computed now replace what was kept of them.
        keys, values = self.kept.get(layer, (None, None))
        if keys is None or len(keys) != length:
            keys, values = k.new_zeros(length, groups, size), v.new_zeros(length, groups, size)
        keys[rows], values[rows] = k, v
        self.kept[layer] = keys, values
        # 3. Head by head: heads of a group share a key.
        mixed = []
        for head in range(heads):
            group = head // (heads // groups)
            scores = q[:, head] @ keys[:, group].T / size**0.5
            shares = scores.masked_fill(~visible[rows], -torch.inf).softmax(-1)
            mixed.append(shares.nan_to_num() @ values[:, group])
        return torch.cat(mixed, -1) @ out.T

    def _mlp(self, layer, x):
        config, get = self.config, self.tensors.get
        if config["architectures"][0] == "LLaDAModelLM":
            block = f"model.transformer.blocks.{layer}."
            x = _normed(x, get(f"{block}ff_norm.weight"), config["rms_norm_eps"])
            hidden = torch.nn.functional.silu(x @ get(f"{block}ff_proj.weight").T)
            hidden = hidden * (x @ get(f"{block}up_proj.weight").T)
            return hidden @ get(f"{block}ff_out.weight").T
        block = f"model.layers.{layer}."
        after = get(f"{block}post_attention_layernorm.weight")
        x = _normed(x, after, config["rms_norm_eps"])
        if f"{block}mlp.gate.weight" not in self.tensors:
            return self._swiglu(x, f"{block}mlp.")
        weights = self._route(layer, x)
        total = torch.zeros_like(x)
        for expert in range(config["num_experts"]):
            total += weights[:, expert, None] * self._swiglu(x, f"{block}mlp.experts.{expert}.")
        if f"{block}mlp.shared_experts.gate_proj.weight" in self.tensors:
            total += self._swiglu(x, f"{block}mlp.shared_experts.")
        return total

    def _swiglu(self, x, stem):
        gate, up, down = (self.tensors[f"{stem}{n}_proj.weight"] for n in ("gate", "up", "down"))
        return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T

    def _route(self, layer, x):
        """[T, E] weights of the experts, 0 where one was not chosen."""
        config, released = self.config, self.config["architectures"][0]
        scores = x @ self.tensors[f"model.layers.{layer}.mlp.gate.weight"].T
        each, ranks = config["num_experts_per_tok"], None
        if released == "LLaDA2MoeModelLM":
            scores = scores.sigmoid()
            bias = self.tensors.get(f"model.layers.{layer}.mlp.gate.expert_bias", torch.zeros(1))
            by_blocks = config.get("expert_capacity")
            ranks = (self._admitted if by_blocks else self._allowed)(scores + bias)
        else:
            scores = scores.softmax(-1)
            ranks = scores
        best = ranks.sort(-1, descending=True)
        if each < ranks.shape[-1]:
            self.margin = min(self.margin, float((best[0][:, each - 1] - best[0][:, each]).min()))
        chosen = best[1][:, :each]
        self.experts[layer] = chosen.sort(-1).values
        weights = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
        if released == "LLaDA2MoeModelLM":
            weights = weights / weights.sum(-1, keepdim=True) if each > 1 else weights
            return weights * config["routed_scaling_factor"]
        # LLaDA-MoE says norm_topk_prob and does not follow it.
        if released != "LLaDAMoEModelLM" and config.get("norm_topk_prob", True):
            weights = weights / weights.sum(-1, keepdim=True)
        return weights

    def _allowed(self, ranks):
        """Scores of experts outside the best groups, by their two best, as -inf."""
        groups, kept = self.config["n_group"], self.config["topk_group"]
        sums = ranks.view(len(ranks), groups, -1).topk(2, -1).values.sum(-1)
        best = sums.sort(-1, descending=True)
        if kept < groups:
            self.margin = min(self.margin, float((best[0][:, kept - 1] - best[0][:, kept]).min()))
        allowed = torch.zeros_like(sums, dtype=torch.bool).scatter(-1, best[1][:, :kept], True)
        return ranks.masked_fill(
            ~allowed.repeat_interleave(ranks.shape[1] // groups, 1), -torch.inf
        )

    def _admitted(self, ranks):
        """LLaDA2.2: scores of experts that a block does not admit, by its greatest, as -inf."""
        size, capacity = self.config["block_size"], self.config["expert_capacity"]
        rows = []
        for start in range(0, len(ranks), size):
            block = ranks[start : start + size]
            best = block.max(0).values.sort(descending=True)
            if capacity < len(best.values):
                self.margin = min(
                    self.margin, float(best.values[capacity - 1] - best.values[capacity])
                )
            out = torch.ones_like(best.indices, dtype=torch.bool)
            out[best.indices[:capacity]] = False
            rows.append(block.masked_fill(out, -torch.inf))
        return torch.cat(rows)


KINDS = ("llada", "dream", "sdar", "sdar-moe", "rnd1", "llada-moe", "llada2")
ARCHITECTURES = {
    "llada": ("LLaDAModelLM", "llada"),
    "dream": ("DreamModel", "Dream"),
    "sdar": ("SDARForCausalLM", "sdar"),
    "sdar-moe": ("SDARMoeForCausalLM", "sdar_moe"),
    "rnd1": ("RND1LM", "rnd1"),
    "llada-moe": ("LLaDAMoEModelLM", "llada"),
    "llada2": ("LLaDA2MoeModelLM", "llada2_moe"),
}


def draw(kind, seed, **fields):
    """(config, tensors) of a small random checkpoint; its shape is drawn, but for some `fields`."""
    pick, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
    groups, ratio = pick.choice([1, 2, 3]), pick.choice([1, 2, 4])
    heads, own = groups * ratio, kind in ("sdar", "sdar-moe", "rnd1", "llada2")
    size = pick.choice([4, 8, 12])
    # A head need not be width / heads where config.json has a head_dim.
    width = pick.choice([20, 32, 36]) if own else heads * size
    config = {
        "architectures": [ARCHITECTURES[kind][0]],
        "model_type": ARCHITECTURES[kind][1],
        "vocab_size": VOCAB,
        "hidden_size": width,
        "intermediate_size": pick.choice([24, 40]),
        "num_hidden_layers": pick.choice([1, 2, 4]),
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "max_position_embeddings": 128,
        "rms_norm_eps": pick.choice([1e-5, 1e-6]),
        "rope_theta": pick.choice([10000.0, 500000.0]),
        "tie_word_embeddings": pick.choice([False, True]),
        "mask_token_id": MASK,
        "eos_token_id": list(EOS),
        "pad_token_id": EOS[0],
        "hidden_act": "silu",
    }
    if own:
        config["head_dim"] = size
    if kind in ("sdar", "sdar-moe"):
        config["block_size"] = 4
    config |= _expert_fields(kind, pick, config["num_hidden_layers"])
    if kind == "llada":
        config = _as_llada(config)
    config |= fields
    tensors = {}
    for name, shape in _shapes(kind, config):
        # Weights of about unit gain; a head that makes logits of some size.
        scale = 1.5 / shape[-1] ** 0.5 if len(shape) > 1 else 0.2
        tensor = torch.randn(shape, generator=numbers) * scale
        tensor = tensor + 1 if "norm" in name or "ln_f" in name else tensor
        tensors[name] = tensor * 3 if name.endswith(("embeddings.weight", "wte.weight")) else tensor
    return config, tensors


def _expert_fields(kind, pick, layers):
    if kind in ("llada", "dream", "sdar"):
        return {}
    groups = pick.choice([1, 2, 4]) if kind == "llada2" else 1
    experts = groups * pick.choice([2, 3, 5])
    kept = pick.randint(1, groups)
    fields = {
        "num_experts": experts,
        "num_experts_per_tok": pick.randint(1, kept * experts // groups),
        "moe_intermediate_size": pick.choice([6, 16]),
    }
    dense = [layer for layer in range(layers) if pick.random() < 0.3]
    if kind == "llada2":
        return fields | {
            "n_group": groups,
            "topk_group": kept,
            "first_k_dense_replace": pick.randint(0, layers),
            "num_shared_experts": pick.choice([None, 0, 1, 2, 3]),
            "routed_scaling_factor": pick.choice([1.0, 2.5]),
            "partial_rotary_factor": pick.choice([0.5, 1.0]),
            "norm_topk_prob": pick.choice([True, False]),  # not followed by the released code
            "score_function": "sigmoid",
            "moe_router_enable_expert_bias": pick.choice([True, False]),
        }
    if kind == "llada-moe":
        fields["expert_intermediate_size"] = fields.pop("moe_intermediate_size")
        kinds = [int(layer not in dense) for layer in range(layers)]
        return fields | {
            "dense_intermediate_size": pick.choice([24, 40]),
            "moe_layer_freq": kinds,
            "norm_topk_prob": pick.choice([None, True]),
            "qk_layernorm": True,
        }
    fields |= {"norm_topk_prob": pick.choice([True, False]), "decoder_sparse_step": 1}
    return fields | {"mlp_only_layers": dense}


def _as_llada(config):
    names = {
        "hidden_size": "d_model",
        "intermediate_size": "mlp_hidden_size",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads",
        "max_position_embeddings": "max_sequence_length",
        "tie_word_embeddings": "weight_tying",
    }
    config = {names.get(name, name): value for name, value in config.items()}
    config["eos_token_id"] = EOS[0]
    return config | {"embedding_size": VOCAB, "block_type": "llama", "layer_norm_type": "rms"}


def _shapes(kind, config):
    """Released names and shapes."""
    if kind == "llada":
        yield from _llada_shapes(config)
        return
    width, heads = config["hidden_size"], config["num_attention_heads"]
    groups, size = config["num_key_value_heads"], config.get("head_dim") or width // heads
    embed = "word_embeddings" if kind == "llada2" else "embed_tokens"
    yield f"model.{embed}.weight", (VOCAB, width)
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}."
        yield f"{block}input_layernorm.weight", (width,)
        yield f"{block}post_attention_layernorm.weight", (width,)
        if kind == "llada2":
            yield f"{block}attention.query_key_value.weight", ((heads + 2 * groups) * size, width)
            yield f"{block}attention.dense.weight", (width, heads * size)
            yield f"{block}attention.query_layernorm.weight", (size,)
            yield f"{block}attention.key_layernorm.weight", (size,)
        else:
            for letter, count in (("q", heads), ("k", groups), ("v", groups)):
                yield f"{block}self_attn.{letter}_proj.weight", (count * size, width)
                if kind == "dream":
                    yield f"{block}self_attn.{letter}_proj.bias", (count * size,)
            yield f"{block}self_attn.o_proj.weight", (width, heads * size)
            if kind != "dream":
                yield f"{block}self_attn.q_norm.weight", (size,)
                yield f"{block}self_attn.k_norm.weight", (size,)
        yield from _mlp_shapes(kind, config, layer, width)
    yield "model.norm.weight", (width,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (VOCAB, width)


def _mlp_shapes(kind, config, layer, width):
    block, experts = f"model.layers.{layer}.mlp.", config.get("num_experts")
    hidden = config.get("moe_intermediate_size") or config.get("expert_intermediate_size")

    def swiglu(stem, rows):
        yield f"{stem}gate_proj.weight", (rows, width)
        yield f"{stem}up_proj.weight", (rows, width)
        yield f"{stem}down_proj.weight", (width, rows)

    dense = experts is None or layer in config.get("mlp_only_layers", ())
    dense = dense or layer < config.get("first_k_dense_replace", 0)
    if dense or not config.get("moe_layer_freq", [1] * 9)[layer]:
        own = config.get("dense_intermediate_size") or config["intermediate_size"]
        yield from swiglu(block, own)
        return
    yield f"{block}gate.weight", (experts, width)
    if config.get("moe_router_enable_expert_bias"):
        yield f"{block}gate.expert_bias", (experts,)
    if config.get("num_shared_experts"):
        yield from swiglu(f"{block}shared_experts.", hidden * config["num_shared_experts"])
    for expert in range(experts):
        yield from swiglu(f"{block}experts.{expert}.", hidden)


def _llada_shapes(config):
    width, hidden = config["d_model"], config["mlp_hidden_size"]
    keys = width // config["n_heads"] * config["n_kv_heads"]
    yield "model.transformer.wte.weight", (VOCAB, width)
    for layer in range(config["n_layers"]):
        block = f"model.transformer.blocks.{layer}."
        yield f"{block}attn_norm.weight", (width,)
        yield f"{block}ff_norm.weight", (width,)
        for name, rows in (("q_proj", width), ("k_proj", keys), ("v_proj", keys)):
            yield f"{block}{name}.weight", (rows, width)
        yield f"{block}attn_out.weight", (width, width)
        yield f"{block}ff_proj.weight", (hidden, width)
        yield f"{block}up_proj.weight", (hidden, width)
        yield f"{block}ff_out.weight", (width, hidden)
    yield "model.transformer.ln_f.weight", (width,)
    if not config["weight_tying"]:
        yield "model.transformer.ff_out.weight", (VOCAB, width)
