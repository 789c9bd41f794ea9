"""How likely a model finds an answer: exactly where it can, else by an estimate with its error.

An autoregressive model knows the likelihood of an answer in one pass. A diffusion model has a
bound, which `estimators` adds up from passes over the answer with some positions masked, or the
chain rule in one order. Chance is keyed by seed, prompt and answer: no estimate depends on its
batch mates, on the order of items, or on what else was drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch

from anchorwatch.edits.runtime import Editor, StepContext, active_additions
from anchorwatch.edits.spec import CanvasEdit, Edit, Oracle, Part, check_edits, parts_among
from anchorwatch.errors import PromptError, SpecError
from anchorwatch.evaluation.estimators import (
    Draws,
    Likelihood,
    chosen_method,
    draws,
    estimate,
    num_draws,
)
from anchorwatch.evaluation.pairs import ids_of
from anchorwatch.generation.loop import pad_left, view_of
from anchorwatch.generation.plan import edit_list, fields_of
from anchorwatch.generation.prepare import checked_seed, device_bytes
from anchorwatch.models.additions import PassAdditions, check_parts
from anchorwatch.models.attention import observe
from anchorwatch.models.model import Model
from anchorwatch.models.prompt_encoding import Prompt
from anchorwatch.probes.accumulate import TraceBuffer, View
from anchorwatch.trace import machine_limits as limits
from anchorwatch.trace.progress_bar import Progress
from anchorwatch.trace.schema import RunShape

BATCH = 32
"""Rows of a pass unless it is told otherwise, or fewer where their logits would not fit."""

_DRAW_BYTES = 64
"""At least what a draw takes beside its masks: its weight and its share of a replicate's arrays."""
_LOGITS = 2**28
"""Numbers that the logits of one pass may hold: 1 GB."""


def loglikelihood(
    model: Model,
    prompt: Prompt,
    answer: str | Sequence[int],
    *,
    method: str | None = None,
    passes: int = 128,
    guidance: float = 0.0,
    seed: int = 0,
    batch: int | None = None,
    edits: Sequence[Edit] = (),
) -> Likelihood:
    """The log-likelihood of `answer` after `prompt`, in nats.

    Args:
        model: as `aw.load` gives it.
        prompt: text, token ids or chat messages; empty is the model's start token, or nothing.
        answer: text as it follows the prompt (with its space), or token ids.
        method: "exact" is the only one for autoregression; for diffusion it is the bound with every
            set of positions masked once. "counts" and "monte_carlo" estimate that bound, the first
            with far less noise; "inverse_t" does so by the published weights 1/t, whose errors
            cannot be trusted. "chain" writes left to right, "pseudo" masks one token at a time.
            The default is exact where `passes` are enough for it, else counts.
        passes: draws at most, of methods that draw or enumerate; errors are calibrated from 64 on.
            chain and pseudo take one for each token.
        guidance: classifier-free guidance scale; the second branch sees the prompt masked.
        seed: where chance begins.
        batch: rows that share a forward pass.
        edits: what to change inside attention; one pass has no steps and nothing before it.

    >>> from anchorwatch.models.load import load
    >>> found = loglikelihood(load("tiny/llada"), "Lena was born in", " Oslo")
    >>> found.method, found.passes, found.standard_error
    ('exact', 1, 0.0)
    """
    pairs = [(prompt, answer)]
    how = Scoring(method, passes, guidance, seed, edits)
    return score(model, pairs, how, batch)[0]


def loglikelihoods(
    model: Model,
    pairs: Iterable[tuple[Prompt, str | Sequence[int]]],
    *,
    method: str | None = None,
    passes: int = 128,
    guidance: float = 0.0,
    seed: int = 0,
    batch: int | None = None,
    edits: Sequence[Edit] = (),
) -> list[Likelihood]:
    """`loglikelihood` of many (prompt, answer), in their order; rows of all of them share passes.

    Each is what it would be alone, to rounding (1e-4).
    """
    return score(model, pairs, Scoring(method, passes, guidance, seed, edits), batch)


@dataclass(frozen=True)
class Scoring:
    """How answers are scored; the arguments of `loglikelihood` by the same names."""

    method: str | None = None
    passes: int = 128
    guidance: float = 0.0
    seed: int = 0
    edits: Sequence[Edit] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "edits", edit_list(self.edits))
        checked_seed(self.seed)
        _whole("passes", self.passes)
        chosen_method(self.method, "mdm", 1, self.passes)  # a name that is none
        number = isinstance(self.guidance, int | float) and not isinstance(self.guidance, bool)
        if not number or not 0 <= self.guidance < np.inf:
            raise SpecError(f"guidance={self.guidance!r} is not a finite number of at least 0")

    def suits(self, model: Model, lengths: Sequence[int]) -> None:
        """Refuse what cannot be asked of this model, whose shortest canvas decides for edits."""
        arm = model.family.kind == "arm"
        if arm and self.guidance:
            raise SpecError(
                f"{model.source} is autoregressive and cannot mask its prompt: leave guidance out"
            )
        for edit in self.edits:
            _without_steps(edit, arm)
        if self.edits and lengths:
            check_edits(self.edits, _shape(model, min(lengths)))
        check_parts(model, parts_among(self.edits))


def score(
    model: Model,
    pairs: Iterable[tuple[Prompt, str | Sequence[int]]],
    how: Scoring,
    batch: int | None = None,
) -> list[Likelihood]:
    """The likelihood of each (prompt, answer), in their order."""
    if batch is not None:
        _whole("batch", batch)
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise PromptError(
            "loglikelihoods takes a list of (prompt, answer): give [(prompt, answer)]"
        )
    items = [ids_of(model, place, pair) for place, pair in enumerate(pairs)]
    how.suits(model, [len(prompt) + len(answer) for prompt, answer in items])
    _refuse_too_many(model, [len(answer) for _, answer in items], how, batch)
    # Long ones first: rows that share a pass are then about equally long.
    order = sorted(range(len(items)), key=lambda i: -len(items[i][0]) - len(items[i][1]))
    works = (_work(model, i, items[i], how) for i in order)
    found: dict[int, Likelihood] = {}
    proven: set[tuple[int | Part, int]] = set()
    with Progress("scoring", total=len(items)) as bar:
        rows = _rows(works, found, how, bar)
        while group := list(islice(rows, 1)):
            group += islice(rows, _size(model, group[0].work, how, batch) - 1)
            _score(model, group, how, proven)
            for work in {id(row.work): row.work for row in group}.values():
                if not work.waiting:
                    found[work.place] = work.finished(how)
                    bar.advance()
    return [found[i] for i in range(len(items))]


@dataclass(eq=False)
class _Work:
    """One answer on its way."""

    place: int
    prompt: list[int]
    answer: list[int]
    method: str
    draws: Draws
    sets: np.ndarray
    """[set, position] bool: what is masked, each set once."""
    of: np.ndarray
    """[draw] the set of each draw."""
    logprobs: np.ndarray
    """[set, position]; 0 where a set masks nothing and needs no pass."""
    best: np.ndarray
    """[set, position] bool: whether the token is the likeliest."""
    key: tuple[int, ...]
    needed: list[int]
    """Sets that go through the network."""
    waiting: int
    """Those that have not been scored."""

    def finished(self, how: Scoring) -> Likelihood:
        value, error, each = estimate(self.draws, self.logprobs[self.of])
        in_order = self.method == "chain" or (self.draws.scored > self.draws.masked).any()
        greedy = bool(self.best[self.of][self.draws.scored].all()) if in_order else None
        return Likelihood(
            value=value,
            standard_error=error,
            method=self.method,
            passes=len(self.needed) * (2 if how.guidance else 1),
            per_token=tuple(each.tolist()),
            replicates=self.draws.replicates,
            greedy=greedy,
        )


@dataclass(frozen=True, eq=False)
class _Row:
    """One set of masked positions, about to be scored."""

    work: _Work
    at: int

    @property
    def progress(self) -> float:
        """Share of the answer that is shown."""
        return 1 - float(self.work.sets[self.at].mean())

    def canvas(self, mask_id: int | None) -> np.ndarray:
        answer = np.array(self.work.answer)
        if mask_id is not None:
            answer[self.work.sets[self.at]] = mask_id
        return np.concatenate([np.array(self.work.prompt, dtype=np.int64), answer])


def _refuse_too_many(model: Model, lengths: Sequence[int], how: Scoring, batch: int | None) -> None:
    """Refuse methods that do not suit, and more passes or rows than there can be."""
    kind, branches = model.family.kind, 2 if how.guidance else 1
    methods = [chosen_method(how.method, kind, length, how.passes) for length in lengths]
    rows = [
        1 if kind == "arm" else num_draws(method, length, how.passes)
        for method, length in zip(methods, lengths, strict=True)
    ]
    passes = branches * sum(rows)
    each = zip(lengths, rows, strict=True)
    held = max((count * (length + _DRAW_BYTES) for length, count in each), default=0)
    way = f"say passes={limits.at_most(how.passes, passes=passes, held=held)} at most"
    limits.refuse_passes(passes, way)
    limits.refuse_bytes(held, "the draws of one answer", way)
    if batch is not None and lengths:
        together = branches * min(batch, sum(rows))
        logits = together * max(lengths) * model.vocab_size * model.network.dtype.itemsize
        most = device_bytes(model)
        way = f"say batch={limits.at_most(together, held=logits, most=most)} at most"
        limits.refuse_bytes(logits, "the logits of one forward pass", way, most=most)


def _rows(
    works: Iterable[_Work], found: dict[int, Likelihood], how: Scoring, bar: Progress
) -> Iterator[_Row]:
    """The rows of all answers; one whose draws mask nothing needs none, and is found at once."""
    for work in works:
        if not work.needed:
            found[work.place] = work.finished(how)
            bar.advance()
        yield from (_Row(work, at) for at in work.needed)


def _work(model: Model, place: int, item: tuple[list[int], list[int]], how: Scoring) -> _Work:
    """What one answer takes; equal sets of masked positions are one row."""
    prompt, answer = item
    arm, length = model.family.kind == "arm", len(answer)
    method = chosen_method(how.method, model.family.kind, length, how.passes)
    said = hashlib.sha256(repr(item).encode()).digest()
    key = (how.seed, *(int(word) for word in np.frombuffer(said[:16], dtype="<u4")))
    if arm:  # nothing is masked and every token is scored
        ones = np.ones((1, length), dtype=bool)
        drawn = Draws(~ones, ones, np.ones(1), 0)
    else:
        drawn = draws(method, length, how.passes, key)
    sets, of = np.unique(drawn.masked, axis=0, return_inverse=True)
    needed = [at for at, masked in enumerate(sets) if arm or masked.any()]
    nothing = np.zeros(sets.shape)
    return _Work(
        *(place, prompt, answer, method, drawn, sets, of.reshape(-1)),
        *(nothing, nothing > 0, key, needed, len(needed)),
    )


def _score(
    model: Model, group: list[_Row], how: Scoring, proven: set[tuple[int | Part, int]]
) -> None:
    """One forward pass, and what it says about each row's answer."""
    last = max(len(row.work.answer) for row in group)
    logits = _logits(model, group, how, last, proven)
    if how.guidance:
        asked, blind = logits[0::2], logits[1::2]
        logits = blind + (how.guidance + 1) * (asked - blind)
    tokens = torch.zeros(len(group), last, dtype=torch.long)
    for i, row in enumerate(group):
        tokens[i, last - len(row.work.answer) :] = torch.tensor(row.work.answer)
    if int(tokens.max()) >= logits.shape[-1]:
        raise PromptError(
            f"the answer holds token {int(tokens.max())}, which {model.source} can read and not "
            f"write: it writes 0 to {logits.shape[-1] - 1}"
        )
    tokens = tokens.to(logits.device)
    best = (logits.argmax(dim=-1) == tokens).cpu().numpy()
    spread = torch.log_softmax(logits.float(), dim=-1).gather(-1, tokens[..., None])[..., 0]
    logprobs = spread.double().cpu().numpy()
    for i, row in enumerate(group):
        mine = slice(last - len(row.work.answer), None)
        row.work.logprobs[row.at], row.work.best[row.at] = logprobs[i, mine], best[i, mine]
        row.work.waiting -= 1


def _logits(
    model: Model, group: list[_Row], how: Scoring, last: int, proven: set[tuple[int | Part, int]]
) -> torch.Tensor:
    """[row, last, V] about the last positions; with guidance each row's blind branch after it."""
    arm, mask_id = model.family.kind == "arm", model.specials.mask_id
    canvases: list[np.ndarray] = []
    owners: list[tuple[int, str]] = []
    for i, row in enumerate(group):
        canvas = row.canvas(mask_id)
        canvases.append(canvas[:-1] if arm else canvas)  # nobody reads the last token
        owners.append((i, ""))
        if how.guidance:
            blind = canvas.copy()
            blind[: len(row.work.prompt)] = mask_id
            canvases.append(blind)
            owners.append((i, "blind_"))
    ids, padding = pad_left(
        [torch.tensor(one, device=model.device) for one in canvases], model.specials.pad_id
    )
    clocks = [(0, group[i].progress) for i, _ in owners]
    dress = active_additions(model, how.edits, clocks, [len(one) for one in canvases])
    with ExitStack() as stack:
        if how.edits or model.parts:
            shapes = [_shape(model, len(canvas)) for canvas in canvases]
            buffers = [TraceBuffer(fields_of((), shape, how.edits), shape) for shape in shapes]
            editor = Editor(model, how.edits, buffers[:: 2 if how.guidance else 1], proven)
            views = _views(dress, canvases, owners)
            standing = {i: _step_context(model, editor, row) for i, row in enumerate(group)}
            stack.enter_context(editor.edit_pass(views, standing, dress))
            stack.enter_context(observe(None, editor))
        if arm:
            return model.extend(ids, padding=padding, parts=dress or (), rows=last)[0]
        return model.logits(ids, padding=padding, parts=dress or (), last=last)


def _views(
    dress: PassAdditions | None, canvases: list[np.ndarray], owners: list[tuple[int, str]]
) -> list[View]:
    """Where each canvas lies in the rows of a pass."""
    longest = max(map(len, canvases))
    return [
        replace(view_of(job, branch, longest - len(canvas), len(canvas), dress), row=place)
        for place, ((job, branch), canvas) in enumerate(zip(owners, canvases, strict=True))
    ]


def _step_context(model: Model, editor: Editor, row: _Row) -> StepContext:
    """What edits need to know of a row; chance goes by what is masked, so equal rows are equal."""
    canvas, masked = row.canvas(model.specials.mask_id), row.work.sets[row.at]
    answer = np.arange(len(canvas)) >= len(row.work.prompt)
    waits = np.concatenate([np.zeros(len(row.work.prompt), dtype=bool), masked])
    members = {"all": answer | True, "masked": waits, "written": answer & ~waits}
    members["prompt"] = ~answer
    said = hashlib.sha256(repr((row.work.key, masked.tolist())).encode()).digest()
    return StepContext(
        progress=row.progress,
        members={group: members[group] for group in editor.groups},
        classes=editor.token_classes(canvas),
        seed=int.from_bytes(said[:8], "big") >> 1,
        known_keys=None,
    )


def _without_steps(edit: Edit, arm: bool) -> None:
    """Refuse edits that speak of steps: a likelihood is passes that know nothing of each other."""
    if isinstance(edit, CanvasEdit):
        raise SpecError(
            f"{edit!r} changes what is written and a likelihood writes nothing: give the prompt or "
            "the answer as they are to be"
        )
    if edit.steps is not None:
        raise SpecError(
            f"{edit!r} acts at steps and a likelihood has none: leave steps out, or say "
            "progress=(0.0, 0.5)"
        )
    if getattr(edit, "remembers", False) or isinstance(getattr(edit, "unedited", None), Oracle):
        raise SpecError(
            f"{edit!r} decides by another pass and a likelihood has none before it: "
            "use detect='same_shadow'"
        )
    if arm and edit.progress is not None:
        raise SpecError(
            f"{edit!r} goes by progress, and one pass of autoregression scores the whole answer: "
            "leave progress out"
        )


def _shape(model: Model, positions: int) -> RunShape:
    heads = model.num_layers, model.num_heads, model.num_kv_heads
    return RunShape(1, *heads, positions)


def _size(model: Model, longest: _Work, how: Scoring, batch: int | None) -> int:
    """How many sets share a pass, the longest canvas being the first."""
    room = max(1, _LOGITS // (len(longest.answer) * model.vocab_size))
    rows = min(BATCH, room) if batch is None else batch
    return max(1, rows // (2 if how.guidance else 1))


def _whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise SpecError(f"{name}={value!r} is not a whole number of at least 1")
