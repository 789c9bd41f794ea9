"""anchorwatch: the laboratory for attention in masked diffusion language models.

>>> import anchorwatch as aw
>>> trace = aw.run(aw.load("tiny/llada"), "the anchor", aw.decoding.LowConfidence(length=4))

Nothing heavy is imported until a name that needs it is used: reading a trace never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from anchorwatch import decoding, edits, probes, rules
from anchorwatch._version import __version__
from anchorwatch.errors import AnchorwatchError

if TYPE_CHECKING:
    from anchorwatch import evaluation, figures, metrics, stats, training, worlds
    from anchorwatch.diffs import diff
    from anchorwatch.effects import effect
    from anchorwatch.loop import Step
    from anchorwatch.models.loading import load
    from anchorwatch.models.model import Model
    from anchorwatch.replays import fork, replay
    from anchorwatch.runs import plan, run, run_many, steps
    from anchorwatch.trace import Trace, read

_LAZY = {
    "Model": "anchorwatch.models.model",
    "Step": "anchorwatch.loop",
    "Trace": "anchorwatch.trace",
    "diff": "anchorwatch.diffs",
    "effect": "anchorwatch.effects",
    "fork": "anchorwatch.replays",
    "load": "anchorwatch.models.loading",
    "plan": "anchorwatch.runs",
    "read": "anchorwatch.trace",
    "replay": "anchorwatch.replays",
    "run": "anchorwatch.runs",
    "run_many": "anchorwatch.runs",
    "steps": "anchorwatch.runs",
}

_MODULES = ("evaluation", "figures", "metrics", "stats", "training", "worlds")

__all__ = [
    "AnchorwatchError",
    "Model",
    "Step",
    "Trace",
    "__version__",
    "decoding",
    "diff",
    "edits",
    "effect",
    "evaluation",
    "figures",
    "fork",
    "load",
    "metrics",
    "plan",
    "probes",
    "read",
    "replay",
    "rules",
    "run",
    "run_many",
    "stats",
    "steps",
    "training",
    "worlds",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"anchorwatch.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'anchorwatch' has no attribute {name!r}")
    try:
        return getattr(import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if error.name in ("torch", "transformers", "accelerate", "safetensors", "tokenizers"):
            raise ModuleNotFoundError(
                f"aw.{name} needs {error.name}, which is not installed: "
                "pip install 'anchorwatch[run]'",
                name=error.name,
            ) from None
        raise


def __dir__() -> list[str]:
    return sorted(__all__)
