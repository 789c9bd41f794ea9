"""What was loaded is what the file holds, and it computes what its family says.

First the weights: every tensor of the file used once, every parameter filled, rotary tables equal
to their formula. Then the network: laws that every loaded model must obey, measured on itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from anchorwatch.errors import FamilyError, ModelError, SpecError, WeightsError
from anchorwatch.models.config import deciding_fields, rope_parameters
from anchorwatch.models.device_map import weight_here
from anchorwatch.models.tokens import Specials

if TYPE_CHECKING:
    from anchorwatch.models.model import Model

_FUSED = "Llama, Qwen2, Qwen3, Mistral, Gemma, Gemma-3, GPT-2 and GPT-NeoX have it"


def prove_fused(kind: Any, stock: Any) -> None:
    """Refuse a class whose attention is not one fused call of ours in every layer."""
    name = kind.__name__
    if stock.get_text_config() is not stock:
        raise FamilyError(f"{name} reads more than text: load a text-only model of its family")
    if stock.is_encoder_decoder:
        raise FamilyError(f"{name} is half of an encoder-decoder: load a decoder-only model")
    layers = set(getattr(stock, "layer_types", None) or ())
    if kind._is_stateful or not layers <= {"full_attention", "sliding_attention"}:
        raise FamilyError(f"{name} has layers without attention, which cannot be watched: {_FUSED}")
    softcap = getattr(stock, "attn_logit_softcapping", None)
    # gpt-oss adds sinks, which no stock fused kernel knows: ours has them as sink logits.
    fused = kind._supports_sdpa or stock.model_type == "gpt_oss"
    if softcap or not (fused and kind._can_set_attn_implementation()):
        raise FamilyError(
            f"{name} has no fused attention (it caps or shifts its logits, adds sinks, or computes "
            f"by itself), so what is watched would not be what it computes: {_FUSED}"
        )


def prove_positions(network: PreTrainedModel) -> None:
    """Refuse networks that count positions from their padding tokens, unless we know how."""
    if network.config.model_type == "esm" and network.config.position_embedding_type != "rotary":
        raise FamilyError(
            f"{type(network).__name__} has a table of positions, counted from its padding tokens: "
            "of ESM, ESM-2 with its rotary positions is read"
        )
    counting = any(hasattr(m, "create_position_ids_from_input_ids") for m in network.modules())
    if counting and network.config.model_type != "roberta":
        raise FamilyError(
            f"{type(network).__name__} counts positions from its padding tokens: "
            "of the networks that do, only RoBERTa is read"
        )


def prove_rotary(network: PreTrainedModel) -> float | None:
    """Greatest difference of a rotary table from its formula; None where there is no rotary."""
    worst: float | None = None
    for module in network.modules():
        for name, table in module.named_buffers(recurse=False):
            if not name.endswith("inv_freq") or name.endswith("original_inv_freq"):
                continue
            expected = _rotary(module.config, name.removesuffix("inv_freq").rstrip("_"))
            if table.shape != expected.shape:
                raise WeightsError(
                    f"the rotary table {name} has shape {list(table.shape)}: "
                    f"expected {list(expected.shape)}"
                )
            # Relative, in float64: low frequencies are tiny and matter most at long distances.
            gap = float(((table.double().cpu() - expected).abs() / expected).max())
            if not gap <= 1e-5:  # NaN fails too
                raise WeightsError(
                    f"the rotary table {name} differs from its formula by {gap:.1e}: "
                    "it was not initialised"
                )
            worst = max(gap, worst or 0.0)
    return worst


def stored_weights(network: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, and buffers that a file holds (a router's bias), by name."""
    yield from network.named_parameters()
    kept = network.state_dict().keys()
    yield from ((name, buffer) for name, buffer in network.named_buffers() if name in kept)


def weights_digest(network: PreTrainedModel) -> str:
    """SHA-256 of all weights' names, dtypes, shapes and bytes; the same however sharded."""

    def one(item: tuple[str, torch.Tensor]) -> bytes:
        name, tensor = item
        head = f"{name} {tensor.dtype} {list(tensor.shape)}".encode()
        body = (
            weight_here(network, name, tensor).contiguous().view(-1).view(torch.uint8).numpy().data
        )
        return hashlib.sha256(head + hashlib.sha256(body).digest()).digest()

    items = sorted(stored_weights(network), key=lambda item: item[0])
    with ThreadPoolExecutor(max_workers=4) as pool:  # hashlib lets go of the interpreter lock
        return hashlib.sha256(b"".join(pool.map(one, items))).hexdigest()


def settings_of(
    network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, specials: Specials
) -> dict[str, Any]:
    """What decides answers besides weights and vocabulary.

    The config the network computes by (rotary base, epsilons, positions), start and end ids, the
    chat template, and how the tokenizer's specials and spaces are spelled.
    """
    settings: dict[str, Any] = {"config": deciding_fields(network.config.to_dict())}
    settings |= {"eos": specials.eos_ids, "bos": specials.bos_id}
    for name in ("chat_template", "special_tokens_map", "clean_up_tokenization_spaces"):
        settings[name] = getattr(tokenizer, name, None)
    return settings


def settings_digest(settings: Mapping[str, Any]) -> str:
    """SHA-256 of them."""
    return hashlib.sha256(_to_json(settings).encode()).hexdigest()


def settings_fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same field by field, as JSON has them; a chat template, which is long, by its digest."""
    fields = dict(settings["config"])
    for name, value in settings.items():
        if name != "config":
            fields[f"{name}_ids" if name == "eos" else name] = value
    template = settings["chat_template"]
    if template is not None:
        fields["chat_template"] = hashlib.sha256(_to_json(template).encode()).hexdigest()
    plain: dict[str, Any] = json.loads(_to_json(fields))
    return plain


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _rotary(config: Any, layer_type: str) -> torch.Tensor:
    """Inverse frequencies by formula; `layer_type` where each kind of layer has its own."""
    # Scaled tables (linear, yarn, ...) come from transformers; the plain one by its formula,
    # theta ** (-2i / d), in float64, so that a table that was never initialised cannot match.
    parameters = dict(rope_parameters(config)).get(layer_type, {})
    kind = parameters.get("rope_type", "default")
    if kind != "default":
        of_layer = {"layer_type": layer_type} if layer_type else {}
        return ROPE_INIT_FUNCTIONS[kind](config, "cpu", **of_layer)[0].double()
    head_dim = getattr(config, "head_dim", None)
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    rotary_dim = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
    if config.model_type == "esm" and not parameters:  # its class has no field for it
        return 10000.0**-exponents
    return float(parameters["rope_theta"]) ** -exponents


ROUNDING = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.25}
"""How far logits may differ between two ways of one computation, as a share of the largest.

Half precision rounds the cosines of rotary positions too: tiny/llada, moved by three positions,
differs by 0.008 in float16 and 0.08 in bfloat16. Wrong positions or visibility measure about one.
"""


@dataclass(frozen=True)
class Check:
    """One law, what was measured, and whether it holds."""

    law: str
    measured: float
    holds: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check(model: Model, length: int = 24) -> list[Check]:
    """Measure the laws; raises ModelError, naming the first that fails."""
    # Each law is measured on the same canvas; one that a network cannot be asked gives None.
    ids = _some_ids(model, max(length, 2 * (model.routing_block or 0)))
    laws = (_check_normalised, _visibility, _hidden_key, _two_ways_to_hide, _check_padding)
    checks = [measured for law in laws if (measured := law(model, ids)) is not None]
    for one in checks:
        if not one.holds:
            raise ModelError(
                f"{model.source} breaks a law: {one.law} (measured {one.measured:.3g})"
            )
    return checks


def _some_ids(model: Model, length: int) -> torch.Tensor:
    """A canvas of ordinary tokens with some masks, the same every time."""
    generator = torch.Generator().manual_seed(0)
    length = min(length, model.num_positions - 4)
    ids = torch.randint(0, model.vocab_size, (length,), generator=generator)
    special = torch.tensor(sorted(model.specials.special_ids), dtype=torch.long)
    # Special ids could end a text or be masked: an ordinary token takes their place.
    ids[torch.isin(ids, special)] = int(ids[~torch.isin(ids, special)][0])
    if model.family.kind == "mdm":
        ids[::3] = model.mask_id
    return ids.to(model.device)


def _check_normalised(model: Model, ids: torch.Tensor) -> Check:
    # Row 0 of a shifted model has no predictor and is NaN.
    total = model.logprobs(ids)[1:].exp().sum(dim=-1)
    gap = float((total - 1).abs().max())
    return Check("probabilities at each position sum to one", gap, gap < 1e-3)


def _visibility(model: Model, ids: torch.Tensor) -> Check:
    """Change the last token: earlier rows move exactly where they may look at it."""
    # 1. Two canvases that differ in their last token only.
    other = ids.clone()
    other[-1] = ids[1] if ids[-1] != ids[1] else ids[2]
    before = model.logits(ids)
    moved, rounding = _row_changes(model, before, model.logits(other)), _rounding(model, before)
    # 2. The first row that may look at the last token: all of them, or those of its block.
    last = len(ids) - 1
    first = 0
    if model.block is not None:
        first = last // model.block * model.block
    if model.family.shift and model.block is not None:
        first += 1  # row p is computed at p-1, which must lie in the last block
    # 3. Causal rows must not move at all; others move exactly from `first` on.
    if model.family.visibility == "causal":
        gap = float(moved.max())
        return Check("a later token changes nothing before it", gap, gap <= rounding)
    seen, unseen = float(moved[first:].min()), float(moved[:first].max()) if first else 0.0
    law = "a token changes every row that may look at it and no other"
    return Check(law, seen, seen > rounding and unseen <= rounding)


def _hidden_key(model: Model, ids: torch.Tensor) -> Check | None:
    """Hide key k: what stands there no longer matters to anyone else.

    None where tokens of a block choose their experts together: it then matters to the others.
    """
    if model.routing_block is not None:
        return None
    k = len(ids) // 2 + (len(ids) // 2 % 3 == 0)  # no mask, which ESM-2 counts
    attendable = torch.ones_like(ids, dtype=torch.bool)
    attendable[k] = False
    other = ids.clone()
    other[k] = ids[1] if ids[k] != ids[1] else ids[2]
    before = model.logits(ids, attendable)
    moved = _row_changes(model, before, model.logits(other, attendable))
    moved[k + model.family.shift] = 0  # the row computed at k still reads its own token
    gap = float(moved.max())
    return Check("a hidden key changes nothing", gap, gap <= _rounding(model, before))


def _two_ways_to_hide(model: Model, ids: torch.Tensor) -> Check | None:
    """Hide the first key by key and by pairs; None where a network takes no pairs."""
    keys = torch.ones_like(ids, dtype=torch.bool)
    keys[0] = False
    # A query always sees itself, so that no row of the softmax is empty.
    pairs = keys[None, :] | torch.eye(len(ids), dtype=torch.bool, device=ids.device)
    try:
        by_pairs = model.logits(ids, pairs)
    except SpecError:  # sliding windows
        return None
    by_key = model.logits(ids, keys)
    seen = torch.arange(len(ids), device=ids.device) != int(model.family.shift)
    seen[0] = False  # rows 0 and `shift` speak of the hidden token or are computed at it
    gap = _share(by_key[seen], by_pairs[seen])
    law = "a key hidden by itself is a key hidden from everyone"
    return Check(law, gap, gap < ROUNDING[model.network.dtype])


def _check_padding(model: Model, ids: torch.Tensor) -> Check:
    # Some slots in front, as in a batch of texts of unlike lengths.
    count = model.routing_block or 3
    pad = torch.full((count,), model.specials.pad_id, device=ids.device)
    padded = model.logits(torch.cat([pad, ids]), padding=count)[count:]
    first = int(model.family.kind == "arm")  # an ARM does not predict its first token
    gap = _share(padded[first:], model.logits(ids)[first:])
    law = "padding on the left changes nothing but rounding"
    return Check(law, gap, gap < ROUNDING[model.network.dtype])


def _rounding(model: Model, logits: torch.Tensor) -> float:
    """How far a row may move that depends on nothing that changed: not at all, or by rounding.

    Experts of a mixture multiply all their tokens at once: a token more changes the shape of the
    product, and with it the rounding of every other row.
    """
    if not any(name.endswith("experts") for name, _ in model.network.named_modules()):
        return 0.0
    return ROUNDING[model.network.dtype] * float(logits.nan_to_num().abs().max())


def _row_changes(model: Model, before: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """[T] how far each row moved; a NaN has moved without end, but an ARM's first row has none."""
    moved = (before - other).abs().amax(dim=-1).nan_to_num(nan=torch.inf)
    moved[: int(model.family.kind == "arm")] = 0
    return moved


def _share(first: torch.Tensor, other: torch.Tensor) -> float:
    """Greatest difference as a share of the largest logit; NaN where either has one."""
    return float((first - other).abs().max() / other.abs().max())
