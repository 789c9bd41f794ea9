"""A run's folder: whose it is, its checkpoints, and the finished model. Nothing is pickled.

    OUT/run.json                    what is being trained: the spec, and digests of corpus and start
    OUT/checkpoints/update-N/       a folder that `aw.load` opens, with training/ inside
    OUT/model/                      the finished network
    OUT/log.jsonl, log.csv, loss.pdf

A checkpoint is written to a temporary sibling, forced to disk, and renamed once; the one before it
is removed only then. So whenever the process dies, the newest whole one is there.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from anchorwatch.commits import (
    UNREADABLE,
    commit,
    damage,
    publish,
    put_file,
    replace_file,
    sealed,
    unsealed,
)
from anchorwatch.errors import SpecError, TrainingError
from anchorwatch.training.log import Line, as_json, from_json

RUN, MODEL, CHECKPOINTS, LOCK = "run.json", "model", "checkpoints", ".lock"
WEIGHTS = "model.safetensors"
_INNER = "training"


@dataclass(frozen=True)
class State:
    """All that goes on from a checkpoint, besides the network in its folder."""

    update: int
    """Updates done."""
    tensors: dict[str, torch.Tensor]
    """What was trained, by the name it has in training."""
    adapted: bool
    """Whether the network in the folder is merged with adapters, which are then kept apart."""
    optimizer: dict[str, Any]
    """torch's full state by parameter name: {"state": ..., "param_groups": ...}."""
    lines: list[Line]


@contextmanager
def claimed(out: Path, record: Mapping[str, Any]) -> Iterator[None]:
    """Make or take the folder of this run; another run's, or one in use, is refused."""
    refuse_foreign(out, record)
    try:
        (out / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        handle = (out / LOCK).open("w")
    except OSError as error:
        raise SpecError(
            f"{out} cannot be written, {error.strerror}: choose another place"
        ) from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrainingError(
                f"{out} is being trained by another process: wait for it, or choose another folder"
            ) from None
        for left in (*out.glob(".*.tmp"), *(out / CHECKPOINTS).glob(".*.tmp")):
            shutil.rmtree(left, ignore_errors=True)  # of a write that was killed
        if not (out / RUN).exists():
            replace_file(out / RUN, sealed(record))
        yield


def refuse_foreign(out: Path, record: Mapping[str, Any]) -> None:
    """Refuse a folder that holds anything but this very run."""
    if not out.exists() or (out.is_dir() and not _holds_more_than_a_lock(out)):
        return
    if not out.is_dir():
        raise SpecError(f"{out} is a file: name a folder")
    if not (out / RUN).is_file():
        raise SpecError(f"{out} holds something else than a training run: choose another folder")
    try:
        held = unsealed(out / RUN)
    except UNREADABLE as error:
        raise TrainingError(f"{out / RUN} is damaged ({error}): choose another folder") from None
    if differs := sorted(_differing(held, json.loads(json.dumps(record)))):
        shown = "; ".join(differs[:4]) + (" ..." if len(differs) > 4 else "")
        raise SpecError(
            f"{out} is another run's folder ({shown}): choose another folder, or go on with its "
            "own spec"
        )


def save(out: Path, state: State, keep: int, write: Callable[[Path], None]) -> Path:
    """Publish a checkpoint, and remove those that are too many; `write` puts the network."""

    def fill(folder: Path) -> None:
        write(folder)
        inner = folder / _INNER
        inner.mkdir()
        if state.adapted:
            save_file(state.tensors, inner / "trained.safetensors")
        tensors, rest = _flat(state.optimizer)
        save_file(tensors, inner / "optimizer.safetensors")
        put_file(inner / "optimizer.json", json.dumps(rest).encode())
        put_file(inner / "log.jsonl", as_json(state.lines).encode())
        put_file(inner / "state.json", json.dumps({"update": state.update}).encode())

    target = out / CHECKPOINTS / f"update-{state.update:08d}"
    _published(target, fill, f"the checkpoint of update {state.update}")
    for old in [path for _, path in _numbered(out)][:-keep]:
        gone = old.with_name(f".{old.name}.{uuid.uuid4().hex[:8]}.tmp")
        old.rename(gone)  # half a removed checkpoint must not look like one
        shutil.rmtree(gone, ignore_errors=True)
    return target


def save_model(out: Path, write: Callable[[Path], None]) -> Path:
    """Publish the finished network as OUT/model."""
    target = out / MODEL
    if not target.exists():
        _published(target, write, "the finished model")
    return target


def newest(out: Path) -> State | None:
    """The newest checkpoint that is whole, or None."""
    for _, folder in reversed(_numbered(out)):
        if not damage(folder):
            return _read(folder)
    if found := _numbered(out):
        raise TrainingError(
            f"{found[-1][1]} is damaged ({damage(found[-1][1])[0]}) and no other checkpoint is "
            "left: begin again in another folder"
        )
    return None


def _read(folder: Path) -> State:
    inner = folder / _INNER
    adapted = (inner / "trained.safetensors").is_file()
    return State(
        update=json.loads((inner / "state.json").read_text())["update"],
        tensors=load_file(inner / "trained.safetensors" if adapted else folder / WEIGHTS),
        adapted=adapted,
        optimizer=_nested(
            load_file(inner / "optimizer.safetensors"),
            json.loads((inner / "optimizer.json").read_text()),
        ),
        lines=from_json((inner / "log.jsonl").read_text()),
    )


def _numbered(out: Path) -> list[tuple[int, Path]]:
    found = (
        (int(match[1]), path)
        for path in (out / CHECKPOINTS).glob("update-*")
        if (match := re.fullmatch(r"update-(\d{8,12})", path.name))
    )
    return sorted(found)


def _published(target: Path, fill: Callable[[Path], None], what: str) -> None:
    """One rename puts it there, whole; on a full disk nothing of it stays."""
    folder = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        folder.mkdir()
        fill(folder)
        commit(folder)
        publish(folder, target)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if not _is_writing(error):
            raise
        raise TrainingError(
            f"{what} could not be written ({error}): the one before it is kept; make room on the "
            "disk and start the same command again"
        ) from error


def _is_writing(error: BaseException) -> bool:
    """What the disk said; safetensors and torch wrap it."""
    wrapped = type(error).__name__ == "SafetensorError" or "No space left" in str(error)
    return isinstance(error, OSError) or wrapped


def _flat(optimizer: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors by `parameter/moment`, and the rest as JSON has it."""
    tensors, plain = {}, {}
    for name, held in optimizer["state"].items():
        for moment, value in held.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{name}/{moment}"] = value.contiguous()
            else:
                plain[f"{name}/{moment}"] = value
    return tensors, {"plain": plain, "param_groups": optimizer["param_groups"]}


def _nested(tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> dict[str, Any]:
    state: dict[str, dict[str, Any]] = {}
    for key, value in (*tensors.items(), *rest["plain"].items()):
        name, _, moment = key.rpartition("/")
        state.setdefault(name, {})[moment] = value
    return {"state": state, "param_groups": rest["param_groups"]}


def _holds_more_than_a_lock(out: Path) -> bool:
    return any(path.name not in (LOCK, CHECKPOINTS) for path in out.iterdir())


def _differing(held: Any, asked: Any, at: str = "") -> Iterator[str]:
    """Every leaf that differs between two records, in words."""
    if isinstance(held, dict) and isinstance(asked, dict):
        for name in held.keys() | asked.keys():
            inner = f"{at}.{name}" if at else name
            yield from _differing(held.get(name), asked.get(name), inner)
    elif held != asked:
        yield f"{at} is {held!r} there and {asked!r} here"
