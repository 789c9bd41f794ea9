"""The loss: rows of examples with noise on them, and what is asked of the network about them.

Every objective is the same few tensors: a canvas, the positions whose token is asked for, and a
weight for each. For diffusion a position is masked with probability p and weighs 1 / p, so that the
sum over scored tokens is an upper bound on their negative log-likelihood; for next-token prediction
every scored position is asked for and weighs 1. The mean has one divisor, the scored tokens.
Shapes: R rows, T positions, N asked, V outputs, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from anchorwatch.errors import SpecError
from anchorwatch.training import noise
from anchorwatch.training.spec import Objective


class ExampleLike(Protocol):
    """One text: what a corpus gives for an index."""

    @property
    def ids(self) -> Sequence[int] | np.ndarray:
        """Token ids, without padding."""

    @property
    def scored(self) -> Sequence[bool] | np.ndarray:
        """For each token, whether it is the answer; true everywhere in plain text."""


@dataclass(frozen=True)
class NoisyBatch:
    """Examples side by side, with noise, and what is asked about them."""

    canvas: torch.Tensor
    """[R, T] ids, the mask id where masked, padding on the right."""
    real: torch.Tensor | None
    """[R, T] 1 where there is a token; None where no row is padded."""
    predictors: torch.Tensor
    """[N] which of the R * T rows of the network say the token asked for."""
    targets: torch.Tensor
    """[N] the tokens asked for."""
    weights: torch.Tensor
    """[N] float32."""
    owners: torch.Tensor
    """[N] the row each was asked in."""
    positions: torch.Tensor
    """[N] where in it."""
    scored: torch.Tensor
    """[R] how many tokens of each row are scored, masked or not."""
    divisor: float
    """Scored tokens (or rows, where rows weigh the same): masked or not."""
    tokens: int
    """Tokens on the canvas, padding left out."""

    def to(self, device: torch.device) -> NoisyBatch:
        """The same rows on a device."""
        tensors = {name: getattr(self, name) for name in _TENSORS}
        moved = {
            name: t.to(device, non_blocking=True) for name, t in tensors.items() if t is not None
        }
        return replace(self, **moved)


_TENSORS = ("canvas", "real", "predictors", "targets", "weights", "owners", "positions", "scored")


@dataclass(frozen=True)
class BatchBuilder:
    """Turns examples into rows, the same way in any process."""

    objective: Objective
    kind: Literal["mdm", "arm"]
    shift: bool
    """Whether the network's row p - 1 says the token at p."""
    mask_id: int | None
    pad_id: int
    vocab_size: int
    length: int
    batch: int
    """Rows of a whole update."""
    seed: int

    def __call__(
        self, examples: Sequence[ExampleLike], update: int, slots: Sequence[int]
    ) -> NoisyBatch:
        """Rows of the examples at these places of an update's batch."""
        longest = noise.draw_length(self.seed, update, self.objective.random_lengths, self.length)
        indices = [update * self.batch + slot for slot in slots]
        posed = [
            self._choose_scored(example, update, index, longest)
            for example, index in zip(examples, indices, strict=True)
        ]
        plans = [
            self._draw_continuation(example, update, index, longest)
            for example, index in zip(examples, indices, strict=True)
        ]
        posed = [
            row if plan is None else _continue_row(row[0], plan)
            for row, plan in zip(posed, plans, strict=True)
        ]
        from_end = [plan is not None and plan.from_end for plan in plans]
        if self.kind == "arm":
            return self._build_batch(posed, [scored for _, scored in posed], np.ones(len(posed)))
        t = noise.draw_times(self.objective.t, self.seed, update, slots, self.batch)
        p = noise.mask_probability(t, self.objective.eps)
        addresses = [(self.seed, update, index) for index in indices]
        if self.objective.masks == "counted":
            masked = [
                noise.draw_counted_masks(*addresses[i], t[i], scored, from_end=from_end[i])
                for i, (_, scored) in enumerate(posed)
            ]
            p = np.array([m.sum() / s.sum() for m, (_, s) in zip(masked, posed, strict=True)])
        else:
            masked = [
                s & noise.draw_masks(*addresses[i], p[i], len(s)) for i, (_, s) in enumerate(posed)
            ]
        return self._build_batch(posed, masked, 1.0 / p)

    def _choose_scored(
        self, example: ExampleLike, update: int, index: int, longest: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids of an example, and which of them are scored."""
        ids, answer = np.asarray(example.ids), np.asarray(example.scored, dtype=bool)
        self._check(ids, answer, index)
        ids, answer = ids[:longest], answer[:longest]
        fine_tune, share = self.objective.name == "fine_tune", self.objective.answer_only
        if fine_tune and not answer.any():
            raise SpecError(
                f"example {index} has no answer to score: fine_tune needs one in each; "
                "use diffusion or next_token for plain text"
            )
        mixed = answer.any() and not answer.all()
        only = fine_tune or (mixed and noise.is_answer_only(self.seed, update, index, share))
        scored = answer.copy() if only else np.ones(len(ids), dtype=bool)
        if self.kind == "arm" or (self.objective.keep_start and len(ids) > 1):
            scored[0] = False  # nothing stands before the first token to say it
        return ids, scored

    def _draw_continuation(
        self, example: ExampleLike, update: int, index: int, longest: int
    ) -> noise.Continuation | None:
        """How a row of plain text is continued, where it is."""
        share = self.objective.continuations
        if not share or not np.asarray(example.scored, dtype=bool).all():
            return None
        length = min(len(example.ids), longest)
        return noise.draw_continuation(self.seed, update, index, share, length)

    def _check(self, ids: np.ndarray, answer: np.ndarray, index: int) -> None:
        if ids.ndim != 1 or not len(ids) or ids.shape != answer.shape or ids.dtype.kind not in "iu":
            raise SpecError(
                f"example {index} has ids of {ids.dtype} and shape {list(ids.shape)} with scored "
                f"of shape {list(answer.shape)}: expected whole numbers and flags, as many of each"
            )
        if len(ids) > self.length:
            raise SpecError(
                f"example {index} has {len(ids)} tokens and length is {self.length}: "
                "raise length, or let the corpus cut its texts"
            )
        if not 0 <= ids.min() <= ids.max() < self.vocab_size:
            wrong = int(ids.max() if ids.max() >= self.vocab_size else ids.min())
            raise SpecError(
                f"example {index} holds token id {wrong} and the network's ids run from 0 to "
                f"{self.vocab_size - 1}: make corpus and network with one tokenizer"
            )

    def _build_batch(
        self,
        posed: Sequence[tuple[np.ndarray, np.ndarray]],
        chosen: Sequence[np.ndarray],
        weights: np.ndarray,
    ) -> NoisyBatch:
        # 1. Rows side by side, padded on the right; [R, T] ids and which of them are asked for.
        lengths = [len(ids) for ids, _ in posed]
        width = max(lengths)
        canvas = np.full((len(posed), width), self.pad_id, dtype=np.int64)
        wanted = np.zeros(canvas.shape, dtype=bool)
        for row, (ids, _) in enumerate(posed):
            canvas[row, : len(ids)] = ids
            wanted[row, : len(ids)] = chosen[row]
        # 2. Targets before the mask hides them; the network's row that predicts each.
        owners, positions = np.nonzero(wanted)
        targets = canvas[owners, positions]
        if self.mask_id is not None and self.kind == "mdm":
            canvas[wanted] = self.mask_id
        # A first token keeps its own row: none stands before it.
        before = np.maximum(positions - self.shift, 0)
        # 3. Scored tokens of each row, masked or not, divide the loss (or rows do).
        counts = np.array([scored.sum() for _, scored in posed], dtype=np.float64)
        divisor = counts.sum()
        if self.objective.weigh == "rows":
            weights, divisor = weights / np.maximum(counts, 1), (counts > 0).sum()
        real = np.arange(width) < np.array(lengths)[:, None]
        return NoisyBatch(
            canvas=torch.from_numpy(canvas),
            real=None if real.all() else torch.from_numpy(real.astype(np.int64)),
            predictors=torch.from_numpy(owners * width + before),
            targets=torch.from_numpy(targets),
            weights=torch.from_numpy(weights[owners].astype(np.float32)),
            owners=torch.from_numpy(owners),
            positions=torch.from_numpy(positions),
            scored=torch.from_numpy(counts),
            divisor=float(divisor),
            tokens=int(real.sum()),
        )


def _continue_row(ids: np.ndarray, plan: noise.Continuation) -> tuple[np.ndarray, np.ndarray]:
    """A text up to the end of what is added, and which of its tokens are added."""
    ids = ids[: plan.given + plan.added]
    return ids, np.arange(len(ids)) >= plan.given


class Scorer(torch.nn.Module):
    """The network and its loss behind one forward call, which is what DDP and FSDP wrap."""

    def __init__(self, network: PreTrainedModel, *, bf16: bool = False) -> None:
        super().__init__()
        self.network = network
        self.bf16 = bf16
        self._no_split_modules = network._no_split_modules  # FSDP cuts there

    def forward(
        self,
        canvas: torch.Tensor,
        real: torch.Tensor | None,
        predictors: torch.Tensor,
        targets: torch.Tensor,
    ) -> torch.Tensor:
        """[N] negative log-likelihood of each token asked for, in nats, float32 or better.

        Only rows that are asked reach the unembedding, which is most of a small network's work.
        """
        network: Any = self.network
        with torch.autocast(canvas.device.type, torch.bfloat16, enabled=self.bf16):
            states = network.base_model(canvas, attention_mask=real, use_cache=False)[0]
            picked = states.flatten(0, 1).index_select(0, predictors)
            logits = network.get_output_embeddings()(picked)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return torch.nn.functional.cross_entropy(logits, targets, reduction="none")


def token_nats(scorer: torch.nn.Module, rows: NoisyBatch) -> torch.Tensor:
    """[N] what each token asked for costs, not yet weighed."""
    return scorer(rows.canvas, rows.real, rows.predictors, rows.targets)
