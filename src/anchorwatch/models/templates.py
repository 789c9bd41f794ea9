"""Chat templates of strangers: programs that must end.

transformers renders them in a sandbox, where they reach no file and no object of ours. A template
could still loop or grow without end: its steps are counted, and the numbers in it are read before
it runs.
"""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from jinja2 import Environment, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from anchorwatch.errors import PromptError

MOST_STEPS = 1_000_000
"""Lines that a template may run; those of large models run a few thousand for a long talk."""
MOST_BYTES = 256 << 20
"""By which the memory of the process may grow meanwhile."""
_LARGEST = 100_000
_WIDE = re.compile(r"%[-+ #0]*\d{6,}|\{[\w.]*:[-+#0<>^=]*\d{6,}")
"""A format that asks for a very wide field."""
_RENDERED = "<template>"
"""What jinja calls the file of a compiled template."""


class EndlessError(TemplateError):
    """A template that takes more than any talk needs."""


def check_template(template: Any) -> None:
    """Refuse powers, products and widths that one step could fill the memory with."""
    texts = template.values() if isinstance(template, dict) else [template]
    for text in texts:
        if not isinstance(text, str):
            raise PromptError(f"the chat template is {type(text).__name__}: expected text")
        try:
            parsed = _environment().parse(text)
        except (TemplateSyntaxError, RecursionError) as error:
            raise PromptError(f"the chat template cannot be read: {error}") from None
        if said := _excess(parsed):
            raise PromptError(f"the chat template {said}: give the prompt as text")


@contextmanager
def bounded() -> Iterator[None]:
    """Count the lines that templates run inside, and stop one that runs too many."""
    count, before = 0, sys.gettrace()
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kibibytes here
    inside = False

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal inside
        inside = inside or frame.f_code.co_filename == _RENDERED
        return step if inside else None

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        if count > MOST_STEPS:
            raise EndlessError(f"it runs more than {MOST_STEPS} lines")
        if frame.f_code.co_filename == _RENDERED:
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begun
            if grown * unit > MOST_BYTES:
                raise EndlessError(f"it takes more than {MOST_BYTES >> 20} MB")
        return step

    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)


def _excess(parsed: nodes.Template) -> str | None:
    """What of a template could take a gigabyte in one step, in words."""
    if parsed.find(nodes.Pow) is not None:
        return "raises to a power (**), which no talk needs"
    for product in parsed.find_all(nodes.Mul):
        sides = (product.left, product.right)
        if not any(isinstance(one, nodes.Const) and _is_small(one.value) for one in sides):
            return "multiplies by a number it does not name (*), which no talk needs"
    for constant in parsed.find_all(nodes.Const):
        value = constant.value
        if isinstance(value, int | float) and not abs(value) <= _LARGEST:
            return f"counts to {value!r:.30}, which no talk needs"
        if isinstance(value, str) and _WIDE.search(value):
            return "pads a text to a width that no talk needs"
    return None


def _is_small(value: Any) -> bool:
    return isinstance(value, int) and abs(value) <= 1000


class _Generation(Extension):
    """transformers' own tag, around what an assistant writes."""

    tags = {"generation"}  # noqa: RUF012 - as jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> Environment:
    """As transformers reads templates; nothing is rendered here."""
    return Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _Generation],
        autoescape=True,
    )
