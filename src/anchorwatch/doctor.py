"""What this machine has, and whether the embedded models compute what they should here."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import asdict, dataclass
from typing import Any

from anchorwatch._version import __version__
from anchorwatch.errors import AnchorwatchError

_NEEDED = ("numpy", "xarray", "zarr")
_RUNNING = ("torch", "transformers", "safetensors", "tokenizers", "accelerate")
_EXTRAS = {"train": "peft", "eval": "lm_eval", "sweep": "ray", "explore": "starlette"}


@dataclass(frozen=True)
class Finding:
    """One thing looked at."""

    name: str
    says: str
    good: bool = True

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def examine() -> list[Finding]:
    """Look at versions, devices, extras, and run each embedded model's own checks."""
    findings = [Finding("anchorwatch", f"{__version__} on Python {platform.python_version()}")]
    findings += [_package(name) for name in _NEEDED]
    running = [_package(name) for name in _RUNNING]
    findings += running
    for extra, module in _EXTRAS.items():
        there = importlib.util.find_spec(module) is not None
        says = "installed" if there else f"absent: pip install 'anchorwatch[{extra}]'"
        findings.append(Finding(f"[{extra}]", says))
    if all(finding.good for finding in running):
        findings += _devices() + _embedded()
    return findings


def _package(name: str) -> Finding:
    if importlib.util.find_spec(name) is None:
        return Finding(name, "missing: pip install 'anchorwatch[run]'", good=False)
    return Finding(name, importlib.metadata.version(name))


def _devices() -> list[Finding]:
    import torch

    accelerator = torch.accelerator.current_accelerator()
    where = str(accelerator) if accelerator else "no accelerator: float32 on the CPU"
    offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
    hub = "offline (HF_HUB_OFFLINE is set): folders and cached models only"
    hub = hub if offline else "asked for what is not a folder here"
    return [
        Finding("device", f"{where}, {torch.get_num_threads()} threads"),
        Finding("hub", hub),
    ]


def _embedded() -> list[Finding]:
    from anchorwatch.models.loading import load
    from anchorwatch.models.tiny import NAMES

    findings = []
    for name in NAMES:
        try:
            laws = load(name, device="cpu").check()
            findings.append(Finding(name, f"{len(laws)} laws hold"))
        except AnchorwatchError as error:
            findings.append(Finding(name, str(error), good=False))
    return findings
