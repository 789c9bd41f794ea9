"""The claims of "One Token Is Enough" (arXiv 2601.19657)."""

from anchorwatch.studies import sink_token_changed, sink_token_inside, sink_token_trained

CLAIMS = tuple(
    sorted(
        (
            *sink_token_changed.CLAIMS,
            *sink_token_inside.CLAIMS,
            *sink_token_trained.CLAIMS,
        ),
        key=lambda one: one.number,
    )
)
