"""Compare the variants: a base checkpoint for each seed, then every arm, two runs at a time.

    python recipes/variants.py --seeds 0 1 2 3 4 5     # a second call resumes

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

import make_models
import pandas as pd
import variants_page

from anchorwatch.errors import AnchorwatchError
from anchorwatch.training.card_measures import Effort
from anchorwatch.training.checkpoints import MODEL
from anchorwatch.training.plots import variant_differences
from anchorwatch.training.variants import VARIANTS, by_position, variants

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "src" / "anchorwatch" / "training" / "variants.csv"
NEXT_ROWS = 1000
"""Added to the seed of the corpus after the base checkpoint."""
EFFORT = Effort(examples=128, draws=2, items=80, prompts=6, texts=6, steps=16)
DIGITS = "%.7g"
"""Of the committed table: more than float32 has say nothing."""


def main(words: list[str] | None = None) -> int:
    options = _parse_options(words)
    os.chdir(ROOT)  # specs name the base checkpoint from there
    if options.one is not None:
        try:
            _run_one(options, *options.one)
        except AnchorwatchError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        return 0
    pairs = [(arm, seed) for seed in options.seeds for arm in options.arms]
    if "train" in options.only:
        with ThreadPoolExecutor(options.processes) as pool:
            bases = [(make_models.BASE, seed) for seed in options.seeds]
            codes = list(pool.map(lambda pair: _run_in_process(options, *pair), bases))
            codes += list(pool.map(lambda pair: _run_in_process(options, *pair), pairs))
        if any(codes):
            print(f"{sum(map(bool, codes))} of {len(codes)} failed: see above", file=sys.stderr)
            return 1
    if "page" in options.only:
        _write_page(options, pairs)
    return 0


def _run_one(options: argparse.Namespace, arm: str, seed: str) -> None:
    """Train the base checkpoint of a seed, or train and measure an arm."""
    if arm == make_models.BASE:
        more = (f"seed={seed}", *options.set)
        make_models.train_base(options.base, options.runs, _base_name(int(seed)), more)
    else:
        more, effort = _settings(options, int(seed)), _parse_effort(options)
        make_models.measure_variant(options.recipe, arm, int(seed), options.runs, effort, more)


def _run_in_process(options: argparse.Namespace, arm: str, seed: int) -> int:
    """One arm and seed in a process of its own, so that a thread is a core."""
    began = time.monotonic()
    words = [sys.executable, __file__, "--one", arm, str(seed), "--recipe", str(options.recipe)]
    words += ["--base", str(options.base), "--runs", str(options.runs)]
    for values, option in ((options.set, "--set"), (options.effort, "--effort")):
        words += [word for value in values for word in (option, value)]
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    code = subprocess.run(words, env=os.environ | one_thread, check=False).returncode
    state = "done" if not code else f"failed ({code})"
    print(f"{arm}, seed {seed}: {state}, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return code


def _write_page(options: argparse.Namespace, pairs: list[tuple[str, int]]) -> None:
    """The table, read back as everyone reads it, then the figure and the words."""
    rows = []
    for arm, seed in pairs:
        path = options.runs / f"{arm}-seed{seed}" / make_models.ROW
        if not path.is_file():
            raise SystemExit(f"{path} is missing: train it first, without --only page")
        rows.append(json.loads(path.read_text(encoding="utf-8")))
    pd.DataFrame(rows).to_csv(options.table, index=False, float_format=DIGITS)
    table = variants(options.table)
    figure = options.docs / "figures" / "variants.svg"
    figure.parent.mkdir(parents=True, exist_ok=True)
    variant_differences(table).save(figure)
    seeds = " ".join(str(seed) for seed in options.seeds)
    command = f"python recipes/variants.py --seeds {seeds}"
    text = variants_page.render_page(
        table, command=command, figure="figures/variants.svg", by_position=by_position()
    )
    (options.docs / "variants.md").write_text(text, encoding="utf-8")


def _base_name(seed: int) -> str:
    return f"{make_models.BASE}-seed{seed}"


def _settings(options: argparse.Namespace, seed: int) -> tuple[str, ...]:
    """Where the arms of a seed begin, and other rows than their base checkpoint's."""
    source = (options.runs / _base_name(seed) / MODEL).as_posix()
    return (f'model.from="{source}"', f"corpus.seed={NEXT_ROWS + seed}", *options.set)


def _parse_effort(options: argparse.Namespace) -> Effort:
    pairs = dict(word.split("=", 1) for word in options.effort)
    return replace(EFFORT, **{name: int(value) for name, value in pairs.items()})


def _parse_options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(6)))
    parser.add_argument("--arms", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--only", nargs="+", choices=("train", "page"), default=["train", "page"])
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "variants.toml")
    parser.add_argument(
        "--base", "--stem", type=Path, default=ROOT / "recipes" / "variants-stem.toml"
    )
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
