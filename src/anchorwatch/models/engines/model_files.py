"""Which files a checkpoint is read from, and whether they are still the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from anchorwatch.errors import ModelError
from anchorwatch.models import deltas
from anchorwatch.models.checkpoint import open_checkpoint
from anchorwatch.models.engines.jobs import ModelFiles, ModelRef
from anchorwatch.models.load_options import LoadOptions
from anchorwatch.models.model import Model
from anchorwatch.trace.atomic_io import read_json

_MADE = ("tiny/", "wired/")
"""Models that are made by code and have no files."""
_DECIDING = (".json", ".safetensors", ".gguf", ".model", ".txt", ".jinja")
"""Files that decide what a checkpoint computes: config, weights, tokenizer, chat template."""
_THREADS = 8


def digest_files(source: str, loading: LoadOptions) -> ModelFiles:
    """The digest of a model's files; every byte is read once."""
    if source.startswith(_MADE):
        return ModelFiles(loading.load(source).digest)
    files = sorted(set(_list_files(source, loading.revision)))
    with ThreadPoolExecutor(_THREADS) as pool:
        digests = list(pool.map(_digest_file, files))
    whole = hashlib.sha256()
    for path, digest in zip(files, digests, strict=True):
        whole.update(f"{path.name}\0{digest}\n".encode())
    return ModelFiles(whole.hexdigest(), tuple(_stat(path) for path in files))


def largest_model(refs: Iterable[ModelRef]) -> int:
    """Bytes of the largest checkpoint; its files are counted, not read."""
    return max((_count_bytes(ref) for ref in set(refs)), default=0)


def _count_bytes(ref: ModelRef) -> int:
    if ref.files is not None:
        return ref.files.num_bytes
    if ref.source.startswith(_MADE):
        return 0
    return sum(path.stat().st_size for path in set(_list_files(ref.source, ref.loading.revision)))


def refuse_changed_files(ref: ModelRef, loaded: Model | None = None) -> None:
    """Refuse a model whose files are others than those the jobs are named after.

    Files with the same sizes and times of change are taken as the same; others are read again. A
    model without files is compared by the weights that were loaded.
    """
    assert ref.files is not None
    if ref.source.startswith(_MADE):
        same = loaded is None or loaded.digest == ref.files.digest
    else:
        stats = tuple(
            _stat(path) for path in sorted(set(_list_files(ref.source, ref.loading.revision)))
        )
        same = stats == ref.files.stats or (
            digest_files(ref.source, ref.loading).digest == ref.files.digest
        )
    if not same:
        raise ModelError(
            f"the files of {ref.source} were changed since the work was planned: start the same "
            "command again, which plans it for the new files, or put the old ones back"
        )


def _list_files(source: str, revision: str | None) -> Iterator[Path]:
    if source.endswith(".gguf"):
        yield Path(source).expanduser()
        return
    folder = open_checkpoint(source, revision, check=False).folder
    yield from (path for path in folder.iterdir() if path.suffix in _DECIDING and path.is_file())
    config = folder / "config.json"
    if config.is_file() and (delta := deltas.read_delta(folder, read_json(config))) is not None:
        beside = folder / delta.source
        yield from _list_files(str(beside) if beside.is_dir() else delta.source, None)


def _digest_file(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _stat(path: Path) -> tuple[str, int, int]:
    stat = path.stat()
    return str(path), stat.st_size, stat.st_mtime_ns
