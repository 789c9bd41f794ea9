"""Names of a package that are imported when they are used; says what to install for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any

_RUN, _TRAIN, _EVAL, _EXPLORE = (
    f"'anchorwatch[{extra}]'" for extra in ("run", "train", "eval", "explore")
)
INSTALLS = {
    "torch": _RUN,
    "transformers": _RUN,
    "accelerate": _RUN,
    "safetensors": _RUN,
    "tokenizers": _RUN,
    "huggingface_hub": _RUN,
    "pydantic": _TRAIN,
    "peft": _TRAIN,
    "lm_eval": _EVAL,
    "starlette": _EXPLORE,
    "uvicorn": _EXPLORE,
    "matplotlib": "matplotlib",
}
"""What pip is to install, by the module that is missing."""


def attributes(
    package: str, homes: Mapping[str, str], modules: Collection[str] = ()
) -> Callable[[str], Any]:
    """A package's `__getattr__`: names by the module inside it that has them, and whole modules."""

    def find(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{package}.{homes[name]}"), name)
        except ModuleNotFoundError as error:
            asked = f"{package}.{name}".replace("anchorwatch", "aw", 1)
            raise said(error, asked) from None

    return find


def said(error: ModuleNotFoundError, asked: str) -> ModuleNotFoundError:
    """The error with what to install, where that is known."""
    lost = (error.name or "").partition(".")[0]
    if lost not in INSTALLS or "pip install" in str(error):
        return error
    return ModuleNotFoundError(
        f"{asked} needs {lost}, which is not installed: pip install {INSTALLS[lost]}", name=lost
    )
