"""A study as one page: report.html, which opens anywhere and asks nobody; and its figures.

What is written is a function of the study alone: the same study gives the same bytes.
"""

from typing import TYPE_CHECKING

from anchorwatch import lazy_attributes

if TYPE_CHECKING:
    from anchorwatch.studies.report.comparison import sections
    from anchorwatch.studies.report.page import write
    from anchorwatch.studies.report.picture import claim_figure

_LAZY = {"claim_figure": "picture", "sections": "comparison", "write": "page"}

__all__ = ["claim_figure", "sections", "write"]

__getattr__ = lazy_attributes("anchorwatch.studies.report", _LAZY)


def __dir__() -> list[str]:
    return sorted(__all__)
