"""docs/variants.md from the per-seed table: every sentence is made from numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from anchorwatch.training.variants import GROUPS, OWN, QUANTITIES, VANILLA, VARIANTS, differences

ALPHA = 0.05
_MINUS = "−"
_ROUNDING = 1e-12
"""A difference below it is one of sums in another order."""


def render_page(table: pd.DataFrame, *, command: str = "make variants", figure: str = "") -> str:
    """The whole page."""
    gaps = differences(table)
    seeds = sorted(set(table["seed"]))
    arms = list(table["arm"].unique())
    updates, tokens = int(table["updates"].max()), int(table["tokens"].max())
    parts = [
        "# Variants compared",
        f"Made from src/anchorwatch/training/variants.csv by `{command}`; `aw.lab.variants()` "
        f"reads the table. {len(arms)} arms x {len(seeds)} training seeds ({_join_names(seeds)}) "
        f"of recipes/variants.toml, {updates:,} updates and up to {tokens:,} tokens each. Arms of "
        "one seed share data order, noise and first values.",
        "The unit is the training seed: a cell is the mean over seeds of arm less vanilla, with "
        f"Student's 95 % interval over n = {_describe_counts(gaps)} paired seeds. p-values are "
        "corrected by Holm over the arms of a column; the held-out bound of all rows is the "
        "primary outcome, the other columns are not corrected for being many. * marks p < 0.05 "
        "after Holm. Few seeds make wide intervals: one that holds 0 does not say that there is no "
        "difference.",
        f"![Differences to vanilla by arm: dots are seeds, bars intervals]({figure})"
        if figure
        else "",
        "## Arms\n\n" + _settings_table(arms),
        "## In words\n\n" + "\n".join(f"- {sentence}" for sentence in write_sentences(gaps)),
    ]
    for title, names in GROUPS.items():
        if shown := [name for name in names if name in set(gaps["quantity"])]:
            parts.append(f"## {title}\n\n{_grid(gaps, shown)}")
    if own := _own_table(table):
        parts.append(f"## What parts take and do\n\nMeans over seeds.\n\n{own}")
    return "\n\n".join(part for part in parts if part) + "\n"


def _settings_table(arms: Sequence[str]) -> str:
    """What each arm adds to the recipe; the parts are those of docs/training.md."""
    settings = {arm: ", ".join(f"`{setting}`" for setting in VARIANTS.get(arm, ())) for arm in arms}
    rows = [(arm, words or "the recipe as it is") for arm, words in settings.items()]
    return _table([("arm", "setting"), ("---", "---"), *rows])


def write_sentences(gaps: pd.DataFrame) -> list[str]:
    """One for each quantity: whose interval leaves 0 out, and on which side."""
    lines = []
    for name, part in gaps.groupby("quantity", sort=False):
        known = part[part["low"].notna()]
        title = f"{_group_title(str(name))}, {QUANTITIES.get(str(name), name)}"
        where = f"{title} (vanilla {_number(part['base'].mean())})"
        if known.empty:
            lines.append(f"{where}: no interval, {int(part['n'].max())} seeds are too few.")
            continue
        lower, higher = known[known["high"] < 0], known[known["low"] > 0]
        apart = [*_describe_arms(lower, "lower"), *_describe_arms(higher, "higher")]
        if not apart:
            lines.append(f"{where}: no interval of {len(known)} arms leaves 0 out.")
            continue
        kept = _join_names(known.loc[known["p_holm"] < ALPHA, "arm"]) or "none of them"
        text = "; ".join(apart)
        lines.append(f"{where}: {text}; after Holm's correction p < {ALPHA:g} for {kept}.")
    return lines


def _describe_arms(part: pd.DataFrame, side: str) -> list[str]:
    if part.empty:
        return []
    arms = ", ".join(f"{row.arm} by {_number(abs(row.value))}" for row in part.itertuples())
    return [f"{side} with {arms}"]


def _group_title(name: str) -> str:
    return next((title for title, names in GROUPS.items() if name in names), "Other")


def _grid(gaps: pd.DataFrame, names: Sequence[str]) -> str:
    """Arms by quantities; vanilla's own means first."""
    lines = [["", *(QUANTITIES[name] for name in names)], ["---"] * (len(names) + 1)]
    bases = gaps.groupby("quantity")["base"].mean()
    lines.append([f"{VANILLA} (mean)", *(_number(bases[name]) for name in names)])
    for arm in gaps["arm"].unique():
        mine = gaps[gaps["arm"] == arm].set_index("quantity")
        lines.append([str(arm), *(_cell(mine.loc[name]) for name in names)])
    return _table(lines)


def _cell(row: pd.Series) -> str:
    star = "*" if row["p_holm"] < ALPHA else ""
    if math.isnan(row["value"]):
        return "–"
    if math.isnan(row["low"]):
        return f"{_signed(row['value'])} (n = {int(row['n'])})"
    return f"{_signed(row['value'])}{star} [{_signed(row['low'])}, {_signed(row['high'])}]"


def _own_table(table: pd.DataFrame) -> str:
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


def _describe_counts(gaps: pd.DataFrame) -> str:
    low, high = int(gaps["n"].min()), int(gaps["n"].max())
    return str(low) if low == high else f"{low} to {high}"


def _join_names(names: Iterable[object]) -> str:
    return ", ".join(map(str, names))


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}".replace("-", _MINUS)


def _signed(value: float) -> str:
    value = 0.0 if abs(value) < _ROUNDING else value
    return f"{value:+.3g}".replace("-", _MINUS)
