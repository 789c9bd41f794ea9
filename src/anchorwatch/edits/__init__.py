"""What to change (`spec`, re-exported here), and how it is applied and verified.

`aw.edits` has every registered edit under its name. How to write one: see `edits/spec/edit.py`.
`runtime.py` asks edits what they do to each attention call, `ablation.py` computes the call with
that, `verify.py` checks it on the tensors, `controls.py` draws edits of equal budget by chance.
"""

import warnings
from typing import Any

from anchorwatch.edits.spec import *  # noqa: F403
from anchorwatch.edits.spec import EDITS, Addition, Edit, restore_numbers
from anchorwatch.edits.spec import __all__ as __all__


def _limit_to_steps(edit: Edit, steps: range) -> Edit | None:
    return edit.limit_to_steps(steps)


_RENAMED: dict[str, tuple[str, Any]] = {
    "Part": ("Addition", Addition),
    "given_again": ("restore_numbers", restore_numbers),
    "limit_to_steps": ("edit.limit_to_steps", _limit_to_steps),
}
"""Older names, what they are called now, and what does their work."""


def __getattr__(name: str) -> Any:
    """Edits that were registered outside of this package, and older names."""
    if name in EDITS:
        return EDITS[name]
    if name in _RENAMED:
        now, function = _RENAMED[name]
        warnings.warn(f"{name} is now {now}", DeprecationWarning, stacklevel=2)
        return function
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
