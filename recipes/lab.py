"""Make `lab/toy-*`: train their base checkpoint and arms, export them, write cards.

    python recipes/lab.py                        # everything; a second call resumes
    python recipes/lab.py --arms toy-mdm toy-arm --only train

Steps: train (runs/lab/stem, then runs/lab/ARM), export (src/anchorwatch/models/zoo/ARM), card
(card.json, README.md).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import make_models

from anchorwatch.errors import AnchorwatchError
from anchorwatch.models.zoo import MODELS
from anchorwatch.training.checkpoints import MODEL
from anchorwatch.training.variants import LAB

HERE = Path(__file__).resolve().parent
RUNS = Path("runs", "lab")
"""Where the recipe looks for the base checkpoint."""
STEPS = ("train", "export", "card")


def main(words: list[str] | None = None) -> int:
    options = _parse_options(words)
    os.chdir(HERE.parent)  # recipes name the base checkpoint from there
    try:
        if "train" in options.only:
            make_models.train_base(options.base, options.runs)
        for arm in options.arms:
            for step in options.only:
                began = time.monotonic()
                _run_step(step, arm, options)
                print(f"{arm}: {step}, {time.monotonic() - began:.0f} s", file=sys.stderr)
    except AnchorwatchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _run_step(step: str, arm: str, options: argparse.Namespace) -> None:
    more = _settings(options)
    if step == "train":
        make_models.train_arm(options.recipe, arm, options.runs, more)
    elif step == "export":
        make_models.export_arm(arm, options.runs, options.models, more)
    else:
        make_models.write_card(options.models / arm, f"lab/{arm}")


def _settings(options: argparse.Namespace) -> tuple[str, ...]:
    """Settings over the recipe: arms in another folder start from the base checkpoint there."""
    if options.runs.resolve() == RUNS.resolve():
        return tuple(options.set)
    source = (options.runs / make_models.BASE / MODEL).as_posix()
    return (f'model.from="{source}"', *options.set)


def _parse_options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arms", nargs="+", choices=LAB, default=list(LAB))
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--recipe", type=Path, default=HERE / "lab.toml")
    parser.add_argument("--base", "--stem", type=Path, default=HERE / "lab-stem.toml")
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--set", action="append", default=[], help="over the recipe: updates=30")
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main())
