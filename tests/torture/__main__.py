"""`make torture`: kills, damages and misuses the project, and counts what did not hold.

    python tests/torture [--seed 0] [--share 1.0] [--only kills,flips,inputs]
                                    [--json FILE] [--write] [--keep FOLDER]

It ends with code 1 if anything was lost, a traceback appeared, or a command hung.
"""

import argparse
import multiprocessing
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from torture import flips, inputs, kills, prepare, report

PARTS = ("kills", "flips", "inputs")
WORKERS = 2


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def do(task: tuple[Callable, tuple]) -> object:
    """In a worker: it forks children for commands and runs nothing itself."""
    function, given = task
    return function(*given)


def tasks_of(pool, parts: list[str], base: Path, share: float, seed: int) -> list:
    """Every case, once what they need was made."""
    tasks: list = []
    if "kills" in parts:
        every = range(len(kills.VICTIMS))
        whole = pool.map(do, [(kills.undisturbed, (at, base)) for at in every], chunksize=1)
        for at in every:
            rng = random.Random(f"{seed} kills {at}")
            cases = kills.plan(at, whole[at], share, rng)
            tasks += [
                (kills.kill, (at, number, faults, whole[at], base))
                for number, faults in enumerate(cases)
            ]
        say(f"kills: {len(tasks)} cases, commands of {sum(one.seconds for one in whole):.0f} s")
    if "flips" in parts:
        every = range(len(flips.SPECIMENS))
        pool.map(do, [(flips.make, (name, base)) for name in flips.makers()], chunksize=1)
        held = pool.map(do, [(flips.read, (at, base)) for at in every], chunksize=1)
        for at in every:
            rng = random.Random(f"{seed} flips {at}")
            cases = flips.plan(at, held[at], share, rng)
            tasks += [
                (flips.damage, (at, number, hurt, held[at], base))
                for number, hurt in enumerate(cases)
            ]
        say(f"flips: {len(tasks)} cases with the kills")
    if "inputs" in parts:
        pool.map(do, [(inputs.make, (base,))])
        cases = inputs.chosen(share, random.Random(f"{seed} inputs"))
        tasks += [(inputs.give, (number, given, base)) for number, given in enumerate(cases)]
        say(f"inputs: {len(cases)} cases")
    return tasks


def watch(cases: Iterable[report.Case], total: int, begun: float) -> list[report.Case]:
    """Collect cases; a line now and then, and one for whatever fails."""
    done: list[report.Case] = []
    for case in cases:
        done.append(case)
        for name, held in (
            ("LOST", case.lost),
            ("TRACEBACK", case.tracebacks),
            ("HANG", case.hangs),
        ):
            for what in held:
                say(f"{name} {case.part}, {case.about} [{case.folder}]: {what}")
        if len(done) % 50 == 0 or len(done) == total:
            failed = sum(one.failed for one in done)
            say(f"{len(done)} of {total} cases, {failed} failed, {time.monotonic() - begun:.0f} s")
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the points and bits")
    parser.add_argument("--share", type=float, default=1.0, help="of the cases")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas")
    parser.add_argument("--json", type=Path, help="write all of it there")
    parser.add_argument("--write", action="store_true", help="put the table into the document")
    parser.add_argument("--keep", type=Path, help="a folder for what is made, and kept")
    asked = parser.parse_args()
    begun = time.monotonic()
    prepare.import_slow()
    base = asked.keep or Path(tempfile.mkdtemp(prefix="torture-"))
    base.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        tasks = tasks_of(pool, asked.only.split(","), base.resolve(), asked.share, asked.seed)
        random.Random(asked.seed).shuffle(tasks)
        cases = watch(pool.imap_unordered(do, tasks), len(tasks), begun)
        pool.close()
        pool.join()
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    say(f"{spent.ru_utime + spent.ru_stime:.0f} s of processor time")
    minutes = (time.monotonic() - begun) / 60
    rows = report.rows_of(cases)
    text = f"{report.as_text(rows)}\n\n{report.sentence(cases, asked.seed, minutes)}"
    sys.stdout.write(f"{text}\n")
    if asked.json is not None:
        about = {"seed": asked.seed, "share": asked.share, "minutes": round(minutes, 2)}
        asked.json.write_text(report.as_json(rows, cases, about))
    if asked.write:
        report.write_table(text)
    if asked.keep is None:
        shutil.rmtree(base, ignore_errors=True)
    return int(any(case.failed for case in cases))


if __name__ == "__main__":
    sys.exit(main())
