"""Arms of the lab and of the comparison of variants: a recipe, and the settings over it.

An arm differs from its base in these settings and in nothing else, so that arms are paired.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from anchorwatch.errors import SpecError

if TYPE_CHECKING:
    from anchorwatch.training.spec import Spec

VANILLA = "vanilla"
NEXT_TOKEN = 'objective.name="next_token"'

LAB: Mapping[str, tuple[str, ...]] = {
    "mdm": (),
    "mdm-sink": ('variant=["sink_token"]',),
    "mdm-gate": ('variant=[{name = "gate", form = "elementwise", init = "identity"}]',),
    "arm": (NEXT_TOKEN,),
}
"""The four models that are shipped."""

VARIANTS: Mapping[str, tuple[str, ...]] = {
    VANILLA: (),
    "sink": ('variant=["sink_token"]',),
    "sink-2": ('variant=[{name = "sink_token", n = 2}]',),
    "sink-4": ('variant=[{name = "sink_token", n = 4}]',),
    "sink-end": ('variant=[{name = "sink_token", position = "end"}]',),
    "sink-zero": ('variant=[{name = "sink_token", value = "zero"}]',),
    "register": ('variant=["register"]',),
    "off-by-one": ('variant=["off_by_one"]',),
    "sink-logit": ('variant=[{name = "sink_logit", logit = 0.0}]',),
    "gate": ('variant=[{name = "gate", form = "elementwise", init = "identity"}]',),
    "gate-headwise": ('variant=[{name = "gate", form = "headwise", init = "identity"}]',),
    "gate-plain": ('variant=[{name = "gate", form = "elementwise", init = "plain"}]',),
}
"""What is compared, each with every seed."""


NOISE = ("t", "eps", "masks")
"""Fields of the objective that next-token prediction has no use for, and refuses."""


def spec_of(
    recipe: str | Path, arms: Mapping[str, tuple[str, ...]], arm: str, more: tuple[str, ...] = ()
) -> Spec:
    """The spec of an arm; `more` settings are over those of all arms (a seed, a smaller budget)."""
    from anchorwatch.training.spec import read

    if arm not in arms:
        raise SpecError(f"there is no arm {arm!r}: expected {', '.join(arms)}")
    quiet = _without_noise(recipe) if NEXT_TOKEN in arms[arm] else ()
    return read(recipe, (*quiet, *more, *arms[arm]))


def _without_noise(recipe: str | Path) -> tuple[str, ...]:
    """A setting that leaves the recipe's noise out of its objective."""
    said = tomllib.loads(Path(recipe).read_text(encoding="utf-8")).get("objective", {})
    kept = {name: held for name, held in said.items() if name not in NOISE}
    fields = (f"{name} = {json.dumps(held)}" for name, held in kept.items())
    return (f"objective={{{', '.join(fields)}}}",)
