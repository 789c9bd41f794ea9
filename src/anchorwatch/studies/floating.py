"""The claims of "Revealing the Attention Floating Mechanism in MDMs" (arXiv 2601.07894)."""

from anchorwatch.studies import (
    floating_anchors,
    floating_answers,
    floating_depth,
    floating_flow,
    floating_heads,
    floating_layers,
    floating_origin,
    floating_tasks,
)

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
