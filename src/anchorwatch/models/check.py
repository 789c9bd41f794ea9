"""A model that tells the truth: laws that every loaded checkpoint must obey, measured on itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from anchorwatch.errors import ModelError, SpecError

if TYPE_CHECKING:
    from anchorwatch.models.model import Model

ROUNDING = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.25}
"""How far logits may differ between two ways of one computation, as a share of the largest.

Half precision rounds the cosines of rotary positions too: tiny/llada, moved by three positions,
differs by 0.008 in float16 and 0.08 in bfloat16. Wrong positions or visibility measure about one.
"""


@dataclass(frozen=True)
class Check:
    """One law, what was measured, and whether it holds."""

    law: str
    measured: float
    holds: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check(model: Model, length: int = 24) -> list[Check]:
    """Measure the laws; raises ModelError, naming the first that fails."""
    ids = _some_ids(model, length)
    laws = (_check_normalised, _visibility, _hidden_key, _two_ways_to_hide, _check_padding)
    checks = [measured for law in laws if (measured := law(model, ids)) is not None]
    for one in checks:
        if not one.holds:
            raise ModelError(
                f"{model.source} breaks a law: {one.law} (measured {one.measured:.3g})"
            )
    return checks


def _some_ids(model: Model, length: int) -> torch.Tensor:
    """A canvas of ordinary tokens with some masks, the same every time."""
    generator = torch.Generator().manual_seed(0)
    length = min(length, model.num_positions - 4)
    ids = torch.randint(0, model.vocab_size, (length,), generator=generator)
    special = torch.tensor(sorted(model.specials.special_ids), dtype=torch.long)
    ids[torch.isin(ids, special)] = int(ids[~torch.isin(ids, special)][0])
    if model.family.kind == "mdm":
        ids[::3] = model.mask_id
    return ids.to(model.device)


def _check_normalised(model: Model, ids: torch.Tensor) -> Check:
    total = model.logprobs(ids)[1:].exp().sum(dim=-1)
    gap = float((total - 1).abs().max())
    return Check("probabilities at each position sum to one", gap, gap < 1e-3)


def _visibility(model: Model, ids: torch.Tensor) -> Check:
    """Change the last token: earlier rows move exactly where they may look at it."""
    other = ids.clone()
    other[-1] = ids[1] if ids[-1] != ids[1] else ids[2]
    moved = _row_changes(model, model.logits(ids), model.logits(other))
    last = len(ids) - 1
    first = 0
    if model.block is not None:
        first = last // model.block * model.block
    if model.family.shift and model.block is not None:
        first += 1  # row p is computed at p-1, which must lie in the last block
    if model.family.visibility == "causal":
        gap = float(moved.max())
        return Check("a later token changes nothing before it", gap, gap == 0)
    seen, unseen = float(moved[first:].min()), float(moved[:first].max()) if first else 0.0
    law = "a token changes every row that may look at it and no other"
    return Check(law, seen, seen > 0 and unseen == 0)


def _hidden_key(model: Model, ids: torch.Tensor) -> Check:
    """Hide key k: what stands there no longer matters to anyone else."""
    k = len(ids) // 2
    attendable = torch.ones_like(ids, dtype=torch.bool)
    attendable[k] = False
    other = ids.clone()
    other[k] = ids[1] if ids[k] != ids[1] else ids[2]
    moved = _row_changes(model, model.logits(ids, attendable), model.logits(other, attendable))
    moved[k + model.family.shift] = 0  # the row computed at k still reads its own token
    gap = float(moved.max())
    return Check("a hidden key changes nothing", gap, gap == 0)


def _two_ways_to_hide(model: Model, ids: torch.Tensor) -> Check | None:
    """Hide the first key by key and by pairs; None where a network takes no pairs."""
    keys = torch.ones_like(ids, dtype=torch.bool)
    keys[0] = False
    pairs = keys[None, :] | torch.eye(len(ids), dtype=torch.bool, device=ids.device)
    try:
        by_pairs = model.logits(ids, pairs)
    except SpecError:  # sliding windows
        return None
    by_key = model.logits(ids, keys)
    seen = torch.arange(len(ids), device=ids.device) != int(model.family.shift)
    seen[0] = False  # rows 0 and `shift` speak of the hidden token or are computed at it
    gap = _share(by_key[seen], by_pairs[seen])
    law = "a key hidden by itself is a key hidden from everyone"
    return Check(law, gap, gap < ROUNDING[model.network.dtype])


def _check_padding(model: Model, ids: torch.Tensor) -> Check:
    pad = torch.full((3,), model.specials.pad_id, device=ids.device)
    padded = model.logits(torch.cat([pad, ids]), padding=3)[3:]
    first = int(model.family.kind == "arm")  # an ARM does not predict its first token
    gap = _share(padded[first:], model.logits(ids)[first:])
    law = "padding on the left changes nothing but rounding"
    return Check(law, gap, gap < ROUNDING[model.network.dtype])


def _row_changes(model: Model, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """[T] how far each row moved; a NaN has moved without end, but an ARM's first row has none."""
    moved = (one - other).abs().amax(dim=-1).nan_to_num(nan=torch.inf)
    moved[: int(model.family.kind == "arm")] = 0
    return moved


def _share(one: torch.Tensor, other: torch.Tensor) -> float:
    """Greatest difference as a share of the largest logit; NaN where either has one."""
    return float((one - other).abs().max() / other.abs().max())
