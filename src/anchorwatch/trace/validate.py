"""What a trace from elsewhere must be before it is taken for one of ours, said in words."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import xarray as xr

from anchorwatch.edits.spec import from_dict as edit_from
from anchorwatch.errors import SpecError
from anchorwatch.generation.decoding import from_dict
from anchorwatch.trace.schema import MANIFEST, MANIFEST_MODEL, RUN_FIELDS

ARRAYS = tuple(name for name, field in RUN_FIELDS.items() if field.required)
"""What every trace has."""
_MOST = 10_000
"""Layers, or heads of one, that a network may have: they are counted one by one."""


def wrong_manifest(manifest: Mapping[str, Any]) -> str | None:
    """The first thing about a foreign manifest that is not as we write it."""
    for name, kind in MANIFEST.items():
        if type(manifest.get(name)) is not kind:
            return (
                f"the manifest's {name} is {manifest.get(name)!r:.40}, not of type {kind.__name__}"
            )
    for name, kind in MANIFEST_MODEL.items():
        if type(value := manifest["model"].get(name)) is not kind:
            return f"the manifest's model has {name} {value!r:.40}, not of type {kind.__name__}"
    for name in ("layers", "heads"):
        if not 0 < manifest["model"][name] <= _MOST:
            return f"the manifest's model has {manifest['model'][name]} {name}: 1 to {_MOST} can be"
    fork = manifest.get("fork", {"step": 0})
    if not isinstance(fork, dict) or type(fork.get("step")) is not int:
        return f"the manifest's fork is {fork!r:.40}, without a step"
    try:
        from_dict(manifest["decoding"])
        value = (*manifest.get("edits", ()), *manifest["model"].get("parts", ()))
        _ = [edit_from(fields) for fields in value]
        for spelled in manifest.get("token_bytes", {}).values():
            bytes.fromhex(spelled)
    except (SpecError, TypeError, ValueError, AttributeError) as error:
        return str(error)
    return None


def wrong_arrays(dataset: xr.Dataset, answer: list[Any], roles: int) -> str | None:
    """The first thing about foreign arrays that is not as we write it."""
    for name in ARRAYS:
        if problem := wrong_array(name, dataset[name], roles):
            return problem
    frames, positions = dataset["canvas"].shape
    if dataset.sizes["step"] != frames - 1:
        return f"{frames} frames do not fit {dataset.sizes['step']} steps"
    return wrong_answer(answer, positions)


def wrong_array(name: str, array: xr.DataArray, roles: int) -> str | None:
    """What is not as we write it about one of the arrays that every trace has."""
    field = RUN_FIELDS[name]
    if array.dims != field.dims or array.dtype.kind != field.kind:
        return f"{name} is {array.dtype} over {', '.join(map(str, array.dims))}"
    values = array.values if name == "role" else None
    if values is not None and values.size and not 0 <= values.min() <= values.max() < roles:
        return f"role holds {values.min()} to {values.max()}: roles are 0 to {roles - 1}"
    return None


def wrong_answer(answer: list[Any], positions: int) -> str | None:
    """What is not as we write it about the positions of the answer."""
    if not answer or not all(type(p) is int and 0 <= p < positions for p in answer):
        return f"its answer is not at positions 0 to {positions - 1}"
    return None if sorted(set(answer)) == answer else "its answer positions are not in order"


def left_out(root: bytes, names: Collection[str]) -> bytes:
    """The metadata of a store as if it had no variables of these names."""
    if not names:
        return root
    metadata = json.loads(root)
    known = metadata["consolidated_metadata"]["metadata"]
    metadata["consolidated_metadata"]["metadata"] = {n: known[n] for n in known if n not in names}
    return json.dumps(metadata).encode()
