"""What an approximate cache saves and what it changes: cached runs beside exact ones.

Each prompt is decoded exactly and with every cache. Two kinds of number come of it. What the run
came to: commits that differ from the exact run, and when they first do. What the cache did to the
model: at every step of the cached run the same canvas is also read by a whole pass, and the
predictions (KL divergence) and the attention (total variation) of the rows that the step reads are
compared. Exact against exact is zero in all of them: that is their null.
Shapes: H heads, Q rows, T positions, V outputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pandas as pd
import torch

from anchorwatch.errors import SpecError
from anchorwatch.generation.cached_pass import KeptKeys, RunCache
from anchorwatch.generation.caches import Cache, approximate_cache, as_cache
from anchorwatch.generation.decoding import Blocks, Decoding, StepPlan
from anchorwatch.generation.loop import RunState, Step, walk
from anchorwatch.generation.plan import BUDGET_BYTES
from anchorwatch.generation.prepare import RunRequest, expand_seeds, prompt_list, start_run
from anchorwatch.metrics import stats
from anchorwatch.models.attention import use_kept_keys
from anchorwatch.models.model import Model
from anchorwatch.models.prompt_encoding import Prompt
from anchorwatch.trace.progress_bar import Progress

QUANTITIES = {
    "commits_changed": "share of the answer whose token differs from the exact run's",
    "first_divergence": "share of the answer written when canvases first differ; 1 if never",
    "kl": "nats by which a prediction differs from the whole pass over the same canvas",
    "flips": "share of predictions whose likeliest token is another than the whole pass's",
    "attention_error": "share of a row's attention that lies elsewhere than in the whole pass",
    "rows": "query rows computed, as a share of the exact run's",
    "passes": "forward passes, as a share of the exact run's",
}


_AT_FRAMES = ("kl", "flips", "attention_error")
"""Quantities that are taken at every frame of a cached run."""


class WatchedKeys(KeptKeys):
    """A cache whose queries and keys can be read after a pass."""

    def __init__(self, cache: Cache) -> None:
        super().__init__(cache)
        self.calls: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, float]] = []

    def begin_pass(self, rows: torch.Tensor, now: Any) -> None:
        super().begin_pass(rows, now)
        self.rows, self.calls = rows.nonzero()[:, 0], []

    def complete(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        keys, values, visible = super().complete(query, key, value, scale)
        self.calls.append((query, keys, visible, scale))
        return keys, values, visible


class _WholePass:
    """Queries and keys of a pass over all rows, which it leaves alone."""

    def __init__(self) -> None:
        self.calls: list[tuple[torch.Tensor, torch.Tensor]] = []

    def complete(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        self.calls.append((query, key))
        return key, value, None


@dataclass
class ComparedRun(RunState):
    """A run with a cache that reads every canvas by a whole pass as well."""

    model: Model
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_AT_FRAMES, 0.0))
    rows_compared: int = 0

    def commit(self, logits: torch.Tensor, plan: StepPlan) -> Step:
        positions = self.positions_read(plan)
        assert self.cache is not None and isinstance(self.cache.kept, WatchedKeys)
        if positions is not None and len(positions):
            self._compare(logits[positions], positions, self.cache.kept)
        return super().commit(logits, plan)

    def _compare(self, cached: torch.Tensor, positions: torch.Tensor, kept: WatchedKeys) -> None:
        # 1. The whole pass over the same canvas.
        whole = _WholePass()
        with use_kept_keys(whole):
            exact = self.model.logits(self.sequence.canvas, columns=positions)
        # 2. Predictions: KL(exact || cached), and whether the likeliest token is the same.
        p, q = (rows.double().log_softmax(dim=-1) for rows in (exact, cached))
        self.sums["kl"] += float((p.exp() * (p - q)).sum())
        self.sums["flips"] += float((exact.argmax(dim=-1) != cached.argmax(dim=-1)).sum())
        # 3. Attention of the rows that predict: half the sum of absolute differences.
        rows = (positions - int(self.model.family.shift)).clamp(min=0)
        index = torch.searchsorted(kept.rows, rows)
        error = 0.0
        for (query, key, visible, scale), (full_query, full_key) in zip(
            kept.calls, whole.calls, strict=True
        ):
            mine = _attention(query[0][:, index], key[0], scale, visible)
            theirs = _attention(full_query[0][:, rows], full_key[0], scale, None)
            error += float((mine - theirs).abs().sum() / 2 / mine.shape[0])
        self.sums["attention_error"] += error / len(whole.calls)
        self.rows_compared += len(positions)


def _attention(
    query: torch.Tensor, key: torch.Tensor, scale: float, visible: torch.Tensor | None
) -> torch.Tensor:
    """[H, Q, T] attention of some rows."""
    keys = key.float().repeat_interleave(query.shape[0] // key.shape[0], dim=0)
    logits = query.float() @ keys.transpose(1, 2) * scale
    if visible is not None:
        logits = logits.masked_fill(~visible[0, 0, :1], -torch.inf)
    return logits.softmax(dim=-1)


def compare_caches(
    model: Model,
    prompts: Sequence[Prompt],
    decoding: Decoding,
    caches: Sequence[Cache | str],
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """A tidy table of what each cache saves and changes: one row for each cache and quantity.

    `decoding` is the exact one, without a cache. Columns: cache, quantity, value, low, high (over
    prompts; NaN below five), null, n, says. A smaller share of rows saves; a value above its null
    is a change.

    >>> from anchorwatch.generation.decoding import LowConfidence
    >>> from anchorwatch.models.load import load
    >>> exact = LowConfidence(length=8, block=4)
    >>> table = compare_caches(load("tiny/llada"), ["the anchor"], exact, ["dual"])
    >>> float(table.set_index("quantity").loc["rows", "value"]) < 0.6
    True
    """
    # 1. Every prompt exactly and with each cache, from the same random numbers.
    if approximate_cache(decoding) is not None:
        raise SpecError("the decoding has a cache: give the exact one, and the caches as a list")
    if not isinstance(decoding, Blocks):
        raise SpecError(
            f"{type(decoding).__name__} takes no approximate cache: use LowConfidence, RandomOrder "
            "or Threshold"
        )
    wanted = [cache for cache in map(as_cache, caches) if cache is not None]
    if not wanted:
        raise SpecError("there is no cache to compare: give some, ['dual'] for example")
    texts = prompt_list(prompts, "compare_caches")
    values: dict[Cache, list[dict[str, float]]] = {cache: [] for cache in wanted}
    with Progress("comparing", total=len(texts) * (1 + len(wanted))) as bar:
        for prompt, number in zip(texts, expand_seeds(seed, len(texts)), strict=True):
            exact = _decode(model, prompt, decoding, number, None)
            bar.advance()
            for cache in wanted:
                cached = _decode(model, prompt, decoding, number, cache)
                values[cache].append(_compare_runs(exact, cached))
                bar.advance()
    # 2. Means over prompts with their intervals.
    rows = []
    for cache, by_prompt in values.items():
        for name, says in QUANTITIES.items():
            each = np.array([numbers[name] for numbers in by_prompt])
            interval = stats.cluster_bootstrap(each)
            rows.append(
                {
                    "cache": cache.as_word(),
                    "quantity": name,
                    "value": interval.value,
                    "low": interval.low,
                    "high": interval.high,
                    "null": 1.0 if name in ("rows", "passes", "first_divergence") else 0.0,
                    "n": len(each),
                    "says": says,
                }
            )
    return pd.DataFrame(rows)


def _decode(
    model: Model, prompt: Prompt, decoding: Decoding, seed: int, cache: Cache | None
) -> RunState:
    """A finished run, exact or with a cache that is compared at every frame."""
    how = decoding if cache is None else dataclasses.replace(cast(Blocks, decoding), cache=cache)
    state = start_run(model, RunRequest(prompt), how, (), seed, BUDGET_BYTES)
    if cache is not None:
        own = {f.name: getattr(state, f.name) for f in dataclasses.fields(state) if f.init}
        state = ComparedRun(**own, model=model)
        state.cache = RunCache(WatchedKeys(cache))
    for _ in walk(model, [state]):
        pass
    return state


def _compare_runs(exact: RunState, cached: RunState) -> dict[str, float]:
    """Every quantity of one prompt."""
    assert isinstance(cached, ComparedRun)
    answer = exact.sequence.answer.cpu().numpy()
    ours, theirs = (run.frame()[answer] for run in (cached, exact))
    # Steps are of equal number unless a threshold decides: canvases are compared as far as both go.
    frames = [[*(step.canvas for step in run.steps), run.frame()] for run in (cached, exact)]
    apart = [i for i, (a, b) in enumerate(zip(*frames, strict=False)) if not np.array_equal(a, b)]
    written = 1.0
    if apart:
        before = frames[1][apart[0] - 1][answer]
        written = float((before != exact.sequence.mask_id).mean())
    compared = max(cached.rows_compared, 1)
    return {name: total / compared for name, total in cached.sums.items()} | {
        "commits_changed": float((ours != theirs).mean()),
        "first_divergence": written,
        "rows": cached.rows_computed / exact.rows_computed,
        "passes": cached.passes_computed / exact.passes_computed,
    }
