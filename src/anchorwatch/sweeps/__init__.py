"""Grids of runs: models x prompts x decodings x edits x seeds, here or on Ray, resumed at will."""

from anchorwatch import lazy_attributes

__getattr__ = lazy_attributes(
    "anchorwatch.sweeps",
    {
        "SweepResult": "sweep",
        "plan_sweep": "plan",
        "read_spec": "spec",
        "status": "status",
        "sweep": "sweep",
    },
)
