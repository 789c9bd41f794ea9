"""Training: masked diffusion and next-token prediction, with trained parts, on accelerate.

`fit(spec, out)` is all there is to call; `read("SPEC.toml")` gives the spec. An optimiser's step is
an *update* here: a step belongs to denoising.
"""

from typing import TYPE_CHECKING

from anchorwatch import lazy_attributes

if TYPE_CHECKING:
    from anchorwatch.training.corpora import read_corpus
    from anchorwatch.training.data import register_source
    from anchorwatch.training.held_out import NLLBound, answers, by_length, nll_bound
    from anchorwatch.training.loop import Fitted, fit
    from anchorwatch.training.spec import SIZES, Spec, read

_LAZY = {
    "Fitted": "loop",
    "NLLBound": "held_out",
    "SIZES": "spec",
    "Spec": "spec",
    "answers": "held_out",
    "by_length": "held_out",
    "fit": "loop",
    "nll_bound": "held_out",
    "read": "spec",
    "read_corpus": "corpora",
    "register_source": "data",
}

__all__ = [
    "SIZES",
    "Fitted",
    "NLLBound",
    "Spec",
    "answers",
    "by_length",
    "fit",
    "nll_bound",
    "read",
    "read_corpus",
    "register_source",
]


_RENAMED = {"Bound": "NLLBound", "bound": "nll_bound"}

__getattr__ = lazy_attributes("anchorwatch.training", _LAZY, renamed=_RENAMED)


def __dir__() -> list[str]:
    return sorted(__all__)
