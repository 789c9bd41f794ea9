"""Builds the explorer's page into the package, so that installing a wheel or sdist needs no Node,
and makes the text that a package index shows.

From a clone it installs what web/package-lock.json names and builds, unless the page is there and
no source is newer. An sdist brings the built page, and nothing is run.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

NODE = (20, 19)
SKIP = "ANCHORWATCH_WITHOUT_PAGE"


class PageHook(BuildHookInterface):
    """Makes sure that src/anchorwatch/explorer/built holds the page."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if os.environ.get(SKIP) or not stale(root):
            return
        refuse_old_node()
        # Not `npm ci`: it refuses a lock without the bindings of platforms that are not this one.
        for command in (["npm", "install", "--no-save"], ["npm", "run", "build"]):
            subprocess.run(command, cwd=root / "web", check=True)


class ReadmeHook(MetadataHookInterface):
    """The long description: README.md as it reads where the clone is not at hand."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": unlink(text)}


def unlink(text: str) -> str:
    """Markdown without pictures and links of the clone: a package index has none of them.

    >>> unlink("See [models](docs/models.md) and [Node](https://nodejs.org).")
    'See models and [Node](https://nodejs.org).'
    """
    text = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", "", text)
    return re.sub(r"\[([^\]]*)\]\((?!https?:|#)[^)]*\)", r"\1", text)


def stale(root: Path) -> bool:
    """Whether the page must be built: it is missing, or a source in this clone is newer."""
    page = root / "src" / "anchorwatch" / "explorer" / "built" / "app.js"
    if not page.is_file():
        return True
    if not (root / ".git").exists():
        return False
    sources = [*(root / "web" / "src").rglob("*.*"), *(root / "web").glob("*.*s*")]
    return any(file.stat().st_mtime > page.stat().st_mtime for file in sources)


def refuse_old_node() -> None:
    """Stop with a sentence where the page cannot be built."""
    needed = ".".join(map(str, NODE))
    way = f"install it, or set {SKIP}=1 to do without the explorer"
    if shutil.which("npm") is None or shutil.which("node") is None:
        raise SystemExit(f"a clone needs Node {needed} or newer for the explorer's page: {way}")
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    found = tuple(int(part) for part in re.findall(r"\d+", said)[:2])
    if found < NODE:
        raise SystemExit(f"Node {said.strip()} is too old, the page needs {needed}: {way}")
