"""GGUF files of causal LMs, through transformers' own reader; weights are dequantised on load."""

from __future__ import annotations

import contextlib
import io
import struct
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
)
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from anchorwatch.errors import AnchorwatchWarning, FamilyError, ModelError, SpecError, WeightsError
from anchorwatch.models.attention import NAME
from anchorwatch.models.checkpoint import hub_remedy
from anchorwatch.models.config import set_visibility
from anchorwatch.models.families import by_name
from anchorwatch.models.fill import fill_network, plan_weights
from anchorwatch.models.model import Model
from anchorwatch.models.tokens import find_mask, gguf_tokenizer, specials_of
from anchorwatch.models.verify import prove_fused, prove_rotary
from anchorwatch.models.weight_files import MemoryTensor

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


def load_gguf(source: str, revision: str | None, dtype: torch.dtype, mask_id: int | None) -> Model:
    """A local .gguf file, or `owner/repository/file.gguf` on the hub."""
    family = by_name("causal")
    find_mask(mask_id, {}, {}, None, family)  # refuses a mask id
    # 1. The config, and a network without weights that computes with our attention.
    path = find_gguf(source, revision)
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
    network, read = _quietly(path, lambda: _tensors(path, config, dtype))
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
    tokenizer = gguf_tokenizer(path)
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


def _tensors(
    path: Path, config: Any, dtype: torch.dtype
) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    with init_empty_weights(include_buffers=False):
        network = AutoModelForCausalLM.from_config(
            config, attn_implementation=NAME, trust_remote_code=False
        )
    read = load_gguf_checkpoint(
        str(path), return_tensors=True, model_to_load=network, torch_dtype=dtype
    )
    return network, read["tensors"]


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
