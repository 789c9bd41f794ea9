"""Networks over several devices: GPUs, and what does not fit there on the CPU or on disk.

accelerate decides and moves; here its map is checked, asked where each parameter goes while files
are read, and hooked to the network when it is filled. accelerate is imported when a network has
several devices: it takes longer to import than a small model to run.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from anchorwatch.errors import SpecError

DeviceMap = str | Mapping[str, str | int]
AUTOMATIC = ("auto", "balanced", "balanced_low_0", "sequential")
_HERE = ("cpu", "disk")
"""Devices that keep weights for another one to compute with."""


class Dispatcher:
    """Where each parameter of a network goes, and what is on disk so far."""

    def __init__(self, asked: DeviceMap, network: PreTrainedModel, dtype: torch.dtype) -> None:
        self.network = network
        self.map = _resolve(asked, network, dtype)
        self._folder: str | None = None
        self._index: dict[str, Any] = {}

    def device_of(self, name: str) -> torch.device:
        """Where a parameter is while the network is filled; what goes to disk is read here."""
        device = _entry_of(self.map, name)
        return torch.device("cpu" if device in _HERE else device)

    def store(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A parameter that has been read: those for the disk are written there and let go of."""
        if _entry_of(self.map, name) != "disk":
            return tensor
        from accelerate.utils import offload_weight

        self._index = offload_weight(tensor, name, self.folder, index=self._index)
        return tensor.to("meta")

    @property
    def folder(self) -> str:
        """A folder for weights, removed when the network is let go of."""
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="anchorwatch-offload-")
            weakref.finalize(self.network, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder

    def dispatch(self) -> None:
        """Hook the filled network: weights come to where they are computed with."""
        from accelerate import dispatch_model
        from accelerate.utils import save_offload_index

        if self._index:
            save_offload_index(self._index, self.folder)
        folder = self.folder if "disk" in self.map.values() else None
        dispatch_model(
            self.network, dict(self.map), offload_dir=folder, skip_keys=_skipped(self.network)
        )


def _skipped(network: PreTrainedModel) -> Any:
    return getattr(network, "_skip_keys_device_placement", None)


def _resolve(
    asked: DeviceMap, network: PreTrainedModel, dtype: torch.dtype
) -> dict[str, str | int]:
    """accelerate's map, whole and checked."""
    from accelerate import infer_auto_device_map
    from accelerate.utils import check_device_map, get_balanced_memory

    if isinstance(asked, Mapping):
        named = dict(asked)
    elif asked in AUTOMATIC:
        whole = list(network._no_split_modules or ())
        memory = None
        if asked != "sequential":
            memory = get_balanced_memory(
                network, None, whole, dtype=dtype, low_zero=asked == "balanced_low_0"
            )
        named = infer_auto_device_map(
            network, max_memory=memory, no_split_module_classes=whole, dtype=dtype
        )
    else:
        raise SpecError(
            f"device_map={asked!r} is unknown: expected one of {', '.join(AUTOMATIC)}, "
            "or a mapping of every module, such as {'model': 0, 'lm_head': 'cpu'}"
        )
    try:
        check_device_map(network, named)
    except ValueError as error:
        raise SpecError(f"device_map does not cover the network: {error}") from None
    for name, device in named.items():
        _check_device(name, device)
    if set(named.values()) == {"disk"}:
        raise SpecError(
            "device_map puts everything on disk: something must be computed on, say cpu"
        )
    return named


def _check_device(name: str, device: str | int) -> None:
    if device in _HERE:
        return
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError, ValueError, TypeError, AttributeError):
        raise SpecError(
            f"device_map puts {name or 'everything'} on {device!r}, which cannot be used on this "
            "machine: use 'cpu' or 'disk'"
        ) from None


def _entry_of(mapping: Mapping[str, str | int], name: str) -> str | int:
    """The device of the longest module name that a parameter is inside of."""
    while name not in mapping and name:
        name = name.rpartition(".")[0]
    return mapping[name]


def compute_device(network: PreTrainedModel) -> torch.device:
    """Where a network takes its input."""
    placed: Mapping[str, str | int] | None = getattr(network, "hf_device_map", None)
    if not placed:
        return network.device
    embedding = next(
        name for name, module in network.named_modules() if module is network.get_input_embeddings()
    )
    device = _entry_of(placed, embedding)
    if device in _HERE:
        device = next((other for other in placed.values() if other not in _HERE), "cpu")
    return torch.device(device)


def weight_here(network: PreTrainedModel, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A weight on the CPU, wherever it is kept."""
    if not tensor.is_meta:
        return tensor.detach().cpu()
    from accelerate.utils import align_module_device

    owner, _, leaf = name.rpartition(".")
    module = network.get_submodule(owner)
    with align_module_device(module, execution_device=torch.device("cpu")):
        return getattr(module, leaf).detach().clone()
