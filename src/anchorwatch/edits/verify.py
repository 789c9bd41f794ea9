"""Proof that an edit is alive: a few rows of a call by the obvious formula, against its output.

A kernel that ignores what it is given (published copies of LLaDA do) gives other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from anchorwatch.edits import spec as kinds
from anchorwatch.edits.ablation import AttentionPatch, PatchedCall, logits_of
from anchorwatch.edits.spec import Edit, Part
from anchorwatch.errors import ModelError
from anchorwatch.models.additions import ActiveAddition, PassAdditions
from anchorwatch.models.attention import Call, visible
from anchorwatch.probes.accumulate import View

ROWS = 3
"""Rows of each edited head that are computed again."""

_OFF = {torch.float32: 1e-3, torch.float64: 1e-3}
"""How far a row may be off, relative to the largest value; other dtypes 5e-2."""


@dataclass(frozen=True)
class Proof:
    """A call as it would have been, what was changed in it, and what came of it."""

    plain: Call
    change: AttentionPatch
    made: PatchedCall
    views: Sequence[View]


def prove(
    proof: Proof, edit: Edit, heads: Sequence[int], call: Call, change: AttentionPatch
) -> bool:
    """Compute some rows of an edit's heads again; raises where the output is another one.

    `call` and `change` are as they would be without this edit. True where that would have been
    different enough in some row to tell.
    """
    told = False
    for view in proof.views:
        for head in heads:
            for query in _rows(view):
                told |= _prove_row(proof, edit, (view.row, head, query), call, change)
    return told


def prove_value(proof: Proof, part: Part, columns: slice) -> None:
    """Refuse a value that is to be nothing and is something; rows cannot tell, they weigh it."""
    nothing = isinstance(part, kinds.off_by_one | kinds.sink_logit)
    if not nothing and not (isinstance(part, kinds.sink_token) and part.value == "zero"):
        return
    held = proof.plain.value[:, :, columns]
    if bool(held.any()):
        raise ModelError(
            f"the edit is not alive at layer {proof.plain.layer}: the value of "
            f"{type(part).__name__} is to be zero and is up to {float(held.abs().max()):.2g}; "
            "aw.load the model afresh"
        )


def prove_registers(proof: Proof, on: ActiveAddition) -> bool:
    """Compute rows of the canvas and of a register again, as if all saw registers and canvas.

    Where a register is off nobody may see it. True where a register that is not seen, and one that
    sees no canvas, would both have been different enough to tell.
    """
    _prove_count(proof)
    plain, n, heads = proof.plain, on.fit.part.columns, proof.plain.query.shape[1]
    registers = slice(plain.num_added, plain.num_added + n)
    told = {"seen": False, "sees": False}
    for view in proof.views:
        here = on.rows is None or bool(on.rows[view.row])
        sees = torch.zeros(plain.key.shape[2], dtype=torch.bool, device=plain.key.device)
        sees[: plain.num_added] = sees[view.key_slice] = True
        unseen, blind = sees.clone(), sees.clone()
        unseen[registers], blind[view.key_slice] = not here, False
        sees[registers], blind[registers] = here, True
        due = [("seen", query, unseen) for query in _rows(view)]
        due += [("sees", n - 1, blind)] if here else []
        whole = replace(proof, plain=_with_visible_keys(plain, sees))
        for way, query, otherwise in due:
            for head in range(heads):
                place = (view.row, head, query)
                call = _with_visible_keys(plain, otherwise)
                told[way] |= _prove_row(whole, on.fit.part, place, call, proof.change) and here
    return all(told.values())


def _prove_count(proof: Proof) -> None:
    """Refuse a call whose keys are not the added ones, the registers, padding and the canvas."""
    view, keys = proof.views[0], proof.plain.key.shape[2]
    if keys != view.key_start + view.length:
        raise ModelError(
            f"the register is not alive at layer {proof.plain.layer}: {keys} keys are looked at, "
            f"and with it there are {view.key_start + view.length}; aw.load the model afresh"
        )


def _with_visible_keys(plain: Call, sees: torch.Tensor) -> Call:
    """The call where every row may look at the same keys, [K] bool."""
    return replace(plain, attendable=sees.expand(1, 1, plain.query.shape[2], -1), causal=False)


def _rows(view: View) -> list[int]:
    """Queries that are computed again: the canvas's first, its last and some between."""
    rows = torch.linspace(view.query_slice.start, view.query_slice.stop - 1, ROWS)
    return sorted({round(float(row)) for row in rows})


def prove_gates(
    dress: PassAdditions, layer: int, read: torch.Tensor, views: Sequence[View]
) -> None:
    """Refuse an output projection that reads [B, Q, H * D] other than gates leave it."""
    before, reads = dress.ungated, dress.reads
    assert before is not None and reads is not None
    for view in views:
        at = torch.tensor(_rows(view))
        exact = before[view.row, at].double()  # [rows, H, D]
        for one in dress.gates:
            part, total = one.fit.part, exact.shape[1]
            if one.rows is not None and not bool(one.rows[view.row]):
                continue
            heads = list(part.heads_at(layer, total))
            if not heads:
                continue
            assert one.fit.weight is not None
            weight = one.fit.weight[layer].double()
            by = 1 / (1 + torch.exp(-(reads[view.row, at].double() @ weight.T)))
            by = by * (2 if part.init == "identity" else 1)  # type: ignore[attr-defined]
            exact[:, heads] = (exact * by.view(len(at), total, -1))[:, heads]
        ours = read[view.row, at].double().view_as(exact)
        gap, scale = float((ours - exact).abs().max()), float(exact.abs().max())
        if gap > _OFF.get(read.dtype, 5e-2) * max(scale, 1e-6):
            raise ModelError(
                f"the gate is not alive at layer {layer}: {kinds.gate.observable} is another "
                f"(off by {gap:.2g}); aw.load the model afresh"
            )


def _prove_row(
    proof: Proof, edit: Edit, place: tuple[int, int, int], call: Call, change: AttentionPatch
) -> bool:
    plain, (b, h, query) = proof.plain, place
    if bool(proof.change.mean[b, h]):
        _prove_mean(proof, edit, place)
        return not bool(change.mean[b, h])
    exact = _output(plain, proof.change, proof.made, place)
    scale = float(plain.value[b].abs().max())
    gap = float((proof.made.out[b, query, h].double() - exact).abs().max())
    _small(plain, gap, scale, place, edit)
    without = _output(call, change, proof.made, place)
    return float((without - exact).abs().max()) > 2 * _off(plain) * max(scale, 1e-6)


def _output(
    plain: Call, change: AttentionPatch, made: PatchedCall, place: tuple[int, int, int]
) -> torch.Tensor:
    """[D] one row's output in float64."""
    if bool(change.zero[place[0], place[1]]):
        return plain.value.new_zeros(plain.value.shape[-1], dtype=torch.float64)
    shares, value = _expected_row(plain, change, made, place)
    return shares @ value


def _off(plain: Call) -> float:
    return _OFF.get(plain.query.dtype, 5e-2)


def _prove_mean(proof: Proof, edit: Edit, place: tuple[int, int, int]) -> None:
    """A row of a head whose output is its mean, from what that output would have been."""
    (b, h, query), plain, made = place, proof.plain, proof.made
    rows = made.before_heads[b, :, h].double()
    seen = visible(plain)
    if seen is not None:
        row = seen[b if seen.shape[0] > 1 else 0, 0, query]
        rows = rows[row[plain.num_added :]]
    gap = float((made.out[b, query, h].double() - rows.mean(dim=0)).abs().max())
    _small(plain, gap, float(rows.abs().max()), place, edit)


def _small(plain: Call, gap: float, scale: float, place: tuple[int, int, int], edit: Edit) -> None:
    if gap <= _off(plain) * max(scale, 1e-6):
        return
    raise ModelError(
        f"the edit is not alive at layer {plain.layer}, head {place[1]}, row {place[2]}: "
        f"{edit.observable} is not what {type(edit).__name__} makes it (off by {gap:.2g}); "
        "this kernel ignores edits, load the model on a CPU in float32"
    )


def _expected_row(
    plain: Call, change: AttentionPatch, made: PatchedCall, place: tuple[int, int, int]
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
    canvas = seen.clone()
    canvas[: plain.num_added] = False
    mean = value[canvas].mean(dim=0)
    changed = torch.where(change.value_mean[b, h, :, None], mean, value)
    return shares, changed.masked_fill(change.value[b, h, :, None], 0.0)
