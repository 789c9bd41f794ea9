"""Who may look at whom, as a network takes it: hidden keys, padding, causal order and blocks.

Shapes: B rows, T positions.
"""

from __future__ import annotations

import numpy as np
import torch

from anchorwatch.errors import SpecError


def starts_of(rows: torch.Tensor, padding: torch.Tensor | int | None) -> torch.Tensor | None:
    """[B, 1] where each row's real tokens begin; None where nothing is padded."""
    if padding is None:
        return None
    starts = torch.as_tensor(padding, device=rows.device).reshape(-1, 1).expand(len(rows), 1)
    if bool((starts < 0).any()) or bool((starts >= rows.shape[1]).any()):
        raise SpecError(
            f"padding={padding} leaves a row without a token: expected 0 to {rows.shape[1] - 1}"
        )
    return starts if bool(starts.any()) else None


def keys_and_pairs(
    rows: torch.Tensor, dims: int, attendable: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What was asked as keys [B, T] and pairs [B, T, T], either None where nothing is hidden."""
    if attendable is None:
        return None, None
    held = attendable.copy() if isinstance(attendable, np.ndarray) else attendable
    given = torch.as_tensor(held, device=rows.device)
    if given.is_floating_point():
        raise SpecError("attendable is true or false, not numbers to add: say attendable > 0.5")
    given = given.bool() if dims == 2 else given.bool()[None]
    batch, length = rows.shape
    if given.shape == (batch, length):
        return (None, None) if bool(given.all()) else (given, None)
    if given.shape == (batch, length, length):
        return None, given
    raise SpecError(
        f"attendable has shape {list(torch.as_tensor(attendable).shape)}: expected "
        f"[..., {length}] (keys) or [..., {length}, {length}] (queries by keys)"
    )


def visible_pairs(
    keys: torch.Tensor | None,
    pairs: torch.Tensor,
    places: torch.Tensor,
    *,
    causal: bool,
    block: int | None,
) -> torch.Tensor:
    """Pairs [B, T, T] that neither order nor blocks nor hidden keys forbid.

    `places` [B, T] are positions as blocks count them.
    """
    length = pairs.shape[-1]
    if causal:
        pairs = pairs & pairs.new_ones(length, length).tril()
    if block is not None:
        of = places // block
        pairs = pairs & (of[:, :, None] >= of[:, None, :])
    if keys is not None:
        # A padded query keeps itself: a row with no key at all has no softmax.
        own = torch.eye(length, dtype=torch.bool, device=pairs.device)
        pairs = (pairs & keys[:, None, :]) | own
    return pairs
