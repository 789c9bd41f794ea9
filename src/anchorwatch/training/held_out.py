"""How well a network does on text it has not seen: nats per token, and questions answered.

The noise is addressed as in training, by seed and example, so that two arms that read the same
text are asked about the same tokens: their difference is paired, sequence by sequence.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
import torch

from anchorwatch.errors import SpecError
from anchorwatch.evaluation.prompt_templates import until_end
from anchorwatch.evaluation.scores import exact_match
from anchorwatch.evaluation.synthetic import Item, guesser_chance
from anchorwatch.generation.decoding import Decoding, LeftToRight, LowConfidence
from anchorwatch.generation.run import run_many
from anchorwatch.models.model import Model
from anchorwatch.trace.trace import Trace
from anchorwatch.training import noise
from anchorwatch.training.corpora import CorpusLike
from anchorwatch.training.objective import BatchBuilder, ExampleLike, NoisyBatch
from anchorwatch.training.spec import Objective

BOOKS = ("open", "closed")


@dataclass(frozen=True, eq=False)
class NLLBound:
    """What each sequence cost; of a diffusion model an upper bound, of an autoregressive one exact.

    Axes: draws of the noise, sequences.
    """

    nats: np.ndarray
    """[draw, sequence] weighed cost of all its scored tokens."""
    scored: np.ndarray
    """[sequence] tokens; an autoregressive model does not score the first."""
    t: np.ndarray
    """[draw, sequence]; NaN where nothing is masked."""
    plain: np.ndarray
    """[draw, sequence] cost of the masked tokens, not weighed."""
    masked: np.ndarray
    """[draw, sequence] how many those are."""
    vocab_size: int

    @property
    def asked(self) -> np.ndarray:
        """The old name of `masked`."""
        warnings.warn("NLLBound.asked is now NLLBound.masked", DeprecationWarning, stacklevel=2)
        return self.masked

    @property
    def value(self) -> float:
        """Nats per scored token."""
        return float(self.nats.mean(axis=0).sum() / self.scored.sum())

    @property
    def null(self) -> float:
        """What indifference pays for a token."""
        return math.log(self.vocab_size)

    @property
    def sequences(self) -> np.ndarray:
        """[sequence] nats per scored token of each: what is paired between arms."""
        return self.nats.mean(axis=0) / self.scored

    def by_time(self, bins: int = 10) -> pd.DataFrame:
        """Each slice of t: its `value`, whose mean over full slices is the bound, and `masked`,
        the plain cost of a masked token there; NaN where no sequence fell into it."""
        edges = np.linspace(0, 1, bins + 1)
        scored = np.broadcast_to(self.scored, self.t.shape)
        rows = []
        for low, high in pairwise(edges):
            inside = (self.t >= low) & (self.t < high)
            tokens, masked = scored[inside].sum(), self.masked[inside].sum()
            rows.append(
                {
                    "t_low": low,
                    "t_high": high,
                    "value": self.nats[inside].sum() / tokens if tokens else np.nan,
                    "masked": self.plain[inside].sum() / masked if masked else np.nan,
                    "null": self.null,
                    "n": int(inside.sum()),
                }
            )
        return pd.DataFrame(rows)


@torch.no_grad()
def nll_bound(
    model: Model,
    corpus: CorpusLike,
    *,
    examples: int = 256,
    draws: int = 4,
    length: int | None = None,
    answer_only: bool = False,
    seed: int = 0,
    batch: int = 32,
) -> NLLBound:
    """Cost of the corpus's first `examples`, cut to `length`, under `draws` of the noise each.

    `answer_only` keeps prompts clear; a text without a prompt is then scored whole.
    """
    if examples < 1 or draws < 1:
        raise SpecError(f"examples={examples}, draws={draws}: expected at least 1 of each")
    if length is not None and length < (least := 1 if model.family.kind == "mdm" else 2):
        raise SpecError(f"length={length!r} leaves nothing to score: expected {least} or more")
    # 1. The texts, cut; noise is addressed by (seed, draw, example), so arms see the same masks.
    longest = model.num_positions if length is None else min(length, model.num_positions)
    texts = [_cut_example(corpus[index], longest) for index in range(examples)]
    builder = _batch_builder(model, examples, longest, answer_only, seed)
    draws = draws if model.family.kind == "mdm" else 1
    # 2. [weighed nats, plain nats, masked tokens] x [draw, sequence], added up pass by pass.
    sums = np.zeros((3, draws, examples))
    scored, t = np.zeros(examples), np.full((draws, examples), np.nan)
    for draw in range(draws):
        if model.family.kind == "mdm":
            t[draw] = noise.draw_times("stratified", seed, draw, range(examples), examples)
        for first in range(0, examples, batch):
            slots = range(first, min(first + batch, examples))
            rows = builder(texts[first : first + batch], draw, slots).to(model.device)
            costs = _token_nats(model, rows)
            for which, what in enumerate((costs * rows.weights, costs, torch.ones_like(costs))):
                row_sums = torch.zeros(len(slots), dtype=torch.float64, device=model.device)
                row_sums.index_add_(0, rows.owners, what.double())
                sums[which, draw, first : first + batch] = row_sums.cpu().numpy()
            scored[first : first + batch] = rows.scored.cpu().numpy()
    # 3. Uniform prediction over the outputs is the null.
    outputs = len(model.network.get_output_embeddings().weight)
    return NLLBound(sums[0], scored, t, sums[1], sums[2], outputs)


@torch.no_grad()
def nll_by_position(
    model: Model,
    corpus: CorpusLike,
    edges: Sequence[int],
    *,
    examples: int = 256,
    draws: int = 4,
    seed: int = 0,
    batch: int = 32,
) -> pd.DataFrame:
    """The bound of a diffusion model by where in its row a token stands, with the noise of
    `nll_bound`.

    Row r of the table is about the positions from edges[r] up to the next edge; the last is open.
    `value` is nats per token there; `part` is nats there over all tokens, so that parts add up to
    the bound; `masked` is the plain cost of a masked token; n is how many tokens stand there.
    """
    if model.family.kind != "mdm":
        raise SpecError("nll_by_position is about masked diffusion models: use nll_bound")
    if not edges or edges[0] != 0 or any(b <= a for a, b in pairwise(edges)):
        raise SpecError(f"edges={list(edges)!r}: expected growing positions from 0, as (0, 4, 16)")
    # 1. The texts and the noise of nll_bound.
    texts = [_cut_example(corpus[index], model.num_positions) for index in range(examples)]
    builder = _batch_builder(model, examples, model.num_positions, False, seed)
    # 2. [weighed nats, plain nats, masked tokens] x [bin], over all draws and rows.
    sums = np.zeros((3, len(edges)))
    for draw in range(draws):
        for first in range(0, examples, batch):
            slots = range(first, min(first + batch, examples))
            rows = builder(texts[first : first + batch], draw, slots).to(model.device)
            costs = _token_nats(model, rows).double()
            where = np.searchsorted(edges, rows.positions.cpu().numpy(), side="right") - 1
            for which, what in enumerate((costs * rows.weights, costs, torch.ones_like(costs))):
                sums[which] += np.bincount(where, what.cpu().numpy(), len(edges))
    # 3. Tokens of each bin, and costs over them.
    positions = np.concatenate([np.arange(len(text.ids)) for text in texts])
    tokens = np.bincount(np.searchsorted(edges, positions, side="right") - 1, minlength=len(edges))
    with np.errstate(divide="ignore", invalid="ignore"):
        table = {
            "first": list(edges),
            "value": sums[0] / draws / tokens,
            "part": sums[0] / draws / tokens.sum(),
            "masked": sums[1] / sums[2],
            "n": tokens,
        }
    return pd.DataFrame(table)


def by_length(
    model: Model, corpus: CorpusLike, lengths: Sequence[int], *, examples: int = 256, seed: int = 0
) -> pd.DataFrame:
    """The bound of the same texts cut to each length, beside its null.

    A length that the model or none of the texts has is refused: it would repeat a shorter one.
    """
    longest = max(len(corpus[index].ids) for index in range(max(1, examples)))
    for length in lengths:
        if length > min(longest, model.num_positions):
            raise SpecError(
                f"length {length} cannot be measured: the model has {model.num_positions} "
                f"positions and the longest of the {examples} texts {longest} tokens"
            )
    rows = []
    for length in lengths:
        cost = nll_bound(model, corpus, examples=examples, length=length, seed=seed)
        rows.append({"length": length, "value": cost.value, "null": cost.null, "n": examples})
    return pd.DataFrame(rows)


def answers(
    model: Model, items: Sequence[Item], *, book: str = "open", length: int = 16, batch: int = 16
) -> pd.DataFrame:
    """Greedy answers to questions, with or without their passages, and whether each is right.

    `null` is what guessing among the names of the right kind would score (`guesser_chance`).
    """
    if book not in BOOKS:
        raise SpecError(f"book={book!r} is unknown: expected {' or '.join(BOOKS)}")
    shown = [item if book == "open" else item.keep() for item in items]
    traces = run_many(
        model,
        [item.prompt() for item in shown],
        _greedy_decoding(model, length),
        probes=(),
        batch=batch,
    )
    texts = [_answer_text(model, trace) for trace in traces]
    return pd.DataFrame(
        {
            "question": [item.question for item in items],
            "said": texts,
            "right": [
                exact_match(text, item.answers) for text, item in zip(texts, items, strict=True)
            ],
            "null": [guesser_chance(item) for item in shown],
        }
    )


def _greedy_decoding(model: Model, length: int) -> Decoding:
    if model.family.kind == "arm":
        return LeftToRight(length=length)
    return LowConfidence(length=length)


def _answer_text(model: Model, trace: Trace) -> str:
    """What was written before the first end token."""
    written = trace.canvas[-1][trace.answer].tolist()
    return model.decode(until_end(written, model.specials.end_ids, model.specials.mask_id))


@dataclass(frozen=True, eq=False)
class _Cut:
    ids: np.ndarray
    scored: np.ndarray


def _cut_example(example: ExampleLike, length: int) -> _Cut:
    ids, scored = np.asarray(example.ids), np.asarray(example.scored, dtype=bool)
    return _Cut(ids[:length], scored[:length])


def _token_nats(model: Model, rows: NoisyBatch) -> torch.Tensor:
    """[N] nats, asked of the model and not of its network: parts and shifts are its own matter."""
    logits = model.logits(rows.canvas, rows.real)[rows.owners, rows.positions]
    return torch.nn.functional.cross_entropy(logits.float(), rows.targets, reduction="none")


def _batch_builder(
    model: Model, examples: int, length: int, answer_only: bool, seed: int
) -> BatchBuilder:
    objective = Objective(name="diffusion", answer_only=float(answer_only))
    if model.family.kind == "arm":
        objective = Objective(name="next_token", answer_only=float(answer_only))
    return BatchBuilder(
        objective=objective,
        kind=model.family.kind,
        shift=model.family.shift,
        mask_id=model.specials.mask_id,
        pad_id=model.specials.pad_id,
        vocab_size=model.vocab_size,
        length=length,
        batch=examples,
        seed=seed,
    )
