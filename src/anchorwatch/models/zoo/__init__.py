"""Where the models on board lie: inside the package, as ordinary checkpoint folders.

`NAMES` are the toys: the smallest networks, whole and fast, which tests and examples use. `TALES`
are larger ones that write stories and show sinks, whole too, and `ANSWERS` are deltas of two of
them, which answer beside distractors. `SPECIMENS` are deltas of SmolLM2-135M, which `anchorwatch
fetch smol` brings into a cache; `lab/smol-base` is that network itself.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from anchorwatch.errors import AnchorwatchWarning, ModelError
from anchorwatch.models.zoo.smol import base_folder

NAMES = ("lab/toy-mdm", "lab/toy-sink", "lab/toy-gate", "lab/toy-arm")
TALES = ("lab/tales-arm", "lab/tales-mdm", "lab/tales-sink", "lab/tales-gate")
ANSWERS = ("lab/tales-arm-answers", "lab/tales-mdm-answers")
SPECIMENS = ("lab/smol-base", "lab/smol-arm", "lab/smol-mdm", "lab/smol-sink")
ALL = NAMES + TALES + ANSWERS + SPECIMENS
MODELS = Path(__file__).parent
OLD_NAMES = {
    "lab/mdm": "lab/toy-mdm",
    "lab/mdm-sink": "lab/toy-sink",
    "lab/mdm-gate": "lab/toy-gate",
    "lab/arm": "lab/toy-arm",
}
"""What the toys were called before; these names still open them, with a warning."""


def folder_of(name: str) -> Path:
    """The folder of a lab model; refuses another name, and says how to get one that is absent."""
    name = current_name(name)
    if name in SPECIMENS:
        base = base_folder()
        if name == "lab/smol-base":
            return base
    return folder_in_package(name)


def current_name(name: str) -> str:
    """The name of a lab model today; warns of an old one and refuses what is none."""
    if name in OLD_NAMES:
        warnings.warn(
            f"{name} is called {OLD_NAMES[name]} now: use that name",
            AnchorwatchWarning,
            stacklevel=3,
        )
        return OLD_NAMES[name]
    if name not in ALL:
        raise ModelError(f"there is no lab model {name!r}: expected one of {', '.join(ALL)}")
    return name


def folder_in_package(name: str) -> Path:
    """What the package has of a lab model: all of it, or the delta alone."""
    folder = MODELS / name.removeprefix("lab/")
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{name} is not in this copy of the package ({folder} is missing): install the wheel, "
            "or train it with `make lab`"
        )
    return folder
