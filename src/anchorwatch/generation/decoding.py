"""How a run writes its answer: which positions each step may commit, and which tokens.

A decoding is one frozen dataclass under `@register_decoding("its-word")`:

- its fields are the settings a user gives, in Python and as words: `its-word:steps=32,block=8`;
- `plan_steps(sequence)` is its schedule: yields a `StepPlan` for each forward pass;
- `choose(sequence, plan, logits)` is its policy: the positions and tokens the step commits.

Nothing else is needed: the command line, manifests and `aw.decoding` know it by its registration.
Torch is not imported here, so that a laptop that only reads traces knows every decoding by its
fields. Both methods are written with tensor methods; `generation/sequence.py` has what needs more.
`length` is the number of positions to write; leave it out to infill whatever a canvas has masked.

A decoding with LLaDA's schedule that writes from the right to the left needs one method more:

>>> @register_decoding("right-to-left")
... @dataclass(frozen=True)
... class RightToLeft(EvenSteps):
...     def rank_positions(self, sequence, logits, positions, tokens):
...         return positions.float()  # the rightmost open position is the first to be committed
>>> DECODINGS.pop("RightToLeft").word
'right-to-left'
>>> WORDS.pop("right-to-left")
'RightToLeft'

Shapes: T positions, V outputs, N open masked positions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args

import numpy as np

from anchorwatch.errors import SpecError
from anchorwatch.generation.caches import Cache, as_cache
from anchorwatch.trace.machine_limits import count as spell_count

if TYPE_CHECKING:
    import torch

    from anchorwatch.generation.sequence import SequenceState

__all__ = ["DreamOrder", "LeftToRight", "LowConfidence", "RandomOrder", "Threshold"]

COLDEST = 1e-4
"""Logits divided by less would overflow."""

MOST = 10**18
"""Positions or passes that can be spoken of; a plan refuses far fewer."""

DreamAlgorithm = Literal["origin", "maskgit_plus", "topk_margin", "entropy"]


@dataclass(frozen=True)
class StepPlan:
    """What one step may do."""

    open: torch.Tensor
    """[T] bool: positions that may be committed, masked ones only."""
    count: int | None = None
    """How many to commit (of a threshold: at least); None leaves it to the policy."""
    chance: float | None = None
    """Probability that each open position is committed (Dream's origin)."""
    withheld: torch.Tensor | None = None
    """[T] bool: open positions that an edit keeps from the policy. They stay open, so that chance
    falls for all others as it would have."""
    forced: tuple[tuple[int, int], ...] = ()
    """(position, token) that an edit commits besides what the policy chooses."""
    frozen: bool = False
    """Nothing is committed, and the policy is not consulted."""
    editable: torch.Tensor | None = None
    """[T] bool: written positions that the step may rewrite."""

    @property
    def reachable(self) -> torch.Tensor:
        """[T] bool: positions that the step may commit."""
        if self.frozen:
            return self.open & False
        if self.withheld is None:
            return self.open if self.editable is None else self.open | self.editable
        reachable = self.open & ~self.withheld
        reachable[[position for position, _ in self.forced]] = True
        return reachable

    @property
    def read_positions(self) -> torch.Tensor:
        """[n] positions whose logits the step may read, in order: open, editable and forced."""
        read = self.reachable | self.open
        read[[position for position, _ in self.forced]] = True
        return read.nonzero()[:, 0]

    @property
    def open_positions(self) -> torch.Tensor:
        """[N] the open positions, in order."""
        return self.open.nonzero()[:, 0]

    def index_among_open(self, positions: torch.Tensor) -> torch.Tensor:
        """Where some open positions stand in `open_positions`."""
        return (self.open.cumsum(0) - 1)[positions]

    def spread(self, confidence: torch.Tensor) -> torch.Tensor:
        """[T] the confidence [N] of open positions over the whole canvas, -inf elsewhere."""
        row = confidence.new_full(self.open.shape, -math.inf)
        row[self.open_positions] = confidence
        return row


@dataclass(frozen=True)
class Choice:
    """What one step commits: tokens at positions.

    A token equal to the mask id leaves its position masked.
    """

    positions: torch.Tensor
    tokens: torch.Tensor
    narrow: int
    """Decisions of this step whose margin was under `narrow_margin`."""


def narrow_margin(dtype: torch.dtype) -> float:
    """A decision with a smaller margin may fall otherwise in a padded batch; traces count them."""
    return 1e-5 if dtype.itemsize >= 4 else 1e-2  # float32 and float64; else bfloat16 and float16


@dataclass(frozen=True)
class Decoding:
    """What every decoding has in common."""

    length: int | None = None
    """Positions to write after the prompt; None when a canvas is infilled."""
    _: KW_ONLY
    temperature: float = 0.0
    """0 takes the likeliest token; above 0 samples."""

    writes: ClassVar[Literal["masked", "absent"]] = "masked"
    """What it fills: masked positions (diffusion) or absent ones (autoregression)."""
    fixed_counts: ClassVar[bool] = False
    """Whether its schedule fixes how many a step commits: what edits delay is then caught up."""
    blockwise: ClassVar[bool] = False
    """Whether it denoises the canvas in blocks, whose size then decides who may look at whom."""
    rewrites: ClassVar[bool] = False
    """Whether a step may rewrite what an earlier one committed."""
    word: ClassVar[str] = ""
    """Its name on the command line."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.generic):  # a sweep over np.arange hands out numpy scalars
                object.__setattr__(self, field.name, value.item())
        check_whole("length", self.length, optional=True)
        _check_temperature("temperature", self.temperature)

    @property
    def num_passes(self) -> int:
        """Forward passes of a decoding of known length; some may stop earlier."""
        assert self.length is not None, "for_length() comes first"
        return int(getattr(self, "steps", None) or self.length)

    @property
    def draws(self) -> bool:
        """Whether anything is left to chance."""
        return self.temperature > 0

    def plan_steps(self, sequence: SequenceState) -> Iterator[StepPlan]:
        """The schedule: a plan for each forward pass, made when the sequence has come to it."""
        raise SpecError(f"no schedule is known for {type(self).__name__}")

    def choose(self, sequence: SequenceState, plan: StepPlan, logits: torch.Tensor) -> Choice:
        """The policy: which open positions to commit, and the tokens.

        `logits` are [T, V], to be asked for by position: `logits[positions]`.
        """
        raise SpecError(f"no policy is known for {type(self).__name__}")

    def positions_read(self, plan: StepPlan) -> torch.Tensor | None:
        """[n] positions whose logits a step reads, in order: no others are unembedded.

        Those that it may write; a `choose` that reads others too says None here, for all.
        """
        return plan.read_positions

    def for_model(self, block: int | None) -> Decoding:
        """This decoding for a model whose visibility has blocks of this size, or none."""
        return self

    def answer_length(self, given: int) -> int:
        """Positions to append to a prompt of `given` tokens: `length`, or more to end a block."""
        assert self.length is not None
        return self.length

    def for_canvas(self, positions: int, answer: list[int]) -> Decoding:
        """This decoding for a canvas of which the positions `answer` are to be written."""
        return self.for_length(len(answer))

    def for_length(self, length: int) -> Decoding:
        """This decoding for exactly `length` positions; refuses if made for another number."""
        # A decoding made for another length has checked its blocks and steps against that length.
        if self.length not in (None, length):
            raise SpecError(
                f"the decoding writes length={self.length} positions, "
                f"but the canvas has {length} masked: "
                f"leave length out to infill, or say length={length}"
            )
        return dataclasses.replace(self, length=length)

    def as_dict(self) -> dict[str, Any]:
        """Name and fields, for the manifest."""
        fields = {"name": type(self).__name__} | dataclasses.asdict(self)
        cache = getattr(self, "cache", None)
        if isinstance(cache, Cache):
            fields["cache"] = cache.as_dict()
        elif cache is None:  # as manifests were before there were approximate caches
            fields.pop("cache", None)
        return fields


DECODINGS: dict[str, type[Decoding]] = {}
"""Every decoding by its name in Python, which manifests hold."""
WORDS: dict[str, str] = {}
"""The same by their words on the command line: low-confidence is LowConfidence."""

_Kind = TypeVar("_Kind", bound=type[Decoding])


def register_decoding(word: str) -> Callable[[_Kind], _Kind]:
    """Make a decoding known to Python, manifests and the command line, where it is `word`."""

    def register(kind: _Kind) -> _Kind:
        if kind.__name__ in DECODINGS or word in WORDS:
            raise SpecError(
                f"there is a decoding {kind.__name__}, {word} already: name it otherwise"
            )
        kind.word = word
        DECODINGS[kind.__name__] = kind
        WORDS[word] = kind.__name__
        return kind

    return register


@dataclass(frozen=True)
class Blocks(Decoding):
    """Decodings that may open the answer block by block, left to right."""

    _: KW_ONLY
    block: int | None = None
    """Positions in a block; None is one block as long as the answer."""
    cache: Cache | None = None
    """One of `aw.caches`: keys and values that are kept between passes, which is approximate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "cache", as_cache(self.cache))  # a manifest holds a mapping
        check_whole("block", self.block, optional=True)
        if self.length is not None and self.block is not None and self.length % self.block:
            raise SpecError(
                f"block={self.block} does not divide length={self.length}: "
                f"use one of {_list_divisors(self.length)}"
            )

    @property
    def num_blocks(self) -> int:
        """Blocks in an answer of known length."""
        return 1 if self.block is None or self.length is None else self.length // self.block


@dataclass(frozen=True)
class EvenSteps(Blocks):
    """LLaDA's schedule: a fixed number of steps, commits spread evenly, the remainder first."""

    steps: int | None = None
    """Forward passes over the whole answer; None is one commit each."""
    _: KW_ONLY
    guidance: float = 0.0
    """Classifier-free guidance scale: 0 is off; the second branch sees the prompt masked."""
    forbid_end: bool = False
    """Never choose an end token (LLaDA's `logits_eos_inf`)."""
    defer_end: bool = False
    """Commit end tokens only after all others (LLaDA's `confidence_eos_eot_inf`, as meant)."""

    fixed_counts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("steps", self.steps, optional=True)
        check_number("guidance", self.guidance, at_least=0.0)
        if self.steps is not None and self.steps % self.num_blocks:
            raise SpecError(
                f"steps={self.steps} do not divide over {self.num_blocks} blocks of {self.block}: "
                f"use a multiple of {self.num_blocks}, "
                f"for example {_nearest_multiple(self.steps, self.num_blocks)}"
            )

    @property
    def steps_per_block(self) -> int:
        """Forward passes a block gets."""
        # Without steps every position has its own pass.
        total = self.length if self.steps is None else self.steps
        assert total is not None, "for_length() comes first"
        return total // self.num_blocks

    def plan_steps(self, sequence: SequenceState) -> Iterator[StepPlan]:
        for within, reached in sequence.split_blocks(self.block):
            masked = int((sequence.masked & within).sum())
            for count in even_counts(masked, self.steps_per_block):
                yield StepPlan(open=sequence.masked & reached, count=count)

    def choose(self, sequence: SequenceState, plan: StepPlan, logits: torch.Tensor) -> Choice:
        if self.forbid_end and sequence.end_ids:
            logits = sequence.forbid_tokens(logits, sequence.end_ids)
        # A token for each open position first, then who of them is committed.
        positions = plan.open_positions
        tokens, margin = sequence.gumbel_argmax(logits, positions, self.temperature)
        confidence = self.rank_positions(sequence, logits, positions, tokens)
        if self.defer_end and sequence.end_ids:
            # Probabilities are at most 1: end tokens rank after all others.
            confidence = confidence - 2.0 * sequence.is_end(tokens)
        return take_surest(plan, confidence, tokens, margin)

    def rank_positions(
        self,
        sequence: SequenceState,
        logits: torch.Tensor,
        positions: torch.Tensor,
        tokens: torch.Tensor,
    ) -> torch.Tensor:
        """[N] numbers by which open positions are committed, the greatest first."""
        raise SpecError(f"no policy is known for {type(self).__name__}")


@register_decoding("low-confidence")
@dataclass(frozen=True)
class LowConfidence(EvenSteps):
    """LLaDA's generate: every step commits the positions it is surest of.

    >>> LowConfidence(length=32, steps=16, block=8).num_blocks
    4
    """

    def rank_positions(
        self,
        sequence: SequenceState,
        logits: torch.Tensor,
        positions: torch.Tensor,
        tokens: torch.Tensor,
    ) -> torch.Tensor:
        return logits[positions].softmax(dim=-1).gather(-1, tokens[:, None])[:, 0]


@register_decoding("random")
@dataclass(frozen=True)
class RandomOrder(EvenSteps):
    """LLaDA's random remasking: every step commits positions drawn at random."""

    @property
    def draws(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.defer_end:
            raise SpecError(
                "defer_end ranks by confidence and RandomOrder does not: use LowConfidence"
            )

    def rank_positions(
        self,
        sequence: SequenceState,
        logits: torch.Tensor,
        positions: torch.Tensor,
        tokens: torch.Tensor,
    ) -> torch.Tensor:
        return sequence.draw_uniform((1, len(logits)))[0, positions]  # of all rows, as upstream


@register_decoding("dream")
@dataclass(frozen=True)
class DreamOrder(Decoding):
    """Dream's diffusion_generate: a noise schedule from t=1 to eps, and one of its four orders."""

    steps: int | None = None
    """Forward passes; None is one for each position."""
    _: KW_ONLY
    algorithm: DreamAlgorithm = "origin"
    """origin (each position by chance), maskgit_plus (top probability), topk_margin, entropy."""
    eps: float = 1e-3
    """Diffusion time of the last step."""
    top_p: float | None = None
    """Keep the likeliest tokens up to this mass."""
    top_k: int | None = None
    """Keep this many likeliest tokens."""
    algorithm_temperature: float | None = None
    """Above 0, positions are drawn by softmax(confidence / this) instead of taken from the top."""

    @property
    def draws(self) -> bool:
        return super().draws or self.algorithm == "origin" or bool(self.algorithm_temperature)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("steps", self.steps, optional=True)
        check_word("algorithm", self.algorithm, get_args(DreamAlgorithm))
        check_number("eps", self.eps, above=0.0, below=1.0)
        check_top(self.top_p, self.top_k)
        if self.algorithm_temperature is not None:
            _check_temperature("algorithm_temperature", self.algorithm_temperature)

    def plan_steps(self, sequence: SequenceState) -> Iterator[StepPlan]:
        # From t to s a masked position is committed with probability 1 - s / t.
        steps = len(sequence.answer) if self.steps is None else self.steps
        times = sequence.diffusion_times(steps, self.eps)
        for step in range(steps):
            masked = sequence.masked
            left = masked.sum().float().cpu()
            share = 1 - times[step + 1] / times[step]  # float32, as the authors' code has it
            last = step == steps - 1
            # The last step commits all that is left.
            if self.algorithm == "origin":
                yield StepPlan(open=masked, chance=1.0 if last else float(share))
            else:
                yield StepPlan(open=masked, count=int(left) if last else int(left * share))

    def choose(self, sequence: SequenceState, plan: StepPlan, logits: torch.Tensor) -> Choice:
        # 1. Who is considered: all open positions, or under "origin" each by chance.
        positions = plan.open_positions
        if plan.chance is not None:
            positions = positions[sequence.draw_uniform((len(positions),)) < plan.chance]
        # 2. A token for each.
        probabilities = sequence.token_probabilities(
            logits[positions], self.temperature, self.top_p, self.top_k
        )
        tokens, margin = sequence.sample(probabilities, self.temperature)
        # 3. Who is committed: by chance all of them, else the surest or a weighted draw.
        if plan.chance is not None:
            if plan.withheld is not None:
                kept = ~plan.withheld[positions]
                positions, tokens, margin = positions[kept], tokens[kept], margin[kept]
            narrow = int((margin < narrow_margin(logits.dtype)).sum())
            return Choice(positions=positions, tokens=tokens, narrow=narrow)
        confidence = position_confidence(self.algorithm, probabilities, tokens)
        if not self.algorithm_temperature or not (plan.count or plan.forced):
            return take_surest(plan, confidence, tokens, margin)
        return self._draw_positions(sequence, plan, confidence, tokens, margin)

    def _draw_positions(
        self,
        sequence: SequenceState,
        plan: StepPlan,
        confidence: torch.Tensor,
        tokens: torch.Tensor,
        margin: torch.Tensor,
    ) -> Choice:
        """Positions drawn by softmax(confidence / temperature), as many as have any weight.

        Dream asks multinomial for more than that and then gets closed positions, the prompt's too;
        here the rest are the surest of those left.
        """
        assert self.algorithm_temperature is not None and plan.count is not None
        # 1. Draw without replacement, over the whole canvas as upstream does.
        row = plan.spread(confidence)
        weights = (row / self.algorithm_temperature).softmax(dim=-1)
        possible = int((weights > 0).sum())
        if plan.withheld is None:
            drawn = weights.multinomial(min(plan.count, possible), generator=sequence.generator)
        else:
            # All are drawn, withheld ones too: the others come in the order they would have had.
            drawn = weights.multinomial(possible, generator=sequence.generator)
            row[plan.withheld] = -math.inf
            drawn = drawn[~plan.withheld[drawn]][: plan.count]
        # 2. The surest of the others fill what is missing.
        row[drawn] = -math.inf
        positions = drawn.new_empty(plan.count)
        positions[: len(drawn)] = drawn
        positions[len(drawn) :] = row.topk(plan.count - len(drawn)).indices
        chosen = plan.index_among_open(positions)
        narrow = int((margin[chosen] < narrow_margin(confidence.dtype)).sum())
        return Choice(positions=positions, tokens=tokens[chosen], narrow=narrow)


@register_decoding("threshold")
@dataclass(frozen=True)
class Threshold(Blocks):
    """Fast-dLLM's rule: commit every position surer than a threshold, and always the surest one."""

    _: KW_ONLY
    threshold: float = 0.9
    """Confidence that is enough to commit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("threshold", self.threshold, above=0.0, at_most=1.0)

    @property
    def patience(self) -> int:
        """Steps in a block that may write nothing before it is left; chance may help, cold not."""
        return 4 if self.temperature > 0 else 1

    @property
    def num_passes(self) -> int:
        return super().num_passes + self.patience * self.num_blocks

    def plan_steps(self, sequence: SequenceState) -> Iterator[StepPlan]:
        # 1. Block by block, each until it is written; a delayed position does not keep it open.
        late = everything = sequence.masked & False
        for number, (within, reached) in enumerate(sequence.split_blocks(self.block), start=1):
            yield from self._plan_block(sequence, within, reached, self.num_blocks - number)
            late = late | (within & sequence.masked & ~sequence.committable)
            everything = reached
        # 2. What was delayed in any of them, at the end.
        if bool(late.any()):
            yield from self._plan_block(sequence, late, everything, 0, waits=True)

    def _plan_block(
        self,
        sequence: SequenceState,
        within: torch.Tensor,
        reached: torch.Tensor,
        blocks_left: int,
        waits: bool = False,
    ) -> Iterator[StepPlan]:
        """Plans until `within` is written (or delayed), leaving passes for the blocks left."""
        idle = 0
        while idle < self.patience and sequence.step < self.num_passes:
            pending = sequence.masked if waits else sequence.committable
            if not bool((pending & within).any()):
                return
            before = int(sequence.masked.sum())
            kept_back = sequence.is_frozen or not bool((sequence.committable & within).any())
            least = self._least_commits(sequence, within, blocks_left)
            yield StepPlan(open=sequence.masked & reached, count=least)
            # The model may choose the mask id itself: then nothing was written, and at
            # temperature 0 nothing ever would be.
            idle += int(sequence.masked.sum()) == before and not kept_back

    def _least_commits(
        self, sequence: SequenceState, within: torch.Tensor, blocks_left: int
    ) -> int | None:
        """Commits that a step owes, after passes were spent waiting; None where it owes none."""
        if sequence.constraints is None:
            return None
        steps = range(sequence.step, self.num_passes)
        passes = sum(step not in sequence.constraints.frozen for step in steps)
        delayed = bool((sequence.masked & ~sequence.committable).any())
        waiting = int((sequence.committable & within).sum())
        owed = waiting - (passes - blocks_left - delayed) + 1
        return owed if owed > 1 else None

    def choose(self, sequence: SequenceState, plan: StepPlan, logits: torch.Tensor) -> Choice:
        # 1. A token and a confidence for every open position.
        positions = plan.open_positions
        tokens, gap = sequence.gumbel_argmax(logits, positions, self.temperature)
        confidence = logits[positions].double().softmax(dim=-1).gather(-1, tokens[:, None])[:, 0]
        if plan.withheld is not None:
            confidence = confidence.masked_fill(plan.withheld[positions], -math.inf)
        # 2. All above the threshold, and always the surest ones that the step owes.
        enough = confidence >= self.threshold
        least = plan.count or int(not plan.forced)
        if plan.count:
            enough[confidence.topk(min(least, len(confidence))).indices] = True
        elif least:
            enough[confidence.argmax()] = True
        enough &= confidence > -math.inf
        # 3. Near-ties: with the threshold, between two tokens, between two positions.
        margin = narrow_margin(logits.dtype)
        near = (confidence - self.threshold).abs() < margin
        narrow = int((near | (enough & (gap < margin))).sum())
        best = confidence.topk(min(least + 1, len(confidence))).values
        if 0 < least < len(best) and best[-2] < self.threshold:  # only the surest were taken
            narrow += int(best[-2] - best[-1] < margin)
        return Choice(positions=positions[enough], tokens=tokens[enough], narrow=narrow)


@register_decoding("left-to-right")
@dataclass(frozen=True)
class LeftToRight(Decoding):
    """Autoregression: one position after another, each predicted by what stands before it."""

    _: KW_ONLY
    top_p: float | None = None
    """Keep the likeliest tokens up to this mass."""
    top_k: int | None = None
    """Keep this many likeliest tokens."""
    cache: bool = True
    """Keep keys and values between steps; without it every step reads the whole text again."""
    stop: bool = True
    """Stop after an end token, as transformers' generate does."""

    writes: ClassVar[Literal["masked", "absent"]] = "absent"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_top(self.top_p, self.top_k)

    def plan_steps(self, sequence: SequenceState) -> Iterator[StepPlan]:
        for position in sequence.answer.tolist():
            # The canvas ends before the position: it is one longer after the step.
            next_only = sequence.canvas.new_zeros(position + 1).bool()
            next_only[position] = True
            yield StepPlan(open=next_only, count=1)
            if self.stop and int(sequence.canvas[-1]) in sequence.eos_ids:
                return

    def choose(self, sequence: SequenceState, plan: StepPlan, logits: torch.Tensor) -> Choice:
        positions, last = plan.open_positions, logits[-1:]
        if self.temperature == 0:
            tokens, margin = sequence.gumbel_argmax(last, positions * 0, 0.0)
        else:
            probabilities = sequence.token_probabilities(
                last, self.temperature, self.top_p, self.top_k
            )
            tokens, margin = sequence.sample(probabilities, self.temperature)
        narrow = int(margin[0] < narrow_margin(logits.dtype))
        return Choice(positions=positions, tokens=tokens, narrow=narrow)


def from_dict(fields: Mapping[str, Any]) -> Decoding:
    """The decoding a manifest describes; the inverse of `as_dict`."""
    rest = dict(fields)
    name = rest.pop("name", None)
    kinds = DECODINGS | {"Observe": Observe}  # which nobody writes with
    if name not in kinds:
        raise SpecError(f"no decoding is called {name!r}: expected one of {', '.join(DECODINGS)}")
    known = {field.name for field in dataclasses.fields(kinds[name])}
    if unknown := sorted(set(rest) - known):
        raise SpecError(f"{name} has no {', '.join(unknown)}: it takes {', '.join(sorted(known))}")
    return kinds[name](**rest)


def take_surest(
    plan: StepPlan, confidence: torch.Tensor, tokens: torch.Tensor, margin: torch.Tensor
) -> Choice:
    """The `plan.count` surest open positions; the tensors are [N], of open positions in order."""
    count, row = plan.count or 0, plan.spread(confidence)
    able = len(confidence)
    if plan.withheld is not None:
        row[plan.withheld] = -math.inf
        able -= int(plan.withheld.sum())
    # topk over the whole row, as upstream: which of two equal positions wins depends on its length.
    positions = row.topk(count).indices
    chosen = plan.index_among_open(positions)
    smallest = narrow_margin(confidence.dtype)
    narrow = int((margin[chosen] < smallest).sum())
    if 0 < count < able:
        edge = row.topk(count + 1).values  # the last position that is taken, the first that is not
        narrow += int(edge[-2] - edge[-1] < smallest)
    return Choice(positions=positions, tokens=tokens[chosen], narrow=narrow)


def position_confidence(
    algorithm: str, probabilities: torch.Tensor, tokens: torch.Tensor
) -> torch.Tensor:
    """[N] how sure the model is, in the way that one of Dream's algorithms names."""
    if algorithm == "topk_margin":
        best = probabilities.sort(dim=-1, descending=True).values
        return best[:, 0] - best[:, 1]
    # The negative entropy: the surest is the greatest. 1e-10 as in the authors' code.
    if algorithm == "entropy":
        return (probabilities * (probabilities + 1e-10).log()).sum(dim=-1)
    return probabilities.gather(-1, tokens[:, None])[:, 0]


def even_counts(positions: int, steps: int) -> list[int]:
    """Commits at each step: as even as can be, the remainder to the first steps.

    >>> even_counts(8, 3)
    [3, 3, 2]
    """
    # LLaDA gives the remainder to the first steps.
    base, remainder = divmod(positions, steps)
    return [base + (step < remainder) for step in range(steps)]


def check_whole(name: str, value: object, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(f"{name}={value!r:.60} is not a whole number of at least 1")
    if value > MOST:
        raise SpecError(f"{name} is {spell_count(value)}: say at most {MOST:,}, and 64 for example")


def check_number(
    name: str,
    value: object,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
    below: float = math.inf,
) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and at_least <= value < math.inf and above < value <= at_most and value < below:  # type: ignore[operator]
        return
    wanted = [f"at least {at_least:g}"] if at_least > -math.inf else []
    wanted += [f"above {above:g}"] if above > -math.inf else []
    wanted += [f"at most {at_most:g}"] if at_most < math.inf else []
    wanted += [f"below {below:g}"] if below < math.inf else []
    raise SpecError(f"{name}={value!r} is not a finite number {' and '.join(wanted)}")


def _check_temperature(name: str, value: object) -> None:
    check_number(name, value, at_least=0.0)
    if 0 < value < COLDEST:  # type: ignore[operator]
        raise SpecError(
            f"{name}={value!r} is too cold to divide by: use 0, or at least {COLDEST:g}"
        )


def check_word(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SpecError(f"{name}={value!r} is unknown: expected one of {', '.join(choices)}")


def check_top(top_p: float | None, top_k: int | None) -> None:
    if top_p is not None:
        check_number("top_p", top_p, above=0.0, at_most=1.0)
    check_whole("top_k", top_k, optional=True)


def _list_divisors(number: int) -> str:
    """All of them, or the small ones of a great number."""
    few = [str(d) for d in range(1, min(number, 4096) + 1) if number % d == 0]
    return ", ".join(few if number <= 4096 else [*few, "..."])


def _nearest_multiple(number: int, step: int) -> int:
    return max(step, round(number / step) * step)


@dataclass(frozen=True)
class Observe(Decoding):
    """Write nothing: one forward pass over a text as it stands, which `aw.observe` measures."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature:
            raise SpecError("Observe writes nothing: leave temperature out")

    @property
    def num_passes(self) -> int:
        return 1

    def plan_steps(self, sequence: SequenceState) -> Iterator[StepPlan]:
        yield StepPlan(open=sequence.masked & False, frozen=True)


def __getattr__(name: str) -> type[Decoding]:
    """Decodings that were registered outside of this file."""
    if name in DECODINGS:
        return DECODINGS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# They register their decodings. At the end, because they take their base classes from here.
from anchorwatch.generation import block_decoding as _block_decoding  # noqa: E402, F401
from anchorwatch.generation import dream_on as _dream_on  # noqa: E402, F401
