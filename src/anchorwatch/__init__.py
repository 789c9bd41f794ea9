"""anchorwatch: the laboratory for attention in masked diffusion language models.

>>> import anchorwatch as aw
>>> trace = aw.run(aw.load("tiny/llada"), "the anchor", aw.decoding.LowConfidence(length=4))

Nothing heavy is imported until a name that needs it is used: reading a trace never imports torch.
"""

from typing import TYPE_CHECKING

from anchorwatch import decoding, edits, probes, rules
from anchorwatch._version import __version__
from anchorwatch.errors import AnchorwatchError
from anchorwatch.lazy import attributes

if TYPE_CHECKING:
    from anchorwatch import evaluation, figures, lab, metrics, stats, training, worlds
    from anchorwatch.diffs import diff
    from anchorwatch.effects import effect
    from anchorwatch.loop import Step
    from anchorwatch.models.loading import load
    from anchorwatch.models.model import Model
    from anchorwatch.replays import fork, replay
    from anchorwatch.runs import plan, run, run_many, steps
    from anchorwatch.trace import Trace, read

_LAZY = {
    "Model": "models.model",
    "Step": "loop",
    "Trace": "trace",
    "diff": "diffs",
    "effect": "effects",
    "fork": "replays",
    "load": "models.loading",
    "plan": "runs",
    "read": "trace",
    "replay": "replays",
    "run": "runs",
    "run_many": "runs",
    "steps": "runs",
}

_MODULES = ("evaluation", "figures", "lab", "metrics", "stats", "training", "worlds")

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
    "lab",
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


__getattr__ = attributes("anchorwatch", _LAZY, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
