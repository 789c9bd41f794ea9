"""Did an edit take effect? A few rows of a call by the obvious formula, against its output.

A kernel that ignores what it is given (published copies of LLaDA do) gives other rows. Whatever an
edit marks in the `AttentionPatch` is verified here, in float64 and one row at a time.
Shapes: B rows of the batch, H heads, Q queries, K keys, D channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from anchorwatch.edits.ablation import AttentionPatch, PatchedCall, logits_of
from anchorwatch.edits.spec import Addition, Edit, gate
from anchorwatch.errors import ModelError
from anchorwatch.models.additions import ActiveAddition, PassAdditions
from anchorwatch.models.attention import Call, visible
from anchorwatch.probes.accumulate import View

ROWS = 3
"""Rows of each edited head that are computed again."""

_TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-3}
"""How far a row may be off, relative to the largest value; other dtypes 5e-2."""


@dataclass(frozen=True)
class EditCheck:
    """A call as it would have been, what was changed in it, and what came of it."""

    plain: Call
    patch: AttentionPatch
    patched: PatchedCall
    views: Sequence[View]


@dataclass(frozen=True)
class _Cell:
    """One row of one head of one row of the batch."""

    batch: int
    head: int
    query: int


def verify_edit(
    check: EditCheck, edit: Edit, heads: Sequence[int], call: Call, patch: AttentionPatch
) -> bool:
    """Compute some rows of an edit's heads again; raises where the output is another one.

    `call` and `patch` are as they would be without this edit. True where that would have been
    different enough in some row to tell.
    """
    differs = False
    for view in check.views:
        for head in heads:
            for query in _sampled_rows(view):
                cell = _Cell(view.row, head, query)
                differs |= _verify_row(check, edit, cell, call, patch)
    return differs


def verify_zero_value(check: EditCheck, part: Addition, columns: slice) -> None:
    """Refuse a value that is to be zero and is not; rows cannot tell, they weigh it."""
    if not part.has_zero_value:
        return
    value = check.plain.value[:, :, columns]
    if bool(value.any()):
        raise ModelError(
            f"the edit is not alive at layer {check.plain.layer}: the value of "
            f"{type(part).__name__} is to be zero and is up to {float(value.abs().max()):.2g}; "
            "aw.load the model afresh"
        )


def verify_registers(check: EditCheck, addition: ActiveAddition) -> bool:
    """Compute rows of the canvas and of a register again, as if all saw registers and canvas.

    Where a register is off nobody may see it. True where a register that is not seen, and one that
    sees no canvas, would both have been different enough to tell.
    """
    _check_key_count(check)
    plain, heads = check.plain, check.plain.query.shape[1]
    part, n = addition.fit.part, addition.fit.part.columns
    registers = slice(plain.num_extra_keys, plain.num_extra_keys + n)
    differs = {"seen": False, "sees": False}
    for view in check.views:
        # 1. Which keys a row sees [K]: as it should be, without the register, without the canvas.
        active = addition.rows is None or bool(addition.rows[view.row])
        sees = torch.zeros(plain.key.shape[2], dtype=torch.bool, device=plain.key.device)
        sees[: plain.num_extra_keys] = sees[view.key_slice] = True
        unseen, blind = sees.clone(), sees.clone()
        unseen[registers], blind[view.key_slice] = not active, False
        sees[registers], blind[registers] = active, True
        # 2. Rows of the canvas must see the register, and its last row the canvas.
        cases = [("seen", query, unseen) for query in _sampled_rows(view)]
        cases += [("sees", n - 1, blind)] if active else []
        whole = replace(check, plain=_with_visible_keys(plain, sees))
        for way, query, otherwise in cases:
            call = _with_visible_keys(plain, otherwise)
            for head in range(heads):
                cell = _Cell(view.row, head, query)
                differs[way] |= _verify_row(whole, part, cell, call, check.patch) and active
    return all(differs.values())


def _check_key_count(check: EditCheck) -> None:
    """Refuse a call whose keys are not the added ones, the registers, padding and the canvas."""
    view, keys = check.views[0], check.plain.key.shape[2]
    if keys != view.key_start + view.length:
        raise ModelError(
            f"the register is not alive at layer {check.plain.layer}: {keys} keys are looked at, "
            f"and with it there are {view.key_start + view.length}; aw.load the model afresh"
        )


def _with_visible_keys(plain: Call, sees: torch.Tensor) -> Call:
    """The call where every row may look at the same keys, [K] bool."""
    return replace(plain, attendable=sees.expand(1, 1, plain.query.shape[2], -1), causal=False)


def _sampled_rows(view: View) -> list[int]:
    """Queries that are computed again: the canvas's first, its last and some between."""
    # A few rows tell: a kernel that ignored the edit would ignore it in all of them.
    rows = torch.linspace(view.query_slice.start, view.query_slice.stop - 1, ROWS)
    return sorted({round(float(row)) for row in rows})


def verify_gates(
    additions: PassAdditions, layer: int, read: torch.Tensor, views: Sequence[View]
) -> None:
    """Refuse an output projection that reads [B, Q, H * D] other than gates leave it."""
    before, reads = additions.ungated, additions.reads
    assert before is not None and reads is not None
    for view in views:
        # 1. Attention's output [rows, H, D] before gates, in float64.
        rows = torch.tensor(_sampled_rows(view))
        exact = before[view.row, rows].double()
        # 2. Times sigmoid(x W), doubled where a gate begins as the identity.
        for addition in additions.gates:
            part, total = addition.fit.part, exact.shape[1]
            if addition.rows is not None and not bool(addition.rows[view.row]):
                continue
            heads = list(part.heads_at(layer, total))
            if not heads:
                continue
            assert addition.fit.weight is not None
            weight = addition.fit.weight[layer].double()
            by = 1 / (1 + torch.exp(-(reads[view.row, rows].double() @ weight.T)))
            by = by * (2 if part.init == "identity" else 1)  # type: ignore[attr-defined]
            exact[:, heads] = (exact * by.view(len(rows), total, -1))[:, heads]
        # 3. Against what the projection was given.
        ours = read[view.row, rows].double().view_as(exact)
        gap, scale = float((ours - exact).abs().max()), float(exact.abs().max())
        if gap > _TOLERANCES.get(read.dtype, 5e-2) * max(scale, 1e-6):
            raise ModelError(
                f"the gate is not alive at layer {layer}: {gate.observable} is another "
                f"(off by {gap:.2g}); aw.load the model afresh"
            )


def _verify_row(
    check: EditCheck, edit: Edit, cell: _Cell, call: Call, patch: AttentionPatch
) -> bool:
    """Refuse a row that is another than expected; True where it shows that the edit acted."""
    plain, b, h = check.plain, cell.batch, cell.head
    # A mean over rows cannot be written as one row of weights and values.
    if bool(check.patch.mean[b, h]):
        _verify_mean(check, edit, cell)
        return not bool(patch.mean[b, h])
    exact = _expected_output(plain, check.patch, check.patched, cell)
    scale = float(plain.value[b].abs().max())
    gap = float((check.patched.out[b, cell.query, h].double() - exact).abs().max())
    _refuse_gap(plain, gap, scale, cell, edit)
    # Twice the tolerance: a smaller difference would not have been noticed above.
    without = _expected_output(call, patch, check.patched, cell)
    return float((without - exact).abs().max()) > 2 * _tolerance(plain) * max(scale, 1e-6)


def _expected_output(
    plain: Call, patch: AttentionPatch, patched: PatchedCall, cell: _Cell
) -> torch.Tensor:
    """[D] one row's output in float64."""
    if bool(patch.zero[cell.batch, cell.head]):
        return plain.value.new_zeros(plain.value.shape[-1], dtype=torch.float64)
    shares, value = _expected_row(plain, patch, patched, cell)
    return shares @ value * _head_factor(patch, cell)


def _head_factor(patch: AttentionPatch, cell: _Cell) -> float:
    return 1 + float(patch.head_gain[cell.batch, cell.head])


def _tolerance(plain: Call) -> float:
    return _TOLERANCES.get(plain.query.dtype, 5e-2)


def _verify_mean(check: EditCheck, edit: Edit, cell: _Cell) -> None:
    """A row of a head whose output is its mean, from what that output would have been."""
    plain, patched, b = check.plain, check.patched, cell.batch
    rows = patched.before_heads[b, :, cell.head].double()
    seen = visible(plain)
    if seen is not None:
        row = seen[b if seen.shape[0] > 1 else 0, 0, cell.query]
        rows = rows[row[plain.num_extra_keys :]]
    exact = rows.mean(dim=0) * _head_factor(check.patch, cell)
    gap = float((patched.out[b, cell.query, cell.head].double() - exact).abs().max())
    _refuse_gap(plain, gap, float(rows.abs().max()), cell, edit)


def _refuse_gap(plain: Call, gap: float, scale: float, cell: _Cell, edit: Edit) -> None:
    if gap <= _tolerance(plain) * max(scale, 1e-6):
        return
    raise ModelError(
        f"the edit is not alive at layer {plain.layer}, head {cell.head}, row {cell.query}: "
        f"{edit.observable} is not what {type(edit).__name__} makes it (off by {gap:.2g}); "
        "this kernel ignores edits, load the model on a CPU in float32"
    )


def _expected_row(
    plain: Call, patch: AttentionPatch, patched: PatchedCall, cell: _Cell
) -> tuple[torch.Tensor, torch.Tensor]:
    """([K] weights, [K, D] values) of one row in float64, written down plainly."""
    b, h, query = cell.batch, cell.head, cell.query
    # 1. Logits; a uniform head gives every visible key the same.
    logits = logits_of(plain, b, h, torch.tensor([query], device=plain.query.device))[0].double()
    seen = logits > -torch.inf
    if bool(patch.uniform[b, h]):
        logits = torch.zeros_like(logits).masked_fill(~seen, -torch.inf)
    # 2. Hidden keys, but for the one that a rescued row keeps.
    rescued, kept = patched.rescued, None
    own = (rescued.row == b) & (rescued.head == h) & (rescued.query == query)
    if bool(own.any()):
        kept = int(rescued.key[own][0])
    is_last = torch.tensor([query == plain.query.shape[2] - 1], device=plain.query.device)
    gone, dropped = patch.hidden_before_softmax(b, h, is_last)[0], patch.weight[b, h].clone()
    if kept is not None:
        gone[kept] = dropped[kept] = False
    # 3. Softmax, then weights that are dropped without renormalising.
    logits = (logits - patch.penalty[b, h]).masked_fill(gone, -torch.inf)
    shares = logits.softmax(dim=-1).masked_fill(dropped, 0.0)
    # 4. Values: multiplied, replaced by the mean over the canvas that the row sees, or zeroed.
    group = h * plain.value.shape[1] // plain.query.shape[1]
    value = plain.value[b, group].double() * (1 + patch.value_gain[b, h, :, None].double())
    canvas = seen.clone()
    canvas[: plain.num_extra_keys] = False
    mean = value[canvas].mean(dim=0)
    changed = torch.where(patch.value_mean[b, h, :, None], mean, value)
    return shares, changed.masked_fill(patch.value[b, h, :, None], 0.0)
