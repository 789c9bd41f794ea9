"""Decodings of block diffusion: SDAR's and LLaDA2.0's generate, LLaDA2.1's token editing.

The canvas is cut into blocks that count from position 0, the prompt included. A prompt that does
not end with a block shares one with the first tokens that are written, and the canvas is filled up
to a whole block. Blocks are denoised one after another; a block sees itself and those before it,
so that what stands after the open block changes nothing. Torch is not imported here.
Shapes: T positions, B positions of the open block, N open masked positions, V outputs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from anchorwatch.errors import SpecError
from anchorwatch.generation.decoding import (
    Choice,
    Decoding,
    StepPlan,
    check_number,
    check_top,
    check_whole,
    check_word,
    even_counts,
    narrow_margin,
    register_decoding,
)

if TYPE_CHECKING:
    import torch

    from anchorwatch.generation.sequence import SequenceState

BlockOrder = Literal["dynamic", "static", "sequential"]
StopRule = Literal["block", "token", "never"]


@dataclass(frozen=True)
class CanvasBlocks(Decoding):
    """What decodings in blocks of the canvas have in common."""

    _: KW_ONLY
    block: int | None = None
    """Positions in a block, for visibility too; None is the model's own."""
    threshold: float = 0.95
    """Confidence above which a position is committed."""
    top_p: float | None = None
    """Keep the likeliest tokens up to this mass, after top_k; at temperature 0 unused."""
    top_k: int | None = None
    """Keep this many likeliest tokens; at temperature 0 unused."""
    stop: StopRule = "block"
    """Stop after a block that holds an end token, as soon as all before one is known (token), or
    never."""
    stop_ids: tuple[int, ...] | None = None
    """Tokens that end a text; None are the model's."""
    cache: bool = False
    """Keep keys and values of finished blocks, which is exact: only the open block's rows are
    computed, and measured."""

    blockwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("block", self.block, optional=True)
        check_number("threshold", self.threshold, at_least=0.0, at_most=1.0)
        check_top(self.top_p, self.top_k)
        check_word("stop", self.stop, get_args(StopRule))
        if self.stop_ids is not None:
            ids = tuple(self.stop_ids)
            if not ids or not all(isinstance(i, int) and i >= 0 for i in ids):
                raise SpecError(f"stop_ids={self.stop_ids!r} are not token ids: say (2,)")
            object.__setattr__(self, "stop_ids", ids)  # a manifest holds a list

    @property
    def steps_of_block(self) -> int:
        """Forward passes that a block gets at most."""
        raise SpecError(f"no schedule is known for {type(self).__name__}")

    @property
    def num_passes(self) -> int:
        assert self.length is not None and self.block is not None, "for_canvas() comes first"
        # The answer ends with a block, and may begin inside one.
        return math.ceil(self.length / self.block) * self.steps_of_block

    def for_model(self, block: int | None) -> Decoding:
        if self.block is not None or block is None:
            if self.block is None:
                raise SpecError(
                    f"the model has no blocks: say {type(self).__name__}(block=32) for example"
                )
            return self
        return dataclasses.replace(self, block=block)

    def answer_length(self, given: int) -> int:
        assert self.length is not None and self.block is not None, "for_model() comes first"
        return math.ceil((given + self.length) / self.block) * self.block - given

    def for_canvas(self, positions: int, answer: list[int]) -> Decoding:
        assert self.block is not None, "for_model() comes first"
        whole = answer == list(range(answer[0], positions)) and positions % self.block == 0
        if not whole:
            raise SpecError(
                f"{type(self).__name__} writes the end of a canvas of whole blocks, and this one "
                f"has {positions} positions with masks at {answer[0]} to {answer[-1]}: give a "
                "prompt, or infill with LowConfidence"
            )
        return dataclasses.replace(self, length=len(answer))

    def positions_read(self, plan: StepPlan) -> torch.Tensor:
        """[B] the positions of the open block, the prompt's among them."""
        assert self.block is not None
        touched = plan.open if plan.editable is None else plan.open | plan.editable
        first = int(touched.nonzero()[0, 0]) // self.block * self.block
        return (touched | True).nonzero()[first : first + self.block, 0]

    def end_ids(self, sequence: SequenceState) -> tuple[int, ...]:
        """Tokens that end the text."""
        return sequence.eos_ids if self.stop_ids is None else self.stop_ids

    def split_canvas(self, sequence: SequenceState) -> Iterator[torch.Tensor]:
        """The blocks that hold positions to write, left to right, as bool [T]."""
        assert self.block is not None
        places = (sequence.canvas >= 0).cumsum(0) - 1
        first, last = int(sequence.answer[0]), int(sequence.answer[-1])
        for number in range(first // self.block, last // self.block + 1):
            yield places // self.block == number

    def ends(self, sequence: SequenceState, reached: torch.Tensor) -> torch.Tensor:
        """[T] where the answer, as far as it is `reached`, holds an end token."""
        mine, ends = reached & False, reached & False
        mine[sequence.answer] = reached[sequence.answer]
        for token in self.end_ids(sequence):
            ends = ends | (mine & (sequence.canvas == token))
        return ends

    def sample_block(
        self, sequence: SequenceState, plan: StepPlan, logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """(positions, tokens, confidence, margin to the second token), [B] each, of the open block.

        Tokens are drawn for all rows of the block, as upstream: the same seed draws the same.
        """
        positions = self.positions_read(plan)
        rows = logits[positions]
        if self.temperature == 0:
            probabilities = rows.softmax(dim=-1)
            tokens = rows.argmax(dim=-1)
            best = probabilities.topk(2, dim=-1).values
            margin = best[:, 0] - best[:, 1]
        else:
            probabilities = sequence.block_probabilities(
                rows, self.temperature, self.top_k, self.top_p
            )
            tokens = sequence.draw_tokens(probabilities)
            margin = probabilities[:, 0] * 0 + math.inf  # a draw has no margin
        confidence = probabilities.gather(-1, tokens[:, None])[:, 0]
        return positions, tokens, confidence, margin

    def fill(
        self, plan: StepPlan, positions: torch.Tensor, confidence: torch.Tensor
    ) -> tuple[torch.Tensor, int]:
        """[B] which masked rows of the block are committed, and near-ties of that decision.

        All surer than the threshold if they are as many as the step owes, else the surest.
        """
        able = plan.open[positions]
        if plan.withheld is not None:
            able = able & ~plan.withheld[positions]
        row = confidence.masked_fill(~able, -math.inf)
        count = min(plan.count or 0, int(able.sum()))
        sure = row > self.threshold
        near = narrow_margin(confidence.dtype)
        narrow = int(((row - self.threshold).abs() < near).sum())
        if int(sure.sum()) >= count:
            return sure, narrow
        # topk over the whole block, as upstream: which of two equal positions wins depends on it.
        chosen = able & False
        chosen[row.topk(count).indices] = True
        if count < int(able.sum()):
            edge = row.topk(count + 1).values
            narrow += int(edge[-2] - edge[-1] < near)
        return chosen, narrow


@register_decoding("block-diffusion")
@dataclass(frozen=True)
class BlockDiffusion(CanvasBlocks):
    """SDAR's and LLaDA2.0's generate: every block has its steps, and each step its quota.

    The quota divides the whole block, also where part of it is prompt. `dynamic` commits all that
    is surer than the threshold if that is at least the quota, else the quota's surest; `static` the
    quota's surest; `sequential` the quota's first.

    >>> BlockDiffusion(40, 32, block=32).answer_length(12)
    52
    """

    steps: int | None = None
    """Forward passes of a block; None is one for each of its positions."""
    _: KW_ONLY
    order: BlockOrder = "dynamic"
    """dynamic, static or sequential."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("steps", self.steps, optional=True)
        check_word("order", self.order, get_args(BlockOrder))

    @property
    def steps_of_block(self) -> int:
        assert self.block is not None
        return self.block if self.steps is None else self.steps

    def for_canvas(self, positions: int, answer: list[int]) -> Decoding:
        # No block gets more steps than positions were asked for, as in LLaDA2's generate.
        fitted = super().for_canvas(positions, answer)
        assert isinstance(fitted, BlockDiffusion)
        steps = None if self.steps is None else min(self.steps, self.length or self.steps)
        return dataclasses.replace(fitted, steps=steps)

    def plan_steps(self, sequence: SequenceState) -> Iterator[StepPlan]:
        assert self.block is not None
        for within in self.split_canvas(sequence):
            for quota in even_counts(self.block, self.steps_of_block):
                masked = sequence.masked & within
                left = int(masked.sum())
                if not left:
                    break
                yield StepPlan(open=masked, count=min(quota, left))
                if self.stop == "token" and self._is_whole(sequence, masked):
                    return
            if self.stop != "never" and bool(self.ends(sequence, within | True).any()):
                return

    def _is_whole(self, sequence: SequenceState, masked: torch.Tensor) -> bool:
        """Whether the last step wrote an end token and nothing before the first one is masked."""
        ends = self.ends(sequence, masked | True)
        if not bool((ends & masked).any()):
            return False
        first = int(ends.nonzero()[0, 0])
        return not bool(sequence.masked[:first].any())

    def choose(self, sequence: SequenceState, plan: StepPlan, logits: torch.Tensor) -> Choice:
        positions, tokens, confidence, margin = self.sample_block(sequence, plan, logits)
        if self.order == "dynamic":
            chosen, narrow = self.fill(plan, positions, confidence)
        elif self.order == "static":
            rule = dataclasses.replace(self, threshold=1.0)  # no confidence is above 1
            chosen, narrow = rule.fill(plan, positions, confidence)
        else:
            able = plan.open[positions]
            if plan.withheld is not None:
                able = able & ~plan.withheld[positions]
            chosen, narrow = able & (able.cumsum(0) <= (plan.count or 0)), 0
        narrow += int((margin[chosen] < narrow_margin(confidence.dtype)).sum())
        return Choice(positions=positions[chosen], tokens=tokens[chosen], narrow=narrow)


@register_decoding("token-editing")
@dataclass(frozen=True)
class TokenEditing(CanvasBlocks):
    """LLaDA2.1's generate: a step fills masks, and rewrites what it would now write otherwise.

    A written token of the open block (never of the prompt) is rewritten where the likeliest token
    is another one, surer than `editing_threshold`. A block that is full goes on until nothing is
    rewritten, `max_post_steps` at most. A rewrite may choose the mask id: the position is then
    masked again. The trace records every rewrite; `committed_at` is the last.
    """

    _: KW_ONLY
    editing_threshold: float = 0.9
    """Confidence above which a written token is replaced."""
    max_post_steps: int = 16
    """Steps of a block after its last mask was filled."""
    least: int = 1
    """Masked positions that a step fills at least (upstream's num_to_transfer)."""

    rewrites: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("editing_threshold", self.editing_threshold, at_least=0.0, at_most=1.0)
        check_whole("least", self.least)
        if not isinstance(self.max_post_steps, int) or self.max_post_steps < 0:
            raise SpecError(
                f"max_post_steps={self.max_post_steps!r} is not a whole number of at least 0"
            )

    @property
    def steps_of_block(self) -> int:
        """Masks are filled in at most a step each; as many again for what is masked again."""
        assert self.block is not None
        return 2 * self.block + self.max_post_steps

    def plan_steps(self, sequence: SequenceState) -> Iterator[StepPlan]:
        reached = sequence.masked & False
        for within in self.split_canvas(sequence):
            reached = reached | within
            mine = within & False
            mine[sequence.answer] = within[sequence.answer]
            post_steps = 0
            for _ in range(self.steps_of_block):
                before, masked = sequence.canvas.clone(), sequence.masked & within
                full = not bool(masked.any())
                post_steps += full
                if post_steps > self.max_post_steps:
                    break
                count = min(self.least, int(masked.sum()))
                yield StepPlan(open=masked, count=count, editable=mine & ~masked)
                rewritten = bool(((before != sequence.canvas) & ~masked).any())
                if full and not rewritten:
                    break
            left = bool((sequence.masked & reached).any())
            if self.stop != "never" and not left and bool(self.ends(sequence, reached).any()):
                return

    def choose(self, sequence: SequenceState, plan: StepPlan, logits: torch.Tensor) -> Choice:
        assert plan.editable is not None
        # 1. Masks, by confidence.
        positions, tokens, confidence, margin = self.sample_block(sequence, plan, logits)
        filled, narrow = self.fill(plan, positions, confidence)
        if not bool(plan.open.any()):
            filled = filled & False
        # 2. Written tokens that would now be another one.
        other = tokens != sequence.canvas[positions]
        edited = plan.editable[positions] & other & (confidence > self.editing_threshold)
        # 3. Near-ties: with either threshold, and between two tokens.
        near, chosen = narrow_margin(confidence.dtype), filled | edited
        close = plan.editable[positions] & other
        narrow += int((close & ((confidence - self.editing_threshold).abs() < near)).sum())
        narrow += int((margin[chosen] < near).sum())
        return Choice(positions=positions[chosen], tokens=tokens[chosen], narrow=narrow)


@register_decoding("entropy")
@dataclass(frozen=True)
class EntropyOrder(Decoding):
    """RND1's diffusion_sample: each step keeps the positions of highest entropy masked.

    After step k of n the share 1 - k/n of the answer is still masked. With `entropy_bound` a step
    commits the likeliest tokens as long as the sum of their entropies without the greatest stays
    within the bound, and the last step all that is left.
    """

    steps: int | None = None
    """Forward passes; None is one for each position."""
    _: KW_ONLY
    entropy_bound: float | None = None
    """Nats that a step may commit beside its most uncertain token (upstream's eb_gamma)."""
    top_p: float | None = None
    """Keep the likeliest tokens up to this mass, after top_k; at temperature 0 unused."""
    top_k: int | None = None
    """Keep this many likeliest tokens; at temperature 0 unused."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("steps", self.steps, optional=True)
        check_top(self.top_p, self.top_k)
        if self.entropy_bound is not None:
            check_number("entropy_bound", self.entropy_bound, at_least=0.0)

    def plan_steps(self, sequence: SequenceState) -> Iterator[StepPlan]:
        steps = len(sequence.answer) if self.steps is None else self.steps
        total = sequence.masked.sum()
        for left in range(steps - 1, -1, -1):
            masked = sequence.masked
            waiting = int(masked.sum())
            if not waiting:
                return
            # In float32 and cut off, as upstream computes it.
            kept = int((total * (left / steps)).long())
            bound = self.entropy_bound if left else None
            count = None if bound is not None else max(waiting - kept, 0)
            yield StepPlan(open=masked, count=count)

    def choose(self, sequence: SequenceState, plan: StepPlan, logits: torch.Tensor) -> Choice:
        # 1. Tokens, their log-probabilities and the entropy of each open position.
        positions = plan.open_positions
        rows = logits[positions]
        if self.temperature == 0:
            logp = rows.log_softmax(dim=-1)
            tokens = logp.argmax(dim=-1)
        else:
            probabilities = sequence.block_probabilities(
                rows, self.temperature, self.top_k, self.top_p
            )
            logp = probabilities.clamp(min=1e-38).log()
            tokens = sequence.draw_tokens(probabilities)
        best = logp.topk(2, dim=-1).values
        margin = best[:, 0] - best[:, 1]
        entropy = -(logp.exp() * logp).sum(dim=-1)
        # 2. Which are committed: within the bound, or all but the most uncertain.
        able = positions >= 0 if plan.withheld is None else ~plan.withheld[positions]
        near = narrow_margin(logp.dtype)
        if plan.count is None:
            surest = logp.gather(-1, tokens[:, None])[:, 0]
            order = (-surest).masked_fill(~able, math.inf).sort().indices
            sorted_entropy = entropy[order]
            spent = sorted_entropy.cumsum(0) - sorted_entropy.cummax(0).values
            taken = int((spent <= (self.entropy_bound or 0.0)).sum())
            chosen, edge = order[:taken], spent[taken - 1 : taken + 1]
            narrow = int(((edge - (self.entropy_bound or 0.0)).abs() < near).sum())
        else:
            row = plan.spread(entropy)
            kept = row.topk(max(int(plan.open.sum()) - plan.count, 0)).indices
            stay = plan.open & False
            stay[kept] = True
            chosen = (~stay[positions]).nonzero()[:, 0]
            ordered, taken = entropy.sort().values, len(chosen)
            narrow = 0
            if 0 < taken < len(ordered):
                narrow = int(ordered[taken] - ordered[taken - 1] < near)
        chosen = chosen[able[chosen]]
        narrow += int((margin[chosen] < near).sum()) if self.temperature == 0 else 0
        return Choice(positions=positions[chosen], tokens=tokens[chosen], narrow=narrow)
