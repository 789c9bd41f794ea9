"""Make `lab/tales-*`: grow their base, train the arms, export them into the package, write cards.

    python recipes/tales.py                            # everything; a second call resumes
    python recipes/tales.py --arms tales-mdm --only card

Steps: train (runs/tales/base, recipes/tales_base.py; runs/tales/start; runs/tales/ARM, where the
diffusion arms begin with tales-arm; runs/tales/ARM-more, their second part, which begins with the
exported first one), export (src/anchorwatch/models/zoo/ARM), card (card.json, README.md).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import export_model
import make_models
import tales_base

from anchorwatch.errors import AnchorwatchError
from anchorwatch.models.zoo import MODELS
from anchorwatch.training.card_measures import Effort
from anchorwatch.training.loop import fit
from anchorwatch.training.spec import read

HERE = Path(__file__).resolve().parent
RUNS = Path("runs", "tales")
"""Where the recipes look for the base, the start and tales-arm."""
STEPS = ("train", "export", "card")
GATE = 'variant=[{name = "gate", form = "elementwise", init = "identity"}]'
FIRST: dict[str, tuple[str, tuple[str, ...]]] = {
    "tales-arm": ("tales-arm.toml", ()),
    "tales-mdm": ("tales-mdm.toml", ()),
    "tales-sink": ("tales-mdm.toml", ('variant=["sink_token"]',)),
    "tales-gate": ("tales-mdm.toml", (GATE,)),
}
"""Recipe and settings of each arm, in the order in which they are trained."""
MORE = "tales-mdm-more.toml"
SECOND: dict[str, tuple[str, tuple[str, ...]]] = {
    "tales-mdm": (MORE, ()),
    "tales-sink": (MORE, ('model.from="lab/tales-sink"',)),
    "tales-gate": (MORE, ('model.from="lab/tales-gate"',)),
}
"""The second part of the diffusion arms. It goes on from the first as exported, which must be in
the package then; the export of the second part takes its folder."""
ARMS = FIRST | SECOND
"""What each arm was trained with last."""
DIGITS = {"tales-sink": 7, "tales-gate": 7}
"""Binary digits that shipped weights keep, where fewer than float16's: the four networks must fit
into a wheel of 100 MiB."""
EFFORT = Effort(examples=64, draws=2, items=60, prompts=6, texts=6)
"""What a card measures: less than of the smallest networks, which take a tenth of the time."""


def main(words: list[str] | None = None) -> int:
    options = _parse_options(words)
    os.chdir(HERE.parent)  # recipes name their files from there
    try:
        if "train" in options.only:
            _build_base(options)
            fit(read(HERE / "tales-start.toml"), RUNS / "start")
        for arm in options.arms:
            for step in options.only:
                began = time.monotonic()
                _run_step(step, arm, options)
                print(f"{arm}: {step}, {time.monotonic() - began:.0f} s", file=sys.stderr)
    except AnchorwatchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _build_base(options: argparse.Namespace) -> None:
    """The grown network, unless it is there."""
    if (RUNS / "base" / "config.json").is_file():
        return
    with tempfile.TemporaryDirectory() as scratch:
        data = options.data or tales_base.fetch_package(Path(scratch))
        tales_base.build_base(data, HERE / "tales-arm.toml", RUNS / "base")


def _run_step(step: str, arm: str, options: argparse.Namespace) -> None:
    recipe, settings = FIRST[arm]
    folder = options.models / arm
    if step == "train":
        fit(read(HERE / recipe, (*settings, *options.set)), RUNS / arm)
        if arm in SECOND:
            _export_first(arm, MODELS / arm, options)  # where lab/ARM is looked for
            more, settings = SECOND[arm]
            fit(read(HERE / more, (*settings, *options.set)), RUNS / f"{arm}-more")
    elif step == "card":
        make_models.write_card(folder, f"lab/{arm}", EFFORT)
    elif arm in SECOND:
        more, own = SECOND[arm]
        stem = export_model.build_record(RUNS / arm, arm, (*settings, *options.set))
        stem["stem"] = export_model.build_record(RUNS / "tales-arm", "tales-arm")
        run = RUNS / f"{arm}-more"
        settings, digits = (*own, *options.set), DIGITS.get(arm)
        export_model.export(run, folder, arm, settings, stem=stem, digits=digits)
    else:
        _export_first(arm, folder, options)


def _export_first(arm: str, folder: Path, options: argparse.Namespace) -> None:
    base = RUNS / ("start" if arm == "tales-arm" else "tales-arm")
    stem = export_model.build_record(base, base.name)
    settings = (*FIRST[arm][1], *options.set)
    export_model.export(RUNS / arm, folder, arm, settings, stem=stem)


def _parse_options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--data", type=Path, help="llama2.data, where it is there already")
    parser.add_argument("--set", action="append", default=[], help="over the recipe: updates=30")
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main())
