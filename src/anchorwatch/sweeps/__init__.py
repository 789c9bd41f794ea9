"""Grids of runs: models x prompts x decodings x edits x seeds, here or on Ray, resumed at will.

`aw.sweep` runs one, `aw.open_runs` opens what it made; here is what plans and counts it.
"""

from typing import TYPE_CHECKING

from anchorwatch import lazy_attributes

if TYPE_CHECKING:
    from anchorwatch.models.engines.choose import EngineOptions
    from anchorwatch.sweeps.plan import SweepPlan, plan_sweep
    from anchorwatch.sweeps.spec import read_spec
    from anchorwatch.sweeps.status import SweepStatus, read_status
    from anchorwatch.sweeps.sweep import SweepResult

__all__ = [
    "EngineOptions",
    "SweepPlan",
    "SweepResult",
    "SweepStatus",
    "plan_sweep",
    "read_spec",
    "read_status",
]

__getattr__ = lazy_attributes(
    "anchorwatch.sweeps",
    {
        "EngineOptions": "plan",
        "SweepPlan": "plan",
        "SweepResult": "sweep",
        "SweepStatus": "status",
        "plan_sweep": "plan",
        "read_spec": "spec",
        "read_status": "status",
    },
)
