"""How a model is loaded, as one value that commands and grids hand on. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorwatch.errors import SpecError

if TYPE_CHECKING:
    from anchorwatch.models.model import Model


@dataclass(frozen=True)
class LoadOptions:
    """The keywords of `aw.load`, each None where nothing was said."""

    revision: str | None = None
    dtype: str | None = None
    device: str | None = None
    device_map: str | None = None
    mask_id: int | None = None
    family: str | None = None

    def as_keywords(self) -> dict[str, Any]:
        """What was said, by keyword of `aw.load`."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in given.items() if value is not None}

    def for_other_models(self) -> LoadOptions:
        """For models beside the one that was meant: what is said of the machine, and dtype."""
        return replace(self, revision=None, mask_id=None, family=None)

    def refuse_several(self, models: int) -> None:
        """Refuse what is said of one checkpoint where several are loaded."""
        named = [name for name in ("revision", "mask_id", "family") if getattr(self, name)]
        if models > 1 and named:
            raise SpecError(
                f"{' and '.join(named)} is said of one checkpoint and {models} models are named: "
                "name one, or load them in Python and give evaluate(models)"
            )

    def load(self, source: str | Path) -> Model:
        """`aw.load(source)` with these options."""
        from anchorwatch.models.load import load

        return load(source, **self.as_keywords())


DEFAULT_LOADING = LoadOptions()
"""As the checkpoint says, on the first accelerator that there is."""
