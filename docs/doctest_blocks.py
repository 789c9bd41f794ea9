"""Doctests in docstrings become code blocks of the API reference."""

import re

import griffe

_DOCTEST = re.compile(r"(?:^>>> .*\n?(?:^(?!>>> |\s*$).*\n?)*)+", re.MULTILINE)


def fence(text: str) -> str:
    """The text with each run of doctest lines and their output in a Python block."""
    return _DOCTEST.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)


class FenceDoctests(griffe.Extension):
    """Rewrites docstrings as they are collected."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fence(obj.docstring.value)
