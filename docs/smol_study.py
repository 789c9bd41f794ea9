"""Runs the claims that a CPU can bear on SmolLM2-135M, its diffusion adaptation and its sink token.

    anchorwatch fetch smol
    python docs/smol_study.py runs/smol                  # a second call resumes
    python docs/papers.py runs/smol --part smol          # the verdicts into the pages

Claims were chosen by what they cost: those that read watched runs, tables of a few passes a prompt,
and answers with sinks hidden. Left out are heads taken out one by one, ten
passages in a prompt, effects over whole runs, and trainings. Claims that are not about this model
cost nothing, and are in it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from anchorwatch.studies.papers import claims
from anchorwatch.studies.run_study import study

MODELS = {"model": "lab/smol-mdm", "against": "lab/smol-arm", "sink": "lab/smol-sink"}
ANSWERS = {
    "floating": (1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 19, 25, 26, 27),
    "sinks": (1, 2, 4, 10, 18, 19, 20, 21, 22, 23),
    "sink_token": (1, 11, 12, 14, 18, 20),
}
"""Claims that read runs which answer questions, or a few passes, by number."""
TEXT = {"floating": (2, 3, 4, 29), "sinks": (3, 26, 35), "sink_token": (2,)}
"""And running text."""
ITEMS = {"floating": (23, 28), "sinks": (13, 27, 28, 29, 31, 36)}
"""And how many questions are answered rightly."""
GROUPS = {"answers": ANSWERS, "text": TEXT, "items": ITEMS}
OTHER_FAMILIES = {
    paper: tuple(claim.number for claim in claims([paper]) if claim.scope)
    for paper in ("floating", "sinks")
}
BUDGET = "quick"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the study's folder")
    parser.add_argument("--only", choices=GROUPS, help="evidence of one kind")
    given = parser.parse_args(words)
    chosen = [GROUPS[given.only]] if given.only else [*GROUPS.values(), OTHER_FAMILIES]
    names = {
        f"{paper}/H{number}"
        for group in chosen
        for paper, numbers in group.items()
        for number in numbers
    }
    ordered = [claim.id for claim in claims() if claim.id in names]
    study(ordered, **MODELS, budget=BUDGET, out=given.out)


if __name__ == "__main__":
    main()
