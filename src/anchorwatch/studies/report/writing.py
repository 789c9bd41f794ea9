"""Writes report.html and figures/*.pdf of a study into its folder: every figure is drawn once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from anchorwatch.commits import replace_file
from anchorwatch.figures.figure import Figure
from anchorwatch.studies.report.comparison import sections
from anchorwatch.studies.report.figures import claim_figure, name_of, own_figure, save_figures
from anchorwatch.studies.report.page import page

if TYPE_CHECKING:
    from anchorwatch.studies.findings import Study

PAGE, FIGURES = "report.html", "figures"


def write(study: Study, folder: Path) -> Path:
    """The page and its figures; returns where the page is."""
    run = [one for one in study.findings if one.verdict is not None]
    own = {one.claim.id: own_figure(study, one) for one in run}
    drawn = {name: figure for name, figure in own.items() if figure is not None}
    beside = sections(study)
    replace_file(folder / PAGE, page(study, drawn, beside).encode())
    figures = {name_of(one.claim.id): claim_figure(one) for one in run}
    figures |= {
        f"{name_of(name)}-drawn": figure
        for name, figure in drawn.items()
        if isinstance(figure, Figure)
    }
    for one in beside:
        figures |= {
            f"compared-{one.name}-{at}": figure for at, (_, figure) in enumerate(one.figures)
        }
    save_figures(figures, folder / FIGURES)
    return folder / PAGE
