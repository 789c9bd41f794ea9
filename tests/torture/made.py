"""What the project writes, made once and undisturbed, and how two of a kind are compared."""

import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from torture.children import Ended, type_command

PROMPT = "Passage: The year 1764 saw the printing of Pale Mountain. Question: Which book? Answer:"
SPEC = """length = 32
batch = 4
updates = 8
model = {layers = 1, width = 32, heads = 2}
objective = {answer_only = 0.5, masks = "counted"}
checkpoints = {updates = 3, keep = 2}
log = {every = 2}
[corpus]
vocabulary = 512
mix = [{kind = "backcopy"}]
"""
RUN = ("run", "lab/toy-mdm", PROMPT, "--length", "20", "--steps", "20", "-o", "a.trace")
RESUME = ("resume", "lab/toy-mdm", "a.trace")
EVAL = (
    "eval",
    "tiny/llada",
    "tiny/arm",
    "--task",
    "synthetic/one-hop",
    "--contexts",
    "closed,gold",
)
EVAL += ("--limit", "4", "--length", "4", "--batch", "2", "--json", "-o", "asked")
TRAIN = ("train", "spec.toml", "-o", "trained", "--json")
STUDY = ("study", "sinks/H2", "sinks/H14", "floating/H24", "floating/H27")
STUDY += ("--model", "tiny/llada", "--budget", "least", "--no-open", "-o", "study")
PAGE = ("export", "a.trace", "-o", "page.html")
SITE = ("export", "a.trace", "-o", "site")
TABLE = ("measure", "sinks", "a.trace", "--by", "layer,head")


def needed(command: Iterable[str], folder: Path, codes: tuple[int, ...] = (0,)) -> Ended:
    """A command that must go well: the rest is made of what it writes."""
    words = tuple(command)
    ended = type_command(words, folder)
    if ended.code not in codes:
        raise RuntimeError(f"{' '.join(words)} ended with {ended.code}:\n{ended.stderr}")
    return ended


def make_trace(folder: Path) -> None:
    needed(RUN, folder)


def make_evaluation(folder: Path) -> None:
    needed(EVAL, folder)


def make_watched(folder: Path) -> None:
    needed((*EVAL, "--probes", "default"), folder)


def write_spec(folder: Path) -> None:
    (folder / "spec.toml").write_text(SPEC)


def make_training(folder: Path) -> None:
    write_spec(folder)
    needed(TRAIN, folder)


def make_study(folder: Path) -> None:
    needed(STUDY, folder, (0, 3))


def make_pages(folder: Path) -> None:
    make_trace(folder)
    needed(PAGE, folder)
    needed(SITE, folder)


def make_figures(folder: Path) -> None:
    make_trace(folder)
    for kind in ("pdf", "svg", "png"):
        needed(("plot", "sink-map", "a.trace", "--layer", "1", "-o", f"sinks.{kind}"), folder)


def make_tables(folder: Path) -> None:
    make_trace(folder)
    for kind in ("csv", "json", "parquet"):
        needed((*TABLE, "-o", f"table.{kind}"), folder)


def write_pickle(folder: Path) -> None:
    """A checkpoint as others keep it: the weights of lab/toy-mdm, pickled."""
    import torch
    from safetensors.torch import load_file

    from anchorwatch.models.zoo import MODELS

    shutil.copytree(MODELS / "toy-mdm", folder / "old")
    weights = folder / "old" / "model.safetensors"
    torch.save(load_file(weights), folder / "old" / "pytorch_model.bin")
    weights.unlink()


def make_converted(folder: Path) -> None:
    write_pickle(folder)
    needed(("convert", "old", "new"), folder)


def make_lab(folder: Path) -> None:
    from anchorwatch.models.zoo import MODELS

    shutil.copytree(MODELS / "toy-mdm", folder / "mdm")


def digest_of(path: Path) -> str:
    """Of a file, or of every file under a folder and its name; hidden ones are passed over."""
    digest = hashlib.sha256()
    for name, content in sorted(contents(path).items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def contents(path: Path) -> dict[str, bytes]:
    """Bytes by name, of a file or a folder; hidden ones are passed over."""
    if path.is_file():
        return {path.name: path.read_bytes()}
    found = {}
    for file in path.rglob("*"):
        name = file.relative_to(path)
        if file.is_file() and not any(part.startswith(".") for part in name.parts):
            found[str(name)] = file.read_bytes()
    return found


def leftovers(folder: Path) -> list[str]:
    """What a write that was killed left, and nobody removed."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.name.endswith((".tmp", ".partial")) or path.name.startswith(".anchorwatch-")
    )


def losses(log: Path) -> list[dict]:
    """The lines of a training log, without what the clock decides."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [{name: line[name] for name in line if name != "tokens_per_second"} for line in lines]


def claims_of(study: Path) -> dict:
    """What a study found, without how long it took."""
    held = json.loads((study / "claims.json").read_text())
    held["about"].pop("took", None)
    return held


def answers_of(out: Path) -> list[str]:
    """Every line of every cell, in an order that no run decides."""
    return sorted(
        f"{path.parent.name} {line}"
        for path in out.glob("*/items.jsonl")
        for line in path.read_text().splitlines()
    )
