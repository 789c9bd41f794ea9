"""Tables of an evaluation: paired by item, resampled by item, each number beside its null.

The unit is the item. An item that one of the compared cells could not ask is in none of them, and
counted as missing. The null of a score is what the same answers score on other items' questions;
of a difference or a slope it is 0; of an index that picks the worst place it is the index of places
shuffled within each item. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError
from anchorwatch.evaluation.context_effects import CLOSED, Effect, effects_of, minus, room
from anchorwatch.evaluation.results import Results
from anchorwatch.evaluation.scores import BINARY, SCORES
from anchorwatch.metrics import stats
from anchorwatch.metrics.stats.clusters import NEEDED, WORDS, draw_clusters, quantiles, tail_share

SCORE = "containment"
"""The score of tables that take one: whole words, right or wrong."""
MISLED = "misled"
"""What a counterfactual passage did; no score of all answers, so no table has it unasked."""
DRAWS, LEVEL = 2000, 0.95
SHIFTS = 8
"""Other items that each answer is held against, for the null of a score."""
PERMUTATIONS = 200
ALIKE = "no two items differ"
"""Why there is no interval where resampling items would always give the same."""
KEYS = ["model", "context", "edit"]
NUMBERS = ["value", "null", "lift", "n", "missing", "low", "high", "interval"]


def accuracy(results: Results, scores: Sequence[str] | None = None) -> pd.DataFrame:
    """The mean of every score in every cell, with its interval and its null."""
    rows = []
    for name in scores or SCORES:
        wide, nulls = _wide(results, name), _nulls(results, name)
        found = stats.cluster_bootstrap(wide.to_numpy(dtype=float), draws=DRAWS, level=LEVEL)
        for at, cell in enumerate(wide.columns):
            null, value, n = nulls[cell], float(found.value[at]), int(found.n[at])
            low, high, why = found.low[at], found.high[at], _of_items(found.why[at])
            if low == high:  # all items alike: resampling them says nothing of others
                low, high, why = _alike(name, value, n)
            rows.append(
                dict(zip(KEYS, cell, strict=True))
                | {"quantity": name, "value": value, "null": null}
                | {"lift": value / null if null > 0 else np.nan, "n": n, "missing": len(wide) - n}
                | {"low": low, "high": high, "interval": why}
            )
    return _table(results, rows, [*KEYS, "quantity", *NUMBERS], {"table": "accuracy"})


def effects(results: Results, score: str = SCORE) -> pd.DataFrame:
    """Every effect that the contexts can show, for each model under each edit.

    Gains over the closed book, locality slope, range and U-index of the gold's place, slope per
    doubling of distractors, slope of the irrelevant share, layouts of two hops, appended masks,
    other words; of each stress test whatever was asked.
    """
    wide, rows = _wide(results, score), []
    for (model, edit), names in _contexts_of(wide).items():
        for effect in effects_of(names):
            columns = [(model, name, edit) for name in effect.contexts]
            rows.append(
                {"model": model, "edit": edit, "test": effect.test, "effect": effect.name}
                | _estimate(wide[columns], effect.of, effect)
            )
    keys = ["model", "edit", "test", "effect"]
    return _table(results, rows, [*keys, *NUMBERS], {"table": "effects", "score": score})


def interactions(results: Results, score: str = SCORE) -> pd.DataFrame:
    """Each effect of a masked diffusion model minus that of an autoregressive one, same items."""
    wide, rows = _wide(results, score), []
    shown = _contexts_of(wide)
    for mdm, arm, edit in _families(results):
        both = [name for name in shown[mdm, edit] if name in shown[arm, edit]]
        for effect in effects_of(both):
            pair = _pair_models(wide, mdm, arm, edit, effect.contexts)
            size = len(effect.contexts)
            gap = _gap(effect.of, size)
            rows.append(
                {"mdm": mdm, "arm": arm, "edit": edit, "test": effect.test, "effect": effect.name}
                | _estimate(pair, gap, effect)
            )
    keys = ["mdm", "arm", "edit", "test", "effect"]
    return _table(results, rows, [*keys, *NUMBERS], {"table": "interactions", "score": score})


def gains(results: Results, score: str = SCORE, base: str = CLOSED) -> pd.DataFrame:
    """What the passages add: the gain over `base`, and as a share of what was left to gain."""
    wide, rows = _wide(results, score), []
    for (model, edit), names in _contexts_of(wide).items():
        if base not in names:
            continue
        for name in names:
            if name == base:
                continue
            columns = wide[[(model, base, edit), (model, name, edit)]]
            for quantity, of in (("gain", minus), ("share_of_room", room)):
                row = {"model": model, "context": name, "edit": edit, "quantity": quantity}
                rows.append(row | _estimate(columns, of))
    if not rows:
        raise SpecError(f"nothing was asked in the context {base} beside another: ask for it too")
    about = {"table": "gains", "score": score, "base": base}
    return _table(results, rows, [*KEYS, "quantity", *NUMBERS], about)


def gain_ratios(results: Results, score: str = SCORE, base: str = CLOSED) -> pd.DataFrame:
    """The gain of a diffusion model over that of an autoregressive one; null 1.

    Where the lower gain is not clearly above 0 there is no interval: the ratio could be anything.
    """
    wide, rows = _wide(results, score), []
    shown = _contexts_of(wide)
    for mdm, arm, edit in _families(results):
        names = [name for name in shown[mdm, edit] if name in shown[arm, edit] and name != base]
        if base not in shown[mdm, edit] or base not in shown[arm, edit]:
            continue
        for name in names:
            pair = _pair_models(wide, mdm, arm, edit, (base, name))
            found = _estimate(pair, lambda means: _ratio(_halves(means, minus)), null=1.0)
            below = _estimate(pair.iloc[:, 2:], minus)
            alike = np.isnan(below["low"]) and below["value"] > 0  # every item gained as much
            if not (below["low"] > 0 or alike) and found["n"] >= NEEDED:
                found |= {"low": np.nan, "high": np.nan}
                found["interval"] = "the autoregressive gain is not clearly above 0"
            rows.append({"mdm": mdm, "arm": arm, "context": name, "edit": edit} | found)
    about = {"table": "gain_ratios", "score": score, "base": base}
    return _table(results, rows, ["mdm", "arm", "context", "edit", *NUMBERS], about)


def edits_compared(results: Results, score: str = "containment") -> pd.DataFrame:
    """Every two edits of a model in each context: the difference, and McNemar's exact test.

    `p_holm` is adjusted over the whole table.
    """
    return _mcnemar(results, score, "edit", ["model", "context"])


def models_compared(results: Results, score: str = "containment") -> pd.DataFrame:
    """Every two models under each edit in each context, as `edits_compared` does."""
    return _mcnemar(results, score, "model", ["context", "edit"])


def stress_tables(results: Results, score: str = SCORE) -> dict[str, pd.DataFrame]:
    """Every table that says something about these results, by name."""
    shown = (*SCORES, score) if score == MISLED else None
    made = {"accuracy": accuracy(results, shown), "effects": effects(results, score)}
    if CLOSED in set(results.rows["context"]) and results.rows["context"].nunique() > 1:
        made["gains"] = gains(results, score)
    if next(_families(results), None):
        made["interactions"] = interactions(results, score)
        made["gain_ratios"] = gain_ratios(results, score)
    if score in BINARY:
        made["edits"] = edits_compared(results, score)
        made["models"] = models_compared(results, score)
    return {name: table for name, table in made.items() if len(table)}


def _wide(results: Results, score: str) -> pd.DataFrame:
    """[item, (model, context, edit)]; NaN where an item could not be asked."""
    if score not in (*SCORES, MISLED):
        known = ", ".join((*SCORES, MISLED))
        raise SpecError(f"no score is called {score!r}: expected one of {known}")
    _of_one_evaluation(results.rows)
    wide = results.rows.pivot(index="item", columns=KEYS, values=score)
    order = results.rows[KEYS].drop_duplicates().itertuples(index=False, name=None)
    return wide[list(order)].sort_index()


def _of_one_evaluation(rows: pd.DataFrame) -> None:
    """Refuse rows that a folder holds of several: they would be averaged, or stand twice."""
    if rows["task"].nunique() > 1:
        first = rows["task"].iloc[0]
        raise SpecError(
            f"the results are of {rows['task'].nunique()} tasks: take one, "
            f"read_results(out, task={first!r})"
        )
    if rows.duplicated([*KEYS, "item"]).any():
        raise SpecError(
            "the results are of several evaluations, with another seed, template or decoding: "
            "take what evaluate(...) returns, or give each a folder of its own"
        )


def _contexts_of(wide: pd.DataFrame) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for model, name, edit in wide.columns:
        found.setdefault((model, edit), []).append(name)
    return found


def _families(results: Results) -> Iterator[tuple[str, str, str]]:
    """Pairs of a masked diffusion and an autoregressive model under one edit."""
    held = results.rows[["model", "kind", "edit"]].drop_duplicates()
    for edit in dict.fromkeys(held["edit"]):
        part = held[held["edit"] == edit]
        kinds = {kind: list(part[part["kind"] == kind]["model"]) for kind in ("mdm", "arm")}
        for mdm, arm in product(kinds["mdm"], kinds["arm"]):
            yield mdm, arm, edit


def _pair_models(
    wide: pd.DataFrame, mdm: str, arm: str, edit: str, names: Sequence[str]
) -> pd.DataFrame:
    return wide[[(model, name, edit) for model in (mdm, arm) for name in names]]


def _halves(
    means: np.ndarray, of: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    size = means.shape[-1] // 2
    return of(means[..., :size]), of(means[..., size:])


def _gap(of: Callable[[np.ndarray], np.ndarray], size: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda means: of(means[..., :size]) - of(means[..., size:])


def _ratio(pair: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    above, below = pair
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below != 0, above / below, np.nan)


def _estimate(
    columns: pd.DataFrame,
    of: Callable[[np.ndarray], np.ndarray],
    effect: Effect | None = None,
    null: float = 0.0,
) -> dict[str, Any]:
    """A number of mean scores, resampled by item; items that lack a cell are left out of all."""
    values = columns.to_numpy(dtype=float)
    whole = values[~np.isnan(values).any(axis=1)]
    n = len(whole)
    found: dict[str, Any] = {"value": np.nan, "null": np.nan, "lift": np.nan, "n": n}
    found |= {"missing": len(values) - n, "low": np.nan, "high": np.nan}
    found["interval"] = _of_items(WORDS[min(n, NEEDED)])
    if not n:
        return found
    found["value"] = float(of(whole.mean(axis=0)))
    permuted = effect is not None and not effect.linear
    size = len(effect.contexts) if effect else 0
    found["null"] = _permutation_null(whole, of, size) if permuted else null
    return found | _interval(of(_weights(n) @ whole / n), n) if n >= NEEDED else found


def _interval(drawn: np.ndarray, n: int) -> dict[str, Any]:
    """Quantiles of resamplings, or why there are none: NaN is where nothing was left to divide."""
    if absent := int(np.isnan(drawn).sum()):
        return {"interval": f"no value in {absent} of {DRAWS} resamplings"}
    tail = tail_share(LEVEL, np.array(n))
    low, high = (float(x) for x in quantiles(drawn, (tail, 1 - tail)))
    return {"interval": ALIKE} if low == high else {"low": low, "high": high}


@lru_cache(maxsize=4)
def _weights(n: int) -> np.ndarray:
    """[draw, item] the same for every number of a table, so drawn once; counts, to be held small.

    2000 resamplings of 10 000 items are 40 MB.
    """
    return draw_clusters(n, DRAWS, np.random.default_rng(0)).astype(np.uint16)


def _of_items(why: Any) -> str:
    """The reason in our unit, which is the item."""
    return str(why).replace("prompt", "item")


def _alike(score: str, value: float, n: int) -> tuple[float, float, str]:
    """The interval of a share that is none or all; of another score there is none."""
    if score not in BINARY or value not in (0, 1):
        return np.nan, np.nan, ALIKE
    found = stats.wilson(round(value * n), n, level=LEVEL)
    return float(found.low), float(found.high), ""


def _permutation_null(
    whole: np.ndarray, of: Callable[[np.ndarray], np.ndarray], size: int
) -> float:
    """The number where the contexts of each item (of each model) are shuffled among themselves."""
    rng, (n, columns) = np.random.default_rng(0), whole.shape
    parts = whole.reshape(n, columns // size, size)
    mixed = (rng.permuted(parts, axis=2) for _ in range(PERMUTATIONS))
    return float(np.mean([of(one.reshape(n, columns).mean(axis=0)) for one in mixed]))


def _nulls(results: Results, score: str) -> dict[tuple[str, ...], float]:
    """What the answers of each cell score on other items, whose right answers are others."""
    if score not in SCORES:
        return dict.fromkeys(map(tuple, results.rows[KEYS].drop_duplicates().to_numpy()), np.nan)
    found = {}
    for cell, part in results.rows[results.rows["unfit"] == ""].groupby(KEYS, sort=False):
        ordered = part.sort_values("item")
        said, right = list(ordered["prediction"]), list(ordered["answers"])
        pairs = [
            (said[at], right[(at + shift) % len(said)])
            for shift in range(1, min(SHIFTS, len(said) - 1) + 1)
            for at in range(len(said))
            if right[at] != right[(at + shift) % len(said)]
        ]
        values = [SCORES[score](one, other) for one, other in pairs]
        found[tuple(cell)] = float(np.mean(values)) if values else np.nan
    every = map(tuple, results.rows[KEYS].drop_duplicates().to_numpy())
    return {cell: found.get(cell, np.nan) for cell in every}


def _mcnemar(results: Results, score: str, over: str, keys: list[str]) -> pd.DataFrame:
    if score not in BINARY:
        raise SpecError(
            f"McNemar's test takes right or wrong, and {score} is neither: "
            f"use one of {', '.join(BINARY)}"
        )
    wide, rows = _wide(results, score), []
    cells = pd.DataFrame(list(wide.columns), columns=KEYS)
    for shared, part in cells.groupby(keys, sort=False):
        for a, b in combinations(part[over], 2):
            named = dict(zip(keys, shared, strict=True))
            pair = [tuple((named | {over: one})[key] for key in KEYS) for one in (a, b)]
            both = wide[pair].dropna().to_numpy() == 1
            found = stats.mcnemar_of(both[:, 0], both[:, 1])
            rows.append(
                named
                | {"a": a, "b": b, "value": float(found.value), "null": 0.0, "lift": np.nan}
                | {"n": int(found.n), "missing": len(wide) - int(found.n)}
                | {"low": float(found.low), "high": float(found.high)}
                | {"interval": str(found.why), "a_only": int((both[:, 0] & ~both[:, 1]).sum())}
                | {"b_only": int((~both[:, 0] & both[:, 1]).sum()), "p": float(found.p)}
            )
    columns = [*keys, "a", "b", *NUMBERS, "a_only", "b_only", "p"]
    table = _table(results, rows, columns, {"table": f"{over}s_compared", "score": score})
    table["p_holm"] = stats.holm(table["p"].to_numpy(dtype=float))
    return table


def _table(
    results: Results,
    rows: list[dict[str, Any]],
    columns: Sequence[str],
    about: Mapping[str, Any],
) -> pd.DataFrame:
    """Rows that know which cells made them."""
    table = pd.DataFrame(rows, columns=list(columns))
    origins = [_origin(*held) for held in results.manifests.items()]
    table.attrs = {"about": dict(about), "traces": origins}
    return table


def _origin(cell: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What tables and figures say of a cell, as `provenance.origin` says it of a trace."""
    return {
        "digest": cell,
        "model": manifest["model"]["source"],
        "weights": manifest["model"]["weights"],
        "prompt": f"{manifest['task']['name']} {manifest['context']}",
        "edits": manifest["edits"],
        "decoding": manifest["decoding"],
        "seed": manifest["seed"],
    }
