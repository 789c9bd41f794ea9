"""Trained parts: how a checkpoint holds them, and how a network in training does.

config.json says which: `"anchorwatch": {"parts": [part.as_dict(), ...]}`. Tensors hold the numbers:
`anchorwatch.sink` and `anchorwatch.register` [n, width]; at the attention module of each layer
`gate.weight` [outputs, width], `sink_logit` [heads], `sink_key` and `sink_value`
[key heads, n, channels]. off_by_one has none. A digest in config.json must be its tensor's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from anchorwatch.edits import spec as kinds
from anchorwatch.edits.spec import Edit, Numbers, Part
from anchorwatch.errors import ModelError, SpecError, WeightsError
from anchorwatch.models.additions import (
    ActiveAddition,
    Fit,
    PassAdditions,
    Sizes,
    check_sizes,
    check_windows,
    initial,
    needs_reading,
    prepare_additions,
    remember,
    with_registers,
)
from anchorwatch.models.attention import NAME, active_additions, register, use_additions
from anchorwatch.models.families import attention_modules, sites_of

_DRESSER = "_anchorwatch_dresser"
_AT_LAYERS = ("gate.weight", "sink_logit", "sink_key", "sink_value")


def read_declared_parts(config: Mapping[str, Any]) -> tuple[Part, ...]:
    """The parts that config.json names."""
    said = config.get("anchorwatch") or {}
    listed = said.get("parts", []) if isinstance(said, Mapping) else None
    if not isinstance(listed, list):
        raise ModelError('config.json: expected "anchorwatch": {"parts": [...]}')
    try:
        return trainable(kinds.from_dict(fields) for fields in listed)
    except (SpecError, TypeError, ValueError) as error:
        raise ModelError(f"config.json names a part that cannot be: {error}") from error


def trainable(edits: Iterable[Edit]) -> tuple[Part, ...]:
    """Edits that a model can have as parts of its own, or a refusal."""
    found: dict[str, Part] = {}
    for edit in edits:
        if not isinstance(edit, Part) or edit.steps is not None or edit.progress is not None:
            raise SpecError(
                f"{edit!r} is no part of a model: expected what is always on, such as "
                "sink_token() or gate()"
            )
        if (name := type(edit).__name__) in found:
            raise SpecError(f"{name} is there twice: a model has one of each kind")
        found[name] = edit
    return tuple(found.values())


def tensor_names(network: PreTrainedModel, parts: Iterable[Part]) -> dict[str, tuple[Part, str]]:
    """Names of the tensors of some parts, and of each its part and field."""
    found: dict[str, tuple[Part, str]] = {}
    for part in parts:
        if kind := _token(part):
            found[f"anchorwatch.{kind}"] = (part, "embedding")
        for field, name in _fields(part).items():
            found |= {at: (part, field) for at in _paths(network, part, name).values()}
    return found


def check_tensors(network: PreTrainedModel, parts: Iterable[Part], names: Iterable[str]) -> None:
    """Refuse a file whose tensors are not those of the parts that config.json names."""
    expected, there = tensor_names(network, parts), set(names)
    for name, (part, _) in expected.items():
        if name not in there:
            raise WeightsError(
                f"config.json names {type(part).__name__} and the file has no {name}: "
                "the parts and the weights do not belong together"
            )
    ours = re.compile(r"anchorwatch\..*|.*\.(" + "|".join(map(re.escape, _AT_LAYERS[1:])) + ")")
    for name in sorted(there - set(expected)):
        if ours.fullmatch(name):
            raise WeightsError(
                f"the file holds {name} and config.json names no part for it: "
                'add the part to "anchorwatch": {"parts": [...]}'
            )


def attach_trained_numbers(
    network: PreTrainedModel, parts: Sequence[Part], tensors: Mapping[str, torch.Tensor]
) -> tuple[Part, ...]:
    """The parts with their trained numbers; refuses tensors that are not those of a digest."""
    found = []
    names = tensor_names(network, parts)
    for part in parts:
        held: dict[str, list[torch.Tensor]] = {}
        for name, (owner, field) in names.items():
            if owner is part:
                held.setdefault(field, []).append(tensors[name].detach().float().cpu())
        now: dict[str, Any] = {}
        for field, arrays in held.items():
            whole = arrays[0] if field == "embedding" else _whole(network, part, arrays)
            now[field] = Numbers.of(whole.numpy())
            said = getattr(part, field)
            if isinstance(said, Numbers) and said != now[field]:
                raise WeightsError(
                    f"the {field} of {type(part).__name__} in the file is not the one that "
                    "config.json names by its digest: the parts and the weights do not belong "
                    "together"
                )
        found.append(replace(part, **now))
    return tuple(found)


def attach(
    network: PreTrainedModel,
    parts: Sequence[Part],
    *,
    bos_id: int | None = None,
    mask_id: int | None = None,
) -> None:
    """Give a network parts as parameters, worn in every forward pass of it.

    They begin as their values say; `bos_id` and `mask_id` are for embeddings made of those tokens.
    On a network without weights (meta) they hold nothing yet. Its attention becomes ours. Parts it
    has already stay.
    """
    if not parts:
        return
    before = network.__dict__.get(_DRESSER)
    trainable([*(() if before is None else before.parts), *parts])
    sizes, meta = Sizes.of(network), network.device.type == "meta"
    for part in parts:
        _check(network, sizes, part)
    register()
    network.set_attn_implementation(NAME)
    for part in parts:
        first = _empty(part, sizes) if meta else initial(part, network, bos_id, mask_id)
        for field, values in first.items() if _all_fields(part) else ():
            if field == "embedding":
                _put(_holder(network), _token(part), values, network)
                continue
            for layer, module in _attention_modules(network, part).items():
                _put(module, _fields(part)[field], values[layer], network)
    if before is None:
        before = network.__dict__[_DRESSER] = _AdditionHook(network)
        network.base_model.register_forward_pre_hook(before, with_kwargs=True)
        network.base_model.register_forward_hook(_undress, with_kwargs=True, always_call=True)
    before.parts += tuple(part.everywhere for part in parts)
    if needs_reading([Fit(part, weight=[] if _gates(part) else None) for part in parts]):
        for module in dict.fromkeys(attention_modules(network)):  # twice does no harm
            module.register_forward_pre_hook(remember, with_kwargs=True)


def _check(network: PreTrainedModel, sizes: Sizes, part: Part) -> None:
    config, kind = network.config, type(part).__name__
    check_sizes(sizes, part)
    for name, size in (("layers", sizes.layers), ("heads", sizes.heads)):
        if (last := max(getattr(part, name) or (0,))) >= size:
            raise SpecError(
                f"{kind}({name}=[{last}]) is not there: this network has {name} 0 to {size - 1}"
            )
    if _fields(part) and sites_of(network).shared:
        raise SpecError(
            f"{config.model_type} has one module for all layers and cannot train {kind}: "
            "give it to a run as an edit"
        )
    causal = getattr(config, "is_causal", True)
    if hasattr(config, "is_decoder"):  # BERT's kind
        causal = config.is_decoder
    if causal and (isinstance(part, kinds.register) or getattr(part, "position", "") == "end"):
        raise SpecError(
            f"{part!r} is for networks that look both ways: use sink_token(), or set "
            "config.is_causal = False before the network is built"
        )
    if isinstance(part, kinds.register):
        check_windows(network, config.model_type)


def held_fit(network: PreTrainedModel, part: Part) -> Fit:
    """A trained part with the network's own parameters."""
    if kind := _token(part):
        return Fit(part, embedding=getattr(network.anchorwatch, kind))
    sizes = Sizes.of(network)
    made: dict[str, Any] = {}
    if isinstance(part, kinds.off_by_one):
        zeros = torch.zeros(sizes.heads, device=network.device, dtype=network.dtype)
        return Fit(part, logit=[zeros] * sizes.layers)
    for field, name in _fields(part).items():
        modules = _attention_modules(network, part)
        made[field] = [
            _get(modules[layer], name) if layer in modules else torch.empty(0)
            for layer in range(sizes.layers)
        ]
    return Fit(part, **made)


class _AdditionHook:
    """A hook before the base model: a network that is called bare wears its own parts."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network
        self.parts: tuple[Part, ...] = ()

    def __call__(
        self, base: Any, args: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if active_additions() is not None:  # Model has dressed it, or a token passes alone
            return None
        network = self.network
        if base.training and getattr(network, "is_gradient_checkpointing", False):
            raise ModelError(
                "gradient checkpointing computes layers again when their parts are gone: "
                "train without it"
            )
        first = next(
            held
            for held in (*args, given.get("input_ids"), given.get("inputs_embeds"))
            if held is not None
        )
        on = [ActiveAddition(held_fit(network, part)) for part in self.parts]
        dress = prepare_additions(network, on, _ends(first, given), None)
        if dress.registers is not None:
            args, given = _prepend_registers(network, dress.registers.fit, args, dict(given))
        context = use_additions(dress)
        context.__enter__()
        base.__dict__["_anchorwatch_context"] = context
        return args, given


def _ends(first: torch.Tensor, given: Mapping[str, Any]) -> list[int]:
    """Where each row of a bare call ends, padding on its right left out."""
    positions, past = given.get("position_ids"), given.get("past_key_values")
    if positions is not None:
        return (positions[:, -1] + 1).expand(len(first)).tolist()
    before = 0 if past is None else int(past.get_seq_length())
    real = given.get("attention_mask")
    if real is None or real.ndim != 2:
        return [first.shape[1] + before] * len(first)
    return (real.shape[1] - real.flip(1).argmax(dim=1)).tolist()


def _undress(base: Any, args: tuple[Any, ...], given: dict[str, Any], output: Any) -> Any:
    """A hook after the base model: take the parts off, and the registers' rows."""
    context = base.__dict__.pop("_anchorwatch_context", None)
    if context is None:
        return None
    dress = active_additions()
    context.__exit__(None, None, None)
    if output is None or not isinstance(dress, PassAdditions) or dress.registers is None:
        return None
    count = dress.registers.fit.part.columns
    output.last_hidden_state = output.last_hidden_state[:, count:]
    return output


def _prepend_registers(
    network: PreTrainedModel, fit: Fit, args: tuple[Any, ...], given: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A bare call with registers in front of every row."""
    ids = args[0] if args else given.pop("input_ids", None)
    rows = given.pop("inputs_embeds", None)
    rows = network.get_input_embeddings()(ids) if rows is None else rows
    assert fit.embedding is not None
    n = len(fit.embedding)
    given["inputs_embeds"] = torch.cat(
        [fit.embedding.to(rows.dtype).expand(len(rows), -1, -1), rows], dim=1
    )
    mask = given.get("attention_mask")
    if mask is not None:
        if mask.ndim != 2:
            raise SpecError("registers are trained with attention masks [rows, positions] only")
        given["attention_mask"] = torch.nn.functional.pad(mask, (n, 0), value=1)
    places = given.get("position_ids")
    if places is None:
        places = torch.arange(rows.shape[1], device=rows.device)[None]
    given["position_ids"] = with_registers(network, places, n)
    return args[1:], given


def _fields(part: Part) -> dict[str, str]:
    """Fields of a part that each layer has its own numbers of, and what those are called."""
    if isinstance(part, kinds.gate):
        return {"weight": "gate.weight"}
    if isinstance(part, kinds.sink_logit):
        return {"logit": "sink_logit"}
    if isinstance(part, kinds.kv_bias):
        return {"key": "sink_key", "value": "sink_value"}
    return {}


def _token(part: Part) -> str:
    """What a token's embedding is called; empty for other parts."""
    if isinstance(part, kinds.sink_token):
        return "sink"
    return "register" if isinstance(part, kinds.register) else ""


def _gates(part: Part) -> bool:
    return isinstance(part, kinds.gate)


def _attention_modules(network: PreTrainedModel, part: Part) -> dict[int, Any]:
    """Attention modules of the layers a part is at."""
    modules = attention_modules(network)
    heads = Sizes.of(network).heads
    return {at: module for at, module in enumerate(modules) if part.heads_at(at, heads)}


def _paths(network: PreTrainedModel, part: Part, name: str) -> dict[int, str]:
    sites = sites_of(network)
    return {
        layer: f"{sites.layers}.{layer}.{sites.attention}.{name}"
        for layer in _attention_modules(network, part)
    }


def _whole(network: PreTrainedModel, part: Part, arrays: list[torch.Tensor]) -> torch.Tensor:
    """[layers, ...] with zeros at layers that the part leaves alone."""
    layers = list(_attention_modules(network, part))
    whole = torch.zeros(Sizes.of(network).layers, *arrays[0].shape)
    whole[layers] = torch.stack(arrays)
    return whole


def _empty(part: Part, sizes: Sizes) -> dict[str, torch.Tensor]:
    """Shapes of a part's numbers, on no device."""
    outputs = sizes.heads * (1 if getattr(part, "form", "") == "headwise" else sizes.channels)
    bias = (sizes.layers, sizes.groups, part.columns, sizes.channels)
    shapes: dict[str, tuple[int, ...]] = {
        "weight": (sizes.layers, outputs, sizes.reads),
        "logit": (sizes.layers, sizes.heads),
        "key": bias,
        "value": bias,
    }
    if _token(part):
        return {"embedding": torch.empty(part.columns, sizes.width, device="meta")}
    return {field: torch.empty(shapes[field], device="meta") for field in _fields(part)}


def _holder(network: PreTrainedModel) -> torch.nn.Module:
    if not hasattr(network, "anchorwatch"):
        network.add_module("anchorwatch", torch.nn.Module())
    return network.anchorwatch


def _put(module: torch.nn.Module, name: str, value: torch.Tensor, network: Any) -> None:
    parameter = torch.nn.Parameter(value.to(device=network.device, dtype=network.dtype).clone())
    if name == "gate.weight":
        outputs, reads = value.shape
        module.gate = torch.nn.Linear(reads, outputs, bias=False, device="meta")
        module.gate.weight = parameter
    else:
        module.register_parameter(name, parameter)


def _get(module: torch.nn.Module, name: str) -> torch.Tensor:
    return module.get_parameter(name)


def collect_trained_parts(
    network: PreTrainedModel,
    parts: Sequence[Part],
    tensors: Mapping[str, torch.Tensor] | None = None,
) -> tuple[Part, ...]:
    """Parts with the numbers they have now, in the network or in `tensors`, for config.json."""
    bare = tuple(replace(part, **{f: _word(part, f) for f in _all_fields(part)}) for part in parts)
    return attach_trained_numbers(
        network, bare, network.state_dict() if tensors is None else tensors
    )


def _all_fields(part: Part) -> list[str]:
    return ["embedding"] if _token(part) else list(_fields(part))


def _word(part: Part, field: str) -> Any:
    """A word in place of numbers that training has changed."""
    held = getattr(part, field)
    if not isinstance(held, Numbers):
        return held
    return {"embedding": "mean", "logit": 0.0, "weight": None}.get(field, "zero")
