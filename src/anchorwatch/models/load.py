"""`load`: a folder, a file, a hub id, `lab/`, `tiny/` or `wired/...` to a Model that proved itself.

No remote code runs, ever: `auto_map` is ignored (and said), kernels and dtypes are set by us, and
the weights go into stock transformers classes tensor by tensor, with nothing left over.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from anchorwatch.edits.spec import Addition
from anchorwatch.errors import (
    AnchorwatchError,
    AnchorwatchWarning,
    ModelError,
    SpecError,
)
from anchorwatch.models import tiny, trained_additions, wired
from anchorwatch.models.attention import NAME, register
from anchorwatch.models.checkpoint import Checkpoint, open_checkpoint, read_json
from anchorwatch.models.config import (
    assumed_block,
    block_of,
    check_experts,
    check_layers,
    check_numbers,
    check_sizes,
    overruled_fields,
    set_visibility,
    stock_config,
)
from anchorwatch.models.device_map import DeviceMap, Dispatcher
from anchorwatch.models.families import (
    FAMILIES,
    Family,
    by_name,
    diffusion_hints,
    family_of,
    model_type_of,
    refuse_hidden_diffusion,
    unnamed_encoder,
)
from anchorwatch.models.fill import empty_parameters, fill_network, plan_weights
from anchorwatch.models.gguf import find_gguf, load_gguf, open_diffusion_gguf
from anchorwatch.models.model import Model
from anchorwatch.models.quantised import dequantise
from anchorwatch.models.stacking import choose_expert_kernel
from anchorwatch.models.tokens import (
    checked_mask,
    find_mask,
    load_tokenizer,
    mask_sources,
    note_overruled_mask,
    require_inside,
    specials_of,
)
from anchorwatch.models.verify import prove_fused, prove_positions, prove_rotary

_CONFIG_FAULTS = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RuntimeError,  # RecursionError is one
    StrictDataclassError,
)
"""What a config that describes nothing makes transformers and torch raise."""

_DEVICE_FAULTS = (RuntimeError, AssertionError, ImportError, ValueError, TypeError, AttributeError)
"""What a device that is not there makes torch raise."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load(
    source: str | Path,
    *,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    device_map: DeviceMap | None = None,
    mask_id: int | None = None,
    family: str | None = None,
) -> Model:
    """Load a diffusion or autoregressive checkpoint and prove what was loaded.

    >>> model = load("tiny/llada")
    >>> model.logprobs([5, 6, model.mask_id]).shape[:1]
    torch.Size([3])

    Args:
        source: a folder, a .safetensors or .gguf file, a hub id, an embedded model that is trained
            (lab/toy-mdm, lab/tales-mdm), random (tiny/llada|dream|arm|bert) or wired by hand
            (wired/static-sink and others).
        revision: branch, tag or commit of a hub id.
        dtype: float32, bfloat16 or float16; the default is what config.json says, and float32
            where it says nothing. A CPU computes half precision slowly: say float32 if it fits.
        device: where to put it; the default is the first accelerator, else the CPU.
        device_map: over several devices instead: auto, balanced, sequential, or a mapping of
            module names to devices, "cpu" and "disk" among them; accelerate moves the weights.
        mask_id: the mask token, where the checkpoint does not say or says two things; one that
            it does not name is used with a warning.
        family: how to read it, where config.json misleads; `anchorwatch models` names them.
    """
    # 1. Checked before anything is read: device, dtype and mask id cost nothing to refuse.
    register()
    source = str(source)
    if device is not None and device_map is not None:
        raise SpecError("device is one place and device_map several: leave one of them out")
    place_on = _device(device)
    number = _named_dtype(dtype)
    mask_id = checked_mask(mask_id)
    chosen = _named_family(source, family)
    if source.startswith(("tiny/", "wired/", "lab/")) and revision is not None:
        raise SpecError(f"{source} is embedded and revision is for hub ids: leave revision out")
    # 2. Readers: models that are computed, GGUF, and everything kept as safetensors.
    if source.startswith("tiny/"):
        model = tiny.build(source, number or torch.float32, mask_id)
    elif source.startswith("wired/"):
        model = wired.build(source, number or torch.float32, mask_id)
    elif source.endswith(".gguf"):
        path = find_gguf(source, revision)
        if (opened := open_diffusion_gguf(source, path)) is not None:
            dequantised = ("GGUF weights, dequantised",)
            return _load_checkpoint(
                opened, dequantised, number, mask_id, None, device_map or place_on
            )
        model = load_gguf(source, path, number or torch.float32, mask_id)
    else:
        opened, said = dequantise(open_checkpoint(source, revision))
        for note in said:
            warnings.warn(note, AnchorwatchWarning, stacklevel=2)
        return _load_checkpoint(opened, said, number, mask_id, chosen, device_map or place_on)
    # 3. Models that were built on the CPU go to their devices.
    if device_map is None:
        model.network.to(place_on)
    else:
        Dispatcher(device_map, model.network, model.network.dtype).dispatch()
    return model


def find(source: str | Path, revision: str | None = None) -> None:
    """Refuse a name that leads to no checkpoint; weights of a hub id are fetched, none is read."""
    source = str(source)
    if source.startswith("tiny/"):
        tiny.kind_of(source)
    elif source.startswith("wired/"):
        wired.plan_of(source)
    elif source.endswith(".gguf"):
        find_gguf(source, revision)
    else:
        open_checkpoint(source, revision, check=False)


def _load_checkpoint(
    checkpoint: Checkpoint,
    said: tuple[str, ...],
    dtype: torch.dtype | None,
    mask_id: int | None,
    chosen: Family | None,
    device: torch.device | DeviceMap,
) -> Model:
    # 1. What it is: config, family, tokenizer, mask.
    config, notes = _config(checkpoint)
    generation = read_json(checkpoint.folder / "generation_config.json", missing={})
    family, tokenizer, assumed = _identify(checkpoint, config, generation, mask_id, chosen)
    mask = find_mask(mask_id, config, generation, tokenizer, family)
    overruled = note_overruled_mask(checkpoint.source, mask_id, config, generation, tokenizer)
    # 2. A stock network on no device, with the additions that the checkpoint names.
    network = _empty_network(family, config, checkpoint.shapes)
    block = block_of(family, config)
    parts = trained_additions.read_declared_parts(config)
    outputs = _training_record(config).get("outputs")
    if family.read_additions is not None:
        parts = family.read_additions(checkpoint.shapes)
        outputs = checkpoint.shapes.get("lm_head.weight", (None,))[0]
    _cut_unembedding(network, outputs)
    trained_additions.attach(network, parts)
    # 3. Ids with a meaning must have rows: the mask in the embedding, ends in the unembedding.
    rows = len(network.get_input_embeddings().weight), len(network.get_output_embeddings().weight)
    require_inside(mask, rows[0], given=mask_id)
    specials, left_out = specials_of(mask, config, generation, tokenizer, rows)
    on_cpu = isinstance(device, torch.device) and device.type == "cpu"
    dtype, precision, slow = _choose_dtype(dtype, config, on_cpu=on_cpu)
    # 4. The tensors under stock names, every one used once: known before any is read.
    plan = plan_weights(checkpoint.stored, family, network)
    trained_additions.check_tensors(network, parts, plan.pieces)
    # 5. Read straight to their device, and verified on the way.
    trained = trained_additions.tensor_names(network, parts)
    place = _place_weights(network, device, dtype, parts)
    filled = fill_network(
        network,
        plan,
        checkpoint.tensors(),
        family,
        dtype,
        device_of=place.device_of,
        store=place.store,
        keep=trained,
    )
    parts = trained_additions.attach_trained_numbers(network, parts, filled.kept)
    prove_rotary(network)
    choose_expert_kernel(network)
    place.dispatch()
    notes += assumed + assumed_block(checkpoint.source, family, config)
    notes += overruled_fields(family, config) + overruled + left_out + slow
    for note in notes:
        warnings.warn(note, AnchorwatchWarning, stacklevel=3)
    return Model(
        source=checkpoint.source,
        family=family,
        network=network.eval(),
        tokenizer=tokenizer,
        specials=specials,
        block=block,
        parts=parts,
        revision=checkpoint.revision,
        notes=said + notes + filled.notes,
        precision=precision,
    )


def _config(checkpoint: Checkpoint) -> tuple[dict[str, Any], tuple[str, ...]]:
    """config.json with what an old or bare file left out, and what was ignored or assumed."""
    # A bare file has no config: a family that knows its tensors' shapes fills in what they say.
    config, said = checkpoint.config, []
    for family in FAMILIES:
        if family.read_config is not None:
            config = family.read_config(checkpoint.shapes, config) or config
    if config.get("auto_map"):
        said.append(
            f"{checkpoint.source} asks for remote code (auto_map in config.json): "
            "ignored, a stock class is used"
        )
    if kind := unnamed_encoder(config, checkpoint.shapes):
        config = config | {"model_type": kind}
        said.append(
            f"config.json of {checkpoint.source} names no model_type: "
            f"taken as {kind}, as its tensors are named"
        )
    return config, tuple(said)


def _identify(
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    mask_id: int | None,
    chosen: Family | None,
) -> tuple[Family, PreTrainedTokenizerBase | None, tuple[str, ...]]:
    """Family, tokenizer and what was assumed; what only the checkpoint can say is filled in."""
    family = chosen or family_of(config, checkpoint.shapes, _causal_classes())
    tokenizer = load_tokenizer(checkpoint.tokenizer_folder, family)
    # Our own checkpoints say what their stock config cannot, the shift among it.
    trained = _training_record(config)
    if family.name == "anchorwatch":
        return replace(family, shift=trained.get("shift", False)), tokenizer, ()
    if chosen is None and _is_qwen2(family, config) and not trained:
        # Open-dCoder says Qwen2ForCausalLM, like the model it came from.
        named = (tokenizer is not None and tokenizer.mask_token is not None) or any(
            fields.get("mask_token_id") is not None for fields in (config, generation)
        )
        if named:
            return by_name("open-dcoder"), tokenizer, ()
        if mask_id is not None:
            note = (
                f"{checkpoint.source} names no mask token: mask_id={mask_id} makes it open-dcoder, "
                "a diffusion model; leave mask_id out for an autoregressive one"
            )
            return by_name("open-dcoder"), tokenizer, (note,)
    if chosen is None and family.name == "causal" and not trained:
        masks = mask_sources(config, generation, tokenizer)
        refuse_hidden_diffusion(
            checkpoint.source, config, diffusion_hints(config, generation, masks)
        )
    if family.shift_field:
        shift = config.get(family.shift_field, False)
        if not isinstance(shift, bool):
            raise ModelError(
                f"config.json says {family.shift_field}={shift!r}: expected true or false"
            )
        family = replace(family, shift=shift)
    return family, tokenizer, ()


def _is_qwen2(family: Family, config: Mapping[str, Any]) -> bool:
    return family.name == "causal" and model_type_of(config) == "qwen2"


def _named_family(source: str, name: str | None) -> Family | None:
    """The family asked for; None leaves it to the checkpoint."""
    if name is None:
        return None
    if source.startswith(("tiny/", "wired/", "lab/")) or source.endswith(".gguf"):
        raise SpecError(f"{source} says what it is: leave family out")
    known = [family.name for family in FAMILIES]
    if name not in known:
        raise SpecError(f"no family is called {name!r}: expected one of {', '.join(known)}")
    return by_name(name)


def _training_record(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `anchorwatch train` says of a network that its stock config cannot; empty elsewhere."""
    record = config.get("anchorwatch", {})
    good = isinstance(record, dict) and isinstance(record.get("shift", False), bool)
    if not good or type(record.get("outputs", 1)) is not int or record.get("outputs", 1) < 1:
        raise ModelError(
            f'config.json says anchorwatch={record!r}: expected "anchorwatch": {{"parts": [...]}}, '
            "with shift (true or false) and outputs (a number) if there are any"
        )
    return record


def _empty_network(
    family: Family, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> PreTrainedModel:
    """The stock class with parameters that hold nothing yet (buffers, such as rotary, are real)."""
    try:
        # Checked before anything is built: a config may name sizes that fill the memory.
        fields = stock_config(family, config)
        check_layers(fields, shapes)
        stock = AutoConfig.for_model(fields.pop("model_type"), **fields)
        classes = MODEL_FOR_MASKED_LM_MAPPING if family.masked_lm else MODEL_FOR_CAUSAL_LM_MAPPING
        prove_fused(classes[type(stock)], stock)
        check_sizes(stock, shapes)
        check_numbers(stock)
        check_experts(stock)
        set_visibility(family, stock)
        auto = AutoModelForMaskedLM if family.masked_lm else AutoModelForCausalLM
        # Parameters on the meta device take no memory; rotary tables are computed for real.
        with empty_parameters():
            network = auto.from_config(stock, attn_implementation=NAME, trust_remote_code=False)
        if getattr(stock, "routing_block", None) is not None:
            from anchorwatch.models.block_router import route_by_blocks

            route_by_blocks(network)
        prove_positions(network)
        return network
    except AnchorwatchError:
        raise
    except _CONFIG_FAULTS as error:
        cause = error.__cause__ if isinstance(error, StrictDataclassError) else None
        reason = f"{type(cause or error).__name__}: {cause or error}".splitlines()[0]
        raise ModelError(
            f"config.json does not describe a {family.name} model: {reason[:200]}"
        ) from error


def _cut_unembedding(network: PreTrainedModel, outputs: int | None) -> None:
    """An unembedding with fewer rows than the embedding: the mask, or a sink, is never written."""
    rows, width = network.get_input_embeddings().weight.shape
    if outputs is not None and outputs < rows:
        network.lm_head = torch.nn.Linear(width, outputs, bias=False, device="meta")


@dataclass(frozen=True)
class _OneDevice:
    """Where the weights go, if it is a single place; `Dispatcher` is its twin for several."""

    network: PreTrainedModel
    device: torch.device

    def device_of(self, name: str) -> torch.device:
        return self.device

    def store(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def dispatch(self) -> None:
        self.network.to(self.device)  # tables of positions, which no file has


def _place_weights(
    network: PreTrainedModel,
    device: torch.device | DeviceMap,
    dtype: torch.dtype,
    parts: Sequence[Addition],
) -> _OneDevice | Dispatcher:
    if isinstance(device, torch.device):
        return _OneDevice(network, device)
    if parts:
        raise SpecError(
            "a network with trained additions computes with their weights on one device: "
            "say device instead of device_map"
        )
    return Dispatcher(device, network, dtype)


def _choose_dtype(
    asked: torch.dtype | None, config: Mapping[str, Any], *, on_cpu: bool
) -> tuple[torch.dtype, str, tuple[str, ...]]:
    """The dtype to compute in, why, and a warning where a CPU would rather have another."""
    if asked is not None:
        return asked, f"{_bare(asked)}, as asked", ()
    said = str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch.")
    if said not in _DTYPES:
        return torch.float32, "float32, because config.json names no other", ()
    why = f"{said}, as config.json says"
    if not on_cpu or said == "float32":
        return _DTYPES[said], why, ()
    slow = (
        f"it computes in {why}: on a CPU dtype='float32' is more exact and often much faster, and "
        "takes twice the memory"
    )
    return _DTYPES[said], why, (slow,)


def _bare(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _causal_classes() -> dict[str, str]:
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
    return {kind: name if isinstance(name, str) else name[0] for kind, name in names}


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    try:
        named = torch.device(device)
    except (RuntimeError, TypeError):
        raise SpecError(
            f"device={device!r} is unknown: expected 'cpu', 'cuda', 'cuda:1' or 'mps'"
        ) from None
    try:
        torch.zeros(1, device=named).item()  # a name says nothing of what is there
    except _DEVICE_FAULTS:
        best = torch.accelerator.current_accelerator()
        here = "'cpu'" if best is None else f"{best.type!r} or 'cpu'"
        raise SpecError(f"device={device!r} cannot be used on this machine: use {here}") from None
    return named


def _named_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The dtype asked for; None leaves it to the checkpoint."""
    if dtype is None:
        return None
    named = _DTYPES.get(re.sub(r"^torch\.", "", str(dtype)))
    if named is None:
        raise SpecError(f"dtype={dtype!r} is unknown: expected one of {', '.join(_DTYPES)}")
    return named
