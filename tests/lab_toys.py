"""The lab's recipe made small: two layers, a few updates, one small vocabulary."""

from pathlib import Path

RECIPE = Path(__file__).parents[1] / "recipes" / "lab.toml"
TOY = (
    "length=64",
    "batch=4",
    "updates=4",
    "optimizer.lr=1e-2",
    "model={layers = 2, width = 32, heads = 4, hidden = 64, positions = 320, tied = true}",
    'corpus={vocabulary = 600, mix = [{kind = "questions", weight = 0.6}, {kind = "backcopy", weight = 0.4}]}',
)
