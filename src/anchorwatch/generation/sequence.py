"""One sequence while it is written: its canvas, what edits forbid, and the draws of its decoding.

A decoding (`generation/decoding.py`) is written with tensor methods only. What needs torch itself,
random numbers first of all, it asks of the sequence. Every operation that can break a tie (argmax,
topk, rand, multinomial) is called with the shapes that the authors' samplers use on a single
sequence, so that the same seed writes the same text as theirs.
Shapes: T positions, A positions to write, V outputs, N open masked positions.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch

GUMBEL_ROWS = 64
"""Rows of logits sampled at once: 64 rows of 126,464 float64 are 65 MB."""


@dataclass(frozen=True)
class RowLogits:
    """Logits of some positions of a canvas, asked for by position like those of all of them.

    The other rows were not unembedded: asking for one is an error.
    """

    rows: torch.Tensor
    """[N, V]."""
    positions: torch.Tensor
    """[N] the positions they are about, in order."""
    length: int
    """T positions of the canvas."""

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.rows.shape[-1]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, positions: torch.Tensor) -> torch.Tensor:
        """[n, V] of positions [n], or of those where a bool [T] is true."""
        wanted = positions.nonzero()[:, 0] if positions.dtype == torch.bool else positions
        if torch.equal(wanted, self.positions):
            return self.rows
        if not self.covers(wanted):
            raise IndexError(
                f"logits of positions {self.positions.tolist()} were computed: a decoding that "
                "reads others names them in positions_read"
            )
        return self.rows[torch.searchsorted(self.positions, wanted)]

    def covers(self, positions: torch.Tensor) -> bool:
        """Whether all of these positions are among its own."""
        return bool(torch.isin(positions, self.positions).all())


@dataclass(frozen=True)
class CommitConstraints:
    """What edits keep from being committed, and when."""

    until: torch.Tensor
    """[T] the first step at which each position may be committed."""
    frozen: Container[int] = ()
    """Steps that commit nothing."""


@dataclass
class SequenceState:
    """One sequence while it is written. Mutable; lives only inside a run."""

    canvas: torch.Tensor
    """[T] ids; in autoregression only what has been written so far."""
    answer: torch.Tensor
    """[A] positions to write, in order."""
    mask_id: int | None
    end_ids: tuple[int, ...]
    eos_ids: tuple[int, ...]
    generator: torch.Generator
    step: int = 0
    """Steps taken."""
    constraints: CommitConstraints | None = None

    @property
    def masked(self) -> torch.Tensor:
        """[T] where the canvas is masked."""
        return torch.eq(self.canvas, -1 if self.mask_id is None else self.mask_id)

    @property
    def committable(self) -> torch.Tensor:
        """[T] where the canvas is masked and no edit delays the commit."""
        if self.constraints is None:
            return self.masked
        return self.masked & (self.constraints.until <= self.step)

    @property
    def is_frozen(self) -> bool:
        """Whether an edit lets the coming step commit nothing."""
        return self.constraints is not None and self.step in self.constraints.frozen

    def split_blocks(self, block: int | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Block by block, as bool [T]: (its positions, its positions and all before it)."""
        # Earlier blocks stay open: what is masked there may still be committed.
        reached = torch.zeros_like(self.canvas, dtype=torch.bool)
        for positions in torch.split(self.answer, block or len(self.answer)):
            within = torch.zeros_like(reached)
            within[positions] = True
            reached = reached | within
            yield within, reached

    @staticmethod
    def forbid_tokens(logits: torch.Tensor | RowLogits, ids: Sequence[int]) -> torch.Tensor:
        """The logits with some tokens at -inf."""
        rows = (logits.rows if isinstance(logits, RowLogits) else logits).clone()
        rows[:, list(ids)] = -torch.inf
        if isinstance(logits, RowLogits):
            return cast(torch.Tensor, replace(logits, rows=rows))
        return rows

    def is_end(self, tokens: torch.Tensor) -> torch.Tensor:
        """[N] bool: which tokens end a text."""
        return torch.isin(tokens, torch.tensor(self.end_ids, device=tokens.device))

    def draw_uniform(
        self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Numbers from [0, 1), drawn from the sequence's own generator."""
        return torch.rand(shape, generator=self.generator, device=self.canvas.device, dtype=dtype)

    def gumbel_argmax(
        self, logits: torch.Tensor, positions: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """LLaDA's sampling: argmax of exp(logits) / (-log u)^T in float64, u uniform.

        Returns (tokens, margin to the second best), both [N], of logits [T, V] at `positions`.
        """
        # The two best tokens give the margin of the decision.
        if temperature == 0:
            rows = logits[positions]
            best = rows.topk(2, dim=-1).values
            return rows.argmax(dim=-1), best[:, 0] - best[:, 1]
        # Noise is drawn for every row, not only for the open ones, as the authors' code does: the
        # same seed then writes the same text.
        tokens = torch.zeros_like(positions)
        margins = torch.zeros(positions.shape, dtype=torch.float64, device=positions.device)
        length, outputs = logits.shape
        for start in range(0, length, GUMBEL_ROWS):
            count = min(GUMBEL_ROWS, length - start)
            noise = self.draw_uniform((1, count, outputs), torch.float64)[0]
            inside = (positions >= start) & (positions < start + count)
            rows = logits[positions[inside]]
            # Gumbel-max in the form of the authors: exp(logit) / (-log u)^T has the same argmax.
            scores = rows.double().exp() / (-noise[positions[inside] - start].log()) ** temperature
            best = scores.topk(2, dim=-1).values
            tokens[inside] = scores.argmax(dim=-1)
            margins[inside] = best[:, 0].log() - best[:, 1].log()
        return tokens, margins

    def sample(
        self, probabilities: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(tokens, margin), both [N], of probabilities [N, V]; a draw has no margin (infinite)."""
        if temperature == 0 or not len(probabilities):
            best = probabilities.topk(2, dim=-1)
            return probabilities.max(dim=-1).indices, best.values[:, 0] - best.values[:, 1]
        normalised = probabilities / probabilities.sum(dim=-1, keepdim=True)
        tokens = torch.multinomial(normalised, 1, replacement=True, generator=self.generator)[:, 0]
        return tokens, torch.full(tokens.shape, torch.inf, device=tokens.device)

    def draw_tokens(self, probabilities: torch.Tensor) -> torch.Tensor:
        """[N] tokens drawn from probabilities [N, V], as SDAR and LLaDA2 draw them."""
        return torch.multinomial(probabilities, 1, generator=self.generator)[:, 0]

    @staticmethod
    def block_probabilities(
        logits: torch.Tensor, temperature: float, top_k: int | None, top_p: float | None
    ) -> torch.Tensor:
        """Softmax after temperature, then top-k, then nucleus: SDAR's order. [N, V] to [N, V]."""
        logits = logits / temperature
        if top_k is not None:
            least = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if top_p is not None and top_p < 1:
            ordered, index = logits.sort(dim=-1, descending=True)
            beyond = torch.softmax(ordered, dim=-1).cumsum(dim=-1) > top_p
            # The token that crosses the mass stays.
            beyond = torch.nn.functional.pad(beyond[..., :-1], (1, 0))
            out = torch.zeros_like(beyond).scatter(-1, index, beyond)
            logits = logits.masked_fill(out, -torch.inf)
        return torch.softmax(logits, dim=-1)

    @staticmethod
    def diffusion_times(steps: int, eps: float) -> torch.Tensor:
        """[steps + 1] times from 1 down to `eps`, in float32, as Dream's authors compute them."""
        return torch.linspace(1, eps, steps + 1)

    @staticmethod
    def token_probabilities(
        logits: torch.Tensor, temperature: float, top_p: float | None, top_k: int | None
    ) -> torch.Tensor:
        """Softmax after temperature, then nucleus, then top-k: Dream's order. [N, V] to [N, V]."""
        # The authors fill with the lowest float of the dtype, and a softmax of it is 0.
        lowest = torch.finfo(logits.dtype).min
        if temperature > 0:
            logits = logits / temperature
        if top_p is not None and top_p < 1:
            ordered, index = logits.sort(dim=-1, descending=True)
            beyond = torch.softmax(ordered, dim=-1).cumsum(dim=-1) > top_p
            beyond = torch.nn.functional.pad(
                beyond[..., :-1], (1, 0)
            )  # the token that crosses stays
            logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, index, beyond), lowest)
        if top_k is not None:
            least = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < least, lowest)
        return torch.softmax(logits, dim=-1)
