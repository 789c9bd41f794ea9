"""What to measure (`spec`), and how it is measured during a forward pass.

`aw.probes` has every registered probe under its name. How to write one: see `probes/spec.py`.
`reduce.py` goes over an attention map tile by tile without holding it, `accumulate.py` adds up rows
and keeps the arrays of a trace, `recorder.py` calls the probes during a forward pass.
"""

from typing import TYPE_CHECKING, Any

from anchorwatch.probes.spec import (
    DEFAULT,
    GROUPS,
    PROBES,
    Probe,
    from_dict,
    measure_every,
    register_probe,
)

if TYPE_CHECKING:
    from anchorwatch.probes.spec import *  # noqa: F403

__all__ = ["DEFAULT", "GROUPS", "PROBES", "Probe", "from_dict", "measure_every", "register_probe"]
__all__ += [*PROBES]


def __getattr__(name: str) -> Any:
    if name in PROBES:
        return PROBES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *PROBES})
