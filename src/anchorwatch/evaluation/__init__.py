"""What a model gets right: tasks, contexts, scores, the grid of them, and tables with intervals.

Nothing heavy is imported until a name that needs it is used: scores, tasks, contexts and tables
need no torch.
"""

from typing import TYPE_CHECKING

from anchorwatch import lazy_attributes

if TYPE_CHECKING:
    from anchorwatch.evaluation import contexts, prompts, scores, tables
    from anchorwatch.evaluation.contexts import Context, context
    from anchorwatch.evaluation.curves import attended, curve
    from anchorwatch.evaluation.estimators import Likelihood
    from anchorwatch.evaluation.grid import evaluate
    from anchorwatch.evaluation.harness import Harness, lm_eval_command
    from anchorwatch.evaluation.likelihood import loglikelihood, loglikelihoods
    from anchorwatch.evaluation.prompts import Template, template
    from anchorwatch.evaluation.results import Results, read_results
    from anchorwatch.evaluation.scores import score_all
    from anchorwatch.evaluation.stress_grid import stress
    from anchorwatch.evaluation.tasks import Task, task

_LAZY = {
    "Context": "contexts",
    "Harness": "harness",
    "Likelihood": "estimators",
    "Results": "results",
    "Task": "tasks",
    "Template": "prompts",
    "attended": "curves",
    "context": "contexts",
    "curve": "curves",
    "evaluate": "grid",
    "lm_eval_command": "harness",
    "loglikelihood": "likelihood",
    "loglikelihoods": "likelihood",
    "read_results": "results",
    "score_all": "scores",
    "stress": "stress_grid",
    "task": "tasks",
    "template": "prompts",
}

_MODULES = {name: name for name in ("contexts", "prompts", "scores", "tables")}

__all__ = [
    "Context",
    "Harness",
    "Likelihood",
    "Results",
    "Task",
    "Template",
    "attended",
    "context",
    "contexts",
    "curve",
    "evaluate",
    "lm_eval_command",
    "loglikelihood",
    "loglikelihoods",
    "prompts",
    "read_results",
    "score_all",
    "scores",
    "stress",
    "tables",
    "task",
    "template",
]


__getattr__ = lazy_attributes("anchorwatch.evaluation", _LAZY, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
