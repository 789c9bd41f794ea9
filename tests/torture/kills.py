"""SIGKILL at seeded points of six commands: what was finished stays, and going on ends the same."""

import json
import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torture import made
from torture.children import Ended, Fault, type_command
from torture.report import Case

KINDS = ("operation", "torn", "operation", "moment")
"""How a child dies, in turn."""


@dataclass(frozen=True)
class Victim:
    """A command that is killed."""

    name: str
    command: tuple[str, ...]
    result: Callable[[Path, Ended], Any]
    """What must be as without the kill, once the command was gone on with."""
    given: Callable[[Path], None] | None = None
    """Fills the folder before."""
    go_on: Callable[[Path], Sequence[str] | None] | None = None
    """What is typed after a kill; the same command where left out, nothing where it ended."""
    kept: Callable[[Path], dict[str, Any]] = lambda folder: {}
    """What was finished: numbers may only grow, anything else must stay."""
    codes: tuple[int, ...] = (0,)
    kills: int = 10
    """In all of its cases."""


def _go_on_with_run(folder: Path) -> Sequence[str] | None:
    if (folder / "a.trace").exists():
        return None
    return made.RESUME if (folder / "a.trace.partial").exists() else made.RUN


def _kept_of_run(folder: Path) -> dict[str, Any]:
    if (folder / "a.trace").exists():
        return {"steps": 1 << 30, "a.trace": made.digest_of(folder / "a.trace")}
    states = [re.fullmatch(r"state-(\d+)\.npz", path.name) for path in folder.rglob("state-*.npz")]
    return {"steps": max((int(state[1]) for state in states if state), default=0)}


def trace(folder: Path, _: Ended) -> Any:
    return made.contents(folder / "a.trace")


def _kept_of_evaluation(folder: Path) -> dict[str, Any]:
    lines = {}
    for path in folder.glob("asked/*/items.jsonl"):
        for line in path.read_text().split("\n")[:-1]:
            lines[f"{path.parent.name} {json.loads(line)['item']}"] = line
    return lines


def _kept_of_training(folder: Path) -> dict[str, Any]:
    whole = (folder / "trained" / "checkpoints").glob("update-*")
    kept: dict[str, Any] = {"update": max((int(path.name[7:]) for path in whole), default=0)}
    if (model := folder / "trained" / "model").exists():
        kept["model"] = made.digest_of(model)
    return kept


def trained(folder: Path, _: Ended) -> Any:
    out = folder / "trained"
    return made.contents(out / "model"), made.losses(out / "log.jsonl")


def _kept_of_study(folder: Path) -> dict[str, Any]:
    """Units of evidence; those of cells grow line by line."""
    evidence = folder / "study" / "evidence"
    units = [*evidence.rglob("*.trace"), *evidence.glob("*/*/[0-9]*.json")]
    units += evidence.rglob("rows.json")
    finished = [path.relative_to(evidence) for path in units]
    return {
        str(name): made.digest_of(evidence / name)
        for name in finished
        if not any(part.startswith(".") for part in name.parts)
    }


def judged(folder: Path, _: Ended) -> Any:
    return made.claims_of(folder / "study"), (folder / "study" / "claims.csv").read_text()


def _exported(folder: Path, _: Ended) -> Any:
    return made.contents(folder / "page.html"), made.contents(folder / "a.trace")


def _give_page(folder: Path) -> None:
    made.make_trace(folder)
    (folder / "page.html").write_text("<p>an older page\n")


def _old_or_new_page(folder: Path) -> dict[str, Any]:
    content = (folder / "page.html").read_bytes()
    whole = content == b"<p>an older page\n" or content.rstrip().endswith(b"</html>")
    return {"the page is old or new": whole or "half a page"}


def _go_on_with_site(folder: Path) -> Sequence[str] | None:
    return None if (folder / "site").exists() else made.SITE


def begin_run(folder: Path) -> None:
    """A run that was killed after its first block of steps."""
    undisturbed = folder / "whole"
    undisturbed.mkdir()
    at = made.needed(made.RUN, undisturbed).operations // 2
    shutil.rmtree(undisturbed)
    while not list(folder.rglob("state-*.npz")):
        for left in folder.iterdir():
            shutil.rmtree(left)
        type_command(made.RUN, folder, Fault("operation", at))
        at += 20


VICTIMS = (
    Victim("run", made.RUN, trace, go_on=_go_on_with_run, kept=_kept_of_run, kills=20),
    Victim(
        *("resume", made.RESUME, trace),
        given=begin_run,
        go_on=_go_on_with_run,
        kept=_kept_of_run,
        kills=18,
    ),
    Victim(
        *(
            "eval",
            made.EVAL,
            lambda folder, ended: (made.answers_of(folder / "asked"), ended.stdout),
        ),
        kept=_kept_of_evaluation,
        kills=18,
    ),
    Victim(
        *("train", made.TRAIN, trained),
        given=made.write_spec,
        kept=_kept_of_training,
        kills=18,
    ),
    Victim("study", made.STUDY, judged, kept=_kept_of_study, codes=(0, 3), kills=16),
    Victim("export", made.PAGE, _exported, given=_give_page, kept=_old_or_new_page, kills=9),
    Victim(
        *("export", made.SITE, lambda folder, _: made.contents(folder / "site")),
        given=made.make_trace,
        go_on=_go_on_with_site,
        kills=9,
    ),
    Victim(
        *("convert", ("convert", "old", "new"), lambda folder, _: made.contents(folder / "new")),
        given=made.write_pickle,
        go_on=lambda folder: None if (folder / "new").exists() else ("convert", "old", "new"),
        kills=6,
    ),
)


@dataclass(frozen=True)
class Undisturbed:
    """A victim's command without a kill."""

    result: Any
    operations: int
    syncs: int
    seconds: float


def undisturbed(at: int, base: Path) -> Undisturbed:
    """Run a victim's command in a folder of its own; `given` is kept beside it for all cases."""
    victim, given = VICTIMS[at], base / f"kill-{at}-given"
    given.mkdir()
    if victim.given is not None:
        victim.given(given)
    folder = base / f"kill-{at}-whole"
    shutil.copytree(given, folder)
    ended = made.needed(victim.command, folder, victim.codes)
    return Undisturbed(victim.result(folder, ended), ended.operations, ended.syncs, ended.seconds)


def plan(at: int, whole: Undisturbed, share: float, rng: random.Random) -> list[list[Fault]]:
    """One to three kills for each case, spread over the life of the command."""
    victim, cases = VICTIMS[at], []
    left = max(1, round(victim.kills * share))
    spread = [(number + rng.random()) / left for number in range(left)]
    rng.shuffle(spread)
    kinds = [KINDS[number % len(KINDS)] for number in range(left)]
    if not whole.syncs:
        kinds = ["operation" if kind == "torn" else kind for kind in kinds]
    faults = [
        Fault(kind, _point(kind, part, whole)) for kind, part in zip(kinds, spread, strict=True)
    ]
    while faults:
        count = min(rng.choice((1, 1, 2, 3)), len(faults))
        cases.append([_sooner(fault, place) for place, fault in enumerate(faults[:count], 1)])
        faults = faults[count:]
    return cases


def _sooner(fault: Fault, place: int) -> Fault:
    """The `place`-th kill of a case: what is gone on with has less left to do."""
    return Fault(fault.kind, fault.at / place if fault.kind == "moment" else -(-fault.at // place))


def _point(kind: str, part: float, whole: Undisturbed) -> float:
    if kind == "moment":
        return part * whole.seconds
    return 1 + int(part * (whole.operations if kind == "operation" else whole.syncs))


def kill(at: int, number: int, faults: list[Fault], whole: Undisturbed, base: Path) -> Case:
    """Kill a command, go on with it, kill that, and so on; at last let it end, and compare."""
    victim = VICTIMS[at]
    folder = base / f"kill-{at}-{number}"
    case = Case("SIGKILL", victim.name, folder=str(folder))
    shutil.copytree(base / f"kill-{at}-given", folder)
    words: Sequence[str] | None = victim.command
    kept = victim.kept(folder)
    for fault in faults:
        if words is None:
            break
        ended = type_command(words, folder, fault)
        case.faults += ended.killed
        case.tried(f"{fault.kind} {fault.at:g} of {' '.join(words[:1])}", ended)
        kept = grown(case, kept, victim.kept(folder))
        words = victim.go_on(folder) if victim.go_on else victim.command
    if words is not None:
        ended = type_command(words, folder)
        case.tried(f"{words[0]} after the kill", ended)
        if ended.code not in victim.codes:
            case.lose(f"{words[0]} did not go on: {ended.stderr.strip()[-300:]}")
    if not case.lost:
        grown(case, kept, victim.kept(folder))
        try:
            _compare(case, victim.result(folder, ended), whole.result)
        except (OSError, ValueError, KeyError) as error:
            case.lose(f"the result cannot be read: {error!r}")
    case.left += made.leftovers(folder)
    if not case.failed:
        shutil.rmtree(folder)
    return case


def grown(case: Case, before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    for name, value in before.items():
        if isinstance(value, int):
            if now.get(name, 0) < value:
                case.lose(f"{name} was {value} and is {now.get(name, 0)}")
        elif now.get(name) != value:
            case.lose(f"{name} is gone or changed")
    return now


def _compare(case: Case, found: Any, whole: Any) -> None:
    if found == whole:
        return
    if isinstance(found, dict) and isinstance(whole, dict):
        differs = [
            name for name in found.keys() | whole.keys() if found.get(name) != whole.get(name)
        ]
        case.lose(f"the result differs: {', '.join(sorted(differs)[:4])}")
    else:
        case.lose("the result differs from that of an undisturbed run")
