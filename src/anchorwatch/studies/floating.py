"""The claims of "Revealing the Attention Floating Mechanism in MDMs" (arXiv 2601.07894)."""

from anchorwatch.studies import floating_anchors, floating_answers, floating_depth

CLAIMS = tuple(
    sorted(
        (*floating_anchors.CLAIMS, *floating_depth.CLAIMS, *floating_answers.CLAIMS),
        key=lambda one: one.number,
    )
)
