"""Make the lab: train its stem and arms, put them into the package, measure them, write cards.

    python recipes/lab.py                        # everything; again goes on where it was
    python recipes/lab.py --arms mdm arm --only train

Steps: train (runs/lab/stem, then runs/lab/ARM), export (src/anchorwatch/models/zoo/ARM), card
(card.json, README.md).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import make_models as making

from anchorwatch.models.zoo import MODELS
from anchorwatch.training import variants
from anchorwatch.training.checkpoints import MODEL

HERE = Path(__file__).resolve().parent
RUNS = Path("runs", "lab")
"""Where the recipe names the stem."""
STEPS = ("train", "export", "card")


def main(words: list[str] | None = None) -> None:
    asked = _asked(words)
    os.chdir(HERE.parent)  # recipes name the stem from there
    if "train" in asked.only:
        making.train_stem(asked.stem, asked.runs)
    for arm in asked.arms:
        for step in asked.only:
            began = time.monotonic()
            _do(step, arm, asked)
            print(f"{arm}: {step}, {time.monotonic() - began:.0f} s", file=sys.stderr)


def _do(step: str, arm: str, asked: argparse.Namespace) -> None:
    more = _more(asked)
    if step == "train":
        making.train_arm(asked.recipe, arm, asked.runs, more)
    elif step == "export":
        making.export_arm(arm, asked.runs, asked.models, more)
    else:
        making.card_of(asked.models / arm, f"lab/{arm}")


def _more(asked: argparse.Namespace) -> tuple[str, ...]:
    """Settings over the recipe: arms in another folder go on from the stem that lies there."""
    if asked.runs.resolve() == RUNS.resolve():
        return tuple(asked.set)
    source = (asked.runs / making.STEM / MODEL).as_posix()
    return (f'model.from="{source}"', *asked.set)


def _asked(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arms", nargs="+", choices=variants.LAB, default=list(variants.LAB))
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--recipe", type=Path, default=HERE / "lab.toml")
    parser.add_argument("--stem", type=Path, default=HERE / "lab-stem.toml")
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--set", action="append", default=[], help="over the recipe: updates=30")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
