"""From a finished run to its trace: roles, commit times, and the manifest."""

from __future__ import annotations

import platform
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers

from anchorwatch import __version__
from anchorwatch.errors import AnchorwatchWarning
from anchorwatch.generation.decoding import Decoding, Observe
from anchorwatch.generation.loop import RunState, Step
from anchorwatch.models.model import Model
from anchorwatch.probes.spec import Probe
from anchorwatch.trace.schema import Field
from anchorwatch.trace.trace import (
    ABSENT,
    FRESH,
    MASKED,
    MISSING,
    PROMPT,
    SPECIAL,
    WRITTEN,
    Trace,
    make_trace,
)

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LATIN = (*range(33, 127), *range(161, 173), *range(174, 256))
_REST = sorted(set(range(256)) - set(_LATIN))
_ALPHABET = {chr(byte): byte for byte in _LATIN} | {
    chr(256 + n): byte for n, byte in enumerate(_REST)
}
"""GPT-2's spelling of bytes: visible Latin-1 as itself, the others from U+0100 on."""


def build_trace(
    state: RunState,
    model: Model,
    probes: Sequence[Probe],
    *,
    batch: int,
    fork: Mapping[str, Any] | None = None,
) -> Trace:
    """The immutable record of a finished run; `fork` says what it left, and where."""
    answer, written = state.sequence.answer.cpu().numpy(), collect_history(state)
    # Warnings are raised now and stand in the manifest too, for who reads the trace later.
    messages = _canvas_edit_warnings(state, 0 if fork is None else fork["step"])
    for message in messages:
        warnings.warn(message, AnchorwatchWarning, stacklevel=3)
    canvas = written["canvas"]
    return make_trace(
        canvas=canvas,
        role=_roles(canvas, state.steps, answer, model, state.decoding),
        committed_at=written["committed_at"],
        logprob=written["logprob"],
        margin=written["margin"],
        mask_chosen=written["mask_chosen"],
        narrow=written["narrow"],
        region=state.regions.of,
        random_state=written.get("random_state"),
        written_logprob=written.get("written_logprob"),
        first_row=written.get("first_row"),
        end_row=written.get("end_row"),
        row_computed=written.get("row_computed"),
        measured=_collect_fields(state),
        coordinates=_coordinates(state, probes),
        manifest=_manifest(model, state, canvas, answer, batch)
        | {"probes": [probe.as_dict() for probe in probes], "regions": list(state.regions.names)}
        | ({} if fork is None else {"fork": dict(fork)})
        | _rows_computed(state)
        | ({"warnings": messages} if messages else {}),
    )


def _rows_computed(state: RunState) -> dict[str, int]:
    """How many query rows a decoding computed that may compute fewer than all."""
    if state.cache is not None:
        return {"rows_computed": int(sum(rows.sum() for rows in state.cache.rows))}
    counts = state.decoding.blockwise and state.counts_rows
    return {"rows_computed": state.rows_computed} if counts else {}


def _canvas_edit_warnings(state: RunState, first_step: int) -> list[str]:
    """What canvas edits did not do, and what they left undone."""
    if state.canvas_editor is None:
        return []
    mask_chosen = sum(step.mask_chosen for step in state.steps)
    editor = state.canvas_editor
    return [*editor.list_idle(), *editor.list_masks_left(first_step, mask_chosen)]


def collect_history(state: RunState) -> dict[str, np.ndarray]:
    """What a run has written so far, under the names of a trace."""
    # [step + 1, T]: the frame before each step, and the last one.
    canvas = np.stack([step.canvas for step in state.steps] + [state.frame()])
    committed_at = np.full(canvas.shape[1], MISSING)
    logprob = np.full(canvas.shape[1], np.nan, dtype=np.float32)
    margin = np.full(canvas.shape[1], np.nan, dtype=np.float32)
    mask_id = state.sequence.mask_id
    for step in state.steps:
        committed_at[step.positions] = step.index
        logprob[step.positions] = step.logprobs
        margin[step.positions] = step.margins
        # A token that was rewritten as the mask is not committed any more.
        masked_again = step.positions[step.tokens == mask_id]
        committed_at[masked_again] = MISSING
        logprob[masked_again] = margin[masked_again] = np.nan
    arrays = {
        "canvas": canvas,
        "committed_at": committed_at,
        "logprob": logprob,
        "margin": margin,
        "mask_chosen": np.array([step.mask_chosen for step in state.steps]),
        "narrow": np.array([step.narrow for step in state.steps]),
    }
    random_states = [step.random_state for step in state.steps if step.random_state is not None]
    if state.decoding.blockwise:
        spans = np.array(state.row_spans[: len(state.steps)]).reshape(-1, 2)
        arrays |= {"first_row": spans[:, 0], "end_row": spans[:, 1]}
    if state.cache is not None:
        arrays["row_computed"] = np.array(state.cache.rows[: len(state.steps)]).reshape(
            len(state.steps), canvas.shape[1]
        )
    if state.decoding.rewrites:
        written = np.full((len(state.steps), canvas.shape[1]), np.nan, dtype=np.float32)
        for step in state.steps:
            written[step.index, step.positions] = step.logprobs
        arrays["written_logprob"] = written
    return arrays | ({"random_state": np.stack(random_states)} if random_states else {})


def _collect_fields(state: RunState) -> dict[str, tuple[Field, np.ndarray]]:
    """Fields and their arrays; steps that a run did not take (it stopped early) are cut off."""
    steps = len(state.steps)
    measured = {}
    for name, field in state.buffer.fields.items():
        array = state.buffer.arrays[name]
        if not state.buffer.by_step(name):
            measured[name] = (field, array)
        elif state.buffer.block is None:  # else they went to disk block by block
            measured[name] = (field, array[:steps])
    return measured


def _coordinates(state: RunState, probes: Sequence[Probe]) -> dict[str, list[str]]:
    """Names along the axes that have names."""
    names: dict[str, list[str]] = {}
    for probe in probes:
        names |= probe.coordinates
    # Regions are the run's, not a probe's: any field may have them as an axis.
    for dim in ("query_region", "key_region"):
        if any(dim in field.dims for field in state.buffer.fields.values()):
            names[dim] = list(state.regions.names)
    return names


def _roles(
    canvas: np.ndarray,
    steps: Sequence[Step],
    answer: np.ndarray,
    model: Model,
    decoding: Decoding,
) -> np.ndarray:
    # [frame, position]: given positions keep their role, positions of the answer change theirs.
    special = np.isin(canvas, list(model.specials.special_ids))
    role = np.where(special, SPECIAL, PROMPT)
    waiting = ABSENT if model.family.kind == "arm" else MASKED
    now = np.full(canvas.shape[1], waiting)
    if isinstance(decoding, Observe):  # the text was there before the run
        now = np.where(canvas[0] == model.specials.mask_id, waiting, WRITTEN)
    role[0, answer] = now[answer]
    for step in steps:
        # Fresh in the frame right after the step that wrote it, then written; a rewrite is fresh
        # again, and what was rewritten as the mask is masked.
        now[now == FRESH] = WRITTEN
        now[step.positions] = np.where(step.tokens == model.specials.mask_id, waiting, FRESH)
        role[step.index + 1, answer] = now[answer]
    return role


def _manifest(
    model: Model, state: RunState, canvas: np.ndarray, answer: np.ndarray, batch: int
) -> dict[str, Any]:
    # 1. Texts: of the prompt as given, of the answer as written, of every token that occurs.
    last, own = canvas[-1], state.unswapped_frame()
    given = np.setdiff1d(np.arange(len(last)), answer)
    written = [int(i) for i in last[answer] if i != MISSING and i != model.specials.mask_id]
    ids = sorted({int(i) for i in np.union1d(canvas, own) if i != MISSING})
    tokens = {i: model.text_of(i) for i in ids}
    split = {i: raw for i, text in tokens.items() if (raw := _token_bytes(model, i, text))}
    # 2. Everything that a replay needs to repeat the run, and a reader to judge it.
    return {
        "anchorwatch": __version__,
        "model": model.describe(),
        "decoding": state.decoding.as_dict(),
        **({} if state.cache is None else {"approximate": state.cache.kept.cache.as_word()}),
        "seed": state.seed,
        "edits": [edit.as_dict() for edit in state.edits],
        "batch": batch,
        "prompt_text": model.decode([int(i) for i in own[given]]),
        "answer_text": model.decode(written),
        "answer_positions": [int(p) for p in answer],
        "tokens": {str(i): text for i, text in tokens.items()},
        "token_bytes": {str(i): raw.hex() for i, raw in split.items()},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
        },
        "host": {
            "system": sys.platform,
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
        },
    }


def _token_bytes(model: Model, token_id: int, text: str) -> bytes | None:
    """The bytes of a token that is no whole text: byte-level BPE's spelling, or <0xNN>."""
    if model.tokenizer is None or "\ufffd" not in text:
        return None
    # A token may be part of a letter in UTF-8: its text alone would be a replacement character.
    piece = str(model.tokenizer.convert_ids_to_tokens(token_id))
    if byte := _FALLBACK.fullmatch(piece):
        raw = bytes.fromhex(byte[1])
    elif all(letter in _ALPHABET for letter in piece):
        raw = bytes(_ALPHABET[letter] for letter in piece)
    else:
        return None
    return raw if raw.decode("utf-8", "replace") == text else None
