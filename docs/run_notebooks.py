"""Runs the notebooks of docs/notebooks and keeps what they show: `make notebooks`.

A small executor, so that neither the tests nor the pages need Jupyter: cells run one after the
other, what they print and the value of a cell's last expression become its outputs.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "notebooks"
LARGEST = 200_000
"""Characters of a kept output. The explorer's page is larger: its place is the notebook at hand."""


def read_notebook(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def execute(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of a fresh run; a cell that fails stops it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell = cell | {"execution_count": count, "outputs": _run_cell(cell, names, count)}
        cells.append(cell)
    return notebook | {"cells": cells}


def _run_cell(cell: dict[str, Any], names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    # 1. The last expression is shown, what is before it is run.
    body = ast.parse("".join(cell["source"])).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), f"cell {count}", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)  # noqa: S307
    # 2. Outputs as a notebook keeps them.
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        result = {"output_type": "execute_result", "execution_count": count, "metadata": {}}
        outputs.append(result | {"data": _represent(value)})
    return outputs


def _represent(value: Any) -> dict[str, Any]:
    """What a notebook would show of a value: a picture, or a table, or its text."""
    if hasattr(value, "_repr_mimebundle_"):
        shown = value._repr_mimebundle_()
    else:
        shown = {"text/plain": repr(value)}
        if hasattr(value, "_repr_png_"):
            shown["image/png"] = base64.b64encode(value._repr_png_()).decode()
        elif hasattr(value, "_repr_html_"):
            shown["text/html"] = value._repr_html_()
    small = {kind: text for kind, text in shown.items() if text and len(text) <= LARGEST}
    return {
        kind: text if kind.startswith("image") else text.splitlines(keepends=True)
        for kind, text in small.items()
    }


def as_markdown(notebook: dict[str, Any]) -> str:
    """The notebook as a page of the documents."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_show_output(output) for output in cell.get("outputs", ())]
    return "\n\n".join(parts) + "\n"


def _show_output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="what the cell draws" src="data:image/png;base64,{data["image/png"]}">'
    if "text/html" in data:
        return f'<div style="overflow-x: auto">{"".join(data["text/html"])}</div>'
    text = "".join(data.get("text/plain", output.get("text", ())))
    return (
        f'<pre style="overflow-x: auto; padding: 0 0.8rem; font-size: 0.7rem">{escape(text)}</pre>'
    )


def write_notebook(path: Path, notebook: dict[str, Any]) -> None:
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def main(paths: list[Path]) -> None:
    for path in paths or sorted(FOLDER.glob("*.ipynb")):
        sys.stderr.write(f"{path.name}\n")
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            write_notebook(path, execute(read_notebook(path)))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main([Path(name).resolve() for name in sys.argv[1:]])
