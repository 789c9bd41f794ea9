"""A run's folder: whose it is, its checkpoints, snapshots and finished model. Nothing is pickled.

    OUT/run.json                    what is being trained: the spec, and digests of corpus and start
    OUT/checkpoints/update-N/       a folder that `aw.load` opens, with training/ inside
    OUT/model/                      the finished network
    OUT/snapshots/update-N/         kept by request: a network, or with LoRA a delta
    OUT/log.jsonl, log.csv, loss.pdf

A network is written as weights, config.json and tokenizer. A checkpoint is written to a temporary
sibling, forced to disk, and renamed once; the one before it is removed only then. So whenever the
process dies, the newest whole one is there.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from anchorwatch.errors import AnchorwatchError, AnchorwatchWarning, SpecError, TrainingError
from anchorwatch.models import deltas
from anchorwatch.models.trained_additions import collect_trained_parts
from anchorwatch.trace.atomic_io import (
    UNREADABLE,
    commit,
    find_damage,
    publish,
    put_file,
    read_json,
    read_sealed,
    refuse_inside_trace,
    replace_file,
    seal,
)
from anchorwatch.trace.locks import LOCK, Lock, temporary, temporary_name
from anchorwatch.training.adapters import collect_changes, merge_adapters
from anchorwatch.training.log import (
    CHECKPOINTS,
    Line,
    as_json,
    explain_write_errors,
    from_json,
    list_checkpoints,
)
from anchorwatch.training.networks import StartingPoint
from anchorwatch.training.spec import Checkpoints

RUN, MODEL = "run.json", "model"
WEIGHTS = "model.safetensors"
SNAPSHOTS = "snapshots"
_INNER = "training"
_GROWING = r"\.(anchorwatch-)?[0-9a-f]{8}\.tmp"
"""How the name of something half written ends."""


@dataclass(frozen=True)
class TrainingState:
    """All that a run resumes from, besides the network in its folder."""

    update: int
    """Updates done."""
    tensors: dict[str, torch.Tensor]
    """What was trained, by the name it has in training."""
    adapted: bool
    """Whether the network in the folder is merged with adapters, which are then kept apart."""
    optimizer: dict[str, Any]
    """torch's full state by parameter name: {"state": ..., "param_groups": ...}."""
    lines: list[Line]
    run: str
    """Whose it is: the digest of the run's record."""


@contextmanager
def claim_folder(out: Path, record: Mapping[str, Any]) -> Iterator[None]:
    """Make or take the folder of this run; another run's, or one in use, is refused."""
    refuse_foreign(out, record)
    try:
        (out / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(
            f"{out} cannot be written, {error.strerror}: choose another place"
        ) from None
    with Lock.take(out, f"{out} is being trained by another process", refusal=TrainingError):
        refuse_foreign(out, record)  # another run may have start before the lock was ours
        _remove_leftovers(out)
        if not (out / RUN).exists():
            with explain_write_errors("the record of the run", out / RUN, out):
                replace_file(out / RUN, seal(record))
        _set_damaged_aside(out)
        yield


def refuse_foreign(out: Path, record: Mapping[str, Any]) -> None:
    """Refuse a folder that holds anything but this very run."""
    refuse_inside_trace(out)
    if not out.exists() or (out.is_dir() and _holds_nothing(out)):
        return
    if not out.is_dir():
        raise SpecError(f"{out} is a file: name a folder")
    if not (out / RUN).is_file():
        if list_checkpoints(out):
            raise SpecError(
                f"{out} holds checkpoints but no {RUN}, which says whose they are: choose another "
                f"folder, or put their {RUN} back"
            )
        raise SpecError(f"{out} holds something else than a training run: choose another folder")
    try:
        recorded = read_sealed(out / RUN)
    except UNREADABLE as error:
        raise TrainingError(f"{out / RUN} is damaged ({error}): choose another folder") from None
    if differs := sorted(_find_differences(recorded, json.loads(json.dumps(record)))):
        shown = "; ".join(differs[:4]) + (" ..." if len(differs) > 4 else "")
        raise SpecError(
            f"{out} is another run's folder ({shown}): choose another folder, or go on with its "
            "own spec"
        )


def save_checkpoint(
    out: Path, state: TrainingState, keep: int, write: Callable[[Path], None]
) -> Path:
    """Publish a checkpoint, and remove those that are too many; `write` puts the network."""

    def fill(folder: Path) -> None:
        write(folder)
        inner = folder / _INNER
        inner.mkdir()
        if state.adapted:
            save_file(state.tensors, inner / "trained.safetensors")
        tensors, rest = _flatten(state.optimizer)
        save_file(tensors, inner / "optimizer.safetensors")
        put_file(inner / "optimizer.json", json.dumps(rest).encode())
        put_file(inner / "log.jsonl", as_json(state.lines).encode())
        about = {"update": state.update, "run": state.run}
        put_file(inner / "state.json", json.dumps(about).encode())

    target = out / CHECKPOINTS / f"update-{state.update:08d}"
    _publish(out, target, fill, f"the checkpoint of update {state.update}")
    for old in [path for _, path in list_checkpoints(out)][:-keep]:
        gone = temporary_name(old)
        old.rename(gone)  # half a removed checkpoint must not look like one
        shutil.rmtree(gone, ignore_errors=True)
    return target


def save_model(out: Path, write: Callable[[Path], None]) -> Path:
    """Publish the finished network as OUT/model."""
    target = out / MODEL
    if not target.exists():
        _publish(out, target, write, "the finished model")
    return target


def remove_model(out: Path) -> None:
    """Remove OUT/model, if there is one."""
    if (model := out / MODEL).exists():
        gone = out / f".{MODEL}.{uuid.uuid4().hex[:8]}.tmp"
        model.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def save_snapshot(out: Path, update: int, write: Callable[[Path], None]) -> Path:
    """Publish what stays of an update; `write` puts the network, or its delta."""
    target = _snapshot_of(out, update)
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        _publish(out, target, write, f"the snapshot of update {update}")
    return target


def _snapshot_of(out: Path, update: int) -> Path:
    return out / SNAPSHOTS / f"update-{update:08d}"


def warn_of_missing_snapshots(out: Path, asked: Checkpoints, lines: Sequence[Line]) -> None:
    """Warn of counts of `checkpoints` that a finished run has no snapshot of, with the reason."""
    # 1. The update of each count; none where the run ended before it.
    last = lines[-1]
    updates = {f"update {count}": count if count <= last.update else None for count in asked.at}
    for count in asked.at_tokens:
        reached = (line.update for line in lines if line.tokens >= count)
        updates[f"{count} token{'s' * (count > 1)}"] = next(reached, None)
    # 2. Those without a snapshot, by what would have given one.
    ahead = [count for count, update in updates.items() if update is None]
    passed = [
        count
        for count, update in updates.items()
        if update is not None and not _snapshot_of(out, update).exists()
    ]
    reasons = []
    if passed:
        reasons.append(
            f"{', '.join(passed)} (passed before checkpoints asked for that: train into another "
            "folder)"
        )
    if ahead:
        reasons.append(
            f"{', '.join(ahead)} (never reached, the run ended at update {last.update} after "
            f"{last.tokens} tokens: say more updates)"
        )
    if reasons:
        text = f"{out} has no snapshot of {', nor of '.join(reasons)}"
        warnings.warn(text, AnchorwatchWarning, stacklevel=4)


def read_run_digest(out: Path) -> str:
    """The digest of the record of the run whose folder this is."""
    return str(read_json(out / RUN)["digest"])


def read_newest(out: Path) -> TrainingState | None:
    """The newest checkpoint that is whole, or None; another run's is refused."""
    for _, folder in reversed(list_checkpoints(out)):
        if not find_damage(folder):
            try:
                return _read_checkpoint(folder, read_run_digest(out))
            except AnchorwatchError:
                raise
            except (*UNREADABLE, SafetensorError) as error:
                raise TrainingError(
                    f"{folder} cannot be read as a checkpoint ({error}): begin again in another "
                    "folder"
                ) from None
    if checkpoints := list_checkpoints(out):
        last = checkpoints[-1][1]
        raise TrainingError(
            f"{last} is damaged ({find_damage(last)[0]}) and no other checkpoint is left: "
            "begin again in another folder"
        )
    return None


def _set_damaged_aside(out: Path) -> None:
    """Rename what is damaged and will be made again: it must not be in the way, or count as kept.

    Where no checkpoint is whole nothing is touched, and `newest` refuses.
    """
    folders = [path for _, path in list_checkpoints(out)]
    damaged = {path: faults[0] for path in folders if (faults := find_damage(path))}
    if folders and len(damaged) == len(folders):
        return
    if (model := out / MODEL).exists() and (faults := find_damage(model, additions=False)):
        damaged[model] = faults[0]
    for path, why in damaged.items():
        aside = path.with_name(f"{path.name}.damaged-{uuid.uuid4().hex[:8]}")
        path.rename(aside)
        warnings.warn(
            f"{path} is damaged ({why}): it is kept as {aside.name}, and will be made again",
            AnchorwatchWarning,
            stacklevel=5,
        )


def _read_checkpoint(folder: Path, run: str) -> TrainingState:
    inner = folder / _INNER
    about = json.loads((inner / "state.json").read_text())
    if about.get("run", run) != run:  # one that does not say it is older than the question
        raise SpecError(
            f"{folder} is a checkpoint of another run: move it away, or choose another folder"
        )
    adapted = (inner / "trained.safetensors").is_file()
    return TrainingState(
        update=about["update"],
        tensors=load_file(inner / "trained.safetensors" if adapted else folder / WEIGHTS),
        adapted=adapted,
        optimizer=_unflatten(
            load_file(inner / "optimizer.safetensors"),
            json.loads((inner / "optimizer.json").read_text()),
        ),
        lines=from_json((inner / "log.jsonl").read_text()),
        run=run,
    )


def _publish(out: Path, target: Path, fill: Callable[[Path], None], what: str) -> None:
    """One rename puts it there, whole; on a full disk nothing of it stays."""
    with explain_write_errors(what, target, out), temporary(target, folder=True) as folder:
        fill(folder)
        commit(folder)
        publish(folder, target)


def _flatten(optimizer: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors by `parameter/moment`, and the rest as JSON has it."""
    tensors, plain = {}, {}
    for name, moments in optimizer["state"].items():
        for moment, value in moments.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{name}/{moment}"] = value.contiguous()
            else:
                plain[f"{name}/{moment}"] = value
    return tensors, {"plain": plain, "param_groups": optimizer["param_groups"]}


def _unflatten(tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> dict[str, Any]:
    state: dict[str, dict[str, Any]] = {}
    for key, value in (*tensors.items(), *rest["plain"].items()):
        name, _, moment = key.rpartition("/")
        state.setdefault(name, {})[moment] = value
    return {"state": state, "param_groups": rest["param_groups"]}


def _holds_nothing(out: Path) -> bool:
    """Whether nothing is there but what a start leaves that was killed before its record."""

    def is_nothing(path: Path) -> bool:
        if path.name == CHECKPOINTS and path.is_dir():
            return not any(path.iterdir())
        return path.name == LOCK or bool(re.fullmatch(rf"\.{RUN}{_GROWING}", path.name))

    return all(is_nothing(path) for path in out.iterdir())


def _remove_leftovers(out: Path) -> None:
    """Of writes that were killed, folders and files."""
    folders = (out, out / CHECKPOINTS, out / SNAPSHOTS)
    for left in (path for folder in folders for path in folder.glob(".*.tmp")):
        if not re.fullmatch(rf"\..+{_GROWING}", left.name):
            continue  # not a name of ours
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _find_differences(recorded: Any, wanted: Any, field: str = "") -> Iterator[str]:
    """Every leaf that differs between two records, in words."""
    if isinstance(recorded, dict) and isinstance(wanted, dict):
        for name in recorded.keys() | wanted.keys():
            inner = f"{field}.{name}" if field else name
            yield from _find_differences(recorded.get(name), wanted.get(name), inner)
    elif recorded != wanted:
        yield f"{field} is {recorded!r} there and {wanted!r} here"


DIFFUSION = "AnchorwatchForMaskedDiffusion"
"""The class named in config.json of a diffusion model: no stock class reads it as a causal one."""


def write_model(folder: Path, start: StartingPoint, tensors: dict[str, torch.Tensor]) -> None:
    """Put the network into an empty folder; `tensors` have the names they have in training."""
    whole = merge_adapters(start.network, tensors)
    put_file(folder / "config.json", json.dumps(build_config(start, whole), indent=1).encode())
    save_file(whole, folder / WEIGHTS, metadata={"format": "pt"})
    start.tokenizer.save_pretrained(folder)


def build_config(start: StartingPoint, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """config.json: the stock class's fields, and under `anchorwatch` what those cannot say.

    Parts are named with the digests of their tensors, so that none can be taken for another.
    """
    fields = start.network.config.to_dict()
    fields = {name: value for name, value in fields.items() if not name.startswith("_")}
    stock = type(start.network).__name__
    return fields | {
        "architectures": [DIFFUSION if start.kind == "mdm" else stock],
        "dtype": "float32",
        "mask_token_id": start.mask_id,
        "pad_token_id": start.tokenizer.pad_token_id,
        "anchorwatch": {
            "kind": start.kind,
            "shift": start.shift,
            "outputs": start.vocab_size,
            "parts": [
                part.as_dict()
                for part in collect_trained_parts(start.network, start.parts, tensors)
            ],
        },
    }


def write_delta(
    folder: Path,
    start: StartingPoint,
    tensors: dict[str, torch.Tensor],
    source: str,
    dtype: torch.dtype,
) -> None:
    """Put what was trained beside frozen weights into an empty folder, as `aw.load` opens it.

    `tensors` are those that were trained, by the names they have in training.
    """
    changes, scale = collect_changes(
        start.network, {name: t.to(dtype) for name, t in tensors.items()}
    )
    changes = {name: row.to(dtype) for name, row in _new_rows(start).items()} | changes
    named = deltas.Delta(source, "", scale, changes)
    digests = {name: deltas.digest_of(_base_tensor(start, name)) for name in named.changed_names}
    config = build_config(start, named.whole_tensors)
    config["anchorwatch"]["delta"] = {
        "from": source,
        "digest": deltas.combine_digests(digests),
        "scale": scale,
    }
    put_file(folder / "config.json", json.dumps(config, indent=1).encode())
    save_file(changes, folder / deltas.FILE, metadata={"format": "pt"})
    start.tokenizer.save_pretrained(folder)


def _new_rows(start: StartingPoint) -> dict[str, torch.Tensor]:
    """Rows that a new mask token gave to embedding and unembedding, by their names in a delta."""
    rows: dict[str, torch.Tensor] = {}
    if start.rows is None:
        return rows
    ends = [start.network.get_input_embeddings()]
    if not start.network.config.tie_word_embeddings:
        ends.append(start.network.get_output_embeddings())
    for name, module in start.network.named_modules():
        if module in ends:
            for index in range(start.rows, len(module.weight)):
                rows[f"{name}.row.{index}"] = module.weight[index].detach().clone()
    return rows


def _base_tensor(start: StartingPoint, name: str) -> torch.Tensor:
    """A tensor as the checkpoint had it, also where an adapter lies on it."""
    module = start.network.get_submodule(name.removesuffix(".weight"))
    weight: torch.Tensor = getattr(module, "base_layer", module).weight
    ends = (start.network.get_input_embeddings(), start.network.get_output_embeddings())
    return weight[: start.rows] if module in ends else weight
