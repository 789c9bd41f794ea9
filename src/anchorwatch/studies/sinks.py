"""The claims of "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731)."""

from anchorwatch.studies import (
    sinks_causes,
    sinks_hidden,
    sinks_kinds,
    sinks_layers,
    sinks_moving,
    sinks_seen,
)

_PARTS = (sinks_seen, sinks_moving, sinks_layers, sinks_kinds, sinks_hidden, sinks_causes)
CLAIMS = tuple(sorted((one for part in _PARTS for one in part.CLAIMS), key=lambda one: one.number))
