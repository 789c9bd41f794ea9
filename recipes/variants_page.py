"""docs/variants.md from the per-seed table: every sentence is made from numbers. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from anchorwatch.training.variants import GROUPS, OWN, QUANTITIES, VANILLA, VARIANTS, differences

ALPHA = 0.05
_MINUS = "−"
_ROUNDING = 1e-12
"""A difference below it is one of sums in another order."""


def page(table: pd.DataFrame, *, command: str = "make variants", figure: str = "") -> str:
    """The whole page."""
    found = differences(table)
    seeds = sorted(set(table["seed"]))
    arms = list(table["arm"].unique())
    updates, tokens = int(table["updates"].max()), int(table["tokens"].max())
    parts = [
        "# Variants compared",
        f"Made from src/anchorwatch/training/variants.csv by `{command}`; `aw.lab.variants()` "
        f"reads the table. {len(arms)} arms x {len(seeds)} training seeds ({_listed(seeds)}) of "
        f"recipes/variants.toml, {updates:,} updates and up to {tokens:,} tokens each. Arms of one "
        "seed share data order, noise and first values.",
        "The unit is the training seed: a cell is the mean over seeds of arm less vanilla, with "
        f"Student's 95 % interval over n = {_counts(found)} paired seeds. p-values are corrected "
        "by Holm over the arms of a column; the held-out bound of all rows is the primary outcome, "
        "the other columns are not corrected for being many. * marks p < 0.05 after Holm. Few "
        "seeds make wide intervals: one that holds 0 does not say that there is no difference.",
        f"![Differences to vanilla by arm: dots are seeds, bars intervals]({figure})"
        if figure
        else "",
        "## Arms\n\n" + _settings(arms),
        "## In words\n\n" + "\n".join(f"- {one}" for one in sentences(found)),
    ]
    for title, names in GROUPS.items():
        if shown := [name for name in names if name in set(found["quantity"])]:
            parts.append(f"## {title}\n\n{_grid(found, shown)}")
    if own := _own(table):
        parts.append(f"## What parts take and do\n\nMeans over seeds.\n\n{own}")
    return "\n\n".join(part for part in parts if part) + "\n"


def _settings(arms: Sequence[str]) -> str:
    """What each arm adds to the recipe; the parts are those of docs/training.md."""
    said = {arm: ", ".join(f"`{one}`" for one in VARIANTS.get(arm, ())) for arm in arms}
    rows = [(arm, words or "the recipe as it is") for arm, words in said.items()]
    return _table([("arm", "setting"), ("---", "---"), *rows])


def sentences(found: pd.DataFrame) -> list[str]:
    """One for each quantity: whose interval leaves 0 out, and on which side."""
    said = []
    for name, part in found.groupby("quantity", sort=False):
        known = part[part["low"].notna()]
        title = f"{_group(str(name))}, {QUANTITIES.get(str(name), name)}"
        where = f"{title} (vanilla {_number(part['base'].mean())})"
        if known.empty:
            said.append(f"{where}: no interval, {int(part['n'].max())} seeds are too few.")
            continue
        lower, higher = known[known["high"] < 0], known[known["low"] > 0]
        apart = [*_named(lower, "lower"), *_named(higher, "higher")]
        if not apart:
            said.append(f"{where}: no interval of {len(known)} arms leaves 0 out.")
            continue
        kept = _listed(known.loc[known["p_holm"] < ALPHA, "arm"]) or "none of them"
        text = "; ".join(apart)
        said.append(f"{where}: {text}; after Holm's correction p < {ALPHA:g} for {kept}.")
    return said


def _named(part: pd.DataFrame, side: str) -> list[str]:
    if part.empty:
        return []
    arms = ", ".join(f"{row.arm} by {_number(abs(row.value))}" for row in part.itertuples())
    return [f"{side} with {arms}"]


def _group(name: str) -> str:
    return next((title for title, names in GROUPS.items() if name in names), "Other")


def _grid(found: pd.DataFrame, names: Sequence[str]) -> str:
    """Arms by quantities; vanilla's own means first."""
    lines = [["", *(QUANTITIES[name] for name in names)], ["---"] * (len(names) + 1)]
    bases = found.groupby("quantity")["base"].mean()
    lines.append([f"{VANILLA} (mean)", *(_number(bases[name]) for name in names)])
    for arm in found["arm"].unique():
        mine = found[found["arm"] == arm].set_index("quantity")
        lines.append([str(arm), *(_cell(mine.loc[name]) for name in names)])
    return _table(lines)


def _cell(row: pd.Series) -> str:
    star = "*" if row["p_holm"] < ALPHA else ""
    if math.isnan(row["value"]):
        return "–"
    if math.isnan(row["low"]):
        return f"{_signed(row['value'])} (n = {int(row['n'])})"
    return f"{_signed(row['value'])}{star} [{_signed(row['low'])}, {_signed(row['high'])}]"


def _own(table: pd.DataFrame) -> str:
    names = [name for name in OWN if name in table.columns]
    if not names:
        return ""
    means = table.groupby("arm", sort=False)[names].mean()
    lines = [["", *(OWN[name] for name in names)], ["---"] * (len(names) + 1)]
    for arm, row in means.iterrows():
        lines.append([str(arm), *(_number(value) for value in row)])
    return _table(lines)


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _counts(found: pd.DataFrame) -> str:
    low, high = int(found["n"].min()), int(found["n"].max())
    return str(low) if low == high else f"{low} to {high}"


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(str, names))


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}".replace("-", _MINUS)


def _signed(value: float) -> str:
    value = 0.0 if abs(value) < _ROUNDING else value
    return f"{value:+.3g}".replace("-", _MINUS)
