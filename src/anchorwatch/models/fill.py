"""From files into a network: tensor by tensor, straight to its device and dtype.

First a plan, from names, shapes and dtypes alone: which parameter each tensor of the files becomes,
nothing left over, nothing missing. Then every tensor is read once, in the order of the files, and
checked on the way; no weight is in memory twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import PreTrainedModel
from transformers.initialization import guard_torch_init_functions

from anchorwatch.errors import WeightsError
from anchorwatch.models.families import AllowedDifference, Family, Slot, stack_slot, stock_name
from anchorwatch.models.stacking import ExpertStack, prove_slot, rows_of_slot, same_bits
from anchorwatch.models.verify import stored_weights
from anchorwatch.models.weight_files import MemoryTensor, StoredTensor

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""What a parameter may be kept as in a file; anything else is a code for weights, not weights."""
_LOADED = (torch.float32, torch.bfloat16, torch.float16)

Pieces = Iterator[tuple[str, Slot | None, torch.Tensor]]
"""Stock name, slot in it where the tensor is a single expert's, and tensor."""


@dataclass(frozen=True)
class WeightPlan:
    """Which parameter each tensor of a checkpoint becomes; no weight has been read."""

    split: Callable[[str, torch.Tensor], Pieces]
    """A tensor of the file as the tensors that the network has."""
    targets: dict[str, list[str]] = field(default_factory=dict)
    """Stock names that each tensor goes to, by its name in the file."""
    pieces: dict[str, torch.Tensor] = field(default_factory=dict)
    """Of each stock name a tensor on the meta device: shape and dtype in the file."""
    stacks: dict[str, ExpertStack] = field(default_factory=dict)
    """The same of parameters that stack the tensors of single experts."""
    origin: dict[str, str] = field(default_factory=dict)
    """Of each stock name the name in the file."""
    whole: set[str] = field(default_factory=set)
    """Tensors of the file that become a parameter as they are, neither split nor stacked."""
    slots: dict[str, Slot] = field(default_factory=dict)
    """By name in the file: where a tensor that is a single expert's, and not split, is stacked."""

    @property
    def names(self) -> set[str]:
        """Stock names that the files have something for."""
        return self.pieces.keys() | self.stacks.keys()

    def spell(self, name: str) -> str:
        """A stock name, with the file's where that is another."""
        own = self.origin.get(name, name)
        return name if own == name else f"{name} ({own} in the file)"


@contextmanager
def empty_parameters() -> Iterator[None]:
    """Modules built meanwhile have parameters that take no memory and no values; buffers are real.

    They are marked as initialised, as transformers marks weights that it has loaded: drawing
    numbers on the meta device is no work, but imports the compiler.
    """

    def empty(module: torch.nn.Module, name: str, given: torch.nn.Parameter) -> torch.nn.Parameter:
        parameter = torch.nn.Parameter(given.to("meta"), requires_grad=given.requires_grad)
        parameter._is_hf_initialized = True  # type: ignore[attr-defined]
        return parameter

    hook = register_module_parameter_registration_hook(empty)  # type: ignore[arg-type]
    try:
        with guard_torch_init_functions():
            yield
    finally:
        hook.remove()


def plan_weights(
    stored: Mapping[str, StoredTensor], family: Family, network: PreTrainedModel
) -> WeightPlan:
    """Give every tensor of the files a stock name; two with one name are refused."""
    plan = WeightPlan(_splitter(family, network))
    for name, tensor in stored.items():
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        plan.targets[name] = []
        for target, slot, piece in plan.split(name, empty):
            plan.targets[name].append(target)
            if slot is not None and target not in plan.pieces:
                plan.stacks.setdefault(target, ExpertStack()).add(slot, name, piece)
                plan.origin.setdefault(target, name)
                if piece is empty:
                    plan.slots[name] = slot
                continue
            # Two names of the file for one parameter: which one is right cannot be known.
            if target in plan.names:
                raise WeightsError(
                    f"{name} and {plan.origin[target]} both mean {target}: expected one of them"
                )
            plan.pieces[target], plan.origin[target] = piece, name
            if piece is empty:
                plan.whole.add(name)
    return plan


def _splitter(family: Family, network: PreTrainedModel) -> Callable[[str, torch.Tensor], Pieces]:
    """What makes tensors under stock names of one tensor of the file."""
    stock, prefix = set(network.state_dict()), network.base_model_prefix
    heads = network.config.num_attention_heads
    kv_heads = getattr(network.config, "num_key_value_heads", None) or heads

    def split(name: str, tensor: torch.Tensor) -> Pieces:
        pieces: Iterable[tuple[str, torch.Tensor]] = [(name, tensor)]
        if family.split_tensor is not None:
            pieces = family.split_tensor(name, tensor, heads, kv_heads)
        for piece, value in pieces:
            target = stock_name(family, piece, stock, prefix)
            slot = stack_slot(target, stock)
            yield (target if slot is None else slot.target), slot, value
            # The embedding's last row is the sink token's, in files that were trained with one.
            sink = target == "model.embed_tokens.weight" and "anchorwatch.sink" in stock
            if sink and family.read_additions is not None:
                yield "anchorwatch.sink", None, value[-1:]

    return split


@dataclass(frozen=True)
class Filled:
    """What came of filling a network."""

    notes: tuple[str, ...]
    """What was set aside on purpose, in words."""
    kept: dict[str, torch.Tensor]
    """The tensors of some stock names as the file has them."""


def fill_network(
    network: PreTrainedModel,
    plan: WeightPlan,
    stored: Iterable[tuple[str, StoredTensor]],
    family: Family,
    dtype: torch.dtype,
    *,
    device_of: Callable[[str], torch.device] = lambda name: torch.device("cpu"),
    store: Callable[[str, torch.Tensor], torch.Tensor] = lambda name, tensor: tensor,
    keep: Collection[str] = (),
) -> Filled:
    """Put each tensor into its parameter and prove that both sides came out even.

    `stored` has the tensors of the plan, each once. `device_of` says where a parameter lies;
    `store` takes each when it is whole and gives what stands in the network for it. `keep` names
    tensors that are wanted as the file has them. Refuses before a weight is read, where names and
    shapes are enough to know.
    """
    # 1. Everything that names and shapes can say.
    stock = network.state_dict()
    tied = dict(network.all_tied_weights_keys)
    notes = _check_plan(network, plan, family)
    # 2. Every tensor read once, into memory of its own on its device.
    loading = _Loading(network, plan, dtype, device_of, store, tied, family.tying)
    for name, tensor in stored:
        if any(target in stock for target in plan.targets[name]):
            loading.take_stored(name, tensor, keep)  # what is set aside is not even read
    # 3. Assigned, tied again, and compared with what was loaded.
    loaded = loading.loaded
    for name, parameter in stock.items():
        if not parameter.numel() and name not in loaded:
            loaded[name] = loading.allocate(name)
    for target, source in tied.items():  # a file may carry only one of two tied tensors
        if source not in loaded and target in loaded:
            loaded[source] = loaded[target]
    network.load_state_dict(loaded, strict=False, assign=True)
    network.tie_weights()
    network.requires_grad_(False)
    _prove_equal(network, loaded)
    return Filled((*notes, *loading.notes), loading.kept)


def _check_plan(network: PreTrainedModel, plan: WeightPlan, family: Family) -> list[str]:
    """Refuse what does not fit, is left over or is missing; what was set aside, in words."""
    # 1. Shapes and dtypes of what the network has a parameter for.
    stock = network.state_dict()
    tied = dict(network.all_tied_weights_keys)
    for name in stock:
        if name in plan.stacks:
            _fits_stack(plan.stacks[name], stock[name])
        elif name in plan.pieces:
            _fits(plan.spell(name), plan.pieces[name], stock[name], type(network).__name__)
    # 2. Nothing left over, nothing missing; tied tensors may be there once or twice.
    left_over = {name: plan.spell(name) for name in plan.names if name not in stock}
    left_over = {name: left_over[name] for name in sorted(left_over)}
    why = _explain(network, plan, stock)
    notes = _missing_or_unused(left_over, family.unused, "in the file and not in the model", why)
    filled = plan.names | {t for t, source in tied.items() if source in plan.names}
    filled |= {source for t, source in tied.items() if t in plan.names}
    # A parameter without numbers (a shared expert of width 0) is nowhere to be read.
    missing = {name: name for name in stock if name not in filled and stock[name].numel()}
    notes += _missing_or_unused(missing, family.absent, "in the model and not in the file", why)
    return notes


_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|blocks|h)\.(\d+)\.")


def _explain(network: PreTrainedModel, plan: WeightPlan, stock: Mapping[str, torch.Tensor]) -> str:
    """Why names of the file and of the network may not be the same, in words."""
    # 1. A wrapper's word before every name, as training frameworks leave it.
    first = {name.partition(".")[0] for name in plan.targets}
    if len(first) == 1 and not plan.names & stock.keys():
        word = f"{first.pop()}."
        if any(name.removeprefix(word) in stock for name in plan.targets):
            return f"every name begins with {word!r}, rename the tensors without it"
    # 2. Another number of layers.
    layers = {int(match[1]) for name in plan.targets if (match := _LAYER.search(name))}
    said = getattr(network.config, "num_hidden_layers", None)
    if layers and said is not None and layers != set(range(said)):
        return (
            f"the file has layers {min(layers)} to {max(layers)} and config.json says {said}, "
            "so they do not belong together"
        )
    return "the checkpoint is not of this family, or is incomplete"


class _Loading:
    """The tensors that have been read, by stock name."""

    def __init__(
        self,
        network: PreTrainedModel,
        plan: WeightPlan,
        dtype: torch.dtype,
        device_of: Callable[[str], torch.device],
        store: Callable[[str, torch.Tensor], torch.Tensor],
        tied: Mapping[str, str],
        tying: str,
    ) -> None:
        self.loaded: dict[str, torch.Tensor] = {}
        self.notes: list[str] = []
        self.kept: dict[str, torch.Tensor] = {}
        self._plan, self._dtype, self._device_of, self._tying = plan, dtype, device_of, tying
        self._store = store
        self._waiting = {name: len(stack.pieces) for name, stack in plan.stacks.items()}
        self._shapes = {name: tensor.shape for name, tensor in network.state_dict().items()}
        # Buffers keep their dtype: a router's bias decides between scores that bfloat16 cannot
        # tell apart.
        self._own_dtypes = {name: buffer.dtype for name, buffer in network.named_buffers()}
        self._tied = tied
        self._pairs = dict(tied) | {source: target for target, source in tied.items()}

    def take_stored(self, name: str, tensor: StoredTensor, keep: Collection[str]) -> None:
        """Read a tensor of the file to where it belongs; `keep` is wanted as the file has it."""
        targets = self._plan.targets[name]
        alone = len(targets) == 1 and targets[0] not in keep
        # Neither split nor wanted: straight from the file, without a copy of its own.
        if alone and name in self._plan.whole:
            self.take(targets[0], tensor)
            return
        if alone and name in self._plan.slots:
            self.take_expert(self._plan.slots[name], name, tensor)
            return
        for target, slot, piece in self._plan.split(name, tensor.read()):
            if slot is not None and target in self._plan.stacks:
                self.take_expert(slot, name, MemoryTensor(piece))
            elif target in self._shapes:
                self.take(target, MemoryTensor(piece))
            if target in keep:
                self.kept[target] = piece.clone()

    def take(self, name: str, tensor: StoredTensor) -> None:
        """Copy a tensor to where its parameter lies; the second of two tied ones is compared."""
        other = self._pairs.get(name)
        if other in self.loaded:
            self._compare_tied(name, other, tensor)
            return
        target = self.allocate(name)
        copy_weights(self._plan.spell(name), tensor, target)
        self.loaded[name] = self._store(name, target)

    def take_expert(self, slot: Slot, name: str, tensor: StoredTensor) -> None:
        """Copy an expert's tensor into its rows of the stacked parameter, once they are proved."""
        if slot.target not in self.loaded:
            self.loaded[slot.target] = self.allocate(slot.target)
        stacked = self.loaded[slot.target]
        rows = rows_of_slot(stacked, slot)
        prove_slot(stacked, slot, name, rows)
        copy_weights(name, tensor, rows)
        self._waiting[slot.target] -= 1
        if not self._waiting[slot.target]:
            self.loaded[slot.target] = self._store(slot.target, stacked)

    def allocate(self, name: str) -> torch.Tensor:
        """Memory for a parameter, where it belongs."""
        dtype = self._own_dtypes.get(name, self._dtype)
        return torch.empty(self._shapes[name], dtype=dtype, device=self._device_of(name))

    def _compare_tied(self, name: str, other: str, tensor: StoredTensor) -> None:
        """Two tied tensors in one file must be equal: only one of them is kept."""
        equal, start = tensor.dtype == self._plan.pieces[other].dtype, 0
        first = self.loaded[other].view(-1)
        if first.is_meta:
            raise WeightsError(
                f"{self._plan.spell(other)} is on disk and tied to {self._plan.spell(name)}, which "
                "the file has too: keep both on one device in device_map"
            )
        for chunk in tensor.chunks() if equal else ():
            converted = chunk.to(first.dtype).to(first.device)
            equal = equal and same_bits(first[start : start + len(chunk)], converted)
            start += len(chunk)
        target, source = (name, other) if name in self._tied else (other, name)
        if not equal:
            raise WeightsError(
                f"{self._plan.spell(target)} and {self._plan.spell(source)} are tied in "
                f"config.json but differ in the file: set {self._tying} to false in config.json"
            )
        self.notes.append(f"{target} is tied to {source} and equal to it in the file")


def copy_weights(name: str, tensor: StoredTensor, target: torch.Tensor) -> None:
    """Copy into memory of its own, chunk by chunk; what is not finite is refused."""
    if all(_is_finite(chunk) for chunk in tensor.fill(target)):
        return
    # Either the file is damaged, or its numbers are too large for this dtype.
    whole = tensor.read()
    if not bool(torch.isfinite(whole).all()):
        raise WeightsError(
            f"{name} holds NaN or infinite weights: the file is damaged, download it again"
        )
    largest = float(whole.abs().max())
    fits = [_bare(other) for other in _LOADED if largest <= torch.finfo(other).max]
    remedy = f"load it with dtype={' or '.join(map(repr, fits))}"
    raise WeightsError(
        f"{name} holds {largest:.3g}, which is infinite in {_bare(target.dtype)}: "
        + (remedy if fits else "no dtype holds it, download the file again")
    )


def _is_finite(values: torch.Tensor) -> bool:
    if not values.numel():
        return True
    # The least and the greatest number: NaN goes through both. Much faster than isfinite().all().
    least, greatest = values.aminmax()
    return bool(torch.isfinite(least) & torch.isfinite(greatest))


def _fits_stack(stack: ExpertStack, parameter: torch.Tensor) -> None:
    stack.check(parameter.shape)
    for name, piece in stack.pieces.values():
        _fits(name, piece, piece, "")


def _fits(name: str, tensor: torch.Tensor, parameter: torch.Tensor, where: str) -> None:
    if tuple(tensor.shape) != tuple(parameter.shape):
        raise WeightsError(
            f"{name} has shape {list(tensor.shape)} in the file "
            f"and {list(parameter.shape)} in {where}: "
            "config.json and weights do not belong together"
        )
    if tensor.dtype not in _FLOATS:
        raise WeightsError(
            f"{name} is {_bare(tensor.dtype)} in the file: "
            f"expected weights as {' or '.join(map(_bare, _FLOATS))}"
        )


def _missing_or_unused(
    names: Mapping[str, str], excuses: tuple[AllowedDifference, ...], side: str, why: str
) -> list[str]:
    """`names` are tensors by stock name, as they are to be shown; `why` they may be wrong."""
    # What the family excuses is counted by its reason; everything else is refused by name.
    notes: dict[str, int] = {}
    unknown = []
    for name, shown in names.items():
        reason = next((excuse.reason for excuse in excuses if excuse.covers(name)), None)
        if reason is None:
            unknown.append(shown)
        else:
            notes[reason] = notes.get(reason, 0) + 1
    if unknown:
        raise WeightsError(_sentence(unknown, side, why))
    return [f"{count} tensors set aside: {reason}" for reason, count in notes.items()]


def _sentence(names: list[str], side: str, why: str) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    verb = "is" if len(names) == 1 else "are"
    return f"{shown} {verb} {side}: {why}"


def _prove_equal(network: PreTrainedModel, loaded: Mapping[str, torch.Tensor]) -> None:
    # transformers re-initialises what it believes missing: every parameter must still be ours.
    for name, parameter in stored_weights(network):
        if parameter.is_meta and not (name in loaded and loaded[name].is_meta):
            raise WeightsError(f"{name} was never filled: the checkpoint is incomplete")
        if parameter.is_meta:
            continue  # on disk
        same = name not in loaded or parameter.data_ptr() == loaded[name].data_ptr()
        # tie_weights copies the bias of a BERT's unembedding: equal is enough there.
        if not same and not torch.equal(parameter, loaded[name]):
            raise WeightsError(f"{name} was replaced after loading: please report this")


def _bare(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
