"""The lab: small trained models inside the package, their cards, and the comparison of variants.

`aw.load("lab/mdm")` opens one (also lab/mdm-sink, lab/mdm-gate, lab/arm); `card("lab/mdm")` is what
was measured of it. `variants()` is the table of training runs with every part, one row for each arm
and seed, and `differences(table)` what they differ in from vanilla. `measured(model, corpus)` is
the one function behind both.
"""

from typing import TYPE_CHECKING, Any

from anchorwatch.lazy import attributes

if TYPE_CHECKING:
    from anchorwatch.lab.measure import Effort, measured
    from anchorwatch.lab.pictures import variant_differences
    from anchorwatch.lab.tables import differences, variants

_LAZY = {
    "Effort": "measure",
    "differences": "tables",
    "measured": "measure",
    "variant_differences": "pictures",
    "variants": "tables",
}

__all__ = ["Effort", "card", "differences", "measured", "variant_differences", "variants"]

__getattr__ = attributes("anchorwatch.lab", _LAZY)


def card(name: str) -> dict[str, Any]:
    """What card.json says of a lab model, such as "lab/mdm"."""
    from anchorwatch.lab.cards import read
    from anchorwatch.models.lab import folder_of

    return read(folder_of(name))


def __dir__() -> list[str]:
    return sorted(__all__)
