"""docs/variants.md from the per-seed table: every sentence is made from numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pandas as pd

from anchorwatch.training.variants import (
    EDGES,
    GROUPS,
    OWN,
    QUANTITIES,
    VANILLA,
    VARIANTS,
    differences,
)

ALPHA = 0.05
_MINUS = "−"
_ROUNDING = 1e-12
"""A difference below it is one of sums in another order."""


def render_page(
    table: pd.DataFrame,
    *,
    command: str = "make variants",
    figure: str = "",
    by_position: pd.DataFrame | None = None,
) -> str:
    """The whole page; `by_position` is the table that tells positions of a row apart."""
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
    if all(f"length.{name}.length" in table.columns for name in LENGTHS):
        parts.append(_rows_section(table))
    if by_position is not None:
        parts.append(render_positions(by_position))
    return "\n\n".join(part for part in parts if part) + "\n"


LENGTHS = ("quarter", "half", "trained", "longest")


def _rows_section(table: pd.DataFrame) -> str:
    """Differences of whole rows by the length that texts are cut to."""
    lengths = {name: int(table[f"length.{name}.length"].iloc[0]) for name in LENGTHS}
    whole = table[["arm", "seed"]].assign(
        **{f"row.{name}": table[f"length.{name}"] * count for name, count in lengths.items()}
    )
    gaps = differences(whole, [f"row.{name}" for name in LENGTHS])
    lines = [["", *(f"{count} tokens" for count in lengths.values())], ["---"] * 5]
    for arm in gaps["arm"].unique():
        mine = gaps[gaps["arm"] == arm].set_index("quantity")
        lines.append([str(arm), *(_cell(mine.loc[f"row.{name}"]) for name in LENGTHS)])
    return (
        "## Held-out text, nats per row\n\nThe same differences times the tokens of a row. One "
        "that is the same at every length is made where rows begin; one that is made at every "
        "token grows with the length.\n\n" + _table(lines)
    )


def render_positions(table: pd.DataFrame) -> str:
    """The section about positions: every kind of rows, every arm, less vanilla by seed."""
    parts = [
        "## Gain by position",
        "Of src/anchorwatch/training/variants_by_position.csv, made by `make "
        "variants-by-position`; `anchorwatch.training.variants.by_position()` reads it. Its runs "
        "are others than those above: the same recipes and seeds on another machine, measured on "
        "512 held-out rows with 4 draws of the noise. Each cell is arm less vanilla, the mean over "
        "seeds with Student's 95 % interval where there are three or more, and below 0 is a gain. "
        "Columns in *nats over all "
        "tokens* add up to the whole difference; *per token* is over the tokens that stand there. "
        "*Whole* rows begin with the start token; *cropped* rows lose 1 to 16 of their first "
        "tokens, in training and here, so that no constant token begins them.",
    ]
    for rows, part in table.groupby("rows", sort=False):
        if VANILLA in set(part["arm"]) and part["arm"].nunique() > 1:
            parts.append(f"### {str(rows).capitalize()} rows\n\n{_position_grid(part)}")
    return "\n\n".join(parts)


def _position_grid(part: pd.DataFrame) -> str:
    """Arms by positions of one kind of rows, with the share of the difference at the first ones."""
    ends = [f"{low}-{high - 1}" for low, high in pairwise(EDGES)]
    ends.append(f"{EDGES[-1]}+")
    names = [f"bound.from.{edge}" for edge in EDGES]
    columns = ["bound.all", *(f"{name}.part" for name in names), *names]
    gaps = differences(part, columns)
    lines = [
        [
            *("", "seeds", "all positions"),
            *(f"nats over all tokens, {end}" for end in ends),
            f"share at {ends[0]}",
            *(f"per token, {end}" for end in ends),
            "attention over even, t 0.5",
        ]
    ]
    lines.append(["---"] * len(lines[0]))
    looked = part.groupby("arm")["sink_over_even.t.0.5"].mean()
    for arm in gaps["arm"].unique():
        mine = gaps[gaps["arm"] == arm].set_index("quantity")
        cells = [_cell(mine.loc[name]) for name in columns]
        share = mine.loc[columns[1], "value"] / mine.loc["bound.all", "value"]
        middle = [*cells[:4], f"{share:.0%}", *cells[4:]]
        lines.append([str(arm), str(int(mine["n"].max())), *middle, _number(looked[arm])])
    return _table(lines)


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
