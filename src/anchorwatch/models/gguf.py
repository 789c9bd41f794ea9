"""GGUF files of causal LMs, through transformers' own reader; weights are dequantised on load."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from anchorwatch.attention import NAME
from anchorwatch.errors import ModelError, WeightsError
from anchorwatch.models.families import Excuse, by_name
from anchorwatch.models.model import Model
from anchorwatch.models.proof import place, prove_rotary
from anchorwatch.models.tokens import specials_of

_ROPE_TABLE = Excuse(r"rope_freqs\.weight", "a rotary table that is recomputed from the config")


def load_gguf(source: str, revision: str | None, dtype: torch.dtype) -> Model:
    """A local .gguf file, or `owner/repository/file.gguf` on the hub."""
    import gguf

    path = _find(source, revision)
    folder, name = str(path.parent), path.name
    try:
        held = {tensor.name for tensor in gguf.GGUFReader(path).tensors}
        config = AutoConfig.from_pretrained(folder, gguf_file=name)
    except (ValueError, OSError, KeyError, IndexError) as error:
        raise WeightsError(f"{path} cannot be read as GGUF: {error}") from error
    with init_empty_weights(include_buffers=False):
        network = AutoModelForCausalLM.from_config(config, attn_implementation=NAME)
    read = load_gguf_checkpoint(
        str(path), return_tensors=True, model_to_load=network, torch_dtype=dtype
    )
    lost = len({tensor for tensor in held if not _ROPE_TABLE.covers(tensor)}) - len(read["tensors"])
    if lost:
        raise WeightsError(
            f"{path.name} holds {len(held)} tensors "
            f"and transformers' reader placed {len(read['tensors'])}: "
            "this architecture is not fully read from GGUF, load its safetensors"
        )
    notes = place(network, read["tensors"], by_name("causal"), dtype)
    prove_rotary(network)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    return Model(
        source=source,
        family=by_name("causal"),
        network=network.eval(),
        tokenizer=tokenizer,
        specials=specials_of(None, config.to_dict(), {}, tokenizer),
        notes=(*notes, "GGUF weights, dequantised"),
    )


def _find(source: str, revision: str | None) -> Path:
    path = Path(source).expanduser()
    if path.is_file():
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
        raise ModelError(
            f"{source!r} is not a file here and the hub did not give it: {error}"
        ) from error
