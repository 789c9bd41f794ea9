"""Imports all that is slow to import, once: children are forked with it in memory."""

import os
from importlib import import_module

SLOW = (
    *("matplotlib.pyplot", "pandas", "pyarrow.parquet", "scipy.stats", "torch", "xarray", "zarr"),
    *("transformers.modeling_utils", "safetensors.torch"),
    *("anchorwatch.cli.app", "anchorwatch.evaluation.effect", "anchorwatch.evaluation.grid"),
    *("anchorwatch.explorer.export", "anchorwatch.explorer.server"),
    *(
        "anchorwatch.figures.registry",
        "anchorwatch.models.zoo.cards",
        "anchorwatch.metrics.registry",
    ),
    *("anchorwatch.models.convert", "anchorwatch.models.load", "anchorwatch.studies.run_study"),
    "anchorwatch.studies.report.page",
    *("anchorwatch.evaluation.lm_eval", "lm_eval._cli", "anchorwatch.training.loop"),
)


def import_slow() -> None:
    """Import, and add a budget for studies of seconds."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("MPLBACKEND", "agg")
    for name in SLOW:
        import_module(name)
    import torch

    from anchorwatch.studies.budget import BUDGETS, Budget

    torch.set_num_threads(1)  # a pool of threads does not live through a fork
    least = Budget("least", prompts=3, length=4, steps=2, items=2, rows=1, answer=2)
    BUDGETS[least.name] = least
