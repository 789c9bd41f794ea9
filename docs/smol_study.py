"""Runs the claims that a CPU can bear on SmolLM2-135M and its diffusion adaptation.

    anchorwatch fetch smol
    python docs/smol_study.py runs/smol                  # a second call resumes
    python docs/papers.py runs/smol --part smol          # the verdicts into the pages

Claims were chosen by what they cost: those that read watched runs, and tables of a few passes a
prompt. Answers under edits, effects over whole runs and trainings are left out. Claims that are not
about this model cost nothing, and are in it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from anchorwatch.studies.budget import Budget
from anchorwatch.studies.papers import claims
from anchorwatch.studies.run_study import study

MODELS = {"model": "lab/smol-mdm", "against": "lab/smol-arm"}
ANSWERS = {
    "floating": (1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 25),
    "sinks": (1, 2, 4, 10, 18, 19, 20, 21, 22, 23),
    "sink_token": (1,),
}
"""Claims that read runs which answer questions, by number."""
TEXT = {"sinks": (3, 26), "sink_token": (2,)}
"""And running text."""
OTHER_FAMILIES = {
    paper: tuple(claim.number for claim in claims([paper]) if claim.scope)
    for paper in ("floating", "sinks")
}
BUDGET = Budget("six", prompts=6, length=16, steps=16, items=32, rows=6)
"""The quick budget with six prompts of its ten."""


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the study's folder")
    parser.add_argument("--only", choices=("answers", "text"), help="evidence of one kind")
    given = parser.parse_args(words)
    chosen = {"answers": [ANSWERS], "text": [TEXT]}.get(given.only, [ANSWERS, TEXT, OTHER_FAMILIES])
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
