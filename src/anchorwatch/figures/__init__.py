"""Figures for papers: vector, colour-blind safe, with token labels, and each remembers its traces.

>>> from anchorwatch import figures
>>> figures.whence  # doctest: +ELLIPSIS
<function whence at ...>

Nothing here touches pyplot or any setting of matplotlib outside of its own drawing. `whence` needs
no matplotlib at all.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure
    from anchorwatch.figures.maps import map_pair, sink_map
    from anchorwatch.figures.origins import whence

_LAZY = {
    "Figure": "anchorwatch.figures.figure",
    "map_pair": "anchorwatch.figures.maps",
    "sink_map": "anchorwatch.figures.maps",
    "whence": "anchorwatch.figures.origins",
}

__all__ = ["Figure", "map_pair", "sink_map", "whence"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'anchorwatch.figures' has no attribute {name!r}")
    try:
        return getattr(import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] == "matplotlib":
            raise ModuleNotFoundError(
                f"aw.figures.{name} needs matplotlib, which is not installed: "
                "pip install 'anchorwatch[plot]'",
                name="matplotlib",
            ) from None
        raise


def __dir__() -> list[str]:
    return sorted(__all__)
