"""GGUF files: weights are dequantised on load.

Causal LMs are named and undone by transformers: its reader makes the config, the only time that
the whole header is parsed, and its processors each tensor. LLaDA, Dream and LLaDA-MoE, which it
does not know, are opened here as a checkpoint like any other: names and config as llama.cpp's
converter wrote them, undone, and each tensor dequantised some rows at a time by the gguf package.
"""

from __future__ import annotations

import contextlib
import io
import re
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
)

from anchorwatch.errors import AnchorwatchWarning, FamilyError, ModelError, SpecError, WeightsError
from anchorwatch.models.attention import NAME
from anchorwatch.models.checkpoint import Checkpoint, hub_remedy
from anchorwatch.models.config import set_visibility
from anchorwatch.models.families import by_name
from anchorwatch.models.fill import empty_parameters, fill_network, plan_weights
from anchorwatch.models.model import Model
from anchorwatch.models.quantised import PackedTensor, Parts, Rows
from anchorwatch.models.tokens import find_mask, gguf_tokenizer, specials_of
from anchorwatch.models.verify import prove_fused, prove_rotary
from anchorwatch.models.weight_files import FileTensor, LocatedTensor, MemoryTensor

_FAULTS = (
    ValueError,
    OSError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,  # NotImplementedError is one
    AssertionError,
    struct.error,
)
"""What a damaged file makes transformers' reader raise."""


def load_gguf(source: str, path: Path, dtype: torch.dtype, mask_id: int | None) -> Model:
    """A .gguf file of a causal LM; `source` is what the user called it."""
    family = by_name("causal")
    find_mask(mask_id, {}, {}, None, family)  # refuses a mask id
    # 1. The config, and a network without weights that computes with our attention.
    num_tensors = _num_tensors(path)
    config = _quietly(
        path,
        lambda: AutoConfig.from_pretrained(
            str(path.parent), gguf_file=path.name, trust_remote_code=False
        ),
    )
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise FamilyError(f"{path.name} holds a {config.model_type}, which is no causal LM")
    prove_fused(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], config)
    set_visibility(family, config)
    # 2. The tensors, dequantised; every one of the file must have been placed.
    with empty_parameters():
        network = AutoModelForCausalLM.from_config(
            config, attn_implementation=NAME, trust_remote_code=False
        )
    read = _quietly(path, lambda: _read_tensors(path, network, dtype))
    if num_tensors != len(read):
        raise WeightsError(
            f"{path.name} holds {num_tensors} tensors and transformers' reader placed {len(read)} "
            "(it drops scaled rotary tables, for one): load the model's safetensors"
        )
    plan = plan_weights({n: MemoryTensor(t.to("meta")) for n, t in read.items()}, family, network)
    # Each tensor is let go of when it has been copied.
    stored = ((name, MemoryTensor(read.pop(name))) for name in list(read))
    notes = fill_network(network, plan, stored, family, dtype).notes
    prove_rotary(network)
    # 3. The tokenizer, and the ids that mean something.
    tokenizer = gguf_tokenizer(path, config)
    rows = len(network.get_input_embeddings().weight), len(network.get_output_embeddings().weight)
    specials, left_out = specials_of(None, config.to_dict(), {}, tokenizer, rows)
    for note in left_out:
        warnings.warn(note, AnchorwatchWarning, stacklevel=3)
    return Model(
        source=source,
        family=family,
        network=network.eval(),
        tokenizer=tokenizer,
        specials=specials,
        notes=(*notes, *left_out, "GGUF weights, dequantised"),
    )


def _read_tensors(
    path: Path, network: PreTrainedModel, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Every tensor of the file that has a name in the network, dequantised."""
    import gguf
    from transformers.integrations.gguf import GgufHeader
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    # 1. transformers' names, and its way of undoing what llama.cpp's converter did.
    header = GgufHeader.from_file(str(path))
    processor = TENSOR_PROCESSORS.get(header.architecture, TensorProcessor)(
        config=network.config.to_dict()
    )
    names = get_gguf_hf_weights_map(network, processor)
    # 2. Tensor by tensor; a processor keeps those that it stacks or splits in `read` itself.
    read: dict[str, torch.Tensor] = {}
    mapped = np.memmap(path, mode="r", dtype=np.uint8)
    for tensor in header.tensors:
        begin = header.data_start + tensor.offset
        codes = mapped[begin : begin + tensor.nbytes].reshape(*tensor.shape[:-1], -1)
        weights = gguf.dequantize(codes, gguf.GGMLQuantizationType(tensor.ggml_type))
        done = processor.process(
            weights=weights,
            name=tensor.name,
            tensor_key_mapping=names,
            parsed_parameters={"tensors": read},
        )
        if done.name in names:
            read[names[done.name]] = torch.tensor(done.weights, dtype=dtype)
    return read


def _quietly(path: Path, read: Callable[[], Any]) -> Any:
    """transformers' reader without its progress bar, unless someone is there to watch it."""
    quiet = contextlib.nullcontext() if sys.stderr.isatty() else _silence()
    try:
        with quiet:
            return read()
    except _FAULTS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise WeightsError(
            f"{path} cannot be read as GGUF ({reason[:200]}): download it again"
        ) from error


def _silence() -> contextlib.AbstractContextManager[Any]:
    return contextlib.redirect_stderr(io.StringIO())


def _num_tensors(path: Path) -> int:
    """As the header says: magic, version, number of tensors; the rest is transformers' to read."""
    with path.open("rb") as file:
        head = file.read(16)
    if len(head) < 16 or head[:4] != b"GGUF":
        raise WeightsError(f"{path} cannot be read as GGUF: it does not begin as one")
    return int(struct.unpack("<4sIQ", head)[2])


@dataclass(frozen=True)
class _Diffusion:
    """A diffusion model's architecture in llama.cpp."""

    architecture: str
    """Of config.json, as released."""
    model_type: str
    permuted: bool = False
    """Whether rows of queries and keys were reordered for rotary pairs that lie side by side."""


_DIFFUSION = {
    "llada": _Diffusion("LLaDAModelLM", "llada", permuted=True),
    "dream": _Diffusion("DreamModel", "Dream"),
    "llada-moe": _Diffusion("LLaDAMoEModelLM", "llada"),
}
"""By general.architecture."""

_FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "expert_intermediate_size",
}
_IDS = {
    "mask_token_id": "mask_token_id",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "padding_token_id": "pad_token_id",
}
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}


def open_diffusion_gguf(source: str, path: Path) -> Checkpoint | None:
    """A GGUF file of LLaDA, Dream or LLaDA-MoE as a checkpoint; None for any other."""
    from transformers.integrations.gguf import GgufHeader, read_gguf_metadata

    _num_tensors(path)  # refuses what does not begin as one
    fields, listed = _quietly(path, lambda: read_gguf_metadata(str(path)))
    architecture = str(fields.get("general.architecture"))
    kind = _DIFFUSION.get(architecture)
    if kind is None:
        return None
    # 1. The fields of a config.json.
    config: dict[str, Any] = {"architectures": [kind.architecture], "model_type": kind.model_type}
    config |= {ours: fields.get(f"{architecture}.{theirs}") for theirs, ours in _FIELDS.items()}
    config |= {ours: fields.get(f"tokenizer.ggml.{theirs}") for theirs, ours in _IDS.items()}
    config = {name: given for name, given in config.items() if given is not None}
    config["tie_word_embeddings"] = "output.weight" not in listed
    _refuse_scaling(path, fields.get(f"{architecture}.rope.scaling.type"), listed)
    shift, family = fields.get("diffusion.shift_logits"), architecture
    if shift is not None and bool(shift) is not by_name(family).shift:
        raise FamilyError(
            f"{path.name} says diffusion.shift_logits={shift} and {family} models are read with "
            f"{by_name(family).shift}: load its safetensors with family="
        )
    # 2. The tensors, under the names of the stock class.
    header = _quietly(path, lambda: GgufHeader.from_file(str(path)))
    stored: dict[str, LocatedTensor] = {}
    for tensor in header.tensors:
        begin = header.data_start + tensor.offset
        if begin + tensor.nbytes > path.stat().st_size:
            raise WeightsError(f"{path} ends before {tensor.name} does: download it again")
        for name, located in _pieces(path, tensor, begin, kind, config):
            if name in stored:
                raise WeightsError(f"{path.name} has {tensor.name} twice: expected it once")
            stored[name] = located
    config.setdefault("vocab_size", _rows_of(path, stored, "model.embed_tokens.weight"))
    stored = {name: stored[name] for name in sorted(stored)}
    return Checkpoint(
        source=source,
        folder=path,
        tokenizer_folder=path,
        config=config,
        stored=dict(stored),
        files=stored,
    )


def _pieces(
    path: Path, tensor: Any, begin: int, kind: _Diffusion, config: dict[str, Any]
) -> Iterator[tuple[str, LocatedTensor]]:
    """A tensor of the file under stock names; experts, which it stacks, one by one."""
    import gguf

    # 1. How it lies there: blocks of codes along rows.
    quantised = gguf.GGMLQuantizationType(tensor.ggml_type)
    shape, (block, block_bytes) = tensor.shape, gguf.GGML_QUANT_SIZES[quantised]
    if not shape or shape[-1] % block:
        raise WeightsError(
            f"{tensor.name} of {path.name} has shape {list(shape)}, which blocks of {block} do not "
            "divide: download it again"
        )
    row_bytes = shape[-1] // block * block_bytes
    # 2. Its stock name.
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", tensor.name)
    layer, stem, ending = match.groups() if match else (None, tensor.name, "")
    prefix = "" if layer is None else f"model.layers.{layer}."
    if stem in _EXPERTS and len(shape) == 3:
        for expert in range(shape[0]):
            first = begin + expert * shape[1] * row_bytes
            name = f"{prefix}mlp.experts.{expert}.{_EXPERTS[stem]}.weight"
            yield name, _gguf_tensor(path, first, shape[1:], row_bytes, quantised)
        return
    name = f"{prefix}{_NAMES[stem]}.{ending}" if stem in _NAMES else tensor.name
    # 3. Rows of queries and keys in the order of the stock class.
    heads = None
    if kind.permuted and stem in ("attn_q", "attn_k"):
        heads = config.get("num_attention_heads")
        heads = config.get("num_key_value_heads", heads) if stem == "attn_k" else heads
        if not isinstance(heads, int) or heads < 1 or shape[0] % (2 * heads):
            raise WeightsError(
                f"{tensor.name} of {path.name} has {shape[0]} rows, which {heads} heads do not "
                "divide: download it again"
            )
    yield name, _gguf_tensor(path, begin, shape, row_bytes, quantised, heads)


def _gguf_tensor(
    path: Path,
    offset: int,
    shape: tuple[int, ...],
    row_bytes: int,
    kind: Any,
    heads: int | None = None,
) -> PackedTensor:
    """A tensor of a GGUF file; `heads` where rows of each head are pairs that lie side by side."""
    import gguf

    rows_count = shape[0] if len(shape) > 1 else 1
    codes = FileTensor(path, (rows_count, row_bytes), torch.uint8, offset)
    order: torch.Tensor | None = None
    if heads is not None:
        # Row (head, half, pair) of the stock class is row (head, pair, half) of the file.
        order = torch.arange(shape[0]).view(heads, -1, 2).transpose(1, 2).reshape(-1)

    def rows_of(tensors: Parts) -> Rows:
        def rows(start: int, stop: int) -> torch.Tensor:
            if len(shape) == 1:
                whole = gguf.dequantize(tensors["codes"].numpy(), kind)
                return torch.from_numpy(whole).float().view(-1)[start:stop]
            chosen = slice(start, stop) if order is None else order[start:stop]
            mine = tensors["codes"][chosen]
            return torch.from_numpy(gguf.dequantize(mine.numpy(), kind)).float()

        return rows

    return PackedTensor(shape, {"codes": codes}, rows_of)


def _refuse_scaling(path: Path, scaling: Any, names: tuple[str, ...]) -> None:
    if scaling not in (None, "none") or "rope_freqs.weight" in names:
        raise WeightsError(
            f"{path.name} has scaled rotary tables, which no released LLaDA or Dream has: load the "
            "model's safetensors"
        )


def _rows_of(path: Path, stored: dict[str, LocatedTensor], name: str) -> int:
    if name not in stored:
        raise WeightsError(f"{path.name} has no token_embd.weight: download it again")
    return stored[name].shape[0]


def find_gguf(source: str, revision: str | None = None) -> Path:
    """The file, brought here from the hub where it is not."""
    path = Path(source).expanduser()
    if path.is_file():
        if revision is not None:
            raise SpecError(f"{source} lies here and revision is for hub ids: leave revision out")
        return path
    parts = source.split("/")
    if len(parts) != 3 or source.startswith((".", "/", "~")):
        raise ModelError(
            f"there is no file {source!r}: give a .gguf file or 'owner/repository/file.gguf'"
        )
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download("/".join(parts[:2]), parts[2], revision=revision))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        remedy = hub_remedy(error, "/".join(parts[:2]), revision)
        raise ModelError(
            f"{source!r} is not a file here and the hub did not give it "
            f"({type(error).__name__}): {remedy}"
        ) from error
