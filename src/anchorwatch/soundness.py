"""What a trace from elsewhere must be before it is taken for one of ours, said in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xarray as xr

from anchorwatch.decoding import from_dict
from anchorwatch.edits import from_dict as edit_from
from anchorwatch.errors import SpecError

_DIMS = {
    "canvas": (("frame", "position"), "i"),
    "role": (("frame", "position"), "i"),
    "committed_at": (("position",), "i"),
    "logprob": (("position",), "f"),
    "mask_chosen": (("step",), "i"),
    "narrow": (("step",), "i"),
    "region": (("position",), "i"),
}
_MANIFEST: dict[str, type] = {
    **{"model": dict, "decoding": dict, "tokens": dict, "answer_positions": list, "seed": int},
    **{"prompt_text": str, "answer_text": str, "regions": list},
}
_MOST = 10_000
"""Layers, or heads of one, that a network may have: they are counted one by one."""
_MODEL: dict[str, type] = {
    **{"source": str, "family": str, "weights": str, "layers": int, "heads": int},
}


def wrong_manifest(manifest: Mapping[str, Any]) -> str | None:
    """The first thing about a foreign manifest that is not as we write it."""
    for name, kind in _MANIFEST.items():
        if type(manifest.get(name)) is not kind:
            return (
                f"the manifest's {name} is {manifest.get(name)!r:.40}, not of type {kind.__name__}"
            )
    for name, kind in _MODEL.items():
        if type(held := manifest["model"].get(name)) is not kind:
            return f"the manifest's model has {name} {held!r:.40}, not of type {kind.__name__}"
    for name in ("layers", "heads"):
        if not 0 < manifest["model"][name] <= _MOST:
            return f"the manifest's model has {manifest['model'][name]} {name}: 1 to {_MOST} can be"
    fork = manifest.get("fork", {"step": 0})
    if not isinstance(fork, dict) or type(fork.get("step")) is not int:
        return f"the manifest's fork is {fork!r:.40}, without a step"
    try:
        from_dict(manifest["decoding"])
        held = (*manifest.get("edits", ()), *manifest["model"].get("parts", ()))
        _ = [edit_from(fields) for fields in held]
        for spelled in manifest.get("token_bytes", {}).values():
            bytes.fromhex(spelled)
    except (SpecError, TypeError, ValueError, AttributeError) as error:
        return str(error)
    return None


def wrong_arrays(dataset: xr.Dataset, answer: list[Any], roles: int) -> str | None:
    """The first thing about foreign arrays that is not as we write it."""
    for name, (dims, kind) in _DIMS.items():
        if dataset[name].dims != dims or dataset[name].dtype.kind != kind:
            return f"{name} is {dataset[name].dtype} over {', '.join(map(str, dataset[name].dims))}"
    frames, positions = dataset["canvas"].shape
    if dataset.sizes["step"] != frames - 1:
        return f"{frames} frames do not fit {dataset.sizes['step']} steps"
    if not answer or not all(type(p) is int and 0 <= p < positions for p in answer):
        return f"its answer is not at positions 0 to {positions - 1}"
    if sorted(set(answer)) != answer:
        return "its answer positions are not in order"
    role = dataset["role"].values
    if role.size and not 0 <= role.min() <= role.max() < roles:
        return f"role holds {role.min()} to {role.max()}: roles are 0 to {roles - 1}"
    return None
