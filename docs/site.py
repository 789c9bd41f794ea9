"""Pages that `make docs` makes: the root's documents, notebooks, the API reference of docstrings.

The reference follows the tables of public names in `src/anchorwatch/__init__.py`, so that a new
public name is documented without another list.
"""

import re
from importlib import import_module
from pathlib import Path

from doctest_blocks import fence
from mkdocs.structure.files import File, Files
from run_notebooks import FOLDER as NOTEBOOKS
from run_notebooks import as_markdown, read_notebook

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "GLOSSARY.md": "glossary.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
ONE_PAGE = {
    "run": "Load, run, replay",
    "values": "Traces and errors",
}


def on_files(files: Files, config) -> Files:
    """Add the generated pages to those of docs/."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=_relink((ROOT / source).read_text())))
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        text = as_markdown(read_notebook(path)) + f'\n<a href="{path.name}">The notebook</a>\n'
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    for name, text in reference().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Links of docs/ to the root's documents and to notebooks lead to their pages."""
    for source, name in PAGES.items():
        markdown = markdown.replace(f"](../{source}", f"]({name}")
    markdown = re.sub(r"(\]\([\w./-]+)\.ipynb\)", r"\1.md)", markdown)
    return re.sub(r"\]\(\.\./([\w./-]+\.(?:py|toml))\)", r"](#)", markdown)


def _relink(text: str) -> str:
    text = text.replace("](docs/", "](")
    for source, name in PAGES.items():
        text = text.replace(f"]({source}", f"]({name}")
    return text


def reference() -> dict[str, str]:
    """Markdown of the API reference by page: functions and classes, then a page per namespace."""
    aw = import_module("anchorwatch")
    functions = {name: home for name, home in aw._NAMES.items() if name[0].islower()}
    classes = {name: home for name, home in aw._NAMES.items() if name[0].isupper()}
    pages = {}
    for page, names in (("run", functions), ("values", classes)):
        entries = "\n\n".join(f"::: anchorwatch.{home}.{name}" for name, home in names.items())
        pages[page] = f"# {ONE_PAGE[page]}\n\n{entries}\n"
    for name, home in aw._MODULES.items():
        pages[name] = f"# aw.{name}\n\n{_namespace(f'anchorwatch.{home}')}\n"
    return pages


def _namespace(module: str) -> str:
    """What a public module offers: `__all__`, else what it defines itself."""
    package = import_module(module)
    entries = [fence((package.__doc__ or "").strip())]
    for name in sorted(getattr(package, "__all__", vars(package))):
        value = getattr(package, name)
        home = str(getattr(value, "__module__", ""))
        own = hasattr(package, "__all__") or home == module
        if callable(value) and own and home.startswith("anchorwatch") and name[0] != "_":
            entries.append(f"::: {home}.{getattr(value, '__qualname__', name)}")
    return "\n\n".join(entries)
