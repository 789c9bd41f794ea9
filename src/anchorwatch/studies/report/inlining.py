"""A matplotlib figure inside a page: its SVG without styles, with colours that follow the page.

A page that allows no inline style would refuse matplotlib's `style="..."`, so each becomes
attributes. Ids are made the figure's own, black and white become the page's ink and paper.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from anchorwatch.figures.figure import Figure
from anchorwatch.studies.report.markup import Markup

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_FONT = re.compile(r"(?:(?:normal|bold|italic|oblique|\d00)\s+)*([0-9.]+)px.*")
_KEPT = frozenset(
    "fill stroke stroke-width stroke-dasharray stroke-dashoffset stroke-linejoin stroke-linecap "
    "stroke-opacity fill-opacity opacity text-anchor font-size clip-path".split()
)
INK = {
    "#000000": "var(--ink)",
    "#ffffff": "var(--paper)",
    "#f2f2f2": "var(--faint)",
    "#e3e3e3": "var(--faint)",
    "#dedede": "var(--line)",
    "#b0b0b0": "var(--line)",
    "#767676": "var(--muted)",
    "#0072b2": "var(--blue)",
    "#d55e00": "var(--orange)",
    "#009e73": "var(--green)",
    "#cc79a7": "var(--pink)",
}
"""Colours of figures that have a twin for dark pages."""


def inline_figure(figure: Figure, name: str, alt: str) -> Markup:
    """The figure as an <svg> element; `name` keeps its ids apart from those of others."""
    root = ElementTree.fromstring(figure._repr_svg_())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style", f"{_SVG}title"):
                parent.remove(child)
    _paperless(root)
    for element in root.iter():
        _plain(element, name)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "class": "drawn wide" if _width(root) > 300 else "drawn",
        "role": "img",
        "aria-label": alt,
    }
    return Markup(ElementTree.tostring(root, encoding="unicode", short_empty_elements=True))


def _width(root: ElementTree.Element) -> float:
    return float(root.attrib["viewBox"].split()[2])


def _paperless(root: ElementTree.Element) -> None:
    """Without the white sheet behind everything."""
    for group in root.iter(f"{_SVG}g"):
        if group.get("id") == "patch_1":
            group.clear()
            return


def _plain(element: ElementTree.Element, name: str) -> None:
    element.tag = element.tag.removeprefix(_SVG)
    attributes = dict(element.attrib)
    element.attrib.clear()
    for key, value in attributes.items():
        if key == "style":
            for part, style_value in _parts(value):
                element.attrib[part] = _own(style_value, name)
        elif key == f"{_XLINK}href":
            element.attrib["href"] = f"#{name}-{value[1:]}" if value.startswith("#") else value
        elif key == "id":
            element.attrib["id"] = f"{name}-{value}"
        elif not key.startswith("{"):
            element.attrib[key] = _own(value, name)


def _parts(style: str) -> list[tuple[str, str]]:
    """Declarations as attributes; what no attribute can say is left out."""
    declarations = []
    for declaration in style.split(";"):
        key, _, value = (part.strip() for part in declaration.partition(":"))
        if key == "font" and (size := _FONT.match(value)):
            declarations.append(("font-size", size[1]))
        elif key in _KEPT:
            declarations.append((key, INK.get(value.lower(), value)))
    return declarations


def _own(value: str, name: str) -> str:
    """References to ids, as they are called now; colours as the page has them."""
    return INK.get(value.lower(), value.replace("url(#", f"url(#{name}-"))
