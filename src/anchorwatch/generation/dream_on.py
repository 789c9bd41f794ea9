"""DreamOn's decoding, which makes a canvas longer or shorter, as runs on canvases of one length.

A step may write the expand token, which becomes two masks, or an end token, which takes its
position away. Every token after it then stands at another position, and a trace keeps everything
by position. So a run ends with such a step, and `run_resizing` begins the next one on the canvas of
the new length: within each trace position p is position p, and it can be replayed like any other.
Torch is not imported here.
Shapes: T positions, N open masked positions, V outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from anchorwatch.errors import SpecError
from anchorwatch.generation.decoding import (
    Choice,
    Decoding,
    StepPlan,
    check_top,
    check_whole,
    check_word,
    position_confidence,
    register_decoding,
    take_surest,
)

if TYPE_CHECKING:
    import torch

    from anchorwatch.generation.sequence import SequenceState

Order = Literal["maskgit_plus", "topk_margin", "entropy"]


@register_decoding("dream-on")
@dataclass(frozen=True)
class DreamOn(Decoding):
    """DreamOn's diffusion_generate: the surest position at a time, until the length is to change.

    A run ends after the step that wrote the expand token or an end token; `aw.run_resizing` goes
    on.

    >>> writes = DreamOn(expand_id=8, delete_ids=(9,))
    >>> before, after = np.array([1, 0, 0, 2]), np.array([1, 8, 0, 2])  # 0 is the mask
    >>> writes.resize(before, after, mask_id=0, room=5)
    array([1, 0, 0, 0, 2])
    """

    _: KW_ONLY
    algorithm: Order = "entropy"
    """entropy (least), maskgit_plus (top probability) or topk_margin."""
    each: int = 1
    """Positions that a step writes (upstream's number_transfer_tokens)."""
    expand_id: int = 151667
    """The token that becomes two masks."""
    delete_ids: tuple[int, ...] | None = None
    """Tokens whose position goes; None are the model's end tokens."""
    delete_right: bool = False
    """Whether a deletion takes all masks to its right too (upstream's pad_delete_to_right)."""
    may_expand: bool = True
    """Whether the expand token may be written."""
    top_p: float | None = None
    """Keep the likeliest tokens up to this mass."""
    top_k: int | None = None
    """Keep this many likeliest tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_word("algorithm", self.algorithm, get_args(Order))
        check_whole("each", self.each)
        check_top(self.top_p, self.top_k)
        ids = () if self.delete_ids is None else tuple(self.delete_ids)
        if not all(isinstance(i, int) and i >= 0 for i in (self.expand_id, *ids)):
            raise SpecError(
                f"expand_id={self.expand_id!r} and delete_ids={self.delete_ids!r} are not token "
                "ids: say expand_id=151667, delete_ids=(151643,)"
            )
        if self.delete_ids is not None:
            object.__setattr__(self, "delete_ids", ids)  # a manifest holds a list

    def plan_steps(self, sequence: SequenceState) -> Iterator[StepPlan]:
        ends = sequence.eos_ids if self.delete_ids is None else self.delete_ids
        for _ in range(self.num_passes):
            masked = sequence.masked
            if not bool(masked.any()):
                return
            kept_back = sequence.is_frozen or not bool(sequence.committable.any())
            yield StepPlan(open=masked, count=min(self.each, int(masked.sum())))
            written = sequence.canvas[masked & ~sequence.masked].tolist()
            if self.expand_id in written or not set(ends).isdisjoint(written):
                return
            # The mask id was chosen: at temperature 0 the next step would choose it again.
            if not written and not kept_back and self.temperature == 0:
                return

    def choose(self, sequence: SequenceState, plan: StepPlan, logits: torch.Tensor) -> Choice:
        if self.expand_id >= logits.shape[-1]:
            raise SpecError(
                f"expand_id={self.expand_id} is no token of this model, which has "
                f"{logits.shape[-1]}: say DreamOn(expand_id=...)"
            )
        if not self.may_expand:
            logits = sequence.forbid_tokens(logits, [self.expand_id])
        probabilities = sequence.token_probabilities(
            logits[plan.open_positions], self.temperature, self.top_p, self.top_k
        )
        tokens, margin = sequence.sample(probabilities, self.temperature)
        confidence = position_confidence(self.algorithm, probabilities, tokens)
        return take_surest(plan, confidence, tokens, margin)

    def resize(
        self, before: np.ndarray, after: np.ndarray, *, mask_id: int, room: int
    ) -> np.ndarray:
        """The canvas after a step and its changes of length, at most `room` positions long.

        `before` and `after` [T] are the frames around the step; `delete_ids` are given.
        """
        assert self.delete_ids is not None
        # 1. Deletions, of what the step wrote, and of masks to the right of the first one.
        written = (before == mask_id) & (after != mask_id)
        gone = written & np.isin(after, self.delete_ids)
        if self.delete_right and gone.any():
            gone |= (before == mask_id) & (np.arange(len(after)) >= np.flatnonzero(gone)[0])
        canvas = after[~gone]
        # 2. Expansions, from the right; without room an expand token is a single mask.
        grown = written[~gone] & (canvas == self.expand_id)
        for position in np.flatnonzero(grown)[::-1]:
            masks = [mask_id] * (2 if len(canvas) < room else 1)
            canvas = np.concatenate([canvas[:position], masks, canvas[position + 1 :]])
        return canvas
