"""Tables that a function makes of a model, unit by unit, for needs of the kind `Rows`.

A function takes a model, the number of a unit and the need's options, and gives rows of plain
values. It is called once for each unit; what it gives is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from anchorwatch.models.model import Model
from anchorwatch.studies import sets
from anchorwatch.studies.experiments import floating as rows_floating
from anchorwatch.studies.experiments import sink_token as rows_sink_token
from anchorwatch.studies.experiments import sinks as rows_sinks

Make = Callable[[Model, int, Mapping[str, Any]], Iterable[Mapping[str, Any]]]


def confidence(model: Model, unit: int, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Mean log-probability of a prompt's own tokens, all of them visible: one row."""
    shown = sets.prompt_of(str(options.get("prompts", "asked")), unit)
    ids = model.encode(shown.text)
    each = model.logprobs(ids)
    own = [float(each[at, token]) for at, token in enumerate(ids) if at]
    return [{"tokens": len(own), "logprob": sum(own) / max(len(own), 1)}]


ROWS: Mapping[str, Make] = {
    "confidence": confidence,
    **rows_floating.ROWS,
    **rows_sink_token.ROWS,
    **rows_sinks.ROWS,
}
