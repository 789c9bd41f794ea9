"""Arrays on their way to the page: a small JSON head, then raw little-endian bytes.

The same bytes go over the local server, into a static folder and into an exported page, so the page
has one decoder. Colours need eight bits only: `codes` keeps 1 to 255 for numbers, 0 for no data.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

LEVELS = 254
"""Steps between the least and the greatest code of a number."""
_ALIGN = 8
_DTYPES = {"u1": np.uint8, "i4": np.int32, "f4": np.float32}


def pack(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None) -> bytes:
    """Head length (uint32), head (JSON, padded), then every array at a multiple of eight bytes."""
    listed, parts, offset = {}, [], 0
    for name, array in arrays.items():
        kind = _kind(name, array)
        raw = np.ascontiguousarray(array, dtype=np.dtype(kind).newbyteorder("<")).tobytes()
        listed[name] = {"dtype": kind, "shape": list(array.shape), "at": offset}
        parts.append(raw + bytes(-len(raw) % _ALIGN))
        offset += len(parts[-1])
    head = json.dumps({"meta": dict(meta or {}), "arrays": listed}, allow_nan=False).encode()
    head += b" " * (-(len(head) + 4) % _ALIGN)
    return b"".join([struct.pack("<I", len(head)), head, *parts])


def unpack(packet: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, meta) of a packet: what the page does, in Python."""
    (length,) = struct.unpack_from("<I", packet)
    head = json.loads(packet[4 : 4 + length])
    arrays = {}
    for name, entry in head["arrays"].items():
        dtype = np.dtype(entry["dtype"]).newbyteorder("<")
        count = int(np.prod(entry["shape"], dtype=np.int64))
        flat = np.frombuffer(packet, dtype, count, 4 + length + entry["at"])
        arrays[name] = flat.reshape(entry["shape"])
    return arrays, head["meta"]


def codes(shares: np.ndarray) -> tuple[np.ndarray, float]:
    """(uint8 codes, greatest share): share = greatest * ((code - 1) / 254) ** 3, code 0 absent.

    The cube root leaves small shares apart: beside a sink of 0.5, 0.001 is off by a twentieth.
    """
    known = ~np.isnan(shares)
    most = float(shares[known].max()) if known.any() else 0.0
    level = np.cbrt(np.where(known, shares, 0.0) / (most or 1.0)) * LEVELS
    return np.where(known, np.rint(level) + 1, 0).astype(np.uint8), most


def decode_shares(coded: np.ndarray, most: float) -> np.ndarray:
    """The shares that codes stand for; NaN where there is none."""
    level = (coded.astype(np.float64) - 1) / LEVELS
    return np.where(coded == 0, np.nan, most * level**3)


def linear_codes(values: np.ndarray) -> tuple[np.ndarray, float, float]:
    """(uint8 codes, least, greatest) of numbers that may be negative; code 0 is absent."""
    known = np.isfinite(values)
    least = float(values[known].min()) if known.any() else 0.0
    most = float(values[known].max()) if known.any() else 0.0
    level = (np.where(known, values, least) - least) / ((most - least) or 1.0) * LEVELS
    return np.where(known, np.rint(level) + 1, 0).astype(np.uint8), least, most


def bin_maxima(values: np.ndarray, width: int) -> np.ndarray:
    """The greatest of each `width` neighbours along the last axis; NaN where all are absent."""
    if width == 1:
        return values
    short = -values.shape[-1] % width
    empty = np.full((*values.shape[:-1], short), np.nan, dtype=values.dtype)
    wide = np.concatenate([values, empty], axis=-1)
    grouped = wide.reshape(*values.shape[:-1], -1, width)
    return np.fmax.reduce(grouped, axis=-1)


def _kind(name: str, array: np.ndarray) -> str:
    for kind, dtype in _DTYPES.items():
        if array.dtype == dtype:
            return kind
    raise TypeError(f"{name} has dtype {array.dtype}: a packet holds {', '.join(_DTYPES)}")
