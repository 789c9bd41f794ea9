"""The claims of "Revealing the Attention Floating Mechanism in MDMs" (arXiv 2601.07894)."""

from anchorwatch.studies.papers.floating import anchors as floating_anchors
from anchorwatch.studies.papers.floating import answers as floating_answers
from anchorwatch.studies.papers.floating import depth as floating_depth
from anchorwatch.studies.papers.floating import flow as floating_flow
from anchorwatch.studies.papers.floating import heads as floating_heads
from anchorwatch.studies.papers.floating import layers as floating_layers
from anchorwatch.studies.papers.floating import origin as floating_origin
from anchorwatch.studies.papers.floating import tasks as floating_tasks

_MODULES = (
    floating_anchors,
    floating_layers,
    floating_origin,
    floating_depth,
    floating_heads,
    floating_flow,
    floating_answers,
    floating_tasks,
)
CLAIMS = tuple(
    sorted((one for module in _MODULES for one in module.CLAIMS), key=lambda one: one.number)
)
