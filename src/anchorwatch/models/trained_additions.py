"""Additions that were trained: how a checkpoint holds them, and how a network in training does.

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

from anchorwatch.edits.spec import Addition, Edit, Numbers, from_dict
from anchorwatch.errors import ModelError, SpecError, WeightsError
from anchorwatch.models.additions import (
    ActiveAddition,
    AdditionTensors,
    PassAdditions,
    Sizes,
    check_sizes,
    check_windows,
    initial,
    kind_of,
    needs_reading,
    prepare_additions,
    remember,
    with_registers,
)
from anchorwatch.models.attention import NAME, active_additions, register, use_additions
from anchorwatch.models.sites import attention_modules, sites_of

_HOOK = "_anchorwatch_additions"
_OURS = re.compile(r"anchorwatch\..*|.*\.(sink_logit|sink_key|sink_value)")
"""Tensor names that only additions have; a `gate.weight` may be another network's own."""


def read_declared_parts(config: Mapping[str, Any]) -> tuple[Addition, ...]:
    """The additions that config.json names."""
    trained = config.get("anchorwatch") or {}
    listed = trained.get("parts", []) if isinstance(trained, Mapping) else None
    if not isinstance(listed, list):
        raise ModelError('config.json: expected "anchorwatch": {"parts": [...]}')
    try:
        return trainable(from_dict(fields) for fields in listed)
    except (SpecError, TypeError, ValueError) as error:
        raise ModelError(f"config.json names a part that cannot be: {error}") from error


def trainable(edits: Iterable[Edit]) -> tuple[Addition, ...]:
    """Edits that a model can have as additions of its own, or a refusal."""
    parts: dict[str, Addition] = {}
    for edit in edits:
        if not isinstance(edit, Addition) or edit.steps is not None or edit.progress is not None:
            raise SpecError(
                f"{edit!r} is no part of a model: expected what is always on, such as "
                "sink_token() or gate()"
            )
        if (name := type(edit).__name__) in parts:
            raise SpecError(f"{name} is there twice: a model has one of each kind")
        parts[name] = edit
    return tuple(parts.values())


def tensor_names(
    network: PreTrainedModel, parts: Iterable[Addition]
) -> dict[str, tuple[Addition, str]]:
    """Names of the tensors of some additions, and of each its addition and field."""
    names: dict[str, tuple[Addition, str]] = {}
    for part in parts:
        kind = kind_of(part)
        if kind.token_name:
            names[f"anchorwatch.{kind.token_name}"] = (part, "embedding")
        for field, name in kind.layer_tensors.items():
            names |= dict.fromkeys(_paths(network, part, name).values(), (part, field))
    return names


def check_tensors(
    network: PreTrainedModel, parts: Iterable[Addition], names: Iterable[str]
) -> None:
    """Refuse a file whose tensors are not those of the additions that config.json names."""
    expected, present = tensor_names(network, parts), set(names)
    for name, (part, _) in expected.items():
        if name not in present:
            raise WeightsError(
                f"config.json names {type(part).__name__} and the file has no {name}: "
                "the parts and the weights do not belong together"
            )
    for name in sorted(present - set(expected)):
        if _OURS.fullmatch(name):
            raise WeightsError(
                f"the file holds {name} and config.json names no part for it: "
                'add the part to "anchorwatch": {"parts": [...]}'
            )


def attach_trained_numbers(
    network: PreTrainedModel, parts: Sequence[Addition], tensors: Mapping[str, torch.Tensor]
) -> tuple[Addition, ...]:
    """The additions with their trained numbers; refuses tensors that are not those of a digest."""
    attached = []
    names = tensor_names(network, parts)
    for part in parts:
        # 1. The tensors of each field, in the order of layers.
        tensors_of: dict[str, list[torch.Tensor]] = {}
        for name, (owner, field) in names.items():
            if owner is part:
                tensors_of.setdefault(field, []).append(tensors[name].detach().float().cpu())
        # 2. One array [layers, ...] of each, compared with the digest that config.json has.
        numbers: dict[str, Any] = {}
        for field, arrays in tensors_of.items():
            whole = arrays[0] if field == "embedding" else _stack_layers(network, part, arrays)
            numbers[field] = Numbers.of(whole.numpy())
            declared = getattr(part, field)
            if isinstance(declared, Numbers) and declared != numbers[field]:
                raise WeightsError(
                    f"the {field} of {type(part).__name__} in the file is not the one that "
                    "config.json names by its digest: the parts and the weights do not belong "
                    "together"
                )
        attached.append(replace(part, **numbers))
    return tuple(attached)


def attach(
    network: PreTrainedModel,
    parts: Sequence[Addition],
    *,
    bos_id: int | None = None,
    mask_id: int | None = None,
) -> None:
    """Give a network additions as parameters, active in every forward pass of it.

    They begin as their values say; `bos_id` and `mask_id` are for embeddings made of those tokens.
    On a network without weights (meta) they hold nothing yet. Its attention becomes ours. Additions
    it has already stay.
    """
    if not parts:
        return
    # 1. All can be had together, and fit.
    hook = network.__dict__.get(_HOOK)
    trainable([*(() if hook is None else hook.parts), *parts])
    sizes, meta = Sizes.of(network), network.device.type == "meta"
    for part in parts:
        _check(network, sizes, part)
    # 2. Their tensors become parameters of the network and of its attention modules.
    register()
    network.set_attn_implementation(NAME)
    for part in parts:
        kind = kind_of(part)
        values = _empty_tensors(part, sizes) if meta else initial(part, network, bos_id, mask_id)
        for field in kind.fields:
            if field == "embedding":
                _add_parameter(_token_module(network), kind.token_name, values[field], network)
                continue
            for layer, module in _attention_modules(network, part).items():
                _add_parameter(module, kind.layer_tensors[field], values[field][layer], network)
    # 3. Hooks make them active in every pass, also one that does not go through `Model`.
    if hook is None:
        hook = network.__dict__[_HOOK] = _AdditionHook(network)
        network.base_model.register_forward_pre_hook(hook, with_kwargs=True)
        network.base_model.register_forward_hook(_end_pass, with_kwargs=True, always_call=True)
    hook.parts += tuple(part.everywhere for part in parts)
    if needs_reading(parts):
        for module in dict.fromkeys(attention_modules(network)):  # twice does no harm
            module.register_forward_pre_hook(remember, with_kwargs=True)


def _check(network: PreTrainedModel, sizes: Sizes, part: Addition) -> None:
    config, kind = network.config, type(part).__name__
    check_sizes(sizes, part)
    for name, size in (("layers", sizes.layers), ("heads", sizes.heads)):
        if (last := max(getattr(part, name) or (0,))) >= size:
            raise SpecError(
                f"{kind}({name}=[{last}]) is not there: this network has {name} 0 to {size - 1}"
            )
    if kind_of(part).layer_tensors and sites_of(network).shared:
        raise SpecError(
            f"{config.model_type} has one module for all layers and cannot train {kind}: "
            "give it to a run as an edit"
        )
    # transformers' decoders are causal unless their config says otherwise.
    causal = getattr(config, "is_causal", True)
    if hasattr(config, "is_decoder"):  # BERT's kind
        causal = config.is_decoder
    in_sequence = kind_of(part).in_sequence
    if causal and (in_sequence or getattr(part, "position", "") == "end"):
        raise SpecError(
            f"{part!r} is for networks that look both ways: use sink_token(), or set "
            "config.is_causal = False before the network is built"
        )
    if in_sequence:
        check_windows(network, config.model_type)


def fit_trained_addition(network: PreTrainedModel, part: Addition) -> AdditionTensors:
    """A trained addition with the network's own parameters."""
    kind, sizes = kind_of(part), Sizes.of(network)
    if kind.token_name:
        return AdditionTensors(part, embedding=getattr(network.anchorwatch, kind.token_name))
    tensors: dict[str, Any] = {}
    if not kind.layer_tensors:  # nothing of it is trained: off_by_one's logits are 0
        options = {"device": network.device, "dtype": network.dtype}
        for field, value in initial(part, network, None, None).items():
            tensors[field] = [of_layer.to(**options) for of_layer in value]
    for field, name in kind.layer_tensors.items():
        modules = _attention_modules(network, part)
        tensors[field] = [
            modules[layer].get_parameter(name) if layer in modules else torch.empty(0)
            for layer in range(sizes.layers)
        ]
    return AdditionTensors(part, **tensors)


class _AdditionHook:
    """A hook before the base model: a network that is called bare gets its own additions."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network
        self.parts: tuple[Addition, ...] = ()

    def __call__(
        self, base: Any, args: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if active_additions() is not None:  # `Model` has set them, or a token passes alone
            return None
        network = self.network
        if base.training and getattr(network, "is_gradient_checkpointing", False):
            raise ModelError(
                "gradient checkpointing computes layers again when their parts are gone: "
                "train without it"
            )
        inputs = (*args, given.get("input_ids"), given.get("inputs_embeds"))
        first = next(tensor for tensor in inputs if tensor is not None)
        on = [ActiveAddition(fit_trained_addition(network, part)) for part in self.parts]
        additions = prepare_additions(network, on, _ends(first, given), None)
        if additions.registers is not None:
            args, given = _prepend_registers(network, additions.registers.fit, args, dict(given))
        # The context outlives this hook: `_end_pass` leaves it after the base model.
        context = use_additions(additions)
        context.__enter__()
        base.__dict__["_anchorwatch_context"] = context
        return args, given


def _ends(first: torch.Tensor, given: Mapping[str, Any]) -> list[int]:
    """Where each row of a bare call ends, padding on its right left out."""
    # Explicit positions say where a row ends; else its mask; else its length and cache.
    positions, past = given.get("position_ids"), given.get("past_key_values")
    if positions is not None:
        return (positions[:, -1] + 1).expand(len(first)).tolist()
    before = 0 if past is None else int(past.get_seq_length())
    real = given.get("attention_mask")
    if real is None or real.ndim != 2:
        return [first.shape[1] + before] * len(first)
    return (real.shape[1] - real.flip(1).argmax(dim=1)).tolist()


def _end_pass(base: Any, args: tuple[Any, ...], given: dict[str, Any], output: Any) -> Any:
    """A hook after the base model: end the additions, and cut off the registers' rows."""
    context = base.__dict__.pop("_anchorwatch_context", None)
    if context is None:
        return None
    additions = active_additions()
    context.__exit__(None, None, None)
    if output is None or not isinstance(additions, PassAdditions) or additions.registers is None:
        return None
    count = additions.registers.fit.part.columns
    output.last_hidden_state = output.last_hidden_state[:, count:]
    return output


def _prepend_registers(
    network: PreTrainedModel, fit: AdditionTensors, args: tuple[Any, ...], given: dict[str, Any]
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
    positions = given.get("position_ids")
    if positions is None:
        positions = torch.arange(rows.shape[1], device=rows.device)[None]
    given["position_ids"] = with_registers(network, positions, n)
    return args[1:], given


def _attention_modules(network: PreTrainedModel, part: Addition) -> dict[int, Any]:
    """Attention modules of the layers an addition is at."""
    modules = attention_modules(network)
    heads = Sizes.of(network).heads
    return {i: module for i, module in enumerate(modules) if part.heads_at(i, heads)}


def _paths(network: PreTrainedModel, part: Addition, name: str) -> dict[int, str]:
    """By layer, the full name of an addition's parameter."""
    sites = sites_of(network)
    return {
        layer: f"{sites.layers}.{layer}.{sites.attention}.{name}"
        for layer in _attention_modules(network, part)
    }


def _stack_layers(
    network: PreTrainedModel, part: Addition, arrays: list[torch.Tensor]
) -> torch.Tensor:
    """[layers, ...] with zeros at layers that the addition leaves alone."""
    layers = list(_attention_modules(network, part))
    whole = torch.zeros(Sizes.of(network).layers, *arrays[0].shape)
    whole[layers] = torch.stack(arrays)
    return whole


def _empty_tensors(part: Addition, sizes: Sizes) -> dict[str, torch.Tensor]:
    """Tensors of the right shapes, on no device."""
    shapes = kind_of(part).shapes(part, sizes)
    return {field: torch.empty(shape, device="meta") for field, shape in shapes.items()}


def _token_module(network: PreTrainedModel) -> torch.nn.Module:
    """The module `anchorwatch` of a network, which holds the embeddings of added tokens."""
    if not hasattr(network, "anchorwatch"):
        network.add_module("anchorwatch", torch.nn.Module())
    return network.anchorwatch


def _add_parameter(module: torch.nn.Module, name: str, value: torch.Tensor, network: Any) -> None:
    parameter = torch.nn.Parameter(value.to(device=network.device, dtype=network.dtype).clone())
    if name == "gate.weight":  # a Linear, as other code that has gates calls it
        outputs, reads = value.shape
        module.gate = torch.nn.Linear(reads, outputs, bias=False, device="meta")
        module.gate.weight = parameter
    else:
        module.register_parameter(name, parameter)


def collect_trained_parts(
    network: PreTrainedModel,
    parts: Sequence[Addition],
    tensors: Mapping[str, torch.Tensor] | None = None,
) -> tuple[Addition, ...]:
    """Additions with the numbers they have now, in the network or `tensors`, for config.json."""
    bare = tuple(_without_numbers(part) for part in parts)
    return attach_trained_numbers(
        network, bare, network.state_dict() if tensors is None else tensors
    )


def _without_numbers(part: Addition) -> Addition:
    """The addition with a word in place of numbers that training has changed."""
    kind = kind_of(part)
    words = {
        field: kind.initial_words[field]
        for field in kind.fields
        if isinstance(getattr(part, field), Numbers)
    }
    return replace(part, **words)
