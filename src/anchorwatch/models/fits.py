"""Parts fitted to a network: whether they can be, and the tensors that their words stand for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedModel

from anchorwatch.edits import spec as kinds
from anchorwatch.edits.spec import Numbers, Part
from anchorwatch.errors import ModelError, SpecError
from anchorwatch.models.attention import NAME
from anchorwatch.models.sites import sites_of

if TYPE_CHECKING:
    from anchorwatch.models.model import Model

BIAS_WIDTH = 0.02
"""Standard deviation of random key and value biases, as of most initial weights."""

_MOVING_TABLES = ("dynamic", "longrope")
"""Rotary tables that depend on the length of the text, and so would a sink token's key."""


@dataclass(frozen=True, eq=False)
class Fit:
    """A part and its tensors."""

    part: Part
    embedding: torch.Tensor | None = None
    """[n, width] of tokens."""
    logit: list[torch.Tensor] | None = None
    """[H] of each layer."""
    key: list[torch.Tensor] | None = None
    """[G, n, D] of each layer."""
    value: list[torch.Tensor] | None = None
    weight: list[torch.Tensor] | None = None
    """[outputs, width] of each layer's gate."""


@dataclass(frozen=True)
class Sizes:
    """What a network's parts must fit."""

    layers: int
    heads: int
    groups: int
    channels: int
    """Of a head."""
    reads: int
    """Width of what attention reads."""
    width: int
    """Of an embedding."""

    @classmethod
    def of(cls, network: PreTrainedModel) -> Sizes:
        config = network.config
        heads, width = int(config.num_attention_heads), int(config.hidden_size)
        return cls(
            layers=int(config.num_hidden_layers),
            heads=heads,
            groups=int(getattr(config, "num_key_value_heads", None) or heads),
            channels=int(getattr(config, "head_dim", None) or width // heads),
            reads=width,
            width=int(network.get_input_embeddings().weight.shape[1]),
        )


def check_parts(model: Model, parts: Iterable[Part]) -> None:
    """Refuse parts that a model cannot have; nothing is computed."""
    parts = tuple(parts)
    for part in parts:
        if part.lacks is not None:
            raise SpecError(
                f"a manifest knows only the digest of {part!r}'s {part.lacks}: give the numbers "
                "again, edits=[...] with the values the run had"
            )
        if isinstance(part, kinds.sink_token | kinds.register):
            _check_token(model, part)
        check_sizes(Sizes.of(model.network), part)
        if isinstance(part, kinds.gate) or getattr(part, "rotary", True) is False:
            sites_of(model.network)
    registers = [p for p in (*model.parts, *parts) if isinstance(p, kinds.register)]
    if len(registers) > 1:
        raise SpecError("two registers stand in one place: give one with n=2")
    kernel = model.network.config._attn_implementation
    if parts and kernel != NAME:
        raise ModelError(
            f"{model.source} computes its attention with {kernel!r}, where nothing can be added: "
            "aw.load the model afresh"
        )


def has_rotary(network: PreTrainedModel) -> bool:
    """Whether positions are rotations of queries and keys."""
    return any(name.endswith("inv_freq") for name, _ in network.named_buffers())


def windows_of(network: PreTrainedModel) -> list[int | None] | None:
    """How far each layer sees, as transformers counts; None where every layer sees all."""
    config = network.config
    window = getattr(config, "sliding_window", None)
    if not window or not getattr(config, "use_sliding_window", True):
        return None
    layers = getattr(config, "layer_types", None)
    layers = layers or ["sliding_attention"] * int(config.num_hidden_layers)
    return [int(window) if kind == "sliding_attention" else None for kind in layers]


def check_windows(network: PreTrainedModel, source: str) -> None:
    """Refuse a register, which all see and which sees all, where some layer sees only nearby."""
    if any(windows_of(network) or ()):
        raise SpecError(
            f"{source} has sliding-window layers, where a register sees and is seen only nearby: "
            "use sink_token"
        )


def fit_addition(part: Part, model: Model) -> Fit:
    """The tensors of a part that a run was given."""
    network, sizes = model.network, Sizes.of(model.network)
    at = {"device": network.device, "dtype": network.dtype}
    first = initial(part, network, model.specials.bos_id, model.specials.mask_id)
    made: dict[str, Any] = {}
    for name, value in first.items():
        if name == "embedding":
            made[name] = value.to(**at)
        else:
            made[name] = [value[layer].to(**at) for layer in range(sizes.layers)]
    return Fit(part, **made)


def initial(
    part: Part, network: PreTrainedModel, bos_id: int | None, mask_id: int | None
) -> dict[str, torch.Tensor]:
    """The numbers that a part begins with, float32, one for each layer where it has layers."""
    sizes = Sizes.of(network)
    if isinstance(part, kinds.sink_token | kinds.register):
        return {"embedding": _embedding(part, network, bos_id, mask_id)}
    if isinstance(part, kinds.off_by_one):
        return {"logit": torch.zeros(sizes.layers, sizes.heads)}
    if isinstance(part, kinds.sink_logit):
        held = part.logit.array if isinstance(part.logit, Numbers) else part.logit
        logit = torch.tensor(held, dtype=torch.float32)
        return {"logit": logit.expand(sizes.layers, sizes.heads).clone()}
    if isinstance(part, kinds.kv_bias):
        return {name: _bias(part, name, sizes) for name in ("key", "value")}
    assert isinstance(part, kinds.gate)
    return {"weight": _gate_weight(part, sizes)}


def _check_token(model: Model, part: kinds.sink_token | kinds.register) -> None:
    kind, seen = type(part).__name__, model.family.visibility
    if isinstance(part, kinds.register) and seen != "bidirectional":
        why = "is a sink token there" if seen == "causal" else "would show early blocks late ones"
        raise SpecError(f"{model.source} is {seen}, and a register {why}: use sink_token")
    if isinstance(part, kinds.register):
        check_windows(model.network, model.source)
    if part.embedding == "mask" and model.specials.mask_id is None:
        raise SpecError(f"{model.source} has no mask token: use embedding='mean' or 'start'")
    if part.embedding == "start" and model.specials.bos_id is None:
        raise SpecError(f"{model.source} names no start token: use embedding='mean' or 'mask'")
    if isinstance(part, kinds.register):
        return
    rotary = has_rotary(model.network)
    if part.position == "end":
        if seen == "causal":
            raise SpecError(f"{model.source} is causal and sees no end: use position='front'")
        if not rotary:
            raise SpecError(
                f"{model.source} has a table of positions, which ends: use position='front'"
            )
    said = getattr(model.network.config, "rope_parameters", None) or {}
    if part.rotary and rotary and said.get("rope_type") in _MOVING_TABLES:
        raise SpecError(
            f"the rotary table of {model.source} depends on the length of the text, and so would "
            f"the {kind}'s key: use rotary=False"
        )


def check_sizes(sizes: Sizes, part: Part) -> None:
    """Refuse numbers of other shapes than a network's."""
    outputs = sizes.heads * (1 if getattr(part, "form", "") == "headwise" else sizes.channels)
    bias = [sizes.layers, sizes.groups, part.columns, sizes.channels]
    expected = {
        "embedding": [[part.columns, sizes.width]],
        "logit": [[sizes.heads], [sizes.layers, sizes.heads]],
        "key": [bias],
        "value": [bias],
        "weight": [[sizes.layers, outputs, sizes.reads]],
    }
    for name, shapes in expected.items():
        held = getattr(part, name, None)
        if not isinstance(held, Numbers) or held.array is None:
            continue
        if list(held.array.shape) not in shapes:
            raise SpecError(
                f"{type(part).__name__}'s {name} has shape {list(held.array.shape)}: this "
                f"network takes {' or '.join(map(str, shapes))}"
            )


def _embedding(
    part: Any, network: PreTrainedModel, bos_id: int | None, mask_id: int | None
) -> torch.Tensor:
    """[n, width], as the network's own embedding would give it."""
    if isinstance(part.embedding, Numbers):
        assert part.embedding.array is not None
        return torch.tensor(part.embedding.array)
    table = network.get_input_embeddings()
    rows = table.weight.detach()
    if part.embedding in ("start", "mask"):
        token = bos_id if part.embedding == "start" else mask_id
        row = table(torch.tensor([token], device=rows.device)).detach().float().cpu()
        return row.expand(part.n, -1).clone()
    scale = float(getattr(table, "embed_scale", 1.0))
    if part.embedding == "mean":
        return (rows.float().mean(dim=0) * scale).cpu().expand(part.n, -1).clone()
    width = float(rows.float().square().mean().sqrt()) * scale
    draw = np.random.default_rng(part.seed)
    return torch.tensor(draw.standard_normal((part.n, rows.shape[1])), dtype=torch.float32) * width


def _bias(part: kinds.kv_bias, name: str, sizes: Sizes) -> torch.Tensor:
    held = getattr(part, name)
    if isinstance(held, Numbers):
        assert held.array is not None
        return torch.tensor(held.array)
    shape = (sizes.layers, sizes.groups, part.n, sizes.channels)
    if held == "zero":
        return torch.zeros(shape)
    draw = np.random.default_rng([part.seed, name == "value"])
    return torch.tensor(draw.standard_normal(shape), dtype=torch.float32) * BIAS_WIDTH


def _gate_weight(part: kinds.gate, sizes: Sizes) -> torch.Tensor:
    if part.weight is not None:
        assert part.weight.array is not None
        return torch.tensor(part.weight.array)
    outputs = sizes.heads * (1 if part.form == "headwise" else sizes.channels)
    shape = (sizes.layers, outputs, sizes.reads)
    if part.init == "identity":
        return torch.zeros(shape)
    draw = np.random.default_rng(part.seed)
    noise = torch.tensor(draw.standard_normal(shape), dtype=torch.float32)
    return noise * (2 / (5 * sizes.reads)) ** 0.5
