"""Bit flips and truncations of every kind of file we write, and the commands that meet them.

A command may refuse what is damaged, in one line that names it, or make it again, or not need it.
It may not end well with another result than before.
"""

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torture import kills, made
from torture.children import Command, Ended, type_command
from torture.report import Case


@dataclass(frozen=True)
class Reader:
    """A command that reads what was damaged."""

    command: Command
    result: Callable[[Path, Ended], Any] = lambda folder, ended: ended.stdout
    notices: bool = False
    """It must refuse: nothing else is its task."""
    files: str = ""
    """Only files whose name holds this; all where empty."""


@dataclass(frozen=True)
class Specimen:
    """A kind of file, how it is made, and who reads it."""

    name: str
    make: Callable[[Path], None]
    files: tuple[str, ...]
    """Patterns."""
    readers: tuple[Reader, ...]
    cases: int


@dataclass(frozen=True)
class Hurt:
    """One change to one file, and the reader that meets it."""

    file: str
    part: str
    """`bit flip` or `truncation`."""
    at: int
    """The bit, or the bytes that stay."""
    reader: int


def read_card() -> None:
    """As a study reads the card of a lab model."""
    from anchorwatch.models.zoo.cards import read

    os.write(1, json.dumps(read("mdm")).encode())


def load_model(folder: str) -> Command:
    return ("run", folder, "Hello", "--length", "4", "--probes", "none", "--json")


TRACE_READERS = (
    Reader(("verify", "a.trace"), notices=True),
    Reader(("show", "a.trace", "--json")),
    Reader(("measure", "sinks", "a.trace")),
    Reader(
        ("export", "a.trace", "-o", "new.html"),
        lambda folder, _: made.contents(folder / "new.html"),
    ),
)
AGAIN_EVAL = Reader(
    made.EVAL, lambda folder, ended: (made.answers_of(folder / "asked"), ended.stdout)
)
AGAIN_WATCHED = Reader((*made.EVAL, "--probes", "default"), AGAIN_EVAL.result)
AGAIN_TRAIN = Reader(made.TRAIN, kills.trained)
AGAIN_STUDY = Reader(made.STUDY, kills.judged)

SPECIMENS = (
    Specimen("trace: arrays", made.make_trace, ("a.trace/*/c.*",), TRACE_READERS, 60),
    Specimen("trace: zarr.json", made.make_trace, ("a.trace/**/zarr.json",), TRACE_READERS, 48),
    Specimen("trace: commit record", made.make_trace, ("a.trace/COMMIT.json",), TRACE_READERS, 24),
    Specimen(
        "unfinished run",
        kills.begin_run,
        ("a.trace.partial/**/*",),
        (Reader(made.RESUME, kills.trace),),
        60,
    ),
    Specimen(
        "evaluation: answers", made.make_evaluation, ("asked/*/items.jsonl",), (AGAIN_EVAL,), 40
    ),
    Specimen(
        "evaluation: manifest, tables",
        made.make_evaluation,
        ("asked/*/*.json", "asked/tables/*"),
        (AGAIN_EVAL,),
        30,
    ),
    Specimen(
        "evaluation: traces",
        made.make_watched,
        ("asked/*/traces/*/**/*",),
        (AGAIN_WATCHED,),
        10,
    ),
    Specimen("training: record, log", made.make_training, ("trained/*",), (AGAIN_TRAIN,), 24),
    Specimen(
        "training: checkpoint",
        made.make_training,
        ("trained/checkpoints/**/*",),
        (AGAIN_TRAIN,),
        40,
    ),
    Specimen(
        "training: model",
        made.make_training,
        ("trained/model/*",),
        (Reader(load_model("trained/model")), AGAIN_TRAIN),
        48,
    ),
    Specimen("study: evidence", made.make_study, ("study/evidence/**/*",), (AGAIN_STUDY,), 40),
    Specimen(
        "study: claims, report, figures",
        made.make_study,
        ("study/*", "study/figures/*"),
        (AGAIN_STUDY,),
        16,
    ),
    Specimen(
        "exported page",
        made.make_pages,
        ("page.html",),
        (Reader(made.PAGE, lambda folder, _: made.contents(folder / "page.html")),),
        12,
    ),
    Specimen(
        "exported folder", made.make_pages, ("site/**/*",), (Reader(made.SITE, notices=True),), 12
    ),
    Specimen(
        "figure",
        made.make_figures,
        ("sinks.*",),
        (
            Reader(("whence", "sinks.pdf"), files=".pdf"),
            Reader(("whence", "sinks.svg"), files=".svg"),
            Reader(("whence", "sinks.png"), files=".png"),
        ),
        72,
    ),
    Specimen(
        "table",
        made.make_tables,
        ("table.json", "table.parquet"),
        (
            Reader(("whence", "table.json"), files=".json"),
            Reader(("whence", "table.parquet"), files=".parquet"),
            *(
                Reader(
                    ("export", "a.trace", "-o", "new.html", "--table", f"table.{kind}"),
                    lambda folder, _: made.contents(folder / "new.html"),
                    files=f".{kind}",
                )
                for kind in ("json", "parquet")
            ),
        ),
        48,
    ),
    Specimen(
        "converted checkpoint", made.make_converted, ("new/*",), (Reader(load_model("new")),), 30
    ),
    Specimen(
        "lab model",
        made.make_lab,
        ("mdm/*",),
        (Reader(load_model("mdm")),),
        30,
    ),
    Specimen("card", made.make_lab, ("mdm/card.json",), (Reader(read_card),), 20),
)


@dataclass(frozen=True)
class Whole:
    """A specimen before anything is done to it."""

    files: dict[str, int]
    """Sizes."""
    results: list[Any]
    """Of each reader."""


def makers() -> list[str]:
    """What makes specimens, each once."""
    return sorted({specimen.make.__name__ for specimen in SPECIMENS})


def make(name: str, base: Path) -> None:
    """Fill the folder that all cases of these specimens copy."""
    by_name = {specimen.make.__name__: specimen.make for specimen in SPECIMENS}
    folder = _given(name, base)
    folder.mkdir()
    by_name[name](folder)


def _given(name: str, base: Path) -> Path:
    return base / f"flip-given-{name}"


def read(at: int, base: Path) -> Whole:
    """Let each reader of a specimen read a copy of it, whole."""
    specimen = SPECIMENS[at]
    given = _given(specimen.make.__name__, base)
    files = {
        str(path.relative_to(given)): path.stat().st_size
        for pattern in specimen.files
        for path in given.glob(pattern)
        if path.is_file() and path.name != ".lock" and path.stat().st_size
    }
    results = []
    for reader in specimen.readers:
        folder = base / f"flip-{at}-whole"
        shutil.copytree(given, folder)
        ended = type_command(reader.command, folder)
        if ended.code not in (0, 3) and not reader.notices:
            said = f"{specimen.name}: {reader.command} ended with {ended.code}"
            raise RuntimeError(f"{said}\n{ended.stderr}")
        results.append(None if reader.notices else reader.result(folder, ended))
        shutil.rmtree(folder)
    return Whole(dict(sorted(files.items())), results)


def plan(at: int, whole: Whole, share: float, rng: random.Random) -> list[Hurt]:
    """Which files are damaged, where, and who meets it: three flips to two truncations."""
    specimen, hurts = SPECIMENS[at], []
    names: list[str] = []
    for number in range(max(1, round(specimen.cases * share))):
        if not names:
            names = list(whole.files)
            rng.shuffle(names)
        name = names.pop()
        readers = [place for place, reader in enumerate(specimen.readers) if reader.files in name]
        size = whole.files[name]
        part = "truncation" if number % 5 in (1, 3) else "bit flip"
        spot = rng.randrange(8 * size) if part == "bit flip" else _length(size, rng)
        hurts.append(Hurt(name, part, spot, rng.choice(readers)))
    return hurts


def _length(size: int, rng: random.Random) -> int:
    """Bytes that stay: none, all but one, or any number."""
    return rng.choice((0, size - 1, rng.randrange(size), rng.randrange(size)))


def damage(at: int, number: int, hurt: Hurt, whole: Whole, base: Path) -> Case:
    """Damage a copy of a specimen, and let its reader meet that."""
    specimen, folder = SPECIMENS[at], base / f"flip-{at}-{number}"
    reader = specimen.readers[hurt.reader]
    case = Case(hurt.part, specimen.name, faults=1, folder=str(folder))
    shutil.copytree(_given(specimen.make.__name__, base), folder)
    file = folder / hurt.file
    raw = bytearray(file.read_bytes())
    if hurt.part == "bit flip":
        raw[hurt.at // 8] ^= 1 << hurt.at % 8
    else:
        raw = raw[: hurt.at]
    file.write_bytes(raw)
    ended = type_command(reader.command, folder)
    words = "reading" if callable(reader.command) else " ".join(reader.command[:2])
    what = f"{words} of {hurt.file}, {hurt.part} at {hurt.at}"
    case.tried(what, ended)
    if not case.failed:
        judge(case, what, (hurt, reader, ended), folder, whole.results[hurt.reader])
    if not case.failed:
        shutil.rmtree(folder)
    return case


def judge(
    case: Case, what: str, met: tuple[Hurt, Reader, Ended], folder: Path, before: Any
) -> None:
    hurt, reader, ended = met
    if ended.code not in (0, 3):
        if not any(part in ended.stderr + ended.stdout for part in _names(hurt.file)):
            case.lose(f"{what}: refused without naming it: {ended.stderr.strip()[-300:]}")
        return
    if reader.notices:
        case.lose(f"{what}: not noticed")
        return
    if ended.code == 3 and "damage" in ended.stderr + ended.stdout:
        return  # it says what of it is damaged, and shows the rest
    try:
        now = reader.result(folder, ended)
    except (OSError, ValueError, KeyError) as error:
        case.lose(f"{what}: the result cannot be read: {error!r}")
        return
    if now != before:
        case.lose(f"{what}: it ended well with another result")


def _names(file: str) -> list[str]:
    """Ways to name a file: by itself, or by the folder that is read as one thing."""
    parts = Path(file).parts
    return [parts[-1], *(part for part in parts[:-1] if len(part) > 2)]
