"""Quantised safetensors: stored codes become weights on load, without the packages that wrote them.

Read are bitsandbytes (4 and 8 bit), GPTQ (2, 3, 4 and 8 bit), AWQ (gemm), MXFP4 (gpt-oss's
experts) and FP8 (by blocks, rows or tensors). The codes of a tensor are read whole, and its weights
are computed some rows at a time, in float32, and rounded once to the dtype that was asked for.
Kernels that also quantise activations (bitsandbytes' 8 bit, FP8) are not repeated: what is computed
is the network of the stored weights.

Shapes: a weight [R, C] of R outputs and C inputs; G groups of inputs that share a scale.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from anchorwatch.errors import ModelError, WeightsError
from anchorwatch.models.checkpoint import Checkpoint, read_json
from anchorwatch.models.weight_files import FileTensor, LocatedTensor

CHUNK_WEIGHTS = 1 << 21
"""Weights that are computed at once."""

Rows = Callable[[int, int], torch.Tensor]
"""Rows [start, stop) of a weight, in float32."""
Parts = dict[str, torch.Tensor]
"""The stored tensors of a weight, by what they are."""


@dataclass(frozen=True)
class PackedTensor:
    """A weight that is stored as codes and scales; it is read like any other stored tensor."""

    shape: tuple[int, ...]
    parts: Mapping[str, FileTensor]
    open: Callable[[Parts], Rows]
    """From the stored tensors: what computes rows of the weight."""
    dtype: torch.dtype = torch.float32

    @property
    def path(self) -> Path:
        return self._first.path

    @property
    def offset(self) -> int:
        return self._first.offset

    @property
    def _first(self) -> FileTensor:
        return next(iter(self.parts.values()))

    def read(self) -> torch.Tensor:
        whole = torch.empty(self.shape, dtype=self.dtype)
        for _ in self.fill(whole):
            pass
        return whole

    def chunks(self) -> Iterator[torch.Tensor]:
        rows = self.open({name: part.read() for name, part in self.parts.items()})
        step = max(1, CHUNK_WEIGHTS // max(1, math.prod(self.shape[1:])))
        for start in range(0, self.shape[0], step):
            yield rows(start, min(start + step, self.shape[0])).reshape(-1)

    def fill(self, target: torch.Tensor) -> Iterator[torch.Tensor]:
        flat, start = target.view(-1), 0
        for chunk in self.chunks():
            yield flat[start : start + len(chunk)].copy_(chunk)
            start += len(chunk)


def unpack_words(words: torch.Tensor, bits: int) -> torch.Tensor:
    """[..., W] int32 as [..., W * 32 / bits] whole numbers, the lowest bits of a word first.

    Three bits do not divide a word: every third number or so lies in two words.

    >>> unpack_words(torch.tensor([0x21]), 4)[:3].tolist()
    [1, 2, 0]
    """
    mask, count = (1 << bits) - 1, words.shape[-1] * 32 // bits
    if 32 % bits == 0:
        shifts = torch.arange(0, 32, bits, dtype=torch.int32)
        return ((words.to(torch.int32)[..., None] >> shifts) & mask).flatten(-2)
    # 1. Where each number begins, in bits from the beginning.
    starts = torch.arange(count) * bits
    word, offset = starts // 32, starts % 32
    # 2. Its low bits, and the rest from the next word where it does not fit.
    unsigned = words.to(torch.int64) & 0xFFFFFFFF
    low = unsigned[..., word] >> offset
    after = unsigned[..., (word + 1).clamp(max=words.shape[-1] - 1)] << (32 - offset)
    return (torch.where(offset + bits > 32, low | after, low) & mask).to(torch.int32)


def dequantise(checkpoint: Checkpoint) -> tuple[Checkpoint, tuple[str, ...]]:
    """The same checkpoint with weights instead of codes, and what could not be proved of them."""
    settings = _settings(checkpoint)
    if settings is None:
        return checkpoint, ()
    method = str(settings.get("quant_method", "gptq" if "bits" in settings else ""))
    if method not in _METHODS:
        raise ModelError(
            f"{checkpoint.source} is quantised as {method or 'something unnamed'}, which is not "
            f"read: {', '.join(_METHODS)} and GGUF are; load the unquantised weights"
        )
    files = {k: v for k, v in checkpoint.files.items() if isinstance(v, FileTensor)}
    packed = _METHODS[method](settings, files)
    if not packed:
        raise ModelError(
            f"config.json of {checkpoint.source} says {method} and its files hold no such tensor: "
            "remove quantization_config, or load the unquantised weights"
        )
    used = {part for tensor in packed.values() for part in tensor.parts.values()}
    stored: dict[str, LocatedTensor]
    stored = {name: tensor for name, tensor in files.items() if tensor not in used}
    if both := sorted(stored.keys() & packed.keys()):
        raise WeightsError(f"{both[0]} is in the file as codes and as weights: expected one")
    config = {k: v for k, v in checkpoint.config.items() if k != "quantization_config"}
    everything: dict[str, LocatedTensor] = {**stored, **packed}
    everything = {name: everything[name] for name in sorted(everything)}
    note = (
        f"{len(packed)} of {len(everything)} tensors are {method} codes and were dequantised: "
        "every code is used once, but how near the weights are to those before quantisation "
        "cannot be proved from the file; in memory they take their full size"
    )
    read = replace(checkpoint, config=config, stored=dict(everything), files=everything)
    return read, (note,)


def _settings(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """quantization_config, or what stands for it; None where weights are weights."""
    settings = checkpoint.config.get("quantization_config")
    if settings is not None and not isinstance(settings, dict):
        raise ModelError(
            f"config.json says quantization_config={settings!r}: expected an object such as "
            '{"quant_method": "gptq", "bits": 4, "group_size": 128}'
        )
    if settings:
        return settings
    # Older files: bitsandbytes describes itself, AutoGPTQ has a file of its own.
    if any(".quant_state.bitsandbytes__" in name for name in checkpoint.files):
        return {"quant_method": "bitsandbytes"}
    if any(name.endswith(".qweight") for name in checkpoint.files):
        beside = read_json(checkpoint.folder / "quantize_config.json", missing={})
        if not beside:
            raise ModelError(
                f"{checkpoint.source} has quantised tensors (qweight) and no quantization_config "
                "in config.json: copy it from the checkpoint's page"
            )
        return {"quant_method": "gptq"} | beside
    return None


# bitsandbytes


def _list_bitsandbytes(
    settings: Mapping[str, Any], files: Mapping[str, FileTensor]
) -> dict[str, PackedTensor]:
    packed = {}
    for name in files:
        if name.endswith(".SCB"):
            weight = name.removesuffix("SCB") + "weight"
            packed[weight] = _int8_tensor(weight, files)
        elif ".quant_state.bitsandbytes__" in name:
            weight = name.partition(".quant_state.")[0]
            packed[weight] = _four_bit_tensor(weight, name, files)
    return packed


def _four_bit_tensor(name: str, state_name: str, files: Mapping[str, FileTensor]) -> PackedTensor:
    """Codes of 4 bits, two in a byte, the first in the high half; a scale for each block."""
    state = _json_tensor(state_name, files[state_name])
    try:
        shape = tuple(int(size) for size in state["shape"])
        block, nested = int(state["blocksize"]), state.get("nested_blocksize")
        offset = float(state["nested_offset"]) if nested is not None else 0.0
        nested = None if nested is None else int(nested)
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(
            f"{state_name} does not describe a tensor ({type(error).__name__}: {error}): download "
            "the file again"
        ) from None
    parts = {"codes": _part(files, name), "scales": _part(files, f"{name}.absmax")}
    parts |= {"values": _part(files, f"{name}.quant_map"), "state": files[state_name]}
    if nested is not None:
        parts["nested scales"] = _part(files, f"{name}.nested_absmax")
        parts["nested values"] = _part(files, f"{name}.nested_quant_map")
    # 1. Sizes: two codes in a byte, a scale for each block.
    count = math.prod(shape)
    have = math.prod(parts["codes"].shape) * parts["codes"].dtype.itemsize
    _same_size(name, "bytes of codes", have, (count + 1) // 2)
    blocks = -(-count // block) if block > 0 else 0
    _same_size(name, "scales", math.prod(parts["scales"].shape), blocks)
    _same_size(name, "values of a code", math.prod(parts["values"].shape), 16)
    if (parts["scales"].dtype == torch.uint8) != (nested is not None):
        raise WeightsError(
            f"{name}.absmax is {parts['scales'].dtype} and {state_name} says nested_blocksize="
            f"{nested}: expected codes for nested scales and numbers for others"
        )
    if nested is not None:
        wanted = -(-blocks // nested) if nested > 0 else 0
        _same_size(name, "nested scales", math.prod(parts["nested scales"].shape), wanted)
        _same_size(name, "nested values", math.prod(parts["nested values"].shape), 256)

    def rows_of(tensors: Parts) -> Rows:
        # 2. Scales may be quantised too: 8 bits each, with scales of their own and one offset.
        scales = tensors["scales"].flatten()
        if nested is not None:
            coarse = tensors["nested scales"].flatten().float().repeat_interleave(nested)
            scales = tensors["nested values"].flatten().float()[scales.long()]
            scales = scales * coarse[: len(scales)] + offset
        scales, values = scales.float(), tensors["values"].flatten().float()
        codes = tensors["codes"].flatten().view(torch.uint8)

        def rows(start: int, stop: int) -> torch.Tensor:
            # 3. The bytes that hold these rows; a row of odd length begins inside a byte.
            first, end = start * (count // shape[0]), stop * (count // shape[0])
            pair = codes[first // 2 : (end + 1) // 2]
            both = torch.stack([pair >> 4, pair & 15], dim=-1).flatten()
            mine = both[first % 2 : first % 2 + end - first]
            weights = values[mine.int()] * scales[torch.arange(first, end) // block]
            return weights.view(stop - start, *shape[1:])

        return rows

    return PackedTensor(shape, parts, rows_of)


def _int8_tensor(name: str, files: Mapping[str, FileTensor]) -> PackedTensor:
    """Whole numbers from -127 to 127, and the greatest absolute weight of each row."""
    stem = name.removesuffix("weight")
    parts = {"codes": _part(files, name), "scales": _part(files, f"{stem}SCB")}
    codes = parts["codes"]
    if codes.dtype != torch.int8 or len(codes.shape) != 2:
        raise WeightsError(f"{name} is {codes.dtype} of shape {list(codes.shape)}: expected int8")
    _same_size(name, "scales", math.prod(parts["scales"].shape), codes.shape[0])
    if f"{stem}weight_format" in files:
        parts["format"] = files[f"{stem}weight_format"]

    def rows_of(tensors: Parts) -> Rows:
        if "format" in tensors and int(tensors["format"].flatten()[0]) != 0:
            raise WeightsError(
                f"{name} is kept in the order of a GPU kernel (weight_format): save the checkpoint "
                "again with bitsandbytes 0.45 or newer, or load the unquantised weights"
            )
        scales = tensors["scales"].flatten().float()

        def rows(start: int, stop: int) -> torch.Tensor:
            return tensors["codes"][start:stop].float() * scales[start:stop, None] * (1 / 127)

        return rows

    return PackedTensor(codes.shape, parts, rows_of)


def _json_tensor(name: str, tensor: FileTensor) -> dict[str, Any]:
    if tensor.dtype != torch.uint8 or math.prod(tensor.shape) > 1 << 16:
        raise WeightsError(f"{name} is no short text: download the file again")
    try:
        state = json.loads(bytes(tensor.read().flatten().tolist()))
    except (ValueError, RecursionError):
        raise WeightsError(f"{name} is not JSON: download the file again") from None
    if not isinstance(state, dict):
        raise WeightsError(f"{name} is no JSON object: download the file again")
    return state


# GPTQ and AWQ


def _list_gptq(
    settings: Mapping[str, Any], files: Mapping[str, FileTensor]
) -> dict[str, PackedTensor]:
    bits = _setting(settings, "bits", (2, 3, 4, 8))
    # Files of the first format keep zero points less one, the second's do not. Kernels disagree
    # about a stored number of ones only: here it is a zero point of 0, as it was before packing.
    kind = settings.get("checkpoint_format") or "gptq"
    if settings.get("is_marlin_format") or kind not in ("gptq", "gptq_v2"):
        raise ModelError(
            f"config.json says a GPTQ checkpoint_format of {kind!r}: expected 'gptq' or 'gptq_v2', "
            "which hold codes in the order of the weights"
        )
    stems = [name.removesuffix(".qweight") for name in files if name.endswith(".qweight")]
    added = 1 if kind == "gptq" else 0
    return {f"{stem}.weight": _gptq_tensor(stem, files, settings, bits, added) for stem in stems}


def _gptq_tensor(
    stem: str, files: Mapping[str, FileTensor], settings: Mapping[str, Any], bits: int, added: int
) -> PackedTensor:
    """Codes [C * bits / 32, R] are packed along inputs, zero points [G, R * bits / 32] along R."""
    parts = {name: _part(files, f"{stem}.{name}") for name in ("qweight", "qzeros", "scales")}
    if f"{stem}.g_idx" in files:
        parts["g_idx"] = files[f"{stem}.g_idx"]
    words, outputs = _matrix_shape(f"{stem}.qweight", parts["qweight"])
    groups, _ = _matrix_shape(f"{stem}.scales", parts["scales"])
    inputs = words * 32 // bits
    size = settings.get("group_size", -1)
    size = inputs if size in (None, -1) else _setting(settings, "group_size")
    _same_size(stem, "groups", groups, -(-inputs // size))
    _same_size(stem, "scales", math.prod(parts["scales"].shape), groups * outputs)
    _same_size(stem, "words of zero points", math.prod(parts["qzeros"].shape),
               groups * outputs * bits // 32)  # fmt: skip
    if "g_idx" in parts:
        _same_size(stem, "groups of inputs", math.prod(parts["g_idx"].shape), inputs)

    def rows_of(tensors: Parts) -> Rows:
        # 1. Zero points and scales of each group, [R, G]; the group of each input, [C].
        zeros = (unpack_words(tensors["qzeros"], bits) + added) & ((1 << bits) - 1)
        scales = tensors["scales"].float()
        group = torch.arange(inputs) // size
        if "g_idx" in tensors:
            group = tensors["g_idx"].flatten().long()
            if int(group.min()) < 0 or int(group.max()) >= groups:
                raise WeightsError(f"{stem}.g_idx names a group beyond {groups}: download it again")

        def rows(start: int, stop: int) -> torch.Tensor:
            # 2. (code - zero point) * scale, with the inputs' groups spread over them.
            codes = unpack_words(tensors["qweight"][:, start:stop].T, bits)
            zero, scale = zeros[:, start:stop].T[:, group], scales[:, start:stop].T[:, group]
            return (codes - zero) * scale

        return rows

    return PackedTensor((outputs, inputs), parts, rows_of)


_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column, of the eight that a word holds, which each 4 bits of it are of."""


def _list_awq(
    settings: Mapping[str, Any], files: Mapping[str, FileTensor]
) -> dict[str, PackedTensor]:
    _setting(settings, "bits", (4,))
    version = str(settings.get("version", "gemm")).lower()
    if version != "gemm":
        raise ModelError(
            f"config.json says an AWQ version of {version!r}: expected 'gemm', which most files "
            "are; load the unquantised weights"
        )
    stems = [name.removesuffix(".qweight") for name in files if name.endswith(".qweight")]
    return {f"{stem}.weight": _awq_tensor(stem, files, settings) for stem in stems}


def _awq_tensor(
    stem: str, files: Mapping[str, FileTensor], settings: Mapping[str, Any]
) -> PackedTensor:
    """Codes [C, R / 8] and zero points [G, R / 8], packed along R in an order of their own."""
    parts = {name: _part(files, f"{stem}.{name}") for name in ("qweight", "qzeros", "scales")}
    inputs, words = _matrix_shape(f"{stem}.qweight", parts["qweight"])
    groups, outputs = _matrix_shape(f"{stem}.scales", parts["scales"])
    size = settings.get("group_size", settings.get("q_group_size", 128))
    size = inputs if size in (None, -1) else _setting({"group_size": size}, "group_size")
    _same_size(stem, "words in a row", words * 8, outputs)
    _same_size(stem, "groups", groups, -(-inputs // size))
    _same_size(stem, "words of zero points", math.prod(parts["qzeros"].shape), groups * words)

    def columns(packed: torch.Tensor) -> torch.Tensor:
        # Put the eight numbers of each word back into the order of their columns.
        eights = unpack_words(packed, 4).reshape(len(packed), -1, 8)
        inverse = torch.tensor(_AWQ_ORDER).argsort()
        return eights[..., inverse].flatten(-2)

    def rows_of(tensors: Parts) -> Rows:
        zeros, scales = columns(tensors["qzeros"]), tensors["scales"].float()
        group = torch.arange(inputs) // size

        def rows(start: int, stop: int) -> torch.Tensor:
            # Whole words are unpacked, then the rows that were asked for are cut out.
            first, end = start // 8, -(-stop // 8)
            codes = columns(tensors["qweight"][:, first:end])[:, start - first * 8 :]
            codes = codes[:, : stop - start].T
            zero, scale = zeros[:, start:stop].T[:, group], scales[:, start:stop].T[:, group]
            return (codes - zero) * scale

        return rows

    return PackedTensor((outputs, inputs), parts, rows_of)


# MXFP4


_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the low three bits of a code mean; the fourth is the sign."""


def _list_mxfp4(
    settings: Mapping[str, Any], files: Mapping[str, FileTensor]
) -> dict[str, PackedTensor]:
    stems = [name.removesuffix("_blocks") for name in files if name.endswith("_blocks")]
    return {stem: _mxfp4_tensor(stem, files) for stem in stems}


def _mxfp4_tensor(stem: str, files: Mapping[str, FileTensor]) -> PackedTensor:
    """Blocks [E, R, G, 16] of 32 codes, the first in the low half of a byte, and their exponents.

    gpt-oss computes `x @ weight`: its experts' parameters are [E, C, R].
    """
    parts = {"codes": _part(files, f"{stem}_blocks"), "exponents": _part(files, f"{stem}_scales")}
    shape = parts["codes"].shape
    if len(shape) != 4 or shape[-1] != 16 or parts["exponents"].shape != shape[:-1]:
        raise WeightsError(
            f"{stem}_blocks has shape {list(shape)} and {stem}_scales "
            f"{list(parts['exponents'].shape)}: expected [experts, rows, blocks, 16] and the same "
            "without the 16"
        )
    experts, outputs, blocks, _ = shape
    values = torch.tensor([*_FP4, *(-value for value in _FP4)])

    def rows_of(tensors: Parts) -> Rows:
        def rows(start: int, stop: int) -> torch.Tensor:
            codes = tensors["codes"][start:stop]
            # Exponents have a bias of 127, as in float32.
            exponents = tensors["exponents"][start:stop].int() - 127
            numbers = values[torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2).int()]
            weights = torch.ldexp(numbers, exponents[..., None])
            return weights.flatten(-2).transpose(1, 2)

        return rows

    return PackedTensor((experts, blocks * 32, outputs), parts, rows_of)


# FP8


_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def _list_fp8(
    settings: Mapping[str, Any], files: Mapping[str, FileTensor]
) -> dict[str, PackedTensor]:
    block = settings.get("weight_block_size")
    good = isinstance(block, list) and len(block) == 2
    if block is not None and not (good and all(type(n) is int and n > 0 for n in block)):
        raise ModelError(
            f"quantization_config says weight_block_size={block!r}: expected two whole numbers "
            "above 0, such as [128, 128]"
        )
    weights = [name for name, tensor in files.items() if tensor.dtype in _FP8]
    return {name: _fp8_tensor(name, files, block) for name in weights}


def _list_compressed(
    settings: Mapping[str, Any], files: Mapping[str, FileTensor]
) -> dict[str, PackedTensor]:
    kind = settings.get("format")
    if kind != "float-quantized":
        raise ModelError(
            f"config.json says a compressed-tensors format of {kind!r}: expected "
            "'float-quantized' (FP8); load the unquantised weights"
        )
    return _list_fp8({}, files)


def _fp8_tensor(
    name: str, files: Mapping[str, FileTensor], block: list[int] | None
) -> PackedTensor:
    """Numbers of 8 bits, times the scale of their block, their row or the whole tensor.

    A scale is what a number is multiplied by, `weight_scale_inv` too: it is the inverse of what
    weights were multiplied by before they were rounded.
    """
    outputs, inputs = _matrix_shape(name, files[name])
    kinds = [kind for kind in ("_scale_inv", "_scale") if f"{name}{kind}" in files]
    if len(kinds) != 1:
        raise WeightsError(
            f"{name} is float8 and the file has {len(kinds)} of {name}_scale_inv and {name}_scale: "
            "expected one, download the file again"
        )
    parts = {"codes": files[name], "scales": files[name + kinds[0]]}
    # Scales of activations are of kernels that quantise those too.
    for other in ("input_scale", "activation_scale"):
        stored = name.removesuffix("weight") + other
        if stored in files:
            parts[other] = files[stored]
    shape, count = parts["scales"].shape, math.prod(parts["scales"].shape)
    if block is not None and len(shape) == 2:
        height, width = block
        wanted = -(-outputs // height), -(-inputs // width)
        if shape != wanted:
            raise WeightsError(
                f"{name} has scales of shape {list(shape)} and needs {list(wanted)} for blocks of "
                f"{block}: config.json and weights do not belong together"
            )
    elif count in (1, outputs):  # the whole tensor, or each row
        height, width = outputs if count == 1 else 1, inputs
    else:
        raise WeightsError(
            f"{name} has {count} scales: expected 1, {outputs} (one for each row), or blocks that "
            "quantization_config names as weight_block_size"
        )

    def rows_of(tensors: Parts) -> Rows:
        scales = tensors["scales"].float().reshape(-(-outputs // height), -1)
        columns = torch.arange(inputs) // width

        def rows(start: int, stop: int) -> torch.Tensor:
            mine = scales[torch.arange(start, stop) // height]
            return tensors["codes"][start:stop].float() * mine[:, columns]

        return rows

    return PackedTensor((outputs, inputs), parts, rows_of)


_METHODS: dict[
    str, Callable[[Mapping[str, Any], Mapping[str, FileTensor]], dict[str, PackedTensor]]
] = {
    "bitsandbytes": _list_bitsandbytes,
    "gptq": _list_gptq,
    "awq": _list_awq,
    "mxfp4": _list_mxfp4,
    "fp8": _list_fp8,
    "compressed-tensors": _list_compressed,
}
"""By quant_method of config.json: the weights that a file's codes stand for."""


def _part(files: Mapping[str, FileTensor], name: str) -> FileTensor:
    if name not in files:
        raise WeightsError(f"{name} is missing from the file: the quantised weight needs it")
    return files[name]


def _matrix_shape(name: str, tensor: FileTensor) -> tuple[int, int]:
    if len(tensor.shape) != 2:
        raise WeightsError(f"{name} has shape {list(tensor.shape)}: expected a matrix")
    return tensor.shape[0], tensor.shape[1]


def _same_size(name: str, what: str, have: int, want: int) -> None:
    if have != want:
        raise WeightsError(
            f"{name} has {have} {what} in the file and needs {want}: config.json and weights do "
            "not belong together"
        )


def _setting(settings: Mapping[str, Any], name: str, allowed: tuple[int, ...] = ()) -> int:
    value = settings.get(name)
    good = type(value) is int and (value in allowed if allowed else value > 0)
    if not good:
        known = " or ".join(map(str, allowed)) if allowed else "a whole number above 0"
        raise ModelError(f"quantization_config says {name}={value!r}: expected {known}")
    assert isinstance(value, int)
    return value
