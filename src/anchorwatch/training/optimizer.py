"""AdamW, and the learning rate as a function of the update: nothing to save, nothing to restore."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from anchorwatch.edits.spec import Addition
from anchorwatch.errors import SpecError
from anchorwatch.models.trained_additions import tensor_names
from anchorwatch.training.log import Line
from anchorwatch.training.objective import Scorer
from anchorwatch.training.spec import Optimizer, Spec


def learning_rate(optimizer: Optimizer, update: int, updates: int) -> float:
    """Rises in a line over the warm-up, then falls along a cosine, or late in a line, to the floor.

    >>> half = Optimizer(lr=1.0, warm_up=0.5, floor=0.1)
    >>> [round(learning_rate(half, update, 4), 3) for update in range(4)]
    [0.5, 1.0, 1.0, 0.1]
    >>> late = Optimizer(lr=1.0, warm_up=1, fall="late", last=0.4, floor=0.0)
    >>> [round(learning_rate(late, update, 5), 3) for update in range(5)]
    [1.0, 1.0, 1.0, 0.5, 0.0]
    """
    warm = num_warm_up(optimizer, updates)
    if update < warm:
        return optimizer.lr * (update + 1) / warm
    if optimizer.fall == "late":
        begins = first_falling_update(optimizer, updates)
        fall = 1 - max(0, update - begins + 1) / max(1, updates - begins)
        return optimizer.lr * (optimizer.floor + (1 - optimizer.floor) * fall)
    done = (update - warm) / max(1, updates - warm - 1)
    fall = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return optimizer.lr * (optimizer.floor + (1 - optimizer.floor) * fall)


def num_warm_up(optimizer: Optimizer, updates: int) -> int:
    """Updates of the warm-up."""
    warm = optimizer.warm_up
    return warm if isinstance(warm, int) else round(warm * updates)


def first_falling_update(optimizer: Optimizer, updates: int) -> int:
    """The first update of a late fall: up to it, the rate does not depend on how many there are."""
    return max(num_warm_up(optimizer, updates), updates - round(optimizer.last * updates))


def build_adamw(
    scorer: Scorer, parts: Sequence[Addition], optimizer: Optimizer, device: torch.device
) -> torch.optim.Optimizer:
    """AdamW; norms, biases and trained parts, gates too, do not decay unless all is to."""
    added = {f"network.{name}" for name in tensor_names(scorer.network, parts)}
    decays: list[torch.nn.Parameter] = []
    stays: list[torch.nn.Parameter] = []
    for name, parameter in scorer.named_parameters():
        if parameter.requires_grad:
            exempt = parameter.ndim < 2 or name in added
            (stays if exempt and not optimizer.decay_all else decays).append(parameter)
    groups: list[dict[str, Any]] = [{"params": decays}, {"params": stays, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=optimizer.lr,
        betas=optimizer.betas,
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        fused=device.type in ("cpu", "cuda"),
    )


def check_rates(lines: Sequence[Line], spec: Spec) -> None:
    """Refuse to resume where the updates so far had other rates than they would have now."""
    for line in lines:
        rate = learning_rate(spec.optimizer, line.update - 1, spec.updates)
        if line.update > spec.updates or line.lr != rate:
            _refuse_shared_warm_up(lines, spec)
            raise SpecError(
                f"{lines[-1].update} updates are done, and update {line.update} would differ with "
                f"updates = {spec.updates}: a run can be made longer or shorter only before its "
                "rate begins to fall; go on with the number it had, or train on from its model"
            )


def _refuse_shared_warm_up(lines: Sequence[Line], spec: Spec) -> None:
    """Say so where all that differs is a warm-up given as a share of the updates."""
    optimizer, last = spec.optimizer, lines[-1].update
    if optimizer.fall != "late" or isinstance(optimizer.warm_up, int) or not lines[0].lr:
        return
    warm = round(optimizer.lr / lines[0].lr)
    counted = optimizer.model_copy(update={"warm_up": warm})
    rates = [learning_rate(counted, line.update - 1, spec.updates) for line in lines]
    if last <= spec.updates and rates == [line.lr for line in lines]:
        raise SpecError(
            f"{last} updates are done with {warm} of warm-up, and warm_up = {optimizer.warm_up} is "
            f"a share of updates: with updates = {spec.updates} it would be "
            f"{num_warm_up(optimizer, spec.updates)}; only a run begun with a count of them, such "
            f"as warm_up = {warm}, can be made longer or shorter; go on with the number of updates "
            "it had, or train on from its model"
        )
