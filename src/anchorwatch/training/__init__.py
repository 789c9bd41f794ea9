"""Training: masked diffusion and next-token prediction, with trained parts, on accelerate.

`fit(spec, out)` is all there is to call; `read("SPEC.toml")` gives the spec. An optimiser's step is
an *update* here: a step belongs to denoising.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchorwatch.training.held_out import Bound, answers, bound, by_length
    from anchorwatch.training.loop import Fitted, fit
    from anchorwatch.training.spec import SIZES, Spec, read

_LAZY = {
    "Bound": "held_out",
    "Fitted": "loop",
    "SIZES": "spec",
    "Spec": "spec",
    "answers": "held_out",
    "bound": "held_out",
    "by_length": "held_out",
    "fit": "loop",
    "read": "spec",
}

__all__ = ["SIZES", "Bound", "Fitted", "Spec", "answers", "bound", "by_length", "fit", "read"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'anchorwatch.training' has no attribute {name!r}")
    return getattr(import_module(f"anchorwatch.training.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
