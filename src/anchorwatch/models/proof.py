"""What we loaded is what the file holds: every tensor used once, every parameter accounted for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from anchorwatch.errors import WeightsError
from anchorwatch.models.families import Excuse, Family


def place(
    network: PreTrainedModel,
    tensors: Mapping[str, torch.Tensor],
    family: Family,
    dtype: torch.dtype,
) -> tuple[str, ...]:
    """Put each tensor into its parameter and prove that both sides came out even.

    Returns what was set aside on purpose, in words. Raises before any forward pass otherwise.
    """
    stock = network.state_dict()
    tied = dict(network.all_tied_weights_keys)
    left_over, notes = [], []
    for name, tensor in tensors.items():
        if name not in stock:
            left_over.append(name)
        elif tuple(tensor.shape) != tuple(stock[name].shape):
            raise WeightsError(
                f"{name} has shape {list(tensor.shape)} in the file "
                f"and {list(stock[name].shape)} in {type(network).__name__}: "
                "config.json and weights do not belong together"
            )
        elif not bool(torch.isfinite(tensor).all()):
            raise WeightsError(
                f"{name} holds NaN or infinite weights: the file is damaged, download it again"
            )
    notes += _excused(left_over, family.unused, "in the file and not in the model")
    notes += _check_tied_copies(tensors, tied)
    filled = set(tensors) | {t for t, source in tied.items() if source in tensors}
    filled |= {source for t, source in tied.items() if t in tensors}
    missing = [name for name in stock if name not in filled]
    if missing:
        raise WeightsError(_sentence(missing, "in the model and not in the file"))
    loaded = {name: tensors[name].to(dtype) for name in stock if name in tensors}
    for target, source in tied.items():  # a file may carry only one of two tied tensors
        if source not in loaded and target in loaded:
            loaded[source] = loaded[target]
    network.load_state_dict(loaded, strict=False, assign=True)
    network.tie_weights()
    network.requires_grad_(False)
    _prove_equal(network, loaded)
    return tuple(notes)


def prove_rotary(network: PreTrainedModel) -> float | None:
    """Greatest difference of the rotary table from its formula; None where there is no rotary."""
    worst: float | None = None
    for module in network.modules():
        table = getattr(module, "inv_freq", None)
        if not isinstance(table, torch.Tensor):
            continue
        parameters = module.config.rope_parameters
        kind = parameters.get("rope_type", "default")
        if kind == "default":
            head_dim = getattr(module.config, "head_dim", None)
            head_dim = head_dim or module.config.hidden_size // module.config.num_attention_heads
            rotary_dim = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
            exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
            expected = parameters["rope_theta"] ** -exponents
        else:
            expected = ROPE_INIT_FUNCTIONS[kind](module.config, "cpu")[0].double()
        if table.shape != expected.shape:
            raise WeightsError(
                f"the rotary table has shape {list(table.shape)}: expected {list(expected.shape)}"
            )
        gap = float(((table.double().cpu() - expected).abs() / expected).max())
        if not gap <= 1e-5:  # NaN fails too
            raise WeightsError(
                f"the rotary table differs from its formula by {gap:.1e}: it was not initialised"
            )
        worst = max(gap, worst or 0.0)
    return worst


def weights_digest(network: PreTrainedModel) -> str:
    """SHA-256 of all parameters' names, dtypes, shapes and bytes; the same however sharded."""

    def one(item: tuple[str, torch.Tensor]) -> bytes:
        name, tensor = item
        head = f"{name} {tensor.dtype} {list(tensor.shape)}".encode()
        body = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
        return hashlib.sha256(head + hashlib.sha256(body).digest()).digest()

    items = sorted(network.named_parameters(), key=lambda item: item[0])
    with ThreadPoolExecutor(max_workers=4) as pool:  # hashlib lets go of the interpreter lock
        return hashlib.sha256(b"".join(pool.map(one, items))).hexdigest()


def _check_tied_copies(tensors: Mapping[str, torch.Tensor], tied: Mapping[str, str]) -> list[str]:
    notes = []
    for target, source in tied.items():
        if target in tensors and source in tensors:
            if not torch.equal(tensors[target], tensors[source]):
                raise WeightsError(
                    f"{target} and {source} are tied in config.json but differ in the file: "
                    "set tie_word_embeddings to false in config.json"
                )
            notes.append(f"{target} is tied to {source} and equal to it in the file")
    return notes


def _excused(names: Iterable[str], excuses: tuple[Excuse, ...], side: str) -> list[str]:
    notes: dict[str, int] = {}
    unknown = []
    for name in names:
        reason = next((excuse.reason for excuse in excuses if excuse.covers(name)), None)
        if reason is None:
            unknown.append(name)
        else:
            notes[reason] = notes.get(reason, 0) + 1
    if unknown:
        raise WeightsError(_sentence(unknown, side))
    return [f"{count} tensors set aside: {reason}" for reason, count in notes.items()]


def _sentence(names: list[str], side: str) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    verb = "is" if len(names) == 1 else "are"
    return f"{shown} {verb} {side}: the checkpoint is not of this family, or is incomplete"


def _prove_equal(network: PreTrainedModel, loaded: Mapping[str, torch.Tensor]) -> None:
    for name, parameter in network.named_parameters():
        if parameter.is_meta:
            raise WeightsError(f"{name} was never filled: the checkpoint is incomplete")
        same = name not in loaded or parameter.data_ptr() == loaded[name].data_ptr()
        # tie_weights copies the bias of a BERT's unembedding: equal is enough there.
        if not same and not torch.equal(parameter, loaded[name]):
            raise WeightsError(f"{name} was replaced after loading: please report this")
