"""The claims of "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731)."""

from anchorwatch.studies.papers.sinks import causes as sinks_causes
from anchorwatch.studies.papers.sinks import hidden as sinks_hidden
from anchorwatch.studies.papers.sinks import kinds as sinks_kinds
from anchorwatch.studies.papers.sinks import layers as sinks_layers
from anchorwatch.studies.papers.sinks import moving as sinks_moving
from anchorwatch.studies.papers.sinks import seen as sinks_seen

_PARTS = (sinks_seen, sinks_moving, sinks_layers, sinks_kinds, sinks_hidden, sinks_causes)
CLAIMS = tuple(sorted((one for part in _PARTS for one in part.CLAIMS), key=lambda one: one.number))
