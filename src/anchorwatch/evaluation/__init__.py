"""What a model gets right: tasks, contexts, scores, the grid of them, and tables with intervals.

Nothing heavy is imported until a name that needs it is used: scores, tasks, contexts and tables
need no torch.
"""

from typing import TYPE_CHECKING

from anchorwatch import lazy_attributes

if TYPE_CHECKING:
    from anchorwatch.evaluation import contexts, prompt_templates, scores, tables
    from anchorwatch.evaluation.contexts import Context, context
    from anchorwatch.evaluation.grid import evaluate, stress
    from anchorwatch.evaluation.likelihood import Likelihood, loglikelihood, loglikelihoods
    from anchorwatch.evaluation.lm_eval import Harness, lm_eval_command
    from anchorwatch.evaluation.prompt_templates import Template, template
    from anchorwatch.evaluation.results import Results, read_results
    from anchorwatch.evaluation.scores import score_all
    from anchorwatch.evaluation.tables import curve, join_attention
    from anchorwatch.evaluation.tasks import Task, register_format, register_task, task

    prompts = prompt_templates

_LAZY = {
    "Context": "contexts",
    "Harness": "lm_eval",
    "Likelihood": "likelihood",
    "Results": "results",
    "Task": "tasks",
    "Template": "prompt_templates",
    "context": "contexts",
    "curve": "tables",
    "evaluate": "grid",
    "join_attention": "tables",
    "lm_eval_command": "lm_eval",
    "loglikelihood": "likelihood",
    "loglikelihoods": "likelihood",
    "read_results": "results",
    "register_format": "tasks",
    "register_task": "tasks",
    "score_all": "scores",
    "stress": "grid",
    "task": "tasks",
    "template": "prompt_templates",
}

_MODULES = {name: name for name in ("contexts", "scores", "tables")} | {
    "prompts": "prompt_templates"
}
_RENAMED = {"attended": "join_attention"}

__all__ = [
    "Context",
    "Harness",
    "Likelihood",
    "Results",
    "Task",
    "Template",
    "context",
    "contexts",
    "curve",
    "evaluate",
    "join_attention",
    "lm_eval_command",
    "loglikelihood",
    "loglikelihoods",
    "prompts",
    "read_results",
    "register_format",
    "register_task",
    "score_all",
    "scores",
    "stress",
    "tables",
    "task",
    "template",
]


__getattr__ = lazy_attributes("anchorwatch.evaluation", _LAZY, _MODULES, _RENAMED)


def __dir__() -> list[str]:
    return sorted(__all__)
