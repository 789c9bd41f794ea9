"""Tables of an evaluation: paired by item, resampled by item, each number beside its null.

The unit is the item. An item that one of the compared cells could not ask is in none of them, and
counted as missing. The null of a score is what the same answers score on other items' questions;
of a difference or a slope it is 0; of an index that picks the worst place it is the index of places
shuffled within each item.

A context effect is a number made of the mean scores in some contexts: a gain, a slope, an index.
Found by the names of the contexts alone, it can be taken of any model, and resampled by item.

>>> [effect.name for effect in find_effects(["closed", "gold", "gold+1", "gold+4"])]
['gain of gold', 'gain of gold+1', 'gain of gold+4', 'slope per doubling of random']
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, groupby, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError
from anchorwatch.evaluation.contexts import LAYOUTS, Context, context
from anchorwatch.evaluation.results import TRACES, Results
from anchorwatch.evaluation.scores import BINARY, SCORES
from anchorwatch.metrics import stats
from anchorwatch.metrics.stats.clusters import NEEDED, WORDS, draw_clusters, quantiles, tail_share
from anchorwatch.trace.atomic_io import expand_path
from anchorwatch.trace.trace import Trace, read

CLOSED = "closed"
"""The context without passages, over which gains are taken."""
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
    """The mean of every score in every cell, with its interval and its null.

    `guesser` is what picking among the names in the passages would score, where that is known.
    """
    rows, guessers = [], _guesser_means(results)
    for name in scores or SCORES:
        wide, nulls = _pivot_scores(results, name), _score_nulls(results, name)
        means = stats.cluster_bootstrap(wide.to_numpy(dtype=float), draws=DRAWS, level=LEVEL)
        for index, cell in enumerate(wide.columns):
            null, value, n = nulls[cell], float(means.value[index]), int(means.n[index])
            low, high, why = means.low[index], means.high[index], _in_items(means.why[index])
            if low == high:  # all items alike: resampling them says nothing of others
                low, high, why = _interval_of_alike(name, value, n)
            rows.append(
                dict(zip(KEYS, cell, strict=True))
                | {"quantity": name, "value": value, "null": null}
                | {"lift": value / null if null > 0 else np.nan, "n": n, "missing": len(wide) - n}
                | {"low": low, "high": high, "interval": why}
                | {"guesser": guessers.get(cell, np.nan) if name in BINARY else np.nan}
            )
    columns = [*KEYS, "quantity", *NUMBERS, "guesser"]
    return _build_table(results, rows, columns, {"table": "accuracy"})


def effects(results: Results, score: str = SCORE) -> pd.DataFrame:
    """Every effect that the contexts can show, for each model under each edit.

    Gains over the closed book, locality slope, range and U-index of the gold's place, slope per
    doubling of distractors, slope of the irrelevant share, layouts of two hops, appended masks,
    other words; of each stress test whatever was asked.
    """
    wide, rows = _pivot_scores(results, score), []
    for (model, edit), names in _contexts_of(wide).items():
        for effect in find_effects(names):
            columns = [(model, name, edit) for name in effect.contexts]
            rows.append(
                {"model": model, "edit": edit, "test": effect.test, "effect": effect.name}
                | _estimate(wide[columns], effect.of, effect)
            )
    keys = ["model", "edit", "test", "effect"]
    return _build_table(results, rows, [*keys, *NUMBERS], {"table": "effects", "score": score})


def interactions(results: Results, score: str = SCORE) -> pd.DataFrame:
    """Each effect of a masked diffusion model minus that of an autoregressive one, same items."""
    wide, rows = _pivot_scores(results, score), []
    shown = _contexts_of(wide)
    for mdm, arm, edit in _pair_kinds(results):
        both = [name for name in shown[mdm, edit] if name in shown[arm, edit]]
        for effect in find_effects(both):
            pair = _pair_models(wide, mdm, arm, edit, effect.contexts)
            size = len(effect.contexts)
            gap = _gap(effect.of, size)
            rows.append(
                {"mdm": mdm, "arm": arm, "edit": edit, "test": effect.test, "effect": effect.name}
                | _estimate(pair, gap, effect)
            )
    keys = ["mdm", "arm", "edit", "test", "effect"]
    return _build_table(results, rows, [*keys, *NUMBERS], {"table": "interactions", "score": score})


def gains(results: Results, score: str = SCORE, base: str = CLOSED) -> pd.DataFrame:
    """What the passages add: the gain over `base`, and as a share of what was left to gain."""
    wide, rows = _pivot_scores(results, score), []
    for (model, edit), names in _contexts_of(wide).items():
        if base not in names:
            continue
        for name in names:
            if name == base:
                continue
            columns = wide[[(model, base, edit), (model, name, edit)]]
            for quantity, of in (("gain", difference), ("share_of_room", share_of_room)):
                row = {"model": model, "context": name, "edit": edit, "quantity": quantity}
                rows.append(row | _estimate(columns, of))
    if not rows:
        raise SpecError(f"nothing was asked in the context {base} beside another: ask for it too")
    about = {"table": "gains", "score": score, "base": base}
    return _build_table(results, rows, [*KEYS, "quantity", *NUMBERS], about)


def gain_ratios(results: Results, score: str = SCORE, base: str = CLOSED) -> pd.DataFrame:
    """The gain of a diffusion model over that of an autoregressive one; null 1.

    Where the lower gain is not clearly above 0 there is no interval: the ratio could be anything.
    """
    wide, rows = _pivot_scores(results, score), []
    shown = _contexts_of(wide)
    for mdm, arm, edit in _pair_kinds(results):
        names = [name for name in shown[mdm, edit] if name in shown[arm, edit] and name != base]
        if base not in shown[mdm, edit] or base not in shown[arm, edit]:
            continue
        for name in names:
            pair = _pair_models(wide, mdm, arm, edit, (base, name))
            row = _estimate(pair, lambda means: _ratio(_halves(means, difference)), null=1.0)
            below = _estimate(pair.iloc[:, 2:], difference)
            alike = np.isnan(below["low"]) and below["value"] > 0  # every item gained as much
            if not (below["low"] > 0 or alike) and row["n"] >= NEEDED:
                row |= {"low": np.nan, "high": np.nan}
                row["interval"] = "the autoregressive gain is not clearly above 0"
            rows.append({"mdm": mdm, "arm": arm, "context": name, "edit": edit} | row)
    about = {"table": "gain_ratios", "score": score, "base": base}
    return _build_table(results, rows, ["mdm", "arm", "context", "edit", *NUMBERS], about)


def edits_compared(results: Results, score: str = "containment") -> pd.DataFrame:
    """Every two edits of a model in each context: the difference, and McNemar's exact test.

    `p_holm` is adjusted over the whole table.
    """
    return _compare_pairs(results, score, "edit", ["model", "context"])


def models_compared(results: Results, score: str = "containment") -> pd.DataFrame:
    """Every two models under each edit in each context, as `edits_compared` does."""
    return _compare_pairs(results, score, "model", ["context", "edit"])


def stress_tables(results: Results, score: str = SCORE) -> dict[str, pd.DataFrame]:
    """Every table that says something about these results, by name."""
    shown = (*SCORES, score) if score == MISLED else None
    tables = {"accuracy": accuracy(results, shown), "effects": effects(results, score)}
    if CLOSED in set(results.rows["context"]) and results.rows["context"].nunique() > 1:
        tables["gains"] = gains(results, score)
    if next(_pair_kinds(results), None):
        tables["interactions"] = interactions(results, score)
        tables["gain_ratios"] = gain_ratios(results, score)
    if score in BINARY:
        tables["edits"] = edits_compared(results, score)
        tables["models"] = models_compared(results, score)
    return {name: table for name, table in tables.items() if len(table)}


def _pivot_scores(results: Results, score: str) -> pd.DataFrame:
    """[item, (model, context, edit)]; NaN where an item could not be asked."""
    if score not in (*SCORES, MISLED):
        known = ", ".join((*SCORES, MISLED))
        raise SpecError(f"no score is called {score!r}: expected one of {known}")
    _refuse_mixed(results.rows)
    wide = results.rows.pivot(index="item", columns=KEYS, values=score)
    order = results.rows[KEYS].drop_duplicates().itertuples(index=False, name=None)
    return wide[list(order)].sort_index()


def _refuse_mixed(rows: pd.DataFrame) -> None:
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
    names: dict[tuple[str, str], list[str]] = {}
    for model, name, edit in wide.columns:
        names.setdefault((model, edit), []).append(name)
    return names


def _pair_kinds(results: Results) -> Iterator[tuple[str, str, str]]:
    """Pairs of a masked diffusion and an autoregressive model under one edit."""
    models = results.rows[["model", "kind", "edit"]].drop_duplicates()
    for edit in dict.fromkeys(models["edit"]):
        part = models[models["edit"] == edit]
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
    effect: ContextEffect | None = None,
    null: float = 0.0,
) -> dict[str, Any]:
    """A number of mean scores, resampled by item; items that lack a cell are left out of all."""
    values = columns.to_numpy(dtype=float)
    whole = values[~np.isnan(values).any(axis=1)]
    n = len(whole)
    row: dict[str, Any] = {"value": np.nan, "null": np.nan, "lift": np.nan, "n": n}
    row |= {"missing": len(values) - n, "low": np.nan, "high": np.nan}
    row["interval"] = _in_items(WORDS[min(n, NEEDED)])
    if not n:
        return row
    row["value"] = float(of(whole.mean(axis=0)))
    permuted = effect is not None and not effect.linear
    size = len(effect.contexts) if effect else 0
    row["null"] = _permutation_null(whole, of, size) if permuted else null
    return row | _interval(of(_weights(n) @ whole / n), n) if n >= NEEDED else row


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


def _in_items(why: Any) -> str:
    """The reason in our unit, which is the item."""
    return str(why).replace("prompt", "item")


def _interval_of_alike(score: str, value: float, n: int) -> tuple[float, float, str]:
    """The interval of a share that is none or all; of another score there is none."""
    if score not in BINARY or value not in (0, 1):
        return np.nan, np.nan, ALIKE
    share = stats.wilson(round(value * n), n, level=LEVEL)
    return float(share.low), float(share.high), ""


def _permutation_null(
    whole: np.ndarray, of: Callable[[np.ndarray], np.ndarray], size: int
) -> float:
    """The number where the contexts of each item (of each model) are shuffled among themselves."""
    rng, (n, columns) = np.random.default_rng(0), whole.shape
    parts = whole.reshape(n, columns // size, size)
    mixed = (rng.permuted(parts, axis=2) for _ in range(PERMUTATIONS))
    return float(np.mean([of(scores.reshape(n, columns).mean(axis=0)) for scores in mixed]))


def _score_nulls(results: Results, score: str) -> dict[tuple[str, ...], float]:
    """What the answers of each cell score on other items, whose right answers are others."""
    if score not in SCORES:
        return dict.fromkeys(map(tuple, results.rows[KEYS].drop_duplicates().to_numpy()), np.nan)
    nulls = {}
    for cell, part in results.rows[results.rows["unfit"] == ""].groupby(KEYS, sort=False):
        ordered = part.sort_values("item")
        predictions, right = list(ordered["prediction"]), list(ordered["answers"])
        pairs = [
            (predictions[index], right[(index + shift) % len(predictions)])
            for shift in range(1, min(SHIFTS, len(predictions) - 1) + 1)
            for index in range(len(predictions))
            if right[index] != right[(index + shift) % len(predictions)]
        ]
        values = [SCORES[score](predicted, answers) for predicted, answers in pairs]
        nulls[tuple(cell)] = float(np.mean(values)) if values else np.nan
    every = map(tuple, results.rows[KEYS].drop_duplicates().to_numpy())
    return {cell: nulls.get(cell, np.nan) for cell in every}


def _guesser_means(results: Results) -> dict[tuple[str, ...], float]:
    """What a guesser among the names in the passages would score in each cell, where known."""
    rows = results.rows
    if "guesser" not in rows:
        return {}
    means = rows[rows["unfit"] == ""].groupby(KEYS, sort=False)["guesser"].mean()
    return {tuple(cell): float(value) for cell, value in means.items()}


def _compare_pairs(results: Results, score: str, over: str, keys: list[str]) -> pd.DataFrame:
    if score not in BINARY:
        raise SpecError(
            f"McNemar's test takes right or wrong, and {score} is neither: "
            f"use one of {', '.join(BINARY)}"
        )
    # 1. Two cells that share all keys but `over`, on the items that both could ask.
    wide, rows = _pivot_scores(results, score), []
    cells = pd.DataFrame(list(wide.columns), columns=KEYS)
    for shared, part in cells.groupby(keys, sort=False):
        for a, b in combinations(part[over], 2):
            named = dict(zip(keys, shared, strict=True))
            pair = [tuple((named | {over: name})[key] for key in KEYS) for name in (a, b)]
            both = wide[pair].dropna().to_numpy() == 1
            # 2. McNemar's exact test on the items that only one of them answers right.
            test = stats.mcnemar_of(both[:, 0], both[:, 1])
            rows.append(
                named
                | {"a": a, "b": b, "value": float(test.value), "null": 0.0, "lift": np.nan}
                | {"n": int(test.n), "missing": len(wide) - int(test.n)}
                | {"low": float(test.low), "high": float(test.high)}
                | {"interval": str(test.why), "a_only": int((both[:, 0] & ~both[:, 1]).sum())}
                | {"b_only": int((~both[:, 0] & both[:, 1]).sum()), "p": float(test.p)}
            )
    # 3. Holm's correction over the whole table.
    columns = [*keys, "a", "b", *NUMBERS, "a_only", "b_only", "p"]
    table = _build_table(results, rows, columns, {"table": f"{over}s_compared", "score": score})
    table["p_holm"] = stats.holm(table["p"].to_numpy(dtype=float))
    return table


def _build_table(
    results: Results,
    rows: list[dict[str, Any]],
    columns: Sequence[str],
    about: Mapping[str, Any],
) -> pd.DataFrame:
    """Rows that know which cells made them."""
    table = pd.DataFrame(rows, columns=list(columns))
    origins = [_origin(*cell) for cell in results.manifests.items()]
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


@dataclass(frozen=True)
class ContextEffect:
    """One number of some contexts."""

    name: str
    test: str
    """The stress test it belongs to: gain, position, noise, irrelevant, layout, masks, wording."""
    contexts: tuple[str, ...]
    of: Callable[[np.ndarray], np.ndarray]
    """From mean scores [..., context] to the number [...]."""
    linear: bool = True
    """Whether it is a sum, which is 0 where contexts do not matter; else its null is permuted."""


def find_effects(names: Sequence[str]) -> list[ContextEffect]:
    """Every effect that these contexts can show, in the order of the tests."""
    known = [context(name) for name in dict.fromkeys(names)]
    return [
        *_find_gains(known),
        *_find_positions(known),
        *_find_noise(known),
        *_find_irrelevant(known),
        *_find_layouts(known),
        *_find_changes(known),
    ]


def slope(x: Sequence[float]) -> Callable[[np.ndarray], np.ndarray]:
    """The least-squares slope over x, as a function of values [..., x]."""
    centred = np.asarray(x, dtype=float) - np.mean(x)
    weights = centred / np.sum(centred**2)
    return lambda means: means @ weights


def u_index(means: np.ndarray) -> np.ndarray:
    """Mean of both ends minus the worst in between: above 0 where the middle is lost."""
    return (means[..., 0] + means[..., -1]) / 2 - means[..., 1:-1].min(axis=-1)


def spread(means: np.ndarray) -> np.ndarray:
    """The best place minus the worst."""
    return means.max(axis=-1) - means.min(axis=-1)


def difference(means: np.ndarray) -> np.ndarray:
    """The second context minus the first."""
    return means[..., 1] - means[..., 0]


def share_of_room(means: np.ndarray) -> np.ndarray:
    """The gain as a share of what was left to gain."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(means[..., 0] < 1, difference(means) / (1 - means[..., 0]), np.nan)


def without_changes(shown: Context) -> Context:
    """The context without what was done to it."""
    return replace(shown, shuffle=0, typos=0, paraphrase=False, masks=0)


def _unchanged_contexts(known: Sequence[Context]) -> list[Context]:
    return [shown for shown in known if shown == without_changes(shown)]


def _find_gains(known: Sequence[Context]) -> Iterator[ContextEffect]:
    if CLOSED in [shown.name for shown in known]:
        for shown in _unchanged_contexts(known):
            if shown.name != CLOSED:
                yield ContextEffect(
                    f"gain of {shown.name}", "gain", (CLOSED, shown.name), difference
                )


def _find_positions(known: Sequence[Context]) -> Iterator[ContextEffect]:
    placed = [shown for shown in _unchanged_contexts(known) if shown.place is not None]
    for (total, kind), group in _group_contexts(placed, lambda shown: (shown.total, shown.kind)):
        alike = sorted(group, key=lambda shown: shown.place or 0)
        if len(alike) < 2:
            continue
        names, places = tuple(shown.name for shown in alike), [shown.place or 0 for shown in alike]
        label = f"of {total}" + ("" if kind == "random" else f" {kind}")
        where = [(number - 1) / max(total - 1, 1) for number in places]
        yield ContextEffect(f"locality slope {label}", "position", names, slope(where))
        yield ContextEffect(f"range {label}", "position", names, spread, linear=False)
        if len(alike) > 2 and places[0] == 1 and places[-1] == total:
            yield ContextEffect(f"U-index {label}", "position", names, u_index, linear=False)


def _find_noise(known: Sequence[Context]) -> Iterator[ContextEffect]:
    gold = [
        shown
        for shown in _unchanged_contexts(known)
        if shown.base == "gold" and shown.place is None
    ]
    for kind in ("random", "hard", "counterfactual"):
        alike = [shown for shown in gold if not shown.others or shown.kind == kind]
        alike.sort(key=lambda shown: shown.others)
        if sum(shown.others > 0 for shown in alike) and len(alike) > 1:
            doublings = [float(np.log2(1 + shown.others)) for shown in alike]
            names = tuple(shown.name for shown in alike)
            yield ContextEffect(f"slope per doubling of {kind}", "noise", names, slope(doublings))


def _find_irrelevant(known: Sequence[Context]) -> Iterator[ContextEffect]:
    shares = [shown for shown in _unchanged_contexts(known) if shown.base == "irrelevant"]
    for total, group in _group_contexts(shares, lambda shown: shown.total):
        alike = sorted(group, key=lambda shown: shown.others)
        if len(alike) > 1:
            names = tuple(shown.name for shown in alike)
            x = [shown.others / total for shown in alike]
            yield ContextEffect(
                f"slope of the irrelevant share of {total}", "irrelevant", names, slope(x)
            )


_PAIRS = (("far", "adjacent"), ("reversed", "adjacent"), ("far-reversed", "far"))


def _find_layouts(known: Sequence[Context]) -> Iterator[ContextEffect]:
    """Close minus far, and told in order minus told in reverse."""
    plain = _unchanged_contexts(known)
    for shown in plain:
        for base, other in _PAIRS:
            beside = replace(shown, base=other)
            if shown.base == base and beside in plain:
                names = (shown.name, beside.name)
                yield ContextEffect(
                    f"{beside.name} minus {shown.name}", "layout", names, difference
                )


def _find_changes(known: Sequence[Context]) -> Iterator[ContextEffect]:
    """What was done to a context, minus the same without it; the kind of distractors too."""
    for shown in known:
        bare = without_changes(shown)
        if bare != shown and bare in known:
            test = "masks" if shown.masks else "wording"
            yield ContextEffect(
                f"{shown.name} minus {bare.name}", test, (bare.name, shown.name), difference
            )
        random = replace(bare, kind="random")
        if shown == bare and random != shown and random in known:
            names = (random.name, shown.name)
            yield ContextEffect(f"{shown.name} minus {random.name}", "noise", names, difference)


def _group_contexts(
    contexts: Sequence[Context], by: Callable[[Context], Any]
) -> list[tuple[Any, list[Context]]]:
    return [(key, list(group)) for key, group in groupby(sorted(contexts, key=by), key=by)]


def curve(results: Results, test: str, score: str = SCORE) -> pd.DataFrame:
    """Accuracy over what a stress test varies, for its figure.

    `place` for position, `distractors` and `kind` for noise, `share` for irrelevant, `masks` for
    masks; for gain, layout and wording the contexts themselves.
    """
    if test not in _VARIED:
        raise SpecError(f"no stress test is called {test!r}: expected one of {', '.join(_VARIED)}")
    table = accuracy(results, [score])
    varied = [_VARIED[test](context(name)) for name in table["context"]]
    kept = [index for index, value in enumerate(varied) if value is not None]
    if not kept:
        shown = ", ".join(dict.fromkeys(table["context"]))
        raise SpecError(f"no context shows {test}: {shown} were asked")
    part = table.iloc[kept].reset_index(drop=True)
    more = pd.DataFrame([varied[index] for index in kept])
    joined = pd.concat([part[KEYS], more, part[["quantity", *NUMBERS, "guesser"]]], axis=1)
    joined.attrs = dict(table.attrs) | {"about": {"table": "curve", "test": test, "score": score}}
    return joined


def join_attention(
    results: Results, out: str | Path, measure: Callable[[list[Trace]], pd.DataFrame]
) -> pd.DataFrame:
    """Each item's scores beside what attention did: `measure` of its kept traces, `by=["trace"]`.

    >>> from anchorwatch import metrics
    >>> measure = lambda traces: metrics.concentration(traces, by=["trace"])
    """
    folder, rows = expand_path(out), results.rows[results.rows["unfit"] == ""]
    kept = [folder / row.cell / TRACES / f"{row.item}.trace" for row in rows.itertuples()]
    if not any(path.exists() for path in kept):
        raise SpecError(f"no traces are kept in {out}: evaluate(..., probes=[...]) keeps them")
    table = measure([read(path) for path in kept if path.exists()])
    if "trace" not in table:
        raise SpecError("the measure does not tell traces apart: give it by=['trace']")
    measured_rows = table.drop(columns=["model"], errors="ignore").rename(columns={"trace": "run"})
    joined = rows.merge(measured_rows, on="run", how="inner")
    joined.attrs = dict(table.attrs)
    return joined


def _context_columns(shown: Context) -> dict[str, Any]:
    return {"shown": shown.name}


def _is_bare_gold(shown: Context) -> bool:
    """Whether nothing but the evidence is shown, as it is."""
    return shown == Context("gold")


_VARIED: dict[str, Callable[[Context], dict[str, Any] | None]] = {
    "gain": _context_columns,
    "position": lambda shown: (
        None
        if shown.place is None
        else {"place": shown.place, "total": shown.total, "kind": shown.kind}
    ),
    "noise": lambda shown: (
        {"distractors": shown.others, "kind": shown.kind}
        if shown.base == "gold" and shown.place is None and "~" not in shown.name
        else None
    ),
    "irrelevant": lambda shown: (
        {"share": shown.others / (shown.total or 1)} if shown.base == "irrelevant" else None
    ),
    "layout": lambda shown: _context_columns(shown) if shown.base in LAYOUTS else None,
    "masks": lambda shown: (
        {"masks": shown.masks} if _is_bare_gold(replace(shown, masks=0)) else None
    ),
    "wording": lambda shown: (
        _context_columns(shown)
        if _is_bare_gold(replace(shown, typos=0, paraphrase=False, shuffle=0))
        else None
    ),
}
