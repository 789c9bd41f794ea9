"""Writes report.html and figures/*.pdf of a study into its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anchorwatch.figures.figure import Figure
from anchorwatch.studies.report.comparison import Section, sections
from anchorwatch.studies.report.figures import claim_figure, name_of, own_figure, save_figures
from anchorwatch.studies.report.page import page
from anchorwatch.trace.atomic_io import replace_file

if TYPE_CHECKING:
    from anchorwatch.studies.study_record import Study

PAGE, FIGURES = "report.html", "figures"


def write(study: Study, folder: Path) -> Path:
    """The page and its figures; returns where the page is."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {one.claim.id: own_figure(study, one) for one in study.findings if one.verdict}
    drawn = {name: figure for name, figure in own.items() if figure is not None}
    beside = sections(study)
    replace_file(folder / PAGE, page(study, drawn, beside).encode())
    save_figures(_figures(study, drawn, beside), folder / FIGURES)
    return folder / PAGE


def _figures(
    study: Study, drawn: Mapping[str, Figure | str], beside: Sequence[Section]
) -> Iterator[tuple[str, Figure]]:
    """Every figure with the name of its file; those of criteria are drawn one at a time."""
    for one in study.findings:
        if one.verdict is not None:
            yield name_of(one.claim.id), claim_figure(one)
    for name, figure in drawn.items():
        if isinstance(figure, Figure):
            yield f"{name_of(name)}-drawn", figure
    for section in beside:
        for at, (_, figure) in enumerate(section.figures):
            yield f"compared-{section.name}-{at}", figure
