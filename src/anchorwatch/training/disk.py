"""The checkpoints in a run's folder, and what is said when the disk takes no more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anchorwatch.errors import AnchorwatchError, TrainingError

CHECKPOINTS = "checkpoints"


def list_checkpoints(out: Path) -> list[tuple[int, Path]]:
    """Updates and folder of every checkpoint, the newest last."""
    found = (
        (int(match[1]), path)
        for path in (out / CHECKPOINTS).glob("update-*")
        if (match := re.fullmatch(r"update-(\d{8,12})", path.name))
    )
    return sorted(found)


@contextmanager
def explain_write_errors(what: str, path: Path, out: Path) -> Iterator[None]:
    """Say what could not be written inside, and from where the run in `out` will go on."""
    try:
        yield
    except Exception as error:
        if not _is_of_the_disk(error):
            raise
        raise TrainingError(
            f"{what} could not be written to {path} ({getattr(error, 'strerror', None) or error}): "
            f"{_describe_kept(out)}; make room on the disk, or make the folder writable, and start "
            "the same command again"
        ) from error


def _describe_kept(out: Path) -> str:
    found = list_checkpoints(out)
    return f"the checkpoint of update {found[-1][0]} is kept" if found else "no checkpoint was made"


def _is_of_the_disk(error: Exception) -> bool:
    """What the disk said; safetensors and torch wrap it."""
    wrapped = type(error).__name__ == "SafetensorError" or "No space left" in str(error)
    return isinstance(error, OSError) or (wrapped and not isinstance(error, AnchorwatchError))
