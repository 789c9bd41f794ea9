"""Where the trained models of the lab lie: inside the package, as ordinary checkpoint folders."""

from __future__ import annotations

from pathlib import Path

from anchorwatch.errors import ModelError

NAMES = ("lab/mdm", "lab/mdm-sink", "lab/mdm-gate", "lab/arm")
MODELS = Path(__file__).parent


def folder_of(name: str) -> Path:
    """The folder of a lab model; refuses another name, and says how to make one that is absent."""
    if name not in NAMES:
        raise ModelError(f"there is no lab model {name!r}: expected one of {', '.join(NAMES)}")
    folder = MODELS / name.removeprefix("lab/")
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{name} is not in this copy of the package ({folder} is missing): install the wheel, "
            "or train it with `make lab`"
        )
    return folder
