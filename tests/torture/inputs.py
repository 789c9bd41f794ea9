"""Bad inputs for every command: each must be refused with a line, and leave everything as it was."""

import random
import shutil
from pathlib import Path

from bad_inputs import BAD_INPUTS, BadInput, lay_out
from torture import made
from torture.children import type_command
from torture.report import Case

REFUSED = (1, 2)
MOST = 480
"""Inputs that are tried; of a command with many, a sample."""
COMMANDS = (
    *("run", "resume", "effect", "show", "verify", "measure", "plot", "whence", "eval", "lm-eval"),
    *("train", "study", "view", "export", "models", "convert", "doctor"),
)


def command_of(given: BadInput) -> str:
    return given.words[0] if given.words and given.words[0] in COMMANDS else "no command"


def chosen(share: float, rng: random.Random) -> list[BadInput]:
    """All inputs of a command with few, and as many of each of the others."""
    by_command: dict[str, list[BadInput]] = {}
    for given in BAD_INPUTS:
        by_command.setdefault(command_of(given), []).append(given)
    groups = [rng.sample(held, len(held)) for held in by_command.values()]
    found: list[BadInput] = []
    while len(found) < round(MOST * share) and any(groups):
        found += [group.pop() for group in groups if group]
    return found


def make(base: Path) -> None:
    """The folder that each input gets a copy of."""
    folder = base / "inputs-given"
    folder.mkdir()
    made.make_trace(folder)
    (folder / "a.trace").rename(folder / "good.trace")
    lay_out(folder)


def give(number: int, given: BadInput, base: Path) -> Case:
    """Type it in a folder of its own, and look at what it said and did."""
    folder = base / f"input-{number}"
    case = Case("bad input", command_of(given), inputs=1, folder=str(folder))
    shutil.copytree(base / "inputs-given", folder, symlinks=True)
    before = made.contents(folder)
    ended = type_command(given.typed(folder), folder, stdin=given.stdin)
    case.tried(given.name, ended)
    if not case.failed:
        if ended.code not in REFUSED:
            case.lose(f"{given.name}: ended with {ended.code}")
        elif not (ended.stderr or ended.stdout).strip():
            case.lose(f"{given.name}: refused without a word")
        now = made.contents(folder)
        if differs := sorted(n for n in before.keys() | now.keys() if before.get(n) != now.get(n)):
            case.lose(f"{given.name}: changed {', '.join(differs[:4])}")
    case.left += made.leftovers(folder)
    if not case.failed:
        shutil.rmtree(folder)
    return case
