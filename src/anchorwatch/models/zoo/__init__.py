"""Where the models on board lie: inside the package, as ordinary checkpoint folders.

`NAMES` are the smallest networks, with all their weights; `TALES` are larger ones that write
stories and show sinks, whole too. `SPECIMENS` are deltas of SmolLM2-135M, which
`anchorwatch fetch smol` brings into a cache; `lab/smol-base` is that network itself.
"""

from __future__ import annotations

from pathlib import Path

from anchorwatch.errors import ModelError
from anchorwatch.models.zoo.smol import base_folder

NAMES = ("lab/mdm", "lab/mdm-sink", "lab/mdm-gate", "lab/arm")
TALES = ("lab/tales-arm", "lab/tales-mdm", "lab/tales-sink")
SPECIMENS = ("lab/smol-base", "lab/smol-arm", "lab/smol-mdm", "lab/smol-sink")
MODELS = Path(__file__).parent


def folder_of(name: str) -> Path:
    """The folder of a lab model; refuses another name, and says how to get one that is absent."""
    if name not in NAMES + TALES + SPECIMENS:
        known = ", ".join(NAMES + TALES + SPECIMENS)
        raise ModelError(f"there is no lab model {name!r}: expected one of {known}")
    if name in SPECIMENS:
        base = base_folder()
        if name == "lab/smol-base":
            return base
    folder = MODELS / name.removeprefix("lab/")
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{name} is not in this copy of the package ({folder} is missing): install the wheel, "
            "or train it with `make lab`"
        )
    return folder
