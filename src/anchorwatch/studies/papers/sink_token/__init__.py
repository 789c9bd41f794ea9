"""The claims of "One Token Is Enough" (arXiv 2601.19657)."""

from anchorwatch.studies.papers.sink_token import changed as sink_token_changed
from anchorwatch.studies.papers.sink_token import inside as sink_token_inside
from anchorwatch.studies.papers.sink_token import trained as sink_token_trained

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
