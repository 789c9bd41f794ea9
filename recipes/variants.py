"""Compare the variants: a stem for each seed, then every arm, two at a time, one thread each.

    python recipes/variants.py --seeds 0 1 2 3 4 5     # again goes on where it was

Runs lie in runs/variants/stem-seedN and ARM-seedN, each arm's with its row of the table (row.json).
At the end the rows become src/anchorwatch/training/variants.csv; docs/variants.md and its figure
are made from them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

import make_models as making
import pandas as pd
import variants_page as pages

from anchorwatch.training.card_measures import Effort
from anchorwatch.training.checkpoints import MODEL
from anchorwatch.training.plots import variant_differences
from anchorwatch.training.variants import VARIANTS, variants

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "src" / "anchorwatch" / "training" / "variants.csv"
NEXT_ROWS = 1000
"""Added to the seed of the corpus after the stem."""
EFFORT = Effort(examples=128, draws=2, items=80, prompts=6, texts=6, steps=16)
DIGITS = "%.7g"
"""Of the committed table: more than float32 has say nothing."""


def main(words: list[str] | None = None) -> int:
    asked = _asked(words)
    os.chdir(ROOT)  # specs name the stem from there
    if asked.one is not None:
        arm, seed = asked.one
        if arm == making.STEM:
            more = (f"seed={seed}", *asked.set)
            making.train_stem(asked.stem, asked.runs, _stem(int(seed)), more)
        else:
            more = _more(asked, int(seed))
            making.variant_row(asked.recipe, arm, int(seed), asked.runs, _effort(asked), more)
        return 0
    pairs = [(arm, seed) for seed in asked.seeds for arm in asked.arms]
    if "train" in asked.only:
        with ThreadPoolExecutor(asked.processes) as pool:
            stems = [(making.STEM, seed) for seed in asked.seeds]
            codes = list(pool.map(lambda pair: _started(asked, *pair), stems))
            codes += list(pool.map(lambda pair: _started(asked, *pair), pairs))
        if any(codes):
            print(f"{sum(map(bool, codes))} of {len(codes)} failed: see above", file=sys.stderr)
            return 1
    if "page" in asked.only:
        _page(asked, pairs)
    return 0


def _started(asked: argparse.Namespace, arm: str, seed: int) -> int:
    """One arm and seed in a process of its own, so that a thread is a core."""
    began = time.monotonic()
    words = [sys.executable, __file__, "--one", arm, str(seed), "--recipe", str(asked.recipe)]
    words += ["--stem", str(asked.stem), "--runs", str(asked.runs)]
    for said, option in ((asked.set, "--set"), (asked.effort, "--effort")):
        words += [word for one in said for word in (option, one)]
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    code = subprocess.run(words, env=os.environ | one_thread, check=False).returncode
    state = "done" if not code else f"failed ({code})"
    print(f"{arm}, seed {seed}: {state}, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return code


def _page(asked: argparse.Namespace, pairs: list[tuple[str, int]]) -> None:
    """The table, read back as everyone reads it, then the figure and the words."""
    rows = []
    for arm, seed in pairs:
        path = asked.runs / f"{arm}-seed{seed}" / making.ROW
        if not path.is_file():
            raise SystemExit(f"{path} is missing: train it first, without --only page")
        rows.append(json.loads(path.read_text(encoding="utf-8")))
    pd.DataFrame(rows).to_csv(asked.table, index=False, float_format=DIGITS)
    table = variants(asked.table)
    figure = asked.docs / "figures" / "variants.svg"
    figure.parent.mkdir(parents=True, exist_ok=True)
    variant_differences(table).save(figure)
    seeds = " ".join(str(seed) for seed in asked.seeds)
    command = f"python recipes/variants.py --seeds {seeds}"
    text = pages.page(table, command=command, figure="figures/variants.svg")
    (asked.docs / "variants.md").write_text(text, encoding="utf-8")


def _stem(seed: int) -> str:
    return f"{making.STEM}-seed{seed}"


def _more(asked: argparse.Namespace, seed: int) -> tuple[str, ...]:
    """Where the arms of a seed begin, and other rows than their stem's."""
    source = (asked.runs / _stem(seed) / MODEL).as_posix()
    return (f'model.from="{source}"', f"corpus.seed={NEXT_ROWS + seed}", *asked.set)


def _effort(asked: argparse.Namespace) -> Effort:
    said = dict(one.split("=", 1) for one in asked.effort)
    return replace(EFFORT, **{name: int(value) for name, value in said.items()})


def _asked(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(6)))
    parser.add_argument("--arms", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--only", nargs="+", choices=("train", "page"), default=["train", "page"])
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "variants.toml")
    parser.add_argument("--stem", type=Path, default=ROOT / "recipes" / "variants-stem.toml")
    parser.add_argument("--runs", type=Path, default=Path("runs", "variants"))
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--set", action="append", default=[], help="over the recipes: optimizer.lr=1e-3"
    )
    known = ", ".join(field.name for field in fields(Effort))
    parser.add_argument("--effort", action="append", default=[], help=f"items=20; of {known}")
    parser.add_argument("--one", nargs=2, metavar=("ARM", "SEED"), help="train and measure one")
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main())
