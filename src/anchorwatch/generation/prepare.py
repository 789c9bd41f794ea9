"""From a request to a run that may begin: everything that can be checked before the first pass.

A `RunRequest` is what the user gave; `prepare_run` checks it against the model, `start_run` makes
the `RunState` that the loop takes on.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch

from anchorwatch.edits.spec import CanvasEdit, Edit, additions_among, check_canvas, check_edits
from anchorwatch.errors import AnchorwatchWarning, PromptError, SpecError
from anchorwatch.generation.block_decoding import BlockDiffusion
from anchorwatch.generation.caches import approximate_cache, plan_rows
from anchorwatch.generation.canvas_editor import run_limits
from anchorwatch.generation.decoding import Decoding, LeftToRight, LowConfidence, Observe
from anchorwatch.generation.loop import RunState, shape_of, start_sequence
from anchorwatch.generation.plan import BUDGET_BYTES, Plan, fields_of
from anchorwatch.models.additions import check_parts
from anchorwatch.models.model import Model
from anchorwatch.models.prompt_encoding import Prompt, misfits
from anchorwatch.probes.accumulate import TraceBuffer
from anchorwatch.probes.spec import Probe
from anchorwatch.trace import machine_limits as limits
from anchorwatch.trace.regions import Regions, Spans, find_regions
from anchorwatch.trace.schema import RunShape
from anchorwatch.trace.trace import MISSING

Ids = Sequence[int] | np.ndarray | torch.Tensor

DEFAULT_LENGTH = 64
_STEP_BYTES = 512
"""At least what a step takes beside its frame: five arrays and what holds them."""
_RANDOM_BYTES = 5_000
"""A generator, which a step keeps where its decoding draws."""
RUN_BYTES = 8_000
"""At least what a run takes before it begins: its generator, its tensors and its records."""


@dataclass(frozen=True)
class RunRequest:
    """What a run starts from: a prompt or a canvas, the prompt's regions, and the edits."""

    prompt: Prompt | None = None
    canvas: Ids | None = None
    regions: Spans | None = None
    edits: tuple[Edit, ...] = ()


def start_runs(
    model: Model,
    requests: Sequence[RunRequest],
    decoding: Decoding | None,
    seeds: Iterable[int],
    probes: Sequence[Probe] = (),
    budget: int = BUDGET_BYTES,
) -> list[RunState]:
    """Runs about to begin, all of them checked, and within the budget together."""
    ready = [prepare_run(model, request, decoding) for request in requests]
    plan_runs(ready, probes).within(budget)
    return [
        _start(model, prepared, probes, checked_seed(seed))
        for prepared, seed in zip(ready, seeds, strict=True)
    ]


def start_run(
    model: Model,
    request: RunRequest,
    decoding: Decoding | None,
    probes: Sequence[Probe],
    seed: int,
    budget: int,
    block: int | None = None,
) -> RunState:
    """A run about to begin, checked and within the budget."""
    seed, ready = checked_seed(seed), prepare_run(model, request, decoding)
    plan_runs([ready], probes).within(budget, block)
    return _start(model, ready, probes, seed, block)


@dataclass(frozen=True)
class _PreparedRun:
    """A run that has been checked and has not begun."""

    first_frame: np.ndarray
    """[T] ids; the mask id, or -1 in autoregression, where the run is to write."""
    answer: np.ndarray
    decoding: Decoding
    regions: Regions
    shape: RunShape
    edits: tuple[Edit, ...]


def prepare_run(model: Model, request: RunRequest, decoding: Decoding | None) -> _PreparedRun:
    """Check everything that can be checked before the first forward pass."""
    # 1. A prompt gets an answer appended; a canvas has its masks filled.
    prompt, canvas = request.prompt, request.canvas
    if (prompt is None) == (canvas is None):
        raise PromptError(
            "give either a prompt (an answer is appended) or a canvas (its masks are filled)"
        )
    decoding = decoding or _default(model, infill=canvas is not None)
    _check_kind(model, decoding)
    if isinstance(decoding, Observe):
        raise SpecError("Observe writes nothing: say aw.observe(model, text)")
    decoding = decoding.for_model(model.block)
    if prompt is not None:
        first, answer = _append_answer(model, prompt, decoding)
    else:
        first, answer = _infill_canvas(model, canvas, decoding)
    # 2. From here on the length is known, and with it every size of the run.
    decoding = decoding.for_canvas(len(first), answer.tolist())
    _check_blockwise(model, decoding, request.edits)
    _check_cache(model, decoding, request.edits)
    _check_last_row(model, request.edits)
    regions = find_regions(request.regions, prompt, model, first, answer)
    shape = shape_of(model, decoding, len(first), regions.names, request.edits)
    # 3. Edits of attention, additions to the network and edits of the canvas have their own checks.
    check_edits(request.edits, shape)
    check_parts(model, additions_among(request.edits))
    check_canvas(request.edits, run_limits(model, decoding, len(first), answer))
    return _PreparedRun(first, answer, decoding, regions, shape, request.edits)


def start_observation(
    model: Model, request: RunRequest, probes: Sequence[Probe], budget: int
) -> RunState:
    """A run over a finished text that writes nothing; the whole text is its answer."""
    if request.prompt is None:
        raise PromptError("there is no text to observe: give text, token ids or chat messages")
    # 1. The text as it stands; masks in it stay masks.
    ids = np.asarray(model.encode(request.prompt))
    answer, decoding = np.arange(len(ids)), Observe(length=len(ids))
    _refuse_too_large(model, decoding, 0, len(ids))
    # 2. The checks of any run.
    nothing = np.empty(0, dtype=np.int64)  # regions are of what is given, here everything
    regions = find_regions(request.regions, request.prompt, model, ids, nothing)
    shape = shape_of(model, decoding, len(ids), regions.names, request.edits)
    check_edits(request.edits, shape)
    check_parts(model, additions_among(request.edits))
    ready = _PreparedRun(ids, answer, decoding, regions, shape, request.edits)
    plan_runs([ready], probes).within(budget)
    return _start(model, ready, probes, seed=0)


def _start(
    model: Model,
    ready: _PreparedRun,
    probes: Sequence[Probe],
    seed: int,
    block: int | None = None,
) -> RunState:
    fields = fields_of(probes, ready.shape, ready.edits)
    return RunState(
        start_sequence(model, ready.first_frame, ready.answer, seed),
        ready.decoding,
        seed,
        ready.first_frame,
        steps=[],
        regions=ready.regions,
        buffer=TraceBuffer(fields, ready.shape, block),
        edits=ready.edits,
    )


def plan_runs(ready: Sequence[_PreparedRun], probes: Sequence[Probe]) -> Plan:
    """One plan of runs that are held together."""
    if len(ready) > 1:
        passes = sum(prepared.decoding.num_passes for prepared in ready)
        limits.refuse_passes(passes, "give fewer prompts, or fewer steps")
    fields = [
        field
        for prepared in ready
        for field in fields_of(probes, prepared.shape, prepared.edits).values()
    ]
    passes = sum(prepared.decoding.num_passes for prepared in ready)
    caches = [approximate_cache(prepared.decoding) for prepared in ready]
    if not caches or caches[0] is None:
        return Plan(passes, tuple(fields))
    rows = sum(
        plan_rows(prepared.decoding, len(prepared.first_frame), prepared.answer)
        for prepared in ready
    )
    return Plan(passes, tuple(fields), rows, caches[0].as_word())


def prompt_list(prompts: Any, taker: str) -> list[Prompt]:
    """Several prompts; one alone is refused, which would be taken letter by letter."""
    # A string is a sequence of letters: it would run as that many prompts.
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Iterable):
        raise PromptError(f"{taker} takes a list of prompts: give [prompt], or use run")
    return list(prompts)


def rows_at_once(model: Model, batch: Any) -> int:
    """How many runs share a forward pass; on a CPU one, unless `batch` is given."""
    # On a CPU each run alone: its rows are then equal to a single run's bit for bit.
    size = batch if batch is not None else (1 if model.device.type == "cpu" else 8)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise SpecError(f"batch={batch!r} is not a whole number of at least 1")
    return size


def checked_seed(seed: Any) -> int:
    """A seed that torch takes, or a refusal."""
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise SpecError(f"seed={seed!r} is not a whole number from 0 to 2**63 - 1")
    return int(seed)


def expand_seeds(seed: Any, count: int) -> list[int]:
    """The seeds of several prompts: seed + i, or a list of as many."""
    if not isinstance(seed, Sequence) or isinstance(seed, str):
        return [checked_seed(checked_seed(seed) + i) for i in range(count)]
    if len(seed) != count:
        raise SpecError(f"there are {count} prompts and {len(seed)} seeds: give one for each")
    # A list gives each prompt its own seed, whatever its position in the list.
    return [checked_seed(number) for number in seed]


def regions_for_each(regions: Any, count: int) -> list[Spans | None]:
    """The regions of each of several prompts: one mapping for all, or a list of as many."""
    if regions is None or isinstance(regions, Mapping):
        return [regions] * count
    mappings = list(regions) if isinstance(regions, Sequence) else [regions]
    if len(mappings) != count:
        raise SpecError(
            f"there are {count} prompts and {len(mappings)} regions: "
            "give a mapping for each, or one"
        )
    # Rows of one pass share the group axis of their statistics.
    if len({tuple(spans) if isinstance(spans, Mapping) else None for spans in mappings}) > 1:
        raise SpecError("prompts that run together have the same region names, in the same order")
    return mappings


def _default(model: Model, *, infill: bool) -> Decoding:
    if model.family.kind == "arm":
        return LeftToRight(length=DEFAULT_LENGTH)
    if infill:
        return LowConfidence()
    if model.block is not None:  # in blocks of the canvas, as the model was trained
        return BlockDiffusion(length=DEFAULT_LENGTH)
    return LowConfidence(length=DEFAULT_LENGTH)


def check_decoding(model: Model, decoding: Decoding) -> None:
    """Refuse a decoding that this model cannot run, whatever the prompt."""
    _check_kind(model, decoding)
    fitted = decoding.for_model(model.block)
    _check_blockwise(model, fitted, ())
    _check_cache(model, fitted, ())


def _check_kind(model: Model, decoding: Decoding) -> None:
    if not isinstance(decoding, Decoding):
        raise SpecError(
            f"decoding={decoding!r} is not one of aw.decoding: for example LowConfidence(length=64)"
        )
    name = type(decoding).__name__
    if getattr(decoding, "forbid_end", False) and not model.specials.end_ids:
        raise SpecError(f"{model.source} names no end token to forbid: leave forbid_end out")
    if getattr(decoding, "defer_end", False) and not model.specials.end_ids:
        raise SpecError(f"{model.source} names no end token to defer: leave defer_end out")
    if model.family.kind == "arm" and decoding.writes == "masked":
        raise SpecError(
            f"{name} fills masks and {model.source} is autoregressive: use LeftToRight(length=...)"
        )
    if model.family.kind == "mdm" and decoding.writes == "absent":
        raise SpecError(
            f"{name} is for autoregressive models and {model.source} denoises: "
            "use LowConfidence(length=..., block=1) to write it left to right"
        )


def _check_last_row(model: Model, edits: Sequence[Edit]) -> None:
    """Refuse to hide keys from the last row alone where that row does not predict."""
    for edit in edits:
        if model.family.kind == "mdm" and getattr(edit, "hide_from", "all") == "last":
            raise SpecError(
                f"{edit!r} hides keys from the last row, which predicts the next token of an "
                f"autoregressive model; {model.source} denoises, and all its masked rows predict: "
                "say hide_from='all'"
            )


def _check_blockwise(model: Model, decoding: Decoding, edits: Sequence[Edit]) -> None:
    """Refuse what blocks of the canvas, their cache or rewritten tokens cannot be combined with."""
    name = type(decoding).__name__
    if decoding.rewrites and any(isinstance(edit, CanvasEdit) for edit in edits):
        raise SpecError(
            f"{name} rewrites what it wrote, so that an edit of the canvas cannot be told from it: "
            "use BlockDiffusion, or an edit of attention"
        )
    if not decoding.blockwise:
        return
    together, block = model.routing_block, getattr(decoding, "block", None)
    if together is not None and block is not None and block % together:
        raise SpecError(
            f"{model.source} routes experts by blocks of {together} positions: "
            f"say {name}(block={together}), or a multiple of it"
        )
    for edit in edits:
        if isinstance(edit, CanvasEdit) and edit.first_steps_allowed():
            raise SpecError(
                f"{edit!r} may keep a position masked when its block is left, and {name} does not "
                "come back: use LowConfidence or Threshold"
            )
    if not getattr(decoding, "cache", False):
        return
    if model.family.visibility != "block-causal" or model.family.shift:
        raise SpecError(
            f"a cache of finished blocks is exact only where no block sees a later one and row p "
            f"predicts p: {model.source} is {model.family.visibility}"
            f"{' and shifted' if model.family.shift else ''}, say cache=False"
        )
    attention = [edit for edit in edits if not isinstance(edit, CanvasEdit)]
    if attention or model.parts:
        raise SpecError(
            f"{name}(cache=True) keeps keys that {attention[0] if attention else model.parts[0]!r} "
            "would change: say cache=False"
        )
    if edits:
        raise SpecError(f"{name}(cache=True) takes no edits of the canvas: say cache=False")


def _check_cache(model: Model, decoding: Decoding, edits: Sequence[Edit]) -> None:
    """Refuse what an approximate cache cannot be combined with."""
    cache = approximate_cache(decoding)
    if cache is None:
        return
    if model.family.visibility != "bidirectional" or model.windows is not None:
        kind = "sliding windows" if model.windows is not None else model.family.visibility
        raise SpecError(
            f"cache={cache.as_word()} is for two-way attention and {model.source} has {kind}: "
            "leave it out; BlockDiffusion(cache=True) is exact for block-causal models"
        )
    if "position_ids" not in signature(model.network.forward).parameters or (
        model.network.config.model_type in ("roberta", "esm", "modernbert")
    ):
        raise SpecError(
            f"cache={cache.as_word()} computes rows at positions of their own, which "
            f"{model.network.config.model_type} does not take: leave it out"
        )
    if getattr(decoding, "guidance", 0.0) > 0:
        raise SpecError(
            f"cache={cache.as_word()} keeps the keys of one canvas and guidance reads two: leave "
            "one of them out"
        )
    if edits or model.parts:
        raise SpecError(
            f"cache={cache.as_word()} keeps keys that {(edits or model.parts)[0]!r} would change: "
            "leave the cache out"
        )


def _append_answer(
    model: Model, prompt: Prompt, decoding: Decoding
) -> tuple[np.ndarray, np.ndarray]:
    ids = model.encode(prompt)
    for note in misfits(prompt, ids, model.tokenizer, model.source):
        warnings.warn(note, AnchorwatchWarning, stacklevel=2)
    if decoding.length is None:
        raise SpecError(
            "the decoding has no length: say how many positions to write, length=64 for example"
        )
    # Autoregression has no token at positions that are not written yet; diffusion has the mask.
    fill = MISSING
    if model.family.kind == "mdm":
        fill = model.mask_id
        if fill in ids:
            raise PromptError(
                f"the prompt holds the mask id {fill} at position {ids.index(fill)}: "
                "to fill masks inside a text, infill it with canvas=ids"
            )
    length = decoding.answer_length(len(ids))
    _refuse_too_long(model, len(ids), length)  # before anything of that length is made
    answer = np.arange(len(ids), len(ids) + length)
    long = decoding.for_canvas(len(ids) + length, answer.tolist())
    _refuse_too_large(model, long, len(ids), length)
    return np.concatenate([np.asarray(ids), np.full(length, fill)]), answer


def _infill_canvas(model: Model, canvas: Any, decoding: Decoding) -> tuple[np.ndarray, np.ndarray]:
    if model.family.kind == "arm":
        raise PromptError(
            f"{model.source} is autoregressive and cannot infill a canvas: give a prompt"
        )
    if isinstance(canvas, str):
        raise PromptError(
            "a canvas is token ids: "
            "encode the text with model.tokenizer and put model.mask_id in it"
        )
    ids = np.asarray(model.encode(canvas))
    answer = np.flatnonzero(ids == model.mask_id)
    if not len(answer):
        raise PromptError(
            f"the canvas has no masked position: put the mask id {model.mask_id} where to write"
        )
    # The number of masks is the length, whatever the decoding left open.
    long = decoding.for_canvas(len(ids), answer.tolist())
    _refuse_too_large(model, long, len(ids) - len(answer), len(answer))
    return ids, answer


def _refuse_too_long(model: Model, given: int, length: int) -> None:
    """Refuse more positions than the model has."""
    positions = given + length
    if positions > model.num_positions:
        room = model.num_positions - given
        way = f", or set length to at most {room}" if room > 0 else ""
        raise PromptError(
            f"prompt and answer take {positions} positions and {model.source} was made for "
            f"{model.num_positions}: shorten the prompt{way}"
        )


def _refuse_too_large(model: Model, decoding: Decoding, given: int, length: int) -> None:
    """Refuse more positions than the model has, and more than this machine holds or finishes."""
    _refuse_too_long(model, given, length)
    positions, passes = given + length, decoding.num_passes
    # What to lower: the steps, if they were given, else the length, which then sets the steps.
    name, value = ("steps", passes) if getattr(decoding, "steps", None) else ("length", length)
    kept = _kept_bytes(decoding, positions)
    room = max(limits.memory_bytes() - RUN_BYTES, 1)
    fewer = limits.at_most(value, passes=passes, held=kept - RUN_BYTES, most=room)
    way = f"say {name}={fewer} at most"
    limits.refuse_passes(passes, way)
    limits.refuse_bytes(kept, "the frames of the run", way)
    refuse_pass(model, decoding, positions, 1)


def refuse_together(model: Model, states: Sequence[RunState], rows: int) -> None:
    """Refuse runs whose frames do not fit beside each other, or whose passes have too many rows."""
    kept = sum(_kept_bytes(state.decoding, len(state.first_frame)) for state in states)
    fewer = limits.at_most(len(states), held=kept)
    limits.refuse_bytes(kept, "the frames of these runs", f"give {fewer} prompts at a time")
    refuse_batch(model, states, rows)


def refuse_batch(model: Model, states: Sequence[RunState], rows: int) -> None:
    """Refuse passes of so many rows that their logits do not fit."""
    for start in range(0, len(states), rows):
        group = states[start : start + rows]
        longest = max(len(state.first_frame) for state in group)
        refuse_pass(model, group[0].decoding, longest, len(group))


def refuse_pass(model: Model, decoding: Decoding, positions: int, rows: int) -> None:
    """Refuse a pass whose logits alone are more than the device has."""
    if decoding.writes == "absent":
        return  # it computes the logits of one position at a time
    # [branches * rows, positions, vocabulary] are in memory at once.
    branches = 2 if getattr(decoding, "guidance", 0.0) > 0 else 1
    logits = branches * rows * positions * model.vocab_size * model.network.dtype.itemsize
    most = device_bytes(model)
    way = f"take {limits.at_most(positions, held=logits, most=most)} positions at most"
    if rows > 1:
        way = f"say batch={limits.at_most(rows, held=logits, most=most)} at most"
    limits.refuse_bytes(logits, "the logits of one forward pass", way, most=most)


def device_bytes(model: Model) -> int:
    """Memory where the model computes."""
    if model.device.type == "cuda":
        return int(torch.cuda.get_device_properties(model.device).total_memory)
    return limits.memory_bytes()


def _kept_bytes(decoding: Decoding, positions: int) -> int:
    """At least what a run keeps of its steps until it ends, whatever it measures."""
    # Each step keeps its frame of int64 ids; steps that draw keep the generator as well.
    each = 8 * positions + _STEP_BYTES + (_RANDOM_BYTES if decoding.draws else 0)
    return RUN_BYTES + decoding.num_passes * each
