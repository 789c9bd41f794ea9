"""What a model would have written: the likeliest tokens at every masked position of a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from anchorwatch.errors import SpecError
from anchorwatch.generation.forced import build_forced_run
from anchorwatch.generation.loop import walk
from anchorwatch.generation.replay import check_model, check_step
from anchorwatch.generation.run import build_recorder
from anchorwatch.models.model import Model
from anchorwatch.probes.spec import received
from anchorwatch.trace.trace import MASKED, Trace, checked_trace


@dataclass(frozen=True, eq=False)
class LikelyTokens:
    """[n] masked positions, and [n, k] the likeliest tokens of each with their probabilities."""

    positions: np.ndarray
    tokens: np.ndarray
    probabilities: np.ndarray


def likely_tokens(model: Model, trace: Trace, step: int, k: int = 5) -> LikelyTokens:
    """The k likeliest tokens at each masked position before a step, the run's edits in force.

    The step is computed again as the run computed it, so that the probability of a committed token
    is the exponential of its `logprob`. The mask token is no candidate.
    """
    # 1. The same steps; only the one that is wanted needs a forward pass.
    check_model(model, checked_trace(trace))
    step = check_step(trace, step)
    positions = np.flatnonzero(trace.role[step] == MASKED)
    if trace.decoding.writes == "absent":
        raise SpecError("candidates are of masked positions: an autoregressive run has none")
    kept: dict[int, torch.Tensor] = {}

    def keep(index: int, logits: torch.Tensor) -> None:
        if index == step:
            kept[index] = logits[torch.from_numpy(positions).to(logits.device)]

    state = build_forced_run(model, trace, (), until=trace.num_steps)
    state.measured, state.on_logits = (received(steps=(step,)),), keep
    for _ in walk(model, [state], build_recorder(model, (), [state])):
        if len(state.steps) > step:
            break
    # 2. Probabilities over all tokens but the mask, as `logprob` has them.
    spread = torch.log_softmax(kept[step].float(), dim=-1).exp()
    if model.mask_id is not None:
        spread[:, model.mask_id] = -1.0
    best = spread.topk(min(k, spread.shape[-1] - 1), dim=-1)
    return LikelyTokens(
        positions.astype(np.int32),
        best.indices.cpu().numpy().astype(np.int32),
        best.values.cpu().numpy().astype(np.float32),
    )
