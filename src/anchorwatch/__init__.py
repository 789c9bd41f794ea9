"""anchorwatch: the laboratory for attention in masked diffusion language models.

>>> import anchorwatch as aw
>>> trace = aw.run(aw.load("tiny/llada"), "the anchor", aw.decoding.LowConfidence(length=4))

Every public name is imported when it is first used: reading a trace never imports torch.
"""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchorwatch import edits, evaluation, figures, metrics, probes, studies, sweeps, training
    from anchorwatch.errors import AnchorwatchError
    from anchorwatch.evaluation import synthetic as worlds
    from anchorwatch.evaluation.effect import effect
    from anchorwatch.generation import decoding
    from anchorwatch.generation.loop import Step
    from anchorwatch.generation.replay import fork, replay
    from anchorwatch.generation.run import observe, plan, run, run_many, run_resizing, steps
    from anchorwatch.metrics import sink_rules as rules
    from anchorwatch.metrics import stats
    from anchorwatch.models.load import load
    from anchorwatch.models.model import Model
    from anchorwatch.sweeps.sweep import sweep
    from anchorwatch.trace.diff import diff
    from anchorwatch.trace.runs import open_runs
    from anchorwatch.trace.trace import Trace, read
    from anchorwatch.training import lab

__version__ = "0.1.0"

_RUN, _TRAIN, _EVAL, _EXPLORE, _SWEEP = (
    f"'anchorwatch[{extra}]'" for extra in ("run", "train", "eval", "explore", "sweep")
)
_INSTALLS = {
    "torch": _RUN,
    "transformers": _RUN,
    "accelerate": _RUN,
    "safetensors": _RUN,
    "tokenizers": _RUN,
    "huggingface_hub": _RUN,
    "pydantic": _TRAIN,
    "ray": _SWEEP,
    "fsspec": _SWEEP,
    "pyarrow": _SWEEP,
    "peft": _TRAIN,
    "lm_eval": _EVAL,
    "starlette": _EXPLORE,
    "uvicorn": _EXPLORE,
    "matplotlib": "matplotlib",
}
"""What pip is to install, by the module that is missing."""

_NAMES = {
    "AnchorwatchError": "errors",
    "Model": "models.model",
    "Step": "generation.loop",
    "Trace": "trace.trace",
    "compare_caches": "evaluation.compare_caches",
    "diff": "trace.diff",
    "effect": "evaluation.effect",
    "fork": "generation.replay",
    "load": "models.load",
    "observe": "generation.run",
    "open_runs": "trace.runs",
    "plan": "generation.run",
    "read": "trace.trace",
    "replay": "generation.replay",
    "run": "generation.run",
    "run_many": "generation.run",
    "run_resizing": "generation.run",
    "steps": "generation.run",
    "sweep": "sweeps.sweep",
}
"""Public functions and classes, by the module that has them."""

_MODULES = {
    "caches": "generation.caches",
    "decoding": "generation.decoding",
    "edits": "edits",
    "evaluation": "evaluation",
    "figures": "figures",
    "lab": "training.lab",
    "metrics": "metrics",
    "probes": "probes",
    "rules": "metrics.sink_rules",
    "stats": "metrics.stats",
    "studies": "studies",
    "sweeps": "sweeps",
    "training": "training",
    "worlds": "evaluation.synthetic",
}
"""Public modules, by where they are."""

__all__ = [
    "AnchorwatchError",
    "Model",
    "Step",
    "Trace",
    "__version__",
    "caches",
    "compare_caches",
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
    "observe",
    "open_runs",
    "plan",
    "probes",
    "read",
    "replay",
    "rules",
    "run",
    "run_many",
    "run_resizing",
    "stats",
    "steps",
    "studies",
    "sweep",
    "sweeps",
    "training",
    "worlds",
]


def lazy_attributes(
    package: str,
    names: Mapping[str, str],
    modules: Mapping[str, str] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> Callable[[str], Any]:
    """A package's `__getattr__`: imports a name, or a module, when it is first used.

    `names` and `modules` say in which module of the package each is; `renamed` says what an old
    name is now, which works and warns.
    """
    homes = modules or {}

    def import_attribute(name: str) -> Any:
        if renamed is not None and name in renamed:
            new = renamed[name]
            warnings.warn(f"{package}.{name} is now {new}", DeprecationWarning, stacklevel=2)
            return import_attribute(new)
        if name in homes:
            return import_module(f"{package}.{homes[name]}")
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{package}.{names[name]}"), name)
        except ModuleNotFoundError as error:
            public_name = f"{package}.{name}".replace("anchorwatch", "aw", 1)
            raise explain_missing_module(error, public_name) from None

    return import_attribute


def renamed_method(old: str, new: str) -> Callable[..., Any]:
    """A method under its old name, which works and warns."""

    def call(self: Any, *arguments: Any) -> Any:
        kind = type(self).__name__
        warnings.warn(f"{kind}.{old} is now {kind}.{new}", DeprecationWarning, stacklevel=2)
        return getattr(self, new)(*arguments)

    return call


def explain_missing_module(error: ModuleNotFoundError, needed_by: str) -> ModuleNotFoundError:
    """The error with what to install, where that is known."""
    missing = (error.name or "").partition(".")[0]
    if missing not in _INSTALLS or "pip install" in str(error):
        return error
    return ModuleNotFoundError(
        f"{needed_by} needs {missing}, which is not installed: pip install {_INSTALLS[missing]}",
        name=missing,
    )


__getattr__ = lazy_attributes("anchorwatch", _NAMES, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
