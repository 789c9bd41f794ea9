"""A trace: the immutable record of one run. Canvas history, what was measured, and the manifest.

On disk it is a Zarr v3 store that plain `xarray.open_zarr` reads without us. Integers that do not
exist are -1 (attr `missing`), floats that do not exist are NaN: absent is not zero.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from xarray.core.indexing import CopyOnWriteArray, MemoryCachedArray

from anchorwatch.edits.spec import Edit
from anchorwatch.edits.spec import from_dict as edit_from
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.generation.decoding import Decoding, from_dict
from anchorwatch.trace import render_html as strip
from anchorwatch.trace import store
from anchorwatch.trace.atomic_io import UNREADABLE, plain
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.schema import (
    ABSENT,
    FRESH,
    MASKED,
    MISSING,
    PROMPT,
    ROLES,
    RUN_FIELDS,
    SCHEMA,
    SCHEMA_VERSION,
    SPECIAL,
    WRITTEN,
    Field,
)
from anchorwatch.trace.validate import ARRAYS, wrong_arrays, wrong_manifest

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ABSENT",
    "FRESH",
    "MASKED",
    "MASK_MARK",
    "MISSING",
    "PROMPT",
    "ROLES",
    "SPECIAL",
    "WRITTEN",
    "Trace",
    "checked_trace",
    "make_trace",
    "read",
]

MASK_MARK = "░"
"""How a masked position is shown."""

_BY_TOKEN = ("tokens", "token_bytes")
"""Parts of a manifest with a text for each token: as many as a vocabulary has."""


class Trace:
    """One run. `trace["canvas"]` is an xarray.DataArray; `trace.manifest` says how to remake it."""

    def __init__(self, dataset: xr.Dataset, manifest: Mapping[str, Any]) -> None:
        self._dataset = dataset
        self._manifest = dict(manifest)
        for variable in dataset.data_vars.values():
            _seal(variable.variable)

    @property
    def manifest(self) -> dict[str, Any]:
        """All it takes to make the trace again (a copy)."""
        return {
            name: dict(value) if name in _BY_TOKEN else plain(value)
            for name, value in self._manifest.items()
        }

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of what the trace holds."""
        return tuple(str(name) for name in self._dataset.data_vars)

    def __getitem__(self, name: str) -> xr.DataArray:
        """A field; its `long_name` says what it is.

        Floats of a trace just run are float32, of one that was read as they are stored: `received`
        is float16 there, unless it was asked for as `received(dtype="float32")`.
        """
        if name not in self._dataset:
            raise TraceError(f"the trace has no {name!r}: it holds {', '.join(self.fields)}")
        array = self._dataset[name]
        return array.copy(deep=False, data=array.variable)  # its own names and attrs, our numbers

    def __contains__(self, name: object) -> bool:
        return name in self.fields

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.fields)

    def dataset(self) -> xr.Dataset:
        """Everything as one xarray.Dataset; `.copy(deep=True)` makes its arrays yours to change."""
        return self._dataset.copy()

    @property
    def canvas(self) -> np.ndarray:
        """[frame, position] token ids, -1 where a position does not exist yet."""
        return self["canvas"].values

    @property
    def masked(self) -> np.ndarray:
        """[frame, position] bool."""
        masked = self["role"].values == MASKED
        masked.flags.writeable = False
        return masked

    @property
    def committed_at(self) -> np.ndarray:
        return self["committed_at"].values

    @property
    def logprob(self) -> np.ndarray:
        return self["logprob"].values

    @property
    def role(self) -> np.ndarray:
        return self["role"].values

    @property
    def own(self) -> np.ndarray:
        """[position] what was given or committed, also where an edit put another token."""
        return self["own_token"].values if "own_token" in self else self.canvas[-1]

    @property
    def given(self) -> np.ndarray:
        """[position] the canvas as it was asked for: the first frame before any edit."""
        first = self.own.copy()
        first[self.answer] = self.canvas[0, self.answer]
        return first

    @property
    def num_steps(self) -> int:
        return len(self.canvas) - 1

    @property
    def answer(self) -> np.ndarray:
        """Positions the run was to write, in order."""
        return np.asarray(self._manifest["answer_positions"], dtype=np.int64)

    @property
    def is_infill(self) -> bool:
        """Whether given positions stand after ones to write, as in a canvas with gaps."""
        return bool(self.answer[0] + len(self.answer) != self.canvas.shape[1])

    @property
    def progress(self) -> np.ndarray:
        """[frame] share of the answer written: a clock that diffusion and autoregression share."""
        written = np.isin(self.role[:, self.answer], (FRESH, WRITTEN))
        return written.mean(axis=1)

    @property
    def num_left_masked(self) -> int:
        """Positions still masked in the last frame."""
        return int(self.masked[-1].sum())

    @property
    def decoding(self) -> Decoding:
        return from_dict(self._manifest["decoding"])

    @property
    def edits(self) -> tuple[Edit, ...]:
        """What was changed inside attention and on the canvas; () for a run as the model is."""
        return tuple(edit_from(fields) for fields in self._manifest.get("edits", ()))

    @property
    def seed(self) -> int:
        return int(self._manifest["seed"])

    @property
    def prompt(self) -> str:
        """The prompt as text."""
        return str(self._manifest["prompt_text"])

    @property
    def text(self) -> str:
        """The answer as text."""
        return str(self._manifest["answer_text"])

    def token(self, token_id: int) -> str:
        """The text of one token that occurs in the trace."""
        if token_id == MISSING:
            return ""
        return str(self._manifest["tokens"].get(str(token_id), f"<{token_id}>"))

    def spell(self, ids: Iterable[int]) -> str:
        """The text of neighbouring tokens; a character split over several is put together."""
        split = self._manifest.get("token_bytes", {})
        text, pending = "", b""
        for token_id in ids:
            if str(token_id) in split:
                pending += bytes.fromhex(split[str(token_id)])
                continue
            text += pending.decode("utf-8", "replace") + self.token(token_id)
            pending = b""
        return text + pending.decode("utf-8", "replace")

    def stretches(
        self, frame: int, positions: Iterable[int] | None = None
    ) -> Iterator[tuple[int, str]]:
        """(role, text) of neighbouring positions of one role; each masked one is a mark."""
        canvas, role = self.canvas[frame].tolist(), self.role[frame].tolist()
        for kind, group in groupby(
            range(len(role)) if positions is None else positions, key=role.__getitem__
        ):
            ids = [canvas[position] for position in group]
            yield kind, MASK_MARK * len(ids) if kind == MASKED else self.spell(ids)

    def digest(self) -> str:
        """SHA-256 of canvas history and edits: the same text in the same order, edited alike."""
        canvas = np.ascontiguousarray(self.canvas.astype("<i4"))
        edits = self._manifest.get("edits")
        edits_json = json.dumps(edits, sort_keys=True).encode() if edits else b""
        return hashlib.sha256(
            str(canvas.shape).encode() + canvas.tobytes() + edits_json
        ).hexdigest()

    def write(self, path: str | Path) -> Path:
        """Write to a directory, whole or not at all; an existing one is never touched."""
        attrs = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "manifest": self._manifest}
        try:
            return store.write(path, self._dataset.assign_attrs(attrs))
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            name = Path(path).name
            raise TraceError(f"the name {name[:20]}... is too long: choose a shorter one") from None

    def show(
        self, beside: Trace | None = None, *, tables: Mapping[str, pd.DataFrame] | None = None
    ) -> Any:
        """The explorer in a notebook, alone or beside another run; elsewhere `anchorwatch view`.

        `tables` are metrics by layer and head, by the names that the head grid gives them.
        """
        from anchorwatch.explorer.notebook import show_in_notebook

        return show_in_notebook(self, beside, tables)

    def __repr__(self) -> str:
        m = self._manifest
        model, left = m["model"], self.num_left_masked
        size = f"{model['layers']} layers x {model['heads']} heads"
        name = f"{model['source']} ({model['family']}, {size})"
        frames = f"{len(self.canvas)} frames x {self.canvas.shape[1]} positions"
        usual, given = (None, 0.0, False), {**m["decoding"]}
        if "approximate" in m:  # the cache as a word
            given["cache"] = m["approximate"]
        spec = ", ".join(f"{k}={v}" for k, v in given.items() if k != "name" and v not in usual)
        how = f"{m['decoding']['name']}({spec})  seed {self.seed}"
        how += f", edited: {', '.join(map(repr, self.edits))}" if self.edits else ""
        how += f", forked at step {m['fork']['step']}" if "fork" in m else ""
        measured = [name for name in self if name not in RUN_FIELDS]
        count = f"{len(measured)} field{'s' * (len(measured) > 1)}"
        kept = f"{_clip(', '.join(measured), 64)} ({count})"
        return "\n".join(
            one_line(line)
            for line in (
                f"Trace {self.digest()[:12]}  {name}, {frames}",
                f"  decoding  {how}" + (f", {left} left masked" if left else ""),
                f"  measured  {kept if measured else 'nothing'}",
                f"  prompt    {_clip(self._given_text() if self.is_infill else self.prompt)}",
                f"  answer    {_clip(self.text)}",
            )
        )

    def _repr_html_(self) -> str:
        rows = {
            frame: [(ROLES[role], text) for role, text in self.stretches(frame) if role != ABSENT]
            for frame in strip.choose_frames(len(self.canvas))
        }
        return strip.film_strip(repr(self).splitlines()[0], rows, len(self.canvas))

    def _given_text(self) -> str:
        """The given text with its gaps, special tokens left out."""
        return "".join(text for kind, text in self.stretches(0) if kind != SPECIAL).strip()


def make_trace(
    *,
    measured: Mapping[str, tuple[Field, np.ndarray]],
    coordinates: Mapping[str, list[str]],
    manifest: Mapping[str, Any],
    **arrays: np.ndarray | None,
) -> Trace:
    """Put arrays and a manifest together, each array as the schema describes it.

    `arrays` are the run's, by the names of `RUN_FIELDS`; one that is not required may be None.
    `measured` are fields of probes and edits.
    """
    documented: dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, Any]]] = {}
    for name, field in RUN_FIELDS.items():
        array = arrays.pop(name, None)
        if array is not None:
            documented[name] = (field.dims, array.astype(field.dtype), field.attrs)
        elif field.required:
            raise TypeError(f"a trace needs {name}")
    if arrays:
        raise TypeError(f"no run field is called {next(iter(arrays))!r}: see trace/schema.py")
    for name, (field, array) in measured.items():
        documented[name] = (field.dims, array, field.attrs)
    dataset = xr.Dataset(documented, coords=dict(coordinates))
    for name, (field, _) in measured.items():
        dataset[name].encoding["dtype"] = field.dtype  # float32 in memory, stored as it says
    return Trace(dataset, manifest)


def checked_trace(value: Any) -> Trace:
    """The trace that was given, or a refusal that says how to get one."""
    if not isinstance(value, Trace):
        raise SpecError(f"{value!r:.60} is not a trace: aw.read(path) and aw.run(...) give one")
    return value


def read(path: str | Path) -> Trace:
    """Read a trace from disk, whole or not at all; needs no torch.

    Every file is compared with the commit record. Large fields are loaded when they are used.
    """
    dataset = store.open_store(path, needed=ARRAYS)
    manifest = dataset.attrs.pop("manifest")
    del dataset.attrs["schema"], dataset.attrs["schema_version"]
    wrong = wrong_manifest(manifest)
    if wrong := wrong or wrong_arrays(dataset, manifest["answer_positions"], len(ROLES)):
        raise TraceError(one_line(f"{path} cannot be read as a trace, make it again: {wrong}"))
    return Trace(dataset, manifest)


class _Sealed(MemoryCachedArray):
    """A stored array, read when it is used, once; nobody can write to it."""

    __slots__ = ()

    def get_duck_array(self) -> np.ndarray:
        try:
            array: np.ndarray = super().get_duck_array()  # type: ignore[no-untyped-call]
        except TraceError:
            raise
        except UNREADABLE as error:
            raise TraceError(
                f"a field cannot be read ({error}): the trace was changed since it was opened, "
                "copy it again"
            ) from error
        array.flags.writeable = False
        return array


def _seal(variable: xr.Variable) -> None:
    data: Any = variable._data  # `.data` would load it
    if isinstance(data, np.ndarray):
        data.flags.writeable = False
        return
    while isinstance(data, MemoryCachedArray | CopyOnWriteArray):  # xarray's own, both writable
        data = data.array
    variable.data = _Sealed(data)  # type: ignore[no-untyped-call]


def _clip(text: str, width: int = 78) -> str:
    flat = one_line(text)
    return flat if len(flat) <= width else f"{flat[: width - 1]}…"
