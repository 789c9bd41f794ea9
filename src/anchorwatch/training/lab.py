"""The lab: small trained models inside the package, their cards, and the comparison of variants.

`aw.load("lab/toy-mdm")` opens one (`anchorwatch models` lists all); `card("lab/toy-mdm")` is what
was measured of it. `variants()` is the table of training runs with
every part, one row for each arm and seed, and `differences(table)` what they differ in from
vanilla. `measure_model(model, corpus)` is the one function behind both.
"""

from typing import TYPE_CHECKING, Any

from anchorwatch import lazy_attributes

if TYPE_CHECKING:
    from anchorwatch.training.card_measures import Effort, measure_model
    from anchorwatch.training.plots import variant_differences
    from anchorwatch.training.variants import differences, variants

_LAZY = {
    "Effort": "card_measures",
    "differences": "variants",
    "measure_model": "card_measures",
    "variant_differences": "plots",
    "variants": "variants",
}

__all__ = ["Effort", "card", "differences", "measure_model", "variant_differences", "variants"]

__getattr__ = lazy_attributes("anchorwatch.training", _LAZY, renamed={"measured": "measure_model"})


def card(name: str) -> dict[str, Any]:
    """What card.json says of a lab model, such as "lab/toy-mdm"; deltas have none."""
    from anchorwatch.errors import ModelError
    from anchorwatch.models.zoo import NAMES, TALES, current_name, folder_in_package
    from anchorwatch.models.zoo.cards import read

    name = current_name(name)
    if name not in NAMES + TALES:
        what = "was trained by others" if name == "lab/smol-base" else "is a delta"
        raise ModelError(
            f"{name} {what} and has no card: docs/specimens.md says what was measured of it; "
            f"there are cards of {', '.join(NAMES + TALES)}"
        )
    return read(folder_in_package(name))


def __dir__() -> list[str]:
    return sorted(__all__)
