"""A checkpoint that says only how it differs from another: low-rank adapters, rows, whole tensors.

    DELTA/config.json           of the whole model, with
                                "anchorwatch": {"delta": {"from": ..., "digest": ..., "scale": ...}}
    DELTA/delta.safetensors     NAME.down, NAME.up    added to NAME.weight: scale * up @ down
                                NAME.row.ID           in place of this row of NAME.weight
                                any other name        a whole tensor, new or instead of the other's

`from` is what `aw.load` takes, or a folder seen from this one. `digest` is of the tensors of that
checkpoint that are changed, so that a delta is never put on another network.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from anchorwatch.errors import ModelError, WeightsError

FILE = "delta.safetensors"
_ROW = re.compile(r"(.+)\.row\.(\d+)")


@dataclass(frozen=True)
class Delta:
    """What is changed of another checkpoint."""

    source: str
    """The other checkpoint."""
    digest: str
    scale: float
    tensors: dict[str, torch.Tensor] = field(repr=False)

    @property
    def whole_tensors(self) -> dict[str, torch.Tensor]:
        """Tensors that stand for themselves."""
        return {
            name: tensor
            for name, tensor in self.tensors.items()
            if not name.endswith((".down", ".up")) and not _ROW.fullmatch(name)
        }

    @property
    def changed_names(self) -> set[str]:
        """Names of the other checkpoint's tensors that are changed, not replaced."""
        named = (
            name.rpartition(".")[0] if name.endswith((".down", ".up")) else _ROW.sub(r"\1", name)
            for name in self.tensors.keys() - self.whole_tensors.keys()
        )
        return {f"{name}.weight" for name in named}

    def rows_of(self, name: str) -> dict[int, torch.Tensor]:
        """New rows of a tensor, by their number."""
        module = name.removesuffix(".weight")
        matches = ((_ROW.fullmatch(key), tensor) for key, tensor in self.tensors.items())
        return {
            int(match[2]): tensor
            for match, tensor in matches
            if match is not None and match[1] == module
        }

    def shape_of(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a tensor when the delta is on it: rows may be added at the end."""
        if name in self.whole_tensors:
            return tuple(self.whole_tensors[name].shape)
        return (max((shape[0], *(index + 1 for index in self.rows_of(name)))), *shape[1:])

    def apply(
        self, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The other checkpoint's tensors with the delta on them, then those it adds."""
        # 1. Pass the base's tensors on, changed where the delta says so, and hash what is changed.
        digests: dict[str, str] = {}
        for name, tensor in tensors:
            if name in self.changed_names:
                digests[name] = digest_of(tensor)
                yield name, self._change_tensor(name, tensor)
            elif name not in self.whole_tensors:
                yield name, tensor
        # 2. Only now is it known whether all of them are those the delta was trained on.
        if combine_digests(digests) != self.digest:
            raise WeightsError(
                f"{self.source} is not the network that this delta was made for (the tensors it "
                "changes have another digest): give it the one that config.json names"
            )
        # 3. Tensors that the base does not have, or that replace its own.
        yield from self.whole_tensors.items()

    def _change_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        # In float32: W + scale * up @ down, then single rows; loading rounds to the asked dtype.
        module, changed = name.removesuffix(".weight"), tensor.float()
        if f"{module}.up" in self.tensors:
            up, down = (self.tensors[f"{module}.{side}"].float() for side in ("up", "down"))
            changed = changed + self.scale * (up @ down)
        if rows := self.rows_of(name):
            # A new mask token may lie beyond the last row of the base's embedding.
            full = changed.new_zeros(self.shape_of(name, tuple(changed.shape)))
            full[: len(changed)] = changed
            for index, row in rows.items():
                full[index] = row.float()
            changed = full
        return changed


def digest_of(tensor: torch.Tensor) -> str:
    """SHA-256 of a tensor's numbers, whatever float type holds them."""
    # float16 and bfloat16 are exact in float32: the digest is the same whatever stored them.
    plain = tensor.detach().cpu().float().contiguous()
    return hashlib.sha256(plain.numpy().tobytes()).hexdigest()


def combine_digests(digests: Mapping[str, str]) -> str:
    """One digest of several tensors, by their names."""
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()


def read_delta(folder: Path, config: Mapping[str, Any]) -> Delta | None:
    """The delta that a folder holds; None where config.json names none."""
    trained = config.get("anchorwatch")
    declared = trained.get("delta") if isinstance(trained, dict) else None
    if declared is None:
        return None
    kinds = {"from": str, "digest": str, "scale": float}
    if not isinstance(declared, dict) or any(
        type(declared.get(n)) is not k for n, k in kinds.items()
    ):
        raise ModelError(
            f"config.json says delta={declared!r}: expected a table with from, digest and scale"
        )
    try:
        tensors = load_file(folder / FILE)
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{folder / FILE} cannot be read ({error}): get it again") from None
    delta = Delta(declared["from"], declared["digest"], declared["scale"], tensors)
    # Low-rank factors come in pairs: one without the other is a damaged file.
    for name in delta.tensors:
        pair = name.removesuffix(".up") + ".down" if name.endswith(".up") else name
        if pair.endswith(".down") and not {pair, pair[:-5] + ".up"} <= tensors.keys():
            raise WeightsError(f"{FILE} holds {name} and not its other half: get it again")
    return delta
