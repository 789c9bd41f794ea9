"""The style and script of report.html, and the policies that let nothing else act."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files


def read_asset(name: str) -> str:
    """A file of templates/."""
    return files("anchorwatch.studies.report").joinpath("templates", name).read_text("utf-8")


def page_policy() -> str:
    """The page's policy (CSP): its own style and script by their hashes, and nothing else."""
    style, script = _hash(read_asset("page.css")), _hash(read_asset("page.js"))
    return (
        f"default-src 'none'; style-src '{style}'; script-src '{script}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(words: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(words.encode()).digest()).decode()}"
