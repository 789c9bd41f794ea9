"""The page itself: the built script and style, put into HTML for a server, a folder or one file.

Data in a page is JSON inside a script element that no browser runs. What could end that element or
start a comment is escaped, so a token can be any text. Scripts are named by their hash in the
content security policy: a page runs ours and nothing else, and asks nobody for anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from typing import Any

from anchorwatch.errors import AnchorwatchError

DATA_ID = "anchorwatch-data"
_BODY = "<body><div id=app></div><noscript>A script draws this page: allow it.</noscript>"
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


class PageError(AnchorwatchError, RuntimeError):
    """The page was not built; the message says how."""


def read_built(name: str) -> str:
    """A file of the front end."""
    path = files("anchorwatch.explorer") / "built" / name
    if not path.is_file():
        raise PageError(
            f"the explorer's page is not built ({name} is missing): `make web` in a clone builds "
            "it with Node 20 or newer, and a wheel or sdist brings it"
        )
    return path.read_text(encoding="utf-8")


def to_script_json(value: Any) -> str:
    """JSON that may stand inside a script element, whatever text it holds."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character, spelled in _ESCAPED.items():
        text = text.replace(character, spelled)
    return text


def page(title: str, data: Any) -> str:
    """One self-contained file: style, data and script are in it."""
    style, script = read_built("app.css"), read_built("app.js")
    if "</script" in script or "</style" in style:
        raise PageError("the built page would end its own element: build it again, `make web`")
    policy = policy_of(f"'sha256-{_hash(script)}'", connect="'none'")
    return "".join(
        [
            _head(title, policy),
            f"<style>{style}</style></head>{_BODY}",
            f'<script type="application/json" id="{DATA_ID}">{to_script_json(data)}</script>',
            f"<script>{script}</script></body></html>",
        ]
    )


def shell(title: str, data: Any) -> str:
    """A page beside its script, style and packets: it asks nobody but whoever served it."""
    return "".join(
        [
            _head(title, policy_of("'self'", connect="'self'")),
            f'<link rel="stylesheet" href="app.css"></head>{_BODY}',
            f'<script type="application/json" id="{DATA_ID}">{to_script_json(data)}</script>',
            '<script src="app.js"></script></body></html>',
        ]
    )


def policy_of(script: str, connect: str) -> str:
    """A content security policy: nothing from outside, no frame, no form, no base."""
    return (
        f"default-src 'none'; script-src {script}; style-src 'self' 'unsafe-inline'; "
        f"connect-src {connect}; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _head(title: str, policy: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta name="referrer" content="no-referrer">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title>'
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
