"""Attention of the rows that predicted committed tokens, region by region.

Row p predicts position p, in a shifted family row p-1. What counts is the canvas before the commit.
Shapes: R regions (gold first), C commits in the order of their positions, K kept keys of a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics.layer_slices import READ_BYTES, iter_layers, require_field
from anchorwatch.metrics.null import count_extra_keys, layer_window, visible_spans
from anchorwatch.metrics.sink_rules import Rule
from anchorwatch.metrics.stats import ranks
from anchorwatch.trace.trace import PROMPT, SPECIAL, Trace

LEAST_LEFT = 0.02
"""Where sinks leave a row less than this, half precision leaves nothing to read of the rest."""
SINK_TOKEN = -2


@dataclass(frozen=True, eq=False)
class CommittedRows:
    """Numbers of each committed row; NaN where it was not measured."""

    num_steps: int
    steps: np.ndarray
    """[C] when each token was committed."""
    positions: np.ndarray
    """[C] where."""
    top_key: np.ndarray
    """[layer, head, C] the row's greatest key; -1 where there is none, -2 for a sink token."""
    top_mass: np.ndarray
    """[layer, head, C] what the row gives to it."""
    lengths: np.ndarray
    """[R] tokens of each region."""
    expected: np.ndarray
    """[R, layer, C] each region's share of the keys that the row may look at."""
    same: np.ndarray
    """[R, layer, C] the share of those keys that are of the region and bear the committed id."""
    kept: np.ndarray
    """[layer, head, C] how much of its attention the row's kept keys hold."""
    hit: np.ndarray
    """[R, layer, head, C] whether the greatest key is in the region."""
    copy: np.ndarray
    """[R, layer, head, C] whether it bears the committed id, too."""
    in_top: np.ndarray
    """[R, layer, head, C] attention to the region on the kept keys."""
    mass: np.ndarray
    """[R, layer, head, C] attention to the region."""
    auroc: np.ndarray
    """[R, layer, head, C] whether the region's tokens get more than others of the prompt."""
    without_sinks: np.ndarray
    """[layer, head, C] lift of gold once the sinks among the kept keys are taken out."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """Committed rows as the trace keeps them."""

    trace: Trace
    steps: np.ndarray
    rows: np.ndarray
    """[C] the row that predicted each token."""
    positions: np.ndarray
    ids: np.ndarray
    inside: np.ndarray
    """[R, position] bool."""
    keys: np.ndarray
    """[layer, head, C, K], -1 where there is none, -2 for a sink token."""
    mass: np.ndarray
    """[layer, head, C, K], 0 where there is no key."""
    measured: np.ndarray
    """[layer, head, C] bool."""


def read_committed_rows(
    trace: Trace, names: Sequence[str], rule: Rule | None, ignore: Collection[int] = ()
) -> CommittedRows:
    """The attention of committed rows to the named regions; without a rule sinks stay in."""
    # 1. The rows that predicted committed tokens, and the keys that each may look at.
    rows = _rows(trace, _inside(trace, names), ignore)
    first, last = _visible(rows)
    added = np.stack([count_extra_keys(trace, layer)[rows.steps] for layer in range(len(first))])
    ones = np.ones(rows.inside.shape[1:], dtype=bool)
    keys = _count_visible(ones, first, last) + added
    # 2. Where the top key of each row is: in which region, and does it bear the committed id?
    bears = trace.canvas[rows.steps] == rows.ids[:, None]  # [C, position]
    greatest = rows.keys[..., 0]
    position = np.maximum(greatest, 0)
    hit = (rows.inside[:, position] & (greatest >= 0)).astype(float)
    copied = bears[np.arange(len(rows.steps)), position]
    empty = np.where(rows.measured, 0.0, np.nan)
    # 3. Attention on the kept keys, region by region.
    in_top = [
        np.sum(rows.mass, axis=-1, where=_select_kept(inside, rows)) for inside in rows.inside
    ]
    numbers = CommittedRows(
        num_steps=trace.num_steps,
        steps=rows.steps,
        positions=rows.positions,
        top_key=greatest,
        top_mass=rows.mass[..., 0],
        lengths=rows.inside.sum(axis=-1),
        expected=np.stack([_count_visible(region, first, last) for region in rows.inside]) / keys,
        same=np.stack([_count_visible(region & bears, first, last) for region in rows.inside])
        / keys,
        kept=np.sum(rows.mass, axis=-1, where=rows.keys >= 0) + empty,
        hit=hit + empty,
        copy=hit * copied + empty,
        in_top=np.stack(in_top) + empty,
        mass=_region_mass(rows, names),
        auroc=np.full(hit.shape, np.nan),
        without_sinks=np.full(hit.shape[1:], np.nan),
    )
    # 4. Whole maps and sink labels add what the kept keys cannot tell.
    numbers = _with_maps(numbers, rows, first, last)
    return numbers if rule is None else _without_sinks(numbers, rows, rule, keys)


@dataclass(frozen=True, eq=False)
class AlignedRows:
    """Attention of committed rows to keys that were named for each of them; NaN: not measured."""

    num_steps: int
    steps: np.ndarray
    """[C] when each token was committed."""
    expected: np.ndarray
    """[layer, C] the named keys' share of the keys that the row may look at."""
    hit: np.ndarray
    """[layer, head, C] whether the top key is a named one."""
    in_top: np.ndarray
    """[layer, head, C] attention to named keys on the kept keys."""
    kept: np.ndarray
    """[layer, head, C] how much of its attention the row's kept keys hold."""
    mass: np.ndarray
    """[layer, head, C] attention to named keys; absent without whole maps."""


def read_aligned_rows(trace: Trace, aligned: np.ndarray) -> AlignedRows:
    """The attention of committed rows to their keys in `aligned` [position, key], bool.

    Row p of `aligned` names the keys for the token that is committed at position p; positions
    without any are left out.
    """
    # 1. Committed rows with named keys, and the keys that each may look at.
    rows = _rows(trace, np.zeros((0, aligned.shape[1]), dtype=bool), (), np.any(aligned, axis=1))
    first, last = _visible(rows)
    added = np.stack([count_extra_keys(trace, layer)[rows.steps] for layer in range(len(first))])
    keys = _count_visible(np.ones(aligned.shape[1], dtype=bool), first, last) + added
    named = aligned[rows.positions]  # [C, key]
    # 2. Which of the kept keys are named ones.
    commit = np.arange(len(rows.steps))[:, None]
    among = named[commit, np.maximum(rows.keys, 0)] & (rows.keys >= 0)  # [layer, head, C, K]
    empty = np.where(rows.measured, 0.0, np.nan)
    # 3. Exact masses where whole maps were captured.
    mass = np.full(rows.measured.shape, np.nan)
    for layer, head, index, row in _iter_map_rows(rows):
        mass[layer, head, index] = np.nansum(row, where=named[index])
    return AlignedRows(
        num_steps=trace.num_steps,
        steps=rows.steps,
        expected=_count_visible(named, first, last) / keys,
        hit=among[..., 0] + empty,
        in_top=np.sum(rows.mass, axis=-1, where=among) + empty,
        kept=np.sum(rows.mass, axis=-1, where=rows.keys >= 0) + empty,
        mass=mass,
    )


def _inside(trace: Trace, names: Sequence[str]) -> np.ndarray:
    """[R, position] bool."""
    known = trace.manifest["regions"]
    for name in names:
        if name not in known:
            raise SpecError(
                f"the trace has no region {name!r}: "
                + (f"it has {', '.join(known)}" if known else "run(..., regions={'gold': (0, 42)})")
            )
    region = trace["region"].values
    inside = np.stack([region == known.index(name) for name in names])
    for name, positions in zip(names, inside, strict=True):
        if not positions.any():
            raise TraceError(f"the region {name!r} of the trace is empty: it holds no token")
    return inside


def _rows(
    trace: Trace, inside: np.ndarray, ignore: Collection[int], wanted: np.ndarray | None = None
) -> _Rows:
    when = trace.committed_at
    wrote = trace.own
    # Committed positions, without tokens that are to be ignored (such as the end of the text).
    counted = (when >= 0) & ~np.isin(wrote, list(ignore))
    positions = np.flatnonzero(counted if wanted is None else counted & wanted)
    keys = require_field(trace, "commit_top_key").values[:, :, positions]
    mass = require_field(trace, "commit_top_mass").values[:, :, positions].astype(np.float64)
    return _Rows(
        trace=trace,
        steps=when[positions],
        rows=np.maximum(positions - int(trace.manifest["model"]["shift"]), 0),
        positions=positions,
        ids=wrote[positions],
        inside=inside,
        keys=keys,
        mass=np.nan_to_num(mass),
        measured=~np.isnan(mass[..., 0]),
    )


def _visible(rows: _Rows) -> tuple[np.ndarray, np.ndarray]:
    """(first, one past the last) key that each row may look at, [layer, C] each."""
    layers = rows.trace.manifest["model"]["layers"]
    spans = np.zeros((2, layers, len(rows.steps)), dtype=int)
    windows = [layer_window(rows.trace, layer) for layer in range(layers)]
    # Layers with one window share their spans, and so do the rows of one step.
    for window in set(windows):
        alike = [layer for layer in range(layers) if windows[layer] == window]
        for step in np.unique(rows.steps):
            chosen = np.flatnonzero(rows.steps == step)
            bounds = np.stack(visible_spans(rows.trace, int(step), window))[:, rows.rows[chosen]]
            spans[:, np.array(alike)[:, None], chosen] = bounds[:, None]
    return spans[0], spans[1]


def _count_visible(chosen: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """[layer, C] how many chosen keys ([position] or [C, position] bool) each row may look at."""
    # Chosen keys before each position: a span's count is a difference of two of them.
    before = np.concatenate([np.zeros_like(chosen[..., :1]), chosen], axis=-1).cumsum(axis=-1)
    before = np.broadcast_to(before, (first.shape[1], before.shape[-1]))
    commit = np.arange(first.shape[1])
    return (before[commit, last] - before[commit, first]).astype(float)


def _select_kept(chosen: np.ndarray, rows: _Rows) -> np.ndarray:
    """[layer, head, C, K] bool of [position]: which kept keys are chosen."""
    return chosen[np.maximum(rows.keys, 0)] & (rows.keys >= 0)


def _region_mass(rows: _Rows, names: Sequence[str]) -> np.ndarray:
    """[R, layer, head, C] by the probe; absent without it."""
    if "commit_region_mass" not in rows.trace.fields:
        return np.full((len(names), *rows.measured.shape), np.nan)
    kept = rows.trace["commit_region_mass"]
    order = [rows.trace.manifest["regions"].index(name) for name in names]
    return np.moveaxis(kept.values[:, :, rows.positions][..., order].astype(np.float64), -1, 0)


def _with_maps(
    numbers: CommittedRows, rows: _Rows, first: np.ndarray, last: np.ndarray
) -> CommittedRows:
    """What whole maps tell: the AUROC, and masses that the probe did not keep."""
    trace, auroc, mass = rows.trace, numbers.auroc.copy(), numbers.mass.copy()
    for layer, head, commit, row in _iter_map_rows(rows):
        given = np.isin(trace.role[rows.steps[commit]], (PROMPT, SPECIAL))
        seen = np.zeros(len(row), dtype=bool)
        seen[first[layer, commit] : last[layer, commit]] = True
        cell = (layer, head, commit)
        # Only visible keys of the prompt are ranked.
        auroc[:, *cell] = ranks.auroc(row[given & seen], rows.inside[:, given & seen])
        exact = np.nansum(np.where(rows.inside, row, 0.0), axis=-1)
        mass[:, *cell] = np.where(np.isnan(mass[:, *cell]), exact, mass[:, *cell])
    return replace(numbers, auroc=auroc, mass=mass)


def _iter_map_rows(rows: _Rows) -> Iterator[tuple[int, int, int, np.ndarray]]:
    """(layer, head, commit, row [key]) of the committed rows that whole maps show."""
    trace = rows.trace
    if "pattern" not in trace.fields:
        return
    maps = trace["pattern"]
    if maps.nbytes <= READ_BYTES:
        maps = maps.load()  # one read, not one for each map
    picks = zip(*(trace[f"pick_{name}"].values for name in ("step", "layer", "head")), strict=True)
    # A map is of one (step, layer, head): it tells of the tokens committed at that step.
    for pick, (step, layer, head) in enumerate(picks):
        chosen = np.flatnonzero(rows.steps == step)
        shown = maps[pick].values if len(chosen) else np.zeros(0)
        for commit in chosen:
            row = shown[rows.rows[commit]]
            if not np.isnan(row).all():
                yield int(layer), int(head), int(commit), row


def _without_sinks(
    numbers: CommittedRows, rows: _Rows, rule: Rule, keys: np.ndarray
) -> CommittedRows:
    """Lift of gold in rows without the sinks among their kept keys; absent without `received`."""
    if "received" not in rows.trace.fields:
        return numbers
    gold, lifts = rows.inside[0], numbers.without_sinks.copy()
    for layer_slice in iter_layers(rows.trace):
        layer = layer_slice.index
        kept, mass = rows.keys[layer], rows.mass[layer]  # [head, C, K]
        labels = layer_slice.labels(rule)[rows.steps].swapaxes(0, 1)  # [head, C, key]
        # 1. Which kept keys are sinks: by the rule, or a sink token before the canvas.
        sink = np.take_along_axis(labels, np.maximum(kept, 0).astype(np.intp), axis=-1)
        sink = (sink & (kept >= 0)) | (kept == SINK_TOKEN)
        own = sink & gold[np.maximum(kept, 0)] & (kept >= 0)
        # 2. Attention and keys that are left once they are out, of all keys and of gold.
        left = 1 - np.sum(mass, axis=-1, where=sink)
        evidence = numbers.mass[0, layer] - np.sum(mass, axis=-1, where=own)
        golden = numbers.expected[0, layer] * keys[layer] - own.sum(axis=-1)
        share = golden / np.maximum(keys[layer] - sink.sum(axis=-1), 1)
        # 3. The lift of what is left; without enough of it there is nothing to divide.
        known = layer_slice.is_measured()[rows.steps].T & (left >= LEAST_LEFT) & (golden > 0.5)
        with np.errstate(invalid="ignore", divide="ignore"):
            lifts[layer] = np.where(known, evidence / left / share, np.nan)
    return replace(numbers, without_sinks=lifts)
