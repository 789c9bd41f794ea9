"""The default stress grid: twenty named cells for each model, of one hop and of two.

It asks what the papers claim of diffusion models: that passages help them more, that they stand
noise, distance and order better, and what masks after the answer cost them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from anchorwatch.edits.spec import Edit
from anchorwatch.evaluation.asking import LENGTH
from anchorwatch.evaluation.grid import BATCH, MADE, Decodings, evaluate
from anchorwatch.evaluation.results import Results
from anchorwatch.generation.decoding import Decoding
from anchorwatch.models.model import Model

STRESS: Mapping[str, tuple[str, ...]] = {
    "synthetic/one-hop": (
        "closed",
        "gold",
        "gold+1",
        "gold+2",
        "gold+4",
        "gold+4hard",
        "gold+4counterfactual",
        "gold@1/5",
        "gold@3/5",
        "gold@5/5",
        "irrelevant2/5",
        "irrelevant4/5",
        "gold+4~shuffle",
        "gold~typos10",
        "gold~paraphrase",
        "gold~masks{}",
    ),
    "synthetic/two-hop": ("closed", "adjacent+2", "far+2", "reversed+2"),
}
"""Contexts of each task; `{}` is three answers' worth of masks."""


def stress(
    models: Model | str | Sequence[Model | str],
    *,
    edits: Mapping[str, Sequence[Edit]] | None = None,
    decoding: Decodings = None,
    limit: int = MADE,
    batch: int = BATCH,
    seed: int = 0,
    out: str | Path | None = None,
) -> dict[str, Results]:
    """Ask the whole default grid; the results of each task, whose items are its own.

    `aw.evaluation.tables.stress_tables` makes the tables of each.
    """
    lengths = [one.length for one in _each(decoding) if one.length]
    masks = 3 * (lengths[0] if lengths else LENGTH)
    return {
        task: evaluate(
            models,
            task,
            contexts=[name.format(masks) for name in names],
            edits=edits,
            decoding=decoding,
            limit=limit,
            batch=batch,
            seed=seed,
            out=out,
        )
        for task, names in STRESS.items()
    }


def _each(decoding: Decodings) -> list[Decoding]:
    """The decodings that were said, that of masked models first."""
    if isinstance(decoding, Mapping):
        return [decoding[kind] for kind in ("mdm", "arm") if kind in decoding]
    return [] if decoding is None else [decoding]
