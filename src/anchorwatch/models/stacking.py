"""Experts of a mixture: one tensor each in the file, one stacked parameter in the network.

`families.stack_slot` says where an expert's tensor belongs; here it is proved that the network's
experts read those rows.
Shapes: E experts, P parts (gate and up, or down alone), R rows of a part, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from anchorwatch.errors import WeightsError
from anchorwatch.models.families import Slot


@dataclass
class ExpertStack:
    """The tensors of one stacked parameter [E, P * R, C], before any of them is read."""

    pieces: dict[Slot, tuple[str, torch.Tensor]] = field(default_factory=dict)
    """By slot: name in the file, and a tensor [R, C] on the meta device: its shape and dtype."""

    def add(self, slot: Slot, name: str, tensor: torch.Tensor) -> None:
        """Take an expert's tensor; two of one slot are refused."""
        if slot in self.pieces:
            raise WeightsError(
                f"{name} and {self.pieces[slot][0]} both mean expert {slot.expert} of "
                f"{slot.target}: expected one of them"
            )
        self.pieces[slot] = name, tensor

    def check(self, shape: torch.Size) -> None:
        """Refuse a missing expert, one too many, and a tensor of another shape."""
        experts, parts = shape[0], next(iter(self.pieces)).parts
        have = {(slot.expert, slot.part) for slot in self.pieces}
        want = {(expert, part) for expert in range(experts) for part in range(parts)}
        known = next(iter(self.pieces))
        example = self.pieces[known][0]
        for expert, part in sorted(want - have):
            raise WeightsError(
                f"part {part} of expert {expert} of {known.target} is missing from the file, which "
                f"has {len(have)} of {len(want)} tensors such as {example}: the checkpoint is "
                "incomplete"
            )
        for expert, part in sorted(have - want):
            raise WeightsError(
                f"{self._name(expert, part)} is expert {expert} and config.json says {experts} "
                "experts: config.json and weights do not belong together"
            )
        expected = (shape[1] // parts, *shape[2:])
        for name, tensor in self.pieces.values():
            if tuple(tensor.shape) != expected:
                raise WeightsError(
                    f"{name} has shape {list(tensor.shape)} in the file and {list(expected)} in "
                    f"{known.target}: config.json and weights do not belong together"
                )

    def _name(self, expert: int, part: int) -> str:
        return next(
            name
            for slot, (name, _) in self.pieces.items()
            if (slot.expert, slot.part) == (expert, part)
        )


def rows_of_slot(parameter: torch.Tensor, slot: Slot) -> torch.Tensor:
    """The rows [R, C] of an expert's tensor in the parameter [E, P * R, C]."""
    rows = parameter.shape[1] // slot.parts
    return parameter[slot.expert, slot.part * rows : (slot.part + 1) * rows]


def prove_slot(parameter: torch.Tensor, slot: Slot, name: str, rows: torch.Tensor) -> None:
    """Refuse rows of the stacked parameter that its experts do not read as this expert's tensor."""
    # The forward pass of the experts: `linear(x, gate_up_proj[e]).chunk(2, dim=-1)`. The same
    # numbers, because it is the same memory; each slot is filled once, so that none is overwritten.
    read = parameter[slot.expert].chunk(slot.parts, dim=0)[slot.part]
    where = [(view.storage_offset(), view.shape, view.stride()) for view in (read, rows)]
    if where[0] != where[1] or rows._base is None or rows._base is not read._base:
        raise WeightsError(f"{name} is not where {slot.target} has it: please report this")


def choose_expert_kernel(network: PreTrainedModel) -> None:
    """Let experts be computed one by one where the grouped kernel cannot read their rows."""
    # torch's grouped_mm takes rows of whole 16 bytes only, and transformers does not ask.
    stacks = [p for name, p in network.named_parameters() if ".experts." in name and p.ndim == 3]
    if any(stack.shape[-1] * stack.element_size() % 16 for stack in stacks):
        network.set_experts_implementation("eager")


def same_bits(first: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same bits."""
    # Whole numbers are compared several times faster than bfloat16.
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[first.element_size()]
    return torch.equal(first.contiguous().view(whole), other.contiguous().view(whole))
