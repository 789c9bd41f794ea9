"""The comparison of variants: which arms there are, the per-seed table, and paired differences.

An arm is a recipe and some settings over it; it differs from its base in nothing else, so that
arms of one seed are paired (data, noise, first values). The unit is the training seed: a
difference is taken seed by seed, and its interval is Student's over seeds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics import stats

if TYPE_CHECKING:
    from anchorwatch.training.spec import Spec

VANILLA = "vanilla"
NEXT_TOKEN = 'objective.name="next_token"'

LAB: Mapping[str, tuple[str, ...]] = {
    "toy-mdm": (),
    "toy-sink": ('variant=["sink_token"]',),
    "toy-gate": ('variant=[{name = "gate", form = "elementwise", init = "identity"}]',),
    "toy-arm": (NEXT_TOKEN,),
}
"""The four models that are shipped."""

VARIANTS: Mapping[str, tuple[str, ...]] = {
    VANILLA: (),
    "sink": ('variant=["sink_token"]',),
    "sink-2": ('variant=[{name = "sink_token", n = 2}]',),
    "sink-4": ('variant=[{name = "sink_token", n = 4}]',),
    "sink-end": ('variant=[{name = "sink_token", position = "end"}]',),
    "sink-zero": ('variant=[{name = "sink_token", value = "zero"}]',),
    "sink-no-rotary": ('variant=[{name = "sink_token", rotary = false}]',),
    "register": ('variant=["register"]',),
    "off-by-one": ('variant=["off_by_one"]',),
    "sink-logit": ('variant=[{name = "sink_logit", logit = 0.0}]',),
    "gate": ('variant=[{name = "gate", form = "elementwise", init = "identity"}]',),
    "gate-headwise": ('variant=[{name = "gate", form = "headwise", init = "identity"}]',),
    "gate-plain": ('variant=[{name = "gate", form = "elementwise", init = "plain"}]',),
}
"""What is compared, each with every seed."""


EDGES = (0, 4, 16)
"""First positions of the parts of a row that the table by position tells apart."""

NOISE = ("t", "eps", "masks", "keep_start", "continuations")
"""Fields of the objective that next-token prediction has no use for, and refuses."""


def read_arm(
    recipe: str | Path, arms: Mapping[str, tuple[str, ...]], arm: str, more: tuple[str, ...] = ()
) -> Spec:
    """The spec of an arm; `more` settings are over those of all arms (a seed, a smaller budget)."""
    from anchorwatch.training.spec import read

    if arm not in arms:
        raise SpecError(f"there is no arm {arm!r}: expected {', '.join(arms)}")
    quiet = _drop_noise(recipe) if NEXT_TOKEN in arms[arm] else ()
    return read(recipe, (*quiet, *more, *arms[arm]))


def _drop_noise(recipe: str | Path) -> tuple[str, ...]:
    """A setting that leaves the recipe's noise out of its objective."""
    from anchorwatch.trace.toml_spec import read_toml

    objective = read_toml(recipe).get("objective", {})
    if not isinstance(objective, Mapping):
        return ()  # reading the spec says what is wrong with it
    kept = (
        f"{name} = {json.dumps(value)}" for name, value in objective.items() if name not in NOISE
    )
    return (f"objective={{{', '.join(kept)}}}",)


VERSION = 1
"""Of the names and meanings of what is measured; a table of another version is refused."""
KEYS = ("arm", "seed", "spec", "version")
GROUPS: dict[str, dict[str, str]] = {
    "Held-out text, nats per token": {
        "bound.all": "all rows",
        "bound.answers": "answers, prompt clear",
        "length.quarter": "text, T/4",
        "length.half": "text, T/2",
        "length.trained": "text, T",
        "length.longest": "text, all positions",
    },
    "Nats per masked token, by share of masks t": {
        f"bound.t.{low / 5:.1f}-{(low + 1) / 5:.1f}.masked": f"t {low / 5:.1f}-{(low + 1) / 5:.1f}"
        for low in range(5)
    },
    "Questions, exact match": {
        "answers.gold": "gold passage",
        "answers.gold+2": "and two distractors",
        "answers.two-hop": "two hops",
        "answers.closed": "no passage",
    },
    "Sinks among the tokens, share of heads and steps; runs that write text": {
        "text.incidence.gu": "share above 0.3",
        "text.incidence.ratio": "10 times even",
        "text.incidence.rulli": "sum 3 above the mean",
        "text.incidence.zscore": "3 sd",
        "text.switch": "greatest token moves",
        "text.switch_all": "greatest key moves",
    },
    "Attention on masks over their share": {
        f"noisy.t.{t}.mask_share_{who}": f"{who}, t {t}"
        for who in ("visible", "masked")
        for t in ("0.05", "0.5", "0.95")
    },
    "States and values, at t = 0.5": {
        "noisy.t.0.5.mask_value_ratio": "value norm, masked over visible",
        "noisy.t.0.5.effective_rank": "effective rank over positions",
        "noisy.t.0.5.state_cosine": "cosine of states",
        "noisy.t.0.5.spread": "spread of one token",
        "noisy.t.0.5.residual_peak": "greatest over median state norm",
    },
}
"""What is compared with vanilla, in the order of the page."""
OWN = {
    "noisy.t.0.05.sink_mass": "added keys, t 0.05",
    "noisy.t.0.5.sink_mass": "t 0.5",
    "noisy.t.0.95.sink_mass": "t 0.95",
    "noisy.t.0.5.sink_mass_null": "even attention",
    "noisy.t.0.5.sink_value_ratio": "value norm, sink over tokens",
    "noisy.t.0.5.gate": "mean gate",
    "text.switch_all.sink": "greatest key is added",
}
"""What vanilla does not have: means, not differences."""
QUANTITIES = {name: says for group in GROUPS.values() for name, says in group.items()}


def variants(path: str | Path | None = None) -> pd.DataFrame:
    """The per-seed table that ships with the package, or another made by `make variants`."""
    return _read_table(path, "variants.csv", KEYS, "make variants")


def by_position(path: str | Path | None = None) -> pd.DataFrame:
    """The table that says where in a row arms gain, a row for each kind of rows, arm and seed.

    Its runs are others than those of `variants()`: arms are paired within this table only.
    `bound.from.P` is nats per token from position P to the next of `EDGES`; `.part` is the same
    over all tokens, so that parts add up to `bound.all`; `.masked` is per masked token.
    """
    keys = (*KEYS, "rows")
    return _read_table(path, "variants_by_position.csv", keys, "make variants-by-position")


def _read_table(
    path: str | Path | None, name: str, keys: Sequence[str], command: str
) -> pd.DataFrame:
    """A table that ships with the package as `name`, or another of its kind."""
    source = files("anchorwatch.training").joinpath(name) if path is None else Path(path)
    if not source.is_file():
        raise TraceError(f"there is no table {source}: make it with `{command}`")
    try:
        with source.open(encoding="utf-8") as handle:
            table = pd.read_csv(handle, dtype={"arm": str, "spec": str})
    except ValueError as error:  # empty, no UTF-8, or no CSV
        raise TraceError(
            f"{source} cannot be read as CSV, {error}: make it with `{command}`"
        ) from None
    if lost := [key for key in keys if key not in table.columns]:
        raise TraceError(f"{source} has no column {lost[0]}: it is no table of `{command}`")
    if (table["version"] != VERSION).any():
        versions = sorted(set(table["version"]))
        raise TraceError(
            f"{source} has columns of version {versions[0]} and this package reads {VERSION}: "
            f"make it again with `{command}`"
        )
    return table


def differences(
    table: pd.DataFrame,
    quantities: Sequence[str] | None = None,
    *,
    base: str = VANILLA,
    level: float = 0.95,
) -> pd.DataFrame:
    """Each arm less `base`, paired by seed: Student's interval over seeds, p, and p after Holm.

    Holm's correction is over the arms of a quantity. `base` is the mean of the base arm over the
    same seeds; n is how many seeds both arms have.
    """
    if base not in set(table["arm"]):
        raise TraceError(
            f"the table has no arm {base!r}: it has {', '.join(table['arm'].unique())}"
        )
    # 1. Quantities of the table, and the arms beside the base.
    names = [name for name in quantities or QUANTITIES if name in table.columns]
    arms = [arm for arm in table["arm"].unique() if arm != base]
    rows: list[dict[str, Any]] = []
    # 2. Paired differences by seed; Student's interval over seeds.
    for name in names:
        wide = table.pivot(index="seed", columns="arm", values=name).astype(float)
        first = len(rows)
        for arm in arms:
            a, b = wide[arm].to_numpy(), wide[base].to_numpy()
            gap = stats.paired_t(a, b, level=level)
            both = ~np.isnan(a - b)
            rows.append(
                {
                    "quantity": name,
                    "arm": arm,
                    "base": float(b[both].mean()) if both.any() else np.nan,
                    "value": float(gap.value),
                    "low": float(gap.low),
                    "high": float(gap.high),
                    "n": int(gap.n),
                    "p": float(gap.p),
                }
            )
        # 3. Holm's correction over the arms of this quantity.
        corrected = stats.holm([row["p"] for row in rows[first:]])
        for row, p in zip(rows[first:], corrected, strict=True):
            row["p_holm"] = float(p)
    return pd.DataFrame(rows)


def per_seed(table: pd.DataFrame, quantity: str, *, base: str = VANILLA) -> pd.DataFrame:
    """The differences themselves, one row for each arm and seed."""
    wide = table.pivot(index="seed", columns="arm", values=quantity).astype(float)
    gaps = wide.drop(columns=base).sub(wide[base], axis=0)
    order = [arm for arm in table["arm"].unique() if arm != base]
    return gaps[order].reset_index().melt(id_vars="seed", var_name="arm", value_name="difference")
