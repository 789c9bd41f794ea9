"""Where training starts: a network from scratch, or one that `aw.load` opens, and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from anchorwatch.edits import spec as edits
from anchorwatch.edits.spec import Addition
from anchorwatch.errors import SpecError
from anchorwatch.models.attention import NAME, register
from anchorwatch.models.load import load
from anchorwatch.models.model import Model
from anchorwatch.models.tokens import tokenizer_digest
from anchorwatch.models.trained_additions import attach, tensor_names, trainable
from anchorwatch.training import noise
from anchorwatch.training.adapters import add_adapters, read_first_adapters
from anchorwatch.training.spec import Spec

MASK_TOKEN = "<|mask|>"


@dataclass(frozen=True, eq=False)
class StartingPoint:
    """A network about to be trained, and how to read it."""

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    kind: Literal["mdm", "arm"]
    shift: bool
    mask_id: int | None
    parts: tuple[Addition, ...] = ()
    """What is trained with it, as the spec and the checkpoint name it."""
    origin: str | None = None
    """Digest of the base checkpoint's weights."""
    new_mask: bool = False
    """Whether the mask token is new to the embedding."""
    rows: int | None = None
    """Rows of the embedding that the checkpoint brought, where some were added."""
    first_adapters: str | None = None
    """Digest of the adapters that are trained on, where they are not new."""

    @property
    def vocab_size(self) -> int:
        """Ids a text may hold: those the network can write."""
        return len(self.network.get_output_embeddings().weight)

    @property
    def pad_id(self) -> int:
        """An id to fill rows with; it is never looked at."""
        pad = self.tokenizer.pad_token_id
        return 0 if pad is None else int(pad)

    def describe(self) -> dict[str, Any]:
        """What a run's record says of its start: two runs that differ here are two runs."""
        return {
            "kind": self.kind,
            "shift": self.shift,
            "mask_id": self.mask_id,
            "vocab_size": self.vocab_size,
            "tokenizer": tokenizer_digest(self.tokenizer),
            "origin": self.origin,
        } | ({"first_adapters": self.first_adapters} if self.first_adapters else {})


def build_start(spec: Spec, tokenizer: PreTrainedTokenizerBase | None = None) -> StartingPoint:
    """The network a spec begins with: its first values, adapters and parts in place."""
    register()
    if spec.model.source is not None:
        start = _start_from_checkpoint(spec, spec.model.source)
    elif tokenizer is None:
        raise SpecError("a network from scratch needs a tokenizer: the corpus brings one")
    else:
        start = _start_from_scratch(spec, tokenizer)
    limit = int(start.network.config.max_position_embeddings)
    if spec.length > limit:
        raise SpecError(
            f"length {spec.length} is more than the {limit} positions of {spec.model.source}: "
            f"say length = {limit} or less"
        )
    start.network.requires_grad_(True)
    if spec.lora is not None:
        full = tensor_names(start.network, start.parts)
        add_adapters(
            start.network,
            spec.lora,
            spec.seed,
            embeddings=start.new_mask,
            mask_id=start.mask_id,
            full=full,
        )
        first = read_first_adapters(start.network, spec.lora, str(spec.model.source))
        start = replace(start, first_adapters=first)
    start = _attach_parts(start, spec)
    start.network.train()
    return start


def _start_from_scratch(spec: Spec, tokenizer: PreTrainedTokenizerBase) -> StartingPoint:
    """A network from scratch: every tensor's values derive from its name."""
    diffusion = spec.objective.name == "diffusion"
    mask_id = tokenizer.mask_token_id if diffusion else None
    if diffusion and mask_id is None:
        raise SpecError("diffusion needs a mask token and the tokenizer has none: add mask_token")
    # 1. The stock config; causal or not is the only thing that diffusion changes in it.
    shape, (layers, width, heads) = spec.model, spec.model.numbers
    config = AutoConfig.for_model(
        shape.network,
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=shape.hidden or 4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=shape.kv_heads or heads,
        head_dim=width // heads,
        max_position_embeddings=shape.positions or spec.length,
        rms_norm_eps=1e-5,
        rope_theta=shape.rotary_base,
        tie_word_embeddings=shape.tied,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,  # torch would freeze its row
    )
    config.is_causal = not diffusion
    # 2. The stock network with our attention, its tensors filled by their names.
    network = AutoModelForCausalLM.from_config(
        config, attn_implementation=NAME, dtype=torch.float32, trust_remote_code=False
    )
    noise.fill_first_values(network, spec.seed)
    kind: Literal["mdm", "arm"] = "mdm" if diffusion else "arm"
    return StartingPoint(network, tokenizer, kind, shift=not diffusion, mask_id=mask_id)


def _start_from_checkpoint(spec: Spec, source: str) -> StartingPoint:
    """A base checkpoint; an autoregressive one may become a diffusion model."""
    model = _load_checkpoint(source, spec.model.mask_id)
    network, name = model.network, spec.objective.name
    if model.family.name == "encoder" or not hasattr(network, "lm_head"):
        raise SpecError(f"{source} is a {model.family.name} model, whose head is not trained here")
    if model.family.visibility == "block-causal":
        raise SpecError(f"{source} sees in blocks, for which there is no noise here yet")
    if model.tokenizer is None:
        raise SpecError(f"{source} has no tokenizer: put its files into the folder")
    if model.family.kind == "mdm" and name == "next_token":
        raise SpecError(f"{source} is a diffusion model: use diffusion or fine_tune")
    if model.family.kind == "arm" and name != "diffusion":
        _check_stays_causal(spec, source)
    origin = model.digest
    kind = "mdm" if name == "diffusion" else model.family.kind
    network.config.is_causal = kind == "arm"
    start = StartingPoint(
        network,
        model.tokenizer,
        kind,
        model.family.shift,
        model.specials.mask_id,
        parts=model.parts,
        origin=origin,
    )
    if kind == "mdm" and start.mask_id is None:
        start = _add_mask_token(start, spec.model.mask_id)
    return start


def _check_stays_causal(spec: Spec, source: str) -> None:
    """An autoregressive checkpoint that stays one has no use for noise and masks."""
    unused = sorted(spec.objective.model_fields_set & {"t", "eps", "masks"})
    if spec.model.mask_id is not None:
        unused.append("model.mask_id")
    if unused:
        raise SpecError(
            f"{source} is autoregressive, and {spec.objective.name} keeps that: its loss has no "
            f"noise; leave {', '.join(unused)} out, or use diffusion"
        )


def _load_checkpoint(source: str, mask_id: int | None) -> Model:
    """The checkpoint with the mask id asked for; an autoregressive one takes it afterwards."""
    try:
        return load(source, dtype="float32", device="cpu", mask_id=mask_id)
    except SpecError:
        if mask_id is None:
            raise
        return load(source, dtype="float32", device="cpu")


def _add_mask_token(start: StartingPoint, mask_id: int | None) -> StartingPoint:
    """A mask token for a network that had none: the id given, a spare row, or a new one."""
    rows, tokenizer = len(start.network.get_input_embeddings().weight), start.tokenizer
    if mask_id is not None:
        tokenizer.mask_token = _spare_token(tokenizer, mask_id)
    elif tokenizer.mask_token_id is None:
        tokenizer.add_special_tokens({"mask_token": MASK_TOKEN})
    new_id = int(tokenizer.mask_token_id)
    if new_id >= rows:
        _add_embedding_rows(start.network, new_id + 1)
    return replace(start, mask_id=new_id, new_mask=True, rows=rows)


def _spare_token(tokenizer: PreTrainedTokenizerBase, mask_id: int) -> str:
    """The name of a token that no text makes: an added one that begins, ends and pads nothing."""
    used = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    spare = {
        token_id: name
        for name, token_id in tokenizer.get_added_vocab().items()
        if token_id not in used
    }
    if mask_id not in spare:
        some = ", ".join(map(str, sorted(spare)[:8]))
        raise SpecError(
            f"mask_id {mask_id} is no spare token of the tokenizer, which text would never hold: "
            "leave mask_id out, and a mask token is added"
            + (f"; or give one of its added tokens, {some}" if some else "")
        )
    return spare[mask_id]


@torch.no_grad()
def _add_embedding_rows(network: PreTrainedModel, rows: int) -> None:
    """More rows for embedding and unembedding, each the mean of those there were."""
    old = {}
    for name, module in _embeddings_of(network):
        old[name] = module.weight.detach().mean(dim=0)
    before = len(network.get_input_embeddings().weight)
    network.resize_token_embeddings(rows, mean_resizing=False)
    for name, module in _embeddings_of(network):
        module.weight[before:] = old[name]


def _embeddings_of(network: Any) -> list[tuple[str, Any]]:
    ends = [("embedding", network.get_input_embeddings())]
    if not network.config.tie_word_embeddings:
        ends.append(("unembedding", network.get_output_embeddings()))
    return ends


def _attach_parts(start: StartingPoint, spec: Spec) -> StartingPoint:
    """The parts of the spec beside those of the checkpoint, all of them trained in full."""
    added = _read_parts(spec)
    for part in start.parts:
        if type(part) in map(type, added):
            raise SpecError(
                f"{spec.model.source} has a {type(part).__name__} already, which is trained on: "
                "leave it out of variant"
            )
    network, mask_id = start.network, start.mask_id
    if spec.compile and (added or start.parts):
        # What is worn is looked up while layers compute: a compiled pass might not ask again.
        raise SpecError("compile is not proven with parts: leave compile or the parts out")
    if any(getattr(part, "embedding", "") == "mask" for part in added) and mask_id is None:
        raise SpecError("next_token has no mask token: use embedding = 'mean' or 'start'")
    attach(network, added, bos_id=start.tokenizer.bos_token_id, mask_id=mask_id)
    parts = (*start.parts, *added)
    for name in tensor_names(network, parts):  # adapters freeze all that was there before them
        network.get_parameter(name).requires_grad_(True)
    return replace(start, parts=parts)


def _read_parts(spec: Spec) -> tuple[Addition, ...]:
    """The parts a spec names; their seed is the spec's unless they say one."""
    parts = []
    known = [name for name, kind in edits.EDITS.items() if issubclass(kind, Addition)]
    for table in spec.variant:
        if table["name"] not in edits.EDITS:
            raise SpecError(
                f"no part is called {table['name']!r}: expected one of {', '.join(known)}"
            )
        part = edits.from_dict(table)
        if "seed" not in table and hasattr(part, "seed"):
            part = replace(part, seed=spec.seed)  # type: ignore[call-arg]
        if getattr(part, "lacks", None) is not None:
            raise SpecError(
                f"variant names the {part.lacks} of {table['name']} by a digest: "  # type: ignore[attr-defined]
                "give its numbers, or a word"
            )
        parts.append(part)
    return trainable(parts)
