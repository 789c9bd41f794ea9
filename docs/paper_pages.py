"""Makes docs/papers.md: every figure and table of the three papers, with its command and ours.

    python docs/paper_pages.py runs/paper-pages      # makes them, or finds what is there already
    python docs/paper_pages.py --only page           # writes the page again from docs/papers/

Pictures are drawn from the lab's models. They lie in docs/papers/, as PNG with few colours; all of
them together stay below three megabytes.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
from pathlib import Path

from PIL import Image

from anchorwatch.studies.reproduction import PAPERS, Effort, PaperItem, paper_items, reproduce
from anchorwatch.trace.atomic_io import replace_file

DOCS = Path(__file__).resolve().parent
FOLDER = DOCS / "papers"
PAGE = DOCS / "papers.md"
WIDTH = 960
COLOURS = 256
TITLES = {
    "floating": "Attention Floating",
    "sinks": "Attention Sinks in Diffusion Language Models",
    "sink_token": "One Token Is Enough",
}
CLAIMS = {"floating": "floating.md", "sinks": "sinks.md", "sink_token": "sink-token.md"}
ROLES = {"mdm": "`--model`", "arm": "`--against`", "sink": "`--sink`", "gate": "`--gate`"}
PROTOCOL = Effort(prompts=5, items=12)
LEAD = """# The papers' figures and tables

Every figure and table of the three papers, the command that makes it, and our rendering. Made by `python docs/paper_pages.py` from models on board, [the tales](specimens.md), which the commands take where no model is named: small networks that show what a figure looks like and not what the papers' models do. DRAWN Where a picture shows one head, it is the one that shows the thing best, found by a stated rule (`studies/papers/find_heads.py`); nulls are dashed. In tables the difference from the first row stands in brackets, paired by item or by training seed; * is p < 0.05 after Holm's correction. Tables of answers have ITEMS questions a cell, pictures PROMPTS prompts: differences of so few items are not findings. Tables of training runs say their seeds.

`anchorwatch paper sinks` lists the items of a paper, `--all` makes all that can be made. On your models:

```console
$ anchorwatch paper sinks --figure 4 --model GSAI-ML/LLaDA-8B-Instruct --model Dream-org/Dream-v0-Instruct-7B --chat --full -o runs/sinks
$ anchorwatch paper sinks --table 1 --model GSAI-ML/LLaDA-8B-Instruct --against meta-llama/Llama-3.1-8B-Instruct --task gsm8k --task humaneval --run-code
```

`--full` runs as much as the paper did (128 positions in blocks of 32, 30 prompts, the whole test set), without it a small effort; `--length`, `--steps`, `--block`, `--limit` and `--items` change either. `--prompts FILE` says what runs go on with, `--task` what tables ask: files of questions ([evaluation](evaluation.md)) or tasks of lm-eval, whose data the harness fetches from the hub. An item that lacks a model or data says which, with the command. Each picture comes with its data as CSV; runs are kept in the folder and found again. In Python: `aw.studies.reproduce("sinks", ["figure 4"], models=[...], out=...)`. A new item is one function in `studies/papers/PAPER/figures.py`.
"""  # noqa: E501 - a line of the page each


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="?", type=Path, default=Path("runs", "paper-pages"))
    parser.add_argument("--only", choices=("pictures", "page"))
    given = parser.parse_args(words)
    if given.only != "page":
        for paper in PAPERS:
            draw(paper, given.runs)
    if given.only != "pictures":
        PAGE.write_text(page(), encoding="utf-8")


def draw(paper: str, runs: Path) -> None:
    """Make every item of a paper, and keep small copies of what it shows."""
    result = reproduce(paper, effort=PROTOCOL, out=runs / paper, kind="png")
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob(f"{paper}-*"):
        old.unlink()
    for path in (path for paths in result.made.values() for path in paths):
        target = FOLDER / f"{paper}-{path.name}"
        if path.suffix == ".png":
            replace_file(target, shrink(path))
        elif path.suffix == ".md" and not path.stem.endswith(("paired", "gains", "ratios")):
            shutil.copyfile(path, target)


def shrink(path: Path) -> bytes:
    """A picture with fewer pixels and colours."""
    with Image.open(path) as picture:
        whole = picture.convert("RGB")
        if whole.width > WIDTH:
            size = (WIDTH, round(whole.height * WIDTH / whole.width))
            whole = whole.resize(size, Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        # Few cells may have a colour of their own: every colour counts, not every pixel.
        few = whole.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(buffer, "png", optimize=True)
    return buffer.getvalue()


def page() -> str:
    """The page, from the registry and the pictures that are there."""
    words = {"DRAWN": drawn_models(), "ITEMS": PROTOCOL.items, "PROMPTS": PROTOCOL.prompts}
    parts = [re.sub("|".join(words), lambda match: str(words[match[0]]), LEAD)]
    for paper, number in PAPERS.items():
        link = f"[{number}](https://arxiv.org/abs/{number})"
        parts.append(f"## {TITLES[paper]}\n\n{link}; its claims: [{paper}]({CLAIMS[paper]}).\n")
        if paper == "floating":
            parts.append("Figures go by what they show, as in the paper's published repository.\n")
        lines = ["| item | shows | command | ours |", "|---|---|---|---|"]
        for item in paper_items(paper):
            lines.append(f"| {item.label} | {_shows(item)} | `{item.command}` | {_ours(item)} |")
        parts.append("\n".join(lines) + "\n")
        for item in paper_items(paper):
            if (table := FOLDER / f"{paper}-{item.slug}.md").is_file():
                parts.append(f"### {_heading(item)}\n\n{table.read_text(encoding='utf-8')}")
    return "\n".join(parts)


def drawn_models() -> str:
    """A sentence on the models that pictures and tables are of, as the tables name them."""
    tables = (path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md")))
    names = sorted({name for text in tables for name in re.findall(r"lab/[a-z-]+", text)})
    return f"Those below are of {', '.join(f'`{name}`' for name in names)}."


def _shows(item: PaperItem) -> str:
    models = ", ".join(ROLES[role] for role in item.roles)
    text = f"{item.says} Models: {models}."
    return text + (f" As published: {item.published}." if item.published else "")


def _ours(item: PaperItem) -> str:
    """Pictures of the item, or a link to its table, or why there is none."""
    pictures = [
        path
        for path in sorted(FOLDER.glob(f"{item.paper}-{item.slug}*"))
        if path.suffix == ".png" and _belongs(path, item)
    ]
    if pictures:
        return " ".join(f"![{item.label}](papers/{path.name})" for path in pictures)
    if (FOLDER / f"{item.paper}-{item.slug}.md").is_file():
        return f"[below](#{_heading(item).lower().replace(' ', '-')})"
    return "not made from the lab's models: the command says what it needs"


def _belongs(path: Path, item: PaperItem) -> bool:
    """Whether a picture is of this item, and not of figure 10 where it is figure 1."""
    rest = path.stem.removeprefix(f"{item.paper}-{item.slug}")
    return not rest or rest.startswith("-")


def _heading(item: PaperItem) -> str:
    return f"{item.label.capitalize()} of {item.paper.replace('_', '-')}"


if __name__ == "__main__":
    main()
