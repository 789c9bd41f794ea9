"""Tensors of safetensors files, read row by row into memory of our own.

A memory map would do with less code, but its pages count as resident memory until the file is
closed, and a file that changes under a map changes the weights. Here a tensor costs what is asked
of it and nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

import torch
from safetensors import SafetensorError, safe_open

from anchorwatch.errors import WeightsError

CHUNK_BYTES = 1 << 25
"""Bytes that are read at once."""

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
"""torch's dtype of each code of a safetensors header."""


class StoredTensor(Protocol):
    """A tensor that is somewhere else: its shape and dtype are known, its numbers are read."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def read(self) -> torch.Tensor:
        """The whole tensor, on the CPU."""
        ...

    def chunks(self) -> Iterator[torch.Tensor]:
        """Its numbers in order, flat, some at a time; each only until the next is asked for."""
        ...

    def fill(self, target: torch.Tensor) -> Iterator[torch.Tensor]:
        """Copy it into a contiguous tensor of any device and float dtype; what is done, as done."""
        ...


class LocatedTensor(StoredTensor, Protocol):
    """A stored tensor of a file, which are read in the order in which they lie there."""

    @property
    def path(self) -> Path: ...

    @property
    def offset(self) -> int: ...


@dataclass(frozen=True)
class MemoryTensor:
    """A tensor that is in memory already."""

    tensor: torch.Tensor = field(repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def read(self) -> torch.Tensor:
        return self.tensor

    def chunks(self) -> Iterator[torch.Tensor]:
        yield self.tensor.reshape(-1)

    def fill(self, target: torch.Tensor) -> Iterator[torch.Tensor]:
        yield target.copy_(self.tensor)


@dataclass(frozen=True)
class FileTensor:
    """A tensor inside a safetensors file."""

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    """Of its first byte, from the beginning of the file."""

    def read(self) -> torch.Tensor:
        whole = torch.empty(self.shape, dtype=self.dtype)
        for _ in self.fill(whole):
            pass
        return whole

    def chunks(self) -> Iterator[torch.Tensor]:
        with self._open() as file:
            buffer = torch.empty(self._counts()[0] if self._counts() else 0, dtype=self.dtype)
            for count in self._counts():
                self._read_into(file, buffer[:count])
                yield buffer[:count]

    def fill(self, target: torch.Tensor) -> Iterator[torch.Tensor]:
        flat, start = target.view(-1), 0
        if target.device.type == "cpu" and target.dtype == self.dtype:
            # Nothing to convert: read straight into the target, without another copy.
            with self._open() as file:
                for count in self._counts():
                    self._read_into(file, flat[start : start + count])
                    yield flat[start : start + count]
                    start += count
            return
        for chunk in self.chunks():
            yield flat[start : start + len(chunk)].copy_(chunk)
            start += len(chunk)

    def _open(self) -> BinaryIO:
        file = self.path.open("rb", buffering=0)
        file.seek(self.offset)
        return file

    def _counts(self) -> list[int]:
        """How many numbers each read takes."""
        total, most = math.prod(self.shape), CHUNK_BYTES // self.dtype.itemsize
        return [min(most, total - start) for start in range(0, total, most)]

    def _read_into(self, file: BinaryIO, target: torch.Tensor) -> None:
        view = target.view(torch.uint8).numpy().data
        while len(view):
            count = file.readinto(view)  # type: ignore[attr-defined]
            if not count:
                raise WeightsError(f"{self.path} became shorter while it was read: load it again")
            view = view[count:]


def list_file(path: Path) -> dict[str, FileTensor]:
    """Every tensor of a safetensors file, from its header alone."""
    if _is_pointer(path):
        raise WeightsError(
            f"{path} is a pointer of Git LFS, not the weights: run `git lfs pull` in its folder or "
            "download the file itself"
        )
    # 1. The library checks the header: sizes, offsets, no holes, nothing behind the end.
    try:
        with safe_open(path, framework="pt") as handle:
            names = set(handle.keys())
        # 2. The same header again, for the offsets, which the library keeps to itself.
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsError(
            f"{path} cannot be read as safetensors ({error}): download it again"
        ) from None
    tensors = {}
    for name in names:
        entry = header[name]
        if entry["dtype"] not in _DTYPES:
            raise WeightsError(
                f"{name} in {path.name} is {entry['dtype']}, which no weights are kept as: "
                "load the checkpoint in bfloat16"
            )
        begin = 8 + size + entry["data_offsets"][0]
        shape = tuple(entry["shape"])
        tensors[name] = FileTensor(path, shape, _DTYPES[entry["dtype"]], begin)
    return tensors


def _is_pointer(path: Path) -> bool:
    """Whether a clone without Git LFS left its note in place of the file."""
    try:
        with path.open("rb") as file:
            return file.read(len(_POINTER)) == _POINTER
    except OSError:
        return False  # said where the file is read


_POINTER = b"version https://git-lfs"
