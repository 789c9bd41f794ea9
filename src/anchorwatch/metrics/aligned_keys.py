"""Does a head look where it should? Attention of committed rows to keys that you name for each.

For tasks whose answer is known to come from certain tokens of the prompt: word alignment in
translation, atom mapping in chemistry, copying.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError
from anchorwatch.metrics.committed_rows import AlignedRows, read_aligned_rows
from anchorwatch.metrics.layer_slices import Traces, check_traces
from anchorwatch.metrics.registry import custom_metric
from anchorwatch.metrics.table import Quantity, mean, tabulate
from anchorwatch.trace.trace import Trace

Pairs = Mapping[int, int | Sequence[int]]
"""Keys by the position whose token they should bring."""
DIMS = ("layer", "head", "step")


@custom_metric()
def alignment(
    traces: Traces,
    pairs: Pairs | Sequence[Pairs] | str,
    *,
    by: Sequence[str] = ("layer", "head"),
) -> pd.DataFrame:
    """How heads look at the keys that `pairs` names, while the answer is committed.

    `pairs` maps a position of the canvas to the key, or the keys, that its token should come from:
    `{12: 3, 13: [4, 5]}`, or spelled `"12=3,13=4+5"`; a list has one such mapping for each trace.
    What counts is the row that predicted the token, at the step that committed it.

    - `hit`: rows whose top key is a named one.
    - `mass_in_top`: attention to named keys among the row's kept keys, so that the truth is at
      least this; its null is what the kept keys hold, shared out evenly.
    - `mass`: attention to named keys; absent unless `pattern` was captured.

    The null is a row that looks at all its visible keys alike.
    """
    checked = check_traces(traces)
    parts = []
    for trace, named in zip(checked, _pairs_of_each(pairs, len(checked)), strict=True):
        rows = read_aligned_rows(trace, _as_matrix(named, trace))
        parts.append((trace, _quantities(rows)))
    return tabulate(parts, by, about={"metric": "alignment", "pairs": str(pairs)})


def _quantities(rows: AlignedRows) -> list[Quantity]:
    """Values of commits [layer, head, C] as quantities over steps, a mean over each step's own."""
    expected = np.broadcast_to(rows.expected[:, None], rows.hit.shape)
    values = {
        "hit": (rows.hit, expected),
        "mass_in_top": (rows.in_top, expected * rows.kept),
        "mass": (rows.mass, expected),
    }
    return [_by_step(name, rows, *both) for name, both in values.items()]


def _by_step(name: str, rows: AlignedRows, value: np.ndarray, null: np.ndarray) -> Quantity:
    """[layer, head, C] added up by the step of the commit, so that tables may be split by step."""
    # 1. One cell for each commit: NaN where it was not measured.
    cells = mean(name, ("layer", "head", "commit"), value, null)
    # 2. Commits of a step fall into one cell.
    falls = (rows.steps[:, None] == np.arange(rows.num_steps)).astype(float)  # [C, step]
    return replace(
        cells,
        dims=DIMS,
        top=cells.top @ falls,
        bottom=cells.bottom @ falls,
        null_top=_add_up(cells.null_top, falls),
        null_bottom=_add_up(cells.null_bottom, falls),
        missing=_add_up(cells.missing, falls),
    )


def _add_up(array: np.ndarray | None, falls: np.ndarray) -> np.ndarray | None:
    return None if array is None else array @ falls


def _pairs_of_each(pairs: Pairs | Sequence[Pairs] | str, count: int) -> list[Pairs]:
    """One mapping for each trace."""
    if isinstance(pairs, str):
        pairs = _parse(pairs)
    if isinstance(pairs, Mapping):
        return [pairs] * count
    given = list(pairs) if isinstance(pairs, Iterable) else []
    if len(given) != count or not all(isinstance(each, Mapping) for each in given):
        raise SpecError(
            f"pairs is one mapping for all {count} traces, such as {{12: 3, 13: [4, 5]}}, "
            f"or a list of {count} of them"
        )
    return given


def _parse(text: str) -> Pairs:
    """
    >>> _parse("12=3,13=4+5")
    {12: [3], 13: [4, 5]}
    """
    pairs = {}
    for item in text.split(","):
        position, _, keys = item.partition("=")
        words = keys.split("+")
        if not all(word.strip().isdecimal() for word in (position, *words)):
            raise SpecError(f"pairs={text!r}: {item!r} is not spelled as 12=3 or 12=3+4")
        pairs[int(position)] = [int(word) for word in words]
    return pairs


def _as_matrix(pairs: Pairs, trace: Trace) -> np.ndarray:
    """[position, key] bool."""
    length = trace.canvas.shape[1]
    aligned = np.zeros((length, length), dtype=bool)
    for position, keys in pairs.items():
        for key in [keys] if isinstance(keys, int | np.integer) else keys:
            if not (0 <= position < length and 0 <= key < length):
                raise SpecError(
                    f"pairs has {position}={key}: positions and keys are 0 to {length - 1} here"
                )
            aligned[position, key] = True
    if not (aligned.any(axis=1) & (trace.committed_at >= 0)).any():
        first, last = trace.answer[0], trace.answer[-1]
        raise SpecError(
            f"pairs names no position that the run committed: the answer is {first} to {last}"
        )
    return aligned
