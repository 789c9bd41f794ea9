"""A study as one page: report.html, which opens anywhere and asks nobody; and its figures.

What is written is a function of the study alone: the same study gives the same bytes. No torch.
"""

from typing import TYPE_CHECKING

from anchorwatch import lazy_attributes

if TYPE_CHECKING:
    from anchorwatch.studies.report.comparison import sections
    from anchorwatch.studies.report.figures import claim_figure
    from anchorwatch.studies.report.page import page
    from anchorwatch.studies.report.writing import write

_LAZY = {
    "claim_figure": "figures",
    "page": "page",
    "sections": "comparison",
    "write": "writing",
}

__all__ = ["claim_figure", "page", "sections", "write"]

__getattr__ = lazy_attributes("anchorwatch.studies.report", _LAZY)


def __dir__() -> list[str]:
    return sorted(__all__)
