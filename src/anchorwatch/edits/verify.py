"""Did an edit take effect? A few rows of a call by the obvious formula, against its output.

A kernel that ignores what it is given (published copies of LLaDA do) gives other rows. Whatever an
edit marks in the `AttentionPatch` is verified here, in float64.
Shapes: B rows of the batch, H heads, Q queries, K keys, D channels; of them h heads and n queries
are computed again.
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
class _Rows:
    """Some rows of some heads of one row of the batch: h heads, n queries."""

    batch: int
    heads: torch.Tensor
    """[h] numbers."""
    queries: torch.Tensor
    """[n] numbers."""

    def choose_heads(self, chosen: torch.Tensor) -> _Rows:
        """The same rows of the heads that are chosen, [h] bool."""
        return replace(self, heads=self.heads[chosen])


def verify_edit(
    check: EditCheck, edit: Edit, heads: Sequence[int], call: Call, patch: AttentionPatch
) -> bool:
    """Compute some rows of an edit's heads again; raises where the output is another one.

    `call` and `patch` are as they would be without this edit. True where that would have been
    different enough in some row to tell.
    """
    differs = False
    for view in check.views:
        rows = _rows_of(check.plain, view.row, heads, _sampled_rows(view))
        differs |= _verify_rows(check, edit, rows, call, patch)
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
            rows = _rows_of(plain, view.row, range(heads), [query])
            differs[way] |= _verify_rows(whole, part, rows, call, check.patch) and active
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


def _rows_of(plain: Call, batch: int, heads: Sequence[int], queries: Sequence[int]) -> _Rows:
    device = plain.query.device
    return _Rows(
        batch, torch.tensor(list(heads), device=device), torch.tensor(queries, device=device)
    )


def _verify_rows(
    check: EditCheck, edit: Edit, rows: _Rows, call: Call, patch: AttentionPatch
) -> bool:
    """Refuse rows that are others than expected; True where one shows that the edit acted."""
    plain, b = check.plain, rows.batch
    # 1. A mean over rows cannot be written as one row of weights and values.
    averaged = check.patch.mean[b, rows.heads]
    differs = False
    if bool(averaged.any()):
        mean_rows, rows = rows.choose_heads(averaged), rows.choose_heads(~averaged)
        _verify_means(check, edit, mean_rows)
        differs = not bool(patch.mean[b, mean_rows.heads].all())
    # 2. The output of the others against float64.
    exact = _expected_outputs(plain, check.patch, check.patched, rows)
    _refuse_nan(plain, exact, rows)
    largest = plain.value[b].abs()
    scale = largest.masked_fill(largest.isnan(), 0.0).max().double()
    _refuse_gap(plain, exact, check.patched.out, scale, rows, edit)
    # 3. Twice the tolerance: a smaller difference would not have been noticed above.
    without = _expected_outputs(call, patch, check.patched, rows)
    _refuse_nan(call, without, rows)
    # What is NaN now would see nothing at all: such a row gives zero.
    without = without.masked_fill(without.isnan(), 0.0)
    noticed = (without - exact).abs() > 2 * _tolerance(plain) * scale.clamp(min=1e-6)
    return differs or bool(noticed.any())


def _refuse_nan(call: Call, expected: torch.Tensor, rows: _Rows) -> None:
    """Refuse rows, [h, n, D], that are NaN because of what they are made of: nothing can be told.

    A row that sees nothing is NaN too, and is not meant.
    """
    nan = expected.isnan().any(dim=-1)  # [h, n]
    if not bool(nan.any()):
        return
    b, heads = rows.batch, rows.heads
    group = heads * call.value.shape[1] // call.query.shape[1]
    made_of = logits_of(call, b, heads, rows.queries).isnan().any(dim=-1)
    made_of |= call.value[b, group].isnan().flatten(1).any(dim=-1)[:, None]
    faults = (nan & made_of).nonzero()
    if len(faults):
        head, query = faults[0].tolist()
        raise ModelError(
            f"the edit cannot be verified at layer {call.layer}, head {int(heads[head])}, row "
            f"{int(rows.queries[query])}: its queries, keys or values are NaN; load the model in "
            "float32, or from a checkpoint without NaN"
        )


def _tolerance(plain: Call) -> float:
    return _TOLERANCES.get(plain.query.dtype, 5e-2)


def _verify_means(check: EditCheck, edit: Edit, rows: _Rows) -> None:
    """Rows of heads whose output is its mean, from what that output would have been."""
    plain, b = check.plain, rows.batch
    # 1. [h, k, D] output of every row, and which of them each query sees [n, k].
    before = check.patched.before_heads[b, :, rows.heads].double().transpose(0, 1)
    seen = visible(plain)
    sees = torch.ones(len(rows.queries), before.shape[1], dtype=torch.bool, device=before.device)
    if seen is not None:
        row = b if seen.shape[0] > 1 else 0
        sees = seen[row, 0, rows.queries, plain.num_extra_keys :]
    # 2. [h, n, D] their means.
    weights = sees.double() / sees.sum(dim=-1, keepdim=True)
    gain = 1 + check.patch.head_gain[b, rows.heads].double()
    exact = weights @ before * gain[:, None, None]
    # 3. [h, n] each by the largest output that it averages: a quiet head beside a loud one too.
    largest = before.abs().amax(dim=-1)[:, None]
    scale = largest.masked_fill(~sees, 0.0).amax(dim=-1)
    _refuse_gap(plain, exact, check.patched.out, scale, rows, edit)


def _refuse_gap(
    plain: Call,
    exact: torch.Tensor,
    out: torch.Tensor,
    scale: torch.Tensor,
    rows: _Rows,
    edit: Edit,
) -> None:
    """Refuse output [B, Q, H, D] whose rows are not the exact ones, [h, n, D].

    `scale` is one number, or one a row [h, n].
    """
    ours = out[rows.batch][rows.queries][:, rows.heads].double().transpose(0, 1)
    gaps = (ours - exact).abs().amax(dim=-1)  # [h, n]
    wrong = (~(gaps <= _tolerance(plain) * scale.clamp(min=1e-6))).nonzero()
    if not len(wrong):
        return
    head, query = wrong[0].tolist()
    raise ModelError(
        f"the edit is not alive at layer {plain.layer}, head {int(rows.heads[head])}, row "
        f"{int(rows.queries[query])}: {edit.observable} is not what {type(edit).__name__} makes it "
        f"(off by {float(gaps[head, query]):.2g}); "
        "this kernel ignores edits, load the model on a CPU in float32"
    )


def _expected_outputs(
    plain: Call, patch: AttentionPatch, patched: PatchedCall, rows: _Rows
) -> torch.Tensor:
    """[h, n, D] output of rows in float64, written down plainly."""
    b, heads, queries = rows.batch, rows.heads, rows.queries
    # 1. Logits [h, n, K]; a uniform head gives every visible key the same.
    logits = logits_of(plain, b, heads, queries).double()
    seen = logits > -torch.inf
    even = patch.uniform[b, heads][:, None, None] & seen
    logits = logits.masked_fill(even, 0.0)
    # 2. Hidden keys and dropped weights, but for the one that a rescued row keeps.
    is_last = queries == plain.query.shape[2] - 1
    gone = patch.logit[b, heads][:, None] | (is_last[:, None] & patch.last_logit[b, heads][:, None])
    dropped = patch.weight[b, heads][:, None].expand_as(gone).clone()
    rescued = patched.rescued
    kept = (rescued.row == b)[:, None, None] & (
        (rescued.head[:, None, None] == heads[:, None]) & (rescued.query[:, None, None] == queries)
    )
    number, head, query = kept.nonzero(as_tuple=True)
    gone[head, query, rescued.key[number]] = dropped[head, query, rescued.key[number]] = False
    # 3. Softmax, then weights that are dropped without renormalising.
    penalty = patch.penalty[b, heads][:, None]
    shares = (logits - penalty).masked_fill(gone, -torch.inf).softmax(dim=-1)
    shares = shares.masked_fill(dropped, 0.0)
    # 4. Values [h, K, D]: multiplied, replaced by the mean over the canvas that a row sees, zeroed.
    group = heads * plain.value.shape[1] // plain.query.shape[1]
    value = plain.value[b, group].double() * (1 + patch.value_gain[b, heads, :, None].double())
    canvas = seen.double()
    canvas[..., : plain.num_extra_keys] = 0.0
    mean = canvas @ value / canvas.sum(dim=-1, keepdim=True).clamp(min=1)
    left = shares.masked_fill(patch.value[b, heads][:, None], 0.0)
    is_mean = patch.value_mean[b, heads][:, None]
    out = left.masked_fill(is_mean, 0.0) @ value
    out = out + left.masked_fill(~is_mean, 0.0).sum(dim=-1, keepdim=True) * mean
    # 5. Heads: multiplied, or without output.
    out = out * (1 + patch.head_gain[b, heads].double())[:, None, None]
    return out.masked_fill(patch.zero[b, heads][:, None, None], 0.0)
