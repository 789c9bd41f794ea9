"""What this machine has, and whether the embedded models compute what they should here."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import asdict, dataclass
from typing import Any

from anchorwatch import __version__
from anchorwatch.errors import AnchorwatchError

_NEEDED = ("numpy", "xarray", "zarr", "rich")
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
    for name in _NEEDED:
        lost = Finding(name, "missing: pip install anchorwatch", good=False)
        findings.append(Finding(name, _version(name)) if _is_there(name) else lost)
    findings += [Finding(name, _version(name)) for name in _RUNNING if _is_there(name)]
    if absent := [name for name in _RUNNING if not _is_there(name)]:
        says = f"absent ({', '.join(absent)}): traces can be read; to run models, "
        findings.append(Finding("[run]", f"{says}pip install 'anchorwatch[run]'"))
    for extra, module in _EXTRAS.items():
        says = f"absent: pip install 'anchorwatch[{extra}]'"
        findings.append(Finding(f"[{extra}]", "installed" if _is_there(module) else says))
    return findings if absent else findings + _surroundings() + _check_embedded_models()


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "installed, version unknown"


def _surroundings() -> list[Finding]:
    import torch

    accelerator = torch.accelerator.current_accelerator()
    where = str(accelerator) if accelerator else "no accelerator: float32 on the CPU"
    offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
    hub = "online: a model that is no folder here is downloaded from huggingface.co, once"
    if offline:
        hub = "offline (HF_HUB_OFFLINE is set): folders and models downloaded before, no others"
    return [
        Finding("device", f"{where}, {torch.get_num_threads()} threads"),
        Finding("hub", hub),
    ]


def _check_embedded_models() -> list[Finding]:
    from anchorwatch.models import tiny
    from anchorwatch.models import zoo as lab
    from anchorwatch.models.load import load
    from anchorwatch.models.zoo.describe import describe_model

    findings = []
    for name in (*lab.NAMES, *lab.TALES, *lab.ANSWERS, *tiny.NAMES):
        try:
            laws = load(name, device="cpu").check()
            findings.append(Finding(name, f"{len(laws)} laws hold"))
        except (AnchorwatchError, RuntimeError) as error:  # torch's own are RuntimeErrors
            findings.append(Finding(name, str(error), good=False))
    base = "there" if describe_model("lab/smol-base").bytes else "absent: anchorwatch fetch smol"
    findings.append(Finding("lab/smol-*", f"not checked; their base is {base}"))
    return findings
