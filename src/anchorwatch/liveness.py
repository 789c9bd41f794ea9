"""Proof that an edit is alive: a few rows of a call by the obvious formula, against its output.

A kernel that ignores what it is given (published copies of LLaDA do) gives other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anchorwatch.attention import Call, visible
from anchorwatch.changes import Change, Made, logits_of
from anchorwatch.errors import ModelError
from anchorwatch.measures import View

ROWS = 3
"""Rows of each edited head that are computed again."""

_OFF = {torch.float32: 1e-3, torch.float64: 1e-3}
"""How far a row may be off, relative to the largest value; other dtypes 5e-2."""


def prove(plain: Call, change: Change, made: Made, views: Sequence[View]) -> bool:
    """Compute some rows of every edited head again; raises where the output is another one.

    True where the change was large enough in some row to tell it from none at all.
    """
    told = False
    for view in views:
        rows = torch.linspace(view.query_slice.start, view.query_slice.stop - 1, ROWS)
        for head in _edited(change, view.row):
            for query in sorted({round(float(row)) for row in rows}):
                told |= _prove_row(plain, change, made, (view.row, head, query))
    return told


def _edited(change: Change, row: int) -> list[int]:
    keys = [change.logit, change.penalty, change.weight, change.value, change.value_mean]
    touched = torch.stack([held[row].bool().any(dim=-1) for held in keys]).any(dim=0)
    touched |= change.zero[row] | change.mean[row] | change.uniform[row]
    return touched.nonzero()[:, 0].tolist()


def _prove_row(plain: Call, change: Change, made: Made, place: tuple[int, int, int]) -> bool:
    b, h, query = place
    if bool(change.mean[b, h]):
        _prove_mean(plain, change, made, place)
        return True
    shares, value = _expected(plain, change, made, place)
    ours = made.out[b, query, h].double()
    exact = torch.zeros_like(ours) if bool(change.zero[b, h]) else shares @ value
    scale = float(plain.value[b].abs().max())
    gap = float((ours - exact).abs().max())
    what = "its output is not zero" if bool(change.zero[b, h]) else "its output is another"
    _small(plain, gap, scale, place, what)
    untouched, values = _expected(plain, Change.nothing(plain), made, place)
    return float((untouched @ values - exact).abs().max()) > 2 * _off(plain) * max(scale, 1e-6)


def _off(plain: Call) -> float:
    return _OFF.get(plain.query.dtype, 5e-2)


def _prove_mean(plain: Call, change: Change, made: Made, place: tuple[int, int, int]) -> None:
    """A row of a head whose output is its mean, from what that output would have been."""
    b, h, query = place
    rows = made.before_heads[b, :, h].double()
    seen = visible(plain)
    if seen is not None:
        rows = rows[seen[b if seen.shape[0] > 1 else 0, 0, query]]
    gap = float((made.out[b, query, h].double() - rows.mean(dim=0)).abs().max())
    _small(plain, gap, float(rows.abs().max()), place, "its output is not the mean")


def _small(plain: Call, gap: float, scale: float, place: tuple[int, int, int], what: str) -> None:
    if gap <= _off(plain) * max(scale, 1e-6):
        return
    raise ModelError(
        f"the edit is not alive at layer {plain.layer}, head {place[1]}, row {place[2]}: {what} "
        f"(off by {gap:.2g}); this kernel ignores edits, load the model on a CPU in float32"
    )


def _expected(
    plain: Call, change: Change, made: Made, place: tuple[int, int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """([K] weights, [K, D] values) of one row in float64, written down plainly."""
    b, h, query = place
    logits = logits_of(plain, b, h, torch.tensor([query], device=plain.query.device))[0].double()
    seen = logits > -torch.inf
    if bool(change.uniform[b, h]):
        logits = torch.zeros_like(logits).masked_fill(~seen, -torch.inf)
    spared, kept = made.spared, None
    mine = (spared.row == b) & (spared.head == h) & (spared.query == query)
    if bool(mine.any()):
        kept = int(spared.key[mine][0])
    gone, dropped = change.logit[b, h].clone(), change.weight[b, h].clone()
    if kept is not None:
        gone[kept] = dropped[kept] = False
    logits = (logits - change.penalty[b, h]).masked_fill(gone, -torch.inf)
    shares = logits.softmax(dim=-1).masked_fill(dropped, 0.0)
    group = h * plain.value.shape[1] // plain.query.shape[1]
    value = plain.value[b, group].double()
    mean = value[seen].mean(dim=0)
    changed = torch.where(change.value_mean[b, h, :, None], mean, value)
    return shares, changed.masked_fill(change.value[b, h, :, None], 0.0)
