"""Policies: which of the open positions a step commits, and the tokens.

Every operation that can break a tie (argmax, topk, rand, multinomial) is called with the shapes the
authors' samplers use on a single sequence, so that the same seed writes the same text as theirs.
Shapes: T positions, V outputs, N open masked positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import torch

from anchorwatch.errors import SpecError
from anchorwatch.generation.decoding import (
    Decoding,
    DreamOrder,
    LeftToRight,
    LowConfidence,
    RandomOrder,
    Threshold,
)
from anchorwatch.generation.schedules import SequenceState, StepPlan


def narrow_margin(dtype: torch.dtype) -> float:
    """A decision with a smaller margin may fall otherwise in a padded batch; traces count them."""
    return 1e-5 if dtype in (torch.float32, torch.float64) else 1e-2


@dataclass(frozen=True)
class Choice:
    """What one step commits: tokens at positions.

    A token equal to the mask id leaves its position masked.
    """

    positions: torch.Tensor
    tokens: torch.Tensor
    narrow: int
    """Decisions of this step whose margin was under `narrow_margin`."""


@singledispatch
def choose(
    decoding: Decoding, draft: SequenceState, turn: StepPlan, logits: torch.Tensor
) -> Choice:
    """The policy: which open positions to commit, and the tokens; logits are [T, V], aligned."""
    raise SpecError(f"no policy is known for {type(decoding).__name__}")


@choose.register(LowConfidence)
@choose.register(RandomOrder)
def _choose_even(
    decoding: LowConfidence | RandomOrder,
    draft: SequenceState,
    turn: StepPlan,
    logits: torch.Tensor,
) -> Choice:
    if decoding.forbid_end and draft.eos_ids:
        logits = logits.clone()
        logits[:, list(draft.eos_ids)] = -torch.inf
    at = turn.open.nonzero()[:, 0]
    tokens, gap = _gumbel_argmax(logits, at, decoding.temperature, draft.generator)
    if isinstance(decoding, RandomOrder):
        confidence = _uniform((1, len(logits)), draft.generator, logits.device)[0, at]
    else:
        confidence = torch.softmax(logits[at], dim=-1).gather(-1, tokens[:, None])[:, 0]
    if decoding.defer_end and draft.end_ids:
        ends = torch.isin(tokens, torch.tensor(draft.end_ids, device=tokens.device))
        confidence = (
            confidence - 2.0 * ends
        )  # probabilities are at most 1: ends rank after all others
    return _surest(turn, at, confidence, tokens, gap)


@choose.register
def _choose_above(
    decoding: Threshold, draft: SequenceState, turn: StepPlan, logits: torch.Tensor
) -> Choice:
    at = turn.open.nonzero()[:, 0]
    tokens, gap = _gumbel_argmax(logits, at, decoding.temperature, draft.generator)
    confidence = torch.softmax(logits[at].double(), dim=-1).gather(-1, tokens[:, None])[:, 0]
    if turn.held is not None:
        confidence = confidence.masked_fill(turn.held[at], -torch.inf)
    enough = confidence >= decoding.threshold
    least = turn.count or int(not turn.forced)
    if turn.count:
        enough[confidence.topk(min(least, len(confidence))).indices] = True
    elif least:
        enough[confidence.argmax()] = True
    enough &= confidence > -torch.inf
    margin = narrow_margin(logits.dtype)
    near = (confidence - decoding.threshold).abs() < margin
    narrow = int((near | (enough & (gap < margin))).sum())
    best = confidence.topk(min(least + 1, len(confidence))).values
    if 0 < least < len(best) and best[-2] < decoding.threshold:  # only the surest were taken
        narrow += int(best[-2] - best[-1] < margin)
    return Choice(positions=at[enough], tokens=tokens[enough], narrow=narrow)


@choose.register
def _choose_dream(
    decoding: DreamOrder, draft: SequenceState, turn: StepPlan, logits: torch.Tensor
) -> Choice:
    at = turn.open.nonzero()[:, 0]
    if turn.chance is not None:
        at = at[_uniform((len(at),), draft.generator, logits.device) < turn.chance]
    probabilities = _probabilities(logits[at], decoding.temperature, decoding.top_p, decoding.top_k)
    tokens, gap = _sample(probabilities, decoding.temperature, draft.generator)
    if turn.chance is not None:
        if turn.held is not None:
            at, tokens, gap = (found[~turn.held[at]] for found in (at, tokens, gap))
        return Choice(
            positions=at, tokens=tokens, narrow=int((gap < narrow_margin(logits.dtype)).sum())
        )
    confidence = _dream_confidence(decoding, probabilities, tokens)
    if not decoding.algorithm_temperature or not (turn.count or turn.forced):
        return _surest(turn, at, confidence, tokens, gap)
    return _drawn(decoding, draft, turn, (at, confidence, tokens, gap))


def _drawn(
    decoding: DreamOrder,
    draft: SequenceState,
    turn: StepPlan,
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
) -> Choice:
    """Positions drawn by softmax(confidence / temperature), as many as have any weight.

    Dream asks multinomial for more than that and then gets closed positions, the prompt's too;
    here the rest are the surest of those left.
    """
    at, confidence, tokens, gap = found
    assert decoding.algorithm_temperature is not None and turn.count is not None
    row = _row(turn, at, confidence)
    weights = torch.softmax(row / decoding.algorithm_temperature, dim=-1)
    possible = min(turn.count, int((weights > 0).sum()))
    if turn.held is None:
        drawn = torch.multinomial(weights, possible, generator=draft.generator)
    else:  # all are drawn, held ones too, so that the others come in the order they would have
        everyone = int((weights > 0).sum())
        drawn = torch.multinomial(weights, everyone, generator=draft.generator)
        row[turn.held] = -torch.inf
        drawn = drawn[~turn.held[drawn]][: turn.count]
    row[drawn] = -torch.inf
    drawn = torch.cat([drawn, torch.topk(row, turn.count - len(drawn)).indices])
    of = torch.searchsorted(at, drawn)
    narrow = int((gap[of] < narrow_margin(confidence.dtype)).sum())
    return Choice(positions=drawn, tokens=tokens[of], narrow=narrow)


@choose.register
def _choose_next(
    decoding: LeftToRight, draft: SequenceState, turn: StepPlan, logits: torch.Tensor
) -> Choice:
    at = turn.open.nonzero()[:, 0]
    if decoding.temperature == 0:
        tokens, gap = _gumbel_argmax(logits[-1:], at * 0, 0.0, draft.generator)
    else:
        probabilities = _probabilities(
            logits[-1:], decoding.temperature, decoding.top_p, decoding.top_k
        )
        tokens, gap = _sample(probabilities, decoding.temperature, draft.generator)
    return Choice(positions=at, tokens=tokens, narrow=int(gap[0] < narrow_margin(logits.dtype)))


def _row(turn: StepPlan, at: torch.Tensor, confidence: torch.Tensor) -> torch.Tensor:
    """Confidence over the whole canvas [T], -inf where a position may not be committed."""
    row = torch.full(turn.open.shape, -torch.inf, dtype=confidence.dtype, device=confidence.device)
    row[at] = confidence
    return row


def _surest(
    turn: StepPlan,
    at: torch.Tensor,
    confidence: torch.Tensor,
    tokens: torch.Tensor,
    gap: torch.Tensor,
) -> Choice:
    """The surest `count` open positions."""
    count = turn.count or 0
    row, able = _row(turn, at, confidence), len(at)
    if turn.held is not None:
        row[turn.held] = -torch.inf
        able -= int(turn.held.sum())
    # topk over the whole row, as upstream: which of two equal positions wins depends on its length.
    positions = torch.topk(row, count).indices
    of = torch.searchsorted(at, positions)
    margin = narrow_margin(confidence.dtype)
    narrow = int((gap[of] < margin).sum())
    if 0 < count < able:
        edge = torch.topk(row, count + 1).values
        narrow += int(edge[-2] - edge[-1] < margin)
    return Choice(positions=positions, tokens=tokens[of], narrow=narrow)


def _gumbel_argmax(
    logits: torch.Tensor, at: torch.Tensor, temperature: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """LLaDA's sampling: argmax of exp(logits) / (-log u)^T in float64; (tokens, margin) at `at`."""
    if temperature == 0:
        rows = logits[at]
        best = rows.topk(2, dim=-1).values
        return rows.argmax(dim=-1), best[:, 0] - best[:, 1]
    tokens, gaps = [], []
    for rows in torch.split(logits, 64):  # 64 rows of 126,464 float64 are 65 MB
        noise = _uniform((1, *rows.shape), generator, rows.device, torch.float64)[0]
        scores = rows.double().exp() / (-noise.log()) ** temperature
        best = scores.topk(2, dim=-1).values
        tokens.append(scores.argmax(dim=-1))
        gaps.append(best[:, 0].log() - best[:, 1].log())
    return torch.cat(tokens)[at], torch.cat(gaps)[at]


def _probabilities(
    logits: torch.Tensor, temperature: float, top_p: float | None, top_k: int | None
) -> torch.Tensor:
    """softmax after temperature, then nucleus, then top-k: Dream's order."""
    lowest = torch.finfo(logits.dtype).min
    if temperature > 0:
        logits = logits / temperature
    if top_p is not None and top_p < 1:
        ordered, index = logits.sort(dim=-1, descending=True)
        beyond = torch.softmax(ordered, dim=-1).cumsum(dim=-1) > top_p
        beyond = torch.nn.functional.pad(beyond[..., :-1], (1, 0))  # the token that crosses stays
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, index, beyond), lowest)
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, lowest)
    return torch.softmax(logits, dim=-1)


def _sample(
    probabilities: torch.Tensor, temperature: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, margin), both [N]; a draw has no margin (infinite)."""
    if temperature == 0 or not len(probabilities):
        best = probabilities.topk(2, dim=-1)
        return probabilities.max(dim=-1).indices, best.values[:, 0] - best.values[:, 1]
    normalised = probabilities / probabilities.sum(dim=-1, keepdim=True)
    tokens = torch.multinomial(normalised, 1, replacement=True, generator=generator)[:, 0]
    return tokens, torch.full(tokens.shape, torch.inf, device=tokens.device)


def _dream_confidence(
    decoding: DreamOrder, probabilities: torch.Tensor, tokens: torch.Tensor
) -> torch.Tensor:
    if decoding.algorithm == "topk_margin":
        best = probabilities.sort(dim=-1, descending=True).values
        return best[:, 0] - best[:, 1]
    if decoding.algorithm == "entropy":
        return (probabilities * (probabilities + 1e-10).log()).sum(dim=-1)
    return probabilities.gather(-1, tokens[:, None])[:, 0]


def _uniform(
    shape: tuple[int, ...],
    generator: torch.Generator,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    return torch.rand(shape, generator=generator, device=device, dtype=dtype)
