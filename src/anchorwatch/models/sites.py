"""Where things are inside a network: its layers, attention modules, output projections, routers.

`SITES` has the paths of each kind of network, by `config.model_type`; `register_family(sites=...)`
adds one. Importable without torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from anchorwatch.errors import SpecError


@dataclass(frozen=True)
class Sites:
    """Paths inside one kind of network."""

    layers: str
    """The list of layers; a layer's first input is the residual stream before it."""
    output: str
    """The output projection, seen from a layer."""
    attention: str
    """The module that reads, attends and calls us, seen from a layer."""
    before_rotary: tuple[str, str] | None = None
    """Modules that give queries and keys before rotary, seen from a layer; None where fused."""
    has_rotary: bool = False
    shared: bool = False
    """One layer module is called for every layer (ALBERT)."""
    router: str = ""
    """The module that chooses experts, seen from a layer; it gives (logits, weights, indices)."""


_LLAMA = Sites(
    layers="model.layers",
    output="self_attn.o_proj",
    attention="self_attn",
    before_rotary=("self_attn.q_proj", "self_attn.k_proj"),
    has_rotary=True,
)
_QWEN3 = Sites(
    layers="model.layers",
    output="self_attn.o_proj",
    attention="self_attn",
    before_rotary=("self_attn.q_norm", "self_attn.k_norm"),
    has_rotary=True,
)
_QWEN3_MOE = replace(_QWEN3, router="mlp.gate")
SITES: dict[str, Sites] = {
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "glm4_moe": _QWEN3_MOE,
    "olmoe": _QWEN3_MOE,
    "mixtral": replace(_LLAMA, router="mlp.gate"),
    "gpt_oss": replace(_LLAMA, router="mlp.router"),
    "mistral": _LLAMA,
    "gemma": _LLAMA,
    "gpt2": Sites(layers="transformer.h", output="attn.c_proj", attention="attn"),
    "gpt_neox": Sites("gpt_neox.layers", "attention.dense", "attention", has_rotary=True),
    "bert": Sites("bert.encoder.layer", "attention.output.dense", "attention.self"),
    "roberta": Sites("roberta.encoder.layer", "attention.output.dense", "attention.self"),
    "distilbert": Sites("distilbert.transformer.layer", "attention.out_lin", "attention"),
    "albert": Sites(
        layers="albert.encoder.albert_layer_groups.0.albert_layers",
        output="attention.dense",
        attention="attention",
        shared=True,
    ),
    "esm": Sites(
        layers="esm.encoder.layer",
        output="attention.output.dense",
        attention="attention.self",
        has_rotary=True,
    ),
    "modernbert": Sites(layers="model.layers", output="attn.Wo", attention="attn", has_rotary=True),
}


def sites_of(network: Any) -> Sites:
    """The sites of a network; refuses where none are named."""
    kind = network.config.model_type
    if kind not in SITES:
        raise SpecError(
            f"no sites are named for {kind} networks, so their residual streams and projections "
            f"cannot be read: leave those probes out, or add {kind} to models/sites.py"
        )
    return SITES[kind]


def layer_modules(network: Any) -> list[Any]:
    """The layer modules in order; one module many times where it is shared."""
    sites = sites_of(network)
    # ALBERT calls one module for every layer: it stands in the list as often.
    modules = list(network.get_submodule(sites.layers))
    return modules * network.config.num_hidden_layers if sites.shared else modules


def attention_modules(network: Any) -> list[Any]:
    """The modules that read, attend and call us, in order."""
    path = sites_of(network).attention
    return [layer.get_submodule(path) for layer in layer_modules(network)]


KEY_NORMS = ("k_norm", "k_layernorm", "key_layernorm")
"""What networks call the module that normalises keys (QK-norm)."""


def normalises_keys(network: Any) -> bool:
    """Whether any layer normalises its keys, so that their norms hardly differ."""
    return any(
        getattr(module, name, None) is not None
        for module in attention_modules(network)
        for name in KEY_NORMS
    )


def router_modules(network: Any) -> dict[int, Any]:
    """The modules that choose experts, by layer; dense layers of a mixture have none."""
    sites = SITES.get(network.config.model_type)
    if sites is None or not sites.router:
        return {}
    parent, _, name = sites.router.rpartition(".")
    routers = {}
    for layer, module in enumerate(layer_modules(network)):
        mixture = module.get_submodule(parent)
        if hasattr(mixture, "experts"):
            routers[layer] = mixture.get_submodule(name)
    return routers


def output_modules(network: Any) -> list[Any]:
    """The output projections, in order."""
    path = sites_of(network).output
    return [layer.get_submodule(path) for layer in layer_modules(network)]


def output_rows(network: Any, layer: int) -> Any:
    """[H * D, width] the output projection as heads' channels by residual channels."""
    module = layer_modules(network)[layer].get_submodule(sites_of(network).output)
    weight = module.weight.detach()
    # GPT-2's Conv1D keeps its weight the other way round.
    return weight if type(module).__name__ == "Conv1D" else weight.T
