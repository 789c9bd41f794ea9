"""What to change (`spec`, re-exported here), and how it is applied and verified.

`aw.edits` has every registered edit under its name. How to write one: see `edits/spec/edit.py`.
`runtime.py` asks edits what they do to each attention call, `ablation.py` computes the call with
that, `verify.py` checks it on the tensors, `controls.py` draws edits of equal budget by chance.
"""

from typing import Any

from anchorwatch.edits.spec import *  # noqa: F403
from anchorwatch.edits.spec import EDITS
from anchorwatch.edits.spec import __all__ as __all__


def __getattr__(name: str) -> Any:
    """Edits that were registered outside of this package."""
    if name in EDITS:
        return EDITS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
