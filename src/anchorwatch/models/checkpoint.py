"""A checkpoint on disk: its config, and where each tensor lies. Nothing is unpickled, ever."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from anchorwatch.errors import ModelError, SpecError, WeightsError
from anchorwatch.models import deltas
from anchorwatch.models import zoo as lab
from anchorwatch.models.weight_files import (
    FileTensor,
    LocatedTensor,
    MemoryTensor,
    StoredTensor,
    list_file,
)
from anchorwatch.trace.atomic_io import COMMIT, LIMIT_JSON_BYTES, UNREADABLE, changed_files

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_HUB_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_INDEX = "model.safetensors.index.json"
_DEEPEST = 4
"""Deltas on one another."""


@dataclass(frozen=True)
class Checkpoint:
    """Config and tensor locations of one checkpoint; tensors are read when asked for."""

    source: str
    """What the user asked for."""
    folder: Path
    tokenizer_folder: Path
    """Where its tokenizer is: a delta without one has its base's."""
    config: dict[str, Any]
    """config.json as it stands; empty where a bare file has none."""
    stored: dict[str, StoredTensor] = field(repr=False)
    """Every tensor by name; nothing of it has been read."""
    revision: str | None = None
    """Commit of the hub snapshot, where there is one."""
    files: Mapping[str, LocatedTensor] = field(default_factory=dict, repr=False)
    """The tensors of the files, which a delta changes."""
    changes: tuple[deltas.Delta, ...] = field(default=(), repr=False)
    """What it changes of the checkpoint whose files are listed, one after another."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor."""
        return {name: tensor.shape for name, tensor in self.stored.items()}

    def tensors(self) -> Iterator[tuple[str, StoredTensor]]:
        """Every tensor once, file by file, in the order of the files."""
        if not self.changes:
            yield from self._in_file_order()
            return
        tensors: Iterator[tuple[str, torch.Tensor]]
        tensors = ((name, tensor.read()) for name, tensor in self._in_file_order())
        for delta in self.changes:
            tensors = delta.apply(tensors)
        yield from ((name, MemoryTensor(tensor)) for name, tensor in tensors)

    def _in_file_order(self) -> Iterator[tuple[str, StoredTensor]]:
        yield from sorted(self.files.items(), key=lambda item: (item[1].path, item[1].offset))


def open_checkpoint(
    source: str, revision: str | None = None, *, check: bool = True, below: int = 0
) -> Checkpoint:
    """Find `source` (a folder, a .safetensors file, lab/... or a hub id) and list its tensors.

    `check` compares the files with the commit record that `anchorwatch train` wrote of them.
    `below` counts the deltas above this one, so that a circle of deltas is refused.
    """
    path = lab.folder_of(source) if source.startswith("lab/") else Path(source).expanduser()
    if revision is not None and path.exists():
        raise SpecError(f"{source} lies here and revision is for hub ids: leave revision out")
    if path.suffix == ".safetensors" and path.is_file():
        refuse_odd_files(path.parent)
        if check:
            _refuse_damaged(path.parent)
        config = read_json(path.with_name("config.json"), missing={})
        return _list_tensors(source, path.parent, config, {path: None}, None)
    # A hub id: its snapshot's folder is named by the commit.
    commit = None
    if not path.is_dir():
        path = fetch(source, revision)
        commit = path.name if re.fullmatch(r"[0-9a-f]{40}", path.name) else None
    refuse_odd_files(path)
    if check:
        _refuse_damaged(path)
    config = read_json(path / "config.json")
    if (delta := deltas.read_delta(path, config)) is not None:
        return _apply_delta(source, path, config, delta, below)
    return _list_tensors(source, path, config, _weight_files(path), commit)


def _apply_delta(
    source: str, folder: Path, config: dict[str, Any], delta: deltas.Delta, below: int
) -> Checkpoint:
    """A folder that says how it differs from another checkpoint, which is found first."""
    if below >= _DEEPEST:
        raise ModelError(
            f"{source} is a delta on a delta, {_DEEPEST} deep or in a circle: name the checkpoint "
            "that it changes in config.json"
        )
    # A folder seen from this one first, so that a pair can be moved together.
    # 1. The checkpoint it changes: a folder seen from this one, or whatever `aw.load` takes.
    beside = folder / delta.source
    base = open_checkpoint(str(beside) if beside.is_dir() else delta.source, below=below + 1)
    # 2. What it changes must be there; shapes are those of the changed network.
    if lost := sorted(delta.changed_names - base.shapes.keys()):
        raise WeightsError(f"{delta.source} has no {lost[0]}, which the delta of {source} changes")
    stored: dict[str, StoredTensor] = {}
    for name, tensor in base.stored.items():
        changed = name in delta.changed_names
        shape = delta.shape_of(name, tensor.shape)
        dtype = torch.float32 if changed else tensor.dtype
        stored[name] = MemoryTensor(torch.empty(shape, dtype=dtype, device="meta"))
    stored |= {name: MemoryTensor(tensor) for name, tensor in delta.whole_tensors.items()}
    return replace(
        base,
        source=source,
        folder=folder,
        tokenizer_folder=folder if has_tokenizer(folder) else base.tokenizer_folder,
        config=config,
        stored=stored,
        revision=None,
        changes=(*base.changes, delta),
    )


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder has a tokenizer of its own."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def fetch(source: str, revision: str | None) -> Path:
    """Bring a hub repository's safe files here (or find them in the cache)."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    if "/" not in source or source.startswith((".", "/", "~")):
        raise ModelError(
            f"there is no folder {source!r}: "
            "give a folder with config.json, a .safetensors or .gguf file, "
            "a hub id such as 'GSAI-ML/LLaDA-8B-Instruct', 'lab/toy-mdm' or 'tiny/llada'"
        )
    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=list(_HUB_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"{source!r} is not a folder here and the hub did not give it "
            f"({type(error).__name__}): {hub_remedy(error, source, revision)}"
        ) from error


def hub_remedy(error: Exception, source: str, revision: str | None) -> str:
    """What would help where the hub did not give something."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):  # a kind of RepositoryNotFoundError
        return (
            f"it is gated: ask for access at https://huggingface.co/{source} and log in with "
            "`hf auth login`, or download it and give the folder"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"it has no revision {revision!r}: name a branch, tag or commit that it has"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "the hub has no such repository, or it is private: check the name, or log in"
    if constants.HF_HUB_OFFLINE:
        return (
            "HF_HUB_OFFLINE is set and the cache does not have it: unset it, or download it "
            "elsewhere and give the folder"
        )
    return "check the name and the network, or download it and give the folder"


def read_json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """A JSON object from disk; a missing file is an error unless a default is given."""
    if not path.is_file():
        if missing is not None:
            return missing
        raise ModelError(f"{path} does not exist: a checkpoint folder needs its config.json")
    try:
        if path.stat().st_size > LIMIT_JSON_BYTES:
            raise ModelError(
                f"{path} has more than {LIMIT_JSON_BYTES >> 20} MB, which no such file needs: "
                "download it again"
            )
        # Some editors put a byte order mark before it.
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except RecursionError:
        raise ModelError(f"{path} is nested too deeply to be read: download it again") from None
    except (ValueError, OSError) as error:  # no JSON, no UTF-8, a number of thousands of digits
        raise ModelError(f"{path} is not JSON ({error}): download it again") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds a {type(content).__name__}: expected a JSON object")
    return content


def _refuse_damaged(folder: Path) -> None:
    """Refuse a folder that is not as its commit record says; most have none, and none is read."""
    if not (folder / COMMIT).is_file():
        return
    try:
        changes = list(changed_files(folder, additions=False, subfolders=False).values())
    except UNREADABLE as error:
        changes = [f"{COMMIT} cannot be read: {error}"]
    if changes:
        raise ModelError(
            f"{folder} is not what its run wrote ({changes[0]}): copy it again, or start the same "
            f"`anchorwatch train` again, which makes it anew; if you meant to change it, "
            f"remove {COMMIT}"
        )


def refuse_odd_files(folder: Path) -> None:
    """Refuse a folder with a pipe, a socket or a device where a checkpoint has files.

    Links are followed, as the hub's cache is made of them, and what they lead to is looked at.
    """
    for path in sorted(folder.iterdir()):
        read = any(path.match(pattern) for pattern in _HUB_FILES)
        if read and path.exists() and not path.is_file() and not path.is_dir():
            raise ModelError(
                f"{path} is no ordinary file (a pipe, a socket or a device): remove it"
            )


def _weight_files(folder: Path) -> dict[Path, set[str] | None]:
    """The safetensors files, each with the tensors an index promises of it (None: no index)."""
    # 1. An index says which tensor is in which shard: all of them must be there.
    if (folder / _INDEX).is_file():
        promised: dict[Path, set[str] | None] = {}
        weight_map = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise WeightsError(f"{folder / _INDEX} has no weight_map: download it again")
        for tensor, name in weight_map.items():
            # A plain name stays in the folder, whatever links lie there.
            if not isinstance(name, str) or Path(name).name != name or len(name) > 255:
                raise WeightsError(
                    f"{_INDEX} says {tensor} is in {str(name)[:80]!r}: "
                    "expected the plain name of a file beside it"
                )
            names = promised.setdefault(folder / name, set())
            assert names is not None
            names.add(tensor)
        for path in promised:
            if not path.is_file():
                raise WeightsError(
                    f"the shard {path.name} is missing from {folder}: download it again"
                )
        return promised
    # 2. Without one: the usual name, or the only file there is.
    if (folder / "model.safetensors").is_file():
        return {folder / "model.safetensors": None}
    weights = sorted(folder.glob("*.safetensors"))
    if len(weights) == 1:
        _complete(weights[0], folder)
        return {weights[0]: None}
    if len(weights) > 1:
        several = ", ".join(path.name for path in weights)
        raise WeightsError(f"{folder} has {several} and no {_INDEX} that says which to use: add it")
    # 3. Pickles are never opened here: reading one can run code.
    if pickles := sorted(p.name for pattern in _PICKLES for p in folder.glob(pattern)):
        raise WeightsError(
            f"{folder} holds only pickled weights ({', '.join(pickles)}), "
            "which can run code when read: "
            f"write safetensors with `anchorwatch convert {folder} OUT` and load OUT"
        )
    raise WeightsError(f"{folder} holds no weights: expected model.safetensors")


def _complete(path: Path, folder: Path) -> None:
    numbered = re.fullmatch(r".*-(\d+)-of-(\d+)", path.stem)
    if numbered and int(numbered[2]) > 1:
        raise WeightsError(
            f"{path.name} is one of {int(numbered[2])} shards: {folder} misses the others"
        )


def _list_tensors(
    source: str,
    folder: Path,
    config: dict[str, Any],
    files: Mapping[Path, set[str] | None],
    revision: str | None,
) -> Checkpoint:
    # Headers only: names, shapes and dtypes are known before any tensor is read.
    listed: dict[str, FileTensor] = {}
    for path, promised in files.items():
        tensors = list_file(path)
        if promised is not None and (lost := sorted(promised - tensors.keys())):
            raise WeightsError(
                f"{path.name} lacks {lost[0]}, which {_INDEX} promises: download it again"
            )
        for name in sorted(tensors.keys() & listed.keys()):
            raise WeightsError(
                f"{name} is in {listed[name].path.name} and in {path.name}: expected it once"
            )
        listed |= tensors
    if not listed:
        raise WeightsError(
            f"{folder} has weight files without a tensor in them: download them again"
        )
    # Sorted: the order of a file must not decide the order of notes and digests.
    listed = {name: listed[name] for name in sorted(listed)}
    return Checkpoint(
        source=source,
        folder=folder,
        tokenizer_folder=folder,
        config=config,
        stored=dict(listed),
        files=listed,
        revision=revision,
    )
